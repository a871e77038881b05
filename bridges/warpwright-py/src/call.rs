//! One call of an operation: arguments are read and checked, results are made or taken, the work is enqueued.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::sync::Arc;
use warpwright::plan::{Layout, Plan, PlanCache, TensorSpec};
use warpwright::{DType, Error, Operation, RuntimeError, Stream, Tensor, TensorMut, TensorRef};

use crate::array::{Argument, Array, Ordering, Site, stream_given};
use crate::device::{self, Place};
use crate::dlpack::Vec8;
use crate::error::{self, Class, Problem};
use crate::interrupt::interruptible;
use crate::library::{Library, dtype_name, extents, interop};
use crate::many::{Fixed, Many, try_map};
use crate::memory::{self, Flat};
use crate::overlap;
use crate::owned::DeviceArray;
use crate::placeholder::{Placeholder, Planning};
use crate::quick::{self, Elements};
use crate::torch;

/// An argument by name.
pub(crate) type Named<'a, 'py> = (&'static str, &'a Bound<'py, PyAny>);
/// A result by name, and the array that the caller wants it in.
pub(crate) type Wanted<'a, 'py> = (&'static str, Option<&'a Bound<'py, PyAny>>);

/// An operation on its stream, decided by its first argument.
pub(crate) struct Call<'py> {
    py: Python<'py>,
    op: &'static str,
    place: Place,
    library: Library,
    stream: u64,
    /// Whether the caller named the stream.
    explicit: bool,
    /// Takes what is to be done, of a call on placeholders.
    planning: Option<Arc<Planning>>,
}

impl<'py> Call<'py> {
    /// Reads the first argument. The operation runs where it lies, on the stream that the caller names or its library
    /// uses.
    pub(crate) fn new(
        op: &'static str,
        (argument, object): Named<'_, 'py>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Self, Array<'py>)> {
        let py = object.py();
        let given = stream.map(|s| stream_given(s, op)).transpose()?;
        let ordering = given.map_or(Ordering::Current, Ordering::Named);
        let first = Argument::read(object, Site { op, argument }, ordering)?;
        if let Some(raw) = given {
            device::check_stream(first.place, raw).map_err(|e| error::runtime(py, &e))?;
        }
        let (place, library) = (first.place, first.library);
        let stream = given.unwrap_or(first.stream);
        let planning = match library {
            Library::Placeholder => Some(Arc::clone(&object.cast::<Placeholder>()?.get().planning)),
            _ => None,
        };
        Ok((Self { py, op, place, library, stream, explicit: given.is_some(), planning }, first))
    }

    /// The stream on which a further argument must be ready.
    fn ordering(&self) -> Ordering {
        if self.explicit { Ordering::Named(self.stream) } else { Ordering::Shared(self.library, self.stream) }
    }

    /// The stream that the work is enqueued on.
    pub(crate) fn stream(&self) -> u64 {
        self.stream
    }

    /// Reads a further argument.
    pub(crate) fn read(&self, (argument, object): Named<'_, 'py>) -> PyResult<Array<'py>> {
        let array = Argument::read(object, Site { op: self.op, argument }, self.ordering())?;
        array.expect_place(self.place)?;
        Ok(array)
    }

    /// The exception for an error of the library.
    pub(crate) fn raise(&self, error: impl Into<Error>) -> PyErr {
        error::raise(self.py, self.op, error)
    }

    fn problem(&self, class: Class, argument: &str, what: &str) -> PyErr {
        let message = format!("{}: {argument} {what}", self.op);
        Problem::new(self.py, class, message).at(self.op, argument).into_err()
    }

    /// A copy that the array's library makes is ordered on its current stream, so only an operation that runs there can
    /// read it.
    fn may_copy(&self, array: &Array<'py>) -> PyResult<()> {
        if self.explicit {
            return Err(self.problem(
                Class::Layout,
                array.site.argument,
                "must be contiguous where a stream is given",
            ));
        }
        Ok(())
    }

    /// The array in row-major order without gaps: itself, or a copy.
    pub(crate) fn row_major(&self, array: Array<'py>) -> PyResult<Array<'py>> {
        if array.is_row_major() {
            return Ok(array);
        }
        self.may_copy(&array)?;
        let copy = interop(self.py)?.getattr(intern!(self.py, "contiguous"))?;
        self.read((array.site.argument, &copy.call1((array.library.name(), &array.object))?))
    }

    /// The array in an order that an elementwise operation can take as one sequence, and that results can have.
    pub(crate) fn dense(&self, array: Array<'py>) -> PyResult<Array<'py>> {
        if array.library != Library::Torch {
            return self.row_major(array);
        }
        // PyTorch's results keep the order of the axes (channels-last images), as `empty_like` does.
        if array.is_dense() { Ok(array) } else { self.closed_up(array) }
    }

    /// An image [N, C, ...] as it can be taken, and whether its channels come last in memory.
    pub(crate) fn image(&self, array: Array<'py>) -> PyResult<(Array<'py>, bool)> {
        // Only PyTorch's results can have their channels last.
        let last = self.library == Library::Torch && !array.is_row_major() && array.has_last(1);
        if last { Ok((array, true)) } else { Ok((self.row_major(array)?, false)) }
    }

    /// An image [N, C, ...] of PyTorch with its channels last in memory: itself, or a copy.
    pub(crate) fn channels_last(&self, array: Array<'py>) -> PyResult<Array<'py>> {
        if array.has_last(1) {
            return Ok(array);
        }
        self.may_copy(&array)?;
        let copy = interop(self.py)?.getattr(intern!(self.py, "channels_last"))?;
        self.read((array.site.argument, &copy.call1((&array.object,))?))
    }

    /// A copy without gaps of a tensor of PyTorch, in the order of axes that a result has.
    fn closed_up(&self, array: Array<'py>) -> PyResult<Array<'py>> {
        self.may_copy(&array)?;
        let copy = interop(self.py)?.getattr(intern!(self.py, "closed_up"))?;
        self.read((array.site.argument, &copy.call1((&array.object,))?))
    }

    /// An array `[batch, len, ...]` with positions that may lie apart: itself, or a copy. Its stride of positions, too.
    pub(crate) fn positions(&self, mut array: Array<'py>) -> PyResult<(Array<'py>, usize)> {
        if let Some(stride) = array.spread_over_positions() {
            return Ok((array, stride));
        }
        let width = array.shape[2..].iter().fold(1usize, |n, extent| n.saturating_mul(*extent));
        Ok((self.row_major(array)?, width))
    }

    /// The array as an operation takes it that looks at shape and strides, of which the last must be 1: itself, or a copy.
    pub(crate) fn shaped(&self, array: Array<'py>) -> PyResult<Array<'py>> {
        let last = array.shape.last().zip(array.strides.last());
        let fits = last.is_none_or(|(extent, stride)| *extent < 2 || *stride == 1);
        self.viewed(if fits { array } else { self.row_major(array)? })
    }

    /// The array as an operation takes it that looks at shape and strides, whatever these are: itself, or a copy.
    pub(crate) fn viewed(&self, array: Array<'py>) -> PyResult<Array<'py>> {
        // The emulator gets a copy of the bytes, without gaps.
        let fits = self.place != Place::Host || array.is_row_major();
        let mut array = if fits { array } else { self.row_major(array)? };
        array.shaped = true;
        if self.place == Place::Host {
            array.strides = Vec8::row_major(&array.shape);
        }
        Ok(array)
    }

    /// The array with every element where it is in `like`: itself, or a copy.
    pub(crate) fn laid_out_like(&self, array: Array<'py>, like: &Array<'py>) -> PyResult<Array<'py>> {
        if array.has_layout_of(like) {
            return Ok(array);
        }
        self.may_copy(&array)?;
        let copy = interop(self.py)?.getattr(intern!(self.py, "laid_out_like"))?;
        let copy = copy.call1((array.library.name(), &array.object, like.library.name(), &like.object))?;
        self.read((array.site.argument, &copy))
    }

    /// A further argument of the type, shape and order of elements of another.
    pub(crate) fn twin(&self, named: Named<'_, 'py>, like: &Array<'py>) -> PyResult<Array<'py>> {
        self.alike(self.read(named)?, like)
    }

    /// An array that must have the type and shape of another, in the order of its elements: itself, or a copy.
    fn alike(&self, array: Array<'py>, like: &Array<'py>) -> PyResult<Array<'py>> {
        array.expect_dtype(like.dtype)?;
        array.expect_shape(&like.shape)?;
        self.laid_out_like(array, like)
    }

    /// The same if it is given.
    pub(crate) fn optional_twin(
        &self,
        (argument, object): Wanted<'_, 'py>,
        like: &Array<'py>,
    ) -> PyResult<Option<Array<'py>>> {
        object.map(|object| self.twin((argument, object), like)).transpose()
    }

    /// A further argument in row-major order, of a type and shape.
    pub(crate) fn small(&self, named: Named<'_, 'py>, dtype: DType, shape: &[usize]) -> PyResult<Array<'py>> {
        let array = self.read(named)?;
        array.expect_dtype(dtype)?;
        array.expect_shape(shape)?;
        self.row_major(array)
    }

    /// The same if it is given.
    pub(crate) fn optional(
        &self,
        (argument, object): Wanted<'_, 'py>,
        dtype: DType,
        shape: &[usize],
    ) -> PyResult<Option<Array<'py>>> {
        object.map(|object| self.small((argument, object), dtype, shape)).transpose()
    }

    /// An array that the operation reads and overwrites.
    pub(crate) fn updated(
        &self,
        (argument, object): Wanted<'_, 'py>,
        dtype: DType,
        shape: &[usize],
    ) -> PyResult<Option<Output<'py>>> {
        object.map(|object| self.updated_in((argument, object), Form::RowMajor(dtype, shape))).transpose()
    }

    /// The same of a form.
    pub(crate) fn updated_in(
        &self,
        (argument, object): Named<'_, 'py>,
        form: Form<'_>,
    ) -> PyResult<Output<'py>> {
        let array = self.read((argument, object))?;
        array.expect_dtype(form.dtype(&array))?;
        array.expect_shape(form.shape(&array))?;
        array.expect_writable()?;
        if !form.fits(&array, &array) {
            return Err(self.problem(Class::Layout, argument, "is written in place and must be contiguous"));
        }
        let flat = Flat::of(&array).updated();
        Ok(Output { flat, kind: Kind::Array(array.object.clone()), array: Some(array) })
    }

    /// An array that an elementwise operation reads and overwrites, in whatever order its elements lie: that of `like` if there is one.
    pub(crate) fn updated_dense(
        &self,
        array: Array<'py>,
        dtype: DType,
        like: Option<&Array<'py>>,
    ) -> PyResult<Output<'py>> {
        array.expect_dtype(dtype)?;
        if let Some(like) = like {
            array.expect_shape(&like.shape)?;
        }
        array.expect_writable()?;
        if !like.map_or_else(|| array.is_dense(), |like| array.has_layout_of(like)) {
            let order =
                like.map_or_else(String::new, |like| format!(", in the order of {}", like.site.argument));
            let what = format!("is written in place and must be without gaps{order}");
            return Err(self.problem(Class::Layout, array.site.argument, &what));
        }
        let flat = Flat::of(&array).updated();
        Ok(Output { flat, kind: Kind::Array(array.object.clone()), array: Some(array) })
    }

    /// The plan of an operation, for where the call runs.
    pub(crate) fn plan<O: Operation>(&self, plans: &PlanCache<O>, desc: &O) -> PyResult<Plan<O>> {
        let target = device::target(self.place).map_err(|e| error::runtime(self.py, &e))?;
        plans.get(desc, target).map_err(|e| self.raise(e))
    }

    /// Scratch memory that a plan asks for, from the caller's library.
    pub(crate) fn workspace<O: Operation>(
        &self,
        plan: &Plan<O>,
        like: &Array<'py>,
    ) -> PyResult<Option<Output<'py>>> {
        let wanted = plan.tensor(TensorSpec::WORKSPACE);
        wanted.map(|t| self.made(t.name, like, Form::RowMajor(t.dtype, &[t.len]))).transpose()
    }

    /// Where a result goes that the operation has if `wanted`.
    pub(crate) fn optional_output(
        &self,
        wanted: bool,
        place: Wanted<'_, 'py>,
        like: &Array<'py>,
        form: Form<'_>,
    ) -> PyResult<Option<Output<'py>>> {
        wanted.then(|| self.output(place, like, form)).transpose()
    }

    /// The same of several results.
    pub(crate) fn optional_outputs<const N: usize>(
        &self,
        wanted: [bool; N],
        places: [(&'static str, &Option<Bound<'py, PyAny>>); N],
        like: &Array<'py>,
        forms: [Form<'_>; N],
    ) -> PyResult<Vec<Option<Output<'py>>>> {
        let all = wanted.into_iter().zip(places).zip(forms);
        all.map(|((wanted, (name, place)), form)| {
            self.optional_output(wanted, (name, place.as_ref()), like, form)
        })
        .collect()
    }

    /// Where a result goes: the array that the caller wants it in, or a new one.
    pub(crate) fn output(
        &self,
        (argument, wanted): Wanted<'_, 'py>,
        like: &Array<'py>,
        form: Form<'_>,
    ) -> PyResult<Output<'py>> {
        let Some(object) = wanted else { return self.made(argument, like, form) };
        let array = self.read((argument, object))?;
        array.expect_dtype(form.dtype(like))?;
        array.expect_shape(form.shape(like))?;
        array.expect_writable()?;
        if form.fits(&array, like) {
            let (flat, object) = (Flat::of(&array), array.object.clone());
            return Ok(Output { flat, kind: Kind::Array(object), array: Some(array) });
        }
        self.may_copy(&array)?;
        let temporary = self.made(argument, like, form)?;
        let Kind::Array(from) = &temporary.kind else {
            return Err(self.problem(Class::Layout, argument, "must be contiguous"));
        };
        if !overlap::has_distinct_elements(&array) {
            return Err(self.problem(Class::Layout, argument, "has elements that share memory"));
        }
        Ok(Output { kind: Kind::Copied { from: from.clone(), to: array }, ..temporary })
    }

    /// Where a result goes whose strides the operation takes as they are, if the last is 1: the array that the caller wants it in,
    /// or a new one in row-major order. Its strides, too.
    pub(crate) fn strided_output(
        &self,
        (argument, wanted): Wanted<'_, 'py>,
        like: &Array<'py>,
        shape: &[usize],
    ) -> PyResult<(Output<'py>, Vec8<i64>)> {
        if let (Some(object), Place::Cuda(_)) = (wanted, self.place) {
            let array = self.read((argument, object))?;
            array.expect_dtype(like.dtype)?;
            array.expect_shape(shape)?;
            array.expect_writable()?;
            let is_direct = array.strides.last().is_none_or(|stride| *stride == 1);
            if is_direct && overlap::has_distinct_elements(&array) {
                let (flat, object, strides) = (Flat::shaped(&array), array.object.clone(), array.strides);
                return Ok((Output { flat, kind: Kind::Array(object), array: Some(array) }, strides));
            }
        }
        let output =
            self.output((argument, wanted), like, Form::RowMajor(like.dtype, shape))?.in_shape(shape);
        let strides = Vec8::collect(shape.iter().copied()).map(|shape| Vec8::row_major(&shape));
        let rank = || self.problem(Class::Shape, argument, "has more than 8 dimensions");
        Ok((output, strides.ok_or_else(rank)?))
    }

    /// An array of four dimensions, which must be of this shape, that is written in place in part: on a GPU with strides as they are, of
    /// which the last must be 1. Its layout, too.
    pub(crate) fn updated_strided(
        &self,
        mut array: Array<'py>,
        shape: &[usize],
    ) -> PyResult<(Output<'py>, Layout)> {
        let argument = array.site.argument;
        array.expect_shape(shape)?;
        array.expect_writable()?;
        if self.place == Place::Host {
            if !array.is_row_major() {
                let what = "is written in place and must be in row-major order on the host";
                return Err(self.problem(Class::Layout, argument, what));
            }
            array.strides = Vec8::row_major(&array.shape);
        }
        let last = array.strides.last().is_none_or(|stride| *stride == 1);
        if !last || !overlap::has_distinct_elements(&array) {
            let what =
                "is written in place and must have a last stride of 1 and no elements that share memory";
            return Err(self.problem(Class::Layout, argument, what));
        }
        let (flat, layout) = (Flat::shaped(&array).updated(), array.layout()?);
        Ok((Output { flat, kind: Kind::Array(array.object.clone()), array: Some(array) }, layout))
    }

    fn made(&self, argument: &'static str, like: &Array<'py>, form: Form<'_>) -> PyResult<Output<'py>> {
        let (py, library) = (self.py, self.library);
        let (dtype, shape) = (form.dtype(like), form.shape(like));
        let site = Site { op: self.op, argument };
        if let Some(planning) = &self.planning {
            let made = Bound::new(py, Placeholder::new(planning, self.place, Ok(dtype), shape))?.into_any();
            let array = Argument::read_made(&made, site, self.ordering())?;
            return Ok(Output { flat: Flat::of(&array), kind: Kind::Array(made), array: Some(array) });
        }
        if let (Library::Jax | Library::Other, Place::Cuda(ordinal)) = (library, self.place) {
            let made = DeviceArray::empty(ordinal, self.stream, dtype, shape);
            let (tensor, flat) = made.map_err(|e| error::runtime(py, &e))?;
            return Ok(Output {
                flat,
                kind: Kind::Owned { tensor, ordinal, library, like: like.object.clone() },
                array: None,
            });
        }
        let of_shape = Vec8::collect(shape.iter().copied()).map(|shape| match form {
            Form::ChannelsLast(..) => Vec8::channels_last(&shape),
            _ => Vec8::row_major(&shape),
        });
        let strides = match form {
            Form::Like => like.is_dense().then_some(&like.strides),
            Form::RowMajor(..) | Form::ChannelsLast(..) => of_shape.as_ref(),
        };
        let short = match (library, self.place, strides) {
            (Library::Torch, Place::Cuda(ordinal), Some(strides)) if !shape.contains(&0) => {
                torch::empty_strided(&like.object, ordinal, dtype, shape, strides)?
            }
            _ => None,
        };
        let object = if let Some(object) = short {
            object
        } else if library == Library::Torch && matches!(form, Form::Like) {
            torch_empty_like(py)?.call1((&like.object,))?
        } else {
            let empty = match form {
                Form::ChannelsLast(..) => intern!(py, "empty_channels_last"),
                _ => intern!(py, "empty"),
            };
            let empty = interop(py)?.getattr(empty)?;
            empty.call1((library.name(), &like.object, extents(py, shape)?, dtype_name(dtype)))?
        };
        let array = Argument::read_made(&object, site, self.ordering())?;
        let flat = Flat::of(&array);
        let kind = match library {
            Library::Numpy | Library::Torch | Library::Cupy => Kind::Array(object),
            Library::Jax | Library::Placeholder | Library::Other => {
                Kind::Converted { from: object, library, like: like.object.clone() }
            }
        };
        Ok(Output { flat, kind, array: Some(array) })
    }

    /// Enqueues a plan on a GPU that takes the inputs, then the outputs, each without gaps and checked: the shortest way.
    fn run_bound<D: Operation, const I: usize, const O: usize>(
        &self,
        ordinal: u32,
        inputs: &[Array<'py>; I],
        outputs: [Output<'py>; O],
        plan: &Plan<D>,
    ) -> PyResult<[Bound<'py, PyAny>; O]> {
        let wait = inputs.iter().any(|a| a.must_outlive_the_work(self.library));
        let (ins, outs) =
            (inputs.each_ref().map(|x| x.address), outputs.each_ref().map(|y| y.flat.address()));
        let (place, stream) = (self.place, self.stream);
        let done = self.py.detach(move || {
            memory::launch_at(ordinal, stream, plan, &ins, &outs)?;
            if wait { device::synchronize(place, stream) } else { Ok(()) }
        });
        done.map_err(|e| self.raise(e))?;
        try_map(outputs, |y| y.kind.finish(self.py, self.stream))
    }

    /// That no result which is copied to its place overlaps another one there. Plans see the places of the others.
    fn copies_apart<'a>(&self, outputs: impl Iterator<Item = &'a Output<'py>> + Clone) -> PyResult<()>
    where
        'py: 'a,
    {
        for (i, output) in outputs.clone().enumerate().filter(|(_, output)| output.is_copied()) {
            let Some(first) = output.destination() else { continue };
            for (j, other) in outputs.clone().enumerate() {
                // Of two copies one is asked.
                let asked = i == j || (j < i && other.is_copied());
                let Some(second) = other.destination().filter(|_| !asked) else { continue };
                if !overlap::are_disjoint(first, second) {
                    let (op, first, second) = (self.op, first.site.argument, second.site.argument);
                    return Err(error::runtime(self.py, &RuntimeError::Overlap { op, first, second }));
                }
            }
        }
        Ok(())
    }

    /// Enqueues the work; the results as arrays of the caller's library.
    pub(crate) fn run<const I: usize, const O: usize>(
        &self,
        inputs: &[Array<'py>; I],
        outputs: [Output<'py>; O],
        work: impl Fn(&Stream, [TensorRef<'_>; I], [TensorMut<'_>; O]) -> Result<(), Error>
        + Send
        + Sync
        + 'static,
    ) -> PyResult<[Bound<'py, PyAny>; O]> {
        let all =
            self.run_some(inputs.each_ref().map(Some), outputs.map(Some), move |stream, inputs, outputs| {
                work(stream, inputs.map(present), outputs.map(present))
            })?;
        Ok(all.map(present))
    }

    /// The same with arguments and results some of which may be absent.
    pub(crate) fn run_some<const I: usize, const O: usize>(
        &self,
        inputs: [Option<&Array<'py>>; I],
        outputs: [Option<Output<'py>>; O],
        work: impl Fn(&Stream, [Option<TensorRef<'_>>; I], [Option<TensorMut<'_>>; O]) -> Result<(), Error>
        + Send
        + Sync
        + 'static,
    ) -> PyResult<[Option<Bound<'py, PyAny>>; O]> {
        self.run_many::<Fixed<I>, Fixed<O>>(inputs, outputs, work)
    }

    /// The same with as many as there happen to be.
    pub(crate) fn run_many<I: Many, O: Many>(
        &self,
        inputs: I::Of<Option<&Array<'py>>>,
        outputs: O::Of<Option<Output<'py>>>,
        work: impl Fn(&Stream, I::Of<Option<TensorRef<'_>>>, O::Of<Option<TensorMut<'_>>>) -> Result<(), Error>
        + Send
        + Sync
        + 'static,
    ) -> PyResult<O::Of<Option<Bound<'py, PyAny>>>>
    where
        I::Of<Option<Flat>>: Send + Sync + 'static,
        O::Of<Option<Flat>>: Send + Sync + 'static,
    {
        let (place, stream) = (self.place, self.stream);
        self.copies_apart(O::iter(&outputs).flatten())?;
        let written = O::iter(&outputs).flatten().filter_map(|y| y.array.as_ref());
        let read = I::iter(&inputs).flatten().copied();
        let wait = read.chain(written).any(|a| a.must_outlive_the_work(self.library));
        let reads = I::map(inputs, |x| x.map(|x| if x.shaped { Flat::shaped(x) } else { Flat::of(x) }));
        let writes = O::map(O::of_refs(&outputs), |y| y.as_ref().map(|y| y.flat.clone()));
        if let Some(planning) = &self.planning {
            planning.push(Box::new(move |place, stream, addresses| {
                let moved = |x: &Option<Flat>| x.as_ref().map(|x| x.moved(|at| addresses.resolve(at)));
                let reads = I::map(I::of_refs(&reads), moved);
                let writes = O::map(O::of_refs(&writes), moved);
                memory::run::<I, O>(place, stream, reads, writes, None, &work)
            }));
            return O::try_map(outputs, |y| y.map(|y| y.kind.finish(self.py, self.stream)).transpose());
        }
        let done = match place {
            Place::Host => interruptible(self.py, move |interrupt| {
                memory::run::<I, O>(place, stream, reads, writes, Some(interrupt), work)
            })?,
            Place::Cuda(_) => self.py.detach(move || {
                memory::run::<I, O>(place, stream, reads, writes, None, work)?;
                if wait { device::synchronize(place, stream) } else { Ok(()) }
            }),
        };
        done.map_err(|e| self.raise(e))?;
        O::try_map(outputs, |y| y.map(|y| y.kind.finish(self.py, self.stream)).transpose())
    }
}

/// The type of statistics, in which sums are taken.
pub(crate) const fn statistics_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// An item that is known to be present.
pub(crate) fn present<T>(item: Option<T>) -> T {
    item.unwrap_or_else(|| unreachable!("everything is present"))
}

/// An operation of arrays of one shape and type that goes element by element. Its plan takes the inputs, then the outputs. `of_rows` may
/// compute new results of arrays of PyTorch that the operation would have to copy, or gives the arrays back.
pub(crate) fn elementwise<'py, D: Operation, const I: usize, const O: usize>(
    op: &'static str,
    plans: &PlanCache<D>,
    (inputs, outputs): ([Named<'_, 'py>; I], [Wanted<'_, 'py>; O]),
    stream: Option<&Bound<'py, PyAny>>,
    describe: impl Fn(Elements) -> D,
    args: impl for<'a> Fn([TensorRef<'a>; I], [TensorMut<'a>; O]) -> D::Args<'a> + Send + Sync + 'static,
    of_rows: impl FnOnce(&Call<'py>, [Array<'py>; I]) -> PyResult<Result<[Bound<'py, PyAny>; O], [Array<'py>; I]>>,
) -> PyResult<[Bound<'py, PyAny>; O]> {
    // Results that are new overlap nothing.
    let fresh = outputs.iter().all(|(_, given)| given.is_none());
    let given = outputs.map(|(_, given)| given);
    let given = given.iter().all(Option::is_some).then(|| given.map(present));
    if (fresh || given.is_some())
        && stream.is_none()
        && let Some(results) =
            quick::elementwise(op, plans, inputs.map(|(_, object)| object), given, &describe)?
    {
        return Ok(results);
    }
    let (call, first) = Call::new(op, inputs[0], stream)?;
    let mut first = Some(first);
    let mut arrays = try_map(inputs, |named| first.take().map_or_else(|| call.read(named), Ok))?;
    if fresh && call.library == Library::Torch {
        match of_rows(&call, arrays)? {
            Ok(results) => return Ok(results),
            Err(given) => arrays = given,
        }
    }
    let mut inputs: Vec<Array<'py>> = Vec::with_capacity(I);
    for array in arrays {
        inputs.push(match inputs.first() {
            None => call.dense(array)?,
            Some(first) => call.alike(array, first)?,
        });
    }
    let first = &inputs[0];
    let plan = call.plan(plans, &describe(Elements { dtype: first.dtype, len: first.len() }))?;
    let outputs = try_map(outputs, |wanted| call.output(wanted, first, Form::Like))?;
    let Ok(inputs) = <[Array<'py>; I]>::try_from(inputs) else { unreachable!("there are as many as names") };
    match call.place {
        Place::Cuda(ordinal) if fresh && call.planning.is_none() => {
            call.run_bound(ordinal, &inputs, outputs, &plan)
        }
        _ => call.run(&inputs, outputs, move |stream, inputs, outputs| {
            Ok(plan.launch(stream, args(inputs, outputs))?)
        }),
    }
}

/// Type, shape and order of a result.
#[derive(Clone, Copy)]
pub(crate) enum Form<'a> {
    /// As an argument: type, shape and order.
    Like,
    /// Row-major.
    RowMajor(DType, &'a [usize]),
    /// [N, C, ...], channels last in memory: of PyTorch alone.
    ChannelsLast(DType, &'a [usize]),
}

impl<'a> Form<'a> {
    fn dtype(self, like: &Array<'_>) -> DType {
        match self {
            Self::Like => like.dtype,
            Self::RowMajor(dtype, _) | Self::ChannelsLast(dtype, _) => dtype,
        }
    }

    /// Whether an array lies so.
    fn fits(self, array: &Array<'_>, like: &Array<'_>) -> bool {
        match self {
            Self::Like => array.has_layout_of(like),
            Self::RowMajor(..) => array.is_row_major(),
            Self::ChannelsLast(..) => array.has_last(1),
        }
    }

    fn shape<'s>(self, like: &'s Array<'_>) -> &'s [usize]
    where
        'a: 's,
    {
        match self {
            Self::Like => &like.shape,
            Self::RowMajor(_, shape) | Self::ChannelsLast(_, shape) => shape,
        }
    }
}

/// A result on its way.
pub(crate) struct Output<'py> {
    flat: Flat,
    kind: Kind<'py>,
    /// Holds the memory that is written.
    array: Option<Array<'py>>,
}

impl<'py> Output<'py> {
    fn is_copied(&self) -> bool {
        matches!(self.kind, Kind::Copied { .. })
    }

    /// The array of the caller that it ends in.
    pub(crate) fn destination(&self) -> Option<&Array<'py>> {
        match &self.kind {
            Kind::Copied { to, .. } => Some(to),
            _ => self.array.as_ref(),
        }
    }

    /// Whether its first element is that of an argument.
    pub(crate) fn begins_with(&self, array: &Array<'py>) -> bool {
        self.flat.address() == array.address
    }

    /// The same for an operation that looks at the shape, which is row-major.
    pub(crate) fn in_shape(self, shape: &[usize]) -> Self {
        match Vec8::collect(shape.iter().copied()) {
            Some(extents) => Self { flat: self.flat.in_shape(extents), ..self },
            None => self,
        }
    }
}

enum Kind<'py> {
    /// Written in place.
    Array(Bound<'py, PyAny>),
    /// Written to a temporary, then copied by its library.
    Copied { from: Bound<'py, PyAny>, to: Array<'py> },
    /// A numpy array that becomes one of the caller's library.
    Converted { from: Bound<'py, PyAny>, library: Library, like: Bound<'py, PyAny> },
    /// GPU memory of this library that becomes an array of the caller's.
    Owned { tensor: Tensor, ordinal: u32, library: Library, like: Bound<'py, PyAny> },
}

impl<'py> Kind<'py> {
    fn finish(self, py: Python<'py>, stream: u64) -> PyResult<Bound<'py, PyAny>> {
        let convert = |from: Bound<'py, PyAny>, library: Library, like| {
            interop(py)?.getattr(intern!(py, "converted"))?.call1((library.name(), from, like))
        };
        match self {
            Self::Array(object) => Ok(object),
            Self::Copied { from, to } => {
                let copy = interop(py)?.getattr(intern!(py, "copy_into"))?;
                copy.call1((to.library.name(), &to.object, from))?;
                Ok(to.object)
            }
            Self::Converted { from, library, like } => convert(from, library, like),
            Self::Owned { tensor, ordinal, library, like } => {
                let array =
                    DeviceArray::around(tensor, ordinal, stream).map_err(|e| error::runtime(py, &e))?;
                convert(Bound::new(py, array)?.into_any(), library, like)
            }
        }
    }
}

fn torch_empty_like(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let find = || py.import("torch")?.getattr("empty_like").map(Bound::unbind);
    Ok(FUNCTION.get_or_try_init(py, find)?.bind(py))
}

/// The arrays of an `out=` with several results.
pub(crate) fn several<'py, const N: usize>(
    op: &'static str,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<[Option<Bound<'py, PyAny>>; N]> {
    places(op, out, [true; N])
}

/// The arrays of an `out=`: one, or a sequence, of the results that there are.
pub(crate) fn places<'py, const N: usize>(
    op: &'static str,
    out: Option<&Bound<'py, PyAny>>,
    present: [bool; N],
) -> PyResult<[Option<Bound<'py, PyAny>>; N]> {
    let expected = present.iter().filter(|p| **p).count();
    let Some(out) = out else { return Ok([const { None }; N]) };
    // A lone array is not asked for an iterator: PyTorch would make a view of each of its rows.
    let items = if expected == 1 { None } else { out.try_iter().ok() };
    let given: Vec<Bound<'py, PyAny>> = match items {
        Some(items) => items.collect::<PyResult<_>>()?,
        None => vec![out.clone()],
    };
    if given.len() != expected {
        let got = given.len();
        let message = format!("{op}: out holds {got} arrays, expected {expected}");
        return Err(Problem::new(out.py(), Class::Argument, message)
            .at(op, "out")
            .mismatch(expected, got)
            .into_err());
    }
    let mut given = given.into_iter();
    Ok(present.map(|p| if p { given.next().filter(|item| !item.is_none()) } else { None }))
}

/// The results that there are: one, or a tuple.
pub(crate) fn gathered<'py, const N: usize>(
    py: Python<'py>,
    results: [Option<Bound<'py, PyAny>>; N],
) -> PyResult<Bound<'py, PyAny>> {
    let mut all: Vec<_> = results.into_iter().flatten().collect();
    match all.pop() {
        Some(only) if all.is_empty() => Ok(only),
        last => {
            all.extend(last);
            Ok(PyTuple::new(py, all)?.into_any())
        }
    }
}
