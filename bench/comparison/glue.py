"""What stands between the large operations of a network, and its optimizer: what each library calls for a case.

Options: `dim` of `sum` and `cumsum`; `k` of `topk`; `kv_heads` of `rotary_embedding`, whose shape is (batch, steps, heads, head_dim), and of `append_kv_cache`, of the same shape,
with the rows of the caches as `capacity`; `count` of `embedding`, the number of indices
into a table of the shape; of `gather_rows` and `scatter_rows` there are as many as rows. The shape of `adamw_step` is that of all parameters, each row one of them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .norms import Draw, Function, Problem
from .suites import Case

P = 0.1


class Add(Problem):
    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.called = "elementwise"
        self.inputs.append(draw(case.shape))

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return x + rest[0]

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.elementwise("add(x0, x1)", *self.inputs, out=out)


class Dropout(Problem):
    """Each library drops elements of its own, so that there is no error to compare."""

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        if case.op == "dropout_add":
            self.inputs.append(draw(case.shape))
        self.random = torch.tensor([1, 2], device=self.x.device)

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        y = F.dropout(x, P)
        return y + rest[0] if rest else y

    def ours(self, ww: Any) -> Function:
        return lambda out=None: getattr(ww, self.case.op)(*self.inputs, self.random, P, out=out)

    def reference(self, dy: torch.Tensor | None) -> list[torch.Tensor]:
        return []


class Sum(Problem):
    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return x.sum(self.case.option("dim"))

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.sum(self.x, self.case.option("dim"), out=out)


class Rotary(Problem):
    """Halves, as transformers has them."""

    differentiable = 2

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        batch, steps, heads, head_dim = case.shape
        self.inputs.append(draw((batch, steps, case.option("kv_heads", heads), head_dim)))
        angles = draw((steps, head_dim // 2), torch.float32)
        whole = torch.cat([angles, angles], -1)[None].to(self.x.dtype)
        self.inputs += [whole.cos(), whole.sin()]

    def theirs(self, x: torch.Tensor, *rest: Any) -> Any:
        k, *tables = rest
        cos, sin = (table.unsqueeze(2) for table in tables)

        def turned(t: torch.Tensor) -> torch.Tensor:
            first, second = t.chunk(2, -1)
            return t * cos + torch.cat((-second, first), -1) * sin

        return turned(x), turned(k)

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.rotary_embedding(*self.inputs, out=out)


class AppendKvCache(Problem):
    """The next tokens of sequences, of which each is a token shorter than the one before: queries and keys are rotated as above, and keys and
    values go to their places."""

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        batch, steps, _, head_dim = case.shape
        rows, kv_heads = case.option("capacity"), case.option("kv_heads")
        self.inputs += [draw((batch, steps, kv_heads, head_dim)) for _ in range(2)]
        angles = draw((rows, head_dim // 2), torch.float32)
        whole = torch.cat([angles, angles], -1).to(self.x.dtype)
        self.inputs += [whole.cos(), whole.sin()]
        self.lengths = rows - torch.arange(batch, device=self.x.device, dtype=torch.int32)
        self.caches = [self.x.new_zeros(batch, rows, kv_heads, head_dim) for _ in range(2)]
        self.sequences = torch.arange(batch, device=self.x.device)[:, None]
        self.places = self.lengths[:, None].long() - steps + torch.arange(steps, device=self.x.device)

    def theirs(self, x: torch.Tensor, *rest: Any) -> Any:
        k, v, *tables = rest
        cos, sin = (table[self.places].unsqueeze(2) for table in tables)
        k_cache, v_cache = self.caches if x.dtype == self.x.dtype else [c.to(x.dtype) for c in self.caches]

        def turned(t: torch.Tensor) -> torch.Tensor:
            first, second = t.chunk(2, -1)
            return t * cos + torch.cat((-second, first), -1) * sin

        k_cache[self.sequences, self.places] = turned(k)
        v_cache[self.sequences, self.places] = v
        return turned(x), k_cache, v_cache

    def ours(self, ww: Any) -> Function:
        q, k, v, cos, sin = self.inputs
        options = {"key_lengths": self.lengths, "q": q, "cos": cos, "sin": sin}

        def append(out: Any = None) -> Any:
            turned = ww.append_kv_cache(k, v, *self.caches, **options, out=None if out is None else out[0])
            return turned, *self.caches

        return append


class Embedding(Problem):
    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        # More of the first, as words are.
        share = draw((case.option("count"),), torch.float32).abs().clamp(max=4) / 4
        self.inputs.append((share.square() * (case.shape[0] - 1)).long())
        if case.direction == "backward":
            self.called = "embedding_backward"

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return F.embedding(rest[0], x)

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.embedding(*self.inputs, out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        return lambda out=None: ww.embedding_backward(dy, self.inputs[1], self.case.shape[0], out=out)


class Cumsum(Problem):
    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return x.cumsum(self.case.option("dim"))

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.cumsum(self.x, self.case.option("dim"), out=out)


class Topk(Problem):
    """The values; where they are is as different as equal elements are ordered."""

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.k = min(case.option("k"), case.shape[1])

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return x.topk(self.k).values

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.topk(self.x, self.k)[0]


class Rows(Problem):
    """Rows in a random order, some of them several times: a batch of tokens on its way to experts, and back."""

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        places = draw((case.shape[0],), torch.float32).abs() * 1e4
        self.inputs.append(places.long() % case.shape[0])


class GatherRows(Rows):
    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return x.index_select(0, rest[0])

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.gather_rows(*self.inputs, out=out)


class ScatterRows(Rows):
    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return torch.zeros_like(x).index_add(0, rest[0], x)

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.scatter_rows(*self.inputs, self.case.shape[0], out=out)


class AdamW(Problem):
    """Parameters move in place, so that there is no error to compare; PyTorch's own optimizer in its forms for graphs."""

    in_graph = True

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.params = list(self.x.unbind())
        self.grads = list(draw(case.shape).unbind())
        self.optimizers: dict[bool, Any] = {}

    def stepped(self, fused: bool) -> Function:
        def step(*inputs: Any) -> Any:
            if fused not in self.optimizers:
                params = [torch.nn.Parameter(p.clone()) for p in self.params]
                for p, grad in zip(params, self.grads):
                    p.grad = grad
                self.optimizers[fused] = torch.optim.AdamW(params, capturable=self.x.is_cuda, fused=fused, foreach=not fused)
            self.optimizers[fused].step()
            return []

        return step

    def theirs(self, x: torch.Tensor, *rest: Any) -> Any:
        return self.stepped(False)()

    def others(self) -> dict[str, Function]:
        return {"torch fused": self.stepped(True)}

    def ours(self, ww: Any) -> Function:
        params = [p.clone() for p in self.params]
        moments = [[torch.zeros_like(p, dtype=torch.float32) for p in params] for _ in range(2)]
        step, lr = (torch.full((), value, device=self.x.device) for value in (0.0, 1e-3))
        return lambda out=None: ww.adamw_step(params, self.grads, *moments, step, lr)

    def reference(self, dy: torch.Tensor | None) -> list[torch.Tensor]:
        return []


PROBLEMS: dict[str, type[Problem]] = {
    "add": Add,
    "dropout": Dropout,
    "dropout_add": Dropout,
    "sum": Sum,
    "cumsum": Cumsum,
    "topk": Topk,
    "gather_rows": GatherRows,
    "scatter_rows": ScatterRows,
    "append_kv_cache": AppendKvCache,
    "rotary_embedding": Rotary,
    "embedding": Embedding,
    "adamw_step": AdamW,
}
