"""`rotary_embedding` on arrays of numpy and as operators of `warpwright.torch`, held against the formula in f64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import BUDGETS, distance

import warpwright as ww

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402
from images import DTYPES, close, compile_anew, results  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def tables(rows, rotary_dim, dtype=torch.float32, device="cpu"):
    """Half of the columns that transformers has."""
    angles = torch.arange(rows, device=device).double()[:, None] * 100.0 ** -(torch.arange(rotary_dim // 2, device=device) / rotary_dim)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def theirs(x, cos, sin, pairing="half"):
    """Of [batch, steps, heads, head_dim]; the tables are [.., steps, rotary_dim / 2]."""
    pairs = cos.shape[-1]
    cos, sin = cos.to(x.dtype).unsqueeze(-2), sin.to(x.dtype).unsqueeze(-2)
    first, second = (slice(0, pairs), slice(pairs, 2 * pairs)) if pairing == "half" else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
    a, b = x[..., first], x[..., second]
    turned = [a * cos - b * sin, b * cos + a * sin]
    turned = torch.cat(turned, -1) if pairing == "half" else torch.stack(turned, -1).flatten(-2)
    return torch.cat([turned, x[..., 2 * pairs :]], -1)


def both(function):
    """Queries and keys in one tensor, so that one gradient goes through both."""
    return lambda q, k: torch.cat([t.flatten() for t in function(q, k)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_both_passes(pairing, dtype, torch_device):
    for shape, rotary_dim in itertools.product(((2, 5, 3, 16), (1, 3, 1, 10)), (None, 8)):
        batch, steps, heads, head_dim = shape
        q = torch.randn(shape, dtype=dtype, device=torch_device)
        k = torch.randn(batch, steps, 1, head_dim, dtype=dtype, device=torch_device)
        cos, sin = tables(steps + 2, rotary_dim or head_dim, device=torch_device)
        ours = both(lambda q, k: wt.rotary_embedding(q, k, cos, sin, pairing=pairing, rotary_dim=rotary_dim, offset=2))
        exact = both(lambda q, k: (theirs(q, cos[2:], sin[2:], pairing), theirs(k, cos[2:], sin[2:], pairing)))
        found, dy = results(ours, [q, k])
        close(found, results(exact, [q, k], dy, torch.float64)[0], dtype)
        alone = wt.rotary_embedding(q, None, cos, sin, pairing=pairing, rotary_dim=rotary_dim, offset=2)
        assert torch.equal(alone.flatten(), found[0][: q.numel()])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_positions(dtype, torch_device):
    q = torch.randn(2, 3, 2, 8, device=torch_device)
    cos, sin = tables(9, 8, device=torch_device)
    for positions in ([[4, 0, 8], [1, 1, 2]], [[7, 3, 2]], [0, 5, 6]):
        positions = torch.tensor(positions, device=torch_device, dtype=dtype)
        y = wt.rotary_embedding(q, None, cos, sin, positions=positions)
        rows = positions.long() if positions.dim() == 2 else positions.long()[None]
        close([y], [theirs(q.double(), cos[rows], sin[rows])], torch.float32)


def transformers(q, k, cos, sin, unsqueeze_dim=1):
    """As the package has it."""
    half = lambda x: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)  # noqa: E731
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + half(q) * sin, k * cos + half(k) * sin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_as_transformers(unsqueeze_dim, dtype, torch_device):
    batch, steps, heads, head_dim = 2, 6, 4, 16
    for of_batch in (1, batch):
        cos, sin = (torch.cat([t, t], -1).expand(of_batch, -1, -1).contiguous() for t in tables(steps, head_dim, dtype, torch_device))
        # Views of a projection, as attention has them.
        q = torch.randn(batch, steps, heads * head_dim, dtype=dtype, device=torch_device)
        k = torch.randn(batch, steps, 2 * head_dim, dtype=dtype, device=torch_device)

        def seen(function):
            def call(q, k):
                q, k = (t.unflatten(-1, (-1, head_dim)) for t in (q, k))
                if unsqueeze_dim == 1:
                    q, k = q.transpose(1, 2), k.transpose(1, 2)
                found = function(q, k, cos.to(q.dtype), sin.to(q.dtype), unsqueeze_dim=unsqueeze_dim)
                assert all(a.stride() == b.stride() for a, b in zip(found, (q, k)))
                return found

            return both(call)

        found, dy = results(seen(wt.apply_rotary_pos_emb), [q, k])
        close(found, results(seen(transformers), [q, k], dy, torch.float64)[0], dtype)
    # A part of each head, as of GPT-NeoX.
    cos, sin = (torch.cat([t, t], -1)[None] for t in tables(steps, 8, torch.float32, torch_device))
    x = torch.randn(batch, heads, steps, head_dim, device=torch_device)
    part, _ = wt.apply_rotary_pos_emb(x, x, cos, sin)
    exact, _ = transformers(x[..., :8].double(), x[..., :8].double(), cos.double(), sin.double())
    close([part], [torch.cat([exact, x[..., 8:].double()], -1)], torch.float32)


def test_strides_and_frozen_tensors(torch_device):
    qkv = torch.randn(2, 4, 6, 8, device=torch_device, requires_grad=True)
    cos, sin = tables(4, 8, device=torch_device)
    q, k = qkv[:, :, :4], qkv[:, :, 4:5]
    y, z = wt.rotary_embedding(q, k, cos, sin)
    dy = torch.randn(4, 2, 8, 4, device=torch_device).permute(1, 0, 3, 2)
    (dqkv,) = torch.autograd.grad(y, qkv, dy)
    exact = theirs(dy.double(), cos, -sin)
    close([y.detach(), z.detach(), dqkv[:, :, :4]], [theirs(q.detach().double(), cos, sin), theirs(k.detach().double(), cos, sin), exact], torch.float32)
    assert not dqkv[:, :, 4:].any()
    # Of one that is frozen no gradient is computed.
    for which in (0, 1):
        given = [t.detach().clone() for t in (q, k)]
        given[which].requires_grad_()
        found = wt.rotary_embedding(*given, cos, sin)
        (gradient,) = torch.autograd.grad(found[which].square().sum() / 2, given[which])
        close([gradient], [given[which].detach().double()], torch.float32)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic, torch_device):
    cos, sin = tables(16, 8, device=torch_device)

    def function(q, k):
        y, z = wt.rotary_embedding(q, k, cos, sin)
        whole = [torch.cat([t[: q.shape[1]]] * 2, -1)[None] for t in (cos, sin)]
        y, z = wt.apply_rotary_pos_emb(y.transpose(1, 2), z.transpose(1, 2), *whole)
        return torch.cat([y.flatten(), z.flatten(), wt.rotary_embedding(q, None, cos, sin).flatten()])

    compiled = compile_anew(function, dynamic=dynamic)
    for steps in (5, 6) if dynamic else (5,):
        tensors = [torch.randn(2, steps, heads, 8, device=torch_device) for heads in (3, 1)]
        found, dy = results(compiled, tensors)
        for a, b in zip(found, results(function, tensors, dy)[0]):
            assert torch.allclose(a, b) and a.stride() == b.stride()


def test_opcheck_and_gradcheck(torch_device):
    q, k = (torch.randn(1, 3, heads, 6, device=torch_device, dtype=torch.float64, requires_grad=True) for heads in (2, 1))
    cos, sin = tables(3, 4, torch.float64, torch_device)
    positions = torch.tensor([2, 0, 1], device=torch_device)
    ops = torch.ops.warpwright
    torch.library.opcheck(ops.rotary_embedding.default, (q, k, cos, sin, positions, "half", 0, 4))
    torch.library.opcheck(ops.rotary_embedding_of_one.default, (q, cos, sin, None, "interleaved", 0, 4))
    for pairing in ("half", "interleaved"):
        function = lambda q, k: wt.rotary_embedding(q, k, cos, sin, pairing=pairing, rotary_dim=4)  # noqa: E731
        assert torch.autograd.gradcheck(function, (q, k))
    square = lambda q, k: wt.rotary_embedding(q, k, cos, sin, rotary_dim=4)[0].square().sum() / 2  # noqa: E731
    assert torch.allclose(torch.func.grad(square)(q.detach(), k.detach()), q.detach())


def test_autocast(torch_device):
    """Dtypes stay as they are, with tables in float32."""
    q = torch.randn(1, 4, 2, 8, device=torch_device)
    cos, sin = tables(4, 8, device=torch_device)
    with torch.autocast(torch_device, dtype=torch.bfloat16):
        assert wt.rotary_embedding(q, None, cos, sin).dtype == torch.float32
        y = wt.rotary_embedding(q.bfloat16(), None, cos, sin)
    close([y], [theirs(q.bfloat16().double(), cos, sin)], torch.bfloat16)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_numpy(dtype, random):
    q, k = (random.standard_normal((2, 5, heads, 8)).astype(dtype) for heads in (3, 2))
    cos, sin = (t.numpy() for t in tables(5, 8, torch.float64 if dtype == "float64" else torch.float32))
    y, z = ww.rotary_embedding(q, k, cos, sin)
    for found, x in ((y, q), (z, k)):
        exact = theirs(torch.tensor(x.astype(np.float64)), torch.tensor(cos), torch.tensor(sin)).numpy()
        assert found.dtype == x.dtype and distance(found, exact) <= 2 * BUDGETS[dtype]
    back, _ = ww.rotary_embedding_backward(y, z, cos, sin)
    assert distance(back, q.astype(np.float64)) <= 4 * BUDGETS[dtype]
    # In place, into a given pair, and of a view.
    into = np.empty_like(q), np.empty_like(k)
    assert all(a is b for a, b in zip(ww.rotary_embedding(q, k, cos, sin, out=into), into))
    assert all((a == b).all() for a, b in zip(into, (y, z)))
    fused = np.concatenate([q, k], 2)
    ww.rotary_embedding(fused[:, :, :3], None, cos, sin, out=fused[:, :, :3])
    assert (fused == np.concatenate([y, k], 2)).all()
    ww.rotary_embedding(q, k, cos, sin, out=(q, k))
    assert (q == y).all() and (k == z).all()


Q, K = torch.ones(2, 4, 3, 8), torch.ones(2, 4, 1, 8)
COS = torch.ones(4, 4)
# Arguments, options, error, argument.
REFUSED = [
    ((Q[0], K, COS, COS), {}, ww.ShapeError, "q"),
    ((Q, K[0], COS, COS), {}, ww.ShapeError, "k"),
    ((Q, K[:1], COS, COS), {}, ww.ShapeError, "k"),
    ((Q, K.double(), COS, COS), {}, ww.DtypeError, "k"),
    ((Q.int(), None, COS, COS), {}, ww.DtypeError, "q"),
    ((Q, K, COS[:3], COS[:3]), {}, ww.ShapeError, "cos"),
    ((Q, K, COS[0], COS[0]), {}, ww.ShapeError, "cos"),
    ((Q, K, COS[:, :3], COS[:, :3]), {}, ww.ShapeError, "cos"),
    ((Q, K, COS.expand(3, 4, 4), COS.expand(3, 4, 4)), {}, ww.ShapeError, "cos"),
    ((Q, K, COS.double(), COS.double()), {}, ww.DtypeError, "cos"),
    ((Q, K, COS, COS[:3]), {}, ww.ShapeError, "sin"),
    ((Q, K, COS, COS), {"offset": 1}, ww.ShapeError, "cos"),
    ((Q, K, COS[None], COS[None]), {"offset": 1}, ww.ParameterError, "offset"),
    ((Q, K, COS, COS), {"pairing": "quarter"}, ww.ParameterError, "pairing"),
    ((Q, K, COS[:, :3], COS[:, :3]), {"rotary_dim": 3}, ww.ParameterError, "rotary_dim"),
    ((Q, K, COS, COS), {"positions": torch.zeros(3, dtype=torch.int64)}, ww.ShapeError, "positions"),
    ((Q, K, COS, COS), {"positions": torch.zeros(4)}, ww.DtypeError, "positions"),
]


@pytest.mark.parametrize("arguments, options, error, argument", REFUSED)
def test_what_is_refused(arguments, options, error, argument, torch_device):
    to = lambda t: t.to(torch_device) if torch.is_tensor(t) else t  # noqa: E731
    with pytest.raises(error) as info:
        wt.rotary_embedding(*map(to, arguments), **{k: to(v) for k, v in options.items()})
    e = info.value
    assert (e.op, e.argument) == ("rotary_embedding", argument) and str(e).startswith(f"rotary_embedding: {argument} ")


def test_what_else_is_refused():
    with pytest.raises(ww.ParameterError, match="positions is 4 at 1"):
        ww.rotary_embedding(Q, None, COS, COS, positions=torch.tensor([0, 4, 1, 2]))
    with pytest.raises(ValueError, match=r"no gradient of cos: pass cos.detach\(\)"):
        wt.rotary_embedding(Q, None, COS.clone().requires_grad_(), COS)
    with pytest.raises(ww.ShapeError, match="apply_rotary_pos_emb: cos has shape"):
        wt.apply_rotary_pos_emb(Q, Q, torch.ones(1, 5, 8), torch.ones(1, 5, 8))
    with pytest.raises(ValueError, match="unsqueeze_dim is 0"):
        wt.apply_rotary_pos_emb(Q, Q, COS, COS, unsqueeze_dim=0)
    with pytest.raises(ww.LayoutError):
        both = np.ones((1, 2, 1, 4), np.float32)
        ww.rotary_embedding(both, both, np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), out=(both, both))
