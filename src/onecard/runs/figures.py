"""What follows from a run's log: parameters, tokens, FLOPs, MFU against the card's true peak, energy, what is left.

    figures(run, find_gpu("RTX 4070")).mfu_card      0.69 where nanoGPT printed 12.9 %

Every figure that the log does not state is checked against the others where it can be: the printed parameter count
against the config's, the tokens against the batch, the printed MFU against both. What does not agree is a problem that
is shown, and the figures that rest on it are left out rather than guessed.
"""

from dataclasses import dataclass, field
from typing import Any

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.facts.gpus import Device, find_gpu
from onecard.facts.prices import Price, electricity
from onecard.messages import Note
from onecard.planner import RunPlan, plan
from onecard.planner.flops import nanogpt_per_token
from onecard.planner.params import params
from onecard.runs.curve import SEED_NOISE, Estimate
from onecard.runs.run import Run
from onecard.units import HOUR

_AGREES = 0.04  # a printed MFU is rounded, averaged and carries evaluations: so far off it still tells the same story
_SHAPE = ("n_layer", "n_head", "n_embd", "block_size")


@dataclass
class RunFigures:
    """One run's figures in base units; None where it cannot be known. `inferred` names those that were worked out."""

    run: Run
    name: str
    config: RunConfig | None = None
    device: Device | None = None
    dtype: str | None = None
    params_nanogpt: float | None = None
    params_total: int | None = None
    tokens_per_step: int | None = None
    flops_per_token: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    tflops: float | None = None
    mfu_card: float | None = None
    mfu_printed: float | None = None
    final_loss: float | None = None
    final_loss_kind: str | None = None  # "val" or "train"
    final_bits_per_byte: float | None = None
    tokens_seen: float | None = None
    seconds: float | None = None  # of training, evaluations and compile left out
    kwh: float | None = None
    cost: float | None = None
    currency: str | None = None
    gpus: int = 1
    plan: RunPlan | None = None
    predicted: dict[str, float | None] = field(default_factory=dict)
    projected_loss: float | None = None
    seconds_left: float | None = None
    inferred: list[str] = field(default_factory=list)
    problems: list[Note] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        run = self.run
        return {
            "name": self.name,
            "source": run.source,
            "format": run.format,
            "state": run.state,
            "gpu": self.device.name if self.device else run.gpu,
            "gpus": self.gpus,
            "dtype": self.dtype,
            "params_nanogpt": self.params_nanogpt,
            "params_total": self.params_total,
            "tokens_per_step": self.tokens_per_step,
            "flops_per_token": self.flops_per_token,
            "step_seconds": self.step_seconds,
            "tokens_per_second": self.tokens_per_second,
            "tflops": self.tflops,
            "mfu_card": self.mfu_card,
            "mfu_printed": self.mfu_printed,
            "final_loss": self.final_loss,
            "final_loss_kind": self.final_loss_kind,
            "final_bits_per_byte": self.final_bits_per_byte,
            "last_step": run.last_step,
            "max_steps": self._max_steps(),
            "tokens_seen": self.tokens_seen,
            "seconds": self.seconds,
            "kwh": self.kwh,
            "cost": self.cost,
            "currency": self.currency,
            "predicted": self.predicted,
            "projected": {"loss": self.projected_loss, "seconds_left": self.seconds_left},
            "inferred": self.inferred,
            "unreadable_lines": run.unreadable,
            "superseded_lines": run.superseded,
            "evaluation_seconds_in_steps": run.times.leaked_seconds,
            "first_step_seconds": run.times.first,
            "not_finite_steps": run.not_finite,
        }

    def _max_steps(self) -> int | None:
        return self.run.max_steps or (self.config.max_iters if self.config else None)

    def loss_at(self, step: float, kind: str) -> Estimate | None:
        """The validation ("val") or training ("train") loss at a step, with its noise."""
        if kind == "train":
            return self.run.curve.loss_at(step)
        return _between_evals(
            [(e.step, e.val_loss) for e in self.run.evals if e.val_loss is not None], step
        )

    def bits_at(self, step: float) -> Estimate | None:
        return _between_evals(
            [(e.step, e.bits_per_byte) for e in self.run.evals if e.bits_per_byte is not None], step
        )


def figures(run: Run, gpu: Device | None = None, price: Price | None = None) -> RunFigures:
    """All that the log, the config and the card tell together."""
    f = RunFigures(run, run.name)
    f.device = gpu or _device(run)
    f.config = _config(run, f.problems)
    f.dtype = _dtype(f)
    f.gpus = run.gpus
    f.step_seconds = run.times.median()
    f.mfu_printed = run.mfu_printed
    _model(f)
    _tokens(f)
    _check_mfu(f)
    _rates(f, named=gpu is not None)
    _losses(f)
    _energy(f, price or electricity("WORLD"))
    _ahead(f)
    return f


def _device(run: Run) -> Device | None:
    try:
        return find_gpu(run.gpu) if run.gpu else None
    except UserError:
        return None


def _config(run: Run, problems: list[Note]) -> RunConfig | None:
    """The run's config, where the log or the user tells enough; what a nanoGPT header leaves out has its default."""
    values = {key: known.value for key, known in run.config.items()}
    told = "header" in run.signs or any(
        known.how in ("config", "flag") for known in run.config.values()
    )
    if not told and not all(key in values for key in _SHAPE):
        return None
    if run.vocab_size and values.get("vocab_size") is None:
        values["vocab_size"] = run.vocab_size
    try:
        return RunConfig.from_values(_as_it_ran(values))
    except UserError as error:
        problems.append(
            Note("config-wrong", "its config cannot be right: {why}", why=error.message)
        )
        return None


def _as_it_ran(values: dict[str, Any]) -> dict[str, Any]:
    """nanoGPT trains where `onecard train` would refuse: a min_lr above the learning rate, a warm-up beyond the run."""
    values = dict(values)
    rate, lowest = values.get("learning_rate"), values.get("min_lr", RunConfig.min_lr)
    if isinstance(rate, int | float) and isinstance(lowest, int | float) and 0 < rate < lowest:
        values["min_lr"] = rate
    steps, warm = values.get("max_iters"), values.get("warmup_iters", RunConfig.warmup_iters)
    if isinstance(steps, int | float) and isinstance(warm, int | float) and 1 <= steps < warm:
        values["warmup_iters"] = steps
    return values


def _dtype(f: RunFigures) -> str | None:
    if f.run.dtype:
        return f.run.dtype
    if f.config is not None and f.config.dtype != "auto":
        return f.config.dtype
    return f.device.training_dtype if f.device is not None else None


def _model(f: RunFigures) -> None:
    run = f.run
    f.params_total = run.params_total
    f.params_nanogpt = run.params_printed
    f.flops_per_token = run.flops_per_token
    if run.format in ("nanochat", "modded-nanogpt") or f.config is None:
        if f.params_nanogpt is None and run.params_total is not None:
            f.params_nanogpt = run.params_total
        return
    count = params(f.config.shape)
    if (
        run.params_printed is not None
        and abs(count.nanogpt - run.params_printed) > run.params_error * 1.01
    ):
        f.problems.append(
            Note(
                "params-disagree",
                "the config makes {config:count} parameters, but the log printed {printed:count}",
                config=count.nanogpt,
                printed=run.params_printed,
            )
        )
        return
    f.params_nanogpt = count.nanogpt
    f.params_total = count.total
    f.flops_per_token = nanogpt_per_token(f.config.shape)


def _tokens(f: RunFigures) -> None:
    run = f.run
    logged = run.tokens_per_step.value if run.tokens_per_step else None
    own = f.config.tokens_per_step if f.config is not None and _told_batch(run) else None
    if (
        logged is not None
        and own is not None
        and logged != own
        and run.format in ("nanogpt", "onecard")
    ):
        f.problems.append(
            Note(
                "tokens-disagree",
                "the config makes {config:int} tokens a step, but the log printed {printed:int}",
                config=own,
                printed=logged,
            )
        )
        f.tokens_per_step = next((t for t in (logged, own) if _agrees_with_mfu(f, t)), None)
        return
    f.tokens_per_step = logged or own
    if run.tokens_per_step is not None and run.tokens_per_step.how == "inferred":
        f.inferred.append("tokens_per_step")


def _told_batch(run: Run) -> bool:
    """Whether the batch is the run's own, not nanoGPT's default for want of a better."""
    told = any(key in run.config for key in ("batch_size", "gradient_accumulation_steps"))
    whole = any(
        known.how == "config" for known in run.config.values()
    )  # a config file: the rest are its defaults
    return told or whole or "header" in run.signs


def _printed_flops_per_second(f: RunFigures) -> float | None:
    peak = f.run.printed_peak_flops
    if f.run.mfu_settled is None or peak is None or f.run.times.every_one_leaks:
        return None
    return f.run.mfu_settled * peak


def _agrees_with_mfu(f: RunFigures, tokens: int) -> bool:
    printed = _printed_flops_per_second(f)
    if printed is None or f.flops_per_token is None or not f.step_seconds:
        return False
    return abs(f.flops_per_token * tokens / f.step_seconds / printed - 1) <= _AGREES


def _check_mfu(f: RunFigures) -> None:
    """The third of tokens, FLOPs and printed MFU from the other two; or, where all are there, whether they agree."""
    printed = _printed_flops_per_second(f)
    if printed is None or not f.step_seconds or f.run.format == "onecard":
        return
    per_step = printed * f.step_seconds
    if f.flops_per_token is None and f.tokens_per_step:
        f.flops_per_token = per_step * f.gpus / f.tokens_per_step
        f.inferred.append("flops_per_token")
    elif (
        f.tokens_per_step is None and f.flops_per_token and f.config is not None and not f.problems
    ):
        block = f.config.block_size
        f.tokens_per_step = max(1, round(per_step / f.flops_per_token / block)) * block
        f.inferred.append("tokens_per_step")
    elif f.flops_per_token and f.tokens_per_step:
        ratio = f.flops_per_token * f.tokens_per_step / per_step
        cards = round(ratio)
        # Between the median and the best of the printed ones: a run that slows down has both.
        sagged = (f.mfu_printed or 0.0) / (f.run.mfu_settled or 1.0)
        if sagged * (1 - _AGREES) <= ratio <= 1 + _AGREES:
            return
        if (
            2 <= cards <= 16
            and abs(ratio / cards - 1) <= _AGREES
            and f.gpus == 1
            and f.run.format == "nanogpt"
        ):
            f.gpus = cards  # nanoGPT prints one process's MFU
            f.inferred.append("gpus")
            return
        f.problems.append(
            Note(
                "mfu-disagrees",
                "the printed MFU fits {ratio:.2f} times the FLOPs that model, batch and step time make; "
                "one of them is not what it seems",
                ratio=1 / ratio,
            )
        )


def _rates(f: RunFigures, named: bool) -> None:
    """Tokens and FLOPs a second; the peak is the card's that the user named, else our own log's, else the log's card's."""
    if f.step_seconds is None and f.run.wall_seconds and f.run.last_step:
        f.step_seconds = f.run.wall_seconds / f.run.last_step
        f.inferred.append("step_seconds")
    if f.tokens_per_step is not None:
        f.tokens_seen = float(f.tokens_per_step) * f.run.last_step
    if f.step_seconds and f.tokens_per_step:
        f.tokens_per_second = f.tokens_per_step / f.step_seconds
    if f.tokens_per_second is not None and f.flops_per_token is not None:
        f.tflops = f.flops_per_token * f.tokens_per_second / 1e12
        peak = f.run.peak_flops
        if f.device is not None and f.dtype is not None and (peak is None or named):
            peak = f.device.matmul_flops(f.dtype)
        if peak:
            f.mfu_card = f.tflops * 1e12 / (peak * f.gpus)
    f.seconds = f.run.curve.seconds[-1] if f.run.curve.seconds else None
    if f.step_seconds is not None and not f.seconds:
        f.seconds = f.step_seconds * f.run.last_step
    for name in ("flops_per_token", "tokens_per_step"):
        if name in f.inferred:
            f.inferred += [
                n for n in ("tokens_per_second", "tflops", "mfu_card") if n not in f.inferred
            ]


def _losses(f: RunFigures) -> None:
    run = f.run
    late = [e for e in run.evals if e.step >= 0.9 * run.last_step]
    f.final_bits_per_byte = next(
        (e.bits_per_byte for e in reversed(late) if e.bits_per_byte is not None), None
    )
    val = next((e.val_loss for e in reversed(late) if e.val_loss is not None), None)
    if val is not None:
        f.final_loss, f.final_loss_kind = val, "val"
    elif run.curve.steps:
        estimate = run.curve.loss_at(run.curve.steps[-1])
        f.final_loss, f.final_loss_kind = (
            (estimate.value if estimate else run.curve.losses[-1]),
            "train",
        )


def _energy(f: RunFigures, price: Price) -> None:
    f.kwh = f.run.kwh
    if f.kwh is None and f.device is not None and f.seconds is not None:
        f.kwh = f.device.watts * f.gpus * f.seconds / HOUR / 1000
        f.inferred.append("kwh")
    if f.kwh is not None:
        f.cost, f.currency = f.kwh * price.per_kwh, price.currency


def _ahead(f: RunFigures) -> None:
    """The plan of this run: what it should have done so far, and what is still to come."""
    steps = f._max_steps()
    if steps is not None and f.step_seconds is not None:
        f.seconds_left = max(0, steps - f.run.last_step) * f.step_seconds
    own = f.run.plan or {}
    if (
        f.config is not None
        and f.device is not None
        and f.run.format in ("nanogpt", "onecard", "llm.c")
    ):
        try:
            f.plan = plan(f.config, f.device, gpus=f.gpus)
        except UserError:
            f.plan = None
    if own:
        f.predicted = {name: _path(own, path) for name, path in _PREDICTED.items()}
    elif f.plan is not None:
        told = f.plan.to_json()
        f.predicted = {name: _path(told, path) for name, path in _PREDICTED.items()}
    f.projected_loss = _projected(f, steps)


_PREDICTED = {
    "step_seconds": "time.step_seconds.mid",
    "step_seconds_low": "time.step_seconds.low",
    "step_seconds_high": "time.step_seconds.high",
    "tokens_per_second": "time.tokens_per_second.mid",
    "mfu_card": "mfu.card.mid",
    "memory_bytes": "memory.process_bytes.mid",
    "final_loss": "loss.expected.mid",
    "final_loss_low": "loss.expected.low",
    "final_loss_high": "loss.expected.high",
    "kwh": "energy.kwh.mid",
    "total_seconds": "time.total_seconds.mid",
}


def _path(tree: dict[str, Any], path: str) -> float | None:
    node: Any = tree
    for name in path.split("."):
        node = node.get(name) if isinstance(node, dict) else None
    return float(node) if isinstance(node, int | float) and not isinstance(node, bool) else None


def _projected(f: RunFigures, steps: int | None) -> float | None:
    """The plan's final loss moved by how far the run is off the plan's curve now; None where there is no such curve."""
    if f.plan is None or f.plan.loss is None or steps is None or f.final_loss is None:
        return None
    if f.run.last_step >= steps:
        return f.final_loss
    expected = expected_at(f.plan, f.run.last_step)
    if expected is None or f.run.last_step < 0.02 * steps:
        return None
    # An early lead or lag shrinks along the schedule: the law's floor is the same for both.
    return f.plan.loss.expected.mid + (f.final_loss - expected) * f.run.last_step / steps


def expected_at(planned: RunPlan, step: float) -> float | None:
    """The plan's loss curve at a step."""
    from onecard.runs.curve import between

    if planned.loss is None or not planned.loss.curve:
        return None
    return between(
        [float(s) for s, _ in planned.loss.curve], [loss for _, loss in planned.loss.curve], step
    )


def _between_evals(points: list[tuple[int, float]], step: float) -> Estimate | None:
    from onecard.runs.curve import between

    value = between([float(s) for s, _ in points], [loss for _, loss in points], step)
    if value is None:
        return None
    near = min(abs(s - step) for s, _ in points)
    # Between two evaluations the curve bends below the straight line: a share of the fall between them is unsure.
    gap = 0.0
    if near > 0:
        before = max((p for p in points if p[0] <= step), key=lambda p: p[0])
        after = min((p for p in points if p[0] >= step), key=lambda p: p[0])
        gap = abs(before[1] - after[1]) / 8
    return Estimate(value, max(SEED_NOISE, gap))
