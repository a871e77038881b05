"""`warpwright.torch` where there is nothing to compute, nothing to compute with, or nothing that it can do: PyTorch's answers, or a
clear refusal."""

from __future__ import annotations

import pytest
from conftest import torch_cuda  # noqa: F401

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402

F = torch.nn.functional


def both(ours, theirs, *tensors):
    """Results and gradients of the two, on tensors of their own."""
    found = []
    for function in (ours, theirs):
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        y = function(*leaves)
        y.backward(torch.ones_like(y))
        found.append((y.detach(), *(leaf.grad for leaf in leaves)))
    return zip(*found)


@pytest.mark.parametrize("shape", [(4, 0), (2, 3, 0), (0, 4), (2, 0, 4), (0, 0)])
def test_products_over_nothing_and_of_nothing(shape, torch_device):
    new = lambda *s: torch.randn(*s, device=torch_device)  # noqa: E731
    x, weight, bias = new(*shape), new(5, shape[-1]), new(5)
    for a, b in both(wt.linear, F.linear, x, weight, bias):
        assert a.shape == b.shape and torch.equal(a, b)
    for a, b in both(wt.linear, F.linear, x, weight):
        assert a.shape == b.shape and torch.equal(a, b)
    for a, b in both(wt.linear, F.linear, x, new(shape[-1])):
        assert a.shape == b.shape and torch.equal(a, b)
    others = [new(shape[-1], 5), new(*shape[:-2], shape[-1], 5), new(shape[-1])]
    others += [new(3, 2, shape[-1], 5), new(1, shape[-1], 5)] if len(shape) == 2 else [new(1, 1, shape[-1], 5)]
    others.append(new(3, 1, shape[-1], 5))
    for other in others:
        for a, b in both(wt.matmul, torch.matmul, x, other):
            assert a.shape == b.shape and torch.equal(a, b)
    ours, theirs = (wt.addmm, torch.addmm) if len(shape) == 2 else (wt.baddbmm, torch.baddbmm)
    for addend in (new(5), new(shape[-2], 5)):
        for factor in (1, 2):
            other = new(*shape[:-2], shape[-1], 5)
            for a, b in both(*(lambda *t, f=f: f(*t, beta=factor) for f in (ours, theirs)), addend, x, other):
                assert a.shape == b.shape and torch.equal(a, b)


def test_batch_norm_of_no_channels(torch_device):
    x = torch.zeros(0, device=torch_device)
    for training in (True, False):
        for running in ((None, None), (x.clone(), x.clone())):
            if training or running[0] is not None:
                for a, b in both(
                    lambda x: wt.batch_norm(x, *running, training=training),
                    lambda x: F.batch_norm(x, *running, training=training),
                    x,
                ):
                    assert a.shape == b.shape == (0,)
        for shape in ((), (1,), (5,)):
            with pytest.raises(ValueError, match="expected an input"):
                wt.batch_norm(torch.ones(shape, device=torch_device), None, None, training=training)
    with pytest.raises(ValueError, match="expected logits"):
        wt.cross_entropy(torch.ones((), device=torch_device), torch.zeros((), dtype=torch.int64, device=torch_device))


def test_eps_is_refused_where_pytorch_refuses_it(torch_device):
    x = torch.randn(4, 3, 5, device=torch_device)
    running = torch.zeros(3, device=torch_device), torch.ones(3, device=torch_device)
    for function in (wt.batch_norm, F.batch_norm):
        for eps in (0.0, -1e-5):
            with pytest.raises(ValueError, match="eps must be positive"):
                function(x, None, None, training=True, eps=eps)
        with pytest.raises(ValueError):
            function(x, *running, training=False, eps=-1e-5)
    # Mean 0 and variance 1 change nothing. Releases of PyTorch differ in whether they take an eps of 0 here.
    torch.testing.assert_close(wt.batch_norm(x, *running, eps=0.0), x, rtol=0, atol=0)
    for ours, theirs in (
        (wt.layer_norm(x, 5, eps=0.0), F.layer_norm(x, (5,), eps=0.0)),
        (wt.group_norm(x, 3, eps=0.0), F.group_norm(x, 3, eps=0.0)),
        (wt.instance_norm(x, eps=0.0), F.instance_norm(x, eps=0.0)),
        (wt.rms_norm(x, 5, eps=0.0), F.rms_norm(x, (5,), eps=0.0)),
    ):
        torch.testing.assert_close(ours, theirs)


def operations(device):
    """Each operation as a function of its first tensor, and a shape for that."""
    new = lambda *s: torch.randn(*s, device=device)  # noqa: E731
    weights = [(new(32, 4), new(32, 8), new(32), new(32))]
    target = torch.zeros(3, dtype=torch.int64, device=device)
    return {
        "silu": ((3, 4), wt.silu),
        "leaky_relu": ((3, 4), wt.leaky_relu),
        "swiglu": ((3, 4), lambda x: wt.swiglu(x, new(3, 4))),
        "softmax": ((3, 4), wt.softmax),
        "layer_norm": ((3, 4), lambda x: wt.layer_norm(x, 4, new(4), new(4))),
        "rms_norm": ((3, 4), lambda x: wt.rms_norm(x, 4)),
        "add_rms_norm": ((3, 4), lambda x: wt.add_rms_norm(x, new(3, 4), 4)[0]),
        "group_norm": ((3, 4), lambda x: wt.group_norm(x, 2, new(4), new(4))),
        "instance_norm": ((3, 4, 5), wt.instance_norm),
        "batch_norm": ((3, 4), lambda x: wt.batch_norm(x, None, None, training=True)),
        "local_response_norm": ((3, 4, 5), lambda x: wt.local_response_norm(x, 2)),
        "cross_entropy": ((3, 4), lambda x: wt.cross_entropy(x, target)),
        "linear": ((3, 4), lambda x: wt.linear(x, new(5, 4), new(5))),
        "matmul": ((3, 4), lambda x: wt.matmul(x, new(4, 5))),
        "addmm": ((3, 4), lambda x: wt.addmm(x, new(3, 2), new(2, 4), beta=0.5)),
        "baddbmm": ((2, 3, 4), lambda x: wt.baddbmm(new(5), x, new(2, 4, 5))),
        "conv2d": ((2, 3, 4, 5), lambda x: wt.conv2d(x, new(4, 3, 3, 2), new(4), activation="relu")),
        "conv_transpose1d": ((2, 3, 4), lambda x: wt.conv_transpose1d(x, new(3, 2, 3), new(2), stride=2)),
        "causal_conv1d": ((2, 4, 5), lambda x: wt.causal_conv1d(x, new(4, 3), new(4), activation="silu")),
        "selective_scan": ((2, 4, 5), lambda x: wt.selective_scan(x, new(2, 4, 5), new(4, 3), new(2, 3, 5), new(2, 3, 5), new(4))),
        "max_pool2d": ((2, 3, 5, 4), lambda x: wt.max_pool2d(x, 3, 2, 1, ceil_mode=True)),
        "avg_pool1d": ((2, 3, 5), lambda x: wt.avg_pool1d(x, 2, ceil_mode=True)),
        "adaptive_max_pool2d": ((2, 3, 5, 4), lambda x: wt.adaptive_max_pool2d(x, (2, 3))),
        "adaptive_avg_pool3d": ((2, 3, 5, 4, 2), lambda x: wt.adaptive_avg_pool3d(x, 2)),
        "interpolate": ((2, 3, 5, 4), lambda x: wt.interpolate(x, scale_factor=1.7, mode="bicubic")),
        "attention": ((2, 3, 2, 16), lambda x: wt.attention(x, new(2, 3, 2, 16), new(2, 3, 2, 16))),
        "lstm": ((5, 3, 4), lambda x: wt.lstm(x, weights)[0]),
    }


@pytest.mark.parametrize("name", operations("cpu"))
def test_tensors_without_memory(name):
    """Shapes, strides and types of results and gradients are those of tensors with memory."""
    found = []
    for device in ("meta", "cpu"):
        shape, function = operations(device)[name]
        x = torch.randn(shape, device=device, requires_grad=True)
        y = function(x)
        y.backward(torch.ones_like(y))
        with torch.no_grad():
            plain = function(x)
        found.append([(t.shape, t.stride(), t.dtype) for t in (y, x.grad, plain)])
        assert {t.device.type for t in (y, x.grad, plain)} == {device}
    assert found[0] == found[1]


def test_native_functions_refuse_tensors_without_memory():
    with pytest.raises(ww.DeviceError) as info:
        ww.silu(torch.ones(3, device="meta"))
    e = info.value
    assert (e.op, e.argument, e.expected, e.got) == ("silu", "x", "cpu or cuda", "meta")
    codes, scales = wt.quantize_nf4(torch.ones(100, device="meta"))
    assert codes.shape == (50,) and scales.shape == (2,) and codes.device.type == "meta"


@pytest.mark.parametrize("name", operations("cpu"))
def test_forward_mode_is_refused(name, torch_device):
    """A tangent is not lost without a word, whichever way it comes."""
    forward_ad = torch.autograd.forward_ad
    shape, function = operations(torch_device)[name]
    x = torch.randn(shape, device=torch_device)
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(function, (x,), (torch.ones_like(x),))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            function(dual)
        with torch.no_grad(), pytest.raises(NotImplementedError, match="forward-mode"):
            function(dual)
        # What has no tangent goes on as before.
        function(x)
        function(dual.detach())
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.clone().requires_grad_(), torch.ones_like(x))
        with pytest.raises(NotImplementedError):
            function(dual)


def test_forward_mode_of_operators_and_native_functions(torch_device):
    forward_ad = torch.autograd.forward_ad
    x = torch.randn(3, 4, device=torch_device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="silu has no forward-mode"):
            torch.ops.warpwright.silu(dual)
        with pytest.raises(ww.ArgumentError, match="forward-mode") as info:
            ww.silu(dual)
        assert (info.value.op, info.value.argument) == ("silu", "x")
        assert torch.equal(ww.silu(x), wt.silu(x))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            wt.quantize_nf4(dual)


def test_the_gradient_of_relu_passes_at_nan(torch_device):
    x = torch.tensor([float("nan"), -1.0, 0.0, -0.0, 2.0, float("inf"), -float("inf")], device=torch_device)
    dy = torch.arange(1.0, 8.0, device=torch_device)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for ours, theirs in ((wt.relu, F.relu), (wt.leaky_relu, F.leaky_relu)):
            found = []
            for function in (ours, theirs):
                leaf = x.to(dtype).clone().requires_grad_()
                function(leaf).backward(dy.to(dtype))
                found.append(leaf.grad)
            torch.testing.assert_close(*found)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_losses_of_another_type_than_the_logits(kind, reduction, torch_device):
    logits = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(3)).to(torch_device, kind)
    target = torch.tensor([[3, 0, -100, 8, 8], [1, 1, 2, -100, 5]], device=torch_device)
    dtype = torch.float64 if kind == torch.float32 else torch.float32
    found = []
    for x, function in (
        (logits.clone(), lambda x: wt.cross_entropy(x, target, reduction=reduction, dtype=dtype)),
        (logits.clone(), lambda x: F.cross_entropy(x.to(dtype), target, reduction=reduction)),
    ):
        loss = function(x.requires_grad_())
        (loss * torch.linspace(1, 2, loss.numel(), dtype=dtype, device=torch_device).reshape(loss.shape)).sum().backward()
        found.append((loss.detach(), x.grad))
    (ours, gradient), (theirs, expected) = found
    assert ours.dtype == dtype and gradient.dtype == kind
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient, expected)
    with torch.autocast(torch_device, dtype=torch.bfloat16):
        assert wt.cross_entropy(logits, target).dtype == F.cross_entropy(logits, target).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_of_a_likely_class_has_the_digits_of_pytorchs(dtype, torch_device):
    """Where the probability of the target is near 1, the difference of both cancels."""
    generator = torch.Generator().manual_seed(3)
    errors = []
    for ahead in range(0, 15):
        logits = 5 * torch.randn(100, 20, generator=generator) + 30
        logits[:, 0] = logits.max(1).values + ahead
        target = torch.zeros(100, dtype=torch.int64)
        found = []
        for function, kind in ((wt.cross_entropy, dtype), (F.cross_entropy, dtype)):
            leaf = logits.to(torch_device, kind, copy=True).requires_grad_()
            function(leaf, target.to(torch_device), reduction="sum").backward()
            found.append(leaf.grad.double().cpu())
        # Without a cancellation, from the very same logits.
        x = logits.to(dtype).double()
        others = (x[:, 1:] - x[:, :1]).exp()
        exact = torch.cat([-others.sum(1, keepdim=True), others], 1) / (1 + others.sum(1, keepdim=True))
        errors.append([float((f - exact).norm() / exact.norm()) for f in found])
    ours, theirs = (torch.tensor(e) for e in zip(*errors))
    least = 1e-6 if dtype == torch.float32 else 1e-13
    assert (ours <= torch.clamp(1.5 * theirs, min=least)).all(), errors
