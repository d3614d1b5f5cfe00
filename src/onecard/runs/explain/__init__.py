"""Why a run is as it is: rules over its figures, each a small function that gives findings or nothing.

    explain(figures(run, card))                one run
    explained(compare([a, b])).findings        what a comparison shows, then what each run shows alone

A group of rules is a file: log_findings (what the log itself shows and hides, what is misread in it), plan_findings,
speed_findings, loss_findings, recipe_findings, source_findings (mixes), tune_findings, eval_findings (kept results),
pair_findings and schedule_findings (two runs side by side). A rule states when it does not apply. Where the figures do not decide, the finding says so and names what would.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from onecard.runs.compare import Comparison
from onecard.runs.explain import (
    eval_findings,
    log_findings,
    loss_findings,
    pair_findings,
    plan_findings,
    recipe_findings,
    schedule_findings,
    source_findings,
    speed_findings,
    tune_findings,
)
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding

__all__ = ["Finding", "explain", "explained"]

Rule = Callable[[RunFigures], Iterator[Finding]]
_RULES: tuple[Rule, ...] = (
    *log_findings.RULES,
    *plan_findings.RULES,
    *speed_findings.RULES,
    *loss_findings.RULES,
    *recipe_findings.RULES,
    *source_findings.RULES,
    *tune_findings.RULES,
    *eval_findings.RULES,
)


def explain(f: RunFigures) -> tuple[Finding, ...]:
    """What one run shows, what matters most first."""
    return _found(f, _RULES)


def _found(f: RunFigures, rules: Iterable[Rule]) -> tuple[Finding, ...]:
    return tuple(replace(finding, runs=(f.name,)) for rule in rules for finding in rule(f))


def explained(comparison: Comparison) -> Comparison:
    """The comparison with its findings: what the runs show side by side, then each alone."""
    groups = (tune_findings, pair_findings, schedule_findings, source_findings)
    rules = [rule for group in groups for rule in group.PAIR_RULES]
    # what tuning cost belongs to the comparison with the base
    cost = [finding for f in comparison.runs for finding in _found(f, [tune_findings.forgotten])]
    together = [finding for rule in rules for finding in rule(comparison)]
    alone = [finding for f in comparison.runs for finding in explain(f) if finding not in cost]
    return replace(comparison, findings=(*cost, *together, *alone))
