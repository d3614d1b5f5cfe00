"""What a card's matmuls reach of its rated figure: readings of seconds, held back by power over hours, and what runs showed.

>>> from onecard.facts.gpus import find_gpu
>>> fast, large = find_gpu("RTX 4070"), find_gpu("RTX 4090")
>>> sustained(fast, speed_fit()) > sustained(large, speed_fit())  # more watts for each of its units
True

The constants (facts/speed_fit.json) are fitted by fit/speed.py from public runs.
"""

import json
from functools import cache

from onecard.facts.data_files import fact_file
from onecard.facts.gpus import Device
from onecard.planner.step_counts import Fit


@cache
def speed_fit() -> Fit:
    """The fitted constants that ship with onecard."""
    fit: Fit = json.loads(fact_file("speed_fit.json"))
    return fit


def ceiling(device: Device, dtype: str, fit: Fit) -> float:
    """Share of its specified rate that the card reaches in a model's matmuls: its own reading, or its class's."""
    shares = fit["ceilings"][dtype]
    reading: float = shares["cards"].get(device.name) or shares["classes"].get(
        device.rate_class, shares["default"]
    )
    effect: float = fit["classes"].get(device.rate_class, 1.0)
    # tensor cores at half rate (GeForce) are easier to keep fed; fp32 does not use them
    half_rate = dtype != "float32" and device.rate_class.endswith("_half")
    effect *= fit["half_rate"] if half_rate else 1.0
    share = reading * effect * sustained(device, fit) * float(fit["matmul"])
    # a card may boost past its specification
    return min(1.0, share) if device.kind == "cpu" else share


def sustained_flops(device: Device) -> float:
    """What the card's matmuls reach for hours in a model, in its training dtype: the rated figure times readings and runs."""
    dtype = "tf32" if device.training_dtype == "float32" else device.training_dtype
    return device.peak_flops(dtype) * ceiling(device, dtype, speed_fit())


def sustained(device: Device, fit: Fit) -> float:
    """Readings are of seconds; hours of training are held back by power. A clock costs its third power (the voltage rises with
    it), so the watts of a unit count with about their cube root, against those usual in the class. A laptop's watts are
    its maker's choice: left out."""
    usual = fit["watts"].get(device.rate_class)
    if usual is None or "Laptop" in device.name:
        return 1.0
    return float((device.watts / device.units / usual) ** fit["power"])
