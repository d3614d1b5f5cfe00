"""Calibration: what `onecard probe` measured on a machine's own card, kept as JSON in the user's config folder.

One file a device, torch version and power limit. A corrupt or foreign file is ignored with a warning, never an error.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    device: str
    torch: str
    power_limit_watts: float | None
    date: str
