//! compressed-tensors' `weight_packed`: integers of 1 to 8 bits in words along K, and 4-bit floats in bytes.

use super::parts::Parts;
use super::{Code, Codes, PackedWeight, Packing, Tool, Zero, float4, packing};
use crate::checkpoint::error::{CheckpointError, Quoted};
use crate::checkpoint::stored::StoredType;

/// Tensors that stand beside weights and go with them: scales of activations, and a shape, which is read on its own.
pub(super) const COMPANIONS: [&str; 4] =
    [".input_scale", ".input_zero_point", ".input_global_scale", ".weight_shape"];

pub(super) fn read(parts: &Parts<'_>) -> Result<Option<PackedWeight>, CheckpointError> {
    match parts.at.tensor.dtype {
        StoredType::U8 => float4::compressed(parts).map(Some),
        _ => integers(parts).map(Some),
    }
}

fn integers(parts: &Parts<'_>) -> Result<PackedWeight, CheckpointError> {
    let declared = parts.declared()?;
    if let Some(format) = declared.text("format").filter(|format| format.starts_with("marlin")) {
        return Err(
            parts.unsupported(format!("the format {} of compressed-tensors is not read", Quoted(format)))
        );
    }
    let words = parts.typed(".weight_packed", &[StoredType::I32], 2)?;
    let [rows, columns] = shape(parts)?;
    let fits = |bits: u32| packing::words(columns, bits) == Some(words[1]);
    let bits = match declared.bits()? {
        Some(bits) => bits,
        None => [4, 8, 2, 3, 5, 6, 7, 1].into_iter().find(|bits| fits(*bits)).unwrap_or(4),
    };
    if words[0] != rows || !fits(bits) {
        let width = packing::words(columns, bits).unwrap_or(u64::MAX);
        return Err(parts.misfit(".weight_packed", format!("I32 {:?} for {bits} bits", [rows, width])));
    }
    let (scales, group_size) = parts.scales_by_shape(".weight_scale", [rows, columns])?;
    if parts.need(".weight_scale")?.tensor.dtype.float().is_none() {
        return Err(parts.misfit(".weight_scale", "F32, F16 or BF16".to_owned()));
    }
    let zero = if parts.has(".weight_zero_point") {
        let packed_rows = packing::words(rows, bits).unwrap_or(u64::MAX);
        parts.expect(".weight_zero_point", &[StoredType::I32], &[packed_rows, scales.groups])?;
        if scales.rows != 1 {
            return Err(parts.misfit(".weight_scale", "a scale for each row or group".to_owned()));
        }
        Zero::Packed(parts.key(".weight_zero_point"))
    } else {
        Zero::Fixed(1 << (bits - 1))
    };
    let group_index = if parts.has(".weight_g_idx") {
        let types = [StoredType::I32, StoredType::I64];
        parts.expect(".weight_g_idx", &types, &[columns])?;
        Some(parts.key(".weight_g_idx"))
    } else {
        None
    };
    let dtype = parts.dtype(Some(parts.need(".weight_scale")?.tensor.dtype))?;
    let codes =
        Codes { key: parts.key(".weight_packed"), code: Code::Unsigned(bits), packing: Packing::Along };
    let (tool, in_groups) = (Tool::PackQuantized, (scales, group_size));
    Ok(PackedWeight {
        zero,
        group_index,
        companions: parts.present(&COMPANIONS),
        ..PackedWeight::matrix(tool, parts.key(".weight"), [rows, columns], dtype, codes, in_groups)
    })
}

/// N and K, which the packed words round up.
fn shape(parts: &Parts<'_>) -> Result<[u64; 2], CheckpointError> {
    let types = [StoredType::I64, StoredType::I32];
    parts.typed(".weight_shape", &types, 1)?;
    let at = parts.need(".weight_shape")?;
    if at.tensor.shape != [2] {
        return Err(parts.misfit(".weight_shape", "two numbers".to_owned()));
    }
    let bytes = at.shard.read(at.tensor)?;
    let numbers = packing::integers(&bytes, at.tensor.dtype);
    match numbers[..] {
        [n, k] if n >= 0 && k >= 0 => Ok([n as u64, k as u64]),
        _ => Err(parts.unsupported(format!("weight_shape holds {numbers:?}, which is no shape"))),
    }
}
