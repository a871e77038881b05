//! Testing a kernel that somebody else compiled, as another crate's `cargo test` would.
//!
//! ```sh
//! cargo run --example third_party    # prints what is found
//! cargo test --example third_party   # runs the tests below
//! ```

use std::error::Error;

use warpwright_emu::Program;
use warpwright_emu::testing::Outcome;

/// The sum of each row, written as nvcc writes it.
const CLEAN: &str = include_str!("row_sums.ptx");
/// The same with a barrier in the wrong place.
const RACY: &str = include_str!("row_sums_racy.ptx");

const ROWS: usize = 8;
const COLUMNS: usize = 1000;

/// Launches the kernel on small whole numbers, whose sums are exact in any order.
fn row_sums(text: &str) -> Result<(Vec<f32>, Outcome), Box<dyn Error>> {
    let x: Vec<f32> = (0..ROWS * COLUMNS).map(|i| (i % 7) as f32).collect();
    let mut sums = vec![0.0f32; ROWS];
    let program = Program::load(text)?;
    let outcome = program
        .call("row_sums")
        .grid(ROWS as u32)
        .block(256)
        .input(&x)
        .output(&mut sums)
        .value(COLUMNS as u32)
        .run()?;
    Ok((sums, outcome))
}

fn main() -> Result<(), Box<dyn Error>> {
    for (name, text) in [("row_sums.ptx", CLEAN), ("row_sums_racy.ptx", RACY)] {
        let (sums, outcome) = row_sums(text)?;
        println!("{name}: sums {sums:?}, {} bank conflicts", outcome.counters.bank_conflicts());
        println!("{}", if outcome.is_clean() { "nothing found\n".to_owned() } else { outcome.render() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use warpwright_emu::Tool;

    use super::*;

    #[test]
    fn the_clean_kernel_is_right_and_dense() {
        let (sums, outcome) = row_sums(CLEAN).expect("it runs");
        outcome.assert_clean();
        let expected: Vec<f32> =
            (0..ROWS).map(|row| (0..COLUMNS).map(|i| ((row * COLUMNS + i) % 7) as f32).sum()).collect();
        assert_eq!(sums, expected);
        // Each row is read once, in whole sectors.
        let loads = outcome.counters.global_loads;
        assert_eq!((loads.sectors, loads.ideal_sectors), (8 * 125, 8 * 125));
        assert_eq!(outcome.counters.bank_conflicts(), 0);
    }

    #[test]
    fn the_planted_race_is_found_where_it_is() {
        let (_, outcome) = row_sums(RACY).expect("findings are no errors");
        assert!(outcome.findings.iter().all(|f| f.tool == Tool::Racecheck));
        let first = &outcome.findings[0];
        // The line of CUDA, as the text's `.loc` has it.
        assert_eq!(first.source.as_ref().map(|s| s.line), Some(12), "{}", outcome.render());
        assert!(
            first.address.as_ref().is_some_and(|a| a.label.as_deref() == Some("_ZZ8row_sumsPKfPfjE7partial"))
        );
    }
}
