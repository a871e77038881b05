//! Expressions from text.

use std::str::FromStr;

use super::expr::{Binary, Expr, ExprError, MAX_NODES, Unary};

impl FromStr for Expr {
    type Err = ExprError;

    /// Reads what [`Display`](std::fmt::Display) writes: functions of arguments, `x0` for a tensor, `s0` for a number of the launch,
    /// and constants.
    fn from_str(text: &str) -> Result<Self, ExprError> {
        let mut parser = Parser { rest: text.trim() };
        let expr = parser.expr(0)?;
        if parser.rest.is_empty() { Ok(expr) } else { Err(parser.expected("the end")) }
    }
}

struct Parser<'t> {
    rest: &'t str,
}

impl<'t> Parser<'t> {
    fn expected(&self, expected: &'static str) -> ExprError {
        let rest = self.rest.chars().take(40).collect();
        ExprError::Text { expected, rest }
    }

    /// Takes `mark` and the spaces behind it, if it is next.
    fn takes(&mut self, mark: char) -> bool {
        let found = self.rest.strip_prefix(mark);
        if let Some(rest) = found {
            self.rest = rest.trim_start();
        }
        found.is_some()
    }

    /// A word up to the next mark.
    fn word(&mut self) -> &'t str {
        let end = self.rest.find(['(', ')', ',']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.trim()
    }

    fn expr(&mut self, depth: usize) -> Result<Expr, ExprError> {
        // What is nested deeper has more nodes than that.
        if depth > MAX_NODES {
            return Err(ExprError::Nodes { nodes: depth, limit: MAX_NODES });
        }
        let at = Self { rest: self.rest };
        let word = self.word();
        if !self.takes('(') {
            return operand(word).ok_or_else(|| at.expected("x0, s0, a number or a function"));
        }
        let mut arguments = vec![self.expr(depth + 1)?];
        while self.takes(',') {
            // No function has more.
            if arguments.len() == 3 {
                return Err(self.expected("`)`"));
            }
            arguments.push(self.expr(depth + 1)?);
        }
        if !self.takes(')') {
            return Err(self.expected("`,` or `)`"));
        }
        call(word, &arguments)
            .ok_or_else(|| ExprError::Function { name: word.to_owned(), arguments: arguments.len() })
    }
}

fn operand(word: &str) -> Option<Expr> {
    // Rust's own parser takes a sign.
    let index = |digits: &str| digits.parse().ok().filter(|_| !digits.starts_with('+'));
    if let Some(index) = word.strip_prefix('x').and_then(index) {
        return Some(Expr::input(index));
    }
    if let Some(index) = word.strip_prefix('s').and_then(index) {
        return Some(Expr::scalar(index));
    }
    word.parse().ok().map(Expr::constant)
}

fn call(name: &str, arguments: &[Expr]) -> Option<Expr> {
    match arguments {
        [a] => Unary::ALL.into_iter().find(|f| f.name() == name).map(|f| a.unary(f)),
        [a, b] => Binary::ALL.into_iter().find(|f| f.name() == name).map(|f| a.binary(f, b)),
        [a, b, c] if name == "where" => Some(a.where_(b, c)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_read_as_it_is_written() {
        let [x, y] = Expr::inputs();
        let unary = Unary::ALL.map(|f| x.unary(f));
        let binary = Binary::ALL.map(|f| x.binary(f, &y));
        let constants =
            [0.1, -3.0, 1e300, -5e-324, f64::INFINITY, f64::NEG_INFINITY, f64::NAN].map(Expr::constant);
        let others = [x.where_(&y, Expr::scalar(7)), Expr::input(12)];
        for expr in unary.into_iter().chain(binary).chain(constants).chain(others) {
            assert_eq!(expr.to_string().parse(), Ok(expr.clone()), "{expr}");
        }
    }

    #[test]
    fn spaces_do_not_matter() {
        let [x, y] = Expr::inputs();
        let want = x + y * Expr::scalar(0);
        for text in ["add(x0,mul(x1,s0))", "  add( x0 , mul ( x1 , s0 ) ) "] {
            assert_eq!(text.parse(), Ok(want.clone()), "{text}");
        }
    }

    #[test]
    fn what_is_no_expression() {
        let error = |text: &str| text.parse::<Expr>().expect_err(text).to_string();
        let operand = "expected x0, s0, a number or a function at";
        assert_eq!(error(""), format!("{operand} ``"));
        assert_eq!(error("add(x0, y)"), format!("{operand} `y)`"));
        assert_eq!(error("x-1"), format!("{operand} `x-1`"));
        assert_eq!(error("add(x0, x1"), "expected `,` or `)` at ``");
        assert_eq!(error("add(x0, x1) x2"), "expected the end at `x2`");
        assert_eq!(error("where(x0, x1, x2, x3)"), "expected `)` at `x3)`");
        assert_eq!(error("pow(x0, x1)"), "there is no function `pow` of 2 arguments");
        assert_eq!(error("exp(x0, x1)"), "there is no function `exp` of 2 arguments");
        let deep = "neg(".repeat(100_000);
        assert_eq!(error(&deep), "257 operations and operands, at most 256 are allowed");
    }
}
