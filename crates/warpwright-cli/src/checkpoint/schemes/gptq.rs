//! GPTQ, as AutoGPTQ and GPTQModel store it: `qweight`, `qzeros`, `scales` and `g_idx`.
//!
//! Format 1 stores zero points less one, format 2 as they are. Format 1 has a zero point of 0 as the highest code, which AutoGPTQ's
//! masks read as 0, and so does this. Some symmetric files say format 1 and hold format 2, so of these the words are believed.

use warpwright_ptx::DType;

use super::parts::Parts;
use super::{Code, Codes, PackedWeight, Packing, ScaleCode, Scales, Tool, Zero, awq, packing};
use crate::checkpoint::error::{CheckpointError, Quoted};
use crate::checkpoint::stored::StoredType;

/// Types of scales.
pub(super) const SCALES: [StoredType; 3] = [StoredType::F16, StoredType::BF16, StoredType::F32];

/// A weight of GPTQ or AWQ: both have the same keys, and the shapes tell which it is.
pub(super) fn or_awq(parts: &Parts<'_>) -> Result<Option<PackedWeight>, CheckpointError> {
    let words = parts.typed(".qweight", &[StoredType::I32], 2)?;
    let scales = parts.typed(".scales", &SCALES, 2)?;
    let method = parts.declared()?.method();
    let is_awq = scales[1] == words[1].saturating_mul(awq::PER_WORD) && words[1] > 0;
    if scales[1] != words[1] && !is_awq {
        let expected =
            format!("a row of {} scales for GPTQ or {} for AWQ", words[1], words[1].saturating_mul(8));
        return Err(parts.misfit(".scales", expected));
    }
    let (shaped, other) = if is_awq { ("awq", "gptq") } else { ("gptq", "awq") };
    if method.as_deref() == Some(other) {
        let declared = format!("quant_method {other}");
        return Err(parts.contradiction(declared, format!("the shapes of {shaped}")));
    }
    if is_awq { awq::read(parts).map(Some) } else { read(parts).map(Some) }
}

fn read(parts: &Parts<'_>) -> Result<PackedWeight, CheckpointError> {
    let declared = parts.declared()?;
    let words = parts.typed(".qweight", &[StoredType::I32], 2)?;
    let (word_rows, rows) = (words[0], words[1]);
    let scales = parts.typed(".scales", &SCALES, 2)?;
    let groups = scales[0];
    let zeros = parts.typed(".qzeros", &[StoredType::I32], 2)?;
    let bits = match declared.bits()? {
        Some(bits) => bits,
        None => {
            [4, 8, 2, 3].into_iter().find(|&bits| packing::words(rows, bits) == Some(zeros[1])).ok_or_else(
                || parts.misfit(".qzeros", format!("rows of 2, 3, 4 or 8 bits for {rows} columns")),
            )?
        }
    };
    if !matches!(bits, 2 | 3 | 4 | 8) {
        return Err(parts.unsupported(format!("GPTQ with {bits} bits is not read: only 2, 3, 4 and 8")));
    }
    let zero_words = packing::words(rows, bits).unwrap_or(u64::MAX);
    parts.expect(".qzeros", &[StoredType::I32], &[groups, zero_words])?;
    // The index has the number of columns; without it, they fill the words.
    let full = word_rows.saturating_mul(32) / u64::from(bits);
    let columns = parts.get(".g_idx").map_or(full, |index| index.tensor.elements());
    if packing::words(columns, bits) != Some(word_rows) {
        return Err(parts.misfit(".qweight", format!("the words of {columns} columns of {bits} bits")));
    }
    let has_index = parts.has(".g_idx");
    if has_index {
        parts.expect(".g_idx", &[StoredType::I32], &[columns])?;
    }
    let group_size = parts.group_size(columns, groups)?;
    let format = declared.text("checkpoint_format").or_else(|| declared.text("format"));
    let less_one = match format {
        None | Some("gptq") => true,
        Some("gptq_v2") => false,
        Some(other) => {
            return Err(parts.unsupported(format!("the GPTQ format {} is not read", Quoted(other))));
        }
    };
    let codes = Codes { key: parts.key(".qweight"), code: Code::Unsigned(bits), packing: Packing::Down };
    let (scales, dtype) = scales_of(parts, groups)?;
    let in_groups = (scales, group_size);
    Ok(PackedWeight {
        zero: Zero::Gptq { key: parts.key(".qzeros"), less_one, symmetric: declared.truth("sym") },
        group_index: has_index.then(|| parts.key(".g_idx")),
        ..PackedWeight::matrix(Tool::Gptq, parts.key(".weight"), [rows, columns], dtype, codes, in_groups)
    })
}

/// The scales of GPTQ and AWQ, and the type of the restored weight.
pub(super) fn scales_of(parts: &Parts<'_>, groups: u64) -> Result<(Scales, DType), CheckpointError> {
    let stored = parts.need(".scales")?.tensor.dtype;
    let float = stored.float().ok_or_else(|| parts.misfit(".scales", "F16, BF16 or F32".to_owned()))?;
    let scales = Scales::new(Some(parts.key(".scales")), ScaleCode::Float(float), groups);
    Ok((Scales { groups_first: true, ..scales }, parts.dtype(Some(stored))?))
}
