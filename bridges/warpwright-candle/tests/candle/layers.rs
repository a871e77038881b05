//! Layers in the place of candle's, with the same parameters.

use candle_core::{DType, Module, Result, Tensor, Var};
use candle_nn::{Conv1dConfig, Conv2dConfig, LayerNormConfig, VarBuilder, VarMap};

use crate::common::{close, device, normalised, numbers};

/// A tensor of the same elements that is not contiguous: candle's norms have gradients for those alone.
fn view(x: &Tensor) -> Result<Tensor> {
    x.t()?.contiguous()?.t()
}

/// Makes both layers from one map of variables and holds results and gradients of input and variables to each other, in f64.
fn same<A: Module, B: Module>(
    shape: &[usize],
    input: impl Fn(&Tensor) -> Result<Tensor>,
    ours: impl Fn(VarBuilder<'_>) -> Result<A>,
    theirs: impl Fn(VarBuilder<'_>) -> Result<B>,
) {
    let map = VarMap::new();
    let builder = || VarBuilder::from_varmap(&map, DType::F64, &device()).pp("layer");
    // Whoever comes first makes the variables, the other one must ask for the same.
    let ours = ours(builder()).unwrap();
    let mut names: Vec<String> = map.data().lock().unwrap().keys().cloned().collect();
    names.sort();
    let theirs = theirs(builder()).unwrap();
    assert_eq!(map.data().lock().unwrap().len(), names.len());
    for (i, name) in names.iter().enumerate() {
        let variable = map.data().lock().unwrap()[name].clone();
        variable.set(&numbers(variable.dims(), 50 + i as u64)).unwrap();
    }
    let x = Var::from_tensor(&numbers(shape, 49)).unwrap();
    let run = |layer: &dyn Module| {
        let y = layer.forward(&input(&x).unwrap()).unwrap();
        let gradients = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let of = |v: &Var| gradients.get(v).expect("a gradient").clone();
        let variables = map.data().lock().unwrap();
        let all: Vec<Tensor> = names.iter().map(|name| of(&variables[name])).chain([of(&x)]).collect();
        (y, all)
    };
    let ((y, got), (expected, wanted)) = (run(&ours), run(&theirs));
    close("result", &y, &expected, normalised(DType::F64));
    for (i, (got, expected)) in got.iter().zip(&wanted).enumerate() {
        close(&format!("gradient {i}"), got, expected, normalised(DType::F64));
    }
}

#[test]
fn norms() {
    use warpwright_candle as ours;
    same(&[3, 4, 8], view, |vb| ours::rms_norm(8, 1e-6, vb), |vb| candle_nn::rms_norm(8, 1e-6, vb));
    same(&[3, 4, 8], view, |vb| ours::layer_norm(8, 1e-6, vb), |vb| candle_nn::layer_norm(8, 1e-6, vb));
    same(
        &[3, 8],
        view,
        |vb| ours::layer_norm_no_bias(8, 1e-6, vb),
        |vb| candle_nn::layer_norm_no_bias(8, 1e-6, vb),
    );
    let config = LayerNormConfig { eps: 1e-3, remove_mean: false, affine: true };
    same(&[3, 8], view, |vb| ours::layer_norm(8, config, vb), |vb| candle_nn::layer_norm(8, config, vb));
    same(
        &[2, 6, 5, 4],
        view,
        |vb| ours::group_norm(3, 6, 1e-5, vb),
        |vb| candle_nn::group_norm(3, 6, 1e-5, vb),
    );
}

#[test]
fn products() {
    use warpwright_candle as ours;
    let whole = |x: &Tensor| Ok(x.clone());
    same(&[2, 3, 8], whole, |vb| ours::linear(8, 5, vb), |vb| candle_nn::linear(8, 5, vb));
    same(&[3, 8], whole, |vb| ours::linear_no_bias(8, 5, vb), |vb| candle_nn::linear_no_bias(8, 5, vb));
    let config = Conv2dConfig { padding: 1, stride: 1, dilation: 1, groups: 2, cudnn_fwd_algo: None };
    same(
        &[2, 4, 5, 6],
        whole,
        |vb| ours::conv2d(4, 6, 3, config, vb),
        |vb| candle_nn::conv2d(4, 6, 3, config, vb),
    );
    same(
        &[2, 4, 5, 6],
        whole,
        |vb| ours::conv2d_no_bias(4, 6, 3, config, vb),
        |vb| candle_nn::conv2d_no_bias(4, 6, 3, config, vb),
    );
    let config = Conv1dConfig { padding: 1, ..Conv1dConfig::default() };
    same(
        &[1, 4, 7],
        whole,
        |vb| ours::conv1d(4, 3, 3, config, vb),
        |vb| candle_nn::conv1d(4, 3, 3, config, vb),
    );
}

#[test]
fn group_norm_of_other_channels() {
    let layer = |channels, groups| {
        let (weight, bias) = (numbers(&[channels], 1), numbers(&[channels], 2));
        warpwright_candle::GroupNorm::new(weight, bias, channels, groups, 1e-5)
    };
    assert!(layer(6, 4).is_err());
    let error = layer(6, 3).unwrap().forward(&numbers(&[2, 4, 3], 3)).unwrap_err();
    assert!(error.to_string().contains("group_norm: xs is [2, 4, 3], must be [batch, 6, ..]"), "{error}");
}
