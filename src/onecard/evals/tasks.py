"""HellaSwag and LAMBADA as lm-evaluation-harness asks them: the same requests, so the same answers.

    task = TASKS["hellaswag"]
    items = task.items(path)
    outcome = task.outcome(items, score_all(model, [task.question(item, encode) for item in items], precision))

Protocols differ from project to project and so do their figures; each result names its own.
"""

import json
import lzma
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onecard.errors import UserError
from onecard.evals.scoring import Question, Score
from onecard.runs.eval_results import Figure, interval

Encode = Callable[[str], list[int]]
_MOST_LINE = 1 << 20  # characters of one item


@dataclass(frozen=True)
class Choice:
    """An item with endings, one of which is right."""

    context: str
    endings: tuple[str, ...]
    right: int


@dataclass(frozen=True)
class Task:
    name: str
    protocol: str
    size: int  # items of the whole set
    parse: Callable[[dict[str, Any]], Choice]
    figures: Callable[[Sequence[Choice], Sequence[Sequence[Score]]], list[Figure]]

    def items(self, path: Path, limit: int | None = None) -> list[Choice]:
        """The items of a .jsonl, .jsonl.xz or .parquet file; one that does not parse is named by its number."""
        choices: list[Choice] = []
        rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
        for number, row in rows:
            if limit is not None and len(choices) >= limit:
                break
            try:
                choices.append(self.parse(json.loads(row) if isinstance(row, str) else row))
            except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
                raise UserError(
                    f"{path}, line {number}: not an item of {self.name} ({type(error).__name__})",
                    hint="one JSON object a line, as the data set has them",
                ) from None
        if not choices:
            raise UserError(f"{path} holds no items", hint="one JSON object a line")
        return choices

    def question(self, item: Choice, encode: Encode, start: int) -> Question:
        """Context and endings as ids: an ending is what the whole text has beyond the context's own ids.

        `start` stands in for an empty context.
        """
        context = item.context.rstrip()  # spaces belong to the ending, as its tokens have them
        gap = item.context[len(context) :]
        own = encode(context) if context else []
        endings = []
        for ending in item.endings:
            whole = encode(context + gap + ending)
            endings.append(whole[len(own) :] or whole[-1:])
        return Question(own or [start], endings)


def _share(name: str, answers: Sequence[bool]) -> Figure:
    share = sum(answers) / len(answers)
    return Figure(name, share, *interval(share, len(answers)))


def _hellaswag_text(text: str) -> str:
    """WikiHow's brackets taken away, as lm-evaluation-harness does."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[[^\]\n]*\]", "", text).replace("  ", " ")


def _hellaswag_item(item: dict[str, Any]) -> Choice:
    context = f"{item['activity_label']}: {item['ctx_a']} {item['ctx_b'].capitalize()}"
    endings = tuple(" " + _hellaswag_text(ending) for ending in item["endings"])
    right = int(item["label"])
    if not 0 <= right < len(endings):
        raise ValueError("label")
    return Choice(_hellaswag_text(context), endings, right)


def _hellaswag_figures(items: Sequence[Choice], scores: Sequence[Sequence[Score]]) -> list[Figure]:
    plain, by_length = [], []
    for item, endings in zip(items, scores, strict=True):
        chances = [score.log_probability for score in endings]
        # the harness divides by characters of the ending, without the space before it
        normal = [c / max(len(e) - 1, 1) for c, e in zip(chances, item.endings, strict=True)]
        plain.append(chances.index(max(chances)) == item.right)
        by_length.append(normal.index(max(normal)) == item.right)
    return [_share("acc", plain), _share("acc_norm", by_length)]


def _lambada_item(item: dict[str, Any]) -> Choice:
    if "text" in item:
        context, _, word = item["text"].rpartition(" ")
    else:
        context, word = item["context"], item["continuation"].strip()
    if not word:
        raise ValueError("no last word")
    return Choice(context, (f" {word}",), 0)


def _lambada_figures(items: Sequence[Choice], scores: Sequence[Sequence[Score]]) -> list[Figure]:
    words = [endings[0] for endings in scores]
    mean = sum(score.log_probability for score in words) / len(words)
    return [
        _share("acc", [score.greedy for score in words]),
        Figure("perplexity", math.exp(min(-mean, 700.0))),
    ]


TASKS = {
    task.name: task
    for task in (
        Task(
            "hellaswag",
            "lm-evaluation-harness, 0-shot; acc_norm by characters",
            10_042,
            _hellaswag_item,
            _hellaswag_figures,
        ),
        Task(
            "lambada",
            "lm-evaluation-harness's lambada_openai, 0-shot; the last word by greedy tokens",
            5_153,
            _lambada_item,
            _lambada_figures,
        ),
    )
}


def _json_rows(path: Path) -> Iterator[tuple[int, str]]:
    open_text = lzma.open if path.suffix == ".xz" else open
    try:
        with open_text(path, "rt", encoding="utf-8") as file:
            lines = iter(lambda: file.readline(_MOST_LINE), "")
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, str(line)
    except (OSError, UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
        raise UserError(f"{path} cannot be read: {error}", hint="a .jsonl or .jsonl.xz") from None


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        yield from enumerate(pq.read_table(path).to_pylist(), start=1)
    except (OSError, ArrowException) as error:
        raise UserError(f"{path} cannot be read: {error}", hint="a parquet file") from None
