"""Text that an old terminal's encoding can carry: the rest is written in ASCII.

>>> plain("2.55 × 10¹⁸ FLOPs – 6·N·D", "ascii")
'2.55 x 10^18 FLOPs - 6*N*D'
>>> plain("época", "latin-1"), plain("época", "ascii")
('época', 'epoca')
"""

import re
import unicodedata

_RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_ASCII = {
    "×": "x",
    "÷": "/",
    "·": "*",
    "–": "-",
    "—": "-",
    "−": "-",
    "…": "...",
    "≈": "~",
    "≤": "<=",
    "≥": ">=",
    "→": "->",
    "•": "*",
    "✓": "+",
    "✗": "x",
    "▸": ">",
    "█": "#",
    "₁": "1",
    "₂": "2",
    "α": "alpha",
    "β": "beta",
    "€": "EUR ",
    "£": "GBP ",
    "₹": "INR ",
    "’": "'",
    "“": '"',
    "”": '"',
    "¿": "",
    "¡": "",
    "\u00a0": " ",
    "\u202f": " ",
}


def plain(text: str, encoding: str) -> str:
    """`text` as it is where `encoding` has all of it, else with the rest written in ASCII."""
    if _carries(text, encoding):
        return text
    text = re.sub("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda match: "^" + match[0].translate(_RAISED), text)
    return "".join(char if _carries(char, encoding) else _spelled(char) for char in text)


def _carries(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.isascii()
    return True


def _spelled(char: str) -> str:
    if char in _ASCII:
        return _ASCII[char]
    return unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode() or "?"
