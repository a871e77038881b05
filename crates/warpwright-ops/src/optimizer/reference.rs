//! The definitions in f64.

use super::{BLOCK, OptimizerDesc, Rule};
use crate::dynamic_map::{MIN_ABSMAX, Map, midpoints};
use crate::plan::Real;

/// A parameter with its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The parameter.
    pub param: Vec<f64>,
    /// First moment, or momentum.
    pub first: Vec<f64>,
    /// Second moment.
    pub second: Vec<f64>,
    /// The largest second moment so far.
    pub largest: Vec<f64>,
}

/// The magnitudes of the numbers that the new elements are sums of, whose roundings they carry.
#[derive(Clone, Copy, Debug)]
pub struct Scales {
    /// Of the parameter.
    pub param: f64,
    /// Of the first moment, or the momentum.
    pub first: f64,
    /// Of the second moment.
    pub second: f64,
    /// How far the parameter moves for a relative change of the powers of the betas, which are subtracted from 1.
    pub corrections: f64,
}

/// Step number `step`, from 1, of a parameter by `grad`, as `torch.optim` documents its algorithms.
pub fn step(
    desc: &OptimizerDesc,
    x: &mut Parameter,
    grad: &[f64],
    step: i32,
    lr: f64,
    grad_scale: f64,
) -> Vec<Scales> {
    let sign = if desc.maximize { -1.0 } else { 1.0 };
    let mut scales = Vec::with_capacity(grad.len());
    for (i, g) in grad.iter().enumerate() {
        let mut p = x.param[i];
        let mut g = sign * g / grad_scale;
        let mut g_scale = g.abs();
        let decay = desc.rule.weight_decay();
        if desc.rule.is_decoupled() {
            p -= lr * decay * p;
        } else {
            g += decay * p;
            g_scale += (decay * p).abs();
        }
        let p_scale = x.param[i].abs();
        let scale = match desc.rule {
            Rule::Adam(adam) => {
                let [beta1, beta2] = adam.betas.map(Real::get);
                let first = beta1 * x.first[i].abs() + (1.0 - beta1) * g_scale;
                let second = beta2 * x.second[i] + (1.0 - beta2) * g_scale * g_scale;
                x.first[i] = beta1 * x.first[i] + (1.0 - beta1) * g;
                x.second[i] = beta2 * x.second[i] + (1.0 - beta2) * g * g;
                // NaN stays.
                x.largest[i] = if x.second[i] <= x.largest[i] { x.largest[i] } else { x.second[i] };
                let root = if adam.amsgrad { x.largest[i] } else { x.second[i] };
                let [left1, left2] = [beta1, beta2].map(|beta| 1.0 - beta.powi(step));
                let denominator = root.sqrt() / left2.sqrt() + adam.eps.get();
                let moved = |first: f64| lr / left1 * first / denominator;
                x.param[i] = p - moved(x.first[i]);
                let spread = if second > root { second / root } else { 1.0 };
                let param = p_scale + moved(first) * spread;
                let corrections = moved(first) * 4.0 * (1.0 / left1 + 1.0 / left2);
                Scales { param, first, second, corrections }
            }
            Rule::Sgd(sgd) => {
                let momentum = sgd.momentum.get();
                let mut first = 0.0;
                if momentum != 0.0 {
                    let [kept, added] =
                        if step == 1 { [0.0, 1.0] } else { [momentum, 1.0 - sgd.dampening.get()] };
                    first = kept * x.first[i].abs() + added * g_scale;
                    x.first[i] = if step == 1 { g } else { kept * x.first[i] + added * g };
                    g = if sgd.nesterov { g + momentum * x.first[i] } else { x.first[i] };
                    g_scale = if sgd.nesterov { g_scale + momentum * first } else { first };
                }
                x.param[i] = p - lr * g;
                Scales { param: p_scale + lr * g_scale, first, second: 0.0, corrections: 0.0 }
            }
        };
        scales.push(scale);
    }
    scales
}

/// A moment in 8 bits.
#[derive(Clone, Debug, PartialEq)]
pub struct EightBitMoment {
    /// The codes.
    pub codes: Vec<u8>,
    /// The largest magnitude of each block.
    pub absmax: Vec<f32>,
}

impl EightBitMoment {
    /// The moment, by `map`.
    pub fn values(&self, map: Map) -> Vec<f64> {
        let (values, absmax) = (map.values(), &self.absmax);
        let value =
            |(i, code): (usize, &u8)| f64::from(values[usize::from(*code)]) * f64::from(absmax[i / BLOCK]);
        self.codes.iter().enumerate().map(value).collect()
    }

    /// The codes of a moment, and what their maxima are before they are rounded.
    pub fn of(map: Map, moment: &[f64]) -> (Self, Vec<f64>) {
        let (mut codes, mut exact) = (Vec::with_capacity(moment.len()), Vec::new());
        for block in moment.chunks(BLOCK) {
            let absmax = block.iter().fold(0.0, |most: f64, x| most.max(x.abs())).min(f32::MAX.into());
            let divisor = absmax.max(MIN_ABSMAX.into());
            codes.extend(block.iter().map(|x| eight_bit_code(map, x / divisor)));
            exact.push(absmax);
        }
        (Self { codes, absmax: exact.iter().map(|absmax| *absmax as f32).collect() }, exact)
    }
}

/// The code of a moment over the maximum of its block: that of the nearest entry, and for one below 0 of an entry below 0.
pub fn eight_bit_code(map: Map, t: f64) -> u8 {
    let bounds = midpoints(&map.values());
    // 255 at most.
    let nearest = bounds.partition_point(|bound| t > f64::from(*bound)) as u8;
    let below_zero = bounds.partition_point(|bound| *bound < 0.0) as u8 - u8::from(map == Map::Signed);
    if t < 0.0 { nearest.min(below_zero) } else { nearest }
}

/// Step number `step`, from 1, of Adam or AdamW with moments in 8 bits: the scales of the new elements, and the new moments before they become
/// codes.
pub fn step_eight_bit(
    desc: &OptimizerDesc,
    param: &mut Vec<f64>,
    moments: [&EightBitMoment; 2],
    grad: &[f64],
    (step, lr, grad_scale): (i32, f64, f64),
) -> (Vec<Scales>, [Vec<f64>; 2]) {
    let [first, second] = [moments[0].values(Map::Signed), moments[1].values(Map::Unsigned)];
    let mut x = Parameter { largest: vec![0.0; param.len()], param: std::mem::take(param), first, second };
    let sign = if desc.maximize { -1.0 } else { 1.0 };
    let finite = |(g, p): (&f64, &f64)| {
        let added = if desc.rule.is_decoupled() { 0.0 } else { desc.rule.weight_decay() * p };
        if (sign * g / grad_scale + added).abs() <= f64::from(f32::MAX) {
            *g
        } else {
            // Nothing is left of the gradient.
            -added * grad_scale * sign
        }
    };
    let grad: Vec<f64> = grad.iter().zip(&x.param).map(finite).collect();
    let scales = self::step(desc, &mut x, &grad, step, lr, grad_scale);
    *param = x.param;
    (scales, [x.first, x.second])
}

#[cfg(test)]
mod tests {
    use warpwright_ptx::DType;

    use super::super::{Adam, Sgd};
    use super::*;
    use crate::plan::Real;

    fn desc(rule: Rule) -> OptimizerDesc {
        let (maximize, master, grad_scale, found_inf) = (false, false, false, false);
        let (dtype, grad_dtype, lens) = (DType::F64, DType::F64, vec![1]);
        OptimizerDesc {
            rule,
            maximize,
            dtype,
            grad_dtype,
            master,
            grad_scale,
            found_inf,
            lens,
            eight_bit: Vec::new(),
        }
    }

    fn steps(rule: Rule, grads: &[f64]) -> Vec<f64> {
        let zero = || vec![0.0];
        let mut x = Parameter { param: vec![1.0], first: zero(), second: zero(), largest: zero() };
        let mut all = Vec::new();
        for (number, grad) in (1..).zip(grads) {
            step(&desc(rule), &mut x, &[*grad], number, 0.1, 1.0);
            all.push(x.param[0]);
        }
        all
    }

    fn near(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-7), "{got:?}, not {want:?}");
    }

    #[test]
    fn a_first_step_of_adam_is_the_learning_rate() {
        near(&steps(Rule::Adam(Adam::ADAM), &[3.0, 3.0]), &[0.9, 0.8]);
        near(&steps(Rule::Adam(Adam::ADAM), &[-1e3]), &[1.1]);
        near(&steps(Rule::Adam(Adam::ADAMW), &[3.0]), &[0.999 - 0.1]);
    }

    #[test]
    fn the_largest_second_moment_shortens_steps() {
        let betas = [Real::new(0.0), Real::new(0.0)];
        let plain = Adam { betas, ..Adam::ADAM };
        near(&steps(Rule::Adam(plain), &[4.0, 1.0]), &[0.9, 0.8]);
        near(&steps(Rule::Adam(Adam { amsgrad: true, ..plain }), &[4.0, 1.0]), &[0.9, 0.875]);
    }

    /// Moments keep their signs and their order, and a step by them is one by those in f64 within what a code is off.
    #[test]
    fn moments_in_8_bits_are_nearly_those_in_f64() {
        assert_eq!(eight_bit_code(Map::Signed, -1e-9), 126);
        assert_eq!([0.0, 1e-9, 1.0].map(|t| eight_bit_code(Map::Signed, t)), [127, 127, 255]);
        assert_eq!([0.0, 1e-9, 1.0].map(|t| eight_bit_code(Map::Unsigned, t)), [0, 0, 255]);
        let len = 600;
        let desc = OptimizerDesc { lens: vec![len], ..desc(Rule::Adam(Adam::ADAM)) };
        let (zeros, values) = (vec![0.0; len], (0..len).map(|i| (i as f64).sin()).collect::<Vec<_>>());
        let mut exact =
            Parameter { param: values.clone(), first: zeros.clone(), second: zeros.clone(), largest: zeros };
        let mut param = values;
        let empty = EightBitMoment { codes: vec![0; len], absmax: vec![0.0; 3] };
        let mut moments = [empty.clone(), empty];
        for number in 1..20 {
            let grad: Vec<f64> = (0..len).map(|i| ((i * number) as f64).cos()).collect();
            step(&desc, &mut exact, &grad, number as i32, 0.01, 1.0);
            let [first, second] = &moments;
            let (_, new) =
                step_eight_bit(&desc, &mut param, [first, second], &grad, (number as i32, 0.01, 1.0));
            moments =
                [EightBitMoment::of(Map::Signed, &new[0]).0, EightBitMoment::of(Map::Unsigned, &new[1]).0];
        }
        // Each of 19 steps is as long as the learning rate at most, about, and off by a few percent.
        assert!(param.iter().zip(&exact.param).all(|(a, b)| (a - b).abs() < 0.2 * 0.05));
        assert_ne!(param, exact.param);
    }

    #[test]
    fn momentum_begins_with_the_gradient() {
        let momentum = Sgd { momentum: Real::new(0.5), ..Sgd::PLAIN };
        near(&steps(Rule::Sgd(Sgd::PLAIN), &[1.0, 2.0]), &[0.9, 0.7]);
        near(&steps(Rule::Sgd(momentum), &[1.0, 2.0]), &[0.9, 0.65]);
        near(&steps(Rule::Sgd(Sgd { dampening: Real::new(0.5), ..momentum }), &[1.0, 2.0]), &[0.9, 0.75]);
        near(&steps(Rule::Sgd(Sgd { nesterov: true, ..momentum }), &[1.0, 2.0]), &[0.85, 0.525]);
        near(&steps(Rule::Sgd(Sgd { weight_decay: Real::new(1.0), ..Sgd::PLAIN }), &[1.0]), &[0.8]);
    }
}
