"""What each memory saver costs in loss, alone and all together: small models on two texts, three seeds, at equal steps.

    python -m bench.saver_loss characters=TEXT prose=TEXT.parquet [--steps 300] --json bench/results/saver_loss-DATE.json

A text is a file of text, or a parquet file with a column "text", of which the first 2 MB are taken. Every run is onecard's
own trainer on the bytes of the text; the last tenth is held out. Products are computed in fp32 from what is kept in bf16
(a CPU has no faster ones), so that a difference is what keeping weights, gradients and moments in fewer bits costs, and
nothing else. Losses that the file has already are not measured again: a run that was stopped continues, seed by seed.
bench/performance.py makes a table of it.
"""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.low_bit import SEEDS, config_of, prepared

LEAN: dict[str, Any] = {"weights": "bfloat16", "gradients": "bfloat16"}
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "weights and gradients bfloat16, optimizer_state 4bit": {**LEAN, "optimizer_state": "4bit"},
    "weights and gradients bfloat16, optimizer_state 8bit": {**LEAN, "optimizer_state": "8bit"},
    "weights bfloat16": {"weights": "bfloat16"},
    "optimizer_state 8bit": {"optimizer_state": "8bit"},
    "optimizer_state 4bit": {"optimizer_state": "4bit"},
    "gradients bfloat16": {"gradients": "bfloat16"},
    "weights bfloat16, offload_optimizer": {"weights": "bfloat16", "offload_optimizer": True},
}
SHAPE = {"n_layer": 2, "n_embd": 64, "batch_size": 4, "gradient_accumulation_steps": 2}
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


@contextlib.contextmanager
def products_in_fp32() -> Iterator[None]:
    """Matrices and tables in bf16 are read as they are and multiplied in fp32."""
    from torch import Tensor
    from torch.nn import functional

    from onecard.train.run import step, trial, validation

    linear, embedding = functional.linear, functional.embedding

    def exact_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, weight.float(), bias)

    def exact_embedding(ids: Tensor, table: Tensor, *options: Any, **more: Any) -> Tensor:
        return embedding(ids, table.float(), *options, **more)

    def as_it_is(device: Any, precision: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(functional, "linear", exact_linear))
        stack.enter_context(patch.object(functional, "embedding", exact_embedding))
        for room in (step, trial, validation):
            stack.enter_context(patch.object(room, "autocast", as_it_is))
        yield


def measure(sources: dict[str, Path], steps: int, target: Path) -> None:
    content: dict[str, Any] = {"steps": steps, "shape": SHAPE, "losses": {}}
    if target.exists():
        content = json.loads(target.read_text())
        assert (content["steps"], content["shape"]) == (steps, SHAPE), f"{target} has another run's"
    losses: Losses = content["losses"]
    for seed in SEEDS:  # a whole table of one seed first
        for text, source in sources.items():
            with tempfile.TemporaryDirectory() as place, products_in_fp32():
                dataset = prepared(text_file(source, Path(place)), Path(place))
                for optimizer in ("adamw", "muon"):
                    for name, changes in VARIANTS.items():
                        found = losses.setdefault(text, {}).setdefault(optimizer, {})
                        known = found.setdefault(name, [])
                        if len(known) >= SEEDS.index(seed) + 1:
                            continue
                        out = Path(place) / f"{optimizer}-{name}"
                        loss = trained(dataset, out, steps, seed, optimizer, changes)
                        known.append(round(loss, 4))
                        print(text, optimizer, name, seed, f"{loss:.4f}", flush=True)
                        target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def trained(
    dataset: str, out: Path, steps: int, seed: int, optimizer: str, changes: dict[str, Any]
) -> float:
    from onecard.train.run.loop import train

    config = config_of(dataset, out, steps, seed, optimizer)
    loss = train(config.replace(**SHAPE, dtype="bfloat16", **changes)).val_loss
    assert loss is not None
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    sources = dict(text.partition("=")[::2] for text in args.texts)
    measure({name: Path(file) for name, file in sources.items()}, args.steps, args.json)


if __name__ == "__main__":
    main()
