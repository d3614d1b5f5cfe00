"""Checkpoints that are whole or not there: written aside, flushed to the disk, renamed; checked when read.

    out/checkpoints/step_00000500/
        model.safetensors        parameters by nanoGPT's names (a tied head once, as transformer.wte.weight)
        optimizer.safetensors    "<parameter>/exp_avg", "/exp_avg_sq", "/step"
        state.json               step, tokens, schedule, watch, config, checksums of the two files and of itself

The same step saved again becomes step_00000500-2, and the first one goes only when the second is on the disk: at no
moment is the newest good checkpoint missing. A checkpoint is good when its bytes have their checksums, its state has the
fields of docs/formats.md and every number in it is finite; any other is passed over for the one before. No pickle is
written or read.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from onecard.errors import RunFailure
from onecard.files import remove_tree, replace, sync_folder
from onecard.model.checkpoint_state import check_state, checksum
from onecard.untrusted import read_json

SCHEMA = "onecard.checkpoint/1"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_NAME = re.compile(r"step_([0-9]{1,12})(?:-([0-9]{1,6}))?")
_LEFTOVERS = (".writing_*", ".removing_*", ".old_*")
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class CorruptError(Exception):
    """This checkpoint cannot be used; says why."""


class NotFiniteError(Exception):
    """There are NaN or infinite numbers in what was to be saved; names the tensor."""


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
    found = [p for p in (out_dir / "checkpoints").glob("step_*") if _order(p)[0] >= 0]
    return sorted((p for p in found if p.is_dir()), key=_order)


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
    parent = out_dir / "checkpoints"
    if not parent.is_dir():
        parent.mkdir(parents=True)
        sync_folder(out_dir)
    before = [folder for folder in checkpoints(out_dir) if step_of(folder) == step]
    again = f"-{_order(before[-1])[1] + 1}" if before else ""
    final = parent / f"step_{step:08d}{again}"
    aside = parent / f".writing_{final.name}_{secrets.token_hex(4)}"
    try:
        aside.mkdir()
        written = {
            name: _write_tensors(aside / name, part)
            for name, part in ((MODEL, model), (OPTIMIZER, optimizer))
        }
        whole = {"schema": SCHEMA, "step": step, **state, "files": written}
        text = json.dumps({**whole, "checksum": checksum(whole)}, indent=1, allow_nan=False)
        _write_bytes(aside / STATE, text.encode())
        sync_folder(aside)
        replace(aside, final)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_folder(parent)
    for folder in before:
        remove_tree(folder)
    return final


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of a tensor that holds NaN or an infinity; None where all numbers are finite. One wait for each device.

    A sum hands NaN and infinity on at the speed of memory; where it overflows by itself, the tensor is looked at again.
    """
    by_device: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            by_device.setdefault(tensor.device, []).append((name, tensor.detach()))
    for named in by_device.values():
        sums = torch.stack([tensor.sum(dtype=torch.float32) for _, tensor in named])
        for (name, tensor), good in zip(named, torch.isfinite(sums).tolist(), strict=True):
            if not good and not torch.isfinite(tensor).all():
                return name
    return None


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
    if state.get("schema") != SCHEMA:
        raise CorruptError(f"{STATE} is of another version ({str(state.get('schema'))[:40]!r})")
    try:
        check_state(state, (MODEL, OPTIMIZER))
    except ValueError as error:
        raise CorruptError(f"{STATE}: {error}") from None
    return state


def read_tensors(folder: Path, name: str, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """One tensor file in memory, checked against the checksum in state.json and for numbers that are not finite."""
    path = folder / name
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != state["files"][name]["sha256"]:
            raise CorruptError(f"{name} does not have its checksum")
        tensors = in_memory(path)
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise CorruptError(f"{name} cannot be read ({_short(error)})") from None
    if bad := not_finite(tensors.items()):
        raise CorruptError(f"{bad[:80]} in {name} is not finite")
    return tensors


def in_memory(path: Path) -> dict[str, Tensor]:
    """A safetensors file as tensors of their own: a mapping would keep the file from being removed on Windows."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def read(folder: Path) -> Saved:
    state = read_state(folder)
    model = read_tensors(folder, MODEL, state)
    return Saved(state, model, read_tensors(folder, OPTIMIZER, state))


def read_model(folder: Path) -> Saved:
    """The weights alone; the optimizer's file is not opened."""
    state = read_state(folder)
    return Saved(state, read_tensors(folder, MODEL, state), {})


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
    out_dir: Path, report: Callable[[str], None], read: Callable[[Path], Saved] = read
) -> Saved | None:
    """The newest checkpoint that is good; each one passed over is reported with the reason. None where there are none."""
    found = checkpoints(out_dir)
    for folder in reversed(found):
        try:
            return read(folder)
        except CorruptError as error:
            report(f"checkpoint {folder.name} is damaged: {error}; trying the one before")
    if found:
        raise RunFailure(
            f"none of the {len(found)} checkpoints in {out_dir / 'checkpoints'} can be used",
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


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """A safetensors file (length of header, header, bytes), hashed as it is written; its size and checksum.

    The library's own writer neither flushes to the disk nor hashes, and would need a second pass over gigabytes.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    size = 0
    with path.open("wb") as file:
        for piece in (struct.pack("<Q", len(text)) + text, *map(_bytes_of, tensors.values())):
            digest.update(piece)
            size += file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"sha256": digest.hexdigest(), "bytes": size}


def _bytes_of(tensor: Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type] # numpy knows no bf16; bytes are bytes


def _write_bytes(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _short(error: Exception) -> str:
    """One line of a library's message."""
    lines = str(getattr(error, "strerror", None) or error).splitlines()
    return lines[0][:160] if lines else type(error).__name__
