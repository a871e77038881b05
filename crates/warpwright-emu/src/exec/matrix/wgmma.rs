//! `wgmma.mma_async`: the product of a 64-row tile and up to 256 columns by the four warps of a warpgroup.
//!
//! A warp computes 16 rows of D when it issues the instruction, in registers that hold N / 8 tiles side by side, each as
//! in `mma.sync`. Warps need not issue at the same moment; [`Warpgroups`](super::warpgroup::Warpgroups) checks that
//! they issue the same instructions, and [`Flights`](super::flights::Flights) that nobody touches a register until the
//! wait that covers it.

use super::aligned::{self, Step};
use super::descriptor::Descriptor;
use super::tile::{Sum, Tile, popcounts};
use crate::block::SharedMemory;
use crate::code::matrix::{Accumulate, Major, Product, Source, Wgmma, Words};
use crate::code::rows::{LANES, Registers, Row32};
use crate::context::Context;
use crate::events::problem::Problem;
use crate::exec::rows::put32;
use crate::flow::Flow;
use crate::report::{Space, Tool};
use crate::space::SHARED_BASE;
use crate::warp::Warp;

/// Eight rows of an operand of 32 bytes along k, as the words of two fragment registers.
pub(crate) type Block = [Words; 2];

/// A chunk of 16 bytes of rows `8 * block` to `8 * block + 7`; there are 16 of them.
fn chunk(descriptor: &Descriptor, major: Major, block: u64, i: u64) -> u64 {
    match major {
        Major::K => descriptor.k_major(8 * block + i / 2, i % 2),
        Major::Mn => descriptor.mn_major(block, i),
    }
}

/// Reads eight rows; what lies outside of shared memory reads as zero.
fn read_block(shared: &SharedMemory, descriptor: &Descriptor, major: Major, block: u64) -> Block {
    let mut out = [[0; LANES]; 2];
    for i in 0..16u64 {
        let at = (chunk(descriptor, major, block, i) / 4) as usize;
        let Some(words) = shared.words.get(at..at + 4) else { continue };
        let i = i as usize;
        match major {
            Major::K => {
                let (row, register) = (i / 2, i % 2);
                out[register][4 * row..4 * row + 4].copy_from_slice(words);
            }
            Major::Mn => {
                // Eight rows with the same k, which is half of word k / 2 of each.
                let (word, shift) = (i / 2, 16 * (i % 2));
                for row in 0..8 {
                    let value = words[row / 2] >> (16 * (row % 2)) & 0xFFFF;
                    out[word / 4][4 * row + word % 4] |= value << shift;
                }
            }
        }
    }
    out
}

/// Operands and results of one warp.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) tile: Tile,
    b: Vec<Block>,
}

impl Context<'_> {
    pub(super) fn wgmma(&mut self, warp: &mut Warp, pc: u32, exec: u32, op: &Wgmma) {
        let lane = exec.trailing_zeros() as usize % LANES;
        let descriptor = |row: u32| Descriptor::decode(warp.regs.r64[row as usize].0[lane]);
        let b = descriptor(op.b);
        let a = match op.a {
            Source::Descriptor(row, major) => Some((descriptor(row), major)),
            Source::Registers(_) => None,
        };
        if self.checks.synccheck {
            self.check_uniform(warp, pc, exec, op, lane);
            self.check_warpgroup(warp, pc, a.map_or(0, |(a, _)| a.bits), b.bits);
            self.check_registers(warp, pc, exec, op);
        }
        let warps = 16 * u64::from(warp.index % 4);
        let operands = a.map(|(a, major)| ("A", a, major, 64, warps / 8..warps / 8 + 2));
        let b_operand = ("B", b, op.b_major, op.n as u64, 0..op.n as u64 / 8);
        let mut reads = Vec::new();
        for (name, descriptor, major, rows, blocks) in operands.into_iter().chain([b_operand]) {
            let operand = Operand { name, descriptor, major, rows };
            if self.check_operand(warp, pc, exec, &operand, blocks, &mut reads) == Flow::Stop {
                return;
            }
        }
        let mut scratch = std::mem::take(&mut self.matrix);
        let shared = &self.block.shared;
        scratch.b.clear();
        scratch.b.extend((0..op.n as u64 / 8).map(|block| read_block(shared, &b, op.b_major, block)));
        let a_blocks = a.map(|(a, major)| [0, 1].map(|i| read_block(shared, &a, major, warps / 8 + i)));
        let accumulate = match op.accumulate {
            Accumulate::Always(value) => value,
            Accumulate::If(pred) => warp.regs.pred[pred as usize] >> lane & 1 == 1,
        };
        compute(&mut scratch, &mut warp.regs, &Work { exec, op, a: a_blocks, accumulate });
        self.matrix = scratch;
        warp.flights.issue(op, pc);
        if self.races.is_some() {
            reads.sort_unstable();
            reads.dedup();
            let runs: Vec<(u64, u64)> =
                reads.chunk_by(|a, b| a + 16 == *b).map(|run| (run[0], 16 * run.len() as u64)).collect();
            let id = self.issue_reads(warp, pc, exec, runs);
            warp.flights.read(id);
        }
    }

    /// Descriptors and scale-d have to be the same for all lanes.
    fn check_uniform(&mut self, warp: &Warp, pc: u32, exec: u32, op: &Wgmma, lane: usize) {
        let differ = |row: u32| {
            let values = &warp.regs.r64[row as usize].0;
            crate::exec::global::lanes_of(exec).find(|l| values[*l] != values[lane])
        };
        let a = match op.a {
            Source::Descriptor(row, _) => differ(row),
            Source::Registers(_) => None,
        };
        let scale = match op.accumulate {
            Accumulate::If(pred) => {
                let value = warp.regs.pred[pred as usize] & exec;
                (value != 0 && value != exec).then(|| (exec & !value).trailing_zeros() as usize)
            }
            Accumulate::Always(_) => None,
        };
        let found = [("descriptor of A", a), ("descriptor of B", differ(op.b)), ("scale-d operand", scale)];
        for (what, other) in found {
            let Some(other) = other else { continue };
            self.finding(warp, pc, 1 << other, Tool::Synccheck, "wgmma-not-uniform", None, || {
                (
                    format!("the {what} differs from that of lane {lane}"),
                    "compute descriptors and scale-d from values that are the same in the whole warpgroup"
                        .to_owned(),
                )
            });
        }
    }

    /// Bounds and definedness of what an operand reads, and where it lies.
    fn check_operand(
        &mut self,
        warp: &Warp,
        pc: u32,
        exec: u32,
        operand: &Operand,
        blocks: std::ops::Range<u64>,
        reads: &mut Vec<u64>,
    ) -> Flow {
        let Operand { name, descriptor, major, rows } = operand;
        let lane = exec.trailing_zeros() as usize % LANES;
        if let Some(what) = descriptor.problem(*major, *rows) {
            let problem = Problem {
                kind: "bad-descriptor",
                message: format!("the matrix descriptor of {name} {what}: {descriptor}"),
                help: "build descriptors from the tile's address, the two offsets and the swizzle that it was stored with",
                address: (Space::Shared, descriptor.start),
            };
            if self.bad_access(warp, pc, lane, &problem) == Flow::Stop {
                return Flow::Stop;
            }
        }
        let chunks = blocks.flat_map(|block| (0..16).map(move |i| (block, i)));
        let (mut outside, mut undefined) = (None, None);
        for (block, i) in chunks {
            let address = chunk(descriptor, *major, block, i);
            if !self.block.shared.covers(address, 16) {
                outside.get_or_insert((address, block, i));
                continue;
            }
            if self.checks.initcheck && !self.block.shared.is_defined(address, 16) {
                undefined.get_or_insert((address, block, i));
            }
            reads.push(address);
        }
        if let Some((address, block, i)) = outside {
            let end = self.block.shared.end;
            let problem = Problem {
                kind: "out-of-bounds",
                message: format!(
                    "reads {} at {address:#x}, outside of shared memory ({SHARED_BASE:#x} to {end:#x}), by descriptor \
                     {descriptor}",
                    operand.place(block, i)
                ),
                help: "check the address and the offsets of the descriptor, and the size of shared memory",
                address: (Space::Shared, address),
            };
            if self.bad_access(warp, pc, lane, &problem) == Flow::Stop {
                return Flow::Stop;
            }
        }
        if let Some((address, block, i)) = undefined {
            let at = Some((Space::Shared, address));
            self.finding(warp, pc, 1 << lane, Tool::Initcheck, "uninitialised-shared", at, || {
                (
                    format!(
                        "reads {} from shared memory that no thread of the block wrote, by descriptor {descriptor}",
                        operand.place(block, i)
                    ),
                    "write the whole tile first, or check that the descriptor describes the tile".to_owned(),
                )
            });
        }
        Flow::Next
    }
}

/// An operand in shared memory.
struct Operand {
    name: &'static str,
    descriptor: Descriptor,
    major: Major,
    /// Rows of A or columns of B.
    rows: u64,
}

impl Operand {
    /// Which elements a chunk holds.
    fn place(&self, block: u64, i: u64) -> String {
        let rows = if self.name == "A" { "row" } else { "column" };
        match self.major {
            Major::K => format!(
                "bytes {} to {} along k of {rows} {} of {}",
                i % 2 * 16,
                i % 2 * 16 + 15,
                8 * block + i / 2,
                self.name
            ),
            Major::Mn => format!("k = {i} of {rows}s {} to {} of {}", 8 * block, 8 * block + 7, self.name),
        }
    }
}

/// The product of one warp: its rows of A, if they come from shared memory.
struct Work<'a> {
    exec: u32,
    op: &'a Wgmma,
    a: Option<[Block; 2]>,
    accumulate: bool,
}

fn compute(scratch: &mut Scratch, regs: &mut Registers, work: &Work<'_>) {
    #[cfg(target_arch = "x86_64")]
    if *super::mma::VECTORS {
        return avx2::compute(scratch, regs, work);
    }
    multiply(scratch, regs, work, aligned::add);
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "calling a function with target features")]
mod avx2 {
    use super::{Registers, Scratch, Work, aligned, multiply};

    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn with_features(scratch: &mut Scratch, regs: &mut Registers, work: &Work<'_>) {
        multiply(scratch, regs, work, |tile, step| aligned::avx2::add(tile, step));
    }

    pub(super) fn compute(scratch: &mut Scratch, regs: &mut Registers, work: &Work<'_>) {
        // SAFETY: called only if `VECTORS` says that all of these features were detected.
        unsafe { with_features(scratch, regs, work) }
    }
}

#[inline(always)]
fn multiply(
    scratch: &mut Scratch,
    regs: &mut Registers,
    work: &Work<'_>,
    add: impl Fn(&mut Tile, &Step) + Copy,
) {
    let Work { exec, op, a, accumulate } = *work;
    const ZERO: Words = [0; LANES];
    let mut a_words = [ZERO; 4];
    match (&a, op.a) {
        (Some([low, high]), _) => a_words = [low[0], high[0], low[1], high[1]],
        (None, Source::Registers(rows)) => {
            let (words, _) = rows.words(regs);
            a_words = words.map(|w| *w);
        }
        (None, Source::Descriptor(..)) => {}
    }
    let a_words = a_words.each_ref();
    let tile = &mut scratch.tile;
    let sum = match op.product {
        Product::Numbers { a, .. } => {
            tile.set_a(a, &a_words, 16, op.negate);
            Sum::of_wgmma(a)
        }
        Product::Bits => Sum::Integers,
    };
    for (d, b) in op.d.chunks_exact(op.accumulator.registers()).zip(&scratch.b) {
        let b_words = b.each_ref();
        let mut c = [&ZERO; 4];
        if accumulate {
            for (c, d) in c.iter_mut().zip(d) {
                *c = &regs.r32[*d as usize].0;
            }
        }
        let c = &c[..d.len()];
        let mut out = [Row32::ZERO; 4];
        match op.product {
            Product::Numbers { b, .. } => {
                tile.set_b(b, &b_words);
                tile.set_sums(op.accumulator, c);
                tile.multiply(sum, op.accumulator, 16, op.k, add);
                for (i, (out, c)) in out.iter_mut().zip(c).enumerate() {
                    *out = tile.register(op.accumulator, i, c);
                }
            }
            Product::Bits => {
                let sums = popcounts(&a_words, &b_words, c, 16, |a, b| a & b);
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = sum;
                }
            }
        }
        for (row, out) in d.iter().zip(out) {
            put32(&mut regs.r32[*row as usize], out.0, exec);
        }
    }
}
