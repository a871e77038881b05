//! A product as a part of another operation.

use warpwright_dsl::{Elem, In, Out};
use warpwright_runtime::LaunchStep;

use super::{GemmArgs, GemmDesc};
use crate::plan::Plan;
use crate::plan::embedded::value_of;

/// Where the tensors of a product are among those of the operation. An addend, if there is one, is what `y` holds.
pub(crate) struct Part {
    pub(crate) a: In<Elem>,
    pub(crate) b: In<Elem>,
    pub(crate) bias: In<Elem>,
    pub(crate) y: Out<Elem>,
    pub(crate) workspace: Out<Elem>,
}

impl Part {
    /// The launches of the product's plan for tensors at multiples of `alignment` bytes.
    pub(crate) fn steps(self, plan: &Plan<GemmDesc>, alignment: u64) -> Vec<LaunchStep> {
        let y = value_of(&self.y);
        let places = [
            (value_of(&GemmArgs::a.arg::<Elem>()), value_of(&self.a)),
            (value_of(&GemmArgs::b.arg::<Elem>()), value_of(&self.b)),
            (value_of(&GemmArgs::c.arg::<Elem>()), y.clone()),
            (value_of(&GemmArgs::bias.arg::<Elem>()), value_of(&self.bias)),
            (value_of(&GemmArgs::y.arg::<Elem>()), y),
            (value_of(&GemmArgs::workspace.arg::<Elem>()), value_of(&self.workspace)),
        ];
        plan.embedded(alignment, &places)
    }
}
