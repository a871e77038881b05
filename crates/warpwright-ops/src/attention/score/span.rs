//! Which queries and keys of a sequence see each other.

use warpwright_dsl::prelude::*;

use super::{Origin, Problem, ScoreKind};
use crate::attention::kernels::dropout::Keys;
use crate::attention::kernels::engine::Walk;

/// The queries and keys of one head of one sequence: how many there are and which see each other.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Span<'k> {
    pub(super) kind: ScoreKind,
    pub(in crate::attention) queries: I32<'k>,
    pub(in crate::attention) keys: I32<'k>,
    /// Where the queries and the keys begin.
    pub(in crate::attention) of_queries: Origin<'k>,
    pub(in crate::attention) of_keys: Origin<'k>,
    /// Query `i` sees keys from `i - left` to `i + right`.
    pub(super) left: I32<'k>,
    pub(super) right: I32<'k>,
}

impl<'k> Span<'k> {
    pub(in crate::attention) fn new(kind: ScoreKind, p: &Problem<'k>, batch: U32<'k>) -> Self {
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
    pub(in crate::attention) fn keys_of(&self, first: I32<'k>, end: I32<'k>) -> [I32<'k>; 2] {
        let k = first.k();
        if !self.kind.band {
            return [k.lit(0i32), self.keys];
        }
        let end = end.min(self.queries);
        [(first - self.left).max(0i32), (end + self.right).min(self.keys)]
    }

    /// The queries that see any of the keys from `first` below `end`: from, below.
    pub(in crate::attention) fn queries_of(&self, first: I32<'k>, end: I32<'k>) -> [I32<'k>; 2] {
        let k = first.k();
        let any = first.lt(self.keys);
        if !self.kind.band {
            return [k.lit(0i32), any.select(self.queries, 0i32)];
        }
        let end = end.min(self.keys);
        [(first - self.right).max(0i32), any.select((end + self.left).min(self.queries), 0i32)]
    }

    /// The keys that queries from `first` below `end` see, in tiles of `columns`.
    pub(in crate::attention) fn walk_keys(&self, first: I32<'k>, end: I32<'k>, columns: u32) -> Walk<'k> {
        let [from, below] = self.keys_of(first, end);
        let last = end - 1i32;
        let complete = end.le(self.queries);
        self.walk([from, below], [last - self.left, first + self.right], self.keys, complete, columns)
    }

    /// The queries that see keys from `first` below `end`, in tiles of `columns`.
    pub(in crate::attention) fn walk_queries(&self, first: I32<'k>, end: I32<'k>, columns: u32) -> Walk<'k> {
        let [from, below] = self.queries_of(first, end);
        let last = end - 1i32;
        let complete = end.le(self.keys);
        self.walk([from, below], [last - self.right, first + self.left], self.queries, complete, columns)
    }

    /// The first one of the tiles of `rows` keys, a power of two, whose [walk](Self::walk_queries) comes to the tile of queries from `first` on,
    /// if any does. With it do all behind it, up to the last one that does.
    pub(in crate::attention) fn first_tile_at(&self, first: I32<'k>, rows: u32) -> U32<'k> {
        if !self.kind.band {
            return first.k().lit(0u32);
        }
        (first - self.left).max(0i32).to_u32() >> rows.trailing_zeros()
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
    pub(super) fn seen_by(&self, query: I32<'k>) -> [Option<I32<'k>>; 2] {
        let last = self.keys - 1i32;
        if !self.kind.band {
            return [None, Some(last)];
        }
        [Some(query - self.left), Some(last.min(query + self.right))]
    }

    /// How far from the pair `query`, `key` the first and the last column lie that its row sees, where they are limited.
    pub(super) fn seen_from(&self, query: I32<'k>, key: I32<'k>, keys: Keys) -> [Option<I32<'k>>; 2] {
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
    pub(in crate::attention) fn sees(&self, query: I32<'k>, key: I32<'k>) -> Pred<'k> {
        let inside = key.lt(self.keys) & query.lt(self.queries);
        if !self.kind.band {
            return inside;
        }
        inside & key.le(query + self.right) & key.ge(query - self.left)
    }
}
