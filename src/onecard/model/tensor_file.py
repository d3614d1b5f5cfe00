"""Safetensors files: written with their checksum in one pass and flushed to the disk; read into memory, or some rows of them."""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from onecard.model.mapped import report_if_cut_short

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

Rows = tuple[int, int]  # from, to: of a tensor's first dimension
Cut = Callable[[str], Rows | None]  # which rows of a tensor are wanted, by its name; None: all


class NotFiniteError(Exception):
    """There are NaN or infinite numbers in what was to be saved; names the tensor."""


def everything(name: str) -> None:
    """The Cut that wants all of every tensor."""
    return


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
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


def write_bytes(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def checksum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def in_memory(path: Path, cut: Cut = everything) -> dict[str, Tensor]:
    """A safetensors file as tensors of their own: a mapping would keep the file from being removed on Windows."""
    with report_if_cut_short(path), safe_open(path, framework="pt") as file:
        return {name: _rows(file, name, cut(name)) for name in file.keys()}  # noqa: SIM118


def in_memory_parts(
    paths: Iterable[Path], tensors: Mapping[str, Mapping[str, Any]], cut: Cut
) -> dict[str, Tensor]:
    """Tensors put together from files that hold some rows each, as `tensors` says: the whole shape, and where each file's
    rows start. What is not in it is whole in one of the files. ValueError where they do not fit together."""
    parts: dict[str, list[Tensor]] = {}
    reached: dict[str, int] = {}
    for number, path in enumerate(paths):
        with report_if_cut_short(path), safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                known = tensors.get(name)
                if known is None:
                    parts[name] = [_rows(file, name, cut(name))]
                    continue
                rows = file.get_slice(name).get_shape()[0]
                start = known["starts"][number]
                if start != reached.get(name, 0):
                    raise ValueError(f"rows of {name[:80]} are missing")
                reached[name] = start + rows
                first, last = cut(name) or (0, known["shape"][0])
                here = max(first, start) - start, max(min(last, start + rows) - start, 0)
                if here[0] < here[1] or name not in parts:
                    parts.setdefault(name, []).append(_rows(file, name, here))
    whole = {
        name: torch.cat(pieces) if len(pieces) > 1 else pieces[0] for name, pieces in parts.items()
    }
    for name, known in tensors.items():
        if name in whole and (
            reached[name] != known["shape"][0] or list(whole[name].shape[1:]) != known["shape"][1:]
        ):
            raise ValueError(f"{name[:80]} is not of its shape")
    return whole


def _rows(file: Any, name: str, rows: Rows | None) -> Tensor:
    if rows is None:
        tensor: Tensor = file.get_tensor(name)
    elif rows[0] >= rows[1]:
        tensor = file.get_tensor(name)[:0]
    else:
        tensor = file.get_slice(name)[rows[0] : rows[1]]
    return tensor.clone()


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
