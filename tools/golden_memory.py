"""Write tests/golden/memory.json: the simulated memory of steps drawn at random, to the byte.

    python tools/golden_memory.py

The traces of real steps (tests/torch/test_memory_trace.py) say whether the simulation is right, for a few settings at a time;
these figures say in a second whether anything of it changed. Only for a change that is meant; a trace has to agree with it.
"""

import json
import random
from pathlib import Path
from typing import Any

from onecard.planner.memory.step import simulate
from onecard.planner.stacks import STACKS, in_stack
from onecard.planner.workload import Workload

FILE = Path(__file__).parent.parent / "tests" / "golden" / "memory.json"
DRAWN = 200
CHOICES: dict[str, tuple[Any, ...]] = {
    "n_layer": (2, 12, 24),
    "n_head": (2, 5, 8),
    "n_embd": (160, 640, 1280),
    "vocab_size": (65, 4096, 50304),
    "block_size": (100, 256, 1024),
    "batch_size": (1, 2, 8),
    "accumulation": (1, 4),
    "dtype": ("bfloat16", "bfloat16", "float16", "float32"),
    "gated": (False, False, True),
    "tied": (True, False),
    "modern": (False, True),
    "bias": (False, True),
    "dropout": (0.0, 0.0, 0.1),
    "compiled": (False, True),
    "flash": (True, True, False),
    "chunked_loss": (False, True),
    "recompute": ("none", "cheap", "block"),
    "optimizer": ("adamw", "muon"),
    "half_weights": (False, True),
    "half_gradients": (False, True),
    "by_block": (False, True),
    "host_optimizer": (False, False, True),
    "host_inputs": (False, False, True),
    "in_backward": (False, False, True),
    "state_bits": (32, 32, 8, 4),
    "fused_optimizer": (True, False),
    "mask_documents": (False, True),
    "fp8": (False, False, True),
}


def drawn() -> list[Workload]:
    """Also combinations that nobody would choose: each is a sum of the same declarations."""
    chance = random.Random(1)
    found = []
    for number in range(DRAWN):
        work = Workload(**{key: chance.choice(values) for key, values in CHOICES.items()})
        found.append(work if number % 4 else in_stack(work, chance.choice(STACKS)))
    return found


def figures(work: Workload) -> list[int]:
    """The peak, and what is alive over all places inside a layer and outside the layers."""
    step = simulate(work)
    return [step.peak().bytes, sum(step.inside), sum(step.around)]


def main() -> None:
    rows = ",\n ".join(json.dumps(figures(work)) for work in drawn())
    FILE.write_text(f"[\n {rows}\n]\n")


if __name__ == "__main__":
    main()
