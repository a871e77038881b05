//! One line for every kernel of the catalogue: target, family, name, and a hash of its normal form, in a fixed order.
//!
//! `cargo xtask kernels` runs it and compares its lists. Arguments are parts of names, of which a kernel must have one.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rayon::prelude::*;
use sha2::{Digest, Sha256};
use warpwright_ops::PlanError;
use warpwright_ops::catalogue::{Entry, TARGETS, families, kernels};
use warpwright_ptx::{DType, Target};
use warpwright_testkit::kernels::{normal_form, operations};

/// The kernels of a primitive for a type and a target.
struct Job {
    target: Target,
    family: &'static str,
    entry: Entry,
    dtype: DType,
}

/// All jobs for operations that may have kernels with one of the parts in their names.
fn jobs(parts: &[&str]) -> Vec<Job> {
    let wanted = operations(parts);
    let mut jobs = Vec::new();
    for family in families() {
        for entry in family.entries().into_iter().filter(|entry| wanted.contains(entry)) {
            let claimed = TARGETS.into_iter().filter(|target| entry.targets.contains(target));
            let typed = claimed.flat_map(|target| entry.dtypes.iter().map(move |&dtype| (target, dtype)));
            jobs.extend(typed.map(|(target, dtype)| Job { target, family: family.name, entry, dtype }));
        }
    }
    jobs
}

/// The first 16 digits of the SHA-256 sum.
fn hash(text: &str) -> String {
    Sha256::digest(normal_form(text)).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn lines(job: &Job, parts: &[&str]) -> Result<Vec<String>, PlanError> {
    let Job { target, family, entry, dtype } = job;
    let recorded = kernels(entry.op, entry.direction, *dtype, *target)?;
    let wanted = recorded.iter().filter(|kernel| parts.iter().any(|part| kernel.name().contains(part)));
    Ok(wanted.map(|k| format!("{target} {family} {} {}", k.name(), hash(k.text()))).collect())
}

fn main() -> ExitCode {
    let parts: Vec<String> = std::env::args().skip(1).collect();
    let parts: Vec<&str> =
        if parts.is_empty() { vec![""] } else { parts.iter().map(String::as_str).collect() };
    let (jobs, start, done) = (jobs(&parts), Instant::now(), AtomicUsize::new(0));
    let listed: Result<Vec<_>, _> = jobs
        .par_iter()
        .map(|job| {
            let found = lines(job, &parts);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(200) {
                eprintln!("{done} of {} lists, {:.0} s", jobs.len(), start.elapsed().as_secs_f64());
            }
            found
        })
        .collect();
    match listed {
        Ok(listed) => {
            // A kernel that several primitives use is one.
            let lines: BTreeSet<String> = listed.into_iter().flatten().collect();
            lines.iter().for_each(|line| println!("{line}"));
            eprintln!("{} kernels in {:.0} s", lines.len(), start.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("a kernel of the catalogue is not recorded: {error}");
            ExitCode::FAILURE
        }
    }
}
