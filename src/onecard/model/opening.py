"""A model with its tokeniser from wherever it is: a run, a Hugging Face folder, nanoGPT's ckpt.pt, a released GPT-2.

>>> sampler = open_model("out")                      # doctest: +SKIP
>>> sampler = open_model("openai-community/gpt2")    # doctest: +SKIP

A folder's own Python is never executed: GPT-2's and onecard's own modern layout are known by their config.json.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onecard.config import RunConfig
from onecard.config.model_rules import GPT2_VOCAB
from onecard.config.presets import RELEASED
from onecard.data import Tokenizer, gpt2, kept_tokenizer, open_dataset
from onecard.data.read.kept import RECORD
from onecard.data.tokenizers.bpe import BpeTokenizer, bpe_spec
from onecard.data.tokenizers.kinds import EOT, BytesTokenizer, CharsTokenizer
from onecard.data.tokenizers.special import CHAT_TOKENS, SpecialTokenizer
from onecard.errors import UserError
from onecard.model.build import make_model
from onecard.model.checkpoint import (
    STATE,
    CorruptError,
    Saved,
    checkpoints,
    misfit,
    read_named,
    read_state,
    step_of,
)
from onecard.model.generate import Sampler
from onecard.model.machine import choose_device
from onecard.model.mapped import report_if_cut_short
from onecard.model.weights import hub_folder, load_plain, read_weights
from onecard.untrusted import read_json_object

_HINT = "a run's folder, a folder with config.json and model.safetensors, or nanoGPT's ckpt.pt"
_CONFIG = "config.json"
_HUB_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


def open_model(
    source: str,
    device: str = "auto",
    dataset: str | None = None,
    report: Callable[[str], None] = lambda text: None,
    which: str = "newest",
) -> Sampler:
    """The model that `source` names, on the device; of a run its newest or best checkpoint, or that of a step."""
    path = Path(source)
    if path.suffix == ".pt" or (path / "ckpt.pt").is_file():
        config = _nanogpt_config(path if path.suffix == ".pt" else path / "ckpt.pt")
        tokenizer = _known_tokenizer(config) if dataset is None else _tokenizer_of(dataset)
        return _filled(config, read_weights(source), tokenizer, device)
    if (path / _CONFIG).is_file():
        settings = read_json_object(path / _CONFIG, "the model's config", _HINT)
        config = _hub_config(settings, path)
        return _filled(config, read_weights(source), _folder_tokenizer(path, config), device)
    if path.is_dir():
        return load_run(_checkpoint(path, which), device, dataset, report)
    name = source.removeprefix("openai-community/")
    if name in RELEASED:
        config = RunConfig.from_values({**RELEASED[name], "vocab_size": 50257, "bias": True})
        return _filled(config.replace(dropout=0.0), read_weights(name), gpt2(), device)
    if _HUB_NAME.fullmatch(source):
        return open_model(_from_hub(source), device, dataset, report)
    raise UserError(f"there is no model at {source!r}", hint=_HINT)


def load_run(
    source: Path,
    device: str = "auto",
    dataset: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Sampler:
    """The newest good checkpoint of a run, or one checkpoint by its folder, with the run's tokeniser."""
    state, weights, _ = _saved(source, report)
    config = RunConfig.from_values(state["config"]).replace(dropout=0.0)
    tokenizer = _run_tokenizer(source, dataset, config)
    return _filled(config, weights, tokenizer, device, state["step"])


def _saved(source: Path, report: Callable[[str], None]) -> Saved:
    saved = read_named(source, report)
    if saved is None:
        raise UserError(
            f"{source} holds no checkpoint" if source.exists() else f"no folder {str(source)!r}",
            hint="name a run's folder (its out_dir) or one checkpoint in it",
        )
    return saved


def run_folder_of(source: Path) -> Path:
    """The run that a folder is, or that a checkpoint in it belongs to."""
    return source.parent.parent if (source / STATE).is_file() else source


def _run_tokenizer(source: Path, dataset: str | None, config: RunConfig) -> Tokenizer:
    """The data set's that was named; else what the run keeps in its own folder; else, for older runs, the data folder's."""
    run = run_folder_of(source)
    own = run / Path(config.dataset).name  # a tuned run's data, wherever that is now
    places: list[str | Path] = [dataset] if dataset else [own, run / "data", config.dataset]
    for place in places:
        try:
            if place == run / "data" and (run / "data" / RECORD).is_file():
                tokenizer = kept_tokenizer(run / "data")
            else:
                tokenizer = open_dataset(place).tokenizer
        except UserError:
            continue  # the data may be on another disk by now; GPT-2's words need no file
        if tokenizer is not None:
            return tokenizer
    if config.shape.vocab_size >= GPT2_VOCAB and config.learn_from == "all":
        return gpt2()
    raise UserError(
        f"the tokeniser of the data set {dataset or config.dataset!r} was not found",
        hint="the option `dataset` names the folder that holds its tokeniser",
    )


def _checkpoint(run: Path, which: str) -> Path:
    """The folder that load_run is given: the run itself for its newest, or one checkpoint in it."""
    if which == "newest" or (run / STATE).is_file():
        return run
    there = checkpoints(run)
    if which == "best":
        losses = {}
        for folder in there:
            try:
                loss = read_state(folder).get("val_loss")
            except CorruptError:
                continue
            if isinstance(loss, int | float):
                losses[folder] = loss
        if losses:
            return min(losses, key=losses.__getitem__)
        raise UserError(
            f"no checkpoint in {run} has a validation loss",
            hint="leave the option `checkpoint` out",
        )
    steps = {str(step_of(folder)): folder for folder in there}
    if which in steps:
        return steps[which]
    raise UserError(
        f"{run} has no checkpoint {which!r}",
        hint=f"newest, best{''.join(f', {step}' for step in steps)}",
    )


def _from_hub(name: str) -> str:
    """A model on the hub as a local folder."""
    try:
        return str(hub_folder(name, [_CONFIG, "tokenizer.json", "model.safetensors"]))
    except Exception as error:
        raise UserError(
            f"there is no model at {name!r}, and none could be downloaded from the hub ({type(error).__name__})",
            hint=_HINT,
        ) from None


def _tokenizer_of(dataset: str) -> Tokenizer:
    tokenizer = open_dataset(dataset).tokenizer
    if tokenizer is None:
        raise UserError(f"the data set {dataset!r} does not name its tokeniser")
    return tokenizer


def _filled(
    config: RunConfig,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer,
    device: str,
    step: int = 0,
) -> Sampler:
    with torch.device("meta"):  # no time spent on initial weights that are replaced
        model = make_model(config)
    if config.tied:
        weights = {name: w for name, w in weights.items() if name != "lm_head.weight"}
    # in fp32 also where a run keeps them in bf16
    weights = {name: tensor.float().contiguous() for name, tensor in weights.items()}
    if problem := misfit(model, weights):
        raise UserError(f"the weights are not those of the model's config: {problem}", hint=_HINT)
    model.load_state_dict(weights, strict=False, assign=True)
    if config.tied:
        model.lm_head.weight = model.transformer.wte.weight
    return Sampler(model.to(choose_device(device)).eval(), tokenizer, step)


def _hub_config(settings: dict[str, Any], folder: Path) -> RunConfig:
    kind = settings.get("model_type")
    if kind not in ("gpt2", "onecard_modern"):
        raise UserError(
            f"{folder} holds a model of type {str(kind)[:40]!r}",
            hint="GPT-2's and onecard's own are known; others run in lm-evaluation-harness",
        )
    if kind == "gpt2":
        _check_gpt2(settings, folder)
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


# what a GPT-2 config may say of the arithmetic, which ours is made for; another value would give other answers
_GPT2_SETTINGS: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}


def _check_gpt2(settings: dict[str, Any], folder: Path) -> None:
    for key, known in _GPT2_SETTINGS.items():
        if key in settings and settings[key] not in known:
            raise UserError(
                f"{folder} is a GPT-2 with {key} = {settings[key]!r:.40}, which onecard does not compute",
                hint="lm-evaluation-harness's own back end runs it",
            )
    width = settings.get("n_embd")
    if settings.get("n_inner") not in (None, 4 * width if isinstance(width, int) else None):
        raise UserError(
            f"{folder} is a GPT-2 with n_inner = {settings['n_inner']!r:.40}, not four times its width",
            hint="lm-evaluation-harness's own back end runs it",
        )


def _nanogpt_config(file: Path) -> RunConfig:
    try:
        with report_if_cut_short(file):
            args = load_plain(file)["model_args"]
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
        hint="only GPT-2's can be assumed; the option `dataset` names the data it was trained on",
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
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
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
