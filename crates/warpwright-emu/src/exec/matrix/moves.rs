//! `ldmatrix` and `stmatrix`: 8x8 matrices of 16-bit elements between shared memory and the registers of a warp.
//!
//! Row `i` of matrix `m` is 16 bytes at the address that lane `8 m + i` gives. Register `m` of lane `4 g + t` holds the
//! elements `(g, 2 t)` and `(g, 2 t + 1)` of matrix `m`, with `.trans` the elements `(2 t, g)` and `(2 t + 1, g)`. For
//! the race detector a lane accesses the elements that its registers hold.

use warpwright_ptx::StateSpace;

use crate::code::matrix::Tiles;
use crate::code::rows::LANES;
use crate::context::Context;
use crate::counters::Direction;
use crate::events::problem;
use crate::events::{self, AccessKind, Strength};
use crate::exec::access::Lanes;
use crate::exec::global::{addresses, lanes_of};
use crate::exec::rows::put32;
use crate::exec::shared::Shape;
use crate::flow::Flow;
use crate::report::Space;
use crate::space::classify;
use crate::warp::Warp;

/// Bytes of a row.
const ROW: u32 = 16;

impl Tiles {
    /// Addresses of the two elements that register `m` of a lane holds, given those of all rows.
    fn elements(&self, rows: &[u64; LANES], m: usize, lane: usize) -> [(usize, u64); 2] {
        let (g, t) = (lane / 4, lane % 4);
        let element = |row: usize, column: usize| {
            let row = (8 * m + row) % LANES;
            (row, rows[row] + 2 * column as u64)
        };
        if self.transposed {
            [element(2 * t, g), element(2 * t + 1, g)]
        } else {
            [element(g, 2 * t), element(g, 2 * t + 1)]
        }
    }
}

impl Context<'_> {
    pub(super) fn load_matrices(&mut self, warp: &mut Warp, pc: u32, exec: u32, tiles: &Tiles) {
        let Some((rows, good)) = self.matrix_rows(warp, pc, exec, tiles, Direction::Load) else { return };
        let lanes = Lanes { pc, exec: good, addresses: &rows };
        if self.checks.initcheck {
            self.shared_undefined(warp, lanes, ROW, Shape::Scattered);
        }
        self.race_matrices(warp, lanes, tiles, AccessKind::Read);
        for (m, d) in tiles.regs.iter().enumerate() {
            let mut out = [0; LANES];
            for (lane, out) in out.iter_mut().enumerate() {
                let elements = tiles.elements(&rows, m, lane);
                let load = |(row, address): (usize, u64), bytes| {
                    if good >> row & 1 == 1 { self.block.shared.load(address, bytes) as u32 } else { 0 }
                };
                *out = if tiles.transposed {
                    load(elements[0], 2) | load(elements[1], 2) << 16
                } else {
                    load(elements[0], 4)
                };
            }
            put32(&mut warp.regs.r32[*d as usize], out, exec);
        }
    }

    pub(super) fn store_matrices(&mut self, warp: &mut Warp, pc: u32, exec: u32, tiles: &Tiles) {
        let Some((rows, good)) = self.matrix_rows(warp, pc, exec, tiles, Direction::Store) else { return };
        self.race_matrices(warp, Lanes { pc, exec: good, addresses: &rows }, tiles, AccessKind::Write);
        for (m, s) in tiles.regs.iter().enumerate() {
            let values = warp.regs.r32[*s as usize].0;
            for lane in lanes_of(exec) {
                for (half, (row, address)) in tiles.elements(&rows, m, lane).into_iter().enumerate() {
                    if good >> row & 1 == 1 {
                        self.block.shared.store(address, 2, u64::from(values[lane] >> (16 * half)));
                        self.block.shared.define(address, 2);
                    }
                }
            }
        }
    }

    /// The addresses of the rows in shared memory and the lanes whose address is good; `None` if the launch ends.
    fn matrix_rows(
        &mut self,
        warp: &Warp,
        pc: u32,
        exec: u32,
        tiles: &Tiles,
        direction: Direction,
    ) -> Option<([u64; LANES], u32)> {
        let mut rows = addresses(&warp.regs, tiles.addr, tiles.offset);
        // Lanes beyond the last matrix give no address.
        let mut asked = exec & (u32::MAX >> (LANES - 8 * tiles.regs.len().clamp(1, 4)));
        let write = direction == Direction::Store;
        let mut stop = false;
        if tiles.space == StateSpace::Generic {
            for lane in lanes_of(asked) {
                match classify(rows[lane]) {
                    (Space::Shared, address) => rows[lane] = address,
                    (space, _) => {
                        let problem = problem::not_shared(space, rows[lane], write);
                        stop |= self.bad_access(warp, pc, lane, &problem) == Flow::Stop;
                        asked &= !(1 << lane);
                    }
                }
            }
        }
        let good = self.locate_shared(warp, Lanes { pc, exec: asked, addresses: &rows }, ROW, write);
        let good = good.filter(|_| !stop)?;
        if self.checks.counters {
            self.counters.shared_scattered(direction, &rows, good, ROW);
        }
        Some((rows, good))
    }

    fn race_matrices(&mut self, warp: &Warp, lanes: Lanes<'_>, tiles: &Tiles, kind: AccessKind) {
        let Lanes { pc, exec: good, addresses: rows } = lanes;
        self.watch_shared(warp, lanes, ROW, kind != AccessKind::Read);
        let Some(races) = &mut self.races else { return };
        // Neighbouring elements of a row are one word.
        let parts = if tiles.transposed { 0..2 } else { 0..1 };
        let bytes = if tiles.transposed { 2 } else { 4 };
        let access = events::Access { warp: warp.index, pc, bytes, kind, strength: Strength::Weak };
        for m in 0..tiles.regs.len() {
            for part in parts.clone() {
                let (mut offsets, mut mask) = ([0; LANES], 0);
                for (lane, offset) in offsets.iter_mut().enumerate() {
                    let (row, address) = tiles.elements(rows, m, lane)[part];
                    *offset = address;
                    mask |= (good >> row & 1) << lane;
                }
                let shadow = &self.block.shared.races;
                races.scattered(shadow, &offsets, mask, access, &mut self.findings, &|_, _| false);
            }
        }
    }
}
