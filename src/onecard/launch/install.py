"""What `pip install` gets on the machine that trains: the version that is installed here."""

import json
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from onecard.errors import UserError
from onecard.version import __version__

NOTHING = "none"  # --install none: it is there already
_BUILT_FROM = (
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "src",
)


@dataclass(frozen=True)
class Install:
    """A requirement for pip, or a file or folder of this machine that is sent along first."""

    requirement: str | None = None
    local: Path | None = None

    @property
    def needed(self) -> bool:
        return self.requirement is not None or self.local is not None

    @property
    def files(self) -> tuple[str, ...]:
        """What of a checkout a build needs; the runs and data that may lie beside it stay here."""
        if self.local is None or not self.local.is_dir():
            return ()
        return tuple(name for name in _BUILT_FROM if (self.local / name).exists())


def install_of(asked: str | None) -> Install:
    """--install as given; without it, what is installed here: a checkout, a repository's commit, or a release."""
    if asked == NOTHING:
        return Install()
    if asked is None:
        return _installed_here()
    path = Path(asked).expanduser()
    looks_local = asked.startswith((".", "/", "~")) or asked.endswith(".whl") or path.is_dir()
    if not looks_local:
        return Install(requirement=asked)
    if not path.exists():
        raise UserError(
            f"there is no {asked} to install from",
            hint='the option `install` takes a wheel, a checkout, or a requirement such as "onecard[train]==0.1.0"',
        )
    if path.is_dir() and not (path / "pyproject.toml").is_file():
        raise UserError(f"{asked} is no checkout: it has no pyproject.toml")
    return Install(local=path.resolve())


def _installed_here() -> Install:
    try:
        record = metadata.distribution("onecard").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        record = None
    origin = json.loads(record) if record else {}
    url = str(origin.get("url", ""))
    if "vcs_info" in origin:
        commit = origin["vcs_info"].get("commit_id", "")
        return Install(requirement=f"onecard[train] @ git+{url}@{commit}")
    path = Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None
    if path is None:  # a tree that is run in place, or a release
        tree = Path(__file__).resolve().parents[3]
        path = tree if (tree / "pyproject.toml").is_file() else None
    if path is not None and path.exists():
        return Install(local=path)
    return Install(requirement=f"onecard[train]=={__version__}")


def wheel_name(path: Path) -> str:
    """The name of a wheel, which pip reads; it has no characters that a shell could read anything into."""
    if not re.fullmatch(r"[A-Za-z0-9_.+-]+\.whl", path.name):
        raise UserError(
            f"{path.name} is not a wheel", hint="the option `install` takes a .whl or a checkout"
        )
    return path.name
