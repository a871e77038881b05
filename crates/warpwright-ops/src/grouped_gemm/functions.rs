//! Free functions: allocate the result, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{GroupedGemmArgs, GroupedGemmDesc};
use crate::plan::PlanCache;
use crate::{Error, PlanError};

fn launch(
    stream: &Stream,
    desc: &GroupedGemmDesc,
    [a, b, ends]: [&Tensor; 3],
    shape: &[usize],
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<GroupedGemmDesc> = PlanCache::new();
    let plan = PLANS.get(desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, a.dtype(), shape)?;
    let args = GroupedGemmArgs { a: a.as_ref(), b: b.as_ref(), ends: ends.as_ref(), y: y.as_mut() };
    plan.launch(stream, args)?;
    Ok(y)
}

fn refuse(parameter: &'static str, x: &Tensor, expected: &'static str) -> Error {
    PlanError::refused("grouped_gemm", parameter, format!("{:?}", x.shape()), expected).into()
}

/// Each row of `a` times the matrix of its group; see the [module](crate::grouped_gemm).
///
/// `a` is `[m, k]` and `b` `[groups, k, n]`, or `[groups, n, k]` if `transpose_b`, of f32, f16 or bf16; `ends` is `[groups]` of i32, for each
/// group the row behind its last. `y` is `[m, n]`; rows behind the last group are zeros. With the gradient of `y` in the place of
/// `a`, and `transpose_b` reversed, it is the gradient of `a`; that of `b` is [`grouped_matmul_k`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, grouped_matmul};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let tokens = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])?;
/// let experts = Tensor::from_slice(&device, &[1.0f32, 1.0, 1.0, -1.0], &[2, 1, 2])?;
/// // The first expert has one row, the second two.
/// let ends = Tensor::from_slice(&device, &[1i32, 3], &[2])?;
/// let y = grouped_matmul(&stream, &tokens, &experts, &ends, true)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [3.0, -1.0, -1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes do not go together or the element type is none of those. [`Error::Runtime`] if types differ, `ends` is
/// not i32, or memory runs out.
pub fn grouped_matmul(
    stream: &Stream,
    a: &Tensor,
    b: &Tensor,
    ends: &Tensor,
    transpose_b: bool,
) -> Result<Tensor, Error> {
    let &[m, k] = a.shape() else { return Err(refuse("a", a, "[m, k]")) };
    let &[groups, rows, cols] = b.shape() else { return Err(refuse("b", b, "of three dimensions")) };
    let (k_b, n) = if transpose_b { (cols, rows) } else { (rows, cols) };
    if k_b != k {
        return Err(refuse("b", b, "of the inner dimension of a"));
    }
    if ends.shape() != [groups] {
        return Err(refuse("ends", ends, "a number for each matrix of b"));
    }
    let desc = GroupedGemmDesc::new(a.dtype(), groups, [m, n, k], transpose_b);
    launch(stream, &desc, [a, b, ends], &[m, n])
}

/// The transposed rows of `a` of each group times those of `b`: the gradient of the matrices of [`grouped_matmul`].
///
/// `a` is `[k, m]` and `b` `[k, n]`, of f32, f16 or bf16; `ends` is `[groups]` of i32, for each group the row behind its last. `y` is
/// `[groups, m, n]`, zeros for an empty group.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, grouped_matmul_k};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 1.0, 2.0], &[3, 1])?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])?;
/// let ends = Tensor::from_slice(&device, &[1i32, 1, 3], &[3])?;
/// let dw = grouped_matmul_k(&stream, &dy, &x, &ends)?;
/// assert_eq!(dw.to_vec_on::<f32>(&stream)?, [1.0, 2.0, 0.0, 0.0, 13.0, 16.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`grouped_matmul`].
pub fn grouped_matmul_k(stream: &Stream, a: &Tensor, b: &Tensor, ends: &Tensor) -> Result<Tensor, Error> {
    let &[k, m] = a.shape() else { return Err(refuse("a", a, "[k, m]")) };
    let n = match *b.shape() {
        [rows, n] if rows == k => n,
        _ => return Err(refuse("b", b, "[k, n] with the rows of a")),
    };
    let &[groups] = ends.shape() else { return Err(refuse("ends", ends, "of one dimension")) };
    let desc = GroupedGemmDesc::new_k(a.dtype(), groups, [m, n, k]);
    launch(stream, &desc, [a, b, ends], &[groups, m, n])
}
