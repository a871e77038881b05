//! Test support: inputs, budgets, error measures, and cases that run on any device.
//!
//! A [`Case`] is one operation on one input. [`cases`] lists them, [`run_case`] runs one on a device (the CUDA driver's
//! or the emulator, with its sanitizers) and compares the result with the f64 reference of the operation, within the
//! table of [`budget`]. The suites of `warpwright-ops` and the command `warpwright check` are loops over these.

#![forbid(unsafe_code)]

mod activated;
mod activation;
pub mod assembler;
mod attention;
mod batch_norm;
pub mod budget;
mod case;
mod cast;
mod causal_conv1d;
mod chunk_scan;
mod conv;
mod copy;
mod cross_entropy;
mod cumsum;
pub mod differential;
mod elementwise;
mod embedding;
mod gated_linear;
mod gather_scatter;
mod gemm;
mod group_norm;
mod grouped_gemm;
mod images;
pub mod inputs;
pub mod kernels;
mod kv_cache;
mod layer_norm;
mod linear_cross_entropy;
mod local_response_norm;
mod matmul_4bit;
pub mod measure;
pub mod mutate;
mod optimizer;
mod pool;
pub mod ptx_cases;
mod ptx_run;
mod quantize;
mod quantize8;
mod quantize_dynamic;
pub mod random;
pub mod ranks;
mod recurrent;
mod reduce;
mod resize;
mod rotary;
mod scaled_gemm;
mod selective_scan;
mod softmax;
pub mod storage;
mod topk;

pub use case::{
    Bench, Case, CaseError, CaseResult, Launches, Placed, Scope, Subject, run_case, run_case_with,
};
pub use ptx_run::run_ptx_case;
pub use recurrent::recurrent_case;
use warpwright_ops::{Direction, Entry, catalogue};
use warpwright_ptx::{DType, Target};

/// Which cases to list; the default is the quick set of everything.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Names of operations; empty means all.
    pub ops: Vec<String>,
    /// Element types; empty means all.
    pub dtypes: Vec<DType>,
    /// One direction; `None` means both.
    pub direction: Option<Direction>,
    /// How many cases of each operation.
    pub scope: Scope,
    /// A target that the operations must run on; `None` means any.
    pub target: Option<Target>,
}

impl Filter {
    fn admits(&self, case: &Case) -> bool {
        (self.ops.is_empty() || self.ops.iter().any(|op| op == case.op))
            && (self.dtypes.is_empty() || self.dtypes.contains(&case.dtype))
            && self.direction.is_none_or(|d| d == case.direction)
    }
}

/// The families; a new one adds its list of cases here.
const FAMILIES: &[fn(Scope) -> Vec<Case>] = &[
    activation::cases,
    attention::cases,
    batch_norm::cases,
    cast::cases,
    causal_conv1d::cases,
    chunk_scan::cases,
    selective_scan::cases,
    quantize::cases,
    quantize8::cases,
    quantize_dynamic::cases,
    scaled_gemm::cases,
    grouped_gemm::cases,
    matmul_4bit::cases,
    conv::cases,
    copy::cases,
    elementwise::cases,
    gemm::cases,
    activated::cases,
    gated_linear::cases,
    group_norm::cases,
    layer_norm::cases,
    local_response_norm::cases,
    pool::cases,
    reduce::cases,
    cumsum::cases,
    topk::cases,
    optimizer::cases,
    resize::cases,
    recurrent::cases,
    rotary::cases,
    kv_cache::cases,
    softmax::cases,
    cross_entropy::cases,
    linear_cross_entropy::cases,
    embedding::cases,
    gather_scatter::cases,
];

/// The cases that `filter` admits, family by family.
pub fn cases(filter: &Filter) -> Vec<Case> {
    let entries = catalogue();
    let runs = |case: &Case| {
        let of_case = |entry: &&Entry| entry.op == case.op && entry.direction == case.direction;
        let first = entries.iter().find(of_case).and_then(|entry| entry.targets.iter().map(|t| t.sm).min());
        filter.target.zip(first).is_none_or(|(target, first)| first <= target.sm)
    };
    let all = FAMILIES.iter().flat_map(|list| list(filter.scope));
    all.filter(|case| filter.admits(case) && runs(case)).collect()
}
