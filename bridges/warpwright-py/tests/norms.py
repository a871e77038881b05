"""Random cases of normalisation, softmax and loss: a function of `warpwright.torch` and PyTorch's, on the same tensors."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
import torch.nn.functional as F

import warpwright.torch as wt

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass
class Case:
    """`ours` and `theirs` take `tensors`, of which those in f64, f32 or 16 bits have gradients."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    tensors: list[Any]
    about: dict[str, Any] = field(default_factory=dict)


def extent(r: random.Random, most: int) -> int:
    """Small ones are as likely as large ones."""
    return max(1, round(2 ** r.uniform(0, most)))


def most(like: dict[str, Any], on_gpu: int) -> int:
    """The logarithm of the largest extent; smaller in the emulator."""
    return on_gpu if like.get("device") == "cuda" else 2


def normal(shape: Any, like: dict[str, Any], dtype: Any = None) -> torch.Tensor:
    return torch.randn(tuple(shape), **{**like, "dtype": dtype or like["dtype"]})


def parameters(r: random.Random, shape: Any, like: dict[str, Any], dtype: Any = None) -> list[Any]:
    """A weight and a bias, or neither, or one of them."""
    weight = normal(shape, like, dtype) if r.random() < 0.7 else None
    bias = normal(shape, like, dtype) if r.random() < 0.7 else None
    return [weight, bias]


def images(r: random.Random, like: dict[str, Any], multiple: int = 1) -> torch.Tensor:
    """[N, C, ...] of up to three pixel dimensions, as it is, with channels last, or a part of something larger."""
    channels = multiple * extent(r, most(like, 5))
    shape = [extent(r, 2), channels, *(extent(r, most(like, 4)) + 1 for _ in range(r.randint(1, 3)))]
    x = normal(shape, like)
    form = r.choice(("plain", "plain", "last", "last", "part", "turned"))
    if form == "last":
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    if form == "part":
        return normal([*shape[:-1], 2 * shape[-1]], like)[..., ::2]
    return x.transpose(0, 1).contiguous().transpose(0, 1) if form == "turned" else x


def whole(weight: Any, bias: Any) -> Any:
    """A weight beside every bias: PyTorch's gradient of a bias alone is broken."""
    return torch.ones_like(bias) if weight is None and bias is not None else weight


def group_norm(r: random.Random, like: dict[str, Any]) -> Case:
    groups, silu, eps = r.choice((1, 2, 3, 8)), r.random() < 0.5, r.choice((1e-5, 1e-3))
    x = images(r, like, groups)

    def theirs(x: Any, weight: Any, bias: Any) -> Any:
        y = F.group_norm(x, groups, whole(weight, bias), bias, eps)
        return F.silu(y) if silu else y

    tensors = [x, *parameters(r, (x.shape[1],), like)]
    return Case(lambda x, w, b: wt.group_norm(x, groups, w, b, eps, silu=silu), theirs, tensors, {"groups": groups})


def instance_norm(r: random.Random, like: dict[str, Any]) -> Case:
    x = images(r, like)
    return Case(
        lambda x, w, b: wt.instance_norm(x, None, None, w, b),
        lambda x, w, b: F.instance_norm(x, None, None, whole(w, b), b),
        [x, *parameters(r, (x.shape[1],), like)],
    )


def batch_norm(r: random.Random, like: dict[str, Any]) -> Case:
    x = images(r, like)
    channels = (x.shape[1],)
    mixed = like["dtype"].itemsize == 2 and r.random() < 0.5
    dtype = torch.float32 if mixed else like["dtype"]
    training, relu = r.random() < 0.6, r.random() < 0.5
    residual = normal(x.shape, like) if r.random() < 0.5 else None
    running = [normal(channels, like, dtype), normal(channels, like, dtype).square() + 0.1]

    def ours(x: Any, w: Any, b: Any, residual: Any) -> Any:
        mean, var = (s.to(x.device, copy=True) for s in running)
        return wt.batch_norm(x, mean, var, w, b, training, 0.3, relu=relu, residual=residual)

    def theirs(x: Any, w: Any, b: Any, residual: Any) -> Any:
        # PyTorch takes statistics of the type of the parameters; where there are none, of that of `x`.
        parameter = next((p for p in (w, b) if p is not None), x)
        mean, var = (s.to(x.dtype if x.dtype == torch.float64 else parameter.dtype).clone() for s in running)
        y = F.batch_norm(x, mean, var, whole(w, b), b, training, 0.3)
        y = y if residual is None else y + residual
        return F.relu(y) if relu else y

    about = {"training": training, "relu": relu, "mixed": mixed}
    return Case(ours, theirs, [x, *parameters(r, channels, like, dtype), residual], about)


def rows(r: random.Random, like: dict[str, Any]) -> tuple[torch.Tensor, list[int]]:
    """A tensor, and the shape of its last dimensions."""
    leading = [extent(r, most(like, 4)) for _ in range(r.randint(0, 2))]
    normalised = [extent(r, most(like, 6)) + 2 for _ in range(r.randint(1, 2))]
    x = normal([*leading, *normalised], like)
    if x.dim() > 1 and r.random() < 0.3:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    return x, normalised


def layer_norm(r: random.Random, like: dict[str, Any]) -> Case:
    x, shape = rows(r, like)
    return Case(
        lambda x, w, b: wt.layer_norm(x, shape, w, b),
        lambda x, w, b: F.layer_norm(x, shape, whole(w, b), b),
        [x, *parameters(r, shape, like)],
    )


def rms_norm(r: random.Random, like: dict[str, Any]) -> Case:
    x, shape = rows(r, like)
    # PyTorch's default is the epsilon of the type, which the reference in f64 does not have.
    eps = r.choice((1e-6, 1e-2))
    return Case(
        lambda x, w: wt.rms_norm(x, shape, w, eps),
        lambda x, w: F.rms_norm(x, shape, w, eps),
        [x, parameters(r, shape, like)[0]],
    )


def add_layer_norm(r: random.Random, like: dict[str, Any]) -> Case:
    x, shape = rows(r, like)

    def theirs(x: Any, residual: Any, w: Any, b: Any) -> Any:
        total = x + residual
        return F.layer_norm(total, shape, whole(w, b), b), total

    tensors = [x, normal(x.shape, like), *parameters(r, shape, like)]
    return Case(lambda x, residual, w, b: wt.add_layer_norm(x, residual, shape, w, b), theirs, tensors)


def add_rms_norm(r: random.Random, like: dict[str, Any]) -> Case:
    x, shape = rows(r, like)

    def theirs(x: Any, residual: Any, w: Any) -> Any:
        total = x + residual
        return F.rms_norm(total, shape, w, 1e-6), total

    tensors = [x, normal(x.shape, like), parameters(r, shape, like)[0]]
    return Case(lambda x, residual, w: wt.add_rms_norm(x, residual, shape, w, 1e-6), theirs, tensors)


def local_response_norm(r: random.Random, like: dict[str, Any]) -> Case:
    x, size = images(r, like), r.randint(1, 9)
    options = {"alpha": r.choice((1e-4, 0.5)), "beta": r.choice((0.75, 0.5, 1.3)), "k": r.choice((1.0, 2.0))}
    return Case(
        lambda x: wt.local_response_norm(x, size, **options),
        lambda x: F.local_response_norm(x, size, **options),
        [x],
        {"size": size, **options},
    )


def _softmax(name: str) -> Callable[..., Case]:
    def case(r: random.Random, like: dict[str, Any]) -> Case:
        shape = [extent(r, most(like, 5)) for _ in range(r.randint(1, 4))]
        dim, scale = r.randrange(-len(shape), len(shape)), r.choice((1.0, 0.125, 3.0))
        order = r.sample(range(len(shape)), len(shape))
        x = normal([shape[i] for i in order], like).permute([order.index(i) for i in range(len(shape))])
        ours, theirs = getattr(wt, name), getattr(F, name)
        return Case(lambda x: ours(x, dim, scale=scale), lambda x: theirs(scale * x, dim), [x], {"dim": dim})

    return case


def cross_entropy(r: random.Random, like: dict[str, Any]) -> Case:
    classes = extent(r, most(like, 9))
    shape = [extent(r, most(like, 5)), classes, *(extent(r, 2) for _ in range(r.randint(0, 2)))]
    target = torch.randint(0, classes, (shape[0], *shape[2:]), device=like.get("device"))
    ignored = torch.rand(target.shape, device=target.device) < 0.2
    # One row always counts.
    ignored.view(-1)[0] = False
    target = target.masked_fill(ignored, -7)
    options = {"ignore_index": -7, "reduction": r.choice(("mean", "sum", "none")), "label_smoothing": r.choice((0.0, 0.1))}
    return Case(
        lambda x: wt.cross_entropy(x, target.to(x.device), **options),
        lambda x: F.cross_entropy(x, target.to(x.device), **options),
        [normal(shape, like)],
        options,
    )


CASES: dict[str, Callable[[random.Random, dict[str, Any]], Case]] = {
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "batch_norm": batch_norm,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "add_layer_norm": add_layer_norm,
    "add_rms_norm": add_rms_norm,
    "local_response_norm": local_response_norm,
    "cross_entropy": cross_entropy,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
}
