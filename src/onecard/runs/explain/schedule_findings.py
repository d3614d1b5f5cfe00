"""Whether a comparison at equal amounts sets a finished run against one in mid-schedule: a loss falls as the learning rate comes down.

unequal_schedules(comparison)     "after 3.29 M tokens modern is at the end of its schedule, …"
"""

from collections.abc import Iterator
from itertools import permutations

from onecard.messages import Note, T
from onecard.planner.loss_settings import learning_rate_share
from onecard.runs.compare import Comparison
from onecard.runs.equal_amounts import step_of
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding
from onecard.units import HOUR

# of the way that a rate comes down, what is left of it: a run that has less is finished, one that has more in mid-schedule
_FINISHED, _UNDER_WAY = 0.05, 0.15


def unequal_schedules(c: Comparison) -> Iterator[Finding]:
    """Does not apply where both runs are at the ends of their schedules or both under way, where the one under way leads all the
    same, nor to configs that are unknown or keep the rate constant."""
    named = set()
    for axis in ("tokens", "hours"):
        if c.comparable is not None or not c.at_equal[axis]:
            continue
        row = c.at_equal[axis][-1]
        for (i, done), (k, other) in permutations(enumerate(c.runs), 2):
            left = _left_at(done, axis, row.at), _left_at(other, axis, row.at)
            if left[0] is None or left[1] is None or (i, k) in named or row.winner == k:
                continue
            if left[0] <= _FINISHED and left[1] >= _UNDER_WAY:
                named.add((i, k))
                amount = (
                    T("{tokens:count} tokens", tokens=row.at)
                    if axis == "tokens"
                    else T("{time:duration} of training", time=row.at * HOUR)
                )
                yield Finding(
                    Note("unequal-schedules", amount=amount, done=done.name, other=other.name),
                    {"axis": axis, "at": row.at, "rate_left": list(left)},
                    (done.name, other.name),
                )


def _left_at(f: RunFigures, axis: str, amount: float) -> float | None:
    """How much of the way down the learning rate has still to go; None where it never goes down, or is not known."""
    step, config = step_of(f, axis, amount), f.config
    if config is None or step is None or not config.decay_lr or not f.run.last_step:
        return None
    end = config.lr_decay_iters
    floor = learning_rate_share(config, end)
    if floor >= 1:
        return None
    # max_hours ends a run before its last step, with its schedule hurried to the end by then
    hurried = f.run.state == "finished" and f.run.last_step < min(end, config.max_iters)
    at = step * end / f.run.last_step if hurried else step
    return (learning_rate_share(config, round(at)) - floor) / (1 - floor)


PAIR_RULES = (unequal_schedules,)
