//! The scan of selective state spaces: free functions, plans that are refused, and steps that make a whole.

use warpwright_ops::selective_scan::{
    Layout, SelectiveScan, SelectiveScanBackwardDesc, SelectiveScanDesc, SelectiveScanInputs,
    SelectiveScanOptions, SelectiveScanUpdateDesc, selective_scan, selective_scan_backward,
    selective_scan_update,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};
use warpwright_testkit::inputs::Input;

const TARGET: Target = Target::sm(90);

fn scan(layout: Layout, [batch, channels, len]: [usize; 3]) -> SelectiveScan {
    SelectiveScan {
        dtype: DType::F32,
        layout,
        batch,
        channels,
        len,
        state: 16,
        groups: 1,
        d: true,
        gate: true,
        delta_bias: true,
        delta_softplus: true,
    }
}

fn training(scan: SelectiveScan) -> SelectiveScanDesc {
    SelectiveScanDesc { scan, initial_state: false, last_state: false, training: true }
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
    let good = scan(Layout::ChannelsLast, [2, 8, 16]);
    let refused = |scan: SelectiveScan, name: &str| {
        let desc = training(scan);
        let forward = desc.plan(TARGET).map(drop);
        let backward = SelectiveScanBackwardDesc { forward: desc }.plan(TARGET).map(drop);
        let update = SelectiveScanUpdateDesc { scan }.plan(TARGET).map(drop);
        for e in [forward, backward, update] {
            let parameter = matches!(&e, Err(PlanError::Parameter { parameter, .. }) if *parameter == name);
            assert!(parameter, "{name}: {e:?}");
        }
    };
    for state in [0, 257, usize::MAX] {
        refused(SelectiveScan { state, ..good }, "state");
    }
    for state in [65, 256] {
        let large = training(SelectiveScan { state, ..good });
        let gradients = SelectiveScanBackwardDesc { forward: large }.plan(TARGET).map(drop);
        for e in [large.plan(TARGET).map(drop), gradients] {
            let expected = "from 1 to 64";
            let found = matches!(&e, Err(PlanError::Parameter { expected: known, .. }) if *known == expected);
            assert!(found, "{e:?}");
        }
    }
    for groups in [0, 3, 16, usize::MAX] {
        refused(SelectiveScan { groups, ..good }, "groups");
    }
    refused(SelectiveScan { channels: 1 << 20, len: 1 << 12, ..good }, "channels");
    refused(SelectiveScan { channels: usize::MAX, ..good }, "channels");
    refused(SelectiveScan { len: usize::MAX, ..good }, "channels");
    refused(SelectiveScan { batch: 1 << 60, ..good }, "batch");
    refused(SelectiveScan { channels: 0, groups: usize::MAX, ..good }, "channels");
    let codes = training(SelectiveScan { dtype: DType::U8, ..good });
    assert!(matches!(codes.plan(TARGET), Err(PlanError::DType { .. })));
}

#[test]
fn nothing_is_launched_for_nothing() {
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        for shape in [[0, 8, 16], [2, 0, 16]] {
            let desc = training(scan(layout, shape));
            assert!(desc.plan(TARGET).expect("plan").steps().is_empty(), "{shape:?}");
            let backward = SelectiveScanBackwardDesc { forward: desc }.plan(TARGET).expect("plan");
            // The gradients of parameters are zeros; those of B and C, too, where they have no channels.
            assert_eq!(backward.steps().len(), 1, "{shape:?}");
        }
    }
}

#[test]
fn free_functions_check_their_tensors() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (u, a, rows) =
        (random(&device, 1, &[2, 3, 5]), random(&device, 2, &[3, 4]), random(&device, 3, &[2, 1, 4, 5]));
    let inputs = SelectiveScanInputs { u: &u, delta: &u, a: &a, b: &rows, c: &rows };
    let options = SelectiveScanOptions { training: true, ..Default::default() };
    let parameter = |inputs: SelectiveScanInputs<'_>, name: &str| {
        let e = selective_scan(&stream, inputs, options);
        assert!(
            matches!(e, Err(Error::Plan(PlanError::Parameter { parameter, .. })) if parameter == name),
            "{name}"
        );
    };
    parameter(SelectiveScanInputs { u: &a, ..inputs }, "dimensions");
    parameter(SelectiveScanInputs { b: &u, ..inputs }, "dimensions of b");
    let refused = |inputs: SelectiveScanInputs<'_>, options: SelectiveScanOptions<'_>| {
        let e = selective_scan(&stream, inputs, options);
        assert!(matches!(e, Err(Error::Runtime(_))), "{e:?}");
    };
    refused(SelectiveScanInputs { delta: &a, ..inputs }, options);
    refused(SelectiveScanInputs { a: &u, ..inputs }, options);
    refused(SelectiveScanInputs { c: &u, ..inputs }, options);
    for options in [
        SelectiveScanOptions { d: Some(&a), ..options },
        SelectiveScanOptions { z: Some(&a), ..options },
        SelectiveScanOptions { delta_bias: Some(&a), ..options },
        SelectiveScanOptions { initial_state: Some(&a), ..options },
    ] {
        refused(inputs, options);
    }
    let states = selective_scan(&stream, inputs, options).expect("launch").states.expect("asked for");
    let e = selective_scan_backward(&stream, inputs, &states, &a, None, options);
    assert!(matches!(e, Err(Error::Runtime(_))));
    let e = selective_scan_backward(&stream, inputs, &a, &u, None, options);
    assert!(matches!(e, Err(Error::Runtime(_))));
    // Zeros for the parameters where there are no samples.
    let (empty, none) = (floats(&device, &[], &[0, 3, 5]), floats(&device, &[], &[0, 1, 4, 5]));
    let inputs = SelectiveScanInputs { u: &empty, delta: &empty, a: &a, b: &none, c: &none };
    let states = floats(&device, &[], &[0, 1, 3, 4]);
    let d = selective_scan_backward(&stream, inputs, &states, &empty, None, options).expect("gradients");
    assert_eq!(d.da.to_vec::<f32>().expect("values"), [0.0; 12]);
    assert_eq!(d.du.shape(), [0, 3, 5]);
}

/// Steps of any size, one after the other, give what the whole does, and leave the same state.
#[test]
fn steps_make_a_whole() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (batch, channels, len, state) = (2, 12, 9, 5);
    let a = random(&device, 1, &[channels, state]);
    let (d, bias) = (random(&device, 2, &[channels]), random(&device, 3, &[channels]));
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        let shape = |len, channels| match layout {
            Layout::ChannelsFirst => [batch, channels, len],
            Layout::ChannelsLast => [batch, len, channels],
        };
        let rows = |len| match layout {
            Layout::ChannelsFirst => [batch, 1, state, len],
            Layout::ChannelsLast => [batch, len, 1, state],
        };
        let of_channels = |salt| random(&device, salt, &shape(len, channels));
        let all = [of_channels(4), of_channels(5), of_channels(6)];
        let both = [random(&device, 7, &rows(len)), random(&device, 8, &rows(len))];
        let inputs = SelectiveScanInputs { u: &all[0], delta: &all[1], a: &a, b: &both[0], c: &both[1] };
        let options = SelectiveScanOptions {
            d: Some(&d),
            z: Some(&all[2]),
            delta_bias: Some(&bias),
            delta_softplus: true,
            layout,
            last_state: true,
            ..Default::default()
        };
        let whole = selective_scan(&stream, inputs, options).expect("launch");
        let y = whole.y.to_vec::<f32>().expect("values");
        let place = |inner: usize, b: usize, i: usize, t: usize, len: usize| match layout {
            Layout::ChannelsFirst => (b * inner + i) * len + t,
            Layout::ChannelsLast => (b * len + t) * inner + i,
        };
        // Positions from `first` on of a tensor that has `inner` numbers for each.
        let part = |tensor: &Tensor, inner: usize, first: usize, count: usize, shape: &[usize]| {
            let values = tensor.to_vec::<f32>().expect("values");
            let mut part = vec![0.0; batch * inner * count];
            for (b, i, t) in
                (0..batch).flat_map(|b| (0..inner).flat_map(move |i| (0..count).map(move |t| (b, i, t))))
            {
                part[place(inner, b, i, t, count)] = values[place(inner, b, i, first + t, len)];
            }
            floats(&device, &part, shape)
        };
        let mut last = floats(&device, &vec![0.0; batch * channels * state], &[batch, channels, state]);
        let mut first = 0;
        for count in [1, 2, 1, 5] {
            let [u, delta, z] =
                [0, 1, 2].map(|i| part(&all[i], channels, first, count, &shape(count, channels)));
            let [b, c] = [0, 1].map(|i| part(&both[i], state, first, count, &rows(count)));
            let inputs = SelectiveScanInputs { u: &u, delta: &delta, a: &a, b: &b, c: &c };
            let options = SelectiveScanOptions { z: Some(&z), last_state: false, ..options };
            let got = selective_scan_update(&stream, inputs, &mut last, options).expect("launch");
            let got = got.to_vec::<f32>().expect("values");
            for (b, i, t) in
                (0..batch).flat_map(|b| (0..channels).flat_map(move |i| (0..count).map(move |t| (b, i, t))))
            {
                let want = y[place(channels, b, i, first + t, len)];
                assert_eq!(got[place(channels, b, i, t, count)], want, "{layout:?} {b} {i} {t}");
            }
            first += count;
        }
        let want = whole.last_state.expect("asked for").to_vec::<f32>().expect("values");
        assert_eq!(last.to_vec::<f32>().expect("values"), want);
    }
}
