//! The definition in plain f64 Rust.

use super::Cell;

/// The weights of a layer and direction.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    /// `[gates hidden][input]`
    pub w_ih: Vec<f64>,
    /// `[gates hidden][output]`
    pub w_hh: Vec<f64>,
    /// `[projection][hidden]`; empty if hidden states are not projected.
    pub w_hr: Vec<f64>,
    /// `[gates hidden]`; zeros if there is none.
    pub b_ih: Vec<f64>,
    /// `[gates hidden]`; zeros if there is none.
    pub b_hh: Vec<f64>,
}

/// A net over sequences.
#[derive(Clone, Debug)]
pub struct Net {
    /// The cell of a unit.
    pub cell: Cell,
    /// Places, sequences, elements of an input, units.
    pub sizes: [usize; 4],
    /// Elements that hidden states are projected to; 0 if they are not.
    pub projection: usize,
    /// 1 or 2.
    pub directions: usize,
    /// Whether rows are `[batch][steps]`, else `[steps][batch]`.
    pub batch_first: bool,
    /// Places of each sequence.
    pub lengths: Vec<usize>,
    /// Of each direction of each layer.
    pub weights: Vec<Weights>,
    /// `[layers directions][batch][output]`
    pub h0: Vec<f64>,
    /// `[layers directions][batch][hidden]`
    pub c0: Vec<f64>,
    /// Factors of the results of each layer but the last on their way to the next one, `[row][directions output]`; no lists if
    /// by nothing.
    pub factors: Vec<Vec<f64>>,
    /// The value of a hidden state, multiplied or not, that everything reads: itself, or the one that a tensor keeps of it.
    pub kept: fn(f64) -> f64,
}

/// The results of a net, and the state that its gradients start from.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Of each layer, `[row][directions output]`.
    pub y: Vec<Vec<f64>>,
    /// `[layers directions][batch][output]`
    pub h_n: Vec<f64>,
    /// `[layers directions][batch][hidden]`
    pub c_n: Vec<f64>,
}

/// The gradients of what a net was given.
#[derive(Clone, Debug, Default)]
pub struct Gradients {
    /// `[row][input]`
    pub dx: Vec<f64>,
    /// `[layers directions][batch][output]`
    pub dh0: Vec<f64>,
    /// `[layers directions][batch][hidden]`
    pub dc0: Vec<f64>,
    /// Of each direction of each layer.
    pub weights: Vec<Weights>,
}

/// The state of a unit between steps.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    h: f64,
    c: f64,
}

/// The state of a sequence between steps.
#[derive(Clone, Debug, Default)]
struct Whole {
    /// The hidden state, of `output` elements.
    h: Vec<f64>,
    /// The states of the units, the hidden ones as they were before a projection.
    units: Vec<State>,
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Cell {
    /// The state after a step from the sums of the gates on the sides of input and state.
    fn step(self, x: &[f64], h: &[f64], before: State) -> State {
        let sum = |gate: usize| x[gate] + h[gate];
        match self {
            Self::Lstm => {
                let c = logistic(sum(1)) * before.c + logistic(sum(0)) * sum(2).tanh();
                State { h: logistic(sum(3)) * c.tanh(), c }
            }
            Self::Gru => {
                let (r, z) = (logistic(sum(0)), logistic(sum(1)));
                let n = (x[2] + r * h[2]).tanh();
                State { h: (1.0 - z) * n + z * before.h, c: 0.0 }
            }
            Self::RnnTanh => State { h: sum(0).tanh(), c: 0.0 },
            Self::RnnRelu => State { h: sum(0).max(0.0), c: 0.0 },
        }
    }

    /// The gradients of both kinds of sums, and what goes straight to the state before, from those of the state after.
    fn gradient(
        self,
        x: &[f64],
        h: &[f64],
        before: State,
        after: State,
        d: State,
    ) -> (Vec<f64>, Vec<f64>, State) {
        let sum = |gate: usize| x[gate] + h[gate];
        match self {
            Self::Lstm => {
                let [i, f, o] = [0, 1, 3].map(|gate| logistic(sum(gate)));
                let (g, t) = (sum(2).tanh(), after.c.tanh());
                let dc = d.c + d.h * o * (1.0 - t * t);
                let gates = vec![
                    dc * g * i * (1.0 - i),
                    dc * before.c * f * (1.0 - f),
                    dc * i * (1.0 - g * g),
                    d.h * t * o * (1.0 - o),
                ];
                (gates.clone(), gates, State { h: 0.0, c: dc * f })
            }
            Self::Gru => {
                let (r, z) = (logistic(sum(0)), logistic(sum(1)));
                let n = (x[2] + r * h[2]).tanh();
                let dn = d.h * (1.0 - z) * (1.0 - n * n);
                let dr = dn * h[2] * r * (1.0 - r);
                let dz = d.h * (before.h - n) * z * (1.0 - z);
                (vec![dr, dz, dn], vec![dr, dz, dn * r], State { h: d.h * z, c: 0.0 })
            }
            Self::RnnTanh => {
                let gate = vec![d.h * (1.0 - after.h * after.h)];
                (gate.clone(), gate, State::default())
            }
            Self::RnnRelu => {
                let gate = vec![if after.h > 0.0 { d.h } else { 0.0 }];
                (gate.clone(), gate, State::default())
            }
        }
    }
}

impl Net {
    fn layers(&self) -> usize {
        self.weights.len() / self.directions
    }

    /// Elements of a hidden state.
    fn output(&self) -> usize {
        if self.projection > 0 { self.projection } else { self.sizes[3] }
    }

    fn input_of(&self, layer: usize) -> usize {
        if layer == 0 { self.sizes[2] } else { self.directions * self.output() }
    }

    fn row(&self, step: usize, batch: usize) -> usize {
        let [steps, batches, ..] = self.sizes;
        if self.batch_first { batch * steps + step } else { step * batches + batch }
    }

    /// The rows of a sequence in the order of its steps.
    fn order(&self, direction: usize, batch: usize) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..self.lengths[batch]).map(|step| self.row(step, batch)).collect();
        if direction == 1 {
            rows.reverse();
        }
        rows
    }

    fn start(&self, pass: usize, batch: usize) -> Whole {
        let (at, hidden) = (pass * self.sizes[1] + batch, self.sizes[3]);
        let h = self.h0[at * self.output()..][..self.output()].to_vec();
        let c = &self.c0[at * hidden..][..hidden];
        // Units that are projected never read what they gave.
        let unit =
            |(unit, c): (usize, &f64)| State { h: if self.projection > 0 { 0.0 } else { h[unit] }, c: *c };
        Whole { units: c.iter().enumerate().map(unit).collect(), h }
    }

    /// The sums of every gate of every unit, `[unit][gate]`, on the sides of input and state.
    fn sums(&self, pass: usize, x: &[f64], h: &[f64]) -> Vec<(Vec<f64>, Vec<f64>)> {
        let Weights { w_ih, w_hh, b_ih, b_hh, .. } = &self.weights[pass];
        let (hidden, input) = (self.sizes[3], x.len());
        let unit = |unit: usize| {
            let rows = (0..self.cell.gates()).map(|gate| gate * hidden + unit);
            let of_x = rows.clone().map(|row| dot(&w_ih[row * input..][..input], x) + b_ih[row]);
            let of_h = rows.map(|row| dot(&w_hh[row * h.len()..][..h.len()], h) + b_hh[row]);
            (of_x.collect(), of_h.collect())
        };
        (0..hidden).map(unit).collect()
    }

    /// Runs a sequence through a pass; the states before every step and after the last.
    fn walk(&self, pass: usize, batch: usize, x: &[f64]) -> Vec<Whole> {
        let input = self.input_of(pass / self.directions);
        let mut states = vec![self.start(pass, batch)];
        for row in self.order(pass % self.directions, batch) {
            let before = &states[states.len() - 1];
            let sums = self.sums(pass, &x[row * input..][..input], &before.h);
            let after = sums.iter().zip(&before.units).map(|((x, h), before)| {
                let State { h, c } = self.cell.step(x, h, *before);
                State { h: (self.kept)(h), c }
            });
            let units: Vec<State> = after.collect();
            let own: Vec<f64> = units.iter().map(|unit| unit.h).collect();
            let lines = self.weights[pass].w_hr.chunks(self.sizes[3]);
            let h = if self.projection > 0 { lines.map(|line| dot(line, &own)).collect() } else { own };
            states.push(Whole { h, units });
        }
        states
    }

    /// The input of layer `layer`, from the result of the one before.
    fn between(&self, layer: usize, y: &[f64]) -> Vec<f64> {
        match self.factors.get(layer - 1) {
            Some(factors) => y.iter().zip(factors).map(|(y, factor)| (self.kept)(y * factor)).collect(),
            None => y.to_vec(),
        }
    }

    /// The results.
    pub fn forward(&self, x: &[f64]) -> Output {
        let [steps, batches, ..] = self.sizes;
        let (wide, output) = (self.directions * self.output(), self.output());
        let mut out = Output::default();
        for layer in 0..self.layers() {
            let mut y = vec![0.0; steps * batches * wide];
            let x = out.y.last().map_or(x.to_vec(), |y| self.between(layer, y));
            for direction in 0..self.directions {
                let pass = layer * self.directions + direction;
                for batch in 0..batches {
                    let states = self.walk(pass, batch, &x);
                    for (row, state) in self.order(direction, batch).into_iter().zip(&states[1..]) {
                        y[row * wide + direction * output..][..output].copy_from_slice(&state.h);
                    }
                    let last = &states[states.len() - 1];
                    out.h_n.extend(&last.h);
                    out.c_n.extend(last.units.iter().map(|state| state.c));
                }
            }
            out.y.push(y);
        }
        out
    }

    /// The gradients from those of the results, by the results `y` of every layer.
    pub fn backward(&self, x: &[f64], y: &[Vec<f64>], dy: &[f64], dh_n: &[f64], dc_n: &[f64]) -> Gradients {
        let batches = self.sizes[1];
        let mut out =
            Gradients { weights: self.weights.iter().map(Weights::zeros).collect(), ..Gradients::default() };
        let (mut dh0, mut dc0) = (vec![0.0; self.h0.len()], vec![0.0; self.c0.len()]);
        let mut dy = dy.to_vec();
        for layer in (0..self.layers()).rev() {
            let x = &if layer == 0 { x.to_vec() } else { self.between(layer, &y[layer - 1]) };
            let mut dx = vec![0.0; x.len()];
            for pass in layer * self.directions..(layer + 1) * self.directions {
                for batch in 0..batches {
                    let at = pass * batches + batch;
                    let of_h = at * self.output()..(at + 1) * self.output();
                    let of_c = at * self.sizes[3]..(at + 1) * self.sizes[3];
                    let end = (dh_n[of_h.clone()].to_vec(), dc_n[of_c.clone()].to_vec());
                    let start = self.back(pass, batch, (x, &mut dx), &dy, end, &mut out.weights[pass]);
                    dh0[of_h].copy_from_slice(&start.0);
                    dc0[of_c].copy_from_slice(&start.1);
                }
            }
            dy = if layer == 0 { dx } else { self.between(layer, &dx) };
        }
        Gradients { dx: dy, dh0, dc0, ..out }
    }

    /// The gradients of the units' own hidden states from that of the hidden state after a step.
    fn back_through_projection(&self, pass: usize, dh: &[f64], after: &Whole, to: &mut Weights) -> Vec<f64> {
        if self.projection == 0 {
            return dh.to_vec();
        }
        let hidden = self.sizes[3];
        let mut of_units = vec![0.0; hidden];
        for (element, dh) in dh.iter().enumerate() {
            let (line, to) = (&self.weights[pass].w_hr[element * hidden..], &mut to.w_hr[element * hidden..]);
            for (((of_unit, unit), weight), to) in of_units.iter_mut().zip(&after.units).zip(line).zip(to) {
                *to += dh * unit.h;
                *of_unit += dh * weight;
            }
        }
        of_units
    }

    /// Runs the gradients `dh` and `dc` of the last state of a sequence back through a pass; those of the first state.
    fn back(
        &self,
        pass: usize,
        batch: usize,
        (x, dx): (&[f64], &mut [f64]),
        dy: &[f64],
        (mut dh, mut dc): (Vec<f64>, Vec<f64>),
        to: &mut Weights,
    ) -> (Vec<f64>, Vec<f64>) {
        let (direction, hidden, output) = (pass % self.directions, self.sizes[3], self.output());
        let (wide, input) = (self.directions * output, self.input_of(pass / self.directions));
        let weights = &self.weights[pass];
        let states = self.walk(pass, batch, x);
        let rows = self.order(direction, batch);
        for (step, row) in rows.into_iter().enumerate().rev() {
            let (before, after) = (&states[step], &states[step + 1]);
            let place = row * input..(row + 1) * input;
            let sums = self.sums(pass, &x[place.clone()], &before.h);
            let own = &dy[row * wide + direction * output..][..output];
            dh.iter_mut().zip(own).for_each(|(dh, own)| *dh += own);
            let of_units = self.back_through_projection(pass, &dh, after, to);
            dh = vec![0.0; output];
            for (unit, (of_x, of_h)) in sums.iter().enumerate() {
                let mine = State { h: of_units[unit], c: dc[unit] };
                let (unit_before, unit_after) = (before.units[unit], after.units[unit]);
                let (of_x, of_h, straight) = self.cell.gradient(of_x, of_h, unit_before, unit_after, mine);
                if self.projection == 0 {
                    dh[unit] += straight.h;
                }
                dc[unit] = straight.c;
                for (gate, (of_x, of_h)) in of_x.iter().zip(&of_h).enumerate() {
                    let line = gate * hidden + unit;
                    to.b_ih[line] += of_x;
                    to.b_hh[line] += of_h;
                    for (i, x) in x[place.clone()].iter().enumerate() {
                        to.w_ih[line * input + i] += of_x * x;
                        dx[place.start + i] += of_x * weights.w_ih[line * input + i];
                    }
                    for (i, before) in before.h.iter().enumerate() {
                        to.w_hh[line * output + i] += of_h * before;
                        dh[i] += of_h * weights.w_hh[line * output + i];
                    }
                }
            }
        }
        (dh, dc)
    }
}

impl Weights {
    fn zeros(&self) -> Self {
        let zeros = |values: &[f64]| vec![0.0; values.len()];
        Self {
            w_ih: zeros(&self.w_ih),
            w_hh: zeros(&self.w_hh),
            w_hr: zeros(&self.w_hr),
            b_ih: zeros(&self.b_ih),
            b_hh: zeros(&self.b_hh),
        }
    }
}
