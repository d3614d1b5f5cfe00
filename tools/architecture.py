"""docs/architecture.md: the figures of the house (lines and statements by room, walks, start-up, accuracy), measured.

python tools/architecture.py           # rewrites the measured part of the page; its words are kept. Half a minute
python tools/architecture.py --walk train   # the files that a walk enters, with the functions called in each
python tools/architecture.py --check   # 1 where the page's list of rooms is not that of the source
"""

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "onecard"
PAGE = ROOT / "docs" / "architecture.md"
BEFORE = "d9350af"  # the last commit before the rooms were redrawn
OLD_ROOMS = {"plan": "planner"}
START, END = "<!-- measured -->", "<!-- end of measured -->"

# A walk: the command, and the rooms that it is about. What other rooms do for it stands behind one call each (load a
# config, make a plan, show a page) and need not be entered.
SMALL = "--vocab_size=257 --n_layer=2 --n_head=2 --n_embd=32 --block_size=32 --batch_size=2 --gradient_accumulation_steps=1 --max_iters=1 --compile=False --device=cpu"
WALKS = {
    "plan": (["plan", "gpt2", "--gpu", "RTX 4070"], ("cli", "planner")),
    "train": (
        ["train", "--dataset=data", "--out_dir=out", *SMALL.split()],
        ("cli", "train", "model"),
    ),
    "compare": (["compare", "a.log", "b.log"], ("cli", "runs")),
}
FIRST_STEP = ("train/run/step.py", "gradients")  # where the walk of `train` ends
# in a process of its own: prints {file: [functions called]} as JSON, up to the first step
TRACE = """
import json, os, sys
root, last, *command = sys.argv[1:]
called = {}
def done():
    sys.setprofile(None)
    with open("walk.json", "w") as file:
        json.dump({name: sorted(functions) for name, functions in called.items()}, file)
def trace(frame, event, _):
    code = frame.f_code
    in_function = code.co_flags & 2  # neither a module nor the body of a class
    if event == "call" and in_function and code.co_filename.startswith(root):
        name = code.co_filename[len(root):]
        called.setdefault(name, set()).add(code.co_name)
        if f"{name} {code.co_name}" == last:
            done()
            os._exit(0)
from onecard.cli import main
sys.setprofile(trace)
main(command)
done()
"""
# Building a value is not entering its file: the reader sees what it is given.
CONSTRUCTORS = {"__init__", "__post_init__"}


def rooms() -> list[str]:
    """The rooms of today, and the single files beside them."""
    found = {p.relative_to(SOURCE).parts[0] for p in SOURCE.rglob("*.py")}
    return sorted(name.removesuffix(".py") for name in found)


def texts_now() -> dict[str, str]:
    return {
        p.relative_to(SOURCE).as_posix(): p.read_text("utf-8") for p in sorted(SOURCE.rglob("*.py"))
    }


def texts_before() -> dict[str, str]:
    """The same of the commit before; empty where the history is not there."""
    listed = _git("ls-tree", "-r", "--name-only", BEFORE, "src/onecard")
    names = [name for name in (listed or "").splitlines() if name.endswith(".py")]
    texts = {name.removeprefix("src/onecard/"): _git("show", f"{BEFORE}:{name}") for name in names}
    return {name: text for name, text in texts.items() if text}


def by_room(texts: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Lines, and statements, which no formatter changes."""
    counted: dict[str, tuple[int, int]] = {}
    for name, text in texts.items():
        room = name.split("/")[0].removesuffix(".py")
        room = OLD_ROOMS.get(room, room)
        lines, statements = counted.get(room, (0, 0))
        more = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))
        counted[room] = lines + text.count("\n"), statements + more
    return counted


def longest_function(texts: dict[str, str]) -> str:
    sizes = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, node.name)
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    size, name = max(sizes)
    return f"{size} lines (`{name}`)"


def walk(name: str) -> dict[str, list[str]]:
    """The functions that a command calls, by file; of `train` up to its first step."""
    command = WALKS[name][0]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if name == "train":
            text = place / "text.txt"
            text.write_text("Some words to train on, again and again.\n" * 500, encoding="utf-8")
            _onecard(place, "data", str(text), "--tokenizer", "bytes", "--out", "data")
        for log, loss in (("a.log", 5.0), ("b.log", 4.5)):
            lines = (
                f"iter {i}: loss {loss - i / 100:.4f}, time 3900.00ms, mfu 12.90%"
                for i in range(50)
            )
            (place / log).write_text("\n".join(lines), encoding="utf-8")
        words = [f"{SOURCE.as_posix()}/", " ".join(FIRST_STEP), *command]
        subprocess.run(
            [sys.executable, "-c", TRACE, *words], cwd=place, capture_output=True, check=True
        )
        called: dict[str, list[str]] = json.loads((place / "walk.json").read_text())
    return called


def entered(name: str, called: dict[str, list[str]]) -> list[str]:
    """The files of the walk's own rooms in which more is done than building a value."""
    own = WALKS[name][1]
    return sorted(
        file
        for file, functions in called.items()
        if file.split("/")[0] in own and set(functions) - CONSTRUCTORS
    )


def accuracy(page: str | None) -> dict[str, str]:
    """The line over all rows of each table of docs/accuracy.md: median error and share in the range."""
    answers = {}
    for section in (page or "").split("\n## ")[1:]:
        row = re.search(r"^\| \*\*all\*\* \|(.*)\|$", section, flags=re.M)
        if row:
            cells = [cell.strip() for cell in row[1].split("|")]
            answers[section.splitlines()[0].lower()] = f"{cells[1]}, {cells[-1]} in range"
    return answers


def start_up() -> str:
    """How long `onecard plan` takes beside `import torch`."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "plan_speed.py"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(done.stdout)
    parts = f"1/{answer['ratio']:.1f} of `import torch`, 1/{answer['processor_ratio']:.1f} of its processor time"
    return f"{answer['plan_seconds']:.2f} s, {parts}"


def traced() -> str:
    """How near the memory model comes to the settings that fit/memory_traces.py traced."""
    facts = ROOT / "src" / "onecard" / "facts" / "memory_fit.json"
    return "; ".join(
        f"{mode}, {found['settings']} settings: median {found['median']:.2%}, worst {found['worst']:.1%}"
        for mode, found in json.loads(facts.read_text("utf-8"))["simulation"].items()
    )


def measured() -> str:
    texts, old = texts_now(), texts_before()
    now, before = by_room(texts), by_room(old)
    table = [
        "| room | lines before | now | statements before | now |",
        "|---|---:|---:|---:|---:|",
    ]
    for room in sorted({*now, *before}):
        (lines_before, statements_before), (lines, statements) = (
            counted.get(room, (0, 0)) for counted in (before, now)
        )
        table.append(
            f"| {room} | {lines_before:,} | {lines:,} | {statements_before:,} | {statements:,} |"
        )
    sums = [sum(c[i] for c in counted.values()) for i in (0, 1) for counted in (before, now)]
    table.append("| **all** |" + "".join(f" **{total:,}** |" for total in sums))
    facts = ["", "| | before | now |", "|---|---|---|"]
    facts.append(f"| longest function | {longest_function(old)} | {longest_function(texts)} |")
    skips = [sum(text.count("# fmt: skip") for text in side.values()) for side in (old, texts)]
    facts.append(f"| `# fmt: skip` | {skips[0]} | {skips[1]} |")
    for name in WALKS:
        called = walk(name)
        facts.append(
            f"| files entered by the walk of `{name}` (of all that run) | | {len(entered(name, called))} ({len(called)}) |"
        )
    facts.append(f"| start-up of `plan` | 1/8.1 | {start_up()} |")
    pages = (
        accuracy(_git("show", f"{BEFORE}:docs/accuracy.md")),
        accuracy((ROOT / "docs" / "accuracy.md").read_text("utf-8")),
    )
    facts.append(f"| memory against traced steps | | {traced()} |")
    for section in pages[1]:
        facts.append(
            f"| median error of {section}, public runs | {pages[0].get(section, '')} | {pages[1][section]} |"
        )
    return "\n".join([START, "", *table, *facts, "", END])


def undescribed(page: str) -> list[str]:
    return [room for room in rooms() if f"`{room}`" not in page]


def _onecard(place: Path, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "onecard", *words], cwd=place, capture_output=True, check=True
    )


def _git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--walk", choices=sorted(WALKS))
    args = parser.parse_args()
    if args.walk:
        called = walk(args.walk)
        for file in entered(args.walk, called):
            print(f"{file}: {', '.join(called[file])}")
        return 0
    page = PAGE.read_text("utf-8")
    missing = undescribed(page)
    if missing:
        print(f"{PAGE.name} does not describe: {', '.join(missing)}")
        return 1
    if not args.check:
        new = re.sub(f"{START}.*{END}", lambda _: measured(), page, flags=re.S)
        PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
