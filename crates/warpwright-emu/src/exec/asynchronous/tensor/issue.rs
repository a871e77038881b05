//! Products, copies and commits as they are issued: what they may not do is found here.

use super::super::Issuer;
use warpwright_ptx::Tcgen05CopyShape;

use super::super::queue::{Pending, Work};
use super::super::reach::Spot;
use super::instruction::{Instruction, Stored};
use super::perform::{Copying, Multiplying, Source, TensorWork, chunks, copy_lanes, copy_size, row_areas};
use super::scaled::Scaling;
use super::watch::Use;
use crate::code::asynchronous::Place;
use crate::code::layout::Slot;
use crate::code::matrix::Major;
use crate::code::tensor::{self, Address, LaneOp, Product};
use crate::context::Context;
use crate::events::problem::Problem;
use crate::events::view::View;
use crate::exec::global::lanes_of;
use crate::exec::matrix::Descriptor;
use crate::report::{Space, Tool};
use crate::space::SHARED_BASE;
use crate::tensor_memory::{Area, Cell};
use crate::warp::Warp;

/// Columns of A in tensor memory: 32 bytes.
const A_COLUMNS: u32 = 8;

const DESCRIPTOR_HELP: &str =
    "build descriptors from the tile's address, the two offsets and the swizzle that it was stored with";

impl Context<'_> {
    /// An instruction that each of some lanes runs for itself.
    pub(in crate::exec::asynchronous) fn tensor_lanes(
        &mut self,
        warp: &mut Warp,
        issuer: Issuer,
        op: &LaneOp,
    ) {
        if let LaneOp::Fence { after } = op {
            if let Some(races) = &mut self.races {
                if *after {
                    races.fence_tensor_after(issuer.warp, issuer.lanes);
                } else {
                    races.fence_tensor_before(issuer.warp, issuer.lanes, issuer.live);
                }
            }
            return;
        }
        for lane in lanes_of(issuer.lanes) {
            let issuer = Issuer { lanes: 1 << lane, ..issuer };
            match op {
                LaneOp::Fence { .. } => {}
                LaneOp::Commit { at, multicast } => self.tensor_commit(warp, issuer, *at, *multicast),
                LaneOp::Copy { shape, multicast, memory, descriptor } => {
                    let bits = warp.regs.r64[*descriptor as usize].0[lane];
                    let Some(from) = self.tensor_descriptor(warp, issuer, "the source", bits) else {
                        continue;
                    };
                    let (shape, multicast, to) = (*shape, *multicast, cell(warp, lane, *memory));
                    self.tensor_copy(warp, issuer, Copying { shape, multicast, to, from });
                }
                LaneOp::Product(product) => self.tensor_product(warp, issuer, product),
            }
            if self.fault.is_some() {
                return;
            }
        }
    }

    /// `tcgen05.commit`
    fn tensor_commit(&mut self, warp: &Warp, issuer: Issuer, at: Place, multicast: Option<Slot>) {
        let lane = issuer.lanes.trailing_zeros() as usize % 32;
        let places = self.places(warp, at);
        let Some(spot) = self.object_spot(warp, issuer, lane, (at.space, places[lane])) else { return };
        let ranks = self.ranks(warp, lane, multicast, spot.rank);
        let mut spots = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let spot = Spot { rank, ..spot };
            if self.reaches(warp, issuer, lane, spot, true) && self.object(issuer, spot) {
                spots.push(spot);
            }
        }
        let thread = (issuer.rank, issuer.warp, lane as u32);
        let operations = self.cluster.asynchronous.uncommitted.remove(&thread).unwrap_or_default();
        let view = match &mut self.races {
            Some(races) => races.committing(issuer.warp, issuer.lanes, issuer.live, &operations),
            None => View::default(),
        };
        let id = self.cluster.asynchronous.number();
        self.enqueue(Pending { id, issuer, view, work: Work::Tensor(TensorWork::Commit(spots)) });
    }

    /// A descriptor of a lane, if it is one.
    fn tensor_descriptor(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        name: &str,
        bits: u64,
    ) -> Option<Descriptor> {
        match Descriptor::of_tensor_core(bits) {
            Ok(descriptor) => Some(descriptor),
            Err(what) => {
                let message = format!("the matrix descriptor of {name} {what}: {bits:#018x}");
                self.tensor_problem(warp, issuer, "bad-descriptor", message, DESCRIPTOR_HELP);
                None
            }
        }
    }

    fn tensor_problem(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        kind: &'static str,
        message: String,
        help: &'static str,
    ) {
        let problem = Problem { kind, message, help, address: (Space::Tensor, 0) };
        self.bad_access(warp, issuer.pc, issuer.lanes.trailing_zeros() as usize % 32, &problem);
    }

    /// Whether an operation may read chunks of shared memory, of which it uses so many bytes; enters their addresses.
    fn tensor_reads(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        (name, descriptor, used): (&str, Descriptor, u64),
        chunks: impl Iterator<Item = u64>,
        reads: &mut Vec<u64>,
    ) -> bool {
        let (mut outside, mut undefined) = (None, None);
        for address in chunks {
            if !self.block.shared.covers(address, 16) {
                outside.get_or_insert(address);
                continue;
            }
            if self.checks.initcheck && !self.block.shared.is_defined(address, used) {
                undefined.get_or_insert(address);
            }
            reads.push(address);
        }
        let lane = issuer.lanes.trailing_zeros() as usize % 32;
        if let Some(address) = outside {
            let end = self.block.shared.end;
            let problem = Problem {
                kind: "out-of-bounds",
                message: format!(
                    "reads {name} at {address:#x}, outside of shared memory ({SHARED_BASE:#x} to {end:#x}), by descriptor {descriptor}"
                ),
                help: "check the address and the offsets of the descriptor, and the size of shared memory",
                address: (Space::Shared, address),
            };
            self.bad_access(warp, issuer.pc, lane, &problem);
            return false;
        }
        if let Some(address) = undefined {
            let at = Some((Space::Shared, address));
            self.finding(warp, issuer.pc, issuer.lanes, Tool::Initcheck, "uninitialised-shared", at, || {
                (
                    format!("reads {name} from shared memory that no thread of the block wrote, by descriptor {descriptor}"),
                    "write the whole tile first, or check that the descriptor describes the tile".to_owned(),
                )
            });
        }
        true
    }

    /// Queues an operation that reads chunks of shared memory and uses rectangles of tensor memory.
    fn queue_tensor(
        &mut self,
        issuer: Issuer,
        name: &'static str,
        mut reads: Vec<u64>,
        (read, written): (&[Area], &[Area]),
        work: TensorWork,
    ) {
        let id = self.cluster.asynchronous.number();
        self.note_operation(id, issuer, name);
        if self.races.is_some() {
            reads.sort_unstable();
            reads.dedup();
            for run in reads.chunk_by(|a, b| a + 16 == *b) {
                self.issue_shared(issuer, id, (issuer.rank, run[0], 16 * run.len() as u64), false, true);
            }
            self.tensor_use(issuer, read, Use::Reads(id));
            self.tensor_use(issuer, written, Use::Writes(id));
        }
        if let Some(races) = &mut self.races {
            races.issue(issuer.warp);
        }
        let disabled = if let TensorWork::Product(work) = &work { work.disabled } else { 0 };
        for area in written {
            let lanes = area.start.lane..area.start.lane + area.lanes;
            if disabled == 0 {
                self.block.shared.tensor.define(area);
                continue;
            }
            for lane in lanes.filter(|lane| disabled >> lane & 1 == 0) {
                let one = Area { start: Cell { lane, ..area.start }, lanes: 1, ..*area };
                self.block.shared.tensor.define(&one);
            }
        }
        let thread = (issuer.rank, issuer.warp, issuer.lanes.trailing_zeros());
        self.cluster.asynchronous.uncommitted.entry(thread).or_default().push(id);
        self.enqueue(Pending { id, issuer, view: View::default(), work: Work::Tensor(work) });
    }

    /// `tcgen05.cp`
    fn tensor_copy(&mut self, warp: &Warp, issuer: Issuer, copy: Copying) {
        let (rows, wide) = copy_size(copy.shape);
        let columns = 4 * wide;
        let lanes = (0..rows).flat_map(|row| copy_lanes(&copy, row));
        let mut lanes: Vec<u32> = lanes.map(|lane| copy.to.lane + lane).collect();
        lanes.sort_unstable();
        let areas: Vec<Area> = lanes
            .chunk_by(|a, b| a + 1 == *b)
            .map(|run| Area { start: Cell { lane: run[0], ..copy.to }, lanes: run.len() as u32, columns })
            .collect();
        // Four rows go to any lane of the quarters.
        let first = if copy.shape == Tcgen05CopyShape::R4B256 { 32 } else { 1 };
        if copy.to.lane >= first {
            let message = format!("copies to lane {} of tensor memory", copy.to.lane);
            let help = "a copy begins at lane 0, and one of four rows at a lane of the first quarter";
            self.tensor_problem(warp, issuer, "misaligned", message, help);
            return;
        }
        if let Some(what) = copy.from.offset_problem(Major::K, u64::from(rows)) {
            let message = format!("the matrix descriptor of the source {what}: {}", copy.from);
            return self.tensor_problem(warp, issuer, "bad-descriptor", message, DESCRIPTOR_HELP);
        }
        let mut reads = Vec::new();
        let at =
            (0..u64::from(rows)).flat_map(|row| (0..u64::from(wide)).map(move |i| copy.from.k_major(row, i)));
        if !self.tensor_covers(warp, issuer, &areas, "copies to")
            || !self.tensor_reads(warp, issuer, ("the source", copy.from, 16), at, &mut reads)
        {
            return;
        }
        self.queue_tensor(issuer, "tcgen05.cp", reads, (&[], &areas), TensorWork::Copy(copy));
    }

    /// `tcgen05.mma`
    fn tensor_product(&mut self, warp: &Warp, issuer: Issuer, product: &Product) {
        let lane = issuer.lanes.trailing_zeros() as usize % 32;
        let bits = warp.regs.r32[product.descriptor as usize].0[lane];
        let instruction = match Instruction::decode(product.kind, bits) {
            Ok(instruction) => instruction,
            Err(what) => {
                let message = format!("the instruction descriptor {what}: {bits:#010x}");
                let help = "types, shape and majors go in as the kind has them";
                return self.tensor_problem(warp, issuer, "bad-descriptor", message, help);
            }
        };
        let Instruction { m, n, a, b, a_major, b_major, .. } = instruction;
        let d = cell(warp, lane, product.d);
        let aligned = if m == 128 { d.lane == 0 } else { matches!(d.lane, 0 | 16) };
        if !aligned {
            let message = format!("D of {m} rows begins at lane {} of tensor memory", d.lane);
            let help = "128 rows begin at lane 0, and 64 at lane 0 or 16";
            return self.tensor_problem(warp, issuer, "misaligned", message, help);
        }
        let mut reads = Vec::new();
        let written = row_areas(m, d, n);
        let mut read = Vec::new();
        let Some(b_from) = self.tensor_factor(warp, issuer, "B", (product.b, b_major, b, n), &mut reads)
        else {
            return;
        };
        let source = match product.a {
            tensor::Source::Descriptor(row) => {
                match self.tensor_factor(warp, issuer, "A", (row, a_major, a, m), &mut reads) {
                    Some(descriptor) => Source::Shared(descriptor),
                    None => return,
                }
            }
            tensor::Source::Memory(at) => {
                let at = cell(warp, lane, at);
                if !matches!(a, Stored::Plain(_) | Stored::PackedE2m1) {
                    return self.not_executed(issuer, "products of A in tensor memory of less than 8 bits");
                }
                if at.lane != d.lane || a_major == Major::Mn {
                    let message = format!(
                        "A begins at lane {} of tensor memory and D at lane {}, or A is M-major",
                        at.lane, d.lane
                    );
                    let help = "A in tensor memory is K-major, and begins at the lane of D";
                    return self.tensor_problem(warp, issuer, "misaligned", message, help);
                }
                read = row_areas(m, at, A_COLUMNS);
                Source::Tensor(at)
            }
        };
        if !self.tensor_covers(warp, issuer, &written, "writes D to")
            || !self.tensor_covers(warp, issuer, &read, "reads A from")
        {
            return;
        }
        let scaling = match product.scales {
            Some(scales) => match Scaling::decode(product.kind, scales.per_row, bits) {
                Ok((ty, bytes)) => {
                    let [a, b] =
                        [scales.a, scales.b].map(|at| Scaling::place(cell(warp, lane, at).address()));
                    let scaling = Scaling { ty, per_row: scales.per_row, a, b, bytes };
                    let areas = scaling.areas(m, n);
                    if !self.tensor_covers(warp, issuer, &areas, "reads scales from") {
                        return;
                    }
                    read.extend(areas);
                    Some(scaling)
                }
                Err(what) => {
                    let message = format!("the instruction descriptor {what}: {bits:#010x}");
                    let help = "types, shape and bytes of scales go in as the kind has them";
                    return self.tensor_problem(warp, issuer, "bad-descriptor", message, help);
                }
            },
            None => None,
        };
        let accumulate = warp.regs.pred[product.accumulate as usize] >> lane & 1 == 1;
        self.tensor_defined(warp, issuer, &read, "reads a factor from");
        if accumulate {
            self.tensor_defined(warp, issuer, &written, "adds to");
        }
        if self.checks.counters {
            self.counters.tensor_operations += u64::from(m) * u64::from(n) * u64::from(instruction.k());
        }
        let masks = (0..).zip(&product.disabled);
        let disabled = masks
            .fold(0u128, |all, (i, row)| all | u128::from(warp.regs.r32[*row as usize].0[lane]) << (32 * i));
        let scale_d = product.scale_d;
        let work =
            Multiplying { instruction, d, a: source, b: b_from, accumulate, disabled, scale_d, scaling };
        let work = TensorWork::Product(Box::new(work));
        self.queue_tensor(issuer, "tcgen05.mma", reads, (&read, &written), work);
    }

    /// A factor in shared memory, if it may be read.
    fn tensor_factor(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        name: &'static str,
        (row, major, stored, rows): (u32, Major, Stored, u32),
        reads: &mut Vec<u64>,
    ) -> Option<Descriptor> {
        let lane = issuer.lanes.trailing_zeros() as usize % 32;
        let bits = warp.regs.r64[row as usize].0[lane];
        let descriptor = self.tensor_descriptor(warp, issuer, name, bits)?;
        if let Some(what) = descriptor.offset_problem(major, u64::from(rows)) {
            let message = format!("the matrix descriptor of {name} {what}: {descriptor}");
            self.tensor_problem(warp, issuer, "bad-descriptor", message, DESCRIPTOR_HELP);
            return None;
        }
        let at = chunks(descriptor, major, stored, rows).map(|(address, ..)| address);
        self.tensor_reads(warp, issuer, (name, descriptor, stored.used()), at, reads).then_some(descriptor)
    }
}

/// Where an address of a lane points.
fn cell(warp: &Warp, lane: usize, address: Address) -> Cell {
    Cell::at(warp.regs.r32[address.row as usize].0[lane].wrapping_add(address.offset))
}
