//! A verified kernel with its text: what a runtime loads and an emulator runs.

use std::fmt;
use std::sync::Arc;

use crate::module::{Function, FunctionKind, Module, SourceLoc};
use crate::text::{Printed, print_with_lines};
use crate::types::Target;
use crate::verify::{Severity, VerifyError, verify};

/// A module with exactly one entry, and perhaps device functions, that passed the verifier, and its canonical text. Clones share
/// the data.
#[derive(Clone)]
pub struct Kernel(Arc<Inner>);

struct Inner {
    module: Module,
    /// Index of the one entry.
    entry: usize,
    text: String,
    lines: Vec<SourceLoc>,
    warnings: Vec<VerifyError>,
}

/// Why a module is no kernel.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A kernel is a module with one entry.
    #[error("a kernel module has exactly one entry, this one has {}{}", entries.len(), listed(entries))]
    Entries {
        /// The names of the entries.
        entries: Vec<String>,
    },
    /// The verifier found errors.
    #[error("kernel `{kernel}` is not valid: {}", summary(findings))]
    Invalid {
        /// The name of the entry.
        kernel: String,
        /// All findings, warnings included, in order of position.
        findings: Vec<VerifyError>,
    },
}

fn listed(entries: &[String]) -> String {
    if entries.is_empty() { String::new() } else { format!(" ({})", entries.join(", ")) }
}

fn summary(findings: &[VerifyError]) -> String {
    let mut errors = findings.iter().filter(|f| f.severity == Severity::Error);
    let first = errors.next().map_or_else(String::new, ToString::to_string);
    match errors.count() {
        0 => first,
        more => format!("{first}\nand {more} more"),
    }
}

impl Kernel {
    /// Verifies and prints a module.
    ///
    /// # Errors
    /// [`KernelError::Entries`] unless the module has exactly one entry, [`KernelError::Invalid`] if the verifier
    /// finds an error. Warnings do not refuse a kernel; [`warnings`](Self::warnings) keeps them.
    pub fn new(module: Module) -> Result<Self, KernelError> {
        let is_entry = |f: &Function| f.kind == FunctionKind::Entry;
        let entry = module.functions.iter().position(is_entry);
        let (Some(entry), 1) = (entry, module.entries().count()) else {
            let entries = module.entries().map(|f| f.name.clone()).collect();
            return Err(KernelError::Entries { entries });
        };
        let findings = verify(&module);
        if findings.iter().any(|f| f.severity == Severity::Error) {
            return Err(KernelError::Invalid { kernel: module.functions[entry].name.clone(), findings });
        }
        let Printed { text, lines } = print_with_lines(&module);
        Ok(Self(Arc::new(Inner { module, entry, text, lines, warnings: findings })))
    }

    /// The entry's name.
    pub fn name(&self) -> &str {
        &self.function().name
    }

    /// The text that a driver or the emulator loads.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// `lines()[i]` is where line `i + 1` of the text came from.
    pub fn lines(&self) -> &[SourceLoc] {
        &self.0.lines
    }

    /// The module.
    pub fn module(&self) -> &Module {
        &self.0.module
    }

    /// The entry.
    pub fn function(&self) -> &Function {
        &self.0.module.functions[self.0.entry]
    }

    /// The block size that the kernel demands (`.reqntid`), if it does.
    pub fn block(&self) -> Option<[u32; 3]> {
        self.function().directives.required_threads
    }

    /// Bytes of its static shared memory.
    pub fn static_shared_bytes(&self) -> u64 {
        self.0.module.static_shared_bytes(self.function())
    }

    /// The target that the text is for.
    pub fn target(&self) -> Target {
        self.0.module.target
    }

    /// Warnings of the verifier.
    pub fn warnings(&self) -> &[VerifyError] {
        &self.0.warnings
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name())
            .field("target", &self.target())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    fn module(functions: &str) -> Module {
        let parsed = parse(&format!(".version 7.0\n.target sm_80\n.address_size 64\n{functions}"));
        assert!(!parsed.has_errors(), "{:?}", parsed.diagnostics);
        parsed.module
    }

    const GOOD: &str = ".visible .entry k(.param .u64 p) .reqntid 64, 2 {
        .reg .b64 %rd<2>; ld.param.u64 %rd1, [p]; st.global.f32 [%rd1], 0f3F800000; ret; }";

    #[test]
    fn a_good_module_becomes_a_kernel() {
        let kernel = Kernel::new(module(GOOD)).unwrap();
        assert_eq!(kernel.name(), "k");
        assert_eq!(kernel.block(), Some([64, 2, 1]));
        assert_eq!(kernel.target(), Target::sm(80));
        assert_eq!(kernel.lines().len(), kernel.text().lines().count());
        let at = kernel.text().lines().position(|l| l.contains("st.global")).unwrap();
        assert!(matches!(kernel.lines()[at], SourceLoc::Ptx { line: 5, .. }), "{:?}", kernel.lines()[at]);
        assert!(Arc::ptr_eq(&kernel.0, &kernel.clone().0));
        assert_eq!(parse(kernel.text()).module, *kernel.module());
    }

    #[test]
    fn errors_refuse() {
        let bad =
            module(".entry k() { .reg .f32 %f<1>; mov.f32 %f0, 0f00000000; add.u32 %f0, %f0, 1; ret; }");
        let error = Kernel::new(bad).unwrap_err();
        let KernelError::Invalid { kernel, findings } = &error else { panic!("{error}") };
        assert_eq!(kernel, "k");
        assert!(findings.iter().any(|f| f.severity == Severity::Error));
        assert!(error.to_string().contains("error[V-TYPE-"), "{error}");
    }

    #[test]
    fn a_kernel_has_one_entry() {
        let none = Kernel::new(module("")).unwrap_err();
        assert_eq!(none.to_string(), "a kernel module has exactly one entry, this one has 0");
        let two = Kernel::new(module(&format!("{GOOD}\n.entry other() {{ ret; }}"))).unwrap_err();
        assert_eq!(two.to_string(), "a kernel module has exactly one entry, this one has 2 (k, other)");
    }
}
