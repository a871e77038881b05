//! Plans of images that tensor copies do not reach as they are: they are brought to a layout that they do, and results back.

use warpwright_dsl::{Elem, In, Out, PanelTile};
use warpwright_runtime::LaunchStep;

use super::{Epilogue, Order, OwnWeight, Planner, Tensors};
use crate::PlanError;
use crate::conv::relayout::{
    self, Interleave, InterleaveArgs, PackTaps, PackTapsArgs, Relayout, RelayoutArgs, VECTOR,
};
use crate::conv::{Axis, Conv, Layout, OP, Pass, tuning};
use crate::gemm::{MAX_LAYERS, WIDE};
use crate::plan::{self, small};

/// Channels that whole vectors of taps have.
const fn whole(channels: usize) -> usize {
    channels.next_multiple_of(VECTOR as usize)
}

/// How images are changed.
struct Change {
    /// The convolution of the changed images.
    conv: Conv,
    /// Taps along a row that are side by side as the channels of a pixel.
    row: Option<usize>,
    /// Whether they are so in the images as they lie, with channels last.
    folded: bool,
}

impl Planner<'_> {
    /// The convolution of images with channels last, and for tensor cores of whole vectors.
    fn changed(&self, pass: Pass) -> Change {
        let conv = *self.conv;
        let (layout, weight_layout) = (Layout::ChannelsLast, Layout::ChannelsLast);
        if conv.groups > 1 {
            return Change { conv: Conv { layout, weight_layout, ..conv }, row: None, folded: false };
        }
        let folded = Conv { layout, weight_layout, ..conv }.folded();
        let vectors = |channels: usize| channels.is_multiple_of(VECTOR as usize);
        if folded.axes != conv.axes
            && vectors(folded.channels)
            && (pass == Pass::Forward || vectors(conv.filters))
        {
            return Change { conv: folded, row: Some(conv.axes[2].kernel), folded: true };
        }
        // Copies bring 16 bytes of channels. Results may have any number of them.
        let aligned = |channels: usize| channels.next_multiple_of(WIDE as usize / conv.dtype.bytes());
        let filters = if pass == Pass::Forward { conv.filters } else { aligned(conv.filters) };
        let last = Conv { layout, weight_layout, channels: aligned(conv.channels), filters, ..conv };
        let [depth, height, width] = conv.axes;
        let packed = whole(width.kernel.saturating_mul(conv.channels));
        // A slice of tensor copies has channels of one tap: of few of them, those of all taps of a row. Others have those of several, but pad
        // them.
        let panels = self.target.sm == 90 && tuning::multiplies_panels(conv.dtype, conv.precision);
        let panel = PanelTile::width_of(conv.dtype) as usize;
        let slices = |channels: usize, taps: usize| match panels {
            true => channels.div_ceil(panel).saturating_mul(taps),
            false => channels.saturating_mul(taps),
        };
        let fewer = slices(packed, 1).saturating_mul(2) <= slices(last.channels, width.kernel);
        if pass == Pass::BackwardX || !fewer {
            return Change { conv: last, row: None, folded: false };
        }
        let axes = [depth, height, Axis::new(self.sizes.outputs[2], 1)];
        let conv = Conv { channels: packed, axes, ..last };
        Change { conv, row: Some(width.kernel), folded: false }
    }

    /// The steps of a pass with images in another layout, if there are other kernels for them then than those that gather.
    pub(super) fn prepared(
        &mut self,
        pass: Pass,
        tensors: &Tensors,
        epilogue: &Epilogue,
    ) -> Result<Option<Vec<LaunchStep>>, PlanError> {
        let conv = *self.conv;
        let Change { conv: changed, row, folded } = self.changed(pass);
        let Ok(sizes) = changed.check() else { return Ok(None) };
        let mut inner = Planner::new(&changed, sizes, self.target, self.workspace);
        (inner.wide, inner.tile) = (self.wide, self.tile);
        let copies = inner.has_copies(pass);
        let strips = inner.depthwise_kernel(pass, epilogue.1);
        let tiles = inner.has_tiles(pass);
        let grouped = inner.grouped_kernel(pass, epilogue.1);
        if !copies && !tiles && grouped.is_none() && (strips.is_none() || conv.layout == Layout::ChannelsLast)
        {
            return Ok(None);
        }
        (inner.base, inner.scratch) = (self.base, self.scratch);
        let mut steps = Vec::new();
        let same = |of: usize, changed: usize| conv.layout == Layout::ChannelsLast && of == changed;
        let (inputs, outputs) = (self.sizes.pixels_in, self.sizes.pixels_out);
        // Of a pixel as it lies.
        let of_pixel = if folded { conv.channels } else { changed.channels };
        let mut image = tensors.image.clone();
        let mut other = tensors.other.clone();
        let mut ends = tensors.ends.clone();
        // `dy` of both gradients is changed once.
        let filters = (conv.filters, changed.filters);
        if pass != Pass::Forward && !same(filters.0, filters.1) {
            let dy = if pass == Pass::BackwardX { &mut image } else { &mut other };
            let at = match self.dy {
                Some(at) => at,
                None => {
                    let from = dy.clone();
                    let at = inner.keep(sizes.y)?;
                    steps.push(inner.relayout(from, at, (conv.layout, outputs), filters)?);
                    (self.dy, self.base) = (Some(at), inner.base);
                    at
                }
            };
            *dy = self.workspace.written_at(at as u64);
        }
        if pass != Pass::BackwardX {
            let channels = (conv.channels, of_pixel);
            if row.is_some() && !folded {
                let at = inner.keep(sizes.x)?;
                steps.push(self.pack_taps(image, self.workspace.arg_at(at as u64), changed.channels)?);
                image = self.workspace.written_at(at as u64);
            } else if !same(channels.0, channels.1) {
                let at = inner.keep(sizes.x)?;
                steps.push(inner.relayout(image, at, (conv.layout, inputs), channels)?);
                image = self.workspace.written_at(at as u64);
            }
        }
        // Filters of one channel lie the same in both layouts.
        let kept = strips.is_some()
            || conv.weight_layout == Layout::ChannelsLast
                && row.is_none()
                && (conv.channels, conv.filters) == (changed.channels, changed.filters);
        if pass == Pass::BackwardWeight {
            inner.own_weight = (!kept).then_some(OwnWeight { conv, row });
        } else if !kept {
            let at = inner.keep(sizes.weight)?;
            let order = match folded {
                true => Order { padded: None, ..self.padded_weight(&changed, None) },
                false => self.padded_weight(&changed, row),
            };
            steps.push(inner.reorder(other, self.workspace.arg_at(at as u64), false, (1, 0), &order)?);
            other = self.workspace.written_at(at as u64);
        }
        // Results in the layout of products, and then in their own.
        let back = match pass {
            Pass::Forward if !same(conv.filters, changed.filters) => {
                Some((sizes.y, outputs, (changed.filters, conv.filters)))
            }
            Pass::BackwardX if !same(conv.channels, of_pixel) => {
                Some((sizes.x, inputs, (of_pixel, conv.channels)))
            }
            _ => None,
        };
        let mut y = tensors.y;
        let mut last = None;
        if let (true, Some((len, pixels, (of_products, own)))) = (epilogue.1.residual, back) {
            let at = inner.keep(len)?;
            steps.push(inner.relayout(ends.residual, at, (conv.layout, pixels), (own, of_products))?);
            ends.residual = self.workspace.written_at(at as u64);
        }
        if let Some((len, pixels, channels)) = back {
            let at = inner.keep(len)?;
            y = (self.workspace, at as u64);
            let from = self.workspace.written_at(at as u64);
            let layouts = (Layout::ChannelsLast, conv.layout);
            let pixels = (conv.batch, pixels);
            last = Some(self.copy_images((from, tensors.y_at(0)), layouts, pixels, channels)?);
        }
        let tensors = Tensors { image, other, ends, y };
        steps.extend(match strips {
            Some(kernel) if !copies => inner.depthwise(&kernel, &tensors, &epilogue.0)?,
            _ if copies => inner.implicit(pass, &tensors, epilogue)?,
            _ => match grouped {
                Some(grouped) => inner.grouped(&grouped, &tensors, epilogue)?,
                None => inner.tiled(pass, &tensors, epilogue)?,
            },
        });
        steps.extend(last);
        self.scratch = self.scratch.max(inner.scratch);
        Ok(Some(steps))
    }

    /// Keeps room for so many elements until the end, and says where.
    pub(super) fn keep(&mut self, elements: usize) -> Result<usize, PlanError> {
        let (at, end) = self.reserve(self.base, elements.saturating_mul(self.conv.dtype.bytes()))?;
        self.base = end;
        Ok(at)
    }

    /// Images of a layout and so many pixels and channels to the workspace, with channels last.
    fn relayout(
        &self,
        from: In<Elem>,
        at: usize,
        (layout, pixels): (Layout, usize),
        channels: (usize, usize),
    ) -> Result<LaunchStep, PlanError> {
        let to = self.workspace.arg_at(at as u64);
        let batch = self.conv.batch;
        self.copy_images((from, to), (layout, Layout::ChannelsLast), (batch, pixels), channels)
    }

    /// Images of so many pixels and channels in another layout, zeros in what channels there are behind those.
    pub(super) fn copy_images(
        &self,
        (x, y): (In<Elem>, Out<Elem>),
        (from, to): (Layout, Layout),
        (batch, pixels): (usize, usize),
        (channels, to_channels): (usize, usize),
    ) -> Result<LaunchStep, PlanError> {
        let dtype = self.conv.dtype;
        let vector = Interleave::width(dtype) as usize;
        let few = channels == to_channels && Interleave::CHANNELS.contains(&small(channels));
        if self.wide && from != to && few && pixels.is_multiple_of(vector) {
            let vectors = batch.saturating_mul(pixels / vector);
            let grid = plan::cover(OP, vectors, relayout::THREADS)?.unwrap_or([1; 3]);
            let values = InterleaveArgs { x, y, pixels: small(pixels), vectors: small(vectors) };
            let kernel = Interleave { dtype, to, channels: small(channels) };
            return plan::launch(OP, &kernel, values, self.target, grid);
        }
        let side = relayout::SIDE as usize;
        let blocks = pixels.div_ceil(side).saturating_mul(to_channels.div_ceil(side)).saturating_mul(batch);
        let grid = plan::cover(OP, blocks, 1)?.unwrap_or([1; 3]);
        let even = [pixels, channels, to_channels].iter().all(|extent| extent.is_multiple_of(2));
        let width = if even && self.wide { Relayout::WIDE } else { 1 };
        let values = RelayoutArgs {
            x,
            y,
            pixels: small(pixels),
            channels: small(channels),
            to_channels: small(to_channels),
        };
        plan::launch(OP, &Relayout { dtype, from, to, width }, values, self.target, grid)
    }

    /// Taps of rows side by side, as `channels`.
    fn pack_taps(&self, x: In<Elem>, y: Out<Elem>, channels: usize) -> Result<LaunchStep, PlanError> {
        let Conv { dtype, batch, axes: [depth, height, width], .. } = *self.conv;
        let rows = batch * depth.input * height.input;
        let vectors = channels / VECTOR as usize;
        let outputs = self.sizes.outputs[2];
        let strides = self.strides(self.conv.channels, self.sizes.pixels_in);
        let values = PackTapsArgs {
            x,
            y,
            rows: small(rows),
            of_image: small(depth.input * height.input),
            width: small(width.input),
            outputs: small(outputs),
            channels: small(self.conv.channels),
            taps: small(width.kernel),
            stride: small(width.stride),
            padding: small(width.padding[0]),
            dilation: small(width.dilation),
            vectors: small(vectors),
            step_image: strides.image,
            step_row: strides.pixel * width.input as u64,
            step_pixel: strides.pixel,
            step_channel: strides.channel,
        };
        let [x, ..] = plan::cover(OP, outputs * vectors, relayout::THREADS)?.unwrap_or([1; 3]);
        let grid = [x, small(rows.min(MAX_LAYERS)), 1];
        plan::launch(OP, &PackTaps { dtype }, values, self.target, grid)
    }

    /// The weight of changed images, zeros where it is padded: its order by that of the weight.
    fn padded_weight(&self, changed: &Conv, row: Option<usize>) -> Order {
        let Conv { filters, weight_layout, .. } = *self.conv;
        let (channels, taps) = (self.of_group().0, self.sizes.taps);
        let of_row = row.unwrap_or(1);
        // From one channel, and from one tap, to the next.
        let (channel, tap) = match weight_layout {
            Layout::ChannelsLast => (1, channels),
            Layout::ChannelsFirst => (taps, 1),
        };
        Order {
            outer: (filters, channels * taps),
            middle: (taps / of_row, of_row * tap),
            first: (of_row, tap),
            second: (channels, channel),
            padded: Some((changed.filters, changed.channels / changed.groups)),
        }
    }
}
