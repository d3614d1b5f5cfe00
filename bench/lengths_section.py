"""What docs/performance.md says of the tokens that each recipe takes to a loss: bench/lengths.py's runs."""

import csv
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.plots import Curve, plot, reached, shares_plot

TOKENS_GOAL, TIME_GOAL = 0.25, 0.35
CURVE_SHARES = 3  # a curve over shares of the tokens has at least so many points
PUBLIC_LOSSES = Path(__file__).parents[1] / "fit" / "data" / "public_losses.csv"
PUBLIC_OPPONENT = "llmc-124M-10B"  # llm.c's GPT-2 of 124 M on FineWeb, 3.2722 after 10.26 B tokens
PUBLIC_RUNS = {  # modded-nanogpt's, of the same size to 3.276 and 3.279
    "public: Muon, modern blocks, untied": "mng-untie-2.4B",
    "public: the same tuned, 2025": "mng3-muon-tuned-1.70B",
}


def lengths(runs: dict[str, Any], cost: dict[str, Any] | None, images: Path) -> list[str]:
    """Tokens, and time, that the modern recipe needs to the loss of the tuned GPT-2 recipe, by corpus and budget."""
    lines = [
        "## Tokens to the GPT-2 recipe's loss, at lengths that count",
        "",
        f"The protocol is in docs/LOG.md; bench/lengths.py makes the runs. Losses are of {judged_by(runs.values())}, means over the "
        "seeds in brackets; tokens are "
        "read between the modern runs of whole schedules at shares of the GPT-2 recipe's tokens, on a logarithmic scale. Time is "
        "tokens times the ratio of the compiled steps above. GPT-2's rate is the best of its runs over all tokens (not tuned: it "
        "does not lie between two others). "
        f"Goals: {TOKENS_GOAL} of the tokens, {TIME_GOAL} of the time.",
        "",
        "| corpus, budget | GPT-2's rate | its loss | modern, by share of the tokens | tokens | time |",
        "|---|---|---|---|---|---|",
    ]
    plots = []
    shares: dict[str, Curve] = {}
    for corpus, budget in sorted({(row["corpus"], row["budget"]) for row in runs.values()}):
        rows = [row for row in runs.values() if (row["corpus"], row["budget"]) == (corpus, budget)]
        found = verdict(rows)
        ratio = step_ratio(cost, budget)
        lines.append(f"| {corpus}, {budget} | {' | '.join(cells(found, ratio))} |")
        if found["share"] is not None:
            shares.setdefault(corpus, []).append((found["tokens"], found["share"]))
        if found["target"] is not None and len(found["modern"]) >= CURVE_SHARES:
            name = f"lengths-{corpus}-{budget}.svg"
            drawn = {key: found[key] for key in ("gpt2", "modern", "target")}
            (images / name).write_text(plot(drawn, "tokens", "tokens"), encoding="utf-8")
            plots.append(f"![{corpus}, {budget}: loss against tokens](images/{name})")
    missing = {"small", "middle", "large"} - {row["budget"] for row in runs.values()}
    if missing:
        lines += ["", f"Not run yet: the budgets {', '.join(sorted(missing))}."]
    if words := epochs(list(runs.values())):
        lines += ["", words]
    low = sorted(
        {
            f"{row['corpus']}, {row['budget']}"
            for row in runs.values()
            if row.get("dtype") == "bfloat16"
        }
    )
    if low:
        lines += [
            "",
            f"With runs in bf16, which moves a loss by less than another seed does (docs/LOG.md): {'; '.join(low)}.",
        ]
    if second := second_opponent(list(runs.values())):
        lines += ["", second]
    lines += ["", *over_budgets(shares, images)] if shares else []
    return [*lines, "", *plots, *ideas(runs), ""]


def judged_by(rows: Iterable[dict[str, Any]]) -> str:
    """Which validation tokens a loss is of; rows that do not say were judged by the first ones of the text."""
    spread = all(row.get("windows") == "spread" for row in rows)
    tokens = "81,920 tokens of the validation text"
    return f"{tokens} at equal distances" if spread else f"the first {tokens}"


def epochs(rows: list[dict[str, Any]]) -> str:
    """How often the longest runs read their corpus."""
    passes: dict[str, float] = {}
    for row in rows:
        if row["share"] == 1 and row["recipe"] == "gpt2" and "train_tokens" in row:
            where = f"{row['corpus']}, {row['budget']}"
            passes[where] = row["curve"][-1]["tokens"] / row["train_tokens"]
    words = "; ".join(f"{where}: {times:.2f}" for where, times in sorted(passes.items()))
    return f"Epochs of the GPT-2 recipe's runs: {words}." if words else ""


def second_opponent(rows: list[dict[str, Any]]) -> str:
    """nanoGPT's own code, at the rate that is the GPT-2 recipe's best."""
    ends = sorted(
        f"{row['corpus']}, {row['budget']}: {final(row):.4f}"
        for row in rows
        if row["recipe"] == "nanogpt"
    )
    words = "nanoGPT's own code over the same tokens, at the GPT-2 recipe's best rate, first seed"
    return f"{words}: {'; '.join(ends)}." if ends else ""


def over_budgets(shares: dict[str, Curve], images: Path) -> list[str]:
    """How the advantage changes with the length of the run, with public runs of 124 M parameters at the far end."""
    with PUBLIC_LOSSES.open(encoding="utf-8", newline="") as table:
        tokens = {
            row["id"]: float(row["tokens_seen_b"] or 0) * 1e9 for row in csv.DictReader(table)
        }
    whole = tokens[PUBLIC_OPPONENT]
    public: dict[str, Curve] = {
        words: [(whole, tokens[run] / whole)] for words, run in PUBLIC_RUNS.items()
    }
    ours = {corpus: sorted(curve) for corpus, curve in shares.items()}
    drawn = shares_plot({**ours, **public}, "tokens of the GPT-2 recipe", TOKENS_GOAL)
    (images / "lengths-shares.svg").write_text(drawn, encoding="utf-8")
    return [
        "The share of the tokens over the GPT-2 recipe's own tokens. At the far end, public runs of 124 M parameters on FineWeb: "
        f"llm.c's GPT-2 after {whole / 1e9:.2f} B tokens (3.272; its learning rate is the paper's, not tuned), and modded-nanogpt's runs "
        "to 3.28 nearest to this recipe, which has short convolutions that they do not have.",
        "",
        "![share of the GPT-2 recipe's tokens, over its tokens](images/lengths-shares.svg)",
    ]


def verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The opponent's rate, its loss and curve, the modern losses by share, and the tokens that reach it."""
    plain = [row for row in rows if row["recipe"] == "gpt2"]
    whole = [row for row in plain if row["share"] == 1]
    rate, tuned = opponents_rate(plain)
    ends = [row for row in whole if row["rate"] == rate]
    modern: dict[int, list[float]] = {}
    for row in rows:
        if row["recipe"] == "modern" and row.get("idea") is None:
            modern.setdefault(row["curve"][-1]["tokens"], []).append(final(row))
    points = [
        {"tokens": tokens, "loss": statistics.fmean(losses), "seeds": len(losses)}
        for tokens, losses in sorted(modern.items())
    ]
    target = statistics.fmean(map(final, ends)) if ends else None
    all_tokens = ends[0]["curve"][-1]["tokens"] if ends else None
    share, at_most = None, False
    if target is not None and all_tokens:
        needed = tokens_to(points, target)
        # a share of whole steps: 977 of 3,906 are a quarter
        share = round(needed / all_tokens, 3) if needed else None
        # the shortest run is there already: a shorter one might be
        at_most = share is not None and points[0]["loss"] <= target
    return {
        "rate": rate,
        "tuned": tuned,
        "target": target,
        "seeds": len(ends),
        "gpt2": ends[0]["curve"] if ends else [],
        "modern": points,
        "tokens": all_tokens,
        "share": share,
        "at_most": at_most,
    }


def opponents_rate(rows: list[dict[str, Any]]) -> tuple[float | None, bool]:
    """The best rate of the runs over all tokens; whether it is tuned: it lies between two others."""
    losses: dict[float, float] = {}
    for row in rows:  # compared with the first seed, others are run at the best rate alone
        if row["share"] == 1:
            losses[row["rate"]] = min(final(row), losses.get(row["rate"], math.inf))
    if not losses:
        return None, False
    best = min(losses, key=lambda rate: losses[rate])
    return best, min(losses) < best < max(losses)


def final(row: dict[str, Any]) -> float:
    return float(row["curve"][-1]["loss"])


def tokens_to(points: list[dict[str, Any]], target: float) -> float | None:
    """Between the last point above the target and the first below; the first point's, if that is below already."""
    before = None
    for point in points:
        if point["loss"] <= target:
            if before is None:
                return float(point["tokens"])
            part = (before["loss"] - target) / (before["loss"] - point["loss"])
            return float(before["tokens"] * (point["tokens"] / before["tokens"]) ** part)
        before = point
    return None


def step_ratio(cost: dict[str, Any] | None, budget: str) -> float | None:
    """A modern step's time over one of GPT-2's in the budget's shape, compiled as its runs are."""
    shapes = cost["shapes"] if cost else {}
    return shapes.get(budget, {}).get("compiled", {}).get("ratio")


def cells(found: dict[str, Any], ratio: float | None) -> list[str]:
    modern = ", ".join(
        f"{point['tokens']:,}: {point['loss']:.4f} ({point['seeds']})" for point in found["modern"]
    )
    if found["target"] is None:
        return ["not run", "–", modern or "–", "–", "–"]
    share = found["share"]
    most = "at most " if found["at_most"] else ""
    tokens = "not reached"
    if share is not None:
        tokens = f"{most}{share:.3f}: {reached(share, TOKENS_GOAL, True)}"
    time = "–"
    if share is not None and ratio:
        time = f"{most}{share * ratio:.3f}: {reached(share * ratio, TIME_GOAL, True)}"
    rate = f"{found['rate']:g}" if found["tuned"] else f"{found['rate']:g}, not tuned"
    loss = f"{found['target']:.4f} ({found['seeds']})"
    return [rate, loss, modern or "–", tokens, time]


def ideas(runs: dict[str, Any]) -> list[str]:
    """Each screened idea against the recipe, seed by seed on the same corpus."""
    screened = [row for row in runs.values() if row.get("idea")]
    if not screened:
        return []
    plain = {
        (row["corpus"], row["budget"], row["share"], row["seed"]): final(row)
        for row in runs.values()
        if row["recipe"] == "modern" and not row.get("idea")
    }
    more: dict[tuple[str, str, str], list[float]] = {}
    for row in screened:
        base = plain.get((row["corpus"], row["budget"], row["share"], row["seed"]))
        if base is not None:
            more.setdefault((row["idea"], row["corpus"], row["budget"]), []).append(
                final(row) - base
            )
    lines = ["", "| idea | corpus, budget | against the recipe | seeds |", "|---|---|---|---|"]
    for (idea, corpus, budget), found in sorted(more.items()):
        lines.append(
            f"| {idea} | {corpus}, {budget} | {statistics.fmean(found):+.4f} | {len(found)} |"
        )
    return lines
