"""Classes of models of transformers, timm and torchvision, patched and taken back: small ones of f32 in the emulator, larger ones of bf16 on the GPU."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402

# On top of twice what PyTorch errs, norm-wise against f64.
BUDGETS = {torch.float32: 2e-6, torch.bfloat16: 2e-3}


@dataclass(frozen=True)
class Size:
    """Of transformers: elements, of the inner layer, heads and their keys, layers, symbols, positions, sequences; of images: extent and number."""

    width: int
    inner: int
    heads: int
    keys: int
    layers: int
    symbols: int
    length: int
    batch: int
    extent: int


SIZES = {"cpu": Size(32, 48, 2, 1, 1, 23, 6, 2, 32), "cuda": Size(256, 512, 4, 2, 2, 1000, 128, 4, 64)}

Made = "tuple[torch.nn.Module, dict[str, torch.Tensor]]"


def head_of(name: str) -> str:
    return "LMHeadModel" if name == "GPT2" else "ForCausalLM"


def of_text(name: str, decoder: bool = False, **options: Any) -> Callable[[Size], Made]:
    def make(s: Size) -> Made:
        import transformers

        sizes = {
            "hidden_size": s.width, "intermediate_size": s.inner, "num_attention_heads": s.heads, "num_hidden_layers": s.layers,
            "vocab_size": s.symbols, "max_position_embeddings": 2 * s.length + 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        }
        sizes |= {key: value(s) if callable(value) else value for key, value in options.items()}
        dropout = {key: 0.0 for key in ("attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "hidden_dropout")}
        config = getattr(transformers, f"{name}Config")(**{**dropout, **sizes})
        model = getattr(transformers, f"{name}{head_of(name) if decoder else 'Model'}")(config)
        inputs = {"input_ids": torch.randint(3, s.symbols, (s.batch, s.length))}
        return model, inputs | ({"use_cache": False} if decoder else {})

    return make


def of_pair(name: str, **options: Any) -> Callable[[Size], Made]:
    """An encoder and a decoder."""

    def make(s: Size) -> Made:
        import transformers

        sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", s.layers), ("attention_heads", s.heads), ("ffn_dim", s.inner))}
        words = {"vocab_size": s.symbols, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3, "dropout": 0.0}
        sizes = {"d_model": s.width, "max_position_embeddings": 2 * s.length, **sides, **words}
        if name == "T5":
            sizes = {"d_model": s.width, "d_ff": s.inner, "d_kv": s.width // s.heads, "num_layers": s.layers, "num_heads": s.heads, "dropout_rate": 0.0, **words}
        model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes, **options))
        ids = torch.randint(4, s.symbols, (s.batch, s.length))
        return model, {"input_ids": ids, "decoder_input_ids": ids.flip(0), "use_cache": False}

    return make


def of_images(name: str, **options: Any) -> Callable[[Size], Made]:
    def make(s: Size) -> Made:
        import transformers

        sizes = {
            "hidden_size": s.width, "intermediate_size": s.inner, "num_attention_heads": s.heads, "num_hidden_layers": s.layers,
            "image_size": s.extent, "patch_size": 8,
        }
        if name in ("ConvNext", "ResNet"):
            sizes = {"hidden_sizes": [s.width // 4, s.width // 2], "depths": [1, 1], "num_stages": 2}
            sizes |= {"embedding_size": 8} if name == "ResNet" else {}
        elif name == "Swin":
            sizes = {"embed_dim": s.width // 2, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4, "image_size": s.extent, "patch_size": 4}
        model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes, **options))
        return model, {"pixel_values": torch.randn(s.batch, 3, s.extent, s.extent)}

    return make


def of_library(library: str, name: str, **small: Any) -> Callable[[Size], Made]:
    def make(s: Size) -> Made:
        if library == "timm":
            import timm

            model = timm.create_model(name, num_classes=7, **(small if s is SIZES["cpu"] else {}))
            batch, extent = s.batch, 224 if "img_size" in small and s is not SIZES["cpu"] else s.extent
            return model, {"x": torch.randn(batch, 3, extent, extent)}
        import torchvision

        return torchvision.models.get_model(name, weights=None, num_classes=7), {"x": torch.randn(s.batch, 3, s.extent, s.extent)}

    return make


def keys(s: Size) -> int:
    return s.keys


def head(s: Size) -> int:
    return s.width // s.heads


GROUPED = {"num_key_value_heads": keys, "head_dim": head}
JAMBA = {"mamba_d_state": 4, "mamba_dt_rank": 2, "num_experts": 2, "expert_layer_offset": 1, "experts_implementation": "eager"}
MODELS: dict[str, tuple[str, Callable[[Size], Any]]] = {
    "bert": ("transformers", of_text("Bert")),
    "roberta": ("transformers", of_text("Roberta")),
    "electra": ("transformers", of_text("Electra", embedding_size=16)),
    "albert": ("transformers", of_text("Albert", embedding_size=16)),
    "gpt2": ("transformers", of_text("GPT2", True, n_inner=lambda s: s.inner, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    "gpt-neox": ("transformers", of_text("GPTNeoX", True)),
    "opt": ("transformers", of_text("OPT", True, ffn_dim=lambda s: s.inner, word_embed_proj_dim=lambda s: s.width)),
    "llama": ("transformers", of_text("Llama", True, **GROUPED)),
    "mistral": ("transformers", of_text("Mistral", True, sliding_window=4, **GROUPED)),
    "qwen2": ("transformers", of_text("Qwen2", True, num_key_value_heads=keys)),
    "qwen3": ("transformers", of_text("Qwen3", True, **GROUPED)),
    "gemma2": ("transformers", of_text("Gemma2", True, query_pre_attn_scalar=16, **GROUPED)),
    "phi3": ("transformers", of_text("Phi3", True, num_key_value_heads=keys, resid_pdrop=0.0, embd_pdrop=0.0)),
    "mamba": ("transformers", of_text("Mamba", True, state_size=4, time_step_rank=2)),
    "falcon-mamba": ("transformers", of_text("FalconMamba", True, state_size=4, time_step_rank=2)),
    "jamba": (
        "transformers",
        of_text("Jamba", True, num_key_value_heads=keys, num_hidden_layers=2, attn_layer_period=2, attn_layer_offset=1, **JAMBA),
    ),
    "t5": ("transformers", of_pair("T5")),
    "bart": ("transformers", of_pair("Bart")),
    "vit": ("transformers", of_images("ViT")),
    "dinov2": ("transformers", of_images("Dinov2", mlp_ratio=2)),
    "swin": ("transformers", of_images("Swin")),
    "convnext": ("transformers", of_images("ConvNext")),
    "timm resnet": ("timm", of_library("timm", "resnet10t")),
    "timm vit": ("timm", of_library("timm", "vit_tiny_patch16_224", img_size=32, embed_dim=32, depth=1, num_heads=2)),
    "timm convnext": ("timm", of_library("timm", "convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))),
    "torchvision resnet18": ("torchvision", of_library("torchvision", "resnet18")),
    "torchvision densenet121": ("torchvision", of_library("torchvision", "densenet121")),
}


def step(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """The result and the gradients, by name, in f64."""
    model.zero_grad()
    found = model(**inputs)
    result = found if torch.is_tensor(found) else found.logits if "logits" in found else found.last_hidden_state
    weights = torch.linspace(-1, 1, result.numel(), device=result.device).to(result.dtype).reshape(result.shape)
    (result * weights).sum().backward()
    gradients = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    return {"result": result.detach().double(), **gradients}


def errors(found: dict[str, Any], exact: dict[str, Any]) -> tuple[float, float]:
    """Of the result, and of all gradients together, norm-wise."""

    def error(names: list[str]) -> float:
        above = sum((found[name] - exact[name]).square().sum() for name in names)
        return float((above / sum(exact[name].square().sum() for name in names)).sqrt())

    return error(["result"]), error([name for name in exact if name != "result"])


@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_errs_as_before_and_comes_back(name: str, torch_device: str) -> None:
    library, make = MODELS[name]
    pytest.importorskip(library, reason=f"{library} is not installed")
    dtype = torch.float32 if torch_device == "cpu" else torch.bfloat16
    torch.manual_seed(5)
    model, inputs = make(SIZES[torch_device])
    model.eval().to(torch_device, dtype)
    inputs = {k: v.to(torch_device, dtype if v.is_floating_point() else None) if torch.is_tensor(v) else v for k, v in inputs.items()}
    wide = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}
    exact = step(copy.deepcopy(model).double(), wide)
    before, state = step(model, inputs), {k: v.clone() for k, v in model.state_dict().items()}

    with wt.patch(model, emulator=torch_device == "cpu") as patched:
        assert patched.replaced, patched.report()
        found = step(model, inputs)
        assert model.state_dict().keys() == state.keys()
    assert found.keys() == exact.keys()
    for what, ours, theirs in zip(("result", "gradients"), errors(found, exact), errors(before, exact)):
        assert ours <= 2 * theirs + BUDGETS[dtype], f"{what}: {ours:.2e}, PyTorch's {theirs:.2e}\n{patched.report()}"

    after = step(model, inputs)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    # PyTorch's own sums on a GPU may come in another order.
    assert torch.equal(after["result"], before["result"]) or torch_device == "cuda"
    assert errors(after, exact)[1] <= 1.5 * errors(before, exact)[1] + BUDGETS[dtype]
