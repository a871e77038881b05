//! The queries of a block.

use warpwright_dsl::SmemUniform;
use warpwright_dsl::prelude::*;

use super::{Problem, ScoreKind, Scorer, Span, View};
use crate::attention::kernels::engine::Source;

/// A block of queries of one head.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct QueryBlock<'k, A: Accumulate> {
    pub(in crate::attention) head: U32<'k>,
    pub(in crate::attention) batch: U32<'k>,
    /// The first query.
    pub(in crate::attention) first: I32<'k>,
    pub(in crate::attention) span: Span<'k>,
    pub(in crate::attention) scorer: Scorer<'k, A>,
    pub(in crate::attention) q: Source<'k>,
    /// Keys and values.
    pub(in crate::attention) sources: [Source<'k>; 2],
}

impl<'k, A: Accumulate> QueryBlock<'k, A> {
    /// The block of `rows` queries that this is.
    pub(in crate::attention) fn new(
        k: K<'k>,
        kind: ScoreKind,
        dtype: DType,
        p: &Problem<'k>,
        rows: u32,
    ) -> Self {
        Self::at(kind, dtype, p, rows, p.place(k, kind.is_uneven()))
    }

    /// The block with this tile of `rows` queries, head and batch.
    pub(in crate::attention) fn at(
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
            batch,
            first: (tile * rows).to_i32(),
            span,
            scorer: Scorer::new(kind, Precision::of(dtype), p, span, head, batch),
            q: p.q.source(span.of_queries, head, span.queries, p.width),
            sources: p.columns(&span, key_head),
        }
    }

    /// The block's limits and offsets, kept [in shared memory](K::smem_uniform).
    pub(in crate::attention) fn in_shared_memory(&self, k: K<'k>, p: &Problem<'k>) -> SharedBlock<'k> {
        let (span, key_head) = (self.span, p.key_head(self.head));
        let offsets = [p.k, p.v].map(|view| view.offset(span.of_keys, key_head));
        let limits = [span.keys, span.queries, span.left, span.right];
        SharedBlock { limits: k.smem_uniform(limits), offsets: k.smem_uniform(offsets) }
    }
}

/// Limits and offsets of a [`QueryBlock`] in shared memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct SharedBlock<'k> {
    /// How many keys and queries there are, and which see each other.
    limits: SmemUniform<'k, i32, 4>,
    /// Elements to the first key and the first value.
    offsets: SmemUniform<'k, u64, 2>,
}

impl<'k> SharedBlock<'k> {
    /// The scorer and the sources of a block with what is known of its sequence in new registers.
    pub(in crate::attention) fn get<A: Accumulate>(
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
