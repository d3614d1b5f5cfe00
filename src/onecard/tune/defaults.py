"""Settings of a tuning run by the model's size and the amount of data, each with its reason.

>>> round(rate_by_size(124_439_808), 7)
6e-05
"""

from dataclasses import dataclass
from typing import Any

from onecard.config import RunConfig
from onecard.config.model_rules import EVALUATION_SHARE, SMALLEST_PADDED
from onecard.messages import Note
from onecard.tune.base import Base
from onecard.tune.prepare import Prepared

_RATE_SHARE = 0.1  # of the rate that the model was trained with
_STEPS = 100  # aimed at, where there is enough data
_MOST_SEQUENCES = 64
_MICRO_BATCH = 8
_MOST_EVALUATIONS = 10
_EVALUATED_SHARE = 0.1  # of the training's work that evaluations may take
KEEP_BASE = 0.1


@dataclass(frozen=True)
class Choice:
    """One setting and why."""

    key: str
    value: Any
    why: Note


def rate_by_size(parameters: int) -> float:
    """A tenth of GPT-3's rate at that size (Brown et al., 2020, table 2.1: 6e-4 at 125M, 2e-4 at 1.3B)."""
    rate: float = _RATE_SHARE * 6e-4 * (124_439_808 / parameters) ** 0.47
    return min(1e-3, max(5e-6, rate))


def epochs_for(distinct: int) -> int:
    """Passes over the conversations."""
    return 3 if distinct < 20_000 else 2 if distinct < 100_000 else 1


def choices(
    base: Base, prepared: Prepared, distinct: int, epochs: float | None, given: dict[str, Any]
) -> list[Choice]:
    """What the run is set to where the user did not say; the length follows from the batch that was chosen."""
    chosen = [_rate(base)]
    rate = float(given.get("learning_rate") or chosen[0].value)
    passes = epochs or epochs_for(distinct)
    why = Note("tune-epochs", distinct=distinct) if epochs is None else Note("tune-epochs-asked")
    chosen.append(Choice("epochs", passes, why))
    wanted = min(_MOST_SEQUENCES, max(1, round(prepared.windows * passes / _STEPS)))
    micro = int(given.get("batch_size") or min(wanted, _MICRO_BATCH))
    accumulation = int(given.get("gradient_accumulation_steps") or max(1, round(wanted / micro)))
    sequences = micro * accumulation
    steps = int(given.get("max_iters") or max(1, round(prepared.windows * passes / sequences)))
    batch = Note("tune-batch", sequences=sequences, steps=steps)
    chosen += [
        Choice("batch_size", micro, batch),
        Choice("gradient_accumulation_steps", accumulation, batch),
        Choice("max_iters", steps, Note("tune-steps", epochs=passes, windows=prepared.windows)),
        Choice("lr_decay_iters", steps, Note("tune-decay")),
        Choice("warmup_iters", min(steps, max(1, round(0.03 * steps))), Note("tune-warmup")),
        Choice("min_lr", rate / 10, Note("tune-decay")),
        Choice("weight_decay", 0.0, Note("tune-weight-decay")),
        *_evaluations(prepared, steps, sequences, micro),
    ]
    if not base.is_run and base.rows >= SMALLEST_PADDED:
        chosen.append(Choice("chunked_loss", True, Note("tune-chunked", rows=base.rows)))
    return chosen


def _evaluations(prepared: Prepared, steps: int, sequences: int, micro: int) -> list[Choice]:
    """As many as cost a tenth of the training, at most ten; the last step's is always made."""
    one = EVALUATION_SHARE * (prepared.val_windows + prepared.base_val_windows)
    training = steps * sequences
    count = min(_MOST_EVALUATIONS, steps, max(1, int(_EVALUATED_SHARE * training / one)))
    why = Note("tune-evaluations", count=count, share=count * one / training)
    return [
        Choice("eval_interval", -(-steps // count), why),
        Choice("eval_iters", -(-prepared.val_windows // micro), why),
    ]


def _rate(base: Base) -> Choice:
    if base.is_run:
        own = base.config.learning_rate
        return Choice("learning_rate", own * _RATE_SHARE, Note("tune-rate-run", rate=own))
    rate = float(f"{rate_by_size(base.parameters):.1e}")
    return Choice("learning_rate", rate, Note("tune-rate-size", params=base.parameters))


# a run's own way of computing: what changes speed, memory and the machine
_KEPT = (
    "device",
    "dtype",
    "compile",
    "backend",
    "attention",
    "chunked_loss",
    "recompute",
    "optimizer",
    "beta1",
    "beta2",
    "schedule",
    "weight_decay_on",
)
_SHAPE = ("n_layer", "n_head", "n_embd", "block_size", "bias", "recipe", "tied")


def config_of(
    base: Base, chosen: list[Choice], given: dict[str, Any], dataset: str, out_dir: str
) -> RunConfig:
    """The run's config: the base's shape, the choices, what was typed."""
    values: dict[str, Any] = {key: getattr(base.config, key) for key in _SHAPE}
    if base.is_run:
        values |= {key: getattr(base.config, key) for key in _KEPT}
    values |= {choice.key: choice.value for choice in chosen if choice.key != "epochs"}
    values |= {"log_interval": 1, "dropout": 0.0}
    values |= given
    fixed = {
        "out_dir": out_dir,
        "dataset": dataset,
        "init_from": base.source,
        "vocab_size": base.rows,
        "mask_documents": True,
        "learn_from": "answers",
    }
    return RunConfig.from_values({**values, **fixed})
