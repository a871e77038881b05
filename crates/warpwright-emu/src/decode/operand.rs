//! Operands: the rows that sources are read from and destinations are written to.

use warpwright_ptx::{
    Operand, PlainSpecial, PredUse, Reg, ScalarType, SpecialReg, StateSpace, Symbol, SymbolId,
};

use super::registers::literal_bits;
use super::{Decoder, Result, index};
use crate::code::function::function_address;
use crate::code::layout::{LaunchValue, Slot, SpecialTime, special_is_wide, special_time};
use crate::code::op::Op;
use crate::code::rows::{R1, R2};

impl Decoder<'_> {
    pub(super) fn slot(&self, r: Reg) -> Result<Slot> {
        match self.regs.slot(r) {
            Some(slot) => Ok(slot),
            None => self.error(format!("register {} is not declared", r.0)),
        }
    }

    pub(super) fn pred(&self, r: Reg) -> Result<u32> {
        match self.slot(r)? {
            Slot::P(p) => Ok(p),
            _ => self.error("a predicate register is wanted here"),
        }
    }

    /// A predicate as the instruction reads it: possibly negated into a temporary.
    pub(super) fn pred_use(&mut self, p: PredUse) -> Result<u32> {
        let a = self.pred(p.reg)?;
        if !p.negated {
            return Ok(a);
        }
        let d = self.regs.temp_pred();
        self.emit_part(Op::PredNot(R1 { d, a }));
        Ok(d)
    }

    /// The row of a source of up to 32 bits.
    pub(super) fn w(&mut self, operand: &Operand, ty: ScalarType) -> Result<u32> {
        Ok(match self.source(operand, ty)? {
            Slot::W(row) => row,
            Slot::L(a) | Slot::Q(a) => {
                let d = self.regs.temp32();
                self.emit_part(Op::TruncL(R1 { d, a }));
                d
            }
            Slot::P(_) => return self.error("a predicate cannot be used as a value"),
        })
    }

    /// The row of a 64-bit source.
    pub(super) fn l(&mut self, operand: &Operand, ty: ScalarType) -> Result<u32> {
        Ok(match self.source(operand, ty)? {
            Slot::L(row) | Slot::Q(row) => row,
            Slot::W(a) => {
                let d = self.regs.temp64();
                self.emit_part(Op::ZextL(R1 { d, a }));
                d
            }
            Slot::P(_) => return self.error("a predicate cannot be used as a value"),
        })
    }

    /// Where a source lives, whatever its width; literals take the width of `ty`.
    pub(super) fn source(&mut self, operand: &Operand, ty: ScalarType) -> Result<Slot> {
        Ok(match operand {
            Operand::Reg(r) => self.slot(*r)?,
            Operand::Imm(imm) => {
                let bits = literal_bits(*imm, ty);
                if ty.bits() == 64 {
                    Slot::L(self.regs.literal64(bits))
                } else {
                    Slot::W(self.regs.literal32(bits as u32))
                }
            }
            Operand::Special(special) => self.special(*special),
            Operand::Symbol(symbol, offset) => self.symbol_address(*symbol, *offset, ty.bits() == 64)?,
        })
    }

    pub(super) fn special(&mut self, special: SpecialReg) -> Slot {
        if special_time(special) != SpecialTime::Read {
            return self.regs.special(special);
        }
        let wide = special_is_wide(special) || special == SpecialReg::Plain(PlainSpecial::Clock64);
        let slot = if wide { Slot::L(self.regs.temp64()) } else { Slot::W(self.regs.temp32()) };
        self.code.specials.push((slot, special));
        let at = index(self.code.specials.len() - 1);
        self.emit_part(Op::Special(at));
        slot
    }

    /// The address of a symbol in its own space, as a constant row.
    pub(super) fn symbol_address(&mut self, symbol: SymbolId, offset: i64, wide: bool) -> Result<Slot> {
        let Some(what) = self.function.symbols.get(symbol.0 as usize).copied() else {
            return self.error("unknown symbol");
        };
        let framed = self.frame_place(what);
        if let (Some((at, _)), false) = (framed, self.in_kernel()) {
            let (a, b) = (self.frame_row, self.regs.literal64(at.wrapping_add(offset as u64)));
            let d = self.regs.temp64();
            self.emit_part(Op::AddI64(R2 { d, a, b }));
            if wide {
                return Ok(Slot::L(d));
            }
            let low = self.regs.temp32();
            self.emit_part(Op::TruncL(R1 { d: low, a: d }));
            return Ok(Slot::W(low));
        }
        let base = match what {
            Symbol::Param(p) => self.params.get(p as usize).copied(),
            Symbol::Return(_) => framed.map(|f| f.0),
            Symbol::Function(f) => {
                let alias = self.module.aliases.iter().find(|a| a.function == f);
                Some(function_address(alias.map_or(f, |a| a.of)))
            }
            Symbol::LocalVariable(v) => {
                let variable = self.function.variables.get(v as usize);
                if variable.is_some_and(|x| x.len.is_none()) {
                    Some(self.code.dynamic_base)
                } else {
                    let own = self.shared.get(self.current as usize).and_then(|s| s.get(v as usize));
                    own.copied().flatten().or(framed.map(|f| f.0))
                }
            }
            Symbol::ModuleVariable(v) => {
                let Some(variable) = self.module.variables.get(v as usize) else {
                    return self.error("unknown variable");
                };
                match variable.space {
                    StateSpace::Global => {
                        return Ok(self.regs.launch(LaunchValue::Global { index: v, offset }, wide));
                    }
                    StateSpace::Const => self.consts.get(v as usize).copied(),
                    _ if variable.len.is_none() => Some(self.code.dynamic_base),
                    _ => self.module_shared.get(v as usize).copied().flatten(),
                }
            }
        };
        let Some(base) = base else {
            return self.error("the symbol has no address that a kernel can take");
        };
        let address = base.wrapping_add(offset as u64);
        Ok(if wide {
            Slot::L(self.regs.literal64(address))
        } else {
            Slot::W(self.regs.literal32(address as u32))
        })
    }

    /// The row of the destination of an operation of up to 32 bits.
    pub(super) fn dst_w(&mut self, r: Reg) -> Result<u32> {
        match self.slot(r)? {
            Slot::W(row) => Ok(row),
            _ => self.error("the destination has the wrong width"),
        }
    }

    pub(super) fn dst_l(&mut self, r: Reg) -> Result<u32> {
        match self.slot(r)? {
            Slot::L(row) => Ok(row),
            _ => self.error("the destination has the wrong width"),
        }
    }
}
