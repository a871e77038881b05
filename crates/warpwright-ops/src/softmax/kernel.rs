//! Rows in contiguous memory, held in the registers of a team of threads or read twice by a block.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{AllGather, WARP, kernel_args, warp_reduce_lanes};

use super::math::{Exponential, Mass, warp_sum};
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

/// What forward and backward kernels are made of.
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

    fn dtype(&self) -> DType {
        self.0.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>)
    where
        Elem: Access<A>,
    {
        let exp = Exponential { scale: a.scale.convert::<A>(), precision: Precision::of(self.0.dtype) };
        match self.0.config.layout {
            Layout::Rows { team, vectors } => self.rows::<A>(k, a, exp, team, vectors),
            Layout::Columns { lanes, teams, vectors } => {
                self.columns::<A>(k, a, exp, [lanes, teams, vectors]);
            }
            Layout::RowLoop | Layout::ColumnLoop { .. } => self.passes::<A>(k, a, exp),
        }
    }
}

/// Where the vectors of one thread lie in a row that a team holds.
pub(super) struct RowPart<'k> {
    /// First element of the thread, from the start of the tensor.
    pub(super) start: U64<'k>,
    /// What the blocks of a cluster tell each other.
    pub(super) gather: AllGather<'k>,
    /// Elements from one vector of the thread to the next.
    stride: u32,
    /// For each vector, whether it lies in the row.
    pub(super) inside: Vec<Pred<'k>>,
}

impl<'k> RowPart<'k> {
    pub(super) fn new(k: K<'k>, rows: U64<'k>, n: U64<'k>, config: Config, team: u32, vectors: u32) -> Self {
        let per_block = config.threads / team.min(config.threads);
        let stride = team * config.width;
        let gather = k.all_gather();
        let lane = match config.cluster() {
            1 => k.thread_idx() & (team - 1),
            _ => k.cluster_rank().mul_add(config.threads, k.thread_idx()),
        };
        let first = lane * config.width;
        let left = n.to_u32().to_i32() - first.to_i32();
        let (row, left) = if per_block == 1 {
            (k.cluster_idx_x().to_u64(), left)
        } else {
            let in_block = k.thread_idx() >> team.trailing_zeros();
            let row = k.block_idx_x().mad_wide(per_block, in_block.to_u64());
            (row, row.lt(rows).select(left, 0))
        };
        let start = row * n + first.to_u64();
        let inside = (0..vectors).map(|v| left.gt((v * stride).cast_signed())).collect();
        Self { start, gather, stride, inside }
    }

    /// The thread's vectors of a tensor, with `fill` where the row has ended.
    pub(super) fn load<A: Accumulate>(
        &self,
        x: Ptr<'k, Read, Elem>,
        width: u32,
        fill: Fill,
    ) -> Vec<Packed<'k, A>>
    where
        Elem: Access<A>,
    {
        let x = x.at(self.start);
        let at = |v: usize| x.at(u64::from(self.stride) * v as u64);
        self.inside.iter().enumerate().map(|(v, p)| at(v).only_where(*p, fill).load_packed(width)).collect()
    }

    pub(super) fn store<A: Accumulate>(
        &self,
        y: Ptr<'k, Write, Elem>,
        vectors: impl IntoIterator<Item = Lanes<'k, A>>,
    ) where
        Elem: Access<A>,
    {
        let y = y.at(self.start);
        for (v, (inside, lanes)) in self.inside.iter().zip(vectors).enumerate() {
            y.at(u64::from(self.stride) * v as u64).only_where(*inside, Fill::Zero).store(lanes);
        }
    }
}

impl Forward {
    fn rows<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: ForwardParams<'k>,
        exp: Exponential<'k, A>,
        team: u32,
        vectors: u32,
    ) where
        Elem: Access<A>,
    {
        let Common { log, config, .. } = self.0;
        let part = RowPart::new(k, a.rows, a.n, config, team, vectors);
        let xs = part.load::<A>(a.x, config.width, Fill::MinusInfinity);
        let lanes = team.min(WARP);
        let top = warp_reduce_lanes(k, Maximum, lanes, exp.greatest(&xs)) * exp.scale;
        let alone = team <= WARP;
        // The other warps of a row may have what this one lacks.
        let minus_top = if alone { -top } else { Mass::minus_reference(top) };
        let powers: Vec<Lanes<'k, A>> = if self.0.keeps() {
            xs.iter().map(|x| x.lanes().map(|x| exp.power(x, minus_top))).collect()
        } else {
            Vec::new()
        };
        let sum = if self.0.keeps() {
            k.tree("a sum of exponentials", powers.iter().filter_map(Lanes::sum), |a, b| a + b)
        } else {
            exp.sum(&xs, minus_top)
        };
        let of_warp = Mass { top, sum: warp_sum(k, lanes, sum) };
        let mass = if alone { of_warp } else { of_warp.of_warps(k, exp).of_blocks(part.gather, exp) };
        let minus_top = -mass.top;
        if log {
            let (log_sum, zero) = (mass.sum.log(), k.opaque_zero());
            let y = |x: &Packed<'k, A>| x.lanes_again(zero).map(|x| exp.below(x, minus_top) - log_sum);
            part.store(a.y, xs.iter().map(y));
        } else if self.0.keeps() {
            let inverse = mass.sum.rcp();
            let factor = if alone { inverse } else { exp.of(of_warp.top - mass.top) * inverse };
            part.store(a.y, powers.iter().map(|p| p.map(|p| p * factor)));
        } else {
            let inverse = mass.sum.rcp();
            let y = |x: &Packed<'k, A>| x.lanes().map(|x| exp.power(x, minus_top) * inverse);
            part.store(a.y, xs.iter().map(y));
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

    fn dtype(&self) -> DType {
        self.0.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>)
    where
        Elem: Access<A>,
    {
        let scale = a.scale.convert::<A>();
        match self.0.config.layout {
            Layout::Rows { team, vectors } => self.rows::<A>(k, a, scale, team, vectors),
            Layout::Columns { lanes, teams, vectors } => {
                self.columns::<A>(k, a, scale, [lanes, teams, vectors]);
            }
            Layout::RowLoop | Layout::ColumnLoop { .. } => self.passes::<A>(k, a, scale),
        }
    }
}

impl Backward {
    /// What is summed over a row.
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
        team: u32,
        vectors: u32,
    ) where
        Elem: Access<A>,
    {
        let config = self.0.config;
        let part = RowPart::new(k, a.rows, a.n, config, team, vectors);
        let ys = part.load::<A>(a.y, config.width, Fill::Zero);
        let dys = part.load::<A>(a.dy, config.width, Fill::Zero);
        let sums = ys.iter().zip(&dys).filter_map(|(y, dy)| self.term(y, dy).sum());
        let mine = k.tree("the sum of a row", sums, |a, b| a + b);
        let sum =
            if team <= WARP { warp_sum(k, team, mine) } else { part.gather.combine(mine, |a, b| a + b) };
        part.store(a.dx, ys.iter().zip(&dys).map(|(y, dy)| self.gradient(y, dy, &|_| sum, scale)));
    }
}
