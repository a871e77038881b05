//! Pooling as Python functions.

use pyo3::prelude::*;
use warpwright::plan::PlanCache;
use warpwright::pool::{
    Argmax, AvgPoolArgs, AvgPoolBackwardArgs, AvgPoolBackwardDesc, AvgPoolDesc, Divisor, MaxPoolArgs,
    MaxPoolBackwardArgs, MaxPoolBackwardDesc, MaxPoolDesc, Pool, SlidingWindows, Windows,
};
use warpwright::{DType, PlanError};

use crate::array::{Array, Site};
use crate::call::{gathered, places, present};
use crate::error::{self, unknown};
use crate::images::{Images, InMemory, counts, three};
use crate::library::{Maybe, Object};

/// Which windows are asked for.
#[derive(Clone, Copy)]
enum Wanted<'a, 'py> {
    Sliding {
        kernel: &'a Object<'py>,
        stride: Maybe<'a, 'py>,
        padding: Maybe<'a, 'py>,
        dilation: Maybe<'a, 'py>,
        ceil_mode: bool,
    },
    /// With these extents of the result, those of the gradient where there are none.
    Adaptive(Maybe<'a, 'py>),
}

/// Keywords of all passes.
#[derive(Clone, Copy)]
struct Keywords<'a, 'py> {
    windows: Wanted<'a, 'py>,
    memory: InMemory<'a>,
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

/// A call with what is known of its windows.
struct Started<'py> {
    images: Images<'py>,
    pool: Pool,
    /// Dimensions of the images.
    rank: usize,
}

impl<'py> Started<'py> {
    fn new(images: Images<'py>, dtype: DType, shape: &[usize], windows: Windows) -> Self {
        let ([batch, channels], input) = images.sizes(shape);
        let layout = images.order.layout();
        Self { images, pool: Pool { dtype, layout, batch, channels, input, windows }, rank: shape.len() }
    }

    /// A call of a forward pass.
    fn forward(
        op: &'static str,
        x: &Object<'py>,
        keywords: &Keywords<'_, 'py>,
    ) -> PyResult<(Self, Array<'py>)> {
        let (images, x) = Images::new(op, ("x", x), keywords.memory, keywords.stream)?;
        let windows = keywords.windows.of(op, x.shape.len() - 2, [1; 3])?;
        let started = Self::new(images, x.dtype, &x.shape, windows);
        let x = started.images.taken(x)?;
        Ok((started, x))
    }

    /// A call of a backward pass, and the shape of the gradient that it makes.
    fn backward(
        op: &'static str,
        (dy, shape): (&Object<'py>, &Object<'py>),
        keywords: &Keywords<'_, 'py>,
    ) -> PyResult<(Self, Array<'py>, Vec<usize>)> {
        let (images, dy) = Images::new(op, ("dy", dy), keywords.memory, keywords.stream)?;
        let rank = dy.shape.len();
        let shape = images.shape_given(shape, rank)?;
        let windows = keywords.windows.of(op, rank - 2, images.sizes(&dy.shape).1)?;
        let started = Self::new(images, dy.dtype, &shape, windows);
        Ok((started, dy, shape))
    }

    /// The shape of the result.
    fn output(&self) -> PyResult<Vec<usize>> {
        let Pool { batch, channels, .. } = self.pool;
        let extents = self.pool.output().map_err(|e: PlanError| self.images.call.raise(e))?;
        Ok(self.images.shape(self.rank, [batch, channels], extents))
    }
}

impl Wanted<'_, '_> {
    fn of(self, op: &'static str, dims: usize, gradient: [usize; 3]) -> PyResult<Windows> {
        let numbers = |argument, object, default| counts(Site { op, argument }, object, default, dims);
        match self {
            Self::Adaptive(None) => Ok(Windows::Adaptive { output: gradient }),
            Self::Adaptive(output) => {
                Ok(Windows::Adaptive { output: three(&numbers("output", output, 1)?, 1) })
            }
            Self::Sliding { kernel, stride, padding, dilation, ceil_mode } => {
                let kernel = numbers("kernel", Some(kernel), 1)?;
                let strides = match stride {
                    Some(_) => numbers("stride", stride, 1)?,
                    None => kernel.clone(),
                };
                Ok(Windows::Sliding(SlidingWindows {
                    kernel: three(&kernel, 1),
                    stride: three(&strides, 1),
                    padding: three(&numbers("padding", padding, 0)?, 0),
                    dilation: three(&numbers("dilation", dilation, 1)?, 1),
                    ceil_mode,
                }))
            }
        }
    }
}

fn argmax_of(py: Python<'_>, op: &'static str, name: Option<&str>) -> PyResult<Argmax> {
    match name {
        None => Ok(Argmax::None),
        Some("index") => Ok(Argmax::Index),
        Some("tap") => Ok(Argmax::Tap),
        Some(name) => Err(unknown(py, op, ("argmax", name), "None, 'index' or 'tap'")),
    }
}

fn max<'py>(
    op: &'static str,
    x: &Object<'py>,
    argmax: Option<&str>,
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<MaxPoolDesc> = PlanCache::new();
    let py = x.py();
    let argmax = argmax_of(py, op, argmax)?;
    let (started, x) = Started::forward(op, x, keywords)?;
    let Started { images: Images { call, .. }, pool, .. } = &started;
    let plan = call.plan(&PLANS, &MaxPoolDesc { pool: pool.clone(), argmax })?;
    let kept = argmax.dtype();
    let shape = started.output()?;
    let [y, indices] = places(op, keywords.out, [true, kept.is_some()])?;
    let form = |dtype| started.images.form(dtype, &shape);
    let outputs = [
        Some(call.output(("out", y.as_ref()), &x, form(x.dtype))?),
        call.optional_output(
            kept.is_some(),
            ("out", indices.as_ref()),
            &x,
            form(kept.unwrap_or(DType::I64)),
        )?,
    ];
    let results = call.run_some([Some(&x)], outputs, move |stream, [x], [y, indices]| {
        Ok(plan.launch(stream, MaxPoolArgs { x: present(x), y: present(y), indices })?)
    })?;
    gathered(py, results)
}

fn max_backward<'py>(
    op: &'static str,
    [dy, indices, shape]: [&Object<'py>; 3],
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<MaxPoolBackwardDesc> = PlanCache::new();
    let (started, dy, shape) = Started::backward(op, (dy, shape), keywords)?;
    let Started { images: Images { call, .. }, pool, .. } = &started;
    let indices = call.read(("indices", indices))?;
    let argmax = match indices.dtype {
        DType::I64 => Argmax::Index,
        DType::U8 => Argmax::Tap,
        other => {
            let expected = [DType::I64, DType::U8];
            return Err(error::dtype(dy.object.py(), op, "indices", &expected, other.name()));
        }
    };
    let forward = MaxPoolDesc { pool: pool.clone(), argmax };
    let plan = call.plan(&PLANS, &MaxPoolBackwardDesc { forward })?;
    let output = started.output()?;
    dy.expect_shape(&output)?;
    indices.expect_shape(&output)?;
    let (dy, indices) = (started.images.taken(dy)?, started.images.taken(indices)?);
    let dx = call.output(("out", keywords.out), &dy, started.images.form(dy.dtype, &shape))?;
    let [dx] = call.run(&[indices, dy], [dx], move |stream, [indices, dy], [dx]| {
        Ok(plan.launch(stream, MaxPoolBackwardArgs { indices, dy, dx })?)
    })?;
    Ok(dx)
}

fn average<'py>(
    op: &'static str,
    x: &Object<'py>,
    divisor: Divisor,
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<AvgPoolDesc> = PlanCache::new();
    let (started, x) = Started::forward(op, x, keywords)?;
    let Started { images: Images { call, .. }, pool, .. } = &started;
    let plan = call.plan(&PLANS, &AvgPoolDesc { pool: pool.clone(), divisor })?;
    let shape = started.output()?;
    let y = call.output(("out", keywords.out), &x, started.images.form(x.dtype, &shape))?;
    let [y] = call.run(&[x], [y], move |stream, [x], [y]| Ok(plan.launch(stream, AvgPoolArgs { x, y })?))?;
    Ok(y)
}

fn average_backward<'py>(
    op: &'static str,
    (dy, shape): (&Object<'py>, &Object<'py>),
    divisor: Divisor,
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<AvgPoolBackwardDesc> = PlanCache::new();
    let (started, dy, shape) = Started::backward(op, (dy, shape), keywords)?;
    let Started { images: Images { call, .. }, pool, .. } = &started;
    let forward = AvgPoolDesc { pool: pool.clone(), divisor };
    let plan = call.plan(&PLANS, &AvgPoolBackwardDesc { forward })?;
    dy.expect_shape(&started.output()?)?;
    let dy = started.images.taken(dy)?;
    let dx = call.output(("out", keywords.out), &dy, started.images.form(dy.dtype, &shape))?;
    let [dx] = call.run(&[dy], [dx], move |stream, [dy], [dx]| {
        Ok(plan.launch(stream, AvgPoolBackwardArgs { dy, dx })?)
    })?;
    Ok(dx)
}

const fn divisor_of(count_include_pad: bool, divisor: Option<i64>) -> Divisor {
    match divisor {
        Some(divisor) => Divisor::Override(divisor),
        None if count_include_pad => Divisor::PaddedCells,
        None => Divisor::Cells,
    }
}

/// The maximum of each window of `kernel` cells over one, two or three dimensions, NaN if the window has one.
///
/// x: float32, float64, float16 or bfloat16, [N, C, ...], or [N, ..., C] with channels_last. kernel, stride, padding, dilation: a number,
/// or one for each dimension; stride is by default the kernel. Padding is minus infinity; with ceil_mode a last window may end behind it.
/// argmax: "index" for the pair of maxima and the number in its plane of the cell that each is from, int64; "tap" for its number in the
/// window, uint8, of windows of at most 256 cells without dilation; None for the maxima alone.
/// memory_format: "contiguous_format" or "channels_last", of x and the result, for tensors of PyTorch [N, C, ...]; by default what x has.
#[pyfunction]
#[pyo3(
    signature = (x, kernel, *, stride=None, padding=None, dilation=None, ceil_mode=false, argmax=None, channels_last=false, memory_format=None, out=None, stream=None),
    text_signature = "(x, kernel, *, stride=None, padding=0, dilation=1, ceil_mode=False, argmax=None, channels_last=False, memory_format=None, out=None, stream=None)"
)]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn max_pool<'py>(
    x: &Object<'py>,
    kernel: &Object<'py>,
    stride: Maybe<'_, 'py>,
    padding: Maybe<'_, 'py>,
    dilation: Maybe<'_, 'py>,
    ceil_mode: bool,
    argmax: Option<&str>,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let windows = Wanted::Sliding { kernel, stride, padding, dilation, ceil_mode };
    let memory = InMemory { channels_last, memory_format };
    max("max_pool", x, argmax, &Keywords { windows, memory, out, stream })
}

/// The gradient of `max_pool`.
///
/// dy: gradient of the maxima; indices: where they are from, int64 or uint8; shape: that of x, which the result has; the rest as in the
/// forward pass.
#[pyfunction]
#[pyo3(
    signature = (dy, indices, shape, kernel, *, stride=None, padding=None, dilation=None, ceil_mode=false, channels_last=false, memory_format=None, out=None, stream=None),
    text_signature = "(dy, indices, shape, kernel, *, stride=None, padding=0, dilation=1, ceil_mode=False, channels_last=False, memory_format=None, out=None, stream=None)"
)]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn max_pool_backward<'py>(
    dy: &Object<'py>,
    indices: &Object<'py>,
    shape: &Object<'py>,
    kernel: &Object<'py>,
    stride: Maybe<'_, 'py>,
    padding: Maybe<'_, 'py>,
    dilation: Maybe<'_, 'py>,
    ceil_mode: bool,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let windows = Wanted::Sliding { kernel, stride, padding, dilation, ceil_mode };
    let memory = InMemory { channels_last, memory_format };
    max_backward("max_pool_backward", [dy, indices, shape], &Keywords { windows, memory, out, stream })
}

/// The mean of each window of `kernel` cells over one, two or three dimensions.
///
/// x: float32, float64, float16 or bfloat16, [N, C, ...], or [N, ..., C] with channels_last. kernel, stride, padding: a number, or one for
/// each dimension; stride is by default the kernel. Padding is zeros, which count in the mean with count_include_pad; with ceil_mode a last
/// window may end behind it. divisor: what sums are divided by instead of the number of cells.
/// memory_format: "contiguous_format" or "channels_last", of x and the result, for tensors of PyTorch [N, C, ...]; by default what x has.
#[pyfunction]
#[pyo3(
    signature = (x, kernel, *, stride=None, padding=None, ceil_mode=false, count_include_pad=true, divisor=None, channels_last=false, memory_format=None, out=None, stream=None),
    text_signature = "(x, kernel, *, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor=None, channels_last=False, memory_format=None, out=None, stream=None)"
)]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn avg_pool<'py>(
    x: &Object<'py>,
    kernel: &Object<'py>,
    stride: Maybe<'_, 'py>,
    padding: Maybe<'_, 'py>,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: Option<i64>,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let windows = Wanted::Sliding { kernel, stride, padding, dilation: None, ceil_mode };
    let memory = InMemory { channels_last, memory_format };
    let divisor = divisor_of(count_include_pad, divisor);
    average("avg_pool", x, divisor, &Keywords { windows, memory, out, stream })
}

/// The gradient of `avg_pool`.
///
/// dy: gradient of the result; shape: that of x, which the result has; the rest as in the forward pass.
#[pyfunction]
#[pyo3(
    signature = (dy, shape, kernel, *, stride=None, padding=None, ceil_mode=false, count_include_pad=true, divisor=None, channels_last=false, memory_format=None, out=None, stream=None),
    text_signature = "(dy, shape, kernel, *, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor=None, channels_last=False, memory_format=None, out=None, stream=None)"
)]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn avg_pool_backward<'py>(
    dy: &Object<'py>,
    shape: &Object<'py>,
    kernel: &Object<'py>,
    stride: Maybe<'_, 'py>,
    padding: Maybe<'_, 'py>,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: Option<i64>,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let windows = Wanted::Sliding { kernel, stride, padding, dilation: None, ceil_mode };
    let memory = InMemory { channels_last, memory_format };
    let divisor = divisor_of(count_include_pad, divisor);
    average_backward("avg_pool_backward", (dy, shape), divisor, &Keywords { windows, memory, out, stream })
}

/// The maxima of as many windows as `output` says, which divide each dimension evenly.
///
/// x, argmax ("index" or None), memory_format: as of `max_pool`; output: extents of the result, a number, or one for each dimension.
#[pyfunction]
#[pyo3(signature = (x, output, *, argmax=None, channels_last=false, memory_format=None, out=None, stream=None))]
pub(crate) fn adaptive_max_pool<'py>(
    x: &Object<'py>,
    output: &Object<'py>,
    argmax: Option<&str>,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let (windows, memory) = (Wanted::Adaptive(Some(output)), InMemory { channels_last, memory_format });
    max("adaptive_max_pool", x, argmax, &Keywords { windows, memory, out, stream })
}

/// The gradient of `adaptive_max_pool`.
///
/// dy: gradient of the maxima; indices: where they are from; shape: that of x, which the result has.
#[pyfunction]
#[pyo3(signature = (dy, indices, shape, *, channels_last=false, memory_format=None, out=None, stream=None))]
pub(crate) fn adaptive_max_pool_backward<'py>(
    dy: &Object<'py>,
    indices: &Object<'py>,
    shape: &Object<'py>,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let (windows, memory) = (Wanted::Adaptive(None), InMemory { channels_last, memory_format });
    let keywords = Keywords { windows, memory, out, stream };
    max_backward("adaptive_max_pool_backward", [dy, indices, shape], &keywords)
}

/// The means of as many windows as `output` says, which divide each dimension evenly; an output of 1 is the mean of all cells.
///
/// x, memory_format: as of `avg_pool`; output: extents of the result, a number, or one for each dimension.
#[pyfunction]
#[pyo3(signature = (x, output, *, channels_last=false, memory_format=None, out=None, stream=None))]
pub(crate) fn adaptive_avg_pool<'py>(
    x: &Object<'py>,
    output: &Object<'py>,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let (windows, memory) = (Wanted::Adaptive(Some(output)), InMemory { channels_last, memory_format });
    average("adaptive_avg_pool", x, Divisor::Cells, &Keywords { windows, memory, out, stream })
}

/// The gradient of `adaptive_avg_pool`.
///
/// dy: gradient of the result; shape: that of x, which the result has.
#[pyfunction]
#[pyo3(signature = (dy, shape, *, channels_last=false, memory_format=None, out=None, stream=None))]
pub(crate) fn adaptive_avg_pool_backward<'py>(
    dy: &Object<'py>,
    shape: &Object<'py>,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let (windows, memory) = (Wanted::Adaptive(None), InMemory { channels_last, memory_format });
    let keywords = Keywords { windows, memory, out, stream };
    average_backward("adaptive_avg_pool_backward", (dy, shape), Divisor::Cells, &keywords)
}
