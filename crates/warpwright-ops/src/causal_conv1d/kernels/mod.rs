//! The kernels, and what they share: where rows lie, the filter of a channel, and the sums of its gradient.
//!
//! Where the channels are innermost, a thread has a vector of channels and walks along a run of positions ([`walk`]); where the positions
//! are, lanes have neighbouring vectors of positions of one channel ([`lines`]). Either way a channel's last `width - 1` elements are in
//! registers, or in those of the lane below.

pub(super) mod lines;
pub(super) mod walk;

use warpwright_dsl::prelude::*;
use warpwright_dsl::{COLUMN_SUM_LANES, column_sums, kernel_args};

use super::Layout;
use super::tuning::THREADS;

kernel_args! {
    /// The inputs that every kernel has. `items` shares of work of a sample lie in `tiles` blocks; `run` positions are a share's. Where channels
    /// are innermost, positions of `x` are `position_stride` elements apart.
    pub(super) struct Problem => ProblemParams {
        x: In<Elem>, weight: In<Elem>, bias: Optional<In<Elem>>, initial: Optional<In<Elem>>, ids: In<i32>,
        channels: u32, len: u32, items: u32, tiles: u32, run: u32, position_stride: u32,
    }
}

kernel_args! {
    /// `last` are the final states.
    pub(super) struct ForwardArgs => ForwardParams { problem: Problem, y: Out<Elem>, last: Optional<Out<Elem>> }
}

kernel_args! {
    /// `sums` have a row for each share of a sample's positions: `width` sums and that of the bias for every channel, the channels
    /// innermost.
    pub(super) struct BackwardArgs => BackwardParams {
        problem: Problem, dy: In<Elem>, dlast: Optional<In<Elem>>, dx: Out<Elem>, dinitial: Optional<Out<Elem>>,
        sums: Out<Elem>,
    }
}

/// The properties that a kernel's code depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) dtype: DType,
    /// Where the channels are.
    pub(super) layout: Layout,
    /// Taps of the filter.
    pub(super) width: u32,
    pub(super) silu: bool,
    /// Whether positions belong to sequences.
    pub(super) sequences: bool,
    /// Neighbours along the innermost dimension that a thread has.
    pub(super) vector: u32,
    /// Whether vectors begin at multiples of their size and are whole.
    pub(super) aligned: bool,
}

impl Config {
    /// Elements before a position that its result depends on.
    const fn history(self) -> u32 {
        self.width - 1
    }

    /// The kernel of the gradients, or of a part of them.
    fn backward(self) -> KernelSpec {
        self.spec("_backward").dtypes(DTypes::all(self.dtype).accumulated(["sums"]))
    }

    fn spec(self, step: &str) -> KernelSpec {
        let Self { dtype, layout, width, silu, sequences, aligned, .. } = self;
        let layout = match layout {
            Layout::ChannelsFirst => "first",
            Layout::ChannelsLast => "last",
        };
        let mut name = format!("causal_conv1d{step}_{dtype}_{layout}_w{width}");
        for (there, word) in [(silu, "_silu"), (sequences, "_seq"), (!aligned, "_scalar")] {
            name.push_str(if there { word } else { "" });
        }
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(DTypes::all(dtype))
    }
}

/// A thread's or a warp's share of a sample.
#[derive(Clone, Copy)]
struct Share<'k> {
    sample: U32<'k>,
    /// Its number in the sample, divided by how many shares are innermost, and the remainder.
    outer: U32<'k>,
    inner: U32<'k>,
    /// Whether the sample has it.
    there: Pred<'k>,
}

impl<'k> Share<'k> {
    /// That of worker `worker` of the `workers` of a block.
    fn new(k: K<'k>, p: ProblemParams<'k>, (worker, workers): (U32<'k>, u32), innermost: U32<'k>) -> Self {
        let (sample, tile) = (k.block_idx_x() / p.tiles, k.block_idx_x() % p.tiles);
        let item = tile * workers + worker;
        Self { sample, outer: item / innermost, inner: item % innermost, there: item.lt(p.items) }
    }
}

/// Rows of channels along positions: the tensors that are like `x`, and the states, which are `width - 1` positions long.
#[derive(Clone, Copy)]
struct Rows<'k> {
    layout: Layout,
    sample: U32<'k>,
    channels: U32<'k>,
    len: U32<'k>,
}

impl<'k> Rows<'k> {
    /// Those of a sample, and those of its states.
    fn of_sample(k: K<'k>, config: Config, p: ProblemParams<'k>, sample: U32<'k>) -> [Self; 2] {
        let rows = Self { layout: config.layout, sample, channels: p.channels, len: p.len };
        [rows, Self { len: k.lit(config.history()), ..rows }]
    }

    /// The element of a channel at a position. A sample has at most 2^31.
    fn at(&self, channel: U32<'k>, position: U32<'k>) -> U64<'k> {
        let within = match self.layout {
            Layout::ChannelsFirst => channel.mul_add(self.len, position),
            Layout::ChannelsLast => position.mul_add(self.channels, channel),
        };
        self.sample.mul_wide(self.channels * self.len) + within.to_u64()
    }

    /// Elements from one position to the next.
    fn pitch(&self, k: K<'k>) -> U32<'k> {
        match self.layout {
            Layout::ChannelsFirst => k.lit(1),
            Layout::ChannelsLast => self.channels,
        }
    }
}

/// The taps of a channel, oldest first, and its bias.
struct Filter<'k, A: Float> {
    taps: Vec<Reg<'k, A>>,
    bias: Reg<'k, A>,
}

/// The window of a position: an element for each tap, oldest first, and whether they count. Without the latter all do; the last one, the
/// position's own, always does.
type Window<'a, 'k, A> = (&'a [Reg<'k, A>], Option<&'a [Pred<'k>]>);

impl<'k, A: Float> Filter<'k, A> {
    /// `bias + sum_i taps[i] window[i]`, in the order of the taps.
    fn apply(&self, (window, counts): Window<'_, 'k, A>) -> Reg<'k, A> {
        self.taps.iter().zip(window).enumerate().fold(self.bias, |sum, (i, (&tap, &x))| {
            let next = x.mul_add(tap, sum);
            counts.and_then(|all| all.get(i)).map_or(next, |counts| counts.select(next, sum))
        })
    }

    /// The gradient of [`apply`](Self::apply) from that of what `silu` makes of it; 0 where the position does not count.
    fn slope(
        &self,
        config: Config,
        window: Window<'_, 'k, A>,
        dy: Reg<'k, A>,
        counts: Option<Pred<'k>>,
    ) -> Reg<'k, A> {
        let dz = match config.silu {
            true => dy * self.apply(window).silu_slope_for(Precision::of(config.dtype)),
            false => dy,
        };
        counts.map_or(dz, |counts| counts.select(dz, 0.0))
    }

    /// The gradient of an element from those of the sums of its position and the next ones; `counts` as many say whether the sums
    /// have it, but for the first.
    fn transposed(&self, dz: &[Reg<'k, A>], counts: Option<&[Pred<'k>]>) -> Reg<'k, A> {
        let own = dz[0] * self.taps[self.taps.len() - 1];
        let later = self.taps.iter().rev().zip(dz).enumerate().skip(1);
        later.fold(own, |sum, (s, (&tap, &dz))| {
            let next = dz.mul_add(tap, sum);
            counts.map_or(next, |counts| counts[s - 1].select(next, sum))
        })
    }
}

/// Which taps of the window of each position count, by the numbers of the sequences from `width - 1` positions before the first on.
fn same_sequence<'k>(width: u32, ids: &[I32<'k>]) -> Vec<Vec<Pred<'k>>> {
    let width = width as usize;
    let taps = |window: &[I32<'k>]| window[..width - 1].iter().map(|id| id.eq(window[width - 1])).collect();
    ids.windows(width).map(taps).collect()
}

/// The same of the sums that an element is in, but for its own position's.
fn same_sequence_later<'k>(width: u32, ids: &[I32<'k>]) -> Vec<Vec<Pred<'k>>> {
    let later = |window: &[I32<'k>]| window[1..].iter().map(|id| id.eq(window[0])).collect();
    ids.windows(width as usize).map(later).collect()
}

/// Sums of a filter's gradient: one for each tap, and that of the bias.
type Sums<'k, A> = Vec<Reg<'k, A>>;

/// Adds what a position gives to the sums of its channel. Where it is not of the share, an infinite element must not become a NaN.
fn accumulate<'k, A: Float>(
    sums: &Sums<'k, A>,
    (window, counts): Window<'_, 'k, A>,
    dz: Reg<'k, A>,
    own: Option<Pred<'k>>,
) -> Sums<'k, A> {
    let where_ = |p: Option<Pred<'k>>, next: Reg<'k, A>, sum| p.map_or(next, |p| p.select(next, sum));
    let mut next = Vec::with_capacity(sums.len());
    for (i, (&sum, &x)) in sums.iter().zip(window).enumerate() {
        let counted = where_(counts.and_then(|all| all.get(i)).copied(), x.mul_add(dz, sum), sum);
        next.push(where_(own, counted, sum));
    }
    let bias = sums[window.len()];
    next.push(where_(own, bias + dz, bias));
    next
}

kernel_args! {
    /// `sums` as [`BackwardArgs`] has them, `rows` of them.
    pub(super) struct ParameterArgs => ParameterParams {
        sums: In<Elem>, dweight: Out<Elem>, dbias: Optional<Out<Elem>>, rows: u32, channels: u32, width: u32,
    }
}

/// The gradients of weight and bias from the sums of all shares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub(super) dtype: DType,
}

/// Rows that a block of [`Parameters`] adds at once.
const STRIPS: u32 = 8;

impl AccumulateKernel for Parameters {
    type Args = ParameterArgs;

    fn spec(&self) -> KernelSpec {
        let name = format!("causal_conv1d_backward_parameters_{}", self.dtype);
        KernelSpec::new(name, BlockDim::xy(COLUMN_SUM_LANES, STRIPS))
            .dtypes(DTypes::all(self.dtype).accumulated(["sums"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ParameterParams<'k>) {
        let columns = a.channels * (a.width + 1);
        column_sums::<A, _, _>(k, a.sums, a.rows, columns.to_u64(), |column, sum| {
            let (tap, channel) = (column.to_u32() / a.channels, column.to_u32() % a.channels);
            k.if_(tap.lt(a.width), || a.dweight.at(channel.mul_wide(a.width) + tap.to_u64()).set(sum));
            k.if_(tap.eq(a.width) & a.dbias.is_given(), || a.dbias.value.at(channel).set(sum));
        });
    }
}
