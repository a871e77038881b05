"""Clipping of gradients; `warpwright.torch` has it for users."""

from typing import Dict, Iterable, List, Optional, Tuple, Union

import torch
from torch import Tensor

from .. import _native
from .._errors import LayoutError, refused


@torch.no_grad()
def clip_grad_norm_(
    parameters: Union[Tensor, Iterable[Tensor]],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: Optional[bool] = None,
) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_` for the norms of 2 and infinity, in two passes over the gradients, the second only where they are clipped.

    The result is the norm before, in float32 (float64 of gradients in float64). Nothing waits for the GPU unless error_if_nonfinite. The norm of
    sharded gradients (`DTensor`) is one of all processes, which PyTorch takes.
    """
    op = "clip_grad_norm_"
    norm_type, max_norm = float(norm_type), float(max_norm)
    if norm_type not in (2.0, float("inf")):
        raise refused(op, "norm_type", norm_type, "2 or infinity: torch.nn.utils.clip_grad_norm_ has the others")
    if not max_norm >= 0:
        raise refused(op, "max_norm", max_norm, "at least 0")
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    if any(hasattr(grad, "to_local") for grad in grads):
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    kinds: Dict[Tuple[torch.device, torch.dtype], List[Tensor]] = {}
    for grad in grads:
        kinds.setdefault((grad.device, grad.dtype), []).append(grad)
    if len(kinds) == 1 and not error_if_nonfinite:
        try:
            norm = _native.clip_grad_norm(grads, max_norm, norm_type)
        except LayoutError:
            # Gradients with gaps; nothing has run.
            pass
        else:
            torch.autograd.graph.increment_version(grads)
            return norm
    norms = [_native.grad_norm(each, norm_type) for each in kinds.values()]
    device, dtype = norms[0].device, max((norm.dtype for norm in norms), key=lambda dtype: dtype.itemsize)
    norm = torch.linalg.vector_norm(torch.stack([norm.to(device, dtype) for norm in norms]), norm_type)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped. To disable this "
            "error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    coefficient = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for (device, _), each in kinds.items():
        torch._foreach_mul_(each, coefficient.to(device))
    return norm
