"""Services of other libraries: they make results, copy into another order of elements, name the current stream.

The native module calls these functions with the name of the library that an array belongs to. None of the libraries is
imported before one of its arrays arrives.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Callable

LEGACY_DEFAULT_STREAM = 1


def _told(torch: Any, is_quiet: Callable[[], bool]) -> bool:
    """Whether `is_quiet` tells what it should: tried with each key that a mode, a transform or a tracer sets. In a thread of its
    own, where nothing is active."""
    answers = []

    def ask() -> None:
        keys = [torch._C._dispatch_key_parse(k) for k in ("Python", "FuncTorchDynamicLayerFrontMode", "Tracer")]
        answers.append(is_quiet())
        for key in keys:
            with torch._C._IncludeDispatchKeyGuard(key):
                answers.append(not is_quiet())
        answers.append(is_quiet())

    def try_to_ask() -> None:
        try:
            ask()
        except (AttributeError, RuntimeError, TypeError):
            answers.append(False)

    thread = threading.Thread(target=try_to_ask)
    thread.start()
    thread.join()
    return all(answers)


def torch_hooks(
    dtypes: list[str], is_quiet: Callable[[], bool]
) -> tuple[list[Any], Any, list[Any], int, list[type], Any, Any]:
    """The type objects of the names; `is_grad_enabled`; the functions that are true while a mode, transform or tracer of
    PyTorch watches calls (none if this PyTorch does not tell), and how many of the first are never true where `is_quiet` is;
    the types that intercept nothing; what tells of forward-mode differentiation; the short ways past the dispatcher (None if this PyTorch lacks one): the exchange table,
    the number of the current device (None where there is one device, which is always it), a new tensor there."""
    torch = sys.modules["torch"]
    plain = [torch.Tensor, torch.nn.Parameter]
    c = torch._C
    try:
        watchers = [
            c._len_torch_dispatch_stack,
            c._functorch.peek_interpreter_stack,
            c._get_tracing_state,
            c._len_torch_function_stack,
        ]
        for watcher in watchers:
            watcher()
    except (AttributeError, TypeError):
        watchers = []
    told = 3 if watchers and _told(torch, is_quiet) else 0
    try:
        table = torch.Tensor.__dlpack_c_exchange_api__
        current_device = c._cuda_getDevice if c._cuda_getDeviceCount() != 1 else None
        ways = table, current_device, c._dynamo.guards._empty_strided_cuda
    except AttributeError:
        ways = None
    found = [getattr(torch, name, None) for name in dtypes]
    return found, torch.is_grad_enabled, watchers, told, plain, torch.autograd.forward_ad, ways


def current_stream(library: str, device: int) -> int:
    """The stream that the library enqueues on at present."""
    if library == "torch":
        return sys.modules["torch"].cuda.current_stream(device).cuda_stream
    if library == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream(device).ptr
    return LEGACY_DEFAULT_STREAM


def _numpy_dtype(name: str, like: Any) -> Any:
    import numpy

    if name != "bfloat16" and not name.startswith("float8_"):
        return numpy.dtype(name)
    if getattr(getattr(like, "dtype", None), "name", None) == name:
        return like.dtype
    import ml_dtypes

    return numpy.dtype(getattr(ml_dtypes, name))


def empty(library: str, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array in row-major order beside `like`. On the host, jax and others get a numpy array to be converted."""
    if library == "torch":
        return like.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype))
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with like.device:
            return cupy.empty(shape, dtype=_numpy_dtype(dtype, like))
    import numpy

    return numpy.empty(shape, dtype=_numpy_dtype(dtype, like))


def _channels_last(torch: Any, rank: int) -> Any:
    return torch.channels_last if rank == 4 else torch.channels_last_3d


def empty_channels_last(library: str, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new tensor of PyTorch [N, C, ...] with its channels last in memory."""
    torch = sys.modules[library]
    if len(shape) == 3:
        # PyTorch has no name for this format.
        samples, channels, length = shape
        return torch.empty((samples, length, channels), dtype=getattr(torch, dtype), device=like.device).mT
    form = _channels_last(torch, len(shape))
    return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device, memory_format=form)


def channels_last(tensor: Any) -> Any:
    """A copy of a tensor of PyTorch [N, C, ...] with its channels last in memory."""
    if tensor.dim() == 3:
        return tensor.mT.contiguous().mT
    return tensor.contiguous(memory_format=_channels_last(sys.modules["torch"], tensor.dim()))


def contiguous(library: str, array: Any) -> Any:
    """A copy in row-major order."""
    if library == "torch":
        torch = sys.modules["torch"]
        return array.contiguous(memory_format=torch.contiguous_format)
    if library == "cupy":
        with array.device:
            return sys.modules["cupy"].ascontiguousarray(array)
    if library == "numpy":
        import numpy

        # Byte for byte: a view of records or of a subclass stays what it is.
        return numpy.array(array, order="C", copy=True)
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__().asarray(array, copy=True)
    raise ValueError(f"{type(array).__name__} has no way to make a contiguous copy")


def closed_up(tensor: Any) -> Any:
    """A copy with the strides of a result: those of `torch.empty_like`."""
    return sys.modules["torch"].empty_like(tensor).copy_(tensor)


def laid_out_like(library: str, array: Any, other_library: str, like: Any) -> Any:
    """A copy whose elements lie as those of `like` do."""
    if library == "torch":
        torch = sys.modules["torch"]
        if other_library == "torch":
            return torch.empty_like(like).copy_(array)
    return contiguous(library, array)


def copy_into(library: str, to: Any, source: Any) -> None:
    """Copies elements into an array of any strides."""
    if library == "torch":
        torch = sys.modules["torch"]
        to.copy_(source if isinstance(source, torch.Tensor) else torch.from_dlpack(source))
    else:
        to[...] = source


def converted(library: str, source: Any, like: Any) -> Any:
    """A result as an array of the caller's library; as it is where that library is not known to take one."""
    if library == "jax":
        import jax

        if hasattr(source, "__dlpack_device__") and not hasattr(source, "__array_interface__"):
            return jax.dlpack.from_dlpack(source)
        return jax.device_put(source, next(iter(like.devices())))
    if hasattr(like, "__array_namespace__"):
        namespace = like.__array_namespace__()
        if hasattr(namespace, "from_dlpack"):
            return namespace.from_dlpack(source)
    return source


def on_host(library: str, array: Any) -> Any:
    """The elements of an array on a GPU as one of numpy, in row-major order, when they are there."""
    import numpy

    if library == "torch":
        array = array.detach().cpu().numpy()
    elif library == "cupy":
        array = array.get()
    elif hasattr(array, "copy_to_host"):
        array = array.copy_to_host()
    return numpy.ascontiguousarray(array)
