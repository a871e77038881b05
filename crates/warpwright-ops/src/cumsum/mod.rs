//! Cumulative sums along a dimension: `y_i = x_0 + .. + x_i`, as `torch.cumsum`.
//!
//! | option | `y_i` |
//! |---|---|
//! | | the sum of the `x_j` with `j <= i` |
//! | exclusive | with `j < i` |
//! | reverse | with `j >= i` |
//! | both | with `j > i` |
//!
//! The gradient of `x` is the same sum of the gradient of `y`, in the other direction and with the same elements left out.
//!
//! Half types are summed in f32, f64 in f64, i32 and i64 in their own type, modulo its range; floats are rounded once. Memory is read once and
//! written once. The order of the additions depends on shape and target alone: a thread adds up neighbours, then come trees over threads. Rows
//! that no block can hold are cut into tiles, one to a block, all of which run at once: a block publishes the sum of its tile and adds up
//! those of all tiles before it, in a tree of one shape, instead of whatever prefix happens to be known first, as in the look-back
//! of D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, 2016. Blocks must begin in the order of
//! their numbers, as they do there.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::divide::WideDivisorArgs;
use warpwright_ptx::{DType, Target};

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Variant, small};
use crate::tensors::tensors;

pub use functions::{CumsumOptions, cumsum};
use tuning::{Config, Layout};

const OP: &str = "cumsum";

/// Types of elements.
pub(crate) const DTYPES: [DType; 6] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64];

/// Sums of `[outer, n, inner]` along `n`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CumsumDesc {
    /// Element type of `x` and `y`: f32, f64, f16, bf16, i32 or i64.
    pub dtype: DType,
    /// The product of the extents before.
    pub outer: usize,
    /// The extent that is summed along.
    pub n: usize,
    /// The product of the extents behind.
    pub inner: usize,
    /// Each sum is without its own element.
    pub exclusive: bool,
    /// Sums go from the last element to the first.
    pub reverse: bool,
}

tensors! {
    /// Tensors of [`CumsumDesc`].
    pub struct CumsumArgs<'a> {
        /// `[outer, n, inner]`
        x: In,
        /// `[outer, n, inner]`
        y: Out,
        /// The sums that blocks hand on where rows are long; see [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

impl CumsumDesc {
    /// Elements of `x`.
    fn check(&self) -> Result<usize, PlanError> {
        let Self { dtype, outer, n, inner, .. } = *self;
        if !DTYPES.contains(&dtype) {
            return Err(PlanError::DType { op: OP, tensor: "x", got: dtype, expected: &DTYPES });
        }
        let extents = [outer, n, inner];
        // An extent of 0 hides none that is too large.
        let all = extents.iter().try_fold(1usize, |all, extent| all.checked_mul((*extent).max(1)));
        match all.filter(|all| all.checked_mul(16).is_some_and(|bytes| i64::try_from(bytes).is_ok())) {
            Some(_) => Ok(extents.iter().product()),
            None => {
                let got = format!("{extents:?}");
                Err(PlanError::refused(OP, "shape", got, "a tensor that can be addressed"))
            }
        }
    }

    /// The launches with a configuration, and the words of 64 bits through which its blocks hand on sums.
    fn variant(&self, config: Config, target: Target) -> Result<(Variant, usize), PlanError> {
        type Args<'a> = CumsumArgs<'a>;
        let Self { dtype, outer, n, inner, exclusive, reverse } = *self;
        let alignment = if config.width > 1 { tuning::ALIGNMENT } else { 1 };
        let mut variant = Variant { alignment, steps: Vec::new() };
        // Products are below the number of elements, but for tiles of columns that are not there: those are blocks that no grid has.
        let columns = inner / config.width as usize;
        let (runs, count, per_block) = match config.layout {
            Layout::Rows { team, .. } => (outer, 1, config.threads / team),
            Layout::Tiles { .. } => {
                let tiles = (n as u64).div_ceil(config.room()) as usize;
                (outer * tiles, tiles, 1)
            }
            Layout::Columns { lanes } => {
                let tiles = columns.div_ceil(lanes as usize);
                (outer * tiles, tiles, 1)
            }
            Layout::Flat => (outer * columns, columns, config.threads),
        };
        let all = outer * n * inner;
        let Some(grid) = plan::cover(OP, if all == 0 { 0 } else { runs }, per_block)? else {
            return Ok((variant, 0));
        };
        let spans = count / config.threads as usize;
        let (words, rows, divisor) = match config.layout {
            Layout::Tiles { .. } => ((runs + outer * spans) * dtype.bytes().max(4) / 4, outer, outer),
            _ => (0, runs, count),
        };
        if let Some(grid) = plan::cover(OP, words, tuning::CLEAR_THREADS)? {
            let args = kernel::ClearArgs { words: Args::workspace.arg(), count: words as u64 };
            variant.steps.push(plan::launch(OP, &kernel::Clear, args, target, grid)?);
        }
        let args = kernel::Args {
            x: Args::x.arg(),
            y: Args::y.arg(),
            sums: Args::workspace.read_write(),
            runs: rows as u64,
            n: n as u64,
            inner: inner as u64,
            count: count as u64,
            divisor: WideDivisorArgs::new(divisor as u64),
            // Not more than the blocks of the grid.
            tiles: small(count),
            all_tiles: runs as u64,
            spans: spans as u64,
            exclusive: u32::from(exclusive),
        };
        let def = kernel::Cumsum { dtype, config, reverse };
        variant.steps.push(plan::launch(OP, &def, args, target, grid)?);
        Ok((variant, words))
    }

    fn planned(&self, target: Target, len: usize, variants: Vec<(Variant, usize)>) -> Plan<Self> {
        type Args<'a> = CumsumArgs<'a>;
        let words = variants.iter().map(|(_, words)| *words).max().unwrap_or(0);
        let tensors = Args::specs([
            Args::x.holds(self.dtype, len),
            Args::y.holds(self.dtype, len).in_place(),
            Args::workspace.scratch(DType::I64, words),
        ]);
        let variants = variants.into_iter().map(|(variant, _)| variant).collect();
        Plan::of(OP, Direction::Forward, target, tensors, variants)
    }

    /// The plan with this configuration, whose layout must take the shape: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, config: Config) -> Result<Plan<Self>, PlanError> {
        let len = self.check()?;
        Ok(self.planned(target, len, vec![self.variant(config, target)?]))
    }
}

impl Operation for CumsumDesc {
    type Args<'a> = CumsumArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let len = self.check()?;
        let sizes = [self.outer, self.n, self.inner].map(|extent| extent as u64);
        let variants = [true, false]
            .map(|vectors| self.variant(Config::choose(self.dtype, sizes, vectors, target), target));
        let variants = variants.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(self.planned(target, len, variants))
    }
}
