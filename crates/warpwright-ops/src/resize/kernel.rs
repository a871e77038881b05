//! The kernels: a thread for each vector of the output forward, of the input backward, where the cells of the output that have the
//! thread's cell are added up in order.

use warpwright_dsl::cells::{AxisRange, Cell, CellBox, CellGridArgs, ImageArgs, Visit};
use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::Mode;
use super::sampling::CUBIC;
use super::tuning::{Config, Shares, THREADS};

kernel_args! {
    /// Output cell `o` is at `(o + offset) step - shift`; `per_step` is `1 / step`, or the extent of the
    /// output if that is infinite.
    pub(super) struct AxisArgs => Axis {
        input: u32, output: u32, step: f64, offset: f64, shift: f64, per_step: f64,
    }
}

kernel_args! {
    /// Backward, `x` is `dy` and `y` is `dx`; `input` and `output` are those of the forward pass.
    pub(super) struct ResizeArgs => ResizeParams {
        cells: CellGridArgs, input: ImageArgs, output: ImageArgs, axes: [AxisArgs; 3], x: In<Elem>, y: Out<Elem>,
    }
}

/// The parts that both kernels share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    pub(super) dtype: DType,
    pub(super) mode: Mode,
    /// Axes, from the last on, that are sampled between cells.
    pub(super) rank: u32,
    pub(super) config: Config,
}

/// A cell that a sample is made of, and its weight.
#[derive(Clone, Copy)]
struct Tap<'k, A: Float> {
    cell: I32<'k>,
    weight: Reg<'k, A>,
}

impl<'k> Axis<'k> {
    /// Where output cell `o` is, in numbers of type `A`: the cell below, and how far from it.
    fn place<A: Float>(self, mode: Mode, o: I32<'k>) -> (I32<'k>, Reg<'k, A>) {
        let src = (o.convert::<A>() + self.offset.convert::<A>()) * self.step.convert::<A>()
            - self.shift.convert::<A>();
        let src = if mode == Mode::Linear { src.max(0.0) } else { src };
        let cell = src.floor().to_i32().min(self.input.to_i32() - 1);
        (cell, (src - cell.convert::<A>()).clamp(0.0, 1.0))
    }

    /// The cells that output cell `o` is made of.
    fn taps<A: Float>(self, k: K<'k>, mode: Mode, o: I32<'k>) -> Vec<Tap<'k, A>> {
        let one = |cell: I32<'k>| vec![Tap { cell, weight: k.lit(1.0) }];
        let last = self.input.to_i32() - 1;
        match mode {
            // In f32 whatever the elements are.
            Mode::Nearest | Mode::NearestExact | Mode::Area => one(self.place::<f32>(mode, o).0),
            Mode::Linear => {
                let (cell, t) = self.place::<A>(mode, o);
                let above = (cell + 1).min(last);
                vec![Tap { cell, weight: 1.0 - t }, Tap { cell: above, weight: t }]
            }
            Mode::Cubic => {
                let (cell, t) = self.place::<A>(mode, o);
                let near = |x: Reg<'k, A>| (x * (CUBIC + 2.0) - (CUBIC + 3.0)).mul_add(x * x, 1.0);
                let far = |x: Reg<'k, A>| {
                    (x * CUBIC - 5.0 * CUBIC).mul_add(x, 8.0 * CUBIC).mul_add(x, -4.0 * CUBIC)
                };
                let weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
                let tap = |(i, weight)| {
                    let cell = if i == 0 { cell } else { cell + i };
                    Tap { cell: cell.max(0).min(last), weight }
                };
                (-1..).zip(weights).map(tap).collect()
            }
        }
    }

    /// The output cells that may have cell `i`: those at places less than `below` before it and `above` behind it. Bounds are computed
    /// in f64 and wider than the places of the forward pass are wrong.
    fn samples(self, mode: Mode, i: I32<'k>) -> AxisRange<'k> {
        let (below, above) = match mode {
            Mode::Nearest | Mode::NearestExact | Mode::Area => (0.0, 1.0),
            Mode::Linear => (1.0, 1.0),
            Mode::Cubic => (2.0, 2.0),
        };
        let src = i.to_f64() + self.shift;
        let at = |src: F64<'k>| src * self.per_step - self.offset;
        let (low, high) = (at(src - below), at(src + above));
        let margin = (high.abs() + 1.0) * f64::powi(2.0, -20);
        let first = (low - margin).ceil().to_i32().max(0);
        let end = ((high + margin).floor() + 1.0).min(self.output.to_f64()).to_i32();
        AxisRange { first, end, step: i.k().lit(1) }
    }
}

impl Common {
    fn spec(self, op: &str) -> KernelSpec {
        let Self { dtype, mode, rank, config: Config { width, shares, .. } } = self;
        // Both nearest modes have the same kernel.
        let mode = if mode == Mode::NearestExact { Mode::Nearest } else { mode };
        let rank = if mode == Mode::Linear { format!("{rank}d") } else { String::new() };
        let run = if let Shares::Run(run) = shares { format!("_r{run}") } else { String::new() };
        let name = format!("{op}_{}{rank}_{dtype}_x{width}{run}", mode.name());
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(DTypes::all(dtype)).min_blocks_per_sm(2)
    }

    /// Whether cells of an axis are sampled one by one.
    fn is_plain(self, axis: usize) -> bool {
        axis + (self.rank as usize) < 3
    }

    /// The cells that output cell `o` of an axis is made of.
    fn taps<'k, A: Float>(self, k: K<'k>, axes: &[Axis<'k>; 3], axis: usize, o: I32<'k>) -> Vec<Tap<'k, A>> {
        if self.is_plain(axis) {
            return vec![Tap { cell: o, weight: k.lit(1.0) }];
        }
        axes[axis].taps(k, self.mode, o)
    }
}

/// The product of weights, of which one that is not there is 1.
fn product<'k, A: Float>(a: Option<Reg<'k, A>>, b: Option<Reg<'k, A>>) -> Option<Reg<'k, A>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a * b),
        (a, b) => a.or(b),
    }
}

/// Images at other extents.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resize {
    pub(super) common: Common,
}

impl AccumulateKernel for Resize {
    type Args = ResizeArgs;

    fn spec(&self) -> KernelSpec {
        self.common.spec("resize")
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ResizeParams<'k>) {
        let Cell { outer, position, vector, exists } = a.cells.cell(k);
        let (common, width) = (self.common, self.common.config.width);
        let run = common.config.shares.run();
        k.if_(exists, || {
            let [depth, row, column] = position.map(Reg::to_i32);
            let column = if run == 1 { column } else { column * run.cast_signed() };
            let x = a.x.at(a.input.start(outer, vector, width));
            let first = a.output.pixel_at([depth, row, column], width);
            let y = a.y.at(a.output.start(outer, vector, width) + first);
            let [depths, rows] = [(0, depth), (1, row)].map(|(i, o)| common.taps::<A>(k, &a.axes, i, o));
            let of_column = |i: u32| {
                let column = if i == 0 { column } else { column + i.cast_signed() };
                let columns = common.taps::<A>(k, &a.axes, 2, column);
                let mut loaded = Vec::new();
                for depth in &depths {
                    for row in &rows {
                        for column in &columns {
                            let at = a.input.pixel_at([depth.cell, row.cell, column.cell], width);
                            loaded.push(x.at(at).load_packed::<A>(width));
                        }
                    }
                }
                (columns, loaded)
            };
            let columns: Vec<_> = (0..run).map(of_column).collect();
            if let [(_, loaded)] = &columns[..]
                && let [one] = &loaded[..]
            {
                y.store_packed(one);
                return;
            }
            let value = |(columns, loaded): (Vec<Tap<'k, A>>, Vec<Packed<'k, A>>)| {
                // Innermost first, as the formula is nested.
                let mut values: Vec<Lanes<'k, A>> = loaded.iter().map(Packed::lanes).collect();
                for taps in [&columns, &rows, &depths] {
                    let weighted = |values: &[Lanes<'k, A>]| {
                        let mut all = values.iter().zip(taps);
                        let first = all.next().map(|(value, tap)| value * tap.weight);
                        all.fold(first, |sum, (value, tap)| Some(value.mul_add(tap.weight, sum?)))
                    };
                    if taps.len() > 1 {
                        values = values.chunks(taps.len()).filter_map(weighted).collect();
                    }
                }
                Lanes::concat(values)
            };
            y.store(Lanes::concat(columns.into_iter().map(value)));
        });
    }
}

/// The gradient of [`Resize`].
#[derive(Clone, Copy, Debug)]
pub(super) struct ResizeBackward {
    pub(super) common: Common,
}

impl ResizeBackward {
    /// The weight that cell `i` has in output cell `o` of an axis, 1 if there is none, and whether it is not 0.
    fn weight<'k, A: Float>(
        &self,
        k: K<'k>,
        axis: Axis<'k>,
        o: I32<'k>,
        i: I32<'k>,
    ) -> (Option<Reg<'k, A>>, Pred<'k>) {
        let taps = axis.taps::<A>(k, self.common.mode, o);
        if let [tap] = taps[..] {
            return (None, tap.cell.eq(i));
        }
        let weights = taps.iter().map(|tap| tap.cell.eq(i).select(tap.weight, 0.0));
        let weight = k.tree("the weights of a cell", weights, |a, b| a + b);
        (Some(weight), weight.ne(0.0))
    }
}

impl AccumulateKernel for ResizeBackward {
    type Args = ResizeArgs;

    fn spec(&self) -> KernelSpec {
        self.common.spec("resize_backward")
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ResizeParams<'k>) {
        let Cell { outer, position, vector, exists } = a.cells.cell(k);
        let (common, width) = (self.common, self.common.config.width);
        k.if_(exists, || {
            let cell = position.map(Reg::to_i32);
            let axes = [0, 1, 2].map(|i| match common.is_plain(i) {
                true => AxisRange { first: cell[i], end: cell[i] + 1, step: k.lit(1) },
                false => a.axes[i].samples(common.mode, cell[i]),
            });
            let start = a.output.start(outer, vector, width);
            let samples = CellBox { axes, image: a.output, start, width, unrolled: None };
            let load = |visit: Visit<'k>| visit.of(a.x, Fill::Zero).load_packed::<A>(width);
            let zeros: Lanes<'k, A> = Lanes::constant(k, 0.0, width);
            let sum = samples.fold(k, zeros, load, |sum, visit, dy| {
                let sampled = (0..3).filter(|i| !common.is_plain(*i));
                let mine = sampled.map(|i| self.weight::<A>(k, a.axes[i], visit.position[i], cell[i]));
                let all = mine.reduce(|(a, has_a), (b, has_b)| (product(a, b), has_a & has_b));
                let Some((weight, has)) = all else { return sum + dy.lanes() };
                // What is infinite elsewhere does not count.
                let add = || match weight {
                    Some(weight) => dy.lanes().mul_add(weight, &sum),
                    None => &sum + dy.lanes(),
                };
                k.if_else(has, add, || sum.clone())
            });
            a.y.at(a.input.start(outer, vector, width) + a.input.pixel_at(cell, width)).store(sum);
        });
    }
}
