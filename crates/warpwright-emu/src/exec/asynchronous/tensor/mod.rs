//! Tensor memory and the products that use it: `tcgen05`.
//!
//! Loads and stores happen when they are issued; their waits matter to checks alone. Products and copies are queued, and
//! those of a block end in the order of their issue, each with what memory holds then. `tcgen05.commit` is
//! queued behind them.
//!
//! Fragments of loads and stores are those of the PTX ISA ("Matrix fragments" of the shapes) as CuTe's
//! `copy_traits_sm100.hpp` has them in numbers.

mod instruction;
mod issue;
mod perform;
mod scaled;
mod watch;

use warpwright_ptx::{Tcgen05Access, Tcgen05Shape};

use super::Issuer;
use super::reach::Need;
use crate::code::rows::LANES;
use crate::code::tensor::{Address, WarpOp};
use crate::context::Context;
use crate::events::problem::Problem;
use crate::report::{Event, Key, Severity, Space, Tool};
use crate::tensor_memory::{Area, Cell, Defect, TensorMemory};
use crate::warp::Warp;
pub(super) use perform::TensorWork;
use watch::Use;

/// Lanes that a warp reaches.
const QUARTER: u32 = 32;

/// A cell that a lane of the warp moves to or from a register, relative to the address: (lane, column).
fn fragment(access: Tcgen05Access, lane: u32, register: u32) -> (u32, u32) {
    match access.shape {
        Tcgen05Shape::L32B32 => (lane, register),
        // Odd lanes have the upper eight lanes, and bit 1 selects one of two columns.
        Tcgen05Shape::L16B64 => (8 * (lane & 1) + (lane >> 2), 2 * register + (lane >> 1 & 1)),
        Tcgen05Shape::L16B128 => (lane / 4 + 8 * (register & 1), 4 * (register >> 1) + lane % 4),
        Tcgen05Shape::L16B256 => {
            (lane / 4 + 8 * (register >> 1 & 1), 8 * (register >> 2) + 2 * (lane % 4) + (register & 1))
        }
        Tcgen05Shape::L16B32X2 => (lane % 16, register + lane / 16 * access.split),
    }
}

/// The rectangles that an access touches from an address on.
fn areas(access: Tcgen05Access, start: Cell) -> Vec<Area> {
    let wide = if access.packed { 2 } else { 1 };
    let count = u32::from(access.count) * wide;
    let one = |lanes, columns| vec![Area { start, lanes, columns }];
    match access.shape {
        Tcgen05Shape::L32B32 => one(32, count),
        Tcgen05Shape::L16B64 => one(16, 2 * count),
        Tcgen05Shape::L16B128 => one(16, 4 * count),
        Tcgen05Shape::L16B256 => one(16, 8 * count),
        Tcgen05Shape::L16B32X2 => {
            let second = Cell { column: start.column.saturating_add(access.split), ..start };
            [start, second].map(|start| Area { start, lanes: 16, columns: count }).to_vec()
        }
    }
}

impl Context<'_> {
    fn tensor_issuer(&self, warp: &Warp, pc: u32, exec: u32) -> Issuer {
        Issuer { rank: self.rank(), warp: warp.index, lanes: exec, live: warp.live, pc }
    }

    /// An instruction of the whole warp.
    pub(in crate::exec) fn tensor_warp(&mut self, warp: &mut Warp, pc: u32, exec: u32, op: &WarpOp) {
        let issuer = self.tensor_issuer(warp, pc, exec);
        match op {
            WarpOp::Alloc { at, columns } => {
                let places = self.places(warp, *at);
                let lane = exec.trailing_zeros() as usize % LANES;
                let need = Need { bytes: 4, align: 4, write: true };
                let columns = warp.regs.r32[*columns as usize].0[lane];
                let spot = self.shared_spot(warp, issuer, lane, (at.space, places[lane]), need);
                let Some(column) = self.tensor_alloc(warp, issuer, columns) else { return };
                let Some(spot) = spot else { return };
                self.tensor_address_written(Issuer { lanes: 1 << lane, ..issuer }, spot.address);
                self.block.shared.store(spot.address, 4, u64::from(column));
                self.block.shared.define(spot.address, 4);
            }
            WarpOp::Dealloc { memory, columns } => {
                let lane = exec.trailing_zeros() as usize % LANES;
                let value = |row: u32| warp.regs.r32[row as usize].0[lane];
                let (memory, columns) = (value(*memory), value(*columns));
                self.tensor_dealloc(warp, issuer, memory, columns);
            }
            WarpOp::Relinquish => {
                self.block.shared.tensor.relinquished.get_or_insert(pc);
            }
            WarpOp::Load { access, memory, dsts, slots } => {
                self.tensor_load(warp, issuer, *access, *memory, dsts);
                warp.flights.load(slots, pc);
            }
            WarpOp::Store { access, memory, srcs } => self.tensor_store(warp, issuer, *access, *memory, srcs),
            WarpOp::Wait { stores } => {
                if !stores {
                    warp.flights.wait_loads();
                }
                self.tensor_waited(issuer, *stores);
            }
        }
    }

    fn tensor_alloc(&mut self, warp: &Warp, issuer: Issuer, columns: u32) -> Option<u32> {
        let lane = issuer.lane() as usize;
        let refuse = |cx: &mut Self, kind, message: String, help| {
            let problem = Problem { kind, message, help, address: (Space::Tensor, 0) };
            cx.bad_access(warp, issuer.pc, lane, &problem);
        };
        if !matches!(columns, 32 | 64 | 128 | 256 | 512) {
            let message = format!("allocates {columns} columns of tensor memory");
            refuse(self, "tensor-columns", message, "allocate 32, 64, 128, 256 or 512 columns");
            return None;
        }
        if let Some(at) = self.block.shared.tensor.relinquished {
            let line = self.code.position(at).line;
            let message = format!("allocates tensor memory, and line {line} has given up the right to");
            refuse(self, "tensor-relinquished", message, "allocate before tcgen05.relinquish_alloc_permit");
        }
        let allocated = self.block.shared.tensor.allocate(columns, issuer.warp, issuer.pc);
        if allocated.is_none() {
            let held: u32 = self.block.shared.tensor.allocations.iter().map(|a| a.columns).sum();
            let message = format!(
                "waits for ever for {columns} columns of tensor memory that follow each other: the block holds {held} of 512"
            );
            refuse(self, "tensor-exhausted", message, "free columns first, or allocate fewer");
        }
        allocated
    }

    fn tensor_dealloc(&mut self, warp: &Warp, issuer: Issuer, memory: u32, columns: u32) {
        let lane = issuer.lane() as usize;
        let start = Cell::at(memory);
        let tensor = &mut self.block.shared.tensor;
        let known = tensor.allocations.iter().find(|a| a.column == start.column).copied();
        let area = Area { start, lanes: crate::tensor_memory::LANES, columns };
        if start.lane == 0 && known.is_some_and(|a| a.columns == columns) {
            self.tensor_use(issuer, &[area], Use::Free);
            self.block.shared.tensor.free(start.column, columns);
            return;
        }
        let (kind, message) = match known {
            Some(a) => (
                "tensor-bad-free",
                format!("frees {columns} columns at {memory:#x}, where {} were allocated", a.columns),
            ),
            None if tensor.was_allocated(start.column) => {
                ("tensor-double-free", format!("frees columns at {memory:#x}, which are free already"))
            }
            None => ("tensor-bad-free", format!("frees columns at {memory:#x}, which nothing allocated")),
        };
        let help = "free each allocation once, with its address and its number of columns";
        let problem = Problem { kind, message, help, address: (Space::Tensor, u64::from(memory)) };
        self.bad_access(warp, issuer.pc, lane, &problem);
    }

    /// Whether rectangles may be accessed; says why not.
    fn tensor_covers(&mut self, warp: &Warp, issuer: Issuer, areas: &[Area], what: &str) -> bool {
        for area in areas {
            let Some(defect) = self.block.shared.tensor.defect(area) else { continue };
            let (kind, why, help) = match defect {
                Defect::Outside => (
                    "out-of-bounds",
                    "outside of the 128 lanes and 512 columns".to_owned(),
                    "an address has the lane in its upper and the column in its lower half",
                ),
                Defect::NotAllocated { column } => (
                    "tensor-not-allocated",
                    format!("where column {column} is not allocated"),
                    "allocate as many columns as the matrices have, and add to the address that tcgen05.alloc wrote",
                ),
                Defect::Freed { column } => (
                    "tensor-freed",
                    format!("where column {column} was freed"),
                    "free tensor memory when all threads have done with it",
                ),
            };
            let (at, columns) = (area.start.address(), area.columns);
            let problem = Problem {
                kind,
                message: format!("{what} {columns} columns of tensor memory at {at:#x}, {why}"),
                help,
                address: (Space::Tensor, u64::from(at)),
            };
            let lane = issuer.lane() as usize;
            self.bad_access(warp, issuer.pc, lane, &problem);
            return false;
        }
        true
    }

    /// The address of an access by a whole warp, if it may have it.
    fn tensor_place(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        access: Tcgen05Access,
        memory: Address,
        what: &str,
    ) -> Option<Cell> {
        let values = warp.regs.r32[memory.row as usize].0;
        let lane = issuer.lane() as usize;
        let start = Cell::at(values[lane].wrapping_add(memory.offset));
        if let Some(other) = crate::exec::global::lanes_of(issuer.lanes).find(|l| values[*l] != values[lane])
        {
            self.finding(warp, issuer.pc, 1 << other, Tool::Synccheck, "tensor-not-uniform", None, || {
                (
                    format!("the address in tensor memory differs from that of lane {lane}"),
                    "all lanes of the warp give the same address".to_owned(),
                )
            });
        }
        let step = if access.shape == Tcgen05Shape::L32B32 { 32 } else { 16 };
        let own = warp.index % 4;
        if start.lane / QUARTER != own || !start.lane.is_multiple_of(step) {
            let (first, last) = (QUARTER * own, QUARTER * own + QUARTER - 1);
            self.finding(warp, issuer.pc, issuer.lanes, Tool::Synccheck, "tensor-quarter", None, || {
                (
                    format!(
                        "{what} lanes of tensor memory from {} on, and warp {} reaches lanes {first} to {last}, from a multiple of {step} on",
                        start.lane, warp.index
                    ),
                    "add 32 times the warp's rank in its warpgroup, shifted left by 16, to the address".to_owned(),
                )
            });
            return None;
        }
        let areas = areas(access, start);
        if !self.tensor_covers(warp, issuer, &areas, what) {
            return None;
        }
        Some(start)
    }

    fn tensor_load(
        &mut self,
        warp: &mut Warp,
        issuer: Issuer,
        access: Tcgen05Access,
        memory: Address,
        dsts: &[u32],
    ) {
        let Some(start) = self.tensor_place(warp, issuer, access, memory, "loads") else { return };
        let areas = areas(access, start);
        // Of 64 rows half of a quarter's lanes hold none, and what is loaded from there is of no interest.
        let halves = |area: &Area| {
            [0, 16].map(|down| Area {
                start: Cell { lane: area.start.lane + down, ..area.start },
                lanes: 16,
                ..*area
            })
        };
        let tensor = &self.block.shared.tensor;
        let half = |area: &Area| {
            area.lanes == 32 && halves(area).iter().any(|half| tensor.undefined(half).is_none())
        };
        if !areas.iter().any(half) {
            self.tensor_defined(warp, issuer, &areas, "loads");
        }
        self.tensor_use(issuer, &areas, Use::Load);
        let tensor = &self.block.shared.tensor;
        for (register, dst) in (0..).zip(dsts) {
            let row = &mut warp.regs.r32[*dst as usize].0;
            for lane in crate::exec::global::lanes_of(issuer.lanes) {
                let (down, right) = fragment(access, lane as u32, register);
                let word = |column: u32| tensor.load(start.lane + down, start.column + column);
                row[lane] = if access.packed {
                    word(2 * right) & 0xFFFF | word(2 * right + 1) << 16
                } else {
                    word(right)
                };
            }
        }
    }

    fn tensor_store(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        access: Tcgen05Access,
        memory: Address,
        srcs: &[u32],
    ) {
        let Some(start) = self.tensor_place(warp, issuer, access, memory, "stores to") else { return };
        let areas = areas(access, start);
        self.tensor_use(issuer, &areas, Use::Store);
        let tensor = &mut self.block.shared.tensor;
        areas.iter().for_each(|area| tensor.define(area));
        for (register, src) in (0..).zip(srcs) {
            let row = &warp.regs.r32[*src as usize].0;
            for lane in crate::exec::global::lanes_of(issuer.lanes) {
                let (down, right) = fragment(access, lane as u32, register);
                let mut put =
                    |column: u32, word| tensor.store(start.lane + down, start.column + column, word);
                if access.packed {
                    put(2 * right, row[lane] & 0xFFFF);
                    put(2 * right + 1, row[lane] >> 16);
                } else {
                    put(right, row[lane]);
                }
            }
        }
    }

    /// Reports a read of tensor memory that nothing wrote.
    fn tensor_defined(&mut self, warp: &Warp, issuer: Issuer, areas: &[Area], what: &str) {
        if !self.checks.initcheck {
            return;
        }
        let tensor = &self.block.shared.tensor;
        let Some(cell) = areas.iter().find_map(|area| tensor.undefined(area)) else { return };
        let lanes = 1 << issuer.lane();
        let at = Some((Space::Tensor, u64::from(cell.address())));
        self.finding(warp, issuer.pc, lanes, Tool::Initcheck, "uninitialised-tensor", at, || {
            (
                format!(
                    "{what} lane {} of column {} of tensor memory, which nothing wrote",
                    cell.lane, cell.column
                ),
                "let the first product replace D (enable-input-d false), or store zeros first".to_owned(),
            )
        });
    }

    /// A block has ended: its tensor memory must be free.
    pub(crate) fn check_tensor_memory(&mut self) {
        let TensorMemory { allocations, .. } = &mut self.block.shared.tensor;
        let left = std::mem::take(allocations);
        if !self.checks.memcheck {
            return;
        }
        for allocation in left {
            let site = self.site_of(self.rank(), allocation.warp, 0);
            let key = Key { tool: Tool::Memcheck, kind: "tensor-leak", pc: allocation.pc, other_pc: None };
            self.findings.record(key, site, || Event {
                severity: Severity::Error,
                message: format!(
                    "the block ends without having freed these {} columns of tensor memory",
                    allocation.columns
                ),
                help: "tcgen05.dealloc with the same number of columns before the block ends".to_owned(),
                address: Some((Space::Tensor, u64::from(allocation.column))),
                other: None,
            });
        }
    }
}
