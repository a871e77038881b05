//! Generic address windows: where the spaces other than global appear to generic loads and stores.

use crate::memory::{SLOT_BITS, WINDOW_BIT};
use crate::report::Space;

const fn window(n: u64) -> u64 {
    WINDOW_BIT | n << SLOT_BITS
}

/// Generic addresses of shared memory.
pub(crate) const SHARED_WINDOW: u64 = window(1);
/// Generic addresses of local memory.
pub(crate) const LOCAL_WINDOW: u64 = window(2);
/// Generic addresses of constant memory.
pub(crate) const CONST_WINDOW: u64 = window(3);
/// Generic addresses of the parameters.
pub(crate) const PARAM_WINDOW: u64 = window(4);

/// Where the shared memory of the blocks of a cluster lies in the shared windows: that of rank `r` from `r + 1` times
/// this on, and that of the executing block from 0 on as well.
const CLUSTER_STRIDE: u64 = 1 << 24;

/// The block that an address of shared memory names, `None` for the executing one, and the address in it.
#[inline(always)]
pub(crate) const fn split_cluster(address: u64) -> (Option<u32>, u64) {
    if address < CLUSTER_STRIDE {
        return (None, address);
    }
    (Some((address / CLUSTER_STRIDE - 1) as u32), address % CLUSTER_STRIDE)
}

/// The address that the block of a rank gives `address` of shared memory, whichever block that named.
pub(crate) const fn map_cluster(address: u64, rank: u32) -> u64 {
    (rank as u64 + 1) * CLUSTER_STRIDE + address % CLUSTER_STRIDE
}
/// Addresses of functions.
pub(crate) const FUNCTION_WINDOW: u64 = window(5);
/// Where shared variables start. Address 0 is never one, so a kernel that takes 0 for its first variable is found out.
pub(crate) const SHARED_BASE: u64 = 0x400;
/// Where local variables start.
pub(crate) const LOCAL_BASE: u64 = 0x100;
/// Where constants start.
pub(crate) const CONST_BASE: u64 = 0x100;
/// The bits of an address below its window.
pub(crate) const SLOT: u64 = (1 << SLOT_BITS) - 1;

/// The space that a generic address belongs to, and the address in it.
#[inline(always)]
pub(crate) fn classify(address: u64) -> (Space, u64) {
    if address & WINDOW_BIT == 0 {
        return (Space::Global, address);
    }
    let offset = address & ((1 << SLOT_BITS) - 1);
    match address - offset {
        SHARED_WINDOW => (Space::Shared, offset),
        LOCAL_WINDOW => (Space::Local, offset),
        CONST_WINDOW => (Space::Const, offset),
        PARAM_WINDOW => (Space::Param, offset),
        _ => (Space::Generic, address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_do_not_meet_each_other_or_global_memory() {
        assert_eq!(classify(0x10_0000_0000), (Space::Global, 0x10_0000_0000));
        assert_eq!(classify(SHARED_WINDOW + 0x400), (Space::Shared, 0x400));
        assert_eq!(classify(LOCAL_WINDOW + 8), (Space::Local, 8));
        assert_eq!(classify(CONST_WINDOW), (Space::Const, 0));
        assert_eq!(classify(PARAM_WINDOW + 64), (Space::Param, 64));
        assert_eq!(classify(u64::MAX).0, Space::Generic);
        assert_eq!(classify(SHARED_WINDOW + map_cluster(0x400, 15)), (Space::Shared, 0x1000_0400));
        // An address below a window does not belong to it.
        assert_eq!(classify(SHARED_WINDOW - 4).0, Space::Generic);
    }

    #[test]
    fn blocks_of_a_cluster_have_their_own_addresses() {
        assert_eq!(split_cluster(0x400), (None, 0x400));
        assert_eq!(split_cluster(map_cluster(0x400, 0)), (Some(0), 0x400));
        assert_eq!(split_cluster(map_cluster(map_cluster(0x38, 3), 7)), (Some(7), 0x38));
    }
}
