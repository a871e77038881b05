"""Images at other extents as an operator; `warpwright.torch` has it for users."""

from typing import Any, List, Optional

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, refused, renamed
from ._images import each, expect_rank, linear_operator, suggests_channels_last

# The native name of each mode, and the numbers of dimensions that it has images of.
_MODES = {
    "nearest": ("nearest", (3, 4, 5)),
    "nearest-exact": ("nearest_exact", (3, 4, 5)),
    "linear": ("linear", (3,)),
    "bilinear": ("linear", (4,)),
    "trilinear": ("linear", (5,)),
    "bicubic": ("cubic", (4,)),
    "area": ("area", (3, 4, 5)),
}

_resize = linear_operator(
    "resize",
    {"output": "SymInt[]", "scale": "float[]?", "mode": "str", "align_corners": "bool"},
    (_native.resize, _native.resize_backward),
    lambda image, output, *_: output,
)


def _factors(scale_factor: Any, dims: int) -> List[float]:
    given = list(scale_factor) if isinstance(scale_factor, (tuple, list)) else [scale_factor] * dims
    if len(given) != dims or not all(0 < factor < float("inf") for factor in given):
        raise refused("interpolate", "scale_factor", scale_factor, f"a positive number, or one for each of {dims} dimensions")
    return [float(factor) for factor in given]


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: Optional[bool] = None,
    recompute_scale_factor: Optional[bool] = None,
    antialias: bool = False,
) -> Tensor:
    """`torch.nn.functional.interpolate` without antialias. Modes: nearest, nearest-exact, linear, bilinear, trilinear, bicubic, area.

    Images with their channels last in memory are read as they are, and the result lies as they do. float32, float64, float16 or bfloat16.
    Differentiable in input.
    """
    op = "interpolate"
    expect_rank(op, "input", input, 3, 4, 5)
    rank = input.dim()
    native, ranks = _MODES.get(mode, ("", ()))
    if rank not in ranks:
        expected = " or ".join(repr(name) for name, (_, known) in _MODES.items() if rank in known)
        raise refused(op, "mode", mode, f"{expected} for {rank} dimensions")
    if antialias:
        raise refused(op, "antialias", antialias, "False: there is no filter against aliasing")
    if align_corners is not None and native not in ("linear", "cubic"):
        raise refused(op, "align_corners", align_corners, f"None with mode {mode!r}")
    if (size is None) == (scale_factor is None):
        raise refused(op, "size", size, "None beside a scale_factor" if size is not None else "extents, or a scale_factor")
    scale = None
    if size is None:
        factors = _factors(scale_factor, rank - 2)
        output = [torch.sym_int(n * factor) for n, factor in zip(input.shape[2:], factors)]
        # The mean of the cells that an output cell covers goes by extents alone.
        scale = None if recompute_scale_factor or native == "area" else factors
    elif recompute_scale_factor:
        raise refused(op, "recompute_scale_factor", recompute_scale_factor, "False beside a size")
    else:
        output = each(op, "size", size, rank - 2, 1)
    try:
        return _resize(input, output, scale, native, bool(align_corners), suggests_channels_last(input))
    except Error as error:
        raise renamed(error, op, x="input", output="size", scale="scale_factor") from None
