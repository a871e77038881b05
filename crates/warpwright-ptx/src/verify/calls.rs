//! V-CALL: calls fit the functions that they call.

use super::{Checker, Rule, VerifyError, module_finding};
use crate::inst::*;
use crate::module::{Function, FunctionKind, Linkage, Module, Prototype, PrototypeParam, Symbol};
use crate::types::{ScalarType, StateSpace, TypeClass};

/// V-CALL-3 for one instruction.
pub(super) fn parameters(cx: &mut Checker<'_>, instruction: &Instruction) {
    let param = |id: SymbolId| match cx.function.symbols.get(id.0 as usize) {
        Some(Symbol::LocalVariable(i)) => {
            cx.function.variables.get(*i as usize).filter(|v| v.space == StateSpace::Param)
        }
        _ => None,
    };
    let wrong = match &instruction.inst {
        Inst::Mov { src: Operand::Symbol(id, _), .. } | Inst::Cvta { src: Operand::Symbol(id, _), .. } => {
            param(*id).map(|v| format!("`{}` is passed to a call; it has no address to take", v.name))
        }
        Inst::St { addr: Address { base: AddressBase::Symbol(id), .. }, .. }
            if instruction.guard.is_some() =>
        {
            param(*id).map(|v| format!("the store to `{}`, which is passed to a call, has a guard", v.name))
        }
        _ => None,
    };
    if let Some(message) = wrong {
        cx.report(Rule::Call3, message);
    }
}

/// V-CALL-4: what is called and not defined here comes from elsewhere.
pub(super) fn check_definitions(module: &Module, findings: &mut Vec<VerifyError>) {
    for (index, function) in (0u32..).zip(&module.functions) {
        let alias = module.aliases.iter().any(|a| a.function == index);
        if function.is_declaration() && function.linkage != Linkage::Extern && !alias {
            let message =
                format!("device function `{}` is declared, but neither defined nor `.extern`", function.name);
            module_finding(findings, Rule::Call4, "", message);
        }
        if function.kind == FunctionKind::Device && !function.blocks.is_empty() {
            let in_memory = function.returns.iter().filter(|p| p.register.is_none()).count();
            if in_memory > 1 {
                let message = format!("`{}` has {in_memory} results in `.param` memory", function.name);
                module_finding(findings, Rule::Call4, &function.name, message);
            }
        }
    }
}

/// V-CALL-1 and V-CALL-2 for one call. Symbols exist.
pub(super) fn operands(cx: &mut Checker<'_>, inst: &Inst) {
    let Inst::Call { callee, returns, args, .. } = inst else { return };
    let (name, prototype) = match callee {
        Callee::Direct(symbol) => match cx.function.symbols.get(symbol.0 as usize) {
            Some(Symbol::Function(i)) => match cx.module.functions.get(*i as usize) {
                Some(f) => (format!("`{}`", f.name), f.prototype()),
                None => return,
            },
            _ => return cx.report(Rule::Call1, "only functions can be called".to_owned()),
        },
        Callee::Prototype { address, prototype } => {
            self::address(cx, *address);
            match cx.function.prototypes.get(*prototype as usize) {
                Some(prototype) => ("the prototype".to_owned(), prototype.clone()),
                None => return cx.report(Rule::Call1, "the prototype of the call does not exist".to_owned()),
            }
        }
        Callee::OneOf { address, targets } => {
            self::address(cx, *address);
            match target_prototype(cx, *targets) {
                Some(prototype) => ("each target".to_owned(), prototype),
                None => {
                    let message = "the targets of the call are not functions of one shape".to_owned();
                    return cx.report(Rule::Call1, message);
                }
            }
        }
    };
    let Prototype { returns: results, params, .. } = prototype;
    matching(cx, &name, "result", returns, &results);
    matching(cx, &name, "argument", args, &params);
}

fn address(cx: &mut Checker<'_>, address: Reg) {
    let ty = cx.type_of(address);
    if ty.bits() != 64 || ty.is_float() {
        cx.report(Rule::Call1, format!("the address of a function is a .{ty} register, not 64 bits"));
    }
}

/// The shape that all functions of a `.calltargets` list have.
fn target_prototype(cx: &Checker<'_>, targets: u32) -> Option<Prototype> {
    let mut shapes = cx.function.call_targets.get(targets as usize)?.iter().map(|symbol| {
        match cx.function.symbols.get(symbol.0 as usize)? {
            Symbol::Function(i) => cx.module.functions.get(*i as usize).map(Function::prototype),
            _ => None,
        }
    });
    let first = shapes.next()??;
    shapes.all(|shape| shape.as_ref() == Some(&first)).then_some(first)
}

fn matching(cx: &mut Checker<'_>, callee: &str, what: &str, given: &[Operand], formal: &[PrototypeParam]) {
    if given.len() != formal.len() {
        let (given, formal) = (given.len(), formal.len());
        cx.report(Rule::Call1, format!("the call has {given} {what}s, {callee} has {formal}"));
        return;
    }
    for (n, (given, formal)) in (1..).zip(given.iter().zip(formal)) {
        if let Some(wrong) = misfit(cx, *given, formal) {
            cx.report(Rule::Call2, format!("{what} {n} of the call: {wrong}"));
        }
    }
}

/// Why an actual argument or result does not fit, if it does not.
fn misfit(cx: &Checker<'_>, given: Operand, formal: &PrototypeParam) -> Option<String> {
    let wanted = match formal.array {
        Some(n) => format!(".{}[{n}]", formal.ty),
        None => format!(".{}", formal.ty),
    };
    match given {
        Operand::Symbol(id, offset) => {
            let Some(Symbol::LocalVariable(i)) = cx.function.symbols.get(id.0 as usize) else {
                return param_misfit(cx, id, formal, &wanted);
            };
            let v = cx.function.variables.get(*i as usize)?;
            if v.space != StateSpace::Param || offset != 0 {
                return Some(format!("`{}` is not a `.param` variable", v.name));
            }
            let same = v.bytes() == Some(formal.bytes()) && v.array == formal.array.is_some();
            let aligned = formal.array.is_none() || v.align == formal.align;
            if !same {
                let len = v.len.filter(|_| v.array).map_or_else(String::new, |n| format!("[{n}]"));
                return Some(format!("`{}` is .{}{len} where {wanted} is needed", v.name, v.ty));
            }
            (!aligned)
                .then(|| format!("`{}` is aligned to {}, the parameter to {}", v.name, v.align, formal.align))
        }
        Operand::Reg(r) => {
            let ty = cx.type_of(r);
            let fits = formal.array.is_none() && same_kind(ty, formal.ty);
            (!fits).then(|| format!("a .{ty} register where {wanted} is needed"))
        }
        Operand::Imm(literal) => {
            let float = !matches!(literal, Imm::Int(_));
            let fits = formal.array.is_none() && (!float || formal.ty.class() != TypeClass::Signed);
            (!fits).then(|| format!("a literal where {wanted} is needed"))
        }
        Operand::Special(_) => Some("a special register; move it to a register first".to_owned()),
    }
}

/// A parameter of the caller itself is passed on.
fn param_misfit(cx: &Checker<'_>, id: SymbolId, formal: &PrototypeParam, wanted: &str) -> Option<String> {
    let own = match cx.function.symbols.get(id.0 as usize) {
        Some(Symbol::Param(i)) => cx.function.params.get(*i as usize),
        Some(Symbol::Return(i)) => cx.function.returns.get(*i as usize),
        _ => return Some("only `.param` variables are passed by name".to_owned()),
    }?;
    let fits = own.bytes() == formal.bytes() && own.array.is_some() == formal.array.is_some();
    (!fits).then(|| format!("`{}` is .{} where {wanted} is needed", own.name, own.ty))
}

fn same_kind(given: ScalarType, formal: ScalarType) -> bool {
    let bits = |t: ScalarType| t.class() == TypeClass::Bits;
    let integer = |t: ScalarType| t.is_integer();
    given.bits() == formal.bits()
        && (given == formal || bits(given) || bits(formal) || (integer(given) && integer(formal)))
}
