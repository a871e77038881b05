//! The common part of timing programs: plans with tensors for them, and times with cold caches.

use std::collections::HashMap;
use std::rc::Rc;

use warpwright::activation::{Activation, ActivationDesc};
use warpwright::plan::Access;
use warpwright::{DType, Device, Error, Operation, Plan, Stream, Tensor};

/// Elements whose activation, in front of every product, leaves nothing of it in the caches.
const FLUSH: usize = 1 << 26;
const SAMPLES: usize = 15;
/// A plan and what it works on: numbers of either sign near a tenth, whatever the type.
pub struct Ready<O: Operation> {
    /// The plan.
    pub plan: Plan<O>,
    /// Its tensors, by slot.
    pub tensors: Vec<Rc<Tensor>>,
}

/// Tensors that plans of one product share: their slot, type and length.
pub type Shared = HashMap<(usize, DType, usize), Rc<Tensor>>;

/// Elements in all heads of attention.
const ELEMENTS: usize = 2048;
/// Heads whose elements are no divisor of these.
const HEADS: usize = 16;

/// How many heads attention is timed with, for head dimensions of queries and keys and of values.
pub const fn heads_of([width, value_width]: [usize; 2]) -> usize {
    if width == value_width && ELEMENTS.is_multiple_of(width) { ELEMENTS / width } else { HEADS }
}

/// These head dimensions from an argument such as `64`, or `192v128` where values have others.
pub fn widths_of(arg: &str) -> Option<[usize; 2]> {
    let (width, value_width) = arg.split_once('v').unwrap_or((arg, arg));
    Some([width.parse().ok()?, value_width.parse().ok()?])
}

/// The argument for these head dimensions.
pub fn name_of([width, value_width]: [usize; 2]) -> String {
    if width == value_width { width.to_string() } else { format!("{width}v{value_width}") }
}

/// Random bits.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state ^ *state >> 29
}

/// Numbers from a sixteenth to an eighth, and their negatives; of 8 bits floats from a fourth to four, and any integers.
fn content(dtype: DType, len: usize) -> Vec<u8> {
    let mut state = len as u64;
    let mut out = Vec::with_capacity(len * dtype.bytes());
    for _ in 0..len {
        let bits = random(&mut state) >> 8;
        match dtype {
            DType::F8E4M3 => out.push((bits as u8 & 0x9f) + 0x28),
            DType::F8E5M2 => out.push((bits as u8 & 0x8f) + 0x34),
            DType::I8 => out.push(bits as u8),
            // Places in windows of nine cells.
            DType::U8 => out.push(bits as u8 % 9),
            _ => {}
        }
        if dtype.bytes() == 1 {
            continue;
        }
        let sign = |place: u32| (bits >> 54 & 1) << place;
        let (high, low) = match dtype {
            DType::F64 => (0x3fb0 << 48, 52),
            DType::F32 => (0x3d80 << 16, 23),
            DType::BF16 => (0x3d80, 7),
            _ => (0x2c00, 10),
        };
        let value = high | bits & ((1 << low) - 1) | sign(8 * dtype.bytes() as u32 - 1);
        out.extend_from_slice(&value.to_le_bytes()[..dtype.bytes()]);
    }
    out
}

impl<O: Operation> Ready<O> {
    /// A plan with tensors, those of other plans where they are alike.
    ///
    /// # Errors
    /// If the device has no memory for them.
    pub fn new(device: &Device, shared: &mut Shared, plan: Plan<O>) -> Result<Self, Error> {
        let mut tensors = Vec::new();
        for (slot, spec) in plan.tensors().iter().enumerate() {
            let key = (slot, spec.dtype, spec.len);
            let tensor = match (shared.get(&key), spec.access) {
                (Some(tensor), _) => tensor.clone(),
                (None, Access::Read) => {
                    let content = content(spec.dtype, spec.len);
                    Rc::new(Tensor::from_bytes(device, spec.dtype, &content, &[spec.len])?)
                }
                (None, Access::Write) => Rc::new(Tensor::empty(device, spec.dtype, &[spec.len])?),
            };
            shared.insert(key, tensor.clone());
            tensors.push(tensor);
        }
        plan.warm_up(device)?;
        Ok(Self { plan, tensors })
    }

    /// Enqueues its launches.
    ///
    /// # Errors
    /// If one fails.
    pub fn launch(&self, stream: &Stream) -> Result<(), Error> {
        let bindings: Vec<_> = self.tensors.iter().map(|tensor| tensor.binding()).collect();
        self.plan.steps().iter().try_for_each(|step| Ok(stream.launch(step, &bindings)?))
    }
}

/// Times with nothing in the caches of what is timed.
pub struct Cold {
    stream: Stream,
    flush: Ready<ActivationDesc>,
}

impl Cold {
    /// On `device`.
    ///
    /// # Errors
    /// If it has no memory for what fills the caches.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let flush = ActivationDesc { activation: Activation::Relu, dtype: DType::F32, len: FLUSH };
        let flush = Ready::new(device, &mut Shared::new(), flush.plan(device.target())?)?;
        Ok(Self { stream: device.stream()?, flush })
    }

    /// Microseconds of a plan, the median of a few.
    ///
    /// # Errors
    /// If a launch fails.
    pub fn time<O: Operation>(&self, product: &Ready<O>) -> Result<f64, Error> {
        self.time_of(|stream| product.launch(stream))
    }

    /// The same of what `launch` enqueues.
    ///
    /// # Errors
    /// If a launch fails.
    pub fn time_of(&self, launch: impl Fn(&Stream) -> Result<(), Error>) -> Result<f64, Error> {
        let stream = &self.stream;
        let mut all = Vec::new();
        for _ in 0..SAMPLES {
            self.flush.launch(stream)?;
            let start = stream.record()?;
            launch(stream)?;
            let end = stream.record()?;
            stream.synchronize()?;
            all.extend(start.elapsed_us(&end)?);
        }
        all.sort_by(f64::total_cmp);
        Ok(all.get(all.len() / 2).copied().unwrap_or(f64::NAN))
    }
}
