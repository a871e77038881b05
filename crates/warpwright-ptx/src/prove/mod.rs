//! Bounds and races decided for all launches at once.
//!
//! [`prove`] follows the values of a kernel's registers as polynomials over the indices of threads and blocks, scalar parameters and the
//! counters of loops, and asks of every access whether it lies in its array and of every two accesses whether two threads can meet in
//! them. "Proved" holds for every launch that a [`Contract`] admits; whatever is not understood is [`Decision::NotDecided`],
//! with the place and the [`Reason`]. That a kernel is wrong is never said here: the emulator says it, of a launch that shows it.
//!
//! ```
//! use warpwright_ptx::{prove, text};
//!
//! let text = ".version 7.0\n.target sm_80\n.address_size 64
//! .visible .entry double(.param .u64 x, .param .u32 n) {
//!     .reg .b32 %r<5>; .reg .b64 %rd<4>; .reg .f32 %f<2>; .reg .pred %p<1>;
//!     ld.param.u64 %rd0, [x];
//!     ld.param.u32 %r0, [n];
//!     mov.u32 %r1, %ctaid.x;
//!     mov.u32 %r2, %ntid.x;
//!     mov.u32 %r3, %tid.x;
//!     mad.lo.u32 %r4, %r1, %r2, %r3;
//!     setp.ge.u32 %p0, %r4, %r0;
//!     @%p0 bra DONE;
//!     mul.wide.u32 %rd1, %r4, 4;
//!     add.s64 %rd2, %rd0, %rd1;
//!     ld.global.f32 %f0, [%rd2];
//!     add.rn.f32 %f1, %f0, %f0;
//!     st.global.f32 [%rd2], %f1;
//! DONE:
//!     ret;
//! }";
//! let module = text::parse(text).module;
//! let contract = prove::Contract::default().array("x", "n:f32")?;
//! let proof = prove::prove(&module, "double", &contract)?;
//! assert!(proof.bounds.is_proved());
//! // In a grid of more than 2^32 threads the index wraps, and two threads have the same one.
//! assert!(!proof.races.is_proved());
//! let contract = contract.assume("nctaid.x * ntid.x <= 4294967296")?;
//! assert!(prove::prove(&module, "double", &contract)?.is_proved());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod barriers;
mod bounds;
mod contract;
mod decide;
mod effects;
mod lasting;
mod lower;
mod poly;
mod races;
mod show;
mod simplex;
mod terms;
mod transfer;
mod walk;

use std::fmt;

pub use contract::{Assumption, Contract, ContractError, Expression, Extent, parse_range};

use crate::cfg::Cfg;
use crate::inst::BlockId;
use crate::module::{Function, Module, SourceLoc};
use crate::verify::{self, VerifyError};
use walk::Walk;

/// The proof of a kernel: its verdicts for all launches that a contract admits.
#[derive(Clone, Debug)]
#[must_use]
pub struct Proof {
    /// The kernel.
    pub kernel: String,
    /// Whether every access lies in its array and is aligned.
    pub bounds: Decision,
    /// Whether no two threads access the same bytes of an array, one of them writing, unless a barrier orders them or both are
    /// atomic, and no thread those of an asynchronous copy of its own that it has not waited for.
    pub races: Decision,
    /// Assumptions beyond the contract.
    pub assumptions: Vec<String>,
    /// Extents of blocks that are the same in all launches that are admitted.
    pub block: [Option<u32>; 3],
    /// The same of the grid.
    pub grid: [Option<u32>; 3],
}

impl Proof {
    /// Whether both are proved.
    pub fn is_proved(&self) -> bool {
        self.bounds.is_proved() && self.races.is_proved()
    }
}

/// An answer about all launches.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// It holds.
    Proved {
        /// How many accesses, or pairs of accesses, that is about.
        obligations: usize,
    },
    /// It may hold or not.
    NotDecided(Vec<Gap>),
}

impl Decision {
    fn of(obligations: usize, gaps: Vec<Gap>) -> Self {
        if gaps.is_empty() { Self::Proved { obligations } } else { Self::NotDecided(gaps) }
    }

    /// Whether it holds.
    pub const fn is_proved(&self) -> bool {
        matches!(self, Self::Proved { .. })
    }

    /// Why it is not decided.
    pub fn gaps(&self) -> &[Gap] {
        match self {
            Self::Proved { .. } => &[],
            Self::NotDecided(gaps) => gaps,
        }
    }
}

/// A place of which it is not decided whether it is right.
#[derive(Clone, Debug)]
pub struct Gap {
    /// The instruction.
    pub location: SourceLoc,
    /// The other access of a race, or where the value comes from that an address depends on.
    pub other: Option<SourceLoc>,
    /// Why.
    pub reason: Reason,
}

impl Gap {
    fn at(function: &Function, block: BlockId, index: usize, reason: Reason) -> Self {
        let place = |block: BlockId, index| {
            function.blocks.get(block.0 as usize).map_or(SourceLoc::Unknown, |b| b.location(index))
        };
        let other = match reason {
            Reason::Address { of: Some((block, index)) } => Some(place(block, index)),
            _ => None,
        };
        Self { location: place(block, index), other, reason }
    }

    /// The line of the PTX text; 0 if it is not known.
    pub const fn line(&self) -> u32 {
        line_of(&self.location)
    }

    /// The line of the other place, if there is one.
    pub fn other_line(&self) -> Option<u32> {
        self.other.as_ref().map(line_of).filter(|line| *line != 0)
    }
}

/// Locations are equal if their lines are.
impl PartialEq for Gap {
    fn eq(&self, other: &Self) -> bool {
        (self.line(), self.other_line(), &self.reason) == (other.line(), other.other_line(), &other.reason)
    }
}

const fn line_of(location: &SourceLoc) -> u32 {
    match location {
        SourceLoc::Ptx { line, .. } => *line,
        _ => 0,
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.location {
            SourceLoc::Ptx { line, .. } => write!(f, "line {line}: ")?,
            SourceLoc::Rust(at) => write!(f, "{}:{}: ", at.file(), at.line())?,
            SourceLoc::Unknown => {}
        }
        self.reason.fmt(f)?;
        match (&self.reason, self.other_line()) {
            (Reason::Race { .. } | Reason::NotWaited | Reason::TooLarge, Some(line)) => {
                write!(f, " (with line {line})")
            }
            (_, Some(line)) => write!(f, " (it depends on line {line})"),
            _ => Ok(()),
        }
    }
}

/// Why something is not decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The graph has loops with several entries, or very many loops.
    #[error("a loop has several entries, or there are too many loops")]
    Irreducible,
    /// A limit of the analysis.
    #[error("the kernel is too large for the analysis")]
    TooLarge,
    /// An instruction whose accesses are not followed.
    #[error("{0} is not followed")]
    Unmodelled(Box<str>),
    /// An address that is no array and an offset.
    #[error("the address is not that of an array and an offset")]
    Address {
        /// Block and instruction that it depends on.
        #[doc(hidden)]
        of: Option<(BlockId, usize)>,
    },
    /// An array in another state space than the access names.
    #[error("the access names another state space than that of the array")]
    Space,
    /// The contract gives no extent.
    #[error("the extent of `{array}` is not given")]
    NoExtent {
        /// The array.
        array: String,
    },
    /// An access that may lie before its array.
    #[error("byte {offset} of `{array}` may lie before its start")]
    BeforeStart {
        /// The array.
        array: String,
        /// Bytes behind its start.
        offset: String,
    },
    /// An access that may lie behind its array.
    #[error("{bytes} bytes from byte {offset} of `{array}` on may end past its {extent} bytes")]
    PastEnd {
        /// The array.
        array: String,
        /// Bytes behind its start.
        offset: String,
        /// Bytes of the access.
        bytes: String,
        /// Bytes of the array.
        extent: String,
    },
    /// A copy of a size that its instruction may not allow.
    #[error("the copy may have another size than its instruction allows")]
    CopySize,
    /// An access that may not be aligned.
    #[error("byte {offset} of `{array}` may be no multiple of the {bytes} bytes of the access")]
    Misaligned {
        /// The array.
        array: String,
        /// Bytes behind its start.
        offset: String,
        /// Bytes of the access.
        bytes: u64,
    },
    /// Two threads that may race.
    #[error("two threads of {} may access the same bytes", if *same_block { "a block" } else { "different blocks" })]
    Race {
        /// Whether they are of the same block.
        same_block: bool,
    },
    /// An access while an asynchronous one of the same thread may go on.
    #[error("the access may meet one that the thread has not waited for, or not fenced")]
    NotWaited,
    /// A barrier that does not order the threads of a block for certain.
    #[error("threads may come to this barrier in different ways, and it is taken to order nothing")]
    DivergentBarrier,
}

/// Why nothing can be said of a kernel.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProveError {
    /// The module has no such kernel.
    #[error("there is no kernel `{name}`")]
    NoSuchEntry {
        /// The request.
        name: String,
    },
    /// The module is not valid.
    #[error("the module is not valid: {}", .0.first().map_or_else(String::new, ToString::to_string))]
    Invalid(Vec<VerifyError>),
    /// The contract does not fit the kernel.
    #[error(transparent)]
    Contract(#[from] ContractError),
}

/// Decides bounds and races of a kernel in all launches that `contract` admits.
///
/// An access counts as inside if it lies in the array that its address is computed from. Arrays of the contract do not overlap,
/// and races are decided between accesses that are in their arrays. Alignment is part of the bounds.
///
/// # Errors
/// [`ProveError`] if there is no such kernel, the module has errors, or the contract mentions what the kernel does not have.
pub fn prove(module: &Module, entry: &str, contract: &Contract) -> Result<Proof, ProveError> {
    let errors: Vec<VerifyError> =
        verify::verify(module).into_iter().filter(|e| e.severity == verify::Severity::Error).collect();
    if !errors.is_empty() {
        return Err(ProveError::Invalid(errors));
    }
    let function = module.entry(entry).ok_or_else(|| ProveError::NoSuchEntry { name: entry.to_owned() })?;
    let launches = lower::launches(module, function, contract)?;
    let assumptions = launches.assumptions.clone();
    let [block, grid] = launches.shape();
    let cfg = Cfg::new(function);
    let (bounds, races) = match Walk::new(module, function, &cfg, launches) {
        Ok(mut walk) => (bounds::decide(&mut walk), races::decide(&mut walk)),
        Err(reason) => {
            let gaps = vec![Gap::at(function, BlockId(0), 0, reason)];
            (Decision::NotDecided(gaps.clone()), Decision::NotDecided(gaps))
        }
    };
    Ok(Proof { kernel: entry.to_owned(), bounds, races, assumptions, block, grid })
}
