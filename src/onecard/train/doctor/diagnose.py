"""All checks in order, and the report file made of them.

>>> [check.check for check in diagnose(torch.device("cpu"), quick=True)]      # doctest: +SKIP
['device', 'driver', 'torch build', …]
"""

import os
import re
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from onecard.train.doctor import compute, system
from onecard.train.doctor.answers import Answers, Check, ask
from onecard.train.doctor.kept import keep, kept_for
from onecard.train.doctor.short_run import ShortRun
from onecard.train.run.trial import first_line
from onecard.version import __version__

REPORT_SCHEMA = "onecard.hardware/1"
Tell = Callable[[str], None]


def diagnose(
    device: torch.device,
    quick: bool = False,
    tell: Tell | None = None,
    answers: Answers | None = None,
    folder: Path | None = None,
    keep_results: bool = True,
) -> list[Check]:
    """Every check; `tell` hears what comes next. A check that fails in itself becomes a row, never an error."""
    found = answers or ask(device)
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
        *([("macOS", system.mac)] if found.kind == "mps" else []),
    ):
        run(name, lambda check=check: check(found))  # type: ignore[misc]
    computes = usable(rows)
    can_compile = run("compiler", lambda: system.compiler(found))
    if computes:
        run("precision", lambda: compute.precision(found))
        run("attention", lambda: compute.attention(found))
        run("step", lambda: compute.step(found, compiled=False))
        run("clocks", lambda: system.clocks(found))  # right after work
        run("data loader", lambda: compute.loader(found))
        if not quick:
            run("memory", lambda: compute.memory(found))
            if can_compile is not None and can_compile.status == "ok":
                run("compiled step", lambda: compute.step(found, compiled=True))
            run("resume", lambda: compute.resume(found))
    run("disk", lambda: system.disk(found, folder or Path.cwd(), (16 if quick else 64) << 20))
    if keep_results and computes:
        before = kept_for(found) if quick else None
        try:
            keep(found, [*rows, *_compile_of(before)])
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


def usable(rows: list[Check]) -> bool:
    """Whether this torch and driver can compute on the device at all."""
    return not any(
        row.check in ("driver", "torch build") and row.status == "action" for row in rows
    )


def report(found: Answers, rows: list[Check], run: ShortRun | None = None) -> dict[str, Any]:
    """One file that can be sent: device, versions, rows and figures, a short run's log beside its plan; nothing that
    names a person, folder or key."""
    import platform

    return {
        "schema": REPORT_SCHEMA,
        "date": datetime.now(UTC).date().isoformat(),
        "onecard": __version__,
        "torch": found.torch_version,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "release": scrubbed(found.release),
        "device": scrubbed(found.name),
        "kind": found.kind,
        "capability": found.capability,
        "gcn_arch": found.gcn_arch,
        "cuda": found.cuda,
        "hip": found.hip,
        "driver": found.driver,
        "memory_bytes": found.memory_bytes,
        "checks": [{**row.to_json(), "detail": scrubbed(row.detail)} for row in rows],
        "config": run.config if run else {},
        "dtype": run.dtype if run else None,
        "plan": run.plan if run else {},
        "log": run.log if run else [],
    }


_PATHS = re.compile(r"([A-Za-z]:)?([\\/][^\s\\/:'\",;()]+){2,}[\\/]?|~[\\/]\S+|\\\\\S+")
_SECRETS = re.compile(
    r"\b(hf_|sk-|ghp_|gho_|github_pat_|AKIA|xox[bp]-|wandb_)[\w-]{6,}|\b[0-9a-fA-F]{32,}\b"
)
_ADDRESSES = re.compile(r"(?<!\S)\S+@\S+|\b\d{1,3}(\.\d{1,3}){3}\b|GPU-[0-9a-f-]{8,}")


def scrubbed(text: str) -> str:
    """Without paths, keys, addresses, this machine's name and its user's.

    >>> scrubbed("cannot write /home/ana/out/log.jsonl with hf_abcdefgh1234")
    'cannot write <path> with <key>'
    """
    text = _SECRETS.sub("<key>", text)
    text = _ADDRESSES.sub("<address>", text)
    text = _PATHS.sub("<path>", text)
    names = (socket.gethostname(), os.environ.get("USER", ""), os.environ.get("USERNAME", ""))
    for name in names:
        if len(name) > 2:
            text = re.sub(rf"\b{re.escape(name)}\b", "<name>", text)
    return text
