//! A text that grows: the prompt in one pass, then a step a token, which is a graph.

use std::error::Error;

use warpwright::{Graph, Stream, Tensor};

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
    /// `[1]` in i64: the token of a step.
    token: Tensor,
    /// `[1]` in i32: the tokens up to it.
    of_length: Tensor,
    /// The step, and its logits, which each launch overwrites.
    step: Option<(Graph, Tensor)>,
}

impl<'m> Decoder<'m> {
    /// float8: whether the caches are of e4m3.
    pub(crate) fn new(stream: &Stream, model: &'m Llama, float8: bool) -> Result<Self> {
        Ok(Self {
            stream: stream.clone(),
            model,
            caches: model.caches(stream, float8)?,
            length: 0,
            token: Tensor::from_slice_on(stream, &[0i64], &[1])?,
            of_length: Tensor::from_slice_on(stream, &[0i32], &[1])?,
            step: None,
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
        let Self { stream, model, length, token: of_token, of_length, .. } = self;
        let end = *length + 1;
        model.check(&[token], end)?;
        stream.copy_to_device(of_token.buffer_mut(), 0, &token.to_le_bytes())?;
        stream.copy_to_device(of_length.buffer_mut(), 0, &(end as i32).to_le_bytes())?;
        *length = end;
        if self.step.is_none() {
            self.step = Some(self.capture()?);
        }
        let Some((graph, logits)) = &self.step else { unreachable!("the step was captured") };
        graph.launch(&self.stream)?;
        Ok(logits)
    }

    /// The step as a graph, which reads token and length where it is launched, and its logits.
    fn capture(&mut self) -> Result<(Graph, Tensor)> {
        let Self { stream, model, caches, token, of_length, .. } = self;
        // Loads the kernels; what it adds to the caches the launches will write again.
        let mut logits = model.forward(stream, token, of_length, caches)?;
        let graph = stream.capture(|stream| {
            logits = model.forward(stream, token, of_length, caches)?;
            Ok::<_, Box<dyn Error>>(())
        })?;
        Ok((graph, logits))
    }
}
