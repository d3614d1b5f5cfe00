"""Text to tokens: sources, tokenisers, shards and the readers for them.

The names here load on first use: `plan` asks for a `summary` and must not pay for numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onecard.data.preparation.pipeline import prepare
    from onecard.data.read.manifest import (
        Layout,
        Manifest,
        Shard,
        Summary,
        read_manifest,
        resolve,
        scan,
        summary,
    )
    from onecard.data.read.shards import Dataset, Split, open_dataset
    from onecard.data.tokenizers.kinds import Tokenizer, gpt2, load_tokenizer

__all__ = [
    "Dataset",
    "Layout",
    "Manifest",
    "Shard",
    "Split",
    "Summary",
    "Tokenizer",
    "gpt2",
    "load_tokenizer",
    "open_dataset",
    "prepare",
    "read_manifest",
    "resolve",
    "scan",
    "summary",
]

_HOME = {
    "read.manifest": (
        "Layout",
        "Manifest",
        "Shard",
        "Summary",
        "read_manifest",
        "resolve",
        "scan",
        "summary",
    ),
    "preparation.pipeline": ("prepare",),
    "read.shards": ("Dataset", "Split", "open_dataset"),
    "tokenizers.kinds": ("Tokenizer", "gpt2", "load_tokenizer"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"onecard.data.{module}"), name)
    raise AttributeError(name)
