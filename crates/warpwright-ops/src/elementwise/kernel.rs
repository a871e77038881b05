//! The kernels: one vector of elements a thread. Where all tensors lie in one order it is found by its number; otherwise the number of
//! the vector is divided into an index for each dimension, a product and a shift a dimension and vector.

use warpwright_dsl::divide::{DivisorArgs, indices};
use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::expr::{Expr, MAX_INPUTS, MAX_OUTPUTS, MAX_SCALARS};
use super::math::{Element, Value};
use super::tuning::Config;
use super::walk::{MAX_OUTER, Reading};

kernel_args! {
    /// The tensors, and the numbers of the launch. Kernels with fewer get null pointers that they do not follow.
    pub(super) struct TensorArgs => TensorParams {
        x: [In<Elem>; MAX_INPUTS],
        /// Seed and offset of dropout.
        random: In<i64>,
        y: [Out<Elem>; MAX_OUTPUTS],
        scalars: [f64; MAX_SCALARS],
        threshold: u32,
        keeping: f64,
    }
}

kernel_args! {
    /// Of tensors that lie in one order.
    pub(super) struct FlatArgs => FlatParams { tensors: TensorArgs, n: u64 }
}

kernel_args! {
    /// Of tensors with strides.
    pub(super) struct StridedArgs => StridedParams {
        tensors: TensorArgs,
        /// Of each input, from the innermost dimension outwards.
        strides: [[u64; MAX_OUTER + 1]; MAX_INPUTS],
        /// Vectors of the innermost dimension, and extents from there outwards.
        extents: [DivisorArgs; MAX_OUTER],
        vectors: u32,
        /// The number of the first element, for dropout.
        first: u64,
    }
}

/// The parts that both kernels share.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) outputs: Vec<Expr>,
    pub(super) inputs: Vec<(DType, Reading)>,
    pub(super) dtypes: Vec<DType>,
    pub(super) config: Config,
}

/// The paths of the arguments, as [`DTypes`] has them.
const INPUT_PATHS: [&str; MAX_INPUTS] =
    ["tensors.x.0", "tensors.x.1", "tensors.x.2", "tensors.x.3", "tensors.x.4", "tensors.x.5"];
const OUTPUT_PATHS: [&str; MAX_OUTPUTS] = ["tensors.y.0", "tensors.y.1", "tensors.y.2"];

/// The 64-bit FNV-1a hash, which is the same everywhere and for ever.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn joined(dtypes: impl Iterator<Item = DType>) -> String {
    dtypes.map(|dtype| format!("_{dtype}")).collect()
}

impl Common {
    /// The types of all tensors.
    fn all(&self) -> impl Iterator<Item = DType> {
        self.inputs.iter().map(|(dtype, _)| *dtype).chain(self.dtypes.iter().copied())
    }

    /// The type that expressions are computed in.
    fn accumulator(&self) -> DType {
        if self.all().any(|dtype| dtype == DType::F64) { DType::F64 } else { DType::F32 }
    }

    /// The type that exactness is measured by: a 16-bit one only where all results are rounded to one.
    pub(super) fn precision(&self) -> DType {
        let of = |dtype| self.dtypes.iter().all(|other| *other == dtype);
        let halves = self.dtypes.iter().all(|dtype| matches!(dtype, DType::F16 | DType::BF16));
        match self.accumulator() {
            DType::F64 => DType::F64,
            _ if of(DType::BF16) => DType::BF16,
            _ if halves => DType::F16,
            _ => DType::F32,
        }
    }

    fn spec(&self, walk: &str) -> KernelSpec {
        let text: Vec<_> = self.outputs.iter().map(Expr::to_string).collect();
        let (head, hash) = (self.outputs[0].head(), fnv1a(&text.join("; ")));
        let inputs = joined(self.inputs.iter().map(|(dtype, _)| *dtype));
        let outputs = joined(self.dtypes.iter().copied());
        let readings: String = self.inputs.iter().map(|(_, reading)| reading.letter()).collect();
        let Config { width, threads } = self.config;
        let name = format!("elementwise_{head}_{hash:016x}{inputs}_to{outputs}_{readings}{walk}_x{width}");
        let dtypes = INPUT_PATHS.into_iter().zip(self.inputs.iter().map(|(dtype, _)| *dtype));
        let dtypes = dtypes.chain(OUTPUT_PATHS.into_iter().zip(self.dtypes.iter().copied()));
        let all = DTypes::all(self.accumulator());
        let dtypes = dtypes.fold(all, |dtypes, (path, dtype)| dtypes.with(path, dtype));
        KernelSpec::new(name, BlockDim::x(threads)).dtypes(dtypes)
    }

    /// The numbers of the launch and the state of the random numbers.
    fn prepared<'k, A: Accumulate>(&self, k: K<'k>, a: TensorParams<'k>) -> Prepared<'k, A> {
        let scalars = self.outputs.iter().map(Expr::scalar_count).max().unwrap_or(0);
        let dropped = self.outputs.iter().any(Expr::has_dropout);
        let dropout = dropped.then(|| {
            let [seed, offset] = [0u64, 1].map(|i| a.random.at(i).get::<i64>().to_u64());
            Dropped {
                philox: Philox::new(k, seed, offset),
                threshold: a.threshold,
                keeping: a.keeping.convert::<A>(),
            }
        });
        let scalars = a.scalars[..scalars].iter().map(|scalar| scalar.convert::<A>()).collect();
        Prepared { scalars, dropout }
    }

    /// Loads `width` elements of every input, computes, and stores. `places` has each input where the thread begins, and the elements
    /// from one to the next; the outputs begin at `first`, whose number is `number`.
    fn vector<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        (outputs, prepared): (&[Ptr<'k, Write, Elem>], &Prepared<'k, A>),
        places: Vec<(Ptr<'k, Read, Elem>, Option<U64<'k>>)>,
        (first, number): (Index<'k>, impl Fn() -> U64<'k>),
        width: u32,
    ) {
        let inputs = self.inputs.iter().zip(places);
        let inputs: Vec<Vec<Value<'k, A>>> =
            inputs.map(|((dtype, reading), place)| load(*dtype, *reading, place, width)).collect();
        let kept: Option<Vec<_>> = prepared.dropout.as_ref().map(|dropped| {
            let words = dropped.philox.elements(number(), width);
            words.into_iter().map(|word| (word.ge(dropped.threshold), dropped.keeping)).collect()
        });
        let mut results = vec![Vec::new(); self.outputs.len()];
        for lane in 0..width as usize {
            let mut element = Element {
                k,
                inputs: inputs.iter().map(|values| values[lane]).collect(),
                scalars: &prepared.scalars,
                dropout: kept.as_ref().map(|kept| kept[lane]),
                dtype: self.precision(),
                known: Vec::new(),
            };
            for (result, expr) in results.iter_mut().zip(&self.outputs) {
                result.push(element.value(expr));
            }
        }
        for ((result, y), dtype) in results.into_iter().zip(outputs).zip(&self.dtypes) {
            let y = y.at(first);
            if *dtype == DType::U8 {
                let bytes = result.into_iter().map(|value| value.truth().select(1, 0));
                y.cast::<u8>().store(bytes.collect::<Lanes<'k, u32>>());
            } else {
                y.store(result.into_iter().map(Value::number).collect::<Lanes<'k, A>>());
            }
        }
    }
}

/// Values that all elements of a thread share.
#[derive(Debug)]
struct Prepared<'k, A: Accumulate> {
    scalars: Vec<Reg<'k, A>>,
    dropout: Option<Dropped<'k, A>>,
}

#[derive(Debug)]
struct Dropped<'k, A: Accumulate> {
    philox: Philox<'k>,
    threshold: U32<'k>,
    keeping: Reg<'k, A>,
}

/// The elements of an input: from `place` on, with so many from one to the next where they are apart.
fn load<'k, A: Accumulate>(
    dtype: DType,
    reading: Reading,
    (place, stride): (Ptr<'k, Read, Elem>, Option<U64<'k>>),
    width: u32,
) -> Vec<Value<'k, A>> {
    let several = |place: Ptr<'k, Read, Elem>, width: u32| -> Vec<Value<'k, A>> {
        if dtype == DType::U8 {
            place.cast::<u8>().load::<u32>(width).iter().map(Value::Byte).collect()
        } else {
            place.load::<A>(width).iter().map(Value::Number).collect()
        }
    };
    match (reading, stride) {
        (Reading::Contiguous | Reading::Row, _) => several(place, width),
        (Reading::Gather, Some(stride)) => {
            place.pitched(stride, width).flat_map(|place| several(place, 1)).collect()
        }
        (Reading::Uniform | Reading::Column | Reading::Gather, _) => {
            several(place, 1).into_iter().cycle().take(width as usize).collect()
        }
    }
}

/// Tensors that lie in one order, or are one element.
#[derive(Clone, Debug)]
pub(super) struct Flat(pub(super) Common);

impl AccumulateKernel for Flat {
    type Args = FlatArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("")
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: FlatParams<'k>) {
        k.after_previous_grid();
        let prepared = self.0.prepared::<A>(k, a.tensors);
        elementwise(k, a.n, self.0.config.width, |i, width| {
            let inputs = a.tensors.x.iter().zip(&self.0.inputs);
            let places = inputs.map(|(x, (_, reading))| match reading {
                Reading::Uniform => (*x, None),
                _ => (x.at(i), None),
            });
            let of = (&a.tensors.y[..], &prepared);
            self.0.vector(k, of, places.collect(), (i, || i.to_u64()), width);
        });
    }
}

/// Tensors with strides.
#[derive(Clone, Debug)]
pub(super) struct Strided {
    pub(super) common: Common,
    /// Dimensions outside of the innermost one.
    pub(super) outer: usize,
}

impl AccumulateKernel for Strided {
    type Args = StridedArgs;

    fn spec(&self) -> KernelSpec {
        self.common.spec(&format!("{}", self.outer))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: StridedParams<'k>) {
        let Config { width, threads } = self.common.config;
        k.after_previous_grid();
        let prepared = self.common.prepared::<A>(k, a.tensors);
        let vector = k.block_idx_x().mul_add(threads, k.thread_idx());
        k.if_(vector.lt(a.vectors), || {
            let index = indices(vector, &a.extents[..self.outer]);
            let columns = index[0].mul_wide(width);
            let first = vector.mul_wide(width);
            let place = |number: usize, reading: Reading| {
                let (x, strides) = (a.tensors.x[number], &a.strides[number]);
                let rows = index.iter().zip(strides).skip(1);
                let row = rows.map(|(index, stride)| index.to_u64() * *stride).reduce(|a, b| a + b);
                let row = || row.map_or(x, |row| x.at(row));
                match reading {
                    Reading::Uniform => (x, None),
                    Reading::Contiguous => (x.at(first), None),
                    Reading::Column => (row(), None),
                    Reading::Row => (row().at(columns), None),
                    Reading::Gather => (row().at(columns * strides[0]), Some(strides[0])),
                }
            };
            let readings = self.common.inputs.iter().map(|(_, reading)| *reading).enumerate();
            let places = readings.map(|(number, reading)| place(number, reading)).collect();
            let of = (&a.tensors.y[..], &prepared);
            let number = || first + a.first;
            self.common.vector(k, of, places, (first.into_index(k), number), width);
        });
    }
}
