//! Recorded work that is launched as a whole.

use std::fmt;
use std::sync::Arc;

use crate::backend::GraphHandle;
use crate::buffer::Memory;
use crate::device::Device;
use crate::error::Result;
use crate::launch::LoadedKernel;
use crate::recording;
use crate::stream::{Captured, Stream};

/// The work that [`Stream::capture`] recorded. On CUDA a graph of the driver; on the emulator the list of steps.
///
/// It keeps the kernels and the memory of tensors and buffers that the work uses. Memory from elsewhere, which came in by
/// [`Binding::from_raw`](crate::Binding::from_raw) or [`TensorRef::from_raw`](crate::TensorRef::from_raw), must stay
/// allocated for as long as the graph is launched.
pub struct Graph {
    device: Device,
    /// Taken by the destructor.
    handle: Option<GraphHandle>,
    /// Not read: the graph runs their code.
    _kernels: Vec<LoadedKernel>,
    memories: Vec<Arc<Memory>>,
}

impl Graph {
    pub(crate) fn new(device: Device, handle: GraphHandle, captured: Captured) -> Self {
        let Captured { kernels, mut memories, allocated } = captured;
        memories.extend(allocated);
        memories.sort_by_key(Arc::as_ptr);
        memories.dedup_by(|a, b| Arc::ptr_eq(a, b));
        Self { device, handle: Some(handle), _kernels: kernels, memories }
    }

    fn handle(&self) -> &GraphHandle {
        match &self.handle {
            Some(handle) => handle,
            None => unreachable!("only the destructor takes the handle"),
        }
    }

    /// Enqueues everything that was recorded.
    ///
    /// # Errors
    /// [`Error::WrongDevice`](crate::Error::WrongDevice); on the emulator what the launches return.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        stream.same_device("Graph::launch", "graph", &self.device)?;
        stream.forbid_capture("Graph::launch")?;
        recording::not_recorded();
        self.device.backend().launch_graph(self.handle(), stream.handle())?;
        self.memories.iter().for_each(|memory| memory.run_on(stream));
        Ok(())
    }

    /// How many operations were recorded.
    pub fn nodes(&self) -> usize {
        self.device.backend().graph_nodes(self.handle())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.device.backend().destroy_graph(handle);
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} nodes on {})", self.nodes(), self.device.id())
    }
}
