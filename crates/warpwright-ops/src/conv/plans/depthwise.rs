//! Plans of depthwise kernels.

use warpwright_runtime::LaunchStep;

use super::{Planner, Tensors};
use crate::PlanError;
use crate::conv::depthwise::{self, Depthwise, DepthwiseArgs};
use crate::conv::{Axis, Conv, Layout, OP, Pass, tuning};
use crate::gemm::MAX_SIDE;
use crate::gemm::epilogue::{EpilogueArgs, Program, sums_dtype};
use crate::plan::{self, small};

impl Planner<'_> {
    /// The kernel for channels that have a filter of their own each, if there is one.
    pub(super) fn depthwise_kernel(&self, pass: Pass, program: Program) -> Option<Depthwise> {
        let Conv { dtype, layout, channels, filters, groups, axes: [depth, height, width], batch, .. } =
            *self.conv;
        let stride = if height == Axis::ONE { width.stride } else { height.stride };
        let taps = (small(height.kernel), small(width.kernel));
        let known = layout == Layout::ChannelsLast
            && groups == channels
            && filters == channels
            && depth == Axis::ONE
            && [height, width].iter().all(|axis| axis.dilation == 1)
            && width.stride == stride
            && depthwise::STRIDES.contains(&small(stride))
            && Depthwise::has(dtype, taps)
            && batch > 0
            && self.sizes.x > 0;
        if !known {
            return None;
        }
        let left = |axis: &Axis| if pass == Pass::BackwardX { small(axis.padding[0] % stride) } else { 0 };
        let kernel = Depthwise {
            dtype,
            pass,
            taps,
            stride: small(stride),
            left: (left(&height), left(&width)),
            width: Depthwise::width(dtype, taps, channels, self.wide),
            finishes: program != Program::default(),
            scale: program.scale,
        };
        // Threads are counted in 32 bits.
        let [work, ..] = self.depthwise_sizes(&kernel);
        (work <= MAX_SIDE).then_some(kernel)
    }

    /// Threads, and vectors, strips, parts and the rows of one.
    fn depthwise_sizes(&self, kernel: &Depthwise) -> [usize; 5] {
        let [_, (_, rows), (_, cols)] = [0, 1, 2].map(|axis| self.sides(kernel.pass, axis));
        let vectors = self.conv.channels / kernel.width as usize;
        let strips = cols.div_ceil(kernel.strip() as usize);
        let columns = self.conv.batch.saturating_mul(vectors).saturating_mul(strips);
        let part =
            tuning::depthwise_rows(self.target, columns, rows).next_multiple_of(kernel.stride as usize);
        let parts = rows.div_ceil(part);
        [columns.saturating_mul(parts), vectors, strips, parts, part]
    }

    /// By strips of channels.
    pub(super) fn depthwise(
        &mut self,
        kernel: &Depthwise,
        tensors: &Tensors,
        epilogue: &EpilogueArgs,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let Conv { dtype, batch, channels, axes, .. } = *self.conv;
        let [work, vectors, strips, parts, rows] = self.depthwise_sizes(kernel);
        let weight = kernel.pass == Pass::BackwardWeight;
        let grid = if weight {
            let [across, ..] = plan::cover(OP, vectors, depthwise::LANES)?.unwrap_or([1; 3]);
            let strips = batch * parts * strips;
            [across, tuning::depthwise_blocks(self.target, across, strips), 1]
        } else {
            plan::cover(OP, work, depthwise::THREADS)?.unwrap_or([1; 3])
        };
        let sums = if weight { self.sizes.weight.saturating_mul(grid[1] as usize) } else { 0 };
        let (at, _) = self.reserve(self.base, sums.saturating_mul(sums_dtype(dtype).bytes()))?;
        let y = if weight { self.workspace.arg_at(at as u64) } else { tensors.y_at(0) };
        let axis = |i: usize| {
            let stride = kernel.stride as usize;
            let padding = axes[i].padding[0];
            let padding = if kernel.pass == Pass::BackwardX { padding / stride } else { padding };
            depthwise::AxisArgs {
                input: small(axes[i].input),
                output: small(self.sizes.outputs[i]),
                padding: small(padding),
            }
        };
        let values = DepthwiseArgs {
            image: tensors.image.clone(),
            other: tensors.other.clone(),
            to: tensors.ends.results(y),
            h: axis(1),
            w: axis(2),
            channels: small(channels),
            vectors: small(vectors),
            strips: small(strips),
            parts: small(parts),
            images: small(batch),
            rows: small(rows),
            epilogue: epilogue.clone(),
        };
        let mut launches = vec![plan::launch(OP, kernel, values, self.target, grid)?];
        if weight {
            launches.push(self.sum((at, grid[1]), tensors.y_at(0), self.sizes.weight, false)?);
        }
        Ok(launches)
    }
}
