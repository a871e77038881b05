"""On a GPU: zero-copy arrays of several libraries, streams, graphs, and what is refused. Skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww


@pytest.fixture
def torch(cuda):
    cuda.manual_seed(5)
    return cuda


@pytest.fixture
def cupy():
    found = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        available = found.cuda.runtime.getDeviceCount() > 0
    except Exception:
        available = False
    if not available:
        pytest.skip("CuPy sees no GPU")
    return found


def busy(torch, stream, milliseconds=20):
    """Keeps a stream busy, so that work which does not wait for it is seen to be too early."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(milliseconds * 1.5e6))


def test_devices_name_the_gpu(torch):
    first = ww.devices()[0]
    assert first["device"] == "cuda:0" and first["name"] == torch.cuda.get_device_name(0)


def test_torch_memory_is_used_in_place(torch):
    x = torch.randn(1000, device="cuda")
    y = torch.empty_like(x)
    address = y.data_ptr()
    assert ww.relu(x, out=y) is y and y.data_ptr() == address
    assert torch.equal(y, torch.relu(x))
    assert ww.relu(x, out=x) is x and torch.equal(x, y)


def test_unaligned_and_large(torch):
    base = torch.randn((1 << 22) + 3, device="cuda", dtype=torch.bfloat16)
    for x in (base[1:], base[3:], base[:-1], base):
        torch.testing.assert_close(ww.silu(x), torch.nn.functional.silu(x), rtol=1e-2, atol=1e-2)


def test_calls_of_changing_shapes(torch):
    base = torch.randn(4, 6, 5, device="cuda")
    views = [base, base, base[0], base[0, 0, 0], base[:, :0], base.mT, base[..., ::2], base.permute(2, 0, 1), base[:1], base]
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for x in (v.to(dtype) for v in views):
            # One way to a result is for plain tensors in order, the other for the rest: both must look the same.
            for y in (ww.silu(x), ww.silu(x, stream=torch.cuda.current_stream())) if x.is_contiguous() else (ww.silu(x),):
                assert (y.dtype, y.shape) == (x.dtype, x.shape)
                assert y.stride() == torch.empty_like(x).stride()
                torch.testing.assert_close(y, torch.nn.functional.silu(x), rtol=1e-2, atol=1e-2)
            dgate, dup = ww.swiglu_backward(x, x, x)
            assert dgate.data_ptr() != dup.data_ptr() or x.numel() == 0
            torch.testing.assert_close(dup, x * torch.nn.functional.silu(x), rtol=1e-2, atol=1e-2)


def test_results_in_tensors_that_are_given(torch):
    base = torch.randn(3, 64, device="cuda")
    x, dy, y = base
    expected = torch.nn.functional.silu(x)
    for out in (y, torch.empty(2, 64, device="cuda").T.contiguous().T[0], x.clone()):
        for _ in range(2):
            assert ww.silu(x, out=out) is out
            torch.testing.assert_close(out, expected)
    a, b = torch.empty_like(x), torch.empty_like(x)
    fresh = ww.swiglu_backward(x, dy, y)
    found = ww.swiglu_backward(x, dy, y, out=(a, b))
    assert found[0] is a and found[1] is b
    assert all(torch.equal(f, g) for f, g in zip(found, fresh))
    flat = base.view(-1)
    # The general way refuses all that the short way does not take.
    with pytest.raises(ww.LayoutError):
        ww.silu(flat[:64], out=flat[32:96])
    with pytest.raises(ww.LayoutError):
        ww.swiglu_backward(x, dy, y, out=(a, a))
    with pytest.raises(ww.ShapeError):
        ww.silu(x, out=torch.empty(65, device="cuda"))
    with pytest.raises(ww.DtypeError):
        ww.silu(x, out=torch.empty(64, device="cuda", dtype=torch.float64))
    with pytest.raises(ww.ArgumentError, match="requires a gradient"):
        ww.silu(x, out=torch.empty(64, device="cuda", requires_grad=True))
    z = x.clone()
    assert ww.silu(z, out=z) is z
    torch.testing.assert_close(z, expected)


def test_calls_from_several_threads(torch):
    from concurrent.futures import ThreadPoolExecutor

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((seed + 1, 7), seed / 4 - 1.0, device="cuda")
            for _ in range(300):
                y = ww.silu(x)
            return y.cpu(), torch.nn.functional.silu(x).cpu()

    with ThreadPoolExecutor(4) as pool:
        for found, expected in pool.map(work, range(8)):
            torch.testing.assert_close(found, expected)


def test_the_current_stream_is_used(torch):
    x = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        busy(torch, stream)
        x.fill_(-1.0)
        y = ww.leaky_relu(x, 0.5)
        z = y + 1
    stream.synchronize()
    assert torch.equal(z, torch.full_like(z, 0.5))


def test_a_stream_that_the_caller_names(torch):
    x = torch.full((1 << 20,), 3.0, device="cuda")
    y = torch.zeros_like(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for named in (stream, stream.cuda_stream):
        y.zero_()
        torch.cuda.synchronize()
        busy(torch, stream)
        ww.relu(x, out=y, stream=named)
        assert not stream.query()
        stream.synchronize()
        assert torch.equal(y, x)
    with pytest.raises(ww.LayoutError):
        ww.relu(x.view(1024, 1024)[:, ::2], stream=stream)


def test_cuda_graphs(torch):
    import warpwright.torch as wt

    x = torch.randn(4096, device="cuda")
    w = torch.randn(4096, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ww.silu(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # sigmoid was not launched before: its kernel is loaded while the stream is captured.
        y = ww.sigmoid(ww.silu(x))
        z = wt.swiglu(y, w)
        codes, scales = ww.quantize_nf4(z)
        back = ww.dequantize_nf4(codes, scales, z.shape)
    for _ in range(3):
        x.normal_()
        graph.replay()
        expected = torch.sigmoid(torch.nn.functional.silu(x))
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(z, torch.nn.functional.silu(expected) * w)
        assert (back - z).norm() / z.norm() < 0.12


def test_graph_of_a_training_step(torch):
    import warpwright.torch as wt

    w = torch.randn(64, 64, device="cuda", requires_grad=True)
    x = torch.randn(8, 64, device="cuda")

    def step():
        loss = wt.gelu_erf(x @ w).square().mean()
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            w.grad = None
            step()
    torch.cuda.current_stream().wait_stream(side)
    w.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    x.normal_()
    graph.replay()
    mine, grad = loss.clone(), w.grad.clone()
    reference = w.detach().clone().requires_grad_()
    expected = torch.nn.functional.gelu(x @ reference).square().mean()
    expected.backward()
    torch.testing.assert_close(mine, expected)
    torch.testing.assert_close(grad, reference.grad, rtol=1e-4, atol=1e-6)


def test_cupy(cupy):
    x = cupy.linspace(-2, 2, 1000, dtype=cupy.float32)
    y = ww.relu(x)
    assert isinstance(y, cupy.ndarray)
    cupy.testing.assert_array_equal(y, cupy.maximum(x, 0))
    out = cupy.empty_like(x)
    assert ww.relu(x, out=out) is out
    cupy.testing.assert_array_equal(out, y)
    grid = x.reshape(10, 100).T
    cupy.testing.assert_array_equal(ww.relu(grid), cupy.maximum(grid, 0))
    codes, scales = ww.quantize_nf4(x)
    assert codes.dtype == cupy.uint8 and scales.dtype == cupy.float32
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        z = ww.relu(x * 2)
    stream.synchronize()
    cupy.testing.assert_array_equal(z, cupy.maximum(x * 2, 0))


def test_libraries_mix(torch, cupy):
    x = torch.randn(1 << 20, device="cuda")
    dy = cupy.ones(1 << 20, dtype=cupy.float32)
    dx = ww.relu_backward(x, dy)
    assert isinstance(dx, torch.Tensor)
    assert torch.equal(dx, (x > 0).float())
    out = cupy.empty_like(dy)
    assert ww.relu(x, out=out) is out
    assert torch.equal(torch.from_dlpack(out), torch.relu(x))


def test_jax(torch):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    x = jax.numpy.linspace(-2, 2, 1000, dtype=jax.numpy.float32)
    y = ww.relu(x)
    assert isinstance(y, jax.Array) and y.devices() == x.devices()
    np.testing.assert_array_equal(np.asarray(y), np.maximum(np.asarray(x), 0))
    half = x.astype(jax.numpy.bfloat16)
    assert ww.silu(half).dtype == half.dtype
    with pytest.raises(ww.LayoutError):
        ww.relu(x, out=x)


class Interface:
    """`__cuda_array_interface__` and nothing else."""

    def __init__(self, tensor, stream=None):
        self.tensor = tensor
        size = tensor.element_size()
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": "<f4",
            "data": (tensor.data_ptr(), False),
            "strides": None if tensor.is_contiguous() else tuple(s * size for s in tensor.stride()),
            "version": 3,
            "stream": stream,
        }


def test_cuda_array_interface(torch):
    x = torch.randn(100, device="cuda")
    torch.cuda.synchronize()
    y = ww.relu(Interface(x))
    assert type(y) is ww.DeviceArray and y.shape == (100,) and y.dtype == "float32" and y.device == "cuda:0"
    assert torch.equal(torch.from_dlpack(y), torch.relu(x))
    assert torch.equal(torch.as_tensor(y, device="cuda"), torch.relu(x))
    out = torch.empty_like(x)
    torch.cuda.synchronize()
    ww.relu(Interface(x), out=Interface(out))
    torch.cuda.synchronize()
    assert torch.equal(out, torch.relu(x))


def test_a_device_array_outlives_its_capsules(torch):
    x = torch.randn(1 << 16, device="cuda")
    torch.cuda.synchronize()
    tensors = [torch.from_dlpack(ww.relu(Interface(x))) for _ in range(20)]
    for t in tensors:
        assert torch.equal(t, torch.relu(x))


def test_wrong_devices(torch):
    x = torch.randn(8, device="cuda")
    with pytest.raises(ww.DeviceError) as info:
        ww.relu_backward(x, torch.randn(8))
    assert (info.value.argument, info.value.expected, info.value.got) == ("dy", "cuda:0", "cpu")
    with pytest.raises(ww.DeviceError):
        ww.relu(x, out=np.empty(8, np.float32))
    with pytest.raises(ww.DeviceError):
        ww.relu(np.zeros(8, np.float32), stream=torch.cuda.current_stream())


def test_two_gpus(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    a, b = (torch.randn(64, device=f"cuda:{i}") for i in range(2))
    assert torch.equal(ww.relu(b), torch.relu(b)) and ww.relu(b).device == b.device
    assert torch.cuda.current_device() == 0
    with pytest.raises(ww.DeviceError) as info:
        ww.relu_backward(a, b)
    assert (info.value.expected, info.value.got) == ("cuda:0", "cuda:1")
    foreign = torch.cuda.Stream(device=1)
    with pytest.raises(ww.DeviceError) as info:
        ww.relu(a, stream=foreign)
    assert (info.value.argument, info.value.expected, info.value.got) == ("stream", "cuda:0", "cuda:1")


def test_gpu_and_emulator_agree(torch):
    x = torch.randn(3, 257)
    for name in ("relu", "silu", "gelu_erf", "gelu_tanh", "sigmoid", "tanh"):
        torch.testing.assert_close(getattr(ww, name)(x.cuda()).cpu(), getattr(ww, name)(x), rtol=2e-6, atol=1e-6)
    for a, b in zip(ww.quantize_nf4(x.cuda()), ww.quantize_nf4(x)):
        assert torch.equal(a.cpu(), b)
