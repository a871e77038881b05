//! Rotary position embedding in plain f64 Rust: the oracle that kernels are held against.

use super::Pairing;

/// The two places of each of `pairs` pairs in a head.
pub fn places(pairing: Pairing, pairs: usize) -> impl Iterator<Item = [usize; 2]> {
    (0..pairs).map(move |i| match pairing {
        Pairing::Half => [i, i + pairs],
        Pairing::Interleaved => [2 * i, 2 * i + 1],
    })
}

/// A head rotated by angles with these cosines and sines, one for each pair; the elements behind the pairs are as they were.
pub fn forward(x: &[f64], cos: &[f64], sin: &[f64], pairing: Pairing) -> Vec<f64> {
    let mut y = x.to_vec();
    for ([a, b], (cos, sin)) in places(pairing, cos.len()).zip(cos.iter().zip(sin)) {
        (y[a], y[b]) = (x[a] * cos - x[b] * sin, x[b] * cos + x[a] * sin);
    }
    y
}

/// The gradient of a head from that of its rotation: the rotation back.
pub fn backward(dy: &[f64], cos: &[f64], sin: &[f64], pairing: Pairing) -> Vec<f64> {
    let back: Vec<f64> = sin.iter().map(|sin| -sin).collect();
    forward(dy, cos, &back, pairing)
}

/// The natural scales of either: the magnitudes of the terms.
pub fn scale(x: &[f64], cos: &[f64], sin: &[f64], pairing: Pairing) -> Vec<f64> {
    let mut scales: Vec<f64> = x.iter().map(|x| x.abs()).collect();
    for ([a, b], (cos, sin)) in places(pairing, cos.len()).zip(cos.iter().zip(sin)) {
        let (x, y) = (x[a].abs(), x[b].abs());
        (scales[a], scales[b]) = (x * cos.abs() + y * sin.abs(), y * cos.abs() + x * sin.abs());
    }
    scales
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn_exchanges_the_elements_of_a_pair() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0];
        let (cos, sin) = ([0.0, 1.0], [1.0, 0.0]);
        assert_eq!(forward(&x, &cos, &sin, Pairing::Half), [-3.0, 2.0, 1.0, 4.0, 5.0]);
        assert_eq!(forward(&x, &cos, &sin, Pairing::Interleaved), [-2.0, 1.0, 3.0, 4.0, 5.0]);
        assert_eq!(backward(&x, &cos, &sin, Pairing::Half), [3.0, 2.0, -1.0, 4.0, 5.0]);
    }

    /// `q_p . k_r` depends on `p - r` alone: section 3.2.1 of the paper.
    #[test]
    fn products_depend_on_the_distance_of_positions() {
        let (q, k) = ([0.3, -1.2, 2.0, 0.7], [1.1, 0.4, -0.6, 0.9]);
        let at = |position: f64| {
            let angles = [position, position / 100.0];
            (angles.map(f64::cos), angles.map(f64::sin))
        };
        for pairing in [Pairing::Half, Pairing::Interleaved] {
            let product = |p: f64, r: f64| -> f64 {
                let ((cos, sin), (k_cos, k_sin)) = (at(p), at(r));
                let q = forward(&q, &cos, &sin, pairing);
                q.iter().zip(forward(&k, &k_cos, &k_sin, pairing)).map(|(a, b)| a * b).sum()
            };
            assert!((product(7.0, 3.0) - product(104.0, 100.0)).abs() < 1e-12, "{pairing:?}");
            assert!((product(7.0, 3.0) - product(7.0, 4.0)).abs() > 1e-3, "{pairing:?}");
        }
    }

    #[test]
    fn the_gradient_is_the_transposed_rotation() {
        let (x, dy) = ([0.3, -1.2, 2.0, 0.7], [1.1, 0.4, -0.6, 0.9]);
        let angles = [0.7f64, -2.1];
        let (cos, sin) = (angles.map(f64::cos), angles.map(f64::sin));
        for pairing in [Pairing::Half, Pairing::Interleaved] {
            let dx = backward(&dy, &cos, &sin, pairing);
            for i in 0..4 {
                let at = |step: f64| -> f64 {
                    let mut x = x;
                    x[i] += step;
                    forward(&x, &cos, &sin, pairing).iter().zip(dy).map(|(y, dy)| y * dy).sum()
                };
                assert!((dx[i] - (at(1e-3) - at(-1e-3)) / 2e-3).abs() < 1e-10, "{pairing:?} {i}");
            }
        }
    }
}
