"""`linear_cross_entropy` against PyTorch in float64."""

import pytest

torch = pytest.importorskip("torch")

import warpwright  # noqa: E402
from warpwright import torch as wt  # noqa: E402

ROWS, FEATURES, CLASSES = 11, 24, 40
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def _drawn(device, dtype, bias, classes=CLASSES, shape=(ROWS,)):
    torch.manual_seed(0)
    x = torch.randn(*shape, FEATURES).to(device, dtype).requires_grad_()
    weight = (torch.randn(classes, FEATURES) / FEATURES**0.5).to(device, dtype).requires_grad_()
    b = torch.randn(classes).to(device, dtype).requires_grad_() if bias else None
    target = torch.randint(classes, shape).to(device)
    target.view(-1)[::5] = -100
    return x, weight, b, target


def _expected(tensors, target, factor, **options):
    wide = [None if t is None else t.detach().double().requires_grad_() for t in tensors]
    logits = torch.nn.functional.linear(*wide)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), target.reshape(-1), **options)
    (loss * factor).sum().backward()
    return loss, [None if t is None else t.grad for t in wide]


def _check(found, expected, dtype):
    bound = TOLERANCES[dtype] * max(1.0, float(expected.abs().max()))
    assert float((found.double() - expected).abs().max()) <= bound


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_and_gradients(torch_device, dtype, bias, reduction):
    *tensors, target = _drawn(torch_device, dtype, bias, classes=37 if bias else CLASSES)
    options = {"reduction": reduction, "label_smoothing": 0.1}
    loss = wt.linear_cross_entropy(tensors[0], tensors[1], target, tensors[2], **options)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) and loss.shape == ()
    (3 * loss).backward()
    expected, gradients = _expected(tensors, target, 3, **options)
    _check(loss.detach(), expected.detach(), dtype)
    for tensor, gradient in zip(tensors, gradients):
        if tensor is not None:
            assert tensor.grad.dtype == dtype
            _check(tensor.grad, gradient, dtype)


def test_shapes_of_sequences_and_frozen_weights(torch_device):
    x, weight, _, target = _drawn(torch_device, torch.float32, False, shape=(2, 5))
    weight.requires_grad_(False)
    loss = wt.linear_cross_entropy(x, weight, target)
    loss.backward()
    _, (dx, _, _) = _expected((x, weight, None), target, 1)
    _check(x.grad, dx, torch.float32)
    assert weight.grad is None


def test_without_gradients_losses_may_be_kept(torch_device):
    x, weight, bias, target = _drawn(torch_device, torch.float32, True, shape=(2, 5))
    with torch.no_grad():
        losses = wt.linear_cross_entropy(x, weight, target, bias, reduction="none")
    logits = torch.nn.functional.linear(x, weight, bias)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, -2), target.reshape(-1), reduction="none")
    torch.testing.assert_close(losses, expected.reshape(2, 5).detach())
    with pytest.raises(ValueError, match="reduction is 'none'"):
        wt.linear_cross_entropy(x, weight, target, bias, reduction="none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_and_ignored_rows(torch_device, dtype):
    x, weight, bias, target = (t.detach() for t in _drawn(torch_device, dtype, True))
    found = warpwright.linear_cross_entropy(x, weight, target, bias, gradients=True, chunk_rows=4)
    expected, gradients = _expected((x, weight, bias), target, 1)
    for one, other in zip(found, [expected.detach(), *gradients]):
        _check(one, other, dtype)
    ignored = torch.full_like(target, -100)
    loss, *zeros = warpwright.linear_cross_entropy(x, weight, ignored, bias, gradients=True, reduction="sum")
    assert float(loss) == 0 and all(float(g.abs().max()) == 0 for g in zeros)
    assert torch.isnan(warpwright.linear_cross_entropy(x, weight, ignored, bias))


def test_refusals(torch_device):
    x, weight, bias, target = (t.detach() for t in _drawn(torch_device, torch.float32, True))
    with pytest.raises(warpwright.ShapeError, match="weight"):
        warpwright.linear_cross_entropy(x, weight[:, :-1], target)
    with pytest.raises(warpwright.ShapeError, match="target"):
        warpwright.linear_cross_entropy(x, weight, target[1:])
    with pytest.raises(warpwright.DtypeError, match="weight"):
        warpwright.linear_cross_entropy(x, weight.double(), target)
    with pytest.raises(warpwright.ParameterError, match="reduction"):
        warpwright.linear_cross_entropy(x, weight, target, reduction="none", gradients=True)
    with pytest.raises(warpwright.ParameterError, match="chunk_rows"):
        warpwright.linear_cross_entropy(x, weight, target, chunk_rows=0)
    beyond = target + CLASSES
    if torch_device == "cpu":
        with pytest.raises(warpwright.ParameterError, match="target"):
            warpwright.linear_cross_entropy(x, weight, beyond)
    else:
        # The host does not read what lies on a GPU.
        assert torch.isnan(warpwright.linear_cross_entropy(x, weight, beyond))


def test_operators_trace(torch_device):
    *tensors, target = _drawn(torch_device, torch.float32, True)
    arguments = (*tensors, target, -100, 0.0, "mean", True)
    torch.library.opcheck(torch.ops.warpwright.linear_cross_entropy.default, arguments)
