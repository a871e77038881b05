//! Collective calls between all GPUs of this machine, or between emulators without one: results against sums on the host, and times.
//!
//! One thread for each device; as one process of several, started by `torchrun` or with its environment variables, on GPU
//! `LOCAL_RANK`.

use std::error::Error as StdError;
use std::time::{Duration, Instant};

use warpwright_runtime::comm::{
    CommOptions, Communicator, Group, NcclLibrary, Reduction, Rendezvous, peer_links,
};
use warpwright_runtime::{DType, Device, Error, Stream, Tensor, discover};

/// Bytes of a tensor whose call is timed.
const SIZES: [usize; 8] = [8, 1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 25, 1 << 28];
const EMULATORS: usize = 4;

fn main() -> Result<(), Box<dyn StdError>> {
    let options = CommOptions { timeout: Duration::from_secs(60) };
    if std::env::var_os("RANK").is_some() {
        let place = Rendezvous::from_environment()?;
        let ordinal = u32::try_from(place.local_rank().unwrap_or(place.rank()))?;
        let comm = Communicator::connect(&Device::cuda(ordinal)?, &place, options)?;
        return Ok(work(&comm)?);
    }
    let found = discover();
    match NcclLibrary::find() {
        Ok(library) => println!("NCCL {} at {}", library.version, library.path.display()),
        Err(why) => println!("{why}"),
    }
    for link in peer_links()? {
        println!("{link:?}");
    }
    let devices = match found.devices.as_slice() {
        [] => (0..EMULATORS).map(|_| Device::emulator()).collect::<Vec<_>>(),
        gpus => gpus.iter().map(|gpu| Device::cuda(gpu.ordinal)).collect::<Result<_, _>>()?,
    };
    let ranks = Communicator::local(&devices, options)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || work(&comm))).collect();
        for thread in threads {
            thread.join().map_err(|_| "a rank panicked")??;
        }
        Ok(())
    })
}

fn work(comm: &Communicator) -> Result<(), Error> {
    let stream = comm.device().new_stream()?;
    check(comm, &stream)?;
    let sizes = if comm.device().is_emulator() { &SIZES[..3] } else { &SIZES[..] };
    for bytes in sizes {
        let microseconds = time(comm, &stream, *bytes)?;
        if comm.rank() == 0 {
            let size = comm.size() as f64;
            let bus = *bytes as f64 * 2.0 * (size - 1.0) / size / microseconds / 1e3;
            println!("all_reduce of {bytes:>9} bytes: {microseconds:>9.1} us, {bus:>6.1} GB/s on the bus");
        }
    }
    comm.barrier(&stream)
}

/// Every call with numbers whose sums are exact.
fn check(comm: &Communicator, stream: &Stream) -> Result<(), Error> {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let own = Tensor::from_slice_on(stream, &[rank as f32, 1.0], &[2])?;
    let zeros = |n: usize| Tensor::zeros_on(stream, DType::F32, &[n]);
    let (mut sum, mut all, mut exchanged) = (zeros(2)?, zeros(2 * size)?, zeros(2 * size)?);
    let (mut part, mut first) = (zeros(2)?, own.clone_on(stream)?);
    comm.all_reduce(stream, Reduction::Sum, &own, &mut sum)?;
    comm.all_gather(stream, &own, &mut all)?;
    comm.reduce_scatter(stream, Reduction::Max, &all, &mut part)?;
    comm.all_to_all(stream, &all, &mut exchanged)?;
    comm.broadcast(stream, size - 1, &mut first)?;
    comm.synchronize(stream)?;
    let total = (size * (size - 1) / 2) as f32;
    assert_eq!(sum.to_vec_on::<f32>(stream)?, [total, size as f32]);
    let everyone: Vec<f32> = (0..size).flat_map(|r| [r as f32, 1.0]).collect();
    assert_eq!(all.to_vec_on::<f32>(stream)?, everyone);
    assert_eq!(part.to_vec_on::<f32>(stream)?, [rank as f32, 1.0]);
    assert_eq!(exchanged.to_vec_on::<f32>(stream)?, [rank as f32, 1.0].repeat(size));
    assert_eq!(first.to_vec_on::<f32>(stream)?, [(size - 1) as f32, 1.0]);
    if size > 1 {
        let mut got = zeros(2)?;
        let mut group = Group::new();
        group.send(next, &own).receive(previous, &mut got);
        comm.run(stream, group)?;
        comm.synchronize(stream)?;
        assert_eq!(got.to_vec_on::<f32>(stream)?, [previous as f32, 1.0]);
    }
    println!("rank {rank} of {size} on {}: every call is right", comm.device().id());
    Ok(())
}

/// Microseconds of one call on the host's clock, over many that follow one another.
fn time(comm: &Communicator, stream: &Stream, bytes: usize) -> Result<f64, Error> {
    let calls = if comm.device().is_emulator() { 2 } else { 20 };
    let mut x = Tensor::zeros_on(stream, DType::F32, &[bytes / 4])?;
    comm.all_reduce_in_place(stream, Reduction::Sum, &mut x)?;
    comm.barrier(stream)?;
    let began = Instant::now();
    for _ in 0..calls {
        comm.all_reduce_in_place(stream, Reduction::Sum, &mut x)?;
    }
    comm.synchronize(stream)?;
    Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
}
