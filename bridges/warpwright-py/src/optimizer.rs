//! Steps of optimizers over lists of parameters, and norms of lists of gradients, as Python functions.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::optimizer::{
    Adam, BLOCK, ClipGradNormArgs, ClipGradNormDesc, ClippedArgs, GradArgs, GradNormArgs, GradNormDesc, Norm,
    OptimizerArgs, OptimizerDesc, ParameterArgs, Rule, Sgd,
};
use warpwright::plan::{PlanCache, Real};

use crate::array::Array;
use crate::call::{Call, Form, Named, Output, present, statistics_dtype};
use crate::error::{self, Class, Problem};
use crate::library::{Maybe, Object};
use crate::many::Listed;

/// The arrays of a list.
fn items<'py>(
    op: &'static str,
    (argument, list): Named<'_, 'py>,
    expected: Option<usize>,
) -> PyResult<Vec<Object<'py>>> {
    let items: Vec<Object<'py>> = list.try_iter()?.collect::<PyResult<_>>()?;
    let got = items.len();
    let wanted = expected.unwrap_or(got.max(1));
    if got == wanted {
        return Ok(items);
    }
    let expected = if expected.is_some() { wanted.to_string() } else { "at least 1".to_owned() };
    let message = format!("{op}: {argument} holds {got} arrays, expected {expected}");
    Err(Problem::new(list.py(), Class::Argument, message).at(op, argument).mismatch(wanted, got).into_err())
}

/// An array of one element.
fn single<'py>(call: &Call<'py>, named: Named<'_, 'py>, dtype: DType) -> PyResult<Array<'py>> {
    let array = call.read(named)?;
    array.expect_dtype(dtype)?;
    if array.len() == 1 {
        return Ok(array);
    }
    let site = array.site;
    Err(error::shape(array.object.py(), site.op, site.argument, &[1], &array.shape))
}

/// The further state of each parameter, by name; of [`ParameterArgs`] in its order, moments first.
const STATES: usize = 4;
const MOMENTS: usize = 2;

/// The arguments of a step besides parameters and gradients.
struct Options<'a, 'py> {
    states: [(&'static str, Maybe<'a, 'py>); STATES],
    /// Lists of the maxima of both moments in 8 bits, with None for each parameter whose moments are not.
    absmax: Option<[Named<'a, 'py>; 2]>,
    maximize: bool,
    grad_scale: Maybe<'a, 'py>,
    found_inf: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

fn step<'py>(
    op: &'static str,
    rule: Rule,
    [params, grads, step, lr]: [&Object<'py>; 4],
    o: &Options<'_, 'py>,
) -> PyResult<()> {
    static PLANS: PlanCache<OptimizerDesc> = PlanCache::new();
    let params = items(op, ("params", params), None)?;
    let count = params.len();
    let grads = items(op, ("grads", grads), Some(count))?;
    let states =
        o.states.map(|(name, list)| list.map(|list| Ok((name, items(op, (name, list), Some(count))?))));
    let states = crate::many::try_map(states, Option::<PyResult<_>>::transpose)?;
    let given = states.each_ref().map(Option::is_some);
    let absmax = o.absmax.map(|lists| lists.map(|named| Ok((named.0, items(op, named, Some(count))?))));
    let absmax = absmax.map(|lists| crate::many::try_map(lists, |list: PyResult<_>| list)).transpose()?;
    let is_eight_bit =
        |number: usize| absmax.as_ref().is_some_and(|[(_, first), _]| !first[number].is_none());
    let eight_bit: Vec<bool> =
        if absmax.is_some() { (0..count).map(is_eight_bit).collect() } else { Vec::new() };
    let (call, first) = Call::new(op, ("params", &params[0]), o.stream)?;
    let dtype = first.dtype;
    let (wide, mut first) = (statistics_dtype(dtype), Some(first));
    let lr = single(&call, ("lr", lr), wide)?;
    let grad_scale =
        o.grad_scale.map(|scale| single(&call, ("grad_scale", scale), DType::F32)).transpose()?;
    let found_inf = o.found_inf.map(|found| single(&call, ("found_inf", found), DType::F32)).transpose()?;
    let steps = call.updated_dense(single(&call, ("step", step), DType::F32)?, DType::F32, None)?;
    let (mut updated, mut gradients, mut lens) = (Vec::new(), Vec::<Array<'py>>::new(), Vec::new());
    for (number, (param, grad)) in params.iter().zip(&grads).enumerate() {
        let param = first.take().map_or_else(|| call.read(("params", param)), Ok)?;
        let param = call.updated_dense(param, dtype, None)?;
        let like = present(param.destination());
        let grad = call.read(("grads", grad))?;
        grad.expect_dtype(gradients.first().map_or(grad.dtype, |first| first.dtype))?;
        grad.expect_shape(&like.shape)?;
        let (len, of_codes) = (grad.len(), is_eight_bit(number));
        lens.push(len);
        gradients.push(call.laid_out_like(grad, like)?);
        let of_state = states.iter().enumerate().filter_map(|(i, state)| Some((i, state.as_ref()?)));
        let of_state = of_state.map(|(i, (name, items))| {
            let dtype = if of_codes && i < MOMENTS { DType::U8 } else { wide };
            call.updated_dense(call.read((name, &items[number]))?, dtype, Some(like))
        });
        let mut of_state = of_state.collect::<PyResult<Vec<_>>>()?;
        for (name, items) in absmax.iter().flatten().filter(|_| of_codes) {
            let array = call.read((name, &items[number]))?;
            array.expect_shape(&[len.div_ceil(BLOCK)])?;
            of_state.push(call.updated_dense(array, DType::F32, None)?);
        }
        updated.push(param);
        updated.extend(of_state);
    }
    let desc = OptimizerDesc {
        rule,
        maximize: o.maximize,
        dtype,
        grad_dtype: gradients[0].dtype,
        master: given[STATES - 1],
        grad_scale: grad_scale.is_some(),
        found_inf: found_inf.is_some(),
        lens,
        eight_bit: eight_bit.clone(),
    };
    let plan = call.plan(&PLANS, &desc)?;
    let workspace = call.workspace(&plan, &lr)?;
    let mut inputs = vec![Some(&lr), grad_scale.as_ref(), found_inf.as_ref()];
    inputs.extend(gradients.iter().map(Some));
    let outputs = [Some(steps), workspace].into_iter().chain(updated.into_iter().map(Some)).collect();
    call.run_many::<Listed, Listed>(inputs, outputs, move |stream, inputs, outputs| {
        let (mut inputs, mut outputs) = (inputs.into_iter(), outputs.into_iter());
        let (mut input, mut output) = (|| inputs.next().flatten(), || outputs.next().flatten());
        let (lr, grad_scale, found_inf) = (present(input()), input(), input());
        let (step, workspace) = (present(output()), output());
        let parameters = (0..count).map(|number| {
            let (grad, param) = (present(input()), present(output()));
            let [first, second, largest, master] = given.map(|given| if given { output() } else { None });
            let of_codes = eight_bit.get(number) == Some(&true);
            let [first_absmax, second_absmax] =
                [of_codes; 2].map(|given| if given { output() } else { None });
            ParameterArgs { grad, param, first, second, largest, master, first_absmax, second_absmax }
        });
        let parameters = parameters.collect();
        Ok(plan.launch(stream, OptimizerArgs { lr, step, grad_scale, found_inf, workspace, parameters })?)
    })?;
    Ok(())
}

/// A rule with the numbers of a call.
fn by(rule: Adam, betas: (f64, f64), eps: f64, weight_decay: f64) -> Adam {
    let betas = [betas.0, betas.1].map(Real::new);
    Adam { betas, eps: Real::new(eps), weight_decay: Real::new(weight_decay), ..rule }
}

/// Steps by the moments of gradients; the default of weight decay is the last.
macro_rules! by_moments {
    ($($(#[$doc:meta])* $name:ident => $default:ident, $decay:literal;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (params, grads, exp_avgs, exp_avg_sqs, step, lr, *, max_exp_avg_sqs=None, masters=None, betas=(0.9, 0.999), eps=1e-8, weight_decay=$decay, maximize=false, grad_scale=None, found_inf=None, stream=None))]
        #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
        pub(crate) fn $name<'py>(
            params: &Object<'py>,
            grads: &Object<'py>,
            exp_avgs: &Object<'py>,
            exp_avg_sqs: &Object<'py>,
            step: &Object<'py>,
            lr: &Object<'py>,
            max_exp_avg_sqs: Maybe<'_, 'py>,
            masters: Maybe<'_, 'py>,
            betas: (f64, f64),
            eps: f64,
            weight_decay: f64,
            maximize: bool,
            grad_scale: Maybe<'_, 'py>,
            found_inf: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<()> {
            let states = [
                ("exp_avgs", Some(exp_avgs)),
                ("exp_avg_sqs", Some(exp_avg_sqs)),
                ("max_exp_avg_sqs", max_exp_avg_sqs),
                ("masters", masters),
            ];
            let options = Options { states, absmax: None, maximize, grad_scale, found_inf, stream };
            let amsgrad = max_exp_avg_sqs.is_some();
            let adam = Adam { amsgrad, ..by(Adam::$default, betas, eps, weight_decay) };
            self::step(stringify!($name), Rule::Adam(adam), [params, grads, step, lr], &options)
        }
    )*};
}

by_moments! {
    /// A step of AdamW over a list of parameters, in place.
    ///
    /// params: arrays of one dtype, float32, float64, float16 or bfloat16, without gaps in any order; grads: of the same shapes, in that dtype or
    /// in float32; exp_avgs, exp_avg_sqs: the moments, zeros before the first step, in float32 (float64 for float64) and in the order of params, as
    /// are max_exp_avg_sqs, the largest second moments, which make the step one of AMSGrad, and masters, parameters of half types in float32,
    /// which are stepped while params get their rounding. step: float32, one element, how many steps were made, which becomes one more; lr: one
    /// element in the dtype of the moments, both on the device, so that a CUDA graph can be replayed.
    ///
    /// grad_scale: float32, one element that gradients are divided by; found_inf: float32, one element: if it is not 0, nothing changes. maximize:
    /// whether parameters go up the gradient. Parameters, moments and step are written in place; the result is None.
    adamw_step => ADAMW, 0.01;

    /// A step of Adam over a list of parameters, in place: weight decay is added to the gradients. The arguments are those of `adamw_step`.
    adam_step => ADAM, 0.0;
}

/// A step of AdamW with moments in 8 bits over a list of parameters, in place: that of `bitsandbytes.optim.AdamW8bit`, and of `Adam8bit`, whose
/// weight decay is the same.
///
/// params: arrays of one dtype, float32, float16 or bfloat16, without gaps in any order; grads: of the same shapes, in that dtype or in float32. state1s,
/// state2s: the moments as codes of `quantize_dynamic`, uint8, of the shapes of params; absmax1s, absmax2s: their maxima, float32, [ceil(len / 256)];
/// all of it zeros before the first step. Where absmax1s holds None the moments are in float32. The rest is as for `adamw_step`; a gradient that is
/// infinite or NaN counts as 0 where moments are codes.
#[pyfunction]
#[pyo3(signature = (params, grads, state1s, state2s, absmax1s, absmax2s, step, lr, *, masters=None, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, maximize=false, grad_scale=None, found_inf=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn adamw8bit_step<'py>(
    params: &Object<'py>,
    grads: &Object<'py>,
    state1s: &Object<'py>,
    state2s: &Object<'py>,
    absmax1s: &Object<'py>,
    absmax2s: &Object<'py>,
    step: &Object<'py>,
    lr: &Object<'py>,
    masters: Maybe<'_, 'py>,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    maximize: bool,
    grad_scale: Maybe<'_, 'py>,
    found_inf: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<()> {
    let states = [
        ("state1s", Some(state1s)),
        ("state2s", Some(state2s)),
        ("max_exp_avg_sqs", None),
        ("masters", masters),
    ];
    let absmax = Some([("absmax1s", absmax1s), ("absmax2s", absmax2s)]);
    let options = Options { states, absmax, maximize, grad_scale, found_inf, stream };
    let adam = by(Adam::ADAMW, betas, eps, weight_decay);
    self::step("adamw8bit_step", Rule::Adam(adam), [params, grads, step, lr], &options)
}

/// A step of stochastic gradient descent over a list of parameters, in place.
///
/// momentum_buffers: the momenta, zeros before the first step, if momentum is not 0; the rest as for `adamw_step`.
#[pyfunction]
#[pyo3(signature = (params, grads, momentum_buffers, step, lr, *, masters=None, momentum=0.0, dampening=0.0, nesterov=false, weight_decay=0.0, maximize=false, grad_scale=None, found_inf=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn sgd_step<'py>(
    params: &Object<'py>,
    grads: &Object<'py>,
    momentum_buffers: Maybe<'_, 'py>,
    step: &Object<'py>,
    lr: &Object<'py>,
    masters: Maybe<'_, 'py>,
    momentum: f64,
    dampening: f64,
    nesterov: bool,
    weight_decay: f64,
    maximize: bool,
    grad_scale: Maybe<'_, 'py>,
    found_inf: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<()> {
    const OP: &str = "sgd_step";
    if momentum_buffers.is_some() != (momentum != 0.0) {
        let what = if momentum == 0.0 { "is of momentum" } else { "is missing beside momentum" };
        let problem = Problem::new(params.py(), Class::Argument, format!("{OP}: momentum_buffers {what}"));
        return Err(problem.at(OP, "momentum_buffers").into_err());
    }
    let states = [
        ("momentum_buffers", momentum_buffers),
        ("exp_avg_sqs", None),
        ("max_exp_avg_sqs", None),
        ("masters", masters),
    ];
    let options = Options { states, absmax: None, maximize, grad_scale, found_inf, stream };
    let sgd = Sgd {
        momentum: Real::new(momentum),
        dampening: Real::new(dampening),
        nesterov,
        weight_decay: Real::new(weight_decay),
    };
    self::step(OP, Rule::Sgd(sgd), [params, grads, step, lr], &options)
}

fn norm(py: Python<'_>, op: &'static str, norm_type: f64) -> PyResult<Norm> {
    if norm_type == 2.0 {
        return Ok(Norm::L2);
    }
    if norm_type == f64::INFINITY {
        return Ok(Norm::Infinity);
    }
    let expected = "2 or infinity";
    let message = format!("{op}: norm_type is {norm_type}, expected {expected}");
    let problem = Problem::new(py, Class::Parameter, message).at(op, "norm_type");
    Err(problem.mismatch(expected, norm_type).into_err())
}

/// A call with its gradients, of one dtype.
fn gradients<'py>(
    op: &'static str,
    grads: &Object<'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<(Call<'py>, Vec<Array<'py>>)> {
    let items = items(op, ("grads", grads), None)?;
    let (call, first) = Call::new(op, ("grads", &items[0]), stream)?;
    let mut all = vec![first];
    for item in &items[1..] {
        let grad = call.read(("grads", item))?;
        grad.expect_dtype(all[0].dtype)?;
        all.push(grad);
    }
    Ok((call, all))
}

/// The norm of all elements of a list of gradients together.
///
/// grads: arrays of one dtype, float32, float64, float16 or bfloat16; norm_type: 2 or infinity. The result is one element in float32 (float64
/// for float64).
#[pyfunction]
#[pyo3(signature = (grads, norm_type=2.0, *, out=None, stream=None))]
pub(crate) fn grad_norm<'py>(
    grads: &Object<'py>,
    norm_type: f64,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<GradNormDesc> = PlanCache::new();
    const OP: &str = "grad_norm";
    let norm = norm(grads.py(), OP, norm_type)?;
    let (call, grads) = gradients(OP, grads, stream)?;
    let grads = grads.into_iter().map(|grad| call.dense(grad)).collect::<PyResult<Vec<_>>>()?;
    let (first, lens) = (&grads[0], grads.iter().map(|grad| grad.len()).collect());
    let plan = call.plan(&PLANS, &GradNormDesc { norm, dtype: first.dtype, lens })?;
    let form = Form::RowMajor(statistics_dtype(first.dtype), &[]);
    let outputs = vec![Some(call.output(("out", out), first, form)?), call.workspace(&plan, first)?];
    let inputs = grads.iter().map(Some).collect();
    let mut found =
        call.run_many::<Listed, Listed>(inputs, outputs, move |stream, inputs, mut outputs| {
            let workspace = outputs.pop().flatten();
            let total_norm = present(outputs.pop().flatten());
            let grads = inputs.into_iter().map(|grad| GradArgs { grad: present(grad) }).collect();
            Ok(plan.launch(stream, GradNormArgs { total_norm, workspace, grads })?)
        })?;
    Ok(present(found.swap_remove(0)))
}

/// Multiplies gradients by `max_norm / (norm + 1e-6)` where that is below 1, in place, without a copy to the host; the norm before, as `grad_norm`
/// gives it.
///
/// grads: arrays of one dtype, float32, float64, float16 or bfloat16, without gaps in any order; norm_type: 2 or infinity.
#[pyfunction]
#[pyo3(signature = (grads, max_norm, norm_type=2.0, *, out=None, stream=None))]
pub(crate) fn clip_grad_norm<'py>(
    grads: &Object<'py>,
    max_norm: f64,
    norm_type: f64,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ClipGradNormDesc> = PlanCache::new();
    const OP: &str = "clip_grad_norm";
    let norm = norm(grads.py(), OP, norm_type)?;
    let (call, grads) = gradients(OP, grads, stream)?;
    let (dtype, lens) = (grads[0].dtype, grads.iter().map(|grad| grad.len()).collect());
    let updated = grads.into_iter().map(|grad| call.updated_dense(grad, dtype, None));
    let updated = updated.collect::<PyResult<Vec<Output<'py>>>>()?;
    let first = present(updated[0].destination());
    let desc = ClipGradNormDesc { grads: GradNormDesc { norm, dtype, lens }, max_norm: Real::new(max_norm) };
    let plan = call.plan(&PLANS, &desc)?;
    let form = Form::RowMajor(statistics_dtype(dtype), &[]);
    let outputs = [Some(call.output(("out", out), first, form)?), call.workspace(&plan, first)?];
    let outputs = outputs.into_iter().chain(updated.into_iter().map(Some)).collect();
    let mut found = call.run_many::<Listed, Listed>(Vec::new(), outputs, move |stream, _, outputs| {
        let mut outputs = outputs.into_iter();
        let (total_norm, workspace) = (present(outputs.next().flatten()), outputs.next().flatten());
        let grads = outputs.map(|grad| ClippedArgs { grad: present(grad) }).collect();
        Ok(plan.launch(stream, ClipGradNormArgs { total_norm, workspace, grads })?)
    })?;
    Ok(present(found.swap_remove(0)))
}
