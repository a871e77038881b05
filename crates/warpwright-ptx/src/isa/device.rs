//! Limits of chips: memory, registers and threads of its multiprocessors. Figures are those of the table of compute capabilities
//! in the CUDA C++ Programming Guide (from 6.0 on they are also in `cuda::arch_traits` of NVIDIA's CCCL), multiprocessors those of NVIDIA's
//! data sheets.

use crate::types::Target;

/// Limits of a device of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Bytes of shared memory of a multiprocessor.
    pub shared_per_multiprocessor: u32,
    /// Bytes of shared memory that a block may ask for at launch.
    pub shared_per_block: u32,
    /// Registers of 32 bits of a multiprocessor.
    pub registers: u32,
    /// Threads that a multiprocessor holds at once.
    pub threads: u32,
    /// Blocks that a multiprocessor holds at once.
    pub blocks: u32,
    /// Multiprocessors of the largest device that is sold.
    pub multiprocessors: u32,
}

/// Architectures in order: kilobytes of shared memory of a multiprocessor and of a block, registers in units of 1024, threads, blocks,
/// multiprocessors.
const DEVICES: &[(u32, [u32; 6])] = &[
    (50, [64, 48, 64, 2048, 32, 16]),
    (52, [96, 48, 64, 2048, 32, 24]),
    (53, [64, 48, 64, 2048, 32, 2]),
    (60, [64, 48, 64, 2048, 32, 56]),
    (61, [96, 48, 64, 2048, 32, 30]),
    (62, [64, 48, 64, 2048, 32, 2]),
    (70, [96, 96, 64, 2048, 32, 80]),
    (72, [96, 96, 64, 2048, 32, 8]),
    (75, [64, 64, 64, 1024, 16, 72]),
    (80, [164, 163, 64, 2048, 32, 108]),
    (86, [100, 99, 64, 1536, 16, 84]),
    (87, [164, 163, 64, 1536, 16, 16]),
    (89, [100, 99, 64, 1536, 24, 142]),
    (90, [228, 227, 64, 2048, 32, 132]),
    (100, [228, 227, 64, 2048, 32, 148]),
    (103, [228, 227, 64, 2048, 32, 148]),
    (110, [228, 227, 64, 1536, 24, 20]),
    (120, [100, 99, 64, 1536, 24, 188]),
    (121, [100, 99, 64, 1536, 24, 48]),
];

impl DeviceLimits {
    /// Threads of a block. This and the constants that follow are the same for all architectures.
    pub const BLOCK_THREADS: u32 = 1024;
    /// Threads of a block along x, y and z.
    pub const BLOCK: [u32; 3] = [1024, 1024, 64];
    /// Blocks of a grid along x, y and z.
    pub const GRID: [u32; 3] = [0x7FFF_FFFF, 65_535, 65_535];
    /// Blocks of a cluster, if the launch asks for that many.
    pub const CLUSTER_BLOCKS: u32 = 16;
    /// Blocks of a cluster that every device with clusters takes.
    pub const PORTABLE_CLUSTER_BLOCKS: u32 = 8;
    /// Named barriers of a block.
    pub const BLOCK_BARRIERS: u32 = 16;
    /// Registers of a thread.
    pub const THREAD_REGISTERS: u32 = 255;
    /// Bytes of local memory of a thread.
    pub const THREAD_LOCAL: u32 = 512 << 10;
    /// Bytes of shared memory of a block whose launch asks for no more.
    pub const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

    /// The largest shared memory of a block that any device has.
    pub const GREATEST_SHARED_PER_BLOCK: u32 = {
        let (mut row, mut largest) = (0, 0);
        while row < DEVICES.len() {
            let [_, block, ..] = DEVICES[row].1;
            largest = if block > largest { block } else { largest };
            row += 1;
        }
        largest << 10
    };

    /// Limits of devices that run `target`, by its architecture. One that the table lacks has those of the nearest before it of the same
    /// generation has: 8.8 is a chip like 8.6, and 10.1 an earlier name of 11.0.
    pub const fn of(target: Target) -> Self {
        let sm = match target.sm {
            88 => 86,
            101 => 110,
            sm => sm,
        };
        let mut row = 0;
        while row + 1 < DEVICES.len() && DEVICES[row + 1].0 <= sm {
            row += 1;
        }
        let [multiprocessor, block, registers, threads, blocks, multiprocessors] = DEVICES[row].1;
        Self {
            shared_per_multiprocessor: multiprocessor << 10,
            shared_per_block: block << 10,
            registers: registers << 10,
            threads,
            blocks,
            multiprocessors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa;

    #[test]
    fn known_chips() {
        // Architecture, multiprocessors, shared memory of a block as the driver reports it.
        let chips = [
            ("Quadro RTX 8000", 75, 72, 65_536),
            ("A100", 80, 108, 166_912),
            ("RTX A6000", 86, 84, 101_376),
            ("RTX 6000 Ada", 89, 142, 101_376),
            ("H200", 90, 132, 232_448),
            ("B200", 100, 148, 232_448),
            ("RTX PRO 6000 Blackwell", 120, 188, 101_376),
        ];
        for (name, sm, multiprocessors, shared) in chips {
            let device = DeviceLimits::of(Target::sm(sm));
            assert_eq!(
                (device.multiprocessors, device.shared_per_block),
                (multiprocessors, shared),
                "{name}"
            );
            assert_eq!(device, DeviceLimits::of(Target::specific(sm)), "{name}");
        }
    }

    #[test]
    fn every_target_has_a_row() {
        for (target, _) in isa::targets() {
            let device = DeviceLimits::of(target);
            assert!(device.shared_per_block <= device.shared_per_multiprocessor, "{target}");
            assert!(u64::from(device.shared_per_block) >= isa::static_shared_limit(target), "{target}");
            assert!(
                DEVICES.iter().any(|row| row.0 == target.sm) || [88, 101].contains(&target.sm),
                "{target}"
            );
        }
        assert!(DEVICES.is_sorted_by_key(|row| row.0));
    }
}
