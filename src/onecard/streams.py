"""Standard output and error that may be gone: a closed pipe or terminal, a full disk.

>>> import io
>>> to_stream(io.StringIO(), "nobody reads this, and that is no error")
True
"""

import contextlib
import os
from typing import IO


def to_stream(stream: IO[str] | None, text: str) -> bool:
    """Print a line and flush it; False, and quiet from then on, where the stream takes nothing any more."""
    if stream is None:  # closed by the shell before the program began
        return False
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError):  # ValueError: a file that was closed
        silence(stream)
        return False
    return True


def silence(stream: IO[str] | None) -> None:
    """Let what is still written to a stream that is gone vanish, its buffer too: nothing later fails because of it."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it has no descriptor
        target = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)
