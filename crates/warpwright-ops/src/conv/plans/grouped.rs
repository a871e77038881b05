//! Plans of groups of several channels whose image is brought to shared memory once.

use warpwright_dsl::KernelArgs;
use warpwright_dsl::divide::DivisorArgs;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_runtime::LaunchStep;

use super::implicit::Side;
use super::{Epilogue, Planner, Tensors};
use crate::PlanError;
use crate::conv::grouped::{self, AxisArgs, Grouped, GroupedArgs};
use crate::conv::tuning::{self, GroupBox};
use crate::conv::{Axis, Conv, Layout, OP, Pass};
use crate::gemm::epilogue::{Program, sums_dtype};
use crate::plan::{self, small};

/// Copies of 16 bytes, and products of `bf16`, exist from here.
const LEAST_SM: u32 = 80;
/// Strides, whose pixels are told apart by shifts.
const STRIDES: [usize; 2] = [1, 2];

impl Planner<'_> {
    /// The kernel for groups of several channels, if there is one.
    pub(super) fn grouped_kernel(&self, pass: Pass, program: Program) -> Option<Grouped> {
        let Conv { dtype, layout, weight_layout, batch, channels, groups, axes, .. } = *self.conv;
        let (of_x, of_y) = self.of_group();
        let strides = if pass == Pass::BackwardX { &STRIDES[..1] } else { &STRIDES[..] };
        let kernel = Grouped { dtype, pass, channels: small(of_x), taps: small(self.sizes.taps), program };
        let known = self.wide
            && self.tile.is_none()
            && self.target.sm >= LEAST_SM
            && layout == Layout::ChannelsLast
            && (weight_layout == Layout::ChannelsLast || self.sizes.taps == 1)
            && groups > 1
            && of_x == of_y
            && channels.is_multiple_of(8)
            && axes[0] == Axis::ONE
            && axes.iter().all(|axis| strides.contains(&axis.stride))
            && batch > 0
            && self.sizes.x > 0
            && kernel.exists();
        (known && self.group_box(&kernel).is_some()).then_some(kernel)
    }

    /// The dimensions of a pass without phases.
    fn group_sides(&self, pass: Pass) -> [Side; 3] {
        self.whole_phases(pass)[0]
    }

    fn group_box(&self, kernel: &Grouped) -> Option<GroupBox> {
        let [_, h, w] = self.group_sides(kernel.pass);
        let along = |side: &Side| (side.taps, side.step, side.dilation);
        let results = [self.conv.batch, h.pixels, w.pixels];
        let shared = DeviceLimits::of(self.target).shared_per_block;
        tuning::group_box(kernel, results, [along(&h), along(&w)], shared)
    }

    /// Slices of 64 channels of all images, box by box.
    pub(super) fn grouped(
        &mut self,
        kernel: &Grouped,
        tensors: &Tensors,
        epilogue: &Epilogue,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let Conv { dtype, batch, channels, filters, .. } = *self.conv;
        let pass = kernel.pass;
        let [_, h, w] = self.group_sides(pass);
        let of_box = self.group_box(kernel).ok_or_else(|| {
            Conv::refused("kernel", self.sizes.taps, "such that a box of an image has room")
        })?;
        let results = [batch, h.pixels, w.pixels];
        let [of_images, of_rows, of_cols] = [0, 1, 2].map(|i| results[i].div_ceil(of_box.results[i]));
        let boxes = of_images * of_rows * of_cols;
        let slices = channels.div_ceil(grouped::SLICE as usize);
        let (stage, bytes) = kernel.bytes(of_box.pixels());
        let parts = tuning::group_blocks(self.target, kernel, boxes, slices, bytes);
        let weight = pass == Pass::BackwardWeight;
        let sums = if weight { self.sizes.weight.saturating_mul(parts) } else { 0 };
        let (at, _) = self.reserve(self.base, sums.saturating_mul(sums_dtype(dtype).bytes()))?;
        let y = if weight { self.workspace.arg_at(at as u64) } else { tensors.y_at(0) };
        let extents = self.gathered(pass).1;
        let axis = |side: &Side, i: usize, boxes: usize| AxisArgs {
            results: small(side.pixels),
            extent: small(extents[i]),
            shift: side.step.trailing_zeros(),
            first: (side.lower as i32).cast_unsigned(),
            dilation: small(side.dilation),
            of_box: DivisorArgs::new(small(of_box.results[i])),
            halo: DivisorArgs::new(small(of_box.halo[i - 1])),
            boxes: DivisorArgs::new(small(boxes)),
            taps: DivisorArgs::new(small(side.taps)),
        };
        let values = GroupedArgs {
            image: tensors.image.clone(),
            other: tensors.other.clone(),
            to: tensors.ends.results(y),
            h: axis(&h, 1, of_rows),
            w: axis(&w, 2, of_cols),
            images: small(batch),
            of_box: small(of_box.results[0]),
            channels: small(channels),
            slices: DivisorArgs::new(small(slices)),
            parts: small(parts),
            boxes: small(boxes),
            halo: of_box.pixels() as u32,
            stage: stage as u32,
            sums: self.sizes.weight as u64,
        }
        .values();
        let grid = plan::cover(OP, slices.saturating_mul(parts), 1)?.unwrap_or([1; 3]);
        let recorded = plan::recorded(OP, kernel, self.target)?;
        let mut launches = vec![plan::launch_step(OP, recorded, grid, values, bytes as u32)?];
        if weight {
            // The channels of all taps lie side by side.
            let (sums, columns) = ((at, small(parts)), (self.sizes.weight, filters));
            launches.push(self.add_parts(pass, tensors, sums, columns, true, epilogue)?);
        }
        Ok(launches)
    }
}
