//! The gradients of a chunk for some heads of a group.
//!
//! With the notation of the parent module, `U = dy x^T` and `L[t, s] = exp(S[t] - S[s])` for `s <= t`: `W = G L step` gives `dx = W^T dy`,
//! `T = U L step` gives `dC = T B` and `dB = T^T C`, beside what comes from the state `h` before the chunk and the gradient `dh` of that
//! behind it. The gradient of an exponent is that of all sums behind its position: pairs of positions on both sides of it, so what each
//! position gives as the later and as the earlier one of pairs is left for [the next kernel](super::step_gradients).

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, kernel_args};

use super::{
    ChunkSteps, Config, DOWN, Place, Rows, STEP_BYTES, Share, SizeParams, Sizes, Steps, TileRows,
    first_state, first_step, rows_of_chunk, settle,
};
use crate::chunk_scan::tuning::{ACROSS, CHUNK};

/// Values that a position leaves: as the later one of pairs, and as the earlier one within the chunk and by the state behind it, those two
/// without its step.
pub(in crate::chunk_scan) const OF_POSITION: u32 = 3;
/// Values that a head leaves in a chunk: what exponents of the whole chunk have in common, and its share in the gradient of `D`.
pub(in crate::chunk_scan) const OF_CHUNK: u32 = 2;

kernel_args! {
    /// `dstates` are the gradients of the states behind the chunks. `rows` has for each block of a group what it gives to those of `B` and
    /// of `C`, `elements` each; `positions` and `chunks` what positions and heads leave, each value of all of them behind the other.
    pub(in crate::chunk_scan) struct GradientArgs => GradientParams {
        x: Rows, dy: Rows, b: Rows, c: Rows, steps: Steps, states: In<Elem>, dstates: In<Elem>, d: Optional<In<f32>>,
        dx: Out<Elem>, rows: Out<f32>, positions: Out<f32>, chunks: Out<f32>, sizes: Sizes, parts: u32, elements: u64,
        of_positions: u64, of_chunks: u64,
    }
}

/// A block for some heads of a group in a chunk.
#[derive(Clone, Copy, Debug)]
pub(in crate::chunk_scan) struct Gradients(pub(in crate::chunk_scan) Config);

/// The gradients of `B` and `C` of a warp.
struct OfRows<'k> {
    db: RegTile<'k, f32>,
    dc: RegTile<'k, f32>,
}

carry!(OfRows { db, dc });

/// The block's shared memory.
#[derive(Clone, Copy)]
struct Tiles<'k> {
    b: SharedTile<'k>,
    c: SharedTile<'k>,
    /// `W` and `T`.
    weighted: SharedTile<'k>,
    turned: SharedTile<'k>,
    x: SharedTile<'k>,
    dy: SharedTile<'k>,
    /// The state, and then its gradient.
    state: SharedTile<'k>,
    steps: ChunkSteps<'k>,
    /// Sums of what the warps have of a row each: those of later positions, of earlier ones by the state, and, of the warps below each other,
    /// of earlier ones.
    later: Ptr<'k, Shared, f32>,
    by_state: Ptr<'k, Shared, f32>,
    earlier: Ptr<'k, Shared, f32>,
    /// The warps' shares of the values of a head.
    of_head: Ptr<'k, Shared, f32>,
}

impl Gradients {
    const fn tiles_bytes(self) -> u32 {
        2 * (self.0.row_tile().bytes() + self.0.pair_tile().bytes() + self.0.head_tile().bytes())
            + self.0.state_tile().bytes()
    }

    /// Bytes of dynamic shared memory.
    pub(in crate::chunk_scan) const fn shared_bytes(self) -> u32 {
        self.tiles_bytes() + STEP_BYTES
    }

    fn tiles<'k>(self, k: K<'k>) -> Tiles<'k> {
        let Self(config) = self;
        let base = k.dynamic_shared_elem(config.dtype);
        let (rows, pairs, head) = (config.row_tile(), config.pair_tile(), config.head_tile());
        let mut before = 0;
        let mut tile = |layout: TileLayout| {
            let tile = k.tile_at(base, layout).moved(before);
            before += layout.bytes();
            tile
        };
        let [b, c, weighted, turned, x, dy, state] =
            [rows, rows, pairs, pairs, head, head, config.state_tile()].map(&mut tile);
        Tiles {
            b,
            c,
            weighted,
            turned,
            x,
            dy,
            state,
            steps: ChunkSteps::at(k, b.base() + self.tiles_bytes()),
            later: k.shared(ACROSS * CHUNK),
            by_state: k.shared(ACROSS * CHUNK),
            earlier: k.shared(DOWN * CHUNK),
            of_head: k.shared(OF_CHUNK * config.threads() / WARP),
        }
    }
}

impl KernelDef for Gradients {
    type Args = GradientArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(self.0.name("_backward"), BlockDim::x(self.0.threads()))
            .dtypes(DTypes::all(self.0.dtype))
            .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, p: GradientParams<'k>) {
        let Self(config) = *self;
        let sizes: SizeParams<'k> = p.sizes;
        let (place, share, tiles) = (Place::new(k, config), Share::new(k, sizes, p.parts), self.tiles(k));
        let position = share.position(sizes);
        for (tile, from) in [(tiles.b, p.b), (tiles.c, p.c)] {
            let copy = rows_of_chunk(config, tile, from, position, share.group.mul_wide(sizes.state));
            copy.start([share.here, sizes.state]);
        }
        settle(k, config);
        let products = place.product((tiles.c, Major::K), (tiles.b, Major::K), [CHUNK, config.state]);
        let zeros = || place.zeros(config.state);
        let found =
            k.fold(k.range(0u32, share.heads, 1u32), OfRows { db: zeros(), dc: zeros() }, |i, found| {
                let head = share.head + i;
                let of_head = OfHead { p, sizes, place, share: &share, tiles, head };
                of_head.gradients(&products, found)
            });
        let row = |which: u32| (share.part * 2 + which).to_u64() * p.elements;
        for (which, gradient) in [(0, &found.db), (1, &found.dc)] {
            let to = p.rows.at(row(which));
            for (row, values) in place.rows().into_iter().zip(gradient.rows()) {
                let of_row = (position + row.to_u64()) * sizes.groups.to_u64() + share.group.to_u64();
                let to = to.at(of_row * sizes.state.to_u64());
                for (column, pair) in place.columns(config.state).into_iter().zip(values.chunks(2)) {
                    let width = if config.aligned { 2 } else { 1 };
                    for (i, values) in (0u32..).step_by(width).zip(pair.chunks(width)) {
                        let there = row.lt(share.here) & (column + i).lt(sizes.state);
                        to.at((column + i).to_u64())
                            .only_where(there, Fill::Zero)
                            .store(Lanes::from(values.to_vec()));
                    }
                }
            }
        }
    }
}

/// A head of the block's.
struct OfHead<'a, 'k> {
    p: GradientParams<'k>,
    sizes: SizeParams<'k>,
    place: Place<'k>,
    share: &'a Share<'k>,
    tiles: Tiles<'k>,
    head: U32<'k>,
}

impl<'k> OfHead<'_, 'k> {
    /// The gradients of the head; those of `B` and `C` are added to what the heads before have `found`.
    fn gradients(&self, products: &RegTile<'k, f32>, found: OfRows<'k>) -> OfRows<'k> {
        let (place, tiles, Config { head, state, .. }) = (self.place, self.tiles, self.place.config);
        let (k, OfRows { mut db, mut dc }) = (place.k, found);
        // What a thread may still read of the tiles of the head before is what it copies itself.
        self.start_head();
        k.commit_copies();
        k.wait_copies(0);
        k.barrier();
        let weights = place.weights(tiles.steps);
        let d = self.p.d.value.at(self.head).only_where(self.p.d.is_given(), Fill::Zero).get::<f32>();
        let from_start = weights.rows.map(|[sum, _]| sum.exp2_approx());
        let later = self.pairs(products, &weights);
        // What the state before the chunk gives.
        let (rows, states) = ((tiles.dy, Major::K), (tiles.state, Major::Mn));
        let dots =
            place.add_scaled(&mut dc, rows, states, [state, head], from_start, Some((tiles.c, from_start)));
        self.put_rows(tiles.later, [0, 1].map(|row| later[row] + dots[row]));
        let dd = place.take(tiles.x).zip(&place.take(tiles.dy), |x, dy| x * dy);
        let dd = warp_reduce(k, Sum, sum_of(k, dd.rows().map(|row| sum_of(k, row.iter().copied()))));
        k.barrier();
        self.start_state(self.p.dstates);
        let mut dx = place.take(tiles.dy).map(|_, _, dy| dy * d);
        place.add(&mut dx, (tiles.weighted, Major::Mn), (tiles.dy, Major::Mn), [head, CHUNK]);
        place.add(&mut dc, (tiles.turned, Major::K), (tiles.b, Major::Mn), [state, CHUNK]);
        place.add(&mut db, (tiles.turned, Major::Mn), (tiles.c, Major::Mn), [state, CHUNK]);
        settle(k, place.config);
        // And what goes through the state behind it.
        let end = tiles.steps.end();
        let to_end = weights.rows.map(|[sum, _]| (end - sum).exp2_approx());
        let steps = weights.rows.map(|[_, step]| step);
        let by_steps = [0, 1].map(|row| to_end[row] * steps[row]);
        let _ = place.add_scaled(
            &mut dx,
            (tiles.b, Major::K),
            (tiles.state, Major::K),
            [head, state],
            by_steps,
            None,
        );
        let (rows, states) = ((tiles.x, Major::K), (tiles.state, Major::Mn));
        let dots = place.add_scaled(&mut db, rows, states, [state, head], by_steps, Some((tiles.b, to_end)));
        self.put_rows(tiles.by_state, dots);
        let whole = warp_reduce(k, Sum, self.of_states()) * end.exp2_approx();
        k.if_(k.lane_idx().eq(0), || {
            let at = k.warp_idx() * OF_CHUNK;
            tiles.of_head.at(at).store(Lanes::from(vec![whole, dd]));
        });
        // The gradient of `x` takes the place of `x`.
        k.barrier();
        place.put(tiles.x, &dx);
        k.barrier();
        let of_x = self.sizes.heads.mul_wide(self.sizes.head_dim);
        let to =
            self.p.dx.at(self.share.position(self.sizes) * of_x + self.head.mul_wide(self.sizes.head_dim));
        place.store(tiles.x, to, of_x, [self.share.here, self.sizes.head_dim]);
        self.store_values();
        OfRows { db, dc }
    }

    /// Starts the copies of what the head has, and of the state before the chunk.
    fn start_head(&self) {
        let Self { p, sizes, place: Place { k, config, .. }, share, tiles, head } = *self;
        let position = share.position(sizes);
        for (tile, from) in [(tiles.x, p.x), (tiles.dy, p.dy)] {
            let copy = rows_of_chunk(config, tile, from, position, head.mul_wide(sizes.head_dim));
            copy.start([share.here, sizes.head_dim]);
        }
        tiles.steps.copy(k, p.steps, first_step(sizes, share.sample, head, share.chunk), k.lit(true));
        self.start_state(p.states);
    }

    /// Where the head's part of a tensor of states begins.
    fn state_at(&self, states: Ptr<'k, Read, Elem>) -> Ptr<'k, Read, Elem> {
        states.at(first_state(self.sizes, self.share.sample, self.head, self.share.chunk))
    }

    /// Starts the copy of the head's part of a tensor of states.
    fn start_state(&self, states: Ptr<'k, Read, Elem>) {
        let Self { sizes, place: Place { config, .. }, tiles, .. } = *self;
        let copy = TileRows::new(config, tiles.state, self.state_at(states), sizes.state.to_u64());
        copy.start([sizes.head_dim, sizes.state]);
    }

    /// Puts `W` and `T` into their tiles, and what positions give as the earlier ones of pairs; returns what they give as the later ones.
    fn pairs(&self, products: &RegTile<'k, f32>, weights: &super::Weights<'k>) -> [F32<'k>; 2] {
        let (place, tiles) = (self.place, self.tiles);
        let k = place.k;
        let of_both = place.product((tiles.dy, Major::K), (tiles.x, Major::K), [CHUNK, place.config.head]);
        let weighted = products.map(|row, column, value| value * weights.decay(row, column));
        let turned = of_both.map(|row, column, value| value * weights.decay(row, column));
        let by_steps = |values: &RegTile<'k, f32>| {
            values.map(|row, column, value| weights.masked(row, column, value * weights.steps[column]))
        };
        place.put(tiles.weighted, &by_steps(&weighted));
        place.put(tiles.turned, &by_steps(&turned));
        let shares = turned.zip(products, |turned, product| turned * product);
        let shares = shares.map(|row, column, value| weights.masked(row, column, value));
        let columns = shares.row(0).len();
        let sums = (0..columns).map(|column| {
            let sum = shares.row(0)[column] + shares.row(1)[column];
            [4u32, 8, 16].into_iter().fold(sum, |sum, mask| sum + sum.shfl_xor(mask))
        });
        let sums: Vec<_> = sums.collect();
        k.if_(k.lane_idx().lt(4), || {
            let to = tiles.earlier.at((k.warp_idx() & (DOWN - 1)) * CHUNK);
            for (column, pair) in weights.columns.iter().zip(sums.chunks(2)) {
                to.at(*column).store(Lanes::from(pair.to_vec()));
            }
        });
        let later = shares.map(|_, column, value| value * weights.steps[column]);
        [0, 1].map(|row| sum_of(k, later.row(row).iter().copied()))
    }

    /// Puts the sums of the thread's rows, over the lanes that share them.
    fn put_rows(&self, to: Ptr<'k, Shared, f32>, sums: [F32<'k>; 2]) {
        let place = self.place;
        let k = place.k;
        let sums = sums.map(|sum| k.warp_combine(4, sum, |a, b| a + b));
        k.if_((k.lane_idx() & 3).eq(0), || {
            for (row, sum) in place.rows().into_iter().zip(sums) {
                to.at(place.side * CHUNK + row).set(sum);
            }
        });
    }

    /// The thread's share of the product of the state before the chunk and the gradient of that behind it.
    fn of_states(&self) -> F32<'k> {
        let Self { p, sizes, place: Place { k, config, .. }, tiles, .. } = *self;
        let width = if config.aligned { 16 / config.dtype.bytes() as u32 } else { 1 };
        let of_row = config.state / width;
        let before = self.state_at(p.states);
        let zero = k.lit(0.0f32);
        k.fold(k.range(k.thread_idx(), config.head * of_row, config.threads()), zero, |index, sum| {
            let (row, number) = (index / of_row, index % of_row * width);
            let there = row.lt(sizes.head_dim) & number.lt(sizes.state);
            let at = row.mul_wide(sizes.state) + number.to_u64();
            let before = before.at(at).only_where(there, Fill::Zero).load::<f32>(width);
            let behind = tiles.state.at(row, number).load::<f32>(width);
            before.iter().zip(behind.iter()).fold(sum, |sum, (a, b)| a.mul_add(b, sum))
        })
    }

    /// Adds what the warps have of the values of positions and of the head, and stores them.
    fn store_values(&self) {
        let Self { p, sizes, place: Place { k, config, .. }, share, tiles, head } = *self;
        let thread = k.thread_idx();
        let add = |from: Ptr<'k, Shared, f32>, count: u32, step: u32| -> F32<'k> {
            sum_of(k, (0..count).map(|i| from.at(u64::from(i * step)).get()))
        };
        k.if_(thread.lt(CHUNK), || {
            let at = first_step(sizes, share.sample, head, share.chunk) + thread.to_u64();
            let values = [
                add(tiles.later.at(thread), ACROSS, CHUNK),
                add(tiles.earlier.at(thread), DOWN, CHUNK),
                add(tiles.by_state.at(thread), ACROSS, CHUNK),
            ];
            for (i, value) in (0u64..).zip(values) {
                p.positions.at(p.of_positions * i + at).set(value);
            }
        });
        k.if_(thread.lt(OF_CHUNK), || {
            let sum = add(tiles.of_head.at(thread), config.threads() / WARP, OF_CHUNK);
            let chunk = share.sample.mul_wide(sizes.chunks) + share.chunk.to_u64();
            let at = chunk * sizes.heads.to_u64() + head.to_u64();
            p.chunks.at(p.of_chunks * thread.to_u64() + at).set(sum);
        });
    }
}

/// The sum of some values.
fn sum_of<'k>(k: K<'k>, values: impl Iterator<Item = F32<'k>>) -> F32<'k> {
    values.reduce(|a, b| a + b).unwrap_or_else(|| k.lit(0.0))
}
