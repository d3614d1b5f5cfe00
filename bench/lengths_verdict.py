"""What bench/lengths.py's runs of one corpus and budget say: the opponent's loss, and the share of its tokens to it."""

import csv
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.length_rules import BUDGETS, THREADS, end_loss, opponents_best_rate
from bench.plots import Curve

Row = dict[str, Any]


@dataclass(frozen=True)
class Ends:
    """Complete runs of the modern recipe, of one length."""

    tokens: int
    losses: dict[int, float]  # by seed

    @property
    def loss(self) -> float:
        return statistics.fmean(self.losses.values())


@dataclass(frozen=True)
class Verdict:
    """Of one corpus and budget."""

    rate: float | None  # the opponent's best; None: not run
    tuned: bool
    opponent: dict[int, float]  # its losses at that rate, by seed
    run: Curve  # one of them on its way
    modern: dict[float, Ends]  # by share of the opponent's tokens
    share: float | None  # of the opponent's tokens, to its loss
    at_most: bool  # the shortest run is there already: a shorter one might be
    dtype: str  # of the runs
    threads: int

    @property
    def target(self) -> float:
        return statistics.fmean(self.opponent.values())

    @property
    def tokens(self) -> float:
        return self.run[-1][0]


def verdict(rows: list[Row]) -> Verdict:
    """Of rows of one corpus and budget."""
    rate, tuned = opponents_best_rate(rows)
    whole = [row for row in rows if row["recipe"] == "gpt2" and row["share"] == 1]
    best = sorted((row for row in whole if row["rate"] == rate), key=lambda row: row["seed"])
    plain = [row for row in rows if row["recipe"] == "modern" and is_the_recipe(row)]
    modern: dict[float, Ends] = {}
    for row in sorted(plain, key=lambda row: (row["share"], row["seed"])):
        ends = modern.setdefault(row["share"], Ends(row["curve"][-1]["tokens"], {}))
        ends.losses[row["seed"]] = end_loss(row)
    opponent = {row["seed"]: end_loss(row) for row in best}
    run = [(point["tokens"], point["loss"]) for point in best[0]["curve"]] if best else []
    share, at_most = None, False
    if best and (needed := tokens_to(list(modern.values()), statistics.fmean(opponent.values()))):
        # a share of whole steps: 977 of 3,906 are a quarter
        share = round(needed / run[-1][0], 3)
        at_most = needed == min(ends.tokens for ends in modern.values())
    low = any(row.get("dtype") == "bfloat16" for row in (*whole, *plain))
    return Verdict(
        rate=rate,
        tuned=tuned,
        opponent=opponent,
        run=run,
        modern=modern,
        share=share,
        at_most=at_most,
        dtype="bfloat16" if low else "float32",
        threads=max((row.get("threads") or THREADS for row in rows), default=THREADS),
    )


def write_comparisons(rows: Iterable[Row], path: Path) -> None:
    """Every corpus and budget whose loss the modern recipe reached between two of its runs, for fit/loss_evidence.py."""
    table = []
    for (corpus, budget), part in by_place(rows).items():
        found, shape = verdict(part), BUDGETS[budget]
        if found.share is not None and not found.at_most:
            needed = round(found.share * found.tokens)
            size = (shape.n_layer, shape.n_head, shape.n_embd)
            table.append((corpus, budget, *size, round(found.tokens), needed))
    columns = ("corpus", "budget", "n_layer", "n_head", "n_embd", "gpt2_tokens", "modern_tokens")
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *table])


def is_the_recipe(row: Row) -> bool:
    """As it is, without an idea or a rate that is not its own."""
    return row.get("idea") is None and row.get("rate") is None


def tokens_to(ends: list[Ends], target: float) -> float | None:
    """Between the last loss above the target and the first below; the first run's tokens, if that is below already."""
    before = None
    for each in ends:
        if each.loss <= target:
            if before is None:
                return float(each.tokens)
            part = (before.loss - target) / (before.loss - each.loss)
            return float(before.tokens * (each.tokens / before.tokens) ** part)
        before = each
    return None


def by_place(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows by corpus and budget: corpora by name, the shortest budget first."""
    order = list(BUDGETS)
    places: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["corpus"], order.index(row["budget"]))):
        places.setdefault((row["corpus"], row["budget"]), []).append(row)
    return places


def words_of(place: tuple[str, str]) -> str:
    return ", ".join(place)
