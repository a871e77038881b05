"""Uses of `warpwright.torch` that type checkers must accept, and wrong ones, each with an ignored error that must be one. Nothing here runs."""

from __future__ import annotations

import torch
import warpwright.torch as wt
from torch import Tensor
from typing_extensions import assert_type
from warpwright.torch import compiler


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = wt.nn.RMSNorm(64)
        self.up = wt.nn.Linear(64, 128, bias=False)
        self.conv = wt.nn.Conv2d(3, 64, 3, padding="same", precision="tf32")
        self.lstm = wt.nn.LSTM(64, 32, num_layers=2, bidirectional=True)
        self.act = wt.nn.GELU(approximate="tanh")

    def forward(self, x: Tensor) -> Tensor:
        y, (h, c) = self.lstm(self.norm(x))
        out: Tensor = self.act(self.up(y)) + h.sum() + c.sum()
        return out


def functions(x: Tensor, ids: Tensor) -> None:
    assert_type(wt.silu(x), Tensor)
    assert_type(wt.leaky_relu(x, negative_slope=0.2), Tensor)
    assert_type(wt.linear(x, x, None), Tensor)
    assert_type(wt.layer_norm(x, (64,), x, x, 1e-6), Tensor)
    assert_type(wt.cross_entropy(x, ids, label_smoothing=0.1), Tensor)
    assert_type(wt.attention(x, x, x, causal=True), Tensor)
    o, lse = wt.attention(x, x, x, return_lse=True)
    assert_type(lse, Tensor)
    assert_type(wt.cumsum(ids, 0, exclusive=True), Tensor)
    values, indices = wt.topk(x, 2)
    assert_type(values, Tensor)
    y, h_n, c_n = wt.lstm(x, [[x, x, x, x]])
    assert_type(h_n, Tensor)
    assert_type(wt.scaled_dot_product_attention(o, y, c_n, is_causal=True), Tensor)
    assert_type(wt.selective_state_update(x, x, x, x, x, x, dt_softplus=True), Tensor)
    scanned, state = wt.selective_scan(x, x, x, x, x, return_last_state=True, initial_state=x)
    chunked = wt.chunk_scan(x, x, x, x, x, 64, D=x, return_final_states=True)
    print(indices, scanned, state, chunked)

    wt.leaky_relu(x, "0.2")  # type: ignore
    wt.linear(x)  # type: ignore
    wt.layer_norm(x, normalised_shape=64)  # type: ignore
    wt.cross_entropy(x, ids, label_smoothing="0.1")  # type: ignore
    wt.cumsum(x, dim="rows")  # type: ignore
    wt.topk(x, largest=True)  # type: ignore
    wt.chunk_scan(x, x, x, x)  # type: ignore
    wt.selective_scan(x, x, x, x)  # type: ignore
    wt.selective_state_update(x, x, x, x, x, x, softplus=True)  # type: ignore
    wt.gelu(x)  # type: ignore


def models(model: torch.nn.Module, x: Tensor) -> None:
    with wt.patch(model, enable={"linear"}, strict=True) as patched:
        assert_type(patched, wt.Patched)
        print(patched.report())
    optimizer: torch.optim.Optimizer = wt.optim.AdamW(model.parameters(), lr=1e-3)
    assert_type(wt.clip_grad_norm_(model.parameters(), 1.0), Tensor)
    optimizer.step()
    step = wt.graphed(model, warmup=2)
    print(step(x), step.report(), compiler.report())

    wt.patch(model, enabled={"linear"})  # type: ignore
    wt.patch(x)  # type: ignore
    wt.graphed(x)  # type: ignore
    wt.nn.Linear(64)  # type: ignore
    wt.optim.RMSprop(model.parameters())  # type: ignore
