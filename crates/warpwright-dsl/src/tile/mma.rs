//! Matrix products of a warp on tensor cores: operands and accumulators as fragments whose elements have known places.
//!
//! A warp multiplies an `m x k` A by a `k x n` B. Where the elements lie is fixed by the instruction; with
//! `group = lane / 4` and `quad = lane % 4`, and two elements of a 16-bit operand to a register:
//!
//! | atom | A, register by register (row, k) | B (k, column) | accumulator (row, column) |
//! |---|---|---|---|
//! | `F16`, `BF16` 16x8x16 | (group, 2 quad), (group + 8, 2 quad), (group, 2 quad + 8), (group + 8, 2 quad + 8) | (2 quad, group), (2 quad + 8, group) | (group, 2 quad), (group, 2 quad + 1), (group + 8, 2 quad), (group + 8, 2 quad + 1) |
//! | `Tf32` 16x8x8 | (group, quad), (group + 8, quad), (group, quad + 4), (group + 8, quad + 4) | (quad, group), (quad + 4, group) | the same |
//! | `F64` 8x8x4 | (group, quad) | (quad, group) | (group, 2 quad), (group, 2 quad + 1) |
//! | `F64Deep` 16x8x8 | (group, quad), (group + 8, quad), (group, quad + 4), (group + 8, quad + 4) | (quad, group), (quad + 4, group) | as `F16` |
//!
//! Source: PTX ISA, "Matrix Fragments for mma".

use std::marker::PhantomData;

use warpwright_ptx::{DType, Inst, MatrixLayout, MatrixType, Mma, MmaShape, Operand, Rounding, Target};

use crate::context::K;
use crate::error::IssueKind;
use crate::float::Float;
use crate::flow::{Carry, RawReg, RawRegs};
use crate::lanes::Lanes;
use crate::reg::{F32, Reg, Scalar, U32};
use crate::storage::{pack, widen};

/// Products of 16-bit floats exist from here, 8 deep, for `f16`.
const HALF_PRODUCT_SM: u32 = 75;
/// Those 16 deep, of `bf16`, `tf32` and `f64` from here.
const FULL_PRODUCT_SM: u32 = 80;
/// Those of `f64` that are more than 4 deep from here.
const DEEP_DOUBLE_SM: u32 = 90;

/// Bits of `f32` that products of `tf32` ignore.
pub(super) const TF32_IGNORED: u32 = (1 << 13) - 1;

/// One product of a warp: element types and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MmaAtom {
    /// 16 x 8 x 16 of `f16` into `f32`; before sm_80 it is two instructions.
    F16,
    /// 16 x 8 x 16 of `bf16` into `f32`.
    BF16,
    /// 16 x 8 x 8 of `f32` whose lower 13 bits are ignored, into `f32`.
    Tf32,
    /// 8 x 8 x 4 of `f64`.
    F64,
    /// 16 x 8 x 8 of `f64`.
    F64Deep,
}

impl MmaAtom {
    /// The atom for operands of `dtype`; `f32` is multiplied as `tf32`.
    pub const fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::BF16),
            DType::F32 => Some(Self::Tf32),
            DType::F64 => Some(Self::F64),
            _ => None,
        }
    }

    /// The same on `target`, of two the one that is faster there.
    pub const fn on(dtype: DType, target: Target) -> Option<Self> {
        match Self::of(dtype) {
            Some(Self::F64) if Self::F64Deep.exists(target) => Some(Self::F64Deep),
            atom => atom,
        }
    }

    /// The type of the operands in memory.
    pub const fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
            Self::Tf32 => DType::F32,
            Self::F64 | Self::F64Deep => DType::F64,
        }
    }

    /// Whether `target` has it.
    pub const fn exists(self, target: Target) -> bool {
        let from = match self {
            Self::F16 => HALF_PRODUCT_SM,
            Self::F64Deep => DEEP_DOUBLE_SM,
            _ => FULL_PRODUCT_SM,
        };
        target.sm >= from
    }

    /// Rows of A.
    pub const fn m(self) -> u32 {
        if matches!(self, Self::F64) { 8 } else { 16 }
    }

    /// Columns of B.
    pub const fn n(self) -> u32 {
        8
    }

    /// Columns of A, rows of B.
    pub const fn k(self) -> u32 {
        match self {
            Self::F16 | Self::BF16 => 16,
            Self::Tf32 | Self::F64Deep => 8,
            Self::F64 => 4,
        }
    }

    const fn a_registers(self) -> usize {
        if matches!(self, Self::F64) { 1 } else { 4 }
    }

    const fn b_registers(self) -> usize {
        if matches!(self, Self::F64) { 1 } else { 2 }
    }

    /// Elements of an accumulator that a lane holds.
    pub const fn accumulator_registers(self) -> usize {
        if matches!(self, Self::F64) { 2 } else { 4 }
    }

    const fn matrix_type(self) -> MatrixType {
        match self {
            Self::F16 => MatrixType::F16,
            Self::BF16 => MatrixType::BF16,
            Self::Tf32 => MatrixType::TF32,
            Self::F64 | Self::F64Deep => MatrixType::F64,
        }
    }
}

/// The left operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixA {}
/// The right operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixB {}

/// A lane's part of an operand; `Role` is [`MatrixA`] or [`MatrixB`]. A [`TileReader`](crate::TileReader) loads it.
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct Fragment<'k, Role> {
    k: K<'k>,
    atom: MmaAtom,
    regs: Vec<RawReg>,
    role: PhantomData<fn() -> Role>,
}

impl<Role> Clone for Fragment<'_, Role> {
    fn clone(&self) -> Self {
        Self { regs: self.regs.clone(), ..*self }
    }
}

impl<Role> std::fmt::Debug for Fragment<'_, Role> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}", self.atom, self.regs)
    }
}

impl<Role> Carry<'_> for Fragment<'_, Role> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        regs.extend(&self.regs);
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        let regs = self.regs.iter().map(|r| RawReg { id: regs.next_or(r.id), ty: r.ty }).collect();
        Self { regs, ..*self }
    }
}

impl<'k, Role> Fragment<'k, Role> {
    fn new<T: Scalar>(k: K<'k>, atom: MmaAtom, regs: &[Reg<'k, T>], wanted: usize) -> Self {
        if regs.len() != wanted {
            k.issue(IssueKind::Shape { what: "a fragment", left: wanted, right: regs.len() });
        }
        let regs = regs.iter().map(|r| RawReg { id: r.id(), ty: T::REGISTER }).collect();
        Self { k, atom, regs, role: PhantomData }
    }

    /// The product that it is for.
    pub fn atom(&self) -> MmaAtom {
        self.atom
    }

    fn operands(&self) -> Vec<Operand> {
        self.regs.iter().map(|r| Operand::Reg(r.id)).collect()
    }

    /// The words of a fragment of 16-bit or `tf32` elements, in the order of the table above.
    pub fn words(&self) -> Vec<U32<'k>> {
        self.regs.iter().map(|r| Reg::from_id(self.k, r.id)).collect()
    }
}

impl<'k, Role> Fragment<'k, Role> {
    /// Elements of `f32` for [`MmaAtom::Tf32`] as two numbers of `tf32` each, whose sum is all but the last two or three bits of
    /// them: what the product keeps of them, and the rest.
    #[track_caller]
    pub fn split(&self) -> Split<'k, Role> {
        self.k.on_behalf(|| self.split_words(None))
    }

    /// The same of the elements times `factor`, a power of two: no rest of a normal number gets lost among the least numbers if it
    /// is 2^14.
    #[track_caller]
    pub fn split_times(&self, factor: f64) -> Split<'k, Role> {
        self.k.on_behalf(|| self.split_words(Some(factor)))
    }

    /// Elements of `f32` for [`MmaAtom::Tf32`], rounded to the nearest that the product does not cut off.
    #[track_caller]
    pub fn rounded(&self) -> Self {
        self.k.on_behalf(|| {
            let word = |word: U32<'k>| F32::from_bits(word).to_tf32().id();
            let regs = self.words().into_iter().map(|w| RawReg { id: word(w), ty: u32::REGISTER }).collect();
            Self { regs, ..*self }
        })
    }

    fn split_words(&self, factor: Option<f64>) -> Split<'k, Role> {
        let part = |word: U32<'k>| {
            let scaled = factor.map(|factor| F32::from_bits(word) * factor);
            let bits = scaled.map_or(word, F32::to_bits);
            // Rounded, so that what is left has either sign. An infinity stays one.
            let high = (bits + TF32_IGNORED.div_ceil(2)) & !TF32_IGNORED;
            let whole = scaled.unwrap_or_else(|| F32::from_bits(word));
            [high, (whole - F32::from_bits(high)).to_bits()]
        };
        let parts: Vec<[U32<'k>; 2]> = self.words().into_iter().map(part).collect();
        let [high, low] = [0, 1].map(|half: usize| {
            let regs = parts.iter().map(|p| RawReg { id: p[half].id(), ty: u32::REGISTER }).collect();
            Self { regs, ..*self }
        });
        Split { high, low }
    }
}

/// An operand of a product of `f32` as the sum of two of `tf32` or `f16`; made by [`Fragment::split`], by
/// [`Fragment::split_accumulators`], or of what another kernel has split.
#[derive(Debug)]
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct Split<'k, Role> {
    high: Fragment<'k, Role>,
    low: Fragment<'k, Role>,
}

impl<'k, Role> Split<'k, Role> {
    /// The sum of two fragments.
    pub fn of(high: Fragment<'k, Role>, low: Fragment<'k, Role>) -> Self {
        Self { high, low }
    }
}

impl<'k> Split<'k, MatrixA> {
    /// The operands of the products that make one of `f32`, in the order in which one accumulator takes them: tensor cores cut off
    /// what they add, and nothing of the small ones is lost while the sum is small.
    pub fn products<'s>(
        &'s self,
        b: &'s Split<'k, MatrixB>,
    ) -> [(&'s Fragment<'k, MatrixA>, &'s Fragment<'k, MatrixB>); 3] {
        [(&self.low, &b.high), (&self.high, &b.low), (&self.high, &b.high)]
    }
}

impl<'k> Fragment<'k, MatrixA> {
    /// An accumulator of eight neighbouring columns, not rounded, as the A of a next product by [`MmaAtom::Tf32`] whose common
    /// index runs through the columns in another order: 0, 2, 4, 6, 1, 3, 5, 7. Lanes keep their own elements.
    #[track_caller]
    pub fn interleaved(accumulator: &Accumulator<'k, f32>) -> Self {
        let k = accumulator.k;
        k.on_behalf(|| {
            let lanes = accumulator.lanes.as_slice();
            let words = [0, 2, 1, 3].map(|lane: usize| lanes[lane].to_bits());
            Self::a(k, MmaAtom::Tf32, &words)
        })
    }

    /// A lane's part of A: its registers in the order of the table above, of `u32`, or of `f64` where elements are.
    #[track_caller]
    pub fn a<T: Scalar>(k: K<'k>, atom: MmaAtom, regs: &[Reg<'k, T>]) -> Self {
        Self::new(k, atom, regs, atom.a_registers())
    }

    /// Each element times the weight of its column, rounded: of 16 columns a lane has four, `2 (lane % 4)`, the next one, and those eight
    /// further on, whose weights these are. For 16-bit atoms.
    #[track_caller]
    pub fn times_columns(&self, weights: &Lanes<'k, f32>) -> Self {
        let (k, dtype) = (self.k, self.atom.dtype());
        if weights.len() != 4 || dtype.bytes() != 2 {
            k.issue(IssueKind::Shape { what: "the weights of a fragment", left: 4, right: weights.len() });
            return self.clone();
        }
        let word = |(i, word): (usize, U32<'k>)| {
            // The two words of eight columns are those of two rows.
            let weights = &weights.as_slice()[i / 2 * 2..][..2];
            let [low, high] = widen(word, dtype);
            (low * weights[0]).pack_with(high * weights[1], dtype)
        };
        k.on_behalf(|| {
            let words: Vec<_> = self.words().into_iter().enumerate().map(word).collect();
            Self::a(k, self.atom, &words)
        })
    }

    /// Accumulators of 16 neighbouring columns, rounded to the elements of `atom`, as the A of a next product: what
    /// `left` and `right` hold at (row, column) is A at (row, k = column). Lanes keep their own elements, so nothing is
    /// exchanged. For 16-bit atoms.
    #[track_caller]
    pub fn from_accumulators(
        atom: MmaAtom,
        left: &Accumulator<'k, f32>,
        right: &Accumulator<'k, f32>,
    ) -> Self {
        let k = left.k;
        k.on_behalf(|| {
            let lanes = Lanes::concat([left.lanes.clone(), right.lanes.clone()]);
            Self::a(k, atom, pack(k, atom.dtype(), &lanes).as_slice())
        })
    }

    /// The same without rounding, for [`MmaAtom::F16`]: each element as the sum of two `f16`. Elements below 2^16 lose at most 2^-23 of
    /// themselves or 2^-25, whatever is more.
    #[track_caller]
    pub fn split_accumulators(
        left: &Accumulator<'k, f32>,
        right: &Accumulator<'k, f32>,
    ) -> Split<'k, MatrixA> {
        let k = left.k;
        k.on_behalf(|| {
            let high = Self::from_accumulators(MmaAtom::F16, left, right);
            let rounded: Vec<_> = high.words().into_iter().flat_map(|word| widen(word, DType::F16)).collect();
            let (of_left, of_right) = rounded.split_at(left.lanes.len());
            let rest = |all: &Accumulator<'k, f32>, rounded: &[F32<'k>]| {
                all.like(all.lanes.iter().zip(rounded).map(|(all, rounded)| all - *rounded).collect())
            };
            let low = Self::from_accumulators(MmaAtom::F16, &rest(left, of_left), &rest(right, of_right));
            Split { high, low }
        })
    }
}

impl<'k> Fragment<'k, MatrixB> {
    /// A lane's part of B: its registers in the order of the table above, of `u32`, or of `f64` where elements are.
    #[track_caller]
    pub fn b<T: Scalar>(k: K<'k>, atom: MmaAtom, regs: &[Reg<'k, T>]) -> Self {
        Self::new(k, atom, regs, atom.b_registers())
    }
}

/// A lane's part of a product: `f32` elements, or `f64` where those of the operands are.
#[derive(Clone, Debug)]
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct Accumulator<'k, A: Float> {
    k: K<'k>,
    lanes: Lanes<'k, A>,
}

impl<'k, A: Float> Carry<'k> for Accumulator<'k, A> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        self.lanes.collect(regs);
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        Self { k: self.k, lanes: self.lanes.rebuild(regs) }
    }
}

impl<'k, A: Float> Accumulator<'k, A> {
    /// Zeros.
    #[track_caller]
    pub fn zero(k: K<'k>, atom: MmaAtom) -> Self {
        let lanes = k.on_behalf(|| (0..atom.accumulator_registers()).map(|_| k.lit(0.0)).collect());
        Self { k, lanes }
    }

    /// The elements, in the order of [`offsets`](Self::offsets).
    pub fn lanes(&self) -> &Lanes<'k, A> {
        &self.lanes
    }

    /// How far from the lane's first element, whose place is [`K::accumulator_origin`], each one lies: (rows, columns).
    pub fn offsets(&self) -> impl Iterator<Item = (u32, u32)> + use<A> {
        (0..self.lanes.len() as u32).map(|i| (i / 2 * 8, i % 2))
    }

    /// Elements in the order of [`offsets`](Self::offsets).
    pub(super) fn new(k: K<'k>, lanes: Lanes<'k, A>) -> Self {
        Self { k, lanes }
    }

    /// Elements of the same shape.
    pub fn like(&self, lanes: Lanes<'k, A>) -> Self {
        Self { k: self.k, lanes }
    }

    /// `f` of each element, with how far it lies from the lane's first one: rows, columns.
    pub fn map(&self, mut f: impl FnMut(u32, u32, Reg<'k, A>) -> Reg<'k, A>) -> Self {
        self.like(self.offsets().zip(self.lanes.iter()).map(|((row, col), v)| f(row, col, v)).collect())
    }

    /// `a b` plus the accumulator. The whole warp is here.
    #[track_caller]
    pub fn mma(&self, a: &Fragment<'k, MatrixA>, b: &Fragment<'k, MatrixB>) -> Self {
        let atom = a.atom;
        if atom == b.atom && (A::DOUBLE == (atom.dtype() == DType::F64)) {
            // One instruction 16 deep, or two 8 deep: the first half of A and B holds the first 8 of k.
            if atom == MmaAtom::F16 && self.k.target().sm < FULL_PRODUCT_SM {
                let (a, b) = (a.operands(), b.operands());
                let first = self.product(atom, MmaShape::M16N8K8, a[..2].to_vec(), b[..1].to_vec());
                return first.product(atom, MmaShape::M16N8K8, a[2..].to_vec(), b[1..].to_vec());
            }
            let shape = match atom {
                MmaAtom::F16 | MmaAtom::BF16 => MmaShape::M16N8K16,
                MmaAtom::Tf32 | MmaAtom::F64Deep => MmaShape::M16N8K8,
                MmaAtom::F64 => MmaShape::M8N8K4,
            };
            return self.product(atom, shape, a.operands(), b.operands());
        }
        self.k.issue(IssueKind::Shape {
            what: "a product of different atoms",
            left: a.regs.len(),
            right: b.regs.len(),
        });
        self.clone()
    }

    #[track_caller]
    fn product(&self, atom: MmaAtom, shape: MmaShape, a: Vec<Operand>, b: Vec<Operand>) -> Self {
        let result = self.like((0..self.lanes.len()).map(|_| self.k.fresh()).collect());
        let accumulator = if A::DOUBLE { MatrixType::F64 } else { MatrixType::F32 };
        self.k.emit(Inst::Mma(Box::new(Mma {
            shape,
            a_layout: MatrixLayout::Row,
            b_layout: MatrixLayout::Col,
            d_ty: accumulator,
            a_ty: atom.matrix_type(),
            b_ty: atom.matrix_type(),
            c_ty: accumulator,
            rounding: None::<Rounding>,
            satfinite: false,
            product: None,
            kind: None,
            sparsity: None,
            scale: None,
            d: result.lanes.iter().map(Reg::id).collect(),
            a,
            b,
            c: self.lanes.iter().map(|r| Operand::Reg(r.id())).collect(),
        })));
        result
    }
}

/// A lane's part of a product of [`Split`] operands, about as exact as in `f32`. Tensor cores cut off what they add, so the
/// small products have a sum of their own.
#[derive(Clone, Debug)]
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct SplitSum<'k> {
    great: Accumulator<'k, f32>,
    small: Accumulator<'k, f32>,
}

impl<'k> SplitSum<'k> {
    /// Zeros.
    #[track_caller]
    pub fn zero(k: K<'k>) -> Self {
        k.on_behalf(|| {
            let zero = Accumulator::zero(k, MmaAtom::Tf32);
            Self { great: zero.clone(), small: zero }
        })
    }

    /// `a b` plus the sum. The whole warp is here.
    #[track_caller]
    pub fn mma(&self, a: &Split<'k, MatrixA>, b: &Split<'k, MatrixB>) -> Self {
        self.great.k.on_behalf(|| Self {
            great: self.great.mma(&a.high, &b.high),
            small: self.small.mma(&a.low, &b.high).mma(&a.high, &b.low),
        })
    }

    /// The elements.
    #[track_caller]
    pub fn total(&self) -> Accumulator<'k, f32> {
        self.great.k.on_behalf(|| {
            let both = self.great.lanes.iter().zip(self.small.lanes.iter());
            // What is left of an infinity is not a number.
            let total = |(great, small): (F32<'k>, F32<'k>)| {
                great.abs().eq(f64::INFINITY).select(great, great + small)
            };
            self.great.like(both.map(total).collect())
        })
    }

    /// The elements, if no product was infinite.
    #[track_caller]
    pub fn finite_total(&self) -> Accumulator<'k, f32> {
        self.great.k.on_behalf(|| {
            let both = self.great.lanes.iter().zip(self.small.lanes.iter());
            self.great.like(both.map(|(great, small)| great + small).collect())
        })
    }
}

impl<'k> K<'k> {
    /// [`MmaAtom::on`] for the kernel's target; an issue if no product has operands of `dtype`.
    #[track_caller]
    pub fn mma_atom(self, dtype: DType) -> MmaAtom {
        MmaAtom::on(dtype, self.target()).unwrap_or_else(|| {
            self.issue(IssueKind::Product { instruction: "mma", dtype });
            MmaAtom::F16
        })
    }

    /// Row and column of the lane's first element in an [`Accumulator`]: `lane / 4`, `2 (lane % 4)`.
    #[track_caller]
    pub fn accumulator_origin(self) -> (U32<'k>, U32<'k>) {
        self.on_behalf(|| {
            let lane = self.lane_idx();
            (lane >> 2, (lane & 3) << 1)
        })
    }
}

impl<'k> F32<'k> {
    /// The nearest `tf32`, as an operand of a product.
    #[track_caller]
    pub fn to_tf32(self) -> U32<'k> {
        let dst = self.k().fresh::<u32>();
        self.k().emit(Inst::Cvt {
            to: warpwright_ptx::ScalarType::TF32,
            from: warpwright_ptx::ScalarType::F32,
            mods: warpwright_ptx::Modifiers {
                rounding: Some(Rounding::Rna),
                ..warpwright_ptx::Modifiers::NONE
            },
            dst: dst.id(),
            a: self.as_operand(),
            b: None,
        });
        dst
    }

    /// Two values rounded to nearest even, as `dtype` (`f16` or `bf16`) in one word; `self` in the lower half.
    #[track_caller]
    pub fn pack_with(self, high: Self, dtype: DType) -> U32<'k> {
        let k = self.k();
        k.on_behalf(|| {
            let words = pack(k, dtype, &Lanes::from(vec![self, high]));
            words.iter().next().unwrap_or_else(|| k.fresh())
        })
    }
}
