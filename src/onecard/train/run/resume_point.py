"""The newest good checkpoint that a run continues from: whole in each process, or the rows that each keeps of it.

Processes that share a model out agree on the checkpoint: one that is damaged for any of them is passed over by all. Each
hashes some of its files.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from onecard.config import RunConfig
from onecard.model import checkpoint
from onecard.model.build import make_model
from onecard.model.tensor_file import Rows
from onecard.train.optim.sharded_rows import Slices
from onecard.train.run.sharding import cards_of_machine
from onecard.train.run.workers import Workers


def newest_good(
    folder: Path, config: RunConfig, workers: Workers, report: Callable[[str], None]
) -> checkpoint.Saved | None:
    if not workers.shards(config):
        return checkpoint.newest_good(folder, report)
    cards = cards_of_machine(workers)

    def read(path: Path) -> checkpoint.Saved:
        """This process's rows."""
        state = checkpoint.read_state(path)
        before = RunConfig.from_values(state["config"])
        with torch.device("meta"):
            named = make_model(before).named_parameters()
            shapes = {name: tuple(parameter.shape) for name, parameter in named}
        slices = Slices.cut(shapes, workers.rank % cards, cards)

        def cut(key: str) -> Rows | None:
            span = slices.span(key, before.state_bits)
            return None if span is None else (span.start, span.stop)

        def checks(number: int) -> bool:
            return number % workers.processes == workers.rank

        parts = (
            checkpoint.read_tensors(path, name, state, cut, checks)
            for name in (checkpoint.MODEL, checkpoint.OPTIMIZER)
        )
        return checkpoint.Saved(state, *parts)

    return checkpoint.newest_good(
        folder,
        report,
        read,
        named=workers.name_from_first,
        agreed=lambda good: not workers.any(not good)[0],
    )
