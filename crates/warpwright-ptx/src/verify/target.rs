//! V-TARGET: versions, targets and limits.

use super::{Breach, Checker, Rule, VerifyError, module_finding};
use crate::isa::{self, DeviceLimits};
use crate::module::Module;
use crate::types::Target;

/// The largest block that any target runs.
const MAX_THREADS: u64 = DeviceLimits::BLOCK_THREADS as u64;
/// The largest cluster that runs without opting in.
const PORTABLE_CLUSTER: u64 = DeviceLimits::PORTABLE_CLUSTER_BLOCKS as u64;
/// Registers that a thread has at most.
const MAX_REGISTERS: u32 = DeviceLimits::THREAD_REGISTERS;

pub(super) fn check_module(module: &Module, findings: &mut Vec<VerifyError>) {
    let Module { version, target, .. } = module;
    if *version > isa::NEWEST_VERSION {
        let breach = Breach::NewerVersion { version: *version, newest: isa::NEWEST_VERSION };
        module_finding(findings, Rule::Target8, "", breach);
    }
    match isa::target_version(*target) {
        None => module_finding(findings, Rule::Target1, "", Breach::NoSuchTarget { target: *target }),
        Some(first) if *version < first => {
            let breach = Breach::TargetNeedsVersion { target: *target, needed: first, version: *version };
            module_finding(findings, Rule::Target1, "", breach);
        }
        Some(_) => {}
    }
}

pub(super) fn check(cx: &mut Checker<'_>) {
    let (module, function) = (cx.module, cx.function);
    directives(cx);
    let needs = isa::function_requirement(function);
    // Large parameters have a rule of their own.
    let small = function.param_layout().1 <= isa::SMALL_PARAMETER_BYTES;
    if small && needs.version > module.version {
        let breach = Breach::DirectivesNeedVersion { needed: needs.version, version: module.version };
        cx.report_function(Rule::Target2, breach);
    }
    if needs.sm > module.target.sm && small {
        let breach = Breach::DirectivesNeedTarget { sm: needs.sm, target: module.target };
        cx.report_function(Rule::Target3, breach);
    }
    let size = function.param_layout().1;
    let limit = isa::parameter_limit(module.version, module.target);
    if size > limit {
        let breach = Breach::ParameterBytes { bytes: size, version: module.version, limit };
        cx.report_function(Rule::Target5, breach);
    }
    shared(cx);
    cx.each(|cx, instruction| {
        let needs = isa::requirement_on(&instruction.inst, cx.module.target);
        if needs.version > cx.module.version {
            let version = cx.module.version;
            cx.report(Rule::Target2, Breach::InstructionNeedsVersion { needed: needs.version, version });
        }
        let target = cx.module.target;
        if needs.has_target(target) {
            return;
        }
        let breach = if needs.specific.is_empty() {
            Breach::InstructionNeedsTarget { sm: needs.sm, target }
        } else {
            let only = needs.specific.iter().map(|sm| Target::specific(*sm)).collect();
            Breach::InstructionOnTargets { only, target }
        };
        cx.report(Rule::Target3, breach);
    });
}

/// Static shared memory: module-scope variables that the function mentions, and its own.
fn shared(cx: &mut Checker<'_>) {
    let (bytes, limit) =
        (cx.module.static_shared_bytes(cx.function), isa::static_shared_limit(cx.module.target));
    if bytes > limit {
        let target = cx.module.target;
        cx.report_function(Rule::Target4, Breach::StaticShared { bytes, target, limit });
    }
}

fn volume(dims: [u32; 3]) -> u64 {
    dims.iter().fold(1u64, |v, d| v.saturating_mul(u64::from(*d)))
}

fn directives(cx: &mut Checker<'_>) {
    let d = &cx.function.directives;
    let held = u64::from(DeviceLimits::of(cx.module.target).threads);
    for (directive, dims) in [(".maxntid", d.max_threads), (".reqntid", d.required_threads)] {
        let Some(dims) = dims else { continue };
        if dims.contains(&0) {
            cx.report_function(Rule::Target6, Breach::ZeroDimension { directive });
        } else if volume(dims) > MAX_THREADS {
            let breach = Breach::BlockThreads { directive, threads: volume(dims), limit: MAX_THREADS };
            cx.report_function(Rule::Target7, breach);
        } else if let Some(blocks) = d.min_blocks_per_sm
            && volume(dims) * u64::from(blocks) > held
        {
            let (threads, limit) = (volume(dims), held);
            cx.report_function(Rule::Target7, Breach::MultiprocessorThreads { blocks, threads, limit });
        }
    }
    if d.blocks_are_clusters && (d.required_threads.is_none() || d.cluster.is_none()) {
        cx.report_function(Rule::Target6, Breach::ClustersWithoutShape);
    }
    if d.max_threads.is_some() && d.required_threads.is_some() {
        let breach = Breach::DirectivesExclude { first: ".maxntid", second: ".reqntid" };
        cx.report_function(Rule::Target6, breach);
    }
    if d.cluster.is_some() && d.max_cluster_rank.is_some() {
        let breach = Breach::DirectivesExclude { first: ".reqnctapercluster", second: ".maxclusterrank" };
        cx.report_function(Rule::Target6, breach);
    }
    if let Some(dims) = d.cluster {
        if dims.contains(&0) {
            cx.report_function(Rule::Target6, Breach::ZeroDimension { directive: ".reqnctapercluster" });
        } else if volume(dims) > PORTABLE_CLUSTER {
            let breach = Breach::PortableCluster { blocks: volume(dims), limit: PORTABLE_CLUSTER };
            cx.report_function(Rule::Target7, breach);
        }
    }
    if d.min_blocks_per_sm.is_some() && d.max_threads.is_none() && d.required_threads.is_none() {
        cx.report_function(Rule::Target7, Breach::MinBlocksAlone);
    }
    if let Some(n) = d.max_registers.filter(|n| *n > MAX_REGISTERS) {
        cx.report_function(Rule::Target7, Breach::ThreadRegisters { registers: n, limit: MAX_REGISTERS });
    }
}
