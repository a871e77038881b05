//! Meaning of names: scopes, shadowing, and register ranges that cost nothing until they are used.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::OnceLock;

use crate::inst::Reg;
use crate::types::ScalarType;

/// Meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binding {
    /// One register, by its declaration.
    Register(u32),
    /// Index into the function's parameters.
    Param(u32),
    /// Index into the function's results.
    Return(u32),
    /// Index into the function's variables.
    Local(u32),
    /// Index into the module's variables.
    Module(u32),
    /// Index into the module's functions.
    Function(u32),
}

/// A fast hash for short names, seeded once per process so that no text can be made to collide.
#[derive(Clone, Copy)]
pub(super) struct Hashing(u64);

impl Default for Hashing {
    fn default() -> Self {
        static SEED: OnceLock<u64> = OnceLock::new();
        Self(*SEED.get_or_init(|| RandomState::new().hash_one(0u8) | 1))
    }
}

impl BuildHasher for Hashing {
    type Hasher = NameHasher;

    fn build_hasher(&self) -> NameHasher {
        NameHasher { state: self.0, seed: self.0 }
    }
}

/// Multiplies and folds eight bytes at a time.
pub(super) struct NameHasher {
    state: u64,
    seed: u64,
}

impl NameHasher {
    fn mix(&mut self, word: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.state ^ word) * u128::from(ODD ^ self.seed);
        self.state = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        // The length keeps what is short apart from what ends in zeros.
        let mut last = bytes.len() as u64;
        for byte in chunks.remainder() {
            last = last << 8 | u64::from(*byte);
        }
        self.mix(last);
    }

    fn write_u8(&mut self, _: u8) {
        // The end of a string, which `write` has told already.
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

/// A map whose changes are undone at the end of the scope that made them.
struct Scoped<K, V> {
    map: HashMap<K, (V, u32), Hashing>,
    undo: Vec<(K, Option<(V, u32)>)>,
    marks: Vec<usize>,
}

impl<K, V> Default for Scoped<K, V> {
    fn default() -> Self {
        Self { map: HashMap::default(), undo: Vec::new(), marks: Vec::new() }
    }
}

impl<K: Copy + Eq + Hash, V: Copy> Scoped<K, V> {
    fn depth(&self) -> u32 {
        u32::try_from(self.marks.len()).unwrap_or(u32::MAX)
    }

    fn open(&mut self) {
        self.marks.push(self.undo.len());
    }

    fn close(&mut self) {
        let Some(mark) = self.marks.pop() else { return };
        for (key, before) in self.undo.drain(mark..).rev() {
            match before {
                Some(value) => self.map.insert(key, value),
                None => self.map.remove(&key),
            };
        }
    }

    /// The value and the depth of the scope that holds it.
    fn get(&self, key: K) -> Option<(V, u32)> {
        self.map.get(&key).copied()
    }

    /// Declares a key in the innermost scope; false if that scope has it already.
    fn declare(&mut self, key: K, value: V) -> bool {
        let depth = self.depth();
        if self.get(key).is_some_and(|(_, d)| d == depth) {
            return false;
        }
        let before = self.map.insert(key, (value, depth));
        if depth > 0 {
            self.undo.push((key, before));
        }
        true
    }
}

/// One `.reg` declarator: `%r<100>` or a single name, which is a range of one.
struct Declaration {
    ty: ScalarType,
    count: u32,
    /// Components of each register: 1 unless it is a vector.
    width: u32,
    /// The registers that have been mentioned, by index and component.
    seen: Vec<Option<Reg>>,
    /// The range of the same name in an outer scope, and the depth of that scope.
    hides: Option<(u32, u32)>,
}

/// The names in scope.
#[derive(Default)]
pub(super) struct Names<'a> {
    /// The names of the module.
    outermost: HashMap<&'a str, Binding, Hashing>,
    /// The names of the current function but register ranges.
    plain: Scoped<&'a str, Binding>,
    /// First bytes of plain names that end in a digit: only these can hide a register of a range.
    numbered: [u64; 4],
    /// Register ranges by the name before the number.
    ranges: Scoped<&'a str, u32>,
    /// Registers that the current function has declared.
    declarations: Vec<Declaration>,
    declared: u64,
}

/// A register as it was declared: declaration and index in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    declaration: u32,
    index: u32,
    width: u32,
}

impl Slot {
    /// Components of the register: 1 unless it is a vector.
    pub(super) const fn width(self) -> u32 {
        self.width
    }

    /// One component of a vector.
    pub(super) const fn component(self, n: u32) -> Self {
        Self { index: self.index * self.width + n, width: 1, ..self }
    }
}

/// The meaning of a name that is in scope.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meaning {
    Register(Slot),
    Symbol(Binding),
}

impl<'a> Names<'a> {
    pub(super) fn open(&mut self) {
        self.plain.open();
        self.ranges.open();
    }

    pub(super) fn close(&mut self) {
        self.plain.close();
        self.ranges.close();
    }

    /// Forgets the registers of the function before.
    pub(super) fn start_function(&mut self) {
        self.declarations.clear();
        self.declared = 0;
        self.numbered = [0; 4];
    }

    /// Declares a variable or parameter; false if the scope has the name already.
    pub(super) fn declare(&mut self, name: &'a str, binding: Binding) -> bool {
        if self.plain.depth() == 0 {
            return self.declare_outermost(name, binding);
        }
        if let [first, .., b'0'..=b'9'] = name.as_bytes() {
            self.numbered[usize::from(first >> 6)] |= 1 << (first & 63);
        }
        self.plain.declare(name, binding)
    }

    /// Declares a name of the module from wherever this is; false if the module has it already.
    pub(super) fn declare_outermost(&mut self, name: &'a str, binding: Binding) -> bool {
        let free = !self.outermost.contains_key(name);
        if free {
            self.outermost.insert(name, binding);
        }
        free
    }

    /// Meaning of a name in the module.
    pub(super) fn outermost(&self, name: &str) -> Option<Binding> {
        self.outermost.get(name).copied()
    }

    /// Whether any scope around this place has the name.
    pub(super) fn is_known(&self, name: &str) -> bool {
        self.plain.map.contains_key(name) || self.outermost.contains_key(name)
    }

    /// How many registers the function would have declared with `more`.
    pub(super) const fn declared_with(&self, more: u64) -> u64 {
        self.declared.saturating_add(more)
    }

    fn register(&mut self, ty: ScalarType, width: u32, count: u32, hides: Option<(u32, u32)>) -> u32 {
        self.declared = self.declared_with(u64::from(count) * u64::from(width));
        self.declarations.push(Declaration { ty, count, width, seen: Vec::new(), hides });
        u32::try_from(self.declarations.len() - 1).unwrap_or(u32::MAX)
    }

    /// Declares one register.
    pub(super) fn declare_register(&mut self, name: &'a str, ty: ScalarType) -> bool {
        self.declare_vector(name, ty, 1)
    }

    /// Declares one register of `width` components.
    pub(super) fn declare_vector(&mut self, name: &'a str, ty: ScalarType, width: u32) -> bool {
        let depth = self.ranges.depth();
        if self.in_range(name).is_some_and(|(_, d)| d == depth) {
            return false;
        }
        let id = self.register(ty, width, 1, None);
        self.declare(name, Binding::Register(id))
    }

    /// Declares `base0` to `base(count - 1)`.
    pub(super) fn declare_range(&mut self, base: &'a str, ty: ScalarType, width: u32, count: u32) -> bool {
        let id = self.register(ty, width, count, self.ranges.get(base));
        self.ranges.declare(base, id)
    }

    /// The range that a name such as `%r12` belongs to, and the depth of its scope. All trailing digits are the index.
    fn in_range(&self, name: &str) -> Option<(Slot, u32)> {
        const MAX_DIGITS: usize = 7;
        let digits = name.bytes().rev().take(MAX_DIGITS + 1).take_while(u8::is_ascii_digit).count();
        if digits == 0 || digits > MAX_DIGITS {
            return None;
        }
        let (base, number) = name.split_at(name.len() - digits);
        if digits > 1 && number.starts_with('0') {
            return None;
        }
        let index = number.bytes().fold(0, |n, digit| n * 10 + u32::from(digit - b'0'));
        // An index beyond the innermost range may belong to one around it.
        let mut range = self.ranges.get(base);
        while let Some((declaration, depth)) = range {
            let Declaration { count, width, hides, .. } = self.declarations.get(declaration as usize)?;
            if index < *count {
                return Some((Slot { declaration, index, width: *width }, depth));
            }
            range = *hides;
        }
        None
    }

    /// Meaning of a name here. Within a scope a range hides what was declared before it.
    pub(super) fn resolve(&self, name: &str) -> Option<Meaning> {
        let range = self.in_range(name);
        if let (Some((slot, _)), Some(first)) = (range, name.as_bytes().first())
            && self.numbered[usize::from(first >> 6)] & (1 << (first & 63)) == 0
        {
            return Some(Meaning::Register(slot));
        }
        match (self.plain.get(name), range) {
            (Some((binding, depth)), range) if range.is_none_or(|(_, d)| depth > d) => Some(match binding {
                Binding::Register(declaration) => {
                    let width = self.declarations.get(declaration as usize).map_or(1, |d| d.width);
                    Meaning::Register(Slot { declaration, index: 0, width })
                }
                other => Meaning::Symbol(other),
            }),
            (_, Some((slot, _))) => Some(Meaning::Register(slot)),
            _ => self.outermost(name).map(Meaning::Symbol),
        }
    }

    /// The register of a slot; `make` is called on its first mention.
    pub(super) fn mention(&mut self, slot: Slot, make: impl FnOnce(ScalarType) -> Reg) -> Reg {
        let Some(declaration) = self.declarations.get_mut(slot.declaration as usize) else {
            return make(ScalarType::B32);
        };
        let index = slot.index as usize;
        if index >= declaration.seen.len() {
            let all = declaration.count as usize * declaration.width as usize;
            let room = (index + 1).next_power_of_two().min(all);
            declaration.seen.resize(room.max(index + 1), None);
        }
        *declaration.seen[index].get_or_insert_with(|| make(declaration.ty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(names: &Names<'_>, name: &str) -> Option<(u32, u32)> {
        match names.resolve(name) {
            Some(Meaning::Register(s)) => Some((s.declaration, s.index)),
            _ => None,
        }
    }

    #[test]
    fn the_innermost_declaration_wins() {
        let mut names = Names::default();
        names.open();
        assert!(names.declare_range("%r", ScalarType::B32, 1, 20));
        assert!(!names.declare_register("%r3", ScalarType::B32), "declared by the range");
        assert!(names.declare("%x1", Binding::Param(0)));
        assert!(names.declare_range("%x", ScalarType::F32, 1, 3));
        assert!(!names.declare_range("%x", ScalarType::F64, 1, 9), "declared twice");
        assert_eq!(slot(&names, "%r12"), Some((0, 12)));
        assert_eq!(slot(&names, "%r20"), None);
        assert_eq!(slot(&names, "%r03"), None);
        assert_eq!(slot(&names, "%x1"), Some((1, 1)), "a range hides what stands before it");
        names.open();
        assert!(names.declare_register("%r3", ScalarType::F64));
        assert_eq!(slot(&names, "%r3").map(|s| s.1), Some(0));
        assert!(names.declare("%r4", Binding::Local(7)));
        assert!(matches!(names.resolve("%r4"), Some(Meaning::Symbol(Binding::Local(7)))));
        names.open();
        assert!(names.declare_range("%r", ScalarType::B64, 1, 4));
        assert_eq!(slot(&names, "%r3").map(|s| s.1), Some(3));
        assert_eq!(slot(&names, "%r7"), Some((0, 7)), "beyond the inner range");
        names.close();
        names.close();
        assert_eq!(slot(&names, "%r3"), Some((0, 3)));
        assert_eq!(slot(&names, "%r4"), Some((0, 4)));
        names.close();
        assert_eq!(slot(&names, "%r3"), None);
    }

    #[test]
    fn vectors_have_components_and_the_module_is_the_outermost_scope() {
        let mut names = Names::default();
        assert!(names.declare("%v1", Binding::Module(4)));
        assert!(!names.declare_outermost("%v1", Binding::Function(0)));
        names.open();
        assert!(matches!(names.resolve("%v1"), Some(Meaning::Symbol(Binding::Module(4)))));
        assert!(names.declare_range("%v", ScalarType::F32, 4, 3));
        let Some(Meaning::Register(slot)) = names.resolve("%v1") else { panic!("hidden by the range") };
        assert_eq!((slot.width(), slot.component(2).index), (4, 6));
        assert_eq!(names.declared_with(0), 12);
        assert_eq!(names.mention(slot.component(3), |_| Reg(5)), Reg(5));
        assert_eq!(names.mention(slot.component(2), |_| Reg(6)), Reg(6));
        names.close();
        assert_eq!(names.outermost("%v1"), Some(Binding::Module(4)));
    }

    #[test]
    fn registers_are_made_on_first_mention() {
        let mut names = Names::default();
        names.open();
        names.declare_range("%r", ScalarType::B32, 1, 1 << 20);
        let Some(Meaning::Register(slot)) = names.resolve("%r5") else { panic!("declared") };
        assert_eq!(names.mention(slot, |_| Reg(9)), Reg(9));
        assert_eq!(names.mention(slot, |_| Reg(10)), Reg(9));
        assert!(names.declarations[0].seen.len() <= 8);
    }
}
