//! Declarations: variables with their initializers, signatures, directives, prototypes; and calls.

use std::fmt::Write as _;

use super::{Body, Text};
use crate::inst::*;
use crate::module::*;
use crate::types::*;

pub(super) const fn linkage(linkage: Linkage) -> &'static str {
    match linkage {
        Linkage::Internal => "",
        Linkage::Visible => ".visible ",
        Linkage::Extern => ".extern ",
        Linkage::Weak => ".weak ",
        Linkage::Common => ".common ",
    }
}

/// Functions that are only declared or used before they are defined, then the variables.
pub(super) fn module(out: &mut Text, module: &Module, bodies: &[Body<'_>]) {
    let forward = forward_declared(module, bodies);
    if forward.contains(&true) {
        out.line(format_args!(""));
    }
    for (function, forward) in module.functions.iter().zip(forward) {
        if forward {
            head(out, function, None);
            out.line(format_args!(";"));
        }
    }
    if !module.variables.is_empty() {
        out.line(format_args!(""));
    }
    for v in &module.variables {
        out.text.push_str(linkage(v.linkage));
        variable(&mut out.text, module, v);
        out.end(SourceLoc::Unknown);
    }
}

/// Which functions need a declaration in front.
fn forward_declared(module: &Module, bodies: &[Body<'_>]) -> Vec<bool> {
    let mut forward: Vec<bool> = module.functions.iter().map(Function::is_declaration).collect();
    let mut need = |i: u32, before: usize| {
        if i as usize >= before
            && module.functions.get(i as usize).is_some_and(|f| f.kind == FunctionKind::Device)
        {
            forward[i as usize] = true;
        }
    };
    let in_initializers = |variables: &[Variable]| -> Vec<u32> {
        let addresses = variables.iter().filter_map(|v| v.init.as_ref()).flat_map(|i| &i.addresses);
        let functions = addresses.filter_map(|a| match a.symbol {
            Symbol::Function(i) => Some(i),
            _ => None,
        });
        functions.collect()
    };
    let defined = module.functions.iter().enumerate().filter(|(_, f)| !f.is_declaration());
    for ((at, function), body) in defined.zip(bodies) {
        let targets = function.call_targets.iter().flatten();
        let targets = targets.filter_map(|id| match function.symbols.get(id.0 as usize) {
            Some(Symbol::Function(i)) => Some(*i),
            _ => None,
        });
        let inside = in_initializers(&function.variables);
        // A function may call itself.
        targets.chain(body.mentioned.iter().copied()).chain(inside).for_each(|i| need(i, at + 1));
    }
    in_initializers(&module.variables).into_iter().for_each(|i| need(i, 0));
    forward
}

pub(super) fn aliases(out: &mut Text, module: &Module) {
    let name = |i: u32| module.functions.get(i as usize).map_or("$missing", |f| f.name.as_str());
    for Alias { function, of } in &module.aliases {
        out.line(format_args!(".alias {}, {};", name(*function), name(*of)));
    }
}

/// `.space .align n .type name[len] = {..};`
pub(super) fn variable(out: &mut String, module: &Module, variable: &Variable) {
    let Variable { name, space, ty, align, len, array, init, managed, unified, .. } = variable;
    let _ = write!(out, ".{space} ");
    if *managed || unified.is_some() {
        out.push_str(".attribute(");
        out.push_str(if *managed { ".managed" } else { "" });
        if let Some([a, b]) = unified {
            let _ = write!(out, "{}.unified({a}, {b})", if *managed { ", " } else { "" });
        }
        out.push_str(") ");
    }
    let _ = write!(out, ".align {align} .{ty} {name}");
    match len {
        None => out.push_str("[]"),
        Some(len) if *array || *len != 1 => {
            let _ = write!(out, "[{len}]");
        }
        Some(_) => {}
    }
    if let Some(init) = init {
        out.push_str(" = ");
        let braces = *array || len.is_none_or(|n| n != 1);
        if braces {
            out.push('{');
        }
        initializer(out, module, *ty, init);
        if braces {
            out.push('}');
        }
    }
    out.push(';');
}

fn initializer(out: &mut String, module: &Module, ty: ScalarType, init: &Initializer) {
    let mut addresses = init.addresses.iter().peekable();
    for (i, element) in init.bytes.chunks(ty.bytes() as usize).enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        let at = i as u64 * u64::from(ty.bytes());
        if let Some(address) = addresses.next_if(|a| a.at == at) {
            initial_address(out, module, address);
            continue;
        }
        let mut word = [0u8; 16];
        word[..element.len()].copy_from_slice(element);
        let value = u128::from_le_bytes(word);
        let _ = match ty {
            ScalarType::F32 => write!(out, "0f{value:08X}"),
            ScalarType::F64 => write!(out, "0d{value:016X}"),
            _ => write!(out, "{value}"),
        };
    }
}

fn initial_address(out: &mut String, module: &Module, address: &InitialAddress) {
    let name = match address.symbol {
        Symbol::ModuleVariable(i) => module.variables.get(i as usize).map(|v| v.name.as_str()),
        Symbol::Function(i) => module.functions.get(i as usize).map(|f| f.name.as_str()),
        _ => None,
    };
    let name = name.unwrap_or("$missing");
    if let Some(byte) = address.byte {
        let _ = write!(out, "0x{:x}(", 0xffu64.wrapping_shl(8 * u32::from(byte)));
    }
    let _ = if address.generic { write!(out, "generic({name})") } else { write!(out, "{name}") };
    if address.addend != 0 {
        // There is no subtraction here.
        let _ = write!(out, "+{}", address.addend);
    }
    if address.byte.is_some() {
        out.push(')');
    }
}

/// Everything of a function before its `{` or `;`. Registers among the parameters have the names that `body` gave them.
pub(super) fn head(out: &mut Text, function: &Function, body: Option<&Body<'_>>) {
    out.text.push_str(linkage(function.linkage));
    match function.kind {
        FunctionKind::Entry => out.text.push_str(".entry "),
        FunctionKind::Device => {
            out.text.push_str(".func ");
            if !function.returns.is_empty() {
                out.text.push('(');
                for (i, p) in function.returns.iter().enumerate() {
                    out.text.push_str(if i > 0 { ", " } else { "" });
                    param(out, p, body);
                }
                out.text.push_str(") ");
            }
        }
    }
    out.push(format_args!("{}(", function.name));
    for (i, p) in function.params.iter().enumerate() {
        out.text.push_str(if i > 0 { "," } else { "" });
        out.end(SourceLoc::Unknown);
        out.text.push_str("    ");
        param(out, p, body);
    }
    if !function.params.is_empty() {
        out.end(SourceLoc::Unknown);
    }
    out.line(format_args!(")"));
    directives(out, &function.directives);
}

fn param(out: &mut Text, p: &Param, body: Option<&Body<'_>>) {
    if let Some(register) = p.register {
        let name = body.and_then(|b| b.register_name(register)).unwrap_or_else(|| p.name.clone());
        return out.push(format_args!(".reg .{} {name}", p.ty));
    }
    out.text.push_str(".param ");
    if p.align != p.ty.bytes() {
        out.push(format_args!(".align {} ", p.align));
    }
    out.push(format_args!(".{} ", p.ty));
    if let Some(PointerAttr { space, align }) = p.pointer {
        out.text.push_str(".ptr ");
        if space != StateSpace::Generic {
            out.push(format_args!(".{space} "));
        }
        if let Some(align) = align {
            out.push(format_args!(".align {align} "));
        }
    }
    out.text.push_str(&p.name);
    if let Some(len) = p.array {
        out.push(format_args!("[{len}]"));
    }
}

fn directives(out: &mut Text, d: &Directives) {
    let dims = |out: &mut Text, name: &str, value: Option<[u32; 3]>| {
        if let Some([x, y, z]) = value {
            out.line(format_args!(".{name} {x}, {y}, {z}"));
        }
    };
    let number = |out: &mut Text, name: &str, value: Option<u32>| {
        if let Some(n) = value {
            out.line(format_args!(".{name} {n}"));
        }
    };
    let flag = |out: &mut Text, name: &str, set: bool| {
        if set {
            out.line(format_args!(".{name}"));
        }
    };
    dims(out, "maxntid", d.max_threads);
    dims(out, "reqntid", d.required_threads);
    number(out, "minnctapersm", d.min_blocks_per_sm);
    number(out, "maxnreg", d.max_registers);
    dims(out, "reqnctapercluster", d.cluster);
    flag(out, "explicitcluster", d.explicit_cluster);
    flag(out, "blocksareclusters", d.blocks_are_clusters);
    number(out, "maxclusterrank", d.max_cluster_rank);
    flag(out, "noreturn", d.no_return);
    number(out, "abi_preserve", d.abi_preserve);
    number(out, "abi_preserve_control", d.abi_preserve_control);
}

/// `(returns) _ (params);`
pub(super) fn prototype(out: &mut Text, prototype: &Prototype) {
    let list = |out: &mut Text, params: &[PrototypeParam]| {
        out.text.push('(');
        for (i, p) in params.iter().enumerate() {
            out.text.push_str(if i > 0 { ", " } else { "" });
            out.text.push_str(if p.in_register { ".reg " } else { ".param " });
            if p.align != p.ty.bytes() && !p.in_register {
                out.push(format_args!(".align {} ", p.align));
            }
            out.push(format_args!(".{} _", p.ty));
            if let Some(len) = p.array {
                out.push(format_args!("[{len}]"));
            }
        }
        out.text.push(')');
    };
    if !prototype.returns.is_empty() {
        list(out, &prototype.returns);
        out.text.push(' ');
    }
    out.text.push_str("_ ");
    list(out, &prototype.params);
    out.text.push_str(if prototype.no_return { " .noreturn" } else { "" });
    let preserved =
        [("abi_preserve", prototype.abi_preserve), ("abi_preserve_control", prototype.abi_preserve_control)];
    for (name, value) in preserved {
        if let Some(value) = value {
            out.push(format_args!(" .{name} {value}"));
        }
    }
    out.text.push(';');
}

impl Body<'_> {
    /// `call{.uni} (returns), callee, (args){, list};`
    pub(super) fn call(&mut self, callee: &Callee, uniform: bool, returns: &[Operand], args: &[Operand]) {
        self.out.text.push_str(if uniform { "call.uni " } else { "call " });
        if !returns.is_empty() {
            self.arguments(returns);
            self.out.text.push_str(", ");
        }
        match *callee {
            Callee::Direct(symbol) => self.symbol(symbol),
            Callee::Prototype { address, .. } | Callee::OneOf { address, .. } => self.reg(address),
        }
        // An indirect call has a list even if it is empty, before the prototype.
        if !args.is_empty() || !matches!(callee, Callee::Direct(_)) {
            self.out.text.push_str(", ");
            self.arguments(args);
        }
        match *callee {
            Callee::Direct(_) => {}
            Callee::Prototype { prototype, .. } => {
                self.out.push(format_args!(", {}p{prototype}", self.label_prefix));
            }
            Callee::OneOf { targets, .. } => self.out.push(format_args!(", {}t{targets}", self.label_prefix)),
        }
    }

    fn arguments(&mut self, items: &[Operand]) {
        self.out.text.push('(');
        for (i, item) in items.iter().enumerate() {
            self.out.text.push_str(if i > 0 { ", " } else { "" });
            self.operand(*item);
        }
        self.out.text.push(')');
    }
}
