"""Plant random one-place faults in the sources and count how many the tests notice, room by room.

    python tools/mutants.py --work /tmp/mutants --count 220 --seed 1
    python tools/mutants.py --work /tmp/mutants --room advise                 # the same draw, one room of it
    python tools/mutants.py --work /tmp/mutants --again                       # survivors, after new tests were written

A fault turns one comparison, operator, boolean or `not` round. A copy of the project gets the faults that were drawn, each
behind a switch (`before if mutant_reached(17) else after`), so one process can try hundreds: it runs all tests once to learn
which of them reach which place, then forks for each fault, switches it on and runs the tests that reach it, quickest
first, until one fails; that test has to pass once more without the fault, or it does not count. Places that are evaluated
while a module is imported get a process of their own. The folder `--work` keeps the draw and what was found: a run that
was stopped continues. A fault that no test notices is printed with its place, to be looked at one by one;
docs/reliability.md has the last result and names those that change nothing.
"""

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mutant_faults import Fault, all_faults, instrument

ROOT = Path(__file__).parents[1]
SKIPPED = (".git", ".venv", "*.egg-info", "__pycache__", ".mypy_cache", ".ruff_cache", "build")
# These read the sources as text, which in the copy is not what people wrote.
READ_SOURCES = ("house", "docs_pages", "packaging", "patterns", "runs_docs")


def copy_of_the_project(work: Path, count: int, seed: int) -> tuple[list[Fault], list[int]]:
    """All places of the sources, and the drawn ones, which the copy has behind switches. Made once per work folder."""
    tree = work / "tree"
    if not (work / "drawn.json").exists():
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*SKIPPED))
        faults = all_faults(tree / "src/onecard")
        drawn = chosen(faults, count, seed)
        # for a place that an import evaluates: whatever reaches another place of its file
        whole = {faults[number].path for number in drawn if faults[number].at_import}
        more = {number for number, fault in enumerate(faults) if fault.path in whole}
        instrument(tree / "src" / "onecard", faults, more.union(drawn))
        (work / "places.json").write_text(json.dumps([vars(each) for each in faults]))
        (work / "drawn.json").write_text(json.dumps(drawn))
    faults = [Fault(**each) for each in json.loads((work / "places.json").read_text())]
    return faults, json.loads((work / "drawn.json").read_text())


def renew_tests(work: Path) -> None:
    """Today's tests into the copy; what is known of the files that changed is forgotten."""
    old, new = work / "tree/tests", ROOT / "tests"
    changed = {
        f"tests/{path.relative_to(old).as_posix()}"
        for path in old.rglob("*.py")
        if not (same := new / path.relative_to(old)).exists()
        or same.read_bytes() != path.read_bytes()
    }
    shutil.rmtree(old)
    shutil.copytree(new, old, ignore=shutil.ignore_patterns(*SKIPPED))

    def stays(test: str) -> bool:
        return test.partition("::")[0] not in changed

    rewrite(work / "map.jsonl", lambda each: each if stays(each["test"]) else None)
    rewrite(
        work / "answers.jsonl",
        lambda each: {**each, "tests": [test for test in each["tests"] if stays(test)]},
    )


def rewrite(path: Path, new: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Each line of a file changed, or left out."""
    if path.exists():
        lines = [new(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines if line is not None))


def read_durations(work: Path, log: Path) -> None:
    """What each test took, from the log of `pytest --durations=0`: a test that is too slow need not be run to know it."""
    found: dict[str, float] = {}
    for line in log.read_text().splitlines():
        match line.split():
            case [seconds, "call" | "setup", test] if seconds.endswith("s"):
                found[test] = found.get(test, 0.0) + float(seconds.removesuffix("s"))
    (work / "durations.json").write_text(json.dumps(found))


def pytest(
    work: Path, mode: str, limits: dict[str, str], *arguments: str, wanted: Sequence[int] = ()
) -> int:
    """pytest in the copy, with the plugin `mutant_runner`."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(work / "tree" / "src"), str(ROOT / "tools")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "MUTANTS_WORK": str(work),
        "MUTANTS_MODE": mode,
        "ONECARD_PROFILE": "first_failure",
        **limits,
    }
    environment["MUTANTS_WANTED"] = json.dumps(list(wanted))
    if mode == "import":
        environment["MUTANTS_ACTIVE"] = str(wanted[0])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutant_runner"]
    command += ["--doctest-modules", "--doctest-ignore-import-errors", "--doctest-glob=maths.md"]
    marks = ["-m", "not gpu and not long", f"--basetemp={work / f'temporary{os.getpid()}'}"]
    marks.append("--timeout=0")  # by the clock, which goes on while this process waits for others
    marks += [f"--ignore=tests/pure/test_{name}.py" for name in READ_SOURCES]
    return subprocess.run(
        [*command, *marks, *arguments],
        cwd=work / "tree",
        env=environment,
        stdout=subprocess.DEVNULL if mode != "map" else None,
        check=False,
    ).returncode


def read_map(work: Path) -> list[dict[str, Any]]:
    path = work / "map.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_answers(work: Path) -> dict[int, bool]:
    path = work / "answers.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    answers: dict[int, bool] = {}
    for each in map(json.loads, lines):
        answers[each["fault"]] = answers.get(each["fault"], False) or each["noticed"]
    return answers


def chosen(faults: list[Fault], count: int, seed: int) -> list[int]:
    """About `count` faults, as many from each room as its share of places; the same for the same seed."""
    numbers: list[int] = []
    for room in sorted({fault.room for fault in faults}):
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
    parser.add_argument("--count", type=int, default=220)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", action="append", help="only this room")
    parser.add_argument("--again", action="store_true", help="try survivors with today's tests")
    everything = ["tests/pure", "tests/torch", "src/onecard", "docs/maths.md"]  # and doctests
    parser.add_argument("--tests", nargs="+", default=everything)
    parser.add_argument("--map", nargs="+", help="only learn which tests reach what, in these")
    parser.add_argument("--known", action="store_true", help="only the tests that are known by now")
    parser.add_argument(
        "--minutes", default="inf", help="stop after this time; the same command continues"
    )
    parser.add_argument(
        "--slowest", default="600", help="seconds; slower tests are left out, by --durations"
    )
    parser.add_argument("--durations", type=Path, help="a log of `pytest --durations=0`")
    args = parser.parse_args()
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    faults, drawn = copy_of_the_project(args.work, args.count, args.seed)
    if args.durations is not None:
        read_durations(args.work, args.durations)
    if args.again:
        renew_tests(args.work)
    limits = {"MUTANTS_MINUTES": args.minutes, "MUTANTS_SLOWEST_TEST": args.slowest}
    if not args.known:
        pytest(args.work, "map", limits, *(args.map or args.tests))
    if args.map is not None:
        return 0
    wanted = [number for number in drawn if not args.room or faults[number].room in args.room]
    reach = [each for each in read_map(args.work) if each["test"].startswith(tuple(args.tests))]
    noticed = {number for number, seen in read_answers(args.work).items() if seen}
    pytest(args.work, "try", limits, *files_of(reach, {*wanted} - noticed), wanted=wanted)
    for number in wanted:  # evaluated by an import, so the switch has to be set before it
        if faults[number].at_import and number not in noticed:
            same = {n for n, fault in enumerate(faults) if fault.path == faults[number].path}
            pytest(args.work, "import", limits, *files_of(reach, same), wanted=[number])
    answers = read_answers(args.work)
    for number in wanted:
        if not answers.get(number, True):
            print(f"SURVIVED {number} {faults[number]}")
    print("\n" + table(faults, wanted, answers))
    return 0


def files_of(reach: list[dict[str, Any]], places: set[int]) -> list[str]:
    """The test files that reach one of these places."""
    return sorted({each["test"].partition("::")[0] for each in reach if places & {*each["places"]}})


if __name__ == "__main__":
    sys.exit(main())
