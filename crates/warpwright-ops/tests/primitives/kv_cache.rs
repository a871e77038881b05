//! Appending to the cache of keys and values: free functions, graphs, and descriptors that are refused.

use warpwright_ops::attention::{Paged, Scores, attention};
use warpwright_ops::kv_cache::{
    AppendKvCacheDesc, CacheRotary, CacheRotation, KvCache, append_kv_cache, append_kv_cache_rotary,
    append_kv_cache_rotary_in_place,
};
use warpwright_ops::plan::Layout;
use warpwright_ops::rotary::{Pairing, RotaryOptions, RotaryTables, rotary_embedding};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor, TensorRef};
use warpwright_testkit::inputs::Input;

const TARGET: Target = Target::sm(90);

fn desc() -> AppendKvCacheDesc {
    let of = |rows, heads| Layout::contiguous([2, rows, heads, 8]);
    AppendKvCacheDesc {
        dtype: DType::BF16,
        q: Some([of(3, 4); 2]),
        k: of(3, 2),
        v: of(3, 2),
        k_cache: of(32, 2),
        v_cache: of(32, 2),
        rotation: Some(CacheRotation {
            pairing: Pairing::Half,
            rotary_dim: 8,
            tables: RotaryTables { dtype: DType::F32, batch: 1, rows: 3, repeated: false },
        }),
        key_lengths: true,
        paged: None,
        float8: None,
    }
}

#[test]
fn descriptors_without_meaning_are_refused() {
    let refused = |desc: AppendKvCacheDesc, name: &str| {
        let e = desc.plan(TARGET).map(drop);
        let parameter = matches!(&e, Err(PlanError::Parameter { parameter, .. }) if *parameter == name);
        assert!(parameter, "{name}: {e:?}");
    };
    let (fine, paged) = (desc(), Some(Paged { pages: 2 }));
    fine.plan(TARGET).expect("plan");
    let shape = |[batch, rows, heads]: [usize; 3]| Layout::contiguous([batch, rows, heads, 8]);
    refused(AppendKvCacheDesc { v: shape([2, 3, 3]), ..desc() }, "v");
    refused(AppendKvCacheDesc { k_cache: shape([2, 32, 3]), ..desc() }, "k_cache");
    refused(AppendKvCacheDesc { k_cache: shape([3, 32, 2]), ..desc() }, "k_cache");
    refused(AppendKvCacheDesc { v_cache: shape([2, 33, 2]), ..desc() }, "v_cache");
    refused(AppendKvCacheDesc { q: Some([shape([2, 2, 4]); 2]), ..desc() }, "q");
    refused(AppendKvCacheDesc { q: Some([shape([2, 3, 4]), shape([2, 3, 5])]), ..desc() }, "q_rotated");
    refused(AppendKvCacheDesc { rotation: None, ..desc() }, "q");
    let turned = Layout { strides: [512, 16, 1, 2], ..fine.k_cache };
    refused(AppendKvCacheDesc { k_cache: turned, ..desc() }, "k_cache");
    let overlapping = Layout { strides: [0, 16, 8, 1], ..fine.v_cache };
    refused(AppendKvCacheDesc { v_cache: overlapping, ..desc() }, "v_cache");
    let odd = AppendKvCacheDesc { k_cache: shape([9, 8, 2]), v_cache: shape([9, 8, 2]), paged, ..desc() };
    refused(odd, "rows of a page");
    let long = AppendKvCacheDesc {
        k_cache: shape([9, 16, 2]),
        v_cache: shape([9, 16, 2]),
        paged: Some(Paged { pages: 1 << 26 }),
        ..desc()
    };
    refused(long, "paged");
    let turning = fine.rotation.expect("a rotation");
    let with = |rotation| AppendKvCacheDesc { rotation: Some(rotation), ..desc() };
    for rotary_dim in [0, 3, 10] {
        refused(with(CacheRotation { rotary_dim, ..turning }), "rotary_dim");
    }
    let tables = RotaryTables { batch: 2, ..turning.tables };
    refused(with(CacheRotation { tables, ..turning }), "tables.batch");
    let tables = RotaryTables { dtype: DType::F16, ..turning.tables };
    let e = with(CacheRotation { tables, ..turning }).plan(TARGET);
    assert!(matches!(&e, Err(PlanError::DType { tensor: "cos", .. })), "{e:?}");
    let e = AppendKvCacheDesc { dtype: DType::I32, ..desc() }.plan(TARGET);
    assert!(matches!(&e, Err(PlanError::DType { tensor: "k", .. })), "{e:?}");
    let huge = Layout::contiguous([1 << 30, 8, 2, 8]);
    let cache = Layout::contiguous([1 << 30, 32, 2, 8]);
    let many = AppendKvCacheDesc { q: None, k: huge, v: huge, k_cache: cache, v_cache: cache, ..desc() }
        .plan(TARGET);
    assert!(matches!(&many, Err(PlanError::TooLarge { .. })), "{many:?}");
}

fn floats(device: &Device, salt: u64, shape: &[usize]) -> Tensor {
    let values = Input::Normal.values(shape.iter().product(), salt);
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    Tensor::from_slice(device, &values, shape).expect("memory")
}

/// Steps of several tokens into pages give what attention of all tokens at once gives, bit for bit in cache and queries.
#[test]
fn steps_build_the_cache_of_all_tokens() {
    const STEPS: [usize; 4] = [5, 1, 16, 2];
    const TOKENS: usize = 24;
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (cos, sin) = (floats(&device, 1, &[32, 8]), floats(&device, 2, &[32, 8]));
    let new = |salt, heads| floats(&device, salt, &[2, TOKENS, heads, 16]);
    let (q, k, v) = (new(3, 4), new(4, 2), new(5, 2));
    let [mut keys, mut values] = [6, 7].map(|salt| floats(&device, salt, &[5, 16, 2, 16]));
    let before = keys.to_vec::<f32>().expect("read");
    let table = Tensor::from_slice(&device, &[3i32, 1, 0, 4], &[2, 2]).expect("memory");
    let options = RotaryOptions::default();
    let rotated = rotary_embedding(&stream, &q, Some(k.as_ref()), &cos, &sin, options).expect("launch");
    let (all_q, all_k) = (rotated.q, rotated.k.expect("keys"));
    let mut done = 0;
    let mut last = None;
    for steps in STEPS {
        done += steps;
        let lengths = Tensor::from_slice(&device, &[done as i32; 2], &[2]).expect("memory");
        let cache = KvCache {
            key_lengths: Some(lengths.as_ref()),
            block_table: Some(table.as_ref()),
            ..KvCache::new(&mut keys, &mut values)
        };
        let narrow = |x| TensorRef::narrow(x, 1, done - steps, steps).expect("view");
        let (q, k, v) = (narrow(q.as_ref()), narrow(k.as_ref()), narrow(v.as_ref()));
        last = Some(
            append_kv_cache_rotary(&stream, q, k, v, CacheRotary::new(&cos, &sin), cache).expect("launch"),
        );
    }
    let (found, found_values) =
        (keys.to_vec_on::<f32>(&stream).expect("read"), values.to_vec_on::<f32>(&stream).expect("read"));
    let (expected, given) = (all_k.to_vec::<f32>().expect("read"), v.to_vec::<f32>().expect("read"));
    for (b, pages) in [[3usize, 1], [0, 4]].into_iter().enumerate() {
        for token in 0..TOKENS {
            let at = (pages[token / 16] * 16 + token % 16) * 32;
            let from = (b * TOKENS + token) * 32;
            assert_eq!(found[at..][..32], expected[from..][..32]);
            assert_eq!(found_values[at..][..32], given[from..][..32]);
        }
    }
    assert_eq!(found[2 * 512..3 * 512], before[2 * 512..3 * 512]);
    let last = last.expect("a step");
    let steps = all_q.to_vec::<f32>().expect("read");
    assert_eq!(last.to_vec::<f32>().expect("read")[..2 * 64], steps[22 * 64..][..2 * 64]);

    // The last two queries over the cache are the last two of all.
    let lengths = Tensor::from_slice(&device, &[TOKENS as i32; 2], &[2]).expect("memory");
    let scores = Scores {
        causal: true,
        key_lengths: Some(lengths.as_ref()),
        block_table: Some(table.as_ref()),
        ..Scores::default()
    };
    let decoded = attention(&stream, &last, &keys, &values, scores).expect("launch");
    let whole = Scores { causal: true, ..Scores::default() };
    let whole = attention(&stream, &all_q, &all_k, &v, whole).expect("launch");
    let (decoded, whole) = (decoded.o.to_vec::<f32>().expect("read"), whole.o.to_vec::<f32>().expect("read"));
    for b in 0..2 {
        let (decoded, whole) = (&decoded[b * 128..][..128], &whole[(b * TOKENS + 22) * 64..][..128]);
        assert!(decoded.iter().zip(whole).all(|(a, b)| (a - b).abs() < 1e-5), "{decoded:?} {whole:?}");
    }
}

/// A captured step runs again with other lengths; a sequence of length 0 keeps its place in the batch.
#[test]
fn a_graph_appends_where_lengths_say() {
    let device = Device::emulator();
    let stream = device.new_stream().expect("stream");
    let new = Tensor::from_slice(&device, &[1.0f32, 2.0], &[2, 1, 1, 1]).expect("memory");
    let [mut keys, mut values] =
        [(); 2].map(|()| Tensor::zeros(&device, DType::F32, &[2, 3, 1, 1]).expect("memory"));
    let mut lengths = Tensor::from_slice(&device, &[1i32, 0], &[2]).expect("memory");
    let graph = stream
        .capture(|stream| {
            let cache =
                KvCache { key_lengths: Some(lengths.as_ref()), ..KvCache::new(&mut keys, &mut values) };
            append_kv_cache(stream, &new, &new, cache)
        })
        .expect("capture");
    graph.launch(&stream).expect("launch");
    assert_eq!(keys.to_vec_on::<f32>(&stream).expect("read"), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    lengths.write(&[3i32, 2]).expect("write");
    graph.launch(&stream).expect("launch");
    assert_eq!(keys.to_vec_on::<f32>(&stream).expect("read"), [1.0, 0.0, 1.0, 0.0, 2.0, 0.0]);
    assert_eq!(values.to_vec_on::<f32>(&stream).expect("read"), [1.0, 0.0, 1.0, 0.0, 2.0, 0.0]);
}

#[test]
fn queries_are_rotated_in_place_too() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (cos, sin) = (floats(&device, 1, &[9, 4]), floats(&device, 2, &[9, 4]));
    let (mut q, k) = (floats(&device, 3, &[2, 5, 3, 12]), floats(&device, 4, &[2, 5, 1, 12]));
    let mut caches = [(); 4].map(|()| Tensor::zeros(&device, DType::F32, &[2, 7, 1, 12]).expect("memory"));
    let rotary = CacheRotary { rotary_dim: Some(8), ..CacheRotary::new(&cos, &sin) };
    let [a, b, c, d] = &mut caches;
    let out = append_kv_cache_rotary(&stream, &q, &k, &k, rotary, KvCache::new(a, b)).expect("launch");
    append_kv_cache_rotary_in_place(&stream, &mut q, &k, &k, rotary, KvCache::new(c, d)).expect("launch");
    assert_eq!(out.to_bytes().expect("read"), q.to_bytes().expect("read"));
    let all = caches.map(|x| x.to_bytes().expect("read"));
    assert_eq!((&all[0], &all[1]), (&all[2], &all[3]));
    // Elements behind the rotated ones are copied.
    let (keys, given) = (storage(&all[0]), k.to_vec::<f32>().expect("read"));
    assert_eq!(keys[8..12], given[8..12]);
    assert_ne!(keys[12..20], given[12..20]);
}

fn storage(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
}

#[test]
fn functions_refuse_tensors_that_do_not_fit() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let new = floats(&device, 1, &[1, 5, 2, 8]);
    let refused = |tables: [&[usize]; 2], table: &[usize]| {
        let (cos, sin) = (floats(&device, 2, tables[0]), floats(&device, 3, tables[1]));
        let [mut k, mut v] = [(); 2].map(|()| floats(&device, 4, &[1, 16, 2, 8]));
        let table = Tensor::zeros(&device, DType::I32, table).expect("memory");
        let cache = KvCache { block_table: Some(table.as_ref()), ..KvCache::new(&mut k, &mut v) };
        match append_kv_cache_rotary(&stream, &new, &new, &new, CacheRotary::new(&cos, &sin), cache) {
            Err(Error::Plan(PlanError::Parameter { parameter, .. })) => parameter,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused([&[5, 3], &[5, 3]], &[1, 1]), "cos");
    assert_eq!(refused([&[5, 4, 1], &[5, 4, 1]], &[1, 1]), "cos");
    assert_eq!(refused([&[5, 4], &[5, 8]], &[1, 1]), "sin");
    assert_eq!(refused([&[5, 4], &[5, 4]], &[1]), "block_table");
}
