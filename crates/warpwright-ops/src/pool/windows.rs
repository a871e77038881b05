//! Windows: which cells of the input a cell of the output is made of, along each axis, and the other way around.

use warpwright_dsl::cells::CellGridArgs;

use crate::PlanError;

/// Bound of what windows reach along an axis.
const MAX_EXTENT: u64 = (1 << 31) - 1;

/// Columns that kernels may reach behind the last one of a window.
const LOOKAHEAD: u64 = 4;

/// Windows of one size at regular distances. Along an axis of `n` cells, window `o` has the cells
/// `o * stride - padding + t * dilation` for `t` from 0 to `kernel - 1`, as far as the input has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindows {
    /// Cells of a window along depth, height and width.
    pub kernel: [usize; 3],
    /// Cells from a window to the next.
    pub stride: [usize; 3],
    /// Cells that the first window begins before the input; at most half of what a window spans.
    pub padding: [usize; 3],
    /// Cells from one cell of a window to the next.
    pub dilation: [usize; 3],
    /// Whether a last window may end behind the padding, if it begins before it.
    pub ceil_mode: bool,
}

impl SlidingWindows {
    /// Windows side by side: their stride is their size, nothing is padded.
    pub const fn tiling(kernel: [usize; 3]) -> Self {
        Self { kernel, stride: kernel, padding: [0; 3], dilation: [1; 3], ceil_mode: false }
    }
}

/// How the output is divided into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Windows {
    /// Of one size.
    Sliding(SlidingWindows),
    /// So many that the output has these extents: window `o` of an axis has the cells from `floor(o n / output)` to
    /// `ceil((o + 1) n / output)`. They overlap where `output` does not divide `n`.
    Adaptive {
        /// Extents of the output along depth, height and width.
        output: [usize; 3],
    },
}

/// The windows of an axis, all numbers below 2^31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisWindows {
    /// Cells of the input.
    pub input: u32,
    /// Cells of the output.
    pub output: u32,
    /// How they lie; `None` where they are adaptive and share cells.
    pub sliding: Option<Sliding>,
}

/// Windows of one size along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliding {
    /// Cells of a window.
    pub kernel: u32,
    /// Cells from a window to the next.
    pub stride: u32,
    /// Cells that the first window begins before the input.
    pub padding: u32,
    /// Cells from one cell of a window to the next.
    pub dilation: u32,
}

impl Sliding {
    /// Cells from the first of a window to behind its last.
    pub const fn span(self) -> u32 {
        (self.kernel - 1) * self.dilation + 1
    }
}

impl AxisWindows {
    /// The cells of window `o` that the input has: the first, the end, and the step between them.
    pub fn cells(self, o: u32) -> (u32, u32, u32) {
        let (input, o) = (u64::from(self.input), u64::from(o));
        let Some(Sliding { stride, padding, dilation, .. }) = self.sliding else {
            let output = u64::from(self.output);
            return ((o * input / output) as u32, ((o + 1) * input).div_ceil(output) as u32, 1);
        };
        let start = o as i64 * i64::from(stride) - i64::from(padding);
        let end = (start + i64::from(self.span())).clamp(0, i64::from(self.input));
        let skipped = u64::try_from(-start).unwrap_or(0).div_ceil(u64::from(dilation));
        let first = start + (skipped * u64::from(dilation)) as i64;
        (first as u32, end as u32, dilation)
    }

    pub(crate) fn span(self) -> u32 {
        self.sliding.map_or(1, Sliding::span)
    }
}

/// The windows along depth, height and width.
///
/// # Errors
/// A number is 0 where it must not be, a window does not fit the input, the padding is more than half of a window, or the extents
/// leave the range of the kernels.
pub(crate) fn along_axes(
    op: &'static str,
    input: [usize; 3],
    windows: &Windows,
) -> Result<[AxisWindows; 3], PlanError> {
    let mut axes = [AxisWindows { input: 1, output: 1, sliding: None }; 3];
    for (i, axis) in axes.iter_mut().enumerate() {
        *axis = along(op, input[i], windows, i)?;
    }
    // Windows that share no cells are of one size, which their kernels find without divisions of 64 bits.
    let whole = axes.iter().all(|axis| axis.sliding.is_none() && axis.input.is_multiple_of(axis.output));
    if whole {
        for axis in &mut axes {
            let size = axis.input / axis.output;
            axis.sliding = Some(Sliding { kernel: size, stride: size, padding: 0, dilation: 1 });
        }
    }
    let plane = |of: fn(&AxisWindows) -> u32| {
        let product = axes.iter().try_fold(1u64, |n, axis| n.checked_mul(of(axis).into()));
        product.filter(|n| *n <= CellGridArgs::MAX_CHUNK)
    };
    for (parameter, of) in
        [("input", (|axis| axis.input) as fn(&AxisWindows) -> u32), ("output", |axis| axis.output)]
    {
        if plane(of).is_none() {
            let got = format!("{:?}", axes.map(|axis| of(&axis)));
            return Err(PlanError::refused(
                op,
                parameter,
                got,
                "so small that a plane has at most 2^31 - 1024 cells",
            ));
        }
    }
    Ok(axes)
}

fn along(op: &'static str, input: usize, windows: &Windows, i: usize) -> Result<AxisWindows, PlanError> {
    let refuse = |parameter, got: usize, expected| Err(PlanError::refused(op, parameter, got, expected));
    let fits = |n: usize| u64::try_from(n).is_ok_and(|n| n <= MAX_EXTENT);
    let positive = |n: usize| n > 0 && fits(n);
    if !positive(input) {
        return refuse("input", input, "from 1 to 2^31 - 1");
    }
    let of_input = input as u32;
    let windows = match windows {
        Windows::Sliding(windows) => windows,
        Windows::Adaptive { output } => {
            let output = output[i];
            if !positive(output) {
                return refuse("output", output, "from 1 to 2^31 - 1");
            }
            return Ok(AxisWindows { input: of_input, output: output as u32, sliding: None });
        }
    };
    let [kernel, stride, padding, dilation] =
        [windows.kernel, windows.stride, windows.padding, windows.dilation].map(|of| of[i]);
    for (parameter, n) in [("kernel", kernel), ("stride", stride), ("dilation", dilation)] {
        if !positive(n) {
            return refuse(parameter, n, "from 1 to 2^31 - 1");
        }
    }
    let span = (kernel as u64 - 1) * dilation as u64 + 1;
    if !fits(padding) || padding as u64 > span / 2 {
        return refuse("padding", padding, "at most half of what a window spans");
    }
    let (padded, stride_wide) = (input as u64 + 2 * padding as u64, stride as u64);
    let reach = padded.saturating_add(span).saturating_add(stride_wide + LOOKAHEAD * dilation as u64);
    if reach > MAX_EXTENT {
        return refuse("kernel", kernel, "so small that windows end before 2^31 cells");
    }
    if span > padded {
        return refuse("kernel", kernel, "so small that a window fits the padded input");
    }
    let room = padded - span;
    let whole = if windows.ceil_mode { room.div_ceil(stride_wide) } else { room / stride_wide } + 1;
    let begins_behind = windows.ceil_mode && (whole - 1) * stride_wide >= (input + padding) as u64;
    let output = (whole - u64::from(begins_behind)) as u32;
    let [kernel, stride, padding, dilation] = [kernel, stride, padding, dilation].map(|n| n as u32);
    let sliding = Some(Sliding { kernel, stride, padding, dilation });
    Ok(AxisWindows { input: of_input, output, sliding })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(
        input: usize,
        [kernel, stride, padding, dilation]: [usize; 4],
        ceil_mode: bool,
    ) -> Result<AxisWindows, PlanError> {
        let windows = SlidingWindows {
            kernel: [1, 1, kernel],
            stride: [1, 1, stride],
            padding: [0, 0, padding],
            dilation: [1, 1, dilation],
            ceil_mode,
        };
        along_axes("max_pool", [1, 1, input], &Windows::Sliding(windows)).map(|axes| axes[2])
    }

    /// Extents that PyTorch gives.
    #[test]
    fn extents_are_those_of_pytorch() {
        let output = |input, numbers, ceil| axis(input, numbers, ceil).expect("windows").output;
        assert_eq!(output(112, [3, 2, 1, 1], false), 56);
        assert_eq!(output(112, [3, 2, 0, 1], false), 55);
        assert_eq!(output(112, [3, 2, 0, 1], true), 56);
        assert_eq!(output(7, [2, 2, 0, 1], false), 3);
        assert_eq!(output(7, [2, 2, 0, 1], true), 4);
        // The window that would begin in the padding behind the input is left out.
        assert_eq!(output(3, [2, 2, 1, 1], true), 2);
        assert_eq!(output(10, [3, 1, 0, 2], false), 6);
        assert_eq!(output(1, [1, 5, 0, 1], false), 1);
        assert_eq!(output(3, [1000, 1, 500, 1], false), 4);
    }

    #[test]
    fn windows_are_cut_to_the_input() {
        let windows = axis(7, [3, 2, 1, 1], false).expect("windows");
        let cells: Vec<_> = (0..windows.output).map(|o| windows.cells(o)).collect();
        assert_eq!(cells, [(0, 2, 1), (1, 4, 1), (3, 6, 1), (5, 7, 1)]);
        // The cells at -2, 1 and 4, and at -1, 2 and 5.
        let windows = axis(6, [3, 1, 2, 3], false).expect("windows");
        assert_eq!((windows.cells(0), windows.cells(1)), ((1, 5, 3), (2, 6, 3)));
        let adaptive = AxisWindows { input: 7, output: 3, sliding: None };
        let cells: Vec<_> = (0..3).map(|o| adaptive.cells(o)).collect();
        assert_eq!(cells, [(0, 3, 1), (2, 5, 1), (4, 7, 1)]);
        let spread = AxisWindows { input: 2, output: 3, sliding: None };
        let cells: Vec<_> = (0..3).map(|o| spread.cells(o)).collect();
        assert_eq!(cells, [(0, 1, 1), (0, 2, 1), (1, 2, 1)]);
    }

    #[test]
    fn windows_without_a_meaning_are_refused() {
        let refused = |input, numbers, name: &str| {
            let error = axis(input, numbers, false).expect_err("no windows");
            assert!(matches!(error, PlanError::Parameter { parameter, .. } if parameter == name), "{error}");
        };
        refused(0, [2, 2, 0, 1], "input");
        refused(5, [0, 2, 0, 1], "kernel");
        refused(5, [2, 0, 0, 1], "stride");
        refused(5, [2, 2, 0, 0], "dilation");
        refused(5, [2, 2, 2, 1], "padding");
        refused(5, [7, 1, 0, 1], "kernel");
        refused(5, [2, 1, 0, 1 << 30], "kernel");
        refused(5, [2, usize::MAX, 0, 1], "stride");
        refused(5, [usize::MAX, 1, usize::MAX / 2, usize::MAX], "kernel");
        let adaptive =
            |output| along_axes("adaptive_max_pool", [1 << 16, 1 << 15, 1], &Windows::Adaptive { output });
        assert!(matches!(adaptive([1, 1, 1]), Err(PlanError::Parameter { parameter: "input", .. })));
        let whole = along_axes("adaptive_max_pool", [1, 6, 7], &Windows::Adaptive { output: [1, 3, 1] });
        let sizes = whole.expect("windows").map(|axis| axis.sliding.map(|sliding| sliding.stride));
        assert_eq!(sizes, [Some(1), Some(2), Some(7)]);
        let zero = along_axes("adaptive_max_pool", [1, 5, 5], &Windows::Adaptive { output: [1, 0, 1] });
        assert!(matches!(zero, Err(PlanError::Parameter { parameter: "output", .. })));
    }
}
