"""The last steps: the inputs' digests, shards moved into place, an old set replaced, the manifest written last."""

import hashlib
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onecard.data.preparation.request import Plan
from onecard.data.preparation.stages import Made
from onecard.data.preparation.work_folder import REPLACED, WorkFolder
from onecard.data.read.manifest import (
    MANIFEST,
    TOKENIZER_FILE,
    Manifest,
    bytes_per_token,
    checked_manifest,
    write_manifest,
)
from onecard.data.read.shard_files import file_sha256
from onecard.data.sources.source import Source, content_digest, state_digest
from onecard.data.tokenizers.kinds import Tokenizer
from onecard.errors import RunFailure, UserError
from onecard.files import replace, sync_folder, write_bytes, write_json
from onecard.untrusted import read_json
from onecard.version import __version__

_MOVED = "moved.json"  # beside the replaced manifest: files that an attempt may have moved in


class InputDigests:
    """Digests of the sources' content, worked out beside the tokenising (hashing does not hold Python's lock)."""

    def __init__(self, sources: list[Source]):
        self._sources = sources
        self._digests: list[str] = []
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._digests = [content_digest(source) for source in self._sources]
        except OSError as error:
            self._error = error

    def entries(self) -> list[dict[str, Any]]:
        """The manifest's `sources`."""
        self._thread.join()
        if self._error is not None:
            raise RunFailure(
                f"{self._error.filename} cannot be read: {self._error.strerror}",
                hint="the same command continues once it is back",
            )
        return [
            {
                "uri": source.uri,
                "revision": source.revision,
                "licence": source.licence,
                "files": digest,
                "state": state_digest(source),
            }
            for source, digest in zip(self._sources, self._digests, strict=True)
        ]


def finish(
    plan: Plan, work: WorkFolder, sources: list[dict[str, Any]], tokenizer: Tokenizer, made: Made
) -> Manifest:
    """Move the shards in and write the manifest last. Until then a reader sees the old set, or an unfinished folder."""
    folder, shards = work.out, work.path / "shards"
    validation: dict[str, Any] = {}
    if made.val_runs is not None and "val" in made.splits:
        name = f"{plan.name}_val_sources.bin"
        write_bytes(shards / name, made.val_runs)
        validation = {"file": name, "sha256": hashlib.sha256(made.val_runs).hexdigest()}
    manifest = _manifest(plan, sources, tokenizer, made, validation)
    entries = {
        entry["file"]: entry["sha256"]
        for split in made.splits.values()
        for entry in split["shards"]
    }
    if validation:
        entries[validation["file"]] = validation["sha256"]
    content = tokenizer.file_content()
    if content is not None:
        entries[TOKENIZER_FILE] = str(tokenizer.describe()["sha256"])
        write_bytes(shards / TOKENIZER_FILE, content)
    _move_in(work, entries)
    write_manifest(work.path / MANIFEST, manifest)
    replace(work.path / MANIFEST, folder / MANIFEST)
    sync_folder(folder)
    return manifest


def _manifest(
    plan: Plan,
    sources: list[dict[str, Any]],
    tokenizer: Tokenizer,
    made: Made,
    validation: dict[str, Any],
) -> Manifest:
    return Manifest(
        name=plan.name,
        sources=[
            {**entry, **given, **_how(plan, number)}
            for number, (entry, given) in enumerate(
                zip(sources, made.sources or [{}] * len(sources), strict=True)
            )
        ],
        tokenizer=tokenizer.describe(),
        splits=made.splits,
        bytes_per_token=bytes_per_token(made.splits),
        seed=plan.options.seed,
        val_fraction=plan.val_fraction,
        filters={
            "column": plan.options.column,
            "min_chars": plan.options.min_chars,
            "language": plan.options.language,
            "min_language_score": plan.options.min_language_score,
            "dedup": plan.options.dedup,
            "tokens": plan.options.tokens,
        },
        skipped=made.skipped,
        duplicates=made.duplicates,
        validation=validation,
        order="as given"
        if plan.sources[0].pretokenized
        else "running text"
        if plan.running
        else "shuffled",
        fingerprint=plan.fingerprint(),
        request=plan.request,
        version=__version__,
        created=plan.created,
    )


def _move_in(work: WorkFolder, entries: dict[str, str]) -> None:
    """The new set's files, by name and digest, into the folder; those of an old set that it has no use for go."""
    folder, shards = work.out, work.path / "shards"
    old = _take_old_set(folder, work)
    new = {name: digest for name, digest in entries.items() if (shards / name).exists()}
    for name, digest in new.items():
        _check_target(folder / name, digest, name in old)
    write_json(work.folder(REPLACED) / _MOVED, sorted(old | entries.keys()))
    for name in new:
        replace(shards / name, folder / name)
    for name in old - entries.keys():
        (folder / name).unlink(missing_ok=True)
    sync_folder(folder)


def _how(plan: Plan, number: int) -> dict[str, Any]:
    """How a source was read, where it has options of its own."""
    if not plan.options.mix:
        return {}
    own = asdict(plan.options.mix[number])
    kept = {
        key: value
        for key, value in own.items()
        if value and key not in ("word", "share", "licence")
    }
    return {"val_fraction": plan.fraction(number), **({"reading": kept} if kept else {})}


def _take_old_set(folder: Path, work: WorkFolder) -> set[str]:
    """The files of the set that is being replaced and of earlier attempts to replace it.

    Its manifest goes first: a reader never sees a mixture.
    """
    kept = work.folder(REPLACED) / MANIFEST
    moved = kept.with_name(_MOVED)
    if (folder / MANIFEST).exists():
        # copied, not renamed: between two folders a power cut could lose both names
        write_bytes(kept, (folder / MANIFEST).read_bytes())
        sync_folder(work.path)
        (folder / MANIFEST).unlink()
        sync_folder(folder)
    names: set[str] = set()
    try:
        if moved.exists():
            names |= set(map(str, read_json(moved)))
        if kept.exists():
            old = checked_manifest(read_json(kept))
            names |= {entry["file"] for split in old.splits.values() for entry in split["shards"]}
            names |= {old.validation["file"]} if old.validation else set()
            names |= {TOKENIZER_FILE} if old.tokenizer.get("file") else set()
    except (OSError, ValueError, TypeError) as error:
        raise RunFailure(f"{kept.parent} is damaged ({error})", hint=f"delete {folder}") from None
    return {name for name in names if Path(name).name == name}


def _check_target(path: Path, sha256: str, ours: bool) -> None:
    """A file of the same name that neither the old set nor an earlier attempt put there is not overwritten."""
    if path.is_symlink() or (path.exists() and not ours and file_sha256(path) != sha256):
        raise UserError(
            f"{path} is in the way, and onecard did not make it",
            hint="move it away, then run the same command: it continues where it stopped",
        )
