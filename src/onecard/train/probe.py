"""Measure this machine: matmuls, copies and tiny operations alone, then real train steps of several shapes.

>>> calibration = probe(quick=True)                                        # doctest: +SKIP
>>> calibration.device, round(calibration.rates["matmul"] / 1e9)           # doctest: +SKIP
('CPU, 2 cores', 180)

The steps are the trainer's own (`Stepper`). All shapes take turns, several rounds of them, so that a disturbance affects
all of them equally; a shape's figure is the median of its rounds' medians. On a card one shape is resident at a time: the others wait
in the host's memory. Nothing is written here: an interrupted probe leaves what was known.
"""

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from onecard.config import RunConfig
from onecard.errors import RunFailure
from onecard.model import machine
from onecard.model.build import lowered, make_model
from onecard.model.out_of_memory import is_out_of_memory
from onecard.planner.calibration import Calibration, Observation
from onecard.planner.calibration_file import torch_version
from onecard.planner.calibration_fit import fit_costs, spread_of
from onecard.planner.workload import Workload
from onecard.train.optim import make_optimizer
from onecard.train.probe_rates import hints_of, measure_rates
from onecard.train.run.faults import Faults
from onecard.train.run.preflight import Preflight
from onecard.train.run.step import Stepper, gradient_sums
from onecard.train.run.trial import compiled_forward
from onecard.train.run.validation import PLAIN
from onecard.train.run.workers import Workers
from onecard.units import utc_now

# seconds done, seconds in all as far as is known, what is being done
Tell = Callable[[float, float, str], None]

# Layers, heads, width, context, micro-batch, accumulation, vocabulary. Each kind of work is large in some of them and
# small in others: depth and width, long and short contexts, GPT-2's vocabulary and small ones, one micro-batch and more.
Shape = tuple[int, int, int, int, int, int, int]
CPU_QUICK: tuple[Shape, ...] = (
    (2, 2, 64, 64, 4, 1, 256),
    (4, 4, 128, 128, 16, 1, 2048),
    (2, 4, 256, 128, 4, 1, 256),
    (2, 4, 128, 64, 4, 1, 50304),
    (2, 6, 384, 64, 4, 2, 2048),
    (2, 4, 256, 64, 8, 1, 50304),
)
CPU_FULL: tuple[Shape, ...] = (
    (2, 2, 64, 64, 4, 1, 256),
    (6, 4, 128, 128, 4, 1, 256),
    (2, 4, 128, 128, 16, 1, 2048),
    (2, 4, 256, 512, 2, 1, 256),
    (4, 4, 256, 128, 8, 1, 512),
    (3, 6, 192, 64, 8, 2, 8192),
    (2, 6, 384, 128, 8, 1, 2048),
    (6, 6, 384, 64, 4, 1, 256),
    (3, 8, 512, 64, 4, 3, 512),
    (2, 4, 128, 128, 4, 1, 50304),
    (4, 4, 256, 64, 4, 1, 50304),
    (2, 6, 384, 128, 4, 1, 50304),
    (2, 4, 192, 256, 4, 1, 50304),
)
CPU_COMPILED: tuple[Shape, ...] = ((2, 4, 128, 128, 16, 1, 2048), (2, 4, 256, 64, 4, 1, 50304))
CARD_QUICK: tuple[Shape, ...] = (
    (2, 6, 384, 256, 4, 1, 1024),
    (4, 6, 384, 1024, 4, 1, 50304),
    (4, 12, 768, 1024, 2, 2, 50304),
    (6, 12, 768, 512, 8, 1, 1024),
)
CARD_FULL: tuple[Shape, ...] = (
    (2, 6, 384, 256, 4, 1, 1024),
    (8, 6, 384, 1024, 4, 1, 1024),
    (4, 6, 384, 1024, 4, 1, 50304),
    (4, 12, 768, 1024, 2, 2, 50304),
    (8, 12, 768, 512, 8, 1, 1024),
    (2, 12, 768, 1024, 8, 1, 50304),
    (3, 16, 1024, 1024, 4, 1, 8192),
    (2, 16, 1024, 256, 8, 4, 50304),
)
CARD_COMPILED: tuple[Shape, ...] = (
    (4, 6, 384, 1024, 8, 1, 1024),
    (4, 12, 768, 1024, 4, 2, 50304),
    (2, 6, 384, 1024, 8, 1, 50304),
    (2, 16, 1024, 1024, 4, 1, 8192),
)
_SLOW = 0.15  # a shape whose one step takes this share of the whole budget is left out,
_FEWEST = 4  # unless there would be fewer than these
_PATIENCE = 2.0  # how far over its budget a round of steps may go


@dataclass
class Turn:
    """One shape at work: its model and optimizer, and what its steps took, round by round."""

    config: RunConfig
    stepper: Stepper
    rows: Tensor
    rounds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of all its steps

    def move(self, device: torch.device | str) -> None:
        """Weights and optimizer state there; gradients are dropped. A compiled forward stays what it is."""
        self.stepper.optimizer.zero_grad()
        self.stepper.model.to(device)
        for state in self.stepper.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.to(device)

    @contextmanager
    def resident(self) -> Iterator[None]:
        """On a card only while it steps: all shapes together would take more memory than small cards have."""
        device = self.rows.device
        if device.type != "cuda":
            yield
            return
        self.move(device)
        try:
            yield
        finally:
            self.move("cpu")
            torch.cuda.empty_cache()

    def steps(self, count: int) -> list[float]:
        """Seconds of each of `count` steps, as the training loop does them."""
        seconds = []
        for step in range(count):
            began = time.perf_counter()
            loss, _ = self.stepper.gradients(self.rows, step, seed=step)
            if not self.stepper.apply(1e-4, step):
                raise RunFailure("out of memory in the update")
            machine.synchronize(self.rows.device)
            seconds.append(time.perf_counter() - began)
            self.losses.append(loss)
        return seconds


def probe(quick: bool = False, tell: Tell | None = None, asked: str = "auto") -> Calibration:
    """All that can be measured in about 15 seconds (quick), or in a minute or two on two cores."""
    tell = tell or (lambda done, whole, what: None)
    torch.set_float32_matmul_precision("high")  # as the training loop does
    device = machine.measured_device(asked)
    machine.keep_freed_memory(device)
    facts = machine.facts_of(device)
    precision = machine.precision_of("auto", device)
    card = device.type != "cpu"
    eager = (CARD_QUICK if quick else CARD_FULL) if card else (CPU_QUICK if quick else CPU_FULL)
    compiled = () if quick else CARD_COMPILED if card else CPU_COMPILED
    budget = 9.0 if quick else 60.0

    tell(0.0, budget, "matmuls, copies, tiny operations")
    rates = measure_rates(device, precision.dtype, quick)
    hints = hints_of(rates)
    host = rates["host_seconds"] if card else 0.0
    seen = measure_steps(device, [config_of(shape, False) for shape in eager], budget, tell)
    if not seen:
        raise RunFailure(
            "none of the probe's shapes fits in this device's memory",
            hint="close other programs that use it",
        )
    costs = {"eager": fit_costs(seen, hints, host)}
    spread = {"eager": spread_of(seen, hints, host)}
    if compiled:
        try:
            configs = [config_of(shape, True) for shape in compiled]
            measured = measure_steps(device, configs, budget / 3, tell)
        except RuntimeError:  # what the eager steps showed is kept
            measured = []
        if measured:
            # few shapes, for each has to be compiled: what they do not tell is as in eager mode
            near = {kind: max(cost, 0.1 * hints[kind]) for kind, cost in costs["eager"].items()}
            costs["compiled"] = fit_costs(measured, near, host)
            spread["compiled"] = spread["eager"] + spread_of(measured, near, host)
        seen += measured
    tell(1.0, 1.0, "done")
    return Calibration(
        device=facts.name,
        memory_bytes=facts.usable_bytes,
        torch=torch_version() or torch.__version__,
        power_limit_watts=facts.power_limit_watts,
        date=utc_now(),
        dtype=Workload.of(RunConfig(), precision.dtype).dtype,
        rates=rates,
        host_seconds=host,
        costs=costs,
        spread=spread,
        observations=tuple(seen),
    )


def config_of(shape: Shape, compiled: bool) -> RunConfig:
    layers, heads, width, context, batch, accumulation, vocabulary = shape
    return RunConfig(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        block_size=context,
        batch_size=batch,
        gradient_accumulation_steps=accumulation,
        vocab_size=vocabulary,
        compile=compiled,
    )


def measure_steps(
    device: torch.device, configs: list[RunConfig], budget: float, tell: Tell
) -> list[Observation]:
    """The median step of each config, in rounds over all of them, within about `budget` seconds."""
    turns: list[tuple[Turn, float]] = []
    began = time.perf_counter()
    kind = "compiled" if configs[0].compile else "eager"
    for config in configs:
        tell(time.perf_counter() - began, 1.3 * budget, f"{kind} steps, first of each shape")
        try:
            if (turn := start(device, config)) is None:
                continue
            with turn.resident():
                turn.steps(1)
                pace = min(turn.steps(2))
        except (RunFailure, RuntimeError) as error:
            if not _does_not_fit(error):
                raise
            continue
        if pace < _SLOW * budget or len(turns) < _FEWEST:
            turns.append((turn, pace))
        if len(turns) >= _FEWEST and time.perf_counter() - began > _PATIENCE * budget:
            break  # a slow machine, or one that is busy: fewer shapes, and the range says so
    rounds = 5 if budget > 20 else 3
    share = budget / rounds / max(1, len(turns))
    counts = [max(2, min(20, round(share / pace))) for _, pace in turns]
    left = rounds * sum((count + 1) * pace for (_, pace), count in zip(turns, counts, strict=True))
    done = time.perf_counter() - began
    whole = done + left
    for each in range(rounds):
        if each and time.perf_counter() - began > _PATIENCE * budget:
            break
        for (turn, pace), count in zip(turns, counts, strict=True):
            tell(done, whole, f"{kind} steps, round {each + 1} of {rounds}")
            done += (count + 1) * pace
            try:
                with turn.resident():
                    turn.steps(1)  # its weights come back into the caches
                    turn.rounds.append(statistics.median(turn.steps(count)))
            except (RunFailure, RuntimeError) as error:
                # else something else took the memory: its other rounds are kept
                if not _does_not_fit(error):
                    raise
    seen = [turn for turn, _ in turns if turn.rounds]
    return [
        Observation(
            Workload.of(turn.config, turn.stepper.precision.dtype), statistics.median(turn.rounds)
        )
        for turn in seen
    ]


def _does_not_fit(error: BaseException) -> bool:  # RunFailure: see _shrunk
    return isinstance(error, RunFailure) or is_out_of_memory(error)


def start(device: torch.device, config: RunConfig) -> Turn | None:
    """A model and its optimizer on the device, ready to step; None where it was to be compiled and cannot be."""
    torch.manual_seed(config.seed)
    model = lowered(make_model(config), config).to(device).train()
    precision = machine.precision_of(config.matmul_dtype, device)
    with warnings.catch_warnings(action="ignore"):
        forward = compiled_forward(model, config, device, precision, Preflight())
    if config.compile and forward is model:
        return None
    stepper = Stepper(
        config,
        model,
        forward,
        make_optimizer(config, model),
        torch.amp.GradScaler(device.type, enabled=precision.scaled),
        precision,
        Workers(config.backend, device),
        config.batch_size,
        PLAIN,
        Faults(),
        _shrunk,
        gradient_sums(config, model, forward),
    )
    shape = config.sequences_per_step, config.block_size + 1
    own = torch.Generator().manual_seed(config.seed)  # the same rows however the model is run
    rows = torch.randint(0, config.shape.vocab_size, shape, generator=own).to(device)
    return Turn(config, stepper, rows)


def _shrunk(before: int, now: int) -> None:
    raise RunFailure(f"a micro-batch of {before} does not fit")  # a smaller one is another shape
