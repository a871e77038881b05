//! Cross entropy from logits: the negative log-likelihood of a class under the softmax of a row, forward and backward.
//!
//! `logits` are `[rows, classes]`, in rows that may lie apart, and `target` is `[rows]` in i64 or i32. With `e` the label smoothing and
//! `lse = log(sum_j exp(x_j))` of a row,
//!
//! - `loss = (1 - e) (lse - x_target) + e (lse - mean_j x_j)` (Szegedy et al. 2016, arXiv:1512.00567, section 7),
//! - `dlogits_j = (exp(x_j - lse) - (1 - e) [j = target] - e / classes) dloss`.
//!
//! Forward saves `lse` and `nll = lse - x_target` of each row. The gradient of the target's logit comes from `exp(-nll) - 1`, so
//! that it keeps its digits where the target is all but certain and the difference above would cancel.
//!
//! The meaning is that of `torch.nn.functional.cross_entropy` without class weights: rows whose target is `ignore_index`
//! have loss 0 and gradient 0, and [`Reduction::Mean`] divides by the number of the others (NaN if there are none). A
//! target that is neither a class nor `ignore_index`, where PyTorch stops the device, gives NaN as loss and gradient of
//! its row and reads nothing.
//!
//! Half types are computed in f32; the loss has the type of the logits or of the computation (f64 for f64, else f32), and `lse`, `nll`
//! and `count` that of the computation. Sums go in a fixed order. `dlogits` may replace the logits exactly.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::{Elem, In, Out};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Real, Variant};
use crate::tensors::tensors;

pub use functions::*;

const OP: &str = "cross_entropy";

/// The reduction of the losses of the rows.
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
    /// Element type of the logits.
    pub dtype: DType,
    /// Element type of the loss and its gradient: that of the logits, or f32 where they are of a half type.
    pub loss: DType,
    /// Element type of the targets: i64 or i32.
    pub target: DType,
    /// Number of rows.
    pub rows: usize,
    /// Number of classes.
    pub classes: usize,
    /// Elements from one row of the logits to the next, and of their gradient. What lies between rows is neither read nor written.
    pub row_stride: usize,
    /// A target that does not count; PyTorch's default is -100.
    pub ignore_index: i64,
    /// The share of the target distribution that is spread over all classes, from 0 to 1.
    pub label_smoothing: Real,
    /// The reduction of the losses.
    pub reduction: Reduction,
}

tensors! {
    /// Tensors of [`CrossEntropyDesc`].
    pub struct CrossEntropyArgs<'a> {
        /// `[rows, classes]`
        logits: In,
        /// `[rows]`
        target: In,
        /// One element, or one for each row without a reduction.
        loss: Out,
        /// The log-sum-exp of each row, which the gradient takes.
        lse: Out,
        /// The negative log-likelihood of each row's target without smoothing, which the gradient takes; NaN where the target is
        /// no class.
        nll: Out,
        /// The number of rows that count, of a mean.
        count: Option<Out>,
        /// Scratch memory of a reduction; see [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

impl CrossEntropyDesc {
    /// The mean loss of `[rows, classes]` without gaps and smoothing, with PyTorch's index to ignore.
    pub const fn new(dtype: DType, target: DType, [rows, classes]: [usize; 2]) -> Self {
        Self {
            dtype,
            loss: dtype,
            target,
            rows,
            classes,
            row_stride: classes,
            ignore_index: -100,
            label_smoothing: Real::new(0.0),
            reduction: Reduction::Mean,
        }
    }

    /// Elements from the first of the logits to the last.
    pub(crate) fn len(&self, op: &'static str) -> Result<usize, PlanError> {
        PlanError::check_floats(op, "logits", self.dtype)?;
        const TARGET_TYPES: [DType; 2] = [DType::I64, DType::I32];
        if !TARGET_TYPES.contains(&self.target) {
            let (got, expected) = (self.target, &TARGET_TYPES);
            return Err(PlanError::DType { op, tensor: "target", got, expected });
        }
        let of_loss = self.loss_types();
        if !of_loss.contains(&self.loss) {
            return Err(PlanError::DType { op, tensor: "loss", got: self.loss, expected: of_loss });
        }
        let smoothing = self.label_smoothing.get();
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(PlanError::refused(
                op,
                "label_smoothing",
                format!("{smoothing:?}"),
                "between 0 and 1",
            ));
        }
        if self.classes == 0 {
            return Err(PlanError::refused(op, "classes", 0, "at least 1"));
        }
        if self.row_stride < self.classes {
            return Err(PlanError::refused(
                op,
                "row_stride",
                self.row_stride,
                "at least the number of classes",
            ));
        }
        let span = |rows: usize| rows.checked_mul(self.row_stride)?.checked_add(self.classes);
        let len = self.rows.checked_sub(1).map_or(Some(0), span);
        len.filter(|n| n.checked_mul(self.dtype.bytes()).is_some()).ok_or_else(|| {
            let got = format!("[{}, {}], rows {} apart", self.rows, self.classes, self.row_stride);
            PlanError::refused(op, "[rows, classes]", got, "a tensor that can be addressed")
        })
    }

    /// The types that the loss may have.
    const fn loss_types(&self) -> &'static [DType] {
        match self.dtype {
            DType::F16 => &[DType::F16, DType::F32],
            DType::BF16 => &[DType::BF16, DType::F32],
            DType::F64 => &[DType::F64],
            _ => &[DType::F32],
        }
    }

    pub(crate) fn words(&self) -> u32 {
        (self.target.bytes() / 4) as u32
    }

    fn losses(&self) -> usize {
        if self.reduction == Reduction::None { self.rows } else { 1 }
    }

    /// Whether losses of rows are results, in the type of the logits.
    fn stores_narrow(&self) -> bool {
        self.reduction == Reduction::None && self.loss == self.dtype
    }

    /// Where losses of rows are stored, in the type of the logits or in that of sums: as `results`, or before they are added up as `terms`.
    pub(crate) fn places(&self, results: Out<Elem>, terms: Out<Elem>) -> (Out<Elem>, Out<Elem>) {
        match self.reduction {
            Reduction::None if self.stores_narrow() => (results, Out::address(0)),
            Reduction::None => (Out::address(0), results),
            _ => (Out::address(0), terms),
        }
    }
}

/// Where the losses of rows are computed from and stored.
pub(crate) struct Losses {
    pub(crate) logits: In<Elem>,
    pub(crate) target: In<u32>,
    /// In the type of the logits, or `losses` in that of sums, whichever the descriptor says.
    pub(crate) loss: Out<Elem>,
    pub(crate) losses: Out<Elem>,
    pub(crate) lse: Out<Elem>,
    pub(crate) nll: Out<Elem>,
}

/// Where gradients of logits are computed from and stored.
pub(crate) struct Gradients {
    pub(crate) logits: In<Elem>,
    pub(crate) target: In<u32>,
    pub(crate) lse: In<Elem>,
    pub(crate) nll: In<Elem>,
    pub(crate) dloss: In<Elem>,
    pub(crate) count: In<Elem>,
    pub(crate) dlogits: Out<Elem>,
}

impl CrossEntropyDesc {
    /// The launch of the losses of rows, if there are any.
    pub(crate) fn losses_step(
        &self,
        target: Target,
        config: tuning::Config,
        each: Losses,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let Some(grid) = plan::cover(OP, self.rows, config.threads / config.team)? else { return Ok(None) };
        let smoothed = self.label_smoothing.get() > 0.0;
        let def = kernel::Forward { dtype: self.dtype, config, smoothed };
        let Losses { logits, target: targets, loss, losses, lse, nll } = each;
        let args = kernel::ForwardArgs {
            logits,
            target: targets,
            loss,
            losses,
            lse,
            nll,
            rows: self.rows as u64,
            classes: self.classes as u64,
            row_stride: self.row_stride as u64,
            words: self.words(),
            rowwise: u32::from(self.stores_narrow()),
            ignore_index: self.ignore_index,
            label_smoothing: self.label_smoothing.get(),
        };
        plan::launch(OP, &def, args, target, grid).map(Some)
    }

    /// The launch that reduces losses.
    pub(crate) fn reduce_step(
        &self,
        target: Target,
        (losses, targets): (In<Elem>, In<u32>),
        (loss, count): (Out<Elem>, Out<Elem>),
    ) -> Result<LaunchStep, PlanError> {
        let args = kernel::ReduceArgs {
            losses,
            target: targets,
            loss,
            count,
            rows: self.rows as u64,
            words: self.words(),
            mean: u32::from(self.reduction == Reduction::Mean),
            ignore_index: self.ignore_index,
        };
        plan::launch(OP, &kernel::Reduce { dtype: self.loss }, args, target, [1; 3])
    }
}

/// Checks that each target is a class or the index that is ignored.
///
/// # Errors
/// Names the first that is neither.
pub fn check_targets(targets: &[i64], classes: usize, ignore_index: i64) -> Result<(), PlanError> {
    let fits = |t: i64| t == ignore_index || usize::try_from(t).is_ok_and(|t| t < classes);
    match targets.iter().position(|target| !fits(*target)) {
        Some(at) => {
            let got = format!("{} at {at}", targets[at]);
            let expected = "from 0 to below the number of classes, or ignore_index";
            Err(PlanError::refused(OP, "target", got, expected))
        }
        None => Ok(()),
    }
}

impl Operation for CrossEntropyDesc {
    type Args<'a> = CrossEntropyArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = CrossEntropyArgs<'a>;
        let Self { dtype, rows, classes, reduction, .. } = *self;
        let (len, wide, reduced) = (self.len(OP)?, dtype.accumulator(), reduction != Reduction::None);
        let mean = reduction == Reduction::Mean;
        let tensors = Args::specs([
            Args::logits.holds(dtype, len),
            Args::target.holds(self.target, rows),
            Args::loss.holds(self.loss, self.losses()),
            Args::lse.holds(wide, rows),
            Args::nll.holds(wide, rows),
            Args::count.holds(wide, 1).optional(mean),
            Args::workspace.scratch(wide, if reduced { rows } else { 0 }),
        ]);
        let mut variants = Vec::new();
        for config in tuning::forward(dtype, rows, classes) {
            let (loss, losses) = self.places(Args::loss.arg(), Args::workspace.arg());
            let each = Losses {
                logits: Args::logits.arg(),
                target: Args::target.arg(),
                loss,
                losses,
                lse: Args::lse.arg(),
                nll: Args::nll.arg(),
            };
            let mut steps: Vec<_> = self.losses_step(target, config, each)?.into_iter().collect();
            if reduced {
                let losses = Args::workspace.written();
                steps.push(self.reduce_step(
                    target,
                    (losses, Args::target.arg()),
                    (Args::loss.arg(), Args::count.arg()),
                )?);
            }
            variants.push(Variant { alignment: config.alignment(dtype), steps });
        }
        Ok(Plan::of(OP, Direction::Forward, target, tensors, variants))
    }
}

/// The gradient of [`CrossEntropyDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropyBackwardDesc {
    /// The forward function.
    pub forward: CrossEntropyDesc,
}

tensors! {
    /// Tensors of [`CrossEntropyBackwardDesc`].
    pub struct CrossEntropyBackwardArgs<'a> {
        /// `[rows, classes]`; `None` reads what `dlogits` holds.
        logits: InPlace<dlogits>,
        /// `[rows]`
        target: In,
        /// The log-sum-exp of each row from the forward pass.
        lse: In,
        /// The negative log-likelihood of each row's target from the forward pass.
        nll: In,
        /// The gradient of the loss: one element, or one for each row without a reduction.
        dloss: In,
        /// The count of the forward pass, of a mean.
        count: Option<In>,
        /// The gradient of the logits.
        dlogits: Out,
    }
}

impl Operation for CrossEntropyBackwardDesc {
    type Args<'a> = CrossEntropyBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = CrossEntropyBackwardArgs<'a>;
        let desc = &self.forward;
        let CrossEntropyDesc { dtype, rows, reduction, .. } = *desc;
        let (len, wide, mean) = (desc.len(OP)?, dtype.accumulator(), reduction == Reduction::Mean);
        let tensors = Args::specs([
            Args::logits.holds(dtype, len),
            Args::target.holds(desc.target, rows),
            Args::lse.holds(wide, rows),
            Args::nll.holds(wide, rows),
            Args::dloss.holds(desc.loss, desc.losses()),
            Args::count.holds(wide, 1).optional(mean),
            Args::dlogits.holds(dtype, len).in_place().like(Args::logits),
        ]);
        let mut variants = Vec::new();
        for config in tuning::backward(dtype) {
            let all = Gradients {
                logits: Args::logits.arg(),
                target: Args::target.arg(),
                lse: Args::lse.arg(),
                nll: Args::nll.arg(),
                dloss: Args::dloss.arg(),
                count: Args::count.arg(),
                dlogits: Args::dlogits.arg(),
            };
            let steps = self.step(target, config, all)?.into_iter().collect();
            variants.push(Variant { alignment: config.alignment(dtype), steps });
        }
        Ok(Plan::of(OP, Direction::Backward, target, tensors, variants))
    }
}

impl CrossEntropyBackwardDesc {
    /// The launch of the gradients of rows, if there are any.
    pub(crate) fn step(
        &self,
        target: Target,
        config: tuning::Config,
        all: Gradients,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let CrossEntropyDesc { dtype, loss, rows, classes, row_stride, .. } = self.forward;
        let CrossEntropyDesc { ignore_index, reduction, .. } = self.forward;
        let per_block = (config.threads * config.width * config.unroll) as usize;
        let chunks = classes.div_ceil(per_block);
        let Some(grid) = plan::cover(OP, rows.saturating_mul(chunks), 1)? else { return Ok(None) };
        let Gradients { logits, target: targets, lse, nll, dloss, count, dlogits } = all;
        let args = kernel::BackwardArgs {
            logits,
            target: targets,
            lse,
            nll,
            dloss,
            count,
            dlogits,
            classes: classes as u64,
            row_stride: row_stride as u64,
            // Not more than the blocks of the grid.
            chunks: u32::try_from(chunks).unwrap_or(u32::MAX),
            words: self.forward.words(),
            rowwise: u32::from(reduction == Reduction::None),
            mean: u32::from(reduction == Reduction::Mean),
            ignore_index,
            label_smoothing: self.forward.label_smoothing.get(),
        };
        plan::launch(OP, &kernel::Backward { dtype, loss, config }, args, target, grid).map(Some)
    }
}
