"""Two GPUs in one process: each call runs where its tensors are, whatever the current device, and threads do not meet. Skipped with fewer."""

from __future__ import annotations

import threading
from typing import Any, Callable

import pytest
from conftest import torch_cuda

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402


@pytest.fixture(autouse=True)
def two_gpus() -> None:
    if torch_cuda().cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


def _attention(x: Any) -> Any:
    q, k, v = x.view(2, 16, 3, 4, -1).unbind(2)
    return wt.attention(q, k, v, causal=True)


def _lstm(x: Any) -> Any:
    module = wt.nn.LSTM(x.shape[-1], 24, dtype=x.dtype, device=x.device)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.05)
    return module(x)[0]


# Each of a tensor of [2, 16, 192], alike on every device.
CALLS: dict[str, Callable[[Any], Any]] = {
    "silu": wt.silu,
    "softmax": lambda x: wt.softmax(x, -1),
    "layer_norm": lambda x: wt.layer_norm(x, (192,)),
    "batch_norm": lambda x: wt.batch_norm(x, None, None, training=True),
    "attention": _attention,
    "linear": lambda x: wt.linear(x, torch.ones(8, 192, dtype=x.dtype, device=x.device) / 8),
    "conv": lambda x: wt.conv1d(x, torch.ones(4, 16, 3, dtype=x.dtype, device=x.device) / 8, padding=1),
    "max_pool": lambda x: wt.max_pool1d(x, 2),
    "cumsum": lambda x: wt.cumsum(x, -1),
    "lstm": _lstm,
    "cross_entropy": lambda x: wt.cross_entropy(x.flatten(0, 1), torch.arange(32, device=x.device)),
}


def both_ways(call: Callable[[Any], Any], x: Any) -> list[Any]:
    x = x.detach().requires_grad_()
    y = call(x)
    (dx,) = torch.autograd.grad(y, x, torch.linspace(1, 2, y.numel(), device=y.device, dtype=y.dtype).view(y.shape))
    return [y.detach(), dx]


def sample(dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(2, 16, 192, generator=torch.Generator().manual_seed(3)).to(dtype)


def same(found: list[Any], expected: list[Any], device: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.device == device
        assert torch.equal(a.cpu(), b.cpu())


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_call_runs_where_its_tensors_are(name: str, dtype: Any) -> None:
    x = sample(dtype)
    first = both_ways(CALLS[name], x.cuda(0))
    for current in (0, 1):
        with torch.cuda.device(current):
            second = both_ways(CALLS[name], x.to("cuda:1"))
            # Twice, as calls that repeat take a shorter way.
            again = both_ways(CALLS[name], x.to("cuda:1"))
            assert torch.cuda.current_device() == current
        for found in (second, again):
            same(found, first, torch.device("cuda", 1))


def test_threads_have_a_device_each() -> None:
    expected = {name: both_ways(call, sample().cuda(0)) for name, call in CALLS.items()}
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def work(device: int) -> None:
        try:
            start.wait()
            stream = torch.cuda.Stream(device)
            with torch.cuda.stream(stream):
                for _ in range(5):
                    for name, call in CALLS.items():
                        same(both_ways(call, sample().to(f"cuda:{device}")), expected[name], torch.device("cuda", device))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_a_model_over_two_devices() -> None:
    """Layers of one device behind those of the other, patched, in training, and with the same bits as on one."""

    def trained(devices: list[str]) -> list[Any]:
        torch.manual_seed(5)
        blocks = [torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in devices]
        for block, device in zip(blocks, devices):
            wt.patch(block.to(device, torch.bfloat16))
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
        optimizer = wt.optim.AdamW([p for block in blocks for p in block.parameters()], lr=1e-2)
        for _ in range(3):
            y = x
            for block, device in zip(blocks, devices):
                y = block(y.to(device))
            y.float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().cpu() for block in blocks for p in block.parameters()]

    for one, two in zip(trained(["cuda:0", "cuda:0"]), trained(["cuda:0", "cuda:1"]), strict=True):
        assert torch.equal(one, two)


def test_graphs_and_compiled_calls_of_the_second_device() -> None:
    x = sample().to("cuda:1")
    expected = both_ways(CALLS["layer_norm"], x)
    with torch.cuda.device(1):
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            both_ways(CALLS["layer_norm"], x)
        torch.cuda.current_stream().wait_stream(stream)
        # PyTorch's own stream for graphs is of the device that was the first to have one.
        with torch.cuda.graph(graph, stream=stream):
            found = both_ways(CALLS["layer_norm"], x)
        graph.replay()
        torch.cuda.synchronize()
        same(found, expected, x.device)
    compiled = torch.compile(lambda t: CALLS["layer_norm"](t) * 1, fullgraph=True)
    same([compiled(x)], expected[:1], x.device)


def test_graphs_of_both_devices() -> None:
    predict = wt.graphed(lambda t: wt.silu(t) + 1, warmup=1)
    for number in range(6):
        x = sample().to(f"cuda:{number % 2}") + number
        y = predict(x)
        assert y.device == x.device
        assert torch.equal(y, wt.silu(x) + 1), number
    # Of each device one call before the graph is made.
    assert predict.replays == 4, predict.report()


def test_tensors_of_two_devices_are_refused() -> None:
    x = sample()
    with pytest.raises(ww.DeviceError) as info:
        ww.matmul(x.cuda(0), x.to("cuda:1").mT)
    assert (info.value.expected, info.value.got) == ("cuda:0", "cuda:1")
    with pytest.raises((ww.DeviceError, RuntimeError)):
        wt.linear(x.cuda(0), torch.ones(8, 192, device="cuda:1", dtype=x.dtype))
