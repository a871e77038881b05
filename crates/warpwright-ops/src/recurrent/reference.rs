//! The definition in plain f64 Rust.

/// An LSTM over a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Lstm<'a> {
    /// Steps, batches, elements of an input, units.
    pub sizes: [usize; 4],
    /// `[steps][batch][input]`
    pub x: &'a [f64],
    /// `[4 hidden][input]`
    pub w_ih: &'a [f64],
    /// `[4 hidden][hidden]`
    pub w_hh: &'a [f64],
    /// `[4 hidden]` of the input and of the state.
    pub bias: Option<(&'a [f64], &'a [f64])>,
    /// `[batch][hidden]`; zero if `None`.
    pub h0: Option<&'a [f64]>,
    /// `[batch][hidden]`; zero if `None`.
    pub c0: Option<&'a [f64]>,
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Lstm<'_> {
    /// The hidden states `[steps][batch][hidden]`, and the last cells `[batch][hidden]`.
    pub fn forward(&self) -> (Vec<f64>, Vec<f64>) {
        let [steps, batch, input, hidden] = self.sizes;
        let start = |given: Option<&[f64]>| given.map_or_else(|| vec![0.0; batch * hidden], <[f64]>::to_vec);
        let (mut h, mut c) = (start(self.h0), start(self.c0));
        let mut all = Vec::with_capacity(steps * batch * hidden);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for step in 0..steps {
            let mut next = vec![0.0; batch * hidden];
            for b in 0..batch {
                let x = &self.x[(step * batch + b) * input..][..input];
                let state = &h[b * hidden..][..hidden];
                for unit in 0..hidden {
                    let gate = |gate: usize| {
                        let row = gate * hidden + unit;
                        let bias = self.bias.map_or(0.0, |(ih, hh)| ih[row] + hh[row]);
                        dot(&self.w_ih[row * input..][..input], x)
                            + dot(&self.w_hh[row * hidden..][..hidden], state)
                            + bias
                    };
                    let cell = &mut c[b * hidden + unit];
                    *cell = logistic(gate(1)) * *cell + logistic(gate(0)) * gate(2).tanh();
                    next[b * hidden + unit] = logistic(gate(3)) * cell.tanh();
                }
            }
            h = next;
            all.extend(&h);
        }
        (all, c)
    }
}
