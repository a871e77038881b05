"""`torch.nn.LSTM` and its kin over the operators of `warpwright.torch`."""

from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ._recurrent import recurrent

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"]

State = Union[Tensor, Tuple[Tensor, Tensor]]


def _states(hx: Any) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    return tuple(hx) if isinstance(hx, (tuple, list)) else (hx, None)


class _Net(torch.nn.RNNBase):
    """The common part of the nets. Parameters, their names and their initial values are those of `torch.nn`, whose own modules they
    do not derive from, because the compiler leaves those alone. One keyword is ours: `precision`, "full" or "tf32"."""

    def __init__(self, *args: Any, precision: str = "full", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.precision = precision

    def flatten_parameters(self) -> None:
        """Nothing: each weight stays where it is."""

    @property
    def _cell(self) -> str:
        return self.mode.lower()

    def _check(self, x: Tensor, states: Any) -> None:
        self.check_input(x, None)
        for state, what in zip(states, ("hidden", "cell")):
            if state is not None:
                expected = self.get_expected_hidden_size(x, None)
                if what == "cell":
                    # The base class knows hidden states alone, which may be projected.
                    expected = (*expected[:-1], self.hidden_size)
                self.check_hidden_size(state, expected, f"Expected {what} size {{}}, got {{}}")
        if self.mode == "LSTM" and (states[0] is None) != (states[1] is None):
            raise ValueError("LSTM: hx is a pair of tensors, or None")

    def _run(self, x: Tensor, states: Any, batch_first: bool, lengths: Optional[Tensor]) -> Tuple[Tensor, ...]:
        dropout = self.dropout if self.training and self.num_layers > 1 else 0.0
        options = self.bidirectional, batch_first, lengths, dropout, None, self.precision
        return recurrent(self._cell, x, self.all_weights, states, *options)

    def _packed(self, packed: PackedSequence, hx: Any) -> Any:
        # In the order in which the sequences are packed: the longest first.
        plain = PackedSequence(packed.data, packed.batch_sizes)
        x, lengths = pad_packed_sequence(plain)
        states = _states(hx)
        if packed.sorted_indices is not None:
            states = tuple(None if s is None else s.index_select(1, packed.sorted_indices) for s in states)
        y, *ends = self._run(x, states, False, lengths.to(x.device, torch.int32))
        y = pack_padded_sequence(y, lengths)
        if packed.unsorted_indices is not None:
            ends = [e.index_select(1, packed.unsorted_indices) if e.numel() else e for e in ends]
        return PackedSequence(y.data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices), ends

    def forward(self, input: Any, hx: Optional[State] = None) -> Any:  # noqa: A002
        if isinstance(input, PackedSequence):
            y, ends = self._packed(input, hx)
            return y, tuple(ends) if self.mode == "LSTM" else ends[0]
        if input.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__}: expected input to be 2D or 3D, got {input.dim()}D")
        lone = input.dim() == 2
        states = _states(hx)
        batch_at = 0 if self.batch_first else 1
        if lone:
            input = input.unsqueeze(batch_at)  # noqa: A001
            states = tuple(None if s is None else s.unsqueeze(1) for s in states)
        self._check(input, states)
        y, *ends = self._run(input, states, self.batch_first, None)
        if lone:
            y, ends = y.squeeze(batch_at), [e.squeeze(1) if e.numel() else e for e in ends]
        return y, tuple(ends) if self.mode == "LSTM" else ends[0]


class LSTM(_Net):
    """`torch.nn.LSTM`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)


class GRU(_Net):
    """`torch.nn.GRU`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("GRU", *args, **kwargs)


class RNN(_Net):
    """`torch.nn.RNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNN: nonlinearity is '{nonlinearity}', expected 'tanh' or 'relu'")
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, *args, **kwargs)
        self.nonlinearity = nonlinearity


def _step(module: Any, cell: str, x: Tensor, hx: Any) -> Any:
    """A step of a cell: a sequence of one place."""
    if x.dim() not in (1, 2):
        raise ValueError(f"{type(module).__name__}: expected input to be 1D or 2D, got {x.dim()}D")
    lone = x.dim() == 1
    above = (lambda t: t[None, None]) if lone else (lambda t: t[None])
    weights = [w for w in (module.weight_ih, module.weight_hh, module.bias_ih, module.bias_hh) if w is not None]
    states = tuple(None if s is None else above(s) for s in _states(hx))
    _, h, c = recurrent(cell, above(x), [weights], states, False, False, None)
    below = (lambda t: t[0, 0]) if lone else (lambda t: t[0])
    return (below(h), below(c)) if cell == "lstm" else below(h)


class LSTMCell(torch.nn.LSTMCell):
    """`torch.nn.LSTMCell`."""

    def forward(self, input: Tensor, hx: Optional[Tuple[Tensor, Tensor]] = None) -> Any:  # noqa: A002
        return _step(self, "lstm", input, hx)


class GRUCell(torch.nn.GRUCell):
    """`torch.nn.GRUCell`."""

    def forward(self, input: Tensor, hx: Optional[Tensor] = None) -> Any:  # noqa: A002
        return _step(self, "gru", input, hx)


class RNNCell(torch.nn.RNNCell):
    """`torch.nn.RNNCell`."""

    def forward(self, input: Tensor, hx: Optional[Tensor] = None) -> Any:  # noqa: A002
        return _step(self, f"rnn_{self.nonlinearity}", input, hx)
