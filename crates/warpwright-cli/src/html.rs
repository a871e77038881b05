//! What the HTML pages share: one file without scripts, light or dark as the reader's system is.

/// The beginning of a page, up to and with `<body>`. `style` follows the colours `--paper`, `--ink`, `--dim`, `--line`.
pub(crate) fn head(title: &str, style: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n",
        escape(title)
    )
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

/// Text as it may stand in HTML and in attributes. Names come from files that nobody has vouched for.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
