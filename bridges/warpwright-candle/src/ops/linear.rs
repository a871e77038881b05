//! Linear layers.

use candle_core::{Result, Tensor};
use warpwright::matmul::{Addend, GemmArgs, GemmDesc};
use warpwright::plan::PlanCache;
use warpwright::reduce::{ReduceArgs, ReduceDesc, ReduceFunction};

use crate::array::{Array, Made, Spec};
use crate::call::{Call, present};
use crate::graph::record;

const OP: &str = "linear";

/// `x weight^T + bias`: `xs` is `[.., k]`, `weight` `[n, k]` and `bias` `[n]`, all of one element type; the result is `[.., n]`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpwright_candle::ops;
///
/// # fn main() -> candle_core::Result<()> {
/// let weight = Tensor::new(&[[1f32, 2.0], [3.0, 4.0], [5.0, 6.0]], &Device::Cpu)?;
/// let x = Tensor::new(&[[10f32, 100.0]], &Device::Cpu)?;
/// assert_eq!(ops::linear(&x, &weight, None)?.to_vec2::<f32>()?, [[210.0, 430.0, 650.0]]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes, element types or devices do not fit, or the element type is none of f32, f64, f16 and bf16.
pub fn linear(xs: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let call = Call::new(OP, ("xs", xs))?;
    let x = call.row_major(("xs", xs))?;
    let Some((&k, leading)) = xs.dims().split_last() else {
        return Err(call.refuse_shape(("xs", xs), "[.., k]"));
    };
    let &[n, _] = weight.dims() else { return Err(call.refuse_shape(("weight", weight), "[n, k]")) };
    let w = call.expect(("weight", weight), x.dtype, &[n, k])?;
    let b = call.optional("bias", bias, x.dtype, &[n])?;
    let rows = leading.iter().product();
    let result: Vec<usize> = leading.iter().copied().chain([n]).collect();
    let y = product(&call, [&x, &w], b.as_ref(), ([rows, n, k], [false, true]), &result)?;
    let inputs: Vec<_> = [Some(("xs", xs)), Some(("weight", weight)), bias.map(|bias| ("bias", bias))]
        .into_iter()
        .flatten()
        .collect();
    let wanted = [xs.track_op(), weight.track_op(), bias.is_some_and(Tensor::track_op)];
    record(OP, &inputs, y, move |_, dy| {
        let call = Call::new(OP, ("dy", dy))?;
        let dy = call.row_major(("dy", dy))?;
        let [of_x, of_weight, of_bias] = wanted;
        let dx = of_x.then(|| product(&call, [&dy, &w], None, ([rows, k, n], [false, false]), &x.shape));
        let together =
            (of_weight && of_bias).then(|| weight_and_bias(&call, [&dy, &x], [n, k, rows])).transpose()?;
        let (dweight, dbias) = match together {
            Some((dweight, dbias)) => (Some(Ok(dweight)), Some(Ok(dbias))),
            None => (
                of_weight.then(|| product(&call, [&dy, &x], None, ([n, k, rows], [true, false]), &[n, k])),
                of_bias.then(|| columns(&call, dy.clone().in_shape(&[rows, n]))),
            ),
        };
        let tensor = |made: Option<Result<Made>>| made.map(|made| made?.into_tensor()).transpose();
        Ok(vec![tensor(dx)?, tensor(dweight)?, tensor(dbias)?])
    })
}

/// `[m, n]` of sums over `k`; whether each factor is transposed.
fn product(
    call: &Call,
    [a, b]: [&Array; 2],
    bias: Option<&Array>,
    (extents, [transpose_a, transpose_b]): ([usize; 3], [bool; 2]),
    result: &[usize],
) -> Result<Made> {
    static PLANS: PlanCache<GemmDesc> = PlanCache::new();
    let desc = GemmDesc { bias: bias.is_some(), ..GemmDesc::new(a.dtype, extents, transpose_a, transpose_b) };
    let plan = call.plan(&PLANS, &desc)?;
    let outputs = [Some(Spec::new(a.dtype, result)), call.workspace(&plan)];
    let [y, _] = call.run([Some(a), Some(b), bias], outputs, |stream, [a, b, bias], [y, workspace]| {
        let (a, b, c, y) = (present(a), present(b), Addend::Absent, present(y));
        Ok(plan.launch(stream, GemmArgs { a, b, c, bias, y, dbias: None, workspace })?)
    })?;
    Ok(present(y))
}

/// The gradients of the weight, `[n, k]`, and of the bias, `[n]`, from `dy` and `x`.
fn weight_and_bias(call: &Call, [dy, x]: [&Array; 2], [n, k, rows]: [usize; 3]) -> Result<(Made, Made)> {
    static PLANS: PlanCache<GemmDesc> = PlanCache::new();
    let desc = GemmDesc { bias_gradient: true, ..GemmDesc::new(dy.dtype, [n, k, rows], true, false) };
    let plan = call.plan(&PLANS, &desc)?;
    let outputs =
        [Some(Spec::new(dy.dtype, &[n, k])), Some(Spec::new(dy.dtype, &[n])), call.workspace(&plan)];
    let [dweight, dbias, _] =
        call.run([Some(dy), Some(x)], outputs, |stream, [a, b], [y, dbias, workspace]| {
            let (a, b, c, y) = (present(a), present(b), Addend::Absent, present(y));
            Ok(plan.launch(stream, GemmArgs { a, b, c, bias: None, y, dbias, workspace })?)
        })?;
    Ok((present(dweight), present(dbias)))
}

/// The sums of the columns of `[rows, n]`.
fn columns(call: &Call, x: Array) -> Result<Made> {
    static PLANS: PlanCache<ReduceDesc> = PlanCache::new();
    let desc = ReduceDesc {
        function: ReduceFunction::Sum,
        dtype: x.dtype,
        y_dtype: x.dtype,
        shape: x.shape.clone(),
        dims: vec![0],
    };
    let plan = call.plan(&PLANS, &desc)?;
    let outputs = [Some(Spec::new(x.dtype, &x.shape[1..])), call.workspace(&plan)];
    let [y, _] = call.run([Some(&x)], outputs, |stream, [x], [y, workspace]| {
        Ok(plan.launch(stream, ReduceArgs { x: present(x), y: present(y), workspace })?)
    })?;
    Ok(present(y))
}
