//! Copies from global to shared memory that run while the threads compute (`cp.async`), and pipelines of them.
//!
//! A thread starts copies, [commits](K::commit_copies) them as a group and later [waits](K::wait_copies) until all but the
//! last few groups are there; then a [barrier](K::barrier) makes the copies of all threads visible to the block. Before
//! sm_80 copies are loads and stores, groups are nothing, and the same kernels are correct.

use std::cell::RefCell;

use warpwright_ptx::{
    Address, CacheHints, CacheOp, Inst, L2Prefetch, Operand, Ordering, PredUse, RegKind, ScalarType,
    SourceLimit, StateSpace,
};

use crate::context::K;
use crate::error::IssueKind;
use crate::flow::Carry;
use crate::mem::{Element, Fill, Ptr, Readable, Shared};
use crate::reg::{Pred, Reg, Source, U32, U64};
use crate::tile::{CHUNK, SharedTile, TileLayout, TilePoint};

/// `cp.async` exists from here.
const ASYNC_SM: u32 = 80;
/// The least copy of `cp.async`.
const ASYNC_BYTES: u32 = 4;

impl<'k> K<'k> {
    /// Makes the copies that the thread started since the last commit a group, empty or not.
    #[track_caller]
    pub fn commit_copies(self) {
        if self.target().sm >= ASYNC_SM {
            self.emit(Inst::CpAsyncCommit);
        }
    }

    /// Waits until at most the last `pending` groups of the thread are still on their way.
    #[track_caller]
    pub fn wait_copies(self, pending: u32) {
        if self.target().sm >= ASYNC_SM {
            self.emit(Inst::CpAsyncWait { pending: Some(pending) });
        }
    }

    /// Runs `body` for each of `steps` tiles while the next `stages.count - 1` are on their way: `copy(step, stage, there)`
    /// starts the copies of a step, into the stage that begins `stage` bytes after the first, where `there` holds;
    /// `body(step, stage, state)` uses it and returns the next state. One barrier a step. All threads of the block are
    /// here; before the stages are used for something else, they meet at another [`barrier`](Self::barrier).
    #[track_caller]
    pub fn pipeline<C: Carry<'k>>(
        self,
        stages: Stages,
        steps: U32<'k>,
        copy: impl Fn(U32<'k>, U32<'k>, Pred<'k>),
        init: C,
        body: impl FnOnce(U32<'k>, U32<'k>, C) -> C,
    ) -> C {
        let ahead = self.fill(stages, steps, false, &copy);
        let first = (self.lit(0u32), self.lit(ahead * stages.bytes), init);
        let (_, _, result) = self.fold(self.range(0, steps, 1), first, |step, (read, write, state)| {
            self.wait_copies(ahead.saturating_sub(1));
            // What others have copied is visible, and what this step overwrites, the stage of the last, has been used.
            self.barrier();
            let next = step + ahead;
            copy(next, write, next.lt(steps));
            self.commit_copies();
            let state = body(step, read, state);
            (stages.after(read), stages.after(write), state)
        });
        result
    }

    /// [`pipeline`](Self::pipeline) for loops whose last work of a step needs no shared memory any more: there, `body` calls
    /// the function that it is given once, which turns to the next stage and returns what `prefetch(stage)` reads from it,
    /// the `ahead` of the next step, while that work goes on. `body(stage, ahead, turn, state)` returns the next state. The
    /// first copy is started even if there are no steps, so its bounds must say then that nothing is there.
    #[track_caller]
    pub fn pipeline_ahead<F: Carry<'k>, C: Carry<'k>>(
        self,
        stages: Stages,
        steps: U32<'k>,
        copy: impl Fn(U32<'k>, U32<'k>, Pred<'k>),
        prefetch: impl Fn(U32<'k>) -> F,
        init: C,
        body: impl FnOnce(U32<'k>, F, &dyn Fn(), C) -> C,
    ) -> C {
        let ahead = self.fill(stages, steps, true, &copy);
        let turn = || {
            self.wait_copies(ahead.saturating_sub(1));
            self.barrier();
        };
        turn();
        let start = self.lit(0u32);
        let first = (start, self.lit(ahead * stages.bytes), prefetch(start), init);
        let (_, _, _, result) = self.fold(self.range(0, steps, 1), first, |step, state| {
            let (read, write, fetched, state) = state;
            // Every thread has read the stage of the last step before it turned to this one.
            let next = step + ahead;
            copy(next, write, next.lt(steps));
            self.commit_copies();
            let after = stages.after(read);
            let turned = RefCell::new(None);
            let state = body(
                read,
                fetched,
                &|| {
                    turn();
                    // After the last step it reads what nobody uses, where something was written.
                    let there = (step + 1).lt(steps);
                    turned.replace(Some(prefetch(there.select(after, read))));
                },
                state,
            );
            let fetched = turned.into_inner().unwrap_or_else(|| {
                self.issue(IssueKind::Constant { what: "the turns of a step of a pipeline", value: 0 });
                prefetch(after)
            });
            (after, stages.after(write), fetched, state)
        });
        result
    }

    /// Starts the copies of the first steps; returns how many are ahead.
    #[track_caller]
    fn fill(
        self,
        stages: Stages,
        steps: U32<'k>,
        first_anyway: bool,
        copy: &impl Fn(U32<'k>, U32<'k>, Pred<'k>),
    ) -> u32 {
        let ahead = stages.count.saturating_sub(1);
        if ahead == 0 {
            self.issue(IssueKind::Constant {
                what: "the stages of a pipeline",
                value: u64::from(stages.count),
            });
        }
        for step in 0..ahead {
            let there = if step == 0 && first_anyway { self.lit(true) } else { steps.gt(step) };
            copy(self.lit(step), self.lit(step * stages.bytes), there);
            self.commit_copies();
        }
        ahead
    }
}

/// Equal parts of shared memory that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stages {
    /// How many there are, at least 2.
    pub count: u32,
    /// Bytes of one, a multiple of 16.
    pub bytes: u32,
}

impl Stages {
    /// Bytes of all.
    pub const fn total_bytes(self) -> u32 {
        self.count * self.bytes
    }

    /// Where the stage after the one at `offset` begins.
    #[track_caller]
    pub fn after(self, offset: U32<'_>) -> U32<'_> {
        let next = offset + self.bytes;
        next.ge(self.total_bytes()).select(0, next)
    }
}

/// How much of a tile is there: rows and columns from its first element on, at most its size; the rest becomes zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds<'k> {
    /// Rows; all of them if `None`.
    pub rows: Option<U32<'k>>,
    /// Columns; all of them if `None`.
    pub cols: Option<U32<'k>>,
}

/// How the threads of a block copy a matrix in global memory to a [`SharedTile`]; made by [`K::tile_copy`]. What depends on
/// the thread is computed when it is made.
#[derive(Clone, Copy, Debug)]
#[must_use = "it records instructions but copies nothing"]
pub struct TileCopy<'k> {
    layout: TileLayout,
    /// Bytes of one copy.
    piece: u32,
    /// Copies of a thread, and the rows between them.
    count: u32,
    rows_apart: u32,
    /// The thread's first row, and the first byte in it.
    row: U32<'k>,
    within: U32<'k>,
    to: U32<'k>,
    tile: U32<'k>,
    from: U64<'k>,
    bytes_apart: U64<'k>,
    /// Whether each copy lies within the bounds or outside.
    whole: bool,
    /// Whether copies of 16 bytes stay in the L1 cache too.
    cached: bool,
}

impl<'k> K<'k> {
    /// Copies of the matrix at `from`, whose rows are `leading` elements apart, to `tile`, by `threads` threads of which
    /// this is number `thread`. One copy moves `piece` bytes: 16, 8, 4, or 2 where nothing is aligned better; `from` and
    /// the bytes of `leading` are multiples of it.
    #[track_caller]
    pub fn tile_copy<S: Readable, E: Element>(
        self,
        tile: SharedTile<'k>,
        from: Ptr<'k, S, E>,
        leading: U64<'k>,
        piece: u32,
        (thread, threads): (U32<'k>, u32),
    ) -> TileCopy<'k> {
        let layout = tile.layout();
        let size = layout.dtype.bytes() as u32;
        let pieces = layout.cols * size / piece.max(1);
        let fits = matches!(piece, 2 | 4 | 8 | CHUNK)
            && piece >= size
            && pieces > 0
            && threads.is_multiple_of(pieces)
            && pieces.is_power_of_two()
            && from.dtype() == layout.dtype;
        if !fits {
            self.issue(IssueKind::Constant { what: "the bytes of a tile's copy", value: u64::from(piece) });
            let zero = self.lit(0u32);
            let wide = self.lit(0u64);
            return TileCopy {
                layout,
                piece,
                count: 0,
                rows_apart: 1,
                row: zero,
                within: zero,
                to: zero,
                tile: zero,
                from: wide,
                bytes_apart: wide,
                whole: false,
                cached: false,
            };
        }
        self.on_behalf(|| {
            let row = if pieces == 1 { thread } else { thread >> pieces.trailing_zeros() };
            let within = (thread & (pieces - 1)) << piece.trailing_zeros();
            let rows_apart = threads / pieces;
            let leading = leading << size.trailing_zeros();
            let start = from.address() + within.to_u64();
            TileCopy {
                layout,
                piece,
                count: layout.rows.div_ceil(rows_apart),
                rows_apart,
                row,
                within,
                to: layout.offset(row, within) + tile.base(),
                tile: tile.base(),
                from: row.to_u64().mul_add(leading, start),
                bytes_apart: leading * u64::from(rows_apart),
                whole: false,
                cached: false,
            }
        })
    }
}

impl<'k, E: Element> Ptr<'k, Shared, E> {
    /// Starts a copy of 16 bytes from global memory to here, both at multiples of 16; see [`commit_copies`](K::commit_copies). Before
    /// sm_80 it is made at once.
    #[track_caller]
    pub fn copy_16<S: Readable, F: Element>(self, from: Ptr<'k, S, F>) {
        self.k.on_behalf(|| self.copy_chunk(from, None));
    }

    /// The same, but nothing is read and the 16 bytes become zero where `outside` holds.
    #[track_caller]
    pub fn copy_16_or_zero<S: Readable, F: Element>(self, from: Ptr<'k, S, F>, outside: Pred<'k>) {
        self.k.on_behalf(|| self.copy_chunk(from, Some(outside)));
    }

    fn copy_chunk<S: Readable, F: Element>(self, from: Ptr<'k, S, F>, outside: Option<Pred<'k>>) {
        let k = self.k;
        if k.target().sm < ASYNC_SM {
            let words = from.cast::<u32>();
            let words = outside.map_or(words, |outside| words.only_where(!outside, Fill::Zero));
            self.cast::<u32>().store(words.load::<u32>(CHUNK / ASYNC_BYTES));
            return;
        }
        k.emit(Inst::CpAsync {
            cache: CacheOp::Cg,
            l2_prefetch: L2Prefetch::Default,
            dst: self.operand(),
            src: from.operand(),
            bytes: CHUNK,
            limit: outside.map_or(SourceLimit::Full, |outside| SourceLimit::Ignore(outside.id())),
            policy: None,
        });
    }
}

/// The store of a copy through registers: where to, what, and where it happens.
type Late<'k> = (Address, Vec<U32<'k>>, Option<Pred<'k>>);

/// How much of one copy is read; the rest becomes zero.
#[derive(Clone, Copy, Debug)]
enum Limit<'k> {
    /// So many bytes.
    Bytes(U32<'k>),
    /// Nothing where this holds.
    Outside(Pred<'k>),
}

impl<'k> TileCopy<'k> {
    /// The same of a matrix that begins `elements` further on.
    #[track_caller]
    pub fn advanced(self, elements: U64<'k>) -> Self {
        let k = self.row.k();
        let shift = (self.layout.dtype.bytes() as u32).trailing_zeros();
        Self { from: k.on_behalf(|| self.from + (elements << shift)), ..self }
    }

    /// The same where the bounds' columns are a multiple of what one copy moves, which takes fewer instructions.
    pub fn in_whole_pieces(self) -> Self {
        Self { whole: true, ..self }
    }

    /// The same through the L1 cache, where blocks copy elements more than once.
    pub fn cached(self) -> Self {
        Self { cached: true, ..self }
    }

    /// Starts the thread's copies into the tile that lies `stage` bytes further on, where `there` holds: elements beyond
    /// `bounds` are not read and become zero.
    #[track_caller]
    pub fn start(&self, stage: impl Source<'k, u32>, bounds: Bounds<'k>, there: Option<Pred<'k>>) {
        let k = self.row.k();
        k.on_behalf(|| self.start_recorded(stage.reg(k), bounds, there));
    }

    fn start_recorded(&self, stage: U32<'k>, bounds: Bounds<'k>, there: Option<Pred<'k>>) {
        let size = self.layout.dtype.bytes() as u32;
        let cols = bounds.cols.map(|cols| cols << size.trailing_zeros());
        let beyond_cols = cols.filter(|_| self.whole).map(|cols| self.within.ge(cols));
        let of_row = cols.filter(|_| !self.whole).map(|cols| {
            let left = cols.to_i32() - self.within.to_i32();
            left.max(0).min(i32::try_from(self.piece).unwrap_or(0)).to_u32()
        });
        let mut from = self.from;
        let mut late = Vec::new();
        let to = self.to + stage;
        for i in 0..self.count {
            if i > 0 {
                from = from + self.bytes_apart;
            }
            let row = || self.row(i);
            let limit = if self.whole {
                let beyond_rows = bounds.rows.map(|rows| row().ge(rows));
                [beyond_rows, beyond_cols].into_iter().flatten().reduce(|a, b| a | b).map(Limit::Outside)
            } else {
                let bytes = bounds.rows.map(|rows| match of_row {
                    Some(of_row) => row().lt(rows).select(of_row, 0),
                    None => row().lt(rows).select(self.piece, 0),
                });
                bytes.or(of_row).map(Limit::Bytes)
            };
            self.start_piece(i, (from, limit, of_row), (stage, to), there, &mut late);
        }
        self.store_late(late);
    }

    /// Starts the thread's copies from anywhere in global memory, where `there` holds: `piece(i)` is where copy `i` reads, a multiple of its
    /// bytes, and whether nothing is there and it becomes zero.
    #[track_caller]
    pub fn start_from(
        &self,
        stage: impl Source<'k, u32>,
        there: Option<Pred<'k>>,
        piece: impl Fn(u32) -> (U64<'k>, Pred<'k>),
    ) {
        let k = self.row.k();
        k.on_behalf(|| {
            let stage = stage.reg(k);
            let mut late = Vec::new();
            let to = self.to + stage;
            for i in 0..self.count {
                let (from, outside) = piece(i);
                self.start_piece(
                    i,
                    (from, Some(Limit::Outside(outside)), None),
                    (stage, to),
                    there,
                    &mut late,
                );
            }
            self.store_late(late);
        });
    }

    /// Copies of the thread.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The row that copy `i` of the thread is of.
    #[track_caller]
    pub fn row(&self, i: u32) -> U32<'k> {
        if i == 0 { self.row } else { self.row + i * self.rows_apart }
    }

    /// The first column of the thread's copies.
    #[track_caller]
    pub fn col(&self) -> U32<'k> {
        self.within >> (self.layout.dtype.bytes() as u32).trailing_zeros()
    }

    /// Copy `i` of the thread, to where the tile lies `stage` bytes further on; before `cp.async` its store is among the `late` ones.
    fn start_piece(
        &self,
        i: u32,
        (from, limit, of_row): (U64<'k>, Option<Limit<'k>>, Option<U32<'k>>),
        (stage, to): (U32<'k>, U32<'k>),
        there: Option<Pred<'k>>,
        late: &mut Vec<Late<'k>>,
    ) {
        let k = self.row.k();
        let down = i * self.rows_apart;
        // Threads beyond the last row of the tile have nothing to do.
        let beyond = down + self.rows_apart > self.layout.rows;
        let inside = beyond.then(|| self.row(i).lt(self.layout.rows));
        let guard = match (there, inside) {
            (Some(there), Some(inside)) => Some(there & inside),
            (there, inside) => there.or(inside),
        };
        let dst = if self.layout.repeats_after(self.rows_apart) {
            Address::reg(to.id(), i64::from(down * self.layout.row_bytes()))
        } else {
            let at = self.layout.offset(self.row(i), self.within) + self.tile + stage;
            Address::reg(at.id(), 0)
        };
        if k.target().sm >= ASYNC_SM && self.piece >= ASYNC_BYTES {
            self.start_async(dst, from, limit, guard);
            return;
        }
        let words = self.read(from, limit, guard);
        if let (Some(Limit::Bytes(bytes)), Some(_)) = (limit, of_row) {
            self.read_part(from, bytes, guard, &words);
        }
        late.push((dst, words, guard));
    }

    /// Stores what copies have read.
    fn store_late(&self, late: Vec<Late<'k>>) {
        let k = self.row.k();
        for (dst, words, guard) in late {
            let (ty, srcs) = (self.unit(), words.iter().map(|w| Operand::Reg(w.id())).collect());
            let store = Inst::St {
                space: StateSpace::Shared,
                ty,
                ordering: Ordering::WEAK,
                hints: CacheHints::NONE,
                srcs,
                addr: dst,
            };
            k.rec().push(guard.map(holds), store);
        }
    }

    /// The elements that [`start`](Self::start) would copy, in registers: pieces beyond `bounds`, also in part, are zero.
    #[track_caller]
    pub fn fetch(&self, bounds: Bounds<'k>, there: Option<Pred<'k>>) -> Fetched<'k> {
        let k = self.row.k();
        k.on_behalf(|| {
            let size = self.layout.dtype.bytes() as u32;
            let inside = bounds.cols.map(|cols| {
                ((cols << size.trailing_zeros()).to_i32() - self.within.to_i32()).ge(self.piece as i32)
            });
            let all = |a: Option<Pred<'k>>, b: Option<Pred<'k>>| match (a, b) {
                (Some(a), Some(b)) => Some(a & b),
                (a, b) => a.or(b),
            };
            let there = all(there, inside);
            let mut from = self.from;
            let mut rows = Vec::new();
            for i in 0..self.count {
                if i > 0 {
                    from = from + self.bytes_apart;
                }
                let row = bounds.rows.map(|rows| (self.row + i * self.rows_apart).lt(rows));
                rows.push(self.read(from, None, all(there, row)));
            }
            Fetched { rows, rows_apart: self.rows_apart }
        })
    }

    /// Where the thread's first element goes in a tile that holds columns as rows. Elements have 4 bytes, copies move 16, and the
    /// threads' rows fill the tile.
    #[track_caller]
    pub fn across(&self, tile: SharedTile<'k>) -> TilePoint<'k> {
        let whole = self.layout.rows.is_multiple_of(self.rows_apart);
        if self.layout.dtype.bytes() != 4 || self.piece != CHUNK || !whole {
            let what = "the bytes of a copy that turns";
            self.row.k().issue(IssueKind::Constant { what, value: u64::from(self.piece) });
        }
        let shift = (self.layout.dtype.bytes() as u32).trailing_zeros();
        tile.point(self.within >> shift, self.row)
    }

    fn start_async(&self, dst: Address, from: U64<'k>, limit: Option<Limit<'k>>, guard: Option<Pred<'k>>) {
        // Only 16 bytes can pass by the L1 cache.
        let cache = if self.piece == CHUNK && !self.cached { CacheOp::Cg } else { CacheOp::Ca };
        let copy = Inst::CpAsync {
            cache,
            l2_prefetch: L2Prefetch::Default,
            dst,
            src: Address::reg(from.id(), 0),
            bytes: self.piece,
            limit: match limit {
                None => SourceLimit::Full,
                Some(Limit::Bytes(bytes)) => SourceLimit::Bytes(bytes.operand()),
                Some(Limit::Outside(outside)) => SourceLimit::Ignore(outside.id()),
            },
            policy: None,
        };
        self.row.k().rec().push(guard.map(holds), copy);
    }

    const fn unit(&self) -> ScalarType {
        if self.piece < ASYNC_BYTES { ScalarType::U16 } else { ScalarType::B32 }
    }

    /// The elements that a copy reads, in registers: all or nothing.
    fn read(&self, from: U64<'k>, limit: Option<Limit<'k>>, guard: Option<Pred<'k>>) -> Vec<U32<'k>> {
        let k = self.row.k();
        let whole = limit.map(|limit| match limit {
            Limit::Bytes(bytes) => bytes.eq(self.piece),
            Limit::Outside(outside) => !outside,
        });
        let guard = match (guard, whole) {
            (Some(guard), Some(whole)) => Some(guard & whole),
            (guard, whole) => guard.or(whole),
        };
        let count = self.piece.div_ceil(ASYNC_BYTES);
        let word = || {
            let word = Reg::<u32>::from_id(k, k.rec().new_reg(ScalarType::B32, RegKind::Variable));
            k.emit(Inst::Mov { ty: ScalarType::B32, dst: word.id(), src: Operand::int(0) });
            word
        };
        let words: Vec<U32<'k>> = (0..count).map(|_| word()).collect();
        self.load(self.unit(), &words, (from, 0), guard);
        words
    }

    fn load(
        &self,
        ty: ScalarType,
        words: &[U32<'k>],
        (from, offset): (U64<'k>, u32),
        guard: Option<Pred<'k>>,
    ) {
        let load = Inst::Ld {
            space: StateSpace::Global,
            ty,
            ordering: Ordering::WEAK,
            hints: CacheHints::NONE,
            non_coherent: false,
            dsts: words.iter().map(|word| Some(word.id())).collect(),
            addr: Address::reg(from.id(), i64::from(offset)),
        };
        self.row.k().rec().push(guard.map(holds), load);
    }

    /// The elements of a copy of which only `bytes` are there.
    fn read_part(&self, from: U64<'k>, bytes: U32<'k>, guard: Option<Pred<'k>>, words: &[U32<'k>]) {
        if self.piece < ASYNC_BYTES {
            return;
        }
        let k = self.row.k();
        let part = bytes.gt(0) & bytes.lt(self.piece);
        k.if_(guard.map_or(part, |guard| guard & part), || {
            for (word, first) in words.iter().zip((0..).step_by(ASYNC_BYTES as usize)) {
                let load = |ty, there| self.load(ty, &[*word], (from, first), Some(there));
                load(ScalarType::B32, bytes.ge(first + ASYNC_BYTES));
                if (self.layout.dtype.bytes() as u32) < ASYNC_BYTES {
                    load(ScalarType::U16, bytes.eq(first + ASYNC_BYTES / 2));
                }
            }
        });
    }
}

/// The part of a matrix of elements of 4 bytes that a thread has [fetched](TileCopy::fetch).
#[derive(Clone, Debug)]
pub struct Fetched<'k> {
    rows: Vec<Vec<U32<'k>>>,
    rows_apart: u32,
}

impl<'k> Fetched<'k> {
    /// How many pieces there are.
    pub fn pieces(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Stores every element of a piece in the column of its row and the row of its column, from the
    /// [place](TileCopy::across) of the thread's first on.
    #[track_caller]
    pub fn put_across(&self, piece: u32, first: TilePoint<'k>) {
        for (j, word) in (0..).zip(&self.rows[piece as usize]) {
            let to = first.at(j, piece * self.rows_apart);
            let k = word.k();
            k.emit(Inst::St {
                space: StateSpace::Shared,
                ty: ScalarType::B32,
                ordering: Ordering::WEAK,
                hints: CacheHints::NONE,
                srcs: vec![Operand::Reg(word.id())],
                addr: to.operand(),
            });
        }
    }
}

fn holds(p: Pred<'_>) -> PredUse {
    PredUse { reg: p.id(), negated: false }
}
