//! The question that builders of kernels ask: do all threads meet that wait for each other?

use super::convergence::{self, BarrierViolation};
use super::{Checker, VerifyError, defs};
use crate::module::{Function, Module};

/// Findings about the barriers of a function.
#[derive(Clone, Debug)]
#[must_use]
pub enum BarrierSafety {
    /// At every barrier, warp-wide operation and `.aligned` instruction the lanes of a warp meet that it waits for.
    Safe,
    /// Only some of them may come to these, in order of position.
    Unsafe(Vec<BarrierViolation>),
    /// The function is broken in this way, so that nothing is known.
    NotDecided(Vec<VerifyError>),
}

impl BarrierSafety {
    /// Whether all lanes are known to meet.
    pub const fn is_safe(&self) -> bool {
        matches!(self, Self::Safe)
    }

    /// Where only some lanes may come.
    pub fn violations(&self) -> &[BarrierViolation] {
        match self {
            Self::Unsafe(violations) => violations,
            Self::Safe | Self::NotDecided(_) => &[],
        }
    }
}

/// Whether a function of `module` is safe at its barriers.
///
/// The rule is that of V-CONV-1, V-CONV-2 and V-CONV-5. A lane that has ended, or ends without coming to another wait, is not
/// waited for, except by `.aligned` instructions that are no barriers, which all 32 lanes run. Decided is what happens
/// within a warp: which warps come to a barrier, and whether so many come as it counts, depends on the launch, and the
/// emulator's synccheck says it. Values loaded from one address are taken to be the same in all lanes.
///
/// # Example
/// ```
/// use warpwright_ptx::{text, verify};
///
/// let text = ".version 7.0\n.target sm_80\n.address_size 64\n.entry k() {
///     .reg .b32 %r<2>; .reg .pred %p<2>;
///     mov.u32 %r1, %tid.x;
///     setp.lt.u32 %p1, %r1, 16;
///     @%p1 bra.uni HALF;
///     bar.sync 0;
/// HALF:
///     bar.sync 1;
///     ret;
/// }";
/// let module = text::parse(text).module;
/// let safety = verify::barrier_safety(&module, &module.functions[0]);
/// assert!(!safety.is_safe());
/// assert_eq!(safety.violations()[0].origin.as_ref().map(|(what, _)| what.as_str()), Some("`%tid.x`"));
/// ```
pub fn barrier_safety(module: &Module, function: &Function) -> BarrierSafety {
    let mut cx = Checker::new(module, function);
    cx.graph();
    let whole = defs::check_references(&mut cx);
    let broken: Vec<VerifyError> =
        cx.findings.drain(..).filter(|e| e.severity == super::Severity::Error).collect();
    if !whole || !broken.is_empty() {
        return BarrierSafety::NotDecided(broken);
    }
    let facts = defs::check(&mut cx);
    match convergence::violations(&cx, &facts) {
        violations if violations.is_empty() => BarrierSafety::Safe,
        violations => BarrierSafety::Unsafe(violations),
    }
}
