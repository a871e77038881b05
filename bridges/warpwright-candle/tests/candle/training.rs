//! The example learns.

use crate::common::device;

#[path = "../../examples/transformer.rs"]
#[allow(dead_code, reason = "the example's main is not called")]
mod transformer;

#[test]
fn a_transformer_learns_to_count() {
    let losses = transformer::train(&device(), 6).unwrap();
    let (first, last) = (losses[0], losses[5]);
    // Chance is ln 12, 2.5; after six steps it is 0.5.
    assert!(first > 1.5 && last < 1.2 && last < first / 2.0, "{losses:?}");
}
