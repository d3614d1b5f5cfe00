"""onecard: plan a GPT training run before you start it, run it on the card you have, and learn from it."""

__version__ = "0.1.0"
