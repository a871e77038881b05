//! A text that grows: the prompt in one pass, then a step a token, which is a graph.

use std::error::Error;

use warpwright::reduce::{ArgReduceArgs, ArgReduceDesc, ArgReduceFunction};
use warpwright::{Event, Graph, Operation, Stream, Tensor};

use super::cache::Cache;
use super::common::Result;
use super::llama::Llama;

/// A model on its way through a text.
pub(crate) struct Decoder<'m> {
    stream: Stream,
    model: &'m Llama,
    caches: Vec<Cache>,
    /// Tokens in the caches.
    length: usize,
    /// `[1]` in i64: the token of a step. Of steps that choose their successor's each has one and writes the other.
    tokens: [Tensor; 2],
    /// `[1]` in i32: the tokens up to it.
    of_length: Tensor,
    /// `[capacity]` in i32: all lengths from 1 on, so that a step has its own without waiting for the host.
    lengths: Tensor,
    /// The step, and its logits, which each launch overwrites.
    step: Option<(Graph, Tensor)>,
    /// Steps that choose the likeliest token, from the first of `tokens` to the second and back.
    choosing: Option<[Graph; 2]>,
    /// Copies tokens to the host while steps run.
    reader: Stream,
}

impl<'m> Decoder<'m> {
    /// float8: whether the caches are of e4m3.
    pub(crate) fn new(stream: &Stream, model: &'m Llama, float8: bool) -> Result<Self> {
        let token = || Tensor::from_slice_on(stream, &[0i64], &[1]);
        let lengths: Vec<i32> = (1..=model.capacity() as i32).collect();
        Ok(Self {
            stream: stream.clone(),
            model,
            caches: model.caches(stream, float8)?,
            length: 0,
            tokens: [token()?, token()?],
            of_length: Tensor::from_slice_on(stream, &[0i32], &[1])?,
            lengths: Tensor::from_slice_on(stream, &lengths, &[lengths.len()])?,
            step: None,
            choosing: None,
            reader: stream.device().new_stream()?,
        })
    }

    /// Reads tokens; the logits of the next one, `[1, vocab_size]`.
    pub(crate) fn prefill(&mut self, tokens: &[i64]) -> Result<Tensor> {
        let (stream, end) = (&self.stream, self.length + tokens.len());
        self.model.check(tokens, end)?;
        let length = Tensor::from_slice_on(stream, &[end as i32], &[1])?;
        let tokens = Tensor::from_slice_on(stream, tokens, &[tokens.len()])?;
        self.length = end;
        self.model.forward(stream, &tokens, &length, &mut self.caches)
    }

    /// Reads one token; the logits of the next one, which the next step overwrites.
    pub(crate) fn step(&mut self, token: i64) -> Result<&Tensor> {
        self.begin(token, 1)?;
        if self.step.is_none() {
            let Self { stream, model, caches, tokens: [token, _], of_length, .. } = self;
            // Loads the kernels; what it adds to the caches the launches will write again.
            let mut logits = model.forward(stream, token, of_length, caches)?;
            let graph = stream.capture(|stream| {
                logits = model.forward(stream, token, of_length, caches)?;
                Ok::<_, Box<dyn Error>>(())
            })?;
            self.step = Some((graph, logits));
        }
        let Some((graph, logits)) = &self.step else { unreachable!("the step was captured") };
        graph.launch(&self.stream)?;
        self.length += 1;
        Ok(logits)
    }

    /// Reads `token`, then the likeliest one behind it, and so on for up to `count` steps. `take` has each that was chosen, and says whether
    /// to go on. It is called while the next step runs already, which nothing is left of if it was the last.
    pub(crate) fn follow(
        &mut self,
        token: i64,
        count: usize,
        mut take: impl FnMut(i64) -> bool,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        self.begin(token, count)?;
        if self.choosing.is_none() {
            self.choosing = Some(self.capture_choosing()?);
        }
        let before = self.length;
        let mut running = self.launch_choosing(0, before + 1)?;
        for step in 1..=count {
            let next = (step < count).then(|| self.launch_choosing(step, before + step + 1)).transpose()?;
            self.reader.wait(&running)?;
            let chosen = self.tokens[step % 2].to_vec_on::<i64>(&self.reader)?[0];
            self.length = before + step;
            match (take(chosen), next) {
                (true, Some(next)) => running = next,
                _ => break,
            }
        }
        Ok(())
    }

    /// Writes the token and the length of the first of `count` steps.
    fn begin(&mut self, token: i64, count: usize) -> Result<()> {
        self.model.check(&[token], self.length + count)?;
        self.stream.copy_to_device(self.tokens[0].buffer_mut(), 0, &token.to_le_bytes())?;
        self.set_length(self.length + 1)
    }

    fn set_length(&mut self, length: usize) -> Result<()> {
        let Self { stream, of_length, lengths, .. } = self;
        let bytes = of_length.buffer().bytes();
        Ok(stream.copy(of_length.buffer_mut(), 0, lengths.buffer(), (length as u64 - 1) * bytes, bytes)?)
    }

    /// Launches step `step`, which makes the text so long.
    fn launch_choosing(&mut self, step: usize, length: usize) -> Result<Event> {
        self.set_length(length)?;
        let Some(graphs) = &self.choosing else { unreachable!("the steps were captured") };
        graphs[step % 2].launch(&self.stream)?;
        Ok(self.stream.record()?)
    }

    /// Steps that read their token and length where they are launched and write the token behind it.
    fn capture_choosing(&mut self) -> Result<[Graph; 2]> {
        let Self { stream, model, caches, tokens: [a, b], of_length, .. } = self;
        // Loads the kernels; what it adds to the caches the launches will write again.
        let logits = model.forward(stream, a, of_length, caches)?;
        let plan = ArgReduceDesc {
            function: ArgReduceFunction::Argmax,
            dtype: logits.dtype(),
            outer: 1,
            n: logits.len(),
            inner: 1,
        };
        let plan = plan.plan(stream.device().target())?;
        let choose = |stream: &Stream, logits: &Tensor, token: &mut Tensor| -> Result<()> {
            let mut workspace = plan.workspace(stream)?;
            let workspace = workspace.as_mut().map(Tensor::as_mut);
            Ok(plan.launch(stream, ArgReduceArgs { x: logits.as_ref(), index: token.as_mut(), workspace })?)
        };
        choose(stream, &logits, b)?;
        let mut capture = |from: &Tensor, to: &mut Tensor| {
            stream.capture(|stream| choose(stream, &model.forward(stream, from, of_length, caches)?, to))
        };
        Ok([capture(a, b)?, capture(b, a)?])
    }
}
