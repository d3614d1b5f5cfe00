"""Proof that a stop loses nothing on this machine: one run straight through, one stopped and taken up, compared.

>>> verify_resume(load("train_shakespeare_char"), steps=6).exact      # doctest: +SKIP
True
"""

import contextlib
import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from onecard.config import RunConfig
from onecard.model.checkpoint import MODEL, checkpoints, read_state, read_tensors
from onecard.runs.log import read_log
from onecard.train.run.loop import train
from onecard.train.run.outputs import Silent, Viewer
from onecard.train.run.signals import end_as_asked


@dataclass(frozen=True)
class Verification:
    steps: int
    stopped_at: int
    exact: bool  # every loss and every weight the same, bit for bit
    largest_loss_difference: float
    largest_weight_difference: float


def verify_resume(config: RunConfig, steps: int = 6, view: Viewer | None = None) -> Verification:
    """Train `steps` steps twice, the second time stopped half way; the user's shape, data and precision throughout."""
    view = view or Silent()
    half = max(1, steps // 2)
    schedule = {
        "max_iters": steps,
        "lr_decay_iters": max(steps, 1),
        "warmup_iters": min(config.warmup_iters, half),
    }
    config = config.replace(
        **schedule,
        eval_interval=steps + 1,
        checkpoint_interval=half,
        log_interval=1,
        eval_iters=1,
        eval_only=False,
        max_hours=None,
        wandb_log=False,
        tensorboard=False,
        trackio=False,
        init_from="scratch" if config.init_from == "resume" else config.init_from,
    )
    with (
        deterministic_algorithms(),
        tempfile.TemporaryDirectory(prefix="onecard-verify-") as place,
    ):
        whole, parts = (
            config.replace(out_dir=str(Path(place) / name)) for name in ("whole", "parts")
        )
        view.message(f"{steps} steps straight through")
        end_as_asked(train(whole, view=_Messages(view)).stopped_by)
        view.message(f"{half} steps, a stop, and the rest from the checkpoint")
        stopped = train(parts, view=_StopAfter(view, half)).stopped_by
        end_as_asked(None if stopped == signal.SIGTERM else stopped)  # its own stop
        end_as_asked(train(parts, resume=True, view=_Messages(view)).stopped_by)
        return _compared(Path(whole.out_dir), Path(parts.out_dir), steps, half)


@contextlib.contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Kernels whose additions have one order, on a card too: without them two whole runs differ there in the last digits
    (Flash's backward pass, the embedding's), stop or no stop. Where torch has no such kernel it takes the usual one."""
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


class _Messages(Silent):
    """Passes on steps and sentences but keeps the two runs' evaluations to itself."""

    def __init__(self, view: Viewer):
        self._view = view

    def step(self, fields: dict[str, Any]) -> None:
        self._view.step(fields)


class _StopAfter(_Messages):
    """Asks the run to stop as a signal would, from inside."""

    def __init__(self, view: Viewer, step: int):
        super().__init__(view)
        self._step = step

    def step(self, fields: dict[str, Any]) -> None:
        super().step(fields)
        if fields["step"] == self._step:
            signal.raise_signal(signal.SIGTERM)


def _compared(whole: Path, parts: Path, steps: int, half: int) -> Verification:
    a, b = (_losses(folder) for folder in (whole, parts))
    x, y = (_weights(folder) for folder in (whole, parts))
    loss = max((abs(a[step] - b[step]) for step in a if step in b), default=float("inf"))
    weight = max((x[name] - y[name]).abs().max().item() for name in x)
    exact = a == b and len(a) == steps and all(torch.equal(x[name], y[name]) for name in x)
    return Verification(steps, half, exact, loss, weight)


def _losses(folder: Path) -> dict[int, float]:
    return {
        line["step"]: line["loss"]
        for line in read_log(folder / "log.jsonl")
        if line["kind"] == "step"
    }


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = checkpoints(folder)[-1]
    return read_tensors(newest, MODEL, read_state(newest))
