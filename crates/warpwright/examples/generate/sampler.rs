//! The next token from its logits.

use warpwright::{DType, Stream, Tensor, argmax, cast};

use super::common::Result;
use super::common::random::Random;

/// Takes the likeliest token, or draws one of the likeliest (Holtzman et al. 2019, arXiv:1904.09751).
pub(crate) struct Sampler {
    temperature: f64,
    top_p: f64,
    random: Random,
}

impl Sampler {
    /// A temperature of 0 takes the likeliest; `top_p` is the share of the likeliest tokens that are drawn from.
    pub(crate) fn new(temperature: f64, top_p: f64, seed: u64) -> Result<Self> {
        if !(0.0..=100.0).contains(&temperature) || !(0.0..=1.0).contains(&top_p) {
            let expected = "a temperature from 0 to 100 and top_p from 0 to 1";
            return Err(format!("temperature {temperature}, top_p {top_p}; expected {expected}").into());
        }
        Ok(Self { temperature, top_p, random: Random(seed) })
    }

    /// Whether it takes the likeliest token.
    pub(crate) fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// From logits `[1, vocab_size]`.
    pub(crate) fn choose(&mut self, stream: &Stream, logits: &Tensor) -> Result<i64> {
        if self.is_greedy() {
            return Ok(argmax(stream, logits, Some(1), false)?.to_vec_on(stream)?[0]);
        }
        Ok(self.draw(&cast(stream, logits, DType::F32)?.to_vec_on(stream)?))
    }

    /// One of the likeliest tokens, which have a share of `top_p` together.
    fn draw(&mut self, logits: &[f32]) -> i64 {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> =
            logits.iter().map(|logit| (f64::from(logit - largest) / self.temperature).exp()).collect();
        let share = self.top_p * weights.iter().sum::<f64>();
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_unstable_by(|a, b| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b)));
        let mut sum = 0.0;
        let kept = order.iter().position(|token| {
            sum += weights[*token];
            sum >= share
        });
        order.truncate(kept.map_or(order.len(), |last| last + 1));
        let mut at = self.random.uniform() * sum;
        let drawn = order.iter().find(|token| {
            at -= weights[**token];
            at < 0.0
        });
        drawn.or(order.last()).map_or(0, |token| *token as i64)
    }
}
