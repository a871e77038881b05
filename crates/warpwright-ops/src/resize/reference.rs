//! The definition in f64, for one plane `[depth, height, width]` of a channel.

use super::Mode;
use super::sampling::Sampling;

/// Cells along an axis and their weights.
type Taps = Vec<(usize, f64)>;

/// A cell of a plane with its weight, and the natural scale of that.
struct Tap {
    cell: usize,
    weight: f64,
    scale: f64,
}

/// The largest terms of the polynomials of cubic weights, which cancel: a weight errs in units of it, however small it is.
const CUBIC_TERMS: f64 = 6.0;

/// The cells and the weights that each cell of the output is made of, from those along each axis.
fn taps(axes: &[Sampling; 3], along: impl Fn(Taps) -> Taps) -> impl Iterator<Item = Vec<Tap>> {
    let along: [Vec<Taps>; 3] = axes.map(|axis| (0..axis.output).map(|o| along(axis.taps(o))).collect());
    let [_, height, width] = axes.map(|axis| axis.input as usize);
    let [depths, rows, columns] = axes.map(|axis| axis.output as usize);
    let cubic = axes[2].mode == Mode::Cubic;
    (0..depths * rows * columns).map(move |number| {
        let (d, h, w) = (number / (rows * columns), number / columns % rows, number % columns);
        let mut taps = Vec::new();
        for &(i, of_depth) in &along[0][d] {
            for &(j, of_row) in &along[1][h] {
                for &(k, of_column) in &along[2][w] {
                    let weight = of_depth * of_row * of_column;
                    let of_terms = CUBIC_TERMS * (of_row.abs() + of_column.abs());
                    let scale = if cubic { of_terms } else { weight.abs() };
                    taps.push(Tap { cell: (i * height + j) * width + k, weight, scale });
                }
            }
        }
        taps
    })
}

/// The taps with the weights of each cell added up: at the ends a cell has several.
fn merged(taps: Taps) -> Taps {
    let mut all: Taps = Vec::new();
    for (cell, weight) in taps {
        match all.iter_mut().find(|(of, _)| *of == cell) {
            Some((_, sum)) => *sum += weight,
            None => all.push((cell, weight)),
        }
    }
    all
}

/// The values of the output, and their natural scales.
pub fn forward(axes: &[Sampling; 3], x: &[f64]) -> Vec<(f64, f64)> {
    let of = |taps: Vec<Tap>| {
        taps.iter().fold((0.0, 0.0), |(sum, scale), tap| {
            (sum + x[tap.cell] * tap.weight, scale + x[tap.cell].abs() * tap.scale)
        })
    };
    taps(axes, |taps| taps).map(of).collect()
}

/// The gradient of [`forward`], and its natural scales.
pub fn backward(axes: &[Sampling; 3], dy: &[f64]) -> Vec<(f64, f64)> {
    let cells = axes.iter().map(|axis| axis.input as usize).product();
    let mut dx = vec![(0.0, 0.0); cells];
    for (taps, dy) in taps(axes, merged).zip(dy) {
        for Tap { cell, weight, scale } in taps.into_iter().filter(|tap| tap.weight != 0.0) {
            dx[cell].0 += dy * weight;
            dx[cell].1 += dy.abs() * scale;
        }
    }
    dx
}

#[cfg(test)]
mod tests {
    use warpwright_ptx::DType;

    use super::*;

    fn axes(mode: Mode, align_corners: bool, input: [u32; 3], output: [u32; 3]) -> [Sampling; 3] {
        [0, 1, 2].map(|i| Sampling::new(DType::F64, mode, align_corners, [input[i], output[i]], None))
    }

    #[test]
    fn closed_forms() {
        let values = |axes: &_, x: &[f64]| -> Vec<f64> { forward(axes, x).iter().map(|v| v.0).collect() };
        let x = [1.0, 5.0];
        let row = |mode, corners| axes(mode, corners, [1, 1, 2], [1, 1, 4]);
        assert_eq!(values(&row(Mode::Nearest, false), &x), [1.0, 1.0, 5.0, 5.0]);
        assert_eq!(values(&row(Mode::Linear, false), &x), [1.0, 2.0, 4.0, 5.0]);
        let aligned = values(&row(Mode::Linear, true), &x);
        assert!((aligned[1] - 7.0 / 3.0).abs() < 1e-15 && aligned[3] == 5.0, "{aligned:?}");
        // A plane stays a plane, away from its edges.
        let plane: Vec<f64> = (0..36).map(|i| f64::from(i / 6) + 10.0 * f64::from(i % 6)).collect();
        let up = axes(Mode::Cubic, true, [1, 6, 6], [1, 11, 11]);
        let y = values(&up, &plane);
        assert!((y[5 * 11 + 5] - 27.5).abs() < 1e-12, "{}", y[5 * 11 + 5]);
        // Every second cell of the identity.
        let same = values(&axes(Mode::Linear, false, [1, 1, 2], [1, 1, 2]), &x);
        assert_eq!(same, x);
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        let numbers =
            |n: usize| -> Vec<f64> { (0..n).map(|i| ((i * 37 + 11) % 101) as f64 * 0.1 - 4.0).collect() };
        for mode in [Mode::Nearest, Mode::NearestExact, Mode::Linear, Mode::Cubic] {
            for (input, output) in [([1, 3, 4], [1, 5, 7]), ([1, 6, 5], [1, 2, 3]), ([2, 3, 2], [3, 2, 5])] {
                let axes = axes(mode, false, input, output);
                let count = |of: [u32; 3]| of.iter().product::<u32>() as usize;
                let (x, dy) = (numbers(count(input)), numbers(count(output)));
                let loss =
                    |x: &[f64]| -> f64 { forward(&axes, x).iter().zip(&dy).map(|(y, d)| y.0 * d).sum() };
                for (i, (exact, _)) in backward(&axes, &dy).into_iter().enumerate() {
                    let moved = |h: f64| {
                        let mut x = x.clone();
                        x[i] += h;
                        loss(&x)
                    };
                    let numeric = (moved(0.5) - moved(-0.5)) / 1.0;
                    assert!((exact - numeric).abs() < 1e-9, "{mode:?} [{i}]: {exact} and {numeric}");
                }
            }
        }
    }
}
