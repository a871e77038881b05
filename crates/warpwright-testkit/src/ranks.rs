//! Operations over several ranks, each held against what one device makes of all the data.

use std::thread;
use std::time::{Duration, Instant};

use warpwright::attention::{Scores, attention, attention_backward};
use warpwright::batch_norm::{
    BatchNormOptions, Layout, Momentum, RunningStatistics, batch_norm, batch_norm_backward,
};
use warpwright::comm::{Communicator, Group, Reduction};
use warpwright::cross_entropy::{CrossEntropyOptions, cross_entropy, cross_entropy_backward};
use warpwright::elementwise::{Expr, map};
use warpwright::embedding::{EmbeddingOptions, embedding, embedding_backward};
use warpwright::layer_norm::{RowNormOptions, layer_norm, layer_norm_backward};
use warpwright::matmul::{MatmulOptions, matmul};
use warpwright::parallel::{
    ContextParallel, GradientBuckets, TensorParallel, Variant, VocabularyShard, column_linear,
    column_linear_backward, row_linear, row_linear_backward, sum_norm_gradients, sync_batch_norm,
    sync_batch_norm_backward,
};
use warpwright::{DType, Error, NormGradients, RuntimeError, Stream, Tensor, sum};

/// One operation in one configuration.
#[derive(Clone, Copy, Debug)]
pub struct RankCase {
    /// The operation.
    pub op: &'static str,
    /// Its configuration in a few words.
    pub options: &'static str,
    /// Element type.
    pub dtype: DType,
    /// The largest error of a tensor: the norm of the difference over that of the expected one.
    pub budget: f64,
    work: fn(&Rank<'_>) -> Result<(), Error>,
}

/// The outcome of a case.
#[derive(Clone, Debug)]
pub struct RankResult {
    /// The case.
    pub case: RankCase,
    /// The largest error of a tensor of any rank.
    pub error: f64,
    /// Whether all are within the budget.
    pub ok: bool,
    /// The tensor with the largest error, or the first failure of a rank.
    pub reason: Option<String>,
    /// How long it took.
    pub time: Duration,
}

/// Every case.
pub fn cases() -> Vec<RankCase> {
    let case = |op, options, work| RankCase { op, options, dtype: DType::F32, budget: 2e-5, work };
    let half = |case: RankCase| RankCase { dtype: DType::BF16, budget: 2e-2, ..case };
    let norm = case("sync_batch_norm", "uneven batches, weight, bias", |rank| {
        norms(rank, Layout::ChannelsFirst, false)
    });
    let fused = case("sync_batch_norm", "channels last, residual, relu", |rank| {
        norms(rank, Layout::ChannelsLast, true)
    });
    let linears = case("tensor_parallel_linear", "column, row", |rank| linear(rank, false));
    let sequence = case("tensor_parallel_linear", "column, row, sequence", |rank| linear(rank, true));
    let ring = case("context_attention", "ring, causal", |rank| context(rank, Variant::Ring, true));
    let gathered =
        case("context_attention", "all_gather, causal", |rank| context(rank, Variant::AllGather, true));
    let loss = case("vocabulary_cross_entropy", "ignored rows", loss);
    vec![
        RankCase { budget: 0.0, ..case("collectives", "every call", collectives) },
        norm,
        fused,
        half(norm),
        RankCase { dtype: DType::F64, budget: 1e-12, ..norm },
        linears,
        sequence,
        half(linears),
        case("vocabulary_embedding", "uneven parts", words),
        loss,
        half(loss),
        case("sequence_parallel_norm", "layer_norm", rows),
        ring,
        case("context_attention", "ring", |rank| context(rank, Variant::Ring, false)),
        gathered,
        case("context_attention", "all_gather", |rank| context(rank, Variant::AllGather, false)),
        half(ring),
        half(gathered),
        RankCase { budget: 1e-6, ..case("gradient_buckets", "three buckets", buckets) },
    ]
}

/// Runs a case on all ranks, a thread for each.
pub fn run_case(case: &RankCase, ranks: &[Communicator]) -> RankResult {
    let started = Instant::now();
    let outcomes: Vec<Result<Worst, String>> = thread::scope(|scope| {
        let start = |comm| scope.spawn(move || run_rank(case, comm));
        let threads: Vec<_> = ranks.iter().map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("it panicked".to_owned())))
            .collect()
    });
    let mut result = RankResult { case: *case, error: 0.0, ok: true, reason: None, time: started.elapsed() };
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(worst) => {
                if worst.error > result.error {
                    result.error = worst.error;
                    result.reason = Some(format!("rank {rank}: {}", worst.tensor));
                }
            }
            Err(error) => {
                result.ok = false;
                return RankResult { reason: Some(format!("rank {rank}: {error}")), ..result };
            }
        }
    }
    result.ok = result.error <= case.budget;
    if result.ok {
        result.reason = None;
    }
    result
}

/// The rank alone, for a process that is one of several; what others make of it they say themselves.
///
/// # Errors
/// The failure of the rank, or the tensor that is not within the budget.
pub fn run_one(case: &RankCase, comm: &Communicator) -> Result<f64, String> {
    let worst = run_rank(case, comm)?;
    if worst.error <= case.budget {
        Ok(worst.error)
    } else {
        Err(format!("{}: {:e}", worst.tensor, worst.error))
    }
}

fn run_rank(case: &RankCase, comm: &Communicator) -> Result<Worst, String> {
    let stream = comm.device().stream().map_err(|error| error.to_string())?;
    let rank = Rank { comm, stream: &stream, dtype: case.dtype, worst: std::cell::RefCell::default() };
    let outcome = (case.work)(&rank);
    if let Err(error) = outcome {
        // The others would wait for calls that do not come.
        comm.abort();
        return Err(error.to_string());
    }
    Ok(rank.worst.into_inner())
}

/// The tensor that is furthest from what was expected.
#[derive(Clone, Debug, Default)]
struct Worst {
    error: f64,
    tensor: String,
}

/// One rank of a case, with all data at hand.
struct Rank<'c> {
    comm: &'c Communicator,
    stream: &'c Stream,
    dtype: DType,
    worst: std::cell::RefCell<Worst>,
}

impl Rank<'_> {
    /// Numbers from -1 to 1, the same on all ranks; `seed` tells tensors apart.
    fn data(&self, seed: u64, shape: &[usize]) -> Result<Tensor, Error> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f64 / f64::from(1 << 23) - 1.0
        };
        let data: Vec<f64> = (0..shape.iter().product()).map(|_| next()).collect();
        self.of(&data, shape)
    }

    fn of(&self, data: &[f64], shape: &[usize]) -> Result<Tensor, Error> {
        let wide = Tensor::from_slice(self.comm.device(), data, shape)?;
        if data.is_empty() {
            return Ok(Tensor::empty(self.comm.device(), self.dtype, shape)?);
        }
        map(self.stream, &[&wide], &Expr::input(0), &[], self.dtype)
    }

    fn numbers(&self, x: &Tensor) -> Result<Vec<f64>, Error> {
        if x.is_empty() {
            return Ok(Vec::new());
        }
        Ok(map(self.stream, &[x], &Expr::input(0), &[], DType::F64)?.to_vec_on(self.stream)?)
    }

    /// Some of the places of an axis, in a new tensor.
    fn take(&self, x: &Tensor, axis: usize, places: &[usize]) -> Result<Tensor, Error> {
        let data = self.numbers(x)?;
        let shape = x.shape();
        let (outer, inner): (usize, usize) =
            (shape[..axis].iter().product(), shape[axis + 1..].iter().product());
        let mut taken = Vec::new();
        for o in 0..outer {
            for place in places {
                let start = (o * shape[axis] + place) * inner;
                taken.extend_from_slice(&data[start..start + inner]);
            }
        }
        let mut shape = shape.to_vec();
        shape[axis] = places.len();
        let like = Rank { dtype: x.dtype(), worst: Default::default(), ..*self };
        like.of(&taken, &shape)
    }

    /// This rank's even part of an axis.
    fn part(&self, x: &Tensor, axis: usize) -> Result<Tensor, Error> {
        let each = x.shape()[axis] / self.comm.size();
        let start = self.comm.rank() * each;
        self.take(x, axis, &(start..start + each).collect::<Vec<_>>())
    }

    fn expect(&self, tensor: &str, got: &Tensor, expected: &Tensor) -> Result<(), Error> {
        self.comm.synchronize(self.stream)?;
        let (got, expected) = (self.numbers(got)?, self.numbers(expected)?);
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let distance = norm(&mut got.iter().zip(&expected).map(|(a, b)| a - b));
        let size = norm(&mut expected.iter().copied());
        let error = match (got.len() == expected.len(), distance == 0.0) {
            (false, _) => f64::INFINITY,
            (true, true) => 0.0,
            // What is no number is no error that is small enough.
            (true, false) => Some(distance / size).filter(|error| !error.is_nan()).unwrap_or(f64::INFINITY),
        };
        let mut worst = self.worst.borrow_mut();
        if error > worst.error {
            *worst = Worst { error, tensor: tensor.to_owned() };
        }
        Ok(())
    }

    fn expect_option(
        &self,
        tensor: &str,
        got: Option<&Tensor>,
        expected: Option<&Tensor>,
    ) -> Result<(), Error> {
        match (got, expected) {
            (Some(got), Some(expected)) => self.expect(tensor, got, expected),
            (None, None) => Ok(()),
            _ => {
                *self.worst.borrow_mut() =
                    Worst { error: f64::INFINITY, tensor: format!("{tensor} is missing") };
                Ok(())
            }
        }
    }

    /// The sum of the tensors of all ranks.
    fn total(&self, x: &Tensor) -> Result<Tensor, Error> {
        let mut sum = x.clone_on(self.stream)?;
        self.comm.all_reduce_in_place(self.stream, Reduction::Sum, &mut sum)?;
        Ok(sum)
    }
}

fn collectives(rank: &Rank<'_>) -> Result<(), Error> {
    let (comm, stream, me, size) = (rank.comm, rank.stream, rank.comm.rank(), rank.comm.size());
    let own = |r: usize| [r as f64 + 1.0, 2.0];
    let everyone: Vec<f64> = (0..size).flat_map(own).collect();
    let x = rank.of(&own(me), &[2])?;
    let all = rank.of(&everyone, &[size, 2])?;
    for reduction in Reduction::ALL {
        let column = |i: usize| -> f64 {
            let each = (0..size).map(|r| own(r)[i]);
            match reduction {
                Reduction::Sum => each.sum(),
                Reduction::Mean => each.sum::<f64>() / size as f64,
                Reduction::Product => each.product(),
                Reduction::Min => each.fold(f64::INFINITY, f64::min),
                Reduction::Max => each.fold(f64::NEG_INFINITY, f64::max),
            }
        };
        let mut y = Tensor::zeros_on(stream, rank.dtype, &[2])?;
        comm.all_reduce(stream, reduction, &x, &mut y)?;
        rank.expect(&format!("all_reduce {reduction}"), &y, &rank.of(&[column(0), column(1)], &[2])?)?;
        let mut y = Tensor::zeros_on(stream, rank.dtype, &[2])?;
        comm.reduce_scatter(stream, reduction, &all, &mut y)?;
        let [a, b] = own(me);
        let same = |x: f64| match reduction {
            Reduction::Sum => x * size as f64,
            Reduction::Product => x.powi(size as i32),
            _ => x,
        };
        rank.expect(&format!("reduce_scatter {reduction}"), &y, &rank.of(&[same(a), same(b)], &[2])?)?;
    }
    let mut y = Tensor::zeros_on(stream, rank.dtype, &[size, 2])?;
    comm.all_gather(stream, &x, &mut y)?;
    rank.expect("all_gather", &y, &all)?;
    let mut y = Tensor::zeros_on(stream, rank.dtype, &[size, 2])?;
    comm.all_to_all(stream, &all, &mut y)?;
    rank.expect("all_to_all", &y, &rank.of(&own(me).repeat(size), &[size, 2])?)?;
    let mut y = x.clone_on(stream)?;
    comm.broadcast(stream, size - 1, &mut y)?;
    rank.expect("broadcast", &y, &rank.of(&own(size - 1), &[2])?)?;
    if size > 1 {
        let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
        let mut y = Tensor::zeros_on(stream, rank.dtype, &[2])?;
        let mut group = Group::new();
        group.send(next, &x).receive(previous, &mut y);
        comm.run(stream, group)?;
        rank.expect("message", &y, &rank.of(&own(previous), &[2])?)?;
    }
    Ok(comm.barrier(stream)?)
}

/// Ranks have 1, 2, 3, 1, .. samples, and the last of more than two has none.
fn norms(rank: &Rank<'_>, layout: Layout, fused: bool) -> Result<(), Error> {
    const CHANNELS: usize = 5;
    let (comm, stream, size) = (rank.comm, rank.stream, rank.comm.size());
    let samples = |r: usize| if size > 2 && r == size - 1 { 0 } else { r % 3 + 1 };
    let start: usize = (0..comm.rank()).map(samples).sum();
    let own: Vec<usize> = (start..start + samples(comm.rank())).collect();
    let batch = (0..size).map(samples).sum();
    let shape = match layout {
        Layout::ChannelsFirst => [batch, CHANNELS, 3, 2],
        Layout::ChannelsLast => [batch, 3, 2, CHANNELS],
    };
    let [x, residual, dy] = [rank.data(1, &shape)?, rank.data(2, &shape)?, rank.data(3, &shape)?];
    let (weight, bias) = (rank.data(4, &[CHANNELS])?, rank.data(5, &[CHANNELS])?);
    let with = |residual| BatchNormOptions {
        weight: Some(&weight),
        bias: Some(&bias),
        residual,
        relu: fused,
        layout,
        ..Default::default()
    };
    let running = || -> Result<[Tensor; 2], Error> {
        Ok([
            Tensor::zeros_on(stream, rank.dtype, &[CHANNELS])?,
            Tensor::ones_on(stream, rank.dtype, &[CHANNELS])?,
        ])
    };
    let momentum = Momentum::Exponential(0.25.into());

    let [mut mean, mut var] = running()?;
    let options = with(fused.then_some(&residual));
    let moved = RunningStatistics { mean: &mut mean, var: &mut var, momentum };
    let expected = batch_norm(stream, &x, Some(moved), options)?;
    let gradients = batch_norm_backward(stream, &x, &expected, &dy, options)?;

    let [own_x, own_residual, own_dy] =
        [rank.take(&x, 0, &own)?, rank.take(&residual, 0, &own)?, rank.take(&dy, 0, &own)?];
    let [mut own_mean, mut own_var] = running()?;
    let options = with(fused.then_some(&own_residual));
    let moved = RunningStatistics { mean: &mut own_mean, var: &mut own_var, momentum };
    let out = sync_batch_norm(comm, stream, &own_x, Some(moved), options)?;
    rank.expect("y", &out.y, &rank.take(&expected.y, 0, &own)?)?;
    rank.expect_option("mean", Some(&out.statistics.mean), expected.mean.as_ref())?;
    rank.expect_option("rstd", Some(&out.statistics.rstd), expected.rstd.as_ref())?;
    rank.expect("running mean", &own_mean, &mean)?;
    rank.expect("running var", &own_var, &var)?;
    let got = sync_batch_norm_backward(comm, stream, &own_x, &out, &own_dy, options)?;
    rank.expect("dx", &got.dx, &rank.take(&gradients.dx, 0, &own)?)?;
    let dresidual = gradients.dresidual.map(|x| rank.take(&x, 0, &own)).transpose()?;
    rank.expect_option("dresidual", got.dresidual.as_ref(), dresidual.as_ref())?;
    expect_sums(rank, &got, gradients.dweight.as_ref(), gradients.dbias.as_ref())
}

/// Gradients of weight and bias that are right once they are summed over the ranks.
fn expect_sums(
    rank: &Rank<'_>,
    got: &NormGradients,
    dweight: Option<&Tensor>,
    dbias: Option<&Tensor>,
) -> Result<(), Error> {
    let total = |x: &Option<Tensor>| x.as_ref().map(|x| rank.total(x)).transpose();
    rank.expect_option("dweight", total(&got.dweight)?.as_ref(), dweight)?;
    rank.expect_option("dbias", total(&got.dbias)?.as_ref(), dbias)
}

fn linear(rank: &Rank<'_>, sequence: bool) -> Result<(), Error> {
    let (comm, stream, size) = (rank.comm, rank.stream, rank.comm.size());
    let (rows, inner, hidden, outer) = (2 * size, 6, 3 * size, 4);
    let x = rank.data(1, &[rows, inner])?;
    let (w1, b1) = (rank.data(2, &[hidden, inner])?, rank.data(3, &[hidden])?);
    let (w2, b2) = (rank.data(4, &[outer, hidden])?, rank.data(5, &[outer])?);
    let dy = rank.data(6, &[rows, outer])?;
    let [nt, nn, tn] = [(false, true), (false, false), (true, false)]
        .map(|(transpose_a, transpose_b)| MatmulOptions { transpose_a, transpose_b, ..Default::default() });
    let h = matmul(stream, &x, &w1, MatmulOptions { bias: Some(&b1), ..nt })?;
    let y = matmul(stream, &h, &w2, MatmulOptions { bias: Some(&b2), ..nt })?;
    let dh = matmul(stream, &dy, &w2, nn)?;

    let parallel = TensorParallel { comm, sequence };
    let rows_of =
        |x: &Tensor| if sequence { rank.part(x, 0) } else { x.clone_on(stream).map_err(Error::from) };
    let (own_x, own_dy) = (rows_of(&x)?, rows_of(&dy)?);
    let (own_w1, own_b1, own_w2) = (rank.part(&w1, 0)?, rank.part(&b1, 0)?, rank.part(&w2, 1)?);
    let own_h = column_linear(parallel, stream, &own_x, &own_w1, Some(&own_b1))?;
    rank.expect("column y", &own_h, &rank.part(&h, 1)?)?;
    let own_y = row_linear(parallel, stream, &own_h, &own_w2, Some(&b2))?;
    rank.expect("row y", &own_y, &rows_of(&y)?)?;
    let second = row_linear_backward(parallel, stream, &own_h, &own_w2, true, &own_dy)?;
    rank.expect("row dx", &second.dx, &rank.part(&dh, 1)?)?;
    rank.expect("row dweight", &second.dweight, &rank.part(&matmul(stream, &dy, &h, tn)?, 1)?)?;
    rank.expect_option("row dbias", second.dbias.as_ref(), Some(&sum(stream, &dy, &[0], false)?))?;
    let first = column_linear_backward(parallel, stream, &own_x, &own_w1, true, &second.dx)?;
    rank.expect("column dx", &first.dx, &rows_of(&matmul(stream, &dh, &w1, nn)?)?)?;
    rank.expect("column dweight", &first.dweight, &rank.part(&matmul(stream, &dh, &x, tn)?, 0)?)?;
    let dbias = rank.part(&sum(stream, &dh, &[0], false)?, 0)?;
    rank.expect_option("column dbias", first.dbias.as_ref(), Some(&dbias))
}

fn words(rank: &Rank<'_>) -> Result<(), Error> {
    const DIM: usize = 3;
    let (comm, stream) = (rank.comm, rank.stream);
    let vocabulary = 3 * comm.size() + 1;
    let weight = rank.data(1, &[vocabulary, DIM])?;
    let dy = rank.data(2, &[2, 5, DIM])?;
    for index in [DType::I64, DType::I32] {
        let indices: Vec<i64> = (0..10).map(|i| (i * i + 1) % vocabulary as i64).collect();
        let indices = match index {
            DType::I64 => Tensor::from_slice(comm.device(), &indices, &[2, 5])?,
            _ => {
                let indices: Vec<i32> = indices.iter().map(|i| *i as i32).collect();
                Tensor::from_slice(comm.device(), &indices, &[2, 5])?
            }
        };
        let y = embedding(stream, &weight, &indices)?;
        let dweight = embedding_backward(stream, &dy, &indices, vocabulary, EmbeddingOptions::default())?;
        let shard = VocabularyShard::new(comm, vocabulary, index)?;
        let own: Vec<usize> = shard.words().collect();
        rank.expect("y", &shard.embedding(stream, &rank.take(&weight, 0, &own)?, &indices)?, &y)?;
        let own_dweight = shard.embedding_backward(stream, &dy, &indices)?;
        rank.expect("dweight", &own_dweight, &rank.take(&dweight, 0, &own)?)?;
    }
    Ok(())
}

fn loss(rank: &Rank<'_>) -> Result<(), Error> {
    const ROWS: usize = 6;
    let (comm, stream) = (rank.comm, rank.stream);
    let classes = 4 * comm.size() + 3;
    let logits = rank.data(1, &[ROWS, classes])?;
    let logits = map(stream, &[&logits], &(Expr::input(0) * Expr::constant(4.0)), &[], rank.dtype)?;
    // The third does not count.
    let targets: Vec<i64> = (0..ROWS).map(|i| if i == 2 { -100 } else { (i * 5 % classes) as i64 }).collect();
    let target = Tensor::from_slice(comm.device(), &targets, &[ROWS])?;
    let wide = Some(rank.dtype.accumulator());
    let reduction = warpwright::cross_entropy::Reduction::None;
    let options = CrossEntropyOptions { reduction, loss: wide, ..Default::default() };
    let expected = cross_entropy(stream, &logits, &target, options)?;
    let like_loss = Rank { dtype: rank.dtype.accumulator(), worst: Default::default(), ..*rank };
    let dloss = like_loss.data(2, &[ROWS])?;
    let dlogits = cross_entropy_backward(stream, &logits, &target, &expected, &dloss, options)?;

    let shard = VocabularyShard::new(comm, classes, DType::I64)?;
    let own: Vec<usize> = shard.words().collect();
    let own_logits = rank.take(&logits, 1, &own)?;
    let out = shard.cross_entropy(stream, &own_logits, &target)?;
    rank.expect("loss", &out.loss, &expected.loss)?;
    rank.expect("lse", &out.lse, &expected.lse)?;
    let got = shard.cross_entropy_backward(stream, &own_logits, &target, &out, &dloss)?;
    rank.expect("dlogits", &got, &rank.take(&dlogits, 1, &own)?)
}

fn rows(rank: &Rank<'_>) -> Result<(), Error> {
    let (comm, stream, cols) = (rank.comm, rank.stream, 7);
    let (x, dy) = (rank.data(1, &[2 * comm.size(), cols])?, rank.data(2, &[2 * comm.size(), cols])?);
    let (weight, bias) = (rank.data(3, &[cols])?, rank.data(4, &[cols])?);
    let options = RowNormOptions { weight: Some(&weight), bias: Some(&bias), ..Default::default() };
    let expected = layer_norm(stream, &x, options)?;
    let gradients = layer_norm_backward(stream, &x, &expected, &dy, options)?;
    let (own_x, own_dy) = (rank.part(&x, 0)?, rank.part(&dy, 0)?);
    let out = layer_norm(stream, &own_x, options)?;
    rank.expect("y", &out.y, &rank.part(&expected.y, 0)?)?;
    let mut got = layer_norm_backward(stream, &own_x, &out, &own_dy, options)?;
    sum_norm_gradients(comm, stream, &mut got)?;
    rank.expect("dx", &got.dx, &rank.part(&gradients.dx, 0)?)?;
    rank.expect_option("dweight", got.dweight.as_ref(), gradients.dweight.as_ref())?;
    rank.expect_option("dbias", got.dbias.as_ref(), gradients.dbias.as_ref())
}

fn context(rank: &Rank<'_>, variant: Variant, causal: bool) -> Result<(), Error> {
    const HEADS: [usize; 2] = [2, 1];
    const DIM: usize = 8;
    let (comm, stream, size) = (rank.comm, rank.stream, rank.comm.size());
    let len = 6 * size;
    // Of several samples the halves of positions are no memory without gaps.
    let batch = if size < 4 { 2 } else { 1 };
    let [heads, kv_heads] = HEADS;
    let (q, dy) = (rank.data(1, &[batch, len, heads, DIM])?, rank.data(4, &[batch, len, heads, DIM])?);
    let (k, v) = (rank.data(2, &[batch, len, kv_heads, DIM])?, rank.data(3, &[batch, len, kv_heads, DIM])?);
    let scores = Scores { causal, softmax_scale: Some(0.5), ..Default::default() };
    let expected = attention(stream, &q, &k, &v, scores)?;
    let gradients = attention_backward(stream, &q, &k, &v, &expected, &dy, scores)?;

    let positions = ContextParallel::positions(len, comm.rank(), size, causal);
    let own = |x: &Tensor| rank.take(x, 1, &positions);
    let (own_q, own_k, own_v, own_dy) = (own(&q)?, own(&k)?, own(&v)?, own(&dy)?);
    let context = ContextParallel::new(comm, variant, causal, Some(0.5))?;
    let out = context.forward(stream, &own_q, &own_k, &own_v)?;
    rank.expect("o", &out.o, &own(&expected.o)?)?;
    rank.expect("lse", &out.lse, &rank.take(&expected.lse, 2, &positions)?)?;
    let got = context.backward(stream, [&own_q, &own_k, &own_v], &out, &own_dy)?;
    rank.expect("dq", &got.dq, &own(&gradients.dq)?)?;
    rank.expect("dk", &got.dk, &own(&gradients.dk)?)?;
    rank.expect("dv", &got.dv, &own(&gradients.dv)?)
}

fn buckets(rank: &Rank<'_>) -> Result<(), Error> {
    let (comm, stream, size) = (rank.comm, rank.stream, rank.comm.size());
    let lengths = [5usize, 1, 300, 2, 40];
    let own = |r: usize, i: usize| (r * 7 + i) as f64;
    // The third fills the first bucket, the last two are the second.
    let mut buckets = GradientBuckets::new(comm, 1000)?;
    for (i, len) in lengths.into_iter().enumerate() {
        buckets.push(stream, rank.of(&vec![own(comm.rank(), i); len], &[len])?)?;
    }
    let gradients = buckets.finish(stream)?;
    if gradients.len() != lengths.len() {
        let error = RuntimeError::Bounds {
            op: "GradientBuckets",
            argument: "gradients",
            needed: lengths.len() as u64,
            available: gradients.len() as u64,
        };
        return Err(error.into());
    }
    for (i, (got, len)) in gradients.iter().zip(lengths).enumerate() {
        let mean = (0..size).map(|r| own(r, i)).sum::<f64>() / size as f64;
        rank.expect(&format!("gradient {i}"), got, &rank.of(&vec![mean; len], &[len])?)?;
    }
    Ok(())
}
