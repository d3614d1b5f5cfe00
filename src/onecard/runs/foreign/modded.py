"""modded-nanogpt's records: its clock counts training only and is reset after the first ten steps.

    step:0/1480 val_loss:10.8258 train_time:0ms step_avg:nanms
    step:13/1480 train_time:749ms step_avg:249.78ms
    step:100/6200 train_loss:4.1234 train_time:24999ms step_avg:250.01ms

A record also holds its own source code and nvidia-smi's table; the card's name is taken from that.
"""

import re

from onecard.runs.foreign import OneRunReader
from onecard.runs.foreign.numbers import NUMBER, whole

_LINE = re.compile(
    rf"step:(\d+)/(\d+) (?:(val|train)_loss:({NUMBER}) )?train_time:({NUMBER})(ms|s) step_avg:({NUMBER})ms",
    re.I,
)
_GPU = re.compile(r"\|\s+\d+\s+(NVIDIA [\w -]+?)\s{2,}")
_BEGINS = re.compile(r"step:\d+/\d+ ")


class ModdedReader(OneRunReader):
    form = "modded-nanogpt"
    _cards = 0

    def line(self, text: str) -> bool:
        builder = self._builder
        if match := _LINE.match(text):
            step, kind, loss = whole(match[1]), match[3], match[4]
            elapsed = float(match[5]) / (1000 if match[6] == "ms" else 1)
            builder.set(max_steps=whole(match[2]))
            if kind == "val":
                builder.eval(step, val_loss=float(loss))
            else:
                builder.step(step, loss=float(loss) if loss else None, elapsed=elapsed)
            return True
        if _BEGINS.match(text) and not builder.empty:
            builder.unreadable(text)
        elif builder.empty and (match := _GPU.match(text)):
            self._cards += 1
            builder.set(gpu=match[1].removeprefix("NVIDIA "), gpus=self._cards)
        return False
