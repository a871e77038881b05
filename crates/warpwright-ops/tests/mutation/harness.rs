//! Runs every kernel of some plans with one defect at a time, and says which defects nothing notices.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use warpwright_ops::plan::{Access, TensorSpec};
use warpwright_ops::{Operation, Plan};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{Module, SourceLoc, Target};
use warpwright_runtime::{Binding, Device, EmulatorConfig, Error, LaunchStep, OnFinding, Tensor};
use warpwright_testkit::inputs::Input;
use warpwright_testkit::mutate::{Mutant, Mutation, all_of, mutants};
use warpwright_testkit::storage;

pub(crate) const TARGET: Target = Target::sm(90);
/// How much longer than the kernel itself a mutant may run, in instructions of warps: one that loops for ever is noticed. A defect that
/// changes nothing else takes the kernel a few more rounds of a loop.
const MORE_STEPS: u64 = 200_000;
const TIMES_AS_LONG: u64 = 4;
/// The longest run of a kernel itself.
const PATIENCE: Duration = Duration::from_secs(600);

/// The values of the tensor in a slot of these.
pub(crate) type Fill = fn(&[TensorSpec], usize) -> Vec<f64>;

/// A place whose defects nothing notices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Survivor {
    /// A part of the kernel's name, or its end if this ends with `$`.
    kernel: &'static str,
    /// A part of the line that recorded the instruction together with the line before it, with `@` at the call.
    at: &'static str,
    why: &'static str,
    /// Whether the mutant does what the kernel does; at most one of twenty may not.
    equivalent: bool,
    /// How many of a kernel there are.
    most: usize,
}

impl Survivor {
    /// A mutant that does what the kernel does, for this reason.
    pub(crate) const fn equivalent(kernel: &'static str, at: &'static str, why: &'static str) -> Self {
        Self { kernel, at, why, equivalent: true, most: usize::MAX }
    }

    /// A mutant that does something else, which nothing here can see, for this reason.
    pub(crate) const fn missed(kernel: &'static str, at: &'static str, why: &'static str) -> Self {
        Self { equivalent: false, ..Self::equivalent(kernel, at, why) }
    }

    /// The same of that many in a kernel, where there are others that matter.
    pub(crate) const fn at_most(self, most: usize) -> Self {
        Self { most, ..self }
    }

    fn fits(&self, kernel: &str, passage: &str) -> bool {
        let name = match self.kernel.strip_suffix('$') {
            Some(end) => kernel.ends_with(end),
            None => kernel.contains(self.kernel),
        };
        name && passage.contains(self.at)
    }
}

/// How mutants are made and judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub(crate) fill: Fill,
    /// The launch that takes the place of one of the plan's.
    pub(crate) launched: fn(&LaunchStep) -> LaunchStep,
    /// Kernels, by their names, that another sweep has.
    pub(crate) skipped: fn(&str) -> bool,
    /// Whether a bound is shifted in all instructions that a line records, as a mistake in that line would.
    pub(crate) by_line: bool,
    pub(crate) survivors: &'static [Survivor],
}

impl Sweep {
    /// All kernels and all sites, none of which may survive.
    pub(crate) const fn new(fill: Fill) -> Self {
        Self { fill, launched: LaunchStep::clone, skipped: |_| false, by_line: false, survivors: &[] }
    }

    /// Every defect of every kernel of the plans must be noticed with some of them: of a bound one of the two shifts, as a
    /// tightened one may leave the work to another path.
    pub(crate) fn check<O: Operation>(&self, plans: &[Plan<O>]) {
        let right: Vec<Vec<Run>> = plans.iter().map(|plan| self.right(plan)).collect();
        let mut tally = Tally::default();
        for (name, mut places) in places(plans) {
            if (self.skipped)(&name) {
                continue;
            }
            // Most defects show with the least work.
            places.sort_by_key(|&(number, variant, _)| right[number][variant].steps);
            let (number, variant, step) = places[0];
            let module = plans[number].variants()[variant].steps[step].kernel().module();
            let defects = self.defects(module);
            assert!(!defects.is_empty(), "{name} has neither a bound nor a barrier");
            for variations in defects.values() {
                let noticed = |mutants: &Vec<Mutant>| {
                    let kernel = Kernel::new(all_of(module, mutants)).expect("a mutant is legal PTX");
                    places.iter().any(|&(number, variant, step)| {
                        let right = &right[number][variant];
                        let got = self.run(&mutated(right), &plans[number], variant, Some((step, &kernel)));
                        got.ok().as_ref() != Some(&right.outputs)
                    })
                };
                let caught = variations.values().any(noticed);
                let first = variations.values().flatten().next();
                first.inspect(|mutant| tally.count(&name, mutant, caught, self.survivors));
            }
        }
        tally.judge();
    }

    /// Mutants by the place of the defect, then by what was done there.
    fn defects(&self, module: &Module) -> BTreeMap<String, BTreeMap<i64, Vec<Mutant>>> {
        let mut defects: BTreeMap<_, BTreeMap<_, Vec<Mutant>>> = BTreeMap::new();
        for mutant in mutants(module) {
            let (place, variation) = match mutant.mutation {
                Mutation::BoundShifted { by } if self.by_line => (passage(mutant.location), by),
                Mutation::BoundShifted { by } => (format!("{:?}", mutant.site), by),
                _ => (format!("{:?}", mutant.site), 0),
            };
            defects.entry(place).or_default().entry(variation).or_default().push(mutant);
        }
        defects
    }

    /// The results of the kernels themselves, by variant.
    fn right<O: Operation>(&self, plan: &Plan<O>) -> Vec<Run> {
        let of_variant = |variant| {
            let device = unchanged();
            let outputs = self.run(&device, plan, variant, None);
            let outputs =
                outputs.unwrap_or_else(|e| panic!("the kernels of {} are in order: {e}", plan.op()));
            let counters = device.counters().expect("the emulator counts");
            Run { outputs, steps: counters.total_warp_instructions() }
        };
        (0..plan.variants().len()).map(of_variant).collect()
    }

    /// Runs the plan's steps of a variant, with another kernel in place of one step's; the bytes of all outputs, or
    /// what was noticed.
    fn run<O: Operation>(
        &self,
        device: &Device,
        plan: &Plan<O>,
        variant: usize,
        replaced: Option<(usize, &Kernel)>,
    ) -> Result<Outputs, Error> {
        let specs = plan.tensors();
        let tensor = |slot: usize| {
            let spec = &specs[slot];
            let bytes = match spec.access {
                Access::Read => storage::encode(spec.dtype, &(self.fill)(specs, slot)),
                Access::Write => vec![0x7b; spec.len * spec.dtype.bytes()],
            };
            Tensor::from_bytes(device, spec.dtype, &bytes, &[spec.len]).expect("memory")
        };
        let tensors: Vec<Tensor> = (0..specs.len()).map(tensor).collect();
        let bindings: Vec<Binding> = tensors.iter().map(Tensor::binding).collect();
        let stream = device.stream().expect("stream");
        for (index, step) in plan.variants()[variant].steps.iter().enumerate() {
            let step = (self.launched)(step);
            let step = match replaced {
                Some((at, kernel)) if at == index => step.with_kernel(kernel.clone()),
                _ => step,
            };
            stream.launch(&step, &bindings)?;
            stream.synchronize()?;
        }
        let outputs = specs.iter().zip(&tensors).filter(|(spec, _)| spec.access == Access::Write);
        outputs.map(|(_, tensor)| tensor.to_bytes()).collect()
    }
}

/// Every site of every kernel of the operation must be noticed for some length.
pub(crate) fn check<O: Operation>(lengths: &[usize], plan_of: impl Fn(usize) -> Plan<O>) {
    check_except(|_| false, lengths, plan_of);
}

/// [`check`] without some kernels, by their names.
pub(crate) fn check_except<O: Operation>(
    skipped: fn(&str) -> bool,
    lengths: &[usize],
    plan_of: impl Fn(usize) -> Plan<O>,
) {
    Sweep { skipped, ..Sweep::new(grouped) }.check(&plans(lengths, plan_of));
}

/// Where each kernel is: plan, variant, step.
fn places<O: Operation>(plans: &[Plan<O>]) -> BTreeMap<String, Vec<(usize, usize, usize)>> {
    let mut places: BTreeMap<String, Vec<(usize, usize, usize)>> = BTreeMap::new();
    for (number, plan) in plans.iter().enumerate() {
        for (variant, of_variant) in plan.variants().iter().enumerate() {
            for (step, of_step) in of_variant.steps.iter().enumerate() {
                places.entry(of_step.kernel().name().to_owned()).or_default().push((number, variant, step));
            }
        }
    }
    places
}

#[derive(Debug, Default)]
struct Tally {
    caught: usize,
    equivalent: usize,
    missed: usize,
    unexplained: Vec<String>,
    /// How many of a kernel a survivor explains.
    explained: BTreeMap<(String, &'static str), usize>,
}

impl Tally {
    fn count(&mut self, kernel: &str, mutant: &Mutant, caught: bool, survivors: &[Survivor]) {
        if caught {
            self.caught += 1;
            return;
        }
        let passage = passage(mutant.location);
        if let Some(survivor) = survivors.iter().find(|survivor| survivor.fits(kernel, &passage)) {
            let explained = self.explained.entry((kernel.to_owned(), survivor.at)).or_default();
            *explained += 1;
            if *explained <= survivor.most {
                println!("{kernel}: {}: {passage}", survivor.why);
                self.equivalent += usize::from(survivor.equivalent);
                self.missed += usize::from(!survivor.equivalent);
                return;
            }
        }
        self.unexplained.push(format!("{kernel}: {:?} of {passage}", mutant.mutation));
    }

    fn judge(&self) {
        let Self { caught, equivalent, missed, unexplained, .. } = self;
        println!("{caught} noticed, {equivalent} change nothing, {missed} missed");
        assert!(unexplained.is_empty(), "nothing notices:\n{}", unexplained.join("\n"));
        assert!(missed * 19 <= *caught, "{missed} of {} survive", caught + missed);
    }
}

/// The line that recorded an instruction behind the one before it, with `@` at the call.
fn passage(location: SourceLoc) -> String {
    let SourceLoc::Rust(at) = location else { return String::new() };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join(at.file())).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let (number, column) = (at.line() as usize - 1, at.column() as usize - 1);
    let before = number.checked_sub(1).and_then(|n| lines.get(n)).map_or("", |line| line.trim());
    let (head, tail) = lines.get(number).and_then(|line| line.split_at_checked(column)).unwrap_or_default();
    format!("{}:{}: {before} {}@{tail}", at.file(), at.line(), head.trim_start())
}

type Outputs = Vec<Vec<u8>>;

/// The results of the kernels themselves.
#[derive(Debug)]
struct Run {
    outputs: Outputs,
    /// Instructions of warps, of all launches together.
    steps: u64,
}

fn config() -> EmulatorConfig {
    EmulatorConfig { target: TARGET, on_finding: OnFinding::Fail, threads: 1, ..EmulatorConfig::default() }
}

/// Runs kernels as they are.
fn unchanged() -> Device {
    let deadline = Some(Instant::now() + PATIENCE);
    Device::emulator_with(EmulatorConfig { counters: true, deadline, ..config() })
}

/// Runs mutants of kernels that did this.
fn mutated(right: &Run) -> Device {
    Device::emulator_with(EmulatorConfig { max_steps: TIMES_AS_LONG * right.steps + MORE_STEPS, ..config() })
}

/// Standard normal numbers. In every round of a kernel: groups whose zero point is 0 and whose scale is so small that it
/// takes a way of its own, and groups whose ends both lie halfway between integers, so that the largest element passes
/// the last code. Classes lie all over the rows.
pub(crate) fn grouped(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    if spec.name == "target" {
        // The class in front of the first is ignored, and the one behind the last is none.
        let classes = specs[0].len / spec.len;
        let class = |row: usize| match row {
            1 => -1.0,
            // The first and the last class are where a shifted bound is wrong.
            2 => 0.0,
            3 => classes as f64 - 1.0,
            _ => ((row * 7919 + 3) % (classes + 2)) as f64 - 1.0,
        };
        return (0..spec.len).map(class).collect();
    }
    let mut values = Input::Normal.values(spec.len, slot as u64);
    for (number, group) in values.chunks_mut(64).enumerate() {
        match (number / 8 % 2, number % 2) {
            (0, 1) => group.iter_mut().for_each(|x| *x = x.abs() * 2f64.powi(-100)),
            (1, 0) => {
                group.iter_mut().for_each(|x| *x = x.clamp(-1.5, 13.5));
                group.iter_mut().zip([-1.5, 13.5]).for_each(|(x, end)| *x = end);
            }
            _ => {}
        }
    }
    values
}

/// Normal numbers, so small that neither gates nor scores are extreme; lengths from none to more than there are.
pub(crate) fn plain(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    if spec.name == "key_lengths" {
        return (0..spec.len).map(|i| [0.0, 37.0, 999.0][i % 3]).collect();
    }
    if spec.name == "lengths" {
        // A single sequence is empty where the input has an even number of steps.
        if spec.len == 1 && specs[0].len.is_multiple_of(16) {
            return vec![0.0];
        }
        return (0..spec.len).map(|i| [2.0, 0.0, 999.0][i % 3]).collect();
    }
    let values = Input::Normal.values(spec.len, slot as u64);
    values.into_iter().map(|x| 0.5 * x).collect()
}

/// The plans of some cases.
pub(crate) fn plans<T: Copy, O: Operation>(cases: &[T], plan_of: impl Fn(T) -> Plan<O>) -> Vec<Plan<O>> {
    cases.iter().map(|case| plan_of(*case)).collect()
}
