"""What a run should have done so far and what is still to come: its own plan, or one made from its config and card."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onecard.errors import UserError
from onecard.facts.datasets import known_dataset
from onecard.planner import RunPlan, plan
from onecard.planner.corpus import corpus_of
from onecard.runs.loss_curve import between
from onecard.runs.resolve import ResolvedRun
from onecard.untrusted import finite

_PLANNED_FORMATS = ("nanogpt", "onecard", "llm.c")
_EARLIEST = 0.02  # share of the run from which a projection means something

_PREDICTED = {
    "step_seconds": "time.step_seconds.mid",
    "step_seconds_low": "time.step_seconds.low",
    "step_seconds_high": "time.step_seconds.high",
    "tokens_per_second": "time.tokens_per_second.mid",
    "mfu_card": "mfu.card.mid",
    "final_loss": "loss.expected.mid",
    "final_loss_low": "loss.expected.low",
    "final_loss_high": "loss.expected.high",
    "kwh": "energy.kwh.mid",
    "total_seconds": "time.total_seconds.mid",
}


@dataclass(frozen=True)
class Forecast:
    plan: RunPlan | None = None
    predicted: Mapping[str, float | None] = field(default_factory=dict)
    projected_loss: float | None = None
    seconds_left: float | None = None


def forecast(resolved: ResolvedRun, max_steps: int | None, final_loss: float | None) -> Forecast:
    """From values without conflict alone: a config that the log contradicts is None here."""
    run, step_seconds = resolved.run, resolved.step_seconds
    planned = _plan(resolved)
    if run.state == "finished":  # max_hours may end a run before its last step
        max_steps = run.last_step
    left = None
    if max_steps is not None and step_seconds is not None:
        left = max(0, max_steps - run.last_step) * step_seconds
    source = run.plan or (planned.to_json() if planned is not None else None)
    predicted = {name: _number_at(source, path) for name, path in _PREDICTED.items()}
    reading = resolved.device.memory_reading if resolved.device is not None else "process"
    predicted["memory_bytes"] = _number_at(source, f"memory.{reading}_bytes.mid")
    return Forecast(
        plan=planned,
        predicted=predicted if source else {},
        projected_loss=_projected(planned, run.last_step, max_steps, final_loss),
        seconds_left=left,
    )


def _plan(resolved: ResolvedRun) -> RunPlan | None:
    if resolved.config is None or resolved.device is None:
        return None
    if resolved.run.format not in _PLANNED_FORMATS:
        return None
    try:
        data = _data_of(resolved.run.format, resolved.config.dataset)
        return plan(resolved.config, resolved.device, gpus=resolved.gpus, data=data)
    except UserError:
        return None


def _data_of(written_by: str, dataset: str) -> str | None:
    """A log of another program read a set of that name elsewhere: not the part of it that was prepared here for a try."""
    known = known_dataset(dataset)
    if written_by == "onecard" or known is None or not corpus_of(dataset, asked=False).notes:
        return None
    return known.name


def _number_at(tree: Mapping[str, Any] | None, path: str) -> float | None:
    """A finite number in a plan's JSON, which may come from anywhere."""
    node: Any = tree
    for name in path.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return finite(node)


def _projected(
    planned: RunPlan | None, step: int, max_steps: int | None, final_loss: float | None
) -> float | None:
    """The plan's final loss moved by how far the run is off the plan's curve now; None where there is no such curve."""
    if planned is None or planned.loss is None or max_steps is None or final_loss is None:
        return None
    if step >= max_steps:
        return final_loss
    expected = expected_at(planned, step)
    if expected is None or step < _EARLIEST * max_steps:
        return None
    # An early lead or lag shrinks along the schedule: the law's floor is the same for both.
    return planned.loss.expected.mid + (final_loss - expected) * step / max_steps


def expected_at(planned: RunPlan, step: float) -> float | None:
    """The plan's loss curve at a step."""
    if planned.loss is None or not planned.loss.curve or not math.isfinite(step):
        return None
    steps = [float(each) for each, _ in planned.loss.curve]
    return between(steps, [loss for _, loss in planned.loss.curve], step)
