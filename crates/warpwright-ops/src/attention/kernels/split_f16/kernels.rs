//! The kernels that read copies: those of [`Forward`] and [`Sweep`] with another engine, and what both need for it.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{MmaAtom, kernel_args};

use super::super::backward::{Gradients, Sweep, SweepArgs, SweepTensors};
use super::super::forward::{Forward, ResultArgs, Results};
use super::super::mma::{Mma, MmaEngine};
use super::{Copied, SplitF16, SplitF16Engine, TILE};
use crate::attention::layout::BlockLayout;
use crate::attention::score::{Problem, ProblemArgs, ScoreKind, View};
use crate::attention::tuning::{Config, Work};

kernel_args! {
    /// As `forward::ForwardArgs`, and copies of queries, keys and values with so many rows a head.
    pub(in crate::attention) struct SplitF16ForwardArgs => SplitF16ForwardParams {
        problem: ProblemArgs, results: ResultArgs,
        copies: [In<Elem>; 3], factors: [In<f32>; 3],
        /// Of queries and of keys.
        pitches: [u32; 2],
    }
}

kernel_args! {
    /// As `backward::SweepArgs`, and copies, that of the gradient of the result last.
    pub(in crate::attention) struct SplitF16SweepArgs => SplitF16SweepParams {
        sweep: SweepArgs,
        copies: [In<Elem>; 4], factors: [In<f32>; 4],
        /// Of queries and of keys.
        pitches: [u32; 2],
    }
}

/// A copy: pairs and factors.
type SplitTensor<'k> = (Ptr<'k, Read, Elem>, Ptr<'k, Read, f32>);

/// The copies of a problem.
#[derive(Clone, Copy, Debug)]
struct Copies<'k> {
    q: SplitTensor<'k>,
    k: SplitTensor<'k>,
    v: SplitTensor<'k>,
    /// Of the gradient of the result.
    dy: Option<SplitTensor<'k>>,
    /// Rows of a head of queries and of keys.
    pitches: [U32<'k>; 2],
    width: u32,
}

impl<'k> Copies<'k> {
    /// The problem with the copies instead of the tensors, and the same of the gradient of the result.
    fn of(&self, p: Problem<'k>) -> (Problem<'k>, Option<View<'k, Read>>) {
        let key_heads = p.key_head(p.heads);
        let of_queries = |parts| Copied::view(parts, p.heads, self.pitches[0], self.width);
        let of_keys = |parts| Copied::view(parts, key_heads, self.pitches[1], self.width);
        let copies = Problem { q: of_queries(self.q), k: of_keys(self.k), v: of_keys(self.v), ..p };
        (copies, self.dy.map(of_queries))
    }

    /// Whether all tiles of rows that a block reads have a factor: those of the query heads from `heads.0` on, `heads.1` of them, and of
    /// their key head.
    fn suit(
        &self,
        k: K<'k>,
        p: &Problem<'k>,
        heads: (U32<'k>, U32<'k>),
        key_head: U32<'k>,
        batch: U32<'k>,
    ) -> Pred<'k> {
        let [of_queries, of_keys] = self.pitches.map(|pitch| pitch / TILE);
        let first_query = (batch * p.heads + heads.0) * of_queries;
        let first_key = (batch * p.key_head(p.heads) + key_head) * of_keys;
        let queries = [Some(self.q), self.dy].into_iter().flatten();
        let queries = queries.map(|parts| (parts.1.at(first_query), heads.1 * of_queries));
        let keys = [self.k, self.v].map(|parts| (parts.1.at(first_key), of_keys));
        let none = k.lit(0u32);
        let without = queries.chain(keys).fold(none, |without, (factors, tiles)| {
            k.fold(k.range(k.thread_idx(), tiles, k.block_threads()), without, |tile, without| {
                factors.at(tile).get::<f32>().eq(0.0).select(without + 1, without)
            })
        });
        k.group_combine_once(k.block_threads(), without, |a, b| a + b).eq(0)
    }
}

/// Where a kernel reads the operands of a block from: it leaves blocks that the other one computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::attention) enum Operands {
    /// From copies, if they [suit](Copies::suit).
    Copies(SplitF16),
    /// From the tensors themselves, if copies do not suit.
    Tensors(Mma),
}

impl Operands {
    /// The layout of a block.
    pub(in crate::attention) fn layout(&self) -> &dyn BlockLayout {
        match self {
            Self::Copies(halves) => halves,
            Self::Tensors(tensors) => tensors,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Copies(halves) => halves.name(),
            Self::Tensors(tensors) => format!("unpaired_{}", tensors.name()),
        }
    }

    /// The tiles, for kernels that do not ask where they come from.
    const fn config(self) -> Config {
        Config::Mma(match self {
            Self::Copies(halves) => halves.halves(),
            Self::Tensors(tensors) => tensors,
        })
    }
}

/// Types of the arguments of both kernels.
fn dtypes() -> DTypes {
    DTypes::all(DType::F32).with("copies", DType::F16)
}

/// [`Forward`] of `f32` from copies.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct SplitF16Forward {
    pub(in crate::attention) kind: ScoreKind,
    pub(in crate::attention) from: Operands,
}

impl KernelDef for SplitF16Forward {
    type Args = SplitF16ForwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("attention_f32_{}{}", self.from.name(), self.kind.name()),
            BlockDim::x(self.from.layout().threads()),
        )
        .dtypes(dtypes())
    }

    fn build<'k>(&self, k: K<'k>, a: SplitF16ForwardParams<'k>) {
        let results = Results::of(a.results);
        let [q, k_copy, v] = [0, 1, 2].map(|i: usize| (a.copies[i], a.factors[i]));
        let width = self.from.layout().width();
        let copies = Copies { q, k: k_copy, v, dy: None, pitches: a.pitches, width };
        let p = Problem::of(a.problem);
        let [_, head, batch] = p.place(k, false);
        let suit = copies.suit(k, &p, (head, k.lit(1u32)), p.key_head(head), batch);
        let forward = Forward { dtype: DType::F32, kind: self.kind, config: self.from.config() };
        match self.from {
            Operands::Copies(split) => k.if_(suit, || {
                forward.body(k, copies.of(p).0, results, None, SplitF16Engine::new(k, split, 1));
            }),
            Operands::Tensors(tensors) => k.if_(!suit, || {
                forward.body(k, p, results, None, MmaEngine::new(k, tensors, MmaAtom::Tf32, 1));
            }),
        }
    }
}

/// [`Sweep`] of `f32` from copies.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct SplitF16Sweep {
    pub(in crate::attention) work: Work,
    pub(in crate::attention) kind: ScoreKind,
    pub(in crate::attention) from: Operands,
}

impl KernelDef for SplitF16Sweep {
    type Args = SplitF16SweepArgs;

    fn spec(&self) -> KernelSpec {
        let Self { work, kind, from } = self;
        KernelSpec::new(
            format!("attention_backward_{}_f32_{}{}", work.gradients(), from.name(), kind.name()),
            BlockDim::x(self.from.layout().threads()),
        )
        .dtypes(dtypes())
    }

    fn build<'k>(&self, k: K<'k>, a: SplitF16SweepParams<'k>) {
        let (p, gradients, work) = (Problem::of(a.sweep.problem), Gradients::of(a.sweep), self.work);
        let [q, k_copy, v, of_dy] = [0, 1, 2, 3].map(|i: usize| (a.copies[i], a.factors[i]));
        let width = self.from.layout().width();
        let copies = Copies { q, k: k_copy, v, dy: Some(of_dy), pitches: a.pitches, width };
        let [_, head, batch] = p.place(k, false);
        let suit = if work == Work::Queries {
            copies.suit(k, &p, (head, k.lit(1u32)), p.key_head(head), batch)
        } else {
            copies.suit(k, &p, (head * p.group, p.group), head, batch)
        };
        let sweep = Sweep { work, dtype: DType::F32, kind: self.kind, config: self.from.config() };
        match self.from {
            Operands::Copies(split) => k.if_(suit, || {
                let (copied, dy_copied) = copies.of(p);
                let engine = SplitF16Engine::new(k, split, work.stationary());
                let dy = dy_copied.unwrap_or(gradients.dy);
                let gradients = Gradients { dy, ..gradients };
                sweep.body(k, SweepTensors { p: copied, gradients, mask: None }, &engine);
            }),
            Operands::Tensors(tensors) => k.if_(!suit, || {
                let engine = MmaEngine::new(k, tensors, MmaAtom::Tf32, work.stationary());
                sweep.body(k, SweepTensors { p, gradients, mask: None }, &engine);
            }),
        }
    }
}
