//! A call of an operation on burn's tensors: what it takes, checked before burn's dispatch, which ends the program where tensors do
//! not fit each other.

use burn::backend::{DispatchDevice, DispatchTensor};
use burn::tensor::{Device, Int, IntDType, Tensor};
use warpwright::Stream;

use crate::error::Error;
use crate::graph::{Inputs, Job, Made, dispatch};
use crate::memory::{FLOATS, INTEGERS};

/// The tensors of a call.
pub(crate) struct Call {
    op: &'static str,
    names: Vec<&'static str>,
    floats: Vec<DispatchTensor>,
    names_of_ints: Vec<&'static str>,
    ints: Vec<DispatchTensor>,
    constants: Vec<&'static str>,
    differentiated: Option<Device>,
}

impl Call {
    /// A call without tensors yet.
    pub(crate) fn new(op: &'static str) -> Self {
        let (names, floats, names_of_ints, ints, constants) = Default::default();
        Self { op, names, floats, names_of_ints, ints, constants, differentiated: None }
    }

    /// With a tensor that gradients may be asked for.
    pub(crate) fn float<const D: usize>(mut self, name: &'static str, x: Tensor<D>) -> Result<Self, Error> {
        let (op, argument, got) = (self.op, name, x.dtype());
        if !FLOATS.contains(&got) {
            return Err(Error::DType { op, argument, expected: &FLOATS, got });
        }
        self.check_device(name, x.device())?;
        self.names.push(name);
        self.floats.push(x.into_dispatch());
        Ok(self)
    }

    /// With a tensor that may be there.
    pub(crate) fn optional<const D: usize>(
        self,
        name: &'static str,
        x: Option<Tensor<D>>,
    ) -> Result<Self, Error> {
        match x {
            Some(x) => self.float(name, x),
            None => Ok(self),
        }
    }

    /// With a tensor that there is no gradient for.
    pub(crate) fn constant<const D: usize>(self, name: &'static str, x: Tensor<D>) -> Result<Self, Error> {
        let mut call = self.float(name, x)?;
        call.constants.push(name);
        Ok(call)
    }

    /// With integers.
    pub(crate) fn ints<const D: usize>(
        mut self,
        name: &'static str,
        x: Tensor<D, Int>,
    ) -> Result<Self, Error> {
        let (op, argument, got) = (self.op, name, x.dtype());
        if !INTEGERS.contains(&got) {
            return Err(Error::DType { op, argument, expected: &INTEGERS, got });
        }
        self.check_device(name, x.device())?;
        self.names_of_ints.push(name);
        self.ints.push(x.into_dispatch());
        Ok(self)
    }

    /// With the lengths of sequences, in the type that kernels count in. What that type cannot hold is longer than any sequence.
    pub(crate) fn lengths(self, name: &'static str, x: Option<Tensor<1, Int>>) -> Result<Self, Error> {
        let Some(x) = x else { return Ok(self) };
        let x = x.cast(IntDType::I64).clamp(i32::MIN, i32::MAX);
        self.ints(name, x.cast(IntDType::I32))
    }

    fn check_device(&mut self, argument: &'static str, got: Device) -> Result<(), Error> {
        let op = self.op;
        if !matches!(got.clone().inner().as_dispatch(), DispatchDevice::Flex(_)) {
            return Err(Error::Device { op, argument, got: Box::new(got) });
        }
        if got.is_autodiff() {
            let expected = self.differentiated.get_or_insert_with(|| got.clone());
            if expected.gradient_checkpointing_strategy() != got.gradient_checkpointing_strategy() {
                let expected = Box::new(expected.clone());
                return Err(Error::Checkpointing { op, argument, expected, got: Box::new(got) });
            }
        }
        Ok(())
    }

    /// Launches kernels, and has what they wrote.
    pub(crate) fn run(
        self,
        launch: impl FnOnce(&Stream, &Inputs) -> Result<Made, Error> + Send + 'static,
    ) -> Result<Results, Error> {
        let Self { op, mut names, floats, names_of_ints, ints, constants, .. } = self;
        names.extend(names_of_ints);
        let results = dispatch(floats, ints, Job { op, names, constants, launch: Box::new(launch) })?;
        Ok(Results(results.into_iter()))
    }
}

/// The results of a call: the first result has a gradient.
pub(crate) struct Results(std::vec::IntoIter<DispatchTensor>);

impl Results {
    /// The next result.
    #[track_caller]
    pub(crate) fn next<const D: usize>(&mut self) -> Tensor<D> {
        match self.0.next() {
            Some(tensor) => Tensor::from_dispatch(tensor),
            None => unreachable!("the operation always writes this tensor"),
        }
    }
}
