//! Running a kernel in a test: slices in, slices out, findings and counters back.
//!
//! ```
//! use warpwright_emu::Program;
//!
//! const PTX: &str = "
//! .version 7.0
//! .target sm_80
//! .address_size 64
//! .visible .entry scale(.param .u64 x, .param .u64 y, .param .f32 factor, .param .u32 n)
//! {
//!     .reg .b64 %rd<6>;
//!     .reg .b32 %r<5>;
//!     .reg .f32 %f<4>;
//!     .reg .pred %p<1>;
//!     ld.param.u64 %rd0, [x];
//!     ld.param.u64 %rd1, [y];
//!     ld.param.f32 %f0, [factor];
//!     ld.param.u32 %r0, [n];
//!     mov.u32 %r1, %ctaid.x;
//!     mov.u32 %r2, %ntid.x;
//!     mov.u32 %r3, %tid.x;
//!     mad.lo.s32 %r4, %r1, %r2, %r3;
//!     setp.ge.u32 %p0, %r4, %r0;
//!     @%p0 bra DONE;
//!     mul.wide.u32 %rd2, %r4, 4;
//!     add.s64 %rd3, %rd0, %rd2;
//!     ld.global.f32 %f1, [%rd3];
//!     mul.rn.f32 %f2, %f0, %f1;
//!     add.s64 %rd4, %rd1, %rd2;
//!     st.global.f32 [%rd4], %f2;
//! DONE:
//!     ret;
//! }";
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
//! let mut y = vec![0.0f32; 1000];
//! let program = Program::load(PTX)?;
//! let run = program.call("scale").grid(4).block(256).input(&x).output(&mut y).value(0.5f32).value(1000u32).run()?;
//! run.assert_clean();
//! assert_eq!(y[999], 499.5);
//! assert_eq!(run.counters.global_sectors(), run.counters.ideal_global_sectors());
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use half::{bf16, f16};
use warpwright_ptx::{ArgError, ArgValue, pack_args};

use crate::launch::{LaunchConfig, LaunchError, Options, Report, launch};
use crate::memory::{Memory, MemoryError};
use crate::program::{Entry, Program};

/// A type that kernels take by value and arrays hold.
pub trait Element: Copy + sealed::Bytes {}

mod sealed {
    use warpwright_ptx::ArgValue;

    pub trait Bytes: Sized {
        const SIZE: usize;
        fn put(self, into: &mut Vec<u8>);
        fn take(bytes: &[u8]) -> Option<Self>;
        fn argument(self) -> ArgValue;
    }
}

macro_rules! elements {
    ($($ty:ty => $argument:expr;)*) => {$(
        impl Element for $ty {}
        impl sealed::Bytes for $ty {
            const SIZE: usize = size_of::<$ty>();

            fn put(self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }

            fn take(bytes: &[u8]) -> Option<Self> {
                Some(<$ty>::from_le_bytes(bytes.try_into().ok()?))
            }

            fn argument(self) -> ArgValue {
                let value: fn($ty) -> ArgValue = $argument;
                value(self)
            }
        }
    )*};
}

elements! {
    u32 => ArgValue::U32;
    i32 => ArgValue::S32;
    u64 => ArgValue::U64;
    i64 => ArgValue::S64;
    f32 => ArgValue::F32;
    f64 => ArgValue::F64;
    u8 => |v| ArgValue::Bytes(v.to_le_bytes().to_vec());
    i8 => |v| ArgValue::Bytes(v.to_le_bytes().to_vec());
    u16 => |v| ArgValue::Bytes(v.to_le_bytes().to_vec());
    i16 => |v| ArgValue::Bytes(v.to_le_bytes().to_vec());
    f16 => |v| ArgValue::Bytes(v.to_le_bytes().to_vec());
    bf16 => |v| ArgValue::Bytes(v.to_le_bytes().to_vec());
}

/// One to three extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent([u32; 3]);

impl From<u32> for Extent {
    fn from(x: u32) -> Self {
        Self([x, 1, 1])
    }
}

impl From<[u32; 2]> for Extent {
    fn from([x, y]: [u32; 2]) -> Self {
        Self([x, y, 1])
    }
}

impl From<[u32; 3]> for Extent {
    fn from(xyz: [u32; 3]) -> Self {
        Self(xyz)
    }
}

/// Takes an output's bytes to where the caller wants them.
type CopyBack<'a> = Box<dyn FnOnce(&[u8]) + 'a>;

/// The argument for one parameter.
enum Argument<'a> {
    Value(ArgValue),
    Buffer {
        bytes: Vec<u8>,
        /// Whether the kernel may read it before writing.
        defined: bool,
        copy_back: Option<CopyBack<'a>>,
    },
}

/// A launch in the making; see [`Program::call`]. Arguments go to the parameters in order.
#[must_use = "nothing happens before `run`"]
pub struct Call<'a> {
    program: &'a Program,
    entry: String,
    config: LaunchConfig,
    options: Options,
    arguments: Vec<Argument<'a>>,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("entry", &self.entry)
            .field("config", &self.config)
            .field("options", &self.options)
            .field("arguments", &self.arguments.len())
            .finish_non_exhaustive()
    }
}

impl Program {
    /// Begins a launch of kernel `entry` on arrays of the host, for tests: one block of one thread until
    /// [`grid`](Call::grid) and [`block`](Call::block) say otherwise, all sanitizers and the counters on.
    pub fn call(&self, entry: &str) -> Call<'_> {
        Call {
            program: self,
            entry: entry.to_owned(),
            config: LaunchConfig::linear(1, 1),
            options: Options { counters: true, ..Options::default() },
            arguments: Vec::new(),
        }
    }
}

impl<'a> Call<'a> {
    /// Blocks of the grid.
    pub fn grid(mut self, blocks: impl Into<Extent>) -> Self {
        self.config.grid = blocks.into().0;
        self
    }

    /// Threads of a block.
    pub fn block(mut self, threads: impl Into<Extent>) -> Self {
        self.config.block = threads.into().0;
        self
    }

    /// Bytes of dynamic shared memory.
    pub fn shared(mut self, bytes: u32) -> Self {
        self.config.dynamic_shared = bytes;
        self
    }

    /// Blocks of a cluster.
    pub fn cluster(mut self, blocks: impl Into<Extent>) -> Self {
        self.config.cluster = blocks.into().0;
        self
    }

    /// Sanitizers, counters, workers, seed.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The address of an array that the kernel reads.
    pub fn input<T: Element>(self, data: &[T]) -> Self {
        let bytes = to_bytes(data);
        self.buffer(bytes, true, None)
    }

    /// The address of an array that the kernel writes. It may not read what it has not written, and elements that it
    /// leaves out have all bits set afterwards (NaN).
    pub fn output<T: Element>(self, data: &'a mut [T]) -> Self {
        let bytes = vec![0; size_of_val(data)];
        self.buffer(bytes, false, Some(Box::new(|bytes| from_bytes(bytes, data))))
    }

    /// The address of an array that the kernel changes.
    pub fn in_out<T: Element>(self, data: &'a mut [T]) -> Self {
        let bytes = to_bytes(data);
        self.buffer(bytes, true, Some(Box::new(|bytes| from_bytes(bytes, data))))
    }

    /// A number passed by value.
    pub fn value<T: Element>(mut self, value: T) -> Self {
        self.arguments.push(Argument::Value(value.argument()));
        self
    }

    fn buffer(mut self, bytes: Vec<u8>, defined: bool, copy_back: Option<CopyBack<'a>>) -> Self {
        self.arguments.push(Argument::Buffer { bytes, defined, copy_back });
        self
    }

    /// Runs the kernel to its end and copies the outputs back. Findings are no errors: the outcome has them.
    ///
    /// # Errors
    /// If the arguments do not fit, or the launch fails.
    pub fn run(self) -> Result<Outcome, CallError> {
        let Self { program, entry, config, options, arguments } = self;
        let memory = Memory::new();
        let function = program.entry(&entry).map(Entry::function);
        let mut values = Vec::with_capacity(arguments.len());
        let mut outputs = Vec::new();
        for (index, argument) in arguments.into_iter().enumerate() {
            values.push(match argument {
                Argument::Value(value) => value,
                Argument::Buffer { bytes, defined, copy_back } => {
                    // Findings call an array as the kernel calls its parameter.
                    let name = function.and_then(|f| f.params.get(index)).map_or("", |p| p.name.as_str());
                    let address = memory.alloc(bytes.len() as u64, name)?;
                    if defined {
                        memory.write(address, &bytes)?;
                    }
                    outputs.extend(copy_back.map(|copy_back| (address, bytes, copy_back)));
                    ArgValue::Address(address)
                }
            });
        }
        // A kernel that does not exist is for the launch to complain about.
        let params = function.map(|f| pack_args(f, &values)).transpose()?.unwrap_or_default();
        let report = launch(program, &entry, &config, &params, &memory, &options)?;
        for (address, mut bytes, copy_back) in outputs {
            memory.read(address, &mut bytes)?;
            copy_back(&bytes);
        }
        Ok(Outcome { report, source: program.shared_source() })
    }
}

fn to_bytes<T: Element>(data: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(data));
    data.iter().for_each(|v| v.put(&mut bytes));
    bytes
}

fn from_bytes<T: Element>(bytes: &[u8], data: &mut [T]) {
    for (to, from) in data.iter_mut().zip(bytes.chunks_exact(T::SIZE)) {
        if let Some(value) = T::take(from) {
            *to = value;
        }
    }
}

/// Findings and counters of a call: a [`Report`] that knows its program's text.
#[derive(Clone, Debug)]
pub struct Outcome {
    report: Report,
    source: Arc<str>,
}

impl Outcome {
    /// All findings as compiler-like messages.
    pub fn render(&self) -> String {
        self.report.findings.iter().map(|f| f.render(None, &self.source)).collect()
    }

    /// Ends the test with the findings if there are any.
    ///
    /// # Panics
    /// If the sanitizers found something.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.report.is_clean(), "the sanitizers found:\n\n{}", self.render());
    }

    /// The report alone.
    pub fn into_report(self) -> Report {
        self.report
    }
}

impl Deref for Outcome {
    type Target = Report;

    fn deref(&self) -> &Report {
        &self.report
    }
}

/// Why a call did not run to its end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// An argument does not fit its parameter.
    #[error(transparent)]
    Argument(#[from] ArgError),
    /// The arrays do not fit in memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The launch was refused, or the kernel was ended.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}
