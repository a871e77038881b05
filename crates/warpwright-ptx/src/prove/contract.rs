//! Contracts: a caller's promises about the launches of a kernel, which are the extents of arrays, sizes and relations between them.

use std::collections::BTreeMap;
use std::fmt;

use crate::dtype::DType;

/// A whole number that depends on a launch: numbers, scalar parameters by name, `ntid.x` to `nctaid.z`, `+ - * / %` and parentheses.
/// Divisions round down and are by positive numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    text: String,
    node: Node,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Number(i64),
    Name(String),
    Binary(char, Box<Node>, Box<Node>),
}

/// A comparison of two expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    text: String,
    pub(super) left: Node,
    pub(super) relation: Relation,
    pub(super) right: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// Elements of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many there are.
    pub count: Expression,
    /// Their type.
    pub dtype: DType,
}

/// Why a text says nothing about launches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// An expression ends or goes on where it should not.
    #[error("`{text}`: expected {expected} at `{}`", text.get(*at..).unwrap_or_default())]
    Syntax {
        /// The text.
        text: String,
        /// Bytes before the place.
        at: usize,
        /// Text that may stand there.
        expected: &'static str,
    },
    /// An array has no element type.
    #[error("`{text}`: an array is COUNT:DTYPE, such as n:f32")]
    NoType {
        /// The text.
        text: String,
    },
    /// A range has no two ends, or they are in the wrong order.
    #[error("`{text}`: a range is MIN..MAX, such as 0..1000")]
    Range {
        /// The text.
        text: String,
    },
    /// A name means nothing in the kernel.
    #[error("`{name}` is {expected}")]
    Name {
        /// The name.
        name: String,
        /// The kind of name expected there.
        expected: &'static str,
    },
    /// An expression is too large, or divides by what may not be positive.
    #[error("`{text}` {defect}")]
    Value {
        /// The text.
        text: String,
        /// The fault.
        defect: &'static str,
    },
}

/// Promises about all launches of a kernel. Nothing promised is any launch that the device takes; the extents of
/// arrays have no default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contract {
    /// Arrays by the names of the parameters that point to them. Arrays do not overlap and begin at multiples of 16 bytes.
    pub arrays: BTreeMap<String, Extent>,
    /// Least and largest values of scalar parameters. One that may be negative is signed.
    pub ranges: BTreeMap<String, (i64, i64)>,
    /// Relations between sizes.
    pub assumptions: Vec<Assumption>,
    /// The shape of the blocks. Without it that of `.reqntid`, or any.
    pub block: Option<[u32; 3]>,
    /// The shape of the grid; any without it.
    pub grid: Option<[u32; 3]>,
    /// Bytes of dynamic shared memory; none without it.
    pub shared: Option<Expression>,
}

impl Contract {
    /// Adds an array: the parameter that points to it, and `COUNT:DTYPE`.
    ///
    /// # Errors
    /// The text is no such extent.
    pub fn array(mut self, name: &str, extent: &str) -> Result<Self, ContractError> {
        self.arrays.insert(name.to_owned(), Extent::parse(extent)?);
        Ok(self)
    }

    /// Adds a comparison that holds in every launch.
    ///
    /// # Errors
    /// The text is no comparison.
    pub fn assume(mut self, comparison: &str) -> Result<Self, ContractError> {
        self.assumptions.push(Assumption::parse(comparison)?);
        Ok(self)
    }

    /// Whether a launch with these parameters and extents is one that is promised: all assumptions hold, values are in their
    /// ranges, and arrays have sizes.
    pub fn admits(&self, names: &BTreeMap<String, i128>) -> bool {
        let value = |name: &str| names.get(name).copied();
        let in_range = |(name, (low, high)): (&String, &(i64, i64))| {
            value(name).is_some_and(|v| (i128::from(*low)..=i128::from(*high)).contains(&v))
        };
        self.ranges.iter().all(in_range)
            && self.assumptions.iter().all(|one| one.holds(&value) == Some(true))
            && self
                .arrays
                .values()
                .all(|extent| extent.count.evaluate(&value).is_some_and(|count| count >= 0))
            && self.shared.iter().all(|bytes| bytes.evaluate(&value).is_some_and(|bytes| bytes >= 0))
    }

    /// Whether anything is said of a name.
    pub fn mentions(&self, name: &str) -> bool {
        let mut found = self.arrays.contains_key(name) || self.ranges.contains_key(name);
        let mut look = |other: &str| found |= other == name;
        for assumption in &self.assumptions {
            assumption.left.names(&mut look);
            assumption.right.names(&mut look);
        }
        let counts = self.arrays.values().map(|extent| &extent.count);
        counts.chain(&self.shared).for_each(|count| count.node.names(&mut look));
        found
    }

    /// Moves values to where equations want them: the one that an equation names becomes the other side, and one that is a
    /// multiple of a number is rounded down to one.
    pub fn adjust(&self, names: &mut BTreeMap<String, i128>) {
        for assumption in self.assumptions.iter().filter(|one| one.relation == Relation::Equal) {
            let Assumption { left, right, .. } = assumption;
            let (name, value) = match (left, right) {
                (Node::Binary('%', of, by), Node::Number(0)) => match (&**of, &**by) {
                    (Node::Name(name), Node::Number(by)) if *by > 0 => {
                        let value = names.get(name).map(|v| v - v.rem_euclid(i128::from(*by)));
                        (name, value)
                    }
                    _ => continue,
                },
                (Node::Name(name), other) | (other, Node::Name(name)) => {
                    (name, other.evaluate(&|name| names.get(name).copied()))
                }
                _ => continue,
            };
            if let (Some(known), Some(value)) = (names.get_mut(name), value) {
                *known = value;
            }
        }
    }
}

impl Extent {
    /// `COUNT:DTYPE`
    ///
    /// # Errors
    /// The text is something else.
    pub fn parse(text: &str) -> Result<Self, ContractError> {
        let no_type = || ContractError::NoType { text: text.to_owned() };
        let (count, dtype) = text.rsplit_once(':').ok_or_else(no_type)?;
        let dtype = DType::from_name(dtype.trim()).ok_or_else(no_type)?;
        Ok(Self { count: Expression::parse(count)?, dtype })
    }
}

/// Reads `MIN..MAX`.
///
/// # Errors
/// The text is something else, or the ends are in the wrong order.
pub fn parse_range(text: &str) -> Result<(i64, i64), ContractError> {
    let ends = text
        .split_once("..")
        .and_then(|(low, high)| Some((low.trim().parse::<i64>().ok()?, high.trim().parse::<i64>().ok()?)));
    ends.filter(|(low, high)| low <= high).ok_or_else(|| ContractError::Range { text: text.to_owned() })
}

impl Expression {
    /// Reads an expression.
    ///
    /// # Errors
    /// The text is none.
    pub fn parse(text: &str) -> Result<Self, ContractError> {
        let mut reader = Reader { text, at: 0, depth: 0 };
        let node = reader.sum()?;
        reader.end()?;
        Ok(Self { text: text.trim().to_owned(), node })
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// Its value where names have these; `None` if one has none, or the result does not fit.
    pub fn evaluate(&self, names: &dyn Fn(&str) -> Option<i128>) -> Option<i128> {
        self.node.evaluate(names)
    }
}

impl Assumption {
    /// Reads a comparison of two expressions: `==`, `!=`, `<`, `<=`, `>` or `>=`.
    ///
    /// # Errors
    /// The text is none.
    pub fn parse(text: &str) -> Result<Self, ContractError> {
        let mut reader = Reader { text, at: 0, depth: 0 };
        let left = reader.sum()?;
        let relations = [
            ("==", Relation::Equal),
            ("!=", Relation::NotEqual),
            ("<=", Relation::AtMost),
            (">=", Relation::AtLeast),
            ("<", Relation::Less),
            (">", Relation::Greater),
        ];
        let found = relations.into_iter().find(|(sign, _)| reader.accept(sign));
        let (_, relation) = found.ok_or_else(|| reader.wrong("a comparison"))?;
        let right = reader.sum()?;
        reader.end()?;
        Ok(Self { text: text.trim().to_owned(), left, relation, right })
    }

    /// Whether it holds where names have these values; `None` if one has none.
    pub fn holds(&self, names: &dyn Fn(&str) -> Option<i128>) -> Option<bool> {
        let (left, right) = (self.left.evaluate(names)?, self.right.evaluate(names)?);
        Some(match self.relation {
            Relation::Equal => left == right,
            Relation::NotEqual => left != right,
            Relation::Less => left < right,
            Relation::AtMost => left <= right,
            Relation::Greater => left > right,
            Relation::AtLeast => left >= right,
        })
    }
}

impl Node {
    fn evaluate(&self, names: &dyn Fn(&str) -> Option<i128>) -> Option<i128> {
        match self {
            Self::Number(number) => Some(i128::from(*number)),
            Self::Name(name) => names(name),
            Self::Binary(operator, left, right) => {
                let (left, right) = (left.evaluate(names)?, right.evaluate(names)?);
                match operator {
                    '+' => left.checked_add(right),
                    '-' => left.checked_sub(right),
                    '*' => left.checked_mul(right),
                    '/' => (right > 0).then(|| left.div_euclid(right)),
                    _ => (right > 0).then(|| left.rem_euclid(right)),
                }
            }
        }
    }

    /// Calls `f` for every name.
    pub(super) fn names(&self, f: &mut dyn FnMut(&str)) {
        match self {
            Self::Number(_) => {}
            Self::Name(name) => f(name),
            Self::Binary(_, left, right) => {
                left.names(f);
                right.names(f);
            }
        }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

/// How deep parentheses may be nested.
const NESTED: u32 = 32;
/// How long a text may be: sums lean to the left as far as they are long.
const LENGTH: usize = 1000;

impl Reader<'_> {
    fn wrong(&self, expected: &'static str) -> ContractError {
        ContractError::Syntax { text: self.text.to_owned(), at: self.at, expected }
    }

    fn skip(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn accept(&mut self, sign: &str) -> bool {
        self.skip();
        let found = self.text[self.at..].starts_with(sign);
        self.at += if found { sign.len() } else { 0 };
        found
    }

    fn end(&mut self) -> Result<(), ContractError> {
        self.skip();
        if self.at == self.text.len() { Ok(()) } else { Err(self.wrong("an operator or the end")) }
    }

    fn sum(&mut self) -> Result<Node, ContractError> {
        if self.text.len() > LENGTH {
            return Err(self.wrong("a shorter expression"));
        }
        self.operators(&['+', '-'], Self::product)
    }

    fn product(&mut self) -> Result<Node, ContractError> {
        self.operators(&['*', '/', '%'], Self::factor)
    }

    fn operators(
        &mut self,
        operators: &[char],
        next: fn(&mut Self) -> Result<Node, ContractError>,
    ) -> Result<Node, ContractError> {
        let mut left = next(self)?;
        loop {
            self.skip();
            let operator = self.text[self.at..].chars().next().filter(|c| operators.contains(c));
            let Some(operator) = operator else { return Ok(left) };
            self.at += 1;
            left = Node::Binary(operator, Box::new(left), Box::new(next(self)?));
        }
    }

    fn factor(&mut self) -> Result<Node, ContractError> {
        const EXPECTED: &str = "a number, a name or a parenthesis";
        if self.accept("(") {
            self.depth += 1;
            if self.depth > NESTED {
                return Err(self.wrong("fewer parentheses"));
            }
            let inner = self.sum()?;
            self.depth -= 1;
            return if self.accept(")") { Ok(inner) } else { Err(self.wrong("`)`")) };
        }
        self.skip();
        let rest = &self.text[self.at..];
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.');
        // A `%` is an operator but for the start of a special register's name.
        let special = rest.starts_with('%');
        let body = rest.strip_prefix('%').unwrap_or(rest);
        let length = body.find(|c| !is_part(c) || c == '%').unwrap_or(body.len());
        let word = &body[..length];
        let first = word.chars().next().ok_or_else(|| self.wrong(EXPECTED))?;
        let node = if first.is_ascii_digit() {
            Node::Number(word.parse().map_err(|_| self.wrong("a number of 63 bits"))?)
        } else {
            Node::Name(word.to_owned())
        };
        self.at += length + usize::from(special);
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<i128> {
        Expression::parse(text).ok()?.evaluate(&|name| match name {
            "n" => Some(10),
            "ntid.x" => Some(256),
            _ => None,
        })
    }

    #[test]
    fn expressions_have_the_usual_values() {
        assert_eq!(value("2 + n*3 - 1"), Some(31));
        assert_eq!(value("(n + 3) / 4 * 4"), Some(12));
        assert_eq!(value("%ntid.x - n % 4"), Some(254));
        assert_eq!(value("n / (n - 10)"), None);
        assert_eq!(value("m"), None);
        for bad in ["", "n +", "(n", "n n", "2x", "99999999999999999999", "n ? 1", &"(".repeat(2000)] {
            assert!(Expression::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn comparisons_hold_or_not() {
        let holds = |text: &str| Assumption::parse(text).unwrap().holds(&|_| Some(8));
        assert_eq!(holds("n % 4 == 0"), Some(true));
        assert_eq!(holds("n < 8"), Some(false));
        assert_eq!(holds("n <= 8"), Some(true));
        assert_eq!(holds("n != n"), Some(false));
        assert!(Assumption::parse("n = 8").is_err());
        assert!(Assumption::parse("n + 8").is_err());
    }

    #[test]
    fn launches_are_adjusted_and_admitted() {
        let contract = Contract::default()
            .array("x", "n*rows:f32")
            .and_then(|c| c.assume("n % 4 == 0"))
            .and_then(|c| c.assume("nctaid.x == rows"))
            .and_then(|c| c.assume("n <= 100"))
            .unwrap();
        let named = [("n", 11), ("rows", 3), ("nctaid.x", 1)].map(|(name, value)| (name.to_owned(), value));
        let mut names = BTreeMap::from(named);
        assert!(!contract.admits(&names));
        assert!(contract.mentions("x") && contract.mentions("rows") && !contract.mentions("y"));
        contract.adjust(&mut names);
        assert_eq!((names["n"], names["nctaid.x"]), (8, 3));
        assert!(contract.admits(&names));
        names.insert("n".to_owned(), 104);
        assert!(!contract.admits(&names));
    }

    #[test]
    fn extents_have_a_type() {
        let extent = Extent::parse("rows*n : bf16").unwrap();
        assert_eq!((extent.count.to_string().as_str(), extent.dtype), ("rows*n", DType::BF16));
        assert!(Extent::parse("n").is_err() && Extent::parse("n:f33").is_err());
        assert_eq!(parse_range("-1..5"), Ok((-1, 5)));
        assert!(parse_range("5..1").is_err() && parse_range("5").is_err());
    }
}
