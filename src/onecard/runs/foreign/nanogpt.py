"""nanoGPT's train.py on a terminal, in a file or through a pipe, wandb's lines and all.

    Overriding config with config/train_gpt2.py:
    n_embd = 384
    tokens per iteration will be: 524,288
    number of parameters: 40.56M
    step 0: train loss 10.9, val loss 10.9
    iter 100: loss 5.1234, time 3901.22ms, mfu 12.93%

A line that begins like a measurement and does not end like one was torn, and is counted.
"""

import re
from dataclasses import replace

from onecard.config import KEYS
from onecard.config.literal import evaluate
from onecard.runs.builder import RunBuilder
from onecard.runs.foreign.numbers import NUMBER, whole
from onecard.runs.run import Run, check_count

_MOST_HELD = 1000
A100_FLOPS = 312e12  # what nanoGPT divides by, whatever the card
# Forks print grad_norm or lr between loss and time, and tokens per second after mfu.
_LABEL = r"[A-Za-z_]\w*(?: [A-Za-z_]\w*)*"
_ITER = re.compile(
    rf"iter (\d+): loss ({NUMBER})(?:, (?!time|mfu){_LABEL}[ :=]{{1,3}}{NUMBER})*(?:, time ({NUMBER})ms)?"
    rf"(?:, mfu ({NUMBER})%)?(?:, (?!time|mfu)(?=[^,]*\d)(?:(?!iter \d)[^,])*+)*+",
    re.I,
)
_BARE = re.compile(rf"iter \d+: loss (?:\d+\.\d{{4}}|{NUMBER}, .*|nan|inf)", re.I)
_STEP = re.compile(
    rf"(?:step|iter) (\d+): train loss ({NUMBER}), val loss (\d+\.\d{{4}}|nan|inf)(?:[, (].*)?",
    re.I,
)
_BEGINS = re.compile(r"iter \d|step \d+:|iter \d*$|step \d*$", re.I)
_OVERRIDE = re.compile(r"(?:Overriding: )?(\w+) ?= ?([^#]+)(?:#.*)?")
_TOKENS = re.compile(
    r"(?:tokens per iteration will be|total number of tokens per iteration): ([\d,]+)"
)
_PARAMS = re.compile(r"number of parameters: (\d+\.\d\d)M")
_DECAYED = re.compile(r"num (non-)?decayed parameter tensors: \d+, with ([\d,]+) parameters")
_VOCAB = re.compile(r"found vocab_size = (\d+) ")
_GPU = re.compile(
    r"(?:GPU|device name|Using device)[: ]{1,4}"
    r"(NVIDIA [\w -]{1,60}|[\w ]{0,60}?(?:RTX|GTX|Tesla|A100|H100)[\w ]{0,30})",
    re.I,
)

_SIGNS = (
    ("WARNING: using slow attention", "slow-attention"),
    ("Torch was not compiled with flash attention", "slow-attention"),  # torch on Windows
    ("compiling the model", "compiled"),
    ("torch._dynamo hit", "compile-fallback"),
    ("WON'T CONVERT", "compile-fallback"),
    ("torch._dynamo.config.suppress_errors", "compile-fallback"),
    ("cache_size_limit", "recompiles"),
    ("recompile_limit", "recompiles"),
    ("CUDA out of memory", "out-of-memory"),
    ("OutOfMemoryError", "out-of-memory"),
    ("Traceback (most recent call last)", "traceback"),
    ("KeyboardInterrupt", "interrupted"),
)


class NanoGptReader:
    """One file; a new header or a step count back at 0 begins a new run."""

    def __init__(self, name: str):
        self._name = name
        self._runs: list[Run] = []
        self._builder = RunBuilder(name, "nanogpt")
        self._decayed: dict[bool, int] = {}
        self._header = False  # lines of a header since the last measurement
        self._resuming = False
        # measurements back at step 0 without a header: a new run, or a damaged number
        self._held: list[str] = []

    def line(self, text: str) -> bool:
        # A shell prompt, a timestamp or a rank may stand before it.
        begins = 0
        if not text.startswith(("iter ", "step ")):
            begins = max(text.find("iter "), text.find("step ")) if len(text) < 400 else -1
        if begins >= 0 and self._measurement(text[begins:] if begins < 60 else text):
            return True
        self._heading(text)
        return False

    def done(self) -> list[Run]:
        for line in self._held:
            self._builder.unreadable(line)
        self._close()
        return self._runs

    def _measurement(self, text: str) -> bool:
        iteration = _ITER.fullmatch(text)
        if iteration is not None and iteration[3] is None and not _BARE.match(text):
            iteration = None  # `loss 5.1` alone may be cut off
        match = iteration or _STEP.fullmatch(text)
        if match is None:
            if _BEGINS.match(text) and not self._builder.empty:
                self._builder.unreadable(text)
            return False
        step = whole(match[1])
        if self._is_held(step, text):
            return True
        if iteration:
            seconds = float(match[3]) / 1000 if match[3] else None
            mfu = float(match[4]) / 100 if match[4] else None
            self._builder.step(step, loss=float(match[2]), seconds=seconds, mfu=mfu)
        else:
            self._builder.eval(step, train_loss=float(match[2]), val_loss=float(match[3]))
        self._header = self._resuming = False
        return True

    def _is_held(self, step: int, text: str) -> bool:
        last = self._builder.last
        if step == 0 and last is not None and last > 0 and not self._resuming:
            if not self._header:
                if len(self._held) < _MOST_HELD:
                    self._held.append(text)
                return True
            self._close()
        elif self._held and step > 0:
            held, self._held = self._held, []
            if last is not None and step > last:
                for line in held:
                    self._builder.unreadable(line)
            else:
                self._close()
                for line in held:
                    self._measurement(line)
        return False

    def _heading(self, text: str) -> None:
        builder = self._builder
        if (
            text.startswith(("Overriding config with", "Overriding: "))
            and not builder.empty
            and not self._header
        ):
            self._close()
            builder = self._builder
        if match := _OVERRIDE.fullmatch(text):
            if match[1] in KEYS and builder.empty:
                self._header = True
                try:
                    builder.know(match[1], evaluate(match[2]))
                except ValueError:
                    builder.unreadable(text)
        elif match := _TOKENS.match(text):
            if not builder.empty and not self._header:
                self._close()
                builder = self._builder
            self._header = True
            builder.tokens_per_step(whole(match[1]))
            builder.sign("header")  # what it does not name has nanoGPT's default
        elif match := _PARAMS.match(text):
            builder.set(params_printed=float(match[1]) * 1e6, params_error=0.005e6)
        elif match := _DECAYED.match(text):
            self._decayed[bool(match[1])] = whole(match[2])
        elif match := _VOCAB.match(text):
            builder.set(vocab_size=whole(match[1]) or None)
        elif text.startswith("Resuming training from"):
            self._resuming = True
            builder.sign("resumed")
        elif match := _GPU.search(text):
            builder.set(gpu=builder.get("gpu") or match[1].strip())
        else:
            for words, sign in _SIGNS:
                if words in text:
                    builder.sign(sign)

    def _close(self) -> None:
        self._builder.set(printed_peak_flops=A100_FLOPS)
        if len(self._decayed) == 2:
            self._builder.set(params_total=sum(self._decayed.values()))
        run = self._builder.done()
        if run is not None:
            number = len(self._runs) + 1
            check_count(number)
            self._runs.append(
                replace(run, name=self._name if number == 1 else f"{self._name}#{number}")
            )
        self._decayed = {}
        self._builder = RunBuilder(self._name, "nanogpt")
