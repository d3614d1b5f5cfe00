"""Links between the cards of a machine and between machines: what they carry each way, with the source.

>>> links("pcie4,ib400").cards, links("pcie4,ib400").machines
(12000000000.0, 48000000000.0)
"""

from dataclasses import dataclass
from functools import cache

from onecard.errors import UserError, nearest
from onecard.facts.data_files import table

DEFAULT_NETWORK = "100gbe"  # where several machines are planned and none is named


@dataclass(frozen=True)
class Links:
    """Bytes per second each way. None: what the card is made for (cards), or DEFAULT_NETWORK (machines)."""

    cards: float | None = None
    nvlink: bool | None = None  # named, or another link named in its place
    machines: float | None = None

    @property
    def network(self) -> float:
        return self.machines or _speed(DEFAULT_NETWORK)


@cache
def _rows() -> dict[str, dict[str, str]]:
    return {row["link"]: row for row in table("links")}


def _speed(name: str) -> float:
    return float(_rows()[name]["bytes_per_second"])


def links(names: str | None) -> Links:
    """The links named, by commas: one between cards and one between machines at most."""
    found = Links()
    for name in filter(None, (names or "").replace(" ", "").lower().split(",")):
        row = _rows().get(name)
        if row is None:
            raise UserError(
                f"unknown link {name!r}",
                hint=nearest(name, _rows()) or f"known are {', '.join(_rows())}",
            )
        if row["between"] == "machines":
            found = Links(found.cards, found.nvlink, _speed(name))
        else:
            speed = float(row["bytes_per_second"]) if row["bytes_per_second"] else None
            found = Links(speed, name == "nvlink", found.machines)
    return found
