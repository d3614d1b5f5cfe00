"""What a server was started with, and its bounds. One frozen value that every part is given."""

from dataclasses import dataclass, field
from pathlib import Path

from onecard.facts.prices import Price, electricity
from onecard.units import MIB


@dataclass(frozen=True)
class Limits:
    """Bounds on what one server does for its clients, so that no request can exhaust the machine."""

    body_bytes: int = 1 * MIB  # of a request other than a dropped log
    log_bytes: int = 64 * MIB  # of a dropped log
    dropped_logs: int = 20  # kept at once; the oldest goes
    streams: int = 64  # live connections of pages
    connections: int = 512
    header_seconds: float = 10.0  # until a connection has sent a whole request's head
    body_seconds: float = 30.0
    send_seconds: float = 30.0  # until a reader has taken what it was sent
    queue: int = 16  # generations that wait
    prompt_characters: int = 200_000
    tokens: int = 4096  # of one generation
    choices: int = 8  # texts of one request
    models: int = 2  # in memory at once


@dataclass(frozen=True)
class Settings:
    """`root` is the only folder that is read; `token` is required of every request where it is set."""

    root: Path
    price: Price = field(default_factory=lambda: electricity("WORLD"))
    token: str | None = None
    hosts: frozenset[str] = frozenset()  # names beside the loopback's that a Host header may carry
    any_address: bool = False  # also any address in digits, for a server that others reach
    control: bool = False
    page: bool = True
    device: str = "auto"
    only: Path | None = None  # `onecard serve RUN`: this model alone
    limits: Limits = field(default_factory=Limits)
