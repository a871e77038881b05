"""The primitives as JAX functions: under `jax.jit`, `jax.grad` and `jax.vmap`, as one custom call each.

On a GPU they run on XLA's stream and in XLA's memory; arrays on the CPU run in the emulator. Arguments are checked when a function is
traced. They have first derivatives, in reverse mode.

    >>> import jax, jax.numpy as jnp, warpwright.jax as wj
    >>> jax.grad(lambda x: wj.silu(x).sum())(jnp.zeros(2))
    Array([0.5, 0.5], dtype=float32)
"""

from ._activations import (
    geglu,
    geglu_tanh,
    gelu_erf,
    gelu_tanh,
    leaky_relu,
    relu,
    sigmoid,
    silu,
    softplus,
    swiglu,
    tanh,
)
from ._attention import attention
from ._conv import conv1d, conv2d, conv3d
from ._cross_entropy import cross_entropy
from ._embedding import embedding
from ._groups import group_norm
from ._matmul import linear, matmul
from ._quantize import (
    dequantize_fp4,
    dequantize_int4,
    dequantize_int4_asymmetric,
    dequantize_nf4,
    linear_4bit,
    quantize_fp4,
    quantize_int4,
    quantize_int4_asymmetric,
    quantize_nf4,
)
from ._recurrent import gru, lstm, rnn
from ._rotary import rotary_embedding
from ._rows import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from ._softmax import log_softmax, softmax

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "attention",
    "conv1d",
    "conv2d",
    "conv3d",
    "cross_entropy",
    "dequantize_fp4",
    "dequantize_int4",
    "dequantize_int4_asymmetric",
    "dequantize_nf4",
    "embedding",
    "geglu",
    "geglu_tanh",
    "gelu_erf",
    "gelu_tanh",
    "group_norm",
    "gru",
    "layer_norm",
    "leaky_relu",
    "linear",
    "linear_4bit",
    "log_softmax",
    "lstm",
    "matmul",
    "quantize_fp4",
    "quantize_int4",
    "quantize_int4_asymmetric",
    "quantize_nf4",
    "relu",
    "rms_norm",
    "rnn",
    "rotary_embedding",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "swiglu",
    "tanh",
]
