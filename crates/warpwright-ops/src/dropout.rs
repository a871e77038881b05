//! Which elements are dropped: a function of numbers, on the host as in kernels.

use warpwright_dsl::Philox;
use warpwright_runtime::{Stream, Tensor};

use crate::{Error, PlanError};

/// Elements that are set to 0 at random while training; what is kept is multiplied by `1 / (1 - probability)`.
///
/// Whether element `n` is dropped depends on the seed, the offset and `n` alone: a backward pass that is given the same numbers
/// drops the same elements, on every device and in the emulator. Each operation says how it numbers its elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Of an element to be dropped, from 0 to 1; rounded to a multiple of 2^-32.
    pub probability: f32,
    /// The key of the random numbers.
    pub seed: u64,
    /// Tells apart the uses of one seed: the number of the call, say.
    pub offset: u64,
}

impl Dropout {
    /// The threshold that kernels compare their words with and the factor of elements that are kept, for the probability of a descriptor.
    pub(crate) fn constants(op: &'static str, probability: f64) -> Result<(u32, f64), PlanError> {
        let dropout = Self { probability: probability as f32, seed: 0, offset: 0 };
        dropout.check(op)?;
        Ok((dropout.threshold(), Self::scale(probability)))
    }

    /// Seed and offset on the device, as kernels read them: `[2]` in i64.
    pub(crate) fn random(self, stream: &Stream) -> Result<Tensor, Error> {
        let numbers = [self.seed, self.offset].map(u64::cast_signed);
        Ok(Tensor::from_slice_on(stream, &numbers, &[2])?)
    }

    /// Fails if the probability is none.
    fn check(self, op: &'static str) -> Result<(), PlanError> {
        if (0.0..=1.0).contains(&self.probability) {
            return Ok(());
        }
        let got = self.probability.to_string();
        Err(PlanError::Parameter { op, parameter: "dropout.probability", got, expected: "from 0 to 1" })
    }

    /// Words below this one drop their element.
    fn threshold(self) -> u32 {
        // A cast of a float saturates, so that all words but the largest are below the threshold of probability 1.
        (f64::from(self.probability) * 2f64.powi(32)).round() as u32
    }

    /// The factor of elements that are kept where they are dropped with `probability`; 0 if none is kept.
    pub fn scale(probability: f64) -> f64 {
        if probability < 1.0 { 1.0 / (1.0 - probability) } else { 0.0 }
    }

    /// Whether an element is kept; of four elements that follow each other, the first of which has a number that four divides,
    /// each has one of the words of a draw.
    pub fn keeps(self, element: u64) -> bool {
        let words = Philox::words(self.seed, self.offset, element / 4);
        self.probability < 1.0 && words[(element % 4) as usize] >= self.threshold()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_the_probability_says() {
        let count = 100_000u32;
        for probability in [0.0f32, 0.1, 0.5, 0.9, 1.0] {
            let dropout = Dropout { probability, seed: 7, offset: 1 };
            let kept = (0..u64::from(count)).filter(|&n| dropout.keeps(n)).count() as f64;
            let keeping = 1.0 - f64::from(probability);
            let deviation = (f64::from(count) * keeping * (1.0 - keeping)).sqrt();
            let want = f64::from(count) * keeping;
            assert!(
                (kept - want).abs() <= 4.0 * deviation,
                "{probability}: {kept} of {count} kept, {want} expected"
            );
        }
    }

    #[test]
    fn probabilities_that_are_none() {
        for probability in [-0.1, 1.1, f32::NAN, f32::INFINITY] {
            let error =
                Dropout { probability, seed: 0, offset: 0 }.check("attention").unwrap_err().to_string();
            let want = format!("attention: dropout.probability is {probability}, must be from 0 to 1");
            assert_eq!(error, want);
        }
    }
}
