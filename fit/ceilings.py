"""What cards reach of their specified matmul rate, from community readings: card by card, else from cards of their class.

>>> shares = ceilings()["bfloat16"]
>>> shares["cards"]["RTX 4090"] < shares["cards"]["RTX 4070"]  # fewer watts for each of its units
True

A GeForce card runs above its rated clock as far as its power allows, and how it is rated is a matter of marketing. So a card that
nobody read is taken to sustain, unit by unit, the rate of cards of its class with about as many watts a unit; the clocks that
reviews logged (data/card_clocks.csv) agree.
"""

import csv
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from fit.cards import find_card
from fit.runs import DATA
from onecard.errors import UserError
from onecard.facts.gpus import Device, all_gpus

COLUMNS = {
    "bfloat16": "bf16_tflops",
    "float16": "fp16_tflops",
    "tf32": "tf32_tflops",
    "float32": "fp32_tflops",
}
CARD_TABLE = Path(__file__).resolve().parent.parent / "src" / "onecard" / "facts" / "gpus.csv"
ALIKE = 0.15  # logarithm of watts a unit within which two cards of a class count as alike
ODD = (
    0.25  # a reading so far (logarithm) from its class and from the card's other dtype is an error
)
Readings = dict[str, dict[str, list[float]]]  # dtype, card, shares of the specification


def ceilings() -> dict[str, Any]:
    """Share of the specified rate in the best large matmul, per dtype."""
    cards = {device.name: device for device in all_gpus()}
    found = _readings()
    return {dtype: _shares(dtype, found[dtype], cards) for dtype in COLUMNS}


def _readings() -> Readings:
    readings: Readings = {dtype: defaultdict(list) for dtype in COLUMNS}
    with (DATA / "measured_matmul.csv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            try:
                device = find_card(row["device"].replace("*OC", ""), None, [])
            except UserError:
                continue
            if device.rate_class in ("cpu", "measured"):
                continue
            for dtype, share in _row_shares(row, device).items():
                readings[dtype][device.name].append(share)
    with CARD_TABLE.open(encoding="utf-8", newline="") as table:
        # the card table's own readings: "252-269", "88.9 (fp16); 9.85 (bf16)"
        for row in csv.DictReader(table):
            text = row.get("measured_bf16_tflops", "")
            if text and row["rate_class"] not in ("cpu", "measured") and "fp16)" not in text:
                device = find_card(row["name"], None, [])
                middle = float(np.mean([float(part) for part in text.split(" ")[0].split("-")]))
                share = middle * 1e12 / device.peak_flops("bfloat16")
                readings["bfloat16"][device.name].append(share)
                readings["float16"][device.name].append(share)
    return readings


def _row_shares(row: dict[str, str], device: Device) -> dict[str, float]:
    """A row's shares; where bf16 and fp16, which run at one rate, contradict each other, neither is believed."""
    shares = {}
    for dtype, column in COLUMNS.items():
        try:
            shares[dtype] = float(row[column]) * 1e12 / device.peak_flops(dtype)
        except ValueError:
            continue
    both = [shares.get(dtype) for dtype in ("bfloat16", "float16")]
    if all(both) and device.bf16_native and abs(math.log(both[0] / both[1])) > ODD:  # type: ignore[operator]
        del shares["bfloat16"], shares["float16"]
    return shares


def _shares(
    dtype: str, readings: dict[str, list[float]], cards: dict[str, Device]
) -> dict[str, Any]:
    middle = {name: float(np.median(values)) for name, values in readings.items()}
    overall = float(np.median(list(middle.values())))
    by_class: dict[str, list[str]] = defaultdict(list)
    for name in middle:
        by_class[cards[name].rate_class].append(name)
    # geometric mean of a class, with half a vote for the middle of all cards
    classes = {
        kind: math.exp(
            (sum(math.log(middle[name]) for name in names) + 0.5 * math.log(overall))
            / (len(names) + 0.5)
        )
        for kind, names in by_class.items()
    }
    shrunk = {}
    for name, device in cards.items():
        if device.rate_class not in classes:
            continue
        others = [(cards[other], middle[other]) for other in by_class[device.rate_class]]
        like = _like(dtype, device, others, classes[device.rate_class])
        votes = len(readings.get(name, ()))  # its own readings count each, its likes as half of one
        own = math.log(middle[name]) if votes else 0.0
        shrunk[name] = math.exp((votes * own + 0.5 * like) / (votes + 0.5))
    return {
        "default": round(overall, 3),
        "classes": {kind: round(share, 3) for kind, share in sorted(classes.items())},
        "cards": {name: round(share, 3) for name, share in sorted(shrunk.items())},
    }


def _like(dtype: str, device: Device, others: list[tuple[Device, float]], usual: float) -> float:
    """log share of its own specification, if its units sustain the rate of those of its class with as much power each; one
    vote for the class's usual share."""
    total, votes = math.log(usual), 1.0
    unit = device.peak_flops(dtype) / device.units
    for other, share in others:
        if other.name != device.name and "Laptop" not in other.name + device.name:
            apart = math.log((device.watts / device.units) / (other.watts / other.units))
            vote = 3 * math.exp(-((apart / ALIKE) ** 2))
            total += vote * math.log(share * other.peak_flops(dtype) / other.units / unit)
            votes += vote
    return total / votes
