//! The causal convolution along time: free functions, plans that are refused, and steps that make a whole.

use warpwright_ops::causal_conv1d::{
    CausalConv1d, CausalConv1dBackwardDesc, CausalConv1dDesc, CausalConv1dOptions, CausalConv1dUpdateDesc,
    CausalConv1dUpdateOptions, Layout, causal_conv1d, causal_conv1d_backward, causal_conv1d_update,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};
use warpwright_testkit::inputs::Input;

const TARGET: Target = Target::sm(90);

fn conv(layout: Layout, [batch, channels, len]: [usize; 3]) -> CausalConv1d {
    CausalConv1d { dtype: DType::F32, layout, batch, channels, len, width: 4, bias: true, silu: true }
}

fn plain(conv: CausalConv1d) -> CausalConv1dDesc {
    CausalConv1dDesc {
        conv,
        initial_states: false,
        final_states: false,
        sequences: false,
        position_stride: None,
    }
}

fn floats(device: &Device, values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(device, values, shape).expect("memory")
}

fn random(device: &Device, salt: u64, shape: &[usize]) -> Tensor {
    let values = Input::Normal.values(shape.iter().product(), salt);
    floats(device, &values.iter().map(|v| *v as f32).collect::<Vec<_>>(), shape)
}

#[test]
fn descriptors_without_meaning_are_refused() {
    let good = conv(Layout::ChannelsLast, [2, 8, 16]);
    let refused = |desc: CausalConv1dDesc, name: &str| {
        let forward = desc.plan(TARGET).map(drop);
        let backward = CausalConv1dBackwardDesc { forward: desc }.plan(TARGET).map(drop);
        for e in [forward, backward] {
            let parameter = matches!(&e, Err(PlanError::Parameter { parameter, .. }) if *parameter == name);
            assert!(parameter, "{name}: {e:?}");
        }
    };
    for width in [0, 1, 5] {
        refused(plain(CausalConv1d { width, ..good }), "width");
    }
    refused(plain(CausalConv1d { channels: 1 << 20, len: 1 << 12, ..good }), "channels");
    refused(plain(CausalConv1d { channels: usize::MAX, ..good }), "channels");
    refused(plain(CausalConv1d { batch: 1 << 60, ..good }), "batch");
    let states = CausalConv1dDesc { initial_states: true, ..plain(good) };
    refused(CausalConv1dDesc { sequences: true, ..states }, "sequences");
    refused(CausalConv1dDesc { conv: CausalConv1d { len: 0, ..good }, ..states }, "len");
    let rows = |layout, stride| CausalConv1dDesc {
        position_stride: Some(stride),
        ..plain(CausalConv1d { layout, ..good })
    };
    rows(Layout::ChannelsLast, 8).plan(TARGET).expect("the model of the others");
    refused(rows(Layout::ChannelsLast, 7), "position_stride");
    refused(rows(Layout::ChannelsFirst, 16), "position_stride");
    refused(rows(Layout::ChannelsLast, 1 << 28), "position_stride");
    refused(rows(Layout::ChannelsLast, usize::MAX), "position_stride");
    let codes = plain(CausalConv1d { dtype: DType::U8, ..good });
    assert!(matches!(codes.plan(TARGET), Err(PlanError::DType { .. })));
    let empty = CausalConv1dUpdateDesc { conv: CausalConv1d { len: 0, ..good } };
    assert!(matches!(empty.plan(TARGET), Err(PlanError::Parameter { parameter: "len", .. })));
}

#[test]
fn nothing_is_launched_for_nothing() {
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        for shape in [[0, 8, 16], [2, 0, 16], [2, 8, 0]] {
            let desc = plain(conv(layout, shape));
            assert!(desc.plan(TARGET).expect("plan").steps().is_empty(), "{shape:?}");
            let backward = CausalConv1dBackwardDesc { forward: desc }.plan(TARGET).expect("plan");
            // The gradients of weight and bias are zeros.
            assert_eq!(backward.steps().len(), usize::from(shape[1] > 0), "{shape:?}");
            assert_eq!(backward.workspace_bytes(), 0);
        }
    }
}

#[test]
fn free_functions_check_their_tensors() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (x, weight) = (random(&device, 1, &[2, 3, 5]), random(&device, 2, &[3, 4]));
    let options = CausalConv1dOptions::default();
    let flat = random(&device, 3, &[6, 5]);
    let e = causal_conv1d(&stream, &flat, &weight, options);
    assert!(matches!(e, Err(Error::Plan(PlanError::Parameter { parameter: "dimensions", .. }))));
    let e = causal_conv1d(&stream, &x, &x, options);
    assert!(matches!(e, Err(Error::Plan(PlanError::Parameter { parameter: "dimensions of weight", .. }))));
    let few = random(&device, 4, &[2, 4]);
    assert!(matches!(causal_conv1d(&stream, &x, &few, options), Err(Error::Runtime(_))));
    let states = CausalConv1dOptions { initial_states: Some(&few), ..options };
    let e = causal_conv1d(&stream, &x, &weight, states);
    assert!(matches!(e, Err(Error::Runtime(_))), "{e:?}");
    let e = causal_conv1d_backward(&stream, &x, &weight, &few, None, options);
    assert!(matches!(e, Err(Error::Runtime(_))));
    // Zeros for the weight where there are no samples.
    let empty = floats(&device, &[], &[0, 3, 5]);
    let d = causal_conv1d_backward(&stream, &empty, &weight, &empty, None, options).expect("gradients");
    assert_eq!(d.dweight.to_vec::<f32>().expect("values"), [0.0; 12]);
    assert_eq!(d.dx.shape(), [0, 3, 5]);
}

/// Steps of any size, one after the other, give what the whole does, and leave the same states.
#[test]
fn steps_make_a_whole() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (batch, channels, len) = (2, 12, 9);
    let weight = random(&device, 1, &[channels, 4]);
    let bias = random(&device, 2, &[channels]);
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        let shape = |len| match layout {
            Layout::ChannelsFirst => [batch, channels, len],
            Layout::ChannelsLast => [batch, len, channels],
        };
        let x = random(&device, 3, &shape(len));
        let options = CausalConv1dOptions {
            bias: Some(&bias),
            silu: true,
            layout,
            final_states: true,
            ..Default::default()
        };
        let whole = causal_conv1d(&stream, &x, &weight, options).expect("launch");
        let y = whole.y.to_vec::<f32>().expect("values");
        let step = CausalConv1dUpdateOptions { bias: Some(&bias), silu: true, layout };
        let mut states = floats(&device, &vec![0.0; batch * channels * 3], &shape(3));
        let values = x.to_vec::<f32>().expect("values");
        let place = |b: usize, c: usize, l: usize, len: usize| match layout {
            Layout::ChannelsFirst => (b * channels + c) * len + l,
            Layout::ChannelsLast => (b * len + l) * channels + c,
        };
        let mut first = 0;
        for count in [1, 2, 1, 5] {
            let mut part = vec![0.0; batch * channels * count];
            let all = || {
                (0..batch)
                    .flat_map(move |b| (0..channels).flat_map(move |c| (0..count).map(move |l| (b, c, l))))
            };
            all().for_each(|(b, c, l)| part[place(b, c, l, count)] = values[place(b, c, first + l, len)]);
            let part = floats(&device, &part, &shape(count));
            let got = causal_conv1d_update(&stream, &part, &weight, &mut states, step).expect("launch");
            let got = got.to_vec::<f32>().expect("values");
            for (b, c, l) in all() {
                assert_eq!(
                    got[place(b, c, l, count)],
                    y[place(b, c, first + l, len)],
                    "{layout:?} {b} {c} {l}"
                );
            }
            first += count;
        }
        let last = whole.final_states.expect("asked for").to_vec::<f32>().expect("values");
        assert_eq!(states.to_vec::<f32>().expect("values"), last);
    }
}
