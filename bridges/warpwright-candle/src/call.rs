//! A call of an operation on candle's tensors: where it runs, what its kernels read, and what they write.
#![allow(unsafe_code, reason = "memory and streams of candle come as addresses and handles")]

use std::array;

use candle_core::{CpuStorage, DType as HostDType, DeviceLocation, Result, Storage, Tensor as HostTensor};
use warpwright::plan::{Plan, PlanCache, TensorSpec};
use warpwright::{DType, Device, Operation, Stream, Tensor, TensorMut, TensorRef};

use crate::array::{Array, FLOATS, Made, Memory, Spec, Written, dtype_of};
use crate::device;
use crate::error::{Error, operation};
use crate::graph::Named;

/// Where an operation runs, and its name for messages.
pub(crate) struct Call {
    op: &'static str,
    host: candle_core::Device,
    device: Device,
    stream: Stream,
}

/// The integers that numbers of classes, lengths and positions may be.
const INTEGERS: [HostDType; 3] = [HostDType::U32, HostDType::I32, HostDType::I64];

impl Call {
    /// A call where `x` lies.
    pub(crate) fn new(op: &'static str, (argument, x): Named<'_>) -> Result<Self> {
        let host = x.device().clone();
        let (device, stream) = match host {
            candle_core::Device::Cpu => {
                let device = device::emulator().clone();
                let stream = device.stream().map_err(operation)?;
                (device, stream)
            }
            #[cfg(feature = "cuda")]
            candle_core::Device::Cuda(ref host) => crate::cuda::device_and_stream(host)?,
            _ => {
                let got = host.location();
                return Err(Error::NoKernels { op, argument, got }.into());
            }
        };
        Ok(Self { op, host, device, stream })
    }

    /// The plan of an operation for the device.
    pub(crate) fn plan<O: Operation>(&self, plans: &PlanCache<O>, desc: &O) -> Result<Plan<O>> {
        plans.get(desc, self.device.target()).map_err(operation)
    }

    /// An argument as it lies.
    pub(crate) fn read(&self, (argument, x): Named<'_>) -> Result<Array> {
        let (op, expected, got) = (self.op, self.host.location(), x.device().location());
        if got != expected {
            return Err(Error::Device { op, argument, expected, got }.into());
        }
        Array::of(x.detach(), dtype_of(op, argument, x.dtype())?)
    }

    /// An argument in row-major order: itself, or a copy.
    pub(crate) fn row_major(&self, (argument, x): Named<'_>) -> Result<Array> {
        self.read((argument, x))?;
        let x = x.detach().contiguous()?;
        let dtype = dtype_of(self.op, argument, x.dtype())?;
        Array::of(x, dtype)
    }

    /// An argument whose rows, the last dimension, have no gaps: itself, or a copy.
    pub(crate) fn rows(&self, named: Named<'_>) -> Result<Array> {
        let array = self.read(named)?;
        if array.shape.last().is_none_or(|&n| n < 2) || array.strides.last() == Some(&1) {
            return Ok(array);
        }
        self.row_major(named)
    }

    /// An argument in row-major order, of a type and a shape.
    pub(crate) fn expect(&self, named: Named<'_>, dtype: DType, shape: &[usize]) -> Result<Array> {
        let array = self.expect_dtype(self.row_major(named)?, named, dtype)?;
        self.expect_shape(named, shape)?;
        Ok(array)
    }

    /// The same if it is given.
    pub(crate) fn optional(
        &self,
        argument: &'static str,
        x: Option<&HostTensor>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Option<Array>> {
        x.map(|x| self.expect((argument, x), dtype, shape)).transpose()
    }

    /// That an argument has an element type.
    pub(crate) fn expect_dtype(&self, array: Array, (argument, x): Named<'_>, dtype: DType) -> Result<Array> {
        if array.dtype == dtype {
            return Ok(array);
        }
        let expected =
            FLOATS.into_iter().filter(|&host| dtype_of(self.op, argument, host).ok() == Some(dtype));
        let expected = expected.collect();
        Err(Error::DType { op: self.op, argument, expected, got: x.dtype() }.into())
    }

    /// That an argument has a shape.
    pub(crate) fn expect_shape(&self, named: Named<'_>, shape: &[usize]) -> Result<()> {
        if named.1.dims() == shape {
            return Ok(());
        }
        Err(self.refuse_shape(named, format!("{shape:?}")))
    }

    /// That an argument has another shape than `expected`.
    pub(crate) fn refuse_shape(
        &self,
        (argument, x): Named<'_>,
        expected: impl Into<String>,
    ) -> candle_core::Error {
        let (op, expected, got) = (self.op, expected.into(), x.dims().to_vec());
        Error::Shape { op, argument, expected, got }.into()
    }

    /// Integers in row-major order: of 32 bits as i32, which numbers from 2^31 on become negative in, and of 64 bits.
    pub(crate) fn integers(&self, (argument, x): Named<'_>, shape: &[usize]) -> Result<Array> {
        let dtype = match x.dtype() {
            HostDType::U32 | HostDType::I32 => DType::I32,
            HostDType::I64 => DType::I64,
            got => {
                let (op, expected) = (self.op, INTEGERS.to_vec());
                return Err(Error::DType { op, argument, expected, got }.into());
            }
        };
        self.expect_shape((argument, x), shape)?;
        Ok(Array { dtype, ..self.row_major((argument, x))? })
    }

    /// The same of 32 bits.
    pub(crate) fn lengths(&self, (argument, x): Named<'_>, shape: &[usize]) -> Result<Array> {
        match x.dtype() {
            HostDType::I64 => self.integers((argument, &x.detach().to_dtype(HostDType::U32)?), shape),
            _ => self.integers((argument, x), shape),
        }
    }

    /// Scratch memory that a plan asks for.
    pub(crate) fn workspace<O: Operation>(&self, plan: &Plan<O>) -> Option<Spec> {
        self.place(plan, TensorSpec::WORKSPACE)
    }

    /// Memory for an output that a plan has, by its name.
    pub(crate) fn place<O: Operation>(&self, plan: &Plan<O>, name: &'static str) -> Option<Spec> {
        plan.tensor(name).map(|spec| Spec::new(spec.dtype, &[spec.len]))
    }

    /// Launches on arrays, and has what was written.
    pub(crate) fn run<const I: usize, const O: usize>(
        &self,
        inputs: [Option<&Array>; I],
        outputs: [Option<Spec>; O],
        launch: impl FnOnce(
            &Stream,
            [Option<TensorRef<'_>>; I],
            [Option<TensorMut<'_>>; O],
        ) -> std::result::Result<(), warpwright::Error>,
    ) -> Result<[Option<Made>; O]> {
        // There are as many as came in.
        let made = self.run_all(&inputs, outputs.to_vec(), |stream, inputs, outputs| {
            let (mut inputs, mut outputs) = (inputs.into_iter(), outputs.into_iter());
            let inputs = array::from_fn(|_| inputs.next().flatten());
            launch(stream, inputs, array::from_fn(|_| outputs.next().flatten()))
        })?;
        let mut made = made.into_iter();
        Ok(array::from_fn(|_| made.next().flatten()))
    }

    /// The same of numbers of arrays that are known at run time.
    pub(crate) fn run_all(
        &self,
        inputs: &[Option<&Array>],
        outputs: Vec<Option<Spec>>,
        launch: impl FnOnce(
            &Stream,
            Vec<Option<TensorRef<'_>>>,
            Vec<Option<TensorMut<'_>>>,
        ) -> std::result::Result<(), warpwright::Error>,
    ) -> Result<Vec<Option<Made>>> {
        let mapped = inputs.iter().map(|array| array.map(|array| self.map(array)).transpose());
        let mapped = mapped.collect::<Result<Vec<_>>>()?;
        let made = outputs.iter().map(|spec| spec.as_ref().map(|spec| self.make(spec)).transpose());
        let mut made = made.collect::<Result<Vec<_>>>()?;
        let views = inputs.iter().zip(&mapped).map(|(array, at)| {
            let Some((array, at)) = array.zip(at.as_ref()) else { return Ok(None) };
            // SAFETY: the address is that of memory of the device that holds every element of the array. Memory of the emulator is
            // borrowed here until the launch returns, when the emulator has run it. Memory of candle is freed in the order of its
            // stream, which is the one that the launch is enqueued on.
            let view = unsafe {
                TensorRef::from_raw(&self.device, at.address, array.dtype, &array.shape, Some(&array.strides))
            };
            view.map(Some)
        });
        let views = views.collect::<std::result::Result<Vec<_>, _>>().map_err(operation)?;
        let targets = made.iter_mut().zip(&outputs).map(|(made, spec)| match (made, spec) {
            (Some(made), Some(spec)) => made.as_mut(&self.device, &self.stream, spec).map(Some),
            _ => Ok(None),
        });
        let targets = targets.collect::<Result<Vec<_>>>()?;
        launch(&self.stream, views, targets).map_err(operation)?;
        #[cfg(feature = "cuda")]
        for array in inputs.iter().flatten() {
            if let Memory::Host(tensor) = &array.memory {
                crate::cuda::note_read(tensor, &self.host)?;
            }
        }
        #[cfg(feature = "cuda")]
        for made in made.iter_mut().flatten() {
            if let Written::Host(Storage::Cuda(storage)) = &mut made.written {
                crate::cuda::address_mut(storage)?;
            }
        }
        Ok(made)
    }

    fn map(&self, array: &Array) -> Result<Mapped> {
        match &array.memory {
            Memory::Emulated(tensor) => Ok(Mapped { address: tensor.buffer().address(), _memory: None }),
            Memory::Host(tensor) => {
                let (storage, layout) = tensor.storage_and_layout();
                match &*storage {
                    Storage::Cpu(storage) => {
                        let start = layout.start_offset();
                        // A tensor of candle lies in its storage: none of this overflows.
                        let steps =
                            layout.dims().iter().zip(layout.stride()).map(|(n, s)| n.saturating_sub(1) * s);
                        let len = if tensor.elem_count() == 0 { 0 } else { steps.sum::<usize>() + 1 };
                        let memory = self.upload(storage, start..start + len)?;
                        Ok(Mapped { address: memory.buffer().address(), _memory: Some(memory) })
                    }
                    #[cfg(feature = "cuda")]
                    Storage::Cuda(storage) => {
                        let address = crate::cuda::address(storage, layout, &self.host)?;
                        Ok(Mapped { address, _memory: None })
                    }
                    _ => Err(self.no_kernels(tensor.device().location())),
                }
            }
        }
    }

    fn upload(&self, storage: &CpuStorage, range: std::ops::Range<usize>) -> Result<Tensor> {
        let (stream, shape) = (&self.stream, [range.len()]);
        match storage {
            CpuStorage::F32(data) => Tensor::from_slice_on(stream, &data[range], &shape),
            CpuStorage::F64(data) => Tensor::from_slice_on(stream, &data[range], &shape),
            CpuStorage::F16(data) => Tensor::from_slice_on(stream, &data[range], &shape),
            CpuStorage::BF16(data) => Tensor::from_slice_on(stream, &data[range], &shape),
            CpuStorage::U8(data) => Tensor::from_slice_on(stream, &data[range], &shape),
            CpuStorage::U32(data) => Tensor::from_slice_on(stream, &data[range], &shape),
            CpuStorage::I16(data) => Tensor::from_slice_on(stream, &data[range], &shape),
            CpuStorage::I32(data) => Tensor::from_slice_on(stream, &data[range], &shape),
            CpuStorage::I64(data) => Tensor::from_slice_on(stream, &data[range], &shape),
            _ => return Err(self.no_kernels(DeviceLocation::Cpu)),
        }
        .map_err(operation)
    }

    fn make(&self, spec: &Spec) -> Result<Made> {
        let written = match &self.host {
            #[cfg(feature = "cuda")]
            candle_core::Device::Cuda(host) => {
                Written::Host(crate::cuda::empty(host, spec.dtype, &spec.shape)?)
            }
            _ => {
                let tensor = Tensor::empty_on(&self.stream, spec.dtype, &spec.shape).map_err(operation)?;
                Written::Emulated(tensor, self.stream.clone())
            }
        };
        Ok(Made { written, dtype: spec.dtype, shape: spec.shape.clone() })
    }

    fn no_kernels(&self, got: DeviceLocation) -> candle_core::Error {
        Error::NoKernels { op: self.op, argument: "a tensor", got }.into()
    }
}

/// Where an array is for a launch.
struct Mapped {
    address: u64,
    /// Copies that were made for it.
    _memory: Option<Tensor>,
}

/// A tensor that the call brought.
#[track_caller]
pub(crate) fn present<T>(tensor: Option<T>) -> T {
    match tensor {
        Some(tensor) => tensor,
        None => unreachable!("the operation always brings this tensor"),
    }
}

/// The one result.
#[track_caller]
pub(crate) fn only([made]: [Option<Made>; 1]) -> Made {
    present(made)
}
