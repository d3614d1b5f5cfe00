"""Standard output and error that may be gone: a closed pipe or terminal, a full disk.

>>> import io
>>> to_stream(io.StringIO(), "nobody reads this, and that is no error")
True
"""

import contextlib
import os
import sys
from typing import IO


def to_stream(stream: IO[str] | None, text: str) -> bool:
    """Print a line and flush it; False, and quiet from then on, where the stream takes nothing any more."""
    if stream is None:  # closed by the shell before the program began
        return False
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError) as error:  # ValueError: a file that was closed
        give_up(stream, error)
        return False
    return True


def give_up(stream: IO[str], error: Exception) -> None:
    """Write no more to a stream that failed; that standard output is gone is reported on standard error."""
    silence(stream)
    if stream is not sys.stderr:
        reason = getattr(error, "strerror", None) or error
        to_stream(
            sys.stderr,
            f"the output cannot be written ({reason}); the run continues, log.jsonl has everything",
        )


def silence(stream: IO[str] | None) -> None:
    """Let what is still written to a stream that is gone vanish, its buffer too: nothing later fails because of it."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it has no descriptor
        target = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)
