"""The export itself: checked, written aside, renamed. Never half a folder.

>>> written = export(Path("out"), to="hf", target=Path("my-model"))      # doctest: +SKIP
>>> written.path, written.bytes                                           # doctest: +SKIP
(PosixPath('my-model'), 497774208)
"""

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from onecard.errors import RunFailure, UserError
from onecard.export import gguf_file, huggingface, nanogpt_checkpoint
from onecard.export.model_card import model_card
from onecard.export.trained import Trained, load_trained
from onecard.files import replace_tree, restore_tree, sync_files
from onecard.planner.params import params
from onecard.runs.eval_results import kept
from onecard.runs.exports import note_export
from onecard.units import show_bytes

FORMATS = ("hf", "gguf", "nanogpt")
DTYPES = {
    "hf": ("float32", "float16", "bfloat16"),
    "gguf": gguf_file.KINDS,
    "nanogpt": ("float32",),
}
_BYTES_PER_PARAMETER = {"hf": 4, "gguf": 4, "nanogpt": 12}  # at most: nanoGPT's has both moments


@dataclass(frozen=True)
class Exported:
    path: Path
    bytes: int
    step: int
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


def export(
    source: Path,
    to: str,
    target: Path,
    *,
    dtype: str | None = None,
    force: bool = False,
    dataset: str | None = None,
) -> Exported:
    """Write the model of a run (or one checkpoint) for another program into the folder `target`."""
    kind = dtype or DTYPES[to][0 if to != "gguf" else 1]
    if kind not in DTYPES[to]:
        raise UserError(
            f"{to} has no number format {kind!r}", hint=f"one of {', '.join(DTYPES[to])}"
        )
    restore_tree(target)
    if target.exists() and not force:
        raise UserError(
            f"{target} exists already", hint="name another, or replace it with the option `force`"
        )
    if target.exists() and not _ours(target):
        raise UserError(
            f"{target} is not an exported model, so it is not replaced", hint="name another"
        )
    trained = load_trained(source, dataset)
    _check_room(trained, to, target)
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        aside.mkdir(parents=True)
        notes = _fill(aside, trained, to, kind)
        sync_files(aside)
        replace_tree(aside, target)
    except OSError as error:
        raise RunFailure(
            f"{target} could not be written: {error.strerror or error}",
            hint="free some disk or name another folder",
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    note_export(trained.run_folder, to, target, trained.step)
    files = sorted(path for path in target.iterdir() if path.is_file())
    size = sum(path.stat().st_size for path in files)
    return Exported(target, size, trained.step, tuple(path.name for path in files), tuple(notes))


def _fill(folder: Path, trained: Trained, to: str, kind: str) -> list[str]:
    notes = []
    if to == "hf":
        huggingface.write_folder(folder, trained, kind)
    elif to == "gguf":
        gguf_file.write_gguf(folder / f"model-{kind}.gguf", trained, kind)
        modelfile = gguf_file.modelfile(f"model-{kind}.gguf", trained.config.block_size)
        (folder / "Modelfile").write_text(modelfile, encoding="utf-8")
    else:
        moments_kept = nanogpt_checkpoint.write_checkpoint(folder / "ckpt.pt", trained)
        if not moments_kept:
            notes.append("the optimizer begins fresh: its moments are not AdamW's, or not there")
    card = model_card(trained, to, kept(trained.run_folder))
    (folder / "README.md").write_text(card, encoding="utf-8")
    return notes


def _ours(target: Path) -> bool:
    """Whether an earlier export wrote this folder: its card says so, and nothing but files is in it."""
    try:
        card = (target / "README.md").read_text(encoding="utf-8", errors="replace")
        return "Made with onecard" in card and all(p.is_file() for p in target.iterdir())
    except OSError:
        return False


def _check_room(trained: Trained, to: str, target: Path) -> None:
    needed = _BYTES_PER_PARAMETER[to] * params(trained.config.shape).total
    existing = next(p for p in target.absolute().parents if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise UserError(
            f"{show_bytes(free)} free on the disk of {target}, and the export takes "
            f"{show_bytes(needed)}",
            hint="free some space or name another folder",
        )
