//! Trains an LSTM to predict the next character of a text, with this library alone, and lets it write.
//!
//! `cargo run --release --example char_lstm [TEXT]`: on a GPU two layers of 512 units read TEXT, by default a text that this
//! example makes; without a GPU a tiny net runs in the emulator. It prints bits per character on the way and a sample at the
//! end.

use std::error::Error;
use std::time::Instant;

use warpwright::cross_entropy::{CrossEntropyOptions, cross_entropy, cross_entropy_backward};
use warpwright::dsl::prelude::*;
use warpwright::matmul::{MatmulOptions, matmul};
use warpwright::recurrent::{OutputGradients, RecurrentInput, RecurrentOptions, State, Weights};
use warpwright::{Device, LaunchStep, Stream, Tensor, lstm, lstm_backward};

type Outcome<T> = Result<T, Box<dyn Error>>;

kernel_args! {
    /// A step of Adam; gradients are held to `[-1, 1]`.
    pub struct AdamArgs => AdamParams {
        gradient: In<f32>, weight: InOut<f32>, mean: InOut<f32>, square: InOut<f32>, n: u64, rate: f32,
    }
}

const MEAN_DECAY: f64 = 0.9;
const SQUARE_DECAY: f64 = 0.99;

struct Adam;

impl KernelDef for Adam {
    type Args = AdamArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("adam".to_owned(), BlockDim::x(256))
    }

    fn build<'k>(&self, k: K<'k>, p: AdamParams<'k>) {
        let at = k.global_idx_x();
        k.if_(at.lt(p.n), || {
            let gradient = p.gradient.at(at).get::<f32>().max(-1.0).min(1.0);
            let (mean, square) = (p.mean.at(at).get::<f32>(), p.square.at(at).get::<f32>());
            let mean = (mean - gradient).mul_add(MEAN_DECAY, gradient);
            let square = (square - gradient * gradient).mul_add(SQUARE_DECAY, gradient * gradient);
            p.mean.at(at).set(mean);
            p.square.at(at).set(square);
            p.weight.at(at).set(p.weight.at(at).get::<f32>() - p.rate * mean / (square.sqrt() + 1e-8));
        });
    }
}

/// A weight, and what Adam knows of it.
struct Weight {
    value: Tensor,
    mean: Tensor,
    square: Tensor,
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    /// Between 0 and 1.
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / 16_777_216.0
    }
}

struct Sizes {
    batch: usize,
    steps: usize,
    hidden: usize,
    layers: usize,
    updates: usize,
    rate: f32,
}

struct Model {
    stream: Stream,
    /// `w_ih`, `w_hh`, `b_ih` of each layer, then the weights of the characters, `[classes, hidden]`.
    weights: Vec<Weight>,
    classes: usize,
    sizes: Sizes,
}

impl Model {
    fn new(device: &Device, classes: usize, sizes: Sizes) -> Outcome<Self> {
        let mut random = Random(1);
        let Sizes { hidden, layers, .. } = sizes;
        let mut shapes = Vec::new();
        for layer in 0..layers {
            let input = if layer == 0 { classes } else { hidden };
            shapes.extend([vec![4 * hidden, input], vec![4 * hidden, hidden], vec![4 * hidden]]);
        }
        shapes.push(vec![classes, hidden]);
        let scale = 1.0 / (hidden as f32).sqrt();
        let mut weights = Vec::new();
        for shape in &shapes {
            let len = shape.iter().product();
            let values: Vec<f32> = (0..len).map(|_| (2.0 * random.next() - 1.0) * scale).collect();
            let zeros = || Tensor::zeros(device, DType::F32, shape);
            let value = Tensor::from_slice(device, &values, shape)?;
            weights.push(Weight { value, mean: zeros()?, square: zeros()? });
        }
        Ok(Self { stream: device.stream()?, weights, classes, sizes })
    }

    fn layers(&self) -> Vec<Weights<'_>> {
        let (layers, _) = self.weights.as_chunks::<3>();
        let of = layers.iter().map(|[w_ih, w_hh, b_ih]| Weights {
            w_ih: &w_ih.value,
            w_hh: &w_hh.value,
            w_hr: None,
            b_ih: Some(&b_ih.value),
            b_hh: None,
        });
        of.collect()
    }

    /// The characters `[steps][batch]` as vectors with a one each.
    fn one_hot(&self, codes: &[usize], batch: usize) -> Outcome<Tensor> {
        let mut values = vec![0.0f32; codes.len() * self.classes];
        for (row, code) in codes.iter().enumerate() {
            values[row * self.classes + code] = 1.0;
        }
        let shape = [codes.len() / batch, batch, self.classes];
        Ok(Tensor::from_slice(self.stream.device(), &values, &shape)?)
    }

    /// One update; the loss in bits per character.
    fn update(&mut self, codes: &[usize], next: &[i32]) -> Outcome<f32> {
        let (stream, hidden) = (&self.stream, self.sizes.hidden);
        let rows = codes.len();
        let x = self.one_hot(codes, self.sizes.batch)?;
        let layers = self.layers();
        let input = RecurrentInput::new(&x, &layers);
        let out = lstm(stream, &input)?;
        let plain = MatmulOptions::default();
        let Some(last) = self.weights.last() else { return Ok(0.0) };
        let logits = matmul(stream, &out.y, &last.value, MatmulOptions { transpose_b: true, ..plain })?
            .reshape(&[rows, self.classes])?;
        let target = Tensor::from_slice(stream.device(), next, &[rows])?;
        let options = CrossEntropyOptions::default();
        let loss = cross_entropy(stream, &logits, &target, options)?;
        let one = Tensor::from_slice(stream.device(), &[1.0f32], &[])?;
        let dlogits = cross_entropy_backward(stream, &logits, &target, &loss, &one, options)?;
        let shape = out.y.shape().to_vec();
        let dy = matmul(stream, &dlogits, &last.value, plain)?.reshape(&shape)?;
        let gradients = OutputGradients { dy: Some(&dy), ..OutputGradients::default() };
        let back = lstm_backward(stream, &input, &out, gradients)?;
        let y = out.y.reshape(&[rows, hidden])?;
        let mut all = Vec::new();
        for layer in back.weights {
            all.extend([Some(layer.w_ih), Some(layer.w_hh), layer.b_ih].into_iter().flatten());
        }
        all.push(matmul(stream, &dlogits, &y, MatmulOptions { transpose_a: true, ..plain })?);
        let bits = loss.loss.to_vec::<f32>()?[0] * std::f32::consts::LOG2_E;
        self.apply(&all)?;
        Ok(bits)
    }

    fn apply(&mut self, gradients: &[Tensor]) -> Outcome<()> {
        let kernel = record(&Adam, self.stream.device().target())?;
        for (weight, gradient) in self.weights.iter().zip(gradients) {
            let (n, rate) = (gradient.len() as u64, self.sizes.rate);
            let args = AdamArgs {
                gradient: In::slot(0),
                weight: InOut::slot(1),
                mean: InOut::slot(2),
                square: InOut::slot(3),
                n,
                rate,
            };
            let grid = [u32::try_from(n.div_ceil(256))?, 1, 1];
            let step = LaunchStep::new(kernel.clone(), grid, args.values());
            let tensors = [gradient, &weight.value, &weight.mean, &weight.square];
            self.stream.launch(&step, &tensors.map(Tensor::binding))?;
        }
        Ok(())
    }

    /// Writes `len` characters after `code`.
    fn write(&self, mut code: usize, len: usize) -> Outcome<Vec<usize>> {
        let mut random = Random(7);
        let layers = self.layers();
        let mut state: Option<(Tensor, Tensor)> = None;
        let mut written = Vec::new();
        for _ in 0..len {
            let x = self.one_hot(&[code], 1)?;
            let (h0, c0) = (state.as_ref().map(|s| &s.0), state.as_ref().map(|s| &s.1));
            let options = RecurrentOptions { inference: true, ..Default::default() };
            let input = RecurrentInput { x: &x, weights: &layers, state: State { h0, c0 }, options };
            let out = lstm(&self.stream, &input)?;
            let Some(last) = self.weights.last() else { break };
            let transposed = MatmulOptions { transpose_b: true, ..Default::default() };
            let logits = matmul(&self.stream, &out.y, &last.value, transposed)?;
            let odds: Vec<f32> = logits.to_vec::<f32>()?.iter().map(|logit| (1.3 * logit).exp()).collect();
            let mut left = random.next() * odds.iter().sum::<f32>();
            let chosen = odds.iter().position(|odds| {
                left -= odds;
                left < 0.0
            });
            code = chosen.unwrap_or(0);
            written.push(code);
            state = out.c_n.map(|c| (out.h_n, c));
        }
        Ok(written)
    }
}

/// Sums in words, which have a structure to be learned.
fn made_text() -> String {
    let names = ["nought", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    let pair = |a: usize| (0..5).map(move |b| format!("{} and {} is {}. ", names[a], names[b], names[a + b]));
    let all: String = (0..5).flat_map(pair).collect();
    all.repeat(40)
}

fn main() -> Outcome<()> {
    let text = std::env::args().nth(1).map_or_else(|| Ok(made_text()), std::fs::read_to_string)?;
    let mut letters: Vec<char> = text.chars().collect();
    letters.sort_unstable();
    letters.dedup();
    let codes: Vec<usize> = text.chars().filter_map(|c| letters.binary_search(&c).ok()).collect();
    let device = Device::best();
    let sizes = if device.is_emulator() {
        Sizes { batch: 4, steps: 12, hidden: 32, layers: 1, updates: 60, rate: 0.02 }
    } else {
        Sizes { batch: 4, steps: 100, hidden: 512, layers: 2, updates: 2000, rate: 0.001 }
    };
    let Sizes { batch, steps, updates, .. } = sizes;
    if codes.len() < steps + 2 {
        return Err("the text is too short".into());
    }
    println!("{}: {} characters, {} different", device.name(), codes.len(), letters.len());
    let mut model = Model::new(&device, letters.len(), sizes)?;
    let (mut random, start, mut mean, mut first) = (Random(3), Instant::now(), 0.0, None);
    for update in 1..=updates {
        let begin = |_| (random.next() * (codes.len() - steps - 1) as f32) as usize;
        let begins: Vec<usize> = (0..batch).map(begin).collect();
        let at = |step: usize| begins.iter().map(move |begin| begin + step);
        let x: Vec<usize> = (0..steps).flat_map(at).map(|at| codes[at]).collect();
        let next: Vec<i32> =
            (1..=steps).flat_map(at).map(|at| i32::try_from(codes[at])).collect::<Result<_, _>>()?;
        let bits = model.update(&x, &next)?;
        first.get_or_insert(bits);
        mean = if update == 1 { bits } else { 0.95 * mean + 0.05 * bits };
        if update % (updates / 10) == 0 {
            let seconds = start.elapsed().as_secs_f64();
            println!("update {update:>5}: {mean:.3} bits per character, {seconds:.1} s");
        }
    }
    if let Some(first) = first {
        assert!(mean < first, "the loss falls: {mean} bits after {first}");
    }
    let sample = model.write(codes[0], 120)?;
    println!("{}", sample.into_iter().map(|code| letters[code]).collect::<String>());
    Ok(())
}
