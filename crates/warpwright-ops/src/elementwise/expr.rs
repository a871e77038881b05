//! Expressions as data: what a launch computes for each element.

use std::fmt;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::Arc;

use crate::plan::Real;

/// Most tensors that a launch reads.
pub const MAX_INPUTS: usize = 6;
/// Most tensors that a launch writes.
pub const MAX_OUTPUTS: usize = 3;
/// Most numbers that a launch is given.
pub const MAX_SCALARS: usize = 8;
/// Most operations and operands of the expressions of a launch, each counted as often as it is written.
pub const MAX_NODES: usize = 256;

/// A function of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unary {
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// `x^2`
    Square,
    /// `1 / x`
    Reciprocal,
    /// The square root.
    Sqrt,
    /// `1 / sqrt(x)`
    Rsqrt,
    /// `e^x`
    Exp,
    /// The natural logarithm.
    Log,
    /// `max(x, 0)`
    Relu,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `x sigmoid(x)`
    Silu,
    /// GELU by the error function.
    GeluErf,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// `log(1 + exp(x))`
    Softplus,
    /// The derivative of [`Silu`](Self::Silu).
    SiluDerivative,
    /// The derivative of [`GeluErf`](Self::GeluErf).
    GeluErfDerivative,
    /// The derivative of [`GeluTanh`](Self::GeluTanh).
    GeluTanhDerivative,
    /// 0 where [`Dropout`](crate::Dropout) drops the element, and `x / (1 - probability)` elsewhere.
    Dropout,
}

impl Unary {
    /// Every function.
    pub const ALL: [Self; 19] = [
        Self::Neg,
        Self::Abs,
        Self::Square,
        Self::Reciprocal,
        Self::Sqrt,
        Self::Rsqrt,
        Self::Exp,
        Self::Log,
        Self::Relu,
        Self::Sigmoid,
        Self::Tanh,
        Self::Silu,
        Self::GeluErf,
        Self::GeluTanh,
        Self::Softplus,
        Self::SiluDerivative,
        Self::GeluErfDerivative,
        Self::GeluTanhDerivative,
        Self::Dropout,
    ];

    /// Its name in the text of an expression.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Neg => "neg",
            Self::Abs => "abs",
            Self::Square => "square",
            Self::Reciprocal => "reciprocal",
            Self::Sqrt => "sqrt",
            Self::Rsqrt => "rsqrt",
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Relu => "relu",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
            Self::Silu => "silu",
            Self::GeluErf => "gelu_erf",
            Self::GeluTanh => "gelu_tanh",
            Self::Softplus => "softplus",
            Self::SiluDerivative => "silu_derivative",
            Self::GeluErfDerivative => "gelu_erf_derivative",
            Self::GeluTanhDerivative => "gelu_tanh_derivative",
            Self::Dropout => "dropout",
        }
    }
}

/// A function of two arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a b`
    Mul,
    /// `a / b`
    Div,
    /// The lesser; NaN if either is NaN.
    Minimum,
    /// The greater; NaN if either is NaN.
    Maximum,
    /// 1 if `a < b`, else 0; so are the other comparisons.
    Lt,
    /// `a <= b`
    Le,
    /// `a > b`
    Gt,
    /// `a >= b`
    Ge,
    /// `a == b`
    Eq,
    /// `a != b`, which is true of NaN.
    Ne,
}

impl Binary {
    /// Every function.
    pub const ALL: [Self; 12] = [
        Self::Add,
        Self::Sub,
        Self::Mul,
        Self::Div,
        Self::Minimum,
        Self::Maximum,
        Self::Lt,
        Self::Le,
        Self::Gt,
        Self::Ge,
        Self::Eq,
        Self::Ne,
    ];

    /// Its name in the text of an expression.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::Minimum => "minimum",
            Self::Maximum => "maximum",
            Self::Lt => "lt",
            Self::Le => "le",
            Self::Gt => "gt",
            Self::Ge => "ge",
            Self::Eq => "eq",
            Self::Ne => "ne",
        }
    }
}

/// The node at the top of an expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    Input(usize),
    Scalar(usize),
    Constant(Real),
    Unary(Unary, Expr),
    Binary(Binary, Expr, Expr),
    Where(Expr, Expr, Expr),
    /// Of an expression with more than [`MAX_NODES`] nothing is kept but how many there are.
    Oversized,
}

/// A function of the elements of some tensors at one place, and of numbers that a launch is given.
///
/// Expressions are written with operators and methods; the tensors are `x0`, `x1`, .., the numbers `s0`, `s1`, .. of the text that
/// [`Display`](fmt::Display) gives and [`FromStr`](std::str::FromStr) reads.
///
/// ```
/// use warpwright::elementwise::Expr;
///
/// let [x, y] = Expr::inputs();
/// let f = (x + y * Expr::scalar(0)).silu();
/// assert_eq!(f.to_string(), "silu(add(x0, mul(x1, s0)))");
/// assert_eq!(f.to_string().parse(), Ok(f));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expr {
    nodes: usize,
    node: Arc<Node>,
}

impl Expr {
    fn new(node: Node) -> Self {
        let nodes = match &node {
            Node::Unary(_, a) => 1 + a.nodes,
            Node::Binary(_, a, b) => (1 + a.nodes).saturating_add(b.nodes),
            Node::Where(a, b, c) => (1 + a.nodes).saturating_add(b.nodes).saturating_add(c.nodes),
            _ => 1,
        };
        // Operands that are shared would make every walk over larger ones exponential.
        let node = if nodes > MAX_NODES { Node::Oversized } else { node };
        // One below the largest, so that one more can be counted.
        Self { nodes: nodes.min(usize::MAX - 1), node: Arc::new(node) }
    }

    /// The element of the tensor number `index`.
    pub fn input(index: usize) -> Self {
        Self::new(Node::Input(index))
    }

    /// The elements of the first `N` tensors.
    pub fn inputs<const N: usize>() -> [Self; N] {
        std::array::from_fn(Self::input)
    }

    /// The number `index` that a launch is given. Its value is not part of the kernel.
    pub fn scalar(index: usize) -> Self {
        Self::new(Node::Scalar(index))
    }

    /// A number that is part of the kernel.
    pub fn constant(value: f64) -> Self {
        // One NaN stands for all, as text does.
        Self::new(Node::Constant(Real::new(if value.is_nan() { f64::NAN } else { value })))
    }

    /// `f` of it.
    #[must_use]
    pub fn unary(&self, f: Unary) -> Self {
        Self::new(Node::Unary(f, self.clone()))
    }

    /// `f` of it and `other`.
    #[must_use]
    pub fn binary(&self, f: Binary, other: impl Into<Self>) -> Self {
        Self::new(Node::Binary(f, self.clone(), other.into()))
    }

    /// `a` where it is not 0 (NaN is not), `b` elsewhere. Both are computed.
    #[must_use]
    pub fn where_(&self, a: impl Into<Self>, b: impl Into<Self>) -> Self {
        Self::new(Node::Where(self.clone(), a.into(), b.into()))
    }

    /// How many operations and operands it is written with.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Calls `visit` with it and everything that it is made of.
    pub(crate) fn walk(&self, visit: &mut impl FnMut(&Node)) {
        visit(&self.node);
        match self.node() {
            Node::Unary(_, a) => a.walk(visit),
            Node::Binary(_, a, b) => [a, b].into_iter().for_each(|e| e.walk(visit)),
            Node::Where(a, b, c) => [a, b, c].into_iter().for_each(|e| e.walk(visit)),
            Node::Input(_) | Node::Scalar(_) | Node::Constant(_) | Node::Oversized => {}
        }
    }

    /// Whether elements are dropped in it.
    pub fn has_dropout(&self) -> bool {
        let mut found = false;
        self.walk(&mut |node| found |= matches!(node, Node::Unary(Unary::Dropout, _)));
        found
    }

    /// How many tensors it reads if none is left out.
    pub fn input_count(&self) -> usize {
        self.count(|node| if let Node::Input(index) = node { Some(*index) } else { None })
    }

    /// How many numbers it needs if none is left out.
    pub fn scalar_count(&self) -> usize {
        self.count(|node| if let Node::Scalar(index) = node { Some(*index) } else { None })
    }

    fn count(&self, index: impl Fn(&Node) -> Option<usize>) -> usize {
        let mut count = 0;
        self.walk(&mut |node| count = count.max(index(node).map_or(0, |index| index.saturating_add(1))));
        count
    }

    /// A short word for it: the name of its outermost function.
    pub(crate) fn head(&self) -> &'static str {
        match self.node() {
            Node::Input(_) => "copy",
            Node::Scalar(_) | Node::Constant(_) => "fill",
            Node::Unary(f, _) => f.name(),
            Node::Binary(f, ..) => f.name(),
            Node::Where(..) => "where",
            Node::Oversized => "oversized",
        }
    }
}

macro_rules! methods {
    ($($name:ident => $f:ident, $doc:literal;)*) => {
        impl Expr {
            $(
                #[doc = $doc]
                #[must_use]
                pub fn $name(&self) -> Self {
                    self.unary(Unary::$f)
                }
            )*
        }
    };
    ($($name:ident($other:ident) => $f:ident, $doc:literal;)*) => {
        impl Expr {
            $(
                #[doc = $doc]
                #[must_use]
                pub fn $name(&self, $other: impl Into<Self>) -> Self {
                    self.binary(Binary::$f, $other)
                }
            )*
        }
    };
}

methods! {
    abs => Abs, "`|x|`";
    square => Square, "`x^2`";
    reciprocal => Reciprocal, "`1 / x`";
    sqrt => Sqrt, "The square root; NaN of negative numbers.";
    rsqrt => Rsqrt, "`1 / sqrt(x)`";
    exp => Exp, "`e^x`";
    log => Log, "The natural logarithm; NaN of negative numbers, minus infinity of 0.";
    relu => Relu, "`max(x, 0)`";
    sigmoid => Sigmoid, "`1 / (1 + exp(-x))`";
    tanh => Tanh, "The hyperbolic tangent.";
    silu => Silu, "`x sigmoid(x)`";
    gelu_erf => GeluErf, "GELU by the error function.";
    gelu_tanh => GeluTanh, "GELU by its tanh approximation.";
    softplus => Softplus, "`log(1 + exp(x))`";
    silu_derivative => SiluDerivative, "The derivative of [`silu`](Self::silu).";
    gelu_erf_derivative => GeluErfDerivative, "The derivative of [`gelu_erf`](Self::gelu_erf).";
    gelu_tanh_derivative => GeluTanhDerivative, "The derivative of [`gelu_tanh`](Self::gelu_tanh).";
    dropout => Dropout, "0 where the launch drops the element, which is numbered as in the output, and `x / (1 - probability)` elsewhere.";
}

methods! {
    minimum(other) => Minimum, "The lesser; NaN if either is NaN.";
    maximum(other) => Maximum, "The greater; NaN if either is NaN.";
    lt(other) => Lt, "1 if it is less, else 0.";
    le(other) => Le, "1 if it is not greater, else 0; 0 of NaN.";
    gt(other) => Gt, "1 if it is greater, else 0.";
    ge(other) => Ge, "1 if it is not less, else 0; 0 of NaN.";
    eq_(other) => Eq, "1 if it is equal, else 0.";
    ne_(other) => Ne, "1 if it is not equal, as NaN is to everything, else 0.";
}

impl From<f64> for Expr {
    fn from(value: f64) -> Self {
        Self::constant(value)
    }
}

impl From<&Self> for Expr {
    fn from(expr: &Self) -> Self {
        expr.clone()
    }
}

macro_rules! operators {
    ($($trait:ident, $method:ident;)*) => {$(
        impl<R: Into<Expr>> $trait<R> for Expr {
            type Output = Self;

            fn $method(self, rhs: R) -> Self {
                self.binary(Binary::$trait, rhs)
            }
        }

        impl<R: Into<Expr>> $trait<R> for &Expr {
            type Output = Expr;

            fn $method(self, rhs: R) -> Expr {
                self.binary(Binary::$trait, rhs)
            }
        }

        impl $trait<Expr> for f64 {
            type Output = Expr;

            fn $method(self, rhs: Expr) -> Expr {
                Expr::constant(self).binary(Binary::$trait, rhs)
            }
        }

        impl $trait<&Expr> for f64 {
            type Output = Expr;

            fn $method(self, rhs: &Expr) -> Expr {
                Expr::constant(self).binary(Binary::$trait, rhs)
            }
        }
    )*};
}

operators! {
    Add, add;
    Sub, sub;
    Mul, mul;
    Div, div;
}

impl Neg for Expr {
    type Output = Self;

    fn neg(self) -> Self {
        self.unary(Unary::Neg)
    }
}

impl Neg for &Expr {
    type Output = Expr;

    fn neg(self) -> Expr {
        self.unary(Unary::Neg)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node() {
            Node::Input(index) => write!(f, "x{index}"),
            Node::Scalar(index) => write!(f, "s{index}"),
            Node::Constant(value) => write!(f, "{:?}", value.get()),
            Node::Unary(op, a) => write!(f, "{}({a})", op.name()),
            Node::Binary(op, a, b) => write!(f, "{}({a}, {b})", op.name()),
            Node::Where(a, b, c) => write!(f, "where({a}, {b}, {c})"),
            Node::Oversized => write!(f, "<{} nodes>", self.nodes),
        }
    }
}

/// Why expressions cannot be computed, or text is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExprError {
    /// Text that is no expression.
    #[error("expected {expected} at `{rest}`")]
    Text {
        /// The text that may stand there.
        expected: &'static str,
        /// The text from there on.
        rest: String,
    },
    /// A function that there is not.
    #[error("there is no function `{name}` of {arguments} arguments")]
    Function {
        /// Its name.
        name: String,
        /// How many arguments it was given.
        arguments: usize,
    },
    /// Too many operations and operands.
    #[error("{nodes} operations and operands, at most {limit} are allowed")]
    Nodes {
        /// How many there are.
        nodes: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Too few or too many of something.
    #[error("{got} {what}, {least} to {limit} are allowed")]
    Count {
        /// Inputs, outputs or scalars.
        what: &'static str,
        /// How many there are.
        got: usize,
        /// How many there must be.
        least: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A tensor or a number that is not given.
    #[error("`{name}` is not among the {given} that are given")]
    Missing {
        /// Its name.
        name: String,
        /// How many are given.
        given: usize,
    },
    /// A tensor or a number that is given and not used.
    #[error("`{name}` is given and not used")]
    Unused {
        /// Its name.
        name: String,
    },
    /// Elements are dropped and there is no probability, or the other way round.
    #[error("{}", if *written { "dropout is written, and no probability is given" } else { "a probability of dropout is given, and dropout is not written" })]
    Dropout {
        /// Whether it stands in an expression.
        written: bool,
    },
}

/// Checks that expressions can be computed from so many tensors and numbers.
pub(crate) fn check(outputs: &[Expr], inputs: usize, scalars: usize, dropout: bool) -> Result<(), ExprError> {
    let counts = [
        ("outputs", outputs.len(), 1, MAX_OUTPUTS),
        ("inputs", inputs, 0, MAX_INPUTS),
        ("scalars", scalars, 0, MAX_SCALARS),
    ];
    for (what, got, least, limit) in counts {
        if !(least..=limit).contains(&got) {
            return Err(ExprError::Count { what, got, least, limit });
        }
    }
    let nodes = outputs.iter().fold(0, |nodes: usize, e| nodes.saturating_add(e.nodes));
    if nodes > MAX_NODES {
        return Err(ExprError::Nodes { nodes, limit: MAX_NODES });
    }
    let mut used = [vec![false; inputs], vec![false; scalars]];
    let mut missing = None;
    let names = ["x", "s"];
    for output in outputs {
        output.walk(&mut |node| {
            let (kind, index) = match node {
                Node::Input(index) => (0, *index),
                Node::Scalar(index) => (1, *index),
                _ => return,
            };
            match used[kind].get_mut(index) {
                Some(used) => *used = true,
                None => missing = missing.or(Some((kind, index))),
            }
        });
    }
    if let Some((kind, index)) = missing {
        return Err(ExprError::Missing { name: format!("{}{index}", names[kind]), given: used[kind].len() });
    }
    for (name, used) in names.into_iter().zip(&used) {
        if let Some(index) = used.iter().position(|used| !used) {
            return Err(ExprError::Unused { name: format!("{name}{index}") });
        }
    }
    let written = outputs.iter().any(Expr::has_dropout);
    if written == dropout { Ok(()) } else { Err(ExprError::Dropout { written }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_and_methods_are_text() {
        let [x, y] = Expr::inputs();
        let f = 2.0 - (&x * &y + 1.0) / -y.abs();
        assert_eq!(f.to_string(), "sub(2.0, div(add(mul(x0, x1), 1.0), neg(abs(x1))))");
        assert_eq!((f.nodes(), f.input_count(), f.scalar_count()), (11, 2, 0));
        let g = x.lt(&y).where_(x.maximum(0.0), Expr::scalar(3));
        assert_eq!(g.to_string(), "where(lt(x0, x1), maximum(x0, 0.0), s3)");
        assert_eq!(g.scalar_count(), 4);
    }

    #[test]
    fn expressions_with_the_same_text_are_equal() {
        let [x, y] = Expr::inputs();
        assert_eq!(&x + &y, &x + &y);
        assert_ne!(&x + &y, &y + &x);
        assert_ne!(Expr::constant(0.0), Expr::constant(-0.0));
        assert_eq!(Expr::constant(-f64::NAN), Expr::constant(f64::NAN));
    }

    /// A walk over such a one would take 2^1000 steps.
    #[test]
    fn operands_that_are_shared_without_end_are_counted_and_dropped() {
        let mut x = Expr::input(0);
        for _ in 0..1000 {
            x = &x + &x;
        }
        assert!(x.nodes() > MAX_NODES && x.to_string().len() < 40);
        let error = check(&[x], 1, 0, false).expect_err("too large");
        assert!(matches!(error, ExprError::Nodes { limit: MAX_NODES, .. }), "{error}");
    }

    #[test]
    fn what_cannot_be_computed() {
        let [x, y] = Expr::inputs();
        let sum = &x + &y;
        let one = std::slice::from_ref(&sum);
        assert_eq!(check(one, 2, 0, false), Ok(()));
        let missing = ExprError::Missing { name: "x1".to_owned(), given: 1 };
        assert_eq!(check(one, 1, 0, false), Err(missing));
        let unused = ExprError::Unused { name: "x2".to_owned() };
        assert_eq!(check(one, 3, 0, false), Err(unused));
        let unused = ExprError::Unused { name: "s0".to_owned() };
        assert_eq!(check(one, 2, 1, false), Err(unused));
        let count = |what, got, least, limit| ExprError::Count { what, got, least, limit };
        assert_eq!(check(&[], 0, 0, false), Err(count("outputs", 0, 1, MAX_OUTPUTS)));
        assert_eq!(check(one, 7, 0, false), Err(count("inputs", 7, 0, MAX_INPUTS)));
        assert_eq!(check(one, 2, 9, false), Err(count("scalars", 9, 0, MAX_SCALARS)));
        assert_eq!(check(&[sum.dropout()], 2, 0, false), Err(ExprError::Dropout { written: true }));
        assert_eq!(check(one, 2, 0, true), Err(ExprError::Dropout { written: false }));
    }
}
