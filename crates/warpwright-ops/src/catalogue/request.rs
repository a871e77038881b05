//! Primitives by name: from options to a plan without the type of its descriptor.

use warpwright_ptx::{DType, Kernel, Target};
use warpwright_runtime::LaunchStep;

use super::options::{OpOptions, Taken};
use super::{Direction, Entry, Family, families};
use crate::batch_norm::Layout;
use crate::gemm::Precision;
use crate::plan::{TensorSpec, Variant};
use crate::{Operation, Plan, PlanError};

/// Elements of the main tensor where nothing is said.
const ELEMENTS: usize = 1 << 20;

/// A primitive by name, and what it is told.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its name in the catalogue.
    pub op: &'a str,
    /// Which way it goes.
    pub direction: Direction,
    /// The type of its elements.
    pub dtype: DType,
    /// The target that it is planned for.
    pub target: Target,
    /// The options of its descriptor; extents that are not named follow from `elements`.
    pub options: &'a OpOptions,
}

/// A plan without the type of its descriptor.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The tensors, in the order of their slots.
    pub tensors: Vec<TensorSpec>,
    /// The ways to launch it, the best one first.
    pub variants: Vec<Variant>,
}

impl Planned {
    /// Bytes that have to move: every tensor once, workspace not at all.
    pub fn bytes(&self) -> u64 {
        let traffic = self.tensors.iter().filter(|tensor| tensor.name != "workspace");
        traffic.map(|tensor| (tensor.len * tensor.dtype.bytes()) as u64).sum()
    }
}

/// The kernels of launches, each once, in the order of their first launch.
pub fn kernels_of<'s>(steps: impl IntoIterator<Item = &'s LaunchStep>) -> Vec<&'s Kernel> {
    let mut kernels: Vec<&Kernel> = Vec::new();
    for kernel in steps.into_iter().map(LaunchStep::kernel) {
        if kernels.iter().all(|known| known.name() != kernel.name()) {
            kernels.push(kernel);
        }
    }
    kernels
}

/// The kernels of all variants of plans, each once.
pub(crate) fn distinct(
    plans: impl IntoIterator<Item = Result<Planned, PlanError>>,
) -> Result<Vec<Kernel>, PlanError> {
    let plans = plans.into_iter().collect::<Result<Vec<_>, _>>()?;
    let variants = plans.iter().flat_map(|planned| &planned.variants);
    Ok(kernels_of(variants.flat_map(|variant| &variant.steps)).into_iter().cloned().collect())
}

impl<O: Operation> From<Plan<O>> for Planned {
    fn from(plan: Plan<O>) -> Self {
        Self { tensors: plan.tensors().to_vec(), variants: plan.variants().to_vec() }
    }
}

/// Why a request has no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The primitive does not take an option.
    #[error("{op} ({direction}) has no option `{option}`")]
    Option {
        /// The primitive.
        op: &'static str,
        /// Which way it goes.
        direction: Direction,
        /// The option.
        option: &'static str,
        /// Those that it takes.
        takes: Vec<&'static str>,
    },
    /// There is no such primitive, it does not take the type, or it has no plan for these options.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// A request on its way to the family that answers it.
pub(crate) struct Asked<'a> {
    pub(crate) entry: Entry,
    pub(crate) dtype: DType,
    pub(crate) target: Target,
    /// Elements of the main tensor, about.
    pub(crate) len: usize,
    pub(crate) options: Taken<'a>,
}

impl Asked<'_> {
    /// Plans a descriptor.
    pub(crate) fn plan(&self, desc: &impl Operation) -> Result<Planned, PlanError> {
        desc.plan(self.target).map(Into::into)
    }

    /// Plans the descriptor of the direction that is asked for.
    pub(crate) fn either(
        &self,
        forward: &impl Operation,
        backward: &impl Operation,
    ) -> Result<Planned, PlanError> {
        if self.is_backward() { self.plan(backward) } else { self.plan(forward) }
    }

    pub(crate) fn is_backward(&self) -> bool {
        self.entry.direction == Direction::Backward
    }

    /// Samples, channels and positions of what goes along time: where nothing is said at most so many channels and positions, and one
    /// position if it is a step.
    pub(crate) fn along_time(&self, [channels, positions]: [usize; 2], is_step: bool) -> [usize; 3] {
        let o = &self.options;
        let channels = o.channels().unwrap_or(self.len.clamp(1, channels));
        let of_channels = self.len / channels.max(1);
        let of_sample = match o.batch() {
            Some(batch) => of_channels / batch.max(1),
            None => of_channels.min(positions),
        };
        let len = o.steps().unwrap_or(if is_step { 1 } else { of_sample.max(1) });
        [o.batch().unwrap_or((of_channels / len.max(1)).max(1)), channels, len]
    }

    /// Where the channels of images are.
    pub(crate) fn layout(&self) -> Layout {
        if self.options.channels_last().is_some() { Layout::ChannelsLast } else { Layout::ChannelsFirst }
    }

    /// How exactly f32 is multiplied.
    pub(crate) fn precision(&self) -> Precision {
        if self.options.tf32().is_some() { Precision::Tf32 } else { Precision::Full }
    }

    /// There is no primitive of the name in the family.
    pub(crate) fn unknown(&self) -> PlanError {
        PlanError::UnknownOperation { name: self.entry.op.to_owned() }
    }
}

/// The family and the catalogue's row of a primitive in one direction.
fn find(op: &str, direction: Direction) -> Result<(&'static Family, Entry), PlanError> {
    for family in families() {
        let found = family.entries().into_iter().find(|e| e.op == op && e.direction == direction);
        if let Some(entry) = found {
            return Ok((family, entry));
        }
    }
    Err(PlanError::UnknownOperation { name: format!("{op} ({direction})") })
}

/// The catalogue's row of a primitive in one direction.
///
/// # Errors
/// [`PlanError::UnknownOperation`].
pub fn entry(op: &str, direction: Direction) -> Result<Entry, PlanError> {
    find(op, direction).map(|(_, entry)| entry)
}

/// Every kernel variant that tuning can choose for one primitive.
///
/// # Errors
/// [`PlanError`] if there is no such primitive, if it does not take `dtype`, or if its kernels do not build.
pub fn kernels(
    op: &str,
    direction: Direction,
    dtype: DType,
    target: Target,
) -> Result<Vec<Kernel>, PlanError> {
    let (family, entry) = find(op, direction)?;
    takes(&entry, dtype)?;
    (family.kernels)(&entry, dtype, target)
}

/// Frees the memory of kernels that were recorded for a target; plans keep theirs. For whoever goes through
/// [`kernels`] of several targets.
pub fn forget_kernels(target: Target) {
    crate::plan::forget(target);
}

/// Plans a primitive by its name.
///
/// # Errors
/// There is none of that name, it does not take the type or one of the options, or it has no plan for them.
pub fn plan_named(request: &Request<'_>) -> Result<Planned, RequestError> {
    let Request { op, direction, dtype, target, options } = *request;
    let (family, entry) = find(op, direction)?;
    takes(&entry, dtype)?;
    let options = Taken::new(options);
    let len = options.elements().unwrap_or(ELEMENTS);
    let asked = Asked { entry, dtype, target, len, options };
    let planned = (family.plan)(&asked);
    // A plan that failed may be one of options that it does not have.
    if let Some(option) = asked.options.left() {
        return Err(RequestError::Option { op: entry.op, direction, option, takes: asked.options.asked() });
    }
    Ok(planned?)
}

/// The names of the options that a primitive takes.
pub fn options_of(entry: &Entry) -> Vec<&'static str> {
    let Ok((family, entry)) = find(entry.op, entry.direction) else { return Vec::new() };
    let given = OpOptions::default();
    let (dtype, target) = (entry.dtypes[0], entry.targets[0]);
    let asked = Asked { entry, dtype, target, len: ELEMENTS, options: Taken::new(&given) };
    // A plan that fails has asked, too.
    let _ = (family.plan)(&asked);
    let mut names = asked.options.asked();
    names.push("elements");
    names
}

fn takes(entry: &Entry, dtype: DType) -> Result<(), PlanError> {
    let Entry { op, dtypes: expected, .. } = *entry;
    if expected.contains(&dtype) {
        return Ok(());
    }
    Err(PlanError::DType { op, tensor: "the tensor", got: dtype, expected })
}

#[cfg(test)]
mod tests {
    use super::super::catalogue;
    use super::*;

    fn request<'a>(op: &'a str, direction: Direction, dtype: DType, options: &'a OpOptions) -> Request<'a> {
        Request { op, direction, dtype, target: Target::sm(90), options }
    }

    #[test]
    fn every_primitive_of_the_catalogue_has_a_plan_by_its_name() {
        let options = OpOptions { elements: Some(1000), ..OpOptions::default() };
        for Entry { op, direction, dtypes, .. } in catalogue() {
            for &dtype in dtypes {
                let planned = plan_named(&request(op, direction, dtype, &options)).unwrap();
                assert!(planned.bytes() > 0, "{op} {direction}");
                // Tensors that no variant takes would launch nothing.
                let last = planned.variants.last().expect("a variant").alignment;
                let mut present = planned.tensors.iter().filter(|tensor| tensor.present);
                let takes_all =
                    present.all(|tensor| (tensor.dtype.bytes() as u64).is_multiple_of(last.max(1)));
                assert!(takes_all, "{op} {direction} of {dtype}: {last} bytes");
            }
        }
    }

    #[test]
    fn unknown_names_are_errors() {
        for (op, direction) in
            [("gelu", Direction::Forward), ("quantize_nf4", Direction::Backward), ("", Direction::Forward)]
        {
            let options = OpOptions::default();
            let error = plan_named(&request(op, direction, DType::F32, &options)).expect_err(op);
            assert!(matches!(error, RequestError::Plan(PlanError::UnknownOperation { .. })), "{op}");
        }
    }

    #[test]
    fn types_that_a_primitive_does_not_take_are_errors() {
        let options = OpOptions::default();
        let request = request("quantize_nested", Direction::Forward, DType::BF16, &options);
        let error = plan_named(&request).expect_err("block maxima are f32");
        assert!(matches!(error, RequestError::Plan(PlanError::DType { got: DType::BF16, .. })));
    }

    #[test]
    fn options_that_a_primitive_does_not_have_are_named_with_those_that_it_takes() {
        let options = OpOptions { causal: Some(true), ..OpOptions::default() };
        let error =
            plan_named(&request("gemm", Direction::Forward, DType::F32, &options)).expect_err("causal");
        let RequestError::Option { option, takes, .. } = error else { panic!("{error:?}") };
        assert!(
            option == "causal" && takes.contains(&"transpose") && !takes.contains(&"causal"),
            "{takes:?}"
        );
    }
}
