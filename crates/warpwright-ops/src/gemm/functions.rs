//! Free functions: allocate the result, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::gated::{GatedLinearArgs, GatedLinearDesc, OP as GATED};
use super::{Addend, GemmArgs, GemmDesc, OP};
use crate::activation::{Activation, GatedActivation};
use crate::plan::PlanCache;
use crate::tensors::written;
use crate::{Error, PlanError};

/// How [`matmul`] reads its operands, and the epilogue of the product; the default is neither transposes nor an epilogue.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatmulOptions<'a> {
    /// Whether the last two dimensions of `a` are `[k, m]`.
    pub transpose_a: bool,
    /// Whether the last two dimensions of `b` are `[n, k]`, as those of the weight of a linear layer.
    pub transpose_b: bool,
    /// A vector that is added to every row, `[n]`.
    pub bias: Option<&'a Tensor>,
    /// A function of the sums, after the bias.
    pub activation: Option<Activation>,
}

fn refuse(op: &'static str, parameter: &'static str, shape: &[usize], expected: &'static str) -> PlanError {
    PlanError::Parameter { op, parameter, got: format!("{shape:?}"), expected }
}

/// Rows and columns of the last two dimensions, and how many matrices the others hold.
fn matrices(name: &'static str, x: &Tensor) -> Result<(usize, [usize; 2]), PlanError> {
    let &[ref before @ .., rows, cols] = x.shape() else {
        return Err(refuse(OP, name, x.shape(), "of at least two dimensions"));
    };
    Ok((before.iter().fold(1, |n: usize, d| n.saturating_mul(*d)), [rows, cols]))
}

/// How many rows there are of the last dimension, and its extent.
fn rows_of(op: &'static str, name: &'static str, x: &Tensor) -> Result<(usize, usize), PlanError> {
    let (&cols, before) =
        x.shape().split_last().ok_or_else(|| refuse(op, name, x.shape(), "of at least one dimension"))?;
    Ok((before.iter().fold(1, |n: usize, d| n.saturating_mul(*d)), cols))
}

/// `y = activation(a b + bias)` of the last two dimensions, as `torch.matmul` for equal batches; see the [module](crate::gemm).
///
/// `a` is `[.., m, k]` and `b` `[.., k, n]`, or transposed, of f32, f64, f16 or bf16; the dimensions before the last two are a batch,
/// the same for both, and a `b` of two dimensions is that of every matrix of `a`. `y` is `[.., m, n]`, `bias` is `[n]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::matmul::MatmulOptions;
/// use warpwright::{Device, Tensor, matmul};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let a = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 2])?;
/// let weight = Tensor::from_slice(&device, &[3.0f32, 4.0, 5.0, 6.0], &[2, 2])?;
/// let y = matmul(&stream, &a, &weight, MatmulOptions { transpose_b: true, ..Default::default() })?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [11.0, 17.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes do not fit each other or the element type is none of those. [`Error::Runtime`] if the types or the
/// bias do not fit, or memory runs out.
pub fn matmul(stream: &Stream, a: &Tensor, b: &Tensor, options: MatmulOptions<'_>) -> Result<Tensor, Error> {
    static PLANS: PlanCache<GemmDesc> = PlanCache::new();
    let MatmulOptions { transpose_a, transpose_b, bias, activation } = options;
    let (batch, [rows, cols]) = matrices("a", a)?;
    let (batch_b, [rows_b, cols_b]) = matrices("b", b)?;
    let (m, k) = if transpose_a { (cols, rows) } else { (rows, cols) };
    let (k_b, n) = if transpose_b { (cols_b, rows_b) } else { (rows_b, cols_b) };
    let shared = b.shape().len() == 2;
    if k != k_b || !(shared || a.shape()[..a.shape().len() - 2] == b.shape()[..b.shape().len() - 2]) {
        return Err(refuse(OP, "b", b.shape(), "of the inner dimension and batch of a").into());
    }
    let packed = GemmDesc::new(a.dtype(), [m, n, k], transpose_a, transpose_b);
    // Rows that follow one another are one matrix.
    let desc = if shared && !transpose_a && batch > 1 {
        GemmDesc::new(a.dtype(), [m.saturating_mul(batch), n, k], transpose_a, transpose_b)
    } else {
        GemmDesc { batch, stride_b: if shared || batch_b == 1 { 0 } else { packed.stride_b }, ..packed }
    };
    let desc = GemmDesc { bias: bias.is_some(), activation, ..desc };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut shape = a.shape().to_vec();
    let last = shape.len();
    shape[last - 2] = m;
    shape[last - 1] = n;
    let mut y = Tensor::empty_on(stream, a.dtype(), &shape)?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        GemmArgs {
            a: a.as_ref(),
            b: b.as_ref(),
            c: Addend::Absent,
            bias: bias.map(Tensor::as_ref),
            y: y.as_mut(),
            dbias: None,
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(y)
}

/// The gradients of a linear layer, [`linear_backward`].
#[derive(Debug)]
pub struct LinearGradients {
    /// Of `x`, like `x`.
    pub dx: Tensor,
    /// Of the weight, `[out_features, in_features]`.
    pub dweight: Tensor,
    /// Of the bias, `[out_features]`, if there is one.
    pub dbias: Option<Tensor>,
}

/// The gradients of `y = x weight^T + bias`, as `torch.nn.functional.linear`, from the gradient `dy` of `y`; without those of a bias unless
/// `bias` says that there is one.
///
/// `x` is `[.., in_features]`, `dy` `[.., out_features]` and `weight` `[out_features, in_features]`, of f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, matmul};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let weight = Tensor::from_slice(&device, &[5.0f32, 6.0], &[1, 2])?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 10.0], &[2, 1])?;
/// let found = matmul::linear_backward(&stream, &x, &weight, &dy, true)?;
/// assert_eq!(found.dx.to_vec_on::<f32>(&stream)?, [5.0, 6.0, 50.0, 60.0]);
/// assert_eq!(found.dweight.to_vec_on::<f32>(&stream)?, [31.0, 42.0]);
/// assert_eq!(found.dbias.expect("a bias").to_vec_on::<f32>(&stream)?, [11.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`matmul`].
pub fn linear_backward(
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    dy: &Tensor,
    bias: bool,
) -> Result<LinearGradients, Error> {
    let dx = matmul(stream, dy, weight, MatmulOptions::default())?;
    let (dweight, dbias) = linear_weight_backward(stream, x, dy, bias)?;
    Ok(LinearGradients { dx, dweight, dbias })
}

/// The part of [`linear_backward`] that is of the layer: the gradient of its weight, and, if `bias` says that there is one, that of its bias,
/// which comes with the other where [`bias_gradient`](GemmDesc::bias_gradient) does.
///
/// `x` is `[.., in_features]` and `dy` `[.., out_features]`, of f32, f64, f16 or bf16; the gradients are `[out_features, in_features]` and
/// `[out_features]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, matmul};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 10.0], &[2, 1])?;
/// let (dweight, dbias) = matmul::linear_weight_backward(&stream, &x, &dy, true)?;
/// assert_eq!(dweight.to_vec_on::<f32>(&stream)?, [31.0, 42.0]);
/// assert_eq!(dbias.expect("a bias").to_vec_on::<f32>(&stream)?, [11.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the rows are not as many or the element type is none of those. [`Error::Runtime`] if the types do not fit, or memory
/// runs out.
pub fn linear_weight_backward(
    stream: &Stream,
    x: &Tensor,
    dy: &Tensor,
    bias: bool,
) -> Result<(Tensor, Option<Tensor>), Error> {
    static PLANS: PlanCache<GemmDesc> = PlanCache::new();
    let ((rows, n), (rows_of_x, k)) = (rows_of(OP, "dy", dy)?, rows_of(OP, "x", x)?);
    if rows != rows_of_x {
        return Err(refuse(OP, "x", x.shape(), "of the rows of dy").into());
    }
    let desc = GemmDesc { bias_gradient: bias, ..GemmDesc::new(dy.dtype(), [n, k, rows], true, false) };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut dweight = Tensor::empty_on(stream, dy.dtype(), &[n, k])?;
    let mut dbias = bias.then(|| Tensor::empty_on(stream, dy.dtype(), &[n])).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        GemmArgs {
            a: dy.as_ref(),
            b: x.as_ref(),
            c: Addend::Absent,
            bias: None,
            y: dweight.as_mut(),
            dbias: written(&mut dbias),
            workspace: written(&mut workspace),
        },
    )?;
    Ok((dweight, dbias))
}

/// `y = activation(x gate^T) * (x up^T)`: a gated linear unit, such as the first half of the feed-forward part of a Llama block.
///
/// `x` is `[.., in_features]`, `gate` and `up` are `[out_features, in_features]`, of f32, f64, f16 or bf16; `y` is `[.., out_features]`.
/// f16 and bf16 are summed in f32.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::activation::GatedActivation;
/// use warpwright::{Device, Tensor, matmul};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 2])?;
/// let gate = Tensor::from_slice(&device, &[-40.0f32, 30.0], &[1, 2])?;
/// let up = Tensor::from_slice(&device, &[0.5f32, 0.25], &[1, 2])?;
/// let y = matmul::gated_linear(&stream, &x, &gate, &up, GatedActivation::Swiglu)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [20.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes do not fit each other or the element type is none of those. [`Error::Runtime`] if the types do not fit, or
/// memory runs out.
pub fn gated_linear(
    stream: &Stream,
    x: &Tensor,
    gate: &Tensor,
    up: &Tensor,
    activation: GatedActivation,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<GatedLinearDesc> = PlanCache::new();
    let (rows, in_features) = rows_of(GATED, "x", x)?;
    let &[out_features, of_gate] = gate.shape() else {
        return Err(refuse(GATED, "gate", gate.shape(), "of two dimensions").into());
    };
    if of_gate != in_features {
        return Err(refuse(GATED, "gate", gate.shape(), "of the columns of x").into());
    }
    if up.shape() != gate.shape() {
        return Err(refuse(GATED, "up", up.shape(), "of the shape of gate").into());
    }
    let desc = GatedLinearDesc { dtype: x.dtype(), rows, in_features, out_features, activation };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut shape = x.shape().to_vec();
    let last = shape.len() - 1;
    shape[last] = out_features;
    let mut y = Tensor::empty_on(stream, x.dtype(), &shape)?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        GatedLinearArgs {
            x: x.as_ref(),
            gate: gate.as_ref(),
            up: up.as_ref(),
            y: y.as_mut(),
            workspace: written(&mut workspace),
        },
    )?;
    Ok(y)
}
