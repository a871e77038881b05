//! The definition in f64, for one head of one sample: each of its elements is a channel of the
//! [selective scan](crate::selective_scan::reference) with the head's steps, rows and decay.

use crate::selective_scan::reference::{self, Channel};
pub use crate::selective_scan::reference::{Scaled, add};

/// A head of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// `[len, head_dim]`.
    pub x: &'a [f64],
    /// The time steps, before bias and `softplus`.
    pub dt: &'a [f64],
    /// The rate of the decay.
    pub a: f64,
    /// `[len, state]`.
    pub b: &'a [f64],
    /// `[len, state]`.
    pub c: &'a [f64],
    /// The factor of `x` in the result.
    pub d: f64,
    /// Added to the time steps.
    pub dt_bias: f64,
    /// Whether `softplus` follows.
    pub softplus: bool,
    /// The state before the first position, `[head_dim, state]`, or zeros.
    pub initial_state: Option<&'a [f64]>,
    /// Elements of a position.
    pub head_dim: usize,
    /// Numbers in the state of an element.
    pub state: usize,
}

/// The results of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// `[len, head_dim]`.
    pub y: Vec<Scaled>,
    /// The state before each position, and behind the last: `[len + 1, head_dim, state]`.
    pub states: Vec<Scaled>,
}

/// The gradients of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// `[len, head_dim]`.
    pub dx: Vec<Scaled>,
    /// Of the time steps.
    pub ddt: Vec<Scaled>,
    /// Of `a`.
    pub da: Scaled,
    /// `[len, state]`, from this head.
    pub db: Vec<Scaled>,
    /// `[len, state]`, from this head.
    pub dc: Vec<Scaled>,
    /// Of `d`.
    pub dd: Scaled,
    /// Of the bias of the time steps.
    pub ddt_bias: Scaled,
    /// Of the state before the first position, `[head_dim, state]`.
    pub dinitial_state: Vec<Scaled>,
}

impl Head<'_> {
    /// Calls `f` for each element of the head.
    fn each(&self, mut f: impl FnMut(usize, Channel<'_>)) {
        let a = vec![self.a; self.state];
        for element in 0..self.head_dim {
            let u: Vec<f64> = self.x.iter().skip(element).step_by(self.head_dim).copied().collect();
            let initial_state = self.initial_state.map(|state| &state[element * self.state..][..self.state]);
            f(
                element,
                Channel {
                    u: &u,
                    delta: self.dt,
                    a: &a,
                    b: self.b,
                    c: self.c,
                    d: self.d,
                    z: None,
                    delta_bias: self.dt_bias,
                    softplus: self.softplus,
                    initial_state,
                },
            );
        }
    }

    /// The results.
    pub fn forward(&self) -> Output {
        let Self { head_dim, state, .. } = *self;
        let len = self.dt.len();
        let zeros = |count: usize| vec![(0.0, 0.0); count];
        let mut output = Output { y: zeros(len * head_dim), states: zeros((len + 1) * head_dim * state) };
        self.each(|element, channel| {
            let reference::Output { y, states } = channel.forward();
            for (t, y) in y.into_iter().enumerate() {
                output.y[t * head_dim + element] = y;
            }
            for (t, states) in states.chunks(state).enumerate() {
                output.states[(t * head_dim + element) * state..][..state].copy_from_slice(states);
            }
        });
        output
    }

    /// The gradients, from those of `y` and of the last state.
    pub fn backward(&self, dy: &[f64], dlast_state: Option<&[f64]>) -> Gradients {
        let Self { head_dim, state, .. } = *self;
        let len = self.dt.len();
        let zeros = |count: usize| vec![(0.0, 0.0); count];
        let mut g = Gradients {
            dx: zeros(len * head_dim),
            ddt: zeros(len),
            da: (0.0, 0.0),
            db: zeros(len * state),
            dc: zeros(len * state),
            dd: (0.0, 0.0),
            ddt_bias: (0.0, 0.0),
            dinitial_state: zeros(head_dim * state),
        };
        self.each(|element, channel| {
            let dy: Vec<f64> = dy.iter().skip(element).step_by(head_dim).copied().collect();
            let of = channel.backward(&dy, dlast_state.map(|d| &d[element * state..][..state]));
            for (t, du) in of.du.into_iter().enumerate() {
                g.dx[t * head_dim + element] = du;
            }
            for (to, from) in [(&mut g.ddt, of.ddelta), (&mut g.db, of.db), (&mut g.dc, of.dc)] {
                to.iter_mut().zip(from).for_each(|(to, from)| add(to, from));
            }
            of.da.into_iter().for_each(|da| add(&mut g.da, da));
            add(&mut g.dd, of.dd);
            add(&mut g.ddt_bias, of.ddelta_bias);
            g.dinitial_state[element * state..][..state].copy_from_slice(&of.dinitial_state);
        });
        g
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The recurrence of matrices as the module's page has it, by its letter.
    #[test]
    fn elements_are_channels() {
        let draw = |salt: usize, count: usize| -> Vec<f64> {
            (0..count).map(|i| ((i * 37 + salt * 101) % 19) as f64 / 8.0 - 1.1).collect()
        };
        let (len, head_dim, state) = (5, 3, 2);
        let (x, dt) = (draw(1, len * head_dim), draw(2, len));
        let (b, c, first) = (draw(3, len * state), draw(4, len * state), draw(5, head_dim * state));
        let head = Head {
            x: &x,
            dt: &dt,
            a: -0.75,
            b: &b,
            c: &c,
            d: 0.5,
            dt_bias: 0.25,
            softplus: true,
            initial_state: Some(&first),
            head_dim,
            state,
        };
        let found = head.forward();
        let mut h = first.clone();
        for t in 0..len {
            let step = (dt[t] + 0.25).exp().ln_1p();
            for p in 0..head_dim {
                for n in 0..state {
                    let next = (step * -0.75).exp() * h[p * state + n]
                        + step * x[t * head_dim + p] * b[t * state + n];
                    h[p * state + n] = next;
                    let kept = found.states[((t + 1) * head_dim + p) * state + n].0;
                    assert!((kept - next).abs() < 1e-12, "{kept} and {next}");
                }
                let y: f64 = (0..state).map(|n| h[p * state + n] * c[t * state + n]).sum();
                let y = y + 0.5 * x[t * head_dim + p];
                assert!((found.y[t * head_dim + p].0 - y).abs() < 1e-12, "position {t}, element {p}");
            }
        }
    }

    /// The gradient of the rate and of a step, which all elements share, by central differences.
    #[test]
    fn shared_gradients_are_sums() {
        let draw = |salt: usize, count: usize| -> Vec<f64> {
            (0..count).map(|i| ((i * 29 + salt * 61) % 17) as f64 / 8.0 - 0.9).collect()
        };
        let (len, head_dim, state) = (4, 2, 3);
        let (x, dt) = (draw(1, len * head_dim), draw(2, len));
        let (b, c, dy) = (draw(3, len * state), draw(4, len * state), draw(5, len * head_dim));
        let head = Head {
            x: &x,
            dt: &dt,
            a: -0.5,
            b: &b,
            c: &c,
            d: 0.0,
            dt_bias: 0.0,
            softplus: true,
            initial_state: None,
            head_dim,
            state,
        };
        let loss = |a: f64, dt: &[f64], b: &[f64]| -> f64 {
            Head { a, dt, b, ..head }.forward().y.iter().zip(&dy).map(|(y, dy)| y.0 * dy).sum()
        };
        let g = head.backward(&dy, None);
        let h = 1e-5;
        let of_a = (loss(-0.5 + h, &dt, &b) - loss(-0.5 - h, &dt, &b)) / (2.0 * h);
        assert!((of_a - g.da.0).abs() < 1e-8, "{of_a} and {}", g.da.0);
        let moved = |values: &[f64], i: usize, h: f64| -> Vec<f64> {
            values.iter().enumerate().map(|(j, v)| if i == j { v + h } else { *v }).collect()
        };
        for i in 0..len {
            let slope = (loss(-0.5, &moved(&dt, i, h), &b) - loss(-0.5, &moved(&dt, i, -h), &b)) / (2.0 * h);
            assert!((slope - g.ddt[i].0).abs() < 1e-8, "{slope} and {}", g.ddt[i].0);
        }
        for i in 0..len * state {
            let slope = (loss(-0.5, &dt, &moved(&b, i, h)) - loss(-0.5, &dt, &moved(&b, i, -h))) / (2.0 * h);
            assert!((slope - g.db[i].0).abs() < 1e-8, "{slope} and {}", g.db[i].0);
        }
    }
}
