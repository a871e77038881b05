"""Inputs, references and the arrays of each library that is here. What is missing is skipped with its reason."""

from __future__ import annotations

import math
import os
import sys
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Iterator

import numpy as np
import pytest

# JAX would take most of a GPU's memory for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# References run once: what counts is how soon they are compiled.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

try:
    from warpwright import _native
except ImportError:
    pass
else:
    # Every test on a GPU sees the results of a call that is repeated.
    _native.repeat_first_calls(True)


def pytest_configure(config: pytest.Config) -> None:
    """Tests of a group are in one process under `-n N`, as under `--dist loadgroup`: several would each start the group's ranks, which wait for
    each other until their time is up."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "loadgroup"


SLOPE = 0.01
BETA = 0.7
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _gelu_erf(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, SLOPE * x),
    "gelu_erf": _gelu_erf,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(BETA * x, 0) / BETA,
}
GATES = {"swiglu": "silu", "geglu": "gelu_erf", "geglu_tanh": "gelu_tanh"}
# Norm-wise errors: one rounding of the result.
BUDGETS = {"float32": 1e-6, "float64": 1e-13, "float16": 5e-4, "bfloat16": 4e-3}


def derivative(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Central differences in f64, good to about 1e-10."""
    h = 1e-5
    return (f(x + h) - f(x - h)) / (2 * h)


def distance(result: np.ndarray, reference: np.ndarray) -> float:
    difference = np.linalg.norm(np.asarray(result, dtype=np.float64).ravel() - reference.ravel())
    scale = np.linalg.norm(reference.ravel())
    return float(difference / scale) if scale else float(difference)


def numpy_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


def torch_cuda() -> Any:
    """PyTorch with a GPU, or a skip that says what is missing."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return torch


def rounds(allowed: bool) -> ContextManager[Any]:
    """Whether PyTorch's convolutions of f32 on a GPU, and with them ours, may round their factors."""
    # PyTorch's own tests, once imported, let the flags be set in no other way.
    return sys.modules["torch"].backends.cudnn.flags(enabled=True, allow_tf32=allowed)


@pytest.fixture(autouse=True)
def exact_factors() -> Iterator[None]:
    """They do not unless a test says otherwise."""
    with rounds(False) if "torch" in sys.modules else nullcontext():
        yield


@pytest.fixture
def cuda() -> Any:
    return torch_cuda()


@pytest.fixture(params=["cpu", "cuda"])
def torch_device(request: pytest.FixtureRequest) -> str:
    """Devices for the tests of `warpwright.torch`: the CPU, whose tensors run in the emulator, and the GPU."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    if request.param == "cuda":
        torch_cuda()
    return request.param
