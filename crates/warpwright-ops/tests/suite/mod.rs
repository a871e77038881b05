//! What every device must pass.

use std::collections::BTreeMap;

use warpwright_runtime::Device;
use warpwright_testkit::{CaseResult, Filter, Scope, cases, run_case};

/// Runs all cases of `scope` on `device`, or those of the operations that `WARPWRIGHT_OPS` lists, prints the largest errors,
/// and fails with every case that is not in order.
pub(crate) fn run(device: &Device, scope: Scope) {
    let wanted = std::env::var("WARPWRIGHT_OPS").unwrap_or_default();
    let ops = wanted.split(',').filter(|op| !op.is_empty()).map(str::to_owned).collect();
    let all = cases(&Filter { scope, ops, ..Filter::default() });
    assert!(!all.is_empty());
    let results: Vec<CaseResult> = all.iter().map(|case| run_case(device, case)).collect();
    let mut worst: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for r in &results {
        let entry = worst.entry(format!("{} {} {}", r.op, r.direction, r.dtype)).or_default();
        *entry = (entry.0.max(r.error), entry.1.max(r.element_error));
    }
    for (what, (norm, element)) in &worst {
        println!("{what}: norm-wise {norm:.2e}, elementwise {element:.3} eps");
    }
    let failed: Vec<String> = results.iter().filter(|r| !r.ok).map(describe).collect();
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), results.len(), failed.join("\n"));
}

fn describe(r: &CaseResult) -> String {
    let reason = r.reason.as_deref().unwrap_or("sanitizer findings");
    format!(
        "{} {} {} {:?} ({}): {reason}\n{}",
        r.op,
        r.direction,
        r.dtype,
        r.shape,
        r.input,
        r.findings.join("\n")
    )
}
