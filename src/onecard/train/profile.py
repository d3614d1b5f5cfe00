"""Where the time of a step goes: a trace for chrome://tracing or Perfetto, and a table of kinds of work.

>>> print(profile_run(load("train_shakespeare_char")))      # doctest: +SKIP
one step: 41.2 ms
"""

import itertools
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from onecard.config import RunConfig
from onecard.files import replace, write_text
from onecard.model.machine import choose_device
from onecard.train.io.loader import to_device
from onecard.train.optim import lr_at
from onecard.train.run.outputs import Silent
from onecard.train.run.progress import random_seed
from onecard.train.run.setup import open_session
from onecard.train.run.workers import Workers

WARM_STEPS = 3  # compilation, allocation and the caches settle before anything is measured

# The first kind whose word is found in an operator's name has it; what is left is "other".
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # before the rest: a graph's name ends in letters drawn at random
    ("compiled", ("compiledf", "cpp_fused")),
    ("attention", ("attention", "flash", "fmha", "sdpa")),
    ("matmul", ("mm", "matmul", "linear", "gemm", "conv")),
    ("optimizer", ("adam", "foreach", "optimizer")),
    ("loss", ("cross_entropy", "softmax", "logsumexp", "nll_loss")),
    ("norm", ("norm",)),
    ("activation", ("gelu", "relu", "tanh", "silu")),
    ("embedding", ("embedding", "index")),
    ("copies", ("copy", "clone", "contiguous", "cat", "stack", "fill", "zero", "empty")),
    ("compiled", ("triton",)),
)


@dataclass(frozen=True)
class Part:
    kind: str
    seconds: float  # of one step, on the card if there is one
    share: float
    calls: float  # of one step


@dataclass(frozen=True)
class StepProfile:
    step_seconds: float  # measured with the profiler off
    parts: list[Part]
    operators: list[Part]  # the costliest single operators, by name
    trace: Path

    def __str__(self) -> str:
        lines = [f"one step: {self.step_seconds * 1e3:.1f} ms", ""]
        for heading, rows in (("kind of work", self.parts), ("operator", self.operators)):
            width = max([len(heading), *(len(row.kind) for row in rows)])
            lines.append(f"{heading:<{width}}        ms   share    calls")
            lines += [
                f"{r.kind:<{width}}  {r.seconds * 1e3:8.2f}  {r.share:6.1%}  {r.calls:7.1f}"
                for r in rows
            ]
            lines.append("")
        return "\n".join(
            [*lines, f"trace: {self.trace} (open it in chrome://tracing or ui.perfetto.dev)"]
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "step_seconds": self.step_seconds,
            "parts": [vars(part) for part in self.parts],
            "operators": [vars(part) for part in self.operators],
            "trace": str(self.trace),
        }


def profile_run(config: RunConfig, steps: int = 5) -> StepProfile:
    """The first steps of a run, done aside: out_dir gains only the folder `profile`."""
    torch.set_float32_matmul_precision("high")  # TF32, as the training loop does
    device = choose_device(config.device, Workers.local_rank())
    with (
        tempfile.TemporaryDirectory() as aside,
        Workers(config.backend, device) as workers,
        open_session(
            config.replace(out_dir=str(Path(aside) / "run")), workers, False, Silent()
        ) as (session, _),
    ):
        numbers = itertools.count()

        def step() -> None:
            number = next(numbers)
            rows = to_device(session.loader.rows(number), device)
            session.stepper.gradients(rows, number, random_seed(config.seed, number, workers.rank))
            session.stepper.apply(lr_at(session.config, number), number)

        try:
            on_card = device.type == "cuda"
            return profile_steps(step, Path(config.out_dir) / "profile", steps, on_card)
        finally:
            if session.outputs.record is not None:
                session.outputs.record.end("stopped")


def profile_steps(
    step: Callable[[], object], out_dir: Path, steps: int = 5, on_card: bool = False
) -> StepProfile:
    """Run `step` WARM_STEPS + 2 · steps times; writes out_dir/trace.json and out_dir/profile.txt."""
    for _ in range(WARM_STEPS):
        step()
    plain = _seconds_of(step, steps, on_card)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_card else [])]
    with profile(activities=activities, acc_events=True) as watched:
        _seconds_of(step, steps, on_card)
    out_dir.mkdir(parents=True, exist_ok=True)
    trace = out_dir / "trace.json"
    aside = out_dir / f"trace.{os.getpid()}.json"
    watched.export_chrome_trace(str(aside))
    replace(aside, trace)
    rows = [
        (
            event.key,
            (event.self_device_time_total if on_card else event.self_cpu_time_total) / 1e6,
            event.count,
        )
        for event in watched.key_averages()
    ]
    result = StepProfile(plain, _parts(rows, steps), _ranked(rows, steps)[:15], trace)
    write_text(out_dir / "profile.txt", f"{result}\n")
    return result


def _seconds_of(step: Callable[[], object], steps: int, on_card: bool) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        step()
    if on_card:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def kind_of(operator: str) -> str:
    """
    >>> kind_of("aten::addmm"), kind_of("aten::_fused_adamw_"), kind_of("aten::sum")
    ('matmul', 'optimizer', 'other')
    """
    name = operator.lower()
    return next((kind for kind, words in _KINDS if any(word in name for word in words)), "other")


def _parts(rows: list[tuple[str, float, int]], steps: int) -> list[Part]:
    sums: dict[str, tuple[float, int]] = {}
    for name, seconds, calls in rows:
        before = sums.get(kind_of(name), (0.0, 0))
        sums[kind_of(name)] = (before[0] + seconds, before[1] + calls)
    return _ranked([(kind, seconds, calls) for kind, (seconds, calls) in sums.items()], steps)


def _ranked(rows: list[tuple[str, float, int]], steps: int) -> list[Part]:
    total = sum(seconds for _, seconds, _ in rows) or 1.0
    parts = [
        Part(name, seconds / steps, seconds / total, calls / steps) for name, seconds, calls in rows
    ]
    return sorted(parts, key=lambda part: -part.seconds)
