//! The distance of a result from its reference.

use warpwright_ptx::DType;

use crate::budget::Budget;
use crate::storage;

/// The value that one element should have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// The value in f64.
    pub value: f64,
    /// Its natural scale: `eps * scale` is the unit of the elementwise error.
    pub scale: f64,
    /// Absolute error that is forgiven because an intermediate result underflows in the accumulate type.
    pub underflow: f64,
}

impl Expected {
    /// A value whose natural scale is its own magnitude.
    pub fn exactly(value: f64) -> Self {
        Self { value, scale: value.abs(), underflow: 0.0 }
    }
}

impl Expected {
    /// Values with their natural scales.
    pub fn all(values: &[(f64, f64)]) -> Vec<Self> {
        values.iter().copied().map(Self::from).collect()
    }
}

/// A value and its natural scale.
impl From<(f64, f64)> for Expected {
    fn from((value, scale): (f64, f64)) -> Self {
        Self { value, scale, underflow: 0.0 }
    }
}

/// How one output compares with its reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// `||out - reference|| / ||reference||` over the elements that are finite in both.
    pub norm: f64,
    /// The largest error in units of `eps * scale`.
    pub element: f64,
    /// The element with that error.
    pub worst: Option<usize>,
    /// How many elements the norm-wise error is a mean over: `(sum r^2)^2 / sum r^4`, which is the length if all elements
    /// are of a size and 1 if one of them outweighs the rest.
    pub spread: f64,
    /// The first element that disagrees in kind: NaN or an infinity in one and not in the other, or not written at all.
    pub disagreement: Option<Disagreement>,
}

/// An element that is not merely inaccurate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disagreement {
    /// Its index.
    pub index: usize,
    /// The value that was computed.
    pub got: f64,
    /// The value of the reference, rounded to the type.
    pub want: f64,
    /// Whether the element still holds what it was filled with before the run.
    pub unwritten: bool,
}

impl Comparison {
    /// Whether it is within `budget`.
    pub fn within(&self, budget: Budget) -> bool {
        self.disagreement.is_none()
            && self.norm <= budget.norm_over(self.spread)
            && self.element <= budget.element
    }

    /// The larger of two, for operations with several outputs.
    pub fn merge(self, other: Self) -> Self {
        let worse = if other.element > self.element { &other } else { &self };
        Self {
            norm: self.norm.max(other.norm),
            element: worse.element,
            worst: worse.worst,
            // That of the output with the larger error.
            spread: if other.norm > self.norm { other.spread } else { self.spread },
            disagreement: self.disagreement.or(other.disagreement),
        }
    }
}

/// Compares `out`, read back from a tensor of type `dtype`, with `expected`. `poison` is the value that every element
/// had before the run.
pub fn compare(dtype: DType, out: &[f64], expected: &[Expected], poison: f64) -> Comparison {
    let eps = dtype.epsilon().unwrap_or(1.0);
    let largest = storage::largest(dtype).unwrap_or(f64::MAX);
    let smallest = storage::smallest_normal(dtype).unwrap_or(1.0);
    let mut c = Comparison::default();
    // Scaled so that the squares of f64 values stay finite.
    let unit = expected
        .iter()
        .map(|e| e.value.abs())
        .filter(|v| v.is_finite())
        .fold(0.0, f64::max)
        .max(f64::MIN_POSITIVE);
    let (mut difference, mut total, mut fourth) = (0.0, 0.0, 0.0);
    for (index, (&got, e)) in out.iter().zip(expected).enumerate() {
        let want = storage::round(dtype, e.value);
        let overflowed = want.is_infinite() || got.is_infinite();
        if got.is_nan() != want.is_nan() || overflowed || got == poison {
            // A value within a rounding of the largest number may become infinite, or not.
            let borderline = e.value.is_finite()
                && got.abs() >= largest
                && got.signum() == e.value.signum()
                && e.value.abs() >= largest * (1.0 - 2.0 * eps);
            let bad = got == poison && want != poison
                || !(got == want || got.is_nan() && want.is_nan() || borderline);
            if bad && c.disagreement.is_none() {
                c.disagreement = Some(Disagreement { index, got, want, unwritten: got == poison });
            }
            continue;
        }
        if got.is_nan() {
            continue;
        }
        let error = ((got - e.value).abs() - e.underflow).max(0.0);
        difference += (error / unit).powi(2);
        total += (e.value / unit).powi(2);
        fourth += (e.value / unit).powi(4);
        // Below the smallest normal number the spacing stays what it is there.
        let element = error / (eps * e.scale.max(smallest));
        if element > c.element || element.is_nan() {
            (c.element, c.worst) = (element, Some(index));
        }
    }
    if out.len() != expected.len() && c.disagreement.is_none() {
        c.disagreement = Some(Disagreement {
            index: out.len().min(expected.len()),
            got: f64::NAN,
            want: f64::NAN,
            unwritten: true,
        });
    }
    // Where everything is denormal the spacing, not the relative error, is the limit.
    let floor = (smallest / unit).powi(2) * out.len() as f64;
    c.spread = if fourth > 0.0 { total * total / fourth } else { 0.0 };
    c.norm = if difference == 0.0 { 0.0 } else { (difference / total.max(floor)).sqrt() };
    c
}

/// The largest distance between `derivative` and central differences of `f` over `points`, in units of the larger of 1
/// and the derivative; points where `f` has a kink within reach must be left out by the caller.
pub fn gradient_error(f: impl Fn(f64) -> f64, derivative: impl Fn(f64) -> f64, points: &[f64]) -> f64 {
    points
        .iter()
        .map(|&x| {
            // Fourth order: truncation near 1e-12 and rounding near 1e-12 for functions of order 1.
            let h = 1e-3 * x.abs().max(1.0);
            let slope = (8.0 * (f(x + h) - f(x - h)) - (f(x + 2.0 * h) - f(x - 2.0 * h))) / (12.0 * h);
            let exact = derivative(x);
            (slope - exact).abs() / exact.abs().max(1.0)
        })
        .fold(0.0, |worst: f64, e| if e.is_nan() { f64::INFINITY } else { worst.max(e) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect(values: &[f64]) -> Vec<Expected> {
        values.iter().map(|&v| Expected::exactly(v)).collect()
    }

    #[test]
    fn errors_in_both_measures() {
        let c = compare(DType::F32, &[1.0, 2.0 + 2f64.powi(-22)], &expect(&[1.0, 2.0]), 9e9);
        assert_eq!(c.element, 1.0);
        assert_eq!(c.worst, Some(1));
        assert!((c.norm - 2f64.powi(-22) / 5f64.sqrt()).abs() < 1e-15);
        assert_eq!(c.disagreement, None);
    }

    #[test]
    fn specials_must_agree() {
        let inf = f64::INFINITY;
        let ok = |dtype, got: f64, want: f64| {
            compare(dtype, &[got], &expect(&[want]), 1234.0).disagreement.is_none()
        };
        assert!(ok(DType::F32, f64::NAN, f64::NAN) && ok(DType::F32, inf, inf));
        assert!(!ok(DType::F32, f64::NAN, 1.0) && !ok(DType::F32, 1.0, f64::NAN));
        assert!(!ok(DType::F32, inf, 1.0) && !ok(DType::F32, inf, -inf) && !ok(DType::F32, 3.0, inf));
        assert!(ok(DType::F16, inf, 1e6), "overflow of the type is the right result");
        assert!(ok(DType::F16, inf, 65519.0), "a rounding away from overflow");
        assert!(!ok(DType::F16, -inf, 65519.0) && !ok(DType::F16, inf, 60000.0));
    }

    #[test]
    fn unwritten_elements_are_noticed() {
        let c = compare(DType::F32, &[1.0, 77.0], &expect(&[1.0, f64::NAN]), 77.0);
        assert!(c.disagreement.is_some_and(|d| d.unwritten && d.index == 1));
        let c = compare(DType::F32, &[1.0, 77.0], &expect(&[1.0, 76.9]), 77.0);
        assert!(c.disagreement.is_some_and(|d| d.unwritten));
        assert!(compare(DType::F32, &[1.0], &expect(&[1.0, 2.0]), 77.0).disagreement.is_some());
    }

    #[test]
    fn underflow_is_forgiven_as_far_as_stated() {
        let e = [Expected { value: 1e-39, scale: 1e-39, underflow: 2e-39 }];
        assert_eq!(compare(DType::F32, &[0.0], &e, 7.0).element, 0.0);
        let e = [Expected { underflow: 0.0, ..e[0] }];
        assert!(compare(DType::F32, &[0.0], &e, 7.0).element > 1e5);
    }

    #[test]
    fn central_differences_find_a_wrong_derivative() {
        let points = [-2.0, -0.5, 0.1, 3.0];
        assert!(gradient_error(f64::sin, f64::cos, &points) < 1e-9);
        assert!(gradient_error(f64::sin, |x| x.cos() + 1e-4, &points) > 1e-5);
        assert!(gradient_error(f64::sin, |_| f64::NAN, &points) > 1.0);
    }
}
