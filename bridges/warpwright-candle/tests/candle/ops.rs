//! Operations and their gradients.

use candle_core::{D, DType, Result, Tensor, Var};
use candle_nn::{Conv1dConfig, Conv2dConfig};
use warpwright_candle::loss::{self, CrossEntropyOptions, Reduction};
use warpwright_candle::ops::{self, AttentionOptions, ConvOptions, GatedActivation, Window};
use warpwright_candle::rotary_emb;

use crate::common::{
    attention, close, device, differentiate, elementwise, normalised, numbers, same, same_in,
};

/// [`same`] for a function whose gradient comes from its result: of 16 bits, from the result as it was rounded.
#[track_caller]
fn same_by_result(
    x: &Tensor,
    ours: impl Fn(&Tensor) -> Result<Tensor>,
    theirs: impl Fn(&Tensor) -> Result<Tensor>,
    gradient: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) {
    let dy = |y: &Tensor| numbers(y.dims(), 77);
    for dtype in [DType::F64, DType::F32] {
        same_in(dtype, std::slice::from_ref(x), normalised(dtype), |x| ours(&x[0]), |x| theirs(&x[0]));
    }
    for dtype in [DType::F16, DType::BF16] {
        let (y, dx) = differentiate(std::slice::from_ref(x), dtype, dy, |x| ours(&x[0]));
        close("result", &y, &theirs(x).unwrap(), normalised(dtype));
        let expected = gradient(&y.to_dtype(DType::F64).unwrap(), &dy(&y)).unwrap();
        close("gradient", &dx[0], &expected, normalised(dtype));
    }
}

#[test]
fn softmax_along_any_dimension() {
    for (shape, dim) in [(&[2, 5, 7][..], 0), (&[2, 5, 7], 1), (&[2, 5, 7], 2), (&[3, 40], 1)] {
        let x = (numbers(shape, 1) * 4.0).unwrap();
        let of_softmax = |y: &Tensor, dy: &Tensor| y * dy.broadcast_sub(&(y * dy)?.sum_keepdim(dim)?)?;
        let of_log = |y: &Tensor, dy: &Tensor| dy - y.exp()?.broadcast_mul(&dy.sum_keepdim(dim)?)?;
        same_by_result(&x, |x| ops::softmax(x, dim), |x| candle_nn::ops::softmax(x, dim), of_softmax);
        same_by_result(&x, |x| ops::log_softmax(x, dim), |x| candle_nn::ops::log_softmax(x, dim), of_log);
        if dim + 1 == shape.len() {
            same_by_result(&x, ops::softmax_last_dim, |x| candle_nn::ops::softmax(x, D::Minus1), of_softmax);
            same_by_result(
                &x,
                ops::log_softmax_last_dim,
                |x| candle_nn::ops::log_softmax(x, D::Minus1),
                of_log,
            );
        }
    }
}

/// candle differentiates its own with constants of six digits.
fn gelu_erf(x: &Tensor) -> Result<Tensor> {
    (((x / 2f64.sqrt())?.erf()? + 1.0)? * x)? / 2.0
}

fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    let inner = (x + (x.powf(3.0)? * 0.044715)?)?;
    (((inner * (2.0 / std::f64::consts::PI).sqrt())?.tanh()? + 1.0)? * x)? / 2.0
}

#[test]
fn tensors_with_strides_and_offsets() {
    let x = [numbers(&[6, 5, 4], 3)];
    let view = |x: &Tensor| x.transpose(0, 2)?.narrow(1, 1, 3);
    for dtype in [DType::F64, DType::F32] {
        let theirs = |x: &[Tensor]| candle_nn::ops::softmax(&view(&x[0])?, 2);
        same_in(dtype, &x, normalised(dtype), |x| ops::softmax(&view(&x[0])?, 2), theirs);
    }
    same(&x, elementwise, |x| ops::silu(&view(&x[0])?), |x| view(&x[0])?.silu());
    let broadcast = |x: &Tensor| x.narrow(0, 0, 1)?.broadcast_as((3, 5, 4));
    same(&x, elementwise, |x| ops::gelu_erf(&broadcast(&x[0])?), |x| gelu_erf(&broadcast(&x[0])?));
}

#[test]
fn layer_norm_and_rms_norm() {
    let inputs = [numbers(&[3, 4, 24], 4), numbers(&[24], 5), numbers(&[24], 6)];
    let eps = 1e-5;
    same(
        &inputs,
        normalised,
        |x| ops::layer_norm(&x[0], &x[1], &x[2], eps),
        |x| candle_nn::ops::layer_norm_slow(&x[0], &x[1], &x[2], eps),
    );
    let none = |x: &[Tensor]| candle_nn::ops::layer_norm_slow(&x[0], &x[1], &x[1].zeros_like()?, eps);
    same(&inputs[..2], normalised, |x| ops::layer_norm_no_bias(&x[0], &x[1], eps), none);
    same(
        &inputs[..2],
        normalised,
        |x| ops::rms_norm(&x[0], &x[1], eps),
        |x| candle_nn::ops::rms_norm_slow(&x[0], &x[1], eps),
    );
}

/// The norm of a sum, and the sum, of which the one, the other or both go on.
#[test]
fn norms_of_sums() {
    let inputs = [numbers(&[3, 4, 24], 4), numbers(&[3, 4, 24], 43), numbers(&[24], 5), numbers(&[24], 6)];
    let eps = 1e-5;
    let nothing = inputs[2].zeros_like().unwrap();
    for (of_y, of_sum) in [(1.0, 0.0), (0.0, 1.0), (1.0, -2.0)] {
        let both = |(y, sum): (Tensor, Tensor)| match (of_y, of_sum) {
            (_, 0.0) => Ok(y),
            (0.0, _) => Ok(sum),
            _ => y + (sum * of_sum)?,
        };
        for dtype in [DType::F64, DType::F32] {
            let theirs = |x: &[Tensor]| {
                let sum = (&x[0] + &x[1])?;
                let zero = (&x[2] * &nothing)?.sum_all()?;
                both((candle_nn::ops::rms_norm_slow(&sum, &x[2], eps)?, sum.broadcast_add(&zero)?))
            };
            let ours = |x: &[Tensor]| both(ops::add_rms_norm(&x[0], &x[1], &x[2], eps)?);
            same_in(dtype, &inputs[..3], normalised(dtype), ours, theirs);
            let theirs = |x: &[Tensor]| {
                let sum = (&x[0] + &x[1])?;
                let zero = ((&x[2] + &x[3])? * &nothing)?.sum_all()?;
                both((candle_nn::ops::layer_norm_slow(&sum, &x[2], &x[3], eps)?, sum.broadcast_add(&zero)?))
            };
            let ours = |x: &[Tensor]| both(ops::add_layer_norm(&x[0], &x[1], &x[2], &x[3], eps)?);
            same_in(dtype, &inputs, normalised(dtype), ours, theirs);
        }
    }
}

/// Without parameters that candle tracks, their gradients are not asked for.
#[test]
fn gradients_of_inputs_alone() {
    let (weight, bias) = (numbers(&[24], 5), numbers(&[24], 6));
    let to = |x: &Tensor, like: &Tensor| x.to_dtype(like.dtype());
    same(
        &[numbers(&[3, 24], 4)],
        normalised,
        |x| ops::layer_norm(&x[0], &to(&weight, &x[0])?, &to(&bias, &x[0])?, 1e-5),
        |x| candle_nn::ops::layer_norm_slow(&x[0], &weight, &bias, 1e-5),
    );
}

#[test]
fn group_norm() {
    use candle_core::Module;
    let inputs = [numbers(&[2, 6, 5, 3], 7), numbers(&[6], 8), numbers(&[6], 9)];
    same(
        &inputs,
        normalised,
        |x| ops::group_norm(&x[0], 3, Some(&x[1]), Some(&x[2]), 1e-5),
        |x| candle_nn::GroupNorm::new(x[1].clone(), x[2].clone(), 6, 3, 1e-5)?.forward(&x[0]),
    );
}

#[test]
fn activations() {
    let x = [(numbers(&[5, 33], 10) * 4.0).unwrap()];
    same(&x, elementwise, |x| ops::gelu(&x[0]), |x| gelu_tanh(&x[0]));
    same(&x, elementwise, |x| ops::gelu_erf(&x[0]), |x| gelu_erf(&x[0]));
    // candle's slopes at 0 are others.
    let beside = [(&x[0] + 1.0 / 256.0).unwrap()];
    for dtype in [DType::F32, DType::F64] {
        let budget = elementwise(dtype);
        same_in(dtype, &beside, budget, |x| ops::relu(&x[0]), |x| x[0].relu());
        let theirs = |x: &[Tensor]| candle_nn::ops::leaky_relu(&x[0], 0.25);
        same_in(dtype, &beside, budget, |x| ops::leaky_relu(&x[0], 0.25), theirs);
    }
    same(&x, elementwise, |x| ops::sigmoid(&x[0]), |x| candle_nn::ops::sigmoid(&x[0]));
    same(&x, elementwise, |x| ops::silu(&x[0]), |x| x[0].silu());
    same(&x, elementwise, |x| ops::tanh(&x[0]), |x| x[0].tanh());
    same(
        &x,
        elementwise,
        |x| ops::softplus(&x[0], 2.0),
        |x| (x[0].affine(2.0, 0.0)?.exp()? + 1.0)?.log()? / 2.0,
    );
}

#[test]
fn gated_activations() {
    let x = [numbers(&[4, 20], 11), numbers(&[4, 20], 12)];
    same(&x, elementwise, |x| ops::gate(GatedActivation::Swiglu, &x[0], &x[1]), |x| x[0].silu()? * &x[1]);
    same(&x[..1], elementwise, |x| ops::swiglu(&x[0]), |x| candle_nn::ops::swiglu(&x[0]));
    let halves = |x: &Tensor| Ok::<_, candle_core::Error>((x.narrow(1, 0, 10)?, x.narrow(1, 10, 10)?));
    let geglu = |x: &[Tensor]| halves(&x[0]).and_then(|(gate, up)| gelu_erf(&gate)? * up);
    same(&x[..1], elementwise, |x| ops::geglu(&x[0]), geglu);
    let geglu_tanh = |x: &[Tensor]| halves(&x[0]).and_then(|(gate, up)| gelu_tanh(&gate)? * up);
    same(&x[..1], elementwise, |x| ops::geglu_tanh(&x[0]), geglu_tanh);
}

#[test]
fn linear_layers() {
    let inputs = [numbers(&[2, 3, 16], 13), numbers(&[24, 16], 14), numbers(&[24], 15)];
    let theirs = |x: &[Tensor]| {
        let flat = x[0].flatten_to(1)?;
        flat.matmul(&x[1].t()?)?.broadcast_add(&x[2])?.reshape((2, 3, 24))
    };
    same(&inputs, normalised, |x| ops::linear(&x[0], &x[1], Some(&x[2])), theirs);
    let theirs = |x: &[Tensor]| x[0].flatten_to(1)?.matmul(&x[1].t()?)?.reshape((2, 3, 24));
    same(&inputs[..2], normalised, |x| ops::linear(&x[0], &x[1], None), theirs);
}

#[test]
fn convolutions() {
    let config = Conv2dConfig { padding: 1, stride: 2, dilation: 1, groups: 2, cudnn_fwd_algo: None };
    let inputs = [numbers(&[2, 4, 6, 6], 16), numbers(&[6, 2, 3, 3], 17), numbers(&[6], 18)];
    let theirs = |x: &[Tensor]| x[0].conv2d(&x[1], 1, 2, 1, 2)?.broadcast_add(&x[2].reshape((1, 6, 1, 1))?);
    same(&inputs, normalised, |x| ops::conv2d(&x[0], &x[1], Some(&x[2]), &config), theirs);
    let config = Conv1dConfig { padding: 2, stride: 1, dilation: 2, groups: 1, cudnn_fwd_algo: None };
    let inputs = [numbers(&[2, 3, 9], 19), numbers(&[4, 3, 3], 20)];
    // By two dimensions: candle's gradient of the weight is wrong in one.
    let theirs = |x: &[Tensor]| {
        let padded = x[0].pad_with_zeros(2, 2, 2)?.unsqueeze(2)?;
        padded.conv2d(&x[1].unsqueeze(2)?, 0, 1, 2, 1)?.squeeze(2)
    };
    same(&inputs, normalised, |x| ops::conv1d(&x[0], &x[1], None, &config), theirs);
    // A number for each dimension.
    let inputs = [numbers(&[1, 2, 5, 7], 21), numbers(&[3, 2, 3, 1], 22)];
    let options = ConvOptions { padding: &[1, 0], ..ConvOptions::default() };
    let theirs = |x: &[Tensor]| x[0].pad_with_zeros(2, 1, 1)?.conv2d(&x[1], 0, 1, 1, 1);
    same_in(DType::F32, &inputs, normalised(DType::F32), |x| ops::conv(&x[0], &x[1], None, options), theirs);
}

fn angles(rows: usize, pairs: usize) -> [Tensor; 2] {
    let angles = (numbers(&[rows, pairs], 23) * 3.0).unwrap();
    [angles.cos().unwrap(), angles.sin().unwrap()]
}

#[test]
fn rotary_embeddings() {
    let x = [numbers(&[2, 3, 5, 8], 24)];
    let [cos, sin] = angles(7, 4);
    let to = |x: &Tensor, table: &Tensor| {
        table.to_dtype(if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 })
    };
    same(
        &x,
        elementwise,
        |x| rotary_emb::rope(&x[0], &to(&x[0], &cos)?, &to(&x[0], &sin)?),
        |x| candle_nn::rotary_emb::rope_slow(&x[0], &cos, &sin),
    );
    same(
        &x,
        elementwise,
        |x| rotary_emb::rope_i(&x[0], &to(&x[0], &cos)?, &to(&x[0], &sin)?),
        |x| candle_nn::rotary_emb::rope_i_slow(&x[0], &cos, &sin),
    );
    // Steps before heads, as rows that lie apart.
    same(
        &x,
        elementwise,
        |x| rotary_emb::rope_thd(&x[0].transpose(1, 2)?, &to(&x[0], &cos)?, &to(&x[0], &sin)?),
        |x| candle_nn::rotary_emb::rope_slow(&x[0], &cos, &sin)?.transpose(1, 2),
    );
    // A table for each sequence.
    let tables = |table: &Tensor| Tensor::stack(&[table, &table.neg()?], 0)?.narrow(1, 0, 5);
    let [cosines, sines] = [tables(&cos).unwrap(), tables(&sin).unwrap()];
    let each = |x: &[Tensor]| {
        let of = |i: usize| {
            let table = |tables: &Tensor| tables.narrow(0, i, 1)?.squeeze(0);
            candle_nn::rotary_emb::rope_slow(&x[0].narrow(0, i, 1)?, &table(&cosines)?, &table(&sines)?)
        };
        Tensor::cat(&[of(0)?, of(1)?], 0)
    };
    same_in(DType::F64, &x, elementwise(DType::F64), |x| rotary_emb::rope(&x[0], &cosines, &sines), each);
}

/// Attention in candle's operations, on `[batch, heads, steps, head_dim]`.
fn attend(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    scale: f64,
    change: impl Fn(Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let group = q.dim(1)? / k.dim(1)?;
    let repeat = |x: &Tensor| {
        let (b, h, s, d) = x.dims4()?;
        x.unsqueeze(2)?.broadcast_as((b, h, group, s, d))?.reshape((b, h * group, s, d))
    };
    let scores = (q.matmul(&repeat(k)?.t()?)? * scale)?;
    candle_nn::ops::softmax(&change(scores)?, D::Minus1)?.matmul(&repeat(v)?)
}

/// Minus infinity where a query does not see a key.
fn mask(queries: usize, keys: usize, sees: impl Fn(usize, usize) -> bool) -> Tensor {
    let at = |i: usize| if sees(i / keys, i % keys) { 0.0 } else { f64::NEG_INFINITY };
    Tensor::from_vec((0..queries * keys).map(at).collect::<Vec<f64>>(), (queries, keys), &device()).unwrap()
}

fn queries_keys_values() -> [Tensor; 3] {
    [numbers(&[2, 4, 20, 16], 30), numbers(&[2, 2, 24, 16], 31), numbers(&[2, 2, 24, 16], 32)]
}

#[test]
fn causal_attention_of_grouped_heads() {
    let seen = mask(20, 24, |i, j| j <= i + 4);
    let theirs = |x: &[Tensor]| attend(&x[0], &x[1], &x[2], 0.25, |s| s.broadcast_add(&seen));
    let inputs = queries_keys_values();
    same(&inputs, attention, |x| ops::sdpa(&x[0], &x[1], &x[2], None, true, 0.25, 1.0), theirs);
    // The same tensors with steps first, once as transposed views and once contiguous.
    let flash = |x: &[Tensor]| {
        let [q, k, v] = [x[0].transpose(1, 2)?, x[1].transpose(1, 2)?, x[2].transpose(1, 2)?];
        ops::flash_attn(&q, &k, &v.contiguous()?, 0.25, true)?.transpose(1, 2)
    };
    same_in(DType::F32, &inputs, attention(DType::F32), flash, theirs);
}

#[test]
fn attention_with_window_and_softcap() {
    let seen = mask(20, 24, |i, j| j <= i + 4 && i + 4 - j.min(i + 4) <= 6);
    let theirs = |x: &[Tensor]| {
        let capped = |s: Tensor| ((s / 2.0)?.tanh()? * 2.0)?.broadcast_add(&seen);
        attend(&x[0], &x[1], &x[2], 0.5, capped)
    };
    let options = AttentionOptions {
        heads_first: true,
        softmax_scale: Some(0.5),
        causal: true,
        window: Window { left: Some(6), right: None },
        softcap: Some(2.0),
        ..AttentionOptions::default()
    };
    same(&queries_keys_values(), attention, |x| ops::attention(&x[0], &x[1], &x[2], options), theirs);
}

/// Five inputs with gradients, two more than a custom operation of candle has places for.
#[test]
fn attention_with_bias_sinks_and_key_lengths() {
    let [q, k, v] = queries_keys_values();
    let lengths = Tensor::new(&[24u32, 9], &device()).unwrap();
    let inputs = [q, k, v, numbers(&[1, 4, 20, 24], 33), numbers(&[4], 34)];
    let theirs = |x: &[Tensor]| {
        let seen =
            Tensor::stack(&[mask(20, 24, |_, _| true), mask(20, 24, |_, j| j < 9)], 0)?.unsqueeze(1)?;
        let (q, k, v) = (&x[0], &x[1], &x[2]);
        let repeat = |x: &Tensor| x.unsqueeze(2)?.broadcast_as((2, 2, 2, 24, 16))?.reshape((2, 4, 24, 16));
        let scores = (q.matmul(&repeat(k)?.t()?)? * 0.25)?.broadcast_add(&x[3])?.broadcast_add(&seen)?;
        let sinks = x[4].reshape((1, 4, 1, 1))?.broadcast_as((2, 4, 20, 1))?;
        let all = candle_nn::ops::softmax(&Tensor::cat(&[&scores, &sinks], 3)?, 3)?;
        all.narrow(3, 0, 24)?.contiguous()?.matmul(&repeat(v)?)
    };
    let ours = |x: &[Tensor]| {
        let sinks = x[4].to_dtype(DType::F32)?;
        let options = AttentionOptions {
            heads_first: true,
            bias: Some(&x[3]),
            sinks: Some(&sinks),
            key_lengths: Some(&lengths),
            ..AttentionOptions::default()
        };
        ops::attention(&x[0], &x[1], &x[2], options)
    };
    for dtype in [DType::F32, DType::BF16] {
        same_in(dtype, &inputs, attention(dtype), ours, theirs);
    }
}

#[test]
fn queries_keys_and_values_of_one_tensor() {
    let parts = |x: &Tensor| -> Result<[Tensor; 3]> {
        Ok([x.narrow(2, 0, 2)?, x.narrow(2, 2, 2)?, x.narrow(2, 4, 2)?])
    };
    let ours = |x: &[Tensor]| {
        let [q, k, v] = parts(&x[0])?;
        ops::flash_attn(&q, &k, &v, 0.5, false)
    };
    let theirs = |x: &[Tensor]| {
        let [q, k, v] = parts(&x[0])?;
        let heads = |x: Tensor| x.transpose(1, 2)?.contiguous();
        attend(&heads(q)?, &heads(k)?, &heads(v)?, 0.5, Ok)?.transpose(1, 2)
    };
    same(&[numbers(&[2, 7, 6, 8], 35)], attention, ours, theirs);
}

#[test]
fn attention_by_distance() {
    let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 1.0], &device()).unwrap();
    let options =
        AttentionOptions { heads_first: true, alibi_slopes: Some(&slopes), ..AttentionOptions::default() };
    let distances: Vec<f64> =
        (0..20 * 24).map(|i| (i as f64 / 24.0).floor() + 4.0 - (i % 24) as f64).map(f64::abs).collect();
    let distances = Tensor::from_vec(distances, (20, 24), &device()).unwrap();
    let bias = slopes
        .to_dtype(DType::F64)
        .unwrap()
        .reshape((1, 4, 1, 1))
        .unwrap()
        .broadcast_mul(&distances)
        .unwrap();
    let theirs = |x: &[Tensor]| attend(&x[0], &x[1], &x[2], 0.25, |s| s.broadcast_sub(&bias));
    let inputs = queries_keys_values();
    same_in(
        DType::F64,
        &inputs,
        attention(DType::F64),
        |x| ops::attention(&x[0], &x[1], &x[2], options),
        theirs,
    );
}

#[test]
fn cross_entropy() {
    let targets = [3u32, 0, 6, 2, 2];
    let target = Tensor::new(&targets, &device()).unwrap();
    let x = [(numbers(&[5, 7], 40) * 4.0).unwrap()];
    let theirs = |x: &[Tensor]| candle_nn::loss::cross_entropy(&x[0], &target);
    same(&x, normalised, |x| loss::cross_entropy(&x[0], &target), theirs);
    // candle's GPUs have no conversion to i32.
    let (long, short) = (targets.map(i64::from), targets.map(|t| t as i32));
    for target in [Tensor::new(&long, &device()).unwrap(), Tensor::new(&short, &device()).unwrap()] {
        same_in(DType::F32, &x, normalised(DType::F32), |x| loss::cross_entropy(&x[0], &target), theirs);
    }
}

#[test]
fn cross_entropy_with_ignored_rows_and_smoothing() {
    let x = [(numbers(&[3, 7], 41) * 4.0).unwrap()];
    let target = Tensor::new(&[3i64, -100, 6], &device()).unwrap();
    let options =
        CrossEntropyOptions { reduction: Reduction::None, label_smoothing: 0.1, ..Default::default() };
    let theirs = |x: &[Tensor]| {
        let logs = candle_nn::ops::log_softmax(&x[0], 1)?;
        let classes = Tensor::new(&[[3u32], [0], [6]], &device())?;
        let counts = Tensor::new(&[1f64, 0.0, 1.0], &device())?;
        let smooth = (logs.mean(1)? * 0.1)?;
        ((logs.gather(&classes, 1)?.squeeze(1)? * 0.9)? + smooth)?.neg()? * counts
    };
    same(&x, normalised, |x| loss::cross_entropy_with(&x[0], &target, options), theirs);
}

#[test]
fn cross_entropy_in_f32_of_half_types() {
    let x = Var::from_tensor(&(numbers(&[5, 7], 44) * 4.0).unwrap().to_dtype(DType::BF16).unwrap()).unwrap();
    let target = Tensor::new(&[3u32, 0, 6, 2, 2], &device()).unwrap();
    let options = CrossEntropyOptions { loss: Some(loss::DType::F32), ..Default::default() };
    let loss = loss::cross_entropy_with(&x, &target, options).unwrap();
    let wide = x.to_dtype(DType::F64).unwrap();
    let expected = candle_nn::loss::cross_entropy(&wide, &target).unwrap();
    close("loss", &loss, &expected, normalised(DType::F32));
    let gradients = (loss.backward().unwrap(), expected.backward().unwrap());
    let [got, expected] = [gradients.0.get(&x), gradients.1.get(&x)].map(|dx| dx.unwrap().clone());
    close("gradient", &got, &expected, normalised(DType::BF16));
}

/// Results without rows, and of one element.
#[test]
fn tensors_of_nothing_and_of_one() {
    let nothing = Tensor::zeros((0, 8), DType::F32, &device()).unwrap();
    assert_eq!(ops::softmax_last_dim(&nothing).unwrap().dims(), [0, 8]);
    assert_eq!(ops::silu(&nothing).unwrap().dims(), [0, 8]);
    let one = Tensor::new(0f32, &device()).unwrap();
    assert_eq!(ops::sigmoid(&one).unwrap().to_scalar::<f32>().unwrap(), 0.5);
}

/// The gradient of one result in two places, and results without a graph.
#[test]
fn results_that_are_used_twice() {
    let f = |x: &Tensor| -> Result<Tensor> {
        let y = ops::softmax_last_dim(x)?;
        &y * ops::gelu(&y)?
    };
    let g = |x: &Tensor| -> Result<Tensor> {
        let y = candle_nn::ops::softmax(x, 1)?;
        &y * gelu_tanh(&y)?
    };
    let x = [numbers(&[3, 10], 42)];
    for dtype in [DType::F64, DType::F32] {
        same_in(dtype, &x, normalised(dtype), |x| f(&x[0]), |x| g(&x[0]));
    }
    let inference = f(&x[0].to_dtype(DType::F32).unwrap()).unwrap();
    assert!(!inference.track_op());
    let (tracked, _) = differentiate(&x, DType::F32, Tensor::clone, |x| f(&x[0]));
    assert!(tracked.track_op());
    close("inference", &inference, &tracked, elementwise(DType::F32));
}
