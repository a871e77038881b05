//! The kernels. Groups lie over lanes of a warp, so a group's scale takes a few shuffles; codes of NF4 and FP4 come from
//! tables that the warp holds in its registers (see `docs/performance/quantise.md`).

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WarpTable, warp_reduce_lanes};

use super::tables::{
    BUCKETS, BUCKETS_PER_UNIT, FP4, FP4_ASCENDING, FP4_MIDPOINTS, NF4, NF4_MIDPOINTS, NF4_ZERO_BUCKET,
    RankTable,
};
use super::tuning::{DequantiseConfig, QuantiseTile, ScaleTile, THREADS};
use super::{NibbleOrder, Scheme, reference::MIN_ABSMAX};

/// Adding this to a small f32 leaves its nearest integer, ties to even, in the low bits.
const ROUND_F32: f64 = 12_582_912.0;
/// Its bits.
const ROUND_BITS: u32 = (ROUND_F32 as f32).to_bits();
/// The same for f64.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;
/// An f32 with this added to a small integer has the integer in its low bits.
const INTEGER_BITS: f64 = 8_388_608.0;

kernel_args! {
    /// Elements to codes and scales, each read once.
    pub(super) struct QuantiseArgs => QuantiseParams {
        x: In<Elem>, codes: Out<u8>, scales: Out<Elem>, zero_points: Out<u8>, n: u64
    }
}

/// Quantises groups that lie over whole vectors of a warp.
pub(super) struct Quantise {
    pub(super) scheme: Scheme,
    pub(super) dtype: DType,
    pub(super) order: NibbleOrder,
    pub(super) tile: QuantiseTile,
}

impl KernelDef for Quantise {
    type Args = QuantiseArgs;

    fn name(&self) -> String {
        let (scheme, order, group) = (self.scheme.name(), order_name(self.order), self.tile.group_size());
        format!("quantize_{scheme}_{}_{order}_g{group}", self.dtype)
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(self.tile.threads)
    }

    fn dtypes(&self) -> DTypes {
        dtypes("x", self.scheme, self.dtype)
    }

    fn min_blocks_per_sm(&self) -> Option<u32> {
        self.tile.min_blocks
    }

    fn build<'k>(&self, k: K<'k>, a: QuantiseParams<'k>) {
        accumulate!(self.scheme.scale_dtype(self.dtype), |A| self.body::<A>(k, a));
    }
}

impl Quantise {
    fn body<'k, A: Float>(&self, k: K<'k>, a: QuantiseParams<'k>)
    where
        Elem: Access<A>,
    {
        let coder = Coder::new(k, self.scheme);
        // Only the last block can meet the end; the others do without bounds.
        let per_block = u64::from(self.tile.elements_per_block());
        let start =
            Index::affine(k, (k.block_idx_x(), self.tile.elements_per_block()), (k.lit(0), 0)).to_u64();
        k.if_else(
            (start + per_block).le(a.n),
            || self.block::<A>(k, a, &coder, false),
            || self.block::<A>(k, a, &coder, true),
        );
    }

    fn block<'k, A: Float>(&self, k: K<'k>, a: QuantiseParams<'k>, coder: &Coder<'k>, bounded: bool)
    where
        Elem: Access<A>,
    {
        let QuantiseTile { width, vectors, lanes, rounds, threads, .. } = self.tile;
        let (block, thread) = (k.block_idx_x(), k.thread_idx());
        // Lanes of a group are neighbours; where a group has more vectors than lanes, the warp takes them in turn.
        let position = if vectors == 1 { thread } else { k.warp_idx().mul_add(32 * vectors, k.lane_idx()) };
        let index = Index::affine(k, (block, self.tile.elements_per_block()), (position, width));
        let group_in_block = thread >> lanes.trailing_zeros();
        let group = Index::affine(k, (block, self.tile.groups_per_block()), (group_in_block, 1));
        let leads = (thread & (lanes - 1)).eq(0);
        let starts: Vec<Vec<Index<'k>>> = (0..rounds)
            .map(|r| (0..vectors).map(|v| index.plus(u64::from((r * threads + v * 32) * width))).collect())
            .collect();
        // All loads stand before the first use, so that they are in flight together.
        let load =
            |at| if bounded { self.load_or_zero(k, a, at) } else { load_as(a.x.at(at), width, self.dtype) };
        let loaded: Vec<Vec<Lanes<'k, A>>> =
            starts.iter().map(|round| round.iter().map(|&at| load(at)).collect()).collect();
        for (round, (starts, vectors)) in (0u32..).zip(starts.iter().zip(&loaded)) {
            let elements: Vec<Reg<'k, A>> = vectors.iter().flat_map(Lanes::iter).collect();
            let scale = GroupScale::of(k, self.scheme, &elements, lanes);
            let writes = if bounded { leads & starts[0].to_u64().lt(a.n) } else { leads };
            let group = group.plus(u64::from(round * (threads / lanes)));
            k.if_(writes, || scale.store(group, a.scales, a.zero_points));
            let prepared = scale.prepare();
            for (&at, elements) in starts.iter().zip(vectors) {
                let word = coder.pack(k, elements, &prepared, self.order);
                self.store_codes(k, a, at, word, bounded);
            }
        }
    }

    /// Writes a vector's codes, or the bytes of them that lie before the end.
    fn store_codes<'k>(&self, k: K<'k>, a: QuantiseParams<'k>, at: Index<'k>, word: U32<'k>, bounded: bool) {
        let bytes = a.codes.at(at.div_exact(2));
        if bounded {
            let first = at.to_u64();
            for byte in 0..self.tile.width / 2 {
                let inside = (first + u64::from(2 * byte)).lt(a.n);
                k.if_(inside, || bytes.at(u64::from(byte)).set(word.bit_field(8 * byte, 8)));
            }
            return;
        }
        match self.tile.width {
            8 => bytes.cast::<u32>().set(word),
            4 => bytes.cast::<u16>().set(word),
            _ => bytes.set(word),
        }
    }

    /// A vector with zeros past the end.
    fn load_or_zero<'k, A: Float>(&self, k: K<'k>, a: QuantiseParams<'k>, at: Index<'k>) -> Lanes<'k, A>
    where
        Elem: Access<A>,
    {
        let first = at.to_u64();
        let element = |i| {
            let inside = (first + i).lt(a.n);
            k.if_else(inside, || load_as(a.x.at(at.plus(i)), 1, self.dtype)[0], || k.lit::<A>(0.0))
        };
        (0..u64::from(self.tile.width)).map(element).collect()
    }
}

/// Elements of `dtype` in registers of type `A`; f64 elements of an f32 format are rounded.
fn load_as<'k, A: Float>(x: Ptr<'k, Read, Elem>, width: u32, dtype: DType) -> Lanes<'k, A>
where
    Elem: Access<A>,
{
    if dtype == DType::F64 { x.load::<f64>(width).convert() } else { x.load(width) }
}

/// What a group's scale is made of: the least and the greatest element, zero included; or, for schemes without zero
/// points, the greatest magnitude in `high`. NaN if there is one.
struct Extremes<'k, A: Float> {
    low: Reg<'k, A>,
    high: Reg<'k, A>,
}
carry!(Extremes<A: Float> { low, high });

impl<'k, A: Float> Extremes<'k, A> {
    fn none(k: K<'k>) -> Self {
        Self { low: k.lit(0.0), high: k.lit(0.0) }
    }

    fn with(self, scheme: Scheme, x: Reg<'k, A>) -> Self {
        match scheme {
            Scheme::Int4Asymmetric => Self { low: self.low.minimum(x), high: self.high.maximum(x) },
            _ => Self { high: self.high.maximum(x.abs()), ..self },
        }
    }

    fn across(self, k: K<'k>, scheme: Scheme, lanes: u32) -> Self {
        let high = warp_reduce_lanes(k, Maximum, lanes, self.high);
        match scheme {
            Scheme::Int4Asymmetric => Self { low: warp_reduce_lanes(k, Minimum, lanes, self.low), high },
            _ => Self { high, ..self },
        }
    }
}

/// The scale of a group and its zero point.
struct GroupScale<'k, A: Float> {
    scheme: Scheme,
    scale: Reg<'k, A>,
    zero: Option<Reg<'k, A>>,
}

impl<'k, A: Float> GroupScale<'k, A> {
    /// From the elements of a thread, one of `lanes` neighbours that share the group.
    fn of(k: K<'k>, scheme: Scheme, elements: &[Reg<'k, A>], lanes: u32) -> Self {
        let range = elements.iter().fold(Extremes::none(k), |range, x| range.with(scheme, *x));
        Self::from_extremes(k, scheme, range.across(k, scheme, lanes))
    }

    fn from_extremes(k: K<'k>, scheme: Scheme, range: Extremes<'k, A>) -> Self {
        match scheme {
            Scheme::Int4Asymmetric => Self::from_range(k, range.low, range.high),
            _ => Self::from_absmax(scheme, range.high),
        }
    }

    fn from_absmax(scheme: Scheme, absmax: Reg<'k, A>) -> Self {
        let scale = if scheme == Scheme::Int4Symmetric { divide_by(absmax, 7.0) } else { absmax };
        Self { scheme, scale, zero: None }
    }

    fn from_range(k: K<'k>, low: Reg<'k, A>, high: Reg<'k, A>) -> Self {
        // Halved first, so that a range as wide as the type does not overflow.
        let scale = divide_by(high * 0.5 - low * 0.5, 7.5);
        let quotient = k.if_else(
            Divider::is_small(scale),
            || Divider::lifted(scale).quotient(-low),
            || Divider::ordinary(scale).quotient(-low),
        );
        let zero = nearest(quotient).max(0.0).min(15.0);
        Self { scheme: Scheme::Int4Asymmetric, scale, zero: Some(zero) }
    }

    fn store(
        &self,
        group: impl IntoIndex<'k> + Copy,
        scales: Ptr<'k, Write, Elem>,
        zero_points: Ptr<'k, Write, u8>,
    ) where
        Elem: Access<A>,
    {
        scales.at(group).set(self.scale);
        if let Some(zero) = self.zero {
            zero_points.at(group).set(zero.to_u32());
        }
    }

    /// What the elements of the group are multiplied or divided by.
    fn prepare(&self) -> Prepared<'k, A> {
        match self.scheme {
            Scheme::Nf4 | Scheme::Fp4 => {
                Prepared::Reciprocal(self.scale.to_f32().max(f64::from(MIN_ABSMAX)).rcp())
            }
            Scheme::Int4Symmetric | Scheme::Int4Asymmetric => {
                Prepared::Integer { scale: self.scale, zero: self.zero.map(|zero| zero.convert()) }
            }
        }
    }
}

/// Division by one scale, rounded exactly: the quotient by a correctly rounded reciprocal, corrected once by its
/// remainder, is the correctly rounded quotient (Markstein, IBM J. Res. Dev. 34(1), 1990) while reciprocal and remainder
/// are normal numbers.
#[derive(Clone, Copy)]
struct Divider<'k, A: Float> {
    lift: Option<f64>,
    scale: Reg<'k, A>,
    reciprocal: Reg<'k, A>,
}

impl<'k, A: Float> Divider<'k, A> {
    /// Whether division by `scale` has to be [`lifted`](Self::lifted).
    fn is_small(scale: Reg<'k, A>) -> Pred<'k> {
        scale.lt(if A::DOUBLE { 2f64.powi(-900) } else { 2f64.powi(-60) })
    }

    fn ordinary(scale: Reg<'k, A>) -> Self {
        Self { lift: None, scale, reciprocal: scale.rcp() }
    }

    /// For a small scale, which is multiplied by a power of two together with what it divides. Division by 0 gives 0.
    fn lifted(scale: Reg<'k, A>) -> Self {
        let lift = if A::DOUBLE { 2f64.powi(512) } else { 2f64.powi(64) };
        let scale = scale * lift;
        Self { lift: Some(lift), scale, reciprocal: scale.gt(0.0).select(scale.rcp(), 0.0) }
    }

    /// `x / scale`
    fn quotient(self, x: Reg<'k, A>) -> Reg<'k, A> {
        let x = self.lift.map_or(x, |lift| x * lift);
        let q = x * self.reciprocal;
        let remainder = (-q).mul_add(self.scale, x);
        remainder.mul_add(self.reciprocal, q)
    }
}

/// `x / divisor`, rounded exactly, for a non-negative `x` and a small constant: as [`Divider::quotient`], except near the
/// denormals, where the remainder would be rounded.
fn divide_by<'k, A: Float>(x: Reg<'k, A>, divisor: f64) -> Reg<'k, A> {
    let k = x.k();
    let tiny = if A::DOUBLE { 2f64.powi(-900) } else { 2f64.powi(-90) };
    let reciprocal = k.lit::<A>(1.0 / divisor);
    let q = x * reciprocal;
    let near = (-q).mul_add(divisor, x).mul_add(reciprocal, q);
    // Infinity and NaN take the slow way too.
    let ordinary = x.gt(tiny) & x.lt(f64::INFINITY);
    k.if_else(ordinary, || near, || x / divisor)
}

/// The nearest integer, ties to even, of a number below 2^21.
fn nearest<'k, A: Float>(x: Reg<'k, A>) -> Reg<'k, A> {
    let round = if A::DOUBLE { ROUND_F64 } else { ROUND_F32 };
    (x + round) - round
}

/// What turns the elements of one group into codes.
enum Prepared<'k, A: Float> {
    Reciprocal(F32<'k>),
    /// The zero point of symmetric groups is 8.
    Integer {
        scale: Reg<'k, A>,
        zero: Option<U32<'k>>,
    },
}

/// What a scheme needs once per thread.
enum Coder<'k> {
    Nf4 {
        rank: WarpTable<'k, u32>,
        midpoint: WarpTable<'k, f32>,
    },
    /// `codes` holds the code below the midpoint in bits 0-3 and the one above in bits 4-7.
    Fp4 {
        codes: WarpTable<'k, u32>,
        midpoint: WarpTable<'k, f32>,
    },
    Integer,
}

impl<'k> Coder<'k> {
    /// Every lane must be active here and in [`pack`](Self::pack).
    fn new(k: K<'k>, scheme: Scheme) -> Self {
        match scheme {
            Scheme::Nf4 => {
                let table = RankTable::new(&NF4_MIDPOINTS, NF4_ZERO_BUCKET);
                Self::Nf4 { rank: k.warp_table_u32(&table.rank), midpoint: k.warp_table_f32(&table.midpoint) }
            }
            Scheme::Fp4 => {
                let table = RankTable::new(&FP4_MIDPOINTS, 0);
                let ascending =
                    |rank: u32| u32::from(FP4_ASCENDING[(rank as usize).min(FP4_ASCENDING.len() - 1)]);
                let codes = table.rank.map(|rank| ascending(rank) | ascending(rank + 1) << 4);
                Self::Fp4 { codes: k.warp_table_u32(&codes), midpoint: k.warp_table_f32(&table.midpoint) }
            }
            Scheme::Int4Symmetric | Scheme::Int4Asymmetric => Self::Integer,
        }
    }

    /// The codes of up to eight elements of one group, in a word in memory order.
    fn pack<A: Float>(
        &self,
        k: K<'k>,
        elements: &Lanes<'k, A>,
        prepared: &Prepared<'k, A>,
        order: NibbleOrder,
    ) -> U32<'k> {
        let units: Vec<u32> = (0..elements.len()).map(|position| 1 << order.shift(position)).collect();
        match *prepared {
            Prepared::Reciprocal(r) => {
                let codes = elements.iter().map(|x| self.ranked(x.to_f32() * r));
                codes.zip(&units).fold(k.lit(0u32), |word, (code, &unit)| code.mul_add(unit, word))
            }
            Prepared::Integer { scale, zero } => k.if_else(
                Divider::is_small(scale),
                || integers(k, elements, &units, Divider::lifted(scale), zero),
                || integers(k, elements, &units, Divider::ordinary(scale), zero),
            ),
        }
    }

    /// The code of `t = x / absmax` in a 4-bit float format.
    fn ranked(&self, t: F32<'k>) -> U32<'k> {
        match self {
            Self::Nf4 { rank, midpoint } => {
                let bucket =
                    t.mul_add(f64::from(BUCKETS_PER_UNIT), ROUND_F32 + f64::from(NF4_ZERO_BUCKET)).to_bits();
                // The sign of the difference says whether t exceeds the midpoint.
                rank.get(bucket) + ((midpoint.get(bucket) - t).to_bits() >> 31)
            }
            Self::Fp4 { codes, midpoint } => {
                let magnitude = t.abs();
                let bucket = magnitude.mul_add(f64::from(BUCKETS_PER_UNIT), ROUND_F32).to_bits();
                let pair = codes.get(bucket);
                let code = magnitude.gt(midpoint.get(bucket)).select(pair >> 4, pair & 15);
                code | t.lt(0.0).select(8, 0)
            }
            Self::Integer => t.to_bits(),
        }
    }
}

/// The integer codes of elements of one group, each multiplied by its unit, in one word.
fn integers<'k, A: Float>(
    k: K<'k>,
    elements: &Lanes<'k, A>,
    units: &[u32],
    divider: Divider<'k, A>,
    zero: Option<U32<'k>>,
) -> U32<'k> {
    // A code is a rounded quotient, which comes with bits that are the same for every element, plus the zero point. Both
    // are summed up for the whole word first.
    let all = units.iter().fold(0u32, |all, unit| all.wrapping_add(*unit));
    let bits = all.wrapping_mul(ROUND_BITS).wrapping_neg();
    let start = match zero {
        Some(zero) => zero.mul_add(all, bits),
        // Symmetric codes are stored with 8 added.
        None => k.lit(bits.wrapping_add(all.wrapping_mul(8))),
    };
    elements.iter().zip(units).fold(start, |word, (x, &unit)| {
        let q = divider.quotient(x);
        let q = if A::DOUBLE { nearest(q).to_f32() } else { q.to_f32() };
        let quotient = (q + ROUND_F32).to_bits();
        // Only with a zero point can rounding up twice pass the last code.
        let quotient = zero.map_or(quotient, |zero| quotient.min(k.lit(ROUND_BITS + 15) - zero));
        quotient.mul_add(unit, word)
    })
}

kernel_args! {
    /// Scales of groups of any size.
    pub(super) struct ScalesArgs => ScalesParams {
        x: In<Elem>, scales: Out<Elem>, zero_points: Out<u8>, n: u64, group_size: u64
    }
}

/// Finds the scales of groups of any size at any alignment.
pub(super) struct Scales {
    pub(super) scheme: Scheme,
    pub(super) dtype: DType,
    pub(super) tile: ScaleTile,
}

impl KernelDef for Scales {
    type Args = ScalesArgs;

    fn name(&self) -> String {
        let tile = match self.tile {
            ScaleTile::Thread => "thread",
            ScaleTile::Warp => "warp",
        };
        format!("scales_{}_{}_{tile}", self.scheme.name(), self.dtype)
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(THREADS)
    }

    fn dtypes(&self) -> DTypes {
        dtypes("x", self.scheme, self.dtype)
    }

    fn build<'k>(&self, k: K<'k>, a: ScalesParams<'k>) {
        accumulate!(self.scheme.scale_dtype(self.dtype), |A| self.body::<A>(k, a));
    }
}

impl Scales {
    fn body<'k, A: Float>(&self, k: K<'k>, a: ScalesParams<'k>)
    where
        Elem: Access<A>,
    {
        let (thread, lanes) = match self.tile {
            ScaleTile::Thread => (k.thread_idx(), 1),
            ScaleTile::Warp => (k.warp_idx(), 32),
        };
        let per_block = self.tile.groups_per_block();
        let group = Index::affine(k, (k.block_idx_x(), per_block), (thread, 1)).to_u64();
        let first = group * a.group_size;
        let end = (first + a.group_size).min(a.n);
        let first = if lanes == 1 { first } else { first + k.lane_idx().to_u64() };
        let range = k.range(first, end, u64::from(lanes));
        let extremes = k.fold(range, Extremes::none(k), |i, extremes| {
            extremes.with(self.scheme, load_as::<A>(a.x.at(i), 1, self.dtype)[0])
        });
        let scale = GroupScale::from_extremes(k, self.scheme, extremes.across(k, self.scheme, lanes));
        // Lane 0 of a warp starts at the group's first element; past the last group nobody does.
        let leads = if lanes == 1 { first.lt(a.n) } else { first.lt(a.n) & k.lane_idx().eq(0) };
        k.if_(leads, || scale.store(group, a.scales, a.zero_points));
    }
}

kernel_args! {
    /// Codes of groups of any size, given their scales.
    pub(super) struct CodesArgs => CodesParams {
        x: In<Elem>, scales: In<Elem>, zero_points: In<u8>, codes: Out<u8>, n: u64, group_size: u64
    }
}

/// Writes one byte of codes per thread; the two elements may belong to different groups.
pub(super) struct Codes {
    pub(super) scheme: Scheme,
    pub(super) dtype: DType,
    pub(super) order: NibbleOrder,
}

impl KernelDef for Codes {
    type Args = CodesArgs;

    fn name(&self) -> String {
        format!("codes_{}_{}_{}", self.scheme.name(), self.dtype, order_name(self.order))
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(THREADS)
    }

    fn dtypes(&self) -> DTypes {
        dtypes("x", self.scheme, self.dtype)
    }

    fn build<'k>(&self, k: K<'k>, a: CodesParams<'k>) {
        accumulate!(self.scheme.scale_dtype(self.dtype), |A| self.body::<A>(k, a));
    }
}

impl Codes {
    fn body<'k, A: Float>(&self, k: K<'k>, a: CodesParams<'k>)
    where
        Elem: Access<A>,
    {
        let coder = Coder::new(k, self.scheme);
        let byte = Index::affine(k, (k.block_idx_x(), THREADS), (k.thread_idx(), 1)).to_u64();
        let first = byte * 2;
        let last = a.n - 1;
        let mut word = k.lit(0u32);
        for position in 0..2usize {
            // Past the end stands a zero of the last group, which is what the format pads with.
            let i = first + position as u64;
            let x = k.if_else(i.lt(a.n), || load_as::<A>(a.x.at(i), 1, self.dtype)[0], || k.lit(0.0));
            let group = i.min(last) / a.group_size;
            let zero = self.scheme.has_zero_points().then(|| a.zero_points.at(group).get().convert::<A>());
            let scale = GroupScale { scheme: self.scheme, scale: a.scales.at(group).get::<A>(), zero };
            let at = Lanes::from(vec![x]);
            let code = coder.pack(k, &at, &scale.prepare(), NibbleOrder::LowFirst);
            word = code.mul_add(1u32 << self.order.shift(position), word);
        }
        k.if_(first.lt(a.n), || a.codes.at(byte).set(word));
    }
}

kernel_args! {
    /// Codes and scales to elements. `divisor` is the group size, or its logarithm.
    pub(super) struct DequantiseArgs => DequantiseParams {
        codes: In<u8>, scales: In<Elem>, zero_points: In<u8>, y: Out<Elem>, n: u64, divisor: u64
    }
}

/// Writes one vector of elements per thread.
pub(super) struct Dequantise {
    pub(super) scheme: Scheme,
    pub(super) dtype: DType,
    pub(super) order: NibbleOrder,
    pub(super) config: DequantiseConfig,
}

impl KernelDef for Dequantise {
    type Args = DequantiseArgs;

    fn name(&self) -> String {
        let DequantiseConfig { width, one_group, power_of_two, .. } = self.config;
        let find = if power_of_two { "shift" } else { "divide" };
        let share = if one_group { "x" } else { "any" };
        let (scheme, order) = (self.scheme.name(), order_name(self.order));
        format!("dequantize_{scheme}_{}_{order}_{find}_{share}{width}", self.dtype)
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(THREADS)
    }

    fn dtypes(&self) -> DTypes {
        dtypes("y", self.scheme, self.dtype)
    }

    fn build<'k>(&self, k: K<'k>, a: DequantiseParams<'k>) {
        accumulate!(self.scheme.scale_dtype(self.dtype), |A| self.body::<A>(k, a));
    }
}

impl Dequantise {
    fn body<'k, A: Float>(&self, k: K<'k>, a: DequantiseParams<'k>)
    where
        Elem: Access<A>,
    {
        let values = self.table(k);
        let config = self.config;
        let index =
            Index::affine(k, (k.block_idx_x(), config.elements_per_block()), (k.thread_idx(), config.width));
        let rounds = (0..config.rounds).map(|r| index.plus(u64::from(r * THREADS * config.width)));
        let rounds: Vec<Index<'k>> = rounds.collect();
        if !config.one_group {
            rounds.iter().for_each(|&at| self.bounded::<A>(k, a, at, &values));
            return;
        }
        // Only the last block can meet the end; the others do without bounds.
        let start = Index::affine(k, (k.block_idx_x(), config.elements_per_block()), (k.lit(0), 0)).to_u64();
        k.if_else(
            (start + u64::from(config.elements_per_block())).le(a.n),
            || {
                let loaded: Vec<_> = rounds
                    .iter()
                    .map(|&at| {
                        let bytes = a.codes.at(at.div_exact(2));
                        let word = match config.width {
                            8 => bytes.cast::<u32>().get(),
                            4 => bytes.cast::<u16>().get(),
                            _ => bytes.get(),
                        };
                        (at, word, self.group::<A>(k, a, at.to_u64()))
                    })
                    .collect();
                for (at, word, (scale, zero)) in loaded {
                    let y: Lanes<'k, A> = (0..config.width)
                        .map(|i| self.value(word >> self.order.shift(i as usize), scale, zero, &values))
                        .collect();
                    self.store(a.y.at(at), y);
                }
            },
            || rounds.iter().for_each(|&at| self.bounded::<A>(k, a, at, &values)),
        );
    }

    /// A vector element by element, as far as it lies before the end.
    fn bounded<'k, A: Float>(
        &self,
        k: K<'k>,
        a: DequantiseParams<'k>,
        at: Index<'k>,
        values: &Option<WarpTable<'k, f32>>,
    ) where
        Elem: Access<A>,
    {
        let first = at.to_u64();
        let last = a.n - 1;
        let word = self.tail_codes(k, a, first, at);
        for i in 0..self.config.width {
            let (scale, zero) = self.group::<A>(k, a, (first + u64::from(i)).min(last));
            let y = self.value(word >> self.order.shift(i as usize), scale, zero, values);
            let inside = (first + u64::from(i)).lt(a.n);
            k.if_(inside, || self.store(a.y.at(at.plus(u64::from(i))), Lanes::from(vec![y])));
        }
    }

    /// The bytes of a vector that lie before the end.
    fn tail_codes<'k>(&self, k: K<'k>, a: DequantiseParams<'k>, first: U64<'k>, at: Index<'k>) -> U32<'k> {
        let mut word = k.lit(0u32);
        for byte in 0..self.config.width / 2 {
            let inside = (first + u64::from(2 * byte)).lt(a.n);
            let code = a.codes.at(at.div_exact(2).plus(u64::from(byte)));
            let value = k.if_else(inside, || code.get(), || k.lit(0u32));
            word = value.mul_add(1u32 << (8 * byte), word);
        }
        word
    }

    /// Scale and zero point of the group of an element.
    fn group<'k, A: Float>(&self, k: K<'k>, a: DequantiseParams<'k>, i: U64<'k>) -> (Reg<'k, A>, Reg<'k, A>)
    where
        Elem: Access<A>,
    {
        let group = if self.config.power_of_two { i >> a.divisor.to_u32() } else { i / a.divisor };
        let zero = match self.scheme {
            Scheme::Int4Asymmetric => a.zero_points.at(group).get().convert::<A>(),
            _ => k.lit(8.0),
        };
        (a.scales.at(group).get::<A>(), zero)
    }

    /// The values of a 4-bit float's codes, twice over the lanes so that bit 4 of an index does not matter.
    fn table<'k>(&self, k: K<'k>) -> Option<WarpTable<'k, f32>> {
        let code = match self.scheme {
            Scheme::Nf4 => NF4,
            Scheme::Fp4 => FP4,
            Scheme::Int4Symmetric | Scheme::Int4Asymmetric => return None,
        };
        let twice: [f32; BUCKETS] = std::array::from_fn(|lane| code[lane % code.len()]);
        Some(k.warp_table_f32(&twice))
    }

    /// The value of the code in the low four bits.
    fn value<'k, A: Float>(
        &self,
        code: U32<'k>,
        scale: Reg<'k, A>,
        zero: Reg<'k, A>,
        values: &Option<WarpTable<'k, f32>>,
    ) -> Reg<'k, A> {
        match values {
            Some(values) => values.get(code).convert::<A>() * scale,
            None => {
                // The code as the low bits of an f32 that is 2^23 too large, which the subtraction takes off exactly.
                let bits = (code & 15) | (INTEGER_BITS as f32).to_bits();
                let code = F32::from_bits(bits) - INTEGER_BITS;
                (code.convert::<A>() - zero) * scale
            }
        }
    }

    fn store<'k, A: Float>(&self, y: Ptr<'k, Write, Elem>, lanes: Lanes<'k, A>)
    where
        Elem: Access<A>,
    {
        if self.dtype == DType::F64 { y.store::<f64>(lanes.convert::<f64>()) } else { y.store(lanes) }
    }
}

const fn order_name(order: NibbleOrder) -> &'static str {
    match order {
        NibbleOrder::HighFirst => "high",
        NibbleOrder::LowFirst => "low",
    }
}

/// `dtype` for the elements, and what goes with it for the scales.
fn dtypes(elements: &'static str, scheme: Scheme, dtype: DType) -> DTypes {
    DTypes::NONE.with(elements, dtype).with("scales", scheme.scale_dtype(dtype))
}
