//! Typed pointers. The element type in memory may be decided while recording ([`Elem`]); register types are Rust types.

use std::fmt;
use std::marker::PhantomData;

use warpwright_ptx::{
    Address, CacheHints, DType, Inst, Operand, PredUse, ScalarType, StateSpace, SymbolId, Variable,
};

use crate::context::K;
use crate::error::IssueKind;
use crate::float::Float;
use crate::index::{IntoIndex, absorb, shared_address};
use crate::lanes::Lanes;
use crate::reg::{I64, Number, Pred, Reg, Scalar, Source, U32, U64};
use crate::storage::{Place, load, store};

/// A floating-point element whose type is chosen while recording, by
/// [`KernelSpec::dtypes`](crate::KernelSpec::dtypes). It is read and written through `f32` registers, or `f64` for
/// [`DType::F64`]; see [`accumulate!`](crate::accumulate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elem {}

/// An IEEE half-precision element, read and written through `f32` registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum F16 {}

/// A bfloat16 element, read and written through `f32` registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BF16 {}

/// A type that a pointer can point to.
pub trait Element: 'static {
    /// The type in memory; `None` for [`Elem`].
    const DTYPE: Option<DType>;
}

/// An element type that is read and written through registers of type `A`.
pub trait Access<A: Number>: Element {}

/// An element type that is known statically.
pub trait FixedElement: Element {
    /// The type in memory.
    const FIXED: DType;
}

impl Element for Elem {
    const DTYPE: Option<DType> = None;
}
impl<A: Float> Access<A> for Elem {}

macro_rules! elements {
    ($($ty:ty => $dtype:ident through $reg:ty;)*) => {$(
        impl Element for $ty {
            const DTYPE: Option<DType> = Some(DType::$dtype);
        }
        impl FixedElement for $ty {
            const FIXED: DType = DType::$dtype;
        }
        impl Access<$reg> for $ty {}
    )*};
}

elements! {
    f32 => F32 through f32;
    f64 => F64 through f64;
    F16 => F16 through f32;
    BF16 => BF16 through f32;
    u8 => U8 through u32;
    i8 => I8 through i32;
    u16 => U16 through u32;
    i16 => I16 through i32;
    u32 => U32 through u32;
    i32 => I32 through i32;
    u64 => U64 through u64;
    i64 => I64 through i64;
}

/// Global memory that the kernel only reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {}
/// Global memory that the kernel only writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {}
/// Global memory that the kernel reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadWrite {}
/// The block's shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {}

/// Where a pointer points and what may be done there.
pub trait Space: 'static {
    /// The state space.
    const SPACE: StateSpace;
}

/// Spaces that can be read.
pub trait Readable: Space {}
/// Spaces that can be written.
pub trait Writable: Space {}

/// The shared memory of a block of the cluster, reached with [`Ptr::of_block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterShared {}

impl Space for Read {
    const SPACE: StateSpace = StateSpace::Global;
}
impl Space for Write {
    const SPACE: StateSpace = StateSpace::Global;
}
impl Space for ReadWrite {
    const SPACE: StateSpace = StateSpace::Global;
}
impl Space for Shared {
    const SPACE: StateSpace = StateSpace::Shared;
}
impl Space for ClusterShared {
    const SPACE: StateSpace = StateSpace::SharedCluster;
}
impl Readable for Read {}
impl Readable for ReadWrite {}
impl Readable for Shared {}
impl Readable for ClusterShared {}
impl Writable for Write {}
impl Writable for ReadWrite {}
impl Writable for Shared {}
impl Writable for ClusterShared {}

/// Whether addresses of the space have 32 bits.
const fn is_narrow(space: StateSpace) -> bool {
    matches!(space, StateSpace::Shared | StateSpace::SharedCluster)
}

/// The value of loads that are not made; see [`Ptr::only_where`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// 0
    Zero,
    /// Minus infinity; 0 for integers.
    MinusInfinity,
}

/// Under what accesses are made, and what loads give otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) pred: PredUse,
    pub(crate) fill: Fill,
}

/// A pointer into space `S` to elements `E`. Moving it with [`at`](Self::at) gives another pointer.
#[must_use = "moving a pointer records instructions but accesses nothing"]
pub struct Ptr<'k, S, E> {
    pub(crate) k: K<'k>,
    base: warpwright_ptx::Reg,
    /// Bytes past the base.
    offset: i64,
    dtype: DType,
    hints: CacheHints,
    non_coherent: bool,
    guard: Option<Guard>,
    marker: PhantomData<fn() -> (S, E)>,
}

impl<S, E> Clone for Ptr<'_, S, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, E> Copy for Ptr<'_, S, E> {}

impl<S: Space, E> fmt::Debug for Ptr<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[%{}+{}]", S::SPACE, self.dtype, self.base.0, self.offset)
    }
}

impl<'k, S: Space, E: Element> Ptr<'k, S, E> {
    pub(crate) fn new(k: K<'k>, base: warpwright_ptx::Reg, dtype: DType) -> Self {
        Self {
            k,
            base,
            offset: 0,
            dtype,
            hints: CacheHints::NONE,
            non_coherent: false,
            guard: None,
            marker: PhantomData,
        }
    }

    /// The type in memory.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The pointer `index` elements on.
    #[track_caller]
    pub fn at(self, index: impl IntoIndex<'k>) -> Self {
        let index = index.into_index(self.k);
        let bytes = u32::try_from(self.dtype.bytes()).unwrap_or(u32::MAX);
        let (base, offset) = if is_narrow(S::SPACE) {
            let (sum, offset) = shared_address(Reg::from_id(self.k, self.base), index, bytes);
            (sum.id(), self.offset.wrapping_add(offset))
        } else {
            let start = Reg::from_id(self.k, self.base);
            let (sum, offset) = index.scaled(Some(start), bytes);
            let (sum, offset) = absorb(sum.unwrap_or(start), self.offset.wrapping_add(offset));
            (sum.id(), offset)
        };
        Self { base, offset, ..self }
    }

    /// This place and those `pitch` elements on from one to the next, `count` in all, such as the rows of a column. Recorded as
    /// the iterator advances.
    pub fn pitched(self, pitch: U64<'k>, count: u32) -> impl Iterator<Item = Self> {
        let mut at = self;
        (0..count).map(move |i| {
            at = if i > 0 { at.at(pitch) } else { at };
            at
        })
    }

    /// The same address as a pointer to another type: eight `u8` codes as one `u64`, for instance. The address must be
    /// aligned for accesses of the new type.
    pub fn cast<F: FixedElement>(self) -> Ptr<'k, S, F> {
        Ptr {
            k: self.k,
            base: self.base,
            offset: self.offset,
            dtype: F::FIXED,
            hints: self.hints,
            non_coherent: self.non_coherent,
            guard: self.guard,
            marker: PhantomData,
        }
    }

    /// Accesses carry these cache hints. On global memory only; plain accesses are usually the fastest.
    pub fn hinted(self, hints: CacheHints) -> Self {
        Self { hints, ..self }
    }

    /// The address in a register: 64 bits, in shared memory zero-extended.
    #[track_caller]
    pub fn address(self) -> U64<'k> {
        let base = if is_narrow(S::SPACE) {
            Reg::<u32>::from_id(self.k, self.base).to_u64()
        } else {
            Reg::from_id(self.k, self.base)
        };
        if self.offset == 0 { base } else { base + self.offset.cast_unsigned() }
    }

    /// The same kind of pointer to another address, such as one that was chosen among several by a branch. What lies there must
    /// be of the pointer's type, in its space.
    pub fn at_address(self, address: U64<'k>) -> Self {
        Self { base: address.id(), offset: 0, ..self }
    }

    /// The operand of a [`raw`](K::raw) access.
    pub fn operand(self) -> Address {
        Address::reg(self.base, self.offset)
    }

    pub(crate) fn place(self) -> Place<'k> {
        Place {
            k: self.k,
            space: S::SPACE,
            address: self.operand(),
            dtype: self.dtype,
            hints: self.hints,
            non_coherent: self.non_coherent,
            guard: self.guard,
        }
    }

    /// Accesses are made only where `p` holds; elsewhere loads give `fill` in every element. Unlike a branch around
    /// them, several such accesses are in flight together.
    pub fn only_where(self, p: Pred<'k>, fill: Fill) -> Self {
        Self { guard: Some(Guard { pred: PredUse { reg: p.id(), negated: false }, fill }), ..self }
    }
}

impl<'k> Pred<'k> {
    /// The pointer `a` where the predicate holds, `b` elsewhere, as new.
    #[track_caller]
    pub fn pointer<S: Space, E: Element>(self, a: Ptr<'k, S, E>, b: Ptr<'k, S, E>) -> Ptr<'k, S, E> {
        Ptr::new(a.k, self.select(a.address(), b.address()).id(), a.dtype)
    }
}

impl<S: Space> Ptr<'_, S, Elem> {
    /// The same address as a pointer to elements of `dtype`, which is chosen while recording. The address must be aligned
    /// for accesses of that type.
    pub fn retyped(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }
}

impl<'k> Ptr<'k, Read, u32> {
    /// The `at`-th of signed integers of one or two `words`, i32 or i64 as the launch says; sign-extended.
    #[track_caller]
    pub fn integer(self, at: U64<'k>, words: U32<'k>) -> I64<'k> {
        self.k.on_behalf(|| {
            let at = at * words.to_u64();
            let low = self.at(at).get();
            let high = self.at(at + 1).only_where(words.eq(2), Fill::Zero).get();
            let sign = (low.to_i32() >> 31).to_u32();
            U64::from_words(low, words.eq(2).select(high, sign)).to_i64()
        })
    }
}

impl<E: Element> Ptr<'_, Read, E> {
    /// Loads go through the non-coherent path (`ld.global.nc`): nothing may write the data while the kernel runs, not
    /// even the kernel itself through another pointer.
    pub fn non_coherent(self) -> Self {
        Self { non_coherent: true, ..self }
    }
}

impl<'k, E: Element> Ptr<'k, Shared, E> {
    /// The address as it is: 32 bits.
    #[track_caller]
    pub fn shared_address(self) -> U32<'k> {
        let base = Reg::<u32>::from_id(self.k, self.base);
        if self.offset == 0 { base } else { base + self.offset as u32 }
    }

    /// The pointer `bytes` further on.
    pub(crate) fn moved_bytes(self, bytes: i64) -> Self {
        Self { offset: self.offset.wrapping_add(bytes), ..self }
    }

    /// The same place in the shared memory of block `rank` of the cluster. That block must have begun before the first
    /// access and must not end before the last: put a [`cluster_barrier`](K::cluster_barrier), or its halves, before
    /// and after.
    #[track_caller]
    pub fn of_block(self, rank: impl Source<'k, u32>) -> Ptr<'k, ClusterShared, E> {
        let dst = self.k.fresh::<u32>();
        self.k.emit(Inst::Mapa {
            space: StateSpace::SharedCluster,
            ty: ScalarType::U32,
            dst: dst.id(),
            a: Operand::Reg(self.base),
            rank: rank.operand(),
        });
        Ptr {
            k: self.k,
            base: dst.id(),
            offset: self.offset,
            dtype: self.dtype,
            hints: self.hints,
            non_coherent: self.non_coherent,
            guard: self.guard,
            marker: PhantomData,
        }
    }
}

impl<'k, S: Readable, E: Element> Ptr<'k, S, E> {
    /// Loads `width` consecutive elements, a power of two; 16 bytes per instruction, so the address must be aligned to
    /// the lesser of 16 bytes and the whole.
    #[track_caller]
    pub fn load<A: Number>(self, width: u32) -> Lanes<'k, A>
    where
        E: Access<A>,
    {
        self.k.on_behalf(|| load(self.place(), width))
    }

    /// Loads one element.
    #[track_caller]
    pub fn get<A: Number>(self) -> Reg<'k, A>
    where
        E: Access<A>,
    {
        self.k.on_behalf(|| {
            let lane = load(self.place(), 1).iter().next();
            lane.unwrap_or_else(|| self.k.fresh())
        })
    }
}

impl<'k, S: Writable, E: Element> Ptr<'k, S, E> {
    /// Stores consecutive elements; as many as [`load`](Self::load) takes, with the same alignment. Values are rounded
    /// to the type in memory, to nearest even; integers are truncated.
    #[track_caller]
    pub fn store<A: Number>(self, lanes: impl Into<Lanes<'k, A>>)
    where
        E: Access<A>,
    {
        let lanes = lanes.into();
        self.k.on_behalf(|| store(self.place(), &lanes));
    }

    /// Stores one element.
    #[track_caller]
    pub fn set<A: Number>(self, value: impl Source<'k, A>)
    where
        E: Access<A>,
    {
        self.k.on_behalf(|| store(self.place(), &Lanes::from(value.reg(self.k))));
    }
}

/// Alignment of shared arrays: that of the widest access.
const SHARED_ALIGN: u32 = 16;
/// Bytes after which the pattern of a swizzle over 128 bytes repeats.
const SWIZZLE_ALIGN: u32 = 1024;

impl<'k> K<'k> {
    /// A static array of `len` elements in the block's shared memory, not initialised.
    #[track_caller]
    pub fn shared<E: FixedElement>(self, len: u32) -> Ptr<'k, Shared, E> {
        self.shared_array(E::FIXED, len)
    }

    /// A static array of `len` elements of `dtype`, which is chosen while recording.
    #[track_caller]
    pub fn shared_elem(self, dtype: DType, len: u32) -> Ptr<'k, Shared, Elem> {
        self.shared_array(dtype, len)
    }

    #[track_caller]
    fn shared_array<E: Element>(self, dtype: DType, len: u32) -> Ptr<'k, Shared, E> {
        if len == 0 {
            self.issue(IssueKind::Constant { what: "a shared array length", value: 0 });
        }
        let symbol = self.rec().new_variable(Variable {
            name: format!("shared{}", self.rec().variable_count()),
            space: StateSpace::Shared,
            ty: dtype.memory_type().to_bits(),
            align: SHARED_ALIGN,
            len: Some(u64::from(len)),
            array: true,
            linkage: warpwright_ptx::Linkage::Internal,
            init: None,
            managed: false,
            unified: None,
        });
        self.shared_symbol(symbol, dtype)
    }

    /// The start of the launch's dynamic shared memory, not initialised; its size is part of the launch step. Every
    /// call gives the same address. Static arrays and it share what a block has: 48 KB without opting in, up to
    /// 227 KB with it.
    #[track_caller]
    pub fn dynamic_shared<E: FixedElement>(self) -> Ptr<'k, Shared, E> {
        self.shared_symbol(self.rec().dynamic_shared(SHARED_ALIGN), E::FIXED)
    }

    /// Like [`dynamic_shared`](Self::dynamic_shared) for elements of `dtype`, which is chosen while recording.
    #[track_caller]
    pub fn dynamic_shared_elem(self, dtype: DType) -> Ptr<'k, Shared, Elem> {
        self.shared_symbol(self.rec().dynamic_shared(SHARED_ALIGN), dtype)
    }

    /// The first multiple of 1024 bytes in dynamic shared memory, where tiles begin that tensor copies or `wgmma` swizzle; the
    /// launch adds [`TILE_SLACK`](Self::TILE_SLACK) to what it needs from there on. The alignment of the declaration would not
    /// do: the driver's linker puts dynamic memory behind the static arrays without regard to it.
    #[track_caller]
    pub fn dynamic_shared_tiles(self) -> U32<'k> {
        self.on_behalf(|| {
            (self.dynamic_shared::<u8>().shared_address() + (SWIZZLE_ALIGN - 1)) & !(SWIZZLE_ALIGN - 1)
        })
    }

    /// A pointer to an address of the block's shared memory.
    #[track_caller]
    pub fn shared_at<E: FixedElement>(self, address: U32<'k>) -> Ptr<'k, Shared, E> {
        Ptr::new(self, address.id(), E::FIXED)
    }

    /// Bytes in front of [`dynamic_shared_tiles`](Self::dynamic_shared_tiles), at most.
    pub const TILE_SLACK: u32 = SWIZZLE_ALIGN - SHARED_ALIGN;

    #[track_caller]
    fn shared_symbol<E: Element>(self, symbol: SymbolId, dtype: DType) -> Ptr<'k, Shared, E> {
        let base = self.fresh::<u32>();
        self.emit(Inst::Mov { ty: ScalarType::U32, dst: base.id(), src: Operand::Symbol(symbol, 0) });
        Ptr::new(self, base.id(), dtype)
    }

    /// A null pointer of any type, after an issue was recorded.
    #[track_caller]
    pub(crate) fn poison_ptr<S: Space, E: Element>(self) -> Ptr<'k, S, E> {
        let base = self.lit(0u64);
        Ptr::new(self, base.id(), DType::F32)
    }
}

impl<'k, T: Scalar> Reg<'k, T> {
    /// The register as an operand of a [`raw`](K::raw) instruction.
    pub fn as_operand(self) -> Operand {
        Operand::Reg(self.id())
    }
}
