//! Products of elements that have a free bit: it says which step an element is of, so that an element is its own signal and no word
//! has to carry a number beside it.
//!
//! Of `tf32` the last bit is free, as 13 bits are, whatever the number is, and products ignore it. Of 16 bits it is the second
//! highest of states below 2. The state of an LSTM, or of a plain cell with the hyperbolic tangent, is between -1 and 1, and so is that of a GRU that begins with
//! zeros. The bit above the lower bits of the
//! exponent is zero there. What is not a number becomes one that no state is, 0x3fff, and is made NaN again by whoever reads it.
//!
//! Every other time that a buffer is used the free bit is turned over. A lane reads neighbours, 16 bytes, of a vector into the
//! fragments of two products, again until the bits of all are those of the step. First states may be anything: they lie in a third
//! buffer that a launch before fills, and have no tags.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_ptx::{CacheHints, Inst, Ordering, ScalarType, Scope, Semantics, StateSpace, Target};
use warpwright_runtime::LaunchStep;

use super::exchange::{ATOM, Partial, Product, Slot, THREADS, WARPS, Weights};
use super::launches::Place;
use crate::PlanError;
use crate::plan;

/// The bits that are free, in both elements of a word of 16 bits.
const FREE: u32 = 0x4000_4000;
/// The bits of `tf32` that are ignored, and that which is used.
const IGNORED: u32 = 0x1fff;
const LAST: u32 = 1;
/// What makes a carry into them of the code of NaN.
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

const RELAXED: Ordering = Ordering::new(Semantics::Relaxed, Scope::Gpu);

/// Pieces that are read together: which tile of vectors, and which pair of slices.
type Pieces = Vec<(u32, u32)>;

impl Product {
    /// Whether the sizes allow tags.
    pub(super) fn has_tags(&self) -> bool {
        self.is_tensor() && self.depth.is_multiple_of(self.chunk())
    }

    /// Pairs of slices of a warp.
    fn pairs(&self) -> u32 {
        self.slices() / 2
    }

    /// 64-bit words of a buffer.
    fn tagged_words(&self) -> u32 {
        self.columns() / ATOM.2 * self.batch.min(ATOM.2) * self.depth / (2 * self.of_register())
    }

    /// The same of all buffers of a group.
    pub(super) fn tagged_of_group(&self) -> u32 {
        BUFFERS * self.tagged_words()
    }

    /// Floats of dynamic shared memory: stored weights, and the sums of one step then, of two otherwise.
    pub(super) fn tagged_bytes(&self) -> u32 {
        let steps = if self.stored() > 0 { 1 } else { 2 };
        self.stored_bytes() + steps * self.sums() * 4
    }

    /// Where the sums of a step lie.
    pub(super) fn tagged_sums<'k>(&self, k: K<'k>, step: U32<'k>) -> Ptr<'k, Shared, f32> {
        let all = k.dynamic_shared::<f32>();
        if self.stored() > 0 {
            return all.at(u64::from(self.stored_bytes() / 4));
        }
        all.at((step & 1) * self.sums())
    }

    /// The buffer of step `step`, and what the tags of its elements are.
    pub(super) fn tagged_slot<'k>(&self, exchange: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Slot<'k> {
        let first = step.eq(0);
        let turn = first.select(BUFFERS - 1, step & 1);
        let mark = (first | (step & 2).ne(0)).select(0u32, self.free());
        Slot { words: exchange.at((turn * self.tagged_words()).to_u64()), mark, turn }
    }

    /// The bits of a word that are free.
    fn free(&self) -> u32 {
        if self.rounds { LAST } else { FREE }
    }

    /// Where a piece begins, in words of 32 bits: that of `quad` among the four of `chunk`, of vector `within` of a tile.
    fn piece<'k>(&self, column: U32<'k>, chunk: U32<'k>, within: U32<'k>) -> U32<'k> {
        let together = self.batch.min(ATOM.2);
        ((column * (self.depth / self.chunk()) + chunk) * together + within) * CHUNK
    }

    /// Where element `at` of `batch` is.
    fn word_of<'k>(&self, batch: U32<'k>, at: U32<'k>) -> U32<'k> {
        let within = at % self.chunk() / self.of_register();
        self.piece(batch / ATOM.2, at / self.chunk(), batch % ATOM.2) + within
    }

    /// Hands the values of a unit in `batch` to all blocks, rounded.
    pub(super) fn tag_rounded<'k>(
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

    /// Hands `value` of a unit in `batch` to all blocks, with that of the lane `neighbour` further on, which is of the next
    /// unit. All lanes call it; `there` says who has an element.
    pub(super) fn tag<'k>(
        &self,
        slot: Slot<'k>,
        (batch, unit): (U32<'k>, U32<'k>),
        value: F32<'k>,
        (there, neighbour): (Pred<'k>, u32),
    ) {
        let k = value.k();
        // 0x3fff of either type.
        let code = if self.dtype == DType::BF16 { 1.992_187_5 } else { 1.999_023_437_5 };
        let value = value.is_nan().select(k.lit(code), value);
        let word = value.pack_with(value.shfl_down(neighbour), self.dtype) ^ slot.mark;
        let to = slot.words.cast::<u32>().at(self.word_of(batch, unit).to_u64());
        k.if_(there & (unit & 1).eq(0), || store_words(k, to, &[word]));
    }

    /// What is read together, in order. Weights in registers take one tile of vectors after the other; those of shared memory
    /// several at once.
    fn order(&self) -> Vec<Pieces> {
        let (columns, pairs) = (self.columns() / ATOM.2, self.pairs());
        if self.stored() == 0 {
            return (0..columns).map(|c| (0..pairs).map(|p| (c, p)).collect()).collect();
        }
        let of = |first: u32| {
            let last = (first + TOGETHER).min(columns);
            (0..pairs).map(move |p| (first..last).map(|c| (c, p)).collect())
        };
        (0..columns).step_by(TOGETHER as usize).flat_map(of).collect()
    }

    /// Reads the pieces of some vectors of a step, as they are now.
    fn read_pieces<'k>(&self, k: K<'k>, slot: Slot<'k>, pieces: &Pieces) -> Vec<Vec<U32<'k>>> {
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let (pairs, chunks) = (self.pairs(), self.depth / self.chunk());
        let words = slot.words.cast::<u32>();
        let own = words.at((self.piece(k.lit(0u32), k.warp_idx() * pairs, group) + quad * PIECE).to_u64());
        let place = |&(column, pair): &(u32, u32)| {
            let full = self.batch >= (column + 1) * ATOM.2;
            if full && chunks == pairs * WARPS {
                let apart = (column * chunks + pair) * ATOM.2 * CHUNK;
                return own.at(u64::from(apart));
            }
            // Lanes beyond the last vector read what others read, nobody looks at their sums; so do warps without a part, whose
            // weights are zero.
            let within = group.min((self.batch - 1 - column * ATOM.2).min(ATOM.2 - 1));
            let chunk = (k.warp_idx() * pairs + pair).min(chunks - 1);
            words.at((self.piece(k.lit(column), chunk, within) + quad * PIECE).to_u64())
        };
        pieces.iter().map(|piece| read_piece(k, place(piece))).collect()
    }

    /// Waits for the vectors of step `step` and multiplies them.
    pub(super) fn multiply_tagged<'k>(
        &self,
        k: K<'k>,
        (step, slot): (U32<'k>, Slot<'k>),
        weights: &Weights<'k>,
        mut emit: impl FnMut(Partial<'k>),
    ) {
        let (Weights::Tensor(tiles) | Weights::Packed(tiles, _)) = weights else { return };
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let free = step.eq(0).select(0u32, self.free());
        let late = |words: &Vec<Vec<U32<'k>>>| {
            let others = words.iter().flatten().map(|word| *word ^ slot.mark);
            (others.reduce(|a, b| a | b).unwrap_or(free) & free).ne(0).vote_any()
        };
        let order = self.order();
        // What comes first is waited for alone: reading in vain is in the way of what is there. The rest is there soon behind it.
        let ahead = (AHEAD / (PIECE * order.first().map_or(1, Vec::len) as u32)) as usize;
        let mut coming = Vec::new();
        let zero = Accumulator::<f32>::zero(k, self.atom());
        let mut sums = vec![vec![zero; tiles.len()]; (self.columns() / ATOM.2) as usize];
        for (i, pieces) in order.iter().enumerate() {
            if coming.is_empty() {
                coming.push(self.read_pieces(k, slot, pieces));
            }
            let words = k.while_(coming.remove(0), late, |_| self.read_pieces(k, slot, pieces));
            let further = order.iter().take(i + 1 + ahead).skip(i + 1 + coming.len());
            coming.extend(further.map(|pieces| self.read_pieces(k, slot, pieces)));
            // The tags go, and the code of NaN carries into their place; products of tf32 ignore them.
            let state = |word: &U32<'k>| match self.rounds {
                true => *word,
                false => (*word & !free) | ((*word + (OF_CODE - slot.mark)) & free),
            };
            let words: Vec<Vec<_>> = words.iter().map(|piece| piece.iter().map(state).collect()).collect();
            self.add_pieces(k, pieces, &words, tiles, &mut sums);
            for &(column, _) in pieces.iter().filter(|piece| piece.1 + 1 == self.pairs()) {
                for (tile, sum) in (0..).zip(&sums[column as usize]) {
                    for ((down, right), value) in sum.offsets().zip(sum.lanes().iter()) {
                        let batch = quad * 2 + (column * ATOM.2 + right);
                        emit(Partial { batch, row: group + (tile * ATOM.0 + down), sum: value, there: None });
                    }
                }
            }
        }
    }

    /// Multiplies what was read of some pieces.
    fn add_pieces<'k>(
        &self,
        k: K<'k>,
        pieces: &Pieces,
        words: &[Vec<U32<'k>>],
        tiles: &[Vec<Fragment<'k, MatrixA>>],
        sums: &mut [Vec<Accumulator<'k, f32>>],
    ) {
        let Some(&(_, last)) = pieces.last() else { return };
        let Some(&(_, first)) = pieces.first() else { return };
        if self.packs() {
            return self.add_unpacked(k, (pieces, words), tiles, sums);
        }
        for slice in first * 2..(last + 1) * 2 {
            let half = (slice % 2 * 2) as usize;
            for (tile, weights) in (0..).zip(tiles) {
                let weights = self.weight(k, weights, tile, slice);
                for ((column, _), words) in pieces.iter().zip(words).filter(|(p, _)| p.1 == slice / 2) {
                    let state = Fragment::b(k, self.atom(), &words[half..half + 2]);
                    let sum = &mut sums[*column as usize][tile as usize];
                    *sum = sum.mma(&weights, &state);
                }
            }
        }
    }

    /// The same with weights in halves. Several vectors have a part in each, so that sums do not wait for themselves.
    fn add_unpacked<'k>(
        &self,
        k: K<'k>,
        (pieces, words): (&Pieces, &[Vec<U32<'k>>]),
        tiles: &[Vec<Fragment<'k, MatrixA>>],
        sums: &mut [Vec<Accumulator<'k, f32>>],
    ) {
        let Some(&(_, pair)) = pieces.first() else { return };
        for (tile, weights) in (0..).zip(tiles) {
            let both = self.unpacked(k, &self.weight(k, weights, tile, pair));
            for (weights, half) in both.iter().zip([0, PIECE as usize / 2]) {
                for ((column, _), words) in pieces.iter().zip(words) {
                    let state = Fragment::b(k, self.atom(), &words[half..half + 2]);
                    let sum = &mut sums[*column as usize][tile as usize];
                    *sum = sum.mma(weights, &state);
                }
            }
        }
    }
}

/// Stores neighbouring words at once.
fn store_words<'k>(k: K<'k>, to: Ptr<'k, ReadWrite, u32>, words: &[U32<'k>]) {
    k.raw(Inst::St {
        space: StateSpace::Global,
        ty: ScalarType::U32,
        ordering: RELAXED,
        hints: CacheHints::NONE,
        srcs: words.iter().map(|word| word.as_operand()).collect(),
        addr: to.operand(),
    });
}

/// The four words of a piece, as they are now.
fn read_piece<'k>(k: K<'k>, from: Ptr<'k, ReadWrite, u32>) -> Vec<U32<'k>> {
    let words: Vec<_> = (0..PIECE).map(|_| k.raw_reg::<u32>()).collect();
    k.raw(Inst::Ld {
        space: StateSpace::Global,
        ty: ScalarType::U32,
        ordering: RELAXED,
        hints: CacheHints::NONE,
        non_coherent: false,
        dsts: words.iter().map(|word| Some(word.id())).collect(),
        addr: from.operand(),
    });
    words
}

kernel_args! {
    /// The first states, `[group][batch][hidden]` if `given`, and where they go: `pieces` of 16 bytes in each buffer.
    pub(super) struct BeginArgs => BeginParams {
        h0: In<Elem>, words: Out<u32>, pieces: u32, n: u32, batch: u32, hidden: u32, given: u32,
    }
}

/// Fills the buffers of tagged states before the first step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    pub(super) dtype: DType,
}

impl Begin {
    /// Elements of a piece.
    fn of_piece(self) -> u32 {
        PIECE * 4 / self.dtype.bytes() as u32
    }
}

impl KernelDef for Begin {
    type Args = BeginArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("recurrent_begin_{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, p: BeginParams<'k>) {
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

/// The launch that fills the buffers of `product`, which are at `exchange`.
pub(super) fn begin(
    op: &'static str,
    target: Target,
    product: &Product,
    [h0, exchange]: [Place; 2],
    given: bool,
) -> Result<LaunchStep, PlanError> {
    let pieces = product.tagged_words() / 2;
    let n = product.groups * pieces;
    let args = BeginArgs {
        h0: h0.read(),
        words: exchange.write(),
        pieces,
        n,
        batch: product.batch,
        hidden: product.depth,
        given: u32::from(given),
    };
    let grid = plan::cover(op, n as usize, THREADS)?;
    let kernel = plan::recorded(op, &Begin { dtype: product.dtype }, target)?;
    Ok(LaunchStep::new(kernel, grid.unwrap_or([1; 3]), args.values()))
}
