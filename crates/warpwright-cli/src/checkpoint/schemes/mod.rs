//! Weights that other tools have quantized: one file for each scheme says which tensors they are and how they lie; [`decode`]
//! reads all of them.
//!
//! W is \[N, K\], as a linear layer has it; g is the size of a group along K, G = ceil(K / g), b the bits of a code.
//!
//! | scheme | tensors of the weight `X.weight` | value |
//! |---|---|---|
//! | gptq | `X.qweight` i32 \[K b / 32, N\], `X.qzeros` i32 \[G, N b / 32\], `X.scales` \[G, N\], `X.g_idx` i32 \[K\] | (q - z) s |
//! | awq | `X.qweight` i32 \[K, N / 8\], `X.qzeros` i32 \[G, N / 8\], `X.scales` \[G, N\] | (q - z) s |
//! | pack-quantized | `X.weight_packed` i32 \[N, ceil(K b / 32)\], `X.weight_scale`, `X.weight_shape`, `X.weight_zero_point` i32 \[ceil(N b / 32), G\], `X.weight_g_idx` | (q - z) s |
//! | int-quantized | `X.weight` i8, `X.weight_scale`, `X.weight_zero_point` i8 | (q - z) s |
//! | float-quantized, fp8 | `X.weight` e4m3 or e5m2, `X.weight_scale` or `X.weight_scale_inv` | q s |
//! | mxfp8-quantized | `X.weight` e4m3, `X.weight_scale` e8m0 \[N, ceil(K / 32)\] | q s |
//! | nvfp4-pack-quantized | `X.weight_packed` u8 \[N, K / 2\], `X.weight_scale` e4m3 \[N, ceil(K / 16)\], `X.weight_global_scale` f32 | q (s / global) |
//! | mxfp4-pack-quantized | `X.weight_packed` u8 \[N, K / 2\], `X.weight_scale` e8m0 \[N, ceil(K / 32)\] | q s |
//! | modelopt-nvfp4 | `X.weight` u8 \[N, K / 2\], `X.weight_scale` e4m3 \[N, ceil(K / 16)\], `X.weight_scale_2` f32 | q (s global) |
//! | gpt-oss-mxfp4 | `X_blocks` u8 \[E, N, B, 16\], `X_scales` e8m0 \[E, N, B\]; restored as `X` \[E, 32 B, N\] | q s |
//! | bnb-int8 | `X.weight` i8, `X.SCB` f32 \[N\] | q (SCB / 127) |
//!
//! GGUF files have weights in blocks, of which `blocks` tells.
//!
//! Sources: AutoGPTQ and GPTQModel (qlinear), AutoAWQ (`packing_utils`), compressed-tensors (compressors), NVIDIA ModelOpt,
//! transformers (fine-grained fp8, mxfp4 integration), bitsandbytes (LLM.int8).

mod awq;
mod blocks;
mod compressed;
pub mod declared;
pub mod decode;
mod float4;
mod gptq;
pub mod packing;
mod parts;
mod scaled8;

use std::collections::HashSet;

use warpwright_ptx::DType;

pub use blocks::Block;
pub use declared::Declared;
pub use decode::Decoder;
pub use packing::{Code, Packing};

use super::error::CheckpointError;
use super::sharded::{Checkpoint, Located};
use parts::Parts;

/// How a weight is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tool {
    /// `GPTQ` words, codes along K.
    Gptq,
    /// AutoAWQ's `gemm` words.
    Awq,
    /// Integers of compressed-tensors in words.
    PackQuantized,
    /// Integers of compressed-tensors in bytes.
    IntQuantized,
    /// 8-bit floats of compressed-tensors.
    FloatQuantized,
    /// 8-bit floats with a power of two for each 32.
    Mxfp8,
    /// 4-bit floats of compressed-tensors with an 8-bit float for each 16 and a divisor for all.
    Nvfp4,
    /// 4-bit floats of compressed-tensors with a power of two for each 32.
    Mxfp4,
    /// 4-bit floats of ModelOpt with an 8-bit float for each 16 and a factor for all.
    ModelOptNvfp4,
    /// Experts of gpt-oss.
    GptOss,
    /// 8-bit floats, with factors or as they are.
    Fp8,
    /// LLM.int8 of bitsandbytes.
    BnbInt8,
    /// Blocks of a GGUF file.
    Gguf(Block),
}

impl Tool {
    /// As `inspect` names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gptq => "gptq",
            Self::Awq => "awq",
            Self::PackQuantized => "pack-quantized",
            Self::IntQuantized => "int-quantized",
            Self::FloatQuantized => "float-quantized",
            Self::Mxfp8 => "mxfp8-quantized",
            Self::Nvfp4 => "nvfp4-pack-quantized",
            Self::Mxfp4 => "mxfp4-pack-quantized",
            Self::ModelOptNvfp4 => "modelopt-nvfp4",
            Self::GptOss => "gpt-oss-mxfp4",
            Self::Fp8 => "fp8",
            Self::BnbInt8 => "bnb-int8",
            Self::Gguf(block) => block.name(),
        }
    }
}

/// The codes of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codes {
    /// The tensor; the restored weight takes its place.
    pub key: String,
    /// The meaning of a code.
    pub code: Code,
    /// How codes share words.
    pub packing: Packing,
}

/// How the bits of a scale are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleCode {
    /// A floating-point number of 16 bits or more.
    Float(DType),
    /// An 8-bit float.
    E4m3,
    /// A power of two; the byte 255 is NaN.
    E8m0,
}

/// The scales of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scales {
    /// The tensor; `None` where all of them are 1.
    pub key: Option<String>,
    /// How its bits are read.
    pub code: ScaleCode,
    /// Whether groups come first: \[G, N\] instead of \[N, G\].
    pub groups_first: bool,
    /// Rows that share scales.
    pub rows: u64,
    /// Number of groups along K.
    pub groups: u64,
    /// A factor of every scale.
    pub global: Global,
}

impl Scales {
    /// One for each row and group, rows first.
    fn new(key: Option<String>, code: ScaleCode, groups: u64) -> Self {
        Self { key, code, groups_first: false, rows: 1, groups, global: Global::None }
    }

    /// None, so to say one of 1 for all of so many rows.
    fn none(rows: u64) -> Self {
        Self { rows: rows.max(1), ..Self::new(None, ScaleCode::Float(DType::F32), 1) }
    }
}

/// A factor of all scales of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Global {
    /// There is none.
    None,
    /// Scales are multiplied by the one f32 of this tensor.
    Factor(String),
    /// Scales are divided by the one f32 of this tensor.
    Divisor(String),
    /// Scales are divided by this number.
    Constant(u32),
}

/// The code that stands for zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Zero {
    /// The same everywhere; 0 for codes that are numbers themselves.
    Fixed(u8),
    /// One for each group and row, GPTQ's way: along N in words of \[G, ..\].
    Gptq {
        /// The tensor.
        key: String,
        /// Whether one less is stored.
        less_one: bool,
        /// Whether all of them are the middle code, if that is declared.
        symmetric: Option<bool>,
    },
    /// AutoAWQ's way: as its codes.
    Awq(String),
    /// compressed-tensors' way: along N in words of \[.., G\].
    Packed(String),
    /// Bytes with a sign in the shape of the scales.
    Int8(String),
}

/// A weight that a tool has quantized, checked: every part is there with the type and shape that the scheme asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedWeight {
    /// Its key once it is restored.
    pub name: String,
    /// The scheme.
    pub tool: Tool,
    /// Extents before those of a matrix, such as the number of experts.
    pub leading: Vec<u64>,
    /// N, of one matrix.
    pub rows: u64,
    /// K.
    pub columns: u64,
    /// Whether the restored matrices are \[K, N\].
    pub transposed: bool,
    /// The type that it has once it is restored, unless another is asked for.
    pub dtype: DType,
    /// The codes.
    pub codes: Codes,
    /// The scales.
    pub scales: Scales,
    /// The zero points.
    pub zero: Zero,
    /// Elements of a group, if groups are runs.
    pub group_size: u64,
    /// The tensor that gives each of the K columns its group, if groups are not runs.
    pub group_index: Option<String>,
    /// Further tensors that mean nothing without the codes, such as scales of activations.
    pub companions: Vec<String>,
}

impl PackedWeight {
    /// A matrix \[N, K\] with its groups in runs, without zero points and companions.
    fn matrix(
        tool: Tool,
        name: String,
        [rows, columns]: [u64; 2],
        dtype: DType,
        codes: Codes,
        (scales, group_size): (Scales, u64),
    ) -> Self {
        Self {
            name,
            tool,
            leading: Vec::new(),
            rows,
            columns,
            transposed: false,
            dtype,
            codes,
            scales,
            zero: Zero::Fixed(0),
            group_size,
            group_index: None,
            companions: Vec::new(),
        }
    }

    /// The shape of the restored weight.
    pub fn shape(&self) -> Vec<u64> {
        let matrix = if self.transposed { [self.columns, self.rows] } else { [self.rows, self.columns] };
        [&self.leading[..], &matrix].concat()
    }

    /// Rows of all matrices.
    pub fn all_rows(&self) -> u64 {
        // The header was refused if the elements of a tensor overflow.
        self.leading.iter().product::<u64>() * self.rows
    }

    /// Every tensor that belongs to the weight besides that of its codes.
    pub fn parts(&self) -> impl Iterator<Item = &String> {
        let global = match &self.scales.global {
            Global::Factor(key) | Global::Divisor(key) => Some(key),
            Global::None | Global::Constant(_) => None,
        };
        let zero = match &self.zero {
            Zero::Fixed(_) => None,
            Zero::Gptq { key, .. } | Zero::Awq(key) | Zero::Packed(key) | Zero::Int8(key) => Some(key),
        };
        self.scales.key.iter().chain(global).chain(zero).chain(&self.group_index).chain(&self.companions)
    }

    /// A line for people, such as `gptq, 4 bits, groups of 128, zero points, act-order`.
    pub fn describe(&self) -> String {
        let mut text = self.tool.name().to_owned();
        if let Tool::Gguf(block) = self.tool {
            return format!("{text}, blocks of {}", block.elements());
        }
        if let Code::Unsigned(bits) = self.codes.code {
            text.push_str(&format!(", {bits} bits"));
        }
        text.push_str(&match (&self.scales.key, self.scales.rows, self.scales.groups) {
            (None, ..) => ", without scales".to_owned(),
            (_, 1, 1) => ", a scale for each row".to_owned(),
            (_, 1, _) => format!(", groups of {}", self.group_size),
            (_, rows, 1) if rows >= self.all_rows() => ", one scale".to_owned(),
            (_, rows, _) => format!(", blocks of {rows} x {}", self.group_size),
        });
        match self.zero {
            Zero::Fixed(_) | Zero::Gptq { symmetric: None, .. } => {}
            Zero::Gptq { symmetric: Some(true), .. } => text.push_str(", symmetric"),
            _ => text.push_str(", zero points"),
        }
        if self.group_index.is_some() && self.tool == Tool::PackQuantized {
            text.push_str(", act-order");
        }
        text
    }
}

/// Finds and checks the weights that other tools have quantized, in the order of their names. The parts of one may lie in
/// different shards.
///
/// # Errors
/// The first weight, in the order of the files, whose parts do not fit together or into what the configuration declares.
pub fn find_packed(checkpoint: &Checkpoint) -> Result<Vec<PackedWeight>, CheckpointError> {
    type Reader = for<'a> fn(&Parts<'a>) -> Result<Option<PackedWeight>, CheckpointError>;
    const READERS: [(&str, Reader); 4] = [
        (".qweight", gptq::or_awq),
        (".weight_packed", compressed::read),
        ("_blocks", float4::gpt_oss),
        (".weight", scaled8::or_modelopt),
    ];
    // Read when the first candidate asks for it: a configuration is nobody's concern where nothing is quantized.
    let declared = std::cell::OnceCell::new();
    let mut found = Vec::new();
    for at in checkpoint.tensors() {
        if at.shard.is_gguf() {
            found.extend(of_blocks(at));
            continue;
        }
        for (suffix, read) in READERS {
            if let Some(base) = at.tensor.name.strip_suffix(suffix) {
                let parts = Parts::new(checkpoint, at, base, &declared);
                found.extend(read(&parts)?);
            }
        }
    }
    let mut names = HashSet::new();
    for weight in &found {
        if !names.insert(&weight.name) {
            let message = "is quantized in two ways".to_owned();
            let defect = super::Defect::Scheme { message };
            let file = checkpoint.path_of(&weight.codes.key);
            return Err(CheckpointError::tensor(file, &weight.name, defect));
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// A tensor of a GGUF file, if it has blocks; it keeps its name.
fn of_blocks(at: Located<'_>) -> Option<PackedWeight> {
    let block = at.shard.block(&at.tensor.name)?;
    // The header was refused if anything but matrices has blocks.
    let [leading @ .., rows, row_bytes] = &at.tensor.shape[..] else { return None };
    let (leading, rows) = (leading.to_vec(), *rows);
    let columns = row_bytes / block.bytes() as u64 * block.elements() as u64;
    // That of their scales.
    let dtype = if block == Block::Mxfp4 { DType::BF16 } else { DType::F16 };
    let key = at.tensor.name.clone();
    let codes = Codes { key: key.clone(), code: Code::Block, packing: Packing::Blocks(block) };
    let groups = (Scales::none(rows), block.elements() as u64);
    Some(PackedWeight {
        leading,
        ..PackedWeight::matrix(Tool::Gguf(block), key, [rows, columns], dtype, codes, groups)
    })
}

#[cfg(test)]
mod tests;
