//! The definition in f64, for one channel of one sample.

/// A channel of a sample, and its filter.
#[derive(Clone, Copy, Debug)]
pub struct Channel<'a> {
    /// The positions.
    pub x: &'a [f64],
    /// The taps, oldest first.
    pub weight: &'a [f64],
    /// Added to every sum.
    pub bias: f64,
    /// The `weight.len() - 1` positions before the first.
    pub initial_states: Option<&'a [f64]>,
    /// Number of the sequence of each position.
    pub seq_idx: Option<&'a [i32]>,
    /// Whether `silu` follows.
    pub silu: bool,
}

/// A value, and the sum of the magnitudes of what it is the sum of.
pub type Scaled = (f64, f64);

/// The gradients of a channel of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// Of the positions.
    pub dx: Vec<Scaled>,
    /// Of the taps.
    pub dweight: Vec<Scaled>,
    /// Of the bias.
    pub dbias: Scaled,
    /// Of the positions before the first.
    pub dinitial_states: Vec<Scaled>,
}

fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

impl Channel<'_> {
    fn history(&self) -> usize {
        self.weight.len() - 1
    }

    /// The element at a place counted from the first of the initial states.
    fn element(&self, at: usize) -> f64 {
        match at.checked_sub(self.history()) {
            Some(l) => self.x[l],
            None => self.initial_states.map_or(0.0, |states| states[at]),
        }
    }

    /// The taps that count at position `l`, each with the place of its element.
    fn taps(&self, l: usize) -> impl Iterator<Item = (usize, usize)> {
        let counts = move |at: usize| {
            self.seq_idx.is_none_or(|ids| {
                ids[l] >= 0 && at.checked_sub(self.history()).is_some_and(|at| ids[at] == ids[l])
            })
        };
        (0..self.weight.len()).map(move |i| (i, l + i)).filter(move |(_, at)| counts(*at))
    }

    /// Whether position `l` is of a sequence.
    fn is_of_sequence(&self, l: usize) -> bool {
        self.seq_idx.is_none_or(|ids| ids[l] >= 0)
    }

    /// The sum of a position.
    fn sum(&self, l: usize) -> Scaled {
        self.taps(l).fold((self.bias, self.bias.abs()), |(sum, scale), (i, at)| {
            let term = self.weight[i] * self.element(at);
            (sum + term, scale + term.abs())
        })
    }

    /// `y`
    pub fn forward(&self) -> Vec<Scaled> {
        let of = |l: usize| {
            let (z, scale) = self.sum(l);
            match (self.is_of_sequence(l), self.silu) {
                (false, _) => (0.0, 0.0),
                (true, false) => (z, scale),
                // The slope is at most 1.1.
                (true, true) => (z * sigmoid(z), (z * sigmoid(z)).abs() + 1.1 * scale * sigmoid(z).max(0.1)),
            }
        };
        (0..self.x.len()).map(of).collect()
    }

    /// The last positions of initial states and `x`.
    pub fn final_states(&self) -> Vec<f64> {
        (0..self.history()).map(|j| self.element(self.x.len() + j)).collect()
    }

    /// The gradients, from those of `y` and of the final states.
    pub fn backward(&self, dy: &[f64], dfinal_states: Option<&[f64]>) -> Gradients {
        let (history, len) = (self.history(), self.x.len());
        let mut places = vec![(0.0, 0.0); len + history];
        let mut dweight = vec![(0.0, 0.0); self.weight.len()];
        let mut dbias = (0.0, 0.0);
        let add = |to: &mut Scaled, term: f64, scale: f64| *to = (to.0 + term, to.1 + scale);
        for (l, &dy) in dy.iter().enumerate().filter(|(l, _)| self.is_of_sequence(*l)) {
            let (z, scale) = self.sum(l);
            let s = sigmoid(z);
            // The second derivative is at most 1/2.
            let (dz, dz_scale) = match self.silu {
                true => {
                    let slope = s + z * s * (1.0 - s);
                    (dy * slope, dy.abs() * (slope.abs() + s + 0.5 * scale))
                }
                false => (dy, dy.abs()),
            };
            for (i, at) in self.taps(l) {
                add(&mut places[at], self.weight[i] * dz, self.weight[i].abs() * dz_scale);
                add(&mut dweight[i], self.element(at) * dz, self.element(at).abs() * dz_scale);
            }
            add(&mut dbias, dz, dz_scale);
        }
        for (place, &d) in places[len..].iter_mut().zip(dfinal_states.unwrap_or(&[])) {
            add(place, d, d.abs());
        }
        let dx = places.split_off(history);
        Gradients { dx, dweight, dbias, dinitial_states: places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Channel<'static> = Channel {
        x: &[1.0, 2.0, 3.0],
        weight: &[100.0, 10.0, 1.0],
        bias: 0.5,
        initial_states: None,
        seq_idx: None,
        silu: false,
    };

    fn values(scaled: &[Scaled]) -> Vec<f64> {
        scaled.iter().map(|s| s.0).collect()
    }

    #[test]
    fn closed_forms() {
        assert_eq!(values(&PLAIN.forward()), [1.5, 12.5, 123.5]);
        assert_eq!(PLAIN.final_states(), [2.0, 3.0]);
        let behind = Channel { initial_states: Some(&[8.0, 9.0]), ..PLAIN };
        assert_eq!(values(&behind.forward()), [891.5, 912.5, 123.5]);
        let short = Channel { x: &[7.0], ..behind };
        assert_eq!(short.final_states(), [9.0, 7.0]);
        assert_eq!(Channel { x: &[7.0], ..PLAIN }.final_states(), [0.0, 7.0]);
        let packed = Channel { x: &[1.0, 2.0, 3.0, 4.0], seq_idx: Some(&[0, 0, 1, -1]), ..PLAIN };
        assert_eq!(values(&packed.forward()), [1.5, 12.5, 3.5, 0.0]);
    }

    /// Steps of any size give what the whole does.
    #[test]
    fn states_join_samples() {
        let whole = Channel { x: &[1.0, -2.0, 3.0, 0.5, 4.0], ..PLAIN };
        let first = Channel { x: &whole.x[..2], ..PLAIN };
        let states = first.final_states();
        let rest = Channel { x: &whole.x[2..], initial_states: Some(&states), ..PLAIN };
        let joined = [values(&first.forward()), values(&rest.forward())].concat();
        assert_eq!(joined, values(&whole.forward()));
        assert_eq!(rest.final_states(), whole.final_states());
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        let (x, weight) = ([0.3, -1.2, 2.5, 0.7, -0.1], [0.4, -0.9, 1.3, 0.2]);
        let (initial, dy, dlast) = ([0.8, -0.4, 1.7], [1.0, -0.5, 0.25, 2.0, -1.5], [0.6, -1.1, 0.9]);
        let ids = [3, 3, -1, 5, 5];
        for (width, len, silu, states, packed) in [
            (4, 5, true, true, false),
            (3, 5, false, true, false),
            (4, 2, true, true, false),
            (2, 5, true, false, true),
            (4, 5, true, false, true),
            (3, 1, true, false, false),
        ] {
            let history = width - 1;
            let loss = |x: &[f64], weight: &[f64], bias: f64, initial: &[f64]| -> f64 {
                let channel = Channel {
                    x,
                    weight,
                    bias,
                    initial_states: states.then_some(initial),
                    seq_idx: packed.then_some(&ids[..len]),
                    silu,
                };
                let y: f64 = channel.forward().iter().zip(&dy).map(|(y, d)| y.0 * d).sum();
                let last: f64 = channel.final_states().iter().zip(&dlast).map(|(s, d)| s * d).sum();
                if states { y + last } else { y }
            };
            let channel = Channel {
                x: &x[..len],
                weight: &weight[..width],
                bias: 0.3,
                initial_states: states.then_some(&initial[..history]),
                seq_idx: packed.then_some(&ids[..len]),
                silu,
            };
            let exact = channel.backward(&dy[..len], states.then_some(&dlast[..history]));
            let h = 1e-4;
            let slope =
                |f: &dyn Fn(f64) -> f64| (8.0 * (f(h) - f(-h)) - (f(2.0 * h) - f(-2.0 * h))) / (12.0 * h);
            let moved = |list: &[f64], i: usize, h: f64| {
                let mut list = list.to_vec();
                list[i] += h;
                list
            };
            let check = |name: &str, i: usize, exact: f64, numeric: f64| {
                assert!((exact - numeric).abs() < 1e-9, "{name}[{i}] of {channel:?}: {exact} and {numeric}");
            };
            let (w, s) = (&weight[..width], &initial[..history]);
            for (i, (exact, _)) in exact.dx.iter().enumerate() {
                check("dx", i, *exact, slope(&|h| loss(&moved(&x[..len], i, h), w, 0.3, s)));
            }
            for (i, (exact, _)) in exact.dweight.iter().enumerate() {
                check("dweight", i, *exact, slope(&|h| loss(&x[..len], &moved(w, i, h), 0.3, s)));
            }
            check("dbias", 0, exact.dbias.0, slope(&|h| loss(&x[..len], w, 0.3 + h, s)));
            for (i, (exact, _)) in exact.dinitial_states.iter().enumerate().filter(|_| states) {
                check("dinitial", i, *exact, slope(&|h| loss(&x[..len], w, 0.3, &moved(s, i, h))));
            }
        }
    }
}
