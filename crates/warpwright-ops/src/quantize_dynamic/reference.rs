//! Plain Rust definitions. Every rounding is defined, so codes, maxima and elements of the kernels must equal these exactly.

use crate::dynamic_map::{MIN_ABSMAX, Map};

/// Codes, and the largest magnitude of each block.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// The codes.
    pub codes: Vec<u8>,
    /// Of each block.
    pub absmax: Vec<f32>,
}

/// The codes of elements, in blocks of `block_size`.
pub fn quantize(map: Map, x: &[f32], block_size: usize) -> Quantized {
    let midpoints = crate::dynamic_map::midpoints(&map.values());
    let mut out = Quantized { codes: Vec::with_capacity(x.len()), absmax: Vec::new() };
    for block in x.chunks(block_size) {
        let greater = |most: f32, x: &f32| {
            if most.is_nan() || x.is_nan() { f32::NAN } else { most.max(x.abs()) }
        };
        let absmax = block.iter().fold(0.0, greater);
        let inverse = if absmax.is_nan() { absmax } else { 1.0 / absmax.max(MIN_ABSMAX) };
        let code = |x: &f32| {
            let t = x * inverse;
            // 255 at most.
            midpoints.partition_point(|bound| if t.is_nan() { 0.0 > *bound } else { t > *bound }) as u8
        };
        out.codes.extend(block.iter().map(code));
        out.absmax.push(absmax);
    }
    out
}

/// The elements of codes.
pub fn dequantize(map: Map, q: &Quantized, block_size: usize) -> Vec<f32> {
    let values = map.values();
    q.codes
        .iter()
        .enumerate()
        .map(|(i, code)| values[usize::from(*code)] * q.absmax[i / block_size])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No entry of the map is nearer to an element than the one that it comes back as, but for the roundings of f32.
    #[test]
    fn elements_come_back_as_the_nearest_entry() {
        let x: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin() * 10f32.powi(i % 8 - 6)).collect();
        for map in Map::ALL {
            let x: Vec<f32> = x.iter().map(|x| if map == Map::Signed { *x } else { x.abs() }).collect();
            let q = quantize(map, &x, 256);
            assert_eq!((q.codes.len(), q.absmax.len()), (1000, 4));
            for (i, (x, y)) in x.iter().zip(dequantize(map, &q, 256)).enumerate() {
                let absmax = q.absmax[i / 256];
                let distances = map.values().map(|value| (value * absmax - x).abs());
                let least = distances.into_iter().fold(f32::INFINITY, f32::min);
                assert!((x - y).abs() <= least + 1e-6 * x.abs(), "{map:?} {x}: {y}");
            }
        }
    }

    #[test]
    fn zeros_stay_and_what_is_not_finite_spoils_its_block() {
        let x = [0.0, 0.0, f32::NAN, 1.0, f32::INFINITY, -2.0, 3.0, -0.0];
        for map in Map::ALL {
            let q = quantize(map, &x, 2);
            let y = dequantize(map, &q, 2);
            assert_eq!((q.absmax[0], y[0]), (0.0, 0.0));
            assert!(q.absmax[1].is_nan() && q.absmax[2].is_infinite());
            assert!(y[2..6].iter().all(|y| y.is_nan()), "{y:?}");
            assert_eq!((y[6], y[7]), (3.0, 0.0));
        }
    }
}
