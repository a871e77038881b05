//! The page that `run --html` writes: the PTX with its lines coloured by what they cost. One file without scripts; the
//! reader chooses the cost.

use std::fmt::Write;

use maud::{Markup, html};
use warpwright_emu::Counters;
use warpwright_emu::counters::LineCounters;
use warpwright_emu::report::Severity;
use warpwright_ptx::text::Sources;

use super::costs::{Cost, grouped, present};
use super::{Aftermath, Launch};
use crate::html::{self, Foreign};

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

/// Stands in front of the kernel's name.
const TITLE: &str = "Cost of ";

/// Every such page begins with this.
pub(super) fn start() -> String {
    let mut start = html::page(TITLE, "", &html! {});
    start.truncate(start.find("</title>").unwrap_or(0));
    start
}

/// The page as text.
pub(super) fn html(launch: &Launch<'_>, outcome: &Aftermath) -> String {
    let (source, lines) = (launch.source, &outcome.lines);
    let file = launch.args.file.display().to_string();
    let [grid, block] = [launch.args.grid, launch.args.block].map(|[x, y, z]| format!("{x} x {y} x {z}"));
    let costs = present(lines);
    let body = html! {
        h1 { (Foreign(launch.entry)) }
        p.files { (Foreign(&file)) ", grid " (grid) ", block " (block) }
        (findings(outcome))
        @for (at, (cost, _)) in costs.iter().enumerate() {
            @let id = format_args!("by-{}", cost.id).to_string();
            input type="radio" name="cost" id=(id) checked[at == 0];
            label.choice for=(id) { (cost.title) }
        }
        (sheet(source, lines, &costs))
        @if let Some(counters) = &outcome.counters { (totals(counters)) }
    };
    html::page(&format!("{TITLE}{}", launch.entry), &style(&costs), &body)
}

/// Each choice shows the shares of its cost.
fn style(costs: &[(Cost, u64)]) -> String {
    let mut style = STYLE.to_owned();
    for (cost, _) in costs {
        let id = cost.id;
        let _ = write!(
            style,
            "#by-{id}:checked ~ .sheet tr {{ --share: var(--{id}, 0); }}\n\
             #by-{id}:checked ~ .sheet .{id} {{ font-weight: 700; color: var(--ink); }}\n\
             #by-{id}:checked ~ [for=by-{id}] {{ border-color: var(--ink); font-weight: 600; }}\n\
             #by-{id}:focus-visible ~ [for=by-{id}] {{ outline: 2px solid var(--heat); }}\n"
        );
    }
    style
}

fn findings(outcome: &Aftermath) -> Markup {
    if outcome.findings.is_empty() && outcome.fault.is_none() {
        return html! {};
    }
    html! {
        h2 { "Findings" }
        ul {
            @for finding in &outcome.findings {
                @let class = if finding.severity == Severity::Error { "error" } else { "warning" };
                li {
                    a href={ "#L" (finding.line) } { "line " (finding.line) } " "
                    span class=(class) { (class) "[" (finding.tool.name()) "/" (finding.kind) "]" }
                    ": " (Foreign(&finding.message))
                }
            }
            @if let Some(fault) = &outcome.fault {
                li { span.error { "error" } ": " (Foreign(fault)) }
            }
        }
    }
}

/// Every line of the text, with its numbers and the bar of the chosen cost.
fn sheet(source: &str, lines: &[LineCounters], costs: &[(Cost, u64)]) -> Markup {
    let sources = Sources::of(source);
    let has_sources = lines.iter().any(|row| sources.at(row.line).is_some());
    let mut rows = lines.iter().peekable();
    html! {
        div.sheet {
            table {
                tr {
                    th {}
                    @for (cost, _) in costs { th class=(cost.id) { (cost.title) } }
                    th { "lanes" }
                    th {}
                    th.code { "PTX" }
                    @if has_sources { th.from { "from" } }
                }
                "\n"
                @for (number, text) in (1..).zip(source.lines()) {
                    @let row = rows.next_if(|row| row.line == number);
                    tr id={ "L" (number) } style=(shares(row, costs)) {
                        td.number { (number) }
                        @for (cost, _) in costs { td class=(cost.id) { (number_of(row, cost)) } }
                        td { (lanes(row)) }
                        td.bar { i {} }
                        td.code { (Foreign(text)) }
                        @if has_sources {
                            td.from {
                                @if let Some(line) = row.and_then(|_| sources.at(number)) { (Foreign(&line.to_string())) }
                            }
                        }
                    }
                    "\n"
                }
            }
        }
    }
}

/// The shares of a line in the largest of each cost, as variables.
fn shares(row: Option<&LineCounters>, costs: &[(Cost, u64)]) -> String {
    let mut style = String::new();
    for (cost, most) in costs {
        let value = row.map_or(0, |row| (cost.of)(&row.counters));
        if value > 0 {
            let _ = write!(style, "--{}:{:.3};", cost.id, value as f64 / *most as f64);
        }
    }
    style
}

fn number_of(row: Option<&LineCounters>, cost: &Cost) -> String {
    let value = row.map(|row| (cost.of)(&row.counters));
    value.filter(|n| *n > 0 || cost.id == "instructions").map_or_else(String::new, grouped)
}

/// The mean of active lanes.
fn lanes(row: Option<&LineCounters>) -> String {
    let lanes = row.map_or(0.0, |row| row.counters.active_lanes());
    if lanes > 0.0 { format!("{lanes:.1}") } else { String::new() }
}

fn totals(counters: &Counters) -> Markup {
    html! {
        h2 { "The whole launch" }
        table.totals {
            @for (name, value) in counters.rows().into_iter().filter(|(_, value)| *value > 0) {
                tr { td { (name) } td { (grouped(value)) } }
            }
        }
    }
}
