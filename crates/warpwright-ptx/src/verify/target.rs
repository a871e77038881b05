//! V-TARGET: versions, targets and limits.

use super::{Checker, Rule, VerifyError, module_finding};
use crate::isa;
use crate::module::{Function, Module};
use crate::types::{StateSpace, Target};

/// The largest block that any target runs.
const MAX_THREADS: u64 = 1024;
/// The largest cluster that runs without opting in.
const PORTABLE_CLUSTER: u64 = 8;

pub(super) fn check_module(module: &Module, findings: &mut Vec<VerifyError>) {
    let Module { version, target, .. } = module;
    if *version > isa::NEWEST_VERSION {
        let message =
            format!("there is no .version {version} yet; the newest known is {}", isa::NEWEST_VERSION);
        module_finding(findings, Rule::Target1, "", message);
    }
    match isa::target_version(*target) {
        None => module_finding(findings, Rule::Target1, "", format!("there is no target {target}")),
        Some(first) if *version < first => {
            let message = format!("target {target} needs .version {first}, the module has {version}");
            module_finding(findings, Rule::Target1, "", message);
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
        let message =
            format!("its directives need .version {}, the module has {}", needs.version, module.version);
        cx.report_function(Rule::Target2, message);
    }
    if needs.sm > module.target.sm && small {
        let message =
            format!("its directives need sm_{} or later, the module is for {}", needs.sm, module.target);
        cx.report_function(Rule::Target3, message);
    }
    let size = function.param_layout().1;
    let limit = isa::parameter_limit(module.version, module.target);
    if size > limit {
        let message = format!("the parameters take {size} bytes, .version {} allows {limit}", module.version);
        cx.report_function(Rule::Target5, message);
    }
    shared(cx);
    cx.each(|cx, instruction| {
        let needs = isa::requirement_on(&instruction.inst, cx.module.target);
        if needs.version > cx.module.version {
            let message = format!(
                "this instruction needs .version {}, the module has {}",
                needs.version, cx.module.version
            );
            cx.report(Rule::Target2, message);
        }
        let target = cx.module.target;
        if needs.has_target(target) {
            return;
        }
        let message = if needs.specific.is_empty() {
            format!("this instruction needs sm_{} or later, the module is for {target}", needs.sm)
        } else {
            let names: Vec<String> =
                needs.specific.iter().map(|sm| Target::specific(*sm).to_string()).collect();
            format!("this instruction exists on {} only, the module is for {target}", names.join(", "))
        };
        cx.report(Rule::Target3, message);
    });
}

/// Static shared memory: module-scope variables that the function mentions, and its own.
fn shared(cx: &mut Checker<'_>) {
    let mut at = 0u64;
    for variable in shared_variables(cx.module, cx.function) {
        at = at.next_multiple_of(u64::from(variable.align.max(1)));
        at = at.saturating_add(variable.bytes().unwrap_or(u64::MAX));
    }
    let limit = isa::static_shared_limit(cx.module.target);
    if at > limit {
        let message = format!(
            "static shared memory takes {at} bytes, {} allows {limit}; use dynamic shared memory",
            cx.module.target
        );
        cx.report_function(Rule::Target4, message);
    }
}

fn shared_variables<'m>(
    module: &'m Module,
    function: &'m Function,
) -> impl Iterator<Item = &'m crate::module::Variable> {
    let mentioned = function.symbols.iter().filter_map(|s| match s {
        crate::module::Symbol::ModuleVariable(i) => module.variables.get(*i as usize),
        _ => None,
    });
    mentioned.chain(&function.variables).filter(|v| v.space == StateSpace::Shared)
}

/// Threads that one multiprocessor holds at a time.
const fn threads_per_sm(sm: u32) -> u64 {
    match sm {
        75 => 1024,
        86..=89 | 120.. => 1536,
        _ => 2048,
    }
}

fn volume(dims: [u32; 3]) -> u64 {
    dims.iter().fold(1u64, |v, d| v.saturating_mul(u64::from(*d)))
}

fn directives(cx: &mut Checker<'_>) {
    let d = &cx.function.directives;
    for (name, dims) in [(".maxntid", d.max_threads), (".reqntid", d.required_threads)] {
        let Some(dims) = dims else { continue };
        if dims.contains(&0) {
            cx.report_function(Rule::Target6, format!("{name} has a dimension of 0"));
        } else if volume(dims) > MAX_THREADS {
            let message =
                format!("{name} asks for {} threads, a block has at most {MAX_THREADS}", volume(dims));
            cx.report_function(Rule::Target7, message);
        } else if let Some(blocks) = d.min_blocks_per_sm
            && volume(dims) * u64::from(blocks) > threads_per_sm(cx.module.target.sm)
        {
            let (threads, most) = (volume(dims), threads_per_sm(cx.module.target.sm));
            let message = format!(
                ".minnctapersm {blocks} with {threads} threads a block is ignored: a multiprocessor holds {most} threads"
            );
            cx.report_function(Rule::Target7, message);
        }
    }
    if d.blocks_are_clusters && (d.required_threads.is_none() || d.cluster.is_none()) {
        let message = ".blocksareclusters needs .reqntid and .reqnctapercluster".to_owned();
        cx.report_function(Rule::Target6, message);
    }
    if d.max_threads.is_some() && d.required_threads.is_some() {
        cx.report_function(Rule::Target6, ".maxntid and .reqntid exclude each other".to_owned());
    }
    if d.cluster.is_some() && d.max_cluster_rank.is_some() {
        cx.report_function(
            Rule::Target6,
            ".reqnctapercluster and .maxclusterrank exclude each other".to_owned(),
        );
    }
    if let Some(dims) = d.cluster {
        if dims.contains(&0) {
            cx.report_function(Rule::Target6, ".reqnctapercluster has a dimension of 0".to_owned());
        } else if volume(dims) > PORTABLE_CLUSTER {
            let message = format!(
                "a cluster of {} blocks is not portable: at most {PORTABLE_CLUSTER} unless the launch opts in",
                volume(dims)
            );
            cx.report_function(Rule::Target7, message);
        }
    }
    if d.min_blocks_per_sm.is_some() && d.max_threads.is_none() && d.required_threads.is_none() {
        let message = ".minnctapersm is ignored without .maxntid or .reqntid".to_owned();
        cx.report_function(Rule::Target7, message);
    }
    if let Some(n @ 256..) = d.max_registers {
        cx.report_function(
            Rule::Target7,
            format!(".maxnreg {n} is ignored: a thread has at most 255 registers"),
        );
    }
}
