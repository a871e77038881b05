//! The kernels: windows in registers that slide along the channels, and one thread an element for all other shapes.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_dsl::sliding::{SlidingRun, window_sums};

use super::tuning::{BATCH, THREADS};

kernel_args! {
    /// `y = x d^-beta` with `d = k + scale sum(x^2)` over a window of channels, `scale = alpha / size`. Backward, `dy` is read
    /// and `y` is `dx`. `tiles` blocks cover an image.
    pub(super) struct LrnArgs => LrnParams {
        x: In<Elem>, dy: In<Elem>, terms: InOut<Elem>, y: Out<Elem>, channels: u32, spatial: u32, tiles: u32, run: u32,
        size: u32, scale: f64, beta: f64, k: f64,
    }
}

/// How the power is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Power {
    /// 3/4, by square roots.
    ThreeQuarters,
    /// Any, by logarithm and exponential.
    Any,
}

impl Power {
    pub(super) fn of(beta: f64) -> Self {
        if beta == 0.75 { Self::ThreeQuarters } else { Self::Any }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::ThreeQuarters => "_beta34",
            Self::Any => "",
        }
    }
}

/// The parts that all kernels share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    pub(super) dtype: DType,
    pub(super) power: Power,
}

/// Above every quarter power of a finite number, and below infinity.
const LARGE: f64 = 1e38;

/// The run-time numbers in the type of the computation.
#[derive(Clone, Copy)]
struct Numbers<'k, A: Float> {
    scale: Reg<'k, A>,
    beta: Reg<'k, A>,
    k: Reg<'k, A>,
}

impl<'k, A: Float> Numbers<'k, A> {
    fn new(a: LrnParams<'k>) -> Self {
        Self { scale: a.scale.convert(), beta: a.beta.convert(), k: a.k.convert() }
    }

    /// `d` of the sum of squares of a window.
    fn base(&self, squares: Reg<'k, A>) -> Reg<'k, A> {
        squares.mul_add(self.scale, self.k)
    }
}

impl Common {
    /// `d^-beta` and `d^-1`.
    fn powers<'k, A: Float>(self, n: Numbers<'k, A>, d: Reg<'k, A>) -> (Reg<'k, A>, Reg<'k, A>) {
        let p = Precision::of(self.dtype);
        if self.power == Power::Any {
            return ((-(d.log() * n.beta)).exp_for(p), d.rcp());
        }
        let root = d.rsqrt_for(p);
        // The root of that by the hardware's reciprocal root, which is infinite where `d` is.
        let quarter = root.rsqrt_for(Precision::Storage).min(LARGE);
        let mut second = root * quarter;
        if p == Precision::Full {
            // What its square is off, by half the slope.
            second = (-second).mul_add(second, root).mul_add(quarter * 0.5, second);
        }
        (root * second, root * root)
    }

    /// `dy d^-beta`, and `dy x d^(-beta - 1)`.
    fn terms<'k, A: Float>(
        self,
        n: Numbers<'k, A>,
        (x, dy): (Reg<'k, A>, Reg<'k, A>),
        d: Reg<'k, A>,
    ) -> (Reg<'k, A>, Reg<'k, A>) {
        let (power, reciprocal) = self.powers(n, d);
        let direct = dy * power;
        (direct, direct * x * reciprocal)
    }

    fn dtypes(self) -> DTypes {
        DTypes::all(self.dtype).accumulated(["terms"])
    }

    /// A kernel with windows of `size` channels in registers, of which a multiprocessor holds so many `blocks`: more spill,
    /// and f64 takes twice the registers.
    fn sliding(self, direction: &str, size: u32, blocks: u32) -> KernelSpec {
        let Self { dtype, power } = self;
        let name = format!("local_response_norm{direction}_{dtype}_size{size}{}", power.name());
        KernelSpec::new(name, BlockDim::x(THREADS))
            .dtypes(self.dtypes())
            .min_blocks_per_sm((dtype != DType::F64).then_some(blocks))
    }
}

/// `dx` of its two parts: `direct - 2 scale beta x sum(terms)`.
fn gradient<'k, A: Float>(
    n: Numbers<'k, A>,
    x: Reg<'k, A>,
    direct: Reg<'k, A>,
    terms: Reg<'k, A>,
) -> Reg<'k, A> {
    let factor = n.scale * n.beta * 2.0;
    (-(x * factor)).mul_add(terms, direct)
}

/// The work of a thread along its run of channels, if it has one, from the operation's numbers and how many channels of a window of
/// `size` lie below and above its own.
fn slide<'k, A: Float>(
    k: K<'k>,
    a: LrnParams<'k>,
    size: u32,
    body: impl FnOnce(&SlidingRun<'k>, Numbers<'k, A>, [i32; 2]),
) {
    let run = SlidingRun::new(k, a.channels, a.spatial, a.tiles, a.run);
    k.if_(run.inside, || body(&run, Numbers::new(a), [size as i32 / 2, (size as i32 - 1) / 2]));
}

/// A window of `size` channels in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlidingForward {
    pub(super) common: Common,
    pub(super) size: u32,
}

impl AccumulateKernel for SlidingForward {
    type Args = LrnArgs;

    fn spec(&self) -> KernelSpec {
        self.common.sliding("", self.size, 12)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: LrnParams<'k>) {
        slide(k, a, self.size, |run, n, [below, above]| {
            let size = self.size as usize;
            // All of the window of the first channel but its last.
            let start = run.load_start::<A>(a.x, below as usize, size - 2 - below as usize);
            // What is left of the window at the end of the run serves nobody.
            let _ = k.fold(k.range(run.first, run.end, BATCH as i32), start, |c, mut x| {
                x.extend(run.load(a.x, c + above, BATCH as usize));
                let squares: Vec<_> = x.iter().map(|&x| x * x).collect();
                let of = |(i, squares): (usize, Reg<'k, A>)| {
                    x[i + below as usize] * self.common.powers(n, n.base(squares)).0
                };
                let y: Vec<_> = window_sums(&squares, size).into_iter().enumerate().map(of).collect();
                run.store(a.y, c, &y);
                x.split_off(BATCH as usize)
            });
        });
    }
}

/// The gradient with two windows in registers: one of elements around a channel, one of terms around the channels that
/// see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlidingBackward {
    pub(super) common: Common,
    pub(super) size: u32,
}

impl AccumulateKernel for SlidingBackward {
    type Args = LrnArgs;

    fn spec(&self) -> KernelSpec {
        self.common.sliding("_backward", self.size, 8)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: LrnParams<'k>) {
        slide(k, a, self.size, |run, n, [below, above]| {
            let size = self.size as usize;
            let lead = size as i32 - 1;
            // Everything that the first channel needs but the terms of the last channel that sees it.
            let mut x = run.load_start::<A>(a.x, lead as usize, lead as usize - 1);
            let dy = run.load_start(a.dy, above as usize, (lead - above) as usize - 1);
            let parts = self.parts(n, &x, &dy);
            let direct: Vec<_> = parts[above as usize..].iter().map(|p| p.0).collect();
            let terms: Vec<_> = parts.iter().map(|p| p.1).collect();
            let state = (x.split_off(lead as usize), direct, terms);
            let steps = k.range(run.first, run.end, BATCH as i32);
            let _ = k.fold(steps, state, |c, (mut x, mut direct, mut terms)| {
                x.extend(run.load(a.x, c + lead, BATCH as usize));
                let dy = run.load(a.dy, c + below, BATCH as usize);
                let parts = self.parts(n, &x, &dy);
                direct.extend(parts.iter().map(|p| p.0));
                terms.extend(parts.iter().map(|p| p.1));
                let sums = window_sums(&terms, size).into_iter().enumerate();
                let dx: Vec<_> = sums.map(|(i, sum)| gradient(n, x[i], direct[i], sum)).collect();
                run.store(a.y, c, &dx);
                let next = BATCH as usize;
                (x.split_off(next), direct.split_off(next), terms.split_off(next))
            });
        });
    }
}

impl SlidingBackward {
    /// Direct parts and terms of the channels with the gradients `dy`, one for each window in `x`.
    fn parts<'k, A: Float>(
        &self,
        n: Numbers<'k, A>,
        x: &[Reg<'k, A>],
        dy: &[Reg<'k, A>],
    ) -> Vec<(Reg<'k, A>, Reg<'k, A>)> {
        let size = self.size as usize;
        let squares: Vec<_> = x.iter().map(|&x| x * x).collect();
        let of = |(i, (squares, &dy)): (usize, (Reg<'k, A>, &Reg<'k, A>))| {
            let (direct, term) = self.common.terms(n, (x[i + size / 2], dy), n.base(squares));
            // Without a gradient no term: outside of the channels `d` may be 0 or NaN.
            (direct, dy.eq(0.0).select(0.0, term))
        };
        window_sums(&squares, size).into_iter().zip(dy).enumerate().map(of).collect()
    }
}

/// The result of a thread with a single element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// `y`
    Forward,
    /// `dy x d^(-beta - 1)`, for the next step.
    Terms,
    /// `dx` from the terms of the channels that see the element.
    Gradient,
}

/// One thread an element, any window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Single {
    pub(super) dtype: DType,
    pub(super) step: Step,
}

impl AccumulateKernel for Single {
    type Args = LrnArgs;

    fn spec(&self) -> KernelSpec {
        let step = match self.step {
            Step::Forward => "",
            Step::Terms => "_terms",
            Step::Gradient => "_backward",
        };
        KernelSpec::new(format!("local_response_norm{step}_{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(Common { dtype: self.dtype, power: Power::Any }.dtypes())
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: LrnParams<'k>) {
        let common = Common { dtype: self.dtype, power: Power::Any };
        let (image, tile) = (k.block_idx_x() / a.tiles, k.block_idx_x() % a.tiles);
        let place = tile * THREADS + k.thread_idx();
        let elements = a.channels * a.spatial;
        k.if_(place.lt(elements), || {
            let n = Numbers::<A>::new(a);
            let channel = place / a.spatial;
            let origin = image.mul_wide(elements) + (place % a.spatial).to_u64();
            let own = image.mul_wide(elements) + place.to_u64();
            let (down, up) = (a.size / 2, (a.size - 1) / 2);
            let at = |c: U32<'k>| origin + c.mul_wide(a.spatial);
            // The channels from `down` below to `up` above.
            let around = |down: U32<'k>, up: U32<'k>| {
                let end = channel + up.min(a.channels - 1 - channel) + 1;
                k.range(channel - down.min(channel), end, 1u32)
            };
            let zero = k.lit::<A>(0.0);
            let squares = k.fold(around(down, up), zero, |c, sum| {
                let x = a.x.at(at(c)).get::<A>();
                x.mul_add(x, sum)
            });
            let d = n.base(squares);
            let x = a.x.at(own).get::<A>();
            match self.step {
                Step::Forward => a.y.at(own).set(x * common.powers(n, d).0),
                Step::Terms => {
                    let (_, term) = common.terms(n, (x, a.dy.at(own).get()), d);
                    a.terms.at(own).set(term);
                }
                Step::Gradient => {
                    let (direct, _) = common.terms(n, (x, a.dy.at(own).get()), d);
                    let sum = k.fold(around(up, down), zero, |c, sum| sum + a.terms.at(at(c)).get::<A>());
                    a.y.at(own).set(gradient(n, x, direct, sum));
                }
            }
        });
    }
}
