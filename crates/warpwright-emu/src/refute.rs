//! Launches that show a defect, searched among those that a contract admits.
//!
//! [`warpwright_ptx::prove`] decides bounds and races for all launches, or says that it does not. Here small launches at the
//! boundaries of sizes are run under memcheck and racecheck, and what one of them shows is certain: together they are a [`Verdict`].
//!
//! ```
//! use warpwright_emu::{Program, refute};
//! use warpwright_ptx::prove::Contract;
//!
//! // The guard lets one thread too many pass.
//! let program = Program::load(".version 7.0\n.target sm_80\n.address_size 64
//! .visible .entry clear(.param .u64 x, .param .u32 n) .reqntid 64 {
//!     .reg .b32 %r<5>; .reg .b64 %rd<3>; .reg .pred %p<1>;
//!     ld.param.u64 %rd0, [x];
//!     ld.param.u32 %r0, [n];
//!     mov.u32 %r1, %ctaid.x;
//!     mov.u32 %r2, %tid.x;
//!     mad.lo.u32 %r3, %r1, 64, %r2;
//!     setp.gt.u32 %p0, %r3, %r0;
//!     @%p0 bra DONE;
//!     mul.wide.u32 %rd1, %r3, 4;
//!     add.s64 %rd2, %rd0, %rd1;
//!     st.global.u32 [%rd2], 0;
//! DONE:
//!     ret;
//! }")?;
//! let contract = Contract::default().array("x", "n:u32")?;
//! let verdict = refute::verdict(&program, "clear", &contract)?;
//! let shown = verdict.bounds().refutation().expect("a launch with the access");
//! assert_eq!((shown.finding.tool.name(), shown.finding.line), ("memcheck", 15));
//! assert!(!verdict.is_proved());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;

use warpwright_ptx::prove::{self, Contract, Decision, Gap, Proof, ProveError};
use warpwright_ptx::{ArgValue, Function, Param, ScalarType, pack_args};

use crate::launch::{LaunchConfig, LaunchError, Options, Report, Sanitizers, launch};
use crate::memory::{Memory, SLOT_BITS};
use crate::program::{Entry, Program};
use crate::report::{Finding, Severity, Space, Tool};

/// Launches that are tried.
const LAUNCHES: u32 = 160;
/// Launches that are thought of, to find so many that are admitted.
const ATTEMPTS: u32 = 4000;
/// Threads of a launch that is tried.
const THREADS: u64 = 1024;
/// Bytes of all its arrays.
const BYTES: u64 = 1 << 22;
/// Instructions of warps in all launches.
const STEPS: u64 = 4_000_000;
/// Bytes behind a pointer of which the contract says nothing.
const UNKNOWN: u64 = 1 << 16;

/// Verdicts about a kernel: a proof for all launches, and launches that show that there is none.
#[derive(Clone, Debug)]
#[must_use]
pub struct Verdict {
    /// The proof for all launches.
    pub proof: Proof,
    /// A launch with an access that memcheck refuses.
    bounds: Option<Refutation>,
    /// A launch with a race.
    races: Option<Refutation>,
}

/// A launch that shows a defect.
#[derive(Clone, Debug, PartialEq)]
pub struct Refutation {
    /// Grid, block and shared memory.
    pub config: LaunchConfig,
    /// By parameter.
    pub arguments: Vec<Passed>,
    /// The sanitizer's message.
    pub finding: Finding,
}

/// The argument passed for a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Passed {
    /// The address of an array of so many bytes that nothing has written.
    Array(u64),
    /// A number.
    Number(ArgValue),
}

/// One answer of a [`Verdict`].
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// It holds in all launches: so many accesses, or pairs of accesses.
    Proved(usize),
    /// This launch shows that it does not.
    Refuted(&'a Refutation),
    /// It is not known, for these reasons.
    NotDecided(&'a [Gap]),
}

impl<'a> Answer<'a> {
    /// Whether it holds.
    pub const fn is_proved(&self) -> bool {
        matches!(self, Self::Proved(_))
    }

    /// The launch that shows that it does not.
    pub const fn refutation(&self) -> Option<&'a Refutation> {
        match self {
            Self::Refuted(refutation) => Some(refutation),
            _ => None,
        }
    }
}

impl Verdict {
    /// Whether accesses lie in their arrays.
    pub fn bounds(&self) -> Answer<'_> {
        answer(&self.proof.bounds, self.bounds.as_ref())
    }

    /// Whether threads never race.
    pub fn races(&self) -> Answer<'_> {
        answer(&self.proof.races, self.races.as_ref())
    }

    /// Whether both are proved.
    pub fn is_proved(&self) -> bool {
        self.bounds().is_proved() && self.races().is_proved()
    }

    /// Whether one of them is refuted.
    pub fn is_refuted(&self) -> bool {
        self.bounds.is_some() || self.races.is_some()
    }
}

/// A finding of a launch is certain, whatever else is known.
fn answer<'a>(decision: &'a Decision, refutation: Option<&'a Refutation>) -> Answer<'a> {
    match (refutation, decision) {
        (Some(refutation), _) => Answer::Refuted(refutation),
        (None, Decision::Proved { obligations }) => Answer::Proved(*obligations),
        (None, Decision::NotDecided(gaps)) => Answer::NotDecided(gaps),
    }
}

/// Decides bounds and races of a kernel in all launches that a contract admits, and searches launches that show a defect.
///
/// # Errors
/// [`ProveError`] if there is no such kernel, or the contract does not fit it.
pub fn verdict(program: &Program, entry: &str, contract: &Contract) -> Result<Verdict, ProveError> {
    let proof = prove::prove(program.module(), entry, contract)?;
    let no_entry = || ProveError::NoSuchEntry { name: entry.to_owned() };
    let kernel = program.entry(entry).ok_or_else(no_entry)?;
    let mut search = Search { program, kernel, contract, proof: &proof, state: 1, steps: 0 };
    let (bounds, races) = search.run();
    Ok(Verdict { proof, bounds, races })
}

struct Search<'a> {
    program: &'a Program,
    kernel: &'a Entry,
    contract: &'a Contract,
    proof: &'a Proof,
    state: u64,
    steps: u64,
}

/// Values of parameters and extents by their names.
type Names = BTreeMap<String, i128>;

const EXTENTS: [(&str, &str); 3] = [("ntid.x", "nctaid.x"), ("ntid.y", "nctaid.y"), ("ntid.z", "nctaid.z")];

impl Search<'_> {
    fn function(&self) -> &Function {
        self.kernel.function()
    }

    fn run(&mut self) -> (Option<Refutation>, Option<Refutation>) {
        let (mut bounds, mut races) = (None, None);
        // Tensor maps and structures have contents that a contract does not speak of, and where a launch counts clusters its grid
        // is not `%nctaid`.
        let counts_clusters = self.function().directives.blocks_are_clusters;
        if counts_clusters || self.function().params.iter().any(|p| p.array.is_some()) {
            return (None, None);
        }
        let mut launches = 0;
        for attempt in 0..ATTEMPTS {
            if launches == LAUNCHES || self.steps > STEPS || (bounds.is_some() && races.is_some()) {
                break;
            }
            let Some((config, arguments)) = self.candidate(attempt) else { continue };
            launches += 1;
            let shown = self.findings(&config, &arguments, true);
            for tool in [Tool::Memcheck, Tool::Racecheck] {
                let place = if tool == Tool::Memcheck { &mut bounds } else { &mut races };
                if place.is_some() || !shown.iter().any(|finding| finding.tool == tool) {
                    continue;
                }
                // Not a matter of what the arrays held: they hold something else this time.
                let again = self.findings(&config, &arguments, false);
                let finding = again.into_iter().find(|finding| finding.tool == tool);
                *place = finding.map(|finding| Refutation { config, arguments: arguments.clone(), finding });
            }
        }
        (bounds, races)
    }

    /// The next of a fixed sequence of pseudo-random numbers below `n`.
    fn pick(&mut self, n: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) as usize) % n.max(1)
    }

    /// A launch that the contract admits: small, with sizes that are close to multiples of those of blocks.
    fn candidate(&mut self, attempt: u32) -> Option<(LaunchConfig, Vec<Passed>)> {
        let mut names = Names::new();
        for (at, (block, grid)) in EXTENTS.into_iter().enumerate() {
            let threads = if at == 0 { &[64, 32, 33, 128, 1, 2, 256][..] } else { &[2, 1, 4, 8] };
            let free = threads[self.pick(threads.len())];
            names.insert(block.into(), self.proof.block[at].map_or(free, i128::from));
            let free = [2, 1, 3][self.pick(3)];
            names.insert(grid.into(), self.proof.grid[at].map_or(free, i128::from));
        }
        let block: i128 = EXTENTS.iter().map(|(block, _)| names[*block]).product();
        let all = block * names["nctaid.x"];
        let sizes = [
            all - 1,
            all,
            all + 1,
            block - 1,
            block,
            block + 1,
            0,
            1,
            2,
            3,
            4,
            5,
            7,
            8,
            16,
            17,
            31,
            33,
            2 * block,
            4 * block,
            4 * all,
            4 * all + 1,
            100,
            -1,
        ];
        // All parameters at one value first: sizes that belong together are often the same.
        let common = sizes[attempt as usize % sizes.len()];
        let alike = attempt % 3 != 2;
        let params = self.function().params.clone();
        for param in params.iter().filter(|p| !p.ty.is_float() && !self.contract.arrays.contains_key(&p.name))
        {
            let mut value = if alike { common } else { sizes[self.pick(sizes.len())] };
            if let Some((low, high)) = self.contract.ranges.get(&param.name) {
                let ends = [*low, *high].map(i128::from);
                value = match self.pick(6) {
                    0 => ends[0],
                    1 if ends[1] <= 4096 => ends[1],
                    _ => value.clamp(ends[0], ends[1]),
                };
            } else if !matches!(
                param.ty,
                ScalarType::S8 | ScalarType::S16 | ScalarType::S32 | ScalarType::S64
            ) {
                value = value.abs();
            }
            names.insert(param.name.clone(), value);
        }
        // A second time for equations about results of others.
        self.contract.adjust(&mut names);
        self.contract.adjust(&mut names);
        let fixed = |known: &[Option<u32>; 3], at: usize, value: i128| {
            known[at].is_none_or(|k| i128::from(k) == value)
        };
        let same = EXTENTS.iter().enumerate().all(|(at, (block, grid))| {
            fixed(&self.proof.block, at, names[*block]) && fixed(&self.proof.grid, at, names[*grid])
        });
        if !same || !self.contract.admits(&names) {
            return None;
        }
        self.launch(&names)
    }

    fn launch(&self, names: &Names) -> Option<(LaunchConfig, Vec<Passed>)> {
        let value = |name: &str| names.get(name).copied();
        let extent = |name: &str| value(name).and_then(|v| u32::try_from(v).ok()).filter(|v| *v > 0);
        let block = [extent("ntid.x")?, extent("ntid.y")?, extent("ntid.z")?];
        let grid = [extent("nctaid.x")?, extent("nctaid.y")?, extent("nctaid.z")?];
        let threads = block.iter().chain(&grid).try_fold(1u64, |p, e| p.checked_mul(u64::from(*e)))?;
        let shared = match &self.contract.shared {
            Some(bytes) => u32::try_from(bytes.evaluate(&value)?).ok()?,
            None => 0,
        };
        if threads > THREADS || shared > 1 << 17 {
            return None;
        }
        let mut bytes = 0u64;
        let mut arguments = Vec::new();
        for param in &self.function().params {
            let array = match self.contract.arrays.get(&param.name) {
                Some(extent) => {
                    let count = u64::try_from(extent.count.evaluate(&value)?).ok()?;
                    Some(count.checked_mul(extent.dtype.bytes() as u64)?)
                }
                None => self.may_be_pointer(param).then_some(UNKNOWN),
            };
            arguments.push(match array {
                Some(size) => {
                    bytes = bytes.checked_add(size)?;
                    Passed::Array(size)
                }
                None => Passed::Number(number(param.ty, value(&param.name).unwrap_or(1))?),
            });
        }
        let cluster = self.function().directives.cluster.unwrap_or([1; 3]);
        (bytes <= BYTES).then_some((LaunchConfig { grid, block, dynamic_shared: shared, cluster }, arguments))
    }

    /// Whether a parameter of which nothing is promised may be an address: compilers say so of all of them, or of none.
    fn may_be_pointer(&self, param: &Param) -> bool {
        let says_so = self.function().params.iter().any(|p| p.pointer.is_some());
        let has_size = !param.ty.is_float() && param.bytes() == 8;
        param.pointer.is_some() || (!says_so && has_size && !self.contract.mentions(&param.name))
    }

    /// Findings of the sanitizers in a launch about accesses that the contract covers. Arrays hold zeros, or what nobody has written.
    fn findings(&mut self, config: &LaunchConfig, arguments: &[Passed], zeros: bool) -> Vec<Finding> {
        let memory = Memory::new();
        let mut values = Vec::new();
        let mut promised = Vec::new();
        for (passed, param) in arguments.iter().zip(&self.function().params) {
            values.push(match passed {
                Passed::Number(value) => value.clone(),
                Passed::Array(bytes) => {
                    let Ok(address) = memory.alloc(*bytes, &param.name) else { return Vec::new() };
                    if zeros && memory.write(address, &vec![0; *bytes as usize]).is_err() {
                        return Vec::new();
                    }
                    if self.contract.arrays.contains_key(&param.name) {
                        promised.push(address >> SLOT_BITS);
                    }
                    ArgValue::Address(address)
                }
            });
        }
        let Ok(params) = pack_args(self.function(), &values) else { return Vec::new() };
        let options = Options {
            sanitizers: Sanitizers::MEMCHECK | Sanitizers::RACECHECK,
            threads: 1,
            max_steps: STEPS / 4,
            ..Options::default()
        };
        let report = match launch(self.program, self.kernel.name(), config, &params, &memory, &options) {
            Ok(report) => report,
            Err(LaunchError::Fault { report, .. }) => *report,
            Err(_) => Report::default(),
        };
        self.steps += report.steps;
        // A pointer of which nothing is promised may point anywhere.
        let counts = |finding: &Finding| {
            let known = finding.address.as_ref().is_some_and(|address| match address.space {
                Space::Global => promised.contains(&(address.address >> SLOT_BITS)),
                space => space != Space::Generic,
            });
            finding.severity == Severity::Error && (finding.tool == Tool::Racecheck || known)
        };
        report.findings.into_iter().filter(counts).collect()
    }
}

/// A number as an argument of a type; `None` if it does not fit.
fn number(ty: ScalarType, value: i128) -> Option<ArgValue> {
    use ScalarType::*;
    Some(match ty {
        U32 | B32 if value < 0 => ArgValue::S32(i32::try_from(value).ok()?),
        U64 | B64 if value < 0 => ArgValue::S64(i64::try_from(value).ok()?),
        U32 | B32 => ArgValue::U32(u32::try_from(value).ok()?),
        S32 => ArgValue::S32(i32::try_from(value).ok()?),
        U64 | B64 => ArgValue::U64(u64::try_from(value).ok()?),
        S64 => ArgValue::S64(i64::try_from(value).ok()?),
        F32 => ArgValue::F32(1.0),
        F64 => ArgValue::F64(1.0),
        other => {
            let bytes = value.to_le_bytes();
            let unsigned = (0..1i128 << other.bits()).contains(&value);
            unsigned.then(|| ArgValue::Bytes(bytes[..other.bytes() as usize].to_vec()))?
        }
    })
}
