//! Operations as nodes of burn's graph.
//!
//! One operation of a backend extension stands for all of this crate: it takes any number of tensors and a [`Job`], which has the
//! kernels. On a backend the job runs, with elements copied to the device that has the kernels and results copied back. On an
//! autodiff backend it runs on the backend inside, and the first result becomes a node whose parents are the tensors that burn
//! tracks. Further results are constants; an operation with several results that have gradients has them in one, side by side.

use std::fmt;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, BackendTensor, BackendTypes, Dispatch, DispatchAutodiffContext,
    DispatchTensor, DispatchTensorKind, ExtensionType, Flex, TensorMetadata, backend_extension,
};
use burn::tensor::{TensorData, try_read_sync};
use warpwright::{Stream, Tensor};

use crate::error::Error;
use crate::memory::{device, download, upload};

/// Tensors of one call: floats before integers.
pub(crate) struct Tensors<B: BackendTypes> {
    floats: Vec<B::FloatTensorPrimitive>,
    ints: Vec<B::IntTensorPrimitive>,
}

/// The results of one call.
pub(crate) struct Outcome<B: BackendTypes>(Result<Vec<B::FloatTensorPrimitive>, Error>);

impl<B: Backend> ExtensionType<B> for Tensors<B> {
    type Target = Tensors<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let wrap = |tensor| DispatchTensor { kind: map_kind(tensor), autodiff };
        Tensors {
            floats: self.floats.into_iter().map(BackendTensor::Float).map(wrap).collect(),
            ints: self.ints.into_iter().map(BackendTensor::Int).map(wrap).collect(),
        }
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Self {
            floats: target.floats.into_iter().map(|tensor| unwrap_kind(tensor).float()).collect(),
            ints: target.ints.into_iter().map(|tensor| unwrap_kind(tensor).int()).collect(),
        }
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.floats.first().or(target.ints.first())
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.floats.first()
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        let all = target.floats.iter().chain(&target.ints);
        all.fold(DispatchAutodiffContext::Disabled, |context, tensor| context.merge(tensor.autodiff))
    }
}

impl<B: Backend> ExtensionType<B> for Outcome<B> {
    type Target = Outcome<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let wrap = |tensor| DispatchTensor { kind: map_kind(BackendTensor::Float(tensor)), autodiff };
        Outcome(self.0.map(|tensors| tensors.into_iter().map(wrap).collect()))
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Self(target.0.map(|tensors| tensors.into_iter().map(|tensor| unwrap_kind(tensor).float()).collect()))
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.as_ref().ok().and_then(|tensors| tensors.first())
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        Self::routing_tensor(target)
    }
}

/// The inputs of the kernels of a call, by name.
pub(crate) struct Inputs {
    named: Vec<(&'static str, Tensor)>,
    /// The names of those whose gradients will be asked for.
    tracked: Vec<&'static str>,
}

impl Inputs {
    /// A tensor that the operation always brings.
    #[track_caller]
    pub(crate) fn of(&self, name: &'static str) -> &Tensor {
        match self.get(name) {
            Some(tensor) => tensor,
            None => unreachable!("the operation always brings this tensor"),
        }
    }

    /// A tensor that the operation may bring.
    pub(crate) fn get(&self, name: &'static str) -> Option<&Tensor> {
        self.named.iter().find(|(other, _)| *other == name).map(|(_, tensor)| tensor)
    }

    /// Whether the gradient of a tensor will be asked for.
    pub(crate) fn tracked(&self, name: &'static str) -> bool {
        self.tracked.contains(&name)
    }

    /// Whether any gradient will be asked for.
    pub(crate) fn training(&self) -> bool {
        !self.tracked.is_empty()
    }
}

/// Gradients by the names of the inputs.
pub(crate) type Named = Vec<(&'static str, Tensor)>;

/// The gradients of inputs from that of the first result.
type GradientsOf = dyn Fn(&Stream, &Inputs, &Tensor) -> Result<Named, warpwright::Error> + Send + Sync;

/// Results of kernels, and how their gradients are computed.
pub(crate) struct Made {
    results: Vec<TensorData>,
    /// That of the first one as kernels have it.
    shape: Vec<usize>,
    backward: Box<GradientsOf>,
}

/// Results of kernels.
pub(crate) struct Written {
    results: Vec<TensorData>,
    shape: Vec<usize>,
}

impl Written {
    /// The results of `op`, of which the first has a gradient.
    pub(crate) fn of(op: &'static str, results: &[&Tensor]) -> Result<Self, Error> {
        let shape = results.first().map(|tensor| tensor.shape().to_vec()).unwrap_or_default();
        Ok(Self {
            results: results.iter().map(|tensor| download(op, tensor)).collect::<Result<_, _>>()?,
            shape,
        })
    }

    /// With what computes the gradients of the inputs that have gradients.
    pub(crate) fn with(
        self,
        backward: impl Fn(&Stream, &Inputs, &Tensor) -> Result<Named, warpwright::Error> + Send + Sync + 'static,
    ) -> Made {
        Made { results: self.results, shape: self.shape, backward: Box::new(backward) }
    }
}

/// Launches the kernels of an operation.
pub(crate) type Launch = Box<dyn FnOnce(&Stream, &Inputs) -> Result<Made, Error> + Send>;

/// One call of an operation, without its tensors.
pub(crate) struct Job {
    pub(crate) op: &'static str,
    /// The names of the tensors, floats before integers.
    pub(crate) names: Vec<&'static str>,
    /// Those without a gradient.
    pub(crate) constants: Vec<&'static str>,
    pub(crate) launch: Launch,
}

/// Inputs, results and kernels that the gradients of a call need. Clones share them.
#[derive(Clone)]
struct Recorded {
    op: &'static str,
    inputs: Arc<Inputs>,
    shape: Vec<usize>,
    backward: Arc<GradientsOf>,
    parents: Vec<&'static str>,
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded")
            .field("op", &self.op)
            .field("parents", &self.parents)
            .finish_non_exhaustive()
    }
}

fn data_of<B: Backend>(
    op: &'static str,
    argument: &'static str,
    tensor: FloatTensor<B>,
) -> Result<TensorData, Error> {
    read(op, argument, try_read_sync(B::float_into_data(tensor)))
}

fn read<E: fmt::Display>(
    op: &'static str,
    argument: &'static str,
    data: Option<Result<TensorData, E>>,
) -> Result<TensorData, Error> {
    let failed = |message: String| Error::Read { op, argument, message };
    let data = data.ok_or_else(|| failed("its backend has no blocking reads".to_owned()))?;
    data.map_err(|error| failed(error.to_string()))
}

/// Runs a job for tensors of a backend: data out, kernels, data in.
fn compute<B: Backend>(
    tensors: Tensors<B>,
    job: Job,
    tracked: Vec<&'static str>,
) -> Result<(Vec<FloatTensor<B>>, Recorded), Error> {
    let Job { op, names, launch, .. } = job;
    let host = tensors.floats.first().map(TensorMetadata::device).unwrap_or_default();
    let of_floats = tensors.floats.into_iter().zip(&names).map(|(x, name)| data_of::<B>(op, name, x));
    let mut data = of_floats.collect::<Result<Vec<_>, _>>()?;
    for (x, name) in tensors.ints.into_iter().zip(&names[data.len()..]) {
        data.push(read(op, name, try_read_sync(B::int_into_data(x)))?);
    }
    let stream = device().stream()?;
    let array = |name, data: &TensorData| upload(device(), (op, name), data, data.shape().as_slice());
    let named = names.iter().zip(&data).map(|(&name, data)| Ok((name, array(name, data)?)));
    let named = named.collect::<Result<Vec<_>, Error>>()?;
    let inputs = Arc::new(Inputs { named, tracked: tracked.clone() });
    let made = launch(&stream, &inputs)?;
    let results = made.results.into_iter().map(|data| B::float_from_data(data, &host)).collect();
    let (shape, backward) = (made.shape, made.backward.into());
    Ok((results, Recorded { op, inputs, shape, backward, parents: tracked }))
}

impl Recorded {
    /// The gradients of the parents, in their order.
    fn gradients<B: Backend>(self, dy: FloatTensor<B>) -> Result<Vec<FloatTensor<B>>, Error> {
        let Self { op, inputs, shape, backward, parents } = self;
        let (host, argument) = (dy.device(), "the gradient of the result");
        let dy = upload(device(), (op, argument), &data_of::<B>(op, argument, dy)?, &shape)?;
        let all = backward(&device().stream()?, &inputs, &dy)?;
        let of = |argument: &&'static str| {
            let found = all.iter().find(|(name, _)| name == argument);
            let (_, gradient) = found.ok_or(Error::NoGradient { op, argument })?;
            Ok(B::float_from_data(download(op, gradient)?, &host))
        };
        parents.iter().map(of).collect()
    }
}

/// The operation of the backend extension.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait Kernels: Backend {
    /// Runs a job.
    fn run(#[extension_type] tensors: Tensors<Self>, job: Job) -> Outcome<Self>;
}

impl Kernels for Flex {
    fn run(tensors: Tensors<Self>, job: Job) -> Outcome<Self> {
        Outcome(compute::<Self>(tensors, job, Vec::new()).map(|(results, _)| results))
    }
}

impl<B: Backend, C: CheckpointStrategy> Kernels for Autodiff<B, C> {
    fn run(tensors: Tensors<Self>, job: Job) -> Outcome<Self> {
        let tracked: Vec<usize> =
            (0..tensors.floats.len()).filter(|&i| tensors.floats[i].is_tracked()).collect();
        if let Some(argument) =
            tracked.iter().map(|&i| job.names[i]).find(|name| job.constants.contains(name))
        {
            return Outcome(Err(Error::NoGradient { op: job.op, argument }));
        }
        macro_rules! of_number {
            ($($n:literal)*) => {
                match tracked.len() {
                    $($n => record::<B, C, $n>(tensors, job, tracked),)*
                    got => Err(Error::Parameter {
                        op: job.op,
                        parameter: "the number of tensors that are differentiated",
                        expected: "at most 12",
                        got: got.to_string(),
                    }),
                }
            };
        }
        Outcome(of_number!(0 1 2 3 4 5 6 7 8 9 10 11 12))
    }
}

/// Runs a job on the backend inside, and records it for `N` tensors that are tracked.
fn record<B: Backend, C: CheckpointStrategy, const N: usize>(
    tensors: Tensors<Autodiff<B, C>>,
    job: Job,
    tracked: Vec<usize>,
) -> Result<Vec<FloatTensor<Autodiff<B, C>>>, Error> {
    let constant = <Autodiff<B, C> as AutodiffBackend>::from_inner;
    let inner = |floats: &[FloatTensor<Autodiff<B, C>>]| -> Vec<FloatTensor<B>> {
        floats.iter().map(|tensor| tensor.primitive().clone()).collect()
    };
    let names = tracked.iter().map(|&i| job.names[i]).collect();
    let inside = Tensors { floats: inner(&tensors.floats), ints: tensors.ints };
    let (results, recorded) = compute::<B>(inside, job, names)?;
    let mut results = results.into_iter();
    let mut all = Vec::with_capacity(results.len());
    if N > 0
        && let Some(first) = results.next()
    {
        let nodes = std::array::from_fn::<_, N, _>(|i| tensors.floats[tracked[i]].node());
        all.push(match Node.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(node) => node.finish(recorded, first),
            OpsKind::UnTracked(node) => node.finish(first),
        });
    }
    all.extend(results.map(constant));
    Ok(all)
}

/// The backward step of every job.
#[derive(Debug)]
struct Node;

impl<B: Backend, const N: usize> Backward<B, N> for Node {
    type State = Recorded;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let gradients = match ops.state.gradients::<B>(dy) {
            Ok(gradients) => gradients,
            // The call was checked and its kernels ran; a device can still fail. burn's backward pass has no place for an error, and
            // going on without a gradient would train a wrong model.
            Err(error) => panic!("the backward pass failed: {error}"),
        };
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// Runs a job on the backend that the tensors are of.
pub(crate) fn dispatch(
    floats: Vec<DispatchTensor>,
    ints: Vec<DispatchTensor>,
    job: Job,
) -> Result<Vec<DispatchTensor>, Error> {
    <Dispatch as Kernels>::run(Tensors { floats, ints }, job).0
}
