"""llm.c: its main.log, and what train_gpt2cu prints.

s:100 trl:7.1234 lr:0.000086 norm:1.12          main.log
s:250 tel:6.4321
step  100/19560 | loss 7.123456 (+nanz)| norm 1.1204 (+nanz)| lr 8.57e-05 | 4187.58 ms | 32.2% bf16 MFU | 125356 tok/s
val loss 6.432100
"""

import re

from onecard.runs.foreign import OneRunReader
from onecard.runs.foreign.numbers import NUMBER, whole

_TRAIN = re.compile(rf"s:(\d+) trl:({NUMBER})(?: lr:({NUMBER}))?(?: norm:({NUMBER}))?", re.I)
_VAL = re.compile(rf"s:(\d+) tel:({NUMBER})", re.I)
_HELLASWAG = re.compile(rf"s:(\d+) eval: ?({NUMBER})", re.I)
_STEP = re.compile(
    rf"step\s+(\d+)/(\d+) \| (?:train )?loss ({NUMBER}).*?\| ({NUMBER}) ms \|(?: ({NUMBER})% (?:bf16|fp16|fp32)? ?MFU \|)?"
    rf" {NUMBER} tok/s",
    re.I,
)
_VAL_PRINTED = re.compile(rf"val loss ({NUMBER})", re.I)
_ROW = re.compile(r"\|([\w ]+)\|(.+)\|")
_COMMAND = re.compile(r"\s-d (\d+)")
_BEGINS = re.compile(r"s:\d+ t|step\s+\d+/\d+ \| ")

_KEYS = {
    "micro batch size B": "batch_size",
    "batch size B": "batch_size",
    "sequence length T": "block_size",
    "num_layers L": "n_layer",
    "num_heads NH": "n_head",
    "channels C": "n_embd",
    "padded_vocab_size Vp": "vocab_size",
    "learning rate (LR)": "learning_rate",
    "warmup iterations": "warmup_iters",
    "weight decay": "weight_decay",
}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class LlmcReader(OneRunReader):
    form = "llm.c"
    _last = 0  # the step printed last

    def line(self, text: str) -> bool:
        builder = self._builder
        if text.startswith("s:"):
            if match := _TRAIN.fullmatch(text):
                builder.step(whole(match[1]), loss=float(match[2]))
                return True
            if match := _VAL.fullmatch(text):
                builder.eval(whole(match[1]), val_loss=float(match[2]))
                return True
            if _HELLASWAG.fullmatch(text):
                return False
        elif match := _STEP.match(text):
            self._last = whole(match[1])
            mfu = float(match[5]) / 100 if match[5] else None
            builder.step(self._last, loss=float(match[3]), seconds=float(match[4]) / 1000, mfu=mfu)
            builder.set(max_steps=whole(match[2]))
            return True
        elif (match := _VAL_PRINTED.fullmatch(text)) and not builder.empty:
            builder.eval(self._last, val_loss=float(match[1]))
            return True
        elif match := _ROW.fullmatch(text):
            self._row(match[1].strip(), match[2].strip())
        elif "train_gpt2" in text and (match := _COMMAND.search(text)):
            builder.tokens_per_step(whole(match[1]))
        if _BEGINS.match(text) and not builder.empty:
            builder.unreadable(text)
        return False

    def _row(self, label: str, value: str) -> None:
        builder = self._builder
        if label in _KEYS and re.fullmatch(r"[\d.e+-]+", value):
            try:
                number = float(value)
            except ValueError:
                return
            builder.know(_KEYS[label], int(number) if number.is_integer() else number)
        elif label == "num_parameters" and re.fullmatch(r"\d{1,12}", value):
            builder.set(params_total=int(value))
        elif label == "total batch size" and re.fullmatch(r"\d{1,12}", value):
            builder.tokens_per_step(int(value))
        elif label == "device":
            builder.set(gpu=value)
        elif label == "precision" and value.lower() in _DTYPES:
            builder.set(dtype=_DTYPES[value.lower()])
