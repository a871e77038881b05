//! Operators of PyTorch's dispatcher without Python: a call is looked up among those before it, and what they enqueued is enqueued
//! again on its own tensors.
//!
//! The first call of a kind goes through Python and is recorded: which memory PyTorch allocated, and which kernels were launched on
//! what. A kind of call is all that it can depend on: types, sizes, strides, alignment and overlap of its tensors, and its parameters. A
//! call that did anything else (a copy of PyTorch's, a transfer, memory from elsewhere) is not repeated: its kind goes through Python
//! every time.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use pyo3::prelude::*;
use warpwright_runtime::{RecordedLaunch, record_launches};

use crate::device::opened;
use crate::indices;
use crate::memory;
use crate::recording::{self, Allocation};
use crate::stable::{CUDA, Described, ENTER, Interface, Kind, MOST, Owned, Stack, Visitor, interface};

/// Calls that are remembered of an operator; when there are more, all are forgotten.
const MOST_CALLS: usize = 4096;
/// Alignments that are told apart: no kernel asks for more than 256 bytes.
const ALIGNMENTS: u32 = 8;

/// By its kind, a call that can be repeated; `None` if one of this kind cannot.
type Calls = HashMap<Box<[u64]>, Option<Arc<Recorded>>>;

struct Operator {
    arguments: Vec<Kind>,
    results: usize,
    /// The operator that is the same in Python.
    python: CString,
    calls: RwLock<Calls>,
}

static OPERATORS: [OnceLock<Operator>; MOST] = [const { OnceLock::new() }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Puts a function of C behind an operator, which is that of `python` for calls that are new to it. Whether it could: this PyTorch has
/// the interface, and every argument is of a type that it passes.
///
/// arguments: their types, as the schema writes them. results: how many tensors there are. key: the dispatch key.
#[pyfunction]
pub(crate) fn implement_operator(
    namespace: &str,
    name: &str,
    arguments: Vec<String>,
    results: usize,
    python: &str,
    key: &str,
) -> bool {
    let kinds: Option<Vec<_>> = arguments.iter().map(|text| Kind::parse(text)).collect();
    let (Some(interface), Some(arguments)) = (interface(), kinds) else { return false };
    let [Ok(namespace), Ok(name), Ok(python), Ok(key)] = [namespace, name, python, key].map(CString::new)
    else {
        return false;
    };
    let index = COUNT.fetch_add(1, Ordering::Relaxed);
    let Some(place) = OPERATORS.get(index) else { return false };
    ENTER.get_or_init(|| enter);
    place.get_or_init(|| Operator { arguments, results, python, calls: RwLock::default() });
    interface.implement([&namespace, &name, &key], index)
}

/// How many kinds of calls of all operators are repeated without Python, and how many go through it every time.
#[pyfunction]
pub(crate) fn operator_calls() -> (usize, usize) {
    let mut counts = (0, 0);
    for operator in OPERATORS.iter().filter_map(OnceLock::get) {
        for call in operator.calls.read().unwrap_or_else(PoisonError::into_inner).values() {
            if call.is_some() { counts.0 += 1 } else { counts.1 += 1 }
        }
    }
    counts
}

static REPEATS: AtomicBool = AtomicBool::new(false);

/// Whether the first call of a kind gives what its repetition computes, for tests: they then see the results of both ways in one call.
/// Whoever calls holds the arguments until it is done. Returns what was in force.
#[pyfunction]
pub(crate) fn repeat_operators(enabled: bool) -> bool {
    REPEATS.swap(enabled, Ordering::Relaxed)
}

/// A tensor of a call.
#[derive(Clone, Copy)]
struct Place {
    address: u64,
    bytes: u64,
}

impl Place {
    fn holds(&self, address: u64) -> bool {
        address >= self.address && address - self.address < self.bytes
    }
}

/// The kind of a call, and where its tensors lie.
#[derive(Default)]
struct Call {
    words: Vec<u64>,
    tensors: Vec<Place>,
    gpu: Option<i32>,
    /// Whether a tensor lies elsewhere.
    mixed: bool,
}

impl Visitor for Call {
    fn number(&mut self, value: u64) {
        self.words.push(value);
    }

    fn text(&mut self, text: &[u8]) {
        self.words.push(text.len() as u64);
        for part in text.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.words.push(u64::from_le_bytes(word));
        }
    }

    fn count(&mut self, count: usize) {
        self.words.push(count as u64);
    }

    fn tensor(&mut self, tensor: Described<'_>) {
        let Described { address, dtype, device: (kind, gpu), sizes, strides, bytes } = tensor;
        self.mixed |= kind != CUDA || self.gpu.is_some_and(|first| first != gpu);
        self.gpu = Some(gpu);
        self.words.push((sizes.len() as u64) << 32 | u64::from(dtype.cast_unsigned()));
        self.words.extend(sizes.iter().chain(strides).map(|n| n.cast_unsigned()));
        // Where it lies in a tensor before it, or else how well it is aligned.
        let end = address.saturating_add(bytes);
        let shared = |other: &Place| address < other.address + other.bytes && other.address < end;
        match self.tensors.iter().position(shared) {
            Some(before) => {
                let apart = address.wrapping_sub(self.tensors[before].address);
                self.words.extend([u64::MAX, before as u64, apart]);
            }
            None => self.words.push(u64::from(address.trailing_zeros().min(ALIGNMENTS))),
        }
        self.tensors.push(Place { address, bytes });
    }
}

impl Call {
    fn clear(&mut self) {
        self.words.clear();
        self.tensors.clear();
        (self.gpu, self.mixed) = (None, false);
    }

    /// The GPU that all tensors lie on.
    fn gpu(&self) -> Option<i32> {
        self.gpu.filter(|_| !self.mixed)
    }
}

/// What a binding of a launch points to.
#[derive(Clone, Copy, Debug)]
enum Source {
    Null,
    Argument { index: usize, offset: u64 },
    Made { index: usize, offset: u64 },
}

/// A tensor that a call makes: a result, or memory for the time between.
struct Made {
    sizes: Box<[i64]>,
    strides: Box<[i64]>,
    dtype: i32,
}

/// A call that can be repeated.
struct Recorded {
    /// The results come first.
    made: Vec<Made>,
    launches: Vec<(RecordedLaunch, Box<[Source]>)>,
}

/// `c10::ScalarType::Byte`.
const BYTES: i32 = 0;

impl Recorded {
    /// A call from what it did: `None` if anything is not known.
    fn new(
        call: &Call,
        results: &[Owned],
        launches: Vec<RecordedLaunch>,
        allocations: &[Allocation],
    ) -> Option<Self> {
        let mut made = Vec::new();
        let mut places = Vec::new();
        for result in results {
            let Described { address, dtype, device, sizes, strides, bytes } = result.describe()?;
            let is_fresh = |place: &Place| place.address != address;
            let is_whole = allocations.contains(&(address, bytes)) && places.iter().all(is_fresh);
            if device != (CUDA, call.gpu()?) || !(bytes == 0 || is_whole) {
                return None;
            }
            made.push(Made { sizes: sizes.into(), strides: strides.into(), dtype });
            places.push(Place { address, bytes });
        }
        for &(address, bytes) in allocations.iter().filter(|(_, bytes)| *bytes > 0) {
            if !places.iter().any(|place| place.address == address) {
                let size = i64::try_from(bytes).ok()?;
                made.push(Made { sizes: [size].into(), strides: [1].into(), dtype: BYTES });
                places.push(Place { address, bytes });
            }
        }
        let source = |&address: &u64| {
            if address == 0 {
                return Some(Source::Null);
            }
            let at = |places: &[Place]| {
                let begins = places.iter().position(|place| place.address == address);
                begins.or_else(|| places.iter().position(|place| place.holds(address)))
            };
            let in_arguments = at(&call.tensors)
                .map(|index| Source::Argument { index, offset: address - call.tensors[index].address });
            in_arguments.or_else(|| {
                at(&places).map(|index| Source::Made { index, offset: address - places[index].address })
            })
        };
        let launches = launches.into_iter().map(|launch| {
            let sources = launch.addresses().iter().map(source).collect::<Option<Box<_>>>()?;
            Some((launch, sources))
        });
        Some(Self { made, launches: launches.collect::<Option<_>>()? })
    }

    /// The same on other tensors; `None` if PyTorch has no memory. The results come first.
    fn repeat(
        &self,
        interface: &'static Interface,
        tensors: &[Place],
        gpu: i32,
    ) -> Option<Result<Vec<Owned>, String>> {
        let mut made = Vec::with_capacity(self.made.len());
        let mut addresses = Vec::with_capacity(self.made.len());
        for Made { sizes, strides, dtype } in &self.made {
            let tensor = interface.empty((sizes, strides), *dtype, gpu)?;
            addresses.push(tensor.describe()?.address);
            made.push(tensor);
        }
        let stream = interface.stream(gpu)?;
        let address = |source: &Source| match *source {
            Source::Null => 0,
            Source::Argument { index, offset } => tensors[index].address + offset,
            Source::Made { index, offset } => addresses[index] + offset,
        };
        let enqueue = || {
            let gpu = opened(gpu.cast_unsigned())?;
            let stream = gpu.stream(stream)?;
            self.launches.iter().try_for_each(|(launch, sources)| {
                memory::launch_again(gpu, &stream, launch, sources.iter().map(address))
            })
        };
        Some(enqueue().map(|()| made).map_err(|e| e.to_string()))
    }
}

thread_local! {
    static CALL: Cell<Call> = Cell::default();
}

/// The function behind operator `index`.
fn enter(index: usize, stack: &mut Stack<'_>) -> Result<(), String> {
    let (Some(operator), Some(interface)) = (OPERATORS[index].get(), interface()) else {
        return Err(format!("warpwright: operator {index} is not known"));
    };
    let mut call = CALL.take();
    call.clear();
    let is_seen = stack.walk(&operator.arguments, &mut call).is_some() && !indices::validates();
    let result = match call.gpu().filter(|_| is_seen) {
        Some(gpu) => operator.called(interface, stack, &call, gpu),
        None => operator.in_python(stack),
    };
    CALL.set(call);
    result
}

impl Operator {
    fn called(
        &self,
        interface: &'static Interface,
        stack: &mut Stack<'_>,
        call: &Call,
        gpu: i32,
    ) -> Result<(), String> {
        let known = {
            let calls = self.calls.read().unwrap_or_else(PoisonError::into_inner);
            calls.get(&call.words[..]).cloned()
        };
        match known {
            Some(Some(recorded)) => match recorded.repeat(interface, &call.tensors, gpu) {
                Some(Ok(results)) => {
                    stack.finish(&self.arguments, results.into_iter().take(self.results));
                    Ok(())
                }
                Some(Err(message)) => {
                    stack.finish(&self.arguments, []);
                    Err(message)
                }
                // PyTorch tells best what it lacks.
                None => self.in_python(stack),
            },
            Some(None) => self.in_python(stack),
            None => self.record(interface, stack, call, gpu),
        }
    }

    fn in_python(&self, stack: &mut Stack<'_>) -> Result<(), String> {
        recording::forget();
        if !stack.call(&self.python) {
            return Err(format!("{} failed", self.python.to_string_lossy()));
        }
        match recording::failure() {
            None => Ok(()),
            Some(message) => {
                drop(stack.take(self.results));
                Err(message)
            }
        }
    }

    fn record(
        &self,
        interface: &'static Interface,
        stack: &mut Stack<'_>,
        call: &Call,
        gpu: i32,
    ) -> Result<(), String> {
        let ((result, launches), allocations) =
            recording::record(|| record_launches(|| self.in_python(stack)));
        result?;
        let results = stack.take(self.results);
        let recorded = launches
            .zip(allocations)
            .and_then(|(launches, allocations)| Recorded::new(call, &results, launches, &allocations));
        let again = recorded.as_ref().filter(|_| REPEATS.load(Ordering::Relaxed));
        match again.and_then(|recorded| recorded.repeat(interface, &call.tensors, gpu)) {
            Some(repeated) => stack.put(repeated?.into_iter().take(self.results)),
            None => stack.put(results),
        }
        let mut calls = self.calls.write().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= MOST_CALLS {
            calls.clear();
        }
        calls.insert(call.words.clone().into(), recorded.map(Arc::new));
        Ok(())
    }
}
