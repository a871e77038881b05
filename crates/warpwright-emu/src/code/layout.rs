//! Where operands live: slots, and the rows of a kernel with the contents that are known before it runs.

use warpwright_ptx::{Axis, PlainSpecial, SpecialReg};

use super::rows::{Row32, Row64};

/// Where a register lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A row of up to 32 bits.
    W(u32),
    /// A row of 64 bits.
    L(u32),
    /// Two rows of 64 bits, the lower first.
    Q(u32),
    /// A predicate.
    P(u32),
}

/// A value that is known when a launch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LaunchValue {
    /// `bytes` bytes of the parameter buffer, sign-extended if asked.
    Param { offset: u64, bytes: u32, sign: bool },
    /// The address of module variable `index` plus an offset.
    Global { index: u32, offset: i64 },
}

/// Special registers by when their value is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpecialTime {
    /// The same in every block.
    Launch,
    /// Once per block.
    Block,
    /// On every read.
    Read,
}

pub(crate) fn special_time(special: SpecialReg) -> SpecialTime {
    match special {
        SpecialReg::Tid(_)
        | SpecialReg::Ntid(_)
        | SpecialReg::Nctaid(_)
        | SpecialReg::ClusterNctaid(_)
        | SpecialReg::NclusterId(_) => SpecialTime::Launch,
        SpecialReg::Ctaid(_) | SpecialReg::ClusterCtaid(_) | SpecialReg::ClusterId(_) => SpecialTime::Block,
        SpecialReg::Plain(p) => match p {
            PlainSpecial::LaneId
            | PlainSpecial::WarpId
            | PlainSpecial::NwarpId
            | PlainSpecial::NsmId
            | PlainSpecial::GridId
            | PlainSpecial::LanemaskEq
            | PlainSpecial::LanemaskLe
            | PlainSpecial::LanemaskLt
            | PlainSpecial::LanemaskGe
            | PlainSpecial::LanemaskGt
            | PlainSpecial::ClusterNctaRank
            | PlainSpecial::IsExplicitCluster
            | PlainSpecial::TotalSmemSize
            | PlainSpecial::DynamicSmemSize
            | PlainSpecial::AggrSmemSize
            | PlainSpecial::EnvReg1
            | PlainSpecial::EnvReg2
            | PlainSpecial::ReservedSmemOffset1 => SpecialTime::Launch,
            PlainSpecial::SmId | PlainSpecial::ClusterCtaRank => SpecialTime::Block,
            PlainSpecial::Clock
            | PlainSpecial::ClockHi
            | PlainSpecial::Clock64
            | PlainSpecial::GlobalTimer
            | PlainSpecial::GlobalTimerLo
            | PlainSpecial::GlobalTimerHi => SpecialTime::Read,
        },
    }
}

/// Whether a special register has 64 bits.
pub(crate) fn special_is_wide(special: SpecialReg) -> bool {
    matches!(
        special,
        SpecialReg::Plain(PlainSpecial::Clock64 | PlainSpecial::GlobalTimer | PlainSpecial::GridId)
    )
}

/// The row layout of one kernel and the functions that it reaches, with the contents that do not depend on the launch.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Initial rows: zero for registers, broadcast literals.
    pub(crate) r32: Vec<Row32>,
    pub(crate) r64: Vec<Row64>,
    pub(crate) preds: usize,
    /// Rows of special registers that are fixed for a launch or a block.
    pub(crate) specials: Vec<(Slot, SpecialReg)>,
    /// Rows of launch constants.
    pub(crate) launch: Vec<(Slot, LaunchValue)>,
}

/// The index of an axis.
pub(crate) const fn axis(axis: Axis) -> usize {
    match axis {
        Axis::X => 0,
        Axis::Y => 1,
        Axis::Z => 2,
    }
}
