//! `rotary_embedding` as Python functions.

use pyo3::prelude::*;
use warpwright::DType;
use warpwright::plan::{Layout, Plan, PlanCache};
use warpwright::rotary::{
    Pairing, RotaryAngles, RotaryArgs, RotaryBackwardArgs, RotaryBackwardDesc, RotaryDesc, RotaryPositions,
    RotaryTables, check_positions,
};

use crate::array::Array;
use crate::call::{Call, gathered, places, present};
use crate::error::{self, Class, Problem, unknown};
use crate::indices::known;
use crate::library::{Maybe, Object};

/// The arguments besides queries, keys and tables.
struct Options<'a, 'py> {
    pairing: &'a str,
    positions: Maybe<'a, 'py>,
    offset: usize,
    rotary_dim: Option<usize>,
    out: Maybe<'a, 'py>,
    stream: Maybe<'a, 'py>,
}

/// The tables of the angles.
struct Angles<'py> {
    cos: Array<'py>,
    sin: Array<'py>,
    positions: Option<Array<'py>>,
    /// The rows of the tables that are read begin here.
    first: usize,
    rotary_dim: usize,
    tables: RotaryTables,
    described: Option<RotaryPositions>,
}

/// The pairing of that name.
pub(crate) fn pairing_of(py: Python<'_>, op: &'static str, name: &str) -> PyResult<Pairing> {
    match name {
        "half" => Ok(Pairing::Half),
        "interleaved" => Ok(Pairing::Interleaved),
        other => Err(unknown(py, op, ("pairing", other), "'half' or 'interleaved'")),
    }
}

/// Tables and positions for queries of this shape.
fn angles<'py>(
    call: &Call<'py>,
    [batch, steps, _, head_dim]: [usize; 4],
    [cos, sin]: [&Object<'py>; 2],
    o: &Options<'_, 'py>,
) -> PyResult<Angles<'py>> {
    let mut cos = call.row_major(call.read(("cos", cos))?)?;
    let mut sin = call.small(("sin", sin), cos.dtype, &cos.shape)?;
    let (py, op) = (cos.object.py(), cos.site.op);
    let rotary_dim = o.rotary_dim.unwrap_or(head_dim);
    let (of_batch, rows, width) = match *cos.shape {
        [rows, width] => (None, rows, width),
        [of_batch, rows, width] => (Some(of_batch), rows, width),
        _ => {
            let rank = cos.shape.len();
            let message =
                format!("{op}: cos has {rank} dimensions, expected [rows, ..] or [batch, rows, ..]");
            return Err(Problem::new(py, Class::Shape, message).at(op, "cos").mismatch(2, rank).into_err());
        }
    };
    let refused = |expected: [usize; 3]| {
        let expected = if of_batch.is_some() { &expected[..] } else { &expected[1..] };
        Err(error::shape(py, op, "cos", expected, &cos.shape))
    };
    let tables_of = of_batch.unwrap_or(1);
    if width != rotary_dim && width.checked_mul(2) != Some(rotary_dim) {
        return refused([tables_of, rows, rotary_dim / 2]);
    }
    if ![1, batch].contains(&tables_of) {
        return refused([batch, rows, width]);
    }
    let mut narrowed = (0, rows);
    let (mut positions, mut described) = (None, None);
    if let Some(given) = o.positions {
        let given = call.row_major(call.read(("positions", given))?)?;
        let of_positions = match *given.shape {
            [1, _] => 1,
            [_, _] => batch,
            _ => 1,
        };
        let expected = [of_positions, steps];
        given.expect_shape(if given.shape.len() == 2 { &expected } else { &expected[1..] })?;
        if matches!(given.dtype, DType::I32 | DType::I64)
            && let Some(numbers) = known(&given, call.stream())?
        {
            check_positions(&numbers, rows).map_err(|e| call.raise(e))?;
        }
        described = Some(RotaryPositions { dtype: given.dtype, batch: of_positions });
        positions = Some(given);
    } else if of_batch.is_none() {
        if o.offset.checked_add(steps).is_none_or(|end| end > rows) {
            return refused([1, o.offset.saturating_add(steps), width]);
        }
        narrowed = (o.offset, steps);
    } else if rows < steps {
        return refused([tables_of, steps, width]);
    }
    if o.offset != 0 && (positions.is_some() || of_batch.is_some()) {
        let (got, expected) = (o.offset, "0 with positions, and with tables of three dimensions");
        let message = format!("{op}: offset is {got}, expected {expected}");
        let problem = Problem::new(py, Class::Parameter, message).at(op, "offset");
        return Err(problem.mismatch(expected, got).into_err());
    }
    let (first, rows) = narrowed;
    let tables = RotaryTables { dtype: cos.dtype, batch: tables_of, rows, repeated: width == rotary_dim };
    (cos.shaped, sin.shaped) = (true, true);
    Ok(Angles { cos, sin, positions, first, rotary_dim, tables, described })
}

/// The plan of a rotation, or of the one back.
enum Direction {
    Forward(Plan<RotaryDesc>),
    Backward(Plan<RotaryBackwardDesc>),
}

/// The rotation, or the one back, of the arguments of these names.
fn rotate<'py>(
    op: &'static str,
    names: [&'static str; 2],
    (q, k): (&Object<'py>, Maybe<'_, 'py>),
    tables: [&Object<'py>; 2],
    o: &Options<'_, 'py>,
    inverse: bool,
) -> PyResult<Object<'py>> {
    static FORWARD: PlanCache<RotaryDesc> = PlanCache::new();
    static BACKWARD: PlanCache<RotaryBackwardDesc> = PlanCache::new();
    let py = q.py();
    let pairing = pairing_of(py, op, o.pairing)?;
    let (call, q) = Call::new(op, (names[0], q), o.stream)?;
    let q = call.shaped(q)?;
    let of_q = q.layout()?;
    let [batch, steps, _, head_dim] = of_q.shape;
    let k = k.map(|k| {
        let k = call.read((names[1], k))?;
        k.expect_dtype(q.dtype)?;
        let [_, _, heads, _] = k.extents()?;
        k.expect_shape(&[batch, steps, heads, head_dim])?;
        call.shaped(k)
    });
    let k = k.transpose()?;
    let of_k = k.as_ref().map(|k| k.layout()).transpose()?;
    let Angles { cos, sin, positions, first, rotary_dim, tables, described } =
        angles(&call, of_q.shape, tables, o)?;
    let out = places(op, o.out, [true, k.is_some()])?;
    let rotated = |place: (&'static str, Maybe<'_, 'py>), from: Layout| {
        let (y, strides) = call.strided_output(place, &q, &from.shape)?;
        PyResult::Ok((y, Layout { strides: strides[..].try_into().unwrap_or_default(), ..from }))
    };
    let (y, of_y) = rotated(("out[0]", out[0].as_ref()), of_q)?;
    let (z, of_z) = match of_k {
        Some(from) => {
            let (z, of_z) = rotated(("out[1]", out[1].as_ref()), from)?;
            (Some(z), Some(of_z))
        }
        None => (None, None),
    };
    // What is given to the rotation back are gradients of results.
    let [given, made] = if inverse { [(of_y, of_z), (of_q, of_k)] } else { [(of_q, of_k), (of_y, of_z)] };
    let desc = RotaryDesc {
        dtype: q.dtype,
        q: given.0,
        k: given.1,
        q_rotated: made.0,
        k_rotated: made.1,
        pairing,
        rotary_dim,
        tables,
        positions: described,
    };
    let plan = if inverse {
        Direction::Backward(call.plan(&BACKWARD, &RotaryBackwardDesc { forward: desc })?)
    } else {
        Direction::Forward(call.plan(&FORWARD, &desc)?)
    };
    let is_part = tables.rows != cos.shape[cos.shape.len() - 2];
    let inputs = [Some(&q), k.as_ref(), Some(&cos), Some(&sin), positions.as_ref()];
    let results = call.run_some(inputs, [Some(y), z], move |stream, inputs, [y, z]| {
        let [q, k, cos, sin, positions] = inputs;
        let (cos, sin) = (present(cos), present(sin));
        let (cos, sin) = match is_part {
            true => (cos.narrow(0, first, tables.rows)?, sin.narrow(0, first, tables.rows)?),
            false => (cos, sin),
        };
        let (angles, y) = (RotaryAngles { cos, sin, positions }, present(y));
        match &plan {
            Direction::Forward(plan) => {
                let args = RotaryArgs { angles, q, k, q_rotated: y, k_rotated: z };
                Ok(plan.launch(stream, args)?)
            }
            Direction::Backward(plan) => {
                let args = RotaryBackwardArgs { angles, dq_rotated: q, dk_rotated: k, dq: y, dk: z };
                Ok(plan.launch(stream, args)?)
            }
        }
    })?;
    gathered(py, results)
}

/// A function of queries and keys by these names, with the keywords that both directions have.
macro_rules! directions {
    ($($(#[$doc:meta])* $name:ident($q:ident, $k:ident), inverse: $inverse:literal;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = ($q, $k, cos, sin, *, pairing="half", positions=None, offset=0, rotary_dim=None, out=None, stream=None))]
        #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
        pub(crate) fn $name<'py>(
            $q: &Object<'py>,
            $k: Maybe<'_, 'py>,
            cos: &Object<'py>,
            sin: &Object<'py>,
            pairing: &str,
            positions: Maybe<'_, 'py>,
            offset: usize,
            rotary_dim: Option<usize>,
            out: Maybe<'_, 'py>,
            stream: Maybe<'_, 'py>,
        ) -> PyResult<Object<'py>> {
            let options = Options { pairing, positions, offset, rotary_dim, out, stream };
            let names = [stringify!($q), stringify!($k)];
            rotate(stringify!($name), names, ($q, $k), [cos, sin], &options, $inverse)
        }
    )*};
}

directions! {
    /// Rotary position embedding of queries and keys in one launch: each pair of elements is rotated by the angle of its position.
    ///
    /// q: [batch, steps, heads, head_dim]; k: [batch, steps, num_kv_heads, head_dim], or None; float32, float64, float16 or bfloat16, any
    /// strides whose last is 1 (else they are copied). cos, sin: [rows, rotary_dim / 2] or [batch, rows, rotary_dim / 2], where the batch
    /// may be 1, or with rotary_dim elements a row, each number twice, where the elements of its pair are; float32, or the dtype of q.
    /// pairing: "half", pairs of elements i and i + rotary_dim / 2 as in Llama, or "interleaved", 2 i and 2 i + 1 as in GPT-J. positions: int64
    /// or int32, [batch, steps], [1, steps] or [steps], the row of each step; without them it is offset and the index of the step. On the
    /// host a position without a row is refused, on a GPU it gives NaN, see `validate_indices`. rotary_dim: how many elements of a head
    /// are rotated, the rest is copied; all if None.
    ///
    /// The result is (q, k), or q alone without k, in row-major order; `out` is as many arrays, which may have any strides whose last is 1
    /// and may be q and k themselves.
    rotary_embedding(q, k), inverse: false;

    /// The gradients of q and k of `rotary_embedding`, from those of its results: the rotation back.
    ///
    /// dq, dk: like the results of the forward function; the rest as there. The result is like that of the forward function.
    rotary_embedding_backward(dq, dk), inverse: true;
}
