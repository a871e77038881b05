//! Programs: PTX text that was read, verified and decoded.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use warpwright_ptx::text::{self, Diagnostic, Sources};
use warpwright_ptx::verify::{self, VerifyError};
use warpwright_ptx::{Function, FunctionKind, InitialAddress, Initializer, Module, StateSpace, Symbol};

use crate::code::Code;
use crate::code::function::function_address;
use crate::decode::decode;
use crate::memory::{Memory, MemoryError};
use crate::space::{CONST_BASE, CONST_WINDOW, SHARED_BASE};

/// Why a program cannot be loaded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The text is not PTX; errors and warnings of the parser.
    Parse(Vec<Diagnostic>),
    /// The text is PTX but not valid; errors and warnings of the verifier.
    Verify(Vec<VerifyError>),
    /// The emulator does not run something in the kernel.
    Unsupported {
        /// The kernel.
        kernel: String,
        /// Line of the text; 0 if not known.
        line: u32,
        /// The instruction or operand that it does not run.
        message: String,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parse(diagnostics) => {
                let mut errors = diagnostics.iter().filter(|d| d.severity == text::Severity::Error);
                write!(f, "the text is not valid PTX")?;
                errors.try_for_each(|d| {
                    write!(f, "\n  line {}, column {}: {} [{}]", d.line, d.column, d.message, d.rule)
                })
            }
            Self::Verify(errors) => {
                write!(f, "the module breaks the rules of PTX")?;
                errors
                    .iter()
                    .filter(|e| e.severity == verify::Severity::Error)
                    .try_for_each(|e| write!(f, "\n  {e}"))
            }
            Self::Unsupported { kernel, line, message } => {
                write!(f, "kernel `{kernel}`, line {line}: {message}")
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// A decoded kernel.
#[derive(Debug)]
pub struct Entry {
    function: Function,
    pub(crate) code: Code,
    param_bytes: u64,
}

impl Entry {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.function.name
    }

    /// The kernel as it was parsed.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Bytes of its parameter buffer.
    pub fn param_bytes(&self) -> u64 {
        self.param_bytes
    }

    /// Bytes of its static shared memory.
    pub fn static_shared_bytes(&self) -> u64 {
        self.code.shared_end - SHARED_BASE
    }
}

/// PTX that is ready to run. Cheap to share: launches take it by reference, from any number of threads.
#[derive(Debug)]
pub struct Program {
    /// Tells programs apart in the memories that hold their variables.
    id: u64,
    /// The text; empty if the program did not come from one.
    source: Arc<str>,
    sources: Sources,
    module: Module,
    entries: Vec<Entry>,
    warnings: Vec<Diagnostic>,
    verify_warnings: Vec<VerifyError>,
    /// Bytes of the constant variables, from address 0 of the constant space.
    constants: Arc<[u8]>,
    /// Addresses of the constant variables in their space, by module variable.
    constant_addresses: Vec<u64>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Program {
    /// Reads, verifies and decodes PTX text.
    ///
    /// # Errors
    /// All errors of the parser or the verifier, with their lines.
    pub fn load(source: &str) -> Result<Self, LoadError> {
        let parsed = text::parse(source);
        // An instruction that could not be read matters only if it is reached.
        if !parsed.complete {
            return Err(LoadError::Parse(parsed.diagnostics));
        }
        let mut program = Self::from_module(parsed.module)?;
        program.warnings = parsed.diagnostics;
        program.sources = Sources::of(source);
        program.source = source.into();
        Ok(program)
    }

    /// Verifies and decodes a module. Findings have lines only if its locations are lines of PTX.
    ///
    /// # Errors
    /// All errors of the verifier.
    pub fn from_module(module: Module) -> Result<Self, LoadError> {
        let found = verify::verify(&module);
        if verify::has_errors(&found) {
            return Err(LoadError::Verify(found));
        }
        let (constants, addresses) = place_constants(&module);
        let mut entries = Vec::with_capacity(module.functions.len());
        let kernels = module.functions.iter().enumerate().filter(|(_, f)| f.kind == FunctionKind::Entry);
        for (index, function) in kernels {
            let code = decode(&module, index, &addresses).map_err(|e| LoadError::Unsupported {
                kernel: function.name.clone(),
                line: e.location.line,
                message: e.message,
            })?;
            let param_bytes = function.param_layout().1;
            entries.push(Entry { function: function.clone(), code, param_bytes });
        }
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Relaxed),
            source: Arc::default(),
            sources: Sources::default(),
            module,
            entries,
            warnings: Vec::new(),
            verify_warnings: found,
            constants,
            constant_addresses: addresses,
        })
    }

    /// The kernel called `name`.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.name() == name)
    }

    /// All kernels, in the order of the text.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The text that it was loaded from; empty if it came from a module.
    pub fn source(&self) -> &str {
        &self.source
    }

    pub(crate) fn shared_source(&self) -> Arc<str> {
        Arc::clone(&self.source)
    }

    /// Which source lines the text was compiled from, if it says so.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The module as it was parsed.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Warnings of the parser.
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }

    /// Warnings of the verifier.
    pub fn verify_warnings(&self) -> &[VerifyError] {
        &self.verify_warnings
    }

    /// The device address of the `.global` variable `name` in `memory`, which gets the program's variables if it does
    /// not have them yet.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn global(&self, memory: &Memory, name: &str) -> Result<Option<u64>, MemoryError> {
        let at = self.module.variables.iter().position(|v| v.space == StateSpace::Global && v.name == name);
        let Some(at) = at else { return Ok(None) };
        Ok(self.globals(memory)?.get(at).copied())
    }

    /// The constant space, with the addresses that global variables have in a memory.
    pub(crate) fn constants(&self, globals: &[u64]) -> Arc<[u8]> {
        let mut patched: Option<Vec<u8>> = None;
        for (variable, start) in self.module.variables.iter().zip(&self.constant_addresses) {
            let Some(init) = variable.init.as_ref().filter(|i| !i.addresses.is_empty()) else { continue };
            if variable.space == StateSpace::Const {
                let image = patched.get_or_insert_with(|| self.constants.to_vec());
                if let Some(bytes) = image.get_mut(*start as usize..) {
                    self.fill_addresses(init, globals, bytes);
                }
            }
        }
        patched.map_or_else(|| self.constants.clone(), Into::into)
    }

    /// Writes the addresses of an initializer into the bytes of its variable.
    fn fill_addresses(&self, init: &Initializer, globals: &[u64], bytes: &mut [u8]) {
        for address in &init.addresses {
            let value = self.address_of(address, globals).to_le_bytes();
            let value = match address.byte {
                Some(byte) => value.get(usize::from(byte)..).unwrap_or_default(),
                None => &value[..],
            };
            let target = bytes.iter_mut().skip(usize::try_from(address.at).unwrap_or(usize::MAX));
            for (to, from) in target.zip(value).take(address.bytes as usize) {
                *to = *from;
            }
        }
    }

    /// The value of an address in an initializer.
    fn address_of(&self, address: &InitialAddress, globals: &[u64]) -> u64 {
        let (base, window) = match address.symbol {
            Symbol::ModuleVariable(v) => {
                let v = v as usize;
                match self.module.variables.get(v).map(|x| x.space) {
                    Some(StateSpace::Global) => (globals.get(v).copied(), 0),
                    Some(StateSpace::Const) => (self.constant_addresses.get(v).copied(), CONST_WINDOW),
                    // Shared memory has no addresses before a block runs.
                    _ => (None, 0),
                }
            }
            Symbol::Function(f) => {
                let alias = self.module.aliases.iter().find(|a| a.function == f);
                (Some(function_address(alias.map_or(f, |a| a.of))), 0)
            }
            Symbol::Param(_) | Symbol::LocalVariable(_) | Symbol::Return(_) => (None, 0),
        };
        let generic = if address.generic { window } else { 0 };
        base.map_or(0, |base| base.wrapping_add(generic).wrapping_add(address.addend as u64))
    }

    /// Addresses by module variable; 0 for those in other spaces.
    pub(crate) fn globals(&self, memory: &Memory) -> Result<Arc<[u64]>, MemoryError> {
        memory.globals(self.id, || {
            let mut addresses = Vec::with_capacity(self.module.variables.len());
            for variable in &self.module.variables {
                if variable.space != StateSpace::Global {
                    addresses.push(0);
                    continue;
                }
                let bytes = variable.bytes().unwrap_or(u64::MAX);
                let address = memory.alloc(bytes, &variable.name)?;
                // Variables without an initializer are zero.
                memory.fill(address, 0, bytes)?;
                if let Some(init) = &variable.init {
                    let room = usize::try_from(bytes).unwrap_or(usize::MAX);
                    memory.write(address, &init.bytes[..init.bytes.len().min(room)])?;
                }
                addresses.push(address);
            }
            // Variables may point to each other.
            for (variable, address) in self.module.variables.iter().zip(&addresses) {
                let Some(init) = variable.init.as_ref().filter(|i| !i.addresses.is_empty()) else { continue };
                if variable.space == StateSpace::Global {
                    let size = variable.bytes().and_then(|b| usize::try_from(b).ok()).unwrap_or(0);
                    let mut bytes = vec![0; size];
                    memory.read(*address, &mut bytes)?;
                    self.fill_addresses(init, &addresses, &mut bytes);
                    memory.write(*address, &bytes)?;
                }
            }
            Ok(addresses.into())
        })
    }
}

/// The image of the constant space and the address of each constant variable.
fn place_constants(module: &Module) -> (Arc<[u8]>, Vec<u64>) {
    let mut image = vec![0u8; CONST_BASE as usize];
    let addresses = module
        .variables
        .iter()
        .map(|variable| {
            if variable.space != StateSpace::Const {
                return 0;
            }
            let start = image.len().next_multiple_of(variable.align.max(1) as usize);
            // Constant memory has 64 KiB; what does not fit stays out of bounds.
            let bytes = variable.bytes().unwrap_or(0).min(1 << 20) as usize;
            image.resize(start + bytes, 0);
            if let Some(init) = &variable.init {
                let n = init.bytes.len().min(bytes);
                image[start..start + n].copy_from_slice(&init.bytes[..n]);
            }
            start as u64
        })
        .collect();
    (image.into(), addresses)
}
