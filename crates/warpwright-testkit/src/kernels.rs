//! Kernels of the catalogue by parts of their names, and PTX in a form that does not depend on names.

use std::collections::HashMap;
use std::fmt::Write as _;

use warpwright_ops::catalogue::{Entry, catalogue};

/// The operations that may have kernels with one of these parts in their names: those that the parts begin with, or all of
/// them if a part begins with none.
pub fn operations(parts: &[&str]) -> Vec<Entry> {
    let all = catalogue();
    let begins = |part: &str, entry: &Entry| part.starts_with(entry.op);
    let anywhere = parts.iter().any(|part| !all.iter().any(|entry| begins(part, entry)));
    let named = |entry: &&Entry| anywhere || parts.iter().any(|part| begins(part, entry));
    all.iter().filter(named).copied().collect()
}

/// The normal form of a printed kernel: registers are numbered by first appearance under the type that they are declared
/// with, and so are labels, entries, functions, parameters and variables. Two texts with the same normal form are the
/// same program but for its names.
///
/// It reads what `warpwright-ptx` prints, one statement a line, and is not meant for the PTX of others.
pub fn normal_form(text: &str) -> String {
    let mut names = Names::default();
    let mut out = String::with_capacity(text.len());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(declared) = line.strip_prefix(".reg ") {
            names.declare(declared);
        } else if line.starts_with(".version") || line.starts_with(".target") {
            out.push_str(line);
            out.push('\n');
        } else {
            statement(line, &mut names, &mut out);
        }
    }
    out
}

/// The names that have appeared.
#[derive(Default)]
struct Names<'t> {
    /// The types of registers by the letters of their names.
    types: HashMap<&'t str, &'t str>,
    registers: HashMap<&'t str, usize>,
    /// How many registers of a type have appeared.
    of_type: HashMap<&'t str, usize>,
    symbols: HashMap<&'t str, usize>,
}

impl<'t> Names<'t> {
    /// `.b32 %r<92>;`: a function begins, and its registers are others than those of the one before.
    fn declare(&mut self, declared: &'t str) {
        if !self.registers.is_empty() {
            self.registers.clear();
            self.of_type.clear();
            self.types.clear();
        }
        if let Some((ty, name)) = declared.split_once(' ') {
            self.types.insert(name.split(['<', ';']).next().unwrap_or(name), ty);
        }
    }

    /// A register that the function declares; special ones such as `%tid` are none.
    fn register(&mut self, name: &'t str, out: &mut String) -> bool {
        let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let Some(&ty) = self.types.get(letters).filter(|_| letters.len() < name.len()) else { return false };
        let number = *self.registers.entry(name).or_insert_with(|| {
            let next = self.of_type.entry(ty).or_default();
            *next += 1;
            *next - 1
        });
        let _ = write!(out, "%{ty}.{number}");
        true
    }

    fn symbol(&mut self, name: &'t str, out: &mut String) {
        let next = self.symbols.len();
        let _ = write!(out, "${}", self.symbols.entry(name).or_insert(next));
    }
}

const fn in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$'
}

fn statement<'t>(line: &'t str, names: &mut Names<'t>, out: &mut String) {
    let mut rest = line;
    // An operation's name comes first, behind a guard at most.
    let mut at_start = true;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '"' => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
            // A directive, a modifier, a component, a guard.
            '.' | '%' | '@' => {
                let negated = usize::from(rest.starts_with("@!"));
                let from = 1 + negated + usize::from(rest[1 + negated..].starts_with('%'));
                from + rest[from..].find(|c| !in_word(c)).unwrap_or(rest.len() - from)
            }
            c if in_word(c) => rest.find(|c| !in_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (token, behind) = rest.split_at(length);
        rest = behind;
        match c {
            '@' => {
                let at = token.find('%').unwrap_or(0);
                out.push_str(&token[..at]);
                if !names.register(&token[at..], out) {
                    out.push_str(&token[at..]);
                }
                continue;
            }
            '%' if names.register(token, out) => {}
            c if in_word(c) && !c.is_ascii_digit() && token != "_" => {
                let label = rest.starts_with(':');
                if at_start && !label { out.push_str(token) } else { names.symbol(token, out) }
            }
            c if c.is_whitespace() => {
                out.push_str(token);
                continue;
            }
            _ => out.push_str(token),
        }
        at_start = false;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 7.8
.target sm_90
.address_size 64

.visible .entry scale_x4(
    .param .u64 .ptr .global x,
    .param .f32 alpha
)
.reqntid 256, 1, 1
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .f32 %f<3>;
    .shared .align 16 .b32 tile[8];
    ld.param.f32 %f0, [alpha];
    mov.u32 %r1, %tid.x;
    setp.gt.s32 %p1, %r1, 7;
    @!%p1 bra L2;
    mov.b32 %r3, tile;
    st.shared.v2.f32 [%r3+16], {%f0, 0f3F800000};
L2:
    .pragma \"nounroll\";
    shfl.sync.bfly.b32 %r0|%p0, %r1, 1, 31, -1;
    add.rn.f32 %f2, %f0, %f0;
    ret;
}
";

    /// The text with some words replaced, all at once.
    fn renamed(words: &[(&str, &str)]) -> String {
        let mut text = TEXT.to_owned();
        for (i, (from, _)) in words.iter().enumerate() {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, &format!("\u{1}{i}\u{2}"));
        }
        for (i, (_, to)) in words.iter().enumerate() {
            text = text.replace(&format!("\u{1}{i}\u{2}"), to);
        }
        text
    }

    #[test]
    fn names_do_not_matter() {
        let renames: [&[(&str, &str)]; 7] = [
            &[("scale_x4", "multiply")],
            &[("alpha", "factor"), (" x,", " input,")],
            &[("%r1", "%r0"), ("%r0", "%r1")],
            &[("%f0", "%f9"), ("%f<3>", "%f<10>")],
            &[("%p1", "%p0"), ("%p0", "%p1")],
            &[("L2", "LOOP_END")],
            &[("tile", "alpha"), ("alpha", "tile")],
        ];
        for words in renames {
            assert_eq!(normal_form(&renamed(words)), normal_form(TEXT), "{words:?}");
        }
    }

    #[test]
    fn anything_else_matters() {
        let changes: [&[(&str, &str)]; 14] = [
            &[("7.8", "8.0")],
            &[("sm_90", "sm_80")],
            &[("256, 1", "128, 1")],
            &[(".f32 alpha", ".b32 alpha")],
            &[("tile[8]", "tile[9]")],
            &[("%tid.x", "%tid.y")],
            &[("%tid", "%ctaid")],
            &[("@!%p1", "@%p1")],
            &[("@!%p1", "@!%p0")],
            &[("+16", "+12")],
            &[("0f3F800000", "0f3F800001")],
            &[("nounroll", "unroll")],
            &[("%f2, %f0, %f0", "%f0, %f0, %f0")],
            &[("add.rn", "sub.rn")],
        ];
        for words in changes {
            assert_ne!(normal_form(&renamed(words)), normal_form(TEXT), "{words:?}");
        }
        // The order of statements, and a register of another type.
        let (a, b) = ("    mov.u32 %r1, %tid.x;\n", "    ld.param.f32 %f0, [alpha];\n");
        let swapped = TEXT.replace(&format!("{b}{a}"), &format!("{a}{b}"));
        assert_ne!(swapped, TEXT);
        assert_ne!(normal_form(&swapped), normal_form(TEXT));
        assert_ne!(normal_form(&TEXT.replace(".reg .f32", ".reg .b32")), normal_form(TEXT));
    }

    #[test]
    fn registers_of_two_functions_are_not_the_same() {
        let function = |name: &str, register: &str| {
            format!(".func {name}()\n{{\n    .reg .b32 %r<9>;\n    mov.u32 {register}, 1;\n    ret;\n}}\n")
        };
        let two = |a: &str, b: &str| function("first", a) + &function("second", b);
        assert_eq!(normal_form(&two("%r0", "%r0")), normal_form(&two("%r3", "%r4")));
    }

    #[test]
    fn parts_choose_operations() {
        let ops = |parts: &[&str]| -> Vec<_> { operations(parts).iter().map(|e| e.op).collect() };
        assert_eq!(ops(&[""]).len(), catalogue().len());
        assert_eq!(ops(&["wgmma"]).len(), catalogue().len());
        assert!(ops(&["softmax_f32"]).iter().all(|op| *op == "softmax"));
        assert!(!ops(&["softmax_f32"]).is_empty());
    }
}
