"""What a key of RunConfig may be.

>>> choices("recipe")
('gpt2', 'modern')
"""

from typing import Literal, get_args, get_origin

from onecard.config.run import HINTS


def choices(name: str) -> tuple[str, ...]:
    """The words that a key may have, where it is not free."""
    return get_args(HINTS[name]) if get_origin(HINTS[name]) is Literal else ()
