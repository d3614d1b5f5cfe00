"""Hugging Face's hub, through huggingface_hub: its cache, its token, its resumed downloads, HF_ENDPOINT.

>>> repo = look_up("HuggingFaceFW/fineweb-edu", None, "sample-10BT")                  # doctest: +SKIP
>>> repo.licence, repo.files[0].path                                                  # doctest: +SKIP
('odc-by', 'sample/10BT/000_00000.parquet')
"""

import fnmatch
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from onecard.data.read.shard_files import file_sha256
from onecard.data.sources.network import check_hub, patiently
from onecard.errors import RunFailure, UserError

# by the endings of their names; where there are several, the first is read
_KINDS = (
    (".parquet",),
    (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".jsonl.xz", ".ndjson"),
    (".bin",),
    (".txt",),
)
_HELD_OUT = ("test", "valid", "validation", "val", "dev", "eval")


@dataclass(frozen=True)
class HubFile:
    path: str
    size: int
    sha256: str | None  # large files carry it


@dataclass(frozen=True)
class HubRepo:
    repo: str
    commit: str
    licence: str | None
    files: tuple[HubFile, ...]


def look_up(
    repo: str, revision: str | None, config: str | None, patterns: Sequence[str] = ()
) -> HubRepo:
    """The data files of a data set at one commit, in order: those of a config, of path patterns, or all."""
    from huggingface_hub import HfApi

    check_hub()
    api = HfApi(library_name="onecard")
    info = patiently(lambda: api.dataset_info(repo, revision=revision), repo)
    commit = str(info.sha)
    card: dict[str, Any] = dict(info.card_data.to_dict()) if info.card_data is not None else {}  # type: ignore[no-untyped-call]
    patterns = list(patterns) or _patterns_of(card, config, repo)
    roots = sorted({_fixed_folder(pattern) for pattern in patterns}) or [""]
    by_path: dict[str, HubFile] = {}
    for root in roots:
        for entry in patiently(partial(_tree, api, repo, commit, root), repo):
            if hasattr(entry, "size") and (
                not patterns or any(_matches(entry.path, p) for p in patterns)
            ):
                digest = entry.lfs.sha256 if entry.lfs is not None else None
                _check_path(repo, entry.path)
                by_path[entry.path] = HubFile(entry.path, entry.size, digest)
    files = _one_kind(list(by_path.values()), bool(patterns))
    if not files:
        where = f" for {config!r}" if config else ""
        raise UserError(
            f"{repo} has no parquet, jsonl or token files{where} at {commit[:12]}",
            hint="name a config of it, as in hf:owner/name:config",
        )
    licence = card.get("license")
    licences = licence if isinstance(licence, list) else [licence] if licence else []
    return HubRepo(
        repo,
        commit,
        ", ".join(map(str, licences)) or None,
        tuple(sorted(files, key=lambda file: file.path)),
    )


def fetch(repo: str, commit: str, file: HubFile, marks: Path | None = None) -> Path:
    """The file in the hub's cache, downloaded if need be, and checked against the listing.

    A file whose sha256 was right leaves a mark in `marks`, so that a restart does not read it all again.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()  # ours shows the whole

    def get(force: bool) -> Path:
        path = hf_hub_download(
            repo,
            file.path,
            repo_type="dataset",
            revision=commit,
            library_name="onecard",
            force_download=force,
        )
        return Path(path)

    mark = (
        None
        if marks is None
        else marks / hashlib.sha256(f"{repo} {commit} {file.path}".encode()).hexdigest()[:24]
    )

    def part_is_here() -> bool:
        return arrived_bytes(repo, file.sha256) > 0

    path = patiently(lambda: get(False), f"{repo}/{file.path}", part_is_here)
    wrong = _wrong(path, file, mark)
    if wrong is not None:  # a damaged cache entry, or a proxy that served something else
        path = patiently(lambda: get(True), f"{repo}/{file.path}", part_is_here)
        wrong = _wrong(path, file, mark)
    if wrong is not None:
        raise RunFailure(
            f"{repo}/{file.path} at {commit[:12]}: {wrong}",
            hint="it changed on the server or a proxy alters it; try later, or start again with the option `fresh`",
        )
    return path


def _check_path(repo: str, path: str) -> None:
    """A listing names files below the repository's root, whatever a server sends."""
    if path.startswith("/") or "\\" in path or ".." in path.split("/") or "\0" in path:
        raise UserError(f"{repo} lists a file outside of itself: {path!r}")


def arrived_bytes(repo: str, sha256: str | None) -> int:
    """How much of a file that is being downloaded is here."""
    from huggingface_hub import constants

    blobs = Path(constants.HF_HUB_CACHE) / f"datasets--{repo.replace('/', '--')}" / "blobs"
    try:
        return max((path.stat().st_size for path in blobs.glob(f"{sha256}*.incomplete")), default=0)
    except OSError:  # renamed between the listing and the look
        return 0


def _wrong(path: Path, file: HubFile, mark: Path | None) -> str | None:
    size = path.stat().st_size
    if size != file.size:
        return f"{size:,} bytes came, the listing says {file.size:,}"
    if file.sha256 is None or (mark is not None and mark.exists()):
        return None
    if file_sha256(path) != file.sha256:
        return "its sha256 is not the listing's"
    if mark is not None:
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    return None


def _tree(api: Any, repo: str, commit: str, root: str) -> list[Any]:
    return list(
        api.list_repo_tree(repo, root or None, recursive=True, revision=commit, repo_type="dataset")
    )


def _patterns_of(card: dict[str, Any], config: str | None, repo: str) -> list[str]:
    """The paths of a config by the card's own table, else a folder of that name."""
    configs = {
        str(entry.get("config_name")): entry
        for entry in card.get("configs") or []
        if isinstance(entry, dict)
    }
    entry = configs.get(config or "default")
    if entry is None and config is None and configs:
        entry = next((e for e in configs.values() if e.get("default")), None)
    if entry is not None:
        files = entry.get("data_files", "**")
        files = [files] if isinstance(files, str | dict) else files
        paths: list[str] = []
        for item in files:
            if isinstance(item, dict) and str(item.get("split", "train")) in _HELD_OUT:
                continue
            path = item.get("path", "**") if isinstance(item, dict) else item
            paths += path if isinstance(path, list) else [path]
        folder = str(entry.get("data_dir") or "").strip("/")
        return [f"{folder}/{path}" if folder else str(path) for path in paths]
    if config is not None:
        if configs:
            raise UserError(
                f"{repo} has no config {config!r}", hint=f"it has {', '.join(list(configs)[:12])}"
            )
        return [f"{config}/**"]
    return []


def _matches(path: str, pattern: str) -> bool:
    """Shell patterns as the hub's cards use them: `*` stays in a folder, `**` does not."""
    if "**" in pattern:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*").replace("**", "*"))
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def _fixed_folder(pattern: str) -> str:
    folders = pattern.split("/")[:-1]
    fixed = []
    for folder in folders:
        if any(char in folder for char in "*?["):
            break
        fixed.append(folder)
    return "/".join(fixed)


def _one_kind(files: list[HubFile], chosen: bool) -> list[HubFile]:
    """One format of the data, parquet first; without a chosen config, not what is named as held out."""
    for suffixes in _KINDS:
        kind = [file for file in files if file.path.lower().endswith(suffixes)]
        if kind and suffixes != (".bin",) and not chosen:
            words = [{*re.split(r"[-_./]", file.path.lower())} for file in kind]
            kept = [f for f, named in zip(kind, words, strict=True) if not named & {*_HELD_OUT}]
            kind = kept or kind
        if kind:
            return kind
    return []
