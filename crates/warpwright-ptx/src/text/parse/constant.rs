//! Constant expressions: literals, C operators and casts, evaluated while reading.
//!
//! Integers are `.s64` unless a suffix or their size makes them `.u64`; an operation on both is unsigned, and so are `%`
//! and `~` always. Shifts count modulo 64. Decimal and `0d` literals are doubles and mix with nothing else; `0f` literals
//! stand alone. Arithmetic wraps.

use super::{Fail, Parser, Read, rules};
use crate::inst::Imm;
use crate::text::lex::{Kind, Literal, Token};
use crate::types::ScalarType;

/// The deepest nesting of parentheses and operators in one expression.
const MAX_DEPTH: u32 = 64;

/// The value of a constant expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Constant {
    Signed(i64),
    Unsigned(u64),
    /// The bits of a `0f` literal.
    F32(u32),
    /// The bits of a `0d` literal.
    F64(u64),
    /// A decimal literal, and what is computed from floats.
    Decimal(f64),
}

impl Constant {
    /// The bits of an integer.
    pub(super) const fn integer(self) -> Option<u64> {
        match self {
            Self::Signed(v) => Some(v.cast_unsigned()),
            Self::Unsigned(v) => Some(v),
            Self::F32(_) | Self::F64(_) | Self::Decimal(_) => None,
        }
    }

    fn is_true(self) -> bool {
        match self {
            Self::Decimal(v) => v != 0.0,
            Self::F64(bits) => f64::from_bits(bits) != 0.0,
            Self::F32(bits) => f32::from_bits(bits) != 0.0,
            Self::Signed(_) | Self::Unsigned(_) => self.integer() != Some(0),
        }
    }

    /// The value as an operand of type `ty`, which decides what decimal fractions become.
    pub(super) fn to_imm(self, ty: ScalarType) -> Imm {
        match self {
            Self::Signed(v) => Imm::Int(v),
            Self::Unsigned(v) => Imm::Int(v.cast_signed()),
            Self::F32(bits) => Imm::F32(bits),
            Self::F64(bits) => Imm::F64(bits),
            Self::Decimal(v) if ty == ScalarType::F32 => Imm::F32((v as f32).to_bits()),
            Self::Decimal(v) => Imm::F64(v.to_bits()),
        }
    }
}

impl From<Literal> for Constant {
    fn from(literal: Literal) -> Self {
        match literal {
            Literal::Int(v) => i64::try_from(v).map_or(Self::Unsigned(v), Self::Signed),
            Literal::Unsigned(v) => Self::Unsigned(v),
            Literal::F32(bits) => Self::F32(bits),
            Literal::F64(bits) => Self::F64(bits),
            Literal::Decimal(bits) => Self::Decimal(f64::from_bits(bits)),
        }
    }
}

/// A binary operator, by falling precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Mul,
    Div,
    Rem,
    Add,
    Sub,
    Shl,
    Shr,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    And,
    Xor,
    Or,
    Both,
    Either,
}

impl Op {
    /// The operator of one or two characters, and how many it has.
    const fn read(first: u8, second: u8) -> Option<(Self, usize)> {
        Some(match (first, second) {
            (b'<', b'<') => (Self::Shl, 2),
            (b'>', b'>') => (Self::Shr, 2),
            (b'<', b'=') => (Self::Le, 2),
            (b'>', b'=') => (Self::Ge, 2),
            (b'=', b'=') => (Self::Eq, 2),
            (b'!', b'=') => (Self::Ne, 2),
            (b'&', b'&') => (Self::Both, 2),
            (b'|', b'|') => (Self::Either, 2),
            (b'*', _) => (Self::Mul, 1),
            (b'/', _) => (Self::Div, 1),
            (b'%', _) => (Self::Rem, 1),
            (b'+', _) => (Self::Add, 1),
            (b'-', _) => (Self::Sub, 1),
            (b'<', _) => (Self::Lt, 1),
            (b'>', _) => (Self::Gt, 1),
            (b'&', _) => (Self::And, 1),
            (b'^', _) => (Self::Xor, 1),
            (b'|', _) => (Self::Or, 1),
            _ => return None,
        })
    }

    const fn precedence(self) -> u8 {
        match self {
            Self::Mul | Self::Div | Self::Rem => 10,
            Self::Add | Self::Sub => 9,
            Self::Shl | Self::Shr => 8,
            Self::Lt | Self::Le | Self::Gt | Self::Ge => 7,
            Self::Eq | Self::Ne => 6,
            Self::And => 5,
            Self::Xor => 4,
            Self::Or => 3,
            Self::Both => 2,
            Self::Either => 1,
        }
    }

    /// The value of `a op b`, or what is wrong with it.
    fn apply(self, a: Constant, b: Constant) -> Result<Constant, &'static str> {
        use Constant::{Decimal, Signed, Unsigned};
        let truth = |v: bool| Ok(Signed(i64::from(v)));
        let double = |v| match v {
            Constant::F64(bits) => Decimal(f64::from_bits(bits)),
            other => other,
        };
        let (a, b) = (double(a), double(b));
        match self {
            Self::Both => return truth(a.is_true() && b.is_true()),
            Self::Either => return truth(a.is_true() || b.is_true()),
            _ => {}
        }
        Ok(match (a, b) {
            (Constant::F32(_), _) | (_, Constant::F32(_)) => {
                return Err("a `0f` literal cannot be part of an expression");
            }
            (Decimal(a), Decimal(b)) => match self {
                Self::Add => Decimal(a + b),
                Self::Sub => Decimal(a - b),
                Self::Mul => Decimal(a * b),
                Self::Div if b == 0.0 => return Err("division by zero"),
                Self::Div => Decimal(a / b),
                Self::Lt => return truth(a < b),
                Self::Le => return truth(a <= b),
                Self::Gt => return truth(a > b),
                Self::Ge => return truth(a >= b),
                Self::Eq => return truth(a == b),
                Self::Ne => return truth(a != b),
                _ => return Err("the operator takes integers"),
            },
            (Signed(x), Signed(y)) => match self {
                Self::Add => Signed(x.wrapping_add(y)),
                Self::Sub => Signed(x.wrapping_sub(y)),
                Self::Mul => Signed(x.wrapping_mul(y)),
                Self::Div if y == 0 => return Err("division by zero"),
                Self::Div => Signed(x.wrapping_div(y)),
                Self::Lt => return truth(x < y),
                Self::Le => return truth(x <= y),
                Self::Gt => return truth(x > y),
                Self::Ge => return truth(x >= y),
                _ => return self.apply_bits(a, x.cast_unsigned(), y.cast_unsigned(), false),
            },
            (Signed(_) | Unsigned(_), Signed(_) | Unsigned(_)) => {
                let bits = |v: Constant| v.integer().unwrap_or(0);
                let (x, y) = (bits(a), bits(b));
                match self {
                    Self::Add => Unsigned(x.wrapping_add(y)),
                    Self::Sub => Unsigned(x.wrapping_sub(y)),
                    Self::Mul => Unsigned(x.wrapping_mul(y)),
                    Self::Div if y == 0 => return Err("division by zero"),
                    Self::Div => Unsigned(x / y),
                    Self::Lt => return truth(x < y),
                    Self::Le => return truth(x <= y),
                    Self::Gt => return truth(x > y),
                    Self::Ge => return truth(x >= y),
                    _ => return self.apply_bits(a, x, y, true),
                }
            }
            _ => return Err("an expression mixes integers and floats"),
        })
    }

    /// The operators that do not care about signs, except that a shift has the type of its first operand `a`; the others
    /// are `unsigned` or not.
    fn apply_bits(self, a: Constant, x: u64, y: u64, unsigned: bool) -> Result<Constant, &'static str> {
        use Constant::{Signed, Unsigned};
        let by = (y % 64) as u32;
        let truth = |v: bool| Signed(i64::from(v));
        let bits = |v: u64| if unsigned { Unsigned(v) } else { Signed(v.cast_signed()) };
        Ok(match (self, a) {
            (Self::Rem, _) if y == 0 => return Err("division by zero"),
            (Self::Rem, _) => Unsigned(x % y),
            (Self::Shl, Signed(v)) => Signed(v << by),
            (Self::Shl, _) => Unsigned(x << by),
            (Self::Shr, Signed(v)) => Signed(v >> by),
            (Self::Shr, _) => Unsigned(x >> by),
            (Self::And, _) => bits(x & y),
            (Self::Xor, _) => bits(x ^ y),
            (Self::Or, _) => bits(x | y),
            (Self::Eq, _) => truth(x == y),
            (Self::Ne, _) => truth(x != y),
            _ => return Err("the operator does not apply"),
        })
    }
}

impl<'a> Parser<'a> {
    /// Whether the next token can begin a constant expression.
    pub(super) fn at_constant(&self) -> bool {
        matches!(self.token.kind, Kind::Number | Kind::Punct(b'-' | b'+' | b'(' | b'~' | b'!'))
            || (self.token.kind == Kind::Word && self.token.text == "WARP_SZ")
    }

    /// A constant expression.
    pub(super) fn constant(&mut self) -> Read<Constant> {
        // Nearly all of them are one literal.
        if self.token.kind == Kind::Number {
            let value = self.literal()?.into();
            if !matches!(self.token.kind, Kind::Punct(p) if Op::read(p, 0).is_some() || matches!(p, b'?' | b'=' | b'!'))
            {
                return Ok(value);
            }
            return self.rest_of_ternary(value, 0);
        }
        self.ternary(0)
    }

    /// A constant expression that is an integer, by its bits.
    pub(super) fn integer_constant(&mut self) -> Read<u64> {
        let at = self.token;
        match self.constant()?.integer() {
            Some(v) => Ok(v),
            None => Err(self.fail(rules::NUMBER, at, "expected an integer")),
        }
    }

    fn ternary(&mut self, depth: u32) -> Read<Constant> {
        let first = self.unary(depth)?;
        self.rest_of_ternary(first, depth)
    }

    fn rest_of_ternary(&mut self, first: Constant, depth: u32) -> Read<Constant> {
        let at = self.token;
        let condition = self.binary(first, 0, depth)?;
        if !self.eat(b'?') {
            return Ok(condition);
        }
        let depth = self.deeper(depth, at)?;
        let yes = self.ternary(depth)?;
        self.expect(b':')?;
        let no = self.ternary(depth)?;
        let Some(condition) = condition.integer() else {
            return Err(self.fail(rules::NUMBER, at, "a condition is an integer"));
        };
        if yes.integer().is_some() != no.integer().is_some() {
            return Err(self.fail(rules::NUMBER, at, "an expression mixes integers and floats"));
        }
        Ok(if condition == 0 { no } else { yes })
    }

    fn deeper(&mut self, depth: u32, at: Token<'a>) -> Result<u32, Fail> {
        if depth < MAX_DEPTH {
            Ok(depth + 1)
        } else {
            Err(self.fail(rules::LIMIT, at, format!("an expression nests deeper than {MAX_DEPTH}")))
        }
    }

    /// The operator at this place, if there is one, with its length in tokens.
    fn operator(&self) -> Option<(Op, usize)> {
        let Kind::Punct(first) = self.token.kind else { return None };
        let mut ahead = self.lexer;
        let next = ahead.next();
        let second = match next.kind {
            Kind::Punct(p) if next.line == self.token.line && next.column == self.token.column + 1 => p,
            _ => 0,
        };
        Op::read(first, second)
    }

    /// Operators that bind tighter than `above`, applied to `left`.
    fn binary(&mut self, mut left: Constant, above: u8, depth: u32) -> Read<Constant> {
        while let Some((op, tokens)) = self.operator().filter(|(op, _)| op.precedence() > above) {
            let at = self.token;
            for _ in 0..tokens {
                self.advance();
            }
            let depth = self.deeper(depth, at)?;
            let right = self.unary(depth)?;
            let right = self.binary(right, op.precedence(), depth)?;
            left = match op.apply(left, right) {
                Ok(value) => value,
                Err(why) => return Err(self.fail(rules::NUMBER, at, why)),
            };
        }
        Ok(left)
    }

    fn unary(&mut self, depth: u32) -> Read<Constant> {
        use Constant::{Decimal, F32, F64, Signed, Unsigned};
        let at = self.token;
        match at.kind {
            Kind::Number => Ok(self.literal()?.into()),
            Kind::Word if at.text == "WARP_SZ" => {
                self.advance();
                Ok(Signed(32))
            }
            Kind::Punct(b'(') => {
                self.advance();
                let depth = self.deeper(depth, at)?;
                if self.token.kind == Kind::Dot {
                    let cast = self.advance();
                    self.expect(b')')?;
                    let value = self.unary(depth)?;
                    return match (cast.text, value.integer()) {
                        ("s64", Some(v)) => Ok(Signed(v.cast_signed())),
                        ("u64", Some(v)) => Ok(Unsigned(v)),
                        _ => Err(self.fail(rules::NUMBER, cast, "only `(.s64)` and `(.u64)` of integers")),
                    };
                }
                let value = self.ternary(depth)?;
                self.expect(b')')?;
                Ok(value)
            }
            Kind::Punct(sign @ (b'-' | b'+' | b'~' | b'!')) => {
                self.advance();
                let depth = self.deeper(depth, at)?;
                let value = self.unary(depth)?;
                match (sign, value) {
                    // So says the assembler, which takes a sign before every other form.
                    (b'-', F32(_)) => {
                        Err(self.fail(rules::NUMBER, at, "a `0f` literal takes no sign; set its top bit"))
                    }
                    (b'-', Signed(v)) => Ok(Signed(v.wrapping_neg())),
                    (b'-', Unsigned(v)) => Ok(Unsigned(v.wrapping_neg())),
                    (b'-', F64(bits)) => Ok(F64(bits ^ 1 << 63)),
                    (b'-', Decimal(v)) => Ok(Decimal(-v)),
                    (b'+', value) => Ok(value),
                    (b'~', Signed(v)) => Ok(Unsigned(!v.cast_unsigned())),
                    (b'~', Unsigned(v)) => Ok(Unsigned(!v)),
                    (b'!', value) => Ok(Signed(i64::from(!value.is_true()))),
                    _ => Err(self.fail(rules::NUMBER, at, "the operator takes an integer")),
                }
            }
            _ => Err(self.unexpected("a number")),
        }
    }
}
