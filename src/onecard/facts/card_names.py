"""A card's name as people write it, brought to the form that all spellings of it share."""

import re
from functools import cache

_LEFT_OUT = r"nvidia|geforce|amd|radeon|intel|apple|tesla|instinct|graphics|gpu|generation|corporation|edition|\(r\)|\(tm\)"
_MEMORY = re.compile(r"(?<![a-z0-9])(\d{1,3}) ?gi?b?(?![a-z0-9])", re.IGNORECASE)


def short_name(name: str) -> str:
    """What a sentence calls it after "the": without the cores of a processor.

    >>> short_name("CPU, 2 cores"), short_name("RTX 4070")
    ('CPU', 'RTX 4070')
    """
    return "CPU" if name.startswith("CPU, ") else name


def without_memory(name: str) -> str:
    return _MEMORY.sub(" ", name)


@cache
def name_key(name: str) -> tuple[str, float | None]:
    """A name without what people leave out, and its memory: the words that makers and shops add are dropped.

    >>> name_key("NVIDIA GeForce RTX 4090 24GB")
    ('4090', 24.0)
    """
    bare = name.lower()
    memory = _MEMORY.search(bare)
    if memory:
        bare = bare.replace(memory[0], " ")
    words = (
        re.sub(r"[^a-z0-9]", "", re.sub(_LEFT_OUT, " ", bare))
        or re.sub(r"[^a-z0-9]", "", bare)
        or bare.strip()
    )
    return re.sub(r"^(rtx|gtx|rx)(?=a?\d)", "", words), float(memory[1]) if memory else None
