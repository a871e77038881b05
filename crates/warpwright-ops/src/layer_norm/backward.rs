//! The backward kernels: persistent blocks that walk over rows and keep the parameters' gradients, their sum, and the
//! two kernels for rows that no block can keep.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{COLUMN_SUM_LANES, column_sums, kernel_args};

use super::RowNorm;
use super::kernel::{add_pairs, has, hold, load_or, present};
use super::tuning::{LONG_COLUMN_THREADS, Layout};

kernel_args! {
    /// `dx = (g - mean(g) - xhat mean(g xhat)) rstd + dz` with `g = dy weight`, and a row of partial sums a block.
    pub(super) struct BackwardArgs => BackwardParams {
        x: In<Elem>, dy: In<Elem>, dz: In<Elem>, weight: In<Elem>, mean: In<Elem>, rstd: In<Elem>,
        dx: Out<Elem>, partials: Out<Elem>, rows: u64, len: u32, inverse_len: f64, present: u32,
    }
}

/// The persistent kernel of rows in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backward {
    pub(super) norm: RowNorm,
    pub(super) dtype: DType,
    pub(super) layout: Layout,
    /// Whether there are parameters that want gradients.
    pub(super) parameters: bool,
}

/// One row in the loop over rows.
#[derive(Clone)]
struct RowData<'k, A: Float> {
    x: Vec<Packed<'k, A>>,
    dy: Vec<Packed<'k, A>>,
    mean: Reg<'k, A>,
    rstd: Reg<'k, A>,
}
carry!(RowData<A: Float> { x, dy, mean, rstd });

fn dtypes(dtype: DType) -> DTypes {
    DTypes::all(dtype).accumulated(["mean", "rstd", "partials"])
}

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        let parameters = if self.parameters { "_parameters" } else { "" };
        KernelSpec::new(
            format!("{}_backward{parameters}_{}_{}", self.norm.name(), self.dtype, self.layout.name()),
            BlockDim::x(self.layout.threads),
        )
        .dtypes(dtypes(self.dtype))
        .min_blocks_per_sm((self.layout.resident > 0).then_some(self.layout.resident))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        k.start_next_grid();
        let Self { norm, layout, parameters, .. } = *self;
        let (_, held) = hold(k, layout, a.len);
        let per_block = layout.rows();
        let group = k.thread_idx() / layout.group;
        let row_of = |base: U64<'k>| if per_block == 1 { base } else { base + group.to_u64() };
        let load = |row: U64<'k>, valid: Option<Pred<'k>>| -> RowData<'k, A> {
            let start = row * a.len.to_u64();
            let zero = k.lit::<A>(0.0);
            let x = held.load_or_zero(a.x.at(start), valid);
            let dy = held.load_or_zero(a.dy.at(start), valid);
            let statistics = || row_statistics::<A>(k, norm, a, row);
            let (mean, rstd) = match valid {
                Some(valid) => k.if_else(valid, statistics, || (zero, zero)),
                None => statistics(),
            };
            RowData { x, dy, mean, rstd }
        };
        let weight = load_or::<A>(&held, a.weight, has(a.present, present::WEIGHT), 1.0);
        let zeros = |wanted: bool| -> Vec<Lanes<'k, A>> {
            let vectors = if wanted { layout.vectors } else { 0 };
            (0..vectors).map(|_| Lanes::constant(k, 0.0, layout.width)).collect()
        };
        let sums = (zeros(parameters), zeros(parameters && norm == RowNorm::Layer));
        let first = k.block_idx_x().mul_wide(per_block);
        let step = k.grid_dim_x().mul_wide(per_block);
        // There are no more blocks than rows, but a block may have more groups.
        let row = row_of(first);
        let state = (load(row, (per_block > 1).then(|| row.lt(a.rows))), sums);
        let (_, (dweight, dbias)) = k.fold(k.range(first, a.rows, step), state, |base, (now, sums)| {
            let row = row_of(base);
            let after = row_of(base + step);
            let next = load(after, Some(after.lt(a.rows)));
            let sums = self.one_row(k, a, &held, row, &now, &weight, sums);
            (next, sums)
        });
        if parameters {
            let capacity = layout.group * layout.width * layout.vectors;
            let slots = (per_block > 1).then(|| k.shared::<A>(capacity * per_block));
            let row = k.block_idx_x().to_u64() * a.len.to_u64();
            let bias_row = row + k.grid_dim_x().to_u64() * a.len.to_u64();
            let write = |sums: &[Lanes<'k, A>], row| self.write(k, a, &held, slots, sums, row);
            k.if_(has(a.present, present::WEIGHT), || write(&dweight, row));
            if norm == RowNorm::Layer {
                k.if_(has(a.present, present::BIAS), || {
                    if slots.is_some() {
                        // What the slots hold of `dweight` has been read.
                        k.barrier();
                    }
                    write(&dbias, bias_row);
                });
            }
        }
    }
}

impl Backward {
    /// `dx` of one row; the sums with what the row adds.
    #[allow(clippy::too_many_arguments, reason = "the parts of the loop's body")]
    fn one_row<'k, A: Float>(
        &self,
        k: K<'k>,
        a: BackwardParams<'k>,
        held: &HeldVectors<'k>,
        row: U64<'k>,
        now: &RowData<'k, A>,
        weight: &[Packed<'k, A>],
        (dweight, dbias): (Vec<Lanes<'k, A>>, Vec<Lanes<'k, A>>),
    ) -> (Vec<Lanes<'k, A>>, Vec<Lanes<'k, A>>) {
        let xhat = |i: usize| {
            now.x[i].lanes().map(|x| match self.norm {
                RowNorm::Layer => (x - now.mean) * now.rstd,
                RowNorm::Rms => x * now.rstd,
            })
        };
        let g = |i: usize| now.dy[i].lanes() * weight[i].lanes();
        let inverse = a.inverse_len.convert::<A>();
        let along = held.dot(|i| (g(i), xhat(i)));
        let (level, along) = match self.norm {
            RowNorm::Layer => {
                let level = held.sum(g);
                k.group_combine(self.layout.group, (level, along), add_pairs)
            }
            RowNorm::Rms => (k.lit(0.0), k.group_combine(self.layout.group, along, |a, b| a + b)),
        };
        let factor = -(inverse * now.rstd);
        let (level, along) = (level * factor, along * factor);
        let valid = (self.layout.rows() > 1).then(|| row.lt(a.rows));
        let start = row * a.len.to_u64();
        let (to, added) = (held.first(a.dx.at(start)), held.first(a.dz.at(start)));
        held.each(valid, |i, at| {
            let dx = g(i).zip(xhat(i), |g, h| {
                let centered = match self.norm {
                    RowNorm::Layer => g.mul_add(now.rstd, level),
                    RowNorm::Rms => g * now.rstd,
                };
                h.mul_add(along, centered)
            });
            let with_dz = || &dx + added.at(at).load::<A>(self.layout.width);
            to.at(at).store(k.if_else(has(a.present, present::DZ), with_dz, || dx.clone()));
        });
        let dy = |i: usize| now.dy[i].lanes();
        let dweight = dweight.into_iter().enumerate().map(|(i, sum)| dy(i).mul_add(xhat(i), sum)).collect();
        let dbias = dbias.into_iter().enumerate().map(|(i, sum)| sum + dy(i)).collect();
        (dweight, dbias)
    }

    /// The block's row of partial sums; of several groups by way of `slots` in shared memory.
    fn write<'k, A>(
        &self,
        k: K<'k>,
        a: BackwardParams<'k>,
        held: &HeldVectors<'k>,
        slots: Option<Ptr<'k, Shared, A>>,
        sums: &[Lanes<'k, A>],
        start: U64<'k>,
    ) where
        A: Accumulate,
    {
        let layout = self.layout;
        let to = a.partials.at(start);
        let Some(slots) = slots else {
            held.each(None, |i, at| held.first(to).at(at).store(sums[i].clone()));
            return;
        };
        let capacity = layout.group * layout.width * layout.vectors;
        let own = held.first(slots.at((k.thread_idx() / layout.group) * capacity));
        for (i, sum) in sums.iter().enumerate() {
            own.at(held.offset(i)).store(sum.clone());
        }
        k.barrier();
        let add_up = |column: U32<'k>| {
            let of_groups = (0..layout.rows()).map(|g| slots.at(column + g * capacity).get());
            let sum = of_groups.collect::<Lanes<'k, A>>().sum();
            sum.into_iter().for_each(|sum| to.at(column).set(sum));
        };
        if capacity <= layout.threads {
            k.if_(k.thread_idx().lt(a.len), || add_up(k.thread_idx()));
        } else {
            k.for_each(k.block_strided_u32(a.len, 1), add_up);
        }
    }
}

/// `dx` of rows of any length, one block a row, which is read twice.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongRows {
    pub(super) norm: RowNorm,
    pub(super) dtype: DType,
    pub(super) layout: Layout,
}

impl AccumulateKernel for LongRows {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("{}_backward_{}_{}", self.norm.name(), self.dtype, self.layout.name()),
            BlockDim::x(self.layout.threads),
        )
        .dtypes(dtypes(self.dtype))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        k.start_next_grid();
        let Layout { threads, width, .. } = self.layout;
        let row = k.block_idx_x().to_u64();
        let start = row * a.len.to_u64();
        let (mean, rstd) = row_statistics::<A>(k, self.norm, a, row);
        let weight = has(a.present, present::WEIGHT);
        let own = || k.block_strided_u32(a.len, width);
        // `g` and `xhat` of one vector.
        let load = |i: U32<'k>| -> (Lanes<'k, A>, Lanes<'k, A>) {
            let (x, dy) = (a.x.at(start).at(i).load::<A>(width), a.dy.at(start).at(i).load::<A>(width));
            let g = k.if_else(weight, || &dy * a.weight.at(i).load::<A>(width), || dy.clone());
            (g, x.map(|x| (x - mean) * rstd))
        };
        let zero = k.lit::<A>(0.0);
        let total = |lanes: Lanes<'k, A>| lanes.sum().unwrap_or(zero);
        let sums = k.fold(own(), (zero, zero), |i, sums| {
            let (g, h) = load(i);
            let along = total(&g * h);
            add_pairs(sums, (total(g), along))
        });
        let (level, along) = k.group_combine_once(threads, sums, add_pairs);
        let inverse = a.inverse_len.convert::<A>();
        let (level, along) = (level * inverse, along * inverse);
        k.for_each(own(), |i| {
            let (g, h) = load(i);
            let dx = g.zip(h, |g, h| {
                let centered = if self.norm == RowNorm::Layer { g - level } else { g };
                (-h).mul_add(along, centered) * rstd
            });
            let with_dz = || &dx + a.dz.at(start).at(i).load::<A>(width);
            let dx = k.if_else(has(a.present, present::DZ), with_dz, || dx.clone());
            a.dx.at(start).at(i).store(dx);
        });
    }
}

/// Mean and reciprocal standard deviation of a row; the mean of the root mean square is 0.
fn row_statistics<'k, A: Float>(
    k: K<'k>,
    norm: RowNorm,
    a: BackwardParams<'k>,
    row: U64<'k>,
) -> (Reg<'k, A>, Reg<'k, A>) {
    let mean = if norm == RowNorm::Layer { a.mean.at(row).get() } else { k.lit(0.0) };
    (mean, a.rstd.at(row).get())
}

/// Partial sums for the parameters of long rows: a thread for each column, a share of the rows for each block along y.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongColumns {
    pub(super) norm: RowNorm,
    pub(super) dtype: DType,
    pub(super) width: u32,
}

impl AccumulateKernel for LongColumns {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("{}_backward_columns_{}_x{}", self.norm.name(), self.dtype, self.width),
            BlockDim::x(LONG_COLUMN_THREADS),
        )
        .dtypes(dtypes(self.dtype))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        k.overlap_grids();
        let width = self.width;
        let column = (k.block_idx_x() * LONG_COLUMN_THREADS + k.thread_idx()) * width;
        let len = a.len.to_u64();
        k.if_(column.lt(a.len), || {
            let none = || Lanes::constant(k, 0.0, width);
            let rows = k.range(k.block_idx_y().to_u64(), a.rows, k.grid_dim_y().to_u64());
            let (dweight, dbias) = k.fold(rows, (none(), none()), |row, (dweight, dbias)| {
                let (mean, rstd) = row_statistics::<A>(k, self.norm, a, row);
                let start = row * len;
                let x = a.x.at(start).at(column).load::<A>(width);
                let dy = a.dy.at(start).at(column).load::<A>(width);
                let h = x.map(|x| (x - mean) * rstd);
                (dy.mul_add(h, dweight), dbias + dy)
            });
            let row = k.block_idx_y().to_u64() * len;
            let store = |sums: Lanes<'k, A>, row: U64<'k>| {
                a.partials.at(row).at(column).store(sums);
            };
            k.if_(has(a.present, present::WEIGHT), || store(dweight, row));
            if self.norm == RowNorm::Layer {
                k.if_(has(a.present, present::BIAS), || store(dbias, row + k.grid_dim_y().to_u64() * len));
            }
        });
    }
}

kernel_args! {
    /// Sums of the columns of one or two matrices of partial sums, `dweight` first.
    pub(super) struct ParameterArgs => ParameterParams {
        partials: In<Elem>, dweight: Out<Elem>, dbias: Out<Elem>, partial_rows: u32, len: u64, first: u32,
    }
}

/// The second step: a block along y of the grid for each of `dweight` and `dbias` that there is, from `first` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParameterSums {
    pub(super) dtype: DType,
    /// Rows of partial sums that a block adds up at once.
    pub(super) depth: u32,
}

impl AccumulateKernel for ParameterSums {
    type Args = ParameterArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("norm_parameter_sums_{}_d{}", self.dtype, self.depth),
            BlockDim::xy(COLUMN_SUM_LANES, self.depth),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["partials"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ParameterParams<'k>) {
        k.after_previous_grid();
        let which = k.block_idx_y() + a.first;
        let partials = a.partials.at(which.mul_wide(a.partial_rows) * a.len);
        column_sums::<A, _, _>(k, partials, a.partial_rows, a.len, |column, sum| {
            k.if_else(which.eq(0), || a.dweight.at(column).set(sum), || a.dbias.at(column).set(sum));
        });
    }
}
