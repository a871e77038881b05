//! The public interface of a library as a list that is kept in the repository, so that a change of it is a change of a file.
//!
//! The list is read from the pages that rustdoc has just written: they alone show re-exported items with what macros make of them, they need
//! no other toolchain, and the gate writes them anyway. Addresses of items and members, and the text of declarations, are read and nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::bridges::{self, Bridge};
use crate::shell::{cargo, output, root, target_dir};

/// A library that semantic versioning covers.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    package: &'static str,
}

pub(crate) const FACADE: Library = Library { package: "warpwright" };

pub(crate) const fn of_bridge(bridge: Bridge) -> Library {
    Library { package: bridge.package }
}

const ALL: [Library; 3] = [FACADE, of_bridge(bridges::CANDLE), of_bridge(bridges::BURN)];

/// Modules that may change with any minor version.
const UNSTABLE: [&str; 2] = ["tuning", "reference"];

/// `api`: whether the lists are those of the sources; with `--write` they become so; with `--since REV` the differences to those of a release,
/// which is an error if anything is gone.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => documented().and_then(|()| ALL.iter().try_for_each(Library::check)),
        ["--write"] => documented().and_then(|()| ALL.iter().try_for_each(Library::write)),
        ["--since", revision] => since(revision),
        _ => Err("say `api`, `api --write` or `api --since REV`".to_owned()),
    }
}

/// Has rustdoc write the pages of all libraries.
fn documented() -> Result<(), String> {
    cargo(&["doc", "--package", FACADE.package, "--no-deps"], &[])?;
    bridges::document()
}

impl Library {
    /// Fails unless the list is that of the pages.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (kept, found) = (read(&self.list())?, self.found()?);
        let (gone, new) = differences(&kept, &found);
        if gone.is_empty() && new.is_empty() {
            return Ok(());
        }
        Err(format!(
            "the public interface of {} is not that of {}; if it is meant to change (docs/versions.md), run `cargo xtask api --write`:\n{}",
            self.package,
            self.list().display(),
            shown(&gone, &new)
        ))
    }

    fn write(&self) -> Result<(), String> {
        let path = self.list();
        fs::write(&path, self.found()?).map_err(|e| format!("{}: {e}", path.display()))
    }

    fn name(&self) -> String {
        format!("docs/api/{}.txt", self.package)
    }

    fn list(&self) -> PathBuf {
        root().join(self.name())
    }

    /// The list by rustdoc's pages.
    fn found(&self) -> Result<String, String> {
        let folder = target_dir().join("doc").join(self.package.replace('-', "_"));
        let mut items = BTreeMap::new();
        // Pages of items that are gone may still be there: those that count are named by this one.
        for page in pages(&read(&folder.join("all.html"))?) {
            let path: Vec<_> = page.split('/').collect();
            let Some((file, modules)) = path.split_last() else { continue };
            let Some((kind, name)) = file.strip_suffix(".html").and_then(|f| f.split_once('.')) else {
                continue;
            };
            if modules.iter().any(|module| UNSTABLE.contains(module)) {
                continue;
            }
            let path = [&[self.package], modules, &[name]].concat().join("::").replace('-', "_");
            let lines = members(&read(&folder.join(page))?, kind);
            items.insert((path, kind.to_owned()), lines);
        }
        let mut list = format!(
            "# The public interface of {} by `cargo xtask api --write`; modules `{}` apart.\n",
            self.package,
            UNSTABLE.join("` and `")
        );
        for ((path, _), lines) in items {
            let _ = write!(list, "\n{path}\n");
            lines.iter().for_each(|line| list.extend(["    ", line, "\n"]));
        }
        Ok(list)
    }
}

/// Prints what is in the lists of a revision and not in those of this tree, and the reverse.
fn since(revision: &str) -> Result<(), String> {
    let mut broken = Vec::new();
    for library in ALL {
        let before = output("git", &["show", &format!("{revision}:{}", library.name())])?;
        let (gone, new) = differences(&before, &read(&library.list())?);
        println!("{}: {} gone, {} new", library.package, gone.len(), new.len());
        print!("{}", shown(&gone, &new));
        if !gone.is_empty() {
            broken.push(library.package);
        }
    }
    if broken.is_empty() {
        return Ok(());
    }
    Err(format!("not what {revision} promises, so no patch release: {}", broken.join(", ")))
}

/// Lines of the first list that the second has not, and of the second that the first has not, each behind its item.
fn differences(before: &str, after: &str) -> (Vec<String>, Vec<String>) {
    let (before, after) = (flat(before), flat(after));
    let only = |these: &[String], those: &[String]| {
        let those: std::collections::HashSet<_> = those.iter().collect();
        these.iter().filter(|line| !those.contains(line)).cloned().collect::<Vec<_>>()
    };
    (only(&before, &after), only(&after, &before))
}

fn flat(list: &str) -> Vec<String> {
    let mut item = "";
    let mut lines = Vec::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix("    ") {
            Some(member) => lines.push(format!("{item}: {member}")),
            None => item = line,
        }
    }
    lines
}

fn shown(gone: &[String], new: &[String]) -> String {
    let lines = gone.iter().map(|line| format!("  - {line}\n"));
    lines.chain(new.iter().map(|line| format!("  + {line}\n"))).collect()
}

/// The pages that the list of all items links to.
fn pages(all: &str) -> Vec<&str> {
    let lists = all.split("<ul class=\"all-items\">").skip(1).filter_map(|rest| rest.split("</ul>").next());
    lists.flat_map(|list| list.split("href=\"").skip(1)).filter_map(|rest| rest.split('"').next()).collect()
}

/// The declaration on the page of an item, and its members: fields, variants, associated items, implementations of traits.
fn members(page: &str, kind: &str) -> Vec<String> {
    // Methods of other types behind `Deref`, and implementations that the compiler or another crate makes for all types, are not this item's own.
    let page = ["id=\"deref-methods-", "id=\"synthetic-implementations\"", "id=\"blanket-implementations\""]
        .iter()
        .filter_map(|end| page.find(end))
        .min()
        .map_or(page, |end| &page[..end]);
    let mut lines = Vec::new();
    let declaration =
        between(page, "<pre class=\"rust item-decl\"><code>", "</code></pre>").map(text).unwrap_or_default();
    let head = match (kind, declaration.split_once('{')) {
        ("struct" | "union", Some((head, body))) if body.contains("private fields") => {
            format!("{} {{ private fields }}", head.trim_end())
        }
        ("struct" | "union" | "enum" | "trait", Some((head, _))) => head.trim_end().to_owned(),
        _ => declaration,
    };
    lines.push(head);
    // A trait's page goes on with the types that implement it, which say so on theirs.
    let page = if kind == "trait" { page.split("id=\"implementors\"").next().unwrap_or(page) } else { page };
    for section in page.split("id=\"").skip(1) {
        let Some((address, rest)) = section.split_once('"') else { continue };
        let own = rest.split('>').next().is_some_and(|tag| !tag.contains("trait-impl"));
        let line = match address.split_once('.').map_or(address, |(start, _)| start) {
            "structfield" => between(rest, "<code>", "</code>"),
            "variant" if address.contains(".field.") => between(rest, "<code>", "</code>"),
            "variant" => between(rest, "<h3 class=\"code-header\">", "</h3>"),
            "method" | "tymethod" | "associatedtype" | "associatedconstant" if own => {
                between(rest, "<h4 class=\"code-header\">", "</h4>")
            }
            start if start.starts_with("impl-") => between(rest, "<h3 class=\"code-header\">", "</h3>"),
            _ => None,
        };
        // Of a field of a variant, also whose it is.
        let variant = address.strip_prefix("variant.").and_then(|at| at.split_once(".field."));
        let line = line.map(text).filter(|line| !address.starts_with("impl-") || is_of_trait(line));
        lines.extend(line.map(|line| variant.map_or(line.clone(), |(of, _)| format!("{of}.{line}"))));
    }
    lines
}

/// Whether the head of an implementation names a trait that counts. Without one its methods are listed; `StructuralPartialEq` is the compiler's.
fn is_of_trait(line: &str) -> bool {
    line.contains(" for ") && !line.contains("StructuralPartialEq")
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    text.split_once(start)?.1.split_once(end).map(|(inside, _)| inside)
}

/// The text of a piece of a page, without what only lays it out. A type that has two names has that by which users find it, to which it links.
fn text(html: &str) -> String {
    let mut plain = String::new();
    for (at, piece) in html.split('<').enumerate() {
        // Everything but the first begins within a tag.
        let (tag, piece) = if at == 0 { ("", piece) } else { piece.split_once('>').unwrap_or((piece, "")) };
        if tag.starts_with("div") || tag.starts_with("/div") {
            plain.push(' ');
        }
        let linked = between(tag, "title=\"", "\"").and_then(|title| title.rsplit_once("::"));
        plain.push_str(linked.map_or(piece, |(_, name)| name));
    }
    for (entity, character) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("&amp;", "&")]
    {
        plain = plain.replace(entity, character);
    }
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    // A list of arguments is in one line or in several by its length.
    plain.replace("( ", "(").replace(", )", ")").replace(" )", ")")
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_read_from_its_page() {
        let page = r##"<pre class="rust item-decl"><code><div class="code-attribute">#[non_exhaustive]</div>pub struct Desc&lt;'a&gt; {
    pub len: <a href="x">usize</a>,
    /* private fields */
}</code></pre><span id="structfield.len" class="structfield section-header"><a href="#structfield.len">§</a><code>len: <a href="x">usize</a></code></span>
<section id="impl-Desc" class="impl"><h3 class="code-header">impl&lt;'a&gt; Desc&lt;'a&gt;</h3></section>
<section id="method.plan" class="method"><h4 class="code-header">pub fn <a>plan</a>(
    &amp;self,
    target: Target,
) -&gt; Plan</h4></section>
<section id="impl-Clone-for-Desc" class="impl"><h3 class="code-header">impl Clone for Desc</h3></section>
<section id="method.clone" class="method trait-impl"><h4 class="code-header">fn clone(&amp;self) -&gt; Self</h4></section>
<h2 id="synthetic-implementations">Auto</h2><section id="impl-Send-for-Desc" class="impl"><h3 class="code-header">impl Send for Desc</h3></section>"##;
        assert_eq!(
            members(page, "struct"),
            [
                "#[non_exhaustive] pub struct Desc<'a> { private fields }",
                "len: usize",
                "pub fn plan(&self, target: Target) -> Plan",
                "impl Clone for Desc",
            ]
        );
    }

    #[test]
    fn variants_have_their_fields() {
        let page = r##"<pre class="rust item-decl"><code>pub enum E { A { x: u8 }, B(u8) }</code></pre>
<section id="variant.A" class="variant"><h3 class="code-header">A</h3></section>
<span id="variant.A.field.x" class="section-header"><code>x: u8</code></span>
<section id="variant.B" class="variant"><h3 class="code-header">B(u8)</h3></section>"##;
        assert_eq!(members(page, "enum"), ["pub enum E", "A", "A.x: u8", "B(u8)"]);
    }

    #[test]
    fn a_type_has_the_name_that_it_links_to() {
        let html = r#"<a class="enum" href="enum.RuntimeError.html" title="enum warpwright::RuntimeError">Error</a>&lt;'_&gt;"#;
        assert_eq!(text(html), "RuntimeError<'_>");
    }

    #[test]
    fn pages_are_those_that_are_linked() {
        let all = r#"<a href="index.html"></a><ul class="all-items"><li><a href="a/fn.f.html">a::f</a></li></ul><a href="b.html"></a>"#;
        assert_eq!(pages(all), ["a/fn.f.html"]);
    }

    #[test]
    fn differences_are_those_of_members() {
        let before = "# list\n\na::B\n    pub struct B\n    x: u8\n\na::f\n    pub fn f()\n";
        let after = "# list\n\na::B\n    pub struct B\n    x: u16\n";
        let (gone, new) = differences(before, after);
        assert_eq!(
            (&gone[..], &new[..]),
            (
                &["a::B: x: u8".to_owned(), "a::f: pub fn f()".to_owned()][..],
                &["a::B: x: u16".to_owned()][..]
            )
        );
    }
}
