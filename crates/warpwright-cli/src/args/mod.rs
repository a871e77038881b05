//! The command line as types. The comments on fields are the help texts.

mod format;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use warpwright_emu::Completion;
use warpwright_ops::catalogue::FloatDType;
use warpwright_ptx::{DType, Target};

pub use self::format::{AnyFormat, Format, PackedFormat};
use crate::op_options::OpFlags;

/// Quantize checkpoints, and run, lint, check and measure GPU kernels, on a GPU or on a machine without one.
#[derive(Debug, Parser)]
#[command(name = "warpwright", version, arg_required_else_help = true, max_term_width = 110, after_help = EXIT_CODES)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 all is well, 1 something was found to be wrong, 2 usage or input/output,\n\
    3 `prove` decided neither, 130 ended by Ctrl-C, 143 by SIGTERM; an output appears whole or not at all.\n\
    Results go to standard output, everything else to standard error. NO_COLOR turns colours off.\n\
    WARPWRIGHT_LOG=warpwright=debug prints plans, compilations, launches and cache hits on standard error.";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what was found to run on, and why.
    Devices(DevicesArgs),
    /// List every primitive.
    Ops(OpsArgs),
    /// Print the PTX of a primitive.
    #[command(after_help = EMIT_EXAMPLES)]
    Emit(Box<EmitArgs>),
    /// Hold primitives against their f64 references, with the sanitizers on in the emulator.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Quantize the 2-D weights of a safetensors checkpoint to 4 or 8 bits.
    #[command(alias = "quantise", after_help = QUANTIZE_EXAMPLES)]
    Quantize(QuantizeArgs),
    /// Turn a quantized checkpoint back into floating-point weights.
    #[command(alias = "dequantise", after_help = DEQUANTIZE_EXAMPLES)]
    Dequantize(DequantizeArgs),
    /// Turn a quantized checkpoint into one of another format, with the same codes where both can hold them.
    #[command(after_help = CONVERT_EXAMPLES)]
    Convert(ConvertArgs),
    /// Show the tensors of a checkpoint and how they are quantized.
    Inspect(InspectArgs),
    /// Write a small transformer-like checkpoint to try `quantize` on.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Run a kernel from a PTX file on .npy arrays.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Parse and verify a PTX file.
    #[command(after_help = LINT_EXAMPLES)]
    Lint(LintArgs),
    /// Decide bounds and races of a kernel for all grids and sizes.
    #[command(after_help = PROVE_EXAMPLES)]
    Prove(ProveArgs),
    /// Hold the emulator and GPUs against one another on random kernels.
    Fuzz(crate::commands::fuzz::FuzzArgs),
    /// Time primitives against the limits of the device; on the emulator, count instead.
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(Box<BenchArgs>),
}

/// Where to run.
#[derive(Debug, Args)]
pub struct DeviceArg {
    /// auto (a GPU if there is one, else the emulator), cuda, cuda:N or emulator.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
}

/// Machine-readable output.
#[derive(Clone, Copy, Debug, Args)]
pub struct JsonArg {
    /// Print JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// How `run`, `lint` and `prove` say what they found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// For people.
    #[default]
    Human,
    /// For scripts.
    Json,
    /// SARIF 2.1.0, for code-scanning services and editors.
    Sarif,
}

/// Output form of the commands that find things.
#[derive(Clone, Copy, Debug, Args)]
pub struct FormatArg {
    /// How to print what was found.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

impl FormatArg {
    /// The form that was asked for.
    pub fn get(self) -> ReportFormat {
        if self.json { ReportFormat::Json } else { self.format }
    }
}

/// `devices`
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Output form.
    #[command(flatten)]
    pub json: JsonArg,
}

/// `ops`
#[derive(Debug, Args)]
pub struct OpsArgs {
    /// Output form.
    #[command(flatten)]
    pub json: JsonArg,
}

const EMIT_EXAMPLES: &str = "Examples:
  warpwright emit silu --dtype bf16
  warpwright emit gelu_tanh --backward --target sm_75
  warpwright emit attention --dtype bf16 --head-dim 64 --heads 32 --num-kv-heads 8 --causal --queries 4096
  warpwright emit quantize_nf4 --block-size 128 > nf4.ptx && warpwright lint nf4.ptx

The text has all kernels of the plan. If one of them needs instructions of one architecture alone, such as sm_90a, the
module is for that; --json gives every kernel by itself too, and how each is launched.";

/// `emit`
#[derive(Debug, Args)]
pub struct EmitArgs {
    /// The primitive, as `warpwright ops` names it.
    #[arg(value_name = "OP")]
    pub op: String,
    /// Element type of the tensors.
    #[arg(long, default_value = "f32", value_parser = parse_dtype)]
    pub dtype: DType,
    /// Target to build for.
    #[arg(long, default_value = "sm_90", value_parser = parse_target)]
    pub target: Target,
    /// The backward pass.
    #[arg(long)]
    pub backward: bool,
    /// Further options of the primitive.
    #[command(flatten)]
    pub options: OpFlags,
    /// Output form: the text and, in order, the launches that it takes.
    #[command(flatten)]
    pub json: JsonArg,
}

const CHECK_EXAMPLES: &str = "Examples:
  warpwright check
  warpwright check silu gelu_erf --device cuda:0 --json
  warpwright check attention --match causal
  warpwright check --ranks 4
  warpwright check --ranks 2 --launch processes context_attention
  torchrun --nproc-per-node 2 --no-python warpwright check --launch environment";

/// How ranks are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Launch {
    /// A thread for each, in this process.
    #[default]
    Threads,
    /// A process for each, on GPUs.
    Processes,
    /// This process is one of several: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT say which.
    Environment,
}

/// How many ranks, and how they are started.
#[derive(Clone, Copy, Debug, Args)]
pub struct RankArgs {
    /// Hold operations over this many ranks against one device instead: GPUs if there are as many, else emulators.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: Option<u32>,
    /// How the ranks are started.
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub launch: Launch,
}

/// Limits on kernels that do not end by themselves.
#[derive(Clone, Copy, Debug, Args)]
pub struct LimitArgs {
    /// Instructions of warps after which a launch is ended, in the emulator.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_steps: Option<u64>,
    /// Seconds after which what runs is ended.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub time_limit: Option<Duration>,
}

/// `check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The primitives; all of them if none is named. With --ranks the operations of its table.
    #[arg(value_name = "OP")]
    pub ops: Vec<String>,
    /// Only cases that a row of the table has this text of: "causal", "bf16", "[3, 1, 5, 32]".
    #[arg(long = "match", value_name = "TEXT", conflicts_with = "ranks")]
    pub matching: Option<String>,
    /// Where to run.
    #[command(flatten)]
    pub device: DeviceArg,
    /// Several ranks.
    #[command(flatten)]
    pub ranks: RankArgs,
    /// Limits: of steps for each launch, of time for the whole command.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Output form.
    #[command(flatten)]
    pub json: JsonArg,
}

const QUANTIZE_EXAMPLES: &str = "Every non-empty 2-D weight of type F32, F16 or BF16 is quantized, embeddings included, unless --skip names it;
all other tensors are copied through. bitsandbytes itself would quantize linear layers alone: keep embeddings and the
output head with --skip '*embed*' --skip 'lm_head*'.

IN is a .safetensors file, a model.safetensors.index.json, or a folder that holds either. For a file, -o names a file;
for a folder or an index, it names a folder, which gets one output shard per input shard. A config.json beside IN is
copied beside OUT and, for the bnb formats, given its quantization_config. A new folder also gets the files of the
tokenizer and generation_config.json.

Keys of a quantized `W`:
  bnb-nf4, bnb-fp4   W, W.absmax, W.quant_map, W.quant_state.bitsandbytes__nf4 (or __fp4)
  with --double-quant also W.nested_absmax, W.nested_quant_map
  int4               W, W.scale, W.zero_point (asymmetric only), W.quant_state.warpwright__int4

The other formats are those that inference engines load. Of these only linear layers are quantized: 2-D tensors `X.weight`, but
embeddings, lm_head, routers of experts, and those whose size is no multiple of the group (nor of 32 for gptq, 8 for awq). What is
left is listed in the quantization_config. Scales come from the weights alone: nothing is calibrated by activations, as AWQ and GPTQ
themselves do. They are computed on the host; --device, --verify and --double-quant are not for them.
  gptq                     X.qweight, X.scales, X.qzeros, X.g_idx
  awq                      X.qweight, X.scales, X.qzeros
  compressed-tensors-int4  X.weight_packed, X.weight_scale, X.weight_shape, X.weight_zero_point (asymmetric only)
  mxfp4                    X.weight_packed, X.weight_scale
  nvfp4                    X.weight_packed, X.weight_scale, X.weight_global_scale
  fp8                      X.weight, X.weight_scale_inv

A NaN or infinite weight is an error that names tensor and element. OUT appears whole or not at all.

Examples:
  warpwright demo -o demo.safetensors
  warpwright quantize demo.safetensors -o demo-nf4.safetensors --format bnb-nf4 --double-quant --verify
  warpwright quantize model/ -o model-int4/ --format int4 --block-size 128 --asymmetric --skip 'lm_head*' --report r.html
  warpwright quantize model/ -o model-gptq/ --format gptq --group-size 128 --search";

/// `quantize`
#[derive(Debug, Args)]
pub struct QuantizeArgs {
    /// The checkpoint: a file, an index or a folder; without it, the one that `demo` writes.
    #[arg(value_name = "IN")]
    pub input: Option<PathBuf>,
    /// Where the quantized checkpoint goes.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// The format.
    #[arg(long, value_enum)]
    pub format: AnyFormat,
    /// Elements that share a scale: 32 to 4096 and a power of two for the bnb formats, anything for int4, multiples of 8 for gptq, awq and
    /// compressed-tensors-int4. 64 if it is not said, 128 for the last three.
    #[arg(long, value_name = "N", visible_alias = "group-size", value_parser = clap::value_parser!(u32).range(1..))]
    pub block_size: Option<u32>,
    /// Quantize the block scales to 8 bits too (bnb formats).
    #[arg(long)]
    pub double_quant: bool,
    /// Integers without zero points; the default, but of awq.
    #[arg(long, conflicts_with = "asymmetric")]
    pub symmetric: bool,
    /// Integers with a zero point per group.
    #[arg(long)]
    pub asymmetric: bool,
    /// Search the scale of each group for the least squared error (4-bit formats of other tools).
    #[arg(long)]
    pub search: bool,
    /// Copy the weights whose name matches through as they are; may be repeated.
    #[arg(long, value_name = "GLOB")]
    pub skip: Vec<String>,
    /// Where to run.
    #[command(flatten)]
    pub device: DeviceArg,
    /// Read the output back, dequantize it with the kernels, and hold codes, scales and values against the reference.
    #[arg(long)]
    pub verify: bool,
    /// Write an HTML page with the error and size of every tensor.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Replace what exists.
    #[arg(long)]
    pub force: bool,
    /// Output form.
    #[command(flatten)]
    pub json: JsonArg,
}

const DEQUANTIZE_EXAMPLES: &str =
    "Reads what `quantize` writes, what bitsandbytes saves, and
  gptq        qweight, qzeros, scales, g_idx: 2, 3, 4 and 8 bits, formats 1 and 2, act-order
  awq         the same keys in AutoAWQ's gemm layout
  compressed-tensors  pack-quantized, int-quantized, float-quantized, nvfp4-, mxfp4-pack-quantized, mxfp8-quantized
  fp8         weight with weight_scale or weight_scale_inv: one, for each row, or for each block
  modelopt    NVFP4: weight, weight_scale, weight_scale_2
  gpt-oss     MXFP4 experts: _blocks, _scales
  GGUF files  Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4; tensors keep llama.cpp's names
Keys, types and shapes say which; where the quantization_config of config.json says otherwise, that is an error.
Weights get back their name, shape and type; that of 16-bit scales, or bf16, if nothing names one.

Examples:
  warpwright dequantize demo-nf4.safetensors -o demo-back.safetensors --dtype f32
  warpwright dequantize model-gptq/ -o model/";

/// `dequantize`
#[derive(Debug, Args)]
pub struct DequantizeArgs {
    /// The quantized checkpoint: a file, an index or a folder.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Where the result goes.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Type of the restored weights: f32, f16, bf16 or f64; by default the one that each had.
    #[arg(long, value_parser = parse_float_dtype)]
    pub dtype: Option<DType>,
    /// Where to run.
    #[command(flatten)]
    pub device: DeviceArg,
    /// Replace what exists.
    #[arg(long)]
    pub force: bool,
    /// Output form.
    #[command(flatten)]
    pub json: JsonArg,
}

const CONVERT_EXAMPLES: &str = "Reads the quantized weights that `dequantize` lists, but those of bitsandbytes, int4, gpt-oss and GGUF. Codes, zero points
and scales are kept where the new format can hold them, with groups of the same size: then every weight stays the same to the
bit, and its error is 0. Where only the type of scales is another, they are rounded to it, as is the reciprocal of ModelOpt's factor
for nvfp4. Other weights are dequantized and quantized again. All other tensors are copied.

Examples:
  warpwright convert model-gptq/ -o model-ct/ --format compressed-tensors-int4
  warpwright convert model-nvfp4-modelopt/ -o model-nvfp4/ --format nvfp4";

/// `convert`
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The quantized checkpoint: a file, an index or a folder.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Where the result goes.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// The new format.
    #[arg(long, value_enum)]
    pub format: PackedFormat,
    /// Elements that share a scale, for gptq, awq and compressed-tensors-int4; by default as in IN.
    #[arg(long, value_name = "N", visible_alias = "block-size", value_parser = clap::value_parser!(u32).range(1..))]
    pub group_size: Option<u32>,
    /// Integers without zero points.
    #[arg(long, conflicts_with = "asymmetric")]
    pub symmetric: bool,
    /// Integers with a zero point per group; the default if IN has them.
    #[arg(long)]
    pub asymmetric: bool,
    /// Search the scales of weights that are quantized again for the least squared error.
    #[arg(long)]
    pub search: bool,
    /// Replace what exists.
    #[arg(long)]
    pub force: bool,
    /// Output form.
    #[command(flatten)]
    pub json: JsonArg,
}

/// `inspect`
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A .safetensors or .gguf file, an index or a folder.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Output form.
    #[command(flatten)]
    pub json: JsonArg,
}

const DEMO_EXAMPLES: &str = "Two transformer layers of width 256 and an embedding of 2,000 tokens, with the outlier channels that real models
have. The same seed gives the same bytes on every machine.

Example:
  warpwright demo -o demo.safetensors";

/// `demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The file to write.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Type of the weights: f32, f16 or bf16.
    #[arg(long, default_value = "f32", value_parser = parse_float_dtype)]
    pub dtype: DType,
    /// Seed of the weights.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Replace what exists.
    #[arg(long)]
    pub force: bool,
    /// Output form.
    #[command(flatten)]
    pub json: JsonArg,
}

const RUN_EXAMPLES: &str = "Arguments go to the kernel's parameters in order:
  in:FILE.npy              an array that the kernel reads
  out:FILE.npy:DTYPE:SHAPE an array that it writes, e.g. out:y.npy:f32:128,64; poisoned before the run
  inout:FILE.npy:OUT.npy   an array that it changes
  u32:5 s32:-5 u64:5 s64:-5 f32:0.5 f64:0.5   a number; integers may be hexadecimal (0x10)
  tensormap:0:bf16:128x64:256:64x8:128B       a tensor map over array 0 of those before it, as a 128-byte parameter:
                           array, element type, dimensions, strides in bytes, box, swizzle (none, 32B, 64B, 128B);
                           lists from the innermost dimension outwards, no strides for a dense tensor
  tensormap:a:..           the same over the array that --array a=FILE.npy names, which is no argument itself
  ptr:a ptr:a+64           the address of such an array, or of one before it, and bytes behind it
  null                     no address
  struct:u32:5,ptr:a,f32:0.5  a structure by value, laid out as C does; also u8 to s64, f64, null and pad:BYTES
bf16 arrays are read and written as their u16 bits. An output takes the place of an array or page of an earlier run; another
file is replaced with --force, and one that the same run reads never is.

On the emulator, what the sanitizers find is printed with the line of PTX, and the exit code is 1.

Examples:
  warpwright run k.ptx --entry scale --grid 4 --block 256 --arg in:x.npy --arg out:y.npy:f32:1000 --arg u32:1000
  warpwright run k.ptx --grid 4 --block 256 --arg in:x.npy --arg out:y.npy:f32:1000 --arg u32:1000 --html cost.html
  warpwright run k.ptx --grid 1 --block 128 --array a=a.npy --array c=out:c.npy:f32:64,64 \\
    --arg tensormap:a:bf16:64x64::64x64:128B --arg tensormap:c:f32:64x64::32x64:none";

/// `run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The PTX file.
    #[arg(value_name = "K.ptx")]
    pub file: PathBuf,
    /// The kernel; may be left out if the file has only one.
    #[arg(long, value_name = "NAME")]
    pub entry: Option<String>,
    /// Blocks of the grid.
    #[arg(long, value_name = "X[,Y,Z]", value_parser = parse_dim3)]
    pub grid: Dim3,
    /// Threads of a block.
    #[arg(long, value_name = "X[,Y,Z]", value_parser = parse_dim3)]
    pub block: Dim3,
    /// Blocks of a cluster, if the kernel does not fix them.
    #[arg(long, value_name = "X[,Y,Z]", value_parser = parse_dim3)]
    pub cluster: Option<Dim3>,
    /// Bytes of dynamic shared memory.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub shared: u32,
    /// An argument of the kernel; repeat it in order.
    #[arg(long = "arg", value_name = "ARG", allow_hyphen_values = true)]
    pub args: Vec<String>,
    /// An array that only tensor maps and pointers in structures are of: FILE.npy, or in:, out: and inout: as for --arg.
    #[arg(long = "array", value_name = "NAME=FILE")]
    pub arrays: Vec<String>,
    /// A JSON file with arguments, which come before those of --arg: a list of texts, or {"args": [..], "arrays": {"NAME": "FILE", ..}}.
    #[arg(long, value_name = "FILE.json")]
    pub args_json: Option<PathBuf>,
    /// Where to run.
    #[command(flatten)]
    pub device: DeviceArg,
    /// Sanitizers of the emulator: memcheck, initcheck, racecheck, synccheck, separated by commas, or all, or none.
    #[arg(long, value_name = "LIST")]
    pub sanitize: Option<String>,
    /// Blocks that may have begun and wait for others, on the emulator; 0 for all of the grid.
    #[arg(long, value_name = "BLOCKS", default_value_t = 4096)]
    pub resident: usize,
    /// When asynchronous copies complete on the emulator: latest (when a thread waits for them), eager (at once),
    /// random or random:SEED. Results that differ between these show a missing wait.
    #[arg(long, value_name = "WHEN", default_value = "latest", value_parser = parse_completion)]
    pub completion: (Completion, u64),
    /// Launches in the emulator: the first as --completion says, the others with random orders of warps and blocks and random completions.
    /// Findings of all of them are listed, and arrays that are not the same in all; outputs are those of the first.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub schedules: u32,
    /// Limits of the launch.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Print what the emulator counted, by line and in all.
    #[arg(long)]
    pub counters: bool,
    /// Write a page with the lines of the PTX coloured by what they cost.
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,
    /// Replace outputs that are no arrays or pages of an earlier run.
    #[arg(long)]
    pub force: bool,
    /// Output form.
    #[command(flatten)]
    pub format: FormatArg,
}

const LINT_EXAMPLES: &str = "Examples:
  warpwright lint k.ptx --target sm_90
  warpwright lint k.ptx --format sarif > lint.sarif";

/// `lint`
#[derive(Debug, Args)]
pub struct LintArgs {
    /// The PTX file.
    #[arg(value_name = "K.ptx")]
    pub file: PathBuf,
    /// Whether it can be assembled for this target, too.
    #[arg(long, value_parser = parse_target)]
    pub target: Option<Target>,
    /// Output form.
    #[command(flatten)]
    pub format: FormatArg,
}

const PROVE_EXAMPLES: &str = "What the launches of the kernel have in common is said with its own names: COUNT and EXPR are made of numbers, integer
parameters, ntid.x to nctaid.z, + - * / % and parentheses. Nothing said is any launch; blocks have the shape of .reqntid if there
is one; indices that the kernel does not read have an extent of 1.

proved       holds in every such launch, as long as arrays are as long as promised, do not overlap and begin at multiples of 16 bytes
refuted      a launch in the emulator shows the defect; the command that runs it again is printed
not decided  something is not understood, or may be wrong; the line and the reason are printed

Exit codes: 0 both are proved, 1 one is refuted, 3 neither.

Examples:
  warpwright prove k.ptx --array x=n:f32 --array y=n:f32 --assume 'nctaid.x*ntid.x <= 4294967296'
  warpwright prove rows.ptx --entry norm --array x=rows*n:bf16 --assume 'nctaid.x == rows' --assume 'n % 8 == 0' --range n=1..16384";

/// `prove`
#[derive(Debug, Args)]
pub struct ProveArgs {
    /// The PTX file.
    #[arg(value_name = "K.ptx")]
    pub file: PathBuf,
    /// The kernel; may be left out if the file has only one.
    #[arg(long, value_name = "NAME")]
    pub entry: Option<String>,
    /// An array: the parameter that points to it, its elements and their type, as in x=rows*n:f32.
    #[arg(long = "array", value_name = "NAME=COUNT:DTYPE")]
    pub arrays: Vec<String>,
    /// Least and largest value of an integer parameter. One that may be negative is signed.
    #[arg(long = "range", value_name = "NAME=MIN..MAX")]
    pub ranges: Vec<String>,
    /// A relation that holds in every launch: two expressions with ==, !=, <, <=, > or >= between them.
    #[arg(long = "assume", value_name = "COMPARISON")]
    pub assumptions: Vec<String>,
    /// Blocks of the grid; any if it is left out.
    #[arg(long, value_name = "X[,Y,Z]", value_parser = parse_dim3)]
    pub grid: Option<Dim3>,
    /// Threads of a block; any if it is left out and the kernel does not fix them.
    #[arg(long, value_name = "X[,Y,Z]", value_parser = parse_dim3)]
    pub block: Option<Dim3>,
    /// Bytes of dynamic shared memory: an expression.
    #[arg(long, value_name = "EXPR")]
    pub shared: Option<String>,
    /// Output form.
    #[command(flatten)]
    pub format: FormatArg,
}

const BENCH_EXAMPLES: &str = "Every result is checked first; a wrong one gets no time. Times are medians over a backlog of launches with the inputs
rotated through more memory than the L2 cache holds, beside the bandwidth that a copy reached in the same run. Where --elements
is not named it is 67108864 on a GPU and 65536 on the emulator. --launches puts an event between two launches, so that those
that would overlap do not: their sum can be more than the whole.

Examples:
  warpwright bench silu quantize_nf4 --svg roofline.svg
  warpwright bench attention --dtype bf16 --head-dim 128 --heads 16 --causal --queries 4096
  warpwright bench chunk_scan --launches";

/// `bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The primitives; all of them if none is named.
    #[arg(value_name = "OP")]
    pub ops: Vec<String>,
    /// Where to run.
    #[command(flatten)]
    pub device: DeviceArg,
    /// The element type, once for each; all that a primitive has if none is named.
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    pub dtype: Vec<DType>,
    /// The launches of each primitive one by one, too.
    #[arg(long)]
    pub launches: bool,
    /// Draw the results under the device's roofline.
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Output form.
    #[command(flatten)]
    pub json: JsonArg,
    /// Options of the primitives; those that are named have to take them all.
    #[command(flatten)]
    pub options: OpFlags,
}

/// Three extents.
pub type Dim3 = [u32; 3];

fn parse_completion(text: &str) -> Result<(Completion, u64), String> {
    match text.split_once(':') {
        None if text == "latest" => Ok((Completion::Latest, 0)),
        None if text == "eager" => Ok((Completion::Eager, 0)),
        None if text == "random" => Ok((Completion::Random, 0)),
        Some(("random", seed)) => match seed.parse() {
            Ok(seed) => Ok((Completion::Random, seed)),
            Err(_) => Err(format!("'{seed}' is no seed: expected a number")),
        },
        _ => Err("expected latest, eager or random[:SEED]".to_owned()),
    }
}

fn parse_dim3(text: &str) -> Result<Dim3, String> {
    let mut out = [1; 3];
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > 3 {
        return Err("at most three extents".to_owned());
    }
    for (slot, part) in out.iter_mut().zip(&parts) {
        *slot = part
            .trim()
            .parse()
            .ok()
            .filter(|&n| n > 0)
            .ok_or_else(|| format!("{part:?} is no positive number"))?;
    }
    Ok(out)
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.trim().parse().map_err(|_| format!("{text:?} is no number"))?;
    let limit = Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero());
    limit.ok_or_else(|| format!("{text:?} is no positive number of seconds"))
}

fn parse_target(text: &str) -> Result<Target, String> {
    Target::from_name(text).ok_or_else(|| "expected sm_75, sm_90, sm_90a or the like".to_owned())
}

fn parse_dtype(text: &str) -> Result<DType, String> {
    let integer = [DType::I32, DType::I64].into_iter().find(|dtype| dtype.name() == text);
    let float = || parse_float_dtype(text).map_err(|floats| format!("{floats}; of sums also i32 and i64"));
    integer.map_or_else(float, Ok)
}

pub(crate) fn parse_float_dtype(text: &str) -> Result<DType, String> {
    text.parse().map(|FloatDType(dtype)| dtype)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn extents_are_one_to_three_positive_numbers() {
        assert_eq!(parse_dim3("7"), Ok([7, 1, 1]));
        assert_eq!(parse_dim3("7, 8,9"), Ok([7, 8, 9]));
        for bad in ["", "0", "1,2,3,4", "-1", "1,,2", "99999999999"] {
            assert!(parse_dim3(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn time_limits_are_positive_numbers_of_seconds() {
        assert_eq!(parse_seconds("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_seconds("3"), Ok(Duration::from_secs(3)));
        for bad in ["", "0", "-1", "nan", "inf", "1e300", "2s"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn floats_and_targets_are_named_as_in_ptx() {
        assert_eq!(parse_float_dtype("bf16"), Ok(DType::BF16));
        assert!(parse_float_dtype("u8").is_err());
        assert_eq!(parse_target("sm_90a"), Ok(Target::specific(90)));
        assert!(parse_target("90").is_err());
    }
}
