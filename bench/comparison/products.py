"""Products of matrices and attention: what each library calls for a case.

`matmul`: shape is (m, n, k); `transposed`: b is stored as [n, k], as the weights of linear layers are.
`grouped_matmul`: shape is (groups, rows of all groups, n, k), groups end at random; `grouping`: `k` if these rows are the common dimension,
of which each group has a result [n, k]. `scaled_matmul`: the same as `matmul` of 8-bit codes of `format`, with a scale for each `row`, or one, `tensor`; sums as `accumulation` says. `matmul_4bit`: the same as `matmul` with a weight
[n, k] of `format`, which is NF4 in blocks of 64 without it, or `mxfp4` or `nvfp4`, beside the product with the weight in the type of x. `attention`:
shape is (batch, sequence, heads, head_dim), the keys' where there are other `queries`; options `causal`, `kv_heads`, `queries` and
`value_width`, the head_dim of the values where it differs.
`linear_cross_entropy`: shape is (rows, features, classes).
`gated_linear`: shape is (m, n, k): `silu(x gate^T) * (x up^T)` of two weights [n, k].
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .contender import installed
from .norms import Draw, Function, Problem
from .suites import WEIGHT_GROUPS, Case


class MatMul(Problem):
    differentiable = 2

    def __init__(self, case: Case, draw: Draw) -> None:
        self.case = case
        rows, cols, depth = case.shape
        b = draw((cols, depth)).mT if case.option("transposed") else draw((depth, cols))
        self.inputs = [draw((rows, depth)), b]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return x @ rest[0]

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.matmul(*self.inputs, out=out)


class GatedLinear(Problem):
    def __init__(self, case: Case, draw: Draw) -> None:
        rows, cols, depth = case.shape
        self.inputs = [draw((rows, depth)), draw((cols, depth)), draw((cols, depth))]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        gate, up = rest
        return F.silu(x @ gate.mT) * (x @ up.mT)

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.gated_linear(*self.inputs, out=out)


class ScaledMatMul(Problem):
    def __init__(self, case: Case, draw: Draw) -> None:
        self.case = case
        rows, cols, depth = case.shape
        self.integers, self.fast = case.option("format") == "int8", case.option("accumulation") == "fast"
        wide = [draw((rows, depth), torch.float32), draw((cols, depth), torch.float32)]
        if self.integers:
            codes = [x.mul_(40).round_().clamp_(-128, 127).to(torch.int8) for x in wide]
        else:
            codes = [x.mul_(8).to(torch.float8_e4m3fn) for x in wide]
        shapes = [(rows, 1), (cols, 1)] if case.option("scaling") == "row" else [(1, 1), (1, 1)]
        self.inputs = codes + [draw(shape, torch.float32).abs_() + 0.1 for shape in shapes]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        b, of_x, of_b = rest
        if self.integers:
            # PyTorch has the product alone.
            return torch._int_mm(x, b.mT)
        return torch._scaled_mm(x, b.mT, of_x, of_b.mT, out_dtype=torch.bfloat16, use_fast_accum=self.fast)

    def ours(self, ww: Any) -> Function:
        scaling = self.case.option("scaling")
        options = {"scaling_a": scaling, "scaling_b": scaling, "accumulation": self.case.option("accumulation", "promoted")}
        a, b, of_a, of_b = self.inputs
        if self.integers:
            return lambda out=None: ww.int8_matmul(a, b, out=out)
        return lambda out=None: ww.scaled_matmul(a, b, of_a, of_b, torch.bfloat16, out=out, **options)

    def reference(self, dy: torch.Tensor | None) -> list[torch.Tensor]:
        a, b, of_a, of_b = (x.double() for x in self.inputs)
        return [a @ b.mT] if self.integers else [(a * of_a) @ (b * of_b).mT]


# QLoRA, arXiv:2305.14314, as bitsandbytes rounds it.
NF4 = (
    (-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0)
    + (0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0)
)  # fmt: skip
E2M1 = tuple(sign * x for sign in (1, -1) for x in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))


class MatMul4bit(Problem):
    def __init__(self, case: Case, draw: Draw) -> None:
        self.case = case
        self.format = case.option("format", "nf4")
        rows, cols, depth = case.shape
        codes = draw((cols * depth // 2,), torch.float32).mul_(40).add_(128).clamp_(0, 255).to(torch.uint8)
        scales = draw((cols * depth // WEIGHT_GROUPS[self.format][0],), torch.float32).abs_() + 0.1
        self.tensor_scale = torch.tensor([0.7], device="cuda") if self.format == "nvfp4" else None
        if self.format == "nvfp4":
            scales = scales.to(torch.float8_e4m3fn)
        elif self.format == "mxfp4":
            scales = scales.log2_().add_(127).round_().to(torch.uint8)
        x = draw((rows, depth))
        self.weight = self._numbers(codes, scales, torch.float32).to(x.dtype)
        self.inputs = [x, codes, scales]

    def _numbers(self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        first, second = codes >> 4, codes & 15
        if self.format == "nf4":
            table, factors = NF4, scales.to(dtype)
        else:
            table, first, second = E2M1, second, first
            factors = scales.to(dtype) if self.tensor_scale is None else scales.to(dtype) * self.tensor_scale.to(dtype)
            if self.format == "mxfp4":
                factors = (factors - 127).exp2_()
        numbers = torch.tensor(table, device="cuda", dtype=dtype)[torch.stack([first, second], 1).int()]
        return (numbers.view(len(scales), -1) * factors[:, None]).view(self.case.shape[1:])

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return x @ self.weight.mT

    def ours(self, ww: Any) -> Function:
        further = {} if self.tensor_scale is None else {"tensor_scale": self.tensor_scale}
        return lambda out=None: ww.matmul_4bit(*self.inputs, self.case.shape[1:], self.format, out=out, **further)

    def others(self) -> dict[str, Function]:
        if self.format != "nf4":
            return {}
        try:
            import bitsandbytes.functional as bnb
            from bitsandbytes import matmul_4bit
        except ImportError:
            return {}
        _, codes, scales = self.inputs
        table = torch.tensor(NF4, device="cuda")
        state = bnb.QuantState(
            absmax=scales, shape=self.case.shape[1:], code=table, blocksize=64, quant_type="nf4", dtype=self.weight.dtype
        )
        weight = codes.view(-1, 1).t()
        return {"bitsandbytes": lambda x, *_: matmul_4bit(x, weight, quant_state=state)}

    def reference(self, dy: torch.Tensor | None) -> list[torch.Tensor]:
        x, codes, scales = self.inputs
        return [x.double() @ self._numbers(codes, scales, torch.float64).mT]


class GroupedMatMul(Problem):
    def __init__(self, case: Case, draw: Draw) -> None:
        self.case = case
        groups, rows, cols, depth = case.shape
        cuts = torch.randint(0, rows + 1, (groups - 1,), generator=torch.Generator().manual_seed(groups)).sort()[0]
        self.ends = torch.cat([cuts, torch.tensor([rows])]).to("cuda", torch.int32)
        self.common = case.option("grouping") == "k"
        of_b = (rows, depth) if self.common else (groups, cols, depth)
        self.inputs = [draw((rows, cols if self.common else depth)), draw(of_b)]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        (b,) = rest
        return torch._grouped_mm(x.mT, b, offs=self.ends) if self.common else torch._grouped_mm(x, b.mT, offs=self.ends)

    def _loop(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        (b,), ends = rest, self.ends.tolist()
        rows = [slice(begin, end) for begin, end in zip([0, *ends], ends)]
        if self.common:
            return torch.stack([x[of].mT @ b[of] for of in rows])
        return torch.cat([x[of] @ b[at].mT for at, of in enumerate(rows)])

    def ours(self, ww: Any) -> Function:
        a, b = self.inputs
        if self.common:
            return lambda out=None: ww.grouped_matmul_k(a, b, self.ends, out=out)
        return lambda out=None: ww.grouped_matmul(a, b.mT, self.ends, out=out)

    def reference(self, dy: torch.Tensor | None) -> list[torch.Tensor]:
        return [self._loop(*(x.double() for x in self.inputs))]


class LinearCrossEntropy(Problem):
    differentiable = 2
    whole = True

    def __init__(self, case: Case, draw: Draw) -> None:
        self.case = case
        rows, features, classes = case.shape
        x = draw((rows, features))
        self.target = torch.randint(0, classes, (rows,), device=x.device)
        self.inputs = [x, draw((classes, features)).mul_(features**-0.5), self.target]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        weight, target = rest
        # Losses of half types are taken in f32, as training does.
        logits = F.linear(x, weight)
        return F.cross_entropy(logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits, target)

    def ours(self, ww: Any) -> Function:
        x, weight, target = self.inputs
        return lambda out=None: ww.linear_cross_entropy(x, weight, target, out=out)

    def ours_recorded(self, wt: Any) -> Function:
        return lambda x, weight, target: wt.linear_cross_entropy(x, weight, target)

    def others(self) -> dict[str, Function]:
        if not installed("liger_kernel"):
            return {}
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

        return {"Liger": lambda x, weight, target: LigerFusedLinearCrossEntropyFunction.apply(x, weight, target)[0]}


class Attention(Problem):
    differentiable = 3

    def __init__(self, case: Case, draw: Draw) -> None:
        self.case = case
        batch, sequence, heads, width = case.shape
        self.causal = bool(case.option("causal"))
        of_keys = (batch, sequence, case.option("kv_heads", heads))
        queries = draw((batch, case.option("queries", sequence), heads, width))
        self.inputs = [queries, draw((*of_keys, width)), draw((*of_keys, case.option("value_width", width)))]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        q, k, v = (t.transpose(1, 2) for t in (x, *rest))
        gqa = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=gqa).transpose(1, 2)

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.attention(*self.inputs, causal=self.causal, out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        o, lse = ww.attention(*self.inputs, causal=self.causal)
        return lambda out=None: ww.attention_backward(*self.inputs, o, lse, dy, causal=self.causal, out=out)

    def others(self) -> dict[str, Function]:
        def through(backend: SDPBackend) -> Function:
            def attention(*inputs: Any) -> torch.Tensor:
                with sdpa_kernel(backend):
                    return self.theirs(*inputs)

            return attention

        if self.case.dtype in ("f32", "f64"):
            return {"efficient": through(SDPBackend.EFFICIENT_ATTENTION)} if self.case.dtype == "f32" else {}
        return {
            "FlashAttention-2": through(SDPBackend.FLASH_ATTENTION),
            "cuDNN": through(SDPBackend.CUDNN_ATTENTION),
        }

    def reference(self, dy: torch.Tensor | None) -> list[torch.Tensor]:
        # Batch by batch: the scores of all in f64 do not fit.
        found: list[list[torch.Tensor]] = []
        for b in range(self.case.shape[0]):
            wide = [x[b : b + 1].double().requires_grad_(dy is not None) for x in self.inputs]
            y = self.theirs(*wide)
            results = [y] if dy is None else list(torch.autograd.grad(y, wide, dy[b : b + 1].double()))
            found.append([r.detach() for r in results])
            del y, results, wide
        return [torch.cat(parts) for parts in zip(*found)]


PROBLEMS: dict[str, type[Problem]] = {
    "matmul": MatMul,
    "gated_linear": GatedLinear,
    "grouped_matmul": GroupedMatMul,
    "scaled_matmul": ScaledMatMul,
    "matmul_4bit": MatMul4bit,
    "attention": Attention,
    "linear_cross_entropy": LinearCrossEntropy,
}
