"""Normalisation, softmax and loss: what each library calls for a case.

Options of a suite: `groups`, `dim`, `size` as the operations name them; `channels_last`; `silu`, `relu`, `residual`: what is
fused behind or in front; `evaluation`: batch_norm with given statistics. The others' gradients come from autograd, over
their own forward pass, whose time does not count.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.nn.functional as F

from . import cudnn
from .contender import Contender, installed
from .suites import Case

EPS = 1e-5
MOMENTUM = 0.1
LRN = {"alpha": 1e-4, "beta": 0.75, "k": 2.0}
Draw = Callable[..., torch.Tensor]
Function = Callable[..., Any]


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """Images with their channels last in memory, of one dimension too, for which PyTorch has no name."""
    if x.dim() == 3:
        return x.mT.contiguous().mT
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.to(memory_format=formats[x.dim()])


class Problem:
    """One case: `inputs` of which the first `differentiable` get gradients, PyTorch's function of them, and ours."""

    differentiable = 1
    # Whether forward and backward together give all gradients, and not that of the first input alone.
    whole = False
    # Whether contenders run as CUDA graphs, which nothing compiles.
    in_graph = False
    # The function of ours, if it is not called as the operation is.
    called = ""

    def __init__(self, case: Case, draw: Draw) -> None:
        self.case = case
        self.x = draw(case.shape)
        if case.option("channels_last"):
            self.x = channels_last(self.x)
        self.inputs: list[Any] = [self.x]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        raise NotImplementedError

    def ours(self, ww: Any) -> Function:
        """The forward pass as `f(out=None)`."""
        raise NotImplementedError

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        """The backward pass as `f(out=None)`."""
        raise NotImplementedError

    def ours_recorded(self, wt: Any) -> Function:
        """The forward pass of `warpwright.torch` as a function of the inputs, which autograd can follow."""
        return getattr(wt, self.case.op)

    def others(self) -> dict[str, Function]:
        """Other libraries' forward functions of the inputs, which autograd can follow."""
        return {}

    def beside(self, dy: torch.Tensor) -> dict[str, Contender]:
        """Libraries that are called otherwise, for the direction of the case."""
        return {}

    def reference(self, dy: torch.Tensor | None) -> list[torch.Tensor]:
        """The results in f64: of the forward function without `dy`, otherwise the gradients."""
        wide = [self.wide(x) if x.is_floating_point() else x for x in self.inputs]
        if dy is None:
            with torch.no_grad():
                y = self.theirs(*wide)
            return list(y) if isinstance(y, tuple) else [y]
        leaves = [x.detach().requires_grad_() for x in wide[: self.differentiable]]
        y = self.theirs(*leaves, *wide[self.differentiable :])
        return list(torch.autograd.grad(y, leaves, self.wide(dy)))

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor as the reference reads it."""
        return x.double()


class GroupNorm(Problem):
    differentiable = 3

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        channels = case.shape[1]
        self.groups, self.silu = case.option("groups", channels), bool(case.option("silu"))
        self.inputs += [draw((channels,)), draw((channels,))]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        weight, bias = rest
        y = F.group_norm(x, self.groups, weight, bias, EPS)
        return F.silu(y) if self.silu else y

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.group_norm(self.x, self.groups, *self.inputs[1:], EPS, silu=self.silu, out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        x, weight, bias = self.inputs
        _, mean, rstd = ww.group_norm(x, self.groups, weight, bias, EPS, silu=self.silu, statistics=True)
        return lambda out=None: ww.group_norm_backward(
            x, dy, mean, rstd, self.groups, weight, bias, silu=self.silu, out=out
        )

    def others(self) -> dict[str, Function]:
        if self.silu or self.case.option("channels_last") or not installed("liger_kernel"):
            return {}
        from liger_kernel.ops.group_norm import LigerGroupNormFunction

        channels = self.case.shape[1]
        return {"Liger": lambda x, w, b: LigerGroupNormFunction.apply(x, w, b, channels, self.groups, EPS)}


class InstanceNorm(Problem):
    differentiable = 3

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.inputs += [draw((case.shape[1],)), draw((case.shape[1],))]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        weight, bias = rest
        return F.instance_norm(x, None, None, weight, bias, True, MOMENTUM, EPS)

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.instance_norm(*self.inputs, EPS, out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        x, weight, bias = self.inputs
        _, mean, rstd = ww.instance_norm(x, weight, bias, EPS, statistics=True)
        return lambda out=None: ww.instance_norm_backward(x, dy, mean, rstd, weight, bias, out=out)


class BatchNorm(Problem):
    """Weights and statistics are f32, as mixed-precision training has them."""

    differentiable = 3

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        channels = (case.shape[1],)
        self.training, self.relu = not case.option("evaluation"), bool(case.option("relu"))
        self.backward = case.direction == "backward"
        self.inputs += [draw(channels, torch.float32), draw(channels, torch.float32)]
        self.residual = None
        if case.option("residual"):
            self.residual = draw(case.shape).to(memory_format=torch.channels_last)
            self.inputs.append(self.residual)
        self.running = [draw(channels, torch.float32), draw(channels, torch.float32).abs_()]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        weight, bias, *residual = rest
        mean, variance = (r.to(weight.dtype) for r in self.running)
        if self.backward:
            # A graph that is kept must not see the others update them.
            mean, variance = mean.clone(), variance.clone()
        y = F.batch_norm(x, mean, variance, weight, bias, self.training, MOMENTUM, EPS)
        y = y + residual[0] if residual else y
        return F.relu(y) if self.relu else y

    def ours(self, ww: Any) -> Function:
        x, weight, bias = self.inputs[:3]
        mean, variance = (r.clone() for r in self.running)
        return lambda out=None: ww.batch_norm(
            x, mean, variance, weight, bias, self.training, MOMENTUM, EPS, relu=self.relu, residual=self.residual,
            statistics=self.training, out=out,
        )

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        x, weight, bias = self.inputs
        _, mean, rstd = ww.batch_norm(x, None, None, weight, bias, True, MOMENTUM, EPS, statistics=True)
        return lambda out=None: ww.batch_norm_backward(x, dy, mean, rstd, weight, bias, out=out)

    def others(self) -> dict[str, Function]:
        def without(x: torch.Tensor, *rest: Any) -> torch.Tensor:
            with torch.backends.cudnn.flags(enabled=False):
                return self.theirs(x, *rest)

        return {"torch without cuDNN": without}


class LayerNorm(Problem):
    differentiable = 3

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.shape = case.shape[-1:]
        self.inputs += [draw(self.shape), draw(self.shape)]

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return F.layer_norm(x, self.shape, *rest, EPS)

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.layer_norm(self.x, self.shape, *self.inputs[1:], EPS, out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        x, weight, bias = self.inputs
        _, mean, rstd = ww.layer_norm(x, self.shape, weight, bias, EPS, statistics=True)
        return lambda out=None: ww.layer_norm_backward(x, dy, mean, rstd, self.shape, weight, bias, out=out)

    def others(self) -> dict[str, Function]:
        if not installed("liger_kernel"):
            return {}
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        return {"Liger": lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, EPS)}

    def beside(self, dy: torch.Tensor) -> dict[str, Contender]:
        return cudnn.norm("layernorm", self.inputs, dy, EPS, self.case.direction) | self._quack(dy)

    def _quack(self, dy: torch.Tensor) -> dict[str, Contender]:
        """QuACK takes weight and bias as f32 and leaves the graph to the caller."""
        if not installed("quack"):
            return {}
        from quack.rmsnorm import layernorm_bwd, layernorm_fwd

        x, *wide = self.inputs[0], *(t.float() for t in self.inputs[1:])
        if self.case.direction == "forward":
            return {"QuACK": lambda: layernorm_fwd(x, *wide, EPS)}
        kept: list[torch.Tensor] = []

        def backward() -> Any:
            if not kept:
                _, rstd, mean = layernorm_fwd(x, *wide, EPS, True, True)
                kept.extend((rstd, mean))
            return layernorm_bwd(x, wide[0], dy, *kept)

        return {"QuACK": backward}


class RmsNorm(Problem):
    differentiable = 2

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.shape = case.shape[-1:]
        self.inputs.append(draw(self.shape))
        self.residual = draw(case.shape) if case.option("residual") else None
        if self.residual is not None:
            self.inputs.append(self.residual)

    def theirs(self, x: torch.Tensor, *rest: Any) -> Any:
        weight, *residual = rest
        if not residual:
            return F.rms_norm(x, self.shape, weight, EPS)
        total = x + residual[0]
        return F.rms_norm(total, self.shape, weight, EPS), total

    def ours(self, ww: Any) -> Function:
        x, weight = self.inputs[:2]
        return lambda out=None: ww.rms_norm(x, self.shape, weight, EPS, residual=self.residual, out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        x, weight = self.inputs
        _, rstd = ww.rms_norm(x, self.shape, weight, EPS, statistics=True)
        return lambda out=None: ww.rms_norm_backward(x, dy, rstd, self.shape, weight, out=out)

    def others(self) -> dict[str, Function]:
        found: dict[str, Function] = {}
        if installed("liger_kernel"):
            from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
            from liger_kernel.ops.rms_norm import LigerRMSNormFunction

            if self.residual is None:
                found["Liger"] = lambda x, w: LigerRMSNormFunction.apply(x, w, EPS, 0.0, "llama", False)
            else:
                found["Liger"] = lambda x, w, r: LigerFusedAddRMSNormFunction.apply(x, r, w, EPS, 0.0, "llama", False)
        if installed("quack"):
            from quack.rmsnorm import rmsnorm

            if self.residual is None:
                found["QuACK"] = lambda x, w: rmsnorm(x, w, eps=EPS)
            else:
                found["QuACK"] = lambda x, w, r: rmsnorm(x, w, residual=r, eps=EPS, prenorm=True)
        return found

    def beside(self, dy: torch.Tensor) -> dict[str, Contender]:
        return {} if self.residual is not None else cudnn.norm("rmsnorm", self.inputs, dy, EPS, self.case.direction)


class Softmax(Problem):
    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.dim, self.log = case.option("dim", -1), case.op == "log_softmax"

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return F.log_softmax(x, self.dim) if self.log else F.softmax(x, self.dim)

    def ours(self, ww: Any) -> Function:
        function = ww.log_softmax if self.log else ww.softmax
        return lambda out=None: function(self.x, self.dim, out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        y = self.ours(ww)()
        backward = ww.log_softmax_backward if self.log else ww.softmax_backward
        return lambda out=None: backward(y, dy, self.dim, out=out)

    def others(self) -> dict[str, Function]:
        found: dict[str, Function] = {}
        rows = self.x.dim() == 2 and not self.log
        if rows and installed("liger_kernel"):
            from liger_kernel.ops.softmax import LigerSoftmaxFunction

            found["Liger"] = LigerSoftmaxFunction.apply
        if rows and installed("quack"):
            from quack.softmax import softmax

            found["QuACK"] = softmax
        return found

    def beside(self, dy: torch.Tensor) -> dict[str, Contender]:
        return {} if self.log else cudnn.softmax(self.x, dy, self.case.direction)


class CrossEntropy(Problem):
    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        rows, classes = case.shape
        self.target = torch.randint(0, classes, (rows,), device=self.x.device)
        self.inputs.append(self.target)

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return F.cross_entropy(x, rest[0])

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.cross_entropy(self.x, self.target, out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        _, lse, nll, count = ww.cross_entropy(self.x, self.target, statistics=True)
        return lambda out=None: ww.cross_entropy_backward(self.x, self.target, lse, nll, dy, count, out=out)

    def others(self) -> dict[str, Function]:
        found: dict[str, Function] = {}
        # Liger's forward pass writes the gradient over the logits, so it has neither half alone.
        if self.case.direction == "both" and installed("liger_kernel"):
            from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

            found["Liger"] = lambda x, target: LigerCrossEntropyFunction.apply(x, target, None)[0]
        if installed("quack"):
            from quack.cross_entropy import cross_entropy

            found["QuACK"] = cross_entropy
        return found


class LocalResponseNorm(Problem):
    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.size = case.option("size")

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return F.local_response_norm(x, self.size, **LRN)

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.local_response_norm(self.x, self.size, **LRN, out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        return lambda out=None: ww.local_response_norm_backward(self.x, dy, self.size, **LRN, out=out)

    def beside(self, dy: torch.Tensor) -> dict[str, Contender]:
        return cudnn.local_response_norm(self.x, dy, self.size, LRN, self.case.direction)


PROBLEMS: dict[str, type[Problem]] = {
    "group_norm": GroupNorm,
    "instance_norm": InstanceNorm,
    "batch_norm": BatchNorm,
    "layer_norm": LayerNorm,
    "rms_norm": RmsNorm,
    "softmax": Softmax,
    "log_softmax": Softmax,
    "cross_entropy": CrossEntropy,
    "local_response_norm": LocalResponseNorm,
}


def graphed(contender: Contender) -> Contender:
    """A contender whose launches are recorded at the first call, and replayed."""
    made: list[Any] = []

    def replay() -> Any:
        if not made:
            side, current = torch.cuda.Stream(), torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(2):
                    contender()
            current.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                results = contender()
            made.extend((graph, results))
        graph, results = made
        graph.replay()
        return results

    return replay


class ProblemBench:
    """The tensors of one case, its contenders, and its reference in f64."""

    def __init__(self, case: Case, draw: Draw, problem: type[Problem]) -> None:
        self.case = case
        self.problem = problem(case, draw)
        self.dy: Any = None
        if case.direction != "forward":
            y = self.problem.theirs(*self.problem.inputs)
            self.dy = torch.ones_like(y) if y.dim() == 0 else draw(tuple(y.shape)).to(y.dtype)
            if case.option("channels_last"):
                self.dy = channels_last(self.dy)
        self.expected: list[torch.Tensor] | None = None

    def contenders(self, compile_others: bool = True) -> dict[str, Contender]:
        """Ours first, where it exists."""
        import warpwright

        problem = self.problem
        found: dict[str, Contender] = {}
        if hasattr(warpwright, problem.called or self.case.op):
            found["warpwright"] = self._ours(warpwright)
        functions: dict[str, Function] = {"torch": problem.theirs}
        if compile_others and not problem.in_graph:
            functions["torch.compile"] = torch.compile(problem.theirs, dynamic=False)
        for who, function in (functions | problem.others()).items():
            found[who] = self._differentiated(function)
        if self.case.direction != "both":
            found |= problem.beside(self.dy)
        return {who: graphed(call) for who, call in found.items()} if problem.in_graph else found

    def _ours(self, ww: Any) -> Contender:
        if self.case.direction == "both":
            import warpwright.torch

            return self._differentiated(self.problem.ours_recorded(warpwright.torch))
        built: list[Any] = []

        def call() -> Any:
            if not built:
                forward = self.case.direction == "forward"
                function = self.problem.ours(ww) if forward else self.problem.ours_backward(ww, self.dy)
                built.extend((function, function()))
            function, out = built
            return function(out=out)

        return call

    def _differentiated(self, function: Function) -> Contender:
        """A function of the inputs, for the direction of the case. What is dear to build is built at the first call."""
        problem, dy = self.problem, self.dy
        if self.case.direction == "forward":

            def forward() -> Any:
                with torch.no_grad():
                    return function(*problem.inputs)

            return forward
        leaves = [x.detach().requires_grad_() for x in problem.inputs[: problem.differentiable]]
        inputs = [*leaves, *problem.inputs[problem.differentiable :]]
        if self.case.direction == "both":
            # Liger overwrites the logits; the result of a softmax of its own gradient costs the same.
            own = leaves[0].detach().clone()

            def both() -> Any:
                x = own.detach().requires_grad_()
                wanted = [x, *leaves[1:]] if problem.whole else x
                return torch.autograd.grad(function(x, *inputs[1:]), wanted, dy)

            def once() -> Any:
                own.copy_(leaves[0].detach())
                return both()

            both.check = once  # type: ignore[attr-defined]
            return both
        kept: list[Any] = []

        def backward() -> Any:
            if not kept:
                kept.append(function(*inputs))
            return torch.autograd.grad(kept[0], leaves, dy, retain_graph=True)

        return backward

    def error(self, contender: Contender) -> float:
        """The largest norm-wise error of the results against f64."""
        if self.expected is None:
            self.expected = self.problem.reference(self.dy)
        results = getattr(contender, "check", contender)()
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        largest = 0.0
        for result, expected in zip(results, self.expected):
            difference = (result.double() - expected).norm()
            largest = max(largest, float(difference / expected.norm()))
        return largest
