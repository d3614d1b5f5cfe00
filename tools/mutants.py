"""Plant random one-place faults in the sources and count how many the tests notice, room by room.

    python tools/mutants.py --work /tmp/mutants --count 200 --seed 1
    python tools/mutants.py --work /tmp/mutants --count 40 --room advise
    python tools/mutants.py --work /tmp/mutants --count 200 --seed 1 --again   # survivors, after new tests were written

A fault turns one comparison, operator, boolean or `not` round. A copy of the project gets every fault at once, each behind
a switch (`before if mutant_reached(17) else after`), so one process can try hundreds: it runs all tests once to learn which of
them reach which place, then forks for each fault, switches it on and runs the tests that reach it, quickest first, until
one fails. Places that are evaluated while a module is imported get a process of their own. The folder `--work` keeps what
was found: a run that was stopped continues. A fault that no test notices is printed with its place, to be looked at one by
one; docs/reliability.md has the last result and names those that change nothing.
"""

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mutant_faults import Fault, all_faults, instrument

ROOT = Path(__file__).parents[1]
ROOMS = ("advise", "config", "data", "facts", "model", "planner", "report", "runs", "train")
SKIPPED = (".git", ".venv", "*.egg-info", "__pycache__", ".mypy_cache", ".ruff_cache", "build")
# These read the sources as text, which in the copy is not what people wrote.
READ_SOURCES = ("house", "docs_pages", "packaging", "patterns", "runs_docs")


def copy_of_the_project(work: Path) -> Path:
    """The project with all faults behind switches, made once per work folder."""
    tree = work / "tree"
    if not (work / "places.json").exists():
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*SKIPPED))
        faults = [fault for room in ROOMS for fault in all_faults(tree / "src/onecard", room)]
        instrument(tree / "src" / "onecard", faults)
        (work / "places.json").write_text(json.dumps([vars(each) for each in faults]))
    return tree


def renew_tests(tree: Path) -> None:
    shutil.rmtree(tree / "tests")
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=shutil.ignore_patterns(*SKIPPED))


def pytest(work: Path, mode: str, *arguments: str, wanted: Sequence[int] = ()) -> int:
    """pytest in the copy, with the plugin `mutant_runner`."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(work / "tree" / "src"), str(ROOT / "tools")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "MUTANTS_WORK": str(work),
        "MUTANTS_MODE": mode,
        "ONECARD_PROFILE": "first_failure",
    }
    environment["MUTANTS_WANTED"] = json.dumps(list(wanted))
    if mode == "import":
        environment["MUTANTS_ACTIVE"] = str(wanted[0])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutant_runner"]
    marks = ["-m", "not gpu and not long", f"--basetemp={work / f'temporary{os.getpid()}'}"]
    marks += [f"--ignore=tests/pure/test_{name}.py" for name in READ_SOURCES]
    return subprocess.run(
        [*command, *marks, *arguments],
        cwd=work / "tree",
        env=environment,
        stdout=subprocess.DEVNULL if mode != "map" else None,
        check=False,
    ).returncode


def read_map(work: Path) -> list[dict]:
    path = work / "map.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_answers(work: Path) -> dict[int, bool]:
    path = work / "answers.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {each["fault"]: each["noticed"] for each in map(json.loads, lines)}


def chosen(faults: list[Fault], count: int, seed: int) -> list[int]:
    """About `count` faults, as many from each room as its share of places; the same for the same seed."""
    numbers: list[int] = []
    for room in ROOMS:
        inside = [number for number, fault in enumerate(faults) if fault.room == room]
        share = max(1, round(count * len(inside) / len(faults)))
        numbers += random.Random(f"{seed} {room}").sample(inside, min(share, len(inside)))
    return numbers


def table(faults: list[Fault], wanted: list[int], answers: dict[int, bool]) -> str:
    rooms = collections.Counter(faults[each].room for each in wanted if each in answers)
    seen = collections.Counter(faults[each].room for each in wanted if answers.get(each))
    rows = [(room, total, seen[room]) for room, total in sorted(rooms.items())]
    rows.append(("all", sum(rooms.values()), sum(seen.values())))
    lines = [f"| {room} | {total} | {good} ({good / total:.0%}) |" for room, total, good in rows]
    return "\n".join(["| room | faults | noticed |", "|---|---|---|", *lines])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="a folder that keeps the results")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", action="append", choices=ROOMS, help="only this room")
    parser.add_argument(
        "--fault", type=int, nargs="+", help="these, by their number in places.json"
    )
    parser.add_argument("--again", action="store_true", help="try survivors with today's tests")
    parser.add_argument("--tests", nargs="+", default=["tests/pure", "tests/torch"])
    parser.add_argument("--map", nargs="*", help="only learn which tests reach what, in these")
    args = parser.parse_args()
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    tree = copy_of_the_project(args.work)
    faults = [Fault(**each) for each in json.loads((args.work / "places.json").read_text())]
    if args.again:
        renew_tests(tree)
        kept = {n: True for n, noticed in read_answers(args.work).items() if noticed}
        lines = [json.dumps({"fault": n, "noticed": True}) + "\n" for n in kept]
        (args.work / "answers.jsonl").write_text("".join(lines))
    if args.map is not None:
        return pytest(args.work, "map", *args.map)
    pytest(args.work, "map", *args.tests)
    rooms = args.room or ROOMS
    drawn = args.fault or chosen(faults, args.count, args.seed)
    wanted = [number for number in drawn if faults[number].room in rooms]
    files = sorted({each["test"].partition("::")[0] for each in read_map(args.work)})
    files = [each for each in files if each.startswith(tuple(args.tests))]
    pytest(args.work, "try", *files, wanted=wanted)
    for number in wanted:  # evaluated by an import, so the switch has to be set before it
        if number not in read_answers(args.work):
            pytest(args.work, "import", *files, wanted=[number])
    answers = read_answers(args.work)
    for number in wanted:
        if not answers.get(number, True):
            print(f"SURVIVED {faults[number]}")
    print("\n" + table(faults, wanted, answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
