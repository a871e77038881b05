"""The primitives as PyTorch operators (`torch.ops.warpwright`): traceable by `torch.compile`, with gradients.

Forward and backward are separate operators. They run on the current stream, can be captured in CUDA graphs, and take
tensors of any strides: a result has the strides that `torch.empty_like` gives it, that of a convolution the memory format of
PyTorch's. Tensors on the CPU run in the emulator.

    >>> import torch, warpwright.torch as wt
    >>> x = torch.randn(4, 8, requires_grad=True)
    >>> wt.silu(x).sum().backward()

`warpwright.torch.nn` has the modules, `warpwright.torch.optim` the optimizers, `warpwright.torch.parallel` what several GPUs compute together.
"""

from . import nn, optim, parallel
from ._attention import attention, attention_qkvpacked, scaled_dot_product_attention
from ._block_mask import BlockMask
from ._batch import batch_norm
from ._causal_conv import causal_conv1d, causal_conv1d_update
from ._chunk_scan import chunk_scan
from ._clip import clip_grad_norm_
from ._conv import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from ._cross_entropy import cross_entropy
from ._cumsum import cumsum
from ._dropout import dropout, dropout_add, elementwise
from ._embedding import embedding
from ._gather_scatter import gather_rows, scatter_rows
from ._graphs import graphed
from ._grouped import grouped_mm
from ._groups import group_norm, instance_norm
from ._kv_cache import append_kv_cache
from ._linear_4bit import linear_4bit
from ._linear_cross_entropy import linear_cross_entropy
from ._local_response import local_response_norm
from ._feed_forward import gated_mlp, mlp
from ._matmul import addmm, baddbmm, gated_linear, int_mm, linear, matmul, scaled_mm
from ._operators import (
    dequantize_fp4,
    dequantize_int4,
    dequantize_int4_asymmetric,
    dequantize_nf4,
    geglu,
    geglu_tanh,
    gelu_erf,
    gelu_tanh,
    leaky_relu,
    quantize_fp4,
    quantize_int4,
    quantize_int4_asymmetric,
    quantize_nf4,
    relu,
    sigmoid,
    silu,
    softplus,
    swiglu,
    tanh,
)
from ._patch import Patched, patch
from ._pool import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from ._recurrent import gru, lstm, rnn
from ._reduce import mean, sum
from ._resize import interpolate
from ._rotary import apply_rotary_pos_emb, rotary_embedding
from ._rows import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from ._selective_scan import selective_scan, selective_state_update
from ._softmax import log_softmax, softmax
from ._topk import TopK, topk

__all__ = [
    "BlockMask",
    "Patched",
    "TopK",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "add_layer_norm",
    "add_rms_norm",
    "addmm",
    "append_kv_cache",
    "apply_rotary_pos_emb",
    "attention",
    "attention_qkvpacked",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "baddbmm",
    "batch_norm",
    "causal_conv1d",
    "causal_conv1d_update",
    "chunk_scan",
    "clip_grad_norm_",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cross_entropy",
    "cumsum",
    "dequantize_fp4",
    "dequantize_int4",
    "dequantize_int4_asymmetric",
    "dequantize_nf4",
    "dropout",
    "dropout_add",
    "elementwise",
    "embedding",
    "gated_linear",
    "gated_mlp",
    "gather_rows",
    "geglu",
    "geglu_tanh",
    "gelu_erf",
    "gelu_tanh",
    "graphed",
    "group_norm",
    "grouped_mm",
    "gru",
    "instance_norm",
    "int_mm",
    "interpolate",
    "layer_norm",
    "leaky_relu",
    "linear",
    "linear_4bit",
    "linear_cross_entropy",
    "local_response_norm",
    "log_softmax",
    "lstm",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "mean",
    "mlp",
    "nn",
    "optim",
    "parallel",
    "patch",
    "quantize_fp4",
    "quantize_int4",
    "quantize_int4_asymmetric",
    "quantize_nf4",
    "relu",
    "rms_norm",
    "rnn",
    "rotary_embedding",
    "scaled_dot_product_attention",
    "scaled_mm",
    "scatter_rows",
    "selective_scan",
    "selective_state_update",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "sum",
    "swiglu",
    "tanh",
    "topk",
]
