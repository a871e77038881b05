//! Gradients of a model that every rank has, each with its own part of the batch.

use warpwright_ops::Error;
use warpwright_runtime::comm::{Communicator, Group, Reduction};
use warpwright_runtime::{Stream, Tensor};

/// Averages gradients over the ranks while backward computes the next ones: on a stream of its own, some at a time, so that
/// small ones share a launch (Li et al. 2020, arXiv:2006.15704).
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::comm::{CommOptions, Communicator};
/// use warpwright::parallel::GradientBuckets;
/// use warpwright::{Device, Tensor};
///
/// let devices = [Device::emulator(), Device::emulator()];
/// let ranks = Communicator::local(&devices, CommOptions::default())?;
/// std::thread::scope(|scope| {
///     for comm in &ranks {
///         scope.spawn(move || -> Result<(), warpwright::Error> {
///             let stream = comm.device().stream()?;
///             let mut buckets = GradientBuckets::new(comm, 25 << 20)?;
///             // As backward makes them, the same on all ranks.
///             for layer in (0..3).rev() {
///                 let gradient = Tensor::full_on(&stream, (layer + comm.rank()) as f32, &[4])?;
///                 buckets.push(&stream, gradient)?;
///             }
///             let gradients = buckets.finish(&stream)?;
///             assert_eq!(gradients[0].to_vec_on::<f32>(&stream)?, [2.5; 4]);
///             Ok(())
///         });
///     }
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GradientBuckets<'c> {
    comm: &'c Communicator,
    side: Stream,
    limit: u64,
    /// Of the bucket that is not full yet, and its bytes.
    open: Vec<Tensor>,
    bytes: u64,
    done: Vec<Tensor>,
}

impl<'c> GradientBuckets<'c> {
    /// No gradients; those of a bucket go out once they have `bucket_bytes` bytes or more.
    ///
    /// # Errors
    /// [`Error::Runtime`] of the driver.
    pub fn new(comm: &'c Communicator, bucket_bytes: u64) -> Result<Self, Error> {
        let side = comm.device().new_stream()?;
        Ok(Self { comm, side, limit: bucket_bytes, open: Vec::new(), bytes: 0, done: Vec::new() })
    }

    /// Takes a gradient that `stream` makes. All ranks push the same gradients in the same order.
    ///
    /// # Errors
    /// [`Error::Runtime`] as [`Communicator::run`].
    pub fn push(&mut self, stream: &Stream, gradient: Tensor) -> Result<(), Error> {
        // Here, because the next may come from another stream.
        self.side.wait(&stream.record()?)?;
        // Of its elements and not of its memory, so that all ranks fill the same buckets.
        let bytes = (gradient.len() as u64).saturating_mul(gradient.dtype().bytes() as u64);
        self.bytes = self.bytes.saturating_add(bytes);
        self.open.push(gradient);
        if self.bytes >= self.limit { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<(), Error> {
        let mut bucket = std::mem::take(&mut self.open);
        self.bytes = 0;
        let mut group = Group::new();
        for gradient in &mut bucket {
            group.all_reduce_in_place(Reduction::Mean, gradient);
        }
        self.comm.run(&self.side, group)?;
        self.done.append(&mut bucket);
        Ok(())
    }

    /// The averages in the order of the gradients, for later work on `stream`.
    ///
    /// # Errors
    /// As [`GradientBuckets::push`].
    pub fn finish(mut self, stream: &Stream) -> Result<Vec<Tensor>, Error> {
        self.send()?;
        stream.wait(&self.side.record()?)?;
        Ok(self.done)
    }
}
