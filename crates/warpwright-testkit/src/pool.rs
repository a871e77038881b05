//! Cases of the pooling operations.

use std::sync::Arc;

use warpwright_ops::pool::windows::AxisWindows;
use warpwright_ops::pool::{
    Argmax, AvgPoolArgs, AvgPoolBackwardArgs, AvgPoolBackwardDesc, AvgPoolDesc, Divisor, Layout, MaxPoolArgs,
    MaxPoolBackwardArgs, MaxPoolBackwardDesc, MaxPoolDesc, Pool, SlidingWindows, Windows, reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, view_mut};
use crate::images::by_plane;
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Max(Argmax),
    Average(Divisor),
}

#[derive(Debug)]
struct PoolSubject {
    direction: Direction,
    kind: Kind,
    pool: Pool,
    axes: [AxisWindows; 3],
    /// Whether there are infinities and NaN among the elements.
    special: bool,
    lead: usize,
}

const LAYOUTS: [Layout; 2] = [Layout::ChannelsFirst, Layout::ChannelsLast];

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for dtype in DType::FLOATS {
        for (number, pool) in situations(scope, dtype).into_iter().enumerate() {
            let axes = pool.windows_of_axes().expect("windows of the cases are in order");
            let adaptive = matches!(pool.windows, Windows::Adaptive { .. });
            for kind in kinds(&pool) {
                for direction in [Direction::Forward, Direction::Backward] {
                    if kind == Kind::Max(Argmax::None) && direction == Direction::Backward {
                        continue;
                    }
                    let (op, budget) = match (kind, direction, adaptive) {
                        (Kind::Max(_), Direction::Forward, false) => ("max_pool", budget::EXACT),
                        (Kind::Max(_), Direction::Forward, true) => ("adaptive_max_pool", budget::EXACT),
                        (Kind::Max(_), _, false) => ("max_pool", budget::elementwise(dtype)),
                        (Kind::Max(_), _, true) => ("adaptive_max_pool", budget::elementwise(dtype)),
                        (Kind::Average(_), _, false) => ("avg_pool", budget::elementwise(dtype)),
                        (Kind::Average(_), _, true) => ("adaptive_avg_pool", budget::elementwise(dtype)),
                    };
                    // The cells of a window have the same share of its gradient.
                    let alike = matches!(kind, Kind::Average(_)) && direction == Direction::Backward;
                    let budget = if alike { budget.of_alike() } else { budget };
                    let special = number % 3 == 1;
                    let words = if special { ", special" } else { "" };
                    out.push(Case {
                        op,
                        direction,
                        dtype,
                        shape: vec![pool.batch, pool.channels, pool.input[0], pool.input[1], pool.input[2]],
                        input: format!("{:?}, {kind:?}, {:?}{words}", pool.layout, pool.windows),
                        budget,
                        subject: Arc::new(PoolSubject {
                            direction,
                            kind,
                            pool: pool.clone(),
                            axes,
                            special,
                            lead: usize::from(pool.batch == 3),
                        }),
                    });
                }
            }
        }
    }
    out
}

/// The operations that take the windows of a pool.
fn kinds(pool: &Pool) -> Vec<Kind> {
    let Windows::Sliding(SlidingWindows { kernel, dilation, .. }) = pool.windows else {
        return vec![Kind::Max(Argmax::None), Kind::Max(Argmax::Index), Kind::Average(Divisor::Cells)];
    };
    let mut kinds = vec![Kind::Max(Argmax::None), Kind::Max(Argmax::Index)];
    if dilation == [1; 3] {
        if kernel.iter().product::<usize>() <= 256 {
            kinds.push(Kind::Max(Argmax::Tap));
        }
        kinds.extend([Divisor::PaddedCells, Divisor::Cells, Divisor::Override(-3)].map(Kind::Average));
    }
    kinds
}

fn sliding(kernel: [usize; 3], stride: [usize; 3], padding: [usize; 3]) -> SlidingWindows {
    SlidingWindows { kernel, stride, padding, dilation: [1; 3], ceil_mode: false }
}

/// Square windows.
fn square(kernel: usize, stride: usize, padding: usize) -> SlidingWindows {
    sliding([1, kernel, kernel], [1, stride, stride], [0, padding, padding])
}

fn situations(scope: Scope, dtype: DType) -> Vec<Pool> {
    let mut all = Vec::new();
    let mut add = |shapes: &[(Layout, usize, usize)], input: [usize; 3], windows: Windows| {
        for &(layout, batch, channels) in shapes {
            all.push(Pool { dtype, layout, batch, channels, input, windows });
        }
    };
    let [first, last] = LAYOUTS;
    let both = [(first, 2, 3), (last, 2, 16)];
    let mut slide = |shapes: &[_], input, windows| add(shapes, input, Windows::Sliding(windows));
    slide(&[(last, 2, 16), (last, 3, 8), (first, 2, 3)], [1, 13, 11], square(3, 2, 1));
    slide(&[(last, 2, 8), (first, 1, 5), (last, 1, 5)], [1, 12, 9], square(2, 2, 0));
    slide(&both, [1, 7, 9], square(3, 1, 1));
    slide(&both, [1, 11, 8], square(5, 3, 2));
    slide(&both, [1, 9, 8], square(2, 2, 1));
    slide(&[(last, 1, 8)], [1, 10, 11], square(3, 3, 0));
    slide(&both, [1, 10, 10], square(2, 3, 0));
    slide(
        &[(last, 1, 6), (first, 2, 2)],
        [1, 10, 9],
        SlidingWindows { ceil_mode: true, ..sliding([1, 2, 3], [1, 1, 2], [0, 1, 1]) },
    );
    slide(&both, [1, 7, 7], SlidingWindows { ceil_mode: true, ..square(2, 2, 0) });
    slide(&[(last, 3, 8), (first, 1, 4)], [1, 8, 7], SlidingWindows { ceil_mode: true, ..square(3, 2, 1) });
    slide(&both, [5, 6, 7], sliding([2; 3], [2; 3], [0; 3]));
    slide(&both, [4, 5, 7], sliding([3; 3], [2; 3], [1; 3]));
    slide(&[(first, 3, 7), (last, 2, 8)], [1, 1, 37], sliding([1, 1, 3], [1, 1, 2], [0, 0, 1]));
    slide(&both, [1, 1, 29], sliding([1, 1, 9], [1, 1, 1], [0, 0, 4]));
    // Windows beyond the input, of which some have no cell.
    slide(&both, [1, 11, 12], SlidingWindows { dilation: [1, 2, 3], ..square(3, 1, 2) });
    slide(&both, [1, 6, 6], SlidingWindows { dilation: [1, 7, 1], ..square(2, 1, 1) });
    slide(&both, [1, 3, 2], square(8, 1, 4));
    slide(&both, [1, 1, 1], square(1, 1, 0));
    slide(&both, [1, 1, 1], square(3, 2, 1));
    slide(&[(first, 0, 3), (last, 0, 16), (last, 2, 0)], [1, 4, 4], square(2, 2, 0));
    // Runs of cells with channels first: of windows side by side, of those that overlap, with an odd number of rows.
    let planes = [(first, 2, 3), (first, 2, 8), (first, 3, 4)];
    slide(&planes, [1, 9, 24], sliding([1, 3, 8], [1, 3, 8], [0; 3]));
    slide(&planes, [2, 4, 20], sliding([1, 2, 5], [1, 2, 5], [0; 3]));
    for (kernel, stride, padding) in [(2, 2, 0), (3, 2, 1), (3, 1, 1)] {
        slide(&planes, [1, 5, 16], square(kernel, stride, padding));
        slide(&planes[..1], [2, 6, 24], square(kernel, stride, padding));
        slide(&planes[..1], [1, 4, 4], square(kernel, stride, padding));
    }
    let adapt = |output| Windows::Adaptive { output };
    add(&planes, [1, 7, 7], adapt([1, 1, 1]));
    add(&planes, [2, 3, 3], adapt([1, 1, 1]));
    add(&planes, [1, 6, 24], adapt([1, 2, 3]));
    add(&both, [1, 7, 7], adapt([1, 3, 2]));
    add(&both, [1, 7, 6], adapt([1, 1, 1]));
    add(&both, [1, 5, 4], adapt([1, 7, 9]));
    add(&both, [3, 5, 6], adapt([2, 2, 3]));
    add(&[(first, 4, 3), (last, 3, 8)], [1, 1, 50], adapt([1, 1, 4]));
    if scope == Scope::Full {
        for kernel in 1..=6 {
            for stride in 1..=4 {
                for padding in 0..=kernel / 2 {
                    let windows = square(kernel, stride, padding);
                    add(&both, [1, 9, 7 + kernel], Windows::Sliding(windows));
                    let windows = SlidingWindows { ceil_mode: true, ..windows };
                    add(&[(last, 1, 8)], [1, 8, 7 + kernel], Windows::Sliding(windows));
                }
            }
        }
        for output in [1, 2, 3, 5, 8, 13] {
            add(&both, [1, 8, 9], adapt([1, output, output + 1]));
        }
        add(&[(last, 2, 64), (first, 2, 64)], [1, 28, 28], Windows::Sliding(square(3, 2, 1)));
        add(&[(last, 2, 64)], [1, 56, 56], adapt([1, 1, 1]));
    }
    all
}

impl PoolSubject {
    fn draw(&self, cells: usize, salt: u64) -> Vec<f64> {
        let Pool { dtype, batch, channels, .. } = self.pool;
        let mut values = Input::Normal.values(batch * channels * cells, salt << 20 | cells as u64);
        if self.special {
            let specials = [f64::INFINITY, f64::NAN, 0.0, f64::NEG_INFINITY, -0.0, f64::NEG_INFINITY];
            values.iter_mut().step_by(11).enumerate().for_each(|(i, v)| *v = specials[i % specials.len()]);
        }
        // Equal numbers, so that it matters which of them comes first.
        values.iter_mut().step_by(3).for_each(|v| *v = (2.0 * *v).round());
        values.into_iter().map(|v| storage::round(dtype, v)).collect()
    }

    fn cells(&self, of: fn(&AxisWindows) -> u32) -> usize {
        self.axes.iter().map(|axis| of(axis) as usize).product()
    }

    /// `f` of every plane; the results where their elements lie.
    fn by_plane<T: Copy, U: Clone>(
        &self,
        values: &[T],
        cells: [usize; 2],
        f: impl Fn(&[T]) -> Vec<U>,
    ) -> Vec<U> {
        let Pool { layout, batch, channels, .. } = self.pool;
        by_plane(layout, [batch, channels], values, cells, f)
    }

    fn max(&self, bench: &mut Bench<'_>, argmax: Argmax) -> Result<Comparison, CaseError> {
        let (pool, dtype) = (self.pool.clone(), self.pool.dtype);
        let (input, output) = (self.cells(|axis| axis.input), self.cells(|axis| axis.output));
        let xs = self.draw(input, 1);
        let maxima = self.by_plane(&xs, [input, output], |x| reference::max(&self.axes, x));
        let numbers: Vec<f64> = maxima
            .iter()
            .map(|(_, from)| match (from, argmax) {
                (None, _) => -1.0,
                (Some(cell), Argmax::Tap) => cell.tap as f64,
                (Some(cell), _) => cell.index as f64,
            })
            .collect();
        let forward = MaxPoolDesc { pool, argmax };
        let kept = argmax.dtype();
        if self.direction == Direction::Forward {
            let plan = forward.plan(bench.target())?;
            let x = bench.input("x", dtype, &xs, self.lead)?;
            let mut y = bench.output("y", dtype, maxima.len(), self.lead)?;
            let indices = kept.map(|kept| bench.output("indices", kept, maxima.len(), self.lead));
            let mut indices = indices.transpose()?;
            bench.launch(|stream| {
                let indices = view_mut(&mut indices)?;
                Ok(plan.launch(stream, MaxPoolArgs { x: x.view()?, y: y.view_mut()?, indices })?)
            })?;
            let expected: Vec<_> = maxima.iter().map(|(value, _)| Expected::exactly(*value)).collect();
            let comparison = bench.compare(&y, &expected)?;
            let Some(indices) = &indices else { return Ok(comparison) };
            let expected: Vec<_> = numbers.iter().map(|number| Expected::exactly(*number)).collect();
            return Ok(comparison.merge(bench.compare(indices, &expected)?));
        }
        let plan = MaxPoolBackwardDesc { forward }.plan(bench.target())?;
        let dys = self.draw(output, 2);
        let both: Vec<_> = dys.iter().zip(&maxima).map(|(dy, (_, from))| (*dy, *from)).collect();
        let gradient = self.by_plane(&both, [output, input], |both| {
            let (dy, from): (Vec<f64>, Vec<_>) = both.iter().copied().unzip();
            Expected::all(&reference::max_backward(&self.axes, &from, &dy))
        });
        let from = bench.input("indices", kept.unwrap_or(DType::I64), &numbers, self.lead)?;
        let dy = bench.input("dy", dtype, &dys, self.lead)?;
        let mut dx = bench.output("dx", dtype, xs.len(), self.lead)?;
        bench.launch(|stream| {
            let args = MaxPoolBackwardArgs { indices: from.view()?, dy: dy.view()?, dx: dx.view_mut()? };
            Ok(plan.launch(stream, args)?)
        })?;
        bench.compare(&dx, &gradient)
    }

    fn average(&self, bench: &mut Bench<'_>, divisor: Divisor) -> Result<Comparison, CaseError> {
        let (pool, dtype) = (self.pool.clone(), self.pool.dtype);
        let (input, output) = (self.cells(|axis| axis.input), self.cells(|axis| axis.output));
        let forward = AvgPoolDesc { pool, divisor };
        if self.direction == Direction::Forward {
            let plan = forward.plan(bench.target())?;
            let xs = self.draw(input, 1);
            let x = bench.input("x", dtype, &xs, self.lead)?;
            let means = self.by_plane(&xs, [input, output], |x| {
                Expected::all(&reference::average(&self.axes, divisor, x))
            });
            let mut y = bench.output("y", dtype, means.len(), self.lead)?;
            bench
                .launch(|stream| Ok(plan.launch(stream, AvgPoolArgs { x: x.view()?, y: y.view_mut()? })?))?;
            return bench.compare(&y, &means);
        }
        let plan = AvgPoolBackwardDesc { forward }.plan(bench.target())?;
        let dys = self.draw(output, 2);
        let dy = bench.input("dy", dtype, &dys, self.lead)?;
        let gradient = self.by_plane(&dys, [output, input], |dy| {
            Expected::all(&reference::average_backward(&self.axes, divisor, dy))
        });
        let mut dx = bench.output("dx", dtype, gradient.len(), self.lead)?;
        bench.launch(|stream| {
            Ok(plan.launch(stream, AvgPoolBackwardArgs { dy: dy.view()?, dx: dx.view_mut()? })?)
        })?;
        bench.compare(&dx, &gradient)
    }
}

impl Subject for PoolSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.kind {
            Kind::Max(argmax) => self.max(bench, argmax),
            Kind::Average(divisor) => self.average(bench, divisor),
        }
    }
}
