//! Random small kernels whose addresses are sums, fields and choices of indices, with asynchronous copies, with and without defects.

use std::fmt::Write;

/// A reproducible sequence of choices.
pub(crate) struct Choices(u64);

impl Choices {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A kernel and what is promised of its launches.
pub(crate) struct Kernel {
    pub(crate) text: String,
    /// `.reqntid`, or any block along x.
    pub(crate) block: Option<[u32; 3]>,
    /// Elements of `x` and `y`.
    pub(crate) extents: [&'static str; 2],
    /// Bytes of an element of each.
    pub(crate) elements: [u32; 2],
}

/// Elements of the shared array.
const TILE: u32 = 64;

struct Writer<'a> {
    choices: &'a mut Choices,
    body: String,
    registers: u32,
    labels: u32,
    two_dimensional: bool,
    counters: Vec<String>,
    elements: [u32; 2],
    depth: u32,
}

/// The kernel of a seed.
pub(crate) fn kernel(seed: u64) -> Kernel {
    let mut choices = Choices::new(seed);
    let block = choices.of(&[None, Some([64, 1, 1]), Some([48, 1, 1]), Some([16, 4, 1]), Some([8, 8, 1])]);
    let extents =
        [0, 1].map(|_| choices.of(&["n", "n", "n + 1", "2*n", "64", "128", "ntid.x*nctaid.x", "n*nctaid.x"]));
    let elements = [0, 1].map(|_| choices.of(&[4, 4, 1, 8]));
    let two_dimensional = block.is_some_and(|[_, y, _]| y > 1);
    let mut writer = Writer {
        choices: &mut choices,
        body: String::new(),
        registers: 0,
        labels: 0,
        two_dimensional,
        counters: Vec::new(),
        elements,
        depth: 0,
    };
    let count = 1 + writer.choices.below(4);
    writer.statements(count);
    let (body, registers) = (writer.body, writer.registers + 1);
    let directive = block.map_or(String::new(), |[x, y, z]| format!(" .reqntid {x}, {y}, {z}"));
    let text = format!(
        ".version 7.5\n.target sm_80\n.address_size 64\n\
         .visible .entry k(.param .u64 x, .param .u64 y, .param .u32 n, .param .u32 m){directive}\n{{\n\
         .reg .pred %p<{registers}>;\n.reg .b32 %r<{registers}>;\n.reg .b64 %rd<{registers}>;\n.reg .b64 %v;\n\
         .reg .b32 %tx; .reg .b32 %ty; .reg .b32 %bx; .reg .b32 %nx; .reg .b32 %n; .reg .b32 %m; .reg .b32 %g;\n\
         .reg .b64 %x; .reg .b64 %y;\n.shared .align 16 .b32 tile[{TILE}];\n\
         ld.param.u64 %x, [x];\nld.param.u64 %y, [y];\nld.param.u32 %n, [n];\nld.param.u32 %m, [m];\n\
         mov.u32 %tx, %tid.x;\nmov.u32 %bx, %ctaid.x;\nmov.u32 %nx, %ntid.x;\nmad.lo.u32 %g, %bx, %nx, %tx;\n\
         {}mov.b64 %v, 7;\n{body}ret;\n}}\n",
        if two_dimensional { "mov.u32 %ty, %tid.y;\n" } else { "mov.u32 %ty, 0;\n" }
    );
    Kernel { text, block, extents, elements }
}

impl Writer<'_> {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{line}");
    }

    fn register(&mut self) -> u32 {
        self.registers += 1;
        self.registers
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    fn statements(&mut self, count: usize) {
        for _ in 0..count {
            let kind = self.choices.below(if self.depth < 2 { 15 } else { 11 });
            match kind {
                0..=3 => self.global(),
                4 | 5 => self.shared(),
                6 | 7 => self.line(format_args!("bar.sync 0;")),
                8 | 9 => self.copy(),
                10 => self.wait(),
                11 | 12 => self.repeat(),
                _ => self.branch(),
            }
        }
    }

    /// An index: often a plain one.
    fn index(&mut self) -> String {
        match self.choices.below(6) {
            0 | 1 => "%g".to_owned(),
            2 => "%tx".to_owned(),
            3 if self.two_dimensional => {
                let r = self.register();
                let pitch = self.choices.of(&[16, 8, 17, 15]);
                self.line(format_args!("mad.lo.u32 %r{r}, %ty, {pitch}, %tx;"));
                format!("%r{r}")
            }
            _ => self.expression(2),
        }
    }

    fn leaf(&mut self) -> String {
        let mut leaves = vec!["%tx", "%tx", "%bx", "%g", "%n", "%m", "%nx"]
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>();
        if self.two_dimensional {
            leaves.push("%ty".to_owned());
        }
        leaves.extend(self.counters.iter().flat_map(|k| [k.clone(), k.clone()]));
        let at = self.choices.below(leaves.len() + 2);
        leaves.get(at).cloned().unwrap_or_else(|| self.choices.below(6).to_string())
    }

    fn expression(&mut self, depth: u32) -> String {
        if depth == 0 || self.choices.one_in(4) {
            return self.leaf();
        }
        let a = self.expression(depth - 1);
        let small = self.choices.of(&[1, 2, 3, 4, 5, 8, 16, 17, 64]);
        let r = self.register();
        match self.choices.below(16) {
            0 | 1 => {
                let b = self.expression(depth - 1);
                self.line(format_args!("add.u32 %r{r}, {a}, {b};"));
            }
            2 => {
                let b = self.expression(depth - 1);
                self.line(format_args!("sub.u32 %r{r}, {a}, {b};"));
            }
            3 => self.line(format_args!("mul.lo.u32 %r{r}, {a}, {small};")),
            4 => {
                let by = self.choices.of(&[1, 2, 3, 6, 28, 31]);
                self.line(format_args!("shl.b32 %r{r}, {a}, {by};"));
            }
            5 => {
                let (ty, by) = (self.choices.of(&["u32", "s32"]), self.choices.of(&[1, 2, 3, 4, 5]));
                self.line(format_args!("shr.{ty} %r{r}, {a}, {by};"));
            }
            6 | 7 => {
                let mask = self.choices.of(&[1, 3, 7, 15, 31, 63, 12, 0xffff_fff0u32]);
                self.line(format_args!("and.b32 %r{r}, {a}, {mask};"));
            }
            8 => self.line(format_args!("div.u32 %r{r}, {a}, {small};")),
            9 => self.line(format_args!("rem.u32 %r{r}, {a}, {small};")),
            10 => {
                let ty = self.choices.of(&["u32", "s32"]);
                self.line(format_args!("min.{ty} %r{r}, {a}, {small};"));
            }
            11 => {
                let ty = self.choices.of(&["u32", "s32"]);
                self.line(format_args!("max.{ty} %r{r}, {a}, {small};"));
            }
            12 => {
                let b = self.expression(depth - 1);
                let p = self.condition();
                self.line(format_args!("selp.u32 %r{r}, {a}, {b}, %p{p};"));
            }
            13 => {
                let b = self.expression(depth - 1);
                self.line(format_args!("or.b32 %r{r}, {a}, {b};"));
            }
            14 if self.choices.one_in(2) => {
                let b = self.expression(depth - 1);
                self.line(format_args!("xor.b32 %r{r}, {a}, {b};"));
            }
            14 => self.line(format_args!("xor.b32 %r{r}, {a}, {small};")),
            _ => {
                let p = self.condition();
                let b = self.expression(depth - 1);
                self.line(format_args!("mov.u32 %r{r}, {a};\n@%p{p} mov.u32 %r{r}, {b};"));
            }
        }
        format!("%r{r}")
    }

    fn condition(&mut self) -> u32 {
        let (a, b) = (self.leaf(), self.leaf());
        // A comparison of two literals is no instruction of a kernel that somebody writes.
        let a = if a.starts_with('%') { a } else { "%tx".to_owned() };
        let p = self.register();
        let (op, ty) =
            (self.choices.of(&["lt", "le", "eq", "ne", "gt", "ge"]), self.choices.of(&["u32", "s32"]));
        self.line(format_args!("setp.{op}.{ty} %p{p}, {a}, {b};"));
        if self.choices.one_in(4) {
            let (q, c) = (self.register(), self.leaf());
            let join = self.choices.of(&["and", "or", "xor"]);
            self.line(format_args!("setp.lt.{join}.u32 %p{q}, %tx, {c}, %p{p};"));
            return q;
        }
        p
    }

    /// An access to `x` or `y`, mostly guarded.
    fn global(&mut self) {
        let which = self.choices.below(2);
        let (array, element) = (["%x", "%y"][which], self.elements[which]);
        let index = self.index();
        let offset = self.choices.of(&[0, 0, 0, 1, -1, 2]);
        let bound = self.choices.of(&["%n", "%n", "%n", "64", "128", "63", "%nx"]);
        let guarded = !self.choices.one_in(5);
        let p = self.register();
        let ahead = if offset > 0 && !self.choices.one_in(4) { offset } else { 0 };
        if guarded {
            let (op, ty) =
                (self.choices.of(&["lt", "lt", "lt", "lt", "le"]), self.choices.of(&["u32", "u32", "s32"]));
            let r = self.register();
            self.line(format_args!("add.u32 %r{r}, {index}, {ahead};"));
            if offset < 0 && !self.choices.one_in(4) {
                let q = self.register();
                self.line(format_args!("setp.ge.u32 %p{q}, {index}, 1;"));
                self.line(format_args!("setp.{op}.and.{ty} %p{p}, %r{r}, {bound}, %p{q};"));
            } else {
                self.line(format_args!("setp.{op}.{ty} %p{p}, %r{r}, {bound};"));
            }
        }
        let r = self.register();
        let wide = self.choices.of(&["u32", "u32", "s32"]);
        if index.starts_with('%') {
            self.line(format_args!("mul.wide.{wide} %rd{r}, {index}, {element};"));
        } else {
            self.line(format_args!("mov.b64 %rd{r}, {};", index.parse::<u32>().unwrap_or(0) * element));
        }
        self.line(format_args!("add.s64 %rd{r}, %rd{r}, {array};"));
        let at = offset * element as i32;
        self.access("global", &format!("[%rd{r}+{at}]"), element, guarded.then_some(p));
    }

    fn access(&mut self, space: &str, address: &str, element: u32, guard: Option<u32>) {
        let guard = guard.map_or(String::new(), |p| format!("@%p{p} "));
        let bits = element * 8;
        let d = self.register();
        let value = if bits == 64 { format!("%rd{d}") } else { format!("%r{d}") };
        match self.choices.below(8) {
            0..=2 => self.line(format_args!("{guard}ld.{space}.u{bits} {value}, {address};")),
            3 if bits == 32 => self.line(format_args!("{guard}red.{space}.add.u32 {address}, 1;")),
            4 if bits == 32 && space == "global" => {
                self.line(format_args!("{guard}ld.{space}.v2.u32 {{%r{d}, _}}, {address};"));
            }
            _ if bits == 64 => self.line(format_args!("{guard}st.{space}.u64 {address}, %v;")),
            _ => self.line(format_args!("{guard}st.{space}.u{bits} {address}, %g;")),
        }
    }

    fn shared(&mut self) {
        let (address, guard) = self.word_of_tile();
        self.access("shared", &address, 4, guard);
    }

    /// The address of a word of the shared array, and its guard.
    fn word_of_tile(&mut self) -> (String, Option<u32>) {
        let index = self.index();
        let guarded = self.choices.one_in(2);
        let p = self.register();
        if guarded {
            let op = self.choices.of(&["lt", "lt", "lt", "le"]);
            let r = self.register();
            self.line(format_args!("mov.u32 %r{r}, {index};\nsetp.{op}.u32 %p{p}, %r{r}, {TILE};"));
        }
        let (r, base) = (self.register(), self.register());
        self.line(format_args!("mov.u32 %r{r}, {index};\nshl.b32 %r{r}, %r{r}, 2;"));
        self.line(format_args!("mov.u32 %r{base}, tile;\nadd.u32 %r{r}, %r{r}, %r{base};"));
        let at = self.choices.of(&[0, 0, 0, 4, -4]);
        (format!("[%r{r}+{at}]"), guarded.then_some(p))
    }

    /// An asynchronous copy from `x` to the shared array, of a source that may be short, often with what closes its group.
    fn copy(&mut self) {
        let (to, guard) = self.word_of_tile();
        let guard = guard.map_or(String::new(), |p| format!("@%p{p} "));
        let r = self.register();
        let index = self.choices.of(&["%tx", "%g", "0"]);
        let (p, bound) = (self.register(), self.choices.of(&["%n", "%n", "64"]));
        self.line(format_args!("mov.u32 %r{r}, {index};\nsetp.ge.u32 %p{p}, %r{r}, {bound};"));
        self.line(format_args!("mul.wide.u32 %rd{r}, %r{r}, 4;\nadd.s64 %rd{r}, %rd{r}, %x;"));
        self.line(format_args!("{guard}cp.async.ca.shared.global {to}, [%rd{r}], 4, %p{p};"));
        if !self.choices.one_in(4) {
            let guard = if self.choices.one_in(6) { guard.as_str() } else { "" };
            self.line(format_args!("{guard}cp.async.commit_group;"));
        }
        if self.choices.one_in(2) {
            self.wait();
        }
    }

    fn wait(&mut self) {
        let wait = self.choices.of(&["wait_group 0", "wait_group 0", "wait_all", "wait_group 1"]);
        self.line(format_args!("cp.async.{wait};"));
        if self.choices.one_in(2) {
            self.line(format_args!("bar.sync 0;"));
        }
    }

    /// A loop that tests before or after its body.
    fn repeat(&mut self) {
        let (k, p) = (self.register(), self.register());
        let (first, step) =
            (self.choices.of(&["0", "0", "%tx", "%g"]), self.choices.of(&["1", "1", "2", "%nx"]));
        let limit = self.choices.of(&["2", "3", "%m", "%n", "%bx"]);
        let (head, end) = (self.label(), self.label());
        self.line(format_args!("mov.u32 %r{k}, {first};"));
        let tests_first = self.choices.one_in(2);
        if !tests_first && self.choices.one_in(2) {
            let q = self.register();
            self.line(format_args!("setp.ge.u32 %p{q}, %r{k}, {limit};\n@%p{q} bra {end};"));
        }
        self.line(format_args!("{head}:"));
        if tests_first {
            self.line(format_args!("setp.ge.u32 %p{p}, %r{k}, {limit};\n@%p{p} bra {end};"));
        }
        self.depth += 1;
        self.counters.push(format!("%r{k}"));
        let count = 1 + self.choices.below(3);
        self.statements(count);
        self.counters.pop();
        self.depth -= 1;
        self.line(format_args!("add.u32 %r{k}, %r{k}, {step};"));
        if tests_first {
            self.line(format_args!("bra {head};\n{end}:"));
        } else {
            self.line(format_args!("setp.lt.u32 %p{p}, %r{k}, {limit};\n@%p{p} bra {head};\n{end}:"));
        }
    }

    fn branch(&mut self) {
        let p = self.condition();
        let (other, end) = (self.label(), self.label());
        self.line(format_args!("@%p{p} bra {other};"));
        self.depth += 1;
        self.statements(1);
        if self.choices.one_in(2) {
            self.line(format_args!("bra {end};\n{other}:"));
            self.statements(1);
            self.line(format_args!("{end}:"));
        } else {
            self.line(format_args!("{other}:"));
        }
        self.depth -= 1;
    }
}
