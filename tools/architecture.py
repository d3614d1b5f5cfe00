"""docs/architecture.md: the figures of the house (lines by room, the longest function, files a walk enters), measured.

python tools/architecture.py           # rewrites the measured part of the page; its words are kept
python tools/architecture.py --check   # 1 where the page's list of rooms is not that of the source
"""

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "onecard"
PAGE = ROOT / "docs" / "architecture.md"
BEFORE = "d9350af"  # the last commit before the rooms were redrawn
OLD_ROOMS = {"plan": "planner"}
START, END = "<!-- measured -->", "<!-- end of measured -->"
WALKS = {
    "plan": "main(['plan', 'gpt2', '--gpu', 'RTX 4070'])",
    "compare": "import onecard.cli.compare, onecard.runs.compare, onecard.report.compare_view",
    "train": "import onecard.cli.train, onecard.report.plan_view, onecard.train.run.loop",
}


def rooms() -> list[str]:
    """The rooms of today, and the single files beside them."""
    found = {p.relative_to(SOURCE).parts[0] for p in SOURCE.rglob("*.py")}
    return sorted(name.removesuffix(".py") for name in found)


def lines_now() -> dict[str, int]:
    return _by_room({p.relative_to(SOURCE).as_posix(): p.read_text("utf-8") for p in _files()})


def lines_before() -> dict[str, int]:
    """The same of the commit before; empty where the history is not there."""
    listed = _git("ls-tree", "-r", "--name-only", BEFORE, "src/onecard")
    names = [name for name in (listed or "").splitlines() if name.endswith(".py")]
    texts = {name.removeprefix("src/onecard/"): _git("show", f"{BEFORE}:{name}") for name in names}
    return _by_room({name: text for name, text in texts.items() if text})


def longest_function(texts: list[str]) -> tuple[int, str]:
    sizes = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, node.name)
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return max(sizes)


def files_entered(walk: str) -> int:
    """The modules of onecard that a command imports."""
    code = (
        "import sys, contextlib, io\n"
        "from onecard.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        f"    {WALKS[walk]}\n"
        "print(sum(m.startswith('onecard') for m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def measured() -> str:
    now, before = lines_now(), lines_before()
    table = ["| room | lines before | now |", "|---|---:|---:|"]
    table += [
        f"| {room} | {before.get(room, 0):,} | {now.get(room, 0):,} |"
        for room in sorted({*now, *before})
    ]
    table.append(f"| **all** | **{sum(before.values()):,}** | **{sum(now.values()):,}** |")
    texts = [path.read_text("utf-8") for path in _files()]
    size, name = longest_function(texts)
    skips = sum(text.count("# fmt: skip") for text in texts)
    facts = [f"- longest function: {size} lines (`{name}`)", f"- `# fmt: skip`: {skips}"]
    facts += [f"- modules that `onecard {walk}` imports: {files_entered(walk)}" for walk in WALKS]
    return "\n".join([START, "", *table, "", *facts, "", END])


def undescribed(page: str) -> list[str]:
    return [room for room in rooms() if f"`{room}`" not in page]


def _files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _by_room(texts: dict[str, str]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for name, text in texts.items():
        room = name.split("/")[0].removesuffix(".py")
        room = OLD_ROOMS.get(room, room)
        counted[room] = counted.get(room, 0) + text.count("\n")
    return counted


def _git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    page = PAGE.read_text("utf-8")
    missing = undescribed(page)
    if missing:
        print(f"{PAGE.name} does not describe: {', '.join(missing)}")
        return 1
    if not parser.parse_args().check:
        new = re.sub(f"{START}.*{END}", lambda _: measured(), page, flags=re.S)
        PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
