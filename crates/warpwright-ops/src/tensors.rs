//! The tensors of an operation, said once: what a caller fills in, the order in which a plan keeps them, and the typed
//! places that kernels' arguments refer to.

use warpwright_dsl::{Element, In, InOut, Out};
use warpwright_ptx::DType;

use crate::plan::{Access, Binding, Layout, TensorSpec};

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

    /// The same of one with strides.
    pub(crate) fn laid_out(self, dtype: DType, layout: Layout) -> SlotSpec {
        self.holds(dtype, 0).laid_out(layout)
    }
}

impl OutSlot {
    pub(crate) const ACCESS: Access = Access::Write;

    pub(crate) const fn new(index: u32, name: &'static str) -> Self {
        Self(Slot { index, name })
    }

    /// Its place in the list.
    pub(crate) const fn index(self) -> usize {
        self.0.index as usize
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

    /// The same of one with strides.
    pub(crate) fn laid_out(self, dtype: DType, layout: Layout) -> SlotSpec {
        self.holds(dtype, 0).laid_out(layout)
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
    fn laid_out(self, layout: Layout) -> Self {
        let len = layout.elements().unwrap_or(0);
        Self { spec: TensorSpec { len, ..self.spec }.laid_out(layout), ..self }
    }

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

/// A field of the tensors of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field {
    Tensor(&'static str, Access),
    /// The tensors of another declaration, in its order.
    Group(&'static [Self]),
}

impl Field {
    /// The tensors of `fields`.
    pub(crate) const fn count(fields: &[Self]) -> u32 {
        Self::count_before(fields, fields.len())
    }

    /// The tensors of the fields before number `end`, which is the index of the first tensor of that field.
    pub(crate) const fn count_before(fields: &[Self], end: usize) -> u32 {
        let (mut count, mut at) = (0, 0);
        while at < end {
            count += match fields[at] {
                Self::Tensor(..) => 1,
                Self::Group(fields) => Self::count(fields),
            };
            at += 1;
        }
        count
    }

    /// Absent tensors in their order.
    fn absent(fields: &[Self]) -> Vec<TensorSpec> {
        let of_field = |field: &Self| match *field {
            Self::Tensor(name, Access::Read) => vec![TensorSpec::read(name, DType::U8, 0).optional(false)],
            Self::Tensor(name, Access::Write) => vec![TensorSpec::write(name, DType::U8, 0).optional(false)],
            Self::Group(fields) => Self::absent(fields),
        };
        fields.iter().flat_map(of_field).collect()
    }
}

/// The list that a plan keeps: the specifications in the order of the slots. A slot that none was given for is absent.
pub(crate) fn in_slot_order(fields: &[Field], given: impl IntoIterator<Item = SlotSpec>) -> Vec<TensorSpec> {
    let mut all = Field::absent(fields);
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
/// | `Group<Inputs>` | `Inputs`, another struct of this macro, which other operations have too | |
///
/// A group is the first field, so that its slots, `Inputs::q`, are those of every operation that has it.
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
                /// The fields in order.
                pub(crate) const FIELDS: &'static [$crate::tensors::Field] =
                    &[$($crate::tensors::tensors!(@part Place $field $kind $($inner)?)),+];

                $($crate::tensors::tensors! { @constant Place $field $kind $($inner)? })+

                /// What a plan says of the tensors, in their order; those that none is given for are absent.
                pub(crate) fn specs(
                    given: impl IntoIterator<Item = $crate::tensors::SlotSpec>,
                ) -> Vec<$crate::plan::TensorSpec> {
                    $crate::tensors::in_slot_order(Self::FIELDS, given)
                }
            }

            impl<$a> $crate::tensors::Arguments<$a> for $name<$a> {
                fn bindings(self) -> Vec<$crate::plan::Binding<$a>> {
                    let mut all = Vec::with_capacity($crate::tensors::Field::count(Self::FIELDS) as usize);
                    $($crate::tensors::tensors!(@bind all, self.$field, $kind $($inner)?);)+
                    all
                }
            }
        };
    };
    (@field $a:lifetime In) => { ::warpwright_runtime::TensorRef<$a> };
    (@field $a:lifetime Out) => { ::warpwright_runtime::TensorMut<$a> };
    (@field $a:lifetime InPlace $output:ident) => { Option<::warpwright_runtime::TensorRef<$a>> };
    (@field $a:lifetime Option $kind:ident) => { Option<$crate::tensors::tensors!(@field $a $kind)> };
    (@field $a:lifetime Group $group:ident) => { $group<$a> };
    (@field $a:lifetime $source:ident $output:ident) => { $source<$a> };
    (@slot Out) => { $crate::tensors::OutSlot };
    (@slot Option Out) => { $crate::tensors::OutSlot };
    (@slot $($kind:ident)+) => { $crate::tensors::InSlot };
    (@part $place:ident $field:ident Group $group:ident) => {{
        assert!($place::$field as usize == 0, "a group is the first field");
        $crate::tensors::Field::Group($group::FIELDS)
    }};
    (@part $place:ident $field:ident $($kind:ident)+) => {
        $crate::tensors::Field::Tensor(
            stringify!($field),
            <$crate::tensors::tensors!(@slot $($kind)+)>::ACCESS,
        )
    };
    (@constant $place:ident $field:ident Group $group:ident) => {};
    (@constant $place:ident $field:ident $($kind:ident)+) => {
        pub(crate) const $field: $crate::tensors::tensors!(@slot $($kind)+) =
            <$crate::tensors::tensors!(@slot $($kind)+)>::new(
                $crate::tensors::Field::count_before(Self::FIELDS, $place::$field as usize),
                stringify!($field),
            );
    };
    (@bind $all:ident, $field:expr, Group $group:ident) => { $all.extend($field.bindings()) };
    (@bind $all:ident, $field:expr, InPlace $output:ident) => {
        $all.push($field.map_or(
            $crate::plan::Binding::InPlace { output: Self::$output.index() },
            $crate::plan::Binding::Input,
        ))
    };
    (@bind $all:ident, $field:expr, Option $kind:ident) => { $all.push($field.into()) };
    (@bind $all:ident, $field:expr, $source:ident $output:ident) => {
        $all.push($field.binding(Self::$output.index()))
    };
    (@bind $all:ident, $field:expr, $kind:ident) => { $all.push($field.into()) };
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

    tensors! {
        /// Those of another operation that has them too.
        struct OuterArgs<'a> {
            /// The other's tensors.
            sample: Group<SampleArgs>,
            /// Read, or what `dx` holds.
            dy: InPlace<dx>,
            /// Written.
            dx: Out,
        }
    }

    #[test]
    fn the_tensors_of_a_group_come_first() {
        assert_eq!(OuterArgs::dy, InSlot::new(5, "dy"));
        assert_eq!(OuterArgs::dx, OutSlot::new(6, "dx"));
        let specs = OuterArgs::specs([
            SampleArgs::x.laid_out(DType::F32, Layout::contiguous([1, 1, 2, 2])),
            OuterArgs::dx.holds(DType::F32, 4),
        ]);
        let names: Vec<_> = specs.iter().map(|spec| spec.name).collect();
        assert_eq!(names, ["x", "weight", "bias", "y", "mean", "dy", "dx"]);
        assert!(specs[0].layout.is_some() && specs[6].present && !specs[5].present);
        assert_eq!(specs[0].len, 4);

        let device = Device::emulator();
        let tensor = || Tensor::zeros(&device, DType::F32, &[2]).unwrap();
        let (weight, mut y, mut dx) = (tensor(), tensor(), tensor());
        let sample = SampleArgs { x: None, weight: weight.as_ref(), bias: None, y: y.as_mut(), mean: None };
        let bindings = OuterArgs { sample, dy: None, dx: dx.as_mut() }.bindings();
        assert_eq!(bindings.len(), specs.len());
        assert!(matches!(bindings[0], Binding::InPlace { output: 3 }));
        assert!(matches!(bindings[5], Binding::InPlace { output: 6 }));
        assert!(matches!(bindings[6], Binding::Output(_)));
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
