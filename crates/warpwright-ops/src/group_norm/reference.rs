//! The definition in plain f64.

use super::{GroupShape, Layout};

/// Mean and rstd of each group, `[N, groups]`; NaN where a group is not finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// The means.
    pub mean: Vec<f64>,
    /// `1 / sqrt(variance + eps)`
    pub rstd: Vec<f64>,
}

/// Where element `pixel` of channel `channel` of sample `sample` lies.
pub fn index(shape: GroupShape, sample: usize, channel: usize, pixel: usize) -> usize {
    match shape.layout {
        Layout::ChannelsFirst => (sample * shape.channels + channel) * shape.spatial + pixel,
        Layout::ChannelsLast => (sample * shape.spatial + pixel) * shape.channels + channel,
    }
}

/// The elements of group `group` of sample `sample`: index and channel.
fn members(shape: GroupShape, sample: usize, group: usize) -> impl Iterator<Item = (usize, usize)> {
    let of_group = shape.channels / shape.groups;
    (group * of_group..(group + 1) * of_group)
        .flat_map(move |c| (0..shape.spatial).map(move |p| (index(shape, sample, c, p), c)))
}

/// The groups: number, sample, group of the sample.
fn groups(shape: GroupShape) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..shape.batch * shape.groups).map(move |i| (i, i / shape.groups, i % shape.groups))
}

/// The statistics of `x`.
pub fn statistics(shape: GroupShape, x: &[f64], eps: f64) -> Statistics {
    let (center, rstd) = centers(shape, x, eps);
    Statistics { mean: center.into_iter().map(|(mean, rest)| mean + rest).collect(), rstd }
}

/// The sum of `f` of the values in halves of halves, whose error grows with the logarithm of their number: a plain sum of
/// squares drifts by more than the kernels do.
fn sum(values: &[f64], f: impl Fn(f64) -> f64 + Copy) -> f64 {
    match values {
        [] => 0.0,
        [v] => f(*v),
        _ => {
            let (low, high) = values.split_at(values.len() / 2);
            sum(low, f) + sum(high, f)
        }
    }
}

/// The means in two parts, and rstd.
fn centers(shape: GroupShape, x: &[f64], eps: f64) -> (Vec<(f64, f64)>, Vec<f64>) {
    let (mut mean, mut rstd) = (Vec::new(), Vec::new());
    let count = (shape.channels / shape.groups.max(1) * shape.spatial) as f64;
    for (_, sample, group) in groups(shape) {
        let values: Vec<f64> = members(shape, sample, group).map(|(i, _)| x[i]).collect();
        let rough = sum(&values, |v| v) / count.max(1.0);
        let rest = sum(&values, |v| v - rough) / count.max(1.0);
        let variance = sum(&values, |v| (v - rough - rest).powi(2)) / count;
        mean.push((rough, rest));
        rstd.push(1.0 / (variance + eps).sqrt());
    }
    (mean, rstd)
}

/// `1 / (1 + exp(-z))`
fn sigmoid(z: f64) -> f64 {
    if z >= 0.0 { 1.0 / (1.0 + (-z).exp()) } else { z.exp() / (1.0 + z.exp()) }
}

/// Weight or bias of a channel.
fn of_channel(values: Option<&[f64]>, channel: usize, default: f64) -> f64 {
    values.map_or(default, |v| v[channel])
}

/// Forward.
pub fn forward(
    shape: GroupShape,
    x: &[f64],
    weight: Option<&[f64]>,
    bias: Option<&[f64]>,
    silu: bool,
    eps: f64,
) -> Vec<f64> {
    let (mean, rstd) = centers(shape, x, eps);
    let mut y = vec![0.0; x.len()];
    for (number, sample, group) in groups(shape) {
        for (i, c) in members(shape, sample, group) {
            let xhat = (x[i] - mean[number].0 - mean[number].1) * rstd[number];
            let z = xhat * of_channel(weight, c, 1.0) + of_channel(bias, c, 0.0);
            y[i] = if silu { z * sigmoid(z) } else { z };
        }
    }
    y
}

/// The gradients of [`forward`].
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// Of `x`.
    pub dx: Vec<f64>,
    /// Of `weight`, whether there is one or not.
    pub dweight: Vec<f64>,
    /// Of `bias`, whether there is one or not.
    pub dbias: Vec<f64>,
}

/// Backward, from the statistics that forward has saved.
pub fn backward(
    shape: GroupShape,
    x: &[f64],
    dy: &[f64],
    statistics: &Statistics,
    weight: Option<&[f64]>,
    bias: Option<&[f64]>,
    silu: bool,
) -> Gradients {
    let mut out = Gradients {
        dx: vec![0.0; x.len()],
        dweight: vec![0.0; shape.channels],
        dbias: vec![0.0; shape.channels],
    };
    let count = (shape.channels / shape.groups.max(1) * shape.spatial) as f64;
    for (number, sample, group) in groups(shape) {
        let (mean, rstd) = (statistics.mean[number], statistics.rstd[number]);
        let xhat = |i: usize| (x[i] - mean) * rstd;
        let through = |i: usize, c: usize| {
            let z = xhat(i) * of_channel(weight, c, 1.0) + of_channel(bias, c, 0.0);
            let s = sigmoid(z);
            if silu { dy[i] * s * (1.0 + z * (1.0 - s)) } else { dy[i] }
        };
        let (mut sum, mut product) = (0.0, 0.0);
        for (i, c) in members(shape, sample, group) {
            let g = through(i, c);
            sum += g * of_channel(weight, c, 1.0);
            product += g * of_channel(weight, c, 1.0) * xhat(i);
            out.dweight[c] += g * xhat(i);
            out.dbias[c] += g;
        }
        for (i, c) in members(shape, sample, group) {
            let g = through(i, c) * of_channel(weight, c, 1.0);
            out.dx[i] = rstd * (g - sum / count - xhat(i) * product / count);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: GroupShape =
        GroupShape { batch: 1, channels: 2, spatial: 2, groups: 1, layout: Layout::ChannelsFirst };

    #[test]
    fn a_group_has_mean_zero_and_variance_one() {
        let x = [1.0, 2.0, 3.0, 6.0];
        let s = statistics(SHAPE, &x, 0.0);
        assert_eq!((s.mean[0], s.rstd[0]), (3.0, 1.0 / 3.5f64.sqrt()));
        let y = forward(SHAPE, &x, None, None, false, 0.0);
        assert!(y.iter().sum::<f64>().abs() < 1e-15);
        assert!((y.iter().map(|v| v * v).sum::<f64>() - 4.0).abs() < 1e-14);
    }

    #[test]
    fn layouts_agree() {
        let last = GroupShape { layout: Layout::ChannelsLast, ..SHAPE };
        let y = forward(SHAPE, &[1.0, 2.0, 3.0, 6.0], Some(&[2.0, 3.0]), Some(&[0.5, 0.0]), true, 1e-5);
        let z = forward(last, &[1.0, 3.0, 2.0, 6.0], Some(&[2.0, 3.0]), Some(&[0.5, 0.0]), true, 1e-5);
        assert_eq!([y[0], y[2], y[1], y[3]], z[..]);
    }
}
