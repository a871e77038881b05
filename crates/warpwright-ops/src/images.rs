//! Images as tensors `[batch, channels, ..]` or `[batch, .., channels]` with one to three dimensions of cells.

use warpwright_runtime::Tensor;

use crate::PlanError;
use crate::batch_norm::Layout;

/// A tensor's dimensions.
pub(crate) struct Dimensions<'a> {
    pub(crate) op: &'static str,
    pub(crate) layout: Layout,
    pub(crate) batch: usize,
    pub(crate) channels: usize,
    /// Those of the cells.
    pub(crate) spatial: &'a [usize],
}

impl<'a> Dimensions<'a> {
    pub(crate) fn of(op: &'static str, x: &'a Tensor, layout: Layout) -> Result<Self, PlanError> {
        let (batch, channels, spatial) = match (x.shape(), layout) {
            (&[batch, channels, ref spatial @ ..], Layout::ChannelsFirst) => (batch, channels, spatial),
            (&[batch, ref spatial @ .., channels], Layout::ChannelsLast) => (batch, channels, spatial),
            (shape, _) => return Err(PlanError::refused(op, "dimensions", shape.len(), "3 to 5")),
        };
        if spatial.is_empty() || spatial.len() > 3 {
            return Err(PlanError::refused(op, "dimensions", x.shape().len(), "3 to 5"));
        }
        Ok(Self { op, layout, batch, channels, spatial })
    }

    /// A number for each of three dimensions from one for all or one for each: `other` for those that there are not.
    pub(crate) fn three<T: Copy + std::fmt::Debug>(
        &self,
        parameter: &'static str,
        given: &[T],
        other: T,
    ) -> Result<[T; 3], PlanError> {
        let rank = self.spatial.len();
        let all = match *given {
            [one] => vec![one; rank],
            _ if given.len() == rank => given.to_vec(),
            _ => {
                let got = format!("{given:?}");
                return Err(PlanError::refused(
                    self.op,
                    parameter,
                    got,
                    "one number, or one for each dimension",
                ));
            }
        };
        let mut three = [other; 3];
        three[3 - rank..].copy_from_slice(&all);
        Ok(three)
    }

    /// Depth, height and width; 1 for those that there are not.
    pub(crate) fn extents(&self) -> [usize; 3] {
        let mut extents = [1; 3];
        extents[3 - self.spatial.len()..].copy_from_slice(self.spatial);
        extents
    }

    /// The shape of a tensor like this one with other extents.
    pub(crate) fn shape(&self, extents: [usize; 3]) -> Vec<usize> {
        let spatial = &extents[3 - self.spatial.len()..];
        let channels = [self.channels];
        let inner: [&[usize]; 2] = match self.layout {
            Layout::ChannelsFirst => [&channels, spatial],
            Layout::ChannelsLast => [spatial, &channels],
        };
        [&[self.batch][..], inner[0], inner[1]].concat()
    }
}
