"""Changes to the modern recipe that are screened by lengths.py, and `onecard` with one of them in force.

    python bench/ideas.py "momentum 0.9" train --recipe=modern …

An idea is a set of config keys, a patch of the package as in ablation.py, or both. What a patch keeps beside the optimizer's
state (averages, row norms) is not in the checkpoints: a screening run that was stopped begins with it empty.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

Patch = Callable[[], contextlib.AbstractContextManager[Any]]


def muon_constants(**constants: Any) -> Patch:
    def patched() -> contextlib.AbstractContextManager[Any]:
        from onecard.train.optim import muon

        return patch.multiple(muon, **constants)

    return patched


def stream(kind: str) -> Patch:
    def patched() -> contextlib.AbstractContextManager[Any]:
        from ablation import added_to_the_stream, changed

        return changed(lambda: added_to_the_stream(kind))

    return patched


@contextlib.contextmanager
def cautious_decay() -> Iterator[None]:
    """Weight decay only where the step itself leads towards zero (Chen et al., 2025)."""
    import torch

    from onecard.train.optim.muon import Muon

    plain = Muon._muon

    def step(self: Muon, parameters: list[torch.Tensor], group: dict[str, Any]) -> None:
        before = [parameter.clone() for parameter in parameters]
        plain(self, parameters, {**group, "weight_decay": 0.0})
        for parameter, old in zip(parameters, before, strict=True):
            towards = (parameter - old) * old < 0
            parameter.sub_(old * towards, alpha=group["lr"] * group["weight_decay"])

    with patch.object(Muon, "_muon", step):
        yield


@contextlib.contextmanager
def averaged_weights(memory: float = 0.99) -> Iterator[None]:
    """Evaluations are of a moving average of the weights; the run itself goes on with its own."""
    import torch

    from onecard.train.run import loop
    from onecard.train.run.session import validate
    from onecard.train.run.step import Stepper

    apply = Stepper.apply
    averages: dict[torch.Tensor, torch.Tensor] = {}

    @torch.no_grad()
    def averaging(self: Stepper, lr: float, step: int) -> bool:
        done = apply(self, lr, step)
        for parameter in self.model.parameters():
            if parameter in averages:
                averages[parameter].lerp_(parameter, 1 - memory)
            else:
                averages[parameter] = parameter.detach().clone()
        return done

    @torch.no_grad()
    def swapped() -> None:
        for parameter, average in averages.items():
            kept = parameter.clone()
            parameter.copy_(average)
            average.copy_(kept)

    def validating(session: Any, state: Any) -> Any:
        swapped()
        try:
            return validate(session, state)
        finally:
            swapped()

    with patch.object(Stepper, "apply", averaging), patch.object(loop, "validate", validating):
        yield


@contextlib.contextmanager
def normed_rows(memory: float = 0.95) -> Iterator[None]:
    """NorMuon (Li et al., 2025): each row of the orthogonal update over its own running size, the whole as long as before."""
    import torch

    from onecard.train.optim import muon

    plain = muon.orthogonal
    sizes: dict[torch.Size, torch.Tensor] = {}

    def normed(matrices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        update = plain(matrices, dtype)
        now = update.square().mean(-1, keepdim=True)
        kept = sizes.setdefault(now.shape, now.clone()).lerp_(now, 1 - memory)
        divided = update / (kept.sqrt() + 1e-8)
        length = torch.linalg.matrix_norm(update, keepdim=True)
        # a matrix without a gradient yet stays where it is
        return divided * (length / (torch.linalg.matrix_norm(divided, keepdim=True) + 1e-8))

    with patch.object(muon, "orthogonal", normed):
        yield


@contextlib.contextmanager
def sliding_attention(window: int = 64) -> Iterator[None]:
    """Every other layer looks back `window` positions only, as in Gemma 2 and modded-nanogpt."""
    import torch

    from onecard.model.modern import Around, Block

    plain = Block.forward

    def forward(self: Block, x: torch.Tensor, around: Around) -> torch.Tensor:
        if self.layer % 2 == 0 and around.cache is None:
            places = torch.arange(x.shape[1], device=x.device)
            back = places[:, None] - places
            around = dataclasses.replace(around, mask=(back >= 0) & (back < window))
        return plain(self, x, around)

    with patch.object(Block, "forward", forward):
        yield


@contextlib.contextmanager
def two_tokens(weight: float = 0.3) -> Iterator[None]:
    """The head is also asked for the token after the next one (Gloeckle et al., 2024), by the same weights."""
    import torch

    from onecard.model.gpt2 import GPT
    from onecard.model.modern import ModernGPT

    plain = GPT.forward

    def forward(
        self: Any, idx: torch.Tensor, targets: torch.Tensor | None = None, doc_mask: Any = None
    ) -> Any:
        if targets is None or not torch.is_grad_enabled():
            return plain(self, idx, targets, doc_mask)
        hidden = self.hidden(idx, doc_mask)
        losses = [
            self._chunked_loss(
                rows.flatten(0, 1), self.lm_head.weight, next_ones.flatten(), soft_cap=self.soft_cap
            )
            for rows, next_ones in ((hidden, targets), (hidden[:, :-1], targets[:, 1:]))
        ]
        return None, losses[0] + weight * losses[1]

    with patch.object(ModernGPT, "forward", forward):
        yield


@contextlib.contextmanager
def growing_batch(first: int = 4, last: int = 12) -> Iterator[None]:
    """`first` sequences a step in the first half of the run and `last` in the second: as many tokens as 8 throughout."""
    from onecard.train.io.loader import Loader
    from onecard.train.run.step import Stepper

    steps = next(word for word in sys.argv if word.startswith("--max_iters="))
    half = int(steps.partition("=")[2]) // 2
    made = Loader.__init__

    def init(self: Loader, *words: Any, **named: Any) -> None:
        made(self, *words, **named)
        self._part = slice(None)

    def place(self: Loader, step: int) -> int:
        return first * min(step, half) + last * max(step - half, 0)

    def windows(self: Loader, step: int) -> Any:
        return self.order.windows_at(range(place(self, step), place(self, step + 1)))

    def shares(self: Stepper, rows: Any) -> Any:
        return lambda part: len(part) / len(rows)

    with (
        patch.multiple(Loader, __init__=init, place=place, windows=windows),
        patch.object(Stepper, "_shares", shares),
    ):
        yield


IDEAS: dict[str, tuple[dict[str, Any], Patch | None]] = {
    "rate x 2": ({"learning_rate": 0.04}, None),
    "rate x 1/2": ({"learning_rate": 0.01}, None),
    "batch 4": ({"batch_size": 4}, None),
    "momentum 0.9": ({}, muon_constants(MOMENTUM_FIRST=0.9, MOMENTUM=0.9)),
    "embedding rate x 3": ({}, muon_constants(EMBEDDING_SCALE=30.0)),
    "head rate x 2": ({}, muon_constants(HEAD_SCALE=11.0)),
    "wsd, short decay": ({"schedule": "wsd", "decay_fraction": 0.3}, None),
    "weight decay 0.1": ({"weight_decay": 0.1}, None),
    "cautious weight decay 0.1": ({"weight_decay": 0.1}, cautious_decay),
    "weight averaging": ({}, averaged_weights),
    "smeared embedding": ({}, stream("smear")),
    "value embeddings": ({}, stream("values")),
    "normed rows (NorMuon)": ({}, normed_rows),
    "sliding attention, 64": ({}, sliding_attention),
    "two tokens ahead, 0.3": ({}, two_tokens),
    "batch 4, then 12": ({}, growing_batch),
}


def main() -> int:
    from onecard.cli import main as onecard

    _, make = IDEAS[sys.argv[1]]
    with make() if make else contextlib.nullcontext():
        return int(onecard(sys.argv[2:]) or 0)


if __name__ == "__main__":
    raise SystemExit(main())
