//! Plans of kernels with tensor copies.

use warpwright_dsl::{Elem, Im2colImage, In, KernelArgs, Out, PanelTile, TensorMapArg};
use warpwright_ptx::tensor_map::TensorMap;
use warpwright_ptx::{DType, TensorElement};
use warpwright_runtime::LaunchStep;

use super::{Ends, Epilogue, Order, OwnWeight, Planner, Tensors};
use crate::PlanError;
use crate::conv::exact::{Exact, ExactArgs};
use crate::conv::implicit::{self, ImageArgs, Implicit, ImplicitArgs};
use crate::conv::tuning::{self, Choice, Tile};
use crate::conv::weight::{self, FinishArgs, FinishParts, SumParts};
use crate::conv::{Axis, Conv, Layout, OP, Pass};
use crate::gemm::engine::{self, Store, WorkArgs};
use crate::gemm::epilogue::{Program, ResultArgs};
use crate::gemm::{Precision, WIDE};
use crate::plan::{self, small};

/// The largest stride that tensor copies go by.
const MAX_COPY_STRIDE: usize = 8;
/// The dimension of rows.
pub(super) const ROWS: usize = 1;
/// Launches of a gradient of `x`.
const MAX_PHASES: usize = 16;

/// A dimension as products of a pass go over it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    /// Pixels that there are products for, the first of them in the result, and from one to the next there.
    pub(super) pixels: usize,
    pub(super) phase: usize,
    pub(super) apart: usize,
    /// Where the box of a copy begins and ends, counted from the ends of the image that is gathered, and its pixels from one to the next.
    pub(super) lower: isize,
    pub(super) upper: isize,
    pub(super) step: usize,
    /// Taps, the first of them among those of the weight, and from one to the next there and in the image.
    pub(super) taps: usize,
    pub(super) first: usize,
    pub(super) tap_step: usize,
    pub(super) dilation: usize,
    /// Products, each of one tap and one pixel of the result.
    pub(super) products: usize,
}

impl Side {
    /// One pixel, and one tap.
    const POINT: Self = Self {
        pixels: 1,
        phase: 0,
        apart: 1,
        lower: 0,
        upper: 0,
        step: 1,
        taps: 1,
        first: 0,
        tap_step: 1,
        dilation: 1,
        products: 1,
    };
}

impl Planner<'_> {
    /// The dimensions of kernels with tensor copies.
    pub(super) fn dims(&self) -> usize {
        let flat = self.conv.axes[0] == Axis::ONE;
        if flat { 2 } else { 3 }
    }

    /// A dimension of a pass; of the gradient of `x` that of the pixels that follow `phase`, a stride apart.
    fn side(&self, pass: Pass, axis: usize, phase: usize) -> Side {
        let Axis { input, kernel, padding, dilation, .. } = self.conv.axes[axis];
        if pass == Pass::BackwardX && axis == ROWS && kernel > 1 && (kernel, padding) == (input, [0; 2]) {
            // There is one output, of which each pixel has a tap.
            return Side { products: kernel, dilation, ..Side::POINT };
        }
        self.side_of_phase(pass, axis, phase)
    }

    /// The same of a product that goes through all taps of a pixel.
    fn side_of_phase(&self, pass: Pass, axis: usize, phase: usize) -> Side {
        let Axis { input, kernel, stride, padding, dilation } = self.conv.axes[axis];
        let outputs = self.sizes.outputs[axis];
        if pass == Pass::BackwardX {
            // Without a stride, `first` is 0 and what is left of a phase its padding.
            let (first, before) = match stride {
                1 => (0, padding[0]),
                _ => ((phase + padding[0]) % stride, (phase + padding[0]) / stride),
            };
            let taps = kernel.saturating_sub(first).div_ceil(stride);
            let pixels = input.saturating_sub(phase).div_ceil(stride);
            let lower = before as isize - (taps.saturating_sub(1) * dilation) as isize;
            let upper = lower + pixels as isize - outputs as isize;
            let (apart, tap_step) = (stride, stride);
            return Side {
                pixels,
                phase,
                apart,
                lower,
                upper,
                taps,
                first,
                tap_step,
                dilation,
                ..Side::POINT
            };
        }
        let [before, behind] = padding.map(|padding| padding as isize);
        let upper = behind - ((kernel - 1) * dilation) as isize;
        let (pixels, taps, step) = (outputs, kernel, stride);
        Side { pixels, lower: -before, upper, step, taps, dilation, ..Side::POINT }
    }

    /// The dimensions of each product of a pass: one, but of the gradient of `x` one for each phase of the strides.
    pub(super) fn phases(&self, pass: Pass) -> Vec<[Side; 3]> {
        self.of_phases(pass, |axis, phase| self.side(pass, axis, phase))
    }

    /// The same of products that go through all taps of a pixel.
    pub(super) fn whole_phases(&self, pass: Pass) -> Vec<[Side; 3]> {
        self.of_phases(pass, |axis, phase| self.side_of_phase(pass, axis, phase))
    }

    fn of_phases(&self, pass: Pass, side: impl Fn(usize, usize) -> Side) -> Vec<[Side; 3]> {
        let counts = self.conv.axes.map(|axis| if pass == Pass::BackwardX { axis.stride } else { 1 });
        let mut all = Vec::new();
        for d in 0..counts[0].min(self.conv.axes[0].input) {
            for h in 0..counts[1].min(self.conv.axes[1].input) {
                for w in 0..counts[2].min(self.conv.axes[2].input) {
                    all.push([(0, d), (1, h), (2, w)].map(|(axis, phase)| side(axis, phase)));
                }
            }
        }
        all
    }

    /// Whether tensor copies can bring the operands of a pass.
    pub(super) fn has_copies(&self, pass: Pass) -> bool {
        let Conv { dtype, layout, weight_layout, batch, channels, filters, groups, precision, .. } =
            *self.conv;
        let bytes = dtype.bytes();
        let whole = |channels: usize| (channels * bytes).is_multiple_of(WIDE as usize);
        let sides = match pass {
            Pass::Forward => whole(channels),
            Pass::BackwardX | Pass::BackwardWeight => whole(channels) && whole(filters),
        };
        let (nearest, farthest, reach) = if self.dims() == 2 { (-128, 127, 255) } else { (-16, 15, 31) };
        let reached = |side: &Side| {
            let near = |corner: isize| (nearest..=farthest).contains(&corner);
            let span = side.taps.saturating_sub(1) * side.dilation;
            near(side.lower) && near(side.upper) && side.step <= MAX_COPY_STRIDE && span <= reach
        };
        let reached = || self.phases(pass).iter().all(|sides| sides[3 - self.dims()..].iter().all(reached));
        let arrival = tuning::Arrival::of(dtype, precision, pass);
        let has_kernels = match self.tile {
            Some(Tile::Copied(_)) => false,
            Some(Tile::Persistent(config)) => arrival.takes(&config),
            None => true,
        };
        self.wide
            && has_kernels
            && self.target.sm == 90
            && (tuning::multiplies_panels(dtype, precision) || self.is_exact(pass))
            && (bytes == 2 || pass != Pass::BackwardWeight || self.joined() || self.sizes.taps == 1)
            && layout == Layout::ChannelsLast
            && (weight_layout == Layout::ChannelsLast || self.sizes.taps == 1)
            && groups == 1
            && batch > 0
            && self.sizes.x > 0
            && sides
            && self.has_phases(pass)
            && reached()
    }

    /// Whether a pass splits elements of `f32`.
    fn is_exact(&self, pass: Pass) -> bool {
        let Conv { dtype, precision, .. } = *self.conv;
        pass == Pass::BackwardWeight && dtype == DType::F32 && precision == Precision::Full
    }

    /// Whether a pass is a launch, or few of them, for each phase of its strides: in taps that are a stride apart a dilation would be a phase
    /// too.
    pub(super) fn has_phases(&self, pass: Pass) -> bool {
        let axes = self.conv.axes;
        let strides = axes.map(|axis| if pass == Pass::BackwardX { axis.stride } else { 1 });
        let phases = strides.into_iter().fold(1, usize::saturating_mul);
        phases == 1 || (phases <= MAX_PHASES && axes.iter().all(|axis| axis.dilation == 1))
    }

    /// Whether the gradient of a weight has the channels of all taps for columns.
    const fn joined(&self) -> bool {
        self.conv.channels.is_multiple_of(PanelTile::width_of(self.conv.dtype) as usize)
    }

    /// The product of a pass over dimensions.
    fn product(&self, pass: Pass, sides: &[Side; 3]) -> tuning::Product {
        let Conv { dtype, batch, channels, filters, precision, .. } = *self.conv;
        let width = PanelTile::width_of(dtype) as usize;
        let pixels = sides.iter().fold(batch, |n, side| n * side.pixels);
        let taps = sides.iter().fold(1, |n, side| n * side.taps);
        let (m, n, slices, count, adds) = match pass {
            Pass::Forward => (pixels, filters, taps * channels.div_ceil(width), 1, false),
            Pass::BackwardX => {
                (pixels, channels, taps * filters.div_ceil(width), sides[ROWS].products, false)
            }
            Pass::BackwardWeight => {
                let adds = self.own_weight.is_some();
                let (n, count) = if self.joined() { (channels * taps, 1) } else { (channels, taps) };
                (filters, n, pixels.div_ceil(width), count, adds)
            }
        };
        let across = pass == Pass::BackwardWeight && dtype == DType::F32;
        let arrival = match precision {
            Precision::Full if across => tuning::Arrival::Split,
            _ if across => tuning::Arrival::Turned,
            _ => tuning::Arrival::AsMultiplied,
        };
        tuning::Product {
            m: m as u64,
            n: n as u64,
            slices: small(slices),
            count: count as u64,
            adds,
            arrival,
        }
    }

    /// In persistent blocks.
    pub(super) fn implicit(
        &mut self,
        pass: Pass,
        tensors: &Tensors,
        epilogue: &Epilogue,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let mut launches = Vec::new();
        let turned = self.turns_weight(pass).then(|| self.turned_weight(tensors)).transpose()?;
        let other = match turned {
            Some((launch, other)) => {
                launches.push(launch);
                other
            }
            None => tensors.other.clone(),
        };
        let (image, ends) = (tensors.image.clone(), tensors.ends.clone());
        let tensors = &Tensors { image, other, ends, y: tensors.y };
        launches.extend(self.each_phase(&self.phases(pass), tensors, |planner, sides| {
            let product = planner.product(pass, sides);
            let choice = tuning::choose(planner.target, &product, planner.tile);
            planner.product_steps(pass, tensors, (sides, product), epilogue, choice)
        })?);
        Ok(launches)
    }

    /// The steps of each product of a pass, behind zeros where a phase has no taps.
    pub(super) fn each_phase(
        &mut self,
        phases: &[[Side; 3]],
        tensors: &Tensors,
        mut steps: impl FnMut(&mut Self, &[Side; 3]) -> Result<Vec<LaunchStep>, PlanError>,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let mut launches = Vec::new();
        let is_empty = |sides: &[Side; 3]| sides.iter().any(|side| side.taps == 0);
        if phases.iter().any(is_empty) {
            launches.push(self.sum((0, 0), tensors.y_at(0), self.sizes.x, self.wide)?);
        }
        for sides in phases.iter().filter(|sides| !is_empty(sides)) {
            launches.extend(steps(self, sides)?);
        }
        Ok(launches)
    }

    /// Where the results of a product begin, which follow a phase in those of the pass; or its sums, if they are in the workspace.
    pub(super) fn results_at(
        &self,
        pass: Pass,
        tensors: &Tensors,
        sides: &[Side; 3],
        sums_at: Option<usize>,
    ) -> Out<Elem> {
        let steps = sides.iter().zip(self.pixel_steps(pass));
        let first: u64 = steps.map(|(side, step)| side.phase as u64 * step).sum();
        match sums_at {
            Some(at) => self.workspace.arg_at(at as u64),
            None => tensors.y_at(first * self.conv.dtype.bytes() as u64),
        }
    }

    /// Adds parts of `len` sums, in rows of `columns`: to results, or to a gradient of the weight, which is `joined` as
    /// [`weight_order`](Self::weight_order) says.
    pub(super) fn add_parts(
        &self,
        pass: Pass,
        tensors: &Tensors,
        (sums_at, parts): (usize, u32),
        (len, columns): (usize, usize),
        joined: bool,
        epilogue: &Epilogue,
    ) -> Result<LaunchStep, PlanError> {
        let from = self.workspace.written_at(sums_at as u64);
        let y = tensors.y_at(0);
        match pass {
            Pass::Forward => self.finish(from, tensors.ends.results(y), parts, (len, columns), epilogue),
            Pass::BackwardWeight if self.own_weight.is_some() || !joined => {
                self.reorder(from, y, true, (parts, len), &self.weight_order(joined))
            }
            // They lie as the result does.
            _ => self.sum((sums_at, parts), y, len, self.wide),
        }
    }

    /// Whether a gradient of `x` takes a weight whose filters are along the common dimension.
    fn turns_weight(&self, pass: Pass) -> bool {
        pass == Pass::BackwardX && self.conv.dtype == DType::F32
    }

    /// The weight with taps and channels outermost and filters last, in the workspace until the end.
    fn turned_weight(&mut self, tensors: &Tensors) -> Result<(LaunchStep, In<Elem>), PlanError> {
        let Conv { filters, channels, .. } = *self.conv;
        let columns = self.sizes.taps * channels;
        let at = self.keep(self.sizes.weight)?;
        let layouts = (Layout::ChannelsLast, Layout::ChannelsFirst);
        let (from, to) = (tensors.other.clone(), self.workspace.arg_at(at as u64));
        let launch = self.copy_images((from, to), layouts, (1, filters), (columns, columns))?;
        Ok((launch, self.workspace.written_at(at as u64)))
    }

    /// The launches of a product.
    fn product_steps(
        &mut self,
        pass: Pass,
        tensors: &Tensors,
        (sides, product): (&[Side; 3], tuning::Product),
        epilogue: &Epilogue,
        choice: Choice,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let Conv { dtype, channels, .. } = *self.conv;
        let taps = self.sizes.taps;
        let mut launches = Vec::new();
        let tuning::Product { m, n, slices, count, adds, .. } = product;
        let (m, n, count) = (m as usize, n as usize, count as usize);
        let apart = sides[ROWS].products > 1;
        let scattered = apart || sides.iter().any(|side| side.apart > 1);
        let choice = if scattered { Choice { steps: slices, ..choice } } else { choice };
        let parts = slices.div_ceil(choice.steps).max(1);
        let split = parts > 1 || adds;
        let sums = if split { (m * n).saturating_mul(count * parts as usize) } else { 0 };
        let (sums_at, _) = self.reserve(self.base, sums.saturating_mul(DType::F32.bytes()))?;
        let joined = pass == Pass::BackwardWeight && self.joined();
        let y_dtype = if split { DType::F32 } else { dtype };
        let whole = engine::ends_whole(n, y_dtype);
        let store = if whole && !scattered { Store::Panels } else { Store::Rows };
        let program = if split { Program::default() } else { epilogue.1 };
        let dims = self.dims();
        let kernel = Implicit {
            dtype,
            pass,
            dims,
            config: choice.config,
            program,
            store,
            split,
            joined,
            scattered,
            apart,
        };
        let blocks = kernel.blocks();
        let pixel_steps = self.pixel_steps(pass);
        // Elements from one row of the result to the next, and from one product to the next.
        let (ldy, stride_y) = match pass {
            Pass::BackwardWeight if !split && !joined => (channels * taps, channels),
            Pass::BackwardX if apart => (n, pixel_steps[ROWS] as usize),
            _ => (n, m * n),
        };
        let size = y_dtype.bytes() as u64;
        let y = self.results_at(pass, tensors, sides, split.then_some(sums_at));
        let ends = if split { Ends::none() } else { tensors.ends.clone() };
        let to = ends.results(y);
        let products = count * parts as usize;
        let order = blocks.config.order(OP, [m, n, products])?;
        let grid = blocks.config.blocks(self.target, &order);
        let further = if products > 1 { (products as u64, stride_y as u64 * size) } else { (1, WIDE) };
        let y_boxes = blocks.boxes_of_results(&to.y, (m as u64, n as u64), ldy as u64 * size, further);
        let [a, b] = self.maps(pass, kernel.copied(), tensors, sides);
        let work = WorkArgs {
            a,
            b,
            y_boxes,
            to,
            m: small(m),
            n: small(n),
            steps: choice.steps,
            order,
            ldy: ldy as u64,
            stride_y: stride_y as u64,
            batch_a: 0,
            batch_b: 0,
        };
        let image = self.image(pass, sides, slices);
        launches.push(if self.is_exact(pass) {
            let values = self.exact_args(work, image, tensors).values();
            blocks.launch(OP, self.target, &Exact(kernel), grid, values)?
        } else {
            let values = ImplicitArgs { work, image, alpha: 1.0, beta: 0.0 }.values();
            blocks.launch(OP, self.target, &kernel, grid, values)?
        });
        if split {
            let (sums, columns) = ((sums_at, parts), (m * n * count, n));
            launches.push(self.add_parts(pass, tensors, sums, columns, joined, epilogue)?);
        }
        Ok(launches)
    }

    /// The arguments of a gradient of a weight that splits elements.
    fn exact_args(&self, work: WorkArgs, image: ImageArgs, tensors: &Tensors) -> ExactArgs {
        let [d, h, w] = self.conv.axes.map(|axis| small(axis.input));
        let pixels = small(self.conv.batch * self.sizes.pixels_out);
        let (x, dy) = (tensors.image.clone(), tensors.other.clone());
        ExactArgs { work, image, x, dy, d, h, w, pixels }
    }

    /// The order of the weight, by that in which products have its gradient: one matrix of filters and the channels of all taps if `joined`, or
    /// else one of filters and channels for each tap.
    fn weight_order(&self, joined: bool) -> Order {
        let Conv { filters, .. } = *self.conv;
        let (channels, taps) = (self.of_group().0, self.sizes.taps);
        let (filter, tap) = if joined { (channels * taps, channels) } else { (channels, filters * channels) };
        let own = self.own_weight.unwrap_or(OwnWeight { conv: *self.conv, row: None });
        let row = own.row.unwrap_or(1);
        let OwnWeight { conv: Conv { filters, channels, groups, weight_layout, .. }, .. } = own;
        let channels = channels / groups;
        let outer = (filters, filter);
        match weight_layout {
            // Taps of a row are side by side as they are here.
            Layout::ChannelsLast => {
                let inner = (row * channels, 1);
                Order { outer, middle: (taps, tap), first: (1, 0), second: inner, padded: None }
            }
            Layout::ChannelsFirst => {
                let (first, second) = ((taps, tap), (row, channels));
                Order { outer, middle: (channels, 1), first, second, padded: None }
            }
        }
    }

    /// Adds the parts of `len` sums, `columns` to a row, and stores the results.
    fn finish(
        &self,
        from: In<Elem>,
        to: ResultArgs,
        parts: u32,
        (len, columns): (usize, usize),
        (epilogue, program): &Epilogue,
    ) -> Result<LaunchStep, PlanError> {
        let vectors = self.wide && columns.is_multiple_of(SumParts::WIDE as usize);
        let width = if vectors { SumParts::WIDE } else { 1 };
        let grid = plan::cover(OP, len, weight::THREADS * width)?.unwrap_or([1; 3]);
        let (columns, epilogue) = (small(columns), epilogue.clone());
        let values = FinishArgs { from, to, len: len as u64, parts, columns, epilogue };
        let kernel = FinishParts { dtype: self.conv.dtype, width, scale: program.scale };
        plan::launch(OP, &kernel, values, self.target, grid)
    }

    /// Elements from one pixel of the result, or of the gradient of one, to the next along each dimension, channels last.
    pub(super) fn pixel_steps(&self, pass: Pass) -> [u64; 3] {
        let (channels, extents) = match pass {
            Pass::BackwardX => (self.conv.channels, self.conv.axes.map(|axis| axis.input)),
            _ => (self.conv.filters, self.sizes.outputs),
        };
        let w = channels as u64;
        let h = w * extents[2] as u64;
        [h * extents[1] as u64, h, w]
    }

    /// The tensor maps of both operands.
    fn maps(
        &self,
        pass: Pass,
        (slice_a, slice_b): (PanelTile, PanelTile),
        tensors: &Tensors,
        sides: &[Side; 3],
    ) -> [TensorMapArg; 2] {
        let Conv { dtype, batch, channels, filters, axes, .. } = *self.conv;
        let size = dtype.bytes() as u64;
        let (gathered, extents) = self.gathered(pass);
        let mut stride = gathered as u64 * size;
        let mut map = Im2colImage {
            channels: gathered as u64,
            pixel_dims: Vec::new(),
            lower: Vec::new(),
            upper: Vec::new(),
            steps: Vec::new(),
        };
        // The taps of the weight that take part, and where the first of them is.
        let (mut of_taps, mut first, mut tap) = (Vec::new(), 0, channels as u64 * size);
        // From one filter to the next, or of a weight that is turned from one channel to the next.
        let mut leading = self.sizes.taps as u64 * tap;
        if self.turns_weight(pass) {
            leading = filters as u64 * size;
            tap *= filters as u64;
        }
        for axis in (3 - self.dims()..3).rev() {
            let Side { lower, upper, step, taps, first: first_tap, tap_step, products, .. } = sides[axis];
            map.pixel_dims.push((extents[axis] as u64, stride));
            stride *= extents[axis] as u64;
            // They are within the bounds of a copy.
            map.lower.push(lower as i32);
            map.upper.push(upper as i32);
            map.steps.push(small(step));
            of_taps.push((taps.max(products) as u64, tap_step as u64 * tap));
            first += first_tap as u64 * tap;
            tap *= axes[axis].kernel as u64;
        }
        map.pixel_dims.push((batch as u64, stride));
        let [channels, filters] = [channels as u64, filters as u64];
        let of_weight = |(outer, depth): (u64, u64)| {
            let map = slice_b.map((outer, depth), leading, &of_taps);
            TensorMapArg::over(&tensors.other, TensorMap { base: first, ..map })
        };
        // What is split is not rounded before.
        let whole = |map: TensorMap| match self.is_exact(pass) {
            true => TensorMap { element: TensorElement::F32, ..map },
            false => map,
        };
        let image = |tile: PanelTile| TensorMapArg::over(&tensors.image, whole(tile.im2col_map(&map)));
        match pass {
            Pass::Forward => [image(slice_a), of_weight((filters, channels))],
            Pass::BackwardX => [image(slice_a), of_weight((channels, filters))],
            Pass::BackwardWeight => {
                let pixels = (batch * self.sizes.pixels_out) as u64;
                let dy = slice_a.map((filters, pixels), filters * size, &[]);
                let panel = PanelTile { outer: slice_b.width(), ..slice_b };
                [TensorMapArg::over(&tensors.other, whole(dy)), image(panel)]
            }
        }
    }

    /// How the pixels of the image are counted.
    fn image(&self, pass: Pass, sides: &[Side; 3], slices: u32) -> ImageArgs {
        let mut left = PanelTile::width_of(self.conv.dtype) as usize;
        let mut advance = [0; 3];
        for axis in [2, 1, 0] {
            advance[axis] = left % sides[axis].pixels;
            left /= sides[axis].pixels;
        }
        let steps = self.pixel_steps(pass);
        let axis = |i: usize| {
            let Side { pixels, apart, lower, step, taps, dilation, .. } = sides[i];
            implicit::AxisArgs {
                pixels: small(pixels),
                step: small(step),
                first: (lower as i32).cast_unsigned(),
                kernel: small(taps),
                dilation: small(dilation),
                advance: small(advance[i]),
                result: apart as u64 * steps[i],
            }
        };
        ImageArgs {
            d: axis(0),
            h: axis(1),
            w: axis(2),
            advance: small(left),
            image: steps[0] * self.sides(pass, 0).1 as u64,
            channels: small(self.gathered(pass).0),
            taps: small(self.sizes.taps),
            slices,
        }
    }
}
