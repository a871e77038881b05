//! The largest or least elements of rows and where they are, as `torch.topk`, and the gradient.
//!
//! | tensor | shape |
//! |---|---|
//! | `x`, `dx` | `[rows, n]` |
//! | `values`, `dvalues` | `[rows, k]` |
//! | `index` | `[rows, k]`, i64 |
//!
//! Values are in order, the largest first, or the least; of equal ones that with the lower index is first, and zeros of both signs are
//! equal. NaN is larger than every number, as in PyTorch, which leaves the order of equal elements open. Values are copied bit by bit.
//!
//! Every element has a key, an integer in the order of the numbers, and with its position it differs from all others: which elements are
//! found, and in which order, does not depend on who looks for them. Short rows are searched by warps, whose lanes sort their elements
//! and give up the first of them, one after the other. In longer ones a block takes a part that it holds in registers. The best elements
//! of groups of its threads are ranked by counting, and the `k`-th of them is a bound: at least `k` elements reach it, and few more unless
//! they lie together. Those are ranked against each other. What several parts of a row have found is searched by another launch.
//!
//! `dx` has `dvalues` where values are from and zeros elsewhere; the indices of a row differ from each other.

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

pub use functions::{TopkOutput, topk, topk_backward};
use tuning::Pass;

const OP: &str = "topk";

/// The `k` largest or least of `n` elements, in each of `rows` rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopkDesc {
    /// Element type of `x` and `values`.
    pub dtype: DType,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, below 2^31.
    pub n: usize,
    /// How many are wanted: at most `n`, and at most [`tuning::MOST`] of more than 1024.
    pub k: usize,
    /// The largest, or else the least.
    pub largest: bool,
}

/// The gradient of the `x` of [`TopkDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopkBackwardDesc {
    /// Element type of `dvalues` and `dx`.
    pub dtype: DType,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row.
    pub n: usize,
    /// How many of them have a gradient.
    pub k: usize,
}

tensors! {
    /// Tensors of [`TopkDesc`].
    pub struct TopkArgs<'a> {
        /// `[rows, n]`
        x: In,
        /// `[rows, k]`
        values: Out,
        /// `[rows, k]`, of i64
        index: Out,
        /// The elements that parts of rows have found; see [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

tensors! {
    /// Tensors of [`TopkBackwardDesc`].
    pub struct TopkBackwardArgs<'a> {
        /// `[rows, k]`
        dvalues: In,
        /// `[rows, k]`, of i64
        index: In,
        /// `[rows, n]`
        dx: Out,
    }
}

/// Elements of `rows` rows of `n`, and of `k`.
fn sizes(dtype: DType, tensor: &'static str, [rows, n, k]: [usize; 3]) -> Result<[usize; 2], PlanError> {
    PlanError::check_floats(OP, tensor, dtype)?;
    if n >= 1 << 31 {
        return Err(PlanError::refused(OP, "n", n, "below 2^31"));
    }
    if k > n {
        return Err(PlanError::refused(OP, "k", format!("{k} of {n}"), "at most the elements of a row"));
    }
    // An extent of 0 hides none that is too large. Indices have 8 bytes.
    let addressed = rows.max(1).checked_mul(n.max(1)).and_then(|all| all.checked_mul(16));
    match addressed.filter(|bytes| i64::try_from(*bytes).is_ok()) {
        Some(_) => Ok([rows * n, rows * k]),
        None => {
            Err(PlanError::refused(OP, "rows", format!("[{rows}, {n}]"), "a tensor that can be addressed"))
        }
    }
}

impl TopkDesc {
    /// The launches of passes, and bytes of the workspace.
    fn variant(&self, passes: &[Pass], target: Target) -> Result<(Variant, usize), PlanError> {
        type Args<'a> = TopkArgs<'a>;
        let Self { dtype, rows, n, k, largest } = *self;
        let vectors = passes.iter().any(|pass| pass.config.width > 1);
        let mut variant =
            Variant { alignment: if vectors { tuning::ALIGNMENT } else { 1 }, steps: Vec::new() };
        let key_bytes = dtype.bytes().max(4);
        let workspace = Args::workspace;
        // Keys of all elements that a pass finds, then their positions.
        let (mut from, mut end) = ([0u64; 2], 0usize);
        for (number, pass) in passes.iter().enumerate() {
            let (parts, last) = (pass.parts(), number + 1 == passes.len());
            let runs = rows * parts;
            let per_block = tuning::THREADS / pass.config.team();
            let Some(grid) = plan::cover(OP, runs, per_block)? else { continue };
            let mut claim = |bytes: usize| -> u64 {
                let first = end;
                end += (runs * k * bytes).next_multiple_of(16);
                first as u64
            };
            let to = if last { from } else { [claim(key_bytes), claim(4)] };
            let args = kernel::Args {
                x: Args::x.arg(),
                keys: workspace.written_at(from[0]),
                positions: workspace.written_at(from[1]),
                found_keys: workspace.arg_at(to[0]),
                found_positions: workspace.arg_at(to[1]),
                values: Args::values.arg(),
                index: Args::index.arg(),
                runs: runs as u64,
                n: pass.n as u64,
                parts: parts as u64,
                divisor: WideDivisorArgs::new(parts as u64),
                k: small(k),
                row: n as u64,
                largest: u32::from(largest),
                last: u32::from(last),
            };
            let def = kernel::Topk { dtype, config: pass.config, first: number == 0 };
            variant.steps.push(plan::launch(OP, &def, args, target, grid)?);
            from = to;
        }
        Ok((variant, end))
    }

    fn planned(&self, target: Target, variants: Vec<(Variant, usize)>) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = TopkArgs<'a>;
        let [all, found] = sizes(self.dtype, "x", [self.rows, self.n, self.k])?;
        let bytes = variants.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let tensors = Args::specs([
            Args::x.holds(self.dtype, all),
            Args::values.holds(self.dtype, found),
            Args::index.holds(DType::I64, found),
            Args::workspace.scratch(DType::I64, bytes / DType::I64.bytes()),
        ]);
        let variants = variants.into_iter().map(|(variant, _)| variant).collect();
        Ok(Plan::of(OP, Direction::Forward, target, tensors, variants))
    }

    /// The plan with these passes, which must be passes of the shape: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, passes: &[Pass]) -> Result<Plan<Self>, PlanError> {
        sizes(self.dtype, "x", [self.rows, self.n, self.k])?;
        self.planned(target, vec![self.variant(passes, target)?])
    }
}

impl Operation for TopkDesc {
    type Args<'a> = TopkArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { dtype, rows, n, k, .. } = *self;
        sizes(dtype, "x", [rows, n, k])?;
        let refused = || {
            let got = format!("{k} of {n}");
            PlanError::refused(OP, "k", got, "at most 128 of a row of more than 1024 elements")
        };
        let variant = |vectors| -> Result<(Variant, usize), PlanError> {
            let passes = match rows * k {
                0 => Vec::new(),
                _ => tuning::passes(dtype, n, k, vectors).ok_or_else(refused)?,
            };
            self.variant(&passes, target)
        };
        let variants = vec![variant(true)?, variant(false)?];
        self.planned(target, variants)
    }
}

impl Operation for TopkBackwardDesc {
    type Args<'a> = TopkBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = TopkBackwardArgs<'a>;
        let Self { dtype, rows, n, k } = *self;
        let [all, found] = sizes(dtype, "dvalues", [rows, n, k])?;
        let tensors = Args::specs([
            Args::dvalues.holds(dtype, found),
            Args::index.holds(DType::I64, found),
            Args::dx.holds(dtype, all),
        ]);
        let mut variants = Vec::new();
        for width in [tuning::vector(dtype), 1] {
            if !n.is_multiple_of(width as usize) {
                continue;
            }
            let room = (tuning::THREADS * width * tuning::GRADIENT_VECTORS) as usize;
            let parts = n.div_ceil(room);
            let mut steps = Vec::new();
            if let Some(grid) = plan::cover(OP, rows * parts, 1)? {
                let args = kernel::BackwardArgs {
                    dvalues: Args::dvalues.arg(),
                    index: Args::index.arg(),
                    dx: Args::dx.arg(),
                    n: n as u64,
                    parts: parts as u64,
                    divisor: WideDivisorArgs::new(parts as u64),
                    k: small(k),
                };
                steps.push(plan::launch(OP, &kernel::Backward { dtype, width }, args, target, grid)?);
            }
            let alignment = if width > 1 { tuning::ALIGNMENT } else { 1 };
            variants.push(Variant { alignment, steps });
        }
        Ok(Plan::of(OP, Direction::Backward, target, tensors, variants))
    }
}
