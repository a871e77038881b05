//! Kernel arguments: one declaration gives the struct that a launch fills in and the handles that `build` receives.

use std::fmt;
use std::marker::PhantomData;

use warpwright_ptx::{ArgValue, DType, Inst, Param, PointerAttr, ScalarType, StateSpace};

use crate::context::K;
use crate::error::IssueKind;
use crate::mem::{Element, Ptr, Read, ReadWrite, Space, Write};
use crate::reg::{Pred, Reg, Scalar, U32, U64};

macro_rules! pointer_argument {
    ($(#[$doc:meta])* $name:ident, $space:ident, $output:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name<E> {
            pub(crate) value: ArgValue,
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

            fn describe(path: &str, all: &mut Vec<ArgInfo>) {
                let (output, dynamic) = ($output, E::DTYPE.is_none());
                all.push(ArgInfo { path: path.to_owned(), output, dynamic });
            }

            fn pass(&self, values: &mut Vec<ArgValue>) {
                values.push(self.value.clone());
            }

            #[track_caller]
            fn declare<'k>(k: K<'k>, path: &str, dtypes: &DTypes) -> Self::Param<'k> {
                declare_pointer(k, path, dtypes)
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

/// A type that a kernel can take: [`In`], [`Out`], [`InOut`], the scalars `u32`, `u64`, `i32`, `i64`, `f32`, `f64`, and what is
/// made of several parameters: arrays, [`Strided`], [`Optional`], and other structs of
/// [`kernel_args!`](crate::kernel_args).
///
/// Every parameter has a path: the field, and after a dot the field or the index inside of it. In PTX the dots are
/// underscores.
pub trait Argument {
    /// The handle that `build` receives.
    type Param<'k>: Copy;

    /// Appends its parameters in order.
    fn describe(path: &str, all: &mut Vec<ArgInfo>);

    /// Appends what a launch passes for them.
    fn pass(&self, values: &mut Vec<ArgValue>);

    /// Declares the parameters in order and loads them.
    fn declare<'k>(k: K<'k>, path: &str, dtypes: &DTypes) -> Self::Param<'k>;
}

/// The path of a field or an element inside of `path`, which is empty for the arguments of the kernel themselves.
pub fn path_in(path: &str, name: impl fmt::Display) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

/// The name in PTX.
pub(crate) fn parameter_name(path: &str) -> String {
    path.replace('.', "_")
}

macro_rules! scalar_arguments {
    ($($ty:ty => $variant:ident;)*) => {$(
        impl Argument for $ty {
            type Param<'k> = Reg<'k, $ty>;

            fn describe(path: &str, all: &mut Vec<ArgInfo>) {
                all.push(ArgInfo { path: path.to_owned(), output: false, dynamic: false });
            }

            fn pass(&self, values: &mut Vec<ArgValue>) {
                values.push(ArgValue::$variant(*self));
            }

            #[track_caller]
            fn declare<'k>(k: K<'k>, path: &str, _: &DTypes) -> Self::Param<'k> {
                let symbol = k.rec().new_param(Param::scalar(parameter_name(path), <$ty as Scalar>::TYPE));
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
fn declare_pointer<'k, S: Space, E: Element>(k: K<'k>, path: &str, dtypes: &DTypes) -> Ptr<'k, S, E> {
    let mut param = Param::scalar(parameter_name(path), ScalarType::U64);
    param.pointer = Some(PointerAttr { space: StateSpace::Global, align: None });
    let symbol = k.rec().new_param(param);
    let Some(dtype) = E::DTYPE.or_else(|| dtypes.get(path)) else {
        k.issue(IssueKind::NoDType { argument: path.to_owned() });
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

impl<T: Argument, const N: usize> Argument for [T; N] {
    type Param<'k> = [T::Param<'k>; N];

    fn describe(path: &str, all: &mut Vec<ArgInfo>) {
        (0..N).for_each(|index| T::describe(&path_in(path, index), all));
    }

    fn pass(&self, values: &mut Vec<ArgValue>) {
        self.iter().for_each(|argument| argument.pass(values));
    }

    #[track_caller]
    fn declare<'k>(k: K<'k>, path: &str, dtypes: &DTypes) -> Self::Param<'k> {
        let mut index = 0;
        [(); N].map(|()| {
            let param = T::declare(k, &path_in(path, index), dtypes);
            index += 1;
            param
        })
    }
}

/// A tensor of `N` dimensions with the elements from one to the next along each: parameters `x`, `x_stride_0`,
/// `x_stride_1` and so on. In `build` it is a [`StridedPtr`].
#[derive(Clone, Debug, PartialEq)]
pub struct Strided<T, const N: usize> {
    /// The first element.
    pub data: T,
    /// Elements from one to the next.
    pub strides: [u64; N],
}

/// The handle of a [`Strided`] tensor.
#[derive(Clone, Copy, Debug)]
pub struct StridedPtr<'k, P, const N: usize> {
    /// The first element.
    pub data: P,
    /// Elements from one to the next.
    pub strides: [U64<'k>; N],
}

impl<'k, S: Space, E: Element, const N: usize> StridedPtr<'k, Ptr<'k, S, E>, N> {
    /// The pointer to an element.
    #[track_caller]
    pub fn at(self, index: [U32<'k>; N]) -> Ptr<'k, S, E> {
        self.data.k.on_behalf(|| {
            let steps = index.into_iter().zip(self.strides).map(|(index, stride)| index.to_u64() * stride);
            steps.reduce(|a, b| a + b).map_or(self.data, |offset| self.data.at(offset))
        })
    }
}

impl<T: Argument, const N: usize> Strided<T, N> {
    fn strides_in(path: &str) -> String {
        path_in(path, "stride")
    }
}

impl<T: Argument, const N: usize> Argument for Strided<T, N> {
    type Param<'k> = StridedPtr<'k, T::Param<'k>, N>;

    fn describe(path: &str, all: &mut Vec<ArgInfo>) {
        T::describe(path, all);
        <[u64; N]>::describe(&Self::strides_in(path), all);
    }

    fn pass(&self, values: &mut Vec<ArgValue>) {
        self.data.pass(values);
        self.strides.pass(values);
    }

    #[track_caller]
    fn declare<'k>(k: K<'k>, path: &str, dtypes: &DTypes) -> Self::Param<'k> {
        let data = T::declare(k, path, dtypes);
        StridedPtr { data, strides: <[u64; N]>::declare(k, &Self::strides_in(path), dtypes) }
    }
}

/// An argument that not every launch gives: parameters `x` and `x_given`. In `build` it is an [`OptionalParam`].
#[derive(Clone, Debug, PartialEq)]
pub struct Optional<T> {
    /// The argument; a slot without a tensor if it is not given.
    pub value: T,
    /// Whether it is.
    pub given: bool,
}

/// The handle of an [`Optional`] argument.
#[derive(Clone, Copy, Debug)]
pub struct OptionalParam<'k, P> {
    /// The argument, which is meaningless if it is not given.
    pub value: P,
    given: U32<'k>,
}

impl<'k, P> OptionalParam<'k, P> {
    /// Whether the launch gave it.
    #[track_caller]
    pub fn is_given(&self) -> Pred<'k> {
        self.given.ne(0)
    }
}

impl<T: Argument> Optional<T> {
    fn given_in(path: &str) -> String {
        path_in(path, "given")
    }
}

impl<T: Argument> Argument for Optional<T> {
    type Param<'k> = OptionalParam<'k, T::Param<'k>>;

    fn describe(path: &str, all: &mut Vec<ArgInfo>) {
        T::describe(path, all);
        u32::describe(&Self::given_in(path), all);
    }

    fn pass(&self, values: &mut Vec<ArgValue>) {
        self.value.pass(values);
        u32::from(self.given).pass(values);
    }

    #[track_caller]
    fn declare<'k>(k: K<'k>, path: &str, dtypes: &DTypes) -> Self::Param<'k> {
        let value = T::declare(k, path, dtypes);
        OptionalParam { value, given: u32::declare(k, &Self::given_in(path), dtypes) }
    }
}

/// A pointer that not all kernels with these arguments have, but those whose spec names a type for it with [`DTypes::with`]. In `build`
/// it is an [`Option`] of a [`Ptr`].
///
/// ```
/// use warpwright_dsl::prelude::*;
/// kernel_args! {
///     /// `y = x`, times a factor of each column in a kernel that has factors.
///     pub struct RowsArgs => RowsParams { x: In<Elem>, factors: Extra<In<Elem>>, y: Out<Elem> }
/// }
/// let args = |factors| RowsArgs { x: In::slot(0), factors: Extra(factors), y: Out::slot(1) };
/// assert_eq!(args(None).values().len(), 2);
/// assert_eq!(args(Some(In::slot(2))).values().len(), 3);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Extra<T>(
    /// The argument that a launch of a kernel passes which has it.
    pub Option<T>,
);

impl<T: Argument> Argument for Extra<T> {
    type Param<'k> = Option<T::Param<'k>>;

    fn describe(path: &str, all: &mut Vec<ArgInfo>) {
        T::describe(path, all);
    }

    fn pass(&self, values: &mut Vec<ArgValue>) {
        self.0.iter().for_each(|value| value.pass(values));
    }

    #[track_caller]
    fn declare<'k>(k: K<'k>, path: &str, dtypes: &DTypes) -> Self::Param<'k> {
        dtypes.names().any(|name| name == path).then(|| T::declare(k, path, dtypes))
    }
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

    /// Another type for one argument, such as `lse`, or `results.lse` in a group; for all of a group or an array where
    /// `path` is that of it.
    #[must_use]
    pub fn with(mut self, path: &'static str, dtype: DType) -> Self {
        self.named.retain(|(name, _)| *name != path);
        self.named.push((path, dtype));
        self
    }

    /// The arguments at `paths` hold sums or statistics of the others: they are of the type that those are accumulated
    /// in, [`DType::accumulator`].
    ///
    /// ```
    /// use warpwright_dsl::prelude::*;
    /// let dtypes = DTypes::all(DType::BF16).accumulated(["mean", "rstd"]);
    /// assert_eq!((dtypes.get("x"), dtypes.get("mean")), (Some(DType::BF16), Some(DType::F32)));
    /// ```
    #[must_use]
    pub fn accumulated<const N: usize>(self, paths: [&'static str; N]) -> Self {
        let accumulator = self.common().accumulator();
        paths.into_iter().fold(self, |all, path| all.with(path, accumulator))
    }

    /// The type of the arguments that have none of their own; f32 where nothing is said.
    pub(crate) fn common(&self) -> DType {
        self.all.unwrap_or(DType::F32)
    }

    /// The type of an argument: that of the longest path which is its own or that of something it is in.
    pub fn get(&self, argument: &str) -> Option<DType> {
        let found = self.named.iter().filter(|(path, _)| is_in(argument, path));
        found.max_by_key(|(path, _)| path.len()).map(|(_, dtype)| *dtype).or(self.all)
    }

    /// The arguments that are named.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.named.iter().map(|(name, _)| *name)
    }
}

/// Whether an argument is the one at `path` or inside of it.
pub(crate) fn is_in(argument: &str, path: &str) -> bool {
    argument.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The facts of an argument without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgInfo {
    /// Its path.
    pub path: String,
    /// Whether the kernel writes through it.
    pub output: bool,
    /// Whether its element type is chosen by [`DTypes`].
    pub dynamic: bool,
}

/// The arguments of a kernel; implemented by [`kernel_args!`](crate::kernel_args).
pub trait KernelArgs: Argument {
    /// The arguments in order.
    fn info() -> Vec<ArgInfo> {
        let mut all = Vec::new();
        Self::describe("", &mut all);
        all
    }

    /// The values that a launch passes, in order.
    fn values(&self) -> Vec<ArgValue> {
        let mut values = Vec::new();
        self.pass(&mut values);
        values
    }
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
///
/// A field may be a group, which is another such struct, an array, a [`Strided`] tensor, or [`Optional`]; it becomes
/// as many parameters, in order.
///
/// ```
/// use warpwright_dsl::prelude::*;
/// kernel_args! {
///     /// A batch of matrices.
///     pub struct MatricesArgs => MatricesParams { x: Strided<In<Elem>, 3>, sizes: [u32; 3] }
/// }
/// kernel_args! {
///     /// Their sums, each times a factor if there are factors.
///     pub struct SumArgs => SumParams { of: MatricesArgs, factors: Optional<In<f32>>, y: Out<Elem> }
/// }
/// let x = Strided { data: In::slot(0), strides: [600, 20, 1] };
/// let args = SumArgs {
///     of: MatricesArgs { x, sizes: [4, 30, 20] },
///     factors: Optional { value: In::slot(1), given: true },
///     y: Out::slot(2),
/// };
/// let names: Vec<String> = SumArgs::info().into_iter().map(|argument| argument.path).collect();
/// let of_x = ["of.x", "of.x.stride.0", "of.x.stride.1", "of.x.stride.2"];
/// assert_eq!(names[..4], of_x);
/// assert_eq!(names[4..], ["of.sizes.0", "of.sizes.1", "of.sizes.2", "factors", "factors.given", "y"]);
/// assert_eq!(args.values().len(), names.len());
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

        impl $crate::args::Argument for $args {
            type Param<'k> = $params<'k>;

            fn describe(path: &str, all: &mut ::std::vec::Vec<$crate::args::ArgInfo>) {
                $(<$ty as $crate::args::Argument>::describe(
                    &$crate::args::path_in(path, stringify!($field)),
                    all,
                );)+
            }

            fn pass(&self, values: &mut ::std::vec::Vec<$crate::ArgValue>) {
                $($crate::args::Argument::pass(&self.$field, values);)+
            }

            #[track_caller]
            fn declare<'k>(k: $crate::K<'k>, path: &str, dtypes: &$crate::args::DTypes) -> $params<'k> {
                $params {
                    $($field: <$ty as $crate::args::Argument>::declare(
                        k,
                        &$crate::args::path_in(path, stringify!($field)),
                        dtypes,
                    ),)+
                }
            }
        }

        impl $crate::args::KernelArgs for $args {}
    };
}
