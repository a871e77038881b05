//! A text that grows: the prompt in one pass, then a step a token, which is a graph.

use std::error::Error;

use warpwright::{Graph, Stream, Tensor};

use super::cache::{Cache, Places};
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
    /// `[2]` in i32: its position, and the tokens up to it.
    place: Tensor,
    /// The step, and its logits, which each launch overwrites.
    step: Option<(Graph, Tensor)>,
}

impl<'m> Decoder<'m> {
    pub(crate) fn new(stream: &Stream, model: &'m Llama) -> Result<Self> {
        Ok(Self {
            stream: stream.clone(),
            model,
            caches: model.caches(stream)?,
            length: 0,
            token: Tensor::from_slice_on(stream, &[0i64], &[1])?,
            place: Tensor::from_slice_on(stream, &[0i32, 0], &[2])?,
            step: None,
        })
    }

    /// Reads tokens; the logits of the next one, `[1, vocab_size]`.
    pub(crate) fn prefill(&mut self, tokens: &[i64]) -> Result<Tensor> {
        let (stream, begin, end) = (&self.stream, self.length, self.length + tokens.len());
        self.model.check(tokens, end)?;
        let positions: Vec<i32> = (begin as i32..end as i32).collect();
        let positions = Tensor::from_slice_on(stream, &positions, &[tokens.len()])?;
        let length = Tensor::from_slice_on(stream, &[end as i32], &[1])?;
        let places = Places { positions: positions.as_ref(), length: length.as_ref() };
        let tokens = Tensor::from_slice_on(stream, tokens, &[tokens.len()])?;
        self.length = end;
        self.model.forward(stream, &tokens, &places, &mut self.caches)
    }

    /// Reads one token; the logits of the next one, which the next step overwrites.
    pub(crate) fn step(&mut self, token: i64) -> Result<&Tensor> {
        let Self { stream, model, length, token: of_token, place, .. } = self;
        model.check(&[token], *length + 1)?;
        let (position, end) = (*length as i32, *length as i32 + 1);
        stream.copy_to_device(of_token.buffer_mut(), 0, &token.to_le_bytes())?;
        stream.copy_to_device(place.buffer_mut(), 0, [position, end].map(i32::to_le_bytes).as_flattened())?;
        *length = end as usize;
        if self.step.is_none() {
            self.step = Some(self.capture()?);
        }
        let Some((graph, logits)) = &self.step else { unreachable!("the step was captured") };
        graph.launch(&self.stream)?;
        Ok(logits)
    }

    /// The step as a graph, which reads token and place where it is launched, and its logits.
    fn capture(&mut self) -> Result<(Graph, Tensor)> {
        let Self { stream, model, caches, token, place, .. } = self;
        let of_place = |at| place.as_ref().narrow(0, at, 1);
        let places = Places { positions: of_place(0)?, length: of_place(1)? };
        // Loads the kernels; what it adds to the caches the launches will write again.
        let mut logits = model.forward(stream, token, &places, caches)?;
        let graph = stream.capture(|stream| {
            logits = model.forward(stream, token, &places, caches)?;
            Ok::<_, Box<dyn Error>>(())
        })?;
        Ok((graph, logits))
    }
}
