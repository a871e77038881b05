//! The kernels, by the units that multiply: ordinary arithmetic ([`simt`]), the tensor cores of a warp ([`mma`]) and of a warpgroup
//! ([`wgmma`]), `f32` as sums of two `f16` ([`split_f16`]), and few queries ([`decode`]), whose keys and values may be of e4m3 ([`float8`]). What the first two share is written once
//! over an [`Engine`](engine::Engine): [`forward`], [`backward`] and [`bias_gradient`].

pub(super) mod backward;
pub(super) mod bias_gradient;
pub(super) mod decode;
pub(super) mod dropout;
pub(super) mod engine;
pub(super) mod float8;
pub(super) mod forward;
pub(super) mod mma;
pub(super) mod simt;
pub(super) mod softmax;
pub(super) mod split_f16;
pub(super) mod wgmma;

pub use decode::DecodeTma;
pub use mma::{DecodeMma, Mma};
pub use simt::Simt;
pub use split_f16::SplitF16;
pub use wgmma::{Wgmma, WgmmaFused, WgmmaSweep, WgmmaSweeps};
