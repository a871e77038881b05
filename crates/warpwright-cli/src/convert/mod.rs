//! Checkpoint to checkpoint: the engines of `quantize`, `dequantize` and `convert`. Work of kernels goes through chunks; formats
//! of other tools are read in bands of rows and written a weight at a time, on the host ([`pack`]).
//!
//! Tensors pass through in chunks of whole groups. Every core takes chunks all the way, from a positioned read over a stream
//! of its own on the device to a positioned write: so reading, copying, computing and writing overlap, and the memory needed
//! is that of a few chunks for each core, however large the model.

pub mod config;
pub mod dequantize;
pub mod destination;
pub mod device;
pub mod kernels;
pub mod measure;
pub mod pack;
mod parts;
pub mod pool;
pub mod quantize;
mod unpack;
pub mod verify;

/// Elements of a chunk, unless a single group is larger.
pub const CHUNK: u64 = 2 << 20;

/// How a tensor is cut into chunks: whole groups, and an even number of elements in all but the last, so that no byte
/// of codes is shared between two chunks.
pub fn chunks(elements: u64, group_size: u64, wanted: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    let unit = group_size.saturating_mul(if group_size.is_multiple_of(2) { 1 } else { 2 }).max(1);
    let length = (wanted / unit).max(1).saturating_mul(unit);
    let mut start = 0u64;
    std::iter::from_fn(move || {
        (start < elements).then(|| {
            let end = start.saturating_add(length).min(elements);
            std::mem::replace(&mut start, end)..end
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_whole_groups_and_even() {
        let cut = |n, group, wanted| chunks(n, group, wanted).collect::<Vec<_>>();
        assert_eq!(cut(10, 4, 4), [0..4, 4..8, 8..10]);
        assert_eq!(cut(10, 3, 4), [0..6, 6..10]);
        assert_eq!(cut(10, 3, 1), [0..6, 6..10]);
        assert_eq!(cut(10, u64::MAX, 4), std::slice::from_ref(&(0..10)));
        assert_eq!(cut(0, 4, 4), []);
        assert_eq!(cut(u64::MAX, 1 << 62, 1).len(), 4);
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod conversion;
