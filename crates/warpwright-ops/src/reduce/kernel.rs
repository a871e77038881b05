//! The kernel: one walk over the elements for each way in which threads share them, and what a thread keeps of what it has seen.

use warpwright_dsl::divide::WideDivisorArgs;
use warpwright_dsl::prelude::*;
use warpwright_dsl::rows::{Round, UnalignedRow};
use warpwright_dsl::{kernel_args, tree};

use super::tuning::{Config, Layout, MAX_PART, UNROLL};

kernel_args! {
    /// `[outer, n, inner]` to `[outer, parts, inner]`. `divisor` divides by `count`: the number of parts, or of vectors of a row where a
    /// thread takes whole columns.
    pub(super) struct Args => Params {
        x: In<Elem>,
        /// Positions that the pass before found, one for each element of `x`.
        positions: In<i64>,
        y: Out<Elem>,
        index: Out<i64>,
        /// Rows with their parts, or vectors of all columns.
        runs: u64,
        n: u64,
        inner: u64,
        part: u64,
        count: u64,
        divisor: WideDivisorArgs,
        /// Blocks side by side.
        tiles: u32,
        /// Whether extremes are wanted beside their positions.
        keep: u32,
        /// The divisor of sums; -1 for the least, 1 for the largest.
        scale: f64,
    }
}

/// The value that is kept of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// Their sum.
    Sum,
    /// The largest of them, times the scale.
    Extreme,
    /// The same and where it is.
    Position,
    /// The same, from the extremes and positions of parts.
    PositionOfParts,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reduce {
    pub(super) kept: Kept,
    pub(super) from: DType,
    pub(super) to: DType,
    pub(super) config: Config,
}

/// The state of a thread: a value for each of its columns, or for each element of a vector of its row, and where it was.
#[derive(Clone, Debug)]
struct State<'k, A: Accumulate> {
    value: Lanes<'k, A>,
    /// Of positions only.
    at: Lanes<'k, u32>,
}

carry!(State<A: Accumulate> { value, at });

/// Elements that a thread loaded together.
struct Visit<'k, A: Accumulate> {
    x: Lanes<'k, A>,
    there: Option<Pred<'k>>,
    /// Where the first of them is, or all of them.
    at: U32<'k>,
}

/// Where the results of a thread go, and which elements they are of.
struct Results<'k> {
    place: U64<'k>,
    /// The position of the first element in the whole extent.
    first: U64<'k>,
    /// The first element in memory, and the elements from one position to the next.
    origin: U64<'k>,
    pitch: U64<'k>,
}

/// A position behind all others, that of nothing.
const NOWHERE: u32 = 1 << 31;
const _: () = assert!(MAX_PART <= NOWHERE as u64);

/// How elements are put together.
#[derive(Clone, Copy, Debug)]
struct Folding<'k, A: Accumulate> {
    k: K<'k>,
    kept: Kept,
    scale: Reg<'k, A>,
}

impl<'k, A: Accumulate> Folding<'k, A> {
    fn has_positions(&self) -> bool {
        matches!(self.kept, Kept::Position | Kept::PositionOfParts)
    }

    /// That of no elements.
    fn nothing(&self, width: u32) -> State<'k, A> {
        let value = if self.kept == Kept::Sum { 0.0 } else { f64::NEG_INFINITY };
        let positions = if self.has_positions() { width } else { 0 };
        let at = Lanes::constant(self.k, NOWHERE, positions);
        State { value: Lanes::constant(self.k, value, width), at }
    }

    /// With the elements of some vectors, which are behind those that were seen before and in the order of their positions.
    fn push(&self, state: State<'k, A>, visits: Vec<Visit<'k, A>>) -> State<'k, A> {
        let signed = |visit: &Visit<'k, A>| {
            let x = &visit.x * self.scale;
            match visit.there {
                Some(there) => x.map(|x| there.select(x, f64::NEG_INFINITY)),
                None => x,
            }
        };
        match self.kept {
            Kept::Sum => {
                let round = tree(visits.into_iter().map(|visit| visit.x), |a, b| a + b);
                State { value: round.map_or(state.value.clone(), |round| state.value + round), ..state }
            }
            Kept::Extreme => {
                let round = tree(visits.iter().map(signed), |a, b| a.zip(b, Reg::maximum));
                let value = round.into_iter().fold(state.value, |value, x| value.zip(x, Reg::maximum));
                State { value, ..state }
            }
            Kept::Position | Kept::PositionOfParts => {
                visits.iter().fold(state, |State { value, at }, visit| {
                    let x = signed(visit);
                    let taken: Vec<Pred<'k>> =
                        value.iter().zip(x.iter()).map(|(v, x)| x.gt(v) | x.is_nan() & v.eq(v)).collect();
                    let choose = |(taken, (x, v)): (&Pred<'k>, (Reg<'k, A>, Reg<'k, A>))| taken.select(x, v);
                    let value = taken.iter().zip(x.iter().zip(value.iter())).map(choose).collect();
                    let at =
                        taken.iter().zip(at.iter()).map(|(taken, at)| taken.select(visit.at, at)).collect();
                    State { value, at }
                })
            }
        }
    }

    /// That of the elements of both.
    fn merge(&self, a: State<'k, A>, b: State<'k, A>) -> State<'k, A> {
        match self.kept {
            Kept::Sum => State { value: a.value + b.value, ..a },
            Kept::Extreme => State { value: a.value.zip(b.value, Reg::maximum), ..a },
            Kept::Position | Kept::PositionOfParts => {
                let pairs = a.value.iter().zip(a.at.iter()).zip(b.value.iter().zip(b.at.iter()));
                let (value, at): (Vec<_>, Vec<_>) = pairs
                    .map(|((a, a_at), (b, b_at))| {
                        let before = b_at.lt(a_at);
                        let taken = b.gt(a) | b.eq(a) & before | b.is_nan() & (a.eq(a) | before);
                        (taken.select(b, a), taken.select(b_at, a_at))
                    })
                    .unzip();
                State { value: value.into(), at: at.into() }
            }
        }
    }

    /// That of all lanes, which lie next to each other in a row.
    fn of_row(&self, state: State<'k, A>) -> State<'k, A> {
        let positions = |lane: usize| -> Lanes<'k, u32> {
            if self.has_positions() { (state.at[lane] + lane as u32).into() } else { state.at.clone() }
        };
        let lanes =
            (0..state.value.len()).map(|lane| State { value: state.value[lane].into(), at: positions(lane) });
        tree(lanes, |a, b| self.merge(a, b)).unwrap_or_else(|| self.nothing(1))
    }

    /// Loads give this where there is no element.
    fn fill(&self) -> Fill {
        if self.kept == Kept::Sum { Fill::Zero } else { Fill::MinusInfinity }
    }

    /// The vectors of a round of a row at `base`, or of columns; positions count from `origin`.
    fn visit(
        &self,
        round: Round<'k>,
        base: Ptr<'k, Read, Elem>,
        origin: Option<U64<'k>>,
        width: u32,
    ) -> Vec<Visit<'k, A>> {
        let load = |vector: warpwright_dsl::rows::RowVector<'k>| {
            let x = vector.of(base, self.fill()).load_packed::<A>(width);
            (x, vector)
        };
        let loaded: Vec<_> = round.map(load).collect();
        let visit = |(x, vector): (Packed<'k, A>, warpwright_dsl::rows::RowVector<'k>)| {
            let number = vector.number();
            let at = origin.map_or(number, |origin| number - origin).to_u32();
            Visit { x: x.lanes(), there: vector.inside(), at }
        };
        loaded.into_iter().map(visit).collect()
    }

    fn write(&self, p: Params<'k>, to: &Results<'k>, state: State<'k, A>) {
        let k = self.k;
        let y = p.y.at(to.place);
        if !self.has_positions() {
            let sum = self.kept == Kept::Sum;
            y.store(state.value.map(|v| if sum { v / self.scale } else { v * self.scale }));
            return;
        }
        // Where all elements are infinite none was taken: the first is as good as any.
        let at = state.at.map(|at| at.lt(NOWHERE).select(at, 0));
        let gathered = self.kept == Kept::PositionOfParts;
        let index = (0u64..).zip(at.iter()).map(|(lane, at)| {
            if gathered {
                p.positions.at(to.origin + at.to_u64() * to.pitch).at(lane).get()
            } else {
                (to.first + at.to_u64()).to_i64()
            }
        });
        let index: Lanes<'k, i64> = index.collect();
        p.index.at(to.place).store(index);
        k.if_(p.keep.ne(0), || y.store(state.value.clone() * self.scale));
    }
}

/// A part of an extent.
struct PartOf<'k> {
    row: U64<'k>,
    first: U64<'k>,
    len: U64<'k>,
}

impl<'k> PartOf<'k> {
    fn number(p: Params<'k>, run: U64<'k>) -> Self {
        let row = p.divisor.quotient(run);
        let first = (run - row * p.count) * p.part;
        Self { row, first, len: (p.n - first).min(p.part) }
    }
}

impl Reduce {
    fn rows<'k, A: Accumulate>(&self, folding: Folding<'k, A>, p: Params<'k>, threads: u32) {
        let (k, width) = (folding.k, self.config.width);
        let team = Team::new(k, threads);
        let (lane, run) = (team.lane(), team.row());
        let there = run.lt(p.runs);
        let PartOf { row, first, len } = PartOf::number(p, run);
        let (start, len) = (row * p.n + first, there.select(len, 0));
        let own = (lane * width).to_u64();
        let stride = u64::from(threads * width);
        // A single thread has few vectors.
        let unroll = if threads == 1 { 2 } else { UNROLL };
        let state = if width > 1 && threads >= warpwright_dsl::WARP {
            let vectors = UnalignedRow::new(start, len, width);
            let walk = RowLoop::new(k, vectors.first + own, vectors.last, stride, unroll);
            let state = walk.fold(folding.nothing(width), |round, state| {
                folding.push(state, folding.visit(round, p.x, Some(start), width))
            });
            // Behind the loop, whose registers are all taken: most rows have no such elements.
            let (at, has_rest) = vectors.rest(lane);
            let rest = p.x.at(at).only_where(has_rest, folding.fill()).get::<A>();
            let rest = Visit { x: rest.into(), there: Some(has_rest), at: (at - start).to_u32() };
            folding.merge(folding.of_row(state), folding.push(folding.nothing(1), vec![rest]))
        } else {
            let walk = RowLoop::new(k, own, len, stride, unroll);
            let state = walk.fold(folding.nothing(width), |round, state| {
                folding.push(state, folding.visit(round, p.x.at(start), None, width))
            });
            folding.of_row(state)
        };
        let state = team.combine(state, |a, b| folding.merge(a, b));
        k.if_(there & lane.eq(0), || {
            let to = Results { place: run, first, origin: start, pitch: k.lit(1u64) };
            folding.write(p, &to, state.clone());
        });
    }

    fn columns<'k, A: Accumulate>(&self, folding: Folding<'k, A>, p: Params<'k>, lanes: u32) {
        let (k, width) = (folding.k, self.config.width);
        let tile = ColumnTile::new(k, p.inner, p.tiles, lanes, width);
        let run = tile.outer();
        let PartOf { row, first, len } = PartOf::number(p, run);
        let origin = (row * p.n + first) * p.inner + tile.column();
        let state = tile.walk(len, UNROLL).fold(folding.nothing(width), |round, state| {
            folding.push(state, folding.visit(round, p.x.at(origin), None, width))
        });
        let state = tile.halve_teams(state, |a, b| folding.merge(a, b));
        k.if_(tile.inside() & tile.team().eq(0), || {
            let to = Results { place: run * p.inner + tile.column(), first, origin, pitch: p.inner };
            folding.write(p, &to, state.clone());
        });
    }

    fn flat<'k, A: Accumulate>(&self, folding: Folding<'k, A>, p: Params<'k>) {
        let (k, width) = (folding.k, self.config.width);
        let run = k.global_idx_x();
        k.if_(run.lt(p.runs), || {
            let row = p.divisor.quotient(run);
            let column = (run - row * p.count) * u64::from(width);
            let origin = row * p.n * p.inner + column;
            let walk = RowLoop::new(k, k.lit(0u64), p.n, 1, UNROLL).with_pitch(p.inner);
            let state = walk.fold(folding.nothing(width), |round, state| {
                folding.push(state, folding.visit(round, p.x.at(origin), None, width))
            });
            let to = Results { place: run * u64::from(width), first: k.lit(0u64), origin, pitch: p.inner };
            folding.write(p, &to, state);
        });
    }
}

impl AccumulateKernel for Reduce {
    type Args = Args;

    fn spec(&self) -> KernelSpec {
        let Self { kept, from, to, config } = *self;
        let name = match kept {
            Kept::Sum => format!("reduce_sum_{from}_{to}_{}", config.name()),
            Kept::Extreme => format!("reduce_extreme_{from}_{to}_{}", config.name()),
            Kept::Position => format!("reduce_position_{from}_{}", config.name()),
            Kept::PositionOfParts => format!("reduce_position_of_parts_{from}_{}", config.name()),
        };
        KernelSpec::new(name, BlockDim::x(config.threads)).dtypes(DTypes::all(from).with("y", to))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: Params<'k>) {
        k.overlap_grids();
        let folding = Folding { k, kept: self.kept, scale: p.scale.convert::<A>() };
        match self.config.layout {
            Layout::Rows { team } => self.rows(folding, p, team),
            Layout::Columns { lanes } => self.columns(folding, p, lanes),
            Layout::Flat => self.flat(folding, p),
        }
    }
}
