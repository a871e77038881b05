//! The kernels. Elements are compared by keys, integers in their order, and by their positions where keys are equal, so that no two of
//! them are alike and every way to look for the first of them finds the same.

use warpwright_dsl::divide::WideDivisorArgs;
use warpwright_dsl::prelude::*;
use warpwright_dsl::{FixedElement, WARP, block_inclusive_sum, kernel_args};

use super::tuning::{Config, GRADIENT_VECTORS, Layout, THREADS};

kernel_args! {
    /// The first `k` elements of each row of `n`, or of each of `parts` parts of it. Keys have 32 bits, or 64 for f64.
    pub(super) struct Args => Params {
        x: In<Elem>,
        /// The elements that the pass before found.
        keys: In<u32>,
        positions: In<u32>,
        found_keys: Out<u32>,
        found_positions: Out<u32>,
        values: Out<Elem>,
        index: Out<i64>,
        /// Rows with their parts.
        runs: u64,
        n: u64,
        parts: u64,
        divisor: WideDivisorArgs,
        k: u32,
        /// Elements of a row of `x`.
        row: u64,
        largest: u32,
        /// Whether values and indices are wanted.
        last: u32,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Topk {
    pub(super) dtype: DType,
    pub(super) config: Config,
    /// Whether it looks among elements, or among those that a pass before found.
    pub(super) first: bool,
}

/// Where there is no element, positions have this bit; its key is less than others or equal.
const NOTHING: u32 = 1 << 31;

/// Elements that are compared by integers.
pub(super) trait Keyed: Accumulate {
    /// The integers, as many bits as the element has.
    type Key: Integer + FixedElement + Access<Self::Key>;

    /// The key of a number that is not NaN: integers in the order of the numbers, the same for zeros of both signs.
    fn key<'k>(x: Reg<'k, Self>) -> Reg<'k, Self::Key>;

    /// The key with all bits set, and the one with none.
    fn ends<'k>(k: K<'k>) -> [Reg<'k, Self::Key>; 2];

    /// The largest key of the lanes of a warp.
    fn maximum_of_warp<'k>(k: K<'k>, key: Reg<'k, Self::Key>) -> Reg<'k, Self::Key>;
}

macro_rules! keyed {
    ($($float:ty, $bits:ty, $signed:ident, $unsigned:ident, $sign:literal;)*) => {$(
        impl Keyed for $float {
            type Key = $bits;

            fn key<'k>(x: Reg<'k, Self>) -> Reg<'k, $bits> {
                // The sum of zeros of both signs is 0.
                let bits = (x + 0.0).to_bits();
                bits ^ ((bits.$signed() >> $sign).$unsigned() | (1 << $sign))
            }

            fn ends<'k>(k: K<'k>) -> [Reg<'k, $bits>; 2] {
                [k.lit(<$bits>::MAX), k.lit(<$bits>::MIN)]
            }

            fn maximum_of_warp<'k>(k: K<'k>, key: Reg<'k, $bits>) -> Reg<'k, $bits> {
                warp_reduce(k, Max, key)
            }
        }
    )*};
}

keyed! {
    f32, u32, to_i32, to_u32, 31;
    f64, u64, to_i64, to_u64, 63;
}

/// An element.
#[derive(Clone, Copy, Debug)]
struct Item<'k, A: Keyed> {
    key: Reg<'k, A::Key>,
    /// In its row.
    at: U32<'k>,
}

carry!(Item<A: Keyed> { key, at });

impl<'k, A: Keyed> Item<'k, A> {
    /// Whether it comes before another.
    fn beats(&self, other: &Self) -> Pred<'k> {
        self.key.gt(other.key) | self.key.eq(other.key) & self.at.lt(other.at)
    }

    fn better(self, other: Self) -> Self {
        other.beats(&self).select_all(&other, &self)
    }

    fn exists(&self) -> Pred<'k> {
        self.at.lt(NOTHING)
    }
}

/// Pairs of places that are compared, and exchanged, so that a list of `n` is in order behind them; `n` is a power of two.
///
/// Source: K. Batcher, Sorting Networks and Their Applications, 1968 (odd-even merge sort).
fn network(n: usize) -> Vec<[usize; 2]> {
    let mut pairs = Vec::new();
    let mut run = 1;
    while run < n {
        let mut stride = run;
        while stride > 0 {
            for start in (stride % run..n - stride).step_by(2 * stride) {
                let ends = start + stride.min(n - start - stride);
                let of_run = (start..ends).filter(|at| at / (2 * run) == (at + stride) / (2 * run));
                pairs.extend(of_run.map(|at| [at, at + stride]));
            }
            stride /= 2;
        }
        run *= 2;
    }
    pairs
}

/// A part of a row.
#[derive(Clone, Copy)]
struct PartOf<'k> {
    run: U64<'k>,
    row: U64<'k>,
    /// Its first element in the row.
    first: U64<'k>,
    /// Elements from there on, none without a row.
    left: U32<'k>,
}

impl Topk {
    /// The elements of a thread.
    fn items<'k, A: Keyed>(
        &self,
        k: K<'k>,
        p: Params<'k>,
        lane: U32<'k>,
        part: PartOf<'k>,
    ) -> Vec<Item<'k, A>> {
        let Config { items, width, .. } = self.config;
        let (own, step) = (lane * width, self.config.team() * width);
        let left = part.left.to_i32() - own.to_i32();
        let inside: Vec<Pred<'k>> = (0..items / width).map(|v| left.gt((v * step).cast_signed())).collect();
        let first = part.first.to_u32() + own;
        let start = part.row * p.n + part.first + own.to_u64();
        let held = HeldVectors::new(k, start, step, width, inside.clone());
        // Where nothing is, positions differ, too.
        let places = |v: u32| -> Vec<U32<'k>> {
            let place = first + v * step;
            let place = inside[v as usize].select(place, place | NOTHING);
            (0..width).map(|j| if j == 0 { place } else { place + j }).collect()
        };
        let [ones, zeros] = A::ends(k);
        if self.first {
            let flip = p.largest.ne(0).select(zeros, ones);
            let x = held.load::<A>(p.x, Fill::Zero);
            let key = |inside: Pred<'k>, x: Reg<'k, A>| {
                let key = x.is_nan().select(ones, A::key(x)) ^ flip;
                inside.select(key, zeros)
            };
            let of_vector = |(v, x): (u32, &Packed<'k, A>)| -> Vec<Item<'k, A>> {
                let inside = inside[v as usize];
                x.lanes().iter().zip(places(v)).map(|(x, at)| Item { key: key(inside, x), at }).collect()
            };
            return (0..).zip(&x).flat_map(of_vector).collect();
        }
        let keys = held.load::<A::Key>(p.keys.cast::<A::Key>(), Fill::Zero);
        let positions = held.load::<u32>(p.positions, Fill::Zero);
        let of_vector = |(v, (keys, positions)): (u32, (&Packed<'k, A::Key>, &Packed<'k, u32>))| {
            let inside = inside[v as usize];
            let item = move |((key, at), place): ((Reg<'k, A::Key>, U32<'k>), U32<'k>)| {
                let exists = inside & at.lt(NOTHING);
                Item { key, at: exists.select(at, place | NOTHING) }
            };
            let all = keys.lanes().into_iter().zip(positions.lanes()).zip(places(v));
            all.map(item).collect::<Vec<_>>()
        };
        (0..).zip(keys.iter().zip(&positions)).flat_map(of_vector).collect()
    }

    /// Writes the element with number `place` of a part.
    fn write<'k, A: Keyed>(
        &self,
        k: K<'k>,
        p: Params<'k>,
        part: PartOf<'k>,
        place: U32<'k>,
        item: &Item<'k, A>,
    ) {
        let to = part.run * p.k.to_u64() + place.to_u64();
        let value = || {
            p.index.at(to).set(item.at.to_u64().to_i64());
            // The element itself: its key does not tell zeros or NaN from each other.
            let x = p.x.at(part.row * p.row + item.at.to_u64()).load_packed::<A>(1);
            p.values.at(to).store_packed(&x);
        };
        let found = || {
            p.found_keys.cast::<A::Key>().at(to).set(item.key);
            p.found_positions.at(to).set(item.at);
        };
        k.if_else(p.last.ne(0), value, found);
    }

    fn warp<'k, A: Keyed>(&self, k: K<'k>, p: Params<'k>) {
        let team = Team::new(k, WARP);
        let (run, lane) = (team.row(), k.lane_idx());
        let there = run.lt(p.runs);
        let left = there.select(p.n.to_u32(), 0);
        let part = PartOf { run, row: run, first: k.lit(0u64), left };
        let mut items = self.items::<A>(k, p, lane, part);
        for [a, b] in network(items.len()) {
            let swap = items[b].beats(&items[a]);
            let both = [items[a], items[b]];
            [items[a], items[b]] = [swap.select_all(&both[1], &both[0]), swap.select_all(&both[0], &both[1])];
        }
        let [_, zeros] = A::ends(k);
        let none = Item { key: zeros, at: k.lit(u32::MAX) };
        // As many as lanes at a time, each of which keeps one.
        let _ = k.fold(k.range(0u32, p.k, WARP), items, |first, items| {
            let count = (p.k - first).min(WARP);
            let (items, kept) = k.fold(k.range(0u32, count, 1u32), (items, none), |place, (items, kept)| {
                let head = items[0];
                let key = A::maximum_of_warp(k, head.key);
                let at = warp_reduce(k, Min, head.key.eq(key).select(head.at, u32::MAX));
                let taken = head.at.eq(at);
                let next = items.iter().skip(1).copied().chain([none]);
                let items: Vec<_> =
                    items.iter().zip(next).map(|(item, next)| taken.select_all(&next, item)).collect();
                (items, lane.eq(place).select_all(&Item { key, at }, &kept))
            });
            k.if_(there & lane.lt(count), || self.write(k, p, part, first + lane, &kept));
            items
        });
    }

    fn block<'k, A: Keyed>(&self, k: K<'k>, p: Params<'k>, groups: u32) {
        let run = k.block_idx_x().to_u64();
        let row = p.divisor.quotient(run);
        let room = u64::from(THREADS * self.config.items);
        let first = (run - row * p.parts) * room;
        let part = PartOf { run, row, first, left: (p.n - first).min(room).to_u32() };
        let thread = k.thread_idx();
        let items = self.items::<A>(k, p, thread, part);
        let of_group = THREADS / groups;
        let [_, zeros] = A::ends(k);
        let nothing = Item { key: zeros, at: k.lit(u32::MAX) };
        // Keys first: what compares both takes more instructions.
        let key = k.tree("keys of a thread", items.iter().map(|item| item.key), |a, b| a.max(b));
        let places = items.iter().map(|item| item.key.eq(key).select(item.at, u32::MAX));
        let best = Item { key, at: k.tree("positions of a thread", places, |a, b| a.min(b)) };
        let best: Item<'k, A> = k.warp_combine(of_group, best, Item::better);
        let (bests, bound) = (List::<A>::new(k, groups), List::<A>::new(k, 1));
        let group = thread >> of_group.trailing_zeros();
        k.if_((thread & (of_group - 1)).eq(0), || bests.set(group, &best));
        k.barrier();
        let ranked = || {
            let best = bests.get(thread);
            let rank = bests.rank(k, k.lit(groups), &best);
            k.if_(rank.eq(p.k - 1), || bound.set(k.lit(0u32), &best));
        };
        match groups < THREADS {
            true => k.if_(thread.lt(groups), ranked),
            false => ranked(),
        }
        k.barrier();
        let bound = bound.get(k.lit(0u32));
        // Elements that reach the bound are in as many groups as elements are wanted, at most.
        let reach: Vec<Pred<'k>> = items.iter().map(|item| item.exists() & !bound.beats(item)).collect();
        let count =
            k.tree("elements that reach the bound", reach.iter().map(|reach| reach.to_u32()), |a, b| a + b);
        let end = block_inclusive_sum(k, count);
        let room = THREADS * self.config.items / 2;
        let reached = List::<A>::new(k, room + UNROLL);
        let mut to = end - count;
        for (item, &reach) in items.iter().zip(&reach) {
            reached.set_where(reach, to, item);
            to = to + reach.to_u32();
        }
        let total = k.shared::<u32>(1);
        k.if_(thread.eq(THREADS - 1), || total.set(end));
        k.barrier();
        let total: U32<'k> = total.get();
        k.if_(thread.lt(UNROLL), || reached.set(total + thread, &nothing));
        k.barrier();
        k.for_each(k.range(thread, total, THREADS), |at| {
            let item = reached.get(at);
            let rank = reached.rank(k, total, &item);
            k.if_(rank.lt(p.k), || self.write(k, p, part, rank, &item));
        });
        // A part may have fewer than are wanted.
        k.for_each(k.range(total + thread, p.k, THREADS), |place| self.write(k, p, part, place, &nothing));
    }
}

/// Elements that are compared with one in flight.
const UNROLL: u32 = 4;

/// Elements in shared memory.
#[derive(Clone, Copy)]
struct List<'k, A: Keyed> {
    keys: Ptr<'k, Shared, A::Key>,
    positions: Ptr<'k, Shared, u32>,
}

impl<'k, A: Keyed> List<'k, A> {
    fn new(k: K<'k>, len: u32) -> Self {
        Self { keys: k.shared(len), positions: k.shared(len) }
    }

    fn set(&self, at: U32<'k>, item: &Item<'k, A>) {
        self.keys.at(at).set(item.key);
        self.positions.at(at).set(item.at);
    }

    fn set_where(&self, there: Pred<'k>, at: U32<'k>, item: &Item<'k, A>) {
        self.keys.at(at).only_where(there, Fill::Zero).set(item.key);
        self.positions.at(at).only_where(there, Fill::Zero).set(item.at);
    }

    fn get(&self, at: U32<'k>) -> Item<'k, A> {
        Item { key: self.keys.at(at).get(), at: self.positions.at(at).get() }
    }

    /// How many of the first `len` come before an element. Up to a multiple of [`UNROLL`] there are others that come before none.
    fn rank(&self, k: K<'k>, len: U32<'k>, item: &Item<'k, A>) -> U32<'k> {
        k.fold(k.range(0u32, len, UNROLL), k.lit(0u32), |first, rank| {
            let (keys, positions) = (self.keys.at(first).load(UNROLL), self.positions.at(first).load(UNROLL));
            let others = keys.into_iter().zip(positions).map(|(key, at)| Item { key, at });
            let beaten: Vec<U32<'k>> = others.map(|other: Item<'k, A>| other.beats(item).to_u32()).collect();
            rank + k.tree("comparisons", beaten, |a, b| a + b)
        })
    }
}

impl KernelDef for Topk {
    type Args = Args;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, config, first } = *self;
        let kind = if first { "topk" } else { "topk_of_parts" };
        KernelSpec::new(format!("{kind}_{dtype}_{}", config.name()), BlockDim::x(THREADS))
            .dtypes(DTypes::all(dtype))
    }

    fn build<'k>(&self, k: K<'k>, p: Params<'k>) {
        k.overlap_grids();
        match (self.config.layout, self.dtype) {
            (Layout::Warp, DType::F64) => self.warp::<f64>(k, p),
            (Layout::Warp, _) => self.warp::<f32>(k, p),
            (Layout::Block { groups }, DType::F64) => self.block::<f64>(k, p, groups),
            (Layout::Block { groups }, _) => self.block::<f32>(k, p, groups),
        }
    }
}

kernel_args! {
    /// Zeros in rows of `n` but for the `k` elements of each that `index` names.
    pub(super) struct BackwardArgs => BackwardParams {
        dvalues: In<Elem>, index: In<i64>, dx: Out<Elem>, n: u64, parts: u64, divisor: WideDivisorArgs, k: u32,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Backward {
    pub(super) dtype: DType,
    pub(super) width: u32,
}

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, width } = *self;
        KernelSpec::new(format!("topk_backward_{dtype}_x{width}"), BlockDim::x(THREADS))
            .dtypes(DTypes::all(dtype))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: BackwardParams<'k>) {
        k.overlap_grids();
        let (width, thread) = (self.width, k.thread_idx());
        let (step, run) = (THREADS * width, k.block_idx_x().to_u64());
        let row = p.divisor.quotient(run);
        let first = (run - row * p.parts) * u64::from(step * GRADIENT_VECTORS);
        let end = (p.n - first).min(u64::from(step * GRADIENT_VECTORS)) + first;
        let own = first + (thread * width).to_u64();
        let inside = (0..GRADIENT_VECTORS).map(|v| (own + u64::from(v * step)).lt(end)).collect();
        let held = HeldVectors::new(k, row * p.n + own, step, width, inside);
        held.store(p.dx, (0..GRADIENT_VECTORS).map(|_| Lanes::<A>::constant(k, 0.0, width)));
        k.barrier();
        k.for_each(k.range(thread, p.k, THREADS), |place| {
            let from = row * p.k.to_u64() + place.to_u64();
            let index = p.index.at(from).get::<i64>().to_u64();
            k.if_(index.ge(first) & index.lt(end), || {
                p.dx.at(row * p.n + index).store_packed(&p.dvalues.at(from).load_packed::<A>(1));
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::network;

    /// A network that sorts every list of zeros and ones sorts every list.
    #[test]
    fn networks_sort() {
        for n in [1, 2, 4, 8, 16] {
            for bits in 0..1u32 << n {
                let mut list: Vec<u32> = (0..n).map(|i| bits >> i & 1).collect();
                for [a, b] in network(n) {
                    if list[b] > list[a] {
                        list.swap(a, b);
                    }
                }
                assert!(list.is_sorted_by(|a, b| a >= b), "{n}: {bits:b}");
            }
        }
        assert_eq!(network(32).len(), 191);
    }
}
