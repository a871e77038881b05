//! Devices, streams, buffers and launches over one of two backends: the CUDA driver, whose library is looked up when
//! the program runs, or the emulator, which needs no GPU and checks every launch for memory errors and races.
//!
//! | concept | type |
//! |---|---|
//! | a GPU or an emulator | [`Device`], found by [`Device::best`], [`Device::open`] or [`discover`] |
//! | an ordered queue of work | [`Stream`], with [`Event`] to order and time, and [`Graph`] to record and replay |
//! | device memory | [`Buffer`], [`Tensor`]; borrowed, possibly strided views [`TensorRef`] and [`TensorMut`] |
//! | a compiled kernel | [`LoadedKernel`], cached by the device in memory and as a cubin on disk |
//! | one launch as data | [`LaunchStep`], bound to memory through [`Binding`]s |
//!
//! A launch only enqueues: it neither allocates on the device nor waits, so everything here except the methods that say
//! otherwise can run inside [`Stream::capture`].
//!
//! Device code is trusted with the addresses that it is given, as with every GPU API: nothing stops a wrong kernel from
//! writing out of bounds on a GPU. The emulator is where such a kernel is found; there the same launch is a report that
//! names the instruction.

#![deny(unsafe_code)]

mod backend;
mod buffer;
mod cache;
pub mod check;
mod device;
mod discover;
mod element;
mod error;
mod graph;
pub mod interop;
mod launch;
mod layout;
mod stream;
mod tensor;
pub mod timing;

pub use buffer::Buffer;
pub use cache::CacheStatistics;
pub use device::{Device, DeviceId, EmulatorConfig, MemoryInfo, OnFinding, Properties};
pub use discover::{CudaDeviceInfo, CudaUnavailable, Discovery, DriverVersion, discover};
pub use element::Element;
pub use error::{Error, Fault, LaunchLimit, Result, SanitizerFailure};
pub use graph::Graph;
pub use launch::{Binding, KernelInfo, LaunchStep, LoadedKernel};
pub use layout::{Dims, MAX_RANK, Strides};
pub use stream::{Event, Stream};
pub use tensor::{Tensor, TensorMut, TensorRef};

pub use warpwright_emu::{Counters, Finding, Sanitizers};
pub use warpwright_ptx::{ArgValue, DType, PtxVersion, Target};
