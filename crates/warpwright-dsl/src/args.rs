//! Kernel arguments: one declaration gives the struct that a launch fills in and the handles that `build` receives.

use std::marker::PhantomData;

use warpwright_ptx::{ArgValue, DType, Inst, Param, PointerAttr, ScalarType, StateSpace};

use crate::context::K;
use crate::error::IssueKind;
use crate::mem::{Element, Ptr, Read, ReadWrite, Space, Write};
use crate::reg::{Reg, Scalar};

macro_rules! pointer_argument {
    ($(#[$doc:meta])* $name:ident, $space:ident, $output:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name<E> {
            value: ArgValue,
            element: PhantomData<fn() -> E>,
        }

        impl<E: Element> $name<E> {
            /// The `slot`-th tensor of an operation, bound when the plan is launched.
            pub fn slot(slot: u32) -> Self {
                Self::slot_at(slot, 0)
            }

            /// The `slot`-th tensor of an operation from byte `offset` on.
            pub fn slot_at(slot: u32, offset: u64) -> Self {
                ArgValue::Slot { slot, offset }.into()
            }

            /// A device address.
            pub fn address(address: u64) -> Self {
                ArgValue::Address(address).into()
            }
        }

        impl<E> From<ArgValue> for $name<E> {
            fn from(value: ArgValue) -> Self {
                Self { value, element: PhantomData }
            }
        }

        impl<E: Element> Argument for $name<E> {
            type Param<'k> = Ptr<'k, $space, E>;
            const OUTPUT: bool = $output;
            const DYNAMIC: bool = E::DTYPE.is_none();

            fn value(&self) -> ArgValue {
                self.value.clone()
            }

            #[track_caller]
            fn declare<'k>(k: K<'k>, name: &'static str, dtypes: &DTypes) -> Self::Param<'k> {
                declare_pointer(k, name, dtypes)
            }
        }
    };
}

pointer_argument! {
    /// A pointer that the kernel reads. As a field of a launch it is an address or a slot; in `build` it is a [`Ptr`].
    In, Read, false
}

pointer_argument! {
    /// A pointer that the kernel writes.
    Out, Write, true
}

pointer_argument! {
    /// A pointer that the kernel reads and writes.
    InOut, ReadWrite, true
}

/// A type that a kernel can take: [`In`], [`Out`], [`InOut`] and the scalars `u32`, `u64`, `i32`, `i64`, `f32`, `f64`.
pub trait Argument {
    /// What `build` receives.
    type Param<'k>: Copy;
    /// Whether the kernel writes through it.
    const OUTPUT: bool;
    /// Whether its element type is chosen by [`DTypes`].
    const DYNAMIC: bool;

    /// What a launch passes.
    fn value(&self) -> ArgValue;

    /// Declares the parameter and loads it.
    fn declare<'k>(k: K<'k>, name: &'static str, dtypes: &DTypes) -> Self::Param<'k>;
}

macro_rules! scalar_arguments {
    ($($ty:ty => $variant:ident;)*) => {$(
        impl Argument for $ty {
            type Param<'k> = Reg<'k, $ty>;
            const OUTPUT: bool = false;
            const DYNAMIC: bool = false;

            fn value(&self) -> ArgValue {
                ArgValue::$variant(*self)
            }

            #[track_caller]
            fn declare<'k>(k: K<'k>, name: &'static str, _: &DTypes) -> Self::Param<'k> {
                let symbol = k.rec().new_param(Param::scalar(name, <$ty as Scalar>::TYPE));
                k.load_param(symbol)
            }
        }
    )*};
}

scalar_arguments! {
    u32 => U32;
    u64 => U64;
    i32 => S32;
    i64 => S64;
    f32 => F32;
    f64 => F64;
}

#[track_caller]
fn declare_pointer<'k, S: Space, E: Element>(k: K<'k>, name: &'static str, dtypes: &DTypes) -> Ptr<'k, S, E> {
    let mut param = Param::scalar(name, ScalarType::U64);
    param.pointer = Some(PointerAttr { space: StateSpace::Global, align: None });
    let symbol = k.rec().new_param(param);
    let Some(dtype) = E::DTYPE.or_else(|| dtypes.get(name)) else {
        k.issue(IssueKind::NoDType { argument: name });
        return k.poison_ptr();
    };
    let generic = k.load_param::<u64>(symbol);
    let base = k.fresh::<u64>();
    k.emit(Inst::Cvta {
        to_space: true,
        space: StateSpace::Global,
        ty: ScalarType::U64,
        dst: base.id(),
        src: generic.as_operand(),
    });
    Ptr::new(k, base.id(), dtype)
}

/// The run-time element types of a kernel's [`Elem`](crate::Elem) arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DTypes {
    all: Option<DType>,
    named: Vec<(&'static str, DType)>,
}

impl DTypes {
    /// For kernels without `Elem` arguments.
    pub const NONE: Self = Self { all: None, named: Vec::new() };

    /// The same type for every `Elem` argument.
    pub const fn all(dtype: DType) -> Self {
        Self { all: Some(dtype), named: Vec::new() }
    }

    /// Another type for one argument.
    #[must_use]
    pub fn with(mut self, argument: &'static str, dtype: DType) -> Self {
        self.named.retain(|(name, _)| *name != argument);
        self.named.push((argument, dtype));
        self
    }

    /// The type of an argument.
    pub fn get(&self, argument: &str) -> Option<DType> {
        self.named.iter().find(|(name, _)| *name == argument).map(|(_, dtype)| *dtype).or(self.all)
    }

    /// The arguments that are named.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.named.iter().map(|(name, _)| *name)
    }
}

/// What is known of an argument without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgInfo {
    /// Its name.
    pub name: &'static str,
    /// Whether the kernel writes through it.
    pub output: bool,
    /// Whether its element type is chosen by [`DTypes`].
    pub dynamic: bool,
}

/// The arguments of a kernel; implemented by [`kernel_args!`](crate::kernel_args).
pub trait KernelArgs {
    /// The handles that `build` receives.
    type Params<'k>: Copy;
    /// The arguments in order.
    const INFO: &'static [ArgInfo];

    /// Declares the parameters in order and loads them.
    fn declare<'k>(k: K<'k>, dtypes: &DTypes) -> Self::Params<'k>;

    /// What a launch passes, in order.
    fn values(&self) -> Vec<ArgValue>;
}

/// Declares the arguments of a kernel: a struct for launches and the struct of handles that `build` receives.
///
/// ```
/// use warpwright_dsl::prelude::*;
/// kernel_args! {
///     /// `y = alpha * x`
///     pub struct ScaleArgs => ScaleParams { x: In<Elem>, y: Out<Elem>, alpha: f32, n: u64 }
/// }
/// let args = ScaleArgs { x: In::slot(0), y: Out::slot(1), alpha: 2.0, n: 10 };
/// assert_eq!(args.values().len(), 4);
/// ```
#[macro_export]
macro_rules! kernel_args {
    (
        $(#[$meta:meta])*
        $vis:vis struct $args:ident => $params:ident {
            $($(#[$field_meta:meta])* $field:ident: $ty:ty),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $args {
            $(
                $(#[$field_meta])*
                #[doc = concat!("Argument `", stringify!($field), "`.")]
                pub $field: $ty,
            )+
        }

        $(#[$meta])*
        ///
        /// The handles while recording.
        #[derive(Clone, Copy, Debug)]
        $vis struct $params<'k> {
            $(
                $(#[$field_meta])*
                #[doc = concat!("Argument `", stringify!($field), "`.")]
                pub $field: <$ty as $crate::args::Argument>::Param<'k>,
            )+
        }

        impl $crate::args::KernelArgs for $args {
            type Params<'k> = $params<'k>;
            const INFO: &'static [$crate::args::ArgInfo] = &[$(
                $crate::args::ArgInfo {
                    name: stringify!($field),
                    output: <$ty as $crate::args::Argument>::OUTPUT,
                    dynamic: <$ty as $crate::args::Argument>::DYNAMIC,
                },
            )+];

            #[track_caller]
            fn declare<'k>(k: $crate::K<'k>, dtypes: &$crate::args::DTypes) -> $params<'k> {
                $params {
                    $($field: <$ty as $crate::args::Argument>::declare(k, stringify!($field), dtypes),)+
                }
            }

            fn values(&self) -> ::std::vec::Vec<$crate::ArgValue> {
                ::std::vec![$($crate::args::Argument::value(&self.$field)),+]
            }
        }
    };
}
