//! Times attention of one or a few queries, the last of a causal sequence, and many keys with every kernel that there is for it, in
//! microseconds and TB/s with cold caches: 32 heads of 128 elements, 8 of keys, bf16, and keys and values of that type or of e4m3.
//!
//!     cargo run --release -p warpwright-timing --bin decode_time [-- [e4m3] BATCH,KEYS[,QUERIES] ...]
//!
//! `-- text DIRECTORY` writes the kernels' PTX instead.

use warpwright::attention::tuning::{self, DecodeConfig, DecodeTma};
use warpwright::attention::{Algorithm, AttentionDesc, AttentionOptions, CacheScale, Float8Cache};
use warpwright::plan::{Access, Layout};
use warpwright::{DType, Device, Error, Operation, Plan, Stream, Target, Tensor};

const HEADS: usize = 32;
const KEY_HEADS: usize = 8;
const WIDTH: usize = 128;
/// Batch, keys and queries.
const CASES: [[usize; 3]; 8] = [
    [1, 8192, 1],
    [1, 65536, 1],
    [32, 8192, 1],
    [8, 65536, 1],
    [1, 65536, 4],
    [1, 65536, 8],
    [1, 65536, 16],
    [32, 8192, 8],
];
/// Memory that is read in front of a launch, so that nothing of its keys is in the caches and the host is far ahead.
const FLUSH: [usize; 3] = [1, 131_072, 1];
const SAMPLES: usize = 21;
/// A prime number: no two heads are alike.
const PERIOD: usize = 1_000_003;

/// Normal numbers of 16 bits, in a fixed order, that come again after a while.
fn normal(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0
    };
    let mut out = Vec::with_capacity(2 * len);
    while out.len() < 2 * PERIOD.min(len) {
        let (radius, angle) = ((-2.0 * uniform().max(1e-7).ln()).sqrt(), std::f32::consts::TAU * uniform());
        let bits = (radius * angle.cos()).to_bits() + 0x8000;
        out.extend_from_slice(&((bits >> 16) as u16).to_le_bytes());
    }
    while out.len() < 2 * len {
        let more = out.len().min(2 * len - out.len());
        out.extend_from_within(..more);
    }
    out
}

/// Numbers of bf16 as e4m3.
fn as_e4m3(bytes: &[u8]) -> Vec<u8> {
    let value = |x: &[u8]| f64::from(f32::from_bits(u32::from(u16::from_le_bytes([x[0], x[1]])) << 16));
    bytes.chunks_exact(2).map(|x| warpwright::ptx::float8::e4m3_bits(value(x))).collect()
}

/// Keys and values of `cache`, `[batch, keys, heads, head_dim]` or `[batch, heads, keys, head_dim]`.
fn desc(cache: DType, [batch, keys, queries]: [usize; 3], heads_first: bool) -> AttentionDesc {
    let q = Layout::contiguous([batch, queries, HEADS, WIDTH]);
    let mut k = Layout::contiguous([batch, keys, KEY_HEADS, WIDTH]);
    if heads_first {
        let of_head = (keys * WIDTH) as i64;
        k.strides = [KEY_HEADS as i64 * of_head, WIDTH as i64, of_head, 1];
    }
    let scales = Float8Cache { k_scale: CacheScale::PerTensor, v_scale: CacheScale::PerTensor };
    let float8 = cache.is_float8().then_some(scales);
    let options = AttentionOptions { causal: queries > 1, float8, ..AttentionOptions::default() };
    AttentionDesc { dtype: DType::BF16, q, k, v: k, o: q, options }
}

/// The plan that tuning chooses, and those with each layout of blocks and numbers of parts for which all multiprocessors have
/// something to do.
fn plans(desc: &AttentionDesc, target: Target) -> Vec<Plan<AttentionDesc>> {
    let mut all: Vec<_> = desc.plan(target).into_iter().collect();
    let float8 = desc.options.float8.is_some();
    let cache = if float8 { DType::F8E4M3 } else { desc.dtype };
    let rows = (desc.q.shape[1] * HEADS / KEY_HEADS) as u64;
    // What has fewer rows goes over the keys several times.
    let all_rows = [16, 32, 64, 128].into_iter().filter(|some| *some < rows).chain([rows]);
    let streams = all_rows.flat_map(|rows| tuning::tma_layouts(cache, target, rows, WIDTH, usize::MAX));
    // Of e4m3, others that fit.
    let [width, slabs] = [WIDTH as u32, 1];
    let further = [(8, 3, 32), (8, 6, 16), (4, 3, 64), (4, 3, 32), (4, 4, 32)];
    let further = further.map(|(warps, stages, columns)| DecodeTma { warps, slabs, stages, columns, width });
    let further = further.into_iter().filter(|_| float8 && rows <= 16);
    let streams = streams.chain(further).map(DecodeConfig::Tma);
    let without = tuning::decode_configs(cache, target, WIDTH, 8).into_iter().take(1);
    for config in streams.chain(without) {
        for splits in [1, 2, 4, 8, 16, 32] {
            let blocks = desc.q.shape[0] * KEY_HEADS * splits;
            if (96..=264).contains(&blocks) {
                all.extend(
                    desc.plan_with(target, Algorithm::Decode { layout: config, splits: splits as u32 }),
                );
            }
        }
    }
    all
}

/// A plan with its tensors.
struct Ready<'t> {
    plan: Plan<AttentionDesc>,
    inputs: [&'t Tensor; 3],
    own: Vec<Tensor>,
}

impl<'t> Ready<'t> {
    fn new(device: &Device, plan: Plan<AttentionDesc>, inputs: [&'t Tensor; 3]) -> Result<Self, Error> {
        let tensor = |spec: &warpwright::plan::TensorSpec| match spec.access {
            // Scales.
            Access::Read => Tensor::from_slice(device, &vec![1.0f32; spec.len], &[spec.len]),
            Access::Write => Tensor::empty(device, spec.dtype, &[spec.len]),
        };
        let own = plan.tensors().iter().skip(inputs.len()).map(tensor).collect::<Result<_, _>>()?;
        plan.warm_up(device)?;
        Ok(Self { plan, inputs, own })
    }

    fn launch(&self, stream: &Stream) -> Result<(), Error> {
        let bindings: Vec<_> = self.inputs.into_iter().chain(&self.own).map(Tensor::binding).collect();
        self.plan.steps().iter().try_for_each(|step| Ok(stream.launch(step, &bindings)?))
    }

    fn result(&self) -> Result<Vec<f64>, Error> {
        let written =
            self.plan.tensors().iter().skip(self.inputs.len()).map(|spec| spec.access == Access::Write);
        let Some((_, o)) = written.zip(&self.own).find(|(written, _)| *written) else {
            return Ok(Vec::new());
        };
        let value = |x: &[u8]| f64::from(f32::from_bits(u32::from(u16::from_le_bytes([x[0], x[1]])) << 16));
        Ok(o.to_bytes()?.chunks_exact(2).map(value).collect())
    }

    fn name(&self) -> String {
        let steps = self.plan.steps();
        let first = steps.first().map_or(String::new(), |s| format!("{} {:?}", s.kernel().name(), s.grid()));
        format!("{first}, {} launches", steps.len())
    }
}

/// Microseconds, the median of a few.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    let error: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    (error / a.iter().map(|a| a * a).sum::<f64>()).sqrt()
}

fn texts(directory: &str) -> std::io::Result<()> {
    let of_types =
        [DType::BF16, DType::F8E4M3].map(|cache| plans(&desc(cache, CASES[0], false), Target::sm(90)));
    for plan in of_types.iter().flatten() {
        for step in plan.steps() {
            let to = format!("{directory}/{}.ptx", step.kernel().name());
            std::fs::write(to, step.kernel().text().as_bytes())?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [what, directory] = &arguments[..]
        && what == "text"
    {
        if let Err(error) = texts(directory) {
            println!("{directory}: {error}");
        }
        return Ok(());
    }
    let asked = arguments.iter().filter(|arg| *arg != "e4m3").filter_map(|arg| {
        let mut parts: Vec<usize> = arg.split(',').filter_map(|part| part.parse().ok()).collect();
        parts.resize(parts.len().max(3), 1);
        parts.try_into().ok()
    });
    let mut cases: Vec<[usize; 3]> = asked.collect();
    if cases.is_empty() {
        cases = CASES.to_vec();
    }
    let cache = if arguments.iter().any(|arg| arg == "e4m3") { DType::F8E4M3 } else { DType::BF16 };
    let device = Device::best();
    let (stream, target) = (device.stream()?, device.target());
    println!("{}, {target}", device.name());
    let most = cases.iter().map(|[batch, keys, _]| batch * keys).max().unwrap_or(0);
    let queries = cases.iter().map(|[batch, _, queries]| batch * queries).max().unwrap_or(0);
    let bytes = normal(most * KEY_HEADS * WIDTH);
    let bytes = if cache.is_float8() { as_e4m3(&bytes) } else { bytes };
    let tensor = |len: usize| Tensor::from_bytes(&device, cache, &bytes[..cache.bytes() * len], &[len]);
    let (k, v) = (tensor(most * KEY_HEADS * WIDTH)?, tensor(most * KEY_HEADS * WIDTH)?);
    let others = tensor(FLUSH[1].min(most) * KEY_HEADS * WIDTH)?;
    let bytes = normal(queries.max(1) * HEADS * WIDTH);
    let q = Tensor::from_bytes(&device, DType::BF16, &bytes, &[bytes.len() / 2])?;
    // The emulator has no caches.
    let flush = if most < FLUSH[1] { [1, 16, 1] } else { FLUSH };
    let flush = Ready::new(&device, desc(cache, flush, false).plan(target)?, [&q, &others, &others])?;
    for case in cases {
        for heads_first in [false, true] {
            let bytes = (2 * cache.bytes() * case[0] * case[1] * KEY_HEADS * WIDTH) as f64;
            println!("{case:?}, heads first: {heads_first}, {:.1} us at 4.6 TB/s", bytes / 4.6e6);
            let desc = desc(cache, case, heads_first);
            let ready = plans(&desc, target).into_iter().map(|plan| Ready::new(&device, plan, [&q, &k, &v]));
            let ready: Vec<Ready<'_>> = ready.collect::<Result<_, _>>()?;
            let mut times = vec![Vec::new(); ready.len()];
            for _ in 0..SAMPLES {
                for (ready, times) in ready.iter().zip(&mut times) {
                    for _ in 0..2 {
                        flush.launch(&stream)?;
                    }
                    let start = stream.record()?;
                    ready.launch(&stream)?;
                    let end = stream.record()?;
                    stream.synchronize()?;
                    times.extend(start.elapsed_us(&end)?);
                }
            }
            let first = ready.first().map_or(Ok(Vec::new()), Ready::result)?;
            for (ready, times) in ready.iter().zip(times) {
                let (us, apart) = (median(times), distance(&first, &ready.result()?));
                println!("{us:9.2} us {:6.3} TB/s {apart:.1e}  {}", bytes / us / 1e6, ready.name());
            }
        }
    }
    Ok(())
}
