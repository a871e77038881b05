"""Optimizers with the arguments and the state of `torch.optim`, and of bitsandbytes' with moments in 8 bits, a launch for every 48 parameters."""

from collections import Counter
from functools import lru_cache
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor

from .. import _native
from .._native import Repeated
from ._common import accumulator

__all__ = ["SGD", "Adam", "Adam8bit", "AdamW", "AdamW8bit"]


def _new_state(p: Tensor) -> Tensor:
    return torch.zeros_like(p, dtype=accumulator(p.dtype), memory_format=torch.preserve_format)


_PLAIN = (Tensor, torch.nn.Parameter)

# Steps of lists like those before only enqueue what those did: most of a step of many small parameters is the host's.
_adamw_step, _adam_step, _adamw8bit_step, _sgd_step = (
    Repeated(step, in_place=True)
    for step in (_native.adamw_step, _native.adam_step, _native.adamw8bit_step, _native.sgd_step)
)


def _local(x: Tensor) -> Tensor:
    """The part of a sharded tensor (`DTensor`) that this process has."""
    # PyTorch takes long to say that there is no such attribute.
    return x if type(x) in _PLAIN or not hasattr(x, "to_local") else x.to_local()


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class _Stepped:
    """Steps of lists of parameters: those of one device and type that have made as many steps take the next one together.

    The number of steps and the learning rate are tensors of the device, so that steps can be captured in a CUDA graph; a learning rate that
    is a tensor is read in every replay.
    """

    param_groups: List[Dict[str, Any]]
    state: Dict[Any, Any]
    # `GradScaler` hands over its scale and whether gradients overflowed, and reads nothing back.
    _step_supports_amp_scaling = True
    # What a parameter keeps beside a number of steps.
    _states: Any = ()

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        super().add_param_group(param_group)  # type: ignore[misc]
        group = self.param_groups[-1]
        if group.get("differentiable"):
            self.param_groups.pop()
            raise ValueError(f"{type(self).__name__}: differentiable=True is not supported: steps are not recorded")
        self._on_the_device(group)

    def _on_the_device(self, group: Dict[str, Any]) -> None:
        """Has PyTorch's optimizers, which may load the state, take numbers of steps from the device, if they can."""
        if "capturable" in group and all(p.is_cuda for p in group["params"]):
            group["capturable"] = True

    def state_dict(self) -> Dict[str, Any]:
        found = super().state_dict()  # type: ignore[misc]
        # Others count the steps of each parameter by itself.
        of_each = {
            number: {name: value.clone() if name == "step" else value for name, value in kept.items()}
            for number, kept in found["state"].items()
        }
        return {**found, "state": of_each}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        super().load_state_dict(state_dict)  # type: ignore[misc]
        # PyTorch rounds state to the type of its parameter.
        numbers = (n for group in state_dict["param_groups"] for n in group["params"])
        for number, p in zip(numbers, (p for group in self.param_groups for p in group["params"])):
            for name, value in state_dict["state"].get(number, {}).items():
                if name in self._states and isinstance(value, Tensor) and value.dtype != p.dtype:
                    self.state[p][name] = _new_state(p).copy_(value)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self.__dict__.update(_counts={}, _rates={})
        for group in self.param_groups:
            self._on_the_device(group)
            for p in group["params"]:
                kept = self.state.get(p) or {}
                for name in self._states:
                    value = kept.get(name)
                    if value is not None and (value.dtype != accumulator(p.dtype) or value.stride() != p.stride()):
                        kept[name] = _new_state(p).copy_(value)
            self._share_counts(group)

    def _share_counts(self, group: Dict[str, Any]) -> None:
        """Has parameters that have made as many steps share their number."""

    def _count(self, p: Tensor) -> Optional[Tensor]:
        """The number of steps that a parameter has made."""
        raise NotImplementedError

    def _set_count(self, p: Tensor, count: Tensor) -> None:
        raise NotImplementedError

    def _native_step(self, group: Dict[str, Any], lists: Any, count: Tensor, lr: Tensor, options: Any) -> None:
        """A call for `lists`: parameters, and the parts of them and of their gradients that this process has."""
        raise NotImplementedError

    def _batches(self, group: Dict[str, Any]) -> List[Any]:
        """The number of steps and the parameters of each call."""
        fresh: Dict[Any, Tensor] = {}
        batches: Dict[Any, List[Tensor]] = {}
        sharing: Counter[int] = Counter()
        for p in group["params"]:
            grad, count = p.grad, self._count(p)
            if grad is None:
                sharing[id(count)] += 1
                continue
            if grad.is_sparse:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            kind = p.device, p.dtype, grad.dtype
            if count is None:
                count = fresh.get(kind)
                if count is None:
                    count = fresh[kind] = torch.zeros((), dtype=torch.float32, device=p.device)
                self._set_count(p, count)
            batches.setdefault((kind, id(count)), []).append(p)
            sharing[id(count)] += 1
        found = []
        for (_, number), params in batches.items():
            count = self._count(params[0])
            if sharing[number] != len(params):
                # The others make no step, or in a call of their own.
                count = count.clone()
                for p in params:
                    self._set_count(p, count)
            found.append((count, params))
        return found

    def _rate(self, number: int, lr: Any, like: Tensor) -> Tensor:
        """The learning rate of a group on the device."""
        device, dtype = like.device, accumulator(like.dtype)
        if isinstance(lr, Tensor):
            return lr.detach().to(device, dtype)
        rates = self.__dict__.setdefault("_rates", {})
        value, kept = rates.get((number, device, dtype), (None, None))
        if value == lr:
            return kept
        if _is_capturing(device):
            # A graph has the number itself.
            return torch.full((), lr, dtype=dtype, device=device)
        kept = torch.full((), lr, dtype=dtype, device=device) if kept is None else kept.fill_(lr)
        rates[number, device, dtype] = lr, kept
        return kept

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Makes a step. closure: computes the loss again, which is the result."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scaling = {name: getattr(self, name, None) for name in ("grad_scale", "found_inf")}
        for number, group in enumerate(self.param_groups):
            for count, params in self._batches(group):
                lr = self._rate(number, group["lr"], params[0])
                options = {name: x if x is None else x.to(count.device) for name, x in scaling.items()}
                lists = params, [_local(p) for p in params], [_local(p.grad) for p in params]
                self._native_step(group, lists, count, lr, {**options, "maximize": group.get("maximize", False)})
                torch.autograd.graph.increment_version(params)
        return loss


class _ByMoments(_Stepped):
    _states = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def _count(self, p: Tensor) -> Optional[Tensor]:
        kept = self.state.get(p)
        return kept.get("step") if kept else None

    def _set_count(self, p: Tensor, count: Tensor) -> None:
        kept = self.state[p]
        kept["step"] = count
        for name in self._states[:2]:
            if name not in kept:
                kept[name] = _new_state(p)

    def _share_counts(self, group: Dict[str, Any]) -> None:
        shared: Dict[Any, Tensor] = {}
        for p in group["params"]:
            count = self._count(p)
            if count is not None:
                number = float(count)
                new = torch.full((), number, dtype=torch.float32, device=p.device)
                self.state[p]["step"] = shared.setdefault((p.device, p.dtype, number), new)

    def _native_step(self, group: Dict[str, Any], lists: Any, count: Tensor, lr: Tensor, options: Any) -> None:
        params, *lists = lists
        kept = [self.state[p] for p in params]
        first, second, largest = self._states
        if group["amsgrad"]:
            for state, p in zip(kept, params):
                if largest not in state:
                    state[largest] = _new_state(p)
            options["max_exp_avg_sqs"] = [_local(state[largest]) for state in kept]
        is_decoupled = isinstance(self, torch.optim.AdamW) or group.get("decoupled_weight_decay", False)
        step = _adamw_step if is_decoupled else _adam_step
        step(
            *lists,
            [_local(state[first]) for state in kept],
            [_local(state[second]) for state in kept],
            count,
            lr,
            betas=tuple(float(beta) for beta in group["betas"]),
            eps=group["eps"],
            weight_decay=float(group["weight_decay"]),
            **options,
        )


class AdamW(_ByMoments, torch.optim.AdamW):
    """`torch.optim.AdamW`, as capturable and fused as it can be whatever `foreach`, `fused` and `capturable` say.

    The state has the names of PyTorch's, and either loads what the other has saved. Moments of parameters of half types are in float32.
    """


class Adam(_ByMoments, torch.optim.Adam):
    """`torch.optim.Adam`; the rest as of `AdamW`."""


class SGD(_Stepped, torch.optim.SGD):
    """`torch.optim.SGD`; the rest as of `AdamW`."""

    _states = ("momentum_buffer",)

    def _count(self, p: Tensor) -> Optional[Tensor]:
        return self.__dict__.setdefault("_counts", {}).get(p)

    def _set_count(self, p: Tensor, count: Tensor) -> None:
        self.__dict__.setdefault("_counts", {})[p] = count

    def _share_counts(self, group: Dict[str, Any]) -> None:
        shared: Dict[Any, Tensor] = {}
        for p in group["params"]:
            # A momentum that exists has been through its first step.
            if (self.state.get(p) or {}).get("momentum_buffer") is not None:
                kind = p.device, p.dtype
                if kind not in shared:
                    shared[kind] = torch.ones((), dtype=torch.float32, device=p.device)
                self._set_count(p, shared[kind])

    def _native_step(self, group: Dict[str, Any], lists: Any, count: Tensor, lr: Tensor, options: Any) -> None:
        params, *lists = lists
        momenta = None
        if group["momentum"] != 0:
            momenta = []
            for p in params:
                kept = self.state[p]
                if kept.get("momentum_buffer") is None:
                    kept["momentum_buffer"] = _new_state(p)
                momenta.append(_local(kept["momentum_buffer"]))
        _sgd_step(
            *lists,
            momenta,
            count,
            lr,
            momentum=group["momentum"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            weight_decay=float(group["weight_decay"]),
            **options,
        )


# Elements whose moments in 8 bits share a maximum.
_BLOCK = 256

# Where bitsandbytes' `state_dict` has the tensors of a state, so that FSDP leaves them alone.
_WRAPPED = "__bnb_optimizer_quant_state__"


def _blocks(part: Tensor) -> int:
    """Blocks of the moments of a parameter, each with a maximum."""
    return -(-part.numel() // _BLOCK)


@lru_cache(maxsize=None)
def _map(signed: bool) -> Tensor:
    """The numbers that codes stand for."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    return _native.dequantize_dynamic(codes, torch.ones(1), torch.float32, signed)


class _EightBit(_Stepped, torch.optim.Optimizer):
    def __init__(
        self,
        params: Any,
        lr: Any,
        betas: Any,
        eps: float,
        weight_decay: float,
        unsupported: Dict[str, Any],
        min_8bit_size: int,
        maximize: bool,
    ) -> None:
        name = type(self).__name__
        for argument, (value, only) in unsupported.items():
            if value != only:
                raise ValueError(f"{name}: {argument} is {value!r}, expected {only!r}")
        numbers = {"lr": lr, "eps": eps, "weight_decay": weight_decay}
        for argument, value in numbers.items():
            if not 0.0 <= value:
                raise ValueError(f"{name}: {argument} is {value!r}, expected at least 0")
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"{name}: betas is {betas!r}, expected two numbers from 0 to below 1")
        self.min_8bit_size = min_8bit_size
        super().__init__(params, {**numbers, "betas": tuple(betas), "maximize": maximize})

    def _count(self, p: Tensor) -> Optional[Tensor]:
        kept = self.state.get(p)
        return kept.get("step") if kept else None

    def _set_count(self, p: Tensor, count: Tensor) -> None:
        kept = self.state[p]
        kept["step"] = count
        if "state1" not in kept:
            part = _local(p)
            eight_bit = part.numel() >= self.min_8bit_size
            dtype = torch.uint8 if eight_bit else torch.float32
            for number in "12":
                kept["state" + number] = torch.zeros_like(part, dtype=dtype, memory_format=torch.preserve_format)
                if eight_bit:
                    blocks = _blocks(part)
                    kept["absmax" + number] = torch.zeros(blocks, dtype=torch.float32, device=part.device)

    _share_counts = _ByMoments._share_counts

    def __getstate__(self) -> Dict[str, Any]:
        return {**super().__getstate__(), "min_8bit_size": self.min_8bit_size}

    def state_dict(self) -> Dict[str, Any]:
        found = super().state_dict()
        of_each = {}
        for number, kept in found["state"].items():
            # bitsandbytes counts on the host.
            tensors = {name: value for name, value in kept.items() if name != "step"}
            for name, signed in (("qmap1", True), ("qmap2", False)):
                if "absmax1" in tensors:
                    tensors[name] = _map(signed).to(tensors["absmax1"].device)
            of_each[number] = {"step": int(kept["step"]), _WRAPPED: tensors}
        return {**found, "state": of_each}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        states = {}
        for number, p in zip(numbers, params):
            if number in state_dict["state"]:
                kept = state_dict["state"][number]
                states[number] = self._checked(p, {**kept, **kept.get(_WRAPPED, {})})
        # PyTorch would round the state to the type of its parameter.
        steps = {number: {"step": torch.tensor(float(kept["step"]))} for number, kept in states.items()}
        torch.optim.Optimizer.load_state_dict(self, {**state_dict, "state": steps})
        for number, p in zip(numbers, params):
            for name in ("state1", "state2", "absmax1", "absmax2"):
                if name in states.get(number, ()):
                    self.state[p][name] = states[number][name].detach().to(_local(p).device, copy=True)

    def _checked(self, p: Tensor, kept: Dict[str, Any]) -> Dict[str, Any]:
        """The state of a parameter, as bitsandbytes and we save it."""

        def expect(name: str, fits: Callable[[Tensor], bool], expected: str) -> None:
            value = kept.get(name)
            if not isinstance(value, Tensor) or not fits(value):
                got = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
                raise ValueError(f"{type(self).__name__}: {name} of a parameter is {got}, expected {expected}")

        if "step" not in kept:
            raise ValueError(f"{type(self).__name__}: the state of a parameter has no step")
        part = _local(p)
        layout = f"in the shape and the order of the parameter, {list(part.shape)}"
        fits = lambda x: x.shape == part.shape and x.stride() == part.stride()  # noqa: E731
        expect("state1", lambda x: x.dtype in (torch.uint8, torch.float32) and fits(x), f"uint8 or float32, {layout}")
        dtype = kept["state1"].dtype
        expect("state2", lambda x: x.dtype == dtype and fits(x), f"{dtype}, {layout}")
        if dtype == torch.uint8:
            blocks = _blocks(part)
            for name in ("absmax1", "absmax2"):
                expect(name, lambda x: x.dtype == torch.float32 and x.shape == (blocks,), f"float32 [{blocks}]")
            for name, signed in (("qmap1", True), ("qmap2", False)):
                if name in kept:
                    expect(name, lambda x: torch.equal(x.float().cpu(), _map(signed)), "the dynamic map of 256 entries")
        return kept

    def _native_step(self, group: Dict[str, Any], lists: Any, count: Tensor, lr: Tensor, options: Any) -> None:
        params, *lists = lists
        kept = [self.state[p] for p in params]
        _adamw8bit_step(
            *lists,
            *([state[name] for state in kept] for name in ("state1", "state2")),
            *([state.get(name) for state in kept] for name in ("absmax1", "absmax2")),
            count,
            lr,
            betas=tuple(float(beta) for beta in group["betas"]),
            eps=group["eps"],
            weight_decay=float(group["weight_decay"]),
            **options,
        )


class AdamW8bit(_EightBit):
    """`bitsandbytes.optim.AdamW8bit`: moments in 8 bits with a maximum for every 256 elements, in float32 for parameters below `min_8bit_size`.

    Parameters are float32, float16 or bfloat16. Steps are as those of `AdamW`, in CUDA graphs and with `GradScaler`, too. Either loads the
    `state_dict` that the other saved, for parameters that are contiguous. amsgrad, optim_bits, args and is_paged are there for bitsandbytes' order of arguments.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        optim_bits: int = 32,
        args: Any = None,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        unsupported = {
            "amsgrad": (amsgrad, False),
            "optim_bits": (optim_bits, 32),
            "args": (args, None),
            "is_paged": (is_paged, False),
        }
        super().__init__(params, lr, betas, eps, weight_decay, unsupported, min_8bit_size, maximize)


class Adam8bit(AdamW8bit):
    """`bitsandbytes.optim.Adam8bit`: as `AdamW8bit`, but for weight_decay, which is 0 where it is not given. It is apart from the gradient, as bitsandbytes has it."""

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        optim_bits: int = 32,
        args: Any = None,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        bnb = amsgrad, optim_bits, args, min_8bit_size, is_paged
        super().__init__(params, lr, betas, eps, weight_decay, *bnb, maximize=maximize)
