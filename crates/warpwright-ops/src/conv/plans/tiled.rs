//! Plans of kernels whose tiles ordinary copies bring.

use warpwright_dsl::KernelArgs;
use warpwright_dsl::divide::DivisorArgs;
use warpwright_runtime::LaunchStep;

use super::implicit::{ROWS, Side};
use super::{Ends, Epilogue, Planner, Tensors};
use crate::PlanError;
use crate::conv::tiled::{self, TiledArgs, TiledConv};
use crate::conv::tuning::{self, Kind, PIECES};
use crate::conv::{Conv, Layout, MAX_SIDE, OP, Pass};
use crate::gemm::epilogue::{EpilogueArgs, Program, sums_dtype};
use crate::gemm::tuning::Config;
use crate::plan::{self, small};

impl Planner<'_> {
    /// Bytes that a copy of neighbouring channels of a group can have.
    pub(super) fn piece(&self, pass: Pass) -> Option<u32> {
        let bytes = self.conv.dtype.bytes();
        let (channels, filters) = self.of_group();
        let whole = |of: usize, piece: u32| (of * bytes).is_multiple_of(piece as usize);
        let copies = |piece: u32| {
            let aligned = self.wide || piece as usize == bytes;
            aligned && whole(channels, piece) && (pass == Pass::Forward || whole(filters, piece))
        };
        PIECES.into_iter().find(|piece| copies(*piece))
    }

    /// The products of a pass, as tiles are chosen for them.
    const fn kind(&self, pass: Pass) -> Kind {
        let Conv { dtype, precision, .. } = *self.conv;
        Kind { dtype, precision, target: self.target, pass }
    }

    /// Whether ordinary copies can bring the operands of a pass to the tiles of a product.
    pub(super) fn has_tiles(&self, pass: Pass) -> bool {
        let Conv { layout, weight_layout, batch, groups, .. } = *self.conv;
        let steps = [self.image_steps(pass)[0], self.pixel_steps(pass)[0]];
        layout == Layout::ChannelsLast
            && (weight_layout == Layout::ChannelsLast || self.sizes.taps == 1 || self.of_group().0 == 1)
            && batch > 0
            && self.sizes.x > 0
            && self.has_phases(pass)
            && steps.into_iter().all(|step| step <= MAX_SIDE as u64)
            && self.piece(pass).is_some_and(|piece| {
                // Without tensor cores for its elements, or with few of a group for a tile, there is nothing to be gained.
                !tuning::tiled_configs(&self.kind(pass), piece).is_empty()
                    && (groups == 1 || self.of_group().0.min(self.of_group().1) > 1)
            })
    }

    /// Elements from one pixel of the image that is gathered to the next along each dimension, channels last.
    fn image_steps(&self, pass: Pass) -> [u64; 3] {
        let (channels, [_, height, width]) = self.gathered(pass);
        let w = channels as u64;
        let h = w * width as u64;
        [h * height as u64, h, w]
    }

    /// In tiles that ordinary copies bring.
    pub(super) fn tiled(
        &mut self,
        pass: Pass,
        tensors: &Tensors,
        epilogue: &Epilogue,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let phases = if self.conv.groups > 1 { self.whole_phases(pass) } else { self.phases(pass) };
        self.each_phase(&phases, tensors, |planner, sides| {
            planner.tiled_product(pass, tensors, sides, epilogue)
        })
    }

    /// The launches of a product.
    fn tiled_product(
        &mut self,
        pass: Pass,
        tensors: &Tensors,
        sides: &[Side; 3],
        epilogue: &Epilogue,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let Conv { dtype, batch, groups, channels, filters, .. } = *self.conv;
        let (of_x, of_y) = self.of_group();
        let pixels = sides.iter().fold(batch, |n, side| n * side.pixels);
        let taps = sides.iter().fold(1, |n, side| n * side.taps);
        let filter = of_x * self.sizes.taps;
        let (m, n, depth) = match pass {
            Pass::Forward => (pixels, of_y, filter),
            Pass::BackwardX => (pixels, of_x, taps * of_y),
            Pass::BackwardWeight => (of_y, filter, pixels),
        };
        // Rows of an image that have one tap each are products like those of groups.
        let products = sides[ROWS].products;
        let scattered = products > 1 || sides.iter().any(|side| side.apart > 1);
        let most = if scattered { 1 } else { u32::MAX };
        let shape = [m as u64, n as u64, depth as u64];
        let piece = self.piece(pass).unwrap_or(0);
        let count = groups * products;
        let choice = tuning::choose_tiled(&self.kind(pass), shape, count as u64, (piece, most), self.tile);
        let choice = choice.ok_or_else(|| Conv::refused("filters", filters, "such that a tile has room"))?;
        let parts = small(depth).div_ceil(choice.part).max(1);
        let split = parts > 1 || (pass == Pass::BackwardWeight && self.own_weight.is_some());
        let sums = (m * n).saturating_mul(count);
        let bytes = if split { sums.saturating_mul(parts as usize) } else { 0 };
        let (at, _) = self.reserve(self.base, bytes.saturating_mul(sums_dtype(dtype).bytes()))?;
        let Program { scale, residual, .. } = if split { Program::default() } else { epilogue.1 };
        let ends = if split { Ends::none() } else { tensors.ends.clone() };
        let kernel =
            TiledConv { dtype, pass, dims: self.dims(), config: choice.config, split, scale, residual };
        let tiles = choice.config.tiles();
        let blocks = m.div_ceil(tiles.rows as usize).saturating_mul(n.div_ceil(tiles.cols as usize));
        let grid = plan::cover(OP, blocks.saturating_mul(count), 1)?.map_or([1; 3], |[x, ..]| [x, parts, 1]);
        let pixel_steps = self.pixel_steps(pass);
        let y = self.results_at(pass, tensors, sides, split.then_some(at));
        let (axes, first_tap) = self.tiled_axes(pass, sides);
        let gathered = self.gathered(pass).0 / groups;
        let (leading, of_group, leading_y, of_group_y) = match pass {
            Pass::BackwardX if products > 1 => {
                (filter, axes[ROWS].of_weight as usize, channels, pixel_steps[ROWS] as usize)
            }
            Pass::Forward => (filter, of_y * filter, filters, of_y),
            Pass::BackwardX => (filter, of_y * filter, channels, of_x),
            Pass::BackwardWeight => (filters, of_y, filter, of_y * filter),
        };
        let [d, h, w] = axes;
        let values = TiledArgs {
            image: tensors.image.clone(),
            other: tensors.other.clone(),
            to: ends.results(y),
            of_images: self.image_steps(pass)[0] * self.sides(pass, 0).0 as u64,
            of_group_image: if products > 1 { 0 } else { gathered as u64 },
            of_results: pixel_steps[0] * self.sides(pass, 0).1 as u64,
            d,
            h,
            w,
            groups: DivisorArgs::new(small(count)),
            m: small(m),
            n: small(n),
            depth: small(depth),
            part: choice.part,
            sums: sums as u64,
            channels: DivisorArgs::new(small(gathered)),
            leading: leading as u64,
            of_group: of_group as u64,
            leading_y: leading_y as u64,
            of_group_y: of_group_y as u64,
            filter: small(filter),
            first_tap,
            epilogue: if split { EpilogueArgs::NONE } else { epilogue.0.clone() },
        }
        .values();
        let (a, b) = kernel.factors().major;
        let shared = Config::Tiled(choice.config).shared_bytes(dtype, a, b);
        let recorded = plan::recorded(OP, &kernel, self.target)?;
        let mut launches = vec![plan::launch_step(OP, recorded, grid, values, shared)?];
        if split {
            // The channels of all taps are columns.
            let joined = pass == Pass::BackwardWeight;
            let (sums, columns) = ((at, parts), (sums, filters));
            launches.push(self.add_parts(pass, tensors, sums, columns, joined, epilogue)?);
        }
        Ok(launches)
    }

    /// The dimensions, and the elements of a filter before the first tap that takes part.
    fn tiled_axes(&self, pass: Pass, sides: &[Side; 3]) -> ([tiled::AxisArgs; 3], u32) {
        let mut tap = self.of_group().0;
        let (mut first_tap, mut of_weight) = (0, [0; 3]);
        for axis in [2, 1, 0] {
            first_tap += sides[axis].first * tap;
            of_weight[axis] = sides[axis].tap_step * tap;
            tap *= self.conv.axes[axis].kernel;
        }
        let (image, result) = (self.image_steps(pass), self.pixel_steps(pass));
        let extents = self.gathered(pass).1;
        let axes = [0, 1, 2].map(|i| {
            let Side { pixels, apart, lower, step, taps, dilation, .. } = sides[i];
            tiled::AxisArgs {
                pixels: DivisorArgs::new(small(pixels)),
                taps: DivisorArgs::new(small(taps)),
                extent: small(extents[i]),
                step: small(step),
                first: (lower as i32).cast_unsigned(),
                dilation: small(dilation),
                of_image: image[i] as u32,
                of_weight: small(of_weight[i]),
                of_result: apart as u64 * result[i],
            }
        });
        (axes, small(first_tap))
    }
}
