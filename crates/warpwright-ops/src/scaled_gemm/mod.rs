//! Products of 8-bit matrices with scales: `y = activation(scale_a scale_b a b^T + bias)`.
//!
//! `a` is `m x k` and `b` is `n x k`, both row-major: the common dimension is innermost, as the weight of a linear layer has it. They hold
//! 8-bit floats or integers, and come with f32 scales as [`quantize8`](crate::quantize8) makes them: `a` stands for `scale_a a`, each scale
//! for the elements that [`Scaling`] names, and so does `b`. `y` is `m x n` of f32, f16 or bf16; `bias` has `n` elements of its type.
//! Products of integers may also come as they are, i32, without scales, bias and function. Rows may lie further apart than they are long.
//!
//! Products of 8-bit floats are exact; tensor cores of sm_90 add them with about 14 bits (DeepSeek-AI 2024, "DeepSeek-V3 technical report",
//! arXiv:2412.19437, section 3.5.2). Sums of 128 products are therefore added to the others in f32, unless [`Accumulation::Fast`] is asked
//! for; blocks with scales of their own are always added so. Integers are summed exactly, in 32 bits.
//!
//! The order of the sums depends on the shapes and the target alone. Any size and alignment is computed; tensor cores are used on sm_90
//! where rows begin at multiples of 16 bytes. A `k` of 0 gives the function of the bias.
//!
//! Convention: `torch.nn.functional.scaled_mm`, whose `mat_b` is `b^T`; `torch._int_mm`.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
mod simt;
pub mod tuning;

use warpwright_dsl::{Elem, KernelArgs, TensorMapArg};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::activation::Activation;
use crate::catalogue::Direction;
use crate::gemm::engine::{self, Store, WorkArgs};
use crate::gemm::epilogue::{self, Program, ResultArgs};
use crate::gemm::tuning::PersistentConfig;
use crate::gemm::{Lengths, MAX_BOX_STRIDE, MAX_SIDE, Matrices, WIDE, plain};
use crate::plan::{self, Operation, Plan, Variant, small};
use crate::quantize8::{BLOCK, FLOAT8_SM, Format, Scaling};
use crate::tensors::tensors;

pub use functions::{ScaledMatmulOptions, int8_matmul, scaled_matmul};
use kernel::{ScaledArgs, ScaledGemm, Scales};

/// The types of scaled results.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// The types of results of integers.
const INTEGER_DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::I32];
/// The longest sum of products of 8-bit integers that 32 bits hold: 2^14 each.
const MAX_INTEGERS: usize = (1 << 17) - 1;

/// How sums of products of 8-bit floats are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accumulation {
    /// In f32, to which sums of 128 products are added.
    #[default]
    Promoted,
    /// In the tensor cores, which keep about 14 bits on sm_90 and cut off the others: faster, with an error that grows with `k`, to 3e-3 of
    /// normal numbers and to a quarter of positive ones at 16384. `use_fast_accum` in PyTorch.
    Fast,
}

/// `y = activation(scale_a scale_b a b^T + bias)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScaledGemmDesc {
    /// Numbers of `a`: integers go with integers, and floats with floats.
    pub a: Format,
    /// Numbers of `b`.
    pub b: Format,
    /// Type of `y` and `bias`: f32, f16 or bf16; i32 for integers without scales, bias and function.
    pub y: DType,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// The common dimension.
    pub k: usize,
    /// Elements from one row of `a` to the next.
    pub lda: usize,
    /// Elements from one row of `b` to the next.
    pub ldb: usize,
    /// Elements from one row of `y` to the next.
    pub ldy: usize,
    /// The elements that share a scale of `a`; `None` if there is none. [`Scaling::Static`] is [`Scaling::TensorWise`].
    pub scaling_a: Option<Scaling>,
    /// The elements that share a scale of `b`.
    pub scaling_b: Option<Scaling>,
    /// Whether there is a `bias`.
    pub bias: bool,
    /// The function of the sum; any but the leaky one.
    pub activation: Option<Activation>,
    /// How sums are kept.
    pub accumulation: Accumulation,
}

impl ScaledGemmDesc {
    /// The product of matrices of one format without gaps.
    pub const fn new(format: Format, y: DType, [m, n, k]: [usize; 3], scaling: Scaling) -> Self {
        Self {
            a: format,
            b: format,
            y,
            m,
            n,
            k,
            lda: k,
            ldb: k,
            ldy: n,
            scaling_a: Some(scaling),
            scaling_b: Some(scaling),
            bias: false,
            activation: None,
            accumulation: Accumulation::Promoted,
        }
    }

    /// The name in the catalogue: that of the format of `a`.
    pub(crate) const fn op(&self) -> &'static str {
        op(self.a)
    }
}

/// The operation whose `a` has a format.
pub(crate) const fn op(format: Format) -> &'static str {
    match format {
        Format::E4M3 => "scaled_gemm_e4m3",
        Format::E5M2 => "scaled_gemm_e5m2",
        Format::Int8 => "scaled_gemm_int8",
    }
}

tensors! {
    /// Tensors of [`ScaledGemmDesc`]. Matrices have the elements from the first to the last that is used.
    pub struct ScaledGemmArgs<'a> {
        /// The left factor.
        a: In,
        /// The right factor.
        b: In,
        /// f32, as [`quantize8`](crate::quantize8) has them for `a`.
        scale_a: Option<In>,
        /// f32, as [`quantize8`](crate::quantize8) has them for `b`.
        scale_b: Option<In>,
        /// The vector that is added to every row.
        bias: Option<In>,
        /// The result.
        y: Out,
    }
}

impl ScaledGemmDesc {
    fn refused(&self, parameter: &'static str, got: impl ToString, expected: &'static str) -> PlanError {
        PlanError::refused(self.op(), parameter, got, expected)
    }

    fn check(&self, target: Target) -> Result<Lengths, PlanError> {
        let op = self.op();
        let integers = self.a == Format::Int8;
        if integers != (self.b == Format::Int8) {
            return Err(self.refused("b", self.b.name(), "of integers if a is, and of floats if a is"));
        }
        let expected: &[DType] = if integers { &INTEGER_DTYPES } else { &DTYPES };
        if !expected.contains(&self.y) {
            return Err(PlanError::DType { op, tensor: "y", got: self.y, expected });
        }
        if !integers && target.sm < FLOAT8_SM {
            return Err(PlanError::Target { op, needs: FLOAT8_SM, target });
        }
        let plain = self.scaling_a.is_none() && self.scaling_b.is_none() && !self.bias;
        if self.y == DType::I32 && !(plain && self.activation.is_none()) {
            return Err(self.refused("y", self.y, "f32, f16 or bf16 with scales, bias or activation"));
        }
        for (name, side) in [("m", self.m), ("n", self.n), ("k", self.k)] {
            if side > MAX_SIDE {
                return Err(self.refused(name, side, "less than 2^31"));
            }
        }
        if integers && self.k > MAX_INTEGERS {
            return Err(self.refused("k", self.k, "less than 2^17, where sums of integers fit 32 bits"));
        }
        if epilogue::code(self.activation).is_none() {
            let got = self.activation.map_or("none", Activation::name);
            return Err(self.refused("activation", got, "relu, gelu_erf, gelu_tanh, silu, sigmoid or tanh"));
        }
        let length = |name, leading, sides, size| {
            Matrices { op, leading: (name, leading), sides, count: 1, stride: 0, size }.len()
        };
        Ok(Lengths {
            a: length("lda", self.lda, [self.m, self.k], 1)?,
            b: length("ldb", self.ldb, [self.n, self.k], 1)?,
            y: length("ldy", self.ldy, [self.m, self.n], self.y.bytes())?,
        })
    }

    /// Whether tensor copies can bring `a` and `b` where both begin at multiples of 16 bytes.
    fn has_boxes(&self, target: Target) -> bool {
        let aligned = |leading: usize| leading.is_multiple_of(WIDE as usize) && leading < MAX_BOX_STRIDE;
        target.sm == 90 && self.k > 0 && aligned(self.lda) && aligned(self.ldb)
    }

    /// Whether tensor copies can store `y`.
    fn stores_boxes(&self) -> bool {
        let bytes = self.ldy.saturating_mul(self.y.bytes());
        let whole = engine::ends_whole(self.n, self.y);
        whole && bytes.is_multiple_of(WIDE as usize) && bytes < MAX_BOX_STRIDE
    }

    /// How kernels use the scales.
    pub fn scales(&self) -> Scales {
        let of = |scaling| match scaling {
            Some(Scaling::Static) => Some(Scaling::TensorWise),
            other => other,
        };
        let scales = Scales { a: of(self.scaling_a), b: of(self.scaling_b), promotes: false };
        let promotes = self.a != Format::Int8 && self.accumulation == Accumulation::Promoted;
        Scales { promotes: promotes && !scales.by_slices(), ..scales }
    }

    fn program(&self) -> Program {
        Program { bias: self.bias, activation: self.activation, ..Program::default() }
    }

    /// The plan in which aligned tensors are multiplied by the kernel of `config`, one of [`tuning::configs`].
    ///
    /// # Errors
    /// As [`plan`](Operation::plan); and if the kernel's copies cannot reach the tensors.
    pub fn plan_with(&self, target: Target, config: PersistentConfig) -> Result<Plan<Self>, PlanError> {
        if !self.has_boxes(target) {
            let expected = "a multiple of 16, on sm_90, with a k of at least 1";
            return Err(self.refused("lda", self.lda, expected));
        }
        if !tuning::suits(self.scales(), config) {
            let expected = "one with 64 rows for each of its groups where sums are promoted";
            return Err(self.refused("config", config.name(), expected));
        }
        self.plan_choosing(target, Some(config))
    }

    fn plan_choosing(
        &self,
        target: Target,
        config: Option<PersistentConfig>,
    ) -> Result<Plan<Self>, PlanError> {
        let lengths = self.check(target)?;
        let work = self.m > 0 && self.n > 0;
        let mut variants = Vec::new();
        if work && self.has_boxes(target) {
            let config = match config {
                Some(config) => config,
                None => tuning::choose(target, self.scales(), [self.m, self.n, self.k], self.y),
            };
            variants.push(Variant { alignment: WIDE, steps: vec![self.boxed(target, config)?] });
        }
        let steps = if work { vec![self.plain(target)?] } else { Vec::new() };
        variants.push(Variant { alignment: 1, steps });
        let count = |scaling: Option<Scaling>, rows| {
            scaling.map_or(0, |scaling| scaling.shape(rows, self.k).iter().product())
        };
        let tensors = ScaledGemmArgs::specs([
            ScaledGemmArgs::a.holds(self.a.dtype(), lengths.a),
            ScaledGemmArgs::b.holds(self.b.dtype(), lengths.b),
            ScaledGemmArgs::scale_a
                .holds(DType::F32, count(self.scaling_a, self.m))
                .optional(self.scaling_a.is_some()),
            ScaledGemmArgs::scale_b
                .holds(DType::F32, count(self.scaling_b, self.n))
                .optional(self.scaling_b.is_some()),
            ScaledGemmArgs::bias.holds(self.y, self.n).optional(self.bias),
            ScaledGemmArgs::y.holds(self.y, lengths.y),
        ]);
        Ok(Plan::of(self.op(), Direction::Forward, target, tensors, variants))
    }

    fn results(&self) -> ResultArgs {
        let y = ScaledGemmArgs::y.arg();
        ResultArgs::new(warpwright_dsl::In::address(0), ScaledGemmArgs::bias.arg(), y)
    }

    /// The launch with tensor copies.
    fn boxed(&self, target: Target, config: PersistentConfig) -> Result<LaunchStep, PlanError> {
        let store = if self.stores_boxes() { Store::Panels } else { Store::Rows };
        let (program, scales) = (self.program(), self.scales());
        let kernel = ScaledGemm { a: self.a, b: self.b, y: self.y, config, program, scales, store };
        let blocks = kernel.blocks();
        let order = config.order(self.op(), [self.m, self.n, 1])?;
        let grid = config.blocks(target, &order);
        let one = (1, WIDE);
        let map = |tile: warpwright_dsl::PanelTile, rows: usize, leading: usize| {
            tile.map((rows as u64, self.k as u64), leading as u64, &[one])
        };
        let to = self.results();
        let (sizes, leading) = ((self.m as u64, self.n as u64), self.ldy as u64 * self.y.bytes() as u64);
        let values = ScaledArgs {
            work: WorkArgs {
                a: TensorMapArg::over(
                    &ScaledGemmArgs::a.arg::<Elem>(),
                    map(blocks.slices.0, self.m, self.lda),
                ),
                b: TensorMapArg::over(
                    &ScaledGemmArgs::b.arg::<Elem>(),
                    map(blocks.part_of_b, self.n, self.ldb),
                ),
                y_boxes: blocks.boxes_of_results(&to.y, sizes, leading, one),
                to,
                m: small(self.m),
                n: small(self.n),
                steps: small(self.k.div_ceil(BLOCK)),
                order,
                ldy: self.ldy as u64,
                stride_y: 0,
                batch_a: 0,
                batch_b: 0,
            },
            scale_a: ScaledGemmArgs::scale_a.arg(),
            scale_b: ScaledGemmArgs::scale_b.arg(),
        }
        .values();
        blocks.launch(self.op(), target, &kernel, grid, values)
    }

    /// The launch that any target and alignment has.
    fn plain(&self, target: Target) -> Result<LaunchStep, PlanError> {
        let kernel =
            simt::Simt { a: self.a, b: self.b, y: self.y, program: self.program(), scales: self.scales() };
        let side = plain::SIDE as usize;
        let tiles = self.m.div_ceil(side).saturating_mul(self.n.div_ceil(side));
        let grid = plan::cover(self.op(), tiles, 1)?.unwrap_or([1; 3]);
        let args = simt::SimtArgs {
            a: ScaledGemmArgs::a.arg(),
            b: ScaledGemmArgs::b.arg(),
            to: self.results(),
            m: small(self.m),
            n: small(self.n),
            depth: small(self.k),
            lda: self.lda as u64,
            ldb: self.ldb as u64,
            ldy: self.ldy as u64,
            scale_a: ScaledGemmArgs::scale_a.arg(),
            scale_b: ScaledGemmArgs::scale_b.arg(),
        };
        plan::launch(self.op(), &kernel, args, target, grid)
    }
}

impl Operation for ScaledGemmDesc {
    type Args<'a> = ScaledGemmArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_choosing(target, None)
    }
}
