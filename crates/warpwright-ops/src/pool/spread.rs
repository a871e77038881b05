//! Gradients of windows that lie side by side, with channels first: a thread has a run of cells of a row of `dx`, which are of one window
//! or of two.

use warpwright_dsl::cells::{Cell, CellGridArgs, ImageArgs};
use warpwright_dsl::divide::DivisorArgs;
use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::kernel::{Numbering, reciprocal};
use super::tuning::THREADS;

kernel_args! {
    /// Images of windows of so many rows and columns. The cell in row `i` and column `j` of plane `d` has the number
    /// `d plane + i row + j`, less `window_row` for each row of windows above its own and `window_column` for each window before it.
    pub(super) struct SpreadArgs => SpreadParams {
        cells: CellGridArgs, input: ImageArgs, output: ImageArgs, rows: DivisorArgs, columns: DivisorArgs,
        plane: u32, row: u32, window_row: u32, window_column: u32,
    }
}

kernel_args! {
    /// `dx` is `dy` of its window, divided by `divisor`.
    pub(super) struct MeanArgs => MeanParams { spread: SpreadArgs, dy: In<Elem>, dx: Out<Elem>, divisor: f64 }
}

kernel_args! {
    /// `dx` is `dy` of its window where its number is that window's of `indices`.
    pub(super) struct MaximumArgs => MaximumParams {
        spread: SpreadArgs, indices: In<u8>, dy: In<Elem>, dx: Out<Elem>,
    }
}

/// The run of a thread.
struct Run<'k> {
    /// Where it begins in `dx`.
    at: U64<'k>,
    /// Its windows in `dy`: that of the first cell, and the one behind it.
    windows: [U64<'k>; 2],
    /// Cells of the first window.
    of_first: I32<'k>,
    /// Whether there are cells of the second.
    both: Pred<'k>,
    /// The number of the first cell in each window.
    numbers: [I32<'k>; 2],
}

impl<'k> Run<'k> {
    /// The values of the windows.
    fn load<T: Number, E: Access<T> + warpwright_dsl::Element>(
        &self,
        from: Ptr<'k, Read, E>,
    ) -> [Reg<'k, T>; 2] {
        let [first, second] = self.windows;
        [from.at(first).get(), from.at(second).only_where(self.both, Fill::Zero).get()]
    }
}

/// The parts that both kernels share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) dtype: DType,
    /// Cells of a thread, at most as many as a window has columns.
    pub(super) run: u32,
}

impl Spread {
    fn spec(self, op: &str, rest: &str) -> KernelSpec {
        let Self { dtype, run } = self;
        let name = format!("{op}_backward_spread_{dtype}_r{run}{rest}");
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(DTypes::all(dtype)).min_blocks_per_sm(2)
    }

    fn build<'k>(self, k: K<'k>, a: SpreadParams<'k>, body: impl FnOnce(Run<'k>)) {
        let Cell { outer, position: [depth, row, column], vector, exists } = a.cells.cell(k);
        k.if_(exists, || {
            let column = column * self.run;
            let ((window_row, _), (window_column, before)) = (a.rows.divide(row), a.columns.divide(column));
            let of_first = (a.columns.divisor - before).to_i32();
            let position = [depth, window_row, window_column].map(Reg::to_i32);
            let first = a.output.start(outer, vector, 1) + a.output.pixel_at(position, 1);
            let number = depth * a.plane + row.mul_add(a.row, column);
            let number = number - window_row * a.window_row - window_column * a.window_column;
            let number = number.to_i32();
            let [depth, row, column] = [depth, row, column].map(Reg::to_i32);
            body(Run {
                at: a.input.start(outer, vector, 1) + a.input.pixel_at([depth, row, column], 1),
                windows: [first, first + 1u64],
                of_first,
                both: of_first.lt(self.run.cast_signed()),
                numbers: [number, number - a.window_column.to_i32()],
            });
        });
    }

    /// The elements of the run: `of` the number of a cell in the run and whether it is of the first window.
    fn elements<'k, A: Float>(
        self,
        run: &Run<'k>,
        of: impl Fn(i32, Option<Pred<'k>>) -> Reg<'k, A>,
    ) -> Lanes<'k, A> {
        let element = |i: u32| of(i.cast_signed(), (i > 0).then(|| run.of_first.gt(i.cast_signed())));
        (0..self.run).map(element).collect()
    }
}

/// The gradient of means.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeanSpread(pub(super) Spread);

impl AccumulateKernel for MeanSpread {
    type Args = MeanArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("avg_pool", "")
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MeanParams<'k>) {
        self.0.build(k, a.spread, |run| {
            let factor = reciprocal(self.0.dtype, a.divisor.convert::<A>());
            let [first, second] = run.load(a.dy).map(|dy: Reg<'k, A>| dy * factor);
            let element =
                |_, is_first: Option<Pred<'k>>| is_first.map_or(first, |is| is.select(first, second));
            a.dx.at(run.at).store(self.0.elements(&run, element));
        });
    }
}

/// The gradient of maxima.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaximumSpread {
    pub(super) spread: Spread,
    pub(super) numbering: Numbering,
}

impl AccumulateKernel for MaximumSpread {
    type Args = MaximumArgs;

    fn spec(&self) -> KernelSpec {
        self.spread.spec("max_pool", Numbering::name(Some(self.numbering)))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MaximumParams<'k>) {
        self.spread.build(k, a.spread, |run| {
            let dy: [Reg<'k, A>; 2] = run.load(a.dy);
            let from: [I32<'k>; 2] = match self.numbering {
                Numbering::Index => run.load(a.indices.cast::<i64>()).map(|of: I64<'k>| of.to_i32()),
                Numbering::Tap => run.load(a.indices).map(|of: U32<'k>| of.to_i32()),
            };
            // Where in the run each window's maximum is.
            let places = [0, 1].map(|i| from[i] - run.numbers[i]);
            let element = |i, is_first: Option<Pred<'k>>| {
                let (place, dy) = match is_first {
                    None => (places[0], dy[0]),
                    Some(is) => (is.select(places[0], places[1]), is.select(dy[0], dy[1])),
                };
                place.eq(i).select(dy, 0.0)
            };
            a.dx.at(run.at).store(self.spread.elements(&run, element));
        });
    }
}
