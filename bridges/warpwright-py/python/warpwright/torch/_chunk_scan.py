"""The scan of Mamba 2 as operators; `warpwright.torch` has it for users."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, renamed
from ._common import gradient_of, narrow, row_major, statistics
from ._differentiable import Differentiable
from ._images import expect_rank
from ._registry import Operator

_TENSORS = "Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? dt_bias, Tensor? initial_state"
_INPUTS = 8
# Positions from one saved state to the next.
_CHUNK = 64


def _forward(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, dt_bias: Any, initial_state: Any, dt_softplus: bool, **options: Any
) -> Any:
    return _native.chunk_scan(x, dt, A, B, C, D, dt_bias, dt_softplus, initial_state=initial_state, **options)


def _gradients(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, dt_bias: Any, initial_state: Any, states: Tensor, dy: Tensor, *rest: Any
) -> Any:
    *dlast_state, dt_softplus = rest
    return _native.chunk_scan_backward(
        x, dt, A, B, C, states, dy, *dlast_state, D=D, dt_bias=dt_bias, dt_softplus=dt_softplus, initial_state=initial_state
    )


def _fake_gradients(*arguments: Any) -> Any:
    return tuple(None if given is None else gradient_of(given, arguments[0]) for given in arguments[:_INPUTS])


def _operator(last_state: bool) -> Any:
    name = "chunk_scan_with_state" if last_state else "chunk_scan"

    def fake(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, *rest: Any) -> Any:
        batch, length, heads, head_dim = x.shape
        state = (heads, head_dim, B.shape[3])
        states = x.new_empty((batch, (length + _CHUNK - 1) // _CHUNK, *state))
        return (row_major(x), statistics(x, (batch, *state)), states) if last_state else (row_major(x), states)

    return Differentiable(
        Operator(
            f"{name}({_TENSORS}, bool dt_softplus) -> ({'Tensor, ' if last_state else ''}Tensor, Tensor)",
            native=lambda *arguments: _forward(*arguments, last_state=last_state, training=True),
            fake=fake,
        ),
        Operator(
            f"{name}_backward({_TENSORS}, Tensor states, Tensor dy, {'Tensor dlast_state, ' if last_state else ''}bool dt_softplus) "
            f"-> ({', '.join(['Tensor'] * _INPUTS)})",
            native=_gradients,
            fake=_fake_gradients,
        ),
        save=lambda inputs, found: (*inputs[:_INPUTS], found[-1]),
        inference=lambda *arguments: _forward(*arguments, last_state=last_state),
        results=2 if last_state else 1,
    ).function()


_chunk_scan, _chunk_scan_with_state = _operator(False), _operator(True)


def _wide(*tensors: Any) -> Tuple[Any, ...]:
    """Parameters and states in float32; what is not of floats stays for the operator to refuse."""
    return tuple(t.float() if t is not None and t.is_floating_point() else t for t in tensors)


def chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: Optional[int] = None,
    *,
    D: Optional[Tensor] = None,
    dt_bias: Optional[Tensor] = None,
    initial_states: Optional[Tensor] = None,
    dt_softplus: bool = False,
    return_final_states: bool = False,
) -> Any:
    """The scan of Mamba 2 by products over chunks of positions, with arguments of `mamba_chunk_scan_combined` of the package mamba_ssm:
    `y[t] = h[t] C[t] + D x[t]` of states `h[t] = exp(s[t] A) h[t - 1] + s[t] x[t] B[t]^T` with time steps `s[t]` that are `dt[t] + dt_bias`,
    or its softplus with dt_softplus.

    x: [N, L, heads, head_dim] of float16 or bfloat16; dt: [N, L, heads]; B, C: [N, L, groups, state], each group with as many neighbouring
    heads; all of one dtype, and taken as they lie if they are parts of a tensor whose positions are rows. A, D, dt_bias: [heads], and
    initial_states: [N, heads, head_dim, state], which are taken in float32. A head has 1 to 128 elements, each with 1 to 256 numbers of
    state. chunk_size has no effect: chunks have 64 positions. With return_final_states the result is a pair, with the state behind the
    last position, of float32, which has a gradient, too. Differentiable in all tensors. On GPUs from sm_80 on.
    """
    op = "chunk_scan"
    for name, tensor, rank in (("x", x, 4), ("dt", dt, 3), ("B", B, 4), ("C", C, 4)):
        expect_rank(op, name, tensor, rank)
    x, dt, B, C = narrow(x, dt, B, C)
    A, D, dt_bias, initial_states = _wide(A, D, dt_bias, initial_states)
    function = _chunk_scan_with_state if return_final_states else _chunk_scan
    try:
        return function(x, dt, A, B, C, D, dt_bias, initial_states, dt_softplus)
    except Error as error:
        raise renamed(error, op, initial_state="initial_states") from None
