//! Every kernel that tuning can choose, assembled by NVIDIA's `ptxas` for every target that it claims.
//!
//! `WARPWRIGHT_PTXAS` names the assembler (`cargo xtask ptxas` installs one). Without it the test is skipped in so many
//! words, and fails under `WARPWRIGHT_REQUIRE_PTXAS=1`. `WARPWRIGHT_KERNELS` has parts, between commas, of the names that are
//! wanted; if all of them begin with names of operations, the others are not recorded. The targets whose neighbours have the same instructions (sm_86, sm_89, sm_100) wait for `cargo xtask nightly`, which
//! sets `WARPWRIGHT_ALL_TARGETS=1`, and so do kernels in which nothing but the target differs from those of an older one: where
//! that takes them, they are legal on the newer one too.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpwright_ops::catalogue::{Entry, TARGETS, catalogue, kernels};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target, TargetVariant};

/// Kernels that spill: products of double precision and a batch norm of 16 bits on sm_75, gradients of groups on sm_86 and of rows of double
/// precision on sm_80, all of them a few words, and sequences that fill a block. Their assembly must still succeed.
const SPILLS: [&str; 7] = [
    "batch_norm_normalise_add_nhwc_bf16_x8_512x8",
    "gemm_f64_oo_simt_64x64x16_s2_p16",
    "gemm_f64_oo_simt_64x64x16_s2_p16_split",
    "group_norm_last_backward_sums_f32_x4",
    "lstm_sweep_bf16_h512_b1_u16",
    "lstm_sweep_f16_h512_b1_u16",
    "rms_norm_backward_f64_x2_v0_g1024_t1024",
];

/// Sequences whose blocks keep 128 registers of weights in every thread: some words of a step lie in memory, ten of most, and
/// 130 where as many weights again are in shared memory. A step takes microseconds, and reading them a fraction of one. In
/// clusters of blocks of 256 units it is one to nine words. Where states are tagged it is weights on their way to registers, before the first step; of
/// `tf32`, whose weights take twice the registers, up to 70 words.
fn keeps_weights(kernel: &str) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|part| kernel.contains(part));
    let backward = kernel.contains("_sweep_f32_") && kernel.ends_with("_u8_blocks");
    let groups = kernel.starts_with("gru_sweep_") && kernel.ends_with("_u16_g2");
    let whole = has(&["_u16_blocks", "_u16_tags"]);
    let spread = has(&["_h1024_", "_h2048_"]) && (backward || groups || whole);
    let spread = spread || kernel.starts_with("gru_sequence_tf32_h768_");
    let few_units = has(&["f16_h512_", "_sweep_f32_h256_", "lstm_sweep_f16_h256_", "lstm_sweep_bf16_h256_"]);
    let in_cluster = few_units && kernel.contains("_u32_cluster");
    spread || in_cluster
}

/// The operations that may have kernels with one of these parts in their names.
fn operations(parts: &[&str]) -> Vec<Entry> {
    let all = catalogue();
    let begins = |part: &str, entry: &Entry| part.starts_with(entry.op);
    let anywhere = parts.iter().any(|part| !all.iter().any(|entry| begins(part, entry)));
    let named = |entry: &&Entry| anywhere || parts.iter().any(|part| begins(part, entry));
    all.iter().filter(named).copied().collect()
}

/// A kernel's text but for its version and target.
fn instructions(kernel: &Kernel) -> u64 {
    let mut hasher = DefaultHasher::new();
    let heads = |line: &&str| !line.starts_with(".version") && !line.starts_with(".target");
    kernel.text().lines().filter(heads).for_each(|line| line.hash(&mut hasher));
    hasher.finish()
}

fn ptxas() -> Option<PathBuf> {
    let found = std::env::var_os("WARPWRIGHT_PTXAS").map(PathBuf::from);
    let required = std::env::var_os("WARPWRIGHT_REQUIRE_PTXAS").is_some_and(|v| v == "1");
    assert!(
        found.is_some() || !required,
        "WARPWRIGHT_REQUIRE_PTXAS=1, but WARPWRIGHT_PTXAS names no assembler"
    );
    if found.is_none() {
        eprintln!("skipped: WARPWRIGHT_PTXAS names no assembler");
    }
    found
}

/// What ptxas objects to: an error, or a spill. Kernels with instructions of one architecture alone name it themselves.
fn assemble(ptxas: &PathBuf, target: Target, kernel: &Kernel, index: usize) -> Result<(), String> {
    let source = std::env::temp_dir().join(format!("warpwright-{}-{index}.ptx", std::process::id()));
    let cubin = source.with_extension("cubin");
    std::fs::write(&source, kernel.text()).map_err(|e| e.to_string())?;
    let specific = kernel.target().variant == TargetVariant::Specific;
    let architecture = if specific { kernel.target() } else { target };
    let output = Command::new(ptxas)
        .args(["-v", "-arch", &architecture.to_string(), "-o"])
        .args([&cubin, &source])
        .output()
        .map_err(|e| format!("{}: {e}", ptxas.display()))?;
    for file in [source, cubin] {
        // The file of a failed run does not exist.
        let _ = std::fs::remove_file(file);
    }
    let log = String::from_utf8_lossy(&output.stderr);
    let spills = SPILLS.contains(&kernel.name()) || keeps_weights(kernel.name());
    let clean = log.contains("0 bytes spill stores, 0 bytes spill loads") || spills;
    if output.status.success() && clean {
        Ok(())
    } else {
        Err(format!("{} for {target}: {log}", kernel.name()))
    }
}

#[test]
fn every_kernel_assembles_without_spills() {
    let Some(ptxas) = ptxas() else { return };
    let parts = std::env::var("WARPWRIGHT_KERNELS").unwrap_or_default();
    let parts: Vec<_> = parts.split(',').collect();
    let operations = operations(&parts);
    let all_targets = std::env::var_os("WARPWRIGHT_ALL_TARGETS").is_some_and(|v| v == "1");
    let (mut work, mut seen) = (Vec::new(), HashSet::new());
    for target in TARGETS.into_iter().filter(|t| all_targets || ![86, 89, 100].contains(&t.sm)) {
        let claimed = operations.iter().filter(|entry| entry.targets.contains(&target));
        let of = |entry: &Entry, dtype: &DType| kernels(entry.op, entry.direction, *dtype, target);
        let kernels = claimed.flat_map(|entry| entry.dtypes.iter().map(move |dtype| of(entry, dtype)));
        let kernels = kernels.flat_map(|kernels| kernels.expect("kernels record"));
        let wanted = |kernel: &Kernel| parts.iter().any(|part| kernel.name().contains(part));
        let new = |kernel: &Kernel| seen.insert(instructions(kernel)) || all_targets;
        work.extend(kernels.filter(wanted).filter(new).map(|kernel| (target, kernel)));
    }
    assert!(work.len() > 100 || parts != [""], "the catalogue has shrunk to {} kernels", work.len());
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut failed = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((target, kernel)) = work.get(index) else { return failed };
            failed.extend(assemble(&ptxas, *target, kernel, index).err());
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failed: Vec<String> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        handles.into_iter().flat_map(|h| h.join().expect("worker")).collect()
    });
    eprintln!("{} kernels", work.len());
    assert!(failed.is_empty(), "{} of {} kernels:\n{}", failed.len(), work.len(), failed.join("\n"));
}
