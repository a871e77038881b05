"""Which convolutions of 32 bits are ours in patched models, and that they are as near to exact ones as PyTorch's."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import warpwright.torch as wt  # noqa: E402
from warpwright.torch import _patch_rules as rules  # noqa: E402


def decision(conv, x):
    return rules.RULES["conv"].call(conv, x)


@pytest.mark.parametrize(
    ("options", "last", "recorded", "left"),
    [
        ({"kernel_size": 3}, True, True, None),
        ({"kernel_size": 3}, False, True, None),
        ({"kernel_size": 3, "stride": 2}, True, False, None),
        ({"kernel_size": 3, "stride": 2}, True, True, "with strides"),
        ({"kernel_size": 1}, True, True, None),
        ({"kernel_size": 1}, False, False, "channels come first"),
        ({"kernel_size": 3, "groups": 2}, True, False, "groups of 32 bits"),
    ],
)
def test_what_pytorch_rounds_is_taken(monkeypatch, options, last, recorded, left):
    monkeypatch.setattr(rules, "precision_of_pytorch", lambda device: "tf32")
    monkeypatch.setattr(rules, "_is_sm_90", lambda index: True)
    conv = nn.Conv2d(4, 8, **options).requires_grad_(recorded)
    x = torch.ones(2, 4, 6, 7)
    why = decision(conv, x.contiguous(memory_format=torch.channels_last) if last else x)
    assert why is None if left is None else left in why
    # Of other types, and of exact products, none is.
    assert "64 bits" in decision(conv.double(), x.double())
    monkeypatch.setattr(rules, "precision_of_pytorch", lambda device: "full")
    assert "32 and 64 bits" in decision(conv.float(), x)


def test_a_block_in_tf32(torch_device):
    """With PyTorch's setting of the GPU at hand; the emulator's are exact."""
    torch.manual_seed(2)
    block = nn.Sequential(nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 8, 1)).eval()
    block = block.to(torch_device).to(memory_format=torch.channels_last)
    x = torch.randn(2, 16, 9, 9, device=torch_device).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        exact, plain = copy.deepcopy(block).double()(x.double()), block(x)
        patched = wt.patch(block, emulator=True, enable={"conv"})
        found = block(x)
    errors = [float((t.double() - exact).norm() / exact.norm()) for t in (found, plain)]
    assert errors[0] <= 2 * errors[1] + 2e-6
    # The first with the norm and the activation behind it, as one.
    assert {e.kind: e.replacement.ran for e in patched.replaced if e.replacement.ran} == {"conv": 1, "fused": 1}, patched.report()
