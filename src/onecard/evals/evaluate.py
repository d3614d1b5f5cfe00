"""One evaluation of one model: the text or the task, measured, with its protocol.

>>> evaluate_text(open_model("out"), "out", Path("notes.txt")).figures      # doctest: +SKIP
>>> evaluate_task(open_model("out"), "out", "hellaswag", Path("items.jsonl"), limit=1000)      # doctest: +SKIP
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from onecard.data.read.shard_files import file_sha256
from onecard.evals.scoring import Question, Score, score_all, truncated
from onecard.evals.tasks import TASKS
from onecard.evals.text_loss import text_loss, vocabulary_too_small
from onecard.evals.texts import documents, is_prepared
from onecard.model.generate import Sampler
from onecard.model.gpt2 import GPT
from onecard.model.machine import Precision, precision_of
from onecard.runs.eval_results import Figure, Result

Progress = Callable[[int, int | None], None]  # done, of how many if that is known
SAVED_EVERY = 64  # questions: what an interruption costs at most


def no_progress(done: int, total: int | None) -> None:
    """No progress display."""


def text_name(path: Path) -> str:
    """How a text's row is called."""
    return f"text {path.resolve().name}"


def evaluate_text(
    sampler: Sampler,
    name: str,
    path: Path,
    stride: int | None = None,
    progress: Progress = no_progress,
    most_bytes: int | None = None,
    key: str = "",
) -> Result:
    """Bits per byte, loss and perplexity of a text, each of its bytes scored once."""
    began = time.perf_counter()
    texts = documents(path, most_bytes)
    precision = precision_for(sampler.model)
    measured = text_loss(sampler, texts, precision, stride, lambda done: progress(done, None))
    figures = (
        Figure("bits_per_byte", measured.bits_per_byte),
        Figure("loss", measured.loss),
        Figure("perplexity", measured.perplexity),
    )
    room = sampler.model.config.block_size
    what = "validation split, " if is_prepared(path) else ""
    return Result(
        model=name,
        step=sampler.step,
        task=text_name(path),
        protocol=f"{what}windows of {room} tokens, stride {measured.stride}",
        items=measured.bytes,
        truncated=0,
        figures=figures,
        seconds=time.perf_counter() - began,
        key=key,
        tokenizer=tokenizer_name(sampler),
    )


def evaluate_task(
    sampler: Sampler,
    name: str,
    task_name: str,
    path: Path,
    limit: int | None = None,
    progress: Progress = no_progress,
    key: str = "",
    partial: Path | None = None,
) -> Result:
    """HellaSwag or LAMBADA over the items of a file; with `partial`, an interrupted one continues from there."""
    began, task = time.perf_counter(), TASKS[task_name]
    items = task.items(path, limit)
    encode, start = sampler.tokenizer.encode, sampler.encode("")[0]
    questions = [task.question(item, encode, start) for item in items]
    check_vocabulary(sampler, questions)
    scores = scores_of(sampler.model, questions, progress, partial)
    room = sampler.model.config.block_size
    return Result(
        model=name,
        step=sampler.step,
        task=task_name,
        protocol=task.protocol,
        items=len(items),
        truncated=sum(truncated(question, room) for question in questions),
        figures=tuple(task.figures(items, scores)),
        seconds=time.perf_counter() - began,
        of=task.size if len(items) < task.size else None,
        key=key,
        tokenizer=tokenizer_name(sampler),
    )


def scores_of(
    model: GPT,
    questions: Sequence[Question],
    progress: Progress = no_progress,
    partial: Path | None = None,
) -> list[list[Score]]:
    """The scores of all questions; those in the file `partial` are not computed again, new ones are added to it."""
    total = sum(len(question.endings) for question in questions)
    by_question = _read_partial(partial, questions) if partial is not None else {}
    left = sorted(
        (number for number in range(len(questions)) if number not in by_question),
        key=lambda number: -sum(map(len, (questions[number].context, *questions[number].endings))),
    )
    done = sum(len(scores) for scores in by_question.values())
    group = SAVED_EVERY if partial is not None else max(len(left), 1)
    for start in range(0, len(left), group):
        numbers = left[start : start + group]
        before = done
        part = score_all(
            model,
            [questions[number] for number in numbers],
            precision_for(model),
            lambda more, before=before: progress(before + more, total),  # type: ignore[misc]
        )
        done += sum(len(scores) for scores in part)
        by_question.update(zip(numbers, part, strict=True))
        if partial is not None:
            _add_partial(partial, {number: by_question[number] for number in numbers})
    return [by_question[number] for number in range(len(questions))]


def _read_partial(path: Path, questions: Sequence[Question]) -> dict[int, list[Score]]:
    """Whole lines that an interrupted evaluation left; whatever else is in the file is computed again."""
    done: dict[int, list[Score]] = {}
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError, IndexError):
                number, scores = json.loads(line)
                parsed = [Score(float(chance), bool(greedy)) for chance, greedy in scores]
                if len(parsed) == len(questions[number].endings):
                    done[int(number)] = parsed
    return done


def _add_partial(path: Path, scores: dict[int, list[Score]]) -> None:
    """In a folder that cannot be written an interrupted task starts over; the evaluation itself continues."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            for number, endings in scores.items():
                plain = [[score.log_probability, score.greedy] for score in endings]
                file.write(json.dumps([number, plain]) + "\n")


def check_vocabulary(sampler: Sampler, questions: Sequence[Question]) -> None:
    """A tokeniser with more tokens than the model has rows would read beyond its table."""
    rows = sampler.model.config.shape.vocab_size
    if sampler.tokenizer.vocab_size <= rows:
        return
    largest = max(max(*q.context, *(t for e in q.endings for t in e)) for q in questions)
    if largest >= rows:
        raise vocabulary_too_small(rows, largest)


def precision_for(model: GPT) -> Precision:
    """Half precision where the card has it."""
    return precision_of("auto", model.lm_head.weight.device)


def tokenizer_name(sampler: Sampler) -> str:
    return f"{sampler.tokenizer.name}, {sampler.tokenizer.vocab_size:,} tokens"


def weights_digest(model: GPT) -> str:
    """A digest of all weights: results of the same weights are the same results."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().float().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def result_key(weights: str, task: str, path: Path | None, **options: Any) -> str:
    """What a result depends on, as one digest: weights, the task's items or text (None: its own), options."""
    try:
        if path is None:
            content = ""
        elif path.is_file():
            content = file_sha256(path)
        else:
            files = sorted(p for p in path.rglob("*") if p.is_file())
            content = str([(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files])
    except OSError:
        content = str(path)
    text = json.dumps([weights, task, content, options], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
