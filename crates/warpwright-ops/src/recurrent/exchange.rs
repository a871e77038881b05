//! A product that all blocks make together in every step, each with the rows that it keeps in registers.
//!
//! The blocks hand each other the vectors of a step through the L2 cache. There is no barrier: a word of the exchange holds
//! an element, or two of 16 bits, and the number of its step, written and read at once as 64 bits; who needs it reads until
//! the number is right. Two buffers take turns: a block publishes step `t + 1` after all of its warps have read step `t`,
//! and reads `t + 1` of all blocks before it overwrites `t`.
//!
//! The products of 16-bit elements are those of tensor cores, rows of the block by batches; the common dimension is shared
//! by the warps, whose sums meet in shared memory. Those of `f32` are made by threads that hold two elements of the vectors
//! each, and sums are added by shuffles first.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, kernel_args};
use warpwright_ptx::{CacheHints, Inst, Ordering, ScalarType, Scope, Semantics, StateSpace, Target};
use warpwright_runtime::LaunchStep;

use super::Place;
use super::staged::{FLAGS, QUAD};
use super::tuning::Exchange;
use crate::PlanError;
use crate::plan;

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
pub(super) const WARPS: u32 = THREADS / WARP;
/// Pairs of words that a lane waits for together; each takes four registers.
const WAITED: u32 = 16;
/// Rows and common dimension of a product on tensor cores, and its columns.
pub(super) const ATOM: (u32, u32, u32) = (16, 16, 8);
/// Elements of 16 bits that a lane reads at once, which are of two slices.
pub(super) const OCTET: u32 = 8;
/// Elements of two slices.
pub(super) const SLICES: u32 = 2 * ATOM.1;

/// The product of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) dtype: DType,
    /// Rows of a block.
    pub(super) rows: u32,
    /// The common dimension: elements of a vector, an even number of them, of 16 bits a multiple of 16.
    pub(super) depth: u32,
    /// Vectors of a block.
    pub(super) batch: u32,
    /// Units of the net, which have equal parts of the common dimension, and of a block.
    pub(super) hidden: u32,
    pub(super) units: u32,
    /// Groups of blocks with as many vectors each, which exchange nothing with one another.
    pub(super) groups: u32,
    pub(super) exchange: Exchange,
    /// Whether factors of `f32` are rounded to `tf32`.
    pub(super) rounds: bool,
}

/// The matrix: where the element `depth` of row `row` of the block is, and whether the elements of a row are neighbours.
pub(super) struct Matrix<'k, F> {
    pub(super) elements: Ptr<'k, Read, Elem>,
    pub(super) at: F,
    pub(super) dense: bool,
}

/// Sums of the block's rows over the part of the common dimension that a warp, or after shuffles a lane, has.
pub(super) struct Partial<'k> {
    pub(super) batch: U32<'k>,
    pub(super) row: U32<'k>,
    pub(super) sum: F32<'k>,
    /// Whether this thread has it.
    pub(super) there: Option<Pred<'k>>,
}

/// The rows of a thread.
pub(super) enum Weights<'k> {
    /// In tiles of 16, by slices.
    Tensor(Vec<Vec<Fragment<'k, MatrixA>>>),
    /// The same in halves, by pairs of slices, and what sums are multiplied by.
    Packed(Vec<Vec<Fragment<'k, MatrixA>>>, F32<'k>),
    /// By slices, rows of pairs or of four.
    Single(Vec<Vec<Lanes<'k, f32>>>),
}

/// The buffer of a step, and what its words are marked with.
#[derive(Clone, Copy)]
pub(super) struct Slot<'k> {
    pub(super) words: Ptr<'k, ReadWrite, u64>,
    pub(super) mark: U32<'k>,
    /// Which of the two buffers it is.
    pub(super) turn: U32<'k>,
}

impl<'k, F: Fn(U32<'k>, U32<'k>) -> U64<'k>> Matrix<'k, F> {
    /// Elements of 16 bits at `depth`, an even one, and behind it; zeros where they are not `there`.
    pub(super) fn word(&self, row: U32<'k>, depth: U32<'k>, there: Pred<'k>) -> U32<'k> {
        if self.dense {
            let words = self.elements.cast::<u32>();
            return words.at((self.at)(row, depth) >> 1).only_where(there, Fill::Zero).get();
        }
        let half = |depth: U32<'k>| -> U32<'k> {
            let from = self.elements.cast::<u16>().at((self.at)(row, depth));
            from.only_where(there, Fill::Zero).get()
        };
        half(depth) | (half(depth + 1) << 16)
    }

    /// The element of `f32` at `depth`, rounded to `tf32`.
    fn rounded(&self, row: U32<'k>, depth: U32<'k>, there: Pred<'k>) -> U32<'k> {
        self.elements.at((self.at)(row, depth)).only_where(there, Fill::Zero).get::<f32>().to_tf32()
    }
}

impl Product {
    pub(super) fn is_half(&self) -> bool {
        self.dtype != DType::F32
    }

    /// The type of the factors, as names of kernels say it.
    pub(super) fn factors(&self) -> String {
        if self.rounds { "tf32".to_owned() } else { self.dtype.to_string() }
    }

    /// Elements of a register.
    pub(super) fn of_register(&self) -> u32 {
        4 / self.dtype.bytes() as u32
    }

    /// Elements of two slices.
    pub(super) fn chunk(&self) -> u32 {
        2 * self.atom().k()
    }

    /// Whether tensor cores multiply.
    pub(super) fn is_tensor(&self) -> bool {
        self.is_half() || self.rounds
    }

    /// Rows in whole tiles.
    pub(super) fn padded(&self) -> u32 {
        if self.is_tensor() { self.rows.next_multiple_of(ATOM.0) } else { self.rows.next_power_of_two() }
    }

    /// Batches in whole products, or in whole groups.
    pub(super) fn columns(&self) -> u32 {
        if let Some(staging) = self.staging().filter(|_| self.exchange == Exchange::Blocks) {
            return self.batch.next_multiple_of(staging.rows);
        }
        let together = match self.exchange {
            Exchange::Cluster(_) => self.shape().map_or(1, |shape| shape.together),
            _ => 1,
        };
        self.batch.next_multiple_of(if self.is_tensor() { ATOM.2 } else { together })
    }

    /// Floats between the batches of a warp's sums, four more than rows so that lanes meet no bank twice.
    pub(super) fn pitch(&self) -> u32 {
        self.padded() + 4
    }

    /// Floats between the sums of warps.
    fn of_warp(&self) -> u32 {
        match self.exchange {
            Exchange::Words | Exchange::Tags | Exchange::Cluster(_) => self.columns() * self.pitch(),
            Exchange::Blocks => self.staged_of_warp(),
        }
    }

    /// Sums of all warps, or parts of the common dimension, in a step.
    pub(super) fn sums(&self) -> u32 {
        self.parts() * self.of_warp()
    }

    /// Bytes of dynamic shared memory: the sums of two steps, or those of one and the stages.
    pub(super) fn shared_bytes(&self) -> u32 {
        match self.exchange {
            Exchange::Words => 2 * self.sums() * 4,
            Exchange::Tags => self.tagged_bytes(),
            Exchange::Blocks => self.staged_bytes(),
            Exchange::Cluster(_) => self.cluster_bytes(),
        }
    }

    /// Words that all groups exchange.
    pub(super) fn words(&self) -> u32 {
        self.groups * self.of_group().0
    }

    /// Words of both buffers and flags of a group, and how many of them are zero before the first step.
    fn of_group(&self) -> (u32, u32) {
        match self.exchange {
            Exchange::Words => (2 * self.buffer(), 2 * self.buffer()),
            Exchange::Tags => (self.tagged_of_group(), 0),
            Exchange::Blocks => (FLAGS + 2 * self.staged_words(), FLAGS),
            Exchange::Cluster(_) => (0, 0),
        }
    }

    /// The words of the block's group.
    pub(super) fn own<'k>(&self, k: K<'k>, exchange: Ptr<'k, ReadWrite, u64>) -> Ptr<'k, ReadWrite, u64> {
        if self.groups == 1 { exchange } else { exchange.at((k.block_idx_y() * self.of_group().0).to_u64()) }
    }

    /// The first of the block's vectors.
    pub(super) fn first<'k>(&self, k: K<'k>) -> Option<U32<'k>> {
        (self.groups > 1).then(|| k.block_idx_y() * self.batch)
    }

    /// Words of one of the two buffers.
    fn buffer(&self) -> u32 {
        if !self.is_half() {
            return self.batch * self.depth;
        }
        self.columns() / ATOM.2 * self.together() * self.depth / 2
    }

    /// Batches whose words lie together: those of a product, or fewer if there are no more.
    fn together(&self) -> u32 {
        self.batch.min(ATOM.2)
    }

    /// Where the word of element `place`, an even one for pairs, of `batch` lies in a buffer. In 16 bits, what a warp reads at
    /// once lies together, and so do the two words that a lane needs: of 16 elements, pairs `q` and `q + 4`. A last product
    /// that is not full has the room of a full one.
    fn word<'k>(&self, batch: U32<'k>, place: U32<'k>) -> U32<'k> {
        if !self.is_half() {
            return batch * self.depth + place;
        }
        let (slice, within) = (place >> 4, place & 15);
        let pair = ((within >> 1) & 3) * 2 + (within >> 3);
        self.pair(batch / ATOM.2, slice, batch % ATOM.2) + pair
    }

    /// Where the words of a slice of 16 elements begin, for batch `within` of product `column`.
    fn pair<'k>(&self, column: U32<'k>, slice: U32<'k>, within: U32<'k>) -> U32<'k> {
        ((column * (self.depth / ATOM.1) + slice) * self.together() + within) * 8
    }

    /// The buffer of step `step`; zero, which memory begins with, marks none.
    pub(super) fn slot<'k>(&self, exchange: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Slot<'k> {
        let (first, buffer) = match self.exchange {
            Exchange::Words => (0, self.buffer()),
            Exchange::Blocks => (FLAGS, self.staged_words()),
            Exchange::Tags => return self.tagged_slot(exchange, step),
            Exchange::Cluster(_) => return Slot { words: exchange, mark: step, turn: step & 1 },
        };
        let turn = step & 1;
        let words = exchange.at(turn.to_u64() * u64::from(buffer)).at(u64::from(first));
        Slot { words, mark: step + 1, turn }
    }

    /// The row of the weights that element `depth` of a vector multiplies. Where blocks hand over all elements of a unit at
    /// once, they are neighbours in a vector.
    pub(super) fn origin<'k>(&self, depth: U32<'k>) -> U32<'k> {
        let parts = self.depth / self.hidden;
        match self.exchange {
            Exchange::Words => depth,
            Exchange::Blocks | Exchange::Tags => depth % parts * self.hidden + depth / parts,
            Exchange::Cluster(_) => self.origin_in_cluster(depth),
        }
    }

    /// Hands the values of a unit in `batch` to all blocks; see [`publish`](Self::publish), [`leave`](Self::leave) and
    /// [`spread`](Self::spread).
    pub(super) fn hand<'k>(
        &self,
        slot: Slot<'k>,
        batch: U32<'k>,
        unit: U32<'k>,
        values: &[F32<'k>],
        who: (Pred<'k>, u32),
    ) {
        match self.exchange {
            Exchange::Blocks => self.leave(slot, batch, unit, values, who),
            Exchange::Cluster(_) => self.spread(slot, (batch, unit), values, who),
            Exchange::Tags if self.rounds => self.tag_rounded(slot, (batch, unit), values, who.0),
            Exchange::Tags => values.iter().for_each(|value| self.tag(slot, (batch, unit), *value, who)),
            Exchange::Words => {
                for (part, value) in (0..).zip(values) {
                    self.publish(slot, batch, unit + part * self.hidden, *value, who);
                }
            }
        }
    }

    /// All threads come here after they have handed over what they have of step `step`.
    pub(super) fn handed<'k>(&self, k: K<'k>, exchange: Ptr<'k, ReadWrite, u64>, step: U32<'k>) {
        match self.exchange {
            // Sums that there is room for once have been read by all.
            Exchange::Tags if self.stored() > 0 => k.barrier(),
            Exchange::Words | Exchange::Tags => {}
            Exchange::Blocks => self.raise(k, exchange, step),
            Exchange::Cluster(_) => self.sent(k),
        }
    }

    /// Hands `value`, element `place` of `batch`, to all blocks. Of 16 bits, the element behind it is that of the lane
    /// `neighbour` further on, and both go together from the even place. All lanes call it; `there` says who has an element.
    fn publish<'k>(
        &self,
        slot: Slot<'k>,
        batch: U32<'k>,
        place: U32<'k>,
        value: F32<'k>,
        (there, neighbour): (Pred<'k>, u32),
    ) {
        let k = value.k();
        let (word, there) = if self.is_half() {
            let next = value.shfl_down(neighbour);
            (value.pack_with(next, self.dtype), there & (place & 1).eq(0))
        } else {
            (value.to_bits(), there)
        };
        k.if_(there, || {
            let to = slot.words.at(self.word(batch, place).to_u64());
            store_word(k, to, U64::from_words(word, slot.mark));
        });
    }

    /// Slices of 16 elements that a warp multiplies, of 8 in `tf32`, or pairs that a thread does.
    pub(super) fn slices(&self) -> u32 {
        match self.exchange {
            Exchange::Tags => 2 * (self.depth / self.chunk()).div_ceil(WARPS),
            _ if self.is_tensor() => (self.depth / self.atom().k()).div_ceil(WARPS),
            _ => self.depth.div_ceil(2 * THREADS),
        }
    }

    /// Fragments of weights of a tile that are in registers.
    fn kept(&self) -> u32 {
        match self.exchange {
            Exchange::Blocks | Exchange::Tags => self.fragments() - self.stored(),
            _ => self.slices(),
        }
    }

    /// Where the elements of slice `slice` of the warp begin that the lane multiplies, and how far apart its two pairs are, or its
    /// two elements of `f32`: it reads 16 bytes for two slices, or what it needs of each slice.
    fn pairs_of_slice<'k>(&self, k: K<'k>, slice: u32) -> (U32<'k>, u32) {
        let (first, quad) = (k.warp_idx() * self.slices(), k.lane_idx() & 3);
        match self.exchange {
            Exchange::Tags => {
                let of_register = self.of_register();
                let within = quad * (4 * of_register) + slice % 2 * (2 * of_register);
                ((first + slice / 2 * 2) * self.atom().k() + within, of_register)
            }
            _ => {
                let of_slice = self.atom().k();
                ((first + slice) * of_slice + quad * self.of_register(), of_slice / 2)
            }
        }
    }

    /// The weights of a tile's slice, from registers or from shared memory.
    pub(super) fn weight<'k>(
        &self,
        k: K<'k>,
        kept: &[Fragment<'k, MatrixA>],
        tile: u32,
        slice: u32,
    ) -> Fragment<'k, MatrixA> {
        match slice.checked_sub(self.kept()) {
            None => kept[slice as usize].clone(),
            Some(stored) => {
                let words: Lanes<'k, u32> = self.stored_at(k, tile, stored).load(QUAD);
                Fragment::a(k, self.atom(), words.as_slice())
            }
        }
    }

    /// The part of the matrix that the thread multiplies by.
    pub(super) fn weights<'k, F: Fn(U32<'k>, U32<'k>) -> U64<'k>>(
        &self,
        k: K<'k>,
        matrix: &Matrix<'k, F>,
    ) -> Weights<'k> {
        if self.is_tensor() {
            if let Exchange::Cluster(_) = self.exchange {
                return self.cluster_tile(k, matrix);
            }
            let group = k.lane_idx() >> 2;
            let of_slice = |tile: u32, slice: u32| {
                let (depth, apart) = self.pairs_of_slice(k, slice);
                let inside = depth.lt(self.depth);
                let word = |down: u32, right: u32| -> U32<'k> {
                    let row = group + (tile * ATOM.0 + down);
                    let there = if self.padded() == self.rows { inside } else { inside & row.lt(self.rows) };
                    if self.rounds {
                        matrix.rounded(row, depth + right, there)
                    } else {
                        matrix.word(row, depth + right, there)
                    }
                };
                let registers = [word(0, 0), word(8, 0), word(0, apart), word(8, apart)];
                Fragment::a(k, self.atom(), &registers)
            };
            if self.packs() {
                let [factor, inverse] = self.factor(k, matrix);
                let of_pair = |tile: u32, pair: u32| {
                    let [even, odd] = [2 * pair, 2 * pair + 1].map(|slice| of_slice(tile, slice).words());
                    let scaled = |word: &U32<'k>| F32::from_bits(*word) * factor;
                    let both = |(a, b)| scaled(a).pack_with(scaled(b), DType::F16);
                    Fragment::a(k, self.atom(), &even.iter().zip(&odd).map(both).collect::<Vec<_>>())
                };
                return Weights::Packed(self.share_out(k, of_pair), inverse);
            }
            return Weights::Tensor(self.share_out(k, of_slice));
        }
        if self.exchange != Exchange::Words {
            return self.staged_singles(k, matrix);
        }
        let of_pair = |slice: u32| {
            let depth = (k.thread_idx() + slice * THREADS) * 2;
            let there = depth.lt(self.depth);
            let row = |row: u32| {
                let from = |depth: U32<'k>| {
                    matrix.elements.at((matrix.at)(k.lit(row), depth)).only_where(there, Fill::Zero)
                };
                if matrix.dense {
                    return from(depth).load::<f32>(2);
                }
                [from(depth).get(), from(depth + 1).get()].into_iter().collect()
            };
            (0..self.rows).map(row).collect()
        };
        Weights::Single((0..self.slices()).map(of_pair).collect())
    }

    /// The fragments that stay in registers, by tiles; the others go to shared memory.
    fn share_out<'k>(
        &self,
        k: K<'k>,
        fragment: impl Fn(u32, u32) -> Fragment<'k, MatrixA>,
    ) -> Vec<Vec<Fragment<'k, MatrixA>>> {
        if matches!(self.exchange, Exchange::Blocks | Exchange::Tags) {
            self.store(k, &fragment);
        }
        let of_tile = |tile| (0..self.kept()).map(|at| fragment(tile, at)).collect();
        (0..self.padded() / ATOM.0).map(of_tile).collect()
    }

    pub(super) fn atom(&self) -> MmaAtom {
        MmaAtom::of(self.dtype).unwrap_or(MmaAtom::BF16)
    }

    /// Waits for the vectors of step `step` and multiplies them; returns where the block's sums are, after the one barrier of
    /// a step: the sums of the next go to the other half of the shared memory, unless [`handed`](Self::handed) has another.
    pub(super) fn multiply<'k>(
        &self,
        k: K<'k>,
        exchange: Ptr<'k, ReadWrite, u64>,
        step: U32<'k>,
        weights: &Weights<'k>,
    ) -> Sums<'k> {
        let slot = self.slot(exchange, step);
        let to = match self.exchange {
            Exchange::Words => k.dynamic_shared::<f32>().at((step & 1) * self.sums()),
            Exchange::Tags => self.tagged_sums(k, step),
            Exchange::Blocks => k.dynamic_shared::<f32>().at(u64::from(self.stored_bytes() / 4)),
            Exchange::Cluster(_) => {
                k.dynamic_shared::<f32>().at(slot.turn * self.sums()).at(u64::from(self.buffers_bytes() / 4))
            }
        };
        let (warp, _) = self.part(k);
        let emit = |partial: Partial<'k>| {
            let place = warp * self.of_warp() + partial.batch * self.pitch() + partial.row;
            match partial.there {
                Some(there) => k.if_(there, || to.at(place).set(partial.sum)),
                None => to.at(place).set(partial.sum),
            }
        };
        match weights {
            _ if self.exchange == Exchange::Tags => {
                self.multiply_tagged(k, (step, slot), weights, emit);
            }
            _ if self.exchange == Exchange::Blocks => {
                self.multiply_staged(k, (exchange, slot), weights, emit);
            }
            _ if self.exchange != Exchange::Words => self.multiply_cluster(k, slot, weights, emit),
            Weights::Tensor(tiles) => self.multiply_halves(k, slot, tiles, emit),
            Weights::Single(slices) => self.multiply_singles(k, slot, slices, emit),
            // Tags alone have them.
            Weights::Packed(..) => {}
        }
        k.barrier();
        let factor = if let Weights::Packed(_, inverse) = weights { Some(*inverse) } else { None };
        Sums { sums: to, product: *self, factor }
    }

    fn multiply_halves<'k>(
        &self,
        k: K<'k>,
        slot: Slot<'k>,
        weights: &[Vec<Fragment<'k, MatrixA>>],
        mut emit: impl FnMut(Partial<'k>),
    ) {
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let warp = k.warp_idx();
        let columns: Vec<u32> = (0..self.columns() / ATOM.2).collect();
        let groups = self.depth / ATOM.1;
        let place = |column: u32, slice: u32| {
            // Lanes beyond the last batch read what others read; nobody looks at their sums.
            let within = group.min((self.batch - 1 - column * ATOM.2).min(ATOM.2 - 1));
            // So do warps without a part: their weights are zero.
            let of_slice = (warp * self.slices() + slice).min(groups - 1);
            slot.words.at(self.pair(k.lit(column), of_slice, within) + quad * 2)
        };
        let zero = Accumulator::<f32>::zero(k, self.atom());
        let all: Vec<u32> = (0..self.slices()).collect();
        // All slices of several products together, or some slices of one, in parts of a size.
        let at_once = self.slices().div_ceil(self.slices().div_ceil(WAITED));
        let together = (WAITED / self.slices()).max(1) as usize;
        for columns in columns.chunks(together) {
            let mut sums = vec![vec![zero.clone(); weights.len()]; columns.len()];
            for slices in all.chunks(at_once as usize) {
                let places: Vec<_> =
                    columns.iter().flat_map(|c| slices.iter().map(|s| place(*c, *s))).collect();
                let words = wait_for(k, &places, slot.mark);
                for (sums, words) in sums.iter_mut().zip(words.chunks(slices.len())) {
                    let state: Vec<_> = words.iter().map(|pair| Fragment::b(k, self.atom(), pair)).collect();
                    for (sum, tile) in sums.iter_mut().zip(weights) {
                        let weights = slices.iter().map(|s| &tile[*s as usize]);
                        *sum = weights.zip(&state).fold(sum.clone(), |sum, (a, b)| sum.mma(a, b));
                    }
                }
            }
            for (column, sums) in columns.iter().zip(sums) {
                for (tile, sum) in (0..).zip(sums) {
                    for ((down, right), value) in sum.offsets().zip(sum.lanes().iter()) {
                        emit(Partial {
                            batch: quad * 2 + (column * ATOM.2 + right),
                            row: group + (tile * ATOM.0 + down),
                            sum: value,
                            there: None,
                        });
                    }
                }
            }
        }
    }

    fn multiply_singles<'k>(
        &self,
        k: K<'k>,
        slot: Slot<'k>,
        weights: &[Vec<Lanes<'k, f32>>],
        mut emit: impl FnMut(Partial<'k>),
    ) {
        let together = (WAITED / self.slices()).max(1);
        let batches: Vec<u32> = (0..self.batch).collect();
        for batches in batches.chunks(together as usize) {
            let place = |batch: u32, slice: u32| {
                let place = ((k.thread_idx() + slice * THREADS) * 2).min(self.depth - 2);
                slot.words.at(place + batch * self.depth)
            };
            let slices = 0..self.slices();
            let places: Vec<_> = batches.iter().flat_map(|b| slices.clone().map(|s| place(*b, s))).collect();
            let words = wait_for(k, &places, slot.mark);
            for (batch, words) in batches.iter().zip(words.chunks(self.slices() as usize)) {
                let zero = k.lit(0.0f32);
                let mut sums = vec![zero; self.rows as usize];
                for (words, rows) in words.iter().zip(weights) {
                    let state = words.map(F32::from_bits);
                    for (sum, weight) in sums.iter_mut().zip(rows) {
                        *sum = weight[1].mul_add(state[1], weight[0].mul_add(state[0], *sum));
                    }
                }
                sums.resize(self.padded() as usize, zero);
                let batch = k.lit(*batch);
                share(k, sums, WARP, |row, sum, there| emit(Partial { batch, row, sum, there }));
            }
        }
    }
}

/// Adds sums over `lanes` neighbouring lanes: lanes give away half of theirs until each has one, or several lanes share one.
/// `emit` takes the number of a sum, and which lanes have it.
pub(super) fn share<'k>(
    k: K<'k>,
    mut sums: Vec<F32<'k>>,
    lanes: u32,
    mut emit: impl FnMut(U32<'k>, F32<'k>, Option<Pred<'k>>),
) {
    let lane = k.lane_idx();
    let mut index = k.lit(0u32);
    let mut distance = lanes / 2;
    while sums.len() > 1 && distance > 0 {
        let half = sums.len() / 2;
        let upper = (lane & distance).ne(0);
        index = index + upper.select(k.lit(half as u32), k.lit(0u32));
        sums = (0..half)
            .map(|i| {
                let (kept, given) =
                    (upper.select(sums[i + half], sums[i]), upper.select(sums[i], sums[i + half]));
                kept + given.shfl_xor(distance)
            })
            .collect();
        distance /= 2;
    }
    let mut there = None;
    while distance > 0 {
        sums.iter_mut().for_each(|sum| *sum = *sum + sum.shfl_xor(distance));
        let first = (lane & distance).eq(0);
        there = Some(there.map_or(first, |there: Pred<'k>| there & first));
        distance /= 2;
    }
    for (i, sum) in (0..).zip(sums) {
        emit(index + i, sum, there);
    }
}

/// The sums of a step, by warps, in shared memory.
pub(super) struct Sums<'k> {
    sums: Ptr<'k, Shared, f32>,
    product: Product,
    factor: Option<F32<'k>>,
}

impl<'k> Sums<'k> {
    /// The sum of row `row` of the block with vector `batch`; zero where it is not `there`.
    pub(super) fn of(&self, batch: U32<'k>, row: U32<'k>, there: Pred<'k>) -> F32<'k> {
        let of_warp = |warp: u32| {
            let place = batch * self.product.pitch() + row + warp * self.product.of_warp();
            self.sums.at(place).only_where(there, Fill::Zero).get::<f32>()
        };
        let parts: Lanes<'k, f32> = (0..self.product.parts()).map(of_warp).collect();
        self.total(&parts)
    }

    /// The sum of what the warps have.
    fn total(&self, parts: &Lanes<'k, f32>) -> F32<'k> {
        let sum = parts.reduce(|a, b| a + b).unwrap_or(parts[0]);
        self.factor.map_or(sum, |factor| sum * factor)
    }

    /// The sums of `count` rows from `row` on, which is a multiple of `count`.
    pub(super) fn of_rows(&self, batch: U32<'k>, row: U32<'k>, count: u32, there: Pred<'k>) -> Vec<F32<'k>> {
        if !count.is_power_of_two() {
            return (0..count).map(|i| self.of(batch, row + i, there)).collect();
        }
        let of_warp = |warp: u32| {
            let place = batch * self.product.pitch() + row + warp * self.product.of_warp();
            self.sums.at(place).only_where(there, Fill::Zero).load::<f32>(count)
        };
        let warps: Vec<Lanes<'k, f32>> = (0..self.product.parts()).map(of_warp).collect();
        let sum = |i: usize| {
            let parts: Lanes<'k, f32> = warps.iter().map(|rows| rows[i]).collect();
            self.total(&parts)
        };
        (0..count as usize).map(sum).collect()
    }
}

const RELAXED: Ordering = Ordering::new(Semantics::Relaxed, Scope::Gpu);

fn store_word<'k>(k: K<'k>, to: Ptr<'k, ReadWrite, u64>, word: U64<'k>) {
    k.raw(Inst::St {
        space: StateSpace::Global,
        ty: ScalarType::U64,
        ordering: RELAXED,
        hints: CacheHints::NONE,
        srcs: vec![word.as_operand()],
        addr: to.operand(),
    });
}

/// The lower halves of two words from each of `places` on, read until the upper halves are `tag`.
fn wait_for<'k>(k: K<'k>, places: &[Ptr<'k, ReadWrite, u64>], tag: U32<'k>) -> Vec<[U32<'k>; 2]> {
    let read = || -> Vec<[U64<'k>; 2]> {
        let load = |place: &Ptr<'k, ReadWrite, u64>| {
            let words = [k.raw_reg::<u64>(), k.raw_reg::<u64>()];
            k.raw(Inst::Ld {
                space: StateSpace::Global,
                ty: ScalarType::U64,
                ordering: RELAXED,
                hints: CacheHints::NONE,
                non_coherent: false,
                dsts: words.iter().map(|w| Some(w.id())).collect(),
                addr: place.operand(),
            });
            words
        };
        places.iter().map(load).collect()
    };
    let late = |words: &Vec<[U64<'k>; 2]>| {
        let different = words.iter().flatten().map(|word| word.words().1 ^ tag);
        // The whole warp goes on together: its products need all lanes.
        different.reduce(|a, b| a | b).unwrap_or(tag).ne(0).vote_any()
    };
    let words = k.while_(read(), late, |_| read());
    words.iter().map(|pair| pair.map(|word| word.words().0)).collect()
}

kernel_args! {
    /// The first `part` words of every `stride`, `n` in all.
    pub(super) struct ClearArgs => ClearParams { words: Out<u64>, n: u32, part: u32, stride: u32 }
}

/// Makes what has to be zero of the exchange so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clear;

impl KernelDef for Clear {
    type Args = ClearArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("recurrent_clear_exchange".to_owned(), BlockDim::x(THREADS))
    }

    fn build<'k>(&self, k: K<'k>, p: ClearParams<'k>) {
        let at = k.block_idx_x() * THREADS + k.thread_idx();
        k.if_(at.lt(p.n), || p.words.at((at / p.part * p.stride + at % p.part).to_u64()).set(0u64));
    }
}

/// The launch that makes the exchange of a product zero, if it has one in memory.
pub(super) fn clear(
    op: &'static str,
    target: Target,
    product: &Product,
    exchange: Place,
) -> Result<Option<LaunchStep>, PlanError> {
    let (stride, part) = product.of_group();
    let n = product.groups * part;
    if n == 0 {
        return Ok(None);
    }
    let args = ClearArgs { words: exchange.write(), n, part, stride };
    let grid = plan::cover(op, n as usize, THREADS)?;
    let kernel = plan::recorded(op, &Clear, target)?;
    Ok(Some(LaunchStep::new(kernel, grid.unwrap_or([1; 3]), args.values())))
}
