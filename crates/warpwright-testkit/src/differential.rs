//! Holds devices against one another on random kernels, and cuts those that they disagree on down to what matters.
//!
//! PTX defines all that a kernel of [`random`](crate::random) computes, so that the emulator in any order of warps, and a GPU
//! with machine code of any level of optimization, have to store the same bits.

use std::fmt;

use warpwright_ptx::kernel::{Kernel, KernelError};
use warpwright_ptx::text::{self, Diagnostic};
use warpwright_runtime::{
    ArgValue, Buffer, Device, EmulatorConfig, Error as RuntimeError, LaunchStep, Sanitizers,
};

use crate::random::Program;

/// Why a kernel has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The text is not PTX.
    #[error("the text is not PTX: {0:?}")]
    Parse(Vec<Diagnostic>),
    /// The module is not valid.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device refused or failed, or a sanitizer objects.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// Two results that are not the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The first word that differs, of those that the kernel adds to and, behind them, those that it stores.
    pub word: usize,
    /// Its value.
    pub got: u32,
    /// The value that it should have.
    pub want: u32,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "word {} is {:#010x}, not {:#010x}", self.word, self.got, self.want)
    }
}

/// How a device fails on a kernel.
#[derive(Debug)]
pub enum Wrong {
    /// It stores something else.
    Differs(Difference),
    /// It has no result.
    Failed(RunError),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs(difference) => difference.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// An emulator with all sanitizers, whose results are those that count. A launch ends after 2^20 steps: what is cut out of a kernel
/// may be the end of a loop.
pub fn reference() -> Device {
    Device::emulator_with(EmulatorConfig { max_steps: 1 << 20, ..EmulatorConfig::default() })
}

/// An emulator without sanitizers, which has code of its own for that, and with warps and blocks in another order.
pub fn plain() -> Device {
    let sanitizers = Sanitizers::empty();
    Device::emulator_with(EmulatorConfig { sanitizers, seed: 11, ..EmulatorConfig::default() })
}

/// The bytes that a kernel has added up and those that it has stored.
///
/// # Errors
/// The text is not valid, or the device fails.
pub fn run(device: &Device, program: &Program) -> Result<Vec<u8>, RunError> {
    let parsed = text::parse(&program.ptx);
    if parsed.has_errors() {
        return Err(RunError::Parse(parsed.diagnostics));
    }
    let kernel = Kernel::new(parsed.module)?;
    let mut buffers: Vec<Buffer> = Vec::with_capacity(3);
    for data in [&program.input, &vec![0; 4 * program.counters], &vec![0xA5; program.output_bytes]] {
        let mut buffer = device.alloc(data.len() as u64)?;
        buffer.write(0, data)?;
        buffers.push(buffer);
    }
    let args = buffers.iter().map(|b| ArgValue::U64(b.address())).collect();
    let step = LaunchStep::new(kernel, [program.grid, 1, 1], args).with_block([program.block, 1, 1]);
    let stream = device.stream()?;
    stream.launch(&step, &[])?;
    stream.synchronize()?;
    let mut found = Vec::with_capacity(4 * program.counters + program.output_bytes);
    for buffer in &buffers[1..] {
        let mut data = vec![0; buffer.bytes() as usize];
        buffer.read(0, &mut data)?;
        found.extend(data);
    }
    Ok(found)
}

/// The first word in which two results differ.
pub fn difference(got: &[u8], want: &[u8]) -> Option<Difference> {
    let words = |bytes: &[u8]| -> Vec<u32> {
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let (got, want) = (words(got), words(want));
    let word = (0..got.len().max(want.len())).find(|i| got.get(*i) != want.get(*i))?;
    let at = |words: &[u32]| words.get(word).copied().unwrap_or(0);
    Some(Difference { word, got: at(&got), want: at(&want) })
}

/// Whether what takes a carry follows what gives one; nothing else says what the carry is.
fn carries(ptx: &str) -> bool {
    let takes = |line: &str| ["addc.", "subc."].iter().any(|op| line.trim_start().starts_with(op));
    let lines: Vec<&str> = ptx.lines().collect();
    lines.windows(2).all(|pair| !takes(pair[1]) || pair[0].contains(".cc."))
}

/// Leaves out as many lines as can be while `differs`, which gets kernels whose carries are defined. It says no to what is no kernel.
pub fn reduce(program: &Program, mut differs: impl FnMut(&Program) -> bool) -> Program {
    let mut smallest = program.clone();
    let mut size = (program.ptx.lines().count() / 4).max(1);
    while size > 0 {
        let mut first = 0;
        let mut smaller = false;
        loop {
            let lines: Vec<&str> = smallest.ptx.lines().collect();
            if first >= lines.len() {
                break;
            }
            let rest = lines[..first].iter().chain(lines.iter().skip(first + size));
            let ptx: String = rest.map(|line| format!("{line}\n")).collect();
            let candidate = Program { ptx, ..smallest.clone() };
            if carries(&candidate.ptx) && differs(&candidate) {
                smallest = candidate;
                smaller = true;
            } else {
                first += size;
            }
        }
        if !smaller {
            size /= 2;
        }
    }
    smallest
}

/// Runs a kernel on a device; `None` if it gives what it should.
pub fn check(device: &Device, program: &Program, want: &[u8]) -> Option<Wrong> {
    match run(device, program) {
        Ok(got) => difference(&got, want).map(Wrong::Differs),
        Err(error) => Some(Wrong::Failed(error)),
    }
}

/// Whether the emulator finds nothing wrong with a kernel, and a device stores something else.
pub fn disagree(emulator: &Device, device: &Device, program: &Program) -> bool {
    run(emulator, program).is_ok_and(|want| matches!(check(device, program, &want), Some(Wrong::Differs(_))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::program;

    #[test]
    fn the_first_word_that_differs_is_named() {
        let (a, b) = ([1, 0, 0, 0, 2, 0, 0, 0], [1, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(difference(&a, &a), None);
        assert_eq!(difference(&a, &b), Some(Difference { word: 1, got: 2, want: 3 }));
        assert_eq!(difference(&a[..4], &a), Some(Difference { word: 1, got: 0, want: 2 }));
    }

    /// A device that has one instruction wrong is played by another text.
    #[test]
    fn a_kernel_is_cut_down_to_the_instruction_that_matters() {
        let emulator = reference();
        let wrong = |program: &Program| Program {
            ptx: program.ptx.replace("popc.b32", "clz.b32"),
            ..program.clone()
        };
        let differs = |program: &Program| {
            run(&emulator, program)
                .is_ok_and(|want| run(&emulator, &wrong(program)).is_ok_and(|got| got != want))
        };
        let found =
            (0..200).map(program).find(|p| differs(p)).expect("one of them counts bits that it stores");
        let smallest = reduce(&found, differs);
        assert!(differs(&smallest));
        let instructions =
            |ptx: &str| ptx.lines().filter(|l| l.trim_end().ends_with(';') && !l.contains(" .")).count();
        assert!(smallest.ptx.contains("popc.b32"));
        // A load, the instruction, a store and what their addresses take.
        assert!(instructions(&smallest.ptx) <= 16, "{}", smallest.ptx);
        assert!(instructions(&found.ptx) > 60);
    }
}
