//! The definition in f64, for one channel of one sample.

/// A channel of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Channel<'a> {
    /// The positions.
    pub u: &'a [f64],
    /// Their time steps, before bias and `softplus`.
    pub delta: &'a [f64],
    /// A number for each element of the state.
    pub a: &'a [f64],
    /// `[len, state]`.
    pub b: &'a [f64],
    /// `[len, state]`.
    pub c: &'a [f64],
    /// The factor of `u` in the result.
    pub d: f64,
    /// The gate of each position.
    pub z: Option<&'a [f64]>,
    /// Added to the time steps.
    pub delta_bias: f64,
    /// Whether `softplus` follows.
    pub softplus: bool,
    /// The state before the first position, or zeros.
    pub initial_state: Option<&'a [f64]>,
}

/// A value, and the error that roundings of relative size 1 of its arguments and of what it is computed from would make of it.
pub type Scaled = (f64, f64);

/// The results of a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// A value for each position.
    pub y: Vec<Scaled>,
    /// The state before each position, and behind the last: `[len + 1, state]`.
    pub states: Vec<Scaled>,
}

/// The gradients of a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// Of the positions.
    pub du: Vec<Scaled>,
    /// Of the time steps.
    pub ddelta: Vec<Scaled>,
    /// Of `a`.
    pub da: Vec<Scaled>,
    /// Of `b`, `[len, state]`, from this channel.
    pub db: Vec<Scaled>,
    /// Of `c`, `[len, state]`, from this channel.
    pub dc: Vec<Scaled>,
    /// Of `d`.
    pub dd: Scaled,
    /// Of the gate, zeros without one.
    pub dz: Vec<Scaled>,
    /// Of the bias of the time steps.
    pub ddelta_bias: Scaled,
    /// Of the state before the first position.
    pub dinitial_state: Vec<Scaled>,
}

fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// Adds a value that has an error.
pub fn add(to: &mut Scaled, (value, scale): Scaled) {
    *to = (to.0 + value, to.1 + scale);
}

/// The product with an exact number.
fn times(by: f64, (value, scale): Scaled) -> Scaled {
    (by * value, by.abs() * scale)
}

/// The product of two values that have errors.
fn product((a, of_a): Scaled, (b, of_b): Scaled) -> Scaled {
    (a * b, a.abs() * of_b + of_a * b.abs())
}

impl Channel<'_> {
    /// The time step of a position, and the slope that it has there.
    fn step(&self, t: usize) -> (Scaled, f64) {
        let x = self.delta[t] + self.delta_bias;
        let scale = self.delta[t].abs() + self.delta_bias.abs();
        match self.softplus {
            true => {
                let (value, slope) = (x.max(0.0) + (-x.abs()).exp().ln_1p(), sigmoid(x));
                ((value, value + slope * scale), slope)
            }
            false => ((x, scale), 1.0),
        }
    }

    /// `exp(delta a[n])`
    fn decay(&self, step: Scaled, n: usize) -> Scaled {
        let (value, (exponent, scale)) = ((step.0 * self.a[n]).exp(), times(self.a[n], step));
        (value, value * (1.0 + exponent.abs() + scale))
    }

    /// The sum of the states and `u` that a position gives before the gate; `states` are those before each position.
    fn sum(&self, t: usize, states: &[Scaled]) -> Scaled {
        let (n, du) = (self.a.len(), self.d * self.u[t]);
        let terms = self.c[t * n..][..n].iter().zip(&states[(t + 1) * n..]);
        terms.fold((du, du.abs()), |(sum, scale), (&c, &(h, of_h))| {
            (sum + c * h, scale + (c * h).abs() + c.abs() * of_h)
        })
    }

    /// The results.
    pub fn forward(&self) -> Output {
        let n = self.a.len();
        let first = |i: usize| self.initial_state.map_or((0.0, 0.0), |state| (state[i], 0.0));
        let mut states: Vec<Scaled> = (0..n).map(first).collect();
        let mut y = Vec::with_capacity(self.u.len());
        for t in 0..self.u.len() {
            let (step, _) = self.step(t);
            for i in 0..n {
                let mut next = product(self.decay(step, i), states[t * n + i]);
                let (x, scale) = times(self.b[t * n + i] * self.u[t], step);
                add(&mut next, (x, scale + x.abs()));
                states.push(next);
            }
            let (sum, scale) = self.sum(t, &states);
            y.push(self.z.map_or((sum, scale), |z| {
                let gate = z[t] * sigmoid(z[t]);
                (sum * gate, (scale + sum.abs()) * gate.abs())
            }));
        }
        Output { y, states }
    }

    /// The gradients, from those of `y` and of the last state.
    pub fn backward(&self, dy: &[f64], dlast_state: Option<&[f64]>) -> Gradients {
        let (len, n) = (self.u.len(), self.a.len());
        let states = self.forward().states;
        let zeros = |count: usize| vec![(0.0, 0.0); count];
        let last = |i: usize| dlast_state.map_or((0.0, 0.0), |d| (d[i], 0.0));
        let mut g = Gradients {
            du: zeros(len),
            ddelta: zeros(len),
            da: zeros(n),
            db: zeros(len * n),
            dc: zeros(len * n),
            dd: (0.0, 0.0),
            dz: zeros(len),
            ddelta_bias: (0.0, 0.0),
            dinitial_state: (0..n).map(last).collect(),
        };
        for t in (0..len).rev() {
            let (step, slope) = self.step(t);
            let dy = match self.z {
                Some(z) => {
                    let s = sigmoid(z[t]);
                    let gradient = dy[t] * s * (1.0 + z[t] * (1.0 - s));
                    let (sum, scale) = self.sum(t, &states);
                    g.dz[t] = (sum * gradient, scale * gradient.abs() + (sum * dy[t]).abs() * s);
                    (dy[t] * z[t] * s, 2.0 * (dy[t] * z[t]).abs() * s)
                }
                None => (dy[t], dy[t].abs()),
            };
            // The gradients of `step * u` and of `step` by the exponents.
            let (mut of_input, mut of_exponents) = ((0.0, 0.0), (0.0, 0.0));
            for i in 0..n {
                let at = t * n + i;
                let (decay, before, after) = (self.decay(step, i), states[at], states[at + n]);
                let mut dh = times(self.c[at], dy);
                add(&mut dh, g.dinitial_state[i]);
                g.dc[at] = product(dy, after);
                g.db[at] = product(times(self.u[t], step), dh);
                add(&mut of_input, times(self.b[at], (dh.0, dh.1 + dh.0.abs())));
                let kept = product(decay, before);
                let of_exponent = product((kept.0, kept.1 + kept.0.abs()), dh);
                add(&mut of_exponents, times(self.a[i], of_exponent));
                add(&mut g.da[i], product(step, of_exponent));
                g.dinitial_state[i] = product(decay, dh);
            }
            let through_d = times(self.d, dy);
            g.du[t] = product(step, of_input);
            add(&mut g.du[t], (through_d.0, through_d.1));
            add(&mut g.dd, times(self.u[t], dy));
            let mut ddelta = times(self.u[t], of_input);
            add(&mut ddelta, of_exponents);
            let (value, scale) = times(slope, ddelta);
            g.ddelta[t] = (value, scale + value.abs());
            add(&mut g.ddelta_bias, g.ddelta[t]);
        }
        g
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(scaled: &[Scaled]) -> Vec<f64> {
        scaled.iter().map(|s| s.0).collect()
    }

    /// One number of state, a step of 1 and `a = -ln 2`: every position halves what was there.
    #[test]
    fn closed_forms() {
        let plain = Channel {
            u: &[1.0, 2.0, 4.0],
            delta: &[1.0, 1.0, 1.0],
            a: &[-std::f64::consts::LN_2],
            b: &[1.0, 1.0, 1.0],
            c: &[1.0, 10.0, 1.0],
            d: 0.0,
            z: None,
            delta_bias: 0.0,
            softplus: false,
            initial_state: None,
        };
        assert_eq!(values(&plain.forward().y), [1.0, 25.0, 5.25]);
        assert_eq!(values(&plain.forward().states), [0.0, 1.0, 2.5, 5.25]);
        let behind = Channel { initial_state: Some(&[8.0]), d: 100.0, ..plain };
        assert_eq!(values(&behind.forward().y), [105.0, 245.0, 406.25]);
        // The softplus of ln(e - 1) is 1.
        let step = (std::f64::consts::E - 1.0).ln();
        let soft = Channel { delta: &[step - 3.0; 3], delta_bias: 3.0, softplus: true, ..plain };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} and {b}");
        soft.forward().y.iter().zip([1.0, 25.0, 5.25]).for_each(|(y, want)| near(y.0, want));
        let gated = Channel { z: Some(&[0.0, 1.0, -2.0]), ..plain };
        let silu = |z: f64| z / (1.0 + (-z).exp());
        gated
            .forward()
            .y
            .iter()
            .zip([0.0, 25.0 * silu(1.0), 5.25 * silu(-2.0)])
            .for_each(|(y, w)| near(y.0, w));
    }

    /// Two parts, the second behind the state of the first, give what the whole does.
    #[test]
    fn states_join_samples() {
        let whole = Channel {
            u: &[1.0, -2.0, 3.0],
            delta: &[0.5, 1.0, 0.25],
            a: &[-1.0, -2.0],
            b: &[1.0, 2.0, -1.0, 0.5, 0.25, 3.0],
            c: &[0.5, 1.0, 2.0, -1.0, 1.5, 1.0],
            d: 0.5,
            z: None,
            delta_bias: 0.0,
            softplus: false,
            initial_state: None,
        };
        let first = Channel { u: &whole.u[..1], delta: &whole.delta[..1], ..whole };
        let state = values(&first.forward().states[2..]);
        let rest = Channel {
            u: &whole.u[1..],
            delta: &whole.delta[1..],
            b: &whole.b[2..],
            c: &whole.c[2..],
            initial_state: Some(&state),
            ..whole
        };
        let joined = [values(&first.forward().y), values(&rest.forward().y)].concat();
        assert_eq!(joined, values(&whole.forward().y));
    }

    /// The arguments by which gradients are taken: `u`, `delta`, `a`, `b`, `c`, `z`, the initial state, `d` and `delta_bias`.
    type Inputs = [Vec<f64>; 9];

    #[test]
    fn gradients_agree_with_central_differences() {
        let draw = |salt: usize, count: usize| -> Vec<f64> {
            (0..count).map(|i| ((i * 37 + salt * 101) % 19) as f64 / 8.0 - 1.1).collect()
        };
        let (len, n) = (4, 3);
        let inputs: Inputs = [
            draw(1, len),
            draw(2, len),
            draw(3, n).iter().map(|a| -a.abs() - 0.2).collect(),
            draw(4, len * n),
            draw(5, len * n),
            draw(6, len),
            draw(7, n),
            vec![0.7],
            vec![0.3],
        ];
        let (dy, dlast) = (draw(8, len), draw(9, n));
        for (gate, softplus, initial) in [(true, true, true), (false, true, false), (false, false, true)] {
            let channel = |[u, delta, a, b, c, z, state, d, bias]: &Inputs,
                           f: &mut dyn FnMut(Channel<'_>)| {
                f(Channel {
                    u,
                    delta,
                    a,
                    b,
                    c,
                    d: d[0],
                    z: gate.then_some(&z[..]),
                    delta_bias: bias[0],
                    softplus,
                    initial_state: initial.then_some(&state[..]),
                });
            };
            let loss = |inputs: &Inputs| {
                let mut loss = 0.0;
                channel(inputs, &mut |channel| {
                    let Output { y, states } = channel.forward();
                    let dot = |a: &[Scaled], b: &[f64]| a.iter().zip(b).map(|(a, b)| a.0 * b).sum::<f64>();
                    loss = dot(&y, &dy) + dot(&states[len * n..], &dlast);
                });
                loss
            };
            channel(&inputs, &mut |channel| {
                let g = channel.backward(&dy, Some(&dlast));
                let found = [
                    g.du,
                    g.ddelta,
                    g.da,
                    g.db,
                    g.dc,
                    g.dz,
                    g.dinitial_state,
                    vec![g.dd],
                    vec![g.ddelta_bias],
                ];
                for (number, exact) in found.iter().enumerate() {
                    if number == 5 && !gate || number == 6 && !initial {
                        continue;
                    }
                    for (i, (exact, scale)) in exact.iter().enumerate() {
                        let at = |h: f64| {
                            let mut moved = inputs.clone();
                            moved[number][i] += h;
                            loss(&moved)
                        };
                        let h = 1e-3;
                        let slope = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h);
                        assert!((exact - slope).abs() < 1e-8, "argument {number}, {i}: {exact} and {slope}");
                        assert!(
                            *scale >= exact.abs() * 0.99,
                            "argument {number}, {i}: {exact} of scale {scale}"
                        );
                    }
                }
            });
        }
    }
}
