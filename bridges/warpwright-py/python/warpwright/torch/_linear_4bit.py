"""Linear layers with 4-bit weights; `warpwright.torch` and `warpwright.torch.nn` have them for users."""

import json
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _native
from ._differentiable import Differentiable
from ._operators import quantize_fp4, quantize_nf4
from ._registry import Operator

_WEIGHT = (
    "Tensor codes, Tensor scales, Tensor? zero_points, Tensor? nested_absmax, Tensor? offset, Tensor? tensor_scale, "
    "Tensor? group_index"
)
_PARAMETERS = "SymInt n, SymInt k, str format, SymInt group_size"


def _weight(
    codes: Tensor,
    scales: Tensor,
    zero_points: Any,
    nested_absmax: Any,
    offset: Any,
    tensor_scale: Any,
    group_index: Any,
    n: int,
    k: int,
    format: str,
    group_size: int,
) -> Dict[str, Any]:
    """The weight among the arguments of the native functions."""
    return {
        "codes": codes,
        "scales": scales,
        "shape": (n, k),
        "format": format,
        "group_size": group_size,
        "zero_points": zero_points,
        "nested_absmax": nested_absmax,
        "offset": offset,
        "tensor_scale": tensor_scale,
        "group_index": group_index,
    }


def _product(x: Tensor, bias: Optional[Tensor], *weight: Any) -> Tensor:
    return _native.matmul_4bit(x, **_weight(*weight), bias=bias)


def _gradients(*arguments: Any) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    *tensors, dy, n, k, format, group_size, wanted = arguments
    dx = _native.matmul_4bit_backward(dy, **_weight(*tensors, n, k, format, group_size)) if wanted[0] else None
    return dx, dy.flatten(0, -2).sum(0) if wanted[1] else None


def _fake_gradients(codes: Tensor, scales: Tensor, *rest: Any) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    _, _, _, _, _, dy, n, k, _, _, wanted = rest
    return dy.new_empty((*dy.shape[:-1], k)) if wanted[0] else None, dy.new_empty((n,)) if wanted[1] else None


_linear = Differentiable(
    Operator(
        f"linear_4bit(Tensor x, Tensor? bias, {_WEIGHT}, {_PARAMETERS}) -> Tensor",
        native=_product,
        fake=lambda x, *rest: x.new_empty((*x.shape[:-1], rest[8])),
    ),
    Operator(
        f"linear_4bit_backward({_WEIGHT}, Tensor dy, {_PARAMETERS}, bool[] output_mask) -> (Tensor, Tensor)",
        native=_gradients,
        fake=_fake_gradients,
    ),
    save=lambda inputs, found: inputs[2:9],
).function()


def linear_4bit(
    input: Tensor,
    codes: Tensor,
    scales: Tensor,
    shape: Sequence[int],
    bias: Optional[Tensor] = None,
    *,
    format: str = "nf4",
    group_size: int = 64,
    zero_points: Optional[Tensor] = None,
    nested_absmax: Optional[Tensor] = None,
    offset: Optional[Tensor] = None,
    tensor_scale: Optional[Tensor] = None,
    group_index: Optional[Tensor] = None,
) -> Tensor:
    """`torch.nn.functional.linear` with a weight of 4 bits, as `warpwright.matmul_4bit` describes it. Differentiable in input and bias."""
    n, k = shape
    weight = codes, scales, zero_points, nested_absmax, offset, tensor_scale, group_index
    return _linear(input, bias, *weight, n, k, format, group_size)


_KEY = "weight.quant_state.bitsandbytes__"


class Linear4bit(torch.nn.Module):
    """A linear layer with an NF4 or FP4 weight: the state dict is that of `bitsandbytes.nn.Linear4bit`, both ways, and codes stay as they are.

    `from_linear` makes one of a `torch.nn.Linear`. The weight is a constant: gradients are of the input and of the bias.
    """

    codes: Tensor
    scales: Tensor
    nested_absmax: Optional[Tensor]
    offset: Optional[Tensor]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        quant_type: str = "nf4",
        blocksize: int = 64,
        compress_statistics: bool = True,
        compute_dtype: Optional[torch.dtype] = None,
        device: Any = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if quant_type not in ("nf4", "fp4"):
            raise ValueError(f"Linear4bit: quant_type is {quant_type!r}, expected 'nf4' or 'fp4'")
        self.in_features, self.out_features = in_features, out_features
        self.quant_type, self.blocksize, self.compress_statistics = quant_type, blocksize, compress_statistics
        self.compute_dtype, self.dtype = compute_dtype, dtype
        groups = (in_features * out_features + blocksize - 1) // blocksize
        zeros = lambda *shape, **kinds: torch.zeros(*shape, device=device, **kinds)  # noqa: E731
        self.register_buffer("codes", zeros((in_features * out_features + 1) // 2, dtype=torch.uint8), persistent=False)
        of_scales = torch.uint8 if compress_statistics else torch.float32
        self.register_buffer("scales", zeros(groups, dtype=of_scales), persistent=False)
        nested = zeros((groups + 255) // 256) if compress_statistics else None
        self.register_buffer("nested_absmax", nested, persistent=False)
        self.register_buffer("offset", zeros(1) if compress_statistics else None, persistent=False)
        self.bias = torch.nn.Parameter(zeros(out_features, dtype=dtype)) if bias else None

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, **options: Any) -> "Linear4bit":
        """The layer with its weight quantized; options are those of the constructor from `quant_type` on."""
        weight = linear.weight.detach()
        options = {"device": weight.device, "dtype": weight.dtype, **options}
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None, **options)
        quantize = quantize_nf4 if layer.quant_type == "nf4" else quantize_fp4
        layer.codes, scales = quantize(weight, layer.blocksize)
        if layer.compress_statistics:
            layer.scales, layer.nested_absmax, layer.offset = _native.quantize_nested(scales)
        else:
            layer.scales = scales
        if linear.bias is not None:
            layer.bias = torch.nn.Parameter(linear.bias.detach().clone())
        return layer

    def forward(self, input: Tensor) -> Tensor:
        dtype = self.compute_dtype or input.dtype
        y = linear_4bit(
            input.to(dtype),
            self.codes,
            self.scales,
            (self.out_features, self.in_features),
            None if self.bias is None else self.bias.to(dtype),
            format=self.quant_type,
            group_size=self.blocksize,
            nested_absmax=self.nested_absmax,
            offset=self.offset,
        )
        return y.to(input.dtype)

    def extra_repr(self) -> str:
        shape = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{shape}, quant_type={self.quant_type}, blocksize={self.blocksize}"

    def _apply(self, fn: Any, recurse: bool = True) -> "Linear4bit":
        # A change of type is of the bias: scales are f32 whatever x is.
        kept = {name: getattr(self, name) for name in ("scales", "nested_absmax", "offset")}
        super()._apply(fn, recurse)
        for name, before in kept.items():
            if before is not None and before.is_floating_point():
                setattr(self, name, before.to(self.codes.device))
        return self

    def _save_to_state_dict(self, destination: Dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        state: Dict[str, Any] = {
            "quant_type": self.quant_type,
            "blocksize": self.blocksize,
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": [self.out_features, self.in_features],
        }
        put = lambda key, value: destination.__setitem__(prefix + key, value)  # noqa: E731
        put("weight", self.codes.unsqueeze(1))
        put("weight.absmax", self.scales)
        put("weight.quant_map", _table(self.quant_type).to(self.codes.device))
        if self.nested_absmax is not None and self.offset is not None:
            put("weight.nested_absmax", self.nested_absmax)
            put("weight.nested_quant_map", _dynamic_map().to(self.codes.device))
            state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=self.offset.item())
        packed = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        put(f"weight.quant_state.bitsandbytes__{self.quant_type}", packed)

    def _load_from_state_dict(
        self,
        state_dict: Dict[str, Any],
        prefix: str,
        local_metadata: Dict[str, Any],
        strict: bool,
        missing_keys: List[str],
        unexpected_keys: List[str],
        error_msgs: List[str],
    ) -> None:
        mine = {key: state_dict[key] for key in state_dict if key.startswith(prefix + "weight")}
        rest = {key: value for key, value in state_dict.items() if key not in mine}
        super()._load_from_state_dict(
            rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        found = {key.removeprefix(prefix): value for key, value in mine.items()}
        states = [key for key in found if key.startswith(_KEY)]
        if "weight" not in found or "weight.absmax" not in found or len(states) != 1:
            missing_keys.append(prefix + "weight")
            return
        state = json.loads(bytes(found[states[0]].cpu().tolist()))
        if tuple(state["shape"]) != (self.out_features, self.in_features):
            error_msgs.append(f"{prefix}weight stands for {state['shape']}, expected {[self.out_features, self.in_features]}")
            return
        if state["quant_type"] not in ("nf4", "fp4") or state.get("nested_blocksize", 256) != 256:
            error_msgs.append(f"{prefix}weight is {state}, expected nf4 or fp4 with nested blocks of 256")
            return
        nested = "weight.nested_absmax" in found
        maps = [("weight.quant_map", _table(state["quant_type"])), ("weight.nested_quant_map", _dynamic_map())]
        for key, expected in maps:
            if key in found and not torch.equal(found[key].float().cpu(), expected):
                error_msgs.append(f"{prefix}{key} is not the table of bitsandbytes")
                return
        device = self.codes.device
        self.quant_type, self.blocksize, self.compress_statistics = state["quant_type"], state["blocksize"], nested
        self.dtype = getattr(torch, state["dtype"])
        # Other types in which the bytes were stored are theirs.
        self.codes = found["weight"].to(device).contiguous().view(torch.uint8).flatten()
        self.scales = found["weight.absmax"].to(device)
        self.nested_absmax = found["weight.nested_absmax"].to(device) if nested else None
        self.offset = torch.tensor([state["nested_offset"]], device=device) if nested else None


def _numbers(format: str) -> List[float]:
    """The numbers of the 16 codes."""
    codes = torch.arange(16, dtype=torch.uint8)
    dequantize = _native.dequantize_nf4 if format == "nf4" else _native.dequantize_fp4
    return dequantize((codes << 4 | codes), torch.ones(1), (32,), 32)[::2].tolist()


_tables: Dict[str, Tensor] = {}


def _table(format: str) -> Tensor:
    if format not in _tables:
        _tables[format] = torch.tensor(_numbers(format))
    return _tables[format]


def _dynamic_map() -> Tensor:
    """The signed dynamic map: what nested codes stand for, times their maximum."""
    if "nested" not in _tables:
        codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
        _tables["nested"] = _native.dequantize_nested(codes, torch.ones(1), torch.zeros(1))
    return _tables["nested"]
