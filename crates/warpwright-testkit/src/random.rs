//! Random kernels whose results PTX defines: integer, f32, f64 and packed arithmetic, branches and loops that diverge,
//! shared and local memory, barriers, shuffles, votes and reductions. An emulator and a device have to agree on every bit.
//!
//! Behaviour that PTX leaves open is not generated: approximate functions, NaN payloads of f64, divisors of zero, values of lanes
//! that do not take part, the order of atomics that return something, and races.

use std::fmt::Write;

/// A kernel and how it is launched. Its parameters are the addresses of the input, of [`Program::counters`] words of
/// zeros, and of the output.
#[derive(Clone, Debug)]
pub struct Program {
    /// The module; its kernel is called `kernel`.
    pub ptx: String,
    /// Blocks.
    pub grid: u32,
    /// Threads of a block.
    pub block: u32,
    /// The input of the kernel: [`INPUTS`] words of every thread.
    pub input: Vec<u8>,
    /// Words that all threads add to.
    pub counters: usize,
    /// Bytes that the kernel stores.
    pub output_bytes: usize,
}

/// Words that a thread reads.
pub const INPUTS: usize = 10;

/// Registers of each kind that values move between.
const R: u64 = 10;
const F: u64 = 8;
const D: u64 = 4;
const L: u64 = 4;
const H: u64 = 4;
const COUNTERS: u64 = 8;
/// Words of local memory.
const LOCAL: u64 = 8;

/// Words that a thread stores.
const OUTPUTS: usize = (R + F + 2 * D + 2 * L + H) as usize;

/// A line, whose parts may be chosen at random.
macro_rules! emit {
    ($writer:expr, $($part:tt)*) => {{
        let text = format!($($part)*);
        $writer.line(&text);
    }};
}

struct Writer {
    state: u64,
    body: String,
    labels: u32,
    block: u32,
    depth: u32,
}

/// The program of a number.
pub fn program(seed: u64) -> Program {
    let mut w = Writer { state: seed ^ 0x5DEE_CE66, body: String::new(), labels: 0, block: 1, depth: 0 };
    let (grid, block) = (1 + w.below(4) as u32, [1, 32, 64, 64, 17, 48, 2, 33][w.below(8) as usize]);
    w.block = block;
    let threads = (grid * block) as usize;
    let input = (0..threads * INPUTS).flat_map(|_| w.word().to_le_bytes()).collect();
    let steps = 3 + w.below(5);
    w.head();
    for _ in 0..steps {
        w.step();
    }
    w.tail();
    Program {
        ptx: w.body,
        grid,
        block,
        input,
        counters: COUNTERS as usize,
        output_bytes: threads * OUTPUTS * 4,
    }
}

impl Writer {
    /// SplitMix64.
    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// Anything, small numbers, or a float of ordinary size.
    fn word(&mut self) -> u32 {
        match self.below(4) {
            0 => self.bits() as u32,
            1 => self.below(64) as u32,
            2 => (self.below(2000) as f32 * 0.125 - 100.0).to_bits(),
            _ => [0, u32::MAX, 1 << 31, 0x7F80_0000, 0x7FFF_FFFF, 1, 0x0080_0000, 0x3F80_0000]
                [self.below(8) as usize],
        }
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len() as u64) as usize]
    }

    fn line(&mut self, text: &str) {
        for _ in 0..=self.depth {
            self.body.push_str("    ");
        }
        self.body.push_str(text);
        self.body.push('\n');
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    fn r(&mut self) -> String {
        format!("%r{}", self.below(R))
    }

    fn f(&mut self) -> String {
        format!("%f{}", self.below(F))
    }

    fn d(&mut self) -> String {
        format!("%d{}", self.below(D))
    }

    fn l(&mut self) -> String {
        format!("%l{}", self.below(L))
    }

    fn h(&mut self) -> String {
        format!("%h{}", self.below(H))
    }

    fn head(&mut self) {
        let block = self.block;
        write!(
            self.body,
            ".version 7.1\n.target sm_80\n.address_size 64\n\
             .visible .entry kernel(.param .u64 in, .param .u64 counters, .param .u64 out)\n{{\n\
             \x20   .reg .pred %p<4>;\n    .reg .b32 %r<{R}>, %h<{H}>, %x<16>;\n    .reg .f32 %f<{F}>;\n\
             \x20   .reg .f64 %d<{D}>;\n    .reg .b64 %l<{L}>, %a<8>;\n    .reg .b16 %s<4>;\n\
             \x20   .shared .align 8 .b8 tile[{}];\n    .shared .align 4 .b8 sums[{}];\n    .local .align 8 .b8 own[{}];\n",
            4 * block,
            4 * COUNTERS,
            4 * LOCAL,
        )
        .expect("text grows");
        // %x0: thread, %x1: its place in the grid, %x2: its word of shared memory, %x3: the lanes of its warp.
        for text in [
            "mov.u32 %x0, %tid.x;",
            "mov.u32 %x1, %ctaid.x;",
            &format!("mad.lo.u32 %x1, %x1, {block}, %x0;"),
            "ld.param.u64 %a0, [in];",
            &format!("mad.wide.u32 %a0, %x1, {}, %a0;", 4 * INPUTS),
            "ld.param.u64 %a1, [counters];",
            "ld.param.u64 %a2, [out];",
            &format!("mad.wide.u32 %a2, %x1, {}, %a2;", 4 * OUTPUTS),
            "mov.u32 %x4, tile;",
            "mad.lo.u32 %x2, %x0, 4, %x4;",
            "mov.u32 %x5, sums;",
            "mov.u64 %a3, own;",
            "and.b32 %x6, %x0, -32;",
            &format!("sub.u32 %x6, {block}, %x6;"),
            "min.u32 %x6, %x6, 32;",
            "sub.u32 %x3, 32, %x6;",
            "shr.u32 %x3, 0xffffffff, %x3;",
            &format!("setp.lt.u32 %p0, %x0, {COUNTERS};"),
            "mad.lo.u32 %x7, %x0, 4, %x5;",
            "@%p0 st.shared.u32 [%x7], 0;",
        ] {
            self.line(text);
        }
        // A block may have fewer threads than there are sums.
        if u64::from(block) < COUNTERS {
            for i in 0..COUNTERS {
                emit!(self, "st.shared.u32 [%x5+{}], 0;", 4 * i);
            }
        }
        for i in 0..LOCAL {
            emit!(self, "st.local.u32 [%a3+{}], %x1;", 4 * i);
        }
        self.line("setp.eq.u32 %p0, %x0, 0;");
        for i in 1..4 {
            emit!(self, "setp.gt.u32 %p{i}, %x0, {};", 5 * i);
        }
        for i in 0..R {
            emit!(self, "ld.global.u32 %r{i}, [%a0+{}];", 4 * (i % INPUTS as u64));
        }
        for i in 0..F {
            emit!(self, "ld.global.f32 %f{i}, [%a0+{}];", 4 * i);
        }
        for i in 0..H {
            emit!(self, "ld.global.b32 %h{i}, [%a0+{}];", 4 * i);
        }
        for i in 0..D {
            emit!(self, "cvt.f64.f32 %d{i}, %f{i};");
        }
        for i in 0..L {
            emit!(self, "mov.b64 %l{i}, {{%r{i}, %r{}}};", i + 2);
        }
        self.line("bar.sync 0;");
    }

    fn tail(&mut self) {
        self.line("bar.sync 0;");
        // What the threads of a block added, and what those of the grid did.
        emit!(self, "rem.u32 %x8, %x0, {COUNTERS};");
        self.line("mad.lo.u32 %x8, %x8, 4, %x5;");
        self.line("ld.shared.u32 %x9, [%x8];");
        self.line("xor.b32 %r0, %r0, %x9;");
        let mut at = 0;
        for (count, kind, ty) in [(R, "r", "u32"), (F, "f", "f32"), (H, "h", "b32")] {
            for i in 0..count {
                if kind == "f" {
                    // Whatever came of NaNs on the way, the payload of one is not compared.
                    emit!(self, "setp.nan.f32 %p0, %f{i}, %f{i};");
                    emit!(self, "@%p0 mov.f32 %f{i}, 0f7FFFFFFF;");
                }
                emit!(self, "st.global.{ty} [%a2+{at}], %{kind}{i};");
                at += 4;
            }
        }
        for i in 0..D {
            emit!(self, "setp.nan.f64 %p0, %d{i}, %d{i};");
            emit!(self, "@%p0 mov.f64 %d{i}, 0d7FF8000000000000;");
            emit!(self, "mov.b64 {{%x8, %x9}}, %d{i};");
            emit!(self, "st.global.u32 [%a2+{at}], %x8;");
            emit!(self, "st.global.u32 [%a2+{}], %x9;", at + 4);
            at += 8;
        }
        for i in 0..L {
            emit!(self, "mov.b64 {{%x8, %x9}}, %l{i};");
            emit!(self, "st.global.u32 [%a2+{at}], %x8;");
            emit!(self, "st.global.u32 [%a2+{}], %x9;", at + 4);
            at += 8;
        }
        self.line("ret;");
        self.body.push_str("}\n");
    }

    /// A few instructions that all threads execute together.
    fn step(&mut self) {
        match self.below(7) {
            0..=2 => self.region(),
            3 => self.exchange(),
            4 => self.warp(),
            5 => self.sums(),
            _ => self.calculate(8),
        }
    }

    /// A word through shared memory, from any thread of the block.
    fn exchange(&mut self) {
        let (from, to, index) = (self.r(), self.r(), self.r());
        let block = self.block;
        emit!(self, "st.shared.u32 [%x2], {from};");
        self.line("bar.sync 0;");
        emit!(self, "rem.u32 %x8, {index}, {block};");
        self.line("mad.lo.u32 %x8, %x8, 4, %x4;");
        emit!(self, "ld.shared.u32 {to}, [%x8];");
        self.line("bar.sync 0;");
    }

    /// Shuffles, votes, matches and reductions of a warp.
    fn warp(&mut self) {
        for _ in 0..1 + self.below(3) {
            let (from, to, lane) = (self.r(), self.r(), self.r());
            let p = self.below(4);
            match self.below(8) {
                0 => {
                    // The lane that is read takes part.
                    emit!(self, "rem.u32 %x8, {lane}, %x6;");
                    emit!(self, "shfl.sync.idx.b32 {to}|%p{p}, {from}, %x8, 31, %x3;");
                }
                1 => {
                    let distance = 1 + self.below(31);
                    emit!(self, "shfl.sync.up.b32 {to}, {from}, {distance}, 0, %x3;");
                }
                2 if self.block.is_multiple_of(32) => {
                    let mode = self.pick(&["down", "bfly"]);
                    let distance = 1 + self.below(31);
                    emit!(self, "shfl.sync.{mode}.b32 {to}|%p{p}, {from}, {distance}, 31, %x3;");
                }
                3 => self.line(&format!("vote.sync.ballot.b32 {to}, %p{p}, %x3;")),
                4 => {
                    let mode = self.pick(&["any", "all", "uni"]);
                    emit!(self, "vote.sync.{mode}.pred %p{}, %p{p}, %x3;", (p + 1) % 4);
                }
                5 => {
                    emit!(self, "and.b32 %x8, {from}, 3;");
                    emit!(self, "match.any.sync.b32 {to}, %x8, %x3;");
                }
                6 => {
                    let op = self.pick(&["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"]);
                    emit!(self, "redux.sync.{op} {to}, {from}, %x3;");
                }
                _ => self.line(&format!("match.all.sync.b32 {to}|%p{p}, {from}, %x3;")),
            }
        }
    }

    /// Reductions, in any order.
    fn sums(&mut self) {
        let (from, which) = (self.r(), self.r());
        let op = self.pick(&["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"]);
        // Operations that commute with themselves only: each has sums of its own.
        let slot =
            ["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"].iter().position(|o| *o == op);
        let at = 4 * slot.unwrap_or(0);
        emit!(self, "red.shared.{op} [%x5+{at}], {from};");
        emit!(self, "red.global.{op} [%a1+{at}], {which};");
    }

    /// Code that diverges.
    fn region(&mut self) {
        let p = self.condition();
        match self.below(3) {
            0 => {
                let end = self.label();
                emit!(self, "@{}%p{p} bra {end};", self.not());
                self.inside();
                self.target(&end);
            }
            1 => {
                let (other, end) = (self.label(), self.label());
                emit!(self, "@{}%p{p} bra {other};", self.not());
                self.inside();
                emit!(self, "bra {end};");
                self.target(&other);
                self.inside();
                self.target(&end);
            }
            _ => {
                // Every thread its own number of rounds; the counter is not among the registers that are written.
                let (again, count) = (self.label(), self.r());
                let counter = format!("%x{}", 10 + self.depth);
                emit!(self, "and.b32 {counter}, {count}, 7;");
                self.target(&again);
                self.inside();
                emit!(self, "sub.s32 {counter}, {counter}, 1;");
                emit!(self, "setp.gt.s32 %p{p}, {counter}, 0;");
                emit!(self, "@%p{p} bra {again};");
            }
        }
    }

    fn not(&mut self) -> &'static str {
        self.pick(&["", "!"])
    }

    fn target(&mut self, label: &str) {
        self.body.push_str(label);
        self.body.push_str(":\n");
    }

    fn inside(&mut self) {
        self.depth += 1;
        let count = 1 + self.below(6);
        self.calculate(count);
        if self.depth < 3 && self.below(3) == 0 {
            self.region();
        }
        let count = self.below(3);
        self.calculate(count);
        self.depth -= 1;
    }

    fn condition(&mut self) -> u64 {
        let p = self.below(4);
        let cmp = self.pick(&["eq", "ne", "lt", "le", "gt", "ge"]);
        match self.below(4) {
            0 => {
                let (a, b) = (self.f(), self.f());
                let ftz = self.pick(&["", "u"]);
                let cmp = if ftz == "u" { self.pick(&["equ", "neu", "ltu", "num", "nan"]) } else { cmp };
                emit!(self, "setp.{cmp}.f32 %p{p}, {a}, {b};");
            }
            1 => {
                let (a, limit) = (self.r(), self.below(32));
                emit!(self, "and.b32 %x8, {a}, 31;");
                emit!(self, "setp.{cmp}.u32 %p{p}, %x8, {limit};");
            }
            2 => {
                let (a, b) = (self.l(), self.l());
                emit!(self, "setp.{cmp}.s64 %p{p}, {a}, {b};");
            }
            _ => {
                let (a, b) = (self.r(), self.r());
                let ty = self.pick(&["s32", "u32"]);
                let q = self.below(4);
                emit!(self, "setp.{cmp}.xor.{ty} %p{p}, {a}, {b}, %p{q};");
            }
        }
        p
    }

    fn calculate(&mut self, count: u64) {
        for _ in 0..count {
            match self.below(12) {
                0..=4 => self.integer(),
                5..=6 => self.float(),
                7 => self.double(),
                8 => self.long(),
                9 => self.packed(),
                10 => self.convert(),
                _ => self.local(),
            }
        }
    }

    /// Fills a register with a word of which an assembler knows nothing: local memory at a place that is computed.
    fn unknown(&mut self, to: &str) {
        let index = self.r();
        emit!(self, "and.b32 {to}, {index}, {};", LOCAL - 1);
        emit!(self, "mad.wide.u32 %a4, {to}, 4, %a3;");
        emit!(self, "ld.local.u32 {to}, [%a4];");
    }

    /// A register or a literal.
    fn operand(&mut self) -> String {
        if self.below(4) == 0 { format!("{:#x}", self.word()) } else { self.r() }
    }

    fn integer(&mut self) {
        let (d, a, b, c) = (self.r(), self.r(), self.operand(), self.r());
        let p = self.below(4);
        let text = match self.below(27) {
            0 => format!(
                "{} {d}, {a}, {b};",
                self.pick(&["add.u32", "sub.s32", "mul.lo.s32", "mul.hi.u32", "mul.hi.s32"])
            ),
            1 => format!("{} {d}, {a}, {b};", self.pick(&["and.b32", "or.b32", "xor.b32"])),
            2 => format!("{} {d}, {a}, {b};", self.pick(&["min.s32", "max.s32", "min.u32", "max.u32"])),
            3 => format!("{} {d}, {a}, {b};", self.pick(&["shl.b32", "shr.u32", "shr.s32"])),
            // Of `mad.hi` in loops with factors that stay the same ptxas 13.0 makes something else from -O2 on.
            4 if self.depth > 0 => {
                let op = self.pick(&["mad.lo.u32", "mad.lo.s32", "sad.u32", "sad.s32"]);
                format!("{op} {d}, {a}, {b}, {c};")
            }
            4 => format!(
                "{} {d}, {a}, {b}, {c};",
                self.pick(&["mad.lo.u32", "mad.lo.s32", "mad.hi.u32", "mad.hi.s32", "sad.u32", "sad.s32"])
            ),
            5 => {
                format!("{} {d}, {a};", self.pick(&["not.b32", "brev.b32", "popc.b32", "clz.b32"]))
            }
            6 => format!("{} {d}, {a};", self.pick(&["bfind.u32", "bfind.s32", "bfind.shiftamt.u32"])),
            // On operands that nothing is known of: where two of three are the same and the result is combined with them
            // once more, ptxas 13.0 loses a term.
            7 => {
                self.unknown("%x8");
                self.unknown("%x9");
                format!("lop3.b32 {d}, %x8, {b}, %x9, {:#x};", self.below(256))
            }
            // A source that only the sign selectors of a literal name is one that ptxas 13.0 may take for unused.
            8 => format!("prmt.b32 {d}, {a}, {c}, {:#x};", self.below(0x1_0000) & 0x7777),
            9 => format!(
                "{} {d}, {a}, {c}, {b};",
                self.pick(&["shf.l.wrap.b32", "shf.r.wrap.b32", "shf.l.clamp.b32", "shf.r.clamp.b32"])
            ),
            10 => {
                // Positions and lengths of more than eight bits are not the same everywhere.
                // Nor are literal positions above 31: ptxas 13.0 makes ones of them.
                self.unknown("%x8");
                emit!(self, "and.b32 %x8, %x8, 63;");
                let (ty, length) = (self.pick(&["u32", "s32"]), self.below(40));
                format!("bfe.{ty} {d}, {a}, %x8, {length};")
            }
            // Of a length of 32 that is a literal ptxas 13.0 makes none.
            11 => format!("bfi.b32 {d}, {a}, {c}, {}, {};", self.below(32), 1 + self.below(31)),
            // In a loop whose condition is the predicate, ptxas 13.0 may select behind the loop, by its last value.
            12 if self.depth == 0 => format!("selp.b32 {d}, {a}, {b}, %p{p};"),
            13 => format!(
                "{} {d}, {a}, {c}, {c};",
                self.pick(&[
                    "dp4a.u32.u32",
                    "dp4a.s32.s32",
                    "dp4a.u32.s32",
                    "dp2a.lo.s32.u32",
                    "dp2a.hi.u32.u32"
                ])
            ),
            14 => {
                emit!(self, "or.b32 %x8, {c}, 1;");
                format!("{} {d}, {a}, %x8;", self.pick(&["div.u32", "rem.u32"]))
            }
            15 => {
                emit!(self, "and.b32 %x8, {c}, 0xffff;");
                self.line("or.b32 %x8, %x8, 2;");
                format!("{} {d}, {a}, %x8;", self.pick(&["div.s32", "rem.s32"]))
            }
            // Where a factor's upper half goes into a sum with carry, ptxas 13.0 may join the two and get the carry wrong.
            16 | 17 => {
                let op = if self.below(2) == 0 { "add" } else { "sub" };
                self.unknown("%x8");
                self.unknown("%x9");
                emit!(self, "{op}.cc.u32 {d}, %x8, %x9;");
                format!("{op}c.u32 {}, {c}, {b};", self.r())
            }
            18 => {
                // Not with literals: what `set` gives is minus one, but ptxas 13.0 takes it for 1.
                self.unknown("%x8");
                format!("set.{}.u32.s32 {d}, {a}, %x8;", self.pick(&["lt", "ge", "ne"]))
            }
            19 => {
                // On operands that nothing is known of: of the sum of two numbers and one of them ptxas 13.0 makes the other.
                self.unknown("%x8");
                format!("{} {d}, {a}, %x8;", self.pick(&["add.sat.s32", "sub.sat.s32"]))
            }
            // Of the smallest number ptxas makes what it likes: from -O1 on it saturates the negated one as a positive number.
            26 => {
                emit!(self, "shr.s32 %x8, {a}, 1;");
                format!("{} {d}, %x8;", self.pick(&["abs.s32", "neg.s32"]))
            }
            20 => format!("mul24.lo.u32 {d}, {a}, {c};"),
            21 => format!("slct.u32.s32 {d}, {a}, {b}, {c};"),
            22 => {
                let q = self.below(4);
                let op = self.pick(&["and.pred", "or.pred", "xor.pred"]);
                format!("{op} %p{p}, %p{p}, %p{q};")
            }
            23 => {
                self.condition();
                format!("@%p{p} xor.b32 {d}, {a}, {b};")
            }
            24 => {
                emit!(self, "cvt.u16.u32 %s0, {a};");
                emit!(self, "cvt.u16.u32 %s1, {c};");
                let op = self.pick(&["add.u16", "mul.lo.s16", "max.s16", "min.u16", "shr.s16"]);
                if op == "shr.s16" {
                    emit!(self, "shr.s16 %s2, %s0, {};", self.below(20));
                } else {
                    emit!(self, "{op} %s2, %s0, %s1;");
                }
                format!("{} {d}, %s2;", self.pick(&["cvt.u32.u16", "cvt.s32.s16"]))
            }
            _ => format!("mov.b32 {d}, {b};"),
        };
        self.line(&text);
    }

    fn float(&mut self) {
        let (d, a, b, c) = (self.f(), self.f(), self.f(), self.f());
        let mode = self.pick(&["rn", "rz", "rm", "rp", "rn.ftz"]);
        let text = match self.below(9) {
            0 | 1 => format!("{}.{mode}.f32 {d}, {a}, {b};", self.pick(&["add", "sub", "mul"])),
            2 | 3 => format!("fma.{mode}.f32 {d}, {a}, {b}, {c};"),
            // Of a number and itself ptxas makes the number, NaN or not.
            4 if a == b => format!("abs.f32 {d}, {a};"),
            4 => {
                format!("{} {d}, {a}, {b};", self.pick(&["min.f32", "max.f32", "min.ftz.f32", "max.NaN.f32"]))
            }
            5 => format!("{} {d}, {a};", self.pick(&["neg.f32", "abs.f32", "sqrt.rn.f32", "rcp.rn.f32"])),
            6 => format!("div.rn.f32 {d}, {a}, {b};"),
            // As of integers.
            7 if self.depth == 0 => format!("selp.f32 {d}, {a}, {b}, %p{};", self.below(4)),
            _ => format!("{}.rn.sat.f32 {d}, {a}, {b};", self.pick(&["add", "mul"])),
        };
        self.line(&text);
    }

    fn double(&mut self) {
        let (d, a, b, c) = (self.d(), self.d(), self.d(), self.d());
        let mode = self.pick(&["rn", "rz", "rm", "rp"]);
        let text = match self.below(6) {
            0 | 1 => format!("{}.{mode}.f64 {d}, {a}, {b};", self.pick(&["add", "sub", "mul"])),
            2 => format!("fma.{mode}.f64 {d}, {a}, {b}, {c};"),
            3 => format!("{} {d}, {a}, {b};", self.pick(&["min.f64", "max.f64"])),
            4 => format!("div.rn.f64 {d}, {a}, {b};"),
            _ => format!("sqrt.rn.f64 {d}, {a};"),
        };
        self.line(&text);
    }

    fn long(&mut self) {
        let (d, a, b, r) = (self.l(), self.l(), self.l(), self.r());
        let text = match self.below(9) {
            0 => format!(
                "{} {d}, {a}, {b};",
                self.pick(&["add.s64", "sub.s64", "mul.lo.s64", "mul.hi.u64", "mul.hi.s64"])
            ),
            1 => format!(
                "{} {d}, {a}, {b};",
                self.pick(&["and.b64", "or.b64", "xor.b64", "min.s64", "max.u64"])
            ),
            2 => format!("{} {d}, {a}, {r};", self.pick(&["shl.b64", "shr.u64", "shr.s64"])),
            3 => format!("{} {d}, {r}, {};", self.pick(&["mul.wide.u32", "mul.wide.s32"]), self.r()),
            4 => format!("mad.wide.s32 {d}, {r}, {}, {a};", self.r()),
            5 => format!("{} {r}, {a};", self.pick(&["popc.b64", "clz.b64", "bfind.s64"])),
            6 => format!("{} {d}, {a};", self.pick(&["brev.b64", "neg.s64", "not.b64"])),
            7 => format!("mov.b64 {d}, {{{r}, {}}};", self.r()),
            _ => {
                emit!(self, "mov.b64 {{%x8, %x9}}, {a};");
                format!("xor.b32 {r}, %x8, %x9;")
            }
        };
        self.line(&text);
    }

    fn packed(&mut self) {
        let (d, a, b, c) = (self.h(), self.h(), self.h(), self.h());
        let text = match self.below(6) {
            // Nor of a pair and itself.
            0 | 2 if a == b => format!("fma.rn.bf16x2 {d}, {a}, {b}, {c};"),
            0 => format!(
                "{} {d}, {a}, {b};",
                self.pick(&["add.rn.f16x2", "sub.rn.f16x2", "mul.rn.f16x2", "min.f16x2", "max.f16x2"])
            ),
            1 => format!(
                "{} {d}, {a}, {b}, {c};",
                self.pick(&["fma.rn.f16x2", "fma.rn.bf16x2", "fma.rn.relu.f16x2"])
            ),
            2 => format!("{} {d}, {a}, {b};", self.pick(&["min.bf16x2", "max.bf16x2", "max.NaN.f16x2"])),
            3 => {
                let (x, y) = (self.f(), self.f());
                format!(
                    "{} {d}, {x}, {y};",
                    self.pick(&["cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32", "cvt.rz.bf16x2.f32"])
                )
            }
            4 => {
                emit!(self, "mov.b32 {{%s0, %s1}}, {a};");
                format!("cvt.f32.f16 {}, %s{};", self.f(), self.below(2))
            }
            _ => format!("mov.b32 {d}, {};", self.r()),
        };
        self.line(&text);
    }

    fn convert(&mut self) {
        let (r, f, d, l) = (self.r(), self.f(), self.d(), self.l());
        let text = match self.below(14) {
            0 => format!("cvt.{}.f32.s32 {f}, {r};", self.pick(&["rn", "rz", "rm", "rp"])),
            1 => format!("cvt.rn.f32.u32 {f}, {r};"),
            2 => format!("cvt.{}.s32.f32 {r}, {f};", self.pick(&["rni", "rzi", "rmi", "rpi"])),
            3 => format!("cvt.{}.u32.f32 {r}, {f};", self.pick(&["rni", "rzi"])),
            4 => format!("cvt.rn.f64.s32 {d}, {r};"),
            5 => format!("cvt.{}.s32.f64 {r}, {d};", self.pick(&["rni", "rzi"])),
            6 => format!("cvt.f64.f32 {d}, {f};"),
            7 => format!("cvt.{}.f32.f64 {f}, {d};", self.pick(&["rn", "rz"])),
            8 => format!("cvt.{}.f32.f32 {f}, {};", self.pick(&["rni", "rzi", "rmi", "rpi"]), self.f()),
            9 => format!(
                "{} {r}, {};",
                self.pick(&["cvt.s32.s8", "cvt.u32.u8", "cvt.sat.s8.s32", "cvt.sat.u16.s32"]),
                self.r()
            ),
            10 => format!("{} {l}, {r};", self.pick(&["cvt.s64.s32", "cvt.u64.u32"])),
            11 => format!("cvt.u32.u64 {r}, {l};"),
            12 => format!("cvt.rn.f32.{} {f}, {l};", self.pick(&["s64", "u64"])),
            _ => format!("mov.b32 {r}, {f};"),
        };
        self.line(&text);
    }

    /// A word of the thread's own memory, at a place that it computes.
    fn local(&mut self) {
        let (index, value) = (self.r(), self.r());
        emit!(self, "and.b32 %x8, {index}, {};", LOCAL - 1);
        self.line("mad.wide.u32 %a4, %x8, 4, %a3;");
        if self.below(2) == 0 {
            emit!(self, "st.local.u32 [%a4], {value};");
        } else {
            emit!(self, "ld.local.u32 {value}, [%a4];");
        }
    }
}
