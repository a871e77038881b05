//! Tensor copies in im2col mode, in the emulator with every sanitizer on, held against direct indexing.

mod support;

use support::{Arg, bytes, findings, report, values};
use warpwright_dsl::prelude::*;
use warpwright_dsl::{Im2colImage, PanelTile, TensorMapArg, record};
use warpwright_ptx::{ArgValue, Im2col, TensorElement, TensorFill, TensorMap, TensorMode, TensorSwizzle};

kernel_args! {
    struct CopyArgs => CopyParams { map: TensorMapArg, y: Out<u32>, coords: [u32; 5], offsets: [u32; 3] }
}

/// One block copies what the map says to shared memory and from there, word by word, to `y`.
#[derive(Clone, Copy)]
struct Copy {
    /// Dimensions of the tensor.
    rank: usize,
    /// Words of shared memory.
    words: u32,
    /// Bytes that the mbarrier waits for.
    expected: u32,
    /// Copied by the tile's own function, if there is one.
    tile: Option<PanelTile>,
    /// Offsets that the instruction has, if not those of the rank; for a map that is not in im2col mode.
    tiled: bool,
}

impl KernelDef for Copy {
    type Args = CopyArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("pixels".to_owned(), BlockDim::x(128))
    }

    fn build<'k>(&self, k: K<'k>, p: CopyParams<'k>) {
        let to = k.dynamic_shared_tiles();
        let done = k.mbarriers(1).at(0);
        let first = k.thread_idx().eq(0);
        let shared = k.shared_at::<u32>(to);
        let words = |f: &dyn Fn(U32<'k>)| k.for_each(k.range(k.thread_idx(), self.words, 128), f);
        // A swizzle keeps rows that are narrower apart.
        words(&|i| shared.at(i).set(0));
        k.fence_shared_copies();
        k.if_(first, || {
            done.init(1);
            k.publish_mbarriers();
        });
        k.barrier();
        k.if_(first, || {
            done.arrive_expecting(self.expected);
            let (coords, offsets) = (&p.coords[..self.rank], &p.offsets[..self.rank - 2]);
            match self.tile {
                _ if self.tiled => p.map.copy(to, coords, done),
                None => p.map.copy_im2col(to, coords, offsets, done),
                Some(tile) => tile.fetch_im2col(p.map, to, coords[0], &coords[1..], offsets, done),
            }
        });
        done.wait(k.lit(0));
        words(&|i| p.y.at(i.to_u64()).set(shared.at(i).get()));
    }
}

/// Numbers from a seed.
struct Numbers(u64);

impl Numbers {
    /// From `low` to `high`, both included.
    fn pick(&mut self, low: i64, high: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (self.0 >> 33) as i64 % (high - low + 1)
    }
}

/// A tensor, its map and where a copy begins.
#[derive(Debug)]
struct Case {
    map: TensorMap,
    coords: Vec<i64>,
    offsets: Vec<i64>,
    data: Vec<u8>,
}

impl Case {
    fn im2col(&self) -> &Im2col {
        match &self.map.mode {
            TensorMode::Im2col(mode) => mode,
            TensorMode::Tiled { .. } => panic!("a map in im2col mode"),
        }
    }

    /// A random shape of `rank` dimensions: strides, offsets, corners, padded rows, channels that do not fill the last copy, and
    /// images past the last one.
    fn random(numbers: &mut Numbers, rank: usize) -> Self {
        let axes = rank - 2;
        let element =
            [TensorElement::U8, TensorElement::BF16, TensorElement::F32][numbers.pick(0, 2) as usize];
        let size = element.bytes();
        let swizzle = TensorSwizzle::ALL[numbers.pick(0, 3) as usize];
        let per_piece = 16 / size;
        let most = if swizzle == TensorSwizzle::None { 6 } else { swizzle.span() as i64 / 16 };
        let cpp = numbers.pick(1, most) as u64 * per_piece;
        let channels = numbers.pick(1, 3 * cpp as i64) as u64;
        let mut dims = vec![channels];
        let (mut lower, mut upper, mut steps) = (Vec::new(), Vec::new(), vec![1]);
        let mut offsets = Vec::new();
        for _ in 0..axes {
            let extent = numbers.pick(1, 9);
            let low = numbers.pick(-3, 2.min(extent - 1));
            // The box has a pixel at least.
            let high = numbers.pick(low - (extent - 1), 3);
            dims.push(extent as u64);
            lower.push(low as i32);
            upper.push(high as i32);
            steps.push(numbers.pick(1, 3) as u32);
            offsets.push(numbers.pick(0, 5));
        }
        dims.push(numbers.pick(1, 3) as u64);
        steps.push(1);
        let mut stride = (channels * size).next_multiple_of(16) + 16 * numbers.pick(0, 1) as u64;
        let mut strides = Vec::new();
        for extent in &dims[1..] {
            strides.push(stride);
            stride = stride * extent + 16 * numbers.pick(0, 1) as u64;
        }
        let mode = Im2col { lower, upper, channels: cpp as u32, pixels: numbers.pick(1, 60) as u32 };
        let mut map = TensorMap::dense(0, element, &dims, &[], swizzle);
        (map.strides, map.element_strides) = (strides, steps);
        if element.is_float() && numbers.pick(0, 1) == 1 {
            map.fill = TensorFill::Nan;
        }
        map.mode = TensorMode::Im2col(mode);
        assert_eq!(map.check(), Ok(()), "{map:?}");
        let mut case = Self { map, coords: Vec::new(), offsets, data: Vec::new() };
        case.coords.push(numbers.pick(0, (channels / per_piece) as i64) * per_piece as i64);
        for axis in 0..axes {
            let (first, count) = case.positions(axis);
            let step = i64::from(case.map.element_strides[axis + 1]);
            case.coords.push(first + step * numbers.pick(0, count - 1));
        }
        case.coords.push(numbers.pick(0, case.map.dims[rank - 1] as i64));
        case.data = (0..stride).map(|_| numbers.pick(0, 255) as u8).collect();
        case
    }

    /// First position along a spatial axis, and how many there are.
    fn positions(&self, axis: usize) -> (i64, i64) {
        let mode = self.im2col();
        let (lower, upper) = (i64::from(mode.lower[axis]), i64::from(mode.upper[axis]));
        let length = self.map.dims[axis + 1] as i64 - 1 + upper - lower;
        (lower, length / i64::from(self.map.element_strides[axis + 1]) + 1)
    }

    /// The bytes of channel `coords[0] + c` of pixel `n` of the copy, from the definition of a convolution's operand: positions are
    /// numbered row by row, image by image.
    fn element(&self, n: u64, c: u64) -> Vec<u8> {
        let axes = self.map.rank() - 2;
        let size = self.map.element.bytes() as usize;
        let mut number = self.coords[axes + 1];
        for axis in (0..axes).rev() {
            let (first, count) = self.positions(axis);
            let step = i64::from(self.map.element_strides[axis + 1]);
            number = number * count + (self.coords[axis + 1] - first) / step;
        }
        let mut rest = number + n as i64;
        let mut at = vec![self.coords[0] + c as i64];
        for axis in 0..axes {
            let (first, count) = self.positions(axis);
            let step = i64::from(self.map.element_strides[axis + 1]);
            at.push(first + rest % count * step + self.offsets[axis]);
            rest /= count;
        }
        at.push(rest);
        if at.iter().zip(&self.map.dims).any(|(x, extent)| *x < 0 || *x >= *extent as i64) {
            return match self.map.fill {
                TensorFill::Zero => vec![0; size],
                TensorFill::Nan => [0xF7, 0x7F].into_iter().cycle().take(size).collect(),
            };
        }
        let outer: u64 = at[1..].iter().zip(&self.map.strides).map(|(x, stride)| *x as u64 * stride).sum();
        let byte = outer as usize + at[0] as usize * size;
        self.data[byte..byte + size].to_vec()
    }

    fn def(&self) -> Copy {
        let pitch = match self.map.swizzle {
            TensorSwizzle::None => self.map.extents()[0] * self.map.element.bytes(),
            swizzle => swizzle.span(),
        };
        Copy {
            rank: self.map.rank(),
            words: (pitch * self.map.extents()[1] / 4) as u32,
            expected: self.map.box_bytes() as u32,
            tile: None,
            tiled: false,
        }
    }

    fn args(&self, map: TensorMap, coords: &[i64], offsets: &[i64]) -> Vec<Arg<'static>> {
        let scalar =
            |list: &[i64], i: usize| Arg::Scalar(ArgValue::U32(list.get(i).copied().unwrap_or(0) as u32));
        let mut args = vec![Arg::Map { map, over: self.data.clone() }];
        args.extend((0..5).map(|i| scalar(coords, i)));
        args.extend((0..3).map(|i| scalar(offsets, i)));
        args
    }

    /// The shared memory behind the copy.
    fn run(&self, def: Copy) -> Vec<u8> {
        let mut out = vec![0; 4 * def.words as usize];
        let mut args = self.args(self.map.clone(), &self.coords, &self.offsets);
        args.insert(1, Arg::Buffer(&mut out));
        support::run_with(&def, Target::sm(90), 1, 4 * def.words + K::TILE_SLACK, &mut args);
        out
    }

    /// Findings of the sanitizers in a copy at other coordinates.
    fn findings(&self, def: Copy, map: TensorMap, coords: &[i64], offsets: &[i64]) -> Vec<String> {
        let mut out = vec![0; 4 * def.words as usize];
        let mut args = self.args(map, coords, offsets);
        args.insert(1, Arg::Buffer(&mut out));
        findings(&def, Target::sm(90), 1, 4 * def.words + K::TILE_SLACK, &mut args)
    }
}

#[test]
fn random_shapes_agree_with_direct_indexing() {
    let mut numbers = Numbers(7);
    for round in 0..90 {
        let case = Case::random(&mut numbers, 3 + round % 3);
        let (swizzle, size) = (case.map.swizzle, case.map.element.bytes());
        let [channels, pixels] = case.map.extents()[..] else { panic!("channels and pixels") };
        let def = case.def();
        let got = case.run(def);
        let pitch = 4 * u64::from(def.words) / pixels;
        for n in 0..pixels {
            for c in 0..channels {
                // Memory begins at a multiple of the pattern, so offsets are swizzled as addresses are.
                let at = swizzle.apply(n * pitch + c * size) as usize;
                let want = case.element(n, c);
                assert_eq!(got[at..at + size as usize], want, "pixel {n}, channel {c} of {case:?}");
            }
        }
    }
}

fn image(numbers: &mut Numbers, channels: u64) -> (Im2colImage, u64) {
    let axes = numbers.pick(1, 3) as usize;
    let mut bytes = channels * 2;
    let mut pixel_dims = Vec::new();
    for _ in 0..=axes {
        let extent = numbers.pick(2, 8) as u64;
        pixel_dims.push((extent, bytes));
        bytes *= extent;
    }
    let image = Im2colImage {
        channels,
        pixel_dims,
        lower: (0..axes).map(|_| numbers.pick(-2, 0) as i32).collect(),
        upper: (0..axes).map(|_| numbers.pick(-1, 2) as i32).collect(),
        steps: (0..axes).map(|_| numbers.pick(1, 2) as u32).collect(),
    };
    (image, bytes)
}

/// Both orders, with more than one panel each.
#[test]
fn tiles_hold_pixels_and_channels_in_either_order() {
    let mut numbers = Numbers(11);
    for (major, outer, depth) in
        [(Major::K, 64, 128), (Major::K, 200, 64), (Major::Mn, 64, 48), (Major::Mn, 192, 64)]
    {
        for channels in [64, 136, 200] {
            let tile = PanelTile { dtype: DType::BF16, major, outer, depth };
            let (image, bytes) = image(&mut numbers, channels);
            let map = tile.im2col_map(&image);
            assert_eq!(map.check(), Ok(()), "{map:?}");
            let axes = image.steps.len();
            let mut coords = vec![numbers.pick(0, 1) * 64];
            coords.extend(image.lower.iter().map(|l| i64::from(*l)));
            coords.push(1);
            let offsets = (0..axes).map(|_| numbers.pick(0, 2)).collect();
            let data = (0..bytes).map(|_| numbers.pick(0, 255) as u8).collect();
            let case = Case { map, coords, offsets, data };
            let def = Copy {
                rank: axes + 2,
                words: tile.bytes() / 4,
                expected: tile.bytes(),
                tile: Some(tile),
                tiled: false,
            };
            let got = case.run(def);
            let (pixels, width) = match major {
                Major::K => (outer, depth),
                Major::Mn => (depth, outer),
            };
            for pixel in 0..u64::from(pixels) {
                for channel in 0..u64::from(width) {
                    let (panel, within) = (channel / 64, channel % 64);
                    let plain = panel * u64::from(pixels) * 128 + pixel * 128 + within * 2;
                    let at = TensorSwizzle::B128.apply(plain) as usize;
                    let want = case.element(pixel, channel);
                    assert_eq!(
                        got[at..at + 2],
                        want,
                        "pixel {pixel}, channel {channel} of {tile:?}, {case:?}"
                    );
                }
            }
        }
    }
}

/// Copies round `f32` to `tf32` where the map says so.
#[test]
fn tiles_of_f32_are_rounded_to_tf32() {
    let tile = PanelTile { dtype: DType::F32, major: Major::K, outer: 8, depth: 32 };
    let image = Im2colImage {
        channels: 32,
        pixel_dims: vec![(8, 128), (1, 1024)],
        lower: vec![0],
        upper: vec![0],
        steps: vec![1],
    };
    let map = tile.im2col_map(&image);
    let data = bytes(&[1.0f32 + f32::EPSILON; 256]);
    let case = Case { map, coords: vec![0, 0, 0], offsets: vec![0], data };
    let def = Copy { rank: 3, words: 256, expected: 1024, tile: Some(tile), tiled: false };
    assert_eq!(values::<f32>(&case.run(def)), [1.0; 256]);
}

fn plain() -> Case {
    let mut map = TensorMap::dense(0, TensorElement::BF16, &[64, 6, 5, 2], &[], TensorSwizzle::B128);
    map.mode =
        TensorMode::Im2col(Im2col { lower: vec![-1, -1], upper: vec![-1, -1], channels: 64, pixels: 8 });
    Case { map, coords: vec![0, -1, 0, 0], offsets: vec![2, 1], data: vec![1; 64 * 6 * 5 * 2 * 2] }
}

#[test]
fn wrong_uses_are_found() {
    let case = plain();
    let def = case.def();
    let found = |def: Copy, map: &TensorMap, coords: &[i64], offsets: &[i64], kind: &str| {
        let all = case.findings(def, map.clone(), coords, offsets);
        assert!(all.first().is_some_and(|f| f.contains(kind)), "no {kind}: {all:?}");
    };
    let right = case.findings(def, case.map.clone(), &case.coords, &case.offsets);
    assert!(right.is_empty(), "{right:?}");
    // Starts outside of the bounding box: before it, behind it.
    for coords in [[0, -2, 0, 0], [0, 5, 0, 0], [0, 0, -2, 0], [0, 0, 4, 0], [4, 0, 0, 0]] {
        found(def, &case.map, &coords, &[0, 0], "box-coordinates");
    }
    found(def, &case.map, &case.coords, &[256, 0], "box-coordinates");
    // The mode of the map is not the instruction's.
    let mut boxed = case.map.clone();
    boxed.mode = TensorMode::Tiled { box_dims: vec![64, 2, 2, 2] };
    let tiled = Copy { tiled: true, ..def };
    assert!(case.findings(tiled, boxed.clone(), &[0, 0, 0, 0], &[]).is_empty());
    found(def, &boxed, &case.coords, &[0, 0], "tensor-map-mode");
    found(tiled, &case.map, &case.coords, &[], "tensor-map-mode");
    // An impossible map, one of another rank, and one past its buffer.
    let mut empty = case.map.clone();
    empty.mode = TensorMode::Im2col(Im2col { upper: vec![-7, 0], ..case.im2col().clone() });
    found(def, &empty, &case.coords, &[0, 0], "tensor-map-invalid");
    found(Copy { rank: 3, ..def }, &case.map, &[0, 0, 0], &[0], "tensor-map-rank");
    let mut long = case.map.clone();
    long.dims[3] = 3;
    found(def, &long, &[0, -1, -1, 2], &[1, 1], "out-of-bounds");
    // Too few bytes are expected: what comes is counted whole, fill included.
    found(Copy { expected: def.expected - 16, ..def }, &case.map, &case.coords, &[0, 0], "");
}

/// Traffic is that of the pixels that exist; shared memory is written whole.
#[test]
fn pixels_outside_of_the_image_cost_no_traffic() {
    let mut case = plain();
    let sectors = |case: &Case| {
        let (def, mut out) = (case.def(), vec![0; 1024]);
        let mut args = case.args(case.map.clone(), &case.coords, &case.offsets);
        args.insert(1, Arg::Buffer(&mut out));
        let kernel = record(&def, Target::sm(90)).expect("a kernel");
        let shared = 4 * def.words + K::TILE_SLACK;
        report(&def, &kernel, kernel.text(), 1, shared, &mut args).counters.global_loads.sectors
    };
    case.offsets = vec![0, 0];
    // Columns -1 .. 4 of rows 0 and 1, of which the first pixel of each row does not exist: 8 pixels, 6 of them of 128 bytes.
    case.coords = vec![0, -1, 0, 0];
    assert_eq!(sectors(&case), 6 * 4);
    // Images past the last one.
    case.coords = vec![0, -1, 0, 2];
    assert_eq!(sectors(&case), 0);
}

/// The instruction as the assembler takes it.
#[test]
fn offsets_are_printed_behind_the_barrier() {
    let kernel = record(&plain().def(), Target::sm(90)).expect("a kernel");
    let line = kernel.text().lines().find(|l| l.contains("im2col")).expect("a copy");
    assert!(
        line.contains("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes")
            && line.trim_end().ends_with("};"),
        "{line}"
    );
}
