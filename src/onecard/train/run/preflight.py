"""Before the run: everything that will be needed later is opened: data, tokeniser, sampler, disk. Says what it changed.

Each check gives a sentence; what cannot be fixed raises UserError before anything is written.
"""

import contextlib
import errno
import os
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from onecard.config import RunConfig
from onecard.config.model_rules import GPT2_VOCAB
from onecard.data import Dataset
from onecard.errors import UserError
from onecard.facts.here import cpu
from onecard.model.generate import generate
from onecard.model.gpt2 import GPT
from onecard.model.sampling import Sampling
from onecard.planner.memory.step import host_bytes
from onecard.planner.workload import Workload
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
    """Both splits there and long enough; every file opened, so that a missing or damaged one shows now."""
    for name in ("train", "val"):
        split = data.splits.get(name)
        if split is None:
            raise UserError(
                f"the data set {config.dataset!r} has no {name} split",
                hint=f"`onecard data {config.dataset}` prepares both",
            )
        windows_of(split, config.block_size, {"train": "training", "val": "validation"}[name])
        start = 0
        for shard in split.shards:  # the first and last token of every file
            if shard.tokens:
                split.read(start, 1)
                split.read(start + shard.tokens - 1, 1)
            start += shard.tokens
    if config.mask_documents and data.eot is None:
        raise UserError(
            "mask_documents needs an end-of-text token, and this data set has none",
            hint="leave mask_documents at False",
        )
    train, steps = data.splits["train"].tokens, config.max_iters
    flight.say(
        f"data: {show_count(train)} training tokens, {config.tokens_per_step * steps / train:.2f} epochs"
    )


def check_tokenizer(data: Dataset) -> None:
    """Opened now, for the first sample needs it in hours; every id is decoded once and must be writable as UTF-8."""
    tokenizer = data.tokenizer
    if tokenizer is None:
        return
    try:
        tokenizer.decode(list(range(tokenizer.vocab_size))).encode("utf-8")
    except Exception as error:  # whatever a damaged table makes of it
        raise UserError(
            f"the tokeniser of the data set {data.path} cannot be used: {type(error).__name__}: {str(error)[:120]}",
            hint="prepare the data again, or restore its tokeniser",
        ) from None


def check_sampler(model: GPT, data: Dataset) -> None:
    """One token, drawn as a sample in the run draws it."""
    tokenizer = data.tokenizer
    if tokenizer is not None:
        start = tokenizer.eot if tokenizer.eot is not None else 0
        few = Sampling(top_k=200)
        for (token,) in generate(model, [[start]], 1, few, vocab_size=tokenizer.vocab_size):
            tokenizer.decode([token])


def check_disk(config: RunConfig, parameters: int, flight: Preflight) -> None:
    """A checkpoint's size taken on the disk of out_dir and given back; room for those that are kept is only reported."""
    one = checkpoint_bytes(parameters)
    folder = Path(config.out_dir)
    try:
        _reserve(folder / "checkpoints", one)
    except OSError as error:
        raise UserError(
            f"a checkpoint of {show_bytes(one)} cannot be written to {folder}: {error.strerror or error}",
            hint="free some space or name another out_dir",
        ) from None
    free = shutil.disk_usage(folder).free
    needed = one * (config.keep_checkpoints + 2)
    if free < needed:
        flight.say(
            f"disk: {show_bytes(free)} free, {show_bytes(needed)} needed for {config.keep_checkpoints} "
            "checkpoints and the best: it may run full, and the run would continue without new ones"
        )


def check_host(config: RunConfig, dtype: str) -> None:
    """What is to be kept in the computer's memory must fit there."""
    wanted, there = host_bytes(Workload.of(config, dtype)), cpu().memory_bytes
    if wanted > there:
        raise UserError(
            f"{show_bytes(wanted)} are to be kept in the computer's memory, and it has {show_bytes(there)}",
            hint="optimizer_state = '8bit' needs less; offload_optimizer = False keeps all on the card",
        )


def checkpoint_bytes(parameters: int) -> int:
    """Weights and two moments in fp32."""
    return 12 * parameters


def _reserve(folder: Path, size: int) -> None:
    """Blocks for `size` bytes, really allocated where the file system can: quotas and file limits show now.

    The weights and the moments are two files, of which the second is two thirds.
    """
    made = not folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".writing_trial_{secrets.token_hex(4)}"
    aside.mkdir()
    try:
        if (free := shutil.disk_usage(folder).free) < size:
            raise OSError(errno.ENOSPC, f"{show_bytes(free)} are free")
        for name, part in (("model", size // 3), ("optimizer", size - size // 3)):
            with open(aside / name, "wb") as file:
                _allocate(file.fileno(), part)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _allocate(handle: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, 0, max(size, 1))
            return
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
    os.ftruncate(handle, size)  # macOS, Windows, and file systems that allocate as they are written
