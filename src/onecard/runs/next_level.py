"""The released model just above a run's HellaSwag result, and how many more tokens should reach it.

    result = with_next_level(result, Path("out"))
    result.next_level.model, result.next_level.tokens

The run's own validation loss and its config say how long a run must be (planner/more_tokens.py). The fit is for completion
style, so the level is the released model's in that style, whatever protocol the result is of.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.facts.benchmarks import known_figures
from onecard.planner.corpus import corpus_of
from onecard.planner.more_tokens import more_tokens
from onecard.runs.eval_meaning import beside
from onecard.runs.eval_results import NextLevel, Result
from onecard.runs.log import read_log
from onecard.runs.record import RunRecord

_FIGURE = "acc_norm"


def with_next_level(result: Result, run_folder: Path) -> Result:
    """The result with its next level, where it is of HellaSwag and the fits reach that far; else as it is."""
    figure, known = result.figure(_FIGURE), beside(result)
    in_style = known_figures("hellaswag", "completion")
    if result.task != "hellaswag" or figure is None or known is None or in_style is None:
        return result
    highest = figure.value if figure.high is None else figure.high
    above = [name for name, values in known.models.items() if values.get(_FIGURE, 0.0) > highest]
    if not above:
        return result
    accuracy = in_style.models.get(above[0], {}).get(_FIGURE)
    try:
        record = RunRecord.open(run_folder)
        config, plan, loss = record.config(), record.plan(), _loss_at(record, result.step)
        if accuracy is None or loss is None or config.learn_from != "all":
            return result
        family, unique = _data(config, plan)
    except (UserError, OSError):
        return result  # a folder that somebody took apart
    level = more_tokens(config, family, unique, result.step, loss, accuracy) if family else None
    if level is None:
        return result
    return replace(result, next_level=NextLevel(above[0], level.mid, level.low, level.high))


def _loss_at(record: RunRecord, step: int) -> float | None:
    """The validation loss of this very step."""
    lines = (line for line in read_log(record.log_path) if line.get("kind") == "eval")
    losses = [line.get("val_loss") for line in lines if line.get("step") == step]
    return losses[-1] if losses and isinstance(losses[-1], float) else None


def _data(config: RunConfig, plan: Mapping[str, Any] | None) -> tuple[str | None, float | None]:
    """The text that the run read, as the fits name it, and its distinct tokens: by its plan, which outlives the data folder."""
    tokens = plan.get("tokens") if plan else None
    loss = plan.get("loss") if plan else None
    if isinstance(loss, Mapping) and isinstance(tokens, Mapping):
        family, unique = loss.get("dataset"), tokens.get("unique")
        return (
            family if isinstance(family, str) else None,
            float(unique) if isinstance(unique, int) and unique > 0 else None,
        )
    if plan is not None:
        return None, None
    corpus = corpus_of(config.dataset, asked=False)
    return corpus.family, corpus.tokens
