//! Kernels of one tap without strides: their passes are products of matrices as they lie.

use warpwright_dsl::{Elem, PanelTile};
use warpwright_ptx::DType;
use warpwright_runtime::LaunchStep;

use super::{Epilogue, Planner, Tensors};
use crate::PlanError;
use crate::conv::tuning::{Tile, multiplies_panels};
use crate::conv::{Axis, Conv, Layout, Pass};
use crate::gemm::epilogue::Program;
use crate::gemm::{GemmArgs, GemmDesc, WIDE};
use crate::plan::embedded::value_of;
use crate::plan::{Operation, Real};

/// Channels and filters at least where a product of `f32` as pairs of `f16` takes less time than one of tiles that are copied.
const LEAST_OF_PAIRS: usize = 512;

impl Planner<'_> {
    /// The product that a pass is, if it is one.
    fn product_of_matrices(&self, pass: Pass, program: Program) -> Option<GemmDesc> {
        let Conv { dtype, layout, batch, channels, filters, groups, axes, precision, .. } = *self.conv;
        let point = |axis: &Axis| (axis.kernel, axis.stride, axis.padding) == (1, 1, [0; 2]);
        let pixels = self.sizes.pixels_in;
        if matches!(self.tile, Some(Tile::Copied(_)))
            || groups > 1
            || batch == 0
            || pixels == 0
            || !axes.iter().all(point)
        {
            return None;
        }
        // Pairs of numbers cost more than the products of a short side.
        let short = channels.min(filters) < LEAST_OF_PAIRS;
        if short && dtype == DType::F32 && layout == Layout::ChannelsLast && self.has_tiles(pass) {
            return None;
        }
        let Program { scale, bias, residual, activation, .. } = program;
        // Products have no factors of columns.
        if scale {
            return None;
        }
        let desc = match (layout, pass) {
            (Layout::ChannelsLast, Pass::Forward) => {
                GemmDesc::new(dtype, [batch * pixels, filters, channels], false, true)
            }
            (Layout::ChannelsLast, Pass::BackwardX) => {
                GemmDesc::new(dtype, [batch * pixels, channels, filters], false, false)
            }
            (Layout::ChannelsLast, Pass::BackwardWeight) => {
                GemmDesc::new(dtype, [filters, channels, batch * pixels], true, false)
            }
            (Layout::ChannelsFirst, Pass::BackwardWeight) => return self.product_of_images(),
            // Biases of products belong to columns.
            (Layout::ChannelsFirst, _) if bias => return None,
            (Layout::ChannelsFirst, _) => {
                // Rows that begin anywhere are for products of another layout, where there are better ones.
                let aligned = (pixels * dtype.bytes()).is_multiple_of(WIDE as usize);
                if self.wide && !aligned && self.target.sm == 90 && dtype.bytes() == 2 {
                    return None;
                }
                let desc = match pass {
                    Pass::Forward => GemmDesc::new(dtype, [filters, pixels, channels], false, false),
                    _ => GemmDesc::new(dtype, [channels, pixels, filters], true, false),
                };
                // Every image has the same weight.
                GemmDesc { batch, stride_a: 0, ..desc }
            }
        };
        let beta = Real::new(f64::from(u8::from(residual)));
        Some(GemmDesc { beta, bias, activation, precision, ..desc })
    }

    /// The products of images with channels first whose sum is the gradient of the weight, if tensor copies reach them.
    fn product_of_images(&self) -> Option<GemmDesc> {
        let Conv { dtype, batch, channels, filters, precision, .. } = *self.conv;
        let pixels = self.sizes.pixels_in;
        let aligned = (pixels * dtype.bytes()).is_multiple_of(WIDE as usize);
        // Half of a slice at least is pixels of its image.
        let filled = 2 * pixels >= pixels.next_multiple_of(PanelTile::width_of(dtype) as usize);
        let fits = self.wide && aligned && filled && multiplies_panels(dtype, precision);
        let desc = GemmDesc::new(dtype, [filters, channels, pixels], false, true);
        (fits && self.own_weight.is_none()).then_some(GemmDesc { batch, precision, ..desc })
    }

    /// The steps of a pass as products of matrices, if it is one.
    pub(super) fn pointwise(
        &mut self,
        pass: Pass,
        tensors: &Tensors,
        epilogue: &Epilogue,
    ) -> Result<Option<Vec<LaunchStep>>, PlanError> {
        let Some(desc) = self.product_of_matrices(pass, epilogue.1) else { return Ok(None) };
        // Of channels first, the products of all images are added.
        let sums = pass == Pass::BackwardWeight && self.conv.layout == Layout::ChannelsFirst;
        let plan = if sums { desc.plan_of_sum(self.target)? } else { Some(desc.plan(self.target)?) };
        let Some(plan) = plan else { return Ok(None) };
        let bytes = usize::try_from(plan.workspace_bytes()).unwrap_or(usize::MAX);
        let (at, _) = self.reserve(self.base, bytes)?;
        let (image, other) = (value_of(&tensors.image), value_of(&tensors.other));
        // The weight is the left factor where pixels are columns, and `dy` in the gradient of the weight.
        let swapped = self.conv.layout == Layout::ChannelsFirst || pass == Pass::BackwardWeight;
        let (a, b) = if swapped { (other, image) } else { (image, other) };
        type Args<'a> = GemmArgs<'a>;
        let places = [
            (value_of(&Args::a.arg::<Elem>()), a),
            (value_of(&Args::b.arg::<Elem>()), b),
            (value_of(&Args::bias.arg::<Elem>()), value_of(&tensors.ends.bias)),
            (value_of(&Args::c.arg::<Elem>()), value_of(&tensors.ends.residual)),
            (value_of(&Args::y.arg::<Elem>()), value_of(&tensors.y_at(0))),
            (value_of(&Args::workspace.arg::<Elem>()), value_of(&self.workspace.arg_at::<Elem>(at as u64))),
        ];
        Ok(Some(plan.embedded(if self.wide { WIDE } else { 1 }, &places)))
    }
}
