//! Copies of matrices whose rows begin at multiples of 16 bytes, for products that read their operands so.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, kernel_args};
use warpwright_runtime::LaunchStep;

use super::tuning::{self, Choice, Config, Sums};
use super::{GemmArgs, GemmDesc, LINE, MAX_LAYERS, OP, WIDE, epilogue};
use crate::PlanError;
use crate::plan::{self, small};

kernel_args! {
    /// `y[batch][row][col] = x[batch][row][col]`, zeros where `x` has no column.
    pub(super) struct PackArgs => PackParams {
        x: In<Elem>, y: Out<Elem>,
        rows: u32, cols: u32,
        /// Elements from one row to the next.
        ldx: u64, ldy: u64,
        /// Elements from one matrix to the next.
        stride_x: u64, stride_y: u64,
    }
}

/// Threads of a block, each with a vector of a row.
pub(super) const THREADS: u32 = 128;
/// Neighbouring rows of a thread: with one, blocks end before the next have begun.
const ROWS: u32 = 4;

/// Rows that begin anywhere to rows that begin at multiples of 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pack {
    pub(super) dtype: DType,
}

impl Pack {
    /// Elements of a vector.
    pub(super) const fn width(self) -> u32 {
        WIDE as u32 / self.dtype.bytes() as u32
    }
}

impl AccumulateKernel for Pack {
    type Args = PackArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("gemm_pack_{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: PackParams<'k>) {
        let width = self.width();
        let vector = k.block_idx_x() * THREADS + k.thread_idx();
        let col = vector * width;
        let batch = k.block_idx_z().to_u64();
        let (x, y) = (p.x.at(batch * p.stride_x), p.y.at(batch * p.stride_y));
        // Whole warps stay together: lanes take words of their neighbours.
        let first_col = (vector - k.lane_idx()) * width;
        k.if_(first_col.lt(p.cols), || {
            let first = k.block_idx_y() * ROWS;
            k.for_each(k.range(first, p.rows, k.grid_dim_y() * ROWS), |row| {
                let windows: Vec<_> = (0..ROWS)
                    .map(|down| {
                        let row = row + down;
                        Window::load(x.at(row.to_u64() * p.ldx), (row.lt(p.rows), p.cols), vector)
                    })
                    .collect();
                for (down, window) in (0..).zip(windows) {
                    let row = row + down;
                    let to = y.at(row.to_u64() * p.ldy + col.to_u64());
                    let words = window.words();
                    let there = row.lt(p.rows) & col.lt(p.cols);
                    k.if_(there & window.whole, || to.cast::<u32>().store(words));
                    k.if_(there & !window.whole, || {
                        let from = x.at(row.to_u64() * p.ldx + col.to_u64());
                        let value = |i: u32| {
                            let inside = (col + i).lt(p.cols);
                            from.at(u64::from(i)).only_where(inside, Fill::Zero).get::<A>()
                        };
                        to.store(Lanes::from((0..width).map(value).collect::<Vec<_>>()));
                    });
                }
            });
        });
    }
}

/// The launch that packs matrices, whose rows and which themselves begin so many elements apart.
pub(crate) fn pack(
    target: Target,
    dtype: DType,
    [rows, cols, matrices]: [usize; 3],
    (x, (ldx, stride_x)): (In<Elem>, (usize, usize)),
    (y, (ldy, stride_y)): (Out<Elem>, (usize, usize)),
) -> Result<LaunchStep, PlanError> {
    let def = Pack { dtype };
    let values = PackArgs {
        x,
        y,
        rows: small(rows),
        cols: small(cols),
        ldx: ldx as u64,
        ldy: ldy as u64,
        stride_x: stride_x as u64,
        stride_y: stride_y as u64,
    };
    let across = plan::cover(OP, cols.div_ceil(def.width() as usize), THREADS)?;
    let grid = [
        across.map_or(1, |grid| grid[0]),
        small(rows.div_ceil(ROWS as usize).min(MAX_LAYERS)),
        small(matrices),
    ];
    plan::launch(OP, &def, values, target, grid)
}

/// Words of a vector.
const WORDS: usize = 4;

/// The 16 bytes of a row that a lane stores, from the two aligned vectors that have them: its own, and that of the next lane.
struct Window<'k> {
    /// Whether both vectors end in the row.
    whole: Pred<'k>,
    own: Lanes<'k, u32>,
    /// The second vector of the last lane.
    last: Lanes<'k, u32>,
    /// Bytes of the first vector in front of the window.
    before: U32<'k>,
}

impl<'k> Window<'k> {
    /// Loads the vectors of window `number` of the row at `row`, if it is there.
    fn load(row: Ptr<'k, Read, Elem>, (there, cols): (Pred<'k>, U32<'k>), number: U32<'k>) -> Self {
        let k = number.k();
        let bytes = row.dtype().bytes() as u64;
        let before = row.address().to_u32() & (WIDE as u32 - 1);
        let first = number.to_u64() * WIDE;
        // Of the row and what is in front of it.
        let end = cols.to_u64() * bytes + before.to_u64();
        let ends = |vectors: u64| there & (first + vectors * WIDE).le(end);
        let aligned = row.cast::<u8>().at(k.lit(0u64) - before.to_u64()).at(first).cast::<u32>();
        let whole = ends(2);
        let own = aligned.only_where(ends(1), Fill::Zero).load::<u32>(WORDS as u32);
        let is_last = whole & k.lane_idx().eq(WARP - 1);
        let last = aligned.at(WORDS as u64).only_where(is_last, Fill::Zero).load::<u32>(WORDS as u32);
        Self { whole, own, last, before }
    }

    /// The words of the window, for all lanes of a warp.
    fn words(&self) -> Lanes<'k, u32> {
        let k = self.before.k();
        let is_last = k.lane_idx().eq(WARP - 1);
        let next = self.own.iter().zip(self.last.iter()).map(|(own, last)| {
            let next = own.shfl_down(1u32);
            is_last.select(last, next)
        });
        let all: Vec<_> = self.own.iter().chain(next).collect();
        // By two words, one, and half a word.
        let moved = |words: &[U32<'k>], by: usize, len: usize| {
            let here = (self.before & (4 * by as u32)).ne(0);
            (0..len).map(|i| here.select(words[i + by], words[i])).collect::<Vec<_>>()
        };
        let words = moved(&moved(&all, 2, WORDS + 2), 1, WORDS + 1);
        let bits = (self.before & 3) * 8;
        words.windows(2).map(|pair| pair[0].funnel_shr(pair[1], bits)).collect::<Vec<_>>().into()
    }
}

/// Where kernels read an operand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// The tensor itself.
    Tensor,
    /// A packed copy, from this byte of the workspace on.
    Workspace(u64),
}

/// Where kernels read both operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands {
    pub(super) a: Source,
    pub(super) b: Source,
}

impl Operands {
    /// As they are.
    pub(super) const GIVEN: Self = Self { a: Source::Tensor, b: Source::Tensor };
}

/// A product of operands of which at least one is packed before.
pub(super) struct Packed {
    /// The product of the packed matrices.
    product: GemmDesc,
    choice: Choice,
    operands: Operands,
    /// Elements of the workspace.
    pub(super) scratch: usize,
}

impl Packed {
    pub(super) const fn choice(&self) -> Choice {
        self.choice
    }
}

impl GemmDesc {
    /// The product of operands that are packed before, by the kernel of `config` or, if that takes less time than the one of `narrow`,
    /// which reads them as they are, by the fastest.
    pub(super) fn packed(
        &self,
        target: Target,
        config: Option<Config>,
        narrow: Choice,
    ) -> Result<Option<Packed>, PlanError> {
        if self.m == 0 || self.n == 0 || self.k == 0 || self.batch == 0 || self.batch > MAX_LAYERS {
            return Ok(None);
        }
        let mut product = self.clone();
        let mut elements = [0usize; 2];
        let sides = [
            (&mut product.lda, &mut product.stride_a, self.stored().0),
            (&mut product.ldb, &mut product.stride_b, self.stored().1),
        ];
        for ((leading, stride, [rows, cols]), elements) in sides.into_iter().zip(&mut elements) {
            if self.is_aligned(*leading, *stride) {
                continue;
            }
            *leading = cols.next_multiple_of(LINE / self.dtype.bytes());
            let matrix = rows.saturating_mul(*leading);
            *stride = if *stride == 0 { 0 } else { matrix };
            let matrices = if *stride == 0 { 1 } else { self.batch };
            *elements = matrix.saturating_mul(matrices);
        }
        let choice = if let Some(config) = config {
            tuning::share(target, self.shape(), config)
        } else {
            let choice = product.choose(target, true, Sums::Whole)?;
            let dtype = (self.dtype, self.precision);
            let copied =
                (elements[0].saturating_add(elements[1]) as u64).saturating_mul(self.dtype.bytes() as u64);
            let us = tuning::pack_us(copied) + tuning::us(dtype, target, self.shape(), choice);
            let narrow_us = tuning::narrow_us(dtype, target, self.shape(), narrow);
            if us >= narrow_us || narrow_us < tuning::LEAST_NARROW_US {
                return Ok(None);
            }
            choice
        };
        // Behind the sums of parts.
        let sums = epilogue::sums_dtype(self.dtype).bytes();
        let partials = product.partials(target, choice)?;
        let first = partials.saturating_mul(sums).next_multiple_of(WIDE as usize);
        let [a, b] =
            elements.map(|len| len.saturating_mul(self.dtype.bytes()).next_multiple_of(WIDE as usize));
        let end = first.checked_add(a).and_then(|end| end.checked_add(b));
        let Some(end) = end.filter(|end| i64::try_from(*end).is_ok()) else { return Ok(None) };
        let source = |len: usize, offset: usize| match len {
            0 => Source::Tensor,
            _ => Source::Workspace(offset as u64),
        };
        let operands = Operands { a: source(a, first), b: source(b, first + a) };
        Ok(Some(Packed { product, choice, operands, scratch: end.div_ceil(sums) }))
    }

    /// The launches that pack, and those of the product.
    pub(super) fn steps_packed(
        &self,
        target: Target,
        packed: &Packed,
        steps: &mut Vec<LaunchStep>,
    ) -> Result<(), PlanError> {
        let Packed { product, choice, operands, .. } = packed;
        let (a, b) = self.stored();
        let sides = [
            (operands.a, GemmArgs::a.arg(), a, (self.lda, self.stride_a), (product.lda, product.stride_a)),
            (operands.b, GemmArgs::b.arg(), b, (self.ldb, self.stride_b), (product.ldb, product.stride_b)),
        ];
        for (source, x, [rows, cols], (ldx, stride_x), (ldy, stride_y)) in sides {
            let Source::Workspace(offset) = source else { continue };
            let matrices = if stride_x == 0 { 1 } else { self.batch };
            let to = (GemmArgs::workspace.arg_at(offset), (ldy, stride_y));
            steps.push(pack(target, self.dtype, [rows, cols, matrices], (x, (ldx, stride_x)), to)?);
        }
        product.steps(target, *choice, *operands, steps)
    }
}
