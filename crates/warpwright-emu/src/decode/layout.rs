//! Where shared and local variables lie.

use warpwright_ptx::{Function, StateSpace, Symbol, Variable};

use super::{DecodeError, Decoder, Result, functions};
use crate::report::Position;
use crate::space::{LOCAL_BASE, SHARED_BASE};

/// A state space that is being filled.
struct Filling {
    end: u64,
}

impl Filling {
    /// The address of a variable; `None` if it has no size of its own.
    fn place(&mut self, variable: &Variable) -> Result<Option<u64>> {
        if variable.len.is_none() {
            return Ok(None);
        }
        let start = self.end.next_multiple_of(u64::from(variable.align.max(1)));
        let end = variable.bytes().and_then(|b| start.checked_add(b)).filter(|end| *end <= 1 << 30);
        let Some(end) = end else {
            return Err(DecodeError {
                location: Position::default(),
                message: format!("variable `{}` does not fit in its state space", variable.name),
            });
        };
        self.end = end;
        Ok(Some(start))
    }
}

impl Decoder<'_> {
    /// Lays out the shared variables of the kernel and its functions; dynamic shared memory follows the static ones.
    pub(super) fn place_shared(&mut self, functions: &[&Function]) -> Result<()> {
        let is_shared = |v: &Variable| matches!(v.space, StateSpace::Shared | StateSpace::SharedCluster);
        let mut filling = Filling { end: SHARED_BASE };
        let mut dynamic: Vec<&Variable> = Vec::new();
        let names = &mut self.code.shared_names;
        let mut place = |variable: &'_ Variable| -> Result<Option<u64>> {
            let start = filling.place(variable)?;
            if let Some(start) = start {
                names.push((variable.name.clone(), start, filling.end - start));
            }
            Ok(start)
        };
        for (i, variable) in (0..).zip(&self.module.variables) {
            let used = || functions.iter().any(|f| f.symbols.contains(&Symbol::ModuleVariable(i)));
            let shared = is_shared(variable) && used();
            self.module_shared.push(if shared { place(variable)? } else { None });
            if shared && variable.len.is_none() {
                dynamic.push(variable);
            }
        }
        for function in functions {
            let mut addresses = Vec::with_capacity(function.variables.len());
            for variable in &function.variables {
                addresses.push(if is_shared(variable) { place(variable)? } else { None });
                if is_shared(variable) && variable.len.is_none() {
                    dynamic.push(variable);
                }
            }
            self.shared.push(addresses);
        }
        let align = dynamic.iter().map(|v| u64::from(v.align)).max().unwrap_or(0).max(16);
        self.code.shared_end = filling.end;
        self.code.dynamic_base = filling.end.next_multiple_of(align);
        let base = self.code.dynamic_base;
        self.code.shared_names.extend(dynamic.iter().map(|v| (v.name.clone(), base, 0)));
        Ok(())
    }

    /// Lays out the frame of the current function, of which the kernel's begins at address 0 of local memory.
    pub(super) fn place_frame(&mut self) -> Result<u64> {
        let function = self.function;
        let mut filling = Filling { end: if self.in_kernel() { LOCAL_BASE } else { 0 } };
        if self.in_kernel() {
            self.params = function.param_layout().0;
            self.returns = Vec::new();
        } else {
            self.returns = functions::place_params(&function.returns, &mut filling.end);
            self.params = functions::place_params(&function.params, &mut filling.end);
        }
        self.local.clear();
        for variable in &function.variables {
            let framed = matches!(variable.space, StateSpace::Local | StateSpace::Param);
            let at = if framed { filling.place(variable)? } else { None };
            if let Some(start) = at.filter(|_| self.in_kernel()) {
                self.code.local_names.push((variable.name.clone(), start, filling.end - start));
            }
            self.local.push(at);
        }
        if self.in_kernel() {
            self.code.local_end = filling.end;
        }
        Ok(filling.end.next_multiple_of(16))
    }
}
