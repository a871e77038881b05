//! The kernels: a thread for each vector of the output forward, for each tile of vectors of the input backward. Backward is a sum
//! over the windows that have a cell, in order, so that nothing is added atomically.

use warpwright_dsl::cells::{AxisRange, Cell, CellBox, CellGridArgs, ImageArgs, Visit};
use warpwright_dsl::divide::{DivisorArgs, WideDivisorArgs};
use warpwright_dsl::prelude::*;
use warpwright_dsl::{Halves, kernel_args};

use super::tuning::{Config, Halving, THREADS, Visits};

kernel_args! {
    /// The windows along an axis. Of adaptive ones only the extents and their divisors are read.
    pub(super) struct AxisArgs => Axis {
        input: u32, output: u32, kernel: u32, span: u32, stride: DivisorArgs, padding: u32, counted_padding: u32,
        dilation: DivisorArgs, by_output: WideDivisorArgs, by_input: WideDivisorArgs,
    }
}

kernel_args! {
    /// The threads' cells, where input and output lie, and the windows along depth, height and width.
    pub(super) struct PoolArgs => PoolParams {
        cells: CellGridArgs, input: ImageArgs, output: ImageArgs, axes: [AxisArgs; 3],
    }
}

kernel_args! {
    /// `indices` are i64 or u8, as the kernel says, or nothing.
    pub(super) struct MaxArgs => MaxParams { pool: PoolArgs, x: In<Elem>, y: Out<Elem>, indices: Out<u8> }
}

kernel_args! {
    /// `indices` are i64 or u8, as the kernel says.
    pub(super) struct MaxBackwardArgs => MaxBackwardParams {
        pool: PoolArgs, indices: In<u8>, dy: In<Elem>, dx: Out<Elem>,
    }
}

kernel_args! {
    /// Sums are divided by `divisor`, or by the cells of their window if that is 0. Backward, `x` is `dy` and `y` is `dx`.
    pub(super) struct AverageArgs => AverageParams { pool: PoolArgs, x: In<Elem>, y: Out<Elem>, divisor: f64 }
}

/// How windows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sliding,
    Adaptive,
}

/// How the cells of maxima are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// In their plane, as i64.
    Index,
    /// In their window, as u8.
    Tap,
}

/// The parts that all kernels share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    pub(super) dtype: DType,
    pub(super) kind: Kind,
    pub(super) config: Config,
}

impl Common {
    fn spec(self, op: &str, rest: &str) -> KernelSpec {
        let Self { dtype, kind, config: Config { width, visits, .. } } = self;
        let adaptive = if kind == Kind::Adaptive { "adaptive_" } else { "" };
        let visits = match visits {
            Visits::Loops | Visits::Spread(_) | Visits::Runs(_) => String::new(),
            Visits::Square(n) => format!("_by{n}"),
            Visits::Tile(Halving { kernel, padding }) => format!("_tile_k{kernel}p{padding}"),
        };
        let name = format!("{adaptive}{op}_{dtype}_x{width}{visits}{rest}");
        // For more blocks, of its own accord, the assembler spills a word or two.
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(DTypes::all(dtype)).min_blocks_per_sm(2)
    }
}

impl<'k> Axis<'k> {
    /// The first cell of window `o`, which sliding windows may have outside of the input.
    fn start(self, o: I32<'k>) -> I32<'k> {
        o.mul_add(self.stride.divisor.to_i32(), -self.padding.to_i32())
    }

    /// The cells of window `o`, which has no dilation, from the first on, whether the input has it or not.
    fn all_cells(self, o: I32<'k>) -> AxisRange<'k> {
        AxisRange { first: self.start(o), end: self.input.to_i32(), step: o.k().lit(1) }
    }

    /// The cells of window `o` that the input has.
    fn cells(self, kind: Kind, o: I32<'k>) -> AxisRange<'k> {
        if kind == Kind::Adaptive {
            let (first, end) = scaled(o, self.input, self.output, |n| self.by_output.quotient(n));
            return AxisRange { first, end, step: o.k().lit(1) };
        }
        let (start, step) = (self.start(o), self.dilation.divisor.to_i32());
        // As many steps as lead into the input.
        let skipped = self.dilation.quotient(((-start).max(0) + (step - 1)).to_u32());
        let end = (start + self.span.to_i32()).min(self.input.to_i32());
        AxisRange { first: skipped.to_i32().mul_add(step, start), end, step }
    }

    /// The windows that have cell `i`; with dilation those around it.
    fn windows(self, kind: Kind, i: I32<'k>) -> AxisRange<'k> {
        let step = i.k().lit(1);
        if kind == Kind::Adaptive {
            let (first, end) = scaled(i, self.output, self.input, |n| self.by_input.quotient(n));
            return AxisRange { first, end, step };
        }
        let padding = self.padding.to_i32();
        let reach = self.stride.divisor.to_i32() - self.span.to_i32();
        let first = self.stride.quotient((i + padding + reach).max(0).to_u32());
        let end = self.stride.quotient((i + padding).to_u32()) + 1;
        AxisRange { first: first.to_i32(), end: end.min(self.output).to_i32(), step }
    }

    /// The number of cells of window `o` that count.
    fn count(self, kind: Kind, o: I32<'k>) -> I32<'k> {
        match kind {
            Kind::Adaptive => {
                let AxisRange { first, end, .. } = self.cells(kind, o);
                end - first
            }
            Kind::Sliding => {
                let (start, padding) = (self.start(o), self.counted_padding.to_i32());
                let end = (start + self.kernel.to_i32()).min(self.input.to_i32() + padding);
                end - start.max(-padding)
            }
        }
    }
}

/// `i n / m` rounded down, and `(i + 1) n / m` rounded up.
fn scaled<'k>(i: I32<'k>, n: U32<'k>, m: U32<'k>, by_m: impl Fn(U64<'k>) -> U64<'k>) -> (I32<'k>, I32<'k>) {
    let low = i.to_u32().mul_wide(n);
    let high = low + (n.to_u64() + m.to_u64() - 1u64);
    (by_m(low).to_u32().to_i32(), by_m(high).to_u32().to_i32())
}

/// Depth, row and column as one number, counted in planes of `height` rows of `width` columns.
fn flat<'k>([depth, row, column]: [I32<'k>; 3], height: U32<'k>, width: U32<'k>) -> I32<'k> {
    depth.mul_add(height.to_i32(), row).mul_add(width.to_i32(), column)
}

/// -1 if an axis has no cell, else 0.
fn empty<'k>(axes: [AxisRange<'k>; 3]) -> I32<'k> {
    let [depth, row, column] = axes.map(|axis| (axis.end - axis.first - 1) >> 31);
    depth | row | column
}

/// A cell of the input that a thread of the backward pass has: where it is, and which row and column of the thread's.
#[derive(Clone, Copy)]
struct OwnCell<'k> {
    position: [I32<'k>; 3],
    number: [u32; 2],
}

/// Side by side cells of the thread, in order of row and column.
fn own_cells<'k>([depth, row, column]: [I32<'k>; 3], size: u32) -> Vec<OwnCell<'k>> {
    let along = |from: I32<'k>| -> Vec<_> {
        (0..size).map(|i| (i, if i == 0 { from } else { from + i.cast_signed() })).collect()
    };
    let columns = along(column);
    let of_row = |(i, row)| {
        columns.iter().map(move |&(j, column)| OwnCell { position: [depth, row, column], number: [i, j] })
    };
    along(row).into_iter().flat_map(of_row).collect()
}

impl Common {
    /// The work of a thread forward: `body` receives its cell of the output, the window, and the first element of the cell.
    fn forward<'k>(
        self,
        k: K<'k>,
        pool: PoolParams<'k>,
        body: impl FnOnce([I32<'k>; 3], CellBox<'k>, U64<'k>),
    ) {
        let Cell { outer, position, vector, exists } = pool.cells.cell(k);
        k.if_(exists, || {
            let width = self.config.width;
            let o = position.map(Reg::to_i32);
            let unrolled = self.config.visits.at_once();
            let axes = [0, 1, 2].map(|i| match unrolled {
                Some(_) if i > 0 => pool.axes[i].all_cells(o[i]),
                _ => pool.axes[i].cells(self.kind, o[i]),
            });
            let start = pool.input.start(outer, vector, width);
            let window = CellBox { axes, image: pool.input, start, width, unrolled };
            body(o, window, pool.output.start(outer, vector, width) + pool.output.pixel_at(o, width));
        });
    }

    /// The work of a thread backward: `load` reads of a window, `add` adds of it to the sum of a cell that the window has.
    fn backward<'k, A: Accumulate, L>(
        self,
        k: K<'k>,
        pool: PoolParams<'k>,
        dx: Ptr<'k, Write, Elem>,
        load: impl Fn(Visit<'k>) -> L,
        add: impl Fn(&L, Visit<'k>, OwnCell<'k>, Lanes<'k, A>) -> Lanes<'k, A>,
    ) {
        let Cell { outer, position: [depth, row, column], vector, exists } = pool.cells.cell(k);
        k.if_(exists, || {
            let Config { width, visits, .. } = self.config;
            let size = visits.tile();
            let position = [depth, row, column].map(Reg::to_i32);
            let first = [depth, row * size, column * size].map(Reg::to_i32);
            let axes = [0, 1, 2].map(|i| match visits {
                Visits::Tile(halving) if i > 0 => AxisRange {
                    first: position[i] + halving.first(),
                    end: pool.axes[i].output.to_i32(),
                    step: k.lit(1),
                },
                _ => pool.axes[i].windows(self.kind, first[i]),
            });
            let start = pool.output.start(outer, vector, width);
            let windows = CellBox { axes, image: pool.output, start, width, unrolled: visits.at_once() };
            let own = own_cells(first, size);
            let zeros: Vec<Lanes<'k, A>> = own.iter().map(|_| Lanes::constant(k, 0.0, width)).collect();
            let sums = windows.fold(k, zeros, load, |sums, visit, loaded| {
                let of_cell = |(&cell, sum): (&OwnCell<'k>, Lanes<'k, A>)| {
                    if visits.has(visit.number, cell.number) { add(&loaded, visit, cell, sum) } else { sum }
                };
                own.iter().zip(sums).map(of_cell).collect()
            });
            let dx = dx.at(pool.input.start(outer, vector, width));
            let [_, height, columns] = pool.axes.map(|axis| axis.input.to_i32());
            for (OwnCell { position, .. }, sum) in own.into_iter().zip(sums) {
                let store = || dx.at(pool.input.pixel_at(position, width)).store(sum);
                let [_, row, column] = position;
                if size == 1 { store() } else { k.if_(row.lt(height) & column.lt(columns), store) }
            }
        });
    }
}

/// The maximum of each window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Max {
    pub(super) common: Common,
    pub(super) numbering: Option<Numbering>,
}

impl Numbering {
    pub(super) const fn name(of: Option<Self>) -> &'static str {
        match of {
            None => "",
            Some(Self::Index) => "_index",
            Some(Self::Tap) => "_tap",
        }
    }

    /// The number of a cell that window `o` has; taps are those of windows without dilation.
    fn of<'k>(self, axes: &[Axis<'k>; 3], o: [I32<'k>; 3], cell: [I32<'k>; 3]) -> I32<'k> {
        let [_, height, width] = axes;
        match self {
            Self::Index => flat(cell, height.input, width.input),
            Self::Tap => {
                let tap = [0, 1, 2].map(|i| cell[i] - axes[i].start(o[i]));
                flat(tap, height.kernel, width.kernel)
            }
        }
    }
}

impl Max {
    /// Minus infinities: as they lie in memory where pairs of elements are compared, else one to a register.
    fn lowest<'k, A: Float>(&self, k: K<'k>) -> Packed<'k, A> {
        let Common { dtype, config: Config { width, .. }, .. } = self.common;
        let lowest = Lanes::constant(k, f64::NEG_INFINITY, width);
        let pairs = width > 1 && Halves::exist(k, dtype);
        if pairs { Packed::round(k, dtype, lowest) } else { Packed::unrounded(lowest) }
    }

    /// The greater of each; NaN if either is.
    fn greater<'k, A: Float>(&self, a: &Packed<'k, A>, b: &Packed<'k, A>) -> Packed<'k, A> {
        if let (Some(a), Some(b)) = (a.halves(), b.halves()) {
            let words: Vec<_> = a.into_iter().zip(b).map(|(a, b)| a.maximum(b).word()).collect();
            return Packed::of_words(self.common.dtype, &words);
        }
        Packed::unrounded(a.lanes().zip(b.lanes(), |a, b| a.maximum(b)))
    }
}

impl AccumulateKernel for Max {
    type Args = MaxArgs;

    fn spec(&self) -> KernelSpec {
        self.common.spec("max_pool", Numbering::name(self.numbering))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MaxParams<'k>) {
        let width = self.common.config.width;
        self.common.forward(k, a.pool, |o, window, at| {
            let load = |visit: Visit<'k>| visit.of(a.x, Fill::MinusInfinity).load_packed::<A>(width);
            let Some(numbering) = self.numbering else {
                let y = window.fold(k, self.lowest(k), load, |y, _, x| self.greater(&y, &x));
                a.y.at(at).store_packed(&y);
                return;
            };
            let at_once = self.common.config.visits.at_once();
            let number = |visit: Visit<'k>| match (numbering, at_once) {
                (Numbering::Tap, Some(n)) => {
                    let [row, column] = visit.number;
                    let depth = visit.position[0] - a.pool.axes[0].start(o[0]);
                    depth.mul_add((n * n).cast_signed(), (row * n + column).cast_signed())
                }
                _ => numbering.of(&a.pool.axes, o, visit.position),
            };
            let first =
                numbering.of(&a.pool.axes, o, window.axes.map(|axis| axis.first.max(0))) | empty(window.axes);
            let lowest: Lanes<'k, A> = Lanes::constant(k, f64::NEG_INFINITY, width);
            let init = (lowest, Lanes::splat(first, width));
            let (y, from) = window.fold(k, init, load, |(y, from), visit, x| {
                let (x, number) = (x.lanes(), number(visit));
                let taken = x.zip(y.clone(), |x, y| x.gt(y) | x.is_nan());
                let y = taken.zip3(x, y, |taken, x, y| taken.select(x, y));
                (y, taken.zip(from, |taken, from| taken.select(number, from)))
            });
            a.y.at(at).store(y);
            match numbering {
                Numbering::Index => a.indices.cast::<i64>().at(at).store(from.convert::<i64>()),
                Numbering::Tap => a.indices.at(at).store(from.convert::<u32>()),
            }
        });
    }
}

/// The gradient of [`Max`].
#[derive(Clone, Copy, Debug)]
pub(super) struct MaxBackward {
    pub(super) common: Common,
    pub(super) numbering: Numbering,
}

/// The numbers of the cells that maxima are from, as they were read.
enum Numbers<'k> {
    Index(Lanes<'k, i64>),
    Tap(Lanes<'k, u32>),
}

impl MaxBackward {
    fn load<'k>(&self, indices: Ptr<'k, Read, u8>, visit: Visit<'k>) -> Numbers<'k> {
        let width = self.common.config.width;
        match self.numbering {
            Numbering::Index => Numbers::Index(visit.of(indices.cast::<i64>(), Fill::Zero).load(width)),
            Numbering::Tap => Numbers::Tap(visit.of(indices, Fill::Zero).load(width)),
        }
    }

    /// Where the maximum of a window is from `cell`.
    fn is_from<'k>(
        &self,
        axes: &[Axis<'k>; 3],
        visit: Visit<'k>,
        cell: OwnCell<'k>,
        numbers: &Numbers<'k>,
    ) -> Lanes<'k, bool> {
        let number = match (self.numbering, self.common.config.visits) {
            (Numbering::Tap, Visits::Tile(halving)) => {
                let depth = cell.position[0] - axes[0].start(visit.position[0]);
                let [row, column] = [0, 1].map(|i| halving.tap(visit.number[i], cell.number[i]));
                let kernel = halving.kernel.cast_signed();
                depth.mul_add(kernel * kernel, row * kernel + column)
            }
            (numbering, _) => numbering.of(axes, visit.position, cell.position),
        };
        match numbers {
            Numbers::Index(numbers) => {
                let number = number.to_i64();
                numbers.map(|of| of.eq(number))
            }
            Numbers::Tap(numbers) => {
                let number = number.to_u32();
                numbers.map(|of| of.eq(number))
            }
        }
    }
}

impl AccumulateKernel for MaxBackward {
    type Args = MaxBackwardArgs;

    fn spec(&self) -> KernelSpec {
        self.common.spec("max_pool_backward", Numbering::name(Some(self.numbering)))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MaxBackwardParams<'k>) {
        let width = self.common.config.width;
        let load = |visit: Visit<'k>| {
            let dy = visit.of(a.dy, Fill::Zero).load_packed::<A>(width);
            (dy, self.load(a.indices, visit))
        };
        self.common.backward(k, a.pool, a.dx, load, |(dy, numbers), visit, cell, sum| {
            let own = self.is_from(&a.pool.axes, visit, cell, numbers);
            sum + own.zip(dy.lanes(), |own, dy| own.select(dy, 0.0))
        });
    }
}

/// The mean of each window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Average {
    pub(super) common: Common,
}

/// One over `divisor`, of elements of `dtype` to the precision of these.
pub(super) fn reciprocal<'k, A: Float>(dtype: DType, divisor: Reg<'k, A>) -> Reg<'k, A> {
    match Precision::of(dtype) {
        Precision::Full => divisor.rcp(),
        Precision::Storage => A::rcp_approx(divisor),
    }
}

impl Common {
    /// The factor of the sum over window `o`.
    fn factor<'k, A: Float>(self, a: &AverageParams<'k>, o: [I32<'k>; 3]) -> Reg<'k, A> {
        // A window that is not there has no cells.
        let count = |i: usize| a.pool.axes[i].count(self.kind, o[i]).max(1).convert::<A>();
        let given = a.divisor.convert::<A>();
        reciprocal(self.dtype, given.eq(0.0).select(count(0) * count(1) * count(2), given))
    }
}

impl AccumulateKernel for Average {
    type Args = AverageArgs;

    fn spec(&self) -> KernelSpec {
        self.common.spec("avg_pool", "")
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: AverageParams<'k>) {
        let width = self.common.config.width;
        self.common.forward(k, a.pool, |o, window, at| {
            let load = |visit: Visit<'k>| visit.of(a.x, Fill::Zero).load_packed::<A>(width);
            let zeros: Lanes<'k, A> = Lanes::constant(k, 0.0, width);
            let sum = window.fold(k, zeros, load, |sum, _, x| sum + x.lanes());
            a.y.at(at).store(sum * self.common.factor::<A>(&a, o));
        });
    }
}

/// The gradient of [`Average`].
#[derive(Clone, Copy, Debug)]
pub(super) struct AverageBackward {
    pub(super) common: Common,
}

impl AccumulateKernel for AverageBackward {
    type Args = AverageArgs;

    fn spec(&self) -> KernelSpec {
        self.common.spec("avg_pool_backward", "")
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: AverageParams<'k>) {
        let width = self.common.config.width;
        let load = |visit: Visit<'k>| {
            let dy = visit.of(a.x, Fill::Zero).load_packed::<A>(width);
            (dy, self.common.factor::<A>(&a, visit.position))
        };
        self.common
            .backward(k, a.pool, a.y, load, |(dy, factor), _, _, sum| dy.lanes().mul_add(*factor, sum));
    }
}
