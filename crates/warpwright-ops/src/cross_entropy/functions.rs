//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::kernel::accumulator;
use super::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyBackwardDesc, CrossEntropyDesc, Reduction,
    parameter,
};
use crate::plan::{PlanCache, Real};
use crate::{Error, PlanError};

/// What [`cross_entropy`] can be asked for besides its tensors; the default is PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyOptions {
    /// What becomes of the losses of the rows.
    pub reduction: Reduction,
    /// A target that does not count.
    pub ignore_index: i64,
    /// The share of the target distribution that is spread over all classes.
    pub label_smoothing: f64,
}

impl Default for CrossEntropyOptions {
    fn default() -> Self {
        Self { reduction: Reduction::Mean, ignore_index: -100, label_smoothing: 0.0 }
    }
}

/// The results of [`cross_entropy`].
#[derive(Debug)]
pub struct CrossEntropy {
    /// One element, or `[rows]` without a reduction.
    pub loss: Tensor,
    /// The log-sum-exp of each row.
    pub lse: Tensor,
    /// The negative log-likelihood of each row's target without smoothing; NaN where the target is no class.
    pub nll: Tensor,
    /// The number of rows that count, of a mean.
    pub count: Option<Tensor>,
}

fn describe(
    logits: &Tensor,
    target: &Tensor,
    options: CrossEntropyOptions,
) -> Result<CrossEntropyDesc, PlanError> {
    let &[rows, classes] = logits.shape() else {
        return Err(parameter("logits", format!("{:?}", logits.shape()), "[rows, classes]"));
    };
    let CrossEntropyOptions { reduction, ignore_index, label_smoothing } = options;
    let (dtype, target) = (logits.dtype(), target.dtype());
    let label_smoothing = Real::new(label_smoothing);
    Ok(CrossEntropyDesc { dtype, target, rows, classes, ignore_index, label_smoothing, reduction })
}

/// The loss of `logits` (`[rows, classes]`) for the classes in `target` (`[rows]`, i64 or i32), and what its gradient
/// needs.
///
/// # Errors
/// The tensors do not fit each other or the options, the element types are not supported, or memory runs out.
pub fn cross_entropy(
    stream: &Stream,
    logits: &Tensor,
    target: &Tensor,
    options: CrossEntropyOptions,
) -> Result<CrossEntropy, Error> {
    static PLANS: PlanCache<CrossEntropyDesc> = PlanCache::new();
    let desc = describe(logits, target, options)?;
    let plan = PLANS.get(&desc, stream.device().target())?;
    let wide: DType = accumulator(desc.dtype);
    let shape: &[usize] = if options.reduction == Reduction::None { &[desc.rows] } else { &[] };
    let mut loss = Tensor::empty_on(stream, desc.dtype, shape)?;
    let mut lse = Tensor::empty_on(stream, wide, &[desc.rows])?;
    let mut nll = Tensor::empty_on(stream, wide, &[desc.rows])?;
    let mut count = match options.reduction {
        Reduction::Mean => Some(Tensor::empty_on(stream, wide, &[1])?),
        _ => None,
    };
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        CrossEntropyArgs {
            logits: logits.as_ref(),
            target: target.as_ref(),
            loss: loss.as_mut(),
            lse: lse.as_mut(),
            nll: nll.as_mut(),
            count: count.as_mut().map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(CrossEntropy { loss, lse, nll, count })
}

/// The gradient of the logits from the results of [`cross_entropy`] with the same options, and the gradient `dloss` of its
/// loss.
///
/// # Errors
/// The tensors do not fit each other or the options, the element types are not supported, or memory runs out.
pub fn cross_entropy_backward(
    stream: &Stream,
    logits: &Tensor,
    target: &Tensor,
    saved: &CrossEntropy,
    dloss: &Tensor,
    options: CrossEntropyOptions,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<CrossEntropyBackwardDesc> = PlanCache::new();
    let forward = describe(logits, target, options)?;
    let dtype = forward.dtype;
    let plan = PLANS.get(&CrossEntropyBackwardDesc { forward }, stream.device().target())?;
    let mut dlogits = Tensor::empty_on(stream, dtype, logits.shape())?;
    plan.launch(
        stream,
        CrossEntropyBackwardArgs {
            logits: Some(logits.as_ref()),
            target: target.as_ref(),
            lse: saved.lse.as_ref(),
            nll: saved.nll.as_ref(),
            dloss: dloss.as_ref(),
            count: saved.count.as_ref().map(Tensor::as_ref),
            dlogits: dlogits.as_mut(),
        },
    )?;
    Ok(dlogits)
}
