//! The fused mma step, a single one in one launch on tensor cores: a block multiplies 16 or 32 rows of both weights, which are all gates of a few
//! units, with the inputs and the states of up to 64 sequences, and ends the step of these units.
//!
//! Four warps share the common dimension of the inputs, four that of the states. Nothing that a warp reads is another warp's, so
//! operands come from memory straight into fragments: which elements of the common dimension a product takes together is
//! free as long as both operands agree, and a lane takes eight neighbours, 16 bytes, for two products. The sums of the warps
//! meet in shared memory.

use warpwright_dsl::WARP;
use warpwright_dsl::prelude::*;
use warpwright_ptx::Target;

use super::gemv::{GemvArgs, GemvParams};
use super::saved::Unit;
use crate::recurrent::gates::Cell;
use crate::recurrent::persistent::gemm::{ATOM, OCTET, SLICES};
use crate::recurrent::walk::Flag;

/// Most sequences.
const MOST_BATCH: usize = 64;
/// Up to here there is a tile of rows to a block, and two behind.
const FEW: u32 = 16;
/// Units up to which every multiprocessor has a block of many sequences; more blocks read them too often.
const MOST_UNITS: usize = 1024;
/// Warps that share the common dimension of a side.
const PARTS: u32 = 4;
const WARPS: u32 = 2 * PARTS;
const THREADS: u32 = WARPS * WARP;
/// Registers of operands that are on their way together at most, where there are two blocks to a multiprocessor and where there is
/// one.
const AHEAD: [u32; 2] = [96, 192];

/// A step of up to 64 sequences.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct FusedMma {
    cell: Cell,
    dtype: DType,
    atom: MmaAtom,
    /// Tiles of sequences, a power of two: eight in each.
    tiles: u32,
}

impl FusedMma {
    /// The kernel for `batch` sequences of a layer of `hidden` units, if there is one.
    pub(in crate::recurrent) fn of(
        cell: Cell,
        dtype: DType,
        [batch, hidden]: [usize; 2],
        target: Target,
    ) -> Option<Self> {
        let half = matches!(dtype, DType::F16 | DType::BF16) && target.sm >= 80;
        let little = batch <= FEW as usize || hidden <= MOST_UNITS;
        if !half || !(1..=MOST_BATCH).contains(&batch) || !little {
            return None;
        }
        let tiles = (batch as u32).div_ceil(ATOM.2).next_power_of_two();
        Some(Self { cell, dtype, atom: MmaAtom::of(dtype)?, tiles })
    }

    /// Sequences of which each number has a kernel of its own.
    pub(in crate::recurrent) const BATCHES: [usize; 4] = [8, 16, 32, 64];

    /// Tiles of rows of a block.
    const fn high(&self) -> u32 {
        if self.tiles * ATOM.2 <= FEW { 1 } else { 2 }
    }

    /// Units of a block, as many as fill its rows.
    const fn units(&self) -> u32 {
        self.high() * ATOM.0 / self.cell.gates() as u32
    }

    /// Sequences in whole tiles.
    const fn columns(&self) -> u32 {
        self.tiles * ATOM.2
    }

    /// Blocks for `hidden` units.
    pub(in crate::recurrent) const fn blocks(&self, hidden: u32) -> u32 {
        hidden.div_ceil(self.units())
    }

    /// Floats between the rows of sums: lanes that store neighbours of four rows meet no bank twice.
    const fn pitch(&self) -> u32 {
        if self.tiles == 1 { ATOM.2 } else { self.columns().next_multiple_of(WARP) + ATOM.2 }
    }

    /// Floats between the sums of warps.
    const fn of_warp(&self) -> u32 {
        self.high() * ATOM.0 * self.pitch()
    }

    /// Bytes of dynamic shared memory.
    pub(in crate::recurrent) const fn shared_bytes(&self) -> u32 {
        WARPS * self.of_warp() * 4
    }

    /// The sums of the block's rows over the part of the common dimension that the warp has of its side, by tiles of rows and of
    /// sequences.
    fn products<'k>(&self, k: K<'k>, p: &GemvParams<'k>, first: U32<'k>) -> Vec<Vec<Accumulator<'k, f32>>> {
        let (gates, high) = (self.cell.gates() as u32, self.high());
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let (side, part) = (k.warp_idx() / PARTS, k.warp_idx() % PARTS);
        let of_input = side.eq(0);
        let depth = of_input.select(p.input, p.hidden);
        let given = of_input | p.walk().has(Flag::H0);
        let (weights, vectors) = (of_input.pointer(p.w_ih, p.w_hh), of_input.pointer(p.x, p.state.h0));
        // Rows beyond the last are read as the last: nobody looks at their sums.
        let row = |i: u32| {
            let row = (group + i * ATOM.2).min(self.units() * gates - 1);
            let unit = (first + row / gates).min(p.hidden - 1);
            weights.at((p.hidden * (row % gates) + unit).to_u64() * depth.to_u64())
        };
        // Those of the upper and the lower half of each tile.
        let rows: Vec<_> = (0..high).map(|tile| [2 * tile, 2 * tile + 1].map(row)).collect();
        let vector = |i: u32| vectors.at((group + i * ATOM.2).min(p.batch - 1).to_u64() * depth.to_u64());
        let vectors: Vec<_> = (0..self.tiles).map(vector).collect();
        // Operands of several pairs of slices are on their way together.
        let together = (AHEAD[high as usize - 1] / (4 * (2 * high + self.tiles))).max(1);
        let together = 1 << together.ilog2();
        let own = part * (together * SLICES) + quad * OCTET;
        let zero = vec![vec![Accumulator::zero(k, self.atom); self.tiles as usize]; high as usize];
        let end = given.select(depth, 0u32);
        k.fold(k.range(0, end, PARTS * together * SLICES), zero, |start, mut sums| {
            let at = start + own;
            let inside: Vec<_> = (0..together).map(|pair| (at + pair * SLICES).lt(depth)).collect();
            let here = |from: Ptr<'k, Read, Elem>| from.at(at.to_u64());
            let read = |from: Ptr<'k, Read, Elem>, (pair, inside): (u32, &Pred<'k>)| -> Lanes<'k, u32> {
                let from = from.at(u64::from(pair * SLICES)).only_where(*inside, Fill::Zero);
                from.cast::<u32>().load(OCTET / 2)
            };
            let pairs = || (0..).zip(&inside);
            let rows: Vec<_> = rows.iter().map(|halves| halves.map(here)).collect();
            let of_pair = |pair| rows.iter().map(|halves| halves.map(|from| read(from, pair))).collect();
            let rows: Vec<Vec<[Lanes<'k, u32>; 2]>> = pairs().map(of_pair).collect();
            let vectors: Vec<_> = vectors.iter().map(|from| here(*from)).collect();
            let of_pair = |pair| vectors.iter().map(|from| read(*from, pair)).collect();
            let vectors: Vec<Vec<Lanes<'k, u32>>> = pairs().map(of_pair).collect();
            for (rows, vectors) in rows.iter().zip(&vectors) {
                for slice in 0..2 {
                    let of = |words: &Lanes<'k, u32>, i: usize| words[2 * slice + i];
                    for ([upper, lower], sums) in rows.iter().zip(&mut sums) {
                        let words = [of(upper, 0), of(lower, 0), of(upper, 1), of(lower, 1)];
                        let weights = Fragment::a(k, self.atom, &words);
                        for (sum, vector) in sums.iter_mut().zip(vectors) {
                            *sum = sum
                                .mma(&weights, &Fragment::b(k, self.atom, &[of(vector, 0), of(vector, 1)]));
                        }
                    }
                }
            }
            sums
        })
    }

    fn body<'k>(&self, k: K<'k>, p: GemvParams<'k>) {
        let Self { cell, dtype, .. } = *self;
        let (gates, columns) = (cell.gates() as u32, self.columns());
        let first = k.block_idx_x() * self.units();
        let all = self.units() * columns;
        let walk = p.walk();
        let unit_of = |at: U32<'k>| {
            let (batch, unit) = (at % columns, first + at / columns);
            let inside = at.lt(all) & batch.lt(p.batch) & unit.lt(p.hidden);
            (inside, batch, unit)
        };
        let (inside, batch, unit) = unit_of(k.thread_idx());
        p.fetch(k, cell, Unit { inside, batch, unit, length: k.lit(1u32) });
        let sums = self.products(k, &p, first);
        let slots = k.dynamic_shared::<f32>();
        let (row, column) = k.accumulator_origin();
        let own = slots.at(k.warp_idx() * self.of_warp() + row * self.pitch() + column);
        for (high, sums) in (0..).zip(&sums) {
            for (tile, sum) in (0..).zip(sums) {
                for ((down, _), pair) in sum.offsets().step_by(2).zip(sum.lanes().as_slice().chunks(2)) {
                    let to = own.at(u64::from((high * ATOM.0 + down) * self.pitch() + tile * ATOM.2));
                    to.store(pair.to_vec());
                }
            }
        }
        k.barrier();
        k.for_each(k.range(k.thread_idx(), all, THREADS), |at| {
            let (inside, batch, unit) = unit_of(at);
            k.if_(inside, || {
                let who = Unit { inside, batch, unit, length: walk.length(batch, inside) };
                let epilogue = p.epilogue(cell, dtype);
                let before = epilogue.before::<f32>(k, who);
                let sum = |side: u32, gate: u32| {
                    let part = |part: u32| -> F32<'k> {
                        let row = (unit - first) * gates + gate;
                        let warp = (side * PARTS + part) * self.of_warp();
                        slots.at(row * self.pitch() + batch).at(u64::from(warp)).get()
                    };
                    let [a, b, c, d] = std::array::from_fn::<_, { PARTS as usize }, _>(|i| part(i as u32));
                    (a + b) + (c + d)
                };
                let sides = |gate: u32| p.sides(gate, unit, [sum(0, gate), sum(1, gate)]);
                let sums: Vec<_> = (0..gates).map(sides).collect();
                epilogue.finish(k, who, &sums, before);
            });
        });
    }
}

impl KernelDef for FusedMma {
    type Args = GemvArgs;

    fn spec(&self) -> KernelSpec {
        let (all, sums) = (DTypes::all(self.dtype), DType::F32);
        KernelSpec::new(
            format!("{}_fused_mma_{}_b{}", self.cell.name(), self.dtype, self.columns()),
            BlockDim::x(THREADS),
        )
        .dtypes(all.with("products", sums).with("next.after", sums).with("next.results.extra", sums))
        .min_blocks_per_sm(Some(2 / self.high()))
    }

    fn build<'k>(&self, k: K<'k>, p: GemvParams<'k>) {
        self.body(k, p);
    }
}
