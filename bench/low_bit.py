"""What moments in 8 and 4 bits cost in loss: small models on one text, three seeds, against full precision at equal steps.

    python -m bench.low_bit TEXT [--steps 250] [--json bench/results/low_bit-DATE.json]

Every run is onecard's own trainer on the bytes of the text; the last tenth is held out. bench/performance.py makes a
table of it.
"""

import argparse
import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from onecard.config import RunConfig

STATES = ("float32", "8bit", "4bit")
SEEDS = (1, 2, 3)


def prepared(text: Path, folder: Path) -> str:
    data = np.frombuffer(text.read_bytes(), np.uint8).astype("<u2")
    cut = len(data) * 9 // 10
    for name, part in (("train", data[:cut]), ("val", data[cut:])):
        part.tofile(folder / f"{name}.bin")
    letters = [chr(byte) for byte in range(256)]
    meta: dict[str, Any] = {"vocab_size": 256, "itos": dict(enumerate(letters))}
    meta["stoi"] = {letter: byte for byte, letter in enumerate(letters)}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))  # as nanoGPT's prepare.py does
    return str(folder)


def config_of(dataset: str, out: Path, steps: int, seed: int, optimizer: str) -> RunConfig:
    muon = optimizer == "muon"
    return RunConfig(
        dataset=dataset,
        out_dir=str(out),
        vocab_size=256,
        n_layer=3,
        n_head=4,
        n_embd=128,
        block_size=64,
        batch_size=16,
        gradient_accumulation_steps=1,
        max_iters=steps,
        lr_decay_iters=steps,
        warmup_iters=steps // 10,
        learning_rate=0.02 if muon else 2e-3,
        min_lr=0.002 if muon else 2e-4,
        eval_interval=steps,
        eval_iters=40,
        sample_interval=10 * steps,
        compile=False,
        device="cpu",
        seed=seed,
    ).replace(optimizer=optimizer)


def measured(text: Path, steps: int) -> dict[str, dict[str, list[float]]]:
    """Validation losses by optimizer and state, one a seed."""
    from onecard.train.run.loop import train  # the page is made without torch

    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        dataset = prepared(text, Path(place))
        for optimizer in ("adamw", "muon"):
            for state in STATES:
                for seed in SEEDS:
                    out = Path(place) / f"{optimizer}-{state}-{seed}"
                    config = config_of(dataset, out, steps, seed, optimizer)
                    loss = train(config.replace(optimizer_state=state)).val_loss
                    assert loss is not None
                    found.setdefault(optimizer, {}).setdefault(state, []).append(loss)
                    print(optimizer, state, seed, f"{loss:.4f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = measured(args.text, args.steps)
    if args.json:
        content = {"text": args.text.name, "steps": args.steps, "losses": found}
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
