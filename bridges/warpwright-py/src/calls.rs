//! Calls that are like one before: what makes them alike, and what is enqueued again.
//!
//! The first call of a kind is recorded: which memory PyTorch allocated for it, and which kernels were launched on what. A kind of call is
//! all that it can depend on: types, sizes, strides, alignment and overlap of its tensors, and its parameters. A call that did anything
//! else (a copy of PyTorch's, a transfer, memory from elsewhere) is not repeated.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use pyo3::prelude::*;
use warpwright::RuntimeError;
use warpwright_runtime::RecordedLaunch;

use crate::device::opened;
use crate::memory;
use crate::recording::Allocation;

/// Kinds that are remembered of a function, and 64-bit words that say what they are; when there are more, all are forgotten.
const MOST_KINDS: usize = 4096;
const MOST_WORDS: usize = 1 << 22;
/// Alignments that are told apart: no kernel asks for more than 256 bytes.
const ALIGNMENTS: u32 = 8;

static REPEATS: AtomicBool = AtomicBool::new(false);

/// Whether the first call of a kind gives what its repetition computes, for tests: they then see the results of both ways in one call.
/// Whoever calls holds the arguments until it is done. Returns what was in force.
#[pyfunction]
pub(crate) fn repeat_first_calls(enabled: bool) -> bool {
    REPEATS.swap(enabled, Ordering::Relaxed)
}

static FORGOTTEN: AtomicUsize = AtomicUsize::new(0);

/// Forgets every kind of call, for tests that look for what a first call does.
#[pyfunction]
pub(crate) fn forget_calls() {
    FORGOTTEN.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn repeats_first_calls() -> bool {
    REPEATS.load(Ordering::Relaxed)
}

/// Memory of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl Place {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.address < other.end() && other.address < self.end()
    }

    fn holds(&self, address: u64) -> bool {
        address >= self.address && address - self.address < self.bytes
    }
}

/// A tensor of a call. Strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described<'a> {
    pub(crate) address: u64,
    /// A number that tells element types apart.
    pub(crate) dtype: u32,
    /// `None` on the host.
    pub(crate) gpu: Option<u32>,
    pub(crate) sizes: &'a [i64],
    pub(crate) strides: &'a [i64],
    /// From the first element to the end of the last.
    pub(crate) bytes: u64,
}

/// Bytes from the first element to the end of the last.
pub(crate) fn bytes_of(sizes: &[i64], strides: &[i64], element: u64) -> u64 {
    let steps = sizes.iter().zip(strides).map(|(n, step)| n.saturating_sub(1).saturating_mul(*step));
    let last = steps.fold(0i64, i64::saturating_add).unsigned_abs();
    if sizes.contains(&0) { 0 } else { last.saturating_add(1).saturating_mul(element) }
}

/// The kind of a call, and where its tensors lie.
#[derive(Debug, Default)]
pub(crate) struct Call {
    words: Vec<u64>,
    tensors: Vec<Place>,
    /// Kept for its memory.
    sorted: Vec<Place>,
    gpu: Option<u32>,
    /// Whether a tensor lies elsewhere.
    mixed: bool,
}

thread_local! {
    /// Kept from call to call for its memory.
    static CALL: Cell<Call> = Cell::default();
}

impl Call {
    /// Does something with a call that nothing has been added to yet.
    pub(crate) fn with<T>(use_it: impl FnOnce(&mut Self) -> T) -> T {
        let mut call = CALL.take();
        call.words.clear();
        call.tensors.clear();
        (call.gpu, call.mixed) = (None, false);
        let result = use_it(&mut call);
        CALL.set(call);
        result
    }

    /// The GPU that all tensors lie on.
    pub(crate) fn gpu(&self) -> Option<u32> {
        self.gpu.filter(|_| !self.mixed)
    }

    pub(crate) fn number(&mut self, value: u64) {
        self.words.push(value);
    }

    pub(crate) fn text(&mut self, text: &[u8]) {
        self.words.push(text.len() as u64);
        for part in text.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.words.push(u64::from_le_bytes(word));
        }
    }

    pub(crate) fn tensor(&mut self, tensor: Described<'_>) {
        let Described { address, dtype, gpu, sizes, strides, bytes } = tensor;
        self.mixed |= gpu.is_none() || self.gpu.is_some_and(|first| Some(first) != gpu);
        self.gpu = gpu;
        self.words.push((sizes.len() as u64) << 32 | u64::from(dtype));
        self.words.extend(sizes.iter().chain(strides).map(|n| n.cast_unsigned()));
        self.words.push(u64::from(address.trailing_zeros().min(ALIGNMENTS)));
        self.tensors.push(Place { address, bytes });
    }

    /// Adds where each tensor lies in those before it that it shares memory with.
    fn add_overlaps(&mut self) {
        if !self.overlaps() {
            return;
        }
        for (at, tensor) in self.tensors.iter().enumerate() {
            for (before, other) in self.tensors[..at].iter().enumerate() {
                if tensor.overlaps(other) {
                    let offset = tensor.address.wrapping_sub(other.address);
                    self.words.extend([u64::MAX, at as u64, before as u64, offset]);
                }
            }
        }
    }

    /// Whether any two tensors share memory. Lists of parameters have thousands, which are sorted before they are compared.
    fn overlaps(&mut self) -> bool {
        self.sorted.clear();
        self.sorted.extend(self.tensors.iter().filter(|place| place.bytes > 0));
        self.sorted.sort_unstable_by_key(|place| place.address);
        self.sorted.windows(2).any(|pair| pair[0].overlaps(&pair[1]))
    }
}

/// The memory that a binding of a launch points to.
#[derive(Clone, Copy, Debug)]
enum Source {
    Null,
    Argument { index: usize, offset: u64 },
    Made { index: usize, offset: u64 },
}

/// A call that can be repeated: what it makes, described by `M`, and what it launches.
pub(crate) struct Recorded<M> {
    /// The results come first, then memory for the time between.
    pub(crate) made: Vec<M>,
    launches: Vec<(RecordedLaunch, Box<[Source]>)>,
}

impl<M> Recorded<M> {
    /// A call from what it did; `None` if anything is not known. memory: so many bytes for the time between.
    pub(crate) fn new(
        call: &Call,
        results: Option<Vec<(Place, M)>>,
        launches: Option<Vec<RecordedLaunch>>,
        allocations: Option<Vec<Allocation>>,
        memory: impl Fn(i64) -> Option<M>,
    ) -> Option<Self> {
        let (launches, allocations) = (launches?, allocations?);
        let (mut places, mut made): (Vec<Place>, Vec<M>) = results?.into_iter().unzip();
        for (at, place) in places.iter().enumerate() {
            let is_whole = allocations.contains(&(place.address, place.bytes));
            let is_alone = places[..at].iter().all(|other| other.address != place.address);
            if place.bytes > 0 && !(is_whole && is_alone) {
                return None;
            }
        }
        for &(address, bytes) in allocations.iter().filter(|(_, bytes)| *bytes > 0) {
            if !places.iter().any(|place| place.address == address) {
                made.push(memory(i64::try_from(bytes).ok()?)?);
                places.push(Place { address, bytes });
            }
        }
        let source = |&address: &u64| {
            if address == 0 {
                return Some(Source::Null);
            }
            let at = |places: &[Place]| {
                // What has no elements says nothing about where others begin.
                let begins = places.iter().position(|place| place.address == address && place.bytes > 0);
                let index = begins.or_else(|| places.iter().position(|place| place.holds(address)))?;
                Some((index, address - places[index].address))
            };
            let argument = at(&call.tensors).map(|(index, offset)| Source::Argument { index, offset });
            argument.or_else(|| at(&places).map(|(index, offset)| Source::Made { index, offset }))
        };
        let launches = launches.into_iter().map(|launch| {
            let sources = launch.addresses().iter().map(source).collect::<Option<Box<_>>>()?;
            Some((launch, sources))
        });
        let launches = launches.collect::<Option<_>>()?;
        Some(Self { made, launches })
    }

    /// Enqueues the same for another call of the kind. made: the addresses of what was made for it.
    pub(crate) fn enqueue(
        &self,
        call: &Call,
        made: &[u64],
        gpu: u32,
        stream: u64,
    ) -> Result<(), RuntimeError> {
        let address = |source: &Source| match *source {
            Source::Null => 0,
            Source::Argument { index, offset } => call.tensors[index].address + offset,
            Source::Made { index, offset } => made[index] + offset,
        };
        let gpu = opened(gpu)?;
        let stream = gpu.stream(stream)?;
        self.launches.iter().try_for_each(|(launch, sources)| {
            memory::launch_again(gpu, &stream, launch, sources.iter().map(address))
        })
    }
}

/// The knowledge of a kind of call.
pub(crate) enum Seen<M> {
    /// There was one, which was not recorded.
    Once,
    /// None can be repeated.
    Single,
    Repeated(Arc<Recorded<M>>),
}

impl<M> Seen<M> {
    pub(crate) fn of(recorded: Option<Recorded<M>>) -> Self {
        recorded.map_or(Self::Single, |recorded| Self::Repeated(Arc::new(recorded)))
    }
}

impl<M> Clone for Seen<M> {
    fn clone(&self) -> Self {
        match self {
            Self::Once => Self::Once,
            Self::Single => Self::Single,
            Self::Repeated(recorded) => Self::Repeated(Arc::clone(recorded)),
        }
    }
}

/// The kinds of calls that a function has seen.
pub(crate) struct Known<M>(RwLock<Kinds<M>>);

struct Kinds<M> {
    /// How often all were forgotten when the first of these was seen.
    forgotten: usize,
    /// Of all kinds together.
    words: usize,
    kinds: HashMap<Box<[u64]>, Seen<M>>,
}

impl<M> Default for Known<M> {
    fn default() -> Self {
        Self(RwLock::new(Kinds { forgotten: 0, words: 0, kinds: HashMap::new() }))
    }
}

impl<M> Known<M> {
    /// The knowledge of the kind of a call, to which all arguments have been added; `None` if there was none.
    pub(crate) fn get(&self, call: &mut Call) -> Option<Seen<M>> {
        call.add_overlaps();
        let seen = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if seen.forgotten == FORGOTTEN.load(Ordering::Relaxed) {
            seen.kinds.get(&call.words[..]).cloned()
        } else {
            None
        }
    }

    pub(crate) fn add(&self, call: &Call, kind: Seen<M>) {
        let mut seen = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let now = FORGOTTEN.load(Ordering::Relaxed);
        if seen.forgotten != now || seen.kinds.len() >= MOST_KINDS || seen.words >= MOST_WORDS {
            *seen = Kinds { forgotten: now, words: 0, kinds: HashMap::new() };
        }
        if seen.kinds.insert(call.words.clone().into(), kind).is_none() {
            seen.words += call.words.len();
        }
    }

    /// How many kinds can be repeated, and how many cannot.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let seen = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let can = seen.kinds.values().filter(|kind| matches!(kind, Seen::Repeated(_))).count();
        (can, seen.kinds.len() - can)
    }
}
