"""Calls that are captured in a CUDA graph once and replayed: what a processor enqueues kernel by kernel becomes one launch."""

import collections
import functools
import threading
import types
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Hashable, List, Optional, Tuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ._patch_folds import Watch

Leaves = List[Any]


@dataclass
class _Captured:
    """A graph, what it reads, and what it writes."""

    graph: Any
    inputs: List[Tensor]
    results: Leaves
    tree: Any
    # Parameters and buffers that it reads, and where they were.
    read: List[Tensor]
    addresses: List[int]
    # What was made of them before.
    watch: Watch

    def is_stale(self) -> bool:
        return any(t.data_ptr() != address for t, address in zip(self.read, self.addresses)) or self.watch.is_stale()


@dataclass
class _Kind:
    """Calls with arguments of the same kind: how many there were, and their graph, or why there is none."""

    eager: int = 0
    replayed: int = 0
    captured: Optional[_Captured] = None
    refused: Optional[str] = None


@dataclass
class _State:
    kinds: Dict[Hashable, _Kind] = field(default_factory=dict)
    pools: Dict[torch.device, Any] = field(default_factory=dict)
    others: Dict[str, int] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)


class Graphed:
    """The result of [`graphed`]; called as the function is."""

    def __init__(self, function: Callable[..., Any], warmup: int, limit: int, copy_results: bool):
        owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
        self._function, self._warmup, self._limit, self._copy_results = function, warmup, limit, copy_results
        self._module = owner if isinstance(owner, torch.nn.Module) else None
        self._state = _State()
        if not isinstance(function, torch.nn.Module):
            functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        reason = _obstacle(tensors) or _object_among(leaves, "an argument") or self._capturing()
        if reason is not None:
            return self._without_graph(reason, args, kwargs)
        with self._state.lock:
            key = self._key(leaves, tree)
            if key is None:
                return self._without_graph("an argument that is no tensor cannot be hashed", args, kwargs)
            kind = self._state.kinds.get(key)
            if kind is None:
                if len(self._state.kinds) >= self._limit:
                    return self._without_graph(f"more than {self._limit} kinds of arguments", args, kwargs)
                kind = self._state.kinds[key] = _Kind(refused=_object_of(tree))
            if kind.captured is not None and kind.captured.is_stale():
                kind.captured, kind.eager = None, 0
            if kind.refused is not None:
                return self._eagerly(kind, args, kwargs)
            if kind.captured is None:
                if kind.eager < self._warmup:
                    return self._warmed_up(kind, tensors, args, kwargs)
                # Capturing runs nothing, so that the replay below is this call.
                kind.refused = self._capture(kind, leaves, tree)
            if kind.captured is None:
                return self._eagerly(kind, args, kwargs)
            return self._replay(kind, kind.captured, tensors)

    def report(self) -> str:
        """A line for each kind of arguments: shapes, replays, calls without a graph, and why there were any."""
        lines = []
        for key, kind in self._state.kinds.items():
            shapes = ", ".join(_described(leaf) for leaf in key[1] if isinstance(leaf, tuple))  # type: ignore[index]
            why = kind.refused or ("captured" if kind.captured else "warming up")
            lines.append(f"({shapes}): {kind.replayed} replayed, {kind.eager} without a graph: {why}")
        lines += [f"{calls} calls without a graph: {why}" for why, calls in self._state.others.items()]
        return "\n".join(lines) or "no calls"

    def reset(self) -> None:
        """Gives the graphs and their memory back. Needed where parameters have been replaced by others."""
        with self._state.lock:
            self._state.kinds.clear()
            self._state.pools.clear()

    @property
    def replays(self) -> int:
        """How many calls were replays."""
        return sum(kind.replayed for kind in self._state.kinds.values())

    def _capturing(self) -> Optional[str]:
        # A graph cannot be replayed into another that is being captured.
        return "another graph is being captured" if torch.cuda.is_current_stream_capturing() else None

    def _key(self, leaves: Leaves, tree: Any) -> Optional[Hashable]:
        """All that a graph depends on beside the elements of tensors."""
        kinds = tuple(_kind_of(leaf) for leaf in leaves)
        training = self._module.training if self._module is not None else None
        autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
        key = (str(tree), kinds, training, autocast, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _without_graph(self, reason: str, args: Any, kwargs: Any) -> Any:
        self._state.others[reason] = self._state.others.get(reason, 0) + 1
        return self._function(*args, **kwargs)

    def _eagerly(self, kind: _Kind, args: Any, kwargs: Any) -> Any:
        kind.eager += 1
        return self._function(*args, **kwargs)

    def _warmed_up(self, kind: _Kind, tensors: List[Tensor], args: Any, kwargs: Any) -> Any:
        """An eager call that looks for what a graph could not do."""
        # Tensors of inference mode have no versions.
        versioned = [t for t in tensors if not t.is_inference()]
        versions = [t._version for t in versioned]
        device = tensors[0].device
        # Libraries keep workspaces for each stream: those of the stream that will be captured are made here.
        side, current = _capture_stream(device), torch.cuda.current_stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            results = self._eagerly(kind, args, kwargs)
        current.wait_stream(side)
        leaves = pytree.tree_leaves(results)
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.is_cuda:
                leaf.record_stream(current)
        if any(t._version != version for t, version in zip(versioned, versions)):
            kind.refused = "it changes an argument in place"
        elif _object_among(leaves, "a result") is not None:
            kind.refused = _object_among(leaves, "a result")
        elif any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            kind.refused = "a result has a gradient: capture the whole training step, backward pass included"
        return results

    def _capture(self, kind: _Kind, leaves: Leaves, tree: Any) -> Optional[str]:
        """Makes the graph; why there is none, if so."""
        inputs = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        statics = [leaf for leaf in inputs if isinstance(leaf, Tensor)]
        args, kwargs = pytree.tree_unflatten(inputs, tree)
        device = statics[0].device
        pool = None
        if self._copy_results:
            # Results leave the pool before another graph of it runs.
            if device not in self._state.pools:
                self._state.pools[device] = torch.cuda.graph_pool_handle()
            pool = self._state.pools[device]
        graph = torch.cuda.CUDAGraph()
        try:
            stream = _capture_stream(device)
            with torch.cuda.device(device), _uncached_autocast(), Watch() as watch, torch.cuda.graph(graph, pool, stream):
                results = self._function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever a function raises that cannot be captured
            _recover(device)
            return f"it cannot be captured: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        found, result_tree = pytree.tree_flatten(results)
        module = self._module
        read = [*module.parameters(), *module.buffers()] if module is not None else []
        addresses = [t.data_ptr() for t in read]
        kind.captured = _Captured(graph, statics, found, result_tree, read, addresses, watch)
        return None

    def _replay(self, kind: _Kind, captured: _Captured, tensors: List[Tensor]) -> Any:
        with torch.no_grad():
            # A caller may write into the graph's own memory.
            pairs = [(to, t) for to, t in zip(captured.inputs, tensors) if to is not t]
            if pairs:
                torch._foreach_copy_([to for to, _ in pairs], [t for _, t in pairs])
            captured.graph.replay()
            kind.replayed += 1
            results = captured.results
            if self._copy_results:
                results = [r.detach().clone() if isinstance(r, Tensor) else r for r in results]
        return pytree.tree_unflatten(results, captured.tree)


def graphed(
    function: Callable[..., Any], *, warmup: int = 3, limit: int = 8, copy_results: bool = True
) -> Graphed:
    """`function` with its work on the GPU captured in a CUDA graph and replayed: inference of a module, or a whole training step with
    its backward pass and its optimizer.

    The first `warmup` calls with arguments of a kind (shapes, strides, dtypes, devices, values of what is no tensor, autocast, gradient
    mode, `training`) run eagerly, the next one is captured, and every further one copies the tensors among its arguments into the
    graph's and replays it. Each call does its work once. At most `limit` kinds have graphs; others, calls without CUDA tensors, functions
    that change an argument in place or give results with gradients, objects with a state among arguments or results, and what cannot be captured (a copy to the host, an optimizer without
    `capturable=True`) run eagerly: `report()` says which and why. Random numbers advance as they do without graphs.

    What the function reads besides its arguments is read at the same address in every replay: parameters may be changed in place, and if
    those of a module have moved it is captured again; call `reset()` where others have taken their place. Python code in the function
    runs only while it is captured. With `copy_results=False` results are the graph's own memory, which the next replay overwrites.

        >>> import torch, warpwright.torch as wt
        >>> model = torch.nn.Linear(4, 2)
        >>> predict = wt.graphed(model)
        >>> with torch.no_grad():
        ...     predict(torch.zeros(3, 4)).shape
        torch.Size([3, 2])
    """
    if not callable(function):
        raise TypeError(f"graphed: function is of type {type(function).__name__}, expected a callable")
    for name, value in (("warmup", warmup), ("limit", limit)):
        if value < 1:
            raise ValueError(f"graphed: {name} is {value}, expected at least 1")
    return Graphed(function, warmup, limit, copy_results)


_capture_streams: Dict[torch.device, Any] = {}


def _capture_stream(device: torch.device) -> Any:
    """The stream whose work is captured. PyTorch's own one is of the device that the process has captured first, and a graph of another
    device would be empty."""
    if device not in _capture_streams:
        _capture_streams[device] = torch.cuda.Stream(device)
    return _capture_streams[device]


def _recover(device: torch.device) -> None:
    """Ends what a capture that failed has begun: PyTorch's generator of random numbers would wait for the end of the graph for ever."""
    torch.cuda.synchronize(device)
    with torch.cuda.device(device), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=_capture_stream(device)):
        torch.zeros(1, device=device)


def _obstacle(tensors: List[Tensor]) -> Optional[str]:
    """Why these arguments have no graph."""
    if not tensors:
        return "no tensor among the arguments"
    if any(not t.is_cuda for t in tensors):
        return "a tensor that is not on a GPU"
    if any(t.device != tensors[0].device for t in tensors):
        return "tensors of several GPUs"
    if any(t.requires_grad and torch.is_grad_enabled() for t in tensors):
        return "an argument whose gradient is recorded"
    if any(t.layout != torch.strided or type(t) is not Tensor for t in tensors):
        return "a tensor that is not plain"
    if any(t.data_ptr() == 0 for t in tensors):
        return "an empty tensor"
    return None


# Values that are hashed by what they are, and never change.
_CONSTANTS = (type(None), type, types.FunctionType, types.BuiltinFunctionType, torch.dtype, torch.layout, torch.memory_format)
# Those whose tensors are read where they are, as if the function had them.
_OWNERS = (torch.nn.Module, torch.optim.Optimizer)


def _object_among(leaves: Leaves, what: str) -> Optional[str]:
    """Why there is no graph for objects that have a state, such as caches of keys and values: a replay would neither read nor change it."""
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *_CONSTANTS, *_OWNERS)) and type(leaf).__hash__ is object.__hash__:
            return _stateful(what, type(leaf))
    return None


def _object_of(tree: Any) -> Optional[str]:
    """The same of objects that are taken apart into their tensors."""
    kind = tree.type
    plain = kind in (None, collections.namedtuple) or issubclass(kind, (dict, list, tuple, collections.deque))
    if not plain:
        return _stateful("an argument", kind)
    children = tree.children() if callable(getattr(tree, "children", None)) else tree.children_specs
    return next(filter(None, map(_object_of, children)), None)


def _stateful(what: str, cls: type) -> str:
    return f"{what} is an object of class {cls.__name__}, which has a state of its own"


def _kind_of(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device)
    # 1, 1.0 and True are equal, and different arguments.
    return [type(leaf), leaf] if not isinstance(leaf, Hashable) else _Value(type(leaf), leaf)


@dataclass(frozen=True)
class _Value:
    kind: type
    value: Hashable


def _described(kind: Tuple[Any, ...]) -> str:
    shape, _, dtype, _ = kind
    return f"{str(dtype).replace('torch.', '')}[{', '.join(map(str, shape))}]"


class _uncached_autocast:
    """Autocast as it is, without copies of weights that were made outside of the graph or would be used there."""

    def __enter__(self) -> None:
        self._context = None
        if torch.is_autocast_enabled("cuda"):
            torch.clear_autocast_cache()
            self._context = torch.autocast("cuda", dtype=torch.get_autocast_dtype("cuda"), cache_enabled=False)
            self._context.__enter__()

    def __exit__(self, *exception: Any) -> None:
        if self._context is not None:
            self._context.__exit__(*exception)
