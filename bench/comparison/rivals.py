"""The calls of each library for a case: ours and the others', on the same tensors. Libraries that are not installed have no
contenders."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import torch
import torch.nn.functional as F

from .contender import Contender, installed
from .convolutions import PROBLEMS as CONVOLUTIONS
from .glue import PROBLEMS as GLUE
from .images import PROBLEMS as IMAGES
from .norms import PROBLEMS as NORMS
from .norms import ProblemBench
from .products import PROBLEMS as PRODUCTS
from .recurrent import PROBLEMS as RECURRENT
from .scans import PROBLEMS as SCANS
from .suites import GATED, GROUP, Case

DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
SLOPE = 0.01

aten = torch.ops.aten


FORWARD: dict[str, Callable[..., Any]] = {
    "relu": F.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, SLOPE),
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "geglu": lambda gate, up: F.gelu(gate) * up,
    "geglu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "cast": lambda x, to=torch.float64: x.to(to),
}

# PyTorch's gradients of sigmoid and tanh take the result of the forward function, which costs as many bytes.
BACKWARD: dict[str, Callable[..., Any]] = {
    "relu": lambda x, dy: aten.threshold_backward(dy, x, 0),
    "leaky_relu": lambda x, dy: aten.leaky_relu_backward(dy, x, SLOPE, False),
    "gelu_erf": lambda x, dy: aten.gelu_backward(dy, x),
    "gelu_tanh": lambda x, dy: aten.gelu_backward(dy, x, approximate="tanh"),
    "silu": lambda x, dy: aten.silu_backward(dy, x),
    "sigmoid": lambda y, dy: aten.sigmoid_backward(dy, y),
    "tanh": lambda y, dy: aten.tanh_backward(dy, y),
    "softplus": lambda x, dy: aten.softplus_backward(dy, x, 1, 20),
    "swiglu": lambda gate, up, dy: (aten.silu_backward(dy * up, gate), dy * F.silu(gate)),
    "geglu": lambda gate, up, dy: (aten.gelu_backward(dy * up, gate), dy * F.gelu(gate)),
    "geglu_tanh": lambda gate, up, dy: (
        aten.gelu_backward(dy * up, gate, approximate="tanh"),
        dy * F.gelu(gate, approximate="tanh"),
    ),
}
TAKES_RESULT = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}


def bench(case: Case, seed: int = 0) -> Any:
    """The tensors of a case, its contenders, and its reference in f64."""
    random = torch.Generator("cuda").manual_seed(seed)

    def draw(shape: tuple[int, ...], dtype: torch.dtype = DTYPES[case.dtype]) -> torch.Tensor:
        return torch.randn(shape, generator=random, device="cuda", dtype=dtype)

    problem = (NORMS | PRODUCTS | RECURRENT | CONVOLUTIONS | IMAGES | GLUE | SCANS).get(case.op)
    return ProblemBench(case, draw, problem) if problem else Bench(case, draw)


class Bench:
    """Operations that go element by element, and quantization."""

    def __init__(self, case: Case, draw: Callable[..., torch.Tensor]) -> None:
        import warpwright

        self.case, self.ww = case, warpwright
        if "quantize" in case.op:
            self.inputs = [draw(case.shape).abs_() if case.op.endswith("_nested") else draw(case.shape)]
        else:
            self.inputs = [draw(case.shape)]
            if case.op in GATED:
                self.inputs.append(draw(case.shape))
            if case.direction == "backward":
                self.inputs.append(draw(case.shape))

    def contenders(self, compile_others: bool = True) -> dict[str, Contender]:
        """Ours first."""
        if "quantize" in self.case.op:
            return self._quantizers()
        return self._functions(compile_others)

    def _functions(self, compile_others: bool) -> dict[str, Contender]:
        op, inputs = self.case.op, self.inputs
        backward = self.case.direction == "backward"
        function = getattr(self.ww, op + ("_backward" if backward else ""))
        to = DTYPES[self.case.option("to", self.case.dtype)]
        extra = {"leaky_relu": (SLOPE,), "cast": (to,)}.get(op, ())
        pair = backward and op in GATED
        out = tuple(torch.empty_like(inputs[0]) for _ in range(2)) if pair else torch.empty_like(inputs[0], dtype=to)
        found: dict[str, Contender] = {"warpwright": lambda: function(*inputs, *extra, out=out)}
        theirs = (BACKWARD if backward else FORWARD)[op]
        if op == "cast":
            theirs = partial(theirs, to=to)
        given = inputs
        if backward and op in TAKES_RESULT:
            given = [TAKES_RESULT[op](inputs[0]), inputs[1]]
        found["torch"] = lambda: theirs(*given)
        if compile_others:
            compiled = torch.compile(theirs, dynamic=False)
            found["torch.compile"] = lambda: compiled(*given)
        found |= self._liger(backward)
        return found

    def _liger(self, backward: bool) -> dict[str, Contender]:
        if self.case.op not in ("swiglu", "geglu_tanh") or not installed("liger_kernel"):
            return {}
        from liger_kernel.ops import geglu, swiglu

        module, name = (swiglu, "swiglu") if self.case.op == "swiglu" else (geglu, "geglu")
        if not backward:
            forward = getattr(module, f"{name}_forward")
            return {"Liger": lambda: forward(*self.inputs)[-1]}
        gradient = getattr(module, f"{name}_backward")
        # It overwrites gate and up with their gradients, so it gets its own.
        own = [x.clone() for x in self.inputs[:2]]

        def call() -> Any:
            return gradient(own[0], own[1], self.inputs[2])

        def once() -> Any:
            for mine, given in zip(own, self.inputs):
                mine.copy_(given)
            return call()

        call.check = once  # type: ignore[attr-defined]
        return {"Liger": call}

    def _quantizers(self) -> dict[str, Contender]:
        op, (x,) = self.case.op, self.inputs
        ww = self.ww
        if op == "quantize_nested":
            out = ww.quantize_nested(x)
            return {"warpwright": lambda: ww.quantize_nested(x, out=out)}
        if op == "dequantize_nested":
            packed, y = ww.quantize_nested(x), torch.empty_like(x)
            return {"warpwright": lambda: ww.dequantize_nested(*packed, out=y)}
        scheme = op.split("quantize_")[1]
        quantize, dequantize = getattr(ww, f"quantize_{scheme}"), getattr(ww, f"dequantize_{scheme}")
        packed = quantize(x, GROUP)
        y = torch.empty_like(x)
        forward = op.startswith("quantize")
        found: dict[str, Contender] = {
            "warpwright": (
                (lambda: quantize(x, GROUP, out=packed))
                if forward
                else (lambda: dequantize(*packed, x.shape, GROUP, dtype=x.dtype, out=y))
            )
        }
        if scheme in ("nf4", "fp4") and installed("bitsandbytes"):
            import bitsandbytes.functional as bnb

            codes, state = bnb.quantize_4bit(x, blocksize=GROUP, quant_type=scheme)
            if forward:
                found["bitsandbytes"] = lambda: bnb.quantize_4bit(x, blocksize=GROUP, quant_type=scheme)
            else:
                found["bitsandbytes"] = lambda: bnb.dequantize_4bit(codes, state)
        return found

    def error(self, contender: Contender) -> float:
        """The norm-wise relative error against f64; for quantization, of what the codes stand for."""
        result = getattr(contender, "check", contender)()
        if "quantize" not in self.case.op:
            results = result if isinstance(result, (tuple, list)) else [result]
            if self.case.op in GATED and len(results) == 3:
                results = results[:2]
            return max(self._distance(r.reshape(-1), i) for i, r in enumerate(results))
        return self._quantized_error(result)

    def _distance(self, result: torch.Tensor, which: int) -> float:
        op = self.case.op
        backward = self.case.direction == "backward"
        flat = [x.reshape(-1) for x in self.inputs]
        total, scale = 0.0, 0.0
        for start in range(0, result.numel(), 1 << 25):
            part = slice(start, start + (1 << 25))
            wide = [x[part].double() for x in flat]
            if not backward:
                reference = FORWARD[op](*wide)
            else:
                if op in TAKES_RESULT:
                    wide[0] = TAKES_RESULT[op](wide[0])
                reference = BACKWARD[op](*wide)
                reference = reference[which] if isinstance(reference, tuple) else reference
            total += float((result[part].double() - reference).square().sum())
            scale += float(reference.square().sum())
        return (total / scale) ** 0.5 if scale else total**0.5

    def _quantized_error(self, result: Any) -> float:
        """How far the elements that come back are from those that went in: the error of the format, the same for every
        implementation that follows it."""
        ww, op, (x,) = self.ww, self.case.op, self.inputs
        scheme = op.split("quantize_")[1]
        if op.startswith("dequantize"):
            back = result
        elif scheme == "nested":
            back = ww.dequantize_nested(*result)
        elif hasattr(result[1], "absmax"):
            import bitsandbytes.functional as bnb

            back = bnb.dequantize_4bit(*result)
        else:
            back = getattr(ww, f"dequantize_{scheme}")(*result, x.shape, GROUP, dtype=x.dtype)
        total, scale = 0.0, 0.0
        flat, back = x.reshape(-1), back.reshape(-1)
        for start in range(0, flat.numel(), 1 << 25):
            part = slice(start, start + (1 << 25))
            wide = flat[part].double()
            total += float((back[part].double() - wide).square().sum())
            scale += float(wide.square().sum())
        return (total / scale) ** 0.5 if scale else 0.0
