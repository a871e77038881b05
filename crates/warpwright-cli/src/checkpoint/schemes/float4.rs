//! 4-bit floats (e2m1): NVFP4 and MXFP4 of compressed-tensors, NVFP4 of ModelOpt, MXFP4 of gpt-oss.

use super::compressed::COMPANIONS;
use super::parts::Parts;
use super::{Code, Codes, Global, PackedWeight, Packing, ScaleCode, Scales, Tool};
use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::stored::StoredType;

const POWERS: [StoredType; 2] = [StoredType::U8, StoredType::F8E8M0];

/// Elements that share a scale.
pub(super) const NVFP4_GROUP: u64 = 16;
/// Elements that share a power of two.
pub(super) const MX_GROUP: u64 = 32;

/// `weight_packed` of bytes.
pub(super) fn compressed(parts: &Parts<'_>) -> Result<PackedWeight, CheckpointError> {
    let declared = parts.declared()?.text("format");
    let nvfp4 = parts.has(".weight_global_scale") || declared == Some("nvfp4-pack-quantized");
    if nvfp4 {
        parts.expect_scalar(".weight_global_scale")?;
        let global = Global::Divisor(parts.key(".weight_global_scale"));
        matrix(parts, ".weight_packed", Tool::Nvfp4, global)
    } else {
        matrix(parts, ".weight_packed", Tool::Mxfp4, Global::None)
    }
}

/// `weight` of bytes with two levels of scales. A weight of bytes without them is somebody else's, unless the configuration says
/// that it is not.
pub(super) fn modelopt(parts: &Parts<'_>) -> Result<Option<PackedWeight>, CheckpointError> {
    if !parts.has(".weight_scale_2") {
        let scaled = parts.has(".weight_scale");
        if !scaled || parts.declared()?.method().as_deref() != Some("modelopt") {
            return Ok(None);
        }
    }
    parts.expect_scalar(".weight_scale_2")?;
    let global = Global::Factor(parts.key(".weight_scale_2"));
    matrix(parts, ".weight", Tool::ModelOptNvfp4, global).map(Some)
}

fn matrix(
    parts: &Parts<'_>,
    codes: &str,
    tool: Tool,
    global: Global,
) -> Result<PackedWeight, CheckpointError> {
    let shape = parts.typed(codes, &[StoredType::U8], 2)?;
    let (rows, columns) = (shape[0], shape[1].saturating_mul(2));
    let (group_size, code, types) = if tool == Tool::Mxfp4 {
        (MX_GROUP, ScaleCode::E8m0, &POWERS[..])
    } else {
        (NVFP4_GROUP, ScaleCode::E4m3, &[StoredType::F8E4M3][..])
    };
    let groups = columns.div_ceil(group_size);
    parts.expect(".weight_scale", types, &[rows, groups])?;
    if let Some(size) = parts.declared()?.group_size(columns)?.filter(|size| *size != group_size) {
        let (declared, found) = (format!("groups of {size}"), format!("{} of {group_size}", tool.name()));
        return Err(parts.contradiction(declared, found));
    }
    let scales = Scales { global, ..Scales::new(Some(parts.key(".weight_scale")), code, groups) };
    let codes = Codes { key: parts.key(codes), code: Code::E2m1, packing: Packing::Nibbles };
    let (size, dtype, in_groups) = ([rows, columns], parts.dtype(None)?, (scales, group_size));
    Ok(PackedWeight {
        companions: parts.present(&COMPANIONS),
        ..PackedWeight::matrix(tool, parts.key(".weight"), size, dtype, codes, in_groups)
    })
}

/// The experts of gpt-oss, which transformers holds with K before N. Other tensors of such a name are left alone.
pub(super) fn gpt_oss(parts: &Parts<'_>) -> Result<Option<PackedWeight>, CheckpointError> {
    let is_declared = || Ok(parts.declared()?.method().as_deref() == Some("mxfp4"));
    let alike = parts.at.tensor.dtype == StoredType::U8 && parts.at.tensor.shape.len() == 4;
    if !(alike && (parts.has("_scales") || is_declared()?)) {
        return Ok(None);
    }
    let &[matrices, rows, blocks, bytes] = parts.typed("_blocks", &[StoredType::U8], 4)? else {
        return Ok(None);
    };
    if bytes != MX_GROUP / 2 {
        return Err(parts.misfit("_blocks", "blocks of 16 bytes".to_owned()));
    }
    parts.expect("_scales", &POWERS, &[matrices, rows, blocks])?;
    let scales = Scales::new(Some(parts.key("_scales")), ScaleCode::E8m0, blocks);
    let codes = Codes { key: parts.key("_blocks"), code: Code::E2m1, packing: Packing::Nibbles };
    let (size, dtype) = ([rows, blocks.saturating_mul(MX_GROUP)], parts.dtype(None)?);
    Ok(Some(PackedWeight {
        leading: vec![matrices],
        transposed: true,
        ..PackedWeight::matrix(Tool::GptOss, parts.key(""), size, dtype, codes, (scales, MX_GROUP))
    }))
}
