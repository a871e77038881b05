//! Findings for scripts and for code scanners.

use serde_json::{Map, Value, json};
use warpwright_emu::Finding;
use warpwright_emu::report::{FaultAddress, OtherParty, Severity, Tool};
use warpwright_ptx::text::SourceLine;

use crate::commands::lint::characters;
use crate::sarif::{self, Region, Related, Rule};

/// A finding with everything that is known about it.
pub(in crate::commands) fn to_json(finding: &Finding, source: &str) -> Value {
    let mut value = json!({
        "tool": finding.tool.name(),
        "line": finding.line,
        "message": finding.message,
        "severity": finding.severity.name(),
        "kind": finding.kind,
        "kernel": finding.kernel,
        "column": region(source, finding.line, finding.column).column,
        "block": finding.block,
        "thread": finding.thread,
        "count": finding.count,
    });
    if let Some(address) = &finding.address {
        value["address"] = address_json(address);
    }
    if let Some(other) = &finding.other {
        value["other"] = other_json(other, source);
    }
    if let Some(line) = &finding.source {
        value["source"] = source_json(line);
    }
    if !finding.help.is_empty() {
        value["help"] = finding.help.as_str().into();
    }
    value
}

fn address_json(address: &FaultAddress) -> Value {
    let mut value = json!({"space": address.space.name(), "address": address.address});
    if let Some(label) = &address.label {
        value["buffer"] = label.as_str().into();
        value["offset"] = address.offset.into();
    }
    value
}

fn other_json(other: &OtherParty, source: &str) -> Value {
    let mut value = Map::new();
    value.insert("action".to_owned(), other.action.into());
    let (line, column) = (other.line.unwrap_or(0), other.column.unwrap_or(0));
    let facts = [
        ("block", other.block.map(Value::from)),
        ("thread", other.thread.map(Value::from)),
        ("line", other.line.map(Value::from)),
        ("column", other.column.map(|_| region(source, line, column).column.into())),
        ("source", other.source.as_ref().map(source_json)),
    ];
    value.extend(facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?))));
    value.into()
}

fn source_json(line: &SourceLine) -> Value {
    json!({"file": line.file, "line": line.line, "column": line.column})
}

/// The instruction that begins at a place of the text; the column comes in bytes and goes in characters.
pub(in crate::commands) fn region(source: &str, line: u32, column: u32) -> Region {
    let text = (line as usize).checked_sub(1).and_then(|at| source.lines().nth(at)).unwrap_or("");
    let from = (column as usize).saturating_sub(1);
    let statement = text.get(from..).unwrap_or("");
    let end = statement.find(';').map_or(statement.trim_end().len(), |at| at + 1);
    let length = statement.get(..end).map_or(0, |s| s.chars().count());
    Region { line, column: characters(text, column), length: u32::try_from(length).unwrap_or(0) }
}

fn tool_rule(tool: Tool) -> &'static str {
    match tool {
        Tool::Memcheck => "Accesses lie inside live allocations of their state space and are aligned.",
        Tool::Initcheck => "What is read was written before.",
        Tool::Racecheck => "Conflicting accesses of different threads are ordered.",
        Tool::Synccheck => "Barriers and warp collectives are reached by the threads that they wait for.",
    }
}

/// Adds a finding to a log; the other thread of a race is a related location.
pub(in crate::commands) fn to_sarif(finding: &Finding, source: &str, log: &mut sarif::Log) {
    let id = format!("{}/{}", finding.tool, finding.kind);
    let mut message = format!(
        "{} (thread {:?} of block {:?}{})",
        finding.message,
        finding.thread,
        finding.block,
        if finding.count > 1 { format!(", {} times in all", finding.count) } else { String::new() }
    );
    if let Some(address) = &finding.address {
        message += &format!(". Address: {address}");
    }
    let mut related = Vec::new();
    if let Some(other) = &finding.other {
        let who = match (other.thread, other.block) {
            (Some(thread), Some(block)) => format!("thread {thread:?} of block {block:?} {}", other.action),
            _ => other.action.to_owned(),
        };
        if let Some(line) = other.line {
            let region = region(source, line, other.column.unwrap_or(0));
            related.push(Related { region, message: who });
        } else {
            message += &format!(". The other: {who}");
        }
    }
    if !finding.help.is_empty() {
        message += &format!(". Help: {}", finding.help);
    }
    let mut properties = Map::new();
    for (name, fact) in [
        ("source", finding.source.as_ref().map(source_json)),
        ("address", finding.address.as_ref().map(address_json)),
        ("other", finding.other.as_ref().map(|other| other_json(other, source))),
    ] {
        properties.extend(fact.map(|fact| (name.to_owned(), fact)));
    }
    properties.extend(
        [("block", json!(finding.block)), ("thread", json!(finding.thread)), ("count", json!(finding.count))]
            .map(|(name, fact)| (name.to_owned(), fact)),
    );
    log.add(&sarif::Finding {
        rule: Rule { id: &id, summary: tool_rule(finding.tool), help: &finding.help },
        is_error: finding.severity == Severity::Error,
        message,
        region: region(source, finding.line, finding.column),
        kernel: Some(&finding.kernel),
        related,
        properties: properties.into(),
    });
}

/// Adds an array that depends on the schedule.
pub(super) fn difference_to_sarif(message: String, kernel: &str, log: &mut sarif::Log) {
    let summary = "Results are the same in every order of warps and blocks.";
    log.add(&of_kernel(Rule { id: "schedule", summary, help: "" }, false, message, kernel));
}

/// Adds the reason why a kernel was ended.
pub(super) fn fault_to_sarif(fault: &str, kernel: &str, log: &mut sarif::Log) {
    let rule = Rule { id: "fault", summary: "A kernel runs to its end.", help: "" };
    log.add(&of_kernel(rule, true, fault.to_owned(), kernel));
}

/// Of a whole kernel, not of a line.
fn of_kernel<'a>(rule: Rule<'a>, is_error: bool, message: String, kernel: &'a str) -> sarif::Finding<'a> {
    let (region, related, properties) = (Region::default(), Vec::new(), Value::Null);
    sarif::Finding { rule, is_error, message, region, kernel: Some(kernel), related, properties }
}
