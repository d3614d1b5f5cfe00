"""The pictures of bench/lengths.py's runs: loss against tokens of one corpus and budget, and shares over the length of the run."""

from bench.far_end import FarEnd, Predicted
from bench.length_rules import TOKENS_GOAL
from bench.plots import OPPONENT, OTHER_COLOURS, OURS, Curve, Series, Target, chart


def losses_plot(run: Curve, ends: Curve, target: float, seeds: int) -> str:
    """`run`: the GPT-2 recipe's with the first seed; `ends`: of the modern recipe's complete runs. They are drawn differently, for
    a run on its way has a higher loss than one whose schedule ends there."""
    series = [
        Series(
            (
                "GPT-2 recipe: one run, on its way (its learning rate still high);",
                "the dot is its end",
            ),
            run,
            OPPONENT,
            dots="end",
            beside="begin",
        ),
        Series(
            ("modern recipe: ends of complete runs,", "each with a whole schedule"),
            ends,
            OURS,
            joined=False,
            dots="all",
            beside="before",
        ),
    ]
    heights = [y for _, y in (*run, *ends)]
    room = 0.14 * (max(heights) - min(heights))  # for the words beside the first and last points
    mean = f"mean of {seeds} seeds' ends" if seeds > 1 else "its end"
    return chart(
        series,
        ("tokens of training", "validation loss"),
        Target(target, f"GPT-2 recipe, {mean}: {target:.3f}", below=True, at=0.985),
        (min(heights) - room, max(heights) + room),
        ticks=[x for x, _ in ends if x < 0.9 * run[-1][0]] + [run[-1][0]],
    )


def shares_plot(shares: dict[str, Curve], end: FarEnd, prediction: Predicted) -> str:
    """Our runs by corpus; public runs, and the prediction for their size and length."""
    colours = dict(zip(shares, OTHER_COLOURS, strict=False))
    series = [
        Series((corpus,), sorted(curve), colours[corpus], dots="all")
        for corpus, curve in shares.items()
    ]
    whole = end.opponent.tokens
    series += [
        Series(
            (f"public: {words};", "opponent's rate not tuned"),
            [(whole, end.share(run))],
            "#555",
            dots="all",
            beside="before",
        )
        for words, run in end.runs.items()
    ]
    if prediction.share is not None:
        series.append(
            Series(
                ("prediction of the loss fit, not a run;", "opponent at the fit's best rate"),
                [(whole, prediction.share)],
                "#555",
                dots="all",
                hollow=True,
                beside="before",
            )
        )
    heights = [y for each in series for _, y in each.points]
    ticks = _apart([x for curve in shares.values() for x, _ in curve] + [whole])
    return chart(
        series,
        ("tokens of the GPT-2 recipe's run", "share of them that the modern recipe needs"),
        Target(TOKENS_GOAL, f"goal: at most {TOKENS_GOAL:g}", at=0.6),
        (0.0, max(*heights, TOKENS_GOAL) * 1.2),
        ticks=ticks,
    )


def _apart(numbers: list[float]) -> list[float]:
    """One of those that are almost the same."""
    kept: list[float] = []
    for number in sorted(numbers):
        if not kept or number > 1.3 * kept[-1]:
            kept.append(number)
    return kept
