//! Device functions: which of them a kernel can reach, where their parameters and variables lie, and calls.
//!
//! Every reachable function is decoded into the code of the kernel, with rows of its own. What it has in memory, its
//! parameters, results, local variables and the `.param` variables of the calls that it makes, is one piece of local
//! memory, the frame; a row of the function holds where the frame of each lane begins. Frames follow each other in the
//! order of the calls, so pointers to a caller's variables stay good in the callee. Rows are saved by a call only where
//! the callee may come back to the caller.

use std::collections::BTreeSet;

use warpwright_ptx::{Callee, Function, FunctionKind, Inst, Module, Operand, Param, ScalarType, Symbol};

use super::{Decoder, Result, index};
use crate::code::function::{Builtin, Call, Place, Target};
use crate::code::op::Op;

/// The functions that a kernel can reach and which of them can reach each other.
pub(crate) struct Reached {
    /// Indices into `Module::functions`; the kernel is first.
    pub(crate) functions: Vec<u32>,
    /// For each of `functions` a bit for each that it can get to.
    reach: Vec<Vec<u64>>,
}

impl Reached {
    pub(crate) fn new(module: &Module, kernel: u32) -> Self {
        let mut functions = vec![kernel];
        let mut seen = BTreeSet::from([kernel]);
        let mut indirect = false;
        let mut at = 0;
        while let Some(f) = functions.get(at).and_then(|f| module.functions.get(*f as usize)) {
            at += 1;
            let mut found: Vec<u32> = f.symbols.iter().filter_map(|s| resolve(module, *s)).collect();
            if !indirect && calls(f).any(|c| !matches!(c, Callee::Direct(_))) {
                indirect = true;
                // The address may come from memory.
                let initializers = module.variables.iter().filter_map(|v| v.init.as_ref());
                let addresses = initializers.flat_map(|i| &i.addresses);
                found.extend(addresses.filter_map(|a| resolve(module, a.symbol)));
            }
            functions.extend(found.into_iter().filter(|f| seen.insert(*f)));
        }
        let words = functions.len().div_ceil(64);
        let mut reach = vec![vec![0u64; words]; functions.len()];
        let mut set = |from: usize, to: usize| reach[from][to / 64] |= 1 << (to % 64);
        for (from, f) in functions.iter().enumerate() {
            let Some(function) = module.functions.get(*f as usize) else { continue };
            for callee in calls(function) {
                match callee {
                    Callee::Direct(symbol) => {
                        let target =
                            function.symbols.get(symbol.0 as usize).and_then(|s| resolve(module, *s));
                        let to = target.and_then(|t| functions.iter().position(|x| *x == t));
                        to.into_iter().for_each(|to| set(from, to));
                    }
                    // Any of them may be meant.
                    Callee::Prototype { .. } | Callee::OneOf { .. } => {
                        (1..functions.len()).for_each(|to| set(from, to));
                    }
                }
            }
        }
        let mut changed = true;
        while changed {
            changed = false;
            for from in 0..functions.len() {
                for to in 0..functions.len() {
                    if reach[from][to / 64] >> (to % 64) & 1 != 0 && from != to {
                        let further = reach[to].clone();
                        for (a, b) in reach[from].iter_mut().zip(&further) {
                            changed |= b & !*a != 0;
                            *a |= b;
                        }
                    }
                }
            }
        }
        Self { functions, reach }
    }

    /// Whether a function can be reached from itself.
    pub(crate) fn recursive(&self, at: usize) -> bool {
        self.reach.get(at).is_some_and(|r| r[at / 64] >> (at % 64) & 1 != 0)
    }
}

/// The function that a symbol stands for, behind its aliases.
fn resolve(module: &Module, symbol: Symbol) -> Option<u32> {
    let Symbol::Function(f) = symbol else { return None };
    Some(module.aliases.iter().find(|a| a.function == f).map_or(f, |a| a.of))
}

fn calls(f: &Function) -> impl Iterator<Item = &Callee> {
    f.blocks.iter().flat_map(|b| &b.instructions).filter_map(|i| match &i.inst {
        Inst::Call { callee, .. } => Some(callee),
        _ => None,
    })
}

/// Lays out the parameters and results of a device function from `at` on.
pub(crate) fn place_params(params: &[Param], at: &mut u64) -> Vec<u64> {
    let place = |p: &Param| {
        *at = at.next_multiple_of(u64::from(p.align.max(1)));
        let here = *at;
        *at += p.bytes();
        here
    };
    params.iter().map(place).collect()
}

impl Decoder<'_> {
    /// Whether the function that is being decoded is the kernel.
    pub(super) fn in_kernel(&self) -> bool {
        self.function.kind == FunctionKind::Entry
    }

    /// Where the parameters or results of the function lie.
    pub(super) fn places(&self, params: &[Param], offsets: &[u64]) -> Vec<Place> {
        let place = |(p, offset): (&Param, &u64)| match p.register {
            Some(r) => Place::Register { slot: self.regs.slot(r), bits: p.ty.bits() },
            None => Place::Memory { offset: *offset, bytes: p.bytes() },
        };
        params.iter().zip(offsets).map(place).collect()
    }

    pub(super) fn call(&mut self, callee: &Callee, returns: &[Operand], args: &[Operand]) -> Result<()> {
        let target = match callee {
            Callee::Direct(symbol) => {
                let symbol = self.function.symbols.get(symbol.0 as usize).copied();
                let index = symbol.and_then(|s| resolve(self.module, s));
                let function = index.and_then(|i| Some((i, self.module.functions.get(i as usize)?)));
                let Some((index, function)) = function else {
                    return self.error("an unknown function is called");
                };
                if !function.is_declaration() {
                    let at = self.reached.functions.iter().position(|f| *f == index).unwrap_or_default();
                    Target::Function(super::index(at))
                } else if let Some(builtin) = Builtin::of(&function.name) {
                    Target::Builtin(builtin)
                } else {
                    Target::Missing(function.name.clone())
                }
            }
            Callee::Prototype { address, .. } | Callee::OneOf { address, .. } => {
                Target::Address(self.slot(*address)?)
            }
        };
        let (params, results) = self.signature(callee);
        let args = self.arguments(args, &params)?;
        let returns = self.arguments(returns, &results)?;
        let saves = self.reached.recursive(self.current as usize);
        self.code.calls.push(Call { target, caller: self.current, args, returns, saves });
        let at = index(self.code.calls.len() - 1);
        self.emit(Op::Call(at));
        Ok(())
    }

    /// The types of the parameters and results of a callee, as far as they are known.
    fn signature(&self, callee: &Callee) -> (Vec<ScalarType>, Vec<ScalarType>) {
        let prototype = match callee {
            Callee::Direct(symbol) => {
                let symbol = self.function.symbols.get(symbol.0 as usize).copied();
                let function =
                    symbol.and_then(|s| self.module.functions.get(resolve(self.module, s)? as usize));
                function.map(Function::prototype)
            }
            Callee::Prototype { prototype, .. } => self.function.prototypes.get(*prototype as usize).cloned(),
            Callee::OneOf { .. } => None,
        };
        let types = |list: &[warpwright_ptx::PrototypeParam]| list.iter().map(|p| p.ty).collect();
        prototype.map_or_else(Default::default, |p| (types(&p.params), types(&p.returns)))
    }

    /// Where the arguments or results of a call are.
    fn arguments(&mut self, list: &[Operand], types: &[ScalarType]) -> Result<Vec<Place>> {
        let mut places = Vec::with_capacity(list.len());
        for (i, operand) in list.iter().enumerate() {
            let known = types.get(i).copied();
            places.push(match operand {
                Operand::Symbol(symbol, addend) => {
                    let symbol = self.function.symbols.get(symbol.0 as usize).copied();
                    let Some((offset, bytes)) = symbol.and_then(|s| self.frame_place(s)) else {
                        return self.error("the argument of a call is not in parameter memory");
                    };
                    Place::Memory { offset: offset.wrapping_add(*addend as u64), bytes }
                }
                Operand::Reg(r) => {
                    let bits = self.function.reg_type(*r).map_or(32, ScalarType::bits);
                    Place::Register { slot: Some(self.slot(*r)?), bits }
                }
                Operand::Imm(_) | Operand::Special(_) => {
                    let ty = known.unwrap_or(ScalarType::B32);
                    Place::Register { slot: Some(self.source(operand, ty)?), bits: ty.bits() }
                }
            });
        }
        Ok(places)
    }

    /// Offset in the frame and size of what a symbol names there.
    pub(super) fn frame_place(&self, symbol: Symbol) -> Option<(u64, u64)> {
        match symbol {
            Symbol::LocalVariable(v) => {
                let offset = self.local.get(v as usize).copied().flatten()?;
                Some((offset, self.function.variables.get(v as usize)?.bytes().unwrap_or(0)))
            }
            Symbol::Param(p) if !self.in_kernel() => {
                Some((*self.params.get(p as usize)?, self.function.params.get(p as usize)?.bytes()))
            }
            Symbol::Return(r) => {
                Some((*self.returns.get(r as usize)?, self.function.returns.get(r as usize)?.bytes()))
            }
            Symbol::Param(_) | Symbol::ModuleVariable(_) | Symbol::Function(_) => None,
        }
    }
}
