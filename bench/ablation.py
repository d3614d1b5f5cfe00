"""What each piece of the modern recipe is worth: one piece taken away, or one more put in, at the same tokens, three seeds.

python bench/ablation.py --text tinyshakespeare.txt [--only GELU …] [--tokens 76800] [--threads 1]
python bench/ablation.py --text tinyshakespeare.txt --transfer         one learning rate at four widths, three depths and four lengths?
python bench/ablation.py --text tinyshakespeare.txt --batches          the best batch at three budgets of tokens

The baseline is the package's own model and optimizer; a variant changes its config or patches one part of it.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from onecard.config import load
from onecard.model import lean_cpu, modern
from onecard.model.build import make_model
from onecard.model.gpt2 import GPT, attend
from onecard.model.lean import rms_norm, rotate
from onecard.model.modern import ModernGPT
from onecard.train.io.loader import Loader
from onecard.train.optim import lr_at, make_optimizer, muon, set_step_size
from side_by_side import characters, store

BATCH = 8
EVAL_WINDOWS = 512  # 32,768 characters
Patch = Callable[[], contextlib.AbstractContextManager]


def without(target: Any, name: str, value: Any) -> Patch:
    return lambda: patch.object(target, name, value)


@contextlib.contextmanager
def random_projections() -> Iterator[None]:
    """GPT-2's way: small random numbers, smaller with depth."""
    zeros = ModernGPT._init_weights

    def init(self: ModernGPT) -> None:
        zeros(self)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(
                    parameter, std=(parameter.shape[1] * 2 * self.config.n_layer) ** -0.5
                )

    with patch.object(ModernGPT, "_init_weights", init):
        yield


@contextlib.contextmanager
def added_to_the_stream(kind: str) -> Iterator[None]:
    """Parts from the speedrun literature that the recipe does without: they change what a block is given."""
    made = ModernGPT.__init__

    def init(self: ModernGPT, config: Any) -> None:
        made(self, config)
        width, layers = config.n_embd, config.n_layer
        if (
            kind == "x0"
        ):  # modded-nanogpt: every block sees a learned mix of the stream and the embedding
            self.extra = nn.Parameter(torch.tensor([[1.0, 0.0]] * layers))
        elif (
            kind == "values"
        ):  # Zhou et al., 2024, in modded-nanogpt's form: a table of values of its own in each layer
            self.extra = nn.Parameter(torch.randn(layers, config.shape.vocab_size, width))
            self.share = nn.Parameter(torch.full((layers, 1), 0.5))
        elif kind == "smear":  # modded-nanogpt: the embedding of the token before, added by channel
            self.extra = nn.Parameter(torch.zeros(width))

    def hidden(self: Any, idx: torch.Tensor, doc_mask: torch.Tensor | None) -> torch.Tensor:
        around = modern.Around(self._turn(0, idx.shape[1]))
        x = self.transformer.wte(idx)
        if kind == "smear":
            x = x + self.extra * F.pad(x, (0, 0, 1, 0))[:, :-1]
        first = x = rms_norm(x)
        for layer, block in enumerate(self.transformer.h):
            if kind == "x0":
                x = self.extra[layer, 0] * x + self.extra[layer, 1] * first
            block.attn.own_values = (
                (self.extra[layer][idx] * self.share[layer]) if kind == "values" else None
            )
            x = block(x, around)
        return rms_norm(x)

    with patch.object(ModernGPT, "__init__", init), patch.object(ModernGPT, "hidden", hidden):
        if kind != "values":
            yield
            return

        def with_values(
            attention: Any, x: torch.Tensor, around: modern.Around, layer: int
        ) -> torch.Tensor:
            if around.cache is not None:  # the sample at a run's end, which nobody measures
                return forward(attention, x, around, layer)
            batch, length = x.shape[:2]
            own = attention.own_values.view(batch, length, attention.n_head, -1).transpose(1, 2)
            with patch.object(
                modern, "attend", lambda q, k, v, *rest: attend(q, k, v + own, *rest)
            ):
                return forward(attention, x, around, layer)

        forward = modern.Attention.forward
        with patch.object(modern.Attention, "forward", with_values):
            yield


def another_quintic(steps: int) -> Patch:
    """Jordan's coefficients, fewer times."""
    return without(muon, "_STEPS", steps)


PIECES: dict[str, tuple[dict[str, Any], Patch | None]] = {
    "the recipe": ({}, None),
    # one piece taken away
    "without short convolutions": (
        {},
        without(modern, "mix_recent", lambda x, taps, documents=None: x),
    ),
    "GELU for ReLU²": ({}, without(modern.MLP, "activation", staticmethod(F.gelu))),
    "AdamW for Muon, 3e-3": ({"optimizer": "adamw", "learning_rate": 3e-3}, None),
    "AdamW for Muon, 1e-3": ({"optimizer": "adamw", "learning_rate": 1e-3}, None),
    "random projections for zeros": ({}, random_projections),
    "without the soft cap": (
        {},
        lambda: patch.multiple(ModernGPT, soft_cap=None, head=GPT.head),
    ),
    "tied head": ({"tied": True}, None),
    "without QK-norm": ({}, None),  # filled in below: its patch needs a class
    "cosine for linear": ({"schedule": "cosine"}, None),
    "wsd for linear": ({"schedule": "wsd"}, None),
    # one number changed
    "learning rate × 1/2": ({"learning_rate": 0.01}, None),
    "learning rate × 2": ({"learning_rate": 0.04}, None),
    "embedding rate × 3": ({}, without(muon, "EMBEDDING_SCALE", 3 * muon.EMBEDDING_SCALE)),
    "head rate × 2.5": ({}, without(muon, "HEAD_SCALE", 2.5 * muon.HEAD_SCALE)),
    "momentum 0.95 from the start": ({}, without(muon, "MOMENTUM_FIRST", 0.95)),
    "momentum 0.9": ({}, lambda: patch.multiple(muon, MOMENTUM_FIRST=0.9, MOMENTUM=0.9)),
    "batch 4": ({"batch_size": 4}, None),
    "batch 16": ({"batch_size": 16}, None),
    "weight decay 0.1": ({"weight_decay": 0.1}, None),
    "four Newton–Schulz steps": ({}, another_quintic(4)),
    "three Newton–Schulz steps": ({}, another_quintic(3)),
    # one piece put in
    "value embeddings": ({}, lambda: added_to_the_stream("values")),
    "x0 skips": ({}, lambda: added_to_the_stream("x0")),
    "smeared embedding": ({}, lambda: added_to_the_stream("smear")),
}


@contextlib.contextmanager
def no_qk_norm() -> Iterator[None]:
    """Queries and keys as they come; the first norm of `rotate`'s argument is skipped."""

    def forward(attention: Any, x: torch.Tensor, around: modern.Around, layer: int) -> torch.Tensor:
        with patch.object(modern, "rms_norm", lambda q: q), patch.object(modern, "rotate", rotate):
            return plain(attention, x, around, layer)

    plain = modern.Attention.forward
    with patch.object(modern.Attention, "forward", forward):
        yield


PIECES["without QK-norm"] = ({}, no_qk_norm)


# The same five learning rates at every size, four widths and three depths: the best one should not move.
RATES = (0.01, 0.02, 0.04, 0.08, 0.16)
STEPS = 300  # of a run whose size is changed
SHAPES = ((4, 128), (4, 64), (4, 192), (4, 256), (2, 128), (8, 128))
LENGTHS = (150, 600, 1200)
TRANSFER: dict[str, tuple[dict[str, Any], Patch | None]] = {
    f"{layers}L/{width}, {steps} steps, rate {rate:g}": (
        {"n_layer": layers, "n_embd": width, "n_head": width // 32}
        | {"learning_rate": rate, "max_iters": steps},
        None,
    )
    for layers, width, steps in (
        *((layers, width, STEPS) for layers, width in SHAPES),
        *((*SHAPES[0], steps) for steps in LENGTHS),
    )
    for rate in RATES
}

# How many rows of 64 a step should have, at three budgets of tokens; each batch at three rates, for the best one grows with it.
BATCHES: dict[str, tuple[dict[str, Any], Patch | None]] = {
    f"{tokens} tokens, batch {batch}, rate {rate:g}": (
        {"batch_size": batch, "learning_rate": rate, "max_iters": tokens // (64 * batch)},
        None,
    )
    for tokens in (38_400, 153_600, 614_400)
    for batch in (2, 4, 8, 16, 32, 64)
    for rate in (0.01, 0.02, 0.04)
}
SWEEPS = {"ablation": PIECES, "transfer": TRANSFER, "batches": BATCHES}


@contextlib.contextmanager
def changed(part: Patch | None) -> Iterator[None]:
    """A patch in force, and with it the plain forms of what it changes: a CPU has forms of its own."""
    with contextlib.ExitStack() as stack:
        if part is not None:
            stack.enter_context(patch.object(lean_cpu, "serves", lambda x: False))
            stack.enter_context(part())
        yield


def loss_of(
    folder: str, changes: dict[str, Any], part: Patch | None, tokens: int, seed: int
) -> float:
    """The validation loss at the end of one run."""
    from onecard.data import open_dataset

    keys = {
        "recipe": "modern",
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 128,
        "block_size": 64,
        "batch_size": BATCH,
        "gradient_accumulation_steps": 1,
        "dataset": folder,
        "vocab_size": open_dataset(folder).vocab_size,
        "seed": seed,
        **changes,
    }
    keys.setdefault("max_iters", tokens // (keys["batch_size"] * keys["block_size"]))
    config = load(None, [f"{key}={value}" for key, value in keys.items()])
    data = open_dataset(folder)
    with changed(part):
        torch.manual_seed(seed)
        model = make_model(config)
        optimizer = make_optimizer(config, model)
        loader = Loader(data.splits["train"], config.block_size, config.batch_size, seed)
        for step in range(config.max_iters):
            rows = loader.rows(step)
            set_step_size(optimizer, lr_at(config, step), step)
            optimizer.zero_grad(set_to_none=True)
            _, loss = model(rows[:, :-1], rows[:, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
            optimizer.step()
        loader.close()
        held = torch.from_numpy(data.splits["val"].read(0, EVAL_WINDOWS * 64 + 1).astype(np.int64))
        with torch.no_grad():
            x, y = held[:-1].view(-1, 64), held[1:].view(-1, 64)
            losses = [model(a, b)[1].item() for a, b in zip(x.split(64), y.split(64), strict=True)]
    return statistics.fmean(losses)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--only", nargs="+", help="words that a piece's name holds")
    parser.add_argument(
        "--tokens", type=int, default=76_800, help="a twentieth of nanoGPT's README run"
    )
    sweep = parser.add_mutually_exclusive_group()
    for name in ("transfer", "batches"):
        sweep.add_argument(f"--{name}", dest="sweep", action="store_const", const=name)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    sweep_name = args.sweep or "ablation"
    chosen = {
        name: piece
        for name, piece in SWEEPS[sweep_name].items()
        if not args.only or any(w in name for w in args.only)
    }
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        characters(args.text, Path(folder))
        for name, (changes, part) in chosen.items():
            losses = [
                loss_of(folder, changes, part, args.tokens, seed) for seed in range(args.seeds)
            ]
            found[name] = {"mean": statistics.fmean(losses), "losses": losses}
            worth = found[name]["mean"] - next(iter(found.values()))["mean"]
            print(
                f"{found[name]['mean']:.4f}  {worth:+.4f}  {' '.join(f'{x:.4f}' for x in losses)}  {name}",
                flush=True,
            )
    if not args.only:
        print(f"stored in {store(sweep_name, {'tokens': args.tokens, 'pieces': found})}")
    else:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
