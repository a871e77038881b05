//! Launches as they were enqueued, to be enqueued again on other memory.

use std::cell::RefCell;

use warpwright_ptx::ArgValue;

use crate::error::Result;
use crate::launch::{Binding, LaunchStep};
use crate::operation::OperationName;
use crate::stream::Stream;

/// A launch of [`record_launches`].
#[derive(Clone, Debug)]
pub struct RecordedLaunch {
    step: LaunchStep,
    operation: Option<OperationName>,
    addresses: Box<[u64]>,
}

impl RecordedLaunch {
    fn new(step: &LaunchStep, bindings: &[Binding<'_>], operation: Option<OperationName>) -> Self {
        let mut addresses = vec![0; bindings.len()];
        let slots = step.args().iter().filter_map(|arg| match arg {
            ArgValue::Slot { slot, .. } => Some(*slot),
            ArgValue::TensorMap { slot, .. } => *slot,
            _ => None,
        });
        for slot in slots.map(|slot| slot as usize) {
            addresses[slot] = bindings[slot].address();
        }
        Self { step: step.clone(), operation, addresses: addresses.into() }
    }

    /// The address of each binding; 0 for one that the kernel does not take.
    pub fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// Enqueues it with other bindings in the order of [`addresses`](Self::addresses), under the name of its operation if it had one.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    pub fn launch(&self, stream: &Stream, bindings: &[Binding<'_>]) -> Result<()> {
        match self.operation {
            Some(name) => stream.launch_operation(name, std::slice::from_ref(&self.step), bindings),
            None => stream.launch(&self.step, bindings),
        }
    }
}

struct Recording {
    launches: Vec<RecordedLaunch>,
    /// Whether there was anything but launches of steps.
    incomplete: bool,
}

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// Puts back what was recorded around a recording.
struct Outer(Option<Recording>);

impl Drop for Outer {
    fn drop(&mut self) {
        RECORDING.set(self.0.take());
    }
}

/// Runs `work` and notes the launches that it enqueues on this thread. `None` in their place if it did more: allocated, copied, filled,
/// recorded or awaited an event, launched a graph or a kernel without a step.
pub fn record_launches<T>(work: impl FnOnce() -> T) -> (T, Option<Vec<RecordedLaunch>>) {
    // What is recorded inside of a recording is missing there.
    not_recorded();
    let outer = Outer(RECORDING.replace(Some(Recording { launches: Vec::new(), incomplete: false })));
    let result = work();
    let recording = RECORDING.take();
    drop(outer);
    (result, recording.filter(|r| !r.incomplete).map(|r| r.launches))
}

/// Notes a launch, if this thread records.
pub(crate) fn launched(step: &LaunchStep, bindings: &[Binding<'_>], operation: Option<OperationName>) {
    RECORDING.with_borrow_mut(|recording| {
        if let Some(recording) = recording {
            recording.launches.push(RecordedLaunch::new(step, bindings, operation));
        }
    });
}

/// Notes that something happens that is not recorded, if this thread records.
pub(crate) fn not_recorded() {
    RECORDING.with_borrow_mut(|recording| {
        if let Some(recording) = recording {
            recording.incomplete = true;
        }
    });
}
