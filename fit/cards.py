"""The card that a row of a table names, in the many ways that people write it.

>>> assumed = []
>>> counted("8x H100 (rented)"), find_card("Colab T4", None, assumed).name, assumed
(('8', 'H100'), 'T4', ['Colab T4 taken for T4'])
"""

import re
from contextlib import suppress

from onecard.errors import UserError
from onecard.facts.gpus import Device, find_gpu

# A name that several boards carry, where the row does not say which: the one people rent most.
USUAL = {
    "A100": "A100 SXM 40GB",
    "A100 40GB": "A100 SXM 40GB",
    "A100 80GB": "A100 SXM 80GB",
    "H100": "H100 SXM",
    "V100": "V100 SXM2 16GB",
    "V100 32GB": "V100 SXM2 32GB",
    "V100 16GB": "V100 SXM2 16GB",
    "RTX PRO 6000 Blackwell": "RTX PRO 6000 Blackwell WS",
    "H200": "H200 SXM",
    "RTX 3080": "RTX 3080 10GB",
    "RTX 3060": "RTX 3060 12GB",
    "P100": "P100 PCIe 16GB",
    "RTX 4060 Ti": "RTX 4060 Ti 16GB",
    "GH200": "GH200 96GB",
    "RTX 5060 Ti": "RTX 5060 Ti 16GB",
}


def counted(name: str) -> tuple[str, str]:
    """How many cards, where the name says so, and which: "8x H100 (rented)" is 8 and H100."""
    found = re.fullmatch(
        r"(?:(\d{1,4}) ?[x×*] ?)?(.*?)(?: ?\((?!\d+ ?gb)[^)]*\))?", name.strip(), re.IGNORECASE
    )
    return (found[1] or "", found[2]) if found else ("", name)


def find_card(name: str, gib: float | None, assumed: list[str]) -> Device:
    """The row's card; where its name stands among other words ("Colab T4"), the longest that is one, and that is noted."""
    if not name:
        raise UserError("no card given")
    try:
        return _named(name, gib, assumed)
    except UserError:
        words = name.split()
        for length in range(len(words) - 1, 0, -1):
            for start in range(len(words) - length + 1):
                part = " ".join(words[start : start + length])
                if re.search(r"[a-z]", part, re.IGNORECASE) and re.search(r"\d", part):
                    with suppress(UserError):
                        found = _named(part, gib, assumed)
                        assumed.append(f"{name} taken for {found.name}")
                        return found
        raise


def _named(name: str, gib: float | None, assumed: list[str]) -> Device:
    """Where only the family of boards is named, the usual one, and that is noted."""
    name = re.sub(r" ?\((\d+) ?gb\)", r" \1GB", name, flags=re.IGNORECASE)
    if name in USUAL:
        found = find_gpu(USUAL[name] if not (name == "A100" and gib == 80) else "A100 SXM 80GB")
        assumed.append(f"{name} taken for {found.name}")
        return found
    try:
        return find_gpu(name, gib)
    except UserError as error:
        options = re.findall(r"can mean (.*)", error.message)
        if options:
            first = re.split(r", | or ", options[0])[0]
            assumed.append(f"{name} taken for {first}")
            return find_gpu(first)
        if gib is not None:  # a card named right with a memory nobody sells: the name counts
            return _named(name, None, assumed)
        raise
