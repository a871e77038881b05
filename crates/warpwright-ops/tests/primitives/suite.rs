//! The cases that every device must pass.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use warpwright_runtime::Device;
use warpwright_testkit::{Case, CaseResult, Filter, Scope, cases, run_case};

/// Seconds after which a case is named: many of them would keep everybody waiting.
const SLOW: f64 = 2.0;

/// Runs the first case of `scope` and each `every`th after it of each operation, direction and type on `device`, or of the
/// operations that `WARPWRIGHT_OPS` lists, prints the largest errors and the time, and fails with every case that is not in order.
pub(crate) fn run(device: &Device, scope: Scope, every: usize) {
    let wanted = std::env::var("WARPWRIGHT_OPS").unwrap_or_default();
    let ops = wanted.split(',').filter(|op| !op.is_empty()).map(str::to_owned).collect();
    let mut counts: HashMap<_, usize> = HashMap::new();
    let all = cases(&Filter { scope, ops, ..Filter::default() }).into_iter().filter(|case| {
        let before = counts.entry((case.op, case.direction, case.dtype)).or_default();
        *before += 1;
        (*before - 1).is_multiple_of(every)
    });
    let all: Vec<Case> = all.collect();
    assert!(!all.is_empty());
    let mut worst: BTreeMap<String, (f64, f64, f64)> = BTreeMap::new();
    let mut results: Vec<CaseResult> = Vec::with_capacity(all.len());
    for case in &all {
        let start = Instant::now();
        let r = run_case(device, case);
        let (norm, element, seconds) =
            worst.entry(format!("{} {} {}", r.op, r.direction, r.dtype)).or_default();
        *norm = norm.max(r.error);
        *element = element.max(r.element_error);
        let taken = start.elapsed().as_secs_f64();
        if taken > SLOW {
            println!("{case}: {taken:.1} s");
        }
        *seconds += taken;
        results.push(r);
    }
    for (what, (norm, element, seconds)) in &worst {
        println!("{what}: norm-wise {norm:.2e}, elementwise {element:.3} eps, {seconds:.1} s");
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
