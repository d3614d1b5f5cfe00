"""What docs/performance.md says of the tokens that each recipe takes to a loss: bench/lengths.py's runs."""

import statistics
from collections.abc import Iterable
from pathlib import Path

from bench.far_end import far_end, far_end_words, predicted
from bench.length_rules import BUDGETS, EVAL_TOKENS, TIME_GOAL, TOKENS_GOAL, end_loss
from bench.lengths_plots import losses_plot, shares_plot
from bench.lengths_verdict import Row, Verdict, by_place, is_the_recipe, verdict, words_of
from bench.plots import Curve, reached, short
from bench.step_cost_section import StepCost, nearest_cost, setting_words

CURVE_SHARES = 3  # a picture of losses over tokens has at least so many of the modern recipe's


def lengths(rows: list[Row], costs: list[StepCost], images: Path) -> list[str]:
    """Tokens, and time, that the modern recipe needs to the loss of the tuned GPT-2 recipe, by corpus and budget."""
    found = {place: verdict(part) for place, part in by_place(rows).items()}
    lines = [
        "## Tokens to the GPT-2 recipe's loss, at lengths that count",
        "",
        f"The protocol is in docs/LOG.md; bench/lengths.py makes the runs. Losses are of {judged_by(rows)}, means over the "
        "seeds in brackets. GPT-2's rate is the best of its runs over all tokens with the first seed (not tuned: it "
        "does not lie between two others). The share of its tokens is read between the modern recipe's complete runs of the second "
        "table, on a logarithmic scale. Time is that share times the ratio of the compiled steps above, the one whose dtype and "
        "threads are nearest to the runs'. "
        f"Goals: {TOKENS_GOAL} of the tokens, {TIME_GOAL} of the time.",
        "",
        "| corpus, budget | GPT-2's rate | share of the tokens | a step's time | share of the time |",
        "|---|---|---|---|---|",
        *(
            f"| {words_of(place)} | {' | '.join(cells(each, step_cost_of(each, place[1], costs)))} |"
            for place, each in found.items()
        ),
        *other_ratios(found, costs),
        "",
        *loss_table(found),
    ]
    missing = [budget for budget in BUDGETS if budget not in {row["budget"] for row in rows}]
    notes = [
        f"Not run yet: the budgets {', '.join(missing)}." if missing else "",
        epochs(rows),
        low_precision(rows),
        nanogpts(rows),
    ]
    for note in filter(None, notes):
        lines += ["", note]
    lines += over_lengths(found, images)
    return [*lines, "", *loss_pictures(found, images), *ideas(rows), ""]


def step_cost_of(found: Verdict, budget: str, costs: list[StepCost]) -> StepCost | None:
    return nearest_cost(costs, budget, found.dtype, found.threads)


def cells(found: Verdict, cost: StepCost | None) -> list[str]:
    """Of the table of shares."""
    if found.rate is None:
        return ["not run", "–", "–", "–"]
    most = "at most " if found.at_most else ""
    tokens, time = "not reached", "–"
    if found.share is not None:
        tokens = f"{most}{found.share:.3f}: {reached(found.share, TOKENS_GOAL, True)}"
    if found.share is not None and cost:
        product = found.share * cost.ratio
        time = f"{most}{product:.3f}: {reached(product, TIME_GOAL, True)}"
    rate = f"{found.rate:g}" if found.tuned else f"{found.rate:g}, not tuned"
    return [
        rate,
        tokens,
        f"{cost.ratio:.2f} × ({cost.processor}, {cost.where})" if cost else "–",
        time,
    ]


def loss_table(found: dict[tuple[str, str], Verdict]) -> list[str]:
    """What each length ends at; where both recipes ran over equal tokens, the difference seed by seed."""
    shares = sorted({share for each in found.values() for share in each.modern})
    heads = [f"{share:.3g} of them" if share != 1 else "equal tokens" for share in shares]
    lines = [
        "Losses at the end of complete runs: the GPT-2 recipe's at its best rate over all its tokens, the modern recipe's over shares "
        "of them; for equal tokens the difference too, of the same seeds.",
        "",
        f"| corpus, budget | its tokens | GPT-2 recipe | modern: {' | '.join(heads)} |",
        f"|---|---|---|{'---|' * len(heads)}",
    ]
    for place, each in found.items():
        row = [words_of(place), short(each.tokens) if each.run else "–"]
        row.append(f"{each.target:.4f} ({len(each.opponent)})" if each.opponent else "not run")
        for share in shares:
            ends = each.modern.get(share)
            cell = f"{ends.loss:.4f} ({len(ends.losses)})" if ends else "–"
            if ends and share == 1:
                cell += difference(ends.losses, each.opponent)
            row.append(cell)
        lines.append(f"| {' | '.join(row)} |")
    return lines


def difference(ours: dict[int, float], theirs: dict[int, float]) -> str:
    both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    return f", {statistics.fmean(both):+.4f}" if both else ""


def other_ratios(found: dict[tuple[str, str], Verdict], costs: list[StepCost]) -> list[str]:
    """Where the ratio of steps was not measured as the runs were made."""
    other: dict[str, list[str]] = {}
    for place, each in found.items():
        cost = step_cost_of(each, place[1], costs)
        if cost and (cost.dtype, cost.threads) != (each.dtype, each.threads):
            made = setting_words(each.dtype, each.threads)
            part = " (at least some of them)" if each.dtype == "bfloat16" else ""
            how = f"- runs made in {made}{part}, ratio measured in {cost.where}"
            other.setdefault(how, []).append(words_of(place))
    if not other:
        return []
    head = "No ratio of steps was measured in the dtype and threads of these runs, so another one was taken:"
    return ["", head, "", *(f"{how}: {'; '.join(places)}" for how, places in other.items())]


def judged_by(rows: Iterable[Row]) -> str:
    """Which validation tokens a loss is of; rows that do not say were judged by the first ones of the text."""
    by_windows = {
        spread: {words_of(place) for place in by_place(part)}
        for spread in (False, True)
        if (part := [row for row in rows if (row.get("windows") == "spread") is spread])
    }
    tokens = f"{EVAL_TOKENS:,} tokens of the validation text"
    if len(by_windows) == 1:
        return f"{tokens} at equal distances" if True in by_windows else f"the first {tokens}"
    # not to be compared with each other
    later = "; ".join(sorted(by_windows[True]))
    return f"the first {tokens}, with runs judged by as many at equal distances in {later}"


def epochs(rows: list[Row]) -> str:
    """How often the longest runs read their corpus."""
    passes = {}
    for place, part in by_place(rows).items():
        for row in part:
            if row["share"] == 1 and row["recipe"] == "gpt2" and "train_tokens" in row:
                passes[words_of(place)] = row["curve"][-1]["tokens"] / row["train_tokens"]
    words = "; ".join(f"{where}: {times:.2f}" for where, times in passes.items())
    return f"Epochs of the GPT-2 recipe's runs: {words}." if words else ""


def low_precision(rows: list[Row]) -> str:
    places = [
        words_of(place)
        for place, part in by_place(rows).items()
        if any(row.get("dtype") == "bfloat16" for row in part)
    ]
    if not places:
        return ""
    return (
        f"Some or all runs in bf16: {'; '.join(places)}. That bf16 moves a loss by less than another seed does was seen in runs of 30 and "
        "40 steps alone (docs/LOG.md), not over a whole run."
    )


def nanogpts(rows: list[Row]) -> str:
    """The second opponent, at the rate that was the GPT-2 recipe's best when it ran."""
    ends: dict[tuple[str, float], list[float]] = {}
    for place, part in by_place(rows).items():
        for row in part:
            if row["recipe"] == "nanogpt":
                ends.setdefault((words_of(place), row["rate"]), []).append(end_loss(row))
    words = "; ".join(
        f"{where}: {statistics.fmean(losses):.4f} ({rate:g}, {len(losses)})"
        for (where, rate), losses in ends.items()
    )
    start = "nanoGPT's own code over the same tokens (its rate and its number of seeds)"
    return f"{start}: {words}." if words else ""


def over_lengths(found: dict[tuple[str, str], Verdict], images: Path) -> list[str]:
    """How the advantage changes with the length of the run, with the far end beside it."""
    shares: dict[str, Curve] = {}
    for (corpus, _), each in found.items():
        if each.share is not None:
            shares.setdefault(corpus, []).append((each.tokens, each.share))
    if not shares:
        return []
    end = far_end()
    published, best = (predicted(end.opponent, tuned) for tuned in (False, True))
    (images / "lengths-shares.svg").write_text(shares_plot(shares, end, best), encoding="utf-8")
    return [
        "",
        "### The share over the length of the run",
        "",
        *far_end_words(end, published, best),
        "",
        "![share of the GPT-2 recipe's tokens, over its tokens](images/lengths-shares.svg)",
    ]


def loss_pictures(found: dict[tuple[str, str], Verdict], images: Path) -> list[str]:
    lines = []
    for place, each in found.items():
        if not each.run or len(each.modern) < CURVE_SHARES:
            continue
        name = f"lengths-{'-'.join(place)}.svg"
        ends = [(float(one.tokens), one.loss) for one in each.modern.values()]
        drawn = losses_plot(each.run, ends, each.target, len(each.opponent))
        (images / name).write_text(drawn, encoding="utf-8")
        lines.append(f"![{words_of(place)}: loss against tokens](images/{name})")
    if not lines:
        return []
    return [
        "### Losses over tokens",
        "",
        "The line is one run of the GPT-2 recipe, the first seed's, evaluated on its way while its learning rate is still high; its last "
        "point alone is the end of a schedule. The dots are the ends of complete runs of the modern recipe, each with a whole "
        "schedule of its own, means of their seeds. So the dots are to be compared with the dashed line, not with the curve above them.",
        "",
        *lines,
    ]


def identity(row: Row) -> tuple[str, str, float, int]:
    """What an idea's run has in common with the recipe's."""
    return row["corpus"], row["budget"], row["share"], row["seed"]


def ideas(rows: list[Row]) -> list[str]:
    """Each screened idea against the recipe, seed by seed on the same corpus."""
    recipe = {
        identity(row): end_loss(row)
        for row in rows
        if row["recipe"] == "modern" and is_the_recipe(row)
    }
    more: dict[tuple[str, tuple[str, str]], list[float]] = {}
    for place, part in by_place(rows).items():
        for row in part:
            if row.get("idea") and identity(row) in recipe:
                lead = end_loss(row) - recipe[identity(row)]
                more.setdefault((row["idea"], place), []).append(lead)
    if not more:
        return []
    return [
        "",
        "### Ideas",
        "",
        "| idea | corpus, budget | against the recipe | seeds |",
        "|---|---|---|---|",
        *(
            f"| {idea} | {words_of(place)} | {statistics.fmean(found):+.4f} | {len(found)} |"
            for (idea, place), found in sorted(more.items(), key=lambda item: item[0][0])
        ),
    ]
