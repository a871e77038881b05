//! Caches of e4m3: what is written comes back through attention, queries of any size, and what is refused.

use warpwright_ops::attention::{
    AttentionBackwardDesc, AttentionDesc, AttentionOptions, CacheScale, Float8Cache, Packed, Scores,
    attention,
};
use warpwright_ops::kv_cache::{AppendKvCacheDesc, KvCache, append_kv_cache};
use warpwright_ops::plan::{Layout, Real};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};
use warpwright_testkit::inputs::Input;
use warpwright_testkit::storage;

const TARGET: Target = Target::sm(90);
const TENSOR: CacheScale = CacheScale::PerTensor;
const FLOAT8: Option<Float8Cache> = Some(Float8Cache { k_scale: TENSOR, v_scale: TENSOR });

fn tensor(device: &Device, dtype: DType, values: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_bytes(device, dtype, &storage::encode(dtype, values), shape).expect("memory")
}

fn numbers(x: &Tensor) -> Vec<f64> {
    storage::decode(x.dtype(), &x.to_bytes().expect("read"))
}

fn draw(shape: &[usize], salt: u64) -> Vec<f64> {
    Input::Normal.values(shape.iter().product(), salt)
}

/// New keys and values in pages, with scales of heads that are powers of two: what is read are their nearest e4m3 numbers, which bf16
/// holds, too, so that attention over these gives the same but for roundings.
#[test]
fn what_is_appended_is_attended_to() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (steps, new_shape, cache_shape) = (40, [2, 40, 2, 64], [7, 16, 2, 64]);
    let scales = [0.5, 2.0];
    let scale = tensor(&device, DType::F32, &scales, &[2]);
    let lengths = Tensor::from_slice(&device, &[steps; 2], &[2]).expect("memory");
    let table = Tensor::from_slice(&device, &[5i32, 1, 3, 0, 6, 2], &[2, 3]).expect("memory");
    for dtype in [DType::F16, DType::BF16] {
        let [k, v] = [1, 2].map(|salt| tensor(&device, dtype, &draw(&new_shape, salt), &new_shape));
        let q = tensor(&device, dtype, &draw(&[2, 1, 6, 64], 3), &[2, 1, 6, 64]);
        let [mut keys, mut values] =
            [(); 2].map(|()| Tensor::zeros(&device, DType::F8E4M3, &cache_shape).expect("memory"));
        let cache = KvCache {
            key_lengths: Some(lengths.as_ref()),
            block_table: Some(table.as_ref()),
            k_scale: Some(scale.as_ref()),
            v_scale: Some(scale.as_ref()),
            ..KvCache::new(&mut keys, &mut values)
        };
        append_kv_cache(&stream, &k, &v, cache).expect("append");
        let scores = Scores { key_lengths: Some(lengths.as_ref()), ..Scores::default() };
        let of_cache = Scores {
            block_table: Some(table.as_ref()),
            k_scale: Some(scale.as_ref()),
            v_scale: Some(scale.as_ref()),
            ..scores
        };
        let got = attention(&stream, &q, &keys, &values, of_cache).expect("attention");
        let nearest = |x: &Tensor| {
            let of = |(at, x): (usize, f64)| {
                let scale = scales[at / 64 % 2];
                storage::round(DType::F8E4M3, x / scale) * scale
            };
            let rounded: Vec<f64> = numbers(x).into_iter().enumerate().map(of).collect();
            assert_ne!(rounded, numbers(x));
            tensor(&device, dtype, &rounded, &new_shape)
        };
        let want = attention(&stream, &q, &nearest(&k), &nearest(&v), scores).expect("attention");
        for (got, want, within) in [(&got.o, &want.o, 0.01), (&got.lse, &want.lse, 1e-5)] {
            let (got, want) = (numbers(got), numbers(want));
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < within), "{got:?} {want:?}");
        }
    }
}

/// Queries of bf16 that `f16` does not hold give the result of those that it does, bit for bit; each row has a size of its own.
#[test]
fn queries_of_any_size_are_taken() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let scale = tensor(&device, DType::F32, &[1.0], &[1]);
    // Two heads of a key head: rows of the same tile.
    let (of_q, of_k) = ([1, 2, 2, 64], [1, 90, 1, 64]);
    let k = tensor(&device, DType::F8E4M3, &draw(&of_k, 1), &of_k);
    let of = |softmax_scale: f64, sizes: [f64; 2]| {
        let q: Vec<f64> = draw(&of_q, 2).iter().enumerate().map(|(at, x)| x * sizes[at / 64 % 2]).collect();
        let q = tensor(&device, DType::BF16, &q, &of_q);
        let (softmax_scale, k_scale) = (Some(softmax_scale), Some(scale.as_ref()));
        let scores = Scores { softmax_scale, k_scale, v_scale: k_scale, ..Scores::default() };
        numbers(&attention(&stream, &q, &k, &k, scores).expect("attention").o)
    };
    let plain = of(0.125, [1.0, 1.0]);
    assert!(plain.iter().all(|x| x.is_finite()));
    for bits in [60, -60] {
        let size = 2f64.powi(bits);
        assert_eq!(of(0.125 / size, [size; 2]), plain);
        let of_one: Vec<f64> = of(0.125 / size, [size, 0.0]);
        assert_eq!(of_one[..64], plain[..64]);
    }
}

fn desc(dtype: DType) -> AttentionDesc {
    let of = |rows, heads| Layout::contiguous([2, rows, heads, 64]);
    let options = AttentionOptions { float8: FLOAT8, ..AttentionOptions::default() };
    AttentionDesc { dtype, q: of(1, 4), k: of(90, 2), v: of(90, 2), o: of(1, 4), options }
}

#[test]
fn each_target_has_its_kernels() {
    let name = |sm, desc: AttentionDesc| {
        let plan = desc.plan(Target::sm(sm)).expect("plan");
        plan.steps()[0].kernel().name().to_owned()
    };
    for dtype in [DType::F16, DType::BF16] {
        let of = |what: &str| format!("attention_decode_{dtype}_f8e4m3_{what}");
        assert!(name(90, desc(dtype)).starts_with(&of("tma")));
        assert!(name(120, desc(dtype)).starts_with(&of("tma")));
        assert!(name(89, desc(dtype)).starts_with(&of("mma")));
        // Many queries are for the same kernels.
        let many = Layout::contiguous([2, 100, 4, 64]);
        assert!(name(90, AttentionDesc { q: many, o: many, ..desc(dtype) }).starts_with(&of("tma")));
        // Rows of 8 bytes, or of odd ones.
        for (width, vector) in [(8, 4), (9, 1)] {
            let narrow = |layout: Layout| {
                let [batch, rows, heads, _] = layout.shape;
                Layout::contiguous([batch, rows, heads, width])
            };
            let AttentionDesc { q, k, v, o, .. } = desc(dtype);
            let narrow =
                AttentionDesc { q: narrow(q), k: narrow(k), v: narrow(v), o: narrow(o), ..desc(dtype) };
            let name = name(89, narrow);
            assert!(name.starts_with(&of("simt")) && name.contains(&format!("x{vector}")), "{name}");
        }
    }
}

#[test]
fn descriptors_without_kernels_are_refused() {
    let plan = |desc: &AttentionDesc| desc.plan(TARGET).map(drop);
    for dtype in [DType::F32, DType::F64] {
        let e = plan(&desc(dtype));
        assert!(matches!(e, Err(PlanError::DType { tensor: "q", .. })), "{e:?}");
    }
    for sm in [75, 80, 86] {
        let e = desc(DType::BF16).plan(Target::sm(sm)).map(drop);
        assert!(matches!(e, Err(PlanError::Target { op: "attention", needs: 89, .. })), "{e:?}");
    }
    let refused = |options| {
        let e = plan(&AttentionDesc { options, ..desc(DType::BF16) });
        assert!(matches!(e, Err(PlanError::Parameter { parameter: "float8", .. })), "{e:?}");
    };
    let options = desc(DType::BF16).options;
    refused(AttentionOptions { dropout: Some(Real::new(0.5)), ..options });
    let packed = Some(Packed { sequences: 2, longest_queries: 1, longest_keys: 9 });
    refused(AttentionOptions { packed, ..options });
    let forward = desc(DType::BF16);
    let (dy, dq, dk, dv) = (forward.o, forward.q, forward.k, forward.v);
    let e =
        AttentionBackwardDesc { forward, dy, dq, dk, dv, dbias: false, dsinks: false }.plan(TARGET).map(drop);
    assert!(matches!(e, Err(PlanError::Parameter { parameter: "float8", .. })), "{e:?}");

    let of = |rows| Layout::contiguous([2, rows, 2, 64]);
    let append = AppendKvCacheDesc {
        dtype: DType::BF16,
        q: None,
        k: of(1),
        v: of(1),
        k_cache: of(90),
        v_cache: of(90),
        rotation: None,
        key_lengths: true,
        paged: None,
        float8: FLOAT8,
    };
    append.plan(TARGET).expect("plan");
    let e = append.plan(Target::sm(80)).map(drop);
    assert!(matches!(e, Err(PlanError::Target { op: "append_kv_cache", needs: 89, .. })), "{e:?}");
    let e = AppendKvCacheDesc { dtype: DType::F32, ..append }.plan(TARGET).map(drop);
    assert!(matches!(e, Err(PlanError::DType { tensor: "k", .. })), "{e:?}");
}

/// The tensor or parameter that a call is refused for, and what it is.
fn complaint<T: std::fmt::Debug>(result: Result<T, Error>) -> (String, String) {
    match result {
        Err(Error::Plan(PlanError::Parameter { parameter, got, .. })) => (parameter.to_owned(), got),
        Err(Error::Plan(PlanError::DType { tensor, got, .. })) => (tensor.to_owned(), got.name().to_owned()),
        Err(Error::Runtime(warpwright_runtime::Error::DType { argument, got, .. })) => {
            (argument.to_owned(), got.name().to_owned())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn functions_refuse_caches_and_scales_that_do_not_fit() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let zeros = |dtype, shape: &[usize]| Tensor::zeros(&device, dtype, shape).expect("memory");
    let (e4m3, e5m2, bf16) = (DType::F8E4M3, DType::F8E5M2, DType::BF16);
    let one = zeros(DType::F32, &[1]);
    let of = |k: DType, v: DType, scales: [Option<&Tensor>; 2]| {
        let (q, new) = (zeros(bf16, &[1, 1, 4, 16]), zeros(bf16, &[1, 1, 2, 16]));
        let (mut k, mut v) = (zeros(k, &[1, 16, 2, 16]), zeros(v, &[1, 16, 2, 16]));
        let [k_scale, v_scale] = scales.map(|scale| scale.map(Tensor::as_ref));
        let scores = Scores { k_scale, v_scale, ..Scores::default() };
        let attended = complaint(attention(&stream, &q, &k, &v, scores));
        let cache = KvCache { k_scale, v_scale, ..KvCache::new(&mut k, &mut v) };
        (attended, complaint(append_kv_cache(&stream, &new, &new, cache)))
    };
    let both = |names: [&str; 2], what: &str| {
        let [attended, appended] = names.map(|name| (name.to_owned(), what.to_owned()));
        (attended, appended)
    };
    let some = [Some(&one); 2];
    assert_eq!(of(e5m2, e5m2, some), both(["k", "k_cache"], "f8e5m2"));
    assert_eq!(of(e4m3, e5m2, some), both(["v", "v_cache"], "f8e5m2"));
    assert_eq!(of(e4m3, bf16, some), both(["v", "v_cache"], "bf16"));
    assert_eq!(of(bf16, e4m3, some), both(["k", "k_cache"], "bf16"));
    assert_eq!(of(e4m3, e4m3, [Some(&one), None]), both(["v_scale"; 2], "none"));
    assert_eq!(of(e4m3, e4m3, [None, Some(&one)]), both(["k_scale"; 2], "none"));
    assert_eq!(of(bf16, bf16, [None, Some(&one)]), both(["v_scale"; 2], "[1]"));
    let (three, table) = (zeros(DType::F32, &[3]), zeros(DType::F32, &[1, 2]));
    assert_eq!(of(e4m3, e4m3, [Some(&three), Some(&one)]), both(["k_scale"; 2], "[3]"));
    assert_eq!(of(e4m3, e4m3, [Some(&one), Some(&table)]), both(["v_scale"; 2], "[1, 2]"));
    let half = zeros(DType::F16, &[1]);
    assert_eq!(of(e4m3, e4m3, [Some(&half), Some(&one)]), both(["k_scale"; 2], "f16"));
}
