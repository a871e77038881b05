//! The way of each tensor of a shard into the output.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::Options;
use super::encode::Rule;
use crate::checkpoint::schemes::{Code, PackedWeight, ScaleCode};
use crate::checkpoint::{
    Checkpoint, CheckpointError, Defect, Layout, Reader, StoredType, TensorInfo, TensorSpec,
};

/// Where the numbers of an output come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input<'a> {
    /// A tensor that is taken over.
    Copy(&'a TensorInfo),
    /// A weight of floating point.
    Plain(&'a TensorInfo),
    /// A quantized weight.
    Packed(&'a PackedWeight),
}

/// A tensor or weight of the input and where it goes.
#[derive(Debug)]
pub(super) struct Item<'a> {
    pub(super) input: Input<'a>,
    /// The tensor's or the weight's key.
    pub(super) name: String,
    /// N and K of a weight.
    pub(super) shape: [u64; 2],
    /// The type that it has, or whose place codes have.
    pub(super) dtype: StoredType,
    /// Bytes of the input, with all parts of a weight.
    pub(super) bytes: u64,
    pub(super) rule: Rule,
    /// Position of its first tensor among the specs.
    pub(super) first: usize,
    /// Number of its tensors.
    pub(super) specs: usize,
}

/// The output file of a shard.
#[derive(Debug)]
pub(super) struct ShardPlan<'a> {
    pub(super) specs: Vec<TensorSpec>,
    pub(super) items: Vec<Item<'a>>,
    pub(super) layout: Layout,
    /// Modules with a matrix that stays as it is.
    pub(super) left: Vec<String>,
}

impl<'a> ShardPlan<'a> {
    pub(super) fn new(
        checkpoint: &Checkpoint,
        shard: &'a Reader,
        options: &Options,
        packed: &'a [PackedWeight],
        quantize: bool,
        target: &Path,
    ) -> Result<Self, CheckpointError> {
        let by_key: HashMap<&str, &PackedWeight> =
            packed.iter().map(|weight| (weight.codes.key.as_str(), weight)).collect();
        let parts: HashSet<&String> = packed.iter().flat_map(PackedWeight::parts).collect();
        let (mut specs, mut items, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for tensor in shard.tensors() {
            if parts.contains(&tensor.name) {
                continue;
            }
            let input = match by_key.get(tensor.name.as_str()) {
                Some(weight) => Input::Packed(weight),
                None if quantize && takes(tensor, options) => Input::Plain(tensor),
                None => Input::Copy(tensor),
            };
            if shard.is_gguf() && !matches!(input, Input::Copy(_)) {
                let message =
                    "weights of GGUF have llama.cpp's names, which loaders of this format do not know";
                let defect = Defect::Unfit { message: message.to_owned() };
                return Err(CheckpointError::tensor(shard.path(), &tensor.name, defect));
            }
            let item = match input {
                Input::Packed(weight) => of_packed(checkpoint, tensor, weight, options, specs.len())?,
                _ => of_tensor(tensor, input, options, specs.len()),
            };
            match item.input {
                Input::Copy(_) => {
                    if let Some(module) =
                        tensor.name.strip_suffix(".weight").filter(|_| tensor.shape.len() == 2)
                    {
                        left.push(module.to_owned());
                    }
                    let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
                    specs.push(TensorSpec { name, dtype, shape });
                }
                _ => specs.extend(item.rule.specs(base_of(&item.name), item.shape)),
            }
            items.push(Item { specs: specs.len() - item.first, ..item });
        }
        let mut metadata = shard.header().metadata.clone();
        if !metadata.iter().any(|(key, _)| key == "format") {
            metadata.push(("format".to_owned(), "pt".to_owned()));
        }
        let layout = Layout::new(target, &metadata, &specs)?;
        Ok(Self { specs, items, layout, left })
    }
}

fn base_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

fn of_tensor<'a>(tensor: &'a TensorInfo, input: Input<'a>, options: &Options, first: usize) -> Item<'a> {
    let shape = match tensor.shape[..] {
        [n, k] => [n, k],
        _ => [0, 0],
    };
    Item {
        input,
        name: tensor.name.clone(),
        shape,
        dtype: tensor.dtype,
        bytes: tensor.bytes(),
        rule: options.rule(tensor.dtype),
        first,
        specs: 0,
    }
}

fn of_packed<'a>(
    checkpoint: &Checkpoint,
    tensor: &'a TensorInfo,
    weight: &'a PackedWeight,
    options: &Options,
    first: usize,
) -> Result<Item<'a>, CheckpointError> {
    let file = checkpoint.path_of(&tensor.name);
    let fail = |message: String| CheckpointError::tensor(file, &tensor.name, Defect::Unfit { message });
    if weight.shape().len() != 2 || !weight.name.ends_with(".weight") {
        return Err(fail("experts in one tensor have no place in this format".to_owned()));
    }
    // Scales of integers may be kept, and stay in the type that holds them.
    let dtype = match (weight.codes.code, weight.scales.code) {
        (Code::Unsigned(4), ScaleCode::Float(dtype)) => StoredType::from_float(dtype),
        _ => StoredType::from_float(weight.dtype),
    };
    let rule = options.rule(dtype.unwrap_or(StoredType::F32));
    let shape = [weight.rows, weight.columns];
    if !rule.fits(shape) || weight.rows == 0 || weight.columns == 0 {
        let (name, size) = (options.format.name(), options.group_size);
        return Err(fail(format!("a weight of {shape:?} cannot be stored as {name} with groups of {size}")));
    }
    let parts = weight.parts().filter_map(|key| checkpoint.get(key));
    Ok(Item {
        input: Input::Packed(weight),
        name: weight.name.clone(),
        shape,
        dtype: tensor.dtype,
        bytes: tensor.bytes() + parts.map(|at| at.tensor.bytes()).sum::<u64>(),
        rule,
        first,
        specs: 0,
    })
}

/// Whether a tensor is a linear layer's weight that is quantized.
fn takes(tensor: &TensorInfo, options: &Options) -> bool {
    let [n, k] = tensor.shape[..] else { return false };
    matches!(tensor.dtype, StoredType::F32 | StoredType::F16 | StoredType::BF16)
        && tensor.name.ends_with(".weight")
        && n > 0
        && k > 0
        && !is_kept(&tensor.name)
        && !options.skip.is_match(&tensor.name)
        && options.rule(tensor.dtype).fits([n, k])
}

/// Whether a weight is one that loaders of these formats take as it is: embeddings, output heads and routers.
fn is_kept(name: &str) -> bool {
    let module = base_of(name).rsplit('.').next().unwrap_or_default();
    name.contains("embed")
        || matches!(
            module,
            "wte"
                | "wpe"
                | "shared"
                | "relative_attention_bias"
                | "lm_head"
                | "gate"
                | "router"
                | "shared_expert_gate"
        )
}

/// The weights that share a divisor, as one name: inference engines multiply by some layers as by one, and then know a single divisor.
pub(super) fn siblings(name: &str) -> String {
    let module = base_of(name);
    let (parent, leaf) = module.rsplit_once('.').unwrap_or(("", module));
    let class = match leaf {
        "q_proj" | "k_proj" | "v_proj" => "qkv",
        "gate_proj" | "up_proj" => "gate_up",
        "w1" | "w3" => "w13",
        leaf => leaf,
    };
    format!("{parent}.{class}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_are_multiplied_as_one_share_a_divisor() {
        let of = |leaf: &str| siblings(&format!("model.layers.0.self_attn.{leaf}.weight"));
        assert_eq!(of("q_proj"), of("v_proj"));
        assert_ne!(of("q_proj"), of("o_proj"));
        assert_ne!(of("q_proj"), siblings("model.layers.1.self_attn.q_proj.weight"));
    }

    #[test]
    fn embeddings_heads_and_routers_stay() {
        for name in [
            "model.embed_tokens.weight",
            "lm_head.weight",
            "h.wte.weight",
            "l.0.mlp.gate.weight",
            // Embeddings of T5: of tokens, and of distances.
            "shared.weight",
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ] {
            assert!(is_kept(name), "{name}");
        }
        for name in [
            "l.0.mlp.gate_proj.weight",
            "l.0.self_attn.q_proj.weight",
            "l.0.mlp.shared_expert.up_proj.weight",
        ] {
            assert!(!is_kept(name), "{name}");
        }
    }
}
