"""Bytes a parameter of one training step, traced and predicted, for every combination of savers that `--fit` may choose;
and the whole step of large models, against their goals.

    python -m bench.saver_memory --json bench/results/saver_memory-DATE.json

The step is onecard's own, traced without data (tests/torch/memory_oracle.py): 4 layers of 1024 with GPT-2's vocabulary,
micro-batches of one sequence of 1,024 tokens, compiled; sharded over several cards (shard_oracle.py), not compiled.
Tensors of the computer's memory are counted apart. What the file has already is not traced again, but predicted: the plan may
know more by now. bench/performance.py makes tables of it.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "torch"))

from onecard.advise.can import can
from onecard.advise.savers import all_savers
from onecard.config import RunConfig, load
from onecard.facts.gpus import find_gpu
from onecard.planner.memory import step_memory
from onecard.planner.memory.step import host_bytes, simulate
from onecard.planner.params import params
from onecard.planner.workload import Workload
from onecard.units import GIB

MODEL = RunConfig(
    n_layer=4,
    n_head=16,
    n_embd=1024,
    vocab_size=50304,
    batch_size=1,
    gradient_accumulation_steps=512,
    bias=True,
)
ON_CARD = {
    "chunked_loss": True,
    "recompute": "block",
    "compile_unit": "block",
    "weights": "bfloat16",
    "gradients": "bfloat16",
    "optimizer_state": "8bit",
}
ON_HOST = {**ON_CARD, "optimizer_state": "float32", "offload_optimizer": True}
CARD = "RTX 4070 Ti"
# model, savers (none: the config that `can` writes for CARD), the most it may take in GiB with context and slack
GOALS: dict[str, tuple[str, dict[str, Any], float]] = {
    "gpt2-xl with offload_optimizer": ("gpt2-xl", ON_HOST, 8.0),
    "gpt2-large on the card": ("gpt2-large", ON_CARD, 6.4),
    "gpt2-medium on the card": ("gpt2-medium", ON_CARD, 3.6),
    "gpt2-xl, as `can` writes it": ("gpt2-xl", {}, 11.1),
    "gpt2-xl on the card": ("gpt2-xl", ON_CARD, 11.1),
}

CARDS = 8
SHARED: dict[str, dict[str, Any]] = {
    "": {},
    ", chunked_loss, recompute=block": {"chunked_loss": True, "recompute": "block"},
    ", chunked_loss, recompute=block, optimizer_state=8bit": {
        "chunked_loss": True,
        "recompute": "block",
        "optimizer_state": "8bit",
    },
}


def whole_model(model: str, change: dict[str, Any]) -> RunConfig:
    if not change:
        return can(model, find_gpu(CARD)).config
    return load(model).replace(batch_size=1, gradient_accumulation_steps=512, **change)


def whole_row(
    model: str, change: dict[str, Any], goal: float, known: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Traced and predicted, with context and allocator slack as the plan has them; `known`: a row with its trace."""
    config = whole_model(model, change)
    if known and known["micro_batch"] != config.batch_size:  # `can` writes another config by now
        known = None
    work = Workload.of(config, "bfloat16")
    parts = step_memory(work, find_gpu(CARD)).parts
    return {
        "micro_batch": config.batch_size,
        "tokens_per_step": config.tokens_per_step,
        "optimizer_state": config.optimizer_state,
        **_traced(config, GIB, known),
        "predicted": simulate(work).peak().bytes / GIB,
        "overhead": (parts["context"] + parts["slack"]) / GIB,
        "host_predicted": host_bytes(work) / GIB,
        "goal": goal,
    }


def saver_row(config: RunConfig, known: dict[str, Any] | None = None) -> dict[str, float]:
    count, work = params(config.shape).total, Workload.of(config, "bfloat16")
    return {
        **_traced(config, count, known),
        "predicted": simulate(work).peak().bytes / count,
        "host_predicted": host_bytes(work) / count,
    }


def shard_row(config: RunConfig, known: dict[str, Any] | None = None) -> dict[str, float]:
    """Of one card, over all parameters of the model."""
    count = params(config.shape).total
    predicted = simulate(Workload.of(config, "bfloat16", CARDS)).peak().bytes
    if known:
        traced_bytes = known["traced"] * count
    else:
        from shard_oracle import traced

        traced_bytes = traced(config, "bfloat16", CARDS).bytes
    return {"traced": traced_bytes / count, "predicted": predicted / count}


def _traced(config: RunConfig, unit: float, known: dict[str, Any] | None) -> dict[str, float]:
    if known:
        return {name: known[name] for name in ("traced", "host_traced")}
    from memory_oracle import traced

    trace = traced(config, "bfloat16")
    return {"traced": trace.bytes / unit, "host_traced": trace.host_bytes / unit}


def measure(target: Path) -> None:
    content: dict[str, Any] = {
        "parameters": params(MODEL.shape).total,
        "rows": {},
        "models": {},
        "shards": {},
    }
    if target.exists():
        content |= json.loads(target.read_text())
    configs = [MODEL.replace(optimizer=optimizer) for optimizer in ("adamw", "muon")]
    content["combinations"] = sum(len(all_savers(config)) for config in configs)

    def keep(table: str, name: str, row: dict[str, Any]) -> None:
        content[table][name] = row
        print(name, row, flush=True)
        target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    for name, (model, change, goal) in GOALS.items():
        known = content["models"].get(name)
        keep("models", name, whole_row(model, change, goal, known))
    for config in configs:
        for savers in reversed(all_savers(config)):  # most savers first
            name = f"{config.optimizer}: {', '.join(savers.names) or 'none'}"
            known = content["rows"].get(name)
            keep("rows", name, saver_row(savers.on(config).replace(), known))
    for config in configs:
        for way in ("grads", "full"):
            for more, change in SHARED.items():
                name = f"{config.optimizer}: shard={way}{more}"
                shared = config.replace(shard=way, compile=False, **change)
                keep("shards", name, shard_row(shared, content["shards"].get(name)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    measure(parser.parse_args().json)


if __name__ == "__main__":
    main()
