"""A text log of any size, encoding and line end, as lines; and the reader among the known formats that it belongs to.

>>> import io
>>> [line for line in text_lines(io.BytesIO(b"iter 0: loss 10.9\\r\\nwandb: syncing\\r\\n"))]
['iter 0: loss 10.9', 'wandb: syncing']
"""

import codecs
import re
from collections.abc import Callable, Generator, Iterator
from typing import BinaryIO, Protocol

from onecard.runs.foreign.litgpt import LitGptReader
from onecard.runs.foreign.llamafactory import LlamaFactoryReader
from onecard.runs.foreign.llmc import LlmcReader
from onecard.runs.foreign.megatron import MegatronReader
from onecard.runs.foreign.modded import ModdedReader
from onecard.runs.foreign.nanochat import NanochatReader
from onecard.runs.foreign.nanogpt import NanoGptReader
from onecard.runs.run import Run

_CHUNK = 1 << 20  # bytes read at once; a line longer than that is cut
_LONGEST_LINE = 4096  # characters; a longer one is no measurement
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Reader(Protocol):
    def line(self, text: str) -> bool: ...

    def done(self) -> list[Run]: ...


# by the name that people know the trainer by; a new format is one more line here
READERS: dict[str, Callable[[str], Reader]] = {
    "nanoGPT": NanoGptReader,
    "llm.c": LlmcReader,
    "nanochat": NanochatReader,
    "modded-nanogpt": ModdedReader,
    "litgpt": LitGptReader,
    "LLaMA-Factory": LlamaFactoryReader,
    "Megatron-LM": MegatronReader,
}


def text_lines(file: BinaryIO, progress: Callable[[int], None] | None = None) -> Iterator[str]:
    """Lines without their ends, colours and progress-bar rewrites; what PowerShell's `>` writes (UTF-16) is read too."""
    start = file.read(4)
    encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    rest = decoder.decode(start).removeprefix("﻿")
    while chunk := file.read(_CHUNK):
        if progress is not None:
            progress(len(chunk))
        rest = yield from _whole_lines(rest + decoder.decode(chunk))
    yield from _whole_lines(rest + decoder.decode(b"", final=True) + "\n")


def _whole_lines(text: str) -> Generator[str, None, str]:
    """Give the whole lines; the unfinished rest is the generator's value, cut where it is too long to be a line."""
    *whole, rest = re.split(r"[\r\n]+", text)
    for line in whole:
        if line:
            yield _COLOUR.sub("", line) if "\x1b" in line else line
    return rest[:_CHUNK]


def read_text(
    file: BinaryIO, name: str, progress: Callable[[int], None] | None = None
) -> list[Run]:
    """The runs of a text log; empty when no known format is in it.

    All readers get every line until one of them finds a measurement; from then on only that one does, so that no stray
    line of another format is mixed in.
    """
    readers = [reader(name) for reader in READERS.values()]
    for line in text_lines(file, progress):
        if len(line) > _LONGEST_LINE:
            line = line[:200] + "…"
        for reader in readers:
            if reader.line(line.rstrip()) and len(readers) > 1:
                readers = [reader]
                break
    return readers[0].done() if len(readers) == 1 else []
