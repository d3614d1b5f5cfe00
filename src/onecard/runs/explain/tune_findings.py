"""What tuning cost: the loss on the base's own text before and after; which run was tuned from which."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from onecard.messages import Note
from onecard.runs.compare import Comparison
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding
from onecard.runs.run import Run

_NOISE = 0.01  # nats: less is neither forgetting nor gain
_MUCH = 0.1
FORGOTTEN = frozenset({"forgotten", "forgotten-much", "not-forgotten"})


def base_text_losses(run: Run) -> tuple[float, float] | None:
    """The loss on the base's own validation text before the first step and at the last evaluation."""
    known = [(e.step, e.base_val_loss) for e in run.evals if e.base_val_loss is not None]
    if len(known) < 2 or known[0][0] != 0:
        return None
    return known[0][1], known[-1][1]


def forgotten(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to a run that was not tuned, or whose base's text was not available."""
    known = base_text_losses(f.run)
    if known is None:
        return
    before, after = known
    figures = {"before": before, "after": after, "change": after - before}
    evidence = {"base_val_loss": [before, after]}
    if after - before > _MUCH:
        note = Note("forgotten-much", **figures)
    elif after - before > _NOISE:
        note = Note("forgotten", **figures)
    else:
        note = Note("not-forgotten", **figures)
    yield Finding(note, evidence)


def is_base_of(base: RunFigures, tuned: RunFigures) -> bool:
    """Whether `tuned` began from `base`'s weights, by what its config says it was initialised from."""
    if base.config is None or tuned.config is None or tuned.config.learn_from != "answers":
        return False
    return Path(tuned.config.init_from).resolve() == Path(base.run.source).resolve()


def tuned_from(c: Comparison) -> Iterator[Finding]:
    """Does not apply where neither run was tuned from the other."""
    for pair in combinations(c.runs, 2):
        for base, tuned in (pair, pair[::-1]):
            if is_base_of(base, tuned):
                yield Finding(
                    Note("tuned-from", tuned=tuned.name, base=base.name),
                    {"init_from": base.run.source},
                    (base.name, tuned.name),
                )


RULES = (forgotten,)
PAIR_RULES = (tuned_from,)
