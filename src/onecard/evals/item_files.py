"""Where a task's items are: the file that was named, one beside the work, or the hub's, which is kept for later.

find_items("hellaswag", None)
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

from onecard.data.read.layout import DATA_HOME
from onecard.errors import UserError

_ENDINGS = (".jsonl", ".jsonl.xz", ".parquet")


@dataclass(frozen=True)
class _Home:
    repository: str  # a data set on the hub
    wanted: str  # part of the name of the file with the items
    names: tuple[str, ...]  # of local files, without their ending


_HOMES = {
    "hellaswag": _Home("Rowan/hellaswag", "validation", ("hellaswag", "hellaswag_val")),
    "lambada": _Home("EleutherAI/lambada_openai", "test_en", ("lambada", "lambada_openai")),
}


def find_items(task: str, named: str | None) -> Path:
    """The file with the task's items; what cannot be found is a UserError that says how to get it."""
    if named:
        return Path(named)
    home = _HOMES[task]
    for folder, name, ending in itertools.product((Path(), DATA_HOME), home.names, _ENDINGS):
        if (folder / f"{name}{ending}").is_file():
            return folder / f"{name}{ending}"
    return _from_hub(task, home)


def _from_hub(task: str, home: _Home) -> Path:
    """Offline once it is there: the newest copy that was fetched serves when the hub does not answer."""
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    try:
        try:
            # one request: list_repo_files would retry for half a minute, a line of warnings each time
            files = HfApi().dataset_info(home.repository, timeout=20).siblings or []
            name = _chosen([file.rfilename for file in files], home)
            return Path(hf_hub_download(home.repository, name, repo_type="dataset"))
        except Exception:  # a network has many ways to fail; the cache may still have it
            folder = snapshot_download(home.repository, repo_type="dataset", local_files_only=True)
            there = [str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file()]
            return Path(folder) / _chosen(there, home)
    except Exception as error:
        raise UserError(
            f"the items of {task} are not here, and they could not be downloaded from the hub "
            f"({type(error).__name__})",
            hint=f"name a file: the option `{task}=FILE` (.jsonl, .jsonl.xz or .parquet)",
        ) from None


def _chosen(names: list[str], home: _Home) -> str:
    matching = sorted(
        (n for n in names if home.wanted in n and n.endswith(_ENDINGS)),
        key=lambda name: (len(name), name),
    )
    if not matching:
        raise LookupError(home.wanted)
    return matching[0]
