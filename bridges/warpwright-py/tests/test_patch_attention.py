"""`warpwright.torch.patch`: attention of one tensor of queries, keys and values, masks that are not made, and sums before norms."""

from __future__ import annotations


import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import warpwright.torch as wt  # noqa: E402
from warpwright.torch import _patch_attention, _patch_blocks, _patch_libraries, _patch_modules  # noqa: E402
from warpwright.torch._patch_attention import of_parts, of_views  # noqa: E402


@pytest.fixture
def packed(monkeypatch):
    """Shapes of the tensors that calls with one tensor had."""
    seen = []

    def counted(qkv, *arguments, **options):
        seen.append(tuple(qkv.shape))
        return wt.attention_qkvpacked(qkv, *arguments, **options)

    for module in (_patch_attention, _patch_libraries, _patch_modules):
        monkeypatch.setattr(module, "attention_qkvpacked", counted)
    return seen


def gradients(model, read, *arguments, **options):
    model.zero_grad()
    y = read(model(*arguments, **options))
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def alike(model, read, *arguments, **options):
    """Results and gradients with and without ours."""
    wanted = gradients(model, read, *arguments, **options)
    patched = wt.patch(model, emulator=True)
    torch.testing.assert_close(gradients(model, read, *arguments, **options), wanted, rtol=1e-4, atol=2e-5)
    return patched


def kinds(patched):
    return {entry.kind: entry.replacement.ran for entry in patched.replaced if entry.kind in ("fused", "attention", "attention_mask")}


def gpt2(**options):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 23, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False, **options)).eval()


def llama(**options):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 23}
    return transformers.LlamaModel(transformers.LlamaConfig(**sizes, use_cache=False, max_position_embeddings=16, **options)).eval()


def test_vision_transformers_have_one_tensor(packed):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    torch.manual_seed(5)
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 7}
    model, x = timm.create_model("vit_tiny_patch16_224", **sizes), torch.randn(2, 3, 16, 16)
    patched = alike(model, lambda y: y, x)
    assert packed == [(2, 5, 3, 2, 16)] and kinds(patched) == {"fused": 1, "attention": 1}
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert len(packed) == 3
    # Without a gradient there is nothing to put together.
    with torch.no_grad():
        model(x)
    assert len(packed) == 3
    patched.undo()
    # Norms of queries and keys make other tensors of them.
    model = timm.create_model("vit_tiny_patch16_224", **sizes, qk_norm=True)
    alike(model, lambda y: y, x)
    assert len(packed) == 3
    with wt.patch(timm.create_model("vit_tiny_patch16_224", **sizes), emulator=True, disable={"packed_attention"}) as patched:
        patched.model(x)
        assert len(packed) == 3 and kinds(patched)["attention"] == 1


def test_attention_of_one_product_in_transformers(packed):
    torch.manual_seed(5)
    patched = alike(gpt2(), lambda found: found.logits, torch.randint(1, 23, (2, 6)))
    assert packed == [(2, 6, 6, 16)] and kinds(patched)["attention"] == 1 and kinds(patched)["fused"] == 1
    # With a mask it is attention as any other.
    ids = torch.randint(1, 23, (2, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    alike(gpt2(), lambda found: found.logits[mask.bool()], ids, attention_mask=mask)
    assert len(packed) == 1


def test_biases_in_front_of_attention_of_one_product(packed):
    """The gradient of queries, keys and values goes through the sum of ours to the bias, and on."""
    torch.manual_seed(5)
    ids, found = torch.randint(1, 23, (2, 6)), {}
    model = gpt2()
    for kinds in ((), ("linear_bias",)):
        with wt.patch(model, emulator=True, enable=kinds):
            model.zero_grad()
            model(ids).logits.square().sum().backward()
        found[kinds] = {name: parameter.grad for name, parameter in model.named_parameters()}
    ours, theirs = found["linear_bias",], found[()]
    assert len(packed) == 2 and all(grad is not None for grad in ours.values())
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch_first", [False, True])
def test_self_attention_of_pytorch(packed, batch_first):
    torch.manual_seed(5)
    x, y = torch.randn(3, 5, 16), torch.randn(3, 5, 16)
    model = nn.MultiheadAttention(16, 2, batch_first=batch_first)
    model.in_proj_bias.data.normal_()
    patched = alike(model, lambda found: found[0], x, x, x, need_weights=False)
    assert packed == [(3, 5, 3, 2, 8) if batch_first else (5, 3, 3, 2, 8)]
    model(x, y, y, need_weights=False)
    assert len(packed) == 1 and kinds(patched) == {"attention": 2}
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        model(x, x, x, need_weights=False, is_causal=True)
    # In training of 16 bits and wide heads, that of one tensor alone.
    patched.undo()
    for width, left in ((128, 0), (136, 1)):
        low, x = nn.MultiheadAttention(width, 1).bfloat16(), torch.randn(3, 5, width).bfloat16()
        patched = wt.patch(low, emulator=True)
        low(x, x, x, need_weights=False)
        low(x, x.clone(), x, need_weights=False)
        assert sum(patched.left().values()) == left
    assert len(packed) == 3


def rotations(patched):
    """Of the blocks: the calls of ours, and why there are none."""
    entries = [entry for entry in patched.entries if entry.kind == "rotary_embedding"]
    return [entry.replacement.ran if entry.replacement else entry.why for entry in entries]


def test_rotary_embedding_of_transformers():
    torch.manual_seed(5)
    model, ids = llama(num_key_value_heads=1), torch.arange(6)[None]
    read = lambda found: found.last_hidden_state  # noqa: E731
    patched = alike(model, read, ids)
    assert rotations(patched) == [1]
    # What a compiler is to see is not ours.
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(read(compiled(ids)), read(model(ids)))
    assert rotations(patched) == [2]
    patched.undo()
    assert rotations(wt.patch(model, disable={"rotary_embedding"}, emulator=True)) == []


def test_other_rotary_embeddings_stay(monkeypatch):
    torch.manual_seed(5)
    model, ids = llama(), torch.arange(6)[None]
    modeling = __import__("sys").modules[type(model).__module__]

    def neighbours(q, k, cos, sin, unsqueeze_dim=1):
        def rotated(x):
            pairs = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
            return x * cos.unsqueeze(unsqueeze_dim) + pairs * sin.unsqueeze(unsqueeze_dim)

        return rotated(q), rotated(k)

    monkeypatch.setattr(modeling, "apply_rotary_pos_emb", neighbours)
    patched = alike(model, lambda found: found.last_hidden_state, ids)
    assert rotations(patched) == [0] and patched.left()["no rotation of halves"] == 1
    patched.undo()

    def interleaved(self, x, positions):
        angles = (positions[..., None] * self.inv_freq).repeat_interleave(2, -1)
        return angles.cos(), angles.sin()

    monkeypatch.setattr(type(model.rotary_emb), "forward", interleaved)
    assert rotations(wt.patch(model, emulator=True)) == ["the halves of its tables differ"]


@pytest.mark.parametrize("norm_first", [False, True])
def test_layers_of_pytorch(packed, norm_first):
    torch.manual_seed(5)
    x = torch.randn(2, 5, 16)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    # The last sum of a layer that normalizes first has its norm in the next one.
    assert kinds(alike(layer, lambda y: y, x)) == {"attention": 1, "fused": 1 if norm_first else 2} and len(packed) == 1
    layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, norm_first=norm_first)
    assert kinds(alike(layer, lambda y: y, x, x)) == {"attention": 1, "fused": 2 if norm_first else 3}


def test_views_that_are_one_tensor():
    x = torch.randn(2, 3, 32, requires_grad=True)

    def views(heads=2, others=1, order=(0, 1, 2), whole=None):
        base = x * 1 if whole is None else whole
        width = 32 // (heads + 2 * others)
        parts = base.split([heads * width, others * width, others * width], dim=-1)
        return [parts[i].unflatten(-1, (-1, width)).transpose(1, 2) for i in order]

    whole = of_views(*views())
    assert whole.shape == (2, 3, 4, 8) and torch.equal(whole.flatten(2), x)
    (whole * whole.detach()).sum().backward()
    assert torch.equal(x.grad, x.detach())
    assert of_views(*views(order=(0, 2, 1))) is None
    assert of_views(*views(whole=(x * 1).transpose(0, 1))) is None
    q, k, v = views()
    assert of_views(q, k, v * 1) is None and of_views(q, k.detach(), v) is None
    assert of_views(q.detach(), k.detach(), v.detach()) is None
    wider = torch.cat([x, x], -1)
    assert of_views(*views(whole=wider[..., :32])) is None
    k.register_hook(lambda gradient: gradient)
    assert of_views(q, k, v) is None
    q, k, v = views()
    v.retain_grad()
    assert of_views(q, k, v) is None
    with torch.no_grad():
        assert of_views(*views()) is None


def test_parts_of_one_tensor():
    whole = torch.randn(3, 2, 4, 5, 8, requires_grad=True) * 1
    found, parts = _patch_blocks.parts(whole)
    assert of_parts(parts, *found).shape == (2, 5, 3, 4, 8)
    assert of_parts(None, *found) is None
    for at in range(3):
        others = [part * 1 if i == at else part for i, part in enumerate(found)]
        assert of_parts(parts, *others) is None


def test_masks_that_say_nothing_are_not_made(monkeypatch):
    torch.manual_seed(5)
    model, ids = llama(), torch.randint(1, 23, (2, 6))
    plain = model(ids).last_hidden_state
    masks, inner = [], _patch_libraries.attend

    def seen(module, query, key, value, mask, *arguments, **options):
        masks.append(None if mask is None else tuple(mask.shape))
        return inner(module, query, key, value, mask, *arguments, **options)

    library = pytest.importorskip("transformers.modeling_utils")
    patched = wt.patch(model, emulator=True)
    library.AttentionInterface.register(_patch_libraries.NAME, seen)
    try:
        torch._dynamo.reset()
        for call in (model, torch.compile(model, backend="eager")):
            torch.testing.assert_close(call(ids).last_hidden_state, plain, rtol=1e-4, atol=1e-5)
        assert masks == [None, None] and kinds(patched)["attention_mask"] == 1
        # Sequences behind each other in a row are kept apart.
        masks.clear()
        positions = torch.tensor([[0, 1, 2, 0, 1, 2]] * 2)
        with_ours = model(ids, position_ids=positions).last_hidden_state
        assert masks == [(2, 1, 6, 6)]
        padded = torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]])
        model(ids, attention_mask=padded)
        assert len(masks) == 2 and masks[1] is not None
    finally:
        library.AttentionInterface.register(_patch_libraries.NAME, inner)
    patched.undo()
    wanted = model(ids, position_ids=positions).last_hidden_state
    torch.testing.assert_close(with_ours, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(with_ours[:, 3:], model(ids[:, 3:]).last_hidden_state, rtol=1e-4, atol=1e-5)


class Sums(nn.Module):
    """Sums before norms, one of them in a branch, one with what is wider."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.inner = nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x, other=None, row=None):
        """Sums."""
        x = x + self.inner(x)
        if other is not None:
            x = x * other
        kept = x
        x = self.norm1(x)
        x = x + kept
        y = self.norm2(x) * 2
        x = x + y
        return x - self.norm1(x) if row is None else self.norm1(x + row)


def test_sums_before_norms():
    torch.manual_seed(5)
    model, x = Sums(), torch.randn(3, 8)
    with wt.patch(model, emulator=True, sources=[__name__.split(".")[0]]) as patched:
        ours = [gradients(model, lambda y: y, x, **more) for more in ({}, {"other": torch.tensor(2.0)}, {"row": torch.ones(8)}, {"row": 1.0})]
        # Two; the second, after what happens between; two, where something else than a tensor of the shape is added last.
        assert kinds(patched) == {"fused": 2 + 1 + 2 + 2}, patched.report()
        # And none of them once more apart.
        assert model.norm2._warpwright.ran == 0
        assert model.forward.__doc__ == "Sums."
    plain = [gradients(model, lambda y: y, x, **more) for more in ({}, {"other": torch.tensor(2.0)}, {"row": torch.ones(8)}, {"row": 1.0})]
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


def test_heads_that_no_kernel_takes_are_left(packed):
    """In compiled code as well, which cannot fall back when it runs."""
    timm = pytest.importorskip("timm", reason="timm is not installed")
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 272, "depth": 1, "num_heads": 1, "num_classes": 7}
    model, x = timm.create_model("vit_tiny_patch16_224", **sizes).eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        wanted = model(x)
        patched = wt.patch(model, emulator=True, enable={"attention", "packed_attention"})
        torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-5)
        assert "head_dim 272 is above 256" in patched.report() + str(patched.left()) and not packed
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), wanted, rtol=1e-4, atol=1e-5)
    attention = nn.MultiheadAttention(272, 1)
    assert any("head_dim 272 is above 256" in str(entry.why) for entry in wt.patch(attention, emulator=True).entries)
