"""What a person may show to others: the report file, and a text to paste into an issue. Nothing private is in either."""

import os
import platform
import re
import socket
from datetime import UTC, datetime
from typing import Any

from onecard.train.doctor.answers import Answers, Check
from onecard.train.doctor.short_run import ShortRun
from onecard.version import __version__

REPORT_SCHEMA = "onecard.hardware/1"


def report(answers: Answers, rows: list[Check], run: ShortRun | None = None) -> dict[str, Any]:
    """One file that can be sent: device, versions, rows and figures, a short run's log beside its plan; nothing that
    names a person, folder or key."""
    return {
        "schema": REPORT_SCHEMA,
        "date": datetime.now(UTC).date().isoformat(),
        "onecard": __version__,
        "torch": answers.torch_version,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "release": scrubbed(answers.release),
        "device": scrubbed(answers.name),
        "kind": answers.kind,
        "capability": answers.capability,
        "gcn_arch": answers.gcn_arch,
        "cuda": answers.cuda,
        "hip": answers.hip,
        "driver": answers.driver,
        "memory_bytes": answers.memory_bytes,
        "checks": [{**row.to_json(), "detail": scrubbed(row.detail)} for row in rows],
        "config": run.config if run else {},
        "dtype": run.dtype if run else None,
        "plan": run.plan if run else {},
        "log": run.log if run else [],
    }


def paste(answers: Answers, rows: list[Check]) -> str:
    """The rows in Markdown under the versions they belong to."""
    made_for = (
        f"CUDA {answers.cuda}" if answers.cuda else f"ROCm {answers.hip}" if answers.hip else "CPU"
    )
    driver = f", driver {answers.driver}" if answers.driver else ""
    system = f"{platform.system()} {scrubbed(answers.release)} {platform.machine()}".replace(
        "  ", " "
    )
    lines = [
        f"onecard {__version__}, torch {answers.torch_version} ({made_for}), Python "
        f"{platform.python_version()}, {system}{driver}",
        "",
        "| check | status | detail |",
        "|---|---|---|",
    ]
    for row in rows:
        detail = scrubbed(row.detail).replace("|", "/").replace("\n", " ")
        lines.append(f"| {row.check} | {row.status} | {detail} |")
    return "\n".join(lines)


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
