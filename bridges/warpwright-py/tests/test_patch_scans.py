"""Models of transformers with convolutions along time and scans, patched: whole sequences, caches, steps and generation."""

from __future__ import annotations

import copy
import functools
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402
from images import compile_anew  # noqa: E402
from warpwright.torch._patch_modules import Replacement  # noqa: E402
from warpwright.torch._patch_scans import scan_chunks  # noqa: E402

WORDS = {"vocab_size": 23, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "state_size": 4, "time_step_rank": 2, **WORDS}
HYBRID = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "mamba_d_state": 4,
    "mamba_dt_rank": 2, **WORDS,
}  # fmt: skip
# Options, and the kinds that are counted.
MODELS = {
    "Mamba": (SMALL, {"causal_conv1d", "selective_scan"}),
    "FalconMamba": (SMALL, {"causal_conv1d", "selective_scan"}),
    "Jamba": (HYBRID | {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_offset": 1, "experts_implementation": "eager"}, {"causal_conv1d", "selective_scan"}),
    "Zamba": (HYBRID | {"num_hidden_layers": 5, "n_mamba_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1}, {"causal_conv1d", "selective_scan"}),
    "Lfm2": (
        {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "layer_types": ["conv", "full_attention"], **WORDS},
        {"causal_conv1d"},
    ),
}  # fmt: skip


def made(name: str, device: str, dtype=torch.float32):
    torch.manual_seed(5)
    options, kinds = MODELS[name]
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**options))
    with torch.no_grad():
        for parameter in model.parameters():
            # Some begin as zeros, which would hide what is behind them.
            parameter.add_(torch.randn_like(parameter) / 8)
    ids = torch.randint(3, 23, (2, 6))
    return model.eval().to(device, dtype), ids.to(device), kinds


def counts(patched):
    found = {}
    for entry in patched.replaced:
        found[entry.kind] = found.get(entry.kind, 0) + entry.replacement.ran
    return found


def cached(found):
    """The cache of a result, under the name that its release has for it."""
    return {name: value for name, value in found.items() if isinstance(value, transformers.cache_utils.Cache)}


def near(found, exact):
    assert float((found.double() - exact).norm() / exact.norm()) < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_and_steps(name, torch_device):
    """The logits of a prompt, then of one token after the other, and those of all tokens at once."""
    model, ids, kinds = made(name, torch_device)
    exact = copy.deepcopy(model).double()(ids, use_cache=False).logits.detach()
    with wt.patch(model, emulator=torch_device == "cpu") as patched, torch.no_grad():
        near(model(ids, use_cache=False).logits, exact)
        before = counts(patched)
        assert all(before[kind] for kind in kinds), patched.report()
        found = model(ids[:, :3], use_cache=True)
        logits = [found.logits]
        for at in range(3, 6):
            logits.append(model(ids[:, at : at + 1], **cached(found), use_cache=True).logits)
        near(torch.cat(logits, 1), exact)
        after = counts(patched)
        # The prompt and three steps.
        assert all(after[kind] == 5 * before[kind] for kind in kinds), patched.report()
        left = patched.left()
        assert not any("kind" in why or "gradient" in why for why in left), left


@pytest.mark.parametrize("name", MODELS)
def test_generation(name, torch_device):
    model, ids, kinds = made(name, torch_device)
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    with wt.patch(model, emulator=torch_device == "cpu") as patched:
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert all(counts(patched)[kind] for kind in kinds), patched.report()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", MODELS)
def test_training_and_what_comes_back(name, torch_device):
    model, ids, kinds = made(name, torch_device)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    state, classes = {k: v.clone() for k, v in model.state_dict().items()}, [type(m) for m in model.modules()]

    def step(model):
        model.zero_grad()
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss.detach(), {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}

    exact, (before, _) = step(copy.deepcopy(model).double()), step(model)
    with wt.patch(model, emulator=torch_device == "cpu") as patched:
        assert model.state_dict().keys() == state.keys()
        loss, gradients = step(model)
        assert all(counts(patched)[kind] for kind in kinds), patched.report()
        assert gradients.keys() == exact[1].keys()
        near(loss, exact[0])
        for name, gradient in gradients.items():
            assert float((gradient - exact[1][name]).norm()) <= 1e-4 * float(exact[1][name].norm()) + 1e-7, name
        copied = copy.deepcopy(model)
        assert torch.equal(step(copied)[0], loss)
    assert [type(m) for m in model.modules()] == classes
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    if torch_device == "cpu":
        assert torch.equal(step(model)[0], before)


def test_steps_that_record_gradients_are_left(torch_device):
    model, ids, _ = made("Mamba", torch_device)
    with wt.patch(model, emulator=torch_device == "cpu") as patched:
        found = model(ids[:, :5], use_cache=True)
        logits = model(ids[:, 5:], **cached(found), use_cache=True).logits
        # Convolution and scan of two layers.
        assert patched.left()["steps have no gradient"] == 4
    near(logits.detach(), model.double()(ids, use_cache=False).logits[:, 5:].detach())


def test_kinds_are_chosen(torch_device):
    model, ids, _ = made("Mamba", torch_device)
    with wt.patch(model, emulator=torch_device == "cpu", disable={"selective_scan"}) as patched:
        kinds = {entry.kind for entry in patched.replaced if entry.cls == "MambaMixer"}
        assert kinds == {"causal_conv1d"}
    with wt.patch(model, emulator=torch_device == "cpu", disable={"MambaMixer"}) as patched:
        assert not [entry for entry in patched.replaced if entry.cls == "MambaMixer"]
    assert "causal_conv1d" in wt._patch.KINDS and "selective_scan" in wt._patch.KINDS


def test_functions_of_another_kind_are_left(torch_device, monkeypatch):
    """What is called as a convolution or a scan, and computes something else."""
    from transformers.models.mamba import modeling_mamba

    conv, scan = modeling_mamba.causal_conv1d_fn, modeling_mamba.mamba_selective_scan
    monkeypatch.setattr(modeling_mamba, "causal_conv1d_fn", lambda *arguments, **options: 2 * conv(*arguments, **options))
    model, ids, _ = made("Mamba", torch_device)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        with wt.patch(model, emulator=torch_device == "cpu") as patched:
            near(model(ids, use_cache=False).logits, expected.double())
            assert patched.left()["a function of another kind"] == 2
            assert counts(patched)["causal_conv1d"] == 0 and counts(patched)["selective_scan"] == 2
        monkeypatch.setattr(modeling_mamba, "mamba_selective_scan", lambda u, delta, *rest, **options: scan(u, 2 * delta, *rest, **options))
        with wt.patch(model, emulator=torch_device == "cpu") as patched:
            model(ids, use_cache=False)
            assert patched.left()["a function of another kind"] == 4


def test_a_state_that_is_not_taken(torch_device):
    """More numbers than the kernels have: the layer is PyTorch's, or an error if that was asked for."""
    torch.manual_seed(5)
    model = transformers.MambaModel(transformers.MambaConfig(**SMALL | {"state_size": 65})).eval().to(torch_device)
    ids = torch.randint(3, 23, (2, 6), device=torch_device)
    with torch.no_grad():
        expected = model(ids, use_cache=False).last_hidden_state
        with wt.patch(model, emulator=torch_device == "cpu") as patched:
            near(model(ids, use_cache=False).last_hidden_state, expected.double())
            (why,) = [why for why in patched.left() if why.startswith("selective_scan")]
            assert why == "selective_scan: state is 65, must be from 1 to 64"
        with wt.patch(model, emulator=torch_device == "cpu", strict=True), pytest.raises(ww.ParameterError, match="from 1 to 64"):
            model(ids, use_cache=False)


def test_compiled(torch_device):
    model, ids, _ = made("Mamba", torch_device)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        with wt.patch(model, emulator=torch_device == "cpu"):
            near(compile_anew(lambda ids: model(ids, use_cache=False).logits)(ids), expected.double())


SECOND = {"num_heads": 4, "head_dim": 8, "n_groups": 2, "chunk_size": 4, "state_size": 16, "hidden_size": 16, "num_hidden_layers": 2, "expand": 2}


def of_chunks(device: str, dtype, **options):
    torch.manual_seed(5)
    model = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**SECOND | WORDS | options)).to(device, dtype)
    return model, torch.randint(3, 23, (2, 9), device=device)


def within(found, exact, budget):
    assert float((found.double() - exact).norm()) <= budget * float(exact.norm())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_chunks_of_prompts_and_steps(dtype, torch_device):
    """The scan of a prompt is ours, and so are the steps behind it."""
    model, ids = of_chunks(torch_device, dtype)
    exact = copy.deepcopy(model).double()(ids, use_cache=False).logits.detach()
    with torch.no_grad():
        plain = float((model(ids, use_cache=False).logits.double() - exact).norm() / exact.norm())
        with wt.patch(model, emulator=torch_device == "cpu") as patched:
            within(model(ids, use_cache=False).logits, exact, 2 * plain)
            assert counts(patched)["chunk_scan"] == 2, patched.report()
            found = model(ids[:, :7], use_cache=True)
            logits = [found.logits]
            for at in (7, 8):
                logits.append(model(ids[:, at : at + 1], **cached(found), use_cache=True).logits)
            within(torch.cat(logits, 1), exact, 2 * plain)
            assert counts(patched)["chunk_scan"] == 8, patched.report()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_chunks_in_training(dtype, torch_device):
    model, ids = of_chunks(torch_device, dtype)
    model.train()

    def gradients(model):
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}

    exact, plain = gradients(copy.deepcopy(model).double()), gradients(model)
    with wt.patch(model, emulator=torch_device == "cpu") as patched:
        found = gradients(model)
        assert counts(patched)["chunk_scan"] == 2, patched.report()
    assert found.keys() == exact.keys()
    for name, gradient in found.items():
        difference = float((plain[name] - exact[name]).norm() / exact[name].norm())
        within(gradient, exact[name], 2 * difference + 1e-2)


@pytest.mark.parametrize("limit", [(0.6, float("inf")), (0.0, 0.5), (0.3, 0.9)])
def test_chunks_with_limits_of_time_steps(limit, torch_device):
    """As the function that is replaced has them, in float32, and its gradients."""
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    torch.manual_seed(5)
    block = types.SimpleNamespace(_warpwright_block={"chunk_scan": Replacement("chunk_scan", emulator=torch_device == "cpu")})
    shapes = [(2, 9, 4, 8), (2, 9, 4), (4,), (2, 9, 2, 16), (2, 9, 2, 16), (4,), (4,)]
    drawn = [torch.randn(shape, device=torch_device).half() for shape in shapes]
    drawn[2] = -drawn[2].exp() / 4

    def results(function, dtype, **options):
        given = [t.to(dtype).requires_grad_() for t in drawn]
        y = function(*given[:5], chunk_size=4, D=given[5], dt_bias=given[6], dt_softplus=True, **options)
        # So small that the gradient of `A` is one of float16.
        return [y.detach(), *torch.autograd.grad(y.float().square().sum() / 64, given)]

    ours = functools.partial(scan_chunks, block, mamba2_chunk_scan)
    found, exact = results(ours, torch.float16, dt_limit=limit), results(mamba2_chunk_scan, torch.float32, dt_limit=limit)
    assert block._warpwright_block["chunk_scan"].ran == 1
    for a, b in zip(found, exact):
        within(a, b.double(), 5e-3)
    free = results(mamba2_chunk_scan, torch.float32)
    assert all(float((a - b).norm()) > 2e-2 * float(b.norm()) for a, b in zip(free[:2], exact))


def test_chunks_that_are_left(torch_device):
    model, ids = of_chunks(torch_device, torch.float32)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        with wt.patch(model, emulator=torch_device == "cpu") as patched:
            near(model(ids, use_cache=False).logits, expected.double())
            assert patched.left()["float32 is not taken"] == 2 and counts(patched)["chunk_scan"] == 0, patched.report()


def test_steps_of_chunks_of_float32(torch_device):
    """Prompts are PyTorch's, steps are not."""
    model, ids = of_chunks(torch_device, torch.float32)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits.double()
        with wt.patch(model, emulator=torch_device == "cpu") as patched:
            found = model(ids[:, :8], use_cache=True)
            near(model(ids[:, 8:], **cached(found), use_cache=True).logits, expected[:, 8:])
            assert counts(patched)["chunk_scan"] == 2, patched.report()


def test_another_function_of_chunks_is_left(torch_device, monkeypatch):
    from transformers.models.mamba2 import modeling_mamba2

    scan = modeling_mamba2.mamba2_chunk_scan
    other = lambda x, dt, *rest, **options: scan(x, 2 * dt, *rest, **options)  # noqa: E731
    model, ids = of_chunks(torch_device, torch.bfloat16)
    with torch.no_grad(), wt.patch(model, emulator=torch_device == "cpu") as patched:
        monkeypatch.setattr(modeling_mamba2, "mamba2_chunk_scan", other)
        model(ids, use_cache=False)
        assert patched.left()["a function of another kind"] == 2 and counts(patched)["chunk_scan"] == 0
        monkeypatch.setattr(modeling_mamba2, "mamba2_selective_state_update", lambda *tensors, **options: tensors[1])
    with wt.patch(model, emulator=torch_device == "cpu") as patched:
        assert "chunk_scan" not in counts(patched)


def test_chunks_of_hybrids(torch_device):
    """Models whose blocks have the function of the same name."""
    torch.manual_seed(5)
    config = transformers.BambaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, attn_layer_indices=[1],
        mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=4, **WORDS,
    )  # fmt: skip
    model = transformers.BambaForCausalLM(config).to(torch_device, torch.bfloat16).eval()
    ids = torch.randint(3, 23, (2, 9), device=torch_device)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(ids, use_cache=False).logits
        plain = float((model(ids, use_cache=False).logits.double() - exact).norm() / exact.norm())
        with wt.patch(model, emulator=torch_device == "cpu") as patched:
            within(model(ids, use_cache=False).logits, exact, 2 * plain)
            assert counts(patched)["chunk_scan"] == 1, patched.report()
