"""The model a person means: a preset, a config file, a known model's name, or just a number of parameters.

>>> named_model("350M").label, named_model("350M").config.n_layer
('gpt2-medium', 24)
>>> named_model("Gopher 1.4B").known
'Gopher 1.4B'
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from onecard.advise.shapes import shape_of, total_params, usual_batch
from onecard.config import GPT2_PADDED_VOCAB, PRESETS, RunConfig, load, parse_overrides
from onecard.config.recipes import recipe_values
from onecard.errors import UserError, nearest
from onecard.facts.models import KnownModel, known_models
from onecard.units import parse_count

RELEASED = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
SAME_SIZE = 0.06  # "1.5B" is GPT-2 XL's 1.558B, "350M" GPT-2 medium's 355M
SIZE_LIMITS = (3e6, 1e13)  # smaller is less than the vocabulary's own table; larger nobody trains


@dataclass(frozen=True)
class NamedModel:
    label: str
    config: RunConfig
    preset: str | None = None
    known: str | None = None  # the known model's name, if that was asked for
    own_tokens: int | None = None  # as its config says

    @property
    def params(self) -> int:
        return total_params(self.config.shape)


def named_model(text: str, overrides: Iterable[str] = ()) -> NamedModel:
    """What `onecard can MODEL` means by MODEL."""
    overrides = list(overrides)
    if text in PRESETS or Path(text).suffix in (".py", ".toml") or Path(text).is_file():
        config = load(text, overrides)
        return NamedModel(
            text, config, text if text in RELEASED else None, None, config.total_tokens
        )
    for model in known_models():
        names = [_bare(name) for name in (model.name, *model.aliases)]
        if _bare(text) in names or (len(_bare(text)) > 5 and names[0].startswith(_bare(text))):
            return _sized(model.params, model.name, overrides, model)
    if re.fullmatch(
        r"[\d.,_]+(e\d+)?\s*+[kmbgt]?(illion|n)?\s*(params|parameters)?", text.strip().lower()
    ):
        return _sized(parse_count(text), text, overrides)
    names = [*PRESETS, *(model.name for model in known_models())]
    size = re.search(r"(?<![\w.])\d+(\.\d+)?\s?[mb](?!\w)", re.sub(r"[-_/]", " ", text.lower()))
    raise UserError(
        f"no model, preset or config file named {text!r}",
        hint=f"give its size alone: {size[0].upper().replace(' ', '')}"
        if size
        else nearest(text, names) or "for example gpt2-xl, 350M, or a config file",
    )


def _sized(
    count: int, label: str, overrides: list[str], known: KnownModel | None = None
) -> NamedModel:
    if not SIZE_LIMITS[0] <= count <= SIZE_LIMITS[1]:
        raise UserError(
            f"{label} is not a size of model that can be planned",
            hint="write it like 124M, 350M or 1.4B",
        )
    name = known.name if known else None
    for preset in RELEASED:
        config = load(preset, overrides)
        if abs(total_params(config.shape) / count - 1) < SAME_SIZE and (
            known is None or known.preset == preset
        ):
            return NamedModel(preset if known is None else label, config, preset, name)
    shape = shape_of(count)
    changes = parse_overrides(overrides)
    config = RunConfig().replace(
        **{
            "n_layer": shape.n_layer,
            "n_head": shape.n_head,
            "n_embd": shape.n_embd,
            "vocab_size": GPT2_PADDED_VOCAB,
            "batch_size": 1,
            "gradient_accumulation_steps": usual_batch(count),
            "dataset": "fineweb-edu",
            **recipe_values(changes.get("recipe")),
            **changes,
        }
    )
    return NamedModel(label, config, None, name)


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
