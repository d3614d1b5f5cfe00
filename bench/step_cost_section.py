"""What docs/performance.md says of a modern step beside one of GPT-2's, by machine, threads and dtype; and which of these ratios
the time of bench/lengths.py's runs is computed with.

A results file's layout: bench/step_cost.py. A measurement's `dtype` and `threads` are its own, else its shape's, else the file's;
without any it was float32, on the threads of the file's machine.
"""

import itertools
from dataclasses import dataclass
from typing import Any

from bench.plots import reached

MODES = ("eager", "compiled")
Setting = tuple[str, str, str, int]
SHAPES = ("demo", "a", "small", "middle", "large")  # as they are listed; others after them


@dataclass(frozen=True)
class StepCost:
    shape: str
    settings: str  # of the shape, in words
    mode: str
    processor: str
    instructions: str
    date: str
    threads: int
    dtype: str
    flops_share: float
    goal: float  # of the ratio
    ratio: float  # a modern step's time over one of GPT-2's
    cpu_ratio: float

    @property
    def setting(self) -> Setting:
        return self.processor, self.instructions, self.dtype, self.threads

    @property
    def where(self) -> str:
        return setting_words(self.dtype, self.threads)


def setting_words(dtype: str, threads: int) -> str:
    return f"{dtype}, {threads} thread{'s' * (threads != 1)}"


def step_costs(results: list[dict[str, Any]]) -> list[StepCost]:
    """Of results, oldest first: the newest measurement of each shape and mode in each setting."""
    newest: dict[tuple[str, str, Setting], StepCost] = {}
    for result in results:
        for name, row in result["shapes"].items():
            for mode in MODES:
                if mode in row:
                    cost = _measured(result, name, row, mode)
                    newest[name, mode, cost.setting] = cost
    return list(newest.values())


def _measured(result: dict[str, Any], name: str, row: dict[str, Any], mode: str) -> StepCost:
    shape, machine = row["shape"], result["machine"]
    setting = {"dtype": "float32", "threads": machine["threads"]}
    for level in (result, row, row[mode]):
        setting |= {key: level[key] for key in setting if level.get(key) is not None}
    words = f"{shape['n_layer']}L/{shape['n_embd']}, {shape['batch_size']} × {shape['block_size']}"
    return StepCost(
        shape=name,
        settings=f"{words}, vocabulary {shape['vocab_size']:,}",
        mode=mode,
        processor=machine["processor"],
        instructions=machine["instructions"],
        date=result["date"],
        flops_share=row["flops_share"],
        goal=row["goal"],
        ratio=row[mode]["ratio"],
        cpu_ratio=row[mode]["cpu_ratio"],
        **setting,
    )


def section(costs: list[StepCost]) -> list[str]:
    lines = [
        "## A step of the modern recipe beside one of GPT-2's",
        "",
        "By turns, medians (bench/step_cost.py); a table for each processor, dtype and number of threads, for the ratio depends on "
        "them, and with them whether the goal is reached. The goal is 1.1 × the share of FLOPs: matrix products as they are done, Newton–Schulz included; norms, rotation, "
        "soft cap and softmax count nothing. In brackets by the CPU's time, the steadier figure on a machine that others use.",
    ]
    ordered = sorted(costs, key=lambda cost: cost.setting)
    for _, found in itertools.groupby(ordered, key=lambda cost: cost.setting):
        lines += ["", *_table(list(found))]
    return [*lines, ""]


def _table(costs: list[StepCost]) -> list[str]:
    """Of one setting."""
    one = costs[0]
    dates = ", ".join(sorted({cost.date for cost in costs}))
    lines = [
        f"**{one.processor}, {one.instructions}**; {one.where}; {dates}:",
        "",
        "| shape | FLOPs, modern over GPT-2's | goal | eager | compiled |",
        "|---|---|---|---|---|",
    ]
    known = {name: at for at, name in enumerate(SHAPES)}
    for name in sorted(
        {cost.shape for cost in costs}, key=lambda each: known.get(each, len(known))
    ):
        by_mode = {cost.mode: cost for cost in costs if cost.shape == name}
        cells = [
            f"{cost.ratio:.2f} × ({cost.cpu_ratio:.2f}): {reached(cost.ratio, cost.goal, True)}"
            if (cost := by_mode.get(mode))
            else "not measured"
            for mode in MODES
        ]
        any_ = next(iter(by_mode.values()))
        lines.append(
            f"| {name}: {any_.settings} | {any_.flops_share:.2f} | {any_.goal:.2f} × | {' | '.join(cells)} |"
        )
    return lines


def nearest_cost(costs: list[StepCost], shape: str, dtype: str, threads: int) -> StepCost | None:
    """The compiled step's, measured as the runs were made; else with their dtype, else with their threads, else the newest."""
    compiled = [cost for cost in costs if (cost.shape, cost.mode) == (shape, "compiled")]
    return max(
        compiled,
        key=lambda cost: (cost.dtype == dtype, cost.threads == threads, cost.date),
        default=None,
    )
