"""Measure this machine's own device: matmul rates, bandwidth, launch time, then real train steps of a few shapes.

    calibration = probe(torch.device("cpu"))     # a minute or two
    save(calibration)                            # `onecard plan` uses it at once

The steps are the trainer's own. Shapes are timed in turn, round after round, so that a slow moment of the machine falls on
all of them; then the cost of each kind of work is solved for (plan/calibration.py says which kinds).
"""

import gc
import statistics
import time
from collections.abc import Callable
from datetime import date

import torch

from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.plan.calibration import WORK, Calibration, Mode, file_of, installed_torch, mode_key, to_json
from onecard.plan.speed import step_work
from onecard.plan.workload import Workload
from onecard.runs.record import write_text_atomically
from onecard.train import preflight
from onecard.train.faults import Faults
from onecard.train.machine import precision_of, synchronize
from onecard.train.modern import make_model
from onecard.train.optim import make_optimizer
from onecard.train.step import Stepper, is_out_of_memory
from onecard.train.workers import Workers

Progress = Callable[[str, float], None]  # told what is being done, and which share of all is behind


def probe_shapes(kind: str) -> list[RunConfig]:
    """Few shapes that pull the kinds of work apart: two or three widths, depths, micro-batches and vocabularies."""
    if kind == "cpu":
        table = [  # width, layers, batch, block, vocabulary: a step takes from 10 ms to a second on two cores
            (128, 2, 4, 128, 512), (128, 8, 4, 128, 512), (384, 2, 4, 128, 512), (384, 4, 8, 128, 512),
            (256, 4, 4, 256, 512), (256, 6, 2, 128, 2048), (128, 2, 2, 128, 50304), (384, 2, 4, 128, 50304),
        ]  # fmt: skip
    else:
        table = [
            (384, 6, 16, 1024, 50304), (768, 4, 8, 1024, 50304), (768, 12, 4, 1024, 50304), (1024, 8, 4, 1024, 50304),
            (384, 12, 8, 1024, 512), (768, 6, 2, 1024, 512),
        ]  # fmt: skip
    return [
        RunConfig(n_embd=width, n_head=max(1, width // 64), n_layer=layers, batch_size=batch, block_size=block,
                  vocab_size=vocab, gradient_accumulation_steps=1, compile=kind == "cuda")
        for width, layers, batch, block, vocab in table
    ]  # fmt: skip


def probe(
    device: torch.device, known: Device, seconds: float = 75, tell: Progress = lambda what, share: None
) -> Calibration:
    """Everything that a calibration holds, in about `seconds` (compiling comes on top)."""
    began = time.perf_counter()
    precision = precision_of("auto", device)
    tell("matmuls", 0.0)
    rates = {precision.dtype: matmul_rates(device, precision.dtype)}
    tell("memory", 0.1)
    bandwidth, launch = copy_bandwidth(device), launch_seconds(device)
    timed = time_shapes(
        probe_shapes(device.type), device, seconds * 0.85, lambda what, share: tell(what, 0.15 + 0.85 * share)
    )
    grouped: dict[str, list[tuple[Workload, float]]] = {}
    for config, took in timed:
        w = Workload.of(config, precision.dtype)
        grouped.setdefault(mode_key(w), []).append((w, took))
    modes = {key: solve(pairs, rates[precision.dtype], bandwidth, launch) for key, pairs in grouped.items()}
    return Calibration(
        device=known.name,
        torch=installed_torch(),
        power_limit_watts=known.power_limit_watts,
        date=date.today().isoformat(),
        seconds=round(time.perf_counter() - began, 1),
        matmul=rates,
        bandwidth=bandwidth,
        launch_seconds=launch,
        modes=modes,
    )


def save(calibration: Calibration) -> str:
    """Write it where `load_calibration` looks; aside first, so that an interruption leaves the old one."""
    path = file_of(calibration.device, calibration.torch, calibration.power_limit_watts)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, to_json(calibration))
    return str(path)


def matmul_rates(device: torch.device, dtype: str) -> list[tuple[float, float]]:
    """FLOP/s of 512 rows (8192 on a card) through square matrices of a few widths."""
    rows, widths = (512, (64, 128, 256, 512, 1024)) if device.type == "cpu" else (8192, (256, 512, 1024, 2048, 4096))
    rates = []
    for width in widths:
        x = torch.randn(rows, width, device=device, dtype=getattr(torch, dtype))
        matrix = torch.randn(width, width, device=device, dtype=getattr(torch, dtype))
        took = _quick(lambda x=x, matrix=matrix: x @ matrix, device)  # type: ignore[misc]
        rates.append((float(width), 2.0 * rows * width * width / took))
    return rates


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a copy too large for any cache."""
    count = 2**24 if device.type == "cpu" else 2**27
    a, b = (torch.zeros(count, device=device) for _ in range(2))
    return 8.0 * count / _quick(lambda: b.copy_(a), device)


def launch_seconds(device: torch.device) -> float:
    """One kernel that does nothing worth mentioning, in a row of a hundred."""
    x = torch.zeros(8, device=device)

    def hundred() -> None:
        for _ in range(100):
            x.add_(1.0)

    return _quick(hundred, device) / 100


def _quick(action: Callable[[], object], device: torch.device, budget: float = 0.4) -> float:
    """Median seconds of a short action, after a warm-up."""
    times: list[float] = []
    for _ in range(3):
        action()
    end = time.perf_counter() + budget
    while len(times) < 5 or time.perf_counter() < end:
        synchronize(device)
        began = time.perf_counter()
        action()
        synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def time_shapes(
    shapes: list[RunConfig], device: torch.device, seconds: float, tell: Progress = lambda what, share: None
) -> list[tuple[RunConfig, float]]:
    """Seconds of a whole optimizer step for each shape, round after round; a shape too large is left out."""
    steps: list[tuple[RunConfig, Callable[[], None], list[float]]] = []
    for i, config in enumerate(shapes):
        tell(f"{config.n_layer} layers of {config.n_embd}", 0.3 * i / len(shapes))
        try:
            step = train_step(config, device)
            step()
            step()
            steps.append((config, step, []))
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            gc.collect()
    began = time.perf_counter()
    rounds = 0
    while rounds < 5 or (time.perf_counter() - began < 0.7 * seconds and rounds < 200):
        for _, step, times in steps:
            synchronize(device)
            start = time.perf_counter()
            step()
            synchronize(device)
            times.append(time.perf_counter() - start)
        rounds += 1
        tell("train steps", 0.3 + 0.7 * min(1.0, (time.perf_counter() - began) / (0.7 * seconds)))
    # the lower quartile: near the median on a quiet machine, and not the neighbours' load on a busy one
    return [(config, statistics.quantiles(times, n=4)[0]) for config, _, times in steps]


def train_step(config: RunConfig, device: torch.device) -> Callable[[], None]:
    """One optimizer step of the trainer's own, on random tokens."""
    torch.manual_seed(config.seed)
    model = make_model(config).to(device)
    model.train()
    precision = precision_of(config.dtype, device)
    forward = preflight.compiled_forward(model, config, device, precision, preflight.Preflight())
    scaler = torch.amp.GradScaler(device.type, enabled=precision.scaled)
    stepper = Stepper(
        config, model, forward, make_optimizer(config, model), scaler, precision, Workers(config.backend, device),
        config.batch_size, None, Faults(), lambda before, now: None,
    )  # fmt: skip
    rows = torch.randint(
        config.shape.vocab_size,
        (config.batch_size * config.gradient_accumulation_steps, config.block_size + 1),
        device=device,
    )

    def step() -> None:
        stepper.gradients(rows, 1, 1)
        stepper.apply(1e-4)

    return step


def solve(
    pairs: list[tuple[Workload, float]], rates: list[tuple[float, float]], bandwidth: float, launch: float
) -> Mode:
    """The costs that explain the timed steps best, each pulled gently to what the small measurements say.

    Minimises Σ (predicted/measured - 1)² + λ Σ ((cost - guess)/guess)² by coordinate descent; costs never fall below
    a tenth of the guess, so that more work always takes more time.
    """
    guess = {
        "layers": 1.0, "head": 1.0, "attention": 2.0 / rates[len(rates) // 2][1], "memory": 1.0 / bandwidth,
        "launch": launch, "optimizer": 1.0 / bandwidth,
    }  # fmt: skip
    rows = [{key: amount / took for key, amount in step_work(w, rates).items()} for w, took in pairs]
    cost = dict(guess)
    pull = 0.002
    for _ in range(500):
        for key in WORK:
            top = (
                sum(row[key] * (1 - sum(cost[k] * row[k] for k in WORK if k != key)) for row in rows)
                + pull / guess[key]
            )
            bottom = sum(row[key] ** 2 for row in rows) + pull / guess[key] ** 2
            cost[key] = max(0.1 * guess[key], top / bottom)
    misses = [abs(sum(cost[key] * row[key] for key in WORK) - 1) for row in rows]
    return Mode(
        {key: float(f"{value:.5g}") for key, value in cost.items()}, round(statistics.median(misses), 4), len(rows)
    )


def summary(calibration: Calibration) -> list[tuple[str, str]]:
    """What was measured, as lines for a person."""
    lines = [
        ("memory", f"{calibration.bandwidth / 1e9:.1f} GB/s"),
        ("launch", f"{calibration.launch_seconds * 1e6:.1f} µs"),
    ]
    for dtype, rates in calibration.matmul.items():
        best = max(rate for _, rate in rates)
        lines.append(
            (
                f"matmul, {dtype}",
                f"{best / 1e12:.3g} TFLOPS at its best, {rates[0][1] / 1e12:.3g} at width {rates[0][0]:.0f}",
            )
        )
    for key, mode in (calibration.modes or {}).items():
        lines.append((f"steps, {key}", f"{mode.steps} shapes, explained to {mode.error:.1%}"))
    return lines
