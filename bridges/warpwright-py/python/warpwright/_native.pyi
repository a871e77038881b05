"""Types of the native module. An array is anything with `__dlpack__` or `__cuda_array_interface__`; a result has the type
of the first argument where its library can make arrays."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar, final

__version__: str

class _Dlpack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

_Array = _Dlpack | _CudaArray
_A = TypeVar("_A", bound=_Dlpack | _CudaArray)
# A raw handle, or a stream object of torch, cupy or cuda.core.
_Stream = Any
# A name as "float32" or "f32", or an object of numpy, torch or jax.
_Dtype = Any
_Extents = int | Sequence[int]

@final
class DeviceArray:
    """A result on a GPU, for `from_dlpack` of any library: contiguous, in row-major order."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

@final
class Remark:
    """A remark of `lint` on a PTX text."""

    @property
    def severity(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...
    @property
    def message(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def notes(self) -> list[tuple[int, str]]: ...

@final
class Finding:
    """What a sanitizer found."""

    @property
    def tool(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...
    @property
    def message(self) -> str: ...
    @property
    def block(self) -> list[int]: ...
    @property
    def thread(self) -> list[int]: ...
    @property
    def count(self) -> int: ...
    @property
    def help(self) -> str: ...
    @property
    def text(self) -> str: ...

@final
class Run:
    """What a launch in the emulator did."""

    @property
    def findings(self) -> list[Finding]: ...
    @property
    def counters(self) -> dict[str, int]: ...
    @property
    def printed(self) -> list[str]: ...
    @property
    def fault(self) -> str | None: ...
    @property
    def ok(self) -> bool: ...

def devices() -> list[dict[str, Any]]: ...
def lint(ptx: str, target: str | None = None) -> list[Remark]: ...
def run(
    ptx: str,
    entry: str | None = None,
    grid: _Extents | None = None,
    block: _Extents | None = None,
    args: Iterable[Any] | None = None,
    *,
    sanitize: str | Sequence[str] | None = None,
    shared: int = 0,
    cluster: _Extents | None = None,
    counters: bool = True,
    seed: int = 0,
    max_steps: int = 0,
) -> Run: ...
def relu(x: _A, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def relu_backward(x: _A, dy: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def gelu_tanh(x: _A, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def gelu_tanh_backward(x: _A, dy: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def gelu_erf(x: _A, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def gelu_erf_backward(x: _A, dy: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def silu(x: _A, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def silu_backward(x: _A, dy: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def sigmoid(x: _A, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def sigmoid_backward(x: _A, dy: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def tanh(x: _A, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def tanh_backward(x: _A, dy: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def leaky_relu(
    x: _A, negative_slope: float = 0.01, *, out: _Array | None = None, stream: _Stream | None = None
) -> _A: ...
def leaky_relu_backward(
    x: _A, dy: _Array, negative_slope: float = 0.01, *, out: _Array | None = None, stream: _Stream | None = None
) -> _A: ...
def swiglu(gate: _A, up: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def swiglu_backward(
    gate: _A,
    up: _Array,
    dy: _Array,
    *,
    out: Sequence[_Array | None] | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _A]: ...
def geglu(gate: _A, up: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def geglu_backward(
    gate: _A,
    up: _Array,
    dy: _Array,
    *,
    out: Sequence[_Array | None] | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _A]: ...
def geglu_tanh(gate: _A, up: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...
def geglu_tanh_backward(
    gate: _A,
    up: _Array,
    dy: _Array,
    *,
    out: Sequence[_Array | None] | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _A]: ...
def quantize_nf4(
    x: _A,
    group_size: int = 64,
    *,
    order: str = "high_first",
    out: Sequence[_Array | None] | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _A]: ...
def dequantize_nf4(
    codes: _A,
    scales: _Array,
    shape: _Extents | None = None,
    group_size: int = 64,
    *,
    dtype: _Dtype | None = None,
    order: str = "high_first",
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def quantize_fp4(
    x: _A,
    group_size: int = 64,
    *,
    order: str = "high_first",
    out: Sequence[_Array | None] | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _A]: ...
def dequantize_fp4(
    codes: _A,
    scales: _Array,
    shape: _Extents | None = None,
    group_size: int = 64,
    *,
    dtype: _Dtype | None = None,
    order: str = "high_first",
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def quantize_int4(
    x: _A,
    group_size: int = 64,
    *,
    order: str = "high_first",
    out: Sequence[_Array | None] | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _A]: ...
def dequantize_int4(
    codes: _A,
    scales: _Array,
    shape: _Extents | None = None,
    group_size: int = 64,
    *,
    dtype: _Dtype | None = None,
    order: str = "high_first",
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def quantize_int4_asymmetric(
    x: _A,
    group_size: int = 64,
    *,
    order: str = "high_first",
    out: Sequence[_Array | None] | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _A, _A]: ...
def dequantize_int4_asymmetric(
    codes: _A,
    scales: _Array,
    zero_points: _Array,
    shape: _Extents | None = None,
    group_size: int = 64,
    *,
    dtype: _Dtype | None = None,
    order: str = "high_first",
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def quantize_nested(
    absmax: _A, *, out: Sequence[_Array | None] | None = None, stream: _Stream | None = None
) -> tuple[_A, _A, _A]: ...
def dequantize_nested(
    codes: _A,
    nested_absmax: _Array,
    offset: _Array,
    *,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
