#!/usr/bin/env python3
"""Times whole models with PyTorch's operators and with ours (`warpwright.torch.patch`), on one GPU: eager, compiled and as CUDA graphs.

    python3 bench/models.py --out bench/data/models/NAME.jsonl [--models llama,unet] [--variants eager,patched] [--seconds 1]

A step is the forward and the backward pass, or the forward pass alone of models that are named so. Wall milliseconds are a median over blocks
of steps that the host runs ahead in; variants that no compiler has made take turns. Errors are norm-wise against a step of PyTorch in f32 with the same weights: of the result, and of all gradients
together. Each variant has the device's time of a step and the names of the kernels of attention, which depend on it: transformers leaves a
causal mask out only where it can read that nothing is masked, which it cannot in what is compiled or captured. A profile names the kernels above 2 % of
the device's time that are not ours. A variant that fails has a line that says why; what breaks the GPU's context or the process costs the rest of
its model alone. Libraries that are missing leave their models out. --tiny runs small models on the CPU, ours in the emulator, to see
that everything works.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from comparison.contender import installed  # noqa: E402
from comparison.lab import PACKAGES, about  # noqa: E402
from comparison.sources import commit  # noqa: E402
from comparison.zoo import MODELS, Model  # noqa: E402

# What is put together: whether ours is in it, with which options, and what the step is made into.
VARIANTS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "eager": (None, ""),
    "patched": ({}, ""),
    # The backward pass in the thread that asks for it, not in that of the device.
    "eager in one thread": (None, "thread"),
    "patched in one thread": ({}, "thread"),
    "everything": ({"enable": "everything"}, ""),
    # Of causal language models: the error is that of the loss.
    "patched without logits": ({"enable": {"linear_cross_entropy"}}, ""),
    "patched without logits+graphs": ({"enable": {"linear_cross_entropy"}}, "graph"),
    "graphs": (None, "graph"),
    "patched+graphs": ({}, "graph"),
    # Feed-forward parts in training with activations of their own.
    "patched without mlp+graphs": ({"disable": {"mlp"}}, "graph"),
    "compile": (None, "compile"),
    "patched+compile": ({}, "compile"),
    "compile+graphs": (None, "compile+graph"),
    "patched+compile+graphs": ({}, "compile+graph"),
    # torch.compile(model, backend="warpwright"), as it is and with what is slower by itself, too.
    "backend": (None, "backend"),
    "backend+graphs": (None, "backend+graph"),
    "patched+backend+graphs": ({}, "backend+graph"),
    "backend everything+graphs": (None, "backend everything+graph"),
}
USUAL = ["eager", "patched", "graphs", "patched+graphs"]
LIBRARIES = ("transformers", "timm", "torchvision")
STEPS = 3
SHOWN = 0.02
# Kernels of ours have plain names; those of others say where they are from.
ATTENTION = re.compile(r"attention|fmha|flash|sdpa|attn", re.IGNORECASE)
OTHERS = re.compile(r"::|^void |[ <(]|^(_Z|nccl|triton|cutlass|cudnn|nvjet|sm\d+_|ampere|volta|turing|hopper|gemm[SKv]|Mem|fmha|flash|.*_kernel$)")


class Step:
    """A step of a model in a variant. Calling it runs it; result and gradients are those of the last call."""

    def __init__(self, model: Model, module: Any, inputs: dict[str, Any]) -> None:
        self.model, self.module, self.inputs, self.called = model, module, inputs, module
        self.result: Any = None
        self.loss: Any = None

    def __call__(self) -> None:
        import torch

        # Results of graphs that a compiler made are read before the next step.
        torch.compiler.cudagraph_mark_step_begin()
        for parameter in self.module.parameters():
            parameter.grad = None
        with torch.set_grad_enabled(self.model.training):
            result, loss = self.model.loss(self.called, self.inputs)
        if self.model.training:
            loss.backward()
        self.result, self.loss = result.detach(), loss.detach()

    def gradients(self) -> list[Any]:
        return [parameter.grad for parameter in self.module.parameters() if parameter.grad is not None]


def made(model: Model, tiny: bool, device: str, exact: bool) -> Step:
    """A step as PyTorch has it; exact: of the reference. Weights and inputs are always the same."""
    import torch

    torch.manual_seed(7)
    # Where it is to run: the processor would draw weights for seconds.
    with torch.device(device):
        module, inputs = model.make(tiny)
    form = {"memory_format": torch.channels_last} if model.channels_last else {}
    dtype = torch.float32 if exact else model.dtype
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = model.factors == "tf32" and not exact
    module.train(model.training).to(device=device, dtype=dtype, **form)
    for name, value in inputs.items():
        value = value.to(device)
        if value.is_floating_point():
            value = value.to(dtype)
        inputs[name] = value.contiguous(memory_format=torch.channels_last) if form and value.dim() == 4 else value
    return Step(model, module, inputs)


def in_one_thread(step: Step) -> Callable[[], None]:
    """The step without the threads that PyTorch's autograd has for devices."""
    import torch

    def run() -> None:
        with torch.autograd.set_multithreading_enabled(False):
            step()

    return run


def captured(step: Step) -> Callable[[], None]:
    """The step as a CUDA graph."""
    import torch

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(STEPS):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def distance(found: list[Any], wanted: list[Any]) -> float:
    above = sum(float((f.double() - w.double().to(f.device)).square().sum()) for f, w in zip(found, wanted))
    below = sum(float(w.double().square().sum()) for w in wanted)
    return (above / below) ** 0.5 if below else above**0.5


def milliseconds(runs: list[Callable[[], None]], wait: Callable[[], None], seconds: float, steps: int) -> list[tuple[float, float]]:
    """Median and interquartile range of a step of each, of blocks of so many, each for so long. They take turns: a host that others use, too, is slower
    by a half for seconds on end."""
    times: list[list[float]] = [[] for _ in runs]
    began = time.perf_counter()
    while len(times[0]) < 1 + steps or time.perf_counter() - began < seconds * len(runs):
        for run, found in zip(runs, times):
            start = time.perf_counter()
            for _ in range(steps):
                run()
            wait()
            found.append((time.perf_counter() - start) / steps * 1e3)
    quarters = [statistics.quantiles(found, n=4) for found in times]
    return [(statistics.median(found), high - low) for found, (low, _, high) in zip(times, quarters)]


def profile(run: Callable[[], None], wait: Callable[[], None]) -> dict[str, Any]:
    """The device's milliseconds of a step, the part that is ours, the kernels of attention, and others' above 2 % of the time, with their
    parts and launches."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
        wait()
    spent: dict[str, list[float]] = {}
    for event in seen.events():
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False):
            one = spent.setdefault(event.name, [0.0, 0])
            one[0] += event.time_range.elapsed_us()
            one[1] += 1
    total = sum(us for us, _ in spent.values()) or 1.0
    others = {name: one for name, one in spent.items() if OTHERS.search(name)}
    top = sorted(others.items(), key=lambda item: -item[1][0])
    return {
        "device_ms": total / 1e3,
        "ours_part": 1 - sum(us for us, _ in others.values()) / total,
        "kernels": int(sum(count for _, count in spent.values())),
        "attention": sorted(name[:120] for name in spent if ATTENTION.search(name)),
        "others": [[name[:120], us / total, count] for name, (us, count) in top if us > SHOWN * total],
    }


def everything() -> list[str]:
    from warpwright.torch._patch import KINDS

    # Results without logits are no results to compare.
    return [kind for kind in KINDS if kind != "linear_cross_entropy"]


def compiled(module: Any, form: str, args: argparse.Namespace) -> Any:
    """A module as `torch.compile` makes it; on the CPU without Inductor, whose code takes long to compile there."""
    import torch

    graphs = {"triton.cudagraphs": True} if "+graph" in form else {}
    if form.startswith("compile"):
        return torch.compile(module, backend="aot_eager") if args.tiny else torch.compile(module, options=graphs or None)
    from torch._dynamo.backends.debugging import aot_eager
    from warpwright.torch import compiler

    compiler.reports.clear()
    # Results without logits in memory are as fast, but not what is to be shown here.
    kinds = set(compiler.KINDS) - {"linear_cross_entropy"} if "everything" in form else set()
    enable = (args.enable or kinds) - args.disable

    def in_emulator(graph: Any, inputs: Any) -> Any:
        compiler.reports.append(compiler.rewrite(graph, enable=enable, disable=args.disable, emulator=True))
        return aot_eager(graph, inputs)

    options = {"warpwright.enable": enable, "warpwright.disable": args.disable, **graphs}
    return torch.compile(module, backend=in_emulator) if args.tiny else torch.compile(module, backend=compiler.backend, options=options)


class Variant:
    """A variant of a model, ready to be timed. `row` is its line of numbers, `run` a step."""

    def __init__(self, model: Model, name: str, reference: Any, args: argparse.Namespace) -> None:
        import torch

        gpu = not args.tiny
        ours, form = VARIANTS[name]
        self.row: dict[str, Any] = {}
        if gpu:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            others = torch.cuda.memory_allocated()
        # Kept for graphs, which read its parameters and inputs.
        self.step = step = made(model, args.tiny, args.device, exact=False)
        if ours is not None:
            import warpwright.torch as wt
            from warpwright.torch._patch import SOURCES

            options = ours | ({"enable": everything()} if ours.get("enable") == "everything" else {})
            patched = wt.patch(step.module, emulator=not gpu, sources=(*SOURCES, "comparison"), **options)
            self.row["replaced"] = f"{len(patched.replaced)} of {len(patched.entries)}"
        if is_compiled(name):
            torch._dynamo.reset()
            step.called = compiled(step.module, form, args)
        began = time.perf_counter()
        self.run: Callable[[], None] = step
        if form == "graph" and gpu:
            self.run = captured(step)
        elif form == "thread":
            self.run = in_one_thread(step)
        # A compiler's graphs are captured in the third.
        for _ in range(1 if args.tiny else 4 if "+graph" in form else 2):
            self.run()
        if gpu:
            torch.cuda.synchronize()
            self.row["peak_mb"] = (torch.cuda.max_memory_allocated() - others) / 2**20
        self.row["first_s"] = time.perf_counter() - began
        # A loss without logits is the result.
        alone = step.result.shape != reference[0].shape
        self.row["error"] = distance([step.loss], reference[1:2]) if alone else distance([step.result], reference[:1])
        self.row["gradient_error"] = distance(step.gradients(), reference[2:]) if model.training else None
        if ours is not None and not form:
            self.row["left"] = patched.left()
        if form.startswith("backend"):
            from warpwright.torch.compiler import reports

            self.row["replaced"] = f"{sum(len(report.replaced) for report in reports)} of {sum(len(report.lines) for report in reports)}"
            self.row["lines"] = sorted({(line.kind, line.about, line.why or "") for report in reports for line in report.lines})


def is_compiled(name: str) -> bool:
    return VARIANTS[name][1].startswith(("compile", "backend"))


def run_variants(model: Model, names: list[str], reference: Any, args: argparse.Namespace, write: Callable[[dict[str, Any]], None]) -> None:
    """The lines of variants that are timed in turns. One that cannot be made has a line that says why."""
    import torch

    wait = (lambda: None) if args.tiny else torch.cuda.synchronize
    about_model = {"model": model.name, "dtype": model.factors, "training": model.training}
    ready: dict[str, Variant] = {}

    def failed(variants: list[str], error: Exception) -> None:
        lines = str(error).splitlines() or [""]
        for name in variants:
            write(about_model | {"variant": name, "failed": f"{type(error).__name__}: {lines[0][:300]}"})

    for name in names:
        try:
            ready[name] = Variant(model, name, reference, args)
        except Exception as e:
            failed([name], e)
    if not ready:
        return
    try:
        times = milliseconds([variant.run for variant in ready.values()], wait, args.seconds, 1 if args.tiny else STEPS)
        for variant, (median, spread) in zip(ready.values(), times):
            variant.row |= {"ms": median, "spread_ms": spread}
        # The profiler slows down what comes after it, so it is last.
        for name, variant in ready.items():
            if not args.tiny:
                seen = profile(variant.run, wait)
                variant.row["profile"] = seen if name in args.profile else {key: value for key, value in seen.items() if key != "others"}
            write(about_model | {"variant": name} | variant.row)
    except Exception as e:
        failed(list(ready), e)


def run_model(model: Model, args: argparse.Namespace, write: Callable[[dict[str, Any]], None]) -> None:
    """A line for each variant."""
    import torch

    step = made(model, args.tiny, args.device, exact=True)
    step()
    # Beside what is measured it takes no memory of the GPU.
    reference = [t.cpu() for t in (step.result, step.loss, *step.gradients())]
    del step
    # What a compiler makes is forgotten before it makes the next.
    alone = [[name] for name in args.variants if is_compiled(name)]
    for names in [[name for name in args.variants if not is_compiled(name)], *alone]:
        run_variants(model, names, reference, args, write)
        gc.collect()
        if not args.tiny:
            # A context that is broken raises an error here, and the process ends.
            torch.cuda.synchronize()


def shown(row: dict[str, Any]) -> str:
    head = f"{row['model']:<38}{row['dtype']:<6}{row['variant']:<24}"
    if "failed" in row:
        return f"{head}failed: {row['failed'][:120]}"
    gradients = "-" if row["gradient_error"] is None else f"{row['gradient_error']:.1e}"
    device = row.get("profile", {}).get("device_ms", 0)
    text = f"{head}{row['ms']:>9.2f}{device:>9.2f}{row.get('peak_mb', 0):>9.0f}{row['error']:>9.1e}{gradients:>9}  {row.get('replaced', '')}"
    for name, part, count in row.get("profile", {}).get("others", ()):
        text += f"\n      {part:6.1%} {count:>4} x {name}"
    return text


def work(args: argparse.Namespace) -> None:
    """Runs a model, each line of JSON on the standard output."""
    lab = about((*PACKAGES, *LIBRARIES)) if not args.tiny else {"gpu": "CPU", "driver": "", "versions": {}}
    made_by = {**lab, "commit": args.commit, "date": datetime.date.today().isoformat()}

    def write(row: dict[str, Any]) -> None:
        print("\x1e" + json.dumps(row | made_by), flush=True)

    if args.tiny:
        import torch

        torch.set_num_threads(1)
    model = MODELS[int(args.worker)]
    try:
        run_model(model, args, write)
    except Exception as e:
        write({"model": model.name, "dtype": model.factors, "variant": "-", "failed": f"{type(e).__name__}: {str(e)[:300]}"})


def in_processes(chosen: list[int], args: argparse.Namespace, take: Callable[[dict[str, Any]], None]) -> None:
    """Runs each model in a process of its own, which it may break, and in which nothing has been profiled before."""
    for at in chosen:
        command = [sys.executable, __file__, "--worker", str(at), "--variants", ",".join(args.variants)]
        command += ["--seconds", str(args.seconds), "--profile", ",".join(args.profile), "--commit", args.commit, "--device", args.device]
        command += ["--enable", ",".join(args.enable), "--disable", ",".join(args.disable)]
        process = subprocess.Popen(command + (["--tiny"] if args.tiny else []), stdout=subprocess.PIPE, text=True)
        for line in process.stdout or ():
            if line.startswith("\x1e"):
                take(json.loads(line[1:]))
        if process.wait() != 0:
            take({"model": MODELS[at].name, "dtype": MODELS[at].factors, "variant": "-", "failed": f"the process ended with {process.returncode}"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: [part.strip() for part in text.split(",") if part.strip()]  # noqa: E731
    parser.add_argument("--models", type=lambda text: [part.strip() for part in text.split(";") if part.strip()], default=[],
                        help="only those whose names begin so, with ; between them")
    parser.add_argument("--variants", type=split, default=USUAL, help=f"of {', '.join(VARIANTS)}; by default {', '.join(USUAL)}")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each variant is measured")
    parser.add_argument("--profile", type=split, default=["eager", "patched"], help="variants whose kernels are listed")
    parser.add_argument("--out", type=Path, help="write JSON lines here")
    parser.add_argument("--commit", default=None, help="what to record; by default git's HEAD")
    parser.add_argument("--device", default="cuda", help="where to run")
    parser.add_argument("--list", action="store_true", help="name the models and variants")
    parser.add_argument("--enable", type=lambda text: set(split(text)), default=set(), help="kinds that the backend replaces where they are slower, too")
    parser.add_argument("--disable", type=lambda text: set(split(text)), default=set(), help="kinds that the backend leaves")
    parser.add_argument("--tiny", action="store_true", help="small models on the CPU")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.device = "cpu" if args.tiny else args.device
    args.commit = commit() if args.commit is None else args.commit
    for variant in (*args.variants, *args.profile):
        if variant not in VARIANTS:
            parser.error(f"variant {variant!r}, expected one of {', '.join(VARIANTS)}")
    if args.worker:
        work(args)
        return 0
    if args.list:
        print("\n".join(f"{m.name} ({m.factors}{'' if m.training else ', forward'})" for m in MODELS) + f"\nvariants: {', '.join(VARIANTS)}")
        return 0
    named = [i for i, m in enumerate(MODELS) if not args.models or any(m.name.startswith(name) for name in args.models)]
    if not named:
        parser.error(f"no model begins with {' or '.join(args.models)}; --list names them")
    for i in named:
        if not installed(MODELS[i].needs):
            print(f"{MODELS[i].name}: left out, {MODELS[i].needs} is not installed", flush=True)
    rows: list[dict[str, Any]] = []
    out = open(args.out, "w", encoding="utf-8") if args.out else None

    def take(row: dict[str, Any]) -> None:
        rows.append(row)
        print(shown(row), flush=True)
        if out:
            # Line by line: a run that is cut off keeps what it has.
            out.write(json.dumps(row) + "\n")
            out.flush()

    print(f"{'model':<38}{'dtype':<6}{'variant':<24}{'ms':>9}{'device':>9}{'peak MB':>9}{'error':>9}{'grad':>9}  replaced", flush=True)
    in_processes([i for i in named if installed(MODELS[i].needs)], args, take)
    if out:
        out.close()
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
