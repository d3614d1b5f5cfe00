"""Any task of lm-evaluation-harness on our model: it asks, our scoring answers. Its tasks are not copied.

    results = run_tasks(open_model("out"), "out", ["arc_easy", "piqa"], limit=200)

Its data come from the hub; `data` points a task at a local file, `include` at a folder of task files of one's own.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from onecard.errors import UserError, nearest
from onecard.evals.evaluate import Progress, no_progress, scores_of, tokenizer_name
from onecard.evals.scoring import Question, truncated
from onecard.evals.text_loss import text_nats
from onecard.model.generate import Sampler, Sampling
from onecard.model.text_pieces import TextStream
from onecard.runs.eval_results import Figure, Result, Z
from onecard.untrusted import printable

_LOCAL_KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
_MOST_NEW_TOKENS = 256  # of a generated answer whose task names no limit


def language_model(
    sampler: Sampler, progress: Progress = no_progress, partial: Path | None = None
) -> Any:
    """Our model as the harness's LM class; it tokenises pairs exactly as the harness's own back ends do."""
    from lm_eval.api.model import TemplateLM

    class OnecardLM(TemplateLM):
        def __init__(self) -> None:
            super().__init__()
            self.truncated = 0

        @property
        def eot_token_id(self) -> int:
            return sampler.encode("")[0]

        @property
        def max_length(self) -> int:
            return sampler.model.config.block_size

        def tok_encode(
            self, string: str, add_special_tokens: bool | None = None, **_: Any
        ) -> list[int]:
            return sampler.tokenizer.encode(string)

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            questions, places = _grouped(requests)
            self.truncated += sum(truncated(q, self.max_length) for q in questions)
            scores = scores_of(sampler.model, questions, progress, partial)
            pairs = [scores[question][ending] for question, ending in places]
            return [(score.log_probability, score.greedy) for score in pairs]

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
            return [-text_nats(sampler, request.args[0]) for request in requests]

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            return [_answer(sampler, *request.args) for request in requests]

    return OnecardLM()


def run_tasks(
    sampler: Sampler,
    name: str,
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    shots: int | None = None,
    data: Mapping[str, Path] | None = None,
    include: Path | None = None,
    progress: Progress = no_progress,
    key: str = "",
    partial: Path | None = None,
) -> list[Result]:
    """Each task's figures as the harness computes them, with its own standard errors as 95 % intervals."""
    lm_eval = library()
    began = time.perf_counter()
    manager = task_manager(include)
    wanted = [_task(task, manager, (data or {}).get(task)) for task in tasks]
    model = language_model(sampler, progress, partial)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        answer = lm_eval.simple_evaluate(
            model=model,
            tasks=wanted,
            num_fewshot=shots,
            limit=limit,
            task_manager=manager,
            bootstrap_iters=0,
            log_samples=False,
        )
    except UserError:
        raise
    except (
        Exception
    ) as error:  # data that is not there, a task file that is none: the harness raises many kinds
        first = next(iter(str(error).splitlines()), "")
        raise UserError(
            f"lm-evaluation-harness could not run {', '.join(tasks)}: "
            f"{type(error).__name__}: {printable(first)[:200]}",
            hint="its data come from the hub; the option `task_data=TASK=FILE` names a local file",
        ) from None
    seconds = time.perf_counter() - began
    version = lm_eval.__version__
    return [
        _result(sampler, name, task, answer, model.truncated, seconds, version, key)
        for task in answer["results"]
    ]


def library() -> Any:
    try:
        import lm_eval
        import lm_eval.tasks
    except ImportError:
        raise UserError(
            "other tasks need lm-evaluation-harness", hint='pip install "onecard[eval]"'
        ) from None
    return lm_eval


@cache
def task_manager(include: Path | None = None) -> Any:
    """The harness's index of tasks: it reads thousands of files, so one serves all models of a command."""
    return library().tasks.TaskManager(include_path=str(include) if include else None)


def _task(name: str, manager: Any, file: Path | None) -> Any:
    if name not in manager.all_tasks:
        close = nearest(name, manager.all_tasks)
        raise UserError(
            f"lm-evaluation-harness has no task {name!r}",
            hint=close or "`lm_eval ls tasks` lists them",
        )
    if file is None:
        return name
    kind = _LOCAL_KINDS.get(file.suffix)
    if kind is None or not file.is_file():
        raise UserError(f"{file} is no file of items", hint="a .jsonl, .parquet or .csv file")
    from lm_eval.tasks._yaml_loader import load_yaml

    own = manager.task_index[name].yaml_path
    if own is None:
        raise UserError(
            f"{name} is written in Python and takes no file",
            hint="leave the option `task_data` out",
        )
    splits = dict.fromkeys(("train", "validation", "test"), str(file.resolve()))
    return {
        **load_yaml(own, resolve_func=True),
        "task": name,
        "dataset_path": kind,
        "dataset_name": None,
        "dataset_kwargs": {"data_files": splits},
    }


def _grouped(requests: Any) -> tuple[list[Question], list[tuple[int, int]]]:
    """Requests that share a context become one question, so that the context is computed once."""
    contexts: dict[tuple[int, ...], list[Sequence[int]]] = {}
    places: list[tuple[tuple[int, ...], int]] = []
    for _, context, ending in requests:
        endings = contexts.setdefault(tuple(context), [])
        places.append((tuple(context), len(endings)))
        endings.append(ending)
    numbers = {context: number for number, context in enumerate(contexts)}
    questions = [Question(list(context), endings) for context, endings in contexts.items()]
    return questions, [(numbers[context], ending) for context, ending in places]


def _answer(sampler: Sampler, context: str, settings: Mapping[str, Any]) -> str:
    """Greedy (or sampled) text until one of the task's stop words."""
    until = settings.get("until") or []
    stops = [until] if isinstance(until, str) else list(until)
    room = sampler.model.config.block_size
    count = min(int(settings.get("max_gen_toks") or _MOST_NEW_TOKENS), max(room - 1, 1))
    prompt = sampler.encode(context)[-max(room - count, 1) :]
    heat = float(settings.get("temperature") or 0.0) if settings.get("do_sample") else 0.0
    eot = sampler.tokenizer.eot
    stream = TextStream(
        sampler,
        prompt,
        Sampling(heat),
        most_tokens=count,
        stop_tokens=() if eot is None else (eot,),
        stop_texts=stops,
    )
    return "".join(stream)


def _result(
    sampler: Sampler,
    name: str,
    task: str,
    answer: Mapping[str, Any],
    cut: int,
    seconds: float,
    version: str,
    key: str,
) -> Result:
    figures = []
    values = answer["results"][task]
    for label, value in values.items():
        metric, _, kind = label.partition(",")
        if metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = values.get(f"{metric}_stderr,{kind}")
        if not math.isfinite(value):
            continue
        if isinstance(error, int | float) and math.isfinite(error) and metric.startswith("acc"):
            bounds = (max(value - Z * error, 0.0), min(value + Z * error, 1.0))
            figures.append(Figure(metric, float(value), *bounds))
        elif kind:
            figures.append(Figure(metric, float(value)))
    counts = answer.get("n-samples", {}).get(task, {})
    shots = answer.get("n-shot", {}).get(task, 0)
    items, whole = int(counts.get("effective", 0)), int(counts.get("original", 0))
    return Result(
        model=name,
        step=sampler.step,
        task=task,
        protocol=f"lm-evaluation-harness {version}, {shots}-shot",
        items=items,
        truncated=cut,
        figures=tuple(figures),
        seconds=seconds,
        of=whole if items < whole else None,
        key=key,
        tokenizer=tokenizer_name(sampler),
    )
