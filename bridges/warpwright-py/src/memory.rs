//! Launches on memory of other libraries.
#![allow(unsafe_code, reason = "memory of other libraries comes as numbers")]

use std::ops::Range;

use warpwright::plan::Plan;
use warpwright::{
    Buffer, DType, Device, Error, Interrupt, Operation, RuntimeError, Stream, Tensor, TensorMut, TensorRef,
};
use warpwright_runtime::{Binding, RecordedLaunch};

use crate::array::Array;
use crate::device::{Gpu, Place, emulator, opened};
use crate::dlpack::{Vec8, host_bytes, host_bytes_mut};
use crate::many::Many;
use crate::overlap::{self, Group};

/// The elements of an array as one sequence, in the order in which they lie in memory, or in a shape.
#[derive(Clone)]
pub(crate) struct Flat {
    address: u64,
    dtype: DType,
    len: usize,
    /// Whether a result is read before it is written.
    updated: bool,
    /// For operations that look at them. On the host the strides are those of row-major order.
    shape: Option<Box<Shape>>,
}

#[derive(Clone)]
struct Shape {
    extents: Vec8<usize>,
    strides: Vec8<i64>,
}

impl Flat {
    pub(crate) fn of(array: &Array<'_>) -> Self {
        let len = array.span.unwrap_or_else(|| array.len());
        Self { address: array.address, dtype: array.dtype, len, updated: false, shape: None }
    }

    /// The same with the shape and strides of the array.
    pub(crate) fn shaped(array: &Array<'_>) -> Self {
        let shape = Box::new(Shape { extents: array.shape, strides: array.strides });
        Self { shape: Some(shape), ..Self::of(array) }
    }

    /// The same with a shape, in row-major order.
    pub(crate) fn in_shape(self, extents: Vec8<usize>) -> Self {
        let strides = Vec8::row_major(&extents);
        Self { shape: Some(Box::new(Shape { extents, strides })), ..self }
    }

    pub(crate) fn of_tensor(tensor: &mut Tensor) -> Self {
        let (dtype, len) = (tensor.dtype(), tensor.len());
        Self { address: tensor.buffer().address(), dtype, len, updated: false, shape: None }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    fn extents(&self) -> &[usize] {
        self.shape.as_ref().map_or(std::slice::from_ref(&self.len), |shape| &shape.extents)
    }

    fn strides(&self) -> Option<&[i64]> {
        self.shape.as_ref().map(|shape| &*shape.strides)
    }

    /// The same elsewhere.
    pub(crate) fn moved(&self, place: impl FnOnce(u64) -> u64) -> Self {
        Self { address: place(self.address), ..self.clone() }
    }

    /// The same for a result that is read before it is written.
    pub(crate) fn updated(self) -> Self {
        Self { updated: true, ..self }
    }

    fn bytes(&self) -> usize {
        self.len.saturating_mul(self.dtype.bytes())
    }

    fn range(&self) -> Range<u64> {
        overlap::range(self.address, self.bytes())
    }
}

/// Enqueues a plan whose tensors lie at these addresses of a GPU, inputs before outputs. They have been checked, and live as
/// [`run`] asks.
pub(crate) fn launch_at<O: Operation>(
    ordinal: u32,
    stream: u64,
    plan: &Plan<O>,
    inputs: &[u64],
    outputs: &[u64],
) -> Result<(), Error> {
    const MOST: usize = 8;
    let gpu = opened(ordinal)?;
    let mut bindings = [Binding::NULL; MOST];
    for (binding, address) in bindings.iter_mut().zip(inputs.iter().chain(outputs)) {
        // SAFETY: the array was described by its library as memory of this device, and has the type, the number of elements
        // and the order without gaps that the plan was made for.
        *binding = unsafe { Binding::from_raw(&gpu.device, *address) };
    }
    let count = (inputs.len() + outputs.len()).min(MOST);
    Ok(plan.launch_bound(&*gpu.stream(stream)?, &bindings[..count])?)
}

/// Enqueues what a call enqueued before on memory of the same kind, at these addresses of a GPU; it lives as [`run`] asks.
pub(crate) fn launch_again(
    gpu: &Gpu,
    stream: &Stream,
    launch: &RecordedLaunch,
    addresses: impl Iterator<Item = u64>,
) -> Result<(), RuntimeError> {
    // SAFETY: PyTorch described or allocated the memory as that of this device, with the types, sizes, strides and alignment of
    // the call that was recorded; a null pointer was one there.
    let binding = |address| unsafe { Binding::from_raw(&gpu.device, address) };
    let bindings: Vec<_> = addresses.map(binding).collect();
    launch.launch(stream, &bindings)
}

/// Runs an operation on arrays that lie in `place`, on the raw stream `stream` of a GPU. What is absent stays absent.
/// `interrupt` ends what the emulator runs.
///
/// The memory must stay allocated until the GPU has passed the operation, and on the host until this returns. The caller
/// holds the arrays meanwhile; memory of their libraries is given back in stream order.
pub(crate) fn run<I: Many, O: Many>(
    place: Place,
    stream: u64,
    inputs: I::Of<Option<Flat>>,
    outputs: O::Of<Option<Flat>>,
    interrupt: Option<&Interrupt>,
    work: impl FnOnce(&Stream, I::Of<Option<TensorRef<'_>>>, O::Of<Option<TensorMut<'_>>>) -> Result<(), Error>,
) -> Result<(), Error> {
    match place {
        Place::Cuda(ordinal) => {
            let gpu = opened(ordinal)?;
            let (device, stream) = (&gpu.device, gpu.stream(stream)?);
            // SAFETY: the arrays were described by their libraries as memory of this device, contiguous and of this length,
            // or of this shape and these strides.
            let input = |x: Flat| unsafe {
                TensorRef::from_raw(device, x.address, x.dtype, x.extents(), x.strides())
            };
            // SAFETY: as above, and their libraries let them be written.
            let output = |y: Flat| unsafe {
                TensorMut::from_raw(device, y.address, y.dtype, y.extents(), y.strides())
            };
            let inputs = I::try_map(inputs, |x| x.map(input).transpose())?;
            let outputs = O::try_map(outputs, |y| y.map(output).transpose())?;
            work(&stream, inputs, outputs)
        }
        Place::Host => {
            let device = emulator();
            // One of its own, which the interrupt of this call goes with.
            let stream = device.new_stream()?;
            stream.set_interrupt(interrupt.cloned());
            let all = || I::iter(&inputs).chain(O::iter(&outputs)).flatten();
            let mut memory = HostBlocks::new(device, all().map(Flat::range).collect())?;
            for x in I::iter(&inputs)
                .chain(O::iter(&outputs).filter(|y| y.as_ref().is_some_and(|y| y.updated)))
                .flatten()
            {
                memory.fill(x)?;
            }
            work(
                &stream,
                I::try_map(I::of_refs(&inputs), |x| x.as_ref().map(|x| memory.view(x)).transpose())?,
                O::try_map(O::of_refs(&outputs), |y| y.as_ref().map(|y| memory.view_mut(y)).transpose())?,
            )?;
            O::iter(&outputs).flatten().try_for_each(|y| memory.read(y))
        }
    }
}

/// Host memory as the emulator sees it: what overlaps on the host overlaps there, so that the same is refused as on a GPU.
struct HostBlocks<'d> {
    device: &'d Device,
    blocks: Vec<(Group, Buffer)>,
}

impl<'d> HostBlocks<'d> {
    fn new(device: &'d Device, ranges: Vec<Range<u64>>) -> Result<Self, RuntimeError> {
        let made = |group: Group| device.alloc(group.bytes()).map(|buffer| (group, buffer));
        let blocks = overlap::groups(&ranges).into_iter().map(made).collect::<Result<_, _>>()?;
        Ok(Self { device, blocks })
    }

    /// The block that holds an array, and where it begins there; `None` for an empty array.
    fn place(&self, x: &Flat) -> Option<(usize, u64)> {
        let range = x.range();
        let holds =
            |(group, _): &(Group, Buffer)| group.range.start <= range.start && range.end <= group.range.end;
        let at = if range.is_empty() { None } else { self.blocks.iter().position(holds) }?;
        Some((at, self.blocks[at].0.offset(range.start)))
    }

    /// Copies an array to its place.
    fn fill(&mut self, x: &Flat) -> Result<(), RuntimeError> {
        let Some((at, offset)) = self.place(x) else { return Ok(()) };
        // SAFETY: the array is held by the caller and was described as host memory without gaps of this length.
        self.blocks[at].1.write(offset, unsafe { host_bytes(x.address, x.bytes()) })
    }

    /// Copies a result to the host.
    fn read(&self, y: &Flat) -> Result<(), Error> {
        let Some((at, offset)) = self.place(y) else { return Ok(()) };
        // SAFETY: as for `fill`, and the array's library lets it be written.
        Ok(self.blocks[at].1.read(offset, unsafe { host_bytes_mut(y.address, y.bytes()) })?)
    }

    /// The address of an array that has as many elements as its shape says.
    fn address(&self, x: &Flat) -> Result<u64, RuntimeError> {
        let count = x.extents().iter().try_fold(1usize, |n, extent| n.checked_mul(*extent));
        if count != Some(x.len) {
            let (shape, got) = (x.extents().into(), x.len);
            let expected = count.unwrap_or(usize::MAX);
            return Err(RuntimeError::Elements { op: "run", argument: "array", shape, expected, got });
        }
        Ok(self.place(x).map_or(0, |(at, offset)| self.blocks[at].1.address() + offset))
    }

    fn view(&self, x: &Flat) -> Result<TensorRef<'_>, RuntimeError> {
        // SAFETY: the elements lie in a block, which lives as long as the view.
        unsafe { TensorRef::from_raw(self.device, self.address(x)?, x.dtype, x.extents(), None) }
    }

    fn view_mut(&self, y: &Flat) -> Result<TensorMut<'_>, RuntimeError> {
        // SAFETY: as above. Who else reads or writes the elements is for the plan to check, as on a GPU.
        unsafe { TensorMut::from_raw(self.device, self.address(y)?, y.dtype, y.extents(), None) }
    }
}

/// The bytes of an array on the host that is row-major.
pub(crate) fn read_host<'a>(array: &'a Array<'_>) -> &'a [u8] {
    let flat = Flat::of(array);
    // SAFETY: the array is held and was described as host memory of this length.
    unsafe { host_bytes(flat.address, flat.bytes()) }
}

/// Writes an array on the host that is row-major and that its library lets be written.
pub(crate) fn write_host<R>(array: &Array<'_>, fill: impl FnOnce(&mut [u8]) -> R) -> R {
    let flat = Flat::of(array);
    // SAFETY: as above; the interpreter is attached while the slice is used.
    fill(unsafe { host_bytes_mut(flat.address, flat.bytes()) })
}
