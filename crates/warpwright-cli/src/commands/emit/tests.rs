//! The text that `emit` prints, which ptxas takes whatever is asked for.

use std::path::Path;
use std::process::Command;

use clap::Parser;
use warpwright_ops::catalogue::{OPTIONS, options_of};
use warpwright_ops::{Entry, catalogue};
use warpwright_ptx::{DType, Target};
use warpwright_testkit::assembler::{all_targets, on_all_cores, ptxas};

use super::super::lint::examine;
use super::*;
use crate::args::{Cli, Command as Subcommand};
use crate::op_options::{flag, words};

/// The arguments of the command line `warpwright emit ..`.
fn parse(args: &[&str]) -> EmitArgs {
    let cli = Cli::try_parse_from([&["warpwright", "emit"], args].concat());
    match cli.unwrap_or_else(|error| panic!("{args:?}: {error}")).command {
        Subcommand::Emit(args) => *args,
        other => panic!("{other:?}"),
    }
}

fn ask(entry: &Entry, dtype: DType, target: Target, options: &[&str]) -> EmitArgs {
    let (dtype, target) = (dtype.name(), target.to_string());
    let backward: &[&str] = if entry.direction == Direction::Backward { &["--backward"] } else { &[] };
    parse(&[&[entry.op, "--dtype", dtype, "--target", &target], backward, options].concat())
}

/// A text and the name that failures give it.
struct Text {
    name: String,
    target: Target,
    text: String,
}

impl Text {
    /// The text that is emitted; it must be legal for the target that it names, and every kernel's own target must allow that.
    fn new(args: &EmitArgs, name: String) -> Self {
        let Emitted { module, steps, .. } = emitted(args).unwrap_or_else(|error| panic!("{name}: {error}"));
        let text = text::print(&module);
        let target = module.target;
        let specific = steps.iter().any(|step| step.kernel().target() == Target::specific(args.target.sm));
        let expected = if specific { Target::specific(args.target.sm) } else { args.target };
        assert_eq!(target, expected, "{name}");
        for step in &steps {
            let own = step.kernel().target();
            assert!(own.builds_for(target), "{name}: a kernel for {own} in a module for {target}");
            assert!(
                module.entry(step.kernel().name()).is_some(),
                "{name}: {} is missing",
                step.kernel().name()
            );
        }
        assert!(text.contains(&format!("\n.target {target}\n")), "{name}");
        let errors: Vec<_> =
            examine(&text, Some(target)).into_iter().filter(|found| found.is_error).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
        Self { name, target, text }
    }

    fn is_specific(&self) -> bool {
        self.target != Target::sm(self.target.sm)
    }
}

/// Assembles each text for the target that it names.
fn assemble(ptxas: &Path, texts: &[Text]) {
    let folder = tempfile::tempdir().expect("a folder");
    let indices: Vec<usize> = (0..texts.len()).collect();
    let assembled = on_all_cores(&indices, |&index| {
        let Text { name, target, text } = &texts[index];
        let source = folder.path().join(format!("{index}.ptx"));
        std::fs::write(&source, text).expect("the folder is writable");
        let output = Command::new(ptxas)
            .args(["-arch", &target.to_string(), "-o"])
            .args([&source.with_extension("cubin"), &source])
            .output()
            .expect("the assembler starts");
        let log = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { None } else { Some(format!("{name}: {log}")) }
    });
    let failed: Vec<String> = assembled.into_iter().flatten().collect();
    eprintln!("{} texts assembled", texts.len());
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), texts.len(), failed.join("\n"));
}

/// All are linted. Assembled are, unless `WARPWRIGHT_ALL_TARGETS=1`, those for one architecture alone and of each
/// primitive one type for one target, another for every primitive.
#[test]
fn every_primitive_type_direction_and_target_assembles() {
    let mut texts = Vec::new();
    let mut sampled = Vec::new();
    for (row, entry) in catalogue().iter().enumerate() {
        for (t, &target) in entry.targets.iter().enumerate() {
            for (d, &dtype) in entry.dtypes.iter().enumerate() {
                let Entry { op, direction, dtypes, targets } = entry;
                let name = format!("{op} {direction} {dtype} {target}");
                let text = Text::new(&ask(entry, dtype, target, &[]), name);
                let chosen = d == row % dtypes.len() && t == row % targets.len();
                if all_targets() || chosen || text.is_specific() {
                    sampled.push(texts.len());
                }
                texts.push(text);
            }
        }
    }
    let specific: Vec<_> = texts.iter().filter(|text| text.is_specific()).map(|text| &*text.name).collect();
    eprintln!("{} texts, of one architecture alone: {specific:?}", texts.len());
    assert!(specific.contains(&"attention backward bf16 sm_90"), "no text is for sm_90a");
    let Some(ptxas) = ptxas() else { return };
    let mut index = 0..;
    texts.retain(|_| index.next().is_some_and(|i| sampled.contains(&i)));
    assemble(&ptxas, &texts);
}

/// Operations whose results have the type of their tensor, or the one that sums are taken in.
const REDUCTIONS: [&str; 4] = ["sum", "mean", "amax", "amin"];

/// Values of an option with which it makes a difference to an operation.
fn given(name: &str, op: &str, backward: bool) -> Vec<String> {
    let examples: &[&str] = match name {
        // Without a ReLU it is `dy` itself.
        "residual" if op.starts_with("batch_norm") && backward => &["relu", "residual"],
        // Between two layers of recurrent nets.
        "dropout" if op != "attention" && !op.starts_with("dropout") => &["dropout=0.5", "layers=2"],
        // Gradients that are computed with the loss are of one number.
        "reduction" if op == "linear_cross_entropy" && backward => &["reduction=sum"],
        // As many tokens as asked for come behind those in the cache; others have a number of queries.
        "page_size" if op == "append_kv_cache" => &["page_size=64", "keys=4096"],
        "float8_cache" if op == "append_kv_cache" => &["float8_cache"],
        // Codes of the dynamic maps have blocks of two sizes.
        "block_size" if op.ends_with("_dynamic") || op.ends_with("_udynamic") => &["block_size=4096"],
        // Of one position both are alike.
        "channels_last" if op == "selective_scan_update" => &["channels_last", "steps=2"],
        // The common extent of a product has more than a row.
        "k" if op == "topk" => &["k=5"],
        // Gradients behind a layer take its weight as it is.
        "transpose" if op.ends_with("activation_linear") => &["transpose=nt"],
        // Reductions of 16 bits may stay as wide as they are taken.
        "to" if REDUCTIONS.contains(&op) => &["to=f32"],
        _ => OPTIONS.iter().find(|option| option.name == name).expect("an option").example,
    };
    examples.iter().flat_map(|example| words(example)).collect()
}

/// An option that an operation takes is not without effect: kernels, launches, their arguments or the tensors differ.
#[test]
fn every_option_of_every_primitive_is_taken() {
    let target = Target::sm(90);
    let mut texts = Vec::new();
    let mut idle = Vec::new();
    for entry in catalogue() {
        let backward = entry.direction == Direction::Backward;
        for option in options_of(&entry) {
            let options = given(option, entry.op, backward);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let of_16_bits = ["parameter_dtype", "table_dtype", "float8_cache"].contains(&option)
                || (option == "to" && REDUCTIONS.contains(&entry.op))
                || (option == "factors" && entry.op == "row_dots");
            let dtype = if of_16_bits { DType::BF16 } else { entry.dtypes[0] };
            let json = |options: &[&str]| {
                let args = ask(&entry, dtype, target, options);
                emitted(&args).map(|emitted| emitted.json())
            };
            let name = format!("{} {} {options:?}", entry.op, entry.direction);
            let with = json(&options).unwrap_or_else(|error| panic!("{name}: {error}"));
            if with == json(&[]).unwrap_or_else(|error| panic!("{} {}: {error}", entry.op, entry.direction)) {
                idle.push(name.clone());
            }
            texts.push(Text::new(&ask(&entry, dtype, target, &options), name));
        }
    }
    assert!(idle.is_empty(), "no effect: {}", idle.join("\n"));
    if let Some(ptxas) = ptxas().filter(|_| all_targets()) {
        assemble(&ptxas, &texts);
    }
}

/// Whatever the extents, one alone or two together, there is a plan or an error.
#[test]
fn extents_of_any_size_are_answered() {
    let is_extent = |op: &str, option: &str| {
        let value = given(option, op, false).get(1).and_then(|word| word.parse::<usize>().ok());
        value.is_some() && option != "biases"
    };
    for entry in catalogue() {
        let options = options_of(&entry).into_iter().filter(|option| is_extent(entry.op, option));
        let flags: Vec<_> = options.map(|option| format!("--{}", flag(option))).collect();
        for (i, a) in flags.iter().enumerate() {
            for extent in ["0", "1", "4294967296", "9223372036854775808", "18446744073709551615"] {
                for b in &flags[i..] {
                    let second: &[&str] = if a == b { &[] } else { &[b, extent] };
                    let options = [&[a, extent], second].concat();
                    let args = ask(&entry, entry.dtypes[0], Target::sm(90), &options);
                    // Overflow would panic here.
                    if let Ok(Emitted { steps, .. }) = emitted(&args) {
                        assert!(!steps.is_empty(), "{} {options:?}", entry.op);
                    }
                }
            }
        }
    }
}
