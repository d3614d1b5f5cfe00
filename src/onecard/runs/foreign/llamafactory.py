"""LLaMA-Factory's trainer_log.jsonl: one JSON object a line, steps and evaluations.

{"current_steps": 10, "total_steps": 375, "loss": 2.203, "lr": 2.6e-05, "epoch": 0.08, "elapsed_time": "0:09:01"}
{"current_steps": 375, "total_steps": 375, "eval_loss": 1.2, "epoch": 3.0, "elapsed_time": "1 day, 4:06:56"}
"""

import json
import re
from typing import Any

from onecard.runs.foreign import OneRunReader
from onecard.runs.foreign.numbers import json_number

_MEASURES = re.compile(r'\{"current_steps": \d{1,12}, "total_steps": ')
_ELAPSED = re.compile(r"(?:(\d{1,5}) days?, )?(\d{1,6}):(\d\d):(\d\d)")  # Python's timedelta


class LlamaFactoryReader(OneRunReader):
    form = "llama-factory"

    def line(self, text: str) -> bool:
        if not _MEASURES.match(text):
            return False
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            self._builder.unreadable(text)
            return False
        return self._take(fields)

    def _take(self, fields: dict[str, Any]) -> bool:
        builder, step = self._builder, fields["current_steps"]
        loss, val_loss = json_number(fields.get("loss")), json_number(fields.get("eval_loss"))
        if val_loss is not None:
            builder.eval(step, val_loss=val_loss)
        if loss is not None:
            builder.step(step, loss=loss, elapsed=_seconds(fields.get("elapsed_time")))
            tokens = fields.get("total_tokens")  # of all steps; not whole where rows were padded
            if isinstance(tokens, int) and step > 0 and tokens % step == 0:
                builder.tokens_per_step(tokens // step, "inferred")
        total = fields["total_steps"]
        if isinstance(total, int) and 0 < total < 10**12:
            builder.set(max_steps=total)
        return loss is not None or val_loss is not None


def _seconds(text: object) -> float | None:
    """
    >>> _seconds("0:09:01"), _seconds("1 day, 4:06:56"), _seconds("soon")
    (541.0, 101216.0, None)
    """
    match = _ELAPSED.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
