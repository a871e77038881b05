"""Recurrent nets over sequences, and single cells: what each library calls for a case.

Shape: (steps, batch, input, hidden), of cells (batch, input, hidden). Two biases, a state of zeros. Every contender is a
CUDA graph: what launches step by step is measured on the device and not on the host. Options: `precision`, "tf32" of f32.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

from .norms import Draw, Function, Problem
from .suites import Case

# The reference in f64 is not in one piece.
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


class Recurrent(Problem):
    """PyTorch calls cuDNN, whose weights lie in one piece of memory, as those of its modules do."""

    differentiable = 5
    whole = in_graph = True

    def __init__(self, case: Case, draw: Draw) -> None:
        self.case = case
        *_, inputs, hidden = case.shape
        # Products of f32 are to be those of f32, unless the case says otherwise.
        torch.backends.cudnn.allow_tf32 = case.factors == "tf32"
        self.options = {"precision": "tf32"} if case.factors == "tf32" else {}
        kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[case.op.split("_")[0]]
        x = draw(case.shape[:-1])
        module = kind(inputs, hidden, device=x.device, dtype=x.dtype)
        with torch.no_grad():
            for parameter in module.parameters():
                # The variance that PyTorch begins with.
                parameter.copy_(draw(tuple(parameter.shape)) / math.sqrt(3 * hidden))
        module.flatten_parameters()
        self.inputs = [x, *(parameter.detach() for parameter in module.parameters())]
        self.states: dict[torch.dtype, torch.Tensor] = {}

    def state(self, x: torch.Tensor) -> torch.Tensor:
        """The state of zeros, made once."""
        if x.dtype not in self.states:
            batch, hidden = self.case.shape[-3], self.case.shape[-1]
            self.states[x.dtype] = x.new_zeros((1, batch, hidden))
        return self.states[x.dtype]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        state, options = self.state(x), (True, 1, 0.0, torch.is_grad_enabled(), False, False)
        if self.case.op == "lstm":
            return torch._VF.lstm(x, (state, state), list(rest), *options)[0]
        return torch._VF.gru(x, state, list(rest), *options)[0]

    def ours(self, ww: Any) -> Function:
        x, *weights = self.inputs
        function = getattr(ww, self.case.op)
        return lambda out=None: function(x, [weights], out=out, **self.options)

    def ours_recorded(self, wt: Any) -> Function:
        function = getattr(wt, self.case.op)
        return lambda x, *weights: function(x, [weights], **self.options)[0]


class Cell(Recurrent):
    """A step from a state that is given."""

    called = "lstm"

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        state = self.state(x)[0]
        return torch._VF.lstm_cell(x, (state, state), *rest)[0]

    def ours(self, ww: Any) -> Function:
        x, *weights = self.inputs
        state, x = self.state(x), x[None]
        # Of y, h and c a cell has no y.
        return lambda out=None: ww.lstm(x, [weights], state, state, out=out)


PROBLEMS: dict[str, type[Problem]] = {"lstm": Recurrent, "gru": Recurrent, "lstm_cell": Cell}
