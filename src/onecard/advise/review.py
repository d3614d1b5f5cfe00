"""A config in circulation, answered: what it really is, does it fit, how long, and what is better for the same hours.

>>> answer = review("fineweb-81M-24gb", "RTX 4090")
>>> answer.plan.params.nanogpt, answer.claims
(81360000, [Claim(size='160M', where='out_dir', params=160000000)])
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from onecard.advise.budget import Budget
from onecard.advise.fit import Fitted, fit
from onecard.advise.recommend import Recommendation, recommend
from onecard.config import load
from onecard.errors import UserError
from onecard.facts.card_names import short_name
from onecard.facts.gpus import Device
from onecard.facts.prices import Price
from onecard.messages import Note
from onecard.planner import RunPlan, plan, resolve_device
from onecard.planner.memory import reserve
from onecard.planner.result import JsonAnswer
from onecard.units import parse_count
from onecard.version import __version__

SCHEMA = "onecard.review/1"
OFF = 0.15  # a name that says 124M for 123.6M or 125M is right; 160M for 81M is not


@dataclass(frozen=True)
class Claim:
    """A size that the config's own names say, and that it does not have."""

    size: str
    where: str
    params: int


@dataclass(frozen=True)
class Review(JsonAnswer):
    schema: str
    version: str
    name: str
    claims: list[Claim]
    plan: RunPlan
    fitted: Fitted | None  # the same model, made to fit and fast; None if it cannot fit
    better: Recommendation | None  # the best run in the same hours; None where no losses are known
    sooner: Recommendation | None  # the quickest run to the same loss
    answers: list[Note]


def review(
    source: str,
    gpu: Device | str | None = None,
    *,
    data: str | int | None = None,
    overrides: Iterable[str] = (),
    price: Price | str | None = None,
) -> Review:
    """The plan of the config as it is, and what the same hours could give."""
    config = load(source, overrides)
    device = resolve_device(gpu)
    as_is = plan(config, device, data=data, price=price)
    claims = _claims(source, as_is)
    fitted = _fitted(as_is, device, data, price)
    better, sooner = _better(as_is, device, data, price)
    return Review(
        schema=SCHEMA,
        version=__version__,
        name=Path(source).name,
        claims=claims,
        plan=as_is,
        fitted=fitted,
        better=better,
        sooner=sooner,
        answers=[
            *_identity(as_is, claims),
            *_room(as_is, fitted),
            *_hours(as_is, fitted),
            *_gain(as_is, better, sooner),
        ],
    )


def _claims(source: str, as_is: RunPlan) -> list[Claim]:
    """Sizes in the names that are not the model's: each size once."""
    config = as_is.config
    names = {
        "out_dir": config.out_dir,
        "wandb_run_name": config.wandb_run_name,
        "file": Path(source).stem,
    }
    claims: dict[str, Claim] = {}
    for where, name in names.items():
        for text in re.findall(
            r"(?<![\w.])(\d+(?:\.\d+)?[MBmb])(?![\w])", re.sub(r"[-_/]", " ", name)
        ):
            size = parse_count(text)
            if all(
                abs(size / true - 1) > OFF for true in (as_is.params.nanogpt, as_is.params.total)
            ):
                claims.setdefault(text.upper(), Claim(text, where, size))
    return list(claims.values())


def _fitted(
    as_is: RunPlan, device: Device, data: str | int | None, price: Price | str | None
) -> Fitted | None:
    try:
        return fit(as_is.config, device, data=data, price=price)
    except UserError:
        return None


def _better(
    as_is: RunPlan, device: Device, data: str | int | None, price: Price | str | None
) -> tuple[Recommendation | None, Recommendation | None]:
    """The best in the same hours, and the quickest to the same loss, on the same data."""
    if as_is.loss is None:
        return None, None
    text = data if data is not None else as_is.config.dataset
    changes = {"block_size": as_is.config.block_size}
    answers: list[Recommendation | None] = []
    for budget in (
        Budget(seconds=as_is.time.total_seconds.mid),
        Budget(loss=as_is.loss.expected.mid),
    ):
        try:
            answers.append(
                recommend(
                    device,
                    budget,
                    data=text,
                    recipe=as_is.config.recipe,
                    changes=changes,
                    price=price,
                )
            )
        except UserError:
            answers.append(None)
    return answers[0], answers[1]


def _identity(as_is: RunPlan, claims: list[Claim]) -> list[Note]:
    config, params = as_is.config, as_is.params
    notes = [
        Note(
            "review-is",
            params=params.total,
            nanogpt=params.nanogpt,
            layers=config.n_layer,
            heads=config.n_head,
            head=config.n_embd // config.n_head,
            width=config.n_embd,
        )
    ]
    for claim in claims:
        notes.append(Note("review-claim", where=claim.where, size=claim.size))
    return notes


def _room(as_is: RunPlan, fitted: Fitted | None) -> list[Note]:
    memory = as_is.memory
    figures = {
        "used": memory.process_bytes.mid,
        "card": memory.card_bytes,
        "name": short_name(as_is.device.name),
        "reserve": reserve(as_is.device, memory.desktop_bytes),
    }
    verdict = {
        "yes": Note("review-fits", **figures),
        "tight": Note("review-tight", **figures),
        "no": Note("review-no-fit", **figures),
    }[memory.fits]
    if memory.fits == "yes" or fitted is None:
        return [verdict]
    config = fitted.config
    return [
        verdict,
        Note(
            "review-mend",
            batch=config.batch_size,
            steps=config.gradient_accumulation_steps,
            savers="".join(f", {name}" for name in fitted.savers),
        ),
    ]


def _hours(as_is: RunPlan, fitted: Fitted | None) -> list[Note]:
    time = as_is.time
    notes = [
        Note(
            "review-time",
            steps=as_is.config.max_iters,
            step=time.step_seconds.mid,
            total=time.total_seconds.mid,
            tokens=as_is.tokens.total,
        )
    ]
    if (
        fitted
        and as_is.memory.fits == "yes"
        and fitted.plan.time.step_seconds.mid < 0.98 * time.step_seconds.mid
    ):
        config = fitted.config
        notes.append(
            Note(
                "review-faster",
                batch=config.batch_size,
                steps=config.gradient_accumulation_steps,
                savers="".join(f", {name}" for name in fitted.savers),
                total=fitted.plan.time.total_seconds.mid,
            )
        )
    return notes


def _gain(
    as_is: RunPlan, better: Recommendation | None, sooner: Recommendation | None
) -> list[Note]:
    if as_is.loss is None:
        return [Note("review-no-loss")]
    notes = [Note("review-loss", loss=as_is.loss.expected.mid)]
    if better is not None:
        gain = as_is.loss.expected.mid - better.expected_loss.mid
        config = better.config
        figures = {
            "params": better.plan.params.total,
            "layers": config.n_layer,
            "width": config.n_embd,
            "gain": gain,
            "tokens": better.plan.tokens.total,
            "loss": better.expected_loss.mid,
        }
        notes.append(
            Note("review-better", **figures)
            if gain > 0.005
            else Note("review-good", **{**figures, "gain": max(gain, 0.001)})
        )
    if (
        sooner is not None
        and sooner.plan.time.total_seconds.mid < 0.95 * as_is.time.total_seconds.mid
    ):
        notes.append(
            Note(
                "review-sooner",
                total=sooner.plan.time.total_seconds.mid,
                params=sooner.plan.params.total,
                tokens=sooner.plan.tokens.total,
            )
        )
    return notes
