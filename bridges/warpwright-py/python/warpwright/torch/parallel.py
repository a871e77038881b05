"""Operations spread over the processes of a `torch.distributed` group, each with a GPU of its own (NCCL) or the emulator (gloo): batch norm with the
statistics of all ranks, linear layers, embedding and cross entropy whose weights are split, and attention over split sequences.

Every rank calls the same functions in the same order, each with its own tensors. Results and gradients are those of one process with all the data, up to
the order of sums, and the same in every run with the same ranks. `process_group=None` is the group of all processes.

    >>> import warpwright.torch as wt
    >>> model = wt.parallel.convert_sync_batchnorm(model)
    >>> up, down = wt.parallel.ColumnParallelLinear(512, 2048), wt.parallel.RowParallelLinear(2048, 512)

The first call of a kind in a group compares dtypes, shapes and options of the ranks, and raises the same `RankError` on all of them where they differ.
Not compared are lengths that may differ from call to call (batches, rows of linear layers, of the embedding and of the loss), calls that a rank has made
before, and calls in CUDA graphs: there a rank that calls differently is found by the process group's time-out, as is one that has failed.
"""

from ._parallel_attention import context_parallel_attention, zig_zag_join, zig_zag_split
from ._parallel_batch import SyncBatchNorm, convert_sync_batchnorm, sync_batch_norm
from ._parallel_linear import ColumnParallelLinear, RowParallelLinear, column_parallel_linear, row_parallel_linear
from ._parallel_vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy, vocab_parallel_embedding, vocabulary_part

__all__ = [
    "ColumnParallelLinear",
    "RowParallelLinear",
    "SyncBatchNorm",
    "VocabParallelEmbedding",
    "column_parallel_linear",
    "context_parallel_attention",
    "convert_sync_batchnorm",
    "row_parallel_linear",
    "sync_batch_norm",
    "vocab_parallel_cross_entropy",
    "vocab_parallel_embedding",
    "vocabulary_part",
    "zig_zag_join",
    "zig_zag_split",
]
