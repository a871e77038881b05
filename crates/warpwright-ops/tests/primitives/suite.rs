//! The cases that every device must pass.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use warpwright_runtime::Device;
use warpwright_testkit::{Case, CaseResult, Filter, Scope, cases, run_case};

/// Seconds after which a case is named: many of them would keep everybody waiting.
const SLOW: f64 = 2.0;

/// Which cases of a scope run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sample {
    /// All.
    All,
    /// Of each operation in [`LONG`] and direction, the first of each type, the first of each layout, and each so many-th, half as many of
    /// [`LONGEST`]; all of the others, whose cases take milliseconds.
    OfLong(usize),
    /// Of each operation and direction, the first of each type and each so many-th.
    OfEach(usize),
}

/// The operations whose cases take nearly all of the time.
const LONG: [&str; 22] = [
    "activation_linear",
    "attention",
    "conv",
    "gated_activation_linear",
    "gated_linear",
    "gemm",
    "grouped_gemm",
    "gru",
    "k_grouped_gemm",
    "linear_activation",
    "linear_cross_entropy",
    "lstm",
    "matmul_4bit_fp4",
    "matmul_4bit_int4",
    "matmul_4bit_int4_asymmetric",
    "matmul_4bit_mxfp4",
    "matmul_4bit_nf4",
    "matmul_4bit_nvfp4",
    "rnn",
    "scaled_gemm_e4m3",
    "scaled_gemm_e5m2",
    "scaled_gemm_int8",
];

/// Those of them whose cases take seconds.
const LONGEST: [&str; 5] = ["attention", "conv", "gru", "lstm", "rnn"];

impl Sample {
    pub(crate) fn of(self, cases: Vec<Case>) -> Vec<Case> {
        let every = |op: &str| match self {
            Self::OfLong(every) if LONGEST.contains(&op) => 2 * every,
            Self::OfLong(every) if LONG.contains(&op) => every,
            Self::OfEach(every) => every,
            Self::All | Self::OfLong(_) => 1,
        };
        let mut counts: HashMap<_, usize> = HashMap::new();
        let (mut dtypes, mut layouts) = (HashSet::new(), HashSet::new());
        let sampled = |case: &Case| {
            let of = (case.op, case.direction);
            let before = counts.entry(of).or_default();
            *before += 1;
            let of_type = dtypes.insert((of, case.dtype));
            let of_layout = !matches!(self, Self::OfEach(_)) && layouts.insert((of, case.subject.layout()));
            of_type || of_layout || (*before - 1).is_multiple_of(every(case.op))
        };
        cases.into_iter().filter(sampled).collect()
    }
}

/// Runs the cases of `scope` in `sample` on `device`, or those of the operations that `WARPWRIGHT_OPS` lists, prints the largest
/// errors and the time, and fails with every case that is not in order.
pub(crate) fn run(device: &Device, scope: Scope, sample: Sample) {
    let wanted = std::env::var("WARPWRIGHT_OPS").unwrap_or_default();
    let ops = wanted.split(',').filter(|op| !op.is_empty()).map(str::to_owned).collect();
    let target = Some(device.target());
    run_all(device, &sample.of(cases(&Filter { scope, ops, target, ..Filter::default() })));
}

/// The same of these cases.
pub(crate) fn run_all(device: &Device, all: &[Case]) {
    assert!(!all.is_empty());
    let mut worst: BTreeMap<String, (f64, f64, f64)> = BTreeMap::new();
    let mut results: Vec<CaseResult> = Vec::with_capacity(all.len());
    for case in all {
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
