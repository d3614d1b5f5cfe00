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
from onecard.facts.here import computer_bytes
from onecard.model.generate import Sampling, generate
from onecard.model.gpt2 import GPT
from onecard.planner.memory import SYSTEM_BYTES
from onecard.planner.memory.step import checkpoint_bytes, host_bytes
from onecard.planner.workload import Workload
from onecard.torchrun import local_process_count
from onecard.train.io.loader import windows_of
from onecard.units import show_bytes, show_count


@dataclass
class Preflight:
    """What was found and changed; `lines` are shown to the user and kept in the log, `routine` ones not with --quiet."""

    lines: list[str] = field(default_factory=list)
    routine: set[str] = field(default_factory=set)

    def say(self, line: str, routine: bool = False) -> None:
        self.lines.append(line)
        if routine:
            self.routine.add(line)


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
        f"data: {show_count(train)} training tokens, {config.tokens_per_step * steps / train:.2f} epochs",
        routine=True,
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


def check_disk(config: RunConfig, flight: Preflight) -> None:
    """A checkpoint's size taken on the disk of out_dir and given back; room for those that are kept is only reported."""
    files = checkpoint_bytes(Workload.of(config, "float32"))
    one, folder = sum(files), Path(config.out_dir)
    try:
        _reserve(folder / "checkpoints", files)
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


def check_rows(config: RunConfig, processes: int) -> None:
    rows = config.sequences_per_step
    if processes > rows:
        raise UserError(
            f"{processes} processes are more than the {rows} rows of a step",
            hint="fewer processes, or a larger batch_size or gradient_accumulation_steps",
        )


def check_host(config: RunConfig, processes: int) -> None:
    """What all processes of this machine are to keep in the computer's memory must fit there."""
    here = local_process_count(otherwise=processes)
    work = Workload.of(config, "bfloat16", processes, max(1, processes // here))
    wanted, there = host_bytes(work) * here, computer_bytes()
    if wanted + SYSTEM_BYTES > there:
        raise UserError(
            f"{show_bytes(wanted)} are to be kept in the computer's memory, and it has {show_bytes(there)}, "
            f"{show_bytes(SYSTEM_BYTES)} of them for its system",
            hint="optimizer_state = '8bit' needs less; offload_optimizer = False keeps all on the card",
        )


def _reserve(folder: Path, sizes: tuple[int, ...]) -> None:
    """Blocks for files of these sizes, really allocated where the file system can: quotas and file limits show now."""
    made = not folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".writing_trial_{secrets.token_hex(4)}"
    aside.mkdir()
    try:
        if (free := shutil.disk_usage(folder).free) < sum(sizes):
            raise OSError(errno.ENOSPC, f"{show_bytes(free)} are free")
        for number, size in enumerate(sizes):
            with open(aside / str(number), "wb") as file:
                _allocate(file.fileno(), size)
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
