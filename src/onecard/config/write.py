"""A RunConfig back as text: nanoGPT's .py or TOML, the keys that differ from the defaults or carry a comment.

>>> print(to_toml(RunConfig(n_layer=6), comments={"n_layer": "half of GPT-2's"}), end="")
n_layer = 6  # half of GPT-2's
"""

import json
from collections.abc import Callable, Mapping

from onecard.config.recipes import RECIPES
from onecard.config.run import KEYS, RunConfig, Value


def to_toml(config: RunConfig, comments: Mapping[str, str] | None = None, head: str = "") -> str:
    """TOML that `onecard train` takes as it is. None has no TOML spelling and is every such key's default."""
    return _lines(config, comments or {}, head, _toml_value)


def to_nanogpt(config: RunConfig, comments: Mapping[str, str] | None = None, head: str = "") -> str:
    """A nanoGPT config/*.py."""
    return _lines(config, comments or {}, head, repr)


def _lines(
    config: RunConfig, comments: Mapping[str, str], head: str, spell: Callable[[Value], str]
) -> str:
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    for key, value in written_values(config, comments).items():
        comment = f"  # {comments[key]}" if key in comments else ""
        lines.append(f"{key} = {spell(value)}{comment}")
    return "\n".join(lines) + "\n"


def written_values(config: RunConfig, comments: Mapping[str, str]) -> dict[str, Value]:
    """What differs from the defaults, what is commented on, and the keys that `load` would otherwise derive from them."""
    changed = config.changed()
    values = {
        key: getattr(config, key)
        for key in KEYS
        if key in changed
        or (key in comments and getattr(config, key) is not None)
        or key in RECIPES[config.recipe].values
    }
    if "max_iters" in values:
        for key in ("lr_decay_iters", "warmup_iters"):
            values[key] = getattr(config, key)
    if "learning_rate" in values:
        values["min_lr"] = config.min_lr
    return values


def _toml_value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON strings are TOML strings, except for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text
