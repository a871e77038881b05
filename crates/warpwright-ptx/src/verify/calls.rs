//! V-CALL: calls fit the functions that they call.

use super::{
    Breach, CallMisfit, CallRole, CallTarget, Checker, ParamType, Rule, VerifyError, module_finding,
};
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
            param(*id).map(|v| Breach::AddressOfCallParam { name: v.name.clone() })
        }
        Inst::St { addr: Address { base: AddressBase::Symbol(id), .. }, .. }
            if instruction.guard.is_some() =>
        {
            param(*id).map(|v| Breach::GuardedCallParam { name: v.name.clone() })
        }
        _ => None,
    };
    if let Some(breach) = wrong {
        cx.report(Rule::Call3, breach);
    }
}

/// V-CALL-4: what is called and not defined here comes from elsewhere.
pub(super) fn check_definitions(module: &Module, findings: &mut Vec<VerifyError>) {
    for (index, function) in (0u32..).zip(&module.functions) {
        let alias = module.aliases.iter().any(|a| a.function == index);
        if function.is_declaration() && function.linkage != Linkage::Extern && !alias {
            let breach = Breach::NotDefined { name: function.name.clone() };
            module_finding(findings, Rule::Call4, "", breach);
        }
        if function.kind == FunctionKind::Device && !function.blocks.is_empty() {
            let in_memory = function.returns.iter().filter(|p| p.register.is_none()).count();
            if in_memory > 1 {
                let breach = Breach::ResultsInMemory { name: function.name.clone(), results: in_memory };
                module_finding(findings, Rule::Call4, &function.name, breach);
            }
        }
    }
}

/// V-CALL-1 and V-CALL-2 for one call. Symbols exist.
pub(super) fn operands(cx: &mut Checker<'_>, inst: &Inst) {
    let Inst::Call { callee, returns, args, .. } = inst else { return };
    let (target, prototype) = match callee {
        Callee::Direct(symbol) => match cx.function.symbols.get(symbol.0 as usize) {
            Some(Symbol::Function(i)) => match cx.module.functions.get(*i as usize) {
                Some(f) => (CallTarget::Function(f.name.clone()), f.prototype()),
                None => return,
            },
            _ => return cx.report(Rule::Call1, Breach::NotFunction),
        },
        Callee::Prototype { address, prototype } => {
            self::address(cx, *address);
            match cx.function.prototypes.get(*prototype as usize) {
                Some(prototype) => (CallTarget::Prototype, prototype.clone()),
                None => return cx.report(Rule::Call1, Breach::NoSuchPrototype),
            }
        }
        Callee::OneOf { address, targets } => {
            self::address(cx, *address);
            match target_prototype(cx, *targets) {
                Some(prototype) => (CallTarget::Targets, prototype),
                None => return cx.report(Rule::Call1, Breach::TargetsDiffer),
            }
        }
    };
    let Prototype { returns: results, params, .. } = prototype;
    matching(cx, &target, CallRole::Result, returns, &results);
    matching(cx, &target, CallRole::Argument, args, &params);
}

fn address(cx: &mut Checker<'_>, address: Reg) {
    let ty = cx.type_of(address);
    if ty.bits() != 64 || ty.is_float() {
        cx.report(Rule::Call1, Breach::FunctionAddress { ty });
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

fn matching(
    cx: &mut Checker<'_>,
    callee: &CallTarget,
    role: CallRole,
    given: &[Operand],
    formal: &[PrototypeParam],
) {
    if given.len() != formal.len() {
        let (given, wanted) = (given.len(), formal.len());
        cx.report(Rule::Call1, Breach::CallCount { role, given, callee: callee.clone(), wanted });
        return;
    }
    for (number, (given, formal)) in (1..).zip(given.iter().zip(formal)) {
        if let Some(misfit) = misfit(cx, *given, formal) {
            cx.report(Rule::Call2, Breach::CallOperand { role, number, misfit });
        }
    }
}

/// Why an actual argument or result does not fit, if it does not.
fn misfit(cx: &Checker<'_>, given: Operand, formal: &PrototypeParam) -> Option<CallMisfit> {
    let wanted = ParamType { ty: formal.ty, len: formal.array };
    match given {
        Operand::Symbol(id, offset) => {
            let Some(Symbol::LocalVariable(i)) = cx.function.symbols.get(id.0 as usize) else {
                return Some(not_variable(cx, id));
            };
            let v = cx.function.variables.get(*i as usize)?;
            if v.space != StateSpace::Param || offset != 0 {
                return Some(CallMisfit::NotParam { name: v.name.clone() });
            }
            let same = v.bytes() == Some(formal.bytes()) && v.array == formal.array.is_some();
            let aligned = formal.array.is_none() || v.align == formal.align;
            if !same {
                let given = ParamType { ty: v.ty, len: v.len.filter(|_| v.array) };
                return Some(CallMisfit::Type { name: v.name.clone(), given, wanted });
            }
            (!aligned).then(|| CallMisfit::Alignment {
                name: v.name.clone(),
                given: v.align,
                wanted: formal.align,
            })
        }
        Operand::Reg(r) => {
            let ty = cx.type_of(r);
            let fits = formal.array.is_none() && same_kind(ty, formal.ty);
            (!fits).then_some(CallMisfit::Register { ty, wanted })
        }
        Operand::Imm(literal) => {
            let float = !matches!(literal, Imm::Int(_));
            let fits = formal.array.is_none() && (!float || formal.ty.class() != TypeClass::Signed);
            (!fits).then_some(CallMisfit::Literal { wanted })
        }
        Operand::Special(_) => Some(CallMisfit::Special),
    }
}

/// The error about a name that is no variable of the function.
fn not_variable(cx: &Checker<'_>, id: SymbolId) -> CallMisfit {
    let own = match cx.function.symbols.get(id.0 as usize) {
        Some(Symbol::Param(i)) => cx.function.params.get(*i as usize),
        Some(Symbol::Return(i)) => cx.function.returns.get(*i as usize),
        _ => None,
    };
    own.map_or(CallMisfit::NotVariable, |p| CallMisfit::Formal { name: p.name.clone() })
}

fn same_kind(given: ScalarType, formal: ScalarType) -> bool {
    let bits = |t: ScalarType| t.class() == TypeClass::Bits;
    let integer = |t: ScalarType| t.is_integer();
    given.bits() == formal.bits()
        && (given == formal || bits(given) || bits(formal) || (integer(given) && integer(formal)))
}
