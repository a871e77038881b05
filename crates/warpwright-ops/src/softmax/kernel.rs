//! Rows in contiguous memory, held in the registers of a team of threads or read twice by a block.

use warpwright_dsl::prelude::*;
use warpwright_dsl::rows::row_max;
use warpwright_dsl::{WARP, kernel_args, warp_reduce_lanes};

use super::math::{Exponential, OnlineSoftmax, minus_max, warp_sum};
use super::tuning::{Config, Layout};

kernel_args! {
    /// `y = softmax(scale x)` over `n` elements of each of `rows` rows; for strided rows `inner` is the distance of
    /// neighbouring elements and `tiles` the number of blocks across them.
    pub(super) struct ForwardArgs => ForwardParams {
        x: In<Elem>, y: Out<Elem>, rows: u64, n: u64, inner: u64, tiles: u32, scale: f64,
    }
}

kernel_args! {
    /// `dx = scale y (dy - sum(dy y))`
    pub(super) struct BackwardArgs => BackwardParams {
        y: In<Elem>, dy: In<Elem>, dx: Out<Elem>, rows: u64, n: u64, inner: u64, tiles: u32, scale: f64,
    }
}

/// The parts that forward and backward kernels share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    /// Whether it is the logarithm of softmax.
    pub(super) log: bool,
    pub(super) dtype: DType,
    pub(super) config: Config,
}

impl Common {
    pub(super) fn name(self, suffix: &str) -> String {
        let op = if self.log { "log_softmax" } else { "softmax" };
        let Config { layout, width, threads, keep } = self.config;
        let layout = match layout {
            Layout::Rows { team, vectors } => format!("rows{team}v{vectors}"),
            Layout::RowLoop => "rowloop".to_owned(),
            Layout::Columns { lanes, teams, vectors } => format!("columns{lanes}x{teams}v{vectors}"),
            Layout::ColumnLoop { lanes, teams } => format!("columnloop{lanes}x{teams}"),
        };
        let keep = if keep { "k" } else { "" };
        format!("{op}{suffix}_{}_{layout}_t{threads}x{width}{keep}", self.dtype)
    }

    /// Whether exponentials stay in registers: they take the place of elements of the same size.
    pub(super) fn keeps(self) -> bool {
        !self.log && (self.config.keep || self.dtype.bytes() >= 4)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Forward(pub(super) Common);

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(self.0.name(""), BlockDim::x(self.0.config.threads))
            .dtypes(DTypes::all(self.0.dtype))
            .cluster(self.0.config.cluster())
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let exp = Exponential { scale: a.scale.convert::<A>(), precision: Precision::of(self.0.dtype) };
        match self.0.config.layout {
            Layout::Rows { team, vectors } => self.rows(k, a, exp, [team, vectors]),
            Layout::Columns { lanes, vectors, .. } => self.columns(k, a, exp, [lanes, vectors]),
            Layout::RowLoop | Layout::ColumnLoop { .. } => self.passes::<A>(k, a, exp),
        }
    }
}

impl Forward {
    fn rows<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: ForwardParams<'k>,
        exp: Exponential<'k, A>,
        [threads, vectors]: [u32; 2],
    ) {
        let Common { log, config, .. } = self.0;
        let team = Team::new(k, threads);
        let row = team.hold(a.rows, a.n, config.width, vectors);
        let xs = row.load::<A>(a.x, Fill::MinusInfinity);
        let (lanes, alone) = (threads.min(WARP), threads <= WARP);
        let warp_max = warp_reduce_lanes(k, Maximum, lanes, row_max(k, &xs)) * exp.scale;
        // The other warps of a row may have what this one lacks.
        let minus = if alone { -warp_max } else { minus_max(warp_max) };
        let kept: Option<Vec<Lanes<'k, A>>> =
            self.0.keeps().then(|| xs.iter().map(|x| x.lanes().map(|x| exp.exp(x, minus))).collect());
        let sum = match &kept {
            Some(p) => k.tree("a sum of exponentials", p.iter().filter_map(Lanes::sum), |a, b| a + b),
            None => exp.sum(&xs, minus),
        };
        let of_warp = OnlineSoftmax { row_max: warp_max, row_sum: warp_sum(k, lanes, sum) };
        let of_row = if alone { of_warp } else { of_warp.of_warps(k, exp).of_blocks(team.gather(), exp) };
        let OnlineSoftmax { row_max, row_sum } = of_row;
        let minus = -row_max;
        if log {
            let (log_sum, zero) = (row_sum.log(), k.opaque_zero());
            let y = |x: &Packed<'k, A>| x.lanes_again(zero).map(|x| exp.shifted(x, minus) - log_sum);
            row.store(a.y, xs.iter().map(y));
        } else if let Some(p) = kept {
            let inverse = row_sum.rcp();
            let factor = if alone { inverse } else { exp.rescale(warp_max - row_max) * inverse };
            row.store(a.y, p.iter().map(|p| p * factor));
        } else {
            let inverse = row_sum.rcp();
            row.store(a.y, xs.iter().map(|x| x.lanes().map(|x| exp.exp(x, minus) * inverse)));
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Backward(pub(super) Common);

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(self.0.name("_backward"), BlockDim::x(self.0.config.threads))
            .dtypes(DTypes::all(self.0.dtype))
            .cluster(self.0.config.cluster())
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        let scale = a.scale.convert::<A>();
        match self.0.config.layout {
            Layout::Rows { team, vectors } => self.rows(k, a, scale, [team, vectors]),
            Layout::Columns { lanes, vectors, .. } => self.columns(k, a, scale, [lanes, vectors]),
            Layout::RowLoop | Layout::ColumnLoop { .. } => self.passes::<A>(k, a, scale),
        }
    }
}

impl Backward {
    /// The terms of the sum over a row.
    pub(super) fn term<'k, A: Accumulate>(&self, y: &Packed<'k, A>, dy: &Packed<'k, A>) -> Lanes<'k, A> {
        if self.0.log { dy.lanes() } else { y.lanes().zip(dy.lanes(), |y, dy| y * dy) }
    }

    /// The gradient for one vector.
    pub(super) fn gradient<'k, A: Accumulate>(
        &self,
        y: &Packed<'k, A>,
        dy: &Packed<'k, A>,
        sum: &dyn Fn(usize) -> Reg<'k, A>,
        scale: Reg<'k, A>,
    ) -> Lanes<'k, A> {
        let precision = Precision::of(self.0.dtype);
        let zero = scale.k().opaque_zero();
        let pairs = y.lanes_again(zero).into_iter().zip(dy.lanes_again(zero)).enumerate();
        pairs
            .map(|(lane, (y, dy))| {
                let sum = sum(lane);
                if self.0.log { (dy - y.exp_for(precision) * sum) * scale } else { y * (dy - sum) * scale }
            })
            .collect()
    }

    fn rows<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: BackwardParams<'k>,
        scale: Reg<'k, A>,
        [threads, vectors]: [u32; 2],
    ) {
        let team = Team::new(k, threads);
        let row = team.hold(a.rows, a.n, self.0.config.width, vectors);
        let (ys, dys) = (row.load::<A>(a.y, Fill::Zero), row.load::<A>(a.dy, Fill::Zero));
        let sums = ys.iter().zip(&dys).filter_map(|(y, dy)| self.term(y, dy).sum());
        let mine = k.tree("the sum of a row", sums, |a, b| a + b);
        let sum = team.combine(mine, |a, b| a + b);
        row.store(a.dx, ys.iter().zip(&dys).map(|(y, dy)| self.gradient(y, dy, &|_| sum, scale)));
    }
}
