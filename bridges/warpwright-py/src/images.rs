//! Arguments that are images: [N, C, ...].

use pyo3::prelude::*;

use crate::array::Array;
use crate::call::Call;
use crate::error::{Class, Problem};

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
