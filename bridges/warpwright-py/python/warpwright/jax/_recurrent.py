"""Recurrent nets over sequences; `warpwright.jax` has them for users."""

from typing import Any, Callable, Optional, Sequence, Tuple

import jax
from jax import Array
from jax.typing import ArrayLike

from .._errors import ArgumentError
from ._call import Operand, call
from ._common import documented, given
from ._differentiable import differentiable

Weights = Sequence[Sequence[ArrayLike]]


def _net(cell: str) -> Callable[..., Any]:
    """A net of cells named `cell` as a function of x, weights, h0, c0, lengths, its form and other options."""
    has_c = cell == "lstm"

    def states(h: Any, c: Any) -> Any:
        return [given(Operand, state) for state in ((h, c) if has_c else (h,))]

    def forward(x: Array, weights: Any, h0: Any, c0: Any, lengths: Any, *, save: bool, **options: Any) -> Any:
        operands = Operand(x), jax.tree.map(Operand, weights), *states(h0, c0)
        found = call(cell, *operands, lengths=given(Operand, lengths), training=save, **options)
        if not save:
            return found, None
        *results, reserve = found
        return tuple(results), (x, weights, h0, c0, lengths, results[0], reserve)

    def backward(saved: Any, dys: Any, wanted: Any, **options: Any) -> Any:
        x, weights, h0, c0, lengths, y, reserve = saved
        operands = Operand(x), jax.tree.map(Operand, weights), Operand(y), Operand(reserve), *map(Operand, dys)
        options |= {"lengths": given(Operand, lengths), "input_gradient": wanted[0]}
        dx, dh0, dc0, dweights = call(f"{cell}_backward", *operands, *states(h0, c0), **options)
        like = jax.tree.structure(weights)
        return dx, jax.tree.unflatten(like, jax.tree.leaves(dweights)), dh0, dc0, None

    operation = differentiable(forward, backward)

    def function(
        x: ArrayLike, weights: Weights, h0: Any, c0: Any, lengths: Any, bidirectional: Any, batch_first: Any, **options: Any
    ) -> Any:
        weights = tuple(tuple(one) for one in weights)
        if not weights:
            raise ArgumentError(f"{cell}: weights is empty", op=cell, argument="weights", expected="arrays of each layer", got=())
        options |= {"bidirectional": bool(bidirectional), "batch_first": bool(batch_first)}
        return operation(x, weights, h0, c0, lengths, **options)

    return function


_lstm, _gru, _rnn = _net("lstm"), _net("gru"), _net("rnn")


def lstm(
    x: ArrayLike,
    weights: Weights,
    h0: Optional[ArrayLike] = None,
    c0: Optional[ArrayLike] = None,
    *,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Optional[ArrayLike] = None,
    precision: str = "full",
) -> Tuple[Array, Array, Array]:
    return _lstm(x, weights, h0, c0, lengths, bidirectional, batch_first, precision=precision)


def gru(
    x: ArrayLike,
    weights: Weights,
    h0: Optional[ArrayLike] = None,
    *,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Optional[ArrayLike] = None,
    precision: str = "full",
) -> Tuple[Array, Array]:
    return _gru(x, weights, h0, None, lengths, bidirectional, batch_first, precision=precision)


def rnn(
    x: ArrayLike,
    weights: Weights,
    h0: Optional[ArrayLike] = None,
    *,
    nonlinearity: str = "tanh",
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Optional[ArrayLike] = None,
    precision: str = "full",
) -> Tuple[Array, Array]:
    return _rnn(x, weights, h0, None, lengths, bidirectional, batch_first, precision=precision, nonlinearity=nonlinearity)


for _function in (lstm, gru, rnn):
    documented(
        _function,
        _function.__name__,
        "Here without dropout and training. Lengths are cut to the steps that there are on the host too. Differentiable in everything but lengths.",
    )
