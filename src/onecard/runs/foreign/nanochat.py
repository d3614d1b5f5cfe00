"""nanochat's base_train.

Total batch size 524,288 => gradient accumulation steps: 8
step 00100/21400 (0.47%) | loss: 6.512345 | lrm: 1.00 | dt: 3901.22ms | tok/sec: 134,390 | bf16_mfu: 46.10 | …
Step 00250 | Validation bpb: 1.205793
Step 02000 | CORE metric: 0.1234
"""

import re

from onecard.runs.foreign import OneRunReader
from onecard.runs.foreign.numbers import NUMBER, positive, whole

_STEP = re.compile(
    rf"step (\d+)(?:/(\d+))? \({NUMBER}%\) \| loss: ({NUMBER}) \|.*?\bdt: ({NUMBER})ms \| tok/sec: ([\d,]+)"
    rf"(?: \| (?:bf16_)?mfu: ({NUMBER})%?)?(?: \|.*)?",
    re.I,
)
_BPB = re.compile(rf"step (\d+) \| Validation bpb: ({NUMBER})", re.I)
_CORE = re.compile(rf"step (\d+) \| CORE metric: ({NUMBER})", re.I)
_BEGINS = re.compile(r"step \d+(?:/\d+)? \(")
_BATCH = re.compile(r"Total batch size ([\d,]+) => gradient accumulation steps: (\d+)")
_MICRO = re.compile(r"Tokens / micro-batch / rank: (\d+) x (\d+) = ")
_SHAPE = re.compile(
    r'"?(n_layer|n_head|n_embd|vocab_size|num_layers|model_dim|num_heads)"?: ([\d,]+?),?'
)
_TOTAL = re.compile(r"(?:total\s+|Number of parameters): ([\d,]+)")
_FLOPS = re.compile(rf"Estimated FLOPs per token: ({NUMBER})")
_GPU = re.compile(r"GPU: (.+?) \| Peak FLOPS \(BF16\): ([\d.e+]+)")
_NAMES = {"num_layers": "n_layer", "model_dim": "n_embd", "num_heads": "n_head"}


class NanochatReader(OneRunReader):
    form = "nanochat"

    def line(self, text: str) -> bool:
        builder = self._builder
        if match := _STEP.fullmatch(text):
            step, rate, dt = whole(match[1]), whole(match[5]), float(match[4]) / 1000
            if 0 < dt < 1e7 and rate > 0 and builder.get("tokens_per_step") is None:
                # Its printed tok/sec is the batch over dt, cut to a whole number: the batch to one part in 10,000.
                builder.tokens_per_step(_whole_batch(rate * dt), "inferred")
            mfu = float(match[6]) / 100 if match[6] else None
            builder.step(step, loss=float(match[3]), seconds=dt, mfu=mfu or None)
            if match[2]:
                builder.set(max_steps=whole(match[2]))
            return True
        if match := _BPB.fullmatch(text):
            builder.eval(whole(match[1]), bits_per_byte=float(match[2]))
            return True
        if match := _CORE.fullmatch(text):
            builder.eval(whole(match[1]), core=float(match[2]))
            return True
        if _BEGINS.match(text) and not builder.empty:
            builder.unreadable(text)
        elif builder.empty:
            self._heading(text)
        return False

    def _heading(self, text: str) -> None:
        builder = self._builder
        if match := _BATCH.match(text):
            builder.tokens_per_step(whole(match[1]))
            builder.know("gradient_accumulation_steps", whole(match[2]))
        elif match := _MICRO.match(text):
            builder.know("batch_size", whole(match[1]))
            builder.know("block_size", whole(match[2]))
        elif match := _SHAPE.fullmatch(text.strip()):
            builder.know(_NAMES.get(match[1], match[1]), whole(match[2]))
        elif match := _TOTAL.match(text):
            builder.set(params_total=whole(match[1]) or None)
        elif match := _FLOPS.match(text):
            builder.set(flops_per_token=positive(match[1]))
        elif match := _GPU.match(text):
            builder.set(gpu=match[1], printed_peak_flops=positive(match[2]))


def _whole_batch(tokens: float) -> int:
    """The nearest multiple of 1024; a batch is whole sequences."""
    return round(tokens / 1024) * 1024
