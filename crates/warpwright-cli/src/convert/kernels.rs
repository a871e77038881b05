//! The kernels of the conversions, as a trait of devices, and the device that has them.

use warpwright_ops::quantize::{NibbleOrder, Scheme};
use warpwright_ptx::DType;
use warpwright_runtime::HostBuffer;

use crate::checkpoint::{self, quantized::BnbCode};
use crate::error::Error;

/// How elements become codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Method {
    /// The values of the codes.
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

/// Whole groups, quantized, in memory of the host.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a> {
    /// Two codes a byte.
    pub codes: &'a [u8],
    /// A scale per group: the largest magnitude for NF4 and FP4, the step for integers.
    pub scales: &'a [f32],
    /// A zero point per group; empty unless the codec is asymmetric.
    pub zero_points: &'a [u8],
}

/// Room for whole groups, which is used again for the next.
#[derive(Debug, Default)]
pub struct GroupBuffers {
    /// Two codes a byte, and room behind them.
    pub codes: Staging,
    /// A scale per group.
    pub scales: Vec<f32>,
    /// A zero point per group; empty unless the codec is asymmetric.
    pub zero_points: Vec<u8>,
}

impl GroupBuffers {
    /// Sizes of the buffers for `elements` elements.
    pub fn groups(&self, elements: usize) -> Groups<'_> {
        Groups {
            codes: &self.codes.held()[..elements.div_ceil(2)],
            scales: &self.scales,
            zero_points: &self.zero_points,
        }
    }
}

/// Host memory that the device copies fast, which grows to what is asked of it.
#[derive(Debug, Default)]
pub struct Staging(Option<HostBuffer>);

impl Staging {
    /// The first `bytes` bytes; what they held before is gone if there was less room.
    ///
    /// # Errors
    /// The host has no more memory.
    pub fn fit(&mut self, lane: &dyn Lane, bytes: usize) -> Result<&mut [u8], Error> {
        if self.held().len() < bytes {
            // Given back before more is asked for.
            self.0 = None;
            self.0 = Some(lane.host(bytes)?);
        }
        Ok(self.0.as_mut().map_or(&mut [][..], |memory| &mut memory[..bytes]))
    }

    /// All of the memory.
    pub fn held(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
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

/// A device as the engines see it: lanes that work side by side.
pub trait Kernels: Sync {
    /// A lane for one thread.
    ///
    /// # Errors
    /// The device's.
    fn lane(&self) -> Result<Box<dyn Lane + '_>, Error>;
}

/// The device's part of the work, one call after the other.
pub trait Lane {
    /// Host memory that the device copies fast.
    ///
    /// # Errors
    /// The host has no more.
    fn host(&self, bytes: usize) -> Result<HostBuffer, Error>;

    /// Quantizes the elements in `x`, all of which are finite, into `out`. Only the last group may be short.
    ///
    /// # Errors
    /// The device's.
    fn quantize(
        &mut self,
        x: &[u8],
        dtype: DType,
        method: Method,
        out: &mut GroupBuffers,
    ) -> Result<(), Error>;

    /// The values in `dtype` that the codes of `groups` stand for, which fill `values`.
    ///
    /// # Errors
    /// The device's.
    fn dequantize(
        &mut self,
        groups: Groups<'_>,
        dtype: DType,
        method: Method,
        values: &mut [u8],
    ) -> Result<(), Error>;

    /// Quantizes scales to 8 bits.
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
