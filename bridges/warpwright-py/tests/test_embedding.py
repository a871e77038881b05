"""`embedding` on arrays of numpy and as an operator of `warpwright.torch`, held against PyTorch's in f64."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402
from images import DTYPES, close, compile_anew, results  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_passes(dtype, torch_device):
    for index, shape, dim in ((torch.int64, (3, 7), 12), (torch.int32, (40,), 5), (torch.int64, (), 8)):
        weight = torch.randn(9, dim, dtype=dtype, device=torch_device)
        ids = torch.randint(0, 9, shape, dtype=index, device=torch_device)
        for options in ({}, {"padding_idx": 4}, {"padding_idx": -1, "scale_grad_by_freq": True}):
            if index == torch.int32 and "scale_grad_by_freq" in options:
                continue
            found, dy = results(lambda w: wt.embedding(ids, w, **options), [weight])
            # PyTorch has no means by frequency of one index alone.
            exact, _ = results(lambda w: F.embedding(ids.reshape(-1), w, **options).reshape(*shape, dim), [weight], dy, torch.float64)
            assert torch.equal(found[0].double(), exact[0])
            close(found, exact, dtype)


def test_other_strides(torch_device):
    weight = torch.randn(6, 9, device=torch_device).mT
    ids = torch.randint(0, 9, (5, 4), device=torch_device).mT
    found, dy = results(lambda w: wt.embedding(ids, w).mT, [weight])
    exact, _ = results(lambda w: F.embedding(ids, w).mT, [weight], dy, torch.float64)
    close(found, exact, torch.float32)


def test_module(torch_device):
    module = wt.nn.Embedding(10, 4, padding_idx=2, device=torch_device)
    assert isinstance(module, torch.nn.Embedding) and not module.weight[2].any()
    ids = torch.tensor([1, 2, 2, 9], device=torch_device)
    y = module(ids)
    assert torch.equal(y, module.weight[ids])
    y.sum().backward()
    assert not module.weight.grad[2].any() and bool((module.weight.grad[[1, 9]] == 1).all())
    assert torch.equal(wt.nn.Embedding.from_pretrained(module.weight.detach())(ids), y)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic, torch_device):
    function = lambda w, ids: wt.embedding(ids, w, 1) * 2  # noqa: E731
    compiled = compile_anew(function, dynamic=dynamic)
    for rows, count in ((7, 5), (8, 6)) if dynamic else ((7, 5),):
        weight, ids = torch.randn(rows, 4, device=torch_device), torch.randint(0, rows, (2, count), device=torch_device)
        found, dy = results(lambda w: compiled(w, ids), [weight])
        for a, b in zip(found, results(lambda w: function(w, ids), [weight], dy)[0]):
            assert torch.equal(a, b) and a.stride() == b.stride()


def test_opcheck_and_gradcheck(torch_device):
    weight = torch.randn(4, 3, dtype=torch.float64, device=torch_device, requires_grad=True)
    ids = torch.tensor([[0, 3, 3]], device=torch_device)
    torch.library.opcheck(torch.ops.warpwright.embedding.default, (weight, ids, 3, True))
    assert torch.autograd.gradcheck(lambda w: wt.embedding(ids, w), weight)
    loss = lambda w: wt.embedding(ids, w).square().sum() / 2  # noqa: E731
    counts = torch.tensor([1.0, 0, 0, 2], dtype=torch.float64, device=torch_device)
    assert torch.allclose(torch.func.grad(loss)(weight.detach()), weight.detach() * counts[:, None])


def test_autocast(torch_device):
    """PyTorch leaves tables as they are, too."""
    with torch.autocast(torch_device, dtype=torch.bfloat16):
        y = wt.embedding(torch.tensor([0, 1], device=torch_device), torch.ones(2, 3, device=torch_device))
    assert y.dtype == torch.float32


def test_numpy(random):
    weight = random.standard_normal((6, 3)).astype(np.float32)
    ids = np.array([[5, 0], [5, 2]], np.int32)
    y = ww.embedding(weight, ids)
    assert (y == weight[ids]).all()
    out = np.empty_like(y)
    assert ww.embedding(weight, ids, out=out) is out and (out == y).all()
    exact = np.zeros((6, 3))
    np.add.at(exact, ids, y.astype(np.float64))
    assert np.allclose(ww.embedding_backward(y, ids, 6), exact, rtol=1e-6)


WEIGHT, IDS = torch.ones(4, 3), torch.tensor([0, 3])
REFUSED = [
    ((IDS, WEIGHT[0]), {}, ww.ShapeError, "weight"),
    ((IDS, WEIGHT.int()), {}, ww.DtypeError, "weight"),
    ((IDS.float(), WEIGHT), {}, ww.DtypeError, "input"),
    ((IDS, WEIGHT), {"padding_idx": 4}, ww.ParameterError, "padding_idx"),
    ((IDS, WEIGHT), {"padding_idx": -5}, ww.ParameterError, "padding_idx"),
    ((IDS, WEIGHT), {"max_norm": 1.0}, ww.ParameterError, "max_norm"),
    ((IDS, WEIGHT), {"sparse": True}, ww.ParameterError, "sparse"),
]


@pytest.mark.parametrize("arguments, options, error, argument", REFUSED)
def test_what_is_refused(arguments, options, error, argument, torch_device):
    with pytest.raises(error) as info:
        wt.embedding(*(t.to(torch_device) for t in arguments), **options)
    assert (info.value.op, info.value.argument) == ("embedding", argument)
    assert str(info.value).startswith(f"embedding: {argument} ")


def test_an_index_that_is_no_row():
    for ids in ([0, 4], [-1, 0]):
        with pytest.raises(ww.ParameterError, match="must be from 0 to below num_embeddings"):
            ww.embedding(WEIGHT, torch.tensor(ids))
    with pytest.raises(ww.ShapeError):
        ww.embedding_backward(WEIGHT, IDS, 4)
