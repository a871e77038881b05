//! Normalisation of rows: `layer_norm` and `rms_norm`, with an optional residual added first. Forward and backward.
//!
//! A tensor is read as `rows` rows of `len` elements, the normalised ones. For each row
//!
//! | name | `y` | source |
//! |---|---|---|
//! | `layer_norm` | `(z - mean(z)) rstd weight + bias`, `rstd = 1 / sqrt(var(z) + eps)`, `var` the mean square of `z - mean(z)` | Ba et al. 2016, arXiv:1607.06450 |
//! | `rms_norm` | `z rstd weight`, `rstd = 1 / sqrt(mean(z^2) + eps)` | Zhang and Sennrich 2019, arXiv:1910.07467 |
//!
//! as `torch.nn.functional.layer_norm` and `rms_norm` do. `z` is `x`, or `x + residual` rounded to the element type, which
//! is returned too. Weight and bias are optional. Without an eps, `rms_norm` takes the machine epsilon of the type of `x`
//! ([`RowNorm::default_eps`]), as PyTorch does: 1.2e-7 for f32, 9.8e-4 for f16, 7.8e-3 for bf16.
//!
//! Backward takes `dy` and what the forward pass saved (`mean`, `rstd`) and gives, with `xhat = (z - mean) rstd` and
//! `g = dy weight`,
//!
//! `dx = (g - mean(g) - xhat mean(g xhat)) rstd + dz`, `dweight = sum(dy xhat)`, `dbias = sum(dy)` over the rows,
//!
//! without `mean(g)` for `rms_norm`. `dz` is the gradient of a `z` that is used elsewhere too; `dx` is also the gradient of
//! `residual`.
//!
//! Half types are computed in f32 and rounded once; statistics and partial sums are f32, or f64 for f64. The variance
//! comes from the distances from the mean, the mean from a second sum over them, so that a large mean costs no digits. An
//! infinity or NaN stays in its row. Squares of f32 leave its range beyond 1.8e19. Sums are taken in
//! a fixed order: results are the same in every run.

mod backward;
mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::COLUMN_SUM_LANES;
use warpwright_ptx::{DType, Target};

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Real, Variant};
use crate::tensors::tensors;

pub use functions::*;
use kernel::present;
use tuning::Layout;

/// How a row is normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowNorm {
    /// Mean 0, variance 1.
    Layer,
    /// Mean square 1.
    Rms,
}

impl RowNorm {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Layer, Self::Rms];

    /// Its name in the catalogue.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer_norm",
            Self::Rms => "rms_norm",
        }
    }

    /// The norm called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|norm| norm.name() == name)
    }

    /// The eps of PyTorch's functions for tensors of `dtype` if none is given: 1e-5 for `layer_norm`, the machine
    /// epsilon of the type for `rms_norm`.
    pub fn default_eps(self, dtype: DType) -> f64 {
        match self {
            Self::Layer => 1e-5,
            Self::Rms => dtype.epsilon().unwrap_or(f64::EPSILON),
        }
    }
}

/// Longest row.
pub const MAX_LEN: usize = 1 << 24;

/// `y` of every row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowNormDesc {
    /// Which norm.
    pub norm: RowNorm,
    /// Element type of all tensors but the statistics.
    pub dtype: DType,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, from 1 to [`MAX_LEN`].
    pub len: usize,
    /// Added to the variance; not negative.
    pub eps: Real,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether there is a bias; for `layer_norm` only.
    pub bias: bool,
    /// Whether a residual is added to `x`; the sum `z` is an output then.
    pub residual: bool,
    /// Whether `mean` (of `layer_norm`) and `rstd` are saved for the backward pass.
    pub statistics: bool,
}

tensors! {
    /// Tensors of [`RowNormDesc`].
    pub struct RowNormArgs<'a> {
        /// `rows` x `len`.
        x: In,
        /// Of the shape of `x`.
        residual: Option<In>,
        /// `len`.
        weight: Option<In>,
        /// `len`.
        bias: Option<In>,
        /// The result, of the shape of `x`.
        y: Out,
        /// `x + residual`, of the shape of `x`; may replace either of them.
        z: Option<Out>,
        /// f32, or f64 for f64; one a row.
        mean: Option<Out>,
        /// f32, or f64 for f64; one a row.
        rstd: Option<Out>,
    }
}

impl RowNormDesc {
    /// The plan with these layouts, which must take the rows: for measuring one against another.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, layouts: &[Layout]) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = RowNormArgs<'a>;
        let Self { norm, dtype, rows, len, eps, weight, bias, residual, statistics } = *self;
        let shape = Shape::check(norm, dtype, rows, len)?;
        PlanError::check_eps(norm.name(), eps)?;
        check_bias(norm, bias)?;
        let (op, saved) = (norm.name(), dtype.accumulator());
        let mean = statistics && norm == RowNorm::Layer;
        let tensors = Args::specs([
            Args::x.holds(dtype, shape.total),
            Args::residual.holds(dtype, shape.total).like(Args::x).optional(residual),
            Args::weight.holds(dtype, len).optional(weight),
            Args::bias.holds(dtype, len).optional(bias),
            Args::y.holds(dtype, shape.total).like(Args::x),
            Args::z.holds(dtype, shape.total).like(Args::x).optional(residual).in_place(),
            Args::mean.holds(saved, rows).optional(mean),
            Args::rstd.holds(saved, rows).optional(statistics),
        ]);
        let args = kernel::ForwardArgs {
            x: Args::x.arg(),
            residual: Args::residual.arg(),
            weight: Args::weight.arg(),
            bias: Args::bias.arg(),
            y: Args::y.arg(),
            z: Args::z.read_write(),
            mean: Args::mean.arg(),
            rstd: Args::rstd.arg(),
            rows: rows as u64,
            len: shape.len,
            inverse_len: 1.0 / len as f64,
            eps: eps.get(),
            present: plan::bits([
                (present::WEIGHT, weight),
                (present::BIAS, bias),
                (present::RESIDUAL, residual),
                (present::STATISTICS, statistics),
            ]),
        };
        let mut variants = Vec::new();
        for &layout in layouts {
            let def = kernel::Forward { norm, dtype, layout };
            let grid = plan::cover(op, rows, layout.rows())?;
            let steps = plan::launch_over(op, &def, args.clone(), target, grid)?;
            variants.push(Variant { alignment: layout.alignment(dtype), steps: steps.into_iter().collect() });
        }
        Ok(Plan::of(op, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for RowNormDesc {
    type Args<'a> = RowNormArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_with(target, &tuning::choose(&tuning::forward_vectors(self.dtype, target), self.len))
    }
}

/// The gradients of [`RowNormDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowNormBackwardDesc {
    /// Which norm.
    pub norm: RowNorm,
    /// Element type of all tensors but the statistics.
    pub dtype: DType,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, from 1 to [`MAX_LEN`].
    pub len: usize,
    /// Whether there is a weight, whose gradient is wanted then.
    pub weight: bool,
    /// Whether there is a bias, whose gradient is wanted then.
    pub bias: bool,
    /// Whether a gradient of `z` is added.
    pub dz: bool,
}

tensors! {
    /// Tensors of [`RowNormBackwardDesc`].
    pub struct RowNormBackwardArgs<'a> {
        /// The normalized tensor, `x` or `z`: `rows` x `len`.
        x: In,
        /// Gradient of `y`, of the shape of `x`.
        dy: In,
        /// Gradient of `z` from elsewhere, of the shape of `x`.
        dz: Option<In>,
        /// `len`.
        weight: Option<In>,
        /// As the forward pass saved it; for `layer_norm`.
        mean: Option<In>,
        /// As the forward pass saved it.
        rstd: In,
        /// Gradient of `x`, of its shape.
        dx: Out,
        /// `len`.
        dweight: Option<Out>,
        /// `len`.
        dbias: Option<Out>,
        /// Of [`Plan::workspace_bytes`].
        workspace: Option<Out>,
    }
}

impl RowNormBackwardDesc {
    /// The plan with these layouts, which must take the rows, and at most so many rows of partial sums.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, layouts: &[(Layout, u32)]) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = RowNormBackwardArgs<'a>;
        let Self { norm, dtype, rows, len, weight, bias, dz } = *self;
        let shape = Shape::check(norm, dtype, rows, len)?;
        check_bias(norm, bias)?;
        let (op, saved) = (norm.name(), dtype.accumulator());
        // Blocks that leave a row of partial sums each.
        let partial_rows = |(layout, blocks): (Layout, u32)| -> u32 {
            let work = (rows as u64).div_ceil(layout.rows().into());
            u32::try_from(work).unwrap_or(u32::MAX).min(blocks)
        };
        let matrices = match (norm, bias) {
            _ if !weight && !bias => 0,
            (RowNorm::Layer, true) => 2,
            _ => 1,
        };
        let most = layouts.iter().map(|l| partial_rows(*l)).max().unwrap_or(0) as usize;
        let workspace = most.checked_mul(len).and_then(|n| n.checked_mul(matrices));
        let workspace = workspace.ok_or_else(|| too_long(op, len))?;
        let tensors = Args::specs([
            Args::x.holds(dtype, shape.total),
            Args::dy.holds(dtype, shape.total).like(Args::x),
            Args::dz.holds(dtype, shape.total).like(Args::x).optional(dz),
            Args::weight.holds(dtype, len).optional(weight),
            Args::mean.holds(saved, rows).optional(norm == RowNorm::Layer),
            Args::rstd.holds(saved, rows),
            Args::dx.holds(dtype, shape.total).like(Args::x),
            Args::dweight.holds(dtype, len).optional(weight),
            Args::dbias.holds(dtype, len).optional(bias),
            Args::workspace.scratch(saved, workspace),
        ]);
        let args = backward::BackwardArgs {
            x: Args::x.arg(),
            dy: Args::dy.arg(),
            dz: Args::dz.arg(),
            weight: Args::weight.arg(),
            mean: Args::mean.arg(),
            rstd: Args::rstd.arg(),
            dx: Args::dx.arg(),
            partials: Args::workspace.arg(),
            rows: rows as u64,
            len: shape.len,
            inverse_len: 1.0 / len as f64,
            present: plan::bits([(present::WEIGHT, weight), (present::BIAS, bias), (present::DZ, dz)]),
        };
        let parameters = matrices > 0;
        let mut variants = Vec::new();
        for &(layout, blocks) in layouts {
            let count = partial_rows((layout, blocks));
            let mut steps = Vec::new();
            if layout.vectors == 0 {
                let def = backward::LongRows { norm, dtype, layout };
                let grid = plan::cover(op, rows, 1)?;
                steps.extend(plan::launch_over(op, &def, args.clone(), target, grid)?);
                if parameters {
                    let def = backward::LongColumns { norm, dtype, width: layout.width };
                    let per_block = tuning::LONG_COLUMN_THREADS * layout.width;
                    let grid = plan::cover(op, len, per_block)?.filter(|_| count > 0);
                    let grid = grid.map(|[x, ..]| [x, count, 1]);
                    steps.extend(plan::launch_over(op, &def, args.clone(), target, grid)?);
                }
            } else {
                let def = backward::Backward { norm, dtype, layout, parameters };
                let grid = (count > 0).then_some([count, 1, 1]);
                steps.extend(plan::launch_over(op, &def, args.clone(), target, grid)?);
            }
            if parameters {
                let sums = backward::ParameterArgs {
                    partials: Args::workspace.written(),
                    dweight: Args::dweight.arg(),
                    dbias: Args::dbias.arg(),
                    partial_rows: count,
                    len: len as u64,
                    first: u32::from(!weight),
                };
                let outputs = u32::from(weight) + u32::from(bias);
                let grid = plan::cover(op, len, COLUMN_SUM_LANES)?.map(|[x, ..]| [x, outputs, 1]);
                let def = backward::ParameterSums { dtype, depth: tuning::sum_depth(count) };
                steps.extend(plan::launch_over(op, &def, sums, target, grid)?);
            }
            variants.push(Variant { alignment: layout.alignment(dtype), steps });
        }
        Ok(Plan::of(op, Direction::Backward, target, tensors, variants))
    }
}

impl Operation for RowNormBackwardDesc {
    type Args<'a> = RowNormBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let layouts = tuning::choose(&tuning::backward_vectors(self.norm, self.dtype), self.len);
        let with_blocks = |l: Layout| (l, tuning::partial_rows(target, l, self.len));
        self.plan_with(target, &layouts.into_iter().map(with_blocks).collect::<Vec<_>>())
    }
}

/// Checked sizes.
struct Shape {
    total: usize,
    len: u32,
}

impl Shape {
    fn check(norm: RowNorm, dtype: DType, rows: usize, len: usize) -> Result<Self, PlanError> {
        let op = norm.name();
        PlanError::check_floats(op, "x", dtype)?;
        let short = u32::try_from(len).ok().filter(|_| (1..=MAX_LEN).contains(&len));
        let len_u32 = short.ok_or_else(|| too_long(op, len))?;
        let total = rows.checked_mul(len).filter(|n| n.checked_mul(dtype.bytes()).is_some());
        let expected = "so few that the bytes of a tensor can be counted";
        let total = total.ok_or_else(|| PlanError::refused(op, "rows", rows, expected))?;
        Ok(Self { total, len: len_u32 })
    }
}

fn too_long(op: &'static str, len: usize) -> PlanError {
    PlanError::refused(op, "len", len, "from 1 to 2^24")
}

fn check_bias(norm: RowNorm, bias: bool) -> Result<(), PlanError> {
    if bias && norm == RowNorm::Rms {
        return Err(PlanError::refused(norm.name(), "bias", bias, "false"));
    }
    Ok(())
}
