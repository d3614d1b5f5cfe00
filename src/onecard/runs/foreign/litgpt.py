"""litgpt's pretrain on a terminal. Its iterations are micro-batches; `step` counts optimizer steps, and is what counts.

    Epoch 1 | iter 400 step 100 | loss train: 5.123, val: n/a | iter time: 975.30 ms (step) remaining time: 2 days, …
    iter 4000: val loss 4.1234, val time: 12345.67 ms

Its own throughput figures are left alone: they divide by a time stamp.
"""

import re

from onecard.runs.foreign import OneRunReader
from onecard.runs.foreign.numbers import NUMBER, whole

_STEP = re.compile(
    rf"Epoch (\d+) \| iter (\d+) step (\d+) \| loss train: ({NUMBER}), val: ({NUMBER}|n/a) \| iter time: ({NUMBER}) ms.*",
    re.I,
)
_VAL = re.compile(rf"iter (\d+): val loss ({NUMBER}), val time: {NUMBER} ms", re.I)
_BEGINS = re.compile(r"Epoch \d+ \| iter \d")
_PARAMS = re.compile(r"Total parameters: ([\d,]+)")


class LitGptReader(OneRunReader):
    form = "litgpt"
    _per_step: float | None = None

    def line(self, text: str) -> bool:
        builder = self._builder
        if match := _STEP.fullmatch(text):
            iteration, step = whole(match[2]), whole(match[3])
            if step > 0:
                self._per_step = iteration / step
                per_step = max(1, round(self._per_step))
                builder.know("gradient_accumulation_steps", per_step, "inferred")
                builder.step(step, loss=float(match[4]), seconds=float(match[6]) / 1000 * per_step)
            return True
        if (match := _VAL.fullmatch(text)) and self._per_step:
            builder.eval(round(whole(match[1]) / self._per_step), val_loss=float(match[2]))
            return True
        if match := _PARAMS.match(text):
            builder.set(params_total=whole(match[1]) or None)
        elif _BEGINS.match(text) and not builder.empty:
            builder.unreadable(text)
        return False
