"""Convolutions along time, selective scans and scans of Mamba 2 that blocks of transformers call as functions; `warpwright.torch.patch` is for users.

Whether a function is what its name says is tried on numbers, with the function of PyTorch's operations that it stands for: libraries have a
copy in each model.
"""

import inspect
from typing import Any, Callable, Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ._causal_conv import causal_conv1d, causal_conv1d_update
from ._chunk_scan import chunk_scan
from ._images import is_recorded
from ._registry import is_compiling
from ._selective_scan import selective_scan, selective_state_update

_STEPS_HAVE_NONE = "steps have no gradient"


# What was found out, by the kind of function. A tracer can look, but not try.
_KNOWN: Dict[Tuple[str, Any], bool] = {}


def is_one(helper: str, function: Any) -> bool:
    """Whether a function computes what the helper of this name stands for."""
    known = _KNOWN.get((helper, function))
    if known is None:
        known = not is_compiling() and _is_as_expected(_TRIED[helper], function)
        if not is_compiling():
            _KNOWN[helper, function] = known
    return known


def _is_as_expected(pairs: Callable[..., Any], function: Any) -> bool:
    drawn = torch.Generator().manual_seed(1)
    try:
        with torch.no_grad():
            tried = pairs(inspect.unwrap(function), lambda *shape: torch.randn(shape, generator=drawn))
            return all(torch.allclose(found, exact, rtol=1e-4, atol=1e-5) for found, exact in tried)
    except Exception:
        # One that wants more is another.
        return False


def _convolves(function: Any, draw: Any) -> Any:
    x, weight, bias = draw(1, 2, 5), draw(2, 3), draw(2)
    plain = F.conv1d(F.pad(x, (2, 0)), weight[:, None], bias, groups=2)
    return [(function(x, weight, bias), plain), (function(x, weight, bias, activation="silu"), F.silu(plain))]


def _convolves_step(function: Any, draw: Any) -> Any:
    x, state, weight, bias = draw(1, 2, 1), draw(1, 2, 3), draw(2, 3), draw(2)
    whole = torch.cat([state, x], -1)
    plain = (whole[..., 1:] * weight).sum(-1, keepdim=True) + bias[:, None]
    return [(function(x, state, weight, bias, activation="silu"), F.silu(plain)), (state, whole[..., 1:])]


def _step(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, bias: Tensor) -> Any:
    """The definition, for one position."""
    step = F.softplus(delta + bias)[..., None]
    h = torch.exp(step * A) * h + step * B[:, None] * u[..., None]
    return ((h * C[:, None]).sum(-1) + D * u) * F.silu(z), h


def _scans(function: Any, draw: Any) -> Any:
    u, delta, z, A, B, C, D, bias = *(draw(1, 2, 3) for _ in range(3)), -draw(2, 4).exp(), draw(1, 4, 3), draw(1, 4, 3), draw(2), draw(2)
    options = {"D": D, "z": z, "delta_bias": bias, "delta_softplus": True, "return_last_state": True}
    h, exact = torch.zeros(1, 2, 4), []
    for t in range(3):
        y, h = _step(h, u[..., t], delta[..., t], A, B[..., t], C[..., t], D, z[..., t], bias)
        exact.append(y)
    return zip(function(u, delta, A, B, C, **options), (torch.stack(exact, -1), h))


def _scans_step(function: Any, draw: Any) -> Any:
    state, x, dt, z, A, B, C, D, bias = draw(1, 2, 4), *(draw(1, 2) for _ in range(3)), -draw(2, 4).exp(), draw(1, 4), draw(1, 4), draw(2), draw(2)
    y, h = _step(state, x, dt, A, B, C, D, z, bias)
    return [(function(state, x, dt, A, B, C, D, z=z, dt_bias=bias, dt_softplus=True), y), (state, h)]


def _scans_chunks(function: Any, draw: Any) -> Any:
    x, dt, A, B, C, D, bias = draw(1, 3, 4, 2), draw(1, 3, 4), -draw(4).exp(), draw(1, 3, 2, 5), draw(1, 3, 2, 5), draw(4), draw(4)
    first = draw(1, 4, 2, 5)
    h, exact, step = first, [], F.softplus(dt + bias)
    for t in range(3):
        b, c = (rows[:, t].repeat_interleave(2, 1)[:, :, None] for rows in (B, C))
        h = torch.exp(step[:, t] * A)[..., None, None] * h + (step[:, t, :, None] * x[:, t])[..., None] * b
        exact.append((h * c).sum(-1) + D[:, None] * x[:, t])
    options = {"D": D, "z": None, "dt_bias": bias, "dt_softplus": True, "initial_states": first, "return_final_states": True}
    return zip(function(x, dt, A, B, C, chunk_size=2, dt_limit=(0.0, float("inf")), **options), (torch.stack(exact, 1), h))


def _scans_heads_step(function: Any, draw: Any) -> Any:
    state, x, dt, A, B, C, D, bias = draw(1, 4, 2, 5), draw(1, 4, 2), draw(1, 4), -draw(4).exp(), draw(1, 2, 5), draw(1, 2, 5), draw(4), draw(4)
    b, c = (rows.repeat_interleave(2, 1)[:, :, None] for rows in (B, C))
    step = F.softplus(dt + bias)[..., None, None]
    h = torch.exp(step * A[:, None, None]) * state + step * x[..., None] * b
    y = (h * c).sum(-1) + D[:, None] * x
    alike = [t[..., None].expand(*t.shape, 2) for t in (dt, D, bias)]
    of_state = A[:, None, None].expand(4, 2, 5)
    found = function(state, x, alike[0], of_state, B, C, alike[1], z=None, dt_bias=alike[2], dt_softplus=True)
    return [(found, y), (state, h)]


# Results of a function on numbers, and what they are where it is what the helper stands for.
_TRIED: Dict[str, Callable[..., Any]] = {
    "convolve": _convolves,
    "convolve_step": _convolves_step,
    "scan": _scans,
    "scan_step": _scans_step,
    "scan_chunks": _scans_chunks,
    "scan_heads_step": _scans_heads_step,
}
HELPERS = tuple(_TRIED)


def _rule(helper: str, function: Any) -> Callable[..., Optional[str]]:
    return lambda module, x: None if is_one(helper, function) else "a function of another kind"


def convolve(
    block: Any,
    function: Callable[..., Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
    **options: Any,
) -> Tensor:
    """A convolution along time. options: `seq_idx`, and what the function leaves out."""
    theirs = lambda: function(x, weight, bias, activation=activation, **options)  # noqa: E731
    ours = lambda: causal_conv1d(x, weight, bias, options.get("seq_idx"), activation=activation)  # noqa: E731
    reason = None if options.get("cu_seqlens") is None else "cu_seqlens are not taken"
    return block._warpwright_block["causal_conv1d"].run(ours, theirs, block, x, _rule("convolve", function), reason)


def convolve_step(
    block: Any,
    function: Callable[..., Tensor],
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
) -> Tensor:
    """The same of the next positions, behind a state."""
    theirs = lambda: function(x, state, weight, bias, activation=activation)  # noqa: E731
    ours = lambda: causal_conv1d_update(x, state, weight, bias, activation)  # noqa: E731
    reason = _STEPS_HAVE_NONE if is_recorded(x, state, weight, bias) else None
    return block._warpwright_block["causal_conv1d"].run(ours, theirs, block, x, _rule("convolve_step", function), reason)


def scan(block: Any, function: Callable[..., Any], u: Tensor, delta: Tensor, *rest: Any, **options: Any) -> Any:
    """A selective scan. options: also how PyTorch would make it."""
    named = {name: value for name, value in options.items() if not name.startswith("use_")}
    theirs = lambda: function(u, delta, *rest, **options)  # noqa: E731
    ours = lambda: selective_scan(u, delta, *rest, **named)  # noqa: E731
    return block._warpwright_block["selective_scan"].run(ours, theirs, block, u, _rule("scan", function))


def scan_step(block: Any, function: Callable[..., Tensor], state: Tensor, x: Tensor, *rest: Any, **options: Any) -> Tensor:
    """The next position of a selective scan, behind a state."""
    return _step_behind(block, ("selective_scan", "scan_step"), function, (state, x, *rest), options)


def scan_heads_step(block: Any, function: Callable[..., Tensor], state: Tensor, x: Tensor, *rest: Any, **options: Any) -> Tensor:
    """The same of the scan of Mamba 2. options: also what PyTorch's function leaves out."""
    return _step_behind(block, ("chunk_scan", "scan_heads_step"), function, (state, x, *rest), options)


# Arguments of steps that ours has by name.
_OF_STEPS = ("D", "z", "dt_bias", "dt_softplus")


def _step_behind(block: Any, place: Tuple[str, str], function: Callable[..., Tensor], tensors: Any, options: Dict[str, Any]) -> Tensor:
    kind, helper = place
    named = {name: options[name] for name in _OF_STEPS if name in options}
    theirs = lambda: function(*tensors, **options)  # noqa: E731
    ours = lambda: selective_state_update(*tensors, **named)  # noqa: E731
    reason = _STEPS_HAVE_NONE if is_recorded(*tensors, *filter(torch.is_tensor, options.values())) else None
    return block._warpwright_block[kind].run(ours, theirs, block, tensors[1], _rule(helper, function), reason)


# Arguments of functions of chunks that ours has.
_OF_CHUNKS = ("chunk_size", "D", "dt_bias", "initial_states", "dt_softplus", "return_final_states")


def scan_chunks(block: Any, function: Callable[..., Any], x: Tensor, dt: Tensor, *rest: Any, **options: Any) -> Any:
    """The scan of Mamba 2. options: also what ours leaves out, and how PyTorch would make it."""

    def ours() -> Any:
        named = {name: options[name] for name in _OF_CHUNKS if name in options}
        least, most = options.get("dt_limit") or (0.0, float("inf"))
        softplus = named.get("dt_softplus", False)
        # Steps behind softplus are not below 0.
        if softplus and least <= 0 and most == float("inf"):
            return chunk_scan(x, dt, *rest, **named)
        bias = named.pop("dt_bias", None)
        named["dt_softplus"] = False
        steps = dt if bias is None else dt + bias.to(dt.dtype)
        return chunk_scan(x, (F.softplus(steps) if softplus else steps).clamp(least, most), *rest, **named)

    theirs = lambda: function(x, dt, *rest, **options)  # noqa: E731
    replacement = block._warpwright_block["chunk_scan"]
    return replacement.run(ours, theirs, block, x, _rule("scan_chunks", function), _left_of_chunks(x, options))


def _left_of_chunks(x: Tensor, options: Dict[str, Any]) -> Optional[str]:
    """Why ours does not take such arguments."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"{str(x.dtype).split('.')[-1]} is not taken"
    given = (name for name in ("z", "seq_idx", "cu_seqlens") if options.get(name) is not None)
    return next((f"{name} is not taken" for name in given), None)
