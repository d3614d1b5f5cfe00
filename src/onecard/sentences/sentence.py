"""How a sentence is written down, so that tools/messages.py finds it for the translators."""


def sentence(code: str, text: str) -> tuple[str, str]:
    """`text` with its figures as {name:quantity}; see onecard.messages."""
    return code, text
