//! V-MEM: state spaces, addresses, alignment, bounds, ordering and cache hints.

use super::defs::Facts;
use super::{Accesses, Breach, Checker, Rule, VerifyError, module_finding};
use crate::inst::*;
use crate::module::{Linkage, Module, Param, Symbol, Variable};
use crate::types::*;

/// The alignment of bulk copies.
const BULK_ALIGN: u64 = 16;
/// How far a chain of copies and additions is followed back to a symbol.
const CHAIN: u32 = 16;

/// V-MEM-8: what is declared.
pub(super) fn check_declarations(module: &Module, findings: &mut Vec<VerifyError>) {
    for v in &module.variables {
        let spaces = [StateSpace::Global, StateSpace::Shared, StateSpace::Const];
        declaration(findings, "", v, &spaces);
    }
    for function in &module.functions {
        for v in &function.variables {
            let spaces = [StateSpace::Shared, StateSpace::Local, StateSpace::Param];
            declaration(findings, &function.name, v, &spaces);
        }
        for p in &function.params {
            if !p.align.is_power_of_two() {
                let breach = Breach::ParameterAlignment { name: p.name.clone(), align: p.align };
                module_finding(findings, Rule::Mem8, &function.name, breach);
            }
            if p.ty == ScalarType::Pred {
                let breach = Breach::ParameterPredicate { name: p.name.clone() };
                module_finding(findings, Rule::Mem8, &function.name, breach);
            }
        }
    }
}

fn declaration(findings: &mut Vec<VerifyError>, function: &str, v: &Variable, spaces: &[StateSpace]) {
    let name = || v.name.clone();
    let mut wrong = |breach| module_finding(findings, Rule::Mem8, function, breach);
    if !spaces.contains(&v.space) {
        wrong(Breach::DeclaredIn { name: name(), space: v.space });
    }
    if !v.align.is_power_of_two() {
        wrong(Breach::VariableAlignment { name: name(), align: v.align });
    }
    if v.ty == ScalarType::Pred {
        wrong(Breach::VariablePredicate { name: name() });
    }
    match v.bytes() {
        None => wrong(Breach::VariableTooLarge { name: name() }),
        Some(bytes) => {
            if v.len.is_none() && v.space != StateSpace::Shared && v.linkage != Linkage::Extern {
                wrong(Breach::VariableWithoutSize { name: name() });
            }
            if v.init.as_ref().is_some_and(|i| i.bytes.len() as u64 > bytes) {
                wrong(Breach::InitialValueTooLong { name: name(), bytes });
            }
        }
    }
    if v.init.is_some() && !matches!(v.space, StateSpace::Global | StateSpace::Const) {
        wrong(Breach::InitialValueIn { name: name(), space: v.space });
    }
}

/// The object that a symbol denotes.
#[derive(Clone, Copy)]
struct Object<'m> {
    name: &'m str,
    space: StateSpace,
    align: u64,
    /// `None` for dynamic shared memory.
    bytes: Option<u64>,
}

/// A known address: a symbol plus an offset, in its own space or as a generic address.
#[derive(Clone, Copy)]
struct Known {
    symbol: SymbolId,
    offset: i64,
    generic: bool,
}

/// An access to memory: what it does to which bytes.
struct Access {
    space: StateSpace,
    addr: Address,
    bytes: u64,
    kind: Accesses,
}

/// Calls `f` for every access of an instruction.
fn accesses(inst: &Inst, mut f: impl FnMut(Access)) {
    use StateSpace::{Global, Shared};
    let mut one = |space, addr: &Address, bytes, kind| f(Access { space, addr: *addr, bytes, kind });
    let literal = |bytes: &Operand| match bytes {
        Operand::Imm(Imm::Int(n)) => u64::try_from(*n).unwrap_or(0),
        _ => 0,
    };
    let vector = |ty: &ScalarType, n: usize| n as u64 * u64::from(ty.bytes());
    let element = |tile: &WmmaTile| u64::from(tile.ty.bits().div_ceil(8));
    /// Bytes of an mbarrier.
    const BARRIER: u64 = 8;
    /// Bytes of a row of `ldmatrix`.
    const ROW: u64 = 16;
    match inst {
        Inst::Ld { space, ty, dsts, addr, .. } | Inst::Ldu { space, ty, dsts, addr } => {
            one(*space, addr, vector(ty, dsts.len()), Accesses::Load);
        }
        Inst::St { space, ty, srcs, addr, .. } => one(*space, addr, vector(ty, srcs.len()), Accesses::Store),
        Inst::Atom { space, ty, addr, .. } => one(*space, addr, vector(ty, 1), Accesses::Atomic),
        Inst::AtomVector { space, ty, addr, srcs, .. } => {
            one(*space, addr, vector(ty, srcs.len()), Accesses::Atomic);
        }
        // A prefetch touches some line; its offset need not be aligned or inside.
        Inst::Prefetch { space, addr, .. } => one(*space, addr, 0, Accesses::Prefetch),
        Inst::PrefetchUniform { addr } => one(StateSpace::Generic, addr, 0, Accesses::Prefetch),
        Inst::PrefetchTensormap { space, addr } => one(*space, addr, 0, Accesses::Map),
        Inst::Discard { space, addr } | Inst::ApplyPriority { space, addr } => {
            one(*space, addr, 0, Accesses::Prefetch);
        }
        Inst::LdMatrix { space, addr, .. } => one(*space, addr, ROW, Accesses::Matrix),
        Inst::StMatrix { space, addr, .. } => one(*space, addr, ROW, Accesses::Matrix),
        Inst::Tcgen05(t) => match &**t {
            Tcgen05::Alloc { space, addr, .. } => one(*space, addr, 4, Accesses::Matrix),
            Tcgen05::Commit { space, addr, .. } => one(*space, addr, BARRIER, Accesses::RemoteBarrier),
            _ => {}
        },
        Inst::WmmaLoad { tile, .. } => one(tile.space, &tile.addr, element(tile), Accesses::Load),
        Inst::WmmaStore { tile, .. } => one(tile.space, &tile.addr, element(tile), Accesses::Store),
        Inst::CpAsync { dst, src, bytes, .. } => {
            one(Shared, dst, u64::from(*bytes), Accesses::Store);
            one(Global, src, u64::from(*bytes), Accesses::Load);
        }
        Inst::CpAsyncArrive { space, addr, .. }
        | Inst::MbarrierInit { space, addr, .. }
        | Inst::MbarrierInval { space, addr }
        | Inst::MbarrierWait { space, addr, .. } => one(*space, addr, BARRIER, Accesses::Barrier),
        Inst::MbarrierArrive { space, addr, .. } | Inst::MbarrierTx { space, addr, .. } => {
            one(*space, addr, BARRIER, Accesses::RemoteBarrier);
        }
        Inst::BulkCopy(c) => {
            let bytes = literal(&c.bytes);
            one(c.dst_space, &c.dst, bytes, Accesses::Bulk);
            one(c.src_space, &c.src, bytes, Accesses::Bulk);
            if let Completion::Mbarrier(addr) = &c.completion {
                one(c.dst_space, addr, BARRIER, Accesses::RemoteBarrier);
            }
        }
        Inst::BulkReduce(c) => {
            let bytes = literal(&c.bytes);
            one(c.dst_space, &c.dst, bytes, Accesses::Bulk);
            one(Shared, &c.src, bytes, Accesses::Bulk);
            if let Completion::Mbarrier(addr) = &c.completion {
                one(c.dst_space, addr, BARRIER, Accesses::RemoteBarrier);
            }
        }
        Inst::BulkPrefetch { addr, .. } => one(Global, addr, 0, Accesses::Prefetch),
        Inst::TensorCopy(c) => {
            one(StateSpace::Generic, &c.map, 0, Accesses::Map);
            match &c.transfer {
                TensorTransfer::Load { dst_space, dst, barrier, .. } => {
                    one(*dst_space, dst, 0, Accesses::Bulk);
                    one(*dst_space, barrier, BARRIER, Accesses::RemoteBarrier);
                }
                TensorTransfer::Store { src } | TensorTransfer::Reduce { src, .. } => {
                    one(Shared, src, 0, Accesses::Bulk);
                }
                TensorTransfer::Prefetch => {}
            }
        }
        Inst::StBulk { space, addr, bytes } => one(*space, addr, literal(bytes), Accesses::Bulk),
        Inst::StAsync { space, ty, addr, srcs, order } => {
            one(*space, addr, vector(ty, srcs.len()), Accesses::Store);
            if let AsyncOrder::Mbarrier(barrier) = order {
                one(*space, barrier, BARRIER, Accesses::RemoteBarrier);
            }
        }
        Inst::RedAsync { space, ty, addr, order, .. } => {
            one(*space, addr, vector(ty, 1), Accesses::Atomic);
            if let AsyncOrder::Mbarrier(barrier) = order {
                one(*space, barrier, BARRIER, Accesses::RemoteBarrier);
            }
        }
        Inst::TensormapReplace { space, addr, .. } => one(*space, addr, 0, Accesses::Bulk),
        Inst::TensormapCopyFence { dst, src, .. } => {
            one(Global, dst, 0, Accesses::Bulk);
            one(Shared, src, 0, Accesses::Bulk);
        }
        Inst::ProxyFence(ProxyFence::TensormapAcquire { addr, .. }) => {
            one(StateSpace::Generic, addr, 0, Accesses::Map);
        }
        Inst::CreatePolicy { source: PolicySource::Range { space, addr, .. }, .. } => {
            one(*space, addr, 0, Accesses::Prefetch);
        }
        _ => {}
    }
}

pub(super) fn check(cx: &mut Checker<'_>, facts: &Facts) {
    cx.each(|cx, instruction| {
        let inst = &instruction.inst;
        order_and_hints(cx, inst);
        if let Inst::Isspacep { space: StateSpace::Generic, .. } = inst {
            cx.report(Rule::Mem1, Breach::IsspacepGeneric);
        }
        accesses(inst, |a| {
            space(cx, &a);
            width(cx, &a);
            place(cx, facts, &a);
        });
    });
    effect(cx);
}

/// V-MEM-1: what the space takes.
fn space(cx: &mut Checker<'_>, a: &Access) {
    use StateSpace::*;
    let takes = match a.kind {
        Accesses::Load => !(a.space == Param && is_param(cx, a, |s| matches!(s, Symbol::Return(_)))),
        // Results and the arguments of calls are written by name; the parameters of the function itself are read-only.
        Accesses::Store if a.space == Param => {
            is_param(cx, a, |s| matches!(s, Symbol::Return(_) | Symbol::LocalVariable(_)))
        }
        Accesses::Store => a.space != Const,
        Accesses::Atomic => matches!(a.space, Generic | Global | Shared | SharedCluster),
        Accesses::Prefetch => matches!(a.space, Generic | Global | Local),
        Accesses::Matrix | Accesses::Barrier => matches!(a.space, Generic | Shared),
        Accesses::RemoteBarrier => matches!(a.space, Generic | Shared | SharedCluster),
        Accesses::Bulk => matches!(a.space, Generic | Global | Shared | SharedCluster),
        Accesses::Map => matches!(a.space, Generic | Global | Param | Const),
    };
    if !takes {
        cx.report(Rule::Mem1, Breach::AccessIn { access: a.kind, space: a.space });
    }
}

/// Whether the address names a symbol of one kind.
fn is_param(cx: &Checker<'_>, a: &Access, kind: impl Fn(&Symbol) -> bool) -> bool {
    match a.addr.base {
        AddressBase::Symbol(id) => cx.function.symbols.get(id.0 as usize).is_some_and(kind),
        AddressBase::Reg(_) | AddressBase::Absolute => false,
    }
}

/// V-MEM-2: the register that holds the address.
fn width(cx: &mut Checker<'_>, a: &Access) {
    let AddressBase::Reg(r) = a.addr.base else { return };
    let ty = cx.type_of(r);
    let is_address = matches!(ty.class(), TypeClass::Bits | TypeClass::Unsigned | TypeClass::Signed);
    let wide =
        ty.bits() == 64 || (ty.bits() == 32 && !matches!(a.space, StateSpace::Generic | StateSpace::Global));
    if !is_address || !wide {
        cx.report(Rule::Mem2, Breach::AddressRegister { ty, space: a.space });
    }
}

fn object<'m>(cx: &Checker<'m>, id: SymbolId) -> Option<Object<'m>> {
    let variable = |v: &'m Variable| Object {
        name: &v.name,
        space: v.space,
        align: u64::from(v.align.max(1)),
        bytes: v.len.and(v.bytes()),
    };
    let param = |p: &'m Param| Object {
        name: &p.name,
        space: StateSpace::Param,
        align: u64::from(p.align.max(1)),
        bytes: Some(p.bytes()),
    };
    match *cx.function.symbols.get(id.0 as usize)? {
        Symbol::Param(i) => cx.function.params.get(i as usize).map(param),
        Symbol::Return(i) => cx.function.returns.get(i as usize).map(param),
        Symbol::Function(_) => None,
        Symbol::ModuleVariable(i) => cx.module.variables.get(i as usize).map(variable),
        Symbol::LocalVariable(i) => cx.function.variables.get(i as usize).map(variable),
    }
}

/// Follows `r` back to the address of a symbol through copies, `cvta` and additions of constants.
fn resolve(cx: &Checker<'_>, facts: &Facts, r: Reg, depth: u32) -> Option<Known> {
    let from = |o: Operand| match o {
        Operand::Reg(r) if depth > 0 => resolve(cx, facts, r, depth - 1),
        Operand::Symbol(symbol, offset) => Some(Known { symbol, offset, generic: false }),
        _ => None,
    };
    match facts.single(cx, r)? {
        Inst::Mov { src, .. } => from(*src),
        Inst::Cvta { src, to_space, .. } => from(*src).map(|k| Known { generic: !to_space, ..k }),
        Inst::Cvt { to, from: source, a, b: None, .. } if to.is_integer() && source.is_integer() => from(*a),
        Inst::Binary { op: BinaryOp::Add, a, b, .. } => {
            let ((base, Operand::Imm(Imm::Int(by))) | (Operand::Imm(Imm::Int(by)), base)) = (*a, *b) else {
                return None;
            };
            let known = from(base)?;
            Some(Known { offset: known.offset.checked_add(by)?, ..known })
        }
        _ => None,
    }
}

/// V-MEM-1, 3, 4 and 5 where the symbol is known.
fn place(cx: &mut Checker<'_>, facts: &Facts, a: &Access) {
    let known = match a.addr.base {
        // A symbol in brackets is meant in the space of the access.
        AddressBase::Symbol(symbol) => {
            Some(Known { symbol, offset: 0, generic: a.space == StateSpace::Generic })
        }
        AddressBase::Reg(r) => resolve(cx, facts, r, CHAIN),
        AddressBase::Absolute => None,
    };
    let Some(known) = known else { return };
    let Some(object) = object(cx, known.symbol) else { return };
    if !space_matches(a.space, &object, known.generic) {
        let breach = Breach::WrongSpace {
            accessed: a.space,
            generic: known.generic,
            name: object.name.to_owned(),
            space: object.space,
        };
        cx.report(Rule::Mem1, breach);
        return;
    }
    let Some(offset) = known.offset.checked_add(a.addr.offset) else { return };
    if a.bytes == 0 {
        return;
    }
    bounds(cx, a, &object, offset);
    alignment(cx, a, &object, offset);
}

fn space_matches(access: StateSpace, object: &Object<'_>, generic: bool) -> bool {
    use StateSpace::*;
    match access {
        // A global address is a generic address.
        Generic => generic || object.space == Global,
        SharedCluster => !generic && object.space == Shared,
        // Generic addresses of global memory are global addresses too.
        Global => object.space == Global,
        _ => !generic && access == object.space,
    }
}

fn bounds(cx: &mut Checker<'_>, a: &Access, object: &Object<'_>, offset: i64) {
    let end = i128::from(offset) + i128::from(a.bytes);
    let outside = offset < 0 || object.bytes.is_some_and(|n| end > i128::from(n));
    if outside {
        let (name, size) = (object.name.to_owned(), object.bytes);
        let breach = Breach::OutOfBounds { access: a.kind, bytes: a.bytes, offset, name, size };
        cx.report(Rule::Mem5, breach);
    }
}

fn alignment(cx: &mut Checker<'_>, a: &Access, object: &Object<'_>, offset: i64) {
    let size = if a.kind == Accesses::Bulk { BULK_ALIGN } else { a.bytes };
    if !size.is_power_of_two() {
        return;
    }
    let sure = object.align.min(size);
    if offset.rem_euclid(i64::try_from(sure).unwrap_or(1)) != 0 {
        let (access, name, align) = (a.kind, object.name.to_owned(), object.align);
        cx.report(Rule::Mem3, Breach::Misaligned { access, bytes: size, offset, name, align });
    } else if object.align < size {
        let (access, name, align) = (a.kind, object.name.to_owned(), object.align);
        cx.report(Rule::Mem4, Breach::DeclaredAlignment { access, bytes: size, name, align });
    }
}

/// V-MEM-6: a kernel that is given a pointer and leaves nothing behind.
fn effect(cx: &mut Checker<'_>) {
    let function = cx.function;
    let pointer = function.params.iter().any(|p| p.array.is_none() && p.ty.bits() == 64 && !p.ty.is_float());
    let mut some = false;
    let mut lasting = false;
    for i in function.blocks.iter().flat_map(|b| &b.instructions) {
        some = true;
        lasting |= match &i.inst {
            Inst::St { space, .. } => !matches!(space, StateSpace::Shared | StateSpace::Local),
            Inst::Atom { .. } | Inst::AtomVector { .. } | Inst::Trap | Inst::Brkpt => true,
            Inst::BulkCopy(c) => c.dst_space == StateSpace::Global,
            Inst::BulkReduce(c) => c.dst_space == StateSpace::Global,
            Inst::TensorCopy(c) => {
                matches!(c.transfer, TensorTransfer::Store { .. } | TensorTransfer::Reduce { .. })
            }
            Inst::StAsync { .. }
            | Inst::RedAsync { .. }
            | Inst::TensormapReplace { .. }
            | Inst::TensormapCopyFence { .. }
            | Inst::Opaque(_) => true,
            _ => false,
        };
    }
    if pointer && some && !lasting {
        cx.report_function(Rule::Mem6, Breach::NoEffect);
    }
}

/// V-MEM-7: ordering, scope and cache hints.
fn order_and_hints(cx: &mut Checker<'_>, inst: &Inst) {
    match inst {
        Inst::Ld { space, ty, ordering, hints, non_coherent, dsts, .. } => {
            second_level(cx, hints, ty.bytes() * u32::try_from(dsts.len()).unwrap_or(0));
            if *non_coherent && *space != StateSpace::Global {
                cx.report(Rule::Mem1, Breach::NonCoherentSpace);
            }
            if *non_coherent && *ordering != Ordering::WEAK {
                cx.report(Rule::Mem7, Breach::NonCoherentOrder);
            }
            let takes = |s| !matches!(s, Semantics::Release | Semantics::AcqRel);
            ordered(cx, "ld", *space, *ordering, takes);
            let ops = [CacheOp::Ca, CacheOp::Cg, CacheOp::Cs];
            let coherent = [CacheOp::Lu, CacheOp::Cv];
            let takes = |op| ops.contains(&op) || (!*non_coherent && coherent.contains(&op));
            hinted(cx, "ld", *space, *ordering, hints, takes);
        }
        Inst::St { space, ty, ordering, hints, srcs, .. } => {
            second_level(cx, hints, ty.bytes() * u32::try_from(srcs.len()).unwrap_or(0));
            let takes = |s| !matches!(s, Semantics::Acquire | Semantics::AcqRel);
            ordered(cx, "st", *space, *ordering, takes);
            let ops = [CacheOp::Wb, CacheOp::Cg, CacheOp::Cs, CacheOp::Wt];
            hinted(cx, "st", *space, *ordering, hints, |op| ops.contains(&op));
            if hints.l2_prefetch != L2Prefetch::Default {
                cx.report(Rule::Mem7, Breach::StorePrefetches);
            }
        }
        Inst::Prefetch {
            space: StateSpace::Local,
            level: PrefetchLevel::L2EvictLast | PrefetchLevel::L2EvictNormal,
            ..
        } => {
            cx.report(Rule::Mem1, Breach::LocalPriority);
        }
        Inst::AtomVector { ordering, dsts, .. } => {
            let takes = match ordering.semantics {
                Semantics::Acquire | Semantics::AcqRel => dsts.is_some(),
                Semantics::Volatile | Semantics::Mmio => false,
                _ => true,
            };
            if !takes {
                cx.report(Rule::Mem7, no_semantics("this reduction", ordering.semantics));
            }
        }
        Inst::Atom { ordering, dst, .. } => {
            use Semantics::*;
            let name = if dst.is_some() { "atom" } else { "red" };
            let takes = match ordering.semantics {
                Weak | Relaxed | Release => true,
                Acquire | AcqRel => dst.is_some(),
                Volatile | Mmio => false,
            };
            if !takes {
                cx.report(Rule::Mem7, no_semantics(name, ordering.semantics));
            }
        }
        _ => {}
    }
}

const fn no_semantics(operation: &'static str, semantics: Semantics) -> Breach {
    Breach::NoSemantics { operation, semantics }
}

/// Priorities in the L2 cache exist for vectors of 32 bytes.
fn second_level(cx: &mut Checker<'_>, hints: &CacheHints, bytes: u32) {
    if hints.l2 != L2Eviction::Default && bytes != 32 {
        cx.report(Rule::Mem7, Breach::PriorityOfVector { priority: hints.l2, bytes });
    }
}

fn ordered(
    cx: &mut Checker<'_>,
    name: &'static str,
    space: StateSpace,
    ordering: Ordering,
    takes: impl Fn(Semantics) -> bool,
) {
    use Semantics::*;
    let Ordering { semantics, scope } = ordering;
    if !takes(semantics) {
        cx.report(Rule::Mem7, no_semantics(name, semantics));
        return;
    }
    let spaces: &[StateSpace] = match semantics {
        Weak => StateSpace::ALL,
        Mmio => &[StateSpace::Generic, StateSpace::Global],
        _ => &[StateSpace::Generic, StateSpace::Global, StateSpace::Shared, StateSpace::SharedCluster],
    };
    if !spaces.contains(&space) {
        cx.report(Rule::Mem7, Breach::SemanticsIn { semantics, space });
    }
    match (semantics, scope) {
        (Weak | Volatile, Some(scope)) => {
            cx.report(Rule::Mem7, Breach::NeedlessScope { semantics, scope });
        }
        (Mmio, Some(Scope::Sys)) | (Weak | Volatile, None) => {}
        (Mmio, _) => cx.report(Rule::Mem7, Breach::MmioScope),
        (_, None) => cx.report(Rule::Mem7, Breach::MissingScope { semantics }),
        (_, Some(_)) => {}
    }
}

fn hinted(
    cx: &mut Checker<'_>,
    name: &'static str,
    space: StateSpace,
    ordering: Ordering,
    hints: &CacheHints,
    takes: impl Fn(CacheOp) -> bool,
) {
    let CacheHints { op, l1, l2, l2_prefetch, policy } = *hints;
    if op != CacheOp::Default {
        if !takes(op) {
            cx.report(Rule::Mem7, Breach::NoCacheOp { operation: name, op });
        }
        if ordering.semantics != Semantics::Weak {
            cx.report(Rule::Mem7, Breach::CacheOpAndSemantics { op, semantics: ordering.semantics });
        }
        for priority in [l1.name(), l2.name()].into_iter().filter(|n| !n.is_empty()) {
            cx.report(Rule::Mem7, Breach::CacheOpAndPriority { op, priority });
        }
    }
    let cached = matches!(space, StateSpace::Generic | StateSpace::Global);
    let prioritized = l1 != L1Eviction::Default || l2 != L2Eviction::Default;
    if !cached && (prioritized || l2_prefetch != L2Prefetch::Default || policy.is_some()) {
        cx.report(Rule::Mem7, Breach::HintsIn { space });
    }
    let fixed = matches!(ordering.semantics, Semantics::Volatile | Semantics::Mmio);
    if fixed && (prioritized || policy.is_some()) {
        cx.report(Rule::Mem7, Breach::SemanticsAndHints { semantics: ordering.semantics });
    }
}
