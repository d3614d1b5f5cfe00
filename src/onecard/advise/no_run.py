"""Why a search found no run at all: what to say, and what to try instead."""

from onecard.advise.budget import Budget
from onecard.advise.savers import Tuned
from onecard.advise.schedule import FEWEST_STEPS, SMALLEST_BATCH
from onecard.errors import UserError
from onecard.facts.card_names import short_name
from onecard.facts.gpus import Device


class NotCovered(UserError):
    """No public loss says which run is best here: other data or tokens, or too little time. `small_run` still has an answer."""


def why_nothing(
    device: Device, budget: Budget, smallest: Tuned | None, lowest_loss: float
) -> UserError:
    """`smallest`: the smallest model on the card; None where it does not fit. `lowest_loss`: of any size and length."""
    if smallest is None:
        return UserError(
            f"no model worth training fits in the {device.usable_bytes / 2**30:.1f} GiB of the {short_name(device.name)}",
            hint="even the smallest, with every memory saver, does not; try another card",
        )
    if budget.loss is not None:
        return UserError(
            f"no run on the {short_name(device.name)} that public losses cover is expected to reach a loss of {budget.loss:g}",
            hint=f"about {lowest_loss:.2f} is the lowest for any size on this data; try a higher loss or more data",
        )
    if budget.tokens is not None:
        return UserError(
            f"{budget.tokens:,.0f} tokens are too few to train anything",
            hint=f"even the smallest model needs {FEWEST_STEPS} steps of {SMALLEST_BATCH:,}: for example 1B",
        )
    training = FEWEST_STEPS * SMALLEST_BATCH * smallest.seconds_per_token
    need = training + smallest.time.compile_seconds
    return NotCovered(
        f"that time is too little to train anything on the {short_name(device.name)}",
        hint=f"even the smallest model needs {FEWEST_STEPS} steps, about {need / 60 + 1:.0f} min: give it more time",
    )
