//! What the engines ask of a device, and the device that does it.

use warpwright_ops::quantise::{NibbleOrder, Scheme};
use warpwright_ptx::DType;

use crate::checkpoint::{self, quantised::BnbCode};
use crate::error::Error;

/// How elements become codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Method {
    /// What a code stands for.
    pub scheme: Scheme,
    /// Elements that share a scale.
    pub group_size: u32,
    /// How two codes share a byte.
    pub order: NibbleOrder,
}

impl Method {
    /// The method that a stored weight was made by; `None` if its group size does not fit.
    pub fn of(stored: &checkpoint::Scheme) -> Option<Self> {
        let group_size = u32::try_from(stored.group_size()).ok()?;
        Some(match stored {
            checkpoint::Scheme::Bnb(state) => {
                let scheme = match state.quant_type {
                    BnbCode::Nf4 => Scheme::Nf4,
                    BnbCode::Fp4 => Scheme::Fp4,
                };
                Self { scheme, group_size, order: NibbleOrder::HighFirst }
            }
            checkpoint::Scheme::Int4(state) => {
                let scheme = if state.symmetric { Scheme::Int4Symmetric } else { Scheme::Int4Asymmetric };
                let order = match state.nibble_order {
                    checkpoint::NibbleOrder::LowFirst => NibbleOrder::LowFirst,
                    checkpoint::NibbleOrder::HighFirst => NibbleOrder::HighFirst,
                };
                Self { scheme, group_size, order }
            }
        })
    }
}

/// Whole groups, quantised.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Groups {
    /// Two codes a byte.
    pub codes: Vec<u8>,
    /// A scale per group: the largest magnitude for NF4 and FP4, the step for integers.
    pub scales: Vec<f32>,
    /// A zero point per group; empty unless the codec is asymmetric.
    pub zero_points: Vec<u8>,
}

/// Scales in 8 bits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NestedScales {
    /// A code per scale.
    pub codes: Vec<u8>,
    /// The largest magnitude of every 256 scales less the offset.
    pub absmax: Vec<f32>,
    /// The mean that was subtracted.
    pub offset: f32,
}

/// The device's part of the work.
pub trait Kernels {
    /// Quantises the elements in `bytes`, all of which are finite. Only the last group may be short.
    ///
    /// # Errors
    /// The device's.
    fn quantise(&mut self, bytes: &[u8], dtype: DType, method: Method) -> Result<Groups, Error>;

    /// The values of `elements` codes in `dtype`.
    ///
    /// # Errors
    /// The device's.
    fn dequantise(
        &mut self,
        groups: &Groups,
        elements: usize,
        dtype: DType,
        method: Method,
    ) -> Result<Vec<u8>, Error>;

    /// Quantises scales to 8 bits.
    ///
    /// # Errors
    /// The device's.
    fn nest(&mut self, scales: &[f32]) -> Result<NestedScales, Error>;

    /// The scales that 8-bit codes stand for.
    ///
    /// # Errors
    /// The device's.
    fn unnest(&mut self, nested: &NestedScales) -> Result<Vec<f32>, Error>;
}
