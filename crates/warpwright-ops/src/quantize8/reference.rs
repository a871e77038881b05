//! The definition in plain Rust: every step that the [module](super) names, rounded to f32 as it says, on values that f64 holds exactly.

use super::{BLOCK, Format, MIN_SCALE, Scaling};

/// Codes, as the numbers that they stand for, and scales in the order in which they lie.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// As many as the matrix has elements.
    pub q: Vec<f64>,
    /// As many as [`Scaling::shape`] says.
    pub scales: Vec<f32>,
}

/// The nearest number of a format, ties to even, saturating; a NaN is the integer 0.
pub fn round(format: Format, x: f32) -> f64 {
    let x = f64::from(x);
    match format {
        Format::E4M3 => warpwright_ptx::float8::e4m3_value(warpwright_ptx::float8::e4m3_bits(x)),
        Format::E5M2 => warpwright_ptx::float8::e5m2_value(warpwright_ptx::float8::e5m2_bits(x)),
        Format::Int8 => f64::from(x.round_ties_even() as i8),
    }
}

/// The scale of elements of which the largest magnitude is `amax`, NaN if there is one.
pub fn scale(format: Format, amax: f32) -> f32 {
    let scale = amax / format.max() as f32;
    if scale.is_nan() { scale } else { scale.max(MIN_SCALE) }
}

/// The place of the scale of an element.
pub fn scale_index(scaling: Scaling, [rows, cols]: [usize; 2], row: usize, col: usize) -> usize {
    match scaling {
        Scaling::TensorWise | Scaling::Static => 0,
        Scaling::RowWise => row,
        Scaling::BlockWise1x128 => col / BLOCK * rows + row,
        Scaling::BlockWise128x128 => row / BLOCK * cols.div_ceil(BLOCK) + col / BLOCK,
    }
}

/// Quantizes a matrix; `given` is the scale of [`Scaling::Static`].
pub fn quantize(
    format: Format,
    scaling: Scaling,
    x: &[f64],
    shape @ [rows, cols]: [usize; 2],
    given: f32,
) -> Quantized {
    let place = |i: usize| scale_index(scaling, shape, i / cols, i % cols);
    let mut amax = vec![0f32; scaling.shape(rows, cols).iter().product()];
    for (i, x) in x.iter().enumerate() {
        let (of, x) = (&mut amax[place(i)], (*x as f32).abs());
        *of = if x.is_nan() || of.is_nan() { f32::NAN } else { of.max(x) };
    }
    let scale = |amax: f32| if scaling == Scaling::Static { given } else { scale(format, amax) };
    let scales: Vec<f32> = amax.into_iter().map(scale).collect();
    let code = |(i, x): (usize, &f64)| round(format, *x as f32 * (1.0 / scales[place(i)]));
    Quantized { q: x.iter().enumerate().map(code).collect(), scales }
}

/// Dequantizes a matrix.
pub fn dequantize(scaling: Scaling, q: &Quantized, shape @ [_, cols]: [usize; 2]) -> Vec<f32> {
    let scale = |i: usize| q.scales[scale_index(scaling, shape, i / cols, i % cols)];
    q.q.iter().enumerate().map(|(i, q)| *q as f32 * scale(i)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(len: usize) -> Vec<f64> {
        (0..len)
            .map(|i| f64::from(((i * 7919) as f64).sin() as f32) * 2f64.powi((i % 23) as i32 - 11))
            .collect()
    }

    /// Elements come back within half of the spacing of the format at each element, but for the roundings of f32.
    #[test]
    fn elements_come_back_within_half_of_a_spacing() {
        let shape = [130, 259];
        let x = sample(shape[0] * shape[1]);
        for format in Format::ALL {
            for scaling in Scaling::ALL {
                let q = quantize(format, scaling, &x, shape, 0.125);
                let y = dequantize(scaling, &q, shape);
                for (i, (x, y)) in x.iter().zip(y).enumerate() {
                    let s = f64::from(q.scales[scale_index(scaling, shape, i / shape[1], i % shape[1])]);
                    // Integers go one further below zero, where only a given scale leads.
                    let below = if format == Format::Int8 && *x < 0.0 { 1.0 } else { 0.0 };
                    let (in_units, max) = ((x / s).abs(), format.max() + below);
                    if in_units > max {
                        // Beyond the largest number by the roundings of f32 alone, unless the scale was given.
                        assert!(
                            (f64::from(y).abs() / s / max - 1.0).abs() < 1e-6,
                            "{format:?} {scaling:?} {x}"
                        );
                        assert!(in_units < max * 1.000_001 || scaling == Scaling::Static, "{in_units}");
                        continue;
                    }
                    let spacing = match format {
                        Format::E4M3 => 2f64.powi(in_units.log2().floor().max(-6.0) as i32 - 3),
                        Format::E5M2 => 2f64.powi(in_units.log2().floor().max(-14.0) as i32 - 2),
                        Format::Int8 => 1.0,
                    };
                    let error = (f64::from(y) - x).abs() / s;
                    assert!(error <= spacing / 2.0 + in_units * 1e-6, "{format:?} {scaling:?} {x}: {error}");
                }
            }
        }
    }

    #[test]
    fn the_greatest_magnitude_becomes_the_largest_number() {
        for format in Format::ALL {
            for amax in [1.0, 3.7, 1e-20, 1e30, 0.333] {
                let q = quantize(format, Scaling::RowWise, &[amax, -amax, 0.0], [1, 3], 0.0);
                assert_eq!(q.q, [format.max(), -format.max(), 0.0], "{amax}");
            }
        }
    }

    #[test]
    fn zeros_stay_and_what_is_not_finite_spoils_its_part_alone() {
        let x = [0.0, 0.0, f64::NAN, 1.0, f64::INFINITY, 2.0, 3.0, 4.0];
        for format in Format::ALL {
            let q = quantize(format, Scaling::RowWise, &x, [4, 2], 0.0);
            assert_eq!((q.scales[0], q.q[0]), (MIN_SCALE, 0.0));
            assert!(q.scales[1].is_nan() && q.scales[2].is_infinite());
            let y = dequantize(Scaling::RowWise, &q, [4, 2]);
            assert!(y[2..6].iter().all(|y| y.is_nan()), "{y:?}");
            assert_eq!((y[0], y[1], y[7]), (0.0, 0.0, 4.0));
        }
    }

    #[test]
    fn scales_lie_as_matrix_products_take_them() {
        let shape = [3, 300];
        assert_eq!(Scaling::BlockWise1x128.shape(3, 300), [3, 3]);
        assert_eq!(scale_index(Scaling::BlockWise1x128, shape, 2, 128), 5);
        assert_eq!(scale_index(Scaling::BlockWise128x128, [300, 300], 255, 256), 5);
        let x: Vec<f64> = (0..900).map(|i| f64::from(127 * (i / 300 + 1))).collect();
        let q = quantize(Format::Int8, Scaling::BlockWise1x128, &x, shape, 0.0);
        assert_eq!(q.scales, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    }
}
