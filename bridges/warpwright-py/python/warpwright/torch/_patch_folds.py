"""Batch norms whose statistics are known, as what a convolution ends with; `warpwright.torch.patch` is for users."""

import weakref
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _conv
from ._dropout import elementwise
from ._images import is_recorded
from ._patch_rules import used_dtype
from ._registry import is_compiling
from ._transforms import is_transformed

_FUNCTIONS = {torch.nn.Conv1d: _conv.conv1d, torch.nn.Conv2d: _conv.conv2d, torch.nn.Conv3d: _conv.conv3d}
_NORMS = {torch.nn.Conv1d: torch.nn.BatchNorm1d, torch.nn.Conv2d: torch.nn.BatchNorm2d, torch.nn.Conv3d: torch.nn.BatchNorm3d}
# As convolutions and products call them, by the names that blocks have.
ACTIVATIONS = {"relu": "relu", "silu": "silu", "gelu": "gelu_erf", "gelu_tanh": "gelu_tanh"}


@dataclass(frozen=True)
class Folded:
    """The factor and the shift of each channel, and what they were made of: tensors, their memory, which nothing else has meanwhile, and
    their versions."""

    scale: Tensor
    shift: Tensor
    read: Sequence[Optional[Tensor]]
    memory: Sequence[Optional[Tensor]]
    versions: Sequence[int]
    eps: float
    # None in the emulator.
    stream: Optional[int]

    def is_current(self, read: Sequence[Optional[Tensor]], eps: float) -> bool:
        """Whether they are those of these tensors as they are now."""
        if eps != self.eps:
            return False
        for now, then, memory, version in zip(read, self.read, self.memory, self.versions):
            if now is not then:
                return False
            if now is not None and memory is not None and (now._version != version or now.data_ptr() != memory.data_ptr()):
                return False
        return True


# By the norm, and by the convolution. Copies of a module have none.
_KNOWN: "weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, Folded]]" = weakref.WeakKeyDictionary()
# What a capture has used so far.
_used: Optional[List[Any]] = None


class Watch:
    """While a graph is captured: remembers which factors it reads. They are not made anew in it; `is_stale` says that it must be captured
    again."""

    def __init__(self) -> None:
        self._used: List[Tuple[Any, Any, Folded]] = []

    def __enter__(self) -> "Watch":
        global _used
        self._before, _used = _used, self._used
        return self

    def __exit__(self, *error: Any) -> None:
        global _used
        _used = self._before

    def is_stale(self) -> bool:
        return any(not folded.is_current(_read(conv, norm), norm.eps) for conv, norm, folded in self._used)


def _read(conv: Any, norm: Any) -> Tuple[Optional[Tensor], ...]:
    return norm.running_mean, norm.running_var, norm.weight, norm.bias, conv.bias


def _made(read: Sequence[Optional[Tensor]], eps: float, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
    """Two launches."""
    mean, var, weight, bias, of_conv = read
    rstd = "rsqrt(add(x0, s0))"
    with torch.no_grad():
        of_scale = [t for t in (var, weight) if t is not None]
        scale = elementwise(rstd if weight is None else f"mul({rstd}, x1)", *of_scale, scalars=[eps], dtype=dtype)
        of_shift, shift = [mean, scale], "neg(x0)"
        if of_conv is not None:
            shift = f"sub(x{len(of_shift)}, x0)"
            of_shift.append(of_conv)
        shift = f"mul({shift}, x1)"
        if bias is not None:
            shift = f"add({shift}, x{len(of_shift)})"
            of_shift.append(bias)
        return scale, elementwise(shift, *of_shift, dtype=dtype)


def vectors(conv: Any, norm: Any, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
    """The factor and the shift of each channel: made once, and again when a tensor that they are made of has changed in place, has moved, or
    is another one."""
    read, eps = _read(conv, norm), norm.eps
    if is_compiling() or any(t is not None and t.is_inference() for t in read):
        return _made(read, eps, dtype)
    cuda = norm.running_mean.is_cuda
    captured = cuda and torch.cuda.is_current_stream_capturing()
    stream = torch.cuda.current_stream(norm.running_mean.device).cuda_stream if cuda else None
    known: Dict[Any, Folded] = _KNOWN.get(norm) or {}  # type: ignore[assignment]
    folded = known.get(conv)
    # Nothing is under way on other streams when a capture begins.
    usable = folded is not None and folded.scale.dtype == dtype and (captured or folded.stream == stream)
    if folded is not None and usable and folded.is_current(read, eps) and not (captured and _used is None):
        if captured and _used is not None:
            _used.append((conv, norm, folded))
        return folded.scale, folded.shift
    made = _made(read, eps, dtype)
    if not captured:
        memory = tuple(t if t is None else t.detach() for t in read)
        versions = tuple(0 if t is None else t._version for t in read)
        folded = Folded(*made, read, memory, versions, eps, stream)
        _KNOWN.setdefault(norm, weakref.WeakKeyDictionary())[conv] = folded
    return made


def fits(conv: Any, norm: Any, x: Any, residual: Optional[Tensor] = None) -> bool:
    """Whether a convolution and the norm behind it, both of ours and without hooks, are one operation in a call."""
    if not is_pair(conv, norm) or norm.training or norm.running_mean is None or not isinstance(x, Tensor):
        return False
    tensors = (x, conv.weight, residual, *_read(conv, norm))
    return not is_recorded(*tensors) and not is_transformed()


def is_pair(conv: Any, norm: Any) -> bool:
    """The same of modules, whatever they are called with."""
    kind = conv._original
    return norm._original is _NORMS.get(kind) and conv.padding_mode == "zeros" and norm.num_features == conv.out_channels


def run(conv: Any, norm: Any, activation: Optional[str], x: Tensor, residual: Optional[Tensor]) -> Tensor:
    dtype = torch.float64 if used_dtype(x) == torch.float64 else torch.float32
    scale, shift = vectors(conv, norm, dtype)
    return _FUNCTIONS[conv._original](
        x, conv.weight, shift, conv.stride, conv.padding, conv.dilation, conv.groups, scale=scale, residual=residual, activation=activation
    )
