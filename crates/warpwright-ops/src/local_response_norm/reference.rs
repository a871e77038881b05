//! The definition in f64, for the channels at one place of one image.

use super::Coefficients;

/// The channels that the window of channel `c` covers.
pub fn window(size: usize, channels: usize, c: usize) -> std::ops::Range<usize> {
    c.saturating_sub(size / 2)..channels.min(c + (size - 1) / 2 + 1)
}

/// `d = k + alpha / size * sum(x^2)` over the window of `c`.
fn base(p: Coefficients, size: usize, x: &[f64], c: usize) -> f64 {
    let squares: f64 = x[window(size, x.len(), c)].iter().map(|v| v * v).sum();
    p.k.get() + p.alpha.get() / size as f64 * squares
}

/// `y = x / d^beta`
pub fn forward(p: Coefficients, size: usize, x: &[f64]) -> Vec<f64> {
    x.iter().enumerate().map(|(c, v)| v / base(p, size, x, c).powf(p.beta.get())).collect()
}

/// `dx`, and for each channel the sum of the magnitudes that it is the sum of.
pub fn backward(p: Coefficients, size: usize, x: &[f64], dy: &[f64]) -> Vec<(f64, f64)> {
    let (alpha, beta) = (p.alpha.get(), p.beta.get());
    let d: Vec<f64> = (0..x.len()).map(|c| base(p, size, x, c)).collect();
    let direct = |c: usize| dy[c] / d[c].powf(beta);
    (0..x.len())
        .map(|c| {
            // The channels in whose window `c` is.
            let through = (0..x.len()).filter(|&j| window(size, x.len(), j).contains(&c));
            let factor = -2.0 * alpha * beta / size as f64 * x[c];
            let terms: Vec<f64> = through.map(|j| factor * dy[j] * x[j] / d[j].powf(beta + 1.0)).collect();
            let scale = direct(c).abs() + terms.iter().map(|t| t.abs()).sum::<f64>();
            (direct(c) + terms.iter().sum::<f64>(), scale)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Real;

    fn coefficients(alpha: f64, beta: f64, k: f64) -> Coefficients {
        Coefficients { alpha: Real::new(alpha), beta: Real::new(beta), k: Real::new(k) }
    }

    #[test]
    fn windows_are_those_of_pytorch() {
        let all = |size| (0..4).map(|c| window(size, 4, c)).collect::<Vec<_>>();
        assert_eq!(all(3), [0..2, 0..3, 1..4, 2..4]);
        assert_eq!(all(2), [0..1, 0..2, 1..3, 2..4], "an even window reaches one further down than up");
        assert_eq!(all(1), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(all(100), [0..4, 0..4, 0..4, 0..4]);
    }

    #[test]
    fn closed_forms() {
        let y = forward(coefficients(3.0, 1.0, 1.0), 3, &[1.0, 2.0, 0.0]);
        assert_eq!(y, [1.0 / 6.0, 2.0 / 6.0, 0.0]);
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        let x = [0.3, -1.2, 2.5, 0.7, -0.1, 1.1, 0.9];
        let dy = [1.0, -0.5, 0.25, 2.0, -1.5, 0.3, -0.8];
        for (alpha, beta, k) in [(1e-4, 0.75, 1.0), (0.8, 0.75, 2.0), (0.5, 1.3, 0.5), (1.0, 0.5, 1.0)] {
            let p = coefficients(alpha, beta, k);
            for size in [1, 2, 3, 4, 5, 9] {
                let loss =
                    |x: &[f64]| -> f64 { forward(p, size, x).iter().zip(&dy).map(|(y, d)| y * d).sum() };
                for (i, (exact, _)) in backward(p, size, &x, &dy).into_iter().enumerate() {
                    let moved = |h: f64| {
                        let mut x = x;
                        x[i] += h;
                        loss(&x)
                    };
                    let h = 1e-3;
                    let numeric =
                        (8.0 * (moved(h) - moved(-h)) - (moved(2.0 * h) - moved(-2.0 * h))) / (12.0 * h);
                    assert!((exact - numeric).abs() < 1e-8, "{p:?} {size} [{i}]: {exact} and {numeric}");
                }
            }
        }
    }
}
