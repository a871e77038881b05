//! Loads, stores, atomics and address conversions.

use warpwright_ptx::{
    Address, AddressBase, Inst, Operand, Ordering, Reg, ScalarType, StateSpace, Symbol, SymbolId,
};

use super::{Decoder, Result, index};
use crate::code::layout::{LaunchValue, Slot};
use crate::code::memory::{Access, Atomic, Stack};
use crate::code::op::Op;
use crate::code::rows::{R1, R2};
use crate::space::{CONST_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};

impl Decoder<'_> {
    fn atomic(&mut self, atomic: Atomic) {
        self.code.atomics.push(atomic);
        let at = index(self.code.atomics.len() - 1);
        self.emit(Op::Atomic(at));
    }

    pub(super) fn memory(&mut self, inst: &Inst) -> Result<()> {
        match inst {
            Inst::Ldu { space, ty, dsts, addr } => self.load(*space, *ty, Ordering::WEAK, dsts, addr)?,
            Inst::Ld { space, ty, ordering, dsts, addr, .. } => {
                if *space == StateSpace::Param
                    && let AddressBase::Symbol(symbol) = addr.base
                    && let Some(Symbol::Param(p)) = self.function.symbols.get(symbol.0 as usize).copied()
                    && self.in_kernel()
                {
                    return self.load_param(p as usize, addr.offset, *ty, dsts);
                }
                self.load(*space, *ty, *ordering, dsts, addr)?;
            }
            Inst::St { space, ty, ordering, srcs, addr, .. } => {
                let mut regs = Vec::with_capacity(srcs.len());
                for src in srcs {
                    regs.push(Some(self.source(src, *ty)?));
                }
                let access = self.access(*space, *ty, *ordering, regs, addr)?;
                self.code.stores.push(access);
                let at = index(self.code.stores.len() - 1);
                self.emit(Op::Store(at));
            }
            Inst::Atom { op, space, ty, ordering, dst, addr, b, c, .. } => {
                let (row, offset) = self.address(addr)?;
                let b = self.source(b, *ty)?;
                let c = c.as_ref().map(|c| self.source(c, *ty)).transpose()?;
                let dst = dst.map(|d| self.slot(d)).transpose()?;
                let (op, space, ty, ordering) = (*op, *space, *ty, *ordering);
                let (addr, more, site) = (row, Vec::new(), self.site());
                self.atomic(Atomic { op, space, ty, ordering, dst, addr, offset, b, c, more, site });
            }
            Inst::AtomVector { op, space, ty, ordering, dsts, addr, srcs, .. } => {
                let (row, offset) = self.address(addr)?;
                let mut more = Vec::with_capacity(srcs.len());
                for (i, src) in srcs.iter().enumerate() {
                    let dst = dsts.as_ref().and_then(|d| d.get(i).copied().flatten());
                    more.push((dst.map(|d| self.slot(d)).transpose()?, self.source(src, *ty)?));
                }
                if more.is_empty() {
                    return self.error("a vector without elements");
                }
                let (dst, b) = more.remove(0);
                let (op, space, ty, ordering) = (*op, *space, *ty, *ordering);
                let (addr, c, site) = (row, None, self.site());
                self.atomic(Atomic { op, space, ty, ordering, dst, addr, offset, b, c, more, site });
            }
            Inst::Discard { space, addr } | Inst::ApplyPriority { space, addr } => {
                let mut access = self.access(*space, ScalarType::B128, Ordering::WEAK, Vec::new(), addr)?;
                // A line of 128 bytes without registers.
                access.regs = vec![None; 16];
                self.code.lines.push(access);
                let at = index(self.code.lines.len() - 1);
                self.emit(Op::Line(at));
            }
            Inst::Alloca { dst, bytes, align, .. } => {
                let (dst, bytes) = (self.slot(*dst)?, self.source(bytes, ScalarType::U64)?);
                self.stack(Stack::Alloca { dst, bytes, align: align.unwrap_or(8) });
            }
            Inst::StackSave { dst, .. } => {
                let dst = self.slot(*dst)?;
                self.stack(Stack::Save { dst });
            }
            Inst::StackRestore { src, .. } => {
                let src = self.slot(*src)?;
                self.stack(Stack::Restore { src });
            }
            _ => return self.error("not a memory instruction"),
        }
        Ok(())
    }

    fn load(
        &mut self,
        space: StateSpace,
        ty: ScalarType,
        ordering: Ordering,
        dsts: &[Option<Reg>],
        addr: &Address,
    ) -> Result<()> {
        let mut regs = Vec::with_capacity(dsts.len());
        for dst in dsts {
            regs.push(dst.map(|d| self.slot(d)).transpose()?);
        }
        let mut access = self.access(space, ty, ordering, regs, addr)?;
        let narrowest =
            dsts.iter().flatten().filter_map(|d| self.function.reg_type(*d)).map(ScalarType::bits).min();
        access.keep = match narrowest {
            Some(bits @ 1..32) => (1 << bits) - 1,
            _ => u32::MAX,
        };
        self.code.loads.push(access);
        let at = index(self.code.loads.len() - 1);
        self.emit(Op::Load(at));
        Ok(())
    }

    fn stack(&mut self, stack: Stack) {
        self.code.stack.push(stack);
        let at = index(self.code.stack.len() - 1);
        self.emit(Op::Stack(at));
    }

    fn access(
        &mut self,
        space: StateSpace,
        ty: ScalarType,
        ordering: Ordering,
        regs: Vec<Option<Slot>>,
        addr: &Address,
    ) -> Result<Access> {
        let (row, offset) = self.address(addr)?;
        let space = self.frame_space(space, addr);
        // 128-bit elements are pairs of 64 bits.
        let (bytes, regs) = if ty.bits() == 128 {
            let halves = regs.into_iter().flat_map(|r| match r {
                Some(Slot::Q(row)) => [Some(Slot::L(row)), Some(Slot::L(row + 1))],
                other => [other, None],
            });
            (8, halves.collect())
        } else {
            (ty.bytes(), regs)
        };
        let sign = matches!(ty, ScalarType::S8 | ScalarType::S16 | ScalarType::S32);
        let site = self.site();
        Ok(Access {
            space,
            bytes,
            sign,
            regs,
            keep: u32::MAX,
            addr: row,
            offset,
            ordering,
            site,
            tracked: None,
        })
    }

    /// Parameters of functions and calls are in local memory.
    fn frame_space(&self, space: StateSpace, addr: &Address) -> StateSpace {
        let framed = match addr.base {
            AddressBase::Symbol(symbol) => self.symbol(symbol).is_ok_and(|s| self.frame_place(s).is_some()),
            AddressBase::Reg(_) | AddressBase::Absolute => !self.in_kernel(),
        };
        if space == StateSpace::Param && framed { StateSpace::Local } else { space }
    }

    fn symbol(&self, symbol: SymbolId) -> Result<Symbol> {
        match self.function.symbols.get(symbol.0 as usize) {
            Some(symbol) => Ok(*symbol),
            None => self.error("unknown symbol"),
        }
    }

    fn site(&mut self) -> u32 {
        self.code.sites += 1;
        self.code.sites - 1
    }

    pub(super) fn address(&mut self, addr: &Address) -> Result<(Slot, i64)> {
        Ok(match addr.base {
            AddressBase::Reg(r) => (self.slot(r)?, addr.offset),
            AddressBase::Symbol(symbol) => {
                let framed = if self.in_kernel() { None } else { self.frame_place(self.symbol(symbol)?) };
                match framed {
                    Some((at, _)) => (Slot::L(self.frame_row), addr.offset.wrapping_add(at as i64)),
                    None => (self.symbol_address(symbol, addr.offset, true)?, 0),
                }
            }
            AddressBase::Absolute => (Slot::L(self.regs.literal64(addr.offset as u64)), 0),
        })
    }

    /// The row of a parameter of up to 64 bits that fills a register of 32 or 64 bits.
    pub(super) fn param_row(&mut self, dst: Reg, addr: &Address, ty: ScalarType) -> Result<Slot> {
        let symbol = match addr.base {
            AddressBase::Symbol(symbol) => self.function.symbols.get(symbol.0 as usize).copied(),
            AddressBase::Reg(_) | AddressBase::Absolute => None,
        };
        let Some(Symbol::Param(p)) = symbol else { return self.error("not a parameter") };
        let base = self.params.get(p as usize).copied().unwrap_or(0).wrapping_add(addr.offset as u64);
        let sign = matches!(ty, ScalarType::S8 | ScalarType::S16 | ScalarType::S32);
        let wide = matches!(self.slot(dst)?, Slot::L(_));
        let bytes = if wide { ty.bytes() } else { ty.bytes().min(4) };
        Ok(self.regs.launch(LaunchValue::Param { offset: base, bytes, sign }, wide))
    }

    /// A parameter at a fixed place is a constant of the launch.
    fn load_param(&mut self, param: usize, offset: i64, ty: ScalarType, dsts: &[Option<Reg>]) -> Result<()> {
        let base = self.params.get(param).copied().unwrap_or(0).wrapping_add(offset as u64);
        let sign = matches!(ty, ScalarType::S8 | ScalarType::S16 | ScalarType::S32);
        for (i, dst) in dsts.iter().enumerate() {
            let Some(dst) = dst else { continue };
            let offset = base.wrapping_add(i as u64 * u64::from(ty.bytes()));
            match self.slot(*dst)? {
                Slot::W(d) => {
                    let value = LaunchValue::Param { offset, bytes: ty.bytes().min(4), sign };
                    if let Slot::W(a) = self.regs.launch(value, false) {
                        // A narrow register holds no more than its own bits.
                        let narrow = self.function.reg_type(*dst).is_some_and(|t| t.bits() == 16);
                        self.emit(if narrow { Op::Zext16(R1 { d, a }) } else { Op::MovW(R1 { d, a }) });
                    }
                }
                Slot::L(d) => {
                    let value = LaunchValue::Param { offset, bytes: ty.bytes(), sign };
                    if let Slot::L(a) = self.regs.launch(value, true) {
                        self.emit(Op::MovL(R1 { d, a }));
                    }
                }
                Slot::Q(d) => {
                    for half in 0..2u32 {
                        let offset = offset + 8 * u64::from(half);
                        let value = LaunchValue::Param { offset, bytes: 8, sign: false };
                        if let Slot::L(a) = self.regs.launch(value, true) {
                            self.emit(Op::MovL(R1 { d: d + half, a }));
                        }
                    }
                }
                Slot::P(_) => return self.error("a predicate cannot be loaded"),
            }
        }
        Ok(())
    }

    /// Generic addresses are offsets in a space plus the base of its window.
    pub(super) fn cvta(&mut self, to_space: bool, space: StateSpace, dst: Reg, src: &Operand) -> Result<()> {
        let (a, d) = (self.l(src, ScalarType::U64)?, self.dst_l(dst)?);
        let window = match space {
            StateSpace::Shared | StateSpace::SharedCluster => SHARED_WINDOW,
            StateSpace::Local => LOCAL_WINDOW,
            StateSpace::Const => CONST_WINDOW,
            StateSpace::Param if self.in_kernel() => PARAM_WINDOW,
            StateSpace::Param => LOCAL_WINDOW,
            StateSpace::Global | StateSpace::Generic => {
                self.emit(Op::MovL(R1 { d, a }));
                return Ok(());
            }
        };
        let b = self.regs.literal64(window);
        self.emit(if to_space { Op::SubI64(R2 { d, a, b }) } else { Op::AddI64(R2 { d, a, b }) });
        Ok(())
    }
}
