//! The kernel that any target and alignment has, on the ordinary units: exact products, in f32.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::kernel::{self, Scaled, Scales};
use crate::gemm::engine::{self, Epilogue};
use crate::gemm::epilogue::{Even, Program, ResultArgs};
use crate::quantize8::{BLOCK, Format};

kernel_args! {
    /// `y = activation(scale_a scale_b a b^T + bias)`
    pub(super) struct SimtArgs => SimtParams {
        a: In<Elem>, b: In<Elem>, to: ResultArgs,
        m: u32, n: u32, depth: u32,
        lda: u64, ldb: u64, ldy: u64,
        scale_a: In<f32>, scale_b: In<f32>,
    }
}

/// Rows and columns of a tile.
pub(super) const SIDE: u32 = 64;
/// Rows and columns of a thread's sums.
const OWN: u32 = 4;
/// Threads along each side.
const ACROSS: u32 = SIDE / OWN;
const THREADS: u32 = ACROSS * ACROSS;
/// How much of the common dimension is in shared memory.
const SLICE: u32 = 32;
/// Elements from one place of the common dimension to the next there: neighbours go to different banks.
const PITCH: u32 = SIDE + 4;

/// A product on the ordinary units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simt {
    pub(super) a: Format,
    pub(super) b: Format,
    pub(super) y: DType,
    pub(super) program: Program,
    pub(super) scales: Scales,
}

/// The sums of a thread: rows, and columns in pairs.
type Sums<'k, T> = Vec<Vec<Reg<'k, T>>>;

/// A block's tile, and how it comes to shared memory.
struct Tile<'k> {
    k: K<'k>,
    p: SimtParams<'k>,
    row: U32<'k>,
    col: U32<'k>,
    a: Ptr<'k, Shared, f32>,
    b: Ptr<'k, Shared, f32>,
    /// The first row and column of the thread's in the tile.
    mine: (U32<'k>, U32<'k>),
}

impl<'k> Tile<'k> {
    /// Brings the slice of an operand from `first` on, whose rows from `outer` on are below `end`.
    fn bring(
        &self,
        (from, leading): (Ptr<'k, Read, Elem>, U64<'k>),
        to: Ptr<'k, Shared, f32>,
        (outer, end): (U32<'k>, U32<'k>),
        first: U32<'k>,
    ) {
        let k = self.k;
        for i in 0..SIDE * SLICE / THREADS {
            let at = k.thread_idx() + i * THREADS;
            let (row, depth) = (at / SLICE, at % SLICE);
            let there = (outer + row).lt(end) & (first + depth).lt(self.p.depth);
            let element = from.at((outer + row).to_u64() * leading + (first + depth).to_u64());
            to.at(depth * PITCH + row).set(element.only_where(there, Fill::Zero).get::<f32>());
        }
    }

    /// The sums of 128 products, or as many as there are, from block `step` on.
    fn of_block(&self, step: U32<'k>) -> Sums<'k, f32> {
        let (k, p) = (self.k, self.p);
        let zero: Sums<'k, f32> = (0..OWN).map(|_| vec![k.lit(0.0f32); OWN as usize]).collect();
        let begin = step * BLOCK as u32;
        let end = (begin + BLOCK as u32).min(p.depth);
        k.fold(k.range(begin, end, SLICE), zero, |first, sums| {
            k.barrier();
            self.bring((p.a, p.lda), self.a, (self.row, p.m), first);
            self.bring((p.b, p.ldb), self.b, (self.col, p.n), first);
            k.barrier();
            k.fold(k.range(0, SLICE, 1), sums, |depth, sums| {
                let vector =
                    |from: Ptr<'k, Shared, f32>, mine| from.at(depth * PITCH + mine).load::<f32>(OWN);
                let (a, b) = (vector(self.a, self.mine.0), vector(self.b, self.mine.1));
                let row = |i: usize| (0..OWN as usize).map(|j| a[i].mul_add(b[j], sums[i][j])).collect();
                (0..OWN as usize).map(row).collect::<Sums<'k, f32>>()
            })
        })
    }
}

impl Simt {
    /// Sums of integers, of which those of a block are exact in f32.
    fn integers<'k>(&self, tile: &Tile<'k>, steps: U32<'k>) -> Sums<'k, i32> {
        let k = tile.k;
        let zero: Sums<'k, i32> = (0..OWN).map(|_| vec![k.lit(0i32); OWN as usize]).collect();
        k.fold(k.range(0, steps, 1), zero, |step, sums| {
            let of_block = tile.of_block(step);
            let row = |(sums, more): (&Vec<Reg<'k, i32>>, &Vec<F32<'k>>)| {
                sums.iter().zip(more).map(|(sum, more)| *sum + more.to_i32()).collect()
            };
            sums.iter().zip(&of_block).map(row).collect::<Sums<'k, i32>>()
        })
    }

    /// Sums of which those of each block are scaled.
    fn floats<'k>(&self, tile: &Tile<'k>, scaled: &Scaled<'k>, steps: U32<'k>) -> Sums<'k, f32> {
        let k = tile.k;
        let (down, right) = tile.mine;
        let zero: Sums<'k, f32> = (0..OWN).map(|_| vec![k.lit(0.0f32); OWN as usize]).collect();
        k.fold(k.range(0, steps, 1), zero, |step, sums| {
            let of_block = tile.of_block(step);
            let row = |i: u32| {
                let row = tile.row + down + i;
                let (sums, more) = (&sums[i as usize], &of_block[i as usize]);
                (0..OWN)
                    .step_by(2)
                    .flat_map(|j| {
                        let loaded = scaled.load_factors(step, &|_| row, tile.col, right + j);
                        let factors = scaled.factors(&loaded)(0, 0);
                        [0, 1].map(|odd| {
                            let at = (j + odd) as usize;
                            match factors {
                                Some(factors) => more[at].mul_add(factors[odd as usize], sums[at]),
                                None => sums[at] + more[at],
                            }
                        })
                    })
                    .collect()
            };
            (0..OWN).map(row).collect::<Sums<'k, f32>>()
        })
    }
}

impl KernelDef for Simt {
    type Args = SimtArgs;

    fn spec(&self) -> KernelSpec {
        let name = kernel::name((self.a, self.b, self.y), "simt", self.scales, self.program);
        let dtypes = DTypes::all(engine::stored(self.y));
        KernelSpec::new(name, BlockDim::x(THREADS))
            .dtypes(dtypes.with("a", self.a.dtype()).with("b", self.b.dtype()))
    }

    fn build<'k>(&self, k: K<'k>, p: SimtParams<'k>) {
        let across = (p.n + (SIDE - 1)) / SIDE;
        let (thread, block) = (k.thread_idx(), k.block_idx_x());
        let tile = Tile {
            k,
            p,
            row: block / across * SIDE,
            col: block % across * SIDE,
            a: k.shared::<f32>(SLICE * PITCH),
            b: k.shared::<f32>(SLICE * PITCH),
            mine: (thread / ACROSS * OWN, thread % ACROSS * OWN),
        };
        let steps = (p.depth + (BLOCK as u32 - 1)) / BLOCK as u32;
        let scaled = Scaled {
            program: self.program,
            scales: self.scales,
            // A pair at a time.
            cols: 8,
            sizes: (p.m, p.n, p.ldy),
            steps,
            scale_a: p.scale_a,
            scale_b: p.scale_b,
        };
        let integers = self.a == Format::Int8 && !self.scales.by_slices();
        let sums: Sums<'k, f32> = if integers {
            let finished = |sum: Reg<'k, i32>| match self.y {
                DType::I32 => F32::from_bits(sum.to_u32()),
                _ => sum.to_f32(),
            };
            let sums = self.integers(&tile, steps);
            sums.into_iter().map(|row| row.into_iter().map(finished).collect()).collect()
        } else {
            self.floats(&tile, &scaled, steps)
        };
        let even = Even { rows: false, bias: false };
        for (i, sums) in (0..).zip(&sums) {
            let row = tile.row + tile.mine.0 + i;
            k.if_(row.lt(p.m), || {
                let of_row = scaled.rows(&|_| row);
                for (pair, sums) in (0..).zip(sums.chunks_exact(2)) {
                    let col = tile.col + tile.mine.1 + 2 * pair;
                    let values = scaled.pair(&p.to, &of_row, ((row, 0), col), [sums[0], sums[1]], even);
                    for (odd, value) in (0..).zip(values) {
                        let to = p.to.y.at(row.to_u64() * p.ldy + (col + odd).to_u64());
                        to.only_where((col + odd).lt(p.n), Fill::Zero).set(value);
                    }
                }
            });
        }
    }
}
