//! Runs a [`PtxCase`] on a device.

use warpwright_ptx::{ArgValue, Kernel, text};
use warpwright_runtime::{Buffer, Device, LaunchStep};

use crate::differential::RunError;
use crate::ptx_cases::{POISON, PtxCase};

/// Runs a case; gives the first numbers that are not as expected.
///
/// # Errors
/// The text is not valid, or the device fails.
pub fn run_ptx_case(device: &Device, case: &PtxCase) -> Result<Vec<String>, RunError> {
    let parsed = text::parse(&case.ptx);
    if parsed.has_errors() {
        return Err(RunError::Parse(parsed.diagnostics));
    }
    let kernel = Kernel::new(parsed.module)?;
    let mut buffers: Vec<Buffer> = Vec::with_capacity(case.inputs.len() + 1);
    let poison = vec![POISON; case.result_bytes];
    for contents in case.inputs.iter().chain([&poison]) {
        let mut buffer = device.alloc(contents.len() as u64)?;
        buffer.write(0, contents)?;
        buffers.push(buffer);
    }
    let args = (0u32..).take(buffers.len()).map(|slot| ArgValue::Slot { slot, offset: 0 }).collect();
    let step = LaunchStep::new(kernel, [1; 3], args).with_block([case.threads, 1, 1]);
    let bindings: Vec<_> = buffers.iter().map(Buffer::binding).collect();
    let stream = device.stream()?;
    stream.launch(&step, &bindings)?;
    stream.synchronize()?;
    let mut result = vec![0; case.result_bytes];
    if let Some(buffer) = buffers.last() {
        buffer.read(0, &mut result)?;
    }
    Ok(case.differences(&result))
}
