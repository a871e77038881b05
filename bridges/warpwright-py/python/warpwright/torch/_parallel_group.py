"""Process groups of `torch.distributed`: who is in them, whether their ranks call alike, and collective calls along a dimension."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from .._errors import RankError, refused

# Of what each rank says of a call, in bytes.
_SAID = 512


class Ranks:
    """The processes of a group as one of them sees them."""

    def __init__(self, op: str, process_group: Any) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise refused(op, "process_group", process_group, "torch.distributed to be initialised")
        self.op = op
        self.group = dist.group.WORLD if process_group is None else process_group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise refused(op, "process_group", process_group, "a group that this process belongs to")

    def part(self, whole: int, argument: str) -> int:
        """Each rank's share of a number that all of them divide."""
        if whole % self.size:
            raise refused(self.op, argument, whole, f"a multiple of the {self.size} ranks")
        return whole // self.size

    def own(self, x: Tensor, dim: int, argument: str) -> Tensor:
        """This rank's part of a tensor that every rank has."""
        each = self.part(x.shape[dim], f"the length of {argument} along dimension {dim}")
        return x.narrow(dim, self.rank * each, each)

    def all_reduce(self, x: Tensor, async_op: bool = False) -> Any:
        return dist.all_reduce(x, group=self.group, async_op=async_op)

    def gather(self, x: Tensor, dim: int = 0) -> Gathered:
        """Starts to bring together the parts that the ranks have along a dimension."""
        x = x.movedim(dim, 0).contiguous()
        all_of_them = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        work = dist.all_gather_into_tensor(all_of_them, x, group=self.group, async_op=True)
        return Gathered(work, all_of_them, dim, x)

    def scatter_sum(self, x: Tensor, dim: int = 0, argument: str = "x") -> Gathered:
        """Starts to sum a tensor over the ranks, each of which gets its part along a dimension."""
        each = self.part(x.shape[dim], f"the length of {argument} along dimension {dim}")
        x = x.movedim(dim, 0).contiguous()
        own = x.new_empty((each, *x.shape[1:]))
        work = dist.reduce_scatter_tensor(own, x, group=self.group, async_op=True)
        return Gathered(work, own, dim, x)

    def pass_on(self, tensors: Any) -> Passing:
        """Starts to send tensors to the next rank, and to receive such tensors from the one before."""
        sent = [t.contiguous() for t in tensors]
        received = [torch.empty_like(t) for t in sent]
        to, source = ((self.rank + step) % self.size for step in (1, -1))
        to, source = (dist.get_global_rank(self.group, rank) for rank in (to, source))
        calls = [dist.P2POp(dist.isend, t, to, self.group) for t in sent]
        calls += [dist.P2POp(dist.irecv, t, source, self.group) for t in received]
        return Passing(dist.batch_isend_irecv(calls), sent, received)

    def agree(self, device: torch.device, **arguments: Any) -> bool:
        """That all ranks make the same call with these arguments. Asked once for each call and arguments of a group, because it waits for
        the device; in a CUDA graph it is not. Returns whether it is the first time."""
        said = "\n".join([self.op, *(f"{name}\t{value}" for name, value in arguments.items())])
        known = _agreed.setdefault(self.group, set())
        if said in known or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
            return False
        if self.size > 1:
            self._compare(said, device)
        known.add(said)
        return True

    def _compare(self, said: str, device: torch.device) -> None:
        own = torch.frombuffer(bytearray(said.encode()[:_SAID].ljust(_SAID)), dtype=torch.uint8).to(device)
        everyone = own.new_empty((self.size, _SAID))
        dist.all_gather_into_tensor(everyone.view(-1), own, group=self.group)
        _compare([bytes(row).decode(errors="replace").rstrip() for row in everyone.cpu().tolist()])


# Calls that the ranks of each group have agreed on.
_agreed: weakref.WeakKeyDictionary[Any, Set[str]] = weakref.WeakKeyDictionary()


def _compare(texts: List[str]) -> None:
    """Refuses the call, on every rank alike, if one says another thing than the first."""
    calls = [_parsed(text) for text in texts]
    op, expected = calls[0]
    for rank, (other, given) in enumerate(calls):
        if other != op:
            raise RankError(f"{op}: rank {rank} calls {other}", op=op, argument="process_group", expected=op, got=other, rank=rank)
        for argument, value in expected.items():
            got = given.get(argument)
            if got != value:
                message = f"{op}: {argument} of rank {rank} is {got}, expected {value} as of rank 0"
                raise RankError(message, op=op, argument=argument, expected=value, got=got, rank=rank)


def _parsed(text: str) -> Tuple[str, Dict[str, str]]:
    op, *lines = text.split("\n")
    return op, dict(line.split("\t", 1) for line in lines if "\t" in line)


def described(x: Optional[Tensor], *kept: int) -> str:
    """The dtype and shape of a tensor as ranks compare them, of the dimensions that are the same on all of them: by default of all."""
    if x is None:
        return "None"
    shape = [str(n) if not kept or d in kept else "*" for d, n in enumerate(x.shape)]
    return f"{str(x.dtype).split('.')[-1]} [{', '.join(shape)}]"


class Gathered:
    """The result of a collective call that runs beside what is computed until it is wanted. `held`: what the call reads."""

    def __init__(self, work: Any, found: Tensor, dim: int, held: Tensor) -> None:
        self._work, self._found, self._dim, self._held = work, found, dim, held

    def wait(self) -> Tensor:
        self._work.wait()
        return self._found.movedim(0, self._dim)


class Passing:
    """Tensors on their way from rank to rank."""

    def __init__(self, works: List[Any], sent: List[Tensor], received: List[Tensor]) -> None:
        self._works, self._sent, self._received = works, sent, received

    def wait(self) -> List[Tensor]:
        for work in self._works:
            work.wait()
        return self._received
