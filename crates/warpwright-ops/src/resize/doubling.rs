//! Images of twice the height and width: which cells a cell is made of, and with which weights, is known while recording.

use warpwright_dsl::cells::Cell;
use warpwright_dsl::prelude::*;
use warpwright_dsl::strips::{Edge, Factor, Pixels, StripShape, Strips};

use super::Mode;
use super::kernel::{Common, ResizeArgs, ResizeParams};
use super::sampling::Sampling;
use super::tuning::{Config, THREADS};

/// Rows of `dx` that a thread has.
pub(super) const ROWS_BACKWARD: u32 = 2;

/// The most cells along an axis of which places at halves and fourths are exact in f32.
pub(super) const MAX_CELLS: u32 = 1 << 22;

/// Whether height and width are doubled, and depth is kept.
pub(super) fn is_doubling([depth, rows, columns]: &[Sampling; 3]) -> bool {
    let kept = depth.input == depth.output
        && depth.output <= MAX_CELLS
        && depth.step == 1.0
        && is_nearest(depth.mode);
    kept && is_doubled(rows) && is_doubled(columns)
}

/// Whether an axis is, with cells of the output at a fourth and three fourths of one of the input.
fn is_doubled(axis: &Sampling) -> bool {
    let halves = axis.step == 0.5 && axis.input >= 2 && axis.output == 2 * axis.input;
    halves && axis.output <= MAX_CELLS && (axis.shift == 0.5 || is_nearest(axis.mode))
}

const fn is_nearest(mode: Mode) -> bool {
    matches!(mode, Mode::Nearest | Mode::NearestExact | Mode::Area)
}

/// A cell that another is made of, by where it is from that, and its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tap {
    from: i32,
    weight: f64,
}

/// An input so long that cell [`MIDDLE`] meets no end of it.
const LONG: u32 = 16;
const MIDDLE: u32 = 8;

fn axis(mode: Mode) -> Sampling {
    Sampling::new(DType::F64, mode, false, [LONG, 2 * LONG], None)
}

/// Threads of a block: of cubic sampling few, so that registers, of which it takes more than 128, leave room for several blocks.
pub(super) const fn threads(mode: Mode) -> u32 {
    if let Mode::Cubic = mode { THREADS / 2 } else { THREADS }
}

/// The cells that cell `2 i` of the output, or `2 i + 1` where `odd`, is made of, from cell `i` of the input.
fn forward(mode: Mode, odd: bool) -> Vec<Tap> {
    let taps = axis(mode).taps(2 * MIDDLE + u32::from(odd)).into_iter();
    taps.map(|(cell, weight)| Tap { from: cell as i32 - MIDDLE.cast_signed(), weight }).collect()
}

/// The cells of the output that have cell `i` of the input, from `2 i`.
fn backward(mode: Mode, i: u32) -> Vec<Tap> {
    let axis = axis(mode);
    let reach = axis_reach(mode);
    let weight = |from: i32| -> f64 {
        let o = 2 * i.cast_signed() + from;
        let Ok(o) = u32::try_from(o) else { return 0.0 };
        if o >= axis.output {
            return 0.0;
        }
        axis.taps(o).into_iter().filter(|(cell, _)| *cell == i as usize).map(|(_, weight)| weight).sum()
    };
    (-reach..=reach + 1).map(|from| Tap { from, weight: weight(from) }).collect()
}

/// Cells of the output before `2 i` that have cell `i` of the input, and behind `2 i + 1`.
const fn axis_reach(mode: Mode) -> i32 {
    match mode {
        Mode::Nearest | Mode::NearestExact | Mode::Area => 0,
        Mode::Linear => 1,
        Mode::Cubic => 3,
    }
}

/// Cells of the input around `i` that cells `2 i` and `2 i + 1` of the output are made of.
const fn halo(mode: Mode) -> u32 {
    match mode {
        Mode::Nearest | Mode::NearestExact | Mode::Area => 0,
        Mode::Linear => 1,
        Mode::Cubic => 2,
    }
}

/// A source of a target, counted in a strip, and its factor.
type Weighted<'k, A> = (usize, Factor<'k, A>);

/// The sums of each target: `taps` of each over the sources, which are read one after the other.
fn sums<'k, A: Float>(
    k: K<'k>,
    sources: &[Lanes<'k, A>],
    targets: &[Vec<Weighted<'k, A>>],
) -> Vec<Lanes<'k, A>> {
    let mut sums: Vec<Option<Lanes<'k, A>>> = vec![None; targets.len()];
    for (number, cell) in sources.iter().enumerate() {
        for (taps, sum) in targets.iter().zip(&mut sums) {
            for (_, factor) in taps.iter().filter(|(source, _)| *source == number) {
                *sum = Some(factor.add(k, cell, sum.take()));
            }
        }
    }
    sums.into_iter().flatten().collect()
}

/// Sums over rows and columns. `row` loads a source row.
struct Separable<'k, A: Scalar> {
    rows: Vec<Vec<Weighted<'k, A>>>,
    columns: Vec<Vec<Weighted<'k, A>>>,
    /// Whether columns are added up before rows.
    columns_first: bool,
}

impl<'k, A: Float> Separable<'k, A> {
    /// The targets of each row, from the source rows in order.
    fn fold(
        &self,
        k: K<'k>,
        sources: impl Iterator<Item = Vec<Lanes<'k, A>>>,
        columns: impl Fn(Vec<Lanes<'k, A>>) -> Vec<Lanes<'k, A>>,
    ) -> Vec<Vec<Lanes<'k, A>>> {
        let mut rows: Vec<Vec<Option<Lanes<'k, A>>>> = vec![Vec::new(); self.rows.len()];
        for (number, cells) in sources.enumerate() {
            let cells = if self.columns_first { sums(k, &columns(cells), &self.columns) } else { cells };
            for (taps, row) in self.rows.iter().zip(&mut rows) {
                row.resize(cells.len(), None);
                for (_, factor) in taps.iter().filter(|(source, _)| *source == number) {
                    for (cell, sum) in cells.iter().zip(row.iter_mut()) {
                        *sum = Some(factor.add(k, cell, sum.take()));
                    }
                }
            }
        }
        let finish = |row: Vec<Option<Lanes<'k, A>>>| {
            let row: Vec<_> = row.into_iter().flatten().collect();
            if self.columns_first { row } else { sums(k, &columns(row), &self.columns) }
        };
        rows.into_iter().map(finish).collect()
    }
}

/// The first target's sources where it is the first of its axis: cells 0 and 1 with weights 1 and 0, as places below 0 are 0.
struct First<'k, A: Scalar> {
    is_first: Pred<'k>,
    factors: [Factor<'k, A>; 2],
}

impl<'k, A: Float> First<'k, A> {
    /// Of linear sampling alone.
    fn of(k: K<'k>, mode: Mode, position: I32<'k>) -> Option<Self> {
        (mode == Mode::Linear).then(|| {
            let is_first = position.eq(0);
            let factor =
                |(tap, first): (Tap, f64)| Factor::Of(is_first.select(k.lit(first), k.lit(tap.weight)));
            let [below, above] = [0, 1].map(|i| factor((forward(mode, false)[i], 1.0 - i as f64)));
            Self { is_first, factors: [below, above] }
        })
    }

    /// The sources with those two behind them.
    fn extend(&self, mut sources: Vec<Lanes<'k, A>>) -> Vec<Lanes<'k, A>> {
        for i in 0..2 {
            let (shifted, plain) = (sources[i + 1].clone(), &sources[i]);
            sources.push(shifted.zip(plain.clone(), |shifted, plain| self.is_first.select(shifted, plain)));
        }
        sources
    }
}

/// Targets forward: `cells` cells of the input with those around them, to twice as many.
fn forward_targets<'k, A: Float>(
    mode: Mode,
    cells: u32,
    first: Option<&First<'k, A>>,
) -> Vec<Vec<Weighted<'k, A>>> {
    let target = |o: u32| {
        if let (0, Some(first)) = (o, first) {
            let behind = (cells + 2 * halo(mode)) as usize;
            return vec![(behind, first.factors[0]), (behind + 1, first.factors[1])];
        }
        let source = |tap: Tap| {
            let at = (halo(mode) + o / 2).wrapping_add_signed(tap.from);
            (at as usize, Factor::Fixed(tap.weight))
        };
        forward(mode, o % 2 == 1).into_iter().map(source).collect()
    };
    (0..2 * cells).map(target).collect()
}

/// Targets backward: `2 cells` cells of the output with those around them, to `cells`, which begin at `position` of `extent`.
fn backward_targets<'k, A: Float>(
    k: K<'k>,
    mode: Mode,
    cells: u32,
    [position, extent]: [I32<'k>; 2],
    may_end: impl Fn(u32) -> [bool; 2],
) -> Vec<Vec<Weighted<'k, A>>> {
    let reach = axis_reach(mode);
    let (at_first, within, at_last) = (backward(mode, 0), backward(mode, MIDDLE), backward(mode, LONG - 1));
    let target = |i: u32| {
        let own = if i == 0 { position } else { position + i.cast_signed() };
        let [first, last] = may_end(i);
        let is_first = (first && reach > 0).then(|| own.eq(0));
        let is_last = (last && reach > 0).then(|| own.eq(extent - 1));
        let source = |number: usize| {
            let tap = within[number];
            let source = (2 * i).wrapping_add_signed(tap.from + reach) as usize;
            let mut factor = Factor::Fixed(tap.weight);
            for (is, weight) in [(is_first, at_first[number].weight), (is_last, at_last[number].weight)] {
                let Some(is) = is.filter(|_| weight != tap.weight && weight != 0.0) else { continue };
                let otherwise = match factor {
                    Factor::Fixed(weight) => k.lit(weight),
                    Factor::Of(weight) => weight,
                };
                factor = Factor::Of(is.select(k.lit(weight), otherwise));
            }
            (source, factor)
        };
        (0..within.len()).map(source).collect()
    };
    (0..cells).map(target).collect()
}

/// Stores the cells of a row from `column` on.
fn store_row<'k, A: Accumulate>(
    y: Ptr<'k, Write, Elem>,
    pixels: Pixels,
    at: impl Fn(u32) -> U64<'k>,
    cells: Vec<Lanes<'k, A>>,
) {
    match pixels {
        Pixels::Elements => y.at(at(0)).store(Lanes::concat(cells)),
        Pixels::Vectors(_) => (0..).zip(cells).for_each(|(i, cell)| y.at(at(i)).store(cell)),
    }
}

/// Images of twice the height and width: a thread has a run of cells of a row of the input, and the outputs above them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubled {
    pub(super) common: Common,
    pub(super) pixels: Pixels,
    /// Cells of the run, a divisor of the input's columns.
    pub(super) run: u32,
}

impl Doubled {
    fn spec(self, op: &str) -> KernelSpec {
        let Config { width, .. } = self.common.config;
        let rows = match self.pixels {
            Pixels::Elements => "first",
            Pixels::Vectors(_) => "last",
        };
        let (mode, dtype, run) = (self.mode().name(), self.common.dtype, self.run);
        let name = format!("{op}_doubled_{mode}_{rows}_{dtype}_x{width}_r{run}");
        let blocks = match (self.common.mode, dtype) {
            (Mode::Cubic, DType::F16 | DType::BF16) => 3,
            _ => 2,
        };
        let spec = KernelSpec::new(name, BlockDim::x(threads(self.common.mode))).dtypes(DTypes::all(dtype));
        spec.min_blocks_per_sm(blocks)
    }

    /// Both nearest modes take the same cells.
    const fn mode(self) -> Mode {
        if is_nearest(self.common.mode) { Mode::Nearest } else { self.common.mode }
    }
}

impl AccumulateKernel for Doubled {
    type Args = ResizeArgs;

    fn spec(&self) -> KernelSpec {
        Self::spec(*self, "resize")
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ResizeParams<'k>) {
        let Cell { outer, position, vector, exists } = a.cells.cell(k);
        let Self { pixels, run, .. } = *self;
        let (mode, width) = (self.mode(), pixels.width());
        k.if_(exists, || {
            let [depth, row, column] = position.map(Reg::to_i32);
            let column = if run == 1 { column } else { column * run.cast_signed() };
            let [_, rows, columns] = a.axes.map(|axis| axis.input.to_i32());
            let x = a.x.at(a.input.start(outer, vector, width));
            let y = a.y.at(a.output.start(outer, vector, width));
            let halo = halo(mode);
            let shape = StripShape { pixels, before: halo, cells: run, behind: halo, edge: Edge::Nearest };
            let strips = Strips::new(a.input, shape, column, columns);
            let around = halo.cast_signed();
            let sources = (-around..=around).map(|i| {
                let row = match i {
                    0 => row,
                    _ if i < 0 => (row + i).max(0),
                    _ => (row + i).min(rows - 1),
                };
                strips.load(x, [depth, row], None)
            });
            let mut sources: Vec<Vec<Lanes<'k, A>>> = sources.collect();
            let [first_row, first_column] = [row, column].map(|at| First::of(k, mode, at));
            if let Some(first) = &first_row {
                let by_row = sources.iter().map(|cells| Lanes::concat(cells.iter().cloned()));
                let rows: Vec<Lanes<'k, A>> = first.extend(by_row.collect());
                let cells = |row: Lanes<'k, A>| -> Vec<Lanes<'k, A>> {
                    row.as_slice().chunks(width as usize).map(|cell| cell.to_vec().into()).collect()
                };
                sources = rows.into_iter().map(cells).collect();
            }
            let separable = Separable {
                rows: forward_targets(mode, 1, first_row.as_ref()),
                columns: forward_targets(mode, run, first_column.as_ref()),
                columns_first: pixels != Pixels::Elements,
            };
            let extended = |cells| match &first_column {
                Some(first) => first.extend(cells),
                None => cells,
            };
            let values = separable.fold(k, sources.into_iter(), extended);
            for (i, cells) in (0..).zip(values) {
                let at = |j: i32| a.output.pixel_at([depth, row * 2 + i, column * 2 + j], width);
                store_row(y, pixels, |j| at(j.cast_signed()), cells);
            }
        });
    }
}

/// The gradient of [`Doubled`]: a thread has a run of cells of two rows of the input.
#[derive(Clone, Copy, Debug)]
pub(super) struct DoubledBackward(pub(super) Doubled);

impl AccumulateKernel for DoubledBackward {
    type Args = ResizeArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("resize_backward")
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ResizeParams<'k>) {
        let Cell { outer, position, vector, exists } = a.cells.cell(k);
        let Doubled { pixels, run, .. } = self.0;
        let (mode, width) = (self.0.mode(), pixels.width());
        k.if_(exists, || {
            let [depth, row, column] = position.map(Reg::to_i32);
            let row = row * ROWS_BACKWARD.cast_signed();
            let column = if run == 1 { column } else { column * run.cast_signed() };
            let dy = a.x.at(a.output.start(outer, vector, width));
            let dx = a.y.at(a.input.start(outer, vector, width));
            let [_, rows, columns] = a.axes.map(|axis| axis.input.to_i32());
            let dy_columns = a.axes[2].output.to_i32();
            let reach = axis_reach(mode);
            let beside = reach.cast_unsigned();
            let edge = Edge::Fill(Fill::Zero);
            let shape = StripShape { pixels, before: beside, cells: 2 * run, behind: beside, edge };
            let strips = Strips::new(a.output, shape, column * 2, dy_columns);
            // Two rows are there, or not, with the row of `dx` of which they are; the first is.
            let pair = |i: i32| match i {
                0 => None,
                _ if i < 0 => Some(((row + i).ge(0), Fill::Zero)),
                _ => Some(((row + i).lt(rows), Fill::Zero)),
            };
            let end = 2 * ROWS_BACKWARD.cast_signed() + reach;
            let first_pair = (-reach).div_euclid(2);
            let pairs: Vec<_> = (first_pair..=(end - 1).div_euclid(2)).map(pair).collect();
            let load = |i: i32| {
                let pair = (i.div_euclid(2) - first_pair).cast_unsigned() as usize;
                strips.load(dy, [depth, row * 2 + i], pairs[pair])
            };
            let sources = (-reach..end).map(load);
            let separable: Separable<'k, A> = Separable {
                rows: backward_targets(k, mode, ROWS_BACKWARD, [row, rows], |i| [i == 0, true]),
                columns: backward_targets(k, mode, run, [column, columns], |i| [i == 0, i + 1 == run]),
                columns_first: pixels != Pixels::Elements,
            };
            let values = separable.fold(k, sources, |cells| cells);
            for (i, cells) in (0..).zip(values) {
                let at = |j: i32| a.input.pixel_at([depth, row + i, column + j], width);
                let store = || store_row(dx, pixels, |j| at(j.cast_signed()), cells.clone());
                if i == 0 { store() } else { k.if_((row + i).lt(rows), store) }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Mode; 4] = [Mode::Nearest, Mode::NearestExact, Mode::Linear, Mode::Cubic];

    /// The weights of cells of an input of `n` in cell `o` of the output, as the definition has them.
    fn defined(dtype: DType, mode: Mode, n: u32, o: u32) -> Vec<f64> {
        let mut weights = vec![0.0; n as usize];
        let axis = Sampling::new(dtype, mode, false, [n, 2 * n], None);
        axis.taps(o).into_iter().for_each(|(cell, weight)| weights[cell] += weight);
        weights
    }

    #[test]
    fn taps_are_those_of_the_definition() {
        for dtype in [DType::F32, DType::F64] {
            for (mode, n) in MODES.into_iter().flat_map(|mode| [2, 3, 4, 5, 9].map(|n| (mode, n))) {
                for o in 0..2 * n {
                    let mut weights = vec![0.0; n as usize];
                    for Tap { from, weight } in forward(mode, o % 2 == 1) {
                        let cell = (o as i32 / 2 + from).clamp(0, n as i32 - 1);
                        weights[cell as usize] += weight;
                    }
                    assert_eq!(weights, defined(dtype, mode, n, o), "{mode:?} {n} {o}");
                }
            }
        }
    }

    #[test]
    fn gradients_have_the_weights_of_the_definition() {
        for (mode, n) in MODES.into_iter().flat_map(|mode| [2, 3, 4, 5, 9].map(|n| (mode, n))) {
            for i in 0..n {
                // As kernels have them: those of the ends, and zeros beyond.
                let like = if i == 0 {
                    0
                } else if i == n - 1 {
                    LONG - 1
                } else {
                    MIDDLE
                };
                let mut weights = vec![0.0; 2 * n as usize];
                for Tap { from, weight } in backward(mode, like) {
                    let o = 2 * i as i32 + from;
                    if (0..2 * n as i32).contains(&o) {
                        weights[o as usize] = weight;
                    }
                }
                let of: Vec<f64> = (0..2 * n).map(|o| defined(DType::F32, mode, n, o)[i as usize]).collect();
                assert_eq!(weights, of, "{mode:?} {n} {i}");
            }
        }
    }

    #[test]
    fn only_doublings_are_doublings() {
        let is = |mode, corners, from: [u32; 3], to: [u32; 3], scale| {
            let plain = |i| i == 0 && mode != Mode::Nearest;
            is_doubling(&[0, 1, 2].map(|i| {
                let mode = if plain(i) { Mode::Nearest } else { mode };
                let corners = corners && !plain(i);
                Sampling::new(DType::F32, mode, corners, [from[i], to[i]], scale)
            }))
        };
        for mode in [Mode::Nearest, Mode::Linear, Mode::Cubic] {
            assert!(is(mode, false, [1, 4, 6], [1, 8, 12], None), "{mode:?}");
            assert!(!is(mode, false, [1, 1, 6], [1, 2, 12], None), "an extent of 1");
            assert!(!is(mode, false, [1, 4, 6], [1, 8, 11], None), "odd");
            assert!(!is(mode, false, [2, 4, 6], [4, 8, 12], None), "depth");
        }
        assert!(!is(Mode::Linear, true, [1, 4, 6], [1, 8, 12], None), "corners");
        assert!(!is(Mode::Linear, false, [1, 4, 6], [1, 8, 12], Some(2.05)), "another factor");
        assert!(is(Mode::Nearest, false, [3, 4, 6], [3, 8, 12], None), "depth is kept");
    }
}
