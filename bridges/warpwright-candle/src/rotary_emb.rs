//! Rotary position embeddings, with the names and arguments of `candle_nn::rotary_emb`, whose fast functions have no gradient.

use candle_core::{Result, Tensor};
use warpwright::plan::PlanCache;
pub use warpwright::rotary::Pairing;
use warpwright::rotary::{
    RotaryAngles, RotaryArgs, RotaryBackwardArgs, RotaryBackwardDesc, RotaryDesc, RotaryTables,
};

use crate::call::{Call, only, present};
use crate::graph::record;
use crate::heads::{Heads, layout};

const OP: &str = "rotary_embedding";

fn rotate(xs: &Tensor, cos: &Tensor, sin: &Tensor, pairing: Pairing, heads: Heads) -> Result<Tensor> {
    static PLANS: PlanCache<RotaryDesc> = PlanCache::new();
    let call = Call::new(OP, ("xs", xs))?;
    let x = heads.read(&call, ("xs", xs))?;
    let q = layout(&x);
    let (y, q_rotated) = heads.spec(x.dtype, q.shape);
    let rotary_dim = q.shape[3];
    let (batch, rows) = match *cos.dims() {
        [rows, width] if width.checked_mul(2) == Some(rotary_dim) => (1, rows),
        [batch, rows, width] if width.checked_mul(2) == Some(rotary_dim) => (batch, rows),
        _ => {
            let expected = "[rows, head_dim / 2] or [batch, rows, head_dim / 2]";
            return Err(call.refuse_shape(("cos", cos), expected));
        }
    };
    let cosines = call.row_major(("cos", cos))?;
    let sines = call.expect(("sin", sin), cosines.dtype, &cosines.shape)?;
    let desc = RotaryDesc {
        dtype: x.dtype,
        q,
        k: None,
        q_rotated,
        k_rotated: None,
        pairing,
        rotary_dim,
        tables: RotaryTables { dtype: cosines.dtype, batch, rows, repeated: false },
        positions: None,
    };
    let plan = call.plan(&PLANS, &desc)?;
    let y = call.run([Some(&x), Some(&cosines), Some(&sines)], [Some(y)], |stream, [q, cos, sin], [y]| {
        let angles = RotaryAngles { cos: present(cos), sin: present(sin), positions: None };
        let args = RotaryArgs { angles, q, k: None, q_rotated: present(y), k_rotated: None };
        Ok(plan.launch(stream, args)?)
    })?;
    record(OP, &[("xs", xs), ("cos", cos), ("sin", sin)], only(y), move |_, dy| {
        static PLANS: PlanCache<RotaryBackwardDesc> = PlanCache::new();
        let call = Call::new(OP, ("dy", dy))?;
        let dy = heads.read(&call, ("dy", dy))?;
        let q_rotated = layout(&dy);
        let (dx, q) = heads.spec(dy.dtype, q_rotated.shape);
        let forward = RotaryDesc { q, q_rotated, ..desc.clone() };
        let plan = call.plan(&PLANS, &RotaryBackwardDesc { forward })?;
        let inputs = [Some(&dy), Some(&cosines), Some(&sines)];
        let dx = call.run(inputs, [Some(dx)], |stream, [dq_rotated, cos, sin], [dq]| {
            let angles = RotaryAngles { cos: present(cos), sin: present(sin), positions: None };
            let args = RotaryBackwardArgs { angles, dq_rotated, dk_rotated: None, dq: present(dq), dk: None };
            Ok(plan.launch(stream, args)?)
        })?;
        // Angles are no parameters: they have no gradients.
        Ok(vec![Some(only(dx).into_tensor()?), None, None])
    })
}

/// The rotation of `xs`, `[batch, heads, steps, head_dim]`, whose element `i` of a head makes a pair with element `i + head_dim / 2`, as
/// [`candle_nn::rotary_emb::rope`]: `cos` and `sin` are `[rows, head_dim / 2]` or `[batch, rows, head_dim / 2]`, with a row for each step,
/// of f32 or the element type of `xs`.
///
/// `xs` may have any strides, the last 1; candle's function takes contiguous tensors alone.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpwright_candle::rotary_emb::rope;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[[[1f32, 2.0]]]], &Device::Cpu)?;
/// // A quarter turn.
/// let (cos, sin) = (Tensor::new(&[[0f32]], &Device::Cpu)?, Tensor::new(&[[1f32]], &Device::Cpu)?);
/// assert_eq!(rope(&x, &cos, &sin)?.flatten_all()?.to_vec1::<f32>()?, [-2.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes, element types or devices do not fit. Angles have no gradients: it is an error to ask for one.
pub fn rope(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotate(xs, cos, sin, Pairing::Half, Heads::First)
}

/// [`rope`] of pairs of neighbours, as [`candle_nn::rotary_emb::rope_i`].
///
/// # Errors
/// As [`rope`].
pub fn rope_i(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotate(xs, cos, sin, Pairing::Interleaved, Heads::First)
}

/// [`rope`] of `[batch, steps, heads, head_dim]`, as [`candle_nn::rotary_emb::rope_thd`].
///
/// # Errors
/// As [`rope`].
pub fn rope_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotate(xs, cos, sin, Pairing::Half, Heads::AfterSteps)
}
