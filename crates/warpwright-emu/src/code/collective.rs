//! Operations of the lanes of a warp together: shuffles, votes, matches, reductions, elections, tensor-core products.

use warpwright_ptx::{ReduxOp, ScalarType, ShflMode, VoteMode};

use super::definedness::Shuffled;
use super::layout::Slot;

/// The source lanes of a shuffle whose `b` and `c` are literals.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) source: [u8; 32],
    /// Lanes whose source is inside their segment.
    pub(crate) inside: u32,
    /// Lanes exchange with the lane whose number differs in these bits, if that is all.
    pub(crate) exchange: Option<u32>,
}

/// An operation of the lanes of a warp together.
#[derive(Debug)]
pub(crate) enum CollectiveKind {
    Shuffle {
        mode: ShflMode,
        dst: u32,
        pred: Option<u32>,
        a: u32,
        b: u32,
        c: u32,
        fixed: Option<Box<Pattern>>,
    },
    /// `shfl.idx` over the whole warp.
    Lookup {
        dst: u32,
        a: u32,
        b: u32,
        c: u32,
    },
    Vote {
        mode: VoteMode,
        dst: Slot,
        src: u32,
        negated: bool,
    },
    Match {
        all: bool,
        dst: u32,
        pred: Option<u32>,
        a: Slot,
    },
    Redux {
        op: ReduxOp,
        ty: ScalarType,
        dst: u32,
        a: u32,
    },
    Elect {
        dst: Option<u32>,
        pred: u32,
    },
    /// `bar.warp.sync`
    Barrier,
    /// A tensor-core instruction: index into `Code::matrix`.
    Matrix(u32),
    /// `activemask`: no rendezvous.
    Activemask {
        dst: u32,
    },
}

#[derive(Debug)]
pub(crate) struct Collective {
    pub(crate) kind: CollectiveKind,
    /// Row of the member mask.
    pub(crate) mask: u32,
    /// A shuffle of registers that may be undefined.
    pub(crate) shuffled: Option<Box<Shuffled>>,
}

/// Which lane a lane of a shuffle reads, and whether that lies inside its segment. Lanes that would read outside of it
/// read themselves.
#[inline(always)]
pub(crate) fn shuffle_source(mode: ShflMode, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (segment, clamp, b) = (c >> 8 & 31, c & 31, b & 31);
    let first = lane & segment;
    let last = first | clamp & !segment;
    let (source, inside) = match mode {
        ShflMode::Up => (lane.wrapping_sub(b), lane as i32 - b as i32 >= last as i32),
        ShflMode::Down => (lane + b, lane + b <= last),
        ShflMode::Bfly => (lane ^ b, lane ^ b <= last),
        ShflMode::Idx => (first | b & !segment, first | b & !segment <= last),
    };
    (if inside { source & 31 } else { lane }, inside)
}
