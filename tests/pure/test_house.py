"""The house itself: imports point down, the public surface is pinned, the docs are true, planning stays light."""

import ast
import functools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import onecard

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "onecard"

# Each room may import from itself and from rooms below it.
FLOORS = [
    {"errors", "version"},
    {"units", "sentences"},
    {"messages", "files", "untrusted", "streams", "torchrun"},
    {"config", "facts"},
    {"data"},
    {"planner"},
    {"runs"},
    {"model"},
    {"train"},
    {"tune"},
    {"evals", "export", "advise", "launch"},
    {"report"},
    {"ui"},
    {"cli"},
]
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}


@functools.cache  # several tests walk over every file
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are written in full"
            found.append(node.module or "")
    return found


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


MODULES = [
    p
    for p in sorted(SOURCE.rglob("*.py"))
    if room_of(p) not in ("__init__", "__main__") and "preset_files" not in p.parts
]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_imports_point_down(path):
    room = room_of(path)
    for name in imports(path):
        if name.startswith("onecard."):
            other = name.split(".")[1]
            assert (
                other == room
                or FLOOR[other] < FLOOR[room]
                or (FLOOR[other] == FLOOR[room] and room == "config")
            ), name
        assert name != "onecard" or room == "cli"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_only_train_imports_torch_and_every_file_says_what_it_is(path):
    outside = {name.split(".")[0] for name in imports(path)}
    if room_of(path) not in ("model", "train", "tune", "evals", "export"):
        assert "torch" not in outside
    if room_of(path) in (
        "errors",
        "units",
        "sentences",
        "messages",
        "config",
        "facts",
        "planner",
        "advise",
        "launch",
    ):
        assert "numpy" not in outside
    assert ast.get_docstring(tree_of(path)) or path.name == "__init__.py"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_a_file_and_its_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            longest = 50 if path.parent == SOURCE / "planner" / "memory" else 60
            assert node.end_lineno - node.lineno < longest, node.name
    assert "fmt: skip" not in text


def test_files_have_different_names():
    """Two at most share one: a command and what it calls, or two rooms' parts of one thing."""
    names = Counter(path.name for path in MODULES if path.name != "__init__.py")
    assert {name: count for name, count in names.items() if count > 2} == {}


@pytest.mark.parametrize("folder", ["src", "docs", "tests", "bench", "fit", "tools", "."])
def test_words_are_everyday_ones(folder):
    """Others were a private dialect: told, said and found name nothing either."""
    kinds = {".py", ".md", ".js", ".html", ".toml", ".yml"}
    dialect = (
        r"told|said|anew|reckon\w*|kindred|spokesman|mended|heaps?|strangers?|stumbled|"
        r"lets? it speak|fits yes|fault of onecard's|I can't"
    )
    paths = (ROOT / folder).glob("*" if folder == "." else "**/*")
    for path in (p for p in paths if p.suffix in kinds and p != Path(__file__)):
        text = path.read_text(encoding="utf-8")
        assert not (word := re.search(rf"\b({dialect})\b", text, re.IGNORECASE)), (path, word)


def test_values_have_names():
    """What is shown and advised is called by its name; a letter is a coordinate, a counter, one of a pair, or T."""
    letters = {"report": "_TxyikabAB", "advise": "_TxyikabAB", "memory": "_BTCLV"}
    for path in MODULES:
        allowed = letters.get(path.parent.name, letters.get(room_of(path)))
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Name | ast.arg):
                name = node.id if isinstance(node, ast.Name) else node.arg
                assert name not in ("found", "told", "said"), f"{path.name}: {name}"
                assert len(name) > 1 or allowed is None or name in allowed, f"{path.name}: {name}"


def test_the_librarys_errors_name_options_not_flags():
    """`the option `fresh`` becomes --fresh on the command line (cli/flags.py); a whole command may be named."""
    named = re.compile(r"`onecard [^`]*`|the option `[^`]*`")
    reads_the_command_line = SOURCE / "config" / "read.py"
    for path in MODULES:
        if room_of(path) in ("cli", "ui") or path == reads_the_command_line:
            continue
        for node in ast.walk(tree_of(path)):
            kind = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if kind in ("UserError", "RunFailure", "InternalError"):
                text = named.sub("", ast.unparse(node))
                assert not re.search(r"(?<![\w-])--[a-z{]", text), f"{path.name}: {text}"


def test_files_are_replaced_in_one_place():
    """Write aside, flush, rename: a second copy of the rule would forget one of them."""
    moves = re.compile(r"\bos\.(replace|rename)\(|\.rename\(")
    users = [p for p in MODULES if moves.search(p.read_text(encoding="utf-8"))]
    assert users == [SOURCE / "files.py"]


def test_torchruns_variables_are_read_in_one_place():
    name = re.compile(r"environ.*[\"'](LOCAL_)?(RANK|WORLD_SIZE)[\"']")
    users = [p for p in MODULES if name.search(p.read_text(encoding="utf-8"))]
    assert users == [SOURCE / "torchrun.py"]


def test_a_runs_parts_are_frozen():
    tree = tree_of(SOURCE / "train" / "run" / "session.py")
    session = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Session")
    assert [ast.unparse(d) for d in session.decorator_list] == ["dataclass(frozen=True)"]


def test_public_names():
    assert onecard.__all__ == [
        "Device",
        "RunConfig",
        "RunPlan",
        "UserError",
        "__version__",
        "find_gpu",
        "load",
        "plan",
    ]
    for name in onecard.__all__:
        assert getattr(onecard, name) is not None
    assert callable(onecard.plan)


def test_the_function_plan_hides_no_package():
    """`import onecard.plan.memory as m` failed: a public name and a room must not be the same word."""
    import onecard

    rooms = {path.name for path in (ROOT / "src" / "onecard").iterdir() if path.is_dir()}
    assert not rooms & set(onecard.__all__)
    import onecard.planner.memory as m

    assert m.__name__ == "onecard.planner.memory"


def test_planning_imports_neither_torch_nor_numpy():
    code = (
        "import sys; from onecard.cli import main; main(['plan', 'gpt2', '--gpu', 'RTX 4070']);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'pyarrow')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


@pytest.mark.parametrize("page", ["docs/cli.md", "docs/launch.md", "docs/assistant.md"])
def test_generated_pages_are_true(page):
    """Word by word: argparse breaks the lines of a usage elsewhere from Python 3.13 on."""
    code = f"import sys; sys.path.insert(0, 'tools'); import docs; sys.exit(docs.PAGES[{page!r}]().split() != (docs.ROOT / {page!r}).read_text(encoding='utf-8').split())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "COLUMNS": "100"}, check=False
    )
    assert done.returncode == 0, "run `python tools/docs.py`"


def test_every_command_is_described():
    from onecard.cli import VERBS

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for verb in VERBS:
        assert f"## onecard {verb}\n" in page
        assert f"onecard {verb}" in readme


def test_every_dependency_has_its_reason():
    import re
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(name for group in project["optional-dependencies"].values() for name in group),
    ]
    reasons = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8").lower()
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    for requirement in wanted:
        name = re.split(r"[<>=;\[ ]", requirement)[0].lower()
        assert f"`{name}`" in reasons, name
        if name not in ("wandb", "trackio"):  # never installed by the test run
            assert f"\n{name.replace('_', '-')}==" in f"\n{pinned}", name


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "ui" / "static").glob("*.js")), ids=lambda p: p.name
)
def test_no_name_inside_a_page_hides_one_of_its_file(path):
    """A `text = …` in a function makes the file's own `text()` no function there: the list of runs was empty for it."""
    source = path.read_text(encoding="utf-8")
    top = r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)"
    names = set(re.findall(top, source, re.MULTILINE))
    for imported in re.findall(r"^import \{([^}]*)\}", source, re.MULTILINE):
        names |= {name.split(" as ")[-1].strip() for name in imported.split(",")}
    inside = [line for line in source.splitlines() if re.match(r"\s+.*\b(?:const|let)\b", line)]
    local = re.findall(r"(?:\b(?:const|let)|,)\s+(\w+)\s*=[^=>]", "\n".join(inside))
    assert not names & set(local)
