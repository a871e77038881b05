//! Recorded work that is launched as a whole.

use std::fmt;

use crate::backend::GraphHandle;
use crate::device::Device;
use crate::error::Result;
use crate::launch::LoadedKernel;
use crate::stream::Stream;

/// What [`Stream::capture`] recorded. On CUDA a graph of the driver; on the emulator the list of steps.
///
/// It holds the addresses of the memory that the work uses; that memory must stay allocated for as long as the graph
/// is launched.
pub struct Graph {
    device: Device,
    /// Taken by the destructor.
    handle: Option<GraphHandle>,
    /// Not read: the graph runs their code.
    _kernels: Vec<LoadedKernel>,
}

impl Graph {
    pub(crate) fn new(device: Device, handle: GraphHandle, kernels: Vec<LoadedKernel>) -> Self {
        Self { device, handle: Some(handle), _kernels: kernels }
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
        self.device.backend().launch_graph(self.handle(), stream.handle())
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
