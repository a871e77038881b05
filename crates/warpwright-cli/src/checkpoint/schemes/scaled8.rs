//! Weights that keep their name: 8-bit floats and integers with scales, and the 4-bit floats of ModelOpt.

use super::compressed::COMPANIONS;
use super::parts::Parts;
use super::{Code, Codes, Global, PackedWeight, Packing, ScaleCode, Scales, Tool, Zero, float4};
use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::stored::StoredType;

/// The keys under which scales of 8-bit floats stand. `weight_scale_inv` is a factor too, in spite of its name.
const SCALES: [&str; 3] = [".weight_scale_inv", ".weight_scale", ".scale"];

pub(super) fn or_modelopt(parts: &Parts<'_>) -> Result<Option<PackedWeight>, CheckpointError> {
    let tensor = parts.at.tensor;
    if tensor.shape.len() != 2 {
        let eight = matches!(tensor.dtype, StoredType::F8E4M3 | StoredType::F8E5M2 | StoredType::I8);
        return if eight && SCALES.iter().any(|suffix| parts.has(suffix)) {
            // Taking them over without their scales' meaning would leave half a model.
            let shape = &tensor.shape;
            Err(parts.unsupported(format!("weights of {shape:?} are not read: only matrices")))
        } else {
            Ok(None)
        };
    }
    match tensor.dtype {
        StoredType::U8 => float4::modelopt(parts),
        StoredType::F8E4M3 => floats(parts, Code::E4m3).map(Some),
        StoredType::F8E5M2 => floats(parts, Code::E5m2).map(Some),
        StoredType::I8 => integers(parts),
        _ => Ok(None),
    }
}

fn floats(parts: &Parts<'_>, code: Code) -> Result<PackedWeight, CheckpointError> {
    let shape = parts.typed(".weight", &[parts.at.tensor.dtype], 2)?;
    let [rows, columns] = [shape[0], shape[1]];
    let method = parts.declared()?.method();
    let compressed = method.as_deref() == Some("compressed-tensors");
    let (scales, group_size) = match SCALES.into_iter().find(|suffix| parts.has(suffix)) {
        Some(suffix) => parts.scales_by_shape(suffix, [rows, columns])?,
        // A plain cast, unless the configuration speaks of scales.
        None if method.is_none() => (Scales::none(rows), columns.max(1)),
        None => return Err(parts.missing(".weight_scale")),
    };
    let tool = match (compressed, scales.code) {
        (_, ScaleCode::E8m0) if scales.rows == 1 && scales.groups > 1 => Tool::Mxfp8,
        (true, _) => Tool::FloatQuantized,
        (false, _) => Tool::Fp8,
    };
    weight(parts, tool, code, scales, Zero::Fixed(0), group_size)
}

fn integers(parts: &Parts<'_>) -> Result<Option<PackedWeight>, CheckpointError> {
    let shape = parts.typed(".weight", &[StoredType::I8], 2)?;
    let [rows, columns] = [shape[0], shape[1]];
    if parts.has(".SCB") {
        parts.expect(".SCB", &[StoredType::F32], &[rows])?;
        let (mut scales, group_size) = parts.scales_by_shape(".SCB", [rows, columns])?;
        scales.global = Global::Constant(127);
        check_order(parts)?;
        let mut weight = weight(parts, Tool::BnbInt8, Code::Int8, scales, Zero::Fixed(0), group_size)?;
        weight.companions.extend(parts.present(&[".weight_format"]));
        return Ok(Some(weight));
    }
    if !parts.has(".weight_scale") {
        if parts.get(".scale").is_some_and(|scale| scale.tensor.dtype == StoredType::F8E8M0) {
            return Err(parts.unsupported("bytes with a scale of F8_E8M0 are not read".to_owned()));
        }
        let declared = parts.declared()?.method();
        return if declared.as_deref() == Some("compressed-tensors") {
            Err(parts.missing(".weight_scale"))
        } else {
            Ok(None)
        };
    }
    let (scales, group_size) = parts.scales_by_shape(".weight_scale", [rows, columns])?;
    if scales.code == ScaleCode::E8m0 {
        return Err(parts.misfit(".weight_scale", "F32, F16 or BF16".to_owned()));
    }
    let zero = match parts.get(".weight_zero_point") {
        None => Zero::Fixed(0),
        Some(_) => {
            let shape = &parts.need(".weight_scale")?.tensor.shape;
            parts.expect(".weight_zero_point", &[StoredType::I8], shape)?;
            Zero::Int8(parts.key(".weight_zero_point"))
        }
    };
    weight(parts, Tool::IntQuantized, Code::Int8, scales, zero, group_size).map(Some)
}

/// Refuses the orders in which bitsandbytes once had elements for some GPUs; 0 is row by row.
fn check_order(parts: &Parts<'_>) -> Result<(), CheckpointError> {
    let Some(order) = parts.get(".weight_format") else { return Ok(()) };
    if order.tensor.dtype != StoredType::U8 || order.tensor.elements() != 1 {
        return Err(parts.misfit(".weight_format", "one U8".to_owned()));
    }
    match order.shard.read(order.tensor)?[..] {
        [0] => Ok(()),
        ref other => Err(parts.unsupported(format!("weight_format {other:?} is not read: only 0, rows"))),
    }
}

fn weight(
    parts: &Parts<'_>,
    tool: Tool,
    code: Code,
    scales: Scales,
    zero: Zero,
    group_size: u64,
) -> Result<PackedWeight, CheckpointError> {
    let shape = &parts.at.tensor.shape;
    let of_scales = scales.key.as_ref().and_then(|_| match scales.code {
        ScaleCode::Float(dtype) => StoredType::from_float(dtype),
        _ => None,
    });
    let codes = Codes { key: parts.key(".weight"), code, packing: Packing::Bytes };
    let (size, dtype) = ([shape[0], shape[1]], parts.dtype(of_scales)?);
    Ok(PackedWeight {
        zero,
        companions: parts.present(&COMPANIONS),
        ..PackedWeight::matrix(tool, parts.key(".weight"), size, dtype, codes, (scales, group_size))
    })
}
