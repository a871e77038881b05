//! The arguments that every kernel of the family takes, and its tensors as rows of heads.

use std::ops::Deref;

use warpwright_dsl::prelude::*;
use warpwright_dsl::{SmemUniform, StridedPtr, kernel_args};

use super::Span;
use crate::attention::AttentionInputs;
use crate::attention::kernels::engine::{Destination, Form, Source};
use crate::attention::kernels::split_f16::Copied;
use crate::attention::options::Common;

kernel_args! {
    /// The arguments of every kernel of the family.
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
    pub(in crate::attention) fn new(c: &Common) -> Self {
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
pub(in crate::attention) enum Origin<'k> {
    /// In a batch of its own.
    Batch(U32<'k>),
    /// At a row among those of all sequences.
    Row(I32<'k>),
}

/// A tensor `[batch, sequence, heads, head_dim]` that is read or written.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct View<'k, S: warpwright_dsl::Space> {
    pub(in crate::attention) data: Ptr<'k, S, Elem>,
    /// Elements from one batch, row and head to the next.
    pub(in crate::attention) strides: [U64<'k>; 3],
    /// If it is a copy of another tensor, see [`Copied`].
    pub(in crate::attention) copied: Option<Copied<'k>>,
}

impl<'k, S: warpwright_dsl::Space> View<'k, S> {
    pub(in crate::attention) fn new(data: Ptr<'k, S, Elem>, strides: [U64<'k>; 3]) -> Self {
        Self { data, strides, copied: None }
    }

    pub(in crate::attention) fn of(tensor: StridedPtr<'k, Ptr<'k, S, Elem>, 3>) -> Self {
        Self::new(tensor.data, tensor.strides)
    }

    /// Elements to the first row of one head of a sequence.
    pub(super) fn offset(self, origin: Origin<'k>, head: U32<'k>) -> U64<'k> {
        let [of_batch, of_row, of_head] = self.strides;
        let sequence = match origin {
            Origin::Batch(batch) => batch.to_u64() * of_batch,
            Origin::Row(row) => row.to_u64() * of_row,
        };
        sequence + head.to_u64() * of_head
    }

    /// The first row of one head of a sequence.
    pub(in crate::attention) fn head(self, origin: Origin<'k>, head: U32<'k>) -> Ptr<'k, S, Elem> {
        self.data.at(self.offset(origin, head))
    }

    /// Elements from one row to the next.
    pub(in crate::attention) fn row(self) -> U64<'k> {
        self.strides[1]
    }
}

impl<'k> View<'k, Read> {
    /// One head, of which `rows` rows and `width` elements of each exist.
    pub(in crate::attention) fn source(
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
    pub(in crate::attention) fn destination(
        self,
        origin: Origin<'k>,
        head: U32<'k>,
        rows: I32<'k>,
        width: U32<'k>,
    ) -> Destination<'k> {
        Destination { data: self.head(origin, head), stride: self.row(), rows, width }
    }
}

/// [`ProblemArgs`] in a kernel, with its tensors as views.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Problem<'k> {
    pub(in crate::attention) params: ProblemParams<'k>,
    pub(in crate::attention) q: View<'k, Read>,
    pub(in crate::attention) k: View<'k, Read>,
    pub(in crate::attention) v: View<'k, Read>,
    /// Seed and offset of dropout if they are kept in shared memory.
    pub(in crate::attention) shared_random: Option<SmemUniform<'k, u64, 2>>,
}

impl<'k> Deref for Problem<'k> {
    type Target = ProblemParams<'k>;

    fn deref(&self) -> &ProblemParams<'k> {
        &self.params
    }
}

impl<'k> Problem<'k> {
    pub(in crate::attention) fn of(params: ProblemParams<'k>) -> Self {
        Self {
            q: View::new(params.q, params.q_strides),
            k: View::new(params.k, params.k_strides),
            v: View::new(params.v, params.v_strides),
            shared_random: None,
            params,
        }
    }

    /// The same with products that are multiplied by `factor` besides.
    pub(in crate::attention) fn scaled(self, factor: F32<'k>) -> Self {
        let scale = self.params.scale * factor.convert::<f64>();
        Self { params: ProblemParams { scale, ..self.params }, ..self }
    }

    /// Seed and offset of what is dropped.
    pub(super) fn random(&self) -> [U64<'k>; 2] {
        [0u64, 1].map(|at| self.random.at(at).get::<u64>())
    }

    /// The same with seed and offset of what is dropped kept [in shared memory](K::smem_uniform).
    pub(in crate::attention) fn with_shared_random(self, k: K<'k>) -> Self {
        Self { shared_random: Some(k.smem_uniform(self.random())), ..self }
    }

    /// Tile, head and batch of the block. Blocks run in order, so with `last_first` those with the most keys under a causal
    /// mask begin first. Nothing is divided, so that what the block has in common stays out of the threads' registers.
    pub(in crate::attention) fn place(&self, k: K<'k>, last_first: bool) -> [U32<'k>; 3] {
        let tile = k.block_idx_x();
        let tile = if last_first { k.grid_dim_x() - 1 - tile } else { tile };
        [tile, k.block_idx_y(), k.block_idx_z()]
    }

    /// The number of the first query of a head of a sequence among the rows of `lse`.
    pub(in crate::attention) fn first_row(&self, origin: Origin<'k>, head: U32<'k>) -> U64<'k> {
        match origin {
            Origin::Batch(batch) => (batch * self.heads + head).mul_wide(self.queries),
            Origin::Row(row) => head.mad_wide(self.queries, row.to_u64()),
        }
    }

    /// The rows of packed sequence `batch` among `all`: the first, and how many there are. Offsets that do not increase or
    /// lead outside leave no rows.
    pub(super) fn packed(&self, batch: U32<'k>, which: usize, all: U32<'k>) -> (I32<'k>, I32<'k>) {
        let at = self.offsets[which].at(batch);
        let all = all.to_i32();
        let first = at.get::<i32>().max(0).min(all);
        let end = at.at(1u64).get::<i32>().max(first).min(all);
        (first, end - first)
    }

    /// Keys and values of one head.
    pub(in crate::attention) fn columns(&self, span: &Span<'k>, key_head: U32<'k>) -> [Source<'k>; 2] {
        [
            self.k.source(span.of_keys, key_head, span.keys, self.width),
            self.v.source(span.of_keys, key_head, span.keys, self.value_width),
        ]
    }

    /// The key head of a query head. Both it and the group are below 2^16, so the product with the reciprocal is exact.
    pub(in crate::attention) fn key_head(&self, head: U32<'k>) -> U32<'k> {
        self.group.eq(1).select(head, head.mul_hi(self.group_reciprocal))
    }
}
