"""Plant random one-place faults in the sources and count how many the tests notice, room by room.

    python tools/mutants.py --count 200 --seed 1                  # all rooms, a few tests each
    python tools/mutants.py --room advise --count 40 --jobs 2

A fault turns one comparison, operator, boolean or small number round. The tests of its room run in a copy of the tree
until the first failure; a fault that no test notices is printed with its place, to be looked at one by one.
"""

import argparse
import ast
import collections
import concurrent.futures
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "onecard"
SECONDS = 240  # for the tests of one fault; a fault that makes them hang is noticed, too

# The tests that are meant to notice a fault in each room: a folder, and how the names of its files begin.
TESTS = {
    "advise": "pure: recommend can advi review fit need savers",
    "config": "pure: config numbers plan",
    "data": "pure: data",
    "facts": "pure: gpus here facts data_facts plan",
    "model": "torch: model modern lean sample pretrained weights golden machine checkpoint resume",
    "planner": "pure: plan numbers memory speed loss calibration recommend",
    "report": "pure: report",
    "runs": "pure: runs compare explain",
    "train": "torch: golden loop resume optim loader view verify probe exception train identity "
    "preflight machine signals doctor workers profile trial",
}

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}


@dataclass(frozen=True)
class Fault:
    path: Path  # below the sources
    line: int
    number: int  # of the place in the file, in the order of the walk
    before: str
    after: str

    @property
    def room(self) -> str:
        return self.path.parts[0].removesuffix(".py")

    def __str__(self) -> str:
        return f"{self.path.as_posix()}:{self.line}: {self.before}  →  {self.after}"


def places(tree: ast.Module) -> Iterator[ast.expr]:
    """The expressions that a fault can turn round; nothing inside annotations."""
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if (hint := getattr(node, field, None)) is not None
        for inner in ast.walk(hint)
    }
    for node in ast.walk(tree):
        if id(node) not in annotations and isinstance(node, ast.expr) and _can_turn(node):
            yield node


def _can_turn(node: ast.expr) -> bool:
    match node:
        case ast.Compare():
            return type(node.ops[0]) in _COMPARISONS
        case ast.BinOp():
            return type(node.op) in _OPERATORS
        case ast.UnaryOp(op=ast.Not()) | ast.BoolOp() | ast.Constant(value=True | False):
            return True
    return False


def turn_round(node: ast.expr) -> None:
    """Change the node in place."""
    if isinstance(node, ast.Compare):
        node.ops[0] = _COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = _OPERATORS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):  # not x  →  not not x
        node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant):
        node.value = not node.value


def all_faults(room: str) -> list[Fault]:
    found = []
    for path in sorted((SOURCE / room).rglob("*.py")):
        if "preset_files" in path.parts:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for number, node in enumerate(places(tree)):
            turned = copy.deepcopy(node)
            turn_round(turned)
            before, after = ast.unparse(node)[:90], ast.unparse(turned)[:90]
            found.append(Fault(path.relative_to(SOURCE), node.lineno, number, before, after))
    return found


def planted(fault: Fault) -> str:
    """The source of the file with the fault in it."""
    tree = ast.parse((SOURCE / fault.path).read_text(encoding="utf-8"))
    turn_round(list(places(tree))[fault.number])
    return ast.unparse(tree) + "\n"


def tests_of(room: str, tree: Path) -> list[str]:
    folder, beginnings = TESTS[room].split(": ")
    files = sorted((tree / "tests" / folder).glob("test_*.py"))
    wanted = tuple(f"test_{word}" for word in beginnings.split())
    return [str(path) for path in files if path.name.startswith(wanted)]


def noticed(fault: Fault, tree: Path) -> bool:
    """Whether the tests of the fault's room fail with it, in a copy of the project."""
    target = tree / "src" / "onecard" / fault.path
    original = target.read_text(encoding="utf-8")
    target.write_text(planted(fault), encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not gpu and not long"]
    try:
        done = subprocess.run(
            [*command, *tests_of(fault.room, tree)],
            cwd=tree,
            env=environment,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        target.write_text(original, encoding="utf-8")


def copy_of_the_project(folder: str) -> Path:
    tree = Path(folder) / "tree"
    skipped = shutil.ignore_patterns(
        ".git", ".venv", "*.egg-info", "__pycache__", ".mypy_cache", "build"
    )
    shutil.copytree(ROOT, tree, ignore=skipped)
    return tree


def worker(faults: list[Fault]) -> list[tuple[Fault, bool]]:
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_the_project(folder)
        for fault in faults:
            answers.append((fault, noticed(fault, tree)))
            mark = "noticed " if answers[-1][1] else "SURVIVED"
            print(f"{mark} {fault}", flush=True)
    return answers


def chosen(rooms: list[str], count: int, seed: int) -> list[Fault]:
    """`count` faults, as many from each room as its share of places; the same for the same seed."""
    generator = random.Random(seed)
    pool = [fault for room in rooms for fault in all_faults(room)]
    return generator.sample(pool, min(count, len(pool)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="faults tried at the same time")
    parser.add_argument("--room", action="append", choices=sorted(TESTS), help="only this room")
    args = parser.parse_args()
    faults = chosen(args.room or sorted(TESTS), args.count, args.seed)
    shares = [faults[start :: args.jobs] for start in range(args.jobs)]
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        answers = [answer for share in pool.map(worker, shares) for answer in share]
    rooms = collections.Counter(fault.room for fault, _ in answers)
    seen = collections.Counter(fault.room for fault, was in answers if was)
    print("\n| room | faults | noticed |\n|---|---|---|")
    for room, total in sorted(rooms.items()):
        print(f"| {room} | {total} | {seen[room]} ({seen[room] / total:.0%}) |")
    print(
        f"| all | {len(answers)} | {sum(seen.values())} ({sum(seen.values()) / len(answers):.0%}) |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
