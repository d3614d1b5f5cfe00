"""Checkpoints that are whole or not there: written aside, flushed to the disk, renamed; checked when read.

    out/checkpoints/step_00000500/
        model.safetensors        parameters by nanoGPT's names (a tied head once, as transformer.wte.weight)
        optimizer.safetensors    "<parameter>/exp_avg", "/exp_avg_sq", "/step"
        state.json               step, tokens, schedule, watch, config, checksums of the two files and of itself

No pickle is written or read. A checkpoint whose bytes do not have their checksum is passed over for the one before.
"""

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from onecard.errors import RunFailure

SCHEMA = "onecard.checkpoint/1"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
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
    """This checkpoint cannot be trusted; says why."""


def folder_of(out_dir: Path, step: int) -> Path:
    return out_dir / "checkpoints" / f"step_{step:08d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def checkpoints(out_dir: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    found = [
        p for p in (out_dir / "checkpoints").glob("step_*") if p.name[5:].isdecimal() and p.is_dir()
    ]
    return sorted(found, key=step_of)


def save(
    out_dir: Path,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write one checkpoint; raises OSError (the disk is full, say) and leaves nothing half done."""
    final = folder_of(out_dir, step)
    aside = final.with_name(f".writing_{final.name}_{os.getpid()}")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        files = {
            name: _write_tensors(aside / name, part)
            for name, part in ((MODEL, model), (OPTIMIZER, optimizer))
        }
        whole = {"schema": SCHEMA, "step": step, **state, "files": files}
        _write_bytes(
            aside / STATE, json.dumps({**whole, "checksum": _checksum(whole)}, indent=1).encode()
        )
        _sync_folder(aside)
        if (
            final.exists()
        ):  # the same step saved again (after a roll-back): the new one takes its place
            old = final.with_name(f".old_{final.name}_{os.getpid()}")
            os.replace(final, old)
            os.replace(aside, final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(aside, final)
        _sync_folder(final.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return final


def read_state(folder: Path) -> dict[str, Any]:
    """state.json, checked against its own checksum."""
    try:
        state = json.loads((folder / STATE).read_bytes())
        checksum = state.pop("checksum")
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise CorruptError(f"{STATE} cannot be read ({type(error).__name__})") from None
    if checksum != _checksum(state):
        raise CorruptError(f"{STATE} does not have its checksum")
    if state.get("schema") != SCHEMA:
        raise CorruptError(f"{STATE} is of another version ({state.get('schema')!r})")
    return state


def read_tensors(folder: Path, name: str, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """One tensor file, checked against the checksum in state.json."""
    path = folder / name
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != state["files"][name]["sha256"]:
            raise CorruptError(f"{name} does not have its checksum")
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CorruptError(f"{name} cannot be read ({error})") from None


def newest_good(
    out_dir: Path, say: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]] | None:
    """(state, model, optimizer) of the newest checkpoint that is whole; those passed over are told through `say`."""
    found = checkpoints(out_dir)
    for folder in reversed(found):
        try:
            state = read_state(folder)
            return state, read_tensors(folder, MODEL, state), read_tensors(folder, OPTIMIZER, state)
        except CorruptError as error:
            say(f"checkpoint {folder.name} is damaged: {error}; trying the one before")
    if found:
        raise RunFailure(
            f"none of the {len(found)} checkpoints in {out_dir / 'checkpoints'} can be read",
            hint="start again in another out_dir, or with init_from naming a model you have",
        )
    return None


def prune(out_dir: Path, keep: int) -> None:
    """Leave the newest `keep` and the one with the best validation loss; clear what a kill left half written."""
    found = checkpoints(out_dir)
    losses = {}
    for folder in found:
        try:
            loss = read_state(folder).get("val_loss")
        except CorruptError:
            continue
        if loss is not None:
            losses[folder] = loss
    kept = {*found[-keep:], *([min(losses, key=losses.__getitem__)] if losses else [])}
    for folder in found:
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)
    for left in [
        *(out_dir / "checkpoints").glob(".writing_*"),
        *(out_dir / "checkpoints").glob(".old_*"),
    ]:
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


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut; Windows has no such call for folders and orders renames itself."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checksum(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
