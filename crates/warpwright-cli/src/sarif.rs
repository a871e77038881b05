//! Findings as SARIF 2.1.0, the form that code-scanning services and editors read.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

/// The rule that a finding breaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule<'a> {
    /// Stable name.
    pub(crate) id: &'a str,
    /// Its demand, or the defect.
    pub(crate) summary: &'a str,
    /// The usual remedy.
    pub(crate) help: &'a str,
}

/// A place in the PTX text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region {
    /// From 1; 0 for the text as a whole.
    pub(crate) line: u32,
    /// In characters, from 1; 0 for the line as a whole.
    pub(crate) column: u32,
    /// Characters; 0 if not known.
    pub(crate) length: u32,
}

/// A place and what happened there.
#[derive(Clone, Debug)]
pub(crate) struct Related {
    pub(crate) region: Region,
    pub(crate) message: String,
}

/// One finding.
#[derive(Clone, Debug)]
pub(crate) struct Finding<'a> {
    pub(crate) rule: Rule<'a>,
    pub(crate) is_error: bool,
    pub(crate) message: String,
    pub(crate) region: Region,
    pub(crate) kernel: Option<&'a str>,
    pub(crate) related: Vec<Related>,
    /// Facts without a place of their own in the format.
    pub(crate) properties: Value,
}

/// A log of one run on one file.
#[derive(Debug)]
pub(crate) struct Log {
    uri: String,
    rules: Vec<Value>,
    numbers: HashMap<String, usize>,
    results: Vec<Value>,
}

impl Log {
    /// An empty log about `file`.
    pub(crate) fn new(file: &Path) -> Self {
        Self { uri: uri(file), rules: Vec::new(), numbers: HashMap::new(), results: Vec::new() }
    }

    pub(crate) fn add(&mut self, finding: &Finding<'_>) {
        let level = if finding.is_error { "error" } else { "warning" };
        let rule = finding.rule;
        let number = *self.numbers.entry(rule.id.to_owned()).or_insert_with(|| {
            self.rules.push(json!({
                "id": rule.id,
                "shortDescription": {"text": rule.summary},
                "help": {"text": if rule.help.is_empty() { rule.summary } else { rule.help }},
                "defaultConfiguration": {"level": level},
            }));
            self.rules.len() - 1
        });
        let mut location = json!({"physicalLocation": self.physical(finding.region)});
        if let Some(kernel) = finding.kernel {
            location["logicalLocations"] = json!([{"name": kernel, "kind": "function"}]);
        }
        let mut result = json!({
            "ruleId": rule.id,
            "ruleIndex": number,
            "level": level,
            "message": {"text": finding.message},
            "locations": [location],
        });
        if !finding.related.is_empty() {
            let related = finding.related.iter().map(|related| {
                json!({
                    "physicalLocation": self.physical(related.region),
                    "message": {"text": related.message},
                })
            });
            result["relatedLocations"] = related.collect();
        }
        if finding.properties.as_object().is_some_and(|p| !p.is_empty()) {
            result["properties"] = finding.properties.clone();
        }
        self.results.push(result);
    }

    fn physical(&self, region: Region) -> Value {
        let mut place = json!({"artifactLocation": {"uri": self.uri}});
        if region.line != 0 {
            let mut span = json!({"startLine": region.line});
            if region.column != 0 {
                span["startColumn"] = region.column.into();
                if region.length != 0 {
                    span["endColumn"] = (region.column + region.length).into();
                }
            }
            place["region"] = span;
        }
        place
    }

    /// The whole log.
    pub(crate) fn finish(self) -> Value {
        json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": {"driver": {
                    "name": "warpwright",
                    "version": env!("CARGO_PKG_VERSION"),
                    "informationUri": env!("CARGO_PKG_REPOSITORY"),
                    "rules": self.rules,
                }},
                "columnKind": "unicodeCodePoints",
                "results": self.results,
            }],
        })
    }
}

/// A path as a URI reference; an absolute one gets its scheme.
fn uri(path: &Path) -> String {
    let text = path.to_string_lossy().replace('\\', "/");
    let mut out = String::from(if path.is_absolute() { "file://" } else { "" });
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(byte as char);
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(id: &str) -> Finding<'_> {
        Finding {
            rule: Rule { id, summary: "Nothing races.", help: "" },
            is_error: true,
            message: "a race".to_owned(),
            region: Region { line: 3, column: 5, length: 4 },
            kernel: Some("k"),
            related: vec![Related {
                region: Region { line: 9, ..Region::default() },
                message: "wrote it".to_owned(),
            }],
            properties: json!({"count": 2}),
        }
    }

    #[test]
    fn rules_are_listed_once_and_results_point_at_them() {
        let mut log = Log::new(Path::new("dir/my k\u{e4}rnel.ptx"));
        for id in ["racecheck/a", "racecheck/b", "racecheck/a"] {
            log.add(&finding(id));
        }
        log.add(&Finding { region: Region::default(), related: vec![], ..finding("racecheck/b") });
        let value = log.finish();
        assert_eq!(value["version"], "2.1.0");
        let run = &value["runs"][0];
        let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[1]["help"]["text"], "Nothing races.");
        let results = run["results"].as_array().unwrap();
        let numbers: Vec<_> = results.iter().map(|r| r["ruleIndex"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [0, 1, 0, 1]);
        for result in results {
            assert_eq!(rules[result["ruleIndex"].as_u64().unwrap() as usize]["id"], result["ruleId"]);
        }
        let place = &results[0]["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "dir/my%20k%C3%A4rnel.ptx");
        assert_eq!(place["region"], json!({"startLine": 3, "startColumn": 5, "endColumn": 9}));
        let other = &results[0]["relatedLocations"][0];
        assert_eq!(other["physicalLocation"]["region"], json!({"startLine": 9}));
        assert_eq!(other["message"]["text"], "wrote it");
        // No place in the text: the file alone, as lines begin at 1.
        assert!(results[3]["locations"][0]["physicalLocation"].get("region").is_none());
        assert!(results[3].get("relatedLocations").is_none());
    }

    #[test]
    fn absolute_paths_have_a_scheme() {
        assert_eq!(uri(Path::new("/tmp/a b")), "file:///tmp/a%20b");
    }
}
