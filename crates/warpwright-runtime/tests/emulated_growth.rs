//! Memory of the process over many calls in the emulator. Alone in its file, because what other tests of a process take
//! would count as well.

mod common;

use common::{counting, scale, scale_step};
use warpwright_runtime::Device;

/// Resident memory of the process in bytes, where the system tells it.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[test]
fn twenty_thousand_calls_leave_memory_as_it_was() {
    const CALLS: usize = 20_000;
    // Below 50 bytes a call, and what an allocator may keep between two looks.
    const SLACK: u64 = 1 << 20;
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let step = scale_step(scale(), 2.0, 8);
    let call = || {
        let (x, y) = (counting(&device, 8), counting(&device, 8));
        stream.launch(&step, &[x.binding(), y.binding()]).expect("launch");
        let event = stream.record().expect("event");
        event.synchronize().expect("event");
    };
    (0..CALLS / 10).for_each(|_| call());
    let Some(before) = resident() else { return };
    (0..CALLS).for_each(|_| call());
    let after = resident().expect("as before");
    let grown = after.saturating_sub(before);
    assert!(grown < SLACK, "{grown} bytes over {CALLS} calls");
}
