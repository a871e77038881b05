//! The kernel: a thread has two vectors of each of some heads of a token, and the cosines and sines of their pairs.

use warpwright_dsl::args::StridedPtr;
use warpwright_dsl::divide::DivisorArgs;
use warpwright_dsl::prelude::*;
use warpwright_dsl::{Element, Space, kernel_args};

use super::tuning::{Config, THREADS, UNROLL};
use super::{OP, Pairing};

kernel_args! {
    /// The heads of queries or keys, by batch, step and head.
    pub(crate) struct HeadsArgs => Heads { x: Strided<In<Elem>, 3>, y: Strided<Out<Elem>, 3>, heads: u32 }
}

kernel_args! {
    /// Threads are numbered by batch, step, group of `group` heads (those of the queries, then those of the keys), and chunk of a head: those
    /// that are rotated, then those that are copied. Rows of the tables have `row_len` elements.
    pub(crate) struct Args => Params {
        q: HeadsArgs, k: HeadsArgs, cos: In<Elem>, sin: In<Elem>, positions: Optional<In<u32>>, words: u32,
        threads: u32, chunks: DivisorArgs, groups: DivisorArgs, steps: DivisorArgs,
        rotating: u32, copying: u32, q_groups: u32, group: u32, rotary_dim: u32, head_dim: u32,
        rows: u64, row_len: u32, table_stride: u64, position_stride: u64, inverse: u32,
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotate {
    pub(crate) dtype: DType,
    pub(crate) table: DType,
    pub(crate) config: Config,
}

/// The tables, and which elements of a head are rotated.
#[derive(Clone, Copy)]
pub(crate) struct Rotation<'k> {
    pub(crate) cos: Ptr<'k, Read, Elem>,
    pub(crate) sin: Ptr<'k, Read, Elem>,
    pub(crate) rows: U64<'k>,
    pub(crate) row_len: U32<'k>,
    /// Batch and elements from the table of one to that of the next, where each has its own.
    pub(crate) of_batch: Option<(U32<'k>, U64<'k>)>,
    pub(crate) rotary_dim: U32<'k>,
    /// Whether angles are taken the other way round, if that depends on the launch.
    pub(crate) inverse: Option<U32<'k>>,
}

/// The two vectors of a chunk: where they begin in a head, and whether the second is there.
pub(crate) struct Chunk<'k> {
    places: [U32<'k>; 2],
    second: Option<Pred<'k>>,
}

/// Some heads of a token.
#[derive(Clone, Copy)]
pub(crate) struct Group<'k> {
    pub(crate) of: Heads<'k>,
    /// Batch and step, as they are read.
    pub(crate) from: [U32<'k>; 2],
    /// The same, as they are written.
    pub(crate) to: [U32<'k>; 2],
    /// Whether they are written, if that depends on the token.
    pub(crate) written: Option<Pred<'k>>,
    pub(crate) first: U32<'k>,
    pub(crate) end: U32<'k>,
}

/// A head: the first one of those that a thread has in flight together, how many behind it, and whether it is there, if that is not known.
#[derive(Clone, Copy)]
pub(crate) struct Head<'k> {
    pub(crate) first: U32<'k>,
    pub(crate) further: u32,
    pub(crate) there: Option<Pred<'k>>,
}

/// Cosines and sines of the pairs of a chunk, those of neighbours in order.
pub(crate) struct Angles<'k, A: Float> {
    cos: Lanes<'k, A>,
    sin: Lanes<'k, A>,
}

impl<'k> Heads<'k> {
    /// These where `p` holds, `others` elsewhere.
    pub(crate) fn or(self, p: Pred<'k>, others: Self) -> Self {
        let strides = |a: [U64<'k>; 3], b: [U64<'k>; 3]| p.select_all(&a, &b);
        Self {
            x: StridedPtr {
                data: p.pointer(self.x.data, others.x.data),
                strides: strides(self.x.strides, others.x.strides),
            },
            y: StridedPtr {
                data: p.pointer(self.y.data, others.y.data),
                strides: strides(self.y.strides, others.y.strides),
            },
            heads: p.select(self.heads, others.heads),
        }
    }
}

impl<'k, A: Float> Angles<'k, A> {
    /// The pair rotated.
    fn rotate(&self, pair: usize, [a, b]: [Reg<'k, A>; 2]) -> [Reg<'k, A>; 2] {
        let (cos, sin) = (self.cos[pair], self.sin[pair]);
        [a * cos - b * sin, b * cos + a * sin]
    }
}

impl AccumulateKernel for Rotate {
    type Args = Args;

    fn spec(&self) -> KernelSpec {
        self.spec_of(OP)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: Params<'k>) {
        k.after_previous_grid();
        let thread = k.block_idx_x() * THREADS + k.thread_idx();
        k.if_(thread.lt(a.threads), || {
            let (rest, chunk) = a.chunks.divide(thread);
            let (token, group) = a.groups.divide(rest);
            let (batch, step) = a.steps.divide(token);
            let of_q = group.lt(a.q_groups);
            let of = a.q.or(of_q, a.k);
            let first = of_q.select(group, group - a.q_groups) * a.group;
            let (from, end) = ([batch, step], (first + a.group).min(of.heads));
            let heads = Group { of, from, to: from, written: None, first, end };
            let rotation = Rotation {
                cos: a.cos,
                sin: a.sin,
                rows: a.rows,
                row_len: a.row_len,
                of_batch: Some((batch, a.table_stride)),
                rotary_dim: a.rotary_dim,
                inverse: Some(a.inverse),
            };
            k.if_else(
                chunk.lt(a.rotating),
                || {
                    let position = k.if_else(
                        a.positions.is_given(),
                        || {
                            let at = batch.to_u64() * a.position_stride + step.to_u64();
                            a.positions.value.integer(at, a.words)
                        },
                        || step.to_u64().to_i64(),
                    );
                    let angles = self.angles::<A>(rotation, position, chunk);
                    let chunk = self.rotating(rotation, chunk);
                    self.each(k, heads, &chunk, |_| (), |x, ()| self.rotated(k, &angles, x));
                },
                || {
                    let chunk = self.copying(chunk - a.rotating, a.rotary_dim, a.copying, a.head_dim);
                    // In place they are there.
                    let elsewhere = of.x.data.address().ne(of.y.data.address());
                    k.if_(elsewhere, || {
                        self.each::<A, _>(k, heads, &chunk, |_| (), |x, ()| x);
                    });
                },
            );
        });
    }
}

impl Rotate {
    /// The specification of a kernel of these configurations for the operation `op`.
    pub(crate) fn spec_of(&self, op: &str) -> KernelSpec {
        let Self { dtype, table, config: Config { width, pairing, repeated } } = *self;
        let pairing = match (pairing, repeated) {
            (Pairing::Half, _) => "half",
            (Pairing::Interleaved, false) => "interleaved",
            (Pairing::Interleaved, true) => "interleaved_repeated",
        };
        let table_name = if table == dtype { String::new() } else { format!("_{table}") };
        let name = format!("{op}_{dtype}{table_name}_{pairing}_x{width}");
        let dtypes = DTypes::all(dtype).with("cos", table).with("sin", table);
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(dtypes)
    }

    /// A chunk that is rotated: a vector of each half, or of single neighbours one and the next.
    pub(crate) fn rotating<'k>(&self, of: Rotation<'k>, chunk: U32<'k>) -> Chunk<'k> {
        let Config { width, pairing, .. } = self.config;
        let places = match (pairing, width) {
            (Pairing::Interleaved, 1) => [chunk * 2, chunk * 2 + 1],
            _ => [chunk * width, chunk * width + (of.rotary_dim >> 1)],
        };
        Chunk { places, second: None }
    }

    /// One of `chunks` chunks of the elements of a head from `from` to `end` that are copied; its second vector may lie behind the head.
    pub(crate) fn copying<'k>(
        &self,
        chunk: U32<'k>,
        from: U32<'k>,
        chunks: U32<'k>,
        end: U32<'k>,
    ) -> Chunk<'k> {
        let width = self.config.width;
        let first = chunk.mul_add(width, from);
        let second = chunks.mul_add(width, first);
        Chunk { places: [first, second], second: Some(second.lt(end)) }
    }

    /// Cosines and sines of a chunk. Those of a position without a row are NaN.
    pub(crate) fn angles<'k, A: Accumulate>(
        &self,
        of: Rotation<'k>,
        position: I64<'k>,
        chunk: U32<'k>,
    ) -> Angles<'k, A> {
        let Config { width, pairing, repeated } = self.config;
        let there = position.ge(0) & position.lt(of.rows.to_i64());
        let row = there.select(position.to_u64(), 0) * of.row_len.to_u64();
        let row = of.of_batch.map_or(row, |(batch, stride)| row + batch.to_u64() * stride);
        let rows = |table: Ptr<'k, Read, Elem>| table.at(row).only_where(there, Fill::Zero);
        // Neighbours have a number each, or as many numbers as elements; otherwise a chunk has one for each element of a vector.
        let load = |table: Ptr<'k, Read, Elem>| -> Lanes<'k, A> {
            let vector = |place: U32<'k>| -> Lanes<'k, A> {
                if repeated {
                    let twice: Lanes<'k, A> = rows(table).at(place.to_u64()).load(width);
                    return twice.iter().step_by(2).collect();
                }
                rows(table).at((place >> 1).to_u64()).load(width / 2)
            };
            match pairing {
                Pairing::Interleaved if width > 1 => {
                    Lanes::concat(self.rotating(of, chunk).places.map(vector))
                }
                _ if repeated => rows(table).at((chunk * 2).to_u64()).load(1),
                _ => rows(table).at((chunk * width).to_u64()).load(width),
            }
        };
        let sign: Option<Reg<'k, A>> = of.inverse.map(|inverse| inverse.ne(0).select(-1.0, 1.0));
        let (cos, sin) = (load(of.cos), load(of.sin));
        let cos = cos.map(|cos| there.select(cos, f64::NAN));
        Angles { cos, sin: sign.map_or(sin.clone(), |sign| sin * sign) }
    }

    /// Both vectors rotated.
    pub(crate) fn rotated<'k, A: Float>(
        &self,
        k: K<'k>,
        angles: &Angles<'k, A>,
        x: [Packed<'k, A>; 2],
    ) -> [Packed<'k, A>; 2] {
        self.unrounded(angles, x).map(|lanes| Packed::round(k, self.dtype, lanes))
    }

    /// The same before they are rounded.
    pub(crate) fn unrounded<'k, A: Float>(
        &self,
        angles: &Angles<'k, A>,
        x: [Packed<'k, A>; 2],
    ) -> [Lanes<'k, A>; 2] {
        let [x, y] = x.map(|x| x.lanes());
        if self.config.pairing == Pairing::Half || self.config.width == 1 {
            let pairs = x.iter().zip(y).enumerate().map(|(i, (a, b))| angles.rotate(i, [a, b]));
            let (x, y): (Vec<_>, Vec<_>) = pairs.map(|[a, b]| (a, b)).unzip();
            [x.into(), y.into()]
        } else {
            let of_vector = x.len() / 2;
            let neighbours = |x: Lanes<'k, A>, first: usize| -> Lanes<'k, A> {
                let pairs = x.as_slice().chunks(2).enumerate();
                pairs.flat_map(|(i, pair)| angles.rotate(first + i, [pair[0], pair[1]])).collect()
            };
            [neighbours(x, 0), neighbours(y, of_vector)]
        }
    }

    /// Loads the two vectors of [`UNROLL`] heads at a time and stores what `f` makes of those of each and of what `known` is of it: by its
    /// number, and whether it is there.
    pub(crate) fn each<'k, A: Accumulate, S>(
        &self,
        k: K<'k>,
        heads: Group<'k>,
        chunk: &Chunk<'k>,
        known: impl Fn(Head<'k>) -> S,
        f: impl Fn([Packed<'k, A>; 2], S) -> [Packed<'k, A>; 2],
    ) {
        let Group { of, from, to, written, first, end } = heads;
        let width = self.config.width;
        k.for_each(k.range(first, end, UNROLL), |head| {
            // The first head is there, or the loop had ended.
            let heads = (0..UNROLL).map(|i| (i > 0).then(|| (head + i).lt(end)));
            let inside: Vec<[Option<Pred<'k>>; 2]> = heads.map(|head| [head, chunk.both(head)]).collect();
            // On its way with the elements.
            let known: Vec<S> = (0..)
                .zip(&inside)
                .map(|(i, inside)| known(Head { first: head, further: i, there: inside[0] }))
                .collect();
            let x = of.x.at([from[0], from[1], head]).pitched(of.x.strides[2], UNROLL).zip(&inside);
            let x: Vec<_> =
                x.map(|(x, inside)| chunk.vectors(x, *inside).map(|x| x.load_packed(width))).collect();
            let y = of.y.at([to[0], to[1], head]).pitched(of.y.strides[2], UNROLL).zip(&inside);
            for (((y, inside), x), known) in y.zip(x).zip(known) {
                let inside = inside.map(|inside| both(inside, written));
                for (y, x) in chunk.vectors(y, inside).into_iter().zip(f(x, known)) {
                    y.store_packed(&x);
                }
            }
        });
    }
}

/// Whether all that are conditions hold.
fn both<'k>(a: Option<Pred<'k>>, b: Option<Pred<'k>>) -> Option<Pred<'k>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a & b),
        (a, b) => a.or(b),
    }
}

impl<'k> Chunk<'k> {
    /// Whether the second vector of a head is there, where the head is.
    fn both(&self, head: Option<Pred<'k>>) -> Option<Pred<'k>> {
        both(head, self.second)
    }

    /// The vectors of a head, of accesses where they are inside.
    fn vectors<S: Space, E: Element>(
        &self,
        head: Ptr<'k, S, E>,
        inside: [Option<Pred<'k>>; 2],
    ) -> [Ptr<'k, S, E>; 2] {
        [0, 1].map(|i| {
            let vector = head.at(self.places[i].to_u64());
            inside[i].map_or(vector, |inside| vector.only_where(inside, Fill::Zero))
        })
    }
}
