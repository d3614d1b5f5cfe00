"""What onecard's own small runs and the public ones say of the two recipes where no loss is predicted: the run is too small
for the public runs, or its text is not theirs. Two reasons, two sentences; both quote the longest budget beside the shortest,
since the lead shrinks as runs grow.

>>> str(recipe_reason(1e6)).startswith("the modern recipe: no public run of it is this small")
True
>>> str(recipe_reason(120e6)).startswith("the modern recipe: no public run compares the two on this text")
True
"""

from onecard.messages import Note
from onecard.planner.loss_settings import loss_fit

# Of the tokens of GPT-2's tuned recipe, what the modern one needs to its loss: by the tokens of GPT-2's run, on the worst of the
# texts measured at that length (docs/performance.md; a test compares). Time is left out: it depends on the machine and the dtype.
SHARES = {2e6: 0.17, 16e6: 0.26}


def recipe_reason(size: float) -> Note:
    """Why a run that no public loss covers takes the modern recipe; `size` in parameters that a token is multiplied with."""
    return small_run_recipe() if size < loss_fit()["modern_runs"]["sizes"][0] else other_text()


def small_run_recipe() -> Note:
    return Note("small-run-recipe", **_figures())


def other_text() -> Note:
    """Public runs are of web text; ours are of three other texts. The modern recipe leads on every one."""
    sizes = loss_fit()["modern_runs"]["sizes"]
    return Note("recipe-other-text", low=sizes[0], high=sizes[-1], **_figures())


def _figures() -> dict[str, float]:
    (short, first), (long, last) = min(SHARES.items()), max(SHARES.items())
    return {"short": short, "first": first, "long": long, "last": last}
