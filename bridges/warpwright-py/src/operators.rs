//! Operators of PyTorch's dispatcher without Python: a function of C behind each repeats calls that are like one before, and has Python
//! make those that are not.

use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;
use warpwright_runtime::record_launches;

use crate::calls::{Call, Described, Known, Place, Recorded, Seen, repeats_first_calls};
use crate::indices;
use crate::recording;
use crate::stable::{ENTER, Interface, Kind, MOST, Owned, Stack, interface};

struct Operator {
    arguments: Vec<Kind>,
    results: usize,
    /// The operator that is the same in Python.
    python: CString,
    calls: Known<Made>,
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
    place.get_or_init(|| Operator { arguments, results, python, calls: Known::default() });
    interface.implement([&namespace, &name, &key], index)
}

/// How many kinds of calls of all operators are repeated without Python, and how many go through it every time.
#[pyfunction]
pub(crate) fn operator_calls() -> (usize, usize) {
    let counts = OPERATORS.iter().filter_map(OnceLock::get).map(|operator| operator.calls.counts());
    counts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
}

/// A tensor that a call makes.
struct Made {
    sizes: Box<[i64]>,
    strides: Box<[i64]>,
    dtype: u32,
}

impl Made {
    /// A result of a call on this GPU.
    fn result(result: &Owned, on: u32) -> Option<(Place, Self)> {
        let Described { address, dtype, gpu, sizes, strides, bytes } = result.describe()?;
        let made = Self { sizes: sizes.into(), strides: strides.into(), dtype };
        (gpu == Some(on)).then_some((Place { address, bytes }, made))
    }

    fn bytes(count: i64) -> Option<Self> {
        /// `c10::ScalarType::Byte`.
        const BYTE: u32 = 0;
        Some(Self { sizes: [count].into(), strides: [1].into(), dtype: BYTE })
    }
}

/// The call again; `None` if PyTorch has no memory. The results come first.
fn repeat(
    recorded: &Recorded<Made>,
    interface: &'static Interface,
    call: &Call,
    gpu: u32,
) -> Option<Result<Vec<Owned>, String>> {
    let mut made = Vec::with_capacity(recorded.made.len());
    let mut addresses = Vec::with_capacity(recorded.made.len());
    for Made { sizes, strides, dtype } in &recorded.made {
        let tensor = interface.empty((sizes, strides), *dtype, gpu)?;
        addresses.push(tensor.describe()?.address);
        made.push(tensor);
    }
    let stream = interface.stream(gpu)?;
    Some(recorded.enqueue(call, &addresses, gpu, stream).map(|()| made).map_err(|e| e.to_string()))
}

/// The function behind operator `index`.
fn enter(index: usize, stack: &mut Stack<'_>) -> Result<(), String> {
    let Some(operator) = OPERATORS[index].get() else {
        return Err(format!("warpwright: operator {index} is not known"));
    };
    Call::with(|call| {
        let is_seen = stack.describe(&operator.arguments, call).is_some() && !indices::validates();
        match call.gpu().filter(|_| is_seen) {
            Some(gpu) => operator.called(stack, call, gpu),
            None => operator.in_python(stack),
        }
    })
}

impl Operator {
    fn called(&self, stack: &mut Stack<'_>, call: &mut Call, gpu: u32) -> Result<(), String> {
        match self.calls.get(call) {
            Some(Seen::Repeated(recorded)) => match repeat(&recorded, stack.interface(), call, gpu) {
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
            Some(Seen::Single) => self.in_python(stack),
            None | Some(Seen::Once) => self.record(stack, call, gpu),
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

    fn record(&self, stack: &mut Stack<'_>, call: &Call, gpu: u32) -> Result<(), String> {
        let ((result, launches), allocations) =
            recording::record(|| record_launches(|| self.in_python(stack)));
        result?;
        let results = stack.take(self.results);
        let made = results.iter().map(|result| Made::result(result, gpu)).collect();
        let recorded = Recorded::new(call, made, launches, allocations, Made::bytes);
        let again = recorded.as_ref().filter(|_| repeats_first_calls());
        match again.and_then(|recorded| repeat(recorded, stack.interface(), call, gpu)) {
            Some(repeated) => stack.put(repeated?.into_iter().take(self.results)),
            None => stack.put(results),
        }
        self.calls.add(call, Seen::of(recorded));
        Ok(())
    }
}
