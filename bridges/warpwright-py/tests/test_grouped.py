"""Products of groups of rows, against numpy in float64, and PyTorch's own where it is installed."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import numpy_dtype

import warpwright as ww

random = np.random.default_rng(7)
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def draw(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return random.standard_normal(shape).astype(numpy_dtype(dtype))


def groups(ends: np.ndarray) -> list[slice]:
    begins = [0, *ends[:-1]]
    return [slice(int(a), int(b)) for a, b in zip(begins, ends)]


def close(got: np.ndarray, expected: np.ndarray, terms: int, dtype: str) -> None:
    assert got.shape == expected.shape
    error = np.abs(got.astype(np.float64) - expected).max(initial=0.0)
    assert error <= TOLERANCE[dtype] * max(terms, 1) ** 0.5, error


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("transposed", [True, False])
def test_rows_of_groups(dtype: str, transposed: bool) -> None:
    a = draw((70, 24), dtype)
    b = draw((4, 40, 24), dtype).transpose(0, 2, 1) if transposed else draw((4, 24, 40), dtype)
    ends = np.array([3, 3, 50, 66], dtype=np.int32)
    expected = np.zeros((70, 40))
    for at, rows in enumerate(groups(ends)):
        expected[rows] = a[rows].astype(np.float64) @ b[at].astype(np.float64)
    close(ww.grouped_matmul(a, b, ends), expected, 24, dtype)
    # Rows with gaps between them.
    wide = np.concatenate([a, a], axis=1)
    out = np.empty((70, 40), dtype=numpy_dtype(dtype))
    assert ww.grouped_matmul(wide[:, :24], b, ends, out=out) is out
    close(out, expected, 24, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_groups_of_the_common_dimension(dtype: str) -> None:
    a, b = draw((50, 20), dtype), draw((50, 33), dtype)
    ends = np.array([0, 17, 17, 48], dtype=np.int32)
    expected = np.stack([a[rows].astype(np.float64).T @ b[rows].astype(np.float64) for rows in groups(ends)])
    got = ww.grouped_matmul_k(a, b, ends)
    close(got, expected, 50, dtype)
    assert not got[[0, 2]].any()


def test_what_is_refused() -> None:
    a, b = draw((10, 8), "float32"), draw((2, 8, 4), "float32")
    for ends, error in [
        ([4, 3], ww.ParameterError),
        ([4, 11], ww.ParameterError),
        ([-1, 4], ww.ParameterError),
        ([4, 5, 6], ww.ShapeError),
    ]:
        with pytest.raises(error, match="ends"):
            ww.grouped_matmul(a, b, np.array(ends, dtype=np.int32))
    ends = np.array([4, 10], dtype=np.int32)
    with pytest.raises(ww.DtypeError, match="ends"):
        ww.grouped_matmul(a, b, ends.astype(np.int64))
    with pytest.raises(ww.ShapeError, match="b has shape"):
        ww.grouped_matmul(a, b[:, :7], ends)
    with pytest.raises(ww.ShapeError, match="3"):
        ww.grouped_matmul(a, b[0], ends)
    with pytest.raises(ww.DtypeError, match="f64"):
        ww.grouped_matmul(a.astype(np.float64), b.astype(np.float64), ends)
    with pytest.raises(ww.ShapeError, match="b has shape"):
        ww.grouped_matmul_k(a, a[:9], ends)


@pytest.mark.parametrize("case", ["rows", "rows of b as it is", "columns", "common"])
@pytest.mark.parametrize("compiled", [False, True])
def test_grouped_mm_as_torch(case: str, compiled: bool) -> None:
    torch = pytest.importorskip("torch")
    import warpwright.torch as wt

    offs = torch.tensor([3, 3, 10, 20], dtype=torch.int32)
    shapes = {
        "rows": ((20, 16), (4, 24, 16)),
        "rows of b as it is": ((20, 16), (4, 16, 24)),
        "columns": ((4, 24, 16), (16, 20)),
        "common": ((24, 20), (20, 16)),
    }
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes[case]]

    def arguments(a: "torch.Tensor", b: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
        return (a, b.mT) if case == "rows" else (a, b)

    def by_loop(a: "torch.Tensor", b: "torch.Tensor") -> "torch.Tensor":
        ends = offs.tolist()
        parts = list(zip([0, *ends[:-1]], ends))
        if case == "columns":
            return torch.cat([a[g] @ b[:, begin:end] for g, (begin, end) in enumerate(parts)], dim=1)
        if case == "common":
            return torch.stack([a[:, begin:end] @ b[begin:end] for begin, end in parts])
        return torch.cat([a[begin:end] @ b[g] for g, (begin, end) in enumerate(parts)])

    function = torch.compile(wt.grouped_mm, backend="aot_eager", fullgraph=True) if compiled else wt.grouped_mm
    y = function(*arguments(*leaves), offs)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = by_loop(*arguments(*wide))
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    dy = torch.randn_like(y)
    got = torch.autograd.grad(y, leaves, dy)
    for dx, other, leaf in zip(got, torch.autograd.grad(expected, wide, dy.double()), leaves):
        torch.testing.assert_close(dx.double(), other, rtol=1e-5, atol=2e-5)
        # That of weights as optimizers have them, without a copy.
        assert leaf.dim() == 2 or dx.stride() == leaf.stride()


def test_grouped_mm_refuses() -> None:
    torch = pytest.importorskip("torch")
    import warpwright.torch as wt

    a, b, offs = torch.randn(6, 8), torch.randn(2, 8, 4), torch.tensor([2, 6], dtype=torch.int32)
    with pytest.raises(ValueError, match="offs is None"):
        wt.grouped_mm(a, b)
    with pytest.raises(ValueError, match="offs is given"):
        wt.grouped_mm(b, b.mT, offs)
    with pytest.raises(ValueError, match="1 and 3 dimensions"):
        wt.grouped_mm(a[0], b, offs)
    batched = torch.randn(2, 5, 8)
    torch.testing.assert_close(wt.grouped_mm(batched, b), batched @ b)
