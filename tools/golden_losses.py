"""Write tests/golden/losses.json: the losses of tiny runs that pin the trainer's numbers.

    python tools/golden_losses.py           # all of them
    python tools/golden_losses.py modern    # one

Only for a change that is meant to change the numbers; say in the commit why they did. The test recomputes them.
"""

import json
import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np

from onecard.config import RunConfig, load
from onecard.runs.log import read_log
from onecard.train.run.loop import train

FILE = Path(__file__).parent.parent / "tests" / "golden" / "losses.json"
LETTERS = 251
GPT2_END_OF_TEXT = 50256

# No dropout: torch draws its masks differently from one kind of CPU to another. Everything else takes part.
GPT2 = RunConfig(
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
_SHAPE = ("n_layer=2", "n_head=2", "n_embd=32", "block_size=32", "compile=False", "device=cpu")
_RUN = ("batch_size=4", "gradient_accumulation_steps=3", "eval_interval=10", "eval_iters=2")
MODERN = load(None, ["recipe=modern", *_SHAPE, *_RUN, "max_iters=20"])  # Muon and AdamW
# Document masks need GPT-2's end-of-text token, so GPT-2's vocabulary: fewer steps, for its head is large.
DOCUMENTS = load(
    None, ["recipe=modern", *_SHAPE, *_RUN, "max_iters=6", "eval_interval=3", "mask_documents=True"]
)
RUNS = {
    "gpt2": GPT2,
    "gpt2-float16": GPT2.replace(dtype="float16"),
    "modern": MODERN,
    "modern-documents": DOCUMENTS,
    "modern-bfloat16": MODERN.replace(dtype="bfloat16"),
    "modern-float16": MODERN.replace(dtype="float16"),
}
# Between AVX-512, AVX2 and plain code fp32 moves by 2e-7; Newton–Schulz makes ten times that of it.
# Half precision moves by its own rounding: CPUs differ in how they add up products.
TOLERANCE = {"gpt2": 1e-6, "modern": 1e-5, "modern-documents": 1e-5}
HALF_TOLERANCE = 2e-3


def golden_run(name: str, place: Path) -> dict[str, list[float]]:
    """The losses and gradient norms of every step and the evaluations' losses, over data made by arithmetic."""
    config = RUNS[name]
    data = place / "data"
    data.mkdir()
    for split, count in (("train", 4001), ("val", 601)):
        ids = (np.arange(count, dtype=np.int64) ** 2 // 7) % LETTERS
        if config.mask_documents:
            ids[::37] = GPT2_END_OF_TEXT  # a window of 32 tokens holds one more often than not
        ids.astype("<u2").tofile(data / f"{split}.bin")
    if not config.mask_documents:  # nanoGPT's way of saying that this is not GPT-2's vocabulary
        letters = [chr(0x4E00 + number) for number in range(LETTERS)]
        itos, stoi = dict(enumerate(letters)), {c: i for i, c in enumerate(letters)}
        meta = {"vocab_size": LETTERS, "itos": itos, "stoi": stoi}
        (data / "meta.pkl").write_bytes(pickle.dumps(meta))
    train(config.replace(dataset=str(data), out_dir=str(place / "run")))
    lines = list(read_log(place / "run" / "log.jsonl"))
    return {
        "loss": [line["loss"] for line in lines if line["kind"] == "step"],
        "val_loss": [line["val_loss"] for line in lines if line["kind"] == "eval"],
        "grad_norm": [line["grad_norm"] for line in lines if line["kind"] == "step"],
    }


def main(names: list[str]) -> None:
    pinned = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for name in names or RUNS:
        with tempfile.TemporaryDirectory() as place:
            pinned[name] = golden_run(name, Path(place))
    FILE.write_text(json.dumps(pinned, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    main(sys.argv[1:])
