"""Tuning on conversations: formats, the chat template, packing, defaults, and the dialogue with a tuned model."""
