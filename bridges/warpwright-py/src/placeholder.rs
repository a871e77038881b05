//! Arrays without memory: a call on them is planned, and runs later, any number of times, where its arrays then lie.
//!
//! A function that is called with placeholders does all that it does otherwise, but in place of the launch it leaves a step: what is to
//! be done with arrays of this type and shape. The addresses of placeholders stand for those that a run gives.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use warpwright::{DType, Error};

use crate::device::Place;
use crate::dlpack::{self, Description, Malformed, Vec8};

/// Addresses from one placeholder to the next: more than any array has bytes.
const ROOM: u64 = 1 << 46;
/// How many placeholders there are room for.
const MOST: usize = (u64::MAX / ROOM) as usize - 1;

/// Where the arrays of a run lie, in the order of the placeholders.
pub(crate) struct Addresses<'a>(pub(crate) &'a [u64]);

impl Addresses<'_> {
    /// The address that one of a placeholder stands for.
    pub(crate) fn resolve(&self, address: u64) -> u64 {
        let begin = number_at(address).and_then(|number| self.0.get(number));
        // What has no elements may lie anywhere.
        begin.map_or(0, |begin| begin.wrapping_add(address % ROOM))
    }
}

/// Which placeholder an address belongs to.
fn number_at(address: u64) -> Option<usize> {
    usize::try_from(address / ROOM).ok()?.checked_sub(1)
}

/// A part of a run, on a stream of a place.
pub(crate) type Step = Box<dyn Fn(Place, u64, &Addresses<'_>) -> Result<(), Error> + Send + Sync>;

/// A call in the making.
#[derive(Default)]
pub(crate) struct Planning(Mutex<Planned>);

/// The outcome of a call on placeholders.
#[derive(Default)]
pub(crate) struct Planned {
    pub(crate) steps: Vec<Step>,
    /// Of each placeholder.
    pub(crate) bytes: Vec<u64>,
}

impl Planning {
    /// Adds a step.
    pub(crate) fn push(&self, step: Step) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).steps.push(step);
    }

    /// Takes the outcome.
    pub(crate) fn take(&self) -> Planned {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An array without memory.
#[pyclass(frozen, module = "warpwright._native", name = "Placeholder")]
pub(crate) struct Placeholder {
    pub(crate) planning: Arc<Planning>,
    pub(crate) number: usize,
    place: Place,
    dtype: Result<DType, String>,
    shape: Box<[usize]>,
    /// Of the last two dimensions, those are exchanged in memory.
    transposed: bool,
}

impl Placeholder {
    /// A new one, in row-major order. Of a type that no operation takes there is the name.
    pub(crate) fn new(
        planning: &Arc<Planning>,
        place: Place,
        dtype: Result<DType, String>,
        shape: &[usize],
    ) -> Self {
        let element = dtype.as_ref().map_or(1, |dtype| dtype.bytes()) as u64;
        let bytes = shape.iter().try_fold(element, |n, extent| n.checked_mul(*extent as u64));
        let mut planned = planning.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = planned.bytes.len();
        planned.bytes.push(bytes.unwrap_or(u64::MAX));
        let planning = Arc::clone(planning);
        Self { planning, number, place, dtype, shape: shape.into(), transposed: false }
    }

    /// The name of the element type, and the shape.
    pub(crate) fn kind(&self) -> (Result<DType, &str>, &[usize]) {
        (self.dtype.as_ref().map(|dtype| *dtype).map_err(String::as_str), &self.shape)
    }

    pub(crate) fn describe(&self) -> Result<Description, Malformed> {
        let rank = self.shape.len();
        let shape = Vec8::collect(self.shape.iter().copied()).ok_or(Malformed::TooManyDimensions(rank))?;
        let mut stored = shape;
        if self.transposed {
            stored.swap_last_two();
        }
        let mut strides = Vec8::row_major(&stored);
        if self.transposed {
            strides.swap_last_two();
        }
        let (dtype, number) = (self.dtype.clone(), self.number);
        let size = dtype.as_ref().map_or(1, |dtype| dtype.bytes());
        let bytes = shape.iter().try_fold(size, |n, extent| n.checked_mul(*extent));
        if number >= MOST || bytes.is_none_or(|bytes| bytes as u64 >= ROOM) {
            return Err(Malformed::TooLarge);
        }
        let address = (number as u64 + 1) * ROOM;
        dlpack::check(address, size, &shape, &strides)?;
        let device = match self.place {
            Place::Host => (dlpack::CPU, 0),
            Place::Cuda(ordinal) => (dlpack::CUDA, ordinal.cast_signed()),
        };
        Ok(Description { address, device, dtype, shape, strides, read_only: true })
    }
}

#[pymethods]
impl Placeholder {
    /// The same array with its last two dimensions exchanged.
    #[getter(mT)]
    fn matrix_transpose(&self) -> Self {
        let mut shape = self.shape.clone();
        if let [.., rows, columns] = &mut *shape {
            std::mem::swap(rows, columns);
        }
        let (planning, number, place) = (Arc::clone(&self.planning), self.number, self.place);
        Self { planning, number, place, dtype: self.dtype.clone(), shape, transposed: !self.transposed }
    }
}
