//! PyTorch's stable C interface: what a function behind an operator of the dispatcher takes and calls.
//!
//! Arguments and results come as numbers of 64 bits (`StableIValue` of `torch/csrc/stable/stableivalue_conversions.h`): a tensor is a
//! handle, a number its bits, an option null or a pointer to what it holds, a list and a string a handle. Whoever takes them owns them.
#![allow(unsafe_code, reason = "the interface is C")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;
use std::{mem, ptr, slice};

use crate::calls::{Call, Described, bytes_of};
use crate::ffi::symbol;

type Handle = *mut c_void;
type Code = i32;
/// A function behind an operator: takes the arguments, and leaves the results in their place.
type Kernel = unsafe extern "C-unwind" fn(*mut u64, u64, u64);

/// The version of the interface that this is written for: PyTorch 2.10.
const VERSION: u64 = (2 << 56) | (10 << 48);
/// `c10::DeviceType::CUDA`.
const CUDA: i32 = 1;

macro_rules! interface {
    ($($field:ident: $library:literal $name:literal, fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, of libraries that are never unloaded.
        pub(crate) struct Interface {
            $($field: unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,)*
        }

        impl Interface {
            fn find() -> Option<Self> {
                Some(Self {$(
                    $field: {
                        let found = symbol($library, $name);
                        if found.is_null() {
                            return None;
                        }
                        // SAFETY: PyTorch declares a function of this type under this name.
                        unsafe { mem::transmute::<*const c_void, unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?>(found) }
                    },
                )*})
            }
        }
    };
}

interface! {
    data_ptr: c"libtorch_cpu.so" c"aoti_torch_get_data_ptr", fn(Handle, *mut *mut c_void) -> Code;
    dim: c"libtorch_cpu.so" c"aoti_torch_get_dim", fn(Handle, *mut i64) -> Code;
    sizes: c"libtorch_cpu.so" c"aoti_torch_get_sizes", fn(Handle, *mut *mut i64) -> Code;
    strides: c"libtorch_cpu.so" c"aoti_torch_get_strides", fn(Handle, *mut *mut i64) -> Code;
    dtype: c"libtorch_cpu.so" c"aoti_torch_get_dtype", fn(Handle, *mut i32) -> Code;
    device_type: c"libtorch_cpu.so" c"aoti_torch_get_device_type", fn(Handle, *mut i32) -> Code;
    device_index: c"libtorch_cpu.so" c"aoti_torch_get_device_index", fn(Handle, *mut i32) -> Code;
    element_size: c"libtorch_cpu.so" c"aoti_torch_dtype_element_size", fn(i32) -> usize;
    empty_strided: c"libtorch_cpu.so" c"aoti_torch_empty_strided",
        fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> Code;
    delete_tensor: c"libtorch_cpu.so" c"aoti_torch_delete_tensor_object", fn(Handle) -> Code;
    list_size: c"libtorch_cpu.so" c"torch_list_size", fn(Handle, *mut usize) -> Code;
    list_item: c"libtorch_cpu.so" c"torch_list_get_item", fn(Handle, usize, *mut u64) -> Code;
    delete_list: c"libtorch_cpu.so" c"torch_delete_list", fn(Handle) -> Code;
    string_length: c"libtorch_cpu.so" c"torch_string_length", fn(Handle, *mut usize) -> Code;
    string_data: c"libtorch_cpu.so" c"torch_string_c_str", fn(Handle, *mut *const c_char) -> Code;
    delete_string: c"libtorch_cpu.so" c"torch_delete_string", fn(Handle) -> Code;
    call_dispatcher: c"libtorch_cpu.so" c"torch_call_dispatcher",
        fn(*const c_char, *const c_char, *mut u64, u64) -> Code;
    init_impl: c"libtorch_cpu.so" c"aoti_torch_library_init_impl",
        fn(*const c_char, *const c_char, *const c_char, u32, *mut Handle) -> Code;
    library_impl: c"libtorch_cpu.so" c"torch_library_impl", fn(Handle, *const c_char, Kernel, u64) -> Code;
    current_stream: c"libtorch_cuda.so" c"aoti_torch_get_current_cuda_stream", fn(i32, *mut *mut c_void) -> Code;
    // `c10::detail::torchCheckFail(char const*, char const*, unsigned, char const*)`, which throws.
    fail: c"libc10.so" c"_ZN3c106detail14torchCheckFailEPKcS2_jS2_",
        fn(*const c_char, *const c_char, u32, *const c_char) -> !;
    // `operator delete(void*)`.
    delete: c"libstdc++.so.6" c"_ZdlPv", fn(*mut c_void);
}

/// The interface; `None` if PyTorch is not loaded, is built without CUDA, or is older than 2.10.
pub(crate) fn interface() -> Option<&'static Interface> {
    static INTERFACE: OnceLock<Option<Interface>> = OnceLock::new();
    INTERFACE.get_or_init(Interface::find).as_ref()
}

/// The type of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tensor,
    /// A number, a flag or an element type.
    Number,
    Text,
    Option(Box<Self>),
    List(Box<Self>),
}

impl Kind {
    /// The type as a schema writes it; `None` for one that no operator here takes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(of) = text.strip_suffix('?') {
            return Some(Self::Option(Box::new(Self::parse(of)?)));
        }
        if let Some(of) = text.strip_suffix("[]") {
            return Some(Self::List(Box::new(Self::parse(of)?)));
        }
        match text {
            "Tensor" => Some(Self::Tensor),
            "int" | "SymInt" | "float" | "bool" | "ScalarType" => Some(Self::Number),
            "str" => Some(Self::Text),
            _ => None,
        }
    }
}

/// A tensor of our own.
pub(crate) struct Owned {
    handle: Handle,
    interface: &'static Interface,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the handle is ours.
        unsafe { (self.interface.delete_tensor)(self.handle) };
    }
}

impl Owned {
    pub(crate) fn describe(&self) -> Option<Described<'_>> {
        // SAFETY: the handle lives as long as the description.
        unsafe { self.interface.describe(self.handle) }
    }

    /// As the result of an operator, who owns it from then on.
    pub(crate) fn into_value(self) -> u64 {
        mem::ManuallyDrop::new(self).handle.expose_provenance() as u64
    }
}

/// The arguments of a call, then its results.
pub(crate) struct Stack<'s> {
    values: &'s mut [u64],
    interface: &'static Interface,
}

fn pointer(value: u64) -> Handle {
    ptr::with_exposed_provenance_mut(value as usize)
}

impl Interface {
    /// # Safety
    /// A handle of a tensor, which lives as long as the result.
    unsafe fn describe<'a>(&self, tensor: Handle) -> Option<Described<'a>> {
        let (mut data, mut sizes, mut strides) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let (mut rank, mut dtype, mut kind, mut index) = (0, 0, 0, 0);
        // SAFETY: the tensor lives, and each call writes its result alone.
        let failed = unsafe {
            (self.data_ptr)(tensor, &raw mut data)
                | (self.dim)(tensor, &raw mut rank)
                | (self.sizes)(tensor, &raw mut sizes)
                | (self.strides)(tensor, &raw mut strides)
                | (self.dtype)(tensor, &raw mut dtype)
                | (self.device_type)(tensor, &raw mut kind)
                | (self.device_index)(tensor, &raw mut index)
        };
        let rank = usize::try_from(rank).ok().filter(|_| failed == 0)?;
        // SAFETY: the tensor has as many sizes and strides as dimensions, and keeps both.
        let list = |first: *mut i64| unsafe {
            if rank == 0 { &[][..] } else { slice::from_raw_parts(first.cast_const(), rank) }
        };
        let (sizes, strides) = (list(sizes), list(strides));
        // SAFETY: the type is one of PyTorch's.
        let bytes = bytes_of(sizes, strides, unsafe { (self.element_size)(dtype) } as u64);
        let address = data.expose_provenance() as u64;
        let gpu = if kind == CUDA { u32::try_from(index).ok() } else { None };
        Some(Described { address, dtype: dtype.cast_unsigned(), gpu, sizes, strides, bytes })
    }

    /// # Safety
    /// A value of this type, which lives.
    unsafe fn walk(&self, kind: &Kind, value: u64, call: &mut Call) -> Option<()> {
        match kind {
            // SAFETY: the caller vouches for the handle.
            Kind::Tensor => call.tensor(unsafe { self.describe(pointer(value)) }?),
            Kind::Number => call.number(value),
            Kind::Text => {
                let (mut length, mut data) = (0, ptr::null());
                // SAFETY: the caller vouches for the handle; the bytes live as long as it.
                let text = unsafe {
                    if (self.string_length)(pointer(value), &raw mut length)
                        | (self.string_data)(pointer(value), &raw mut data)
                        != 0
                    {
                        return None;
                    }
                    slice::from_raw_parts(data.cast(), length)
                };
                call.text(text);
            }
            Kind::Option(of) => {
                call.number(u64::from(value != 0));
                if value != 0 {
                    // SAFETY: an option that is not null points to its value.
                    unsafe { self.walk(of, pointer(value).cast::<u64>().read(), call)? };
                }
            }
            Kind::List(of) => {
                let items = self.items(value)?;
                call.number(items.len() as u64);
                for item in items {
                    // SAFETY: the list holds values of this type.
                    unsafe { self.walk(of, item, call)? };
                }
            }
        }
        Some(())
    }

    fn items(&self, list: u64) -> Option<Vec<u64>> {
        let mut count = 0;
        // SAFETY: callers have a list; each call writes its result alone.
        let mut failed = unsafe { (self.list_size)(pointer(list), &raw mut count) };
        let item = |at| {
            let mut item = 0;
            // SAFETY: as above.
            failed |= unsafe { (self.list_item)(pointer(list), at, &raw mut item) };
            item
        };
        let items = (0..count).map(item).collect();
        (failed == 0).then_some(items)
    }

    /// # Safety
    /// A value of this type, of which nothing is used after.
    unsafe fn free(&self, kind: &Kind, value: u64) {
        // SAFETY: the caller vouches for the value; what it holds is freed before it.
        unsafe {
            match kind {
                Kind::Tensor => _ = (self.delete_tensor)(pointer(value)),
                Kind::Number => {}
                Kind::Text => _ = (self.delete_string)(pointer(value)),
                Kind::Option(_) if value == 0 => {}
                Kind::Option(of) => {
                    self.free(of, pointer(value).cast::<u64>().read());
                    (self.delete)(pointer(value));
                }
                Kind::List(of) => {
                    if **of != Kind::Number {
                        self.items(value).into_iter().flatten().for_each(|item| self.free(of, item));
                    }
                    _ = (self.delete_list)(pointer(value));
                }
            }
        }
    }

    /// An uninitialised tensor on a GPU; `None` if there is none.
    pub(crate) fn empty(
        &'static self,
        (sizes, strides): (&[i64], &[i64]),
        dtype: u32,
        gpu: u32,
    ) -> Option<Owned> {
        let mut handle = ptr::null_mut();
        let rank = sizes.len().min(strides.len()) as i64;
        // SAFETY: there are as many sizes and strides; the call writes a handle that is ours.
        let failed = unsafe {
            (self.empty_strided)(
                rank,
                sizes.as_ptr(),
                strides.as_ptr(),
                dtype.cast_signed(),
                CUDA,
                gpu.cast_signed(),
                &raw mut handle,
            )
        };
        (failed == 0 && !handle.is_null()).then_some(Owned { handle, interface: self })
    }

    /// The stream that PyTorch enqueues on at present.
    pub(crate) fn stream(&self, gpu: u32) -> Option<u64> {
        let mut stream = ptr::null_mut();
        // SAFETY: the call writes its result alone.
        let failed = unsafe { (self.current_stream)(gpu.cast_signed(), &raw mut stream) };
        (failed == 0).then(|| stream.expose_provenance() as u64)
    }

    /// Puts function `index` behind the operator `name` for tensors of a dispatch key.
    pub(crate) fn implement(&self, [namespace, name, key]: [&CStr; 3], index: usize) -> bool {
        let mut library = ptr::null_mut();
        let Some(kernel) = KERNELS.get(index) else { return false };
        // SAFETY: the strings end in zeros and are copied. The library is never freed, so that the function stays.
        unsafe {
            (self.init_impl)(namespace.as_ptr(), key.as_ptr(), c"".as_ptr(), 0, &raw mut library) == 0
                && (self.library_impl)(library, name.as_ptr(), *kernel, VERSION) == 0
        }
    }
}

impl Stack<'_> {
    pub(crate) fn interface(&self) -> &'static Interface {
        self.interface
    }

    /// Adds the arguments, of these types, to the kind of a call; `None` if PyTorch does not tell what they are.
    pub(crate) fn describe(&self, kinds: &[Kind], call: &mut Call) -> Option<()> {
        for (kind, value) in kinds.iter().zip(self.values.iter()) {
            // SAFETY: the stack holds the arguments, whose types are those of the schema.
            unsafe { self.interface.walk(kind, *value, call)? };
        }
        Some(())
    }

    /// Calls another operator of the same schema in place of this one; whether it did not fail.
    pub(crate) fn call(&mut self, operator: &CStr) -> bool {
        let stack = self.values.as_mut_ptr();
        // SAFETY: the stack holds the arguments, which the call takes, and has room for the results.
        unsafe { (self.interface.call_dispatcher)(operator.as_ptr(), c"".as_ptr(), stack, VERSION) == 0 }
    }

    /// Frees the arguments, and leaves the results in their place.
    pub(crate) fn finish(&mut self, kinds: &[Kind], results: impl IntoIterator<Item = Owned>) {
        for (kind, value) in kinds.iter().zip(self.values.iter()) {
            // SAFETY: the stack owns the arguments, and nobody looks at them after.
            unsafe { self.interface.free(kind, *value) };
        }
        self.put(results);
    }

    /// Takes the results, which are tensors, off.
    pub(crate) fn take(&mut self, results: usize) -> Vec<Owned> {
        let taken = self.values.iter().take(results);
        taken.map(|value| Owned { handle: pointer(*value), interface: self.interface }).collect()
    }

    /// Puts results back.
    pub(crate) fn put(&mut self, results: impl IntoIterator<Item = Owned>) {
        self.values.iter_mut().zip(results).for_each(|(place, result)| *place = result.into_value());
    }
}

/// The function behind operator `index`, and what it says where it fails; set once.
pub(crate) type Enter = fn(usize, &mut Stack<'_>) -> Result<(), String>;
pub(crate) static ENTER: OnceLock<Enter> = OnceLock::new();

unsafe extern "C-unwind" fn kernel<const INDEX: usize>(stack: *mut u64, arguments: u64, results: u64) {
    let (Some(interface), Some(enter)) = (interface(), ENTER.get()) else {
        unreachable!("both were there when this was registered")
    };
    let failed = {
        // SAFETY: PyTorch passes a stack with room for the arguments and for the results.
        let values = unsafe { slice::from_raw_parts_mut(stack, arguments.max(results) as usize) };
        let entered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            enter(INDEX, &mut Stack { values, interface })
        }));
        let failed = entered.unwrap_or_else(|_| Err("warpwright: internal error".to_owned())).err();
        failed.map(|message| CString::new(message.replace('\0', "")).unwrap_or_default())
    };
    if let Some(message) = failed {
        // SAFETY: the strings end in zeros and are copied before the exception leaves. It passes this frame alone, which lets it, and
        // whose one value is dropped on the way.
        unsafe { (interface.fail)(c"warpwright".as_ptr(), c"".as_ptr(), 0, message.as_ptr()) }
    }
}

macro_rules! kernels {
    ($($row:literal)*) => {
        [$(
            kernel::<{ $row }>, kernel::<{ $row + 1 }>, kernel::<{ $row + 2 }>, kernel::<{ $row + 3 }>,
            kernel::<{ $row + 4 }>, kernel::<{ $row + 5 }>, kernel::<{ $row + 6 }>, kernel::<{ $row + 7 }>,
        )*]
    };
}

/// How many operators there can be.
pub(crate) const MOST: usize = 256;
/// PyTorch tells a function nothing of the operator that it is behind, so each has a function of its own.
static KERNELS: [Kernel; MOST] = kernels! {
    0 8 16 24 32 40 48 56 64 72 80 88 96 104 112 120 128 136 144 152 160 168 176 184 192 200 208 216 224 232 240 248
};
