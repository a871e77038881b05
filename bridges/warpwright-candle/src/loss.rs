//! Losses, with the names and arguments of `candle_nn::loss` where candle has them.

use candle_core::{Result, Tensor};
/// The element types that [`CrossEntropyOptions`] names.
pub use warpwright::DType;
use warpwright::cross_entropy::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyBackwardDesc, CrossEntropyDesc,
};
pub use warpwright::cross_entropy::{CrossEntropyOptions, Reduction};
use warpwright::plan::{PlanCache, Real};

use crate::array::{Array, Made, Spec};
use crate::call::{Call, only, present};
use crate::graph::record;

const OP: &str = "cross_entropy";

/// The mean of the losses of rows of logits, as [`candle_nn::loss::cross_entropy`]: `inp` is `[rows, classes]`, `target` `[rows]`, of
/// u32, i32 or i64.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use warpwright_candle::loss;
///
/// # fn main() -> candle_core::Result<()> {
/// let logits = Tensor::zeros((1, 4), DType::F32, &Device::Cpu)?;
/// let loss = loss::cross_entropy(&logits, &Tensor::new(&[2u32], &Device::Cpu)?)?;
/// assert!((loss.to_scalar::<f32>()? - 4f32.ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes, element types or devices do not fit.
pub fn cross_entropy(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    cross_entropy_with(inp, target, CrossEntropyOptions::default())
}

/// [`cross_entropy`] with a target that does not count, smoothed labels, or another reduction; without one the result is `[rows]`.
///
/// `loss` of the options is the type of the result: of half types f32 is without rounding and without a copy of the logits.
///
/// A target that is no class and not `ignore_index` gives NaN. Of u32, numbers from 2^31 on count as those less 2^32.
///
/// # Errors
/// As [`cross_entropy`], and if the smoothing is not from 0 to 1.
pub fn cross_entropy_with(inp: &Tensor, target: &Tensor, options: CrossEntropyOptions) -> Result<Tensor> {
    static PLANS: PlanCache<CrossEntropyDesc> = PlanCache::new();
    let call = Call::new(OP, ("inp", inp))?;
    let &[rows, classes] = inp.dims() else {
        return Err(call.refuse_shape(("inp", inp), "[rows, classes]"));
    };
    let logits = call.row_major(("inp", inp))?;
    let targets = call.integers(("target", target), &[rows])?;
    let CrossEntropyOptions { reduction, ignore_index, label_smoothing, loss } = options;
    let (dtype, label_smoothing, loss) =
        (logits.dtype, Real::new(label_smoothing), loss.unwrap_or(logits.dtype));
    let plain = CrossEntropyDesc::new(dtype, targets.dtype, [rows, classes]);
    let desc = CrossEntropyDesc { loss, ignore_index, label_smoothing, reduction, ..plain };
    let plan = call.plan(&PLANS, &desc)?;
    let wide = |shape: &[usize]| Some(Spec::new(dtype.accumulator(), shape));
    let shape: &[usize] = if reduction == Reduction::None { &[rows] } else { &[] };
    let count = if reduction == Reduction::Mean { wide(&[1]) } else { None };
    let outputs =
        [Some(Spec::new(desc.loss, shape)), wide(&[rows]), wide(&[rows]), count, call.workspace(&plan)];
    let [loss, lse, nll, count, _] =
        call.run([Some(&logits), Some(&targets)], outputs, |stream, [logits, target], outputs| {
            let [loss, lse, nll, count, workspace] = outputs;
            let (logits, target) = (present(logits), present(target));
            let (loss, lse, nll) = (present(loss), present(lse), present(nll));
            Ok(plan.launch(stream, CrossEntropyArgs { logits, target, loss, lse, nll, count, workspace })?)
        })?;
    let saved = Saved {
        logits,
        targets,
        lse: present(lse).into_array()?,
        nll: present(nll).into_array()?,
        count: count.map(Made::into_array).transpose()?,
    };
    record(OP, &[("inp", inp)], present(loss), move |_, dloss| Ok(vec![Some(saved.gradient(&desc, dloss)?)]))
}

/// Inputs of the backward pass.
struct Saved {
    logits: Array,
    targets: Array,
    lse: Array,
    nll: Array,
    count: Option<Array>,
}

impl Saved {
    fn gradient(&self, forward: &CrossEntropyDesc, dloss: &Tensor) -> Result<Tensor> {
        static PLANS: PlanCache<CrossEntropyBackwardDesc> = PlanCache::new();
        let call = Call::new(OP, ("dloss", dloss))?;
        let dloss = call.row_major(("dloss", dloss))?;
        let plan = call.plan(&PLANS, &CrossEntropyBackwardDesc { forward: forward.clone() })?;
        let Self { logits, targets, lse, nll, count } = self;
        let inputs = [Some(logits), Some(targets), Some(lse), Some(nll), count.as_ref(), Some(&dloss)];
        let dlogits = call.run(inputs, [Some(Spec::like(logits))], |stream, inputs, [dlogits]| {
            let [logits, target, lse, nll, count, dloss] = inputs;
            let args = CrossEntropyBackwardArgs {
                logits,
                target: present(target),
                lse: present(lse),
                nll: present(nll),
                dloss: present(dloss),
                count,
                dlogits: present(dlogits),
            };
            Ok(plan.launch(stream, args)?)
        })?;
        only(dlogits).into_tensor()
    }
}
