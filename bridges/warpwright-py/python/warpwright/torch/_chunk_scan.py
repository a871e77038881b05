"""The scan of Mamba 2 as operators; `warpwright.torch` has it for users."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, renamed
from ._common import narrow, row_major, statistics
from ._images import expect_rank
from ._scans import operators, wide

_TENSORS = "Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? dt_bias, Tensor? initial_state"
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


def _fake(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, *rest: Any) -> Tuple[Tensor, Tensor, Tensor]:
    batch, length, heads, head_dim = x.shape
    state = (heads, head_dim, B.shape[3])
    states = x.new_empty((batch, (length + _CHUNK - 1) // _CHUNK, *state))
    return row_major(x), statistics(x, (batch, *state)), states


_chunk_scan, _chunk_scan_with_state = operators("chunk_scan", _TENSORS, "bool dt_softplus", _forward, _gradients, _fake)


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
    A, D, dt_bias, initial_states = wide(torch.float32, A, D, dt_bias, initial_states)
    function = _chunk_scan_with_state if return_final_states else _chunk_scan
    try:
        return function(x, dt, A, B, C, D, dt_bias, initial_states, dt_softplus)
    except Error as error:
        raise renamed(error, op, initial_state="initial_states") from None
