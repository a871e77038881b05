//! What happens to a product `q k` before the softmax, and what its gradient passes on the way back: one place for every
//! kernel.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{OptionalParam, SmemUniform, StridedPtr, kernel_args};

use super::AttentionInputs;
use super::dropout::{Draws, Kept, Keys, Seeds};
use super::engine::{Destination, Engine, Form, Place, Source, Walk};
use super::options::Common;
use super::pairs::Copied;

/// Base-2 logarithm of e.
const LOG2_E: f64 = std::f64::consts::LOG2_E;
/// Natural logarithm of 2.
const LN_2: f64 = std::f64::consts::LN_2;

/// Which modifications a kernel is recorded with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScoreKind {
    /// Keys are limited on either side of the query's diagonal.
    pub band: bool,
    /// `softcap tanh(score / softcap)`
    pub softcap: bool,
    /// A bias is added.
    pub bias: bool,
    /// Each head has a slope on the distance.
    pub alibi: bool,
    /// Each sequence has a number of keys of its own.
    pub lengths: bool,
    /// The sequences lie one after the other in the rows of one.
    pub packed: bool,
    /// Some probabilities are dropped.
    pub dropout: bool,
}

impl ScoreKind {
    pub(super) fn name(self) -> String {
        let parts = [
            (self.band, "band"),
            (self.softcap, "cap"),
            (self.bias, "bias"),
            (self.alibi, "alibi"),
            (self.lengths, "lengths"),
            (self.packed, "packed"),
            (self.dropout, "dropout"),
        ];
        parts.iter().filter(|(on, _)| *on).map(|(_, name)| format!("_{name}")).collect()
    }
}

kernel_args! {
    /// What every kernel of the family takes.
    pub(in crate::attention) struct ProblemArgs => ProblemParams {
        q: In<Elem>, k: In<Elem>, v: In<Elem>,
        q_strides: [u64; 3], k_strides: [u64; 3], v_strides: [u64; 3],
        queries: u32, keys: u32, heads: u32, group: u32, width: u32, value_width: u32,
        group_reciprocal: u32,
        left: i32, right: i32, bottom_right: u32,
        scale: f64, softcap: f64,
        /// Along batch, head, row and column.
        bias: Strided<In<Elem>, 4>,
        slopes: In<f32>, slopes_batch: u64, lengths: In<i32>,
        /// Where the queries and the keys of packed sequences begin.
        offsets: [In<i32>; 2],
        random: In<u64>, threshold: u32, keeping: f64,
    }
}

impl ProblemArgs {
    pub(super) fn new(c: &Common) -> Self {
        Self {
            q: AttentionInputs::q.arg(),
            k: AttentionInputs::k.arg(),
            v: AttentionInputs::v.arg(),
            q_strides: c.q,
            k_strides: c.k,
            v_strides: c.v,
            queries: c.queries,
            keys: c.keys,
            heads: c.heads,
            group: c.group,
            width: c.width,
            value_width: c.value_width,
            group_reciprocal: u32::MAX / c.group.max(2) + 1,
            left: c.left,
            right: c.right,
            bottom_right: c.bottom_right,
            scale: c.scale,
            softcap: c.softcap,
            bias: Strided { data: AttentionInputs::bias.arg(), strides: c.bias },
            slopes: AttentionInputs::slopes.arg(),
            slopes_batch: c.slopes_batch,
            lengths: AttentionInputs::key_lengths.arg(),
            offsets: [AttentionInputs::query_offsets.arg(), AttentionInputs::key_offsets.arg()],
            random: AttentionInputs::random.arg(),
            threshold: c.threshold,
            keeping: c.keeping,
        }
    }
}

/// Where the rows of a sequence begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'k> {
    /// In a batch of its own.
    Batch(U32<'k>),
    /// At a row among those of all sequences.
    Row(I32<'k>),
}

/// A tensor `[batch, sequence, heads, head_dim]` that is read or written.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'k, S: warpwright_dsl::Space> {
    pub(super) data: Ptr<'k, S, Elem>,
    /// Elements from one batch, row and head to the next.
    pub(super) strides: [U64<'k>; 3],
    /// If it is a copy of another tensor, see [`Copied`].
    pub(super) copied: Option<Copied<'k>>,
}

impl<'k, S: warpwright_dsl::Space> View<'k, S> {
    pub(super) fn new(data: Ptr<'k, S, Elem>, strides: [U64<'k>; 3]) -> Self {
        Self { data, strides, copied: None }
    }

    pub(super) fn of(tensor: StridedPtr<'k, Ptr<'k, S, Elem>, 3>) -> Self {
        Self::new(tensor.data, tensor.strides)
    }

    /// Elements to the first row of one head of a sequence.
    fn offset(self, origin: Origin<'k>, head: U32<'k>) -> U64<'k> {
        let [of_batch, of_row, of_head] = self.strides;
        let sequence = match origin {
            Origin::Batch(batch) => batch.to_u64() * of_batch,
            Origin::Row(row) => row.to_u64() * of_row,
        };
        sequence + head.to_u64() * of_head
    }

    /// The first row of one head of a sequence.
    pub(super) fn head(self, origin: Origin<'k>, head: U32<'k>) -> Ptr<'k, S, Elem> {
        self.data.at(self.offset(origin, head))
    }

    /// Elements from one row to the next.
    pub(super) fn row(self) -> U64<'k> {
        self.strides[1]
    }
}

impl<'k> View<'k, Read> {
    /// One head, of which `rows` rows and `width` elements of each exist.
    pub(super) fn source(
        self,
        origin: Origin<'k>,
        head: U32<'k>,
        rows: I32<'k>,
        width: U32<'k>,
    ) -> Source<'k> {
        let (data, stride) = (self.head(origin, head), self.row());
        let source = Source { data, stride, rows, width, form: Form::Even, factors: None };
        let Some(copied) = self.copied else { return source };
        let factors = Some(copied.factors_from(self.offset(origin, head)));
        Source { width: head.k().lit(copied.row()), factors, ..source }
    }
}

impl<'k> View<'k, Write> {
    /// One head, of which `rows` rows and `width` elements of each exist.
    pub(super) fn destination(
        self,
        origin: Origin<'k>,
        head: U32<'k>,
        rows: I32<'k>,
        width: U32<'k>,
    ) -> Destination<'k> {
        Destination { data: self.head(origin, head), stride: self.row(), rows, width }
    }
}

/// [`ProblemArgs`] in a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem<'k> {
    pub(super) q: View<'k, Read>,
    pub(super) k: View<'k, Read>,
    pub(super) v: View<'k, Read>,
    pub(super) queries: U32<'k>,
    pub(super) keys: U32<'k>,
    pub(super) heads: U32<'k>,
    /// Query heads of a key head.
    pub(super) group: U32<'k>,
    pub(super) width: U32<'k>,
    pub(super) value_width: U32<'k>,
    /// `2^32 / group`, rounded up.
    pub(super) group_reciprocal: U32<'k>,
    pub(super) left: I32<'k>,
    pub(super) right: I32<'k>,
    pub(super) bottom_right: U32<'k>,
    pub(super) scale: F64<'k>,
    pub(super) softcap: F64<'k>,
    pub(super) bias: StridedPtr<'k, Ptr<'k, Read, Elem>, 4>,
    pub(super) slopes: Ptr<'k, Read, f32>,
    pub(super) slopes_batch: U64<'k>,
    pub(super) lengths: Ptr<'k, Read, i32>,
    /// Where the queries and the keys of packed sequences begin.
    pub(super) offsets: [Ptr<'k, Read, i32>; 2],
    /// Seed and offset of what is dropped.
    pub(super) random: Ptr<'k, Read, u64>,
    /// The same if they are kept in shared memory.
    pub(super) shared_random: Option<SmemUniform<'k, u64, 2>>,
    /// Words from here on keep their pair.
    pub(super) threshold: U32<'k>,
    /// What kept probabilities are multiplied by.
    pub(super) keeping: F64<'k>,
}

impl<'k> Problem<'k> {
    pub(super) fn of(a: ProblemParams<'k>) -> Self {
        Self {
            q: View::new(a.q, a.q_strides),
            k: View::new(a.k, a.k_strides),
            v: View::new(a.v, a.v_strides),
            queries: a.queries,
            keys: a.keys,
            heads: a.heads,
            group: a.group,
            width: a.width,
            value_width: a.value_width,
            group_reciprocal: a.group_reciprocal,
            left: a.left,
            right: a.right,
            bottom_right: a.bottom_right,
            scale: a.scale,
            softcap: a.softcap,
            bias: a.bias,
            slopes: a.slopes,
            slopes_batch: a.slopes_batch,
            lengths: a.lengths,
            offsets: a.offsets,
            random: a.random,
            shared_random: None,
            threshold: a.threshold,
            keeping: a.keeping,
        }
    }

    /// Seed and offset of what is dropped.
    fn random(&self) -> [U64<'k>; 2] {
        [0u64, 1].map(|at| self.random.at(at).get::<u64>())
    }

    /// The same with seed and offset of what is dropped kept [in shared memory](K::smem_uniform).
    pub(super) fn with_shared_random(self, k: K<'k>) -> Self {
        Self { shared_random: Some(k.smem_uniform(self.random())), ..self }
    }

    /// Tile, head and batch of the block. Blocks run in order, so with `last_first` those with the most keys under a causal
    /// mask begin first. Nothing is divided, so that what the block has in common stays out of the threads' registers.
    pub(super) fn place(&self, k: K<'k>, last_first: bool) -> [U32<'k>; 3] {
        let tile = k.block_idx_x();
        let tile = if last_first { k.grid_dim_x() - 1 - tile } else { tile };
        [tile, k.block_idx_y(), k.block_idx_z()]
    }

    /// The number of the first query of a head of a sequence among the rows of `lse`.
    pub(super) fn first_row(&self, origin: Origin<'k>, head: U32<'k>) -> U64<'k> {
        match origin {
            Origin::Batch(batch) => (batch * self.heads + head).mul_wide(self.queries),
            Origin::Row(row) => head.mad_wide(self.queries, row.to_u64()),
        }
    }

    /// The rows of packed sequence `batch` among `all`: the first, and how many there are. Offsets that do not increase or
    /// lead outside leave no rows.
    fn packed(&self, batch: U32<'k>, which: usize, all: U32<'k>) -> (I32<'k>, I32<'k>) {
        let at = self.offsets[which].at(batch);
        let all = all.to_i32();
        let first = at.get::<i32>().max(0).min(all);
        let end = at.at(1u64).get::<i32>().max(first).min(all);
        (first, end - first)
    }

    /// Keys and values of one head.
    pub(super) fn columns(&self, span: &Span<'k>, key_head: U32<'k>) -> [Source<'k>; 2] {
        [
            self.k.source(span.of_keys, key_head, span.keys, self.width),
            self.v.source(span.of_keys, key_head, span.keys, self.value_width),
        ]
    }

    /// The key head of a query head. Both it and the group are below 2^16, so the product with the reciprocal is exact.
    pub(super) fn key_head(&self, head: U32<'k>) -> U32<'k> {
        self.group.eq(1).select(head, head.mul_hi(self.group_reciprocal))
    }
}

/// The queries and keys of one head of one sequence: how many there are and which see each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'k> {
    kind: ScoreKind,
    pub(super) queries: I32<'k>,
    pub(super) keys: I32<'k>,
    /// Where the queries and the keys begin.
    pub(super) of_queries: Origin<'k>,
    pub(super) of_keys: Origin<'k>,
    /// Query `i` sees keys from `i - left` to `i + right`.
    left: I32<'k>,
    right: I32<'k>,
}

impl<'k> Span<'k> {
    pub(super) fn new(kind: ScoreKind, p: &Problem<'k>, batch: U32<'k>) -> Self {
        let mut of = [Origin::Batch(batch); 2];
        let [mut queries, mut keys] = [p.queries.to_i32(), p.keys.to_i32()];
        if kind.packed {
            let first;
            (first, queries) = p.packed(batch, 0, p.queries);
            of[0] = Origin::Row(first);
            let first;
            (first, keys) = p.packed(batch, 1, p.keys);
            of[1] = Origin::Row(first);
        }
        if kind.lengths {
            keys = p.lengths.at(batch).get::<i32>().max(0).min(keys);
        }
        let shift = p.bottom_right.ne(0).select(keys - queries, 0i32);
        let [of_queries, of_keys] = of;
        Self { kind, queries, keys, of_queries, of_keys, left: p.left - shift, right: p.right + shift }
    }

    /// The keys that any of the queries from `first` below `end` sees: from, below.
    pub(super) fn keys_of(&self, first: I32<'k>, end: I32<'k>) -> [I32<'k>; 2] {
        let k = first.k();
        if !self.kind.band {
            return [k.lit(0i32), self.keys];
        }
        let end = end.min(self.queries);
        [(first - self.left).max(0i32), (end + self.right).min(self.keys)]
    }

    /// The queries that see any of the keys from `first` below `end`: from, below.
    pub(super) fn queries_of(&self, first: I32<'k>, end: I32<'k>) -> [I32<'k>; 2] {
        let k = first.k();
        let any = first.lt(self.keys);
        if !self.kind.band {
            return [k.lit(0i32), any.select(self.queries, 0i32)];
        }
        let end = end.min(self.keys);
        [(first - self.right).max(0i32), any.select((end + self.left).min(self.queries), 0i32)]
    }

    /// The keys that queries from `first` below `end` see, in tiles of `columns`.
    pub(super) fn walk_keys(&self, first: I32<'k>, end: I32<'k>, columns: u32) -> Walk<'k> {
        let [from, below] = self.keys_of(first, end);
        let last = end - 1i32;
        let complete = end.le(self.queries);
        self.walk([from, below], [last - self.left, first + self.right], self.keys, complete, columns)
    }

    /// The queries that see keys from `first` below `end`, in tiles of `columns`.
    pub(super) fn walk_queries(&self, first: I32<'k>, end: I32<'k>, columns: u32) -> Walk<'k> {
        let [from, below] = self.queries_of(first, end);
        let last = end - 1i32;
        let complete = end.le(self.keys);
        self.walk([from, below], [last - self.right, first + self.left], self.queries, complete, columns)
    }

    /// Tiles of what lies from the first place below the second; `whole` are the first and the last column that sees all
    /// rows, of `all` columns, if all rows are there.
    fn walk(
        &self,
        [from, end]: [I32<'k>; 2],
        [whole_first, whole_last]: [I32<'k>; 2],
        all: I32<'k>,
        complete: Pred<'k>,
        columns: u32,
    ) -> Walk<'k> {
        let step = columns.cast_signed();
        // Rows that do not exist are not written, whatever their scores; but biases are read for pairs that exist alone.
        let complete = if self.kind.bias { complete } else { complete.k().lit(true) };
        let down = |x: I32<'k>| match columns.is_power_of_two() {
            true => x & -step,
            false => (x.max(0i32).to_u32() / columns * columns).to_i32(),
        };
        let from = down(from);
        if !self.kind.band {
            let whole_end = complete.select(down(all), 0i32).min(end);
            return Walk { from, end, whole_from: None, whole_end: down(whole_end), shared: None };
        }
        // Both ends of what is whole lie among the tiles, in order.
        let whole_from = down(whole_first.max(from) + (step - 1)).min(down(end.max(from) + (step - 1)));
        let whole_end = complete.select(down((whole_last + 1i32).min(all)), 0i32);
        let whole_end = whole_end.max(whole_from).min(down(end.max(from) + (step - 1)));
        Walk { from, end, whole_from: Some(whole_from), whole_end, shared: None }
    }

    /// The first and the last key that `query` sees, where they are limited.
    fn seen_by(&self, query: I32<'k>) -> [Option<I32<'k>>; 2] {
        let last = self.keys - 1i32;
        if !self.kind.band {
            return [None, Some(last)];
        }
        [Some(query - self.left), Some(last.min(query + self.right))]
    }

    /// How far from the pair `query`, `key` the first and the last column lie that its row sees, where they are limited.
    fn seen_from(&self, query: I32<'k>, key: I32<'k>, keys: Keys) -> [Option<I32<'k>>; 2] {
        let (row, column, before, after, all) = match keys {
            Keys::Columns => (query, key, self.left, self.right, self.keys),
            Keys::Rows => (key, query, self.right, self.left, self.queries),
        };
        let last = all - 1i32 - column;
        if !self.kind.band {
            return [None, Some(last)];
        }
        let own = row - column;
        [Some(own - before), Some(last.min(own + after))]
    }

    /// Whether `query` sees `key`, which may lie outside.
    pub(super) fn sees(&self, query: I32<'k>, key: I32<'k>) -> Pred<'k> {
        let inside = key.lt(self.keys) & query.lt(self.queries);
        if !self.kind.band {
            return inside;
        }
        inside & key.le(query + self.right) & key.ge(query - self.left)
    }
}

/// A logit of each head that takes part in the sum of exponentials and in nothing else, if there are any.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sink<'k> {
    pub(super) sinks: Ptr<'k, Read, f32>,
    pub(super) there: Pred<'k>,
}

impl<'k> Sink<'k> {
    pub(super) fn of(sinks: OptionalParam<'k, Ptr<'k, Read, f32>>) -> Self {
        Self { sinks: sinks.value, there: sinks.is_given() }
    }

    /// `lse` with the sink of the head, and values, normalised without it, normalised with it.
    pub(super) fn applied<A: Float>(
        self,
        head: U32<'k>,
        lse: Reg<'k, A>,
        values: Lanes<'k, A>,
    ) -> (Reg<'k, A>, Lanes<'k, A>) {
        let (whole, factor) = self.weighed(head, lse);
        (whole, values.map(|v| v * factor))
    }

    /// `lse` with the sink of the head, and the share of the sum that `lse` has in it.
    pub(super) fn weighed<A: Float>(self, head: U32<'k>, lse: Reg<'k, A>) -> (Reg<'k, A>, Reg<'k, A>) {
        let sink = self.sinks.at(head).only_where(self.there, Fill::Zero).get::<f32>().convert::<A>();
        let top = lse.max(sink);
        let reference = top.eq(f64::NEG_INFINITY).select(0.0, top);
        let [own, of_sink] = [lse, sink].map(|x| (x - reference).exp());
        let sum = own + of_sink;
        (self.there.select(reference + sum.log(), lse), self.there.select(own / sum, 1.0))
    }
}

/// What a block of queries of one head works on.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryBlock<'k, A: Float> {
    pub(super) head: U32<'k>,
    /// The first query.
    pub(super) first: I32<'k>,
    pub(super) span: Span<'k>,
    pub(super) scorer: Scorer<'k, A>,
    pub(super) q: Source<'k>,
    /// Keys and values.
    pub(super) sources: [Source<'k>; 2],
}

impl<'k, A: Float> QueryBlock<'k, A>
where
    Elem: Access<A>,
{
    /// The block of `rows` queries that this is.
    pub(super) fn new(k: K<'k>, kind: ScoreKind, dtype: DType, p: &Problem<'k>, rows: u32) -> Self {
        Self::at(kind, dtype, p, rows, p.place(k, kind.band))
    }

    /// The block with this tile of `rows` queries, head and batch.
    pub(super) fn at(
        kind: ScoreKind,
        dtype: DType,
        p: &Problem<'k>,
        rows: u32,
        [tile, head, batch]: [U32<'k>; 3],
    ) -> Self {
        let key_head = p.key_head(head);
        let span = Span::new(kind, p, batch);
        Self {
            head,
            first: (tile * rows).to_i32(),
            span,
            scorer: Scorer::new(kind, Precision::of(dtype), p, span, head, batch),
            q: p.q.source(span.of_queries, head, span.queries, p.width),
            sources: p.columns(&span, key_head),
        }
    }

    /// What the block knows of its sequence, kept [in shared memory](K::smem_uniform).
    pub(super) fn in_shared_memory(&self, k: K<'k>, p: &Problem<'k>) -> SharedBlock<'k> {
        let (span, key_head) = (self.span, p.key_head(self.head));
        let offsets = [p.k, p.v].map(|view| view.offset(span.of_keys, key_head));
        let limits = [span.keys, span.queries, span.left, span.right];
        SharedBlock { limits: k.smem_uniform(limits), offsets: k.smem_uniform(offsets) }
    }
}

/// What [`QueryBlock::in_shared_memory`] keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedBlock<'k> {
    /// How many keys and queries there are, and which see each other.
    limits: SmemUniform<'k, i32, 4>,
    /// Elements to the first key and the first value.
    offsets: SmemUniform<'k, u64, 2>,
}

impl<'k> SharedBlock<'k> {
    /// The scorer and the sources of a block with what is known of its sequence in new registers.
    pub(super) fn get<A: Float>(
        self,
        p: &Problem<'k>,
        scorer: Scorer<'k, A>,
        [of_k, of_v]: [Source<'k>; 2],
    ) -> (Scorer<'k, A>, [Source<'k>; 2]) {
        let ([keys, queries, left, right], [to_k, to_v]) = (self.limits.get(), self.offsets.get());
        let span = Span { keys, queries, left, right, ..scorer.span };
        let source =
            |source, view: View<'k, Read>, to| Source { data: view.data.at(to), rows: keys, ..source };
        (Scorer { span, ..scorer }, [source(of_k, p.k, to_k), source(of_v, p.v, to_v)])
    }
}

/// What the scores of a tile, and the derivatives of soft capping, are made of.
#[derive(Clone, Debug)]
pub(super) enum Base<'k, A: Float> {
    /// Products.
    Products(RegTile<'k, A>),
    /// The hyperbolic tangents of soft capping.
    Tangents(RegTile<'k, A>),
}

impl<'k, A: Float> Base<'k, A> {
    fn values(&self) -> &RegTile<'k, A> {
        let (Self::Products(values) | Self::Tangents(values)) = self;
        values
    }
}

/// The score modification of one head.
///
/// Products become scores, which times [`unit`](Self::unit) are base-2 logarithms. In half precision without another
/// modification a product is its own score, and the factor of the softmax is part of that unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scorer<'k, A: Float> {
    kind: ScoreKind,
    precision: Precision,
    scale: Reg<'k, A>,
    softcap: Reg<'k, A>,
    unit: Reg<'k, A>,
    bias: Ptr<'k, Read, Elem>,
    bias_row: U64<'k>,
    bias_column: U64<'k>,
    slope: Option<Reg<'k, A>>,
    span: Span<'k>,
    shift: I32<'k>,
    draws: Option<Draws<'k>>,
    keeping: F64<'k>,
}

impl<'k, A: Float> Scorer<'k, A>
where
    Elem: Access<A>,
{
    pub(super) fn new(
        kind: ScoreKind,
        precision: Precision,
        p: &Problem<'k>,
        span: Span<'k>,
        head: U32<'k>,
        batch: U32<'k>,
    ) -> Self {
        let k = head.k();
        let scale: Reg<'k, A> = p.scale.convert();
        let [of_batch, of_head, bias_row, bias_column] = p.bias.strides;
        let bias = if kind.bias {
            p.bias.data.at(batch.to_u64() * of_batch + head.to_u64() * of_head)
        } else {
            p.bias.data
        };
        let slope = kind.alibi.then(|| {
            p.slopes.at(batch.to_u64() * p.slopes_batch + head.to_u64()).get::<f32>().convert::<A>()
        });
        let plain = Self::plain(kind, precision);
        let unit = if plain { scale * LOG2_E } else { k.lit::<A>(LOG2_E) };
        let shift = span.keys - span.queries;
        let draws = kind.dropout.then(|| {
            let random = p.shared_random.ok_or_else(|| p.random());
            let first_row = p.first_row(span.of_queries, head);
            let known = |[seed, offset]: [U64<'k>; 2]| Seeds::Known(Philox::new(k, seed, offset));
            Draws { seeds: random.map_or_else(known, Seeds::Shared), threshold: p.threshold, first_row }
        });
        let (softcap, keeping) = (p.softcap.convert(), p.keeping);
        Self {
            kind,
            precision,
            scale,
            softcap,
            unit,
            bias,
            bias_row,
            bias_column,
            slope,
            span,
            shift,
            draws,
            keeping,
        }
    }

    /// Which pairs of a tile are kept, if any are dropped; arguments as for [`Draws::tile`].
    pub(super) fn kept<E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        engine: &E,
        place: &Place<'k>,
        keys: Keys,
        pair: impl Fn(I32<'k>, I32<'k>) -> (I32<'k>, I32<'k>),
    ) -> Option<Kept<'k>> {
        let row_by_row = engine.row_by_row();
        self.draws.map(|draws| draws.tile(k, place, (keys, engine.draw_lanes(keys), row_by_row), pair))
    }

    /// What sums over kept probabilities are multiplied by, if any are dropped.
    pub(super) fn keeping(&self) -> Option<Reg<'k, A>> {
        self.draws.map(|_| self.keeping.convert())
    }

    /// Values of pairs times what their probabilities were multiplied by.
    pub(super) fn dropped(&self, values: RegTile<'k, A>, kept: Option<&Kept<'k>>) -> RegTile<'k, A> {
        match kept.zip(self.keeping()) {
            Some((kept, keeping)) => kept.of(&(&values * keeping)),
            None => values,
        }
    }

    fn plain(kind: ScoreKind, precision: Precision) -> bool {
        precision == Precision::Storage && !kind.softcap && !kind.bias && !kind.alibi
    }

    /// The score of a product, of a pair that may lie outside: minus infinity where the query does not see the key. Without
    /// `seen` all pairs of the tile do.
    pub(super) fn score(
        &self,
        product: Reg<'k, A>,
        query: I32<'k>,
        key: I32<'k>,
        seen: Option<Pred<'k>>,
    ) -> Reg<'k, A> {
        self.shifted(self.unshifted(product), (query, key), self.bias_at(query, key), seen)
    }

    /// A score before anything is added to it.
    fn unshifted(&self, product: Reg<'k, A>) -> Reg<'k, A> {
        match (Self::plain(self.kind, self.precision), self.kind.softcap) {
            (true, _) => product,
            (_, true) => self.tangent(product) * self.softcap,
            _ => product * self.scale,
        }
    }

    /// The hyperbolic tangent of soft capping.
    fn tangent(&self, product: Reg<'k, A>) -> Reg<'k, A> {
        (product * self.scale / self.softcap).tanh()
    }

    /// What the scores of a tile are made of. The hyperbolic tangent takes many registers in double precision: there it is computed
    /// for one slot after the other.
    pub(super) fn base(&self, k: K<'k>, products: RegTile<'k, A>) -> Base<'k, A> {
        if !self.kind.softcap || !A::DOUBLE {
            return Base::Products(products);
        }
        let slots = k.range(0u32, products.len() as u32, 1u32);
        let tangents = |row: &[Reg<'k, A>]| row.iter().map(|product| self.tangent(*product)).collect();
        Base::Tangents(k.fold(slots, products, |_, products| products.rotated(tangents)))
    }

    /// A score with what is added to it.
    fn shifted(
        &self,
        mut score: Reg<'k, A>,
        (query, key): (I32<'k>, I32<'k>),
        bias: Option<Ptr<'k, Read, Elem>>,
        seen: Option<Pred<'k>>,
    ) -> Reg<'k, A> {
        if let Some(at) = bias {
            let inside = query.lt(self.span.queries) & key.lt(self.span.keys);
            let bias = if seen.is_some() { at.only_where(inside, Fill::Zero) } else { at };
            score = score + bias.get::<A>();
        }
        if let Some(slope) = self.slope {
            let distance = (query + self.shift - key).abs();
            score = score - slope * distance.convert::<A>();
        }
        seen.map_or(score, |seen| seen.select(score, f64::NEG_INFINITY))
    }

    /// How many queries there are.
    pub(super) fn queries(&self) -> I32<'k> {
        self.span.queries
    }

    /// The scores of a tile; `pair` gives query and key of a row and a column of it. Without `masked` each query sees each
    /// key.
    pub(super) fn tile(
        &self,
        base: &Base<'k, A>,
        place: &Place<'k>,
        (keys, masked, scarce): (Keys, bool, bool),
        pair: impl Fn(I32<'k>, I32<'k>) -> (I32<'k>, I32<'k>),
    ) -> RegTile<'k, A> {
        let step = self.bias_step(place, keys);
        base.values().map_rows(|slot, values| {
            let row = place.rows[slot];
            let (query, key) = pair(row.to_i32(), place.first.to_i32());
            let limits = (masked && scarce).then(|| self.span.seen_from(query, key, keys));
            let mut before: Option<Ptr<'k, Read, Elem>> = None;
            let of = |(value, column): (&Reg<'k, A>, &u32)| {
                let (query, key) = pair(row.to_i32(), place.first.to_i32() + column.cast_signed());
                let column = column.cast_signed();
                let seen = match limits {
                    Some([low, high]) => {
                        let limits = [low.map(|low| low.le(column)), high.map(|high| high.ge(column))];
                        limits.into_iter().flatten().reduce(|a, b| a & b)
                    }
                    None => masked.then(|| self.span.sees(query, key)),
                };
                let score = match base {
                    Base::Products(_) => self.unshifted(*value),
                    Base::Tangents(_) => *value * self.softcap,
                };
                let next = before.zip(step).map(|(before, step)| before.at(step));
                before = next.or_else(|| self.bias_at(query, key));
                self.shifted(score, (query, key), before, seen)
            };
            values.iter().zip(&place.columns).map(of).collect()
        })
    }

    /// The scores of one slot, whose query is `query` and whose keys lie `columns` from `first` on. Each comparison for a mask is
    /// with a constant.
    pub(super) fn query_row(
        &self,
        products: &[Reg<'k, A>],
        query: I32<'k>,
        (first, columns): (I32<'k>, &[u32]),
        masked: bool,
    ) -> Vec<Reg<'k, A>> {
        let seen_by = masked.then(|| self.span.seen_by(query).map(|key| key.map(|key| key - first)));
        let of = |(product, column): (&Reg<'k, A>, &u32)| {
            let column = column.cast_signed();
            let seen = seen_by.map(|[low, high]| {
                let above = low.map(|low| low.le(column));
                let below = high.map(|high| high.ge(column));
                [above, below].into_iter().flatten().reduce(|a, b| a & b)
            });
            self.score(*product, query, first + column, seen.flatten())
        };
        products.iter().zip(columns).map(of).collect()
    }

    /// Elements from one bias of a slot to the next, if its columns lie at even distances: then each is found from the one before,
    /// and multiples of the strides take no registers.
    fn bias_step(&self, place: &Place<'k>, keys: Keys) -> Option<U64<'k>> {
        let distance = place.columns.get(1)? - place.columns[0];
        let even = place.columns.windows(2).all(|pair| pair[1] - pair[0] == distance);
        let stride = if keys == Keys::Columns { self.bias_column } else { self.bias_row };
        (self.kind.bias && even).then(|| stride * u64::from(distance))
    }

    /// Where the bias of a pair lies, if there is one.
    fn bias_at(&self, query: I32<'k>, key: I32<'k>) -> Option<Ptr<'k, Read, Elem>> {
        self.kind.bias.then(|| {
            let of_row = query.to_u32().to_u64() * self.bias_row;
            self.bias.at(of_row + key.to_u32().to_u64() * self.bias_column)
        })
    }

    /// What the gradient of a score is multiplied with to give that of its product; the factor of the softmax is left
    /// for the end.
    pub(super) fn derivative(&self, base: &Base<'k, A>, slot: usize, column: usize) -> Option<Reg<'k, A>> {
        let value = base.values().row(slot)[column];
        self.kind.softcap.then(|| {
            let t = match base {
                Base::Products(_) => self.tangent(value),
                Base::Tangents(_) => value,
            };
            1.0 - t * t
        })
    }

    /// The factor of the softmax.
    pub(super) fn factor(p: &Problem<'k>) -> Reg<'k, A> {
        p.scale.convert()
    }

    /// The factor of the softmax.
    pub(super) fn scale(&self) -> Reg<'k, A> {
        self.scale
    }

    /// `e^(score - top)`, where both are scores and `top` is not below.
    pub(super) fn exp(&self, score: Reg<'k, A>, top: Reg<'k, A>) -> Reg<'k, A> {
        match self.precision {
            // Two units in the last place: less than sums over thousands of them err, and a third of all instructions less.
            Precision::Full => ((score - top) * self.unit).exp2_approx(),
            Precision::Storage => score.mul_add(self.unit, -(top * self.unit)).exp2_approx(),
        }
    }

    /// Whether a score is too far above what powers are relative to. In half precision powers up to 2^8 are as good as those up to 1.
    pub(super) fn above(&self, score: Reg<'k, A>, top: Reg<'k, A>) -> Pred<'k> {
        ((score - top) * self.unit).gt(8.0)
    }

    /// `log(sum e^score)` from the greatest score and the sum of powers relative to it.
    pub(super) fn log_sum_exp(&self, top: Reg<'k, A>, sum: Reg<'k, A>) -> Reg<'k, A> {
        match self.precision {
            Precision::Full => top + sum.log(),
            Precision::Storage => top.mul_add(self.unit * LN_2, sum.log()),
        }
    }

    /// What [`probability`](Self::probability) takes of a natural logarithm, which may be minus infinity.
    pub(super) fn prepared(precision: Precision, lse: Reg<'k, A>) -> Reg<'k, A> {
        let finite = lse.eq(f64::NEG_INFINITY).select(0.0, lse);
        match precision {
            Precision::Full => finite,
            Precision::Storage => finite * -LOG2_E,
        }
    }

    /// `e^(score - lse)`; `lse` is [`prepared`](Self::prepared).
    pub(super) fn probability(&self, score: Reg<'k, A>, lse: Reg<'k, A>) -> Reg<'k, A> {
        match self.precision {
            Precision::Full => ((score - lse) * LOG2_E).exp2_approx(),
            Precision::Storage => score.mul_add(self.unit, lse).exp2_approx(),
        }
    }
}
