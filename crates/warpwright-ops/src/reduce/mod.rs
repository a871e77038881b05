//! Reductions over dimensions: sums, means, largest and least elements, and where these are.
//!
//! A reduction takes any set of dimensions of a tensor; the results lie in the order of the others, so that whether the reduced
//! dimensions stay, with extent 1, is a matter of shape alone. Without elements a sum is 0 and a mean NaN; a largest or least element
//! does not exist then.
//!
//! `amax` and `amin` give NaN where an element is NaN. `argmax` and `argmin` give the first of several, and the first NaN before any
//! number. All of it is as `torch.sum`, `mean`, `amax`, `amin`, `argmax` and `argmin` have it.
//!
//! Half types are summed in f32, f64 in f64, and rounded once. Sums go in a fixed order: threads add up every so many-th element, pairwise
//! where they load several at a time, then trees over threads, so that no sum is long. Where results are few, blocks leave partial results in a workspace, which another
//! launch puts together.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::divide::WideDivisorArgs;
use warpwright_dsl::{Elem, In, Out};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Variant};
use crate::tensors::{OutSlot, tensors};

pub use functions::{amax, amin, argmax, argmin, mean, sum, sum_to_shape};
use kernel::{Kept, Reduce};
use tuning::{Layout, Pass};

/// The function that elements are reduced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceFunction {
    /// Their sum.
    Sum,
    /// Their sum, divided by how many there are.
    Mean,
    /// The largest.
    Amax,
    /// The least.
    Amin,
}

impl ReduceFunction {
    /// Every function.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Mean, Self::Amax, Self::Amin];

    /// The name in the catalogue.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Amax => "amax",
            Self::Amin => "amin",
        }
    }

    const fn has_value_of_nothing(self) -> bool {
        matches!(self, Self::Sum | Self::Mean)
    }
}

/// Which element is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgReduceFunction {
    /// The largest.
    Argmax,
    /// The least.
    Argmin,
}

impl ArgReduceFunction {
    /// Every function.
    pub const ALL: [Self; 2] = [Self::Argmax, Self::Argmin];

    /// The name in the catalogue.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Argmax => "argmax",
            Self::Argmin => "argmin",
        }
    }
}

/// `y = function(x)` over dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReduceDesc {
    /// The function that elements are reduced by.
    pub function: ReduceFunction,
    /// Element type of `x`.
    pub dtype: DType,
    /// Element type of `y`: that of `x`, or the one that it is summed in, [`DType::accumulator`].
    pub y_dtype: DType,
    /// Extents of `x`.
    pub shape: Vec<usize>,
    /// The dimensions that are reduced, in any order, each once.
    pub dims: Vec<usize>,
}

tensors! {
    /// Tensors of [`ReduceDesc`].
    pub struct ReduceArgs<'a> {
        /// The elements.
        x: In,
        /// One element for each index of the other dimensions.
        y: Out,
        /// Scratch memory where results are few; see [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

/// Where the largest or least of `n` elements is, for each of `outer` x `inner`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArgReduceDesc {
    /// Which element is looked for.
    pub function: ArgReduceFunction,
    /// Element type of `x`.
    pub dtype: DType,
    /// The product of the extents before.
    pub outer: usize,
    /// The extent that is searched.
    pub n: usize,
    /// The product of the extents behind.
    pub inner: usize,
}

tensors! {
    /// Tensors of [`ArgReduceDesc`].
    pub struct ArgReduceArgs<'a> {
        /// `outer` x `n` x `inner`.
        x: In,
        /// `outer` x `inner` numbers of elements, of i64.
        index: Out,
        /// Scratch memory where results are few; see [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

/// The product of extents, of which the bytes of the widest type can be counted.
fn product(op: &'static str, extents: &[usize]) -> Result<usize, PlanError> {
    // An extent of 0 hides none that is too large.
    let all = extents.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent.max(1)));
    match all.filter(|n| n.checked_mul(16).is_some()) {
        Some(_) => Ok(extents.iter().product()),
        None => {
            Err(PlanError::refused(op, "shape", format!("{extents:?}"), "a tensor that can be addressed"))
        }
    }
}

/// Neighbouring dimensions that are reduced, or kept, as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    extent: u64,
    reduced: bool,
    /// Its elements are results of parts.
    partial: bool,
}

fn push_run(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        _ if run.extent == 1 => {}
        Some(last) if last.reduced == run.reduced => {
            last.extent *= run.extent;
            last.partial |= run.partial;
        }
        _ => runs.push(run),
    }
}

/// The passes of a reduction: over the longest run of reduced dimensions first, which leaves the least to the others.
fn passes(dtype: DType, shape: &[usize], dims: &[usize], vectors: bool, target: Target) -> Vec<Pass> {
    let mut runs = Vec::new();
    for (dim, &extent) in shape.iter().enumerate() {
        push_run(&mut runs, Run { extent: extent as u64, reduced: dims.contains(&dim), partial: false });
    }
    let mut all: Vec<Pass> = Vec::new();
    loop {
        let reduced = runs.iter().enumerate().filter(|(_, run)| run.reduced);
        let longest = reduced.max_by_key(|(at, run)| (run.extent, *at)).map(|(at, _)| at);
        let product = |runs: &[Run]| runs.iter().map(|run| run.extent).product::<u64>();
        let dtype = if all.is_empty() { dtype } else { dtype.accumulator() };
        let Some(at) = longest else {
            // Nothing is reduced: elements of another type, if at all.
            if all.is_empty() {
                all.push(Pass::choose(dtype, [1, 1, product(&runs)], vectors, true, target));
            }
            return all;
        };
        let sizes = [product(&runs[..at]), runs[at].extent, product(&runs[at + 1..])];
        let pass = Pass::choose(dtype, sizes, vectors, runs[at].partial, target);
        all.push(pass);
        let rest = std::mem::take(&mut runs);
        for (number, run) in rest.into_iter().enumerate() {
            let left = Run { extent: pass.parts(), reduced: true, partial: true };
            push_run(&mut runs, if number == at { left } else { run });
        }
    }
}

/// Where a pass reads or writes: the place of its values and, of a search, of its positions.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// A tensor of the caller.
    Tensor,
    /// Bytes of the workspace.
    Workspace { values: u64, positions: u64 },
}

/// Passes with the places between them.
struct Chain {
    passes: Vec<(Pass, Place, Place)>,
    workspace_bytes: usize,
}

impl Chain {
    /// Values between passes are of `dtype`; `positions` says whether each has an i64 beside it.
    fn new(op: &'static str, passes: Vec<Pass>, dtype: DType, positions: bool) -> Result<Self, PlanError> {
        let too_long =
            || PlanError::refused(op, "shape", "too long", "so short that partial results can be addressed");
        let last = passes.len() - 1;
        let (mut from, mut end, mut out) = (Place::Tensor, 0u64, Vec::new());
        for (number, pass) in passes.into_iter().enumerate() {
            let len = pass.outer.checked_mul(pass.parts()).and_then(|n| n.checked_mul(pass.inner));
            let mut claim = |bytes: u64| -> Option<u64> {
                let first = end;
                end = end.checked_add(len?.checked_mul(bytes)?)?.checked_next_multiple_of(16)?;
                Some(first)
            };
            let to = if number == last {
                Place::Tensor
            } else {
                let values = claim(dtype.bytes() as u64).ok_or_else(too_long)?;
                let positions = if positions { claim(8).ok_or_else(too_long)? } else { values };
                Place::Workspace { values, positions }
            };
            out.push((pass, from, to));
            from = to;
        }
        Ok(Self { passes: out, workspace_bytes: usize::try_from(end).map_err(|_| too_long())? })
    }
}

/// Facts that the passes of an operation share.
struct Problem {
    op: &'static str,
    /// Types of `x` and of the result, and of what lies between passes.
    from: DType,
    to: DType,
    wide: DType,
    /// The values that the first pass keeps, and those of the passes behind it.
    kept: [Kept; 2],
    /// The scale of a pass, and of the last.
    scales: [f64; 2],
    x: In<Elem>,
    y: Out<Elem>,
    index: Out<i64>,
    workspace: OutSlot,
    target: Target,
}

impl Problem {
    fn has_positions(&self) -> bool {
        self.kept[0] == Kept::Position
    }

    /// The launches of passes, and bytes of the workspace.
    fn variant(&self, passes: Vec<Pass>) -> Result<(Variant, usize), PlanError> {
        let vectors = passes.iter().any(|pass| pass.config.width > 1);
        let alignment = if vectors { tuning::ALIGNMENT } else { 1 };
        let (mut steps, mut bytes) = (Vec::new(), 0);
        if !passes.is_empty() {
            let chain = Chain::new(self.op, passes, self.wide, self.has_positions())?;
            bytes = chain.workspace_bytes;
            for link in &chain.passes {
                steps.extend(self.step(link)?);
            }
        }
        Ok((Variant { alignment, steps }, bytes))
    }

    /// Both ways to run passes, for tensors that begin at vectors and for any, and bytes of the workspace.
    fn variants(&self, passes: impl Fn(bool) -> Vec<Pass>) -> Result<(Vec<Variant>, usize), PlanError> {
        let (vectors, bytes) = self.variant(passes(true))?;
        let (scalars, more) = self.variant(passes(false))?;
        Ok((vec![vectors, scalars], bytes.max(more)))
    }

    /// The launch of a pass; none if there are no results.
    fn step(&self, (pass, from, to): &(Pass, Place, Place)) -> Result<Option<LaunchStep>, PlanError> {
        let op = self.op;
        let &Pass { outer, n, inner, part, config } = pass;
        let parts = pass.parts();
        let all = |factors: [u64; 3]| {
            let product = factors.into_iter().try_fold(1u64, u64::checked_mul);
            let too_large = PlanError::TooLarge { op, blocks: u64::MAX, limit: plan::MAX_BLOCKS };
            product.and_then(|n| usize::try_from(n).ok()).ok_or(too_large)
        };
        let vectors = inner / u64::from(config.width);
        let (tiles, runs, count, per_block) = match config.layout {
            Layout::Rows { team } => (1, all([outer, parts, 1])?, parts, config.threads / team),
            Layout::Columns { lanes } => {
                let tiles = vectors.div_ceil(lanes.into());
                (tiles, all([outer, parts, tiles])?, parts, 1)
            }
            Layout::Flat => (1, all([outer, vectors, 1])?, vectors, config.threads),
        };
        let Some(grid) = plan::cover(op, runs, per_block)? else { return Ok(None) };
        let workspace = self.workspace;
        let (first, x, positions) = match *from {
            Place::Tensor => (true, self.x.clone(), workspace.written()),
            Place::Workspace { values, positions } => {
                (false, workspace.written_at(values), workspace.written_at(positions))
            }
        };
        let (last, y, index) = match *to {
            Place::Tensor => (true, self.y.clone(), self.index.clone()),
            Place::Workspace { values, positions } => {
                (false, workspace.arg_at(values), workspace.arg_at(positions))
            }
        };
        let def = Reduce {
            kept: self.kept[usize::from(!first)],
            from: if first { self.from } else { self.wide },
            to: if last { self.to } else { self.wide },
            config,
        };
        let args = kernel::Args {
            x,
            positions,
            y,
            index,
            runs: runs as u64,
            n,
            inner,
            part,
            count,
            divisor: WideDivisorArgs::new(count),
            // Not more than the blocks of the grid.
            tiles: u32::try_from(tiles).unwrap_or(u32::MAX),
            keep: u32::from(!last),
            scale: self.scales[usize::from(last)],
        };
        plan::launch(op, &def, args, self.target, grid).map(Some)
    }
}

impl ReduceDesc {
    /// Elements of `x`, of a result, and of `y`.
    fn sizes(&self) -> Result<[usize; 3], PlanError> {
        let Self { function, dtype, y_dtype, ref shape, ref dims } = *self;
        let op = function.name();
        PlanError::check_floats(op, "x", dtype)?;
        PlanError::check_own_or_wide(op, "y", y_dtype, dtype)?;
        for (at, &dim) in dims.iter().enumerate() {
            if dim >= shape.len() || dims[..at].contains(&dim) {
                let got = format!("{dims:?} of {} dimensions", shape.len());
                return Err(PlanError::refused(op, "dims", got, "dimensions of the tensor, each once"));
            }
        }
        let all = product(op, shape)?;
        let (reduced, kept): (Vec<_>, Vec<_>) = (0..shape.len()).partition(|dim| dims.contains(dim));
        let of = |dims: &[usize]| dims.iter().map(|&dim| shape[dim]).product::<usize>();
        let (each, results) = (of(&reduced), of(&kept));
        if each == 0 && results > 0 && !function.has_value_of_nothing() {
            let (got, expected) = (format!("{shape:?}"), "of at least one element to each result");
            return Err(PlanError::refused(op, "shape", got, expected));
        }
        Ok([all, each, results])
    }

    fn problem(&self, target: Target, each: usize) -> Problem {
        type Args<'a> = ReduceArgs<'a>;
        let Self { function, dtype, y_dtype, .. } = *self;
        let (kept, scales) = match function {
            ReduceFunction::Sum => (Kept::Sum, [1.0; 2]),
            ReduceFunction::Mean => (Kept::Sum, [1.0, each as f64]),
            ReduceFunction::Amax => (Kept::Extreme, [1.0; 2]),
            ReduceFunction::Amin => (Kept::Extreme, [-1.0; 2]),
        };
        Problem {
            op: function.name(),
            from: dtype,
            to: y_dtype,
            wide: dtype.accumulator(),
            kept: [kept; 2],
            scales,
            x: Args::x.arg(),
            y: Args::y.arg(),
            index: Args::workspace.arg(),
            workspace: Args::workspace,
            target,
        }
    }

    fn planned(
        &self,
        target: Target,
        [len, _, results]: [usize; 3],
        (variants, bytes): (Vec<Variant>, usize),
    ) -> Plan<Self> {
        type Args<'a> = ReduceArgs<'a>;
        let wide = self.dtype.accumulator();
        let tensors = Args::specs([
            Args::x.holds(self.dtype, len),
            Args::y.holds(self.y_dtype, results),
            Args::workspace.scratch(wide, bytes / wide.bytes()),
        ]);
        Plan::of(self.function.name(), Direction::Forward, target, tensors, variants)
    }

    /// The plan with these passes, which must be passes of the shape: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, passes: &[Pass]) -> Result<Plan<Self>, PlanError> {
        let sizes = self.sizes()?;
        let (variant, bytes) = self.problem(target, sizes[1]).variant(passes.to_vec())?;
        Ok(self.planned(target, sizes, (vec![variant], bytes)))
    }
}

impl Operation for ReduceDesc {
    type Args<'a> = ReduceArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { dtype, ref shape, ref dims, .. } = *self;
        let sizes @ [_, each, results] = self.sizes()?;
        let found = self.problem(target, each).variants(|vectors| match (each, results) {
            (_, 0) => Vec::new(),
            (0, _) => vec![Pass::choose(dtype, [results as u64, 0, 1], false, true, target)],
            _ => passes(dtype, shape, dims, vectors, target),
        })?;
        Ok(self.planned(target, sizes, found))
    }
}

impl ArgReduceDesc {
    /// Elements of `x` and of `index`.
    fn sizes(&self) -> Result<[usize; 2], PlanError> {
        let Self { function, dtype, outer, n, inner } = *self;
        let op = function.name();
        PlanError::check_floats(op, "x", dtype)?;
        let (len, results) = (product(op, &[outer, n, inner])?, outer * inner);
        if n == 0 && results > 0 {
            return Err(PlanError::refused(op, "n", n, "at least 1"));
        }
        Ok([len, results])
    }

    fn problem(&self, target: Target) -> Problem {
        type Args<'a> = ArgReduceArgs<'a>;
        let wide = self.dtype.accumulator();
        let scale = if self.function == ArgReduceFunction::Argmax { 1.0 } else { -1.0 };
        Problem {
            op: self.function.name(),
            from: self.dtype,
            to: wide,
            wide,
            kept: [Kept::Position, Kept::PositionOfParts],
            scales: [scale; 2],
            x: Args::x.arg(),
            y: Args::workspace.arg(),
            index: Args::index.arg(),
            workspace: Args::workspace,
            target,
        }
    }

    fn planned(
        &self,
        target: Target,
        [len, results]: [usize; 2],
        (variants, bytes): (Vec<Variant>, usize),
    ) -> Plan<Self> {
        type Args<'a> = ArgReduceArgs<'a>;
        // Positions between passes are of i64.
        let tensors = Args::specs([
            Args::x.holds(self.dtype, len),
            Args::index.holds(DType::I64, results),
            Args::workspace.scratch(DType::I64, bytes / DType::I64.bytes()),
        ]);
        Plan::of(self.function.name(), Direction::Forward, target, tensors, variants)
    }

    /// The plan with these passes, which must be passes of the shape: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, passes: &[Pass]) -> Result<Plan<Self>, PlanError> {
        let found = self.problem(target).variant(passes.to_vec())?;
        Ok(self.planned(target, self.sizes()?, (vec![found.0], found.1)))
    }
}

impl Operation for ArgReduceDesc {
    type Args<'a> = ArgReduceArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { dtype, outer, n, inner, .. } = *self;
        let sizes @ [_, results] = self.sizes()?;
        let found = self.problem(target).variants(|vectors| match results {
            0 => Vec::new(),
            _ => passes(dtype, &[outer, n, inner], &[1], vectors, target),
        })?;
        Ok(self.planned(target, sizes, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(shape: &[usize], dims: &[usize]) -> Vec<[u64; 4]> {
        let passes = passes(DType::F32, shape, dims, true, Target::sm(90));
        passes.into_iter().map(|pass| [pass.outer, pass.n, pass.inner, pass.parts()]).collect()
    }

    #[test]
    fn neighbouring_dimensions_are_one() {
        assert_eq!(all(&[2, 3, 4, 5], &[3, 2]), [[6, 20, 1, 1]]);
        assert_eq!(all(&[2, 1, 4, 5], &[0]), [[1, 2, 20, 1]]);
        assert_eq!(all(&[2, 1, 4, 5], &[0, 2]), [[1, 8, 5, 1]]);
        assert_eq!(all(&[2, 3], &[]), [[1, 1, 6, 1]]);
        assert_eq!(all(&[2, 1], &[1]), [[1, 1, 2, 1]]);
        assert_eq!(all(&[], &[]), [[1, 1, 1, 1]]);
    }

    #[test]
    fn the_longest_run_is_first() {
        assert_eq!(all(&[32, 256, 56, 56], &[0, 2, 3]), [[8192, 3136, 1, 1], [1, 32, 256, 1]]);
        assert_eq!(all(&[4000, 8, 3], &[0, 2]), [[1, 4000, 24, 32], [1, 32, 24, 1], [8, 3, 1, 1]]);
    }
}
