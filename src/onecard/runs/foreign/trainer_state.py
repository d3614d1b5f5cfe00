"""Hugging Face Trainer's trainer_state.json, streamed: only one entry of its history is in memory at a time.

{"log_history": [{"step": 10, "loss": 5.1, "learning_rate": 0.0006}, {"step": 500, "eval_loss": 4.7}], …}
"""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from onecard.runs.builder import RunBuilder
from onecard.runs.foreign.numbers import json_number
from onecard.runs.run import Run

_CHUNK = 1 << 18
_LONGEST_ENTRY = 1 << 20  # characters


def read_trainer(file: BinaryIO, name: str) -> list[Run]:
    """The run of a trainer_state.json; empty when there is no history in it."""
    builder = RunBuilder(name, "trainer")
    for entry in _entries(file, builder):
        step = entry.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            builder.unreadable(json.dumps(entry)[:120])
            continue
        loss, val_loss = json_number(entry.get("loss")), json_number(entry.get("eval_loss"))
        if val_loss is not None:
            builder.eval(step, val_loss=val_loss)
        if loss is not None:
            builder.step(step, loss=loss)
        runtime = json_number(entry.get("train_runtime"))
        if runtime is not None and runtime > 0:
            builder.set(wall_seconds=runtime)
    return builder.runs()


def _entries(file: BinaryIO, builder: RunBuilder) -> Iterator[dict[str, Any]]:
    """The objects of "log_history", one after the other."""
    text = ""
    while (match := re.search(r'"log_history"\s*:\s*\[', text)) is None:
        chunk = file.read(_CHUNK)
        if not chunk:
            return
        text = text[-64:] + chunk.decode("utf-8", errors="replace")
    text = text[match.end() :]
    decoder = json.JSONDecoder()
    while True:
        text = text.lstrip(" \t\r\n,")
        if text.startswith("]"):
            return
        try:
            entry, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            chunk = file.read(_CHUNK) if len(text) < _LONGEST_ENTRY else b""
            if not chunk:  # torn, or no JSON any more
                builder.unreadable(text)
                return
            text += chunk.decode("utf-8", errors="replace")
            continue
        text = text[end:]
        if isinstance(entry, dict):
            yield entry
        else:
            builder.unreadable(str(entry))
