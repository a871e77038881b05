"""Embeddings as operators; `warpwright.torch` has them for users."""

from typing import Any, Optional

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, refused, renamed
from ._differentiable import Differentiable
from ._registry import Operator


def _gradient(indices: Tensor, dy: Tensor, num_embeddings: int, padding_idx: int, scale_grad_by_freq: bool) -> Tensor:
    padding = None if padding_idx < 0 else padding_idx
    return _native.embedding_backward(
        dy, indices, num_embeddings, padding_idx=padding, scale_grad_by_freq=scale_grad_by_freq
    )


_embedding = Differentiable(
    Operator(
        "embedding(Tensor weight, Tensor indices, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor",
        native=lambda weight, indices, *_: _native.embedding(weight, indices),
        fake=lambda weight, indices, *_: weight.new_empty((*indices.shape, weight.shape[1])),
    ),
    Operator(
        "embedding_backward(Tensor indices, Tensor dy, SymInt num_embeddings, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor",
        native=_gradient,
        fake=lambda indices, dy, num_embeddings, *_: dy.new_empty((num_embeddings, dy.shape[-1])),
    ),
    save=lambda inputs, found: inputs[1:2],
    noted=lambda inputs: (inputs[0].shape[0], *inputs[2:]),
).function()


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: Optional[int] = None,
    max_norm: Optional[float] = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`torch.nn.functional.embedding`, without max_norm and sparse. Differentiable in weight, whose gradient is the same in every run.

    An index that is no row is refused on the CPU and gives NaN on a GPU; see `warpwright.validate_indices`.
    """
    op = "embedding"
    if max_norm is not None:
        raise refused(op, "max_norm", max_norm, "None: call torch.embedding_renorm_ before")
    if sparse:
        raise refused(op, "sparse", sparse, "False: gradients are dense")
    row = -1
    if padding_idx is not None:
        row = padding_idx + weight.shape[0] if padding_idx < 0 else padding_idx
        if not 0 <= row < weight.shape[0]:
            raise refused(op, "padding_idx", padding_idx, f"a row of {weight.shape[0]}")
    try:
        return _embedding(weight, input, row, scale_grad_by_freq)
    except Error as error:
        raise renamed(error, op, indices="input") from None


class Embedding(torch.nn.Embedding):
    """`torch.nn.Embedding` over `warpwright.torch.embedding`: without max_norm and sparse."""

    def forward(self, input: Tensor) -> Tensor:
        limits = self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        return embedding(input, self.weight, self.padding_idx, *limits)
