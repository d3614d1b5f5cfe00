"""Shares of several sources: `NAME=60%` parsed, tokens allotted, items drawn. No numpy: tune and plan may use it too.

>>> [(item.word, item.share) for item in parse_shares(["web=60%", "code=30%", "notes/"])]
[('web', 0.6), ('code', 0.3), ('notes/', 0.1)]
>>> draw([[10] * 60, [10] * 40], allot(["web", "notes"], [0.75, 0.25], [600, 400])).epochs
(1.0, 0.5)
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onecard.errors import UserError
from onecard.units import show_count

# What to do when a source has too little for its share; None: say so and stop.
TooSmall = Literal["repeat", "largest"] | None

_ROUNDING = 0.005  # 33.3 + 33.3 + 33.3 is meant as everything
_EXAMPLE = "write them like fineweb-edu=60% cosmopedia=30% my_notes/=10%"


@dataclass(frozen=True)
class SharedSource:
    """A source as it was written, and its share of the tokens: above 0 and at most 1."""

    word: str
    share: float


def parse_shares(words: Sequence[str]) -> list[SharedSource] | None:
    """The sources of a mix; None where no word has a share. One word may do without: it takes the rest."""
    pairs = [split_share(word) for word in words]
    given = [share for _, share in pairs if share is not None]
    if not given:
        return None
    return [
        SharedSource(word, share)
        for (word, _), share in zip(pairs, checked_shares(pairs), strict=True)
    ]


def split_share(word: str) -> tuple[str, float | None]:
    """`NAME=60%` as its name and 0.6; a word without a share, or the name of a file that is there, as it is.

    >>> split_share("fineweb-edu=12.5%"), split_share("shakespeare=text.txt")
    (('fineweb-edu', 0.125), ('shakespeare=text.txt', None))
    """
    name, equals, share = word.rpartition("=")
    if not equals or not share.rstrip().endswith("%") or Path(word).exists():
        return word, None
    if not name:
        raise UserError(f"{word!r} names no source", hint=_EXAMPLE)
    return name, parse_percent(share, name)


def parse_percent(text: str, what: str = "the share") -> float:
    """A share from "60%": 0.6. It must be above zero and at most 100 %."""
    match = re.fullmatch(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*%\s*", text)
    if match is None:
        raise UserError(f"{what}: {text!r} is not a share", hint="write it like 60% or 12.5%")
    return _checked_share(float(match[1]) / 100, what)


def checked_shares(pairs: Sequence[tuple[str, float | None]]) -> list[float]:
    """Shares that add up to 1, the one that is missing filled in; anything else is one clear sentence."""
    open_places = [place for place, (_, share) in enumerate(pairs) if share is None]
    names = [name for name, _ in pairs]
    for name, share in pairs:
        if share is not None:
            _checked_share(share, name)
        if names.count(name) > 1:
            raise UserError(f"{name} is named twice in the mix", hint="give it one share")
    if len(open_places) > 1:
        without = " and ".join(names[place] for place in open_places)
        raise UserError(f"{without} have no share", hint=f"{_EXAMPLE}; one may do without")
    total = math.fsum(share for _, share in pairs if share is not None)
    if open_places:
        rest = round(1 - total, 9)
        if rest <= 0:
            raise UserError(
                f"the shares add up to {_percent(total)}: nothing is left for {names[open_places[0]]}",
                hint=_EXAMPLE,
            )
        return [rest if share is None else share for _, share in pairs]
    if abs(total - 1) > _ROUNDING:
        scaled = " ".join(f"{name}={_percent((share or 0) / total)}" for name, share in pairs)
        raise UserError(
            f"the shares add up to {_percent(total)}, not 100%",
            hint=f"in the same proportions: {scaled}",
        )
    return [(share or 0) / total for _, share in pairs]


def _checked_share(share: float, name: str) -> float:
    if not math.isfinite(share) or share <= 0:
        raise UserError(
            f"{name} has a share of {_percent(share)}", hint="a share is above zero, as in 10%"
        )
    if share > 1:
        raise UserError(
            f"{name} has a share of {_percent(share)}", hint="a share is at most 100%, as in 10%"
        )
    return share


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%" if math.isfinite(share) else f"{share}%"


@dataclass(frozen=True)
class Shortage:
    """A source that has too little for its share of the tokens asked for."""

    name: str
    wanted: int
    available: int
    largest: int  # the mix in which no source is repeated

    @property
    def times(self) -> float:
        return self.wanted / max(self.available, 1)


def shortages(
    names: Sequence[str], shares: Sequence[float], available: Sequence[int], total: int
) -> list[Shortage]:
    """The sources that would have to be repeated for a mix of `total` tokens, the scarcest first."""
    largest = largest_mix(shares, available)
    short = [
        Shortage(name, round(share * total), have, largest)
        for name, share, have in zip(names, shares, available, strict=True)
        if round(share * total) > have
    ]
    return sorted(short, key=lambda item: -item.times)


def largest_mix(shares: Sequence[float], available: Sequence[int]) -> int:
    """The tokens of the largest mix with these shares in which nothing is repeated."""
    return min(int(have / share) for share, have in zip(shares, available, strict=True))


def allot(
    names: Sequence[str],
    shares: Sequence[float],
    available: Sequence[int],
    total: int | None = None,
    too_small: TooSmall = None,
    about: str = "",
) -> list[int]:
    """How many tokens each source gives to a mix of `total` (None: the largest without repetition).

    A source that has too little is repeated or limits the whole mix, as chosen; with no choice made, one sentence
    says which it is, how often it would be repeated, and how large the mix can be without. `about` goes before
    figures that are estimates.
    """
    for name, have in zip(names, available, strict=True):
        if have <= 0:
            raise UserError(f"{name} has nothing to give to the mix", hint="leave it out")
    largest = largest_mix(shares, available)
    if total is None:
        total = largest
    short = shortages(names, shares, available, total)
    if short and too_small == "largest":
        total = min(total, largest)
    elif short and too_small is None:
        raise _too_small(short, shares[names.index(short[0].name)], total, about)
    return [round(share * total) for share in shares]


def _too_small(short: list[Shortage], share: float, total: int, about: str) -> UserError:
    first = short[0]
    others = ", ".join(f"{item.name} ({item.times:.1f} times)" for item in short[1:])
    also = f"; also too small: {others}" if others else ""
    return UserError(
        f"{first.name} is too small: {_percent(share)} of {show_count(total)} tokens is "
        f"{show_count(first.wanted)}, it has {about}{show_count(first.available)} "
        f"and would be repeated {first.times:.1f} times{also}",
        hint=f"repeat with the option `repeat`, or take the largest mix without repetition "
        f"({about}{show_count(first.largest)} tokens) with the option `largest`",
    )


@dataclass(frozen=True)
class Draw:
    """Which items were drawn, (source, item) each, shuffled; how often each source was used."""

    picks: tuple[tuple[int, int], ...]
    tokens: tuple[int, ...]  # of each source, as drawn
    epochs: tuple[float, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        whole = sum(self.tokens) or 1
        return tuple(count / whole for count in self.tokens)


def draw(sizes: Sequence[Sequence[int]], quotas: Sequence[int], seed: int = 1337) -> Draw:
    """Items of several sources (documents, conversations; `sizes` in tokens) until each has given its quota.

    Each source is read in order, again from its beginning where the quota needs it, and stops at the item
    that brings it nearest to its quota. The order of the whole is a shuffle by seed, source, item and repetition:
    a function of nothing else.
    """
    picks: list[tuple[str, int, int]] = []
    tokens, epochs = [], []
    for source, (items, quota) in enumerate(zip(sizes, quotas, strict=True)):
        whole, given, place = sum(items), 0, 0
        while whole and given < quota:
            size = items[place % len(items)]
            if given and given + size - quota > quota - given:
                break  # nearer without it
            key = hashlib.sha256(f"{seed} {source} {place}".encode()).hexdigest()
            picks.append((key, source, place % len(items)))
            given, place = given + size, place + 1
        tokens.append(given)
        epochs.append(given / whole if whole else 0.0)
    ordered = tuple((source, item) for _, source, item in sorted(picks))
    return Draw(ordered, tuple(tokens), tuple(epochs))
