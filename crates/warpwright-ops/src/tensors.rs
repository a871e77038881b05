//! The tensors of an operation, said once: what a caller fills in, the order in which a plan keeps them, and the typed
//! places that kernels' arguments refer to.

use warpwright_dsl::{Element, In, InOut, Out};
use warpwright_ptx::DType;

use crate::plan::{Access, Binding, TensorSpec};

/// The tensors of one launch.
pub trait Arguments<'a> {
    /// The tensors in the order of [`Plan::tensors`](crate::Plan::tensors).
    fn bindings(self) -> Vec<Binding<'a>>;
}

/// The place of a tensor that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InSlot(Slot);

/// The place of a tensor that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutSlot(Slot);

/// A place among the tensors of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    index: u32,
    name: &'static str,
}

impl InSlot {
    pub(crate) const ACCESS: Access = Access::Read;

    pub(crate) const fn new(index: u32, name: &'static str) -> Self {
        Self(Slot { index, name })
    }

    /// The tensor as an argument of a kernel.
    pub(crate) fn arg<E: Element>(self) -> In<E> {
        self.arg_at(0)
    }

    /// The tensor from byte `offset` on.
    pub(crate) fn arg_at<E: Element>(self, offset: u64) -> In<E> {
        In::slot_at(self.0.index, offset)
    }

    /// What a plan says of the tensor.
    pub(crate) const fn holds(self, dtype: DType, len: usize) -> SlotSpec {
        SlotSpec { slot: self.0, spec: TensorSpec::read(self.0.name, dtype, len) }
    }
}

impl OutSlot {
    pub(crate) const ACCESS: Access = Access::Write;

    pub(crate) const fn new(index: u32, name: &'static str) -> Self {
        Self(Slot { index, name })
    }

    /// The tensor as an argument of a kernel that writes it.
    pub(crate) fn arg<E: Element>(self) -> Out<E> {
        Out::slot(self.0.index)
    }

    /// The tensor from byte `offset` on.
    pub(crate) fn arg_at<E: Element>(self, offset: u64) -> Out<E> {
        Out::slot_at(self.0.index, offset)
    }

    /// The same for a later kernel of the plan that reads what an earlier one wrote.
    pub(crate) fn written<E: Element>(self) -> In<E> {
        self.written_at(0)
    }

    /// What an earlier kernel wrote from byte `offset` on.
    pub(crate) fn written_at<E: Element>(self, offset: u64) -> In<E> {
        In::slot_at(self.0.index, offset)
    }

    /// The same for a kernel that does both.
    pub(crate) fn read_write<E: Element>(self) -> InOut<E> {
        InOut::slot(self.0.index)
    }

    /// What a plan says of the tensor.
    pub(crate) const fn holds(self, dtype: DType, len: usize) -> SlotSpec {
        SlotSpec { slot: self.0, spec: TensorSpec::write(self.0.name, dtype, len) }
    }

    /// What a plan says of scratch memory, absent if it has no elements.
    pub(crate) const fn scratch(self, dtype: DType, len: usize) -> SlotSpec {
        SlotSpec { slot: self.0, spec: TensorSpec::workspace(dtype, len) }
    }
}

impl From<InSlot> for Slot {
    fn from(slot: InSlot) -> Self {
        slot.0
    }
}

impl From<OutSlot> for Slot {
    fn from(slot: OutSlot) -> Self {
        slot.0
    }
}

/// What a plan says of the tensor in a slot; the methods are those of [`TensorSpec`].
#[derive(Clone, Debug)]
pub(crate) struct SlotSpec {
    slot: Slot,
    spec: TensorSpec,
}

impl SlotSpec {
    pub(crate) fn in_place(self) -> Self {
        Self { spec: self.spec.in_place(), ..self }
    }

    pub(crate) fn like(self, other: impl Into<Slot>) -> Self {
        Self { spec: self.spec.like(other.into().index as usize), ..self }
    }

    pub(crate) fn optional(self, present: bool) -> Self {
        Self { spec: self.spec.optional(present), ..self }
    }
}

/// The list that a plan keeps: the specifications in the order of the slots. A slot that none was given for is absent.
pub(crate) fn in_slot_order(
    slots: &[(&'static str, Access)],
    given: impl IntoIterator<Item = SlotSpec>,
) -> Vec<TensorSpec> {
    let absent = |&(name, access): &(&'static str, Access)| {
        let spec = match access {
            Access::Read => TensorSpec::read(name, DType::U8, 0),
            Access::Write => TensorSpec::write(name, DType::U8, 0),
        };
        spec.optional(false)
    };
    let mut all: Vec<_> = slots.iter().map(absent).collect();
    for SlotSpec { slot, spec } in given {
        all[slot.index as usize] = spec;
    }
    all
}

/// Declares the tensors of an operation:
///
/// ```text
/// tensors! {
///     /// Tensors of [`SoftmaxDesc`].
///     pub struct SoftmaxArgs<'a> {
///         /// The scores; `None` reads what `y` holds.
///         x: InPlace<y>,
///         /// Added to the scores.
///         mask: Option<In>,
///         /// The result.
///         y: Out,
///     }
/// }
/// ```
///
/// gives the struct that a caller fills in, with a [`TensorRef`](warpwright_runtime::TensorRef) or
/// [`TensorMut`](warpwright_runtime::TensorMut) for each field; its [`Arguments`]; a typed slot for each field,
/// `SoftmaxArgs::x`; and `SoftmaxArgs::specs`, which puts what a plan says of them into their order.
///
/// | kind | field | without one |
/// |---|---|---|
/// | `In`, `Out` | `TensorRef`, `TensorMut` | |
/// | `Option<In>`, `Option<Out>` | an `Option` of it | the kernel gets a null pointer |
/// | `InPlace<y>` | `Option<TensorRef>` | the operation reads what `y` holds |
/// | `Source<y>` | `Source`, a type of the family that says whether there is a tensor or `y` is read | as its `binding` says |
macro_rules! tensors {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident<$a:lifetime> {
            $($(#[$field_meta:meta])* $field:ident: $kind:ident $(<$inner:ident>)?),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        $vis struct $name<$a> {
            $($(#[$field_meta])* pub $field: $crate::tensors::tensors!(@field $a $kind $($inner)?),)+
        }

        const _: () = {
            #[allow(non_camel_case_types, reason = "variants are fields")]
            enum Place {
                $($field),+
            }

            #[allow(non_upper_case_globals, reason = "constants are fields")]
            #[allow(dead_code, reason = "a tensor that no kernel of a single launch takes")]
            impl $name<'_> {
                $(pub(crate) const $field: $crate::tensors::tensors!(@slot $kind $($inner)?) =
                    <$crate::tensors::tensors!(@slot $kind $($inner)?)>::new(Place::$field as u32, stringify!($field));)+

                /// What a plan says of the tensors, in their order; those that none is given for are absent.
                pub(crate) fn specs(
                    given: impl IntoIterator<Item = $crate::tensors::SlotSpec>,
                ) -> Vec<$crate::plan::TensorSpec> {
                    let slots = [$((
                        stringify!($field),
                        <$crate::tensors::tensors!(@slot $kind $($inner)?)>::ACCESS,
                    )),+];
                    $crate::tensors::in_slot_order(&slots, given)
                }
            }

            impl<$a> $crate::tensors::Arguments<$a> for $name<$a> {
                fn bindings(self) -> Vec<$crate::plan::Binding<$a>> {
                    vec![$($crate::tensors::tensors!(@binding Place, self.$field, $kind $($inner)?)),+]
                }
            }
        };
    };
    (@field $a:lifetime In) => { ::warpwright_runtime::TensorRef<$a> };
    (@field $a:lifetime Out) => { ::warpwright_runtime::TensorMut<$a> };
    (@field $a:lifetime InPlace $output:ident) => { Option<::warpwright_runtime::TensorRef<$a>> };
    (@field $a:lifetime Option $kind:ident) => { Option<$crate::tensors::tensors!(@field $a $kind)> };
    (@field $a:lifetime $source:ident $output:ident) => { $source<$a> };
    (@slot Out) => { $crate::tensors::OutSlot };
    (@slot Option Out) => { $crate::tensors::OutSlot };
    (@slot $($kind:ident)+) => { $crate::tensors::InSlot };
    (@binding $place:ident, $field:expr, InPlace $output:ident) => {
        $field.map_or(
            $crate::plan::Binding::InPlace { output: $place::$output as usize },
            $crate::plan::Binding::Input,
        )
    };
    (@binding $place:ident, $field:expr, Option $kind:ident) => { $field.into() };
    (@binding $place:ident, $field:expr, $source:ident $output:ident) => {
        $field.binding($place::$output as usize)
    };
    (@binding $place:ident, $field:expr, $kind:ident) => { $field.into() };
}

pub(crate) use tensors;

#[cfg(test)]
mod tests {
    use warpwright_runtime::{Device, Tensor};

    use super::*;

    tensors! {
        /// Tensors of nothing.
        struct SampleArgs<'a> {
            /// Read, or what `y` holds.
            x: InPlace<y>,
            /// Read.
            weight: In,
            /// Not always there.
            bias: Option<In>,
            /// Written.
            y: Out,
            /// Not always there.
            mean: Option<Out>,
        }
    }

    #[test]
    fn slots_follow_the_order_of_the_fields() {
        assert_eq!(SampleArgs::x, InSlot::new(0, "x"));
        assert_eq!(SampleArgs::bias, InSlot::new(2, "bias"));
        assert_eq!(SampleArgs::mean, OutSlot::new(4, "mean"));
        let specs = SampleArgs::specs([
            SampleArgs::y.holds(DType::F32, 6).in_place().like(SampleArgs::x),
            SampleArgs::x.holds(DType::F32, 6),
            SampleArgs::weight.holds(DType::F16, 2),
        ]);
        let names: Vec<_> = specs.iter().map(|spec| (spec.name, spec.access, spec.present)).collect();
        let expected = [
            ("x", Access::Read, true),
            ("weight", Access::Read, true),
            ("bias", Access::Read, false),
            ("y", Access::Write, true),
            ("mean", Access::Write, false),
        ];
        assert_eq!(names, expected);
        assert_eq!((specs[3].like, specs[3].may_replace_input, specs[1].dtype), (Some(0), true, DType::F16));
    }

    #[test]
    fn bindings_follow_the_order_of_the_fields() {
        let device = Device::emulator();
        let tensor = || Tensor::zeros(&device, DType::F32, &[2]).unwrap();
        let (weight, bias, mut y) = (tensor(), tensor(), tensor());
        let args = SampleArgs {
            x: None,
            weight: weight.as_ref(),
            bias: Some(bias.as_ref()),
            y: y.as_mut(),
            mean: None,
        };
        let bindings = args.bindings();
        assert!(matches!(bindings[0], Binding::InPlace { output: 3 }));
        assert!(matches!(&bindings[1], Binding::Input(x) if x.address() == weight.as_ref().address()));
        assert!(matches!(&bindings[2], Binding::Input(x) if x.address() == bias.as_ref().address()));
        assert!(matches!(bindings[3], Binding::Output(_)));
        assert!(matches!(bindings[4], Binding::Absent));
    }
}
