"""Attention under masks of tiles in `warpwright.torch`, held against PyTorch's with the dense mask in f64."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, create_mask  # noqa: E402

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402

BUDGETS = {torch.float32: 3e-6, torch.float64: 1e-12, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}
DOCUMENTS = torch.arange(300) // 90
MODS = {
    "causal": lambda b, h, q, k: q >= k,
    "documents": lambda b, h, q, k: DOCUMENTS[q] == DOCUMENTS[k],
    "window and global tokens": lambda b, h, q, k: ((q >= k) & (q - k < 64)) | (k < 10),
    "of each head": lambda b, h, q, k: (q - k).abs() <= 50 * (h + 1) + b,
    # Query 7 and those behind tile 1 see nothing.
    "few": lambda b, h, q, k: (q != 7) & (q < 140) & (k % 3 == 0),
}


def dense_of(mask):
    """What the tables say, of the lists of keys and of those of queries."""
    batch, heads, queries, keys = mask.shape
    by_key = torch.zeros(batch, heads, -(-queries // 128) * 128, -(-keys // 128) * 128, dtype=torch.bool)
    by_query = torch.zeros_like(by_key)
    for out, lists, half in ((by_key, mask.key_tiles, 0), (by_query.transpose(2, 3), mask.query_tiles, 1)):
        for b, h, row in ((b, h, r) for b in range(batch) for h in range(heads) for r in range(lists.shape[2])):
            count, *entries = lists[b, h, row].tolist()
            for tile, part in zip(entries[: 2 * count : 2], entries[1 : 2 * count : 2]):
                words = mask.mask_bits[part, half] if part >= 0 else torch.full((128, 4), -1, dtype=torch.int32)
                bits = (words[..., None] >> torch.arange(32, dtype=torch.int32)) & 1
                out[b, h, row * 128 : row * 128 + 128, tile * 128 : tile * 128 + 128] = bits.flatten(-2).bool()
    return [out[:, :, :queries, :keys] for out in (by_key, by_query)]


def exact(q, k, v, mask, dy):
    """PyTorch's in f64, where queries that see nothing have zeros."""
    wide = [t.detach().double().transpose(1, 2).requires_grad_() for t in (q, k, v)]
    q, k, v = wide
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    none = ~mask.any(-1, keepdim=True)
    o = F.scaled_dot_product_attention(q, k, v, mask | none).masked_fill(none, 0)
    return [o.detach(), *torch.autograd.grad(o, wide, dy.double().transpose(1, 2))]


def held_against(mask, block_mask, dtype, device, width, heads=4, kv_heads=2):
    torch.manual_seed(1)
    batch, (queries, keys) = 2, mask.shape[2:]
    shapes = (queries, heads), (keys, kv_heads), (keys, kv_heads), (queries, heads)
    q, k, v, dy = (torch.randn(batch, *shape, width, dtype=dtype, device=device) for shape in shapes)
    ours = [t.requires_grad_() for t in (q, k, v)]
    o, lse = wt.attention(*ours, block_mask=block_mask, return_lse=True)
    found = [o.detach(), *torch.autograd.grad(o, ours, dy)]
    nothing = ~mask.any(-1).expand(batch, heads, queries)
    assert torch.equal(lse == -math.inf, nothing.to(device))
    for name, a, b in zip(("o", "dq", "dk", "dv"), found, exact(q, k, v, mask.to(device), dy)):
        error = float((a.double().transpose(1, 2) - b).norm() / b.norm())
        assert error <= BUDGETS[dtype], (name, error)


@pytest.mark.parametrize("name", MODS)
def test_masks_of_flex_attention(name, torch_device):
    device = torch_device
    extents = (2, 4) if name == "of each head" else (None, None)
    mod = MODS[name]
    if device == "cuda" and name == "documents":
        documents = DOCUMENTS.cuda()
        mod = lambda b, h, q, k: documents[q] == documents[k]  # noqa: E731
    theirs = create_block_mask(mod, *extents, 300, 300, device=device)
    mask = create_mask(mod, *extents, 300, 300, device=device).cpu()
    held_against(mask, theirs, torch.float32, device, 64)
    if device == "cuda":
        held_against(mask, wt.BlockMask.from_flex(theirs), torch.bfloat16, device, 128)


@pytest.mark.parametrize("dtype", BUDGETS)
def test_dense_masks(dtype, torch_device):
    torch.manual_seed(0)
    mask = torch.rand(2, 4, 140, 270) < 0.4
    mask[:, :, :128, 128:256] = True
    mask[1, :, :128, :128] = False
    held_against(mask, wt.BlockMask.from_dense(mask).to(torch_device), dtype, torch_device, 64)


@pytest.mark.parametrize("size", [128, 256, (256, 128)])
@pytest.mark.parametrize("name", MODS)
def test_tables(name, size):
    extents = (2, 3) if name == "of each head" else (None, None)
    mask = create_mask(MODS[name], *extents, 300, 300, device="cpu")
    theirs = create_block_mask(MODS[name], *extents, 300, 300, device="cpu", BLOCK_SIZE=size)
    ours = wt.BlockMask.from_flex(theirs)
    found = (*dense_of(ours), *dense_of(wt.BlockMask.from_dense(mask)))
    assert all(torch.equal(dense, mask) for dense in found)


def test_full_tiles_have_no_bits():
    whole = wt.BlockMask.from_dense(torch.ones(5, 256, dtype=torch.bool))
    assert whole.key_tiles.tolist() == [[[[2, 0, -1, 1, -1]]]]
    assert whole.query_tiles.tolist() == [[[[1, 0, -1], [1, 0, -1]]]]
    cut = wt.BlockMask.from_dense(torch.ones(5, 255, dtype=torch.bool))
    assert cut.key_tiles.tolist() == [[[[2, 0, -1, 1, 0]]]]
    # Blocks that are listed as full are so whatever the function says.
    causal = create_block_mask(MODS["causal"], None, None, 256, 256, device="cpu")
    causal.mask_mod = lambda b, h, q, k: q < 0
    assert wt.BlockMask.from_flex(causal).key_tiles[0, 0, :, :3].tolist() == [[0, 0, -1], [1, 0, -1]]


def test_gradients_by_difference():
    mask = wt.BlockMask.from_dense(torch.rand(20, 30) < 0.5)
    q, k, v = (torch.randn(1, n, 1, 8, dtype=torch.float64, requires_grad=True) for n in (20, 30, 30))
    assert torch.autograd.gradcheck(lambda *x: wt.attention(*x, block_mask=mask), (q, k, v), fast_mode=True)


def test_what_is_refused():
    q = torch.randn(1, 20, 1, 8)
    mask = wt.BlockMask.from_dense(torch.ones(20, 20, dtype=torch.bool))
    with pytest.raises(ww.ParameterError, match="beside causal"):
        wt.attention(q, q, q, block_mask=mask, causal=True)
    with pytest.raises(ValueError, match="20 queries and 20 keys, expected 20 and 10"):
        wt.attention(q, q[:, :10], q[:, :10], block_mask=mask)
    with pytest.raises(TypeError, match="expected BlockMask"):
        wt.attention(q, q, q, block_mask=torch.ones(20, 20, dtype=torch.bool))
    with pytest.raises(ValueError, match="torch.bool"):
        wt.BlockMask.from_dense(torch.ones(20, 20))
    small = create_block_mask(MODS["causal"], None, None, 20, 20, device="cpu", BLOCK_SIZE=64)
    with pytest.raises(ValueError, match="multiples of 128"):
        wt.attention(q, q, q, block_mask=small)
    outside = wt.BlockMask.from_dense(torch.ones(20, 20, dtype=torch.bool))
    outside.key_tiles[..., 1] = 1
    with pytest.raises(ww.ParameterError, match="key_tiles"):
        wt.attention(q, q, q, block_mask=outside)
    with pytest.raises(ww.ArgumentError, match="mask_bits is missing"):
        ww.attention(q, q, q, key_tiles=mask.key_tiles, query_tiles=mask.query_tiles)
    with pytest.raises(ww.ShapeError, match="query_tiles"):
        ww.attention(q, q, q, key_tiles=mask.key_tiles, query_tiles=mask.query_tiles[..., :2], mask_bits=mask.mask_bits)


def test_operator():
    q, k, v = (torch.randn(1, n, 1, 8, dtype=torch.float64, requires_grad=True) for n in (20, 30, 30))
    tables = wt.BlockMask.from_dense(torch.rand(20, 30) < 0.5).tensors
    parameters = (0.5, False, -1, -1, False, 0.0, None, None, 0.0, False, False)
    arguments = (q, k, v, *[None] * 7, *tables, None, *parameters)
    torch.library.opcheck(torch.ops.warpwright.attention.default, arguments)


def test_compiled():
    mask = wt.BlockMask.from_dense(torch.rand(40, 40) < 0.7)
    q = torch.randn(1, 40, 2, 16, requires_grad=True)
    run = lambda x: wt.attention(x, x, x, block_mask=mask).square().sum()  # noqa: E731
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    (expected,), (found,) = (torch.autograd.grad(f(q), q) for f in (run, compiled))
    assert torch.equal(expected, found)
