//! The residual net of He et al. 2015 (arXiv:1512.03385) made of basic blocks: ResNet-18 has two of them in each of four stages.

use warpwright::pool::{Argmax, MaxPoolOptions, MaxPoolOutput};
use warpwright::{
    DType, Error, Stream, Tensor, adaptive_avg_pool, adaptive_avg_pool_backward, max_pool, max_pool_backward,
};

use super::layers::{ConvNorm, ConvNormOutput, ConvShape, LAYOUT, Linear, Parameter, Random};
use super::sum::scaled_sum;

/// Two convolutions and a shortcut around them, `y = relu(second(first(x)) + shortcut(x))`; without a convolution of its own the
/// shortcut is `x` itself.
pub(crate) struct BasicBlock {
    pub(crate) first: ConvNorm,
    pub(crate) second: ConvNorm,
    pub(crate) shortcut: Option<ConvNorm>,
}

/// The result of a [`BasicBlock`] in training.
pub(crate) struct BlockOutput {
    pub(crate) first: ConvNormOutput,
    pub(crate) second: ConvNormOutput,
    pub(crate) shortcut: Option<ConvNormOutput>,
}

impl BlockOutput {
    fn y(&self) -> &Tensor {
        self.second.y()
    }

    /// The tensor that is added to the result of the second convolution; `x` is the input of the block.
    fn residual<'a>(&'a self, x: &'a Tensor) -> &'a Tensor {
        self.shortcut.as_ref().map_or(x, ConvNormOutput::y)
    }
}

impl BasicBlock {
    fn new(
        stream: &Stream,
        dtype: DType,
        random: &mut Random,
        [channels, filters]: [usize; 2],
        stride: usize,
    ) -> Result<Self, Error> {
        let mut unit = |channels, kernel, stride, relu| {
            let shape = ConvShape { channels, filters, kernel, stride };
            ConvNorm::new(stream, dtype, random, &shape, relu)
        };
        let same = channels == filters && stride == 1;
        Ok(Self {
            first: unit(channels, 3, stride, true)?,
            second: unit(filters, 3, 1, true)?,
            shortcut: (!same).then(|| unit(channels, 1, stride, false)).transpose()?,
        })
    }

    fn infer(&self, stream: &Stream, x: &Tensor) -> Result<Tensor, Error> {
        let first = self.first.infer(stream, x, None)?;
        let shortcut = self.shortcut.as_ref().map(|unit| unit.infer(stream, x, None)).transpose()?;
        self.second.infer(stream, &first, Some(shortcut.as_ref().unwrap_or(x)))
    }

    fn forward(&mut self, stream: &Stream, x: &Tensor) -> Result<BlockOutput, Error> {
        let first = self.first.forward(stream, x, None)?;
        let shortcut = self.shortcut.as_mut().map(|unit| unit.forward(stream, x, None)).transpose()?;
        let residual = shortcut.as_ref().map_or(x, ConvNormOutput::y);
        let second = self.second.forward(stream, first.y(), Some(residual))?;
        Ok(BlockOutput { first, second, shortcut })
    }

    fn backward(
        &mut self,
        stream: &Stream,
        x: &Tensor,
        output: &BlockOutput,
        dy: &Tensor,
    ) -> Result<Tensor, Error> {
        let BlockOutput { first, second, shortcut } = output;
        let of_second = self.second.backward(stream, first.y(), Some(output.residual(x)), second, dy)?;
        let of_first = self.first.backward(stream, x, None, first, &of_second.dx)?;
        let mut of_shortcut = of_second.dresidual;
        if let (Some(unit), Some(output)) = (&mut self.shortcut, shortcut) {
            let dy = of_shortcut.as_ref().unwrap_or(dy);
            of_shortcut = Some(unit.backward(stream, x, None, output, dy)?.dx);
        }
        scaled_sum(stream, None, &of_first.dx, of_shortcut.as_ref().unwrap_or(dy))
    }

    fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        [&mut self.first, &mut self.second]
            .into_iter()
            .chain(&mut self.shortcut)
            .flat_map(ConvNorm::parameters_mut)
    }
}

/// The sizes of a [`ResNet`].
#[derive(Clone, Copy)]
pub(crate) struct ResNetConfig {
    /// Element type of everything.
    pub(crate) dtype: DType,
    /// Channels of the first stage; each of the others has twice those of the one before, and images of half its sides.
    pub(crate) width: usize,
    /// Blocks of each stage.
    pub(crate) blocks: &'static [usize],
    pub(crate) classes: usize,
}

impl ResNetConfig {
    /// ResNet-18; the paper's has a width of 64.
    pub(crate) fn resnet18(width: usize, classes: usize) -> Self {
        Self { dtype: DType::F32, width, blocks: &[2, 2, 2, 2], classes }
    }
}

/// A convolution and a pooling, blocks, the mean over each image and a linear layer.
pub(crate) struct ResNet {
    pub(crate) stem: ConvNorm,
    pub(crate) blocks: Vec<BasicBlock>,
    head: Linear,
}

/// The results of the layers in training.
pub(crate) struct Activations {
    pub(crate) stem: ConvNormOutput,
    pool: MaxPoolOutput,
    pub(crate) blocks: Vec<BlockOutput>,
    /// `[batch, channels]`
    features: Tensor,
    /// `[batch, classes]`
    pub(crate) logits: Tensor,
}

impl Activations {
    /// The input of block `i`; behind the last block that of the mean.
    fn input_of(&self, i: usize) -> &Tensor {
        if i == 0 { &self.pool.y } else { self.blocks[i - 1].y() }
    }
}

/// Side of the windows of the maximum.
const WINDOW: &[usize] = &[3];

fn pool_options(argmax: Argmax) -> MaxPoolOptions<'static> {
    MaxPoolOptions { stride: &[2], padding: &[1], layout: LAYOUT, argmax, ..Default::default() }
}

/// The mean over each image: `[batch, height, width, channels]` to `[batch, channels]`.
fn features(stream: &Stream, x: &Tensor) -> Result<Tensor, Error> {
    let shape = [x.shape()[0], x.shape()[3]];
    Ok(adaptive_avg_pool(stream, x, &[1], LAYOUT)?.reshape(&shape)?)
}

/// The gradient of `x` from that of its [`features`].
fn features_backward(stream: &Stream, x: &Tensor, dy: Tensor) -> Result<Tensor, Error> {
    let dy = dy.reshape(&[x.shape()[0], 1, 1, x.shape()[3]])?;
    adaptive_avg_pool_backward(stream, x, &[1], &dy, LAYOUT)
}

impl ResNet {
    /// For images of three channels, with random weights.
    pub(crate) fn new(stream: &Stream, config: ResNetConfig, random: &mut Random) -> Result<Self, Error> {
        let ResNetConfig { dtype, width, classes, .. } = config;
        let shape = ConvShape { channels: 3, filters: width, kernel: 7, stride: 2 };
        let stem = ConvNorm::new(stream, dtype, random, &shape, true)?;
        let (mut channels, mut blocks) = (width, Vec::new());
        for (stage, &count) in config.blocks.iter().enumerate() {
            let filters = width << stage;
            for block in 0..count {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                blocks.push(BasicBlock::new(stream, dtype, random, [channels, filters], stride)?);
                channels = filters;
            }
        }
        Ok(Self { stem, blocks, head: Linear::new(stream, dtype, random, [channels, classes])? })
    }

    /// The logits `[batch, classes]` of images `[batch, height, width, 3]`, with running statistics.
    pub(crate) fn infer(&self, stream: &Stream, x: &Tensor) -> Result<Tensor, Error> {
        let stem = self.stem.infer(stream, x, None)?;
        let mut y = max_pool(stream, &stem, WINDOW, pool_options(Argmax::None))?.y;
        for block in &self.blocks {
            y = block.infer(stream, &y)?;
        }
        self.head.forward(stream, &features(stream, &y)?)
    }

    /// The logits and all that leads to them, with statistics of the batch.
    pub(crate) fn forward(&mut self, stream: &Stream, x: &Tensor) -> Result<Activations, Error> {
        let stem = self.stem.forward(stream, x, None)?;
        let pool = max_pool(stream, stem.y(), WINDOW, pool_options(Argmax::Tap))?;
        let mut blocks: Vec<BlockOutput> = Vec::new();
        for block in &mut self.blocks {
            let x = blocks.last().map_or(&pool.y, BlockOutput::y);
            blocks.push(block.forward(stream, x)?);
        }
        let features = features(stream, blocks.last().map_or(&pool.y, BlockOutput::y))?;
        let logits = self.head.forward(stream, &features)?;
        Ok(Activations { stem, pool, blocks, features, logits })
    }

    /// The gradients of all parameters from those of the logits.
    pub(crate) fn backward(
        &mut self,
        stream: &Stream,
        x: &Tensor,
        activations: &Activations,
        dlogits: &Tensor,
    ) -> Result<(), Error> {
        let Activations { stem, pool, blocks, features, .. } = activations;
        let dfeatures = self.head.backward(stream, features, dlogits)?;
        let mut dy = features_backward(stream, activations.input_of(blocks.len()), dfeatures)?;
        for (i, (block, output)) in self.blocks.iter_mut().zip(blocks).enumerate().rev() {
            dy = block.backward(stream, activations.input_of(i), output, &dy)?;
        }
        let dy = max_pool_backward(stream, stem.y(), WINDOW, pool, &dy, pool_options(Argmax::Tap))?;
        // The gradient of the images comes with that of the weight, and is not used.
        self.stem.backward(stream, x, None, stem, &dy)?;
        Ok(())
    }

    pub(crate) fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let blocks = self.blocks.iter_mut().flat_map(BasicBlock::parameters_mut);
        self.stem.parameters_mut().into_iter().chain(blocks).chain(self.head.parameters_mut())
    }
}
