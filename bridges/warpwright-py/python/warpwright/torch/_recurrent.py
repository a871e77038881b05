"""Recurrent nets as operators; `warpwright.torch` has them for users."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _native
from ._common import accumulator, narrow, random_numbers, row_major
from ._registry import Operator, direct, refuse_tangents, register_gradient
from ._transforms import is_wrapped

Weights = Sequence[Sequence[Tensor]]

_TENSORS = "Tensor x, Tensor[] weights, Tensor? h0, Tensor? c0, Tensor? lengths, Tensor? random"
_PARAMETERS = "str cell, int biases, bool projected, bool bidirectional, bool batch_first, float dropout_p, str precision"
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _grouped(weights: Sequence[Tensor], biases: int, projected: bool) -> List[Sequence[Tensor]]:
    each = 2 + biases + projected
    return [weights[i : i + each] for i in range(0, len(weights), each)]


def _call(name: str, cell: str, weights: Any, states: Any, *before: Any, **options: Any) -> Any:
    """A native function, with the states that the cell has and by its name."""
    if cell.startswith("rnn"):
        options["nonlinearity"] = cell[4:]
    function = getattr(_native, cell.split("_")[0] + name)
    states = states if cell == "lstm" else states[:1]
    x, *rest = before
    return function(x, weights, *rest, *states, **options)


def _options(
    bidirectional: bool, batch_first: bool, lengths: Any, dropout_p: float, random: Any, precision: str
) -> Dict[str, Any]:
    options = {"bidirectional": bidirectional, "batch_first": batch_first, "lengths": lengths, "precision": precision}
    return options | {"dropout_p": dropout_p, "random": random} if dropout_p else options


def _forward(
    x: Tensor,
    weights: Sequence[Tensor],
    h0: Optional[Tensor],
    c0: Optional[Tensor],
    lengths: Optional[Tensor],
    random: Optional[Tensor],
    cell: str,
    biases: int,
    projected: bool,
    bidirectional: bool,
    batch_first: bool,
    dropout_p: float,
    precision: str,
    training: bool,
) -> Tuple[Tensor, ...]:
    options = _options(bidirectional, batch_first, lengths, dropout_p, random, precision) | {"training": training}
    y, h_n, *rest = _call("", cell, _grouped(weights, biases, projected), (h0, c0), x, **options)
    c_n = rest.pop(0) if cell == "lstm" else x.new_empty(0)
    return y, h_n, c_n, rest[0] if training else x.new_empty(0)


def _backward(
    x: Tensor,
    weights: Sequence[Tensor],
    h0: Optional[Tensor],
    c0: Optional[Tensor],
    lengths: Optional[Tensor],
    random: Optional[Tensor],
    y: Tensor,
    reserve: Tensor,
    dy: Optional[Tensor],
    dh_n: Optional[Tensor],
    dc_n: Optional[Tensor],
    cell: str,
    biases: int,
    projected: bool,
    bidirectional: bool,
    batch_first: bool,
    dropout_p: float,
    precision: str,
    input_gradient: bool,
) -> List[Tensor]:
    """The gradients of x, h0, c0 and the weights; an empty tensor where there is none."""
    gradients = (dy, dh_n, dc_n) if cell == "lstm" else (dy, dh_n)
    options = _options(bidirectional, batch_first, lengths, dropout_p, random, precision)
    grouped = _grouped(weights, biases, projected)
    *found, all_weights = _call(
        "_backward", cell, grouped, (h0, c0), x, y, reserve, *gradients, input_gradient=input_gradient, **options
    )
    found = [x.new_empty(0) if g is None else g for g in found]
    return [*found, *(g for one in all_weights for g in one)]


def _reserve(x: Tensor, hidden: int, output: int, layers: int, directions: int, cell: str) -> Any:
    """Elements of what the backward pass needs: gates, and what a unit carries, of each layer and direction, and the results
    between layers; each part begins at a multiple of 16 bytes."""
    rows, wide = x.shape[0] * x.shape[1], accumulator(x.dtype).itemsize
    part = lambda elements, size: (elements * size + 15) // 16 * 16  # noqa: E731
    each = part(rows * _GATES[cell] * hidden, wide) + (part(rows * hidden, wide) if cell in ("lstm", "gru") else 0)
    between = part(rows * directions * output, x.dtype.itemsize)
    return (layers * directions * each + (layers - 1) * between) // wide


def _fake(
    x: Tensor,
    weights: Sequence[Tensor],
    h0: Any,
    c0: Any,
    lengths: Any,
    random: Any,
    cell: str,
    biases: int,
    projected: bool,
    bidirectional: bool,
    batch_first: bool,
    dropout_p: float,
    precision: str,
    training: bool,
) -> Tuple[Tensor, ...]:
    directions, hidden, output = 1 + bidirectional, weights[1].shape[0] // _GATES[cell], weights[1].shape[1]
    count = len(weights) // (2 + biases + projected)
    batch = x.shape[0 if batch_first else 1]
    c_n = x.new_empty((count, batch, hidden) if cell == "lstm" else 0)
    length = _reserve(x, hidden, output, count // directions, directions, cell) if training else 0
    reserve = x.new_empty(length, dtype=accumulator(x.dtype) if training else None)
    return x.new_empty((*x.shape[:2], directions * output)), x.new_empty((count, batch, output)), c_n, reserve


def _fake_backward(
    x: Tensor, weights: Sequence[Tensor], h0: Optional[Tensor], c0: Optional[Tensor], *rest: Any
) -> List[Tensor]:
    def like(tensor: Optional[Tensor]) -> Tensor:
        return x.new_empty(0) if tensor is None else row_major(tensor)

    return [like(x if rest[-1] else None), like(h0), like(c0), *map(row_major, weights)]


_operator = Operator(
    f"recurrent({_TENSORS}, {_PARAMETERS}, bool training) -> (Tensor, Tensor, Tensor, Tensor)", _forward, _fake
).register()
_gradients = Operator(
    f"recurrent_backward({_TENSORS}, Tensor y, Tensor reserve, Tensor? dy, Tensor? dh_n, Tensor? dc_n, {_PARAMETERS},"
    " bool input_gradient) -> Tensor[]",
    _backward,
    _fake_backward,
).register()


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, weights, h0, c0, lengths, random, *parameters, _ = inputs
    y, _, c_n, reserve = output
    ctx.save_for_backward(x, h0, c0, lengths, random, y, reserve, *weights)
    ctx.mark_non_differentiable(reserve, *([] if parameters[0] == "lstm" else [c_n]))
    ctx.set_materialize_grads(False)
    ctx.parameters = parameters


def _differentiate(ctx: Any, dy: Any, dh_n: Any, dc_n: Any, _: Any) -> Any:
    x, h0, c0, lengths, random, y, reserve, *weights = ctx.saved_tensors
    cell = ctx.parameters[0]
    dc_n = dc_n if cell == "lstm" else None
    whole = (None if g is None else g.contiguous() for g in (dy, dh_n, dc_n))
    need = ctx.needs_input_grad[0]
    # Behind a transform that is over, only the dispatcher takes its tensors; a result is one if any argument was.
    run = _backward if direct(x, *weights) and not is_wrapped(y) else _gradients.outer
    with torch.no_grad():
        dx, dh0, dc0, *dweights = run(x, weights, h0, c0, lengths, random, y, reserve, *whole, *ctx.parameters, need)
    return (
        dx if need else None,
        dweights,
        None if h0 is None else dh0,
        None if c0 is None else dc0,
        *[None] * (3 + len(ctx.parameters)),
    )


_differentiable = register_gradient(_operator, _differentiate, _setup_context)


def recurrent(
    cell: str,
    x: Tensor,
    weights: Weights,
    states: Tuple[Optional[Tensor], Optional[Tensor]],
    bidirectional: bool,
    batch_first: bool,
    lengths: Optional[Tensor],
    dropout_p: float = 0.0,
    random: Optional[Tensor] = None,
    precision: str = "full",
) -> Tuple[Tensor, Tensor, Tensor]:
    """A net of cells named `cell` over sequences: y, h_n and, of an LSTM, c_n. Elements that are dropped between layers are those
    of `random`, which is drawn from PyTorch's generator if it is None."""
    if not weights:
        raise ValueError(f"{cell}: weights is empty")
    projected = len(weights[0]) > 2 and weights[0][-1].dim() == 2
    biases = len(weights[0]) - 2 - projected
    if any(len(one) != len(weights[0]) for one in weights):
        raise ValueError(f"{cell}: weights holds different numbers of tensors for its layers")
    x, h0, c0, *flat = narrow(x, *states, *(w for one in weights for w in one))
    if dropout_p and random is None:
        random = random_numbers(x)
    tensors = [t for t in (x, h0, c0, *flat) if t is not None]
    refuse_tangents(cell, tensors)
    training = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    parameters = cell, biases, projected, bidirectional, batch_first, dropout_p, precision
    if not training and direct(*tensors):
        with torch.no_grad():
            return _forward(x, flat, h0, c0, lengths, random, *parameters, False)[:3]
    return _differentiable(x, flat, h0, c0, lengths, random, *parameters, training)[:3]


def lstm(
    x: Tensor,
    weights: Weights,
    h0: Optional[Tensor] = None,
    c0: Optional[Tensor] = None,
    *,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    random: Optional[Tensor] = None,
    precision: str = "full",
) -> Tuple[Tensor, Tensor, Tensor]:
    return recurrent("lstm", x, weights, (h0, c0), bidirectional, batch_first, lengths, dropout_p, random, precision)


def gru(
    x: Tensor,
    weights: Weights,
    h0: Optional[Tensor] = None,
    *,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    random: Optional[Tensor] = None,
    precision: str = "full",
) -> Tuple[Tensor, Tensor]:
    options = bidirectional, batch_first, lengths, dropout_p, random, precision
    return recurrent("gru", x, weights, (h0, None), *options)[:2]


def rnn(
    x: Tensor,
    weights: Weights,
    h0: Optional[Tensor] = None,
    *,
    nonlinearity: str = "tanh",
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    random: Optional[Tensor] = None,
    precision: str = "full",
) -> Tuple[Tensor, Tensor]:
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"rnn: nonlinearity is '{nonlinearity}', expected 'tanh' or 'relu'")
    options = bidirectional, batch_first, lengths, dropout_p, random, precision
    return recurrent(f"rnn_{nonlinearity}", x, weights, (h0, None), *options)[:2]


for _function in (lstm, gru, rnn):
    _native_doc = getattr(_native, _function.__name__).__doc__
    _function.__doc__ = f"{_native_doc}\n\nHere without training, out and stream; random is drawn if it is None.\nDifferentiable in everything but lengths and random."
