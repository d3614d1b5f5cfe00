"""Where a bad step's rows come from: windows, token positions and document numbers, so that a person can look at them.

>>> name_rows(split, block_size=64, windows=order.windows_at(range(12)), eot=50256)   # doctest: +SKIP
{'windows': [4, 17, …], 'documents': [2, 3, …]}
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onecard.train.io.loader import Tokens

_MOST = 64  # documents named in a log line
_PIECE = 1 << 24  # tokens counted at a time
# tokens: counting documents up to here takes seconds, and a bad step is rare
_FARTHEST = 4_000_000_000


def name_rows(
    split: Tokens, block_size: int, windows: NDArray[np.int64], eot: int | None
) -> dict[str, Any]:
    """The windows (token positions are window · block_size) and the numbers of the documents in them."""
    named: dict[str, Any] = {"windows": windows.tolist(), "block_size": block_size}
    if eot is not None and (windows.max() + 1) * block_size < _FARTHEST:
        documents = documents_of(split, block_size, windows, eot)
        named["documents"] = documents[:_MOST]
        if len(documents) > _MOST:
            named["documents_in_all"] = len(documents)
    return named


def documents_of(split: Tokens, block_size: int, windows: NDArray[np.int64], eot: int) -> list[int]:
    """Numbers, from 0, of the documents that lie in the windows; the end-of-text token ends a document."""
    numbers: set[int] = set()
    at = count = 0
    for window in np.sort(windows).tolist():
        start = window * block_size
        while at < start:
            piece = split.read(at, min(_PIECE, start - at))
            count += int(np.count_nonzero(piece == eot))
            at += len(piece)
        inside = split.read(start, block_size)
        numbers.update(range(count, count + 1 + int(np.count_nonzero(inside[:-1] == eot))))
    return sorted(numbers)
