//! The page that `run --html` writes: the PTX with its lines coloured by what they cost. One file without scripts; the
//! reader chooses the cost.

use std::fmt::Write;

use warpwright_emu::counters::LineCounters;
use warpwright_emu::report::Severity;
use warpwright_ptx::text::Sources;

use super::costs::{grouped, present};
use super::{Aftermath, Launch};
use crate::html::{escape, head};

const STYLE: &str = "
:root { --heat: #f59e0b; --error: #b91c1c; }
@media (prefers-color-scheme: dark) { :root { --heat: #d97706; --error: #f87171; } }
input[name=cost] { position: absolute; opacity: 0; }
.choice { display: inline-block; margin: .75rem .5rem 1rem 0; padding: .15rem .7rem; border: 1px solid var(--line); border-radius: 1rem; cursor: pointer; }
.sheet { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
th, td { text-align: right; padding: 0 .6rem; white-space: nowrap; }
th { position: sticky; top: 0; background: var(--paper); color: var(--dim); font-weight: 500; border-bottom: 1px solid var(--line); }
.code { text-align: left; font-family: ui-monospace, monospace; white-space: pre; tab-size: 4; }
.from, .number { color: var(--dim); } .from { text-align: left; }
tr { --share: 0; }
tr .code { background: color-mix(in srgb, var(--heat) calc(var(--share) * 55%), transparent); }
.bar { min-width: 5rem; padding: 0; } .bar i { display: block; height: .65em; width: calc(var(--share) * 5rem); background: var(--heat); }
tr:target .code { outline: 2px solid var(--heat); }
.error { color: var(--error); font-weight: 600; }
.totals th:first-child, .totals td:first-child { text-align: left; padding-left: 0; }
";

/// What stands in front of the kernel's name.
const TITLE: &str = "Cost of ";

/// What every such page begins with.
pub(super) fn start() -> String {
    let mut start = head(TITLE, "");
    start.truncate(start.find("</title>").unwrap_or(0));
    start
}

/// The page as text.
pub(super) fn html(launch: &Launch<'_>, outcome: &Aftermath) -> String {
    let (source, lines) = (launch.source, &outcome.lines);
    let file = launch.args.file.display().to_string();
    let [grid, block] = [launch.args.grid, launch.args.block].map(|[x, y, z]| format!("{x} x {y} x {z}"));
    let costs = present(lines);
    let mut style = STYLE.to_owned();
    for (cost, _) in &costs {
        let id = cost.id;
        let _ = write!(
            style,
            "#by-{id}:checked ~ .sheet tr {{ --share: var(--{id}, 0); }}\n\
             #by-{id}:checked ~ .sheet .{id} {{ font-weight: 700; color: var(--ink); }}\n\
             #by-{id}:checked ~ [for=by-{id}] {{ border-color: var(--ink); font-weight: 600; }}\n\
             #by-{id}:focus-visible ~ [for=by-{id}] {{ outline: 2px solid var(--heat); }}\n"
        );
    }
    let mut page = head(&format!("{TITLE}{}", launch.entry), &style);
    let _ = write!(
        page,
        "<h1>{}</h1>\n<p class=\"files\">{}, grid {grid}, block {block}</p>\n",
        escape(launch.entry),
        escape(&file)
    );
    findings(&mut page, outcome);
    for (at, (cost, _)) in costs.iter().enumerate() {
        let checked = if at == 0 { " checked" } else { "" };
        let _ = writeln!(
            page,
            "<input type=\"radio\" name=\"cost\" id=\"by-{0}\"{checked}><label class=\"choice\" for=\"by-{0}\">{1}</label>",
            cost.id, cost.title
        );
    }
    sheet(&mut page, source, lines);
    if let Some(counters) = &outcome.counters {
        page.push_str("<h2>The whole launch</h2>\n<table class=\"totals\">\n");
        for (name, value) in counters.rows().into_iter().filter(|(_, value)| *value > 0) {
            let _ = writeln!(page, "<tr><td>{name}</td><td>{}</td></tr>", grouped(value));
        }
        page.push_str("</table>\n");
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn findings(page: &mut String, outcome: &Aftermath) {
    if outcome.findings.is_empty() && outcome.fault.is_none() {
        return;
    }
    page.push_str("<h2>Findings</h2>\n<ul>\n");
    for finding in &outcome.findings {
        let class = if finding.severity == Severity::Error { "error" } else { "warning" };
        let _ = writeln!(
            page,
            "<li><a href=\"#L{0}\">line {0}</a> <span class=\"{class}\">{class}[{1}/{2}]</span>: {3}</li>",
            finding.line,
            finding.tool,
            finding.kind,
            escape(&finding.message)
        );
    }
    if let Some(fault) = &outcome.fault {
        let _ = writeln!(page, "<li><span class=\"error\">error</span>: {}</li>", escape(fault));
    }
    page.push_str("</ul>\n");
}

/// Every line of the text, with its numbers and the bar of the chosen cost.
fn sheet(page: &mut String, source: &str, lines: &[LineCounters]) {
    let costs = present(lines);
    let sources = Sources::of(source);
    let has_sources = lines.iter().any(|row| sources.at(row.line).is_some());
    page.push_str("<div class=\"sheet\">\n<table>\n<tr><th></th>");
    for (cost, _) in &costs {
        let _ = write!(page, "<th class=\"{}\">{}</th>", cost.id, cost.title);
    }
    page.push_str("<th>lanes</th><th></th><th class=\"code\">PTX</th>");
    page.push_str(if has_sources { "<th class=\"from\">from</th></tr>\n" } else { "</tr>\n" });
    let mut rows = lines.iter().peekable();
    for (number, text) in (1..).zip(source.lines()) {
        let row = rows.next_if(|row| row.line == number);
        let _ = write!(page, "<tr id=\"L{number}\" style=\"");
        for (cost, most) in costs.iter().filter(|_| row.is_some()) {
            let value = row.map_or(0, |row| (cost.of)(&row.counters));
            if value > 0 {
                let _ = write!(page, "--{}:{:.3};", cost.id, value as f64 / *most as f64);
            }
        }
        let _ = write!(page, "\"><td class=\"number\">{number}</td>");
        for (cost, _) in &costs {
            let value =
                row.map(|row| (cost.of)(&row.counters)).filter(|n| *n > 0 || cost.id == "instructions");
            let _ =
                write!(page, "<td class=\"{}\">{}</td>", cost.id, value.map_or_else(String::new, grouped));
        }
        let lanes = row.map_or(0.0, |row| row.counters.active_lanes());
        let lanes = if lanes > 0.0 { format!("{lanes:.1}") } else { String::new() };
        let code: String = text
            .chars()
            .map(|c| if c == '\t' { "    ".to_owned() } else { escape(c.encode_utf8(&mut [0; 4])) })
            .collect();
        let _ = write!(page, "<td>{lanes}</td><td class=\"bar\"><i></i></td><td class=\"code\">{code}</td>");
        if has_sources {
            let from = row.and_then(|_| sources.at(number)).map_or_else(String::new, |line| line.to_string());
            let _ = write!(page, "<td class=\"from\">{}</td>", escape(&from));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n</div>\n");
}
