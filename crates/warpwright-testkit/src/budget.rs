//! How far from the f64 reference a result may be: one table, from an error model.
//!
//! A kernel reads exact inputs, computes in its accumulate type and rounds once to the type of the tensor.
//!
//! - *Norm-wise*: `|out - reference| / |reference|` over all finite elements. Rounding alone costs at most half an eps
//!   and about `0.3 eps` in the mean (1.7e-3 for bf16, 2.1e-4 for f16); the rest is for the accumulate type.
//! - *Elementwise*: the largest `|out - reference| / (eps * scale)`, where `scale` is the natural scale that the
//!   reference states for the element. The 16-bit types get half an eps for the rounding of the result plus what the
//!   approximations that these types allow (2^-11 for bf16, 2^-14 for f16, both relative) add. Types that compute in themselves get
//!   half an eps for each operation on the longest path from argument to result.

use warpwright_ptx::DType;

/// The bounds of one result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Norm-wise, relative.
    pub norm: f64,
    /// Elementwise, in units of `eps * scale`.
    pub element: f64,
    /// The norm-wise bound if every element has the largest rounding error of the type at once.
    pub norm_of_one: f64,
}

impl Budget {
    /// That of results that are all alike: their rounding errors are too, and do not average. Never below that of others, whose sums may
    /// have many terms.
    pub fn of_alike(self) -> Self {
        Self { norm: self.norm.max(self.norm_of_one), ..self }
    }

    /// The norm-wise bound for a mean over `spread` elements. The rounding errors of many elements average out to `norm`;
    /// a few may all be near the largest.
    pub fn norm_over(self, spread: f64) -> f64 {
        if spread < MANY { self.norm.max(self.norm_of_one) } else { self.norm }
    }
}

/// Elements from which the mean square of rounding errors is within a fifth of its expectation, three times in its
/// standard deviation of `0.9 / sqrt(n)`.
const MANY: f64 = 180.0;

/// Roundings between argument and result of an elementwise function in its own precision: the argument of the
/// exponential, the exponential, the quotient and the products around them, an operation of f64 counting double since
/// its exponential and reciprocal are built from operations of the same precision.
const F32_ROUNDINGS: f64 = 8.0;
const F64_ROUNDINGS: f64 = 16.0;

/// The budget of elementwise functions with results of type `dtype`.
pub fn elementwise(dtype: DType) -> Budget {
    let (norm, element) = match dtype {
        DType::F64 => (1e-13, 0.5 * F64_ROUNDINGS),
        DType::F32 => (1e-6, 0.5 * F32_ROUNDINGS),
        DType::BF16 => (2e-3, 0.5 + approximation(dtype, 11)),
        DType::F16 => (3e-4, 0.5 + approximation(dtype, 14)),
        _ => return EXACT,
    };
    Budget { norm, element, norm_of_one: element * dtype.epsilon().unwrap_or(0.0) }
}

/// Roundings between argument and result of a normalisation: the distance from the mean, mean and mean square (each the
/// sum of a few terms in a thread and a tree over the others, counted as four), quotient, root, reciprocal and the
/// products and sums that make the result.
const NORMALISED_ROUNDINGS: f64 = 16.0;

/// The budget of normalisations with results of type `dtype`.
pub fn normalised(dtype: DType) -> Budget {
    let f32_rounding = f64::from(f32::EPSILON) / dtype.epsilon().unwrap_or(1.0);
    let (norm, element) = match dtype {
        DType::F64 => (1e-13, 0.5 * NORMALISED_ROUNDINGS),
        DType::F32 => (1e-6, 0.5 * NORMALISED_ROUNDINGS),
        DType::BF16 => (2e-3, 0.5 + 0.5 * NORMALISED_ROUNDINGS * f32_rounding),
        DType::F16 => (3e-4, 0.5 + 0.5 * NORMALISED_ROUNDINGS * f32_rounding),
        _ => return EXACT,
    };
    Budget { norm, element, norm_of_one: element * dtype.epsilon().unwrap_or(0.0) }
}

/// That of sums of `k` products of 8-bit floats, where `table` is that of results: tensor cores of sm_90 keep 14 bits of the sums of 128
/// products, or of all where they are `fast`, and cut off the others, at each of their steps of 32. Norm-wise that is the root of the
/// errors of as many sums.
pub fn eight_bit_products(table: Budget, dtype: DType, fast: bool, k: usize) -> Budget {
    let cut = 2f64.powi(-13);
    let steps = if fast { (k as f64 / 32.0).max(4.0) } else { 4.0 };
    let element = table.element + cut * steps / dtype.epsilon().unwrap_or(1.0);
    let norm = table.norm + cut * steps.sqrt();
    Budget { norm, element, norm_of_one: element * dtype.epsilon().unwrap_or(0.0) }
}

/// That of units of two sums whose table is `table`, which may be rounded to the type of the result before: twice half an eps more.
pub fn gated(table: Budget, dtype: DType) -> Budget {
    let element = table.element + 1.0;
    Budget { norm: 2.0 * table.norm, element, norm_of_one: element * dtype.epsilon().unwrap_or(0.0) }
}

/// That of sums of products with weights that are rounded to the type of the result first: half an eps more of each, and errors of the
/// same size that are independent of those of the results.
pub fn rounded_weights(table: Budget, dtype: DType) -> Budget {
    let element = table.element + 0.5;
    let norm = table.norm * std::f64::consts::SQRT_2;
    Budget { norm, element, norm_of_one: element * dtype.epsilon().unwrap_or(0.0) }
}

/// Roundings between argument and result of attention in its own precision: the product, the score, the exponential and
/// the sums over keys, each counted as the few of a thread and a tree.
const ATTENTION_ROUNDINGS: f64 = 32.0;

/// The budget of attention and its gradients with results of type `dtype`; `scores` is how much
/// greater they are than those of standard normal queries and keys, and with them the errors of their exponentials.
///
/// Half types may round each probability, too, and the gradient of each score: norm-wise within 1.5 times the errors of
/// PyTorch's kernels, which do so; half an eps of the magnitudes of a sum elementwise, and as much again in gradients for
/// the rounded result that they begin with.
pub fn attention(dtype: DType, scores: f64) -> Budget {
    let f32_rounding = f64::from(f32::EPSILON) / dtype.epsilon().unwrap_or(1.0);
    let (norm, element) = match dtype {
        DType::F64 => (1e-13 * scores, 0.5 * ATTENTION_ROUNDINGS * scores),
        DType::F32 => (1e-6 * scores, 0.5 * ATTENTION_ROUNDINGS * scores),
        DType::BF16 => (3.5e-3, 2.0 + ATTENTION_ROUNDINGS * f32_rounding * scores),
        DType::F16 => (4.5e-4, 2.0 + ATTENTION_ROUNDINGS * f32_rounding * scores),
        _ => return EXACT,
    };
    Budget { norm, element, norm_of_one: element * dtype.epsilon().unwrap_or(0.0) }
}

/// Codes and copies: nothing may differ.
pub const EXACT: Budget = Budget { norm: 0.0, element: 0.0, norm_of_one: 0.0 };

/// A relative error of `2^-bits` in units of the type's eps.
fn approximation(dtype: DType, bits: i32) -> f64 {
    2f64.powi(-bits) / dtype.epsilon().unwrap_or(1.0)
}

/// `||out - f64|| / ||f64||` of PyTorch's f32 activations on standard normal input; ours stay below 1.5 times that.
pub const PYTORCH_F32_FORWARD: f64 = 4e-8;
/// The same for their gradients.
pub const PYTORCH_F32_BACKWARD: f64 = 5e-8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounding alone must fit, doubled it must not: otherwise the table would accept a second rounding of the result.
    #[test]
    fn half_budgets_admit_one_rounding_only() {
        for dtype in [DType::BF16, DType::F16] {
            let element = elementwise(dtype).element;
            assert!((0.5..0.6).contains(&element), "{dtype}: {element}");
        }
    }

    /// Results that are alike may be as wrong as others, and as one alone.
    #[test]
    fn alike_results_have_the_wider_bound() {
        for table in DType::FLOATS.map(elementwise) {
            let alike = table.of_alike();
            assert!(alike.norm == table.norm || alike.norm == table.norm_of_one, "{alike:?}");
            assert!(alike.norm >= table.norm && alike.norm >= table.norm_of_one, "{alike:?}");
        }
    }
}
