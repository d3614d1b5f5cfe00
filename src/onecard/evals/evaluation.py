"""A whole evaluation: several models on texts, tasks and prompts; what was measured before is not measured again.

    request = Request(texts=(Path("notes.txt"),), tasks={"hellaswag": Path("items.jsonl")}, limit=1000)
    evaluation = evaluate_model("out", request)
    evaluation.results, evaluation.sheets

Results are kept in the run's folder as they come. An interrupted task continues from its last saved items.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from onecard.errors import UserError
from onecard.evals.evaluate import (
    Progress,
    evaluate_task,
    evaluate_text,
    result_key,
    text_name,
    weights_digest,
)
from onecard.evals.harness import run_tasks
from onecard.evals.prompts import Sheet, answer_prompts
from onecard.facts.user_cards import find_config_folder
from onecard.files import write_json
from onecard.model.generate import Sampler
from onecard.model.opening import open_model, run_folder_of
from onecard.runs.eval_results import FOLDER, Result, keep, kept
from onecard.runs.next_level import with_next_level
from onecard.runs.record import is_run_folder

Watch = Callable[[str], "contextlib.AbstractContextManager[Progress]"]


@dataclass(frozen=True)
class Request:
    """What to measure."""

    texts: tuple[Path, ...] = ()
    tasks: Mapping[str, Path] = field(default_factory=dict)  # our own, each with its items
    harness: tuple[str, ...] = ()  # lm-evaluation-harness's
    task_data: Mapping[str, Path] = field(default_factory=dict)
    task_path: Path | None = None
    shots: int | None = None
    prompts: tuple[str, ...] = ()
    prompt_tokens: int = 60
    limit: int | None = None
    most_bytes: int | None = None
    stride: int | None = None
    again: bool = False  # measure what is kept, too

    @property
    def empty(self) -> bool:
        return not (self.texts or self.tasks or self.harness or self.prompts)


@dataclass(frozen=True)
class Found:
    results: tuple[Result, ...]
    sheets: tuple[Sheet, ...] = ()


@contextlib.contextmanager
def nobody(what: str) -> Iterator[Progress]:
    """No progress display."""
    yield lambda done, total: None


def evaluate_model(
    source: str,
    request: Request,
    *,
    device: str = "auto",
    dataset: str | None = None,
    which: str = "newest",
    watch: Watch = nobody,
    report: Callable[[str], None] = lambda text: None,
    each: Callable[[Result], None] = lambda result: None,
) -> Found:
    """Everything that is asked of one model; `each` gets a result as soon as it is there, whatever fails after it."""
    sampler = open_model(source, device, dataset, report, which)
    run = run_folder_of(Path(source))
    work = _Work(sampler, _name(source), run if is_run_folder(run) else None, request, watch)
    results = []
    for result in itertools.chain(work.texts(), work.tasks(), work.harness()):
        results.append(result)
        each(result)
    return Found(tuple(results), tuple(work.sheets()))


def _name(source: str) -> str:
    return Path(source).resolve().name if Path(source).exists() else source


class _Work:
    """One model's evaluation: each part asks for its kept result first."""

    def __init__(
        self, sampler: Sampler, name: str, run: Path | None, request: Request, watch: Watch
    ):
        self.sampler, self.name, self.run = sampler, name, run
        self.request, self.watch = request, watch
        self.weights = weights_digest(sampler.model)
        earlier = kept(run) if run is not None and not request.again else []
        self.earlier: dict[str, list[Result]] = {}  # a group of tasks has several results
        for result in filter(lambda result: result.key, earlier):
            self.earlier.setdefault(result.key, []).append(result)

    def texts(self) -> Iterator[Result]:
        ask = self.request
        for path in ask.texts:
            options = {"stride": ask.stride, "bytes": ask.most_bytes}
            key = result_key(self.weights, text_name(path), path, **options)
            measure = partial(evaluate_text, path=path, stride=ask.stride)
            yield from self._measured(key, path.name, measure, most_bytes=ask.most_bytes)

    def tasks(self) -> Iterator[Result]:
        ask = self.request
        for task, path in ask.tasks.items():
            key = result_key(self.weights, task, path, limit=ask.limit)
            measure = partial(evaluate_task, task_name=task, path=path, limit=ask.limit)
            yield from self._measured(key, task, measure, partial=self._partial(key))

    def harness(self) -> Iterator[Result]:
        """Task by task, so that what is done is kept when a later one fails."""
        ask = self.request
        for task in ask.harness:
            local = ask.task_data.get(task)
            options = {"limit": ask.limit, "shots": ask.shots, "tasks": str(ask.task_path)}
            key = result_key(self.weights, f"lm_eval {task}", local, **options)
            measure = partial(run_tasks, tasks=[task], limit=ask.limit, shots=ask.shots)
            measure = partial(measure, data=ask.task_data, include=ask.task_path)
            yield from self._measured(key, task, measure, partial=self._partial(key))

    def _measured(
        self, key: str, what: str, measure: Callable[..., Any], **more: Any
    ) -> Iterator[Result]:
        """What was kept under this key, or what is measured now."""
        if key in self.earlier:
            yield from self.earlier[key]
            return
        with self.watch(f"{self.name}: {what}") as progress:
            measured = measure(self.sampler, self.name, progress=progress, key=key, **more)
        for result in measured if isinstance(measured, list) else [measured]:
            yield self._kept(result)
        _remove(more.get("partial"))

    def sheets(self) -> Iterator[Sheet]:
        ask = self.request
        if ask.prompts:
            with self.watch(f"{self.name}: prompts") as progress:
                sheet = answer_prompts(
                    self.sampler, self.name, ask.prompts, ask.prompt_tokens, progress
                )
            if self.run is not None:
                with contextlib.suppress(OSError):
                    (self.run / FOLDER).mkdir(exist_ok=True)
                    step = f"prompts-step_{sheet.step:08d}.json"
                    write_json(self.run / FOLDER / step, sheet.to_json())
            yield sheet

    def _kept(self, result: Result) -> Result:
        """A folder that cannot be written is no reason to lose the answer."""
        if self.run is not None:
            result = with_next_level(result, self.run)
            with contextlib.suppress(OSError):
                keep(result, self.run)
        return result

    def _partial(self, key: str) -> Path | None:
        """Where the scores so far go; None for a foreign model where the account has no home."""
        home = self.run if self.run is not None else find_config_folder()
        if home is None:
            return None
        path = home / FOLDER / f".partial-{key[:24]}.jsonl"
        if self.request.again:
            _remove(path)
        return path


def _remove(path: Path | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def parse_task_data(words: list[str]) -> dict[str, Path]:
    """TASK=FILE pairs."""
    files = {}
    for word in words:
        task, equals, file = word.partition("=")
        if not (task and equals and file):
            raise UserError(
                f"the option `task_data` cannot be {word!r}",
                hint="the option `task_data=piqa=piqa.jsonl`",
            )
        files[task] = Path(file)
    return files
