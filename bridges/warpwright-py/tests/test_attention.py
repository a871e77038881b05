"""Attention in `warpwright.torch`, held against PyTorch's in f64."""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402
from conftest import torch_cuda  # noqa: E402

import warpwright.torch as wt  # noqa: E402

BUDGETS = {torch.float32: 3e-6, torch.float64: 1e-12, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def reference(q, k, v, mask, causal, scale):
    """PyTorch's formula in f64; rows that see nothing give zeros."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    s = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(), -math.inf)
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else s + mask
    top = s.detach().amax(-1, keepdim=True).clamp_min(-1e300) if s.shape[-1] else 0
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True)
    return (e / total.masked_fill(total == 0, 1)) @ v


def drawn(r, like):
    """Arguments of `scaled_dot_product_attention`."""
    on_gpu = like["device"] == "cuda"
    most = 9 if on_gpu else 4
    extent = lambda limit: max(1, round(2 ** r.uniform(0, limit)))  # noqa: E731
    kv_heads, group, batch = extent(2), r.choice((1, 1, 2, 3)), extent(2)
    queries, keys = extent(most), extent(most)
    width = 8 * r.randint(1, 32 if on_gpu else 4)
    value_width = width if r.random() < 0.7 else 8 * r.randint(1, 32 if on_gpu else 4)

    def tensor(heads, rows, columns):
        form = r.choice(("plain", "turned", "part"))
        if form == "plain":
            return torch.randn(batch, heads, rows, columns, **like)
        if form == "turned":
            return torch.randn(batch, rows, heads, columns, **like).transpose(1, 2)
        return torch.randn(batch, heads, rows, 3 * columns, **like)[..., columns : 2 * columns]

    q, k = tensor(kv_heads * group, queries, width), tensor(kv_heads, keys, width)
    v = tensor(kv_heads, keys, value_width)
    mask, causal, kind = None, False, r.choice(("none", "causal", "boolean", "additive"))
    shape = [r.choice((1, batch)), r.choice((1, kv_heads * group)), r.choice((1, queries)), keys][r.randint(0, 2) :]
    if kind == "boolean":
        mask = torch.rand(shape, device=like["device"]) < 0.7
    elif kind == "additive":
        mask = torch.randn(shape, **like)
    causal = kind == "causal"
    return q, k, v, mask, causal, r.choice((None, 0.3))


def leaves(tensors, dtype):
    return [t.detach().to(dtype).requires_grad_() for t in tensors]


def check(r, like):
    q, k, v, mask, causal, scale = drawn(r, like)
    about = (like["dtype"], q.shape, k.shape, v.shape, None if mask is None else (mask.shape, mask.dtype), causal)
    ours, wide = leaves((q, k, v), q.dtype), leaves((q, k, v), torch.float64)
    o = wt.scaled_dot_product_attention(*ours, mask, 0.0, causal, scale, enable_gqa=True)
    wide_mask = mask if mask is None or mask.dtype == torch.bool else mask.double()
    exact = reference(*wide, wide_mask, causal, scale)
    assert o.shape == exact.shape and o.dtype == q.dtype, about
    dy = torch.randn_like(o)
    found, expected = torch.autograd.grad(o, ours, dy), torch.autograd.grad(exact, wide, dy.double())
    scales = [float(exact.detach().norm())] + [float(g.norm()) + float(dy.double().norm()) for g in expected]
    for a, b, size in zip([o.detach(), *found], [exact.detach(), *expected], scales):
        error = float((a.double() - b).norm()) / max(size, 1e-30)
        assert error <= BUDGETS[like["dtype"]], (error, about)


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def test_random_cases_in_the_emulator():
    r = random.Random("attention on the host")
    torch.manual_seed(1)
    for number in range(12):
        check(r, {"dtype": DTYPES[number % 4], "device": "cpu"})


def test_random_cases_on_the_gpu():
    torch_cuda()
    r = random.Random("attention on the GPU")
    torch.manual_seed(2)
    for number in range(300):
        check(r, {"dtype": DTYPES[number % 4], "device": "cuda"})


def test_operators(torch_device):
    q, k, v = (torch.randn(1, 3, 2, 8, dtype=torch.float64, device=torch_device) for _ in range(3))
    arguments = (q, k, v, None, None, None, 0.5, True, -1, -1, False, 0.0)
    leaves_ = [t.requires_grad_() for t in (q, k, v)]
    torch.library.opcheck(torch.ops.warpwright.attention.default, (*leaves_, *arguments[3:]))
    assert torch.autograd.gradcheck(lambda *x: wt.attention(*x, causal=True, softcap=2.0), leaves_)


def test_compile_without_graph_breaks(torch_device):
    if torch_device == "cpu":
        pytest.skip("the compiler for the host may be missing")
    q, k, v = (torch.randn(2, 4, 64, 64, device=torch_device, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
    f = lambda q, k, v: wt.scaled_dot_product_attention(q, k, v, is_causal=True) * 2  # noqa: E731
    compiled = torch.compile(f, fullgraph=True)
    assert torch.equal(compiled(q, k, v), f(q, k, v))
    dy = torch.randn_like(q)
    for a, b in zip(torch.autograd.grad(compiled(q, k, v), (q, k, v), dy), torch.autograd.grad(f(q, k, v), (q, k, v), dy)):
        assert torch.equal(a, b)


def test_refused(torch_device):
    q = torch.randn(1, 4, 3, 8, device=torch_device)
    with pytest.raises(ValueError, match="dropout"):
        wt.scaled_dot_product_attention(q, q, q, dropout_p=0.1)
    with pytest.raises(ValueError, match="enable_gqa"):
        wt.scaled_dot_product_attention(q, q[:, :2], q[:, :2])
    with pytest.raises(ValueError, match="either"):
        wt.scaled_dot_product_attention(q, q, q, torch.ones(3, 3, device=torch_device).bool(), is_causal=True)
    with pytest.raises(ValueError, match="gradient of bias"):
        bias = torch.zeros(1, 1, 3, 3, device=torch_device, requires_grad=True)
        wt.scaled_dot_product_attention(q, q, q, bias)


def test_without_a_batch_and_under_autocast(torch_device):
    q, k, v = (torch.randn(4, 5, 16, device=torch_device) for _ in "qkv")
    expected = F.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(wt.scaled_dot_product_attention(q, k, v), expected, atol=1e-5)
    with torch.autocast(torch_device, torch.bfloat16):
        assert wt.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
