//! DLPack as plain C data, and the few calls that read and write it.
//!
//! The layouts are those of `dlpack.h` 1.3. Every `unsafe` block of this crate that touches a foreign pointer is here.
#![allow(unsafe_code, reason = "DLPack is a C interface")]

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use warpwright::DType;

pub(crate) const CPU: i32 = 1;
pub(crate) const CUDA: i32 = 2;
pub(crate) const CUDA_HOST: i32 = 3;
pub(crate) const CUDA_MANAGED: i32 = 13;

/// The newest version that is understood, and that exported capsules have.
pub(crate) const VERSION: (u32, u32) = (1, 1);
const READ_ONLY: u64 = 1;

const UNVERSIONED_NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";
const USED_UNVERSIONED_NAME: &CStr = c"used_dltensor";
const USED_VERSIONED_NAME: &CStr = c"used_dltensor_versioned";
const EXCHANGE_NAME: &CStr = c"dlpack_exchange_api";

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

#[repr(C)]
struct ExchangeTable {
    version: Version,
    previous: *const ExchangeTable,
    allocate: *const c_void,
    from_object: *const c_void,
    to_object: *const c_void,
    borrow: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

/// An array as it describes itself. Strides are in elements.
pub(crate) struct Description {
    pub(crate) address: u64,
    pub(crate) device: (i32, i32),
    /// `None` for a type that no operation takes, with its DLPack spelling.
    pub(crate) dtype: Result<DType, String>,
    pub(crate) shape: Vec8<usize>,
    pub(crate) strides: Vec8<i64>,
    pub(crate) read_only: bool,
}

/// A short list without an allocation; `None` if it does not fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Vec8<T> {
    len: u8,
    items: [T; 8],
}

impl<T: Copy + Default> Vec8<T> {
    /// How many items fit.
    pub(crate) const ROOM: usize = 8;

    pub(crate) fn collect(items: impl ExactSizeIterator<Item = T>) -> Option<Self> {
        let mut list = Self { len: u8::try_from(items.len()).ok()?, items: [T::default(); 8] };
        for (i, item) in items.enumerate() {
            *list.items.get_mut(i)? = item;
        }
        Some(list)
    }

    /// Exchanges the last two items, if there are as many.
    pub(crate) fn swap_last_two(&mut self) {
        if let Some(first) = usize::from(self.len).checked_sub(2) {
            self.items.swap(first, first + 1);
        }
    }
}

impl Vec8<i64> {
    /// Strides of a contiguous array in row-major order; extents of 0 count as 1.
    pub(crate) fn row_major(shape: &Vec8<usize>) -> Self {
        let mut strides = Self { len: shape.len, items: [0; 8] };
        let mut step = 1i64;
        for (stride, extent) in strides.items.iter_mut().zip(shape.iter()).rev() {
            *stride = step;
            step = step.saturating_mul(i64::try_from((*extent).max(1)).unwrap_or(i64::MAX));
        }
        strides
    }

    /// The same of images [N, C, ...] whose channels come last in memory.
    pub(crate) fn channels_last(shape: &Vec8<usize>) -> Self {
        let (rank, mut moved) = (usize::from(shape.len), *shape);
        if rank < 2 {
            return Self::row_major(shape);
        }
        moved.items[1..rank].rotate_left(1);
        let mut strides = Self::row_major(&moved);
        strides.items[1..rank].rotate_right(1);
        strides
    }
}

impl<T> std::ops::Deref for Vec8<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }
}

/// Why what an array says of itself cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// It has more dimensions than [`Vec8`] holds.
    TooManyDimensions(usize),
    /// A number of dimensions below zero.
    Dimensions(i32),
    /// Dimensions, but no list of extents.
    NoExtents(usize),
    /// Not one stride for each extent.
    Strides { extents: usize, strides: usize },
    /// An extent below zero.
    Extent { axis: usize, extent: i64 },
    /// More bytes than addresses, or elements past the last address.
    TooLarge,
    /// Elements at address 0.
    NoMemory { elements: usize },
}

/// Checks what can be checked of an array without touching its memory: that its elements lie at addresses that there are.
pub(crate) fn check(
    address: u64,
    size: usize,
    shape: &Vec8<usize>,
    strides: &Vec8<i64>,
) -> Result<(), Malformed> {
    if shape.contains(&0) {
        return Ok(());
    }
    let elements = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent));
    let bytes = elements.and_then(|n| n.checked_mul(size)).filter(|bytes| isize::try_from(*bytes).is_ok());
    let (Some(elements), Some(_)) = (elements, bytes) else { return Err(Malformed::TooLarge) };
    if address == 0 {
        return Err(Malformed::NoMemory { elements });
    }
    let (mut low, mut high) = (i128::from(address), i128::from(address) + size as i128);
    for (extent, stride) in shape.iter().zip(strides.iter()) {
        let reach = (*extent as i128 - 1) * i128::from(*stride) * size as i128;
        low += reach.min(0);
        high += reach.max(0);
    }
    if low < 0 || high > i128::from(u64::MAX) { Err(Malformed::TooLarge) } else { Ok(()) }
}

fn dtype(t: DataType) -> Result<DType, String> {
    Ok(match (t.code, t.bits, t.lanes) {
        (2, 32, 1) => DType::F32,
        (2, 64, 1) => DType::F64,
        (2, 16, 1) => DType::F16,
        (4, 16, 1) => DType::BF16,
        (10, 8, 1) => DType::F8E4M3,
        (12, 8, 1) => DType::F8E5M2,
        (1, 8, 1) => DType::U8,
        (1, 16, 1) => DType::U16,
        (1, 32, 1) => DType::U32,
        (1, 64, 1) => DType::U64,
        (0, 8, 1) => DType::I8,
        (0, 16, 1) => DType::I16,
        (0, 32, 1) => DType::I32,
        (0, 64, 1) => DType::I64,
        (code, bits, lanes) => {
            let name = match code {
                0 => "int",
                1 => "uint",
                2 => "float",
                4 => "bfloat",
                5 => "complex",
                6 => "bool",
                _ => "dlpack type ",
            };
            return Err(if lanes == 1 { format!("{name}{bits}") } else { format!("{name}{bits}x{lanes}") });
        }
    })
}

const fn data_type(dtype: DType) -> DataType {
    let code = match dtype {
        DType::F32 | DType::F64 | DType::F16 => 2,
        DType::BF16 => 4,
        DType::F8E4M3 => 10,
        DType::F8E5M2 => 12,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
    };
    DataType { code, bits: 8 * dtype.bytes() as u8, lanes: 1 }
}

/// Reads a tensor.
///
/// # Safety
/// `shape` and, unless null, `strides` point to `ndim` numbers.
unsafe fn describe(t: &Tensor, read_only: bool) -> Result<Description, Malformed> {
    let rank = usize::try_from(t.ndim).map_err(|_| Malformed::Dimensions(t.ndim))?;
    if rank > Vec8::<usize>::ROOM {
        return Err(Malformed::TooManyDimensions(rank));
    }
    if rank > 0 && t.shape.is_null() {
        return Err(Malformed::NoExtents(rank));
    }
    let list = |p: *mut i64| -> &[i64] {
        if rank == 0 || p.is_null() {
            return &[];
        }
        // SAFETY: the caller's promise; the slice is read before this function returns.
        unsafe { std::slice::from_raw_parts(p, rank) }
    };
    let extents = list(t.shape);
    if let Some(axis) = extents.iter().position(|n| *n < 0) {
        return Err(Malformed::Extent { axis, extent: extents[axis] });
    }
    let too_many = || Malformed::TooManyDimensions(rank);
    let extent = |n: &i64| usize::try_from(*n).unwrap_or(usize::MAX);
    let shape = Vec8::collect(extents.iter().map(extent)).ok_or_else(too_many)?;
    let strides = if t.strides.is_null() {
        Vec8::row_major(&shape)
    } else {
        Vec8::collect(list(t.strides).iter().copied()).ok_or_else(too_many)?
    };
    let address = match (t.data.addr() as u64, t.byte_offset) {
        // An offset from nowhere leads nowhere.
        (0, _) => 0,
        (start, offset) => start.checked_add(offset).ok_or(Malformed::TooLarge)?,
    };
    let dtype = dtype(t.dtype);
    // Which types there are is checked later; the smallest element stands for one that is refused there.
    check(address, dtype.as_ref().map_or(1, |dtype| dtype.bytes()), &shape, &strides)?;
    Ok(Description { address, device: (t.device.kind, t.device.id), dtype, shape, strides, read_only })
}

// SAFETY: the protocol promises a constant table; its functions are called with the interpreter attached.
unsafe impl Sync for ExchangeTable {}

/// The table of C functions that a type of arrays offers (`__dlpack_c_exchange_api__`, DLPack 1.3).
#[derive(Clone, Copy)]
pub(crate) struct Exchange(&'static ExchangeTable);

impl Exchange {
    /// The table in a capsule; `None` if it is of another major version or lacks what is needed.
    pub(crate) fn from_capsule(capsule: &Bound<'_, PyAny>) -> Option<Self> {
        // SAFETY: `capsule` is a live object; the call checks that it is a capsule of this name, and a failure leaves
        // an error that is cleared.
        let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), EXCHANGE_NAME.as_ptr()) };
        if pointer.is_null() {
            let _ = PyErr::take(capsule.py());
            return None;
        }
        // SAFETY: the protocol promises a table that lives as long as the process; version comes first in all versions.
        let table = unsafe { &*pointer.cast::<ExchangeTable>() };
        let usable = table.version.major == 1 && table.borrow.is_some() && table.current_stream.is_some();
        usable.then_some(Self(table))
    }

    /// Describes an array of the type that the table was found on. The description holds as long as the array.
    pub(crate) fn describe(self, object: &Bound<'_, PyAny>) -> PyResult<Result<Description, Malformed>> {
        let borrowed = self.borrow(object)?;
        // SAFETY: the producer has filled the tensor; its lists live as long as the array.
        Ok(unsafe { describe(&borrowed.tensor, false) })
    }

    /// An array of the type that the table was found on, as it describes itself.
    pub(crate) fn borrow<'a>(self, object: &'a Bound<'_, PyAny>) -> PyResult<Borrowed<'a>> {
        let mut tensor = EMPTY;
        let failed = self.0.borrow.is_none_or(|borrow| {
            // SAFETY: the object is of the table's type and the interpreter is attached; the function fills the tensor
            // or reports a failure through the Python error indicator.
            unsafe { borrow(object.as_ptr().cast(), &raw mut tensor) != 0 }
        });
        if failed {
            let fallback = || PyRuntimeError::new_err("the array could not be exported");
            return Err(PyErr::take(object.py()).unwrap_or_else(fallback));
        }
        Ok(Borrowed { tensor, array: PhantomData })
    }

    /// The stream that the library enqueues on at present, for a CUDA device.
    pub(crate) fn current_stream(self, py: Python<'_>, ordinal: u32) -> PyResult<u64> {
        let mut stream = ptr::null_mut();
        let failed = self.0.current_stream.is_none_or(|current| {
            // SAFETY: the function stores a handle or reports a failure through the Python error indicator.
            unsafe { current(CUDA, ordinal as i32, &raw mut stream) != 0 }
        });
        if failed {
            let fallback = || PyRuntimeError::new_err("the current stream could not be found");
            return Err(PyErr::take(py).unwrap_or_else(fallback));
        }
        Ok(stream.addr() as u64)
    }
}

const EMPTY: Tensor = Tensor {
    data: ptr::null_mut(),
    device: Device { kind: 0, id: 0 },
    ndim: 0,
    dtype: DataType { code: 0, bits: 0, lanes: 0 },
    shape: ptr::null_mut(),
    strides: ptr::null_mut(),
    byte_offset: 0,
};

/// A tensor that an array has lent, without a copy of its lists.
pub(crate) struct Borrowed<'a> {
    tensor: Tensor,
    array: PhantomData<&'a ()>,
}

impl Borrowed<'_> {
    fn list(&self, list: *mut i64) -> &[i64] {
        let rank = usize::try_from(self.tensor.ndim).unwrap_or(0);
        if rank == 0 || list.is_null() {
            return &[];
        }
        // SAFETY: the producer has filled the tensor, and its lists of `ndim` numbers live as long as the array. Whoever
        // changes the array in between must run, which nothing does until the slice is gone.
        unsafe { std::slice::from_raw_parts(list, rank) }
    }

    pub(crate) fn shape(&self) -> &[i64] {
        self.list(self.tensor.shape)
    }

    /// Strides in elements; none if they are those of row-major order, or of a scalar.
    pub(crate) fn strides(&self) -> &[i64] {
        self.list(self.tensor.strides)
    }

    pub(crate) fn address(&self) -> u64 {
        (self.tensor.data.addr() as u64).wrapping_add(self.tensor.byte_offset)
    }

    /// The number of the GPU that it lies on.
    pub(crate) fn cuda(&self) -> Option<u32> {
        let Device { kind, id } = self.tensor.device;
        if kind == CUDA { u32::try_from(id).ok() } else { None }
    }

    pub(crate) fn dtype(&self) -> Option<DType> {
        dtype(self.tensor.dtype).ok()
    }

    /// A number that tells element types apart, whether they are known here or not, and the bytes of an element.
    pub(crate) fn element(&self) -> (u32, u64) {
        let DataType { code, bits, lanes } = self.tensor.dtype;
        let bytes = (u64::from(bits) * u64::from(lanes)).div_ceil(8);
        (u32::from(code) << 24 | u32::from(bits) << 16 | u32::from(lanes), bytes)
    }

    /// Whether another has the same device, type, shape and strides.
    pub(crate) fn is_twin_of(&self, other: &Self) -> bool {
        let (a, b) = (&self.tensor, &other.tensor);
        a.device == b.device
            && a.dtype == b.dtype
            && self.shape() == other.shape()
            && self.strides() == other.strides()
    }
}

/// A tensor taken out of a capsule; gives it back to its producer when dropped, which must be with the GIL held.
pub(crate) enum Capsule {
    Unversioned(NonNull<c_void>),
    Versioned(NonNull<c_void>),
}

impl Capsule {
    /// Takes the tensor out of what `__dlpack__` returned.
    ///
    /// # Errors
    /// It is no unused DLPack capsule, or one of a newer major version.
    pub(crate) fn take(capsule: &Bound<'_, PyAny>) -> PyResult<(Self, Result<Description, Malformed>)> {
        let object = capsule.as_ptr();
        // SAFETY: `object` is live; the calls check that it is a capsule of the name.
        let is = |name: &CStr| unsafe { ffi::PyCapsule_IsValid(object, name.as_ptr()) == 1 };
        let get = |name: &CStr, used: &'static CStr| -> PyResult<NonNull<c_void>> {
            // SAFETY: as above. The new name is static, and tells the producer's destructor that the tensor has a new
            // owner.
            unsafe {
                let pointer = NonNull::new(ffi::PyCapsule_GetPointer(object, name.as_ptr()));
                let pointer = pointer.ok_or_else(|| PyErr::fetch(capsule.py()))?;
                if ffi::PyCapsule_SetName(object, used.as_ptr()) != 0 {
                    return Err(PyErr::fetch(capsule.py()));
                }
                Ok(pointer)
            }
        };
        if is(VERSIONED_NAME) {
            let pointer = get(VERSIONED_NAME, USED_VERSIONED_NAME)?;
            let owned = Self::Versioned(pointer);
            // SAFETY: a capsule of this name holds this struct; version and deleter lie where all versions have them.
            let managed = unsafe { pointer.cast::<ManagedVersioned>().as_ref() };
            if managed.version.major != VERSION.0 {
                let Version { major, minor } = managed.version;
                return Err(PyBufferError::new_err(format!("DLPack {major}.{minor} is not understood")));
            }
            // SAFETY: the tensor is filled and alive until its deleter is called.
            let description = unsafe { describe(&managed.tensor, managed.flags & READ_ONLY != 0) };
            return Ok((owned, description));
        }
        if is(UNVERSIONED_NAME) {
            let pointer = get(UNVERSIONED_NAME, USED_UNVERSIONED_NAME)?;
            // SAFETY: a capsule of this name holds this struct, which is alive until its deleter is called.
            let description = unsafe { describe(&pointer.cast::<Managed>().as_ref().tensor, false) };
            return Ok((Self::Unversioned(pointer), description));
        }
        Err(PyBufferError::new_err("`__dlpack__` returned no unused DLPack capsule"))
    }
}

impl Drop for Capsule {
    fn drop(&mut self) {
        // SAFETY: the tensor was taken out of its capsule, so this is its only owner, and the deleter is called once.
        unsafe {
            match self {
                Self::Unversioned(p) => {
                    let p = p.cast::<Managed>();
                    if let Some(deleter) = p.as_ref().deleter {
                        deleter(p.as_ptr());
                    }
                }
                Self::Versioned(p) => {
                    let p = p.cast::<ManagedVersioned>();
                    if let Some(deleter) = p.as_ref().deleter {
                        deleter(p.as_ptr());
                    }
                }
            }
        }
    }
}

/// An exported tensor with its owner and the lists that its struct points to.
struct Exported<M> {
    managed: M,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    _owner: Box<dyn std::any::Any + Send>,
}

/// Memory to export. `owner` is dropped when the consumer is done.
pub(crate) struct Export {
    pub(crate) address: u64,
    pub(crate) device: (i32, i32),
    pub(crate) dtype: DType,
    pub(crate) shape: Box<[i64]>,
    pub(crate) strides: Box<[i64]>,
    pub(crate) owner: Box<dyn std::any::Any + Send>,
}

impl Export {
    fn tensor(&self) -> Tensor {
        Tensor {
            data: ptr::with_exposed_provenance_mut(self.address as usize),
            device: Device { kind: self.device.0, id: self.device.1 },
            ndim: self.shape.len() as i32,
            dtype: data_type(self.dtype),
            // Filled in by `exported`, once the lists have their final place.
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        }
    }

    /// A capsule of the newest version, or of the one before versions existed.
    pub(crate) fn into_capsule(self, py: Python<'_>, versioned: bool) -> PyResult<Py<PyAny>> {
        let tensor = self.tensor();
        let capsule = if versioned {
            let version = Version { major: VERSION.0, minor: VERSION.1 };
            let managed = ManagedVersioned {
                version,
                context: ptr::null_mut(),
                deleter: Some(delete_versioned),
                flags: 0,
                tensor,
            };
            let exported = self.exported(managed, |m| (&mut m.context, &mut m.tensor));
            // SAFETY: the pointer is not null and the name is static.
            unsafe { ffi::PyCapsule_New(exported, VERSIONED_NAME.as_ptr(), Some(destroy_versioned)) }
        } else {
            let managed = Managed { tensor, context: ptr::null_mut(), deleter: Some(delete) };
            let exported = self.exported(managed, |m| (&mut m.context, &mut m.tensor));
            // SAFETY: the pointer is not null and the name is static.
            unsafe { ffi::PyCapsule_New(exported, UNVERSIONED_NAME.as_ptr(), Some(destroy)) }
        };
        // SAFETY: a new reference, or null with an error set.
        Ok(unsafe { Bound::from_owned_ptr_or_err(py, capsule) }?.unbind())
    }

    /// The managed tensor on the heap, with itself as its context.
    fn exported<M>(
        self,
        managed: M,
        fields: impl Fn(&mut M) -> (&mut *mut c_void, &mut Tensor),
    ) -> *mut c_void {
        let (shape, strides) = (self.shape, self.strides);
        let exported = Box::into_raw(Box::new(Exported { managed, shape, strides, _owner: self.owner }));
        // SAFETY: just made, and not shared yet.
        let e = unsafe { &mut *exported };
        let (context, tensor) = fields(&mut e.managed);
        *context = exported.cast();
        tensor.shape = e.shape.as_mut_ptr();
        tensor.strides = e.strides.as_mut_ptr();
        (&raw mut e.managed).cast()
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: the context is the box that `exported` made, and a deleter is called once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Exported<ManagedVersioned>>()) });
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: the context is the box that `exported` made, and a deleter is called once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Exported<Managed>>()) });
}

/// Frees the tensor of a capsule that nobody took.
unsafe extern "C" fn destroy_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with the capsule; the name says whether the tensor is still ours.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED_NAME.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED_NAME.as_ptr()).cast());
        }
    }
}

/// Frees the tensor of a capsule that nobody took.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with the capsule; the name says whether the tensor is still ours.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNVERSIONED_NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, UNVERSIONED_NAME.as_ptr()).cast());
        }
    }
}

/// The bytes of host memory.
///
/// # Safety
/// `len` bytes from `address` are readable and nobody writes them while the slice is used.
pub(crate) unsafe fn host_bytes<'a>(address: u64, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(address as usize), len) }
}

/// The bytes of host memory, to write.
///
/// # Safety
/// `len` bytes from `address` are writable and nobody else uses them while the slice is used.
pub(crate) unsafe fn host_bytes_mut<'a>(address: u64, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address as usize), len) }
}
