"""Where cases are measured: on a GPU, or with made-up times that exercise everything else."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any, Sequence

from .suites import GATES, Case

# Norm-wise errors that a correct implementation stays within; the format's own error for 4 bits of normal data.
BUDGETS = {"f64": 1e-13, "f32": 1e-6, "tf32": 4.5e-4, "bf16": 4e-3, "f16": 5e-4}
FORMATS = {"nf4": 0.0925, "fp4": 0.1225, "int4": 0.14, "int4_asymmetric": 0.14, "nested": 0.03}
# Of recurrent nets 1.5 times those of PyTorch, whose gradients are sums of products that were rounded.
STATES = {"f32": 5.7e-7, "tf32": 5.7e-4, "bf16": 3.45e-3, "f16": 3.9e-4}
STATE_GRADIENTS = {"f32": 1.4e-6, "tf32": 7.5e-4, "bf16": 6.3e-3, "f16": 7.5e-4}
OURS = "warpwright"
# Others may round in between; a result this far off is a different function.
RIVALS_MAY = 5
FLUSH_BYTES = 256 << 20
# About what reading that much takes, and how often it is read in front of a contender with much work on the host.
READ_US = 60
# Memory that is kept from case to case.
MOST_RESERVED = 60 << 30
MOST_READS = 24
# A host that stumbles now and then must not be seen by the device.
LEAST_READS = 6


@dataclass
class Result:
    """Median microseconds on the device, spread and error of each contender; ours is `warpwright`."""

    us: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def budget(case: Case) -> float:
    if "quantize" in case.op:
        return FORMATS[case.op.split("quantize_")[1]]
    if case.op == "matmul" and case.dtype == "f32":
        # Sums of the common dimension in f32: 1.5 times PyTorch's error, which is 8.1e-7 for 2048 terms and grows as a root.
        return 1.5 * 8.1e-7 * math.sqrt(case.shape[2] / 2048)
    if case.op == "conv" and case.dtype == "f32":
        # As of products, and for rounded factors 1.5 times the error of one rounding of each.
        return max(BUDGETS[case.factors], 1.5 * 8.1e-7 * math.sqrt(case.terms / 2048))
    if case.op == "scaled_matmul":
        # Tensor cores cut off what is below 14 bits of sums that are not promoted: 2e-3 for 8192 terms, which grows about as a root.
        return 3e-3 * max(1, math.sqrt(case.shape[2] / 8192)) if case.option("accumulation") == "fast" else BUDGETS["bf16"]
    if case.op == "matmul_4bit":
        # Weights are rounded, too.
        return BUDGETS[case.dtype] * math.sqrt(2)
    if case.op in GATES and case.direction == "forward":
        # Sums of more than 1024 terms in f32 err more, as above.
        grows = math.sqrt(max(1, case.shape[-1] / 1024)) if case.factors == "f32" else 1
        return STATES[case.factors] * grows
    if case.op in GATES:
        # Gradients of weights are sums over all places.
        places = math.prod(case.shape[:-2])
        return max(STATE_GRADIENTS[case.factors], 1.5 * 8.1e-7 * math.sqrt(places / 2048))
    # A conversion rounds to the type of its result.
    return BUDGETS[case.option("to", case.dtype)]


class Fake:
    """No GPU: times follow from the bytes and a hash of the names."""

    gpu = "dry run"
    driver = "0"
    versions: dict[str, str] = {}
    bandwidth = 4.3e12

    def floor_us(self, case: Case) -> float:
        return max(case.bytes / self.bandwidth, case.operations / 790e12) * 1e6

    def measure(self, case: Case) -> Result:
        floor = self.floor_us(case)
        result = Result()
        for who in ("warpwright", "torch", "torch.compile"):
            if who != "warpwright" and "quantize" in case.op:
                continue
            wobble = hashlib.sha256(f"{case} {who}".encode()).digest()[0] / 255
            result.us[who] = max(2.0, floor * (1.02 + 0.3 * wobble))
            result.spread[who] = 0.01 * result.us[who]
            result.error[who] = budget(case) / 4
        return result

    def host(self) -> list[dict[str, Any]]:
        return [{"op": "silu", "host_us": {"warpwright": 4.0, "torch": 5.0}, "gpu": self.gpu, "versions": {},
                 "date": "2026-01-01"}]


def compile_as_here() -> None:
    """Sets what compiled functions must be compiled with: their gradients are taken several times."""
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False


PACKAGES = ("warpwright", "torch", "triton", "bitsandbytes", "liger_kernel", "quack-kernels", "nvidia-cudnn-frontend")


def about(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """The GPU, its driver, and the versions of what runs on it."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown"
    versions = {"cudnn": str(torch.backends.cudnn.version())}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"gpu": torch.cuda.get_device_name(), "driver": driver, "versions": versions}


class Gpu:
    """One GPU through PyTorch.

    Every timed launch has events around it and, in front, a 256 MB write and 256 MB reads: they push the inputs out of the
    L2 cache and are the backlog behind which the host's own time disappears. Contenders take turns, launch by launch.
    """

    def __init__(self, repeats: int, compile_others: bool, who: Sequence[str] = ()) -> None:
        import torch

        compile_as_here()
        self.torch, self.repeats, self.compile_others, self.who = torch, repeats, compile_others, who
        found = about()
        self.gpu, self.driver, self.versions = found["gpu"], found["driver"], found["versions"]
        self.write = torch.empty(FLUSH_BYTES // 4, device="cuda", dtype=torch.int32)
        self.read = torch.randn(FLUSH_BYTES // 4, device="cuda")
        self.bandwidth = self._ceiling()
        self.rates: dict[str, float] = {}

    def floor_us(self, case: Case) -> float:
        """The time that the bytes take at the bandwidth of this run, or the products at the rate of a large product."""
        if case.operations and case.factors not in self.rates:
            self.rates[case.factors] = self._rate(case.factors)
        operations = case.operations / self.rates[case.factors] if case.operations else 0.0
        return max(case.bytes / self.bandwidth, operations) * 1e6

    def _rate(self, factors: str) -> float:
        """Operations per second of PyTorch's product of large random matrices."""
        from .rivals import DTYPES

        torch, n = self.torch, 8192 if factors in ("bf16", "f16", "e4m3") else 4096
        if factors == "e4m3":
            x = torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn)
            one = torch.ones((), device="cuda")
            options = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
            took, _ = self._times({"product": lambda: torch._scaled_mm(x, x.mT, one, one, **options)})["product"]
            return 2 * n**3 / took * 1e6
        dtype = DTYPES["f32" if factors == "tf32" else factors]
        a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2))
        torch.backends.cuda.matmul.allow_tf32 = factors == "tf32"
        took, _ = self._times({"product": lambda: a @ b})["product"]
        torch.backends.cuda.matmul.allow_tf32 = False
        return 2 * n**3 / took * 1e6

    def _ceiling(self) -> float:
        """Bytes per second of the best plain mix of reads and writes."""
        torch = self.torch
        a, b = (torch.randn(1 << 28, device="cuda") for _ in range(2))
        c = torch.empty_like(a)
        copy = 2 * a.nbytes / self._times({"copy": lambda: c.copy_(a)})["copy"][0]
        add = 3 * a.nbytes / self._times({"add": lambda: torch.add(a, b, out=c)})["add"][0]
        return max(copy, add) * 1e6

    def _times(self, contenders: dict[str, Any]) -> dict[str, tuple[float, float]]:
        """Median and interquartile range in microseconds."""
        torch = self.torch
        reads = {}
        for who, contender in contenders.items():
            for _ in range(3):
                contender()
            torch.cuda.synchronize()
            start = time.perf_counter()
            contender()
            host_us = (time.perf_counter() - start) * 1e6
            torch.cuda.synchronize()
            reads[who] = max(LEAST_READS, min(MOST_READS, math.ceil((1.6 * host_us - READ_US) / READ_US)))

        def event() -> Any:
            return torch.cuda.Event(enable_timing=True)

        pairs = {who: [(event(), event()) for _ in range(self.repeats)] for who in contenders}
        for i in range(self.repeats):
            for who, contender in contenders.items():
                start, end = pairs[who][i]
                self.write.zero_()
                for _ in range(reads[who]):
                    self.read.sum()
                start.record()
                contender()
                end.record()
            # Results that the caching allocator gives out again must not pile up behind the host.
            torch.cuda.synchronize()
        found = {}
        for who, events in pairs.items():
            times = [s.elapsed_time(e) * 1e3 for s, e in events]
            low, _, high = statistics.quantiles(times, n=4)
            found[who] = (statistics.median(times), high - low)
        return found

    def _chosen(self, contenders: dict[str, Any]) -> dict[str, Any]:
        """Ours, and of the others those that were asked for."""
        return {who: c for who, c in contenders.items() if who == OURS or not self.who or who in self.who}

    def measure(self, case: Case) -> Result:
        from .rivals import bench as made

        torch = self.torch
        result = Result()
        bench = made(case)
        contenders = self._chosen(bench.contenders(self.compile_others))
        correct = {}
        for who, contender in contenders.items():
            try:
                result.error[who] = bench.error(contender)
                if result.error[who] <= budget(case) * (1 if who == OURS else RIVALS_MAY):
                    correct[who] = contender
                else:
                    result.failed[who] = f"error {result.error[who]:.3g} over the budget of {budget(case):.3g}"
            except Exception as e:  # A competitor that cannot do a case is no reason to stop.
                result.failed[who] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
        for who, (median, spread) in self._times(correct).items():
            result.us[who], result.spread[who] = median, spread
        del bench, contenders, correct
        if self.compile_others:
            torch._dynamo.reset()
        if torch.cuda.memory_reserved() > MOST_RESERVED:
            torch.cuda.empty_cache()
        return result

    def host(self) -> list[dict[str, Any]]:
        """Host microseconds per call on small tensors, which no kernel can hide."""
        import host_overhead

        return host_overhead.measure()
