"""Scans of selective state spaces: what each library calls for a case.

Shape: (batch, channels, positions), with `D`, gate, bias and `softplus`; option `state_size`, the numbers of a channel's state. Every contender is a
CUDA graph: what launches position by position is measured on the device and not on the host.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .contender import installed
from .norms import Draw, Function, Problem, channels_last
from .suites import Case


class SelectiveScan(Problem):
    """PyTorch goes from position to position, in 32 bits or more, as transformers does where there is no kernel; the package mamba_ssm has one."""

    differentiable = 8
    whole = in_graph = True

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        batch, channels, length = case.shape
        state = case.option("state_size")
        delta, z = draw(case.shape), draw(case.shape)
        if case.option("channels_last"):
            delta, z = channels_last(delta), channels_last(z)
        sums = torch.float64 if self.x.dtype == torch.float64 else torch.float32
        A, D, bias = (draw(shape).to(sums) for shape in ((channels, state), (channels,), (channels,)))
        B, C = (draw((batch, state, length)) for _ in range(2))
        # Rates with which states neither vanish nor grow.
        self.inputs += [delta, -torch.exp(A / 2), B, C, D, z, bias]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        delta, A, B, C, D, z, bias = rest
        u = x.to(A.dtype)
        step = F.softplus(delta.to(A.dtype) + bias[:, None])
        h, found = u.new_zeros((*u.shape[:2], A.shape[1])), []
        # All positions at once: the gradient of an index would be as large as all of them.
        for s, x_t, b, c in zip(step.unbind(-1), (step * u).unbind(-1), B.unbind(-1), C.unbind(-1)):
            h = torch.exp(s[..., None] * A) * h + x_t[..., None] * b[:, None]
            found.append((h * c[:, None]).sum(-1))
        y = torch.stack(found, -1) + D[:, None] * u
        return (y * F.silu(z.to(A.dtype))).to(x.dtype)

    def ours(self, ww: Any) -> Function:
        u, delta, A, B, C, *rest = self.inputs
        options = {"delta_softplus": True}
        if self.case.option("channels_last"):
            # Of a view with positions before channels the result is one, too.
            u, delta, z = u.mT, delta.mT, rest[1].mT
            B, C = (t.movedim(-1, 1)[:, :, None].contiguous() for t in (B, C))
            return lambda out=None: ww.selective_scan(
                u, delta, A, B, C, rest[0], z, rest[2], channels_last=True, out=None if out is None else out.mT, **options
            ).mT
        B, C = B[:, None], C[:, None]
        return lambda out=None: ww.selective_scan(u, delta, A, B, C, *rest, out=out, **options)

    def ours_recorded(self, wt: Any) -> Function:
        return lambda *inputs: wt.selective_scan(*inputs, delta_softplus=True)

    def others(self) -> dict[str, Function]:
        if not installed("mamba_ssm"):
            return {}
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

        return {"mamba_ssm": lambda *inputs: selective_scan_fn(*inputs, delta_softplus=True)}


PROBLEMS: dict[str, type[Problem]] = {"selective_scan": SelectiveScan}
