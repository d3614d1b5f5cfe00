"""The scripts of bench/ called in this process: starting Python and importing SciPy takes longer than most of their answers."""

import contextlib
import importlib
import io
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


def script(name: str) -> ModuleType:
    """`script("accuracy")` is bench/accuracy.py; its own changes of the path stay its own."""
    before = list(sys.path)
    try:
        return importlib.import_module(f"bench.{name}")
    finally:
        sys.path[:] = before


def bench(name: str, *words: object, code: int = 0) -> str:
    """What the script prints where it ends with this exit code: its answer, or what it complains of."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = script(name).main([str(word) for word in words])
    assert ended == code, err.getvalue()
    return out.getvalue() if code == 0 else err.getvalue()
