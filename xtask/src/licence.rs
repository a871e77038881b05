//! Licence expressions in the language of SPDX, and which of them we accept in what we give away.

/// Licences that code of others may have. All of them allow what our own, MIT or Apache-2.0, allow, if their texts come along.
const ALLOWED: [&str; 6] =
    ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "ISC", "Unicode-3.0", "Zlib"];

/// An expression as it is spelled today: `/` was once a way to say `OR`.
pub(crate) fn spelled(expression: &str) -> String {
    expression.replace('/', " OR ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether some choice that an expression leaves has allowed licences alone. What is no expression is not allowed.
pub(crate) fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    any(&mut words) == Some(true) && words.next().is_none()
}

type Words<'a, 'b> = &'a mut std::iter::Peekable<std::str::SplitWhitespace<'b>>;

/// `a OR b ..`, where `AND` binds more.
fn any(words: Words) -> Option<bool> {
    let mut allowed = all(words)?;
    while words.next_if_eq(&"OR").is_some() {
        allowed |= all(words)?;
    }
    Some(allowed)
}

fn all(words: Words) -> Option<bool> {
    let mut allowed = one(words)?;
    while words.next_if_eq(&"AND").is_some() {
        allowed &= one(words)?;
    }
    Some(allowed)
}

fn one(words: Words) -> Option<bool> {
    let mut name = words.next()?.to_owned();
    if name == "(" {
        let inner = any(words)?;
        return words.next_if_eq(&")").map(|_| inner);
    }
    if words.next_if_eq(&"WITH").is_some() {
        name = format!("{name} WITH {}", words.next()?);
    }
    Some(ALLOWED.contains(&&*name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_allowed_licences_is_enough() {
        for expression in [
            "MIT",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "MIT OR GPL-3.0-only AND ISC",
            "Apache-2.0 WITH LLVM-exception",
            "GPL-2.0-only OR (ISC AND (Zlib OR GPL-2.0-only))",
        ] {
            assert!(is_allowed(expression), "{expression}");
        }
        for expression in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "(MIT OR GPL-3.0-only) AND GPL-3.0-only",
            "MIT WITH LLVM-exception",
            "(MIT",
            "MIT)",
            "MIT OR",
            "MIT ISC",
        ] {
            assert!(!is_allowed(expression), "{expression}");
        }
        assert_eq!(spelled("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
        assert!(is_allowed(&spelled("Unlicense/MIT")));
    }
}
