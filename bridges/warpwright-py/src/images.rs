//! Arguments that are images: [N, C, ...].

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::conv::Layout;

use crate::array::{Array, Site};
use crate::call::{Call, Form};
use crate::error::{Class, Problem, unknown};
use crate::library::{Library, Maybe, Object};

/// Samples, channels and pixels of a channel of `x`, whose second dimension is the channels.
pub(crate) fn sizes(op: &'static str, x: &Array<'_>) -> PyResult<[usize; 3]> {
    match *x.shape {
        [batch, channels, ref pixels @ ..] => Ok([batch, channels, pixels.iter().product()]),
        _ => {
            let got = x.shape.len();
            let message = format!("{op}: x has {got} dimensions, expected at least 2");
            let problem = Problem::new(x.object.py(), Class::Shape, message).at(op, "x");
            Err(problem.mismatch("[N, C, ...]", got).into_err())
        }
    }
}

/// A call on an image, and how the image lies.
pub(crate) fn image<'py>(
    op: &'static str,
    x: &Bound<'py, PyAny>,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Call<'py>, Array<'py>, [usize; 3], bool)> {
    let (call, x) = Call::new(op, ("x", x), stream)?;
    let sizes = sizes(op, &x)?;
    let (x, last) = call.image(x)?;
    Ok((call, x, sizes, last))
}

/// Where the channels of images are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Before the pixels, in shape and memory.
    First,
    /// Last in both.
    Last,
    /// Before the pixels in the shape of a tensor of PyTorch, last in memory.
    LastInMemory,
}

impl Order {
    pub(crate) const fn layout(self) -> Layout {
        match self {
            Self::First => Layout::ChannelsFirst,
            Self::Last | Self::LastInMemory => Layout::ChannelsLast,
        }
    }

    /// How a weight in row-major order lies.
    pub(crate) const fn of_row_major(self) -> Layout {
        match self {
            Self::First | Self::LastInMemory => Layout::ChannelsFirst,
            Self::Last => Layout::ChannelsLast,
        }
    }

    /// The dimension of the channels.
    pub(crate) const fn channels(self, rank: usize) -> usize {
        match self {
            Self::First | Self::LastInMemory => 1,
            Self::Last => rank - 1,
        }
    }

    /// The other dimensions but the first.
    pub(crate) fn spatial(self, shape: &[usize]) -> &[usize] {
        match self {
            Self::First | Self::LastInMemory => &shape[2..],
            Self::Last => &shape[1..shape.len() - 1],
        }
    }

    /// A shape of such parts.
    pub(crate) fn shape(self, outer: usize, channels: usize, spatial: &[usize]) -> Vec<usize> {
        match self {
            Self::First | Self::LastInMemory => [&[outer, channels], spatial].concat(),
            Self::Last => [&[outer], spatial, &[channels]].concat(),
        }
    }
}

/// The keywords that say where the channels are.
#[derive(Clone, Copy)]
pub(crate) struct InMemory<'a> {
    pub(crate) channels_last: bool,
    pub(crate) memory_format: Option<&'a str>,
}

impl InMemory<'_> {
    /// Where the channels of `images` are; `least` is the number of dimensions from which on tensors of PyTorch may have theirs last in
    /// memory.
    pub(crate) fn order(self, op: &'static str, images: &Array<'_>, least: usize) -> PyResult<Order> {
        let of_torch = images.library == Library::Torch && images.shape.len() >= least;
        Ok(match (self.channels_last, self.memory_format) {
            (true, None) => Order::Last,
            (false, None) if of_torch && !images.is_row_major() && images.has_last(1) => Order::LastInMemory,
            (false, None | Some("contiguous_format")) => Order::First,
            (false, Some("channels_last")) if of_torch => Order::LastInMemory,
            (_, Some(name)) => {
                let expected = if least > 3 {
                    "'contiguous_format', or 'channels_last' for tensors of PyTorch with two or three spatial dimensions, without \
                     channels_last=True"
                } else {
                    "'contiguous_format', or 'channels_last' for tensors of PyTorch, without channels_last=True"
                };
                return Err(unknown(images.object.py(), op, ("memory_format", name), expected));
            }
        })
    }
}

/// A call on images of one to three dimensions, and where their channels are.
pub(crate) struct Images<'py> {
    pub(crate) op: &'static str,
    pub(crate) call: Call<'py>,
    pub(crate) order: Order,
}

impl<'py> Images<'py> {
    /// A call whose first argument are images that name the place, and the order in memory if nothing else does.
    pub(crate) fn new(
        op: &'static str,
        (argument, images): (&'static str, &Object<'py>),
        memory: InMemory<'_>,
        stream: Maybe<'_, 'py>,
    ) -> PyResult<(Self, Array<'py>)> {
        let (call, images) = Call::new(op, (argument, images), stream)?;
        let rank = images.shape.len();
        if !(3..=5).contains(&rank) {
            let message = format!("{op}: {argument} has {rank} dimensions, expected 3, 4 or 5");
            let problem = Problem::new(images.object.py(), Class::Shape, message).at(op, argument);
            return Err(problem.mismatch("3, 4 or 5", rank).into_err());
        }
        // PyTorch has no such format of three dimensions.
        let order = memory.order(op, &images, 4)?;
        Ok((Self { op, call, order }, images))
    }

    /// Images as the kernels take them.
    pub(crate) fn taken(&self, array: Array<'py>) -> PyResult<Array<'py>> {
        match self.order {
            Order::First | Order::Last => self.call.row_major(array),
            Order::LastInMemory => self.call.channels_last(array),
        }
    }

    /// The form of images of a shape.
    pub(crate) fn form<'s>(&self, dtype: DType, shape: &'s [usize]) -> Form<'s> {
        match self.order {
            Order::First | Order::Last => Form::RowMajor(dtype, shape),
            Order::LastInMemory => Form::ChannelsLast(dtype, shape),
        }
    }

    /// Samples, channels, and depth, height and width of images of a shape, 1 for a dimension that there is not.
    pub(crate) fn sizes(&self, shape: &[usize]) -> ([usize; 2], [usize; 3]) {
        let channels = shape[self.order.channels(shape.len())];
        ([shape[0], channels], three(self.order.spatial(shape), 1))
    }

    /// The shape of images, like one of `rank` dimensions, with these numbers of samples and channels, depth, height and width.
    pub(crate) fn shape(
        &self,
        rank: usize,
        [batch, channels]: [usize; 2],
        extents: [usize; 3],
    ) -> Vec<usize> {
        self.order.shape(batch, channels, &extents[5 - rank..])
    }

    /// The shape of images that an argument says, of which a gradient is like: of `rank` dimensions.
    pub(crate) fn shape_given(&self, object: &Object<'py>, rank: usize) -> PyResult<Vec<usize>> {
        let given: PyResult<Vec<usize>> = object.extract();
        if let Ok(shape) = &given
            && shape.len() == rank
        {
            return given;
        }
        let (got, expected) = (shown(object), format!("a shape of {rank} dimensions"));
        let message = format!("{}: shape is {got}, expected {expected}", self.op);
        let problem = Problem::new(object.py(), Class::Shape, message).at(self.op, "shape");
        Err(problem.mismatch(expected, got).into_err())
    }
}

/// Numbers for depth, height and width from those of the dimensions that there are; `other` for the rest.
pub(crate) fn three<T: Copy>(given: &[T], other: T) -> [T; 3] {
    let mut all = [other; 3];
    all[3 - given.len()..].copy_from_slice(given);
    all
}

fn shown(object: &Object<'_>) -> String {
    object.repr().map_or_else(|_| "something else".to_owned(), |text| text.to_string())
}

/// The items of an argument for each of `dims` dimensions: one for all, or a sequence.
pub(crate) fn each<'py, T: Copy>(
    Site { op, argument }: Site,
    object: Maybe<'_, 'py>,
    default: T,
    dims: usize,
    (numbers, item): (&str, impl Fn(&Object<'py>) -> PyResult<T>),
) -> PyResult<Vec<T>> {
    let Some(object) = object else { return Ok(vec![default; dims]) };
    let given: PyResult<Vec<T>> = match object.try_iter() {
        Ok(items) => items.map(|i| item(&i?)).collect(),
        Err(_) => item(object).map(|one| vec![one]),
    };
    match given.as_deref() {
        Ok([one]) => Ok(vec![*one; dims]),
        Ok(all) if all.len() == dims => Ok(all.to_vec()),
        _ => {
            let (got, expected) = (shown(object), format!("{dims} numbers{numbers}"));
            let message = format!("{op}: {argument} is {got}, expected {expected}");
            let problem = Problem::new(object.py(), Class::Parameter, message).at(op, argument);
            Err(problem.mismatch(expected, got).into_err())
        }
    }
}

/// Numbers of cells for each of `dims` dimensions.
pub(crate) fn counts<'py>(
    site: Site,
    object: Maybe<'_, 'py>,
    default: usize,
    dims: usize,
) -> PyResult<Vec<usize>> {
    each(site, object, default, dims, (" that are not negative, or one for all", |item| item.extract()))
}
