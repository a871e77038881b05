"""Causal depthwise convolutions along time as operators; `warpwright.torch` has them for users."""

from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, misshapen, refused, renamed
from ._common import expect_dtype, narrow
from ._differentiable import Differentiable
from ._images import expect_rank, memory_format
from ._registry import Operator, direct, refuse_tangents

_ACTIVATIONS = {None: None, "silu": "silu", "swish": "silu"}


def _lies_last(x: Tensor) -> bool:
    """Whether x [N, C, L] has its channels last in memory, maybe beside others: a part of what a projection makes."""
    return not x.is_contiguous() and x.stride(1) == 1


def _new(like: Tensor, shape: Sequence[Any], channels_last: bool) -> Tensor:
    """A new tensor [N, C, L]."""
    samples, channels, length = shape
    return like.new_empty((samples, length, channels)).mT if channels_last else like.new_empty((samples, channels, length))


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    initial_states: Optional[Tensor],
    seq_idx: Optional[Tensor],
    activation: Optional[str],
    channels_last: bool,
    **options: Any,
) -> Any:
    return _native.causal_conv1d(
        x, weight, bias, initial_states=initial_states, seq_idx=seq_idx, activation=activation,
        memory_format=memory_format(channels_last), **options,
    )  # fmt: skip


def _gradients(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    initial_states: Optional[Tensor],
    seq_idx: Optional[Tensor],
    dy: Tensor,
    *rest: Any,
) -> Any:
    *of_states, activation, channels_last = rest
    return _native.causal_conv1d_backward(
        x, weight, dy, *of_states, bias=bias, initial_states=initial_states, seq_idx=seq_idx, activation=activation,
        memory_format=memory_format(channels_last),
    )  # fmt: skip


def _states(x: Tensor, weight: Tensor, channels_last: bool) -> Tensor:
    return _new(x, (*x.shape[:2], weight.shape[1] - 1), channels_last)


def _fake_gradients(x: Tensor, weight: Tensor, bias: Any, initial_states: Any, *rest: Any) -> Any:
    last = rest[-1]
    dbias = None if bias is None else bias.new_empty(bias.shape)
    dinitial = None if initial_states is None else _states(x, weight, last)
    return _new(x, x.shape, last), weight.new_empty(weight.shape), dbias, dinitial


def _operator(final_states: bool) -> Any:
    name = "causal_conv1d_with_states" if final_states else "causal_conv1d"
    tensors = "Tensor x, Tensor weight, Tensor? bias, Tensor? initial_states, Tensor? seq_idx"
    parameters = "str? activation, bool channels_last"

    def fake(x: Tensor, weight: Tensor, *rest: Any) -> Any:
        y = _new(x, x.shape, rest[-1])
        return (y, _states(x, weight, rest[-1])) if final_states else y

    return Differentiable(
        Operator(
            f"{name}({tensors}, {parameters}) -> {'(Tensor, Tensor)' if final_states else 'Tensor'}",
            native=lambda *arguments: _forward(*arguments, final_states=final_states),
            fake=fake,
        ),
        Operator(
            f"{name}_backward({tensors}, Tensor dy, {'Tensor dfinal_states, ' if final_states else ''}{parameters}) "
            "-> (Tensor, Tensor, Tensor, Tensor)",
            native=_gradients,
            fake=_fake_gradients,
        ),
        results=2 if final_states else 1,
    ).function()


_causal_conv1d, _causal_conv1d_with_states = _operator(False), _operator(True)


def _activation(op: str, name: Optional[str]) -> Optional[str]:
    if name not in _ACTIVATIONS:
        raise refused(op, "activation", name, "None, 'silu' or 'swish'")
    return _ACTIVATIONS[name]


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    seq_idx: Optional[Tensor] = None,
    initial_states: Optional[Tensor] = None,
    return_final_states: bool = False,
    final_states_out: Optional[Tensor] = None,
    activation: Optional[str] = None,
) -> Any:
    """The convolution along time that Mamba has, with the arguments of the package causal-conv1d: a filter over each channel that sees no
    later position.

    x: [N, C, L], also with its channels last in memory, as the result then is; weight: [C, width] with a width of 2 to 4; bias: [C];
    activation: None, "silu" or "swish". initial_states: the width - 1 positions before the first, [N, C, width - 1]; with
    return_final_states the result is a pair, with the last positions. seq_idx: the number of the sequence of each position, [N, L], of
    integers, negative where there is none; not together with states. All of one dtype. Differentiable in x, weight, bias, initial_states.
    """
    op = "causal_conv1d"
    act = _activation(op, activation)
    expect_rank(op, "x", x, 3)
    if final_states_out is not None and not return_final_states:
        raise refused(op, "return_final_states", return_final_states, "True beside final_states_out")
    x, weight, bias, initial_states = narrow(x, weight, bias, initial_states)
    ids = None if seq_idx is None or seq_idx.is_floating_point() else seq_idx.to(torch.int32)
    tensors = x, weight, bias, initial_states, seq_idx if ids is None else ids
    last = _lies_last(x)
    try:
        if not return_final_states:
            return _causal_conv1d(*tensors, act, last)
        y, states = _causal_conv1d_with_states(*tensors, act, last)
    except Error as error:
        raise renamed(error, op) from None
    return y, states if final_states_out is None else final_states_out.copy_(states)


def _update(
    x: Tensor, states: Tensor, weight: Tensor, bias: Optional[Tensor], activation: Optional[str], channels_last: bool
) -> Tensor:
    form = memory_format(channels_last)
    return _native.causal_conv1d_update(x, states, weight, bias, activation=activation, memory_format=form)


_update_operator = Operator(
    "causal_conv1d_update(Tensor x, Tensor(a!) states, Tensor weight, Tensor? bias, str? activation, bool channels_last) -> Tensor",
    native=_update,
    fake=lambda x, *rest: _new(x, x.shape, rest[-1]),
).register().without_gradient()


def _update_longer(
    op: str, x: Tensor, states: Tensor, weight: Tensor, bias: Optional[Tensor], activation: Optional[str]
) -> Tensor:
    """The same where states have more positions than are read."""
    if states.shape[:2] != x.shape[:2]:
        raise misshapen(op, "conv_state", states.shape, (*x.shape[:2], states.shape[2]))
    expect_dtype(op, "conv_state", states, x.dtype)
    before, length = weight.shape[1] - 1, x.shape[2]
    whole = torch.cat([states, x], -1)
    try:
        y = _causal_conv1d(whole[..., states.shape[2] - before :], weight, bias, None, None, activation, False)
    except Error as error:
        raise renamed(error, op) from None
    states.copy_(whole[..., length:])
    return y[..., before:]


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
) -> Tensor:
    """`causal_conv1d` of the next positions behind states, which become the last positions, with the arguments of the package causal-conv1d.

    x: [N, C], or [N, C, L]; conv_state: [N, C, width - 1], written in place, or more positions than these, of which the last are read; the
    rest as there. Has no gradient, and refuses tensors that require one where gradients are recorded.
    """
    op = "causal_conv1d_update"
    act = _activation(op, activation)
    expect_rank(op, "x", x, 2, 3)
    tensors = x, conv_state, weight, bias
    refuse_tangents(op, tensors)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise RuntimeError(f"warpwright: {op} has no gradient: call it under torch.no_grad()")
    x, weight, bias = narrow(x, weight, bias)
    alone = x.dim() == 2
    x = x.unsqueeze(-1) if alone else x
    if conv_state.dim() == 3 and weight.dim() == 2 and conv_state.shape[2] >= weight.shape[1]:
        y = _update_longer(op, x, conv_state, weight, bias, act)
        return y.squeeze(-1) if alone else y
    tensors = x, conv_state, weight, bias
    function = _update if direct(*tensors) else _update_operator
    try:
        # States are written where they are.
        last = not conv_state.is_contiguous() and conv_state.mT.is_contiguous()
        y = function(*tensors, act, last)
    except Error as error:
        raise renamed(error, op, states="conv_state") from None
    return y.squeeze(-1) if alone else y
