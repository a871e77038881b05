//! Findings of the sanitizers: one sink for all tools, and findings that read like compiler errors.
//!
//! While a kernel runs, every worker records into its own [`Findings`]. Events with the same [`Key`] (tool, kind,
//! instruction, other instruction) are one finding with a count; the event that is kept is the one of the lowest
//! block and thread. Merging the sinks of all workers therefore gives the same findings and the same
//! representatives, whichever worker ran which block. [`Findings::finish`] then turns instruction numbers into
//! lines and addresses into `label + offset`.

use std::collections::HashMap;
use std::fmt::{self, Write as _};

use warpwright_ptx::SourceLoc;
use warpwright_ptx::text::SourceLine;

/// The sanitizer that reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tool {
    /// Bounds, alignment, lifetime and state space of accesses.
    Memcheck,
    /// Reads of what nobody wrote.
    Initcheck,
    /// Conflicting accesses that nothing orders.
    Racecheck,
    /// Barriers and warp collectives.
    Synccheck,
}

impl Tool {
    /// Lower-case name, as NVIDIA's `compute-sanitizer --tool` spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memcheck => "memcheck",
            Self::Initcheck => "initcheck",
            Self::Racecheck => "racecheck",
            Self::Synccheck => "synccheck",
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The kernel is wrong.
    Error,
    /// The kernel relies on something that PTX does not promise but that does no harm here, such as two threads
    /// that store the same value.
    Warning,
}

impl Severity {
    /// `error` or `warning`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// The state space of an address in a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// Device memory; the address is a device address.
    Global,
    /// Shared memory; the address is an offset in the block's window.
    Shared,
    /// A thread's private memory.
    Local,
    /// Kernel parameters.
    Param,
    /// Constant memory.
    Const,
    /// A generic address that belongs to no space.
    Generic,
    /// Tensor memory; the address has the lane in its upper and the column in its lower half.
    Tensor,
}

impl Space {
    /// The PTX spelling without the dot.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Local => "local",
            Self::Param => "param",
            Self::Const => "const",
            Self::Generic => "generic",
        }
    }
}

/// A thread: linear block index in the grid and linear thread index in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Linear block index.
    pub block: u32,
    /// Linear thread index in the block: `32 * warp + lane`.
    pub thread: u32,
}

/// The key by which two events are the same finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Which tool.
    pub tool: Tool,
    /// A stable name of the defect, such as `out-of-bounds` or `write-write`.
    pub kind: &'static str,
    /// Decoded instruction at which it shows.
    pub pc: u32,
    /// The instruction of the other party, where there is one.
    pub other_pc: Option<u32>,
}

/// The other thread of a race, or the thread that a barrier waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    /// Which thread, if it is known.
    pub site: Option<Site>,
    /// Its instruction, if it is known.
    pub pc: Option<u32>,
    /// Its action: `wrote here`, `read here`, ...
    pub action: &'static str,
}

/// One occurrence, before instruction numbers and addresses are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// How bad it is.
    pub severity: Severity,
    /// One sentence without a final stop.
    pub message: String,
    /// The usual repair; empty if there is nothing to say.
    pub help: String,
    /// The address concerned.
    pub address: Option<(Space, u64)>,
    /// The other party.
    pub other: Option<Other>,
}

/// Where an instruction stands in the PTX text, from 1; zeros if that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// Names, positions and labels, which a launch knows and a sink does not.
pub trait Resolve {
    /// Name of the kernel.
    fn kernel(&self) -> &str;
    /// Grid size in blocks.
    fn grid(&self) -> [u32; 3];
    /// Block size in threads.
    fn block(&self) -> [u32; 3];
    /// Where a decoded instruction stands in the text.
    fn position(&self, pc: u32) -> Position;
    /// The source line that a line of the text was compiled from.
    fn source(&self, line: u32) -> Option<SourceLine> {
        let _ = line;
        None
    }
    /// The label of the allocation or variable that holds the address, and the offset in it.
    fn label(&self, space: Space, address: u64) -> Option<(String, u64)>;
}

#[derive(Clone, Debug)]
struct Entry {
    site: Site,
    event: Event,
    count: u64,
}

/// Collects events of one worker.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    entries: HashMap<Key, Entry>,
}

impl Findings {
    /// Different findings that a sink keeps; events of further keys are dropped, so that a hostile kernel cannot
    /// fill the host's memory.
    pub const MAX_DISTINCT: usize = 4096;

    /// An empty sink.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records one occurrence; `event` is called only if its text is needed.
    #[cold]
    pub fn record(&mut self, key: Key, site: Site, event: impl FnOnce() -> Event) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.count += 1;
            if site < entry.site {
                entry.site = site;
                entry.event = event();
            }
        } else if self.entries.len() < Self::MAX_DISTINCT {
            self.entries.insert(key, Entry { site, event: event(), count: 1 });
        }
    }

    /// Number of different findings.
    pub fn distinct(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the events of another sink.
    pub fn merge(&mut self, other: Self) {
        for (key, theirs) in other.entries {
            if let Some(ours) = self.entries.get_mut(&key) {
                ours.count += theirs.count;
                if theirs.site < ours.site {
                    ours.site = theirs.site;
                    ours.event = theirs.event;
                }
            } else if self.entries.len() < Self::MAX_DISTINCT {
                self.entries.insert(key, theirs);
            }
        }
    }

    /// Resolves and orders the findings: by line, tool and kind; at most `limit` of them.
    pub fn finish(self, resolve: &impl Resolve, limit: usize) -> Vec<Finding> {
        let mut all: Vec<(Key, Entry)> = self.entries.into_iter().collect();
        all.sort_by_key(|(key, entry)| (resolve.position(key.pc).line, *key, entry.site));
        all.truncate(limit);
        all.into_iter().map(|(key, entry)| resolve_entry(&key, entry, resolve)).collect()
    }
}

fn resolve_entry(key: &Key, entry: Entry, resolve: &impl Resolve) -> Finding {
    let at = resolve.position(key.pc);
    let event = entry.event;
    Finding {
        tool: key.tool,
        severity: event.severity,
        kind: key.kind,
        kernel: resolve.kernel().to_owned(),
        line: at.line,
        column: at.column,
        source: resolve.source(at.line),
        message: event.message,
        block: coordinates(entry.site.block, resolve.grid()),
        thread: coordinates(entry.site.thread, resolve.block()),
        other: event.other.map(|other| {
            let at = other.pc.map(|pc| resolve.position(pc)).filter(|at| at.line != 0);
            OtherParty {
                block: other.site.map(|s| coordinates(s.block, resolve.grid())),
                thread: other.site.map(|s| coordinates(s.thread, resolve.block())),
                line: at.map(|at| at.line),
                column: at.map(|at| at.column),
                source: at.and_then(|at| resolve.source(at.line)),
                action: other.action,
            }
        }),
        address: event.address.map(|(space, address)| {
            let (label, offset) = resolve.label(space, address).unzip();
            FaultAddress { space, address, label, offset: offset.unwrap_or(0) }
        }),
        help: event.help,
        count: entry.count,
    }
}

/// Splits a linear index into coordinates, x fastest.
pub fn coordinates(linear: u32, size: [u32; 3]) -> [u32; 3] {
    let (x, y) = (size[0].max(1), size[1].max(1));
    [linear % x, linear / x % y, linear / x / y]
}

/// An address as a person knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultAddress {
    /// State space.
    pub space: Space,
    /// Device address, or offset in the space's window.
    pub address: u64,
    /// The allocation or variable that holds it, if any.
    pub label: Option<String>,
    /// Bytes past the start of `label`.
    pub offset: u64,
}

impl fmt::Display for FaultAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.label {
            Some(label) => write!(f, "{} `{label}` + {}", self.space.name(), self.offset),
            None => write!(f, "{} {:#x}", self.space.name(), self.address),
        }
    }
}

/// The other thread of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtherParty {
    /// Its block, if known.
    pub block: Option<[u32; 3]>,
    /// Its thread, if known.
    pub thread: Option<[u32; 3]>,
    /// The PTX line of its instruction, if known.
    pub line: Option<u32>,
    /// The column of its instruction, if known.
    pub column: Option<u32>,
    /// The source line that the instruction was compiled from, if the text says so.
    pub source: Option<SourceLine>,
    /// Its action.
    pub action: &'static str,
}

/// A defect that a sanitizer found in a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Which tool.
    pub tool: Tool,
    /// How bad it is.
    pub severity: Severity,
    /// Stable name of the defect, such as `out-of-bounds`.
    pub kind: &'static str,
    /// The kernel.
    pub kernel: String,
    /// Line of the PTX text, from 1; 0 if not known.
    pub line: u32,
    /// Column, from 1; 0 if not known.
    pub column: u32,
    /// The source line that the instruction was compiled from, if the text says so.
    pub source: Option<SourceLine>,
    /// The defect, in one sentence.
    pub message: String,
    /// Block of the first thread that showed it.
    pub block: [u32; 3],
    /// The first thread that showed it.
    pub thread: [u32; 3],
    /// The other thread.
    pub other: Option<OtherParty>,
    /// The address concerned.
    pub address: Option<FaultAddress>,
    /// The usual repair; may be empty.
    pub help: String,
    /// How often it happened.
    pub count: u64,
}

impl Finding {
    /// Writes the finding like a compiler error. `lines` maps PTX lines to the Rust lines that recorded them, where
    /// they are known ([`SourceLoc`] of line i + 1 at index i), and `text` is the PTX that ran.
    pub fn render(&self, lines: Option<&[SourceLoc]>, text: &str) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out, lines, text);
        out
    }

    fn write(&self, out: &mut String, lines: Option<&[SourceLoc]>, text: &str) -> fmt::Result {
        writeln!(out, "{}[{}/{}]: {}", self.severity.name(), self.tool, self.kind, self.message)?;
        let mut gutter = 1;
        if self.line != 0 {
            let other = self.other.as_ref().and_then(|o| o.line).filter(|line| *line != self.line);
            gutter = self.line.max(other.unwrap_or(0)).to_string().len();
            write!(out, "{:gutter$}--> {}, line {}", "", self.kernel, self.line)?;
            writeln!(out, "{}", origin(lines, self.line, self.source.as_ref()))?;
            quote(out, text, gutter, self.line, self.column, "")?;
            if let (Some(line), Some(party)) = (other, &self.other) {
                write!(out, "{:gutter$}::: {}, line {line}", "", self.kernel)?;
                writeln!(out, "{}", origin(lines, line, party.source.as_ref()))?;
                quote(out, text, gutter, line, party.column.unwrap_or(0), party.action)?;
            }
        } else {
            writeln!(out, "{:gutter$}--> {}", "", self.kernel)?;
        }
        write!(out, "{:gutter$} = thread {}", "", triple(self.thread))?;
        writeln!(out, " of block {}{}", triple(self.block), times(self.count))?;
        if let Some(other) = &self.other
            && let (Some(block), Some(thread)) = (other.block, other.thread)
        {
            write!(out, "{:gutter$} = other: thread {}", "", triple(thread))?;
            writeln!(out, " of block {} {}", triple(block), other.action)?;
        }
        if let Some(address) = &self.address {
            writeln!(out, "{:gutter$} = address: {address}", "")?;
        }
        if !self.help.is_empty() {
            writeln!(out, "{:gutter$} = help: {}", "", self.help)?;
        }
        Ok(())
    }
}

fn triple([x, y, z]: [u32; 3]) -> String {
    format!("({x}, {y}, {z})")
}

fn times(count: u64) -> String {
    if count > 1 { format!(", {count} times in all") } else { String::new() }
}

/// The source that a line of the text was recorded or compiled from.
fn origin(lines: Option<&[SourceLoc]>, line: u32, source: Option<&SourceLine>) -> String {
    let recorded = lines.and_then(|lines| lines.get(line.checked_sub(1)? as usize));
    match (recorded, source) {
        (Some(SourceLoc::Rust(at)), _) => format!(" (from {}:{}:{})", at.file(), at.line(), at.column()),
        (_, Some(source)) => format!(" (from {source})"),
        _ => String::new(),
    }
}

/// Quotes a line of the text with a caret under the instruction.
fn quote(out: &mut String, text: &str, gutter: usize, line: u32, column: u32, note: &str) -> fmt::Result {
    let Some(source) = text.lines().nth(line.saturating_sub(1) as usize) else { return Ok(()) };
    let source = source.trim_end();
    let indent = source.len() - source.trim_start().len();
    let start = (column.saturating_sub(1) as usize).clamp(indent, source.len().max(indent));
    let end = source[start.min(source.len())..].find(';').map_or(source.len(), |at| start + at + 1);
    let bar = format!("{:gutter$} |", "");
    writeln!(out, "{bar}")?;
    writeln!(out, "{line:>gutter$} | {}", source.replace('\t', " "))?;
    let carets = "^".repeat(end.saturating_sub(start).max(1));
    let marked = format!("{bar} {:start$}{carets} {note}", "");
    writeln!(out, "{}", marked.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Launch;

    impl Resolve for Launch {
        fn kernel(&self) -> &str {
            "scale"
        }
        fn grid(&self) -> [u32; 3] {
            [4, 2, 1]
        }
        fn block(&self) -> [u32; 3] {
            [32, 2, 1]
        }
        fn position(&self, pc: u32) -> Position {
            Position { line: pc + 1, column: 3 }
        }
        fn label(&self, space: Space, address: u64) -> Option<(String, u64)> {
            (space == Space::Global && address >= 0x1000).then(|| ("x".to_owned(), address - 0x1000))
        }
    }

    fn event(message: &str) -> Event {
        Event {
            severity: Severity::Error,
            message: message.to_owned(),
            help: "guard the store with i < n".to_owned(),
            address: Some((Space::Global, 0x1040)),
            other: Some(Other {
                site: Some(Site { block: 5, thread: 33 }),
                pc: Some(0),
                action: "read here",
            }),
        }
    }

    fn key(pc: u32) -> Key {
        Key { tool: Tool::Racecheck, kind: "write-read", pc, other_pc: Some(0) }
    }

    #[test]
    fn the_lowest_thread_represents_and_counts_add_up_in_any_order() {
        let sites =
            [Site { block: 7, thread: 1 }, Site { block: 2, thread: 40 }, Site { block: 2, thread: 3 }];
        let mut one = Findings::new();
        let mut two = Findings::new();
        one.record(key(1), sites[0], || event("a"));
        one.record(key(1), sites[1], || event("b"));
        two.record(key(1), sites[2], || event("c"));
        let mut forward = one.clone();
        forward.merge(two.clone());
        two.merge(one);
        for merged in [forward, two] {
            assert_eq!(merged.distinct(), 1);
            let found = merged.finish(&Launch, 10);
            assert_eq!(found[0].message, "c");
            assert_eq!(found[0].count, 3);
            assert_eq!((found[0].block, found[0].thread), ([2, 0, 0], [3, 0, 0]));
        }
    }

    #[test]
    fn findings_are_ordered_by_line_and_limited() {
        let mut sink = Findings::new();
        for pc in [9, 2, 5] {
            sink.record(key(pc), Site { block: 0, thread: 0 }, || event("x"));
        }
        let found = sink.finish(&Launch, 2);
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [3, 6]);
    }

    #[test]
    fn a_finding_renders_both_lines_and_the_address() {
        let mut sink = Findings::new();
        sink.record(key(1), Site { block: 6, thread: 34 }, || event("thread stores what another reads"));
        sink.record(key(1), Site { block: 6, thread: 34 }, || event("unused"));
        let text = "  ld.global.f32 %f1, [%rd1];\n  st.global.f32 [%rd1], %f2; // out\n";
        let rendered = sink.finish(&Launch, 1)[0].render(None, text);
        let expected = "\
error[racecheck/write-read]: thread stores what another reads
 --> scale, line 2
  |
2 |   st.global.f32 [%rd1], %f2; // out
  |   ^^^^^^^^^^^^^^^^^^^^^^^^^^
 ::: scale, line 1
  |
1 |   ld.global.f32 %f1, [%rd1];
  |   ^^^^^^^^^^^^^^^^^^^^^^^^^^ read here
  = thread (2, 1, 0) of block (2, 1, 0), 2 times in all
  = other: thread (1, 1, 0) of block (1, 1, 0) read here
  = address: global `x` + 64
  = help: guard the store with i < n
";
        assert_eq!(rendered, expected);
    }

    #[test]
    fn rust_lines_are_named_and_bad_positions_are_harmless() {
        #[track_caller]
        fn here() -> &'static std::panic::Location<'static> {
            std::panic::Location::caller()
        }
        let mut sink = Findings::new();
        sink.record(key(1), Site { block: 0, thread: 0 }, || Event { other: None, ..event("x") });
        let finding = sink.finish(&Launch, 1).remove(0);
        let lines = [SourceLoc::Unknown, SourceLoc::Rust(here())];
        assert!(finding.render(Some(&lines), "").contains("report.rs:"));
        assert!(!finding.render(Some(&lines[..1]), "one line").contains("report.rs:"));
    }
}
