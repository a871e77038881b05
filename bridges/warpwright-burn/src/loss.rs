//! Losses.

use burn::tensor::{Int, Tensor};
use warpwright::cross_entropy as kernels;
pub use warpwright::cross_entropy::Reduction;

use crate::call::Call;
use crate::error::Error;
use crate::graph::Written;

const OP: &str = "cross_entropy";

/// Which rows count, and how losses are joined; the default is the mean over all rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyOptions {
    /// How the losses of the rows are joined.
    pub reduction: Reduction,
    /// Rows with this target do not count; the default is -100.
    pub ignore_index: i64,
    /// How much of a target goes to all classes alike, from 0 to 1.
    pub label_smoothing: f64,
}

impl Default for CrossEntropyOptions {
    fn default() -> Self {
        let kernels::CrossEntropyOptions { reduction, ignore_index, label_smoothing, .. } =
            Default::default();
        Self { reduction, ignore_index, label_smoothing }
    }
}

/// The losses of rows of logits, as [`burn::nn::loss::CrossEntropyLoss`]: `logits` is `[rows, classes]`, `targets` `[rows]`, of i32 or i64.
/// The result is `[1]`, or `[rows]` without a reduction.
///
/// A target that is no class and not `ignore_index` gives NaN.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use warpwright_burn::loss::{CrossEntropyOptions, cross_entropy};
///
/// # fn main() -> Result<(), warpwright_burn::Error> {
/// let device = Device::flex();
/// let logits = Tensor::<2>::zeros([1, 4], &device);
/// let targets = Tensor::<1, Int>::from_data([2], &device);
/// let loss = cross_entropy(logits, targets, CrossEntropyOptions::default())?;
/// assert!((loss.into_scalar::<f32>() - 4f32.ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes do not fit, the smoothing is not from 0 to 1, the element type is none of f32, f64, f16 and bf16, or the device is not Flex.
pub fn cross_entropy(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    options: CrossEntropyOptions,
) -> Result<Tensor<1>, Error> {
    let CrossEntropyOptions { reduction, ignore_index, label_smoothing } = options;
    let options = kernels::CrossEntropyOptions { reduction, ignore_index, label_smoothing, loss: None };
    let rows = logits.dims()[0];
    if targets.dims() != [rows] {
        return Err(Error::shape(OP, "targets", format!("[{rows}]"), &targets.dims()));
    }
    let mut results =
        Call::new(OP).float("logits", logits)?.ints("targets", targets)?.run(move |stream, inputs| {
            let (logits, targets) = (inputs.of("logits"), inputs.of("targets"));
            let output = warpwright::cross_entropy(stream, logits, targets, options)?;
            Ok(Written::of(OP, &[&output.loss])?.with(move |stream, inputs, dloss| {
                let (logits, targets) = (inputs.of("logits"), inputs.of("targets"));
                let dlogits =
                    warpwright::cross_entropy_backward(stream, logits, targets, &output, dloss, options)?;
                Ok(vec![("logits", dlogits)])
            }))
        })?;
    Ok(results.next())
}
