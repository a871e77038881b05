//! Tensor-core instructions. All of them are `.sync.aligned`: they run when all lanes of the warp are there, and a warp
//! that cannot be complete is a finding.

mod aligned;
mod descriptor;
mod flights;
#[cfg(target_arch = "x86_64")]
mod halves;
mod mma;
mod moves;
mod tensor_core;
mod tile;
mod warpgroup;
mod wgmma;

pub(in crate::exec) use descriptor::Descriptor;
pub(crate) use flights::Flights;
pub(in crate::exec) use tensor_core::{Factor, Factors, Sums, multiply};
pub(crate) use warpgroup::Warpgroups;
pub(crate) use wgmma::Scratch;

use crate::code::matrix::MatrixOp;
use crate::code::rows::FULL;
use crate::context::Context;
use crate::report::Tool;
use crate::warp::Warp;

impl Context<'_> {
    /// Runs an instruction for the lanes of `exec`, which are all that can come.
    #[inline(never)]
    pub(super) fn matrix(&mut self, warp: &mut Warp, pc: u32, exec: u32, at: u32) {
        self.check_whole(warp, pc, exec);
        let op = &self.code.matrix[at as usize];
        if self.checks.counters {
            self.counters.tensor_operations += op.multiply_adds();
        }
        match op {
            MatrixOp::Mma(op) => mma::mma(&mut self.matrix.tile, &mut warp.regs, exec, op),
            MatrixOp::MmaBits(op) => mma::mma_bits(&mut warp.regs, exec, op),
            MatrixOp::MmaF64(op) => mma::mma_f64(&mut warp.regs, exec, op),
            MatrixOp::Transpose { d, a } => mma::transpose(&mut warp.regs, exec, *d, *a),
            MatrixOp::Load(tiles) => self.load_matrices(warp, pc, exec, tiles),
            MatrixOp::Store(tiles) => self.store_matrices(warp, pc, exec, tiles),
            MatrixOp::Wgmma(op) => self.wgmma(warp, pc, exec, op),
            MatrixOp::Converge => {}
            MatrixOp::Tensor(op) => self.tensor_warp(warp, pc, exec, op),
            MatrixOp::WgmmaFence => warp.flights.fence(),
            MatrixOp::WgmmaCommit => warp.flights.commit(),
            MatrixOp::WgmmaWait(pending) => {
                warp.flights.wait(*pending);
                let ended = warp.flights.take_reads();
                if !ended.is_empty() {
                    self.end_reads(warp, exec, &ended);
                }
            }
        }
    }

    /// Reports an instruction for the whole warp that some lanes do not run.
    #[inline(always)]
    pub(super) fn check_whole(&mut self, warp: &Warp, pc: u32, exec: u32) {
        if exec != FULL && self.checks.synccheck {
            self.partial_warp(warp, pc, exec);
        }
    }

    #[cold]
    fn partial_warp(&mut self, warp: &Warp, pc: u32, exec: u32) {
        let threads: u32 = self.shared.config.block.iter().product();
        let existing = match threads - 32 * warp.index {
            32.. => FULL,
            lanes => (1 << lanes) - 1,
        };
        let (missing, exited) = (existing & !exec, existing & !warp.live);
        self.finding(warp, pc, exec, Tool::Synccheck, "partial-warp", None, || {
            if missing == 0 {
                return (
                    format!(
                        "an .aligned instruction needs all 32 lanes of a warp, and this one has {}",
                        existing.count_ones()
                    ),
                    "launch blocks of whole warps".to_owned(),
                );
            }
            let why = if missing & !exited == 0 { "have exited" } else { "do not execute it" };
            (
                format!("an .aligned instruction needs all 32 lanes of a warp, but lanes {missing:#010x} {why}"),
                "let the whole warp reach the instruction, and guard what the lanes do with the result instead".to_owned(),
            )
        });
    }
}
