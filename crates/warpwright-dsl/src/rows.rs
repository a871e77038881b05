//! Rows: how threads share elements that lie next to each other, and what they make of them together.
//!
//! A row that is short enough stays in the registers of a [`Team`] between two passes over it ([`HeldVectors`]); any other is
//! gone over in a loop ([`RowLoop`]). A kernel that divides rows by their Euclidean norms:
//!
//! ```
//! use warpwright_dsl::prelude::*;
//!
//! kernel_args! {
//!     /// `rows` rows of `n` elements.
//!     pub struct UnitArgs => UnitParams { x: In<Elem>, y: Out<Elem>, rows: u64, n: u64 }
//! }
//!
//! /// A warp for each row of at most 32 * 4 * 8 elements.
//! struct UnitRows(DType);
//!
//! impl AccumulateKernel for UnitRows {
//!     type Args = UnitArgs;
//!
//!     fn spec(&self) -> KernelSpec {
//!         KernelSpec::new(format!("unit_rows_{}", self.0), BlockDim::x(128)).dtypes(DTypes::all(self.0))
//!     }
//!
//!     fn build<'k, A: Accumulate>(&self, k: K<'k>, a: UnitParams<'k>) {
//!         let team = Team::new(k, 32);
//!         let row = team.hold(a.rows, a.n, 4, 8);
//!         let x = row.load::<A>(a.x, Fill::Zero);
//!         let squares = row.dot(|i| (x[i].lanes(), x[i].lanes()));
//!         let inverse = team.combine(squares, |a, b| a + b).rsqrt();
//!         row.store(a.y, x.iter().map(|x| x.lanes() * inverse));
//!     }
//! }
//!
//! let kernel = record(&UnitRows(DType::BF16), Target::sm(90))?;
//! assert!(kernel.text().contains("shfl.sync.bfly"));
//! # Ok::<(), BuildError>(())
//! ```

use std::cell::OnceCell;

use crate::cluster::AllGather;
use crate::context::K;
use crate::error::IssueKind;
use crate::float::Float;
use crate::flow::Carry;
use crate::index::{Index, IntoIndex};
use crate::lanes::{Lanes, tree};
use crate::mem::{Access, Element, Fill, Ptr, Readable, Space, Writable};
use crate::packed::Packed;
use crate::reg::{Number, Pred, Reg, U32, U64};

/// Threads that share a row, as many as a power of two: neighbours in a block, the whole block, or the blocks of a cluster.
/// Blocks of several teams take as many rows.
#[derive(Clone, Copy, Debug)]
pub struct Team<'k> {
    k: K<'k>,
    threads: u32,
    /// The exchange between the blocks of a cluster.
    gather: AllGather<'k>,
}

impl<'k> Team<'k> {
    /// Teams of `threads` threads; in a kernel with clusters the threads of one. At the start of a kernel: the first loads
    /// need not wait for blocks of the cluster that begin late.
    #[track_caller]
    pub fn new(k: K<'k>, threads: u32) -> Self {
        if !threads.is_power_of_two() {
            k.issue(IssueKind::PartialWarp { what: "a team", threads });
        }
        Self { k, threads, gather: k.on_behalf(|| k.all_gather()) }
    }

    pub(crate) fn k(self) -> K<'k> {
        self.k
    }

    /// Threads of a team.
    pub fn threads(self) -> u32 {
        self.threads
    }

    /// The thread's number in its team.
    #[track_caller]
    pub fn lane(self) -> U32<'k> {
        let k = self.k;
        k.on_behalf(|| match k.cluster_blocks() {
            1 => k.thread_idx() & (self.threads - 1),
            _ => k.cluster_rank().mul_add(k.block_threads(), k.thread_idx()),
        })
    }

    /// Rows of a block.
    pub fn rows_per_block(self) -> u32 {
        let block = self.k.block_threads();
        block / self.threads.min(block)
    }

    /// The team's row, in the order of teams and blocks along x. The last block may have more teams than there are rows.
    #[track_caller]
    pub fn row(self) -> U64<'k> {
        let (k, rows) = (self.k, self.rows_per_block());
        k.on_behalf(|| {
            if rows == 1 {
                return k.cluster_idx_x().to_u64();
            }
            let in_block = k.thread_idx() >> self.threads.trailing_zeros();
            k.block_idx_x().mad_wide(rows, in_block.to_u64())
        })
    }

    /// The thread's vectors of the team's row, one of `rows` rows of `n` elements: `vectors` of `width` elements each, of
    /// which neighbouring threads have neighbouring ones. A team has room for so many elements, and `n` must be a multiple
    /// of `width`.
    #[track_caller]
    pub fn hold(self, rows: U64<'k>, n: U64<'k>, width: u32, vectors: u32) -> HeldVectors<'k> {
        let k = self.k;
        k.on_behalf(|| {
            let first = self.lane() * width;
            let left = n.to_u32().to_i32() - first.to_i32();
            let row = self.row();
            // A team without a row has nothing left of it.
            let left = if self.rows_per_block() == 1 { left } else { row.lt(rows).select(left, 0) };
            let start = row * n + first.to_u64();
            let step = self.threads * width;
            let inside = (0..vectors).map(|v| left.gt((v * step).cast_signed())).collect();
            HeldVectors::new(k, start, step, width, inside)
        })
    }

    /// Combines values of several registers over the team; every thread receives the same result. `combine` as for
    /// [`K::warp_combine`]. All threads of the block are here: once in a cluster, and where a team is larger than a warp
    /// with another barrier of the block between two times.
    #[track_caller]
    pub fn combine<C: Carry<'k>>(self, value: C, combine: impl Fn(C, C) -> C) -> C {
        let k = self.k;
        k.on_behalf(|| match k.cluster_blocks() {
            1 => k.group_combine_once(self.threads, value, combine),
            _ => self.gather.combine(value, combine),
        })
    }

    /// The exchange between the blocks of the cluster.
    pub fn gather(self) -> AllGather<'k> {
        self.gather
    }
}

/// Vectors of a row, or of neighbouring columns, that a thread holds in registers, each if it lies in the tensor.
#[derive(Clone, Debug)]
pub struct HeldVectors<'k> {
    k: K<'k>,
    start: Index<'k>,
    step: VectorStep<'k>,
    width: u32,
    inside: Vec<Pred<'k>>,
}

/// Elements from one vector of a thread to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum VectorStep<'k> {
    /// Known while recording: part of the addresses.
    Constant(u32),
    /// A register, which is added from one to the next.
    Pitch(U64<'k>),
}

impl<'k> HeldVectors<'k> {
    /// Vectors of `width` elements, `step` elements from one to the next, the first of which is at `start` of a tensor (or of
    /// whatever the pointers that come here point to). `inside` says of each whether there is such a vector.
    pub fn new(k: K<'k>, start: impl IntoIndex<'k>, step: u32, width: u32, inside: Vec<Pred<'k>>) -> Self {
        Self { k, start: start.into_index(k), step: VectorStep::Constant(step), width, inside }
    }

    /// The same with a distance that is in a register, such as that of rows.
    pub fn with_pitch(
        k: K<'k>,
        start: impl IntoIndex<'k>,
        pitch: U64<'k>,
        width: u32,
        inside: Vec<Pred<'k>>,
    ) -> Self {
        Self { k, start: start.into_index(k), step: VectorStep::Pitch(pitch), width, inside }
    }

    /// Elements of a vector.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Of each vector, whether it is there.
    pub fn inside(&self) -> &[Pred<'k>] {
        &self.inside
    }

    /// The place of the thread's first vector in `of`.
    #[track_caller]
    pub fn first<S: Space, E: Element>(&self, of: Ptr<'k, S, E>) -> Ptr<'k, S, E> {
        of.at(self.start)
    }

    /// Elements between the first vector and vector `i`, of vectors whose distance is a constant.
    pub fn offset(&self, i: usize) -> u64 {
        match self.step {
            VectorStep::Constant(step) => u64::from(step) * i as u64,
            VectorStep::Pitch(_) => {
                self.k.issue(IssueKind::Constant { what: "the distance of vectors", value: 0 });
                0
            }
        }
    }

    /// The place after that of a vector.
    fn next<S: Space, E: Element>(&self, at: Ptr<'k, S, E>) -> Ptr<'k, S, E> {
        match self.step {
            VectorStep::Constant(step) => at.at(u64::from(step)),
            VectorStep::Pitch(pitch) => at.at(pitch),
        }
    }

    /// The vectors of a tensor, with `fill` where there is none: loads with a predicate, all of which are under way together.
    #[track_caller]
    pub fn load<A: Number>(
        &self,
        x: Ptr<'k, impl Readable, impl Access<A>>,
        fill: Fill,
    ) -> Vec<Packed<'k, A>> {
        self.k.on_behalf(|| {
            let mut at = self.first(x);
            let mut load = |(i, &inside): (usize, &Pred<'k>)| {
                at = if i > 0 { self.next(at) } else { at };
                at.only_where(inside, fill).load_packed(self.width)
            };
            self.inside.iter().enumerate().map(&mut load).collect()
        })
    }

    /// Stores those vectors that are there, with a predicate each.
    #[track_caller]
    pub fn store<A: Number>(
        &self,
        y: Ptr<'k, impl Writable, impl Access<A>>,
        vectors: impl IntoIterator<Item = Lanes<'k, A>>,
    ) {
        let k = self.k;
        let mut at = k.on_behalf(|| self.first(y));
        for (i, (&inside, vector)) in self.inside.iter().zip(vectors).enumerate() {
            k.on_behalf(|| {
                at = if i > 0 { self.next(at) } else { at };
                at.only_where(inside, Fill::Zero).store(vector);
            });
        }
    }

    /// [`load`](Self::load) with a branch around each load, for kernels whose assembled code is better for it: `otherwise`
    /// gives what a vector is that is not there, or where `also` does not hold.
    #[track_caller]
    pub fn load_or<A: Number>(
        &self,
        x: Ptr<'k, impl Readable, impl Access<A>>,
        also: Option<Pred<'k>>,
        otherwise: impl Fn() -> Packed<'k, A>,
    ) -> Vec<Packed<'k, A>> {
        let k = self.k;
        k.on_behalf(|| {
            let mut loaded = Vec::new();
            let first = self.first(x);
            for (i, &inside) in self.inside.iter().enumerate() {
                let there = also.map_or(inside, |also| inside & also);
                let load = || first.at(self.offset(i)).load_packed(self.width);
                loaded.push(k.if_else(there, load, &otherwise));
            }
            loaded
        })
    }

    /// [`load_or`](Self::load_or) with zeros.
    #[track_caller]
    pub fn load_or_zero<A: Float>(
        &self,
        x: Ptr<'k, impl Readable, impl Access<A>>,
        also: Option<Pred<'k>>,
    ) -> Vec<Packed<'k, A>> {
        let (k, width) = (self.k, self.width);
        k.on_behalf(|| self.load_or(x, also, || Packed::zero(k, x.dtype(), width)))
    }

    /// Runs `body` for each vector that is there, where `also` holds, with its number and [`offset`](Self::offset).
    #[track_caller]
    pub fn each(&self, also: Option<Pred<'k>>, mut body: impl FnMut(usize, u64)) {
        for (i, &inside) in self.inside.iter().enumerate() {
            let there = self.k.on_behalf(|| also.map_or(inside, |also| inside & also));
            self.k.if_(there, || body(i, self.offset(i)));
        }
    }

    /// The sum of the lanes that `of` gives for each vector, those that are not there left out.
    #[track_caller]
    pub fn sum<A: Float>(&self, of: impl Fn(usize) -> Lanes<'k, A>) -> Reg<'k, A> {
        let k = self.k;
        let zero = k.on_behalf(|| k.lit::<A>(0.0));
        let mut parts = Vec::new();
        for (i, &inside) in self.inside.iter().enumerate() {
            let lanes = of(i);
            parts.push(k.on_behalf(|| inside.select(lanes.sum().unwrap_or(zero), zero)));
        }
        k.on_behalf(|| Lanes::from(parts).sum().unwrap_or(zero))
    }

    /// The sum of the products of the lanes that `of` gives for each vector, those that are not there left out.
    #[track_caller]
    pub fn dot<A: Float>(&self, of: impl Fn(usize) -> (Lanes<'k, A>, Lanes<'k, A>)) -> Reg<'k, A> {
        let k = self.k;
        let zero = k.on_behalf(|| k.lit::<A>(0.0));
        self.sum(|i| {
            let (a, b) = of(i);
            k.on_behalf(|| a.iter().zip(b).fold(zero, |sum, (a, b)| a.mul_add(b, sum)).into())
        })
    }
}

/// Vectors `first`, `first + stride`, ... below `end` of a row, or of neighbouring columns, over which a thread goes in a loop with
/// some of them under way together.
#[derive(Clone, Copy, Debug)]
pub struct RowLoop<'k> {
    k: K<'k>,
    first: U64<'k>,
    end: U64<'k>,
    stride: u64,
    unroll: u32,
    pitch: Option<U64<'k>>,
}

impl<'k> RowLoop<'k> {
    /// The vectors that begin at `first`, `first + stride`, ... below `end`, `unroll` to a round.
    pub fn new(k: K<'k>, first: U64<'k>, end: U64<'k>, stride: u64, unroll: u32) -> Self {
        Self { k, first, end, stride, unroll, pitch: None }
    }

    /// A row of `n` elements, a multiple of `width`, of a block: neighbouring threads take neighbouring vectors.
    #[track_caller]
    pub fn of_block(k: K<'k>, n: U64<'k>, width: u32, unroll: u32) -> Self {
        let first = k.on_behalf(|| k.thread_idx().mul_wide(width));
        Self::new(k, first, n, u64::from(k.block_threads() * width), unroll)
    }

    /// The same where vector `i` lies at `i * pitch`: down columns.
    #[must_use]
    pub fn with_pitch(self, pitch: U64<'k>) -> Self {
        Self { pitch: Some(pitch), ..self }
    }

    /// Goes over the vectors with carried state, a round at a time.
    #[track_caller]
    pub fn fold<C: Carry<'k>>(&self, init: C, body: impl FnOnce(Round<'k>, C) -> C) -> C {
        let k = self.k;
        let range = k.range(self.first, self.end, self.stride * u64::from(self.unroll));
        k.fold(range, init, |at, state| body(Round { of: *self, at, next: 0 }, state))
    }

    /// Goes over the vectors, a round at a time.
    #[track_caller]
    pub fn each(&self, body: impl FnOnce(Round<'k>)) {
        self.fold((), |round, ()| body(round));
    }
}

/// The vectors of a round of a [`RowLoop`]: an iterator that records where they are as it advances, so that a kernel decides
/// how addresses, bounds and loads follow one another.
#[derive(Clone, Copy, Debug)]
pub struct Round<'k> {
    of: RowLoop<'k>,
    at: U64<'k>,
    next: u32,
}

impl<'k> Iterator for Round<'k> {
    type Item = RowVector<'k>;

    fn next(&mut self) -> Option<RowVector<'k>> {
        let (of, number) = (self.of, self.next);
        if number == of.unroll {
            return None;
        }
        self.next += 1;
        let at = if number == 0 { self.at } else { self.at + u64::from(number) * of.stride };
        let along = of.pitch.map_or(at, |pitch| at * pitch);
        // The loop itself says that the first one is there.
        let end = (number > 0).then_some(of.end);
        Some(RowVector { at, along, end, inside: OnceCell::new() })
    }
}

impl<'k> Round<'k> {
    /// All of them with their bounds, ahead of what is done with them.
    #[track_caller]
    pub fn bounded(self) -> Vec<RowVector<'k>> {
        self.of.k.on_behalf(|| self.inspect(|vector| _ = vector.inside()).collect())
    }
}

/// A vector of a [`Round`].
#[derive(Clone, Debug)]
pub struct RowVector<'k> {
    at: U64<'k>,
    along: U64<'k>,
    end: Option<U64<'k>>,
    inside: OnceCell<Pred<'k>>,
}

impl<'k> RowVector<'k> {
    /// Elements from the start of the row.
    pub fn along(&self) -> U64<'k> {
        self.along
    }

    /// Its number along the loop: the elements from the start of the row, or with a pitch the rows.
    pub fn number(&self) -> U64<'k> {
        self.at
    }

    /// Whether it lies in the row, if the loop itself does not say so. Recorded once, by the first who asks.
    #[track_caller]
    pub fn inside(&self) -> Option<Pred<'k>> {
        let k = self.at.k();
        k.on_behalf(|| self.end.map(|end| *self.inside.get_or_init(|| self.at.lt(end))))
    }

    /// Its place in the row that begins at `row`; loads give `fill` if there is no such vector.
    #[track_caller]
    pub fn of<S: Space, E: Element>(&self, row: Ptr<'k, S, E>, fill: Fill) -> Ptr<'k, S, E> {
        let at = row.at(self.along);
        self.inside().map_or(at, |inside| at.only_where(inside, fill))
    }
}

/// A row of any length at any place as vectors that lie on vector boundaries of the tensor, and the elements in front of and
/// behind them, of which there are fewer than two vectors have. All of it is counted from the start of the tensor.
#[derive(Clone, Copy, Debug)]
pub struct UnalignedRow<'k> {
    /// First element of the row.
    pub start: U64<'k>,
    /// The start of the whole vectors.
    pub first: U64<'k>,
    /// The end of the whole vectors.
    pub last: U64<'k>,
    end: U64<'k>,
}

impl<'k> UnalignedRow<'k> {
    /// The row of `len` elements that begins at `start`, in vectors of `width` elements, a power of two.
    #[track_caller]
    pub fn new(start: U64<'k>, len: U64<'k>, width: u32) -> Self {
        start.k().on_behalf(|| {
            let below = u64::from(width - 1);
            let end = start + len;
            // A short row may have no boundary inside.
            let first = ((start + below) & !below).min(end);
            Self { start, first, last: (end & !below).max(first), end }
        })
    }

    /// The element outside of the vectors that thread `thread` takes, and whether there is one.
    #[track_caller]
    pub fn rest(&self, thread: U32<'k>) -> (U64<'k>, Pred<'k>) {
        thread.k().on_behalf(|| {
            let in_front = self.first - self.start;
            let thread = thread.to_u64();
            let at = thread.lt(in_front).select(self.start + thread, self.last + (thread - in_front));
            (at, at.lt(self.end))
        })
    }
}

/// The largest element of some vectors, NaN if one is NaN: of 16-bit elements two at a time where the target can.
#[track_caller]
pub fn row_max<'k, A: Float>(k: K<'k>, vectors: &[Packed<'k, A>]) -> Reg<'k, A> {
    k.on_behalf(|| {
        let halves: Option<Vec<_>> = vectors.iter().map(Packed::halves).collect();
        let pairs = halves.and_then(|h| tree(h.into_iter().flatten(), |a, b| a.maximum(b)));
        let lanes: Vec<Reg<'k, A>> = match pairs {
            Some(pair) => pair.widen().into_iter().map(Reg::convert).collect(),
            None => vectors.iter().flat_map(|v| v.lanes()).collect(),
        };
        k.tree("the largest element", lanes, |a, b| a.maximum(b))
    })
}

/// The largest magnitude of some vectors, NaN if one is NaN, as [`row_max`].
#[track_caller]
pub fn row_amax<'k, A: Float>(k: K<'k>, vectors: &[Packed<'k, A>]) -> Reg<'k, A> {
    k.on_behalf(|| {
        let halves: Option<Vec<_>> = vectors.iter().map(Packed::halves).collect();
        let magnitudes = halves.map(|h| h.into_iter().flatten().map(|pair| pair.magnitudes()));
        let pairs = magnitudes.and_then(|all| tree(all, |a, b| a.maximum(b)));
        let lanes: Vec<Reg<'k, A>> = match pairs {
            Some(pair) => pair.widen().into_iter().map(Reg::convert).collect(),
            None => vectors.iter().flat_map(|v| v.lanes()).map(Reg::abs).collect(),
        };
        k.tree("the largest magnitude", lanes, |a, b| a.maximum(b))
    })
}

/// The largest element of each lane of some vectors of `width` elements, as [`row_max`].
#[track_caller]
pub fn column_max<'k, A: Float>(k: K<'k>, vectors: &[Packed<'k, A>], width: u32) -> Lanes<'k, A> {
    let width = width as usize;
    k.on_behalf(|| match vectors.iter().map(Packed::halves).collect::<Option<Vec<_>>>() {
        Some(halves) => (0..width / 2)
            .filter_map(|word| tree(halves.iter().map(|h| h[word]), |a, b| a.maximum(b)))
            .flat_map(|pair| pair.widen())
            .map(Reg::convert)
            .collect(),
        None => {
            let wide: Vec<Lanes<'k, A>> = vectors.iter().map(Packed::lanes).collect();
            let largest = |lane: usize| tree(wide.iter().map(|v| v[lane]), |a, b| a.maximum(b));
            (0..width).filter_map(largest).collect()
        }
    })
}
