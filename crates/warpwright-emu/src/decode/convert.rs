//! Conversions.

use warpwright_ptx::{Inst, Modifiers, Operand, Reg, Rounding, ScalarType};

use super::{Decoder, Result};
use crate::code::layout::Slot;
use crate::code::op::{Make1, Make2, Op};
use crate::code::rows::{R1, R2};

impl Decoder<'_> {
    #[allow(clippy::too_many_arguments, reason = "the fields of the instruction")]
    pub(super) fn cvt(
        &mut self,
        inst: &Inst,
        to: ScalarType,
        from: ScalarType,
        mods: &Modifiers,
        dst: Reg,
        a: &Operand,
        b: Option<&Operand>,
    ) -> Result<()> {
        use ScalarType::*;
        let only_rounding = *mods == Modifiers { rounding: mods.rounding, ..Modifiers::NONE };
        let dst_slot = self.slot(dst)?;
        if let Some(b) = b {
            let make = match (to, from, mods.rounding) {
                (F16x2, F32, Some(Rounding::Rn)) if only_rounding => Op::F16x2FromF32 as Make2,
                (BF16x2, F32, Some(Rounding::Rn)) if only_rounding => Op::Bf16x2FromF32,
                _ => return self.scalar(inst, dst, &[(a, from), (b, from)]),
            };
            let o = R2 { a: self.w(a, from)?, b: self.w(b, from)?, d: self.dst_w(dst)? };
            self.emit(make(o));
            return Ok(());
        }
        if !only_rounding {
            return self.scalar(inst, dst, &[(a, from)]);
        }
        let integer = |ty: ScalarType| !ty.is_float();
        let signed = |ty: ScalarType| matches!(ty, S8 | S16 | S32 | S64);
        // Integers: the source is extended by its own type, then cut or extended by the destination's.
        if integer(to) && integer(from) {
            let bits = to.bits().min(from.bits());
            let sign = if to.bits() > from.bits() { signed(from) } else { signed(to) };
            return self.convert_integer(inst, dst, dst_slot, a, (to, from), bits, sign);
        }
        let make = match (to, from, mods.rounding) {
            (F32, S32, Some(Rounding::Rn)) => Op::F32FromS32 as Make1,
            (F32, U32, Some(Rounding::Rn)) => Op::F32FromU32,
            (S32, F32, Some(Rounding::Rni)) => Op::S32FromF32Rni,
            (S32, F32, Some(Rounding::Rzi)) => Op::S32FromF32Rzi,
            (S32, F32, Some(Rounding::Rmi)) => Op::S32FromF32Rmi,
            (S32, F32, Some(Rounding::Rpi)) => Op::S32FromF32Rpi,
            (U32, F32, Some(Rounding::Rni)) => Op::U32FromF32Rni,
            (U32, F32, Some(Rounding::Rzi)) => Op::U32FromF32Rzi,
            (F32, F32, Some(Rounding::Rni)) => Op::RniF32,
            (F32, F32, Some(Rounding::Rzi)) => Op::RziF32,
            (F32, F32, Some(Rounding::Rmi)) => Op::RmiF32,
            (F32, F32, Some(Rounding::Rpi)) => Op::RpiF32,
            (F32, F16, None) => Op::F32FromF16,
            (F32, BF16, None) => Op::F32FromBf16,
            (F16, F32, Some(Rounding::Rn)) => Op::F16FromF32,
            (BF16, F32, Some(Rounding::Rn)) => Op::Bf16FromF32,
            (F64, F32, None) => Op::F64FromF32,
            (F64, S32, _) => Op::F64FromS32,
            (F64, U32, _) => Op::F64FromU32,
            (F32, F64, Some(Rounding::Rn)) => Op::F32FromF64,
            (F64, U64, Some(Rounding::Rn)) => Op::F64FromU64,
            (F64, S64, Some(Rounding::Rn)) => Op::F64FromS64,
            (U32, F64, Some(Rounding::Rzi)) => Op::U32FromF64Rzi,
            (S32, F64, Some(Rounding::Rzi)) => Op::S32FromF64Rzi,
            (S32, F64, Some(Rounding::Rni)) => Op::S32FromF64Rni,
            (F64, F64, Some(Rounding::Rni)) => Op::RniF64,
            (F64, F64, Some(Rounding::Rzi)) => Op::RziF64,
            (F64, F64, Some(Rounding::Rmi)) => Op::RmiF64,
            (F64, F64, Some(Rounding::Rpi)) => Op::RpiF64,
            _ => return self.scalar(inst, dst, &[(a, from)]),
        };
        let from_row = if from.bits() == 64 { self.l(a, from)? } else { self.w(a, from)? };
        match (to.bits() == 64, dst_slot) {
            (true, Slot::L(d)) | (false, Slot::W(d)) => {
                self.emit(make(R1 { d, a: from_row }));
                Ok(())
            }
            // A destination that is wider than the type: the general path extends.
            _ => self.scalar(inst, dst, &[(a, from)]),
        }
    }

    /// Keeps the low `bits` of an integer and extends them to the destination register.
    #[allow(clippy::too_many_arguments, reason = "the fields of the instruction")]
    fn convert_integer(
        &mut self,
        inst: &Inst,
        dst: Reg,
        dst_slot: Slot,
        a: &Operand,
        (to, from): (ScalarType, ScalarType),
        bits: u32,
        sign: bool,
    ) -> Result<()> {
        let source = self.source(a, from)?;
        // Sign extension stops at the width of the destination type, unless that is signed too.
        let to_signed = matches!(to, ScalarType::S8 | ScalarType::S16 | ScalarType::S32 | ScalarType::S64);
        let register_bits = match dst_slot {
            Slot::L(_) => 64,
            _ => self.function.reg_type(dst).map_or(32, ScalarType::bits),
        };
        let simple = !sign || register_bits == to.bits() || to_signed;
        let op = match (dst_slot, source, bits, sign) {
            _ if !simple => None,
            (Slot::L(d), Slot::L(a), 64, _) => Some(Op::MovL(R1 { d, a })),
            (Slot::L(d), Slot::W(a), 32, false) => Some(Op::ZextL(R1 { d, a })),
            (Slot::L(d), Slot::W(a), 32, true) => Some(Op::SextL(R1 { d, a })),
            (Slot::L(d), Slot::W(a), 16, true) => Some(Op::Sext16L(R1 { d, a })),
            (Slot::L(d), Slot::W(a), 16, false) => Some(Op::ZextL(R1 { d, a })),
            (Slot::W(d), Slot::L(a), 32, _) if register_bits == 32 => Some(Op::TruncL(R1 { d, a })),
            (Slot::W(d), Slot::L(a), 16, false) => Some(Op::Trunc16L(R1 { d, a })),
            (Slot::W(d), Slot::W(a), 32, _) if register_bits == 32 => Some(Op::MovW(R1 { d, a })),
            (Slot::W(d), Slot::W(a), 16, false) => Some(Op::Zext16(R1 { d, a })),
            (Slot::W(d), Slot::W(a), 16, true) if register_bits == 32 => Some(Op::Sext16(R1 { d, a })),
            (Slot::W(d), Slot::W(a), 16, true) if register_bits == 16 => Some(Op::Zext16(R1 { d, a })),
            (Slot::W(d), Slot::W(a), 8, false) => Some(Op::Zext8(R1 { d, a })),
            (Slot::W(d), Slot::W(a), 8, true) if register_bits == 32 => Some(Op::Sext8(R1 { d, a })),
            (Slot::W(d), Slot::W(a), 8, true) if register_bits == 16 => Some(Op::Sext8To16(R1 { d, a })),
            _ => None,
        };
        match op {
            Some(op) => {
                self.emit(op);
                Ok(())
            }
            None => self.scalar(inst, dst, &[(a, from)]),
        }
    }
}
