"""Where operators of ours lose against PyTorch's, so that `patch` leaves those of PyTorch in place unless they are asked for.

From the tables of docs/performance/README.md, which are made of bench/data: the column *other / ours* of the operation and dtype that
a rule names, against eager PyTorch, where it is below 1 or too near to it to pay for a change.
"""

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence

import torch
from torch import Tensor

from ._conv import precision_of_pytorch
from ._images import is_recorded
from ._registry import is_compiling
from ._transforms import is_transformed

# A reason to leave what PyTorch has, or None.
Reason = Optional[str]
LOW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Rule:
    """module(m): a reason that is known from a module, whatever its input. call(m, x): one of a single call."""

    module: Callable[[Any], Reason] = lambda module: None
    call: Optional[Callable[[Any, Tensor], Reason]] = None


def used_dtype(x: Tensor) -> torch.dtype:
    """The dtype that products have: that of autocast, where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if kind != "meta" and torch.is_autocast_enabled(kind) else x.dtype


def _even(*values: int) -> bool:
    return all(value % 8 == 0 for value in values)


# Taps up to which there is a kernel for groups of so many channels, in both directions.
_GROUPED_TAPS = {4: 36, 8: 36, 16: 13, 32: 9}
_LEAST_GROUPED = 64


def groups_reason(channels: int, filters: int, groups: int, kernel: Sequence[int], stride: Sequence[int], gradients: bool) -> Reason:
    """Why a convolution of such groups is left; of 16 bits."""
    if groups in (1, channels):
        return None
    taps = _GROUPED_TAPS.get(channels // groups, 0) if filters == channels >= _LEAST_GROUPED and len(kernel) <= 2 else 0
    if math.prod(kernel) > taps or channels % 8 or max(stride) > 2:
        return "groups of several channels are faster in cuDNN, but for those of 4, 8, 16 and 32 with few taps"
    if gradients and max(stride) > 1:
        return "gradients of groups with strides are faster in cuDNN"
    return None


def _conv_module(module: Any) -> Reason:
    return groups_reason(module.in_channels, module.out_channels, module.groups, module.kernel_size, module.stride, False)


def _conv_transpose_module(module: Any) -> Reason:
    if 1 < module.groups < module.in_channels:
        return "groups of several channels are faster in cuDNN"
    return None


def conv_reason(
    x: Tensor, channels: int, filters: int, groups: int, kernel: Sequence[int], stride: Sequence[int], gradients: bool
) -> Reason:
    """Why a convolution is left, by its extents."""
    if used_dtype(x) in LOW:
        return groups_reason(channels, filters, groups, kernel, stride, gradients)
    if used_dtype(x) != torch.float32 or precision_of_pytorch(x.device) != "tf32" or not _is_sm_90(x.device.index):
        return "convolutions of 32 and 64 bits are as fast in cuDNN, but for those that it may round to TF32 on sm_90"
    if groups > 1:
        return "groups of 32 bits are faster in cuDNN"
    if gradients and max(stride) > 1:
        return "gradients of 32 bits with strides are as fast in cuDNN"
    if math.prod(kernel) == 1 and x.is_contiguous():
        return "1x1 filters of 32 bits are faster in cuDNN where channels come first"
    return None


def _conv_call(module: Any, x: Tensor) -> Reason:
    weight = module.weight
    why = conv_reason(
        x, module.in_channels, module.out_channels, module.groups, module.kernel_size, module.stride, is_recorded(x, weight)
    )
    if why is not None:
        return why
    ones = all(k == 1 for k in module.kernel_size)
    if ones and x.dim() == 4 and weight.requires_grad and torch.is_grad_enabled() and x.is_contiguous():
        return "gradients of 1x1 filters are faster in cuDNN where channels come first"
    return None


def _conv_transpose_call(module: Any, x: Tensor) -> Reason:
    return _conv_call(module, x) if used_dtype(x) in LOW else "convolutions of 32 and 64 bits are as fast in cuDNN"


def _linear_module(module: Any) -> Reason:
    if module.weight.dtype in LOW and _even(module.in_features, module.out_features):
        return "products of 16 bits are as fast in cuBLAS if 8 divides their extents"
    return None


def _linear_call(module: Any, x: Tensor) -> Reason:
    dtype = used_dtype(x)
    if dtype in LOW:
        return _linear_module(module) or (
            "products of 16 bits are as fast in cuBLAS if 8 divides their extents"
            if _even(module.in_features, module.out_features)
            else None
        )
    if dtype == torch.float64:
        return "products of 64 bits are as fast in cuBLAS"
    return "cuBLAS may round factors to TF32 here" if torch.backends.cuda.matmul.allow_tf32 else None


def _bound_by_bytes(module: Any) -> Reason:
    return "both are bound by the same bytes"


def _activation_call(module: Any, x: Tensor) -> Reason:
    if is_compiling():
        return "a compiler puts activations into the kernels beside them"
    return "activations of 64 bits are faster in PyTorch" if x.dtype == torch.float64 else None


_NEAREST = ("nearest", "nearest-exact")


def resize_reason(mode: str, x: Tensor, size: Any, scale_factor: Any = None) -> Reason:
    """Why images of other extents are left to PyTorch, by arguments of `interpolate`."""
    if mode not in _NEAREST:
        return "means of cells are as fast in PyTorch" if mode == "area" else None
    if is_compiling():
        return "a compiler reads the nearest pixels where they are used"
    if x.dim() != 4:
        return f"mode {mode!r} of {x.dim()} dimensions is faster in PyTorch"
    # With channels last, and to twice the extents, cells share loads; others of a plane are read one by one.
    if not x.is_contiguous():
        return None
    inputs = x.shape[2:]
    output = _resized(inputs, size, scale_factor)
    if all(to == 2 * n for to, n in zip(output, inputs)):
        return None
    if is_recorded(x):
        return f"gradients of mode {mode!r} with channels first are faster in PyTorch, but to twice the extents"
    fewer = any(to < n for to, n in zip(output, inputs))
    return f"mode {mode!r} to fewer pixels with channels first is faster in PyTorch" if fewer else None


def _resized(inputs: Sequence[int], size: Any, scale_factor: Any) -> Sequence[int]:
    """The extents behind `interpolate`; of arguments that it refuses, those before."""
    if size is not None:
        return size if isinstance(size, (tuple, list)) else [size] * len(inputs)
    if scale_factor is None:
        return inputs
    factors = scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * len(inputs)
    return [int(n * factor) for n, factor in zip(inputs, factors)]


def _resize_call(module: Any, x: Tensor) -> Reason:
    return resize_reason(module.mode, x, module.size, module.scale_factor)


# Of the kernels of attention.
_MOST_HEAD_DIM = 256


def head_dim_reason(head_dim: int) -> Reason:
    """Why no kernel takes heads. Eager calls would find out by an error; compiled ones have to know before."""
    return f"head_dim {head_dim} is above {_MOST_HEAD_DIM}" if head_dim > _MOST_HEAD_DIM else None


def attention_refusal(*tensors: Tensor) -> Reason:
    """The same of queries, keys and values."""
    return head_dim_reason(max(t.shape[-1] for t in tensors))


# With more elements a head each tile of gradients is computed twice.
_MOST_IN_ONE_SWEEP = 128


def attention_reason(head_dim: int, *tensors: Tensor) -> Reason:
    """A reason to leave attention of such heads to PyTorch; the tensors are what its gradients would be of."""
    trained = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if head_dim > _MOST_IN_ONE_SWEEP and trained and used_dtype(tensors[0]) in LOW:
        return f"the gradients of attention of 16 bits with more than {_MOST_IN_ONE_SWEEP} elements a head are faster in PyTorch"
    return None


def attention_rule(packed: bool) -> Optional[Callable[[Any, Tensor], Reason]]:
    """The same of queries of [batch, heads, rows, head_dim]. packed: they, keys and values are one tensor, whose gradients PyTorch would put
    together afterwards: it reads and writes all of them once more."""
    return None if packed else lambda module, q: attention_reason(q.shape[-1], q)


# Rows below which products with weights of more elements than this are bound by the weights' bytes.
_FEW_ROWS, _LARGE = 64, 2**26


@torch.compiler.assume_constant_result
def _is_sm_90(index: int) -> bool:
    """Whether a GPU has the products of warpgroups, and what is one launch with them."""
    return torch.cuda.get_device_capability(index) == (9, 0)


def rows_of(x: Tensor) -> int:
    """Rows of a tensor, whatever dimensions they are in."""
    return x.numel() // x.shape[-1] if x.shape[-1] else 0


def gated_rows_reason(x: Tensor, dtype: torch.dtype, rows: Any, weights: Sequence[Any]) -> Reason:
    """A reason to leave the products of a gated unit to PyTorch, where no gradient is recorded: x of so many rows, as `dtype`; rows as `mlp_reason`
    has them."""
    if dtype not in LOW:
        return "products of 32 and 64 bits are no single launch"
    if rows is not None and rows < _FEW_ROWS and sum(weight.numel() for weight in weights) > _LARGE:
        return "products of few rows with large weights are faster in cuBLAS"
    return None if not x.is_cuda or _is_sm_90(x.device.index) else "products and their unit are one launch on sm_90 alone"


def gated_linear_rule(*weights: Tensor) -> Callable[[Any, Tensor], Reason]:
    """A reason to leave the products of a gated unit with two weights to PyTorch."""

    def rule(module: Any, x: Tensor) -> Reason:
        if is_recorded(x, *weights):
            return "products whose gradients are recorded are as fast in cuBLAS"
        dtype = used_dtype(x)
        if dtype in LOW and any(weight.dtype != dtype for weight in weights):
            return "weights of another type than the products"
        if is_transformed():
            return "a functional transform is active"
        # Compiled code is not made twice for that.
        return gated_rows_reason(x, dtype, None if is_compiling() else rows_of(x), weights)

    return rule


# Rows below which products are as fast without the activation behind them.
_LEAST_ROWS = 2048


def mlp_reason(x: Tensor, dtype: torch.dtype, rows: Any, weights: Sequence[Any]) -> Reason:
    """A reason to leave the layers of a feed-forward part to PyTorch: x of so many rows, as `dtype`. rows: None if they differ from call to call."""
    if dtype not in LOW:
        return "products of 32 and 64 bits are no single launch with an activation"
    if not all(_even(*weight.shape) for weight in weights):
        return "8 does not divide the extents of a weight"
    if x.is_cuda and not _is_sm_90(x.device.index):
        return "products and their activation are one launch on sm_90 alone"
    if x.is_cuda and rows is not None and rows < _LEAST_ROWS:
        return "products of few rows are as fast in PyTorch"
    return None


# Columns of a layer's result from which on the gradients of its weight and bias take less as one launch than as a product of cuBLAS and a sum.
_LEAST_COLUMNS = 2048


def one_launch_reason(x: Tensor, rows: Any, weight: Tensor) -> Reason:
    """A reason why the gradients of a weight [out, in] and a bias are not made in one launch, where both are recorded: x of so many rows, None if
    they differ from call to call."""
    if x.dtype not in LOW or not weight.is_contiguous() or not _even(*weight.shape):
        return "products of 16 bits are as fast in cuBLAS if 8 divides their extents"
    if not x.is_cuda:
        return None
    if weight.shape[0] < _LEAST_COLUMNS or (rows is not None and rows < _LEAST_ROWS):
        return "gradients of small weights and biases are as fast in PyTorch"
    return None if _is_sm_90(x.device.index) else "gradients of weights and biases are one launch on sm_90 alone"


def mlp_rule(*weights: Tensor) -> Callable[[Any, Tensor], Reason]:
    """A reason to leave the layers of a feed-forward part with these weights to PyTorch."""

    def rule(module: Any, x: Tensor) -> Reason:
        dtype, kind = used_dtype(x), x.device.type
        cast = kind != "meta" and torch.is_autocast_enabled(kind)
        if dtype in LOW and not cast and any(weight.dtype != dtype for weight in weights):
            return "weights of another type than the products"
        if is_transformed():
            return "a functional transform is active"
        return mlp_reason(x, dtype, rows_of(x), weights)

    return rule


def _embedding_call(module: Any, weight: Tensor) -> Reason:
    if weight.requires_grad and torch.is_grad_enabled():
        return None
    return "rows are read as fast by PyTorch"


RULES: Dict[str, Rule] = {
    "conv": Rule(_conv_module, _conv_call),
    "conv_transpose": Rule(_conv_transpose_module, _conv_transpose_call),
    "linear": Rule(_linear_module, _linear_call),
    "activation": Rule(call=_activation_call),
    "simple_activation": Rule(_bound_by_bytes),
    "resize": Rule(call=_resize_call),
    "embedding": Rule(call=_embedding_call),
    "recurrent_cell": Rule(lambda module: "a single step is as fast in PyTorch"),
}
