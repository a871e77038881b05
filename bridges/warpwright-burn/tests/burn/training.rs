//! The example learns, and as it does with burn's own layers.

use burn::tensor::Device;

#[path = "../../examples/transformer.rs"]
#[allow(dead_code, reason = "the example's main is not called")]
mod transformer;

use transformer::{Layers, Model, train};

#[test]
fn a_transformer_learns_as_with_layers_of_burn() {
    let device = Device::flex().autodiff();
    let model = Model::new(&device);
    let ours = train(model.clone(), Layers::Ours, &device, 6).unwrap();
    let burns = train(model, Layers::Burns, &device, 6).unwrap();
    for (ours, burns) in ours.iter().zip(&burns) {
        assert!((ours - burns).abs() < 1e-3 * burns, "{ours} with these layers, {burns} with burn's");
    }
    let (first, last) = (ours[0], ours[5]);
    assert!(last < first * 0.8, "{ours:?}");
}
