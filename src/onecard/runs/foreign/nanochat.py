"""nanochat's base_train.

Total batch size 524,288 => gradient accumulation steps: 8
step 00100/21400 (0.47%) | loss: 6.512345 | lrm: 1.00 | dt: 3901.22ms | tok/sec: 134,390 | bf16_mfu: 46.10 | …
Step 00250 | Validation bpb: 1.205793
"""

import re

from onecard.runs.run import Run, RunBuilder

_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|nan|inf)"
_STEP = re.compile(
    rf"step (\d+)(?:/(\d+))? \({_NUMBER}%\) \| loss: ({_NUMBER}) \|.*?\bdt: ({_NUMBER})ms \| tok/sec: ([\d,]+)"
    rf"(?: \| (?:bf16_)?mfu: ({_NUMBER})%?)?(?: \|.*)?",
    re.I,
)
_BPB = re.compile(rf"step (\d+) \| Validation bpb: ({_NUMBER})", re.I)
_BEGINS = re.compile(r"step \d+(?:/\d+)? \(")
_BATCH = re.compile(r"Total batch size ([\d,]+) => gradient accumulation steps: (\d+)")
_MICRO = re.compile(r"Tokens / micro-batch / rank: (\d+) x (\d+) = ")
_SHAPE = re.compile(
    r'"?(n_layer|n_head|n_embd|vocab_size|num_layers|model_dim|num_heads)"?: ([\d,]+?),?'
)
_TOTAL = re.compile(r"(?:total\s+|Number of parameters): ([\d,]+)")
_FLOPS = re.compile(rf"Estimated FLOPs per token: ({_NUMBER})")
_GPU = re.compile(r"GPU: (.+?) \| Peak FLOPS \(BF16\): ([\d.e+]+)")
_NAMES = {"num_layers": "n_layer", "model_dim": "n_embd", "num_heads": "n_head"}


class NanochatReader:
    def __init__(self, name: str):
        self._builder = RunBuilder(name, "nanochat")

    def line(self, text: str) -> bool:
        builder = self._builder
        if found := _STEP.fullmatch(text):
            step, dt, rate = (
                int(found[1][:12]),
                float(found[4]) / 1000,
                int(found[5].replace(",", "") or 0),
            )
            if dt > 0 and rate > 0 and builder.run.tokens_per_step is None:
                # Its printed tok/sec is the batch over dt, cut to a whole number: the batch to one part in 10,000.
                builder.tokens_per_step(_whole_batch(rate * dt), "inferred")
            mfu = float(found[6]) / 100 if found[6] else None
            builder.step(step, loss=float(found[3]), seconds=dt, mfu=mfu or None)
            if found[2]:
                builder.run.max_steps = int(found[2][:12])
            return True
        if found := _BPB.fullmatch(text):
            builder.eval(int(found[1][:12]), bits_per_byte=float(found[2]))
            return True
        if _BEGINS.match(text) and not builder.empty:
            builder.unreadable(text)
        elif builder.empty:
            self._heading(text)
        return False

    def done(self) -> list[Run]:
        run = self._builder.done()
        return [run] if run is not None else []

    def _heading(self, text: str) -> None:
        builder = self._builder
        if found := _BATCH.match(text):
            builder.tokens_per_step(int(found[1].replace(",", "") or 0))
            builder.know("gradient_accumulation_steps", int(found[2][:9]))
        elif found := _MICRO.match(text):
            builder.know("batch_size", int(found[1][:9]))
            builder.know("block_size", int(found[2][:9]))
        elif found := _SHAPE.fullmatch(text.strip()):
            builder.know(_NAMES.get(found[1], found[1]), int(found[2].replace(",", "") or 0))
        elif found := _TOTAL.match(text):
            builder.run.params_total = int(found[1].replace(",", "")[:13] or 0) or None
        elif found := _FLOPS.match(text):
            builder.run.flops_per_token = float(found[1])
        elif found := _GPU.match(text):
            builder.run.gpu = found[1]
            builder.run.printed_peak_flops = (
                float(found[2]) if re.fullmatch(_NUMBER, found[2]) else None
            )


def _whole_batch(tokens: float) -> int:
    """The nearest multiple of 1024; a batch is whole sequences."""
    return round(tokens / 1024) * 1024
