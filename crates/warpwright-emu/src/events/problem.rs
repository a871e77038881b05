//! Addresses that no access may have, and why.

use crate::memory::{Memory, SLOT_BITS};
use crate::report::Space;
use crate::slots::Slot;
use crate::space::classify;

/// A bad access of one lane.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) help: &'static str,
    pub(crate) address: (Space, u64),
}

fn verb(write: bool) -> &'static str {
    if write { "stores" } else { "loads" }
}

/// An address outside every window.
pub(crate) fn no_space(address: u64, write: bool) -> Problem {
    Problem {
        kind: "not-allocated",
        message: format!("{} at generic address {address:#x}, which belongs to no state space", verb(write)),
        help: "make generic addresses with cvta",
        address: (Space::Generic, address),
    }
}

/// A global access that is not inside one live allocation, or misaligned.
pub(crate) fn global(memory: &Memory, address: u64, bytes: u32, write: bool) -> Problem {
    let verb = verb(write);
    let problem = |kind, message, help| Problem { kind, message, help, address: (Space::Global, address) };
    let (space, offset) = classify(address);
    if space != Space::Global {
        return problem(
            "wrong-space",
            format!(
                "{verb} in the global state space at an address of {} memory ({offset:#x})",
                space.name()
            ),
            "name the state space that the address belongs to, or none",
        );
    }
    if !address.is_multiple_of(u64::from(bytes)) && memory.describe(address).is_some() {
        return misaligned(Space::Global, address, bytes, write);
    }
    range(memory, address, u64::from(bytes), write)
}

/// A range of global memory that is not inside one live allocation.
pub(crate) fn range(memory: &Memory, address: u64, bytes: u64, write: bool) -> Problem {
    let verb = verb(write);
    let problem = |kind, message, help| Problem { kind, message, help, address: (Space::Global, address) };
    match memory.slot(address) {
        Some(Slot::Live(a)) => {
            let offset = address.wrapping_sub(a.base) as i64;
            let place = if offset < 0 {
                format!("{} bytes before the start", offset.unsigned_abs())
            } else if (offset as u64) < a.len {
                format!("at byte {offset}, across the end")
            } else {
                format!("{} bytes past the end", offset as u64 - a.len)
            };
            problem(
                "out-of-bounds",
                format!("{verb} {bytes} bytes {place} of `{}`, which has {}", a.label, a.len),
                "guard the access with the number of elements",
            )
        }
        Some(Slot::Freed { base, len, label }) => {
            let offset = address.wrapping_sub(base) as i64;
            problem(
                "use-after-free",
                format!("{verb} {bytes} bytes at byte {offset} of `{label}` of {len} bytes, which was freed"),
                "keep the buffer alive until the launch has ended",
            )
        }
        Some(Slot::FreedEarlier) => problem(
            "use-after-free",
            format!(
                "{verb} {bytes} bytes at address {address:#x}, which was freed, and many others after it"
            ),
            "keep the buffer alive until the launch has ended",
        ),
        None if address < 1 << 16 => problem(
            "null",
            format!("{verb} {bytes} bytes at address {address:#x}: a null pointer"),
            "pass an address for every pointer parameter",
        ),
        None if address < 1 << SLOT_BITS => problem(
            "not-allocated",
            format!("{verb} {bytes} bytes at address {address:#x}, which is below all allocations"),
            "a pointer was cut to 32 bits, or an index was used as an address",
        ),
        None => problem(
            "not-allocated",
            format!("{verb} {bytes} bytes at address {address:#x}, where nothing was ever allocated"),
            "check how the address is computed",
        ),
    }
}

/// A generic address given to an instruction that accesses shared memory only.
pub(crate) fn not_shared(space: Space, address: u64, write: bool) -> Problem {
    Problem {
        kind: "wrong-space",
        message: format!("{} a matrix at a generic address of {} memory", verb(write), space.name()),
        help: "ldmatrix and stmatrix take addresses of shared memory only",
        address: (Space::Generic, address),
    }
}

/// An address that is not a multiple of the access size.
pub(crate) fn misaligned(space: Space, address: u64, bytes: u32, write: bool) -> Problem {
    Problem {
        kind: "misaligned",
        message: format!("{} {bytes} bytes at an address that is not a multiple of {bytes}", verb(write)),
        help: "vector accesses need the alignment of the whole vector",
        address: (space, address),
    }
}

/// An access outside a window: shared, local, constant or parameter memory of `start..end`.
pub(crate) fn window(
    space: Space,
    address: u64,
    bytes: u32,
    (start, end): (u64, u64),
    write: bool,
) -> Problem {
    let verb = verb(write);
    let name = space.name();
    let (other, _) = classify(address);
    if address >> SLOT_BITS != 0 {
        return Problem {
            kind: "wrong-space",
            message: format!("{verb} in the {name} state space at a generic or {} address", other.name()),
            help: "convert the address with cvta.to, or name no state space",
            address: (Space::Generic, address),
        };
    }
    if address >= start && address.saturating_add(u64::from(bytes)) <= end {
        return misaligned(space, address, bytes, write);
    }
    let (message, help) = if address < start {
        (
            format!(
                "{verb} {bytes} bytes of {name} memory at {address:#x}, below the first variable ({start:#x})"
            ),
            "take the address from the variable's name instead of counting from 0",
        )
    } else {
        (
            format!("{verb} {bytes} bytes of {name} memory at {address:#x}, but it ends at {end:#x}"),
            "check the index, and the dynamic shared memory of the launch",
        )
    };
    Problem { kind: "out-of-bounds", message, help, address: (space, address) }
}

/// Shared memory of a block beyond those of the cluster.
pub(crate) fn no_block(rank: u32, size: usize, write: bool) -> Problem {
    Problem {
        kind: "no-such-block",
        message: format!("{} shared memory of block {rank} of a cluster of {size}", accesses(write)),
        help: "ranks of a cluster go from 0 to %cluster_nctarank - 1",
        address: (Space::Shared, 0),
    }
}

/// Shared memory of a block that no cluster barrier has shown to run yet.
pub(crate) fn not_started(rank: u32, write: bool) -> Problem {
    Problem {
        kind: "block-not-started",
        message: format!(
            "{} shared memory of block {rank} of the cluster, which has not begun",
            accesses(write)
        ),
        help: "arrive and wait at the cluster barrier before touching the shared memory of other blocks",
        address: (Space::Shared, 0),
    }
}

/// Shared memory of a block whose threads have ended.
pub(crate) fn exited(rank: u32, write: bool) -> Problem {
    Problem {
        kind: "block-exited",
        message: format!(
            "{} shared memory of block {rank} of the cluster, which has exited",
            accesses(write)
        ),
        help: "a block has to stay until the others no longer need its shared memory: end with the cluster barrier",
        address: (Space::Shared, 0),
    }
}

fn accesses(write: bool) -> &'static str {
    if write { "stores to" } else { "loads from" }
}
