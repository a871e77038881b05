//! AWQ, as AutoAWQ's `gemm` stores it: words of eight neighbours along N, in the order 0, 2, 4, 6, 1, 3, 5, 7.

use super::gptq::{self, SCALES};
use super::parts::Parts;
use super::{Code, Codes, PackedWeight, Packing, Tool, Zero};
use crate::checkpoint::error::{CheckpointError, Quoted};
use crate::checkpoint::stored::StoredType;

/// Codes of a word.
pub(super) const PER_WORD: u64 = 8;

pub(super) fn read(parts: &Parts<'_>) -> Result<PackedWeight, CheckpointError> {
    let declared = parts.declared()?;
    if let Some(version) = declared.text("version").filter(|version| !version.eq_ignore_ascii_case("gemm")) {
        return Err(parts.unsupported(format!("the AWQ version {} is not read: only gemm", Quoted(version))));
    }
    if let Some(bits) = declared.bits()?.filter(|bits| *bits != 4) {
        return Err(parts.unsupported(format!("AWQ with {bits} bits is not read: only 4")));
    }
    let words = parts.typed(".qweight", &[StoredType::I32], 2)?;
    let scales = parts.typed(".scales", &SCALES, 2)?;
    let (columns, groups, rows) = (words[0], scales[0], scales[1]);
    parts.expect(".qzeros", &[StoredType::I32], &[groups, words[1]])?;
    let codes = Codes { key: parts.key(".qweight"), code: Code::Unsigned(4), packing: Packing::Interleaved };
    let (scales, dtype) = gptq::scales_of(parts, groups)?;
    let in_groups = (scales, parts.group_size(columns, groups)?);
    Ok(PackedWeight {
        zero: Zero::Awq(parts.key(".qzeros")),
        ..PackedWeight::matrix(Tool::Awq, parts.key(".weight"), [rows, columns], dtype, codes, in_groups)
    })
}
