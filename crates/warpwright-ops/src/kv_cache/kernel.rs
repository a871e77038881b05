//! The kernels: a thread has two vectors of each of some heads of a new token, of queries and keys, which it rotates, or of values.

use warpwright_dsl::divide::DivisorArgs;
use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::OP;
use crate::rotary::kernel::{Group, Head, Heads, HeadsArgs, Rotate, Rotation};
use crate::rotary::tuning::THREADS;

kernel_args! {
    /// Keys of each sequence with the new ones, and the pages where they lie: `capacity` keys of a sequence have a place in pages of
    /// `1 << shift` keys, of which there are `count`; without a table a sequence is a page.
    pub(super) struct CacheArgs => Cache {
        lengths: Optional<In<i32>>, table: Optional<In<i32>>, pages: u32, shift: u32, capacity: u32, count: u32,
    }
}

kernel_args! {
    /// Queries, keys or values: the number of their first thread, and how many a token has.
    pub(super) struct PartArgs => Part { begin: u32, units: DivisorArgs }
}

kernel_args! {
    /// Threads are numbered by what they have, first queries, then keys, then values, so that few warps have two of these, which take
    /// different branches; then by batch, step, group of `group` heads and chunk of a head, as in the kernel that rotates alone. Chunks of
    /// values are copied.
    pub(super) struct Args => Params {
        q: HeadsArgs, k: HeadsArgs, v: HeadsArgs, cos: In<Elem>, sin: In<Elem>, cache: CacheArgs,
        threads: u32, queries: PartArgs, keys: PartArgs, values: PartArgs,
        steps: DivisorArgs, chunks: DivisorArgs, value_chunks: DivisorArgs,
        rotating: u32, copying: u32, value_copying: u32, group: u32,
        rotary_dim: u32, head_dim: u32, value_dim: u32, rows: u64, row_len: u32,
    }
}

kernel_args! {
    /// The same with scales of keys and of values of 8-bit floats, and numbers from that of a head to that of the next: 0 if there is one
    /// for all.
    pub(super) struct ScaledArgs => ScaledParams { of: Args, k_scale: In<f32>, v_scale: In<f32>, steps: [u32; 2] }
}

/// The kernel with the configuration of one that rotates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Append(pub(super) Rotate);

/// The same for caches of e4m3.
#[derive(Clone, Copy, Debug)]
pub(super) struct AppendScaled(pub(super) Rotate);

/// A new token: batch and step, its position in its sequence, and where in the cache it goes, if it has a place there.
#[derive(Clone, Copy)]
struct Token<'k> {
    at: [U32<'k>; 2],
    position: I64<'k>,
    place: [U32<'k>; 2],
    fits: Pred<'k>,
}

impl<'k> Cache<'k> {
    /// The token of these numbers of the `steps` that are new.
    fn token(self, k: K<'k>, [batch, step]: [U32<'k>; 2], steps: U32<'k>) -> Token<'k> {
        let length = k.if_else(
            self.lengths.is_given(),
            || self.lengths.value.at(batch).get::<i32>().to_i64(),
            || steps.to_u64().to_i64(),
        );
        let position = length - steps.to_u64().to_i64() + step.to_u64().to_i64();
        let inside = position.ge(0) & position.lt(self.capacity.to_u64().to_i64());
        let paged = self.table.is_given();
        let row = inside.select(position.to_u64(), 0).to_u32();
        let number = row >> self.shift;
        let entry = self.table.value.at(batch.mad_wide(self.pages, number.to_u64()));
        let found = entry.only_where(paged & inside, Fill::Zero).get::<i32>();
        let page = paged.select(found.to_u32(), batch);
        let within = paged.select(row - (number << self.shift), row);
        // A negative number is a large one.
        let fits = inside & page.lt(self.count);
        Token { at: [batch, step], position, place: [page, within], fits }
    }
}

/// The work of a thread.
struct Unit<'k> {
    of_queries: Pred<'k>,
    of_values: Pred<'k>,
    token: Token<'k>,
    /// Its number among those of the token that have the same.
    number: U32<'k>,
}

impl<'k> Params<'k> {
    fn unit(self, k: K<'k>, thread: U32<'k>) -> Unit<'k> {
        let [of_queries, of_values] = [thread.lt(self.keys.begin), thread.ge(self.values.begin)];
        let begin = of_values.select(self.values.begin, self.keys.begin);
        let begin = of_queries.select(self.queries.begin, begin);
        let units = self.queries.units.or(of_queries, self.values.units.or(of_values, self.keys.units));
        let (token, number) = units.divide(thread - begin);
        let (batch, step) = self.steps.divide(token);
        let token = self.cache.token(k, [batch, step], self.steps.divisor);
        Unit { of_queries, of_values, token, number }
    }
}

impl AccumulateKernel for Append {
    type Args = Args;

    fn spec(&self) -> KernelSpec {
        self.0.spec_of(OP)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: Params<'k>) {
        k.after_previous_grid();
        let thread = k.block_idx_x() * THREADS + k.thread_idx();
        k.if_(thread.lt(a.threads), || {
            let unit = a.unit(k, thread);
            k.if_else(unit.of_values, || self.values::<A>(k, a, &unit), || self.heads::<A>(k, a, &unit));
        });
    }
}

impl Append {
    /// Heads of queries, which stay where they are, or of keys, which go to the cache.
    fn heads<'k, A: Accumulate>(&self, k: K<'k>, a: Params<'k>, unit: &Unit<'k>) {
        let (rotate, (group, chunk)) = (self.0, a.chunks.divide(unit.number));
        let (of_q, token) = (unit.of_queries, unit.token);
        let of = a.q.or(of_q, a.k);
        let to = of_q.select_all(&token.at, &token.place);
        let heads = Group { to, written: Some(of_q | token.fits), ..some_of(of, token, group, a.group) };
        let rounded = |x: [Lanes<'k, A>; 2], ()| x.map(|x| Packed::round(k, rotate.dtype, x));
        turn(k, rotate, (a, token, chunk), heads, |_| (), rounded, |x, ()| x);
    }

    /// Heads of values, which go to the cache as they are.
    fn values<'k, A: Accumulate>(&self, k: K<'k>, a: Params<'k>, unit: &Unit<'k>) {
        let (rotate, (group, chunk)) = (self.0, a.value_chunks.divide(unit.number));
        let chunk = rotate.copying(chunk, k.lit(0u32), a.value_copying, a.value_dim);
        let heads = some_of(a.v, unit.token, group, a.group);
        rotate.each::<A, _>(k, heads, &chunk, |_| (), |x, ()| x);
    }
}

impl AccumulateKernel for AppendScaled {
    type Args = ScaledArgs;

    fn spec(&self) -> KernelSpec {
        let Self(rotate) = self;
        let spec = rotate.spec_of(&format!("{OP}_{}", DType::F8E4M3));
        let (common, table) = (rotate.dtype, rotate.table);
        let dtypes = DTypes::all(common).with("of.cos", table).with("of.sin", table);
        let dtypes = dtypes.with("of.k.y", DType::F8E4M3).with("of.v.y", DType::F8E4M3);
        spec.dtypes(dtypes)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ScaledParams<'k>) {
        k.after_previous_grid();
        let (Self(rotate), of) = (*self, a.of);
        let thread = k.block_idx_x() * THREADS + k.thread_idx();
        k.if_(thread.lt(of.threads), || {
            let unit = of.unit(k, thread);
            let token = unit.token;
            let of_heads = || {
                let (group, chunk) = of.chunks.divide(unit.number);
                let at = (of, token, chunk);
                let some = |heads| some_of(heads, token, group, of.group);
                let of_queries = || {
                    let heads = Group { to: token.at, written: None, ..some(of.q) };
                    let rounded = |x: [Lanes<'k, A>; 2], ()| x.map(|x| Packed::round(k, rotate.dtype, x));
                    turn(k, rotate, at, heads, |_| (), rounded, |x, ()| x);
                };
                let of_keys = || {
                    let scale = |head| Scale::of(a.k_scale, a.steps[0], head);
                    let rounded = |x: [Lanes<'k, A>; 2], scale: Scale<'k, A>| scale.codes(k, x);
                    let copied = |x: [Packed<'k, A>; 2], scale| rounded(x.map(|x| x.lanes()), scale);
                    turn(k, rotate, at, some(of.k), scale, rounded, copied);
                };
                k.if_else(unit.of_queries, of_queries, of_keys);
            };
            let values = || {
                let (group, chunk) = of.value_chunks.divide(unit.number);
                let chunk = rotate.copying(chunk, k.lit(0u32), of.value_copying, of.value_dim);
                let heads = some_of(of.v, token, group, of.group);
                let scale = |head| Scale::of(a.v_scale, a.steps[1], head);
                let codes = |x: [Packed<'k, A>; 2], scale: Scale<'k, A>| scale.codes(k, x.map(|x| x.lanes()));
                rotate.each(k, heads, &chunk, scale, codes);
            };
            k.if_else(unit.of_values, values, of_heads);
        });
    }
}

/// A chunk of heads of queries or keys: rotated by the angles of their token, of which `rounded` makes what is stored with what is
/// `known` of the head, or copied.
fn turn<'k, A: Accumulate, S>(
    k: K<'k>,
    rotate: Rotate,
    (a, token, chunk): (Params<'k>, Token<'k>, U32<'k>),
    heads: Group<'k>,
    known: impl Fn(Head<'k>) -> S,
    rounded: impl Fn([Lanes<'k, A>; 2], S) -> [Packed<'k, A>; 2],
    copied: impl Fn([Packed<'k, A>; 2], S) -> [Packed<'k, A>; 2],
) {
    let rotation = Rotation {
        cos: a.cos,
        sin: a.sin,
        rows: a.rows,
        row_len: a.row_len,
        of_batch: None,
        rotary_dim: a.rotary_dim,
        inverse: None,
    };
    k.if_else(
        chunk.lt(a.rotating),
        || {
            let angles = rotate.angles::<A>(rotation, token.position, chunk);
            let chunk = rotate.rotating(rotation, chunk);
            rotate.each(k, heads, &chunk, &known, |x, known| rounded(rotate.unrounded(&angles, x), known));
        },
        || {
            let chunk = rotate.copying(chunk - a.rotating, a.rotary_dim, a.copying, a.head_dim);
            // In place they are there.
            let elsewhere = heads.of.x.data.address().ne(heads.of.y.data.address());
            k.if_(elsewhere, || rotate.each(k, heads, &chunk, &known, copied));
        },
    );
}

/// The scale of a head.
struct Scale<'k, A: Accumulate> {
    scale: Reg<'k, A>,
    reciprocal: Reg<'k, A>,
    /// A magnitude from which on elements are beyond the largest number.
    beyond: Reg<'k, A>,
}

impl<'k, A: Accumulate> Scale<'k, A> {
    /// A multiple of the scale beyond the largest number.
    const BEYOND: f64 = 512.0;

    /// That of a head, of which the next has its own `step` numbers further on.
    fn of(scales: Ptr<'k, Read, f32>, step: U32<'k>, head: Head<'k>) -> Self {
        let at = scales.at((head.first + head.further) * step);
        let at = head.there.map_or(at, |there| at.only_where(there, Fill::Zero));
        let scale = at.get::<f32>().convert::<A>();
        Self { scale, reciprocal: 1.0 / scale, beyond: scale * Self::BEYOND }
    }

    /// Elements by the scale, as they are rounded to e4m3. A product with the rounded reciprocal and one correction are the rounded quotient
    /// (Markstein 1990, "Computation of elementary functions on the IBM RISC System/6000 processor") where nothing overflows.
    fn codes(&self, k: K<'k>, x: [Lanes<'k, A>; 2]) -> [Packed<'k, A>; 2] {
        let quotient = |x: Reg<'k, A>| {
            let x = x.minimum(self.beyond).maximum(-self.beyond);
            let quotient = x * self.reciprocal;
            let rest = (-quotient).mul_add(self.scale, x);
            rest.mul_add(self.reciprocal, quotient)
        };
        x.map(|x| Packed::round(k, DType::F8E4M3, x.map(quotient)))
    }
}

/// A group of heads of a token on their way to the cache.
fn some_of<'k>(of: Heads<'k>, token: Token<'k>, group: U32<'k>, each: U32<'k>) -> Group<'k> {
    let first = group * each;
    let end = (first + each).min(of.heads);
    Group { of, from: token.at, to: token.place, written: Some(token.fits), first, end }
}
