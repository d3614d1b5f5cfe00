"""plan(): from a config and a card to every figure of the run, each from one small function of this room.

>>> from onecard.config import load
>>> round(plan(load("fineweb-41M-12gb"), "RTX 4070", data=3_680_000_000).tokens.epochs, 2)
2.85
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from math import exp
from pathlib import Path

from onecard.config import RunConfig
from onecard.config import load as load_config
from onecard.config.model_rules import evaluation_steps
from onecard.errors import UserError
from onecard.facts.gpus import Device, find_gpu
from onecard.facts.links import DEFAULT_NETWORK, Links, links_of
from onecard.facts.prices import Price, electricity, parse_price
from onecard.messages import Note
from onecard.planner.calibration_file import load_calibration
from onecard.planner.corpus import Corpus, corpus_of
from onecard.planner.expected_hellaswag import expected_hellaswag
from onecard.planner.expected_loss import expected_loss
from onecard.planner.flops import flops as flops_of
from onecard.planner.formulas import formulas_of
from onecard.planner.known_runs import against_gpt2, known_runs
from onecard.planner.memory import peak_memory
from onecard.planner.mix import source_notes, tokens_of
from onecard.planner.params import params
from onecard.planner.result import (
    SCHEMA,
    Energy,
    Flops,
    Loss,
    Mfu,
    Params,
    Range,
    RunPlan,
    Time,
    Tokens,
    WhatIf,
)
from onecard.planner.stacks import OWN, STACKS
from onecard.planner.step_time import COMPILE_RANGE, StepTime, step_time
from onecard.planner.warnings import offloading, warnings
from onecard.planner.ways import ways
from onecard.units import local_now
from onecard.version import __version__

A100_FLOPS = 312e12  # what nanoGPT divides by, whatever the card
CURVE_POINTS = 40
_WHATIF = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)  # times the expected seconds of a step


def plan(
    config: RunConfig | str | Path,
    gpu: Device | str | None = None,
    *,
    gpus: int = 1,
    nodes: int = 1,
    link: str | None = None,
    data: str | int | None = None,
    price: Price | str | None = None,
    now: datetime | None = None,
    stack: str = OWN,
) -> RunPlan:
    """What this run will need on that card (None: this machine's), over that data, at that price of electricity; with
    another project's code (`stack`) as that would take it.

    `gpus` cards in each of `nodes` machines, joined by the links named (facts/links.csv). `config` may also be a
    preset's name or a config file, as on the command line.
    """
    config = _config(config)
    device = resolve_device(gpu)
    joined = links_of(link, device, gpus)
    _check_number_of_cards(config, gpus, nodes)
    gpus *= nodes
    dtype = device.dtype_of(config.matmul_dtype)
    corpus = _corpus(config, data)
    config = config.for_vocabulary(corpus.vocab_size)
    counts = params(config.shape)
    tokens = tokens_of(config, counts, corpus)
    flops = flops_of(config.shape, tokens.total)
    ignored: list[Note] = []
    _check_stack(stack)
    known = load_calibration(device, ignored)
    step = step_time(config, device, dtype, gpus, known, stack, nodes, joined)
    time = _time(config, step, now or local_now())
    memory = peak_memory(config, device, dtype, gpus, stack=stack, nodes=nodes)
    loss = _loss(config, counts, corpus, tokens)
    of_data = [*corpus.notes, *source_notes(tokens.sources)]
    of_run = warnings(config, device, dtype, tokens.epochs)
    of_machine = [*offloading(memory.host_bytes, step, device), *_of_network(nodes, joined)]
    return RunPlan(
        schema=SCHEMA,
        version=__version__,
        config=config,
        device=device,
        gpus=gpus,
        dtype=dtype,
        params=counts,
        tokens=tokens,
        flops=flops,
        time=time,
        mfu=_mfu(flops, time, device, dtype, gpus),
        memory=memory,
        energy=_energy(device, gpus, time.total_seconds, _price(price)),
        loss=loss,
        known_runs=known_runs(counts, flops, corpus),
        warnings=[*ignored, *_of_stack(stack), *of_data, *of_run, *of_machine],
        formulas=formulas_of(loss),
        nodes=nodes,
        ways=ways(config, device, dtype, gpus, nodes, joined) if gpus > 1 and stack == OWN else [],
    )


def _corpus(config: RunConfig, data: str | int | None) -> Corpus:
    if data is None:
        return corpus_of(config.dataset, asked=False)
    return corpus_of(data, like=config.dataset)


def _of_network(nodes: int, joined: Links) -> list[Note]:
    if nodes == 1 or joined.machines is not None:
        return []
    return [
        Note(
            "network_assumed",
            link=DEFAULT_NETWORK,
        )
    ]


def _check_stack(stack: str) -> None:
    if stack not in STACKS:
        raise UserError(f"unknown stack {stack!r}", hint=f"one of {', '.join(STACKS)}")


def _of_stack(stack: str) -> list[Note]:
    if stack == OWN:
        return []
    return [
        Note(
            "stack",
            stack=stack,
        )
    ]


def _check_number_of_cards(config: RunConfig, gpus: int, nodes: int) -> None:
    if gpus < 1 or nodes < 1:
        raise UserError(
            f"{min(gpus, nodes)} {'cards' if gpus < 1 else 'machines'} cannot train anything",
            hint="the number of cards and machines is 1 or more",
        )
    cards = gpus * nodes
    rows = config.sequences_per_step
    if cards > rows:
        raise UserError(
            f"{cards} processes are more than the {rows} rows of a step",
            hint="fewer cards, or a larger batch_size or gradient_accumulation_steps",
        )
    total = config.gradient_accumulation_steps
    if total % cards:
        near = cards * max(1, round(total / cards))
        raise UserError(
            f"gradient_accumulation_steps = {total} cannot be shared by {cards} cards",
            hint=f"it is the total over all cards, of which each takes an equal part; {near} would do",
        )


def _config(config: object) -> RunConfig:
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, str | Path):
        return load_config(config)
    raise UserError(
        f"a plan is made of a RunConfig, not of {type(config).__name__}",
        hint="RunConfig(n_layer=12), or the name of a preset or config file: plan('gpt2', 'RTX 4070')",
    )


def resolve_device(gpu: Device | str | None) -> Device:
    """The card meant: a Device as it is, a name, "here" or None for this machine's own."""
    if isinstance(gpu, Device):
        return gpu
    if gpu is not None and not isinstance(gpu, str):
        raise UserError(
            f"a card is a Device or its name, not {type(gpu).__name__}",
            hint="for example 'RTX 4070'",
        )
    name = "here" if gpu is None else gpu.strip().lower()
    if name not in ("here", "cpu"):
        return find_gpu(str(gpu))
    from onecard.facts.here import cpu, here  # the drivers' libraries: not for a card by name

    return cpu() if name == "cpu" else here()


def _time(config: RunConfig, step: StepTime, now: datetime) -> Time:
    whole = step.seconds.scaled(config.max_iters + evaluation_steps(config))
    start, (low, high) = step.compile_seconds, COMPILE_RANGE
    total = Range(low * start + whole.low, start + whole.mid, high * start + whole.high)
    return Time(
        step_seconds=step.seconds,
        tokens_per_second=step.seconds.inverse(config.tokens_per_step),
        total_seconds=total,
        compile_seconds=start,
        parts=step.parts,
        what_if=whatif(config, step.seconds.mid),
        basis=step.basis,
        finish=_finish(now, total.mid),
    )


def _finish(now: datetime, seconds: float) -> str | None:
    """The clock time of the end; None beyond the calendar."""
    try:
        return (now + timedelta(seconds=seconds)).isoformat(timespec="minutes")
    except OverflowError:
        return None


def _mfu(flops: Flops, time: Time, device: Device, dtype: str, gpus: int) -> Mfu:
    card_flops = device.matmul_flops(dtype) * gpus
    achieved = time.tokens_per_second.scaled(flops.per_token_nanogpt)
    share = achieved.scaled(1 / card_flops)
    if device.kind == "cpu":  # its peak is an estimate, and no step is faster than the peak
        share = Range(*(min(1.0, each) for each in (share.low, share.mid, share.high)))
    return Mfu(card=share, nanogpt=achieved.scaled(1 / (A100_FLOPS * gpus)))


def _price(price: Price | str | None) -> Price:
    if isinstance(price, Price):
        return price
    return electricity("WORLD") if price is None else parse_price(price)


def energy_of(watts: float, seconds: float) -> float:
    """kWh: 200 W for 20 h are 4 kWh."""
    return watts * seconds / 3.6e6


def _energy(device: Device, gpus: int, seconds: Range, price: Price) -> Energy:
    # the card at its limit, where training keeps it; the rest of the machine is not included
    watts = device.watts * gpus
    kwh = Range(*(energy_of(watts, each) for each in (seconds.low, seconds.mid, seconds.high)))
    return Energy(
        watts, kwh, kwh.scaled(price.per_kwh), price.currency, price.per_kwh, price.source
    )


def _loss(config: RunConfig, counts: Params, corpus: Corpus, tokens: Tokens) -> Loss | None:
    # the law is of runs from scratch; a released model fine-tuned starts far along the curve
    if not corpus.family or config.init_from not in ("scratch", "resume"):
        return None
    estimate = expected_loss(config, tokens.total, corpus.family, tokens.unique)
    if estimate is None:
        return None
    final = estimate.final
    return Loss(
        expected=final,
        perplexity=Range(exp(final.low), exp(final.mid), exp(final.high)),
        curve=estimate.curve(CURVE_POINTS),
        repetition=estimate.repetition,
        dataset=corpus.family,
        beats_gpt2=against_gpt2(counts, corpus, final),
        in_support=estimate.in_support,
        hellaswag=expected_hellaswag(corpus.family, final) if estimate.in_support else None,
    )


def whatif(
    config: RunConfig, expected_seconds: float, seconds: Iterable[float] | None = None
) -> list[WhatIf]:
    """Hours in all for other seconds per step, rounded to what a person would write down.

    >>> rows = whatif(load_config("fineweb-41M-12gb"), 3.0, seconds=(2.5, 3.0))
    >>> [f"{row.total_seconds / 3600:.1f}" for row in rows]
    ['13.9', '16.7']
    """
    steps = seconds or dict.fromkeys(
        float(f"{expected_seconds * factor:.2g}") for factor in _WHATIF
    )
    return [WhatIf(s, config.tokens_per_step / s, s * config.max_iters) for s in steps]
