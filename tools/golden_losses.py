"""Write tests/golden/losses.json: 20 losses of a tiny run that pin the trainer's numbers.

    python tools/golden_losses.py

Only for a change that is meant to change the numbers; say in the commit why they did. The test recomputes them.
"""

import json
import pickle
import tempfile
from pathlib import Path

import numpy as np

from onecard.config import RunConfig
from onecard.runs.log import read_log
from onecard.train.run.loop import train

FILE = Path(__file__).parent.parent / "tests" / "golden" / "losses.json"
# No dropout: torch draws its masks differently from one kind of CPU to another. Everything else takes part.
CONFIG = RunConfig(
    n_layer=2,
    n_head=2,
    n_embd=32,
    block_size=32,
    batch_size=4,
    gradient_accumulation_steps=3,
    max_iters=20,
    lr_decay_iters=20,
    warmup_iters=5,
    learning_rate=3e-3,
    min_lr=3e-4,
    eval_interval=10,
    eval_iters=2,
    compile=False,
    device="cpu",
)


def golden_run(place: Path) -> dict[str, list[float]]:
    """The losses of the 20 steps and of the evaluations at 10 and 20, over data made by arithmetic."""
    data = place / "data"
    data.mkdir()
    for name, count in (("train", 4001), ("val", 601)):
        ids = (np.arange(count, dtype=np.int64) ** 2 // 7) % 251
        ids.astype("<u2").tofile(data / f"{name}.bin")
    letters = [chr(0x4E00 + number) for number in range(251)]
    meta = {
        "vocab_size": 251,
        "itos": dict(enumerate(letters)),
        "stoi": {c: i for i, c in enumerate(letters)},
    }
    (data / "meta.pkl").write_bytes(
        pickle.dumps(meta)
    )  # nanoGPT's way of saying that this is not GPT-2's vocabulary
    config = CONFIG.replace(dataset=str(data), out_dir=str(place / "run"))
    train(config)
    lines = list(read_log(place / "run" / "log.jsonl"))
    return {
        "loss": [line["loss"] for line in lines if line["kind"] == "step"],
        "val_loss": [line["val_loss"] for line in lines if line["kind"] == "eval"],
        "grad_norm": [line["grad_norm"] for line in lines if line["kind"] == "step"],
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        FILE.write_text(json.dumps(golden_run(Path(place)), indent=1) + "\n")
    print(f"wrote {FILE}")
