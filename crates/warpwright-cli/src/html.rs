//! Parts of the HTML pages: one file without scripts, light or dark as the reader's system is.

use maud::{Markup, PreEscaped, Render, html};

/// A page around `body`. `style` follows the colours `--paper`, `--ink`, `--dim`, `--line`.
pub(crate) fn page(title: &str, style: &str, body: &Markup) -> String {
    let page = html! {
        (PreEscaped("<!doctype html>\n"))
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (Foreign(title)) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) }
            }
            "\n"
            body { (body) }
        }
        "\n"
    };
    page.into_string()
}

const STYLE: &str = "
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2024; --dim: #667078; --line: #e2e6ea; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e6e9ec; --dim: #98a2ab; --line: #2b3136; } }
body { margin: 2rem auto; padding: 0 1.5rem; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p.files { margin: 0; color: var(--dim); overflow-wrap: anywhere; }
dl { display: flex; flex-wrap: wrap; gap: .5rem 2.5rem; margin: 1.25rem 0; }
dt { color: var(--dim); font-size: .85rem; }
dd { margin: 0; font-size: 1.2rem; font-variant-numeric: tabular-nums; }
";

/// Text from a file that nobody has vouched for. Control characters are replaced, and tabs are four blanks; the rest is escaped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreign<'a>(pub(crate) &'a str);

impl Render for Foreign<'_> {
    fn render_to(&self, page: &mut String) {
        for c in self.0.chars() {
            match c {
                '\t' => page.push_str("    "),
                // As an attribute in single quotes could hold it.
                '\'' => page.push_str("&#39;"),
                c if c.is_control() => page.push('\u{fffd}'),
                c => (*c.encode_utf8(&mut [0; 4])).render_to(page),
            }
        }
    }
}
