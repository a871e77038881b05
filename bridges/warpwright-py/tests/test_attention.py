"""Attention in `warpwright.torch`, held against PyTorch's in f64."""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402
from conftest import torch_cuda  # noqa: E402

import warpwright as ww  # noqa: E402
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
    bias = torch.randn(1, 2, 1, 3, dtype=torch.float64, device=torch_device)
    sinks = torch.randn(2, device=torch_device)
    leaves_ = [t.requires_grad_() for t in (q, k, v)]
    tensors, parameters = (*leaves_, *[None] * 11), (0.5, True, -1, -1, False, 0.0, None, None, 0.0)
    torch.library.opcheck(torch.ops.warpwright.attention.default, (*tensors, *parameters, False, False), test_utils="test_faketensor")
    assert torch.autograd.gradcheck(lambda *x: wt.attention(*x, causal=True, softcap=2.0), leaves_)
    further = [bias.requires_grad_(), sinks.requires_grad_()]
    random_ = torch.tensor([1, 2], device=torch_device)
    everything = (*leaves_, *further, *[None] * 8, random_, *parameters[:-1], 0.3)
    torch.library.opcheck(torch.ops.warpwright.attention.default, (*everything, True, True))
    dropping = {"dropout_p": 0.3, "random": random_}
    assert torch.autograd.gradcheck(lambda *x: wt.attention(*x[:3], bias=x[3], causal=True, **dropping), [*leaves_, bias])
    # Sinks and their gradients are float32.
    wide = lambda *x: wt.attention(*x[:3], bias=x[3], sinks=x[4])  # noqa: E731
    assert torch.autograd.gradcheck(wide, [*leaves_, bias, sinks.detach().double().requires_grad_()], eps=1e-2, atol=1e-3)


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
    dropping = torch.compile(lambda *x: wt.scaled_dot_product_attention(*x, dropout_p=0.5), fullgraph=True)
    found = dropping(q, k, v)
    assert found.shape == q.shape and not torch.equal(found, dropping(q, k, v))


def test_refused(torch_device):
    q = torch.randn(1, 4, 3, 8, device=torch_device)
    for p in (-0.1, 1.5):
        with pytest.raises(ww.ParameterError, match="dropout"):
            wt.scaled_dot_product_attention(q, q, q, dropout_p=p)
    with pytest.raises(ValueError, match="enable_gqa"):
        wt.scaled_dot_product_attention(q, q[:, :2], q[:, :2])
    with pytest.raises(ValueError, match="either"):
        wt.scaled_dot_product_attention(q, q, q, torch.ones(3, 3, device=torch_device).bool(), is_causal=True)
    with pytest.raises(ValueError, match="gradient of slopes"):
        wt.attention(q, q, q, slopes=torch.ones(3, device=torch_device, requires_grad=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_masks_and_sinks(dtype, torch_device):
    torch.manual_seed(3)
    batch, heads, queries, keys, width = (2, 4, 70, 90, 64) if torch_device == "cuda" else (2, 2, 5, 9, 8)
    like = {"dtype": dtype, "device": torch_device}
    for shape in ((batch, heads, queries, keys), (heads, 1, keys), (queries, 1), (batch, 1, queries, keys)):
        tensors = [torch.randn(batch, heads, n, width, **like) for n in (queries, keys, keys)]
        ours = leaves((*tensors, torch.randn(shape, **like)), dtype)
        wide = leaves(ours, torch.float64)
        o = wt.scaled_dot_product_attention(*ours)
        exact = reference(*wide[:3], wide[3], False, None)
        dy = torch.randn_like(o)
        for a, b in zip(torch.autograd.grad(o, ours, dy), torch.autograd.grad(exact, wide, dy.double())):
            assert a.shape == b.shape and a.dtype == dtype
            assert float((a.double() - b).norm()) <= 2 * BUDGETS[dtype] * float(b.norm() + dy.double().norm()), shape
    # A sink is a key of its own with that score and a value of zeros.
    q, k, v = (t.transpose(1, 2) for t in leaves(tensors, dtype))
    sinks = torch.randn(heads, device=torch_device, requires_grad=True)
    o = wt.attention(q, k, v, sinks=sinks)
    wide = leaves((q, k, v, sinks), torch.float64)
    s = torch.einsum("bqhd,bkhd->bhqk", wide[0], wide[1]) / math.sqrt(width)
    s = torch.cat([s, wide[3][None, :, None, None].expand(batch, heads, queries, 1)], -1)
    exact = torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1)[..., :-1], wide[2])
    dy = torch.randn_like(o)
    found = torch.autograd.grad(o, (q, k, v, sinks), dy)
    for a, b in zip(found, torch.autograd.grad(exact, wide, dy.double())):
        assert float((a.double() - b).norm()) <= 2 * max(BUDGETS[dtype], 1e-6) * float(b.norm() + dy.double().norm())


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout(dtype, torch_device):
    n, p = 256 if torch_device == "cuda" else 48, 0.3
    like = {"dtype": dtype, "device": torch_device}
    torch.manual_seed(6)
    q, k = (torch.randn(2, 3, n, 16, **like, requires_grad=True) for _ in "qk")
    # With an identity for values, the result shows the probabilities, and its gradient is theirs.
    v = torch.eye(n, **like).expand(2, 3, n, n).detach().requires_grad_()
    torch.manual_seed(7)
    o = wt.scaled_dot_product_attention(q, k, v, dropout_p=p)
    again = wt.scaled_dot_product_attention(q, k, v, dropout_p=p)
    torch.manual_seed(7)
    assert torch.equal(o, wt.scaled_dot_product_attention(q, k, v, dropout_p=p))
    assert not torch.equal(o, again)
    kept = o.detach() != 0
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * math.sqrt(p * (1 - p) / kept.numel())
    wide = leaves((q, k, v), torch.float64)
    exact = (wide[0] @ wide[1].mT / 4).softmax(-1) * kept / (1 - p) @ wide[2]
    assert float((o.double() - exact).detach().norm()) <= 2 * BUDGETS[dtype] * float(exact.detach().norm())
    dy = torch.randn_like(o)
    for a, b in zip(torch.autograd.grad(o, (q, k, v), dy), torch.autograd.grad(exact, wide, dy.double())):
        assert float((a.double() - b).norm()) <= 2 * BUDGETS[dtype] * float(b.norm() + dy.double().norm())
    assert torch.all(wt.scaled_dot_product_attention(q, k, v, dropout_p=1.0) == 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lse(dtype, torch_device):
    torch.manual_seed(8)
    like = {"dtype": dtype, "device": torch_device}
    q, k, v = (torch.randn(2, 3, n, 16, **like, requires_grad=True) for n in (5, 9, 9))
    # The first query of every head takes part in nothing.
    seen = torch.rand(2, 3, 5, 9, device=torch_device) < 0.7
    seen[:, :, 0] = False
    o, lse = wt.scaled_dot_product_attention(q, k, v, seen, return_lse=True)
    scores = (q.double() @ k.double().mT / 4).masked_fill(~seen, -math.inf)
    expected = scores.logsumexp(-1)
    assert lse.shape == (2, 3, 5) and lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.all(lse[:, :, 0] == -math.inf)
    assert torch.allclose(lse.double(), expected, rtol=1e-5 if lse.dtype == torch.float32 else 1e-12, atol=1e-5)
    assert torch.equal(o, wt.scaled_dot_product_attention(q, k, v, seen))
    # Two halves of the keys, each on its own, put together by their sums.
    halves = [wt.attention(*(t.detach().transpose(1, 2) for t in (q, k[:, :, part], v[:, :, part])), return_lse=True)
              for part in (slice(0, 4), slice(4, 9))]
    weights = torch.stack([l for _, l in halves]).softmax(0).to(dtype)
    joined = sum(w.transpose(1, 2)[..., None] * part for w, (part, _) in zip(weights, halves))
    whole = wt.attention(*(t.detach().transpose(1, 2) for t in (q, k, v)))
    assert float((joined - whole).double().norm()) <= 3 * BUDGETS[dtype] * float(whole.double().norm())
    assert o.requires_grad and not lse.requires_grad
    dy = torch.randn_like(o)
    found = torch.autograd.grad(o, (q, k, v), dy)
    for a, b in zip(found, torch.autograd.grad(wt.scaled_dot_product_attention(q, k, v, seen), (q, k, v), dy)):
        assert torch.equal(a, b)
    # The same through the dispatcher, where the compiler traces.
    f = lambda *x: wt.scaled_dot_product_attention(*x, seen, return_lse=True)  # noqa: E731
    traced = torch.compile(f, fullgraph=True, backend="aot_eager")(q, k, v)
    assert torch.equal(traced[0], o) and torch.equal(traced[1], lse) and not traced[1].requires_grad
    for a, b in zip(found, torch.autograd.grad(traced[0], (q, k, v), dy)):
        assert torch.equal(a, b)
    alone = wt.scaled_dot_product_attention(q[0], k[0], v[0], seen[0], return_lse=True)
    assert torch.equal(alone[0], o[0]) and torch.equal(alone[1], lse[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_sequences(dtype, torch_device):
    torch.manual_seed(4)
    scale = 16 if torch_device == "cuda" else 1
    lengths = [(5 * scale, 9 * scale), (0, 3), (7 * scale, 2), (2, 0), (1, 12 * scale)]
    offsets = [[0], [0]]
    for pair in lengths:
        for which in (0, 1):
            offsets[which].append(offsets[which][-1] + pair[which])
    heads, kv_heads, width = 4, 2, 64 if torch_device == "cuda" else 8
    like = {"dtype": dtype, "device": torch_device}
    extents = [(offsets[0][-1], heads), (offsets[1][-1], kv_heads), (offsets[1][-1], kv_heads)]
    ours = leaves([torch.randn(1, rows, of, width, **like) for rows, of in extents], dtype)
    wide = leaves(ours, torch.float64)
    on_device = [torch.tensor(o, dtype=torch.int32, device=torch_device) for o in offsets]
    options = {"cu_seqlens_q": on_device[0], "cu_seqlens_k": on_device[1]}
    o = wt.attention(*ours, **options)
    most = {"max_seqlen_q": max(a for a, _ in lengths), "max_seqlen_k": max(b for _, b in lengths)}
    assert torch.equal(o, wt.attention(*ours, **options, **most))
    parts = []
    for i, (queries, _) in enumerate(lengths):
        own, other = (slice(offsets[w][i], offsets[w][i + 1]) for w in (0, 1))
        alone = (wide[0][:, own], wide[1][:, other], wide[2][:, other])
        parts.append(reference(*(t.transpose(1, 2) for t in alone), None, False, None).transpose(1, 2))
    exact = torch.cat(parts, 1)
    assert float((o.double() - exact).detach().norm()) <= BUDGETS[dtype] * float(exact.detach().norm())
    dy = torch.randn_like(o)
    for a, b in zip(torch.autograd.grad(o, ours, dy), torch.autograd.grad(exact, wide, dy.double())):
        assert float((a.double() - b).norm()) <= BUDGETS[dtype] * float(b.norm() + dy.double().norm())


@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_of_a_cache(dtype, torch_device):
    torch.manual_seed(5)
    batch, rows, heads, kv_heads, width = 3, 16, 4, 2, 64 if torch_device == "cuda" else 8
    pages = 40 if torch_device == "cuda" else 3
    like = {"dtype": dtype, "device": torch_device}
    k_cache, v_cache = (torch.randn(batch * pages + 1, rows, kv_heads, width, **like) for _ in "kv")
    table = torch.randperm(batch * pages + 1, device=torch_device)[: batch * pages].reshape(batch, pages)
    lengths = [rows * pages, 0, rows + 3]
    options = {"key_lengths": torch.tensor(lengths, dtype=torch.int32, device=torch_device)}
    for queries in (1, 4):
        q = torch.randn(batch, queries, heads, width, **like)
        o = wt.attention(q, k_cache, v_cache, block_table=table.int(), **options)
        k, v = (t[table].reshape(batch, pages * rows, kv_heads, width) for t in (k_cache, v_cache))
        seen = torch.arange(pages * rows, device=torch_device) < options["key_lengths"][:, None]
        wide = (t.double().transpose(1, 2) for t in (q, k, v))
        exact = reference(*wide, seen[:, None, None], False, None).transpose(1, 2)
        assert float((o.double() - exact).norm()) <= BUDGETS[dtype] * float(exact.norm())


def test_without_a_batch_and_under_autocast(torch_device):
    q, k, v = (torch.randn(4, 5, 16, device=torch_device) for _ in "qkv")
    expected = F.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(wt.scaled_dot_product_attention(q, k, v), expected, atol=1e-5)
    with torch.autocast(torch_device, torch.bfloat16):
        assert wt.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, num_kv_heads", [(2, 2), (4, 2)])
def test_packed_queries_keys_and_values(dtype, heads, num_kv_heads, torch_device):
    """The bits of three tensors, and a gradient in one piece, in either layout."""
    torch.manual_seed(11)
    qkv = torch.randn(2, 19, heads + 2 * num_kv_heads, 16, device=torch_device, dtype=dtype)
    options = {"causal": True, "softcap": 5.0, "window": (7, -1)}
    whole, parts = (qkv.clone().requires_grad_() for _ in range(2))
    o = wt.attention_qkvpacked(whole, heads, **options)
    q, k, v = parts.split([heads, num_kv_heads, num_kv_heads], 2)
    expected = wt.attention(q, k, v, **options)
    assert torch.equal(o, expected)
    dy = torch.randn_like(o)
    o.backward(dy), expected.backward(dy)
    assert whole.grad.is_contiguous() and torch.equal(whole.grad, parts.grad)
    if heads == num_kv_heads:
        five = qkv.unflatten(2, (3, heads)).requires_grad_()
        again = wt.attention_qkvpacked(five, **options)
        (dqkv,) = torch.autograd.grad(again, five, dy)
        assert torch.equal(again, o) and torch.equal(dqkv.flatten(2, 3), whole.grad)


def test_packed_queries_keys_and_values_compile(torch_device):
    qkv = torch.randn(1, 5, 6, 16, device=torch_device, requires_grad=True)
    compiled = torch.compile(lambda t: wt.attention_qkvpacked(t, 2).sum(), backend="aot_eager", fullgraph=True)
    eager = wt.attention_qkvpacked(qkv, 2).sum()
    found, expected = (torch.autograd.grad(y, qkv)[0] for y in (compiled(qkv), eager))
    assert torch.equal(found, expected)
    for wrong, heads in ((qkv, None), (qkv, 5), (qkv, 6), (qkv[None], 2)):
        with pytest.raises(ValueError, match="attention_qkvpacked: qkv is"):
            wt.attention_qkvpacked(wrong, heads)
