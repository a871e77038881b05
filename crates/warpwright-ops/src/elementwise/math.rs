//! Expressions on registers.

use warpwright_dsl::prelude::*;

use super::expr::{Binary, Expr, Node, Unary};
use crate::activation::{self, Activation};

/// The value of a part of an expression.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'k, A: Accumulate> {
    Number(Reg<'k, A>),
    /// An element of a mask.
    Byte(U32<'k>),
    Truth(Pred<'k>),
}

impl<'k, A: Accumulate> Value<'k, A> {
    pub(super) fn number(self) -> Reg<'k, A> {
        match self {
            Self::Number(x) => x,
            Self::Byte(x) => x.convert(),
            Self::Truth(p) => p.select(1.0, 0.0),
        }
    }

    pub(super) fn truth(self) -> Pred<'k> {
        match self {
            Self::Number(x) => x.ne(0.0),
            Self::Byte(x) => x.ne(0),
            Self::Truth(p) => p,
        }
    }
}

/// The operands of the expressions of one element.
#[derive(Debug)]
pub(super) struct Element<'k, 'e, A: Accumulate> {
    pub(super) k: K<'k>,
    pub(super) inputs: Vec<Value<'k, A>>,
    pub(super) scalars: &'e [Reg<'k, A>],
    /// Whether the element is kept, and what it is multiplied by then.
    pub(super) dropout: Option<(Pred<'k>, Reg<'k, A>)>,
    /// The type that exactness is measured by.
    pub(super) dtype: DType,
    /// Results so far.
    pub(super) known: Vec<(&'e Expr, Value<'k, A>)>,
}

impl<'k, 'e, A: Accumulate> Element<'k, 'e, A> {
    /// The value of an expression; what it has in common with an earlier one is computed once.
    pub(super) fn value(&mut self, expr: &'e Expr) -> Value<'k, A> {
        if let Some((_, value)) = self.known.iter().find(|(known, _)| *known == expr) {
            return *value;
        }
        let value = match expr.node() {
            // `check` has seen that there are as many.
            Node::Input(index) => self.inputs[*index],
            Node::Scalar(index) => Value::Number(self.scalars[*index]),
            Node::Constant(value) => Value::Number(self.k.lit(value.get())),
            Node::Unary(f, a) => {
                let a = self.value(a).number();
                Value::Number(self.unary(*f, a))
            }
            Node::Binary(f, a, b) => {
                let (a, b) = (self.value(a), self.value(b));
                binary(*f, a.number(), b.number())
            }
            Node::Where(condition, a, b) => {
                let (condition, a, b) = (self.value(condition), self.value(a), self.value(b));
                Value::Number(condition.truth().select(a.number(), b.number()))
            }
            Node::Oversized => Value::Number(self.k.lit(f64::NAN)),
        };
        self.known.push((expr, value));
        value
    }

    fn unary(&self, f: Unary, x: Reg<'k, A>) -> Reg<'k, A> {
        let activation = |f| activation::evaluate(f, x, self.dtype);
        let derivative = |f| activation::differentiate(f, (x, self.k.lit(1.0)), self.dtype);
        match f {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Square => x * x,
            Unary::Reciprocal => x.rcp(),
            Unary::Sqrt => x.sqrt(),
            Unary::Rsqrt => x.rsqrt(),
            Unary::Exp => x.exp_for(Precision::of(self.dtype)),
            Unary::Log => x.log(),
            Unary::Relu => activation(Activation::Relu),
            Unary::Sigmoid => activation(Activation::Sigmoid),
            Unary::Tanh => activation(Activation::Tanh),
            Unary::Silu => activation(Activation::Silu),
            Unary::GeluErf => activation(Activation::GeluErf),
            Unary::GeluTanh => activation(Activation::GeluTanh),
            // The activation would multiply by its parameter, and divide again.
            Unary::Softplus => x.softplus_for(Precision::of(self.dtype)),
            Unary::SiluDerivative => derivative(Activation::Silu),
            Unary::GeluErfDerivative => derivative(Activation::GeluErf),
            Unary::GeluTanhDerivative => derivative(Activation::GeluTanh),
            Unary::Dropout => match self.dropout {
                Some((kept, keeping)) => kept.select(x * keeping, 0.0),
                None => x,
            },
        }
    }
}

fn binary<'k, A: Accumulate>(f: Binary, a: Reg<'k, A>, b: Reg<'k, A>) -> Value<'k, A> {
    match f {
        Binary::Add => Value::Number(a + b),
        Binary::Sub => Value::Number(a - b),
        Binary::Mul => Value::Number(a * b),
        Binary::Div => Value::Number(a / b),
        Binary::Minimum => Value::Number(a.minimum(b)),
        Binary::Maximum => Value::Number(a.maximum(b)),
        Binary::Lt => Value::Truth(a.lt(b)),
        Binary::Le => Value::Truth(a.le(b)),
        Binary::Gt => Value::Truth(a.gt(b)),
        Binary::Ge => Value::Truth(a.ge(b)),
        Binary::Eq => Value::Truth(a.eq(b)),
        Binary::Ne => Value::Truth(a.ne(b)),
    }
}
