//! Embedding and cross entropy over a vocabulary that is split over the ranks (Shoeybi et al. 2019, arXiv:1909.08053).

use std::ops::Range;

use warpwright_ops::Error;
use warpwright_ops::cross_entropy::{CrossEntropyOptions, Reduction as LossReduction, cross_entropy};
use warpwright_ops::elementwise::{Expr, map};
use warpwright_ops::embedding::{EmbeddingOptions, embedding, embedding_backward};
use warpwright_ops::reduce::{amax, sum};
use warpwright_ptx::DType;
use warpwright_runtime::comm::{Communicator, Group, Reduction};
use warpwright_runtime::{Stream, Tensor};

use super::{map_new, matrix, refused};

const OP: &str = "VocabularyShard";
/// Whole numbers up to this are exact in f32, in which classes are compared.
const LARGEST: usize = 1 << 24;

/// This rank's part of a vocabulary, and tables of a few bytes for each of its words by which the words of a text become rows of that part
/// on the device.
#[derive(Debug)]
pub struct VocabularyShard<'c> {
    comm: &'c Communicator,
    words: Range<usize>,
    /// Row of this rank's part by word, or -1: `[vocabulary, 1]`, whole numbers under the name of the floats of their size,
    /// because an embedding copies the bits of floats.
    rows: Tensor,
    /// The same as numbers, in f32.
    numbers: Tensor,
    /// 0, 1, .. for each word of this rank, `[words]` in f32.
    classes: Tensor,
}

/// The result of [`VocabularyShard::cross_entropy`], and what its backward function takes.
#[derive(Debug)]
pub struct VocabularyLoss {
    /// The loss of each row, `[rows]` in f32, or f64 for f64: 0 where the target is no word.
    pub loss: Tensor,
    /// The log-sum-exp of each row over the whole vocabulary, as the loss.
    pub lse: Tensor,
}

/// The words of the texts as rows of this rank's part.
struct Local {
    /// Of the shape and type of the words; -1 for those of other ranks.
    rows: Tensor,
    /// `[words, 1]` in f32: as `rows`, and NaN for what is no word.
    numbers: Tensor,
}

impl<'c> VocabularyShard<'c> {
    /// The part of rank `rank` of a vocabulary that is split as evenly as it goes.
    pub fn part(vocabulary: usize, rank: usize, size: usize) -> Range<usize> {
        let (each, more) = (vocabulary / size.max(1), vocabulary % size.max(1));
        let start = rank * each + rank.min(more);
        start..start + each + usize::from(rank < more)
    }

    /// This rank's part of a vocabulary, for words given as `index`: i64 or i32.
    ///
    /// # Errors
    /// [`Error::Plan`] if there are fewer words than ranks or more than 2^24, or for another type; [`Error::Runtime`] if memory runs out.
    pub fn new(comm: &'c Communicator, vocabulary: usize, index: DType) -> Result<Self, Error> {
        if !(comm.size()..=LARGEST).contains(&vocabulary) {
            return Err(refused(
                OP,
                "vocabulary",
                vocabulary.to_string(),
                "from the number of ranks to 2^24",
            ));
        }
        let words = Self::part(vocabulary, comm.rank(), comm.size());
        let row = |word: usize| if words.contains(&word) { (word - words.start) as i64 } else { -1 };
        let rows: Vec<i64> = (0..vocabulary).map(row).collect();
        let numbers: Vec<f32> = rows.iter().map(|row| *row as f32).collect();
        let shape = [vocabulary, 1];
        let device = comm.device();
        let rows = match index {
            DType::I64 => Tensor::from_slice(device, &rows, &shape)?.reinterpret(DType::F64)?,
            DType::I32 => {
                // Below 2^24: see above.
                let rows: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
                Tensor::from_slice(device, &rows, &shape)?.reinterpret(DType::F32)?
            }
            other => return Err(refused(OP, "index", other.to_string(), "i64 or i32")),
        };
        let classes: Vec<f32> = (0..words.len()).map(|class| class as f32).collect();
        Ok(Self {
            comm,
            rows,
            numbers: Tensor::from_slice(device, &numbers, &shape)?,
            classes: Tensor::from_slice(device, &classes, &[words.len()])?,
            words,
        })
    }

    /// The words of this rank.
    pub fn words(&self) -> Range<usize> {
        self.words.clone()
    }

    fn local(&self, stream: &Stream, words: &Tensor) -> Result<Local, Error> {
        let rows =
            embedding(stream, &self.rows, words)?.reinterpret(words.dtype())?.reshape(words.shape())?;
        let numbers = embedding(stream, &self.numbers, words)?.reshape(&[words.len(), 1])?;
        Ok(Local { rows, numbers })
    }

    /// That a matrix has this rank's words along an axis.
    fn check(&self, parameter: &'static str, x: &Tensor, axis: usize) -> Result<[usize; 2], Error> {
        let shape = matrix(OP, parameter, x)?;
        if shape[axis] != self.words.len() {
            return Err(refused(
                OP,
                parameter,
                format!("{shape:?}"),
                "as wide as this rank's part of the vocabulary",
            ));
        }
        Ok(shape)
    }

    /// [`embedding`](crate::embedding()) of the whole vocabulary, the same on all ranks.
    ///
    /// `weight` is `[words of this rank, dim]`, of f32, f64, f16 or bf16, `indices` of any shape, the same on all ranks; the result is
    /// `[.., dim]`. An index that is no word gives NaN.
    ///
    /// # Errors
    /// [`Error::Plan`] if `weight` has another number of rows, or the type of `indices` is another than that of the shard;
    /// [`Error::Runtime`] as [`Communicator::run`].
    pub fn embedding(&self, stream: &Stream, weight: &Tensor, indices: &Tensor) -> Result<Tensor, Error> {
        let [_, dim] = self.check("weight", weight, 0)?;
        let Local { rows, numbers } = self.local(stream, indices)?;
        let y = embedding(stream, weight, &rows)?;
        let shape = y.shape().to_vec();
        let [number, found] = Expr::inputs();
        // NaN is not -1: what is no word stays NaN.
        let own = number.ne_(Expr::constant(-1.0)).where_(found, Expr::constant(0.0));
        let inputs = [numbers.as_ref(), y.as_ref().reshape(&[rows.len(), dim])?];
        let mut y =
            map_new(stream, inputs, (own, &[]), weight.dtype(), &[rows.len(), dim])?.reshape(&shape)?;
        self.comm.all_reduce_in_place(stream, Reduction::Sum, &mut y)?;
        Ok(y)
    }

    /// The gradient of this rank's part of the weight of [`VocabularyShard::embedding`], `[words of this rank, dim]`, from that of its result.
    ///
    /// # Errors
    /// As [`embedding_backward`](crate::embedding_backward()).
    pub fn embedding_backward(
        &self,
        stream: &Stream,
        dy: &Tensor,
        indices: &Tensor,
    ) -> Result<Tensor, Error> {
        let Local { rows, .. } = self.local(stream, indices)?;
        embedding_backward(stream, dy, &rows, self.words.len(), EmbeddingOptions::default())
    }

    /// The losses of rows of logits whose columns are split over the ranks, the same on all of them:
    /// `loss = lse - x_target` with `lse = log(sum_j exp(x_j))` over the whole vocabulary, as
    /// [`cross_entropy`](crate::cross_entropy()) without a reduction.
    ///
    /// `logits` is `[rows, words of this rank]`, of f32, f64, f16 or bf16, `target` `[rows]`, the same on all ranks. A target that is
    /// no word, such as -100, does not count: its loss is 0. Ranks exchange the log-sum-exp of their columns and the target's logit,
    /// in one launch.
    ///
    /// # Errors
    /// [`Error::Plan`] if `logits` has another number of columns; [`Error::Runtime`] if `target` has not one word for each row, and as
    /// [`Communicator::run`].
    pub fn cross_entropy(
        &self,
        stream: &Stream,
        logits: &Tensor,
        target: &Tensor,
    ) -> Result<VocabularyLoss, Error> {
        let [rows, _] = self.check("logits", logits, 1)?;
        let wide = logits.dtype().accumulator();
        let local = self.local(stream, target)?;
        let options = CrossEntropyOptions { reduction: LossReduction::None, ..Default::default() };
        let own = cross_entropy(stream, logits, &local.rows, options)?;
        let number = local.numbers.as_ref().reshape(&[rows])?;
        let [number_, lse, nll] = Expr::inputs();
        let found = number_.ge(Expr::constant(0.0)).where_(lse - nll, Expr::constant(0.0));
        let logit =
            map_new(stream, [number, own.lse.as_ref(), own.nll.as_ref()], (found, &[]), wide, &[rows])?;
        let gathered = || Tensor::empty_on(stream, wide, &[self.comm.size(), rows]);
        let (mut all_lse, mut all_logits) = (gathered()?, gathered()?);
        let mut group = Group::new();
        group.all_gather(&own.lse, &mut all_lse).all_gather(&logit, &mut all_logits);
        self.comm.run(stream, group)?;
        let largest = amax(stream, &all_lse, &[0], false)?;
        let [part, most] = Expr::inputs();
        let shares = map(stream, &[&all_lse, &largest], &(part - most).exp(), &[], wide)?;
        let share = sum(stream, &shares, &[0], false)?;
        let [most, share_] = Expr::inputs();
        let lse = map(stream, &[&largest, &share], &(most + share_.log()), &[], wide)?;
        let logit = sum(stream, &all_logits, &[0], false)?;
        let [number_, lse_, logit_] = Expr::inputs();
        // Only NaN differs from itself.
        let loss = number_.eq_(&number_).where_(lse_ - logit_, Expr::constant(0.0));
        let loss = map_new(stream, [number, lse.as_ref(), logit.as_ref()], (loss, &[]), wide, &[rows])?;
        Ok(VocabularyLoss { loss, lse })
    }

    /// The gradient of this rank's logits, like `logits`, from what [`VocabularyShard::cross_entropy`] took, its `output`, and the gradient
    /// `dloss` of its losses, `[rows]`: `(exp(x_j - lse) - [j = target]) dloss`. Nothing is exchanged.
    ///
    /// # Errors
    /// As [`VocabularyShard::cross_entropy`]; [`Error::Plan`] if `target`, `dloss` or what `output` has are not `[rows]`.
    pub fn cross_entropy_backward(
        &self,
        stream: &Stream,
        logits: &Tensor,
        target: &Tensor,
        output: &VocabularyLoss,
        dloss: &Tensor,
    ) -> Result<Tensor, Error> {
        let [rows, words] = self.check("logits", logits, 1)?;
        if target.len() != rows {
            return Err(refused(OP, "target", format!("{:?}", target.shape()), "[rows]"));
        }
        for (parameter, vector) in [("dloss", dloss), ("lse", &output.lse), ("loss", &output.loss)] {
            if vector.shape() != [rows] {
                return Err(refused(OP, parameter, format!("{:?}", vector.shape()), "[rows]"));
            }
        }
        let Local { numbers, .. } = self.local(stream, target)?;
        let column = [rows, 1];
        let [x, class, number, lse, loss, factor] = Expr::inputs();
        // Where the target is all but certain, its probability less 1 has few digits; the loss has all of them.
        let one = Expr::constant(1.0);
        let at_target = (-loss).exp() - one;
        let gradient = class.eq_(&number).where_(at_target, (x - lse).exp()) * factor;
        let gradient = number.eq_(&number).where_(gradient, Expr::constant(0.0));
        let inputs = [
            logits.as_ref(),
            self.classes.as_ref(),
            numbers.as_ref(),
            output.lse.as_ref().reshape(&column)?,
            output.loss.as_ref().reshape(&column)?,
            dloss.as_ref().reshape(&column)?,
        ];
        map_new(stream, inputs, (gradient, &[]), logits.dtype(), &[rows, words])
    }
}
