//! The instruction set: for each operator the legal types and modifiers, and the first version and target that have them.
//!
//! The rows are constants, one [`Row`] per operator in the operator's own order. The verifier checks against them, the
//! DSL and the printer ask them for the lowest `.version` that works, and `tests/ptxas.rs` holds every row against the
//! real assembler.

mod arith;
mod convert;
mod device;
mod feature;
mod memory;
mod set;
mod target;
mod tcgen05;
mod tensor;
mod wmma;

pub use arith::{
    BFI, BINARY, COMPARE, DP4A, LOP3, MIN_MAX_3, MIXED, SELP, SET, SLCT, TERNARY, UNARY, unary_result,
    unsigned, widened,
};
pub use convert::{CVT, CVT_PAIR, CVT_STOCHASTIC, MOV, PACK, cvt_sat_fits};
pub use device::DeviceLimits;
pub use memory::{
    ATOM, ATOM_VECTOR, BULK_REDUCE, LOAD_STORE, LOAD_UNIFORM, RED_ASYNC, REDUX, ST_ASYNC, vector,
};
pub use set::{Form, Misfit, ModifierError, ModifierSet, Requirement, Row, TypeSet};
pub use target::{
    LARGE_PARAMETER_BYTES, LARGE_PARAMETERS, NEWEST_VERSION, SMALL_PARAMETER_BYTES, newer_version_note,
    parameter_limit, static_shared_limit, target_version, targets,
};
pub use tensor::{
    MMA, MmaExtra, MmaForm, Sparse, WGMMA, matrix_tiles, mma, mma_registers, wgmma, wgmma_columns,
    wgmma_registers,
};
pub use wmma::{wmma, wmma_distinct, wmma_registers, wmma_tile};

use crate::inst::{FenceSemantics, Inst, Operand, PlainSpecial, SpecialReg};
use crate::module::{Function, FunctionKind, Module};
use crate::types::{PtxVersion, ScalarType, StateSpace, Target};

/// The form that `inst` has, and what it needs; or why there is no such form. Only types and modifiers are looked at.
///
/// # Errors
/// [`Misfit`] says whether the types or the modifiers do not exist.
pub fn form(inst: &Inst) -> Result<Form, Misfit> {
    form_for(inst, None)
}

fn form_for(inst: &Inst, target: Option<Target>) -> Result<Form, Misfit> {
    let none = ModifierSet::empty();
    let ftz = |on: bool| if on { ModifierSet::FTZ } else { none };
    match inst {
        Inst::Unary { op, ty, mods, .. } => by_type(target, UNARY[*op as usize].forms, *ty, (*mods).into()),
        Inst::Binary { op, ty, mods, .. } => by_type(target, BINARY[*op as usize].forms, *ty, (*mods).into()),
        Inst::Ternary { op, ty, mods, .. } => {
            by_type(target, TERNARY[*op as usize].forms, *ty, (*mods).into())
        }
        Inst::Bfi { ty, .. } => by_type(target, &[BFI], *ty, none),
        Inst::Lop3 { .. } => Ok(LOP3),
        Inst::Dp4a { a_ty, b_ty, .. } => by_types(target, &[DP4A], *a_ty, *b_ty, none),
        Inst::Setp { cmp, ty, ftz: f, .. } => by_type(target, COMPARE[*cmp as usize].forms, *ty, ftz(*f)),
        Inst::Set { cmp, dst_ty, ty, ftz: f, .. } => {
            let compared = by_type(target, COMPARE[*cmp as usize].forms, *ty, ftz(*f))?;
            let set = by_types(target, SET, *dst_ty, *ty, ftz(*f))?;
            Ok(Form { needs: set.needs.and(compared.needs), ..set })
        }
        Inst::Selp { ty, .. } => by_type(target, &[SELP], *ty, none),
        Inst::Slct { ty, c_ty, ftz: f, .. } => by_types(target, SLCT, *ty, *c_ty, ftz(*f)),
        Inst::Mov { ty, .. } => by_type(target, &[MOV], *ty, none),
        Inst::Pack { ty, .. } | Inst::Unpack { ty, .. } => by_type(target, PACK, *ty, none),
        Inst::Cvt { to, from, mods, b, .. } => {
            let forms = if b.is_some() { CVT_PAIR } else { CVT };
            if mods.sat && !cvt_sat_fits(*to, *from) {
                return Err(Misfit::Modifiers(ModifierError::Illegal(ModifierSet::SAT)));
            }
            by_types(target, forms, *to, *from, (*mods).into())
        }
        Inst::Ld { ty, .. } | Inst::St { ty, .. } => by_type(target, LOAD_STORE, *ty, none),
        Inst::Atom { op, ty, .. } => by_type(target, ATOM[*op as usize].forms, *ty, none),
        Inst::Redux { op, ty, abs, nan, .. } => {
            let nan = if *nan { ModifierSet::NAN } else { none };
            let form = by_type(target, REDUX[*op as usize].forms, *ty, nan)?;
            if *abs && *ty != ScalarType::F32 { Err(Misfit::Types) } else { Ok(form) }
        }
        Inst::MinMax3 { ty, mods, .. } => by_type(target, &[MIN_MAX_3], *ty, (*mods).into()),
        Inst::Mixed { op, narrow, mods, .. } => {
            by_types(target, &[MIXED[*op as usize].1], ScalarType::F32, *narrow, (*mods).into())
        }
        Inst::CvtStochastic { to, from, mods, .. } => {
            by_types(target, CVT_STOCHASTIC, *to, *from, (*mods).into())
        }
        Inst::Ldu { ty, .. } => by_type(target, &[LOAD_UNIFORM], *ty, none),
        Inst::Match { ty, .. } => by_type(target, MATCH, *ty, none),
        Inst::Cvta { ty, .. } => by_type(target, ADDRESS_TYPES, *ty, none),
        _ => Ok(Form { needs: feature::feature(inst)?, ..Form::of(TypeSet::EMPTY) }),
    }
}

/// `match.sync`
pub const MATCH: &[Form] = &[Form::of(TypeSet::of(&[ScalarType::B32, ScalarType::B64])).since(6, 0, 70)];
/// `cvta`: addresses are 64-bit.
pub const ADDRESS_TYPES: &[Form] = &[Form::of(TypeSet::of(&[ScalarType::U64]))];

fn by_type(
    target: Option<Target>,
    forms: &[Form],
    ty: ScalarType,
    modifiers: ModifierSet,
) -> Result<Form, Misfit> {
    set::fit(forms, modifiers, target, |f| f.has_type(ty)).copied()
}

fn by_types(
    target: Option<Target>,
    forms: &[Form],
    ty: ScalarType,
    other: ScalarType,
    modifiers: ModifierSet,
) -> Result<Form, Misfit> {
    set::fit(forms, modifiers, target, |f| f.has_types(ty, other)).copied()
}

/// The lowest version and target that have `inst`. For an instruction that is not legal at all, what its legal parts need.
pub fn requirement(inst: &Inst) -> Requirement {
    requirement_for(inst, None)
}

/// The lowest version that has `inst` on `target`. Differs from [`requirement`] where an older target got the instruction
/// in a later version.
pub fn requirement_on(inst: &Inst, target: Target) -> Requirement {
    requirement_for(inst, Some(target))
}

fn requirement_for(inst: &Inst, target: Option<Target>) -> Requirement {
    let mut needs = form_for(inst, target).map_or(Requirement::BASE, |f| f.needs);
    let mut also = |r: Requirement| needs = needs.and(r);
    also(feature::feature(inst).unwrap_or(Requirement::BASE));
    match inst {
        Inst::Mov { src: Operand::Special(s), .. } | Inst::Cvt { a: Operand::Special(s), .. } => {
            also(special(*s));
        }
        Inst::PredMov { a: Operand::Special(s), .. } => also(special(*s)),
        Inst::Ld { space, ty, ordering, hints, dsts, .. } => {
            also(memory::space(*space));
            also(memory::hints(hints));
            also(memory::semantics(ordering.semantics));
            also(ordering.scope.map_or(Requirement::BASE, memory::scope));
            also(vector(dsts.len(), ty.bits()).unwrap_or(Requirement::BASE));
        }
        Inst::St { space, ty, ordering, hints, srcs, .. } => {
            also(memory::space(*space));
            also(memory::hints(hints));
            also(memory::semantics(ordering.semantics));
            also(ordering.scope.map_or(Requirement::BASE, memory::scope));
            also(vector(srcs.len(), ty.bits()).unwrap_or(Requirement::BASE));
        }
        Inst::Atom { space, ordering, .. } | Inst::AtomVector { space, ordering, .. } => {
            also(memory::space(*space));
            if ordering.scope.is_some() {
                also(memory::semantics(ordering.semantics));
            }
            also(ordering.scope.map_or(Requirement::BASE, memory::scope));
        }
        Inst::Cvta { space, .. } | Inst::Isspacep { space, .. } => {
            also(memory::space(*space));
            if *space == StateSpace::Param {
                also(Requirement::new(7, 7, 70));
            }
        }
        Inst::Shfl { .. } | Inst::Vote { .. } | Inst::WarpBarrier { .. } => also(Requirement::new(6, 0, 30)),
        Inst::Activemask { .. } => also(Requirement::new(6, 2, 30)),
        Inst::Elect { .. } => also(Requirement::new(8, 0, 90)),
        Inst::Barrier { aligned: false, .. } => also(Requirement::new(6, 0, 30)),
        Inst::Fence { semantics, scope } => {
            also(match semantics {
                FenceSemantics::Sc | FenceSemantics::AcqRel => Requirement::new(6, 0, 70),
                FenceSemantics::Acquire | FenceSemantics::Release => Requirement::new(8, 6, 90),
            });
            also(memory::scope(*scope));
        }
        Inst::Nanosleep { .. } => also(Requirement::new(6, 3, 70)),
        _ => {}
    }
    needs
}

/// Requirement of a special register.
pub const fn special(register: SpecialReg) -> Requirement {
    use PlainSpecial::*;
    match register {
        SpecialReg::Tid(_) | SpecialReg::Ntid(_) | SpecialReg::Ctaid(_) | SpecialReg::Nctaid(_) => {
            Requirement::BASE
        }
        SpecialReg::ClusterCtaid(_)
        | SpecialReg::ClusterNctaid(_)
        | SpecialReg::ClusterId(_)
        | SpecialReg::NclusterId(_) => Requirement::new(7, 8, 90),
        SpecialReg::Plain(p) => match p {
            LaneId | WarpId | NwarpId | SmId | NsmId | GridId | LanemaskEq | LanemaskLe | LanemaskLt
            | LanemaskGe | LanemaskGt | Clock | Clock64 => Requirement::BASE,
            ClockHi => Requirement::new(5, 0, 20),
            GlobalTimer | GlobalTimerLo | GlobalTimerHi => Requirement::new(3, 1, 30),
            TotalSmemSize | DynamicSmemSize => Requirement::new(4, 1, 20),
            ClusterCtaRank | ClusterNctaRank | IsExplicitCluster => Requirement::new(7, 8, 90),
            AggrSmemSize => Requirement::new(8, 1, 90),
            EnvReg1 | EnvReg2 => Requirement::BASE,
            ReservedSmemOffset1 => Requirement::new(7, 6, 80),
        },
    }
}

/// The type of a special register.
pub const fn special_type(register: SpecialReg) -> ScalarType {
    use PlainSpecial::*;
    match register {
        SpecialReg::Plain(Clock64 | GlobalTimer | GridId) => ScalarType::U64,
        SpecialReg::Plain(IsExplicitCluster) => ScalarType::Pred,
        _ => ScalarType::U32,
    }
}

/// The widths in bits at which `mov` reads a special register.
pub const fn special_widths(register: SpecialReg) -> &'static [u32] {
    use PlainSpecial::*;
    match register {
        SpecialReg::Tid(_) | SpecialReg::Ntid(_) | SpecialReg::Ctaid(_) | SpecialReg::Nctaid(_) => &[16, 32],
        SpecialReg::Plain(GridId) => &[16, 32, 64],
        SpecialReg::Plain(Clock64 | GlobalTimer) => &[64],
        SpecialReg::Plain(IsExplicitCluster) => &[1],
        _ => &[32],
    }
}

/// Requirement of the declarations and directives of an entry.
pub fn function_requirement(function: &Function) -> Requirement {
    let mut needs = Requirement::BASE;
    let d = &function.directives;
    if d.cluster.is_some() || d.explicit_cluster || d.max_cluster_rank.is_some() {
        needs = needs.and(Requirement::new(7, 8, 90));
    }
    if d.blocks_are_clusters {
        needs = needs.and(Requirement::new(9, 0, 90));
    }
    let preserves = |(data, control): (Option<u32>, Option<u32>)| data.is_some() || control.is_some();
    let mut prototypes = function.prototypes.iter().map(|p| (p.abi_preserve, p.abi_preserve_control));
    if preserves((d.abi_preserve, d.abi_preserve_control)) || prototypes.any(preserves) {
        needs = needs.and(Requirement::new(9, 0, 80));
    }
    if function.kind == FunctionKind::Entry && function.param_layout().1 > SMALL_PARAMETER_BYTES {
        needs = needs.and(Requirement::new(LARGE_PARAMETERS.major, LARGE_PARAMETERS.minor, 70));
    }
    if function.registers.iter().any(|r| r.ty == ScalarType::B128) {
        needs = needs.and(Requirement::new(8, 3, 70));
    }
    needs
}

/// The lowest `.version` for the module's target, directives and instructions.
///
/// A target that is not known contributes nothing.
pub fn minimum_version(module: &Module) -> PtxVersion {
    let base = target_version(module.target).unwrap_or(PtxVersion::new(6, 0));
    module.functions.iter().fold(base, |version, function| {
        let instructions = function.blocks.iter().flat_map(|b| &b.instructions);
        let instructions = instructions.map(|i| requirement_on(&i.inst, module.target));
        instructions.fold(version.max(function_requirement(function).version), |v, r| v.max(r.version))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inst::*;
    use crate::types::*;

    /// One row per operator, in the operators' order, so that `table[op as usize]` is the row of `op`.
    fn bijective<O: Copy + PartialEq + std::fmt::Debug>(rows: &[Row<O>], all: &[O]) {
        let ops: Vec<O> = rows.iter().map(|r| r.op).collect();
        assert_eq!(ops, all);
        for row in rows {
            assert!(!row.forms.is_empty(), "{:?} has no form", row.op);
            assert!(row.forms.iter().all(|f| !f.types.is_empty()), "{:?} has a form without types", row.op);
        }
    }

    #[test]
    fn rows_and_operators_are_in_bijection() {
        bijective(UNARY, UnaryOp::ALL);
        bijective(BINARY, BinaryOp::ALL);
        bijective(TERNARY, TernaryOp::ALL);
        bijective(COMPARE, CmpOp::ALL);
        bijective(ATOM, AtomOp::ALL);
        bijective(REDUX, ReduxOp::ALL);
    }

    #[test]
    fn modifiers_survive_the_way_into_a_set_and_back() {
        for set in ModifierSet::all().iter() {
            assert_eq!(ModifierSet::from(set.to_modifiers()), set);
        }
        let all = ModifierSet::all().difference(ModifierSet::ROUNDING) | ModifierSet::RM;
        assert_eq!(ModifierSet::from(all.to_modifiers()), all);
    }

    #[test]
    fn the_minimum_version_is_that_of_the_target_or_of_the_newest_instruction() {
        let mut function = Function::entry("k");
        let r = function.new_reg(ScalarType::B32, crate::module::RegKind::Value);
        let tanh = Inst::Unary {
            op: UnaryOp::Tanh,
            ty: ScalarType::F32,
            mods: Modifiers::APPROX,
            dst: r,
            a: Operand::f32(0.5),
        };
        function.blocks.push(crate::module::Block {
            instructions: vec![tanh.into()],
            terminator: Terminator::Ret,
            locations: Vec::new(),
        });
        let mut module = Module::new(PtxVersion::new(9, 0), Target::sm(75));
        assert_eq!(minimum_version(&module), PtxVersion::new(6, 3));
        module.functions.push(function);
        assert_eq!(minimum_version(&module), PtxVersion::new(7, 0));
        module.target = Target::specific(90);
        assert_eq!(minimum_version(&module), PtxVersion::new(8, 0));
        module.target = Target::sm(80);
        module.functions[0].directives.cluster = Some([2, 1, 1]);
        assert_eq!(minimum_version(&module), PtxVersion::new(7, 8));
        let bytes =
            crate::module::Param { array: Some(5000), ..crate::module::Param::scalar("t", ScalarType::B8) };
        module.functions[0].params.push(bytes);
        assert_eq!(minimum_version(&module), PtxVersion::new(8, 1));
    }

    #[test]
    fn a_target_may_have_had_an_instruction_for_longer_than_an_older_one() {
        let (to, from) = (ScalarType::E4M3x2, ScalarType::F32);
        let mods = Modifiers { satfinite: true, ..Modifiers::RN };
        let a = Operand::f32(1.0);
        let cvt = Inst::Cvt { to, from, mods, dst: Reg(0), a, b: Some(a) };
        assert_eq!(requirement(&cvt), Requirement::new(8, 1, 89));
        assert_eq!(requirement_on(&cvt, Target::sm(89)), Requirement::new(8, 1, 89));
        assert_eq!(requirement_on(&cvt, Target::sm(90)), Requirement::new(7, 8, 90));
        assert_eq!(requirement_on(&cvt, Target::sm(80)).sm, 89);
    }

    #[test]
    fn forms_say_what_is_missing_or_too_much() {
        let fma = |mods| {
            let (dst, a) = (Reg(0), Operand::f32(1.0));
            form(&Inst::Ternary { op: TernaryOp::Fma, ty: ScalarType::F32, mods, dst, a, b: a, c: a })
        };
        assert_eq!(
            fma(Modifiers::NONE),
            Err(Misfit::Modifiers(ModifierError::MissingOneOf(ModifierSet::FLOAT_ROUNDING)))
        );
        assert!(fma(Modifiers::RN.with_ftz()).is_ok());
        let approximate = Modifiers { approx: true, ..Modifiers::RN };
        assert_eq!(fma(approximate), Err(Misfit::Modifiers(ModifierError::Illegal(ModifierSet::APPROX))));
        let error = ModifierError::MissingOneOf(ModifierSet::FLOAT_ROUNDING);
        assert_eq!(error.to_string(), "one of `.rn`, `.rz`, `.rm`, `.rp` is required");
    }
}
