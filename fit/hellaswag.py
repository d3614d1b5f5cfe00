"""HellaSwag from the validation loss on FineWeb-Edu, on public pairs of both: python -m fit.hellaswag

    share = at_3 + slope · (loss − 3)

The pairs are of runs that evaluate as build-nanogpt and llm.c do (completion style, divided by tokens), so the line is for
that protocol alone. Every family of runs weighs the same. The error is that of families left out of the fit.

Only runs scored on the whole validation set are fitted: 1,000 items are noisier (± 2.9 points), and the first 1,000 are all from
ActivityNet, which is a third of the set. Runs scored on fewer items stay in the table, and their distance from the line is in the result.
"""

import csv
import json
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
PAIRS = HERE / "data" / "hellaswag_pairs.csv"
TARGET = HERE.parent / "src" / "onecard" / "facts" / "hellaswag_fit.json"
CENTRE = 3.0
WHOLE_SET_ITEMS = 10_042


def pairs() -> list[dict[str, str]]:
    with open(PAIRS, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def whole_set(row: dict[str, str]) -> bool:
    return int(row["items"]) == WHOLE_SET_ITEMS


def line(rows: list[dict[str, str]]) -> tuple[float, float]:
    """Weighted least squares: the share at a loss of 3, and the slope per nat."""
    count = Counter(row["family"] for row in rows)
    points = [
        (
            float(row["loss_nats"]) - CENTRE,
            float(row["hellaswag_acc_norm"]),
            1 / count[row["family"]],
        )
        for row in rows
    ]
    total = sum(w for _, _, w in points)
    mean_x = sum(w * x for x, _, w in points) / total
    mean_y = sum(w * y for _, y, w in points) / total
    slope = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points) / sum(
        w * (x - mean_x) ** 2 for x, _, w in points
    )
    return mean_y - slope * mean_x, slope


def left_out(rows: list[dict[str, str]]) -> list[float]:
    """The largest error of each family under the line of the others."""
    errors = []
    for family in sorted({row["family"] for row in rows}):
        at, slope = line([row for row in rows if row["family"] != family])
        own = [row for row in rows if row["family"] == family]
        errors.append(max(abs(miss(row, at, slope)) for row in own))
    return errors


def miss(row: dict[str, str], at: float, slope: float) -> float:
    """How far the run's share lies above the line."""
    return float(row["hellaswag_acc_norm"]) - at - slope * (float(row["loss_nats"]) - CENTRE)


def fit() -> dict[str, object]:
    rows = [row for row in pairs() if whole_set(row)]
    at, slope = line(rows)
    errors = left_out(rows)
    losses = [float(row["loss_nats"]) for row in rows]
    return {
        "dataset": "fineweb-edu",
        "protocol": "completion",
        "centre": CENTRE,
        "at_centre": round(at, 5),
        "slope": round(slope, 5),
        "error": round(max(errors), 4),
        "mean_error": round(sum(errors) / len(errors), 4),
        "families": len(errors),
        "pairs": len(rows),
        "loss_range": [min(losses), max(losses)],
        "not_fitted": {
            row["family"]: {
                "items": int(row["items"]),
                "above_line": round(miss(row, at, slope), 4),
            }
            for row in pairs()
            if not whole_set(row)
        },
    }


if __name__ == "__main__":
    found = fit()
    TARGET.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))
