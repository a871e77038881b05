"""The models of `bench/models.py`: each with its input, its type and what a step is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.nn.functional as F

from . import networks

Loss = Callable[[Any], Any]


@dataclass(frozen=True)
class Model:
    """make(tiny): a module of f32 and its inputs, on the device that is the default. loss(module, inputs): the result and a scalar; without training the scalar is
    of no use. factors: the type of the step, "tf32" too."""

    name: str
    make: Callable[[bool], tuple[torch.nn.Module, dict[str, Any]]]
    loss: Callable[[Any, dict[str, Any]], tuple[Any, Any]]
    factors: str = "bf16"
    channels_last: bool = False
    training: bool = True
    needs: str = "torch"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.factors == "bf16" else torch.float32


def _language_model(module: Any, inputs: dict[str, Any]) -> Any:
    found = module(**inputs)
    # A loss without logits stands for them.
    return found.loss if found.logits is None else found.logits, found.loss


def _llama(tiny: bool) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = (
        {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 61}
        if tiny
        else {
            "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 8,
            "vocab_size": 32000,
        }
    )
    config = LlamaConfig(**sizes, max_position_embeddings=2048, use_cache=False)
    ids = torch.randint(config.vocab_size, (1, 8) if tiny else (4, 2048))
    return LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}


def _gpt2(tiny: bool) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 61} if tiny else {"n_embd": 1024, "n_layer": 24, "n_head": 16}
    config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    ids = torch.randint(config.vocab_size, (1, 8) if tiny else (8, 1024))
    return GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def _whisper(tiny: bool) -> Any:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    width, layers, heads, frames, texts = (32, 1, 2, 16, 8) if tiny else (768, 12, 12, 3000, 448)
    sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))}
    words = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3} if tiny else {}
    config = WhisperConfig(
        d_model=width, **sides, max_source_positions=frames // 2, max_target_positions=texts, use_cache=False, num_mel_bins=80, **words
    )
    labels = torch.randint(config.vocab_size, (1 if tiny else 8, texts))
    return WhisperForConditionalGeneration(config), {"input_features": torch.randn(len(labels), 80, frames), "labels": labels}


def _unet(tiny: bool) -> Any:
    module = networks.UNet((16, 32), 2, 4, 16, 1) if tiny else networks.UNet()
    batch, extent, texts, context = (1, 8, 3, 16) if tiny else (4, 64, 77, 768)
    inputs = {"image": torch.randn(batch, 4, extent, extent), "times": torch.arange(batch) * 100 + 10, "context": torch.randn(batch, texts, context)}
    return module, inputs


def _decoder(tiny: bool) -> Any:
    return (networks.Decoder((16, 8), 4, 1) if tiny else networks.Decoder()), {"latents": torch.randn(1, 4, *[4 if tiny else 64] * 2)}


def _resnet(tiny: bool) -> Any:
    import timm

    if tiny:
        module = timm.models.ResNet(timm.models.resnet.BasicBlock, (1, 1, 1, 1), num_classes=7, channels=(8, 8, 16, 16), stem_width=8)
    else:
        module = timm.create_model("resnet50")
    batch, extent = (4, 32) if tiny else (128, 224)
    return module, {"x": torch.randn(batch, 3, extent, extent), "target": torch.randint(7, (batch,))}


def _vit(tiny: bool) -> Any:
    import timm

    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 7} if tiny else {}
    module = timm.create_model("vit_base_patch16_224", **sizes)
    batch, extent = (1, 16) if tiny else (64, 224)
    return module, {"x": torch.randn(batch, 3, extent, extent), "target": torch.randint(7, (batch,))}


def _lstm(tiny: bool) -> Any:
    batch, steps, inputs, hidden = (2, 3, 8, 8) if tiny else (64, 256, 512, 512)
    classes = 7 if tiny else 128
    return networks.BiLstm(inputs, hidden, 3, classes), {
        "x": torch.randn(batch, steps, inputs), "target": torch.randint(classes, (batch, steps))
    }


def _mamba(tiny: bool) -> Any:
    width, head, state, chunk, layers, batch, steps = (16, 8, 8, 4, 1, 1, 8) if tiny else (1024, 64, 128, 128, 4, 4, 2048)
    blocks = torch.nn.Sequential(*(networks.MambaBlock(width, head, state, chunk) for _ in range(layers)))
    return blocks, {"input": torch.randn(batch, steps, width)}


def _dlrm(tiny: bool) -> Any:
    tables, rows, width, batch = (3, 10, 8, 4) if tiny else (26, 100_000, 128, 8192)
    towers = ((16,), (16,)) if tiny else ((512, 256), (1024, 1024, 512))
    inputs = {"dense": torch.randn(batch, 13), "indices": torch.randint(rows, (batch, tables))}
    return networks.Dlrm(13, tables, rows, width, *towers), inputs | {"target": torch.rand(batch).round()}


def _classes(module: Any, inputs: dict[str, Any]) -> Any:
    *given, target = inputs.values()
    logits = module(*given)
    return logits, F.cross_entropy(logits.flatten(0, -2).float(), target.flatten())


def _clicks(module: Any, inputs: dict[str, Any]) -> Any:
    *given, target = inputs.values()
    logits = module(*given)
    return logits, F.binary_cross_entropy_with_logits(logits.float(), target.float())


def _squares(module: Any, inputs: dict[str, Any]) -> Any:
    found = module(*inputs.values())
    return found, found.float().square().mean()


MODELS = [
    Model("llama", _llama, _language_model, needs="transformers"),
    Model("gpt2-medium", _gpt2, _language_model, needs="transformers"),
    Model("whisper-small", _whisper, _language_model, needs="transformers"),
    Model("unet", _unet, _squares),
    Model("unet, channels last", _unet, _squares, channels_last=True),
    Model("unet, inference", _unet, _squares, training=False),
    Model("unet, channels last, inference", _unet, _squares, channels_last=True, training=False),
    Model("vae decoder, inference", _decoder, _squares, training=False),
    Model("vae decoder, channels last, inference", _decoder, _squares, channels_last=True, training=False),
    Model("resnet50, channels last", _resnet, _classes, channels_last=True, needs="timm"),
    Model("resnet50, channels last, inference", _resnet, _classes, channels_last=True, training=False, needs="timm"),
    Model("resnet50", _resnet, _classes, "f32", needs="timm"),
    Model("resnet50, channels last", _resnet, _classes, "tf32", channels_last=True, needs="timm"),
    Model("resnet50, channels last, inference", _resnet, _classes, "tf32", channels_last=True, training=False, needs="timm"),
    Model("vit-b", _vit, _classes, needs="timm"),
    Model("bilstm", _lstm, _classes),
    Model("bilstm", _lstm, _classes, "f32"),
    Model("bilstm", _lstm, _classes, "tf32"),
    Model("mamba", _mamba, _squares),
    Model("dlrm", _dlrm, _clicks),
]
