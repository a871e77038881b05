//! Recurrent nets: every case on targets with other kernels, gradients of the reference, and what is refused.

use warpwright_ops::gemm::Precision;
use warpwright_ops::plan::{Access as TensorAccess, Real};
use warpwright_ops::recurrent::reference::{Net, Weights as Plain};
use warpwright_ops::recurrent::tuning::{ExchangeKind, PersistentConfig, Schedule};
use warpwright_ops::recurrent::{
    Cell, OutputGradients, RecurrentBackwardDesc, RecurrentDesc, RecurrentInput, RecurrentOptions,
    RecurrentOutput, State, Weights, check_lengths, lstm, recurrent, recurrent_backward,
};
use warpwright_ops::{Dropout, Error, Operation, Plan, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{
    Device, EmulatorConfig, Error as RuntimeError, LaunchStep, Sanitizers, Stream, Tensor,
};
use warpwright_testkit::{Case, Filter, Scope, cases, run_case};

fn run(config: EmulatorConfig, scope: Scope, chosen: fn(&Case) -> bool) {
    let target = config.target;
    let device = Device::emulator_with(config);
    let ops = ["lstm", "gru", "rnn", "lstm_cell", "gru_cell", "rnn_cell"].map(str::to_owned).to_vec();
    let filter = Filter { ops, scope, ..Filter::default() };
    let mut failed = Vec::new();
    for case in cases(&filter).into_iter().filter(chosen) {
        let r = run_case(&device, &case);
        println!("{case}: {:.2e} {:.3}", r.error, r.element_error);
        if !r.ok {
            let findings = r.findings.first().cloned().unwrap_or_default();
            failed.push(format!("{case}: {}\n{findings}", r.reason.unwrap_or_default()));
        }
    }
    assert!(failed.is_empty(), "{} failed for {target}:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn a_thousand_steps() {
    let config = EmulatorConfig { target: Target::sm(90), ..EmulatorConfig::default() };
    // Thousands of launches of f64 are left to devices.
    run(config, Scope::Full, |case| case.shape[0] >= 1000 && case.dtype != DType::F64);
}

#[test]
fn sequences_without_a_plan() {
    const TARGET: Target = Target::sm(90);
    let good = RecurrentDesc { h0: true, ..RecurrentDesc::new(Cell::Lstm, DType::BF16, [3, 1, 16, 480]) };
    let plan = good.plan(TARGET).expect("plan");
    let grids: Vec<_> = plan.steps().iter().map(|step| (step.grid()[0], step.is_cooperative())).collect();
    assert_eq!(grids.last(), Some(&(30, true)), "16 units a block, for one tile of batches");
    let many = RecurrentDesc { batch: 16, hidden: 192, ..good.clone() }.plan(TARGET).expect("plan");
    assert_eq!(many.steps().last().map(LaunchStep::grid), Some([24, 4, 1]), "8 units a block, 4 groups");
    for (batch, hidden, grid) in [(1, 512, 16), (16, 256, 64), (17, 256, 72), (3, 64, 12), (2, 32, 2)] {
        let plan = RecurrentDesc { batch, hidden, ..good.clone() }.plan(TARGET).expect("plan");
        let shapes: Vec<_> =
            plan.steps().iter().map(|step| (step.grid()[0], step.is_cooperative())).collect();
        assert_eq!(shapes.len(), 2, "the inputs and the sequence");
        assert_eq!(shapes[1], (grid, false), "clusters of {batch} x {hidden}");
    }
    for (dtype, batch, hidden, grid) in [
        (DType::F32, 16, 768, [96, 1, 1]),
        (DType::F32, 64, 1024, [128, 1, 1]),
        (DType::BF16, 64, 1024, [64, 2, 1]),
    ] {
        let plan = RecurrentDesc { dtype, batch, hidden, ..good.clone() }.plan(TARGET).expect("plan");
        let last = plan.steps().last().map(|step| (step.grid(), step.is_cooperative()));
        assert_eq!(last, Some((grid, true)), "{dtype} {batch} {hidden}");
    }
    for (batch, hidden, grid) in [(64, 1024, [64, 2, 1]), (32, 2048, [128, 1, 1])] {
        let desc =
            RecurrentDesc { dtype: DType::F32, precision: Precision::Tf32, batch, hidden, ..good.clone() };
        let plan = desc.plan(TARGET).expect("plan");
        let last = plan.steps().last().map(|step| (step.grid(), step.kernel().name().contains("_tf32_")));
        assert_eq!(last, Some((grid, true)), "rounded {batch} {hidden}");
    }
    assert_eq!(grids.len(), 3, "the inputs, the exchange, the sequence: {grids:?}");
    assert_eq!(good.plan_with(TARGET, Schedule::Stepwise).expect("plan").steps().len(), 1 + 2 * 3);
    let parameter = |desc: RecurrentDesc, name| match desc.plan(TARGET) {
        Err(PlanError::Parameter { parameter, .. }) => assert_eq!(parameter, name),
        other => panic!("{name}: {other:?}"),
    };
    parameter(RecurrentDesc { steps: 0, ..good.clone() }, "steps");
    parameter(RecurrentDesc { input: 0, ..good.clone() }, "input");
    parameter(RecurrentDesc { hidden: 0, ..good.clone() }, "hidden");
    parameter(RecurrentDesc { layers: 0, ..good.clone() }, "layers");
    parameter(RecurrentDesc { layers: 5000, ..good.clone() }, "layers");
    parameter(RecurrentDesc { directions: 3, ..good.clone() }, "directions");
    parameter(RecurrentDesc { cell: Cell::Gru, c0: true, ..good.clone() }, "c0");
    parameter(RecurrentDesc { hidden: 1 << 20, ..good.clone() }, "hidden");
    parameter(RecurrentDesc { projection: 481, ..good.clone() }, "projection");
    parameter(RecurrentDesc { cell: Cell::Gru, projection: 8, ..good.clone() }, "projection");
    parameter(RecurrentDesc { dropout: Some(Real::new(1.5)), ..good.clone() }, "dropout.probability");
    parameter(RecurrentDesc { steps: 1 << 40, ..good.clone() }, "steps x batch");
    parameter(RecurrentDesc { precision: Precision::Tf32, ..good.clone() }, "precision");
    let backward =
        RecurrentBackwardDesc { forward: good.clone(), dy: true, dh_n: false, dc_n: false, dx: true };
    let e = backward.plan(TARGET).expect_err("there is no reserve");
    assert!(matches!(e, PlanError::Parameter { parameter: "training", .. }), "{e}");
    let forward = RecurrentDesc { training: true, ..good.clone() };
    let backward = RecurrentBackwardDesc { forward, ..backward };
    let whole = |schedule| {
        let plan = backward.plan_with(TARGET, schedule).expect("plan");
        let grids = plan.steps().iter().filter(|step| step.is_cooperative()).map(|step| step.grid()[0]);
        (grids.collect::<Vec<_>>(), plan.steps().len())
    };
    assert_eq!(whole(backward.schedule(TARGET)), (vec![30], 11), "the exchange, the steps, the products");
    assert_eq!(
        whole(Schedule::Stepwise),
        (vec![], 9 + 3 * 3 + 1),
        "a cell, a product and its sum for each step"
    );
    let wrong = Schedule::Persistent(PersistentConfig { units: 4, groups: 1, exchange: ExchangeKind::Ll });
    let e = backward.plan_with(TARGET, wrong).expect_err("no such kernel");
    assert!(matches!(e, PlanError::Parameter { parameter: "schedule", .. }), "{e}");
    // Clusters share the sequences themselves: groups would do the same work twice.
    for (groups, batch) in [(2, 2), (0, 2), (4, 4)] {
        let wrong = PersistentConfig { units: 32, groups, exchange: ExchangeKind::Dsmem { sequences: 1 } };
        let e = RecurrentDesc { batch, hidden: 512, ..good.clone() }
            .plan_with(TARGET, Schedule::Persistent(wrong))
            .expect_err("no such kernel");
        assert!(matches!(e, PlanError::Parameter { parameter: "schedule", .. }), "{e}");
    }
    let e = RecurrentDesc { dtype: DType::I8, ..good.clone() }.plan(TARGET).expect_err("no integers");
    assert!(matches!(e, PlanError::DType { op: "lstm", .. }), "{e}");
    let wrong = Schedule::Persistent(PersistentConfig { units: 3, groups: 1, exchange: ExchangeKind::Ll });
    let e = good.plan_with(TARGET, wrong).expect_err("no such kernel");
    assert!(matches!(e, PlanError::Parameter { parameter: "schedule", .. }), "{e}");
    // Old targets, sizes that do not fit, and double precision go step by step.
    for (dtype, sm, batch, hidden) in [
        (DType::BF16, 75, 1, 512),
        (DType::BF16, 90, 1, 520),
        (DType::BF16, 90, 1, 4096),
        (DType::F64, 90, 1, 512),
        (DType::F32, 90, 64, 4096),
    ] {
        let desc = RecurrentDesc::new(Cell::Lstm, dtype, [3, batch, 16, hidden]);
        assert_eq!(desc.schedule(Target::sm(sm)), Schedule::Stepwise, "{dtype} {hidden}");
    }
}

/// The products of an LSTM forward and backward, by the names of their kernels.
fn products(net: &RecurrentDesc, target: Target) -> Result<Vec<String>, PlanError> {
    let (dy, dh_n, dc_n, dx) = (true, true, true, true);
    let backward = RecurrentBackwardDesc { forward: net.clone(), dy, dh_n, dc_n, dx };
    let (forward, backward) = (net.plan(target)?, backward.plan(target)?);
    let names = forward.steps().iter().chain(backward.steps()).map(|step| step.kernel().name().to_owned());
    Ok(names.filter(|name| name.starts_with("gemm_")).collect())
}

#[test]
fn rounded_factors_are_those_of_every_product() {
    const TARGET: Target = Target::sm(90);
    let net = RecurrentDesc::new(Cell::Lstm, DType::F32, [2, 9, 40, 48]);
    let net = RecurrentDesc { projection: 24, layers: 2, h0: true, training: true, ..net };
    let is_exact = |name: &String| name.contains("_simt_") || name.contains("_tf32x3_");
    let exact = products(&net, TARGET).expect("plan");
    assert!(exact.iter().all(is_exact), "{exact:?}");
    let net = RecurrentDesc { precision: Precision::Tf32, ..net };
    let rounded = products(&net, TARGET).expect("plan");
    assert!(!rounded.iter().any(is_exact), "{rounded:?}");
    assert_eq!(rounded.len(), exact.len());
    let e = products(&net, Target::sm(75)).expect_err("no tf32");
    assert!(matches!(e, PlanError::Target { op: "lstm", needs: 80, .. }), "{e}");
}

/// A net of small weights.
struct Small {
    device: Device,
    stream: Stream,
    x: Tensor,
    weights: Vec<[Tensor; 4]>,
}

fn values(len: usize, by: f32) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * by).sin() * 0.3).collect()
}

impl Small {
    /// `passes` of 32 units over `x`, `[first, second, 12]`.
    fn new(seed: u64, cell: Cell, sizes: [usize; 2], directions: usize) -> Self {
        Self::on(EmulatorConfig { seed, ..EmulatorConfig::default() }, cell, sizes, directions)
    }

    fn on(config: EmulatorConfig, cell: Cell, [first, second]: [usize; 2], directions: usize) -> Self {
        let device = Device::emulator_with(config);
        let tensor = |by, shape: &[usize]| {
            Tensor::from_slice(&device, &values(shape.iter().product(), by), shape).expect("memory")
        };
        let rows = 32 * cell.gates();
        let pass = |direction: usize| {
            let by = direction as f32 * 0.01;
            [
                tensor(1.3 + by, &[rows, 12]),
                tensor(1.9 + by, &[rows, 32]),
                tensor(0.4, &[rows]),
                tensor(0.5, &[rows]),
            ]
        };
        let weights = (0..directions).map(pass).collect();
        let x = tensor(0.7, &[first, second, 12]);
        Self { stream: device.stream().expect("stream"), x, weights, device }
    }

    fn weights(&self) -> Vec<Weights<'_>> {
        self.weights
            .iter()
            .map(|[w_ih, w_hh, b_ih, b_hh]| Weights {
                w_ih,
                w_hh,
                w_hr: None,
                b_ih: Some(b_ih),
                b_hh: Some(b_hh),
            })
            .collect()
    }
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().expect("copy")
}

/// Bits do not depend on the schedule of the blocks, whether they exchange words, raise flags, or stay within clusters.
#[test]
fn every_seed_agrees() {
    let (full, tf32) = (Precision::Full, Precision::Tf32);
    for (batch, exchange, sm, precision) in [
        (2, ExchangeKind::Ll, 80, full),
        (5, ExchangeKind::Flagged, 80, full),
        (10, ExchangeKind::Inband, 80, tf32),
        (5, ExchangeKind::Dsmem { sequences: 1 }, 90, full),
    ] {
        let target = Target::sm(sm);
        let desc = RecurrentDesc::new(Cell::Lstm, DType::F32, [7, batch, 12, 32]);
        let tuned = RecurrentDesc { precision, ..desc }.schedule(target);
        assert!(matches!(tuned, Schedule::Persistent(config) if config.exchange == exchange), "{tuned:?}");
        let mut results = Vec::new();
        for seed in 0..3 {
            let config = EmulatorConfig { seed, target, ..EmulatorConfig::default() };
            let net = Small::on(config, Cell::Lstm, [7, batch], 1);
            let weights = net.weights();
            let options = RecurrentOptions { precision, ..RecurrentOptions::default() };
            let input = RecurrentInput { options, ..RecurrentInput::new(&net.x, &weights) };
            let out = recurrent(&net.stream, Cell::Lstm, &input).expect("launch");
            let gradients = OutputGradients { dy: Some(&out.y), ..OutputGradients::default() };
            let back = recurrent_backward(&net.stream, Cell::Lstm, &input, &out, gradients).expect("launch");
            assert!(net.device.findings().is_empty());
            let last = floats(&out.y)[6 * 32 * batch..].to_vec();
            assert_eq!(last, floats(&out.h_n));
            results.push((floats(&out.y), floats(&out.c_n.expect("cells")), floats(&back.dx)));
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "the same bits under every schedule");
    }
}

/// Results of a plan of an LSTM of 64 units on three sequences of four places: the first state of the second is far beyond 1,
/// and the third has an input that is not a number from its second place on. The bits of `y`, of `f32`, whose factors are rounded, the
/// upper ones, which are those of `bf16`.
fn unusual(dtype: DType, schedule: Schedule, seed: u64) -> Vec<u16> {
    let desc = RecurrentDesc::new(Cell::Lstm, dtype, [4, 3, 8, 64]);
    let precision = if dtype == DType::F32 { Precision::Tf32 } else { Precision::Full };
    let desc = RecurrentDesc { h0: true, c0: true, precision, ..desc };
    let device = Device::emulator_with(EmulatorConfig { seed, ..EmulatorConfig::default() });
    let stream = device.stream().expect("stream");
    let plan = desc.plan_with(device.target(), schedule).expect("plan");
    let bits = |bf16: u16, f16: u16| if dtype == DType::F16 { f16 } else { bf16 };
    let (small, large, none) = (bits(0x3d80, 0x2c00), bits(0x40a0, 0x4500), bits(0x7fc0, 0x7e00));
    let content = |name: &str, i: usize| {
        // A sixteenth, above or below zero.
        let usual = small | if (i * 7919) % 13 < 6 { 0x8000 } else { 0 };
        match name {
            "h0" if (64..128).contains(&i) => large | (usual & 0x8000),
            "x" if i % 24 == 17 && i > 24 => none,
            _ => usual,
        }
    };
    let tensors = plan.tensors().iter().map(|spec| match spec.access {
        TensorAccess::Write => Tensor::empty(&device, spec.dtype, &[spec.len]).expect("memory"),
        TensorAccess::Read => {
            let upper = |i: usize| (u32::from(content(spec.name, i)) << 16).to_le_bytes();
            let bytes: Vec<u8> =
                (0..spec.len).flat_map(|i| upper(i).into_iter().skip(4 - dtype.bytes())).collect();
            Tensor::from_bytes(&device, spec.dtype, &bytes, &[spec.len]).expect("memory")
        }
    });
    let tensors: Vec<Tensor> = tensors.collect();
    let bindings: Vec<_> = tensors.iter().map(Tensor::binding).collect();
    plan.steps().iter().try_for_each(|step| stream.launch(step, &bindings)).expect("launch");
    stream.synchronize().expect("end");
    assert!(device.findings().is_empty(), "{:?}", device.findings().first());
    let y = plan.tensors().iter().position(|spec| spec.name == "y").expect("a result");
    let bytes = tensors[y].to_bytes().expect("copy");
    bytes
        .chunks(dtype.bytes())
        .map(|bytes| u16::from_le_bytes([bytes[bytes.len() - 2], bytes[bytes.len() - 1]]))
        .collect()
}

/// Tags take a bit of what is handed on: first states that need it, and what is not a number, go through.
#[test]
fn tagged_states_may_begin_and_end_as_anything() {
    let layout = PersistentConfig { units: 16, groups: 1, exchange: ExchangeKind::Inband };
    for (dtype, shift) in [(DType::BF16, 7), (DType::F16, 10), (DType::F32, 7)] {
        let want = unusual(dtype, Schedule::Stepwise, 0);
        let got = unusual(dtype, Schedule::Persistent(layout), 0);
        let is_nan = |bits: u16| bits & 0x7fff > 0x7fff >> shift << shift;
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(is_nan(*got), i % 192 >= 128 && i >= 192, "{dtype} {i}: {got:x}");
            assert_eq!(is_nan(*got), is_nan(*want), "{dtype} {i}: {want:x}");
            // Sums in another order may round to a neighbour, and what follows from that.
            let apart = (got & 0x7fff).abs_diff(want & 0x7fff);
            assert!(is_nan(*got) || apart < 1 << (shift - 3), "{dtype} {i}: {got:x} for {want:x}");
        }
        for seed in 1..3 {
            assert_eq!(
                unusual(dtype, Schedule::Persistent(layout), seed),
                got,
                "the same under every schedule"
            );
        }
    }
}

/// A sequence and its gradients against the reference, on a device that looks for everything but races: finding those among so many
/// blocks takes minutes.
fn agrees(cell: Cell, dtype: DType, sizes: [usize; 4], budget: f64) {
    agrees_with(Precision::Full, cell, dtype, sizes, budget);
}

fn agrees_with(precision: Precision, cell: Cell, dtype: DType, sizes: [usize; 4], budget: f64) {
    let [steps, batch, input, hidden] = sizes;
    let sanitizers = Sanitizers::all() - Sanitizers::RACECHECK;
    let device = Device::emulator_with(EmulatorConfig { sanitizers, ..EmulatorConfig::default() });
    let stream = device.stream().expect("stream");
    // Values of bf16: the upper halves of those of f32, without a pattern whose sums cancel.
    let values = |len: usize, salt: u32, scale: f32| -> Vec<f64> {
        let mixed = (0..len as u32).map(|i| (i ^ salt << 24).wrapping_mul(0x9e37_79b1));
        let mixed = mixed.map(|i| (i ^ i >> 15).wrapping_mul(0x85eb_ca6b));
        let value = |i: u32| ((i >> 8) as f32 / 8_388_608.0 - 1.0) * scale;
        mixed.map(|i| f64::from(f32::from_bits(value(i).to_bits() & 0xffff_0000))).collect()
    };
    let tensor = |values: &[f64], shape: &[usize]| {
        let bytes = values.iter().flat_map(|value| {
            let bytes = (*value as f32).to_le_bytes();
            bytes[4 - dtype.bytes()..].to_vec()
        });
        Tensor::from_bytes(&device, dtype, &bytes.collect::<Vec<_>>(), shape).expect("memory")
    };
    let read = |tensor: &Tensor| -> Vec<f64> {
        let bytes = tensor.to_bytes().expect("copy");
        let value = |bytes: &[u8]| {
            let mut whole = [0; 4];
            whole[4 - bytes.len()..].copy_from_slice(bytes);
            f64::from(f32::from_le_bytes(whole))
        };
        bytes.chunks(dtype.bytes()).map(value).collect()
    };
    let rows = cell.gates() * hidden;
    let (x, dy) = (values(steps * batch * input, 1, 1.0), values(steps * batch * hidden, 2, 1.0));
    let (w_ih, w_hh) = (values(rows * input, 3, 0.3), values(rows * hidden, 4, 0.05));
    let [a, b] = [tensor(&w_ih, &[rows, input]), tensor(&w_hh, &[rows, hidden])];
    let weights = [Weights { w_ih: &a, w_hh: &b, w_hr: None, b_ih: None, b_hh: None }];
    let of_x = tensor(&x, &[steps, batch, input]);
    let options = RecurrentOptions { precision, ..RecurrentOptions::default() };
    let given = RecurrentInput { options, ..RecurrentInput::new(&of_x, &weights) };
    let out = recurrent(&stream, cell, &given).expect("launch");
    let of_dy = tensor(&dy, out.y.shape());
    let gradients = OutputGradients { dy: Some(&of_dy), ..OutputGradients::default() };
    let back = recurrent_backward(&stream, cell, &given, &out, gradients).expect("launch");
    assert!(device.findings().is_empty(), "{:?}", device.findings().first());
    let zeros = vec![0.0; batch * hidden];
    let none = vec![0.0; rows];
    let (w_hr, b_ih, b_hh) = (Vec::new(), none.clone(), none);
    let net = Net {
        cell,
        sizes,
        projection: 0,
        factors: Vec::new(),
        directions: 1,
        batch_first: false,
        lengths: vec![steps; batch],
        weights: vec![Plain { w_ih, w_hh, w_hr, b_ih, b_hh }],
        h0: zeros.clone(),
        c0: zeros.clone(),
        kept: |h| h,
    };
    let want = net.forward(&x);
    let gradients = net.backward(&x, &want.y, &dy, &zeros, &zeros);
    let compare = |what: &str, got: &[f64], want: &[f64]| {
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let error = norm(&mut got.iter().zip(want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied());
        assert!(error < budget, "{what} of {cell:?} {dtype} {sizes:?}: {error}");
    };
    compare("y", &read(&out.y), &want.y[0]);
    compare("dx", &read(&back.dx), &gradients.dx);
    compare("dw_hh", &read(&back.weights[0].w_hh), &gradients.weights[0].w_hh);
}

/// So many units that half of the weights stay in shared memory, forward and backward. Lanes read there what they have
/// written themselves.
#[test]
fn weights_in_shared_memory() {
    agrees(Cell::Lstm, DType::BF16, [2, 5, 16, 1152], 6.9e-3);
    agrees_with(Precision::Tf32, Cell::Lstm, DType::F32, [2, 36, 16, 576], 7.5e-4);
}

/// So many that they lie there in halves, forward and backward.
#[test]
fn weights_in_halves() {
    agrees_with(Precision::Tf32, Cell::Lstm, DType::F32, [2, 5, 8, 1280], 7.5e-4);
}

/// A warp copies more than one piece a lane of a row, and no multiple of that.
#[test]
fn rows_that_end_within_the_lanes_of_a_copy() {
    agrees(Cell::Lstm, DType::F32, [2, 5, 4, 320], 3e-6);
    agrees(Cell::Gru, DType::F32, [2, 6, 4, 448], 3e-6);
}

/// Sizes that layouts divide in many ways.
#[test]
#[ignore = "nightly: recurrent"]
fn many_numbers_of_units() {
    for hidden in [160, 320, 352, 448, 576, 704, 768, 832, 960, 1056] {
        for cell in [Cell::Lstm, Cell::Gru, Cell::RnnTanh] {
            agrees(cell, DType::BF16, [2, 17, 8, hidden], 6.9e-3);
            agrees(cell, DType::F32, [2, 17, 8, hidden], 5e-6);
        }
    }
}

/// `[steps][batch][wide]` of `[batch][steps][wide]`.
fn time_first(values: &[f32], [batch, steps]: [usize; 2]) -> Vec<f32> {
    let wide = values.len() / (batch * steps);
    let row = |step: usize, b: usize| values[(b * steps + step) * wide..][..wide].to_vec();
    (0..steps).flat_map(|step| (0..batch).flat_map(move |b| row(step, b))).collect()
}

fn train(
    net: &Small,
    cell: Cell,
    options: RecurrentOptions<'_>,
    dy: &[f32],
) -> (RecurrentOutput, Vec<Vec<f32>>) {
    let weights = net.weights();
    let input = RecurrentInput { options, ..RecurrentInput::new(&net.x, &weights) };
    let out = recurrent(&net.stream, cell, &input).expect("launch");
    let dy = Tensor::from_slice(&net.device, dy, out.y.shape()).expect("memory");
    let gradients = OutputGradients { dy: Some(&dy), ..OutputGradients::default() };
    let back = recurrent_backward(&net.stream, cell, &input, &out, gradients).expect("launch");
    let mut all = vec![floats(&back.dx)];
    for weight in &back.weights {
        all.extend([floats(&weight.w_ih), floats(&weight.w_hh)]);
        all.extend([&weight.b_ih, &weight.b_hh].map(|b| floats(b.as_ref().expect("bias"))));
    }
    (out, all)
}

#[test]
fn batch_first_and_time_first_have_the_same_bits() {
    for cell in Cell::ALL {
        let (batch, steps) = (3, 5);
        let by_batch = Small::new(0, cell, [batch, steps], 2);
        let mut by_time = Small::new(0, cell, [steps, batch], 2);
        let x = time_first(&floats(&by_batch.x), [batch, steps]);
        by_time.x = Tensor::from_slice(&by_time.device, &x, &[steps, batch, 12]).expect("memory");
        let options = RecurrentOptions { bidirectional: true, ..RecurrentOptions::default() };
        let dy = values(batch * steps * 64, 0.9);
        let first = RecurrentOptions { batch_first: true, ..options };
        let (out_b, grad_b) = train(&by_batch, cell, first, &dy);
        let (out_t, grad_t) = train(&by_time, cell, options, &time_first(&dy, [batch, steps]));
        assert_eq!(time_first(&floats(&out_b.y), [batch, steps]), floats(&out_t.y), "{cell:?}");
        assert_eq!(floats(&out_b.h_n), floats(&out_t.h_n));
        assert_eq!(time_first(&grad_b[0], [batch, steps]), grad_t[0], "dx of {cell:?}");
    }
}

/// The elements that are dropped depend on the numbers that are drawn from, and on nothing else.
#[test]
fn dropout_is_a_function_of_its_numbers() {
    let (batch, steps, cell) = (3, 5, Cell::Gru);
    let mut by_batch = Small::new(0, cell, [batch, steps], 2);
    // Two layers of one direction, of which the second reads 32 units.
    let w_ih = Tensor::from_slice(&by_batch.device, &values(96 * 32, 1.7), &[96, 32]).expect("memory");
    by_batch.weights[1][0] = w_ih;
    let dy = values(batch * steps * 32, 0.9);
    let run = |net: &Small, batch_first: bool, offset: Option<u64>, dy: &[f32]| {
        let dropout = offset.map(|offset| Dropout { probability: 0.5, seed: 11, offset });
        let options = RecurrentOptions { batch_first, dropout, ..RecurrentOptions::default() };
        let (out, gradients) = train(net, cell, options, dy);
        (floats(&out.y), gradients)
    };
    let first = run(&by_batch, true, Some(1), &dy);
    assert_eq!(first, run(&by_batch, true, Some(1), &dy), "run to run");
    assert_ne!(first.0, run(&by_batch, true, Some(2), &dy).0, "of another offset");
    assert_ne!(first.0, run(&by_batch, true, None, &dy).0, "without dropout");
    let x = time_first(&floats(&by_batch.x), [batch, steps]);
    let x = Tensor::from_slice(&by_batch.device, &x, &[steps, batch, 12]).expect("memory");
    let by_time = Small { x, ..by_batch };
    let second = run(&by_time, false, Some(1), &time_first(&dy, [batch, steps]));
    assert_eq!(time_first(&first.0, [batch, steps]), second.0, "time first");
    assert_eq!(time_first(&first.1[0], [batch, steps]), second.1[0], "dx");
}

/// The outputs of a plan, launched on a stream or as a graph.
fn written<O: Operation>(plan: &Plan<O>, as_graph: bool) -> Vec<Vec<f32>> {
    written_of(plan, as_graph, &[])
}

/// The same of sequences with these lengths.
fn written_of<O: Operation>(plan: &Plan<O>, as_graph: bool, lengths: &[i32]) -> Vec<Vec<f32>> {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let tensors = plan.tensors().iter().map(|spec| {
        if spec.name == "lengths" && spec.present {
            return Tensor::from_slice(&device, lengths, &[spec.len]).expect("memory");
        }
        assert!(!spec.present || spec.dtype == DType::F32, "{}", spec.name);
        Tensor::from_slice(&device, &values(spec.len, 0.7), &[spec.len]).expect("memory")
    });
    let tensors: Vec<Tensor> = tensors.collect();
    let bindings: Vec<_> = tensors.iter().map(Tensor::binding).collect();
    let all = |stream: &Stream| plan.steps().iter().try_for_each(|step| stream.launch(step, &bindings));
    if as_graph {
        let graph = stream.capture(all).expect("capture");
        graph.launch(&stream).expect("launch");
    } else {
        all(&stream).expect("launch");
    }
    stream.synchronize().expect("end");
    let results = plan.tensors().iter().zip(&tensors);
    let results = results
        .filter(|(spec, _)| spec.present && spec.access == TensorAccess::Write && spec.name != "workspace");
    results.map(|(_, tensor)| floats(tensor)).collect()
}

#[test]
fn graph_and_stream_have_the_same_bits() {
    const TARGET: Target = Target::sm(90);
    for (cell, steps) in [(Cell::Lstm, 5), (Cell::Gru, 1)] {
        let desc = RecurrentDesc::new(cell, DType::F32, [steps, 2, 12, 32]);
        let forward = RecurrentDesc { h0: true, c0: cell.has_c(), training: true, ..desc };
        let plan = forward.plan(TARGET).expect("plan");
        assert_eq!(written(&plan, false), written(&plan, true), "{cell:?}");
        let backward = RecurrentBackwardDesc { forward, dy: true, dh_n: true, dc_n: false, dx: true };
        let plan = backward.plan(TARGET).expect("plan");
        assert_eq!(written(&plan, false), written(&plan, true), "{cell:?} backward");
    }
}

/// Lengths on the device, which nobody has checked, are cut to the places that there are.
#[test]
fn lengths_that_lead_outside_are_cut() {
    const TARGET: Target = Target::sm(90);
    let (wild, cut) = ([i32::MIN, -3, 1000, i32::MAX, 2], [0, 0, 4, 4, 2]);
    for (cell, directions) in [(Cell::Lstm, 1), (Cell::Gru, 2), (Cell::RnnTanh, 1)] {
        let desc = RecurrentDesc::new(cell, DType::F32, [4, 5, 12, 32]);
        let forward = RecurrentDesc { lengths: true, directions, training: true, ..desc };
        let plan = forward.plan(TARGET).expect("plan");
        assert_eq!(written_of(&plan, false, &wild), written_of(&plan, false, &cut), "{cell:?}");
        let backward = RecurrentBackwardDesc { forward, dy: true, dh_n: true, dc_n: false, dx: true };
        let plan = backward.plan(TARGET).expect("plan");
        assert_eq!(written_of(&plan, false, &wild), written_of(&plan, false, &cut), "{cell:?} backward");
    }
    let refused = |lengths: &[i32]| match check_lengths("lstm", lengths, 4) {
        Err(PlanError::Parameter { op: "lstm", parameter: "lengths", got, .. }) => got,
        other => panic!("{other:?}"),
    };
    assert!(check_lengths("lstm", &cut, 4).is_ok());
    assert_eq!(refused(&wild[2..]), "1000 at 0");
    assert_eq!(refused(&[4, -1, 5]), "-1 at 1");
}

#[test]
fn lengths_change_nothing_within_them() {
    for cell in Cell::ALL {
        let net = Small::new(0, cell, [6, 3], 1);
        let weights = net.weights();
        let plain = RecurrentInput::new(&net.x, &weights);
        let inference = RecurrentOptions { inference: true, ..RecurrentOptions::default() };
        let without = RecurrentInput { options: inference, ..plain };
        let padded = recurrent(&net.stream, cell, &without).expect("launch");
        assert!(padded.reserve.is_none());
        let lengths = [6i32, 0, 4];
        let given = Tensor::from_slice(&net.device, &lengths, &[3]).expect("memory");
        let options = RecurrentOptions { lengths: Some(given.as_ref()), ..inference };
        let some = recurrent(&net.stream, cell, &RecurrentInput { options, ..plain }).expect("launch");
        let (padded, y) = (floats(&padded.y), floats(&some.y));
        for step in 0..6 {
            for (batch, length) in lengths.iter().enumerate() {
                let at = (step * 3 + batch) * 32..(step * 3 + batch + 1) * 32;
                let valid = step < *length as usize;
                let want = if valid { padded[at.clone()].to_vec() } else { vec![0.0; 32] };
                assert_eq!(y[at], want, "{cell:?} {step} {batch}");
            }
        }
        assert_eq!(floats(&some.h_n)[64..], y[(3 * 3 + 2) * 32..][..32], "the state of the last place");
        assert_eq!(floats(&some.h_n)[32..64], [0.0; 32], "the first state of a sequence without places");
    }
}

/// Lengths lie at multiples of their own size, however large the elements are.
#[test]
fn lengths_lie_anywhere() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let tensor = |shape: &[usize]| {
        let values: Vec<f64> = (0..shape.iter().product()).map(|i| (i as f64).sin()).collect();
        Tensor::from_slice(&device, &values, shape).expect("memory")
    };
    let (x, w_ih, w_hh) = (tensor(&[3, 2, 4]), tensor(&[8, 4]), tensor(&[8, 2]));
    let lengths = Tensor::from_slice(&device, &[7i32, 2, 3], &[3]).expect("memory");
    let weights = [Weights::new(&w_ih, &w_hh)];
    let given = lengths.as_ref().narrow(0, 1, 2).expect("a view");
    let options = RecurrentOptions { lengths: Some(given), ..RecurrentOptions::default() };
    let input = RecurrentInput { options, ..RecurrentInput::new(&x, &weights) };
    let out = recurrent(&stream, Cell::Lstm, &input).expect("launch");
    let y = out.y.to_vec_on::<f64>(&stream).expect("copy");
    assert_eq!(y[8..10], [0.0; 2], "the first sequence has two time steps");
    assert!(y[..8].iter().chain(&y[10..]).all(|y| *y != 0.0 && y.is_finite()), "{y:?}");
    let dy = OutputGradients { dy: Some(&out.y), ..OutputGradients::default() };
    let gradients = recurrent_backward(&stream, Cell::Lstm, &input, &out, dy).expect("launch");
    let dx = gradients.dx.to_vec_on::<f64>(&stream).expect("copy");
    assert_eq!(dx[16..20], [0.0; 4]);
    assert!(dx[..16].iter().all(|dx| *dx != 0.0), "{dx:?}");
}

/// The gradients of the reference against central differences of it.
#[test]
fn gradients_agree_with_central_differences() {
    for (cell, projection) in Cell::ALL.map(|cell| (cell, 0)).into_iter().chain([(Cell::Lstm, 2)]) {
        let sizes = [3, 2, 2, 3];
        let (rows, output) = (cell.gates() * 3, if projection > 0 { projection } else { 3 });
        let list = |len: usize, by: f64| (0..len).map(|i| (i as f64 * by).sin()).collect::<Vec<f64>>();
        let pass = |index: usize| Plain {
            w_ih: list(rows * if index < 2 { 2 } else { 2 * output }, 0.7 + index as f64),
            w_hh: list(rows * output, 1.1 + index as f64),
            w_hr: list(projection * 3, 1.7 + index as f64),
            b_ih: list(rows, 0.3),
            b_hh: list(rows, 0.5),
        };
        let net = Net {
            cell,
            sizes,
            projection,
            directions: 2,
            batch_first: false,
            lengths: vec![3, 2],
            weights: (0..4).map(pass).collect(),
            h0: list(8 * output, 0.4),
            c0: list(24, 0.6),
            factors: vec![list(12 * output, 0.35)],
            kept: |h| h,
        };
        let (x, dy, dh, dc) = (list(12, 0.9), list(12 * output, 1.3), list(8 * output, 1.7), list(24, 2.1));
        let value = |net: &Net, x: &[f64]| {
            let out = net.forward(x);
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            dot(&out.y[1], &dy) + dot(&out.h_n, &dh) + dot(&out.c_n, &dc)
        };
        let y = net.forward(&x).y;
        let got = net.backward(&x, &y, &dy, &dh, &dc);
        let check = |what: &str, slope: f64, at: &dyn Fn(f64) -> f64| {
            let h = 1e-5;
            let difference = (at(h) - at(-h)) / (2.0 * h);
            assert!((difference - slope).abs() < 1e-6, "{cell:?} {what}: {difference} {slope}");
        };
        for i in 0..x.len() {
            check("dx", got.dx[i], &|h| {
                let mut x = x.clone();
                x[i] += h;
                value(&net, &x)
            });
        }
        for pass in 0..4 {
            let changed = |change: &dyn Fn(&mut Plain)| {
                let mut net = net.clone();
                change(&mut net.weights[pass]);
                value(&net, &x)
            };
            for i in [0, 1, rows - 1] {
                check("w_ih", got.weights[pass].w_ih[i], &|h| changed(&|w| w.w_ih[i] += h));
                check("w_hh", got.weights[pass].w_hh[i], &|h| changed(&|w| w.w_hh[i] += h));
                if projection > 0 {
                    check("w_hr", got.weights[pass].w_hr[i.min(5)], &|h| changed(&|w| w.w_hr[i.min(5)] += h));
                }
                check("b_ih", got.weights[pass].b_ih[i], &|h| changed(&|w| w.b_ih[i] += h));
                check("b_hh", got.weights[pass].b_hh[i], &|h| changed(&|w| w.b_hh[i] += h));
            }
        }
        for i in 0..8 * output {
            check("dh0", got.dh0[i], &|h| {
                let mut net = net.clone();
                net.h0[i] += h;
                value(&net, &x)
            });
        }
        for i in 0..if cell.has_c() { 24 } else { 0 } {
            check("dc0", got.dc0[i], &|c| {
                let mut net = net.clone();
                net.c0[i] += c;
                value(&net, &x)
            });
        }
    }
}

#[test]
fn tensors_that_do_not_fit() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let zeros = |shape: &[usize]| {
        let len = shape.iter().product();
        Tensor::from_slice(&device, &vec![0.0f32; len], shape).expect("memory")
    };
    let (x, w_ih, w_hh) = (zeros(&[2, 1, 3]), zeros(&[16, 3]), zeros(&[16, 4]));
    let of = |x: &Tensor, weights: &[Weights<'_>], options| {
        lstm(&stream, &RecurrentInput { options, ..RecurrentInput::new(x, weights) })
    };
    let plain = RecurrentOptions { inference: true, ..RecurrentOptions::default() };
    let run = |x: &Tensor, w_ih: &Tensor, w_hh: &Tensor| {
        of(x, &[Weights { w_ih, w_hh, w_hr: None, b_ih: None, b_hh: None }], plain)
    };
    let good = run(&x, &w_ih, &w_hh).expect("launch");
    assert_eq!(good.y.shape(), [2, 1, 4]);
    let refused = |result: Result<RecurrentOutput, Error>, name| match result {
        Err(Error::Plan(PlanError::Parameter { parameter, .. })) => assert_eq!(parameter, name),
        other => panic!("{name}: {other:?}"),
    };
    refused(run(&w_ih, &w_ih, &w_hh), "x");
    refused(run(&x, &w_hh, &w_hh), "w_ih");
    refused(run(&x, &w_ih, &w_ih), "w_hh");
    refused(run(&x, &w_ih, &x), "w_hh");
    let weights = Weights { w_ih: &w_ih, w_hh: &w_hh, w_hr: None, b_ih: None, b_hh: None };
    let many = Tensor::from_slice(&device, &[1i32, 1], &[2]).expect("memory");
    let e = of(&x, &[weights], RecurrentOptions { lengths: Some(many.as_ref()), ..plain });
    assert!(matches!(e, Err(Error::Runtime(RuntimeError::Elements { argument: "lengths", .. }))), "{e:?}");
    refused(of(&x, &[], plain), "weights");
    let both = RecurrentOptions { bidirectional: true, ..plain };
    refused(of(&x, &[weights], both), "weights");
    refused(of(&x, &[Weights { b_hh: Some(&w_ih), ..weights }], plain), "b_hh");
    refused(of(&x, &[Weights { w_hr: Some(&w_ih), ..weights }], plain), "w_hh");
    refused(of(&x, &[Weights { w_hr: Some(&x), ..weights }], plain), "w_hr");
    let (projected, w_hr) = (zeros(&[16, 2]), zeros(&[2, 4]));
    let projected = Weights { w_hh: &projected, w_hr: Some(&w_hr), ..weights };
    let narrow = of(&x, &[projected], plain).expect("launch");
    assert_eq!((narrow.y.shape(), narrow.h_n.shape()), ([2, 1, 2].as_slice(), [1, 1, 2].as_slice()));
    assert_eq!(narrow.c_n.expect("cells").shape(), [1, 1, 4]);
    refused(of(&x, &[projected, Weights { w_hr: None, ..projected }], both), "w_hr");
    let list = [weights];
    let input = RecurrentInput::new(&x, &list);
    let e = recurrent_backward(&stream, Cell::Lstm, &input, &good, OutputGradients::default());
    assert!(matches!(e, Err(Error::Plan(PlanError::Parameter { parameter: "reserve", .. }))), "{e:?}");
    let mut wrong = recurrent(&stream, Cell::Lstm, &input).expect("launch");
    wrong.reserve = Some(zeros(&[7]));
    let e = recurrent_backward(&stream, Cell::Lstm, &input, &wrong, OutputGradients::default());
    assert!(matches!(e, Err(Error::Runtime(RuntimeError::Elements { argument: "reserve", .. }))), "{e:?}");
    let state = zeros(&[1, 5]);
    let state = State { h0: Some(&state), c0: Some(&state) };
    let e = lstm(&stream, &RecurrentInput { state, ..input }).expect_err("a state of five units");
    assert!(matches!(e, Error::Runtime(RuntimeError::Elements { argument: "h0", .. })), "{e}");
}
