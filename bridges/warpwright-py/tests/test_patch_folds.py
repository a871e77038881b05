"""Batch norms of known statistics in patched models, as one operation with the convolution in front of them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import warpwright.torch as wt  # noqa: E402
from warpwright.torch import _patch_folds as folds  # noqa: E402


class Basic(nn.Module):
    """A residual block as torchvision has it."""

    def __init__(self, stride: int = 1, bias: bool = False, act: Any = None) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, stride, 1, bias=bias), nn.BatchNorm2d(8)
        self.relu = act or nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, 1, 1, bias=bias), nn.BatchNorm2d(8)
        self.downsample = nn.Sequential(nn.Conv2d(8, 8, 1, stride, bias=bias), nn.BatchNorm2d(8)) if stride > 1 else None

    def forward(self, x: Any) -> Any:
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        out = self.relu(out)
        return out


def settled(model: nn.Module) -> nn.Module:
    """With statistics that are neither zeros nor ones, for inference."""
    drawn = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor, least in ((module.running_mean, -0.5), (module.running_var, 0.5), (module.weight, 0.5), (module.bias, -0.5)):
                if tensor is not None:
                    tensor.data.copy_(torch.rand(tensor.shape, generator=drawn) + least)
    return model.eval()


def patched(model: nn.Module, **options: Any) -> wt.Patched:
    return wt.patch(model, emulator=True, enable={"conv"}, sources=(__name__,), **options)


def fused(changes: wt.Patched) -> int:
    return sum(entry.replacement.ran for entry in changes.replaced if entry.kind == "fused")


def ran(changes: wt.Patched, kind: str) -> int:
    return sum(entry.replacement.ran for entry in changes.replaced if entry.kind == kind)


def expect_alike(ours: nn.Module, theirs: nn.Module, x: Any, dtype: Any = torch.float32) -> None:
    exact = copy.deepcopy(theirs).double()(x.double())
    found, usual = ours(x), theirs(x)
    assert found.dtype == usual.dtype
    error, theirs_error = (float((t.double() - exact).norm() / exact.norm()) for t in (found, usual))
    assert error <= 2 * theirs_error + {torch.float32: 2e-6, torch.bfloat16: 4e-3}[dtype], (error, theirs_error)


MODELS = {
    "block": (lambda: Basic(), 2),
    "block with a shortcut": (lambda: Basic(2, True), 3),
    "block of another activation": (lambda: Basic(act=nn.SiLU()), 2),
    "sequence": (lambda: nn.Sequential(nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 8, 1), nn.BatchNorm2d(8)), 2),
    "identity between": (lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8, affine=False), nn.Identity(), nn.GELU()), 1),
    "groups of one channel": (lambda: nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8, eps=1e-2), nn.SiLU()), 1),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_convolutions_and_norms_are_one(name: str, channels_last: bool) -> None:
    torch.manual_seed(5)
    make, count = MODELS[name]
    theirs = settled(make())
    ours, x = copy.deepcopy(theirs), torch.randn(2, 8, 6, 6)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    state = copy.deepcopy(ours.state_dict())
    changes = patched(ours)
    with torch.no_grad():
        expect_alike(ours, theirs, x)
    assert fused(changes) == count, changes.report()
    assert not ran(changes, "conv") and not ran(changes, "batch_norm"), changes.report()
    assert all(torch.equal(v, state[k]) for k, v in ours.state_dict().items()) and state.keys() == ours.state_dict().keys()
    again = pickle.loads(pickle.dumps(copy.deepcopy(ours))) if "block" not in name else copy.deepcopy(ours)
    with torch.no_grad():
        torch.testing.assert_close(again(x), ours(x), rtol=0, atol=0)
    changes.undo()
    assert not any(key.startswith("_warpwright") for m in ours.modules() for key in vars(m))
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


def test_of_16_bits() -> None:
    torch.manual_seed(5)
    theirs = settled(Basic(2)).bfloat16()
    ours, x = copy.deepcopy(theirs), torch.randn(2, 8, 6, 6).bfloat16()
    changes = wt.patch(ours, emulator=True, sources=(__name__,))
    with torch.no_grad():
        expect_alike(ours, theirs, x, torch.bfloat16)
    assert fused(changes) == 3, changes.report()


def test_autocast_takes_factors_of_32_bits() -> None:
    torch.manual_seed(5)
    theirs = settled(Basic())
    ours, x = copy.deepcopy(theirs), torch.randn(2, 8, 6, 6)
    changes = patched(ours)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, usual = ours(x.bfloat16()), theirs(x.bfloat16())
    assert found.dtype == usual.dtype == torch.bfloat16
    exact = copy.deepcopy(theirs).double()
    with torch.no_grad():
        wanted = exact(x.bfloat16().double())
    assert float((found.double() - wanted).norm() / wanted.norm()) <= 1e-2
    assert fused(changes) == 2, changes.report()


def test_changed_statistics_and_parameters_are_seen() -> None:
    torch.manual_seed(5)
    theirs = settled(nn.Sequential(nn.Conv2d(8, 8, 3, bias=True), nn.BatchNorm2d(8), nn.ReLU()))
    ours, x = copy.deepcopy(theirs), torch.randn(2, 8, 6, 6)
    changes = patched(ours)
    other = {name: t + 0.25 for name, t in theirs.state_dict().items() if t.is_floating_point()}

    def each() -> Any:
        yield lambda m: m[1].running_mean.add_(0.5)
        yield lambda m: m[1].running_var.mul_(2)
        yield lambda m: m[1].weight.mul_(-1)
        yield lambda m: m[0].bias.sub_(1)
        yield lambda m: setattr(m[1], "eps", 0.5)
        yield lambda m: setattr(m[1], "bias", nn.Parameter(torch.full((8,), 0.75)))
        yield lambda m: setattr(m[1].weight, "data", torch.full((8,), 1.5))
        yield lambda m: m.load_state_dict(other, strict=False)

    with torch.no_grad():
        before = ours(x)
        for change in each():
            change(theirs)
            change(ours)
            found = ours(x)
            assert not torch.equal(found, before)
            torch.testing.assert_close(found, theirs(x), rtol=1e-5, atol=1e-5)
            before = found
        # Nothing has changed: they are not made again.
        known = folds._KNOWN[ours[1]][ours[0]]
        ours(x)
        assert folds._KNOWN[ours[1]][ours[0]] is known
    assert fused(changes) == 10, changes.report()


def test_what_is_left_as_it_was() -> None:
    torch.manual_seed(5)
    model = settled(Basic())
    x = torch.randn(2, 8, 6, 6)
    changes = patched(model)
    # Recorded: norms and activations are pairs.
    y = model(x)
    assert y.requires_grad and ran(changes, "conv") == 2 and fused(changes) == 2, changes.report()
    with torch.no_grad():
        model.train()
        model(x)
        assert ran(changes, "conv") == 4, changes.report()
        model.eval()
        seen: list = []
        hook = model.conv1.register_forward_hook(lambda *_: seen.append(1))
        model(x)
        # The other pair is one operation all the same.
        assert len(seen) == 1 and ran(changes, "conv") == 5, changes.report()
        hook.remove()
        model(x)
        assert len(seen) == 1 and ran(changes, "conv") == 5
        everywhere = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
        model(x)
        everywhere.remove()
        assert nn.Conv2d in {base for cls in seen[1:] for base in cls.__mro__} and ran(changes, "conv") == 7


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(8)),
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8, track_running_stats=False)),
        nn.Sequential(nn.ConvTranspose2d(8, 8, 3), nn.BatchNorm2d(8)),
    ],
    ids=["reflected", "no statistics", "transposed"],
)
def test_what_does_not_fold(model: nn.Module) -> None:
    theirs = copy.deepcopy(model).eval()
    ours, x = copy.deepcopy(theirs), torch.randn(2, 8, 5, 5)
    changes = wt.patch(ours, emulator=True, enable={"conv", "conv_transpose"})
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    assert fused(changes) == 0, changes.report()


def test_compiled_code_sees_changes() -> None:
    torch.manual_seed(5)
    theirs = settled(Basic())
    ours, x = copy.deepcopy(theirs), torch.randn(2, 8, 6, 6)
    patched(ours)
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), theirs(x), rtol=1e-5, atol=1e-5)
        for model in (ours, theirs):
            model.bn2.running_mean.add_(0.5)
        torch.testing.assert_close(compiled(x), theirs(x), rtol=1e-5, atol=1e-5)


LIBRARIES = {
    "torchvision basic": ("torchvision", lambda m: m.models.resnet.BasicBlock(8, 8), 2),
    "torchvision bottleneck": ("torchvision", lambda m: m.models.resnet.Bottleneck(8, 2), 3),
    "timm basic": ("timm", lambda m: m.models.resnet.BasicBlock(8, 8), 2),
    "timm bottleneck": ("timm", lambda m: m.models.resnet.Bottleneck(8, 2), 3),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_blocks_of_libraries(name: str) -> None:
    library, make, count = LIBRARIES[name]
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    torch.manual_seed(5)
    theirs = settled(make(module))
    ours, x = copy.deepcopy(theirs), torch.randn(2, 8, 5, 5)
    changes = wt.patch(ours, emulator=True, enable={"conv"})
    with torch.no_grad():
        expect_alike(ours, theirs, x)
    assert fused(changes) == count and not ran(changes, "conv"), changes.report()
