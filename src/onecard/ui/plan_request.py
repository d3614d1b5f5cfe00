"""What the page asks of the planner: its address, read as the command line would be.

ask = PlanRequest.from_query({"gpu": "RTX 4070", "preset": "gpt2", "n_layer": "6"})
ask.command      onecard plan gpt2 --gpu "RTX 4070" --n_layer=6
ask.plan()       the RunPlan that this command prints

Names of files are refused: a page is asked by others than the person at the keyboard. Presets, cards and data sets are
those that ship, and the folders of prepared data that the server itself has listed.
"""

import functools
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onecard.config import KEYS, RunConfig, load
from onecard.config.key_facts import MOST_STEPS
from onecard.config.length import for_tokens
from onecard.config.model_rules import evaluation_steps
from onecard.config.presets import PRESETS
from onecard.errors import UserError, nearest
from onecard.facts.datasets import all_datasets
from onecard.facts.gpus import Device
from onecard.planner import RunPlan, plan, resolve_device
from onecard.units import HOUR, parse_count

LONGEST_VALUE = 60  # characters
MOST_HOURS = 1e6
_HERE_SECONDS = 60.0  # how long the driver's answer about this machine's card is kept
# Keys that name files, places or accounts; a page that plans needs none of them.
_NOT_FROM_A_PAGE = frozenset(
    [
        "out_dir",
        "init_from",
        "dataset",
        "device",
        "backend",
        "wandb_log",
        "wandb_project",
        "wandb_run_name",
        "tensorboard",
        "trackio",
        "record_diff",
    ]
)
PAGE_KEYS = tuple(key for key in KEYS if key not in _NOT_FROM_A_PAGE)
_COUNT = re.compile(r"\d[\d.,_]*(e\d+)? ?[kmbt]?", re.IGNORECASE)


@dataclass(frozen=True)
class PlanRequest:
    """One plan asked for. `hours` and `tokens` each set the length; neither leaves the preset's."""

    gpu: str | None = None
    preset: str | None = None
    data: str | None = None
    tokens: str | None = None
    hours: float | None = None
    gpus: int = 1
    price: str | None = None
    overrides: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_query(cls, query: Mapping[str, str], folders: tuple[str, ...] = ()) -> "PlanRequest":
        """`folders`: prepared data that may be named. Empty values count as not given."""
        given = {key: value.strip() for key, value in query.items() if value.strip()}
        for key, value in given.items():
            if len(value) > LONGEST_VALUE:
                raise UserError(f"{key} is too long", hint="it has at most 60 characters")
        for length in ("tokens", "hours"):
            if length in given and "max_iters" in given:
                raise UserError(
                    f"{length} and max_iters both set the length", hint="give one of them"
                )
        return cls(
            gpu=_card(given.get("gpu")),
            preset=_preset(given.get("preset")),
            data=_data(given.get("data"), folders),
            tokens=given.get("tokens"),
            hours=parse_hours(given["hours"]) if "hours" in given else None,
            gpus=_cards(given.get("gpus", "1")),
            price=given.get("price"),
            overrides=tuple((key, given[key]) for key in PAGE_KEYS if key in given),
        )

    @property
    def device(self) -> Device:
        if self.gpu is None or self.gpu.lower() == "here":
            return _this_machine(int(time.monotonic() / _HERE_SECONDS))
        return resolve_device(self.gpu)

    def base_config(self) -> RunConfig:
        """The preset alone, before the page's changes."""
        return load(self.preset)

    def config(self) -> RunConfig:
        config = load(self.preset, [f"{key}={value}" for key, value in self.overrides])
        if self.tokens is not None:
            return for_tokens(config, parse_count(self.tokens), dict(self.overrides))
        return config

    def plan(self) -> tuple["PlanRequest", RunPlan]:
        """The plan, and the request with hours as the tokens that they come to."""
        device = self.device
        if self.hours is None:
            return self, plan(
                self.config(), device, gpus=self.gpus, data=self.data, price=self.price
            )
        asked = replace(self, tokens=str(self._tokens_in(self.hours * HOUR, device)), hours=None)
        return asked.plan()

    def _tokens_in(self, seconds: float, device: Device) -> int:
        """As many whole steps as end within the time, evaluations and the first step's compilation included."""
        config = self.config()
        once = plan(config, device, gpus=self.gpus, data=self.data)
        step = once.time.step_seconds.mid
        steps = max(1, int((seconds - once.time.compile_seconds) / step))
        for _ in range(4):  # evaluations grow with the steps they are made in
            trial = for_tokens(config, steps * config.tokens_per_step, dict(self.overrides))
            room = (seconds - once.time.compile_seconds) / step - evaluation_steps(trial)
            steps = max(1, min(int(room), MOST_STEPS))
        return steps * config.tokens_per_step

    @property
    def command(self) -> str:
        """The same question on the command line."""
        words = ["onecard", "plan", *([self.preset] if self.preset else [])]
        for option, value in (
            ("--gpu", self.gpu),
            ("--gpus", str(self.gpus) if self.gpus > 1 else None),
            ("--data", self.data),
            ("--tokens", self.tokens),
            ("--price", self.price),
        ):
            words += [option, value] if value else []
        words += [f"--{key}={value}" for key, value in self.overrides]
        return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    """Double quotes, which every shell takes; names from the page hold nothing that they would not cover."""
    if shlex.quote(word) == word:
        return word
    return '"' + word.replace('"', "") + '"'


def first_card() -> str:
    """What the page plans for until another is chosen: this machine's card; without one, a card that many have."""
    return "here" if PlanRequest().device.kind != "cpu" else "RTX 4070"


@functools.lru_cache(maxsize=1)
def _this_machine(_minute: int) -> Device:
    return resolve_device(None)


def _card(name: str | None) -> str | None:
    if name is None:
        return None
    if name.lower().endswith(".toml"):
        raise UserError("the page takes no card files", hint="name one of the cards it lists")
    resolve_device(name)  # an unknown name is a mistake before anything else is
    return name


def _preset(name: str | None) -> str | None:
    if name is not None and name not in PRESETS:
        raise UserError(f"unknown preset {name!r}", hint=nearest(name, PRESETS) or None)
    return name


def _data(name: str | None, folders: tuple[str, ...]) -> str | None:
    if name is None or _COUNT.fullmatch(name) or name in folders:
        return name
    known = {each for entry in all_datasets() for each in (entry.name, *entry.aliases)}
    known |= {"fineweb", "fineweb-edu"}
    if name.lower() in {each.lower() for each in known}:
        return name
    raise UserError(
        f"unknown data set {name!r}", hint=nearest(name, known) or "write tokens like 3.7B"
    )


def parse_hours(text: str) -> float:
    """A number of hours that a person could mean."""
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= MOST_HOURS:
        raise UserError(f"{text!r} is not a number of hours", hint="for example 20")
    return hours


def _cards(text: str) -> int:
    if not re.fullmatch(r"\d{1,4}", text):
        raise UserError(f"{text!r} is not a number of cards", hint="for example 1")
    return int(text)


def overrides_of(config: RunConfig) -> dict[str, str]:
    """What the page must set to ask for this very config, over nanoGPT's defaults."""
    from onecard.config.write import written_values

    written = written_values(config, {})
    return {key: str(value) for key, value in written.items() if key in PAGE_KEYS}
