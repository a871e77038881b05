"""`warpwright.torch.patch`: results, gradients and state of models before, with and after it."""

from __future__ import annotations

import copy
import importlib
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.backends.debugging import aot_eager  # noqa: E402

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402

# Of f32 against f64, on top of twice what PyTorch errs.
BUDGET = 2e-6
EVERYTHING = {"fused", "linear", "conv", "conv_transpose", "activation", "pool", "resize", "attention"}


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors gain nothing from threads of PyTorch's that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def library(name):
    return pytest.importorskip(name, reason=f"{name} is not installed")


def step(model, inputs, read):
    """The result and the gradients, by name."""
    model.zero_grad()
    result = read(model(**inputs))
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype, device=result.device).reshape(result.shape)
    (result * weights).sum().backward()
    found = {name: p.grad.double().cpu() for name, p in model.named_parameters() if p.grad is not None}
    return {"result": result.detach().double().cpu(), **found}


def wide(inputs):
    return {name: t.double() if torch.is_tensor(t) and t.is_floating_point() else t for name, t in inputs.items()}


def compare(model, inputs, read=lambda found: found, minimum=1, enable=EVERYTHING, training=False):
    """Patches a model, compares, and takes it back."""
    model.train(training)
    exact = step(copy.deepcopy(model).double(), wide(inputs), read)
    before = step(model, inputs, read)
    state, parameters = {k: v.clone() for k, v in model.state_dict().items()}, dict(model.named_parameters())
    classes = [type(m) for m in model.modules()]
    patched = wt.patch(model, emulator=True, enable=enable)
    assert len(patched.replaced) >= minimum, patched.report()
    assert all(isinstance(m, cls) for m, cls in zip(model.modules(), classes))
    assert all(p is parameters[name] for name, p in model.named_parameters())
    with_ours = step(model, inputs, read)
    assert sum(e.replacement.ran for e in patched.replaced) >= minimum, patched.report()
    assert with_ours.keys() == before.keys() == exact.keys()
    scale = max(float(g.norm()) for name, g in exact.items() if name != "result")
    for name, wanted in exact.items():
        below = float(wanted.norm()) if name == "result" else max(float(wanted.norm()), 1e-2 * scale)
        error, usual = (float((f[name] - wanted).norm()) / below for f in (with_ours, before))
        assert error <= 2 * usual + BUDGET, (name, patched.report())
    patched.undo()
    assert [type(m) for m in model.modules()] == classes
    assert not any(name.startswith("_warpwright") for m in model.modules() for name in vars(m))
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    after = step(model, inputs, read)
    assert all(torch.equal(after[name], before[name]) for name in before)
    return patched


SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 23, "pad_token_id": 0,
    "max_position_embeddings": 16,
}
GROUPED = {"num_key_value_heads": 1, "head_dim": 16}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
# The config, the model, its sizes, the kinds that are seen to run.
DECODERS = {
    "Llama": (GROUPED, {"rms_norm", "fused", "attention", "rotary_embedding"}),
    "Mistral": (GROUPED | {"sliding_window": 3}, {"rms_norm", "fused", "attention", "rotary_embedding"}),
    "Qwen2": ({"num_key_value_heads": 1}, {"rms_norm", "fused", "attention", "rotary_embedding"}),
    "Qwen3": (GROUPED, {"rms_norm", "fused", "attention", "rotary_embedding"}),
    "Gemma": (GROUPED, {"rms_norm", "fused", "attention", "rotary_embedding"}),
    "Gemma2": (GROUPED | {"sliding_window": 3}, {"rms_norm", "attention", "rotary_embedding"}),
    "Phi": ({}, {"layer_norm", "attention", "rotary_embedding"}),
    "GPTNeoX": ({}, {"layer_norm", "attention", "rotary_embedding"}),
    "GPT2": ({}, {"layer_norm", "attention", "activation"}),
    # Products of the experts take no f64 in the way that it would choose.
    "Mixtral": (GROUPED | EXPERTS | {"experts_implementation": "eager"}, {"rms_norm", "fused", "attention", "rotary_embedding"}),
    "OPT": ({"ffn_dim": 48, "word_embed_proj_dim": 32}, {"layer_norm", "attention"}),
}


def ran(patched):
    return {entry.kind for entry in patched.replaced if entry.replacement.ran}


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_of_transformers(name):
    transformers = library("transformers")
    options, kinds = DECODERS[name]
    torch.manual_seed(5)
    cls = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    model = getattr(transformers, cls)(getattr(transformers, f"{name}Config")(**{**SMALL, **options}))
    ids = torch.randint(1, 23, (2, 6))
    mask = torch.ones_like(ids)
    # One is padded on the left; where transformers' own attention gives no numbers for that, on the right.
    mask[1, slice(4, None) if name == "Gemma2" else slice(2)] = 0

    def read(found):
        return found.logits[mask.bool()]

    patched = compare(model, {"input_ids": ids, "attention_mask": mask, "use_cache": False}, read, 3)
    assert kinds <= ran(patched), patched.report()


@pytest.mark.parametrize("name", ["Bert", "ViT", "T5", "Whisper"])
def test_other_models_of_transformers(name):
    transformers = library("transformers")
    torch.manual_seed(5)
    ids = {"input_ids": torch.randint(1, 23, (2, 5))}
    if name == "Bert":
        model, inputs = transformers.BertModel(transformers.BertConfig(**SMALL), add_pooling_layer=False), ids
    elif name == "ViT":
        config = transformers.ViTConfig(**SMALL, image_size=8, patch_size=4)
        model, inputs = transformers.ViTModel(config, add_pooling_layer=False), {"pixel_values": torch.randn(2, 3, 8, 8)}
    elif name == "T5":
        sizes = {"d_model": 32, "d_ff": 48, "d_kv": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 23, "feed_forward_proj": "gated-gelu"}
        model = transformers.T5Model(transformers.T5Config(**sizes))
        inputs = ids | {"decoder_input_ids": torch.randint(1, 23, (2, 3)), "use_cache": False}
    else:
        sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 48))}
        words = {"vocab_size": 23, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
        config = transformers.WhisperConfig(d_model=32, **sides, max_source_positions=4, max_target_positions=8, num_mel_bins=6, **words)
        model = transformers.WhisperModel(config)
        inputs = {"input_features": torch.randn(2, 6, 8), "decoder_input_ids": torch.randint(1, 23, (2, 3)), "use_cache": False}
    patched = compare(model, inputs, lambda found: found.last_hidden_state, 4)
    assert ran(patched) & {"layer_norm", "rms_norm"}, patched.report()


def test_the_loss_of_the_next_token():
    transformers = library("transformers")
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    ids = torch.randint(1, 23, (2, 6))
    labels = ids.clone()
    labels[0, :3] = -100
    for more in ({}, {"num_items_in_batch": torch.tensor(7)}):
        patched = compare(model, {"input_ids": ids, "labels": labels, **more}, lambda found: found.loss[None] + 1, 3)
        assert "cross_entropy" in ran(patched)


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
@pytest.mark.parametrize("linear", [False, True])
def test_the_loss_without_logits(name, linear):
    transformers = library("transformers")
    torch.manual_seed(5)
    cls = {"Llama": "LlamaForCausalLM", "GPT2": "GPT2LMHeadModel"}[name]
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} if name == "GPT2" else {}
    model = getattr(transformers, cls)(getattr(transformers, f"{name}Config")(**SMALL, **dropout)).train()
    ids = torch.randint(1, 23, (2, 6))
    labels = ids.clone()
    labels[0, :3] = -100
    kinds = {"linear_cross_entropy"} | ({"linear"} if linear else set())
    for more in ({}, {"num_items_in_batch": torch.tensor(7)}):
        inputs = {"input_ids": ids, "labels": labels, **more}
        patched = compare(model, inputs, lambda found: found.loss[None] + 1, 3, kinds, training=True)
        assert "linear_cross_entropy" in ran(patched)
    with wt.patch(model, enable=kinds, emulator=True):
        for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert one(input_ids=ids, labels=labels).logits is None
        assert model(input_ids=ids).logits.shape == (2, 6, 23)
        model.eval()
        assert model(input_ids=ids, labels=labels).logits.shape == (2, 6, 23)


def test_logits_that_are_changed_before_the_loss():
    transformers = library("transformers")
    model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SMALL, **GROUPED))
    patched = wt.patch(model, enable={"linear_cross_entropy"}, emulator=True)
    why = [entry.why for entry in patched.entries if entry.kind == "linear_cross_entropy"]
    assert why == ["its logits are read by more than the loss"]


IMAGES = {
    "resnet10t": {"channels": (8, 8, 16, 16), "stem_width": 8},
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)},
    "vit_tiny_patch16_224": {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2},
    "efficientnet_b0": {"channel_multiplier": 0.1, "depth_multiplier": 0.1},
}


@pytest.mark.parametrize("name", IMAGES)
def test_models_of_timm(name):
    timm = library("timm")
    torch.manual_seed(5)
    if name == "resnet10t":
        model = timm.models.ResNet(timm.models.resnet.BasicBlock, (1, 1, 1, 1), num_classes=7, **IMAGES[name])
    elif name == "efficientnet_b0":
        model = timm.models.efficientnet._gen_efficientnet(name, num_classes=7, **IMAGES[name])
    else:
        model = timm.create_model(name, num_classes=7, **IMAGES[name])
    extent = {"convnext_atto": 32, "efficientnet_b0": 8}.get(name, 16)
    # The emulator takes its time over convolutions.
    enable = EVERYTHING - {"conv"} if name == "efficientnet_b0" else EVERYTHING
    patched = compare(model, {"x": torch.randn(2, 3, extent, extent)}, minimum=4, enable=enable)
    wanted = {"resnet10t": {"conv", "fused"}, "convnext_atto": {"layer_norm"}, "vit_tiny_patch16_224": {"layer_norm", "attention"}}
    assert wanted.get(name, {"batch_norm"}) <= ran(patched), patched.report()


def test_models_of_torchvision():
    models = library("torchvision").models
    torch.manual_seed(5)
    block = models.resnet.BasicBlock(8, 8)
    patched = compare(block, {"x": torch.randn(2, 8, 5, 5)}, minimum=4)
    fused = [entry.replacement.ran for entry in patched.replaced if entry.kind == "fused"]
    # Both batch norms with what is behind them.
    assert fused == [2], patched.report()


def test_models_of_diffusers():
    diffusers = library("diffusers")
    torch.manual_seed(5)
    sizes = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
    unet = diffusers.UNet2DConditionModel(
        sample_size=4, **(sizes | {"block_out_channels": (8,)}), cross_attention_dim=8, attention_head_dim=2,
        down_block_types=("CrossAttnDownBlock2D",), up_block_types=("CrossAttnUpBlock2D",),
    )
    inputs = {"sample": torch.randn(1, 4, 4, 4), "timestep": torch.tensor([3]), "encoder_hidden_states": torch.randn(1, 3, 8)}
    patched = compare(unet, inputs, lambda found: found.sample, 10, EVERYTHING - {"conv"})
    assert {"group_norm", "fused", "layer_norm", "attention"} <= ran(patched), patched.report()
    # Both norms of a block and what is behind them.
    assert [e.replacement.ran for e in patched.replaced if e.cls == "ResnetBlock2D"] == [2] * 5, patched.report()
    vae = diffusers.AutoencoderKL(**sizes, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)
    patched = compare(vae, {"sample": torch.randn(1, 3, 4, 4)}, lambda found: found.sample, 10)
    assert {"fused", "conv", "resize"} <= ran(patched), patched.report()


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv1d(4, width, 3, padding=1), nn.BatchNorm1d(width), nn.SiLU()
        self.lstm, self.layer = nn.LSTM(width, width, bidirectional=True), nn.LayerNorm(2 * width)
        self.head = nn.Linear(2 * width, 5)

    def forward(self, x):
        x = self.act(self.norm(self.conv(x)))
        return self.head(self.layer(self.lstm(x.permute(2, 0, 1))[0]))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("mask", ["none", "bool", "float", "heads"])
def test_multihead_attention(mask, batch_first):
    torch.manual_seed(5)
    model = nn.MultiheadAttention(16, 2, batch_first=batch_first)
    lower = torch.ones(5, 5, dtype=torch.bool).triu(1)
    masks = {"none": None, "bool": lower, "float": torch.randn(5, 5), "heads": lower.expand(6, 5, 5)}
    # Three sequences of five places.
    x = torch.randn(3, 5, 16) if batch_first else torch.randn(5, 3, 16)
    options = {"need_weights": False, "attn_mask": masks[mask]}
    patched = compare(model, {"query": x, "key": x, "value": x, **options}, lambda found: found[0])
    assert ran(patched) == {"attention"}
    patched = wt.patch(model, emulator=True)
    model(x, x, x)
    assert patched.left() == {"need_weights=True: weights are not kept": 1}
    if mask == "none":
        # What is refused while it is traced is PyTorch's there, too.
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, x, x), model(x, x, x))


def test_state_of_batch_norms_in_training():
    torch.manual_seed(5)
    theirs = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.BatchNorm2d(8, momentum=None), nn.Flatten())
    ours, x = copy.deepcopy(theirs), torch.randn(2, 3, 6, 6)
    patched = wt.patch(ours, emulator=True)
    for _ in range(3):
        a, b = theirs(x), ours(x)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(theirs.state_dict(), ours.state_dict(), rtol=1e-5, atol=1e-6)
    assert {"fused", "batch_norm"} <= ran(patched), patched.report()
    # PyTorch counts a batch that ours refuses, once.
    with pytest.raises(ValueError, match="more than 1 value"):
        nn.BatchNorm1d(4)(torch.randn(1, 4))
    norm = nn.BatchNorm1d(4)
    wt.patch(norm, emulator=True)
    with pytest.raises(ValueError, match="more than 1 value"):
        norm(torch.randn(1, 4))
    assert int(norm.num_batches_tracked) == 1


def test_copies_and_pickles_are_patched():
    torch.manual_seed(5)
    model, x = Net(), torch.randn(2, 4, 3)
    plain = model(x)
    patched = wt.patch(model, emulator=True)
    wanted = model(x)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(x), wanted)
        assert type(copied.layer) is type(model.layer) and type(copied.layer).__name__ == "LayerNorm"
        # Each has counts of its own from there on.
        assert copied.layer._warpwright.ran == 2 and model.layer._warpwright.ran == 1
        assert isinstance(copied.lstm, nn.LSTM)
    patched.undo()
    assert type(model.layer) is nn.LayerNorm and torch.equal(model.eval()(x), model(x))
    assert plain.shape == wanted.shape
    blocks = nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU())
    wt.patch(blocks, emulator=True)
    wanted = blocks(x)
    for copied in (copy.deepcopy(blocks), pickle.loads(pickle.dumps(blocks))):
        assert torch.equal(copied(x), wanted) and type(copied) is type(blocks) and isinstance(copied, nn.Sequential)
        assert copied._warpwright_block["fused"].ran == 2


def test_what_watches_modules_goes_on():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU())
    x, seen = torch.randn(1, 3, 5, 5), []
    with wt.patch(model, emulator=True) as patched:
        assert "fused" in {entry.kind for entry in patched.replaced}
        fused = model(x)
        model[1].register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
        apart = model(x)
        # A module whose result is looked at has one.
        assert len(seen) == 1
        torch.testing.assert_close(F.silu(seen[0]), fused, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(apart, fused, rtol=1e-5, atol=1e-5)
    assert [type(m) for m in model] == [nn.Conv2d, nn.GroupNorm, nn.SiLU] and type(model) is nn.Sequential
    assert len(model[1]._forward_hooks) == 1


def test_modes_of_pytorch():
    torch.manual_seed(5)
    model, x = Net(), torch.randn(2, 4, 3)
    model.eval()
    plain = model(x)
    with wt.patch(model, emulator=True):
        with torch.inference_mode():
            torch.testing.assert_close(model(x), plain, rtol=1e-4, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            low = model(x)
        torch.testing.assert_close(low.float(), plain, rtol=0.05, atol=0.02)
        kept = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        kept.sum().backward()
        by_checkpoint = model.conv.weight.grad.clone()
        model.zero_grad()
        model(x).sum().backward()
        assert torch.equal(model.conv.weight.grad, by_checkpoint)
        block = nn.Sequential(model.conv, model.norm, model.act)
        torch._dynamo.reset()
        compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), block(x), rtol=1e-6, atol=1e-6)


def test_norms_of_16_bits_with_weights_of_32():
    transformers = library("transformers")
    norm = importlib.import_module("transformers.models.llama.modeling_llama").LlamaRMSNorm(16)
    assert transformers
    x = torch.randn(3, 16, dtype=torch.bfloat16)
    wanted = norm(x)
    patched = wt.patch(norm, emulator=True)
    assert torch.equal(norm(x), wanted) and wanted.dtype == torch.float32
    assert patched.left() == {"bfloat16 with a weight of float32": 1}
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x).dtype == torch.float32
    assert patched.replaced[0].replacement.ran == 1


def test_what_is_left_alone_is_reported():
    class Own(nn.LayerNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    class Named(nn.LayerNorm):
        pass

    layer = nn.LayerNorm(8)
    layer.forward = lambda x: x
    model = nn.ModuleDict({
        "own": Own(8), "named": Named(8), "bound": layer, "relu": nn.ReLU(), "inplace": nn.SiLU(inplace=True),
        "groups": nn.Conv2d(8, 8, 3, groups=2), "loss": nn.CrossEntropyLoss(weight=torch.ones(3)), "bag": nn.EmbeddingBag(3, 4),
        "renormed": nn.Embedding(3, 4, max_norm=1.0), "sparse": nn.Embedding(3, 4, sparse=True),
        "low": nn.Linear(8, 16, bias=False, dtype=torch.bfloat16), "odd": nn.Linear(8, 15, dtype=torch.bfloat16),
    })
    patched = wt.patch(model)
    assert {entry.name for entry in patched.replaced} == {"named", "odd"}
    why = {entry.name: entry.why for entry in patched.entries}
    assert "forward of its own" in why["own"] and "module itself" in why["bound"] and "inplace" in why["inplace"]
    assert "same bytes" in why["relu"] and "groups" in why["groups"] and "weights" in why["loss"] and "bag" not in why
    assert "max_norm" in why["renormed"] and "sparse" in why["sparse"]
    assert "2 of 11 replaced" in patched.report() and "LayerNorm" in patched.report()
    again = wt.patch(model)
    assert again.replaced == [] and {e.why for e in again.entries if e.name == "named"} == {"replaced already"}
    patched.undo()
    patched.undo()
    assert wt.patch(nn.EmbeddingBag(3, 4)).report() == "EmbeddingBag: nothing to replace"
    chosen = wt.patch(model, enable={"relu", "ReLU", "conv"} - {"relu"}, disable={"LayerNorm"})
    assert {entry.name for entry in chosen.replaced} == {"relu", "groups", "odd"}
    chosen.undo()


@pytest.mark.parametrize("shape", [(8,), (33, 8), (2, 5, 8), (0, 8)])
def test_biases_have_gradients_of_ours_where_products_are_left(shape):
    torch.manual_seed(3)
    ours, theirs = (nn.Linear(8, 16, dtype=torch.bfloat16) for _ in range(2))
    ours.load_state_dict(theirs.state_dict())
    exact = nn.Linear(8, 16).double()
    exact.load_state_dict(theirs.state_dict())
    # Where no graph is captured it is asked for.
    patched = wt.patch(ours, emulator=True, enable={"linear_bias"})
    x = torch.randn(shape, dtype=torch.bfloat16)
    factors = torch.randn((*shape[:-1], 16), dtype=torch.bfloat16)
    inputs = [x.clone().requires_grad_() for _ in range(3)]
    inputs[2] = x.double().requires_grad_()
    results = [module(one) for module, one in zip((ours, theirs, exact), inputs)]
    for y in results:
        (y * factors.to(y.dtype)).sum().backward()
    assert torch.equal(results[0], results[1]) and torch.equal(inputs[0].grad, inputs[1].grad)
    assert torch.equal(ours.weight.grad, theirs.weight.grad)
    assert ours.bias.grad.dtype == torch.bfloat16
    torch.testing.assert_close(ours.bias.grad.double(), exact.bias.grad, rtol=2**-8, atol=1e-6)
    assert [entry.kind for entry in patched.replaced] == ["linear_bias"] and patched.replaced[0].replacement.ran == 1
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(copied) is type(ours) and torch.equal(copied(x), theirs(x))
    patched.undo()
    assert type(ours) is nn.Linear


@pytest.mark.parametrize("shape", [(8,), (33, 8), (2, 5, 8), (0, 8)])
@pytest.mark.parametrize("autocast", [False, True])
def test_compiled_layers_have_gradients_of_weight_and_bias_at_once(shape, autocast):
    torch.manual_seed(3)
    theirs, exact = nn.Linear(8, 16, dtype=torch.float16 if autocast else torch.bfloat16), nn.Linear(8, 16).double()
    ours = copy.deepcopy(theirs)
    exact.load_state_dict(theirs.state_dict())
    wt.patch(ours, emulator=True, enable={"linear_bias"} if autocast else set())
    seen = []

    def backend(graph, given):
        seen.extend(str(node.target) for node in graph.graph.nodes if "warpwright" in str(node.target))
        return aot_eager(graph, given)

    torch._dynamo.reset()
    x = torch.randn(shape, dtype=theirs.weight.dtype)
    for module, call, one in ((ours, torch.compile(ours, backend=backend), x), (theirs, theirs, x), (exact, exact, x.double())):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast and module is not exact):
            y = call(one)
        y.double().square().sum().backward()
    assert seen == ["warpwright.linear_bias.default"]
    for (name, a), b, c in zip(ours.named_parameters(), theirs.parameters(), exact.parameters()):
        assert (a.grad - c.grad).norm() <= 1.1 * (b.grad - c.grad).norm() + 1e-3 * c.grad.norm(), name


def test_bias_gradients_are_left_without_a_graph():
    model, x = nn.Sequential(nn.Linear(8, 16, dtype=torch.bfloat16), nn.Linear(16, 8)), torch.randn(3, 8, dtype=torch.bfloat16)
    with wt.patch(model, emulator=True) as patched:
        assert [entry.kind for entry in patched.replaced] == ["linear_bias", "linear"]
        model[0](x).sum().backward()
        assert patched.replaced[0].replacement.ran == 0 and patched.left() == {}
        assert torch.equal(model[0].bias.grad, torch.full((16,), 3.0, dtype=torch.bfloat16))
    with wt.patch(model, disable={"linear_bias"}) as patched:
        assert [entry.kind for entry in patched.replaced] == ["linear"] and not model[1]._warpwright.bias


def test_embeddings_in_training():
    table, twin = (nn.Embedding(7, 4, padding_idx=2) for _ in range(2))
    twin.load_state_dict(table.state_dict())
    indices = torch.tensor([[0, 2, 6], [6, 6, 1]])
    patched = wt.patch(table, emulator=True)
    for module in (table, twin):
        (module(indices) ** 2).sum().backward()
    assert torch.equal(table.weight.grad, twin.weight.grad) and patched.replaced[0].replacement.ran == 1
    with torch.no_grad():
        assert torch.equal(table(indices), twin(indices))
    assert patched.left() == {"rows are read as fast by PyTorch": 1}
    patched.undo()
    assert type(table) is nn.Embedding


def test_a_compiler_keeps_activations():
    model = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.LayerNorm(4))
    x = torch.randn(3, 4)
    wanted = model(x)
    patched = wt.patch(model, emulator=True)
    names = []

    def seen(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    found = torch.compile(model, backend=seen)(x)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert any("layer_norm" in name and "warpwright" in name for name in names)
    assert not any("silu" in name and "warpwright" in name for name in names)
    patched.undo()
    torch._dynamo.reset()


def test_calls_that_are_left_to_pytorch():
    norm, x = nn.LayerNorm(8), torch.randn(2, 8)
    wanted = norm(x)
    patched = wt.patch(norm)
    assert torch.equal(norm(x), wanted) and patched.left() == {"not on a GPU": 1}
    patched.undo()
    strict = wt.patch(norm, strict=True)
    with pytest.raises(ww.DeviceError, match="layer_norm: the argument is on cpu") as error:
        norm(x)
    assert error.value.op == "layer_norm" and error.value.got == "cpu"
    strict.undo()
    strict = wt.patch(norm, strict=True, emulator=True)
    with pytest.raises(ww.ShapeError):
        norm(torch.randn(2, 7))
    strict.undo()


def test_errors_name_the_argument():
    for options, argument, kind in (
        ({"enable": {"LayerNrom"}}, "enable", ww.ParameterError),
        ({"disable": "conv"}, "disable", ww.ArgumentError),
        ({"sources": "timm"}, "sources", ww.ArgumentError),
    ):
        with pytest.raises(kind) as error:
            wt.patch(Net(), **options)
        assert error.value.op == "patch" and error.value.argument == argument
    with pytest.raises(ww.ArgumentError, match="torch.nn.Module"):
        wt.patch(lambda x: x)


def test_a_class_that_was_derived_since_is_not_taken_back():
    model = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8))
    patched = wt.patch(model)
    ours = type(model[0])
    model[0].__class__ = type("FSDPLayerNorm", (ours,), {})
    with pytest.raises(ww.ArgumentError, match="FSDPLayerNorm"):
        patched.undo()
    assert type(model[1]) is not nn.LayerNorm
    model[0].__class__ = ours
    patched.undo()
    assert [type(m) for m in model] == [nn.LayerNorm] * 2


@pytest.fixture
def alone():
    """A group of one process."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("PyTorch has no gloo")
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("wrapped_first", [False, True])
@pytest.mark.parametrize("wrapper", ["DDP", "FSDP"])
def test_models_of_several_processes(wrapper, wrapped_first, alone):
    def gradients(wrap, patched):
        torch.manual_seed(3)
        first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU())
        model = nn.Sequential(first, nn.Flatten(), nn.Linear(72, 5), nn.LayerNorm(5))
        if patched and not wrapped_first:
            wt.patch(model, emulator=True)
        called = wrap(model)
        if patched and wrapped_first:
            wt.patch(model, emulator=True)
        (called(x) * torch.arange(5)).sum().backward()
        whole = {name: getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for name, p in model.named_parameters()}
        assert not patched or model[3]._warpwright.ran == 1
        return whole

    def fsdp(model):
        shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
        # On the CPU, where there is a GPU too.
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        for module in (model[0], model[3], model):
            shard(module, mesh=mesh)
        return model

    x = torch.randn(2, 3, 5, 5)
    wanted = gradients(lambda model: model, False)
    found = gradients(nn.parallel.DistributedDataParallel if wrapper == "DDP" else fsdp, True)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_without_an_eps_rms_norm_takes_that_of_pytorch(torch_device):
    x = 0.02 * torch.randn(4, 16, device=torch_device)
    for dtype, budget in ((torch.float32, 1e-6), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)):
        wanted = F.rms_norm(x.to(dtype), [16])
        torch.testing.assert_close(wt.rms_norm(x.to(dtype), 16), wanted, rtol=budget, atol=1e-6)
