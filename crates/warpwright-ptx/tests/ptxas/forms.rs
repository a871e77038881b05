//! Instructions of every operator and type.

use warpwright_ptx::ScalarType::{self, *};
use warpwright_ptx::isa::{self, Form, ModifierSet, Row};
use warpwright_ptx::*;

use crate::assembler::{register, register_of};

/// `%r0`, `%rd0`, ... as an operand.
pub(crate) fn operand(ty: ScalarType, n: usize) -> Operand {
    register(ty, n).into()
}

/// A unary instruction with registers of the right kind.
pub(crate) fn unary(op: UnaryOp, ty: ScalarType, mods: Modifiers) -> Inst {
    Inst::Unary { op, ty, mods, dst: register(isa::unary_result(op, ty), 0), a: operand(ty, 1) }
}

/// A binary instruction with registers of the right kind.
pub(crate) fn binary(op: BinaryOp, ty: ScalarType, mods: Modifiers) -> Inst {
    let second = match op {
        BinaryOp::Shl | BinaryOp::Shr | BinaryOp::Szext | BinaryOp::SzextWrap => U32,
        _ => ty,
    };
    let out = if op == BinaryOp::MulWide { isa::widened(ty) } else { ty };
    Inst::Binary { op, ty, mods, dst: register(out, 0), a: operand(ty, 1), b: operand(second, 2) }
}

/// A ternary instruction with registers of the right kind.
pub(crate) fn ternary(op: TernaryOp, ty: ScalarType, mods: Modifiers) -> Inst {
    use TernaryOp::*;
    let (second, third, out) = match op {
        Bfe => (U32, U32, ty),
        ShfLWrap | ShfLClamp | ShfRWrap | ShfRClamp => (ty, U32, ty),
        MadWide => (ty, isa::widened(ty), isa::widened(ty)),
        _ => (ty, ty, ty),
    };
    let (a, b, c) = (operand(ty, 1), operand(second, 2), operand(third, 3));
    Inst::Ternary { op, ty, mods, dst: register(out, 0), a, b, c }
}

/// A comparison with registers of the right kind.
pub(crate) fn setp(cmp: CmpOp, ty: ScalarType, ftz: bool) -> Inst {
    let dst_not = matches!(ty, F16x2 | BF16x2).then(|| register(Pred, 1));
    let (a, b) = (operand(ty, 1), operand(ty, 2));
    Inst::Setp { cmp, combine: None, ty, ftz, dst: register(Pred, 0), dst_not, a, b }
}

/// `set` with registers of the right kind.
pub(crate) fn set(cmp: CmpOp, dst_ty: ScalarType, ty: ScalarType, ftz: bool) -> Inst {
    let (a, b) = (operand(ty, 1), operand(ty, 2));
    Inst::Set { cmp, combine: None, dst_ty, ty, ftz, dst: register(dst_ty, 0), a, b }
}

/// A conversion with registers of the right kind.
pub(crate) fn cvt(to: ScalarType, from: ScalarType, mods: Modifiers, pair: bool) -> Inst {
    // Nothing is widened beside a bfloat16, so its bytes are in byte registers.
    let narrow = to == BF16 || from == BF16;
    let at = |ty: ScalarType, n| {
        if (narrow && ty.bits() == 8) || ty == E2M1x2 { register_of(B8, n) } else { register(ty, n) }
    };
    let b = pair.then(|| at(from, 2).into());
    Inst::Cvt { to, from, mods, dst: at(to, 0), a: at(from, 1).into(), b }
}

/// An atomic with registers of the right kind.
pub(crate) fn atom(op: AtomOp, ty: ScalarType) -> Inst {
    let half = matches!(ty, F16 | F16x2 | BF16 | BF16x2);
    Inst::Atom {
        op,
        space: StateSpace::Global,
        ty,
        ordering: Ordering::WEAK,
        noftz: half && op == AtomOp::Add,
        dst: Some(register(ty, 0)),
        addr: Address::reg(register(B64, 1), 0),
        b: operand(ty, 2),
        c: (op == AtomOp::Cas).then(|| operand(ty, 3)),
        policy: None,
    }
}

/// A load of `width` elements.
pub(crate) fn load(
    space: StateSpace,
    ty: ScalarType,
    width: usize,
    ordering: Ordering,
    hints: CacheHints,
) -> Inst {
    let dsts = (0..width).map(|n| Some(register(ty, n))).collect();
    let addr = Address::reg(register(B64, 7), 0);
    Inst::Ld { space, ty, ordering, hints, non_coherent: false, dsts, addr }
}

/// A store of `width` elements.
pub(crate) fn store(
    space: StateSpace,
    ty: ScalarType,
    width: usize,
    ordering: Ordering,
    hints: CacheHints,
) -> Inst {
    let srcs = (0..width).map(|n| operand(ty, n)).collect();
    let addr = Address::reg(register(B64, 7), 0);
    Inst::St { space, ty, ordering, hints, srcs, addr }
}

/// The modifier sets worth trying: at most one rounding and two others.
pub(crate) fn modifier_sets() -> Vec<ModifierSet> {
    let flags: Vec<ModifierSet> = ModifierSet::all().difference(ModifierSet::ROUNDING).iter().collect();
    let mut others = vec![ModifierSet::empty()];
    for (i, a) in flags.iter().enumerate() {
        others.push(*a);
        others.extend(flags[i + 1..].iter().map(|b| *a | *b));
    }
    let roundings = ModifierSet::ROUNDING.iter().map(Some).chain([None]);
    roundings.flat_map(|r| others.iter().map(move |o| r.map_or(*o, |r| r | *o))).collect()
}

/// The modifiers that a form must have, in every choice it leaves, and with each modifier that it allows.
fn choices(form: &Form) -> Vec<ModifierSet> {
    let mut bases: Vec<ModifierSet> = form.one_of.iter().map(|m| form.required | m).collect();
    if bases.is_empty() {
        bases.push(form.required);
    }
    let mut all = bases.clone();
    for base in bases {
        all.extend(form.allowed.iter().map(|m| base | m));
    }
    all
}

/// Calls `f` for every form, type and choice of modifiers of every row.
fn each_form<O: Copy>(rows: &[Row<O>], mut f: impl FnMut(O, ScalarType, Modifiers)) {
    for row in rows {
        for form in row.forms {
            for ty in form.types.iter() {
                for mods in choices(form) {
                    f(row.op, ty, mods.to_modifiers());
                }
            }
        }
    }
}

/// One instruction of every form of every row, and of every other feature that has a requirement.
#[allow(clippy::too_many_lines, reason = "a list")]
pub(crate) fn every_form() -> Vec<Inst> {
    let mut all = Vec::new();
    each_form(isa::UNARY, |op, ty, mods| all.push(unary(op, ty, mods)));
    each_form(isa::BINARY, |op, ty, mods| all.push(binary(op, ty, mods)));
    each_form(isa::TERNARY, |op, ty, mods| all.push(ternary(op, ty, mods)));
    each_form(isa::COMPARE, |cmp, ty, mods| all.push(setp(cmp, ty, mods.ftz)));
    each_form(isa::ATOM, |op, ty, _| all.push(atom(op, ty)));
    each_form(isa::REDUX, |op, ty, _| {
        let (dst, a, mask) = (register(ty, 0), operand(ty, 1), Operand::int(-1));
        all.push(Inst::Redux { op, abs: false, nan: false, ty, dst, a, mask });
    });
    for form in isa::SET {
        for (dst_ty, ty) in form.types.iter().flat_map(|d| form.other.iter().map(move |t| (d, t))) {
            all.push(set(CmpOp::Eq, dst_ty, ty, false));
        }
    }
    for (forms, pair) in [(isa::CVT, false), (isa::CVT_PAIR, true)] {
        for form in forms {
            for (to, from) in form.types.iter().flat_map(|d| form.other.iter().map(move |t| (d, t))) {
                for mods in choices(form) {
                    let mods = mods.to_modifiers();
                    if !mods.sat || isa::cvt_sat_fits(to, from) {
                        all.push(cvt(to, from, mods, pair));
                    }
                }
            }
        }
    }
    for form in isa::LOAD_STORE {
        for ty in form.types.iter() {
            for width in [1, 2, 4, 8] {
                if isa::vector(width, ty.bits()).is_some() {
                    all.push(load(StateSpace::Global, ty, width, Ordering::WEAK, CacheHints::NONE));
                    all.push(store(StateSpace::Global, ty, width, Ordering::WEAK, CacheHints::NONE));
                }
            }
        }
    }
    all.extend(memory_features());
    all.extend(others());
    all.extend(crate::families::every_form());
    all
}

fn memory_features() -> Vec<Inst> {
    let mut all = Vec::new();
    let mut both = |space, ordering: Ordering, hints: CacheHints| {
        let reads = !matches!(ordering.semantics, Semantics::Release | Semantics::AcqRel);
        let writes = !matches!(ordering.semantics, Semantics::Acquire | Semantics::AcqRel);
        let prefetches = hints.l2_prefetch != L2Prefetch::Default;
        if reads && !matches!(hints.op, CacheOp::Wb | CacheOp::Wt) {
            all.push(load(space, B32, 1, ordering, hints));
        }
        let store_op = !matches!(hints.op, CacheOp::Ca | CacheOp::Lu | CacheOp::Cv);
        if writes && store_op && !prefetches && !matches!(space, StateSpace::Const | StateSpace::Param) {
            all.push(store(space, B32, 1, ordering, hints));
        }
    };
    for space in StateSpace::ALL {
        both(*space, Ordering::WEAK, CacheHints::NONE);
    }
    for semantics in [Semantics::Relaxed, Semantics::Acquire, Semantics::Release] {
        for scope in Scope::ALL {
            both(StateSpace::Global, Ordering::new(semantics, *scope), CacheHints::NONE);
        }
    }
    both(StateSpace::Global, Ordering::new(Semantics::Mmio, Scope::Sys), CacheHints::NONE);
    both(StateSpace::Global, Ordering::VOLATILE, CacheHints::NONE);
    for op in CacheOp::ALL {
        both(StateSpace::Global, Ordering::WEAK, CacheHints { op: *op, ..CacheHints::NONE });
    }
    for l1 in L1Eviction::ALL {
        both(StateSpace::Global, Ordering::WEAK, CacheHints { l1: *l1, ..CacheHints::NONE });
    }
    for l2_prefetch in L2Prefetch::ALL {
        both(
            StateSpace::Global,
            Ordering::WEAK,
            CacheHints { l2_prefetch: *l2_prefetch, ..CacheHints::NONE },
        );
    }
    let policy = CacheHints { policy: Some(register(B64, 6)), ..CacheHints::NONE };
    both(StateSpace::Global, Ordering::WEAK, policy);
    for semantics in
        [Semantics::Weak, Semantics::Relaxed, Semantics::Acquire, Semantics::Release, Semantics::AcqRel]
    {
        for scope in Scope::ALL {
            let Inst::Atom { op, space, ty, noftz, dst, addr, b, c, policy, .. } = atom(AtomOp::Add, U32)
            else {
                continue;
            };
            let ordering = Ordering { semantics, scope: Some(*scope) };
            all.push(Inst::Atom { op, space, ty, ordering, noftz, dst, addr, b, c, policy });
        }
    }
    all
}

fn others() -> Vec<Inst> {
    let full = Operand::int(-1);
    let (p, r) = (register(Pred, 0), register(B32, 0));
    let mut all = vec![
        Inst::Bfi {
            ty: B32,
            dst: r,
            a: operand(B32, 1),
            b: operand(B32, 2),
            pos: Operand::int(1),
            len: Operand::int(2),
        },
        Inst::Lop3 { dst: r, a: operand(B32, 1), b: operand(B32, 2), c: operand(B32, 3), lut: 0xE8 },
        Inst::Activemask { dst: r },
        Inst::Elect { dst: None, pred: p, mask: full },
        Inst::WarpBarrier { mask: full },
        Inst::Nanosleep { duration: Operand::int(32) },
        Inst::Barrier { kind: BarrierKind::Sync, aligned: true, id: Operand::int(0), count: None },
        Inst::Barrier { kind: BarrierKind::Sync, aligned: false, id: Operand::int(0), count: None },
        Inst::Barrier {
            kind: BarrierKind::Arrive,
            aligned: true,
            id: Operand::int(1),
            count: Some(Operand::int(64)),
        },
        Inst::PredMov { dst: p, a: Operand::Special(SpecialReg::Plain(PlainSpecial::IsExplicitCluster)) },
    ];
    for (a_ty, b_ty) in [(U32, U32), (U32, S32), (S32, U32), (S32, S32)] {
        all.push(Inst::Dp4a {
            a_ty,
            b_ty,
            dst: r,
            a: operand(U32, 1),
            b: operand(U32, 2),
            c: operand(U32, 3),
        });
    }
    for mode in ShflMode::ALL {
        let (b, c) = (Operand::int(1), Operand::int(31));
        all.push(Inst::Shfl { mode: *mode, dst: r, pred: Some(p), a: operand(B32, 1), b, c, mask: full });
    }
    for mode in VoteMode::ALL {
        let dst = if *mode == VoteMode::Ballot { r } else { p };
        let src = PredUse { reg: register(Pred, 1), negated: true };
        all.push(Inst::Vote { mode: *mode, dst, src, mask: full });
    }
    for ty in [B32, B64] {
        for all_lanes in [false, true] {
            let pred = all_lanes.then_some(p);
            all.push(Inst::Match { all: all_lanes, ty, dst: r, pred, a: operand(ty, 1), mask: full });
        }
    }
    for op in BarRedOp::ALL {
        let dst = if *op == BarRedOp::Popc { r } else { p };
        let kind =
            BarrierKind::Reduce { op: *op, dst, src: PredUse { reg: register(Pred, 1), negated: false } };
        all.push(Inst::Barrier { kind, aligned: true, id: Operand::int(0), count: None });
    }
    for semantics in FenceSemantics::ALL {
        all.extend(Scope::ALL.iter().map(|scope| Inst::Fence { semantics: *semantics, scope: *scope }));
    }
    for space in StateSpace::ALL.iter().copied().filter(|s| *s != StateSpace::Generic) {
        all.push(Inst::Isspacep { space, dst: p, a: operand(U64, 1) });
        for to_space in [false, true] {
            all.push(Inst::Cvta { to_space, space, ty: U64, dst: register(B64, 0), src: operand(U64, 1) });
        }
    }
    for space in [StateSpace::Generic, StateSpace::Global, StateSpace::Local] {
        for level in PrefetchLevel::ALL {
            let priority = matches!(level, PrefetchLevel::L2EvictLast | PrefetchLevel::L2EvictNormal);
            if priority && space == StateSpace::Local {
                continue;
            }
            all.push(Inst::Prefetch { space, level: *level, addr: Address::reg(register(B64, 1), 0) });
        }
    }
    for special in specials() {
        for bits in isa::special_widths(special) {
            let ty = match bits {
                16 => U16,
                32 => U32,
                64 => U64,
                _ => continue,
            };
            all.push(Inst::Mov { ty, dst: register(ty, 0), src: Operand::Special(special) });
        }
    }
    for (ty, parts) in [(B16, 2), (B32, 2), (B32, 4), (B64, 2), (B64, 4), (B128, 2)] {
        let part = match ty.bits() / parts {
            8 => B8,
            16 => B16,
            32 => B32,
            _ => B64,
        };
        let registers = (0..parts as usize).map(|n| register_of(part, n));
        let dsts = registers.clone().map(Some).collect();
        all.push(Inst::Unpack { ty, dsts, src: operand(ty, 1) });
        all.push(Inst::Pack { ty, dst: register(ty, 1), parts: registers.map(Operand::Reg).collect() });
    }
    all
}

fn specials() -> Vec<SpecialReg> {
    let plain = PlainSpecial::ALL.iter().map(|p| SpecialReg::Plain(*p));
    let dimensions = [Axis::X, Axis::Y, Axis::Z].into_iter().flat_map(|a| {
        use SpecialReg::*;
        [Tid(a), Ntid(a), Ctaid(a), Nctaid(a), ClusterCtaid(a), ClusterNctaid(a), ClusterId(a), NclusterId(a)]
    });
    plain.chain(dimensions).collect()
}
