"""Megatron-LM on a terminal, and the many trainers that were made from it.

     iteration     7000/  159576 | consumed samples:       260912 | elapsed time per iteration (ms): 18706.1 | … | lm loss: 6.444662E+00 | …
     validation loss at iteration 7000 | lm loss value: 7.174200E+00 | lm loss PPL: 1.305315E+03 |

Some write a rank or the time before it. A loss that is NaN is not printed, only counted. The model's shape is not taken
from the arguments printed at the start: it need not be a GPT-2.
"""

import re

from onecard.runs.foreign import OneRunReader
from onecard.runs.foreign.numbers import NUMBER, whole

_STEP = re.compile(r"(?:\[[^\]]{1,40}\]:? *){0,2} *iteration +(\d+)/ *(\d+) \|")
_FIELD = re.compile(rf" *([a-z][a-z ()]{{0,40}}): *({NUMBER})(?:/{NUMBER})? ", re.I)
_VAL = re.compile(
    rf" *validation loss at iteration (\d+)(?: on validation set)? \| *lm loss value: ({NUMBER}) \|",
    re.I,
)
_CONTEXT = re.compile(r" *seq_length \.+ (\d+)$")


class MegatronReader(OneRunReader):
    form = "megatron"
    _context = 0

    def line(self, text: str) -> bool:
        builder = self._builder
        if match := _STEP.match(text):
            fields = {
                field[1]: field[2]
                for part in text[match.end() :].split("|")[:-1]  # behind the last bar it is torn
                if (field := _FIELD.fullmatch(part))
            }
            return self._take(whole(match[1]), whole(match[2]), fields)
        if match := _VAL.match(text):
            builder.eval(whole(match[1]), val_loss=float(match[2]))
            return True
        if match := _CONTEXT.match(text):
            self._context = whole(match[1])
        return False

    def _take(self, step: int, steps: int, fields: dict[str, str]) -> bool:
        builder = self._builder
        milliseconds = fields.get("elapsed time per iteration (ms)")
        loss = fields.get("lm loss", fields.get("loss"))
        if loss is None and whole(fields.get("number of nan iterations", "0")) > 0:
            loss = "nan"
        if milliseconds is None:
            if not builder.empty:
                builder.unreadable(f"iteration {step}")
            return False
        builder.set(max_steps=steps or None)
        builder.step(step, loss=float(loss) if loss else None, seconds=float(milliseconds) / 1000)
        batch, consumed = fields.get("global batch size"), fields.get("consumed samples")
        if batch and consumed and whole(batch) * step == whole(consumed):  # the same in every step
            builder.tokens_per_step(whole(batch) * self._context)
        return True
