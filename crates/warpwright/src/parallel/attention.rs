//! Attention over sequences that are split over the ranks (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889).

use warpwright_ops::Error;
use warpwright_ops::attention::AttentionGradients;
use warpwright_ops::attention::{AttentionOutput, Scores, attention, attention_backward};
use warpwright_ops::elementwise::{Expr, Operand, map_into};
use warpwright_ptx::DType;
use warpwright_runtime::comm::{Communicator, Group, Reduction};
use warpwright_runtime::{Event, Stream, Tensor, TensorRef};

use super::{into_dtype, map_new, refused};

const OP: &str = "ContextParallel";

/// How keys and values come to the queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// From rank to rank around a ring, while attention with those before runs: memory for two ranks' keys and values.
    #[default]
    Ring,
    /// All at once before attention begins: memory for all keys and values, and one exchange.
    AllGather,
}

/// Attention whose sequences are split over the ranks of a communicator, the same number of positions on each.
///
/// Without a causal mask each rank has any part of the sequence. With one, the sequence is cut into two chunks for each rank, and
/// rank `r` of `n` has chunks `r` and `2 n - 1 - r`, one after the other ([`ContextParallel::positions`]), so that all ranks have the
/// same work. Both variants give the same bits forward.
#[derive(Debug)]
pub struct ContextParallel<'c> {
    comm: &'c Communicator,
    variant: Variant,
    causal: bool,
    softmax_scale: Option<f64>,
    /// Where keys and values travel.
    transfer: Stream,
    /// 0 and 1 for the halves of a rank's positions: `[2, 1, 1, 1]` in f32.
    half: Tensor,
}

/// Which queries of this rank see which keys of another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    /// All see all, or of the rank's own those before them.
    All { causal: bool },
    /// All queries see the first half of the keys.
    FirstKeys,
    /// The second half of the queries sees all keys.
    LastQueries,
}

/// The part of a tensor of `[batch, positions, heads, dim]` that is the second half, or the first.
fn half(x: TensorRef<'_>, second: bool) -> Result<TensorRef<'_>, Error> {
    let len = x.shape()[1] / 2;
    Ok(x.narrow(1, if second { len } else { 0 }, len)?)
}

/// `[batch, 2, positions / 2, heads, dim]`
fn halves(x: &Tensor) -> [usize; 5] {
    let [batch, positions, heads, dim] = extents(x.as_ref());
    [batch, 2, positions / 2, heads, dim]
}

fn extents(x: TensorRef<'_>) -> [usize; 4] {
    match x.shape() {
        &[batch, positions, heads, dim] => [batch, positions, heads, dim],
        // Refused before: see `check`.
        _ => [0; 4],
    }
}

/// A statistic of `[batch, heads, positions]` beside a result of `[batch, positions, heads, dim]`.
fn beside(lse: TensorRef<'_>) -> Result<TensorRef<'_>, Error> {
    let shape = [lse.shape(), &[1]].concat();
    Ok(lse.reshape(&shape)?.permute(&[0, 2, 1, 3])?)
}

/// Results of attention with some of the keys, in the type of sums.
struct Merged {
    o: Tensor,
    lse: Tensor,
}

impl<'c> ContextParallel<'c> {
    /// Attention over the sequences of a communicator's ranks; `softmax_scale` is `1 / sqrt(head_dim)` if none is given.
    ///
    /// # Errors
    /// [`Error::Runtime`] of the driver, or if memory runs out.
    pub fn new(
        comm: &'c Communicator,
        variant: Variant,
        causal: bool,
        softmax_scale: Option<f64>,
    ) -> Result<Self, Error> {
        let half = Tensor::from_slice(comm.device(), &[0.0f32, 1.0], &[2, 1, 1, 1])?;
        let transfer = comm.device().new_stream()?;
        Ok(Self { comm, variant, causal, softmax_scale, transfer, half })
    }

    /// The positions of the whole sequence that rank `rank` has, in its order, for a sequence of `len` positions: with a causal mask
    /// two chunks of `len / (2 size)`, else one part of `len / size`.
    pub fn positions(len: usize, rank: usize, size: usize, causal: bool) -> Vec<usize> {
        let size = size.max(1);
        if !causal {
            let part = len / size;
            return (rank * part..(rank + 1) * part).collect();
        }
        let chunk = len / (2 * size);
        [rank, 2 * size - 1 - rank].into_iter().flat_map(|n| n * chunk..(n + 1) * chunk).collect()
    }

    fn check(&self, [q, k, v]: [&Tensor; 3]) -> Result<(), Error> {
        for (parameter, x) in [("q", q), ("k", k), ("v", v)] {
            let &[_, positions, _, _] = x.shape() else {
                return Err(refused(
                    OP,
                    parameter,
                    format!("{:?}", x.shape()),
                    "[batch, positions, heads, head_dim]",
                ));
            };
            if positions == 0 || (self.causal && positions % 2 != 0) {
                let expected = "a multiple of two chunks, or of one without a causal mask, and not 0";
                return Err(refused(OP, "positions", positions.to_string(), expected));
            }
        }
        if self.causal && q.shape()[1] != k.shape()[1] {
            let got = format!("{} queries, {} keys", q.shape()[1], k.shape()[1]);
            return Err(refused(OP, "positions", got, "as many queries as keys with a causal mask"));
        }
        Ok(())
    }

    fn share(&self, other: usize) -> Share {
        match (self.causal, other.cmp(&self.comm.rank())) {
            (false, _) => Share::All { causal: false },
            (true, std::cmp::Ordering::Equal) => Share::All { causal: true },
            (true, std::cmp::Ordering::Less) => Share::FirstKeys,
            (true, std::cmp::Ordering::Greater) => Share::LastQueries,
        }
    }

    fn scores(&self, share: Share) -> Scores<'static> {
        let causal = share == Share::All { causal: true };
        Scores { causal, softmax_scale: self.softmax_scale, ..Scores::default() }
    }

    /// Gives keys and values of every rank to `body`, this rank's own first, then those of the ranks before it.
    fn each_rank(
        &self,
        stream: &Stream,
        [k, v]: [&Tensor; 2],
        mut body: impl FnMut(usize, TensorRef<'_>, TensorRef<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let gathered =
            (self.variant == Variant::AllGather).then(|| self.gather(stream, [k, v])).transpose()?;
        let mut held: Option<[Tensor; 2]> = None;
        for step in 0..size {
            let other = (rank + size - step) % size;
            if let Some([k, v]) = &gathered {
                body(other, of_rank(k, other)?, of_rank(v, other)?)?;
                continue;
            }
            let [k, v] = held.as_ref().map_or([k, v], |[k, v]| [k, v]);
            let next = if step + 1 < size { Some(self.pass_on(stream, [k, v], step == 0)?) } else { None };
            body(other, k.as_ref(), v.as_ref())?;
            if let Some((next, arrived)) = next {
                stream.wait(&arrived)?;
                held = Some(next);
            }
        }
        Ok(())
    }

    /// Sends two tensors to the next rank and receives those of the one before, where keys and values travel.
    fn pass_on(
        &self,
        stream: &Stream,
        own: [&Tensor; 2],
        made_on_stream: bool,
    ) -> Result<([Tensor; 2], Event), Error> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        if made_on_stream {
            self.transfer.wait(&stream.record()?)?;
        }
        let [a, b] = own;
        let empty = |like: &Tensor| Tensor::empty_on(&self.transfer, like.dtype(), like.shape());
        let (mut first, mut second) = (empty(a)?, empty(b)?);
        let mut group = Group::new();
        group.send(next, a).send(next, b).receive(previous, &mut first).receive(previous, &mut second);
        self.comm.run(&self.transfer, group)?;
        Ok(([first, second], self.transfer.record()?))
    }

    /// Keys and values of all ranks, each `[ranks, batch, positions, heads, dim]`.
    fn gather(&self, stream: &Stream, own: [&Tensor; 2]) -> Result<[Tensor; 2], Error> {
        let all =
            |x: &Tensor| Tensor::empty_on(stream, x.dtype(), &[&[self.comm.size()], x.shape()].concat());
        let [k, v] = own;
        let (mut all_k, mut all_v) = (all(k)?, all(v)?);
        let mut group = Group::new();
        group.all_gather(k, &mut all_k).all_gather(v, &mut all_v);
        self.comm.run(stream, group)?;
        Ok([all_k, all_v])
    }

    /// Attention of this rank's queries over the keys of all ranks.
    ///
    /// `q` is `[batch, positions, heads, head_dim]`, `k` and `v` are `[batch, positions, num_kv_heads, head_dim]`, of f32, f64, f16 or bf16; the
    /// output is that of [`attention`](crate::attention()) for this rank's queries. What the keys of each rank give is merged by `lse`
    /// in f32, or f64 for f64.
    ///
    /// # Errors
    /// [`Error::Plan`] as `attention`, and if the positions cannot be split; [`Error::Runtime`] as [`Communicator::run`].
    pub fn forward(
        &self,
        stream: &Stream,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
    ) -> Result<AttentionOutput, Error> {
        self.check([q, k, v])?;
        let mut merged: Option<Merged> = None;
        self.each_rank(stream, [k, v], |other, k, v| {
            let share = self.share(other);
            let (q, [k, v]) = match share {
                Share::All { .. } => (q.as_ref(), [k, v]),
                Share::FirstKeys => (q.as_ref(), [half(k, false)?, half(v, false)?]),
                Share::LastQueries => (half(q.as_ref(), true)?, [k, v]),
            };
            let part = attention(stream, q, k, v, self.scores(share))?;
            match &mut merged {
                None => {
                    let AttentionOutput { o, lse } = part;
                    merged = Some(Merged { o: into_dtype(stream, o, lse.dtype())?, lse });
                }
                Some(merged) => self.merge(stream, merged, &part, share)?,
            }
            Ok(())
        })?;
        match merged {
            Some(Merged { o, lse }) => Ok(AttentionOutput { o: into_dtype(stream, o, q.dtype())?, lse }),
            None => Err(no_ranks()),
        }
    }

    /// `o += sigmoid(lse_b - lse) (o_b - o)`, then `lse += softplus(lse_b - lse)`: of all queries or of the second half.
    fn merge(
        &self,
        stream: &Stream,
        merged: &mut Merged,
        part: &AttentionOutput,
        share: Share,
    ) -> Result<(), Error> {
        let [o, lse, o_b, lse_b] = Expr::inputs();
        let new_o = &o + (&lse_b - &lse).sigmoid() * (o_b - &o);
        let [lse_, lse_b_] = Expr::inputs();
        let new_lse = &lse_ + (lse_b_ - &lse_).softplus();
        let Merged { o: all_o, lse: all_lse } = merged;
        if share != Share::LastQueries {
            let inputs = vec![
                Operand::Output(0),
                beside(all_lse.as_ref())?.into(),
                part.o.as_ref().into(),
                beside(part.lse.as_ref())?.into(),
            ];
            map_into(stream, inputs, &[new_o], &[], vec![all_o.as_mut()])?;
            let inputs = vec![Operand::Output(0), part.lse.as_ref().into()];
            return map_into(stream, inputs, &[new_lse], &[], vec![all_lse.as_mut()]);
        }
        let [batch, two, positions, heads, dim] = halves(all_o);
        let is_second = |index: usize| Expr::input(index).ne_(Expr::constant(0.0));
        let of_halves = |lse: &Tensor, halves: usize| -> Result<Vec<usize>, Error> {
            Ok(vec![lse.shape()[0], lse.shape()[1], halves, lse.shape()[2] / halves, 1])
        };
        let (whole, single) = (of_halves(all_lse, two)?, of_halves(&part.lse, 1)?);
        let lse_view = all_lse.as_ref().reshape(&whole)?.permute(&[0, 2, 3, 1, 4])?;
        let part_view = part.lse.as_ref().reshape(&single)?.permute(&[0, 2, 3, 1, 4])?;
        let inputs = vec![
            Operand::Output(0),
            lse_view.into(),
            part.o.as_ref().reshape(&[batch, 1, positions, heads, dim])?.into(),
            part_view.into(),
            self.half.as_ref().into(),
        ];
        let target = all_o.as_mut().reshape(&[batch, two, positions, heads, dim])?;
        map_into(stream, inputs, &[is_second(4).where_(new_o, o)], &[], vec![target])?;
        let whole = [batch, heads, two, positions];
        let inputs = vec![
            Operand::Output(0),
            part.lse.as_ref().reshape(&[batch, heads, 1, positions])?.into(),
            self.half.as_ref().reshape(&[2, 1])?.into(),
        ];
        let target = all_lse.as_mut().reshape(&whole)?;
        map_into(stream, inputs, &[is_second(2).where_(new_lse, lse_)], &[], vec![target])
    }

    /// The gradients of [`ContextParallel::forward`] from what it took, its `output`, and the gradient `dy` of this rank's `o`: those of this
    /// rank's queries, keys and values, of their shapes and type. Gradients of keys and values travel with them.
    ///
    /// # Errors
    /// As [`ContextParallel::forward`]; [`Error::Plan`] if `output` or `dy` are not of these shapes.
    pub fn backward(
        &self,
        stream: &Stream,
        [q, k, v]: [&Tensor; 3],
        output: &AttentionOutput,
        dy: &Tensor,
    ) -> Result<AttentionGradients, Error> {
        self.check([q, k, v])?;
        check_saved(q, v, output, dy)?;
        let wide = q.dtype().accumulator();
        let last = match self.causal && self.comm.size() > 1 {
            true => Some(second_half(stream, output)?),
            false => None,
        };
        let size = self.comm.size();
        let mut dq = None;
        let mut gathered = match self.variant {
            Variant::AllGather => {
                let zeros = |x: &Tensor| Tensor::zeros_on(stream, wide, &[&[size], x.shape()].concat());
                Some([zeros(k)?, zeros(v)?])
            }
            Variant::Ring => None,
        };
        // Those of the own keys stay here; those of other ranks travel with the keys, and come home at the end.
        let mut own: Option<[Tensor; 2]> = None;
        let mut arriving: Option<([Tensor; 2], Event)> = None;
        let shapes = [k, v].map(Tensor::shape);
        self.each_rank(stream, [k, v], |other, k, v| {
            let share = self.share(other);
            let scores = self.scores(share);
            let part = match (share, &last) {
                (Share::LastQueries, Some(output)) => {
                    let (q, dy) = (half(q.as_ref(), true)?, half(dy.as_ref(), true)?);
                    attention_backward(stream, q, k, v, output, dy, scores)?
                }
                (Share::FirstKeys, _) => {
                    attention_backward(stream, q, half(k, false)?, half(v, false)?, output, dy, scores)?
                }
                _ => attention_backward(stream, q, k, v, output, dy, scores)?,
            };
            let AttentionGradients { dq: of_q, dk, dv, .. } = part;
            match &mut dq {
                // The own keys are the first ones, and all queries see some of them.
                None => dq = Some(into_dtype(stream, of_q, wide)?),
                Some(dq) => {
                    self.accumulate(stream, dq, &of_q, (share == Share::LastQueries).then_some(true))?;
                }
            }
            let keys = (share == Share::FirstKeys).then_some(false);
            if let Some(all) = &mut gathered {
                for (all, part) in all.iter_mut().zip([&dk, &dv]) {
                    self.write_rank(stream, all, other, part, keys.is_some())?;
                }
                return Ok(());
            }
            if own.is_none() {
                own = Some([dk, dv]);
                return Ok(());
            }
            let sums = match arriving.take() {
                // What a kernel has rounded is exact in its own type.
                None if keys.is_none() => [dk, dv],
                arrived => {
                    let [mut of_k, mut of_v] = match arrived {
                        Some(([of_k, of_v], arrived)) => {
                            stream.wait(&arrived)?;
                            [into_dtype(stream, of_k, wide)?, into_dtype(stream, of_v, wide)?]
                        }
                        None => {
                            let zeros = |shape: &[usize]| Tensor::zeros_on(stream, q.dtype(), shape);
                            [zeros(shapes[0])?, zeros(shapes[1])?]
                        }
                    };
                    for (sum, part) in [&mut of_k, &mut of_v].into_iter().zip([&dk, &dv]) {
                        self.accumulate(stream, sum, part, keys)?;
                    }
                    [of_k, of_v]
                }
            };
            let [a, b] = &sums;
            arriving = Some(self.pass_on(stream, [a, b], true)?);
            Ok(())
        })?;
        let [dk, dv] = match (gathered, own) {
            (Some([all_k, all_v]), _) => {
                let mut own =
                    [Tensor::empty_on(stream, wide, shapes[0])?, Tensor::empty_on(stream, wide, shapes[1])?];
                let mut group = Group::new();
                for (own, all) in own.iter_mut().zip([&all_k, &all_v]) {
                    group.reduce_scatter(Reduction::Sum, all, own);
                }
                self.comm.run(stream, group)?;
                own
            }
            (None, Some([of_k, of_v])) => {
                let mut own = [into_dtype(stream, of_k, wide)?, into_dtype(stream, of_v, wide)?];
                if let Some((sums, arrived)) = arriving {
                    stream.wait(&arrived)?;
                    for (own, sum) in own.iter_mut().zip(&sums) {
                        self.accumulate(stream, own, sum, None)?;
                    }
                }
                own
            }
            (None, None) => return Err(no_ranks()),
        };
        let dq = dq.ok_or_else(no_ranks)?;
        let narrow = |x: Tensor| into_dtype(stream, x, q.dtype());
        let (dq, dk, dv) = (narrow(dq)?, narrow(dk)?, narrow(dv)?);
        Ok(AttentionGradients { dq, dk, dv, dbias: None, dsinks: None })
    }

    /// `sum += part`, of all positions, or of the second half (`Some(true)`) or the first.
    fn accumulate(
        &self,
        stream: &Stream,
        sum: &mut Tensor,
        part: &Tensor,
        second: Option<bool>,
    ) -> Result<(), Error> {
        let [old, new, which] = Expr::inputs();
        let Some(second) = second else {
            let inputs = vec![Operand::Output(0), part.as_ref().into()];
            return map_into(stream, inputs, &[old + new], &[], vec![sum.as_mut()]);
        };
        let [batch, two, positions, heads, dim] = halves(sum);
        let inputs = vec![
            Operand::Output(0),
            part.as_ref().reshape(&[batch, 1, positions, heads, dim])?.into(),
            self.half.as_ref().into(),
        ];
        let chosen = which.eq_(Expr::constant(f64::from(u8::from(second))));
        let target = sum.as_mut().reshape(&[batch, two, positions, heads, dim])?;
        map_into(stream, inputs, &[chosen.where_(&old + new, old)], &[], vec![target])
    }

    /// Writes the gradient for the keys of one rank, or for the first half of them, into zeros for all.
    fn write_rank(
        &self,
        stream: &Stream,
        all: &mut Tensor,
        rank: usize,
        part: &Tensor,
        first_half: bool,
    ) -> Result<(), Error> {
        let mut own = all.as_mut().narrow(0, rank, 1)?;
        if !first_half {
            let shape = own.shape()[1..].to_vec();
            let own = own.reshape(&shape)?;
            return map_into(stream, vec![part.as_ref().into()], &[Expr::input(0)], &[], vec![own]);
        }
        let [batch, positions, heads, dim] = extents(part.as_ref());
        let whole = [batch, 2, positions, heads, dim];
        let [new, which] = Expr::inputs();
        let zero = Expr::constant(0.0);
        let inputs = vec![
            part.as_ref().reshape(&[batch, 1, positions, heads, dim])?.into(),
            self.half.as_ref().into(),
        ];
        own = own.reshape(&whole)?;
        map_into(stream, inputs, &[which.eq_(&zero).where_(new, zero)], &[], vec![own])
    }
}

fn no_ranks() -> Error {
    refused(OP, "ranks", "0".to_owned(), "1 or more")
}

/// That results and their gradient are those of these queries and values.
fn check_saved(q: &Tensor, v: &Tensor, output: &AttentionOutput, dy: &Tensor) -> Result<(), Error> {
    let [batch, positions, heads, _] = extents(q.as_ref());
    let [.., dim] = extents(v.as_ref());
    let like_o = [batch, positions, heads, dim];
    for (parameter, x) in [("o", &output.o), ("dy", dy)] {
        if x.shape() != like_o {
            let expected = "[batch, positions, heads, head_dim] of q and v";
            return Err(refused(OP, parameter, format!("{:?}", x.shape()), expected));
        }
    }
    if output.lse.shape() != [batch, heads, positions] {
        return Err(refused(
            OP,
            "lse",
            format!("{:?}", output.lse.shape()),
            "[batch, heads, positions] of q",
        ));
    }
    Ok(())
}

/// The part that one rank has given of what all have.
fn of_rank(all: &Tensor, rank: usize) -> Result<TensorRef<'_>, Error> {
    let shape = all.shape()[1..].to_vec();
    Ok(all.as_ref().narrow(0, rank, 1)?.reshape(&shape)?)
}

/// Results of the second half of the queries, contiguous.
fn second_half(stream: &Stream, output: &AttentionOutput) -> Result<AttentionOutput, Error> {
    let copy = |x: TensorRef<'_>, dtype: DType| {
        let shape = x.shape().to_vec();
        map_new(stream, [x], (Expr::input(0), &[]), dtype, &shape)
    };
    let positions = output.lse.shape()[2] / 2;
    let lse = output.lse.as_ref().narrow(2, positions, positions)?;
    Ok(AttentionOutput {
        o: copy(half(output.o.as_ref(), true)?, output.o.dtype())?,
        lse: copy(lse, output.lse.dtype())?,
    })
}
