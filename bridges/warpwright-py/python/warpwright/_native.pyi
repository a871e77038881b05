"""Types of the native module. An array is anything with `__dlpack__` or `__cuda_array_interface__`; a result has the type
of the first argument where its library can make arrays."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypedDict, TypeVar, final

from typing_extensions import Unpack

__version__: str

class _Dlpack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

_Array = _Dlpack | _CudaArray
_Arrays = Sequence[_Array | None]
_A = TypeVar("_A", bound=_Dlpack | _CudaArray)
# A result whose element type or number of dimensions is not that of the first argument, both of which are part of the types of numpy's arrays.
_Other = Any
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
    """A finding of a sanitizer."""

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
    """The outcome of a launch in the emulator."""

    @property
    def findings(self) -> list[Finding]: ...
    @property
    def counters(self) -> dict[str, int]: ...
    @property
    def lines(self) -> dict[int, dict[str, int]]: ...
    @property
    def printed(self) -> list[str]: ...
    @property
    def fault(self) -> str | None: ...
    @property
    def ok(self) -> bool: ...

@final
class TensorMap:
    """A tensor map over an array, as an argument of `run`."""

    def __new__(
        cls, array: _Array, box: Sequence[int], *, swizzle: str = "none", element: str | None = None, fill: str = "zeros"
    ) -> TensorMap: ...
    @property
    def array(self) -> Any: ...

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
    time_limit: float | None = None,
) -> Run: ...
def torch_route(*arguments: Any) -> int: ...
def implement_operator(
    namespace: str, name: str, arguments: Sequence[str], results: int, python: str, key: str
) -> bool: ...
def operator_calls() -> tuple[int, int]: ...
def operator_error(error: BaseException) -> BaseException: ...
def operator_failed(error: BaseException) -> None: ...
def forget_calls() -> None: ...
def repeat_first_calls(enabled: bool) -> bool: ...
def recorded(allocations: Sequence[tuple[int, int]] | None) -> None: ...
def recording_wanted() -> bool: ...

@final
class Placeholder:
    """An array without memory, on which a call is planned."""

    @property
    def mT(self) -> Placeholder: ...

def plan_call(
    text: str, arrays: Sequence[tuple[str, Sequence[int]]], device: int | None = None
) -> tuple[list[tuple[str, tuple[int, ...]]], Any]: ...
def planned_calls() -> int: ...
def forget_planned_calls() -> None: ...
def xla_handlers() -> tuple[int, int]: ...

class Entry:
    def __init__(
        self,
        tensors: int,
        direct: Callable[..., Any],
        recorded: Callable[..., Any],
        dispatched: Callable[..., Any],
    ) -> None: ...
    def __call__(self, *inputs: Any) -> Any: ...

class Repeated:
    def __init__(self, native: Callable[..., Any], *, in_place: bool = False) -> None: ...
    def __call__(self, *inputs: Any, **keywords: Any) -> Any: ...
    def counts(self) -> tuple[int, int]: ...

class Forward:
    def __init__(
        self,
        native: Callable[..., Any],
        shape: tuple[int, int, int, bool],
        save: Callable[..., Any] | None = None,
        read_by: Sequence[Sequence[int]] | None = None,
        keep: Callable[..., Any] | None = None,
        noted: Callable[..., Any] | None = None,
    ) -> None: ...
    def __call__(self, *arguments: Any) -> Any: ...

class Backward:
    def __init__(
        self,
        native: Callable[..., Any],
        dispatched: Callable[..., Any],
        shape: tuple[int, int, int, bool],
        arguments: int,
        has_mask: bool,
        shared: Callable[..., Any] | None = None,
    ) -> None: ...
    def __get__(self, context: Any, _class: Any) -> Any: ...

# Families of functions of one form. Their docstrings say what each computes.

class _Unary(Protocol):
    def __call__(self, x: _A, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...

class _UnaryBackward(Protocol):
    def __call__(self, x: _A, dy: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...

class _Gated(Protocol):
    def __call__(self, gate: _A, up: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _A: ...

class _GatedBackward(Protocol):
    def __call__(
        self, gate: _A, up: _Array, dy: _Array, *, out: _Arrays | None = None, stream: _Stream | None = None
    ) -> tuple[_A, _A]: ...

class _Quantize(Protocol):
    def __call__(
        self,
        x: _Array,
        group_size: int = 64,
        *,
        order: str = "high_first",
        out: _Arrays | None = None,
        stream: _Stream | None = None,
    ) -> tuple[_Other, _Other]: ...

class _Dequantize(Protocol):
    def __call__(
        self,
        codes: _Array,
        scales: _Array,
        shape: _Extents | None = None,
        group_size: int = 64,
        *,
        dtype: _Dtype | None = None,
        order: str = "high_first",
        out: _Array | None = None,
        stream: _Stream | None = None,
    ) -> _Other: ...

relu: _Unary
relu_backward: _UnaryBackward
gelu_tanh: _Unary
gelu_tanh_backward: _UnaryBackward
gelu_erf: _Unary
gelu_erf_backward: _UnaryBackward
silu: _Unary
silu_backward: _UnaryBackward
sigmoid: _Unary
sigmoid_backward: _UnaryBackward
tanh: _Unary
tanh_backward: _UnaryBackward

def leaky_relu(
    x: _A, negative_slope: float = 0.01, *, out: _Array | None = None, stream: _Stream | None = None
) -> _A: ...
def leaky_relu_backward(
    x: _A, dy: _Array, negative_slope: float = 0.01, *, out: _Array | None = None, stream: _Stream | None = None
) -> _A: ...
def softplus(
    x: _A, beta: float = 1.0, *, out: _Array | None = None, stream: _Stream | None = None
) -> _A: ...
def softplus_backward(
    x: _A, dy: _Array, beta: float = 1.0, *, out: _Array | None = None, stream: _Stream | None = None
) -> _A: ...

swiglu: _Gated
swiglu_backward: _GatedBackward
geglu: _Gated
geglu_backward: _GatedBackward
geglu_tanh: _Gated
geglu_tanh_backward: _GatedBackward

def cast(x: _Array, dtype: _Dtype, *, out: _Array | None = None, stream: _Stream | None = None) -> _Other: ...

quantize_nf4: _Quantize
dequantize_nf4: _Dequantize
quantize_fp4: _Quantize
dequantize_fp4: _Dequantize
quantize_int4: _Quantize
dequantize_int4: _Dequantize

def quantize_int4_asymmetric(
    x: _Array,
    group_size: int = 64,
    *,
    order: str = "high_first",
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> tuple[_Other, _Other, _Other]: ...
def dequantize_int4_asymmetric(
    codes: _Array,
    scales: _Array,
    zero_points: _Array,
    shape: _Extents | None = None,
    group_size: int = 64,
    *,
    dtype: _Dtype | None = None,
    order: str = "high_first",
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _Other: ...
def matmul_4bit(
    x: _A,
    codes: _Array,
    scales: _Array,
    shape: _Extents,
    format: str = "nf4",
    group_size: int = 64,
    *,
    zero_points: _Array | None = None,
    nested_absmax: _Array | None = None,
    offset: _Array | None = None,
    tensor_scale: _Array | None = None,
    group_index: _Array | None = None,
    bias: _Array | None = None,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def matmul_4bit_backward(
    dy: _A,
    codes: _Array,
    scales: _Array,
    shape: _Extents,
    format: str = "nf4",
    group_size: int = 64,
    *,
    zero_points: _Array | None = None,
    nested_absmax: _Array | None = None,
    offset: _Array | None = None,
    tensor_scale: _Array | None = None,
    group_index: _Array | None = None,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def quantize_nested(
    absmax: _Array, *, out: _Arrays | None = None, stream: _Stream | None = None
) -> tuple[_Other, _Other, _Other]: ...
def dequantize_nested(
    codes: _Array,
    nested_absmax: _Array,
    offset: _Array,
    *,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _Other: ...

class _Softmax(Protocol):
    def __call__(
        self, x: _A, dim: int = -1, *, scale: float = 1.0, out: _Array | None = None, stream: _Stream | None = None
    ) -> _A: ...

class _SoftmaxBackward(Protocol):
    def __call__(
        self,
        y: _A,
        dy: _Array,
        dim: int = -1,
        *,
        scale: float = 1.0,
        out: _Array | None = None,
        stream: _Stream | None = None,
    ) -> _A: ...

softmax: _Softmax
softmax_backward: _SoftmaxBackward
log_softmax: _Softmax
log_softmax_backward: _SoftmaxBackward

def matmul(
    a: _A,
    b: _Array,
    *,
    c: _Array | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias: _Array | None = None,
    activation: str | None = None,
    precision: str = "full",
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def quantize8(
    x: _Array, format: str = "e4m3", scaling: str = "row", *, stream: _Stream | None = None
) -> tuple[_Other, _Other]: ...
def quantize_dynamic(
    x: _Array, signed: bool = True, block_size: int = 256, *, stream: _Stream | None = None
) -> tuple[_Other, _Other]: ...
def dequantize_dynamic(
    codes: _Array,
    absmax: _Array,
    dtype: _Dtype,
    signed: bool = True,
    block_size: int = 256,
    *,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _Other: ...
def dequantize8(
    codes: _Array,
    scales: _Array,
    dtype: _Dtype,
    scaling: str = "row",
    *,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _Other: ...
def scaled_matmul(
    a: _Array,
    b: _Array,
    scale_a: _Array,
    scale_b: _Array,
    dtype: _Dtype,
    *,
    scaling_a: str = "row",
    scaling_b: str = "row",
    bias: _Array | None = None,
    activation: str | None = None,
    accumulation: str = "promoted",
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _Other: ...
def gated_linear(
    x: _A,
    gate: _Array,
    up: _Array,
    activation: str = "swiglu",
    *,
    gate_bias: _Array | None = None,
    up_bias: _Array | None = None,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def gated_linear_factors(
    x: _A,
    gate: _Array,
    up: _Array,
    activation: str = "swiglu",
    *,
    gate_bias: _Array | None = None,
    up_bias: _Array | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _A, _A]: ...
def gated_activation_linear_backward(
    dy: _A, weight: _Array, gate: _Array, up: _Array, activation: str = "swiglu", *, stream: _Stream | None = None
) -> tuple[_A, _A]: ...
def linear_activation(
    x: _A, weight: _Array, bias: _Array | None = None, activation: str = "gelu_erf", *, stream: _Stream | None = None
) -> tuple[_A, _A]: ...
def activation_linear_backward(
    dy: _A, weight: _Array, z: _Array, activation: str = "gelu_erf", *, stream: _Stream | None = None
) -> _A: ...
def linear_weight_backward(x: _A, dy: _Array, *, stream: _Stream | None = None) -> tuple[_A, _A]: ...
def grouped_matmul(
    a: _A, b: _Array, ends: _Array, *, out: _Array | None = None, stream: _Stream | None = None
) -> _A: ...
def grouped_matmul_k(
    a: _Array, b: _Array, ends: _Array, *, out: _Array | None = None, stream: _Stream | None = None
) -> _Other: ...
def int8_matmul(a: _Array, b: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _Other: ...

# A number, or one for each dimension; padding has pairs of them too.
_Sides = int | Sequence[int | tuple[int, int]]

class _ConvOptions(TypedDict, total=False):
    stride: _Extents
    padding: _Sides
    dilation: _Extents
    groups: int
    precision: str
    channels_last: bool
    memory_format: str | None
    stream: _Stream | None

class _ConvForward(_ConvOptions, total=False):
    scale: _Array | None
    residual: _Array | None
    activation: str | None
    out: _Array | None

class _ConvGradients(_ConvOptions, total=False):
    x_gradient: bool
    weight_gradient: bool
    bias_gradient: bool
    out: _Array | _Arrays | None

def conv(x: _A, weight: _Array, bias: _Array | None = None, **options: Unpack[_ConvForward]) -> _A: ...
def conv_backward(
    x: _Array | Sequence[int], weight: _Array | Sequence[int], dy: _A, **options: Unpack[_ConvGradients]
) -> tuple[_A | None, _A | None, _Other | None]: ...

class _ImageOptions(TypedDict, total=False):
    channels_last: bool
    memory_format: str | None
    out: _Array | _Arrays | None
    stream: _Stream | None

class _MaxPoolOptions(_ImageOptions, total=False):
    stride: _Extents | None
    padding: _Extents
    dilation: _Extents
    ceil_mode: bool

class _AvgPoolOptions(_ImageOptions, total=False):
    stride: _Extents | None
    padding: _Extents
    ceil_mode: bool
    count_include_pad: bool
    divisor: int | None

class _ResizeOptions(_ImageOptions, total=False):
    scale: float | Sequence[float] | None
    mode: str
    align_corners: bool

class _CausalConvOptions(_ImageOptions, total=False):
    activation: str | None

def max_pool(x: _Array, kernel: _Extents, *, argmax: str | None = None, **options: Unpack[_MaxPoolOptions]) -> Any: ...
def max_pool_backward(
    dy: _A, indices: _Array, shape: Sequence[int], kernel: _Extents, **options: Unpack[_MaxPoolOptions]
) -> _A: ...
def avg_pool(x: _A, kernel: _Extents, **options: Unpack[_AvgPoolOptions]) -> _A: ...
def avg_pool_backward(dy: _A, shape: Sequence[int], kernel: _Extents, **options: Unpack[_AvgPoolOptions]) -> _A: ...
def adaptive_max_pool(x: _Array, output: _Extents, *, argmax: str | None = None, **options: Unpack[_ImageOptions]) -> Any: ...
def adaptive_max_pool_backward(
    dy: _A, indices: _Array, shape: Sequence[int], **options: Unpack[_ImageOptions]
) -> _A: ...
def adaptive_avg_pool(x: _A, output: _Extents, **options: Unpack[_ImageOptions]) -> _A: ...
def adaptive_avg_pool_backward(dy: _A, shape: Sequence[int], **options: Unpack[_ImageOptions]) -> _A: ...
def resize(x: _A, output: _Extents | None = None, **options: Unpack[_ResizeOptions]) -> _A: ...
def resize_backward(dy: _A, shape: Sequence[int], **options: Unpack[_ResizeOptions]) -> _A: ...
def causal_conv1d(
    x: _Array,
    weight: _Array,
    bias: _Array | None = None,
    *,
    initial_states: _Array | None = None,
    final_states: bool = False,
    seq_idx: _Array | None = None,
    **options: Unpack[_CausalConvOptions],
) -> Any: ...
def causal_conv1d_backward(
    x: _A,
    weight: _Array,
    dy: _Array,
    dfinal_states: _Array | None = None,
    *,
    bias: _Array | None = None,
    initial_states: _Array | None = None,
    seq_idx: _Array | None = None,
    **options: Unpack[_CausalConvOptions],
) -> tuple[_A, _Other, _Other | None, _Other | None]: ...
def causal_conv1d_update(
    x: _A, states: _Array, weight: _Array, bias: _Array | None = None, **options: Unpack[_CausalConvOptions]
) -> _A: ...
def chunk_scan(
    x: _Array,
    dt: _Array,
    A: _Array,
    B: _Array,
    C: _Array,
    D: _Array | None = None,
    dt_bias: _Array | None = None,
    dt_softplus: bool = False,
    *,
    initial_state: _Array | None = None,
    last_state: bool = False,
    training: bool = False,
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> Any: ...
def chunk_scan_backward(
    x: _A,
    dt: _Array,
    A: _Array,
    B: _Array,
    C: _Array,
    states: _Array,
    dy: _Array,
    dlast_state: _Array | None = None,
    *,
    D: _Array | None = None,
    dt_bias: _Array | None = None,
    dt_softplus: bool = False,
    initial_state: _Array | None = None,
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _Other, _Other, _Other, _Other, _Other | None, _Other | None, _Other | None]: ...
def selective_scan(
    u: _Array,
    delta: _Array,
    A: _Array,
    B: _Array,
    C: _Array,
    D: _Array | None = None,
    z: _Array | None = None,
    delta_bias: _Array | None = None,
    delta_softplus: bool = False,
    *,
    initial_state: _Array | None = None,
    last_state: bool = False,
    training: bool = False,
    channels_last: bool = False,
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> Any: ...
def selective_scan_backward(
    u: _A,
    delta: _Array,
    A: _Array,
    B: _Array,
    C: _Array,
    states: _Array,
    dy: _Array,
    dlast_state: _Array | None = None,
    *,
    D: _Array | None = None,
    z: _Array | None = None,
    delta_bias: _Array | None = None,
    delta_softplus: bool = False,
    initial_state: _Array | None = None,
    channels_last: bool = False,
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _Other, _Other, _Other, _Other, _Other | None, _Other | None, _Other | None, _Other | None]: ...
def selective_scan_update(
    u: _A,
    delta: _Array,
    A: _Array,
    B: _Array,
    C: _Array,
    state: _Array,
    D: _Array | None = None,
    z: _Array | None = None,
    delta_bias: _Array | None = None,
    delta_softplus: bool = False,
    *,
    channels_last: bool = False,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...

class _AttentionOptions(TypedDict, total=False):
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    alignment: str
    softcap: float | None
    bias: _Array | None
    slopes: _Array | None
    key_lengths: _Array | None
    cu_seqlens_q: _Array | None
    cu_seqlens_k: _Array | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    block_table: _Array | None
    sinks: _Array | None
    dropout_p: float
    random: _Array | None
    key_tiles: _Array | None
    query_tiles: _Array | None
    mask_bits: _Array | None
    out: _Arrays | None
    stream: _Stream | None

class _AttentionForward(_AttentionOptions, total=False):
    k_scale: _Array | None
    v_scale: _Array | None

class _AttentionGradients(_AttentionOptions, total=False):
    bias_gradient: bool
    sinks_gradient: bool

def attention(q: _A, k: _Array, v: _Array, **options: Unpack[_AttentionForward]) -> tuple[_A, _Other]: ...
def attention_backward(
    q: _A, k: _Array, v: _Array, o: _Array, lse: _Array, dy: _Array, **options: Unpack[_AttentionGradients]
) -> tuple[_A, ...]: ...

_Weights = Sequence[Sequence[_Array]]

class _RecurrentOptions(TypedDict, total=False):
    bidirectional: bool
    batch_first: bool
    lengths: _Array | None
    dropout_p: float
    random: _Array | None
    precision: str
    stream: _Stream | None

class _RecurrentForward(_RecurrentOptions, total=False):
    training: bool
    out: _Arrays | None

class _RecurrentBackward(_RecurrentOptions, total=False):
    input_gradient: bool

class _RnnForward(_RecurrentForward, total=False):
    nonlinearity: str

class _RnnBackward(_RecurrentBackward, total=False):
    nonlinearity: str

_RecurrentGradients = tuple[_A | None, _A | None, _A | None, list[tuple[_Other, ...]]]

def lstm(
    x: _A, weights: _Weights, h0: _Array | None = None, c0: _Array | None = None, **options: Unpack[_RecurrentForward]
) -> tuple[_A, ...]: ...
def lstm_backward(
    x: _A,
    weights: _Weights,
    y: _Array,
    reserve: _Array,
    dy: _Array | None = None,
    dh_n: _Array | None = None,
    dc_n: _Array | None = None,
    h0: _Array | None = None,
    c0: _Array | None = None,
    **options: Unpack[_RecurrentBackward],
) -> _RecurrentGradients[_A]: ...
def gru(
    x: _A, weights: _Weights, h0: _Array | None = None, **options: Unpack[_RecurrentForward]
) -> tuple[_A, ...]: ...
def gru_backward(
    x: _A,
    weights: _Weights,
    y: _Array,
    reserve: _Array,
    dy: _Array | None = None,
    dh_n: _Array | None = None,
    h0: _Array | None = None,
    **options: Unpack[_RecurrentBackward],
) -> _RecurrentGradients[_A]: ...
def rnn(x: _A, weights: _Weights, h0: _Array | None = None, **options: Unpack[_RnnForward]) -> tuple[_A, ...]: ...
def rnn_backward(
    x: _A,
    weights: _Weights,
    y: _Array,
    reserve: _Array,
    dy: _Array | None = None,
    dh_n: _Array | None = None,
    h0: _Array | None = None,
    **options: Unpack[_RnnBackward],
) -> _RecurrentGradients[_A]: ...

_CellWeights = Sequence[_Array]

class _CellForward(TypedDict, total=False):
    training: bool
    out: _Array | _Arrays | None
    stream: _Stream | None

class _RnnCellForward(_CellForward, total=False):
    nonlinearity: str

class _CellBackward(TypedDict, total=False):
    stream: _Stream | None

class _RnnCellBackward(_CellBackward, total=False):
    nonlinearity: str

def lstm_cell(x: _A, h: _Array, c: _Array, weights: _CellWeights, **options: Unpack[_CellForward]) -> tuple[_A, ...]: ...
def lstm_cell_backward(
    x: _A,
    h: _Array,
    c: _Array,
    weights: _CellWeights,
    reserve: _Array,
    dh: _Array,
    dc: _Array | None = None,
    **options: Unpack[_CellBackward],
) -> tuple[_A, _A, _A, tuple[_Other, ...]]: ...
# With training the result is a pair.
def gru_cell(x: _Array, h: _Array, weights: _CellWeights, **options: Unpack[_CellForward]) -> Any: ...
def gru_cell_backward(
    x: _A, h: _Array, weights: _CellWeights, reserve: _Array, dh: _Array, **options: Unpack[_CellBackward]
) -> tuple[_A, _A, tuple[_Other, ...]]: ...
def rnn_cell(x: _Array, h: _Array, weights: _CellWeights, **options: Unpack[_RnnCellForward]) -> Any: ...
def rnn_cell_backward(
    x: _A, h: _Array, weights: _CellWeights, reserve: _Array, dh: _Array, **options: Unpack[_RnnCellBackward]
) -> tuple[_A, _A, tuple[_Other, ...]]: ...
def validate_indices(enabled: bool = True) -> bool: ...
def cross_entropy(
    logits: _Array,
    target: _Array,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    dtype: _Dtype | None = None,
    statistics: bool = False,
    out: _Array | _Arrays | None = None,
    stream: _Stream | None = None,
) -> Any: ...
def cross_entropy_backward(
    logits: _A,
    target: _Array,
    lse: _Array,
    nll: _Array,
    dloss: _Array,
    count: _Array | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def linear_cross_entropy(
    x: _Array,
    weight: _Array,
    target: _Array,
    bias: _Array | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    gradients: bool = False,
    chunk_rows: int | None = None,
    out: _Array | _Arrays | None = None,
    stream: _Stream | None = None,
) -> Any: ...

# With statistics or a residual the result is a tuple.

def layer_norm(
    x: _Array,
    normalized_shape: _Extents,
    weight: _Array | None = None,
    bias: _Array | None = None,
    eps: float = 1e-5,
    *,
    residual: _Array | None = None,
    statistics: bool = False,
    out: _Array | _Arrays | None = None,
    stream: _Stream | None = None,
) -> Any: ...
def layer_norm_backward(
    x: _A,
    dy: _Array,
    mean: _Array,
    rstd: _Array,
    normalized_shape: _Extents,
    weight: _Array | None = None,
    bias: _Array | bool | None = None,
    *,
    dz: _Array | None = None,
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _Other | None, _Other | None]: ...
def rms_norm(
    x: _Array,
    normalized_shape: _Extents,
    weight: _Array | None = None,
    eps: float | None = None,
    *,
    residual: _Array | None = None,
    statistics: bool = False,
    out: _Array | _Arrays | None = None,
    stream: _Stream | None = None,
) -> Any: ...
def rms_norm_backward(
    x: _A,
    dy: _Array,
    rstd: _Array,
    normalized_shape: _Extents,
    weight: _Array | None = None,
    *,
    dz: _Array | None = None,
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _Other | None]: ...
def group_norm(
    x: _Array,
    groups: int,
    weight: _Array | None = None,
    bias: _Array | None = None,
    eps: float = 1e-5,
    *,
    silu: bool = False,
    statistics: bool = False,
    out: _Array | _Arrays | None = None,
    stream: _Stream | None = None,
) -> Any: ...
def group_norm_backward(
    x: _A,
    dy: _Array,
    mean: _Array,
    rstd: _Array,
    groups: int,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    silu: bool = False,
    weight_gradient: bool = True,
    bias_gradient: bool = True,
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _Other | None, _Other | None]: ...
def instance_norm(
    x: _Array,
    weight: _Array | None = None,
    bias: _Array | None = None,
    eps: float = 1e-5,
    *,
    statistics: bool = False,
    out: _Array | _Arrays | None = None,
    stream: _Stream | None = None,
) -> Any: ...
def instance_norm_backward(
    x: _A,
    dy: _Array,
    mean: _Array,
    rstd: _Array,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    weight_gradient: bool = True,
    bias_gradient: bool = True,
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _Other | None, _Other | None]: ...
def batch_norm(
    x: _Array,
    running_mean: _Array | None = None,
    running_var: _Array | None = None,
    weight: _Array | None = None,
    bias: _Array | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    relu: bool = False,
    residual: _Array | None = None,
    statistics: bool = False,
    out: _Array | _Arrays | None = None,
    stream: _Stream | None = None,
) -> Any: ...
def batch_norm_backward(
    x: _Array,
    dy: _Array,
    mean: _Array,
    rstd: _Array,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    y: _Array | None = None,
    residual: bool = False,
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> tuple[_Other | None, ...]: ...
def batch_norm_inference_backward(
    x: _Array,
    dy: _Array,
    running_mean: _Array,
    running_var: _Array,
    weight: _Array | None = None,
    bias: _Array | None = None,
    eps: float = 1e-5,
    *,
    y: _Array | None = None,
    residual: bool = False,
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> tuple[_Other | None, ...]: ...
def batch_moments(x: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _Other: ...
def batch_norm_merged(
    x: _A,
    moments: _Array,
    running_mean: _Array | None = None,
    running_var: _Array | None = None,
    weight: _Array | None = None,
    bias: _Array | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    relu: bool = False,
    residual: _Array | None = None,
    out: _Arrays | None = None,
    stream: _Stream | None = None,
) -> tuple[_A, _Other, _Other, _Other]: ...
def batch_norm_sums(
    x: _Array, dy: _Array, mean: _Array, rstd: _Array, *, out: _Array | None = None, stream: _Stream | None = None
) -> _Other: ...
def batch_norm_gradient(
    x: _A,
    dy: _Array,
    mean: _Array,
    rstd: _Array,
    count: _Array,
    sums: _Array,
    weight: _Array | None = None,
    *,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def local_response_norm(
    x: _A,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    *,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def local_response_norm_backward(
    x: _A,
    dy: _Array,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    *,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...

class _RotaryOptions(TypedDict, total=False):
    pairing: str
    positions: _Array | None
    offset: int
    rotary_dim: int | None
    out: _Array | _Arrays | None
    stream: _Stream | None

def rotary_embedding(q: _Array, k: _Array | None, cos: _Array, sin: _Array, **options: Unpack[_RotaryOptions]) -> Any: ...
def rotary_embedding_backward(
    dq: _Array, dk: _Array | None, cos: _Array, sin: _Array, **options: Unpack[_RotaryOptions]
) -> Any: ...
def append_kv_cache(
    k: _A,
    v: _Array,
    k_cache: _Array,
    v_cache: _Array,
    *,
    key_lengths: _Array | None = None,
    block_table: _Array | None = None,
    q: _Array | None = None,
    cos: _Array | None = None,
    sin: _Array | None = None,
    pairing: str = "half",
    rotary_dim: int | None = None,
    k_scale: _Array | None = None,
    v_scale: _Array | None = None,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A | None: ...
def embedding(weight: _Array, indices: _Array, *, out: _Array | None = None, stream: _Stream | None = None) -> _Other: ...
def embedding_backward(
    dy: _Array,
    indices: _Array,
    num_embeddings: int,
    *,
    padding_idx: int | None = None,
    scale_grad_by_freq: bool = False,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _Other: ...
def gather_rows(
    x: _A, index: _Array, factors: _Array | None = None, *, out: _Array | None = None, stream: _Stream | None = None
) -> _A: ...
def scatter_rows(
    x: _A,
    index: _Array,
    rows: int,
    factors: _Array | None = None,
    base: _Array | None = None,
    *,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def row_dots(
    a: _Array,
    b: _Array,
    index: _Array,
    *,
    dtype: _Dtype | None = None,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _Other: ...
def topk(x: _A, k: int, *, largest: bool = True, stream: _Stream | None = None) -> tuple[_A, _Other]: ...
def topk_backward(
    dvalues: _A, index: _Array, n: int, *, out: _Array | None = None, stream: _Stream | None = None
) -> _A: ...
def elementwise(
    expr: str,
    *arrays: _Array,
    scalars: Sequence[float] = (),
    dtype: _Dtype | None = None,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _Other: ...
def dropout(
    x: _A, random: _Array, p: float = 0.5, *, out: _Array | None = None, stream: _Stream | None = None
) -> _A: ...
def dropout_add(
    x: _A, residual: _Array, random: _Array, p: float = 0.5, *, out: _Array | None = None, stream: _Stream | None = None
) -> _A: ...

class _ReduceOptions(TypedDict, total=False):
    out: _Array | None
    stream: _Stream | None

class _SumOptions(_ReduceOptions, total=False):
    dtype: _Dtype | None

_Dims = int | Sequence[int] | None

def sum(x: _Array, dim: _Dims = None, keepdim: bool = False, **options: Unpack[_SumOptions]) -> _Other: ...
def mean(x: _Array, dim: _Dims = None, keepdim: bool = False, **options: Unpack[_SumOptions]) -> _Other: ...
def amax(x: _Array, dim: _Dims = None, keepdim: bool = False, **options: Unpack[_ReduceOptions]) -> _Other: ...
def amin(x: _Array, dim: _Dims = None, keepdim: bool = False, **options: Unpack[_ReduceOptions]) -> _Other: ...
def cumsum(
    x: _A,
    dim: int = -1,
    *,
    exclusive: bool = False,
    reverse: bool = False,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _A: ...
def argmax(x: _Array, dim: int | None = None, keepdim: bool = False, **options: Unpack[_ReduceOptions]) -> _Other: ...
def argmin(x: _Array, dim: int | None = None, keepdim: bool = False, **options: Unpack[_ReduceOptions]) -> _Other: ...

class _StepOptions(TypedDict, total=False):
    masters: Sequence[_Array] | None
    weight_decay: float
    maximize: bool
    grad_scale: _Array | None
    found_inf: _Array | None
    stream: _Stream | None

class _AdamOptions(_StepOptions, total=False):
    max_exp_avg_sqs: Sequence[_Array] | None
    betas: tuple[float, ...]
    eps: float

class _SgdOptions(_StepOptions, total=False):
    momentum: float
    dampening: float
    nesterov: bool

def adamw_step(
    params: Sequence[_Array],
    grads: Sequence[_Array],
    exp_avgs: Sequence[_Array],
    exp_avg_sqs: Sequence[_Array],
    step: _Array,
    lr: _Array,
    **options: Unpack[_AdamOptions],
) -> None: ...
def adamw8bit_step(
    params: Sequence[_Array],
    grads: Sequence[_Array],
    state1s: Sequence[_Array],
    state2s: Sequence[_Array],
    absmax1s: Sequence[_Array | None],
    absmax2s: Sequence[_Array | None],
    step: _Array,
    lr: _Array,
    *,
    betas: tuple[float, ...] = (0.9, 0.999),
    eps: float = 1e-8,
    **options: Unpack[_StepOptions],
) -> None: ...
def adam_step(
    params: Sequence[_Array],
    grads: Sequence[_Array],
    exp_avgs: Sequence[_Array],
    exp_avg_sqs: Sequence[_Array],
    step: _Array,
    lr: _Array,
    **options: Unpack[_AdamOptions],
) -> None: ...
def sgd_step(
    params: Sequence[_Array],
    grads: Sequence[_Array],
    momentum_buffers: Sequence[_Array] | None,
    step: _Array,
    lr: _Array,
    **options: Unpack[_SgdOptions],
) -> None: ...
def grad_norm(
    grads: Sequence[_Array], norm_type: float = 2.0, *, out: _Array | None = None, stream: _Stream | None = None
) -> _Other: ...
def clip_grad_norm(
    grads: Sequence[_Array],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    out: _Array | None = None,
    stream: _Stream | None = None,
) -> _Other: ...
