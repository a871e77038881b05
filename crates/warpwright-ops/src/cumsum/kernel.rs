//! The kernels: a thread adds up elements that it holds, then come the sums of threads before it, and of blocks before its own.

use warpwright_dsl::divide::WideDivisorArgs;
use warpwright_dsl::prelude::*;
use warpwright_dsl::{FixedElement, kernel_args, tree};

use super::tuning::{CLEAR_THREADS, Config, Layout, ROWS, UNROLL};

kernel_args! {
    /// Sums of `[outer, n, inner]` along `n`. `count` is the number of tiles of a row, or of vectors of a row where a thread takes whole
    /// columns; `divisor` divides by the number of rows of tiles, or by that of vectors.
    pub(super) struct Args => Params {
        x: In<Elem>,
        y: Out<Elem>,
        /// The words that tiles hand on: their sums, then the sums of rows up to the end of each span of tiles.
        sums: InOut<u64>,
        /// Rows, or vectors of all columns.
        runs: u64,
        n: u64,
        inner: u64,
        count: u64,
        divisor: WideDivisorArgs,
        /// Blocks side by side.
        tiles: u32,
        /// Tiles of all rows, and spans of a row that end in it.
        all_tiles: u64,
        spans: u64,
        exclusive: u32,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cumsum {
    pub(super) dtype: DType,
    pub(super) config: Config,
    /// Sums go from the last element to the first.
    pub(super) reverse: bool,
}

/// The sums of values up to each of them.
fn running<'k, A: Number>(values: impl IntoIterator<Item = Lanes<'k, A>>) -> Vec<Lanes<'k, A>> {
    let mut sums: Vec<Lanes<'k, A>> = Vec::new();
    for value in values {
        sums.push(sums.last().map_or(value.clone(), |sum| sum + &value));
    }
    sums
}

/// The results of values with these sums behind values with the sum `base`.
fn results<'k, A: Number>(
    exclusive: Pred<'k>,
    base: Lanes<'k, A>,
    running: &[Lanes<'k, A>],
) -> Vec<Lanes<'k, A>> {
    let mut before = base.clone();
    let mut all = Vec::with_capacity(running.len());
    for sum in running {
        let sum = &base + sum;
        all.push(exclusive.select_all(&before, &sum));
        before = sum;
    }
    all
}

/// The tile of a block: rows go ahead side by side, so that none waits long for the tile before.
struct Tile<'k> {
    row: U64<'k>,
    /// In its row.
    number: U32<'k>,
}

impl<'k> Tile<'k> {
    fn new(k: K<'k>, p: Params<'k>) -> Self {
        let block = k.block_idx_x().to_u64();
        let number = p.divisor.quotient(block);
        Self { row: block - number * p.runs, number: number.to_u32() }
    }

    /// The sum of the tiles before this one, whose own is `all`: of the tiles of its span, which are as many as threads at most, in a
    /// tree whose shape is always the same, and of the spans before, one after the other.
    fn before<A: Number>(&self, k: K<'k>, p: Params<'k>, all: Reg<'k, A>) -> Reg<'k, A>
    where
        Sum: Reduction<A>,
    {
        let words = u64::from(A::TYPE.bytes() / 4);
        let (thread, span) = (k.thread_idx(), k.block_threads());
        let (position, span_number) = (self.number & (span - 1), self.number >> span.trailing_zeros());
        let own = self.row * p.count + self.number.to_u64();
        k.if_(thread.eq(0), || p.sums.at(own * words).publish(k, &all));
        let ends = p.all_tiles + self.row * p.spans + span_number.to_u64();
        // A tile has fewer others of its span before it than threads: the last thread has the spans.
        let last = thread.eq(span - 1);
        let waits = thread.lt(position) | last & span_number.gt(0);
        let place = last.select(ends - 1, own - position.to_u64() + thread.to_u64());
        let zero = Sum.identity(k);
        let handed = k.if_else(waits, || p.sums.at(place * words).published(k, &all), || zero);
        let before = k.group_combine_once(span, handed, |a, b| a + b);
        k.if_(thread.eq(0) & position.eq(span - 1), || p.sums.at(ends * words).publish(k, &(before + all)));
        before
    }
}

impl Cumsum {
    /// The row or the tile of a team, held in registers.
    fn rows<'k, A, E>(
        &self,
        k: K<'k>,
        p: Params<'k>,
        (x, y): (Ptr<'k, Read, E>, Ptr<'k, Write, E>),
        [threads, vectors]: [u32; 2],
        tile: Option<Tile<'k>>,
    ) where
        A: Number + FixedElement + Access<A>,
        E: Access<A>,
        Sum: Reduction<A>,
    {
        let (width, step, room) = (self.config.width, threads * self.config.width, self.config.room());
        let team = Team::new(k, threads);
        let (row, first, left) = match &tile {
            Some(tile) => {
                let first = tile.number.to_u64() * room;
                (tile.row, first, (p.n - first).min(room).to_u32())
            }
            None => {
                let row = team.row();
                (row, k.lit(0u64), row.lt(p.runs).select(p.n.to_u32(), 0))
            }
        };
        let own = team.lane() * width;
        let left = left.to_i32() - own.to_i32();
        let inside = (0..vectors).map(|v| left.gt((v * step).cast_signed())).collect();
        let from = first + own.to_u64();
        let held = if self.reverse {
            let start = (row + 1) * p.n - u64::from(width) - from;
            let pitch = k.lit((-i64::from(step)).cast_unsigned());
            HeldVectors::with_pitch(k, start, pitch, width, inside)
        } else {
            HeldVectors::new(k, row * p.n + from, step, width, inside)
        };
        let in_order = |lanes: Lanes<'k, A>| -> Vec<Lanes<'k, A>> {
            let lanes = lanes.into_iter().map(Lanes::from);
            if self.reverse { lanes.rev().collect() } else { lanes.collect() }
        };
        let sums: Vec<_> = held.load(x, Fill::Zero).iter().map(|x| running(in_order(x.lanes()))).collect();
        let totals: Vec<Reg<'k, A>> = sums.iter().map(|sums| sums[sums.len() - 1][0]).collect();
        let scanned = team.scan(&totals);
        let before = tile.map(|tile| tile.before(k, p, scanned.all));
        let exclusive = p.exclusive.ne(0);
        let of_vector = |(sums, own): (&Vec<Lanes<'k, A>>, &Reg<'k, A>)| {
            let base = before.map_or(*own, |before| before + *own);
            Lanes::concat(in_order(Lanes::concat(results(exclusive, base.into(), sums))))
        };
        held.store(y, sums.iter().zip(&scanned.before).map(of_vector).collect::<Vec<_>>());
    }

    /// The first element of a column in the order of the sums, and the elements from one to the next.
    fn column<'k>(&self, p: Params<'k>, outer: U64<'k>, column: U64<'k>) -> (U64<'k>, U64<'k>) {
        match self.reverse {
            false => (outer * p.n * p.inner + column, p.inner),
            true => (((outer + 1) * p.n - 1) * p.inner + column, outer.k().lit(0u64) - p.inner),
        }
    }

    fn columns<'k, A, E>(
        &self,
        k: K<'k>,
        p: Params<'k>,
        (x, y): (Ptr<'k, Read, E>, Ptr<'k, Write, E>),
        lanes: u32,
    ) where
        A: Number + FixedElement + Access<A>,
        E: Access<A>,
        Sum: Reduction<A>,
    {
        let width = self.config.width;
        let tile = ColumnTile::new(k, p.inner, p.tiles, lanes, width);
        let (origin, pitch) = self.column(p, tile.outer(), tile.column());
        let exclusive = p.exclusive.ne(0);
        let nothing: Lanes<'k, A> = (0..width).map(|_| Sum.identity(k)).collect();
        let round = u64::from(tile.teams() * ROWS);
        let _ = k.fold(k.range(0u64, p.n, round), nothing, |first, above| {
            let row = first + (tile.team() * ROWS).to_u64();
            let inside = (0..ROWS).map(|v| tile.inside() & (row + u64::from(v)).lt(p.n)).collect();
            let held = HeldVectors::with_pitch(k, origin + row * pitch, pitch, width, inside);
            let x = held.load::<A>(x, Fill::Zero);
            let sum = tree(x.iter().map(Packed::lanes), |a, b| a + b).unwrap_or_else(|| above.clone());
            let scanned = tile.scan(sum);
            // Elements wait as they are in memory, in half the registers if they have 16 bits.
            let (zero, mut sum) = (k.opaque_zero(), &above + scanned.before);
            let mut result = |x: &Packed<'k, A>| {
                let before = sum.clone();
                sum = &sum + x.lanes_again(zero);
                exclusive.select_all(&before, &sum)
            };
            held.store(y, x.iter().map(&mut result));
            above + scanned.all
        });
    }

    fn flat<'k, A, E>(&self, k: K<'k>, p: Params<'k>, (x, y): (Ptr<'k, Read, E>, Ptr<'k, Write, E>))
    where
        A: Number,
        E: Access<A>,
        Sum: Reduction<A>,
    {
        let width = self.config.width;
        let (run, exclusive) = (k.global_idx_x(), p.exclusive.ne(0));
        k.if_(run.lt(p.runs), || {
            let outer = p.divisor.quotient(run);
            let (origin, pitch) = self.column(p, outer, (run - outer * p.count) * u64::from(width));
            let nothing: Lanes<'k, A> = (0..width).map(|_| Sum.identity(k)).collect();
            let _ = k.fold(k.range(0u64, p.n, u64::from(UNROLL)), nothing, |row, above| {
                let inside = (0..UNROLL).map(|v| (row + u64::from(v)).lt(p.n)).collect();
                let held = HeldVectors::with_pitch(k, origin + row * pitch, pitch, width, inside);
                let sums = running(held.load(x, Fill::Zero).iter().map(Packed::lanes));
                held.store(y, results(exclusive, above.clone(), &sums));
                above + &sums[sums.len() - 1]
            });
        });
    }

    fn sums<'k, A, E>(&self, k: K<'k>, p: Params<'k>, tensors: (Ptr<'k, Read, E>, Ptr<'k, Write, E>))
    where
        A: Number + FixedElement + Access<A>,
        E: Access<A>,
        Sum: Reduction<A>,
    {
        match self.config.layout {
            Layout::Rows { team, vectors } => self.rows(k, p, tensors, [team, vectors], None),
            Layout::Tiles { vectors } => {
                self.rows(k, p, tensors, [self.config.threads, vectors], Some(Tile::new(k, p)));
            }
            Layout::Columns { lanes } => self.columns(k, p, tensors, lanes),
            Layout::Flat => self.flat(k, p, tensors),
        }
    }
}

impl KernelDef for Cumsum {
    type Args = Args;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, config, reverse } = *self;
        let reverse = if reverse { "_reverse" } else { "" };
        let name = format!("cumsum_{dtype}_{}{reverse}", config.name());
        // Elements of 64 bits would be spilled for the sake of one more block on a multiprocessor.
        let blocks = (dtype.bytes() == 8).then_some(1);
        KernelSpec::new(name, BlockDim::x(config.threads))
            .dtypes(DTypes::all(dtype))
            .min_blocks_per_sm(blocks)
    }

    fn build<'k>(&self, k: K<'k>, p: Params<'k>) {
        k.overlap_grids();
        match self.dtype {
            DType::I32 => self.sums::<i32, i32>(k, p, (p.x.cast(), p.y.cast())),
            DType::I64 => self.sums::<i64, i64>(k, p, (p.x.cast(), p.y.cast())),
            DType::F64 => self.sums::<f64, Elem>(k, p, (p.x, p.y)),
            _ => self.sums::<f32, Elem>(k, p, (p.x, p.y)),
        }
    }
}

kernel_args! {
    /// Zeros in the words through which tiles hand on their sums.
    pub(super) struct ClearArgs => ClearParams { words: Out<u64>, count: u64 }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Clear;

impl KernelDef for Clear {
    type Args = ClearArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("cumsum_clear", BlockDim::x(CLEAR_THREADS))
    }

    fn build<'k>(&self, k: K<'k>, a: ClearParams<'k>) {
        k.overlap_grids();
        elementwise(k, a.count, 1, |i, _| a.words.at(i).set(0u64));
    }
}
