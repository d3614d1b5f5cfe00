"""Before the run: is the data there, is there room for checkpoints. Says what it changed.

Each check gives a sentence; what cannot be mended raises UserError before anything is written.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from onecard.config import RunConfig
from onecard.config.model_rules import GPT2_VOCAB
from onecard.data import Dataset
from onecard.errors import UserError
from onecard.train.io.loader import windows_of
from onecard.units import show_bytes, show_count


@dataclass
class Preflight:
    """What was found and changed; `lines` are shown to the user and kept in the log."""

    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)


def resolve_vocab(config: RunConfig, data: Dataset) -> RunConfig:
    """vocab_size None becomes the data's, padded as the planner pads it; GPT-2's where the data does not say."""
    known = data.vocab_size
    if config.vocab_size is None:
        return config.for_vocabulary(known or GPT2_VOCAB)
    if known is not None and config.vocab_size < known:
        raise UserError(
            f"vocab_size = {config.vocab_size} is smaller than the data set's {known}",
            hint="leave vocab_size out and the data's is used",
        )
    return config


def check_data(config: RunConfig, data: Dataset, flight: Preflight) -> None:
    """Both splits there and long enough; the first and last window read, so that a missing shard shows now."""
    for name in ("train", "val"):
        split = data.splits.get(name)
        if split is None:
            raise UserError(
                f"the data set {config.dataset!r} has no {name} split",
                hint=f"`onecard data {config.dataset}` prepares both",
            )
        windows = windows_of(
            split, config.block_size, {"train": "training", "val": "validation"}[name]
        )
        for start in (0, (windows - 1) * config.block_size):
            split.read(start, config.block_size + 1)
    if config.mask_documents and data.eot is None:
        raise UserError(
            "mask_documents needs an end-of-text token, and this data set has none",
            hint="leave mask_documents at False",
        )
    train, steps = data.splits["train"].tokens, config.max_iters
    flight.say(
        f"data: {show_count(train)} training tokens, {config.tokens_per_step * steps / train:.2f} epochs"
    )


def check_disk(config: RunConfig, parameters: int, folder: Path, flight: Preflight) -> None:
    """Room for the checkpoints that are kept and the one being written: weights and two moments in fp32."""
    one = 12 * parameters
    needed = one * (config.keep_checkpoints + 2)
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < one:
        raise UserError(
            f"{show_bytes(free)} free on the disk of {folder}, and one checkpoint takes {show_bytes(one)}",
            hint="free some space or name another out_dir",
        )
    if free < needed:
        flight.say(
            f"disk: {show_bytes(free)} free, {show_bytes(needed)} needed for {config.keep_checkpoints} "
            "checkpoints and the best: it may run full, and the run would go on without new ones"
        )
