//! Arrays of other libraries as arguments: what they are, where they lie, and on which stream.

use pyo3::exceptions::{PyAttributeError, PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use std::sync::{Mutex, PoisonError};
use warpwright::DType;
use warpwright::plan::Layout;

use crate::device::{self, Place};
use crate::dlpack::{self, Capsule, Description, Exchange, Malformed, Vec8};
use crate::error::{self, Class, Problem};
use crate::library::{Library, dtype_named, interop};
use crate::placeholder::Placeholder;
use crate::torch;

/// Facts about a type of arrays.
#[derive(Clone, Copy)]
struct TypeFacts {
    library: Library,
    exchange: Option<Exchange>,
    /// Whether elements may be masked out: `numpy.ma.MaskedArray` and what derives from it.
    masked: bool,
}

/// The types seen so far. They are kept alive, so an address names one type for ever.
static TYPES: Mutex<Vec<(Py<PyType>, TypeFacts)>> = Mutex::new(Vec::new());

fn facts(object: &Bound<'_, PyAny>) -> PyResult<TypeFacts> {
    let ty = object.get_type();
    let known = TYPES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, facts)) = known.iter().find(|(t, _)| t.is(&ty)) {
        return Ok(*facts);
    }
    drop(known);
    if object.is_instance_of::<Placeholder>() {
        let facts = TypeFacts { library: Library::Placeholder, exchange: None, masked: false };
        TYPES.lock().unwrap_or_else(PoisonError::into_inner).push((ty.unbind(), facts));
        return Ok(facts);
    }
    let mut library = Library::Other;
    let mut masked = false;
    for base in ty.mro() {
        masked |= base.cast::<PyType>().is_ok_and(|base| base.name().is_ok_and(|name| name == "MaskedArray"));
        let module = base.getattr(intern!(object.py(), "__module__"))?;
        library = module.extract::<String>().map_or(Library::Other, |name| Library::of_module(&name));
        if library != Library::Other {
            break;
        }
    }
    let table = ty.getattr_opt(intern!(object.py(), "__dlpack_c_exchange_api__"))?;
    let facts = TypeFacts { library, exchange: table.as_ref().and_then(Exchange::from_capsule), masked };
    TYPES.lock().unwrap_or_else(PoisonError::into_inner).push((ty.unbind(), facts));
    Ok(facts)
}

/// Which argument of which operation; what errors name.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    pub(crate) op: &'static str,
    pub(crate) argument: &'static str,
}

/// Which stream an argument must be ready on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ordering {
    /// The one that its library enqueues on at present.
    Current,
    /// One that the caller named; what is pending elsewhere is the caller's to order.
    Named(u64),
    /// The current one of the library of another argument.
    Shared(Library, u64),
}

/// An argument. Boxed, because it goes through many hands.
pub(crate) type Array<'py> = Box<Argument<'py>>;

/// An argument.
pub(crate) struct Argument<'py> {
    pub(crate) object: Bound<'py, PyAny>,
    pub(crate) site: Site,
    pub(crate) library: Library,
    pub(crate) place: Place,
    pub(crate) address: u64,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec8<usize>,
    pub(crate) strides: Vec8<i64>,
    /// Whether the operation looks at shape and strides; otherwise the array is one sequence.
    pub(crate) shaped: bool,
    /// Elements from the first to the last, where the operation steps over gaps itself.
    pub(crate) span: Option<usize>,
    read_only: bool,
    /// The stream that its library enqueues on; 0 on the host.
    pub(crate) stream: u64,
    /// Keeps the memory as long as the array is here.
    capsule: Option<Capsule>,
}

impl<'py> Argument<'py> {
    /// Reads an argument.
    pub(crate) fn read(object: &Bound<'py, PyAny>, site: Site, ordering: Ordering) -> PyResult<Array<'py>> {
        let facts = facts(object)?;
        if facts.library == Library::Torch {
            refuse_gradient(object, site)?;
        }
        Self::read_known(object, site, ordering, facts)
    }

    /// Reads an array that was made for a result, which nobody records.
    pub(crate) fn read_made(
        object: &Bound<'py, PyAny>,
        site: Site,
        ordering: Ordering,
    ) -> PyResult<Array<'py>> {
        Self::read_known(object, site, ordering, facts(object)?)
    }

    fn read_known(
        object: &Bound<'py, PyAny>,
        site: Site,
        ordering: Ordering,
        TypeFacts { library, exchange, masked }: TypeFacts,
    ) -> PyResult<Array<'py>> {
        if masked {
            let Site { op, argument } = site;
            let message = format!(
                "{op}: {argument} is a masked array, whose mask would be ignored: use {argument}.data, or \
                 {argument}.filled(value)"
            );
            let problem = Problem::new(object.py(), Class::Argument, message).at(op, argument);
            return Err(problem.mismatch("array", "MaskedArray").into_err());
        }
        if library == Library::Numpy {
            return Self::from_numpy(object, site);
        }
        if library == Library::Placeholder {
            return Self::new(object, site, library, object.cast::<Placeholder>()?.get().describe(), None);
        }
        if let Some(exchange) = exchange {
            let mut array = Self::new(object, site, library, exchange.describe(object)?, None)?;
            let Place::Cuda(ordinal) = array.place else { return Ok(array) };
            match ordering {
                Ordering::Current => array.stream = exchange.current_stream(object.py(), ordinal)?,
                Ordering::Named(stream) => array.stream = stream,
                Ordering::Shared(owner, stream) if owner == library => array.stream = stream,
                // Only the protocol in Python orders the stream of one library after that of another.
                Ordering::Shared(..) => return Self::from_dlpack(object, site, library, ordering),
            }
            return Ok(array);
        }
        if object.hasattr(intern!(object.py(), "__dlpack__"))? {
            return Self::from_dlpack(object, site, library, ordering);
        }
        if let Some(interface) = object.getattr_opt(intern!(object.py(), "__cuda_array_interface__"))? {
            return Self::from_cuda_array_interface(object, site, &interface);
        }
        let ty = object.get_type().name()?.to_string();
        let message = format!(
            "{}: {} is of type {ty}, expected an array with `__dlpack__` or `__cuda_array_interface__`",
            site.op, site.argument
        );
        let problem = Problem::new(object.py(), Class::Argument, message).at(site.op, site.argument);
        Err(problem.mismatch("array", ty).into_err())
    }

    fn new(
        object: &Bound<'py, PyAny>,
        site: Site,
        library: Library,
        description: Result<Description, Malformed>,
        capsule: Option<Capsule>,
    ) -> PyResult<Array<'py>> {
        let py = object.py();
        let d = description.map_err(|why| error::malformed(py, site.op, site.argument, why))?;
        let dtype =
            d.dtype.map_err(|name| error::dtype(py, site.op, site.argument, &DType::FLOATS, &name))?;
        let place = match d.device {
            (dlpack::CPU | dlpack::CUDA_HOST, _) => Place::Host,
            (dlpack::CUDA | dlpack::CUDA_MANAGED, id @ 0..) => Place::Cuda(id.unsigned_abs()),
            (kind, id) => {
                let got = format!("DLPack device {kind}:{id}");
                return Err(error::device(py, site.op, site.argument, "cpu or cuda", &got));
            }
        };
        Ok(Box::new(Self {
            object: object.clone(),
            site,
            library,
            place,
            address: d.address,
            dtype,
            shape: d.shape,
            strides: d.strides,
            shaped: false,
            span: None,
            read_only: d.read_only,
            stream: 0,
            capsule,
        }))
    }

    fn from_dlpack(
        object: &Bound<'py, PyAny>,
        site: Site,
        library: Library,
        ordering: Ordering,
    ) -> PyResult<Array<'py>> {
        let py = object.py();
        let device = object.getattr(intern!(py, "__dlpack_device__"))?.call0()?;
        let (kind, id): (i32, i32) = device.extract()?;
        let on_gpu = kind == dlpack::CUDA || kind == dlpack::CUDA_MANAGED;
        let stream = match (on_gpu, ordering) {
            (false, _) => 0,
            (true, Ordering::Named(stream) | Ordering::Shared(_, stream)) => stream,
            (true, Ordering::Current) => {
                let current = interop(py)?.getattr(intern!(py, "current_stream"))?;
                current.call1((library.name(), id))?.extract()?
            }
        };
        let arguments = PyDict::new(py);
        if on_gpu {
            // The protocol has no 0; the legacy default stream is 1 there.
            arguments.set_item(intern!(py, "stream"), stream.max(1))?;
        }
        let export = object.getattr(intern!(py, "__dlpack__"))?;
        arguments.set_item(intern!(py, "max_version"), dlpack::VERSION)?;
        let capsule = export.call((), Some(&arguments)).or_else(|e| {
            // A producer of before versions existed.
            if !e.is_instance_of::<PyTypeError>(py) {
                return Err(e);
            }
            arguments.del_item(intern!(py, "max_version"))?;
            export.call((), Some(&arguments))
        })?;
        let (capsule, description) = Capsule::take(&capsule)?;
        // The host has one memory, whatever number and kind of it are given.
        let gpu = |(kind, id)| (kind == dlpack::CUDA || kind == dlpack::CUDA_MANAGED).then_some(id);
        if let Ok(d) = &description
            && gpu(d.device) != gpu((kind, id))
        {
            let [expected, got] =
                [(kind, id), d.device].map(|(kind, id)| format!("DLPack device {kind}:{id}"));
            return Err(error::device(py, site.op, site.argument, &expected, &got));
        }
        let mut array = Self::new(object, site, library, description, Some(capsule))?;
        array.stream = stream;
        Ok(array)
    }

    fn from_cuda_array_interface(
        object: &Bound<'py, PyAny>,
        site: Site,
        interface: &Bound<'py, PyAny>,
    ) -> PyResult<Array<'py>> {
        let interface = interface.cast::<PyDict>()?;
        let need = |key: &str| {
            let missing = || PyAttributeError::new_err(format!("`__cuda_array_interface__` has no {key:?}"));
            interface.get_item(key)?.ok_or_else(missing)
        };
        let (address, read_only): (u64, bool) = need("data")?.extract()?;
        let optional = |key: &str| PyResult::Ok(interface.get_item(key)?.filter(|v| !v.is_none()));
        let place = Place::Cuda(device::ordinal_of(object.py(), address)?);
        let parts = StridedParts {
            address,
            read_only,
            dtype: need("typestr")?.extract()?,
            shape: need("shape")?.extract()?,
            byte_strides: optional("strides")?.map(|s| s.extract()).transpose()?,
        };
        let mut array = Self::from_parts(object, site, facts(object)?.library, place, parts)?;
        array.stream = optional("stream")?.map(|s| s.extract()).transpose()?.unwrap_or(1);
        Ok(array)
    }

    fn from_numpy(object: &Bound<'py, PyAny>, site: Site) -> PyResult<Array<'py>> {
        let py = object.py();
        let interface = object.getattr(intern!(py, "__array_interface__"))?;
        let (address, read_only) = interface.get_item(intern!(py, "data"))?.extract()?;
        let dtype = object.getattr(intern!(py, "dtype"))?;
        let native: bool = dtype.getattr(intern!(py, "isnative"))?.extract()?;
        let name: String = dtype.getattr(intern!(py, "name"))?.extract()?;
        let parts = StridedParts {
            address,
            read_only,
            dtype: if native { name } else { format!("byte-swapped {name}") },
            shape: object.getattr(intern!(py, "shape"))?.extract()?,
            byte_strides: Some(object.getattr(intern!(py, "strides"))?.extract()?),
        };
        Self::from_parts(object, site, Library::Numpy, Place::Host, parts)
    }

    fn from_parts(
        object: &Bound<'py, PyAny>,
        site: Site,
        library: Library,
        place: Place,
        parts: StridedParts,
    ) -> PyResult<Array<'py>> {
        let py = object.py();
        let StridedParts { address, read_only, dtype, shape, byte_strides } = parts;
        let dtype = dtype_named(&dtype)
            .ok_or_else(|| error::dtype(py, site.op, site.argument, &DType::FLOATS, &dtype))?;
        let malformed = |why| error::malformed(py, site.op, site.argument, why);
        if let Some(axis) = shape.iter().position(|n| *n < 0) {
            return Err(malformed(Malformed::Extent { axis, extent: shape[axis] }));
        }
        let rank = || malformed(Malformed::TooManyDimensions(shape.len()));
        let extents = shape.iter().map(|n| usize::try_from(*n).unwrap_or(usize::MAX));
        let extents = Vec8::collect(extents).ok_or_else(rank)?;
        let size = dtype.bytes() as i64;
        let strides = match byte_strides {
            None => Vec8::row_major(&extents),
            Some(s) if s.iter().all(|b| b % size == 0) => {
                Vec8::collect(s.iter().map(|b| b / size)).ok_or_else(rank)?
            }
            Some(s) => {
                let message =
                    format!("{}: {} has strides {s:?} of parts of elements", site.op, site.argument);
                return Err(Problem::new(py, Class::Layout, message).at(site.op, site.argument).into_err());
            }
        };
        if strides.len() != extents.len() {
            return Err(malformed(Malformed::Strides { extents: extents.len(), strides: strides.len() }));
        }
        dlpack::check(address, dtype.bytes(), &extents, &strides).map_err(malformed)?;
        Ok(Box::new(Self {
            object: object.clone(),
            site,
            library,
            place,
            address,
            dtype,
            shape: extents,
            strides,
            shaped: false,
            span: None,
            read_only,
            stream: 0,
            capsule: None,
        }))
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        // An array that exists has as many elements as fit in memory; a hostile one saturates and is refused later.
        self.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).unwrap_or(usize::MAX)
    }

    /// Whether the elements lie in row-major order without gaps.
    pub(crate) fn is_row_major(&self) -> bool {
        same_layout(&self.shape, &self.strides, &Vec8::row_major(&self.shape))
    }

    /// Whether the elements follow each other in row-major order, maybe with gaps behind rows.
    pub(crate) fn has_rows(&self) -> bool {
        let mut least = 1i64;
        self.shape.iter().zip(self.strides.iter()).rev().filter(|(extent, _)| **extent != 1).enumerate().all(
            |(axis, (&extent, &stride))| {
                let fits = if axis == 0 { stride == 1 } else { stride >= least };
                least = i64::try_from(extent).unwrap_or(i64::MAX).saturating_mul(stride);
                fits
            },
        )
    }

    /// Elements from one position to the next of an array `[batch, len, ...]`, if positions are without gaps within and as far apart
    /// everywhere. The array is one sequence from its first element to the last then.
    pub(crate) fn spread_over_positions(&mut self) -> Option<usize> {
        let (shape, strides) = (&*self.shape, &*self.strides);
        let mut width = 1usize;
        for (extent, stride) in shape[2..].iter().zip(&strides[2..]).rev() {
            if *extent != 1 && usize::try_from(*stride) != Ok(width) {
                return None;
            }
            width = width.checked_mul(*extent)?;
        }
        let [batch, len] = [shape[0], shape[1]];
        let stride = match (batch, len) {
            (0 | 1, 0 | 1) => width,
            (_, 0 | 1) => usize::try_from(strides[0]).ok()?,
            _ => usize::try_from(strides[1]).ok()?,
        };
        let even = batch < 2 || usize::try_from(strides[0]).ok() == stride.checked_mul(len);
        if self.len() == 0 || !even || stride < width {
            return None;
        }
        self.span = Some((batch * len - 1).saturating_mul(stride).saturating_add(width));
        Some(stride)
    }

    /// Whether the elements fill one range of memory, in any order of the axes.
    pub(crate) fn is_dense(&self) -> bool {
        if self.is_row_major() {
            return true;
        }
        let mut axes: Vec<(i64, usize)> =
            self.strides.iter().copied().zip(self.shape.iter().copied()).filter(|(_, n)| *n != 1).collect();
        axes.sort_unstable();
        let mut step = 1i64;
        axes.iter().all(|(stride, extent)| {
            let fits = *stride == step;
            step = step.saturating_mul(i64::try_from(*extent).unwrap_or(i64::MAX));
            fits
        })
    }

    /// The products of the extents outside, of and inside an axis, in the order in which a dense array lies in memory.
    pub(crate) fn around(&self, axis: usize) -> [usize; 3] {
        let n = self.shape[axis];
        let product = |keep: &dyn Fn(usize) -> bool| -> usize {
            (0..self.shape.len()).filter(|i| *i != axis && keep(*i)).map(|i| self.shape[i]).product()
        };
        if self.is_row_major() {
            return [product(&|i| i < axis), n, product(&|i| i > axis)];
        }
        // Strides of axes of one element mean nothing, and such axes count nothing.
        let step = if n == 1 { 0 } else { self.strides[axis] };
        [product(&|i| self.strides[i] > step), n, product(&|i| self.strides[i] < step)]
    }

    /// Whether the elements of an axis are neighbours, and the other axes lie in order around it: an image whose channels
    /// come last.
    pub(crate) fn has_last(&self, axis: usize) -> bool {
        self.has_order((0..self.shape.len()).filter(|i| *i != axis).chain([axis]))
    }

    /// Whether the axes lie in this order without gaps, the first of them outermost.
    pub(crate) fn has_order(&self, order: impl Iterator<Item = usize>) -> bool {
        let order: Vec<usize> = order.collect();
        let shape = Vec8::collect(order.iter().map(|i| self.shape[*i]));
        let strides = Vec8::collect(order.iter().map(|i| self.strides[*i]));
        let (Some(shape), Some(strides)) = (shape, strides) else { return false };
        same_layout(&shape, &strides, &Vec8::row_major(&shape))
    }

    /// Whether element for element of the other array lies where it does in this one, relative to the start.
    pub(crate) fn has_layout_of(&self, other: &Self) -> bool {
        *self.shape == *other.shape && same_layout(&self.shape, &self.strides, &other.strides)
    }

    pub(crate) fn expect_dtype(&self, expected: DType) -> PyResult<()> {
        if self.dtype == expected {
            return Ok(());
        }
        let Site { op, argument } = self.site;
        Err(error::dtype(self.object.py(), op, argument, &[expected], self.dtype.name()))
    }

    pub(crate) fn expect_shape(&self, expected: &[usize]) -> PyResult<()> {
        if *self.shape == *expected {
            return Ok(());
        }
        Err(error::shape(self.object.py(), self.site.op, self.site.argument, expected, &self.shape))
    }

    /// The extents, of which there must be `N`.
    pub(crate) fn extents<const N: usize>(&self) -> PyResult<[usize; N]> {
        (*self.shape).try_into().map_err(|_| {
            let (Site { op, argument }, rank) = (self.site, self.shape.len());
            let message = format!("{op}: {argument} has {rank} dimensions, expected {N}");
            let problem = Problem::new(self.object.py(), Class::Shape, message).at(op, argument);
            problem.mismatch(N, rank).into_err()
        })
    }

    /// Shape and strides of an array of four dimensions.
    pub(crate) fn layout(&self) -> PyResult<Layout> {
        let shape = self.extents()?;
        Ok(Layout { shape, strides: self.strides[..].try_into().unwrap_or_default() })
    }

    pub(crate) fn expect_place(&self, expected: Place) -> PyResult<()> {
        if self.place == expected {
            return Ok(());
        }
        let (expected, got) = (expected.to_string(), self.place.to_string());
        Err(error::device(self.object.py(), self.site.op, self.site.argument, &expected, &got))
    }

    /// Whether an operation of `library` must have ended before the array may be given back. A library that runs the
    /// operation on its own stream reuses memory in the order of that stream; others do not know of it.
    pub(crate) fn must_outlive_the_work(&self, library: Library) -> bool {
        let ordered = self.library == library && matches!(library, Library::Torch | Library::Cupy);
        self.place != Place::Host && self.capsule.is_some() && !ordered
    }

    /// That it can be written.
    pub(crate) fn expect_writable(&self) -> PyResult<()> {
        if !self.read_only && self.library != Library::Jax {
            return Ok(());
        }
        let Site { op, argument } = self.site;
        let message = format!("{op}: {argument} is read-only");
        Err(Problem::new(self.object.py(), Class::Layout, message).at(op, argument).into_err())
    }
}

/// A strided array as Python describes it.
struct StridedParts {
    address: u64,
    read_only: bool,
    dtype: String,
    shape: Vec<i64>,
    byte_strides: Option<Vec<i64>>,
}

/// A gradient that PyTorch is recording, or a tangent, would be lost; and a tensor without memory holds no elements.
fn refuse_gradient(object: &Bound<'_, PyAny>, site: Site) -> PyResult<()> {
    let Site { op, argument } = site;
    let py = object.py();
    let lost = if torch::is_recorded(object)? {
        "requires a gradient, which this function does not record"
    } else if torch::has_tangent(object)? {
        "has a tangent of forward-mode differentiation, which this function does not follow"
    } else if torch::is_meta(object) {
        return Err(error::device(py, op, argument, "cpu or cuda", "meta"));
    } else {
        return Ok(());
    };
    let message = format!("{op}: {argument} {lost}: use `warpwright.torch`, or {argument}.detach()");
    Err(Problem::new(py, Class::Argument, message).at(op, argument).into_err())
}

/// Whether two lists of strides mean the same: those of extents 0 and 1 do not matter.
fn same_layout(shape: &[usize], a: &[i64], b: &[i64]) -> bool {
    shape.contains(&0) || shape.iter().zip(a.iter().zip(b)).all(|(n, (a, b))| *n == 1 || a == b)
}

/// An element type that the caller names: a string, or a type object of any library.
pub(crate) fn dtype_given(object: &Bound<'_, PyAny>, site: Site) -> PyResult<DType> {
    let py = object.py();
    let name = match object.extract::<String>() {
        Ok(name) => name,
        // `numpy.float32` is a class, `numpy.dtype` has a name, `torch.float32` is only its own text.
        Err(_) => ["__name__", "name"]
            .into_iter()
            .find_map(|key| object.getattr(key).ok()?.extract::<String>().ok())
            .map_or_else(|| object.str().map(|s| s.to_string()), Ok)?,
    };
    dtype_named(&name).ok_or_else(|| error::dtype(py, site.op, site.argument, &DType::FLOATS, &name))
}

/// A stream that the caller names: a handle, or an object of any library.
pub(crate) fn stream_given(object: &Bound<'_, PyAny>, op: &'static str) -> PyResult<u64> {
    let py = object.py();
    if let Ok(handle) = object.extract() {
        return Ok(handle);
    }
    if let Some(protocol) = object.getattr_opt(intern!(py, "__cuda_stream__"))? {
        let pair = if protocol.is_callable() { protocol.call0()? } else { protocol };
        let (_, handle): (u32, u64) = pair.extract()?;
        return Ok(handle);
    }
    for key in [intern!(py, "cuda_stream"), intern!(py, "ptr")] {
        if let Some(handle) = object.getattr_opt(key)? {
            return handle.extract();
        }
    }
    let got = object.get_type().name()?.to_string();
    let message =
        format!("{op}: stream is of type {got}, expected a handle or a stream of torch, cupy or cuda.core");
    Err(Problem::new(py, Class::Argument, message).at(op, "stream").mismatch("stream", got).into_err())
}

/// A number of things that the caller gives.
pub(crate) fn count(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = object.py();
    object.extract().map_err(|e: PyErr| {
        if !e.is_instance_of::<PyOverflowError>(py) {
            return e;
        }
        let message = format!("a number of things is {object}, expected one that is not negative");
        Problem::new(py, Class::Parameter, message).with("got", object.to_string()).into_err()
    })
}

/// A shape that the caller gives: a number or a sequence.
pub(crate) fn shape_given(object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    object.extract::<usize>().map(|n| vec![n]).or_else(|_| object.try_iter()?.map(|n| n?.extract()).collect())
}
