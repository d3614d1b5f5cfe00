"""One evaluation of one model: the text or the task, measured, with its protocol.

>>> evaluate_text(open_model("out"), "out", Path("notes.txt")).figures      # doctest: +SKIP
>>> evaluate_task(open_model("out"), "out", "hellaswag", Path("items.jsonl"), limit=1000)      # doctest: +SKIP
"""

import time
from collections.abc import Callable
from pathlib import Path

from onecard.errors import UserError
from onecard.evals.results import Result
from onecard.evals.scoring import score_all, truncated
from onecard.evals.tasks import TASKS, Figure
from onecard.evals.text_loss import text_loss
from onecard.model.generate import Sampler
from onecard.model.machine import Precision, precision_of

Progress = Callable[[int, int | None], None]  # done, of how many if that is known


def no_progress(done: int, total: int | None) -> None:
    """For those who do not watch."""


def evaluate_text(
    speaker: Sampler,
    name: str,
    path: Path,
    stride: int | None = None,
    progress: Progress = no_progress,
) -> Result:
    """Bits per byte, loss and perplexity of a text file, each of its bytes scored once."""
    began = time.perf_counter()
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", hint="a text file") from None
    measured = text_loss(
        speaker, [text], _precision(speaker), stride, lambda done: progress(done, None)
    )
    figures = (
        Figure("bits_per_byte", measured.bits_per_byte),
        Figure("loss", measured.loss),
        Figure("perplexity", measured.perplexity),
    )
    room = speaker.model.config.block_size
    return Result(
        model=name,
        step=speaker.step,
        task=f"text {path.name}",
        protocol=f"windows of {room} tokens, stride {measured.stride}",
        items=measured.tokens,
        truncated=0,
        figures=figures,
        seconds=time.perf_counter() - began,
    )


def evaluate_task(
    speaker: Sampler,
    name: str,
    task_name: str,
    path: Path,
    limit: int | None = None,
    progress: Progress = no_progress,
) -> Result:
    """HellaSwag or LAMBADA over the items of a file."""
    began, task = time.perf_counter(), TASKS[task_name]
    items = task.items(path, limit)
    encode, start = speaker.tokenizer.encode, speaker.encode("")[0]
    questions = [task.question(item, encode, start) for item in items]
    total = sum(len(question.endings) for question in questions)
    scores = score_all(
        speaker.model, questions, _precision(speaker), lambda done: progress(done, total)
    )
    room = speaker.model.config.block_size
    return Result(
        model=name,
        step=speaker.step,
        task=task_name,
        protocol=task.protocol,
        items=len(items),
        truncated=sum(truncated(question, room) for question in questions),
        figures=tuple(task.figures(items, scores)),
        seconds=time.perf_counter() - began,
    )


def _precision(speaker: Sampler) -> Precision:
    return precision_of("auto", speaker.model.lm_head.weight.device)
