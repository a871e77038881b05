//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::{
    DOTS, GATHER, GatherRowsArgs, GatherRowsDesc, IndexedRows, RowDotsArgs, RowDotsDesc, SCATTER,
    ScatterRowsArgs, ScatterRowsDesc,
};
use crate::plan::PlanCache;
use crate::{Error, PlanError};

/// Elements of a row of a tensor whose first dimensions are those before `from`.
fn of_row(op: &'static str, argument: &'static str, x: &Tensor, from: usize) -> Result<usize, PlanError> {
    let refuse = || {
        let got = format!("{:?}", x.shape());
        PlanError::refused(
            op,
            argument,
            got,
            "a tensor of rows, one for each index where it is taken by place",
        )
    };
    let extents = x.shape().get(from..).ok_or_else(refuse)?;
    extents.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent)).ok_or_else(refuse)
}

/// The rows of `x` that `index` names, each times its factor if there are `factors`; see the [module](crate::gather_scatter).
///
/// `x` is `[rows, ..]`, of f32, f64, f16 or bf16, `index` of any shape, i64 or i32; factors are as many as indices, of the type of `x` or of f32 for
/// 16-bit types. The result has the dimensions of `index` and those of `x` behind the first.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, gather_rows};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[0.0f32, 1.0, 2.0, 3.0], &[2, 2])?;
/// let index = Tensor::from_slice(&device, &[1i64, 0, 1], &[3])?;
/// let factors = Tensor::from_slice(&device, &[1.0f32, 2.0, -1.0], &[3])?;
/// let y = gather_rows(&stream, &x, &index, Some(&factors))?;
/// assert_eq!(y.shape(), [3, 2]);
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [2.0, 3.0, 0.0, 2.0, -2.0, -3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `x` has no dimension or an element type is none of those. [`Error::Runtime`] if factors are not as many as indices, or
/// memory runs out. An index that is no row gives NaN.
pub fn gather_rows(
    stream: &Stream,
    x: &Tensor,
    index: &Tensor,
    factors: Option<&Tensor>,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<GatherRowsDesc> = PlanCache::new();
    let dim = of_row(GATHER, "x", x, 1)?;
    let (dtype, rows, count) = (x.dtype(), x.shape()[0], index.len());
    let of = IndexedRows { dtype, index: index.dtype(), rows, dim, count };
    let desc = GatherRowsDesc { of, factors: factors.map(Tensor::dtype) };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let shape: Vec<usize> = index.shape().iter().chain(&x.shape()[1..]).copied().collect();
    let mut y = Tensor::empty_on(stream, dtype, &shape)?;
    let factors = factors.map(Tensor::as_ref);
    plan.launch(stream, GatherRowsArgs { x: x.as_ref(), index: index.as_ref(), factors, y: y.as_mut() })?;
    Ok(y)
}

/// Further tensors of [`scatter_rows`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ScatterOptions<'a> {
    /// A factor for each index, of the type of the rows or of f32 for 16-bit types.
    pub factors: Option<&'a Tensor>,
    /// Rows that sums begin with, of the shape and type of the result; zeros without it.
    pub base: Option<&'a Tensor>,
}

/// The sums of those rows of `x` that have the same index, in a tensor of `rows` rows, as `torch.index_add` along the first dimension; see the
/// [module](crate::gather_scatter).
///
/// `x` has the dimensions of `index`, i64 or i32, and then any, of f32, f64, f16 or bf16; the result is `[rows, ..]` with the latter.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::gather_scatter::ScatterOptions;
/// use warpwright::{Device, Tensor, scatter_rows};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])?;
/// let index = Tensor::from_slice(&device, &[1i32, 0, 1], &[3])?;
/// let factors = Tensor::from_slice(&device, &[1.0f32, 1.0, 0.5], &[3])?;
/// let options = ScatterOptions { factors: Some(&factors), ..Default::default() };
/// let y = scatter_rows(&stream, &x, &index, 2, options)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [3.0, 4.0, 3.5, 5.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `x` has fewer dimensions than `index`, or an element type is none of those. [`Error::Runtime`] if the elements of the
/// tensors do not fit each other, or memory runs out. An index that is no row is passed over.
pub fn scatter_rows(
    stream: &Stream,
    x: &Tensor,
    index: &Tensor,
    rows: usize,
    options: ScatterOptions<'_>,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<ScatterRowsDesc> = PlanCache::new();
    let ScatterOptions { factors, base } = options;
    let first = index.shape().len();
    let dim = of_row(SCATTER, "x", x, first)?;
    let of = IndexedRows { dtype: x.dtype(), index: index.dtype(), rows, dim, count: index.len() };
    let desc = ScatterRowsDesc { of, factors: factors.map(Tensor::dtype), base: base.is_some() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let shape: Vec<usize> = [rows].iter().chain(&x.shape()[first..]).copied().collect();
    let mut y = Tensor::empty_on(stream, x.dtype(), &shape)?;
    let mut workspace = plan.workspace(stream)?;
    let args = ScatterRowsArgs {
        x: x.as_ref(),
        index: index.as_ref(),
        factors: factors.map(Tensor::as_ref),
        base: base.map(Tensor::as_ref),
        y: y.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(y)
}

/// The products of the rows of `a` with the rows of `b` that `index` names: the gradient of the factors of [`gather_rows`], with its `dy` as `a` and
/// its `x` as `b`, and of those of [`scatter_rows`], with its `x` as `a` and its `dy` as `b`.
///
/// `a` has the dimensions of `index`, i64 or i32, and then any, of f32, f64, f16 or bf16; `b` is `[rows, ..]` of the same type with the latter. The
/// result has the shape of `index` and is of `dtype`: that of the rows, or f32 for 16-bit types.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{DType, Device, Tensor, row_dots};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let a = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let b = Tensor::from_slice(&device, &[1.0f32, -1.0, 0.5, 0.5, 9.0, 9.0], &[3, 2])?;
/// let index = Tensor::from_slice(&device, &[1i64, 0], &[2])?;
/// let y = row_dots(&stream, &a, &b, &index, DType::F32)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [1.5, -1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`scatter_rows`]. An index that is no row gives NaN.
pub fn row_dots(
    stream: &Stream,
    a: &Tensor,
    b: &Tensor,
    index: &Tensor,
    dtype: DType,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<RowDotsDesc> = PlanCache::new();
    let dim = of_row(DOTS, "b", b, 1)?;
    let of =
        IndexedRows { dtype: a.dtype(), index: index.dtype(), rows: b.shape()[0], dim, count: index.len() };
    let plan = PLANS.get(&RowDotsDesc { of, y_dtype: dtype }, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, dtype, index.shape())?;
    plan.launch(stream, RowDotsArgs { a: a.as_ref(), b: b.as_ref(), index: index.as_ref(), y: y.as_mut() })?;
    Ok(y)
}
