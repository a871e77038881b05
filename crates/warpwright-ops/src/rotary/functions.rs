//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor, TensorMut, TensorRef};

use super::{
    OP, Pairing, RotaryAngles, RotaryArgs, RotaryBackwardArgs, RotaryBackwardDesc, RotaryDesc,
    RotaryPositions, RotaryTables,
};
use crate::plan::{Layout, PlanCache};
use crate::{Error, PlanError};

/// Everything that [`rotary_embedding`] takes beside queries, keys and tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct RotaryOptions<'a> {
    /// Which elements are rotated together.
    pub pairing: Pairing,
    /// Elements of a head that are rotated, an even number; `None` is all of them.
    pub rotary_dim: Option<usize>,
    /// The position of each step, `[batch, steps]` or `[steps]`, i32 or i64; `None` is `offset` and its index.
    pub positions: Option<TensorRef<'a>>,
    /// The position of the first step where there is no tensor of them. It takes rows of a table of two dimensions.
    pub offset: usize,
}

/// The results of [`rotary_embedding`], contiguous.
#[derive(Debug)]
pub struct RotaryOutput {
    /// The rotated queries, of the shape and type of the queries.
    pub q: Tensor,
    /// The rotated keys, if there are keys.
    pub k: Option<Tensor>,
}

/// The gradients of [`rotary_embedding`], contiguous.
#[derive(Debug)]
pub struct RotaryGradients {
    /// Of the queries.
    pub dq: Tensor,
    /// Of the keys, if there are keys.
    pub dk: Option<Tensor>,
}

fn layout(parameter: &'static str, x: &TensorRef<'_>) -> Result<Layout, PlanError> {
    let expected = "4 dimensions: [batch, steps, heads, head_dim]";
    Layout::of(x).ok_or_else(|| PlanError::refused(OP, parameter, format!("{:?}", x.shape()), expected))
}

/// The descriptor of rotations between tensors of these layouts, and the tensors of their angles.
fn describe<'a>(
    [q, k]: [Option<(&TensorRef<'_>, Option<Layout>)>; 2],
    [cos, sin]: [TensorRef<'a>; 2],
    options: RotaryOptions<'a>,
) -> Result<(RotaryDesc, RotaryAngles<'a>), Error> {
    let RotaryOptions { pairing, rotary_dim, positions, offset } = options;
    let layouts = |name, of: Option<(&TensorRef<'_>, Option<Layout>)>| {
        let Some((x, y)) = of else { return Ok(None) };
        let x = layout(name, x)?;
        Ok::<_, PlanError>(Some((x, y.unwrap_or(Layout::contiguous(x.shape)))))
    };
    let (of_q, of_k) = (layouts("q", q)?, layouts("k", k)?);
    let Some(((q, _), (q_layout, q_rotated))) = q.zip(of_q) else {
        return Err(PlanError::refused(OP, "q", "absent", "given").into());
    };
    let [_, steps, _, head_dim] = q_layout.shape;
    let rotary_dim = rotary_dim.unwrap_or(head_dim);
    let (cos, sin) = match cos.shape() {
        &[rows, _] if positions.is_none() => {
            if offset.checked_add(steps).is_none_or(|end| end > rows) {
                let got = format!("{rows} for {steps} steps from {offset}");
                return Err(PlanError::refused(OP, "tables.rows", got, "a row for each step").into());
            }
            (cos.narrow(0, offset, steps)?, sin.narrow(0, offset, steps)?)
        }
        _ if offset != 0 => {
            let expected = "0 with positions, and with tables of three dimensions";
            return Err(PlanError::refused(OP, "offset", offset, expected).into());
        }
        _ => (cos, sin),
    };
    let tables = tables_of(OP, (&cos, &sin), rotary_dim)?;
    let described = positions.map(|positions| match *positions.shape() {
        [_] => Ok(RotaryPositions { dtype: positions.dtype(), batch: 1 }),
        [batch, _] => Ok(RotaryPositions { dtype: positions.dtype(), batch }),
        _ => {
            let got = format!("{:?}", positions.shape());
            Err(PlanError::refused(OP, "positions", got, "[steps] or [batch, steps]"))
        }
    });
    let desc = RotaryDesc {
        dtype: q.dtype(),
        q: q_layout,
        k: of_k.map(|(k, _)| k),
        q_rotated,
        k_rotated: of_k.map(|(_, k)| k),
        pairing,
        rotary_dim,
        tables,
        positions: described.transpose()?,
    };
    Ok((desc, RotaryAngles { cos, sin, positions }))
}

/// Tables `[rows, ..]` or `[batch, rows, ..]` as an operation describes them.
pub(crate) fn tables_of(
    op: &'static str,
    (cos, sin): (&TensorRef<'_>, &TensorRef<'_>),
    rotary_dim: usize,
) -> Result<RotaryTables, PlanError> {
    let (batch, rows, width) = match *cos.shape() {
        [rows, width] => (1, rows, width),
        [batch, rows, width] => (batch, rows, width),
        _ => {
            let (got, expected) = (format!("{:?}", cos.shape()), "[rows, ..] or [batch, rows, ..]");
            return Err(PlanError::refused(op, "cos", got, expected));
        }
    };
    if width != rotary_dim && width.checked_mul(2) != Some(rotary_dim) {
        let got = format!("{width} of {rotary_dim}");
        let expected = "rows of rotary_dim or rotary_dim / 2 elements";
        return Err(PlanError::refused(op, "cos", got, expected));
    }
    if sin.shape() != cos.shape() {
        let got = format!("{:?} beside {:?}", sin.shape(), cos.shape());
        return Err(PlanError::refused(op, "sin", got, "the shape of cos"));
    }
    Ok(RotaryTables { dtype: cos.dtype(), batch, rows, repeated: width == rotary_dim })
}

static FORWARD: PlanCache<RotaryDesc> = PlanCache::new();
static BACKWARD: PlanCache<RotaryBackwardDesc> = PlanCache::new();

/// Rotary position embedding of queries and keys in one launch (Su et al. 2021, arXiv:2104.09864), as `apply_rotary_pos_emb` of the
/// transformers package; see the [module](crate::rotary).
///
/// `q` is `[batch, steps, heads, head_dim]`, `k`, if there are keys, `[batch, steps, num_kv_heads, head_dim]`, of f32, f64, f16 or bf16,
/// tensors or views with any strides but 1 in the last dimension. `cos` and `sin` are `[rows, rotary_dim / 2]` or
/// `[batch, rows, rotary_dim / 2]`, with a batch of 1 too, or have `rotary_dim` elements a row, each number twice; they are f32 or of
/// the type of `q`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::rotary::RotaryOptions;
/// use warpwright::{Device, Tensor, rotary_embedding};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // Two steps of one head with one pair; the second is turned by a right angle.
/// let q = Tensor::from_slice(&device, &[1.0f32, 2.0, 1.0, 2.0], &[1, 2, 1, 2])?;
/// let cos = Tensor::from_slice(&device, &[1.0f32, 0.0], &[2, 1])?;
/// let sin = Tensor::from_slice(&device, &[0.0f32, 1.0], &[2, 1])?;
/// let out = rotary_embedding(&stream, &q, None, &cos, &sin, RotaryOptions::default())?;
/// assert_eq!(out.q.to_vec_on::<f32>(&stream)?, [1.0, 2.0, -2.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if shapes do not fit each other, `rotary_dim` is odd or beyond `head_dim`, the tables have no row for a step, or an
/// element type is none of those. [`Error::Runtime`] if tables or positions are not contiguous, or memory runs out. A position that the
/// tables have no row for gives NaN; [`check_positions`](super::check_positions) finds it on the host.
pub fn rotary_embedding<'a>(
    stream: &Stream,
    q: impl Into<TensorRef<'a>>,
    k: Option<TensorRef<'a>>,
    cos: impl Into<TensorRef<'a>>,
    sin: impl Into<TensorRef<'a>>,
    options: RotaryOptions<'a>,
) -> Result<RotaryOutput, Error> {
    let q = q.into();
    let tensors = [Some((&q, None)), k.as_ref().map(|k| (k, None))];
    let (desc, angles) = describe(tensors, [cos.into(), sin.into()], options)?;
    let plan = FORWARD.get(&desc, stream.device().target())?;
    let empty = |layout: Layout| Tensor::empty_on(stream, desc.dtype, &layout.shape);
    let mut q_rotated = empty(desc.q_rotated)?;
    let mut k_rotated = desc.k_rotated.map(empty).transpose()?;
    let args = RotaryArgs {
        angles,
        q: Some(q),
        k,
        q_rotated: q_rotated.as_mut(),
        k_rotated: k_rotated.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(RotaryOutput { q: q_rotated, k: k_rotated })
}

/// [`rotary_embedding`] in place, with shapes and element types as for [`rotary_embedding`]. Queries and keys of one fused tensor may be one
/// `q`: a view of all of their heads.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::rotary::RotaryOptions;
/// use warpwright::{Device, Tensor, rotary_embedding_in_place};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// // A step of three heads: a query, a key, and a value, which is not rotated.
/// let mut qkv = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[1, 1, 3, 2])?;
/// let cos = Tensor::from_slice(&device, &[0.0f32], &[1, 1])?;
/// let sin = Tensor::from_slice(&device, &[1.0f32], &[1, 1])?;
/// let rotated = qkv.as_mut().narrow(2, 0, 2)?;
/// rotary_embedding_in_place(&stream, rotated, None, &cos, &sin, RotaryOptions::default())?;
/// assert_eq!(qkv.to_vec_on::<f32>(&stream)?, [-2.0, 1.0, -4.0, 3.0, 5.0, 6.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`rotary_embedding`]; [`Error::Plan`] if two elements of a tensor share a place, [`Error::Runtime`] if `q` and `k` overlap.
pub fn rotary_embedding_in_place<'a>(
    stream: &Stream,
    q: impl Into<TensorMut<'a>>,
    k: Option<TensorMut<'a>>,
    cos: impl Into<TensorRef<'a>>,
    sin: impl Into<TensorRef<'a>>,
    options: RotaryOptions<'a>,
) -> Result<(), Error> {
    let q = q.into();
    let (desc, angles) = describe_in_place(&q, k.as_ref(), [cos.into(), sin.into()], options)?;
    let plan = FORWARD.get(&desc, stream.device().target())?;
    Ok(plan.launch(stream, RotaryArgs { angles, q: None, k: None, q_rotated: q, k_rotated: k })?)
}

fn describe_in_place<'a>(
    q: &TensorMut<'_>,
    k: Option<&TensorMut<'_>>,
    tables: [TensorRef<'a>; 2],
    options: RotaryOptions<'a>,
) -> Result<(RotaryDesc, RotaryAngles<'a>), Error> {
    let (q, k) = (q.reading(), k.map(TensorMut::reading));
    let of_k = k.map(|k| layout("k", k)).transpose()?;
    describe([Some((q, Some(layout("q", q)?))), k.map(|k| (k, of_k))], tables, options)
}

/// The gradients of [`rotary_embedding`] from those of its results: the rotation back.
///
/// `dq_rotated` and `dk_rotated` are like the rotated queries and keys; tables and options are those of forward.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::rotary::RotaryOptions;
/// use warpwright::{Device, Tensor, rotary_embedding_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let dy = Tensor::from_slice(&device, &[-2.0f32, 1.0], &[1, 1, 1, 2])?;
/// let cos = Tensor::from_slice(&device, &[0.0f32], &[1, 1])?;
/// let sin = Tensor::from_slice(&device, &[1.0f32], &[1, 1])?;
/// let back = rotary_embedding_backward(&stream, &dy, None, &cos, &sin, RotaryOptions::default())?;
/// assert_eq!(back.dq.to_vec_on::<f32>(&stream)?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`rotary_embedding`].
pub fn rotary_embedding_backward<'a>(
    stream: &Stream,
    dq_rotated: impl Into<TensorRef<'a>>,
    dk_rotated: Option<TensorRef<'a>>,
    cos: impl Into<TensorRef<'a>>,
    sin: impl Into<TensorRef<'a>>,
    options: RotaryOptions<'a>,
) -> Result<RotaryGradients, Error> {
    let dq_rotated = dq_rotated.into();
    let tensors = [Some((&dq_rotated, None)), dk_rotated.as_ref().map(|dk| (dk, None))];
    let (given, angles) = describe(tensors, [cos.into(), sin.into()], options)?;
    // What is given is the gradient of the results, and what comes out is contiguous.
    let forward = RotaryDesc {
        q: given.q_rotated,
        k: given.k_rotated,
        q_rotated: given.q,
        k_rotated: given.k,
        ..given
    };
    let empty = |layout: Layout| Tensor::empty_on(stream, forward.dtype, &layout.shape);
    let mut dq = empty(forward.q)?;
    let mut dk = forward.k.map(empty).transpose()?;
    let plan = BACKWARD.get(&RotaryBackwardDesc { forward }, stream.device().target())?;
    let args = RotaryBackwardArgs {
        angles,
        dq_rotated: Some(dq_rotated),
        dk_rotated,
        dq: dq.as_mut(),
        dk: dk.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(RotaryGradients { dq, dk })
}

/// [`rotary_embedding_backward`] in place, with shapes and element types as for [`rotary_embedding`]: the gradients of the results become those
/// of queries and keys.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::rotary::RotaryOptions;
/// use warpwright::{Device, Tensor, rotary_embedding_backward_in_place};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let mut dq = Tensor::from_slice(&device, &[-2.0f32, 1.0], &[1, 1, 1, 2])?;
/// let cos = Tensor::from_slice(&device, &[0.0f32], &[1, 1])?;
/// let sin = Tensor::from_slice(&device, &[1.0f32], &[1, 1])?;
/// rotary_embedding_backward_in_place(&stream, &mut dq, None, &cos, &sin, RotaryOptions::default())?;
/// assert_eq!(dq.to_vec_on::<f32>(&stream)?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`rotary_embedding_in_place`].
pub fn rotary_embedding_backward_in_place<'a>(
    stream: &Stream,
    dq: impl Into<TensorMut<'a>>,
    dk: Option<TensorMut<'a>>,
    cos: impl Into<TensorRef<'a>>,
    sin: impl Into<TensorRef<'a>>,
    options: RotaryOptions<'a>,
) -> Result<(), Error> {
    let dq = dq.into();
    let (forward, angles) = describe_in_place(&dq, dk.as_ref(), [cos.into(), sin.into()], options)?;
    let plan = BACKWARD.get(&RotaryBackwardDesc { forward }, stream.device().target())?;
    let args = RotaryBackwardArgs { angles, dq_rotated: None, dk_rotated: None, dq, dk };
    Ok(plan.launch(stream, args)?)
}
