//! Cross entropy from logits: the negative log-likelihood of a class under the softmax of a row, forward and backward.
//!
//! `logits` are `[rows, classes]`, `target` is `[rows]` in i64 or i32. With `e` the label smoothing and
//! `lse = log(sum_j exp(x_j))` of a row,
//!
//! - `loss = (1 - e) (lse - x_target) + e (lse - mean_j x_j)` (Szegedy et al. 2016, arXiv:1512.00567, section 7),
//! - `dlogits_j = (exp(x_j - lse) - (1 - e) [j = target] - e / classes) dloss`.
//!
//! The meaning is that of `torch.nn.functional.cross_entropy` without class weights: rows whose target is `ignore_index`
//! have loss 0 and gradient 0, and [`Reduction::Mean`] divides by the number of the others (NaN if there are none). A
//! target that is neither a class nor `ignore_index`, where PyTorch stops the device, gives NaN as loss and gradient of
//! its row and reads nothing.
//!
//! Half types are computed in f32; the loss has the type of the logits, `lse` and `count` that of the computation (f64
//! for f64, else f32). Sums go in a fixed order. `dlogits` may replace the logits exactly.

mod functions;
mod kernel;
pub mod reference;
pub mod tuning;

use warpwright_dsl::{In, KernelArgs, Out};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{LaunchStep, TensorMut, TensorRef};

use crate::catalogue::{Direction, Entry, TARGETS};
use crate::plan::{self, Operation, Plan, PlanParts, Real, TensorSpec, Variant};
use crate::{Binding, PlanError};

pub use functions::*;
use kernel::accumulator;

const OP: &str = "cross_entropy";

/// What becomes of the losses of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Each is a result.
    None,
    /// Their sum over the number of rows that are not ignored.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// The losses of rows of logits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropyDesc {
    /// Element type of the logits and the loss.
    pub dtype: DType,
    /// Element type of the targets: i64 or i32.
    pub target: DType,
    /// Number of rows.
    pub rows: usize,
    /// Number of classes.
    pub classes: usize,
    /// A target that does not count; PyTorch's default is -100.
    pub ignore_index: i64,
    /// The share of the target distribution that is spread over all classes, from 0 to 1.
    pub label_smoothing: Real,
    /// What becomes of the losses.
    pub reduction: Reduction,
}

/// Tensors of [`CrossEntropyDesc`].
#[derive(Debug)]
pub struct CrossEntropyArgs<'a> {
    /// `[rows, classes]`
    pub logits: TensorRef<'a>,
    /// `[rows]`
    pub target: TensorRef<'a>,
    /// One element, or one for each row without a reduction.
    pub loss: TensorMut<'a>,
    /// The log-sum-exp of each row, which the gradient takes.
    pub lse: TensorMut<'a>,
    /// The number of rows that count, of a mean.
    pub count: Option<TensorMut<'a>>,
    /// Scratch memory of a reduction; see [`Plan::workspace`].
    pub workspace: Option<TensorMut<'a>>,
}

impl CrossEntropyDesc {
    /// Elements of the logits.
    fn len(&self) -> Result<usize, PlanError> {
        if !DType::FLOATS.contains(&self.dtype) {
            let (got, expected) = (self.dtype, &DType::FLOATS);
            return Err(PlanError::DType { op: OP, tensor: "logits", got, expected });
        }
        const TARGET_TYPES: [DType; 2] = [DType::I64, DType::I32];
        if !TARGET_TYPES.contains(&self.target) {
            let (got, expected) = (self.target, &TARGET_TYPES);
            return Err(PlanError::DType { op: OP, tensor: "target", got, expected });
        }
        let smoothing = self.label_smoothing.get();
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(parameter("label_smoothing", format!("{smoothing:?}"), "between 0 and 1"));
        }
        if self.classes == 0 {
            return Err(parameter("classes", "0".to_owned(), "at least 1"));
        }
        let len = self.rows.checked_mul(self.classes).filter(|n| n.checked_mul(self.dtype.bytes()).is_some());
        let got = || format!("[{}, {}]", self.rows, self.classes);
        len.ok_or_else(|| parameter("[rows, classes]", got(), "a tensor that can be addressed"))
    }

    fn words(&self) -> u32 {
        (self.target.bytes() / 4) as u32
    }

    fn losses(&self) -> usize {
        if self.reduction == Reduction::None { self.rows } else { 1 }
    }
}

fn parameter(parameter: &'static str, got: String, expected: &'static str) -> PlanError {
    PlanError::Parameter { op: OP, parameter, got, expected }
}

impl Operation for CrossEntropyDesc {
    type Args<'a> = CrossEntropyArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { dtype, rows, classes, ignore_index, reduction, .. } = *self;
        let (len, wide, reduced) = (self.len()?, accumulator(dtype), reduction != Reduction::None);
        let mean = reduction == Reduction::Mean;
        let tensors = vec![
            TensorSpec::read("logits", dtype, len),
            TensorSpec::read("target", self.target, rows),
            TensorSpec::write("loss", dtype, self.losses()),
            TensorSpec::write("lse", wide, rows),
            TensorSpec::write("count", wide, 1).optional(mean),
            TensorSpec::workspace(wide, if reduced { rows } else { 0 }),
        ];
        let mut variants = Vec::new();
        for config in tuning::forward(dtype, rows, classes) {
            let mut steps = Vec::new();
            if let Some(grid) = plan::cover(OP, rows, config.threads / config.team)? {
                let def = kernel::Forward { dtype, config, smoothed: self.label_smoothing.get() > 0.0 };
                let args = kernel::ForwardArgs {
                    logits: In::slot(0),
                    target: In::slot(1),
                    loss: Out::slot(2),
                    losses: Out::slot(5),
                    lse: Out::slot(3),
                    rows: rows as u64,
                    classes: classes as u64,
                    words: self.words(),
                    rowwise: u32::from(!reduced),
                    ignore_index,
                    label_smoothing: self.label_smoothing.get(),
                };
                steps.push(LaunchStep::new(plan::recorded(OP, &def, target)?, grid, args.values()));
            }
            if reduced {
                let args = kernel::ReduceArgs {
                    losses: In::slot(5),
                    target: In::slot(1),
                    loss: Out::slot(2),
                    count: Out::slot(4),
                    rows: rows as u64,
                    words: self.words(),
                    mean: u32::from(mean),
                    ignore_index,
                };
                let kernel = plan::recorded(OP, &kernel::Reduce { dtype }, target)?;
                steps.push(LaunchStep::new(kernel, [1; 3], args.values()));
            }
            variants.push(Variant { alignment: config.alignment(dtype), steps });
        }
        let direction = Direction::Forward;
        Ok(Plan::new(PlanParts { op: OP, direction, target, tensors, variants, workspace_bytes: 0 }))
    }

    fn bind<'a>(args: Self::Args<'a>) -> Vec<Binding<'a>> {
        vec![
            args.logits.into(),
            args.target.into(),
            args.loss.into(),
            args.lse.into(),
            args.count.into(),
            args.workspace.into(),
        ]
    }
}

/// The gradient of [`CrossEntropyDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropyBackwardDesc {
    /// What was computed.
    pub forward: CrossEntropyDesc,
}

/// Tensors of [`CrossEntropyBackwardDesc`].
#[derive(Debug)]
pub struct CrossEntropyBackwardArgs<'a> {
    /// `[rows, classes]`; `None` reads what `dlogits` holds.
    pub logits: Option<TensorRef<'a>>,
    /// `[rows]`
    pub target: TensorRef<'a>,
    /// The log-sum-exp of each row from the forward pass.
    pub lse: TensorRef<'a>,
    /// The gradient of the loss: one element, or one for each row without a reduction.
    pub dloss: TensorRef<'a>,
    /// The count of the forward pass, of a mean.
    pub count: Option<TensorRef<'a>>,
    /// The gradient of the logits.
    pub dlogits: TensorMut<'a>,
}

impl Operation for CrossEntropyBackwardDesc {
    type Args<'a> = CrossEntropyBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let desc = &self.forward;
        let CrossEntropyDesc { dtype, rows, classes, ignore_index, reduction, .. } = *desc;
        let (len, wide, mean) = (desc.len()?, accumulator(dtype), reduction == Reduction::Mean);
        let tensors = vec![
            TensorSpec::read("logits", dtype, len),
            TensorSpec::read("target", desc.target, rows),
            TensorSpec::read("lse", wide, rows),
            TensorSpec::read("dloss", dtype, desc.losses()),
            TensorSpec::read("count", wide, 1).optional(mean),
            TensorSpec::write("dlogits", dtype, len).in_place().like(0),
        ];
        let mut variants = Vec::new();
        for config in tuning::backward(dtype) {
            let mut steps = Vec::new();
            let per_block = (config.threads * config.width * config.unroll) as usize;
            let chunks = classes.div_ceil(per_block);
            if let Some(grid) = plan::cover(OP, rows.saturating_mul(chunks), 1)? {
                let def = kernel::Backward { dtype, config };
                let args = kernel::BackwardArgs {
                    logits: In::slot(0),
                    target: In::slot(1),
                    lse: In::slot(2),
                    dloss: In::slot(3),
                    count: In::slot(4),
                    dlogits: Out::slot(5),
                    classes: classes as u64,
                    // Not more than the blocks of the grid.
                    chunks: u32::try_from(chunks).unwrap_or(u32::MAX),
                    words: desc.words(),
                    rowwise: u32::from(reduction == Reduction::None),
                    mean: u32::from(mean),
                    ignore_index,
                    label_smoothing: desc.label_smoothing.get(),
                };
                steps.push(LaunchStep::new(plan::recorded(OP, &def, target)?, grid, args.values()));
            }
            variants.push(Variant { alignment: config.alignment(dtype), steps });
        }
        let direction = Direction::Backward;
        Ok(Plan::new(PlanParts { op: OP, direction, target, tensors, variants, workspace_bytes: 0 }))
    }

    fn bind<'a>(args: Self::Args<'a>) -> Vec<Binding<'a>> {
        vec![
            args.logits.map_or(Binding::InPlace { output: 5 }, Binding::Input),
            args.target.into(),
            args.lse.into(),
            args.dloss.into(),
            args.count.into(),
            args.dlogits.into(),
        ]
    }
}

/// The family's rows of the catalogue.
pub(crate) fn entries() -> Vec<Entry> {
    [Direction::Forward, Direction::Backward]
        .map(|direction| Entry { op: OP, direction, dtypes: &DType::FLOATS, targets: &TARGETS })
        .to_vec()
}

/// Every kernel that a plan of `entry` can hold.
pub(crate) fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut out = Vec::new();
    if entry.direction == Direction::Backward {
        for config in tuning::backward(dtype) {
            out.push(plan::recorded(OP, &kernel::Backward { dtype, config }, target)?);
        }
        return Ok(out);
    }
    for config in tuning::all_forward(dtype) {
        for smoothed in [false, true] {
            out.push(plan::recorded(OP, &kernel::Forward { dtype, config, smoothed }, target)?);
        }
    }
    out.push(plan::recorded(OP, &kernel::Reduce { dtype }, target)?);
    Ok(out)
}
