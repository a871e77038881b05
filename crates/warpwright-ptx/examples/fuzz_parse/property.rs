//! The property of every text, shared by the example and the libFuzzer targets.

use warpwright_ptx::Inst;
use warpwright_ptx::text::{MAX_DIAGNOSTICS, parse, print};

/// Whether the text was accepted.
///
/// # Errors
/// Checks the property; the error is the part that does not hold.
pub(crate) fn check(text: &str) -> Result<bool, String> {
    let parsed = parse(text);
    if parsed.diagnostics.len() > MAX_DIAGNOSTICS {
        return Err(format!("{} diagnostics", parsed.diagnostics.len()));
    }
    // Instructions that nobody knows are kept as text, and complained about whenever they are read.
    let instructions = parsed.module.functions.iter().flat_map(|f| &f.blocks).flat_map(|b| &b.instructions);
    if instructions.map(|i| &i.inst).any(|i| matches!(i, Inst::Opaque(_))) {
        return Ok(false);
    }
    // Whatever else survives the errors is a module like any other.
    let once = print(&parsed.module);
    let again = parse(&once);
    if let Some(first) = again.diagnostics.first() {
        return Err(format!("the printed module does not parse: {first}\n{once}"));
    }
    let twice = print(&again.module);
    if once != twice {
        return Err(format!("printing is not stable:\n{once}\n--- against ---\n{twice}"));
    }
    if parse(&twice).module != again.module {
        return Err(format!("parsing is not stable:\n{once}"));
    }
    Ok(!parsed.has_errors())
}
