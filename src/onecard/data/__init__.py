"""Text to tokens: sources, tokenisers, shards and the readers for them.

The names here load on first use: `plan` asks for a `summary` and must not pay for numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onecard.data.preparation.pipeline import prepare
    from onecard.data.read.kept import keep_record, kept_record, kept_tokenizer
    from onecard.data.read.layout import Layout, Summary, resolve, scan, summary
    from onecard.data.read.manifest import Manifest, read_manifest
    from onecard.data.read.shard_files import Shard
    from onecard.data.read.shards import Dataset, Split, open_dataset
    from onecard.data.tokenizers.bpe import gpt2
    from onecard.data.tokenizers.kinds import Tokenizer
    from onecard.data.tokenizers.load import load_tokenizer

__all__ = [
    "Dataset",
    "Layout",
    "Manifest",
    "Shard",
    "Split",
    "Summary",
    "Tokenizer",
    "gpt2",
    "keep_record",
    "kept_record",
    "kept_tokenizer",
    "load_tokenizer",
    "open_dataset",
    "prepare",
    "read_manifest",
    "resolve",
    "scan",
    "summary",
]

_HOME = {
    "read.kept": ("keep_record", "kept_record", "kept_tokenizer"),
    "read.layout": ("Layout", "Summary", "resolve", "scan", "summary"),
    "read.manifest": ("Manifest", "read_manifest"),
    "read.shard_files": ("Shard",),
    "read.shards": ("Dataset", "Split", "open_dataset"),
    "preparation.pipeline": ("prepare",),
    "tokenizers.bpe": ("gpt2",),
    "tokenizers.kinds": ("Tokenizer",),
    "tokenizers.load": ("load_tokenizer",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"onecard.data.{module}"), name)
    raise AttributeError(name)
