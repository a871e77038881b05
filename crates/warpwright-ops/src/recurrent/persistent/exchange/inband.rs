//! The in-band exchange, of elements that have a free bit: it says which step an element is of, so that an element is its own signal
//! and no word has to carry a number beside it.
//!
//! Of `tf32` the last bit is free, as 13 bits are, whatever the number is, and products ignore it. Of 16 bits it is the second
//! highest of states below 2: the bit above the lower bits of the exponent is zero there. The state of an LSTM, or of a plain cell
//! with the hyperbolic tangent, is between -1 and 1, and so is that of a GRU that begins with zeros. What is not a number becomes
//! one that no state is, 0x3fff, and is made NaN again by whoever reads it.
//!
//! Every other time that a buffer is used the free bit is turned over. A lane reads neighbours, 16 bytes, of a vector into the
//! fragments of two products, again until the bits of all are those of the step. First states may be anything: they lie in a third
//! buffer that a launch before fills, and their bits say nothing.

use std::ops::Range;

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_ptx::{ScalarType, Target};
use warpwright_runtime::LaunchStep;

use super::{
    Exchange, Memory, Publishers, RELAXED, Reads, Slot, Weights, any_set, load_global, store_global,
};
use crate::PlanError;
use crate::plan;
use crate::recurrent::persistent::gemm::{ATOM, Collector, StepGemm, SumLayout, Sums, THREADS, WARPS};
use crate::recurrent::persistent::weights::{Matrix, Residence, Tiles, pack, unpack};
use crate::recurrent::plan::Place;

/// The bits that are free, in both elements of a word of 16 bits.
const FREE: u32 = 0x4000_4000;
/// The bits of `tf32` that are ignored, and that which is used.
const IGNORED: u32 = 0x1fff;
const LAST: u32 = 1;
/// The summand that carries the code of NaN into them.
const OF_CODE: u32 = 0x0001_0001;
/// Words of a piece that a lane reads, and of the pieces of a chunk.
const PIECE: u32 = 4;
const CHUNK: u32 = 4 * PIECE;
/// Buffers: two that take turns, and that of the first states.
const BUFFERS: u32 = 3;
/// Registers of words that are on their way together behind the first, about.
const AHEAD: u32 = 16;
/// Tiles of vectors that multiply a fragment of weights from shared memory together.
const TOGETHER: u32 = 4;

/// Pieces that are read together: of some tiles of vectors, some pairs of slices.
struct Pieces {
    columns: Range<u32>,
    pairs: Range<u32>,
}

impl Pieces {
    /// Each tile and pair.
    fn all(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let pairs = self.pairs.clone();
        self.columns.clone().flat_map(move |column| pairs.clone().map(move |pair| (column, pair)))
    }
}

/// The in-band exchange.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Inband {
    gemm: StepGemm,
    atom: MmaAtom,
    residence: Residence,
    /// Whether weights are kept in halves.
    packs: bool,
}

impl Inband {
    /// That of a product on tensor cores, if its sizes allow it.
    pub(in crate::recurrent) fn of(gemm: StepGemm) -> Option<Self> {
        let atom = gemm.atom()?;
        let chunk = 2 * atom.k();
        if !gemm.depth.is_multiple_of(chunk) {
            return None;
        }
        let slices = 2 * (gemm.depth / chunk).div_ceil(WARPS);
        let whole = Residence::of(&gemm, slices);
        let packs = gemm.rounds && !whole.has_room();
        let residence = if packs { Residence::packed(&gemm, slices) } else { whole };
        Some(Self { gemm, atom, residence, packs })
    }

    /// Elements of two slices.
    const fn chunk(&self) -> u32 {
        2 * self.atom.k()
    }

    /// Pairs of slices of a warp.
    const fn pairs(&self) -> u32 {
        (self.gemm.depth / self.chunk()).div_ceil(WARPS)
    }

    /// Batches in whole products.
    const fn columns(&self) -> u32 {
        self.gemm.batch.next_multiple_of(ATOM.2)
    }

    fn sums(&self) -> SumLayout {
        SumLayout::by_warps(&self.gemm, self.columns())
    }

    /// 64-bit words of a buffer.
    fn buffer(&self) -> u32 {
        self.columns() / ATOM.2 * self.gemm.together() * self.gemm.depth / (2 * self.gemm.of_register())
    }

    /// The bits of a word that are free.
    const fn free(&self) -> u32 {
        if self.gemm.rounds { LAST } else { FREE }
    }

    /// The first word of 32 bits of a piece: that of `quad` among the four of `chunk`, of vector `within` of a tile.
    fn piece<'k>(&self, column: U32<'k>, chunk: U32<'k>, within: U32<'k>) -> U32<'k> {
        ((column * (self.gemm.depth / self.chunk()) + chunk) * self.gemm.together() + within) * CHUNK
    }

    /// The word of element `at` of `batch`.
    fn word_of<'k>(&self, batch: U32<'k>, at: U32<'k>) -> U32<'k> {
        let within = at % self.chunk() / self.gemm.of_register();
        self.piece(batch / ATOM.2, at / self.chunk(), batch % ATOM.2) + within
    }

    /// Publishes the values of a unit, rounded.
    fn publish_rounded<'k>(
        &self,
        slot: Slot<'k>,
        (batch, unit): (U32<'k>, U32<'k>),
        values: &[F32<'k>],
        there: Pred<'k>,
    ) {
        let k = batch.k();
        let words = values.iter().map(|value| (value.to_tf32() & !IGNORED) | slot.mark);
        let words: Vec<U32<'k>> = words.collect();
        let place = |part: u32| {
            let at = self.word_of(batch, unit * values.len() as u32 + part);
            slot.words.cast::<u32>().at(at.to_u64())
        };
        k.if_(there, || match values.len() as u32 {
            PIECE => store_words(k, place(0), &words),
            _ => (0..).zip(&words).for_each(|(part, word)| store_words(k, place(part), &[*word])),
        });
    }

    /// Publishes the value of 16 bits of a unit with that of the lane `neighbour` further on, which is of the next unit.
    fn publish_half<'k>(
        &self,
        slot: Slot<'k>,
        (batch, unit): (U32<'k>, U32<'k>),
        value: F32<'k>,
        (there, neighbour): Publishers<'k>,
    ) {
        let (k, dtype) = (value.k(), self.gemm.dtype);
        // 0x3fff of either type.
        let code = if dtype == DType::BF16 { 1.992_187_5 } else { 1.999_023_437_5 };
        let value = value.is_nan().select(k.lit(code), value);
        let word = value.pack_with(value.shfl_down(neighbour), dtype) ^ slot.mark;
        let to = slot.words.cast::<u32>().at(self.word_of(batch, unit).to_u64());
        k.if_(there & (unit & 1).eq(0), || store_words(k, to, &[word]));
    }

    /// The pieces that are read together, in order. Weights in registers take one tile of vectors after the other; those of shared memory
    /// several at once.
    fn order(&self) -> Vec<Pieces> {
        let (columns, pairs) = (self.columns() / ATOM.2, self.pairs());
        if !self.residence.stores() {
            return (0..columns).map(|c| Pieces { columns: c..c + 1, pairs: 0..pairs }).collect();
        }
        let of = |first: u32| {
            let columns = first..(first + TOGETHER).min(columns);
            (0..pairs).map(move |p| Pieces { columns: columns.clone(), pairs: p..p + 1 })
        };
        (0..columns).step_by(TOGETHER as usize).flat_map(of).collect()
    }

    /// Reads the pieces of some vectors of a step, as they are now.
    fn read_pieces<'k>(&self, k: K<'k>, slot: Slot<'k>, pieces: &Pieces) -> Vec<Vec<U32<'k>>> {
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let (pairs, chunks, batch) = (self.pairs(), self.gemm.depth / self.chunk(), self.gemm.batch);
        let words = slot.words.cast::<u32>();
        let own = words.at((self.piece(k.lit(0u32), k.warp_idx() * pairs, group) + quad * PIECE).to_u64());
        let place = |(column, pair): (u32, u32)| {
            let full = batch >= (column + 1) * ATOM.2;
            if full && chunks == pairs * WARPS {
                let apart = (column * chunks + pair) * ATOM.2 * CHUNK;
                return own.at(u64::from(apart));
            }
            // Lanes beyond the last vector read what others read, nobody looks at their sums; so do warps without a part, whose
            // weights are zero.
            let within = group.min((batch - 1 - column * ATOM.2).min(ATOM.2 - 1));
            let chunk = (k.warp_idx() * pairs + pair).min(chunks - 1);
            words.at((self.piece(k.lit(column), chunk, within) + quad * PIECE).to_u64())
        };
        let read = |piece| load_global(k, RELAXED, place(piece).operand(), PIECE as usize);
        pieces.all().map(read).collect()
    }
}

impl Exchange for Inband {
    fn gemm(&self) -> &StepGemm {
        &self.gemm
    }

    /// Sums that share the memory with weights have room for one step, others for two.
    fn memory(&self) -> Memory {
        let steps = if self.residence.stores() { 1 } else { 2 };
        let shared_bytes = self.residence.bytes() + steps * self.sums().floats() * 4;
        Memory { words: BUFFERS * self.buffer(), zeroed: 0, shared_bytes }
    }

    fn slot<'k>(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Slot<'k> {
        let first = step.eq(0);
        let turn = first.select(BUFFERS - 1, step & 1);
        let mark = (first | (step & 2).ne(0)).select(0u32, self.free());
        Slot { words: memory.at((turn * self.buffer()).to_u64()), mark, turn }
    }

    fn publish<'k>(
        &self,
        slot: Slot<'k>,
        at: (U32<'k>, U32<'k>),
        values: &[F32<'k>],
        publishers: Publishers<'k>,
    ) {
        if self.gemm.rounds {
            return self.publish_rounded(slot, at, values, publishers.0);
        }
        values.iter().for_each(|value| self.publish_half(slot, at, *value, publishers));
    }

    /// Sums that there is room for once have been read by all.
    fn commit<'k>(&self, k: K<'k>, _: Ptr<'k, ReadWrite, u64>, _: U32<'k>) {
        if self.residence.stores() {
            k.barrier();
        }
    }

    fn load<'k>(&self, k: K<'k>, matrix: &Matrix<'k, '_>) -> Box<dyn Weights<'k> + 'k> {
        let (gemm, atom) = (&self.gemm, self.atom);
        let group = k.lane_idx() >> 2;
        let of_slice = |tile: u32, slice: u32| {
            let (first, quad) = (k.warp_idx() * (2 * self.pairs()), k.lane_idx() & 3);
            let of_register = gemm.of_register();
            let within = quad * (4 * of_register) + slice % 2 * (2 * of_register);
            let depth = (first + slice / 2 * 2) * atom.k() + within;
            matrix.fragment(k, (gemm, atom), (group, tile), (depth, of_register))
        };
        if !self.packs {
            let tiles = self.residence.share_out(k, of_slice);
            return Box::new(Fragments { inband: *self, tiles, packing: None });
        }
        let [factor, inverse] = matrix.f16_scale(k, gemm);
        let of_pair = |tile: u32, pair: u32| {
            let slices = [2 * pair, 2 * pair + 1].map(|slice| of_slice(tile, slice));
            pack(k, atom, slices, factor)
        };
        let tiles = self.residence.share_out(k, of_pair);
        Box::new(Fragments { inband: *self, tiles, packing: Some(inverse) })
    }

    fn reads(&self) -> Reads {
        Reads::Behind
    }

    fn publishes_first(&self) -> bool {
        false
    }

    fn prepare(
        &self,
        op: &'static str,
        target: Target,
        memory: Place,
        (h0, given): (Place, bool),
    ) -> Result<Option<LaunchStep>, PlanError> {
        let gemm = &self.gemm;
        let pieces = self.buffer() / 2;
        let n = gemm.groups * pieces;
        let args = FirstArgs {
            h0: h0.read(),
            words: memory.write(),
            pieces,
            n,
            batch: gemm.batch,
            hidden: gemm.depth,
            given: u32::from(given),
        };
        let grid = plan::cover(op, n as usize, THREADS)?;
        let kernel = plan::recorded(op, &FirstStates { dtype: gemm.dtype }, target)?;
        Ok(Some(LaunchStep::new(kernel, grid.unwrap_or([1; 3]), args.values())))
    }
}

/// Weights in fragments: of slices, or of pairs of them in halves.
struct Fragments<'k> {
    inband: Inband,
    tiles: Tiles<'k>,
    /// Of weights in halves, what sums are multiplied by.
    packing: Option<F32<'k>>,
}

/// The sums of tiles of vectors with tiles of rows.
type TileSums<'k> = Vec<Vec<Accumulator<'k, f32>>>;

impl<'k> Weights<'k> for Fragments<'k> {
    fn multiply(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Sums<'k> {
        let (k, inband) = (step.k(), &self.inband);
        let slot = inband.slot(memory, step);
        let all = k.dynamic_shared::<f32>();
        let to = if inband.residence.stores() {
            all.at(u64::from(inband.residence.bytes() / 4))
        } else {
            all.at((step & 1) * inband.sums().floats())
        };
        let collector = Collector::new(inband.sums(), to, k.warp_idx());
        self.multiply_pieces((step, slot), &collector);
        collector.total(self.packing)
    }
}

impl<'k> Fragments<'k> {
    /// Waits for the vectors of step `step` and multiplies them.
    fn multiply_pieces(&self, (step, slot): (U32<'k>, Slot<'k>), collector: &Collector<'k>) {
        let (k, inband) = (step.k(), &self.inband);
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let free = step.eq(0).select(0u32, inband.free());
        let late = |words: &Vec<Vec<U32<'k>>>| {
            any_set(k, words.iter().flatten().map(|word| *word ^ slot.mark), Some(free))
        };
        let order = inband.order();
        // The first pieces are waited for alone: reading in vain is in the way of what is there. The rest is there soon behind it.
        let ahead = (AHEAD / (PIECE * order[0].all().count() as u32)) as usize;
        let mut coming = Vec::new();
        let zero = Accumulator::<f32>::zero(k, inband.atom);
        let columns = (inband.columns() / ATOM.2) as usize;
        let mut sums: TileSums<'k> = vec![vec![zero; self.tiles.len()]; columns];
        for (i, pieces) in order.iter().enumerate() {
            if coming.is_empty() {
                coming.push(inband.read_pieces(k, slot, pieces));
            }
            let words = k.while_(coming.remove(0), late, |_| inband.read_pieces(k, slot, pieces));
            let further = order.iter().take(i + 1 + ahead).skip(i + 1 + coming.len());
            coming.extend(further.map(|pieces| inband.read_pieces(k, slot, pieces)));
            // The tags go, and the code of NaN carries into their place; products of tf32 ignore them.
            let state = |word: &U32<'k>| match inband.gemm.rounds {
                true => *word,
                false => (*word & !free) | ((*word + (OF_CODE - slot.mark)) & free),
            };
            let words: Vec<Vec<_>> = words.iter().map(|piece| piece.iter().map(state).collect()).collect();
            if inband.packs {
                self.add_unpacked(k, (pieces, &words), &mut sums);
            } else {
                self.add(k, (pieces, &words), &mut sums);
            }
            for (column, _) in pieces.all().filter(|piece| piece.1 + 1 == inband.pairs()) {
                for (tile, sum) in (0..).zip(&sums[column as usize]) {
                    let at = |down: u32, right: u32| {
                        (quad * 2 + (column * ATOM.2 + right), group + (tile * ATOM.0 + down))
                    };
                    collector.put_tile(sum, at);
                }
            }
        }
    }

    /// Multiplies what was read of some pieces.
    fn add(&self, k: K<'k>, (pieces, words): (&Pieces, &[Vec<U32<'k>>]), sums: &mut TileSums<'k>) {
        let Inband { atom, residence, .. } = self.inband;
        for slice in pieces.pairs.start * 2..pieces.pairs.end * 2 {
            let half = (slice % 2 * 2) as usize;
            for (tile, kept) in (0..).zip(&self.tiles) {
                let weights = residence.get(k, atom, (tile, kept), slice);
                for ((column, _), words) in pieces.all().zip(words).filter(|(p, _)| p.1 == slice / 2) {
                    let state = Fragment::b(k, atom, &words[half..half + 2]);
                    let sum = &mut sums[column as usize][tile as usize];
                    *sum = sum.mma(&weights, &state);
                }
            }
        }
    }

    /// The same with weights in halves: several vectors have a part in each, so that sums do not wait for
    /// themselves.
    fn add_unpacked(&self, k: K<'k>, (pieces, words): (&Pieces, &[Vec<U32<'k>>]), sums: &mut TileSums<'k>) {
        let Inband { atom, residence, .. } = self.inband;
        for pair in pieces.pairs.clone() {
            for (tile, kept) in (0..).zip(&self.tiles) {
                let both = unpack(k, atom, &residence.get(k, atom, (tile, kept), pair));
                for (weights, half) in both.iter().zip([0, PIECE as usize / 2]) {
                    for ((column, _), words) in pieces.all().zip(words).filter(|(p, _)| p.1 == pair) {
                        let state = Fragment::b(k, atom, &words[half..half + 2]);
                        let sum = &mut sums[column as usize][tile as usize];
                        *sum = sum.mma(weights, &state);
                    }
                }
            }
        }
    }
}

/// Stores neighbouring words at once.
fn store_words<'k>(k: K<'k>, to: Ptr<'k, ReadWrite, u32>, words: &[U32<'k>]) {
    let words = words.iter().map(|word| word.as_operand()).collect();
    store_global(k, ScalarType::U32, RELAXED, to.operand(), words);
}

kernel_args! {
    /// The first states, `[group][batch][hidden]` if `given`, and where they go: `pieces` of 16 bytes in each buffer.
    pub(in crate::recurrent) struct FirstArgs => FirstParams {
        h0: In<Elem>, words: Out<u32>, pieces: u32, n: u32, batch: u32, hidden: u32, given: u32,
    }
}

/// Fills the buffers before the first step, the third with the first states.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct FirstStates {
    pub(in crate::recurrent) dtype: DType,
}

impl FirstStates {
    /// Elements of a piece.
    fn of_piece(self) -> u32 {
        PIECE * 4 / self.dtype.bytes() as u32
    }
}

impl KernelDef for FirstStates {
    type Args = FirstArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("recurrent_begin_{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, p: FirstParams<'k>) {
        let at = k.block_idx_x() * THREADS + k.thread_idx();
        k.if_(at.lt(p.n), || {
            let (group, piece) = (at / p.pieces, at % p.pieces);
            let (of_piece, quads) = (self.of_piece(), CHUNK / PIECE);
            let of_chunk = of_piece * quads;
            let (quad, rest) = (piece % quads, piece / quads);
            let together = p.batch.min(ATOM.2);
            let (within, rest) = (rest % together, rest / together);
            let (chunk, column) = (rest % (p.hidden / of_chunk), rest / (p.hidden / of_chunk));
            let batch = column * ATOM.2 + within;
            let row = ((group * p.batch + batch) * p.hidden).to_u64();
            let from = p.h0.at(row + (chunk * of_chunk + quad * of_piece).to_u64());
            let there = batch.lt(p.batch) & p.given.ne(0);
            let state = from.only_where(there, Fill::Zero).cast::<u32>().load::<u32>(PIECE);
            let rounds = self.dtype == DType::F32;
            let rounded = |word: U32<'k>| F32::from_bits(word).to_tf32();
            let state =
                state.iter().map(|word| if rounds { rounded(word) } else { word }).collect::<Vec<_>>();
            let free = if rounds { LAST } else { FREE };
            let to = |buffer: u32| p.words.at(((group * BUFFERS + buffer) * p.pieces + piece) * PIECE);
            // Tags that the first steps of the other buffers do not have.
            to(0).store(vec![k.lit(free); PIECE as usize]);
            to(1).store(vec![k.lit(0u32); PIECE as usize]);
            to(2).store(state);
        });
    }
}
