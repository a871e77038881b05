//! The numbers are right: in f64, in a net with a shortcut of either kind.

use warpwright::cross_entropy::{CrossEntropyOptions, cross_entropy};
use warpwright::{DType, Device, Error, Stream, Tensor};

use super::layers::{ConvNorm, ConvNormOutput, EPS, Parameter, Random};
use super::net::{ResNet, ResNetConfig};
use super::training::{Sgd, gradients};
use super::{Arguments, accuracy};

const TINY: ResNetConfig = ResNetConfig { dtype: DType::F64, width: 2, blocks: &[1, 1], classes: 3 };
const LABELS: [i64; 3] = [2, 0, 1];

/// A net and a batch of three images.
struct Case {
    stream: Stream,
    net: ResNet,
    images: Tensor,
    labels: Tensor,
}

impl Case {
    fn new(config: ResNetConfig) -> Result<Self, Error> {
        let stream = Device::best().new_stream()?;
        let mut random = Random(5);
        let net = ResNet::new(&stream, config, &mut random)?;
        let images = random.tensor(&stream, config.dtype, &[LABELS.len(), 12, 12, 3], 1.0)?;
        let labels = Tensor::from_slice_on(&stream, &LABELS, &[LABELS.len()])?;
        Ok(Self { stream, net, images, labels })
    }

    fn gradients(&mut self) -> Result<Tensor, Error> {
        gradients(&self.stream, &mut self.net, &self.images, &self.labels)
    }

    fn loss(&mut self) -> Result<f64, Error> {
        let logits = self.net.forward(&self.stream, &self.images)?.logits;
        let output = cross_entropy(&self.stream, &logits, &self.labels, CrossEntropyOptions::default())?;
        Ok(output.loss.to_vec_on::<f64>(&self.stream)?[0])
    }

    /// Adds `step` to element `at` of a parameter.
    fn shift(&mut self, parameter: usize, at: usize, step: f64) -> Result<(), Error> {
        for Parameter { value, .. } in self.net.parameters_mut().skip(parameter).take(1) {
            let mut values = value.to_vec_on::<f64>(&self.stream)?;
            values[at] += step;
            *value = Tensor::from_slice_on(&self.stream, &values, value.shape())?;
        }
        Ok(())
    }

    fn values(&mut self) -> Result<Vec<Vec<f64>>, Error> {
        let stream = &self.stream;
        let values = self.net.parameters_mut().map(|parameter| parameter.value.to_vec_on::<f64>(stream));
        Ok(values.collect::<Result<_, _>>()?)
    }
}

/// The gradients that the last backward pass left.
fn stored_gradients(case: &mut Case) -> Result<Vec<Vec<f64>>, Error> {
    let stream = &case.stream;
    let stored = case.net.parameters_mut().map(|parameter| {
        let gradient = parameter.gradient.as_ref().expect("every parameter has a gradient");
        assert_eq!(gradient.shape(), parameter.value.shape());
        gradient.to_vec_on::<f64>(stream)
    });
    Ok(stored.collect::<Result<_, _>>()?)
}

#[test]
fn gradients_are_differences_of_the_loss() -> Result<(), Error> {
    const STEP: f64 = 1e-5;
    const TOLERANCE: f64 = 1e-8;
    let mut case = Case::new(TINY)?;
    case.gradients()?;
    let (mut sizes, mut worst) = (Vec::new(), 0.0f64);
    for (parameter, gradients) in stored_gradients(&mut case)?.iter().enumerate() {
        let len = gradients.len();
        for at in [len / 3, len - 1] {
            case.shift(parameter, at, STEP)?;
            let above = case.loss()?;
            case.shift(parameter, at, -2.0 * STEP)?;
            let below = case.loss()?;
            case.shift(parameter, at, STEP)?;
            let (want, got) = ((above - below) / (2.0 * STEP), gradients[at]);
            let error = (got - want).abs();
            assert!(error < TOLERANCE, "parameter {parameter}, element {at}: {got} for {want}");
            sizes.push(got.abs());
            worst = worst.max(error);
        }
    }
    sizes.sort_by(f64::total_cmp);
    let median = sizes[sizes.len() / 2];
    println!("{} gradients, half of them above {median:.1e}, are off by at most {worst:.1e}", sizes.len());
    assert!(median > 1e5 * TOLERANCE, "gradients are far above the tolerance: {median}");
    Ok(())
}

/// Gives a unit the statistics of the batch that it last saw.
fn keep_statistics(stream: &Stream, unit: &mut ConvNorm, output: &ConvNormOutput) -> Result<(), Error> {
    let (Some(mean), Some(rstd)) = (&output.norm.mean, &output.norm.rstd) else { return Ok(()) };
    let var: Vec<f64> = rstd.to_vec_on::<f64>(stream)?.iter().map(|rstd| 1.0 / (rstd * rstd) - EPS).collect();
    unit.running_mean = mean.clone_on(stream)?;
    unit.running_var = Tensor::from_slice_on(stream, &var, rstd.shape())?;
    Ok(())
}

#[test]
fn inference_with_a_batch_s_statistics_is_training_s_forward_pass() -> Result<(), Error> {
    let Case { stream, mut net, images, .. } = Case::new(TINY)?;
    let of = net.forward(&stream, &images)?;
    keep_statistics(&stream, &mut net.stem, &of.stem)?;
    for (block, output) in net.blocks.iter_mut().zip(&of.blocks) {
        keep_statistics(&stream, &mut block.first, &output.first)?;
        keep_statistics(&stream, &mut block.second, &output.second)?;
        if let (Some(unit), Some(output)) = (&mut block.shortcut, &output.shortcut) {
            keep_statistics(&stream, unit, output)?;
        }
    }
    let got = net.infer(&stream, &images)?.to_vec_on::<f64>(&stream)?;
    let want = of.logits.to_vec_on::<f64>(&stream)?;
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() < 1e-11, "{got} for {want}");
    }
    Ok(())
}

#[test]
fn updates_are_those_of_sgd_with_momentum() -> Result<(), Error> {
    // Numbers that f32 and f64 have alike.
    let (rate, momentum) = (0.125, 0.75);
    let mut case = Case::new(TINY)?;
    let sgd = Sgd::new(&case.stream, DType::F64, rate, momentum)?;
    let (rate, momentum) = (f64::from(rate), f64::from(momentum));
    let mut want = case.values()?;
    let mut velocity: Vec<Vec<f64>> = want.iter().map(|values| vec![0.0; values.len()]).collect();
    for _ in 0..3 {
        case.gradients()?;
        let gradients = stored_gradients(&mut case)?;
        sgd.update(&case.stream, case.net.parameters_mut())?;
        for ((want, velocity), gradients) in want.iter_mut().zip(&mut velocity).zip(&gradients) {
            for ((want, velocity), gradient) in want.iter_mut().zip(velocity).zip(gradients) {
                *velocity = momentum * *velocity + gradient;
                *want -= rate * *velocity;
            }
        }
        for (got, want) in case.values()?.iter().flatten().zip(want.iter().flatten()) {
            assert!((got - want).abs() < 1e-13, "{got} for {want}");
        }
    }
    Ok(())
}

#[test]
fn a_batch_is_learned() -> Result<(), Error> {
    let mut case = Case::new(ResNetConfig { dtype: DType::F32, width: 4, ..TINY })?;
    let sgd = Sgd::new(&case.stream, DType::F32, 0.1, 0.9)?;
    let mut losses = Vec::new();
    for _ in 0..10 {
        losses.push(case.gradients()?.to_vec_on::<f32>(&case.stream)?[0]);
        sgd.update(&case.stream, case.net.parameters_mut())?;
    }
    assert!(losses[9] < 0.1 * losses[0], "{losses:?}");
    let logits = case.net.infer(&case.stream, &case.images)?;
    assert_eq!(accuracy(&case.stream, &logits, &LABELS)?, 1.0);
    Ok(())
}

#[test]
fn resnet18_has_as_many_parameters_as_the_paper_s() -> Result<(), Error> {
    let stream = Device::best().new_stream()?;
    let mut net = ResNet::new(&stream, ResNetConfig::resnet18(64, 1000), &mut Random(1))?;
    assert_eq!(net.parameters_mut().map(|parameter| parameter.value.len()).sum::<usize>(), 11_689_512);
    Ok(())
}

#[test]
fn bad_arguments_are_errors() {
    let parse = |line: &str| Arguments::parse(line.split_whitespace().map(str::to_owned));
    let arguments = parse("--batch 2 --steps 3").expect("right");
    assert_eq!((arguments.batch, arguments.steps), (Some(2), 3));
    for line in ["--batch", "--batch 0", "--batch 5000", "--steps x", "--step 1", "3"] {
        assert!(parse(line).is_err(), "{line}");
    }
}
