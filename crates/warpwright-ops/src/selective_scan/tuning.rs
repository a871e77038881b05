//! Which kernel runs for which shape.

use warpwright_dsl::WARP;
use warpwright_ptx::DType;

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Neighbouring numbers of a state that a thread has.
pub const OWN: u32 = 4;

/// Lanes that share the state of a channel: at least 4, so that channels and what is staged for them fit shared memory.
pub const fn lanes(state: usize) -> u32 {
    match state {
        0..=16 => 4,
        17..=32 => 8,
        _ => 16,
    }
}

/// Lanes that share the state of a channel in a step, and the vectors of [`OWN`] numbers that each of them has.
pub const fn update(state: usize) -> (u32, u32) {
    let most = (WARP * OWN) as usize;
    match state.div_ceil(OWN as usize).next_power_of_two() {
        lanes if lanes < WARP as usize => (lanes as u32, 1),
        _ => (WARP, state.div_ceil(most) as u32),
    }
}

/// Positions that are staged at once, and from one saved state to the next.
pub const fn chunk(dtype: DType) -> u32 {
    match dtype {
        DType::F64 => 8,
        _ => 32,
    }
}

/// Positions whose states a thread has in registers at once.
pub const fn batch(dtype: DType) -> u32 {
    match dtype {
        DType::F64 => 2,
        _ => 8,
    }
}

/// Blocks of a multiprocessor, among which its registers are shared.
pub const fn blocks(dtype: DType) -> u32 {
    match dtype {
        DType::F64 => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{STATES, UPDATE_STATES};
    use super::*;

    #[test]
    fn lanes_hold_every_state() {
        for state in STATES {
            assert!((lanes(state) * OWN) as usize >= state, "{state}");
            assert!(lanes(state) == 4 || ((lanes(state) / 2 * OWN) as usize) < state, "{state}");
        }
    }

    #[test]
    fn lanes_of_steps_hold_every_state() {
        for state in UPDATE_STATES {
            let (lanes, vectors) = update(state);
            assert!((lanes * vectors * OWN) as usize >= state, "{state}");
            assert!(lanes * vectors == 1 || ((lanes * vectors / 2 * OWN) as usize) < state, "{state}");
        }
    }

    #[test]
    fn chunks_are_whole_batches() {
        for dtype in DType::FLOATS {
            assert!(chunk(dtype).is_multiple_of(batch(dtype)), "{dtype}");
            assert!(chunk(dtype).is_multiple_of(16 / dtype.bytes() as u32), "{dtype}");
        }
    }
}
