"""Cases of `warpwright.torch.parallel`, each run by all ranks of a group and held against one process with all the data, in float64.

`test_parallel.py` starts the ranks on the CPU. On GPUs, one for each process:

    torchrun --nproc-per-node 2 parallel_cases.py [--only attention]

Each rank prints a line of JSON for each case that it has run, and leaves at the first that fails, so that others do not wait for it.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import itertools
import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F

import warpwright as ww
import warpwright.torch as wt

P = wt.parallel
BUDGETS = {torch.float32: 3e-6, torch.float64: 1e-12, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}
CASES: dict[str, Callable[["Here"], None]] = {}
# PyTorch's DistributedDataParallel takes no SyncBatchNorm on CPUs.
ON_GPUS: dict[str, Callable[["Here"], None]] = {}
# Of a group that a rank leaves alone on purpose.
PATIENCE = datetime.timedelta(seconds=3)


@dataclass
class Here:
    """A rank of a group."""

    rank: int
    size: int
    group: Any
    device: torch.device

    def part(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """An even part of what every rank has."""
        each = x.shape[dim] // self.size
        return x.narrow(dim, self.rank * each, each)

    def total(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().double().clone()
        dist.all_reduce(x, group=self.group)
        return x

    def same(self, x: torch.Tensor) -> None:
        """That a tensor has the same bits on all ranks."""
        x = x.detach().contiguous()
        everyone = x.new_empty((self.size, *x.shape))
        dist.all_gather_into_tensor(everyone.view(-1), x.view(-1), group=self.group)
        assert all(torch.equal(other, x) for other in everyone)


def case(function: Callable[[Here], None]) -> Callable[[Here], None]:
    CASES[function.__name__] = function
    return function


def close(got: torch.Tensor, exact: torch.Tensor, about: Any, factor: float = 1.0, scale: float = 0.0) -> None:
    """Norm-wise; `scale`: what the error is a part of, if that is more than the result."""
    assert got.shape == exact.shape, (got.shape, exact.shape, about)
    error = float((got.detach().double() - exact.detach().double()).norm())
    whole = max(float(exact.detach().double().norm()), scale)
    assert error <= factor * BUDGETS[got.dtype] * max(whole, 1e-30), (error, whole, about)


def leaf(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return x.detach().to(dtype or x.dtype, copy=True).requires_grad_()


def normal(*shape: int, here: Here, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers that are the same on all ranks."""
    return torch.randn(shape, dtype=torch.float64).to(here.device, dtype)


def laid(x: torch.Tensor, last: bool) -> torch.Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x.contiguous()


# Samples of each rank by the number of ranks.
BATCHES = {1: [[4]], 2: [[3, 2], [0, 4], [1, 1]], 3: [[2, 0, 3], [1, 1, 2]], 4: [[1, 3, 0, 2], [0, 0, 0, 3]]}


def batch_norm_once(here: Here, batches: list[int], shape: Any, dtype: torch.dtype, last: bool, offset: float, affine: bool) -> None:
    about = batches, shape, dtype, last, offset
    channels, mixed = shape[0], dtype in (torch.float16, torch.bfloat16)
    x = (normal(sum(batches), *shape, here=here) + offset).to(dtype)
    dy = normal(sum(batches), *shape, here=here, dtype=dtype)
    parameters = torch.float32 if mixed else dtype
    weight, bias = (normal(channels, here=here, dtype=parameters) for _ in range(2))
    running = [normal(channels, here=here, dtype=parameters), normal(channels, here=here, dtype=parameters).square()]

    exact = [leaf(t, torch.float64) for t in (x, weight, bias)]
    exact_running = [r.double() for r in running]
    y = F.batch_norm(exact[0], *exact_running, *(exact[1:] if affine else (None, None)), True, 0.3, 1e-5)
    y.backward(dy.double())

    start = sum(batches[: here.rank])
    own = slice(start, start + batches[here.rank])
    mine = [leaf(laid(x[own], last)), leaf(weight), leaf(bias)]
    ours = P.sync_batch_norm(mine[0], *running, *(mine[1:] if affine else (None, None)), 0.3, 1e-5, process_group=here.group)
    ours.backward(laid(dy[own], last))
    # Digits that an offset takes from x itself.
    lost = 1.0 + abs(offset)
    whole = float(y.detach().norm())
    close(ours, y[own], ("y", *about), lost, whole)
    close(mine[0].grad, exact[0].grad[own], ("dx", *about), lost, float(exact[0].grad.norm()) + float(dy.norm()))
    assert ours.dtype == dtype
    if len(x[own]) and x.dim() > 2:
        assert ours.stride() == mine[0].stride() == mine[0].grad.stride(), about
    if affine:
        for name, at in (("dweight", 1), ("dbias", 2)):
            got = here.total(mine[at].grad).to(parameters)
            budget = lost * (BUDGETS[dtype] / BUDGETS[parameters])
            close(got, exact[at].grad, (name, *about), budget, float(dy.norm()))
    for name, got, reference in zip(("running_mean", "running_var"), running, exact_running):
        close(got, reference, (name, *about), lost)
        here.same(got)


@case
def batch_norm(here: Here) -> None:
    plain = [(5, 3, 3), (5,), (3, 4), (2, 2, 2, 3)]
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.float16]
    number = 0
    for batches in BATCHES.get(here.size, [[2] * here.size]):
        for shape in plain:
            dtype = dtypes[number % 4]
            batch_norm_once(here, batches, shape, dtype, number % 3 == 1, 0.0, number % 5 != 4)
            number += 1
    # Sums of squares would have no digit left.
    batch_norm_once(here, BATCHES.get(here.size, [[2] * here.size])[0], (4, 3, 3), torch.float32, False, 300.0, True)


@case
def batch_norm_of_one_value(here: Here) -> None:
    """One value of a channel on all ranks: running statistics stay, the result is the bias."""
    if here.size == 1:
        return
    x = normal(1 if here.rank == here.size - 1 else 0, 3, here=here).requires_grad_()
    mean, var, bias = torch.ones(3, device=here.device), torch.ones(3, device=here.device), normal(3, here=here)
    y = P.sync_batch_norm(x, mean, var, None, bias, process_group=here.group)
    y.sum().backward()
    assert torch.equal(y, bias.expand_as(y)) and not x.grad.any()
    assert torch.equal(mean, torch.ones_like(mean)) and torch.equal(var, torch.ones_like(var))


@case
def batch_norm_module(here: Here) -> None:
    """A model as one process trains it, with the state dict of PyTorch's."""
    for momentum, track in ((0.1, True), (None, True), (0.1, False)):
        torch.manual_seed(3)
        norm = torch.nn.BatchNorm2d(4, momentum=momentum, track_running_stats=track)
        torch.nn.init.normal_(norm.weight)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), norm, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 2))
        model = model.to(here.device)
        exact = copy.deepcopy(model).double()
        ours = P.convert_sync_batchnorm(copy.deepcopy(model), here.group)
        assert type(ours[1]) is P.SyncBatchNorm and ours.state_dict().keys() == model.state_dict().keys()
        for step in range(2):
            x = normal(2 * here.size, 3, 3, 3, here=here)
            exact.zero_grad()
            ours.zero_grad()
            exact(x.double()).square().sum().backward()
            ours(here.part(x)).square().sum().backward()
            for (name, p), reference in zip(ours.named_parameters(), exact.parameters()):
                close(here.total(p.grad).float(), reference.grad, (name, step), 3.0, 1.0)
        for name, got in ours[1].named_buffers():
            close(got.float(), dict(exact[1].named_buffers())[name], name)
        other = torch.nn.SyncBatchNorm(4, momentum=momentum, track_running_stats=track).to(here.device)
        other.load_state_dict(ours[1].state_dict())
        x = normal(3, 3, 3, 3, here=here)
        close(ours.eval()(x), exact.eval()(x.double()), "eval")


def data_parallel(here: Here) -> None:
    """Under DistributedDataParallel, which averages the gradients, and with autocast."""
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 2))
    exact = copy.deepcopy(model).to(here.device).double()
    ours = P.convert_sync_batchnorm(model, here.group).to(here.device).to(memory_format=torch.channels_last)
    ours = torch.nn.parallel.DistributedDataParallel(ours, device_ids=[here.device.index], process_group=here.group)
    x = normal(4 * here.size, 3, 8, 8, here=here)
    exact(x.double()).square().mean().backward()
    ours(here.part(x).to(memory_format=torch.channels_last)).square().mean().backward()
    for (name, p), reference in zip(model.named_parameters(), exact.parameters()):
        close(p.grad, reference.grad, name, 10.0, 1.0)
    with torch.autocast("cuda", torch.bfloat16):
        close(ours(here.part(x)).float(), here.part(exact(x.double())), "autocast", 1e4)


ON_GPUS["data_parallel"] = data_parallel


def mlp(here: Here, dtype: torch.dtype, dim: int | None, whole: bool, bias: bool) -> None:
    about = dtype, dim, whole, bias
    torch.manual_seed(5)
    up, down = (torch.nn.Linear(a, b, bias, device=here.device) for a, b in ((6, 12), (12, 7)))
    x = normal(12, 12, 6, here=here, dtype=dtype)
    dy = normal(12, 12, 7, here=here, dtype=dtype)
    exact = [copy.deepcopy(m).to(dtype).double() for m in (up, down)]
    wide = leaf(x, torch.float64)
    y = exact[1](F.silu(exact[0](wide)))
    y.backward(dy.double())

    first = P.ColumnParallelLinear.from_linear(up.to(dtype), here.group, gather_output=whole, sequence_dim=dim)
    second = P.RowParallelLinear.from_linear(down.to(dtype), here.group, input_is_parallel=not whole, sequence_dim=dim)
    mine = leaf(x if dim is None else here.part(x, dim))
    ours = second(F.silu(first(mine)))
    own = (lambda t: t) if dim is None else (lambda t: here.part(t, dim))
    ours.backward(own(dy))
    close(ours, own(y), ("y", *about), 3.0)
    close(mine.grad, own(wide.grad), ("dx", *about), 3.0)
    close(first.weight.grad, here.part(exact[0].weight.grad), ("dweight", *about), 3.0)
    close(second.weight.grad, here.part(exact[1].weight.grad, 1), ("dweight of rows", *about), 3.0)
    if bias:
        close(first.bias.grad, here.part(exact[0].bias.grad), ("dbias", *about), 3.0)
        close(second.bias.grad, exact[1].bias.grad, ("dbias of rows", *about), 3.0)
        here.same(second.bias.grad)
    if dim is None:
        here.same(ours)
        here.same(mine.grad)


@case
def linear(here: Here) -> None:
    for number, (dim, whole, bias) in enumerate(itertools.product((None, 0, 1, -2), (False, True), (True, False))):
        if whole and dim is not None:
            continue
        mlp(here, (torch.float32, torch.bfloat16, torch.float64)[number % 3], dim, whole, bias)
    # Parts of one layer, whoever makes them.
    torch.manual_seed(9)
    layer = P.RowParallelLinear(12, 5, process_group=here.group)
    torch.manual_seed(9)
    whole = torch.nn.Linear(12, 5)
    assert torch.equal(layer.weight, here.part(whole.weight, 1)) and torch.equal(layer.bias, whole.bias)


@case
def vocabulary(here: Here) -> None:
    words, width = 4 * here.size + 2, 5
    start, end = P.vocabulary_part(words, here.rank, here.size)
    for index, padding in ((torch.int64, None), (torch.int32, 2), (torch.int64, words - 1)):
        torch.manual_seed(11)
        table = torch.nn.Embedding(words, width, padding).to(here.device)
        ours = P.VocabParallelEmbedding.from_embedding(table, here.group)
        text = torch.randint(words, (3, 7)).to(here.device, index)
        dy = normal(3, 7, width, here=here)
        table(text.long()).backward(dy)
        y = ours(text)
        y.backward(dy)
        assert torch.equal(y, table(text.long()))
        close(ours.weight.grad, table.weight.grad[start:end], ("dweight", index, padding), 1.0, 1.0)
    none = torch.full((2,), words, device=here.device)
    if here.device.type == "cpu":
        refused(ww.ParameterError, "input", lambda: ours(none))
    else:
        assert ours(none).isnan().all()


@case
def cross_entropy(here: Here) -> None:
    classes, rows = 5 * here.size + 1, 6
    start, end = P.vocabulary_part(classes, here.rank, here.size)
    number = 0
    for dtype, reduction in itertools.product((torch.float32, torch.bfloat16, torch.float64), ("mean", "sum", "none")):
        target = torch.randint(classes, (2, rows // 2)).to(here.device, (torch.int64, torch.int32)[number % 2])
        target[0, 0] = -100
        logits = normal(2, rows // 2, classes, here=here)
        # All but certain.
        logits[1, 1, target[1, 1]] = 30.0
        logits = logits.to(dtype)
        wide = leaf(logits, torch.float64)
        loss = F.cross_entropy(wide.flatten(0, 1), target.flatten().long(), reduction=reduction)
        mine = leaf(logits[..., start:end])
        ours = P.vocab_parallel_cross_entropy(mine, target, classes, here.group, reduction=reduction)
        dloss = normal(*ours.shape, here=here)
        loss.backward(dloss.double().reshape(loss.shape))
        ours.backward(dloss.to(ours.dtype))
        close(ours, loss.reshape(ours.shape), (dtype, reduction), 3.0)
        close(mine.grad, wide.grad[..., start:end], ("dlogits", dtype, reduction), 3.0, float(dloss.norm()))
        here.same(ours)
        number += 1
    close(P.vocab_parallel_cross_entropy(mine.half(), target, classes, here.group, dtype=torch.float32), F.cross_entropy(
        logits.half().double().flatten(0, 1), target.flatten().long()), "wide loss", 3.0)
    wrong = target.clone().fill_(classes)
    if here.device.type == "cpu":
        refused(ww.ParameterError, "target", lambda: P.vocab_parallel_cross_entropy(mine, wrong, classes, here.group))
    else:
        assert P.vocab_parallel_cross_entropy(mine, wrong, classes, here.group, reduction="none").isnan().all()


def attend(here: Here, dtype: torch.dtype, causal: bool, method: str, heads: int, scale: float | None) -> list[torch.Tensor]:
    about = dtype, causal, method, heads
    batch, length, dim = heads // 2, 8 * here.size, 16
    q = normal(batch, length, 4, dim, here=here, dtype=dtype)
    k, v = (normal(batch, length, heads, dim, here=here, dtype=dtype) for _ in range(2))
    dy = normal(batch, length, 4, dim, here=here, dtype=dtype)
    exact = [leaf(t, torch.float64) for t in (q, k, v)]
    turned = [t.transpose(1, 2) for t in exact]
    turned[1:] = [t.repeat_interleave(4 // heads, 1) for t in turned[1:]]
    o = F.scaled_dot_product_attention(*turned, is_causal=causal, scale=scale).transpose(1, 2)
    o.backward(dy.double())
    own = (lambda t: P.zig_zag_split(t, here.group)) if causal else (lambda t: here.part(t, 1))
    mine = [leaf(own(t)) for t in (q, k, v)]
    ours = P.context_parallel_attention(*mine, here.group, causal, method, softmax_scale=scale)
    ours.backward(own(dy))
    close(ours, own(o), ("o", *about), 2.0)
    for name, got, reference in zip("qkv", mine, exact):
        close(got.grad, own(reference.grad), (f"d{name}", *about), 4.0)
    return [ours.detach(), *(t.grad for t in mine)]


@case
def attention(here: Here) -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float64]
    for number, (method, causal, heads) in enumerate(itertools.product(("ring", "all_gather"), (True, False), (4, 2))):
        attend(here, dtypes[number % 3], causal, method, heads, None if number % 2 else 0.3)


@case
def attention_again(here: Here) -> None:
    """The same bits in every run."""
    for method, packed in itertools.product(("ring", "all_gather"), (False, True)):
        found = []
        for _ in range(2):
            torch.manual_seed(13)
            again = attend_packed(here, torch.bfloat16, True, method, 2) if packed else attend(here, torch.bfloat16, True, method, 2, None)
            found.append(again)
        assert all(torch.equal(a, b) for a, b in zip(*found)), method


# Chunks of packed sequences; one is empty, one a chunk of one position.
PACKED = [3, 0, 1, 4]


def attend_packed(here: Here, dtype: torch.dtype, causal: bool, method: str, heads: int) -> list[torch.Tensor]:
    """Sequences one after the other, each of which sees itself alone."""
    about = "packed", dtype, causal, method, heads
    ends = torch.tensor([0, *itertools.accumulate(2 * here.size * n for n in PACKED)], dtype=torch.int32, device=here.device)
    length, dim = int(ends[-1]), 16
    q = normal(1, length, 4, dim, here=here, dtype=dtype)
    k, v = (normal(1, length, heads, dim, here=here, dtype=dtype) for _ in range(2))
    dy = normal(1, length, 4, dim, here=here, dtype=dtype)
    exact = [leaf(t, torch.float64) for t in (q, k, v)]
    turned = [t.transpose(1, 2).repeat_interleave(4 // t.shape[2], 1) for t in exact]
    of_sequence = torch.repeat_interleave(torch.arange(len(PACKED), device=here.device), ends.diff().long())
    mask = of_sequence[:, None] == of_sequence
    o = F.scaled_dot_product_attention(*turned, attn_mask=mask.tril() if causal else mask).transpose(1, 2)
    o.backward(dy.double())

    def own(t: torch.Tensor) -> torch.Tensor:
        return P.zig_zag_split(t, here.group, 1, ends)

    mine = [leaf(own(t)) for t in (q, k, v)]
    longest = 2 * here.size * max(PACKED) if causal else None
    ours = P.context_parallel_attention(*mine, here.group, causal, method, cu_seqlens=ends, max_seqlen=longest)
    ours.backward(own(dy))
    close(ours, own(o), ("o", *about), 2.0)
    for name, got, reference in zip("qkv", mine, exact):
        close(got.grad, own(reference.grad), (f"d{name}", *about), 4.0)
    return [ours.detach(), *(t.grad for t in mine)]


@case
def attention_packed(here: Here) -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float64]
    for number, (method, causal, heads) in enumerate(itertools.product(("ring", "all_gather"), (True, False), (4, 2, 1))):
        attend_packed(here, dtypes[number % 3], causal, method, heads)


@case
def zig_zag(here: Here) -> None:
    whole = torch.arange(4 * here.size * 3, device=here.device, dtype=torch.float64)
    ends = torch.tensor([0, 2, 2, 4], dtype=torch.int32, device=here.device) * here.size
    forms = [(whole, 0, None), (whole.reshape(3, -1), 1, None), (whole.reshape(-1, 3), -2, None), (whole.reshape(3, -1), 1, ends)]
    for x, dim, packed in forms:
        x = leaf(x)
        part = P.zig_zag_split(x, here.group, dim, packed)
        if packed is not None and here.size > 1:
            # Of each of two sequences of a position for each chunk.
            first, length = here.rank, 2 * here.size
            assert torch.equal(part, x[:, [first, length - 1 - first, length + first, 2 * length - 1 - first]])
        joined = P.zig_zag_join(part, here.group, dim, packed)
        assert torch.equal(joined, x)
        joined.square().sum().backward()
        # This rank's part of the gradient.
        assert torch.equal(here.total(x.grad), 2 * x.detach())


def refused(error: type, argument: str, call: Callable[[], Any]) -> Any:
    try:
        call()
    except error as found:
        assert found.argument == argument, found.argument
        return found
    raise AssertionError(f"not refused: {argument}")


@case
def ranks_that_differ(here: Here) -> None:
    """Every rank gets the same error."""
    if here.size == 1:
        return
    last = here.rank == here.size - 1

    def expect(argument: str, call: Callable[[], Any], *parts: str) -> None:
        error = refused(ww.RankError, argument, call)
        assert error.rank == here.size - 1 and error.op in str(error), error
        assert all(part in str(error) for part in parts), error

    x = normal(2, 6 if last else 5, 3, here=here)
    expect("x", lambda: P.sync_batch_norm(x, process_group=here.group), "[*, 6, *]", "[*, 5, *]", f"rank {here.size - 1}")
    half = normal(2, 9, here=here, dtype=torch.float16 if last else torch.float32)
    expect("x", lambda: P.sync_batch_norm(half, process_group=here.group), "float16", "float32")
    q = normal(1, 4, 2 if last else 4, 16, here=here)
    expect("q", lambda: P.context_parallel_attention(q, q, q, here.group))
    k = normal(1, 4, 3, 16, here=here)
    method = "ring" if last else "all_gather"
    expect("method", lambda: P.context_parallel_attention(k, k, k, here.group, method=method))
    weight = normal(3, 7, here=here)
    chosen = P.row_parallel_linear if last else P.column_parallel_linear
    expect("process_group", lambda: chosen(normal(2, 7, here=here), weight, process_group=here.group), "row_parallel_linear", "column_parallel_linear")


@case
def refusals(here: Here) -> None:
    """Arguments that a rank refuses by itself, before it waits for others."""
    x, group = normal(2, 3, 4, here=here), here.group
    refused(ww.ShapeError, "weight", lambda: P.sync_batch_norm(x, weight=x[0, 0], process_group=group))
    refused(ww.ShapeError, "x", lambda: P.sync_batch_norm(x[0, 0], process_group=group))
    refused(ww.ShapeError, "x", lambda: P.column_parallel_linear(x, normal(2, 3, here=here), process_group=group))
    refused(ww.ShapeError, "bias", lambda: P.row_parallel_linear(x, normal(2, 4, here=here), x[0, 0, :1], group))
    refused(ww.ParameterError, "sequence_dim", lambda: P.column_parallel_linear(x, normal(2, 4, here=here), None, group, sequence_dim=2))
    refused(ww.ShapeError, "q", lambda: P.context_parallel_attention(x, x, x, group))
    q = normal(1, 3, 2, 8, here=here)
    refused(ww.ParameterError, "method", lambda: P.context_parallel_attention(q, q, q, group, method="tree"))
    refused(ww.ShapeError, "k", lambda: P.context_parallel_attention(q, q[:, :2], q, group))
    even = normal(2, 4 * here.size, 2, 8, here=here)
    ends = torch.tensor([0, 4 * here.size * here.size], dtype=torch.int32, device=here.device)

    def packed(given: Any, tensor: torch.Tensor = even[:1], longest: int | None = None) -> Callable[[], Any]:
        return lambda: P.context_parallel_attention(tensor, tensor, tensor, group, cu_seqlens=given, max_seqlen=longest)

    packed(ends)()
    refused(ww.ShapeError, "q", packed(ends, even))
    refused(ww.ParameterError, "max_seqlen", packed(None, even, 4))
    refused(ww.DtypeError, "cu_seqlens", packed(ends.long()))
    refused(ww.ShapeError, "cu_seqlens", packed(ends[None]))
    if here.size > 1:
        refused(ww.ParameterError, "cu_seqlens", packed(torch.cat([ends[:1], ends[1:] // 2 + 1, ends[1:]])))
    refused(ww.ParameterError, "cu_seqlens", packed(torch.cat([ends, ends[1:].repeat(3) // 2])))
    refused(ww.ParameterError, "cu_seqlens", packed(torch.cat([ends, ends[1:].repeat(2) * 2])))
    refused(ww.ShapeError, "logits", lambda: P.vocab_parallel_cross_entropy(x, torch.zeros(2, 3, dtype=torch.long), 1000, group))
    refused(ww.ParameterError, "num_classes", lambda: P.vocab_parallel_cross_entropy(x, torch.zeros(2, 3, dtype=torch.long), 0, group))
    if here.size > 1:
        refused(ww.ParameterError, "the number of positions", lambda: P.context_parallel_attention(q, q, q, group, True))
        refused(ww.ParameterError, "out_features", lambda: P.ColumnParallelLinear(4, 5 if here.size != 5 else 6, process_group=group)) if here.size != 5 else None


def left_alone(here: Here) -> None:
    """A rank that fails before a call: the others get an error from the process group, and do not hang."""
    x = normal(2, 11, here=here)
    if here.rank == here.size - 1:
        refused(ww.ShapeError, "weight", lambda: P.sync_batch_norm(x, weight=x[0, :1], process_group=here.group))
        return
    started = time.monotonic()
    try:
        P.sync_batch_norm(x, process_group=here.group)
    except RuntimeError:
        assert time.monotonic() - started < 5 * PATIENCE.total_seconds()
        return
    raise AssertionError("a rank was missing")


def attempt(name: str, function: Callable[[Here], None], here: Here) -> bool:
    error, started = None, time.monotonic()
    torch.manual_seed(1)
    try:
        function(here)
        if here.device.type == "cuda":
            torch.cuda.synchronize()
    except BaseException:
        error = traceback.format_exc()
    seconds = round(time.monotonic() - started, 2)
    line = {"case": name, "ranks": here.size, "rank": here.rank, "seconds": seconds, "error": error}
    # In one piece, because ranks may share what they write to.
    print(json.dumps(line) + "\n", end="", flush=True)
    return error is None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--meet", default="env://", help="where the processes meet")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpus = torch.cuda.device_count() >= world
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank))) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    # A rank waits until those before it have been through all cases of fewer ranks; what started it ends it sooner.
    patience = datetime.timedelta(minutes=10)
    dist.init_process_group("nccl" if on_gpus else "gloo", init_method=options.meet, rank=rank, world_size=world, timeout=patience)
    groups = {size: dist.new_group(list(range(size)), timeout=patience) for size in range(1, world + 1)}
    impatient = None if on_gpus else dist.new_group(list(range(world)), timeout=PATIENCE)
    for size, group in groups.items():
        for name, function in {**CASES, **(ON_GPUS if on_gpus else {})}.items():
            if rank < size and options.only in name and not attempt(name, function, Here(rank, size, group, device)):
                return 1
    # Through NCCL a time-out ends the process.
    if impatient is not None and world > 1 and options.only in "left_alone":
        if not attempt("left_alone", left_alone, Here(rank, world, impatient, device)):
            return 1
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Threads of a group that has failed are not waited for.
    os._exit(code)
