"""The keys of RunConfig by what they may be and what they affect.

>>> choices("recipe")
('gpt2', 'modern')
"""

from typing import Literal, get_args, get_origin

from onecard.config.run import HINTS, KEYS, RunConfig


def choices(name: str) -> tuple[str, ...]:
    """The words that a key may have, where it is not free."""
    return get_args(HINTS[name]) if get_origin(HINTS[name]) is Literal else ()


def keys_affecting(*kinds: str) -> tuple[str, ...]:
    """The keys that affect any of these: `keys_affecting("shape")`."""
    return tuple(name for name in KEYS if RunConfig.facts(name).affects & set(kinds))
