//! The tensors of an operation, said once: what a caller fills in, the order in which a plan keeps them, and the typed
//! places that kernels' arguments refer to.

use warpwright_dsl::{Element, In, InOut, Out};
use warpwright_ptx::DType;
use warpwright_runtime::{Tensor, TensorMut, TensorRef};

use crate::plan::{Access, Binding, Layout, TensorSpec};

/// A result that may be absent, to be written.
pub(crate) fn written(tensor: &mut Option<Tensor>) -> Option<TensorMut<'_>> {
    tensor.as_mut().map(Tensor::as_mut)
}

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

/// The two places of a tensor that is updated: as it is before, and as it is after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InOutSlot {
    before: InSlot,
    after: OutSlot,
}

/// The places of groups of tensors of which there are as many as the descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EachSlot {
    first: u32,
    of_group: u32,
}

/// A place among the tensors of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    index: u32,
    name: &'static str,
}

impl Slot {
    /// The tensor from byte `offset` on, for a kernel that reads it.
    pub(crate) fn read_at<E: Element>(self, offset: u64) -> In<E> {
        In::slot_at(self.index, offset)
    }

    /// The same for a kernel that writes it.
    pub(crate) fn write_at<E: Element>(self, offset: u64) -> Out<E> {
        Out::slot_at(self.index, offset)
    }

    /// The same for a kernel that does both.
    pub(crate) fn read_write_at<E: Element>(self, offset: u64) -> InOut<E> {
        InOut::slot_at(self.index, offset)
    }
}

/// A field of a struct that [`tensors!`] declares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

/// How the tensors of a field are used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    Update,
    /// The tensors of another declaration.
    Group(&'static [Field]),
    /// Any number of groups.
    Each(&'static [Field]),
}

impl Kind {
    const fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::Update)
    }

    const fn is_written(self) -> bool {
        matches!(self, Self::Write | Self::Update)
    }
}

/// The fields of a declaration, of which a group may only be the first and any number of groups only the last.
pub(crate) const fn checked(fields: &'static [Field]) -> &'static [Field] {
    let mut at = 0;
    while at < fields.len() {
        match fields[at].kind {
            Kind::Group(_) => assert!(at == 0, "a group is the first field"),
            Kind::Each(_) => assert!(at + 1 == fields.len(), "groups are the last field"),
            _ => {}
        }
        at += 1;
    }
    fields
}

/// Slots of the group among the fields.
const fn slots_of_group(fields: &[Field]) -> u32 {
    match fields.first() {
        Some(Field { kind: Kind::Group(fields), .. }) => slots(fields),
        _ => 0,
    }
}

/// Slots of tensors that the first `count` of the fields read, or else write.
const fn slots_of(fields: &[Field], count: usize, read: bool) -> u32 {
    let (mut slots, mut field) = (0, 0);
    while field < count {
        let Field { kind, .. } = fields[field];
        slots += if read { kind.is_read() } else { kind.is_written() } as u32;
        field += 1;
    }
    slots
}

/// Slots of all fields but those of which there is any number.
pub(crate) const fn slots(fields: &[Field]) -> u32 {
    let all = fields.len();
    slots_of_group(fields) + slots_of(fields, all, true) + slots_of(fields, all, false)
}

/// A slot that moves with the group that it belongs to.
pub(crate) trait Member: Copy {
    fn moved(self, by: u32) -> Self;
}

impl Member for InSlot {
    fn moved(self, by: u32) -> Self {
        Self::new(self.0.index + by, self.0.name)
    }
}

impl Member for OutSlot {
    fn moved(self, by: u32) -> Self {
        Self::new(self.0.index + by, self.0.name)
    }
}

impl Member for InOutSlot {
    fn moved(self, by: u32) -> Self {
        Self { before: self.before.moved(by), after: self.after.moved(by) }
    }
}

/// Appends the tensors of groups; what a group updates has its output in the same group.
pub(crate) fn extend_by_groups<'a, G: Arguments<'a>>(all: &mut Vec<Binding<'a>>, groups: Vec<G>) {
    for group in groups {
        let first = all.len();
        all.extend(group.bindings().into_iter().map(|binding| match binding {
            Binding::InPlace { output } => Binding::InPlace { output: first + output },
            other => other,
        }));
    }
}

impl EachSlot {
    pub(crate) const fn of_field(fields: &[Field], field: usize) -> Self {
        let of_group = match fields[field].kind {
            Kind::Each(group) => slots(group),
            _ => 0,
        };
        Self { first: slots(fields), of_group }
    }

    /// The place of `member` in the group number `index`.
    pub(crate) fn of<S: Member>(self, index: usize, member: S) -> S {
        // No operation has as many tensors as a u32 counts.
        member.moved(self.first + index as u32 * self.of_group)
    }
}

impl InOutSlot {
    pub(crate) const fn of_field(fields: &[Field], field: usize) -> Self {
        Self { before: InSlot::of_field(fields, field), after: OutSlot::of_field(fields, field) }
    }

    /// The tensor before the update.
    pub(crate) const fn before(self) -> InSlot {
        self.before
    }

    /// The tensor after the update.
    pub(crate) const fn after(self) -> OutSlot {
        self.after
    }

    /// The specification of the tensor in a plan.
    pub(crate) const fn holds(self, dtype: DType, len: usize) -> SlotSpec {
        SlotSpec { updated: Some(self.after.0), ..self.before.holds(dtype, len) }
    }
}

impl InSlot {
    const fn new(index: u32, name: &'static str) -> Self {
        Self(Slot { index, name })
    }

    pub(crate) const fn of_field(fields: &[Field], field: usize) -> Self {
        Self::new(slots_of_group(fields) + slots_of(fields, field, true), fields[field].name)
    }

    /// The tensor that a caller with fields of its own has for the place.
    pub(crate) fn bind<'a>(self, x: impl Into<Option<TensorRef<'a>>>) -> (Slot, Binding<'a>) {
        (self.0, x.into().into())
    }

    /// The tensor as an argument of a kernel.
    pub(crate) fn arg<E: Element>(self) -> In<E> {
        self.arg_at(0)
    }

    /// The tensor from byte `offset` on.
    pub(crate) fn arg_at<E: Element>(self, offset: u64) -> In<E> {
        self.0.read_at(offset)
    }

    /// The specification of the tensor in a plan.
    pub(crate) const fn holds(self, dtype: DType, len: usize) -> SlotSpec {
        SlotSpec { slot: self.0, updated: None, spec: TensorSpec::read(self.0.name, dtype, len) }
    }

    /// The same of one with strides.
    pub(crate) fn laid_out(self, dtype: DType, layout: Layout) -> SlotSpec {
        self.holds(dtype, 0).laid_out(layout)
    }
}

impl OutSlot {
    const fn new(index: u32, name: &'static str) -> Self {
        Self(Slot { index, name })
    }

    pub(crate) const fn of_field(fields: &[Field], field: usize) -> Self {
        let before = slots_of_group(fields) + slots_of(fields, fields.len(), true);
        Self::new(before + slots_of(fields, field, false), fields[field].name)
    }

    /// The place among the tensors of a plan.
    pub(crate) const fn index(self) -> usize {
        self.0.index as usize
    }

    /// The tensor that a caller with fields of its own has for the place.
    pub(crate) fn bind<'a>(self, y: impl Into<Option<TensorMut<'a>>>) -> (Slot, Binding<'a>) {
        (self.0, y.into().into())
    }

    /// The tensor as an argument of a kernel that writes it.
    pub(crate) fn arg<E: Element>(self) -> Out<E> {
        self.arg_at(0)
    }

    /// The tensor from byte `offset` on.
    pub(crate) fn arg_at<E: Element>(self, offset: u64) -> Out<E> {
        self.0.write_at(offset)
    }

    /// The same for a later kernel of the plan that reads what an earlier one wrote.
    pub(crate) fn written<E: Element>(self) -> In<E> {
        self.written_at(0)
    }

    /// The output of an earlier kernel from byte `offset` on.
    pub(crate) fn written_at<E: Element>(self, offset: u64) -> In<E> {
        self.0.read_at(offset)
    }

    /// The same for a kernel that does both.
    pub(crate) fn read_write<E: Element>(self) -> InOut<E> {
        self.read_write_at(0)
    }

    /// The tensor from byte `offset` on, for a kernel that reads and writes it.
    pub(crate) fn read_write_at<E: Element>(self, offset: u64) -> InOut<E> {
        self.0.read_write_at(offset)
    }

    /// The specification of the tensor in a plan.
    pub(crate) const fn holds(self, dtype: DType, len: usize) -> SlotSpec {
        SlotSpec { slot: self.0, updated: None, spec: TensorSpec::write(self.0.name, dtype, len) }
    }

    /// The same of one with strides.
    pub(crate) fn laid_out(self, dtype: DType, layout: Layout) -> SlotSpec {
        self.holds(dtype, 0).laid_out(layout)
    }

    /// The specification of scratch memory in a plan, absent if it has no elements.
    pub(crate) const fn scratch(self, dtype: DType, len: usize) -> SlotSpec {
        SlotSpec { slot: self.0, updated: None, spec: TensorSpec::workspace(dtype, len) }
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

/// The specification of the tensor in a slot of a plan; the methods are those of [`TensorSpec`].
#[derive(Clone, Debug)]
pub(crate) struct SlotSpec {
    slot: Slot,
    /// Where else it is, if it is updated.
    updated: Option<Slot>,
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

/// The list that a plan keeps: the specifications in the order of the slots. A slot that none was given for is absent.
pub(crate) fn in_slot_order(fields: &[Field], given: impl IntoIterator<Item = SlotSpec>) -> Vec<TensorSpec> {
    let mut all = absent(fields);
    let group = fields.iter().find_map(|field| match field.kind {
        Kind::Each(group) => Some(absent(group)),
        _ => None,
    });
    for SlotSpec { slot, updated, spec } in given {
        let index = slot.index as usize;
        if let Some(group) = &group {
            let missing = (index + 1).saturating_sub(all.len()).div_ceil(group.len().max(1));
            all.extend(group.iter().cycle().take(missing * group.len()).cloned());
        }
        if let Some(Slot { index, .. }) = updated {
            let after = TensorSpec { access: Access::Write, ..spec.clone() };
            all[index as usize] = after.in_place();
        }
        all[index] = spec;
    }
    all
}

/// The tensors of all fields but those of which there is any number, none of them there.
fn absent(fields: &[Field]) -> Vec<TensorSpec> {
    let mut all = match fields.first() {
        Some(Field { kind: Kind::Group(fields), .. }) => absent(fields),
        _ => Vec::new(),
    };
    let read = fields.iter().filter(|field| field.kind.is_read());
    let written = fields.iter().filter(|field| field.kind.is_written());
    let read = read.map(|field| TensorSpec::read(field.name, DType::U8, 0));
    let written = written.map(|field| TensorSpec::write(field.name, DType::U8, 0));
    all.extend(read.chain(written).map(|spec| spec.optional(false)));
    all
}

/// The tensors of a launch in the order of the slots. A slot that none was given for is absent; fields of which there is any
/// number have none.
pub(crate) fn bindings_in_slot_order<'a>(
    fields: &[Field],
    given: impl IntoIterator<Item = (Slot, Binding<'a>)>,
) -> Vec<Binding<'a>> {
    let mut all: Vec<_> = (0..slots(fields)).map(|_| Binding::Absent).collect();
    for (slot, binding) in given {
        all[slot.index as usize] = binding;
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
/// `SoftmaxArgs::x`; and `SoftmaxArgs::specs`, which puts what a plan says of them into their order: that of the fields, first
/// of those that are read, then of those that are written.
///
/// | kind | field | without one |
/// |---|---|---|
/// | `In`, `Out` | `TensorRef`, `TensorMut` | |
/// | `Option<In>`, `Option<Out>` | an `Option` of it | the kernel gets a null pointer |
/// | `InOut`, `Option<InOut>` | as of `Out`; the tensor is updated, and among those that are read, too | as of `Option<Out>` |
/// | `InPlace<y>` | `Option<TensorRef>` | the operation reads what `y` holds |
/// | `Source<y>` | `Source`, a type of the family that says whether there is a tensor or `y` is read | as its `binding` says |
/// | `Group<Inputs>` | `Inputs`, another struct of this macro, which other operations have too | |
/// | `Each<Weights>` | `Vec<Weights>`, of another struct of this macro: as many as the descriptor says | |
///
/// A group is the first field, and its tensors come before all others, so that its slots, `Inputs::q`, are those of every operation
/// that has it. Groups of any number are the last field, and their tensors come after all others: `Args::weights.of(1, Weights::bias)`.
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
            #[allow(non_camel_case_types, dead_code, reason = "variants are fields; a group has no slot of its own")]
            enum Position {
                $($field),+
            }

            #[allow(non_upper_case_globals, reason = "constants are fields")]
            #[allow(dead_code, reason = "a tensor that no kernel of a single launch takes")]
            impl<$a> $name<$a> {
                /// The fields in order.
                pub(crate) const FIELDS: &'static [$crate::tensors::Field] =
                    $crate::tensors::checked(&[$($crate::tensors::Field {
                        name: stringify!($field),
                        kind: $crate::tensors::tensors!(@kind $kind $($inner)?),
                    }),+]);

                $($crate::tensors::tensors! { @constant Position $field $kind $($inner)? })+

                /// The specifications of the tensors in their order; those that none is given for are absent.
                pub(crate) fn specs(
                    given: impl IntoIterator<Item = $crate::tensors::SlotSpec>,
                ) -> Vec<$crate::plan::TensorSpec> {
                    $crate::tensors::in_slot_order(Self::FIELDS, given)
                }

                /// The tensors of a caller with fields of its own, in their order; those that none is given for are absent.
                pub(crate) fn bind(
                    given: impl IntoIterator<Item = ($crate::tensors::Slot, $crate::plan::Binding<$a>)>,
                ) -> Vec<$crate::plan::Binding<$a>> {
                    $crate::tensors::bindings_in_slot_order(Self::FIELDS, given)
                }
            }

            impl<$a> $crate::tensors::Arguments<$a> for $name<$a> {
                fn bindings(self) -> Vec<$crate::plan::Binding<$a>> {
                    let mut all = Vec::with_capacity($crate::tensors::slots(Self::FIELDS) as usize);
                    $($crate::tensors::tensors!(@group all, self, $field, $kind $($inner)?);)+
                    $($crate::tensors::tensors!(@read all, self, $field, $kind $($inner)?);)+
                    $($crate::tensors::tensors!(@write all, self, $field, $kind $($inner)?);)+
                    $($crate::tensors::tensors!(@each all, self, $field, $kind $($inner)?);)+
                    all
                }
            }
        };
    };
    (@field $a:lifetime In) => { ::warpwright_runtime::TensorRef<$a> };
    (@field $a:lifetime Out) => { ::warpwright_runtime::TensorMut<$a> };
    (@field $a:lifetime InOut) => { ::warpwright_runtime::TensorMut<$a> };
    (@field $a:lifetime InPlace $output:ident) => { Option<::warpwright_runtime::TensorRef<$a>> };
    (@field $a:lifetime Option $kind:ident) => { Option<$crate::tensors::tensors!(@field $a $kind)> };
    (@field $a:lifetime Group $group:ident) => { $group<$a> };
    (@field $a:lifetime Each $group:ident) => { Vec<$group<$a>> };
    (@field $a:lifetime $source:ident $output:ident) => { $source<$a> };

    (@kind Out) => { $crate::tensors::Kind::Write };
    (@kind InOut) => { $crate::tensors::Kind::Update };
    (@kind Option $kind:ident) => { $crate::tensors::tensors!(@kind $kind) };
    (@kind Group $group:ident) => { $crate::tensors::Kind::Group($group::FIELDS) };
    (@kind Each $group:ident) => { $crate::tensors::Kind::Each($group::FIELDS) };
    (@kind $($kind:ident)+) => { $crate::tensors::Kind::Read };

    (@slot Out) => { $crate::tensors::OutSlot };
    (@slot InOut) => { $crate::tensors::InOutSlot };
    (@slot Option $kind:ident) => { $crate::tensors::tensors!(@slot $kind) };
    (@slot Each $group:ident) => { $crate::tensors::EachSlot };
    (@slot $($kind:ident)+) => { $crate::tensors::InSlot };

    (@constant $position:ident $field:ident Group $group:ident) => {};
    (@constant $position:ident $field:ident $($kind:ident)+) => {
        pub(crate) const $field: $crate::tensors::tensors!(@slot $($kind)+) =
            <$crate::tensors::tensors!(@slot $($kind)+)>::of_field(Self::FIELDS, $position::$field as usize);
    };

    (@group $all:ident, $self:ident, $field:ident, Group $group:ident) => {
        $all.extend($crate::tensors::Arguments::bindings($self.$field))
    };
    (@group $all:ident, $self:ident, $field:ident, $($kind:ident)+) => {};

    (@read $all:ident, $self:ident, $field:ident, In) => { $all.push($self.$field.into()) };
    (@read $all:ident, $self:ident, $field:ident, Option In) => { $all.push($self.$field.into()) };
    (@read $all:ident, $self:ident, $field:ident, InOut) => {
        $all.push($crate::plan::Binding::InPlace { output: Self::$field.after().index() })
    };
    (@read $all:ident, $self:ident, $field:ident, Option InOut) => {
        $all.push(match $self.$field {
            Some(_) => $crate::plan::Binding::InPlace { output: Self::$field.after().index() },
            None => $crate::plan::Binding::Absent,
        })
    };
    (@read $all:ident, $self:ident, $field:ident, InPlace $output:ident) => {
        $all.push($self.$field.map_or(
            $crate::plan::Binding::InPlace { output: Self::$output.index() },
            $crate::plan::Binding::Input,
        ))
    };
    (@read $all:ident, $self:ident, $field:ident, Out) => {};
    (@read $all:ident, $self:ident, $field:ident, Option Out) => {};
    (@read $all:ident, $self:ident, $field:ident, Group $group:ident) => {};
    (@read $all:ident, $self:ident, $field:ident, Each $group:ident) => {};
    (@read $all:ident, $self:ident, $field:ident, $source:ident $output:ident) => {
        $all.push($self.$field.binding(Self::$output.index()))
    };

    (@write $all:ident, $self:ident, $field:ident, Out) => { $all.push($self.$field.into()) };
    (@write $all:ident, $self:ident, $field:ident, InOut) => { $all.push($self.$field.into()) };
    (@write $all:ident, $self:ident, $field:ident, Option Out) => { $all.push($self.$field.into()) };
    (@write $all:ident, $self:ident, $field:ident, Option InOut) => { $all.push($self.$field.into()) };
    (@write $all:ident, $self:ident, $field:ident, $($kind:ident)+) => {};

    (@each $all:ident, $self:ident, $field:ident, Each $group:ident) => {
        $crate::tensors::extend_by_groups(&mut $all, $self.$field)
    };
    (@each $all:ident, $self:ident, $field:ident, $($kind:ident)+) => {};
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

    tensors! {
        /// Tensors of a part of nothing.
        #[derive(Clone, Copy)]
        struct PartArgs<'a> {
            /// Read.
            weight: In,
            /// Not always there.
            bias: Option<In>,
        }
    }

    tensors! {
        /// Tensors of a part that is updated.
        struct UpdatedArgs<'a> {
            /// Updated.
            state: InOut,
            /// Not always there.
            average: Option<InOut>,
        }
    }

    tensors! {
        /// Tensors of several updates.
        struct UpdatesArgs<'a> {
            /// Read.
            x: In,
            /// Of each part.
            parts: Each<UpdatedArgs>,
        }
    }

    #[test]
    fn groups_are_updated_in_their_own_slots() {
        let slot = UpdatesArgs::parts.of(1, UpdatedArgs::state);
        assert_eq!((slot.before(), slot.after()), (InSlot::new(5, "state"), OutSlot::new(7, "state")));
        let specs = UpdatesArgs::specs([slot.holds(DType::F32, 3)]);
        let present: Vec<usize> = (0..specs.len()).filter(|&i| specs[i].present).collect();
        assert_eq!((specs.len(), present), (9, vec![5, 7]));
        let device = Device::emulator();
        let tensor = || Tensor::zeros(&device, DType::F32, &[2]).unwrap();
        let (x, mut first, mut second) = (tensor(), tensor(), tensor());
        let part = |state| UpdatedArgs { state, average: None };
        let parts = vec![part(first.as_mut()), part(second.as_mut())];
        let bindings = UpdatesArgs { x: x.as_ref(), parts }.bindings();
        assert!(matches!(bindings[1], Binding::InPlace { output: 3 }));
        assert!(matches!(bindings[5], Binding::InPlace { output: 7 }));
        assert!(matches!(bindings[7], Binding::Output(_)));
    }

    tensors! {
        /// Tensors of nothing in parts.
        struct PartsArgs<'a> {
            /// Read.
            x: In,
            /// Written.
            y: Out,
            /// Updated, if it is there.
            state: Option<InOut>,
            /// Updated.
            count: InOut,
            /// Of each part.
            parts: Each<PartArgs>,
        }
    }

    #[test]
    fn what_is_updated_has_two_slots() {
        let state = (PartsArgs::state.before(), PartsArgs::state.after());
        assert_eq!(state, (InSlot::new(1, "state"), OutSlot::new(4, "state")));
        assert_eq!(PartsArgs::count.after(), OutSlot::new(5, "count"));
        let specs = PartsArgs::specs([
            PartsArgs::state.holds(DType::F32, 3).optional(false),
            PartsArgs::count.holds(DType::I64, 1),
        ]);
        let all: Vec<_> = specs.iter().map(|s| (s.name, s.access, s.len, s.may_replace_input)).collect();
        let expected = [
            ("x", Access::Read, 0, false),
            ("state", Access::Read, 0, false),
            ("count", Access::Read, 1, false),
            ("y", Access::Write, 0, false),
            ("state", Access::Write, 0, true),
            ("count", Access::Write, 1, true),
        ];
        assert_eq!(all, expected);
        assert_eq!(specs.iter().filter(|spec| spec.present).count(), 2);
    }

    #[test]
    fn groups_follow_all_other_tensors() {
        assert_eq!(PartsArgs::parts.of(2, PartArgs::bias), InSlot::new(11, "bias"));
        let weight = |part| PartsArgs::parts.of(part, PartArgs::weight).holds(DType::F16, part + 1);
        let specs = PartsArgs::specs([weight(1), weight(0)]);
        let groups: Vec<_> = specs[6..].iter().map(|spec| (spec.name, spec.len, spec.present)).collect();
        assert_eq!(
            groups,
            [("weight", 1, true), ("bias", 0, false), ("weight", 2, true), ("bias", 0, false)]
        );
    }

    #[test]
    fn bindings_of_groups_and_of_what_is_updated() {
        let device = Device::emulator();
        let tensor = || Tensor::zeros(&device, DType::F32, &[2]).unwrap();
        let (x, weight, mut y, mut count) = (tensor(), tensor(), tensor(), tensor());
        let part = PartArgs { weight: weight.as_ref(), bias: None };
        let args = PartsArgs {
            x: x.as_ref(),
            y: y.as_mut(),
            state: None,
            count: count.as_mut(),
            parts: vec![part, part],
        };
        let bindings = args.bindings();
        assert_eq!(bindings.len(), 10);
        assert!(matches!(bindings[1], Binding::Absent));
        assert!(matches!(bindings[2], Binding::InPlace { output: 5 }));
        assert!(matches!(bindings[4], Binding::Absent));
        assert!(matches!(bindings[5], Binding::Output(_)));
        assert!(matches!(&bindings[8], Binding::Input(w) if w.address() == weight.as_ref().address()));
        assert!(matches!(bindings[9], Binding::Absent));
    }

    #[test]
    fn callers_with_fields_of_their_own_leave_tensors_out() {
        let device = Device::emulator();
        let mut y = Tensor::zeros(&device, DType::F32, &[2]).unwrap();
        let bindings = SampleArgs::bind([SampleArgs::y.bind(y.as_mut()), SampleArgs::mean.bind(None)]);
        assert_eq!(bindings.len(), 5);
        assert!(matches!(bindings[3], Binding::Output(_)));
        assert!(bindings.iter().filter(|b| matches!(b, Binding::Absent)).count() == 4);
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
