//! The free functions: allocate the result, take the plan from a cache, launch.

use std::sync::LazyLock;

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor, TensorMut};

use super::walk::broadcast_shape;
use super::{ElementwiseArgs, ElementwiseDesc, Expr, ExprError, InputDesc, OP, Operand};
use crate::plan::{PlanCache, Real, View};
use crate::{Dropout, Error, PlanError};

/// Enqueues expressions of tensors into outputs that are there.
fn launch(
    stream: &Stream,
    inputs: Vec<Operand<'_>>,
    exprs: &[Expr],
    (scalars, dropout): (&[f64], Option<Dropout>),
    outputs: Vec<TensorMut<'_>>,
) -> Result<(), Error> {
    static PLANS: PlanCache<ElementwiseDesc> = PlanCache::new();
    let of = |input: &Operand<'_>| {
        let x = match input {
            Operand::Tensor(x) => x,
            Operand::Output(output) => match outputs.get(*output) {
                Some(y) => y.reading(),
                None => {
                    let (name, given) = (format!("y{output}"), outputs.len());
                    let source = ExprError::Missing { name, given };
                    return Err(PlanError::Expression { op: OP, source });
                }
            },
        };
        let rank = || PlanError::refused(OP, "shape", format!("{:?}", x.shape()), "of at most 8 dimensions");
        Ok(InputDesc { dtype: x.dtype(), view: View::of(x).ok_or_else(rank)? })
    };
    let desc = ElementwiseDesc {
        outputs: exprs.to_vec(),
        dtypes: outputs.iter().map(TensorMut::dtype).collect(),
        shape: outputs.first().map_or(Vec::new(), |y| y.shape().to_vec()),
        inputs: inputs.iter().map(of).collect::<Result<_, _>>()?,
        scalars: scalars.iter().copied().map(Real::new).collect(),
        dropout: dropout.map(|dropout| Real::new(dropout.probability.into())),
    };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let random = dropout.map(|dropout| dropout.random(stream)).transpose()?;
    let args = ElementwiseArgs { inputs, random: random.as_ref().map(Tensor::as_ref), outputs };
    Ok(plan.launch(stream, args)?)
}

/// The same into a new tensor of the shape that the inputs are broadcast to.
fn launch_new(
    stream: &Stream,
    inputs: &[&Tensor],
    expr: &Expr,
    numbers: (&[f64], Option<Dropout>),
    dtype: DType,
) -> Result<Tensor, Error> {
    let shape = broadcast_shape(inputs.iter().map(|x| x.shape()))?;
    let mut y = Tensor::empty_on(stream, dtype, &shape)?;
    let operands = inputs.iter().map(|x| x.as_ref().into()).collect();
    launch(stream, operands, std::slice::from_ref(expr), numbers, vec![y.as_mut()])?;
    Ok(y)
}

/// The type that holds the elements of several: f64 if there is one, f32 beside an f32 and for f16 beside bf16.
fn promoted<'t>(tensors: impl IntoIterator<Item = &'t Tensor>) -> DType {
    let both = |a: DType, b: DType| match (a, b) {
        _ if a == b => a,
        (DType::F64, _) | (_, DType::F64) => DType::F64,
        // A mask has the type of what it stands beside.
        (DType::U8, other) | (other, DType::U8) => other,
        _ => DType::F32,
    };
    tensors.into_iter().map(Tensor::dtype).reduce(both).unwrap_or(DType::F32)
}

/// `expr` of the elements of tensors that are broadcast together, in a new tensor of type `dtype`; see the
/// [module](crate::elementwise).
///
/// `inputs` are `x0`, `x1`, .. of the expression, of any shapes that are broadcast together, of f32, f64, f16, bf16 or u8; `scalars`
/// are `s0`, `s1`, ..: numbers that are not part of the kernel, so that one kernel serves them all.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::elementwise::{Expr, map};
/// use warpwright::{DType, Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[-1.0f32, 0.0, 1.0, 2.0], &[2, 2])?;
/// let bias = Tensor::from_slice(&device, &[0.5f32, -0.5], &[2])?;
/// let f = (Expr::input(0) * Expr::scalar(0) + Expr::input(1)).relu();
/// let y = map(&stream, &[&x, &bias], &f, &[2.0], DType::F32)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [0.0, 0.0, 2.5, 3.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the expression does not use exactly these inputs and numbers, the shapes are not broadcast together or the types
/// are none of those; [`Error::Runtime`] if memory runs out.
pub fn map(
    stream: &Stream,
    inputs: &[&Tensor],
    expr: &Expr,
    scalars: &[f64],
    dtype: DType,
) -> Result<Tensor, Error> {
    launch_new(stream, inputs, expr, (scalars, None), dtype)
}

/// Expressions of the elements of tensors, each into an output that is there: one launch, which allocates nothing.
///
/// Inputs are broadcast to the shape that all outputs have; they may have strides, and [`Operand::Output`] reads what an output holds.
/// Outputs are contiguous, each of its own type.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::elementwise::{Expr, Operand, map_into};
/// use warpwright::{DType, Device, Tensor};
///
/// // A step of SGD with momentum: of the velocity, and of the weight.
/// let [weight, velocity, gradient] = Expr::inputs();
/// let [momentum, rate] = [0, 1].map(Expr::scalar);
/// let next = velocity * momentum + gradient;
/// let step = [&weight - &next * rate, next];
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let [mut w, mut v] = [[1.0f32, 2.0], [0.5, 0.0]].map(|x| Tensor::from_slice(&device, &x, &[2]).unwrap());
/// let g = Tensor::from_slice(&device, &[1.0f32, -1.0], &[2])?;
/// let inputs = vec![Operand::Output(0), Operand::Output(1), g.as_ref().into()];
/// map_into(&stream, inputs, &step, &[0.5, 2.0], vec![w.as_mut(), v.as_mut()])?;
/// assert_eq!(v.to_vec_on::<f32>(&stream)?, [1.25, -1.0]);
/// assert_eq!(w.to_vec_on::<f32>(&stream)?, [-1.5, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] as [`map`]; [`Error::Runtime`] if the outputs have several shapes or are not contiguous, or one overlaps an input
/// other than exactly.
pub fn map_into(
    stream: &Stream,
    inputs: Vec<Operand<'_>>,
    exprs: &[Expr],
    scalars: &[f64],
    outputs: Vec<TensorMut<'_>>,
) -> Result<(), Error> {
    launch(stream, inputs, exprs, (scalars, None), outputs)
}

/// `x + alpha y` and `x - alpha y`, without a product for 1.
struct Scaled {
    plain: Expr,
    scaled: Expr,
}

impl Scaled {
    fn new(f: impl Fn(Expr, Expr) -> Expr) -> Self {
        let [x, y] = Expr::inputs();
        let scaled = Expr::scalar(0) * &y;
        Self { plain: f(x.clone(), y), scaled: f(x, scaled) }
    }

    /// The expression for a factor, and its scalars.
    fn of<'a>(&'a self, alpha: &'a f64) -> (&'a Expr, &'a [f64]) {
        if *alpha == 1.0 { (&self.plain, &[]) } else { (&self.scaled, std::slice::from_ref(alpha)) }
    }

    fn new_tensor(&self, stream: &Stream, x: &Tensor, y: &Tensor, alpha: f64) -> Result<Tensor, Error> {
        let (expr, scalars) = self.of(&alpha);
        launch_new(stream, &[x, y], expr, (scalars, None), promoted([x, y]))
    }
}

static ADD: LazyLock<Scaled> = LazyLock::new(|| Scaled::new(|x, y| x + y));
static SUB: LazyLock<Scaled> = LazyLock::new(|| Scaled::new(|x, y| x - y));

/// `x + alpha y`, broadcast, as `torch.add`.
///
/// `x` and `y` are f32, f64, f16 or bf16; the result has the type that holds both: f64 if there is one, f32 for f16 beside bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, elementwise};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let column = Tensor::from_slice(&device, &[10.0f32, 20.0], &[2, 1])?;
/// let y = elementwise::add(&stream, &x, &column, 0.5)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [6.0, 7.0, 13.0, 14.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the shapes are not broadcast together or a type is none of those; [`Error::Runtime`] if memory runs out.
pub fn add(stream: &Stream, x: &Tensor, y: &Tensor, alpha: f64) -> Result<Tensor, Error> {
    ADD.new_tensor(stream, x, y, alpha)
}

/// `x - alpha y`, as `torch.sub`; types and shapes, which are broadcast, as for [`add`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, elementwise};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0], &[2])?;
/// let y = Tensor::from_slice(&device, &[1.0f64], &[])?;
/// let z = elementwise::sub(&stream, &x, &y, 1.0)?;
/// assert_eq!(z.to_vec_on::<f64>(&stream)?, [0.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`add`].
pub fn sub(stream: &Stream, x: &Tensor, y: &Tensor, alpha: f64) -> Result<Tensor, Error> {
    SUB.new_tensor(stream, x, y, alpha)
}

/// Adds `alpha y`, which is broadcast, to `x`, as `x.add_(y, alpha=alpha)` of PyTorch; `x` keeps its type.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, elementwise};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut x = Tensor::from_slice(&device, &[1.0f32, 2.0], &[2])?;
/// let y = Tensor::from_slice(&device, &[3.0f32], &[1])?;
/// elementwise::add_in_place(&stream, &mut x, &y, -2.0)?;
/// assert_eq!(x.to_vec_on::<f32>(&stream)?, [-5.0, -4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `y` is not broadcast to the shape of `x`, or a type is none of those of [`add`].
pub fn add_in_place(stream: &Stream, x: &mut Tensor, y: &Tensor, alpha: f64) -> Result<(), Error> {
    let (expr, scalars) = ADD.of(&alpha);
    let inputs = vec![Operand::Output(0), y.as_ref().into()];
    launch(stream, inputs, std::slice::from_ref(expr), (scalars, None), vec![x.as_mut()])
}

/// Multiplies `x` by `y`, which is broadcast to its shape, as `x.mul_(y)` of PyTorch; `x` keeps its type.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, elementwise};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut x = Tensor::from_slice(&device, &[1.0f32, 2.0], &[2])?;
/// let y = Tensor::from_slice(&device, &[3.0f32, 5.0], &[2])?;
/// elementwise::mul_in_place(&stream, &mut x, &y)?;
/// assert_eq!(x.to_vec_on::<f32>(&stream)?, [3.0, 10.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`add_in_place`].
pub fn mul_in_place(stream: &Stream, x: &mut Tensor, y: &Tensor) -> Result<(), Error> {
    static MUL: LazyLock<Expr> = LazyLock::new(|| Expr::input(0) * Expr::input(1));
    let inputs = vec![Operand::Output(0), y.as_ref().into()];
    launch(stream, inputs, std::slice::from_ref(&MUL), (&[], None), vec![x.as_mut()])
}

macro_rules! of_two {
    ($($name:ident, $doc:literal, $method:expr, $of_6_and_4:literal;)*) => {$(
        #[doc = $doc]
        ///
        /// Types, and shapes, which are broadcast, are as for [`add`].
        ///
        /// ```
        /// # fn main() -> Result<(), warpwright::Error> {
        /// use warpwright::{Device, Tensor, elementwise};
        ///
        /// let device = Device::best();
        /// let stream = device.stream()?;
        /// let x = Tensor::from_slice(&device, &[6.0f32], &[1])?;
        /// let y = Tensor::from_slice(&device, &[4.0f32; 2], &[2, 1])?;
        #[doc = concat!("let z = elementwise::", stringify!($name), "(&stream, &x, &y)?;")]
        #[doc = concat!("assert_eq!(z.to_vec_on::<f32>(&stream)?, [", stringify!($of_6_and_4), "; 2]);")]
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        /// As [`add`].
        pub fn $name(stream: &Stream, x: &Tensor, y: &Tensor) -> Result<Tensor, Error> {
            static EXPR: LazyLock<Expr> = LazyLock::new(|| {
                let [x, y] = Expr::inputs();
                $method(&x, y)
            });
            launch_new(stream, &[x, y], &EXPR, (&[], None), promoted([x, y]))
        }
    )*};
}

of_two! {
    mul, "`x y`, broadcast, as `torch.mul`.", |x: &Expr, y: Expr| x * y, 24.0;
    div, "`x / y`, broadcast, as `torch.div` without a rounding mode.", |x: &Expr, y: Expr| x / y, 1.5;
    minimum, "The lesser of two, broadcast, NaN if either is NaN, as `torch.minimum`.", Expr::minimum, 4.0;
    maximum, "The greater of two, broadcast, NaN if either is NaN, as `torch.maximum`.", Expr::maximum, 6.0;
}

/// `x` where `condition` is not 0, `y` elsewhere, all three broadcast, as `torch.where`.
///
/// `condition` is u8 (PyTorch's `bool`) or one of the types of [`add`], which `x` and `y` are; shapes are as for [`add`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, elementwise};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mask = Tensor::from_slice(&device, &[1u8, 0], &[2])?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0], &[2])?;
/// let fill = Tensor::from_slice(&device, &[f32::NEG_INFINITY], &[])?;
/// let y = elementwise::where_(&stream, &mask, &x, &fill)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [1.0, f32::NEG_INFINITY]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`add`].
pub fn where_(stream: &Stream, condition: &Tensor, x: &Tensor, y: &Tensor) -> Result<Tensor, Error> {
    static EXPR: LazyLock<Expr> = LazyLock::new(|| {
        let [condition, x, y] = Expr::inputs();
        condition.where_(x, y)
    });
    launch_new(stream, &[condition, x, y], &EXPR, (&[], None), promoted([x, y]))
}

/// `start + weight (end - start)`, broadcast, as `torch.lerp`: exactly `end` for a weight of 1.
///
/// Types, and shapes, which are broadcast, are as for [`add`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, elementwise};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let start = Tensor::from_slice(&device, &[0.0f32, 2.0], &[2])?;
/// let end = Tensor::from_slice(&device, &[4.0f32], &[1])?;
/// let y = elementwise::lerp(&stream, &start, &end, 0.25)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [1.0, 2.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`add`].
pub fn lerp(stream: &Stream, start: &Tensor, end: &Tensor, weight: f64) -> Result<Tensor, Error> {
    static EXPRS: LazyLock<[Expr; 2]> = LazyLock::new(|| {
        let ([start, end], weight) = (Expr::inputs(), Expr::scalar(0));
        let way = &end - &start;
        [start + &weight * &way, end - way * weight]
    });
    // From the nearer end, as PyTorch does.
    let [from_start, from_end] = &*EXPRS;
    let (expr, weight) = if weight.abs() < 0.5 { (from_start, weight) } else { (from_end, 1.0 - weight) };
    launch_new(stream, &[start, end], expr, (&[weight], None), promoted([start, end]))
}

/// `x + value a b`, broadcast, as `torch.addcmul`.
///
/// Types, and shapes, which are broadcast, are as for [`add`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, elementwise};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0], &[2])?;
/// let a = Tensor::from_slice(&device, &[3.0f32], &[1])?;
/// let y = elementwise::addcmul(&stream, &x, &a, &x, -1.0)?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [-2.0, -4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`add`].
pub fn addcmul(stream: &Stream, x: &Tensor, a: &Tensor, b: &Tensor, value: f64) -> Result<Tensor, Error> {
    static EXPR: LazyLock<Expr> = LazyLock::new(|| {
        let [x, a, b] = Expr::inputs();
        x + Expr::scalar(0) * a * b
    });
    launch_new(stream, &[x, a, b], &EXPR, (&[value], None), promoted([x, a, b]))
}

/// `x` with elements set to 0 at random and the others divided by `1 - probability`, as `torch.nn.functional.dropout` in training.
///
/// `x` has any shape, of f32, f64, f16 or bf16; the result is like it. Element `n` in row-major order is the element `n` of
/// [`Dropout`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Dropout, Tensor, dropout, dropout_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32; 100], &[4, 25])?;
/// let options = Dropout { probability: 0.5, seed: 7, offset: 0 };
/// let y = dropout(&stream, &x, options)?.to_vec_on::<f32>(&stream)?;
/// for (n, y) in y.iter().enumerate() {
///     assert_eq!(*y, if options.keeps(n as u64) { 2.0 } else { 0.0 });
/// }
/// let dx = dropout_backward(&stream, &x, options)?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, y);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the type is none of those or the probability is not from 0 to 1; [`Error::Runtime`] if memory runs out.
pub fn dropout(stream: &Stream, x: &Tensor, dropout: Dropout) -> Result<Tensor, Error> {
    static EXPR: LazyLock<Expr> = LazyLock::new(|| Expr::input(0).dropout());
    PlanError::check_floats("dropout", "x", x.dtype())?;
    launch_new(stream, &[x], &EXPR, (&[], Some(dropout)), x.dtype())
}

/// The gradient of the argument of [`dropout()`] from that of its result, `dy`: the same elements are dropped, and the others are
/// divided by the same number. No mask was kept.
///
/// `dy` has any shape, of f32, f64, f16 or bf16; the result is like it.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Dropout, Tensor, dropout_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let dy = Tensor::from_slice(&device, &[3.0f32; 8], &[8])?;
/// let dx = dropout_backward(&stream, &dy, Dropout { probability: 0.0, seed: 7, offset: 0 })?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [3.0; 8]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`dropout()`].
pub fn dropout_backward(stream: &Stream, dy: &Tensor, options: Dropout) -> Result<Tensor, Error> {
    dropout(stream, dy, options)
}

/// `dropout(x) + residual` in one launch: the end of a block of a transformer.
///
/// `x` and `residual` have one shape; types are those of [`add`]. The gradient of `residual` is that of the result, and the gradient of
/// `x` is [`dropout_backward`] of it.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Dropout, Tensor, dropout_add};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[3.0f32; 8], &[8])?;
/// let residual = Tensor::from_slice(&device, &[1.0f32; 8], &[8])?;
/// let options = Dropout { probability: 0.25, seed: 7, offset: 0 };
/// let y = dropout_add(&stream, &x, &residual, options)?.to_vec_on::<f32>(&stream)?;
/// assert!(y.iter().zip(0..).all(|(y, n)| *y == if options.keeps(n) { 5.0 } else { 1.0 }));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] as [`dropout()`], and if the shapes differ.
pub fn dropout_add(
    stream: &Stream,
    x: &Tensor,
    residual: &Tensor,
    dropout: Dropout,
) -> Result<Tensor, Error> {
    static EXPR: LazyLock<Expr> = LazyLock::new(|| Expr::input(0).dropout() + Expr::input(1));
    PlanError::check_floats("dropout_add", "x", x.dtype())?;
    PlanError::check_floats("dropout_add", "residual", residual.dtype())?;
    if x.shape() != residual.shape() {
        let got = format!("{:?} for an x of {:?}", residual.shape(), x.shape());
        return Err(PlanError::refused("dropout_add", "residual", got, "of the shape of x").into());
    }
    launch_new(stream, &[x, residual], &EXPR, (&[], Some(dropout)), promoted([x, residual]))
}
