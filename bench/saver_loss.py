"""What each memory saver costs in loss, alone and all together: small models on a text, three seeds, at equal steps.

    python -m bench.saver_loss TEXT [--steps 120] --json bench/results/saver_loss-DATE.json

TEXT is a text file or a parquet file with a column "text", of which the first 2 MB are taken. Every run is onecard's own
trainer on the bytes of the text, with bf16 matmuls as on a card; the last tenth is held out. Losses that the file has
already are not measured again, so that a run that was stopped continues. bench/performance.py makes a table of it.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from bench.low_bit import SEEDS, config_of, prepared

LEAN: dict[str, Any] = {"weights": "bfloat16", "gradients": "bfloat16"}
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "all on the card": {**LEAN, "optimizer_state": "8bit"},
    "weights bfloat16": {"weights": "bfloat16"},
    "gradients bfloat16": {"gradients": "bfloat16"},
    "weights bfloat16, offload_optimizer": {"weights": "bfloat16", "offload_optimizer": True},
    "optimizer_state 8bit": {"optimizer_state": "8bit"},
    "all on the card, 4bit": {**LEAN, "optimizer_state": "4bit"},
    "all, offload_optimizer": {**LEAN, "optimizer_state": "8bit", "offload_optimizer": True},
}
LARGEST = 2_000_000  # bytes of text
Losses = dict[str, dict[str, dict[str, list[float]]]]  # by text, optimizer and savers, one a seed


def text_file(source: Path, folder: Path) -> Path:
    if source.suffix != ".parquet":
        content = source.read_bytes()
    else:
        import pyarrow.parquet as parquet

        texts = parquet.read_table(source, columns=["text"])["text"].to_pylist()
        content = "\n".join(texts).encode()
    target = folder / "text.txt"
    target.write_bytes(content[:LARGEST])
    return target


def measure(source: Path, steps: int, target: Path) -> None:
    from onecard.train.run.loop import train

    content: dict[str, Any] = {"steps": steps, "losses": {}}
    if target.exists():
        content = json.loads(target.read_text())
    losses: Losses = content["losses"]
    with tempfile.TemporaryDirectory() as place:
        dataset = prepared(text_file(source, Path(place)), Path(place))
        for name, changes in VARIANTS.items():
            for optimizer in ("adamw", "muon"):
                if optimizer == "muon" and changes.get("optimizer_state") == "4bit":
                    continue  # costs by itself, and is never suggested
                found = losses.setdefault(source.stem, {}).setdefault(optimizer, {})
                known = found.setdefault(name, [])
                for seed in SEEDS[len(known) :]:
                    out = Path(place) / f"{optimizer}-{name}-{seed}"
                    config = config_of(dataset, out, steps, seed, optimizer)
                    config = config.replace(
                        batch_size=4, gradient_accumulation_steps=4, dtype="bfloat16", **changes
                    )
                    loss = train(config).val_loss
                    assert loss is not None
                    known.append(round(loss, 4))
                    print(source.stem, optimizer, name, seed, f"{loss:.4f}", flush=True)
                    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    measure(args.text, args.steps, args.json)


if __name__ == "__main__":
    main()
