//! The kernels. Groups lie over lanes of a warp, so a group's scale takes a few shuffles; codes of NF4 and FP4 come from
//! tables that the warp holds in its registers (see `docs/performance/quantize.md`).

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, WarpTable, bounded_blocks};

use super::coder::{Coder, Extremes, GroupScale, Vector};
use super::tables::{BUCKETS, FP4, NF4};
use super::tuning::{DequantizeConfig, QuantizeTile, ScaleTile, THREADS};
use super::{NibbleOrder, Scheme};

/// An f32 with this added to a small integer has the integer in its low bits.
const INTEGER_BITS: f64 = 8_388_608.0;

kernel_args! {
    /// Elements to codes and scales, each read once.
    pub(super) struct QuantizeArgs => QuantizeParams {
        x: In<Elem>, codes: Out<u8>, scales: Out<Elem>, zero_points: Out<u8>, n: u64
    }
}

/// Quantizes groups that lie over whole vectors of a warp.
pub(super) struct Quantize {
    pub(super) scheme: Scheme,
    pub(super) dtype: DType,
    pub(super) order: NibbleOrder,
    pub(super) tile: QuantizeTile,
}

impl AccumulateKernel for Quantize {
    type Args = QuantizeArgs;

    fn spec(&self) -> KernelSpec {
        let (scheme, order, group) = (self.scheme.name(), order_name(self.order), self.tile.group_size());
        KernelSpec::new(
            format!("quantize_{scheme}_{}_{order}_g{group}", self.dtype),
            BlockDim::x(self.tile.threads),
        )
        .dtypes(dtypes("x", self.scheme, self.dtype))
        .min_blocks_per_sm(self.tile.min_blocks)
    }

    fn dtype(&self) -> DType {
        self.scheme.scale_dtype(self.dtype)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: QuantizeParams<'k>) {
        let coder = Coder::new(k, self.scheme);
        bounded_blocks(k, a.n, self.tile.elements_per_block(), |bounded| {
            self.block::<A>(k, a, &coder, bounded);
        });
    }
}

impl Quantize {
    fn block<'k, A: Accumulate>(&self, k: K<'k>, a: QuantizeParams<'k>, coder: &Coder<'k>, bounded: bool) {
        let QuantizeTile { width, vectors, lanes, rounds, .. } = self.tile;
        let (block, thread) = (k.block_idx_x(), k.thread_idx());
        // Lanes of a group are neighbours; where a group has more vectors than lanes, the warp takes them in turn.
        // What a warp takes lies together, its scales too.
        let position = k.warp_idx().mul_add(WARP * vectors * rounds, k.lane_idx());
        let index = Index::affine(k, (block, self.tile.elements_per_block()), (position, width));
        // Lanes share out the work on the scales of so many groups, except in the last block.
        let together = if bounded { 1 } else { rounds.min(lanes) };
        let share = lanes / together;
        let round = (thread & (lanes - 1)) >> share.trailing_zeros();
        let per_round = WARP / lanes;
        let group_in_warp = round.mul_add(per_round, k.lane_idx() >> lanes.trailing_zeros());
        let group_in_block = k.warp_idx().mul_add(per_round * rounds, group_in_warp);
        let group = Index::affine(k, (block, self.tile.groups_per_block()), (group_in_block, 1));
        let leads = (thread & (share - 1)).eq(0);
        let starts: Vec<Vec<Index<'k>>> = (0..rounds)
            .map(|r| (0..vectors).map(|v| index.plus(u64::from((r * vectors + v) * WARP * width))).collect())
            .collect();
        let load = |at| {
            if bounded { self.load_or_zero(k, a, at) } else { self.load(a.x.at(at), width) }
        };
        let load_round =
            |round: &Vec<Index<'k>>| -> Vec<Vector<'k, A>> { round.iter().map(|&at| load(at)).collect() };
        // All loads stand before the first use, so that they are in flight together; in the last block, where elements are
        // loaded one by one, only those of a round, which is easier on the registers.
        let ahead: Vec<Vec<Vector<'k, A>>> =
            if bounded { Vec::new() } else { starts.iter().map(load_round).collect() };
        for (first, starts) in (0u32..).step_by(together as usize).zip(starts.chunks(together as usize)) {
            let rounds = (first as usize..).zip(starts);
            let groups: Vec<Vec<Vector<'k, A>>> = rounds
                .map(|(round, starts)| ahead.get(round).map_or_else(|| load_round(starts), Clone::clone))
                .collect();
            let scale = GroupScale::of(k, self.scheme, &groups, lanes);
            let writes = if bounded { leads & starts[0][0].to_u64().lt(a.n) } else { leads };
            let group = group.plus(u64::from(first * per_round));
            k.if_(writes, || scale.store(group, a.scales, a.zero_points));
            for ((round, starts), group) in (0u32..).zip(starts).zip(&groups) {
                let prepared = match together {
                    1 => scale.prepared,
                    _ => {
                        let lane = (k.lane_idx() & (WARP - lanes)) | (round * share);
                        k.from_lane(lane, &scale.prepared)
                    }
                };
                for (&at, vector) in starts.iter().zip(group) {
                    let word = coder.pack(k, &vector.elements, &prepared, self.order);
                    self.store_codes(k, a, at, word, bounded);
                }
            }
        }
    }

    /// Writes a vector's codes, or the bytes of them that lie before the end.
    fn store_codes<'k>(&self, k: K<'k>, a: QuantizeParams<'k>, at: Index<'k>, word: U32<'k>, bounded: bool) {
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

    /// A whole vector.
    fn load<'k, A: Accumulate>(&self, x: Ptr<'k, Read, Elem>, width: u32) -> Vector<'k, A> {
        match x.load_halves(width) {
            Some(halves) => {
                let elements = halves.iter().flat_map(|pair| pair.widen()).map(Reg::convert).collect();
                Vector { elements, halves }
            }
            None => Vector { elements: load_as(x, width, self.dtype), halves: Vec::new() },
        }
    }

    /// A vector with zeros past the end.
    fn load_or_zero<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: QuantizeParams<'k>,
        at: Index<'k>,
    ) -> Vector<'k, A> {
        let first = at.to_u64();
        let element = |i| {
            let inside = (first + i).lt(a.n);
            k.if_else(inside, || load_as(a.x.at(at.plus(i)), 1, self.dtype)[0], || k.lit::<A>(0.0))
        };
        Vector { elements: (0..u64::from(self.tile.width)).map(element).collect(), halves: Vec::new() }
    }
}

/// Elements of `dtype` in registers of type `A`; f64 elements of an f32 format are rounded.
fn load_as<'k, A: Accumulate>(x: Ptr<'k, Read, Elem>, width: u32, dtype: DType) -> Lanes<'k, A> {
    if dtype == DType::F64 { x.load::<f64>(width).convert() } else { x.load(width) }
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

impl AccumulateKernel for Scales {
    type Args = ScalesArgs;

    fn spec(&self) -> KernelSpec {
        let tile = match self.tile {
            ScaleTile::Thread => "thread",
            ScaleTile::Warp => "warp",
        };
        KernelSpec::new(format!("scales_{}_{}_{tile}", self.scheme.name(), self.dtype), BlockDim::x(THREADS))
            .dtypes(dtypes("x", self.scheme, self.dtype))
    }

    fn dtype(&self) -> DType {
        self.scheme.scale_dtype(self.dtype)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ScalesParams<'k>) {
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
        let scale = GroupScale::from_extremes(self.scheme, extremes.across(k, self.scheme, lanes));
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

impl AccumulateKernel for Codes {
    type Args = CodesArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("codes_{}_{}_{}", self.scheme.name(), self.dtype, order_name(self.order)),
            BlockDim::x(THREADS),
        )
        .dtypes(dtypes("x", self.scheme, self.dtype))
    }

    fn dtype(&self) -> DType {
        self.scheme.scale_dtype(self.dtype)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: CodesParams<'k>) {
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
            let scale = GroupScale::known(self.scheme, a.scales.at(group).get::<A>(), zero);
            let at = Lanes::from(vec![x]);
            let code = coder.pack(k, &at, &scale.prepared, NibbleOrder::LowFirst);
            word = code.mul_add(1u32 << self.order.shift(position), word);
        }
        k.if_(first.lt(a.n), || a.codes.at(byte).set(word));
    }
}

kernel_args! {
    /// Codes and scales to elements. `divisor` is the group size, or its logarithm.
    pub(super) struct DequantizeArgs => DequantizeParams {
        codes: In<u8>, scales: In<Elem>, zero_points: In<u8>, y: Out<Elem>, n: u64, divisor: u64
    }
}

/// Writes one vector of elements per thread.
pub(super) struct Dequantize {
    pub(super) scheme: Scheme,
    pub(super) dtype: DType,
    pub(super) order: NibbleOrder,
    pub(super) config: DequantizeConfig,
}

impl AccumulateKernel for Dequantize {
    type Args = DequantizeArgs;

    fn spec(&self) -> KernelSpec {
        let DequantizeConfig { width, one_group, power_of_two, .. } = self.config;
        let find = if power_of_two { "shift" } else { "divide" };
        let share = if one_group { "x" } else { "any" };
        let (scheme, order) = (self.scheme.name(), order_name(self.order));
        KernelSpec::new(
            format!("dequantize_{scheme}_{}_{order}_{find}_{share}{width}", self.dtype),
            BlockDim::x(THREADS),
        )
        .dtypes(dtypes("y", self.scheme, self.dtype))
    }

    fn dtype(&self) -> DType {
        self.scheme.scale_dtype(self.dtype)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: DequantizeParams<'k>) {
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
        bounded_blocks(k, a.n, config.elements_per_block(), |bounded| {
            if bounded {
                rounds.iter().for_each(|&at| self.bounded::<A>(k, a, at, &values));
            } else {
                self.whole::<A>(k, a, &rounds, &values);
            }
        });
    }
}

impl Dequantize {
    /// Whole vectors: all loads stand before the first use.
    fn whole<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: DequantizeParams<'k>,
        rounds: &[Index<'k>],
        values: &Option<WarpTable<'k, f32>>,
    ) {
        let load = |&at: &Index<'k>| {
            let bytes = a.codes.at(at.div_exact(2));
            let word = match self.config.width {
                8 => bytes.cast::<u32>().get(),
                4 => bytes.cast::<u16>().get(),
                _ => bytes.get(),
            };
            (at, word, self.group::<A>(k, a, at.to_u64()))
        };
        let loaded: Vec<_> = rounds.iter().map(load).collect();
        for (at, word, (scale, zero)) in loaded {
            let y: Lanes<'k, A> = (0..self.config.width)
                .map(|i| self.value(word >> self.order.shift(i as usize), scale, zero, values))
                .collect();
            self.store(a.y.at(at), y);
        }
    }

    /// A vector element by element, as far as it lies before the end.
    fn bounded<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: DequantizeParams<'k>,
        at: Index<'k>,
        values: &Option<WarpTable<'k, f32>>,
    ) {
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
    fn tail_codes<'k>(&self, k: K<'k>, a: DequantizeParams<'k>, first: U64<'k>, at: Index<'k>) -> U32<'k> {
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
    fn group<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: DequantizeParams<'k>,
        i: U64<'k>,
    ) -> (Reg<'k, A>, Reg<'k, A>) {
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
    fn value<'k, A: Accumulate>(
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

    fn store<'k, A: Accumulate>(&self, y: Ptr<'k, Write, Elem>, lanes: Lanes<'k, A>) {
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
