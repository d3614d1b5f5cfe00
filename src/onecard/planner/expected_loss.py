"""Expected validation loss, in nats per GPT-2 token: a scaling law in size and data, and the curve that leads there.

    L = floor + A·(N/1e8)^-α + B·(m·D/1e9)^-β + the data set's offset

N counts the matrices a token passes (blocks and head), D the tokens seen, less what repetition wastes, and m is how much
further the recipe makes a token go than GPT-2's with AdamW. A learning rate that ends high costs its share of the curve's gap.
Constants: facts/loss_fit.json, from fit/loss.py.

>>> run = RunConfig(batch_size=16, gradient_accumulation_steps=32, max_iters=20_000, lr_decay_iters=20_000)
>>> estimate = expected_loss(run, run.total_tokens, "fineweb", None)
>>> estimate.final.low < 3.27 < estimate.final.high  # llm.c's run of that size and length
True
>>> expected_loss(run.replace(vocab_size=65), 1e9, "shakespeare_char", None) is None
True
"""

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from onecard.config import RunConfig
from onecard.facts.data_files import fact_file
from onecard.planner.result import Range
from onecard.planner.workload import Workload

Fit = dict[str, Any]
GPT2_VOCABULARY = range(
    50256, 50689
)  # GPT-2's tokens, padded as people do: 50257, 50304, 50432, 50688
USUAL_FLOOR = (
    0.1  # the public runs decay to between nothing and a tenth: what the law calls settled
)


@dataclass(frozen=True)
class LossEstimate:
    """The loss at the end of a run, and what is needed to predict it along the way."""

    final: Range  # nats at the end of the schedule, 80 %
    repetition: float  # nats that seeing the data again costs
    in_support: bool  # inside the sizes and tokens per parameter of the public losses
    config: RunConfig
    size: float  # parameters a token is multiplied with
    tokens: float
    unique_tokens: float | None
    recipe: str
    dataset: str

    def expected_at(self, step: int) -> float:
        """The loss a normal run of this config shows after `step` steps, on held-out text."""
        untrained = math.log(self.config.shape.vocab_size)
        if step <= 0:
            return untrained
        fit, steps = loss_fit(), max(1, self.config.max_iters)
        now, end = (running(self, done, fit) for done in (min(step, steps), steps))
        return min(now - end + self.final.mid, untrained)

    def curve(self, steps: int) -> list[tuple[int, float]]:
        """(step, expected loss) at about `steps` points, closer together at the start where it falls fastest."""
        last = max(1, self.config.max_iters)
        points = sorted({round(last * (i / steps) ** 2) for i in range(1, steps + 1)} | {0, last})
        return [(step, self.expected_at(step)) for step in points]


def expected_loss(
    config: RunConfig, tokens: float, dataset: str, unique_tokens: float | None
) -> LossEstimate | None:
    """What the run should end at, or None where nothing public says: other vocabularies, unknown data."""
    known = known_dataset(dataset)
    if known is None or config.shape.vocab_size not in GPT2_VOCABULARY or tokens <= 0:
        return None
    return estimate(config, tokens, known, unique_tokens, recipe_of(config))


def estimate(
    config: RunConfig,
    tokens: float,
    dataset: str,
    unique_tokens: float | None,
    recipe: str,
    fit: Fit | None = None,
    size: float | None = None,
) -> LossEstimate:
    """The same for any recipe of the fit; `size` where the model is not one of RunConfig's."""
    fit = fit or loss_fit()
    size = size or float(Workload.of_shape(config.shape).matmul_params)
    help_ = multiplier(config, recipe, fit, dataset)
    settled = law(size, help_ * effective_tokens(tokens, unique_tokens, fit), dataset, fit)
    rate = rate_cost(config, size, recipe, fit)
    final = settled + undecayed(config, fit) + rate + config.dropout * fit["dropout"]
    inside = supported(size, tokens, fit)
    spread = fit["pairs"][dataset]["spread"] if dataset not in fit["datasets"] else fit["spread"]
    low, high = spread["outside" if not inside else "odd" if is_odd(config, rate) else "inside"]
    low, high = low - 0.5 * max(0.0, rate), high + 0.5 * max(0.0, rate)
    return LossEstimate(
        final=Range(final + low, final, final + high),
        repetition=settled - law(size, help_ * tokens, dataset, fit),
        in_support=inside,
        config=config,
        size=size,
        tokens=tokens,
        unique_tokens=unique_tokens,
        recipe=recipe,
        dataset=dataset,
    )


SMALL_BATCH = 2**16  # tokens a step below which the public runs are few
MOST_RATE_COST = 0.5  # nats; beyond it a run diverges rather than trains badly


def is_odd(config: RunConfig, rate: float) -> bool:
    """What moves the loss in ways that few public runs show: a rate far off or never decayed, tiny batches, dropout."""
    undecayed = learning_rate_share(config, config.max_iters) > 0.5
    return undecayed or config.tokens_per_step < SMALL_BATCH or config.dropout > 0 or rate > 0.1


def usual_rate(size: float) -> float:
    """The peak learning rate of GPT-2's reproductions, which the law's level is of: 6e-4 at 124M, 3e-4 at 350M, 2e-4 at 1.5B."""
    return float(6e-4 * (size / 124e6) ** -0.45)


def rate_cost(config: RunConfig, size: float, recipe: str, fit: Fit) -> float:
    """Nats that the peak learning rate costs against the one that the law's level is of; below nothing where it gains.

    A parabola in its logarithm around the best rate (fit/learning_rate.py). GPT-2's recipe is known at its usual rate, which is
    a third of the best; the modern blocks' runs were tuned. Muon and the like have rates of another kind.
    """
    if not recipe.endswith("adamw") or config.tokens_per_step <= 0:
        return 0.0
    known = fit["learning_rate"]
    best = known["best"] * (size / 124e6) ** known["size_power"]
    here = best * min(1.0, config.tokens_per_step / 2**19) ** known["batch_power"]
    bend = known["curvature"] * (max(config.max_iters, 500) / 1e4) ** known["steps_power"]
    reference = usual_rate(size) if recipe == "gpt2-adamw" else best
    cost = bend * (math.log(config.learning_rate / here) ** 2 - math.log(reference / best) ** 2)
    # below the reference one long public run (3e-4 at 124M) lost far less than the sweep says: half of it
    return float(min(MOST_RATE_COST, cost if cost < 0 or config.learning_rate > here else cost / 2))


def law(size: float, tokens: float, dataset: str, fit: Fit) -> float:
    """The settled loss of a model of `size` after `tokens` fresh tokens of GPT-2's recipe with AdamW, or their worth."""
    from_size = fit["size"]["scale"] * (size / 1e8) ** -fit["size"]["power"]
    from_data = fit["data"]["scale"] * (max(tokens, 1.0) / 1e9) ** -fit["data"]["power"]
    known = fit["datasets"]
    return float(
        fit["floor"]
        + from_size
        + from_data
        + (known[dataset] if dataset in known else fit["pairs"][dataset]["level"])
    )


def multiplier(config: RunConfig, recipe: str, fit: Fit, dataset: str) -> float:
    """How many tokens of GPT-2's recipe one token is worth: the recipe, a head of its own, a short final decay; and, for a
    data set with other tokens or another evaluation, what its own runs say."""
    worth = float(fit["recipes"][recipe])
    if dataset not in fit["datasets"]:
        worth *= fit["pairs"][dataset]["worth"]
    if not config.tied:
        worth *= fit["untied"]
    if config.decay_lr and config.schedule == "wsd":
        worth *= config.decay_fraction ** fit["decay_power"]
    return worth


def running(e: LossEstimate, step: int, fit: Fit) -> float:
    """What the loss is on its way: the law at the tokens that full-rate steps were worth, what the learning rate still
    holds up, and the first steps' own fall, which no power law follows."""
    config = e.config
    steps, warmup = max(1, config.max_iters), max(0, config.warmup_iters)
    worth = step**2 / (2 * warmup) if step < warmup else step - warmup / 2  # steps at the full rate
    tokens = effective_tokens(e.tokens * max(worth, 0.5) / steps, e.unique_tokens, fit)
    settled = law(e.size, multiplier(config, e.recipe, fit, e.dataset) * tokens, e.dataset, fit)
    early = fit["early"]["scale"] * math.exp(-worth / fit["early"]["steps"])
    return float(settled + fit["gap"] * learning_rate_share(config, step) + early)


def undecayed(config: RunConfig, fit: Fit) -> float:
    """Nats that a learning rate still up at the end holds the loss up by: nothing for the usual decay to a tenth or less."""
    left = learning_rate_share(config, config.max_iters) - USUAL_FLOOR
    if left <= 1e-3:  # 6e-5 of 6e-4 is a tenth but for the last digit
        return 0.0
    return held_up(config, left, fit)


def held_up(config: RunConfig, share: float, fit: Fit | None = None) -> float:
    """Nats that a learning rate of this share of its peak holds the loss up by."""
    fit = fit or loss_fit()
    # a small batch's noise is held up with it, by the square root of how much smaller it is
    noise = max(1.0, 2**19 / max(1, config.tokens_per_step)) ** fit["noise_power"]
    return float(fit["gap"] * share * noise)


def effective_tokens(tokens: float, unique: float | None, fit: Fit) -> float:
    """Fresh tokens that would be worth the same: U + U·R·(1 - exp(-repeats/R)), Muennighoff et al. 2023, R ≈ 15."""
    if unique is None or unique <= 0 or tokens <= unique:
        return tokens
    reuse = fit["reuse_epochs"]
    return float(unique + unique * reuse * (1 - math.exp(-(tokens / unique - 1) / reuse)))


def supported(size: float, tokens: float, fit: Fit) -> bool:
    params, ratio = fit["support"]["params"], fit["support"]["tokens_per_param"]
    return bool(params[0] <= size <= params[1] and ratio[0] <= tokens / size <= ratio[1])


def recipe_of(config: RunConfig) -> str:
    return f"{config.recipe}-{'muon' if config.optimizer == 'muon' else 'adamw'}"


def known_dataset(name: str) -> str | None:
    """Which of the fitted data sets a name means: "edu_fineweb10B" is fineweb-edu, "owt" is openwebtext; "fineweb-2",
    "fineweb-edu-score-2" and "openwebtext2" are other sets."""
    text = name.lower()
    bare = re.sub(r"[^a-z]", "", text)
    if "fineweb" in bare:
        if re.search(
            r"web[-_ ]?v?\d+(?![\d.]*[-_ ]?[kmbt])|score", text
        ):  # a number that is no amount
            return None
        return "fineweb-edu" if "edu" in bare else "fineweb"
    return "openwebtext" if bare_name(name) in ("openwebtext", "owt", "openwebtextcorpus") else None


def bare_name(name: str) -> str:
    """A data set's name without its owner, its amount and its punctuation: "Skylion007/openwebtext (9B)" is "openwebtext"."""
    last = name.lower().rstrip("/\\ ").replace("\\", "/").rsplit("/", 1)[-1]
    return re.sub(
        r"[^a-z0-9]",
        "",
        re.sub(r"(?<!\d)(?<!\d[.,])\d[\d.,]*+[-_ ]?[kmbt]t?(illion)?\b(\s*tokens)?", "", last),
    )


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


@cache
def loss_fit() -> Fit:
    """The fitted constants that ship with onecard."""
    fit: Fit = json.loads(fact_file("loss_fit.json"))
    return fit
