"""The table to pin to the wall: for each class of memory, what a typical card trains best in the time.

>>> list(TYPICAL)
[8, 10, 12, 16, 20, 24, 32, 48, 80]
>>> memory_table(Budget(seconds=24 * 3600)).rows[2].gpu                                 # doctest: +SKIP
'RTX 4070'
"""

from dataclasses import dataclass
from typing import Any

from onecard.advise.budget import Budget
from onecard.advise.recipe_choice import choose
from onecard.facts.gpus import find_gpu
from onecard.planner.params import params
from onecard.planner.result import JsonAnswer
from onecard.units import HOUR
from onecard.version import __version__

SCHEMA = "onecard.memory-table/1"
TABLE_TOKENS = 10e9  # what such runs are compared by: one pass over FineWeb's 10 B-token samples

# One card people own or rent for each class; where several are common, the one in the advice that circulates.
TYPICAL = {
    8: "RTX 4060",
    10: "RTX 3080 10GB",
    12: "RTX 4070",
    16: "RTX 4080",
    20: "RTX 4000 Ada",
    24: "RTX 4090",
    32: "RTX 5090",
    48: "RTX A6000",
    80: "A100 80GB",
}


@dataclass(frozen=True)
class Row:
    memory_gb: int
    gpu: str
    recipe: str
    n_layer: int
    n_head: int
    n_embd: int
    params: int
    nanogpt_params: int
    batch_size: int
    gradient_accumulation_steps: int
    savers: list[str]
    learning_rate: float
    step_seconds: float
    tokens: int  # in the time
    loss: float
    hours_10b: float  # for 10 B tokens of this model


@dataclass(frozen=True)
class MemoryTable(JsonAnswer):
    schema: str
    version: str
    budget: Budget
    dataset: str
    rows: list[Row]


def memory_table(
    budget: Budget,
    *,
    data: str | int | None = None,
    recipe: str | None = None,
    changes: dict[str, Any] | None = None,
) -> MemoryTable:
    """The best run in the budget on the typical card of each class."""
    rows = []
    family = ""
    for memory, name in TYPICAL.items():
        device = find_gpu(name)
        contest = choose(device, budget, data=data, recipe=recipe, changes=changes)
        best, family = contest.best, contest.search.family
        config, step = best.config, best.tuned.time.seconds.mid
        rows.append(
            Row(
                memory_gb=memory,
                gpu=device.name,
                recipe=config.recipe,
                n_layer=config.n_layer,
                n_head=config.n_head,
                n_embd=config.n_embd,
                params=best.params,
                nanogpt_params=params(config.shape).nanogpt,
                batch_size=config.batch_size,
                gradient_accumulation_steps=config.gradient_accumulation_steps,
                savers=best.tuned.savers.names,
                learning_rate=config.learning_rate,
                step_seconds=step,
                tokens=best.tokens,
                loss=best.loss,
                hours_10b=TABLE_TOKENS / config.tokens_per_step * step / HOUR,
            )
        )
    return MemoryTable(SCHEMA, __version__, budget, family, rows)
