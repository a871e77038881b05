//! The definition in plain f64 Rust.

use super::{Conv, Layout};

/// A value, and the sum of the magnitudes that make it: the scale of its rounding errors.
pub type Scaled = (f64, f64);

/// Factors of sums, and what is added to them, before an activation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends<'a> {
    /// A factor of each filter.
    pub scale: Option<&'a [f64]>,
    /// A number for each filter, which is added to its results.
    pub bias: Option<&'a [f64]>,
    /// A number for each result.
    pub residual: Option<&'a [f64]>,
}

/// Tensors of a convolution as lists of elements, as they lie in memory.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    conv: &'a Conv,
    outputs: [usize; 3],
}

/// A place of the kernel and the pixels of `y` and `x` that it joins: the number of each in its image.
struct Meeting {
    tap: usize,
    output: usize,
    input: usize,
}

impl<'a> View<'a> {
    /// Those of `conv`; `None` if it has no outputs.
    pub fn new(conv: &'a Conv) -> Option<Self> {
        let [d, h, w] = &conv.axes;
        Some(Self { conv, outputs: [d.outputs()?, h.outputs()?, w.outputs()?] })
    }

    /// Outputs along each dimension.
    pub const fn outputs(&self) -> [usize; 3] {
        self.outputs
    }

    fn pixels(extents: [usize; 3]) -> usize {
        extents.into_iter().product()
    }

    fn inputs(&self) -> [usize; 3] {
        self.conv.axes.map(|axis| axis.input)
    }

    fn kernel(&self) -> [usize; 3] {
        self.conv.axes.map(|axis| axis.kernel)
    }

    fn image(&self, pixels: usize, channels: usize, [n, c, p]: [usize; 3]) -> usize {
        match self.conv.layout {
            Layout::ChannelsFirst => (n * channels + c) * pixels + p,
            Layout::ChannelsLast => (n * pixels + p) * channels + c,
        }
    }

    /// Where pixel `p` of channel `c` of image `n` of `x` is.
    pub fn x(&self, at: [usize; 3]) -> usize {
        self.image(Self::pixels(self.inputs()), self.conv.channels, at)
    }

    /// The same of `y`.
    pub fn y(&self, at: [usize; 3]) -> usize {
        self.image(Self::pixels(self.outputs), self.conv.filters, at)
    }

    /// Where tap `t` of channel `c` of filter `f` is, a channel of its group.
    pub fn weight(&self, [f, c, t]: [usize; 3]) -> usize {
        let (channels, taps) = (self.conv.channels / self.conv.groups, Self::pixels(self.kernel()));
        match self.conv.weight_layout {
            Layout::ChannelsFirst => (f * channels + c) * taps + t,
            Layout::ChannelsLast => (f * taps + t) * channels + c,
        }
    }

    /// Every tap of every output whose pixel exists.
    fn meetings(&self) -> Vec<Meeting> {
        let (kernel, inputs) = (self.kernel(), self.inputs());
        let digits = |index: usize, [_, h, w]: [usize; 3]| [index / (h * w), index / w % h, index % w];
        let mut all = Vec::new();
        for output in 0..Self::pixels(self.outputs) {
            for tap in 0..Self::pixels(kernel) {
                let (o, t) = (digits(output, self.outputs), digits(tap, kernel));
                let place = |i: usize| {
                    let axis = &self.conv.axes[i];
                    let at = (o[i] * axis.stride + t[i] * axis.dilation).checked_sub(axis.padding[0])?;
                    (at < axis.input).then_some(at)
                };
                if let (Some(d), Some(h), Some(w)) = (place(0), place(1), place(2)) {
                    let input = (d * inputs[1] + h) * inputs[2] + w;
                    all.push(Meeting { tap, output, input });
                }
            }
        }
        all
    }

    /// Runs `product` for each product: its places in `x`, the weight and `y`.
    fn products(&self, mut product: impl FnMut(usize, usize, usize)) {
        let (channels, filters) =
            (self.conv.channels / self.conv.groups, self.conv.filters / self.conv.groups);
        let meetings = self.meetings();
        // From a pixel or tap to the next.
        let [of_pixel, of_tap, of_result] = [self.x([0, 0, 1]), self.weight([0, 0, 1]), self.y([0, 0, 1])];
        for n in 0..self.conv.batch {
            for f in 0..self.conv.filters {
                for c in 0..channels {
                    let of_x = f / filters * channels + c;
                    let [x, weight, y] = [self.x([n, of_x, 0]), self.weight([f, c, 0]), self.y([n, f, 0])];
                    for Meeting { tap, output, input } in &meetings {
                        product(x + input * of_pixel, weight + tap * of_tap, y + output * of_result);
                    }
                }
            }
        }
    }

    fn sums(len: usize, run: impl FnOnce(&mut dyn FnMut(usize, f64))) -> Vec<Scaled> {
        let mut sums = vec![(0.0, 0.0); len];
        run(&mut |at, product: f64| {
            let (sum, scale) = &mut sums[at];
            *sum += product;
            *scale += product.abs();
        });
        sums
    }

    /// Every element of `scale conv(x, weight) + bias + residual`, before an activation.
    pub fn forward(&self, x: &[f64], weight: &[f64], ends: Ends<'_>) -> Vec<Scaled> {
        let pixels = Self::pixels(self.outputs);
        let mut sums = Self::sums(self.conv.batch * self.conv.filters * pixels, |add| {
            self.products(|of_x, of_weight, of_y| add(of_y, x[of_x] * weight[of_weight]));
        });
        for f in 0..self.conv.filters {
            let of_filter = |of: Option<&[f64]>, default: f64| of.map_or(default, |of| of[f]);
            let (scale, bias) = (of_filter(ends.scale, 1.0), of_filter(ends.bias, 0.0));
            for at in (0..self.conv.batch).flat_map(|n| (0..pixels).map(move |p| [n, f, p])) {
                let at = self.y(at);
                let residual = ends.residual.map_or(0.0, |residual| residual[at]);
                let (sum, size) = sums[at];
                let size = size * scale.abs() + bias.abs() + residual.abs();
                sums[at] = (sum * scale + bias + residual, size);
            }
        }
        sums
    }

    /// Every element of the gradient of `x`.
    pub fn dx(&self, weight: &[f64], dy: &[f64]) -> Vec<Scaled> {
        let len = self.conv.batch * self.conv.channels * Self::pixels(self.inputs());
        Self::sums(len, |add| {
            self.products(|of_x, of_weight, of_y| add(of_x, dy[of_y] * weight[of_weight]));
        })
    }

    /// Every element of the gradient of the weight.
    pub fn dweight(&self, x: &[f64], dy: &[f64]) -> Vec<Scaled> {
        let len = self.conv.filters * (self.conv.channels / self.conv.groups) * Self::pixels(self.kernel());
        Self::sums(len, |add| {
            self.products(|of_x, of_weight, of_y| add(of_weight, dy[of_y] * x[of_x]));
        })
    }

    /// The gradient of the bias.
    pub fn dbias(&self, dy: &[f64]) -> Vec<Scaled> {
        let pixels = Self::pixels(self.outputs);
        Self::sums(self.conv.filters, |add| {
            for n in 0..self.conv.batch {
                for f in 0..self.conv.filters {
                    (0..pixels).for_each(|p| add(f, dy[self.y([n, f, p])]));
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use warpwright_ptx::DType;

    use super::*;
    use crate::conv::Axis;

    /// Two channels and filters of two groups, with stride, dilation and uneven padding.
    fn conv() -> Conv {
        let height = Axis { input: 5, kernel: 2, stride: 2, padding: [1, 0], dilation: 2 };
        let width = Axis { input: 4, kernel: 3, stride: 1, padding: [0, 2], dilation: 1 };
        let both = Conv::new(DType::F64, [2, 4, 6], height, width);
        Conv { groups: 2, weight_layout: Layout::ChannelsFirst, ..both }
    }

    fn ramp(len: usize, step: f64) -> Vec<f64> {
        (0..len).map(|i| (i as f64 * step).sin()).collect()
    }

    #[test]
    fn known_sums() {
        // A row of 1, 2, 3 under taps 1, 10, 100 and one zero on either side.
        let conv = Conv::new(DType::F64, [1, 1, 1], Axis::ONE, Axis::new(3, 3).with(1, 1, 1));
        let view = View::new(&conv).unwrap();
        let of = |ends| {
            let y = view.forward(&[1.0, 2.0, 3.0], &[1.0, 10.0, 100.0], ends);
            y.into_iter().map(|y| y.0).collect::<Vec<_>>()
        };
        let bias = Ends { bias: Some(&[0.5]), ..Ends::default() };
        assert_eq!(of(bias), [210.5, 321.5, 32.5]);
        let all = Ends { scale: Some(&[2.0]), residual: Some(&[1000.0, 2000.0, -64.0]), ..bias };
        assert_eq!(of(all), [1420.5, 2642.5, 0.5]);
    }

    #[test]
    fn outputs_are_those_of_the_formula() {
        assert_eq!(Axis::new(7, 3).with(2, 1, 1).outputs(), Some(4));
        assert_eq!(Axis::new(7, 3).with(2, 0, 3).outputs(), Some(1));
        assert_eq!(Axis::new(2, 3).outputs(), None);
        assert_eq!(Axis::new(2, 3).with(1, usize::MAX, 1).outputs(), None);
    }

    #[test]
    fn gradients_are_differences() {
        let conv = conv();
        let view = View::new(&conv).unwrap();
        let outputs: usize = view.outputs().into_iter().product();
        let x = ramp(2 * 4 * 20, 0.7);
        let weight = ramp(6 * 2 * 6, 1.3);
        let dy = ramp(2 * 6 * outputs, 0.3);
        let loss = |x: &[f64], weight: &[f64], bias: &[f64]| -> f64 {
            view.forward(x, weight, Ends { bias: Some(bias), ..Ends::default() })
                .iter()
                .zip(&dy)
                .map(|(y, dy)| y.0 * dy)
                .sum()
        };
        let bias = ramp(6, 0.9);
        let check = |gradient: Vec<Scaled>, of: &dyn Fn(usize, f64) -> f64| {
            for (i, (value, _)) in gradient.into_iter().enumerate() {
                let difference = (of(i, 1e-4) - of(i, -1e-4)) / 2e-4;
                assert!((value - difference).abs() < 1e-8, "{i}: {value} against {difference}");
            }
        };
        let moved = |values: &[f64], i: usize, by: f64| {
            let mut values = values.to_vec();
            values[i] += by;
            values
        };
        check(view.dx(&weight, &dy), &|i, by| loss(&moved(&x, i, by), &weight, &bias));
        check(view.dweight(&x, &dy), &|i, by| loss(&x, &moved(&weight, i, by), &bias));
        check(view.dbias(&dy), &|i, by| loss(&x, &weight, &moved(&bias, i, by)));
    }
}
