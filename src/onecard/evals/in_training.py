"""Benchmarks while a model trains: what eval_tasks names, measured by the rules of `onecard eval` and kept in the run.

benchmark = training_benchmark(config)      # None where the config names no tasks
train(config, benchmark=benchmark)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onecard.config import RunConfig
from onecard.data import Dataset
from onecard.errors import UserError
from onecard.evals.evaluate import evaluate_task, result_key, weights_digest
from onecard.evals.item_files import find_items
from onecard.evals.tasks import TASKS
from onecard.model.generate import Sampler
from onecard.model.gpt2 import GPT
from onecard.runs.eval_results import keep
from onecard.runs.next_level import with_next_level


@dataclass(frozen=True)
class Wanted:
    task: str
    path: Path
    limit: int | None


@dataclass(frozen=True)
class TrainingBenchmark:
    wanted: list[Wanted]
    folder: Path

    def __call__(self, model: GPT, data: Dataset, step: int) -> Mapping[str, Mapping[str, float]]:
        if data.tokenizer is None:
            raise UserError("the data set does not name its tokeniser, which benchmarks need")
        sampler = Sampler(model, data.tokenizer, step)
        weights, figures = weights_digest(model), {}
        for one in self.wanted:
            key = result_key(weights, one.task, one.path, limit=one.limit)
            name = self.folder.resolve().name
            result = evaluate_task(sampler, name, one.task, one.path, one.limit, key=key)
            keep(with_next_level(result, self.folder), self.folder)
            figures[one.task] = {figure.name: figure.value for figure in result.figures}
        return figures


def training_benchmark(config: RunConfig) -> TrainingBenchmark | None:
    """The config's tasks with their items, looked for before the run begins."""
    if not config.eval_tasks:
        return None
    return TrainingBenchmark(parse_tasks(config.eval_tasks), Path(config.out_dir))


def parse_tasks(text: str) -> list[Wanted]:
    """ "hellaswag:1000, lambada=items.jsonl" as tasks; items that do not parse are found here."""
    wanted = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, file = word.partition("=")
        place = file or name
        place, colon, count = place.rpartition(":") if ":" in place else (place, "", "")
        if colon and not (count.isascii() and count.isdigit() and int(count) > 0):
            place, count = f"{place}:{count}", ""  # a drive letter, or part of a file's name
        task = name.partition(":")[0]
        if task not in TASKS:
            raise UserError(
                f"eval_tasks: there is no task {task!r} to measure in training",
                hint=f"{', '.join(TASKS)}; others run after it: `onecard eval RUN --tasks {task}`",
            )
        path = find_items(task, place if file else None)
        limit = int(count) if count else None
        TASKS[task].items(path, limit)
        wanted.append(Wanted(task, path, limit))
    return wanted
