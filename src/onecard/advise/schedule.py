"""From a tuned step to a whole run: its learning rate, length, evaluations, and how long it takes.

config = scheduled(tuned, steps=19_070, corpus=corpus_of("fineweb-edu"))
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from onecard.advise.savers import Tuned, variant
from onecard.advise.shapes import total_params
from onecard.config import GPT2_PADDED_VOCAB, RunConfig
from onecard.config.model_rules import evaluation_steps
from onecard.config.recipes import RECIPES
from onecard.facts.builds import support_of
from onecard.facts.gpus import Device
from onecard.planner.corpus import Corpus
from onecard.planner.expected_loss import LossEstimate
from onecard.planner.step_time import StepTime
from onecard.planner.warnings import usual_learning_rate
from onecard.units import HOUR

EVAL_TOKENS = 2**20  # held-out tokens of one evaluation: the loss to about 0.003 nats
EVALS = 20  # a run is evaluated so often, or once an hour if that is more
FEWEST_STEPS = 100  # less is not a training run
SMALLEST_BATCH = 32 * 1024  # tokens
SCHEDULE_STEPS = 1000  # a shorter schedule gets a smaller batch instead


@dataclass(frozen=True)
class Candidate:
    """One run that fits the card and the budget."""

    tuned: Tuned
    config: RunConfig  # complete, with its schedule
    params: int
    seconds: float  # of the whole run
    tokens: int
    estimate: LossEstimate

    @property
    def loss(self) -> float:
        return self.estimate.final.mid


def compiled_on(device: Device) -> bool:
    """Whether advice counts on torch.compile: on a CPU it also needs a C++ compiler, which may not be there."""
    return support_of(device).compiles and device.kind != "cpu"


def base_config(device: Device, **changes: object) -> RunConfig:
    """What every candidate on that card shares. The vocabulary is padded: 50257 rows are slow in the largest matmul."""
    return RunConfig().replace(
        **{"vocab_size": GPT2_PADDED_VOCAB, "compile": compiled_on(device), **changes}
    )


def schedule_of(config: RunConfig, steps: int) -> dict[str, float]:
    """The learning rate along a recommended run of this size, optimizer and length."""
    if not RECIPES[config.recipe].rate_by_size:
        return {"max_iters": steps, "lr_decay_iters": steps}
    rate = usual_learning_rate(config.optimizer, total_params(config.shape))
    return {
        "max_iters": steps,
        "lr_decay_iters": steps,
        "warmup_iters": max(1, round(0.03 * steps)) if steps < 60_000 else 2000,
        "learning_rate": float(f"{rate:.1e}"),
        "min_lr": float(f"{rate / 10:.1e}"),
    }


def scheduled(tuned: Tuned, steps: int, corpus: Corpus) -> RunConfig:
    """The tuned config with its schedule: what a person gets, checked like any other."""
    config = tuned.config
    interval = _ladder(min(steps / EVALS, HOUR / tuned.time.seconds.mid))
    return variant(
        config,
        **schedule_of(config, steps),
        eval_interval=interval,
        eval_iters=max(1, -(-EVAL_TOKENS // config.tokens_per_micro_batch)),
        log_interval=10,
        dataset=corpus.name or "fineweb-edu",
        out_dir=f"out-{total_params(config.shape) / 1e6:.0f}M",
    )


def run_seconds(config: RunConfig, time: StepTime) -> float:
    """As the plan counts: steps, evaluations (a third of a step's work for each micro-batch), compilation."""
    return time.compile_seconds + time.seconds.mid * (config.max_iters + evaluation_steps(config))


def tokens_to(loss: float, loss_after: Callable[[float], float], most: float) -> float | None:
    """Tokens after which a run should end at `loss`; None if not within `most`."""
    low, high = math.log(1e6), math.log(most)
    if loss_after(most) > loss:
        return None
    for _ in range(24):
        middle = (low + high) / 2
        if loss_after(math.exp(middle)) <= loss:
            high = middle
        else:
            low = middle
    return math.exp(high)


def rounded_down(steps: int) -> int:
    """To a number that is read at a glance, at most 1 % less: 19,073 is 19,070."""
    return steps if steps < 1000 else steps // 10 * 10


def _ladder(least: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50, … from `least` up."""
    size = 10 ** math.floor(math.log10(max(least, 1)))
    return next(int(size * step) for step in (1, 2, 5, 10) if size * step >= least)
