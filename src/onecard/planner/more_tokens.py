"""How many more tokens should bring a run to a HellaSwag accuracy, where the public runs say anything about it.

The line from loss to accuracy (expected_hellaswag.py) names the loss to reach, the loss law (expected_loss.py) the length of a
run of the same recipe that ends there. How far the run is off the law now, it stays off.
"""

from onecard.config import RunConfig
from onecard.planner.expected_hellaswag import loss_for_hellaswag
from onecard.planner.expected_loss import LossEstimate, expected_loss
from onecard.planner.result import Range

_MOST_TIMES_LONGER = 1024


def more_tokens(
    config: RunConfig,
    dataset: str,
    unique_tokens: float | None,
    step: int,
    loss: float,
    accuracy: float,
) -> Range | None:
    """Tokens beyond `step`, where the run had this validation loss; None where a fit does not reach, or where the loss is
    within the line's error of the one that the accuracy needs."""
    goal = loss_for_hellaswag(dataset, accuracy)
    if goal is None or config.init_from not in ("scratch", "resume") or step < 1:
        return None
    now = _longer(config, config.max_iters, dataset, unique_tokens)
    if now is None or not now.in_support or loss <= goal.high:
        return None
    off = loss - now.expected_at(step)
    lengths = []
    for wanted in (goal.high, goal.mid, goal.low):
        steps = _steps_to(wanted - off, config, step, dataset, unique_tokens)
        if steps is None:
            return None
        lengths.append(float((steps - step) * config.tokens_per_step))
    return Range(*lengths)


def _longer(
    config: RunConfig, steps: int, dataset: str, unique_tokens: float | None
) -> LossEstimate | None:
    """The estimate for a run of so many steps, its decay at its end."""
    if steps != config.max_iters:
        config = config.replace(max_iters=steps, lr_decay_iters=steps)
    tokens = float(steps * config.tokens_per_step)
    return expected_loss(config, tokens, dataset, unique_tokens)


def _steps_to(
    wanted: float, config: RunConfig, step: int, dataset: str, unique_tokens: float | None
) -> int | None:
    """The shortest run beyond `step` that ends at this loss or below; None where no supported length does."""

    def ends_there(steps: int) -> bool:
        estimate = _longer(config, steps, dataset, unique_tokens)
        return estimate is not None and estimate.final.mid <= wanted

    low, high = step, step
    while not ends_there(high):
        low, high = high, 2 * high
        if high > step * _MOST_TIMES_LONGER:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ends_there(middle) else (middle, high)
    estimate = _longer(config, high, dataset, unique_tokens)
    return high if high > step and estimate is not None and estimate.in_support else None
