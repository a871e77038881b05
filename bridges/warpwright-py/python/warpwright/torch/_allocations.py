"""What PyTorch does for a call."""

from typing import Any, List, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ALLOCATE = {
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
}


def _is_view(operator: Any) -> bool:
    """Whether the result is memory of an argument, which is left as it is."""
    aliases = [a.alias_info for a in operator._schema.arguments if a.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)


class Allocations(TorchDispatchMode):
    """Sees what is allocated, and whether anything else is done."""

    def __init__(self) -> None:
        super().__init__()
        self._made: List[torch.Tensor] = []
        self._is_alone = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket in _ALLOCATE:
            # Held, so that no other has its address.
            self._made.append(found)
        elif not _is_view(func):
            self._is_alone = False
        return found

    def all(self) -> Optional[List[Tuple[int, int]]]:
        """Address and bytes of each allocation; None if there was anything else."""
        if not self._is_alone:
            return None
        return [(t.data_ptr(), t.untyped_storage().nbytes()) for t in self._made]


def observed(function: Any, arguments: Any, keywords: Any = None) -> Tuple[Any, Optional[List[Tuple[int, int]]]]:
    """The result of a function, and what was allocated for it."""
    with Allocations() as seen:
        found = function(*arguments, **(keywords or {}))
    return found, seen.all()
