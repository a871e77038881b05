//! How much memory the process may still take.

use std::fs::read_to_string;

/// Allocations below this are not held against anything: asking would take longer than they do.
const SMALL: u64 = 1 << 28;

/// Whether there is room for an allocation of this size. Large allocations succeed lazily on many systems, and the
/// process is killed when they are touched; so they are held against what the system says is available, if it says.
pub(crate) fn fits(bytes: u64) -> bool {
    // Contents, definedness, and room for the race detector's pages.
    bytes < SMALL || available().is_none_or(|room| bytes.saturating_add(bytes / 4) <= room)
}

/// Bytes that the system and the limits of the control group leave, on Linux.
fn available() -> Option<u64> {
    let machine = read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| field(&text, "MemAvailable:"))
        .map(|kib| kib << 10);
    let groups = [
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
            "/sys/fs/cgroup/memory/memory.stat",
        ),
    ];
    let group = groups.into_iter().find_map(|(limit, used, statistics)| {
        let [limit, used, statistics] = [limit, used, statistics].map(|path| read_to_string(path).ok());
        group_room(&limit?, &used?, &statistics.unwrap_or_default())
    });
    match (machine, group) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The rest of a control group's limit; the page cache in it gives way.
fn group_room(limit: &str, used: &str, statistics: &str) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?;
    let used: u64 = used.trim().parse().ok()?;
    let cache = field(statistics, "inactive_file").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_read_from_the_systems_files() {
        assert_eq!(field("MemFree: 1 kB\nMemAvailable:   2048 kB\n", "MemAvailable:"), Some(2048));
        assert_eq!(field("", "MemAvailable:"), None);
        let statistics = "anon 5\ninactive_file 300\nactive_file 2\n";
        assert_eq!(group_room("1000\n", "900\n", statistics), Some(400));
        assert_eq!(group_room("1000\n", "2000\n", statistics), Some(0));
        // Unlimited.
        assert_eq!(group_room("max\n", "900\n", statistics), None);
        assert!(fits(1 << 20));
        #[cfg(target_os = "linux")]
        assert!(!fits(1 << 60));
    }
}
