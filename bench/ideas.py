"""Changes to the modern recipe that are screened by lengths.py, and `onecard` with one of them in force.

    python bench/ideas.py "momentum 0.9" train --recipe=modern …

An idea is a set of config keys, a patch of the package as in ablation.py, or both. Left to write: a batch that grows along
the run, and targets of several tokens.
"""

import contextlib
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
}


def main() -> int:
    from onecard.cli import main as onecard

    _, make = IDEAS[sys.argv[1]]
    with make() if make else contextlib.nullcontext():
        return int(onecard(sys.argv[2:]) or 0)


if __name__ == "__main__":
    raise SystemExit(main())
