//! Products, copies and commits as they are issued: what they may not do is found here.

use warpwright_ptx::Tcgen05CopyShape;

use super::super::Issuer;
use super::super::queue::{Pending, Work};
use super::super::reach::Spot;
use super::instruction::{Instruction, Stored};
use super::perform::{Copying, Layout, Multiplying, Source, TensorWork, chunks, copy_lanes, copy_size};
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
                LaneOp::Copy { pair, shape, multicast, memory, descriptor } => {
                    let bits = warp.regs.r64[*descriptor as usize].0[lane];
                    let Some(from) = self.tensor_descriptor(warp, issuer, "the source", bits) else {
                        continue;
                    };
                    let (pair, shape, multicast) = (*pair, *shape, *multicast);
                    let copy = Copying { pair, shape, multicast, to: cell(warp, lane, *memory), from };
                    self.tensor_copy(warp, issuer, copy);
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
        let lane = issuer.lane() as usize;
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
        self.bad_access(warp, issuer.pc, issuer.lane() as usize, &problem);
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
        let lane = issuer.lane() as usize;
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

    /// The blocks that take part in an operation, if there are such.
    fn tensor_blocks(&mut self, warp: &Warp, issuer: Issuer, pair: bool) -> Option<Vec<u32>> {
        let lane = issuer.lane() as usize;
        let ranks = Self::taking_part(issuer.rank, pair);
        let size = self.shared.shape.size();
        if ranks.iter().any(|rank| *rank >= size) {
            let message = format!("is done by a pair of blocks, and the cluster has {size}");
            let help = "launch clusters of an even number of blocks";
            self.tensor_problem(warp, issuer, "no-such-block", message, help);
            return None;
        }
        for rank in &ranks {
            if !self.reaches(warp, issuer, lane, Spot { rank: *rank, address: SHARED_BASE }, true) {
                return None;
            }
        }
        Some(ranks)
    }

    /// Queues an operation by what it does in each block.
    fn queue_tensor(&mut self, issuer: Issuer, name: &'static str, parts: Vec<Part>, work: TensorWork) {
        let id = self.cluster.asynchronous.number();
        self.note_operation(id, issuer, name);
        let disabled = if let TensorWork::Product(work) = &work { work.disabled } else { [0; 2] };
        for (part, disabled) in parts.into_iter().zip(disabled) {
            let Part { rank, mut reads, read, written } = part;
            if self.races.is_some() {
                reads.sort_unstable();
                reads.dedup();
                for run in reads.chunk_by(|a, b| a + 16 == *b) {
                    self.issue_shared(issuer, id, (rank, run[0], 16 * run.len() as u64), false, true);
                }
            }
            self.on_rank(rank, |cx| {
                cx.tensor_use(issuer, &read, Use::Reads(id));
                cx.tensor_use(issuer, &written, Use::Writes(id));
                written.iter().for_each(|area| cx.tensor_written(area, disabled));
            });
        }
        if let Some(races) = &mut self.races {
            races.issue(issuer.warp);
        }
        let thread = (issuer.rank, issuer.warp, issuer.lane());
        self.cluster.asynchronous.uncommitted.entry(thread).or_default().push(id);
        self.enqueue(Pending { id, issuer, view: View::default(), work: Work::Tensor(work) });
    }

    /// A rectangle has values, but for some lanes.
    fn tensor_written(&mut self, area: &Area, disabled: u128) {
        let tensor = &mut self.block.shared.tensor;
        if disabled == 0 {
            return tensor.define(area);
        }
        let lanes = area.start.lane..area.start.lane + area.lanes;
        for lane in lanes.filter(|lane| disabled >> lane & 1 == 0) {
            tensor.define(&Area { start: Cell { lane, ..area.start }, lanes: 1, ..*area });
        }
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
            return self.tensor_problem(warp, issuer, "misaligned", message, help);
        }
        if let Some(what) = copy.from.offset_problem(Major::K, u64::from(rows)) {
            let message = format!("the matrix descriptor of the source {what}: {}", copy.from);
            return self.tensor_problem(warp, issuer, "bad-descriptor", message, DESCRIPTOR_HELP);
        }
        let from = copy.from;
        let at =
            || (0..u64::from(rows)).flat_map(|row| (0..u64::from(wide)).map(move |i| from.k_major(row, i)));
        let Some(ranks) = self.tensor_blocks(warp, issuer, copy.pair) else { return };
        let mut parts = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let mut part = Part { rank, reads: Vec::new(), read: Vec::new(), written: areas.clone() };
            let may = self.on_rank(rank, |cx| {
                cx.tensor_covers(warp, issuer, &areas, "copies to")
                    && cx.tensor_reads(warp, issuer, ("the source", from, 16), at(), &mut part.reads)
            });
            if !may {
                return;
            }
            parts.push(part);
        }
        self.queue_tensor(issuer, "tcgen05.cp", parts, TensorWork::Copy(copy));
    }

    /// `tcgen05.mma`
    fn tensor_product(&mut self, warp: &Warp, issuer: Issuer, product: &Product) {
        let Some(work) = self.tensor_operands(warp, issuer, product) else { return };
        let Some(ranks) = self.tensor_blocks(warp, issuer, product.pair) else { return };
        let mut parts = Vec::with_capacity(ranks.len());
        for rank in ranks {
            match self.on_rank(rank, |cx| cx.tensor_part(warp, issuer, rank, &work)) {
                Some(part) => parts.push(part),
                None => return,
            }
        }
        if self.checks.counters {
            let Instruction { m, n, .. } = work.instruction;
            self.counters.tensor_operations += u64::from(m) * u64::from(n) * u64::from(work.instruction.k());
        }
        self.queue_tensor(issuer, "tcgen05.mma", parts, TensorWork::Product(Box::new(work)));
    }

    /// The operands of a product, if they are such.
    fn tensor_operands(&mut self, warp: &Warp, issuer: Issuer, product: &Product) -> Option<Multiplying> {
        let lane = issuer.lane() as usize;
        let bits = warp.regs.r32[product.descriptor as usize].0[lane];
        let decoded = Instruction::decode(product.kind, product.pair, bits).and_then(|instruction| {
            let scaling = product.scales.map(|scales| {
                let decoded = Scaling::decode(product.kind, scales.per_row, bits);
                decoded.map(|(ty, bytes)| {
                    let [a, b] =
                        [scales.a, scales.b].map(|at| Scaling::place(cell(warp, lane, at).address()));
                    Scaling { ty, per_row: scales.per_row, a, b, bytes }
                })
            });
            Ok((instruction, scaling.transpose()?))
        });
        let (instruction, scaling) = match decoded {
            Ok(decoded) => decoded,
            Err(what) => {
                let message = format!("the instruction descriptor {what}: {bits:#010x}");
                let help = "types, shape, majors and bytes of scales go in as the kind has them";
                self.tensor_problem(warp, issuer, "bad-descriptor", message, help);
                return None;
            }
        };
        let layout = Layout::of(&instruction);
        let d = cell(warp, lane, product.d);
        if !(if layout == Layout::Half { matches!(d.lane, 0 | 16) } else { d.lane == 0 }) {
            let message = format!("D of {} rows begins at lane {} of tensor memory", instruction.m, d.lane);
            let help = "128 rows begin at lane 0, and 64 at lane 0 or 16";
            self.tensor_problem(warp, issuer, "misaligned", message, help);
            return None;
        }
        let b = (product.b, instruction.b_major, instruction.columns());
        let b = self.tensor_factor(warp, issuer, "B", b)?;
        let a = match product.a {
            tensor::Source::Descriptor(row) => {
                let a = (row, instruction.a_major, instruction.rows());
                Source::Shared(self.tensor_factor(warp, issuer, "A", a)?)
            }
            tensor::Source::Memory(at) => {
                Source::Tensor(self.tensor_first(warp, issuer, &instruction, d, cell(warp, lane, at))?)
            }
        };
        let accumulate = warp.regs.pred[product.accumulate as usize] >> lane & 1 == 1;
        let mut disabled = [0u128; 2];
        for (masks, disabled) in product.disabled.chunks(4).zip(&mut disabled) {
            *disabled = (0..)
                .zip(masks)
                .fold(0, |all, (i, row)| all | u128::from(warp.regs.r32[*row as usize].0[lane]) << (32 * i));
        }
        let scale_d = product.scale_d;
        Some(Multiplying { instruction, d, a, b, accumulate, disabled, scale_d, scaling })
    }

    /// The place of A in tensor memory, if it may be there.
    fn tensor_first(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        instruction: &Instruction,
        d: Cell,
        at: Cell,
    ) -> Option<Cell> {
        if !matches!(instruction.a, Stored::Plain(_) | Stored::PackedE2m1) {
            self.not_executed(issuer, "products of A in tensor memory of less than 8 bits");
            return None;
        }
        if Layout::of(instruction) == Layout::Split {
            self.not_executed(issuer, "products of 128 rows of a pair of blocks with A in tensor memory");
            return None;
        }
        if at.lane != d.lane || instruction.a_major == Major::Mn {
            let message = format!(
                "A begins at lane {} of tensor memory and D at lane {}, or A is M-major",
                at.lane, d.lane
            );
            let help = "A in tensor memory is K-major, and begins at the lane of D";
            self.tensor_problem(warp, issuer, "misaligned", message, help);
            return None;
        }
        Some(at)
    }

    /// The part of a product that happens in the block in the context, if it may.
    fn tensor_part(&mut self, warp: &Warp, issuer: Issuer, rank: u32, work: &Multiplying) -> Option<Part> {
        let Instruction { n, a, b, a_major, b_major, .. } = work.instruction;
        let (rows, layout) = (work.instruction.rows(), Layout::of(&work.instruction));
        let mut part = Part { rank, reads: Vec::new(), read: Vec::new(), written: layout.areas(work.d, n) };
        let at = chunks(work.b, b_major, b, work.instruction.columns()).map(|(address, ..)| address);
        if !self.tensor_reads(warp, issuer, ("B", work.b, b.used()), at, &mut part.reads) {
            return None;
        }
        match work.a {
            Source::Shared(from) => {
                let at = chunks(from, a_major, a, rows).map(|(address, ..)| address);
                if !self.tensor_reads(warp, issuer, ("A", from, a.used()), at, &mut part.reads) {
                    return None;
                }
            }
            Source::Tensor(at) => part.read = layout.areas(at, A_COLUMNS),
        }
        if let Some(scaling) = &work.scaling {
            part.read.extend(scaling.areas(rows, n));
        }
        if !self.tensor_covers(warp, issuer, &part.written, "writes D to")
            || !self.tensor_covers(warp, issuer, &part.read, "reads a factor from")
        {
            return None;
        }
        self.tensor_defined(warp, issuer, &part.read, "reads a factor from");
        if work.accumulate {
            self.tensor_defined(warp, issuer, &part.written, "adds to");
        }
        Some(part)
    }

    /// The descriptor of a factor in shared memory, if it is one.
    fn tensor_factor(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        name: &'static str,
        (row, major, rows): (u32, Major, u32),
    ) -> Option<Descriptor> {
        let lane = issuer.lane() as usize;
        let bits = warp.regs.r64[row as usize].0[lane];
        let descriptor = self.tensor_descriptor(warp, issuer, name, bits)?;
        if let Some(what) = descriptor.offset_problem(major, u64::from(rows)) {
            let message = format!("the matrix descriptor of {name} {what}: {descriptor}");
            self.tensor_problem(warp, issuer, "bad-descriptor", message, DESCRIPTOR_HELP);
            return None;
        }
        Some(descriptor)
    }
}

/// The part of an operation that happens in one block.
struct Part {
    rank: u32,
    /// Chunks of shared memory that it reads.
    reads: Vec<u64>,
    /// Rectangles of tensor memory that it reads, and those that it writes.
    read: Vec<Area>,
    written: Vec<Area>,
}

/// Where an address of a lane points.
fn cell(warp: &Warp, lane: usize, address: Address) -> Cell {
    Cell::at(warp.regs.r32[address.row as usize].0[lane].wrapping_add(address.offset))
}
