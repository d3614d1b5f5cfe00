"""What a run's settings add to the loss of the law, in nats: the learning rate, its schedule, the batch, dropout.

The law (`expected_loss`) is of the best learning rate and batch, decayed. Constants: facts/loss_fit.json; the rate's and the batch's
come from a public sweep of 1,900 runs, what a low rate costs in a short run from another (fit/learning_rate.py).

>>> from onecard.config import RunConfig
>>> usual = RunConfig(batch_size=16, gradient_accumulation_steps=32, max_iters=20_000, lr_decay_iters=20_000)
>>> 0.03 < settings_cost(usual, 124e6, 1e10, "gpt2-adamw", loss_fit()) < 0.1  # GPT-2's 6e-4 at 124M is a third of the best
True
>>> settings_cost(usual.replace(learning_rate=0.0018), 124e6, 1e10, "gpt2-adamw", loss_fit()) < 0.03
True
"""

import json
import math
from functools import cache
from typing import Any

from onecard.config import RunConfig
from onecard.config.recipes import MUON_RATE
from onecard.facts.data_files import fact_file

Fit = dict[str, Any]
# the public runs decay to between nothing and a tenth: what the law calls settled
USUAL_FLOOR = 0.1
SMALL_BATCH = 2**16  # tokens a step below which the public runs are few
MOST_COST = 0.5  # nats; beyond it a run diverges rather than trains badly
MOST_SHORT = 1.0  # nats that a low rate costs a short run beyond the sweep's parabola
SWEPT_TOKENS = (4e9, 1e11)
MOST_NOISE = 3.5  # times the usual gap: what one public pair shows, 6,144 against 98,304 tokens a step at a constant rate
SWEPT_BATCHES = (32_768, 4_194_304)  # tokens a step
# times the best rate: of the sweep's 134 runs above that 119 diverged, of the 163 between 8 and 12 times 63
HIGHEST_RATE = 12
FAR_OFF = 0.15  # nats that settings cost beyond which few public runs say by how much


@cache
def loss_fit() -> Fit:
    """The fitted constants that ship with onecard."""
    fit: Fit = json.loads(fact_file("loss_fit.json"))
    return fit


def best_rate(size: float, tokens: float, fit: Fit) -> float:
    """The peak learning rate of AdamW that the sweep found best for a model of `size` on so many tokens."""
    known = fit["settings"]
    longer = (_swept(tokens) / 1e10) ** known["rate_tokens"]
    return float(known["rate"] * (size / 124e6) ** known["rate_size"] * longer)


def best_batch(tokens: float, fit: Fit) -> float:
    """The tokens a step that the sweep found best for AdamW in a run of so many tokens.

    >>> round(best_batch(10e9, loss_fit()), -4), round(best_batch(4e9, loss_fit()), -4)
    (270000.0, 160000.0)
    """
    known = fit["settings"]
    return float(known["batch"] * (_swept(tokens) / 1e10) ** known["batch_tokens"])


def _swept(tokens: float) -> float:
    """The sweep's lengths; shorter and longer runs are taken as its shortest and longest."""
    return min(max(tokens, SWEPT_TOKENS[0]), SWEPT_TOKENS[1])


def rate_ratio(config: RunConfig, size: float, tokens: float, recipe: str, fit: Fit) -> float:
    """The peak learning rate over the best one; 1 for the public runs of other optimizers, whose rates are of other kinds, and
    were tuned by those who published them."""
    if config.optimizer == "muon" and config.learning_rate > 0:
        return config.learning_rate / MUON_RATE
    if not recipe.endswith("adamw") or config.learning_rate <= 0:
        return 1.0
    return config.learning_rate / best_rate(size, tokens, fit)


def settings_cost(
    config: RunConfig, size: float, tokens: float, recipe: str, fit: Fit, whole: float | None = None
) -> float:
    """Nats that the peak learning rate and the batch cost against the best ones, a parabola in their logarithms; of Muon's, the
    rate alone, by the same parabola. `whole`: the run's tokens, on its way."""
    if config.tokens_per_step <= 0:
        return 0.0
    known = fit["settings"]
    u = math.log(rate_ratio(config, size, tokens, recipe, fit))
    flatter = max(1.0, tokens / size / 20) ** known["length"]
    if not recipe.endswith("adamw"):
        return float(min(MOST_COST, flatter * known["rate_bend"] * u**2))
    v = math.log(config.tokens_per_step / best_batch(tokens, fit))
    bent = known["rate_bend"] * u**2 + known["batch_bend"] * v**2 + known["both"] * u * v
    seen, batch = whole or tokens, config.tokens_per_step
    short = short_of_steps(config.learning_rate, best_rate(size, seen, fit), seen, batch, fit)
    return float(min(MOST_COST, flatter * bent)) + short


def short_of_steps(rate: float, best: float, tokens: float, batch: float, fit: Fit) -> float:
    """Nats that a rate below the best one costs more in a run too short for the sweep: what is left to learn falls with the root of
    rate times steps, and 4 B tokens have that already in the parabola.

    >>> known = {"settings": {"short": 0.4}}
    >>> [round(short_of_steps(rate, 2e-3, 1e9, 2**19, known), 2) for rate in (5e-4, 1e-3, 2e-3, 4e-3)]
    [0.1, 0.04, 0.0, 0.0]
    >>> short_of_steps(5e-4, 2e-3, 4e9, 2**19, known)
    0.0
    """
    if rate >= best or tokens >= SWEPT_TOKENS[0]:
        return 0.0
    slower = rate**-0.5 - best**-0.5
    shorter = max(1.0, tokens / batch) ** -0.5 - max(1.0, SWEPT_TOKENS[0] / batch) ** -0.5
    return float(min(MOST_SHORT, fit["settings"]["short"] * slower * shorter))


def rate_left(config: RunConfig, size: float, tokens: float, recipe: str, fit: Fit) -> float:
    """Nats that the best learning rate would gain over the config's own."""
    ratio = rate_ratio(config, size, tokens, recipe, fit)
    best = config.replace(learning_rate=config.learning_rate / ratio)
    here, there = (settings_cost(each, size, tokens, recipe, fit) for each in (config, best))
    return here - there


def beyond_sweep(config: RunConfig, size: float, tokens: float, recipe: str, fit: Fit) -> bool:
    """Whether rate or batch lie so far outside the sweep that its parabola says little: the range is then the widest one."""
    small, large = SWEPT_BATCHES
    if not small / 2 <= config.tokens_per_step <= 2 * large:
        return True
    return abs(math.log(rate_ratio(config, size, tokens, recipe, fit))) > math.log(HIGHEST_RATE)


def is_odd(config: RunConfig, cost: float) -> bool:
    """What moves the loss in ways that few public runs show: settings far off, a rate never decayed, tiny batches, dropout."""
    undecayed = learning_rate_share(config, config.max_iters) > 0.5
    small = config.tokens_per_step < SMALL_BATCH or config.block_size < 1024
    return undecayed or small or config.dropout > 0 or cost > FAR_OFF


def undecayed(config: RunConfig, fit: Fit, relative: float = 1.0) -> float:
    """Nats that a learning rate still up at the end holds the loss up by: nothing for the usual decay to a tenth or less."""
    left = learning_rate_share(config, config.max_iters) - USUAL_FLOOR
    if left <= 1e-3:  # 6e-5 of 6e-4 is a tenth but for the last digit
        return 0.0
    return held_up(config, left, fit, relative)


def held_up(
    config: RunConfig, share: float, fit: Fit | None = None, relative: float = 1.0
) -> float:
    """Nats that a learning rate of this share of its peak holds the loss up by; `relative` is its peak against the best."""
    fit = fit or loss_fit()
    noise = step_noise(config, relative) ** fit["noise_power"]
    return float(fit["gap"] * share * min(MOST_NOISE, noise))


def step_noise(config: RunConfig, relative: float) -> float:
    """The noise of a step grows with the rate and with a smaller batch."""
    return max(1.0, 2**19 / max(1, config.tokens_per_step)) * relative


def relative_rate(config: RunConfig, size: float, tokens: float, recipe: str, fit: Fit) -> float:
    """The peak learning rate over the best one, within what the sweep covers."""
    return min(3.0, max(0.1, rate_ratio(config, size, tokens, recipe, fit)))


def learning_rate_share(config: RunConfig, step: int) -> float:
    """The learning rate at `step` as a share of its peak, along the config's schedule (warm-up left out)."""
    if not config.decay_lr:
        return 1.0
    floor = config.min_lr / config.learning_rate
    if config.schedule == "wsd":
        decay = max(1.0, config.decay_fraction * config.lr_decay_iters)
        return floor + (1 - floor) * min(1.0, max(0.0, config.lr_decay_iters - step) / decay)
    span = max(1, config.lr_decay_iters - config.warmup_iters)
    done = min(1.0, max(0.0, (step - config.warmup_iters) / span))
    share = 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return floor + (1 - floor) * share
