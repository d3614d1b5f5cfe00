"""The tokeniser a request asks for; one that is learned from the data (chars, bpe) is learned once and kept.

>>> tokenizer_of(plan, Path("data/pages/.work")).vocab_size                           # doctest: +SKIP
8192
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from onecard.data.preparation.request import Plan
from onecard.data.read.manifest import TOKENIZER_FILE
from onecard.data.sources.documents import batches, units_of
from onecard.data.tokenizers.bpe import gpt2, train_bpe
from onecard.data.tokenizers.kinds import BytesTokenizer, CharsTokenizer, Tokenizer
from onecard.data.tokenizers.load import load_tokenizer
from onecard.errors import UserError
from onecard.files import write_bytes
from onecard.untrusted import is_unicode

# Text that a trained vocabulary is learned from: the beginning of the input.
_BPE_SAMPLE_BYTES = 64 * 1024**2


def tokenizer_of(plan: Plan, work: Path) -> Tokenizer:
    """The tokeniser asked for; one that is learned from the data is learned once and kept."""
    kind = plan.tokenizer.partition(":")[0]
    made: Tokenizer
    if kind == "gpt2":
        return gpt2()
    if kind == "bytes":
        return BytesTokenizer()
    if (work / TOKENIZER_FILE).exists():
        return load_tokenizer({"name": kind}, work)
    if kind == "chars":
        seen: set[str] = set()
        count, goal = 0, None if plan.options.dedup else plan.options.tokens
        for text in _texts(plan, work):
            seen.update(text)
            count += len(text) + 1
            if goal is not None and count >= goal:
                break
        if not seen:
            raise nothing_to_take(plan)
        made = CharsTokenizer(sorted(seen), separator=plan.running is None)
    else:
        made = train_bpe(_sample(plan, work), int(plan.tokenizer.partition(":")[2]))
    write_bytes(work / TOKENIZER_FILE, made.file_content() or b"")
    return load_tokenizer({"name": kind}, work)


def _sample(plan: Plan, work: Path) -> Iterator[str]:
    size = 0
    for text in _texts(plan, work):
        yield text
        size += len(text.encode())
        if size >= _BPE_SAMPLE_BYTES:
            return


def _texts(plan: Plan, work: Path) -> Iterator[str]:
    readings = plan.readings
    for place, number, source, item in plan.numbered:
        here = source.fetch(item, work / "fetched")
        for unit in units_of([(place, item, here)], plan.unit_bytes, 0, readings[number]):
            for batch in batches(unit, readings[number]):
                yield from filter(is_unicode, batch.texts)


def nothing_to_take(plan: Plan, skipped: Counter[str] | None = None) -> UserError:
    reasons = ", ".join(f"{count:,} {why}" for why, count in sorted((skipped or Counter()).items()))
    what = ", ".join(source.uri for source in plan.sources)
    return UserError(
        f"{what}: no document to take" + (f" (left out: {reasons})" if reasons else ""),
        hint="the files are empty or filtered away",
    )
