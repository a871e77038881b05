//! Sampling: which cells of the input a cell of the output is made of along an axis, with which weights.

use warpwright_ptx::DType;

use super::Mode;

/// The constant of the cubic kernel, that of PyTorch.
pub const CUBIC: f64 = -0.75;

/// An axis: output cell `o` is at `src = (o + offset) step - shift`, counted in cells of the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Cells of the input.
    pub input: u32,
    /// Cells of the output.
    pub output: u32,
    /// Cells of the input from a cell of the output to the next, a number of the type that places are computed in.
    pub step: f64,
    /// 1/2 where the centres of cells are sampled, else 0.
    pub offset: f64,
    /// 1/2 where they are sampled between centres, else 0.
    pub shift: f64,
    /// The function between cells.
    pub mode: Mode,
    /// Whether places are computed in f64, else in f32.
    pub double: bool,
}

impl Sampling {
    /// That of an axis from `input` to `output` cells, both at least 1; by `scale` if it is given, else by their quotient.
    pub fn new(
        dtype: DType,
        mode: Mode,
        align_corners: bool,
        [input, output]: [u32; 2],
        scale: Option<f64>,
    ) -> Self {
        let nearest = matches!(mode, Mode::Nearest | Mode::NearestExact);
        let double = dtype == DType::F64 && !nearest;
        let quotient = |a: u32, b: u32| {
            if double { f64::from(a) / f64::from(b) } else { f64::from(a as f32 / b as f32) }
        };
        let rounded = |x: f64| if double { x } else { f64::from(x as f32) };
        let step = match scale {
            _ if align_corners && output == 1 => 0.0,
            _ if align_corners => quotient(input - 1, output - 1),
            Some(scale) => rounded(1.0 / scale),
            None => quotient(input, output),
        };
        let shift = if nearest || align_corners { 0.0 } else { 0.5 };
        let offset = if mode == Mode::NearestExact { 0.5 } else { shift };
        Self { input, output, step, offset, shift, mode, double }
    }

    /// Where output cell `o` is, and how far from the cell below: `min(floor(src), input - 1)`, and `src` less that, from 0 to 1.
    fn place(self, o: u32) -> (i64, f64) {
        let Self { input, step, offset, shift, mode, double, .. } = self;
        let last = i64::from(input) - 1;
        let least = if mode == Mode::Linear { 0.0 } else { f64::NEG_INFINITY };
        if double {
            let src = ((f64::from(o) + offset) * step - shift).max(least);
            let cell = (src.floor() as i64).min(last);
            return (cell, (src - cell as f64).clamp(0.0, 1.0));
        }
        let src = ((o as f32 + offset as f32) * step as f32 - shift as f32).max(least as f32);
        let cell = (src.floor() as i64).min(last);
        (cell, f64::from((src - cell as f32).clamp(0.0, 1.0)))
    }

    /// The cells that output cell `o` is made of, with their weights in f64 of the distance.
    pub fn taps(self, o: u32) -> Vec<(usize, f64)> {
        let (cell, t) = self.place(o);
        let inside = |i: i64| i.clamp(0, i64::from(self.input) - 1) as usize;
        match self.mode {
            Mode::Nearest | Mode::NearestExact | Mode::Area => vec![(inside(cell), 1.0)],
            Mode::Linear => vec![(inside(cell), 1.0 - t), (inside(cell + 1), t)],
            Mode::Cubic => {
                let near = |x: f64| ((CUBIC + 2.0) * x - (CUBIC + 3.0)) * x * x + 1.0;
                let far = |x: f64| ((CUBIC * x - 5.0 * CUBIC) * x + 8.0 * CUBIC) * x - 4.0 * CUBIC;
                let weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
                (-1..3).zip(weights).map(|(i, weight)| (inside(cell + i), weight)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(mode: Mode, align_corners: bool, extents: [u32; 2]) -> Sampling {
        Sampling::new(DType::F32, mode, align_corners, extents, None)
    }

    fn nearest(mode: Mode, extents: [u32; 2]) -> Vec<usize> {
        (0..extents[1]).map(|o| sampling(mode, false, extents).taps(o)[0].0).collect()
    }

    /// Cells that PyTorch takes.
    #[test]
    fn nearest_cells() {
        assert_eq!(nearest(Mode::Nearest, [3, 6]), [0, 0, 1, 1, 2, 2]);
        assert_eq!(nearest(Mode::Nearest, [5, 3]), [0, 1, 3]);
        assert_eq!(nearest(Mode::NearestExact, [5, 3]), [0, 2, 4]);
        assert_eq!(nearest(Mode::Nearest, [3, 5]), [0, 0, 1, 1, 2]);
        assert_eq!(nearest(Mode::NearestExact, [3, 5]), [0, 0, 1, 2, 2]);
        assert_eq!(nearest(Mode::NearestExact, [1, 3]), [0, 0, 0]);
    }

    #[test]
    fn linear_weights() {
        let of = |align_corners, extents, o| sampling(Mode::Linear, align_corners, extents).taps(o);
        assert_eq!(of(false, [2, 4], 0), [(0, 1.0), (1, 0.0)]);
        assert_eq!(of(false, [2, 4], 1), [(0, 0.75), (1, 0.25)]);
        assert_eq!(of(false, [2, 4], 3), [(1, 0.75), (1, 0.25)]);
        assert_eq!(of(true, [3, 5], 1), [(0, 0.5), (1, 0.5)]);
        assert_eq!(of(true, [3, 5], 4), [(2, 1.0), (2, 0.0)]);
        assert_eq!(of(true, [3, 1], 0), [(0, 1.0), (1, 0.0)]);
    }

    #[test]
    fn cubic_weights_are_those_of_a_cell_at_cells_and_one_in_sum() {
        let aligned = sampling(Mode::Cubic, true, [5, 5]);
        assert_eq!(aligned.taps(2).iter().map(|tap| tap.1).collect::<Vec<_>>(), [0.0, 1.0, 0.0, 0.0]);
        for o in 0..7 {
            let sum: f64 = sampling(Mode::Cubic, false, [5, 7]).taps(o).iter().map(|tap| tap.1).sum();
            assert!((sum - 1.0).abs() < 1e-6, "{o}: {sum}");
        }
    }

    #[test]
    fn a_scale_decides_the_step() {
        let given = Sampling::new(DType::F32, Mode::Linear, false, [5, 12], Some(2.5));
        assert_eq!(given.step, f64::from(0.4f32));
        assert_eq!(sampling(Mode::Linear, false, [5, 12]).step, f64::from(5.0f32 / 12.0));
        let double = Sampling::new(DType::F64, Mode::Nearest, false, [5, 12], None);
        assert!(!double.double, "nearest cells are found in f32");
    }
}
