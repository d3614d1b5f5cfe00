"""The run's configuration: nanoGPT's keys, read from its .py files (never executed), TOML, presets and overrides."""

from onecard.config.presets import PRESETS, preset
from onecard.config.read import load, parse_overrides, read_file
from onecard.config.run import GPT2_PADDED_VOCAB, KEYS, ModelShape, RunConfig
from onecard.config.write import to_nanogpt, to_toml

__all__ = [
    "GPT2_PADDED_VOCAB",
    "KEYS",
    "PRESETS",
    "ModelShape",
    "RunConfig",
    "load",
    "parse_overrides",
    "preset",
    "read_file",
    "to_nanogpt",
    "to_toml",
]
