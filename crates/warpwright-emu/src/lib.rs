//! Runs PTX on the CPU and says what is wrong with it.
//!
//! The emulator takes the same text that the NVIDIA driver takes. Sanitizers with the names of NVIDIA's watch every
//! access and barrier while it runs, and what they find reads like a compiler error.
//!
//! ```
//! use warpwright_emu::{LaunchConfig, Memory, Options, Program, launch};
//!
//! let text = "
//! .version 7.0
//! .target sm_80
//! .address_size 64
//! .visible .entry double(.param .u64 p)
//! {
//!     .reg .b64 %rd<3>;
//!     .reg .b32 %r<2>;
//!     .reg .f32 %f<2>;
//!     ld.param.u64 %rd0, [p];
//!     mov.u32 %r0, %tid.x;
//!     mul.wide.u32 %rd1, %r0, 4;
//!     add.s64 %rd2, %rd0, %rd1;
//!     ld.global.f32 %f0, [%rd2];
//!     add.rn.f32 %f1, %f0, %f0;
//!     st.global.f32 [%rd2], %f1;
//!     ret;
//! }";
//! let program = Program::load(text)?;
//! let memory = Memory::new();
//! let p = memory.alloc(32 * 4, "p")?;
//! memory.write(p, &1.5f32.to_le_bytes().repeat(32))?;
//! let report = launch(&program, "double", &LaunchConfig::linear(1, 32), &p.to_le_bytes(), &memory, &Options::default())?;
//! assert!(report.is_clean());
//! let mut last = [0; 4];
//! memory.read(p + 31 * 4, &mut last)?;
//! assert_eq!(f32::from_le_bytes(last), 3.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it works
//!
//! A [`Program`] is decoded once into flat code whose operands are rows of 32 lanes. [`launch`] deals the blocks of the
//! grid to worker threads; a worker runs the warps of a block in turns, each until it blocks, and the blocks of a cluster
//! in turns. Blocks that poll memory are parked while others run, so that kernels with grid-wide waits end. Lanes of a
//! warp that stand at different instructions are groups; the group at the least instruction runs first, which brings them
//! together again.

#![deny(unsafe_code)]

mod block;
mod code;
mod context;
pub mod counters;
mod decode;
mod events;
mod exec;
pub mod float;
mod flow;
mod grid;
mod heap;
mod launch;
mod limits;
mod memory;
mod program;
mod progress;
pub mod refute;
mod relevance;
pub mod report;
mod resident;
mod room;
pub mod sanitize;
mod schedule;
mod slots;
mod space;
mod tensor_memory;
pub mod testing;
mod warp;

pub use counters::Counters;
pub use heap::HeapBlock;
pub use launch::{
    Completion, Fault, LaunchConfig, LaunchError, Options, Printed, Report, Sanitizers, launch,
};
pub use limits::Interrupt;
pub use memory::{Memory, MemoryError};
pub use program::{Entry, LoadError, Program};
pub use report::{Finding, Tool};
pub use warpwright_ptx::tensor_map::{
    Im2col, TensorElement, TensorFill, TensorInterleave, TensorMap, TensorMapError, TensorMode, TensorSwizzle,
};
