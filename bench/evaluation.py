"""HellaSwag beside lm-evaluation-harness's own Hugging Face back end: the same model, items and machine, one after the other.

    python bench/evaluation.py --items 24 --batch 4 8 16

GPT-2 124M's shape with random weights, items spread over the shipped 200 (a third from ActivityNet, the rest from WikiHow, as in the
whole set). In turns, in one process, so with the same threads; lm-eval at each batch size, and its best one counts. Both give the same
answers, which is checked too. Tokenising counts for both; loading does not.
"""

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ITEMS = Path(__file__).parents[1] / "tests" / "items" / "hellaswag.jsonl"
SHAPES: dict[str, dict[str, Any]] = {
    "124M": {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024},
    "tiny": {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 256},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=24)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--shape", choices=SHAPES, default="124M")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    import torch
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    from onecard.data import gpt2
    from onecard.evals.evaluate import evaluate_task
    from onecard.export.tokenizer_files import write_tokenizer
    from onecard.model.opening import open_model

    logging.disable(logging.ERROR)
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        items = spread(folder / "items.jsonl", args.items)
        GPT2LMHeadModel(GPT2Config(**SHAPES[args.shape])).save_pretrained(folder)
        write_tokenizer(folder, gpt2(), SHAPES[args.shape]["n_positions"])
        theirs, tokenizer = (
            GPT2LMHeadModel.from_pretrained(folder),
            AutoTokenizer.from_pretrained(folder),
        )
        speaker = open_model(str(folder), "auto")
        ours: list[Spent] = []
        rounds: dict[int, list[Spent]] = {batch: [] for batch in args.batch}
        for _ in range(args.rounds):  # the best of each counts
            spent, result = timed(lambda: evaluate_task(speaker, "bench", "hellaswag", items))
            ours.append(spent)
            for batch in args.batch:
                spent, answer = harness(theirs, tokenizer, batch, items)
                rounds[batch].append(spent)
    every = [spent for found in rounds.values() for spent in found]
    same = all(abs(answer[f"{f.name},none"] - f.value) < 1e-9 for f in result.figures)
    print(
        json.dumps(
            {
                "shape": args.shape,
                "items": args.items,
                "device": str(speaker.model.lm_head.weight.device),
                "threads": torch.get_num_threads(),
                "load_at_the_end": os.getloadavg()[0],
                "onecard_seconds": [spent.seconds for spent in ours],
                "onecard_cpu_seconds": [spent.cpu_seconds for spent in ours],
                "lm_eval_seconds_by_batch": {b: [s.seconds for s in f] for b, f in rounds.items()},
                "lm_eval_cpu_seconds_by_batch": {
                    b: [s.cpu_seconds for s in f] for b, f in rounds.items()
                },
                "ratio_to_best": min(s.seconds for s in every) / min(s.seconds for s in ours),
                "cpu_ratio_to_best": min(s.cpu_seconds for s in every)
                / min(s.cpu_seconds for s in ours),
                "same_answers": same,
            },
            indent=2,
        )
    )


def spread(path: Path, count: int) -> Path:
    """A file with so many of the shipped items, evenly spaced."""
    lines = ITEMS.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[i * len(lines) // count] for i in range(count)), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Spent:
    seconds: float
    cpu_seconds: float  # of all threads: what other programs on the machine disturb less


def timed(work: Callable[[], Any]) -> tuple[Spent, Any]:
    began, cpu_began = time.perf_counter(), time.process_time()
    found = work()
    return Spent(time.perf_counter() - began, time.process_time() - cpu_began), found


def harness(model, tokenizer, batch, items):
    from lm_eval.models.huggingface import HFLM

    from onecard.evals.harness import _task, library, task_manager

    lm_eval = library()
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch)
    manager = task_manager()
    task = _task("hellaswag", manager, items)
    loaded = lm_eval.tasks.get_task_dict([task], manager)
    spent, found = timed(lambda: lm_eval.evaluate(lm=lm, task_dict=loaded, bootstrap_iters=0))
    return spent, found["results"]["hellaswag"]


if __name__ == "__main__":
    main()
