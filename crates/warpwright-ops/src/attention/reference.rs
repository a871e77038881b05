//! Attention in plain f64 Rust: the oracle that kernels are held against.
//!
//! Tensors are contiguous: q and o `[batch, queries, heads, width]`, k and v `[batch, keys, key_heads, width]`, lse
//! `[batch, heads, queries]`. The bias is a function, so that it may be broadcast.

/// Everything but the tensors.
#[derive(Clone)]
pub struct Problem<'a> {
    /// Sequences.
    pub batch: usize,
    /// Queries of a sequence.
    pub queries: usize,
    /// Keys of a sequence.
    pub keys: usize,
    /// Heads of q.
    pub heads: usize,
    /// Heads of k and v, a divisor of `heads`.
    pub key_heads: usize,
    /// Elements of a query and a key.
    pub width: usize,
    /// Elements of a value.
    pub value_width: usize,
    /// The factor of the products.
    pub scale: f64,
    /// `softcap tanh(x / softcap)` of the scaled products.
    pub softcap: Option<f64>,
    /// How many keys before its own position a query sees.
    pub left: Option<usize>,
    /// How many keys after its own position a query sees.
    pub right: Option<usize>,
    /// Whether the last query stands at the last key, instead of the first at the first.
    pub bottom_right: bool,
    /// Keys of each sequence that exist.
    pub lengths: Option<&'a [usize]>,
    /// Queries of each sequence that exist.
    pub query_lengths: Option<&'a [usize]>,
    /// The bias of the score of (batch, head, query, key).
    pub bias: Option<&'a dyn Fn(usize, usize, usize, usize) -> f64>,
    /// The slope of (batch, head) on the distance.
    pub slope: Option<&'a dyn Fn(usize, usize) -> f64>,
    /// The further logit of a head.
    pub sink: Option<&'a dyn Fn(usize) -> f64>,
    /// Whether (batch, head, query, key) is a pair, besides.
    pub mask: Option<&'a dyn Fn(usize, usize, usize, usize) -> bool>,
    /// The factor of the probability of (batch, head, query, key): 0, or `1 / (1 - p)`.
    pub dropout: Option<&'a dyn Fn(usize, usize, usize, usize) -> f64>,
}

impl Problem<'_> {
    /// Keys of a sequence.
    fn length(&self, batch: usize) -> usize {
        self.lengths.map_or(self.keys, |l| l[batch].min(self.keys))
    }

    /// How far the last key is from the last query.
    fn shift(&self, batch: usize) -> i64 {
        self.length(batch) as i64 - self.query_length(batch) as i64
    }

    /// Queries of a sequence.
    fn query_length(&self, batch: usize) -> usize {
        self.query_lengths.map_or(self.queries, |l| l[batch].min(self.queries))
    }

    fn sees(&self, batch: usize, query: usize, key: usize) -> bool {
        let keys = self.length(batch);
        let own = query as i64 + if self.bottom_right { self.shift(batch) } else { 0 };
        let key_at = key as i64;
        key < keys
            && query < self.query_length(batch)
            && self.left.is_none_or(|left| key_at >= own - left as i64)
            && self.right.is_none_or(|right| key_at <= own + right as i64)
    }

    fn kept(&self, batch: usize, head: usize, query: usize, key: usize) -> f64 {
        self.dropout.map_or(1.0, |factor| factor(batch, head, query, key))
    }

    fn row<'t>(&self, x: &'t [f64], heads: usize, width: usize, at: [usize; 3], rows: usize) -> &'t [f64] {
        let [batch, row, head] = at;
        &x[((batch * rows + row) * heads + head) * width..][..width]
    }

    /// The score of a pair that is seen, and its derivative by the product.
    fn score(&self, batch: usize, head: usize, query: usize, key: usize, product: f64) -> (f64, f64) {
        let scaled = product * self.scale;
        let (mut score, derivative) = match self.softcap {
            Some(cap) => {
                let t = (scaled / cap).tanh();
                (cap * t, self.scale * (1.0 - t * t))
            }
            None => (scaled, self.scale),
        };
        if let Some(bias) = self.bias {
            score += bias(batch, head, query, key);
        }
        if let Some(slope) = self.slope {
            let distance = query as i64 + self.shift(batch) - key as i64;
            score -= slope(batch, head) * distance.abs() as f64;
        }
        (score, derivative)
    }

    /// Every (batch, head, query) with the products and scores of its keys; `None` is not seen.
    fn scores(&self, q: &[f64], k: &[f64], at: [usize; 3]) -> Vec<Option<(f64, f64)>> {
        let [batch, head, query] = at;
        let own = self.row(q, self.heads, self.width, [batch, query, head], self.queries);
        let key_head = head / (self.heads / self.key_heads);
        let of = |key: usize| {
            let masked = self.mask.is_some_and(|mask| !mask(batch, head, query, key));
            (!masked && self.sees(batch, query, key)).then(|| {
                let other = self.row(k, self.key_heads, self.width, [batch, key, key_head], self.keys);
                let product = own.iter().zip(other).map(|(a, b)| a * b).sum();
                self.score(batch, head, query, key, product)
            })
        };
        (0..self.keys).map(of).collect()
    }

    fn places(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let (heads, queries) = (self.heads, self.queries);
        let of_batch = move |b| (0..heads).flat_map(move |h| (0..queries).map(move |i| [b, h, i]));
        (0..self.batch).flat_map(of_batch)
    }
}

/// The result with, for each element, the sum of the magnitudes that make it up.
#[derive(Clone, Debug)]
pub struct Forward {
    /// The result.
    pub o: Vec<f64>,
    /// Natural scale of each of its elements.
    pub o_scale: Vec<f64>,
    /// Logarithms of the sums; minus infinity where nothing is seen.
    pub lse: Vec<f64>,
}

/// `o` and `lse`.
pub fn forward(p: &Problem<'_>, q: &[f64], k: &[f64], v: &[f64]) -> Forward {
    let len = p.batch * p.queries * p.heads;
    let (mut o, mut o_scale) = (vec![0.0; len * p.value_width], vec![0.0; len * p.value_width]);
    let mut lse = vec![f64::NEG_INFINITY; len];
    for [batch, head, query] in p.places() {
        let scores = p.scores(q, k, [batch, head, query]);
        let sink = p.sink.map_or(f64::NEG_INFINITY, |sink| sink(head));
        let top = scores
            .iter()
            .flatten()
            .fold(sink, |top, (s, _)| if s.is_nan() || top.is_nan() { f64::NAN } else { top.max(*s) });
        if top == f64::NEG_INFINITY {
            continue;
        }
        let sum: f64 =
            (sink - top).exp() + scores.iter().flatten().map(|(s, _)| (s - top).exp()).sum::<f64>();
        lse[(batch * p.heads + head) * p.queries + query] = top + sum.ln();
        let to = ((batch * p.queries + query) * p.heads + head) * p.value_width;
        let key_head = head / (p.heads / p.key_heads);
        for (key, score) in scores.iter().enumerate() {
            let Some((score, _)) = score else { continue };
            let weight = (score - top).exp() / sum * p.kept(batch, head, query, key);
            let values = p.row(v, p.key_heads, p.value_width, [batch, key, key_head], p.keys);
            for (d, value) in values.iter().enumerate() {
                o[to + d] += weight * value;
                o_scale[to + d] += (weight * value).abs();
            }
        }
    }
    Forward { o, o_scale, lse }
}

/// The gradients, with natural scales.
#[derive(Clone, Debug, Default)]
pub struct Backward {
    /// Of the queries.
    pub dq: Vec<f64>,
    /// Of the keys.
    pub dk: Vec<f64>,
    /// Of the values.
    pub dv: Vec<f64>,
    /// Natural scale of the queries' gradients: the sum of the magnitudes that make them up.
    pub dq_scale: Vec<f64>,
    /// That of the keys'.
    pub dk_scale: Vec<f64>,
    /// That of the values'.
    pub dv_scale: Vec<f64>,
    /// Of the scores, `[batch, heads, queries, keys]`: summed over what the bias is broadcast, that of the bias.
    pub ds: Vec<f64>,
    /// Natural scale of those.
    pub ds_scale: Vec<f64>,
    /// Of the sinks.
    pub dsinks: Vec<f64>,
    /// That of the sinks'.
    pub dsinks_scale: Vec<f64>,
}

/// The gradients of `sum(o dy)`.
pub fn backward(p: &Problem<'_>, q: &[f64], k: &[f64], v: &[f64], dy: &[f64]) -> Backward {
    let Forward { o, lse, .. } = forward(p, q, k, v);
    let mut out = Backward {
        dq: vec![0.0; q.len()],
        dk: vec![0.0; k.len()],
        dv: vec![0.0; v.len()],
        dq_scale: vec![0.0; q.len()],
        dk_scale: vec![0.0; k.len()],
        dv_scale: vec![0.0; v.len()],
        ds: vec![0.0; p.batch * p.heads * p.queries * p.keys],
        ds_scale: vec![0.0; p.batch * p.heads * p.queries * p.keys],
        dsinks: vec![0.0; p.heads],
        dsinks_scale: vec![0.0; p.heads],
    };
    for [batch, head, query] in p.places() {
        let of_query = lse[(batch * p.heads + head) * p.queries + query];
        if of_query == f64::NEG_INFINITY {
            continue;
        }
        let key_head = head / (p.heads / p.key_heads);
        let dys = p.row(dy, p.heads, p.value_width, [batch, query, head], p.queries);
        let os = p.row(&o, p.heads, p.value_width, [batch, query, head], p.queries);
        let delta: f64 = dys.iter().zip(os).map(|(a, b)| a * b).sum();
        let delta_scale: f64 = dys.iter().zip(os).map(|(a, b)| (a * b).abs()).sum();
        if let Some(sink) = p.sink {
            let weight = (sink(head) - of_query).exp();
            out.dsinks[head] -= weight * delta;
            out.dsinks_scale[head] += weight * delta_scale;
        }
        let q_at = ((batch * p.queries + query) * p.heads + head) * p.width;
        for (key, score) in p.scores(q, k, [batch, head, query]).into_iter().enumerate() {
            let Some((score, derivative)) = score else { continue };
            let weight = (score - of_query).exp();
            let row = (batch * p.keys + key) * p.key_heads + key_head;
            let (k_at, v_at) = (row * p.width, row * p.value_width);
            let dp: f64 = dys.iter().zip(&v[v_at..]).map(|(a, b)| a * b).sum();
            let dp_scale: f64 = dys.iter().zip(&v[v_at..]).map(|(a, b)| (a * b).abs()).sum();
            let kept = p.kept(batch, head, query, key);
            let ds = weight * (dp * kept - delta);
            let ds_scale = weight * (dp_scale * kept + delta_scale);
            let at = ((batch * p.heads + head) * p.queries + query) * p.keys + key;
            out.ds[at] = ds;
            out.ds_scale[at] = ds_scale;
            let ds_scale = ds_scale * derivative;
            for (d, dy) in dys.iter().enumerate() {
                out.dv[v_at + d] += weight * kept * dy;
                out.dv_scale[v_at + d] += (weight * kept * dy).abs();
            }
            for d in 0..p.width {
                out.dq[q_at + d] += ds * derivative * k[k_at + d];
                out.dk[k_at + d] += ds * derivative * q[q_at + d];
                out.dq_scale[q_at + d] += (ds_scale * k[k_at + d]).abs();
                out.dk_scale[k_at + d] += (ds_scale * q[q_at + d]).abs();
            }
        }
    }
    out
}
