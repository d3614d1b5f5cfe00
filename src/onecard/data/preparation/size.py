"""What a preparation will take, before it starts: tokens, download, disk, time; and whether the disk has room.

>>> Size(3_700_000_000, 10_700_000_000, work_bytes=7_900_000_000, out_bytes=7_400_000_000, seconds=220).disk_bytes
15300000000
"""

import math
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from onecard.data.preparation.options import Options
from onecard.data.preparation.parts import ROW
from onecard.data.preparation.sample_count import Count, count_of
from onecard.data.shares import allot, largest_mix, shortages
from onecard.data.sources.local_files import running_text
from onecard.data.sources.source import Source
from onecard.errors import UserError
from onecard.units import show_bytes

# Text bytes per token where the source does not give it: GPT-2 on English web text 4.5 (FineWeb), Python source 2.14 (stdlib).
_BYTES_PER_TOKEN = {"gpt2": 4.5, "bytes": 1.0, "chars": 1.0}
_MB_PER_SECOND = 60e6  # per core, text to shards: 90 to 110 MB/s measured, some of it lost to disks and other work
_DOWNLOAD_PER_SECOND = 50e6  # a 400 Mbit/s line; the real rate shows in the progress bar
_DOCUMENT_BYTES = 3000  # a web page's text, about: for the size of the work files' index
_START_SECONDS = 2.0  # a worker loads its libraries and the vocabulary
_SPARE = 64 * 1024 * 1024


@dataclass(frozen=True)
class Size:
    tokens: int
    download_bytes: int
    work_bytes: int  # part files, removed at the end
    out_bytes: int
    seconds: float
    text_bytes: int = 0
    repeats: tuple[tuple[str, float], ...] = ()  # sources that a mix goes through more than once
    uncertain: tuple[
        tuple[str, float, float], ...
    ] = ()  # (source, its share over what it has, margin)
    indivisible: bool = False  # one running text, of which no number of tokens can be asked for

    @property
    def disk_bytes(self) -> int:
        """At the most, beside the download."""
        return self.work_bytes + self.out_bytes


def estimate(
    sources: list[Source], tokenizer: str, tokens: int | None, workers: int, options: Options
) -> Size:
    """The figures shown beforehand; a few per cent off for web text, more for other text."""
    if options.mix:
        return _estimated_mix(sources, tokenizer, tokens, workers, options)
    size = _estimate(sources, tokenizer, tokens, workers)
    return replace(size, indivisible=running_text(sources) is not None)


def _estimated_mix(
    sources: list[Source], tokenizer: str, tokens: int | None, workers: int, options: Options
) -> Size:
    """A mix, source by source; one that is too small for its share is named before anything is done."""
    shares = [own.share for own in options.mix]
    names = [own.word for own in options.mix]
    rough = [max(_estimate([source], tokenizer, None, workers).tokens, 1) for source in sources]
    wanted = [round(share * (tokens or largest_mix(shares, rough))) for share in shares]
    counts = [
        count_of(source, number, tokenizer, rough[number], options)
        if tokens is not None
        else Count(rough[number])
        for number, source in enumerate(sources)
    ]
    have = [max(count.tokens, 1) for count in counts]
    total = min(largest_mix(shares, have), tokens or largest_mix(shares, have))
    policy = options.too_small
    short = [] if tokens is None else shortages(names, shares, have, tokens)
    surely = any(count.surely_below(goal) for count, goal in zip(counts, wanted, strict=True))
    if tokens is not None and policy is None and surely:
        allot(names, shares, have, tokens, None, about="about ")
    if tokens is not None and policy != "largest":
        total = tokens  # for one near the limit the exact count decides
    parts = [
        _estimate([source], tokenizer, max(round(share * total), 1), workers)
        for source, share in zip(sources, shares, strict=True)
    ]
    return Size(
        total,
        sum(size.download_bytes for size in parts),
        sum(size.work_bytes for size in parts),
        2 * total,
        sum(size.seconds for size in parts) - (len(parts) - 1) * _START_SECONDS,
        sum(size.text_bytes for size in parts),
        tuple((item.name, round(item.times, 1)) for item in short) if policy == "repeat" else (),
        _uncertain(names, counts, wanted) if tokens is not None and policy is None else (),
    )


def _uncertain(
    names: list[str], counts: list[Count], wanted: list[int]
) -> tuple[tuple[str, float, float], ...]:
    """Sources whose estimate does not say whether they are large enough."""
    return tuple(
        (name, round(goal / max(count.tokens, 1), 2), round(count.margin, 2))
        for name, count, goal in zip(names, counts, wanted, strict=True)
        if not count.surely_below(goal) and not count.surely_above(goal)
    )


def _estimate(sources: list[Source], tokenizer: str, tokens: int | None, workers: int) -> Size:
    text = download = 0.0
    estimate = 0.0
    for source in sources:
        per_token = bytes_per_token(tokenizer)
        if tokenizer == "gpt2":
            per_token = source.bytes_per_token or (2.14 if source.uri == "stdlib" else per_token)
        for item in source.inputs:
            if tokens is not None and estimate >= tokens:
                break
            if source.pretokenized:
                estimate += max(item.size - 1024, 0) / 2 if "_val_" not in item.path else 0
            else:
                estimate += item.text_bytes / per_token
                text += item.text_bytes
            download += (
                item.size if source.repo is not None and not cached(source, item.path) else 0
            )
    share = min(1.0, tokens / estimate) if tokens is not None and estimate else 1.0
    count, text = int(estimate * share), text * share
    pretokenized = all(source.pretokenized for source in sources)
    work = 0 if pretokenized else 2 * count + ROW.itemsize * int(text) // _DOCUMENT_BYTES
    seconds = (
        _START_SECONDS
        + text / (_MB_PER_SECOND * workers)
        + download / _DOWNLOAD_PER_SECOND
        + 2 * count / 500e6
    )
    return Size(count, int(download), work, 2 * count, seconds, int(text))


def cached(source: Source, path: str) -> bool:
    """Whether the hub's cache already has the file."""
    from huggingface_hub import try_to_load_from_cache

    place = try_to_load_from_cache(
        str(source.repo), path, revision=source.revision, repo_type="dataset"
    )
    return isinstance(place, str)


def check_disk(size: Size, out: Path, already: int) -> None:
    """Refuse now what would fail after hours; `already` bytes of it are on the disk."""
    need = max(0, size.disk_bytes - already) + _SPARE
    free = shutil.disk_usage(_existing(out)).free
    cache = None
    if size.download_bytes:
        from huggingface_hub import constants

        cache = _existing(Path(constants.HF_HUB_CACHE))
        if os.stat(cache).st_dev == os.stat(_existing(out)).st_dev:
            need += size.download_bytes
        elif shutil.disk_usage(cache).free < size.download_bytes + _SPARE:
            room = show_bytes(shutil.disk_usage(cache).free)
            raise UserError(
                f"the download needs {show_bytes(size.download_bytes)}, {cache} has {room} free",
                hint="set HF_HOME to a larger disk, or choose fewer with the option `tokens`",
            )
    if free < need:
        raise UserError(
            f"this needs {show_bytes(need)} of disk, {_existing(out)} has {show_bytes(free)} free",
            hint="free some space, choose another folder with the option `out`, or fewer with the option `tokens`",
        )


def _existing(path: Path) -> Path:
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path


def bytes_under(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def bytes_per_token(tokenizer: str) -> float:
    """Of English prose and Python source with a BPE of their own: 2.55 and 2.8 with 1,024 entries, 4.0 and 4.1 with 8,192.

    >>> bytes_per_token("bpe:1024"), round(bytes_per_token("bpe:8192"), 2)
    (2.65, 4.09)
    """
    kind, _, entries = tokenizer.partition(":")
    if kind != "bpe":
        return _BYTES_PER_TOKEN[kind]
    return max(1.0, min(4.5, 2.65 + 0.48 * math.log2(int(entries) / 1024)))
