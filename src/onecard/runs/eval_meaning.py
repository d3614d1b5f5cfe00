"""What a figure means: the released GPT-2 sizes under the same protocol, chance, and one plain sentence."""

from onecard.facts.benchmarks import KnownFigures, known_figures
from onecard.messages import T
from onecard.runs.eval_results import Figure, Result, interval

CHANCE = {"hellaswag": 0.25}  # accuracy of guessing
_HARNESS = "lm-evaluation-harness"
_TASKS = {"lambada_openai": "lambada"}  # the harness's own names


def beside(result: Result) -> KnownFigures | None:
    """The released models' figures that this result may be compared with: same task, same protocol."""
    if not (result.protocol.startswith(_HARNESS) and "0-shot" in result.protocol):
        return None
    return known_figures(_TASKS.get(result.task, result.task), "lm-eval")


def chance(result: Result) -> float | None:
    return CHANCE.get(result.task)


def half_width(items: int, share: float = 0.5) -> float:
    """Half of Wilson's 95 % interval of a share of so many items; not 0 where no answer was right.

    >>> round(half_width(1000, 0.3), 3)
    0.028
    >>> round(half_width(10, 0.0), 3)
    0.139
    """
    low, high = interval(share, items)
    return (high - low) / 2


def meaning_of(result: Result) -> T | None:
    """Where the figure stands between chance and the released models, and the way to the next one where that is known;
    None where nothing is known to compare with."""
    place, level = _place_of(result), result.next_level
    if place is None or level is None:
        return place
    return T(
        "{place}; about {tokens:count} more tokens of the same training should bring it to {level} "
        "({low:count} to {high:count}, from its validation loss and public runs)",
        place=place,
        tokens=level.tokens,
        low=level.tokens_low,
        high=level.tokens_high,
        level=level.model,
    )


def _place_of(result: Result) -> T | None:
    known = beside(result)
    name = "acc_norm" if result.figure("acc_norm") else "acc"
    figure = result.figure(name)
    if known is None or figure is None or figure.low is None or figure.high is None:
        return None
    steps = [(T("chance"), chance(result))] if chance(result) is not None else []
    steps += [
        (T("{model}", model=model), values.get(name)) for model, values in known.models.items()
    ]
    return _placed(figure, [(words, value) for words, value in steps if value is not None])


def _placed(figure: Figure, steps: list[tuple[T, float]]) -> T:
    low, high = figure.low or 0.0, 1.0 if figure.high is None else figure.high
    for words, value in steps:
        if low <= value <= high:
            return T("not distinguishable from {level} with this many items", level=words)
    below = [words for words, value in steps if value < figure.value]
    above = [words for words, value in steps if value > figure.value]
    if not above:
        return T("above {level}", level=below[-1])
    if not below:
        return T("below {level}", level=above[0])
    return T("between {low} and {high}", low=below[-1], high=above[0])
