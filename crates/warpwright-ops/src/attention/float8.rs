//! Keys and values of 8-bit floats, as caches of servers hold them.

use warpwright_ptx::{DType, Target};

use crate::PlanError;
use crate::quantize8::FLOAT8_SM;

/// The types of queries, results, and new keys and values beside such a cache.
pub(crate) const WIDE: [DType; 2] = [DType::F16, DType::BF16];

/// Which key heads a scale of a cache is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheScale {
    /// All of them: one number.
    PerTensor,
    /// Each has its own: `[num_kv_heads]`.
    PerHead,
}

impl CacheScale {
    /// The scales that a tensor of this shape holds for `heads` key heads: `[]` or `[1]`, or `[heads]`.
    pub(crate) fn of(
        op: &'static str,
        name: &'static str,
        shape: &[usize],
        heads: usize,
    ) -> Result<Self, PlanError> {
        match *shape {
            [] | [1] => Ok(Self::PerTensor),
            [all] if all == heads => Ok(Self::PerHead),
            _ => Err(PlanError::refused(op, name, format!("{shape:?}"), "[1] or [num_kv_heads]")),
        }
    }

    /// How many numbers there are for `heads` key heads.
    pub(crate) const fn len(self, heads: usize) -> usize {
        match self {
            Self::PerTensor => 1,
            Self::PerHead => heads,
        }
    }

    /// Numbers from the scale of a head to that of the next.
    pub(crate) const fn step(self) -> u32 {
        match self {
            Self::PerTensor => 0,
            Self::PerHead => 1,
        }
    }
}

/// A cache whose keys and values are of [`DType::F8E4M3`] (Micikevicius et al. 2022, arXiv:2209.05433): each element stands for itself
/// times an f32 scale, from 2^-126 to 2^126, of the keys or of the values. From sm_89 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Float8Cache {
    /// The scale of the keys.
    pub k_scale: CacheScale,
    /// The scale of the values.
    pub v_scale: CacheScale,
}

impl Float8Cache {
    /// Whether there is such a cache for an operation with tensors of `dtype` beside it, of which `tensor` is one.
    pub(crate) fn check(
        op: &'static str,
        tensor: &'static str,
        dtype: DType,
        target: Target,
    ) -> Result<(), PlanError> {
        if !WIDE.contains(&dtype) {
            return Err(PlanError::DType { op, tensor, got: dtype, expected: &WIDE });
        }
        if target.sm < FLOAT8_SM {
            return Err(PlanError::Target { op, needs: FLOAT8_SM, target });
        }
        Ok(())
    }

    /// The description of caches of keys and values with these names and types, and scales of these shapes, for `heads` key heads of the
    /// operation `op`; `None` if they are not of 8-bit floats.
    ///
    /// # Errors
    /// [`PlanError::DType`] if a cache is of other 8-bit floats than e4m3, or one alone is of 8-bit floats; [`PlanError::Parameter`] if a scale
    /// is missing, is neither `[]` nor `[1]` nor `[heads]`, or is given where none is needed.
    pub fn describe(
        op: &'static str,
        caches: [(&'static str, DType); 2],
        scales: [Option<&[usize]>; 2],
        heads: usize,
    ) -> Result<Option<Self>, PlanError> {
        const NAMES: [&str; 2] = ["k_scale", "v_scale"];
        const E4M3: [DType; 1] = [DType::F8E4M3];
        if !caches.iter().any(|(_, dtype)| dtype.is_float8()) {
            if let Some((name, shape)) = NAMES.into_iter().zip(scales).find_map(|(n, s)| Some((n, s?))) {
                let expected = "none where the cache is not of 8-bit floats";
                return Err(PlanError::refused(op, name, format!("{shape:?}"), expected));
            }
            return Ok(None);
        }
        if let Some((tensor, got)) = caches.into_iter().find(|(_, dtype)| *dtype != DType::F8E4M3) {
            return Err(PlanError::DType { op, tensor, got, expected: &E4M3 });
        }
        let scale = |which: usize| match scales[which] {
            Some(shape) => CacheScale::of(op, NAMES[which], shape, heads),
            None => Err(PlanError::refused(
                op,
                NAMES[which],
                "none",
                "a scale where the cache is of 8-bit floats",
            )),
        };
        Ok(Some(Self { k_scale: scale(0)?, v_scale: scale(1)? }))
    }
}
