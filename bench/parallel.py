#!/usr/bin/env python3
"""Times what several GPUs compute together, one process for each: `warpwright.torch.parallel` beside PyTorch's, and beside what one GPU takes alone.

    torchrun --nproc-per-node 2 bench/parallel.py --out bench/data/parallel/NAME.jsonl [--only attention]

A line of JSON for each contender of each case: microseconds of a forward and a backward pass by the device's clock, the median of samples, each of the slowest
rank. `alone` is the same work of one GPU without an exchange, `exchange` the exchange without the work. A contender that fails has a line that says
why; if it fails on some of the ranks only, they leave, because the others wait for them. --graphs captures the steps of batch norm and linear
layers in CUDA graphs, too. --tiny runs small cases, on CPUs with gloo if there are too few GPUs, to see that everything works; its times mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F

import warpwright as ww
import warpwright.torch as wt

Contenders = Iterator[tuple[str, Callable[[], Callable[[], Any]]]]
SAMPLES, PATIENCE = 9, datetime.timedelta(seconds=120)
# Seconds that ranks fail after each other.
TOLERANCE = 20


class Lab:
    """Where a rank measures."""

    def __init__(self, tiny: bool) -> None:
        self.tiny, self.measured = tiny, 0
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.on_gpu = torch.cuda.device_count() >= self.size
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if self.on_gpu else torch.device("cpu")
        if self.on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if self.on_gpu else "gloo", timeout=PATIENCE)

    def once(self, step: Callable[[], Any], calls: int) -> float:
        """Microseconds of a call, of `calls` in a row."""
        dist.barrier()
        if not self.on_gpu:
            start = time.perf_counter()
            for _ in range(calls):
                step()
            return (time.perf_counter() - start) / calls * 1e6
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(calls):
            step()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / calls * 1e3

    def captured(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """The step as a CUDA graph, with the calls of NCCL."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Threads of the process group ask for events meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            kept = step()

        def replay() -> Any:
            graph.replay()
            return kept

        return replay

    def all_fail(self, failed: bool) -> bool:
        """Whether no rank has got through what this one has not, so that none waits for it."""
        store = dist.distributed_c10d._get_default_store()
        self.measured += 1
        key = f"failed/{self.measured}"
        if not failed:
            return True
        store.add(key, 1)
        until = time.monotonic() + TOLERANCE
        while time.monotonic() < until:
            if store.add(key, 0) == self.size:
                return True
            time.sleep(0.1)
        return False

    def slowest(self, us: float) -> float:
        worst = torch.tensor([us], dtype=torch.float64, device=self.device)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return float(worst)

    def microseconds(self, step: Callable[[], Any]) -> tuple[float, float]:
        """The median over samples, and their spread as a part of it."""
        if self.tiny:
            step()
            return self.slowest(self.once(step, 1)), 0.0
        for _ in range(3):
            step()
        calls = max(1, min(50, int(20_000 / self.slowest(self.once(step, 2)))))
        found = [self.slowest(self.once(step, calls)) for _ in range(SAMPLES)]
        median = statistics.median(found)
        return median, (max(found) - min(found)) / median

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype)


def both_ways(function: Callable[..., Any], tensors: Any, dy: torch.Tensor, parameters: Any = ()) -> Callable[[], Any]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    wanted = [*leaves, *parameters]
    return lambda: torch.autograd.grad(function(*leaves), wanted, dy)


def batch_norms(lab: Lab) -> Iterator[tuple[dict[str, Any], Contenders]]:
    shapes = [(2, 8, 4, 4)] if lab.tiny else [(32, 64, 112, 112), (32, 256, 56, 56), (32, 512, 28, 28), (32, 2048, 7, 7)]
    for shape in shapes:
        channels = shape[1]
        x, dy = (lab.normal(*shape).to(memory_format=torch.channels_last) for _ in range(2))

        def norm(cls: Any) -> Callable[[], Callable[[], Any]]:
            def make() -> Callable[[], Any]:
                module = cls(channels).to(lab.device)
                return both_ways(module, [x], dy, module.parameters())

            return make

        def exchange() -> Callable[[], Any]:
            own, sums = (lab.normal(n, dtype=torch.float32) for n in (2 * channels + 1, 2 * channels))
            everyone = lab.normal(lab.size * len(own), dtype=torch.float32)

            def step() -> None:
                dist.all_gather_into_tensor(everyone, own)
                dist.all_reduce(sums)

            return step

        yield {"op": "sync_batch_norm", "shape": shape, "dtype": "bf16"}, iter([
            ("warpwright", norm(wt.parallel.SyncBatchNorm)),
            ("torch", norm(torch.nn.SyncBatchNorm)),
            ("warpwright alone", norm(wt.nn.BatchNorm2d)),
            ("torch alone", norm(torch.nn.BatchNorm2d)),
            ("exchange", exchange),
        ])


class Mlp(torch.nn.Module):
    def __init__(self, up: torch.nn.Module, down: torch.nn.Module) -> None:
        super().__init__()
        self.up, self.down = up, down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


def linears(lab: Lab) -> Iterator[tuple[dict[str, Any], Contenders]]:
    for rows, width, inner in [(8, 8, 16)] if lab.tiny else [(4096, 4096, 16384), (1024, 4096, 16384), (16384, 4096, 16384)]:
        like = {"device": lab.device, "dtype": torch.bfloat16}
        x, dy = lab.normal(rows, width), lab.normal(rows, width)
        part = inner // lab.size

        def ours(dim: Any) -> Callable[[], Callable[[], Any]]:
            def make() -> Callable[[], Any]:
                up = wt.parallel.ColumnParallelLinear(width, inner, False, sequence_dim=dim, **like)
                down = wt.parallel.RowParallelLinear(inner, width, False, sequence_dim=dim, **like)
                own = slice(None) if dim is None else slice(0, rows // lab.size)
                model = Mlp(up, down)
                return both_ways(model, [x[own]], dy[own], model.parameters())

            return make

        def theirs(sequence: bool) -> Callable[[], Callable[[], Any]]:
            def make() -> Callable[[], Any]:
                from torch.distributed.device_mesh import init_device_mesh
                from torch.distributed.tensor import Shard
                from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

                model = Mlp(torch.nn.Linear(width, inner, False, **like), torch.nn.Linear(inner, width, False, **like))
                mesh = init_device_mesh(lab.device.type, (lab.size,))
                columns, sums = ({"input_layouts": Shard(0)}, {"output_layouts": Shard(0)}) if sequence else ({}, {})
                parallelize_module(model, mesh, {"up": ColwiseParallel(**columns), "down": RowwiseParallel(**sums)})
                own = slice(0, rows // lab.size) if sequence else slice(None)
                return both_ways(model, [x[own]], dy[own], model.parameters())

            return make

        def alone(cls: Any) -> Callable[[], Callable[[], Any]]:
            def make() -> Callable[[], Any]:
                model = Mlp(cls(width, part, False, **like), cls(part, width, False, **like))
                return both_ways(model, [x], dy, model.parameters())

            return make

        def exchange() -> Callable[[], Any]:
            y = lab.normal(rows, width)

            def step() -> None:
                dist.all_reduce(y)
                dist.all_reduce(y)

            return step

        yield {"op": "parallel_linear", "shape": (rows, width, inner), "dtype": "bf16"}, iter([
            ("warpwright", ours(None)),
            ("torch", theirs(False)),
            ("warpwright sequence", ours(0)),
            ("torch sequence", theirs(True)),
            ("warpwright alone", alone(wt.nn.Linear)),
            ("torch alone", alone(torch.nn.Linear)),
            ("exchange", exchange),
        ])


def attentions(lab: Lab) -> Iterator[tuple[dict[str, Any], Contenders]]:
    tiny = [(16 * lab.size, 4, 2, 1), (16 * lab.size, 4, 2, 4)]
    for length, heads, kv_heads, packed in tiny if lab.tiny else [(32768, 32, 32, 1), (32768, 32, 8, 1), (8192, 32, 8, 1), (32768, 32, 8, 8)]:
        dim = 32 if lab.tiny else 128
        # Sequences of one length, one after the other.
        ends = torch.arange(packed + 1, device=lab.device, dtype=torch.int32) * (length // packed)
        longest = length // packed
        own = length // lab.size
        q, dy = lab.normal(1, own, heads, dim), lab.normal(1, own, heads, dim)
        k, v = (lab.normal(1, own, kv_heads, dim) for _ in range(2))

        def ours(method: str) -> Callable[[], Callable[[], Any]]:
            options = {"cu_seqlens": ends, "max_seqlen": longest} if packed > 1 else {}

            def function(*tensors: torch.Tensor) -> torch.Tensor:
                return wt.parallel.context_parallel_attention(*tensors, causal=True, method=method, **options)

            return lambda: both_ways(function, [q, k, v], dy)

        def alone() -> Callable[[], Any]:
            # As much of the whole as each rank computes, by heads.
            mine, others = heads // lab.size, max(kv_heads // lab.size, 1)
            tensors = [lab.normal(1, length, n, dim) for n in (mine, others, others)]
            options = {}
            if packed > 1:
                options = {f"cu_seqlens_{t}": ends for t in "qk"} | {f"max_seqlen_{t}": longest for t in "qk"}
            return both_ways(lambda *qkv: wt.attention(*qkv, causal=True, **options), tensors, lab.normal(1, length, mine, dim))

        def theirs(rotate: str) -> Callable[[], Callable[[], Any]]:
            def make() -> Callable[[], Any]:
                from torch.distributed.device_mesh import init_device_mesh
                from torch.distributed.tensor.experimental import context_parallel
                from torch.distributed.tensor.experimental._attention import set_rotate_method
                from torch.nn.attention import SDPBackend, sdpa_kernel

                set_rotate_method(rotate)
                mesh = init_device_mesh(lab.device.type, (lab.size,))
                # Sharded when the context begins. Heads of keys are repeated as it asks for.
                whole = [lab.normal(1, heads, length, dim) for _ in range(3)]
                scope = context_parallel(mesh, buffers=whole, buffer_seq_dims=[2, 2, 2])

                def step() -> Any:
                    leaves = [t.detach().requires_grad_() for t in whole]
                    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
                        o = F.scaled_dot_product_attention(*leaves, is_causal=True)
                    return torch.autograd.grad(o, leaves, torch.ones_like(o))

                step.scope = scope  # type: ignore[attr-defined]
                return step

            return make

        def exchange() -> Callable[[], Any]:
            everyone = [t.new_empty((lab.size * t.shape[1], *t.shape[2:])) for t in (k, v)]
            sums = [t.float() for t in everyone]
            ends = [t.new_empty(t.shape[1:], dtype=torch.float32) for t in (k, v)]

            def step() -> None:
                for each, t in zip(everyone * 2, (k, v) * 2):
                    dist.all_gather_into_tensor(each, t[0])
                for end, total in zip(ends, sums):
                    dist.reduce_scatter_tensor(end, total)

            return step

        about = {"op": "context_parallel_attention", "shape": (1, length, heads, kv_heads, dim), "dtype": "bf16"}
        if packed > 1:
            about["sequences"] = packed
        yield about, iter([
            ("warpwright ring", ours("ring")),
            ("warpwright all_gather", ours("all_gather")),
            ("warpwright alone", alone),
            ("torch allgather", theirs("allgather")),
            ("torch alltoall", theirs("alltoall")),
            ("exchange", exchange),
        ] if kv_heads == heads or lab.tiny and packed == 1 else [
            ("warpwright ring", ours("ring")), ("warpwright all_gather", ours("all_gather")), ("warpwright alone", alone), ("exchange", exchange),
        ])


def measured(lab: Lab, make: Callable[[], Callable[[], Any]], graph: bool) -> dict[str, Any]:
    try:
        step = lab.captured(make()) if graph else make()
        scope = getattr(step, "scope", None)
        if scope is None:
            us, spread = lab.microseconds(step)
        else:
            with scope:
                us, spread = lab.microseconds(step)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}
    return {"us": round(us, 2), "spread": round(spread, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a file that lines are added to")
    parser.add_argument("--only", default="", help="cases whose operation has this in its name")
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    lab = Lab(options.tiny)
    if not (lab.on_gpu or lab.tiny):
        parser.error(f"{lab.size} GPUs are needed, or --tiny")
    gpu = torch.cuda.get_device_name(lab.device) if lab.on_gpu else "none"
    where = {"gpu": gpu, "ranks": lab.size, "torch": torch.__version__, "warpwright": ww.__version__}
    for cases in (batch_norms, linears, attentions):
        for about, contenders in cases(lab):
            if options.only not in about["op"]:
                continue
            graphs = [False, True] if options.graphs and cases is not attentions else [False]
            for graph, (who, make) in itertools.product(graphs, list(contenders)):
                found = measured(lab, make, graph)
                line = json.dumps({**about, "who": f"{who} in a graph" if graph else who, **found, **where})
                if not lab.all_fail("failed" in found):
                    print(f"rank {lab.rank} alone: {line}", flush=True)
                    os._exit(1)
                if lab.rank == 0:
                    print(line, flush=True)
                    if options.out:
                        options.out.parent.mkdir(parents=True, exist_ok=True)
                        with options.out.open("a") as out:
                            out.write(line + "\n")
                if lab.on_gpu:
                    torch.cuda.empty_cache()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
