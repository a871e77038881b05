"""Products of matrices and attention: what each library calls for a case.

`matmul`: shape is (m, n, k); `transposed`: b is stored as [n, k], as the weights of linear layers are. `attention`: shape is
(batch, sequence, heads, head_dim), the keys' where there are other `queries`; options `causal`, `kv_heads` and `queries`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .norms import Draw, Function, Problem
from .suites import Case


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


class Attention(Problem):
    differentiable = 3

    def __init__(self, case: Case, draw: Draw) -> None:
        self.case = case
        batch, sequence, heads, width = case.shape
        self.causal = bool(case.option("causal"))
        of_keys = (batch, sequence, case.option("kv_heads", heads), width)
        self.inputs = [draw((batch, case.option("queries", sequence), heads, width)), draw(of_keys), draw(of_keys)]

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


PROBLEMS: dict[str, type[Problem]] = {"matmul": MatMul, "attention": Attention}
