//! The definition in f64, with a bound on what rounding may do to it.

use super::expr::{Binary, Expr, Node, Unary};
use crate::activation::{Activation, reference as activation};
use crate::plan::Real;

/// A value and the error of an implementation that rounds every operation once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluated {
    /// The value.
    pub value: f64,
    /// To first order, in units of the rounding error of one operation: the magnitude of every result on the way, enlarged by what
    /// follows.
    pub error: f64,
}

/// The operands of the elements of one place.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The element of each input.
    pub inputs: &'a [f64],
    /// The numbers of the launch.
    pub scalars: &'a [f64],
    /// The factor of dropout; `None` drops the element.
    pub keeping: Option<f64>,
}

/// `expr` of the elements at a place. NaN stands for an input or a number that is not given.
pub fn evaluate(expr: &Expr, place: &Place<'_>) -> Evaluated {
    let of = |expr| evaluate(expr, place);
    match expr.node() {
        Node::Input(index) => exact(place.inputs.get(*index).copied().unwrap_or(f64::NAN)),
        Node::Scalar(index) => rounded(place.scalars.get(*index).copied().unwrap_or(f64::NAN)),
        Node::Constant(value) => rounded(value.get()),
        Node::Unary(f, a) => unary(*f, of(a), place.keeping),
        Node::Binary(f, a, b) => binary(*f, of(a), of(b)),
        Node::Where(condition, a, b) => {
            if of(condition).value == 0.0 {
                of(b)
            } else {
                of(a)
            }
        }
        Node::Oversized => exact(f64::NAN),
    }
}

fn exact(value: f64) -> Evaluated {
    Evaluated { value, error: 0.0 }
}

fn rounded(value: f64) -> Evaluated {
    Evaluated { value, error: value.abs() }
}

/// An error that a slope enlarges; none stays none where the slope is infinite.
fn enlarged(error: f64, slope: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error * slope.abs() }
}

/// The activation behind a function, if it is one.
fn activation_of(f: Unary) -> Option<Activation> {
    match f {
        Unary::Relu => Some(Activation::Relu),
        Unary::Sigmoid => Some(Activation::Sigmoid),
        Unary::Tanh => Some(Activation::Tanh),
        Unary::Silu => Some(Activation::Silu),
        Unary::GeluErf => Some(Activation::GeluErf),
        Unary::GeluTanh => Some(Activation::GeluTanh),
        Unary::Softplus => Some(Activation::Softplus { beta: Real::new(1.0) }),
        _ => None,
    }
}

/// The activation whose derivative a function is, if it is one.
fn derivative_of(f: Unary) -> Option<Activation> {
    match f {
        Unary::SiluDerivative => Some(Activation::Silu),
        Unary::GeluErfDerivative => Some(Activation::GeluErf),
        Unary::GeluTanhDerivative => Some(Activation::GeluTanh),
        _ => None,
    }
}

fn unary(f: Unary, a: Evaluated, keeping: Option<f64>) -> Evaluated {
    let Evaluated { value: x, error } = a;
    if let Some(f) = derivative_of(f) {
        // The second derivative by a central difference: a bound needs no more digits.
        let step = 1e-5 * x.abs().max(1.0);
        let second =
            (activation::derivative(f, x + step) - activation::derivative(f, x - step)) / (2.0 * step);
        let error = enlarged(error, second) + activation::derivative_scale(f, x);
        return Evaluated { value: activation::derivative(f, x), error };
    }
    if let Some(f) = activation_of(f) {
        let own = if f == Activation::Relu { 0.0 } else { activation::forward_scale(f, x) };
        let error = enlarged(error, activation::derivative(f, x)) + own;
        return Evaluated { value: activation::forward(f, x), error };
    }
    // The value and the slope.
    let (value, slope) = match f {
        Unary::Neg => return Evaluated { value: -x, error },
        Unary::Abs => return Evaluated { value: x.abs(), error },
        Unary::Square => (x * x, 2.0 * x),
        Unary::Reciprocal => (1.0 / x, 1.0 / (x * x)),
        Unary::Sqrt => (x.sqrt(), 0.5 / x.sqrt()),
        Unary::Rsqrt => (1.0 / x.sqrt(), 0.5 / (x * x.sqrt())),
        Unary::Exp => (x.exp(), x.exp()),
        Unary::Log => (x.ln(), 1.0 / x),
        _ => match keeping {
            Some(keeping) => (x * keeping, keeping),
            None => return exact(0.0),
        },
    };
    Evaluated { value, error: enlarged(error, slope) + value.abs() }
}

fn binary(f: Binary, a: Evaluated, b: Evaluated) -> Evaluated {
    let (x, y) = (a.value, b.value);
    let holds = |holds: bool| exact(f64::from(u8::from(holds)));
    let with = |value: f64, by_a: f64, by_b: f64| {
        let error = enlarged(a.error, by_a) + enlarged(b.error, by_b) + value.abs();
        Evaluated { value, error }
    };
    // Not `f64::min`, which drops NaN.
    let chosen = |first: bool| if x.is_nan() || (first && !y.is_nan()) { a } else { b };
    match f {
        Binary::Add => with(x + y, 1.0, 1.0),
        Binary::Sub => with(x - y, 1.0, 1.0),
        Binary::Mul => with(x * y, y, x),
        Binary::Div => with(x / y, 1.0 / y, x / (y * y)),
        Binary::Minimum => chosen(x <= y),
        Binary::Maximum => chosen(x >= y),
        Binary::Lt => holds(x < y),
        Binary::Le => holds(x <= y),
        Binary::Gt => holds(x > y),
        Binary::Ge => holds(x >= y),
        Binary::Eq => holds(x == y),
        Binary::Ne => holds(x != y),
    }
}

/// The element of a broadcast tensor of `shape` that meets the element number `index` of outputs of shape `of`.
pub fn broadcast_index(shape: &[usize], of: &[usize], index: usize) -> usize {
    let (mut rest, mut at, mut step) = (index, 0, 1);
    for (axis, &extent) in of.iter().rev().enumerate() {
        let own = shape.len().checked_sub(axis + 1).map_or(1, |axis| shape[axis]);
        at += if own == 1 { 0 } else { rest % extent * step };
        (rest, step) = (rest / extent, step * own);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, inputs: &[f64], scalars: &[f64]) -> f64 {
        let expr: Expr = text.parse().expect(text);
        evaluate(&expr, &Place { inputs, scalars, keeping: Some(2.0) }).value
    }

    #[test]
    fn functions_are_what_their_names_say() {
        assert_eq!(value("add(x0, mul(s0, x1))", &[1.0, 2.0], &[10.0]), 21.0);
        assert_eq!(value("sub(x0, div(x1, 4))", &[1.0, 2.0], &[]), 0.5);
        assert_eq!(value("where(lt(x0, x1), -1, 7)", &[1.0, 2.0], &[]), -1.0);
        assert_eq!(value("where(lt(x0, x1), -1, 7)", &[2.0, 2.0], &[]), 7.0);
        assert_eq!(value("rsqrt(square(x0))", &[-4.0], &[]), 0.25);
        assert_eq!(value("log(exp(x0))", &[3.0], &[]), 3.0);
        assert_eq!(value("reciprocal(neg(sqrt(abs(x0))))", &[-16.0], &[]), -0.25);
        assert_eq!(value("dropout(x0)", &[1.5], &[]), 3.0);
        assert_eq!(value("relu(x0)", &[-1.0], &[]), 0.0);
        assert!((value("softplus(x0)", &[0.0], &[]) - 2f64.ln()).abs() < 1e-15);
        for (text, want) in [("lt", 0.0), ("le", 1.0), ("gt", 0.0), ("ge", 1.0), ("eq", 1.0), ("ne", 0.0)] {
            assert_eq!(value(&format!("{text}(x0, 3)"), &[3.0], &[]), want, "{text}");
        }
    }

    #[test]
    fn nan_is_what_pytorch_makes_of_it() {
        let nan = f64::NAN;
        assert!(value("minimum(x0, x1)", &[nan, 1.0], &[]).is_nan());
        assert!(value("maximum(x0, x1)", &[1.0, nan], &[]).is_nan());
        assert_eq!(value("minimum(x0, x1)", &[2.0, 1.0], &[]), 1.0);
        assert_eq!(value("maximum(x0, x1)", &[2.0, 1.0], &[]), 2.0);
        assert_eq!(value("ne(x0, x0)", &[nan], &[]), 1.0);
        assert_eq!(value("where(x0, 1, 0)", &[nan], &[]), 1.0);
    }

    /// A relative error of `h` in each operand and result stays within the bound.
    #[test]
    fn errors_are_enlarged_by_slopes() {
        let at = |text: &str, x: f64| {
            let expr: Expr = text.parse().expect(text);
            evaluate(&expr, &Place { inputs: &[x], scalars: &[], keeping: None })
        };
        // The constant and the sum are rounded once each.
        let sum = at("add(x0, 3)", 1.0);
        assert_eq!(sum.error, 3.0 + 4.0);
        let root = at("sqrt(add(x0, 3))", 1.0);
        assert_eq!(root.error, 7.0 / 4.0 + 2.0);
        let difference = at("sub(mul(x0, 1000), 999.5)", 1.0);
        assert_eq!(difference.error, (1000.0 + 1000.0) + 999.5 + 0.5);
    }

    #[test]
    fn broadcasting_repeats_what_is_one_or_absent() {
        let of = [2, 3, 4];
        let all = |shape: &[usize]| (0..24).map(|i| broadcast_index(shape, &of, i)).collect::<Vec<_>>();
        assert_eq!(all(&of), (0..24).collect::<Vec<_>>());
        assert_eq!(all(&[4]), (0..24).map(|i| i % 4).collect::<Vec<_>>());
        assert_eq!(all(&[3, 1]), (0..24).map(|i| i / 4 % 3).collect::<Vec<_>>());
        assert_eq!(all(&[2, 1, 4]), (0..24).map(|i| i / 12 * 4 + i % 4).collect::<Vec<_>>());
        assert_eq!(all(&[]), [0; 24]);
    }
}
