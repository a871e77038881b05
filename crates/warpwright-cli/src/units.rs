//! Numbers with units, as people read them.

/// A byte count as people read it, with decimal units.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Bytes in so many seconds as a rate, `1.5 GB/s`.
pub fn human_rate(bytes: u64, seconds: f64) -> String {
    format!("{:.2} GB/s", bytes as f64 / 1e9 / seconds.max(1e-9))
}

/// A shape as `[2, 3]`.
pub fn shape_text(shape: &[u64]) -> String {
    format!("{shape:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_have_fitting_units() {
        let cases =
            [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_951, "1.0 MB")];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
        assert_eq!(human_bytes(u64::MAX), "18.4 EB");
    }
}
