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

    /// The bits of the tensors that are there.
    pub(in super::super) fn bits(tensors: &[(u32, bool)]) -> u32 {
        tensors.iter().filter(|t| t.1).fold(0, |bits, t| bits | t.0)
    }
}

/// Whether a bit of `present` is set.
pub(super) fn has<'k>(present: U32<'k>, bit: u32) -> Pred<'k> {
    (present & bit).eq(bit)
}

/// The type of sums and statistics of tensors of `dtype`.
pub(super) const fn statistics_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
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
        let statistics = statistics_dtype(self.dtype);
        KernelSpec::new(
            format!("{}_{}_{}", self.norm.name(), self.dtype, self.layout.name()),
            BlockDim::x(self.layout.threads),
        )
        .dtypes(DTypes::all(self.dtype).with("mean", statistics).with("rstd", statistics))
        .min_blocks_per_sm((self.layout.resident > 0).then_some(self.layout.resident))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>)
    where
        Elem: Access<A>,
    {
        if self.layout.vectors == 0 {
            self.any_length::<A>(k, a);
        } else {
            self.in_registers::<A>(k, a);
        }
    }
}

/// Where a thread is in its row, and which of its vectors the row has.
pub(super) struct Columns<'k> {
    layout: Layout,
    /// The first element of the thread's first vector.
    pub(super) first: U32<'k>,
    /// Whether the row has the vector.
    pub(super) inside: Vec<Pred<'k>>,
    /// The thread's place in its group.
    pub(super) member: U32<'k>,
}

impl<'k> Columns<'k> {
    pub(super) fn new(k: K<'k>, layout: Layout, len: U32<'k>) -> Self {
        let member =
            if layout.group == layout.threads { k.thread_idx() } else { k.thread_idx() & (layout.group - 1) };
        let first = member * layout.width;
        let inside = (0..layout.vectors).map(|i| (first + i * layout.group * layout.width).lt(len)).collect();
        Self { layout, first, inside, member }
    }

    /// Offset of vector `i` from the thread's first.
    pub(super) fn offset(&self, i: usize) -> u64 {
        i as u64 * u64::from(self.layout.group * self.layout.width)
    }

    /// The thread's vectors of the row that begins at `row`; zeros where there are none, or `valid` does not hold.
    pub(super) fn load<A: Float, S: warpwright_dsl::Readable>(
        &self,
        k: K<'k>,
        row: Ptr<'k, S, Elem>,
        valid: Option<Pred<'k>>,
    ) -> Vec<Packed<'k, A>>
    where
        Elem: Access<A>,
    {
        let from = row.at(self.first);
        let one = |(i, &inside): (usize, &Pred<'k>)| {
            k.if_else(
                valid.map_or(inside, |valid| inside & valid),
                || from.at(self.offset(i)).load_packed(self.layout.width),
                || Packed::zero(k, row.dtype(), self.layout.width),
            )
        };
        self.inside.iter().enumerate().map(one).collect()
    }

    /// The thread's vectors of an optional row, `otherwise` if it is absent.
    pub(super) fn load_or<A: Float>(
        &self,
        k: K<'k>,
        row: Ptr<'k, Read, Elem>,
        present: Pred<'k>,
        otherwise: f64,
    ) -> Vec<Packed<'k, A>>
    where
        Elem: Access<A>,
    {
        let from = row.at(self.first);
        let one = |(i, &inside): (usize, &Pred<'k>)| {
            k.if_else(
                inside & present,
                || from.at(self.offset(i)).load_packed(self.layout.width),
                || {
                    let value = k.lit::<A>(otherwise);
                    Packed::round(k, row.dtype(), (0..self.layout.width).map(|_| value).collect())
                },
            )
        };
        self.inside.iter().enumerate().map(one).collect()
    }

    /// The sum of the products of the thread's vectors, those that the row does not have left out.
    pub(super) fn dot<A: Float>(
        &self,
        k: K<'k>,
        of: impl Fn(usize) -> (Lanes<'k, A>, Lanes<'k, A>),
    ) -> Reg<'k, A> {
        let zero = k.lit::<A>(0.0);
        self.sum(k, |i| {
            let (a, b) = of(i);
            a.iter().zip(b).fold(zero, |sum, (a, b)| a.mul_add(b, sum)).into()
        })
    }

    /// The sum of the thread's vectors, those that the row does not have left out.
    pub(super) fn sum<A: Float>(&self, k: K<'k>, of: impl Fn(usize) -> Lanes<'k, A>) -> Reg<'k, A> {
        let zero = k.lit::<A>(0.0);
        let parts: Lanes<'k, A> = self
            .inside
            .iter()
            .enumerate()
            .map(|(i, &inside)| inside.select(of(i).sum().unwrap_or(zero), zero))
            .collect();
        parts.sum().unwrap_or(zero)
    }
}

/// The sum of two pairs.
pub(super) fn add_pairs<'k, A: Float>(
    a: (Reg<'k, A>, Reg<'k, A>),
    b: (Reg<'k, A>, Reg<'k, A>),
) -> (Reg<'k, A>, Reg<'k, A>) {
    (a.0 + b.0, a.1 + b.1)
}

/// What a row is normalised with.
#[derive(Clone, Copy)]
struct RowStatistics<'k, A: Float> {
    /// Near the mean, so that differences from it are exact where the mean is large.
    shift: Reg<'k, A>,
    /// What the mean is off it.
    drift: Reg<'k, A>,
    rstd: Reg<'k, A>,
}

impl<'k, A: Float> RowStatistics<'k, A> {
    fn normalise(&self, norm: RowNorm, z: Reg<'k, A>) -> Reg<'k, A> {
        match norm {
            RowNorm::Layer => (z - self.shift).mul_add(self.rstd, -(self.drift * self.rstd)),
            RowNorm::Rms => z * self.rstd,
        }
    }

    fn save(&self, norm: RowNorm, a: ForwardParams<'k>, row: U64<'k>)
    where
        Elem: Access<A>,
    {
        if norm == RowNorm::Layer {
            a.mean.at(row).set(self.shift + self.drift);
        }
        a.rstd.at(row).set(self.rstd);
    }
}

/// Sums that a thread of a long row keeps.
const SUMS: usize = 8;

impl Forward {
    fn in_registers<'k, A: Float>(&self, k: K<'k>, a: ForwardParams<'k>)
    where
        Elem: Access<A>,
    {
        let Self { norm, dtype, layout } = *self;
        let columns = Columns::new(k, layout, a.len);
        let (row, valid) = rows_of_block(k, layout, a.rows);
        let start = row * a.len.to_u64();
        let mut z: Vec<Packed<'k, A>> = columns.load(k, a.x.at(start), None);
        z = k.if_else(
            has(a.present, present::RESIDUAL),
            || {
                let residual = columns.load::<A, _>(k, a.residual.at(start), None);
                let sums = z.iter().zip(residual).map(|(x, r)| x.lanes().zip(r.lanes(), |x, r| x + r));
                let sums: Vec<Packed<'k, A>> = sums.map(|sum| Packed::round(k, dtype, sum)).collect();
                let to = a.z.at(start).at(columns.first);
                for (i, sum) in sums.iter().enumerate() {
                    k.if_(and(columns.inside[i], valid), || to.at(columns.offset(i)).store_packed(sum));
                }
                sums
            },
            || z.clone(),
        );
        // Here already, so that they arrive while the row is summed.
        let weight = columns.load_or::<A>(k, a.weight, has(a.present, present::WEIGHT), 1.0);
        let bias = match norm {
            RowNorm::Layer => columns.load_or::<A>(k, a.bias, has(a.present, present::BIAS), 0.0),
            RowNorm::Rms => Vec::new(),
        };
        let statistics = self.statistics(k, a, &columns, &z);
        let to = a.y.at(start).at(columns.first);
        for (i, z) in z.iter().enumerate() {
            k.if_(and(columns.inside[i], valid), || {
                let xhat = z.lanes().map(|z| statistics.normalise(norm, z));
                let y = match bias.get(i) {
                    Some(bias) => xhat.zip3(weight[i].lanes(), bias.lanes(), |h, w, b| h.mul_add(w, b)),
                    None => xhat.zip(weight[i].lanes(), |h, w| h * w),
                };
                to.at(columns.offset(i)).store(y);
            });
        }
        let first = columns.member.eq(0) & has(a.present, present::STATISTICS);
        k.if_(and(first, valid), || statistics.save(norm, a, row));
    }

    /// Mean first, then the squares of the distances from it, and how far the rounded mean is off.
    fn statistics<'k, A: Float>(
        &self,
        k: K<'k>,
        a: ForwardParams<'k>,
        columns: &Columns<'k>,
        z: &[Packed<'k, A>],
    ) -> RowStatistics<'k, A> {
        let group = self.layout.group;
        let (inverse, eps) = (a.inverse_len.convert::<A>(), a.eps.convert::<A>());
        if self.norm == RowNorm::Rms {
            let squares = columns.dot(k, |i| (z[i].lanes(), z[i].lanes()));
            let squares = k.group_combine_once(group, squares, |a, b| a + b);
            let zero = k.lit(0.0);
            return RowStatistics { shift: zero, drift: zero, rstd: squares.mul_add(inverse, eps).rsqrt() };
        }
        let sum = columns.sum(k, |i| z[i].lanes());
        let shift = k.group_combine_once(group, sum, |a, b| a + b) * inverse;
        let distances = |i: usize| z[i].lanes().map(|x| x - shift);
        let mine = (columns.sum(k, distances), columns.dot(k, |i| (distances(i), distances(i))));
        let (distance, squares) = k.group_combine_once(group, mine, add_pairs);
        let drift = distance * inverse;
        let variance = (-drift).mul_add(drift, squares * inverse).maximum(0.0);
        RowStatistics { shift, drift, rstd: (variance + eps).rsqrt() }
    }

    /// One block a row, which is read twice.
    fn any_length<'k, A: Float>(&self, k: K<'k>, a: ForwardParams<'k>)
    where
        Elem: Access<A>,
    {
        let Self { norm, dtype, layout: Layout { threads, width, .. } } = *self;
        let row = k.block_idx_x().to_u64();
        let start = row * a.len.to_u64();
        let residual = has(a.present, present::RESIDUAL);
        let own = || k.block_strided_u32(a.len, width);
        let (x, added, z) = (a.x.at(start), a.residual.at(start), a.z.at(start));
        // The row as it is normalised; with a residual, written for the second pass.
        let load = |i: U32<'k>| -> Lanes<'k, A> {
            let x = x.at(i).load::<A>(width);
            k.if_else(
                residual,
                || {
                    let sum = x.zip(added.at(i).load::<A>(width), |x, r| x + r);
                    let sum = Packed::round(k, dtype, sum);
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
                let sums: Lanes<'k, A> = (0..SUMS).map(|_| zero).collect();
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
                    let distances = load(i).map(|x| x - shift);
                    Moments::of(&distances).map_or(m, |of| m.merge(of))
                });
                let all = k.group_combine_once(threads, mine, Moments::merge);
                RowStatistics { shift, drift: all.mean, rstd: (all.variance() + eps).rsqrt() }
            }
        };
        let weight = has(a.present, present::WEIGHT);
        let bias = (norm == RowNorm::Layer).then(|| has(a.present, present::BIAS));
        let ones = || (0..width).map(|_| k.lit::<A>(1.0)).collect::<Lanes<'k, A>>();
        k.for_each(own(), |i| {
            let z: Lanes<'k, A> =
                k.if_else(residual, || z.at(i).load::<A>(width), || x.at(i).load::<A>(width));
            let w = k.if_else(weight, || a.weight.at(i).load::<A>(width), ones);
            let scaled = z.zip(w, |z, w| statistics.normalise(norm, z) * w);
            let y = match bias {
                Some(bias) => k.if_else(
                    bias,
                    || scaled.zip(a.bias.at(i).load::<A>(width), |y, b| y + b),
                    || scaled.clone(),
                ),
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
