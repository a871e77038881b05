//! The verifier and synccheck have one rule of who is waited for: random kernels that the one calls safe at their barriers have no
//! finding of the other.

use std::fmt::Write as _;

use warpwright_emu::{LaunchConfig, Memory, Options, Program, Sanitizers, launch};
use warpwright_ptx::text;
use warpwright_ptx::verify::barrier_safety;

/// xorshift
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Blocks of a kernel.
const BLOCKS: u64 = 7;

/// A statement on registers 0 to 3 and predicates 0 and 1, some of which differ between lanes.
fn statement(random: &mut Random, text: &mut String) {
    let r = random.below(4);
    let (a, b) = (random.below(4), random.below(4));
    let p = random.below(2);
    let guard = if random.below(5) == 0 { format!("@%p{} ", random.below(2)) } else { String::new() };
    let n = [1, 4, 7, 16, 32][random.below(5) as usize];
    let line = match random.below(14) {
        0 => format!("mov.u32 %r{r}, %tid.x;"),
        1 => format!("mov.u32 %r{r}, {n};"),
        2 => format!("add.u32 %r{r}, %r{a}, %r{b};"),
        3 => format!("and.b32 %r{r}, %r{a}, {n};"),
        4 => format!("shr.u32 %r{r}, %r{a}, {};", random.below(7)),
        5 => format!(
            "shfl.sync.bfly.b32 %r8, %r{a}, {}, 31, 0xffffffff;\n    add.u32 %r{r}, %r{a}, %r8;",
            1 << random.below(5)
        ),
        6 | 7 => format!("setp.lt.u32 %p{p}, %r{a}, {n};"),
        8 => format!("setp.eq.u32 %p{p}, %r{a}, %r{b};"),
        9 => format!("mov.u32 %r{r}, %nctaid.x;"),
        10 => format!("vote.sync.any.pred %p{p}, %p{}, 0xffffffff;", random.below(2)),
        _ => format!("{guard}bar.sync 0;"),
    };
    let guarded = matches!(line.as_bytes()[0], b'm' | b'a') && random.below(6) == 0;
    let guard = if guarded { format!("@%p{} ", random.below(2)) } else { String::new() };
    let _ = writeln!(text, "    {guard}{line}");
}

/// A kernel whose branches go forward, or back as often as a counter allows.
fn kernel(random: &mut Random) -> String {
    let mut text = ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry k()\n.reqntid 32\n{\n    .reg .b32 %r<12>;\n    \
                    .reg .pred %p<4>;\n"
        .to_owned();
    for r in 0..4 {
        let _ = writeln!(text, "    mov.u32 %r{r}, {};", if random.below(2) == 0 { "%tid.x" } else { "3" });
    }
    text.push_str("    setp.lt.u32 %p0, %r0, 9;\n    setp.lt.u32 %p1, %r1, 9;\n    mov.u32 %r9, 0;\n");
    for block in 0..BLOCKS {
        let _ = writeln!(text, "B{block}:");
        for _ in 0..random.below(4) {
            statement(random, &mut text);
        }
        let p = format!("@{}%p{}", if random.below(2) == 0 { "!" } else { "" }, random.below(2));
        let to = block + 1 + random.below(BLOCKS - block);
        let _ = match random.below(8) {
            0 => writeln!(text, "    {p} exit;"),
            1 => writeln!(text, "    bra B{to};"),
            2 | 3 => {
                let back = random.below(block + 1);
                writeln!(
                    text,
                    "    add.u32 %r9, %r9, 1;\n    setp.lt.u32 %p2, %r9, 4;\n    and.pred %p3, %p2, %p{};\n    @%p3 bra B{back};",
                    random.below(2)
                )
            }
            4 => Ok(()),
            _ => writeln!(text, "    {p} bra B{to};"),
        };
    }
    let _ = write!(text, "B{BLOCKS}:\n    ret;\n}}\n");
    text
}

#[test]
fn what_the_verifier_calls_safe_has_no_finding() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let (mut safe, mut found, mut neither) = (0, 0, 0);
    for _ in 0..3000 {
        let text = kernel(&mut random);
        let module = text::parse(&text).module;
        let safety = barrier_safety(&module, &module.functions[0]);
        let program = Program::load(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let options = Options {
            threads: 1,
            sanitizers: Sanitizers::SYNCCHECK,
            max_steps: 1 << 16,
            ..Options::default()
        };
        let launched = launch(&program, "k", &LaunchConfig::linear(1, 32), &[], &Memory::new(), &options);
        let report = launched.unwrap_or_else(|error| panic!("{error}\n{text}"));
        // What a lane that has left would have given to a shuffle is another question.
        let waits: Vec<_> = report.findings.iter().filter(|f| f.kind != "inactive-source-lane").collect();
        match (safety.is_safe(), waits.is_empty()) {
            (true, true) => safe += 1,
            (true, false) => panic!("{}\n{text}", waits[0].render(None, &text)),
            (false, false) => found += 1,
            (false, true) => neither += 1,
        }
    }
    println!("{safe} safe, {found} with findings, {neither} unsafe without one in this run");
    assert!(safe > 1000 && found > 100 && neither < found * 6, "{safe} {found} {neither}");
}
