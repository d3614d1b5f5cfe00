"""Links between the cards of a machine and between machines: what they carry each way, with the source.

>>> links("pcie4,ib400").cards, links("pcie4,ib400").machines
(12000000000.0, 48000000000.0)
>>> nvlink("A100 SXM 80GB").joins, nvlink("RTX 3090").joins, nvlink("RTX 4090")
('all', 'pair', None)
"""

from dataclasses import dataclass, replace
from functools import cache

from onecard.errors import UserError, nearest
from onecard.facts.data_files import table
from onecard.facts.gpus import Device

DEFAULT_LINK = "pcie4"  # between cards that no NVLink joins
DEFAULT_NETWORK = "100gbe"  # where several machines are planned and none is named


@dataclass(frozen=True)
class Links:
    """Bytes per second each way. None: what the card is made for (cards), or DEFAULT_NETWORK (machines)."""

    cards: float | None = None
    nvlink: bool | None = None  # named, or another link named in its place
    machines: float | None = None

    @property
    def network(self) -> float:
        return self.machines or speed(DEFAULT_NETWORK)


@dataclass(frozen=True)
class NvLink:
    """What NCCL reaches each way, and whether all cards of a machine are joined or two by a bridge."""

    joins: str  # "all", "pair"
    bytes_per_second: float


@cache
def _nvlinks() -> dict[str, NvLink]:
    return {
        row["card"]: NvLink(row["joins"], float(row["bytes_per_second"])) for row in table("nvlink")
    }


def nvlink(card: str) -> NvLink | None:
    """None: the card has none."""
    return _nvlinks().get(card)


@cache
def _rows() -> dict[str, dict[str, str]]:
    return {row["link"]: row for row in table("links")}


def speed(name: str) -> float:
    """Bytes per second each way of a link that is the same for every card."""
    return float(_rows()[name]["bytes_per_second"])


def links(names: str | None) -> Links:
    """The links named, by commas: one between cards and one between machines at most."""
    chosen = Links()
    for name in filter(None, (names or "").replace(" ", "").lower().split(",")):
        row = _rows().get(name)
        if row is None:
            raise UserError(
                f"unknown link {name!r}",
                hint=nearest(name, _rows()) or f"known are {', '.join(_rows())}",
            )
        if row["between"] == "machines":
            chosen = Links(chosen.cards, chosen.nvlink, speed(name))
        else:
            each_way = float(row["bytes_per_second"]) if row["bytes_per_second"] else None
            chosen = Links(each_way, name == "nvlink", chosen.machines)
    return chosen


def links_of(names: str | None, device: Device, cards: int) -> Links:
    """The links named, for so many of these cards in a machine; NVLink is refused where they do not have it."""
    chosen = links(names)
    if not chosen.nvlink:
        return chosen
    has = nvlink(device.name)
    if has is None:
        raise UserError(
            f"the {device.name} has no NVLink",
            hint=f"its cards are joined by PCIe: pcie{device.pcie:g} is what it is made for",
        )
    if has.joins == "pair" and cards > 2:
        raise UserError(
            f"NVLink joins two of the {device.name}, not {cards}",
            hint=f"the slowest link counts, which is PCIe: pcie{device.pcie:g}",
        )
    return replace(chosen, cards=has.bytes_per_second)
