"""cuDNN called directly: its older interface through ctypes, from the library that PyTorch brings, and its graphs through
the package `cudnn` where that is installed."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

from .contender import Contender, installed

TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 9}
ACROSS_INSTANCE, ACROSS_CHANNEL = 0, 1


class Library:
    """The handle, and the calls with their descriptors."""

    def __init__(self) -> None:
        import nvidia.cudnn

        folder = Path(next(iter(nvidia.cudnn.__path__))) / "lib"
        self.calls = ctypes.CDLL(str(folder / "libcudnn.so.9"))
        self.handle = ctypes.c_void_p()
        self("Create", ctypes.byref(self.handle))
        self("SetStream", self.handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        self.one, self.zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self.calls, f"cudnn{name}")(*arguments)
        if status:
            raise RuntimeError(f"cudnn{name} returned {status}")

    def made(self, kind: str) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self(f"Create{kind}", ctypes.byref(descriptor))
        return descriptor

    def tensor(self, x: torch.Tensor) -> ctypes.c_void_p:
        descriptor = self.made("TensorDescriptor")
        shape = [*x.shape, *[1] * (4 - x.dim())]
        self("SetTensor4dDescriptor", descriptor, 0, TYPES[x.dtype], *shape)
        return descriptor


_library: list[Library] = []


def library() -> Library:
    if not _library:
        _library.append(Library())
    return _library[0]


def _at(x: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def softmax(x: torch.Tensor, dy: Any, direction: str) -> dict[str, Contender]:
    if x.dtype not in TYPES:
        return {}
    built: list[Any] = []

    def call() -> torch.Tensor:
        c = library()
        if not built:
            mode = ACROSS_CHANNEL if x.dim() == 4 else ACROSS_INSTANCE
            built.extend((c.tensor(x), mode, torch.softmax(x, 1), torch.empty_like(x)))
        d, mode, y, out = built
        # Algorithm 1 subtracts the maximum.
        if direction == "forward":
            c("SoftmaxForward", c.handle, 1, mode, c.one, d, _at(x), c.zero, d, _at(out))
        else:
            c("SoftmaxBackward", c.handle, 1, mode, c.one, d, _at(y), d, _at(dy), c.zero, d, _at(out))
        return out

    return {"cuDNN": call}


def local_response_norm(
    x: torch.Tensor, dy: Any, size: int, parameters: dict[str, float], direction: str
) -> dict[str, Contender]:
    if x.dtype not in TYPES:
        return {}
    built: list[Any] = []

    def call() -> torch.Tensor:
        c = library()
        if not built:
            a = c.made("LRNDescriptor")
            values = (ctypes.c_double(parameters[p]) for p in ("alpha", "beta", "k"))
            c("SetLRNDescriptor", a, size, *values)
            built.extend((c.tensor(x), a, torch.empty_like(x), torch.empty_like(x)))
            d, a, y, _ = built
            c("LRNCrossChannelForward", c.handle, a, 0, c.one, d, _at(x), c.zero, d, _at(y))
        d, a, y, out = built
        if direction == "forward":
            c("LRNCrossChannelForward", c.handle, a, 0, c.one, d, _at(x), c.zero, d, _at(out))
        else:
            c("LRNCrossChannelBackward", c.handle, a, 0, c.one, d, _at(y), d, _at(dy), d, _at(x), c.zero, d, _at(out))
        return out

    return {"cuDNN": call}


def norm(kind: str, inputs: list[torch.Tensor], dy: Any, eps: float, direction: str) -> dict[str, Contender]:
    """layernorm or rmsnorm of rows through cuDNN's graphs."""
    if not installed("cudnn"):
        return {}
    built: list[Any] = []

    def call() -> Any:
        if not built:
            built.append(_graph(kind, inputs, dy, eps, direction))
        return built[0]()

    return {"cuDNN": call}


def _graph(kind: str, inputs: list[torch.Tensor], dy: Any, eps: float, direction: str) -> Contender:
    import cudnn as fe

    types = {torch.float32: fe.data_type.FLOAT, torch.bfloat16: fe.data_type.BFLOAT16, torch.float16: fe.data_type.HALF}
    x, weight, *bias = inputs
    rows, n = x.shape
    layer = kind == "layernorm"
    wide = fe.data_type.FLOAT
    handle = fe.create_handle()

    def graph() -> Any:
        return fe.pygraph(
            io_data_type=types[x.dtype], intermediate_data_type=wide, compute_data_type=wide, handle=handle
        )

    def tensor(g: Any, t: torch.Tensor, count: int) -> Any:
        return g.tensor(dim=[count, n, 1, 1], stride=[n, 1, n, n], data_type=types[t.dtype])

    def ready(g: Any, bound: dict[Any, torch.Tensor], results: Any) -> Contender:
        g.build([fe.heur_mode.A, fe.heur_mode.FALLBACK])
        workspace = torch.empty(max(g.get_workspace_size(), 1), device=x.device, dtype=torch.uint8)

        def call() -> Any:
            g.execute(bound, workspace, handle=handle)
            return results

        return call

    g = graph()
    gx, gw = tensor(g, x, rows), tensor(g, weight, 1)
    geps = g.tensor(dim=[1] * 4, stride=[1] * 4, is_pass_by_value=True, data_type=wide)
    y = torch.empty_like(x)
    mean, rstd = (torch.empty(rows, 1, 1, 1, device=x.device) for _ in range(2))
    bound = {gx: x, gw: weight, geps: torch.full((1,) * 4, eps)}
    phase = fe.norm_forward_phase.TRAINING
    if layer:
        gb = tensor(g, bias[0], 1)
        bound[gb] = bias[0]
        gy, gmean, grstd = g.layernorm(norm_forward_phase=phase, input=gx, scale=gw, bias=gb, epsilon=geps)
        gmean.set_output(True).set_data_type(wide)
        bound[gmean] = mean
    else:
        gy, grstd = g.rmsnorm(norm_forward_phase=phase, input=gx, scale=gw, epsilon=geps)
    gy.set_output(True).set_data_type(types[x.dtype])
    grstd.set_output(True).set_data_type(wide)
    forward = ready(g, bound | {gy: y, grstd: rstd}, y)
    if direction == "forward":
        return forward
    forward()
    g = graph()
    gx, gdy, gw = tensor(g, x, rows), tensor(g, dy, rows), tensor(g, weight, 1)

    def column() -> Any:
        return g.tensor(dim=[rows, 1, 1, 1], stride=[1] * 4, data_type=wide)

    grstd = column()
    bound = {gx: x, gdy: dy, gw: weight, grstd: rstd}
    dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
    if layer:
        gmean = column()
        bound[gmean] = mean
        gdx, gdw, gdb = g.layernorm_backward(grad=gdy, input=gx, scale=gw, mean=gmean, inv_variance=grstd)
    else:
        gdx, gdw, gdb = g.rmsnorm_backward(grad=gdy, input=gx, scale=gw, inv_variance=grstd, has_dbias=False)
    results = [(gdx, dx), (gdw, dweight)] + ([(gdb, dbias)] if layer else [])
    for g_result, result in results:
        g_result.set_output(True).set_data_type(types[x.dtype])
        bound[g_result] = result
    return ready(g, bound, [r for _, r in results])
