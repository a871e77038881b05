//! The norm of the gradients of a list of parameters, and clipping by it, as `torch.nn.utils.get_total_norm` and `clip_grad_norm_`.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Readable, kernel_args, tree};
use warpwright_ptx::Target;
use warpwright_runtime::LaunchStep;

use super::tuning::{CHUNK, LIST, List, THREADS, VECTORS, WIDTH, lists};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Real, Variant};
use crate::tensors::{OutSlot, tensors};

/// A norm of all elements together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Norm {
    /// The root of the sum of the squares.
    L2,
    /// The largest magnitude.
    Infinity,
}

/// The norm of the gradients of a list of parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GradNormDesc {
    /// Which norm.
    pub norm: Norm,
    /// Element type of the gradients.
    pub dtype: DType,
    /// Elements of each.
    pub lens: Vec<usize>,
}

tensors! {
    /// A gradient of [`GradNormDesc`].
    pub struct GradArgs<'a> {
        /// The gradient.
        grad: In,
    }
}

tensors! {
    /// Tensors of [`GradNormDesc`].
    pub struct GradNormArgs<'a> {
        /// The norm: one element of [`DType::accumulator`].
        total_norm: Out,
        /// Scratch memory; see [`Plan::workspace`].
        workspace: Option<Out>,
        /// Each gradient.
        grads: Each<GradArgs>,
    }
}

/// Gradients times `max_norm / (norm + 1e-6)` where that is below 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClipGradNormDesc {
    /// The gradients and their norm.
    pub grads: GradNormDesc,
    /// The largest norm that is left as it is, about.
    pub max_norm: Real,
}

tensors! {
    /// A gradient of [`ClipGradNormDesc`].
    pub struct ClippedArgs<'a> {
        /// The gradient.
        grad: InOut,
    }
}

tensors! {
    /// Tensors of [`ClipGradNormDesc`].
    pub struct ClipGradNormArgs<'a> {
        /// The norm before clipping: one element of [`DType::accumulator`].
        total_norm: Out,
        /// Scratch memory; see [`Plan::workspace`].
        workspace: Option<Out>,
        /// Each gradient.
        grads: Each<ClippedArgs>,
    }
}

kernel_args! {
    /// Lengths of a list of gradients, of which each begins at the block `starts`.
    struct ListArgs => ListParams { lens: [u64; LIST], starts: [u32; LIST] }
}

kernel_args! {
    /// `partials` gets a sum of squares, or a largest magnitude, of each block, from `first` on.
    struct PartialArgs => PartialParams { grads: [In<Elem>; LIST], list: ListArgs, partials: Out<Elem>, first: u64 }
}

kernel_args! {
    /// The norm from `n` partial results, and what gradients are multiplied by to have `max_norm` at most.
    struct FinishArgs => FinishParams { partials: In<Elem>, n: u64, total_norm: Out<Elem>, coefficient: Out<Elem>, max_norm: f64 }
}

kernel_args! {
    /// Gradients times `coefficient`.
    struct ScaleArgs => ScaleParams { grads: [InOut<Elem>; LIST], list: ListArgs, coefficient: In<Elem> }
}

/// The elements of a gradient that a block has.
struct Chunk<'k, S> {
    k: K<'k>,
    grad: Ptr<'k, S, Elem>,
    first: U64<'k>,
    end: U64<'k>,
    /// Whether they are as many vectors as a block has.
    vectors: Pred<'k>,
}

impl<'k, S: Readable> Chunk<'k, S> {
    fn of_block(k: K<'k>, grads: [Ptr<'k, S, Elem>; LIST], list: ListParams<'k>) -> Self {
        let block = k.block_idx_x();
        let value = |i: usize| (grads[i].address(), list.lens[i], list.starts[i]);
        let (address, len, start) = k.search(LIST, &|i| block.ge(list.starts[i]), &value);
        let first = (block - start).mul_wide(CHUNK);
        let whole = (first + u64::from(CHUNK)).le(len);
        let end = (first + u64::from(CHUNK)).min(len);
        Self { k, grad: grads[0].at_address(address), first, end, vectors: (address & 15).eq(0) & whole }
    }

    /// The places of the thread's vectors, and what is there.
    fn load<A: Accumulate>(&self) -> Vec<(Ptr<'k, S, Elem>, Lanes<'k, A>)> {
        let first = self.grad.at(self.first).at(self.k.thread_idx() * WIDTH);
        let places = (0..VECTORS).map(|i| first.at(u64::from(i * THREADS * WIDTH)));
        places.map(|at| (at, at.load(WIDTH))).collect()
    }

    /// Goes over the thread's single elements.
    fn fold<C: Carry<'k>>(&self, init: C, body: impl FnOnce(Ptr<'k, S, Elem>, C) -> C) -> C {
        let k = self.k;
        let range = k.range(self.first + k.thread_idx().to_u64(), self.end, u64::from(THREADS));
        k.fold(range, init, |at, state| body(self.grad.at(at), state))
    }
}

fn combined<'k, A: Accumulate>(norm: Norm, a: Reg<'k, A>, b: Reg<'k, A>) -> Reg<'k, A> {
    match norm {
        Norm::L2 => a + b,
        Norm::Infinity => a.maximum(b),
    }
}

#[derive(Clone, Copy, Debug)]
struct Partial {
    norm: Norm,
    dtype: DType,
}

impl Norm {
    const fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::Infinity => "inf",
        }
    }
}

impl AccumulateKernel for Partial {
    type Args = PartialArgs;

    fn spec(&self) -> KernelSpec {
        let name = format!("grad_norm_{}_{}", self.norm.name(), self.dtype);
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(DTypes::all(self.dtype).accumulated(["partials"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: PartialParams<'k>) {
        k.overlap_grids();
        let norm = self.norm;
        let of = |x: Reg<'k, A>| if norm == Norm::L2 { x * x } else { x.abs() };
        let chunk = Chunk::of_block(k, p.grads, p.list);
        let whole = || {
            let each = Lanes::concat(chunk.load::<A>().into_iter().map(|(_, x)| x)).map(of);
            tree(each, |a, b| combined(norm, a, b)).unwrap_or_else(|| k.lit(0.0))
        };
        let single = || chunk.fold(k.lit::<A>(0.0), |at, sum| combined(norm, sum, of(at.get())));
        let mine = k.if_else(chunk.vectors, whole, single);
        let total = k.group_combine_once(THREADS, mine, |a, b| combined(norm, a, b));
        k.if_(k.thread_idx().eq(0), || {
            p.partials.at(p.first + k.block_idx_x().to_u64()).set(total);
        });
    }
}

#[derive(Clone, Copy, Debug)]
struct Finish {
    norm: Norm,
    wide: DType,
}

/// Threads of the block that puts partial results together, and how many of those a thread has in flight.
const FINISH_THREADS: u32 = 1024;
const FINISH_UNROLL: u32 = 8;

impl AccumulateKernel for Finish {
    type Args = FinishArgs;

    fn spec(&self) -> KernelSpec {
        let name = format!("grad_norm_finish_{}_{}", self.norm.name(), self.wide);
        KernelSpec::new(name, BlockDim::x(FINISH_THREADS)).dtypes(DTypes::all(self.wide))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: FinishParams<'k>) {
        k.overlap_grids();
        let norm = self.norm;
        let mine = RowLoop::of_block(k, p.n, 1, FINISH_UNROLL).fold(k.lit::<A>(0.0), |round, sum| {
            let loaded: Vec<Reg<'k, A>> = round.map(|at| at.of(p.partials, Fill::Zero).get()).collect();
            loaded.into_iter().fold(sum, |sum, partial| combined(norm, sum, partial))
        });
        let total = k.group_combine_once(FINISH_THREADS, mine, |a, b| combined(norm, a, b));
        let total = if norm == Norm::L2 { total.sqrt() } else { total };
        k.if_(k.thread_idx().eq(0), || {
            p.total_norm.set(total);
            p.coefficient.set((p.max_norm.convert::<A>() / (total + 1e-6)).minimum(1.0));
        });
    }
}

#[derive(Clone, Copy, Debug)]
struct Scale {
    dtype: DType,
}

impl AccumulateKernel for Scale {
    type Args = ScaleArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("clip_grad_{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype).accumulated(["coefficient"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: ScaleParams<'k>) {
        k.overlap_grids();
        let coefficient: Reg<'k, A> = p.coefficient.get();
        // Times 1 nothing changes.
        let clips = coefficient.ne(1.0);
        let chunk = Chunk::of_block(k, p.grads, p.list);
        k.if_(clips & chunk.vectors, || {
            chunk.load::<A>().into_iter().for_each(|(at, x)| at.store(x * coefficient));
        });
        k.if_(clips & !chunk.vectors, || {
            chunk.fold((), |at, ()| at.set(at.get::<A>() * coefficient));
        });
    }
}

impl GradNormDesc {
    /// Launches that leave the norm in `total_norm`, and their partial results in the workspace behind the coefficient; elements of the workspace.
    fn steps(
        &self,
        op: &'static str,
        grad: &dyn Fn(usize) -> In<Elem>,
        [total_norm, workspace]: [OutSlot; 2],
        max_norm: f64,
        target: Target,
    ) -> Result<(Vec<LaunchStep>, Vec<List>, usize), PlanError> {
        let Self { norm, dtype, ref lens } = *self;
        PlanError::check_floats(op, "grad", dtype)?;
        let wide = dtype.accumulator();
        let lists = lists(lens, CHUNK).ok_or(PlanError::TooLarge {
            op,
            blocks: u64::MAX,
            limit: plan::MAX_BLOCKS,
        })?;
        // Results begin where vectors do.
        let partials = 16 / wide.bytes();
        let mut steps = Vec::new();
        let mut blocks = 0u64;
        for list in &lists {
            let args = PartialArgs {
                grads: std::array::from_fn(|i| grad(list.number(i))),
                list: self.list(list),
                partials: workspace.arg_at(16),
                first: blocks,
            };
            steps.push(plan::launch(op, &Partial { norm, dtype }, args, target, [list.blocks, 1, 1])?);
            blocks += u64::from(list.blocks);
        }
        let args = FinishArgs {
            partials: workspace.written_at(16),
            n: blocks,
            total_norm: total_norm.arg(),
            coefficient: workspace.arg(),
            max_norm,
        };
        steps.push(plan::launch(op, &Finish { norm, wide }, args, target, [1; 3])?);
        let too_many =
            || PlanError::refused(op, "lens", "too many", "so few that partial results can be counted");
        let blocks = usize::try_from(blocks).map_err(|_| too_many())?;
        Ok((steps, lists, blocks + partials))
    }

    fn list(&self, list: &List) -> ListArgs {
        ListArgs {
            lens: std::array::from_fn(|i| list.items.get(i).map_or(0, |item| self.lens[item.number] as u64)),
            starts: std::array::from_fn(|i| list.start(i)),
        }
    }
}

/// The names in the catalogue.
pub(super) const GRAD_NORM: &str = "grad_norm";
pub(super) const CLIP_GRAD_NORM: &str = "clip_grad_norm";

impl Operation for GradNormDesc {
    type Args<'a> = GradNormArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = GradNormArgs<'a>;
        let wide = self.dtype.accumulator();
        let grad = |number: usize| Args::grads.of(number, GradArgs::grad).arg();
        let slots = [Args::total_norm, Args::workspace];
        let (steps, _, scratch) = self.steps(GRAD_NORM, &grad, slots, 0.0, target)?;
        let of =
            |(number, len): (usize, &usize)| Args::grads.of(number, GradArgs::grad).holds(self.dtype, *len);
        let results = [Args::total_norm.holds(wide, 1), Args::workspace.scratch(wide, scratch)];
        let tensors = Args::specs(results.into_iter().chain(self.lens.iter().enumerate().map(of)));
        let variants = vec![Variant { alignment: 1, steps }];
        Ok(Plan::of(GRAD_NORM, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for ClipGradNormDesc {
    type Args<'a> = ClipGradNormArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = ClipGradNormArgs<'a>;
        let (op, grads, max_norm) = (CLIP_GRAD_NORM, &self.grads, self.max_norm.get());
        if max_norm.is_nan() || max_norm < 0.0 {
            return Err(PlanError::refused(op, "max_norm", format!("{max_norm:?}"), "at least 0"));
        }
        let (dtype, wide) = (grads.dtype, grads.dtype.accumulator());
        let slot = |number: usize| Args::grads.of(number, ClippedArgs::grad);
        let grad = |number: usize| slot(number).after().written();
        let slots = [Args::total_norm, Args::workspace];
        let (mut steps, lists, scratch) = grads.steps(op, &grad, slots, max_norm, target)?;
        for list in &lists {
            let args = ScaleArgs {
                grads: std::array::from_fn(|i| slot(list.number(i)).after().read_write()),
                list: grads.list(list),
                coefficient: Args::workspace.written(),
            };
            steps.push(plan::launch(op, &Scale { dtype }, args, target, [list.blocks, 1, 1])?);
        }
        let of = |(number, len): (usize, &usize)| slot(number).holds(dtype, *len);
        let results = [Args::total_norm.holds(wide, 1), Args::workspace.scratch(wide, scratch)];
        let tensors = Args::specs(results.into_iter().chain(grads.lens.iter().enumerate().map(of)));
        let variants = vec![Variant { alignment: 1, steps }];
        Ok(Plan::of(op, Direction::Forward, target, tensors, variants))
    }
}
