//! Free functions: allocate the result, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{Addend, GemmArgs, GemmDesc};
use crate::activation::Activation;
use crate::plan::PlanCache;
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

fn refuse(parameter: &'static str, shape: &[usize], expected: &'static str) -> PlanError {
    PlanError::Parameter { op: super::OP, parameter, got: format!("{shape:?}"), expected }
}

/// Rows and columns of the last two dimensions, and how many matrices the others hold.
fn matrices(name: &'static str, x: &Tensor) -> Result<(usize, [usize; 2]), PlanError> {
    let &[ref before @ .., rows, cols] = x.shape() else {
        return Err(refuse(name, x.shape(), "of at least two dimensions"));
    };
    Ok((before.iter().fold(1, |n: usize, d| n.saturating_mul(*d)), [rows, cols]))
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
        return Err(refuse("b", b.shape(), "of the inner dimension and batch of a").into());
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
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(y)
}
