//! V-MEM: state spaces, addresses, alignment, bounds, ordering and cache hints.

use super::defs::Facts;
use super::{Checker, Rule, VerifyError, module_finding};
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
                let message = format!("parameter `{}` is aligned to {}, not a power of two", p.name, p.align);
                module_finding(findings, Rule::Mem8, &function.name, message);
            }
            if p.ty == ScalarType::Pred {
                let message = format!("parameter `{}` is a predicate, which has no place in memory", p.name);
                module_finding(findings, Rule::Mem8, &function.name, message);
            }
        }
    }
}

fn declaration(findings: &mut Vec<VerifyError>, function: &str, v: &Variable, spaces: &[StateSpace]) {
    let name = &v.name;
    let mut wrong = |message: String| module_finding(findings, Rule::Mem8, function, message);
    if !spaces.contains(&v.space) {
        wrong(format!("`{name}` cannot be declared in .{} here", v.space));
    }
    if !v.align.is_power_of_two() {
        wrong(format!("`{name}` is aligned to {}, not a power of two", v.align));
    }
    if v.ty == ScalarType::Pred {
        wrong(format!("`{name}` is a predicate, which has no place in memory"));
    }
    match v.bytes() {
        None => wrong(format!("`{name}` has more than 2^64 bytes")),
        Some(bytes) => {
            if v.len.is_none() && v.space != StateSpace::Shared && v.linkage != Linkage::Extern {
                wrong(format!("`{name}` has no size; only dynamic shared memory is declared without one"));
            }
            if v.init.as_ref().is_some_and(|i| i.bytes.len() as u64 > bytes) {
                wrong(format!("the initial value of `{name}` is longer than its {bytes} bytes"));
            }
        }
    }
    if v.init.is_some() && !matches!(v.space, StateSpace::Global | StateSpace::Const) {
        wrong(format!("`{name}` is in .{}, which has no initial values", v.space));
    }
}

/// What a symbol denotes.
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
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Load,
    Store,
    Atomic,
    Prefetch,
    /// A row of `ldmatrix` or `stmatrix`.
    Matrix,
    /// An mbarrier of the block.
    Barrier,
    /// An mbarrier of any block of the cluster.
    RemoteBarrier,
    /// A bulk or tensor copy, at 16 bytes.
    Bulk,
    /// A tensor map.
    Map,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Store => "store",
            Self::Atomic => "atomic",
            Self::Prefetch => "prefetch",
            Self::Matrix => "matrix row",
            Self::Barrier | Self::RemoteBarrier => "mbarrier",
            Self::Bulk => "bulk copy",
            Self::Map => "tensor map",
        }
    }
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
            one(*space, addr, vector(ty, dsts.len()), Kind::Load);
        }
        Inst::St { space, ty, srcs, addr, .. } => one(*space, addr, vector(ty, srcs.len()), Kind::Store),
        Inst::Atom { space, ty, addr, .. } => one(*space, addr, vector(ty, 1), Kind::Atomic),
        Inst::AtomVector { space, ty, addr, srcs, .. } => {
            one(*space, addr, vector(ty, srcs.len()), Kind::Atomic);
        }
        // A prefetch touches some line; its offset need not be aligned or inside.
        Inst::Prefetch { space, addr, .. } => one(*space, addr, 0, Kind::Prefetch),
        Inst::PrefetchUniform { addr } => one(StateSpace::Generic, addr, 0, Kind::Prefetch),
        Inst::PrefetchTensormap { space, addr } => one(*space, addr, 0, Kind::Map),
        Inst::Discard { space, addr } | Inst::ApplyPriority { space, addr } => {
            one(*space, addr, 0, Kind::Prefetch);
        }
        Inst::LdMatrix { space, addr, .. } => one(*space, addr, ROW, Kind::Matrix),
        Inst::StMatrix { space, addr, .. } => one(*space, addr, ROW, Kind::Matrix),
        Inst::WmmaLoad { tile, .. } => one(tile.space, &tile.addr, element(tile), Kind::Load),
        Inst::WmmaStore { tile, .. } => one(tile.space, &tile.addr, element(tile), Kind::Store),
        Inst::CpAsync { dst, src, bytes, .. } => {
            one(Shared, dst, u64::from(*bytes), Kind::Store);
            one(Global, src, u64::from(*bytes), Kind::Load);
        }
        Inst::CpAsyncArrive { space, addr, .. }
        | Inst::MbarrierInit { space, addr, .. }
        | Inst::MbarrierInval { space, addr }
        | Inst::MbarrierWait { space, addr, .. } => one(*space, addr, BARRIER, Kind::Barrier),
        Inst::MbarrierArrive { space, addr, .. } | Inst::MbarrierTx { space, addr, .. } => {
            one(*space, addr, BARRIER, Kind::RemoteBarrier);
        }
        Inst::BulkCopy(c) => {
            let bytes = literal(&c.bytes);
            one(c.dst_space, &c.dst, bytes, Kind::Bulk);
            one(c.src_space, &c.src, bytes, Kind::Bulk);
            if let Completion::Mbarrier(addr) = &c.completion {
                one(c.dst_space, addr, BARRIER, Kind::RemoteBarrier);
            }
        }
        Inst::BulkReduce(c) => {
            let bytes = literal(&c.bytes);
            one(c.dst_space, &c.dst, bytes, Kind::Bulk);
            one(Shared, &c.src, bytes, Kind::Bulk);
            if let Completion::Mbarrier(addr) = &c.completion {
                one(c.dst_space, addr, BARRIER, Kind::RemoteBarrier);
            }
        }
        Inst::BulkPrefetch { addr, .. } => one(Global, addr, 0, Kind::Prefetch),
        Inst::TensorCopy(c) => {
            one(StateSpace::Generic, &c.map, 0, Kind::Map);
            match &c.transfer {
                TensorTransfer::Load { dst_space, dst, barrier, .. } => {
                    one(*dst_space, dst, 0, Kind::Bulk);
                    one(*dst_space, barrier, BARRIER, Kind::RemoteBarrier);
                }
                TensorTransfer::Store { src } | TensorTransfer::Reduce { src, .. } => {
                    one(Shared, src, 0, Kind::Bulk);
                }
                TensorTransfer::Prefetch => {}
            }
        }
        Inst::StBulk { space, addr, bytes } => one(*space, addr, literal(bytes), Kind::Bulk),
        Inst::StAsync { space, ty, addr, srcs, order } => {
            one(*space, addr, vector(ty, srcs.len()), Kind::Store);
            if let AsyncOrder::Mbarrier(barrier) = order {
                one(*space, barrier, BARRIER, Kind::RemoteBarrier);
            }
        }
        Inst::RedAsync { space, ty, addr, order, .. } => {
            one(*space, addr, vector(ty, 1), Kind::Atomic);
            if let AsyncOrder::Mbarrier(barrier) = order {
                one(*space, barrier, BARRIER, Kind::RemoteBarrier);
            }
        }
        Inst::TensormapReplace { space, addr, .. } => one(*space, addr, 0, Kind::Bulk),
        Inst::TensormapCopyFence { dst, src, .. } => {
            one(Global, dst, 0, Kind::Bulk);
            one(Shared, src, 0, Kind::Bulk);
        }
        Inst::ProxyFence(ProxyFence::TensormapAcquire { addr, .. }) => {
            one(StateSpace::Generic, addr, 0, Kind::Map);
        }
        Inst::CreatePolicy { source: PolicySource::Range { space, addr, .. }, .. } => {
            one(*space, addr, 0, Kind::Prefetch);
        }
        _ => {}
    }
}

pub(super) fn check(cx: &mut Checker<'_>, facts: &Facts) {
    cx.each(|cx, instruction| {
        let inst = &instruction.inst;
        order_and_hints(cx, inst);
        if let Inst::Isspacep { space: StateSpace::Generic, .. } = inst {
            cx.report(Rule::Mem1, "isspacep asks about a named state space".to_owned());
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
        Kind::Load => !(a.space == Param && is_param(cx, a, |s| matches!(s, Symbol::Return(_)))),
        // Results and the arguments of calls are written by name; the parameters of the function itself are read-only.
        Kind::Store if a.space == Param => {
            is_param(cx, a, |s| matches!(s, Symbol::Return(_) | Symbol::LocalVariable(_)))
        }
        Kind::Store => a.space != Const,
        Kind::Atomic => matches!(a.space, Generic | Global | Shared | SharedCluster),
        Kind::Prefetch => matches!(a.space, Generic | Global | Local),
        Kind::Matrix | Kind::Barrier => matches!(a.space, Generic | Shared),
        Kind::RemoteBarrier => matches!(a.space, Generic | Shared | SharedCluster),
        Kind::Bulk => matches!(a.space, Generic | Global | Shared | SharedCluster),
        Kind::Map => matches!(a.space, Generic | Global | Param | Const),
    };
    if !takes {
        let why = match (a.kind, a.space) {
            (Kind::Store, _) => ", which is read-only",
            (Kind::Load, _) => " of a result, which is write-only",
            _ => "",
        };
        cx.report(Rule::Mem1, format!("no {} in .{}{why}", a.kind.name(), a.space));
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
        let needed =
            if matches!(a.space, StateSpace::Shared | StateSpace::SharedCluster) { "32 or 64" } else { "64" };
        let message =
            format!("the address is a .{ty} register; .{} addresses are {needed}-bit integers", a.space);
        cx.report(Rule::Mem2, message);
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
        let held = if known.generic { "the generic address" } else { "the address" };
        let advice = if a.space == StateSpace::Generic { "; convert it with cvta" } else { "" };
        let message = format!(
            "this accesses .{}, but it is given {held} of `{}` in .{}{advice}",
            a.space, object.name, object.space
        );
        cx.report(Rule::Mem1, message);
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
        let size = object.bytes.map_or_else(|| "dynamic".to_owned(), |n| format!("{n}"));
        let message = format!(
            "this {} of {} bytes at offset {offset} leaves `{}`, which has {size} bytes",
            a.kind.name(),
            a.bytes,
            object.name
        );
        cx.report(Rule::Mem5, message);
    }
}

fn alignment(cx: &mut Checker<'_>, a: &Access, object: &Object<'_>, offset: i64) {
    let size = if a.kind == Kind::Bulk { BULK_ALIGN } else { a.bytes };
    if !size.is_power_of_two() {
        return;
    }
    let sure = object.align.min(size);
    if offset.rem_euclid(i64::try_from(sure).unwrap_or(1)) != 0 {
        let message = format!(
            "this {} of {size} bytes is misaligned: it is at offset {offset} of `{}`, aligned to {}",
            a.kind.name(),
            object.name,
            object.align
        );
        cx.report(Rule::Mem3, message);
    } else if object.align < size {
        let message = format!(
            "this {} of {size} bytes needs `{}` aligned to {size}; it is declared with {}",
            a.kind.name(),
            object.name,
            object.align
        );
        cx.report(Rule::Mem4, message);
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
        cx.report_function(
            Rule::Mem6,
            "the kernel takes a pointer, but stores nothing outside its block".to_owned(),
        );
    }
}

/// V-MEM-7: ordering, scope and cache hints.
fn order_and_hints(cx: &mut Checker<'_>, inst: &Inst) {
    match inst {
        Inst::Ld { space, ty, ordering, hints, non_coherent, dsts, .. } => {
            second_level(cx, hints, ty.bytes() * u32::try_from(dsts.len()).unwrap_or(0));
            if *non_coherent && *space != StateSpace::Global {
                cx.report(Rule::Mem1, "`.nc` reads global memory only".to_owned());
            }
            if *non_coherent && *ordering != Ordering::WEAK {
                cx.report(Rule::Mem7, "`.nc` and a memory order exclude each other".to_owned());
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
                cx.report(Rule::Mem7, "a store does not prefetch".to_owned());
            }
        }
        Inst::Prefetch {
            space: StateSpace::Local,
            level: PrefetchLevel::L2EvictLast | PrefetchLevel::L2EvictNormal,
            ..
        } => {
            cx.report(Rule::Mem1, "cache priorities have no meaning in .local".to_owned());
        }
        Inst::AtomVector { ordering, dsts, .. } => {
            let takes = match ordering.semantics {
                Semantics::Acquire | Semantics::AcqRel => dsts.is_some(),
                Semantics::Volatile | Semantics::Mmio => false,
                _ => true,
            };
            if !takes {
                cx.report(Rule::Mem7, format!("this reduction has no `.{}`", ordering.semantics));
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
                cx.report(Rule::Mem7, format!("{name} has no `.{}`", ordering.semantics));
            }
        }
        _ => {}
    }
}

/// Priorities in the L2 cache exist for vectors of 32 bytes.
fn second_level(cx: &mut Checker<'_>, hints: &CacheHints, bytes: u32) {
    if hints.l2 != L2Eviction::Default && bytes != 32 {
        cx.report(Rule::Mem7, format!("`.{}` is for vectors of 32 bytes, not {bytes}", hints.l2));
    }
}

fn ordered(
    cx: &mut Checker<'_>,
    name: &str,
    space: StateSpace,
    ordering: Ordering,
    takes: impl Fn(Semantics) -> bool,
) {
    use Semantics::*;
    let Ordering { semantics, scope } = ordering;
    if !takes(semantics) {
        cx.report(Rule::Mem7, format!("{name} has no `.{semantics}`"));
        return;
    }
    let spaces: &[StateSpace] = match semantics {
        Weak => StateSpace::ALL,
        Mmio => &[StateSpace::Generic, StateSpace::Global],
        _ => &[StateSpace::Generic, StateSpace::Global, StateSpace::Shared, StateSpace::SharedCluster],
    };
    if !spaces.contains(&space) {
        cx.report(Rule::Mem7, format!("`.{semantics}` has no meaning in .{space}"));
    }
    match (semantics, scope) {
        (Weak | Volatile, Some(scope)) => {
            cx.report(Rule::Mem7, format!("`.{semantics}` takes no scope, `.{scope}` is written"));
        }
        (Mmio, Some(Scope::Sys)) | (Weak | Volatile, None) => {}
        (Mmio, _) => cx.report(Rule::Mem7, "`.mmio` needs scope `.sys`".to_owned()),
        (_, None) => cx.report(Rule::Mem7, format!("`.{semantics}` needs a scope")),
        (_, Some(_)) => {}
    }
}

fn hinted(
    cx: &mut Checker<'_>,
    name: &str,
    space: StateSpace,
    ordering: Ordering,
    hints: &CacheHints,
    takes: impl Fn(CacheOp) -> bool,
) {
    let CacheHints { op, l1, l2, l2_prefetch, policy } = *hints;
    if op != CacheOp::Default {
        if !takes(op) {
            cx.report(Rule::Mem7, format!("this {name} has no `.{op}`"));
        }
        if ordering.semantics != Semantics::Weak {
            cx.report(Rule::Mem7, format!("`.{op}` and `.{}` exclude each other", ordering.semantics));
        }
        for name in [l1.name(), l2.name()].into_iter().filter(|n| !n.is_empty()) {
            cx.report(Rule::Mem7, format!("`.{op}` and `.{name}` exclude each other"));
        }
    }
    let cached = matches!(space, StateSpace::Generic | StateSpace::Global);
    let prioritised = l1 != L1Eviction::Default || l2 != L2Eviction::Default;
    if !cached && (prioritised || l2_prefetch != L2Prefetch::Default || policy.is_some()) {
        cx.report(Rule::Mem7, format!("cache priorities and policies have no meaning in .{space}"));
    }
    let fixed = matches!(ordering.semantics, Semantics::Volatile | Semantics::Mmio);
    if fixed && (prioritised || policy.is_some()) {
        cx.report(Rule::Mem7, format!("`.{}` and cache hints exclude each other", ordering.semantics));
    }
}
