//! The cost of the lines of a kernel, as a listing on the terminal.

use warpwright_emu::Counters;
use warpwright_emu::counters::LineCounters;
use warpwright_ptx::text::Sources;

use crate::console::Console;
use crate::error::Error;
use crate::table::Align;

/// A cost that a line can be ranked by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Heading of its column.
    pub(super) title: &'static str,
    /// Its name in CSS.
    pub(super) id: &'static str,
    pub(super) of: fn(&Counters) -> u64,
}

/// Instructions, memory traffic, and what makes them more than they need be.
pub(super) const COSTS: [Cost; 8] = [
    Cost { title: "instructions", id: "instructions", of: Counters::total_warp_instructions },
    Cost { title: "divergent", id: "divergent", of: |c| c.divergent_branches },
    Cost { title: "sectors", id: "sectors", of: Counters::global_sectors },
    Cost {
        title: "excess",
        id: "excess",
        of: |c| c.global_sectors().saturating_sub(c.ideal_global_sectors()),
    },
    Cost { title: "wavefronts", id: "wavefronts", of: Counters::shared_wavefronts },
    Cost { title: "conflicts", id: "conflicts", of: Counters::bank_conflicts },
    Cost { title: "waits", id: "waits", of: |c| c.barrier_waits },
    Cost { title: "tensor ops", id: "tensor", of: |c| c.tensor_operations },
];

/// The costs that a launch has at all, and the most that one line has of each.
pub(super) fn present(lines: &[LineCounters]) -> Vec<(Cost, u64)> {
    let most = |cost: &Cost| lines.iter().map(|row| (cost.of)(&row.counters)).max().unwrap_or(0);
    COSTS.into_iter().map(|cost| (cost, most(&cost))).filter(|(_, most)| *most > 0).collect()
}

/// A number with a comma every three digits.
pub(super) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Widest quoted line.
const WIDTH: usize = 64;
/// Lines below this share of every cost are not listed.
const LEAST: f64 = 0.01;

fn quoted(source: &str, line: u32) -> String {
    let text = source.lines().nth(line.saturating_sub(1) as usize).unwrap_or("");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown: String = words.chars().filter(|c| !c.is_control()).take(WIDTH).collect();
    if words.chars().count() > WIDTH {
        shown.push('\u{2026}');
    }
    shown
}

/// Prints the lines that cost something, in the order of the text; the dearest of each kind is marked.
pub(super) fn print(
    lines: &[LineCounters],
    total: &Counters,
    source: &str,
    console: &mut Console,
) -> Result<(), Error> {
    let costs = present(lines);
    let sums: Vec<f64> = costs.iter().map(|(cost, _)| (cost.of)(total) as f64).collect();
    let is_hot = |row: &LineCounters| {
        costs.iter().zip(&sums).any(|((cost, _), sum)| (cost.of)(&row.counters) as f64 >= LEAST * sum)
    };
    let sources = Sources::of(source);
    let has_sources = lines.iter().any(|row| sources.at(row.line).is_some());
    let mut columns = vec![("line", Align::Right)];
    columns.extend(costs.iter().map(|(cost, _)| (cost.title, Align::Right)));
    columns.extend([("lanes", Align::Right), ("PTX", Align::Left)]);
    if has_sources {
        columns.push(("from", Align::Left));
    }
    columns.push(("most", Align::Left));
    let mut table = console.table(&columns);
    let numbers = |counters: &Counters| -> Vec<String> {
        let mut cells: Vec<String> = costs
            .iter()
            .map(|(cost, _)| (cost.of)(counters))
            .map(|n| if n == 0 { String::new() } else { grouped(n) })
            .collect();
        let lanes = counters.active_lanes();
        cells.push(if lanes == 0.0 { String::new() } else { format!("{lanes:.1}") });
        cells
    };
    let (mut rest, mut left_out) = (Counters::new(), 0);
    for row in lines {
        if !is_hot(row) {
            rest += &row.counters;
            left_out += 1;
            continue;
        }
        let dearest: Vec<&str> = costs
            .iter()
            .filter(|(cost, most)| (cost.of)(&row.counters) == *most)
            .filter(|(cost, most)| {
                // What many lines have in common marks none of them.
                lines.iter().filter(|other| (cost.of)(&other.counters) == *most).count() <= 2
            })
            .map(|(cost, _)| cost.title)
            .collect();
        let mark = if dearest.is_empty() { String::new() } else { format!("< {}", dearest.join(", ")) };
        let mut cells = vec![row.line.to_string()];
        cells.extend(numbers(&row.counters));
        cells.push(quoted(source, row.line));
        if has_sources {
            cells.push(sources.at(row.line).map_or_else(String::new, |line| line.to_string()));
        }
        cells.push(mark);
        if dearest.is_empty() { table.row(cells) } else { table.strong_row(cells) }
    }
    if left_out > 0 {
        let mut cells = vec![String::new()];
        cells.extend(numbers(&rest));
        cells.push(format!("{left_out} lines with less than 1 % of everything"));
        table.row(cells);
    }
    let mut cells = vec!["all".to_owned()];
    cells.extend(numbers(total));
    table.strong_row(cells);
    console.line(table)?;
    console.line("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (12_345_678, "12,345,678")] {
            assert_eq!(grouped(n), text);
        }
    }

    #[test]
    fn quotes_are_short_and_plain() {
        assert_eq!(
            quoted("a\n\tld.global.f32 \t%f1,  [%rd1];\u{1b}[31m\n", 2),
            "ld.global.f32 %f1, [%rd1];[31m"
        );
        assert_eq!(quoted("", 7), "");
        assert_eq!(quoted(&"x".repeat(99), 1).chars().count(), WIDTH + 1);
    }
}
