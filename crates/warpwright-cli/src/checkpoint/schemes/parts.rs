//! The tensors around a candidate, asked for by name, type and shape.

use std::cell::OnceCell;

use warpwright_ptx::DType;

use super::declared::Declared;
use super::{ScaleCode, Scales};
use crate::checkpoint::error::{CheckpointError, Defect};
use crate::checkpoint::sharded::{Checkpoint, Located};
use crate::checkpoint::stored::StoredType;

/// A tensor of codes and what lies beside it.
pub(super) struct Parts<'a> {
    checkpoint: &'a Checkpoint,
    /// The candidate.
    pub(super) at: Located<'a>,
    /// Its key without the suffix that made it one.
    pub(super) base: &'a str,
    declared: &'a OnceCell<Declared>,
}

impl<'a> Parts<'a> {
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        at: Located<'a>,
        base: &'a str,
        declared: &'a OnceCell<Declared>,
    ) -> Self {
        Self { checkpoint, at, base, declared }
    }

    pub(super) fn declared(&self) -> Result<&'a Declared, CheckpointError> {
        if let Some(known) = self.declared.get() {
            return Ok(known);
        }
        let read = Declared::read(self.checkpoint.folder())?;
        Ok(self.declared.get_or_init(|| read))
    }

    /// The part whose key ends so.
    pub(super) fn get(&self, suffix: &str) -> Option<Located<'a>> {
        self.checkpoint.get(&self.key(suffix))
    }

    pub(super) fn has(&self, suffix: &str) -> bool {
        self.get(suffix).is_some()
    }

    pub(super) fn key(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.base)
    }

    /// Those of these parts that there are.
    pub(super) fn present(&self, suffixes: &[&str]) -> Vec<String> {
        suffixes.iter().filter(|suffix| self.has(suffix)).map(|suffix| self.key(suffix)).collect()
    }

    /// The part, which must be there.
    pub(super) fn need(&self, suffix: &str) -> Result<Located<'a>, CheckpointError> {
        self.get(suffix).ok_or_else(|| self.missing(suffix))
    }

    /// That a part is not there.
    pub(super) fn missing(&self, suffix: &str) -> CheckpointError {
        self.fail(Defect::MissingPart { key: self.key(suffix) })
    }

    /// The part, which must have one of these types and so many dimensions.
    pub(super) fn typed(
        &self,
        suffix: &str,
        dtypes: &[StoredType],
        rank: usize,
    ) -> Result<&'a [u64], CheckpointError> {
        let part = self.need(suffix)?.tensor;
        if dtypes.contains(&part.dtype) && part.shape.len() == rank {
            return Ok(&part.shape);
        }
        let names: Vec<_> = dtypes.iter().map(|dtype| dtype.name()).collect();
        Err(self.misfit(suffix, format!("{} of {rank} dimensions", names.join(" or "))))
    }

    /// The part, which must have one of these types and this shape.
    pub(super) fn expect(
        &self,
        suffix: &str,
        dtypes: &[StoredType],
        shape: &[u64],
    ) -> Result<(), CheckpointError> {
        let part = self.need(suffix)?.tensor;
        if dtypes.contains(&part.dtype) && part.shape == shape {
            return Ok(());
        }
        let names: Vec<_> = dtypes.iter().map(|dtype| dtype.name()).collect();
        Err(self.misfit(suffix, format!("{} {shape:?}", names.join(" or "))))
    }

    /// The part, which must be a single number of f32.
    pub(super) fn expect_scalar(&self, suffix: &str) -> Result<(), CheckpointError> {
        let part = self.need(suffix)?.tensor;
        let fits = part.dtype == StoredType::F32 && part.elements() == 1;
        if fits { Ok(()) } else { Err(self.misfit(suffix, "one F32".to_owned())) }
    }

    /// That a part is not what the others ask for.
    pub(super) fn misfit(&self, suffix: &str, expected: String) -> CheckpointError {
        match self.get(suffix) {
            None => self.missing(suffix),
            Some(Located { tensor, .. }) => {
                let key = self.key(suffix);
                let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
                self.fail(Defect::PartShape { key, dtype, shape, expected })
            }
        }
    }

    /// That the configuration and the tensors do not agree.
    pub(super) fn contradiction(&self, declared: String, found: String) -> CheckpointError {
        self.fail(Defect::Declared { declared, found })
    }

    pub(super) fn unsupported(&self, message: String) -> CheckpointError {
        self.fail(Defect::Scheme { message })
    }

    fn fail(&self, defect: Defect) -> CheckpointError {
        CheckpointError::tensor(self.at.shard.path(), &self.at.tensor.name, defect)
    }

    /// The type that the restored weight gets: the configuration's, else that of 16-bit scales, else bf16.
    pub(super) fn dtype(&self, scales: Option<StoredType>) -> Result<DType, CheckpointError> {
        let of_scales = scales.and_then(StoredType::float).filter(|dtype| dtype.bytes() == 2);
        Ok(self.declared()?.dtype.or(of_scales).unwrap_or(DType::BF16))
    }

    /// The size of groups that cut K columns into `groups`: the declared one, which must do so, else the one that follows from
    /// their number.
    pub(super) fn group_size(&self, columns: u64, groups: u64) -> Result<u64, CheckpointError> {
        let declared = self.declared()?.group_size(columns)?;
        if let Some(size) = declared {
            // Weights with a scale for each row may stand beside others, as may those that are narrower than a group.
            if columns.div_ceil(size) == groups {
                return Ok(size);
            }
            let (declared, found) = (format!("groups of {size}"), format!("{groups} for {columns} columns"));
            return Err(self.contradiction(declared, found));
        }
        let size = columns.div_ceil(groups.max(1)).max(1);
        if groups > 0 && columns.div_ceil(size) == groups {
            return Ok(size);
        }
        Err(self.unsupported(format!("{columns} columns cannot be in {groups} groups of one size")))
    }

    /// The scales of rows of `columns` elements, whose shape says what shares one: nothing (a single scale), a row, a block of the
    /// declared size, or a group.
    pub(super) fn scales_by_shape(
        &self,
        suffix: &str,
        [rows, columns]: [u64; 2],
    ) -> Result<(Scales, u64), CheckpointError> {
        const TYPES: [StoredType; 5] =
            [StoredType::F32, StoredType::F16, StoredType::BF16, StoredType::U8, StoredType::F8E8M0];
        let part = self.need(suffix)?.tensor;
        if !TYPES.contains(&part.dtype) {
            return Err(self.misfit(suffix, "F32, F16, BF16, U8 or F8_E8M0".to_owned()));
        }
        let code = part.dtype.float().map_or(ScaleCode::E8m0, ScaleCode::Float);
        let scales = |rows, groups| Scales { rows, ..Scales::new(Some(self.key(suffix)), code, groups) };
        let [block_rows, block_columns] = self.declared()?.block()?.unwrap_or([128, 128]);
        let blocks = [rows.div_ceil(block_rows), columns.div_ceil(block_columns)];
        match part.shape[..] {
            _ if part.elements() == 1 => Ok((scales(rows.max(1), 1), columns.max(1))),
            [n] | [n, 1] if n == rows => Ok((scales(1, 1), columns.max(1))),
            [n, groups] if [n, groups] == blocks => Ok((scales(block_rows, groups), block_columns)),
            [n, groups] if n == rows && code == ScaleCode::E8m0 && groups == columns.div_ceil(32) => {
                Ok((scales(1, groups), 32))
            }
            [n, groups] if n == rows => Ok((scales(1, groups), self.group_size(columns, groups)?)),
            _ => {
                let (n, [a, b]) = (rows, blocks);
                Err(self.misfit(suffix, format!("a shape of [1], [{n}, 1], {:?} or [{n}, groups]", [a, b])))
            }
        }
    }
}
