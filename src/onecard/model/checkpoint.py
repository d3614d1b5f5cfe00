"""Checkpoints that are whole or not there: written aside, flushed to the disk, renamed; checked when read.

    out/checkpoints/step_00000500/
        model.safetensors        parameters by nanoGPT's names (a tied head once, as transformer.wte.weight)
        optimizer.safetensors    "<parameter>/exp_avg", "/exp_avg_sq", "/step"
        state.json               step, tokens, schedule, watch, config, checksums of the two files and of itself

A model that is sharded over processes is saved by all of them, each its part: model-00001-of-00004.safetensors and
so on, and state.json says which rows of which tensor are where. Either form is read whole, or some rows of it.

The same step saved again becomes step_00000500-2, and the first one goes only when the second is on the disk: at no
moment is the newest good checkpoint missing. A checkpoint is good when its bytes have their checksums, its state has the
fields of docs/formats.md and every number in it is finite; any other is passed over for the one before. No pickle is
written or read.
"""

import json
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from torch import Tensor, nn

from onecard.errors import RunFailure, UserError
from onecard.files import remove_tree, replace, sync_folder
from onecard.model.checkpoint_state import check_parts, check_state, checksum
from onecard.model.tensor_file import (
    Cut,
    NotFiniteError,
    checksum_of,
    everything,
    in_memory,
    in_memory_parts,
    not_finite,
    write_bytes,
    write_tensors,
)
from onecard.untrusted import read_json

SCHEMA, SCHEMA_PARTS = "onecard.checkpoint/1", "onecard.checkpoint/2"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_NAME = re.compile(r"step_([0-9]{1,12})(?:-([0-9]{1,6}))?")
_LEFTOVERS = (".writing_*", ".removing_*", ".old_*")


class CorruptError(Exception):
    """This checkpoint cannot be used; says why."""


class Saved(NamedTuple):
    """A good checkpoint, in memory: no file stays open or mapped."""

    state: dict[str, Any]
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def step_of(folder: Path) -> int:
    return _order(folder)[0]


def _order(folder: Path) -> tuple[int, int]:
    """(step, how often it has been saved); (-1, 0) for a folder that is no checkpoint's."""
    match = _NAME.fullmatch(folder.name)
    return (int(match[1]), int(match[2] or 1)) if match else (-1, 0)


def checkpoints(out_dir: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    folders = [p for p in (out_dir / "checkpoints").glob("step_*") if _order(p)[0] >= 0]
    return sorted((p for p in folders if p.is_dir()), key=_order)


def save(
    out_dir: Path,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write one checkpoint; raises OSError (the disk is full, say) and leaves nothing half done.

    NotFiniteError, with nothing written, where a weight or a moment is NaN or infinite.
    """
    if bad := not_finite((*model.items(), *optimizer.items())):
        raise NotFiniteError(bad)
    writing = Writing.begin(out_dir, step)
    try:
        files = {
            name: write_tensors(writing.aside / name, part)
            for name, part in ((MODEL, model), (OPTIMIZER, optimizer))
        }
        return writing.finish({"schema": SCHEMA, "step": step, **state, "files": files})
    except BaseException:
        writing.give_up()
        raise


class Writing(NamedTuple):
    """A checkpoint that is being written aside; `finish` makes it visible, whole."""

    aside: Path
    final: Path
    before: list[Path]  # of the same step

    @classmethod
    def begin(cls, out_dir: Path, step: int) -> "Writing":
        parent = out_dir / "checkpoints"
        if not parent.is_dir():
            parent.mkdir(parents=True)
            sync_folder(out_dir)
        before = [folder for folder in checkpoints(out_dir) if step_of(folder) == step]
        again = f"-{_order(before[-1])[1] + 1}" if before else ""
        final = parent / f"step_{step:08d}{again}"
        aside = parent / f".writing_{final.name}_{secrets.token_hex(4)}"
        aside.mkdir()
        return cls(aside, final, before)

    def finish(self, state: Mapping[str, Any]) -> Path:
        """When all tensor files are on the disk: state.json, then the name."""
        text = json.dumps({**state, "checksum": checksum(state)}, indent=1, allow_nan=False)
        write_bytes(self.aside / STATE, text.encode())
        sync_folder(self.aside)
        replace(self.aside, self.final)
        sync_folder(self.final.parent)
        for folder in self.before:
            remove_tree(folder)
        return self.final

    def give_up(self) -> None:
        shutil.rmtree(self.aside, ignore_errors=True)


def read_state(folder: Path) -> dict[str, Any]:
    """state.json, checked against its own checksum and field by field."""
    try:
        state = read_json(folder / STATE)
    except (OSError, ValueError) as error:
        raise CorruptError(f"{STATE} cannot be read ({_short(error)})") from None
    if not isinstance(state, dict) or not isinstance(state.get("checksum"), str):
        raise CorruptError(f"{STATE} has no checksum")
    if state.pop("checksum") != checksum(state):
        raise CorruptError(f"{STATE} does not have its checksum")
    if state.get("schema") not in (SCHEMA, SCHEMA_PARTS):
        raise CorruptError(f"{STATE} is of another version ({str(state.get('schema'))[:40]!r})")
    try:
        if state["schema"] == SCHEMA_PARTS:
            check_parts(state)
        check_state(state, (*_files(MODEL, state), *_files(OPTIMIZER, state)))
    except ValueError as error:
        raise CorruptError(f"{STATE}: {error}") from None
    return state


def part_name(name: str, index: int, count: int) -> str:
    """
    >>> part_name("model.safetensors", 0, 4)
    'model-00001-of-00004.safetensors'
    """
    return f"{name.removesuffix('.safetensors')}-{index + 1:05d}-of-{count:05d}.safetensors"


def _files(name: str, state: Mapping[str, Any]) -> list[str]:
    """The files that hold MODEL or OPTIMIZER."""
    if state["schema"] == SCHEMA:
        return [name]
    return [part_name(name, index, state["parts"]) for index in range(state["parts"])]


def read_tensors(
    folder: Path,
    name: str,
    state: Mapping[str, Any],
    cut: Cut = everything,
    checks: Callable[[int], bool] = lambda number: True,
) -> dict[str, Tensor]:
    """MODEL or OPTIMIZER in memory, checked against the checksums in state.json and for numbers that are not finite.

    `cut` says which rows are wanted; `checks` which of the files by number are to be hashed, where others do the rest.
    """
    files = _files(name, state)
    try:
        for number, file in enumerate(files):
            if checks(number) and checksum_of(folder / file) != state["files"][file]["sha256"]:
                raise CorruptError(f"{file} does not have its checksum")
        if state["schema"] == SCHEMA:
            tensors = in_memory(folder / name, cut)
        else:
            tensors = in_memory_parts([folder / file for file in files], state["tensors"], cut)
    except (OSError, SafetensorError, ValueError, RuntimeError, TypeError, LookupError) as error:
        raise CorruptError(f"{name} cannot be read ({_short(error)})") from None
    if bad := not_finite(tensors.items()):
        raise CorruptError(f"{bad[:80]} in {name} is not finite")
    return tensors


def read(folder: Path) -> Saved:
    state = read_state(folder)
    model = read_tensors(folder, MODEL, state)
    return Saved(state, model, read_tensors(folder, OPTIMIZER, state))


def read_model(folder: Path) -> Saved:
    """The weights alone; the optimizer's file is not opened."""
    state = read_state(folder)
    return Saved(state, read_tensors(folder, MODEL, state), {})


def read_named(source: Path, report: Callable[[str], None]) -> Saved | None:
    """The weights of the checkpoint that a folder is, or of a run's newest good one; None where it holds neither."""
    if not (source / STATE).is_file():
        return newest_good(source, report, read_model)
    try:
        return read_model(source)
    except CorruptError as error:
        raise UserError(
            f"the checkpoint {source} is damaged: {error}",
            hint="name its run's folder, and the newest good checkpoint is used",
        ) from None


def misfit(model: nn.Module, tensors: Mapping[str, Tensor]) -> str | None:
    """What keeps the tensors from being this model's parameters, by name and shape; None where they fit."""
    parameters = dict(model.named_parameters())
    for name in sorted(parameters.keys() ^ tensors.keys()):
        return f"{name[:80]} is {'missing' if name in parameters else 'unknown'}"
    for name, tensor in tensors.items():
        if tensor.shape != parameters[name].shape or not tensor.is_floating_point():
            return f"{name} is {list(tensor.shape)}, expected {list(parameters[name].shape)}"
    return None


def newest_good(
    out_dir: Path,
    report: Callable[[str], None],
    read: Callable[[Path], Saved] = read,
    named: Callable[[str], str] = str,
    agreed: Callable[[bool], bool] = bool,
) -> Saved | None:
    """The newest checkpoint that is good; each one passed over is reported with the reason. None where there are none.

    Processes that read parts of it go through the first one's list (`named`) and pass over what is not good for all
    (`agreed`).
    """
    names, tried = [folder.name for folder in reversed(checkpoints(out_dir))], 0
    while name := named(names.pop(0) if names else ""):
        tried += 1
        saved, why = None, "as another process found"
        try:
            saved = read(out_dir / "checkpoints" / name)
        except CorruptError as error:
            why = str(error)
        if agreed(saved is not None):
            return saved
        report(f"checkpoint {name} is damaged: {why}; trying the one before")
    if tried:
        raise RunFailure(
            f"none of the {tried} checkpoints in {out_dir / 'checkpoints'} can be used",
            hint="start again in another out_dir, or with init_from naming a model you have",
        )
    return None


def prune(out_dir: Path, keep: int, newest_step: int | None = None) -> None:
    """Leave the newest `keep` and the one with the best validation loss; clear what a kill left half written.

    `newest_step` is the step just saved. What lies beyond it was passed over as damaged when the run was resumed from an
    earlier step: it neither counts among the newest nor is it removed before the run has come past it again.
    """
    losses: dict[Path, float | None] = {}
    for folder in checkpoints(out_dir):
        if newest_step is not None and step_of(folder) > newest_step:
            continue
        try:
            losses[folder] = read_state(folder).get("val_loss")
        except CorruptError:
            losses[folder] = None
    evaluated = {folder: loss for folder, loss in losses.items() if loss is not None}
    best = [min(evaluated, key=evaluated.__getitem__)] if evaluated else []
    for folder in {*losses} - {*list(losses)[-keep:], *best}:
        remove_tree(folder)
    for pattern in _LEFTOVERS:
        for left in (out_dir / "checkpoints").glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def _short(error: Exception) -> str:
    """One line of a library's message."""
    lines = str(getattr(error, "strerror", None) or error).splitlines()
    return lines[0][:160] if lines else type(error).__name__
