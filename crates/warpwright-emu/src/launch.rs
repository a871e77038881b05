//! Launches: their configuration, what can go wrong, and what they report.

use std::time::{Duration, Instant};

use crate::counters::{Counters, LineCounters};
use crate::heap::HeapBlock;
use crate::limits::Interrupt;
use crate::memory::{Memory, MemoryError};
use crate::program::Program;
use crate::report::Finding;

bitflags::bitflags! {
    /// Which sanitizers run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Sanitizers: u8 {
        /// Bounds, alignment, lifetime and state space of accesses. Without it the first bad access ends the launch,
        /// as it does on a device.
        const MEMCHECK = 1;
        /// Reads of registers and memory that nothing wrote.
        const INITCHECK = 2;
        /// Conflicting accesses that nothing orders.
        const RACECHECK = 4;
        /// Barriers and warp collectives that are used wrongly.
        const SYNCCHECK = 8;
    }
}

/// Grid, block and shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchConfig {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z; at most 1024 in all.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Blocks of a cluster; all ones for the shape that the kernel fixes, if it does.
    pub cluster: [u32; 3],
}

impl LaunchConfig {
    /// A one-dimensional launch without dynamic shared memory.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], dynamic_shared: 0, cluster: [1; 3] }
    }
}

/// When asynchronous copies complete. Results that differ between these show a missing wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Completion {
    /// As late as possible: when a thread waits for them, or nothing else is left to do.
    #[default]
    Latest,
    /// At once.
    Eager,
    /// At random moments in between; the same [`Options::seed`] gives the same ones.
    Random,
}

/// How a launch is run and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which sanitizers run; all by default.
    pub sanitizers: Sanitizers,
    /// Whether [`Report::counters`] and [`Report::lines`] are kept.
    pub counters: bool,
    /// Worker threads; 0 for as many as there are cores.
    pub threads: usize,
    /// Order in which the warps of a block and the blocks of a cluster take turns; the same seed gives the same order.
    pub seed: u64,
    /// Different findings that a report lists.
    pub max_findings: usize,
    /// Blocks that may have begun and not ended at any time, over all workers; 0 for all of the grid. Blocks that poll
    /// memory until others change it are parked, and each keeps its registers and shared memory. A launch whose blocks
    /// all wait for one that may not begin ends with [`Fault::Residency`].
    pub max_resident_blocks: usize,
    /// Instructions that the warps of the grid may execute, all workers together, as [`Report::steps`] counts them; 0 for
    /// no limit. A launch that needs more ends with [`Fault::StepLimit`].
    pub max_steps: u64,
    /// When the launch has to be over; one that is not ends with [`Fault::TimeLimit`].
    pub deadline: Option<Instant>,
    /// Ends the launch from another thread, with [`Fault::Interrupted`].
    pub interrupt: Option<Interrupt>,
    /// When asynchronous copies complete.
    pub completion: Completion,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sanitizers: Sanitizers::all(),
            counters: false,
            threads: 0,
            seed: 0,
            max_findings: 100,
            max_resident_blocks: 4096,
            max_steps: 0,
            deadline: None,
            interrupt: None,
            completion: Completion::default(),
        }
    }
}

impl Options {
    /// No sanitizers and no counters: as fast as it goes.
    pub fn fast() -> Self {
        Self { sanitizers: Sanitizers::empty(), ..Self::default() }
    }
}

/// Findings and counters of a launch.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Findings of the sanitizers, by line.
    pub findings: Vec<Finding>,
    /// Counters of the kernel; zero unless [`Options::counters`] is set.
    pub counters: Counters,
    /// The same by line of the PTX text, in order: every line that holds an instruction. Empty without
    /// [`Options::counters`].
    pub lines: Vec<LineCounters>,
    /// Output of the kernel, block by block and in the order in which the threads of a block came to it.
    pub printed: Vec<Printed>,
    /// Blocks that threads of this launch got from `malloc` and nobody freed.
    pub unfreed: Vec<HeapBlock>,
    /// Decoded instructions that warps went through, a measure of time; [`Report::counters`] has the exact numbers.
    pub steps: u64,
}

impl Report {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// The output of one call of `printf` in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Printed {
    /// Block.
    pub block: [u32; 3],
    /// Thread.
    pub thread: [u32; 3],
    /// The text; usually a line with its end.
    pub text: String,
}

/// Why a kernel was ended before its threads were done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A bad access while memcheck is off.
    #[error("line {line}: block {block:?}, thread {thread:?}: {message}")]
    Access {
        /// Line of the PTX text.
        line: u32,
        /// Block.
        block: [u32; 3],
        /// Thread.
        thread: [u32; 3],
        /// The defect of the access.
        message: String,
    },
    /// The kernel executed `trap`.
    #[error("line {line}: block {block:?}, thread {thread:?} executed `trap`")]
    Trap {
        /// Line of the PTX text.
        line: u32,
        /// Block.
        block: [u32; 3],
        /// Thread.
        thread: [u32; 3],
    },
    /// An instruction that the emulator does not execute was reached.
    #[error("line {line}: block {block:?}, thread {thread:?}: {message}")]
    Unsupported {
        /// Line of the PTX text.
        line: u32,
        /// Block.
        block: [u32; 3],
        /// Thread.
        thread: [u32; 3],
        /// The instruction or operand that the emulator does not run.
        message: String,
    },
    /// A call that cannot be made: of something that is no function, or deeper than threads have memory for.
    #[error("line {line}: block {block:?}, thread {thread:?} {message}")]
    Call {
        /// Line of the PTX text.
        line: u32,
        /// Block.
        block: [u32; 3],
        /// Thread.
        thread: [u32; 3],
        /// The defect, and the calls that led there.
        message: String,
    },
    /// An `assert` in a kernel did not hold.
    #[error(
        "line {line}: block {block:?}, thread {thread:?}: assertion `{message}` failed in {function} ({file}:{source_line})"
    )]
    Assertion {
        /// Line of the PTX text.
        line: u32,
        /// Block.
        block: [u32; 3],
        /// Thread.
        thread: [u32; 3],
        /// The condition.
        message: Box<str>,
        /// Source file.
        file: Box<str>,
        /// Line in the source file.
        source_line: u32,
        /// Function.
        function: Box<str>,
    },
    /// More instructions than [`Options::max_steps`].
    #[error("block {block:?} passed the limit of {steps} warp instructions; it may never end: {positions}")]
    StepLimit {
        /// The block that ran when the limit was passed.
        block: [u32; 3],
        /// The limit.
        steps: u64,
        /// Where the warps of its cluster were.
        positions: String,
    },
    /// It was not over at [`Options::deadline`].
    #[error("block {block:?} had run into the time limit after {:.3} s; it may never end: {positions}", elapsed.as_secs_f64())]
    TimeLimit {
        /// A block that ran then.
        block: [u32; 3],
        /// How long the launch had run.
        elapsed: Duration,
        /// Where the warps of its cluster were.
        positions: String,
    },
    /// [`Options::interrupt`] was raised.
    #[error("block {block:?} was interrupted: {positions}")]
    Interrupted {
        /// A block that ran then.
        block: [u32; 3],
        /// Where the warps of its cluster were.
        positions: String,
    },
    /// Threads wait for each other, and synccheck is off.
    #[error("block {block:?} can never end: {message}")]
    Deadlock {
        /// Block.
        block: [u32; 3],
        /// Who waits for what.
        message: String,
    },
    /// All blocks that may be resident wait for something that only blocks which have not begun can do.
    #[error(
        "{resident} blocks wait for ever while {waiting} blocks may not begin: Options::max_resident_blocks is {limit}; \
         {message}"
    )]
    Residency {
        /// Blocks of the first stuck worker that wait.
        resident: u64,
        /// Blocks that have not begun.
        waiting: u64,
        /// The limit.
        limit: usize,
        /// Who waits for what.
        message: String,
    },
}

/// Why a launch failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The program has no kernel of that name.
    #[error("there is no kernel `{name}`; the program has {available:?}")]
    NoSuchEntry {
        /// The request.
        name: String,
        /// Those that there are.
        available: Vec<String>,
    },
    /// Grid, block or cluster are out of range or do not fit the kernel.
    #[error("kernel `{kernel}` cannot be launched: {reason}")]
    Configuration {
        /// The kernel.
        kernel: String,
        /// The defect.
        reason: String,
    },
    /// The parameter buffer has the wrong size.
    #[error("kernel `{kernel}` takes {expected} bytes of parameters, got {got}")]
    Parameters {
        /// The kernel.
        kernel: String,
        /// Its size.
        expected: u64,
        /// The value that was passed.
        got: u64,
    },
    /// Module variables could not be placed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The kernel was ended. The findings until then are kept.
    #[error("kernel `{kernel}` failed: {fault}")]
    Fault {
        /// The kernel.
        kernel: String,
        /// Why.
        fault: Fault,
        /// Findings until then.
        report: Box<Report>,
    },
}

/// Runs a kernel to its end.
///
/// `params` is the parameter buffer as [`pack_args`](warpwright_ptx::pack_args) lays it out. Findings do not end the
/// launch: lanes whose access is bad skip it (loads give 0) and the kernel goes on.
///
/// # Errors
/// If the kernel cannot be launched, or was ended by a fault.
pub fn launch(
    program: &Program,
    entry: &str,
    config: &LaunchConfig,
    params: &[u8],
    memory: &Memory,
    options: &Options,
) -> Result<Report, LaunchError> {
    let Some(kernel) = program.entry(entry) else {
        return Err(LaunchError::NoSuchEntry {
            name: entry.to_owned(),
            available: program.module().entries().map(|f| f.name.clone()).collect(),
        });
    };
    crate::grid::run(program, kernel, config, params, memory, options)
}
