//! Constant expressions: random ones against a second evaluator, and the rules that C programmers trip over.

use proptest::prelude::*;
use warpwright_ptx::text::parse;
use warpwright_ptx::*;

/// An integer with its type, `.s64` or `.u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    bits: u64,
    unsigned: bool,
}

/// An expression with the text that stands for it.
#[derive(Clone, Debug)]
enum Tree {
    Literal(u64, bool),
    Unary(&'static str, Box<Tree>),
    Binary(&'static str, Box<Tree>, Box<Tree>),
    Choice(Box<Tree>, Box<Tree>, Box<Tree>),
}

const UNARY: &[&str] = &["-", "+", "~", "!", "(.s64)", "(.u64)"];
const BINARY: &[&str] =
    &["*", "/", "%", "+", "-", "<<", ">>", "<", "<=", ">", ">=", "==", "!=", "&", "^", "|", "&&", "||"];

fn tree() -> impl Strategy<Value = Tree> {
    let number = prop_oneof![0u64..20, any::<u64>(), Just(u64::MAX), Just(1 << 63)];
    let leaf = (number, any::<bool>()).prop_map(|(n, suffix)| Tree::Literal(n, suffix));
    leaf.prop_recursive(5, 40, 3, |inner| {
        let (a, b, c) = (inner.clone(), inner.clone(), inner);
        prop_oneof![
            (prop::sample::select(UNARY), a.clone()).prop_map(|(op, a)| Tree::Unary(op, a.into())),
            (prop::sample::select(BINARY), a.clone(), b.clone()).prop_map(|(op, a, b)| Tree::Binary(
                op,
                a.into(),
                b.into()
            )),
            (a, b, c).prop_map(|(a, b, c)| Tree::Choice(a.into(), b.into(), c.into())),
        ]
    })
}

impl Tree {
    /// With parentheses around everything, so that no precedence is needed to read it.
    fn text(&self) -> String {
        match self {
            Self::Literal(n, suffix) => format!("{n}{}", if *suffix { "U" } else { "" }),
            Self::Unary(op, a) => format!("{op}({})", a.text()),
            Self::Binary(op, a, b) => format!("({} {op} {})", a.text(), b.text()),
            Self::Choice(a, b, c) => format!("({} ? {} : {})", a.text(), b.text(), c.text()),
        }
    }

    /// The value that the assembler gives it, in arithmetic of 128 bits; `None` for a division by zero.
    fn value(&self) -> Option<Value> {
        let wide = |v: Value| if v.unsigned { i128::from(v.bits) } else { i128::from(v.bits.cast_signed()) };
        let make = |wide: i128, unsigned: bool| Value { bits: wide as u64, unsigned };
        let truth = |yes: bool| make(i128::from(yes), false);
        Some(match self {
            Self::Literal(n, suffix) => Value { bits: *n, unsigned: *suffix || *n > i64::MAX as u64 },
            Self::Unary(op, a) => {
                let a = a.value()?;
                match *op {
                    "-" => make(-wide(a), a.unsigned),
                    "~" => make(!wide(a), true),
                    "!" => truth(a.bits == 0),
                    "(.s64)" => Value { unsigned: false, ..a },
                    "(.u64)" => Value { unsigned: true, ..a },
                    _ => a,
                }
            }
            Self::Choice(a, b, c) => {
                let (a, b, c) = (a.value()?, b.value()?, c.value()?);
                if a.bits == 0 { c } else { b }
            }
            Self::Binary(op, a, b) => {
                let (left, right) = (a.value()?, b.value()?);
                let unsigned = left.unsigned || right.unsigned;
                // The usual conversion: both become unsigned if one is.
                let (x, y) = (wide(Value { unsigned, ..left }), wide(Value { unsigned, ..right }));
                match *op {
                    "*" => make(i128::from(left.bits.wrapping_mul(right.bits)), unsigned),
                    "/" | "%" if y == 0 => return None,
                    "/" => make(x / y, unsigned),
                    "%" => make(i128::from(left.bits % right.bits), true),
                    "+" => make(x + y, unsigned),
                    "-" => make(x - y, unsigned),
                    "<<" => make(wide(left) << (right.bits % 64), left.unsigned),
                    ">>" => make(wide(left) >> (right.bits % 64), left.unsigned),
                    "<" => truth(x < y),
                    "<=" => truth(x <= y),
                    ">" => truth(x > y),
                    ">=" => truth(x >= y),
                    "==" => truth(left.bits == right.bits),
                    "!=" => truth(left.bits != right.bits),
                    "&&" => truth(left.bits != 0 && right.bits != 0),
                    "||" => truth(left.bits != 0 || right.bits != 0),
                    // Bitwise operators give the common type.
                    "&" => make(i128::from(left.bits & right.bits), unsigned),
                    "^" => make(i128::from(left.bits ^ right.bits), unsigned),
                    _ => make(i128::from(left.bits | right.bits), unsigned),
                }
            }
        })
    }
}

/// The value that a `mov` of the expression moves, or the message of the parser.
fn evaluate(ty: &str, expression: &str) -> Result<Imm, String> {
    let head = ".version 7.0\n.target sm_80\n.entry k() { .reg .b64 d; .reg .f32 f; .reg .f64 g;\n";
    let register = match ty {
        "f32" => "f",
        "f64" => "g",
        _ => "d",
    };
    let parsed = parse(&format!("{head}mov.{ty} {register}, {expression}; ret; }}"));
    if let Some(error) = parsed.errors().next() {
        return Err(error.message.clone());
    }
    match parsed.module.functions[0].blocks[0].instructions[0].inst {
        Inst::Mov { src: Operand::Imm(value), .. } => Ok(value),
        ref other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(3000), ..ProptestConfig::default() })]

    #[test]
    fn random_expressions_have_the_value_of_the_assembler(tree in tree()) {
        let text = tree.text();
        match tree.value() {
            Some(v) => prop_assert_eq!(evaluate("b64", &text), Ok(Imm::Int(v.bits.cast_signed())), "{}", text),
            // A division by zero is reported wherever it stands, even in a branch that is not taken.
            None => prop_assert!(evaluate("b64", &text).is_err(), "{}", text),
        }
    }
}

#[test]
fn operators_bind_as_in_c() {
    let integers = [
        ("1 + 2 * 3", 7),
        ("10 - 4 - 3", 3),
        ("1 << 2 + 1", 8),
        ("7 & 3 == 3", 1),
        ("1 | 6 ^ 2 & 3", 1 | (6 ^ (2 & 3))),
        ("0 || 1 && 0", 0),
        ("1 ? 2 : 0 ? 3 : 4", 2),
        ("0 ? 1 : 0 ? 3 : 4", 4),
        ("2 < 3 != 4 > 5", 1),
        ("-7 / 2", -3),
        ("-7 % 2", 1),
        ("-1 >> 60", -1),
        ("(.u64)-1 >> 60", 15),
        ("-1 < 1U", 0),
        ("9223372036854775807 + 1", i64::MIN),
        ("0xffffffffffffffff / 2", i64::MAX),
        ("- - -5", -5),
        ("!0 + ~0", 0),
        ("1 << 65", 2),
        ("-8 >> 64", -8),
        ("(-1 & -1) < 0", 1),
        ("(-1 & -1U) < 0", 0),
        ("(1 ? -1 : 1U) < 0", 1),
        ("!1.5 + (1.5 && 1)", 1),
        ("WARP_SZ * 2 - 1", 63),
    ];
    for (text, value) in integers {
        assert_eq!(evaluate("b64", text), Ok(Imm::Int(value)), "{text}");
    }
    assert_eq!(evaluate("f32", "1.0 / 4.0 - 1.5"), Ok(Imm::F32((-1.25f32).to_bits())));
    assert_eq!(evaluate("f64", "-(2.5 * 2.0)"), Ok(Imm::F64((-5.0f64).to_bits())));
    assert_eq!(evaluate("f32", "1.0 < 2.0 ? 3.0 : 4.0"), Ok(Imm::F32(3.0f32.to_bits())));
}

#[test]
fn what_has_no_value_is_named() {
    for (text, message) in [
        ("1 / (2 - 2)", "division by zero"),
        ("1.0 / 0.0", "division by zero"),
        ("1 + 1.0", "mixes integers and floats"),
        ("~1.0", "takes an integer"),
        ("1.0 << 2.0", "takes integers"),
        ("0f3F800000 + 1.0", "cannot be part of an expression"),
        ("(.u32) 5", "only `(.s64)` and `(.u64)`"),
        ("1 +", "expected a number"),
        ("(1", "expected `)`"),
        ("1 ? 2", "expected `:`"),
    ] {
        let said = evaluate("b64", text).expect_err(text);
        assert!(said.contains(message), "{text}: {said}");
    }
    let deep = format!("{}1{}", "(".repeat(5000), ")".repeat(5000));
    assert!(evaluate("b64", &deep).expect_err("deep").contains("nests deeper"));
    let chain = format!("1{}", " + 1".repeat(5000));
    assert_eq!(evaluate("b64", &chain), Ok(Imm::Int(5001)));
}
