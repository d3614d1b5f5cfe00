"""A file that is cut short while it is mapped into memory: the system sends SIGBUS, which would end the process without a
word. Here it ends with a sentence that names the file. (Nothing can be raised: the faulting instruction cannot go on.)

>>> with report_if_cut_short(Path("ckpt.pt")):         # doctest: +SKIP
...     tensors = torch.load("ckpt.pt", mmap=True)
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onecard.untrusted import printable


@contextmanager
def report_if_cut_short(path: Path) -> Iterator[None]:
    """Around whatever reads from a mapping of the file. Exit code 1, as for other data that cannot be read."""
    if not hasattr(signal, "SIGBUS"):  # Windows does not let a mapped file be cut
        yield
        return
    import ctypes

    text = f"onecard: {path} was cut short while it was read\n  hint: get or write it again\n"

    def tell(number: int) -> None:
        os.write(2, printable(text, keep="\n").encode(errors="replace"))
        os._exit(1)

    # Python's own signal handlers only set a flag and go back to the instruction that failed, for ever
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(tell)
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    before = set_handler(signal.SIGBUS, ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        set_handler(signal.SIGBUS, before)
