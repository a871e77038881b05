"""Nets that no library has to be there for: the UNet and the decoder of Stable Diffusion 1.5, a bidirectional LSTM, a block as of Mamba 2, and a
tower as of DLRM. Plain PyTorch; attributes are called as those of diffusers."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResnetBlock2D(nn.Module):
    def __init__(self, channels: int, out: int, groups: int, time: Optional[int], eps: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups, channels, eps), nn.GroupNorm(groups, out, eps)
        self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time_emb_proj = None if time is None else nn.Linear(time, out)
        self.conv_shortcut = None if channels == out else nn.Conv2d(channels, out, 1)
        self.nonlinearity = nn.SiLU()

    def forward(self, x: Tensor, temb: Optional[Tensor] = None) -> Tensor:
        hidden_states = self.norm1(x)
        hidden_states = self.nonlinearity(hidden_states)
        hidden_states = self.conv1(hidden_states)
        if self.time_emb_proj is not None:
            hidden_states = hidden_states + self.time_emb_proj(self.nonlinearity(temb))[:, :, None, None]
        hidden_states = self.norm2(hidden_states)
        hidden_states = self.nonlinearity(hidden_states)
        hidden_states = self.conv2(hidden_states)
        return hidden_states + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, context: Optional[int] = None, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(n or width, width, bias=bias) for n in (width, context, context))
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Optional[Tensor] = None) -> Tensor:
        context = x if context is None else context
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.to_q(x), self.to_k(context), self.to_v(context)))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj, self.out = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden_states, gate = self.proj(x).chunk(2, dim=-1)
        return self.out(hidden_states * F.gelu(gate))


class Transformer2D(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, context: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, width, 1e-6)
        self.proj_in, self.proj_out = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attn1, self.attn2 = Attention(width, heads), Attention(width, heads, context)
        self.ff = FeedForward(width)

    def forward(self, image: Tensor, context: Tensor) -> Tensor:
        x = self.proj_in(self.norm(image))
        x = x.permute(0, 2, 3, 1).flatten(1, 2)
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), context)
        x = x + self.ff(self.norm3(x))
        x = x.unflatten(1, image.shape[2:]).permute(0, 3, 1, 2)
        return image + self.proj_out(x)


class UNet(nn.Module):
    """Images [N, 4, H, W], times [N], texts [N, L, context]."""

    def __init__(self, widths: tuple = (320, 640, 1280, 1280), heads: int = 8, groups: int = 32, context: int = 768, layers: int = 2) -> None:
        super().__init__()
        first, time = widths[0], 4 * widths[0]
        self.first = first
        self.time = nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
        self.conv_in = nn.Conv2d(4, first, 3, padding=1)

        def resnet(channels: int, out: int) -> ResnetBlock2D:
            return ResnetBlock2D(channels, out, groups, time, 1e-5)

        def attends(level: int, width: int) -> Optional[Transformer2D]:
            return Transformer2D(width, heads, groups, context) if level + 1 < len(widths) else None

        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels, kept = first, [first]
        for level, width in enumerate(widths):
            for _ in range(layers):
                self.down.append(nn.ModuleList([resnet(channels, width), attends(level, width) or nn.Identity()]))
                channels = width
                kept.append(channels)
            if level + 1 < len(widths):
                self.down.append(nn.ModuleList([nn.Conv2d(channels, channels, 3, stride=2, padding=1)]))
                kept.append(channels)
        self.mid = nn.ModuleList([resnet(channels, channels), Transformer2D(channels, heads, groups, context), resnet(channels, channels)])
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(layers + 1):
                self.up.append(nn.ModuleList([resnet(channels + kept.pop(), width), attends(level, width) or nn.Identity()]))
                channels = width
            if level:
                self.up.append(nn.ModuleList([nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(channels, channels, 3, padding=1)]))
        self.norm, self.act, self.conv_out = nn.GroupNorm(groups, first), nn.SiLU(), nn.Conv2d(first, 4, 3, padding=1)

    @staticmethod
    def _through(blocks: Any, x: Tensor, temb: Tensor, context: Tensor) -> Tensor:
        for block in blocks:
            if isinstance(block, ResnetBlock2D):
                x = block(x, temb)
            elif isinstance(block, Transformer2D):
                x = block(x, context)
            else:
                x = block(x)
        return x

    def forward(self, image: Tensor, times: Tensor, context: Tensor) -> Tensor:
        steps = torch.arange(self.first // 2, device=image.device) * (-math.log(10000) / (self.first // 2))
        angles = times[:, None].float() * steps.exp()
        temb = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(image.dtype))
        x = self.conv_in(image)
        kept = [x]
        for blocks in self.down:
            x = self._through(blocks, x, temb, context)
            kept.append(x)
        x = self._through(self.mid, x, temb, context)
        for blocks in self.up:
            if isinstance(blocks[0], ResnetBlock2D):
                x = torch.cat([x, kept.pop()], 1)
            x = self._through(blocks, x, temb, context)
        return self.conv_out(self.act(self.norm(x)))


class AttentionBlock(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.GroupNorm(groups, channels, 1e-6), Attention(channels, 1, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(x).permute(0, 2, 3, 1).flatten(1, 2)
        return x + self.attention(rows).unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)


class Decoder(nn.Module):
    """Of the autoencoder: latents [N, 4, H, W] to images [N, 3, 8 H, 8 W]."""

    def __init__(self, widths: tuple = (512, 512, 256, 128), groups: int = 32, layers: int = 3) -> None:
        super().__init__()
        channels = widths[0]

        def resnet(channels: int, out: int) -> ResnetBlock2D:
            return ResnetBlock2D(channels, out, groups, None, 1e-6)

        blocks = [nn.Conv2d(4, channels, 3, padding=1), resnet(channels, channels), AttentionBlock(channels, groups), resnet(channels, channels)]
        for level, width in enumerate(widths):
            for _ in range(layers):
                blocks.append(resnet(channels, width))
                channels = width
            if level + 1 < len(widths):
                blocks += [nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(channels, channels, 3, padding=1)]
        blocks += [nn.GroupNorm(groups, channels, 1e-6), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1)]
        self.blocks = nn.Sequential(*blocks)

    def forward(self, latents: Tensor) -> Tensor:
        return self.blocks(latents)


class BiLstm(nn.Module):
    def __init__(self, inputs: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    """x [N, channels, T] under a filter [channels, taps] of each channel that sees no later position, as the package causal-conv1d has it."""
    found = F.conv1d(F.pad(x, (weight.shape[1] - 1, 0)), weight[:, None], bias, groups=x.shape[1])
    return F.silu(found) if activation == "silu" else found


def mamba2_chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    return_final_states: bool = False,
    **_: Any,
) -> Any:
    """The state space of Mamba 2 as products within chunks of time, which are f32 only where they decay. x [N, T, heads, head]; dt
    [N, T, heads]; A, negative, [heads]; B, C [N, T, groups, state]; states [N, heads, head, state]."""
    given, (length, heads, groups) = x, (x.shape[1], x.shape[2], B.shape[2])
    dt = dt if dt_bias is None else dt + dt_bias
    dt = F.softplus(dt) if dt_softplus else dt
    rest = -length % chunk_size
    x, decay, B, C = (
        F.pad(t, (0, 0) * (t.dim() - 2) + (0, rest)).unflatten(1, (-1, chunk_size)) for t in (x * dt[..., None], dt.float() * A.float(), B, C)
    )
    x, decay = x.unflatten(3, (groups, -1)), decay.unflatten(3, (groups, -1))
    sums = decay.cumsum(2)
    within = sums[:, :, :, None] - sums[:, :, None]
    lower = torch.ones(chunk_size, chunk_size, device=x.device, dtype=torch.bool).tril()[..., None, None]
    weights = within.masked_fill(~lower, -math.inf).exp().to(x.dtype)
    y = torch.einsum("nctsg,nctsgh,ncsghp->nctghp", torch.einsum("nctgk,ncsgk->nctsg", C, B), weights, x)
    ends = (sums[:, :, -1:] - sums).exp().to(x.dtype)
    states = torch.einsum("nctgk,nctgh,nctghp->ncghpk", B, ends, x)
    carried, found = torch.zeros_like(states[:, 0]), []
    if initial_states is not None:
        carried = initial_states.to(x.dtype).unflatten(1, (groups, -1))
    for i in range(x.shape[1]):
        found.append(carried)
        carried = carried * sums[:, i, -1].exp().to(x.dtype)[..., None, None] + states[:, i]
    y = y + torch.einsum("nctgk,ncghpk,nctgh->nctghp", C, torch.stack(found, 1), sums.exp().to(x.dtype))
    y = y.flatten(1, 2)[:, :length].flatten(2, 3)
    y = y if D is None else y + D[:, None] * given
    return (y, carried.flatten(1, 2)) if return_final_states else y


class MambaBlock(nn.Module):
    """A mixer as of Mamba 2: a causal convolution of 4 taps, a state space over chunks of time, and a norm behind a gate."""

    def __init__(self, width: int, head: int, state: int, chunk: int) -> None:
        super().__init__()
        self.inner, self.head, self.state, self.chunk = 2 * width, head, state, chunk
        self.heads = self.inner // head
        channels = self.inner + 2 * state
        self.before = nn.RMSNorm(width)
        self.in_proj = nn.Linear(width, self.inner + channels + self.heads, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, 4, groups=channels, padding=3)
        self.act, self.norm = nn.SiLU(), nn.RMSNorm(self.inner)
        self.dt_bias, self.A_log = nn.Parameter(torch.full((self.heads,), -3.0)), nn.Parameter(torch.zeros(self.heads))
        self.out_proj = nn.Linear(self.inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z, mixed, dt = self.in_proj(self.before(x)).split([self.inner, self.inner + 2 * self.state, self.heads], -1)
        mixed = causal_conv1d_fn(mixed.mT, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation="silu").mT
        values, b, c = mixed.split([self.inner, self.state, self.state], -1)
        values, b, c = values.unflatten(-1, (self.heads, self.head)), b[:, :, None], c[:, :, None]
        y = mamba2_chunk_scan(values, dt, -self.A_log.exp(), b, c, chunk_size=self.chunk, dt_bias=self.dt_bias, dt_softplus=True)
        return x + self.out_proj(self.norm(y.flatten(2) * self.act(z)))


class Dlrm(nn.Module):
    """Dense features [N, dense] and indices [N, tables] to a logit [N]."""

    def __init__(self, dense: int, tables: int, rows: int, width: int, bottom: tuple, top: tuple) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        pairs = (tables + 1) * tables // 2
        self.bottom = self._tower(dense, *bottom, width)
        self.top = self._tower(width + pairs, *top)
        self.head = nn.Linear(top[-1], 1)

    @staticmethod
    def _tower(*widths: int) -> nn.Sequential:
        layers = [part for n, m in zip(widths, widths[1:]) for part in (nn.Linear(n, m), nn.LayerNorm(m), nn.GELU())]
        return nn.Sequential(*layers)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = torch.stack([x, *(table(indices[:, i]) for i, table in enumerate(self.tables))], 1)
        at = torch.tril_indices(rows.shape[1], rows.shape[1], -1, device=x.device)
        pairs = (rows @ rows.mT)[:, at[0], at[1]]
        return self.head(self.top(torch.cat([x, pairs], 1))).squeeze(-1)
