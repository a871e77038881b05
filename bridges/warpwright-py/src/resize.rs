//! Images at other extents as Python functions.

use pyo3::prelude::*;
use warpwright::Operation;
use warpwright::plan::{Plan, PlanCache, Real};
use warpwright::pool::{
    AvgPoolArgs, AvgPoolBackwardArgs, AvgPoolBackwardDesc, AvgPoolDesc, Divisor, Pool, Windows,
};
use warpwright::resize::{Mode, ResizeArgs, ResizeBackwardArgs, ResizeBackwardDesc, ResizeDesc};
use warpwright::{Error, Stream, TensorMut, TensorRef};

use crate::array::{Array, Site};
use crate::error::{Class, Problem};
use crate::images::{Images, InMemory, counts, each, three};
use crate::library::{Maybe, Object};

const FORWARD: &str = "resize";
const BACKWARD: &str = "resize_backward";

/// Keywords of both passes.
struct Keywords<'a, 'py> {
    scale: Maybe<'a, 'py>,
    mode: &'a str,
    align_corners: bool,
    memory: InMemory<'a>,
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

const MODES: [Mode; 5] = [Mode::Nearest, Mode::NearestExact, Mode::Linear, Mode::Cubic, Mode::Area];

impl<'py> Keywords<'_, 'py> {
    fn refused(&self, py: Python<'_>, op: &'static str, argument: &str, got: &str, expected: &str) -> PyErr {
        let message = format!("{op}: {argument} is {got}, expected {expected}");
        Problem::new(py, Class::Parameter, message).at(op, argument).mismatch(expected, got).into_err()
    }

    fn mode(&self, py: Python<'_>, op: &'static str) -> PyResult<Mode> {
        MODES.into_iter().find(|mode| mode.name() == self.mode).ok_or_else(|| {
            let names: Vec<_> = MODES.iter().map(|mode| format!("'{}'", mode.name())).collect();
            self.refused(py, op, "mode", &format!("'{}'", self.mode), &names.join(", "))
        })
    }

    fn scales(&self, op: &'static str, dims: usize) -> PyResult<Option<Vec<f64>>> {
        if self.scale.is_none() {
            return Ok(None);
        }
        let factors = (", or one for all", |item: &Object<'py>| item.extract());
        each(Site { op, argument: "scale" }, self.scale, 1.0, dims, factors).map(Some)
    }

    /// How images of a shape become those of other extents.
    fn described(
        &self,
        images: &Images<'py>,
        (first, shape): (&Array<'py>, &[usize]),
        output: [usize; 3],
        scales: Option<&[f64]>,
    ) -> PyResult<Described> {
        let (op, py) = (images.op, first.object.py());
        let mode = self.mode(py, op)?;
        let ([batch, channels], input) = images.sizes(shape);
        let (dtype, layout) = (first.dtype, images.order.layout());
        if mode == Mode::Area {
            if self.align_corners {
                return Err(self.refused(py, op, "align_corners", "True", "False but for linear and cubic"));
            }
            let windows = Windows::Adaptive { output };
            return Ok(Described::Area(Pool { dtype, layout, batch, channels, input, windows }));
        }
        let scale = scales.map_or([None; 3], |scales| {
            let given: Vec<_> = scales.iter().map(|scale| Some(Real::new(*scale))).collect();
            three(&given, None)
        });
        let align_corners = self.align_corners;
        let desc = ResizeDesc { dtype, layout, batch, channels, input, output, mode, align_corners, scale };
        if input != output || !matches!(mode, Mode::Linear | Mode::Cubic) {
            return Ok(Described::Sampled(desc));
        }
        // Images of the same extents are copied, whatever the factors are, as PyTorch does on a GPU.
        desc.sampling().map_err(|e| images.call.raise(e))?;
        let (mode, align_corners, scale) = (Mode::Nearest, false, [None; 3]);
        Ok(Described::Sampled(ResizeDesc { mode, align_corners, scale, ..desc }))
    }

    /// Runs a plan of one argument and one result of a shape.
    fn run<O: Operation>(
        &self,
        images: &Images<'py>,
        plans: &PlanCache<O>,
        desc: &O,
        (given, shape): (Array<'py>, &[usize]),
        launch: impl Fn(&Plan<O>, &Stream, TensorRef<'_>, TensorMut<'_>) -> Result<(), Error>
        + Send
        + Sync
        + 'static,
    ) -> PyResult<Object<'py>> {
        let plan = images.call.plan(plans, desc)?;
        let given = images.taken(given)?;
        let result = images.call.output(("out", self.out), &given, images.form(given.dtype, shape))?;
        let [result] = images
            .call
            .run(&[given], [result], move |stream, [given], [result]| launch(&plan, stream, given, result))?;
        Ok(result)
    }
}

/// The descriptor of a forward pass.
enum Described {
    Sampled(ResizeDesc),
    Area(Pool),
}

fn forward<'py>(
    x: &Object<'py>,
    output: Maybe<'_, 'py>,
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ResizeDesc> = PlanCache::new();
    static MEANS: PlanCache<AvgPoolDesc> = PlanCache::new();
    let py = x.py();
    let (images, x) = Images::new(FORWARD, ("x", x), keywords.memory, keywords.stream)?;
    let (rank, dims) = (x.shape.len(), x.shape.len() - 2);
    let scales = keywords.scales(FORWARD, dims)?;
    let (sizes, input) = images.sizes(&x.shape);
    let output = match (output, &scales) {
        (Some(_), _) => three(&counts(Site { op: FORWARD, argument: "output" }, output, 1, dims)?, 1),
        (None, Some(scales)) => {
            // A factor that is no positive number makes an extent of 0, which is refused.
            let factors = three(scales, 1.0);
            [0, 1, 2].map(|i| (input[i] as f64 * factors[i]).floor() as usize)
        }
        (None, None) => {
            let expected = "the extents of the result, or their scale";
            return Err(keywords.refused(py, FORWARD, "output", "None", expected));
        }
    };
    let described = keywords.described(&images, (&x, &x.shape), output, scales.as_deref())?;
    let shape = images.shape(rank, sizes, output);
    match described {
        Described::Sampled(desc) => {
            keywords.run(&images, &PLANS, &desc, (x, &shape), |plan, stream, x, y| {
                Ok(plan.launch(stream, ResizeArgs { x, y })?)
            })
        }
        Described::Area(pool) => {
            let desc = AvgPoolDesc { pool, divisor: Divisor::Cells };
            keywords.run(&images, &MEANS, &desc, (x, &shape), |plan, stream, x, y| {
                Ok(plan.launch(stream, AvgPoolArgs { x, y })?)
            })
        }
    }
}

fn backward<'py>(
    dy: &Object<'py>,
    shape: &Object<'py>,
    keywords: &Keywords<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<ResizeBackwardDesc> = PlanCache::new();
    static MEANS: PlanCache<AvgPoolBackwardDesc> = PlanCache::new();
    let (images, dy) = Images::new(BACKWARD, ("dy", dy), keywords.memory, keywords.stream)?;
    let rank = dy.shape.len();
    let shape = images.shape_given(shape, rank)?;
    let scales = keywords.scales(BACKWARD, rank - 2)?;
    let (_, output) = images.sizes(&dy.shape);
    let described = keywords.described(&images, (&dy, &shape), output, scales.as_deref())?;
    // Its samples and channels, too, are those of the result.
    dy.expect_shape(&images.shape(rank, images.sizes(&shape).0, output))?;
    match described {
        Described::Sampled(forward) => {
            let desc = ResizeBackwardDesc { forward };
            keywords.run(&images, &PLANS, &desc, (dy, &shape), |plan, stream, dy, dx| {
                Ok(plan.launch(stream, ResizeBackwardArgs { dy, dx })?)
            })
        }
        Described::Area(pool) => {
            let desc = AvgPoolBackwardDesc { forward: AvgPoolDesc { pool, divisor: Divisor::Cells } };
            keywords.run(&images, &MEANS, &desc, (dy, &shape), |plan, stream, dy, dx| {
                Ok(plan.launch(stream, AvgPoolBackwardArgs { dy, dx })?)
            })
        }
    }
}

/// Images at other extents, of one, two or three dimensions.
///
/// x: float32, float64, float16 or bfloat16, [N, C, ...], or [N, ..., C] with channels_last. output: extents of the result, a number, or one
/// for each dimension; scale: the factors from which places are computed, and without output the extents, rounded down.
/// mode: "nearest", "nearest_exact", "linear" in one to three dimensions, "cubic" in two, or "area"; align_corners: whether the centres of the
/// first and the last cells of both are at the same places, for "linear" and "cubic", which copy images whose extents stay.
/// memory_format: "contiguous_format" or "channels_last", of x and the result, for tensors of PyTorch [N, C, ...]; by default what x has.
#[pyfunction]
#[pyo3(signature = (x, output=None, *, scale=None, mode="nearest", align_corners=false, channels_last=false, memory_format=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn resize<'py>(
    x: &Object<'py>,
    output: Maybe<'_, 'py>,
    scale: Maybe<'_, 'py>,
    mode: &str,
    align_corners: bool,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let memory = InMemory { channels_last, memory_format };
    forward(x, output, &Keywords { scale, mode, align_corners, memory, out, stream })
}

/// The gradient of `resize`.
///
/// dy: gradient of the result, whose extents it has; shape: that of x, which the result has; the rest as in the forward pass.
#[pyfunction]
#[pyo3(signature = (dy, shape, *, scale=None, mode="nearest", align_corners=false, channels_last=false, memory_format=None, out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn resize_backward<'py>(
    dy: &Object<'py>,
    shape: &Object<'py>,
    scale: Maybe<'_, 'py>,
    mode: &str,
    align_corners: bool,
    channels_last: bool,
    memory_format: Option<&str>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    let memory = InMemory { channels_last, memory_format };
    backward(dy, shape, &Keywords { scale, mode, align_corners, memory, out, stream })
}
