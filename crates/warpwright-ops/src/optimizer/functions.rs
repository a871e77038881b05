//! Free functions: take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::clip::{
    ClipGradNormArgs, ClipGradNormDesc, ClippedArgs, GradArgs, GradNormArgs, GradNormDesc, Norm,
};
use super::{Adam, OptimizerArgs, OptimizerDesc, ParameterArgs, Rule, Sgd};
use crate::Error;
use crate::plan::{PlanCache, Real};

/// A parameter of [`adamw`] and [`adam`] with its gradient and its state, which is zeros before the first step.
#[derive(Debug)]
pub struct AdamParameter<'a> {
    /// The parameter.
    pub param: &'a mut Tensor,
    /// Its gradient.
    pub grad: &'a Tensor,
    /// The first moment.
    pub exp_avg: &'a mut Tensor,
    /// The second moment.
    pub exp_avg_sq: &'a mut Tensor,
    /// The largest second moment, with [`Adam::amsgrad`].
    pub max_exp_avg_sq: Option<&'a mut Tensor>,
    /// The parameter in f32.
    pub master: Option<&'a mut Tensor>,
}

/// A parameter of [`adamw8bit`] and [`adam8bit`] with its gradient and its state, all of which is zeros before the first step.
#[derive(Debug)]
pub struct Adam8bitParameter<'a> {
    /// The parameter.
    pub param: &'a mut Tensor,
    /// Its gradient.
    pub grad: &'a Tensor,
    /// The first moment: codes, u8, or f32 without `absmax`.
    pub state1: &'a mut Tensor,
    /// The second moment, of the same type.
    pub state2: &'a mut Tensor,
    /// The largest magnitudes of blocks of [`BLOCK`](super::BLOCK) elements of either, f32 `[ceil(len / 256)]`.
    pub absmax: Option<[&'a mut Tensor; 2]>,
    /// The parameter in f32.
    pub master: Option<&'a mut Tensor>,
}

/// A parameter of [`sgd`] with its gradient and its state.
#[derive(Debug)]
pub struct SgdParameter<'a> {
    /// The parameter.
    pub param: &'a mut Tensor,
    /// Its gradient.
    pub grad: &'a Tensor,
    /// The momentum, if there is one; zeros before the first step.
    pub momentum_buffer: Option<&'a mut Tensor>,
    /// The parameter in f32.
    pub master: Option<&'a mut Tensor>,
}

impl<'a> From<AdamParameter<'a>> for ParameterArgs<'a> {
    fn from(x: AdamParameter<'a>) -> Self {
        Self {
            grad: x.grad.as_ref(),
            param: x.param.as_mut(),
            first: Some(x.exp_avg.as_mut()),
            second: Some(x.exp_avg_sq.as_mut()),
            largest: x.max_exp_avg_sq.map(Tensor::as_mut),
            master: x.master.map(Tensor::as_mut),
            first_absmax: None,
            second_absmax: None,
        }
    }
}

impl<'a> From<Adam8bitParameter<'a>> for ParameterArgs<'a> {
    fn from(x: Adam8bitParameter<'a>) -> Self {
        let [first_absmax, second_absmax] = match x.absmax {
            Some(absmax) => absmax.map(|absmax| Some(absmax.as_mut())),
            None => [None, None],
        };
        Self {
            grad: x.grad.as_ref(),
            param: x.param.as_mut(),
            first: Some(x.state1.as_mut()),
            second: Some(x.state2.as_mut()),
            largest: None,
            master: x.master.map(Tensor::as_mut),
            first_absmax,
            second_absmax,
        }
    }
}

impl<'a> From<SgdParameter<'a>> for ParameterArgs<'a> {
    fn from(x: SgdParameter<'a>) -> Self {
        Self {
            grad: x.grad.as_ref(),
            param: x.param.as_mut(),
            first: x.momentum_buffer.map(Tensor::as_mut),
            second: None,
            largest: None,
            master: x.master.map(Tensor::as_mut),
            first_absmax: None,
            second_absmax: None,
        }
    }
}

/// The gradients of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepOptions<'a> {
    /// Parameters move up the gradient.
    pub maximize: bool,
    /// Gradients are divided by this, one element of f32.
    pub grad_scale: Option<&'a Tensor>,
    /// Nothing moves where this is not 0, one element of f32.
    pub found_inf: Option<&'a Tensor>,
}

/// A step of `rule`, of which `eight_bit` says which parameters have moments in 8 bits, if any can.
fn launch<'a>(
    stream: &Stream,
    (rule, eight_bit): (Rule, Vec<bool>),
    parameters: Vec<impl Into<ParameterArgs<'a>>>,
    step: &'a mut Tensor,
    lr: &'a Tensor,
    options: StepOptions<'a>,
) -> Result<(), Error> {
    static PLANS: PlanCache<OptimizerDesc> = PlanCache::new();
    let parameters: Vec<ParameterArgs<'_>> = parameters.into_iter().map(Into::into).collect();
    let first = parameters.first();
    let desc = OptimizerDesc {
        rule,
        maximize: options.maximize,
        dtype: first.map_or(DType::F32, |parameter| parameter.param.dtype()),
        grad_dtype: first.map_or(DType::F32, |parameter| parameter.grad.dtype()),
        master: first.is_some_and(|parameter| parameter.master.is_some()),
        grad_scale: options.grad_scale.is_some(),
        found_inf: options.found_inf.is_some(),
        lens: parameters.iter().map(|parameter| parameter.param.len()).collect(),
        eight_bit,
    };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut workspace = plan.workspace(stream)?;
    let args = OptimizerArgs {
        lr: lr.as_ref(),
        step: step.as_mut(),
        grad_scale: options.grad_scale.map(Tensor::as_ref),
        found_inf: options.found_inf.map(Tensor::as_ref),
        workspace: workspace.as_mut().map(Tensor::as_mut),
        parameters,
    };
    Ok(plan.launch(stream, args)?)
}

/// A step of AdamW, as `torch.optim.AdamW`; see the [module](crate::optimizer).
///
/// Parameters have any shapes, and the other tensors of each the same number of elements. All are of one type, f32, f64, f16 or bf16, their gradients of one type, that or f32; moments are f32, or f64 with f64. `step` is one
/// element of f32, the number of steps made, to which 1 is added; `lr` one of f32, or f64 with f64. Nothing is read back.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::optimizer::{Adam, AdamParameter, StepOptions};
/// use warpwright::{DType, Device, Tensor, adamw};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut param = Tensor::from_slice(&device, &[1.0f32, -2.0], &[2])?;
/// let grad = Tensor::from_slice(&device, &[0.5f32, -3.0], &[2])?;
/// let mut exp_avg = Tensor::zeros(&device, DType::F32, &[2])?;
/// let mut exp_avg_sq = Tensor::zeros(&device, DType::F32, &[2])?;
/// let mut step = Tensor::zeros(&device, DType::F32, &[1])?;
/// let lr = Tensor::from_slice(&device, &[0.1f32], &[1])?;
/// let parameter = AdamParameter {
///     param: &mut param,
///     grad: &grad,
///     exp_avg: &mut exp_avg,
///     exp_avg_sq: &mut exp_avg_sq,
///     max_exp_avg_sq: None,
///     master: None,
/// };
/// adamw(&stream, Adam::ADAMW, vec![parameter], &mut step, &lr, StepOptions::default())?;
/// // The first step is as long as the learning rate, whatever the gradient; 0.1 % of the parameter decays.
/// let moved = param.to_vec_on::<f32>(&stream)?;
/// assert!((moved[0] - 0.899).abs() < 1e-5 && (moved[1] + 1.898).abs() < 1e-5);
/// assert_eq!(step.to_vec_on::<f32>(&stream)?, [1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if a number is out of its range or the types are none of those. [`Error::Runtime`] if a tensor of a parameter is not of its length, tensors
/// overlap, or memory runs out.
pub fn adamw(
    stream: &Stream,
    options: Adam,
    parameters: Vec<AdamParameter<'_>>,
    step: &mut Tensor,
    lr: &Tensor,
    gradients: StepOptions<'_>,
) -> Result<(), Error> {
    let rule = Rule::Adam(Adam { decoupled: true, ..options });
    launch(stream, (rule, Vec::new()), parameters, step, lr, gradients)
}

/// A step of Adam, whose weight decay is part of the gradient, as `torch.optim.Adam`. Arguments, their shapes and types are as for [`adamw`],
/// with [`Adam::ADAM`] as the options of PyTorch.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::optimizer::{Adam, AdamParameter, StepOptions};
/// use warpwright::{DType, Device, Tensor, adam};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut param = Tensor::from_slice(&device, &[1.0f32, -2.0], &[2])?;
/// let grad = Tensor::from_slice(&device, &[0.5f32, -4.0], &[2])?;
/// let mut exp_avg = Tensor::zeros(&device, DType::F32, &[2])?;
/// let mut exp_avg_sq = Tensor::zeros(&device, DType::F32, &[2])?;
/// let mut step = Tensor::zeros(&device, DType::F32, &[1])?;
/// let lr = Tensor::from_slice(&device, &[0.1f32], &[1])?;
/// let parameter = AdamParameter {
///     param: &mut param,
///     grad: &grad,
///     exp_avg: &mut exp_avg,
///     exp_avg_sq: &mut exp_avg_sq,
///     max_exp_avg_sq: None,
///     master: None,
/// };
/// adam(&stream, Adam::ADAM, vec![parameter], &mut step, &lr, StepOptions::default())?;
/// // The first step is as long as the learning rate, whatever the gradient.
/// let moved = param.to_vec_on::<f32>(&stream)?;
/// assert!((moved[0] - 0.9).abs() < 1e-5 && (moved[1] + 1.9).abs() < 1e-5);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`adamw`].
pub fn adam(
    stream: &Stream,
    options: Adam,
    parameters: Vec<AdamParameter<'_>>,
    step: &mut Tensor,
    lr: &Tensor,
    gradients: StepOptions<'_>,
) -> Result<(), Error> {
    let rule = Rule::Adam(Adam { decoupled: false, ..options });
    launch(stream, (rule, Vec::new()), parameters, step, lr, gradients)
}

/// Which parameters have moments in 8 bits.
fn eight_bit(parameters: &[Adam8bitParameter<'_>]) -> Vec<bool> {
    parameters.iter().map(|parameter| parameter.absmax.is_some()).collect()
}

/// A step of AdamW with moments in 8 bits, as `bitsandbytes.optim.AdamW8bit`; see the [module](crate::optimizer).
///
/// Parameters are f32, f16 or bf16, their gradients of one type, that or f32. Those with `absmax` have moments in codes of u8, the others in f32, which
/// bitsandbytes takes for parameters below 4096 elements; shapes, scalars and the rest are as for [`adamw`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::optimizer::{Adam, Adam8bitParameter, StepOptions};
/// use warpwright::{DType, Device, Tensor, adamw8bit};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut param = Tensor::from_slice(&device, &[1.0f32, -2.0], &[2])?;
/// let grad = Tensor::from_slice(&device, &[0.5f32, -3.0], &[2])?;
/// let mut state1 = Tensor::zeros(&device, DType::U8, &[2])?;
/// let mut state2 = Tensor::zeros(&device, DType::U8, &[2])?;
/// let mut absmax1 = Tensor::zeros(&device, DType::F32, &[1])?;
/// let mut absmax2 = Tensor::zeros(&device, DType::F32, &[1])?;
/// let mut step = Tensor::zeros(&device, DType::F32, &[1])?;
/// let lr = Tensor::from_slice(&device, &[0.1f32], &[1])?;
/// let parameter = Adam8bitParameter {
///     param: &mut param,
///     grad: &grad,
///     state1: &mut state1,
///     state2: &mut state2,
///     absmax: Some([&mut absmax1, &mut absmax2]),
///     master: None,
/// };
/// adamw8bit(&stream, Adam::ADAMW, vec![parameter], &mut step, &lr, StepOptions::default())?;
/// let moved = param.to_vec_on::<f32>(&stream)?;
/// assert!((moved[0] - 0.899).abs() < 1e-5 && (moved[1] + 1.898).abs() < 1e-5);
/// // The largest magnitude is a tenth of the gradient.
/// assert!((absmax1.to_vec_on::<f32>(&stream)?[0] - 0.3).abs() < 1e-6);
/// assert_eq!(state1.to_vec_on::<u8>(&stream)?[1], 0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`adamw`]; [`Error::Plan`] with [`Adam::amsgrad`] and for f64, too.
pub fn adamw8bit(
    stream: &Stream,
    options: Adam,
    parameters: Vec<Adam8bitParameter<'_>>,
    step: &mut Tensor,
    lr: &Tensor,
    gradients: StepOptions<'_>,
) -> Result<(), Error> {
    let rule = Rule::Adam(Adam { decoupled: true, ..options });
    launch(stream, (rule, eight_bit(&parameters)), parameters, step, lr, gradients)
}

/// A step of Adam with moments in 8 bits, whose weight decay is part of the gradient. Arguments, their shapes and types are as for [`adamw8bit`].
///
/// `bitsandbytes.optim.Adam8bit` decays weights as AdamW does: it is [`adamw8bit`] with another weight decay where none is given.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::optimizer::{Adam, Adam8bitParameter, StepOptions};
/// use warpwright::{DType, Device, Tensor, adam8bit};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut param = Tensor::from_slice(&device, &[1.0f32], &[1])?;
/// let grad = Tensor::from_slice(&device, &[0.5f32], &[1])?;
/// let mut state1 = Tensor::zeros(&device, DType::F32, &[1])?;
/// let mut state2 = Tensor::zeros(&device, DType::F32, &[1])?;
/// let mut step = Tensor::zeros(&device, DType::F32, &[1])?;
/// let lr = Tensor::from_slice(&device, &[0.1f32], &[1])?;
/// let (state1, state2) = (&mut state1, &mut state2);
/// let parameter =
///     Adam8bitParameter { param: &mut param, grad: &grad, state1, state2, absmax: None, master: None };
/// adam8bit(&stream, Adam::ADAM, vec![parameter], &mut step, &lr, StepOptions::default())?;
/// assert!((param.to_vec_on::<f32>(&stream)?[0] - 0.9).abs() < 1e-5);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`adamw8bit`].
pub fn adam8bit(
    stream: &Stream,
    options: Adam,
    parameters: Vec<Adam8bitParameter<'_>>,
    step: &mut Tensor,
    lr: &Tensor,
    gradients: StepOptions<'_>,
) -> Result<(), Error> {
    let rule = Rule::Adam(Adam { decoupled: false, ..options });
    launch(stream, (rule, eight_bit(&parameters)), parameters, step, lr, gradients)
}

/// A step of stochastic gradient descent, as `torch.optim.SGD`. Types and scalars as for [`adamw`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::optimizer::{Sgd, SgdParameter, StepOptions};
/// use warpwright::{DType, Device, Tensor, sgd};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut param = Tensor::from_slice(&device, &[1.0f32, -2.0], &[2])?;
/// let grad = Tensor::from_slice(&device, &[0.5f32, -3.0], &[2])?;
/// let mut step = Tensor::zeros(&device, DType::F32, &[1])?;
/// let lr = Tensor::from_slice(&device, &[0.5f32], &[1])?;
/// let parameter = SgdParameter { param: &mut param, grad: &grad, momentum_buffer: None, master: None };
/// sgd(&stream, Sgd::PLAIN, vec![parameter], &mut step, &lr, StepOptions::default())?;
/// assert_eq!(param.to_vec_on::<f32>(&stream)?, [0.75, -0.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`adamw`].
pub fn sgd(
    stream: &Stream,
    options: Sgd,
    parameters: Vec<SgdParameter<'_>>,
    step: &mut Tensor,
    lr: &Tensor,
    gradients: StepOptions<'_>,
) -> Result<(), Error> {
    launch(stream, (Rule::Sgd(options), Vec::new()), parameters, step, lr, gradients)
}

/// The norm of a list of gradients as a descriptor.
fn describe<'a>(norm: Norm, grads: impl Iterator<Item = &'a Tensor> + Clone) -> GradNormDesc {
    let dtype = grads.clone().next().map_or(DType::F32, Tensor::dtype);
    GradNormDesc { norm, dtype, lens: grads.map(Tensor::len).collect() }
}

/// The norm of all `grads` together, as `torch.nn.utils.get_total_norm`; see the [module](crate::optimizer).
///
/// Gradients have any shapes and one type, f32, f64, f16 or bf16; the result is one element of f32, or f64 of f64, which stays on the device.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::optimizer::Norm;
/// use warpwright::{Device, Tensor, grad_norm};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let a = Tensor::from_slice(&device, &[1.0f32, 2.0], &[2])?;
/// let b = Tensor::from_slice(&device, &[-2.0f32], &[1])?;
/// assert_eq!(grad_norm(&stream, &[&a, &b], Norm::L2)?.to_vec_on::<f32>(&stream)?, [3.0]);
/// assert_eq!(grad_norm(&stream, &[&a, &b], Norm::Infinity)?.to_vec_on::<f32>(&stream)?, [2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the element type is none of those. [`Error::Runtime`] if types differ or memory runs out.
pub fn grad_norm(stream: &Stream, grads: &[&Tensor], norm: Norm) -> Result<Tensor, Error> {
    static PLANS: PlanCache<GradNormDesc> = PlanCache::new();
    let desc = describe(norm, grads.iter().copied());
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut total_norm = Tensor::empty_on(stream, desc.dtype.accumulator(), &[])?;
    let mut workspace = plan.workspace(stream)?;
    let args = GradNormArgs {
        total_norm: total_norm.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
        grads: grads.iter().map(|grad| GradArgs { grad: grad.as_ref() }).collect(),
    };
    plan.launch(stream, args)?;
    Ok(total_norm)
}

/// Multiplies `grads` by `max_norm / (norm + 1e-6)` where that is below 1, as `torch.nn.utils.clip_grad_norm_`; the norm before, as
/// [`grad_norm`] gives it. Shapes and types are as for [`grad_norm`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::optimizer::Norm;
/// use warpwright::{Device, Tensor, clip_grad_norm};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut a = Tensor::from_slice(&device, &[3.0f32, 0.0], &[2])?;
/// let mut b = Tensor::from_slice(&device, &[-4.0f32], &[1])?;
/// let norm = clip_grad_norm(&stream, &mut [&mut a, &mut b], 1.0, Norm::L2)?;
/// assert_eq!(norm.to_vec_on::<f32>(&stream)?, [5.0]);
/// assert!((a.to_vec_on::<f32>(&stream)?[0] - 0.6).abs() < 1e-6);
/// assert!((b.to_vec_on::<f32>(&stream)?[0] + 0.8).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`grad_norm`]; [`Error::Plan`] if `max_norm` is negative or NaN.
pub fn clip_grad_norm(
    stream: &Stream,
    grads: &mut [&mut Tensor],
    max_norm: f64,
    norm: Norm,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<ClipGradNormDesc> = PlanCache::new();
    let desc = describe(norm, grads.iter().map(|grad| &**grad));
    let wide = desc.dtype.accumulator();
    let desc = ClipGradNormDesc { grads: desc, max_norm: Real::new(max_norm) };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut total_norm = Tensor::empty_on(stream, wide, &[])?;
    let mut workspace = plan.workspace(stream)?;
    let args = ClipGradNormArgs {
        total_norm: total_norm.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
        grads: grads.iter_mut().map(|grad| ClippedArgs { grad: grad.as_mut() }).collect(),
    };
    plan.launch(stream, args)?;
    Ok(total_norm)
}
