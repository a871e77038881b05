//! Ranks over emulators against sums on the host, and every way in which ranks can fail each other.

use std::thread;
use std::time::{Duration, Instant};

use half::bf16;

use super::*;
use crate::element::Element;
use crate::tensor::Tensor;
use warpwright_ptx::DType;

fn ranks(size: usize, timeout: Duration) -> Vec<Communicator> {
    let devices: Vec<Device> = (0..size).map(|_| Device::emulator()).collect();
    Communicator::local(&devices, CommOptions { timeout }).expect("different emulators")
}

/// The results of the ranks, in their order.
fn run<T: Send>(size: usize, timeout: Duration, work: impl Fn(Communicator, Stream) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let start = |comm: Communicator| {
            let stream = comm.device().stream().expect("a stream");
            scope.spawn(move || work(comm, stream))
        };
        let threads: Vec<_> = ranks(size, timeout).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(150);
const SIZES: [usize; 5] = [1, 2, 3, 4, 8];

fn tensor<T: Element>(stream: &Stream, data: &[T]) -> Tensor {
    Tensor::from_slice_on(stream, data, &[data.len()]).expect("memory")
}

/// Element `i` of rank `r`.
fn value(rank: usize, i: usize) -> f64 {
    ((rank * 31 + i * 7) % 13) as f64 - 4.0
}

fn failure(error: &Error) -> &CommError {
    match error {
        Error::Comm(error) => error,
        other => panic!("{other:?}"),
    }
}

fn reduced(size: usize, i: usize, reduction: Reduction) -> f64 {
    let all = (0..size).map(|rank| value(rank, i));
    match reduction {
        Reduction::Sum => all.sum(),
        Reduction::Mean => all.sum::<f64>() / size as f64,
        Reduction::Product => all.product(),
        Reduction::Min => all.fold(f64::INFINITY, f64::min),
        Reduction::Max => all.fold(f64::NEG_INFINITY, f64::max),
    }
}

/// All reductions of one element type; numbers are small enough to be exact, but for the product and the mean of bf16.
fn reductions<T: Element>(of: fn(f64) -> T, size: usize) {
    const N: usize = 5;
    let data = |rank: usize, n: usize| (0..n).map(|i| of(value(rank, i))).collect::<Vec<T>>();
    for reduction in Reduction::ALL.into_iter().filter(|reduction| reduction.takes(T::DTYPE)) {
        let outcome = run(size, LONG, |comm, stream| -> Result<_> {
            let x = tensor(&stream, &data(comm.rank(), N));
            let mut y = Tensor::zeros_on(&stream, T::DTYPE, &[N])?;
            comm.all_reduce(&stream, reduction, &x, &mut y)?;
            let mut own = x.clone_on(&stream)?;
            comm.all_reduce_in_place(&stream, reduction, &mut own)?;
            let x = tensor(&stream, &data(comm.rank(), N * comm.size()));
            let mut part = Tensor::zeros_on(&stream, T::DTYPE, &[N])?;
            comm.reduce_scatter(&stream, reduction, &x, &mut part)?;
            comm.synchronize(&stream)?;
            Ok([y, own, part].map(|t| t.to_vec_on::<T>(&stream).expect("elements")))
        });
        for (rank, outcome) in outcome.into_iter().enumerate() {
            let [y, own, part] = outcome.expect("all ranks agree");
            let expected =
                |start| (start..start + N).map(|i| of(reduced(size, i, reduction))).collect::<Vec<T>>();
            assert_eq!(y, expected(0), "all_reduce {reduction} of {} over {size}", T::DTYPE);
            assert_eq!(own, y);
            assert_eq!(part, expected(rank * N), "reduce_scatter {reduction} of {} over {size}", T::DTYPE);
        }
    }
}

#[test]
fn reductions_equal_those_of_the_host() {
    for size in SIZES {
        reductions(|x| x as f32, size);
        reductions(|x| x as i32, size);
    }
    reductions(|x| x, 3);
    reductions(|x| x as i64, 3);
    reductions(|x| (x + 4.0) as u8, 1);
    reductions(|x| half::f16::from_f32(x as f32), 3);
    reductions(|x| bf16::from_f32(x as f32), 3);
}

#[test]
fn elements_move_as_they_are_said_to() {
    for size in SIZES {
        let outcome = run(size, LONG, |comm, stream| -> Result<_> {
            let (rank, size) = (comm.rank(), comm.size());
            let x = tensor(&stream, &[rank as i64, -1]);
            let mut all = Tensor::zeros_on(&stream, DType::I64, &[size, 2])?;
            comm.all_gather(&stream, &x, &mut all)?;
            let parts: Vec<u8> = (0..size).map(|to| (rank * 16 + to) as u8).collect();
            let mut exchanged = Tensor::zeros_on(&stream, DType::U8, &[size])?;
            comm.all_to_all(&stream, &tensor(&stream, &parts), &mut exchanged)?;
            let mut from_last = tensor(&stream, &[rank as f32]);
            comm.broadcast(&stream, size - 1, &mut from_last)?;
            let mut nothing = Tensor::zeros_on(&stream, DType::F32, &[0])?;
            comm.all_reduce_in_place(&stream, Reduction::Sum, &mut nothing)?;
            comm.barrier(&stream)?;
            let all = all.to_vec_on::<i64>(&stream)?;
            Ok((all, exchanged.to_vec_on::<u8>(&stream)?, from_last.to_vec_on::<f32>(&stream)?))
        });
        for (rank, outcome) in outcome.into_iter().enumerate() {
            let (all, exchanged, from_last) = outcome.expect("all ranks agree");
            assert_eq!(all, (0..size as i64).flat_map(|rank| [rank, -1]).collect::<Vec<_>>());
            assert_eq!(exchanged, (0..size).map(|from| (from * 16 + rank) as u8).collect::<Vec<_>>());
            assert_eq!(from_last, [(size - 1) as f32]);
        }
    }
}

#[test]
fn messages_go_around_a_ring() {
    let outcome = run(4, LONG, |comm, stream| -> Result<_> {
        let (rank, size) = (comm.rank(), comm.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let mut held = tensor(&stream, &[rank as f32]);
        let mut seen = Vec::new();
        for _ in 0..size {
            let mut incoming = Tensor::zeros_on(&stream, DType::F32, &[1])?;
            let mut group = Group::new();
            group.send(next, &held).receive(previous, &mut incoming);
            comm.run(&stream, group)?;
            held = incoming;
            seen.extend(held.to_vec_on::<f32>(&stream)?);
        }
        // Without a group one of two sends first.
        let mut got = Tensor::zeros_on(&stream, DType::F32, &[1])?;
        if rank == 0 {
            comm.send(&stream, 3, &held)?;
        } else if rank == 3 {
            comm.receive(&stream, 0, &mut got)?;
            assert_eq!(got.to_vec_on::<f32>(&stream)?, [0.0]);
        }
        Ok(seen)
    });
    for (rank, seen) in outcome.into_iter().enumerate() {
        let expected: Vec<f32> = (1..=4).map(|step| ((rank + 4 - step) % 4) as f32).collect();
        assert_eq!(seen.expect("all ranks agree"), expected);
    }
}

#[test]
fn ranks_that_call_differently_name_each_other() {
    let outcome = run(3, LONG, |comm, stream| {
        let mut x = Tensor::zeros_on(&stream, DType::F32, &[2 + comm.rank() / 2])?;
        comm.all_reduce_in_place(&stream, Reduction::Sum, &mut x)
    });
    for (rank, outcome) in outcome.iter().enumerate() {
        let error = failure(outcome.as_ref().expect_err("another count on rank 2"));
        assert_eq!((error.rank, error.size, error.operation), (rank, 3, "all_reduce"));
        let CommFailure::Mismatch { other, .. } = error.failure else { panic!("{error}") };
        assert_eq!(other == 2, rank != 2, "{error}");
        assert!(error.to_string().contains("all_reduce(sum) of 3 elements of f32"), "{error}");
    }
    let outcome = run(2, LONG, |comm, stream| {
        let mut x = Tensor::zeros_on(&stream, DType::F32, &[2])?;
        if comm.rank() == 0 { comm.broadcast(&stream, 1, &mut x) } else { comm.barrier(&stream) }
    });
    let error = outcome[0].as_ref().expect_err("a barrier on rank 1").to_string();
    assert!(error.contains("rank 0 of 2, broadcast") && error.contains("rank 1 calls barrier"), "{error}");
    let outcome = run(2, LONG, |comm, stream| {
        let mut x = Tensor::zeros_on(&stream, DType::F32, &[2 + comm.rank()])?;
        if comm.rank() == 0 { comm.send(&stream, 1, &x) } else { comm.receive(&stream, 0, &mut x) }
    });
    let error = outcome[1].as_ref().expect_err("another count").to_string();
    assert!(error.contains("receive of 3") && error.contains("send of 2"), "{error}");
}

#[test]
fn a_rank_that_does_not_come_is_named_in_time() {
    let began = Instant::now();
    let outcome = run(4, SHORT, |comm, stream| {
        if comm.rank() == 2 {
            // There, but busy with something else.
            thread::sleep(SHORT * 4);
            return Ok(());
        }
        comm.barrier(&stream)
    });
    assert!(began.elapsed() < LONG / 4);
    for rank in [0, 1, 3] {
        let error = failure(outcome[rank].as_ref().expect_err("rank 2 is late"));
        let CommFailure::TimedOut { missing, .. } = &error.failure else { panic!("{error}") };
        assert_eq!(missing, &[2], "{error}");
    }
    // Two that send without a group wait for each other.
    let outcome = run(2, SHORT, |comm, stream| comm.send(&stream, 1 - comm.rank(), &tensor(&stream, &[1u8])));
    assert!(outcome.iter().any(|outcome| {
        outcome.as_ref().is_err_and(|error| matches!(failure(error).failure, CommFailure::TimedOut { .. }))
    }));
}

#[test]
fn a_rank_that_fails_ends_the_wait_of_the_others() {
    let outcome = run(3, LONG, |comm, stream| {
        if comm.rank() == 1 {
            // Its own fault: nothing goes out.
            let x = tensor(&stream, &[1.0f32]);
            let mut y = Tensor::zeros_on(&stream, DType::F32, &[2])?;
            return comm.all_reduce(&stream, Reduction::Sum, &x, &mut y);
        }
        comm.barrier(&stream)
    });
    assert!(matches!(
        failure(outcome[1].as_ref().expect_err("counts")).failure,
        CommFailure::Count { expected: 1, got: 2, .. }
    ));
    for rank in [0, 2] {
        let error = failure(outcome[rank].as_ref().expect_err("rank 1 is gone"));
        assert!(matches!(error.failure, CommFailure::Gone { other: 1, .. }), "{error}");
    }
    let outcome = run(2, LONG, |comm, stream| {
        if comm.rank() == 0 {
            comm.abort();
        }
        comm.barrier(&stream)
    });
    assert!(matches!(
        failure(outcome[0].as_ref().expect_err("aborted")).failure,
        CommFailure::Unusable { .. }
    ));
    let error = outcome[1].as_ref().expect_err("aborted").to_string();
    assert!(error.contains("rank 0 is gone: it was aborted"), "{error}");
    // What came before the abort may hold anything.
    let ranks = ranks(1, LONG);
    let stream = ranks[0].device().stream().expect("a stream");
    ranks[0].synchronize(&stream).expect("nothing has failed");
    ranks[0].abort();
    let outcome = ranks[0].synchronize(&stream).expect_err("aborted");
    assert!(matches!(failure(&outcome).failure, CommFailure::Unusable { .. }), "{outcome}");
}

#[test]
fn bad_calls_do_not_go_out() {
    let mut ranks = ranks(2, SHORT);
    let comm = ranks.remove(0);
    let stream = comm.device().stream().expect("a stream");
    let floats = |n: usize| Tensor::zeros_on(&stream, DType::F32, &[n]).expect("memory");
    let (x, mut y) = (floats(4), floats(4));
    let mut integers = Tensor::zeros_on(&stream, DType::I32, &[4]).expect("memory");
    let comm_failure = |outcome: Result<()>| failure(&outcome.expect_err("a bad call")).failure.clone();
    let count = |argument, expected, got| CommFailure::Count { argument, expected, got };
    assert_eq!(comm_failure(comm.all_gather(&stream, &x, &mut y)), count("y", 8, 4));
    assert_eq!(comm_failure(comm.reduce_scatter(&stream, Reduction::Sum, &x, &mut y)), count("x", 8, 4));
    assert_eq!(
        comm_failure(comm.all_to_all(&stream, &floats(3), &mut floats(3))),
        CommFailure::Uneven { argument: "x", got: 3, size: 2 }
    );
    assert_eq!(
        comm_failure(comm.broadcast(&stream, 2, &mut y)),
        CommFailure::Rank { argument: "root", got: 2, size: 2 }
    );
    assert_eq!(comm_failure(comm.send(&stream, 0, &x)), CommFailure::Itself { argument: "to" });
    assert_eq!(
        comm_failure(comm.all_reduce_in_place(&stream, Reduction::Mean, &mut integers)),
        CommFailure::NoReduction { reduction: Reduction::Mean, dtype: DType::I32 }
    );
    let outcome = comm.all_reduce(&stream, Reduction::Sum, &x, &mut integers);
    assert!(matches!(outcome, Err(Error::DType { op: "all_reduce", argument: "y", .. })), "{outcome:?}");
    let matrix = Tensor::zeros_on(&stream, DType::F32, &[2, 2]).expect("memory");
    let columns = matrix.as_ref().permute(&[1, 0]).expect("two axes");
    let outcome = comm.all_reduce(&stream, Reduction::Sum, columns, &mut y);
    assert!(matches!(outcome, Err(Error::NotContiguous { argument: "x", .. })), "{outcome:?}");
    let elsewhere = Device::emulator();
    let other = Tensor::zeros(&elsewhere, DType::F32, &[4]).expect("memory");
    let outcome = comm.all_reduce(&stream, Reduction::Sum, &other, &mut y);
    assert!(matches!(outcome, Err(Error::WrongDevice { argument: "x", .. })), "{outcome:?}");
    let outcome = comm.barrier(&elsewhere.stream().expect("a stream"));
    assert!(matches!(outcome, Err(Error::WrongDevice { argument: "stream", .. })), "{outcome:?}");
    let outcome = stream.capture(|stream| comm.barrier(stream));
    assert!(matches!(outcome, Err(Error::Capturing { .. })), "{outcome:?}");

    let device = Device::emulator();
    let twice = Communicator::local(&[device.clone(), device.clone()], CommOptions::default());
    assert!(twice.is_err_and(|error| error.to_string().contains("must be different")));
    let place = Rendezvous::tcp("127.0.0.1:1", 0, 1).expect("a rank");
    let outcome = Communicator::connect(&device, &place, CommOptions::default());
    assert!(outcome.is_err_and(|error| error.to_string().contains("Communicator::local")));
}

#[test]
fn without_nccl_the_error_says_where_it_was_looked_for() {
    match NcclLibrary::find() {
        Ok(library) => assert!(library.version.major >= 2),
        Err(error) => assert!(error.to_string().contains("libnccl.so.2"), "{error}"),
    }
}
