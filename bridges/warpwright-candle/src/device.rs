//! Where operations on tensors of the CPU run.

use std::sync::OnceLock;

use warpwright::Device;

/// The emulator that runs the kernels for tensors of the CPU. Made once: its kernels stay loaded.
pub(crate) fn emulator() -> &'static Device {
    static EMULATOR: OnceLock<Device> = OnceLock::new();
    EMULATOR.get_or_init(Device::emulator)
}
