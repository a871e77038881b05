//! Products with 4-bit weights: `y = x W^T + bias`, where W lies as checkpoints store it.
//!
//! `x` is `m x k`, `y` is `m x n`, both row-major of f32, f16 or bf16; W stands for `n x k` numbers and is never repacked. Two codes share
//! a byte, u8:
//!
//! | format | codes | scales | number of a code |
//! |---|---|---|---|
//! | `nf4`, `fp4` | `[ceil(n k / 2)]` of the flattened matrix, high nibble first | one for `group_size` elements of it | `table[code] * scale` |
//! | `int4` | `[n, ceil(k / 2)]`, low nibble first | `[n, ceil(k / group_size)]` | `(code - 8) * scale` |
//! | `int4_asymmetric` | the same | the same, and u8 zero points of the same shape | `(code - zero_point) * scale` |
//! | `mxfp4` | the same | e8m0 bytes, `[n, ceil(k / 32)]` | `e2m1[code] * 2^(scale - 127)` |
//! | `nvfp4` | the same | e4m3, `[n, ceil(k / 16)]`, and an f32 `tensor_scale` | `e2m1[code] * scale * tensor_scale` |
//!
//! `nf4` and `fp4` are bitsandbytes' ([`quantize`](crate::quantize)), whose scales may be nested: u8 codes with f32 maxima of 256 of them and
//! an offset, decoded as [`quantize::nested`](crate::quantize::nested) says. `int4` is `weight_packed` and `weight_scale` of
//! compressed-tensors, an i32 being four bytes; a `group_size` of at least `k` is one scale for a row. Scales are f32, f16 or bf16.
//!
//! `tensor_scale` of `nvfp4` is a factor: `weight_scale_2` of ModelOpt's files, and one over `weight_global_scale` of those of
//! compressed-tensors (nvfp4-pack-quantized), which divides. Codes and scales are the same tensors in both.
//!
//! Sums are f32. Rows of f16 or bf16 are multiplied as the weight is read:
//!
//! - Up to [`MAX_STREAM_ROWS`](tuning::MAX_STREAM_ROWS) rows numbers are decoded to the type of `x`, at most 0.18 % (bf16) or 0.017 % (f16) off for
//!   `nf4` and exactly for the others, and scales multiply sums of a slice of 64 or 32 elements in f32.
//! - On sm_90 up to [`MAX_DECODED_ROWS`](tuning::MAX_DECODED_ROWS) rows, of which more than 64 are multiplied by numbers that are scaled and rounded
//!   to the type of `x`; for a `k` that is a multiple of 256.
//! - Up to eight rows of bf16 numbers of `mxfp4` are multiplied by their scales, which is exact, where codes come by way of shared memory: for a
//!   `k` that is a multiple of 256. From 2^128 on such a number is infinite.
//! - Numbers of `nvfp4` times their e4m3 scales are exact in either type, whatever the number of rows; `tensor_scale` multiplies sums in f32. Before
//!   that they are up to 2688 times an element of `x` for each term, so that of bf16 they are infinite where `x` is near the end of its range.
//!
//! All need a `k` of at least 128 and, but for `nvfp4`, a `group_size` that are multiples of 32, the latter a power of two or a row, and tensors at
//! multiples of 16 bytes. Tensors elsewhere, and other shapes of up to [`MAX_SIMT_ROWS`](tuning::MAX_SIMT_ROWS) rows, odd `k` among them, are multiplied in
//! f32 on the ordinary units, which takes several times as long, and of many rows far longer. In all other cases the weight is expanded to the
//! type of `x` in the workspace, rounded once, and multiplied by [`gemm`](crate::gemm), so is the gradient `dx = dy W`.
//!
//! A NaN scale makes the results of its row NaN; an infinite one makes them infinite or NaN. The order of the sums depends on shapes and
//! target alone. A `k` of 0 gives the bias.
//!
//! `group_index` of `int4` and `int4_asymmetric`, i32 `[k]`, is the group of each column where these are no neighbours: `weight_g_idx` of
//! compressed-tensors, which GPTQ's `desc_act` makes. One that is no group (compressed-tensors has -1 for unset ones) stands for the last. Up to
//! [`MAX_SIMT_ROWS`](tuning::MAX_SIMT_ROWS) rows are multiplied in one launch on the ordinary units, of more the weight is expanded.
//!
//! Sources: QLoRA (Dettmers et al. 2023, arXiv:2305.14314) and bitsandbytes' `matmul_4bit`; OCP Microscaling Formats 1.0; NVFP4: Pretraining Large
//! Language Models with NVFP4 (NVIDIA 2025, arXiv:2509.25149), OCP 8-bit Floating Point Specification 1.0.

mod expand;
mod format;
mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
mod scales;
mod simt;
mod sum;
mod table;
pub mod tuning;
mod warpgroup;

use warpwright_dsl::{Elem, In, KernelArgs, KernelDef, Out, TensorMapArg};
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::gemm::{GemmDesc, MAX_SIDE, Part, WIDE};
use crate::plan::{self, Operation, Plan, Variant, small};
use crate::quantize::nested::BLOCK;
use crate::tensors::{OutSlot, tensors};

pub use format::{ScaleFormat, WeightFormat};
pub use functions::{Weight4bit, matmul_4bit, matmul_4bit_backward};
use scales::{Groups, ScaleArgs};
use tuning::{Choice, Config};

/// The types of `x`, `bias` and `y`.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// Elements of the weight of which kernels count groups and slices in 32 bits.
const MAX_ELEMENTS: usize = 1 << 35;
/// Bytes at multiples of which parts of the workspace begin.
const PLACE: usize = 256;
/// Blocks of a grid along y.
const MAX_LAYERS: usize = 65_535;

/// A weight of 4 bits, as operations describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight4bitDesc {
    /// The numbers of codes, and how codes lie.
    pub format: WeightFormat,
    /// How scales are stored: [`ScaleFormat::E8m0`] for [`WeightFormat::Mxfp4`], [`ScaleFormat::E4m3`] for [`WeightFormat::Nvfp4`]; nested for NF4
    /// and FP4 only.
    pub scale: ScaleFormat,
    /// Rows: features of the result.
    pub n: usize,
    /// Columns: features of `x`.
    pub k: usize,
    /// Elements that share a scale; 32 for [`WeightFormat::Mxfp4`], 16 for [`WeightFormat::Nvfp4`].
    pub group_size: usize,
    /// Whether the group of each column is given, for [`WeightFormat::Int4`] and [`WeightFormat::Int4Asymmetric`].
    pub group_index: bool,
}

/// `y = x W^T + bias`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Matmul4bitDesc {
    /// Type of `x`, `bias` and `y`.
    pub dtype: DType,
    /// Rows of `x`.
    pub m: usize,
    /// The weight.
    pub weight: Weight4bitDesc,
    /// Whether there is a `bias`.
    pub bias: bool,
}

/// `dx = dy W`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Matmul4bitBackwardDesc {
    /// Type of `dy` and `dx`.
    pub dtype: DType,
    /// Rows of `dy`.
    pub m: usize,
    /// The weight.
    pub weight: Weight4bitDesc,
}

tensors! {
    /// Tensors of [`Matmul4bitDesc`].
    pub struct Matmul4bitArgs<'a> {
        /// `[m, k]`.
        x: In,
        /// u8, the codes.
        weight: In,
        /// Of [`ScaleFormat::dtype`].
        scales: In,
        /// u8, one a group, for formats that have them.
        zero_points: Option<In>,
        /// f32, one for every 256 scales, where these are nested.
        nested_absmax: Option<In>,
        /// f32, one element, where scales are nested.
        offset: Option<In>,
        /// f32, one element, beside e4m3 scales: a factor of every number.
        tensor_scale: Option<In>,
        /// i32, `[k]`: the group of each column, where they are given.
        group_index: Option<In>,
        /// `[n]`.
        bias: Option<In>,
        /// `[m, n]`.
        y: Out,
        /// Scratch memory, if the plan needs some.
        workspace: Option<Out>,
    }
}

tensors! {
    /// Tensors of [`Matmul4bitBackwardDesc`].
    pub struct Matmul4bitBackwardArgs<'a> {
        /// `[m, n]`.
        dy: In,
        /// u8, the codes.
        weight: In,
        /// Of [`ScaleFormat::dtype`].
        scales: In,
        /// u8, one a group, for formats that have them.
        zero_points: Option<In>,
        /// f32, one for every 256 scales, where these are nested.
        nested_absmax: Option<In>,
        /// f32, one element, where scales are nested.
        offset: Option<In>,
        /// f32, one element, beside e4m3 scales: a factor of every number.
        tensor_scale: Option<In>,
        /// i32, `[k]`: the group of each column, where they are given.
        group_index: Option<In>,
        /// `[m, k]`.
        dx: Out,
        /// Scratch memory.
        workspace: Option<Out>,
    }
}

/// The name of the operation.
pub(crate) const fn op(format: WeightFormat) -> &'static str {
    match format {
        WeightFormat::Nf4 => "matmul_4bit_nf4",
        WeightFormat::Fp4 => "matmul_4bit_fp4",
        WeightFormat::Int4 => "matmul_4bit_int4",
        WeightFormat::Int4Asymmetric => "matmul_4bit_int4_asymmetric",
        WeightFormat::Mxfp4 => "matmul_4bit_mxfp4",
        WeightFormat::Nvfp4 => "matmul_4bit_nvfp4",
    }
}

/// The slots of the weight's tensors.
#[derive(Clone)]
struct WeightSlots {
    weight: In<u8>,
    scale: ScaleArgs,
}

impl Weight4bitDesc {
    /// A weight with f32 scales, or those of its format.
    pub const fn new(format: WeightFormat, [n, k]: [usize; 2], group_size: usize) -> Self {
        let scale = match format {
            WeightFormat::Mxfp4 => ScaleFormat::E8m0,
            WeightFormat::Nvfp4 => ScaleFormat::E4m3,
            _ => ScaleFormat::Float(DType::F32),
        };
        Self { format, scale, n, k, group_size, group_index: false }
    }

    /// Bytes of codes.
    pub fn code_bytes(&self) -> usize {
        if self.format.is_flat() { (self.n * self.k).div_ceil(2) } else { self.n * self.k.div_ceil(2) }
    }

    /// Scales.
    pub fn group_count(&self) -> usize {
        let size = self.group_size.max(1);
        if self.format.is_flat() { (self.n * self.k).div_ceil(size) } else { self.n * self.k.div_ceil(size) }
    }

    /// Elements from one row to the next as scales count them, and elements that share one: element (`row`, `at`) has scale
    /// `(row * pitch + at) / size`.
    fn groups(&self) -> (usize, usize) {
        let len = if self.format.is_flat() { self.n * self.k } else { self.k };
        // One that is longer than what there is has any size that is not.
        let size = self.group_size.min(len.next_power_of_two().max(64));
        let pitch = if self.format.is_flat() { self.k } else { self.k.div_ceil(size) * size };
        (pitch, size)
    }

    fn refused(&self, parameter: &'static str, got: impl ToString, expected: &'static str) -> PlanError {
        PlanError::refused(op(self.format), parameter, got, expected)
    }

    fn check(&self, dtype: DType, m: usize) -> Result<(), PlanError> {
        let op = op(self.format);
        if !DTYPES.contains(&dtype) {
            return Err(PlanError::DType { op, tensor: "x", got: dtype, expected: &DTYPES });
        }
        for (name, side) in [("m", m), ("n", self.n), ("k", self.k)] {
            if side > MAX_SIDE {
                return Err(self.refused(name, side, "less than 2^31"));
            }
        }
        let elements = self.n.checked_mul(self.k).filter(|elements| *elements <= MAX_ELEMENTS);
        if elements.is_none() {
            return Err(self.refused("n", self.n, "such that the weight has at most 2^35 elements"));
        }
        let of_x = self.k.checked_mul(m).zip(self.n.checked_mul(m));
        if of_x.is_none_or(|(x, y)| x.max(y) > isize::MAX as usize / 4) {
            return Err(self.refused("m", m, "such that x and y are addressable"));
        }
        if self.group_size == 0 {
            return Err(self.refused("group_size", 0, "at least 1"));
        }
        if self.group_count() > u32::MAX as usize {
            return Err(self.refused(
                "group_size",
                self.group_size,
                "such that there are less than 2^32 scales",
            ));
        }
        let fixed = self.format.fixed_group_size();
        let fits = match self.scale {
            ScaleFormat::Float(dtype) => fixed.is_none() && DTYPES.contains(&dtype),
            ScaleFormat::Nested => self.format.is_flat(),
            ScaleFormat::E8m0 => self.format == WeightFormat::Mxfp4,
            ScaleFormat::E4m3 => self.format == WeightFormat::Nvfp4,
        };
        if !fits {
            let expected = "f32, f16 or bf16, nested for nf4 and fp4, e8m0 for mxfp4, e4m3 for nvfp4";
            return Err(self.refused("scale", self.scale.name(), expected));
        }
        if self.group_index && !matches!(self.format, WeightFormat::Int4 | WeightFormat::Int4Asymmetric) {
            return Err(self.refused("group_index", "given", "given for int4 and int4_asymmetric only"));
        }
        if fixed.is_some_and(|size| size != self.group_size) {
            return Err(self.refused("group_size", self.group_size, "32 for mxfp4, 16 for nvfp4"));
        }
        Ok(())
    }

    const fn group_format(&self) -> Groups {
        Groups { format: self.format, scale: self.scale, indexed: self.group_index }
    }

    /// Elements of the tensors of scales: scales, zero points, maxima, offset, the scale of the whole and the groups of columns, with 0 for those
    /// that are absent.
    fn scale_lengths(&self) -> [usize; 6] {
        let groups = self.group_count();
        let nested = self.scale == ScaleFormat::Nested;
        [
            groups,
            if self.format.has_zero_points() { groups } else { 0 },
            if nested { groups.div_ceil(BLOCK) } else { 0 },
            usize::from(nested),
            usize::from(self.scale == ScaleFormat::E4m3),
            if self.group_index { self.k } else { 0 },
        ]
    }

    /// The factors of scales that are codes.
    fn factors(&self, [nested_absmax, tensor_scale]: [In<f32>; 2]) -> In<f32> {
        if self.scale == ScaleFormat::E4m3 { tensor_scale } else { nested_absmax }
    }

    /// The offset of nested scales, or the groups of columns.
    fn offsets(&self, [offset, group_index]: [In<f32>; 2]) -> In<f32> {
        if self.group_index { group_index } else { offset }
    }

    /// How kernels for any shape find groups: whether a size of groups is a power of two, scales count from one row to the next, and the divisor.
    fn walk(&self) -> (bool, u64, u64) {
        if self.group_index {
            let of_row = self.k.div_ceil(self.group_size);
            return (true, of_row as u64, of_row.saturating_sub(1) as u64);
        }
        let (pitch, size) = self.groups();
        (size.is_power_of_two(), pitch as u64, divisor(size))
    }

    /// The launch that writes the weight as a matrix of `dtype`.
    fn expand(
        &self,
        target: Target,
        dtype: DType,
        alignment: u64,
        from: &WeightSlots,
        y: Out<Elem>,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let (shifts, group_pitch, divisor) = self.walk();
        let shared = self.group_index || self.groups().1.is_multiple_of(8);
        let wide = alignment >= WIDE && self.k.is_multiple_of(8) && shared;
        let kernel =
            expand::Expand { dtype, groups: self.group_format(), shifts, width: if wide { 8 } else { 1 } };
        let args = expand::ExpandArgs {
            weight: from.weight.clone(),
            scale: from.scale.clone(),
            y,
            k: small(self.k),
            pitch: self.code_pitch() as u64,
            group_pitch,
            divisor,
        };
        step(op(self.format), &kernel, args, target, self.n, 1)
    }

    /// Elements from one row of codes to the next.
    fn code_pitch(&self) -> usize {
        if self.format.is_flat() { self.k } else { self.k.next_multiple_of(2) }
    }
}

/// A number of elements, or its logarithm where it is a power of two.
fn divisor(size: usize) -> u64 {
    if size.is_power_of_two() { size.trailing_zeros().into() } else { size as u64 }
}

/// A launch with one block for every `per_block` of `len` items; `None` if there are none.
fn step<D: KernelDef>(
    op: &'static str,
    def: &D,
    args: D::Args,
    target: Target,
    len: usize,
    per_block: u32,
) -> Result<Option<LaunchStep>, PlanError> {
    plan::cover(op, len, per_block)?.map(|grid| plan::launch(op, def, args, target, grid)).transpose()
}

impl Matmul4bitDesc {
    /// The name in the catalogue.
    pub(crate) const fn op(&self) -> &'static str {
        op(self.weight.format)
    }

    fn slots(&self) -> WeightSlots {
        let factors = [Matmul4bitArgs::nested_absmax.arg(), Matmul4bitArgs::tensor_scale.arg()];
        WeightSlots {
            weight: Matmul4bitArgs::weight.arg(),
            scale: ScaleArgs {
                scales: Matmul4bitArgs::scales.arg(),
                zero_points: Matmul4bitArgs::zero_points.arg(),
                nested_absmax: self.weight.factors(factors),
                offset: self
                    .weight
                    .offsets([Matmul4bitArgs::offset.arg(), Matmul4bitArgs::group_index.arg()]),
            },
        }
    }

    /// The plan in which aligned tensors are multiplied by the kernel of a configuration, one of [`tuning::configs`] or
    /// [`tuning::warpgroup_configs`].
    ///
    /// # Errors
    /// As [`plan`](Operation::plan); and if the kernel does not suit the shape.
    pub fn plan_with(&self, target: Target, config: Config) -> Result<Plan<Self>, PlanError> {
        self.weight.check(self.dtype, self.m)?;
        let limits = DeviceLimits::of(target);
        let choice = match config {
            Config::Stream(config) => tuning::suits(self, target, config)
                .then(|| tuning::shared_out(self, config, &limits).map(Choice::Stream)),
            Config::Warpgroup(config) => tuning::suits_warpgroups(self, target, config)
                .then(|| tuning::warpgroups(self, config, &limits).map(Choice::Warpgroup)),
        };
        let Some(choice) = choice.flatten() else {
            let expected = "one whose slices divide k and groups, with as many columns as x has rows";
            return Err(self.weight.refused("config", config.name(), expected));
        };
        self.plan_choosing(target, Some(choice))
    }

    fn plan_choosing(&self, target: Target, choice: Option<Choice>) -> Result<Plan<Self>, PlanError> {
        let (dtype, weight) = (self.dtype, &self.weight);
        let work = self.m > 0 && weight.n > 0;
        let dense = choice.is_none() && self.m > tuning::MAX_SIMT_ROWS && weight.k > 0;
        let mut variants = Vec::new();
        let mut scratch = 0;
        if work && dense {
            for alignment in [WIDE, 1] {
                let (steps, bytes) = expanded(
                    (target, alignment),
                    (weight, &self.slots()),
                    &GemmDesc {
                        bias: self.bias,
                        ..GemmDesc::new(dtype, [self.m, weight.n, weight.k], false, true)
                    },
                    Factors {
                        x: Matmul4bitArgs::x.arg(),
                        bias: Matmul4bitArgs::bias.arg(),
                        y: Matmul4bitArgs::y.arg(),
                        workspace: Matmul4bitArgs::workspace,
                    },
                )?;
                scratch = scratch.max(bytes);
                variants.push(Variant { alignment, steps });
            }
        } else {
            if let Some(choice) = choice.filter(|_| work) {
                let (steps, bytes) = match choice {
                    Choice::Stream(stream) => self.stream(target, stream)?,
                    Choice::Warpgroup(warpgroups) => (vec![self.warpgroups(target, warpgroups)?], 0),
                };
                scratch = bytes;
                variants.push(Variant { alignment: WIDE, steps });
            }
            let steps = if work { vec![self.simt(target)?] } else { Vec::new() };
            variants.push(Variant { alignment: 1, steps });
        }
        let [scales, zero_points, nested_absmax, offset, tensor_scale, group_index] = weight.scale_lengths();
        let tensors = Matmul4bitArgs::specs([
            Matmul4bitArgs::x.holds(dtype, self.m * weight.k),
            Matmul4bitArgs::weight.holds(DType::U8, weight.code_bytes()),
            Matmul4bitArgs::scales.holds(weight.scale.dtype(), scales),
            Matmul4bitArgs::zero_points
                .holds(DType::U8, zero_points)
                .optional(weight.format.has_zero_points()),
            Matmul4bitArgs::nested_absmax
                .holds(DType::F32, nested_absmax)
                .optional(weight.scale == ScaleFormat::Nested),
            Matmul4bitArgs::offset.holds(DType::F32, offset).optional(weight.scale == ScaleFormat::Nested),
            Matmul4bitArgs::tensor_scale.holds(DType::F32, tensor_scale).optional(tensor_scale > 0),
            Matmul4bitArgs::group_index.holds(DType::I32, group_index).optional(weight.group_index),
            Matmul4bitArgs::bias.holds(dtype, weight.n).optional(self.bias),
            Matmul4bitArgs::y.holds(dtype, self.m * weight.n),
            Matmul4bitArgs::workspace.scratch(DType::U8, scratch),
        ]);
        Ok(Plan::of(self.op(), Direction::Forward, target, tensors, variants))
    }

    /// The launches of the streaming kernel, and the bytes of scratch memory that they need.
    fn stream(&self, target: Target, stream: tuning::Stream) -> Result<(Vec<LaunchStep>, usize), PlanError> {
        let tuning::Stream { config, part, parts, blocks } = stream;
        let (op, weight, several) = (self.op(), &self.weight, parts > 1);
        let groups = weight.group_format();
        let bias = self.bias && !several;
        let WeightSlots { weight: codes, scale } = self.slots();
        let (pitch, size) = weight.groups();
        let slice = config.slice() as usize;
        let fine = size <= slice;
        let kernel = kernel::Stream { dtype: self.dtype, groups, config, fine, bias, parts: several };
        let x_pitch = config.x_pitch(part);
        let args = kernel::StreamArgs {
            x: Matmul4bitArgs::x.arg(),
            weight: codes,
            scale,
            bias: Matmul4bitArgs::bias.arg(),
            y: if several { Matmul4bitArgs::workspace.arg() } else { Matmul4bitArgs::y.arg() },
            m: small(self.m),
            n: small(weight.n),
            k: small(weight.k),
            part,
            x_pitch,
            group_pitch: small(pitch / slice),
            group_shift: size.div_ceil(slice).trailing_zeros(),
        };
        let shared = config.fixed_bytes(groups.is_nested()) + small(self.m) * x_pitch;
        let recorded = plan::recorded(op, &kernel, target)?;
        let mut steps = vec![plan::launch_step(op, recorded, [blocks, parts, 1], args.values(), shared)?];
        steps.extend(self.sum(target, parts)?);
        Ok((steps, self.part_bytes(parts)))
    }

    /// The launch of warpgroups.
    fn warpgroups(&self, target: Target, choice: tuning::Warpgroups) -> Result<LaunchStep, PlanError> {
        let tuning::Warpgroups { config, chunks, part, across, tiles, blocks } = choice;
        let (op, weight) = (self.op(), &self.weight);
        let WeightSlots { weight: codes, scale } = self.slots();
        let (pitch, size) = weight.groups();
        let slice = config.slice as usize;
        let kernel = warpgroup::Warpgroup {
            dtype: self.dtype,
            groups: weight.group_format(),
            config,
            fine: size <= slice,
            bias: self.bias,
        };
        let (of_codes, of_x) = kernel.tiles();
        let (rows_of_codes, rows_of_x) =
            ((weight.n as u64, weight.k as u64 / 2), (self.m as u64, weight.k as u64));
        let bytes_of_x = rows_of_x.1 * self.dtype.bytes() as u64;
        let args = warpgroup::WarpgroupArgs {
            x: TensorMapArg::over::<Elem>(&Matmul4bitArgs::x.arg(), of_x.map(rows_of_x, bytes_of_x, &[])),
            weight: TensorMapArg::over(&codes, of_codes.map(rows_of_codes, rows_of_codes.1, &[])),
            scale,
            bias: Matmul4bitArgs::bias.arg(),
            y: Matmul4bitArgs::y.arg(),
            m: small(self.m),
            n: small(weight.n),
            chunks,
            part,
            across,
            tiles,
            group_pitch: small(pitch / slice),
            group_shift: size.div_ceil(slice).trailing_zeros(),
        };
        let recorded = plan::recorded(op, &kernel, Target::specific(target.sm))?;
        plan::launch_step(op, recorded, [blocks, 1, 1], args.values(), config.shared_bytes())
    }

    /// Bytes of the sums of parts.
    const fn part_bytes(&self, parts: u32) -> usize {
        if parts > 1 { parts as usize * self.m * self.weight.n * size_of::<f32>() } else { 0 }
    }

    /// The launch that adds parts, if there are several.
    fn sum(&self, target: Target, parts: u32) -> Result<Option<LaunchStep>, PlanError> {
        if parts == 1 {
            return Ok(None);
        }
        let args = sum::SumArgs {
            parts: Matmul4bitArgs::workspace.written(),
            bias: Matmul4bitArgs::bias.arg(),
            y: Matmul4bitArgs::y.arg(),
            m: small(self.m),
            n: small(self.weight.n),
            count: parts,
        };
        let kernel = sum::Sum { dtype: self.dtype, bias: self.bias };
        let of_columns = step(self.op(), &kernel, args, target, self.weight.n, tuning::SUM_THREADS)?;
        Ok(of_columns.map(|step| {
            let [x, ..] = step.grid();
            step.with_grid([x, small(self.m), 1])
        }))
    }

    /// The launch that any alignment has.
    fn simt(&self, target: Target) -> Result<LaunchStep, PlanError> {
        let (op, weight) = (self.op(), &self.weight);
        let (shifts, group_pitch, divisor) = weight.walk();
        let kernel = simt::Simt { dtype: self.dtype, groups: weight.group_format(), shifts, bias: self.bias };
        let WeightSlots { weight: codes, scale } = self.slots();
        let args = simt::SimtArgs {
            x: Matmul4bitArgs::x.arg(),
            weight: codes,
            scale,
            bias: Matmul4bitArgs::bias.arg(),
            y: Matmul4bitArgs::y.arg(),
            m: small(self.m),
            n: small(weight.n),
            k: small(weight.k),
            pitch: weight.code_pitch() as u64,
            group_pitch,
            divisor,
        };
        let columns = (tuning::SIMT_THREADS / 32) as usize;
        let layers = self.m.div_ceil(tuning::SIMT_ROWS as usize);
        if layers > MAX_LAYERS {
            return Err(weight.refused("m", self.m, "at most 262140 where k is 0"));
        }
        let grid = [small(weight.n.div_ceil(columns)), small(layers), 1];
        plan::launch(op, &kernel, args, target, grid)
    }
}

/// The other factor of an expanded weight, and where the weight and the product go.
struct Factors {
    x: In<Elem>,
    bias: In<Elem>,
    y: Out<Elem>,
    workspace: OutSlot,
}

/// The launches that expand the weight and multiply `x` with it, and the bytes of scratch memory that they need.
fn expanded(
    (target, alignment): (Target, u64),
    (weight, slots): (&Weight4bitDesc, &WeightSlots),
    product: &GemmDesc,
    Factors { x, bias, y, workspace }: Factors,
) -> Result<(Vec<LaunchStep>, usize), PlanError> {
    let dtype = product.dtype;
    let expand = weight.expand(target, dtype, alignment, slots, workspace.arg())?;
    let plan = product.plan(target)?;
    let elements = (weight.n * weight.k * dtype.bytes()).next_multiple_of(PLACE);
    let part = Part { a: x, b: workspace.written(), bias, y, workspace: workspace.arg_at(elements as u64) };
    let steps = expand.into_iter().chain(part.steps(&plan, alignment)).collect();
    let bytes = usize::try_from(plan.workspace_bytes()).unwrap_or(usize::MAX);
    Ok((steps, elements.saturating_add(bytes)))
}

impl Operation for Matmul4bitDesc {
    type Args<'a> = Matmul4bitArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.weight.check(self.dtype, self.m)?;
        self.plan_choosing(target, tuning::choose(self, target))
    }
}

impl Operation for Matmul4bitBackwardDesc {
    type Args<'a> = Matmul4bitBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let (dtype, weight) = (self.dtype, &self.weight);
        weight.check(dtype, self.m)?;
        type Args = Matmul4bitBackwardArgs<'static>;
        let slots = WeightSlots {
            weight: Args::weight.arg(),
            scale: ScaleArgs {
                scales: Args::scales.arg(),
                zero_points: Args::zero_points.arg(),
                nested_absmax: weight.factors([Args::nested_absmax.arg(), Args::tensor_scale.arg()]),
                offset: weight.offsets([Args::offset.arg(), Args::group_index.arg()]),
            },
        };
        let mut variants = Vec::new();
        let mut scratch = 0;
        for alignment in [WIDE, 1] {
            let mut steps = Vec::new();
            if self.m > 0 && weight.k > 0 {
                let product = GemmDesc::new(dtype, [self.m, weight.k, weight.n], false, false);
                let factors = Factors {
                    x: Args::dy.arg(),
                    bias: In::address(0),
                    y: Args::dx.arg(),
                    workspace: Args::workspace,
                };
                let of_variant = expanded((target, alignment), (weight, &slots), &product, factors)?;
                steps = of_variant.0;
                scratch = scratch.max(of_variant.1);
            }
            variants.push(Variant { alignment, steps });
        }
        let [scales, zero_points, nested_absmax, offset, tensor_scale, group_index] = weight.scale_lengths();
        let nested = weight.scale == ScaleFormat::Nested;
        let tensors = Args::specs([
            Args::dy.holds(dtype, self.m * weight.n),
            Args::weight.holds(DType::U8, weight.code_bytes()),
            Args::scales.holds(weight.scale.dtype(), scales),
            Args::zero_points.holds(DType::U8, zero_points).optional(weight.format.has_zero_points()),
            Args::nested_absmax.holds(DType::F32, nested_absmax).optional(nested),
            Args::offset.holds(DType::F32, offset).optional(nested),
            Args::tensor_scale.holds(DType::F32, tensor_scale).optional(tensor_scale > 0),
            Args::group_index.holds(DType::I32, group_index).optional(weight.group_index),
            Args::dx.holds(dtype, self.m * weight.k),
            Args::workspace.scratch(DType::U8, scratch),
        ]);
        Ok(Plan::of(op(weight.format), Direction::Backward, target, tensors, variants))
    }
}
