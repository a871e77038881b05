//! The parts that the kernels have in common.

use warpwright_dsl::prelude::*;

use super::spread::Spread;

/// There is a weight.
pub(super) const HAS_WEIGHT: u32 = 1;
/// There is a bias.
pub(super) const HAS_BIAS: u32 = 2;
/// Forward: mean and rstd are stored. Backward: the gradients of weight and bias are.
pub(super) const SAVES: u32 = 4;
/// The result goes through `silu`.
pub(super) const SILU: u32 = 8;

/// The elements of the tensors that a kernel goes over, and how many of them it loads at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    pub(super) dtype: DType,
    pub(super) width: u32,
}

impl Elements {
    /// A kernel for them, of blocks of `threads` threads; the arguments named hold statistics.
    pub(super) fn spec<const N: usize>(
        self,
        what: &str,
        threads: u32,
        statistics: [&'static str; N],
    ) -> KernelSpec {
        let Self { dtype, width } = self;
        KernelSpec::new(format!("group_norm_{what}_{dtype}_x{width}"), BlockDim::x(threads))
            .dtypes(DTypes::all(dtype).accumulated(statistics))
    }
}

/// The optional parts of an operation, the same for the whole grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options<'k> {
    pub(super) weight: Pred<'k>,
    pub(super) bias: Pred<'k>,
    pub(super) saves: Pred<'k>,
    pub(super) silu: Pred<'k>,
}

impl<'k> Options<'k> {
    pub(super) fn of(flags: U32<'k>) -> Self {
        let has = |flag: u32| (flags & flag).ne(0);
        Self { weight: has(HAS_WEIGHT), bias: has(HAS_BIAS), saves: has(SAVES), silu: has(SILU) }
    }
}

/// Weight and bias, 1 and 0 where there are none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine<'k> {
    pub(super) options: Options<'k>,
    pub(super) weight: Ptr<'k, Read, Elem>,
    pub(super) bias: Ptr<'k, Read, Elem>,
}

impl<'k> Affine<'k> {
    pub(super) fn weight<A: Float>(self, k: K<'k>, channel: impl IntoIndex<'k>) -> Reg<'k, A> {
        k.if_else(self.options.weight, || self.weight.at(channel).get(), || k.lit(1.0))
    }

    pub(super) fn bias<A: Float>(self, k: K<'k>, channel: impl IntoIndex<'k>) -> Reg<'k, A> {
        k.if_else(self.options.bias, || self.bias.at(channel).get(), || k.lit(0.0))
    }

    /// Stores the result of a vector of one channel.
    pub(super) fn store<A: Float>(
        self,
        k: K<'k>,
        statistics: Statistics<'k, A>,
        channel: U32<'k>,
        x: &Packed<'k, A>,
        y: Ptr<'k, Write, Elem>,
    ) {
        let (scale, shift) = statistics.line(self.weight(k, channel), self.bias(k, channel));
        let results = x.lanes().map(|x| (x - statistics.mean).mul_add(scale, shift));
        store_result(k, self.options, y, &results);
    }

    /// The weights of a vector of channels.
    pub(super) fn weights<A: Float>(self, k: K<'k>, vector: U32<'k>, width: u32) -> Lanes<'k, A> {
        let at = vector.mul_wide(width);
        k.if_else(self.options.weight, || self.weight.at(at).load(width), || Lanes::constant(k, 1.0, width))
    }

    /// The biases of a vector of channels.
    pub(super) fn biases<A: Float>(self, k: K<'k>, vector: U32<'k>, width: u32) -> Lanes<'k, A> {
        let at = vector.mul_wide(width);
        k.if_else(self.options.bias, || self.bias.at(at).load(width), || Lanes::constant(k, 0.0, width))
    }
}

/// Mean and rstd of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statistics<'k, A: Float> {
    pub(super) mean: Reg<'k, A>,
    pub(super) low: Reg<'k, A>,
    pub(super) rstd: Reg<'k, A>,
}

impl<'k, A: Float> Statistics<'k, A> {
    pub(super) fn of(spread: Spread<'k, A>, eps: F64<'k>) -> Self {
        Self { mean: spread.mean, low: spread.low, rstd: spread.rstd(eps.convert()) }
    }

    /// Stores them as number `group`.
    pub(super) fn save(self, mean: Ptr<'k, Write, Elem>, rstd: Ptr<'k, Write, Elem>, group: U32<'k>) {
        mean.at(group).set(self.mean + self.low);
        rstd.at(group).set(self.rstd);
    }

    /// The factor and the addend of `x - mean` that make it the normalised and scaled value.
    pub(super) fn line(self, weight: Reg<'k, A>, bias: Reg<'k, A>) -> (Reg<'k, A>, Reg<'k, A>) {
        let scale = self.rstd * weight;
        (scale, (-self.low).mul_add(scale, bias))
    }
}

/// `n / d` for a divisor that the host has prepared.
pub(super) fn quotient<'k>(n: U32<'k>, magic: U32<'k>, shift: U32<'k>) -> U32<'k> {
    (n.mul_wide(magic) >> shift).to_u32()
}

/// Stores values in as many planes.
pub(super) fn store_planes<'k, A: Float, const N: usize>(
    place: Ptr<'k, Write, Elem>,
    plane: U64<'k>,
    values: [Reg<'k, A>; N],
) {
    for (i, value) in (0u64..).zip(values) {
        let to = match i {
            0 => place,
            1 => place.at(plane),
            i => place.at(plane * i),
        };
        to.set(value);
    }
}

/// Stores a vector of results.
pub(super) fn store_result<'k, A: Float>(
    k: K<'k>,
    options: Options<'k>,
    y: Ptr<'k, Write, Elem>,
    results: &Lanes<'k, A>,
) {
    let precision = Precision::of(y.dtype());
    k.if_else(options.silu, || y.store(results.map(|z| z.silu_for(precision))), || y.store(results.clone()));
}
