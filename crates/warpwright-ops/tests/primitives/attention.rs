//! Attention: gradients of the reference against central differences of it, and what a descriptor or a launch is refused.

use warpwright_ops::attention::reference::{Problem, backward, forward};
use warpwright_ops::attention::{
    Alignment, AttentionArgs, AttentionBackwardDesc, AttentionDesc, AttentionGradients, AttentionInputs,
    AttentionOptions, Packed, PackedRows, Paged, Scores, attention, attention_backward, check_block_table,
    check_key_lengths, check_offsets,
};
use warpwright_ops::plan::{Layout, Real};
use warpwright_ops::{Dropout, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Error, Tensor};
use warpwright_testkit::inputs::Input;
use warpwright_testkit::measure::gradient_error;
use warpwright_testkit::storage;

pub(crate) const TARGET: Target = Target::sm(90);

pub(crate) fn layout(rows: usize, heads: usize, width: usize) -> Layout {
    Layout::contiguous([2, rows, heads, width])
}

fn desc() -> AttentionDesc {
    AttentionDesc {
        dtype: DType::F32,
        q: layout(5, 4, 16),
        k: layout(7, 2, 16),
        v: layout(7, 2, 8),
        o: layout(5, 4, 8),
        options: AttentionOptions::default(),
    }
}

/// 16-bit elements in rows of `width`, two heads of queries for each of keys.
pub(crate) fn of_halves(width: usize) -> AttentionDesc {
    AttentionDesc {
        dtype: DType::BF16,
        q: layout(64, 4, width),
        k: layout(80, 2, width),
        v: layout(80, 2, width),
        o: layout(64, 4, width),
        options: AttentionOptions::default(),
    }
}

/// The names of the fields that are objected to.
fn refused(desc: &AttentionDesc) -> &'static str {
    match desc.plan(TARGET) {
        Err(PlanError::Parameter { op: "attention", parameter, .. }) => parameter,
        Err(PlanError::DType { tensor, .. }) => tensor,
        other => panic!("{other:?}"),
    }
}

#[test]
fn descriptors_without_a_meaning_are_refused() {
    desc().plan(TARGET).expect("the model of the others");
    let wide = |width| AttentionDesc {
        q: layout(5, 4, width),
        k: layout(7, 2, width),
        v: layout(7, 2, width),
        o: layout(5, 4, width),
        ..desc()
    };
    wide(256).plan(TARGET).expect("the widest");
    assert_eq!(refused(&wide(257)), "head_dim of q");
    assert_eq!(refused(&wide(0)), "head_dim of q");
    assert_eq!(
        refused(&AttentionDesc { v: layout(7, 2, 264), o: layout(5, 4, 264), ..desc() }),
        "head_dim of v"
    );
    assert_eq!(refused(&AttentionDesc { k: layout(7, 3, 16), v: layout(7, 3, 8), ..desc() }), "num_kv_heads");
    assert_eq!(refused(&AttentionDesc { k: layout(7, 2, 24), ..desc() }), "k");
    assert_eq!(refused(&AttentionDesc { k: layout(6, 2, 16), ..desc() }), "k");
    assert_eq!(refused(&AttentionDesc { o: layout(5, 4, 16), ..desc() }), "o");
    assert_eq!(refused(&AttentionDesc { dtype: DType::I32, ..desc() }), "q");
    let mut across = desc();
    across.q.strides = [320, 1, 80, 5];
    assert_eq!(refused(&across), "q");
    let mut overlapping = desc();
    overlapping.o.strides[1] = 8;
    assert_eq!(refused(&overlapping), "o");
    let with = |options| AttentionDesc { options, ..desc() };
    let none = AttentionOptions::default();
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let value = Some(Real::new(value));
        assert_eq!(refused(&with(AttentionOptions { softmax_scale: value, ..none })), "softmax_scale");
        assert_eq!(refused(&with(AttentionOptions { softcap: value, ..none })), "softcap");
    }
    for value in [-0.1, 1.5, f64::NAN] {
        let dropout = Some(Real::new(value));
        assert_eq!(refused(&with(AttentionOptions { dropout, ..none })), "dropout.probability");
    }
    let bias = Some(Layout::contiguous([2, 4, 5, 6]));
    assert_eq!(refused(&with(AttentionOptions { bias, ..none })), "bias");
}

pub(crate) fn backward_of(forward: AttentionDesc) -> AttentionBackwardDesc {
    let (dy, dq, dk, dv) = (forward.o, forward.q, forward.k, forward.v);
    AttentionBackwardDesc { forward, dy, dq, dk, dv, dbias: false, dsinks: false }
}

#[test]
fn packed_and_paged_descriptors_without_a_meaning_are_refused() {
    let one = |rows, heads, width| Layout::contiguous([1, rows, heads, width]);
    let packed = |longest_queries, longest_keys| AttentionDesc {
        q: one(5, 4, 16),
        k: one(7, 2, 16),
        v: one(7, 2, 8),
        o: one(5, 4, 8),
        options: AttentionOptions {
            packed: Some(Packed { sequences: 3, longest_queries, longest_keys }),
            ..AttentionOptions::default()
        },
        ..desc()
    };
    let of = |desc: &AttentionDesc, name: &str| {
        let plan = desc.plan(TARGET).expect("plan");
        plan.tensors().iter().find(|t| t.name == name).map_or(0, |t| t.len)
    };
    assert_eq!(of(&packed(5, 7), "query_offsets"), 4);
    assert_eq!(refused(&packed(6, 7)), "packed");
    assert_eq!(refused(&packed(5, 8)), "packed");
    let options = AttentionOptions { key_lengths: true, ..packed(5, 7).options };
    assert_eq!(refused(&AttentionDesc { options, ..packed(5, 7) }), "key_lengths");
    assert_eq!(refused(&AttentionDesc { options: packed(5, 7).options, ..desc() }), "q");

    let paged = |rows, key_lengths| AttentionDesc {
        k: Layout::contiguous([9, rows, 2, 16]),
        v: Layout::contiguous([9, rows, 2, 8]),
        options: AttentionOptions {
            key_lengths,
            paged: Some(Paged { pages: 4 }),
            ..AttentionOptions::default()
        },
        ..desc()
    };
    assert_eq!(of(&paged(16, true), "block_table"), 8);
    assert_eq!(refused(&paged(8, true)), "rows of a page");
    assert_eq!(refused(&paged(48, true)), "rows of a page");
    assert_eq!(refused(&paged(16, false)), "paged");
    let options = AttentionOptions { dropout: Some(Real::new(0.1)), ..paged(16, true).options };
    assert_eq!(refused(&AttentionDesc { options, ..paged(16, true) }), "dropout");
    let forward = paged(16, true);
    let backward = backward_of(forward);
    assert!(matches!(backward.plan(TARGET), Err(PlanError::Parameter { parameter: "paged", .. })));
    let none = AttentionBackwardDesc { dbias: true, ..backward_of(desc()) };
    assert!(matches!(none.plan(TARGET), Err(PlanError::Parameter { parameter: "dbias", .. })));
    let none = AttentionBackwardDesc { dsinks: true, ..backward_of(desc()) };
    assert!(matches!(none.plan(TARGET), Err(PlanError::Parameter { parameter: "dsinks", .. })));
}

#[test]
fn offsets_are_checked_on_the_host() {
    let refused = |offsets: &[i32]| match check_offsets("query_offsets", offsets, 10) {
        Err(PlanError::Parameter { op: "attention", parameter: "query_offsets", got, .. }) => got,
        other => panic!("{other:?}"),
    };
    assert_eq!(check_offsets("query_offsets", &[0, 4, 4, 10], 10).ok(), Some(6));
    assert_eq!(check_offsets("query_offsets", &[3], 10).ok(), Some(0));
    assert_eq!(refused(&[0, 4, 3]), "3 at 2");
    assert_eq!(refused(&[-1, 4]), "-1 at 0");
    assert_eq!(refused(&[0, 11]), "11 at 1");
    assert_eq!(refused(&[]), "no numbers");
}

/// Offsets that the host did not check read and write nothing outside of the tensors.
#[test]
fn offsets_on_the_device_that_lead_outside_are_cut() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let tensor = |len: usize, shape: &[usize]| {
        Tensor::from_slice(&device, &Input::Normal.values(len, 3), shape).expect("memory")
    };
    let (q, k, v) =
        (tensor(6 * 8, &[1, 6, 1, 8]), tensor(6 * 8, &[1, 6, 1, 8]), tensor(6 * 8, &[1, 6, 1, 8]));
    let offsets = Tensor::from_slice(&device, &[-5i32, 4, 900, 2], &[4]).expect("memory");
    let packed = PackedRows {
        query_offsets: offsets.as_ref(),
        key_offsets: offsets.as_ref(),
        longest_queries: 6,
        longest_keys: 6,
    };
    let scores = Scores { packed: Some(packed), ..Scores::default() };
    let out = attention(&stream, &q, &k, &v, scores).expect("clean");
    // The first sequence has rows 0 to 3, the second the other two, the third none.
    let o = out.o.to_vec::<f64>().expect("read");
    assert!(o.iter().all(|x| x.is_finite()));
}

#[test]
fn lengths_and_pages_are_checked_on_the_host() {
    let refused = |found| match found {
        Err(PlanError::Parameter { op: "attention", parameter, got, .. }) => (parameter, got),
        other => panic!("{other:?}"),
    };
    assert!(check_key_lengths(&[0, 64], 64).is_ok());
    assert_eq!(refused(check_key_lengths(&[64, 65, -1], 64)), ("key_lengths", "65 at 1".to_owned()));
    assert_eq!(refused(check_key_lengths(&[-1], 64)), ("key_lengths", "-1 at 0".to_owned()));
    let check = |table: &[i32]| check_block_table(table, Paged { pages: 2 }, &[17, 16], 16, 3);
    // The second sequence reads one page only.
    assert!(check(&[2, 0, 1, -1]).is_ok());
    assert_eq!(refused(check(&[2, 3, 1, 0])), ("block_table", "3 at [0, 1]".to_owned()));
    assert_eq!(refused(check(&[2, 0, -1, 0])), ("block_table", "-1 at [1, 0]".to_owned()));
}

/// Lengths and pages that the host did not check read nothing outside of the tensors, in any of the kernels for them.
#[test]
fn lengths_and_pages_on_the_device_that_lead_outside_are_cut() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let tensor = |shape: &[usize]| {
        let values = Input::Normal.values(shape.iter().product(), 3);
        let values: Vec<f32> = values.into_iter().map(|v| v as f32).collect();
        Tensor::from_slice(&device, &values, shape).expect("memory")
    };
    let numbers =
        |values: &[i32], shape: &[usize]| Tensor::from_slice(&device, values, shape).expect("memory");
    let lengths = numbers(&[i32::MIN, 20, 999, i32::MAX], &[4]);
    for width in [32, 64] {
        let (q, k) = (tensor(&[4, 3, 2, width]), tensor(&[4, 40, 2, width]));
        let scores = Scores { key_lengths: Some(lengths.as_ref()), ..Scores::default() };
        let out = attention(&stream, &q, &k, &k, scores).expect("clean");
        assert!(out.o.to_vec::<f32>().expect("read").iter().all(|x| x.is_finite()));
        let long = tensor(&[4, 70, 2, width]);
        let out = attention(&stream, &long, &k, &k, scores).expect("clean");
        assert!(out.o.to_vec::<f32>().expect("read").iter().all(|x| x.is_finite()));

        let cache = tensor(&[3, 16, 2, width]);
        let table = [i32::MIN, 7, 1, i32::MAX, -1, 2, 99, 0, 3, 1, -5, 2];
        let table = numbers(&table, &[4, 3]);
        let scores = Scores { block_table: Some(table.as_ref()), ..scores };
        for q in [&q, &long] {
            let out = attention(&stream, q, &cache, &cache, scores).expect("clean");
            assert!(out.o.to_vec::<f32>().expect("read").iter().all(|x| x.is_finite()));
        }
    }
}

/// Lengths lie at multiples of their own size, however large the elements are.
#[test]
fn lengths_lie_anywhere() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let tensor = |shape: &[usize], salt| {
        let values = Input::Normal.values(shape.iter().product(), salt);
        Tensor::from_slice(&device, &values, shape).expect("memory")
    };
    let numbers = |values: &[i32]| Tensor::from_slice(&device, values, &[values.len()]).expect("memory");
    let (aligned, shifted) = (numbers(&[3, 20]), numbers(&[99, 3, 20]));
    let shifted = shifted.as_ref().narrow(0, 1, 2).expect("a view");
    // Few queries, whose keys are shared out, and many.
    for queries in [3, 20] {
        let (q, k) = (tensor(&[2, queries, 2, 32], 3), tensor(&[2, 24, 2, 32], 4));
        let of = |key_lengths| {
            let scores = Scores { key_lengths: Some(key_lengths), ..Scores::default() };
            let out = attention(&stream, &q, &k, &k, scores).expect("launch");
            let gradients = attention_backward(&stream, &q, &k, &k, &out, &out.o, scores).expect("launch");
            [&out.o, &gradients.dq, &gradients.dk].map(|x| x.to_vec_on::<f64>(&stream).expect("copy"))
        };
        let (want, got) = (of(aligned.as_ref()), of(shifted));
        // Another layout, which sums in another order.
        for (want, got) in want.iter().zip(&got).flat_map(|(want, got)| want.iter().zip(got)) {
            assert!((want - got).abs() <= 1e-12, "{queries} queries: {got} is not {want}");
        }
        assert!(got.iter().all(|tensor| tensor.iter().any(|x| *x != 0.0)));
    }
}

#[test]
fn few_queries_share_out_their_keys() {
    let plan = |batch, queries, keys| {
        let layout = |rows, heads| Layout::contiguous([batch, rows, heads, 128]);
        let (q, k) = (layout(queries, 32), layout(keys, 8));
        let options = AttentionOptions::default();
        AttentionDesc { dtype: DType::BF16, q, k, v: k, o: q, options }.plan(TARGET).expect("plan")
    };
    let names = |plan: &warpwright_ops::Plan<AttentionDesc>| -> Vec<String> {
        plan.steps().iter().map(|step| step.kernel().name().to_owned()).collect()
    };
    let few = plan(1, 1, 8192);
    assert_eq!(few.steps().len(), 2, "{:?}", names(&few));
    assert!(names(&few)[0].contains("_tma_"), "{:?}", names(&few));
    let bytes = few.workspace_bytes();
    assert!(bytes > 0 && bytes.is_multiple_of(32 * 129 * 4), "{bytes}");
    // Enough sequences to fill the device need no parts.
    assert_eq!(plan(32, 1, 8192).steps().len(), 1);
    assert_eq!(plan(32, 1, 8192).workspace_bytes(), 0);
    assert!(names(&plan(1, 16, 8192))[0].starts_with("attention_decode"));
    assert!(!names(&plan(1, 17, 8192))[0].starts_with("attention_decode"));
}

#[test]
fn launches_are_refused_before_anything_runs() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let desc = desc();
    let plan = desc.plan(device.target()).expect("plan");
    let zeros = |layout: Layout| Tensor::zeros(&device, DType::F32, &layout.shape).expect("memory");
    let (q, k, v) = (zeros(desc.q), zeros(desc.k), zeros(desc.v));
    let launch = |q: &Tensor, permuted: bool| {
        let (mut o, mut lse) =
            (zeros(desc.o), Tensor::zeros(&device, DType::F32, &[2, 4, 5]).expect("memory"));
        let mut q = q.as_ref();
        if permuted {
            q = q.permute(&[0, 2, 1, 3]).expect("permute");
        }
        let inputs = AttentionInputs::new(q, k.as_ref(), v.as_ref());
        let (o, lse, workspace) = (o.as_mut(), lse.as_mut(), None);
        plan.launch(&stream, AttentionArgs { inputs, o, lse, workspace })
    };
    launch(&q, false).expect("fits");
    let other = Tensor::zeros(&device, DType::F32, &[2, 4, 5, 16]).expect("memory");
    match launch(&other, true) {
        Err(Error::Strides { argument: "q", expected, .. }) => assert_eq!(*expected, [320, 64, 16, 1]),
        result => panic!("{result:?}"),
    }
    assert!(matches!(launch(&other, false), Err(Error::Shape { argument: "q", .. })));
    let half = Tensor::zeros(&device, DType::F16, &desc.q.shape).expect("memory");
    assert!(matches!(launch(&half, false), Err(Error::DType { argument: "q", .. })));
    let elsewhere = Tensor::zeros(&Device::emulator(), DType::F32, &desc.q.shape).expect("memory");
    assert!(matches!(launch(&elsewhere, false), Err(Error::WrongDevice { .. })));
}

/// Results of the free functions, in f64, against the reference.
#[test]
fn free_functions_give_result_and_gradients() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let values = |len, seed| Input::Normal.values(len, seed);
    let (q, k, v, dy) = (values(80, 1), values(56, 2), values(28, 3), values(40, 4));
    let tensor = |x: &[f64], shape: [usize; 4]| Tensor::from_slice(&device, x, &shape).expect("memory");
    let tensors = [
        tensor(&q, [1, 5, 2, 8]),
        tensor(&k, [1, 7, 1, 8]),
        tensor(&v, [1, 7, 1, 4]),
        tensor(&dy, [1, 5, 2, 4]),
    ];
    let [tq, tk, tv, tdy] = tensors.each_ref();
    let scores = Scores { causal: true, alignment: Alignment::TopLeft, ..Scores::default() };
    let out = attention(&stream, tq, tk, tv, scores).expect("forward");
    let gradients = attention_backward(&stream, tq, tk, tv, &out, tdy, scores).expect("backward");
    let p = Problem { right: Some(0), bottom_right: false, ..plain() };
    let (f, b) = (forward(&p, &q, &k, &v), backward(&p, &q, &k, &v, &dy));
    let near = |got: &Tensor, want: &[f64]| {
        let got = got.to_vec::<f64>().expect("read");
        assert_eq!(got.len(), want.len());
        got.iter().zip(want).for_each(|(g, w)| assert!((g - w).abs() < 1e-12, "{g} for {w}"));
    };
    near(&out.o, &f.o);
    near(&out.lse, &f.lse);
    let AttentionGradients { dq, dk, dv, .. } = gradients;
    [dq, dk, dv].iter().zip([&b.dq, &b.dk, &b.dv]).for_each(|(got, want)| near(got, want));
}

/// Queries and keys that all see each other.
pub(crate) fn plain<'a>() -> Problem<'a> {
    Problem {
        batch: 1,
        queries: 5,
        keys: 7,
        heads: 2,
        key_heads: 1,
        width: 8,
        value_width: 4,
        scale: 8f64.sqrt().recip(),
        softcap: None,
        left: None,
        right: None,
        bottom_right: true,
        lengths: None,
        query_lengths: None,
        bias: None,
        slope: None,
        sink: None,
        mask: None,
        dropout: None,
    }
}

/// With values of 1 in one place for each key the result is the matrix of what the probabilities are multiplied by, times them: of
/// equal scores.
#[test]
fn what_is_dropped_is_a_function_of_numbers() {
    const KEYS: usize = 64;
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let identity: Vec<f32> =
        (0..2 * KEYS * KEYS).map(|at| f32::from(at / KEYS % KEYS == at % KEYS)).collect();
    let v = Tensor::from_slice(&device, &identity, &[2, KEYS, 1, KEYS]).expect("memory");
    let zeros = |rows: usize, heads: usize| {
        Tensor::zeros(&device, DType::F32, &[2, rows, heads, KEYS]).expect("memory")
    };
    let k = zeros(KEYS, 1);
    let dropped = |queries: usize, seed: i64, offset: i64, probability: f64| {
        let (seed, offset) = (seed.cast_unsigned(), offset.cast_unsigned());
        let dropout = Some(Dropout { probability: probability as f32, seed, offset });
        let q = zeros(queries, 2);
        let out = attention(&stream, &q, &k, &v, Scores { dropout, ..Scores::default() }).expect("forward");
        let lse = out.lse.to_vec::<f32>().expect("read");
        assert!(lse.iter().all(|x| (x - (KEYS as f32).ln()).abs() < 1e-5), "lse is without dropout");
        out.o.to_vec::<f32>().expect("read")
    };
    for (queries, seed, offset, probability) in
        [(40usize, 7, 0, 0.25f64), (3, -1, i64::MAX, 0.9), (40, 7, 1 << 40, 0.0), (17, 0, 0, 1.0)]
    {
        let found = dropped(queries, seed, offset, probability);
        let dropout = Dropout {
            probability: probability as f32,
            seed: seed.cast_unsigned(),
            offset: offset.cast_unsigned(),
        };
        for (at, found) in found.iter().enumerate() {
            let (key, head, query, batch) =
                (at % KEYS, at / KEYS % 2, at / KEYS / 2 % queries, at / KEYS / 2 / queries);
            let row = ((batch * 2 + head) * queries + query) as u64;
            let factor =
                if dropout.keeps((row << 28) + key as u64) { 1.0 / (1.0 - probability) } else { 0.0 };
            let want = factor / KEYS as f64;
            assert!((f64::from(*found) - want).abs() < 1e-6, "{at}: {found} for {want}");
        }
    }
    assert_eq!(dropped(20, 1, 2, 0.5), dropped(20, 1, 2, 0.5));
    assert_ne!(dropped(20, 1, 2, 0.5), dropped(20, 1, 3, 0.5));
    assert_ne!(dropped(20, 1, 2, 0.5), dropped(20, 2, 2, 0.5));
}

/// Every modification at once, and none: the derivative by each element of q, k, v and of the scores.
#[test]
fn gradients_agree_with_central_differences() {
    let values = |len, seed| Input::Normal.values(len, seed);
    let (q, k, v, dy) = (values(80, 1), values(56, 2), values(28, 3), values(40, 4));
    let added = values(70, 5);
    let with = |bias: &dyn Fn(usize, usize, usize, usize) -> f64,
                everything: bool,
                f: &dyn Fn(&Problem<'_>) -> f64| {
        let slope = |_: usize, head: usize| 0.1 + 0.2 * head as f64;
        let lengths = [6];
        let mut p = Problem { bias: Some(bias), ..plain() };
        if everything {
            p = Problem {
                softcap: Some(0.8),
                left: Some(3),
                right: Some(1),
                lengths: Some(&lengths),
                slope: Some(&slope),
                sink: Some(&|head| 0.3 * head as f64 - 0.2),
                dropout: Some(&|_, head, query, key| [0.0, 1.5, 1.5][(head + 2 * query + key) % 3]),
                ..p
            };
            return f(&p);
        }
        f(&p)
    };
    let weighted = |p: &Problem<'_>, q: &[f64], k: &[f64], v: &[f64]| -> f64 {
        forward(p, q, k, v).o.iter().zip(&dy).map(|(o, dy)| o * dy).sum()
    };
    for everything in [false, true] {
        for i in 0..80 {
            let set = |x: &[f64], value: f64| {
                let mut x = x.to_vec();
                if let Some(x) = x.get_mut(i) {
                    *x = value;
                }
                x
            };
            let bias = |_: usize, h: usize, a: usize, b: usize| added[(h * 5 + a) * 7 + b];
            let check = |value: &dyn Fn(f64) -> f64, slope: &dyn Fn(f64) -> f64, what: &str| {
                let error = gradient_error(value, slope, &[-1.1, 0.3, 2.0]);
                assert!(error < 1e-5, "{what} {i}: {error:e}");
            };
            let value = |x: f64| with(&bias, everything, &|p| weighted(p, &set(&q, x), &k, &v));
            let slope = |x: f64| with(&bias, everything, &|p| backward(p, &set(&q, x), &k, &v, &dy).dq[i]);
            check(&value, &slope, "dq");
            if i < k.len() {
                let value = |x: f64| with(&bias, everything, &|p| weighted(p, &q, &set(&k, x), &v));
                let slope =
                    |x: f64| with(&bias, everything, &|p| backward(p, &q, &set(&k, x), &v, &dy).dk[i]);
                check(&value, &slope, "dk");
            }
            if i < v.len() {
                let value = |x: f64| with(&bias, everything, &|p| weighted(p, &q, &k, &set(&v, x)));
                let slope =
                    |x: f64| with(&bias, everything, &|p| backward(p, &q, &k, &set(&v, x), &dy).dv[i]);
                check(&value, &slope, "dv");
            }
            if i < added.len() {
                let moved = |x: f64| {
                    let added = set(&added, x);
                    move |_: usize, h: usize, a: usize, b: usize| added[(h * 5 + a) * 7 + b]
                };
                let value = |x: f64| with(&moved(x), everything, &|p| weighted(p, &q, &k, &v));
                let slope = |x: f64| with(&moved(x), everything, &|p| backward(p, &q, &k, &v, &dy).ds[i]);
                check(&value, &slope, "ds");
            }
        }
    }
}

/// The derivative by the sink of each head.
#[test]
fn gradients_of_sinks_agree_with_central_differences() {
    let values = |len, seed| Input::Normal.values(len, seed);
    let (q, k, v, dy) = (values(80, 1), values(56, 2), values(28, 3), values(40, 4));
    for head in 0..2 {
        let moved = |x: f64| move |h: usize| if h == head { x } else { 0.4 };
        let value = |x: f64| {
            let out = forward(&Problem { sink: Some(&moved(x)), ..plain() }, &q, &k, &v);
            out.o.iter().zip(&dy).map(|(o, dy)| o * dy).sum()
        };
        let slope =
            |x: f64| backward(&Problem { sink: Some(&moved(x)), ..plain() }, &q, &k, &v, &dy).dsinks[head];
        let error = gradient_error(value, slope, &[-1.1, 0.3, 2.0]);
        assert!(error < 1e-5, "{head}: {error:e}");
    }
}

#[test]
fn closed_forms() {
    // Equal keys: the mean of the values. A query that sees nothing: zeros.
    let p =
        Problem { batch: 1, queries: 3, keys: 2, heads: 1, width: 1, value_width: 1, scale: 1.0, ..plain() };
    let out = forward(&p, &[1.0, -2.0, 3.0], &[0.5, 0.5], &[2.0, 4.0]);
    assert!(out.o.iter().all(|o| (o - 3.0).abs() < 1e-15));
    let causal = Problem { right: Some(0), ..p };
    let out = forward(&causal, &[1.0, -2.0, 3.0], &[0.5, 0.5], &[2.0, 4.0]);
    assert_eq!((out.o[0], out.o[1], out.lse[0]), (0.0, 2.0, f64::NEG_INFINITY));
    assert!((out.lse[1] + 1.0).abs() < 1e-15 && (out.o[2] - 3.0).abs() < 1e-15);
}

/// Rows of a cache behind the last key of a sequence may hold anything: gradients are those without them, and theirs are 0.
#[test]
fn keys_behind_the_last_have_no_part_in_gradients() {
    const KEYS: usize = 90;
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    for (dtype, width) in [(DType::BF16, 64), (DType::BF16, 128), (DType::BF16, 256), (DType::F32, 32)] {
        let tensor = |rows: usize, seed, fill: f64| {
            let mut values = Input::Normal.values(2 * rows * width, seed);
            let behind = |at: &usize| at / width % rows >= [37, KEYS][at / width / rows];
            (0..values.len())
                .filter(behind)
                .for_each(|at| values[at] = if rows == KEYS { fill } else { values[at] });
            Tensor::from_bytes(&device, dtype, &storage::encode(dtype, &values), &[2, rows, 1, width])
                .expect("memory")
        };
        let (q, dy) = (tensor(70, 1, 0.0), tensor(70, 2, 0.0));
        let lengths = Tensor::from_slice(&device, &[37i32, 999], &[2]).expect("memory");
        let scores = Scores { key_lengths: Some(lengths.as_ref()), ..Scores::default() };
        let gradients = |fill| {
            let (k, v) = (tensor(KEYS, 3, fill), tensor(KEYS, 4, fill));
            let out = attention(&stream, &q, &k, &v, scores).expect("forward");
            let g = attention_backward(&stream, &q, &k, &v, &out, &dy, scores).expect("backward");
            [g.dq, g.dk, g.dv].map(|x| storage::decode(dtype, &x.to_bytes().expect("read")))
        };
        let (some, none) = (gradients(f64::NAN), gradients(0.0));
        assert_eq!(some, none, "{dtype} {width}");
        for of_keys in &some[1..] {
            assert!(of_keys[37 * width..KEYS * width].iter().all(|x| *x == 0.0), "{dtype} {width}");
            assert!(of_keys[..37 * width].iter().any(|x| *x != 0.0));
        }
    }
}

/// Up to 128 rows of queries and query heads that read the same keys are in one block, which goes over them once.
#[test]
fn queries_that_read_the_same_keys_share_a_block() {
    let first = |queries: usize, heads: usize, width: usize, target: Target| {
        let of = |rows, heads| Layout::contiguous([1, rows, heads, width]);
        let (q, k) = (of(queries, heads), of(4096, 4));
        let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
        let desc = AttentionDesc { dtype: DType::BF16, q, k, v: k, o: q, options };
        let plan = desc.plan(target).expect("plan");
        let step = &plan.steps()[0];
        let splits = plan.workspace_bytes() / ((width as u64 + 1) * 4 * (queries * heads) as u64);
        let tiles = u64::from(step.grid()[0]) / splits.max(1);
        (step.kernel().name().to_owned(), tiles)
    };
    for (queries, heads, rows) in
        [(4, 16, ""), (5, 16, "r32"), (16, 16, "r64"), (16, 32, "r128"), (9, 32, "r128")]
    {
        for width in [64, 128, 256] {
            let (name, tiles) = first(queries, heads, width, TARGET);
            let warps = if rows.is_empty() { "_tma_w4s" } else { &format!("_tma_w8{rows}s") };
            assert!(name.contains(warps) && tiles == 1, "{queries} {heads} {width}: {name}, {tiles}");
        }
    }
    let (name, tiles) = first(16, 40, 128, TARGET);
    assert!(name.contains("_tma_w8r128s") && tiles == 2, "{name}, {tiles}");
    let (name, tiles) = first(16, 16, 128, Target::sm(120));
    assert!(name.contains("_tma_w8r64s") && tiles == 1, "{name}, {tiles}");
    let (name, tiles) = first(16, 16, 128, Target::sm(80));
    assert!(name.contains("_mma_") && tiles == 4, "{name}, {tiles}");
}
