//! Kernels that tuning can choose, assembled by NVIDIA's `ptxas`.
//!
//! `WARPWRIGHT_PTXAS` names the assembler (`cargo xtask ptxas` installs one). Without it the test is skipped in so many
//! words, and fails under `WARPWRIGHT_REQUIRE_PTXAS=1`. All kernels for one target are assembled, and for the others a
//! sample of those that the first has not: of one type of each operation, another one for each target, the first kernel and each
//! [`SAMPLE`]th after it. `cargo xtask nightly ptxas` sets `WARPWRIGHT_ALL_TARGETS=1` and assembles every kernel for every target that it claims.
//! `WARPWRIGHT_KERNELS` has parts, between commas, of the names that are wanted; if all of them begin with names of
//! operations, the others are not recorded.
//!
//! `assembled.txt` has the digests of texts that this release of the assembler has taken without spills. They are not assembled
//! again, but for the first of each operation; a kernel that has changed, or another release, is. `WARPWRIGHT_UPDATE=1` writes the file.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use warpwright_ops::catalogue::{self, Entry, TARGETS};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target, TargetVariant};
use warpwright_testkit::assembler::{all_targets, on_all_cores, ptxas};
use warpwright_testkit::kernels::operations;

/// Kernels that spill: products of double precision and a batch norm of 16 bits on sm_75, gradients of groups on sm_86 and of rows of double
/// precision on sm_80, and convolutions with all that may follow sums in the largest tiles whose rows begin anywhere, all of them a few words, and
/// sequences that fill a block. Their assembly must still succeed.
const SPILLS: [&str; 9] = [
    "batch_norm_normalize_add_nhwc_bf16_x8_512x8",
    "conv_bf16_forward_2d_wgp_128x256_g2_s4_c1_rows_scale_bias_residual_gelu_erf",
    "conv_bf16_forward_2d_wgp_256x128_g2_s4_c1_rows_scale_bias_residual_gelu_erf",
    "gemm_f64_oo_simt_64x64x16_s2_p16",
    "gemm_f64_oo_simt_64x64x16_s2_p16_split",
    "group_norm_last_backward_sums_f32_x4",
    "lstm_persistent_backward_bf16_h512_b1_u16",
    "lstm_persistent_backward_f16_h512_b1_u16",
    "rms_norm_backward_f64_x2_v0_g1024_t1024",
];

/// Depthwise kernels load a row ahead of its products, for which the assembler spills two to fourteen words of some. With a number of blocks
/// that they must fit it spills more of more kernels.
fn loads_ahead(kernel: &str) -> bool {
    kernel.starts_with("conv_depthwise_")
}

/// Sequences whose blocks keep 128 registers of weights in every thread: some words of a step lie in memory, ten of most, and
/// 130 where as many weights again are in shared memory. A step takes microseconds, and reading them a fraction of one. In
/// clusters of blocks of 256 units it is one to nine words. Where states are tagged it is weights on their way to registers, before the first step; of
/// `tf32`, whose weights take twice the registers, up to 70 words.
fn keeps_weights(kernel: &str) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|part| kernel.contains(part));
    let backward = kernel.contains("_persistent_backward_f32_") && kernel.ends_with("_u8_flagged");
    let groups = kernel.starts_with("gru_persistent_backward_") && kernel.ends_with("_u16_g2");
    let whole = has(&["_u16_flagged", "_u16_inband"]);
    let spread = has(&["_h1024_", "_h2048_"]) && (backward || groups || whole);
    let spread = spread || kernel.starts_with("gru_persistent_tf32_h768_");
    let few_units = has(&[
        "f16_h512_",
        "_persistent_backward_f32_h256_",
        "lstm_persistent_backward_f16_h256_",
        "lstm_persistent_backward_bf16_h256_",
    ]);
    let in_cluster = few_units && kernel.contains("_u32_dsmem");
    spread || in_cluster
}

/// Gradients of the scan of chunks that keep those of 256 numbers for rows of `B` and `C` in registers, 128 of them in every thread: 40 to 160 words
/// of a head; and of heads of more than 64 elements with 128 numbers up to ten.
fn keeps_rows(kernel: &str) -> bool {
    let gradients = kernel.starts_with("chunk_scan_backward_") && !kernel.contains("_states_");
    gradients && ["n256", "p128n128"].into_iter().any(|tiles| kernel.contains(tiles))
}

/// Gradients of gated units in the launch of a product: a panel of both factors is on its way beside the sums while one before it becomes two
/// results, which takes up to ten words more than there are registers, once a tile.
fn reads_both_factors(kernel: &str) -> bool {
    let of_units = ["_d_swiglu", "_d_geglu", "_d_geglu_tanh"].into_iter().any(|unit| kernel.ends_with(unit));
    kernel.starts_with("gemm_") && kernel.contains("_wgp_") && of_units
}

/// Products with 4-bit weights that load slices ahead of those that are multiplied: a word or two of nested scales or zero points, and up to
/// eight words where 64 rows have their sums in registers.
fn loads_weights_ahead(kernel: &str) -> bool {
    let streams = kernel.starts_with("matmul_4bit_") && kernel.contains("_w");
    streams && ["_nested_", "_asymmetric_", "_m64_"].into_iter().any(|part| kernel.contains(part))
}

/// The target whose kernels are all assembled at every change.
const WHOLE: Target = Target::sm(90);
/// Of so many kernels of an operation that another target has in addition one is assembled at every change.
const SAMPLE: usize = 32;

/// A kernel to be assembled: its modules would take gigabytes.
struct Source {
    op: &'static str,
    name: String,
    text: String,
    /// The target that it is assembled for: kernels with instructions of one architecture alone name it themselves.
    target: Target,
    /// Hash of the text but for its version and target.
    instructions: u64,
}

impl Source {
    fn new(op: &'static str, target: Target, kernel: &Kernel) -> Self {
        let mut hasher = DefaultHasher::new();
        let heads = |line: &&str| !line.starts_with(".version") && !line.starts_with(".target");
        kernel.text().lines().filter(heads).for_each(|line| line.hash(&mut hasher));
        let specific = kernel.target().variant == TargetVariant::Specific;
        let target = if specific { kernel.target() } else { target };
        let (name, text) = (kernel.name().to_owned(), kernel.text().to_owned());
        Self { op, name, text, target, instructions: hasher.finish() }
    }

    /// A hash of the assembler's input, in 16 digits.
    fn digest(&self) -> String {
        let sum = Sha256::new().chain_update(self.target.to_string()).chain_update(&self.text).finalize();
        sum.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Kernels that have been assembled without spills.
struct Assembled {
    /// The assembler's account of its release.
    release: String,
    digests: BTreeSet<String>,
}

impl Assembled {
    fn path() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/primitives/assembled.txt")
    }

    /// The notes of this assembler; none if they are another one's.
    fn by(ptxas: &Path) -> Self {
        let output = Command::new(ptxas).arg("--version").output().expect("ptxas runs");
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        let release = version.lines().find(|line| line.contains("release")).expect("a release").to_owned();
        let noted = std::fs::read_to_string(Self::path()).unwrap_or_default();
        let (first, rest) = noted.split_once('\n').unwrap_or_default();
        let digests =
            if first == release { rest.lines().map(str::to_owned).collect() } else { BTreeSet::new() };
        Self { release, digests }
    }

    fn write(&self) {
        let mut text = format!("{}\n", self.release);
        self.digests.iter().for_each(|digest| writeln!(text, "{digest}").expect("a string takes everything"));
        std::fs::write(Self::path(), text).expect("assembled.txt is written");
    }
}

/// The types of an operation whose kernels are recorded for a target: of a sample one, so that each has its turn.
fn types(entry: &Entry, row: usize, target: Target, sampled: bool) -> Vec<DType> {
    let number = TARGETS.iter().position(|t| *t == target).unwrap_or_default();
    let turn = (row + number) % entry.dtypes.len();
    entry.dtypes.iter().enumerate().filter(|(d, _)| !sampled || *d == turn).map(|(_, dtype)| *dtype).collect()
}

/// The kernels of these operations for a target that have one of the parts in their names.
fn recorded(target: Target, operations: &[Entry], parts: &[&str]) -> Vec<Source> {
    let sampled = target != WHOLE && !all_targets() && parts == [""];
    let claimed = operations.iter().enumerate().filter(|(_, entry)| entry.targets.contains(&target));
    let of_types = |(row, e)| types(e, row, target, sampled).into_iter().map(move |dtype| (e, dtype));
    let jobs: Vec<_> = claimed.flat_map(of_types).collect();
    let of = |(entry, dtype): &(&Entry, _)| -> Vec<Source> {
        let kernels = catalogue::kernels(entry.op, entry.direction, *dtype, target).expect("kernels record");
        let wanted = kernels.iter().filter(|kernel| parts.iter().any(|part| kernel.name().contains(part)));
        wanted.map(|kernel| Source::new(entry.op, target, kernel)).collect()
    };
    on_all_cores(&jobs, of).into_iter().flatten().collect()
}

/// Whether the kernel spills, where it may; otherwise the objections of ptxas: an error, products one after the other, or a spill.
fn assemble(ptxas: &PathBuf, kernel: &Source, index: usize) -> Result<bool, String> {
    let source = std::env::temp_dir().join(format!("warpwright-{}-{index}.ptx", std::process::id()));
    let cubin = source.with_extension("cubin");
    std::fs::write(&source, &kernel.text).map_err(|e| e.to_string())?;
    let Source { name, target, .. } = kernel;
    let output = Command::new(ptxas)
        .args(["-v", "-arch", &target.to_string(), "-o"])
        .args([&cubin, &source])
        .output()
        .map_err(|e| format!("{}: {e}", ptxas.display()))?;
    for file in [source, cubin] {
        // The file of a failed run does not exist.
        let _ = std::fs::remove_file(file);
    }
    let log = String::from_utf8_lossy(&output.stderr);
    // Each product would wait for the one before, where the assembler does not see that nothing touches its registers.
    if log.contains("wgmma.mma_async instructions are serialized") {
        return Err(format!("{name} for {target}: {log}"));
    }
    let clean = log.contains("0 bytes spill stores, 0 bytes spill loads");
    let ahead = loads_ahead(name) || loads_weights_ahead(name);
    let known = SPILLS.contains(&name.as_str()) || keeps_weights(name) || keeps_rows(name);
    let may_spill = known || ahead || reads_both_factors(name);
    if output.status.success() && (clean || may_spill) {
        return Ok(!clean);
    }
    Err(format!("{name} for {target}: {log}"))
}

#[test]
fn kernels_assemble_without_spills() {
    let Some(ptxas) = ptxas() else { return };
    let parts = std::env::var("WARPWRIGHT_KERNELS").unwrap_or_default();
    let parts: Vec<_> = parts.split(',').collect();
    let operations = operations(&parts);
    let others = TARGETS.into_iter().filter(|target| *target != WHOLE);
    let (mut work, mut seen) = (Vec::new(), HashSet::new());
    for target in [WHOLE].into_iter().chain(others) {
        let mut counts: HashMap<_, usize> = HashMap::new();
        work.extend(recorded(target, &operations, &parts).into_iter().filter(|kernel| {
            let new = seen.insert(kernel.instructions);
            let before = counts.entry(kernel.op).or_default();
            let sampled = target == WHOLE || before.is_multiple_of(SAMPLE);
            *before += usize::from(new);
            all_targets() || (new && sampled)
        }));
        // Gigabytes, of targets that no other test needs all kernels of.
        if ![WHOLE, Target::sm(75)].contains(&target) {
            catalogue::forget_kernels(target);
        }
    }
    assert!(work.len() > 100 || parts != [""], "the catalogue has shrunk to {} kernels", work.len());
    let (mut assembled, all) = (Assembled::by(&ptxas), work.len());
    let digests: Vec<String> = on_all_cores(&work, Source::digest);
    let mut operations = HashSet::new();
    let again: Vec<usize> = (0..all)
        .filter(|&i| {
            all_targets() || operations.insert(work[i].op) || !assembled.digests.contains(&digests[i])
        })
        .collect();
    eprintln!("{} of {all} kernels, the others have been assembled before", again.len());
    let results = on_all_cores(&again, |&i| assemble(&ptxas, &work[i], i));
    if std::env::var_os("WARPWRIGHT_UPDATE").is_some() && parts == [""] && !all_targets() {
        let spill = |(i, result): (&usize, &Result<bool, String>)| (*result != Ok(false)).then_some(*i);
        let others: HashSet<usize> = again.iter().zip(&results).filter_map(spill).collect();
        assembled.digests = (0..all).filter(|i| !others.contains(i)).map(|i| digests[i].clone()).collect();
        assembled.write();
    }
    let failed: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{} of {} kernels:\n{}", failed.len(), again.len(), failed.join("\n"));
}
