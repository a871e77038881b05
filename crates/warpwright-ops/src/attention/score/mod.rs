//! The score modifications between a product `q k` and the softmax, and their gradients: one place for every kernel.

mod block;
mod problem;
mod sink;
mod span;
mod tiles;

use warpwright_dsl::prelude::*;

use super::kernels::dropout::{Draws, Kept, Keys, Seeds};
use super::kernels::engine::{Engine, Place};
pub(super) use block::QueryBlock;
pub(super) use problem::{Origin, Problem, ProblemArgs, View};
pub(super) use sink::Sink;
pub(super) use span::Span;
pub use tiles::MASK_TILE;
pub(super) use tiles::{BlockMaskArgs, BlockMaskParams, MaskTile, MaskTiles, PART_WORDS, Tiles};

/// Base-2 logarithm of e.
const LOG2_E: f64 = std::f64::consts::LOG2_E;
/// Natural logarithm of 2.
const LN_2: f64 = std::f64::consts::LN_2;

/// Which modifications a kernel is recorded with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScoreKind {
    /// Keys are limited on either side of the query's diagonal.
    pub band: bool,
    /// `softcap tanh(score / softcap)`
    pub softcap: bool,
    /// A bias is added.
    pub bias: bool,
    /// Each head has a slope on the distance.
    pub alibi: bool,
    /// Each sequence has a number of keys of its own.
    pub lengths: bool,
    /// The sequences lie one after the other in the rows of one.
    pub packed: bool,
    /// Some probabilities are dropped.
    pub dropout: bool,
    /// A mask lists the tiles that are visited.
    pub blocks: bool,
}

impl ScoreKind {
    /// Whether blocks of a head have more or less to do, the last ones often the most.
    pub(in crate::attention) const fn is_uneven(self) -> bool {
        self.band || self.blocks
    }

    pub(in crate::attention) fn name(self) -> String {
        let parts = [
            (self.band, "band"),
            (self.softcap, "cap"),
            (self.bias, "bias"),
            (self.alibi, "alibi"),
            (self.lengths, "lengths"),
            (self.packed, "packed"),
            (self.dropout, "dropout"),
            (self.blocks, "blocks"),
        ];
        parts.iter().filter(|(on, _)| *on).map(|(_, name)| format!("_{name}")).collect()
    }
}

/// The numbers from which the scores of a tile, and the derivatives of soft capping, are computed.
#[derive(Clone, Debug)]
pub(in crate::attention) enum Base<'k, A: Accumulate> {
    /// Products.
    Products(RegTile<'k, A>),
    /// The hyperbolic tangents of soft capping.
    Tangents(RegTile<'k, A>),
}

impl<'k, A: Accumulate> Base<'k, A> {
    fn values(&self) -> &RegTile<'k, A> {
        let (Self::Products(values) | Self::Tangents(values)) = self;
        values
    }
}

/// The score modification of one head.
///
/// Products become scores, which times [`unit`](Self::unit) are base-2 logarithms. In half precision without another
/// modification a product is its own score, and the factor of the softmax is part of that unit.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Scorer<'k, A: Accumulate> {
    kind: ScoreKind,
    precision: Precision,
    scale: Reg<'k, A>,
    softcap: Reg<'k, A>,
    unit: Reg<'k, A>,
    bias: Ptr<'k, Read, Elem>,
    bias_row: U64<'k>,
    bias_column: U64<'k>,
    slope: Option<Reg<'k, A>>,
    pub(super) span: Span<'k>,
    shift: I32<'k>,
    draws: Option<Draws<'k>>,
    keeping: F64<'k>,
}

impl<'k, A: Accumulate> Scorer<'k, A> {
    pub(in crate::attention) fn new(
        kind: ScoreKind,
        precision: Precision,
        p: &Problem<'k>,
        span: Span<'k>,
        head: U32<'k>,
        batch: U32<'k>,
    ) -> Self {
        let k = head.k();
        let scale: Reg<'k, A> = p.scale.convert();
        let [of_batch, of_head, bias_row, bias_column] = p.bias.strides;
        let bias = if kind.bias {
            p.bias.data.at(batch.to_u64() * of_batch + head.to_u64() * of_head)
        } else {
            p.bias.data
        };
        let slope = kind.alibi.then(|| {
            p.slopes.at(batch.to_u64() * p.slopes_batch + head.to_u64()).get::<f32>().convert::<A>()
        });
        let plain = Self::plain(kind, precision);
        let unit = if plain { scale * LOG2_E } else { k.lit::<A>(LOG2_E) };
        let shift = span.keys - span.queries;
        let draws = kind.dropout.then(|| {
            let random = p.shared_random.ok_or_else(|| p.random());
            let first_row = p.first_row(span.of_queries, head);
            let known = |[seed, offset]: [U64<'k>; 2]| Seeds::Known(Philox::new(k, seed, offset));
            Draws { seeds: random.map_or_else(known, Seeds::Shared), threshold: p.threshold, first_row }
        });
        let (softcap, keeping) = (p.softcap.convert(), p.keeping);
        Self {
            kind,
            precision,
            scale,
            softcap,
            unit,
            bias,
            bias_row,
            bias_column,
            slope,
            span,
            shift,
            draws,
            keeping,
        }
    }

    /// Which pairs of a tile are kept, if any are dropped; arguments as for [`Draws::tile`].
    pub(in crate::attention) fn kept<E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        engine: &E,
        place: &Place<'k>,
        keys: Keys,
        pair: impl Fn(I32<'k>, I32<'k>) -> (I32<'k>, I32<'k>),
    ) -> Option<Kept<'k>> {
        let row_by_row = engine.row_by_row();
        self.draws.map(|draws| draws.tile(k, place, (keys, engine.draw_lanes(keys), row_by_row), pair))
    }

    /// The factor of sums over kept probabilities, if any are dropped.
    pub(in crate::attention) fn keeping(&self) -> Option<Reg<'k, A>> {
        self.draws.map(|_| self.keeping.convert())
    }

    /// Values of pairs times what their probabilities were multiplied by.
    pub(in crate::attention) fn dropped(
        &self,
        values: RegTile<'k, A>,
        kept: Option<&Kept<'k>>,
    ) -> RegTile<'k, A> {
        match kept.zip(self.keeping()) {
            Some((kept, keeping)) => kept.of(&(&values * keeping)),
            None => values,
        }
    }

    fn plain(kind: ScoreKind, precision: Precision) -> bool {
        precision == Precision::Storage && !kind.softcap && !kind.bias && !kind.alibi
    }

    /// The score of a product, of a pair that may lie outside: minus infinity where the query does not see the key. Without
    /// `seen` all pairs of the tile do.
    pub(in crate::attention) fn score(
        &self,
        product: Reg<'k, A>,
        query: I32<'k>,
        key: I32<'k>,
        seen: Option<Pred<'k>>,
    ) -> Reg<'k, A> {
        self.shifted(self.unshifted(product), (query, key), self.bias_at(query, key), seen)
    }

    /// A score before anything is added to it.
    fn unshifted(&self, product: Reg<'k, A>) -> Reg<'k, A> {
        match (Self::plain(self.kind, self.precision), self.kind.softcap) {
            (true, _) => product,
            (_, true) => self.tangent(product) * self.softcap,
            _ => product * self.scale,
        }
    }

    /// The hyperbolic tangent of soft capping.
    fn tangent(&self, product: Reg<'k, A>) -> Reg<'k, A> {
        (product * self.scale / self.softcap).tanh()
    }

    /// The numbers from which the scores of a tile are computed. The hyperbolic tangent takes many registers in double precision: there it is computed
    /// for one slot after the other.
    pub(in crate::attention) fn base(&self, k: K<'k>, products: RegTile<'k, A>) -> Base<'k, A> {
        if !self.kind.softcap || !A::DOUBLE {
            return Base::Products(products);
        }
        let slots = k.range(0u32, products.len() as u32, 1u32);
        let tangents = |row: &[Reg<'k, A>]| row.iter().map(|product| self.tangent(*product)).collect();
        Base::Tangents(k.fold(slots, products, |_, products| products.rotated(tangents)))
    }

    /// A score with what is added to it.
    fn shifted(
        &self,
        mut score: Reg<'k, A>,
        (query, key): (I32<'k>, I32<'k>),
        bias: Option<Ptr<'k, Read, Elem>>,
        seen: Option<Pred<'k>>,
    ) -> Reg<'k, A> {
        if let Some(at) = bias {
            let inside = query.lt(self.span.queries) & key.lt(self.span.keys);
            let bias = if seen.is_some() { at.only_where(inside, Fill::Zero) } else { at };
            score = score + bias.get::<A>();
        }
        if let Some(slope) = self.slope {
            let distance = (query + self.shift - key).abs();
            score = score - slope * distance.convert::<A>();
        }
        seen.map_or(score, |seen| seen.select(score, f64::NEG_INFINITY))
    }

    /// How many queries there are.
    pub(in crate::attention) fn queries(&self) -> I32<'k> {
        self.span.queries
    }

    /// The scores of a tile; `pair` gives query and key of a row and a column of it. Without `masked` each query sees each
    /// key.
    pub(in crate::attention) fn tile(
        &self,
        base: &Base<'k, A>,
        place: &Place<'k>,
        (keys, masked, scarce): (Keys, bool, bool),
        pair: impl Fn(I32<'k>, I32<'k>) -> (I32<'k>, I32<'k>),
    ) -> RegTile<'k, A> {
        let step = self.bias_step(place, keys);
        base.values().map_rows(|slot, values| {
            let row = place.rows[slot];
            let (query, key) = pair(row.to_i32(), place.first.to_i32());
            let limits = (masked && scarce).then(|| self.span.seen_from(query, key, keys));
            let mut before: Option<Ptr<'k, Read, Elem>> = None;
            let of = |(value, column): (&Reg<'k, A>, &u32)| {
                let (query, key) = pair(row.to_i32(), place.first.to_i32() + column.cast_signed());
                let column = column.cast_signed();
                let seen = match limits {
                    Some([low, high]) => {
                        let limits = [low.map(|low| low.le(column)), high.map(|high| high.ge(column))];
                        limits.into_iter().flatten().reduce(|a, b| a & b)
                    }
                    None => masked.then(|| self.span.sees(query, key)),
                };
                let score = match base {
                    Base::Products(_) => self.unshifted(*value),
                    Base::Tangents(_) => *value * self.softcap,
                };
                let next = before.zip(step).map(|(before, step)| before.at(step));
                before = next.or_else(|| self.bias_at(query, key));
                self.shifted(score, (query, key), before, seen)
            };
            values.iter().zip(&place.columns).map(of).collect()
        })
    }

    /// The scores of one slot, whose query is `query` and whose keys lie `columns` from `first` on. Each comparison for a mask is
    /// with a constant.
    pub(in crate::attention) fn query_row(
        &self,
        products: &[Reg<'k, A>],
        query: I32<'k>,
        (first, columns): (I32<'k>, &[u32]),
        masked: bool,
    ) -> Vec<Reg<'k, A>> {
        let seen_by = masked.then(|| self.span.seen_by(query).map(|key| key.map(|key| key - first)));
        let of = |(product, column): (&Reg<'k, A>, &u32)| {
            let column = column.cast_signed();
            let seen = seen_by.map(|[low, high]| {
                let above = low.map(|low| low.le(column));
                let below = high.map(|high| high.ge(column));
                [above, below].into_iter().flatten().reduce(|a, b| a & b)
            });
            self.score(*product, query, first + column, seen.flatten())
        };
        products.iter().zip(columns).map(of).collect()
    }

    /// Elements from one bias of a slot to the next, if its columns lie at even distances: then each is found from the one before,
    /// and multiples of the strides take no registers.
    fn bias_step(&self, place: &Place<'k>, keys: Keys) -> Option<U64<'k>> {
        let distance = place.columns.get(1)? - place.columns[0];
        let even = place.columns.windows(2).all(|pair| pair[1] - pair[0] == distance);
        let stride = if keys == Keys::Columns { self.bias_column } else { self.bias_row };
        (self.kind.bias && even).then(|| stride * u64::from(distance))
    }

    /// Where the bias of a pair lies, if there is one.
    fn bias_at(&self, query: I32<'k>, key: I32<'k>) -> Option<Ptr<'k, Read, Elem>> {
        self.kind.bias.then(|| {
            let of_row = query.to_u32().to_u64() * self.bias_row;
            self.bias.at(of_row + key.to_u32().to_u64() * self.bias_column)
        })
    }

    /// The derivative of a score by its product, without the factor of the softmax, which is left for the end.
    pub(in crate::attention) fn derivative(
        &self,
        base: &Base<'k, A>,
        slot: usize,
        column: usize,
    ) -> Option<Reg<'k, A>> {
        let value = base.values().row(slot)[column];
        self.kind.softcap.then(|| {
            let t = match base {
                Base::Products(_) => self.tangent(value),
                Base::Tangents(_) => value,
            };
            1.0 - t * t
        })
    }

    /// The factor of the softmax.
    pub(in crate::attention) fn factor(p: &Problem<'k>) -> Reg<'k, A> {
        p.scale.convert()
    }

    /// The factor of the softmax.
    pub(in crate::attention) fn scale(&self) -> Reg<'k, A> {
        self.scale
    }

    /// `e^(score - top)`, where both are scores and `top` is not below.
    pub(in crate::attention) fn exp(&self, score: Reg<'k, A>, top: Reg<'k, A>) -> Reg<'k, A> {
        match self.precision {
            // Two units in the last place: less than sums over thousands of them err, and a third of all instructions less.
            Precision::Full => ((score - top) * self.unit).exp2_approx(),
            Precision::Storage => score.mul_add(self.unit, -(top * self.unit)).exp2_approx(),
        }
    }

    /// Whether a score is too far above what powers are relative to. In half precision powers up to 2^8 are as good as those up to 1.
    pub(in crate::attention) fn above(&self, score: Reg<'k, A>, top: Reg<'k, A>) -> Pred<'k> {
        ((score - top) * self.unit).gt(8.0)
    }

    /// `log(sum e^score)` from the largest score and the sum of powers relative to it.
    pub(in crate::attention) fn log_sum_exp(&self, top: Reg<'k, A>, sum: Reg<'k, A>) -> Reg<'k, A> {
        match self.precision {
            Precision::Full => top + sum.log(),
            Precision::Storage => top.mul_add(self.unit * LN_2, sum.log()),
        }
    }

    /// A natural logarithm, which may be minus infinity, as [`probability`](Self::probability) takes it.
    pub(in crate::attention) fn prepared(precision: Precision, lse: Reg<'k, A>) -> Reg<'k, A> {
        let finite = lse.eq(f64::NEG_INFINITY).select(0.0, lse);
        match precision {
            Precision::Full => finite,
            Precision::Storage => finite * -LOG2_E,
        }
    }

    /// `e^(score - lse)`; `lse` is [`prepared`](Self::prepared).
    pub(in crate::attention) fn probability(&self, score: Reg<'k, A>, lse: Reg<'k, A>) -> Reg<'k, A> {
        match self.precision {
            Precision::Full => ((score - lse) * LOG2_E).exp2_approx(),
            Precision::Storage => score.mul_add(self.unit, lse).exp2_approx(),
        }
    }
}
