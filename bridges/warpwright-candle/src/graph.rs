//! Results as nodes of candle's graph.
//!
//! Kernels have run when a node is made: candle's custom operations have one result and up to three inputs that gradients go to, and
//! ours have what their kernels have. A node hands over a result that exists. Where there are more inputs or results than candle has
//! places for, relays of one element stand between: a relay is an input of what it stands for and is differentiated before or after it,
//! and takes the gradients that the other left.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor,
};

use crate::array::Made;
use crate::error::Error;

/// An input that a gradient may go to, by the name that messages have for it.
pub(crate) type Named<'a> = (&'static str, &'a Tensor);

/// Whether candle differentiates with respect to any of these.
pub(crate) fn any_tracked(inputs: &[Named<'_>]) -> bool {
    inputs.iter().any(|(_, input)| input.track_op())
}

/// The gradients of inputs from results and their gradients, of which at least one is there.
pub(crate) trait Backward: Fn(&[Tensor], &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {}
impl<F: Fn(&[Tensor], &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>>> Backward for F {}

/// The one result of an operation as a node of the graph; `backward` takes it and its gradient and has one gradient for each of `inputs`,
/// `None` where there is none.
pub(crate) fn record<B>(op: &'static str, inputs: &[Named<'_>], result: Made, backward: B) -> Result<Tensor>
where
    B: Fn(&Tensor, &Tensor) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
{
    let both = move |results: &[Tensor], gradients: &[Option<Tensor>]| match (results, gradients) {
        ([y], [Some(dy)]) => backward(y, dy),
        _ => Err(Error::Order { op }.into()),
    };
    match <[Tensor; 1]>::try_from(record_all(op, inputs, vec![result], both)?) {
        Ok([result]) => Ok(result),
        Err(_) => Err(Error::Order { op }.into()),
    }
}

/// The results of an operation as nodes of the graph; see [`record`].
pub(crate) fn record_all<B>(
    op: &'static str,
    inputs: &[Named<'_>],
    results: Vec<Made>,
    backward: B,
) -> Result<Vec<Tensor>>
where
    B: Backward + Send + Sync + 'static,
{
    let tracked: Vec<usize> = (0..inputs.len()).filter(|&i| inputs[i].1.track_op()).collect();
    let Some(&first) = tracked.first() else { return results.into_iter().map(Made::into_tensor).collect() };
    let names: Vec<&'static str> = tracked.iter().map(|&i| inputs[i].0).collect();
    let parents: Vec<&Tensor> = tracked.iter().map(|&i| inputs[i].1).collect();
    let device = inputs[first].1.device();
    let handed_over: Arc<OnceLock<Vec<Tensor>>> = Arc::default();

    let seen = handed_over.clone();
    let of_parents = move |gradients: &[Option<Tensor>]| {
        let results = seen.get().ok_or(Error::Order { op })?;
        let mut all = backward(results, gradients)?;
        let pick = |(&i, &argument): (&usize, &&'static str)| {
            let gradient = all.get_mut(i).and_then(Option::take);
            gradient.ok_or_else(|| Error::NoGradient { op, argument }.into())
        };
        tracked.iter().zip(&names).map(pick).collect::<Result<Vec<Tensor>>>()
    };

    let recorded = match <[Made; 1]>::try_from(results) {
        Ok([result]) => {
            let of_one = move |dy: &Tensor| of_parents(&[Some(dy.clone())]);
            vec![join(op, &parents, result, Box::new(of_one))?]
        }
        Err(results) => {
            let left: Arc<Left> = Arc::default();
            let count = results.len();
            let taken = left.clone();
            let of_all = move |_: &Tensor| {
                let mut gradients = vec![None; count];
                for (index, gradient) in taken.take() {
                    gradients[index] = Some(gradient);
                }
                of_parents(&gradients)
            };
            let whole = join(op, &parents, Made::relay(device)?, Box::new(of_all))?;
            let apart = |(index, result)| {
                let left = left.clone();
                let of_one = move |dy: &Tensor| {
                    left.leave(index, dy.clone());
                    Ok(vec![nothing(dy.device())?])
                };
                join(op, &[&whole], result, Box::new(of_one))
            };
            results.into_iter().enumerate().map(apart).collect::<Result<Vec<_>>>()?
        }
    };
    // Without their place in the graph, which would otherwise hold itself.
    let _ = handed_over.set(recorded.iter().map(Tensor::detach).collect());
    Ok(recorded)
}

/// The gradient of a relay, whose value does not matter.
fn nothing(device: &candle_core::Device) -> Result<Tensor> {
    Tensor::zeros(1, DType::F32, device)
}

/// Gradients that wait for the relay that takes them: of each thread, since a graph may be differentiated on several at once.
#[derive(Default)]
struct Left(Mutex<HashMap<ThreadId, HashMap<usize, Tensor>>>);

impl Left {
    fn lock(&self) -> MutexGuard<'_, HashMap<ThreadId, HashMap<usize, Tensor>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, index: usize, gradient: Tensor) {
        self.lock().entry(thread::current().id()).or_default().insert(index, gradient);
    }

    fn take(&self) -> HashMap<usize, Tensor> {
        self.lock().remove(&thread::current().id()).unwrap_or_default()
    }

    fn take_one(&self, index: usize) -> Option<Tensor> {
        let mut all = self.lock();
        let of_thread = all.get_mut(&thread::current().id())?;
        let gradient = of_thread.remove(&index);
        if of_thread.is_empty() {
            all.remove(&thread::current().id());
        }
        gradient
    }
}

/// The gradients of the parents of a node, from that of the node.
type Gradients = Box<dyn Fn(&Tensor) -> Result<Vec<Tensor>> + Send + Sync>;

/// A node with any number of parents, at least one. `backward` has a gradient for each.
fn join(op: &'static str, parents: &[&Tensor], result: Made, backward: Gradients) -> Result<Tensor> {
    if parents.len() <= 3 {
        return node(op, parents, result, backward);
    }
    // The third place is that of a relay, whose parents are all the others.
    let (near, far) = parents.split_at(2);
    let left: Arc<Left> = Arc::default();
    let taken = left.clone();
    let count = far.len();
    let of_far = move |_: &Tensor| {
        let one = |index| taken.take_one(index).ok_or_else(|| Error::Order { op }.into());
        (0..count).map(one).collect()
    };
    let relay = join(op, far, Made::relay(near[0].device())?, Box::new(of_far))?;
    let of_near = move |dy: &Tensor| {
        let mut gradients = backward(dy)?;
        for (index, gradient) in gradients.drain(2..).enumerate() {
            left.leave(index, gradient);
        }
        gradients.push(nothing(dy.device())?);
        Ok(gradients)
    };
    node(op, &[near[0], near[1], &relay], result, Box::new(of_near))
}

/// A node with one to three parents.
fn node(op: &'static str, parents: &[&Tensor], result: Made, backward: Gradients) -> Result<Tensor> {
    let (result, shape) = result.into_storage()?;
    let node = Node { op, shape, result: Mutex::new(Some(result)), backward };
    match *parents {
        [a] => a.apply_op1(node),
        [a, b] => a.apply_op2(b, node),
        [a, b, c] => a.apply_op3(b, c, node),
        _ => Err(Error::Order { op }.into()),
    }
}

/// A custom operation of candle whose kernels have run.
struct Node {
    op: &'static str,
    shape: Shape,
    result: Mutex<Option<Storage>>,
    backward: Gradients,
}

impl Node {
    fn result(&self) -> Option<Storage> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn cpu(&self) -> Result<(CpuStorage, Shape)> {
        match self.result() {
            Some(Storage::Cpu(storage)) => Ok((storage, self.shape.clone())),
            _ => Err(Error::Order { op: self.op }.into()),
        }
    }

    fn cuda(&self) -> Result<(CudaStorage, Shape)> {
        match self.result() {
            Some(Storage::Cuda(storage)) => Ok((storage, self.shape.clone())),
            _ => Err(Error::Order { op: self.op }.into()),
        }
    }

    fn gradients<const N: usize>(&self, dy: &Tensor) -> Result<[Option<Tensor>; N]> {
        let gradients: [Tensor; N] =
            (self.backward)(dy)?.try_into().map_err(|_| Error::Order { op: self.op })?;
        Ok(gradients.map(Some))
    }
}

impl CustomOp1 for Node {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.cpu()
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.cuda()
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let [gradient] = self.gradients(dy)?;
        Ok(gradient)
    }
}

impl CustomOp2 for Node {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.cpu()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.cuda()
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok(self.gradients::<2>(dy)?.into())
    }
}

impl CustomOp3 for Node {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.cpu()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.cuda()
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        Ok(self.gradients::<3>(dy)?.into())
    }
}
