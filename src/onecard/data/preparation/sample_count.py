"""How many tokens a source will give, before it is tokenised: by what is known of it, or by a sample of its text.

>>> Count(1_000_000, 0.05).surely_below(1_100_000), Count(1_000_000, 0.05).surely_below(1_040_000)
(True, False)
"""

import math
import statistics
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from onecard.data.preparation.options import Options
from onecard.data.preparation.request import reading_of
from onecard.data.sources.documents import batches, units_of
from onecard.data.sources.packed import packed
from onecard.data.sources.source import Source
from onecard.data.sources.unit import Batch, Reading, Unit
from onecard.data.tokenizers.bpe import gpt2
from onecard.data.tokenizers.kinds import BytesTokenizer, Tokenizer
from onecard.untrusted import is_unicode

_SAMPLED_UNITS = 12
_UNIT_BYTES = 256 * 1024  # of text in one sampled place
_KNOWN_MARGIN = 0.3  # named sets: published figures are rounded, and often of another vocabulary
_UNKNOWN_MARGIN = 1.0  # text that cannot be sampled: a vocabulary still to be learned
_COMPRESSED_MARGIN = 3.0  # how far a file unpacks is not known
_LEAST_MARGIN = 0.02  # what a sample of a whole always leaves open
_FEW_MARGIN = 0.3  # fewer than three places tell little of the rest


@dataclass(frozen=True)
class Count:
    """Tokens, and the share by which they may be more or fewer; no margin: counted."""

    tokens: int
    margin: float = 0.0

    def surely_below(self, wanted: int) -> bool:
        return wanted > self.tokens * (1 + self.margin)

    def surely_above(self, wanted: int) -> bool:
        return wanted <= self.tokens / (1 + self.margin)


def count_of(source: Source, number: int, tokenizer: str, rough: int, options: Options) -> Count:
    """The tokens of one source of a mix; `rough` is what its size alone says."""
    if source.repo is not None:
        return Count(rough, _KNOWN_MARGIN if source.bytes_per_token else _UNKNOWN_MARGIN)
    if all(item.kind == "tokens" for item in source.inputs):
        return Count(rough)
    if any(packed(Path(item.path)) for item in source.inputs):
        return Count(rough, _COMPRESSED_MARGIN)
    count = None
    if tokenizer in ("gpt2", "bytes"):
        encoder: Tokenizer = gpt2() if tokenizer == "gpt2" else BytesTokenizer()
        count = _sampled(source, reading_of(options, number, source), encoder)
    return count or Count(rough, _UNKNOWN_MARGIN)


def _sampled(source: Source, reading: Reading, tokenizer: Tokenizer) -> Count | None:
    files = [(place, item, Path(item.path)) for place, item in enumerate(source.inputs)]
    units = [unit for unit in units_of(files, _UNIT_BYTES, 0, reading) if unit.size]
    if not units:
        return None
    last = max(1, _SAMPLED_UNITS - 1)
    places = sorted({round(n * (len(units) - 1) / last) for n in range(_SAMPLED_UNITS)})
    per_byte = [_tokens_per_byte(units[place], reading, tokenizer) for place in places]
    rates = [entry[0] for entry in per_byte if entry is not None]
    if len(rates) < len(places):
        return None
    everything = len(places) == len(units) and all(entry[1] for entry in per_byte if entry)
    # the places have about the same size, so their plain mean will do where not all were read
    tokens = sum(rate * units[place].size for rate, place in zip(rates, places, strict=True)) / sum(
        units[place].size for place in places
    )
    total = round(tokens * sum(unit.size for unit in units))
    if everything or not tokens:
        return Count(total)
    if len(rates) < 3:
        return Count(total, _FEW_MARGIN)
    error = statistics.stdev(rates) / math.sqrt(len(rates)) / tokens
    return Count(total, min(_UNKNOWN_MARGIN, _LEAST_MARGIN + 3 * error))


def _tokens_per_byte(
    unit: Unit, reading: Reading, tokenizer: Tokenizer
) -> tuple[float, bool] | None:
    """Tokens for each byte of text that the unit is expected to hold, and whether all of it was read."""
    two = list(islice(batches(unit, reading), 2))
    if any(batch.ids for batch in two):
        return None  # a column of tokens: its size says nothing of their text
    texts, whole = _beginning(two[0].texts) if two else ([], True)
    whole = whole and len(two) < 2
    sizes = [len(text.encode()) for text in texts]
    tokens = len(texts)  # a separator after each document
    if texts:
        tokens += len(tokenizer.encode_batch(texts)[0])
    if whole:
        return tokens / unit.size, True
    return tokens / max(sum(sizes), 1) * _kept_share(two[0]), False


def _beginning(texts: list[str]) -> tuple[list[str], bool]:
    """As many documents as a sample needs, without those that are no text; whether these are all."""
    chosen: list[str] = []
    size = 0
    for text in texts:
        if size >= _UNIT_BYTES:
            return chosen, False
        size += len(text)
        if is_unicode(text):
            chosen.append(text)
    return chosen, True


def _kept_share(batch: Batch) -> float:
    """Of the documents: those that the conditions leave."""
    return len(batch.texts) / max(len(batch.texts) + sum(batch.skipped.values()), 1)
