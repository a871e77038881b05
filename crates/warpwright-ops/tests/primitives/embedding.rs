//! Embeddings: free functions, results that are the same from run to run, and descriptors that are refused.

use warpwright_ops::embedding::{
    EmbeddingBackwardDesc, EmbeddingDesc, EmbeddingOptions, check_indices, embedding, embedding_backward,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};

const TARGET: Target = Target::sm(90);

fn desc() -> EmbeddingDesc {
    EmbeddingDesc { dtype: DType::BF16, index: DType::I32, num_embeddings: 10, dim: 8, count: 5 }
}

#[test]
fn descriptors_without_meaning_are_refused() {
    let backward = |forward: EmbeddingDesc, padding_idx: Option<usize>| {
        EmbeddingBackwardDesc { forward, padding_idx, scale_grad_by_freq: false }.plan(TARGET).map(drop)
    };
    let refused = |desc: EmbeddingDesc, name: &str| {
        for e in [desc.plan(TARGET).map(drop), backward(desc, None)] {
            let parameter = matches!(&e, Err(PlanError::Parameter { parameter, .. }) if *parameter == name);
            assert!(parameter, "{name}: {e:?}");
        }
    };
    refused(EmbeddingDesc { num_embeddings: 1 << 30, ..desc() }, "num_embeddings");
    refused(EmbeddingDesc { dim: 1 << 30, ..desc() }, "dim");
    refused(EmbeddingDesc { count: 1 << 30, ..desc() }, "count");
    let e = backward(desc(), Some(10));
    assert!(matches!(e, Err(PlanError::Parameter { parameter: "padding_idx", .. })), "{e:?}");
    let e = backward(EmbeddingDesc { num_embeddings: (1 << 30) - 1, dim: 1 << 20, ..desc() }, None);
    assert!(matches!(e, Err(PlanError::TooLarge { .. })), "{e:?}");
    let dtypes = [
        (EmbeddingDesc { dtype: DType::I32, ..desc() }, "weight"),
        (EmbeddingDesc { index: DType::U8, ..desc() }, "indices"),
    ];
    for (desc, name) in dtypes {
        let e = desc.plan(TARGET);
        assert!(matches!(&e, Err(PlanError::DType { tensor, .. }) if *tensor == name), "{e:?}");
    }
    assert!(check_indices(&[0, 9], 10).is_ok());
    let e = check_indices(&[0, -1], 10);
    assert!(matches!(&e, Err(PlanError::Parameter { got, .. }) if got == "-1 at 1"), "{e:?}");
}

#[test]
fn functions_take_indices_of_any_shape() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let weight: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let weight = Tensor::from_slice(&device, &weight, &[4, 3]).expect("memory");
    let indices = Tensor::from_slice(&device, &[3i32, 0, 4, 3], &[2, 2]).expect("memory");
    let y = embedding(&stream, &weight, &indices).expect("launch");
    assert_eq!(y.shape(), [2, 2, 3]);
    let y = y.to_vec::<f32>().expect("read");
    assert_eq!(y[..6], [9.0, 10.0, 11.0, 0.0, 1.0, 2.0]);
    assert!(y[6..9].iter().all(|y| y.is_nan()));

    let dy: Vec<f32> = (1..13).map(|i| i as f32).collect();
    let dy = Tensor::from_slice(&device, &dy, &[2, 2, 3]).expect("memory");
    let options = EmbeddingOptions { padding_idx: Some(0), scale_grad_by_freq: true };
    let dweight = embedding_backward(&stream, &dy, &indices, 4, options).expect("launch");
    let expected = [[0.0f32; 3], [0.0; 3], [0.0; 3], [5.5, 6.5, 7.5]].concat();
    assert_eq!(dweight.to_vec::<f32>().expect("read"), expected);

    let e = embedding(&stream, &dy, &indices);
    assert!(matches!(e, Err(Error::Plan(PlanError::Parameter { parameter: "weight", .. }))), "{e:?}");
    let e = embedding_backward(&stream, &weight, &indices, 4, EmbeddingOptions::default());
    assert!(e.is_ok(), "four rows for four indices: {e:?}");
    let few = Tensor::from_slice(&device, &[0i32], &[1]).expect("memory");
    let e = embedding_backward(&stream, &weight, &few, 4, EmbeddingOptions::default());
    assert!(matches!(e, Err(Error::Runtime(_))), "{e:?}");
}
