"""Named configs: the released GPT-2 family, nanoGPT's own config folder, and the advice in circulation by card.

Each is a nanoGPT file in preset_files/, read like any other.

>>> preset("gpt2-xl")["n_layer"]
48
"""

from pathlib import Path
from typing import Any

from onecard.config.literal import read_python

_FOLDER = Path(__file__).parent / "preset_files"

PRESETS: tuple[str, ...] = tuple(
    sorted(
        entry.name.removesuffix(".py") for entry in _FOLDER.iterdir() if entry.name.endswith(".py")
    )
)


def preset(name: str) -> dict[str, Any]:
    """The keys of a named preset."""
    return read_python(_source(name), name)


def about(name: str) -> str:
    """The preset's first comment: what it is."""
    return _source(name).splitlines()[0].removeprefix("# ")


def _source(name: str) -> str:
    return (_FOLDER / f"{name}.py").read_text(encoding="utf-8")


def _released(n_layer: int, n_head: int, n_embd: int) -> dict[str, Any]:
    return {
        "n_layer": n_layer,
        "n_head": n_head,
        "n_embd": n_embd,
        "vocab_size": 50257,
        "bias": True,
    }


# The shapes that `init_from = "gpt2*"` brings along, as in nanoGPT.
RELEASED: dict[str, dict[str, Any]] = {
    "gpt2": _released(12, 12, 768),
    "gpt2-medium": _released(24, 16, 1024),
    "gpt2-large": _released(36, 20, 1280),
    "gpt2-xl": _released(48, 25, 1600),
}
