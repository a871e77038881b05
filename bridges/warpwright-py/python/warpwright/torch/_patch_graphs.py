"""Models whose calls without gradients are captured in CUDA graphs; `warpwright.torch.patch` is for users."""

import functools
import types
from typing import Any, Callable, Dict, Optional

import torch

from ._graphs import Graphed
from ._registry import is_compiling

_GRAPHS = "_warpwright_graphs"


class Captured:
    """The first base of the class of a model whose calls are captured."""

    # The class that the model had.
    _uncaptured: type

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies are captured themselves: graphs read the memory of the model that they were made of."""
        make, arguments, state, *rest = super().__reduce_ex__(protocol)
        arguments = tuple(self._uncaptured if a is type(self) else a for a in arguments)
        state = {name: value for name, value in state.items() if name != _GRAPHS} if isinstance(state, dict) else state
        return _rebuilt, (make, arguments), state, *rest


def _rebuilt(make: Callable[..., Any], arguments: Any) -> Any:
    module = make(*arguments)
    module.__class__ = captured_class(type(module))
    return module


@functools.lru_cache(maxsize=None)
def captured_class(cls: type) -> type:
    """The class of models of `cls` that are captured."""
    theirs = cls.forward  # type: ignore[attr-defined]

    @functools.wraps(theirs)
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() or is_compiling():
            return theirs(self, *arguments, **options)
        graphs = self.__dict__.get(_GRAPHS)
        if graphs is None:
            graphs = self.__dict__[_GRAPHS] = Graphed(types.MethodType(theirs, self), 3, 8, True)
        return graphs(*arguments, **options)

    names: Dict[str, Any] = {"forward": forward, "_uncaptured": cls, "__module__": cls.__module__}
    return type(cls.__name__, (Captured, cls), names)


def graphs_of(module: Any) -> Optional[Graphed]:
    """The graphs of a model, if it was called."""
    return module.__dict__.get(_GRAPHS)


def uncapture(module: Any, cls: type) -> None:
    """Puts the class of a model back."""
    module.__class__ = cls
    module.__dict__.pop(_GRAPHS, None)
