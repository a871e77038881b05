//! The definition in f64, for one plane `[depth, height, width]` of a channel.

use super::Divisor;
use super::windows::AxisWindows;

/// A cell of a window: its number in the plane and its number in the whole window, counting the cells that the input lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowCell {
    /// The number in the plane.
    pub index: usize,
    /// The number in the window.
    pub tap: usize,
}

/// The output positions in order.
fn positions(axes: &[AxisWindows; 3]) -> impl Iterator<Item = [u32; 3]> + use<> {
    let [depth, height, width] = axes.map(|axis| axis.output);
    (0..depth).flat_map(move |d| (0..height).flat_map(move |h| (0..width).map(move |w| [d, h, w])))
}

/// The cells along an axis with their numbers in the window.
fn along(axis: &AxisWindows, o: u32) -> Vec<(usize, usize)> {
    let (first, end, step) = axis.cells(o);
    let start =
        axis.sliding.map_or(i64::from(first), |s| i64::from(o) * i64::from(s.stride) - i64::from(s.padding));
    let tap = |i: u32| (i64::from(i) - start) as usize / step as usize;
    (first..end).step_by(step as usize).map(|i| (i as usize, tap(i))).collect()
}

/// The cells of the window at `position` that the input has, in order of depth, row and column.
pub fn window(axes: &[AxisWindows; 3], position: [u32; 3]) -> Vec<WindowCell> {
    let [depths, rows, columns] = [0, 1, 2].map(|i| along(&axes[i], position[i]));
    let [_, height, width] = axes.map(|axis| axis.input as usize);
    let [_, of_rows, of_columns] = axes.map(|axis| axis.sliding.map_or(0, |s| s.kernel as usize));
    let mut cells = Vec::with_capacity(depths.len() * rows.len() * columns.len());
    for &(d, td) in &depths {
        for &(h, th) in &rows {
            for &(w, tw) in &columns {
                let index = (d * height + h) * width + w;
                cells.push(WindowCell { index, tap: (td * of_rows + th) * of_columns + tw });
            }
        }
    }
    cells
}

/// The maximum of each window, and the cell that it is from: the first of equal ones, the last NaN if there is any. A window without
/// cells has minus infinity from nowhere.
pub fn max(axes: &[AxisWindows; 3], x: &[f64]) -> Vec<(f64, Option<WindowCell>)> {
    let of = |position| {
        let cells = window(axes, position);
        let first = (f64::NEG_INFINITY, cells.first().copied());
        cells.iter().fold(first, |(value, from), cell| {
            let v = x[cell.index];
            if v > value || v.is_nan() { (v, Some(*cell)) } else { (value, from) }
        })
    };
    positions(axes).map(of).collect()
}

/// The number that the sum over a window is divided by.
pub fn divisor(axes: &[AxisWindows; 3], rule: Divisor, position: [u32; 3]) -> f64 {
    if let Divisor::Override(divisor) = rule {
        return divisor as f64;
    }
    let padded = rule == Divisor::PaddedCells;
    let along = |i: usize| {
        let (axis, o) = (&axes[i], position[i]);
        let Some(s) = axis.sliding.filter(|_| padded) else {
            return along(axis, o).len() as f64;
        };
        let start = i64::from(o) * i64::from(s.stride) - i64::from(s.padding);
        let end = (start + i64::from(s.kernel)).min(i64::from(axis.input) + i64::from(s.padding));
        (end - start) as f64
    };
    along(0) * along(1) * along(2)
}

/// The mean of each window, and the sum of the magnitudes that it is made of.
pub fn average(axes: &[AxisWindows; 3], rule: Divisor, x: &[f64]) -> Vec<(f64, f64)> {
    let of = |position| {
        let divisor = divisor(axes, rule, position);
        let cells = window(axes, position);
        let sum: f64 = cells.iter().map(|cell| x[cell.index]).sum();
        let scale: f64 = cells.iter().map(|cell| x[cell.index].abs()).sum();
        (sum / divisor, scale / divisor.abs())
    };
    positions(axes).map(of).collect()
}

/// Adds to the cells of the input what `share` says of each window's gradient; the sums, and the sums of the magnitudes.
fn spread(
    axes: &[AxisWindows; 3],
    dy: &[f64],
    share: impl Fn(usize, [u32; 3]) -> Vec<(usize, f64)>,
) -> Vec<(f64, f64)> {
    let cells: usize = axes.iter().map(|axis| axis.input as usize).product();
    let mut dx = vec![(0.0, 0.0); cells];
    for (number, position) in positions(axes).enumerate() {
        for (cell, factor) in share(number, position) {
            let part = dy[number] * factor;
            dx[cell].0 += part;
            dx[cell].1 += part.abs();
        }
    }
    dx
}

/// The gradient of [`max`] from the cells of its maxima.
pub fn max_backward(axes: &[AxisWindows; 3], from: &[Option<WindowCell>], dy: &[f64]) -> Vec<(f64, f64)> {
    spread(axes, dy, |number, _| from[number].map(|cell| (cell.index, 1.0)).into_iter().collect())
}

/// The gradient of [`average`].
pub fn average_backward(axes: &[AxisWindows; 3], rule: Divisor, dy: &[f64]) -> Vec<(f64, f64)> {
    spread(axes, dy, |_, position| {
        let factor = 1.0 / divisor(axes, rule, position);
        window(axes, position).into_iter().map(|cell| (cell.index, factor)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::super::windows::{SlidingWindows, Windows, along_axes};
    use super::*;

    fn sliding(
        input: [usize; 3],
        kernel: [usize; 3],
        stride: [usize; 3],
        padding: [usize; 3],
        ceil_mode: bool,
    ) -> [AxisWindows; 3] {
        let windows = SlidingWindows { kernel, stride, padding, dilation: [1; 3], ceil_mode };
        along_axes("max_pool", input, &Windows::Sliding(windows)).expect("windows")
    }

    fn adaptive(input: [usize; 3], output: [usize; 3]) -> [AxisWindows; 3] {
        along_axes("adaptive_max_pool", input, &Windows::Adaptive { output }).expect("windows")
    }

    fn row(input: usize, kernel: usize, stride: usize, padding: usize, ceil_mode: bool) -> [AxisWindows; 3] {
        sliding([1, 1, input], [1, 1, kernel], [1, 1, stride], [0, 0, padding], ceil_mode)
    }

    #[test]
    fn maxima_in_closed_form() {
        let of = |axes: &_, x: &[f64]| -> Vec<(f64, usize, usize)> {
            let cell = |(value, from): (f64, Option<WindowCell>)| {
                let cell = from.expect("a cell");
                (value, cell.index, cell.tap)
            };
            max(axes, x).into_iter().map(cell).collect()
        };
        let axes = row(5, 3, 2, 1, false);
        assert_eq!(of(&axes, &[1.0, 4.0, 4.0, 2.0, 3.0]), [(4.0, 1, 2), (4.0, 1, 0), (3.0, 4, 1)]);
        let low = f64::NEG_INFINITY;
        assert_eq!(of(&axes, &[low; 5]), [(low, 0, 1), (low, 1, 0), (low, 3, 0)]);
        let nan = of(&axes, &[f64::NAN, f64::NAN, 1.0, 7.0, 2.0]);
        assert!(nan[0].0.is_nan() && nan[0].1 == 1, "the last NaN wins");
        assert!(nan[1].0.is_nan() && nan[1].1 == 1);
        // The whole plane.
        let plane: Vec<f64> = (0..24).map(|i| f64::from(i * 7 % 24)).collect();
        assert_eq!(max(&adaptive([2, 3, 4], [1, 1, 1]), &plane)[0].0, 23.0);
    }

    #[test]
    fn means_in_closed_form() {
        let value =
            |axes: &_, rule, x: &[f64]| -> Vec<f64> { average(axes, rule, x).iter().map(|v| v.0).collect() };
        let x = [2.0, 4.0, 6.0, 8.0, 10.0];
        let axes = row(5, 3, 2, 1, false);
        assert_eq!(value(&axes, Divisor::PaddedCells, &x), [2.0, 6.0, 6.0]);
        assert_eq!(value(&axes, Divisor::Cells, &x), [3.0, 6.0, 9.0]);
        assert_eq!(value(&axes, Divisor::Override(-2), &x), [-3.0, -9.0, -9.0]);
        // In ceil mode the last window ends behind the padding, which does not count.
        let axes = row(4, 3, 2, 1, true);
        assert_eq!(value(&axes, Divisor::PaddedCells, &x[..4]), [2.0, 6.0, 8.0 / 2.0]);
        assert_eq!(value(&adaptive([1, 1, 5], [1, 1, 2]), Divisor::Cells, &x), [4.0, 8.0]);
        assert_eq!(value(&adaptive([1, 1, 5], [1, 1, 1]), Divisor::PaddedCells, &x), [6.0]);
    }

    /// The distance of `backward` from central differences of the sum of `forward` times `dy`.
    fn check(x: &[f64], dy: &[f64], forward: impl Fn(&[f64]) -> Vec<f64>, backward: &[(f64, f64)]) {
        let loss = |x: &[f64]| -> f64 { forward(x).iter().zip(dy).map(|(y, d)| y * d).sum() };
        for (i, (exact, _)) in backward.iter().enumerate() {
            let moved = |h: f64| {
                let mut x = x.to_vec();
                x[i] += h;
                loss(&x)
            };
            let h = 1e-3;
            let numeric = (8.0 * (moved(h) - moved(-h)) - (moved(2.0 * h) - moved(-2.0 * h))) / (12.0 * h);
            assert!((exact - numeric).abs() < 1e-8, "[{i}]: {exact} and {numeric}");
        }
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        // Numbers that are far enough from one another.
        let numbers =
            |n: usize| -> Vec<f64> { (0..n).map(|i| ((i * 37 + 11) % 101) as f64 * 0.1 - 4.0).collect() };
        let all = [
            sliding([1, 5, 6], [1, 3, 3], [1, 2, 2], [0, 1, 1], false),
            sliding([1, 5, 6], [1, 2, 3], [1, 1, 2], [0, 1, 1], true),
            sliding([3, 4, 5], [2, 2, 2], [1, 2, 3], [1, 0, 1], false),
            row(9, 4, 1, 2, false),
            adaptive([1, 5, 7], [1, 3, 2]),
            adaptive([3, 2, 5], [2, 3, 4]),
        ];
        for axes in all {
            let [cells, outputs] = [axes.map(|axis| axis.input), axes.map(|axis| axis.output)];
            let product = |of: [u32; 3]| of.iter().product::<u32>() as usize;
            let x = numbers(product(cells));
            let dy: Vec<f64> = numbers(product(outputs)).iter().map(|v| v * 0.7 + 0.1).collect();
            let from: Vec<_> = max(&axes, &x).into_iter().map(|(_, from)| from).collect();
            check(&x, &dy, |x| max(&axes, x).iter().map(|v| v.0).collect(), &max_backward(&axes, &from, &dy));
            for rule in [Divisor::PaddedCells, Divisor::Cells, Divisor::Override(3)] {
                let forward = |x: &[f64]| average(&axes, rule, x).iter().map(|v| v.0).collect();
                check(&x, &dy, forward, &average_backward(&axes, rule, &dy));
            }
        }
    }
}
