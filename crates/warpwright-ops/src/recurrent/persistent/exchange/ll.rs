//! The LL exchange (low latency, as NCCL's protocol of that name): a word holds an element, or two of 16 bits, and the number of its
//! step, written and read at once as 64 bits through the L2 cache. Who needs it reads straight into registers until the number
//! is right.

use warpwright_dsl::WARP;
use warpwright_dsl::prelude::*;
use warpwright_ptx::ScalarType;

use super::{
    Exchange, Memory, Publishers, RELAXED, Reads, Slot, Weights, alternating, any_set, load_global,
    store_global,
};
use crate::recurrent::persistent::gemm::{
    ATOM, Collector, Partial, StepGemm, SumLayout, Sums, THREADS, WARPS, share,
};
use crate::recurrent::persistent::weights::{Matrix, Tiles};

/// Pairs of words that a lane waits for together; each takes four registers.
const WAITED: u32 = 16;

/// The LL exchange.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Ll {
    gemm: StepGemm,
    /// The instruction of tensor cores for 16 bits; `f32` has none.
    atom: Option<MmaAtom>,
}

impl Ll {
    /// That of a product, of which factors are never rounded.
    pub(in crate::recurrent) fn of(gemm: StepGemm) -> Self {
        Self { gemm, atom: gemm.atom() }
    }

    fn columns(&self) -> u32 {
        let gemm = &self.gemm;
        if self.atom.is_some() { gemm.batch.next_multiple_of(ATOM.2) } else { gemm.batch }
    }

    fn sums(&self) -> SumLayout {
        SumLayout::by_warps(&self.gemm, self.columns())
    }

    /// Slices that a warp multiplies on tensor cores, or pairs that a thread does.
    fn slices(&self) -> u32 {
        match self.atom {
            Some(atom) => (self.gemm.depth / atom.k()).div_ceil(WARPS),
            None => self.gemm.depth.div_ceil(2 * THREADS),
        }
    }

    /// Words of one of the two buffers.
    fn buffer(&self) -> u32 {
        let gemm = &self.gemm;
        if self.atom.is_none() {
            return gemm.batch * gemm.depth;
        }
        self.columns() / ATOM.2 * gemm.together() * gemm.depth / 2
    }

    /// The number in a buffer of the word of element `place`, an even one for pairs, of `batch`. In 16 bits, what a warp reads at
    /// once lies together, and so do the two words that a lane needs: of 16 elements, pairs `q` and `q + 4`. A last product
    /// that is not full has the room of a full one.
    fn word<'k>(&self, batch: U32<'k>, place: U32<'k>) -> U32<'k> {
        if self.atom.is_none() {
            return batch * self.gemm.depth + place;
        }
        let (slice, within) = (place >> 4, place & 15);
        let pair = ((within >> 1) & 3) * 2 + (within >> 3);
        self.pair(batch / ATOM.2, slice, batch % ATOM.2) + pair
    }

    /// The first word of a slice of 16 elements, for batch `within` of product `column`.
    fn pair<'k>(&self, column: U32<'k>, slice: U32<'k>, within: U32<'k>) -> U32<'k> {
        ((column * (self.gemm.depth / ATOM.1) + slice) * self.gemm.together() + within) * 8
    }

    /// Waits for the vectors of step `step`, multiplies them with `multiply` and adds what the warps have.
    fn collect<'k>(
        &self,
        (memory, step): (Ptr<'k, ReadWrite, u64>, U32<'k>),
        multiply: impl FnOnce(K<'k>, Slot<'k>, &Collector<'k>),
    ) -> Sums<'k> {
        let k = step.k();
        let slot = self.slot(memory, step);
        let to = k.dynamic_shared::<f32>().at((step & 1) * self.sums().floats());
        let collector = Collector::new(self.sums(), to, k.warp_idx());
        multiply(k, slot, &collector);
        collector.total(None)
    }
}

impl Exchange for Ll {
    fn gemm(&self) -> &StepGemm {
        &self.gemm
    }

    fn memory(&self) -> Memory {
        let words = 2 * self.buffer();
        Memory { words, zeroed: words, shared_bytes: 2 * self.sums().floats() * 4 }
    }

    fn slot<'k>(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Slot<'k> {
        alternating(memory, step, (0, self.buffer()))
    }

    fn row_of<'k>(&self, depth: U32<'k>) -> U32<'k> {
        depth
    }

    /// Of 16 bits, the element behind that of a unit is that of the lanes of the next unit, and both go together from the even place.
    fn publish<'k>(
        &self,
        slot: Slot<'k>,
        (batch, unit): (U32<'k>, U32<'k>),
        values: &[F32<'k>],
        (there, neighbour): Publishers<'k>,
    ) {
        for (part, &value) in (0..).zip(values) {
            let (k, place) = (value.k(), unit + part * self.gemm.hidden);
            let (word, there) = if self.atom.is_some() {
                let next = value.shfl_down(neighbour);
                (value.pack_with(next, self.gemm.dtype), there & (place & 1).eq(0))
            } else {
                (value.to_bits(), there)
            };
            k.if_(there, || {
                let to = slot.words.at(self.word(batch, place).to_u64());
                let word = U64::from_words(word, slot.mark);
                store_global(k, ScalarType::U64, RELAXED, to.operand(), vec![word.as_operand()]);
            });
        }
    }

    fn load<'k>(&self, k: K<'k>, matrix: &Matrix<'k, '_>) -> Box<dyn Weights<'k> + 'k> {
        let (ll, gemm) = (*self, &self.gemm);
        let Some(atom) = self.atom else {
            let of_pair = |slice: u32| {
                let depth = (k.thread_idx() + slice * THREADS) * 2;
                let there = depth.lt(gemm.depth);
                let row = |row: u32| {
                    let from = |depth: U32<'k>| {
                        matrix.elements.at((matrix.at)(k.lit(row), depth)).only_where(there, Fill::Zero)
                    };
                    if matrix.dense {
                        return from(depth).load::<f32>(2);
                    }
                    [from(depth).get(), from(depth + 1).get()].into_iter().collect()
                };
                (0..gemm.rows).map(row).collect()
            };
            return Box::new(Pairs { ll, slices: (0..self.slices()).map(of_pair).collect() });
        };
        let group = k.lane_idx() >> 2;
        let of_slice = |tile: u32, slice: u32| {
            let (first, quad) = (k.warp_idx() * self.slices(), k.lane_idx() & 3);
            let depth = (first + slice) * atom.k() + quad * gemm.of_register();
            matrix.fragment(k, (gemm, atom), (group, tile), (depth, atom.k() / 2))
        };
        let of_tile = |tile| (0..self.slices()).map(|slice| of_slice(tile, slice)).collect();
        Box::new(Fragments { ll, atom, tiles: (0..gemm.tiles()).map(of_tile).collect() })
    }

    fn reads(&self) -> Reads {
        Reads::Before
    }
}

/// Weights in fragments, by tiles and slices.
struct Fragments<'k> {
    ll: Ll,
    atom: MmaAtom,
    tiles: Tiles<'k>,
}

impl<'k> Weights<'k> for Fragments<'k> {
    fn multiply(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Sums<'k> {
        self.ll.collect((memory, step), |k, slot, collector| self.multiply_slices(k, slot, collector))
    }
}

impl<'k> Fragments<'k> {
    fn multiply_slices(&self, k: K<'k>, slot: Slot<'k>, collector: &Collector<'k>) {
        let Self { ll, atom, tiles } = self;
        let (gemm, of_warp) = (&ll.gemm, ll.slices());
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let warp = k.warp_idx();
        let columns: Vec<u32> = (0..ll.columns() / ATOM.2).collect();
        let groups = gemm.depth / ATOM.1;
        let place = |column: u32, slice: u32| {
            // Lanes beyond the last batch read what others read; nobody looks at their sums.
            let within = group.min((gemm.batch - 1 - column * ATOM.2).min(ATOM.2 - 1));
            // So do warps without a part: their weights are zero.
            let of_slice = (warp * of_warp + slice).min(groups - 1);
            slot.words.at(ll.pair(k.lit(column), of_slice, within) + quad * 2)
        };
        let zero = Accumulator::<f32>::zero(k, *atom);
        let all: Vec<u32> = (0..of_warp).collect();
        // All slices of several products together, or some slices of one, in parts of a size.
        let at_once = of_warp.div_ceil(of_warp.div_ceil(WAITED));
        let together = (WAITED / of_warp).max(1) as usize;
        for columns in columns.chunks(together) {
            let mut sums = vec![vec![zero.clone(); tiles.len()]; columns.len()];
            for slices in all.chunks(at_once as usize) {
                let places: Vec<_> =
                    columns.iter().flat_map(|c| slices.iter().map(|s| place(*c, *s))).collect();
                let words = wait_for(k, &places, slot.mark);
                for (sums, words) in sums.iter_mut().zip(words.chunks(slices.len())) {
                    let state: Vec<_> = words.iter().map(|pair| Fragment::b(k, *atom, pair)).collect();
                    for (sum, tile) in sums.iter_mut().zip(tiles) {
                        let weights = slices.iter().map(|s| &tile[*s as usize]);
                        *sum = weights.zip(&state).fold(sum.clone(), |sum, (a, b)| sum.mma(a, b));
                    }
                }
            }
            for (column, sums) in columns.iter().zip(sums) {
                for (tile, sum) in (0..).zip(sums) {
                    let at = |down: u32, right: u32| {
                        (quad * 2 + (column * ATOM.2 + right), group + (tile * ATOM.0 + down))
                    };
                    collector.put_tile(&sum, at);
                }
            }
        }
    }
}

/// Weights in `f32`, by pairs and rows.
struct Pairs<'k> {
    ll: Ll,
    slices: Vec<Vec<Lanes<'k, f32>>>,
}

impl<'k> Weights<'k> for Pairs<'k> {
    fn multiply(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Sums<'k> {
        self.ll.collect((memory, step), |k, slot, collector| self.multiply_pairs(k, slot, collector))
    }
}

impl<'k> Pairs<'k> {
    fn multiply_pairs(&self, k: K<'k>, slot: Slot<'k>, collector: &Collector<'k>) {
        let (gemm, of_thread) = (&self.ll.gemm, self.ll.slices());
        let together = (WAITED / of_thread).max(1);
        let batches: Vec<u32> = (0..gemm.batch).collect();
        for batches in batches.chunks(together as usize) {
            let place = |batch: u32, slice: u32| {
                let place = ((k.thread_idx() + slice * THREADS) * 2).min(gemm.depth - 2);
                slot.words.at(place + batch * gemm.depth)
            };
            let slices = 0..of_thread;
            let places: Vec<_> = batches.iter().flat_map(|b| slices.clone().map(|s| place(*b, s))).collect();
            let words = wait_for(k, &places, slot.mark);
            for (batch, words) in batches.iter().zip(words.chunks(of_thread as usize)) {
                let zero = k.lit(0.0f32);
                let mut sums = vec![zero; gemm.rows as usize];
                for (words, rows) in words.iter().zip(&self.slices) {
                    let state = words.map(F32::from_bits);
                    for (sum, weight) in sums.iter_mut().zip(rows) {
                        *sum = weight[1].mul_add(state[1], weight[0].mul_add(state[0], *sum));
                    }
                }
                sums.resize(gemm.padded() as usize, zero);
                let batch = k.lit(*batch);
                share(k, sums, WARP, |row, sum, there| collector.put(Partial { batch, row, sum, there }));
            }
        }
    }
}

/// The lower halves of two words from each of `places` on, read until the upper halves are `tag`.
fn wait_for<'k>(k: K<'k>, places: &[Ptr<'k, ReadWrite, u64>], tag: U32<'k>) -> Vec<[U32<'k>; 2]> {
    let read = || -> Vec<Vec<U64<'k>>> {
        places.iter().map(|place| load_global(k, RELAXED, place.operand(), 2)).collect()
    };
    let late =
        |words: &Vec<Vec<U64<'k>>>| any_set(k, words.iter().flatten().map(|word| word.words().1 ^ tag), None);
    let words = k.while_(read(), late, |_| read());
    words.iter().map(|pair| [pair[0].words().0, pair[1].words().0]).collect()
}
