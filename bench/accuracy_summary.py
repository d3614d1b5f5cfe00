"""The first lines of docs/accuracy.md: what the predictions miss by in families left out, and in each batch of unseen runs when it
was predicted blind, beside the goals.
"""

import statistics
from typing import Any

from bench import blind_losses, unseen
from bench.score import Answer, is_geforce, percent, score

GOALS = {
    "time": "10 %, on GeForce cards too; 70–92 %",
    "memory": "10 %; at least 65 %",
    "loss": "0.04 nats where rate and batch are given; 70–92 %",
}


def lines(held_out: dict[str, Any], losses: dict[str, Any], cards: dict[str, str]) -> list[str]:
    """`held_out` and `losses` are the answers of accuracy.py and loss_accuracy.py, cross-validated."""
    time, memory, loss = held_out["time"], held_out["memory"], losses["trusted"]
    _, geforce = geforce_times(held_out["rows"], cards)
    found = [
        "| each family left out | rows | median miss | in the 80 % range | goal |",
        "|---|---|---|---|---|",
        f"| seconds a step | {time['n']} | {percent(time['median_abs_error'])}, GeForce {percent(geforce)} "
        f"| {time['coverage']:.0%} | {GOALS['time']} |",
        f"| memory, as any trainer reads it | {memory['n']} | {percent(memory['median_abs_error'])} "
        f"| {memory['coverage']:.0%} | {GOALS['memory']} |",
        f"| final loss | {loss['n']} | {loss['median_abs_error_nats']:.3f} nats | {loss['coverage']:.0%} | {GOALS['loss']} |",
        "",
        "| unseen runs, predicted blind | time: rows | median | GeForce | in range | memory: rows | median | in range "
        "| loss: complete rows | median | all rows in range |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return found + [_batch(each, cards) for each in unseen.BATCHES]


def geforce_times(rows: list[dict[str, Any]], cards: dict[str, str]) -> tuple[int, float]:
    """How many times there are of GeForce cards, and their median miss."""
    misses = [
        abs(row["predicted"] / row["measured"] - 1)
        for row in rows
        if row["kind"] == "time" and not row["skipped"] and is_geforce(cards[row["id"]])
    ]
    return len(misses), statistics.median(misses)


def _batch(batch: unseen.Batch, cards: dict[str, str]) -> str:
    answers = unseen.blind(batch)
    time = [each for each in answers if each.kind == "time"]
    geforce = [each for each in time if is_geforce(cards[each.id])]
    memory = [each for each in answers if each.kind == "memory"]
    _, loss = blind_losses.batch(batch)
    whole = loss.get("**complete configs**") or loss["**without quality C**"]
    rows, median, held = _cells(time)
    cells = [
        f"{batch.name} batch",
        rows,
        median,
        f"{_cells(geforce)[1]} ({len(geforce)})",
        held,
        *_cells(memory),
        str(whole["n"]),
        f"{whole['median_abs_error_nats']:.3f}",
        f"{loss['**all**']['coverage']:.0%}",
    ]
    return "| " + " | ".join(cells) + " |"


def _cells(answers: list[Answer]) -> list[str]:
    scores = score(answers)
    return [str(scores["n"]), percent(scores["median_abs_error"]), f"{scores['coverage']:.0%}"]
