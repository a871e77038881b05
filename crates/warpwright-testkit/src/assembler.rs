//! Where NVIDIA's `ptxas` is, and how much it is given.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The assembler that `WARPWRIGHT_PTXAS` names (`cargo xtask fetch-ptxas` installs one). Without it a test says that it is skipped.
///
/// # Panics
/// Under `WARPWRIGHT_REQUIRE_PTXAS=1` if there is none.
pub fn ptxas() -> Option<PathBuf> {
    let found = std::env::var_os("WARPWRIGHT_PTXAS").map(PathBuf::from);
    assert!(
        found.is_some() || !is_set("WARPWRIGHT_REQUIRE_PTXAS"),
        "WARPWRIGHT_REQUIRE_PTXAS=1, but WARPWRIGHT_PTXAS names no assembler"
    );
    if found.is_none() {
        eprintln!("skipped: WARPWRIGHT_PTXAS names no assembler");
    }
    found
}

/// Whether `WARPWRIGHT_ALL_TARGETS=1` asks for every text on every target, not a sample.
pub fn all_targets() -> bool {
    is_set("WARPWRIGHT_ALL_TARGETS")
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

/// `f` of each of the items, in their order, on all cores.
///
/// # Panics
/// As `f` does.
pub fn on_all_cores<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut results = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return results };
            results.push((index, f(item)));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        handles.into_iter().flat_map(|h| h.join().expect("worker")).collect()
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, result)| result).collect()
}
