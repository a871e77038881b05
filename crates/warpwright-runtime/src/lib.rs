//! Devices, streams, buffers and launches over one of two backends: the CUDA driver, whose library is looked up when
//! the program runs, or the emulator, which needs no GPU and checks every launch for memory errors and races.
//!
//! | concept | type |
//! |---|---|
//! | a GPU or an emulator | [`Device`], found by [`Device::best`], [`Device::open`] or [`discover`] |
//! | an ordered queue of work | [`Stream`], with [`Event`] to order and time, and [`Graph`] to record and replay |
//! | host memory for fast copies | [`HostBuffer`], from [`Device::alloc_host`] |
//! | device memory | [`Buffer`], [`Tensor`]; borrowed, possibly strided views [`TensorRef`] and [`TensorMut`] |
//! | a compiled kernel | [`LoadedKernel`], cached by the device in memory and as a cubin on disk |
//! | ranks that work together | [`comm`] |
//! | one launch as data | [`LaunchStep`], bound to memory through [`Binding`]s; [`record_launches`] notes those of a call |
//!
//! A launch only enqueues: it neither allocates on the device nor waits, so everything here except the methods that say
//! otherwise can run inside [`Stream::capture`]. Memory that is allocated there in the order of the stream belongs to the graph.
//!
//! ```
//! use warpwright_ptx::{kernel::Kernel, text};
//! use warpwright_runtime::{ArgValue, Device, LaunchStep, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = "
//!     .version 6.3
//!     .target sm_75
//!     .address_size 64
//!     .visible .entry double(.param .u64 x) .reqntid 4, 1, 1 {
//!         .reg .b32 %r<2>; .reg .b64 %rd<4>; .reg .f32 %f<3>;
//!         ld.param.u64 %rd1, [x]; mov.u32 %r1, %tid.x;
//!         mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
//!         ld.global.f32 %f1, [%rd3]; add.rn.f32 %f2, %f1, %f1; st.global.f32 [%rd3], %f2;
//!         ret;
//!     }";
//! let kernel = Kernel::new(text::parse(source).module)?;
//! let device = Device::best();
//! let stream = device.stream()?;
//! let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], &[4])?;
//! let step = LaunchStep::new(kernel, [1, 1, 1], vec![ArgValue::Slot { slot: 0, offset: 0 }]);
//! stream.launch(&step, &[x.binding()])?;
//! assert_eq!(x.to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # Events
//!
//! Events of the crate `tracing`, at level debug unless another is given; without a subscriber they cost the test of one number.
//!
//! | target | events and fields |
//! |---|---|
//! | `warpwright::launch` | `launch`: `kernel`, `device`, `grid`, `block`, `cluster`, `dynamic_shared` in bytes; in a span `operation` with `op` and `direction` if it belongs to one |
//! | `warpwright::cache` | `hit`: `kernel`, `device`, `store` (`memory` or `disk`, with `microseconds` of loading), when a step is launched on a device for the first time; `miss`: the same with the last `store` that was asked |
//! | `warpwright::compile` | `compiled`: `kernel`, `device`, `arch`, `microseconds`, by the driver's assembler or the emulator's decoder |
//! | `warpwright::nvtx` | the library with the ranges; a warning if there is none |
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `WARPWRIGHT_CACHE` | `0` keeps no machine code on disk; every process compiles its kernels |
//! | `WARPWRIGHT_CACHE_DIR` | the folder for machine code; by default `warpwright/cubin` in `XDG_CACHE_HOME`, `~/.cache`, `~/Library/Caches` (macOS) or `LOCALAPPDATA` (Windows) |
//! | `WARPWRIGHT_NVTX` | `1` puts ranges of NVTX around the launches of operations ([`OperationName`]); a path names NVTX's library |
//!
//! Whoever can write to that folder decides what runs on the GPU. On Unix it is left alone, as are the files in it, if it
//! belongs to another user or can be written by others: kernels are then compiled by every process, and
//! [`Device::disk_cache`] says why. New folders and files are for the user alone. Machine code is found again by the kernel's text, the
//! compute capability, the driver's CUDA version and its build.
//!
//! Device code is trusted with the addresses that it is given, as with every GPU API: nothing stops a wrong kernel from
//! writing out of bounds on a GPU. The emulator is where such a kernel is found; there the same launch is a report that
//! names the instruction.

#![deny(unsafe_code)]

mod backend;
mod buffer;
mod cache;
pub mod check;
pub mod comm;
mod device;
mod discover;
mod element;
mod error;
mod float8;
mod graph;
mod host;
pub mod interop;
mod lattice;
mod launch;
mod layout;
mod operation;
mod recording;
mod stream;
mod tensor;
pub mod timing;
mod view;

pub use buffer::Buffer;
pub use cache::{CacheStatistics, DiskCacheRefusal, DiskCacheStatus};
pub use device::{Device, DeviceId, EmulatorConfig, MemoryInfo, OnFinding, Properties};
pub use discover::{CudaDeviceInfo, CudaUnavailable, Discovery, DriverVersion, discover};
pub use element::Element;
pub use error::{Error, Fault, LaunchLimit, Result, SanitizerFailure};
pub use float8::{F8E4M3, F8E5M2};
pub use graph::Graph;
pub use host::HostBuffer;
pub use lattice::Lattice;
pub use launch::{Binding, KernelInfo, LaunchStep, LoadedKernel};
pub use layout::{Dims, MAX_RANK, Strides};
pub use operation::OperationName;
pub use recording::{RecordedLaunch, record_launches};
pub use stream::{Event, Stream};
pub use tensor::Tensor;
pub use view::{TensorMut, TensorRef};

pub use warpwright_emu::{Counters, Finding, Interrupt, Sanitizers};
pub use warpwright_ptx::{
    ArgValue, DType, Im2col, PtxVersion, Target, TensorElement, TensorFill, TensorInterleave, TensorMap,
    TensorMapError, TensorMode, TensorSwizzle,
};
