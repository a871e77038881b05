"""How modules of PyTorch's classes compute with our operators; `warpwright.torch.patch` is for users.

A module that is replaced stays the object that it is and gets another class: one derived from its own, so that parameters, buffers,
hooks, flags and `isinstance` are as before, `copy.deepcopy` and `pickle` know what to do, and a compiler sees an ordinary module. (A
function put on the instance would be found by none of the last three.) It is what `torch.nn.utils.parametrize` and FSDP do.
"""

import functools
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Optional, Tuple, Type

import torch
from torch import Tensor

from .._errors import DeviceError, DtypeError, Error, KernelError, OutOfMemoryError
from . import nn
from ._attention import attention_qkvpacked, scaled_dot_product_attention
from ._linear_bias import is_idle, linear, linear_in_graphs, reason
from ._patch_rules import RULES, Rule, attention_reason, head_dim_reason
from ._registry import is_compiling

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# What an operator says to arguments that it does not take; anything else is a failure.
_REFUSALS = (Error, ValueError, TypeError, NotImplementedError)
_FAILURES = (KernelError, OutOfMemoryError)


@dataclass
class Replacement:
    """How a module is to be run, and what its calls came to. `left` counts calls by the reason for which PyTorch had them. packed: of
    attention, whether queries, keys and values that are one tensor are taken so. bias: of linear layers, whether gradients of biases may be
    summed by ours where PyTorch multiplies."""

    kind: str
    emulator: bool = False
    strict: bool = False
    forced: bool = False
    packed: bool = True
    bias: bool = True
    ran: int = 0
    left: Dict[str, int] = field(default_factory=dict)

    def refusal(self, module: Any, x: Any, rule: Optional[Callable[[Any, Tensor], Optional[str]]]) -> Optional[str]:
        """A reason to call PyTorch for an argument."""
        if not isinstance(x, Tensor):
            x = getattr(x, "data", x)
        if not x.is_cuda and not (self.emulator and x.device.type == "cpu"):
            if self.strict:
                raise DeviceError(f"{self.kind}: the argument is on {x.device}, expected a GPU", op=self.kind, got=str(x.device))
            return "not on a GPU"
        if x.dtype not in FLOATS:
            if self.strict:
                raise DtypeError(f"{self.kind}: the argument is {x.dtype}, expected a float", op=self.kind, got=str(x.dtype))
            return f"{str(x.dtype).split('.')[-1]} is not taken"
        return rule(module, x) if rule is not None and not self.forced else None

    def run(
        self, ours: Callable[..., Any], theirs: Callable[..., Any], module: Any, x: Any, rule: Any, refused: Optional[str] = None
    ) -> Any:
        """The result of one of two functions without arguments. refused: why ours would raise an error."""
        why = self.refusal(module, x, rule) if refused is None or self.strict else refused
        # What is traced is counted nowhere.
        traced = is_compiling()
        if why is None:
            try:
                found = ours()
            except _REFUSALS as error:
                if self.strict or isinstance(error, _FAILURES):
                    raise
                why = "" if traced else str(error)
            else:
                if not traced:
                    self.ran += 1
                return found
        return self.leave(why, theirs)

    def leave(self, why: str, theirs: Callable[..., Any]) -> Any:
        """The result of PyTorch's function, for a reason."""
        if not is_compiling():
            self.left[why] = self.left.get(why, 0) + 1
        return theirs()


@dataclass(frozen=True)
class Recipe:
    """How modules of a class compute with our operators.

    kind: as users name it. run(module, *arguments): what stands in for `method`. base: a class of ours that has further attributes
    which `run` reads. fits(module): a reason why a module cannot be replaced. rule: where ours loses. name: "weight" of norms of rows that a
    residual can be added in front of. choose(module, *arguments): in place of the rule of a call, one that looks at all of its arguments.
    seen(module, x): the tensor whose device and dtype decide, by default the first argument. otherwise: a recipe for what the rule leaves to
    PyTorch, modules and calls. idle(): whether calls are PyTorch's for now, and counted nowhere.
    """

    kind: str
    run: Callable[..., Any]
    method: str = "forward"
    base: Optional[type] = None
    fits: Callable[[Any], Optional[str]] = lambda module: None
    rule: Rule = Rule()
    name: str = ""
    choose: Optional[Callable[..., Optional[str]]] = None
    seen: Callable[[Any, Any], Any] = lambda module, x: x
    otherwise: Optional["Recipe"] = None
    idle: Optional[Callable[[], bool]] = None


class Replaced:
    """The first base of the classes that replaced modules have."""

    _warpwright: Replacement
    # The recipe, and the class that the module had.
    _recipe: Recipe
    _original: type

    def __reduce_ex__(self, protocol: Any) -> Any:
        _, (_, *rest), *state = super().__reduce_ex__(protocol)
        return _rebuilt, (self._original, self._recipe.kind, *rest), *state


def _rebuilt(original: type, kind: str, *rest: Any) -> Any:
    recipe = recipe_of(original)
    if recipe is not None and recipe.kind != kind:
        recipe = recipe.otherwise
    cls = replaced_class(original, recipe)
    return cls.__new__(cls, *rest)


@functools.lru_cache(maxsize=None)
def replaced_class(original: type, recipe: Recipe) -> type:
    """The class of modules of `original` that are replaced."""
    theirs, ours, choose, otherwise = getattr(original, recipe.method), recipe.run, recipe.choose, recipe.otherwise
    if otherwise is not None and otherwise.rule.call is not None:
        theirs = _or(otherwise.run, otherwise.rule.call, theirs)

    idle = recipe.idle

    @functools.wraps(theirs)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        if idle is not None and idle() and not self._warpwright.forced:
            return theirs(self, *arguments, **options)
        x = arguments[0] if arguments else next(iter(options.values()))
        rule = recipe.rule.call if choose is None else lambda module, x: choose(module, *arguments, **options)
        return self._warpwright.run(
            lambda: ours(self, *arguments, **options), lambda: theirs(self, *arguments, **options), self, recipe.seen(self, x), rule
        )

    bases = (Replaced, original) if recipe.base is None else (Replaced, recipe.base, original)
    if recipe.base is not None and issubclass(recipe.base, original):
        bases = (Replaced, recipe.base)
    # A representation of the model is as before.
    return type(original.__name__, bases, {recipe.method: method, "_recipe": recipe, "_original": original, "__module__": original.__module__})


def _or(ours: Callable[..., Any], rule: Callable[[Any, Tensor], Optional[str]], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """One of two methods of linear layers, by a rule of what loses."""

    @functools.wraps(theirs)
    def method(module: Any, input: Tensor) -> Any:  # noqa: A002
        wanted = module._warpwright.bias and rule(module, input) is None
        return ours(module, input) if wanted else theirs(module, input)

    return method


def _unlike(module: Any, x: Tensor) -> Optional[str]:
    """A reason that the types of a norm's weight and its argument give."""
    weight = module.weight
    if weight is not None and weight.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
        return f"{str(x.dtype).split('.')[-1]} with a weight of {str(weight.dtype).split('.')[-1]}"
    return None


def _in_place(module: Any) -> Optional[str]:
    return "inplace=True: its argument may be read afterwards" if getattr(module, "inplace", False) else None


def _batch_norm(module: Any, input: Tensor) -> Tensor:  # noqa: A002
    module._check_input_dim(input)
    counted = module.num_batches_tracked if module.training and module.track_running_stats else None
    try:
        return nn.BatchNorm1d.forward(module, input)
    except _REFUSALS:
        if counted is not None:
            # PyTorch will count the batch.
            counted.sub_(1)
        raise


class _Recurrent:
    """Nets whose products are as exact as those of PyTorch's on a GPU are set to be."""

    @property
    def precision(self: Any) -> str:
        weight = self._flat_weights[0]
        if not weight.is_cuda or weight.dtype != torch.float32 or torch.is_autocast_enabled("cuda"):
            return "full"
        cudnn = torch.backends.cudnn
        own = getattr(cudnn, "rnn", None)
        allowed = cudnn.allow_tf32 if own is None else own.fp32_precision == "tf32"
        return "tf32" if allowed else "full"

    flatten_parameters = nn.LSTM.flatten_parameters
    _cell, _check, _run, _packed = (nn.LSTM.__mro__[1].__dict__[name] for name in ("_cell", "_check", "_run", "_packed"))


def _softplus(module: Any) -> Optional[str]:
    return None if module.threshold * 1.0 >= 20 else f"threshold={module.threshold} is seen in the result"


def _loss(module: Any) -> Optional[str]:
    return None if module.weight is None else "weights of classes are not taken"


def _has_bias(module: Any) -> Optional[str]:
    return None if module.bias is not None else "has no bias"


def _dense(module: Any) -> Optional[str]:
    if module.sparse:
        return "sparse=True: gradients are dense"
    return None if module.max_norm is None else "max_norm changes the weight"


def _of(called: str, kind: str, rule: Optional[str] = None, **options: Any) -> Tuple[type, Recipe]:
    ours = getattr(nn, called)
    method = options.pop("method", "forward")
    run, base = options.pop("run", getattr(ours, method)), options.pop("base", ours)
    chosen = options.pop("own_rule", None) or RULES.get(rule or kind, Rule())
    return getattr(torch.nn, called), Recipe(kind, run, method, base, rule=chosen, **options)


def _each(names: str, kind: str, **options: Any) -> Any:
    """Classes that differ in the number of dimensions."""
    return [_of(f"{name}{dims}d", kind, **options) for name in names.split() for dims in (1, 2, 3)]


def _is_packed(module: Any, query: Tensor, key: Any, value: Any) -> bool:
    return module._warpwright.packed and query is key and key is value


def _multihead_rule(
    module: Any, query: Tensor, key: Any = None, value: Any = None, key_padding_mask: Any = None, need_weights: bool = True,
    attn_mask: Any = None, *rest: Any, **options: Any,
) -> Optional[str]:
    packed = attn_mask is None and _is_packed(module, query, key, value)
    return None if packed else attention_reason(module.head_dim, query, module.in_proj_weight)


def _multihead(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    need_weights: bool = True,
    attn_mask: Optional[Tensor] = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Tuple[Tensor, None]:
    if need_weights:
        raise ValueError("need_weights=True: weights are not kept")
    if key_padding_mask is not None:
        raise ValueError("key_padding_mask is not taken")
    if query.dim() != 3:
        raise ValueError("an input without a batch is not taken")
    if is_causal and attn_mask is None:
        raise ValueError("is_causal=True without a mask is not taken")
    width, heads, dropout = module.embed_dim, module.num_heads, module.dropout if module.training else 0.0
    if attn_mask is None and _is_packed(module, query, key, value):
        qkv = linear_in_graphs(query, module.in_proj_weight, module.in_proj_bias)
        qkv = qkv if module.batch_first else qkv.transpose(0, 1)
        y = attention_qkvpacked(qkv.unflatten(-1, (3, heads, -1)), dropout_p=dropout).flatten(2)
        y = y if module.batch_first else y.transpose(0, 1)
        return linear_in_graphs(y, module.out_proj.weight, module.out_proj.bias), None
    biases = module.in_proj_bias
    parts = zip((query, key, value), module.in_proj_weight.split(width), (None,) * 3 if biases is None else biases.split(width))
    projected = [linear_in_graphs(*part) for part in parts]
    if not module.batch_first:
        projected = [t.transpose(0, 1) for t in projected]
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in projected)
    mask = attn_mask
    if mask is not None:
        # True takes no part here.
        mask = ~mask if mask.dtype == torch.bool else mask.to(q.dtype)
        mask = mask.unflatten(0, (-1, heads)) if mask.dim() == 3 else mask
    y = scaled_dot_product_attention(q, k, v, mask, dropout)
    y = y.transpose(1, 2).flatten(2)
    y = y if module.batch_first else y.transpose(0, 1)
    return linear_in_graphs(y, module.out_proj.weight, module.out_proj.bias), None


def _one_width(module: Any) -> Optional[str]:
    plain = module._qkv_same_embed_dim and module.bias_k is None and not module.add_zero_attn
    return head_dim_reason(module.head_dim) if plain else "keys or values have a width, a bias or zeros of their own"


_NORM = Rule(call=_unlike)
BIAS = Rule(call=lambda module, x: reason(module.bias, x))
_OF_BOTH = Rule(call=lambda module, x: reason(module.bias, x, module.weight))
_LINEAR_BIAS = Recipe(
    "linear_bias", lambda module, input: linear(input, module.weight, module.bias), fits=_has_bias, rule=_OF_BOTH, idle=is_idle
)
RECIPES: Dict[type, Recipe] = dict(
    [
        _of("LayerNorm", "layer_norm", own_rule=_NORM, name="weight"),
        _of("RMSNorm", "rms_norm", own_rule=_NORM, name="weight"),
        _of("GroupNorm", "group_norm", own_rule=_NORM),
        *_each("BatchNorm", "batch_norm", run=_batch_norm),
        *_each("InstanceNorm", "instance_norm", method="_apply_instance_norm"),
        _of("LocalResponseNorm", "local_response_norm"),
        *_each("Conv", "conv", method="_conv_forward"),
        *_each("ConvTranspose", "conv_transpose"),
        *_each("MaxPool AvgPool AdaptiveMaxPool AdaptiveAvgPool", "pool"),
        _of("Upsample", "resize"),
        *(_of(name, "activation", fits=_in_place) for name in ("SiLU", "GELU")),
        _of("Softplus", "activation", fits=_softplus),
        *(_of(name, "activation", rule="simple_activation", fits=_in_place) for name in ("ReLU", "LeakyReLU", "Sigmoid", "Tanh")),
        *(_of(name, "softmax") for name in ("Softmax", "Softmax2d", "LogSoftmax")),
        *(_of(name, "recurrent", base=_Recurrent) for name in ("LSTM", "GRU", "RNN")),
        *(_of(name, "recurrent_cell") for name in ("LSTMCell", "GRUCell", "RNNCell")),
        _of("CrossEntropyLoss", "cross_entropy", fits=_loss),
        _of("Linear", "linear", otherwise=_LINEAR_BIAS),
        _of("Embedding", "embedding", fits=_dense, seen=lambda module, x: module.weight),
        (
            torch.nn.MultiheadAttention,
            Recipe("attention", _multihead, fits=_one_width, choose=_multihead_rule),
        ),
    ]
)
# Further recipes, of classes of other libraries: find(cls) gives one or None.
FINDERS: list = []


def base_of(cls: Type[Any]) -> Optional[type]:
    """The class of PyTorch that there is a recipe of, which a class is or derives from."""
    return next((base for base in cls.__mro__ if base in RECIPES), None)


def recipe_of(cls: Type[Any]) -> Optional[Recipe]:
    """The recipe of a class; one that has a method of its own where the recipe puts one has none."""
    base = base_of(cls)
    if base is not None:
        recipe = RECIPES[base]
        same = all(getattr(cls, name) is getattr(base, name) for name in {"forward", recipe.method})
        if same:
            return recipe
    return next(filter(None, (find(cls) for find in FINDERS)), None)
