"""What a run was, from what its log, its config and its card say: each value once, checked against the others.

    resolve(run, find_gpu("RTX 4070")).config      None where the log contradicts it

A parameter count is checked against the config's, the tokens against the batch, the printed MFU against both, and the
speed against what the card can do. What does not agree is a problem that is reported, and is not used any further: a
config that the log contradicts is not planned from, a card that cannot be is not the run's card.
"""

from dataclasses import dataclass, replace
from typing import Any

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.facts.gpus import Device, find_gpu
from onecard.messages import Note
from onecard.planner.flops import nanogpt_per_token
from onecard.planner.params import params
from onecard.runs.run import Run

_AGREES = 0.04  # a printed MFU is rounded and averaged: figures this close describe the same run
_SAME_MODEL = 0.05  # our own log counts the vocabulary as it was padded
_ABOVE_PEAK = 1.05  # clocks above the rated boost
_MOST_CARDS = 16  # that a printed MFU is taken to stand for
_SHAPE = ("n_layer", "n_head", "n_embd", "block_size")
_BATCH = ("batch_size", "gradient_accumulation_steps")


@dataclass(frozen=True)
class ResolvedRun:
    """Values without conflict, None where there is none; `inferred` names those that follow from others."""

    run: Run
    config: RunConfig | None
    device: Device | None
    dtype: str | None
    gpus: int = 1
    params_nanogpt: float | None = None
    params_total: int | None = None
    flops_per_token: float | None = None
    tokens_per_step: int | None = None
    step_seconds: float | None = None
    peak_flops: float | None = None  # of all cards together
    inferred: frozenset[str] = frozenset()
    problems: tuple[Note, ...] = ()

    @property
    def beyond_its_card(self) -> bool:
        """Whether its log states a speed that the card cannot reach."""
        return any(problem.code == "card-impossible" for problem in self.problems)

    def with_problem(self, problem: Note, **changes: Any) -> "ResolvedRun":
        return replace(self, problems=(*self.problems, problem), **changes)

    def with_inferred(self, **values: Any) -> "ResolvedRun":
        return replace(self, inferred=self.inferred | set(values), **values)


def resolve(run: Run, gpu: Device | None = None) -> ResolvedRun:
    """The run's values; `gpu` is the card that the user named, which wins over the log's."""
    config, problems = _config(run)
    device = gpu or _device(run)
    resolved = ResolvedRun(
        run,
        config,
        device,
        _dtype(run, config, device),
        gpus=run.gpus,
        step_seconds=run.times.median,
        problems=problems,
    )
    resolved = _with_printed_mfu(_with_tokens(_with_model(resolved)))
    resolved = _with_wall_clock(resolved)
    return _with_card(resolved, named=gpu is not None)


def _device(run: Run) -> Device | None:
    try:
        return find_gpu(run.gpu) if run.gpu else None
    except UserError:
        return None


def _config(run: Run) -> tuple[RunConfig | None, tuple[Note, ...]]:
    """The run's config, where log or user give enough of it; what a nanoGPT header leaves out has its default."""
    values = {key: known.value for key, known in run.config.items()}
    if "header" not in run.signs and not _given(run) and not all(key in values for key in _SHAPE):
        return None, ()
    if run.vocab_size and values.get("vocab_size") is None:
        values["vocab_size"] = run.vocab_size
    try:
        return RunConfig.from_values(_as_it_ran(values)), ()
    except UserError as error:
        why = error.message
        return None, (Note("config-wrong", why=why),)


def _given(run: Run) -> bool:
    """Whether the user gave a config or keys, beside what the log holds."""
    return any(known.how in ("config", "flag") for known in run.config.values())


def _defaults(run: Run, keys: tuple[str, ...]) -> bool:
    """Whether neither the user nor the log states these keys: then it is nanoGPT's defaults that the log refutes."""
    return (
        run.format == "nanogpt" and not _given(run) and not any(key in run.config for key in keys)
    )


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


def _dtype(run: Run, config: RunConfig | None, device: Device | None) -> str | None:
    if run.dtype:
        return run.dtype
    if config is not None and config.matmul_dtype != "auto":
        return config.matmul_dtype
    return device.training_dtype if device is not None else None


def _with_model(resolved: ResolvedRun) -> ResolvedRun:
    """Parameters and FLOPs per token: the config's, unless the log counted others."""
    run, config = resolved.run, resolved.config
    logged = replace(
        resolved,
        params_total=run.params_total,
        params_nanogpt=run.params_printed,
        flops_per_token=run.flops_per_token,
    )
    if run.format in ("nanochat", "modded-nanogpt") or config is None:
        return replace(logged, params_nanogpt=run.params_printed or run.params_total)
    count = params(config.shape)
    printed, own = run.params_printed, float(count.nanogpt)
    error = run.params_error * 1.01
    if printed is None and run.format == "onecard" and run.params_total is not None:
        printed, own, error = run.params_total, float(count.total), _SAME_MODEL * count.total
    if printed is not None and abs(own - printed) > error:
        counts = {"config": own, "printed": printed}
        problem = (
            Note("params-disagree-defaults", **counts)
            if _defaults(run, _SHAPE)
            else Note("params-disagree", **counts)
        )
        return logged.with_problem(problem, config=None)
    return replace(
        resolved,
        params_nanogpt=count.nanogpt,
        params_total=count.total,
        flops_per_token=nanogpt_per_token(config.shape),
    )


def _with_tokens(resolved: ResolvedRun) -> ResolvedRun:
    """Tokens per step: the log's and the config's, where both are there and agree."""
    run, config = resolved.run, resolved.config
    logged = run.tokens_per_step.value if run.tokens_per_step else None
    own = config.tokens_per_step if config is not None and _states_batch(run) else None
    if logged and own and logged != own and run.format in ("nanogpt", "onecard"):
        counts = {"config": own, "printed": logged}
        problem = (
            Note("tokens-disagree-defaults", **counts)
            if _defaults(run, _BATCH)
            else Note("tokens-disagree", **counts)
        )
        tokens = next((each for each in (logged, own) if _fits_mfu(resolved, each)), None)
        kept = config if tokens == own else None
        return resolved.with_problem(problem, tokens_per_step=tokens, config=kept)
    if run.tokens_per_step is not None and run.tokens_per_step.how == "inferred":
        return resolved.with_inferred(tokens_per_step=logged)
    return replace(resolved, tokens_per_step=logged or own)


def _states_batch(run: Run) -> bool:
    """Whether the batch is the run's own, and not just nanoGPT's default."""
    stated = any(key in run.config for key in _BATCH)
    file = any(known.how == "config" for known in run.config.values())  # the rest are its defaults
    return stated or file or "header" in run.signs


def _printed_flops_per_step(resolved: ResolvedRun) -> float | None:
    """FLOPs of a step by the printed MFU, which is of one card."""
    run, seconds = resolved.run, resolved.step_seconds
    if run.mfu_settled is None or run.printed_peak_flops is None or not seconds:
        return None
    if run.times.every_one_leaks:
        return None
    return run.mfu_settled * run.printed_peak_flops * seconds


def _fits_mfu(resolved: ResolvedRun, tokens: int) -> bool:
    printed = _printed_flops_per_step(resolved)
    if printed is None or resolved.flops_per_token is None:
        return False
    return abs(resolved.flops_per_token * tokens / printed - 1) <= _AGREES


def _with_printed_mfu(resolved: ResolvedRun) -> ResolvedRun:
    """The third of tokens, FLOPs and printed MFU from the other two; or, where all are there, whether they agree."""
    printed = _printed_flops_per_step(resolved)
    if printed is None or resolved.run.format == "onecard":
        return resolved
    flops, tokens = resolved.flops_per_token, resolved.tokens_per_step
    if flops is None and tokens:
        return resolved.with_inferred(flops_per_token=printed * resolved.gpus / tokens)
    if flops and tokens:
        return _checked_mfu(resolved, flops * tokens / resolved.gpus / printed)
    if flops and resolved.config is not None and not resolved.problems:
        block = resolved.config.block_size
        return resolved.with_inferred(
            tokens_per_step=max(1, round(printed / flops / block)) * block
        )
    return resolved


def _checked_mfu(resolved: ResolvedRun, ratio: float) -> ResolvedRun:
    """`ratio`: the FLOPs that model and batch make over those that the printed MFU stands for."""
    run = resolved.run
    # Between the median and the best of the printed ones (a run that slows down has both), and above the best one where
    # evaluations in the step times pull nanoGPT's running mean down.
    lowest = (run.mfu_printed or 0.0) / (run.mfu_settled or 1.0) * (1 - _AGREES)
    if lowest <= ratio <= (1 + _AGREES) / (1 - _evaluation_sag(run)):
        return resolved
    cards = round(ratio)
    whole = 2 <= cards <= _MOST_CARDS and abs(ratio / cards - 1) <= _AGREES
    if whole and resolved.gpus == 1 and run.format in ("nanogpt", "nanochat"):
        return resolved.with_inferred(gpus=cards)  # they print the MFU of one process
    problem = Note("mfu-disagrees", ratio=1 / ratio)
    confirmed = run.params_printed is not None and run.tokens_per_step is not None
    if confirmed or resolved.config is None:
        return resolved.with_problem(problem)
    return resolved.with_problem(  # nothing but the config says what model and batch were
        problem,
        config=None,
        params_nanogpt=run.params_printed,
        params_total=run.params_total,
        flops_per_token=run.flops_per_token,
        tokens_per_step=run.tokens_per_step.value if run.tokens_per_step else None,
    )


def _evaluation_sag(run: Run) -> float:
    """How far evaluations inside step times pull the mean of the printed MFU down, as a share of it."""
    times = run.times
    if not times.leaks or not times.median:
        return 0.0
    each = times.leaked_seconds / times.leaks
    return times.leaks / (times.leaks + times.count) * each / (each + times.median)


def _with_wall_clock(resolved: ResolvedRun) -> ResolvedRun:
    run = resolved.run
    if resolved.step_seconds is None and run.wall_seconds and run.last_step:
        return resolved.with_inferred(step_seconds=run.wall_seconds / run.last_step)
    return resolved


def _with_card(resolved: ResolvedRun, named: bool) -> ResolvedRun:
    """The peak of the card that the user named, else our own log's, else the log's card's; none that was exceeded."""
    peak, device = resolved.run.peak_flops, resolved.device
    if device is not None and resolved.dtype is not None and (peak is None or named):
        peak = device.matmul_flops(resolved.dtype) * resolved.gpus
    if not peak:
        return resolved
    resolved = replace(resolved, peak_flops=peak)
    if device is None or device.kind == "cpu":  # whose peak is itself a measurement
        return resolved
    rate = flops_per_second(resolved)
    if rate is None or rate * _least_share(resolved) <= _ABOVE_PEAK * peak:
        return resolved
    problem = Note(
        "card-impossible", rate=rate / 1e12, gpus=resolved.gpus, card=device.name, peak=peak / 1e12
    )
    return resolved.with_problem(problem, device=None, peak_flops=None)


def flops_per_second(resolved: ResolvedRun) -> float | None:
    """Model FLOPs a second, by nanoGPT's convention."""
    flops, tokens, seconds = (
        resolved.flops_per_token,
        resolved.tokens_per_step,
        resolved.step_seconds,
    )
    return flops * tokens / seconds if flops and tokens and seconds else None


def _least_share(resolved: ResolvedRun) -> float:
    """The share of the counted FLOPs that must really be done: causal attention may skip half of what is counted."""
    config, flops = resolved.config, resolved.flops_per_token
    if config is None or not flops:
        return 2 / 3
    return 1 - 6 * config.n_layer * config.n_embd * config.block_size / flops
