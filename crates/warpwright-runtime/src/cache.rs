//! Loaded kernels: in memory per device, and as machine code on disk.

mod disk;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering as AtomicOrdering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use sha2::{Digest, Sha256};
use tracing::debug;
use warpwright_ptx::kernel::Kernel;

use crate::backend::Backend;
use crate::error::Result;
use crate::launch::LoadedKernel;

pub(crate) use disk::{CubinKey, DiskCache};
pub use disk::{DiskCacheRefusal, DiskCacheStatus};

/// Kernels known by the address of their text, beside those known by content, before the list starts over.
const MAX_IDENTITIES: usize = 4096;

/// How often the kernel cache of a device helped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Loads answered from memory.
    pub memory_hits: u64,
    /// Loads answered with machine code from disk.
    pub disk_hits: u64,
    /// Loads that compiled.
    pub compiled: u64,
}

type Slot = Arc<Mutex<Option<LoadedKernel>>>;

/// The kernels of one device.
pub(crate) struct KernelCache {
    disk: Result<DiskCache, DiskCacheStatus>,
    /// By the address of the text, which the kernel kept beside it holds in place: no hashing for a kernel object that
    /// was loaded before.
    by_identity: RwLock<HashMap<usize, (Kernel, LoadedKernel)>>,
    /// By the hash of the text. The outer lock is held only to find the slot; the slot's own while its kernel compiles,
    /// so that different kernels compile in parallel and the same one once.
    by_content: Mutex<HashMap<[u8; 32], Slot>>,
    memory_hits: AtomicU64,
    disk_hits: AtomicU64,
    compiled: AtomicU64,
}

impl KernelCache {
    /// An empty cache over the one on disk, or with the reason why there is none.
    pub(crate) fn new(disk: Result<DiskCache, DiskCacheStatus>) -> Self {
        Self {
            disk,
            by_identity: RwLock::default(),
            by_content: Mutex::default(),
            memory_hits: AtomicU64::new(0),
            disk_hits: AtomicU64::new(0),
            compiled: AtomicU64::new(0),
        }
    }

    pub(crate) fn disk_status(&self) -> DiskCacheStatus {
        self.disk.as_ref().map_or_else(Clone::clone, DiskCache::status)
    }

    pub(crate) fn load(&self, backend: &Arc<dyn Backend>, kernel: &Kernel) -> Result<LoadedKernel> {
        let identity = kernel.text().as_ptr().addr();
        let known = |(_, loaded): &(Kernel, LoadedKernel)| loaded.clone();
        let known = self.by_identity.read().unwrap_or_else(PoisonError::into_inner).get(&identity).map(known);
        if let Some(loaded) = known {
            return Ok(self.hit_in_memory(loaded));
        }
        let loaded = self.load_by_content(backend, kernel)?;
        let mut identities = self.by_identity.write().unwrap_or_else(PoisonError::into_inner);
        if identities.len() >= MAX_IDENTITIES {
            identities.clear();
        }
        identities.insert(identity, (kernel.clone(), loaded.clone()));
        Ok(loaded)
    }

    fn load_by_content(&self, backend: &Arc<dyn Backend>, kernel: &Kernel) -> Result<LoadedKernel> {
        // The text names the target and the entry.
        let key: [u8; 32] = Sha256::digest(kernel.text()).into();
        let slot =
            self.by_content.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = slot.clone() {
            drop(slot);
            return Ok(self.hit_in_memory(loaded));
        }
        let begin = Instant::now();
        let function = backend.load(kernel, self.disk.as_ref().ok())?;
        let microseconds = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        let from_disk = function.from_disk;
        let loaded = LoadedKernel::new(backend, kernel, function);
        *slot = Some(loaded.clone());
        // A subscriber may load kernels itself.
        drop(slot);
        let (kernel, device, arch) = (kernel.name(), loaded.device_id(), kernel.target());
        if from_disk {
            self.disk_hits.fetch_add(1, AtomicOrdering::Relaxed);
            debug!(target: "warpwright::cache", kernel, %device, store = "disk", microseconds, "hit");
        } else {
            self.compiled.fetch_add(1, AtomicOrdering::Relaxed);
            debug!(target: "warpwright::cache", kernel, %device, store = self.last_store(), "miss");
            debug!(target: "warpwright::compile", kernel, %device, %arch, microseconds, "compiled");
        }
        Ok(loaded)
    }

    fn hit_in_memory(&self, loaded: LoadedKernel) -> LoadedKernel {
        self.memory_hits.fetch_add(1, AtomicOrdering::Relaxed);
        let (kernel, device) = (loaded.kernel().name(), loaded.device_id());
        debug!(target: "warpwright::cache", kernel, %device, store = "memory", "hit");
        loaded
    }

    /// Where a kernel is looked for last.
    fn last_store(&self) -> &'static str {
        if self.disk.is_ok() { "disk" } else { "memory" }
    }

    pub(crate) fn statistics(&self) -> CacheStatistics {
        CacheStatistics {
            memory_hits: self.memory_hits.load(AtomicOrdering::Relaxed),
            disk_hits: self.disk_hits.load(AtomicOrdering::Relaxed),
            compiled: self.compiled.load(AtomicOrdering::Relaxed),
        }
    }

    /// Drops the kernels that nobody else holds.
    pub(crate) fn clear(&self) {
        self.by_identity.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.by_content.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, slot| {
            // A slot that is locked is being filled.
            slot.try_lock().map_or(true, |slot| slot.as_ref().is_some_and(LoadedKernel::is_shared))
        });
    }
}
