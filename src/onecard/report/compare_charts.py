"""The curves of runs: loss against tokens, hours and FLOPs, and one run against what its plan expects."""

from collections.abc import Sequence

from onecard.messages import T
from onecard.report.document import Block, LineChart, Series
from onecard.runs.compare import amount_of
from onecard.runs.figures import RunFigures, expected_at

POINTS = 120  # of a plotted curve
AXIS: dict[str, tuple[T, T, str]] = {
    # title of the table, label of the plot, how the amount is printed
    "steps": (T("At equal steps"), T("steps"), "int"),
    "tokens": (T("At equal tokens"), T("tokens"), "count"),
    "hours": (T("At equal hours"), T("hours of training"), "hours"),
    "flops": (T("At equal FLOPs"), T("FLOPs"), "power"),
}


def expected_loss(figures: RunFigures, step: float) -> float | None:
    return expected_at(figures.plan, step) if figures.plan is not None and step > 0 else None


def own_chart(figures: RunFigures) -> list[Block]:
    """One run against what the plan expects of it."""
    points = _curve(figures, "tokens")
    if len(points) < 2 or not figures.tokens_per_step:
        return charts([figures])
    steps = [figures.run.last_step * i / 60 for i in range(1, 61)]
    known = [
        (step * figures.tokens_per_step, loss)
        for step in steps
        if (loss := expected_loss(figures, step)) is not None
    ]
    series = [
        Series(figures.name, points),
        *([Series(T("expected loss"), tuple(known))] if len(known) > 1 else []),
    ]
    return [LineChart(T("Loss against tokens"), tuple(series), T("tokens"), T("loss"))]


def charts(runs: Sequence[RunFigures]) -> list[Block]:
    blocks: list[Block] = []
    for axis, title in (
        ("tokens", T("Loss against tokens")),
        ("hours", T("Loss against hours")),
        ("flops", T("Loss against FLOPs")),
    ):
        series = [
            Series(figures.name, points)
            for figures in runs
            if len(points := _curve(figures, axis)) > 1
        ]
        if len(series) == len(runs):
            _, label, spec = AXIS[axis]
            blocks.append(
                LineChart(
                    title,
                    tuple(series),
                    label,
                    T("loss"),
                    x_spec=".3g" if spec == "hours" else spec,
                )
            )
    return blocks


def _curve(figures: RunFigures, axis: str) -> tuple[tuple[float, float], ...]:
    """A run's training losses against an amount, thinned to what a plot shows; its evaluations where there are none."""
    steps: Sequence[float] = figures.run.curve.steps
    losses: Sequence[float] = figures.run.curve.losses
    if len(steps) < 2:
        known = [
            (float(evaluation.step), evaluation.val_loss)
            for evaluation in figures.run.evals
            if evaluation.val_loss is not None
        ]
        steps, losses = [step for step, _ in known], [loss for _, loss in known]
    every = max(1, len(steps) // POINTS)
    points = []
    for i in range(0, len(steps), every):
        amount = amount_of(figures, axis, steps[i])
        if amount is not None:
            points.append((amount, sum(losses[i : i + every]) / len(losses[i : i + every])))
    return tuple(points)
