//! Which kernel runs for which rows.
//!
//! A row is kept in the registers of a group of threads between the passes over it, so that it is read once. The group
//! is as small as the row allows: fewer threads have less to combine, and more rows are on their way at once.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_ptx::{DType, Target};

use super::RowNorm;

/// How rows are laid out over threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Threads of a block.
    pub threads: u32,
    /// Threads of a row: a power of two that divides the block.
    pub group: u32,
    /// Elements that a thread loads and stores at once.
    pub width: u32,
    /// Vectors of a row that a thread keeps; 0 for rows of any length, which are read more than once.
    pub vectors: u32,
    /// Blocks that a multiprocessor should hold, which bounds the registers of a thread; 0 leaves it to the assembler.
    pub resident: u32,
}

impl Layout {
    const fn new(threads: u32, group: u32, width: u32, vectors: u32) -> Self {
        Self { threads, group, width, vectors, resident: 0 }
    }

    const fn resident(self, resident: u32) -> Self {
        Self { resident, ..self }
    }

    /// Rows of a block.
    pub const fn rows(self) -> u32 {
        self.threads / self.group
    }

    /// The longest row that it takes.
    pub const fn capacity(self) -> usize {
        match self.vectors {
            0 => usize::MAX,
            vectors => self.group as usize * self.width as usize * vectors as usize,
        }
    }

    /// Alignment of tensors in bytes.
    pub const fn alignment(self, dtype: DType) -> u64 {
        self.width as u64 * dtype.bytes() as u64
    }

    /// The part of a kernel's name that says all this.
    pub(super) fn name(self) -> String {
        let Self { threads, group, width, vectors, resident } = self;
        let bound = if resident > 0 { format!("_r{resident}") } else { String::new() };
        format!("x{width}_v{vectors}_g{group}_t{threads}{bound}")
    }
}

const fn vector(dtype: DType) -> u32 {
    VECTOR_BYTES / dtype.bytes() as u32
}

/// Forward layouts for rows of whole vectors, shortest rows first. 80 registers a thread are worth more than the
/// assembler's 96: they let one more block come, or two.
pub fn forward_vectors(dtype: DType, target: Target) -> Vec<Layout> {
    let w = vector(dtype);
    // Single precision needs half as many registers of a thread, double precision as many again.
    let twice = if dtype == DType::F32 { 2 } else { 1 };
    // Older targets spill.
    let six = if target.sm >= 90 { 6 } else { 5 };
    vec![
        Layout::new(128, 8, w, 1),
        Layout::new(128, 16, w, 1),
        Layout::new(128, 32, w, 1),
        Layout::new(128, 32, w, 4).resident(six),
        Layout::new(128, 128, w, 4).resident(6),
        Layout::new(256, 256, w, 4).resident(if dtype == DType::F32 { 4 } else { 3 }),
        Layout::new(512, 512, w, 4).resident(twice),
        Layout::new(1024, 1024, w, 0),
    ]
}

/// Layouts that take rows of any length at any address, shortest rows first.
pub fn scalars() -> [Layout; 3] {
    [Layout::new(128, 32, 1, 8), Layout::new(512, 512, 1, 4), Layout::new(512, 512, 1, 0)]
}

/// Backward layouts for rows of whole vectors, shortest rows first. The sums for `dweight` and `dbias` and the next row
/// stay in registers too, so a thread has fewer elements, and a multiprocessor 512 threads.
pub fn backward_vectors(norm: RowNorm, dtype: DType) -> Vec<Layout> {
    let w = vector(dtype);
    let long = Layout::new(1024, 1024, w, 0);
    let rms = norm == RowNorm::Rms;
    if dtype.bytes() == 2 {
        return vec![
            Layout::new(128, 8, w, 1),
            Layout::new(128, 16, w, 1),
            Layout::new(128, 32, w, 1),
            Layout::new(128, 32, w, 4),
            Layout::new(128, 128, w, 2),
            // Without sums for `dbias` there are registers for twice the threads.
            if rms {
                Layout::new(1024, 512, w, 1).resident(1)
            } else {
                Layout::new(512, 256, w, 2).resident(1)
            },
            Layout::new(512, 512, w, 2).resident(1),
            long,
        ];
    }
    vec![
        Layout::new(128, 8, w, 1).resident(1),
        Layout::new(128, 32, w, 4).resident(1),
        Layout::new(128, 128, w, 2).resident(1),
        Layout::new(128, 128, w, 4).resident(1),
        if rms && dtype == DType::F32 {
            Layout::new(256, 256, w, 4).resident(2)
        } else {
            Layout::new(512, 512, w, 2).resident(1)
        },
        long,
    ]
}

/// The layouts for rows of `len` elements, best first; the last one takes any address.
pub fn choose(vectors: &[Layout], len: usize) -> Vec<Layout> {
    let shortest = |list: &[Layout]| list.iter().copied().find(|l| len <= l.capacity());
    let whole = shortest(vectors).filter(|l| len.is_multiple_of(l.width as usize));
    whole.into_iter().chain(shortest(&scalars())).collect()
}

/// Rows of partial sums that a backward launch leaves: of a layout that keeps rows, one for each of the blocks that the
/// target's multiprocessors hold at once; of long rows, as many as give them enough blocks. It depends on target and
/// shape alone, never on the device, so that a plan is the same everywhere.
pub fn partial_rows(target: Target, layout: Layout, len: usize) -> u32 {
    // A100, H100 and H200, B200, and consumer parts.
    let processors = match target.sm {
        80 => 108,
        90 => 132,
        100 => 148,
        _ => 72,
    };
    if layout.vectors == 0 {
        let blocks = len.div_ceil(LONG_COLUMN_THREADS as usize * layout.width as usize).max(1);
        return (8 * processors as usize / blocks).clamp(1, 64) as u32;
    }
    // By the registers that the elements of a thread take.
    let each = match (layout.threads, layout.width * layout.vectors) {
        (512.., _) => 1,
        _ if layout.resident > 1 => layout.resident,
        (_, 32..) => 2,
        (_, 16..) => 3,
        _ => 4,
    };
    processors * each
}

/// Rows of partial sums that a block adds up at once.
pub const fn sum_depth(partial_rows: u32) -> u32 {
    if partial_rows <= 64 { 4 } else { 32 }
}

/// Threads of the blocks that sum the columns of long rows.
pub const LONG_COLUMN_THREADS: u32 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_has_a_layout_for_any_address() {
        for dtype in DType::FLOATS {
            for len in (1..3000).chain([4096, 8191, 8192, 16384, 32768, 1 << 20]) {
                for vectors in [
                    &forward_vectors(dtype, Target::sm(90))[..],
                    &backward_vectors(RowNorm::Layer, dtype)[..],
                    &backward_vectors(RowNorm::Rms, dtype)[..],
                ] {
                    let all = choose(vectors, len);
                    assert_eq!(all.last().map(|l| l.width), Some(1), "{dtype} {len}");
                    assert!(all.iter().all(|l| len <= l.capacity() && len.is_multiple_of(l.width as usize)));
                    assert_eq!(all.len() == 2, len.is_multiple_of(vector(dtype) as usize), "{dtype} {len}");
                }
            }
        }
    }
}
