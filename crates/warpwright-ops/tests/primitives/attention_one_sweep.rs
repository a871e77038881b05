//! Gradients of attention in one sweep, whose blocks add to one sum in turn.

use warpwright_ops::attention::reference::{self, Problem};
use warpwright_ops::attention::tuning::WgmmaFused;
use warpwright_ops::attention::{AttentionBackwardDesc, AttentionDesc, AttentionOptions, BackwardAlgorithm};
use warpwright_ops::plan::{Access, Layout, Real};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, EmulatorConfig, Tensor};
use warpwright_testkit::inputs::Input;
use warpwright_testkit::measure::{Expected, compare};
use warpwright_testkit::{Filter, budget, cases, run_case, storage};

use crate::attention::plain;

const TARGET: Target = Target::sm(90);
const DTYPE: DType = DType::BF16;
const BATCH: usize = 2;
const QUERIES: usize = 70;
const KEYS: usize = 150;
const WIDTH: usize = 64;
/// Where the second tile of 128 keys ends within a piece of eight, and within the first rows of a warp.
const LENGTHS: [usize; BATCH] = [150, 130];
const SCALE: f64 = 8.0;

fn desc() -> AttentionBackwardDesc {
    let layout = |rows| Layout::contiguous([BATCH, rows, 1, WIDTH]);
    let (q, k) = (layout(QUERIES), layout(KEYS));
    let options = AttentionOptions {
        softmax_scale: Some(Real::new(SCALE)),
        key_lengths: true,
        ..AttentionOptions::default()
    };
    let forward = AttentionDesc { dtype: DTYPE, q, k, v: k, o: q, options };
    AttentionBackwardDesc { forward, dy: q, dq: q, dk: k, dv: k, dbias: false, dsinks: false }
}

fn problem() -> Problem<'static> {
    Problem {
        batch: BATCH,
        queries: QUERIES,
        keys: KEYS,
        heads: 1,
        key_heads: 1,
        width: WIDTH,
        value_width: WIDTH,
        scale: SCALE,
        lengths: Some(&LENGTHS),
        ..plain()
    }
}

/// Normal numbers, but for the first element of each row.
fn rows(rows: usize, seed: u64, factor: f64, first: Option<f64>) -> Vec<f64> {
    let values = Input::Normal.values(BATCH * rows * WIDTH, seed).into_iter().enumerate();
    let value = |(i, value): (usize, f64)| first.filter(|_| i % WIDTH == 0).unwrap_or(value * factor);
    values.map(value).map(|value| storage::round(DTYPE, value)).collect()
}

/// Scores are about -128, so that `exp(-lse)` is infinite: a key that is not there, whose score is 0, must be left out. Blocks add
/// up the same bits in whatever order they run.
#[test]
fn every_schedule_gives_the_same_gradients_beside_keys_that_are_not_there() {
    let q = rows(QUERIES, 1, 1.0 / 64.0, Some(-4.0));
    let k = rows(KEYS, 2, 1.0, Some(4.0));
    let (v, dy) = (rows(KEYS, 3, 1.0, None), rows(QUERIES, 4, 1.0, None));
    let forward = reference::forward(&problem(), &q, &k, &v);
    assert!(forward.lse.iter().all(|lse| *lse < -100.0));
    let layout = WgmmaFused { columns: 32, tiles: 4, width: 64, ahead: false };
    let algorithm = BackwardAlgorithm::WgmmaFused { layout, heads_at_once: None };
    let plan = desc().plan_with(TARGET, algorithm).expect("plan");
    let gradients = |(seed, threads): (u64, usize)| {
        let config = EmulatorConfig { target: TARGET, seed, threads, ..EmulatorConfig::default() };
        let device = Device::emulator_with(config);
        let stream = device.stream().expect("stream");
        let tensors: Vec<_> = plan
            .tensors()
            .iter()
            .map(|spec| {
                let values = match spec.name {
                    "q" => &q,
                    "k" => &k,
                    "v" => &v,
                    "dy" => &dy,
                    "o" => &forward.o,
                    "lse" => &forward.lse,
                    "key_lengths" => &LENGTHS.map(|length| length as f64).to_vec(),
                    _ => {
                        assert!(spec.access != Access::Read || spec.len == 0, "{}", spec.name);
                        return Tensor::empty(&device, spec.dtype, &[spec.len]).expect("memory");
                    }
                };
                let bytes = storage::encode(spec.dtype, values);
                Tensor::from_bytes(&device, spec.dtype, &bytes, &[spec.len]).expect("memory")
            })
            .collect();
        let bindings: Vec<_> = tensors.iter().map(Tensor::binding).collect();
        for step in plan.steps() {
            stream.launch(step, &bindings).expect("launch");
        }
        assert!(device.findings().is_empty(), "{:?}", device.findings());
        ["dq", "dk", "dv"].map(|name| {
            let slot = plan.tensors().iter().position(|spec| spec.name == name).expect("a gradient");
            storage::decode(DTYPE, &tensors[slot].to_bytes().expect("read"))
        })
    };
    let all = [(0, 1), (1, 2), (2, 2)].map(gradients);
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    let want = reference::backward(&problem(), &q, &k, &v, &dy);
    let want = [(&want.dq, &want.dq_scale), (&want.dk, &want.dk_scale), (&want.dv, &want.dv_scale)];
    for (name, (got, (values, scales))) in ["dq", "dk", "dv"].iter().zip(all[0].iter().zip(want)) {
        let expected = values.iter().zip(scales).map(|(value, scale)| Expected {
            value: *value,
            scale: *scale,
            underflow: 1e-30,
        });
        let comparison = compare(DTYPE, got, &expected.collect::<Vec<_>>(), f64::NAN);
        // Of scores that are so much greater than those of normal queries and keys.
        assert!(comparison.within(budget::attention(DTYPE, 128.0)), "{name}: {comparison:?}");
    }
}

/// The testkit's cases of one sweep, of which a sample of all cases has few.
#[test]
fn every_case_is_within_its_budget() {
    let device = Device::emulator();
    let all = cases(&Filter { ops: vec!["attention".to_owned()], target: Some(TARGET), ..Filter::default() });
    let all: Vec<_> = all.iter().filter(|case| case.input.contains("one sweep")).collect();
    assert!(all.len() >= 16, "{} cases", all.len());
    for case in all {
        let result = run_case(&device, case);
        assert!(result.ok, "{case}: {:?} {:?}", result.reason, result.findings);
    }
}
