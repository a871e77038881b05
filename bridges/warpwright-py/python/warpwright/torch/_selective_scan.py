"""Scans of selective state spaces as operators; `warpwright.torch` has them for users."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, ShapeError, misshapen, renamed
from ._common import accumulator, narrow, row_major, statistics
from ._images import expect_rank
from ._registry import Operator, direct, refuse_tangents
from ._scans import operators, wide

_TENSORS = (
    "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, Tensor? initial_state"
)
_PARAMETERS = "bool delta_softplus, bool channels_last"
# Those that operators take with their positions as the second dimension where channels come last.
_ALONG_TIME = ("u", "delta", "B", "C", "z")


def _chunk(dtype: torch.dtype) -> int:
    """Positions from one saved state to the next."""
    return 8 if dtype == torch.float64 else 32


def _forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, z: Any, delta_bias: Any, initial_state: Any,
    delta_softplus: bool, channels_last: bool, **options: Any,
) -> Any:  # fmt: skip
    return _native.selective_scan(
        u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state=initial_state, channels_last=channels_last, **options
    )


def _gradients(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, z: Any, delta_bias: Any, initial_state: Any, states: Tensor,
    dy: Tensor, *rest: Any,
) -> Any:  # fmt: skip
    *dlast_state, delta_softplus, channels_last = rest
    return _native.selective_scan_backward(
        u, delta, A, B, C, states, dy, *dlast_state, D=D, z=z, delta_bias=delta_bias, delta_softplus=delta_softplus,
        initial_state=initial_state, channels_last=channels_last,
    )  # fmt: skip


def _fake(u: Tensor, delta: Tensor, A: Tensor, *rest: Any) -> Tuple[Tensor, Tensor, Tensor]:
    length = u.shape[1] if rest[-1] else u.shape[2]
    chunk = _chunk(u.dtype)
    states = statistics(u, (u.shape[0], (length + chunk - 1) // chunk, *A.shape))
    return row_major(u), statistics(u, (u.shape[0], *A.shape)), states


_selective_scan, _selective_scan_with_state = operators("selective_scan", _TENSORS, _PARAMETERS, _forward, _gradients, _fake)


def _as_given(error: Error, op: str, channels_last: bool) -> Error:
    """The error of an operator, in the shapes that the user gave."""
    expected, got = error.expected, error.got
    if channels_last and isinstance(error, ShapeError) and error.argument in _ALONG_TIME and isinstance(expected, tuple):
        return misshapen(op, error.argument, *((s[0], *s[2:], s[1]) for s in (got, expected)))
    return renamed(error, op)


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Optional[Tensor] = None,
    z: Optional[Tensor] = None,
    delta_bias: Optional[Tensor] = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    initial_state: Optional[Tensor] = None,
) -> Any:
    """The scan of selective state spaces that Mamba has, with the arguments of `selective_scan_fn` of the package mamba_ssm:
    `y[t] = (C[t] . h[t] + D u[t]) silu(z[t])` of states `h[t] = exp(s[t] A) h[t - 1] + s[t] B[t] u[t]` with time steps `s[t]` that are
    `delta[t] + delta_bias`, or its softplus with delta_softplus.

    u: [N, C, L], also with its channels last in memory, as the result then is; delta and the gate z: like u; B, C: [N, state, L], or
    [N, groups, state, L], each group with as many neighbouring channels; all of one dtype. A: [C, state], D and delta_bias: [C],
    initial_state: [N, C, state], which are taken in float32, in float64 beside float64. The state of a channel has 1 to 64 numbers.
    With return_last_state the result is a pair, with the state behind the last position, which has a gradient, too. Differentiable in
    all tensors.
    """
    op = "selective_scan"
    for name, tensor in (("u", u), ("delta", delta), ("z", z)):
        if tensor is not None:
            expect_rank(op, name, tensor, 3)
    for name, tensor in (("B", B), ("C", C)):
        expect_rank(op, name, tensor, 3, 4)
    u, delta, B, C, z = narrow(u, delta, B, C, z)
    A, D, delta_bias, initial_state = wide(accumulator(u.dtype), A, D, delta_bias, initial_state)
    B, C = (t.unsqueeze(1) if t.dim() == 3 else t for t in (B, C))
    last = u.stride(1) == 1 and not u.is_contiguous()
    if last:
        u, delta, z = (None if t is None else t.mT for t in (u, delta, z))
        B, C = (t.movedim(3, 1) for t in (B, C))
    function = _selective_scan_with_state if return_last_state else _selective_scan
    try:
        found = function(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus, last)
    except Error as error:
        raise _as_given(error, op, last) from None
    if not last:
        return found
    return (found[0].mT, found[1]) if return_last_state else found.mT


def _update(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, D: Any, z: Any, delta_bias: Any, delta_softplus: bool
) -> Tensor:
    return _native.selective_scan_update(u, delta, A, B, C, state, D, z, delta_bias, delta_softplus, channels_last=True)


_update_operator = Operator(
    "selective_scan_update(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor(a!) state, Tensor? D, Tensor? z, "
    "Tensor? delta_bias, bool delta_softplus) -> Tensor",
    native=_update,
    fake=lambda u, *rest: row_major(u),
).register().without_gradient()
# Of errors of that operator.
_UPDATE_NAMES = {"u": "x", "delta": "dt", "delta_bias": "dt_bias"}


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Optional[Tensor] = None,
    z: Optional[Tensor] = None,
    dt_bias: Optional[Tensor] = None,
    dt_softplus: bool = False,
) -> Tensor:
    """`selective_scan` of the next position behind a state, which becomes that behind it, with the arguments of the function of this name of the
    package mamba_ssm, in its module `ops.triton.selective_state_update`.

    x, dt and z: [N, C], or [N, heads, C]; state: [N, C, state], or [N, heads, C, state], written in place, of any dtype and strides, without a
    copy if it is of float32 and contiguous; A: [C, state], or [heads, C, state]; B and C: [N, state], or [N, groups, state], with a state of 1 to 256 numbers; D and dt_bias: [C], or [heads, C]. Has no
    gradient, and refuses tensors that require one where gradients are recorded.
    """
    op = "selective_state_update"
    tensors = state, x, dt, A, B, C, D, z, dt_bias
    refuse_tangents(op, tensors)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise RuntimeError(f"warpwright: {op} has no gradient: call it under torch.no_grad()")
    heads = state.dim() == 4
    expect_rank(op, "state", state, 3, 4)
    for name, tensor, rank in (("x", x, 2), ("dt", dt, 2), ("A", A, 2), ("D", D, 1), ("z", z, 2), ("dt_bias", dt_bias, 1)):
        if tensor is not None:
            expect_rank(op, name, tensor, rank + heads)
    for name, tensor in (("B", B), ("C", C)):
        expect_rank(op, name, tensor, 2, 3)
    x, dt, B, C, z = narrow(x, dt, B, C, z)
    sums, shape = accumulator(x.dtype), x.shape
    is_direct = state.dtype == sums and state.is_contiguous()
    kept = state if is_direct else state.to(sums).contiguous()
    if heads:
        x, dt, z, kept = (None if t is None else t.flatten(1, 2) for t in (x, dt, z, kept))
        A, D, dt_bias = (None if t is None else t.flatten(0, 1) for t in (A, D, dt_bias))
    A, D, dt_bias = wide(sums, A, D, dt_bias)
    # One position is with its channels last what it is with them first, and they are read in vectors then.
    x, dt, z = (None if t is None else t.unsqueeze(1) for t in (x, dt, z))
    B, C = (t[:, None, None] if t.dim() == 2 else t.unsqueeze(1) for t in (B, C))
    arguments = x, dt, A, B, C, kept, D, z, dt_bias
    function = _update if direct(*arguments) else _update_operator
    try:
        y = function(*arguments, dt_softplus)
    except Error as error:
        raise _of_update(error, op) from None
    if not is_direct:
        state.copy_(kept.view(state.shape))
    return y.view(shape)


def _of_update(error: Error, op: str) -> Error:
    """The error of the operator, whose samples have a dimension for positions more."""
    name, expected, got = _UPDATE_NAMES.get(error.argument or "", error.argument), error.expected, error.got
    if isinstance(error, ShapeError) and error.argument in _ALONG_TIME and isinstance(expected, tuple):
        return misshapen(op, str(name), *((s[0], *s[2:]) for s in (got, expected)))
    return renamed(error, op, **_UPDATE_NAMES)
