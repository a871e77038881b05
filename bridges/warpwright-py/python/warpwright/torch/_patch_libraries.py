"""Recipes of classes of transformers and timm, attention and losses of transformers; `warpwright.torch.patch` is for users.

None of these libraries is imported here: a model that has their classes has imported them.
"""

import functools
import sys
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor

from . import _operators, _rows
from ._attention import attention, attention_qkvpacked
from ._linear_bias import addmm, is_idle
from ._patch_attention import of_views
from ._patch_modules import BIAS, FINDERS, Recipe, Replacement, _batch_norm, _unlike
from ._patch_rules import RULES, Rule, attention_refusal, attention_rule

# Activations by the class that computes them.
_ACTIVATIONS: Dict[str, Callable[[Tensor], Tensor]] = {
    "transformers.activations.GELUActivation": _operators.gelu_erf,
    "transformers.activations.GELUTanh": _operators.gelu_tanh,
    "transformers.activations.NewGELUActivation": _operators.gelu_tanh,
    "transformers.activations.FastGELUActivation": _operators.gelu_tanh,
    "transformers.activations.PytorchGELUTanh": _operators.gelu_tanh,
    "transformers.activations.SiLUActivation": _operators.silu,
    "timm.layers.activations.GELU": _operators.gelu_erf,
    "timm.layers.activations.GELUTanh": _operators.gelu_tanh,
}
# Norms of the channels of an image, by the class that computes them.
_IMAGE_NORMS = ("torchvision.models.convnext.LayerNorm2d", "timm.layers.norm.LayerNorm2d")
_LAYER_NORMS = ("timm.layers.norm.LayerNorm",)
_CONV1D = "transformers.pytorch_utils.Conv1D"
_BATCH_NORM_ACT = "timm.layers.norm_act.BatchNormAct2d"
_PROBED = 64
_EPS = 1e-3


def _eps(module: Any) -> float:
    return module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps


def _rms_norm(module: Any, x: Tensor) -> Tensor:
    return _rows.rms_norm(x, module.weight.shape, module.weight, _eps(module))


def _rms_norm_from_one(module: Any, x: Tensor) -> Tensor:
    return _rows.rms_norm(x, module.weight.shape, 1 + module.weight, _eps(module))


def _only_wide(module: Any, x: Tensor) -> Optional[str]:
    if x.dtype == torch.float32 == module.weight.dtype:
        return None
    return "1 + weight is exact in 32 bits alone"


def _layer_norm(module: Any, x: Tensor) -> Tensor:
    return _rows.layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps)


def _image_norm(module: Any, x: Tensor) -> Tensor:
    rows = x.permute(0, 2, 3, 1)
    return _layer_norm(module, rows).permute(0, 3, 1, 2)


def _product_of_rows(module: Any, x: Tensor) -> Tensor:
    """Of GPT-2's `Conv1D`, whose weight lies the other way."""
    return addmm(module.bias, x.reshape(-1, x.shape[-1]), module.weight).reshape(*x.shape[:-1], module.nf)


@functools.lru_cache(maxsize=None)
def _rms_recipe(cls: type) -> Optional[Recipe]:
    """Of a class that computes what its name says, which is tried on numbers: libraries have hundreds of copies."""
    try:
        module = cls.__new__(cls)
        torch.nn.Module.__init__(module)
        drawn = torch.Generator().manual_seed(1)
        module.weight = torch.nn.Parameter(torch.rand(_PROBED, generator=drawn) + 0.5)
        module.variance_epsilon = module.eps = _EPS
        x = torch.randn(3, _PROBED, generator=drawn) * 0.05
        with torch.no_grad():
            found = module(x)
            plain = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + _EPS)
            for weight, run, rule in ((module.weight, _rms_norm, _unlike), (1 + module.weight, _rms_norm_from_one, _only_wide)):
                if torch.allclose(found, plain * weight, rtol=1e-5, atol=1e-6):
                    return Recipe("rms_norm", run, rule=Rule(call=rule), name="weight" if run is _rms_norm else "")
    except Exception:
        # A norm that wants more than a weight is another one.
        return None
    return None


def find(cls: Any) -> Optional[Recipe]:
    """The recipe of a class of a library."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    if name in _ACTIVATIONS:
        return _activation(name)
    if name in _IMAGE_NORMS:
        return _IMAGE_NORM
    if name == _BATCH_NORM_ACT:
        return _NORM_ACT
    if name in _LAYER_NORMS:
        return _LAYER_NORM
    if name == _CONV1D:
        return _PRODUCT_OF_ROWS
    if cls.__module__.split(".")[0] in ("transformers", "diffusers", "timm") and _is_rms_norm(cls):
        return _rms_recipe(cls)
    return None


def tables_reason(model: torch.nn.Module) -> Optional[str]:
    """Why the rotary tables of a model are not known to be such that the second half of each row is as the first, which ours do not read."""
    made = [module for module in model.modules() if type(module).__name__.endswith("RotaryEmbedding")]
    if not made:
        return "there is no module that makes its tables"
    for module in made:
        try:
            device = module.inv_freq.device  # type: ignore[union-attr]
            x, positions = torch.zeros(1, 3, 1, device=device), torch.arange(3, device=device)[None]
            with torch.no_grad():
                tables = module(x, positions)
            halves = [table.chunk(2, -1) for table in tables]
            if len(tables) != 2 or not all(torch.equal(a, b) for a, b in halves):
                return "the halves of its tables differ"
        except Exception:
            # Tables of another kind, or without memory.
            return "its tables take more than positions"
    return None


def _is_rms_norm(cls: Any) -> bool:
    return cls.__name__.endswith(("RMSNorm", "T5LayerNorm")) and isinstance(cls, type) and issubclass(cls, torch.nn.Module)


@functools.lru_cache(maxsize=None)
def _activation(name: str) -> Recipe:
    function = _ACTIVATIONS[name]

    def exact(module: Any) -> Optional[str]:
        return "inplace=True: its argument may be read afterwards" if getattr(module, "inplace", False) else None

    return Recipe("activation", lambda module, x, *rest: function(x), fits=exact, rule=RULES["activation"])


_LAYER_NORM = Recipe("layer_norm", _layer_norm, rule=Rule(call=_unlike), name="weight")
_IMAGE_NORM = Recipe("layer_norm", _image_norm, rule=Rule(call=_unlike))
_PRODUCT_OF_ROWS = Recipe("linear_bias", _product_of_rows, rule=BIAS, idle=is_idle)
_NORM_ACT = Recipe("batch_norm", lambda module, x: module.act(module.drop(_batch_norm(module, x))))
FINDERS.append(find)

NAME = "warpwright"
# Of attention modules that no call of `patch` has seen, as those of a model that was loaded with this attention.
_DEFAULT = Replacement("attention")


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    position_bias: Optional[Tensor] = None,
    **options: Any,
) -> Any:
    """Attention as an `AttentionInterface` of transformers has it, with masks as for "sdpa"."""
    theirs = sys.modules["transformers.integrations.sdpa_attention"].sdpa_attention_forward
    replacement = module.__dict__.get("_warpwright_attention", _DEFAULT)
    # What SDPA does not compute is ours whatever the speed.
    further = options.get("softcap") is not None or options.get("s_aux") is not None
    packed = None
    if replacement.packed and attention_mask is None and position_bias is None and options.get("s_aux") is None:
        packed = of_views(query, key, value)

    def ours() -> Any:
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        causal = query.shape[2] > 1 and attention_mask is None and causal
        if packed is not None:
            rows = {"causal": causal, "alignment": "top_left", "softcap": options.get("softcap")}
            return attention_qkvpacked(packed, query.shape[1], softmax_scale=scaling, dropout_p=dropout, **rows), None
        bias = attention_mask
        if bias is not None and bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(~bias, float("-inf"))
        if bias is not None:
            bias = bias[..., : key.shape[2]]
        if position_bias is not None:
            bias = position_bias if bias is None else position_bias + bias
        o = attention(
            *(t.transpose(1, 2) for t in (query, key, value)),
            softmax_scale=scaling,
            causal=causal,
            alignment="top_left",
            bias=bias,
            softcap=options.get("softcap"),
            sinks=options.get("s_aux"),
            dropout_p=dropout,
        )
        return o, None

    def other() -> Any:
        if further:
            return _eager(module, query, key, value, attention_mask, is_causal, dropout=dropout, scaling=scaling, **options)
        more = {} if position_bias is None else {"position_bias": position_bias}
        return theirs(module, query, key, value, attention_mask, dropout, scaling, is_causal, **more, **options)

    rule = None if further else attention_rule(packed is not None)
    refused = attention_refusal(query, key, value)
    return replacement.run(ours, other, module, query, rule, refused)


def _eager(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], is_causal: Optional[bool], **options: Any
) -> Any:
    """Attention as the model's own file has it, which takes masks that are added."""
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if mask is None and causal and query.shape[2] > 1:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)
    return sys.modules[type(module).__module__].eager_attention_forward(module, query, key, value, mask, **options)


def mask(*arguments: Any, **options: Any) -> Optional[Tensor]:
    """A mask as for "sdpa", and none where nothing but what comes later is masked. That is known from extents; the library looks at
    more, which it cannot while a graph is traced or captured, and makes one there, with which PyTorch's attention is several times slower."""
    rows, local = options.get("q_length"), options.get("local_size")
    if options.get("attention_mask") is None and rows is not None and rows == options.get("kv_length"):
        causal = options.get("allow_is_causal_skip", True) and (local is None or rows < local)
        if causal or (options.get("allow_is_bidirectional_skip", False) and local is None):
            return None
    return sys.modules["transformers.masking_utils"].sdpa_mask(*arguments, **options)


def register_attention() -> bool:
    """Tells transformers, if it is there, of our attention."""
    transformers = sys.modules.get("transformers.modeling_utils")
    masks = sys.modules.get("transformers.masking_utils")
    if transformers is None or masks is None:
        return False
    import transformers.integrations.sdpa_attention  # noqa: F401

    if NAME not in masks.AttentionMaskInterface._global_mapping:
        sys.modules["transformers.modeling_utils"].AttentionInterface.register(NAME, attend)
        masks.AttentionMaskInterface.register(NAME, mask)
    return True


def models(model: Any) -> List[Any]:
    """Those modules that are models of transformers."""
    library = sys.modules.get("transformers.modeling_utils")
    return [] if library is None else [(n, m) for n, m in model.named_modules() if isinstance(m, library.PreTrainedModel)]
