//! Diagnostics of the parser.

use std::fmt;

use crate::module::Module;

/// How bad a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The text was read, but something in it was left out.
    Warning,
    /// A statement or declaration could not be read and is missing from the module.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One remark on a place of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Which rule was broken, one of [`rules`](super::rules).
    pub rule: &'static str,
    /// Line, from 1.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
    /// Bytes of the offending token.
    pub len: u32,
    /// The defect and, where it is known, its repair.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, rule, line, column, message, .. } = self;
        write!(f, "{line}:{column}: {severity}[{rule}]: {message}")
    }
}

/// The result of parsing: everything that could be read, and remarks on the rest in the order of the text.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The module without the statements that carry an error.
    pub module: Module,
    /// Errors and warnings.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether every statement is in the module. Instructions whose opcode could not be read are, as
    /// [`Inst::Opaque`](crate::inst::Inst::Opaque): with only those wrong, the rest of the module can still be run.
    pub complete: bool,
}

impl Parsed {
    /// The errors alone.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|d| d.severity == Severity::Error)
    }

    /// Whether something could not be read.
    pub fn has_errors(&self) -> bool {
        self.errors().next().is_some()
    }
}

/// The rules of the parser.
pub mod rules {
    macro_rules! rules {
        ($($(#[doc = $doc:literal])+ $name:ident = $value:literal;)*) => {
            $($(#[doc = $doc])+ pub const $name: &str = $value;)*

            /// The subject of the rule of this name.
            pub fn description(rule: &str) -> Option<&'static str> {
                match rule {
                    $($value => Some(concat!($($doc),+).trim_ascii()),)*
                    _ => None,
                }
            }
        };
    }

    rules! {
        /// PTX is ASCII, comments included.
        ASCII = "P-ASCII";
        /// The text does not follow the grammar.
        SYNTAX = "P-SYNTAX";
        /// No such instruction or directive.
        UNKNOWN = "P-UNKNOWN";
        /// The text is PTX, but this crate has no typed form of it; an instruction is kept as text.
        UNSUPPORTED = "P-UNSUPPORTED";
        /// A modifier or type that the instruction does not take, or one that is missing.
        MODIFIER = "P-MODIFIER";
        /// An operand of a kind that does not fit its place.
        OPERAND = "P-OPERAND";
        /// A name that is not declared, or declared twice.
        NAME = "P-NAME";
        /// A label that does not exist or exists twice.
        LABEL = "P-LABEL";
        /// A malformed or oversized literal.
        NUMBER = "P-NUMBER";
        /// A size beyond what a GPU could hold or this parser is willing to read.
        LIMIT = "P-LIMIT";
        /// `.version`, `.target` or `.address_size` is missing, misplaced or not understood.
        MODULE = "P-MODULE";
    }
}
