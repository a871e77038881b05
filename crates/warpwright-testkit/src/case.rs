//! One operation on one input, run on a device and held against its reference.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warpwright_ops::plan::{Layout, Plan, TensorSpec};
use warpwright_ops::{Direction, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Error as RuntimeError, Stream, Tensor, TensorMut, TensorRef};

use crate::budget::{self, Budget};
use crate::measure::{Comparison, Expected, compare};
use crate::storage;

/// How many cases there are of each operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// One of each kind; all operations together take less than a minute in the emulator.
    #[default]
    Quick,
    /// Every length, input and placement.
    Full,
}

/// One operation on one input.
#[derive(Clone)]
pub struct Case {
    /// Name of the operation.
    pub op: &'static str,
    /// Which way it goes.
    pub direction: Direction,
    /// Element type.
    pub dtype: DType,
    /// Shape of the main tensor.
    pub shape: Vec<usize>,
    /// The input, in words.
    pub input: String,
    /// How far from the reference it may be.
    pub budget: Budget,
    /// The operation, on a bench.
    pub subject: Arc<dyn Subject>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {:?} ({})", self.op, self.direction, self.dtype, self.shape, self.input)
    }
}

/// The body of a case: prepares tensors on the bench, launches, and compares what comes back.
pub trait Subject: Send + Sync {
    /// Runs it.
    ///
    /// # Errors
    /// The operation cannot be planned or launched, or the device fails.
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError>;

    /// The properties that decide which of the operation's kernels run, in words: a sample has a case of each. Empty where all cases of the
    /// operation are of one kind, or lie so close that any sample reaches every kernel.
    fn layout(&self) -> String {
        String::new()
    }
}

/// Why a case has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// No plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The launch was refused, the device failed, or a sanitizer objects.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// Memory beside an output was written.
    #[error("{tensor}: byte {offset} outside the tensor was overwritten")]
    Damage {
        /// The tensor.
        tensor: &'static str,
        /// Offset from its start; negative in front of it.
        offset: i64,
    },
}

/// The outcome of a case.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// Name of the operation.
    pub op: &'static str,
    /// Which way it goes.
    pub direction: Direction,
    /// Element type.
    pub dtype: DType,
    /// Shape of the main tensor.
    pub shape: Vec<usize>,
    /// The input.
    pub input: String,
    /// Norm-wise error; `NaN` if there is no result.
    pub error: f64,
    /// Largest elementwise error in units of eps times the natural scale.
    pub element_error: f64,
    /// The bounds that were allowed.
    pub budget: Budget,
    /// Whether the result is within the budget, without findings.
    pub ok: bool,
    /// The findings of the sanitizers, rendered.
    pub findings: Vec<String>,
    /// Why it failed, in words.
    pub reason: Option<String>,
    /// Time from the launch to the end of the work.
    pub time: Duration,
}

/// Whether the launches of a case are really made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launches {
    /// They are.
    #[default]
    Made,
    /// A device that accepts everything and does nothing: every case with an output must fail on it.
    Skipped,
}

/// Runs one case on `device`.
pub fn run_case(device: &Device, case: &Case) -> CaseResult {
    run_case_with(device, case, Launches::Made)
}

/// Runs one case on `device`, or pretends to.
pub fn run_case_with(device: &Device, case: &Case, launches: Launches) -> CaseResult {
    // Findings of work that went before do not belong to this case.
    drop(device.findings());
    let mut result = CaseResult {
        op: case.op,
        direction: case.direction,
        dtype: case.dtype,
        shape: case.shape.clone(),
        input: case.input.clone(),
        error: f64::NAN,
        element_error: f64::NAN,
        budget: case.budget,
        ok: false,
        findings: Vec::new(),
        reason: None,
        time: Duration::ZERO,
    };
    let outcome = Bench::new(device, launches).and_then(|mut bench| {
        let comparison = case.subject.run(&mut bench)?;
        Ok((comparison, bench.time))
    });
    result.findings = device.findings().iter().map(|f| f.render(None, "")).collect();
    match outcome {
        Ok((comparison, time)) => {
            result.error = comparison.norm;
            result.budget.norm = case.budget.norm_over(comparison.spread);
            result.element_error = comparison.element;
            result.time = time;
            result.reason = reason(&comparison, case.budget);
            result.ok = comparison.within(case.budget) && result.findings.is_empty();
        }
        Err(e) => result.reason = Some(chain(&e)),
    }
    result
}

fn reason(c: &Comparison, budget: Budget) -> Option<String> {
    if let Some(d) = c.disagreement {
        return Some(if d.unwritten {
            format!("element {} was not written", d.index)
        } else {
            format!("element {} is {:e}, should be {:e}", d.index, d.got, d.want)
        });
    }
    let at = c.worst.map_or(String::new(), |i| format!(" at element {i}"));
    (!c.within(budget)).then(|| {
        format!(
            "error {:.2e} (budget {:.0e}), elementwise {:.3} eps (budget {:.3}){at}",
            c.norm,
            budget.norm_over(c.spread),
            c.element,
            budget.element
        )
    })
}

/// An error with its sources.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        text.push_str(": ");
        text.push_str(&e.to_string());
        source = e.source();
    }
    text
}

/// Contents of memory before a run: a finite value in every floating-point type that no case expects.
const POISON: u8 = 0x7b;
/// Contents of the memory around a tensor.
const GUARD: u8 = 0x5a;
/// Guard elements on both sides of a tensor on devices that have no memory checker. A multiple of every vector width.
const GUARD_ELEMENTS: usize = 64;

/// Where a case lays out its tensors.
#[derive(Debug)]
pub struct Bench<'d> {
    device: &'d Device,
    stream: Stream,
    launches: Launches,
    time: Duration,
}

/// A tensor inside an allocation of its own, between guards where the device has no memory checker.
#[derive(Debug)]
pub struct Placed {
    name: &'static str,
    dtype: DType,
    len: usize,
    /// Elements in front of it.
    before: usize,
    memory: Tensor,
}

impl Placed {
    /// To read.
    ///
    /// # Errors
    /// None in practice: the range lies in the allocation.
    pub fn view(&self) -> Result<TensorRef<'_>, CaseError> {
        Ok(self.memory.as_ref().narrow(0, self.before, self.len)?)
    }

    /// To write.
    ///
    /// # Errors
    /// None in practice: the range lies in the allocation.
    pub fn view_mut(&mut self) -> Result<TensorMut<'_>, CaseError> {
        Ok(self.memory.as_mut().narrow(0, self.before, self.len)?)
    }

    /// To read, as rows `[a, b, c, d]` that lie in this order or as `[a, c, b, d]`.
    pub(crate) fn laid_out(&self, layout: &Layout) -> Result<TensorRef<'_>, CaseError> {
        let [a, b, c, d] = layout.shape;
        let flat = self.view()?;
        if layout.strides == Layout::contiguous(layout.shape).strides {
            return Ok(flat.reshape(&layout.shape)?);
        }
        Ok(flat.reshape(&[a, c, b, d])?.permute(&[0, 2, 1, 3])?)
    }

    /// The same to write.
    pub(crate) fn laid_out_mut(&mut self, layout: &Layout) -> Result<TensorMut<'_>, CaseError> {
        let [a, b, c, d] = layout.shape;
        let flat = self.view_mut()?;
        if layout.strides == Layout::contiguous(layout.shape).strides {
            return Ok(flat.reshape(&layout.shape)?);
        }
        Ok(flat.reshape(&[a, c, b, d])?.permute(&[0, 2, 1, 3])?)
    }
}

/// An optional tensor, to read.
pub(crate) fn view(placed: &Option<Placed>) -> Result<Option<TensorRef<'_>>, CaseError> {
    placed.as_ref().map(Placed::view).transpose()
}

/// An optional tensor, to write.
pub(crate) fn view_mut(placed: &mut Option<Placed>) -> Result<Option<TensorMut<'_>>, CaseError> {
    placed.as_mut().map(Placed::view_mut).transpose()
}

/// Appends to the words of an input those that hold.
pub(crate) fn say<const N: usize>(words: &mut String, all: [(bool, &str); N]) {
    words.extend(all.into_iter().filter_map(|(holds, word)| holds.then_some(word)));
}

/// Every situation in both directions and all types of floats.
pub(crate) fn both_ways<S: Clone>(situations: &[S]) -> Vec<(Direction, DType, S)> {
    let of_type = |direction, dtype| situations.iter().map(move |s| (direction, dtype, s.clone()));
    let of_direction = |direction| DType::FLOATS.into_iter().flat_map(move |dtype| of_type(direction, dtype));
    [Direction::Forward, Direction::Backward].into_iter().flat_map(of_direction).collect()
}

/// How the tensors of a case lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Each in an allocation of its own.
    Apart,
    /// One element past an aligned address.
    Misaligned,
    /// The output replaces an input.
    InPlace,
}

impl<'d> Bench<'d> {
    fn new(device: &'d Device, launches: Launches) -> Result<Self, CaseError> {
        Ok(Self { device, stream: device.stream()?, launches, time: Duration::ZERO })
    }

    /// The device.
    pub fn device(&self) -> &'d Device {
        self.device
    }

    /// The target that plans are made for.
    pub fn target(&self) -> Target {
        self.device.target()
    }

    /// A tensor with the given values, `lead` elements past an aligned address.
    ///
    /// # Errors
    /// Out of memory.
    pub fn input(
        &self,
        name: &'static str,
        dtype: DType,
        values: &[f64],
        lead: usize,
    ) -> Result<Placed, CaseError> {
        self.place(name, dtype, values.len(), lead, &storage::encode(dtype, values))
    }

    /// A tensor that no kernel has written yet: it holds [`poison`](Self::poison).
    ///
    /// # Errors
    /// Out of memory.
    pub fn output(
        &self,
        name: &'static str,
        dtype: DType,
        len: usize,
        lead: usize,
    ) -> Result<Placed, CaseError> {
        self.place(name, dtype, len, lead, &vec![POISON; len * dtype.bytes()])
    }

    /// [`input`](Self::input) if there are values.
    ///
    /// # Errors
    /// As there.
    pub fn optional_input(
        &self,
        name: &'static str,
        dtype: DType,
        values: Option<&Vec<f64>>,
        lead: usize,
    ) -> Result<Option<Placed>, CaseError> {
        values.map(|values| self.input(name, dtype, values, lead)).transpose()
    }

    /// [`output`](Self::output) if it is wanted.
    ///
    /// # Errors
    /// As there.
    pub fn optional_output(
        &self,
        name: &'static str,
        dtype: DType,
        (len, lead): (usize, usize),
        wanted: bool,
    ) -> Result<Option<Placed>, CaseError> {
        wanted.then(|| self.output(name, dtype, len, lead)).transpose()
    }

    /// Scratch memory for a plan that needs some.
    ///
    /// # Errors
    /// As of [`output`](Self::output).
    pub fn workspace<D: Operation>(&self, plan: &Plan<D>) -> Result<Option<Placed>, CaseError> {
        let spec = plan.tensor(TensorSpec::WORKSPACE);
        spec.map(|spec| self.output(TensorSpec::WORKSPACE, spec.dtype, spec.len, 0)).transpose()
    }

    /// The plan of `desc`, with a configuration that sm_90 alone has if one is given.
    pub(crate) fn plan<D: Operation, C>(
        &self,
        desc: &D,
        config: Option<C>,
        plan_with: impl FnOnce(&D, Target, C) -> Result<Plan<D>, PlanError>,
    ) -> Result<Plan<D>, PlanError> {
        match config.filter(|_| self.target().sm == 90) {
            Some(config) => plan_with(desc, self.target(), config),
            None => desc.plan(self.target()),
        }
    }

    /// The value of an element that was not written.
    pub fn poison(dtype: DType) -> f64 {
        storage::decode(dtype, &[POISON; 8])[0]
    }

    fn place(
        &self,
        name: &'static str,
        dtype: DType,
        len: usize,
        lead: usize,
        bytes: &[u8],
    ) -> Result<Placed, CaseError> {
        // The emulator knows the ends of an allocation to the byte; guards would only hide them.
        let guard = if self.device.is_emulator() { 0 } else { GUARD_ELEMENTS };
        let before = guard + lead;
        let mut memory = vec![GUARD; (before + len + guard) * dtype.bytes()];
        memory[before * dtype.bytes()..][..bytes.len()].copy_from_slice(bytes);
        let memory = Tensor::from_bytes(self.device, dtype, &memory, &[before + len + guard])?;
        Ok(Placed { name, dtype, len, before, memory })
    }

    /// Runs `work` on the bench's stream, waits for it, and takes the time.
    ///
    /// # Errors
    /// Those of `work`, and faults of its kernels.
    pub fn launch(&mut self, work: impl FnOnce(&Stream) -> Result<(), CaseError>) -> Result<(), CaseError> {
        if self.launches == Launches::Skipped {
            return Ok(());
        }
        let start = Instant::now();
        work(&self.stream)?;
        self.stream.synchronize()?;
        self.time += start.elapsed();
        Ok(())
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// [`CaseError::Damage`] if its guards have changed; the device failed.
    pub fn read_bytes(&self, tensor: &Placed) -> Result<Vec<u8>, CaseError> {
        let bytes = tensor.memory.to_bytes()?;
        let size = tensor.dtype.bytes();
        let inside = tensor.before * size..(tensor.before + tensor.len) * size;
        let damaged = |(at, &byte): (usize, &u8)| !inside.contains(&at) && byte != GUARD;
        if let Some((at, _)) = bytes.iter().enumerate().find(|&b| damaged(b)) {
            let offset = at as i64 - inside.start as i64;
            return Err(CaseError::Damage { tensor: tensor.name, offset });
        }
        Ok(bytes[inside].to_vec())
    }

    /// The values of a tensor.
    ///
    /// # Errors
    /// As [`read_bytes`](Self::read_bytes).
    pub fn read(&self, tensor: &Placed) -> Result<Vec<f64>, CaseError> {
        Ok(storage::decode(tensor.dtype, &self.read_bytes(tensor)?))
    }

    /// Compares an [`output`](Self::output), or an [`input`](Self::input) that was replaced, with its reference.
    ///
    /// # Errors
    /// As [`read_bytes`](Self::read_bytes).
    pub fn compare(&self, output: &Placed, expected: &[Expected]) -> Result<Comparison, CaseError> {
        Ok(compare(output.dtype, &self.read(output)?, expected, Self::poison(output.dtype)))
    }

    /// [`compare`](Self::compare) of a statistic that an operation of `dtype` saves in the type of its sums, in units of the budget
    /// of the operation.
    ///
    /// # Errors
    /// As [`compare`](Self::compare).
    pub fn compare_saved(
        &self,
        dtype: DType,
        output: &Placed,
        expected: &[Expected],
    ) -> Result<Comparison, CaseError> {
        let (case, saved) = (budget::elementwise(dtype), budget::elementwise(dtype.accumulator()));
        let mut comparison = self.compare(output, expected)?;
        comparison.norm *= case.norm_over(comparison.spread) / saved.norm_over(comparison.spread);
        comparison.element *= case.element / saved.element;
        Ok(comparison)
    }
}
