//! Errors name the operation, the argument, what was expected and what came, also as data.

use candle_core::{DType, Tensor, Var};
use warpwright_candle::ops::{self, AttentionOptions};
use warpwright_candle::rnn::{Cell, RecurrentOptions, Weights, recurrent};
use warpwright_candle::{Error, loss, rotary_emb};

use crate::common::{device, numbers};

fn f32s(shape: &[usize]) -> Tensor {
    numbers(shape, 3).to_dtype(DType::F32).unwrap()
}

#[track_caller]
fn said(result: candle_core::Result<Tensor>, message: &str) {
    let error = result.unwrap_err();
    let ours = Error::of(&error).unwrap_or_else(|| panic!("not one of ours: {error}"));
    assert_eq!(ours.to_string(), message);
    assert!(error.to_string().contains(message), "candle shows {error}");
}

#[test]
fn shapes() {
    let x = f32s(&[2, 4]);
    said(ops::rms_norm(&x, &f32s(&[3]), 1e-5), "rms_norm: alpha is [3], must be [4]");
    said(ops::layer_norm(&x, &f32s(&[4]), &f32s(&[1, 4]), 1e-5), "layer_norm: beta is [1, 4], must be [4]");
    said(
        ops::group_norm(&f32s(&[4]), 1, None, None, 1e-5),
        "group_norm: xs is [4], must be [batch, channels, ..]",
    );
    said(ops::linear(&x, &f32s(&[4, 3]), None), "linear: weight is [4, 3], must be [4, 4]");
    said(ops::swiglu(&f32s(&[2, 3])), "swiglu: xs is [2, 3], must be [.., 2 n]");
    said(
        ops::attention(&x, &x, &x, AttentionOptions::default()),
        "attention: q is [2, 4], must be [batch, steps, heads, head_dim]",
    );
    let nothing = Tensor::new(1f32, &device()).unwrap();
    said(ops::swiglu(&nothing), "swiglu: xs is [], must be [.., 2 n]");
    said(ops::linear(&nothing, &x, None), "linear: xs is [], must be [.., k]");
    let q = f32s(&[1, 2, 1, 8]);
    let options = AttentionOptions { bias: Some(&nothing), ..AttentionOptions::default() };
    said(
        ops::attention(&q, &q, &q, options),
        "attention: bias is [], must be [batch, heads, queries, keys], of which each may be 1",
    );
    let weights = [Weights::new(&x, &x)];
    let rnn = recurrent(Cell::RnnTanh, &nothing, &weights, RecurrentOptions::default());
    said(rnn.map(|out| out.y), "rnn: xs is [], must be [batch, steps, input]");
    let (x, table) = (f32s(&[1, 2, 3, 8]), f32s(&[3, 8]));
    said(
        rotary_emb::rope(&x, &table, &table),
        "rotary_embedding: cos is [3, 8], must be [rows, head_dim / 2] or [batch, rows, head_dim / 2]",
    );
    said(
        ops::conv2d(&x, &f32s(&[4, 3, 1, 1]), None, &candle_nn::Conv2dConfig::default()),
        "conv: weight is [4, 3, 1, 1], must be [filters, 2 / 1, ..] of 4 dimensions",
    );
    let target = Tensor::new(&[1u32], &device()).unwrap();
    said(loss::cross_entropy(&f32s(&[2, 4]), &target), "cross_entropy: target is [1], must be [2]");
    let (w_ih, w_hh) = (f32s(&[8, 3]), f32s(&[8, 2]));
    let lstm =
        recurrent(Cell::Lstm, &f32s(&[1, 5, 4]), &[Weights::new(&w_ih, &w_hh)], RecurrentOptions::default());
    said(lstm.map(|out| out.y), "lstm: w_ih is [8, 3], must be [8, 4]");
}

#[test]
fn element_types() {
    let x = f32s(&[2, 4]);
    let half = x.narrow(0, 0, 1).unwrap().squeeze(0).unwrap().to_dtype(DType::F16).unwrap();
    said(ops::rms_norm(&x, &half, 1e-5), "rms_norm: alpha is F16, must be F32");
    let integers = Tensor::zeros((2, 4), DType::I64, &device()).unwrap();
    said(ops::softmax_last_dim(&integers), "softmax: x cannot be i64; supported are f32, f64, f16, bf16");
    said(
        loss::cross_entropy(&x, &x.narrow(1, 0, 1).unwrap().squeeze(1).unwrap()),
        "cross_entropy: target is F32, must be U32 or I32 or I64",
    );
    let eight = Tensor::zeros(4, DType::F8E4M3, &device()).unwrap();
    said(ops::silu(&eight), "silu: xs is F8E4M3, must be F32 or F64 or F16 or BF16");
}

#[test]
fn options_out_of_range() {
    let x = f32s(&[1, 2, 1, 8]);
    let options = AttentionOptions { softcap: Some(-1.0), ..AttentionOptions::default() };
    let error = ops::attention(&x, &x, &x, options).unwrap_err();
    let Some(Error::Operation(inner)) = Error::of(&error) else { panic!("{error}") };
    assert!(matches!(inner, warpwright::Error::Plan(_)), "{inner}");
    assert!(inner.to_string().starts_with("attention: softcap is"), "{inner}");
    let error = ops::group_norm(&f32s(&[1, 4, 2]), 3, None, None, 1e-5).unwrap_err();
    assert!(error.to_string().contains("group_norm: groups is 3"), "{error}");
    let error = ops::layer_norm(&f32s(&[1, 4]), &f32s(&[4]), &f32s(&[4]), -1.0).unwrap_err();
    assert!(error.to_string().contains("layer_norm: eps is"), "{error}");
}

/// candle goes on with what has no gradient as if it were constant, or stops the program; this is an error.
#[test]
fn gradients_that_do_not_exist() {
    let x = Var::from_tensor(&f32s(&[1, 2, 3, 8])).unwrap();
    let cos = Var::from_tensor(&f32s(&[3, 4])).unwrap();
    let y = rotary_emb::rope(&x, &cos, &cos.detach()).unwrap();
    let error = y.sum_all().unwrap().backward().unwrap_err();
    let Some(Error::NoGradient { op, argument }) = Error::of(&error) else { panic!("{error}") };
    assert_eq!((*op, *argument), ("rotary_embedding", "cos"));
    // Detached it is a constant.
    let y = rotary_emb::rope(&x, &cos.detach(), &cos.detach()).unwrap();
    assert!(y.sum_all().unwrap().backward().unwrap().get(&x).is_some());
}

#[test]
fn errors_with_context() {
    use candle_core::Context;
    let x = f32s(&[2, 4]);
    let error = ops::rms_norm(&x, &f32s(&[3]), 1e-5).context("block 7").unwrap_err();
    assert!(matches!(Error::of(&error), Some(Error::Shape { argument: "alpha", .. })), "{error}");
    let theirs = x.narrow(0, 5, 1).unwrap_err();
    assert!(Error::of(&theirs).is_none());
}
