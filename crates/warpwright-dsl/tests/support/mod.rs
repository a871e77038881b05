//! Runs recorded kernels in the emulator with every sanitizer on.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod reference;

use warpwright_dsl::prelude::*;
use warpwright_dsl::record;
use warpwright_emu::{LaunchConfig, Memory, Options, Program, Report, launch};
use warpwright_ptx::{ArgValue, TensorMap, pack_args};

/// An argument of a test launch.
pub(crate) enum Arg<'a> {
    /// A buffer that is written before and read after the launch.
    Buffer(&'a mut Vec<u8>),
    /// A scalar.
    Scalar(ArgValue),
    /// A tensor map over a buffer that is written before the launch.
    Map {
        /// The map; its base counts from the start of the buffer.
        map: TensorMap,
        /// The buffer.
        over: Vec<u8>,
    },
}

/// Records `def`, launches it and copies the buffers back. Fails on any finding.
pub(crate) fn run<D: KernelDef>(def: &D, target: Target, blocks: u32, args: &mut [Arg<'_>]) {
    run_with(def, target, blocks, 0, args);
}

/// The same with `dynamic_shared` bytes of dynamic shared memory.
pub(crate) fn run_with<D: KernelDef>(
    def: &D,
    target: Target,
    blocks: u32,
    dynamic_shared: u32,
    args: &mut [Arg<'_>],
) {
    let findings = findings(def, target, blocks, dynamic_shared, args);
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// The same; returns what the sanitizers found.
pub(crate) fn findings<D: KernelDef>(
    def: &D,
    target: Target,
    blocks: u32,
    dynamic_shared: u32,
    args: &mut [Arg<'_>],
) -> Vec<String> {
    let kernel = record(def, target).unwrap_or_else(|e| panic!("{e}"));
    let report = report(def, &kernel, kernel.text(), blocks, dynamic_shared, args);
    report.findings.iter().map(|f| f.render(Some(kernel.lines()), kernel.text())).collect()
}

/// The outcome of a launch of `text`, that of a kernel of `def` or a changed one, with counters.
pub(crate) fn report<D: KernelDef>(
    def: &D,
    kernel: &Kernel,
    text: &str,
    blocks: u32,
    dynamic_shared: u32,
    args: &mut [Arg<'_>],
) -> Report {
    let program = Program::load(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let memory = Memory::new();
    let mut values = Vec::new();
    let mut addresses = Vec::new();
    for (index, arg) in args.iter().enumerate() {
        match arg {
            Arg::Buffer(bytes) => {
                let address = memory.alloc(bytes.len() as u64, &format!("argument {index}")).expect("memory");
                memory.write(address, bytes).expect("a fresh buffer");
                values.push(ArgValue::Address(address));
                addresses.push(Some(address));
            }
            Arg::Scalar(value) => {
                values.push(value.clone());
                addresses.push(None);
            }
            Arg::Map { map, over } => {
                let address = memory.alloc(over.len() as u64, &format!("argument {index}")).expect("memory");
                memory.write(address, over).expect("a fresh buffer");
                let map = TensorMap { base: map.base + address, ..map.clone() };
                values.push(ArgValue::TensorMap { map: Box::new(map), slot: None });
                addresses.push(None);
            }
        }
    }
    let function = kernel.function();
    let params = pack_args(function, &values).expect("arguments that fit");
    let spec = def.spec();
    let config = LaunchConfig {
        grid: [blocks, 1, 1],
        block: spec.block.to_array(),
        dynamic_shared,
        cluster: [spec.cluster, 1, 1],
    };
    let options = Options { counters: true, ..Options::default() };
    let report = launch(&program, kernel.name(), &config, &params, &memory, &options)
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    for (arg, address) in args.iter_mut().zip(addresses) {
        if let (Arg::Buffer(bytes), Some(address)) = (arg, address) {
            memory.read(address, bytes).expect("a live buffer");
        }
    }
    report
}

/// The little-endian bytes of values.
pub(crate) trait Bytes: Copy {
    /// Bytes of one value.
    const SIZE: usize;
    /// Appends them.
    fn put(self, out: &mut Vec<u8>);
    /// Reads one.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! bytes {
    ($($ty:ty),*) => {$(
        impl Bytes for $ty {
            const SIZE: usize = size_of::<$ty>();
            fn put(self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("whole values"))
            }
        }
    )*};
}

bytes!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, half::f16, half::bf16);

/// Values as bytes.
pub(crate) fn bytes<T: Bytes>(values: &[T]) -> Vec<u8> {
    let mut out = Vec::new();
    values.iter().for_each(|v| v.put(&mut out));
    out
}

/// Bytes as values.
pub(crate) fn values<T: Bytes>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(T::SIZE).map(T::get).collect()
}

kernel_args! {
    /// `y = f(x)`
    pub(crate) struct MapArgs => MapParams { x: In<Elem>, y: Out<Elem>, n: u64 }
}

/// An elementwise kernel around a function of both register types.
pub(crate) struct Map<S, D> {
    /// On f32 registers.
    pub(crate) single: S,
    /// On f64 registers.
    pub(crate) double: D,
    /// Type of `x`.
    pub(crate) from: DType,
    /// Type of `y`.
    pub(crate) to: DType,
    /// Elements of a vector.
    pub(crate) width: u32,
}

/// The function that changes nothing.
pub(crate) fn same<'k, T>(x: Reg<'k, T>) -> Reg<'k, T> {
    x
}

impl<S, D> KernelDef for Map<S, D>
where
    S: for<'k> Fn(F32<'k>) -> F32<'k>,
    D: for<'k> Fn(F64<'k>) -> F64<'k>,
{
    type Args = MapArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("map_{}_{}_x{}", self.from, self.to, self.width), BlockDim::x(64))
            .dtypes(DTypes::all(self.from).with("y", self.to))
    }

    fn build<'k>(&self, k: K<'k>, a: MapParams<'k>) {
        elementwise(k, a.n, self.width, |i, w| {
            if self.from == DType::F64 {
                a.y.at(i).store(a.x.at(i).load(w).map(&self.double));
            } else {
                a.y.at(i).store(a.x.at(i).load(w).map(&self.single));
            }
        });
    }
}

impl<S, D> Map<S, D>
where
    S: for<'k> Fn(F32<'k>) -> F32<'k>,
    D: for<'k> Fn(F64<'k>) -> F64<'k>,
{
    /// `f` of every value.
    pub(crate) fn apply<X: Bytes, Y: Bytes>(&self, target: Target, xs: &[X]) -> Vec<Y> {
        let mut x = bytes(xs);
        let mut y = vec![0xa5; xs.len() * Y::SIZE];
        let grid = elementwise_grid(xs.len() as u64, 64, self.width).expect("a small grid");
        let n = ArgValue::U64(xs.len() as u64);
        run(self, target, grid[0], &mut [Arg::Buffer(&mut x), Arg::Buffer(&mut y), Arg::Scalar(n)]);
        values(&y)
    }
}
