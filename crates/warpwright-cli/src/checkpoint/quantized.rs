//! Quantized weights as they lie in a checkpoint: which keys they have, what the keys hold, and reading them back.
//!
//! | scheme | keys besides `weight` (u8 \[ceil(n/2), 1\]) |
//! |---|---|
//! | bitsandbytes | `.absmax` f32 \[ceil(n/block)\], `.quant_map` f32 \[16\], `.quant_state.bitsandbytes__nf4` or `__fp4` u8 (JSON) |
//! | the same, double-quantized | `.absmax` is u8; also `.nested_absmax` f32, `.nested_quant_map` f32 \[256\] |
//! | int4 | `.scale` f32 \[ceil(n/group)\], `.zero_point` u8 of the same shape if asymmetric, `.quant_state.warpwright__int4` u8 (JSON) |
//!
//! Groups run over the flat row-major tensor; the last one may be short.

use serde::{Deserialize, Serialize};
use warpwright_ptx::DType;

use super::error::{CheckpointError, Defect};
use super::safetensors::product;
use super::sharded::{Checkpoint, Located};
use super::stored::StoredType;

/// The two codes of bitsandbytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BnbCode {
    /// Quantiles of a normal distribution.
    Nf4,
    /// A 4-bit float.
    Fp4,
}

impl BnbCode {
    /// `nf4` or `fp4`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
        }
    }
}

/// The JSON beside a bitsandbytes weight. bitsandbytes refuses any other key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BnbState {
    /// Which code.
    pub quant_type: BnbCode,
    /// Elements of a block.
    pub blocksize: u64,
    /// PyTorch's name of the type that the weight had.
    pub dtype: String,
    /// The shape that it had.
    pub shape: Vec<u64>,
    /// Block maxima of a block of block maxima, if they are quantized too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nested_blocksize: Option<u64>,
    /// Type of the nested maxima.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nested_dtype: Option<String>,
    /// The mean that was subtracted from the maxima.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nested_offset: Option<f64>,
}

/// Which element of a pair sits in the low half of its byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NibbleOrder {
    /// The first.
    LowFirst,
    /// The second, as in bitsandbytes.
    HighFirst,
}

/// The JSON beside an int4 weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Int4State {
    /// Always `int4`.
    pub quant_type: String,
    /// Elements of a group.
    pub group_size: u64,
    /// Without zero points: code 8 is zero.
    pub symmetric: bool,
    /// How codes are packed.
    pub nibble_order: NibbleOrder,
    /// PyTorch's name of the type that the weight had.
    pub dtype: String,
    /// The shape that it had.
    pub shape: Vec<u64>,
}

/// How a weight is quantized.
#[derive(Clone, Debug, PartialEq)]
pub enum Scheme {
    /// As bitsandbytes does it.
    Bnb(BnbState),
    /// Integers with a scale per group.
    Int4(Int4State),
}

/// Key suffixes of the parts of a weight.
pub mod keys {
    /// Block maxima of bitsandbytes.
    pub const ABSMAX: &str = ".absmax";
    /// The 16 code values.
    pub const QUANT_MAP: &str = ".quant_map";
    /// Block maxima of the block maxima.
    pub const NESTED_ABSMAX: &str = ".nested_absmax";
    /// The 256 code values of the block maxima.
    pub const NESTED_QUANT_MAP: &str = ".nested_quant_map";
    /// The JSON of an NF4 weight.
    pub const NF4_STATE: &str = ".quant_state.bitsandbytes__nf4";
    /// The JSON of an FP4 weight.
    pub const FP4_STATE: &str = ".quant_state.bitsandbytes__fp4";
    /// The JSON of an int4 weight.
    pub const INT4_STATE: &str = ".quant_state.warpwright__int4";
    /// Scales of int4 groups.
    pub const SCALE: &str = ".scale";
    /// Zero points of asymmetric int4 groups.
    pub const ZERO_POINT: &str = ".zero_point";
}

/// PyTorch's name of a floating-point type.
pub const fn torch_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F16 => Some("float16"),
        DType::BF16 => Some("bfloat16"),
        DType::F32 => Some("float32"),
        DType::F64 => Some("float64"),
        _ => None,
    }
}

/// The floating-point type that PyTorch calls `name`.
pub fn from_torch_name(name: &str) -> Option<DType> {
    DType::FLOATS.into_iter().find(|dtype| torch_name(*dtype) == Some(name))
}

impl Scheme {
    /// A short name: `bnb-nf4`, `bnb-fp4` or `int4`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Bnb(BnbState { quant_type: BnbCode::Nf4, .. }) => "bnb-nf4",
            Self::Bnb(BnbState { quant_type: BnbCode::Fp4, .. }) => "bnb-fp4",
            Self::Int4(_) => "int4",
        }
    }

    /// A line for people, such as `bnb-nf4, blocks of 64, double-quantized`.
    pub fn describe(&self) -> String {
        match self {
            Self::Bnb(state) => {
                let nested = if state.nested_blocksize.is_some() { ", double-quantized" } else { "" };
                format!("{}, blocks of {}{nested}", self.name(), state.blocksize)
            }
            Self::Int4(state) => {
                let kind = if state.symmetric { "symmetric" } else { "asymmetric" };
                format!("int4, groups of {}, {kind}", state.group_size)
            }
        }
    }

    /// The shape that the weight had.
    pub fn shape(&self) -> &[u64] {
        match self {
            Self::Bnb(state) => &state.shape,
            Self::Int4(state) => &state.shape,
        }
    }

    /// Elements that share a scale.
    pub const fn group_size(&self) -> u64 {
        match self {
            Self::Bnb(state) => state.blocksize,
            Self::Int4(state) => state.group_size,
        }
    }

    /// The type that the weight had, as PyTorch calls it.
    pub fn torch_dtype(&self) -> &str {
        match self {
            Self::Bnb(state) => &state.dtype,
            Self::Int4(state) => &state.dtype,
        }
    }

    /// The suffixes of all tensors that belong to a weight of this scheme, besides the weight itself.
    pub fn part_suffixes(&self) -> Vec<&'static str> {
        match self {
            Self::Bnb(state) => {
                let mut parts = vec![keys::ABSMAX, keys::QUANT_MAP];
                if state.nested_blocksize.is_some() {
                    parts.extend([keys::NESTED_ABSMAX, keys::NESTED_QUANT_MAP]);
                }
                parts.push(match state.quant_type {
                    BnbCode::Nf4 => keys::NF4_STATE,
                    BnbCode::Fp4 => keys::FP4_STATE,
                });
                parts
            }
            Self::Int4(state) => {
                let mut parts = vec![keys::SCALE];
                if !state.symmetric {
                    parts.push(keys::ZERO_POINT);
                }
                parts.push(keys::INT4_STATE);
                parts
            }
        }
    }
}

/// A quantized weight of a file, checked: every part is there with the type and size that the scheme asks for.
#[derive(Clone, Debug)]
pub struct QuantizedWeight {
    /// The weight's key.
    pub name: String,
    /// How it is quantized.
    pub scheme: Scheme,
    /// Number of elements before packing.
    pub elements: u64,
    /// The type that it had.
    pub dtype: DType,
}

impl QuantizedWeight {
    /// Number of scales.
    pub const fn groups(&self) -> u64 {
        self.elements.div_ceil(self.scheme.group_size())
    }
}

/// The state keys and the weight that each belongs to.
fn state_of(key: &str) -> Option<(&str, &'static str)> {
    [keys::NF4_STATE, keys::FP4_STATE, keys::INT4_STATE]
        .into_iter()
        .find_map(|suffix| key.strip_suffix(suffix).map(|base| (base, suffix)))
}

/// Block maxima that share a nested maximum.
pub const NESTED_BLOCK: u64 = 256;

/// The longest state that is read: a few numbers and a shape.
const LONGEST_STATE: u64 = 64 * 1024;

/// Finds and checks the quantized weights of a checkpoint. The parts of one weight may lie in different shards.
///
/// # Errors
/// The first weight whose parts do not fit together.
pub fn find_quantized(checkpoint: &Checkpoint) -> Result<Vec<QuantizedWeight>, CheckpointError> {
    let mut found = Vec::new();
    for at in checkpoint.tensors() {
        if let Some((base, suffix)) = state_of(&at.tensor.name) {
            found.push(read_state(checkpoint, at, base, suffix)?);
        }
    }
    found.sort_by(|a: &QuantizedWeight, b| a.name.cmp(&b.name));
    if let Some(pair) = found.windows(2).find(|pair| pair[0].name == pair[1].name) {
        let defect = Defect::Scheme { message: "has two quantization states".to_owned() };
        return Err(CheckpointError::tensor(checkpoint.path_of(&pair[0].name), &pair[0].name, defect));
    }
    Ok(found)
}

fn read_state(
    checkpoint: &Checkpoint,
    at: Located<'_>,
    base: &str,
    suffix: &str,
) -> Result<QuantizedWeight, CheckpointError> {
    let wrong = |message: String| {
        CheckpointError::tensor(at.shard.path(), &at.tensor.name, Defect::Scheme { message })
    };
    if at.tensor.dtype != StoredType::U8 || at.tensor.bytes() > LONGEST_STATE {
        return Err(wrong(format!("the state must be at most {LONGEST_STATE} bytes of U8")));
    }
    let text = at.shard.read(at.tensor)?;
    let parsed = if suffix == keys::INT4_STATE {
        serde_json::from_slice(&text).map(Scheme::Int4)
    } else {
        serde_json::from_slice(&text).map(Scheme::Bnb)
    };
    let scheme = parsed.map_err(|error| wrong(format!("state: {error}")))?;
    match &scheme {
        Scheme::Int4(state) if state.quant_type != "int4" => {
            return Err(wrong("state: quant_type must be int4".to_owned()));
        }
        Scheme::Bnb(state) => check_bnb(state, suffix).map_err(wrong)?,
        Scheme::Int4(_) => {}
    }
    let elements = product(scheme.shape()).ok_or_else(|| wrong("state: the shape overflows".to_owned()))?;
    let dtype = from_torch_name(scheme.torch_dtype()).ok_or_else(|| {
        wrong(format!("state: dtype {:?} is not a floating-point type", scheme.torch_dtype()))
    })?;
    if u32::try_from(scheme.group_size()).is_ok_and(|size| size > 0) {
        let weight = QuantizedWeight { name: base.to_owned(), scheme, elements, dtype };
        check_parts(checkpoint, at, &weight)?;
        Ok(weight)
    } else {
        Err(wrong(format!("state: a block size of {} is not possible", scheme.group_size())))
    }
}

fn check_bnb(state: &BnbState, suffix: &str) -> Result<(), String> {
    if !suffix.ends_with(state.quant_type.name()) {
        return Err(format!("state says {}, its key says otherwise", state.quant_type.name()));
    }
    let nested =
        [state.nested_blocksize.is_some(), state.nested_dtype.is_some(), state.nested_offset.is_some()];
    if nested.contains(&true) && nested.contains(&false) {
        return Err("state: nested_blocksize, nested_dtype and nested_offset go together".to_owned());
    }
    if state.nested_blocksize.is_some_and(|size| size != NESTED_BLOCK) {
        return Err(format!("state: nested_blocksize must be {NESTED_BLOCK}"));
    }
    if state.nested_dtype.as_deref().is_some_and(|dtype| dtype != "float32") {
        return Err("state: nested_dtype must be float32".to_owned());
    }
    Ok(())
}

fn check_parts(
    checkpoint: &Checkpoint,
    at: Located<'_>,
    weight: &QuantizedWeight,
) -> Result<(), CheckpointError> {
    let groups = weight.groups();
    let expect = |suffix: &str, dtype: StoredType, count: u64| -> Result<(), CheckpointError> {
        let key = format!("{}{suffix}", weight.name);
        let fail = |defect| Err(CheckpointError::tensor(at.shard.path(), &weight.name, defect));
        match checkpoint.get(&key) {
            None => fail(Defect::MissingPart { key }),
            Some(Located { tensor: part, .. }) if part.dtype != dtype || part.elements() != count => {
                let (holds, of) = (part.elements(), part.dtype);
                fail(Defect::Scheme {
                    message: format!("{key} holds {holds} {of} where {count} {dtype} are needed"),
                })
            }
            Some(_) => Ok(()),
        }
    };
    expect("", StoredType::U8, weight.elements.div_ceil(2))?;
    match &weight.scheme {
        Scheme::Bnb(state) => {
            expect(keys::QUANT_MAP, StoredType::F32, 16)?;
            if state.nested_blocksize.is_some() {
                expect(keys::ABSMAX, StoredType::U8, groups)?;
                expect(keys::NESTED_ABSMAX, StoredType::F32, groups.div_ceil(NESTED_BLOCK))?;
                expect(keys::NESTED_QUANT_MAP, StoredType::F32, 256)
            } else {
                expect(keys::ABSMAX, StoredType::F32, groups)
            }
        }
        Scheme::Int4(state) => {
            expect(keys::SCALE, StoredType::F32, groups)?;
            if state.symmetric { Ok(()) } else { expect(keys::ZERO_POINT, StoredType::U8, groups) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_what_bitsandbytes_reads() {
        let plain = BnbState {
            quant_type: BnbCode::Nf4,
            blocksize: 64,
            dtype: "bfloat16".to_owned(),
            shape: vec![96, 128],
            nested_blocksize: None,
            nested_dtype: None,
            nested_offset: None,
        };
        let text = serde_json::to_string(&plain).unwrap();
        assert_eq!(text, r#"{"quant_type":"nf4","blocksize":64,"dtype":"bfloat16","shape":[96,128]}"#);
        let nested = BnbState {
            nested_blocksize: Some(256),
            nested_dtype: Some("float32".to_owned()),
            nested_offset: Some(0.5),
            ..plain
        };
        let text = serde_json::to_string(&nested).unwrap();
        assert!(
            text.ends_with(r#""nested_blocksize":256,"nested_dtype":"float32","nested_offset":0.5}"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<BnbState>(&text).unwrap(), nested);
        // As bitsandbytes itself spaces it.
        let theirs = r#"{"quant_type": "fp4", "blocksize": 128, "dtype": "float32", "shape": [3]}"#;
        assert_eq!(serde_json::from_str::<BnbState>(theirs).unwrap().quant_type, BnbCode::Fp4);
        assert!(
            serde_json::from_str::<BnbState>(
                r#"{"quant_type":"nf4","blocksize":64,"dtype":"f","shape":[],"x":1}"#
            )
            .is_err()
        );
    }

    #[test]
    fn torch_names_read_back() {
        for dtype in DType::FLOATS {
            assert_eq!(torch_name(dtype).and_then(from_torch_name), Some(dtype));
        }
        assert_eq!(from_torch_name("int8"), None);
        assert_eq!(torch_name(DType::U8), None);
    }
}
