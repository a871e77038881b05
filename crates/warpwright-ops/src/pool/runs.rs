//! Small windows with channels first: a thread has a run of outputs of a row, or backward of cells of `dx`, whose windows share loads.

use warpwright_dsl::cells::Cell;
use warpwright_dsl::prelude::*;
use warpwright_dsl::strips::{Edge, Pixels, StripShape, Strips};

use super::kernel::{
    AverageArgs, AverageParams, MaxArgs, MaxBackwardArgs, MaxBackwardParams, MaxParams, Numbering,
    PoolParams, reciprocal,
};
use super::tuning::{Run, THREADS};

/// The parts that all kernels share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs {
    pub(super) dtype: DType,
    pub(super) run: Run,
}

/// The cells of a strip, one register each.
type Row<'k, A> = Vec<Reg<'k, A>>;

/// The numbers of windows as 32 bits.
fn low<'k, T: Number>(rows: Vec<Row<'k, T>>) -> Vec<Row<'k, i32>> {
    rows.into_iter().map(|row| row.into_iter().map(Reg::to_i32).collect()).collect()
}

/// A thread's run of outputs.
struct Outputs<'k> {
    /// Depth, row and column of the first output.
    position: [I32<'k>; 3],
    /// The row that the windows begin in.
    row: I32<'k>,
    /// Where the first output is.
    at: U64<'k>,
    /// Cells of the windows.
    strips: Strips<'k>,
    /// The first element of the image.
    image: U64<'k>,
}

/// A thread's cells of `dx`: rows and columns of a run.
struct Cells<'k> {
    /// Depth, row and column of the first cell.
    position: [I32<'k>; 3],
    /// The row of the windows of the same number.
    row: I32<'k>,
    /// Their windows.
    strips: Strips<'k>,
    /// The first element of the image of `dx`, and of that of the windows.
    images: [U64<'k>; 2],
}

/// A window of a cell: its row and column among those that were loaded, and the cell's number in it.
struct Of {
    window: [usize; 2],
    tap: i32,
}

impl Runs {
    fn spec(self, op: &str, rest: &str) -> KernelSpec {
        let Self { dtype, run: Run { kernel, stride, padding, outputs } } = self;
        let name = format!("{op}_runs_{dtype}_k{kernel}s{stride}p{padding}_r{outputs}{rest}");
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(DTypes::all(dtype)).min_blocks_per_sm(2)
    }

    fn factor<'k, A: Float>(self, a: &AverageParams<'k>) -> Reg<'k, A> {
        reciprocal(self.dtype, a.divisor.convert::<A>())
    }

    fn outputs<'k>(self, k: K<'k>, pool: PoolParams<'k>, fill: Fill, body: impl FnOnce(Outputs<'k>)) {
        let Cell { outer, position, vector, exists } = pool.cells.cell(k);
        let Run { kernel, stride, padding, outputs } = self.run;
        k.if_(exists, || {
            let [depth, row, column] = position.map(Reg::to_i32);
            let position = [depth, row, column * outputs.cast_signed()];
            let shape = StripShape {
                pixels: Pixels::Elements,
                before: padding,
                cells: outputs * stride,
                behind: (kernel - padding).saturating_sub(stride),
                edge: Edge::Fill(fill),
            };
            let columns = pool.axes[2].input.to_i32();
            let own = column * (outputs * stride).cast_signed();
            body(Outputs {
                position,
                row: row * stride.cast_signed() - padding.cast_signed(),
                at: pool.output.start(outer, vector, 1) + pool.output.pixel_at(position, 1),
                strips: Strips::new(pool.input, shape, own, columns),
                image: pool.input.start(outer, vector, 1),
            });
        });
    }

    /// The rows of the windows, in order; `fill` beyond the image.
    fn rows<'k, A: Float>(
        self,
        pool: PoolParams<'k>,
        x: Ptr<'k, Read, Elem>,
        of: &Outputs<'k>,
        fill: Fill,
    ) -> Vec<Row<'k, A>> {
        let load = |i: u32| {
            let row = if i == 0 { of.row } else { of.row + i.cast_signed() };
            let there = row.to_u32().lt(pool.axes[1].input);
            of.strips.load(x.at(of.image), [of.position[0], row], Some((there, fill)))
        };
        let rows: Vec<Vec<Lanes<'k, A>>> = (0..self.run.kernel).map(load).collect();
        rows.into_iter().map(|row| row.into_iter().flatten().collect()).collect()
    }

    /// The cells of each output's window, as one, from all rows.
    fn each<'k, A: Float>(
        self,
        rows: &[Row<'k, A>],
        combine: impl Fn(Reg<'k, A>, Reg<'k, A>) -> Reg<'k, A>,
    ) -> Lanes<'k, A> {
        let Run { kernel, stride, outputs, .. } = self.run;
        let mut rows = rows.iter();
        let first = rows.next().cloned().unwrap_or_default();
        // Rows first, whose cells windows share.
        let columns: Row<'k, A> =
            rows.fold(first, |sum, row| sum.into_iter().zip(row).map(|(a, b)| combine(a, *b)).collect());
        let window = |i: u32| {
            let cells = &columns[(i * stride) as usize..][..kernel as usize];
            cells.iter().copied().reduce(&combine)
        };
        (0..outputs).filter_map(window).collect()
    }

    fn cells<'k>(self, k: K<'k>, pool: PoolParams<'k>, body: impl FnOnce(Cells<'k>)) {
        let Cell { outer, position, vector, exists } = pool.cells.cell(k);
        let Run { stride, outputs, .. } = self.run;
        k.if_(exists, || {
            let [depth, row, column] = position.map(Reg::to_i32);
            let shape = StripShape {
                pixels: Pixels::Elements,
                before: self.run.before(),
                cells: outputs,
                behind: self.run.behind(),
                edge: Edge::Fill(Fill::Zero),
            };
            let columns = pool.axes[2].output.to_i32();
            body(Cells {
                position: [depth, row * stride.cast_signed(), column * (outputs * stride).cast_signed()],
                row,
                strips: Strips::new(pool.output, shape, column * outputs.cast_signed(), columns),
                images: [pool.input, pool.output].map(|image| image.start(outer, vector, 1)),
            });
        });
    }

    /// The rows of windows that have the thread's cells, in order.
    fn windows<'k, T: Number, E: Access<T> + warpwright_dsl::Element>(
        self,
        pool: PoolParams<'k>,
        from: Ptr<'k, Read, E>,
        of: &Cells<'k>,
    ) -> Vec<Row<'k, T>> {
        let before = self.run.before().cast_signed();
        let load = |i: i32| {
            let row = if i == 0 { of.row } else { of.row + i };
            let there = row.to_u32().lt(pool.axes[1].output);
            let there = Some((there, Fill::Zero));
            let row: Vec<Lanes<'k, T>> = of.strips.load(from.at(of.images[1]), [of.position[0], row], there);
            row.into_iter().flatten().collect()
        };
        (-before..=self.run.behind().cast_signed()).map(load).collect()
    }

    /// Stores the thread's rows; `sum` is that of a cell over its windows, in order.
    fn store<'k, A: Accumulate>(
        self,
        k: K<'k>,
        pool: PoolParams<'k>,
        dx: Ptr<'k, Write, Elem>,
        of: &Cells<'k>,
        sum: impl Fn([u32; 2], Vec<Of>) -> Reg<'k, A>,
    ) {
        let Run { kernel, stride, outputs, .. } = self.run;
        let along = |cell: u32| -> Vec<(usize, u32)> {
            let before = self.run.before();
            let windows = 0..=(before + self.run.behind());
            let tap = |i: u32| {
                let tap = self.run.tap(i.cast_signed() - before.cast_signed(), cell % stride)?;
                Some(((cell / stride + i) as usize, tap))
            };
            windows.filter_map(tap).collect()
        };
        let rows = pool.axes[1].input.to_i32();
        for i in 0..stride {
            let [depth, row, column] = of.position;
            let row = if i == 0 { row } else { row + i.cast_signed() };
            let cell = |j: u32| {
                let of_column = along(j);
                let windows = along(i).into_iter().flat_map(|(row, tap_row)| {
                    let of = move |&(column, tap): &(usize, u32)| Of {
                        window: [row, column],
                        tap: (tap_row * kernel + tap).cast_signed(),
                    };
                    of_column.iter().map(of).collect::<Vec<_>>()
                });
                sum([i, j], windows.collect())
            };
            let cells: Lanes<'k, A> = (0..outputs * stride).map(cell).collect();
            let at = of.images[0] + pool.input.pixel_at([depth, row, column], 1);
            let store = || dx.at(at).store(cells);
            if i == 0 { store() } else { k.if_(row.lt(rows), store) }
        }
    }
}

/// Maxima.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaxRuns {
    pub(super) runs: Runs,
    pub(super) numbering: Option<Numbering>,
}

impl AccumulateKernel for MaxRuns {
    type Args = MaxArgs;

    fn spec(&self) -> KernelSpec {
        self.runs.spec("max_pool", Numbering::name(self.numbering))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MaxParams<'k>) {
        let Run { kernel, stride, padding, outputs } = self.runs.run;
        let fill = Fill::MinusInfinity;
        self.runs.outputs(k, a.pool, fill, |of| {
            let rows = self.runs.rows::<A>(a.pool, a.x, &of, fill);
            let Some(numbering) = self.numbering else {
                a.y.at(of.at).store(self.runs.each(&rows, |a, b| a.maximum(b)));
                return;
            };
            // The number of a window's first row and column, and from a row to the next.
            let [depth, _, column] = of.position;
            let first_column = column * stride.cast_signed() - padding.cast_signed();
            let height = a.pool.axes[1].input.to_i32();
            let width = a.pool.axes[2].input.to_i32();
            let number = |output: u32, tap: [u32; 2]| -> I32<'k> {
                let [row, column] = tap.map(u32::cast_signed);
                match numbering {
                    Numbering::Tap => k.lit(row * kernel.cast_signed() + column),
                    Numbering::Index => {
                        let row = depth.mul_add(height, of.row + row).mul_add(width, first_column);
                        row + ((output * stride).cast_signed() + column)
                    }
                }
            };
            let window = |output: u32| {
                // The first cell that the image has: the padding is before it in windows of the first row and column.
                let missing = |at: I32<'k>| (-at).max(0);
                let (row, column) = (missing(of.row), (output == 0).then(|| missing(first_column)));
                let across = column.unwrap_or_else(|| k.lit(0));
                let first = match numbering {
                    Numbering::Tap => row.mul_add(kernel.cast_signed(), across),
                    Numbering::Index => row.mul_add(width, number(output, [0, 0])) + across,
                };
                let init = (k.lit(f64::NEG_INFINITY), first);
                let taps = (0..kernel).flat_map(|row| (0..kernel).map(move |column| [row, column]));
                taps.fold(init, |(y, from), tap| {
                    let x: Reg<'k, A> = rows[tap[0] as usize][(output * stride + tap[1]) as usize];
                    let taken = x.gt(y) | x.is_nan();
                    (taken.select(x, y), taken.select(number(output, tap), from))
                })
            };
            let (y, from): (Vec<Reg<'k, A>>, Vec<I32<'k>>) = (0..outputs).map(window).unzip();
            a.y.at(of.at).store(Lanes::from(y));
            let from = Lanes::from(from);
            match numbering {
                Numbering::Index => a.indices.cast::<i64>().at(of.at).store(from.convert::<i64>()),
                Numbering::Tap => a.indices.at(of.at).store(from.convert::<u32>()),
            }
        });
    }
}

/// The gradient of [`MaxRuns`].
#[derive(Clone, Copy, Debug)]
pub(super) struct MaxRunsBackward {
    pub(super) runs: Runs,
    pub(super) numbering: Numbering,
}

impl AccumulateKernel for MaxRunsBackward {
    type Args = MaxBackwardArgs;

    fn spec(&self) -> KernelSpec {
        self.runs.spec("max_pool_backward", Numbering::name(Some(self.numbering)))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MaxBackwardParams<'k>) {
        self.runs.cells(k, a.pool, |of| {
            let dy: Vec<Row<'k, A>> = self.runs.windows(a.pool, a.dy, &of);
            let numbers: Vec<Row<'k, i32>> = match self.numbering {
                Numbering::Index => low(self.runs.windows::<i64, _>(a.pool, a.indices.cast::<i64>(), &of)),
                Numbering::Tap => low(self.runs.windows::<u32, _>(a.pool, a.indices, &of)),
            };
            let [depth, row, column] = of.position;
            let (height, width) = (a.pool.axes[1].input.to_i32(), a.pool.axes[2].input.to_i32());
            self.runs.store(k, a.pool, a.dx, &of, |[i, j], windows| {
                let own =
                    depth.mul_add(height, row + i.cast_signed()).mul_add(width, column + j.cast_signed());
                let of_window = |Of { window: [row, column], tap }: Of| {
                    let (from, dy): (I32<'k>, Reg<'k, A>) = (numbers[row][column], dy[row][column]);
                    let is = match self.numbering {
                        Numbering::Index => from.eq(own),
                        Numbering::Tap => from.eq(tap),
                    };
                    is.select(dy, 0.0)
                };
                let sum = windows.into_iter().map(of_window).reduce(|a, b| a + b);
                sum.unwrap_or_else(|| k.lit(0.0))
            });
        });
    }
}

/// Means of windows that all have the divisor.
#[derive(Clone, Copy, Debug)]
pub(super) struct AverageRuns(pub(super) Runs);

impl AccumulateKernel for AverageRuns {
    type Args = AverageArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("avg_pool", "")
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: AverageParams<'k>) {
        let factor = self.0.factor::<A>(&a);
        self.0.outputs(k, a.pool, Fill::Zero, |of| {
            let rows = self.0.rows::<A>(a.pool, a.x, &of, Fill::Zero);
            a.y.at(of.at).store(self.0.each(&rows, |a, b| a + b) * factor);
        });
    }
}

/// The gradient of [`AverageRuns`].
#[derive(Clone, Copy, Debug)]
pub(super) struct AverageRunsBackward(pub(super) Runs);

impl AccumulateKernel for AverageRunsBackward {
    type Args = AverageArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("avg_pool_backward", "")
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: AverageParams<'k>) {
        let factor = self.0.factor::<A>(&a);
        self.0.cells(k, a.pool, |of| {
            let dy: Vec<Row<'k, A>> = self.0.windows(a.pool, a.x, &of);
            self.0.store(k, a.pool, a.y, &of, |_, windows| {
                let sum = windows.into_iter().map(|of| dy[of.window[0]][of.window[1]]).reduce(|a, b| a + b);
                sum.map_or_else(|| k.lit(0.0), |sum| sum * factor)
            });
        });
    }
}
