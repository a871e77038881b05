//! Plans: what an operation launches, as pure data, and the checks between a plan and its arguments.
//!
//! A descriptor (`ActivationDesc { .. }`) names an operation and its shape. [`Operation::plan`] turns it into a
//! [`Plan`] for one target without a device; [`Plan::launch`] checks the arguments and enqueues, nothing else, so that
//! it can be captured in a CUDA graph.

mod cache;
pub(crate) mod embedded;

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::debug;
use warpwright_dsl::{COLUMN_SUM_LANES, KernelArgs, KernelDef, record_with};
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{ArgValue, DType, Target};
use warpwright_runtime::check::Checker;
use warpwright_runtime::{
    Binding as Bound, Device, Dims, Error, Lattice, LaunchStep, OperationName, Stream, Strides, Tensor,
    TensorMut, TensorRef,
};

use crate::tensors::Arguments;
use crate::{Direction, PlanError};

pub use cache::PlanCache;

/// A descriptor that can be planned.
pub trait Operation: Clone + Eq + Hash + Send + Sync + 'static {
    /// The tensors of one launch.
    type Args<'a>: Arguments<'a>;

    /// The plan of this operation on `target`.
    ///
    /// # Errors
    /// [`PlanError`] names the field of the descriptor that has no plan.
    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError>;
}

/// A tensor at the place that a plan has for it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Binding<'a> {
    /// It is read.
    Input(TensorRef<'a>),
    /// It is written.
    Output(TensorMut<'a>),
    /// The operation reads what the output in this slot holds before it is overwritten.
    InPlace {
        /// The slot of the output.
        output: usize,
    },
    /// There is none: kernels get a null pointer that they do not follow.
    Absent,
}

impl<'a> From<TensorRef<'a>> for Binding<'a> {
    fn from(x: TensorRef<'a>) -> Self {
        Self::Input(x)
    }
}

impl<'a> From<TensorMut<'a>> for Binding<'a> {
    fn from(y: TensorMut<'a>) -> Self {
        Self::Output(y)
    }
}

impl<'a, T: Into<Self>> From<Option<T>> for Binding<'a> {
    fn from(tensor: Option<T>) -> Self {
        tensor.map_or(Self::Absent, Into::into)
    }
}

/// Whether a tensor is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Written, never read.
    Write,
}

/// A tensor that a plan takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name among the arguments.
    pub name: &'static str,
    /// Read or written.
    pub access: Access,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
    /// For an output: whether it may be the very memory of an input of the same type.
    pub may_replace_input: bool,
    /// The slot of a tensor whose shape it must have; `None` if the number of elements is enough.
    pub like: Option<usize>,
    /// Whether the operation, as described, takes it. One that is absent has length 0, and a launch must not bring it.
    pub present: bool,
    /// Its layout, if it is not contiguous or has a shape of its own.
    pub layout: Option<Layout>,
    /// The same of any number of dimensions.
    pub view: Option<View>,
}

/// Shape and strides of a tensor of four dimensions; no element has two places in it unless it is only read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Extents.
    pub shape: [usize; 4],
    /// Elements from one index to the next.
    pub strides: [i64; 4],
}

impl Layout {
    /// A contiguous tensor, its last dimension innermost.
    pub const fn contiguous(shape: [usize; 4]) -> Self {
        let mut strides = [1i64; 4];
        let mut axis = 3;
        while axis > 0 {
            // A tensor whose extents multiply beyond an i64 has no plan.
            strides[axis - 1] = strides[axis].saturating_mul(shape[axis] as i64);
            axis -= 1;
        }
        Self { shape, strides }
    }

    /// The layout of a tensor of four dimensions.
    pub fn of(x: &TensorRef<'_>) -> Option<Self> {
        Some(Self { shape: x.shape().try_into().ok()?, strides: x.strides().try_into().ok()? })
    }

    /// Number of elements, if it can be addressed.
    pub fn elements(&self) -> Option<usize> {
        let product = self.shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent))?;
        i64::try_from(product).ok().map(|_| product)
    }

    /// Elements from one index of each but the last dimension to the next, as kernels count them.
    pub(crate) fn steps(&self) -> [u64; 3] {
        let [outer, middle, inner, _] = self.strides.map(i64::cast_unsigned);
        [outer, middle, inner]
    }

    /// Whether the elements of the last dimension follow each other.
    pub(crate) fn rows_are_contiguous(&self) -> bool {
        self.shape[3] < 2 || self.strides[3] == 1
    }

    /// Whether no two elements can share a place.
    pub(crate) fn is_without_overlap(&self) -> bool {
        Lattice::of(0, 1, &self.shape, &self.strides).is_none_or(|elements| elements.is_injective())
    }
}

/// Shape and strides of a tensor of up to eight dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    shape: Dims,
    strides: Strides,
}

impl View {
    /// A contiguous tensor, its last dimension innermost; `None` if it has more dimensions than a tensor can have.
    pub fn contiguous(shape: &[usize]) -> Option<Self> {
        let mut strides = vec![1i64; shape.len()];
        for axis in (1..shape.len()).rev() {
            // A tensor whose extents multiply beyond an i64 has no plan.
            let extent = i64::try_from(shape[axis].max(1)).unwrap_or(i64::MAX);
            strides[axis - 1] = strides[axis].saturating_mul(extent);
        }
        Self::new(shape, &strides)
    }

    /// A tensor with that many elements from one index to the next along each dimension; `None` if there is not a stride for each
    /// dimension, or there are more dimensions than a tensor can have.
    pub fn new(shape: &[usize], strides: &[i64]) -> Option<Self> {
        let view = Self { shape: Dims::new(shape)?, strides: Strides::new(strides)? };
        (shape.len() == strides.len()).then_some(view)
    }

    /// That of a tensor.
    pub fn of(x: &TensorRef<'_>) -> Option<Self> {
        Self::new(x.shape(), x.strides())
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements from one index to the next.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Number of elements, if it can be addressed.
    pub fn elements(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let product = self.shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent))?;
        i64::try_from(product).ok().map(|_| product)
    }
}

impl TensorSpec {
    /// A tensor that is read.
    pub const fn read(name: &'static str, dtype: DType, len: usize) -> Self {
        Self {
            name,
            access: Access::Read,
            dtype,
            len,
            may_replace_input: false,
            like: None,
            present: true,
            layout: None,
            view: None,
        }
    }

    /// A tensor that is written.
    pub const fn write(name: &'static str, dtype: DType, len: usize) -> Self {
        Self { access: Access::Write, ..Self::read(name, dtype, len) }
    }

    /// The same; each element is read before it is written by the same thread, so an input may be overwritten.
    pub const fn in_place(self) -> Self {
        Self { may_replace_input: true, ..self }
    }

    /// The same, of the shape of the tensor in `slot`.
    pub const fn like(self, slot: usize) -> Self {
        Self { like: Some(slot), ..self }
    }

    /// The same if `present`; otherwise the place of a tensor that the descriptor does without.
    pub const fn optional(self, present: bool) -> Self {
        let len = if present { self.len } else { 0 };
        Self { len, present, ..self }
    }

    /// The same with a layout of its own.
    pub const fn laid_out(self, layout: Layout) -> Self {
        Self { layout: Some(layout), ..self }
    }

    /// The same of a shape and strides of its own.
    pub const fn viewed(self, view: View) -> Self {
        Self { view: Some(view), ..self }
    }

    /// Scratch memory of `len` elements, absent if there are none. [`Plan::workspace`] allocates it.
    pub const fn workspace(dtype: DType, len: usize) -> Self {
        Self::write(Self::WORKSPACE, dtype, len).optional(len > 0)
    }

    /// The name of scratch memory.
    pub const WORKSPACE: &'static str = "workspace";
}

/// One way to run a plan: the steps, and what they ask of the tensors.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Every tensor must start at a multiple of this many bytes, a power of two.
    pub alignment: u64,
    /// The launches in order; empty if there is nothing to do.
    pub steps: Vec<LaunchStep>,
}

/// A real number of a descriptor, such as an epsilon: compared and hashed by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Real(u64);

impl Real {
    /// The number `value`.
    pub const fn new(value: f64) -> Self {
        Self(value.to_bits())
    }

    /// Its value.
    pub const fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl From<f64> for Real {
    fn from(value: f64) -> Self {
        Self::new(value)
    }
}

impl fmt::Debug for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// The parts of a plan, which a family puts together for [`Plan::new`].
#[derive(Clone, Debug)]
pub struct PlanParts {
    /// Name of the operation.
    pub op: &'static str,
    /// Which way it goes.
    pub direction: Direction,
    /// The target that the kernels were recorded for.
    pub target: Target,
    /// Tensors in slot order.
    pub tensors: Vec<TensorSpec>,
    /// Best first; the last one takes every tensor that is aligned to its elements, but in plans of one layout by hand, whose launch
    /// is refused otherwise.
    pub variants: Vec<Variant>,
    /// Bytes of scratch memory among the tensors.
    pub workspace_bytes: u64,
}

/// An operation that is ready to be launched any number of times, on any stream of a device that runs its target.
pub struct Plan<O> {
    parts: Arc<PlanParts>,
    operation: PhantomData<fn() -> O>,
}

impl<O> Clone for Plan<O> {
    fn clone(&self) -> Self {
        Self { parts: Arc::clone(&self.parts), operation: PhantomData }
    }
}

impl<O> fmt::Debug for Plan<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.fmt(f)
    }
}

impl<O: Operation> Plan<O> {
    /// A plan from its parts.
    pub fn new(parts: PlanParts) -> Self {
        debug!(
            target: "warpwright::plan",
            op = parts.op,
            direction = parts.direction.name(),
            arch = %parts.target,
            launches = parts.variants.first().map_or(0, |best| best.steps.len()),
            workspace_bytes = parts.workspace_bytes,
            "planned"
        );
        Self { parts: Arc::new(parts), operation: PhantomData }
    }

    /// The same of these parts; the scratch memory is that among the tensors.
    pub(crate) fn of(
        op: &'static str,
        direction: Direction,
        target: Target,
        tensors: Vec<TensorSpec>,
        variants: Vec<Variant>,
    ) -> Self {
        let workspace = tensors.iter().find(|spec| spec.name == TensorSpec::WORKSPACE);
        let bytes = |spec: &TensorSpec| (spec.len as u64).saturating_mul(spec.dtype.bytes() as u64);
        let workspace_bytes = workspace.map_or(0, bytes);
        Self::new(PlanParts { op, direction, target, tensors, variants, workspace_bytes })
    }

    /// Name of the operation.
    pub fn op(&self) -> &'static str {
        self.parts.op
    }

    /// Which way it goes.
    pub fn direction(&self) -> Direction {
        self.parts.direction
    }

    /// The target that the kernels were recorded for.
    pub fn target(&self) -> Target {
        self.parts.target
    }

    /// The tensors that a launch takes, in slot order.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.parts.tensors
    }

    /// The tensor of that name, `None` if the operation, as described, takes none.
    pub fn tensor(&self, name: &str) -> Option<&TensorSpec> {
        self.tensors().iter().find(|spec| spec.name == name && spec.present)
    }

    /// Bytes of scratch memory that a launch needs; it is passed as one of [`tensors`](Self::tensors).
    pub fn workspace_bytes(&self) -> u64 {
        self.parts.workspace_bytes
    }

    /// A tensor for the scratch memory of one launch, allocated on `stream`; `None` if the plan needs none.
    ///
    /// # Errors
    /// Memory runs out.
    pub fn workspace(&self, stream: &Stream) -> Result<Option<Tensor>, Error> {
        let spec = self.tensor(TensorSpec::WORKSPACE);
        spec.map(|spec| Tensor::empty_on(stream, spec.dtype, &[spec.len])).transpose()
    }

    /// The launches for tensors of any useful alignment (that of a fresh allocation), best variant.
    pub fn steps(&self) -> &[LaunchStep] {
        self.parts.variants.first().map_or(&[], |v| &v.steps)
    }

    /// Every way to run the plan, best first.
    pub fn variants(&self) -> &[Variant] {
        &self.parts.variants
    }

    /// The launches for tensors at `addresses`.
    pub fn steps_for(&self, addresses: &[u64]) -> &[LaunchStep] {
        self.parts.variant_for(addresses).map_or(&[], |v| &v.steps)
    }

    /// Loads the kernels onto `device` now, so that the first launch does not wait for the assembler.
    ///
    /// # Errors
    /// The device refuses a kernel.
    pub fn warm_up(&self, device: &Device) -> Result<(), Error> {
        for step in self.parts.variants.iter().flat_map(|v| &v.steps) {
            step.warm_up(device)?;
        }
        Ok(())
    }

    /// Checks the arguments and enqueues the operation on `stream`. No allocation on the device, no synchronisation.
    ///
    /// # Errors
    /// Names the operation and the argument that does not fit; nothing has been enqueued then.
    pub fn launch(&self, stream: &Stream, args: O::Args<'_>) -> Result<(), Error> {
        self.parts.launch(stream, &args.bindings())
    }

    /// Enqueues the operation on bindings in the order of [`tensors`](Self::tensors), [`Binding::NULL`](Bound::NULL) for one
    /// that is absent, for callers that know that the memory behind them is as the plan says: only its alignment is
    /// checked. What may overlap, and on which devices, is as for [`launch`](Self::launch).
    ///
    /// # Errors
    /// [`Error::Presence`], [`Error::Alignment`]; those of [`Stream::launch`].
    pub fn launch_bound(&self, stream: &Stream, bindings: &[Bound]) -> Result<(), Error> {
        self.parts.launch_bound(stream, bindings)
    }
}

/// There are dozens of operations: their plans are launched by the same code.
impl PlanParts {
    fn launch(&self, stream: &Stream, arguments: &[Binding<'_>]) -> Result<(), Error> {
        with_room(arguments.len(), None, |views| {
            self.find_views(arguments, views)?;
            self.check(&Checker::new(self.op, stream), views, arguments)?;
            with_room(views.len(), Bound::NULL, |bindings| {
                for (binding, view) in bindings.iter_mut().zip(views.iter()) {
                    *binding = view.map_or(Bound::NULL, TensorRef::binding);
                }
                self.enqueue(stream, bindings)
            })
        })
    }

    fn launch_bound(&self, stream: &Stream, bindings: &[Bound]) -> Result<(), Error> {
        let PlanParts { op, ref tensors, .. } = *self;
        self.expect_count(bindings.len())?;
        for (spec, bound) in tensors.iter().zip(bindings) {
            let (address, required) = (bound.address(), spec.dtype.bytes() as u64);
            let given = address != 0;
            // What has no elements may have no address.
            if given != spec.present && (given || spec.len > 0) {
                return Err(Error::Presence { op, argument: spec.name, given });
            }
            if !address.is_multiple_of(required) {
                return Err(Error::Alignment { op, argument: spec.name, required, address });
            }
        }
        self.enqueue(stream, bindings)
    }

    fn enqueue(&self, stream: &Stream, bindings: &[Bound]) -> Result<(), Error> {
        // Every alignment is a power of two, so one number stands for all addresses; a null pointer is aligned to
        // everything.
        let all = bindings.iter().fold(0, |bits, bound| bits | bound.address());
        let variant = self.variant_for(&[all]).ok_or_else(|| self.misaligned(bindings))?;
        let name = OperationName { op: self.op, direction: self.direction.name() };
        stream.launch_operation(name, &variant.steps, bindings)
    }

    fn variant_for(&self, addresses: &[u64]) -> Option<&Variant> {
        let fits = |v: &&Variant| addresses.iter().all(|a| a % v.alignment.max(1) == 0);
        self.variants.iter().find(fits)
    }

    /// The tensor that no variant takes.
    fn misaligned(&self, bindings: &[Bound]) -> Error {
        let PlanParts { op, ref tensors, ref variants, .. } = *self;
        let required = variants.last().map_or(1, |last| last.alignment.max(1));
        let mut bound = tensors.iter().zip(bindings).map(|(spec, bound)| (spec.name, bound.address()));
        let found = bound.find(|(_, address)| !address.is_multiple_of(required));
        let (argument, address) = found.unwrap_or(("an argument", 0));
        Error::Alignment { op, argument, required, address }
    }

    fn expect_count(&self, given: usize) -> Result<(), Error> {
        let PlanParts { op, ref tensors, .. } = *self;
        if given == tensors.len() {
            return Ok(());
        }
        let argument = tensors.get(given).map_or("an argument", |t| t.name);
        Err(Error::Presence { op, argument, given: given > tensors.len() })
    }

    /// The tensor of each slot; `None` for one that is absent.
    fn find_views<'v>(
        &self,
        arguments: &'v [Binding<'_>],
        views: &mut [Option<&'v TensorRef<'v>>],
    ) -> Result<(), Error> {
        let PlanParts { op, ref tensors, .. } = *self;
        self.expect_count(arguments.len())?;
        let view = |slot: usize| match arguments.get(slot) {
            Some(Binding::Input(x)) => Some(x),
            Some(Binding::Output(y)) => Some(y.reading()),
            _ => None,
        };
        for (slot, (argument, spec)) in arguments.iter().zip(tensors).enumerate() {
            let source = if let Binding::InPlace { output } = argument { *output } else { slot };
            views[slot] = view(source);
            if views[slot].is_some() != spec.present {
                let argument = tensors.get(source).map_or("an argument", |t| t.name);
                return Err(Error::Presence { op, argument, given: views[slot].is_some() });
            }
        }
        Ok(())
    }

    fn check(
        &self,
        checker: &Checker<'_>,
        views: &[Option<&TensorRef<'_>>],
        arguments: &[Binding<'_>],
    ) -> Result<(), Error> {
        let tensors = &self.tensors;
        for (spec, view) in tensors.iter().zip(views) {
            let Some(view) = view else { continue };
            let model = spec.like.and_then(|slot| views.get(slot).copied().flatten());
            let layout = spec.layout.as_ref().map(|layout| (&layout.shape[..], &layout.strides[..]));
            let own = spec.view.as_ref().map(|view| (view.shape(), view.strides()));
            if let Some((shape, strides)) = layout.or(own) {
                checker.strided(spec.name, view, spec.dtype, shape, strides)?;
                checker.aligned(spec.name, view, spec.dtype.bytes() as u64)?;
                continue;
            }
            checker.input(spec.name, view, spec.dtype, model.unwrap_or(view).shape())?;
            checker.elements(spec.name, view, spec.len)?;
            checker.aligned(spec.name, view, spec.dtype.bytes() as u64)?;
        }
        if tensors.len() > MANY_TENSORS && are_apart(views, arguments) {
            return Ok(());
        }
        for (slot, (spec, argument)) in tensors.iter().zip(arguments).enumerate() {
            let Binding::Output(y) = argument else { continue };
            for (other_slot, other) in tensors.iter().enumerate().filter(|&(s, _)| s != slot) {
                let Some(view) = views[other_slot] else { continue };
                // It asked to be the output.
                if matches!(arguments[other_slot], Binding::InPlace { output } if output == slot) {
                    continue;
                }
                if spec.may_replace_input && other.access == Access::Read {
                    checker.same_or_disjoint(spec.name, y, other.name, view)?;
                } else {
                    checker.disjoint(spec.name, y, other.name, view)?;
                }
            }
        }
        Ok(())
    }
}

/// Tensors that are held against each other one by one.
const MANY_TENSORS: usize = 32;

/// Whether no two tensors of a launch have bytes in common, but for those that are updated.
fn are_apart(views: &[Option<&TensorRef<'_>>], arguments: &[Binding<'_>]) -> bool {
    let of_its_own = |argument: &Binding<'_>| !matches!(argument, Binding::InPlace { .. });
    let all = views.iter().zip(arguments).filter(|(_, argument)| of_its_own(argument));
    let mut ranges: Vec<_> = all.filter_map(|(view, _)| view.and_then(TensorRef::byte_range)).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.is_sorted_by(|before, after| before.end <= after.start)
}

/// Calls `f` with a list of `count` items, without an allocation unless it is long.
fn with_room<T: Copy, R>(count: usize, empty: T, f: impl FnOnce(&mut [T]) -> R) -> R {
    const INLINE: usize = 16;
    if count <= INLINE { f(&mut [empty; INLINE][..count]) } else { f(&mut vec![empty; count]) }
}

/// Blocks of a grid along x.
pub(crate) const MAX_BLOCKS: u64 = (1 << 31) - 1;

/// The grid that covers `len` elements, `per_block` each; `None` if there is nothing to cover.
///
/// # Errors
/// [`PlanError::TooLarge`] if a grid does not have that many blocks.
pub fn cover(op: &'static str, len: usize, per_block: u32) -> Result<Option<[u32; 3]>, PlanError> {
    let blocks = (len as u64).div_ceil(u64::from(per_block.max(1)));
    match u32::try_from(blocks) {
        Ok(0) => Ok(None),
        Ok(x) if blocks <= MAX_BLOCKS => Ok(Some([x, 1, 1])),
        _ => Err(PlanError::TooLarge { op, blocks, limit: MAX_BLOCKS }),
    }
}

/// Recorded kernels by target and name.
static KERNELS: OnceLock<Mutex<HashMap<Target, HashMap<String, Kernel>>>> = OnceLock::new();

/// Forgets the kernels of a target; plans keep theirs.
pub(crate) fn forget(target: Target) {
    if let Some(kernels) = KERNELS.get() {
        let forgotten = lock(kernels).remove(&target);
        // Outside the lock: there may be gigabytes.
        drop(forgotten);
    }
}

/// Records a kernel, or returns the one that was recorded before under the same name for the same target: the name of
/// a kernel says everything that its code depends on.
///
/// # Errors
/// [`PlanError::Build`] if the kernel does not record; a defect of the operation.
pub fn recorded<D: KernelDef>(op: &'static str, def: &D, target: Target) -> Result<Kernel, PlanError> {
    let spec = def.spec();
    if let Some(kernel) = recorded_before(&spec.name, target) {
        return Ok(kernel);
    }
    let name = spec.name.clone();
    // Recorded outside the lock: two threads may do it twice, none waits.
    let kernel = record_with(def, spec, target).map_err(|source| PlanError::Build { op, source })?;
    let ptx_bytes = kernel.text().len();
    debug!(target: "warpwright::plan", op, kernel = name, arch = %target, ptx_bytes, "recorded");
    Ok(kept(name, kernel, target))
}

fn recorded_before(name: &str, target: Target) -> Option<Kernel> {
    lock(KERNELS.get_or_init(Mutex::default)).get(&target)?.get(name).cloned()
}

/// The kernel of that name from now on: this one, unless another thread was faster.
fn kept(name: String, kernel: Kernel, target: Target) -> Kernel {
    let kernels = KERNELS.get_or_init(Mutex::default);
    lock(kernels).entry(target).or_default().entry(name).or_insert(kernel).clone()
}

/// The launch of `kernel` with `shared` bytes of dynamic shared memory.
///
/// # Errors
/// [`PlanError::SharedMemory`] if no device of the target has as much.
pub(crate) fn launch_step(
    op: &'static str,
    kernel: Kernel,
    grid: [u32; 3],
    args: Vec<ArgValue>,
    shared: u32,
) -> Result<LaunchStep, PlanError> {
    let (target, bytes) = (kernel.target(), kernel.static_shared_bytes().saturating_add(shared.into()));
    let limit = DeviceLimits::of(target).shared_per_block;
    if bytes > u64::from(limit) {
        let kernel = kernel.name().to_owned();
        return Err(PlanError::SharedMemory { op, kernel, target, bytes, limit });
    }
    Ok(LaunchStep::new(kernel, grid, args).with_dynamic_shared(shared))
}

/// The extents of a shape before dimension `dim`, along it, and behind it, multiplied; `None` if there is no such dimension. Of a tensor
/// without elements the products may be more than can be counted, and are the largest number.
pub(crate) fn around(shape: &[usize], dim: usize) -> Option<[usize; 3]> {
    let product = |extents: &[usize]| extents.iter().fold(1, |n: usize, extent| n.saturating_mul(*extent));
    shape.get(dim).map(|n| [product(&shape[..dim]), *n, product(&shape[dim + 1..])])
}

/// A size as kernels count it; plans refuse those that do not fit.
pub(crate) fn small(x: usize) -> u32 {
    u32::try_from(x).unwrap_or(u32::MAX)
}

/// The bits of what there is, as a kernel's argument.
pub(crate) fn bits<const N: usize>(all: [(u32, bool); N]) -> u32 {
    all.into_iter().filter(|(_, there)| *there).fold(0, |bits, (bit, _)| bits | bit)
}

/// A launch of a [`recorded`] kernel.
pub(crate) fn launch<D: KernelDef>(
    op: &'static str,
    def: &D,
    args: D::Args,
    target: Target,
    grid: [u32; 3],
) -> Result<LaunchStep, PlanError> {
    Ok(LaunchStep::new(recorded(op, def, target)?, grid, args.values()))
}

/// The same if there is a grid.
pub(crate) fn launch_over<D: KernelDef>(
    op: &'static str,
    def: &D,
    args: D::Args,
    target: Target,
    grid: Option<[u32; 3]>,
) -> Result<Option<LaunchStep>, PlanError> {
    let kernel = recorded(op, def, target)?;
    Ok(grid.map(|grid| LaunchStep::new(kernel, grid, args.values())))
}

/// The launch of a kernel that adds up `columns` columns by [`column_sums`](warpwright_dsl::column_sums), if there are any.
pub(crate) fn launch_column_sums<D: KernelDef>(
    op: &'static str,
    def: &D,
    args: D::Args,
    target: Target,
    columns: usize,
) -> Result<Option<LaunchStep>, PlanError> {
    launch_over(op, def, args, target, cover(op, columns, COLUMN_SUM_LANES)?)
}

/// A map is never left half-changed, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
