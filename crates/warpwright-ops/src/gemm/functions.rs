//! Free functions: allocate the result, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::activated::{BACKWARD, FORWARD};
use super::gated::{GatedLinearArgs, GatedLinearDesc, OP as GATED};
use super::gated_backward::{
    GatedActivationLinearBackwardArgs, GatedActivationLinearBackwardDesc, OP as GATED_BACKWARD,
};
use super::{
    ActivationLinearBackwardArgs, ActivationLinearBackwardDesc, Addend, GemmArgs, GemmDesc,
    LinearActivationArgs, LinearActivationDesc, OP,
};
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

/// The factors of a gated linear unit beside its weights, [`gated_linear`].
#[derive(Clone, Copy, Debug, Default)]
pub struct GatedLinearOptions<'a> {
    /// The vectors that are added to every row of both products, `[out_features]` each: that of the gate first.
    pub biases: Option<[&'a Tensor; 2]>,
    /// Whether both products are results, too: [`gated_activation_linear_backward`] needs them.
    pub saved: bool,
}

/// The results of [`gated_linear`].
#[derive(Debug)]
pub struct GatedLinear {
    /// The result, `[.., out_features]`.
    pub y: Tensor,
    /// The argument of the activation, and the other factor, like `y`, if they are saved.
    pub factors: Option<[Tensor; 2]>,
}

/// `y = activation(x gate^T) * (x up^T)`: a gated linear unit, such as the first half of the feed-forward part of a Llama block; with biases
/// of both products, as that of a block of a diffusion model, and with both products as results where a model is trained.
///
/// `x` is `[.., in_features]`, `gate` and `up` are `[out_features, in_features]`, of f32, f64, f16 or bf16; `y` is `[.., out_features]`.
/// f16 and bf16 are summed in f32.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::activation::GatedActivation;
/// use warpwright::matmul::GatedLinearOptions;
/// use warpwright::{Device, Tensor, matmul};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 2])?;
/// let gate = Tensor::from_slice(&device, &[-40.0f32, 30.0], &[1, 2])?;
/// let up = Tensor::from_slice(&device, &[0.5f32, 0.25], &[1, 2])?;
/// let options = GatedLinearOptions { saved: true, ..Default::default() };
/// let found = matmul::gated_linear(&stream, &x, &gate, &up, GatedActivation::Swiglu, options)?;
/// assert_eq!(found.y.to_vec_on::<f32>(&stream)?, [20.0]);
/// let [gate_out, up_out] = found.factors.expect("both factors");
/// assert_eq!(gate_out.to_vec_on::<f32>(&stream)?, [20.0]);
/// assert_eq!(up_out.to_vec_on::<f32>(&stream)?, [1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes do not fit each other or the element type is none of those. [`Error::Runtime`] if the types or the biases do
/// not fit, or memory runs out.
pub fn gated_linear(
    stream: &Stream,
    x: &Tensor,
    gate: &Tensor,
    up: &Tensor,
    activation: GatedActivation,
    options: GatedLinearOptions<'_>,
) -> Result<GatedLinear, Error> {
    static PLANS: PlanCache<GatedLinearDesc> = PlanCache::new();
    let GatedLinearOptions { biases, saved } = options;
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
    let bias = biases.is_some();
    let desc = GatedLinearDesc { dtype: x.dtype(), rows, in_features, out_features, activation, bias, saved };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let shape = with_columns(x, out_features);
    let mut y = Tensor::empty_on(stream, x.dtype(), &shape)?;
    let factor = || saved.then(|| Tensor::empty_on(stream, x.dtype(), &shape)).transpose();
    let [mut gate_out, mut up_out] = [factor()?, factor()?];
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        GatedLinearArgs {
            x: x.as_ref(),
            gate: gate.as_ref(),
            up: up.as_ref(),
            gate_bias: biases.map(|[gate, _]| gate.as_ref()),
            up_bias: biases.map(|[_, up]| up.as_ref()),
            gate_out: written(&mut gate_out),
            up_out: written(&mut up_out),
            y: y.as_mut(),
            workspace: written(&mut workspace),
        },
    )?;
    Ok(GatedLinear { y, factors: gate_out.zip(up_out).map(|(gate, up)| [gate, up]) })
}

/// The shape of a tensor with another last dimension.
fn with_columns(x: &Tensor, columns: usize) -> Vec<usize> {
    let rows = x.shape().split_last().map_or(&[][..], |(_, before)| before);
    [rows, &[columns]].concat()
}

/// The features that a linear layer gives and takes, by its weight.
fn sides_of(op: &'static str, weight: &Tensor) -> Result<[usize; 2], PlanError> {
    let &[out_features, in_features] = weight.shape() else {
        return Err(refuse(op, "weight", weight.shape(), "of two dimensions"));
    };
    Ok([out_features, in_features])
}

/// `z = x weight^T + bias` and `y = activation(z)`, in one launch of f16 and bf16 on sm_90: a linear layer and the activation behind it, with
/// what the gradient of the activation needs. The results are `y` and `z`.
///
/// `x` is `[.., in_features]`, `weight` `[out_features, in_features]` and `bias` `[out_features]`, of f32, f64, f16 or bf16; the results are
/// `[.., out_features]`. f16 and bf16 are summed in f32. `activation` is one without a parameter.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::activation::Activation;
/// use warpwright::{Device, Tensor, matmul};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0], &[1, 2])?;
/// let weight = Tensor::from_slice(&device, &[3.0f32, 4.0, -5.0, 1.0], &[2, 2])?;
/// let bias = Tensor::from_slice(&device, &[1.0f32, 1.0], &[2])?;
/// let (y, z) = matmul::linear_activation(&stream, &x, &weight, Some(&bias), Activation::Relu)?;
/// assert_eq!(z.to_vec_on::<f32>(&stream)?, [12.0, -2.0]);
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [12.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes do not fit each other, the element type is none of those, or the activation has a parameter.
/// [`Error::Runtime`] if the types or the bias do not fit, or memory runs out.
pub fn linear_activation(
    stream: &Stream,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<(Tensor, Tensor), Error> {
    static PLANS: PlanCache<LinearActivationDesc> = PlanCache::new();
    let (rows, columns) = rows_of(FORWARD, "x", x)?;
    let [out_features, in_features] = sides_of(FORWARD, weight)?;
    if columns != in_features {
        return Err(refuse(FORWARD, "weight", weight.shape(), "of the columns of x").into());
    }
    let (dtype, bias_is) = (x.dtype(), bias.is_some());
    let desc = LinearActivationDesc {
        dtype,
        rows,
        in_features,
        out_features,
        transpose_b: true,
        bias: bias_is,
        activation,
    };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let shape = with_columns(x, out_features);
    let [mut z, mut y] = [Tensor::empty_on(stream, dtype, &shape)?, Tensor::empty_on(stream, dtype, &shape)?];
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        LinearActivationArgs {
            x: x.as_ref(),
            weight: weight.as_ref(),
            bias: bias.map(Tensor::as_ref),
            z: z.as_mut(),
            y: y.as_mut(),
            workspace: written(&mut workspace),
        },
    )?;
    Ok((y, z))
}

/// `(dy weight) * activation'(z)`, in one launch of f16 and bf16 on sm_90: the gradient of `z` where a linear layer, whose results have the
/// gradient `dy`, takes `activation(z)`.
///
/// `dy` is `[.., out_features]`, `weight` `[out_features, in_features]`, `z` and the result are `[.., in_features]`, of f32, f64, f16 or bf16.
/// f16 and bf16 are summed in f32. `activation` is one without a parameter.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::activation::Activation;
/// use warpwright::{Device, Tensor, matmul};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let dy = Tensor::from_slice(&device, &[10.0f32], &[1, 1])?;
/// let weight = Tensor::from_slice(&device, &[3.0f32, 4.0], &[1, 2])?;
/// let z = Tensor::from_slice(&device, &[0.5f32, -1.0], &[1, 2])?;
/// let dz = matmul::activation_linear_backward(&stream, &dy, &weight, &z, Activation::Relu)?;
/// assert_eq!(dz.to_vec_on::<f32>(&stream)?, [30.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`linear_activation`].
pub fn activation_linear_backward(
    stream: &Stream,
    dy: &Tensor,
    weight: &Tensor,
    z: &Tensor,
    activation: Activation,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<ActivationLinearBackwardDesc> = PlanCache::new();
    let (rows, [out_features, in_features]) = behind(BACKWARD, dy, weight, [("z", z)])?;
    let (dtype, transpose_b) = (dy.dtype(), false);
    let desc =
        ActivationLinearBackwardDesc { dtype, rows, in_features, out_features, transpose_b, activation };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut dz = Tensor::empty_on(stream, dtype, z.shape())?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        ActivationLinearBackwardArgs {
            dy: dy.as_ref(),
            weight: weight.as_ref(),
            z: z.as_ref(),
            dz: dz.as_mut(),
            workspace: written(&mut workspace),
        },
    )?;
    Ok(dz)
}

/// Rows, and the sides of the weight of a layer whose results have the gradient `dy` and which takes what is made of `factors`.
fn behind<const N: usize>(
    op: &'static str,
    dy: &Tensor,
    weight: &Tensor,
    factors: [(&'static str, &Tensor); N],
) -> Result<(usize, [usize; 2]), PlanError> {
    let (rows, columns) = rows_of(op, "dy", dy)?;
    let [out_features, in_features] = sides_of(op, weight)?;
    if columns != out_features {
        return Err(refuse(op, "weight", weight.shape(), "of as many rows as dy has columns"));
    }
    let shape = with_columns(dy, in_features);
    match factors.into_iter().find(|(_, factor)| factor.shape() != shape) {
        Some((name, factor)) => {
            Err(refuse(op, name, factor.shape(), "of the rows of dy and the columns of weight"))
        }
        None => Ok((rows, [out_features, in_features])),
    }
}

/// `(h * activation'(gate) * up, h * activation(gate))` of `h = dy weight`, in one launch of f16 and bf16 on sm_90: the gradients of `gate` and
/// `up` where a linear layer, whose results have the gradient `dy`, takes `activation(gate) * up`.
///
/// `dy` is `[.., out_features]`, `weight` `[out_features, in_features]`, `gate`, `up` and the results are `[.., in_features]`, of f32, f64, f16
/// or bf16. f16 and bf16 are summed in f32.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::activation::GatedActivation;
/// use warpwright::{Device, Tensor, matmul};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let dy = Tensor::from_slice(&device, &[10.0f32], &[1, 1])?;
/// let weight = Tensor::from_slice(&device, &[3.0f32], &[1, 1])?;
/// let gate = Tensor::from_slice(&device, &[100.0f32], &[1, 1])?;
/// let up = Tensor::from_slice(&device, &[2.0f32], &[1, 1])?;
/// let [dgate, dup] =
///     matmul::gated_activation_linear_backward(&stream, &dy, &weight, [&gate, &up], GatedActivation::Swiglu)?;
/// assert_eq!(dgate.to_vec_on::<f32>(&stream)?, [60.0]);
/// assert_eq!(dup.to_vec_on::<f32>(&stream)?, [3000.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes do not fit each other or the element type is none of those. [`Error::Runtime`] if the types do not fit, or
/// memory runs out.
pub fn gated_activation_linear_backward(
    stream: &Stream,
    dy: &Tensor,
    weight: &Tensor,
    [gate, up]: [&Tensor; 2],
    activation: GatedActivation,
) -> Result<[Tensor; 2], Error> {
    static PLANS: PlanCache<GatedActivationLinearBackwardDesc> = PlanCache::new();
    let (rows, [out_features, in_features]) =
        behind(GATED_BACKWARD, dy, weight, [("gate", gate), ("up", up)])?;
    let (dtype, transpose_b) = (dy.dtype(), false);
    let desc =
        GatedActivationLinearBackwardDesc { dtype, rows, in_features, out_features, transpose_b, activation };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let empty = || Tensor::empty_on(stream, dtype, gate.shape());
    let [mut dgate, mut dup] = [empty()?, empty()?];
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        GatedActivationLinearBackwardArgs {
            dy: dy.as_ref(),
            weight: weight.as_ref(),
            gate: gate.as_ref(),
            up: up.as_ref(),
            dgate: dgate.as_mut(),
            dup: dup.as_mut(),
            workspace: written(&mut workspace),
        },
    )?;
    Ok([dgate, dup])
}
