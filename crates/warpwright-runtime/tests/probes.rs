//! Behavior that PTX leaves open and a device was asked for: the kernels of `probes/`, and digests of what an H200 answered in
//! `probes/answers.txt`. The emulator has to give the same bits, and so has a GPU of compute capability 9.0, if there is
//! one; with `WARPWRIGHT_RECORD=FILE` its answers are written to a file.

use std::fmt::Write;

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{
    TensorElement, TensorFill, TensorInterleave, TensorMap, TensorMode, TensorSwizzle, text,
};
use warpwright_runtime::{ArgValue, Buffer, Device, LaunchStep};

const WGMMA: &str = include_str!("probes/wgmma.ptx");

/// Named digests.
type Answers = Vec<(String, u64)>;

struct Asker {
    device: Device,
    answers: Answers,
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }
}

/// FNV-1a.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01B3))
}

fn bytes_of(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

impl Asker {
    fn buffer(&self, data: &[u8]) -> Buffer {
        let mut buffer = self.device.alloc(data.len() as u64).expect("memory");
        buffer.write(0, data).expect("inside the buffer");
        buffer
    }

    /// Runs a kernel whose first parameters are the addresses of buffers; gives the first.
    fn run(&self, kernel: &Kernel, launch: (u32, u32), buffers: &[Buffer], more: Vec<ArgValue>) -> Vec<u8> {
        let stream = self.device.stream().expect("a stream");
        let mut args: Vec<ArgValue> = buffers.iter().map(|b| ArgValue::U64(b.address())).collect();
        args.extend(more);
        self.go(kernel, launch, &buffers[0], args, &stream)
    }

    fn go(
        &self,
        kernel: &Kernel,
        (grid, block): (u32, u32),
        out: &Buffer,
        args: Vec<ArgValue>,
        stream: &warpwright_runtime::Stream,
    ) -> Vec<u8> {
        let step = LaunchStep::new(kernel.clone(), [grid, 1, 1], args).with_block([block, 1, 1]);
        if let Err(error) = stream.launch(&step, &[]).and_then(|()| stream.synchronize()) {
            panic!("{}: {error}", kernel.name());
        }
        let mut data = vec![0; out.bytes() as usize];
        out.read(0, &mut data).expect("inside the buffer");
        data
    }

    fn note(&mut self, name: String, data: &[u8]) {
        self.answers.push((name, digest(data)));
    }
}

/// The kernels of a module, each as a module of its own.
fn kernels(source: &str) -> Vec<Kernel> {
    let module = text::parse(source).module;
    let one = |i: usize| {
        let mut module = module.clone();
        module.functions = vec![module.functions.swap_remove(i)];
        Kernel::new(module).unwrap_or_else(|e| panic!("{e}"))
    };
    (0..module.functions.len()).map(one).collect()
}

/// Bits of exponent and mantissa of a type.
fn format(ty: &str) -> (u32, u32) {
    match ty {
        "f16" => (5, 10),
        "bf16" => (8, 7),
        "tf32" => (8, 10),
        "e4m3" => (4, 3),
        "e5m2" => (5, 2),
        _ => (8, 23),
    }
}

const CLASSES: [&str; 6] = ["near", "wide", "any", "special", "small", "sparse"];

/// The bits of an operand's element.
fn element(random: &mut Random, ty: &str, class: &str, operand: char) -> u32 {
    let (e, m) = format(ty);
    let (bias, top) = ((1i64 << (e - 1)) - 1, (1i64 << e) - 1);
    let last = if ty == "e4m3" { top } else { top - 1 };
    let (low, high) = match class {
        "near" => (bias - 2, bias + 2),
        "wide" if operand == 'c' => (bias - 14, bias + 14),
        "wide" => (bias - 6, bias + 6),
        "any" => (0, last),
        "small" if operand == 'b' && e == 8 => (bias - 8, bias + 8),
        "small" => (0, 2),
        _ => (bias - 3, bias + 3),
    };
    let (low, high) = (low.max(0), high.min(last));
    let field = (low + random.below((high - low + 1) as u64) as i64) as u32;
    let mantissa = random.below(1 << m) as u32;
    let sign = (random.below(2) as u32) << (e + m);
    let infinity = (top as u32) << m;
    let magnitude = match (class, random.below(60)) {
        ("special", 0) if ty == "e4m3" => infinity | 7,
        ("special", 0) => infinity,
        ("special", 1) => infinity | mantissa.max(1),
        ("special", 2 | 3) => 0,
        ("special", 4) => mantissa,
        ("sparse", 0..45) => 0,
        _ => field << m | mantissa,
    };
    let nan = ty == "e4m3" && class != "special" && magnitude == 0x7F;
    let bits = sign | if nan { magnitude - 1 } else { magnitude };
    if ty == "tf32" { bits << 13 | random.below(1 << 13) as u32 } else { bits }
}

/// Words full of elements.
fn operand(random: &mut Random, words: usize, ty: &str, class: &str, operand: char) -> Vec<u8> {
    let bits = match ty {
        "e4m3" | "e5m2" => 8,
        "f16" | "bf16" => 16,
        _ => 32,
    };
    bytes_of(
        (0..words).map(|_| {
            (0..32 / bits).fold(0, |word, i| word | element(random, ty, class, operand) << (i * bits))
        }),
    )
}

impl Asker {
    /// Products of random fragments. `lanes` in a block, `b` words of B in a block.
    fn products(&mut self, prefix: &str, source: &str, lanes: usize) {
        const BLOCKS: usize = 16;
        for (kernel, text) in kernels(source).iter().zip(source.split(".visible .entry ").skip(1)) {
            let count = |register: &str| text.matches(&format!("ld.global.b32 %{register}")).count();
            let (a, b, d) = (count("a"), count("b"), count("d"));
            let b = if b == 0 { 64 } else { b * lanes };
            let words: Vec<&str> = kernel.name().split('_').collect();
            let second = if words.get(1).is_some_and(|w| w.starts_with('e')) { words[1] } else { words[0] };
            let sums = if words.last() == Some(&"h") { "f16" } else { "f32" };
            for class in CLASSES {
                let name = format!("{prefix} {} {class}", kernel.name());
                let random = &mut Random(digest(name.as_bytes()));
                let a = operand(random, BLOCKS * lanes * a, words[0], class, 'a');
                let b = operand(random, BLOCKS * b, second, class, 'b');
                let c = operand(random, BLOCKS * lanes * d, sums, class, 'c');
                let buffers = [vec![0; c.len()], a, b, c].map(|data| self.buffer(&data));
                let out = self.run(kernel, (BLOCKS as u32, lanes as u32), &buffers, vec![]);
                self.note(name, &out);
            }
        }
    }

    fn elections(&mut self, source: &str) {
        let masks =
            [u32::MAX, 1 << 31, 0xFFFF_FFF0, 0x00FF_0F00, 0x5555_5550, 0xAAAA_AAAA, 0x1000_0001, 0xFFFF_FFFE];
        let buffers = [vec![0; 8 * 32 * masks.len()], bytes_of(masks)].map(|data| self.buffer(&data));
        let out = self.run(&kernels(source)[0], (1, 32 * masks.len() as u32), &buffers, vec![]);
        self.note("elect".to_owned(), &out);
    }

    fn boxes(&mut self, source: &str) {
        let kernel = &kernels(source)[0];
        let image = self.buffer(&bytes_of(0..64 * 64));
        let swizzles = [
            (TensorSwizzle::None, 128),
            (TensorSwizzle::B32, 32),
            (TensorSwizzle::B64, 64),
            (TensorSwizzle::B128, 128),
        ];
        for (swizzle, span) in swizzles {
            for inner in [16, 32, 64, 128].into_iter().filter(|inner| *inner <= span) {
                for (start, x, y) in [(0, 0, 0), (128, 4, 3), (1024, 60, 0), (0, -4, -2), (256, 0, 62)] {
                    let map = TensorMap {
                        base: image.address(),
                        element: TensorElement::U32,
                        dims: vec![64, 64],
                        strides: vec![256],
                        mode: TensorMode::Tiled { box_dims: vec![inner / 4, 8] },
                        element_strides: vec![1, 1],
                        interleave: TensorInterleave::None,
                        swizzle,
                        fill: TensorFill::Zero,
                    };
                    let out = self.buffer(&[0; 4100]);
                    let args = vec![
                        ArgValue::TensorMap { map: Box::new(map), slot: None },
                        ArgValue::U64(out.address()),
                        ArgValue::U32(8 * inner),
                        ArgValue::U32(start),
                        ArgValue::S32(x),
                        ArgValue::S32(y),
                    ];
                    let stream = self.device.stream().expect("a stream");
                    let data = self.go(kernel, (1, 128), &out, args, &stream);
                    self.note(format!("box {swizzle:?} {inner} at {start} from {x},{y}"), &data);
                }
            }
        }
    }

    fn descriptors(&mut self, source: &str) {
        let random = &mut Random(7);
        let image = operand(random, 8192, "f16", "near", 'b');
        for kernel in kernels(source) {
            for (mode, pattern) in [(0u64, 16), (3, 256), (2, 512), (1, 1024)] {
                for (leading, stride) in [(256u64, 2048u64), (2048, 256), (1024, 1024)] {
                    for (start, base) in [(0u64, 0u64), (128, 1), (256, 0), (512, 4), (32, 0), (1024, 7)] {
                        // Without a swizzle there is nothing for the base to shift. Layouts repeat with the pattern.
                        if mode == 0 && base != 0 || leading % pattern != 0 || stride % pattern != 0 {
                            continue;
                        }
                        let bits =
                            start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | base << 49 | mode << 62;
                        let buffers = [vec![0; 32 * 512], image.clone()].map(|data| self.buffer(&data));
                        let out = self.run(&kernel, (1, 128), &buffers, vec![ArgValue::U64(bits)]);
                        let name = kernel.name();
                        self.note(
                            format!("{name} pattern {pattern} {leading} {stride} at {start} base {base}"),
                            &out,
                        );
                    }
                }
            }
        }
    }
}

fn ask(device: Device) -> Answers {
    let mut asker = Asker { device, answers: Vec::new() };
    asker.products("mma", include_str!("probes/mma.ptx"), 32);
    asker.products("wgmma", WGMMA, 128);
    asker.elections(include_str!("probes/elect.ptx"));
    asker.boxes(include_str!("probes/tma_box.ptx"));
    asker.descriptors(include_str!("probes/wgmma_b.ptx"));
    asker.answers
}

fn text_of(answers: &Answers) -> String {
    answers.iter().fold(String::new(), |mut text, (name, digest)| {
        writeln!(text, "{digest:016x} {name}").expect("text grows");
        text
    })
}

fn compare(who: &str, answers: &Answers) {
    let (got, want) = (text_of(answers), include_str!("probes/answers.txt"));
    assert_eq!(got.lines().count(), want.lines().count(), "{who}");
    let wrong: Vec<&str> = got.lines().zip(want.lines()).filter(|(a, b)| a != b).map(|(a, _)| a).collect();
    assert!(
        wrong.is_empty(),
        "{who} differs in {} of {} answers:\n{}",
        wrong.len(),
        answers.len(),
        wrong.join("\n")
    );
}

#[test]
fn the_emulator_answers_as_the_device_did() {
    compare("the emulator", &ask(Device::emulator()));
}

#[test]
fn a_device_answers_as_it_did() {
    let device = match Device::cuda(0) {
        Ok(device) if text::parse(WGMMA).module.target.runs_on(device.sm()) => device,
        _ => {
            println!("skipped: no CUDA device of compute capability 9.0");
            return;
        }
    };
    let answers = ask(device);
    if let Some(file) = std::env::var_os("WARPWRIGHT_RECORD") {
        std::fs::write(file, text_of(&answers)).expect("a file that can be written");
        return;
    }
    compare("the device", &answers);
}
