//! The tensors that stand for a quantized weight, and where they lie in the output.

use std::path::Path;

use warpwright_ops::quantize::tables::{FP4, NF4, dynamic_map};
use warpwright_ptx::DType;

use super::kernels::NestedScales;
use super::quantize::Options;
use crate::args::Format;
use crate::checkpoint::floats;
use crate::checkpoint::quantized::{BnbCode, NESTED_BLOCK, keys, torch_name};
use crate::checkpoint::{
    self, BnbState, CheckpointError, Int4State, Layout, Reader, Storage, StoredType, TensorInfo, TensorSpec,
    Writer,
};

/// A tensor of the input and where its parts go in the output.
pub(super) struct Item {
    /// Position in the shard.
    pub(super) tensor: usize,
    /// Position of its first part among the specs; the parts follow in the order of [`weight_specs`].
    pub(super) first: usize,
    /// Number of parts.
    pub(super) parts: usize,
    /// Its type, if it is quantized.
    pub(super) dtype: Option<DType>,
}

/// The output file of a shard.
pub(super) struct ShardPlan {
    pub(super) specs: Vec<TensorSpec>,
    pub(super) items: Vec<Item>,
    pub(super) layout: Layout,
}

impl ShardPlan {
    pub(super) fn new(shard: &Reader, options: &Options, target: &Path) -> Result<Self, CheckpointError> {
        let mut specs = Vec::new();
        let mut items = Vec::new();
        for (at, tensor) in shard.tensors().iter().enumerate() {
            let first = specs.len();
            let dtype = options.takes(tensor);
            match dtype {
                Some(dtype) => specs.extend(weight_specs(tensor, dtype, options)),
                None => specs.push(TensorSpec {
                    name: tensor.name.clone(),
                    dtype: tensor.dtype,
                    shape: tensor.shape.clone(),
                }),
            }
            items.push(Item { tensor: at, first, parts: specs.len() - first, dtype });
        }
        let mut metadata = shard.header().metadata.clone();
        if options.format.is_bnb() && !metadata.iter().any(|(key, _)| key == "format") {
            metadata.push(("format".to_owned(), "pt".to_owned()));
        }
        let layout = Layout::new(target, &metadata, &specs)?;
        Ok(Self { specs, items, layout })
    }

    pub(super) fn bytes(&self) -> u64 {
        (0..self.specs.len()).map(|at| self.layout.tensor_bytes(at)).sum()
    }
}

/// The tensors that stand for a weight: codes first, then scales, then the rest.
fn weight_specs(tensor: &TensorInfo, dtype: DType, options: &Options) -> Vec<TensorSpec> {
    let elements = tensor.elements();
    let groups = elements.div_ceil(u64::from(options.block_size));
    let spec = |suffix: &str, dtype, shape: &[u64]| TensorSpec {
        name: format!("{}{suffix}", tensor.name),
        dtype,
        shape: shape.to_vec(),
    };
    let mut specs = vec![spec("", StoredType::U8, &[elements.div_ceil(2), 1])];
    let state = match options.format {
        Format::BnbNf4 | Format::BnbFp4 => {
            let absmax = if options.double_quant { StoredType::U8 } else { StoredType::F32 };
            specs.push(spec(keys::ABSMAX, absmax, &[groups]));
            specs.push(spec(keys::QUANT_MAP, StoredType::F32, &[16]));
            if options.double_quant {
                specs.push(spec(keys::NESTED_ABSMAX, StoredType::F32, &[groups.div_ceil(NESTED_BLOCK)]));
                specs.push(spec(keys::NESTED_QUANT_MAP, StoredType::F32, &[256]));
            }
            if options.format == Format::BnbNf4 { keys::NF4_STATE } else { keys::FP4_STATE }
        }
        Format::Int4 => {
            specs.push(spec(keys::SCALE, StoredType::F32, &[groups]));
            if options.asymmetric {
                specs.push(spec(keys::ZERO_POINT, StoredType::U8, &[groups]));
            }
            keys::INT4_STATE
        }
    };
    specs.push(spec(state, StoredType::U8, &[state_room(tensor, dtype, options)]));
    specs
}

/// The JSON beside a weight.
fn state_text(tensor: &TensorInfo, dtype: DType, options: &Options, offset: Option<f32>) -> String {
    let torch = torch_name(dtype).unwrap_or_default().to_owned();
    let shape = tensor.shape.clone();
    let text = match options.format {
        Format::BnbNf4 | Format::BnbFp4 => serde_json::to_string(&BnbState {
            quant_type: if options.format == Format::BnbNf4 { BnbCode::Nf4 } else { BnbCode::Fp4 },
            blocksize: options.block_size.into(),
            dtype: torch,
            shape,
            nested_blocksize: offset.map(|_| NESTED_BLOCK),
            nested_dtype: offset.map(|_| "float32".to_owned()),
            nested_offset: offset.map(f64::from),
        }),
        Format::Int4 => serde_json::to_string(&Int4State {
            quant_type: "int4".to_owned(),
            group_size: options.block_size.into(),
            symmetric: !options.asymmetric,
            nibble_order: checkpoint::NibbleOrder::LowFirst,
            dtype: torch,
            shape,
        }),
    };
    // Strings, integers and finite floats always serialise.
    text.unwrap_or_default()
}

/// Bytes kept for the state. The offset of nested scales is known only after the header is written, so the longest text
/// of an f32 as an f64 is allowed for, and blanks, which JSON ignores, fill what is left.
fn state_room(tensor: &TensorInfo, dtype: DType, options: &Options) -> u64 {
    const LONGEST_NUMBER: usize = "-1.1754943508222875e-38".len();
    let offset = options.double_quant.then_some(0.0);
    let text = state_text(tensor, dtype, options, offset);
    let extra = if offset.is_some() { LONGEST_NUMBER - "0.0".len() } else { 0 };
    (text.len() + extra) as u64
}

/// Writes the parts of a weight that no chunk has: the code's values, the state, and scales that are quantized themselves.
pub(super) fn write_parts<S: Storage>(
    writer: &Writer<S>,
    tensor: &TensorInfo,
    dtype: DType,
    item: &Item,
    options: &Options,
    nested: Option<&NestedScales>,
) -> Result<(), CheckpointError> {
    // Codes come first and the state last; what lies between them depends on the format.
    let map = match options.format {
        Format::BnbNf4 => Some(NF4),
        Format::BnbFp4 => Some(FP4),
        Format::Int4 => None,
    };
    if let Some(map) = map {
        writer.write_at(item.first + 2, 0, &floats::f32_bytes(&map))?;
    }
    if let Some(nested) = nested {
        writer.write_at(item.first + 1, 0, &nested.codes)?;
        writer.write_at(item.first + 3, 0, &floats::f32_bytes(&nested.absmax))?;
        writer.write_at(item.first + 4, 0, &floats::f32_bytes(&dynamic_map()))?;
    }
    let mut state = state_text(tensor, dtype, options, nested.map(|nested| nested.offset)).into_bytes();
    let room = state_room(tensor, dtype, options);
    state.resize(usize::try_from(room).unwrap_or(state.len()), b' ');
    writer.write_at(item.first + item.parts - 1, 0, &state)
}
