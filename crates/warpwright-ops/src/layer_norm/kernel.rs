//! The forward kernels: rows in registers, and rows of any length in two passes.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::RowNorm;
use super::tuning::Layout;

kernel_args! {
    /// `y = (z - mean) rstd weight + bias` with `z = x + residual`.
    pub(super) struct ForwardArgs => ForwardParams {
        x: In<Elem>, residual: In<Elem>, weight: In<Elem>, bias: In<Elem>,
        y: Out<Elem>, z: InOut<Elem>, mean: Out<Elem>, rstd: Out<Elem>,
        rows: u64, len: u32, inverse_len: f64, eps: f64, present: u32,
    }
}

/// Bits of `present`: which of the optional tensors there are.
pub(super) mod present {
    pub(in super::super) const WEIGHT: u32 = 1;
    pub(in super::super) const BIAS: u32 = 2;
    pub(in super::super) const RESIDUAL: u32 = 4;
    pub(in super::super) const STATISTICS: u32 = 8;
    pub(in super::super) const DZ: u32 = 16;
}

/// Whether a bit of `present` is set.
pub(super) fn has<'k>(present: U32<'k>, bit: u32) -> Pred<'k> {
    (present & bit).eq(bit)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Forward {
    pub(super) norm: RowNorm,
    pub(super) dtype: DType,
    pub(super) layout: Layout,
}

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("{}_{}_{}", self.norm.name(), self.dtype, self.layout.name()),
            BlockDim::x(self.layout.threads),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["mean", "rstd"]))
        .min_blocks_per_sm((self.layout.resident > 0).then_some(self.layout.resident))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        if self.layout.vectors == 0 {
            self.any_length::<A>(k, a);
        } else {
            self.in_registers::<A>(k, a);
        }
    }
}

/// The thread's number among those of its row, and its vectors of the row, from the row's first element on.
pub(super) fn hold<'k>(k: K<'k>, layout: Layout, len: U32<'k>) -> (U32<'k>, HeldVectors<'k>) {
    let Layout { threads, group, width, vectors, .. } = layout;
    let member = if group == threads { k.thread_idx() } else { k.thread_idx() & (group - 1) };
    let first = member * width;
    let inside = (0..vectors).map(|i| (first + i * group * width).lt(len)).collect();
    (member, HeldVectors::new(k, first, group * width, width, inside))
}

/// The thread's vectors of a parameter, `otherwise` if it is absent.
pub(super) fn load_or<'k, A: Float>(
    row: &HeldVectors<'k>,
    parameter: Ptr<'k, Read, Elem>,
    present: Pred<'k>,
    otherwise: f64,
) -> Vec<Packed<'k, A>> {
    let k = present.k();
    row.load_or(parameter, Some(present), || {
        let value = Lanes::splat(k.lit::<A>(otherwise), row.width());
        Packed::round(k, parameter.dtype(), value)
    })
}

/// The sum of two pairs.
pub(super) fn add_pairs<'k, A: Float>(
    a: (Reg<'k, A>, Reg<'k, A>),
    b: (Reg<'k, A>, Reg<'k, A>),
) -> (Reg<'k, A>, Reg<'k, A>) {
    (a.0 + b.0, a.1 + b.1)
}

/// The statistics that normalize a row.
#[derive(Clone, Copy)]
struct RowStatistics<'k, A: Float> {
    /// Near the mean, so that differences from it are exact where the mean is large.
    shift: Reg<'k, A>,
    /// The rounding error of the mean.
    drift: Reg<'k, A>,
    rstd: Reg<'k, A>,
}

impl<'k, A: Float> RowStatistics<'k, A> {
    fn normalize(&self, norm: RowNorm, z: Reg<'k, A>) -> Reg<'k, A> {
        match norm {
            RowNorm::Layer => (z - self.shift).mul_add(self.rstd, -(self.drift * self.rstd)),
            RowNorm::Rms => z * self.rstd,
        }
    }

    fn save(&self, norm: RowNorm, a: ForwardParams<'k>, row: U64<'k>) {
        if norm == RowNorm::Layer {
            a.mean.at(row).set(self.shift + self.drift);
        }
        a.rstd.at(row).set(self.rstd);
    }
}

/// Sums that a thread of a long row keeps.
const SUMS: u32 = 8;

impl Forward {
    fn in_registers<'k, A: Float>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let Self { norm, dtype, layout } = *self;
        let (member, held) = hold(k, layout, a.len);
        let (row, valid) = rows_of_block(k, layout, a.rows);
        let start = row * a.len.to_u64();
        let x: Vec<Packed<'k, A>> = held.load_or_zero(a.x.at(start), None);
        let z = k.if_else(
            has(a.present, present::RESIDUAL),
            || {
                let residual = held.load_or_zero::<A>(a.residual.at(start), None);
                let sums = x.iter().zip(residual).map(|(x, r)| x.lanes() + r.lanes());
                let sums: Vec<Packed<'k, A>> = sums.map(|sum| Packed::round(k, dtype, sum)).collect();
                let to = held.first(a.z.at(start));
                held.each(valid, |i, at| to.at(at).store_packed(&sums[i]));
                sums
            },
            || x.clone(),
        );
        // Here already, so that they arrive while the row is summed.
        let weight = load_or::<A>(&held, a.weight, has(a.present, present::WEIGHT), 1.0);
        let bias = match norm {
            RowNorm::Layer => load_or::<A>(&held, a.bias, has(a.present, present::BIAS), 0.0),
            RowNorm::Rms => Vec::new(),
        };
        let statistics = self.statistics(k, a, &held, &z);
        let to = held.first(a.y.at(start));
        held.each(valid, |i, at| {
            let xhat = z[i].lanes().map(|z| statistics.normalize(norm, z));
            let weight = weight[i].lanes();
            let y = match bias.get(i) {
                Some(bias) => xhat.mul_add(weight, bias.lanes()),
                None => xhat * weight,
            };
            to.at(at).store(y);
        });
        let first = member.eq(0) & has(a.present, present::STATISTICS);
        k.if_(and(first, valid), || statistics.save(norm, a, row));
    }

    /// Mean first, then the squares of the distances from it, and how far the rounded mean is off.
    fn statistics<'k, A: Float>(
        &self,
        k: K<'k>,
        a: ForwardParams<'k>,
        held: &HeldVectors<'k>,
        z: &[Packed<'k, A>],
    ) -> RowStatistics<'k, A> {
        let group = self.layout.group;
        let (inverse, eps) = (a.inverse_len.convert::<A>(), a.eps.convert::<A>());
        if self.norm == RowNorm::Rms {
            let squares = held.dot(|i| (z[i].lanes(), z[i].lanes()));
            let squares = k.group_combine_once(group, squares, |a, b| a + b);
            let zero = k.lit(0.0);
            return RowStatistics { shift: zero, drift: zero, rstd: squares.mul_add(inverse, eps).rsqrt() };
        }
        let sum = held.sum(|i| z[i].lanes());
        let shift = k.group_combine_once(group, sum, |a, b| a + b) * inverse;
        let distances = |i: usize| z[i].lanes() - shift;
        let mine = (held.sum(distances), held.dot(|i| (distances(i), distances(i))));
        let (distance, squares) = k.group_combine_once(group, mine, add_pairs);
        let drift = distance * inverse;
        let variance = (-drift).mul_add(drift, squares * inverse).maximum(0.0);
        RowStatistics { shift, drift, rstd: (variance + eps).rsqrt() }
    }

    /// One block a row, which is read twice.
    fn any_length<'k, A: Float>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let Self { norm, dtype, layout: Layout { threads, width, .. } } = *self;
        let row = k.block_idx_x().to_u64();
        let start = row * a.len.to_u64();
        let residual = has(a.present, present::RESIDUAL);
        let own = || k.block_strided_u32(a.len, width);
        let (x, added, z) = (a.x.at(start), a.residual.at(start), a.z.at(start));
        // The row as it is normalized; with a residual, written for the second pass.
        let load = |i: U32<'k>| -> Lanes<'k, A> {
            let x = x.at(i).load::<A>(width);
            k.if_else(
                residual,
                || {
                    let sum = Packed::round(k, dtype, &x + added.at(i).load::<A>(width));
                    z.at(i).store_packed(&sum);
                    sum.lanes()
                },
                || x.clone(),
            )
        };
        let (inverse, eps) = (a.inverse_len.convert::<A>(), a.eps.convert::<A>());
        let zero = k.lit::<A>(0.0);
        let statistics = match norm {
            RowNorm::Rms => {
                // Several sums in turn: squares are all positive, so the roundings of one long sum would add up.
                let sums = Lanes::splat(zero, SUMS);
                let sums = k.fold(own(), sums, |i, sums| {
                    let squares = load(i).map(|x| x * x).sum().unwrap_or(zero);
                    let turned = sums.iter().skip(1).chain([sums[0] + squares]);
                    turned.collect::<Vec<_>>().into()
                });
                let squares = sums.sum().unwrap_or(zero);
                let squares = k.group_combine_once(threads, squares, |a, b| a + b);
                RowStatistics { shift: zero, drift: zero, rstd: squares.mul_add(inverse, eps).rsqrt() }
            }
            RowNorm::Layer => {
                // The first element is as near the mean as any; distances from it keep their bits.
                let shift = x.get::<A>();
                let mine = k.fold(own(), Moments::empty(k), |i, m: Moments<'k, A>| {
                    let distances = load(i) - shift;
                    Moments::of(&distances).map_or(m, |of| m.merge(of))
                });
                let all = k.group_combine_once(threads, mine, Moments::merge);
                RowStatistics { shift, drift: all.mean, rstd: (all.variance() + eps).rsqrt() }
            }
        };
        let weight = has(a.present, present::WEIGHT);
        let bias = (norm == RowNorm::Layer).then(|| has(a.present, present::BIAS));
        let ones = || Lanes::constant(k, 1.0, width);
        k.for_each(own(), |i| {
            let z: Lanes<'k, A> =
                k.if_else(residual, || z.at(i).load::<A>(width), || x.at(i).load::<A>(width));
            let w = k.if_else(weight, || a.weight.at(i).load::<A>(width), ones);
            let scaled = z.zip(w, |z, w| statistics.normalize(norm, z) * w);
            let y = match bias {
                Some(bias) => k.if_else(bias, || &scaled + a.bias.at(i).load::<A>(width), || scaled.clone()),
                None => scaled,
            };
            a.y.at(start).at(i).store(y);
        });
        let first = k.thread_idx().eq(0) & has(a.present, present::STATISTICS);
        k.if_(first, || statistics.save(norm, a, row));
    }
}

/// The row of the thread's group, and whether there is one; a group without a row takes the last one and stores
/// nothing. `None` where a block has one row.
fn rows_of_block<'k>(k: K<'k>, layout: Layout, rows: U64<'k>) -> (U64<'k>, Option<Pred<'k>>) {
    let block = k.block_idx_x();
    if layout.rows() == 1 {
        return (block.to_u64(), None);
    }
    let row = block.mul_wide(layout.rows()) + (k.thread_idx() / layout.group).to_u64();
    (row.min(rows - 1), Some(row.lt(rows)))
}

/// Both, the second if it is there.
pub(super) fn and<'k>(a: Pred<'k>, b: Option<Pred<'k>>) -> Pred<'k> {
    b.map_or(a, |b| a & b)
}
