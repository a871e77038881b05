//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{LinearCrossEntropyArgs, LinearCrossEntropyDesc, OP};
use crate::cross_entropy::Reduction;
use crate::plan::{Plan, PlanCache, Real};
use crate::{Error, PlanError};

/// Everything that [`linear_cross_entropy`] takes beside its tensors; the default is PyTorch's of a cross entropy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearCrossEntropyOptions {
    /// Whether the losses of the rows are added up.
    pub reduction: Reduction,
    /// A target that does not count.
    pub ignore_index: i64,
    /// The share of the target distribution that is spread over all classes.
    pub label_smoothing: f64,
    /// Rows of logits that are in memory at a time; `None` leaves it to [`tuning`](super::tuning).
    pub chunk_rows: Option<usize>,
}

impl Default for LinearCrossEntropyOptions {
    fn default() -> Self {
        Self { reduction: Reduction::Mean, ignore_index: -100, label_smoothing: 0.0, chunk_rows: None }
    }
}

/// The loss and its gradients; see [`linear_cross_entropy_with_gradients`].
#[derive(Debug)]
pub struct LinearCrossEntropyOutput {
    /// The loss, `[]`, in f32, or f64 for f64.
    pub loss: Tensor,
    /// Its gradient with respect to `x`, like `x`.
    pub dx: Tensor,
    /// Its gradient with respect to `weight`, like `weight`.
    pub dweight: Tensor,
    /// Its gradient with respect to `bias`, if there is one, like `bias`.
    pub dbias: Option<Tensor>,
}

static PLANS: PlanCache<LinearCrossEntropyDesc> = PlanCache::new();

fn describe(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    target: &Tensor,
    options: LinearCrossEntropyOptions,
) -> Result<LinearCrossEntropyDesc, PlanError> {
    let matrix = |name: &'static str, x: &Tensor, expected: &'static str| {
        let sides: Result<[usize; 2], _> = x.shape().try_into();
        sides.map_err(|_| PlanError::refused(OP, name, format!("{:?}", x.shape()), expected))
    };
    let [rows, features] = matrix("x", x, "[rows, features]")?;
    let [classes, _] = matrix("weight", weight, "[classes, features]")?;
    if weight.shape() != [classes, features] {
        let got = format!("{:?}", weight.shape());
        return Err(PlanError::refused(OP, "weight", got, "[classes, features], with the features of x"));
    }
    let LinearCrossEntropyOptions { reduction, ignore_index, label_smoothing, chunk_rows } = options;
    let label_smoothing = Real::new(label_smoothing);
    let sizes = [rows, features, classes];
    Ok(LinearCrossEntropyDesc {
        bias: bias.is_some(),
        ignore_index,
        label_smoothing,
        reduction,
        chunk_rows,
        ..LinearCrossEntropyDesc::new(x.dtype(), target.dtype(), sizes)
    })
}

/// Makes the loss, and writes the gradients of `x`, `weight` and `bias` that there is a place for.
fn run(
    stream: &Stream,
    (plan, desc): (&Plan<LinearCrossEntropyDesc>, &LinearCrossEntropyDesc),
    [x, weight, target]: [&Tensor; 3],
    bias: Option<&Tensor>,
    [dx, dweight, dbias]: [Option<&mut Tensor>; 3],
) -> Result<Tensor, Error> {
    let shape: &[usize] = if desc.reduction == Reduction::None { &[desc.rows] } else { &[] };
    let mut loss = Tensor::empty_on(stream, desc.dtype.accumulator(), shape)?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        LinearCrossEntropyArgs {
            x: x.as_ref(),
            weight: weight.as_ref(),
            bias: bias.map(Tensor::as_ref),
            target: target.as_ref(),
            loss: loss.as_mut(),
            dx: dx.map(Tensor::as_mut),
            dweight: dweight.map(Tensor::as_mut),
            dbias: dbias.map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(loss)
}

/// The cross entropy of `x weight^T + bias` for the classes in `target`, as `torch.nn.functional.linear` and `cross_entropy`, without the
/// logits of all rows in memory; see the [module](crate::linear_cross_entropy).
///
/// `x` is `[rows, features]`, `weight` `[classes, features]` and `bias` `[classes]`, of f32, f64, f16 or bf16; `target` is `[rows]`, i64 or
/// i32. The loss is `[]`, or `[rows]` without a reduction, in f32, or f64 for f64.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::linear_cross_entropy::LinearCrossEntropyOptions;
/// use warpwright::{Device, Tensor, linear_cross_entropy};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 2])?;
/// let weight = Tensor::from_slice(&device, &[1.0f32, 0.0, 1.0, 0.0], &[2, 2])?;
/// let target = Tensor::from_slice(&device, &[0i64], &[1])?;
/// // Both logits are 1.
/// let loss =
///     linear_cross_entropy(&stream, &x, &weight, None, &target, LinearCrossEntropyOptions::default())?;
/// assert!((loss.to_vec_on::<f32>(&stream)?[0] - 2.0f32.ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if a shape, an element type or an option is none of those. [`Error::Runtime`] if the tensors do not fit each other, or
/// memory runs out. Classes that do not exist give NaN.
pub fn linear_cross_entropy(
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    target: &Tensor,
    options: LinearCrossEntropyOptions,
) -> Result<Tensor, Error> {
    let desc = describe(x, weight, bias, target, options)?;
    let plan = PLANS.get(&desc, stream.device().target())?;
    run(stream, (&plan, &desc), [x, weight, target], bias, [None, None, None])
}

/// [`linear_cross_entropy`] together with its gradients, for a gradient 1 of the loss: whoever has another one multiplies them by it.
///
/// Tensors and options are those of [`linear_cross_entropy`], of f32, f64, f16 or bf16; the loss is a mean or a sum, `[]`, and each
/// gradient is like its tensor.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::linear_cross_entropy::LinearCrossEntropyOptions;
/// use warpwright::{Device, Tensor, linear_cross_entropy_with_gradients};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 2])?;
/// let weight = Tensor::from_slice(&device, &[1.0f32, 0.0, 1.0, 0.0], &[2, 2])?;
/// let target = Tensor::from_slice(&device, &[0i64], &[1])?;
/// let options = LinearCrossEntropyOptions::default();
/// let out = linear_cross_entropy_with_gradients(&stream, &x, &weight, None, &target, options)?;
/// let dweight = out.dweight.to_vec_on::<f32>(&stream)?;
/// // The gradient of the logits, -1/2 and 1/2, times x.
/// assert!(dweight.iter().zip([-0.5, -1.0, 0.5, 1.0]).all(|(got, want)| (got - want).abs() < 1e-6));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`linear_cross_entropy`]; and [`Error::Plan`] without a reduction.
pub fn linear_cross_entropy_with_gradients(
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    target: &Tensor,
    options: LinearCrossEntropyOptions,
) -> Result<LinearCrossEntropyOutput, Error> {
    let desc = LinearCrossEntropyDesc { gradients: true, ..describe(x, weight, bias, target, options)? };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let empty_like = |tensor: &Tensor| Tensor::empty_on(stream, desc.dtype, tensor.shape());
    let (mut dx, mut dweight) = (empty_like(x)?, empty_like(weight)?);
    let mut dbias = bias.map(empty_like).transpose()?;
    let gradients = [Some(&mut dx), Some(&mut dweight), dbias.as_mut()];
    let loss = run(stream, (&plan, &desc), [x, weight, target], bias, gradients)?;
    Ok(LinearCrossEntropyOutput { loss, dx, dweight, dbias })
}
