//! The kernel on tensor cores of sm_90a, and what scales are to sums.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use crate::gemm::engine::{self, Blocks, Epilogue, Factors, Store, WorkArgs, WorkParams};
use crate::gemm::epilogue::{Even, Program, ResultParams};
use crate::gemm::tuning::PersistentConfig;
use crate::quantize8::{BLOCK, Format, Scaling};

kernel_args! {
    /// `y = activation(scale_a scale_b a b^T + bias)`
    pub(super) struct ScaledArgs => ScaledParams { work: WorkArgs, scale_a: In<f32>, scale_b: In<f32> }
}

/// Columns that certainly share a scale of 128 x 128 elements, wherever a tile begins.
const GROUP: u32 = 64;

/// The scales that there are, and whether sums of 128 products are added in f32 without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scales {
    /// Of `a`.
    pub a: Option<Scaling>,
    /// Of `b`.
    pub b: Option<Scaling>,
    /// Whether sums of 128 products are added in f32 although no scale asks for it.
    pub promotes: bool,
}

impl Scales {
    /// Whether threads add the sums of slices.
    pub const fn by_slices(self) -> bool {
        self.promotes || is_of_blocks(self.a) || is_of_blocks(self.b)
    }

    /// A part of a kernel's name.
    pub(super) fn name(self) -> String {
        let name = |scaling: Option<Scaling>| scaling.map_or("one", Scaling::name);
        let promotes = if self.promotes { "_promoted" } else { "" };
        format!("{}_{}{promotes}", name(self.a), name(self.b))
    }
}

/// Whether there are several scales along the common dimension.
const fn is_of_blocks(scaling: Option<Scaling>) -> bool {
    matches!(scaling, Some(Scaling::BlockWise1x128 | Scaling::BlockWise128x128))
}

/// A product on tensor cores.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScaledGemm {
    pub(super) a: Format,
    pub(super) b: Format,
    pub(super) y: DType,
    pub(super) config: PersistentConfig,
    pub(super) program: Program,
    pub(super) scales: Scales,
    pub(super) store: Store,
}

impl ScaledGemm {
    pub(super) fn blocks(&self) -> Blocks {
        let Self { a, b, y, config, store, .. } = *self;
        let (of_a, _) = config.tiles(a.dtype(), Major::K, Major::K);
        let (_, of_b) = config.tiles(b.dtype(), Major::K, Major::K);
        let part_of_b = config.part_of_b(b.dtype(), Major::K);
        Blocks { slices: (of_a, of_b), part_of_b, y, config, store, planes: None, turns: false }
    }
}

/// The name of a kernel, `layout` after the formats and the type of results.
pub(super) fn name(
    (a, b, y): (Format, Format, DType),
    layout: &str,
    scales: Scales,
    program: Program,
) -> String {
    format!("scaled_gemm_{}_{}_{y}_{layout}_{}{}", a.name(), b.name(), scales.name(), program.name())
}

impl KernelDef for ScaledGemm {
    type Args = ScaledArgs;

    fn spec(&self) -> KernelSpec {
        let rows = if self.store == Store::Rows { "_rows" } else { "" };
        let layout = format!("{}{rows}", self.config.name());
        let name = name((self.a, self.b, self.y), &layout, self.scales, self.program);
        KernelSpec::new(name, BlockDim::x(self.blocks().threads()))
            .dtypes(DTypes::all(engine::stored(self.y)))
            .cluster(self.config.cluster)
            .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, p: ScaledParams<'k>) {
        let WorkParams { m, n, steps, ldy, .. } = p.work;
        let scaled = Scaled {
            program: self.program,
            scales: self.scales,
            cols: self.config.cols,
            sizes: (m, n, ldy),
            steps,
            scale_a: p.scale_a,
            scale_b: p.scale_b,
        };
        self.blocks().record(k, p.work, None, &scaled);
    }
}

/// Sums times their scales, and the rest of the epilogue.
pub(super) struct Scaled<'k> {
    pub(super) program: Program,
    pub(super) scales: Scales,
    /// Columns of a tile.
    pub(super) cols: u32,
    /// Rows, columns, and elements from one row of `y` to the next.
    pub(super) sizes: (U32<'k>, U32<'k>, U64<'k>),
    /// Blocks of 128 along the common dimension.
    pub(super) steps: U32<'k>,
    pub(super) scale_a: Ptr<'k, Read, f32>,
    pub(super) scale_b: Ptr<'k, Read, f32>,
}

impl<'k> Scaled<'k> {
    /// The scale at `at`, 0 unless it is `there`.
    fn load(from: Ptr<'k, Read, f32>, at: U64<'k>, there: Pred<'k>) -> F32<'k> {
        from.at(at).only_where(there, Fill::Zero).get::<f32>()
    }

    /// The scale of a row, `of` so many, in block `step` along it.
    fn of_block(
        &self,
        (scaling, from): (Option<Scaling>, Ptr<'k, Read, f32>),
        (row, of): (U32<'k>, U32<'k>),
        step: U32<'k>,
    ) -> Option<F32<'k>> {
        let at = match scaling {
            Some(Scaling::BlockWise1x128) => step.mul_wide(of) + row.to_u64(),
            Some(Scaling::BlockWise128x128) => (row / BLOCK as u32).mul_wide(self.steps) + step.to_u64(),
            _ => return None,
        };
        Some(Self::load(from, at, row.lt(of)))
    }
}

impl<'k> Epilogue<'k> for Scaled<'k> {
    /// The scales of the two rows.
    type Rows = Option<[F32<'k>; 2]>;

    fn rows(&self, _: U32<'k>, row: &dyn Fn(u32) -> U32<'k>) -> Self::Rows {
        let scale = |row: U32<'k>| Self::load(self.scale_a, row.to_u64(), row.lt(self.sizes.0));
        match self.scales.a {
            Some(Scaling::RowWise) => Some([scale(row(0)), scale(row(8))]),
            Some(Scaling::TensorWise) => Some([self.scale_a.get::<f32>(); 2]),
            _ => None,
        }
    }

    fn pair(
        &self,
        to: &ResultParams<'k>,
        rows: &Self::Rows,
        ((row, slot), col): ((U32<'k>, u32), U32<'k>),
        sums: [F32<'k>; 2],
        even: Even,
    ) -> [F32<'k>; 2] {
        let n = self.sizes.1;
        let mut values = sums;
        if let Some(rows) = rows {
            values = values.map(|value| value * rows[(slot / 8) as usize]);
        }
        let of_cols = match self.scales.b {
            Some(Scaling::RowWise) => {
                Some([0, 1].map(|i| Self::load(self.scale_b, (col + i).to_u64(), (col + i).lt(n))))
            }
            Some(Scaling::TensorWise) => Some([self.scale_b.get::<f32>(); 2]),
            _ => None,
        };
        if let Some(of_cols) = of_cols {
            values = [0, 1].map(|i| values[i] * of_cols[i]);
        }
        let k = row.k();
        let factors = (k.lit(1.0f32), k.lit(0.0f32));
        self.program.pair(to, self.sizes, factors, (row, col), (values, None), even)
    }

    fn promotes(&self) -> bool {
        self.scales.by_slices()
    }

    fn load_factors(
        &self,
        step: U32<'k>,
        row: &dyn Fn(u32) -> U32<'k>,
        col: U32<'k>,
        right: U32<'k>,
    ) -> Vec<F32<'k>> {
        let (m, n, _) = self.sizes;
        let (a, b) = ((self.scales.a, self.scale_a), (self.scales.b, self.scale_b));
        let of_rows = [0, 8].into_iter().filter_map(|down| self.of_block(a, (row(down), m), step));
        let mut all: Vec<_> = if is_of_blocks(self.scales.a) { of_rows.collect() } else { Vec::new() };
        let of_col = |col: U32<'k>| self.of_block(b, (col, n), step);
        match self.scales.b {
            Some(Scaling::BlockWise128x128) => {
                all.extend((0..self.cols.div_ceil(GROUP)).filter_map(|group| of_col(col + group * GROUP)));
            }
            Some(Scaling::BlockWise1x128) => {
                let pairs = (0..self.cols / 8).flat_map(|pair| [pair * 8, pair * 8 + 1]);
                all.extend(pairs.filter_map(|further| of_col(col + right + further)));
            }
            _ => {}
        }
        all
    }

    fn factors(&self, loaded: &[F32<'k>]) -> Factors<'k> {
        let (of_rows, of_cols) = loaded.split_at(if is_of_blocks(self.scales.a) { 2 } else { 0 });
        let (of_rows, of_cols) = (of_rows.to_vec(), of_cols.to_vec());
        let times = move |slot: u32, col: F32<'k>| of_rows.get(slot as usize).map_or(col, |row| *row * col);
        match self.scales.b {
            Some(Scaling::BlockWise128x128) => {
                let groups: Vec<_> = of_cols.iter().map(|col| [0, 1].map(|slot| times(slot, *col))).collect();
                Box::new(move |down, right| Some([groups[(right / GROUP) as usize][(down / 8) as usize]; 2]))
            }
            Some(Scaling::BlockWise1x128) => Box::new(move |down, right| {
                let first = (right / 8 * 2) as usize;
                Some([0, 1].map(|i| times(down / 8, of_cols[first + i])))
            }),
            _ => {
                let of_rows = loaded.to_vec();
                Box::new(move |down, _| of_rows.get((down / 8) as usize).map(|factor| [*factor; 2]))
            }
        }
    }
}
