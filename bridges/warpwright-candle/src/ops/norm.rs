//! Layer, RMS and group normalization.

use candle_core::{D, Result, Tensor};
use warpwright::group_norm::{
    GroupNormArgs, GroupNormBackwardArgs, GroupNormBackwardDesc, GroupNormDesc, GroupShape, Layout,
};
use warpwright::layer_norm::{RowNorm, RowNormArgs, RowNormBackwardArgs, RowNormBackwardDesc, RowNormDesc};
use warpwright::plan::{PlanCache, Real};

use crate::array::{Array, Made, Spec};
use crate::call::{Call, present};
use crate::error::Error;
use crate::graph::{any_tracked, record, record_all};

/// The parameters of a normalization by the names that candle has for them.
type Parameter<'a> = Option<(&'static str, &'a Tensor)>;

fn parameter(call: &Call, parameter: Parameter<'_>, like: &Array, len: usize) -> Result<Option<Array>> {
    parameter.map(|named| call.expect(named, like.dtype, &[len])).transpose()
}

/// The normalization of rows and its inputs.
struct Rows<'a> {
    op: &'static str,
    norm: RowNorm,
    xs: &'a Tensor,
    residual: Option<&'a Tensor>,
    weight: Parameter<'a>,
    bias: Parameter<'a>,
    eps: f64,
}

impl Rows<'_> {
    /// The result, and the sum with the residual if there is one.
    fn run(&self) -> Result<Vec<Tensor>> {
        static PLANS: PlanCache<RowNormDesc> = PlanCache::new();
        let Self { op, norm, xs, residual, weight, bias, eps } = *self;
        let len = xs.dim(D::Minus1)?;
        let call = Call::new(op, ("xs", xs))?;
        let x = call.row_major(("xs", xs))?;
        let r = call.optional("residual", residual, x.dtype, &x.shape)?;
        let w = parameter(&call, weight, &x, len)?;
        let b = parameter(&call, bias, &x, len)?;
        let residual = residual.map(|residual| ("residual", residual));
        let inputs: Vec<_> = [Some(("xs", xs)), residual, weight, bias].into_iter().flatten().collect();
        let saved = any_tracked(&inputs);
        let leading = x.shape[..x.shape.len() - 1].to_vec();
        let desc = RowNormDesc {
            norm,
            dtype: x.dtype,
            rows: leading.iter().product(),
            len,
            eps: Real::new(eps),
            weight: w.is_some(),
            bias: b.is_some(),
            residual: r.is_some(),
            statistics: saved,
        };
        let plan = call.plan(&PLANS, &desc)?;
        let statistic = Spec::new(x.dtype.accumulator(), &leading);
        let outputs = [
            Some(Spec::like(&x)),
            r.as_ref().map(Spec::like),
            (saved && norm == RowNorm::Layer).then(|| statistic.clone()),
            saved.then_some(statistic),
        ];
        let inputs_of_kernels = [Some(&x), r.as_ref(), w.as_ref(), b.as_ref()];
        let [y, z, mean, rstd] = call.run(
            inputs_of_kernels,
            outputs,
            |stream, [x, residual, weight, bias], [y, z, mean, rstd]| {
                let (x, y) = (present(x), present(y));
                Ok(plan.launch(stream, RowNormArgs { x, residual, weight, bias, y, z, mean, rstd })?)
            },
        )?;
        let results: Vec<Made> = [y, z].into_iter().flatten().collect();
        let Some(rstd) = rstd else { return results.into_iter().map(Made::into_tensor).collect() };
        let (mean, rstd) = (mean.map(Made::into_array).transpose()?, rstd.into_array()?);
        let saved = SavedRows { op, x, summed: r.is_some(), weight: w, mean, rstd, bias: b.is_some() };
        record_all(op, &inputs, results, move |results, gradients| saved.gradients(&desc, results, gradients))
    }

    /// The one result.
    fn one(&self) -> Result<Tensor> {
        self.run()?.pop().ok_or_else(|| Error::Order { op: self.op }.into())
    }
}

/// Inputs of the backward pass of a normalization of rows.
struct SavedRows {
    op: &'static str,
    x: Array,
    /// Whether what was normalized is the second result, the sum with a residual.
    summed: bool,
    weight: Option<Array>,
    mean: Option<Array>,
    rstd: Array,
    bias: bool,
}

impl SavedRows {
    fn gradients(
        &self,
        forward: &RowNormDesc,
        results: &[Tensor],
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>> {
        static PLANS: PlanCache<RowNormBackwardDesc> = PlanCache::new();
        let Self { op, x, summed, weight, mean, rstd, bias } = self;
        let RowNormDesc { norm, dtype, rows, len, .. } = *forward;
        let call = Call::new(op, ("y", &results[0]))?;
        let dz =
            gradients.get(1).and_then(Option::as_ref).map(|dz| call.row_major(("dz", dz))).transpose()?;
        let dy = match gradients.first().and_then(Option::as_ref) {
            Some(dy) => call.row_major(("dy", dy))?,
            // Of a sum alone that is used.
            None => call.row_major(("dy", &results[0].zeros_like()?))?,
        };
        let z = if *summed { Some(call.row_major(("z", &results[1]))?) } else { None };
        let desc = RowNormBackwardDesc {
            norm,
            dtype,
            rows,
            len,
            weight: weight.is_some(),
            bias: *bias,
            dz: dz.is_some(),
        };
        let plan = call.plan(&PLANS, &desc)?;
        let parameter = Spec::new(dtype, &[len]);
        let outputs = [
            Some(Spec::like(x)),
            weight.as_ref().map(|_| parameter.clone()),
            bias.then_some(parameter),
            call.workspace(&plan),
        ];
        let normalized = z.as_ref().unwrap_or(x);
        let inputs = [Some(normalized), Some(&dy), dz.as_ref(), weight.as_ref(), mean.as_ref(), Some(rstd)];
        let [dx, dweight, dbias, _] = call.run(inputs, outputs, |stream, inputs, outputs| {
            let ([x, dy, dz, weight, mean, rstd], [dx, dweight, dbias, workspace]) = (inputs, outputs);
            let (x, dy, rstd, dx) = (present(x), present(dy), present(rstd), present(dx));
            let args = RowNormBackwardArgs { x, dy, dz, weight, mean, rstd, dx, dweight, dbias, workspace };
            Ok(plan.launch(stream, args)?)
        })?;
        let dx = present(dx).into_tensor()?;
        let mut all = vec![Some(dx.clone())];
        // Both summands have the gradient of the sum.
        all.extend(summed.then_some(Some(dx)));
        for made in [dweight, dbias].into_iter().flatten() {
            all.push(Some(made.into_tensor()?));
        }
        Ok(all)
    }
}

/// `(x - mean) / sqrt(variance + eps) alpha + beta` over the last dimension, as [`candle_nn::ops::layer_norm`], which has no gradient.
///
/// `alpha` and `beta` are `[n]`, of the element type of `xs`.
///
/// # Errors
/// If the shapes, element types or devices do not fit, `eps` is negative, or the element type is none of f32, f64, f16 and bf16.
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    layer_norm_with(xs, alpha, Some(beta), eps.into())
}

/// [`layer_norm`] without a summand.
///
/// # Errors
/// As [`layer_norm`].
pub fn layer_norm_no_bias(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    layer_norm_with(xs, alpha, None, eps.into())
}

pub(crate) fn layer_norm_with(
    xs: &Tensor,
    alpha: &Tensor,
    beta: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let (weight, bias) = (Some(("alpha", alpha)), beta.map(|beta| ("beta", beta)));
    Rows { op: "layer_norm", norm: RowNorm::Layer, xs, residual: None, weight, bias, eps }.one()
}

/// `x / sqrt(mean(x^2) + eps) alpha` over the last dimension, as [`candle_nn::ops::rms_norm`], which has no gradient.
///
/// `alpha` is `[n]`, of the element type of `xs`.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use warpwright_candle::ops;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Var::new(&[[3f32, 4.0]], &Device::Cpu)?;
/// let alpha = Tensor::new(&[1f32, 2.0], &Device::Cpu)?;
/// let y = ops::rms_norm(&x, &alpha, 0.0)?;
/// assert!((y.to_vec2::<f32>()?[0][1] - 8.0 / 12.5f32.sqrt()).abs() < 1e-6);
/// assert!(y.sum_all()?.backward()?.get(&x).is_some());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`layer_norm`].
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    rms_norm_with(xs, alpha, eps.into())
}

pub(crate) fn rms_norm_with(xs: &Tensor, alpha: &Tensor, eps: f64) -> Result<Tensor> {
    let weight = Some(("alpha", alpha));
    Rows { op: "rms_norm", norm: RowNorm::Rms, xs, residual: None, weight, bias: None, eps }.one()
}

fn pair(rows: &Rows<'_>) -> Result<(Tensor, Tensor)> {
    let results: [Tensor; 2] = rows.run()?.try_into().map_err(|_| Error::Order { op: rows.op })?;
    Ok(results.into())
}

/// [`layer_norm`] of `xs + residual`, of one shape, and that sum, in one pass over memory.
///
/// # Errors
/// As [`layer_norm`].
pub fn add_layer_norm(
    xs: &Tensor,
    residual: &Tensor,
    alpha: &Tensor,
    beta: &Tensor,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    let (op, norm, residual, eps) = ("add_layer_norm", RowNorm::Layer, Some(residual), eps.into());
    pair(&Rows { op, norm, xs, residual, weight: Some(("alpha", alpha)), bias: Some(("beta", beta)), eps })
}

/// [`rms_norm`] of `xs + residual`, of one shape, and that sum, in one pass over memory: what blocks of transformers do between their parts.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpwright_candle::ops;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[1f32, 2.0]], &Device::Cpu)?;
/// let alpha = Tensor::new(&[1f32, 1.0], &Device::Cpu)?;
/// let (y, sum) = ops::add_rms_norm(&x, &x, &alpha, 0.0)?;
/// assert_eq!(sum.to_vec2::<f32>()?, [[2.0, 4.0]]);
/// assert!((y.to_vec2::<f32>()?[0][0] - 2.0 / 10f32.sqrt()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`layer_norm`].
pub fn add_rms_norm(xs: &Tensor, residual: &Tensor, alpha: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
    let (op, norm, residual, eps) = ("add_rms_norm", RowNorm::Rms, Some(residual), eps.into());
    pair(&Rows { op, norm, xs, residual, weight: Some(("alpha", alpha)), bias: None, eps })
}

/// The normalization of the groups of channels of each sample, as [`candle_nn::GroupNorm`]: `xs` is `[batch, channels, ..]`, `weight` and
/// `bias` are `[channels]`, of its element type.
///
/// # Errors
/// As [`layer_norm`], and if `num_groups` does not divide the channels.
pub fn group_norm(
    xs: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    static PLANS: PlanCache<GroupNormDesc> = PlanCache::new();
    const OP: &str = "group_norm";
    let call = Call::new(OP, ("xs", xs))?;
    let &[batch, channels, ref spatial @ ..] = xs.dims() else {
        return Err(call.refuse_shape(("xs", xs), "[batch, channels, ..]"));
    };
    let x = call.row_major(("xs", xs))?;
    let (weight, bias) = (weight.map(|w| ("weight", w)), bias.map(|b| ("bias", b)));
    let w = parameter(&call, weight, &x, channels)?;
    let b = parameter(&call, bias, &x, channels)?;
    let inputs: Vec<_> = [Some(("xs", xs)), weight, bias].into_iter().flatten().collect();
    let saved = any_tracked(&inputs);
    let spatial = spatial.iter().product();
    let desc = GroupNormDesc {
        dtype: x.dtype,
        shape: GroupShape { batch, channels, spatial, groups: num_groups, layout: Layout::ChannelsFirst },
        weight: w.is_some(),
        bias: b.is_some(),
        silu: false,
        statistics: saved,
        eps: Real::new(eps),
    };
    let plan = call.plan(&PLANS, &desc)?;
    let statistic = saved.then(|| Spec::new(x.dtype.accumulator(), &[batch, num_groups]));
    let outputs = [Some(Spec::like(&x)), statistic.clone(), statistic, call.workspace(&plan)];
    let inputs_of_kernels = [Some(&x), w.as_ref(), b.as_ref()];
    let [y, mean, rstd, _] =
        call.run(inputs_of_kernels, outputs, |stream, [x, weight, bias], [y, mean, rstd, workspace]| {
            let (x, y) = (present(x), present(y));
            Ok(plan.launch(stream, GroupNormArgs { x, weight, bias, y, mean, rstd, workspace })?)
        })?;
    let Some((mean, rstd)) = mean.zip(rstd) else { return present(y).into_tensor() };
    let (mean, rstd, bias) = (mean.into_array()?, rstd.into_array()?, b.is_some());
    let saved = SavedGroups { x, weight: w, mean, rstd, bias };
    record(OP, &inputs, present(y), move |_, dy| saved.gradients(&desc, dy))
}

/// Inputs of the backward pass of a normalization of groups.
struct SavedGroups {
    x: Array,
    weight: Option<Array>,
    mean: Array,
    rstd: Array,
    bias: bool,
}

impl SavedGroups {
    fn gradients(&self, forward: &GroupNormDesc, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        static PLANS: PlanCache<GroupNormBackwardDesc> = PlanCache::new();
        let Self { x, weight, mean, rstd, bias } = self;
        let GroupNormDesc { dtype, shape, silu, .. } = *forward;
        let call = Call::new("group_norm", ("dy", dy))?;
        let dy = call.row_major(("dy", dy))?;
        let (of_weight, bias) = (weight.is_some(), *bias);
        let desc = GroupNormBackwardDesc {
            dtype,
            shape,
            weight: of_weight,
            bias,
            silu,
            dweight: of_weight,
            dbias: bias,
        };
        let plan = call.plan(&PLANS, &desc)?;
        let parameter = Spec::new(dtype, &[shape.channels]);
        let outputs = [
            Some(Spec::like(x)),
            of_weight.then(|| parameter.clone()),
            bias.then_some(parameter),
            call.workspace(&plan),
        ];
        let inputs = [Some(x), Some(&dy), Some(mean), Some(rstd), weight.as_ref()];
        let [dx, dweight, dbias, _] = call.run(
            inputs,
            outputs,
            |stream, [x, dy, mean, rstd, weight], [dx, dweight, dbias, workspace]| {
                let args = GroupNormBackwardArgs {
                    x: present(x),
                    dy: present(dy),
                    mean: present(mean),
                    rstd: present(rstd),
                    weight,
                    bias: None,
                    dx: present(dx),
                    dweight,
                    dbias,
                    workspace,
                };
                Ok(plan.launch(stream, args)?)
            },
        )?;
        [dx, dweight, dbias].into_iter().flatten().map(|made| made.into_tensor().map(Some)).collect()
    }
}
