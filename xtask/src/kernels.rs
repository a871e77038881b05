//! The hashes of all kernels: listed, and two lists compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use crate::shell::{cargo_output, root};

/// `--hash [PART...]` prints the list; `--compare BEFORE [AFTER] [--only PART...]` compares two, the second of which is
/// made if it is not named.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    match args {
        [flag, parts @ ..] if flag == "--hash" => {
            print!("{}", list(parts)?);
            Ok(())
        }
        [flag, before, rest @ ..] if flag == "--compare" => {
            let (after, parts) = match rest {
                [] => (None, rest),
                [only, parts @ ..] if only == "--only" => (None, parts),
                [after] => (Some(after), &rest[1..]),
                [after, only, parts @ ..] if only == "--only" => (Some(after), parts),
                _ => return Err(format!("what is `{}`?", rest.join(" "))),
            };
            let before = read(before)?;
            let after = after.map_or_else(|| list(parts), |path| read(path))?;
            let comparison = Comparison::of(&before, &after, parts)?;
            print!("{comparison}");
            if comparison.is_equal() { Ok(()) } else { Err("kernels are not what they were".to_owned()) }
        }
        _ => Err("say `--hash [PART...]` or `--compare BEFORE [AFTER] [--only PART...]`".to_owned()),
    }
}

fn list(parts: &[String]) -> Result<String, String> {
    let example = ["run", "--quiet", "-p", "warpwright-testkit", "--example", "kernel_hashes", "--"];
    let parts = parts.iter().map(String::as_str);
    cargo_output(&example.into_iter().chain(parts).collect::<Vec<_>>())
}

/// A file, from the folder that the command was called in or from the workspace root.
fn read(path: &str) -> Result<String, String> {
    let here = Path::new(path);
    let there = root().join(here);
    let path = if here.exists() { here } else { &there };
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// A kernel by target and name, and its texts: two operations may choose different ones of the same name.
type Kernels<'t> = BTreeMap<(&'t str, &'t str), BTreeSet<&'t str>>;

fn parse<'t>(text: &'t str, parts: &[String]) -> Result<BTreeMap<&'t str, Kernels<'t>>, String> {
    let mut families: BTreeMap<_, Kernels<'_>> = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        let [target, family, name, hash] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(format!("line {}: expected target, family, name and hash, got `{line}`", i + 1));
        };
        if parts.is_empty() || parts.iter().any(|part| name.contains(part.as_str())) {
            families.entry(family).or_default().entry((target, name)).or_default().insert(hash);
        }
    }
    Ok(families)
}

/// The differences between two lists of kernels, each with its target.
#[derive(Debug, Default, PartialEq, Eq)]
struct Difference {
    same: usize,
    renamed: Vec<String>,
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<String>,
}

impl Difference {
    fn of(before: &Kernels<'_>, after: &Kernels<'_>) -> Self {
        let mut difference = Self::default();
        let mut gone: Vec<_> = Vec::new();
        for (key @ (target, name), hashes) in before {
            match after.get(key) {
                Some(now) if now == hashes => difference.same += 1,
                Some(_) => difference.changed.push(format!("{target} {name}")),
                None => gone.push((target, name, hashes)),
            }
        }
        for (key @ (target, name), hashes) in after {
            if before.contains_key(key) {
                continue;
            }
            match gone.iter().position(|(of, _, texts)| *of == target && *texts == hashes) {
                Some(at) => {
                    let (_, old, _) = gone.remove(at);
                    difference.renamed.push(format!("{target} {old} -> {name}"));
                }
                None => difference.added.push(format!("{target} {name}")),
            }
        }
        difference.removed = gone.into_iter().map(|(target, name, _)| format!("{target} {name}")).collect();
        difference
    }

    const fn is_equal(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// The differences by family.
struct Comparison(BTreeMap<String, Difference>);

impl Comparison {
    fn of(before: &str, after: &str, parts: &[String]) -> Result<Self, String> {
        let (before, after) = (parse(before, parts)?, parse(after, parts)?);
        let none = Kernels::new();
        let families: BTreeSet<_> = before.keys().chain(after.keys()).collect();
        let of = |lists: &BTreeMap<&str, _>, family: &str| lists.get(family).cloned();
        let differences = families.into_iter().map(|family| {
            let (before, after) = (of(&before, family), of(&after, family));
            let (before, after) = (before.as_ref().unwrap_or(&none), after.as_ref().unwrap_or(&none));
            ((*family).to_owned(), Difference::of(before, after))
        });
        Ok(Self(differences.collect()))
    }

    fn is_equal(&self) -> bool {
        self.0.values().all(Difference::is_equal)
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (family, difference) in &self.0 {
            let Difference { same, renamed, added, removed, changed } = difference;
            let mut counts = format!("{family}: {same} the same");
            let lists = [("renamed", renamed), ("added", added), ("removed", removed), ("changed", changed)];
            for (word, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
                write!(counts, ", {} {word}", list.len())?;
            }
            writeln!(f, "{counts}")?;
            for (word, list) in lists {
                for kernel in list {
                    writeln!(f, "  {word} {kernel}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "sm_80 gemm a 01\nsm_90 gemm a 02\nsm_90 gemm b 03\nsm_90 softmax s 04\n";

    fn compared(after: &str) -> Comparison {
        Comparison::of(BEFORE, after, &[]).unwrap()
    }

    #[test]
    fn equal_lists_are_equal() {
        assert!(compared(BEFORE).is_equal());
        assert_eq!(compared(BEFORE).to_string(), "gemm: 3 the same\nsoftmax: 1 the same\n");
    }

    #[test]
    fn each_kind_of_change_is_told() {
        let comparison = compared("sm_80 gemm a 01\nsm_90 gemm a 05\nsm_90 gemm c 06\nsm_90 softmax t 04\n");
        assert!(!comparison.is_equal());
        let text = comparison.to_string();
        assert!(text.contains("gemm: 1 the same, 1 added, 1 removed, 1 changed\n"), "{text}");
        for line in
            ["  added sm_90 gemm c", "  removed sm_90 b", "  changed sm_90 a", "  renamed sm_90 s -> t"]
        {
            let line = line.replace("gemm ", "");
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }

    #[test]
    fn a_rename_alone_is_no_change_and_a_lost_family_is_one() {
        assert!(compared(&BEFORE.replace(" s ", " t ")).is_equal());
        // A kernel of another target, or of another family, is not the same kernel.
        assert!(!compared(&BEFORE.replace("sm_90 softmax", "sm_80 softmax")).is_equal());
        assert!(!compared(&BEFORE.replace("softmax s", "gemm s")).is_equal());
        assert!(!compared("").is_equal());
    }

    #[test]
    fn parts_choose_kernels_of_both_lists() {
        let after = BEFORE.replace("a 02", "a 09");
        let only = |part: &str| Comparison::of(BEFORE, &after, &[part.to_owned()]).unwrap();
        assert!(only("b").is_equal());
        assert!(!only("a").is_equal());
    }

    #[test]
    fn a_broken_list_is_refused() {
        assert!(Comparison::of(BEFORE, "sm_80 gemm a\n", &[]).is_err());
    }
}
