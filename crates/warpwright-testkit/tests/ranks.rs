//! Every operation over several ranks on emulators, with their sanitizers on.

use std::time::Duration;

use warpwright::attention::AttentionOutput;
use warpwright::batch_norm::{BatchNormOptions, batch_norm, batch_norm_backward};
use warpwright::comm::{CommFailure, CommOptions, Communicator, Reduction};
use warpwright::cross_entropy::{self, CrossEntropyOptions};
use warpwright::parallel::{
    ContextParallel, TensorParallel, Variant, VocabularyShard, row_linear, sync_batch_norm,
    sync_batch_norm_backward,
};
use warpwright::ptx::{kernel::Kernel, text};
use warpwright::{ArgValue, DType, Device, EmulatorConfig, LaunchStep, RuntimeError, Stream, Tensor};
use warpwright_testkit::ranks::{RankCase, cases, run_case};

fn ranks(size: usize) -> Vec<Communicator> {
    // Ranks are threads already.
    let emulator = |_| Device::emulator_with(EmulatorConfig { threads: 1, ..EmulatorConfig::default() });
    let devices: Vec<Device> = (0..size).map(emulator).collect();
    Communicator::local(&devices, CommOptions { timeout: Duration::from_secs(120) }).expect("emulators")
}

fn check(size: usize) {
    let ranks = ranks(size);
    // Attention over many ranks is many launches: the hardest of its cases stands for them.
    let taken =
        |case: &RankCase| size < 4 || case.op != "context_attention" || case.options == "ring, causal";
    for case in cases().iter().filter(|case| taken(case)) {
        let result = run_case(case, &ranks);
        assert!(
            result.ok,
            "{} ({}) {} over {size}: {:e} beyond {:e}: {}",
            case.op,
            case.options,
            case.dtype,
            result.error,
            case.budget,
            result.reason.unwrap_or_default()
        );
    }
}

#[test]
fn one_rank() {
    check(1);
}

#[test]
fn two_ranks() {
    check(2);
}

#[test]
fn three_ranks() {
    check(3);
}

#[test]
fn four_ranks() {
    check(4);
}

#[test]
fn eight_ranks() {
    check(8);
}

/// Two blocks write one word without order.
const RACE: &str = "
    .version 6.3
    .target sm_75
    .address_size 64
    .visible .entry race(.param .u64 x) .reqntid 1, 1, 1 {
        .reg .b32 %r<2>; .reg .b64 %rd<2>;
        ld.param.u64 %rd1, [x]; mov.u32 %r1, %ctaid.x;
        st.global.u32 [%rd1], %r1;
        ret;
    }";

#[test]
fn a_race_on_one_rank_fails_there_and_ends_the_wait_of_the_others() {
    let kernel = Kernel::new(text::parse(RACE).module).expect("a kernel");
    let mut ranks = ranks(3);
    let (second, rest) = (ranks.remove(1), ranks);
    std::thread::scope(|scope| {
        let waiting: Vec<_> = rest
            .iter()
            .map(|comm| scope.spawn(|| comm.barrier(&comm.device().stream().expect("a stream"))))
            .collect();
        let stream = second.device().stream().expect("a stream");
        let x = Tensor::zeros(second.device(), DType::U32, &[1]).expect("memory");
        let step = LaunchStep::new(kernel, [2, 1, 1], vec![ArgValue::Slot { slot: 0, offset: 0 }]);
        let found = stream.launch(&step, &[x.binding()]).expect_err("a race");
        assert!(matches!(found, RuntimeError::Sanitizer(_)), "{found}");
        drop(second);
        for waiting in waiting {
            match waiting.join().expect("no panic") {
                Err(RuntimeError::Comm(error)) => {
                    assert!(matches!(error.failure, CommFailure::Gone { other: 1, .. }), "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_rank_that_is_gone_fails_the_case() {
    let mut ranks = ranks(2);
    ranks[1].abort();
    let case = cases().into_iter().find(|case| case.op == "collectives").expect("the first case");
    let result = run_case(&case, &ranks);
    assert!(
        !result.ok
            && result.reason.is_some_and(|reason| reason.starts_with("rank 0: rank 0 of 2, all_reduce"))
    );
    // A sum over fewer ranks is another number.
    ranks.truncate(1);
    let mut x = Tensor::zeros(ranks[0].device(), DType::F32, &[1]).expect("memory");
    let stream = ranks[0].device().stream().expect("a stream");
    assert!(ranks[0].all_reduce_in_place(&stream, Reduction::Sum, &mut x).is_err());
}

#[test]
fn shapes_that_cannot_be_split_are_refused() {
    let ranks = ranks(2);
    let comm = &ranks[0];
    let stream = comm.device().stream().expect("a stream");
    let zeros = |shape: &[usize]| Tensor::zeros(comm.device(), DType::F32, shape).expect("memory");
    let refused = |error: warpwright::Error, word: &str| assert!(error.to_string().contains(word), "{error}");
    let odd = zeros(&[1, 3, 2, 8]);
    let context = ContextParallel::new(comm, Variant::Ring, true, None).expect("a stream");
    refused(context.forward(&stream, &odd, &odd, &odd).expect_err("three positions"), "two chunks");
    refused(context.forward(&stream, &zeros(&[3]), &odd, &odd).expect_err("one dimension"), "q is [3]");
    let (four, two) = (zeros(&[1, 4, 2, 8]), zeros(&[1, 2, 2, 8]));
    refused(context.forward(&stream, &four, &two, &two).expect_err("fewer keys"), "as many queries as keys");
    refused(VocabularyShard::new(comm, 1, DType::I64).expect_err("one word"), "number of ranks");
    refused(VocabularyShard::new(comm, 9, DType::U8).expect_err("bytes"), "i64 or i32");
    let shard = VocabularyShard::new(comm, 9, DType::I32).expect("a part");
    let target = Tensor::zeros(comm.device(), DType::I32, &[2]).expect("memory");
    refused(
        shard.cross_entropy(&stream, &zeros(&[2, 4]), &target).expect_err("nine words"),
        "logits is [2, 4]",
    );
    refused(shard.embedding(&stream, &zeros(&[4, 2]), &target).expect_err("nine words"), "weight is [4, 2]");
    let parallel = TensorParallel { comm, sequence: true };
    let row = row_linear(parallel, &stream, &zeros(&[3, 4]), &zeros(&[5, 4]), None);
    refused(row.expect_err("three rows"), "rows is 3");
    let bias = |shape: &[usize]| {
        row_linear(parallel, &stream, &zeros(&[4, 4]), &zeros(&[5, 4]), Some(&zeros(shape)))
    };
    refused(bias(&[1]).expect_err("one for all features"), "bias is [1]");
    refused(bias(&[2, 4, 5]).expect_err("as many as results"), "bias is [2, 4, 5]");
    let flat = sync_batch_norm(comm, &stream, &zeros(&[3]), None, BatchNormOptions::default());
    refused(flat.expect_err("one dimension"), "x is [3]");
    let of_rows =
        |rows: &[usize]| warpwright::parallel::VocabularyLoss { loss: zeros(rows), lse: zeros(rows) };
    let one = Tensor::zeros(comm.device(), DType::I32, &[1]).expect("memory");
    let gradient = shard.cross_entropy_backward(&stream, &zeros(&[2, 5]), &one, &of_rows(&[2]), &zeros(&[2]));
    refused(gradient.expect_err("one target for two rows"), "target is [1]");
    let saved = |o: &[usize], lse: &[usize]| AttentionOutput { o: zeros(o), lse: zeros(lse) };
    let even = zeros(&[1, 4, 2, 8]);
    let backward = |output: &AttentionOutput, dy: &Tensor| {
        context.backward(&stream, [&even, &even, &even], output, dy).expect_err("other shapes")
    };
    refused(backward(&saved(&[1, 4, 2, 8], &[8]), &even), "lse is [8]");
    refused(backward(&saved(&[8], &[1, 2, 4]), &even), "o is [8]");
    refused(backward(&saved(&[1, 4, 2, 8], &[1, 2, 4]), &zeros(&[8])), "dy is [8]");
    assert_eq!(VocabularyShard::part(9, 0, 2), 0..5);
    assert_eq!(VocabularyShard::part(9, 1, 2), 5..9);
    assert_eq!(ContextParallel::positions(8, 1, 2, true), [2, 3, 4, 5]);
    assert_eq!(ContextParallel::positions(8, 1, 2, false), [4, 5, 6, 7]);
}

/// The results of all ranks.
fn on_each<T: Send>(
    size: usize,
    work: impl Fn(&Communicator, &Stream) -> Result<T, warpwright::Error> + Sync,
) -> Vec<T> {
    let (ranks, work) = (ranks(size), &work);
    std::thread::scope(|scope| {
        let start =
            |comm| scope.spawn(move || work(comm, &Communicator::device(comm).stream().expect("a stream")));
        let threads: Vec<_> = ranks.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic").expect("all agree")).collect()
    })
}

fn near(name: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{name}");
    for (got, expected) in got.iter().zip(expected) {
        // Infinities are equal or not near.
        let close = got == expected || (got - expected).abs() <= 2e-4 * expected.abs().max(1.0);
        assert!(close, "{name}: {got} for {expected}");
    }
}

/// Three samples of two channels far from 0, one on each rank: none has a variance of its own.
#[test]
fn batch_norm_of_one_value_a_rank() {
    const X: [f32; 6] = [1001.0, -2.0, 1002.5, 3.0, 999.0, 0.5];
    const RESIDUAL: [f32; 6] = [0.5, -0.25, 1.0, -3.0, 2.0, 0.125];
    const DY: [f32; 6] = [1.0, 0.5, -0.75, 2.0, 0.25, -1.5];
    for (relu, with_residual) in [(false, false), (true, false), (false, true), (true, true)] {
        let one = |comm: &Communicator, stream: &Stream, rows: std::ops::Range<usize>| {
            let of = |data: &[f32]| {
                Tensor::from_slice_on(stream, &data[rows.start * 2..rows.end * 2], &[rows.len(), 2])
            };
            let (x, residual, dy) = (of(&X)?, of(&RESIDUAL)?, of(&DY)?);
            let residual = with_residual.then_some(&residual);
            let options = BatchNormOptions { relu, residual, ..Default::default() };
            let (y, back) = if rows.len() == 3 {
                let out = batch_norm(stream, &x, None, options)?;
                let back = batch_norm_backward(stream, &x, &out, &dy, options)?;
                (out.y, back)
            } else {
                let out = sync_batch_norm(comm, stream, &x, None, options)?;
                let back = sync_batch_norm_backward(comm, stream, &x, &out, &dy, options)?;
                (out.y, back)
            };
            let dresidual = back.dresidual.map(|x| x.to_vec_on::<f32>(stream)).transpose()?;
            Ok((y.to_vec_on::<f32>(stream)?, back.dx.to_vec_on::<f32>(stream)?, dresidual))
        };
        let (y, dx, dresidual) = on_each(1, |comm, stream| one(comm, stream, 0..3)).remove(0);
        let got = on_each(3, |comm, stream| one(comm, stream, comm.rank()..comm.rank() + 1));
        for (rank, (own_y, own_dx, own_dresidual)) in got.into_iter().enumerate() {
            let own = rank * 2..rank * 2 + 2;
            near("y", &own_y, &y[own.clone()]);
            near("dx", &own_dx, &dx[own.clone()]);
            let dresidual = dresidual.as_ref().map(|all| &all[own]);
            assert_eq!(own_dresidual.is_some(), dresidual.is_some());
            near("dresidual", &own_dresidual.unwrap_or_default(), dresidual.unwrap_or_default());
        }
    }
}

/// Words that are masked on the whole part of a rank, targets that are no words, and logits far apart.
#[test]
fn cross_entropy_of_masked_words() {
    const NO: f32 = f32::NEG_INFINITY;
    const LOGITS: [[f32; 4]; 5] = [
        [1.0, 2.0, NO, NO],
        [NO, NO, 3.0, 0.5],
        [90.0, -90.0, 88.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
        [NO, 1.0, 2.0, NO],
    ];
    let target = [1i64, 3, 2, -100, 1];
    let dloss = [1.0f32, 0.5, 2.0, 1.0, -1.0];
    let all = on_each(1, |_, stream| {
        let logits = Tensor::from_slice_on(stream, LOGITS.as_flattened(), &[5, 4])?;
        let target = Tensor::from_slice_on(stream, &target, &[5])?;
        let dloss = Tensor::from_slice_on(stream, &dloss, &[5])?;
        let reduction = cross_entropy::Reduction::None;
        let options = CrossEntropyOptions { reduction, ..Default::default() };
        let out = warpwright::cross_entropy(stream, &logits, &target, options)?;
        let back = warpwright::cross_entropy_backward(stream, &logits, &target, &out, &dloss, options)?;
        Ok((out.loss.to_vec_on::<f32>(stream)?, back.to_vec_on::<f32>(stream)?))
    });
    let (loss, dlogits) = &all[0];
    assert!(loss.iter().chain(dlogits).all(|x| x.is_finite()), "{all:?}");
    let got = on_each(2, |comm, stream| {
        let shard = VocabularyShard::new(comm, 4, DType::I64)?;
        let own: Vec<f32> = LOGITS.iter().flat_map(|row| row[shard.words()].to_vec()).collect();
        let logits = Tensor::from_slice_on(stream, &own, &[5, 2])?;
        let target = Tensor::from_slice_on(stream, &target, &[5])?;
        let dloss = Tensor::from_slice_on(stream, &dloss, &[5])?;
        let out = shard.cross_entropy(stream, &logits, &target)?;
        let back = shard.cross_entropy_backward(stream, &logits, &target, &out, &dloss)?;
        Ok((out.loss.to_vec_on::<f32>(stream)?, back.to_vec_on::<f32>(stream)?))
    });
    for (rank, (own_loss, own_dlogits)) in got.iter().enumerate() {
        near("loss", own_loss, loss);
        let expected: Vec<f32> = dlogits.chunks(4).flat_map(|row| row[rank * 2..][..2].to_vec()).collect();
        near("dlogits", own_dlogits, &expected);
    }
}

/// An index that is no word is NaN on all ranks, and no other row is touched.
#[test]
fn embedding_of_no_word() {
    let weight = [1.0f32, 2.0, 3.0];
    let got = on_each(2, |comm, stream| {
        let shard = VocabularyShard::new(comm, 3, DType::I64)?;
        let own = &weight[shard.words()];
        let weight = Tensor::from_slice_on(stream, own, &[own.len(), 1])?;
        let indices = Tensor::from_slice_on(stream, &[2i64, 3, -1, 0, i64::MIN], &[5])?;
        let y = shard.embedding(stream, &weight, &indices)?.to_vec_on::<f32>(stream)?;
        let dy = Tensor::ones_on(stream, DType::F32, &[5, 1])?;
        Ok((y, shard.embedding_backward(stream, &dy, &indices)?.to_vec_on::<f32>(stream)?))
    });
    for (y, _) in &got {
        let is_nan: Vec<bool> = y.iter().map(|x| x.is_nan()).collect();
        assert_eq!(is_nan, [false, true, true, false, true]);
        assert_eq!((y[0], y[3]), (3.0, 1.0));
    }
    assert_eq!((&got[0].1[..], &got[1].1[..]), (&[1.0f32, 0.0][..], &[1.0f32][..]));
}
