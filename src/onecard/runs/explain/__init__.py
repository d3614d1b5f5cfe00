"""Why a run is as it is: rules over its figures, each a small function that gives findings or nothing.

    explain(figures(run, card))        one run
    explain_pair(compare([a, b]))      what a comparison shows, with what each run shows alone

A group of rules is a file: reading (what the log itself tells and hides), speed, loss, misreadings. A rule states when
it does not apply. Where the figures do not decide, the finding says so and names what would.
"""

from typing import TYPE_CHECKING

from onecard.runs.explain import loss, misreadings, reading, speed
from onecard.runs.explain.finding import Finding
from onecard.runs.figures import RunFigures

if TYPE_CHECKING:
    from onecard.runs.compare import Comparison

__all__ = ["Finding", "explain", "explain_pair"]


def explain(f: RunFigures) -> list[Finding]:
    """What one run shows, what matters most first."""
    rules = (*reading.RULES, *misreadings.RULES, *speed.RULES, *loss.RULES)
    return [finding for rule in rules for finding in rule(f)]


def explain_pair(c: "Comparison") -> list[Finding]:
    """What the runs show side by side, then each alone."""
    together = [
        finding for rule in (*reading.PAIR_RULES, *misreadings.PAIR_RULES) for finding in rule(c)
    ]
    return together + [finding for f in c.runs for finding in explain(f)]
