//! Asynchronous operations and the words that they touch.

use crate::code::asynchronous::Proxied;

/// A generic write to shared memory, as the proxy rule needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generic {
    /// Rank in the cluster of the writing block.
    pub rank: u32,
    /// Warp in the block.
    pub warp: u32,
    /// Lane.
    pub lane: u32,
    /// Decoded instruction.
    pub pc: u32,
    /// Time of its block.
    pub(crate) tick: u32,
}

/// An operation's reads or writes, in one number: views know of the end of each apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its reads; the source may be overwritten after them.
    Reads,
    /// Its writes.
    Writes,
}

impl Part {
    /// The number of this part of an operation.
    pub const fn of(self, operation: u32) -> u32 {
        operation << 1 | self as u32
    }
}

/// Accesses of a word of shared memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cell {
    /// The operation that wrote it last, 0 if something else did.
    pub writer: u32,
    /// The operation that reads it, 0 if none does.
    pub reader: u32,
    /// 1 + tick (24 bits), instruction (25), rank (4), warp (5), lane (5) of the last generic write.
    generic: u64,
}

impl Cell {
    /// A word that was written generically.
    pub(crate) fn written(write: Generic) -> Self {
        let Generic { rank, warp, lane, pc, tick } = write;
        let generic = u64::from(tick) << 39
            | u64::from(pc & 0x1FF_FFFF) << 14
            | u64::from(rank & 15) << 10
            | u64::from(warp & 31) << 5
            | u64::from(lane & 31);
        Self { generic, ..Self::default() }
    }

    /// The last generic write, if nothing else has written since.
    pub fn generic(self) -> Option<Generic> {
        let at = |shift: u32, bits: u32| (self.generic >> shift) as u32 & ((1 << bits) - 1);
        (self.generic != 0).then(|| Generic {
            lane: at(0, 5),
            warp: at(5, 5),
            rank: at(10, 4),
            pc: at(14, 25),
            tick: at(39, 24),
        })
    }
}

/// The cells of a block's shared memory; none until an asynchronous operation touches it.
#[derive(Debug, Default)]
pub struct Cells {
    words: Vec<Cell>,
}

impl Cells {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.words.clear();
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// All cells.
    pub fn all(&self) -> &[Cell] {
        &self.words
    }

    /// The cells of a range, made if there are none.
    pub fn range(&mut self, address: u64, bytes: u64) -> &mut [Cell] {
        let (from, to) = ((address / 4) as usize, (address + bytes).div_ceil(4) as usize);
        if self.words.len() < to {
            self.words.resize(to, Cell::default());
        }
        self.words.get_mut(from..to).unwrap_or_default()
    }
}

/// Knowledge of lanes about the ends of operations and about each other.
pub(crate) trait Ends {
    /// Whether a lane knows that a part of an operation has ended.
    fn knows_end(&self, warp: u32, lane: u32, part: u32) -> bool;

    /// Whether a lane knows of everything that a lane of a block of the cluster did up to a moment.
    fn knows(&self, warp: u32, lane: u32, other: Generic) -> bool;

    /// Whether the asynchronous proxy knows of a generic write to a memory when a lane starts an operation.
    fn is_fenced(&self, memory: Proxied, warp: u32, lane: u32, write: Generic) -> bool;

    /// Whether a lane may count on an access of another lane to tensor memory having been performed: fences stand on both
    /// sides of what orders them.
    fn knows_tensor(&self, warp: u32, lane: u32, other: Generic) -> bool;

    /// Whether a lane may count on an operation on tensor memory having ended.
    fn knows_tensor_end(&self, warp: u32, lane: u32, operation: u32) -> bool;

    /// The question of [`knows_tensor`](Self::knows_tensor) without the lane's own fence.
    fn has_tensor(&self, warp: u32, lane: u32, other: Generic) -> bool;

    /// The question of [`knows_tensor_end`](Self::knows_tensor_end) without the lane's own fence.
    fn has_tensor_end(&self, warp: u32, lane: u32, operation: u32) -> bool;
}
