"""Scans of PyTorch's operations, for the tests of ours."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def selective_scan(u, delta, A, B, C, D=None, z=None, delta_bias=None, initial_state=None, softplus=True, last_state=False):
    """The definition, position by position; channels come first."""
    B, C = ((t[:, None] if t.dim() == 3 else t) for t in (B, C))
    B, C = (t.repeat_interleave(u.shape[1] // t.shape[1], 1) for t in (B, C))
    step = delta if delta_bias is None else delta + delta_bias[:, None]
    step = F.softplus(step) if softplus else step
    h = u.new_zeros(*u.shape[:2], A.shape[1]) if initial_state is None else initial_state
    found = []
    for t in range(u.shape[2]):
        h = torch.exp(step[..., t, None] * A) * h + (step[..., t] * u[..., t])[..., None] * B[..., t]
        found.append((h * C[..., t]).sum(-1))
    y = torch.stack(found, -1)
    y = y if D is None else y + D[:, None] * u
    y = y if z is None else y * F.silu(z)
    return (y, h) if last_state else y


def chunk_scan(x, dt, A, B, C, D=None, dt_bias=None, initial_states=None, softplus=True, last_state=False):
    """The definition of Mamba 2's, position by position."""
    B, C = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (B, C))
    step = dt if dt_bias is None else dt + dt_bias
    step = F.softplus(step) if softplus else step
    h = x.new_zeros(x.shape[0], *x.shape[2:], B.shape[3]) if initial_states is None else initial_states
    found = []
    for t in range(x.shape[1]):
        h = torch.exp(step[:, t] * A)[..., None, None] * h + (step[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        found.append((h * C[:, t, :, None]).sum(-1))
    y = torch.stack(found, 1)
    y = y if D is None else y + D[:, None] * x
    return (y, h) if last_state else y
