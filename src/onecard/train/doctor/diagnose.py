"""All checks in order.

>>> [check.check for check in diagnose(torch.device("cpu"), quick=True)]      # doctest: +SKIP
['device', 'driver', 'torch build', …]
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from onecard.errors import first_line
from onecard.train.doctor import compute, system
from onecard.train.doctor.answers import Answers, Check, ask
from onecard.train.doctor.kept import keep, kept_for

Tell = Callable[[str], None]
# Seconds that a check may take, for the bar alone; the others are done at once.
_SECONDS = {"step": 2.0, "memory": 2.0, "compiled step": 40.0, "resume": 8.0, "disk": 1.0}
_ALWAYS = ("step", "disk")


def expected_seconds(quick: bool) -> dict[str, float]:
    """By check, roughly, in the order they are done."""
    return {name: each for name, each in _SECONDS.items() if not quick or name in _ALWAYS}


def diagnose(
    device: torch.device,
    quick: bool = False,
    tell: Tell | None = None,
    answers: Answers | None = None,
    folder: Path | None = None,
) -> list[Check]:
    """Every check; `tell` hears what comes next. A check that fails in itself becomes a row, never an error."""
    asked = answers or ask(device)
    tell = tell or (lambda what: None)
    rows: list[Check] = []

    def run(name: str, check: Callable[[], Check | None]) -> Check | None:
        tell(name)
        try:
            row = check()
        except Exception as error:  # a driver fails in as many ways as there are machines
            row = Check(name, "action", f"the check failed: {first_line(error)}")
        if row is not None:
            rows.append(row)
        return row

    for name, check in (
        ("device", system.device),
        ("driver", system.driver),
        ("torch build", system.build),
        ("memory paging", system.paging),
        ("power", system.power),
        *([("macOS", system.mac)] if asked.kind == "mps" else []),
    ):
        run(name, lambda check=check: check(asked))  # type: ignore[misc]
    computes = usable(asked, rows)
    can_compile = run("compiler", lambda: system.compiler(asked))
    if computes:
        run("precision", lambda: compute.precision(asked))
        run("attention", lambda: compute.attention(asked))
        run("step", lambda: compute.step(asked, compiled=False))
        run("clocks", lambda: system.clocks(asked))  # right after work
        run("data loader", lambda: compute.loader(asked))
        if not quick:
            run("memory", lambda: compute.memory(asked))
            if can_compile is not None and can_compile.status == "ok":
                run("compiled step", lambda: compute.step(asked, compiled=True))
            run("resume", lambda: compute.resume(asked))
    run("disk", lambda: system.disk(asked, folder or Path.cwd(), (16 if quick else 64) << 20))
    if computes:
        before = kept_for(asked) if quick else None
        try:
            keep(asked, [*rows, *_compile_of(before)])
        except OSError as error:
            rows.append(Check("kept", "fall-back", f"not kept for `train`: {error.strerror}"))
    return rows


def _compile_of(before: Any) -> list[Check]:
    """The quick form does not compile: what the full one found of that still holds."""
    if before is None or "compile" not in before.settings:
        return []
    return [
        Check(
            "compiled step", "fall-back", before.reasons["compile"], settings=(("compile", False),)
        )
    ]


def usable(answers: Answers, rows: list[Check]) -> bool:
    """Whether this torch and driver can compute on the device at all; a CPU always can."""
    return answers.kind == "cpu" or not any(
        row.check in ("driver", "torch build") and row.status == "action" for row in rows
    )
