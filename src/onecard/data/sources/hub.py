"""Hugging Face's hub, through huggingface_hub: its cache, its token, its resumed downloads, HF_ENDPOINT.

>>> repo = look_up("HuggingFaceFW/fineweb-edu", None, "sample-10BT")                  # doctest: +SKIP
>>> repo.licence, repo.files[0].path                                                  # doctest: +SKIP
('odc-by', 'sample/10BT/000_00000.parquet')
"""

import fnmatch
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from onecard.data.read.manifest import DISK_FULL, file_sha256
from onecard.errors import RunFailure, UserError

_ATTEMPTS = 6
_LONGEST_WAIT = 120.0  # seconds; what a server asks for beyond this is not waited for
_DATA = (
    ".parquet",
    ".jsonl",
    ".jsonl.gz",
    ".jsonl.zst",
    ".json.gz",
    ".jsonl.xz",
    ".ndjson",
    ".bin",
    ".txt",
)
_HELD_OUT = ("test", "valid", "validation", "val", "dev", "eval")

T = TypeVar("T")


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

    api = HfApi(library_name="onecard")
    info = _patiently(lambda: api.dataset_info(repo, revision=revision), repo)
    commit = str(info.sha)
    card: dict[str, Any] = dict(info.card_data.to_dict()) if info.card_data is not None else {}  # type: ignore[no-untyped-call]
    patterns = list(patterns) or _patterns_of(card, config, repo)
    roots = sorted({_fixed_folder(pattern) for pattern in patterns}) or [""]
    found: dict[str, HubFile] = {}
    for root in roots:
        for entry in _patiently(partial(_tree, api, repo, commit, root), repo):
            if hasattr(entry, "size") and (
                not patterns or any(_matches(entry.path, p) for p in patterns)
            ):
                digest = entry.lfs.sha256 if entry.lfs is not None else None
                found[entry.path] = HubFile(entry.path, entry.size, digest)
    files = _one_kind(
        [file for file in found.values() if file.path.lower().endswith(_DATA)], bool(patterns)
    )
    if not files:
        where = f" for {config!r}" if config else ""
        raise UserError(
            f"{repo} has no parquet, jsonl or token files{where} at {commit[:12]}",
            hint="name a config of it, as in hf:owner/name:config",
        )
    licence = card.get("license")
    licence = ", ".join(licence) if isinstance(licence, list) else licence
    return HubRepo(repo, commit, licence, tuple(sorted(files, key=lambda file: file.path)))


def fetch(repo: str, commit: str, file: HubFile, marks: Path | None = None) -> Path:
    """The file in the hub's cache, downloaded if need be, and checked against the listing.

    A file whose sha256 was right leaves a mark in `marks`, so that going on does not read it all again.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()  # ours shows the whole

    def get(force: bool) -> Path:
        found = hf_hub_download(
            repo,
            file.path,
            repo_type="dataset",
            revision=commit,
            library_name="onecard",
            force_download=force,
        )
        return Path(found)

    mark = (
        None
        if marks is None
        else marks / hashlib.sha256(f"{repo} {commit} {file.path}".encode()).hexdigest()[:24]
    )
    path = _patiently(lambda: get(False), f"{repo}/{file.path}")
    wrong = _wrong(path, file, mark)
    if (
        wrong is not None
    ):  # a damaged cache entry, or a proxy that served something else: once more from the start
        path = _patiently(lambda: get(True), f"{repo}/{file.path}")
        wrong = _wrong(path, file, mark)
    if wrong is not None:
        raise RunFailure(
            f"{repo}/{file.path} at {commit[:12]}: {wrong}",
            hint="it changed on the server or a proxy alters it; try later, or begin anew with --fresh",
        )
    return path


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


def _patiently(call: Callable[[], T], what: str) -> T:
    """Try again through cut connections, wrong lengths and 429s, as long as a server asks; other answers are final."""
    from huggingface_hub import errors

    wait = 0.5
    last: BaseException
    for attempt in range(_ATTEMPTS):
        try:
            return call()
        except (
            errors.LocalEntryNotFoundError
        ) as error:  # its way to say that the server could not be asked
            asked, last = None, error
        except errors.GatedRepoError:
            raise UserError(
                f"{what} needs an accepted licence and a token",
                hint="accept it on its page, then `hf auth login`",
            ) from None
        except (
            errors.RepositoryNotFoundError,
            errors.RevisionNotFoundError,
            errors.EntryNotFoundError,
        ) as error:
            kind = type(error).__name__.removesuffix("NotFoundError").removeprefix("Remote").lower()
            raise UserError(
                f"the hub does not know {what} (no such {kind})",
                hint="a private set needs `hf auth login`",
            ) from None
        except errors.HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else None
            if status is not None and status < 500 and status not in (408, 429):
                raise RunFailure(
                    f"{what}: the hub answered {status}", hint=_first_line(error)
                ) from None
            asked = _retry_after(error.response.headers if error.response is not None else {})
            last = error
        except (
            OSError,
            RuntimeError,
        ) as error:  # cut connections, wrong lengths, time-outs, no network
            if isinstance(error, OSError) and error.errno in DISK_FULL:
                raise RunFailure(
                    "the disk with the hub's cache is full",
                    hint="free some space or set HF_HOME; the same command goes on",
                ) from None
            asked, last = None, error
        except Exception as error:
            if type(error).__module__.split(".")[0] not in (
                "httpx",
                "httpx2",
                "httpcore",
                "httpcore2",
                "requests",
                "urllib3",
            ):
                raise
            asked, last = None, error
        if attempt + 1 == _ATTEMPTS or (asked is not None and asked > _LONGEST_WAIT):
            break
        time.sleep(wait if asked is None else asked)
        wait *= 2
    raise RunFailure(
        f"{what}: the download failed {attempt + 1} times ({_first_line(last)})",
        hint="what came is kept: the same command goes on",
    )


def _retry_after(headers: Any) -> float | None:
    try:
        return float(headers.get("Retry-After") or headers.get("retry-after"))
    except (TypeError, ValueError):
        return None


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
    for suffixes in (
        (".parquet",),
        (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".jsonl.xz", ".ndjson"),
        (".bin",),
        (".txt",),
    ):
        kind = [file for file in files if file.path.lower().endswith(suffixes)]
        if kind and suffixes != (".bin",) and not chosen:
            kind = [
                f
                for f in kind
                if not {
                    *f.path.lower().replace("-", "/").replace("_", "/").replace(".", "/").split("/")
                }
                & {*_HELD_OUT}
            ] or kind
        if kind:
            return kind
    return []


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
