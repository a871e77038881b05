//! The kernels, and what they share: which channels a block has, and how it stages the positions that it walks along.
//!
//! A block has channels of one group of a sample and goes along all positions, a chunk at a time. Neighbouring lanes have a channel, a
//! few numbers of its state each, in registers; what they read at a position, its step and input and the rows of `B` and `C`, is in
//! shared memory, where it was put in whole vectors whichever dimension is innermost.

pub(super) mod backward;
pub(super) mod forward;
pub(super) mod sums;
pub(super) mod update;

use warpwright_dsl::prelude::*;
use warpwright_dsl::{VECTOR_BYTES, WARP, kernel_args};

use super::Layout;
use super::tuning::{OWN, THREADS, batch, blocks, chunk};

kernel_args! {
    /// The inputs that every kernel has. `tiles` blocks share the `of_group` channels of a group of a sample.
    pub(super) struct Problem => ProblemParams {
        u: In<Elem>, delta: In<Elem>, a: In<Elem>, b: In<Elem>, c: In<Elem>, d: Optional<In<Elem>>, z: Optional<In<Elem>>,
        delta_bias: Optional<In<Elem>>, softplus: u32, channels: u32, len: u32, state: u32, groups: u32, of_group: u32,
        tiles: u32,
    }
}

/// Those of [`Problem`] that are of the type of sums.
const PARAMETERS: [&str; 3] = ["problem.a", "problem.d", "problem.delta_bias"];

/// The properties that a kernel's code depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) dtype: DType,
    /// Where the channels are.
    pub(super) layout: Layout,
    /// Lanes that share a channel's state.
    pub(super) lanes: u32,
    /// Whether they have no numbers but those of the state.
    pub(super) whole: bool,
    /// Whether vectors begin at multiples of their size and are whole.
    pub(super) aligned: bool,
}

impl Config {
    /// Channels of a block.
    pub(super) const fn channels(self) -> u32 {
        THREADS / self.lanes
    }

    /// Numbers of state that the lanes of a channel have; those behind the last are 0.
    const fn states(self) -> u32 {
        self.lanes * OWN
    }

    /// Elements of a vector.
    pub(super) const fn vector(self) -> u32 {
        VECTOR_BYTES / self.dtype.bytes() as u32
    }

    /// Elements of the type of sums that 16 bytes hold, which keep rows of shared memory in different banks.
    const fn slack(self) -> u32 {
        VECTOR_BYTES / self.dtype.accumulator().bytes() as u32
    }

    /// Elements from one channel of a tile to the next.
    const fn pitch(self) -> u32 {
        chunk(self.dtype) + self.slack()
    }

    /// Elements from one row of `B` or `C` to the next.
    const fn row(self) -> u32 {
        self.states() + self.slack()
    }

    fn spec(self, step: &str) -> KernelSpec {
        let Self { dtype, layout, lanes, whole, aligned } = self;
        let layout = match layout {
            Layout::ChannelsFirst => "first",
            Layout::ChannelsLast => "last",
        };
        let mut name = format!("selective_scan{step}_{dtype}_{layout}_x{lanes}");
        for (there, word) in [(!whole, "_part"), (!aligned, "_scalar")] {
            name.push_str(if there { word } else { "" });
        }
        KernelSpec::new(name, BlockDim::x(THREADS))
            .dtypes(DTypes::all(dtype).accumulated(PARAMETERS))
            .min_blocks_per_sm(Some(blocks(dtype)))
    }
}

/// A vector of a tile that a thread stages.
#[derive(Clone, Copy)]
struct Place<'k> {
    /// Its first channel, counted from the block's first.
    channel: U32<'k>,
    /// Its first position in the chunk.
    position: U32<'k>,
    /// Whether the tile has it.
    inside: Pred<'k>,
}

/// A tile of a chunk in shared memory, or rows of `B` or `C`.
type Tile<'k, A> = Ptr<'k, Shared, A>;

/// The inputs of a chunk that a thread has loaded: its vectors of `u` and `delta`, and its elements of `B` and `C`.
struct Loaded<'k, A: Float> {
    u: Vec<Lanes<'k, A>>,
    delta: Vec<Lanes<'k, A>>,
    b: Vec<Reg<'k, A>>,
    c: Vec<Reg<'k, A>>,
}

carry!(Loaded<A: Float> { u, delta, b, c });

/// The place of a thread: its channel and numbers, and the vectors that it stages.
struct Block<'k> {
    k: K<'k>,
    config: Config,
    p: ProblemParams<'k>,
    sample: U32<'k>,
    group: U32<'k>,
    /// Number of the block among those of its group.
    tile: U32<'k>,
    /// The block's first channel, and how many the group has from there on.
    first: U32<'k>,
    here: U32<'k>,
    /// The channel that the thread walks along, counted from the first, and the first of its numbers of state.
    channel: U32<'k>,
    number: U32<'k>,
    places: Vec<Place<'k>>,
}

impl<'k> Block<'k> {
    fn new(k: K<'k>, config: Config, p: ProblemParams<'k>) -> Self {
        let (group, tile) = (k.block_idx_x() / p.tiles, k.block_idx_x() % p.tiles);
        let (sample, group) = (group / p.groups, group % p.groups);
        let before = tile * config.channels();
        let first = group.mul_add(p.of_group, before);
        let (channel, lane) = (k.thread_idx() / config.lanes, k.thread_idx() % config.lanes);
        let here = p.of_group - before;
        let places = Self::places(k, config);
        Self { k, config, p, sample, group, tile, first, here, channel, number: lane * OWN, places }
    }

    fn places(k: K<'k>, config: Config) -> Vec<Place<'k>> {
        let (v, channels, positions) = (config.vector(), config.channels(), chunk(config.dtype));
        let count = channels * positions / v;
        let of = |first: u32| {
            let index = k.thread_idx() + first;
            let (channel, position) = match config.layout {
                Layout::ChannelsFirst => (index / (positions / v), index % (positions / v) * v),
                Layout::ChannelsLast => (index % (channels / v) * v, index / (channels / v)),
            };
            Place { channel, position, inside: index.lt(count) }
        };
        (0..count).step_by(THREADS as usize).map(of).collect()
    }

    /// A tile of the block's channels and the positions of a chunk.
    fn tile<A: Accumulate>(&self) -> Tile<'k, A> {
        self.k.shared(self.config.channels() * self.config.pitch())
    }

    /// The rows of `B` or `C` of a chunk.
    fn rows<A: Accumulate>(&self) -> Tile<'k, A> {
        self.k.shared(chunk(self.config.dtype) * self.config.row())
    }

    /// Which elements of a vector there are: one predicate for all, or one for each.
    fn live(&self, place: Place<'k>, start: U32<'k>) -> Vec<Pred<'k>> {
        let Place { channel, position, inside } = place;
        let of = |i: u32| {
            let (channel, position) = match self.config.layout {
                Layout::ChannelsFirst => (channel, position + i),
                Layout::ChannelsLast => (channel + i, position),
            };
            inside & channel.lt(self.here) & (start + position).lt(self.p.len)
        };
        (0..if self.config.aligned { 1 } else { self.config.vector() }).map(of).collect()
    }

    /// Where a vector lies in a tensor like `u`. A sample has at most 2^31 elements.
    fn at(&self, place: Place<'k>, start: U32<'k>) -> U64<'k> {
        let (channel, position) = (self.first + place.channel, start + place.position);
        let within = match self.config.layout {
            Layout::ChannelsFirst => channel.mul_add(self.p.len, position),
            Layout::ChannelsLast => position.mul_add(self.p.channels, channel),
        };
        self.sample.mul_wide(self.p.channels * self.p.len) + within.to_u64()
    }

    /// The thread's vectors of a tensor like `u`, zeros where it has none.
    fn load<A: Float>(
        &self,
        from: Ptr<'k, Read, Elem>,
        start: U32<'k>,
        given: Option<Pred<'k>>,
    ) -> Vec<Lanes<'k, A>> {
        let of = |&place: &Place<'k>| {
            let (at, mut live) = (from.at(self.at(place, start)), self.live(place, start));
            live.iter_mut().for_each(|live| *live = given.map_or(*live, |given| given & *live));
            if self.config.aligned {
                return at.only_where(live[0], Fill::Zero).load(self.config.vector());
            }
            (0u64..).zip(&live).map(|(i, &live)| at.at(i).only_where(live, Fill::Zero).get()).collect()
        };
        self.places.iter().map(of).collect()
    }

    /// Stores the thread's vectors.
    fn store<A: Float>(&self, to: Ptr<'k, Write, Elem>, start: U32<'k>, vectors: &[Lanes<'k, A>]) {
        for (&place, vector) in self.places.iter().zip(vectors) {
            let (at, live) = (to.at(self.at(place, start)), self.live(place, start));
            if self.config.aligned {
                at.only_where(live[0], Fill::Zero).store(vector.clone());
                continue;
            }
            for ((i, value), &live) in (0u64..).zip(vector.iter()).zip(&live) {
                at.at(i).only_where(live, Fill::Zero).set(value);
            }
        }
    }

    /// The number of each channel of a vector, 0 where there is none or nothing is given; of a vector along positions all the same.
    fn of_channels<A: Float>(&self, from: OptionalRead<'k>) -> Vec<Lanes<'k, A>> {
        let of = |place: &Place<'k>| {
            let number = |i: u32| {
                let there = place.inside & (place.channel + i).lt(self.here) & from.is_given();
                from.value.at(self.first + place.channel + i).only_where(there, Fill::Zero).get()
            };
            match self.config.layout {
                Layout::ChannelsFirst => Lanes::splat(number(0), self.config.vector()),
                Layout::ChannelsLast => (0..self.config.vector()).map(number).collect(),
            }
        };
        self.places.iter().map(of).collect()
    }

    /// Puts the thread's vectors into a tile.
    fn put<A: Accumulate>(&self, tile: Tile<'k, A>, vectors: &[Lanes<'k, A>]) {
        for (place, vector) in self.places.iter().zip(vectors) {
            let at = tile.at(place.channel * self.config.pitch() + place.position);
            match self.config.layout {
                Layout::ChannelsFirst => at.only_where(place.inside, Fill::Zero).store(vector.clone()),
                Layout::ChannelsLast => {
                    for (i, value) in (0..).zip(vector.iter()) {
                        let at = at.at(u64::from(i * self.config.pitch()));
                        at.only_where(place.inside, Fill::Zero).set(value);
                    }
                }
            }
        }
    }

    /// The thread's vectors of a tile.
    fn take<A: Accumulate>(&self, tile: Tile<'k, A>) -> Vec<Lanes<'k, A>> {
        let of = |place: &Place<'k>| {
            let v = self.config.vector();
            let at = tile
                .at(place.channel * self.config.pitch() + place.position)
                .only_where(place.inside, Fill::Zero);
            match self.config.layout {
                Layout::ChannelsFirst => at.load(v),
                Layout::ChannelsLast => {
                    (0..v).map(|i| at.at(u64::from(i * self.config.pitch())).get()).collect()
                }
            }
        };
        self.places.iter().map(of).collect()
    }

    /// The elements of the rows of `B` or `C` of a chunk that a thread stages: position and number of state.
    fn elements(&self) -> Vec<[U32<'k>; 2]> {
        let (positions, states) = (chunk(self.config.dtype), self.config.states());
        let of = |first: u32| {
            let index = self.k.thread_idx() + first;
            match self.config.layout {
                Layout::ChannelsFirst => [index % positions, index / positions],
                Layout::ChannelsLast => [index / states, index % states],
            }
        };
        (0..positions * states).step_by(THREADS as usize).map(of).collect()
    }

    /// Where an element of `B` or `C` lies. A sample has at most 2^31.
    fn element(&self, position: U32<'k>, number: U32<'k>) -> U64<'k> {
        let ProblemParams { len, groups, state, .. } = self.p;
        let within = match self.config.layout {
            Layout::ChannelsFirst => self.group.mul_add(state, number).mul_add(len, position),
            Layout::ChannelsLast => position.mul_add(groups, self.group).mul_add(state, number),
        };
        self.sample.mul_wide(groups * state * len) + within.to_u64()
    }

    fn load_rows<A: Float>(&self, from: Ptr<'k, Read, Elem>, start: U32<'k>) -> Vec<Reg<'k, A>> {
        let of = |[position, number]: [U32<'k>; 2]| {
            let there = (start + position).lt(self.p.len) & number.lt(self.p.state);
            from.at(self.element(start + position, number)).only_where(there, Fill::Zero).get()
        };
        self.elements().into_iter().map(of).collect()
    }

    fn put_rows<A: Accumulate>(&self, tile: Tile<'k, A>, values: &[Reg<'k, A>]) {
        for ([position, number], &value) in self.elements().into_iter().zip(values) {
            tile.at(position * self.config.row() + number).set(value);
        }
    }

    /// The inputs of the chunk at `start`.
    fn inputs<A: Float>(&self, start: U32<'k>) -> Loaded<'k, A> {
        Loaded {
            u: self.load(self.p.u, start, None),
            delta: self.load(self.p.delta, start, None),
            b: self.load_rows(self.p.b, start),
            c: self.load_rows(self.p.c, start),
        }
    }

    /// The arguments of `softplus` in the vectors of `delta`, and their steps, 0 where a vector has no element: such positions leave
    /// the state as it is.
    fn steps<A: Float>(
        &self,
        start: U32<'k>,
        delta: &[Lanes<'k, A>],
        bias: &[Lanes<'k, A>],
    ) -> Vec<[Lanes<'k, A>; 2]> {
        let of = |((&place, delta), bias): ((&Place<'k>, &Lanes<'k, A>), &Lanes<'k, A>)| {
            let x = delta + bias;
            let soft = || x.map(|x| x.softplus());
            let step = self.k.if_else(self.p.softplus.ne(0), soft, || x.clone());
            [x, self.where_live(place, start, step)]
        };
        self.places.iter().zip(delta).zip(bias).map(of).collect()
    }

    /// The elements of a vector, 0 where it has none.
    fn where_live<A: Float>(&self, place: Place<'k>, start: U32<'k>, vector: Lanes<'k, A>) -> Lanes<'k, A> {
        let live = self.live(place, start);
        let there = |(i, value): (usize, Reg<'k, A>)| live[i % live.len()].select(value, 0.0);
        vector.iter().enumerate().map(there).collect()
    }

    /// The thread's numbers of `a`, times the binary logarithm of e.
    fn rates<A: Float>(&self) -> Lanes<'k, A> {
        let row = self.p.a.at((self.first + self.channel).mul_wide(self.p.state) + self.number.to_u64());
        self.numbers(row, None) * std::f64::consts::LOG2_E
    }

    /// Whether the thread's numbers of a state are a vector, in tensors of states alone.
    const fn is_vector(&self) -> bool {
        self.config.whole && self.config.aligned
    }

    /// The thread's numbers of the state that `from` points to, zeros where there are none.
    fn numbers<A: Float>(&self, from: Ptr<'k, Read, Elem>, given: Option<Pred<'k>>) -> Lanes<'k, A> {
        let only = |there: Pred<'k>| given.map_or(there, |given| given & there);
        if self.is_vector() {
            return from.only_where(only(self.has_number(0)), Fill::Zero).load(OWN);
        }
        let number = |i: u32| from.at(u64::from(i)).only_where(only(self.has_number(i)), Fill::Zero).get();
        (0..OWN).map(number).collect()
    }

    /// Stores the thread's numbers of the state that `to` points to.
    fn store_numbers<A: Float>(&self, to: Ptr<'k, Write, Elem>, values: &Lanes<'k, A>, given: Pred<'k>) {
        if self.is_vector() {
            to.only_where(given & self.has_number(0), Fill::Zero).store(values.clone());
            return;
        }
        for (i, value) in (0..).zip(values.iter()) {
            to.at(u64::from(i)).only_where(given & self.has_number(i), Fill::Zero).set(value);
        }
    }

    /// Whether the state of the thread's channel has the `i`-th of the thread's numbers.
    fn has_number(&self, i: u32) -> Pred<'k> {
        self.channel.lt(self.here) & (self.number + i).lt(self.p.state)
    }

    /// The place of the thread's first number in states of all channels, of which `before` samples, or chunks, lie in front.
    fn state(&self, before: U32<'k>) -> U64<'k> {
        let within = (self.first + self.channel).mul_wide(self.p.state) + self.number.to_u64();
        before.to_u64() * self.p.channels.mul_wide(self.p.state) + within
    }

    /// The row of `B` or `C` times the number of a position, 0 behind the last number of the state even where that is infinite.
    fn times_row<A: Float>(&self, row: &Lanes<'k, A>, by: Reg<'k, A>) -> Lanes<'k, A> {
        let product = row * by;
        if self.config.whole {
            return product;
        }
        (0..)
            .zip(product.iter())
            .map(|(i, value)| (self.number + i).lt(self.p.state).select(value, 0.0))
            .collect()
    }

    /// Where the thread's channel is in a tile, at a position of the chunk.
    fn own(&self, position: U32<'k>) -> U32<'k> {
        self.channel * self.config.pitch() + position
    }

    /// The thread's numbers of `B` or `C` at each of a batch of positions.
    fn batch_rows<A: Accumulate>(&self, tile: Tile<'k, A>, position: U32<'k>) -> Vec<Lanes<'k, A>> {
        let at = tile.at(position * self.config.row() + self.number);
        let row = |i: u32| at.at(u64::from(i * self.config.row())).load(OWN);
        (0..batch(self.config.dtype)).map(row).collect()
    }
}

/// An optional argument that is read.
type OptionalRead<'k> = warpwright_dsl::OptionalParam<'k, Ptr<'k, Read, Elem>>;

/// Sums of values over the lanes whose numbers differ in bits of `from` to `below`, both powers of two. The lanes share the sums out:
/// each has neighbouring ones, those with the greater bits set the later ones, and where there are fewer than lanes, the lanes that
/// differ in the least bits have the same.
fn sums_over_lanes<'k, A: Accumulate>(
    k: K<'k>,
    [from, below]: [u32; 2],
    values: Vec<Reg<'k, A>>,
) -> Vec<Reg<'k, A>> {
    let masks = (from.trailing_zeros()..below.trailing_zeros()).rev().map(|bit| 1 << bit);
    masks.fold(values, |mut values, mask: u32| {
        if values.len() == 1 {
            return vec![values[0] + values[0].shfl_xor(mask)];
        }
        let upper = (k.lane_idx() & mask).ne(0);
        let high = values.split_off(values.len() / 2);
        let halve = |(&low, high): (&Reg<'k, A>, Reg<'k, A>)| {
            let (kept, sent) = (upper.select(high, low), upper.select(low, high));
            kept + sent.shfl_xor(mask)
        };
        values.iter().zip(high).map(halve).collect()
    })
}

/// A share of the sums of [`sums_over_lanes`].
struct Share<'k> {
    /// The number of its first value.
    first: U32<'k>,
    /// Values.
    count: u32,
    /// Whether the lane is the first of those that have them.
    leads: Pred<'k>,
}

impl<'k> Share<'k> {
    /// That of the lane which is number `lane` of `lanes`, of `values` values.
    fn new(lane: U32<'k>, lanes: u32, values: u32) -> Self {
        let (count, alike) = ((values / lanes).max(1), (lanes / values).max(1));
        Self { first: lane / alike * count, count, leads: (lane % alike).eq(0) }
    }
}

/// Warps of a block.
const WARPS: u32 = THREADS / WARP;
