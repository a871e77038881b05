//! Attention sinks.

use warpwright_dsl::OptionalParam;
use warpwright_dsl::prelude::*;

/// A logit of each head that takes part in the sum of exponentials and in nothing else, if there are any.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Sink<'k> {
    pub(in crate::attention) sinks: Ptr<'k, Read, f32>,
    pub(in crate::attention) there: Pred<'k>,
}

impl<'k> Sink<'k> {
    pub(in crate::attention) fn of(sinks: OptionalParam<'k, Ptr<'k, Read, f32>>) -> Self {
        Self { sinks: sinks.value, there: sinks.is_given() }
    }

    /// `lse` with the sink of the head, and values, normalised without it, normalised with it.
    pub(in crate::attention) fn applied<A: Accumulate>(
        self,
        head: U32<'k>,
        lse: Reg<'k, A>,
        values: Lanes<'k, A>,
    ) -> (Reg<'k, A>, Lanes<'k, A>) {
        let (whole, factor) = self.weighed(head, lse);
        (whole, values.map(|v| v * factor))
    }

    /// `lse` with the sink of the head, and the share of the sum that `lse` has in it.
    pub(in crate::attention) fn weighed<A: Accumulate>(
        self,
        head: U32<'k>,
        lse: Reg<'k, A>,
    ) -> (Reg<'k, A>, Reg<'k, A>) {
        let sink = self.sinks.at(head).only_where(self.there, Fill::Zero).get::<f32>().convert::<A>();
        let top = lse.max(sink);
        let reference = top.eq(f64::NEG_INFINITY).select(0.0, top);
        let [own, of_sink] = [lse, sink].map(|x| (x - reference).exp());
        let sum = own + of_sink;
        (self.there.select(reference + sum.log(), lse), self.there.select(own / sum, 1.0))
    }
}
