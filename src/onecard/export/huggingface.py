"""A folder that transformers loads: GPT-2's own classes for the GPT-2 recipe, a small file of code for the modern one.

    write_folder(folder, trained, dtype="float32")

Rows of the vocabulary that stand for no token (the padding to 50,304) are cut, so that no program can draw them.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from onecard.data.tokenizers.special import END, SpecialTokenizer, has_chat_tokens
from onecard.export.tokenizer_files import write_tokenizer
from onecard.export.trained import Trained
from onecard.model.modern import ROTARY_BASE, SOFT_CAP
from onecard.model.weights import TRANSPOSED, VOCABULARY_ROWS

CODE = "modeling_onecard.py"


def write_folder(folder: Path, trained: Trained, dtype: str = "float32") -> None:
    """config.json, generation_config.json, weights and tokeniser."""
    modern = trained.config.shape.modern
    tensors = _parameters(trained) if modern else gpt2_tensors(trained)
    number = getattr(torch, dtype)
    ready = {name: tensor.to(number).contiguous() for name, tensor in tensors.items()}
    save_file(ready, folder / "model.safetensors", metadata={"format": "pt"})
    config = modern_config(trained) if modern else gpt2_config(trained)
    _write(folder / "config.json", {**config, "dtype": dtype})
    _write(folder / "generation_config.json", _generation(trained))
    write_tokenizer(folder, trained.tokenizer, trained.config.block_size)
    if modern:
        code = (files("onecard.export") / "hub_code" / CODE).read_text(encoding="utf-8")
        (folder / CODE).write_text(code, encoding="utf-8")


def gpt2_tensors(trained: Trained) -> dict[str, Tensor]:
    """By transformers' names and shapes; biases that the model does not have are zeros."""
    tensors = {}
    for name, tensor in _parameters(trained).items():
        tensors[name] = tensor.t() if name.endswith(TRANSPOSED) else tensor
        if not trained.config.bias and name.endswith((*TRANSPOSED, "ln_1.weight", "ln_2.weight")):
            rows = tensor.shape[0]  # a linear layer's outputs; a norm's width
            tensors[f"{name.removesuffix('weight')}bias"] = torch.zeros(rows)
    if not trained.config.bias:
        tensors["transformer.ln_f.bias"] = torch.zeros(trained.config.n_embd)
    return tensors


def gpt2_config(trained: Trained) -> dict[str, Any]:
    config = trained.config
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": trained.vocab_size,
        "n_positions": config.block_size,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "attn_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "tie_word_embeddings": config.tied,
        **_separators(trained),
    }


def modern_config(trained: Trained) -> dict[str, Any]:
    config, module = trained.config, CODE.removesuffix(".py")
    return {
        "architectures": ["OnecardModernForCausalLM"],
        "auto_map": {
            "AutoConfig": f"{module}.OnecardModernConfig",
            "AutoModelForCausalLM": f"{module}.OnecardModernForCausalLM",
        },
        "model_type": "onecard_modern",
        "vocab_size": trained.vocab_size,
        "block_size": config.block_size,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "bias": config.bias,
        "soft_cap": SOFT_CAP,
        "rotary_base": ROTARY_BASE,
        "tie_word_embeddings": config.tied,
        **_separators(trained),
    }


def _parameters(trained: Trained) -> dict[str, Tensor]:
    """The model's parameters, a tied head once, without the rows that stand for no token."""
    return {
        name: (tensor[: trained.vocab_size] if name in VOCABULARY_ROWS else tensor).detach()
        for name, tensor in trained.model.named_parameters()
    }


def _separators(trained: Trained) -> dict[str, Any]:
    tokenizer = trained.tokenizer
    if isinstance(tokenizer, SpecialTokenizer) and has_chat_tokens(tokenizer):
        # an answer ends with its turn; a text without roles with the separator, as before
        return {
            "bos_token_id": tokenizer.eot,
            "eos_token_id": [tokenizer.special[END], tokenizer.eot],
        }
    return {"bos_token_id": tokenizer.eot, "eos_token_id": tokenizer.eot}


def _generation(trained: Trained) -> dict[str, Any]:
    settings = {"do_sample": True, "temperature": 0.8, "top_k": 200, "max_new_tokens": 200}
    return {**settings, **_separators(trained), "pad_token_id": trained.tokenizer.eot}


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
