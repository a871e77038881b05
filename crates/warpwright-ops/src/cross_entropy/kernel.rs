//! The kernels: one pass over the logits each, and a small one for the reduced loss.

use warpwright_dsl::prelude::*;
use warpwright_dsl::rows::{RowVector, UnalignedRow, column_max};
use warpwright_dsl::{WARP, kernel_args, tree};

use super::tuning::{Config, REDUCE_THREADS};
use crate::softmax::math::{Exponential, OnlineSoftmax, minus_max};

kernel_args! {
    /// `losses` or, in the type of the logits, `loss` gets the loss of each row, whichever `rowwise` says; targets have
    /// `words` 32-bit words.
    pub(super) struct ForwardArgs => ForwardParams {
        logits: In<Elem>, target: In<u32>, loss: Out<Elem>, losses: Out<Elem>, lse: Out<Elem>, nll: Out<Elem>,
        rows: u64, classes: u64, row_stride: u64, words: u32, rowwise: u32, ignore_index: i64, label_smoothing: f64,
    }
}

kernel_args! {
    /// The sum of `losses`, divided by `count` if `mean` is not 0.
    pub(super) struct ReduceArgs => ReduceParams {
        losses: In<Elem>, target: In<u32>, loss: Out<Elem>, count: Out<Elem>,
        rows: u64, words: u32, mean: u32, ignore_index: i64,
    }
}

kernel_args! {
    /// `dlogits = (softmax(logits) - target distribution) dloss`; `dloss` has one element or, if `rowwise` is not 0, one
    /// for each row, and is divided by `count` if `mean` is not 0.
    pub(super) struct BackwardArgs => BackwardParams {
        logits: In<Elem>, target: In<u32>, lse: In<Elem>, nll: In<Elem>, dloss: In<Elem>, count: In<Elem>,
        dlogits: Out<Elem>,
        classes: u64, row_stride: u64, chunks: u32, words: u32, rowwise: u32, mean: u32, ignore_index: i64, label_smoothing: f64,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Forward {
    pub(super) dtype: DType,
    pub(super) config: Config,
    /// Whether part of the target distribution is uniform.
    pub(super) smoothed: bool,
}

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        let Config { team, threads, width, unroll } = self.config;
        let smoothed = if self.smoothed { "_smoothed" } else { "" };
        KernelSpec::new(
            format!("cross_entropy_{}_team{team}_t{threads}x{width}u{unroll}{smoothed}", self.dtype),
            BlockDim::x(self.config.threads),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["losses", "lse", "nll"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        k.start_next_grid();
        let Config { team: threads, width, unroll, .. } = self.config;
        // Exponentials are summed, and their logarithm is at most a rounding of the largest score away from exact.
        let exp = Exponential { scale: k.lit::<A>(1.0), precision: Precision::Storage };
        let team = Team::new(k, threads);
        let thread = team.lane();
        let row = match team.rows_per_block() {
            1 => k.block_idx_x().to_u64(),
            rows => k.block_idx_x().mad_wide(rows, (k.thread_idx() / threads).to_u64()),
        };
        let there = row.lt(a.rows);
        let vectors = UnalignedRow::new(row * a.row_stride, there.select(a.classes, 0), width);
        let target = a.target.integer(there.select(row, 0), a.words);

        // One element outside of the vectors, in the first lane; of single elements none is outside.
        let (rest, one, alone): (Reg<'k, A>, Reg<'k, A>, Reg<'k, A>) = if width > 1 {
            let (at, there) = vectors.rest(thread);
            let rest: Reg<'k, A> = a.logits.at(at).only_where(there, Fill::MinusInfinity).get();
            // NaN of what is not a number or infinite, as `exp(rest - rest)`.
            let one = rest.eq(f64::NEG_INFINITY).select(0.0, rest * 0.0 + 1.0);
            (rest, one, there.select(rest, 0.0))
        } else {
            (k.lit(f64::NEG_INFINITY), k.lit(0.0), k.lit(0.0))
        };
        let all = |first: Reg<'k, A>, others: f64| -> Lanes<'k, A> {
            std::iter::once(first).chain(Lanes::constant(k, others, width - 1)).collect()
        };
        let (maxima, sums) = (all(rest, f64::NEG_INFINITY), all(one, 0.0));
        let plain: Vec<Lanes<'k, A>> = if self.smoothed { vec![all(alone, 0.0)] } else { Vec::new() };

        let first = vectors.first + (thread * width).to_u64();
        let walk = RowLoop::new(k, first, vectors.last, u64::from(threads * width), unroll);
        let (maxima, sums, plain) = walk.fold((maxima, sums, plain), |round, (maxima, sums, mut plain)| {
            let load = |v: RowVector<'k>| {
                let x = v.of(a.logits, Fill::MinusInfinity).load_packed::<A>(width);
                (x, v.inside())
            };
            let (xs, inside): (Vec<_>, Vec<_>) = round.map(load).unzip();
            let next = column_max(k, &xs, width).zip(maxima.clone(), |x, max| x.maximum(max));
            let minus = next.map(minus_max);
            let mut sums = sums.zip3(maxima, minus.clone(), |sum, max, minus| sum * exp.rescale(max + minus));
            for (x, p) in xs.iter().map(Packed::lanes).zip(inside) {
                sums = sums + x.zip(minus.clone(), |x, minus| exp.exp(x, minus));
                for plain in &mut plain {
                    *plain = &*plain + x.map(|x| p.map_or(x, |p| p.select(x, 0.0)));
                }
            }
            (next, sums, plain)
        });
        let mine = OnlineSoftmax::of_parts(maxima.as_slice(), sums.as_slice(), exp);
        let mine = mine.of_lanes(k, WARP.min(threads), exp);
        let OnlineSoftmax { row_max, row_sum } = if threads > WARP { mine.of_warps(k, exp) } else { mine };
        let plain = plain.into_iter().next().and_then(|plain| tree(plain, |a, b| a + b));
        let plain = plain.map(|plain| team.combine(plain, |a, b| a + b));

        k.if_(there & thread.eq(0), || {
            let valid = target.ge(0) & target.lt(a.classes.to_i64());
            let at = row * a.row_stride + valid.select(target, 0).to_u64();
            let own: Reg<'k, A> = a.logits.at(at).get();
            let log_sum = row_sum.log();
            let likely = (row_max - own) + log_sum;
            let loss = plain.map_or(likely, |plain| {
                let smoothing = a.label_smoothing.convert::<A>();
                let mean = plain / a.classes.convert::<A>();
                let uniform = (row_max - mean) + log_sum;
                (1.0 - smoothing) * likely + smoothing * uniform
            });
            let loss = valid.select(loss, f64::NAN);
            let loss: Reg<'k, A> = target.eq(a.ignore_index).select(0.0, loss);
            a.loss.at(row).only_where(a.rowwise.ne(0), Fill::Zero).set(loss);
            a.losses.at(row).only_where(a.rowwise.eq(0), Fill::Zero).set(loss);
            a.lse.at(row).set(row_max + log_sum);
            a.nll.at(row).set(valid.select(likely, f64::NAN));
        });
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reduce {
    pub(super) dtype: DType,
}

impl AccumulateKernel for Reduce {
    type Args = ReduceArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("cross_entropy_reduce_{}", self.dtype), BlockDim::x(REDUCE_THREADS))
            .dtypes(DTypes::all(self.dtype.accumulator()).with("loss", self.dtype))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ReduceParams<'k>) {
        k.after_previous_grid();
        let none = (k.lit::<A>(0.0), k.lit::<A>(0.0));
        let (sum, count) = k.fold(k.block_strided(a.rows, 1), none, |row, (sum, count)| {
            let counts = a.target.integer(row, a.words).ne(a.ignore_index);
            let loss: Reg<'k, A> = a.losses.at(row).get();
            (sum + loss, count + counts.select(1.0, 0.0))
        });
        let add = |a: (Reg<'k, A>, Reg<'k, A>), b: (Reg<'k, A>, Reg<'k, A>)| (a.0 + b.0, a.1 + b.1);
        let (sum, count) = k.group_combine_once(k.block_threads(), (sum, count), add);
        k.if_(k.thread_idx().eq(0), || {
            a.loss.set(a.mean.ne(0).select(sum / count, sum));
            a.count.only_where(a.mean.ne(0), Fill::Zero).set(count);
        });
    }
}

/// `exp(-nll) - 1` for `nll >= 0`, to a few units in the last place however small it is.
fn complement<'k, A: Accumulate>(nll: Reg<'k, A>) -> Reg<'k, A> {
    // Of the series, what counts up to `SMALL`.
    const SMALL: f64 = 0.5;
    let terms = if A::DOUBLE { 15 } else { 8 };
    let mut factor = -1.0;
    let series: Vec<f64> = (1..=terms)
        .map(|n| {
            let term = factor;
            factor /= -f64::from(n + 1);
            term
        })
        .collect();
    nll.lt(SMALL).select(nll * nll.polynomial(&series), (-nll).exp() - 1.0)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Backward {
    pub(super) dtype: DType,
    /// Element type of `dloss`.
    pub(super) loss: DType,
    pub(super) config: Config,
}

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        let Config { threads, width, .. } = self.config;
        let of_loss = if self.loss == self.dtype { String::new() } else { format!("_loss_{}", self.loss) };
        KernelSpec::new(
            format!("cross_entropy_backward_{}_t{threads}x{width}{of_loss}", self.dtype),
            BlockDim::x(threads),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["lse", "nll", "count"]).with("dloss", self.loss))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        let Config { threads, width, unroll, .. } = self.config;
        let precision = Precision::of(self.dtype);
        let block = k.block_idx_x();
        let row = block / a.chunks;
        let chunk = block - row * a.chunks;
        let row = row.to_u64();
        let vectors = UnalignedRow::new(row * a.row_stride, a.classes, width);

        let target = a.target.integer(row, a.words);
        let valid = target.ge(0) & target.lt(a.classes.to_i64());
        let ignored = target.eq(a.ignore_index);
        let dloss: Reg<'k, A> = a.dloss.at(row * a.rowwise.to_u64()).get();
        let count: Reg<'k, A> = a.count.only_where(a.mean.ne(0), Fill::Zero).get();
        let factor = a.mean.ne(0).select(dloss / count, dloss);
        let factor = valid.select(factor, f64::NAN);
        let lse: Reg<'k, A> = a.lse.at(row).get();
        let smoothing = a.label_smoothing.convert::<A>();
        let uniform = smoothing / a.classes.convert::<A>();
        // Where the target is all but certain, a difference of its probability and 1 would have few digits, and of those the
        // rounding of the log-sum-exp would take some.
        let at_hot = complement(a.nll.at(row).get()) + (smoothing - uniform);
        // Elements count from the start of the tensor; a target that is not valid is no element.
        let hot = vectors.start + valid.select(target, -1).to_u64();
        let gradient = |x: Reg<'k, A>, at_target: Pred<'k>| -> Reg<'k, A> {
            let p = (x - lse).exp_for(precision) - uniform;
            ignored.select(0.0, at_target.select(at_hot, p) * factor)
        };

        let (stride, unroll) = (u64::from(threads * width), u64::from(unroll));
        let tile = chunk.to_u64() * (stride * unroll);
        let first = vectors.first + tile + k.thread_idx().mul_wide(width);
        let mut steps = Vec::new();
        for u in 0..unroll {
            let at = first + u * stride;
            let inside = at.lt(vectors.last);
            let x = a.logits.at(first).at(u * stride).only_where(inside, Fill::Zero).load_packed::<A>(width);
            steps.push((at, inside, x));
        }
        for (u, (at, inside, x)) in steps.into_iter().enumerate() {
            let from = (hot - at).words().0;
            let far = (hot - at).ge(u64::from(width));
            let from = far.select(width, from);
            let dx: Lanes<'k, A> =
                x.lanes().iter().enumerate().map(|(lane, x)| gradient(x, from.eq(lane as u32))).collect();
            a.dlogits.at(first).at(u as u64 * stride).only_where(inside, Fill::Zero).store(dx);
        }
        if width > 1 {
            k.if_(chunk.eq(0), || {
                let (at, has_rest) = vectors.rest(k.thread_idx());
                k.if_(has_rest, || {
                    let x: Reg<'k, A> = a.logits.at(at).get();
                    a.dlogits.at(at).set(gradient(x, hot.eq(at)));
                });
            });
        }
    }
}
