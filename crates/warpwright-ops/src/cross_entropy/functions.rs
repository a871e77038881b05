//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyBackwardDesc, CrossEntropyDesc, OP, Reduction,
};
use crate::plan::{PlanCache, Real};
use crate::{Error, PlanError};

/// Everything that [`cross_entropy`] takes beside its tensors; the default is PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyOptions {
    /// Whether the losses of the rows are added up.
    pub reduction: Reduction,
    /// A target that does not count.
    pub ignore_index: i64,
    /// The share of the target distribution that is spread over all classes.
    pub label_smoothing: f64,
    /// The type of the loss: that of the logits if `None`, and f32 of half types is as if they had been converted before.
    pub loss: Option<DType>,
}

impl Default for CrossEntropyOptions {
    fn default() -> Self {
        Self { reduction: Reduction::Mean, ignore_index: -100, label_smoothing: 0.0, loss: None }
    }
}

/// The result of [`cross_entropy`], and what its backward function takes.
#[derive(Debug)]
pub struct CrossEntropyOutput {
    /// One element (`[]`), or `[rows]` without a reduction, of the type that was asked for.
    pub loss: Tensor,
    /// The log-sum-exp of each row, `[rows]`, f32, or f64 for f64.
    pub lse: Tensor,
    /// The negative log-likelihood of each row's target without smoothing, as `lse`; NaN where the target is no
    /// class.
    pub nll: Tensor,
    /// The number of rows that count, `[1]` as `lse`, of a mean.
    pub count: Option<Tensor>,
}

fn describe(
    logits: &Tensor,
    target: &Tensor,
    options: CrossEntropyOptions,
) -> Result<CrossEntropyDesc, PlanError> {
    let &[rows, classes] = logits.shape() else {
        let got = format!("{:?}", logits.shape());
        return Err(PlanError::refused(OP, "logits", got, "[rows, classes]"));
    };
    let CrossEntropyOptions { reduction, ignore_index, label_smoothing, loss } = options;
    let (label_smoothing, loss) = (Real::new(label_smoothing), loss.unwrap_or(logits.dtype()));
    let plain = CrossEntropyDesc::new(logits.dtype(), target.dtype(), [rows, classes]);
    Ok(CrossEntropyDesc { loss, ignore_index, label_smoothing, reduction, ..plain })
}

/// The cross entropy of `logits` for the classes in `target`, as `torch.nn.functional.cross_entropy`; see the
/// [module](crate::cross_entropy).
///
/// `logits` is `[rows, classes]`, of f32, f64, f16 or bf16, `target` is `[rows]`, i64 or i32. The loss is `[]`, or `[rows]` without a
/// reduction.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::cross_entropy::CrossEntropyOptions;
/// use warpwright::{Device, Tensor, cross_entropy};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let logits = Tensor::from_slice(&device, &[1.0f32, 1.0, 0.0, 0.0], &[2, 2])?;
/// let target = Tensor::from_slice(&device, &[0i64, -100], &[2])?;
/// // The second row does not count.
/// let out = cross_entropy(&stream, &logits, &target, CrossEntropyOptions::default())?;
/// assert!((out.loss.to_vec_on::<f32>(&stream)?[0] - 2.0f32.ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `logits` is not of two dimensions, there are no classes, the smoothing is not from 0 to 1, or an element type
/// is none of those. [`Error::Runtime`] if `target` has not one class a row, or memory runs out. Classes that do not exist give NaN;
/// [`check_targets`](super::check_targets) finds them on the host.
pub fn cross_entropy(
    stream: &Stream,
    logits: &Tensor,
    target: &Tensor,
    options: CrossEntropyOptions,
) -> Result<CrossEntropyOutput, Error> {
    static PLANS: PlanCache<CrossEntropyDesc> = PlanCache::new();
    let desc = describe(logits, target, options)?;
    let plan = PLANS.get(&desc, stream.device().target())?;
    let wide: DType = desc.dtype.accumulator();
    let shape: &[usize] = if options.reduction == Reduction::None { &[desc.rows] } else { &[] };
    let mut loss = Tensor::empty_on(stream, desc.loss, shape)?;
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
    Ok(CrossEntropyOutput { loss, lse, nll, count })
}

/// The gradient of the logits from what [`cross_entropy`] took, its `output`, and the gradient `dloss` of its loss.
///
/// `dloss` is like the loss: `[]`, or `[rows]` without a reduction; the result is like `logits`, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::cross_entropy::CrossEntropyOptions;
/// use warpwright::{Device, Tensor, cross_entropy, cross_entropy_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let logits = Tensor::from_slice(&device, &[1.0f32, 1.0], &[1, 2])?;
/// let target = Tensor::from_slice(&device, &[0i64], &[1])?;
/// let options = CrossEntropyOptions::default();
/// let out = cross_entropy(&stream, &logits, &target, options)?;
/// let dloss = Tensor::ones_on(&stream, logits.dtype(), &[])?;
/// let dlogits = cross_entropy_backward(&stream, &logits, &target, &out, &dloss, options)?;
/// let dlogits = dlogits.to_vec_on::<f32>(&stream)?;
/// assert!((dlogits[0] + 0.5).abs() < 1e-6 && (dlogits[1] - 0.5).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] as [`cross_entropy`]. [`Error::Runtime`] if the tensors do not fit each other or the options, or memory runs out.
pub fn cross_entropy_backward(
    stream: &Stream,
    logits: &Tensor,
    target: &Tensor,
    output: &CrossEntropyOutput,
    dloss: &Tensor,
    options: CrossEntropyOptions,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<CrossEntropyBackwardDesc> = PlanCache::new();
    let forward = describe(logits, target, options)?;
    let plan = PLANS.get(&CrossEntropyBackwardDesc { forward }, stream.device().target())?;
    let mut dlogits = Tensor::empty_on(stream, logits.dtype(), logits.shape())?;
    plan.launch(
        stream,
        CrossEntropyBackwardArgs {
            logits: Some(logits.as_ref()),
            target: target.as_ref(),
            lse: output.lse.as_ref(),
            nll: output.nll.as_ref(),
            dloss: dloss.as_ref(),
            count: output.count.as_ref().map(Tensor::as_ref),
            dlogits: dlogits.as_mut(),
        },
    )?;
    Ok(dlogits)
}
