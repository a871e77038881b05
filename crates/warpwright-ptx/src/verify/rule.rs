//! The rules by name.

pub use crate::text::Severity;

macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal $severity:ident),* $(,)?) => {
        /// A rule of the verifier. Names are stable; `tests/filetests/verify` has a good and a bad example of each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Rule { $(#[doc = concat!("`", $name, "`:")] $(#[doc = $doc])+ $variant),* }

        impl Rule {
            /// Every rule.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name, such as `V-TYPE-2`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// How serious a breach is.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity),* }
            }

            /// The demand of the rule, in a sentence or two.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii()),* }
            }
        }
    };
}

rules! {
    /// An operator exists only for the types in its row of [`isa`](crate::isa): there is no `shl.s32`.
    Type1 = "V-TYPE-1" Error,
    /// A register fits an instruction type of the same width and kind. `.bN` registers and `.bN` instruction types fit
    /// everything of N bits, signed and unsigned are interchangeable, floats are not integers. Only `ld`, `st` and `cvt`
    /// take wider registers.
    Type2 = "V-TYPE-2" Error,
    /// A literal has the kind of its operand: no integer literal for a float, no float literal for an integer, no literal
    /// at all in half-precision arithmetic.
    Type3 = "V-TYPE-3" Error,
    /// Rounding and other modifiers are written where they must be and nowhere else.
    Type4 = "V-TYPE-4" Error,
    /// A special register is the source of a `mov` or `cvt` of its own width.
    Type5 = "V-TYPE-5" Error,
    /// The address of a symbol is the source of a `mov` or `cvta` of an integer type that holds it.
    Type6 = "V-TYPE-6" Error,
    /// A vector has 1, 2, 4 or 8 elements of at most 16 bytes together (32 in global memory), and the parts of a packing
    /// `mov` add up to the whole.
    Type7 = "V-TYPE-7" Error,
    /// Optional operands and results are there exactly when the form has them: two predicates from a packed comparison,
    /// a third operand for `cas`, a count for `bar.arrive`.
    Type8 = "V-TYPE-8" Error,
    /// A guard, a branch condition and a logical operand are predicates.
    Type9 = "V-TYPE-9" Error,
    /// A literal size is one that the instruction has: 4, 8 or 16 bytes for `cp.async`, multiples of 16 for bulk copies, 24
    /// to 256 registers for `setmaxnreg`.
    Type10 = "V-TYPE-10" Error,

    /// A value has one definition.
    Def1 = "V-DEF-1" Error,
    /// The definition of a value dominates its uses.
    Def2 = "V-DEF-2" Error,
    /// A register that is read is assigned on at least one path to the read.
    Def3 = "V-DEF-3" Warning,
    /// A register that is read is assigned on every path to the read.
    Def4 = "V-DEF-4" Warning,
    /// Registers, symbols and blocks that are named exist.
    Def5 = "V-DEF-5" Error,
    /// Kernels, variables and parameters have different names.
    Def6 = "V-DEF-6" Error,

    /// The module's target exists in its `.version`, and code for it can be assembled for the target that is asked for.
    Target1 = "V-TARGET-1" Error,
    /// The module's `.version` has every instruction and directive in it.
    Target2 = "V-TARGET-2" Error,
    /// The module's `.target` has every instruction and directive in it.
    Target3 = "V-TARGET-3" Error,
    /// Static shared memory fits the target.
    Target4 = "V-TARGET-4" Error,
    /// Parameters fit the parameter space of the version.
    Target5 = "V-TARGET-5" Error,
    /// Launch directives have positive dimensions, do not contradict one another, and stand beside those that they need.
    Target6 = "V-TARGET-6" Error,
    /// Directives can be met and have an effect: blocks of at most 1024 threads, `.minnctapersm` beside `.maxntid` or
    /// `.reqntid` and with no more threads than a multiprocessor holds, `.maxnreg` of at most 255, clusters of at most 8
    /// blocks unless the launch asks for more.
    Target7 = "V-TARGET-7" Warning,
    /// The module's `.version` is one whose instructions and directives are known here. What is used in a newer one is checked by
    /// the rules of the newest that is known.
    Target8 = "V-TARGET-8" Warning,

    /// The state space takes the operation: parameters and constants are read-only, atomics work on global and shared
    /// memory, `.nc` reads global memory.
    Mem1 = "V-MEM-1" Error,
    /// An address is 64 bits wide, or 32 in shared memory.
    Mem2 = "V-MEM-2" Error,
    /// An access is aligned to its size where symbol and offset are known.
    Mem3 = "V-MEM-3" Warning,
    /// A vector access has a symbol that is declared with the alignment it needs.
    Mem4 = "V-MEM-4" Warning,
    /// An access stays inside the symbol where its offset is known.
    Mem5 = "V-MEM-5" Warning,
    /// A kernel that takes a pointer stores something.
    Mem6 = "V-MEM-6" Warning,
    /// Ordering, scope and cache hints go together.
    Mem7 = "V-MEM-7" Error,
    /// Declared alignments are powers of two, declared sizes are known and bounded, and a variable has a state space that
    /// can be declared where it stands.
    Mem8 = "V-MEM-8" Error,

    /// An aligned barrier is reached by all lanes of a warp that have not left, or by none. A lane has left when it has ended,
    /// or ends without coming to another wait.
    Conv1 = "V-CONV-1" Warning,
    /// A warp-wide operation whose constant mask names all lanes is reached by all lanes of a warp that have not left, or by none.
    Conv2 = "V-CONV-2" Warning,
    /// A constant barrier number is 0 to 15; a constant count of threads is a positive multiple of 32.
    Conv3 = "V-CONV-3" Error,
    /// A constant lane mask names at least one lane.
    Conv4 = "V-CONV-4" Error,

    /// An aligned tensor-core or warpgroup instruction is reached by all lanes of a warp or by none.
    Conv5 = "V-CONV-5" Warning,

    /// The result of a computation or load is used. Debug code, copies and parameters are left alone.
    Use1 = "V-USE-1" Warning,

    /// A call names a function, or has a 64-bit address with a prototype, and passes as many arguments and results as
    /// the function has.
    Call1 = "V-CALL-1" Error,
    /// Each argument and result of a call has the type and size of the parameter that it is for.
    Call2 = "V-CALL-2" Error,
    /// The `.param` variables of a function are only stored to, passed and loaded from: nothing takes their address, and
    /// stores to them have no guard.
    Call3 = "V-CALL-3" Error,
    /// A device function is defined in the module or declared `.extern`, and has at most one result in `.param` memory.
    Call4 = "V-CALL-4" Error,

    /// A kernel has a block, and branches lead to blocks of the same kernel.
    Cfg1 = "V-CFG-1" Error,
    /// Every block can be reached.
    Cfg2 = "V-CFG-2" Warning,
    /// The end of the kernel can be reached from every block that can be reached.
    Cfg3 = "V-CFG-3" Warning,
    /// A function ends with `ret` or `exit` instead of falling off its end.
    Cfg4 = "V-CFG-4" Warning,
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
