"""Resizing in patched models: which calls are ours, of modules and of functions, and that their numbers are PyTorch's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import warpwright.torch as wt  # noqa: E402
from warpwright.torch import _patch_rules as rules  # noqa: E402

FIRST, LAST = torch.contiguous_format, torch.channels_last
NEAREST = "with channels first"


@pytest.mark.parametrize(
    ("mode", "output", "layout", "recorded", "left"),
    [
        ("nearest", (8, 10), FIRST, True, None),
        ("nearest-exact", (8, 10), FIRST, False, None),
        ("nearest", (16, 20), FIRST, False, None),
        ("nearest", (16, 20), FIRST, True, NEAREST),
        ("nearest", (2, 2), FIRST, False, "to fewer pixels"),
        ("nearest", (2, 2), LAST, True, None),
        ("bilinear", (3, 4), FIRST, True, None),
        ("bicubic", (7, 9), LAST, False, None),
        ("area", (2, 2), LAST, False, "means of cells"),
    ],
)
def test_what_is_faster_is_taken(mode, output, layout, recorded, left):
    x = torch.ones(1, 2, 4, 5).contiguous(memory_format=layout).requires_grad_(recorded)
    why = rules.resize_reason(mode, x, output)
    assert why is None if left is None else left in why


def test_extents_are_those_of_pytorch():
    x = torch.ones(1, 1, 5, 7)
    for size, factor in (((3, 4), None), (6, None), (None, 2), (None, 1.7), (None, (0.5, 3.0))):
        expected = F.interpolate(x, size, factor).shape[2:]
        assert tuple(rules._resized(x.shape[2:], size, factor)) == tuple(expected), (size, factor)


@pytest.mark.parametrize("layout", [FIRST, LAST])
def test_modules_of_unets(layout):
    """A doubled image is ours in both layouts, one of four times the extents with channels last alone; both are PyTorch's numbers."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=4, mode="nearest-exact"))
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=layout).requires_grad_()
    plain = model(x)
    dy = torch.randn_like(plain)
    (dx,) = torch.autograd.grad(plain, x, dy)
    patched = wt.patch(model, emulator=True)
    y = model(x)
    assert torch.equal(y, plain)
    assert torch.allclose(torch.autograd.grad(y, x, dy)[0], dx, rtol=1e-6, atol=1e-6)
    assert [e.replacement.ran for e in patched.replaced if e.kind == "resize"] == [1, int(layout is LAST)], patched.report()
    patched.undo()


def test_functions_in_models_of_transformers():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(4)
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[3, 3], strides=[2, 2],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=8, num_labels=3,
    )  # fmt: skip
    model = transformers.SegformerForSemanticSegmentation(config).eval()
    x = torch.randn(1, 3, 16, 16)
    exact = model.double()(x.double()).logits
    plain = model.float()(x).logits
    patched = wt.patch(model, emulator=True)
    found = model(x).logits
    error, usual = (((t.double() - exact).norm() / exact.norm()).item() for t in (found, plain))
    assert error <= 2 * usual + 2e-6
    # The other has its logits at the extents of labels, of which there are none.
    resized = {e.cls: e.replacement.ran for e in patched.replaced if e.kind == "resize"}
    assert resized == {"SegformerDecodeHead": 2, "SegformerForSemanticSegmentation": 0}, patched.report()
    patched.undo()
    assert torch.equal(model(x).logits, plain)
    assert "resize" not in {e.kind for e in wt.patch(model, emulator=True, disable={"resize"}).replaced}


def test_a_compiler_reads_the_nearest_pixels_itself(monkeypatch):
    monkeypatch.setattr(rules, "is_compiling", lambda: True)
    assert "a compiler" in rules.resize_reason("nearest", torch.ones(1, 2, 4, 5), (8, 10))
