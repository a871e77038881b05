"""Modules with the names and parameters of `torch.nn`, over the operators of `warpwright.torch`."""

import torch
from torch import Tensor

from . import _operators

__all__ = ["GEGLU", "GELU", "LeakyReLU", "ReLU", "SiLU", "Sigmoid", "SwiGLU", "Tanh"]


def _refuse_in_place(inplace: bool) -> None:
    if inplace:
        raise ValueError("inplace=True is not supported: the result is a new tensor")


class ReLU(torch.nn.Module):
    """`max(x, 0)`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        _refuse_in_place(inplace)

    def forward(self, x: Tensor) -> Tensor:
        return _operators.relu(x)


class LeakyReLU(torch.nn.Module):
    """`x` if `x > 0`, else `negative_slope x`."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        _refuse_in_place(inplace)
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return _operators.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class GELU(torch.nn.Module):
    """`x Phi(x)`; with approximate="tanh" its approximation by tanh."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate is {approximate!r}, expected 'none' or 'tanh'")
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return _operators.gelu_tanh(x) if self.approximate == "tanh" else _operators.gelu_erf(x)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(torch.nn.Module):
    """`x / (1 + exp(-x))`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        _refuse_in_place(inplace)

    def forward(self, x: Tensor) -> Tensor:
        return _operators.silu(x)


class Sigmoid(torch.nn.Module):
    """`1 / (1 + exp(-x))`."""

    def forward(self, x: Tensor) -> Tensor:
        return _operators.sigmoid(x)


class Tanh(torch.nn.Module):
    """`tanh(x)`."""

    def forward(self, x: Tensor) -> Tensor:
        return _operators.tanh(x)


class SwiGLU(torch.nn.Module):
    """`silu(gate) up`."""

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return _operators.swiglu(gate, up)


class GEGLU(torch.nn.Module):
    """`gelu(gate) up`; with approximate="tanh" by the approximation."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate is {approximate!r}, expected 'none' or 'tanh'")
        self.approximate = approximate

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return _operators.geglu_tanh(gate, up) if self.approximate == "tanh" else _operators.geglu(gate, up)
