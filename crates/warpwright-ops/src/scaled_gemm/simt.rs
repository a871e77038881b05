//! The kernel that any target and alignment has, on the ordinary units: exact products, in f32.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::kernel::{self, Scaled, Scales};
use crate::gemm::engine::{self, Epilogue};
use crate::gemm::epilogue::{Even, Program, ResultArgs};
use crate::gemm::plain::{self, Factor, OWN, SIDE, Sums, Tile};
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

/// A product on the ordinary units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simt {
    pub(super) a: Format,
    pub(super) b: Format,
    pub(super) y: DType,
    pub(super) program: Program,
    pub(super) scales: Scales,
}

/// The tile of a block, and its first row and column.
struct Place<'k> {
    tile: Tile<'k>,
    row: U32<'k>,
    col: U32<'k>,
    /// The common dimension.
    depth: U32<'k>,
}

impl<'k> Place<'k> {
    /// The sums of 128 products, or as many as there are, from block `step` on.
    fn of_block(&self, step: U32<'k>) -> Sums<'k, f32> {
        let begin = step * BLOCK as u32;
        let end = (begin + BLOCK as u32).min(self.depth);
        self.tile.sums((begin, end), self.depth)
    }
}

impl Simt {
    /// Sums of integers, of which those of a block are exact in f32.
    fn integers<'k>(&self, place: &Place<'k>, steps: U32<'k>) -> Sums<'k, i32> {
        let k = steps.k();
        k.fold(k.range(0, steps, 1), plain::zero(k.lit(0i32)), |step, sums| {
            let of_block = place.of_block(step);
            let row = |(sums, more): (&Vec<Reg<'k, i32>>, &Vec<F32<'k>>)| {
                sums.iter().zip(more).map(|(sum, more)| *sum + more.to_i32()).collect()
            };
            sums.iter().zip(&of_block).map(row).collect::<Sums<'k, i32>>()
        })
    }

    /// Sums of which those of each block are scaled.
    fn floats<'k>(&self, place: &Place<'k>, scaled: &Scaled<'k>, steps: U32<'k>) -> Sums<'k, f32> {
        let k = steps.k();
        let (down, right) = place.tile.mine;
        k.fold(k.range(0, steps, 1), plain::zero(k.lit(0.0f32)), |step, sums| {
            let of_block = place.of_block(step);
            let row = |i: u32| {
                let row = place.row + down + i;
                let (sums, more) = (&sums[i as usize], &of_block[i as usize]);
                (0..OWN)
                    .step_by(2)
                    .flat_map(|j| {
                        let loaded = scaled.load_factors(step, &|_| row, place.col, right + j);
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
        KernelSpec::new(name, BlockDim::x(plain::THREADS))
            .dtypes(dtypes.with("a", self.a.dtype()).with("b", self.b.dtype()))
    }

    fn build<'k>(&self, k: K<'k>, p: SimtParams<'k>) {
        let across = (p.n + (SIDE - 1)) / SIDE;
        let block = k.block_idx_x();
        let (row, col) = (block / across * SIDE, block % across * SIDE);
        let factor = |from, leading, outer| Factor { from, leading, major: Major::K, outer };
        let (a, b) = (factor(p.a, p.lda, (row, p.m)), factor(p.b, p.ldb, (col, p.n)));
        let place = Place { tile: Tile::new(k, a, b), row, col, depth: p.depth };
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
            let sums = self.integers(&place, steps);
            sums.into_iter().map(|row| row.into_iter().map(finished).collect()).collect()
        } else {
            self.floats(&place, &scaled, steps)
        };
        let even = Even { rows: false, bias: false };
        for (i, sums) in (0..).zip(&sums) {
            let row = place.row + place.tile.mine.0 + i;
            k.if_(row.lt(p.m), || {
                let of_row = scaled.rows(k.lit(0u32), &|_| row);
                for (pair, sums) in (0..).zip(sums.chunks_exact(2)) {
                    let col = place.col + place.tile.mine.1 + 2 * pair;
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
