//! `matmul` as a Python function.

use pyo3::prelude::*;
use warpwright::activation::Activation;
use warpwright::matmul::{Addend, GemmArgs, GemmDesc, Precision};
use warpwright::plan::{PlanCache, Real};

use crate::array::{Array, Site};
use crate::call::{Call, Form, present};
use crate::error::{Class, Problem, unknown};
use crate::library::{Maybe, Object};

const OP: &str = "matmul";

/// The last two dimensions of an array as matrices, and how they lie in memory.
pub(crate) struct Matrices {
    batch: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Whether the columns are what lies together.
    pub(crate) transposed: bool,
    /// Elements from one row, or column, to the next.
    pub(crate) leading: usize,
    /// Elements from one matrix to the next.
    stride: usize,
}

impl Matrices {
    /// `None` if there are gaps that a product does not step over.
    fn of(array: &Array<'_>) -> Option<Self> {
        let (shape, strides) = (&*array.shape, &*array.strides);
        let (&[ref before @ .., rows, cols], &[ref steps @ .., row, col]) = (shape, strides) else {
            return None;
        };
        if shape.contains(&0) {
            // Strides of nothing mean nothing.
            let batch = before.iter().try_fold(1usize, |batch, extent| batch.checked_mul(*extent))?;
            let (leading, stride) = (cols.max(1), rows.checked_mul(cols)?);
            return Some(Self { batch, rows, cols, transposed: false, leading, stride });
        }
        let step = |stride: i64| usize::try_from(stride).ok();
        // The stride of a dimension of one element means nothing.
        let row = if rows < 2 { None } else { Some(step(row)?) };
        let col = if cols < 2 { 1 } else { step(col)? };
        let (transposed, leading) = match row {
            None if col == 1 => (false, cols.max(1)),
            Some(row) if col == 1 && row >= cols => (false, row),
            None | Some(1) if col >= rows => (true, col),
            _ => return None,
        };
        let mut batch = 1usize;
        let mut stride = None;
        for (&extent, &step) in before.iter().zip(steps).rev() {
            let step = usize::try_from(step).ok()?;
            if extent != 1 {
                let fits = stride.is_none_or(|stride: usize| stride.checked_mul(batch) == Some(step));
                if !fits {
                    return None;
                }
                stride = stride.or(Some(step));
            }
            batch = batch.checked_mul(extent)?;
        }
        Some(Self { batch, rows, cols, transposed, leading, stride: stride.unwrap_or(0) })
    }

    /// Lines of a matrix that lie together: its rows, or its columns.
    const fn lines(&self) -> usize {
        if self.transposed { self.cols } else { self.rows }
    }

    /// Whether each matrix begins where the one before it ends.
    pub(crate) const fn is_packed(&self) -> bool {
        self.batch < 2 || self.stride == self.lines().saturating_mul(self.leading)
    }

    /// Elements from the first to the last.
    fn span(&self) -> usize {
        let Self { batch, rows, cols, .. } = *self;
        if batch == 0 || rows == 0 || cols == 0 {
            return 0;
        }
        let line = if self.transposed { rows } else { cols };
        let before = (self.lines() - 1).saturating_mul(self.leading);
        before.saturating_add(line).saturating_add((batch - 1).saturating_mul(self.stride))
    }
}

/// That an array has rows and columns.
pub(crate) fn expect_matrix(array: &Array<'_>) -> PyResult<()> {
    let (Site { op, argument }, rank) = (array.site, array.shape.len());
    if rank >= 2 {
        return Ok(());
    }
    let message = format!("{op}: {argument} has {rank} dimensions, expected at least 2");
    let problem = Problem::new(array.object.py(), Class::Shape, message).at(op, argument);
    Err(problem.mismatch(2, rank).into_err())
}

/// An argument as matrices: itself, or a copy.
pub(crate) fn matrices<'py>(call: &Call<'py>, array: Array<'py>) -> PyResult<(Array<'py>, Matrices)> {
    expect_matrix(&array)?;
    let (mut array, found) = match Matrices::of(&array) {
        Some(found) => (array, Some(found)),
        None => {
            let copy = call.row_major(array)?;
            let found = Matrices::of(&copy);
            (copy, found)
        }
    };
    let Some(found) = found else {
        let Site { op, argument } = array.site;
        let message = format!("{op}: {argument} has an unknown layout");
        return Err(Problem::new(array.object.py(), Class::Layout, message).into_err());
    };
    array.span = Some(found.span());
    Ok((array, found))
}

/// The function of the results of primitive `op`.
pub(crate) fn activation_of(
    py: Python<'_>,
    op: &'static str,
    name: Option<&str>,
) -> PyResult<Option<Activation>> {
    let known = |name| {
        let expected = "a name of an activation";
        Activation::from_name(name).ok_or_else(|| unknown(py, op, ("activation", name), expected))
    };
    name.map(known).transpose()
}

/// How exact the products of primitive `op` are to be.
pub(crate) fn precision_of(py: Python<'_>, op: &'static str, name: &str) -> PyResult<Precision> {
    let known = Precision::from_name(name);
    known.ok_or_else(|| unknown(py, op, ("precision", name), "'full' or 'tf32'"))
}

/// The factor of an addend, 0 if there is none.
fn beta_of(py: Python<'_>, c: Maybe<'_, '_>, beta: f64) -> PyResult<Real> {
    if c.is_some() || beta == 1.0 {
        return Ok(Real::new(if c.is_some() { beta } else { 0.0 }));
    }
    let message = format!("{OP}: beta is {beta} without the c that it is a factor of");
    let problem = Problem::new(py, Class::Argument, message).at(OP, "c");
    Err(problem.mismatch("array", "None").into_err())
}

/// `a b` of the last two dimensions, or `activation(alpha a b + beta c + bias)`.
///
/// a: [..., m, k]; b: [..., k, n] with the same leading dimensions, or [k, n] for every matrix of a; float32, float64, float16
/// or bfloat16, of one dtype. Transposed matrices, and rows with gaps between them, are read as they are. c: of the shape of the
/// result, which it may be the memory of; not read if beta is 0. bias: [n]. activation: "relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid" or "tanh". float16 and bfloat16 are summed in float32. precision: "full", or
/// "tf32", for float32 from sm_80 on: factors are rounded to 11 bits. The result is [..., m, n] of their dtype.
#[pyfunction]
#[pyo3(signature = (a, b, *, c=None, alpha=1.0, beta=1.0, bias=None, activation=None, precision="full", out=None, stream=None))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn matmul<'py>(
    a: &Object<'py>,
    b: &Object<'py>,
    c: Maybe<'_, 'py>,
    alpha: f64,
    beta: f64,
    bias: Maybe<'_, 'py>,
    activation: Option<&str>,
    precision: &str,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<GemmDesc> = PlanCache::new();
    let py = a.py();
    let activation = activation_of(py, OP, activation)?;
    let precision = precision_of(py, OP, precision)?;
    let beta = beta_of(py, c, beta)?;
    let (call, a) = Call::new(OP, ("a", a), stream)?;
    let (a, left) = matrices(&call, a)?;
    let b = call.read(("b", b))?;
    b.expect_dtype(a.dtype)?;
    let (b, right) = matrices(&call, b)?;
    let (before, _) = a.shape.split_at(a.shape.len() - 2);
    let shared = b.shape.len() == 2;
    if !shared {
        b.expect_shape(&[before, &[left.cols, right.cols]].concat())?;
    } else if right.rows != left.cols {
        b.expect_shape(&[left.cols, right.cols])?;
    }
    let shape = [before, &[left.rows, right.cols]].concat();
    let packed =
        GemmDesc::new(a.dtype, [left.rows, right.cols, left.cols], left.transposed, right.transposed);
    // Rows that follow one another are one matrix.
    let one = shared && !left.transposed && left.stride == left.rows.saturating_mul(left.leading);
    let (m, batch) = if one { (left.rows.saturating_mul(left.batch), 1) } else { (left.rows, left.batch) };
    let desc = GemmDesc {
        m,
        batch,
        lda: left.leading,
        ldb: right.leading,
        stride_a: left.stride,
        stride_b: if shared { 0 } else { right.stride },
        alpha: Real::new(alpha),
        beta,
        bias: bias.is_some(),
        activation,
        precision,
        ..packed
    };
    let c = call.optional(("c", c), a.dtype, &shape)?.filter(|_| beta.get() != 0.0);
    let bias = call.optional(("bias", bias), a.dtype, &[right.cols])?;
    let plan = call.plan(&PLANS, &desc)?;
    let y = call.output(("out", out), &a, Form::RowMajor(a.dtype, &shape))?;
    let in_place = c.as_ref().is_some_and(|c| y.begins_with(c));
    let inputs = [Some(&a), Some(&b), c.as_ref(), bias.as_ref()];
    let outputs = [Some(y), call.workspace(&plan, &a)?];
    let [y, _] = call.run_some(inputs, outputs, move |stream, [a, b, c, bias], [y, workspace]| {
        let (a, b, y) = (present(a), present(b), present(y));
        let c = match c {
            None => Addend::Absent,
            Some(_) if in_place => Addend::Result,
            Some(c) => Addend::Tensor(c),
        };
        Ok(plan.launch(stream, GemmArgs { a, b, c, bias, y, dbias: None, workspace })?)
    })?;
    Ok(present(y))
}

/// The gradients of the weight and the bias of a linear layer, `y = x weight.T + bias`: `dy.T x`, and the sums of the columns of dy.
///
/// x: [rows, k], what the layer took; dy: [rows, n], the gradient of what it gave; float32, float64, float16 or bfloat16, of one dtype.
/// The results are dweight [n, k] and dbias [n] of their dtype. float16 and bfloat16 are summed in float32; on sm_90 large products read dy
/// once for both.
#[pyfunction]
#[pyo3(signature = (x, dy, *, stream=None))]
pub(crate) fn linear_weight_backward<'py>(
    x: &Object<'py>,
    dy: &Object<'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    static PLANS: PlanCache<GemmDesc> = PlanCache::new();
    let (call, x) = Call::new("linear_weight_backward", ("x", x), stream)?;
    let [rows, k] = x.extents()?;
    let (x, right) = matrices(&call, x)?;
    let dy = call.read(("dy", dy))?;
    dy.expect_dtype(x.dtype)?;
    let [of_dy, n] = dy.extents()?;
    if of_dy != rows {
        dy.expect_shape(&[rows, n])?;
    }
    let dy = call.row_major(dy)?;
    let product = GemmDesc::new(x.dtype, [n, k, rows], true, right.transposed);
    let desc = GemmDesc { ldb: right.leading, bias_gradient: true, ..product };
    let plan = call.plan(&PLANS, &desc)?;
    let output = |name, shape: &[usize]| call.output((name, None), &x, Form::RowMajor(x.dtype, shape));
    let outputs =
        [Some(output("dweight", &[n, k])?), Some(output("dbias", &[n])?), call.workspace(&plan, &x)?];
    let [dweight, dbias, _] =
        call.run_some([Some(&dy), Some(&x)], outputs, move |stream, [a, b], [y, dbias, workspace]| {
            let (a, b, c, y) = (present(a), present(b), Addend::Absent, present(y));
            Ok(plan.launch(stream, GemmArgs { a, b, c, bias: None, y, dbias, workspace })?)
        })?;
    Ok((present(dweight), present(dbias)))
}
