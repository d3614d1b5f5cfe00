"""What to do when a card cannot train a model: a smaller one, a rented card, more cards, the released weights.

for way in instead(...): print(way.text)
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onecard.advise.named_model import RELEASED, NamedModel
from onecard.advise.rent import rented
from onecard.advise.savers import fastest, micro_batches, variant
from onecard.advise.schedule import base_config
from onecard.advise.shapes import shapes, total_params, usual_batch
from onecard.config import RunConfig, load
from onecard.config.key_facts import MOST_STEPS
from onecard.config.recipes import recipe_values
from onecard.facts.gpus import Device
from onecard.messages import Note
from onecard.planner.optimal import compute_optimal_tokens

if TYPE_CHECKING:
    from onecard.advise.delivered import Needed

FINETUNE_TOKENS = 100e6  # a long fine-tune: a hundred million tokens of one's own text


@dataclass(frozen=True)
class Instead:
    kind: str  # smaller, rent, cards, finetune
    text: Note
    figures: dict[str, Any] = field(default_factory=dict)


def instead(
    model: NamedModel,
    config: RunConfig,
    device: Device,
    gpus: int,
    seconds: float,
    first: "Needed",
    because: str | None,
) -> list[Instead]:
    """The ways that are open, the nearest to what was asked first. Where it can be trained, a smaller one is none."""
    ways = [_rent(config, first, seconds)]
    if because is not None:
        ways.insert(0, _smaller(device, gpus, seconds, model.params, config.recipe))
    if because == "time":
        ways.append(_cards(first, device, gpus))
    ways.append(_finetune(model, device))
    return [way for way in ways if way is not None]


def _smaller(device: Device, gpus: int, seconds: float, limit: int, recipe: str) -> Instead | None:
    """The largest model of the recipe that fits, and that the time trains compute-optimally."""
    base = base_config(device, **{**recipe_values(recipe), "recipe": recipe})
    for shape in reversed(shapes()):
        model = variant(base, n_layer=shape.n_layer, n_head=shape.n_head, n_embd=shape.n_embd)
        count = total_params(model.shape)
        if count >= 0.98 * limit:
            continue
        model = variant(model, batch_size=1, gradient_accumulation_steps=usual_batch(count))
        tuned = fastest(model, device, device.training_dtype, micro_batches(model, gpus), gpus=gpus)
        if tuned is None:
            continue
        tokens = compute_optimal_tokens(count)
        needed = tokens / tuned.config.tokens_per_step * tuned.time.seconds.mid
        if needed <= seconds:
            return Instead(
                "smaller",
                Note(
                    "instead-smaller",
                    params=count,
                    layers=shape.n_layer,
                    width=shape.n_embd,
                    tokens=tokens,
                    time=needed,
                ),
                {
                    "params": count,
                    "n_layer": shape.n_layer,
                    "n_embd": shape.n_embd,
                    "tokens": tokens,
                    "seconds": needed,
                    "savers": tuned.savers.names,
                },
            )
    return None


def _rent(config: RunConfig, first: "Needed", seconds: float) -> Instead | None:
    """The cheapest card that does it in the time; the cheapest of all if none does."""
    steps = max(1, math.ceil(first.reading.tokens / config.tokens_per_step))
    if steps > MOST_STEPS:
        return None
    offers = rented(variant(config, max_iters=steps, eval_interval=max(1, steps // 20)))
    if not offers:
        return None
    best = next((offer for offer in offers if offer.seconds.mid <= seconds), offers[0])
    return Instead(
        "rent",
        Note(
            "instead-rent",
            card=best.gpu,
            time=best.seconds.mid,
            cost=(best.cost, best.currency),
            price=(best.price, best.currency),
            period=best.period,
        ),
        {
            "gpu": best.gpu,
            "seconds": best.seconds.mid,
            "cost": best.cost,
            "currency": best.currency,
        },
    )


def _cards(first: "Needed", device: Device, gpus: int) -> Instead | None:
    number = math.ceil(gpus / first.ratio / 0.9)  # a tenth is lost to exchanging gradients
    if number > 64:
        return None
    return Instead(
        "cards",
        Note(
            "instead-machines" if device.kind == "cpu" else "instead-cards",
            number=number,
        ),
        {"gpus": number},
    )


def _finetune(model: NamedModel, device: Device) -> Instead | None:
    """The released GPT-2 of the size asked for, or the largest that fits."""
    for preset in reversed(RELEASED):
        config = load(preset)
        count = total_params(config.shape)
        if count > 1.1 * model.params:
            continue
        tuned = fastest(config, device, device.training_dtype, micro_batches(config))
        if tuned is None:
            continue
        time = FINETUNE_TOKENS / tuned.config.tokens_per_step * tuned.time.seconds.mid
        return Instead(
            "finetune",
            Note(
                "instead-finetune",
                preset=preset,
                tokens=FINETUNE_TOKENS,
                time=time,
            ),
            {
                "preset": preset,
                "params": count,
                "tokens": FINETUNE_TOKENS,
                "seconds": time,
                "savers": tuned.savers.names,
            },
        )
    return None
