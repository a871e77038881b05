//! [`KernelDef`], a kernel as a Rust value, and [`record`], which turns it into PTX.

use std::collections::HashSet;
use std::panic::Location;

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Function, Module, PtxVersion, Target, isa};

use crate::args::{ArgInfo, Argument, DTypes, KernelArgs, is_in, parameter_name};
use crate::context::K;
use crate::error::{BuildError, Issue, IssueKind};
use crate::float::Float;
use crate::mem::{Access, FixedElement};
use crate::recorder::Recorder;

/// Threads of a block along each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockDim {
    /// Along x, the fastest.
    pub x: u32,
    /// Along y.
    pub y: u32,
    /// Along z.
    pub z: u32,
}

impl BlockDim {
    /// A one-dimensional block.
    pub const fn x(x: u32) -> Self {
        Self { x, y: 1, z: 1 }
    }

    /// A two-dimensional block.
    pub const fn xy(x: u32, y: u32) -> Self {
        Self { x, y, z: 1 }
    }

    /// The three lengths.
    pub const fn to_array(self) -> [u32; 3] {
        [self.x, self.y, self.z]
    }

    const fn is_valid(self) -> bool {
        let Some(xy) = self.x.checked_mul(self.y) else { return false };
        let Some(threads) = xy.checked_mul(self.z) else { return false };
        threads >= 1 && threads <= 1024 && self.z <= 64
    }
}

/// Most blocks of a cluster.
const MAX_CLUSTER: u32 = 16;

/// The handles of a kernel's arguments.
pub type Params<'k, D> = <<D as KernelDef>::Args as Argument>::Param<'k>;

/// Everything of a kernel but its body: what it is called and how it is launched.
///
/// ```
/// use warpwright_dsl::prelude::*;
///
/// let spec = KernelSpec::new("softmax_bf16", BlockDim::x(256)).dtypes(DTypes::all(DType::BF16)).cluster(4);
/// assert_eq!((spec.name.as_str(), spec.cluster), ("softmax_bf16", 4));
/// ```
#[derive(Clone, Debug)]
pub struct KernelSpec {
    /// The entry name: a PTX identifier that names the variant, such as `silu_bf16_x8`.
    pub name: String,
    /// The block that the kernel is written for. It is printed as `.reqntid`, so the driver refuses any other.
    pub block: BlockDim,
    /// The types of its `Elem` arguments.
    pub dtypes: DTypes,
    /// Fewest blocks that should fit a multiprocessor at once, which bounds the registers of a thread; `None` leaves it
    /// to the assembler.
    pub min_blocks_per_sm: Option<u32>,
    /// Blocks of a cluster, neighbours along x; the grid must be a multiple of it. Above 1 it is printed as
    /// `.reqnctapercluster` and the kernel needs sm_90, so such a kernel is a variant for those targets. At most 8 run
    /// everywhere there, 16 on data-centre GPUs.
    pub cluster: u32,
}

impl KernelSpec {
    /// A kernel without `Elem` arguments or clusters, whose registers are left to the assembler.
    pub fn new(name: impl Into<String>, block: BlockDim) -> Self {
        Self { name: name.into(), block, dtypes: DTypes::NONE, min_blocks_per_sm: None, cluster: 1 }
    }

    /// The same with these types of its `Elem` arguments.
    #[must_use]
    pub fn dtypes(self, dtypes: DTypes) -> Self {
        Self { dtypes, ..self }
    }

    /// The same with so many blocks that should fit a multiprocessor at once.
    #[must_use]
    pub fn min_blocks_per_sm(self, blocks: impl Into<Option<u32>>) -> Self {
        Self { min_blocks_per_sm: blocks.into(), ..self }
    }

    /// The same in clusters of so many blocks.
    #[must_use]
    pub fn cluster(self, blocks: u32) -> Self {
        Self { cluster: blocks, ..self }
    }
}

/// A kernel. The value holds everything that changes the code; two equal values record the same text.
pub trait KernelDef {
    /// Its arguments, declared with [`kernel_args!`](crate::kernel_args).
    type Args: KernelArgs;

    /// Its name and how it is launched.
    fn spec(&self) -> KernelSpec;

    /// Records the body.
    fn build<'k>(&self, k: K<'k>, a: Params<'k, Self>);
}

/// A type that kernels accumulate in: `f32`, or `f64` where the elements are.
pub trait Accumulate: Float + FixedElement + Access<Self> {}

impl Accumulate for f32 {}
impl Accumulate for f64 {}

/// A kernel whose body is the same for all element types but for the type `A` that it computes in. Every such value is a
/// [`KernelDef`].
pub trait AccumulateKernel {
    /// Its arguments, declared with [`kernel_args!`](crate::kernel_args).
    type Args: KernelArgs;

    /// Its name and how it is launched.
    fn spec(&self) -> KernelSpec;

    /// The type of the elements, or of the sums, that `A` follows from: `f64` for [`DType::F64`], else `f32`. That of
    /// [`DTypes::all`] where nothing else is said.
    fn dtype(&self) -> DType {
        self.spec().dtypes.common()
    }

    /// Records the body.
    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: <Self::Args as Argument>::Param<'k>);
}

impl<T: AccumulateKernel> KernelDef for T {
    type Args = T::Args;

    fn spec(&self) -> KernelSpec {
        AccumulateKernel::spec(self)
    }

    fn build<'k>(&self, k: K<'k>, a: Params<'k, Self>) {
        crate::accumulate!(self.dtype(), |A| AccumulateKernel::build::<A>(self, k, a));
    }
}

/// Records a kernel for a target, with the lowest PTX version that its instructions allow, and verifies it.
///
/// # Errors
/// [`BuildError::Issues`] lists what could not be recorded with the Rust lines; [`BuildError::Rejected`] is a rule of
/// the verifier that the kernel breaks, such as a register of one branch read after it.
#[track_caller]
pub fn record<D: KernelDef>(def: &D, target: Target) -> Result<Kernel, BuildError> {
    record_with(def, def.spec(), target)
}

/// [`record`] for a caller that has the kernel's [`spec`](KernelDef::spec) already.
///
/// # Errors
/// As [`record`].
#[track_caller]
pub fn record_with<D: KernelDef>(def: &D, spec: KernelSpec, target: Target) -> Result<Kernel, BuildError> {
    verified(module_of(def, spec, target)?)
}

fn verified(module: Module) -> Result<Kernel, BuildError> {
    let kernel = module.functions[0].name.clone();
    Kernel::new(module).map_err(|source| BuildError::Rejected { kernel, source })
}

/// Records a kernel as a module without verifying it.
///
/// # Errors
/// [`BuildError::Issues`] as for [`record`].
#[track_caller]
pub fn record_module<D: KernelDef>(def: &D, target: Target) -> Result<Module, BuildError> {
    module_of(def, def.spec(), target)
}

#[track_caller]
fn module_of<D: KernelDef>(def: &D, spec: KernelSpec, target: Target) -> Result<Module, BuildError> {
    let dtypes = spec.dtypes.clone();
    let recording = Recording::begin(spec, target, D::Args::info(), Location::caller())?;
    let k = K::new(&recording.recorder);
    def.build(k, D::Args::declare(k, "", &dtypes));
    recording.finish()
}

/// A kernel while its body is recorded. There are hundreds of kernel types: what does not depend on theirs is compiled once.
struct Recording {
    recorder: Recorder,
    name: String,
    arguments: Vec<ArgInfo>,
    issues: Vec<Issue>,
    location: &'static Location<'static>,
}

impl Recording {
    fn begin(
        spec: KernelSpec,
        target: Target,
        arguments: Vec<ArgInfo>,
        location: &'static Location<'static>,
    ) -> Result<Self, BuildError> {
        let KernelSpec { name, block, dtypes, min_blocks_per_sm, cluster } = spec;
        let mut function = Function::entry(name.as_str());
        function.directives.required_threads = Some(block.to_array());
        function.directives.min_blocks_per_sm = min_blocks_per_sm;
        function.directives.cluster = (cluster > 1).then_some([cluster, 1, 1]);
        let mut kinds = declaration_issues(&name, block, &dtypes, &arguments);
        if !cluster.is_power_of_two() || cluster > MAX_CLUSTER {
            kinds.push(IssueKind::Cluster { blocks: cluster });
        }
        let issues = kinds.into_iter().map(|kind| Issue { location, kind }).collect();
        if !block.is_valid() {
            return Err(BuildError::Issues { kernel: name, issues });
        }
        let recorder = Recorder::new(function, target, block.to_array(), cluster);
        Ok(Self { recorder, name, arguments, issues, location })
    }

    fn finish(self) -> Result<Module, BuildError> {
        let Self { recorder, name, arguments, mut issues, location } = self;
        let target = recorder.target();
        let silent = !recorder.has_stores() && arguments.iter().any(|a| a.output);
        let (function, variables, recorded) = recorder.finish();
        issues.extend(recorded);
        // A store that was refused has an issue of its own.
        if silent && issues.is_empty() {
            issues.push(Issue { location, kind: IssueKind::NoStore });
        }
        if !issues.is_empty() {
            return Err(BuildError::Issues { kernel: name, issues });
        }
        let mut module = Module::new(PtxVersion::new(0, 0), target);
        module.variables = variables;
        module.functions.push(function);
        module.version = isa::minimum_version(&module);
        Ok(module)
    }
}

fn declaration_issues(name: &str, block: BlockDim, dtypes: &DTypes, arguments: &[ArgInfo]) -> Vec<IssueKind> {
    let mut kinds = Vec::new();
    if !is_identifier(name) {
        kinds.push(IssueKind::Name { name: name.to_owned() });
    }
    if !block.is_valid() {
        kinds.push(IssueKind::Block { dim: block.to_array() });
    }
    let unknown = dtypes.names().filter(|n| !arguments.iter().any(|a| a.dynamic && is_in(&a.path, n)));
    kinds.extend(unknown.map(|n| IssueKind::UnknownDType { argument: n.to_owned() }));
    let mut names = HashSet::new();
    let parameters = arguments.iter().map(|argument| parameter_name(&argument.path));
    let repeated = parameters.filter(|name| !names.insert(name.clone()));
    kinds.extend(repeated.map(|parameter| IssueKind::SameParameter { parameter }));
    kinds
}

/// PTX: a letter and then letters, digits, `_` and `$`.
fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$')
}
