"""The model of a config, by its recipe."""

from onecard.config import RunConfig
from onecard.model.gpt2 import GPT
from onecard.model.modern import ModernGPT


def make_model(config: RunConfig) -> GPT:
    """The model of a config's recipe."""
    return ModernGPT(config) if config.recipe == "modern" else GPT(config)
