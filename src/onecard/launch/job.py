"""What is launched: one frozen value from which each engine's text is made.

>>> from onecard.config import load
>>> job = make_job(load("gpt2"), "H100 SXM", cards=8)
>>> job.name, job.processes, job.plan.gpus
('out-gpt2', 8, 8)
>>> job_name("my run; rm -rf ~")
'my-run-rm--rf'
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.facts.gpus import Device
from onecard.facts.rentals import Rental, rental_of
from onecard.planner import RunPlan, plan
from onecard.units import HOUR, show_bytes, show_duration, show_money
from onecard.untrusted import printable

ENGINES = ("slurm", "skypilot", "ssh")
_MARGIN = 1.25  # on the slow end of the plan's range: evaluations of other nodes, a slow disk
_SET_UP_SECONDS = 0.5 * HOUR  # the environment, the data's first reading, compilation
_LEAST_SECONDS = 1 * HOUR


@dataclass(frozen=True)
class Job:
    """A run, the machine it is for, and what the plan says of it."""

    name: str  # letters, digits, . _ - only: safe in every file format
    config: RunConfig
    plan: RunPlan
    cards: int  # on each machine
    nodes: int  # machines
    limit_seconds: float  # when the engine may end it
    rental: Rental | None  # what the card costs an hour, where it can be rented
    restarts: int = 0  # how often torchrun starts the processes again when one of them dies

    @property
    def processes(self) -> int:
        return self.cards * self.nodes

    @property
    def by_torchrun(self) -> bool:
        """Several processes need it to find each other, one to be started again."""
        return self.processes > 1 or self.restarts > 0

    @property
    def on_cpu(self) -> bool:
        return self.plan.device.kind == "cpu"

    @property
    def hours(self) -> float:
        """What the run takes, by the plan, or until max_hours ends it."""
        return min(self.plan.time.total_seconds.mid / HOUR, self.config.max_hours or math.inf)

    @property
    def cost(self) -> tuple[float, str] | None:
        """Of all cards at the typical rental price; None where the card has none."""
        if self.rental is None:
            return None
        return self.hours * self.processes * self.rental.typical, self.rental.currency


def make_job(
    config: RunConfig,
    gpu: str | Device | None,
    cards: int = 1,
    nodes: int = 1,
    limit_seconds: float | None = None,
    name: str | None = None,
    link: str | None = None,
    restarts: int = 0,
) -> Job:
    """The job, planned; refused where it cannot train."""
    for what, number in (("cards", cards), ("nodes", nodes)):
        if number < 1:
            raise UserError(
                f"{number} {what} cannot train anything", hint=f"the option `{what}=1` or more"
            )
    if restarts < 0:
        raise UserError(
            f"{restarts} restarts cannot be", hint="the option `max_restarts=0` or more"
        )
    rows = config.sequences_per_step
    if cards * nodes > rows:
        raise UserError(
            f"{cards * nodes} processes are more than the {rows} rows of a step",
            hint="fewer cards, or a larger batch_size or gradient_accumulation_steps",
        )
    planned = plan(config, gpu)
    if planned.device.kind == "cpu" and gpu is None and config.device != "cpu":
        raise UserError(
            "which card the job is for is not known: this machine has none",
            hint='name it, such as the option `gpu="A100 80GB"`, or the option `gpu=cpu`',
        )
    if planned.device.kind != "cpu" and config.device == "cpu":
        raise UserError(
            f"the config trains on a CPU, and the job is for the {planned.device.name}",
            hint="device = 'auto' takes the card, the option `gpu=cpu` a machine without one",
        )
    if planned.device.kind != "cpu":  # the processes of a CPU run share one machine
        planned = plan(config, planned.device, gpus=cards, nodes=nodes, link=link)
    if planned.memory.fits == "no":
        needed, there = planned.memory.process_bytes.mid, planned.memory.card_bytes
        raise UserError(
            f"the run needs {show_bytes(needed)} on each card, and the {planned.device.name} has {show_bytes(there)}",
            hint=f'`onecard recommend --fit CONFIG --gpu "{planned.device.name}"` makes it fit',
        )
    limit = time_limit(planned, config.max_hours) if limit_seconds is None else limit_seconds
    for key in ("out_dir", "dataset"):
        plain(getattr(config, key), key)
    return Job(
        name=job_name(name or Path(config.out_dir).name),
        config=config,
        plan=planned,
        cards=cards,
        nodes=nodes,
        limit_seconds=limit,
        rental=rental_of(planned.device.name),
        restarts=restarts,
    )


def time_limit(planned: RunPlan, max_hours: float | None) -> float:
    """The slow end of the plan, or max_hours, with a margin and the time to set up."""
    seconds = planned.time.total_seconds.high
    if max_hours is not None:
        seconds = min(seconds, max_hours * HOUR)
    return max(_LEAST_SECONDS, seconds * _MARGIN + _SET_UP_SECONDS)


def job_name(text: str) -> str:
    """A name that needs no quoting anywhere: engines, files and buckets take it as it is."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:48].strip("-._")
    return name or "onecard"


def plain(text: str, what: str) -> str:
    """Text for a job file: one line without control characters, which no quoting carries through every engine."""
    if printable(text) != text:
        raise UserError(
            f"{what} holds a line break or another control character: {text!r}",
            hint="job files take one line of plain text there",
        )
    return text


def announcement(job: Job) -> list[str]:
    """What is about to be written: hours, memory and money by the plan."""
    time, memory, device = job.plan.time.total_seconds, job.plan.memory, job.plan.device
    machines = f"{job.nodes} × " if job.nodes > 1 else ""
    several = f"{job.cards} × " if job.cards > 1 else ""
    lines = [
        f"{job.name} on {machines}{several}{device.name}: about {show_duration(time.mid)} "
        f"({show_duration(time.low)} to {show_duration(time.high)}), "
        f"{show_bytes(memory.process_bytes.mid)} of {show_bytes(memory.card_bytes)} on each"
    ]
    if job.cost is not None and job.rental is not None:
        price = show_money((job.rental.typical, job.rental.currency))
        lines.append(
            f"rented: about {show_money(job.cost)} at {price} a card and hour ({job.rental.period}: {job.rental.source})"
        )
    else:
        energy = job.plan.energy
        lines.append(f"electricity: about {show_money((energy.cost.mid, energy.currency))}")
    if job.config.max_hours is not None and time.mid > job.config.max_hours * HOUR:
        lines.append(
            f"max_hours = {job.config.max_hours:g} ends it earlier, with the decay fitted in"
        )
    if job.nodes > 1:
        exchange = show_duration(job.plan.time.parts["exchange"])
        lines.append(
            f"of a step the cards wait {exchange} for the exchange, with the links as planned"
        )
    return lines
