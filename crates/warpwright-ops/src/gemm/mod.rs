//! Products of matrices: `y = activation(alpha op(a) op(b) + beta c + bias)`, one or a batch.
//!
//! `op(a)` is `m x k` and `op(b)` is `k x n`; with `transpose_a` the tensor holds `k x m`, with `transpose_b` `n x k`. `c` and `y`
//! are `m x n`, `bias` has `n` elements and is added to every row. All are row-major of one element type, with a leading
//! dimension (elements from one row to the next) that may be longer than a row, and matrices of a batch a stride apart; a
//! stride of 0 gives every product the same `a` or `b`. Source: the Level 3 BLAS (Dongarra et al. 1990), with an epilogue.
//!
//! `f16` and `bf16` are summed in `f32` on tensor cores and rounded once; before sm_80 `bf16` is summed by the ordinary units.
//! Operands whose rows begin anywhere are packed to multiples of 16 bytes by a launch before, where that is faster.
//! `f32` is multiplied and summed as exactly as in `f32`: large products are made of three on tensor cores, from sm_80 on of `tf32`
//! (3xTF32), on sm_90 of `f16` with scales for rows and columns; and of one of `tf32` where [`Precision::Tf32`] is asked for. `f64` is multiplied and summed in `f64`. The order of the sums
//! depends on the shapes and the target alone, and for one of `f32` on whether it is finite and on the magnitudes in its row and column, so results are the same from run to
//! run, and those of a row are the same whatever is in others. NaN and infinities spread as in arithmetic, except that with
//! `beta = 0` no `c` is read.
//!
//! The gradients of a product are products: `da = alpha dy op(b)^T`, `db = alpha op(a)^T dy`. That of a bias, the sums of the columns of
//! `dy`, comes with `db` where [`bias_gradient`](GemmDesc::bias_gradient) asks for it: on sm_90 a warp of the blocks of large products adds up
//! the slices that are there to be multiplied; elsewhere another launch reads `dy` once more.

mod activated;
pub(crate) mod engine;
pub(crate) mod epilogue;
mod f16x3;
mod functions;
mod gated;
mod gated_backward;
pub(crate) mod groups;
pub(crate) mod kernel;
mod lengths;
pub(crate) mod pack;
mod part;
pub(crate) mod persistent;
pub(crate) mod plain;
pub mod reference;
mod rows;
pub(crate) mod samples;
mod shared;
mod simt;
mod split;
mod tensor;
mod tf32;
pub mod tuning;
mod warpgroup;

use warpwright_dsl::{Elem, In, InOut, KernelArgs, Major, MmaAtom, Out, PanelTile, TensorMapArg};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{LaunchStep, TensorRef};

use crate::activation::Activation;
use crate::catalogue::Direction;
use crate::plan::embedded::value_of;
use crate::plan::{self, Operation, Plan, PlanParts, Real, Variant, small};
use crate::reduce::{ReduceArgs, ReduceDesc, ReduceFunction};
use crate::tensors::tensors;
use crate::{Binding, PlanError};

pub use activated::{
    ActivationLinearBackwardArgs, ActivationLinearBackwardDesc, LinearActivationArgs, LinearActivationDesc,
};
use engine::MOST_PIECES;
use epilogue::{EpilogueArgs, ResultArgs};
pub use functions::*;
pub use gated::{GatedLinearArgs, GatedLinearDesc};
pub use gated_backward::{GatedActivationLinearBackwardArgs, GatedActivationLinearBackwardDesc};
use kernel::Gemm;
pub(crate) use lengths::{Lengths, Matrices};
use pack::{Operands, Source};
pub(crate) use part::Part;
use tuning::{Access, Choice, Config, Shape, Sums};
use warpgroup::WarpgroupGemm;

/// The name of the operation.
const OP: &str = "gemm";

/// How exact the products of `f32` are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// As exact as the type.
    #[default]
    Full,
    /// Operands are rounded to `tf32`, which has 11 bits, and products summed in `f32`: several times as fast, with errors of 3e-4. From
    /// sm_80 on.
    Tf32,
}

impl Precision {
    /// `full` or `tf32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Tf32 => "tf32",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Full, Self::Tf32].into_iter().find(|precision| precision.name() == name)
    }

    /// Those that products of `dtype` have.
    pub(crate) fn of(dtype: DType, target: Target) -> &'static [Self] {
        let rounds = dtype == DType::F32 && MmaAtom::Tf32.exists(target);
        if rounds { &[Self::Full, Self::Tf32] } else { &[Self::Full] }
    }

    /// Whether elements of `dtype` are multiplied so by primitive `op`.
    pub(crate) fn check(self, op: &'static str, dtype: DType) -> Result<(), PlanError> {
        if self == Self::Full || dtype == DType::F32 {
            return Ok(());
        }
        let (parameter, expected) = ("precision", "full for elements other than f32");
        Err(PlanError::Parameter { op, parameter, got: self.name().to_owned(), expected })
    }

    /// Whether `target` can.
    pub(crate) fn check_target(self, op: &'static str, target: Target) -> Result<(), PlanError> {
        let needs = 80;
        if self == Self::Full || target.sm >= needs {
            return Ok(());
        }
        Err(PlanError::Target { op, needs, target })
    }
}

/// `y = activation(alpha op(a) op(b) + beta c + bias)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GemmDesc {
    /// Element type of all tensors.
    pub dtype: DType,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// The common dimension.
    pub k: usize,
    /// Whether `a` holds `k x m`.
    pub transpose_a: bool,
    /// Whether `b` holds `n x k`.
    pub transpose_b: bool,
    /// Elements from one row of `a` to the next.
    pub lda: usize,
    /// Elements from one row of `b` to the next.
    pub ldb: usize,
    /// Elements from one row of `y`, and of `c`, to the next.
    pub ldy: usize,
    /// Matrices.
    pub batch: usize,
    /// Elements from one matrix of `a` to the next.
    pub stride_a: usize,
    /// Elements from one matrix of `b` to the next.
    pub stride_b: usize,
    /// Elements from one matrix of `y`, and of `c`, to the next.
    pub stride_y: usize,
    /// Factor of the product.
    pub alpha: Real,
    /// Factor of `c`, which is there unless this is 0.
    pub beta: Real,
    /// Whether there is a `bias`.
    pub bias: bool,
    /// The function of the sum; any but the leaky one.
    pub activation: Option<Activation>,
    /// How exact products are; [`Precision::Tf32`] is for `f32`.
    pub precision: Precision,
    /// Whether there is a `dbias`: the sums of the rows of `op(a)`, without `alpha`. Where `a` is the gradient of what a linear layer gave
    /// and `b` what it took, `y` is the gradient of its weight and `dbias` that of its bias. For one matrix `a` that is transposed and lies
    /// without gaps.
    pub bias_gradient: bool,
}

impl GemmDesc {
    /// `y = op(a) op(b)` of matrices without gaps.
    pub const fn new(dtype: DType, [m, n, k]: [usize; 3], transpose_a: bool, transpose_b: bool) -> Self {
        Self {
            dtype,
            m,
            n,
            k,
            transpose_a,
            transpose_b,
            lda: if transpose_a { m } else { k },
            ldb: if transpose_b { k } else { n },
            ldy: n,
            batch: 1,
            stride_a: m.saturating_mul(k),
            stride_b: k.saturating_mul(n),
            stride_y: m.saturating_mul(n),
            alpha: Real::new(1.0),
            beta: Real::new(0.0),
            bias: false,
            activation: None,
            precision: Precision::Full,
            bias_gradient: false,
        }
    }

    /// Rows and columns of `a` and `b` in memory.
    const fn stored(&self) -> ([usize; 2], [usize; 2]) {
        let a = if self.transpose_a { [self.k, self.m] } else { [self.m, self.k] };
        let b = if self.transpose_b { [self.n, self.k] } else { [self.k, self.n] };
        (a, b)
    }

    /// How the kernels see `a` and `b`.
    const fn major(&self) -> (Major, Major) {
        let a = if self.transpose_a { Major::Mn } else { Major::K };
        let b = if self.transpose_b { Major::K } else { Major::Mn };
        (a, b)
    }
}

/// The addend, which `beta` multiplies.
#[derive(Clone, Copy, Debug, Default)]
pub enum Addend<'a> {
    /// Nothing: `beta` is 0.
    #[default]
    Absent,
    /// A tensor of the layout of `y`.
    Tensor(TensorRef<'a>),
    /// Elements of `y`.
    Result,
}

impl<'a> Addend<'a> {
    /// `output` is the slot of `y`.
    fn binding(self, output: usize) -> Binding<'a> {
        match self {
            Self::Absent => Binding::Absent,
            Self::Tensor(c) => Binding::Input(c),
            Self::Result => Binding::InPlace { output },
        }
    }
}

tensors! {
    /// Tensors of [`GemmDesc`]. Each has the elements from the first to the last that is used.
    pub struct GemmArgs<'a> {
        /// The left factor.
        a: In,
        /// The right factor.
        b: In,
        /// The matrix that is added.
        c: Addend<y>,
        /// The vector that is added to every row.
        bias: Option<In>,
        /// The result.
        y: Out,
        /// The sums of the rows of `op(a)`, `m` elements.
        dbias: Option<Out>,
        /// Scratch memory, if the plan needs some.
        workspace: Option<Out>,
    }
}

impl Operation for GemmDesc {
    type Args<'a> = GemmArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_choosing(target, None, |wide| self.choose(target, wide, Sums::Whole))
    }
}

/// Bytes that vectors begin at a multiple of.
pub(crate) const WIDE: u64 = 16;
/// Bytes of a line of the L2 cache: rows of copies begin at multiples, so that no slice of one lies in two lines.
pub(crate) const LINE: usize = 128;
/// Blocks of a grid along y and z.
pub(crate) const MAX_LAYERS: usize = 65_535;
/// Rows, columns and common dimension that the kernels count.
pub(crate) const MAX_SIDE: usize = i32::MAX as usize;

/// Bytes from one row or matrix to the next that a tensor map cannot describe any more.
pub(crate) const MAX_BOX_STRIDE: usize = 1 << 40;

impl GemmDesc {
    fn shape(&self) -> Shape {
        let [m, n, k, batch] = [self.m, self.n, self.k, self.batch].map(|x| x as u64);
        Shape { m, n, k, batch }
    }

    fn parameter(parameter: &'static str, got: impl ToString, expected: &'static str) -> PlanError {
        PlanError::Parameter { op: OP, parameter, got: got.to_string(), expected }
    }

    fn check(&self) -> Result<Lengths, PlanError> {
        if !DType::FLOATS.contains(&self.dtype) {
            let (got, expected) = (self.dtype, &DType::FLOATS);
            return Err(PlanError::DType { op: OP, tensor: "a", got, expected });
        }
        self.precision.check(OP, self.dtype)?;
        for (name, side) in [("m", self.m), ("n", self.n), ("k", self.k)] {
            if side > MAX_SIDE {
                return Err(Self::parameter(name, side, "less than 2^31"));
            }
        }
        for (name, factor) in [("alpha", self.alpha), ("beta", self.beta)] {
            if !factor.get().is_finite() {
                return Err(Self::parameter(name, factor.get(), "finite"));
            }
        }
        if epilogue::code(self.activation).is_none() {
            let got = self.activation.map_or("none", Activation::name);
            return Err(Self::parameter(
                "activation",
                got,
                "relu, gelu_erf, gelu_tanh, silu, sigmoid or tanh",
            ));
        }
        if self.bias_gradient && !(self.transpose_a && self.lda == self.m && self.batch == 1) {
            let got =
                format!("a transposed: {}, lda {}, {} matrices", self.transpose_a, self.lda, self.batch);
            return Err(Self::parameter("bias_gradient", got, "one transposed a without gaps"));
        }
        let (a, b) = self.stored();
        let length = |name, leading, sides, stride| {
            let (count, size) = (self.batch, self.dtype.bytes());
            Matrices { op: OP, leading: (name, leading), sides, count, stride, size }.len()
        };
        let lengths = Lengths {
            a: length("lda", self.lda, a, self.stride_a)?,
            b: length("ldb", self.ldb, b, self.stride_b)?,
            y: length("ldy", self.ldy, [self.m, self.n], self.stride_y)?,
        };
        let matrix = self.m.saturating_sub(1).saturating_mul(self.ldy).saturating_add(self.n);
        if self.batch > 1 && lengths.y > 0 && self.stride_y < matrix {
            return Err(Self::parameter("stride_y", self.stride_y, "at least the extent of a matrix"));
        }
        Ok(lengths)
    }

    /// The plan in which aligned tensors are multiplied by one kernel, one of [`tuning::configs`], whichever is the fastest. Operands
    /// whose rows or matrices do not begin at multiples of 16 bytes are packed before.
    ///
    /// # Errors
    /// As [`plan`](Operation::plan); and if the kernel's copies cannot reach the tensors.
    pub fn plan_with(&self, target: Target, config: Config) -> Result<Plan<Self>, PlanError> {
        if config.takes_boxes() && !self.has_boxes() {
            return Err(Self::parameter(
                "lda",
                self.lda,
                "such that tensor maps can describe a and b, which lie along k if they are f32",
            ));
        }
        if config.precision(self.dtype) != self.precision {
            return Err(Self::parameter("precision", self.precision.name(), "that of the kernel"));
        }
        if let Config::F16x3(layout) = config
            && !(layout.multiplies_pairs() && tuning::has_planes(self.shape()))
        {
            let expected = "one whose groups have 64 rows and at most 128 columns, four stages, and planes that tensor maps describe";
            return Err(Self::parameter("config", layout.name(), expected));
        }
        if let Config::Shared(layout) = config {
            self.sharing(target, layout, false)?;
        }
        if !config.takes_depth(self.k as u64) {
            return Err(Self::parameter(
                "k",
                self.k,
                "not 0, and a multiple of 4 where operands are turned, for this kernel",
            ));
        }
        self.plan_choosing(target, Some(config), |wide| match wide {
            true => Ok(tuning::share(target, self.shape(), config)),
            false => self.choose(target, false, Sums::Whole),
        })
    }

    fn plan_choosing(
        &self,
        target: Target,
        config: Option<Config>,
        choose: impl Fn(bool) -> Result<Choice, PlanError>,
    ) -> Result<Plan<Self>, PlanError> {
        let lengths = self.check()?;
        let element = self.dtype.bytes() as u64;
        let work = self.m > 0 && self.n > 0 && self.batch > 0;
        let mut variants = Vec::new();
        let mut scratch = 0;
        // Operands are split wherever their rows begin, but vectors of results and biases are not for any alignment.
        let whole = if work { Some(choose(true)?) } else { None };
        let splits = whole.is_some_and(|choice| matches!(choice.config, Config::F16x3(_)));
        for (wide, alignment) in [(true, WIDE), (false, element)] {
            let mut steps = Vec::new();
            if wide && !self.is_wide() && !splits {
                if let Some(packed) = self.packed(target, config, choose(false)?)? {
                    scratch = scratch.max(packed.scratch);
                    self.steps_packed(target, &packed, &mut steps)?;
                    let sums = self.sums_of_rows(target, Some(packed.choice()), alignment, &mut steps)?;
                    scratch = scratch.max(sums);
                    variants.push(Variant { alignment, steps });
                }
                continue;
            }
            let choice = match whole {
                Some(whole) if wide => Some(whole),
                Some(_) => Some(choose(false)?),
                None => None,
            };
            if let Some(choice) = choice {
                scratch = scratch.max(self.scratch(target, choice)?);
                self.steps(target, choice, Operands::GIVEN, &mut steps)?;
            }
            scratch = scratch.max(self.sums_of_rows(target, choice, alignment, &mut steps)?);
            variants.push(Variant { alignment, steps });
        }
        Ok(self.planned(target, &lengths, scratch, variants))
    }

    /// The plan of these launches, with so many sums in the workspace.
    fn planned(
        &self,
        target: Target,
        lengths: &Lengths,
        scratch: usize,
        variants: Vec<Variant>,
    ) -> Plan<Self> {
        let (dtype, sums) = (self.dtype, epilogue::sums_dtype(self.dtype));
        let tensors = GemmArgs::specs([
            GemmArgs::a.holds(dtype, lengths.a),
            GemmArgs::b.holds(dtype, lengths.b),
            GemmArgs::c.holds(dtype, lengths.y).optional(self.beta.get() != 0.0),
            GemmArgs::bias.holds(dtype, self.n).optional(self.bias),
            GemmArgs::y.holds(dtype, lengths.y),
            GemmArgs::dbias.holds(dtype, self.m).optional(self.bias_gradient),
            GemmArgs::workspace.scratch(sums, scratch),
        ]);
        let workspace_bytes = (scratch * sums.bytes()) as u64;
        let direction = Direction::Forward;
        Plan::new(PlanParts { op: OP, direction, target, tensors, variants, workspace_bytes })
    }

    /// Whether `dbias` comes with the product: where few tiles along the columns share the rows, and where these are of one warpgroup, warps that
    /// add them up are slower than the tensor cores.
    fn sums_beside(&self, config: Config) -> bool {
        let (Config::Persistent(config) | Config::Shared(config)) = config else { return false };
        self.bias_gradient
            && self.dtype.bytes() == 2
            && config.groups > 1
            && self.pieces(config) <= MOST_PIECES
    }

    /// The launches of `dbias` behind those of the product by `choice`, which may give it itself, and the elements of the workspace, which
    /// the product no longer needs.
    fn sums_of_rows(
        &self,
        target: Target,
        choice: Option<Choice>,
        alignment: u64,
        steps: &mut Vec<LaunchStep>,
    ) -> Result<usize, PlanError> {
        if !self.bias_gradient || choice.is_some_and(|choice| self.sums_beside(choice.config)) {
            return Ok(0);
        }
        let desc = ReduceDesc {
            function: ReduceFunction::Sum,
            dtype: self.dtype,
            y_dtype: self.dtype,
            shape: vec![self.k, self.m],
            dims: vec![0],
        };
        let plan = desc.plan(target)?;
        let places = [
            (value_of(&ReduceArgs::x.arg::<Elem>()), value_of(&GemmArgs::a.arg::<Elem>())),
            (value_of(&ReduceArgs::y.arg::<Elem>()), value_of(&GemmArgs::dbias.arg::<Elem>())),
            (value_of(&ReduceArgs::workspace.arg::<Elem>()), value_of(&GemmArgs::workspace.arg::<Elem>())),
        ];
        steps.extend(plan.embedded(alignment, &places));
        Ok((plan.workspace_bytes() as usize).div_ceil(epilogue::sums_dtype(self.dtype).bytes()))
    }

    /// Whether every row and matrix of `a` and `b` begins at a multiple of 16 bytes if the first does.
    fn is_wide(&self) -> bool {
        self.is_aligned(self.lda, self.stride_a) && self.is_aligned(self.ldb, self.stride_b)
    }

    /// Whether rows `leading` elements apart in matrices `stride` elements apart begin at multiples of 16 bytes if the first does.
    fn is_aligned(&self, leading: usize, stride: usize) -> bool {
        let per_vector = WIDE as usize / self.dtype.bytes();
        leading.is_multiple_of(per_vector) && (self.batch <= 1 || stride.is_multiple_of(per_vector))
    }

    /// Whether tensor maps can describe `a` and `b` as products of warpgroups read them, if every row and matrix begins at a multiple of 16 bytes.
    fn has_boxes(&self) -> bool {
        let near = |elements: usize| elements.saturating_mul(self.dtype.bytes()) < MAX_BOX_STRIDE;
        // Products read elements of other sizes along the common dimension alone.
        let read = self.dtype.bytes() == 2 || self.major() == (Major::K, Major::K);
        read && self.k > 0 && [self.lda, self.ldb, self.stride_a, self.stride_b].into_iter().all(near)
    }

    /// Elements of the workspace of a product.
    fn scratch(&self, target: Target, choice: Choice) -> Result<usize, PlanError> {
        match choice.config {
            Config::F16x3(_) => Ok(self.f16x3_scratch()),
            _ => self.partials(target, choice),
        }
    }

    /// Sums that blocks leave for others to add.
    fn partials(&self, target: Target, choice: Choice) -> Result<usize, PlanError> {
        if let Config::Shared(config) = choice.config {
            return Ok(self.shared_partials(target, config, false)?[1]);
        }
        let parts = choice.parts(self.k as u64);
        if parts == 1 {
            return Ok(0);
        }
        let sums = self.m.checked_mul(self.n).and_then(|len| len.checked_mul(self.batch));
        sums.and_then(|len| len.checked_mul(usize::try_from(parts).ok()?))
            .ok_or_else(|| Self::parameter("m x n", self.m, "such that the workspace is addressable"))
    }

    /// The launches of a variant: batches beyond what a grid has along z are further launches.
    fn steps(
        &self,
        target: Target,
        choice: Choice,
        operands: Operands,
        steps: &mut Vec<LaunchStep>,
    ) -> Result<(), PlanError> {
        let parts = choice.parts(self.k as u64);
        let size = self.dtype.bytes() as u64;
        if let Config::F16x3(_) = choice.config {
            self.split_operands(target, steps)?;
        }
        for first in (0..self.batch).step_by(MAX_LAYERS) {
            let count = (self.batch - first).min(MAX_LAYERS);
            let offset = |stride: usize| first as u64 * stride as u64 * size;
            let split = parts > 1;
            let at = offset(self.stride_y);
            let result =
                ResultArgs::new(GemmArgs::c.arg_at(at), GemmArgs::bias.arg(), GemmArgs::y.arg_at(at));
            let product = Product {
                a: match operands.a {
                    Source::Tensor => GemmArgs::a.arg_at(offset(self.stride_a)),
                    Source::Workspace(at) => GemmArgs::workspace.written_at(at),
                },
                b: match operands.b {
                    Source::Tensor => GemmArgs::b.arg_at(offset(self.stride_b)),
                    Source::Workspace(at) => GemmArgs::workspace.written_at(at),
                },
                to: match split {
                    true => ResultArgs { y: GemmArgs::workspace.arg(), ..result.clone() },
                    false => result.clone(),
                },
                count,
                split,
                onto: false,
                epilogue: if split { EpilogueArgs::NONE } else { self.epilogue() },
            };
            if let Config::Shared(config) = choice.config {
                self.shared_steps(target, config, false, product, steps)?;
                continue;
            }
            steps.push(self.launch(target, choice, product)?);
            if split {
                let def = split::SumParts { dtype: self.dtype };
                let sum = split::SumArgs {
                    partials: GemmArgs::workspace.written(),
                    to: result,
                    m: small(self.m),
                    n: small(self.n),
                    parts: u32::try_from(parts).unwrap_or(1),
                    ldy: self.ldy as u64,
                    stride_y: self.stride_y as u64,
                    epilogue: self.epilogue(),
                };
                let sums = self.m.saturating_mul(self.n);
                let cover = plan::cover(OP, sums, split::THREADS)?.unwrap_or([1; 3]);
                let kernel = plan::recorded(OP, &def, target)?;
                steps.push(LaunchStep::new(kernel, [cover[0], 1, small(count)], sum.values()));
            }
        }
        Ok(())
    }

    /// One launch that stores `op(a) op(b)` without gaps as it was summed, in `f32` (`f64` for `f64`): for operations that
    /// go on with it. Factors, `c` and the rest of the epilogue are left out. `wide` if `a` and `b` begin at multiples of
    /// 16 bytes. Blocks may share the common dimension in at most `most` parts, whose sums lie one behind the other at what `y`
    /// says of their number, which is returned.
    pub(crate) fn sums_in_parts(
        &self,
        target: Target,
        wide: bool,
        most: u64,
        [a, b]: [In<Elem>; 2],
        y: impl FnOnce(u64) -> Out<Elem>,
    ) -> Result<(LaunchStep, u64), PlanError> {
        self.check()?;
        let choice = self.choose(target, wide && self.is_wide(), Sums::Parts(most))?;
        let parts = choice.parts(self.k as u64);
        let to = ResultArgs::new(In::address(0), In::address(0), y(parts));
        let epilogue = EpilogueArgs::NONE;
        let product = Product { a, b, to, count: 1, split: true, onto: false, epilogue };
        Ok((self.launch(target, choice, product)?, parts))
    }

    /// The same in one part, stored at `y` or, if `adds`, added to what is there.
    pub(crate) fn sums_onto(
        &self,
        target: Target,
        wide: bool,
        [a, b]: [In<Elem>; 2],
        y: InOut<Elem>,
        adds: bool,
    ) -> Result<LaunchStep, PlanError> {
        self.check()?;
        let choice = self.choose(target, wide && self.is_wide(), Sums::Parts(1))?;
        let flags = if adds { epilogue::HAS_C } else { 0 };
        let epilogue = EpilogueArgs { beta: 1.0, flags, ..EpilogueArgs::NONE };
        let y = value_of(&y);
        let c = if adds { In::from(y.clone()) } else { In::address(0) };
        let to = ResultArgs::new(c, In::address(0), Out::from(y));
        self.launch(target, choice, Product { a, b, to, count: 1, split: true, onto: true, epilogue })
    }

    /// The kernel, and how blocks share the common dimension.
    fn choose(&self, target: Target, wide: bool, sums: Sums) -> Result<Choice, PlanError> {
        let access = match wide {
            true if self.has_boxes() => Access::TensorMap,
            true => Access::Wide,
            false => Access::Elements,
        };
        let types = (self.dtype, self.precision);
        // Sums of rows that do not come with the product read `dy` once more.
        let dy = tuning::sums_us((self.m as u64).saturating_mul(self.k as u64).saturating_mul(self.bytes(1)));
        let behind = |config| if self.bias_gradient && !self.sums_beside(config) { dy } else { 0.0 };
        let choice = tuning::choose_for(types, target, self.shape(), access, sums, behind);
        self.precision.check_target(OP, target)?;
        choice.ok_or(PlanError::Target { op: OP, needs: 75, target })
    }

    /// Microseconds of the product, as the choice of its kernel says.
    fn us(&self, target: Target) -> Result<f64, PlanError> {
        let choice = self.choose(target, true, Sums::Whole)?;
        Ok(tuning::us((self.dtype, self.precision), target, self.shape(), choice))
    }

    /// The launch of products from one kernel.
    fn launch(&self, target: Target, choice: Choice, product: Product) -> Result<LaunchStep, PlanError> {
        let major = self.major();
        let count = product.count;
        let (m, n, depth) = (small(self.m), small(self.n), small(self.k));
        let part = u32::try_from(choice.part).unwrap_or(u32::MAX);
        // Sums of parts lie without gaps, and nothing is done to them yet.
        let (ldy, stride_y) =
            if product.split { (self.n, self.m * self.n) } else { (self.ldy, self.stride_y) };
        let (ldy, stride_y) = (ldy as u64, stride_y as u64);
        let (kernel, values) = match choice.config {
            Config::Persistent(config) | Config::Shared(config) => {
                return self.launch_persistent(target, config, product);
            }
            Config::F16x3(config) => {
                return self.launch_f16x3(target, config, product);
            }
            Config::Tiled(config) => {
                let Product { a, b, to, split, epilogue, .. } = product;
                let values = kernel::GemmArgs {
                    a,
                    b,
                    to,
                    m,
                    n,
                    depth,
                    part,
                    lda: self.lda as u64,
                    ldb: self.ldb as u64,
                    ldy,
                    stride_a: self.stride_a as u64,
                    stride_b: self.stride_b as u64,
                    stride_y,
                    epilogue,
                };
                let def = Gemm { dtype: self.dtype, a: major.0, b: major.1, config, split };
                (plan::recorded(OP, &def, target)?, values.values())
            }
            Config::Warpgroup(config) => {
                let Product { a, b, to, split, onto, epilogue, .. } = product;
                let (tile_a, tile_b) = config.tiles(self.dtype, major.0, major.1);
                let values = warpgroup::WarpgroupArgs {
                    a: self.boxes(&a, tile_a, (self.m, self.lda), (count, self.stride_a)),
                    b: self.boxes(&b, tile_b, (self.n, self.ldb), (count, self.stride_b)),
                    to,
                    m,
                    n,
                    depth,
                    part,
                    ldy,
                    stride_y,
                    batch_a: u32::from(self.stride_a > 0),
                    batch_b: u32::from(self.stride_b > 0),
                    epilogue,
                };
                let split = split && !onto;
                let def = WarpgroupGemm { dtype: self.dtype, a: major.0, b: major.1, config, split, onto };
                (plan::recorded(OP, &def, Target::specific(target.sm))?, values.values())
            }
        };
        let parts = u32::try_from(choice.parts(self.k as u64)).unwrap_or(1);
        let shared = choice.config.shared_bytes(self.dtype, major.0, major.1);
        let grid = [self.grid(choice)?, parts, small(count)];
        plan::launch_step(OP, kernel, grid, values, shared)
    }

    /// The tensor map of an operand.
    fn boxes(
        &self,
        operand: &In<Elem>,
        tile: PanelTile,
        (outer, leading): (usize, usize),
        (count, stride): (usize, usize),
    ) -> TensorMapArg {
        let matrices = self.matrices(count, stride);
        let map = tile.map((outer as u64, self.k as u64), self.bytes(leading), &[matrices]);
        TensorMapArg::over(operand, map)
    }

    /// Bytes of so many elements.
    const fn bytes(&self, elements: usize) -> u64 {
        elements as u64 * self.dtype.bytes() as u64
    }

    /// The last dimension of a tensor map over `count` matrices, `stride` elements apart, and the bytes between them.
    fn matrices(&self, count: usize, stride: usize) -> (u64, u64) {
        // One matrix for all products, or nothing to go on to.
        if stride == 0 || count == 1 { (1, WIDE) } else { (count as u64, self.bytes(stride)) }
    }

    /// Blocks of a product.
    fn grid(&self, choice: Choice) -> Result<u32, PlanError> {
        let (rows, cols) = choice.config.extent();
        let blocks = self.m.div_ceil(rows as usize).saturating_mul(self.n.div_ceil(cols as usize));
        Ok(plan::cover(OP, blocks, 1)?.map_or(1, |grid| grid[0]))
    }

    /// The epilogue of whole products.
    fn epilogue(&self) -> EpilogueArgs {
        let c = if self.beta.get() == 0.0 { 0 } else { epilogue::HAS_C };
        EpilogueArgs {
            alpha: self.alpha.get(),
            beta: self.beta.get(),
            flags: c | if self.bias { epilogue::HAS_BIAS } else { 0 },
            activation: epilogue::code(self.activation).unwrap_or(0),
        }
    }
}

/// The tensors of one launch.
struct Product {
    a: In<Elem>,
    b: In<Elem>,
    to: ResultArgs,
    /// Matrices.
    count: usize,
    /// Whether `to.y` receives sums of parts as they are.
    split: bool,
    /// Whether they may be added to what is there.
    onto: bool,
    epilogue: EpilogueArgs,
}
