"""Bytes a parameter of one training step, traced and predicted, for every combination of savers that `--fit` may choose.

    python -m bench.saver_memory --json bench/results/saver_memory-DATE.json

The step is onecard's own, traced without data (tests/torch/memory_oracle.py): 4 layers of 1024 with GPT-2's vocabulary,
micro-batches of one sequence of 1,024 tokens, compiled, AdamW. Tensors of the computer's memory are counted apart.
bench/performance.py makes a table of it.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "torch"))

from onecard.advise.savers import all_savers
from onecard.config import RunConfig
from onecard.planner.memory.step import host_bytes, simulate
from onecard.planner.params import params
from onecard.planner.workload import Workload

MODEL = RunConfig(
    n_layer=4,
    n_head=16,
    n_embd=1024,
    vocab_size=50304,
    batch_size=1,
    gradient_accumulation_steps=512,
    bias=True,
)


def measure(target: Path) -> None:
    from memory_oracle import traced

    rows: dict[str, Any] = json.loads(target.read_text())["rows"] if target.exists() else {}
    count = params(MODEL.shape).total
    for savers in all_savers(MODEL):
        name = ", ".join(savers.names) or "none"
        if name in rows:
            continue
        config = savers.on(MODEL).replace()
        trace = traced(config, "bfloat16")
        work = Workload.of(config, "bfloat16")
        rows[name] = {
            "traced": trace.bytes / count,
            "predicted": simulate(work).peak().bytes / count,
            "host_traced": trace.host_bytes / count,
            "host_predicted": host_bytes(work) / count,
        }
        print(name, rows[name], flush=True)
        content = {"parameters": count, "rows": rows}
        target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    measure(parser.parse_args().json)


if __name__ == "__main__":
    main()
