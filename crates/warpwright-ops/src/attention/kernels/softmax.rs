//! The online softmax (Milakov and Gimelshein 2018): the running maximum and sum of each row, from which the probabilities of a row
//! follow without a second pass over its scores.

use warpwright_dsl::prelude::*;

use crate::attention::score::{Scorer, Sink};

/// The running softmax of a thread's rows.
#[derive(Clone, Debug)]
pub(in crate::attention) struct OnlineSoftmax<'k, A: Accumulate> {
    /// The reference of exponentials: the maximum of a row, or a score that none is [far above](Scorer::above).
    pub(in crate::attention) row_max: RowVector<'k, A>,
    /// The lane's part of the sum of exponentials.
    pub(in crate::attention) row_sum: RowVector<'k, A>,
}

impl<'k, A: Accumulate> Carry<'k> for OnlineSoftmax<'k, A> {
    fn collect(&self, regs: &mut Vec<warpwright_dsl::flow::RawReg>) {
        self.row_max.collect(regs);
        self.row_sum.collect(regs);
    }

    fn rebuild(&self, regs: &mut warpwright_dsl::flow::RawRegs) -> Self {
        let (row_max, row_sum) = (self.row_max.rebuild(regs), self.row_sum.rebuild(regs));
        Self { row_max, row_sum }
    }
}

impl<'k, A: Accumulate> OnlineSoftmax<'k, A> {
    /// Before the first key of `rows` rows.
    pub(in crate::attention) fn new(k: K<'k>, rows: usize) -> Self {
        Self {
            row_max: (0..rows).map(|_| k.lit::<A>(f64::NEG_INFINITY)).collect(),
            row_sum: (0..rows).map(|_| k.lit::<A>(0.0)).collect(),
        }
    }

    /// After the first tile of keys: its exponentials, and the state.
    pub(in crate::attention) fn first(
        scorer: &Scorer<'k, A>,
        scores: &RegTile<'k, A>,
    ) -> (RegTile<'k, A>, Self) {
        let row_max = scores.row_max();
        let row_sum = row_max.map(|max| max.k().lit::<A>(0.0));
        Self { row_max, row_sum }.exp(scorer, scores)
    }

    /// The next tile of keys: its exponentials, the state, and `o`, the weighted sum of values so far, relative to the new maximum.
    /// With `lazy_rescale` the reference stays where no score is far above it, which saves most of that work, but costs a branch,
    /// around which the assembler does not mix instructions.
    pub(in crate::attention) fn update(
        self,
        k: K<'k>,
        scorer: &Scorer<'k, A>,
        scores: &RegTile<'k, A>,
        o: RegTile<'k, A>,
        lazy_rescale: bool,
    ) -> (RegTile<'k, A>, Self, RegTile<'k, A>) {
        let row_max = scores.row_max();
        let rescale = || {
            let (softmax, factors) = self.rescaled(scorer, &row_max);
            (softmax, &o * &factors)
        };
        let (softmax, o) = if lazy_rescale {
            let far = self.is_far_below(scorer, &row_max);
            k.if_else(far, rescale, || (self.clone(), o.clone()))
        } else {
            rescale()
        };
        let (p, softmax) = softmax.exp(scorer, scores);
        (p, softmax, o)
    }

    /// The state relative to the greater of its maximum and `row_max`, and what sums so far are multiplied by for that.
    pub(in crate::attention) fn rescaled(
        &self,
        scorer: &Scorer<'k, A>,
        row_max: &RowVector<'k, A>,
    ) -> (Self, RowVector<'k, A>) {
        let new = self.row_max.zip(row_max.clone(), |old, max| old.max(max));
        let factors = self.row_max.zip(new.clone(), |old, new| scorer.exp(old, finite(new)));
        let row_sum = self.row_sum.zip(factors.clone(), |sum, factor| sum * factor);
        (Self { row_max: new, row_sum }, factors)
    }

    /// Whether a maximum of any lane of the warp is [far above](Scorer::above) the state's.
    pub(in crate::attention) fn is_far_below(
        &self,
        scorer: &Scorer<'k, A>,
        row_max: &RowVector<'k, A>,
    ) -> Pred<'k> {
        let above = row_max.iter().zip(self.row_max.iter()).map(|(max, old)| scorer.above(max, old));
        above.reduce(|a, b| a | b).unwrap_or_else(|| scorer.scale().k().lit(true)).vote_any()
    }

    /// Exponentials of scores relative to the state's maximum, which also counts them. A NaN shows in the sum; the maximum may pass
    /// over it.
    pub(in crate::attention) fn exp(
        self,
        scorer: &Scorer<'k, A>,
        scores: &RegTile<'k, A>,
    ) -> (RegTile<'k, A>, Self) {
        let mut row_sum = Vec::new();
        let p = scores.map_rows(|row, scores| {
            let max = finite(self.row_max[row]);
            let p: Lanes<'k, A> = scores.iter().map(|score| scorer.exp(*score, max)).collect();
            row_sum.push(p.sum().map_or(self.row_sum[row], |sum| self.row_sum[row] + sum));
            p.into_iter().collect()
        });
        (p, Self { row_sum: row_sum.into(), ..self })
    }

    /// Writes `lse`, and returns what the weighted sums of values are multiplied by.
    pub(in crate::attention) fn finalize(
        &self,
        k: K<'k>,
        scorer: &Scorer<'k, A>,
        lanes: u32,
        rows: &LseRows<'k>,
    ) -> RowVector<'k, A> {
        let row_sum = self.row_sum.map(|sum| k.warp_combine(lanes, sum, |a, b| a + b));
        let none = k.lit::<A>(f64::NEG_INFINITY);
        let lse = self
            .row_max
            .zip(row_sum.clone(), |max, sum| sum.eq(0.0).select(none, scorer.log_sum_exp(max, sum)));
        let weighed = k.if_else(
            rows.sink.there,
            || lse.iter().map(|lse| rows.sink.weighed(rows.head, lse)).collect(),
            || lse.iter().map(|lse| (lse, k.lit(1.0))).collect::<Vec<_>>(),
        );
        let mut factors = Vec::new();
        for ((query, sum), (lse, share)) in rows.queries.iter().zip(row_sum).zip(weighed) {
            let share = scorer.keeping().map_or(share, |keeping| share * keeping);
            factors.push(sum.eq(0.0).select(0.0, share / sum));
            let writes = query.lt(scorer.queries()) & rows.writes;
            rows.lse.at(query.to_u32().to_u64()).only_where(writes, Fill::Zero).set(lse);
        }
        factors.into()
    }
}

/// Where nothing has been seen yet, any finite reference gives exponentials of 0.
fn finite<A: Accumulate>(max: Reg<'_, A>) -> Reg<'_, A> {
    max.eq(f64::NEG_INFINITY).select(0.0, max)
}

/// The queries of a thread's rows, and where their logarithms go.
pub(in crate::attention) struct LseRows<'k> {
    pub(in crate::attention) queries: Vec<I32<'k>>,
    /// Whether this lane writes.
    pub(in crate::attention) writes: Pred<'k>,
    pub(in crate::attention) head: U32<'k>,
    pub(in crate::attention) lse: Ptr<'k, Write, Elem>,
    pub(in crate::attention) sink: Sink<'k>,
}
