"""`warpwright.torch.parallel` on one to four processes with gloo: the cases of `parallel_cases.py`, in which every rank holds what it gets against
one process. And what needs no other rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("PyTorch has no gloo", allow_module_level=True)

import parallel_cases  # noqa: E402

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402

pytestmark = pytest.mark.xdist_group("ranks")
WORLD = 4
SECONDS = 240


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The answer of each rank to each case."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(parallel_cases.__file__)
    command = [sys.executable, str(script), "--meet", f"file://{folder / 'meeting'}"]
    # As many GPUs as there may be, the processes are none of theirs.
    common = {**os.environ, "WORLD_SIZE": str(WORLD), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    outputs = [folder / f"rank{rank}" for rank in range(WORLD)]
    processes = []
    for rank, output in enumerate(outputs):
        with open(output, "w") as stdout, open(f"{output}.err", "w") as stderr:
            processes.append(subprocess.Popen(command, stdout=stdout, stderr=stderr, env={**common, "RANK": str(rank)}))
    try:
        for process in processes:
            process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found = {}
    for rank, output in enumerate(outputs):
        lines = [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")]
        found.update({(line["case"], line["ranks"], rank): line["error"] for line in lines})
    errors = "\n".join(Path(f"{output}.err").read_text()[-2000:] for output in outputs)
    return found, errors


def check(outcomes, name, ranks):
    found, errors = outcomes
    told = {rank: found.get((name, ranks, rank), "not run") for rank in range(ranks)}
    failed = {rank: error for rank, error in told.items() if error is not None}
    if failed:
        first = "\n".join(error for error in found.values() if error)[:4000]
        pytest.fail("\n".join([*(f"rank {rank}: {error}" for rank, error in failed.items()), first, errors]), pytrace=False)


@pytest.mark.parametrize("ranks", range(1, WORLD + 1))
@pytest.mark.parametrize("name", parallel_cases.CASES)
def test_ranks_agree_with_one_process(outcomes, name, ranks):
    check(outcomes, name, ranks)


def test_a_rank_that_fails_does_not_hang_the_others(outcomes):
    check(outcomes, "left_alone", WORLD)


def norms():
    return torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.ReLU(), torch.nn.Sequential(wt.nn.BatchNorm2d(4)), torch.nn.SyncBatchNorm(5))


def test_conversion_keeps_parameters_hooks_and_flags():
    model = norms()
    model[0].eval()
    model[3].process_group = "theirs"
    calls = []
    handle = model[0].register_forward_hook(lambda *arguments: calls.append(1))
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    assert wt.parallel.convert_sync_batchnorm(model) is model
    converted = [model[0], model[2][0], model[3]]
    assert all(type(m) is wt.parallel.SyncBatchNorm for m in converted)
    assert [m.process_group for m in converted] == [None, None, "theirs"]
    assert all(p is parameters[name] for name, p in model.named_parameters()) and len(parameters) == 6
    assert all(b is buffers[name] for name, b in model.named_buffers()) and len(buffers) == 9
    assert not model[0].training and model[3].training
    model[0](torch.ones(2, 3))
    handle.remove()
    model[0](torch.ones(2, 3))
    assert calls == [1]
    assert wt.parallel.convert_sync_batchnorm(model, "ours")[0].process_group == "ours"
    alone = torch.nn.BatchNorm2d(3)
    assert type(wt.parallel.SyncBatchNorm.convert_sync_batchnorm(alone)) is wt.parallel.SyncBatchNorm
    shared = torch.nn.Sequential(alone, alone)
    wt.parallel.convert_sync_batchnorm(shared)
    assert shared[0] is shared[1]


def test_a_patched_model_is_converted_and_put_back():
    model = norms()
    x = torch.randn(6, 3)
    before = torch.nn.Sequential(model[0], model[1])
    reference = before(x)
    patched = wt.patch(model, emulator=True, enable={"batch_norm", "activation", "fused"})
    relu = type(model[1])
    wt.parallel.convert_sync_batchnorm(model)
    assert type(model[0]) is wt.parallel.SyncBatchNorm and relu is not torch.nn.ReLU
    assert not hasattr(model[0], "_warpwright")
    torch.testing.assert_close(model[1](model[0](x)), reference)
    patched.undo()
    assert type(model[1]) is torch.nn.ReLU and type(model[0]) is wt.parallel.SyncBatchNorm
    torch.testing.assert_close(model[1](model[0](x)), reference)
    assert type(model) is torch.nn.Sequential


class Scaled(torch.nn.BatchNorm1d):
    def forward(self, input):
        return 2 * super().forward(input)


@pytest.mark.parametrize("norm, part", [(Scaled(3), "Scaled"), (torch.nn.LazyBatchNorm1d(), "no input")])
def test_what_is_more_than_a_batch_norm_is_not_converted(norm, part):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), norm)
    with pytest.raises(ww.ParameterError, match=part) as raised:
        wt.parallel.convert_sync_batchnorm(model)
    assert raised.value.argument == "module 1"
    assert type(model[0]) is torch.nn.BatchNorm1d


def test_without_ranks():
    x = torch.randn(4, 3, requires_grad=True)
    ours, theirs = wt.parallel.SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    with pytest.raises(ww.ParameterError) as raised:
        wt.parallel.sync_batch_norm(x)
    assert (raised.value.op, raised.value.argument) == ("sync_batch_norm", "process_group")


@pytest.mark.parametrize("vocabulary, size", [(10, 3), (4, 4), (11, 2), (5, 1)])
def test_parts_of_a_vocabulary(vocabulary, size):
    parts = [wt.parallel.vocabulary_part(vocabulary, rank, size) for rank in range(size)]
    assert parts[0][0] == 0 and parts[-1][1] == vocabulary
    assert all(a[1] == b[0] for a, b in zip(parts, parts[1:]))
    lengths = [end - start for start, end in parts]
    assert max(lengths) - min(lengths) <= 1 and lengths == sorted(lengths, reverse=True)
