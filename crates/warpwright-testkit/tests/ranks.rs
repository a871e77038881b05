//! Every operation over several ranks on emulators, with their sanitizers on.

use std::time::Duration;

use warpwright::batch_norm::BatchNormOptions;
use warpwright::comm::{CommFailure, CommOptions, Communicator, Reduction};
use warpwright::parallel::{
    ContextParallel, TensorParallel, Variant, VocabularyShard, row_linear, sync_batch_norm,
};
use warpwright::ptx::{kernel::Kernel, text};
use warpwright::{ArgValue, DType, Device, EmulatorConfig, LaunchStep, RuntimeError, Tensor};
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
    let flat = sync_batch_norm(comm, &stream, &zeros(&[3]), None, BatchNormOptions::default());
    refused(flat.expect_err("one dimension"), "x is [3]");
    assert_eq!(VocabularyShard::part(9, 0, 2), 0..5);
    assert_eq!(VocabularyShard::part(9, 1, 2), 5..9);
    assert_eq!(ContextParallel::positions(8, 1, 2, true), [2, 3, 4, 5]);
    assert_eq!(ContextParallel::positions(8, 1, 2, false), [4, 5, 6, 7]);
}
