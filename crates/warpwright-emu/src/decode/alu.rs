//! Arithmetic and logic: the hot forms to vectorised operations, everything else to lane-by-lane ones.

use warpwright_ptx::isa::newer_version_note;
use warpwright_ptx::text;
use warpwright_ptx::{
    BinaryOp, BoolOp, CmpOp, Inst, Modifiers, Operand, PredUse, Reg, Rounding, ScalarType, TernaryOp, UnaryOp,
};

use super::{Decoder, Result, index};
use crate::code::Scalar;
use crate::code::layout::Slot;
use crate::code::op::{Make1, Make2, Make3, Op};
use crate::code::rows::{R1, R2, R3};

/// Whether the modifiers ask for nothing beyond rounding to nearest.
fn plain(mods: &Modifiers) -> bool {
    *mods == Modifiers { rounding: mods.rounding, ..Modifiers::NONE }
        && matches!(mods.rounding, None | Some(Rounding::Rn))
}

/// The modifiers without `.approx` and `.full`, which the emulator rounds correctly.
fn exact(mods: &Modifiers) -> Modifiers {
    Modifiers { approx: false, full: false, ..*mods }
}

/// 32-bit unary operations that run vectorised.
fn unary32(op: UnaryOp, ty: ScalarType, mods: &Modifiers) -> Option<Make1> {
    use ScalarType::*;
    Some(match (op, ty) {
        (UnaryOp::Not, B32) => Op::NotW,
        (UnaryOp::Neg, S32) if plain(mods) => Op::NegI32,
        (UnaryOp::Abs, S32) if plain(mods) => Op::AbsI32,
        (UnaryOp::Popc, B32) => Op::Popc,
        (UnaryOp::Clz, B32) => Op::Clz,
        (UnaryOp::Brev, B32) => Op::Brev,
        (UnaryOp::Neg, F32) if plain(mods) => Op::NegF32,
        (UnaryOp::Abs, F32) if plain(mods) => Op::AbsF32,
        (UnaryOp::Rcp, F32) if plain(&exact(mods)) => Op::RcpF32,
        (UnaryOp::Sqrt, F32) if plain(&exact(mods)) => Op::SqrtF32,
        (UnaryOp::Rcp, F32) if plain(&Modifiers { ftz: false, ..exact(mods) }) => Op::RcpFtzF32,
        (UnaryOp::Tanh, F32) if plain(&exact(mods)) => Op::TanhF32,
        (UnaryOp::Rsqrt, F32) if plain(&exact(mods)) => Op::RsqrtF32,
        (UnaryOp::Ex2, F32) if plain(&exact(mods)) => Op::Ex2F32,
        (UnaryOp::Ex2, F32) if *mods == Modifiers::APPROX.with_ftz() => Op::Ex2FtzF32,
        (UnaryOp::Lg2, F32) if plain(&exact(mods)) => Op::Lg2F32,
        _ => return None,
    })
}

fn unary64(op: UnaryOp, ty: ScalarType, mods: &Modifiers) -> Option<Make1> {
    use ScalarType::*;
    Some(match (op, ty) {
        (UnaryOp::Not, B64) => Op::NotL,
        (UnaryOp::Neg, S64) if plain(mods) => Op::NegI64,
        (UnaryOp::Abs, S64) if plain(mods) => Op::AbsI64,
        (UnaryOp::Neg, F64) if plain(mods) => Op::NegF64,
        (UnaryOp::Abs, F64) if plain(mods) => Op::AbsF64,
        (UnaryOp::Rcp, F64) if plain(mods) => Op::RcpF64,
        (UnaryOp::Sqrt, F64) if plain(mods) => Op::SqrtF64,
        _ => return None,
    })
}

fn binary32(op: BinaryOp, ty: ScalarType, mods: &Modifiers) -> Option<Make2> {
    use ScalarType::*;
    if *mods == (Modifiers { nan: true, ..Modifiers::NONE }) {
        match (op, ty) {
            (BinaryOp::Min, F32) => return Some(Op::MinNanF32),
            (BinaryOp::Max, F32) => return Some(Op::MaxNanF32),
            (BinaryOp::Min, BF16x2) => return Some(Op::MinNanBf16x2),
            (BinaryOp::Max, BF16x2) => return Some(Op::MaxNanBf16x2),
            _ => {}
        }
    }
    let full_division = op == BinaryOp::Div && mods.full && plain(&exact(mods));
    if !plain(mods) && !full_division {
        return None;
    }
    Some(match (op, ty) {
        (BinaryOp::Add, U32 | S32) => Op::AddI32,
        (BinaryOp::Sub, U32 | S32) => Op::SubI32,
        (BinaryOp::MulLo, U32 | S32) => Op::MulI32,
        (BinaryOp::MulHi, U32) => Op::MulHiU32,
        (BinaryOp::MulHi, S32) => Op::MulHiS32,
        (BinaryOp::Min, U32) => Op::MinU32,
        (BinaryOp::Max, U32) => Op::MaxU32,
        (BinaryOp::Min, S32) => Op::MinS32,
        (BinaryOp::Max, S32) => Op::MaxS32,
        (BinaryOp::Div, U32) => Op::DivU32,
        (BinaryOp::Rem, U32) => Op::RemU32,
        // Narrow registers are zero-extended, which these keep.
        (BinaryOp::And, B32 | B16) => Op::AndW,
        (BinaryOp::Or, B32 | B16) => Op::OrW,
        (BinaryOp::Xor, B32 | B16) => Op::XorW,
        (BinaryOp::Shl, B32) => Op::ShlW,
        (BinaryOp::Shr, B32 | U32) => Op::ShrU32,
        (BinaryOp::Shr, B16 | U16) => Op::ShrU32,
        (BinaryOp::Shr, S32) => Op::ShrS32,
        (BinaryOp::Add, F32) => Op::AddF32,
        (BinaryOp::Sub, F32) => Op::SubF32,
        (BinaryOp::Mul, F32) => Op::MulF32,
        (BinaryOp::Div, F32) => Op::DivF32,
        (BinaryOp::Min, F32) => Op::MinF32,
        (BinaryOp::Max, F32) => Op::MaxF32,
        (BinaryOp::Min, BF16x2) => Op::MinBf16x2,
        (BinaryOp::Max, BF16x2) => Op::MaxBf16x2,
        (BinaryOp::Copysign, F32) => Op::CopysignF32,
        _ => return None,
    })
}

fn binary64(op: BinaryOp, ty: ScalarType, mods: &Modifiers) -> Option<Make2> {
    use ScalarType::*;
    if !plain(mods) {
        return None;
    }
    Some(match (op, ty) {
        (BinaryOp::Add, U64 | S64) => Op::AddI64,
        (BinaryOp::Sub, U64 | S64) => Op::SubI64,
        (BinaryOp::MulLo, U64 | S64) => Op::MulI64,
        (BinaryOp::Min, U64) => Op::MinU64,
        (BinaryOp::Max, U64) => Op::MaxU64,
        (BinaryOp::Min, S64) => Op::MinS64,
        (BinaryOp::Max, S64) => Op::MaxS64,
        (BinaryOp::Div, U64) => Op::DivU64,
        (BinaryOp::Rem, U64) => Op::RemU64,
        (BinaryOp::And, B64) => Op::AndL,
        (BinaryOp::Or, B64) => Op::OrL,
        (BinaryOp::Xor, B64) => Op::XorL,
        (BinaryOp::Add, F64) => Op::AddF64,
        (BinaryOp::Sub, F64) => Op::SubF64,
        (BinaryOp::Mul, F64) => Op::MulF64,
        (BinaryOp::Div, F64) => Op::DivF64,
        (BinaryOp::Min, F64) => Op::MinF64,
        (BinaryOp::Max, F64) => Op::MaxF64,
        (BinaryOp::Copysign, F64) => Op::CopysignF64,
        _ => return None,
    })
}

fn ternary32(op: TernaryOp, ty: ScalarType, mods: &Modifiers) -> Option<Make3> {
    use ScalarType::*;
    if !plain(mods) {
        return None;
    }
    Some(match (op, ty) {
        (TernaryOp::Fma | TernaryOp::Mad, F32) => Op::FmaF32,
        (TernaryOp::MadLo, U32 | S32) => Op::MadI32,
        (TernaryOp::ShfLWrap, B32) => Op::ShfLWrap,
        (TernaryOp::ShfLClamp, B32) => Op::ShfLClamp,
        (TernaryOp::ShfRWrap, B32) => Op::ShfRWrap,
        (TernaryOp::ShfRClamp, B32) => Op::ShfRClamp,
        (TernaryOp::Bfe, U32) => Op::BfeU32,
        (TernaryOp::Prmt, B32) => Op::Prmt,
        _ => return None,
    })
}

fn ternary64(op: TernaryOp, ty: ScalarType, mods: &Modifiers) -> Option<Make3> {
    if !plain(mods) {
        return None;
    }
    Some(match (op, ty) {
        (TernaryOp::Fma | TernaryOp::Mad, ScalarType::F64) => Op::FmaF64,
        (TernaryOp::MadLo, ScalarType::U64 | ScalarType::S64) => Op::MadI64,
        _ => return None,
    })
}

/// A comparison that runs vectorised, and whether its sources are exchanged.
fn compare(cmp: CmpOp, ty: ScalarType) -> Option<(Make2, bool)> {
    use CmpOp::*;
    use ScalarType::*;
    let signed = matches!(ty, S32 | S64);
    let wide = ty.bits() == 64;
    match ty {
        U32 | S32 | B32 | U64 | S64 | B64 => {
            let (lt, le): (Make2, Make2) = match (wide, signed) {
                (false, false) => (Op::LtU32, Op::LeU32),
                (false, true) => (Op::LtS32, Op::LeS32),
                (true, false) => (Op::LtU64, Op::LeU64),
                (true, true) => (Op::LtS64, Op::LeS64),
            };
            let (eq, ne): (Make2, Make2) = if wide { (Op::EqL, Op::NeL) } else { (Op::EqW, Op::NeW) };
            Some(match cmp {
                Eq => (eq, false),
                Ne => (ne, false),
                Lt | Lo => (lt, false),
                Le | Ls => (le, false),
                Gt | Hi => (lt, true),
                Ge | Hs => (le, true),
                Equ | Neu | Ltu | Leu | Gtu | Geu | Num | Nan => return None,
            })
        }
        F32 => Some(match cmp {
            Eq => (Op::EqF32 as Make2, false),
            Ne => (Op::NeF32, false),
            Lt => (Op::LtF32, false),
            Le => (Op::LeF32, false),
            Gt => (Op::LtF32, true),
            Ge => (Op::LeF32, true),
            Equ => (Op::EquF32, false),
            Neu => (Op::NeuF32, false),
            Gtu => (Op::GtuF32, false),
            Geu => (Op::GeuF32, false),
            Ltu => (Op::GtuF32, true),
            Leu => (Op::GeuF32, true),
            Num => (Op::NumF32, false),
            Nan => (Op::NanF32, false),
            Lo | Ls | Hi | Hs => return None,
        }),
        F64 => Some(match cmp {
            Eq => (Op::EqF64 as Make2, false),
            Lt => (Op::LtF64, false),
            Le => (Op::LeF64, false),
            Gt => (Op::LtF64, true),
            Ge => (Op::LeF64, true),
            Neu => (Op::NeuF64, false),
            Gtu => (Op::GtuF64, false),
            Geu => (Op::GeuF64, false),
            Ltu => (Op::GtuF64, true),
            Leu => (Op::GeuF64, true),
            Num => (Op::NumF64, false),
            Nan => (Op::NanF64, false),
            Ne | Equ | Lo | Ls | Hi | Hs => return None,
        }),
        _ => None,
    }
}

impl Decoder<'_> {
    /// Decodes one instruction.
    pub(super) fn inst(&mut self, inst: &Inst) -> Result<()> {
        match inst {
            Inst::Unary { op, ty, mods, dst, a } => {
                if let Some(make) = unary32(*op, *ty, mods) {
                    let (a, d) = (self.w(a, *ty)?, self.dst_w(*dst)?);
                    self.emit(make(R1 { d, a }));
                    return Ok(());
                }
                if let Some(make) = unary64(*op, *ty, mods) {
                    let (a, d) = (self.l(a, *ty)?, self.dst_l(*dst)?);
                    self.emit(make(R1 { d, a }));
                    return Ok(());
                }
                self.scalar(inst, *dst, &[(a, *ty)])
            }
            Inst::Binary { op, ty, mods, dst, a, b } => self.binary(inst, *op, *ty, mods, *dst, a, b),
            Inst::Ternary { op, ty, mods, dst, a, b, c } => {
                if let Some(make) = ternary32(*op, *ty, mods) {
                    let o = R3 {
                        a: self.w(a, *ty)?,
                        b: self.w(b, *ty)?,
                        c: self.w(c, *ty)?,
                        d: self.dst_w(*dst)?,
                    };
                    self.emit(make(o));
                    return Ok(());
                }
                if let Some(make) = ternary64(*op, *ty, mods) {
                    let o = R3 {
                        a: self.l(a, *ty)?,
                        b: self.l(b, *ty)?,
                        c: self.l(c, *ty)?,
                        d: self.dst_l(*dst)?,
                    };
                    self.emit(make(o));
                    return Ok(());
                }
                let wide_c = match (op, ty) {
                    (TernaryOp::MadWide, ScalarType::U32) => Some(Op::MadWideU32 as Make3),
                    (TernaryOp::MadWide, ScalarType::S32) => Some(Op::MadWideS32 as Make3),
                    _ => None,
                };
                let c_ty = if *op == TernaryOp::MadWide { widened(*ty) } else { *ty };
                if let Some(make) = wide_c {
                    let o = R3 {
                        a: self.w(a, *ty)?,
                        b: self.w(b, *ty)?,
                        c: self.l(c, c_ty)?,
                        d: self.dst_l(*dst)?,
                    };
                    self.emit(make(o));
                    return Ok(());
                }
                // Positions, lengths, shift amounts and selectors are 32-bit whatever the type.
                let (b_ty, c_ty) = match op {
                    TernaryOp::Bfe => (ScalarType::U32, ScalarType::U32),
                    _ => (*ty, c_ty),
                };
                self.scalar(inst, *dst, &[(a, *ty), (b, b_ty), (c, c_ty)])
            }
            Inst::Bfi { ty, dst, a, b, pos, len } => {
                let word = ScalarType::U32;
                self.scalar(inst, *dst, &[(a, *ty), (b, *ty), (pos, word), (len, word)])
            }
            Inst::Lop3 { dst, a, b, c, lut } => {
                let ty = ScalarType::B32;
                let o = R3 { a: self.w(a, ty)?, b: self.w(b, ty)?, c: self.w(c, ty)?, d: self.dst_w(*dst)? };
                self.emit(Op::Lop3(o, *lut));
                Ok(())
            }
            Inst::Dp4a { a_ty, b_ty, dst, a, b, c } => {
                let c_ty = if *a_ty == ScalarType::U32 && *b_ty == ScalarType::U32 {
                    *a_ty
                } else {
                    ScalarType::S32
                };
                self.scalar(inst, *dst, &[(a, *a_ty), (b, *b_ty), (c, c_ty)])
            }
            Inst::Dp2a { a_ty, b_ty, dst, a, b, c, .. } => {
                self.scalar(inst, *dst, &[(a, *a_ty), (b, *b_ty), (c, ScalarType::B32)])
            }
            Inst::Video { dst, a, b, c, .. } => {
                let word = ScalarType::B32;
                self.scalar(inst, *dst, &[(a, word), (b, word), (c, word)])
            }
            Inst::Lop3Pred { op, dst, pred, a, b, c, lut, q } => {
                self.lop3_pred(*op, *dst, *pred, (a, b, c, *lut), *q)
            }
            Inst::Fns { dst, mask, base, offset } => {
                let word = ScalarType::B32;
                self.scalar(inst, *dst, &[(mask, word), (base, word), (offset, word)])
            }
            Inst::CvtPack { dst, a, b, c, .. } => {
                let word = ScalarType::S32;
                let zero = Operand::int(0);
                self.scalar(
                    inst,
                    *dst,
                    &[(a, word), (b, word), (c.as_ref().unwrap_or(&zero), ScalarType::B32)],
                )
            }
            Inst::MinMax3 { ty, dst, a, b, c, .. } => {
                self.scalar(inst, *dst, &[(a, *ty), (b, *ty), (c, *ty)])
            }
            Inst::Mixed { narrow, dst, a, b, c, .. } => {
                let b = b.as_ref().map(|b| (b, *narrow));
                let sources: Vec<_> =
                    [(a, *narrow)].into_iter().chain(b).chain([(c, ScalarType::F32)]).collect();
                self.scalar(inst, *dst, &sources)
            }
            Inst::Setp { cmp, combine, ty, ftz, dst, dst_not, a, b } => {
                let fast = if *ftz { None } else { compare(*cmp, *ty) };
                let Some((make, swap)) = fast else { return self.scalar(inst, *dst, &[(a, *ty), (b, *ty)]) };
                let sources = if ty.bits() == 64 {
                    (self.l(a, *ty)?, self.l(b, *ty)?)
                } else {
                    (self.w(a, *ty)?, self.w(b, *ty)?)
                };
                let (a, b) = if swap { (sources.1, sources.0) } else { sources };
                let d = self.pred(*dst)?;
                if combine.is_none() && dst_not.is_none() {
                    self.emit(make(R2 { d, a, b }));
                    return Ok(());
                }
                let result = self.regs.temp_pred();
                self.emit(make(R2 { d: result, a, b }));
                let third = match combine {
                    Some((op, p)) => Some((*op, self.pred_use(*p)?)),
                    None => None,
                };
                // Results are written at the end: a destination may also be the third predicate or the guard.
                let main = self.combine(result, third);
                let Some(not) = dst_not else {
                    self.emit(Op::PredMov(R1 { d, a: main }));
                    return Ok(());
                };
                let complement = self.regs.temp_pred();
                self.emit(Op::PredNot(R1 { d: complement, a: result }));
                let complement = self.combine(complement, third);
                let not = self.pred(*not)?;
                let mut writes = [R1 { d, a: main }, R1 { d: not, a: complement }];
                if d == self.guard.0 {
                    writes.reverse();
                }
                for o in writes {
                    self.emit(Op::PredMov(o));
                }
                Ok(())
            }
            Inst::Set { ty, dst, a, b, .. } => self.scalar(inst, *dst, &[(a, *ty), (b, *ty)]),
            Inst::Selp { ty, dst, a, b, pred } => {
                let c = self.pred(*pred)?;
                match self.slot(*dst)? {
                    Slot::L(d) => {
                        let (a, b) = (self.l(a, *ty)?, self.l(b, *ty)?);
                        self.emit(Op::SelectL(R3 { d, a, b, c }));
                    }
                    _ => {
                        let (a, b, d) = (self.w(a, *ty)?, self.w(b, *ty)?, self.dst_w(*dst)?);
                        self.emit(Op::SelectW(R3 { d, a, b, c }));
                    }
                }
                Ok(())
            }
            Inst::Slct { ty, c_ty, dst, a, b, c, .. } => {
                self.scalar(inst, *dst, &[(a, *ty), (b, *ty), (c, *c_ty)])
            }
            Inst::Mov { ty, dst, src } => self.mov(*ty, *dst, src),
            Inst::Pack { ty, dst, parts } => self.pack(*ty, *dst, parts),
            Inst::Unpack { ty, dsts, src } => self.unpack(*ty, dsts, src),
            Inst::PredBinary { op, dst, a, b } => {
                let o = R2 { d: self.pred(*dst)?, a: self.pred(*a)?, b: self.pred(*b)? };
                self.emit(pred_op(*op)(o));
                Ok(())
            }
            Inst::PredNot { dst, a } => {
                let o = R1 { d: self.pred(*dst)?, a: self.pred(*a)? };
                self.emit(Op::PredNot(o));
                Ok(())
            }
            Inst::PredMov { dst, a } => {
                let d = self.pred(*dst)?;
                let a = match a {
                    Operand::Reg(r) => self.pred(*r)?,
                    Operand::Special(special) => match self.special(*special) {
                        Slot::P(p) => p,
                        _ => return self.error("the special register is not a predicate"),
                    },
                    Operand::Imm(warpwright_ptx::Imm::Int(v)) => {
                        // Predicate 0 is constant true.
                        self.emit(if *v != 0 {
                            Op::PredMov(R1 { d, a: 0 })
                        } else {
                            Op::PredNot(R1 { d, a: 0 })
                        });
                        return Ok(());
                    }
                    Operand::Imm(_) | Operand::Symbol(..) => return self.error("not a predicate"),
                };
                self.emit(Op::PredMov(R1 { d, a }));
                Ok(())
            }
            Inst::Cvt { to, from, mods, dst, a, b } => self.cvt(inst, *to, *from, mods, *dst, a, b.as_ref()),
            Inst::Cvta { to_space, space, dst, src, .. } => self.cvta(*to_space, *space, *dst, src),
            Inst::Isspacep { space, dst, a } => {
                let (d, a) = (self.pred(*dst)?, self.source(a, ScalarType::U64)?);
                self.code.isspacep.push((*space, d, a));
                let at = index(self.code.isspacep.len() - 1);
                self.emit(Op::Isspacep(at));
                Ok(())
            }
            Inst::Ld { .. }
            | Inst::Ldu { .. }
            | Inst::St { .. }
            | Inst::Atom { .. }
            | Inst::AtomVector { .. }
            | Inst::Discard { .. }
            | Inst::ApplyPriority { .. }
            | Inst::Alloca { .. }
            | Inst::StackSave { .. }
            | Inst::StackRestore { .. } => self.memory(inst),
            // Hints: nothing happens that a program can see.
            Inst::Prefetch { .. }
            | Inst::PrefetchUniform { .. }
            | Inst::PrefetchTensormap { .. }
            | Inst::PmEvent { .. } => {
                self.emit(Op::Nothing);
                Ok(())
            }
            Inst::CreatePolicy { dst, .. } => {
                // A policy is opaque, and nothing here looks at one.
                let (a, d) = (self.regs.literal64(0), self.dst_l(*dst)?);
                self.emit(Op::MovL(R1 { d, a }));
                Ok(())
            }
            Inst::Call { callee, returns, args, .. } => self.call(callee, returns, args),
            Inst::Shfl { .. }
            | Inst::Vote { .. }
            | Inst::Match { .. }
            | Inst::Redux { .. }
            | Inst::Activemask { .. }
            | Inst::Elect { .. }
            | Inst::Barrier { .. }
            | Inst::WarpBarrier { .. }
            | Inst::Fence { .. }
            | Inst::Nanosleep { .. }
            | Inst::Brkpt
            | Inst::Trap => self.control(inst),
            Inst::Mma(_)
            | Inst::LdMatrix { .. }
            | Inst::StMatrix { .. }
            | Inst::MovMatrix { .. }
            | Inst::Wgmma(_)
            | Inst::WgmmaFence
            | Inst::WgmmaCommit
            | Inst::WgmmaWait { .. } => self.matrix(inst),
            Inst::Tcgen05(t) => self.tcgen05(t),
            Inst::WmmaLoad { .. } | Inst::WmmaStore { .. } | Inst::Wmma(_) => self.wmma(inst),
            Inst::ClusterBarrier { .. }
            | Inst::Mapa { .. }
            | Inst::GetCtaRank { .. }
            | Inst::SetMaxNreg { .. }
            | Inst::GridDepControl { .. } => self.cluster(inst),
            _ if self.asynchronous(inst)? => Ok(()),
            _ => {
                let note = newer_version_note(self.module.version).map(|note| format!(" ({note})"));
                let name = text::mnemonic(inst);
                self.error(format!("the emulator does not execute `{name}`{}", note.unwrap_or_default()))
            }
        }
    }

    /// `lop3` with a predicate that says whether the result has bits.
    fn lop3_pred(
        &mut self,
        op: BoolOp,
        dst: Option<Reg>,
        pred: Reg,
        (a, b, c, lut): (&Operand, &Operand, &Operand, u8),
        q: PredUse,
    ) -> Result<()> {
        let ty = ScalarType::B32;
        let (result, zero, any) = (self.regs.temp32(), self.regs.literal32(0), self.regs.temp_pred());
        let o = R3 { a: self.w(a, ty)?, b: self.w(b, ty)?, c: self.w(c, ty)?, d: result };
        self.emit(Op::Lop3(o, lut));
        self.emit(Op::NeW(R2 { d: any, a: result, b: zero }));
        let q = self.pred_use(q)?;
        let a = self.combine(any, Some((op, q)));
        if let Some(dst) = dst {
            let d = self.dst_w(dst)?;
            self.emit(Op::MovW(R1 { d, a: result }));
        }
        // Last, because the guard may be the destination.
        let d = self.pred(pred)?;
        self.emit(Op::PredMov(R1 { d, a }));
        Ok(())
    }

    /// Any operation, lane by lane.
    pub(super) fn scalar(&mut self, inst: &Inst, dst: Reg, sources: &[(&Operand, ScalarType)]) -> Result<()> {
        let mut src = Vec::with_capacity(sources.len());
        for (operand, ty) in sources {
            src.push(self.source(operand, *ty)?);
        }
        let (mut dst_not, mut combine) = (None, None);
        if let Inst::Setp { dst_not: d, combine: c, .. } = inst {
            dst_not = d.map(|d| self.pred(d)).transpose()?;
            combine = c.map(|(op, p)| Ok((op, self.pred(p.reg)?, p.negated))).transpose()?;
        }
        if let Inst::Set { combine: Some((op, p)), .. } = inst {
            combine = Some((*op, self.pred(p.reg)?, p.negated));
        }
        let dst_bits = self.function.reg_type(dst).map_or(32, ScalarType::bits);
        let dst = self.slot(dst)?;
        self.code.scalars.push(Scalar { inst: inst.clone(), dst, dst_bits, dst_not, src, combine });
        let at = index(self.code.scalars.len() - 1);
        self.emit(Op::Scalar(at));
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of the instruction")]
    fn binary(
        &mut self,
        inst: &Inst,
        op: BinaryOp,
        ty: ScalarType,
        mods: &Modifiers,
        dst: Reg,
        a: &Operand,
        b: &Operand,
    ) -> Result<()> {
        let shift = matches!(op, BinaryOp::Shl | BinaryOp::Shr);
        if let Some(make) = binary32(op, ty, mods) {
            let b_ty = if shift { ScalarType::U32 } else { ty };
            let o = R2 { a: self.w(a, ty)?, b: self.w(b, b_ty)?, d: self.dst_w(dst)? };
            self.emit(make(o));
            return Ok(());
        }
        let shift64 = match (op, ty) {
            (BinaryOp::Shl, ScalarType::B64) => Some(Op::ShlL as Make2),
            (BinaryOp::Shr, ScalarType::B64 | ScalarType::U64) => Some(Op::ShrU64 as Make2),
            (BinaryOp::Shr, ScalarType::S64) => Some(Op::ShrS64 as Make2),
            _ => None,
        };
        if let Some(make) = shift64 {
            let o = R2 { a: self.l(a, ty)?, b: self.w(b, ScalarType::U32)?, d: self.dst_l(dst)? };
            self.emit(make(o));
            return Ok(());
        }
        if let Some(make) = binary64(op, ty, mods) {
            let o = R2 { a: self.l(a, ty)?, b: self.l(b, ty)?, d: self.dst_l(dst)? };
            self.emit(make(o));
            return Ok(());
        }
        let wide = match (op, ty) {
            (BinaryOp::MulWide, ScalarType::U32) => Some(Op::MulWideU32 as Make2),
            (BinaryOp::MulWide, ScalarType::S32) => Some(Op::MulWideS32 as Make2),
            _ => None,
        };
        if let Some(make) = wide {
            let o = R2 { a: self.w(a, ty)?, b: self.w(b, ty)?, d: self.dst_l(dst)? };
            self.emit(make(o));
            return Ok(());
        }
        let b_ty =
            if shift || matches!(op, BinaryOp::Szext | BinaryOp::SzextWrap) { ScalarType::U32 } else { ty };
        self.scalar(inst, dst, &[(a, ty), (b, b_ty)])
    }

    /// A comparison's result after its combination with a third predicate.
    pub(super) fn combine(&mut self, a: u32, third: Option<(BoolOp, u32)>) -> u32 {
        let Some((op, b)) = third else { return a };
        let d = self.regs.temp_pred();
        self.emit(pred_op(op)(R2 { d, a, b }));
        d
    }
}

/// The integer type of twice the width.
fn widened(ty: ScalarType) -> ScalarType {
    match ty {
        ScalarType::U16 => ScalarType::U32,
        ScalarType::S16 => ScalarType::S32,
        ScalarType::S32 => ScalarType::S64,
        _ => ScalarType::U64,
    }
}

pub(super) fn pred_op(op: BoolOp) -> Make2 {
    match op {
        BoolOp::And => Op::PredAnd,
        BoolOp::Or => Op::PredOr,
        BoolOp::Xor => Op::PredXor,
    }
}
