//! Plans of the kernel that gathers images element by element.

use warpwright_dsl::KernelArgs;
use warpwright_dsl::divide::ExactDivisorArgs;
use warpwright_runtime::LaunchStep;

use super::{Epilogue, Planner, Tensors};
use crate::PlanError;
use crate::conv::gather::{self, Gather, GatherArgs};
use crate::conv::{Axis, Conv, OP, Pass, Sizes, tuning};
use crate::gemm::epilogue::sums_dtype;
use crate::gemm::plain::SIDE;
use crate::plan::{self, small};

impl Planner<'_> {
    /// On the ordinary units.
    pub(super) fn gather(
        &mut self,
        pass: Pass,
        tensors: &Tensors,
        (epilogue, program): &Epilogue,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let Conv { dtype, layout, weight_layout, batch, groups, .. } = *self.conv;
        let Sizes { taps, pixels_in, pixels_out, .. } = self.sizes;
        let (channels, filters) = self.of_group();
        // In taps that are a stride apart a dilation would be a phase too.
        let dense = self.conv.axes.iter().all(|axis| axis.dilation == 1);
        let phases = self.conv.axes.map(|axis| match pass {
            Pass::BackwardX if dense && axis.stride <= axis.input => axis.stride,
            _ => 1,
        });
        let of_phase = [0, 1, 2].map(|axis| self.sides(pass, axis).1.div_ceil(phases[axis]));
        let (m, n, depth) = match pass {
            Pass::Forward => (batch * pixels_out, filters, channels * taps),
            Pass::BackwardX => (batch * of_phase.iter().product::<usize>(), channels, filters * taps),
            Pass::BackwardWeight => (filters, channels * taps, batch * pixels_out),
        };
        let side = SIDE as usize;
        let phased = groups.saturating_mul(phases.iter().product());
        let tiles = phased.saturating_mul(m.div_ceil(side).saturating_mul(n.div_ceil(side)));
        let grid = plan::cover(OP, tiles, 1)?.map_or(0, |[tiles, ..]| tiles);
        if grid == 0 {
            return Ok(Vec::new());
        }
        let part = match pass {
            Pass::BackwardWeight => tuning::gather_part(self.target, tiles as u64, depth as u64),
            _ => small(depth).max(1),
        };
        let parts = small(depth).div_ceil(part).max(1);
        let split = parts > 1;
        let sums = if split { self.sizes.weight } else { 0 };
        let bytes = sums.saturating_mul(parts as usize).saturating_mul(sums_dtype(dtype).bytes());
        let (at, _) = self.reserve(self.base, bytes)?;
        let (gathered, extents) = self.gathered(pass);
        let of_image = self.strides(gathered, extents.iter().product());
        let (of_result, result_pixels) = match pass {
            Pass::BackwardX => (self.conv.channels, pixels_in),
            _ => (self.conv.filters, pixels_out),
        };
        let mut step = of_image.pixel;
        let mut steps = [0; 3];
        for axis in [2, 1, 0] {
            steps[axis] = step;
            step *= extents[axis] as u64;
        }
        let axis = |i: usize| {
            let Axis { kernel, stride, padding, dilation, .. } = self.conv.axes[i];
            let (extent, pixels) = self.sides(pass, i);
            gather::AxisArgs {
                extent: small(extent),
                pixels: small(pixels),
                kernel: small(kernel),
                stride: small(stride),
                padding: small(padding[0]),
                dilation: small(dilation),
                by_stride: ExactDivisorArgs::new(small(stride)),
                phases: small(phases[i]),
                of_phase: small(of_phase[i]),
                step: steps[i],
            }
        };
        let y = if split { self.workspace.arg_at(at as u64) } else { tensors.y_at(0) };
        let values = GatherArgs {
            image: tensors.image.clone(),
            other: tensors.other.clone(),
            to: tensors.ends.results(y),
            d: axis(0),
            h: axis(1),
            w: axis(2),
            m: small(m),
            n: small(n),
            depth: small(depth),
            part,
            sums: sums as u64,
            channels: small(gathered / groups),
            of_image,
            of_pixels: self.strides(of_result, result_pixels),
            filter: small(channels * taps),
            epilogue: epilogue.clone(),
        }
        .values();
        let kernel = Gather { dtype, pass, layout, weight: weight_layout, split, scale: program.scale };
        let kernel = plan::recorded(OP, &kernel, self.target)?;
        let mut launches = vec![LaunchStep::new(kernel, [grid, parts, 1], values)];
        if split {
            launches.push(self.sum((at, parts), tensors.y_at(0), sums, false)?);
        }
        Ok(launches)
    }
}
