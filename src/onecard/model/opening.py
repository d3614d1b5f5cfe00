"""A model with its tokeniser from wherever it is: a run, a Hugging Face folder, nanoGPT's ckpt.pt, a released GPT-2.

>>> speaker = open_model("out")                      # doctest: +SKIP
>>> speaker = open_model("openai-community/gpt2")    # doctest: +SKIP

A folder's own Python is never executed: GPT-2's and onecard's own modern layout are known by their config.json.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onecard.config import RunConfig
from onecard.config.presets import RELEASED
from onecard.data import Tokenizer, gpt2
from onecard.data.tokenizers.bpe import BpeTokenizer, bpe_spec
from onecard.data.tokenizers.kinds import EOT, BytesTokenizer, CharsTokenizer
from onecard.data.tokenizers.special import CHAT_TOKENS, SpecialTokenizer
from onecard.errors import UserError
from onecard.model.build import make_model
from onecard.model.checkpoint import misfit
from onecard.model.generate import Sampler, load_run
from onecard.model.machine import choose_device
from onecard.model.weights import read_weights
from onecard.untrusted import read_json_object

_HINT = "a run's folder, a folder with config.json and model.safetensors, or nanoGPT's ckpt.pt"
_CONFIG = "config.json"


def open_model(
    source: str,
    device: str = "auto",
    dataset: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Sampler:
    """The model that `source` names, on the device, ready to be asked."""
    path = Path(source)
    if path.suffix == ".pt" or (path / "ckpt.pt").is_file():
        config = _nanogpt_config(path if path.suffix == ".pt" else path / "ckpt.pt")
        return _filled(config, read_weights(source), _known_tokenizer(config), device)
    if (path / _CONFIG).is_file():
        settings = read_json_object(path / _CONFIG, "the model's config", _HINT)
        config = _hub_config(settings, path)
        return _filled(config, read_weights(source), _folder_tokenizer(path, config), device)
    if path.is_dir():
        return load_run(path, device, dataset, report)
    name = source.removeprefix("openai-community/")
    if name in RELEASED:
        config = RunConfig.from_values({**RELEASED[name], "vocab_size": 50257, "bias": True})
        return _filled(config.replace(dropout=0.0), read_weights(name), gpt2(), device)
    raise UserError(f"there is no model at {source!r}", hint=_HINT)


def _filled(
    config: RunConfig, weights: dict[str, Tensor], tokenizer: Tokenizer, device: str
) -> Sampler:
    with torch.device("meta"):
        model = make_model(config)
    if config.tied:
        weights = {name: w for name, w in weights.items() if name != "lm_head.weight"}
    weights = {name: tensor.float().contiguous() for name, tensor in weights.items()}
    if problem := misfit(model, weights):
        raise UserError(f"the weights are not those of the model's config: {problem}", hint=_HINT)
    model.load_state_dict(weights, strict=False, assign=True)
    if config.tied:
        model.lm_head.weight = model.transformer.wte.weight
    return Sampler(model.to(choose_device(device)).eval(), tokenizer, step=0)


def _hub_config(settings: dict[str, Any], folder: Path) -> RunConfig:
    kind = settings.get("model_type")
    if kind not in ("gpt2", "onecard_modern"):
        raise UserError(
            f"{folder} holds a model of type {str(kind)[:40]!r}",
            hint="GPT-2's and onecard's own are known; others run in lm-evaluation-harness",
        )
    context = "n_positions" if kind == "gpt2" else "block_size"
    try:
        values = {key: int(settings[key]) for key in ("n_layer", "n_head", "n_embd", "vocab_size")}
        values["block_size"] = int(settings[context])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / _CONFIG} is damaged: {error}", hint=_HINT) from None
    tied = bool(settings.get("tie_word_embeddings", kind == "gpt2"))
    bias = True if kind == "gpt2" else bool(settings.get("bias"))
    recipe = "gpt2" if kind == "gpt2" else "modern"
    return RunConfig.from_values({**values, "tied": tied, "bias": bias, "recipe": recipe})


def _nanogpt_config(file: Path) -> RunConfig:
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        args = saved["model_args"]
        keys = ("n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size")
        return RunConfig.from_values({key: args[key] for key in keys})
    except UserError:
        raise
    except Exception as error:  # whatever a damaged or hostile file makes torch raise
        raise UserError(
            f"{file} is not a nanoGPT checkpoint that can be read safely ({type(error).__name__})",
            hint=_HINT,
        ) from None


def _known_tokenizer(config: RunConfig) -> Tokenizer:
    if config.shape.vocab_size >= gpt2().vocab_size:
        return gpt2()
    raise UserError(
        "the file does not say which tokeniser its model has",
        hint="only GPT-2's can be assumed; export the run with `onecard export --to hf` instead",
    )


def _folder_tokenizer(folder: Path, config: RunConfig) -> Tokenizer:
    """tokenizer.json as `onecard export` writes it, or GPT-2's own."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _known_tokenizer(config)
    content = read_json_object(path, "the tokeniser", _HINT)
    try:
        base = _plain_tokenizer(content)
        added = sorted(content.get("added_tokens", []), key=lambda token: token["id"])
        names = [str(token["content"]) for token in added if token["id"] >= base.vocab_size]
        return SpecialTokenizer(base, names) if set(CHAT_TOKENS) <= set(names) else base
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {error}", hint=_HINT) from None


def _plain_tokenizer(content: dict[str, Any]) -> Tokenizer:
    """The tokeniser of the text alone."""
    model = content["model"]
    if model["type"] == "WordLevel":
        chars = sorted(model["vocab"], key=model["vocab"].__getitem__)
        names = {token["content"] for token in content.get("added_tokens", [])}
        # a tuned model's separator may be one of its own tokens: its ids are the same either way
        return CharsTokenizer(chars, separator=EOT in names)
    if not model["merges"]:
        return BytesTokenizer()
    if len(model["vocab"]) >= gpt2().vocab_size - 1:
        return gpt2()
    return BpeTokenizer("bpe", bpe_spec(dict(model["vocab"]), model["merges"]))
