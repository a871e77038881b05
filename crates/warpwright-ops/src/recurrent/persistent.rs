//! The recurrence of a sequence in one launch: every block keeps the recurrent weights of its units in registers, and the
//! blocks hand each other the hidden state of each step through the L2 cache.
//!
//! There is no barrier. A word of the exchange holds an element, or two of 16 bits, and the number of its step, written and
//! read at once as 64 bits; who needs it reads until the number is right. Two buffers take turns: a block publishes step
//! `t + 1` after all of its warps have read step `t`, and reads `t + 1` of all blocks before it overwrites `t`.
//!
//! The products of 16-bit elements are those of tensor cores, gates and units of the block by batches; the common dimension
//! is shared by the warps, whose sums meet in shared memory. Those of `f32` are made by threads that hold two elements of
//! the state each, and sums are added by shuffles first.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_ptx::{CacheHints, Inst, Ordering, ScalarType, Scope, Semantics, StateSpace};

use super::cell;
use super::tuning::PersistentConfig;

kernel_args! {
    /// A sequence of `steps`, from the products of its inputs.
    pub(super) struct SequenceArgs => SequenceParams {
        /// `[steps][batch][4][hidden]`
        products: In<f32>,
        w_hh: In<Elem>, b_ih: In<Elem>, b_hh: In<Elem>, h0: In<Elem>, c0: In<Elem>,
        y: Out<Elem>, h_n: Out<Elem>, c_n: Out<Elem>,
        /// Two buffers of `batch * hidden` elements, zero before the launch.
        exchange: InOut<u64>,
        steps: u32, flags: u32,
    }
}

/// Gates of a unit.
const GATES: u32 = 4;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
const WARPS: u32 = THREADS / WARP;
const WARP: u32 = 32;
/// Pairs of words that a lane waits for together; each takes four registers.
const WAITED: u32 = 16;
/// Rows and common dimension of a product on tensor cores, and its columns.
const ATOM: (u32, u32, u32) = (16, 16, 8);

/// A sequence of an LSTM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence {
    pub(super) dtype: DType,
    pub(super) hidden: u32,
    pub(super) batch: u32,
    pub(super) config: PersistentConfig,
}

/// Sums of the block's gates over the part of the state that a warp, or after shuffles a lane, has.
struct Partial<'k> {
    warp: U32<'k>,
    batch: U32<'k>,
    row: U32<'k>,
    sum: F32<'k>,
    /// Whether this thread has it.
    there: Option<Pred<'k>>,
}

impl Sequence {
    /// Gate rows of a block.
    const fn rows(&self) -> u32 {
        self.config.units * GATES
    }

    fn is_half(&self) -> bool {
        self.dtype != DType::F32
    }

    /// Batches, in whole products.
    const fn columns(&self) -> u32 {
        self.batch.next_multiple_of(ATOM.2)
    }

    /// Floats between the batches of a warp's sums, four more than rows so that lanes meet no bank twice.
    const fn pitch(&self) -> u32 {
        self.rows() + 4
    }

    /// Sums of all warps in a step.
    const fn sums(&self) -> u32 {
        WARPS * self.columns() * self.pitch()
    }

    /// Bytes of dynamic shared memory: the sums of two steps.
    pub(super) const fn shared_bytes(&self) -> u32 {
        2 * self.sums() * 4
    }

    /// Words of one of the two buffers.
    pub(super) fn exchange_words(&self) -> u32 {
        if !self.is_half() {
            return self.batch * self.hidden;
        }
        self.columns() / ATOM.2 * self.together() * self.hidden / 2
    }

    /// Batches whose words lie together: those of a product, or fewer if there are no more.
    fn together(&self) -> u32 {
        self.batch.min(ATOM.2)
    }

    /// Where the word of `unit`, an even one for pairs, of `batch` lies in a buffer. In 16 bits, what a warp reads at once
    /// lies together, and so do the two words that a lane needs: of 16 units, pairs `q` and `q + 4`. A last product that
    /// is not full has the room of a full one.
    fn word<'k>(&self, batch: U32<'k>, unit: U32<'k>) -> U32<'k> {
        if !self.is_half() {
            return batch * self.hidden + unit;
        }
        let (slice, within) = (unit >> 4, unit & 15);
        let place = ((within >> 1) & 3) * 2 + (within >> 3);
        self.pair(batch / ATOM.2, slice, batch % ATOM.2) + place
    }

    /// Where the words of a slice of 16 units begin, for batch `within` of product `column`.
    fn pair<'k>(&self, column: U32<'k>, slice: U32<'k>, within: U32<'k>) -> U32<'k> {
        ((column * (self.hidden / ATOM.1) + slice) * self.together() + within) * 8
    }

    fn body<'k>(&self, k: K<'k>, p: SequenceParams<'k>) {
        let units = self.config.units;
        let rows = self.rows();
        let first_unit = k.block_idx_x() * units;
        let buffer = u64::from(self.exchange_words());
        let thread = k.thread_idx();
        let sums = k.dynamic_shared::<f32>();
        let buffer_sums = self.sums();

        // An item is a gate of a unit in a batch. The gates of a unit are neighbouring lanes, which all keep its cell.
        let items = rows * self.batch;
        let own = items.div_ceil(THREADS);
        let item = |i: u32| {
            let item = thread + i * THREADS;
            let (batch, row) = (item / rows, item % rows);
            let (unit, gate) = (row / GATES, row % GATES);
            Item { there: item.lt(items), batch, row, unit: first_unit + unit, gate }
        };
        let all: Vec<Item<'k>> = (0..own).map(item).collect();
        let zero = k.lit(0.0f32);
        let state_at = |item: &Item<'k>| item.batch * self.hidden + item.unit;
        let bias: Vec<F32<'k>> = all.iter().map(|item| cell::biases(k, &p, item, self.hidden)).collect();
        let cells: Vec<F32<'k>> = all
            .iter()
            .map(|item| {
                let given = item.there & (p.flags & cell::HAS_C0).ne(0);
                k.if_else(given, || p.c0.at(state_at(item)).get::<f32>(), || zero)
            })
            .collect();
        let publish = |tag: U32<'k>, parity: U32<'k>, item: &Item<'k>, h: F32<'k>| {
            let to = p.exchange.at(parity.to_u64() * buffer + self.word(item.batch, item.unit).to_u64());
            if self.is_half() {
                let next = h.shfl_down(GATES);
                let word = h.pack_with(next, self.dtype);
                let even = item.there & item.gate.eq(0) & (item.unit & 1).eq(0);
                k.if_(even, || store_word(k, to, U64::from_words(word, tag)));
            } else {
                k.if_(item.there & item.gate.eq(0), || store_word(k, to, U64::from_words(h.to_bits(), tag)));
            }
        };
        for item in &all {
            let given = item.there & (p.flags & cell::HAS_H0).ne(0);
            let h = k.if_else(given, || p.h0.at(state_at(item)).get::<f32>(), || zero);
            publish(k.lit(1u32), k.lit(0u32), item, h);
        }
        let weights = self.weights(k, &p, first_unit);
        let last = p.steps - 1;
        k.fold(k.range(0, p.steps, 1), cells, |step, cells: Vec<F32<'k>>| {
            let parity = step & 1;
            let products: Vec<F32<'k>> = all
                .iter()
                .map(|item| {
                    let at = (step.to_u64() * u64::from(self.batch) + item.batch.to_u64()) * u64::from(GATES);
                    let at = (at + item.gate.to_u64()) * u64::from(self.hidden) + item.unit.to_u64();
                    p.products.at(at).only_where(item.there, Fill::Zero).get()
                })
                .collect();
            let from = p.exchange.at(parity.to_u64() * buffer);
            let tag = step + 1;
            let to = sums.at(parity * buffer_sums);
            self.multiply(k, from, tag, &weights, |partial| {
                let place = (partial.warp * self.columns() + partial.batch) * self.pitch() + partial.row;
                match partial.there {
                    Some(there) => k.if_(there, || to.at(place).set(partial.sum)),
                    None => to.at(place).set(partial.sum),
                }
            });
            // One barrier a step: the sums of the next go to the other half.
            k.barrier();
            let mut next = Vec::new();
            for (i, item) in all.iter().enumerate() {
                let of_warp = |warp: u32| {
                    let place = (item.batch + warp * self.columns()) * self.pitch() + item.row;
                    to.at(place).only_where(item.there, Fill::Zero).get::<f32>()
                };
                let parts: Lanes<'k, f32> = (0..WARPS).map(of_warp).collect();
                let sum = parts.reduce(|a, b| a + b).unwrap_or(zero);
                let gate = cell::gate(item.gate, sum + (products[i] + bias[i]), self.dtype);
                let first = k.lane_idx() & (WARP - GATES);
                let [input, forget, cell, output] = [0, 1, 2, 3].map(|g| gate.shfl_idx(first + g));
                let c = forget.mul_add(cells[i], input * cell);
                let h = output * cell::squash(c, self.dtype);
                publish(tag + 1, parity ^ 1, item, h);
                k.if_(item.there & item.gate.eq(0), || {
                    let at = state_at(item);
                    let of_step = step.to_u64() * u64::from(self.batch * self.hidden) + at.to_u64();
                    p.y.at(of_step).set(h);
                    k.if_(step.eq(last), || {
                        p.h_n.at(at).set(h);
                        p.c_n.at(at).set(c);
                    });
                });
                next.push(c);
            }
            next
        });
    }

    /// Slices of 16 units of the state that a warp multiplies, or pairs of units that a thread does.
    fn slices(&self) -> u32 {
        if self.is_half() {
            (self.hidden / ATOM.1).div_ceil(WARPS)
        } else {
            self.hidden.div_ceil(2 * THREADS)
        }
    }

    /// The recurrent weights of the thread, in the order in which [`multiply`](Self::multiply) takes them.
    fn weights<'k>(&self, k: K<'k>, p: &SequenceParams<'k>, first_unit: U32<'k>) -> Weights<'k> {
        let row_at = |row: U32<'k>| {
            let (unit, gate) = (row / GATES, row % GATES);
            (gate * self.hidden + first_unit + unit).to_u64() * u64::from(self.hidden)
        };
        if self.is_half() {
            let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
            let words = p.w_hh.cast::<u32>();
            let of_slice = |tile: u32, slice: u32| {
                let depth = (k.warp_idx() * self.slices() + slice) * ATOM.1;
                let there = depth.lt(self.hidden);
                let word = |down: u32, right: u32| -> U32<'k> {
                    let at = row_at(group + (tile * ATOM.0 + down)) + (depth + quad * 2 + right).to_u64();
                    words.at(at >> 1).only_where(there, Fill::Zero).get()
                };
                let registers = [word(0, 0), word(8, 0), word(0, 8), word(8, 8)];
                Fragment::a(k, self.atom(), &registers)
            };
            let tiles = self.rows() / ATOM.0;
            let slices = |tile| (0..self.slices()).map(|slice| of_slice(tile, slice)).collect();
            return Weights::Tensor((0..tiles).map(slices).collect());
        }
        let of_pair = |slice: u32| {
            let depth = (k.thread_idx() + slice * THREADS) * 2;
            let there = depth.lt(self.hidden);
            let row = |row: u32| {
                let at = row_at(k.lit(row)) + depth.to_u64();
                p.w_hh.at(at).only_where(there, Fill::Zero).load::<f32>(2)
            };
            (0..self.rows()).map(row).collect()
        };
        Weights::Single((0..self.slices()).map(of_pair).collect())
    }

    fn atom(&self) -> MmaAtom {
        MmaAtom::of(self.dtype).unwrap_or(MmaAtom::BF16)
    }

    /// Waits for the state of a step and multiplies the weights by it.
    fn multiply<'k>(
        &self,
        k: K<'k>,
        from: Ptr<'k, ReadWrite, u64>,
        tag: U32<'k>,
        weights: &Weights<'k>,
        emit: impl FnMut(Partial<'k>),
    ) {
        match weights {
            Weights::Tensor(tiles) => self.multiply_halves(k, from, tag, tiles, emit),
            Weights::Single(slices) => self.multiply_singles(k, from, tag, slices, emit),
        }
    }

    fn multiply_halves<'k>(
        &self,
        k: K<'k>,
        from: Ptr<'k, ReadWrite, u64>,
        tag: U32<'k>,
        weights: &[Vec<Fragment<'k, MatrixA>>],
        mut emit: impl FnMut(Partial<'k>),
    ) {
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let warp = k.warp_idx();
        let columns: Vec<u32> = (0..self.columns() / ATOM.2).collect();
        let groups = self.hidden / ATOM.1;
        let place = |column: u32, slice: u32| {
            // Lanes beyond the last batch read what others read; nobody looks at their sums.
            let within = group.min((self.batch - 1 - column * ATOM.2).min(ATOM.2 - 1));
            // So do warps without a part: their weights are zero.
            let of_slice = (warp * self.slices() + slice).min(groups - 1);
            from.at(self.pair(k.lit(column), of_slice, within) + quad * 2)
        };
        let zero = Accumulator::<f32>::zero(k, self.atom());
        let together = (WAITED / self.slices()).max(1) as usize;
        for columns in columns.chunks(together) {
            let slices = 0..self.slices();
            let places: Vec<_> = columns.iter().flat_map(|c| slices.clone().map(|s| place(*c, s))).collect();
            let words = wait_for(k, &places, tag);
            for (column, words) in columns.iter().zip(words.chunks(self.slices() as usize)) {
                let state: Vec<_> = words.iter().map(|pair| Fragment::b(k, self.atom(), pair)).collect();
                for (tile, weights) in (0..).zip(weights) {
                    let sum = weights.iter().zip(&state).fold(zero.clone(), |sum, (a, b)| sum.mma(a, b));
                    for ((down, right), value) in sum.offsets().zip(sum.lanes().iter()) {
                        emit(Partial {
                            warp,
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
        from: Ptr<'k, ReadWrite, u64>,
        tag: U32<'k>,
        weights: &[Vec<Lanes<'k, f32>>],
        mut emit: impl FnMut(Partial<'k>),
    ) {
        let mut places = Vec::new();
        for batch in 0..self.batch {
            for slice in 0..self.slices() {
                let unit = ((k.thread_idx() + slice * THREADS) * 2).min(self.hidden - 2);
                places.push(from.at(unit + batch * self.hidden));
            }
        }
        let words = wait_for(k, &places, tag);
        let lane = k.lane_idx();
        for batch in 0..self.batch {
            let zero = k.lit(0.0f32);
            let mut sums = vec![zero; self.rows() as usize];
            for (slice, rows) in (0..).zip(weights) {
                let state = words[(batch * self.slices() + slice) as usize].map(F32::from_bits);
                for (sum, weight) in sums.iter_mut().zip(rows) {
                    *sum = weight[1].mul_add(state[1], weight[0].mul_add(state[0], *sum));
                }
            }
            // Lanes give away half of their sums until each has one, or two lanes share one.
            let mut row = k.lit(0u32);
            let mut distance = WARP / 2;
            while sums.len() > 1 && distance > 0 {
                let half = sums.len() / 2;
                let upper = (lane & distance).ne(0);
                row = row + upper.select(k.lit(half as u32), k.lit(0u32));
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
                emit(Partial { warp: k.warp_idx(), batch: k.lit(batch), row: row + i, sum, there });
            }
        }
    }
}

/// A gate of a unit in a batch.
pub(super) struct Item<'k> {
    pub(super) there: Pred<'k>,
    batch: U32<'k>,
    row: U32<'k>,
    pub(super) unit: U32<'k>,
    pub(super) gate: U32<'k>,
}

enum Weights<'k> {
    /// Rows in tiles of 16, by slices.
    Tensor(Vec<Vec<Fragment<'k, MatrixA>>>),
    /// By slices, rows of pairs.
    Single(Vec<Vec<Lanes<'k, f32>>>),
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

impl KernelDef for Sequence {
    type Args = SequenceArgs;

    fn name(&self) -> String {
        let Self { dtype, hidden, batch, config } = self;
        format!("lstm_sequence_{dtype}_h{hidden}_b{batch}_u{}", config.units)
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(THREADS)
    }

    fn dtypes(&self) -> DTypes {
        DTypes::all(self.dtype)
    }

    fn min_blocks_per_sm(&self) -> Option<u32> {
        Some(1)
    }

    fn build<'k>(&self, k: K<'k>, p: SequenceParams<'k>) {
        self.body(k, p);
    }
}

kernel_args! {
    pub(super) struct ClearArgs => ClearParams { words: Out<u64>, n: u64 }
}

/// Makes the exchange zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clear;

impl KernelDef for Clear {
    type Args = ClearArgs;

    fn name(&self) -> String {
        "lstm_clear_exchange".to_owned()
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(THREADS)
    }

    fn build<'k>(&self, k: K<'k>, p: ClearParams<'k>) {
        let at = k.global_idx_x();
        k.if_(at.lt(p.n), || p.words.at(at).set(0u64));
    }
}
