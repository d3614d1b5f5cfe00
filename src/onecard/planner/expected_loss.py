"""Expected validation loss, in nats per GPT-2 token: a scaling law in size and data, and the curve that leads there.

    L = floor + A·(N/1e8)^-α + B·(m·D/1e9)^-β + U·ln²(20·N/D) + the data set's offset

N counts the matrices a token passes (blocks and head), D the tokens seen, less what repetition wastes, and m is how much
further the recipe makes a token go than GPT-2's with AdamW; U counts below 20 tokens a parameter. A learning rate that ends high costs its share of the curve's gap.
Constants: facts/loss_fit.json, from fit/loss.py.

>>> run = RunConfig(batch_size=16, gradient_accumulation_steps=32, max_iters=20_000, lr_decay_iters=20_000)
>>> estimate = expected_loss(run, run.total_tokens, "fineweb", None)
>>> estimate.final.low < 3.27 < estimate.final.high  # llm.c's run of that size and length
True
>>> expected_loss(run.replace(vocab_size=65), 1e9, "shakespeare_char", None) is None
True
"""

import math
import re
from dataclasses import dataclass

from onecard.config import RunConfig
from onecard.config.recipes import RECIPES
from onecard.planner.loss_settings import (
    HIGHEST_RATE,
    Fit,
    beyond_sweep,
    held_up,
    is_odd,
    learning_rate_share,
    loss_fit,
    rate_ratio,
    relative_rate,
    settings_cost,
    undecayed,
)
from onecard.planner.result import Range
from onecard.planner.workload import Workload

# GPT-2's tokens, padded as people do: 50257, 50304, 50432, 50688
GPT2_VOCABULARY = range(50256, 50689)
ENOUGH_TOKENS = (
    20.0  # a parameter (Hoffmann et al. 2022); with fewer the other terms alone are too hopeful
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
    """What the run should end at, or None where nothing public says: other vocabularies, unknown data, extreme rates."""
    known = known_dataset(dataset)
    if known is None or config.shape.vocab_size not in GPT2_VOCABULARY or tokens <= 0:
        return None
    if beyond_known_rates(config):
        return None
    return estimate(config, tokens, known, unique_tokens, recipe_of(config))


def beyond_known_rates(config: RunConfig) -> bool:
    """Whether no public run says what loss such a learning rate ends at: too high for AdamW, where most of the sweep's runs
    diverged; for Muon, where nobody published runs so far from the usual one, too low as well.

    >>> [beyond_known_rates(RunConfig(learning_rate=rate)) for rate in (6e-5, 6e-4, 0.01, 0.1)]
    [False, False, False, True]
    >>> [beyond_known_rates(RunConfig(optimizer="muon", learning_rate=rate)) for rate in (6e-4, 0.01, 0.1, 1)]
    [True, False, False, True]
    """
    size = float(Workload.of_shape(config.shape).matmul_params)
    ratio = rate_ratio(config, size, config.total_tokens, recipe_of(config), loss_fit())
    return ratio > HIGHEST_RATE or (config.optimizer == "muon" and ratio < 1 / HIGHEST_RATE)


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
    help_ = multiplier(config, recipe, fit, dataset, tokens)
    settled = law(size, help_ * effective_tokens(tokens, unique_tokens, fit), dataset, fit)
    cost = settings_cost(config, size, tokens, recipe, fit)
    relative = relative_rate(config, size, tokens, recipe, fit)
    short = fit["undertrained"] * shortage(size, tokens)
    final = settled + short + cost + undecayed(config, fit, relative)
    final += config.dropout * fit["dropout"]
    inside = supported(size, tokens, fit)
    spread = fit["pairs"][dataset]["spread"] if dataset not in fit["datasets"] else fit["spread"]
    far = not inside or beyond_sweep(config, size, tokens, recipe, fit)
    low, high = spread["outside" if far else "odd" if is_odd(config, cost) else "inside"]
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


def shortage(size: float, tokens: float) -> float:
    """The squared logarithm of how many times more tokens would be enough for the size.

    >>> shortage(1e8, 2e9), round(shortage(4e8, 1e9), 2)
    (0.0, 4.32)
    """
    return math.log(max(1.0, ENOUGH_TOKENS * size / max(tokens, 1.0))) ** 2


def multiplier(config: RunConfig, recipe: str, fit: Fit, dataset: str, tokens: float) -> float:
    """How many tokens of GPT-2's recipe one token is worth: the recipe, a head of its own, a short final decay; and, for a
    data set with other tokens or another evaluation, what its own runs say."""
    worth = float(fit["recipes"][recipe])
    if not recipe.endswith("adamw"):  # the longer the run, the less is left of what they gain
        worth *= (tokens / 2e9) ** -fit["fade"]
    if dataset not in fit["datasets"]:
        worth *= fit["pairs"][dataset]["worth"]
    if not config.tied:
        worth *= fit["untied"]
    if config.decay_lr and config.schedule == "wsd":
        worth *= config.decay_fraction ** fit["decay_power"]
    return worth


def running(e: LossEstimate, step: int, fit: Fit) -> float:
    """What the loss is on its way: the law at the tokens that full-rate steps were worth, what the settings cost by then, what
    the learning rate still holds up, and the first steps' own fall, which no power law follows."""
    config = e.config
    worth = full_rate_steps(config, step)
    seen = e.tokens * max(worth, 0.5) / max(1, config.max_iters)
    tokens = effective_tokens(seen, e.unique_tokens, fit)
    settled = law(
        e.size, multiplier(config, e.recipe, fit, e.dataset, seen) * tokens, e.dataset, fit
    )
    early = fit["early"]["scale"] * math.exp(-worth / fit["early"]["steps"])
    cost = settings_cost(config, e.size, seen, e.recipe, fit, e.tokens)
    relative = relative_rate(config, e.size, e.tokens, e.recipe, fit)
    share = learning_rate_share(config, step)
    return float(settled + cost + held_up(config, share, fit, relative) + early)


def full_rate_steps(config: RunConfig, step: int) -> float:
    """How many steps at the full rate the first `step` ones were worth."""
    warmup = max(0, config.warmup_iters)
    return step**2 / (2 * warmup) if step < warmup else step - warmup / 2


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
    blocks = RECIPES[config.recipe].blocks
    return f"{blocks}-{'muon' if config.optimizer == 'muon' else 'adamw'}"


def known_dataset(name: str) -> str | None:
    """Which of the fitted data sets a name means: "edu_fineweb10B" is fineweb-edu, "owt" is openwebtext; "fineweb-2",
    "fineweb-edu-score-2" and "openwebtext2" are other sets."""
    text = name.lower()
    bare = re.sub(r"[^a-z]", "", text)
    if "fineweb" in bare:
        # a number that is no amount
        if re.search(r"web[-_ ]?v?\d+(?![\d.]*[-_ ]?[kmbt])|score", text):
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
