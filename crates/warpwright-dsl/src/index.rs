//! Element indices that turn into cheap addresses.
//!
//! An [`Index`] of a skeleton is `block * block_stride + thread * thread_stride + offset` with strides known while
//! recording. A pointer at such an index costs two wide multiply-adds, the first of which is the same for the whole
//! block; constants become immediate offsets. Everything is 64-bit.

use warpwright_ptx::{BinaryOp, Modifiers, Operand, ScalarType};

use crate::context::K;
use crate::error::IssueKind;
use crate::reg::{Reg, Source, U32, U64};

/// A 64-bit element index with known structure.
#[derive(Clone, Copy, Debug)]
pub struct Index<'k> {
    k: K<'k>,
    /// A part without known structure.
    base: Option<U64<'k>>,
    block: Option<(U32<'k>, u32)>,
    thread: Option<(U32<'k>, u32)>,
    offset: u64,
}

impl<'k> Index<'k> {
    /// The constant `offset`.
    pub fn constant(k: K<'k>, offset: u64) -> Self {
        Self { k, base: None, block: None, thread: None, offset }
    }

    /// `block * block_stride + thread * thread_stride`. Put the part that is the same for the whole block first.
    pub fn affine(
        k: K<'k>,
        (block, block_stride): (U32<'k>, u32),
        (thread, thread_stride): (U32<'k>, u32),
    ) -> Self {
        let (block, thread) = (Some((block, block_stride)), Some((thread, thread_stride)));
        Self { block, thread, ..Self::constant(k, 0) }
    }

    /// The index plus a constant, which costs nothing.
    pub fn plus(self, offset: u64) -> Self {
        Self { offset: self.offset.wrapping_add(offset), ..self }
    }

    /// The index plus a register. Free for one register per index, one addition for each further one.
    #[track_caller]
    pub fn plus_reg(self, add: U64<'k>) -> Self {
        Self { base: Some(self.base.map_or(add, |base| base + add)), ..self }
    }

    /// The index divided by a constant that divides it without remainder (an issue if the strides show otherwise), such
    /// as the index of a byte that holds two elements.
    #[track_caller]
    pub fn div_exact(self, divisor: u32) -> Self {
        let d = u64::from(divisor);
        let strides = [self.block, self.thread].into_iter().flatten();
        let exact = divisor != 0
            && self.offset.is_multiple_of(d)
            && strides.into_iter().all(|(_, s)| s.is_multiple_of(divisor));
        if !exact {
            self.k.issue(IssueKind::InexactIndex { divisor: d });
            return self;
        }
        Self {
            base: self.base.map(|base| base / d),
            block: self.block.map(|(r, s)| (r, s / divisor)),
            thread: self.thread.map(|(r, s)| (r, s / divisor)),
            offset: self.offset / d,
            ..self
        }
    }

    /// The index in a register.
    #[track_caller]
    pub fn to_u64(self) -> U64<'k> {
        let (reg, offset) = self.scaled(None, 1);
        match (reg, offset) {
            (None, offset) => self.k.lit(offset.cast_unsigned()),
            (Some(reg), 0) => reg,
            (Some(reg), offset) => reg + offset.cast_unsigned(),
        }
    }

    /// `start + index * scale` without its constant part, and the constant part.
    #[track_caller]
    pub(crate) fn scaled(self, start: Option<U64<'k>>, scale: u32) -> (Option<U64<'k>>, i64) {
        let mut sum = start;
        if let Some(base) = self.base {
            sum = Some(add_scaled(sum, base, scale));
        }
        for (reg, stride) in [self.block, self.thread].into_iter().flatten() {
            sum = Some(match stride.checked_mul(scale) {
                Some(factor) => match sum {
                    Some(sum) => reg.mad_wide(factor, sum),
                    None => reg.mul_wide(factor),
                },
                None => add_scaled(sum, reg.mul_wide(stride), scale),
            });
        }
        (sum, self.offset.wrapping_mul(u64::from(scale)).cast_signed())
    }
}

/// `start + index * scale`, with a shift where the scale is a power of two.
#[track_caller]
fn add_scaled<'k>(start: Option<U64<'k>>, index: U64<'k>, scale: u32) -> U64<'k> {
    let scaled = match scale {
        1 => index,
        s if s.is_power_of_two() => index << s.trailing_zeros(),
        s => index * u64::from(s),
    };
    match start {
        Some(start) => {
            let (a, b) = (start.operand(), scaled.operand());
            start.k().binary(BinaryOp::Add, ScalarType::S64, Modifiers::NONE, a, b)
        }
        None => scaled,
    }
}

/// An index of a pointer: [`Index`], `U64`, `U32`, or a `u64` constant.
pub trait IntoIndex<'k> {
    /// The index.
    fn into_index(self, k: K<'k>) -> Index<'k>;
}

impl<'k> IntoIndex<'k> for Index<'k> {
    fn into_index(self, _: K<'k>) -> Index<'k> {
        self
    }
}

impl<'k> IntoIndex<'k> for U64<'k> {
    fn into_index(self, k: K<'k>) -> Index<'k> {
        Index { base: Some(self), ..Index::constant(k, 0) }
    }
}

impl<'k> IntoIndex<'k> for U32<'k> {
    fn into_index(self, k: K<'k>) -> Index<'k> {
        Index { thread: Some((self, 1)), ..Index::constant(k, 0) }
    }
}

impl<'k> IntoIndex<'k> for u64 {
    fn into_index(self, k: K<'k>) -> Index<'k> {
        Index::constant(k, self)
    }
}

impl<'k> From<Index<'k>> for U64<'k> {
    #[track_caller]
    fn from(index: Index<'k>) -> Self {
        index.to_u64()
    }
}

/// The index in shared memory, whose addresses have 32 bits.
#[track_caller]
pub(crate) fn shared_address<'k>(start: U32<'k>, index: Index<'k>, scale: u32) -> (U32<'k>, i64) {
    let mut sum = start;
    let mut add = |reg: U32<'k>, factor: u32| {
        sum = if factor.is_power_of_two() {
            let shifted = if factor == 1 { reg } else { reg << factor.trailing_zeros() };
            shifted + sum
        } else {
            reg.mul_add(factor, sum)
        };
    };
    if let Some(base) = index.base {
        add(base.to_u32(), scale);
    }
    for (reg, stride) in [index.block, index.thread].into_iter().flatten() {
        add(reg, stride.wrapping_mul(scale));
    }
    (sum, index.offset.wrapping_mul(u64::from(scale)).cast_signed())
}

/// An immediate address offset that every assembler takes.
pub(crate) fn fits_immediate(offset: i64) -> bool {
    // 24 bits signed is what the hardware encodes; ptxas accepts 32 and splits.
    i32::try_from(offset).is_ok()
}

/// `reg + offset` as a register where the offset does not fit an address.
#[track_caller]
pub(crate) fn absorb<'k>(reg: U64<'k>, offset: i64) -> (Reg<'k, u64>, i64) {
    if fits_immediate(offset) {
        return (reg, offset);
    }
    let sum =
        reg.k().binary(BinaryOp::Add, ScalarType::S64, Modifiers::NONE, reg.operand(), Operand::int(offset));
    (sum, 0)
}
