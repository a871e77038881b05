//! ResNet-18 with this library alone: a batch of images is classified, and the net trained on it by SGD with momentum.
//!
//! `cargo run --release -p warpwright --example resnet -- [--batch N] [--steps N]`: on a GPU the net of the paper reads images of
//! 224 x 224 pixels in f32; without a GPU a narrow one runs in the emulator on images of 32 x 32. Weights, images and labels are
//! random. It prints the likeliest classes, the loss of each step, and times.

mod layers;
mod net;
mod sum;
#[cfg(test)]
mod tests;
mod training;

use std::error::Error;
use std::time::{Duration, Instant};

use warpwright::{DType, Device, Stream, Tensor, softmax};

use layers::Random;
use net::{ResNet, ResNetConfig};
use training::{Sgd, gradients};

const USAGE: &str = "usage: resnet [--batch N] [--steps N], from 1 to 4096";

/// The numbers of the command line.
struct Arguments {
    batch: Option<usize>,
    steps: usize,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut arguments = Self { batch: None, steps: 12 };
        while let Some(option) = words.next() {
            let number: Option<usize> = words.next().and_then(|word| word.parse().ok());
            match (option.as_str(), number.filter(|n| (1..=4096).contains(n))) {
                ("--batch", Some(batch)) => arguments.batch = Some(batch),
                ("--steps", Some(steps)) => arguments.steps = steps,
                _ => return Err(format!("`{option}`; {USAGE}").into()),
            }
        }
        Ok(arguments)
    }
}

/// How long `work` takes on the device.
fn timed<T>(
    stream: &Stream,
    work: impl FnOnce() -> Result<T, warpwright::Error>,
) -> Result<(T, Duration), warpwright::Error> {
    stream.synchronize()?;
    let start = Instant::now();
    let result = work()?;
    stream.synchronize()?;
    Ok((result, start.elapsed()))
}

/// The share of images whose likeliest class is the label.
fn accuracy(stream: &Stream, logits: &Tensor, labels: &[i64]) -> Result<f64, warpwright::Error> {
    let values = logits.to_vec_on::<f32>(stream)?;
    let rows = values.chunks(logits.shape()[1]).zip(labels);
    let right = rows.filter(|(row, label)| row.iter().all(|logit| *logit <= row[**label as usize])).count();
    Ok(right as f64 / labels.len() as f64)
}

/// Prints the three likeliest classes of each of the first images.
fn print_classes(stream: &Stream, logits: &Tensor, labels: &[i64]) -> Result<(), warpwright::Error> {
    let classes = logits.shape()[1];
    let odds = softmax(stream, logits, 1)?.to_vec_on::<f32>(stream)?;
    for (image, (odds, label)) in odds.chunks(classes).zip(labels).take(4).enumerate() {
        let mut order: Vec<usize> = (0..classes).collect();
        order.sort_by(|a, b| odds[*b].total_cmp(&odds[*a]));
        let top: Vec<String> = order.iter().take(3).map(|&i| format!("{i} ({:.3})", odds[i])).collect();
        println!("  image {image} of class {label}: {}", top.join(", "));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let device = Device::best();
    let stream = device.new_stream()?;
    let (config, side, batch) = if device.is_emulator() {
        (ResNetConfig::resnet18(8, 10), 32, 4)
    } else {
        (ResNetConfig::resnet18(64, 1000), 224, 32)
    };
    let batch = arguments.batch.unwrap_or(batch);

    let mut random = Random(1);
    let mut net = ResNet::new(&stream, config, &mut random)?;
    let images = random.tensor(&stream, DType::F32, &[batch, side, side, 3], 1.0)?;
    let labels: Vec<i64> = (0..batch).map(|image| (image * 7 % config.classes) as i64).collect();
    let of_labels = Tensor::from_slice_on(&stream, &labels, &[batch])?;
    let parameters: usize = net.parameters_mut().map(|parameter| parameter.value.len()).sum();
    println!("{}: {parameters} parameters, {batch} images of {side} x {side}", device.name());

    let sgd = Sgd::new(&stream, config.dtype, 0.02, 0.9)?;
    let mut losses = Vec::new();
    for step in 1..=arguments.steps {
        let (loss, time) = timed(&stream, || {
            let loss = gradients(&stream, &mut net, &images, &of_labels)?;
            sgd.update(&stream, net.parameters_mut())?;
            Ok(loss)
        })?;
        let loss = loss.to_vec_on::<f32>(&stream)?[0];
        println!("step {step:>2}: loss {loss:.4}, {:.1} ms", time.as_secs_f64() * 1e3);
        losses.push(loss);
    }
    if let [first, .., last] = losses[..] {
        println!("loss before the first step {first:.4}, before the last {last:.4}");
    }

    // Kernels are loaded before time is taken.
    net.infer(&stream, &images)?;
    let (logits, time) = timed(&stream, || net.infer(&stream, &images))?;
    let right = 100.0 * accuracy(&stream, &logits, &labels)?;
    println!("inference: {:.1} ms, {right:.0} % right", time.as_secs_f64() * 1e3);
    print_classes(&stream, &logits, &labels)?;
    Ok(())
}
