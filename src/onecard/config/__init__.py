"""The run's configuration: nanoGPT's keys, read from its .py files (never executed), TOML, presets and overrides."""

from onecard.config.key_lists import choices
from onecard.config.model_rules import GPT2_PADDED_VOCAB, ModelShape
from onecard.config.presets import PRESETS, preset
from onecard.config.read import load, parse_overrides, read_file
from onecard.config.run import KEYS, STATE_BITS, RunConfig
from onecard.config.write import to_nanogpt, to_toml

__all__ = [
    "GPT2_PADDED_VOCAB",
    "KEYS",
    "PRESETS",
    "STATE_BITS",
    "ModelShape",
    "RunConfig",
    "choices",
    "load",
    "parse_overrides",
    "preset",
    "read_file",
    "to_nanogpt",
    "to_toml",
]
