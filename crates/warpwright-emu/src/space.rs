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
        // An address below a window does not belong to it.
        assert_eq!(classify(SHARED_WINDOW - 4).0, Space::Generic);
    }
}
