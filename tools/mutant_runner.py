"""A pytest plugin for `tools/mutants.py`: learns which tests reach which places, and tries faults in forked processes."""

import collections
import contextlib
import functools
import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

WORK = Path(os.environ["MUTANTS_WORK"])
MODE = os.environ["MUTANTS_MODE"]
REACHED = WORK / f"reached{os.getpid()}"
# Processor time of tests for one fault, the quickest first.
MOST_SECONDS = float(os.environ.get("MUTANTS_SECONDS", "60"))
# Tests that take longer are not used to find faults: there are quicker ones for most places.
SLOWEST_TEST = float(os.environ.get("MUTANTS_SLOWEST_TEST", "600"))
END = time.monotonic() + 60 * float(os.environ.get("MUTANTS_MINUTES", "inf"))
PATIENCE = 20.0  # by the clock, times the processor time without the fault: after that the fault is noticed


begun: set[str] = set()  # test files, while learning


def lines(name: str) -> list[dict[str, Any]]:
    path = WORK / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add(name: str, value: dict[str, Any]) -> None:
    with (WORK / name).open("a") as file:
        file.write(json.dumps(value) + "\n")


def processor_seconds() -> float:
    """Of this process and those it waited for: other programs on the machine do not count."""
    return sum(os.times()[:4])


def reached() -> set[int]:
    return {int(line) for line in REACHED.read_text().split()}


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # through `finally`: what was forked ends
    if MODE == "map":
        REACHED.write_text("")
        os.environ["MUTANTS_REACHED"] = str(REACHED)


def known() -> set[str]:
    """The tests that need not be run to learn what they reach; one that failed gets a second chance."""
    runs = collections.Counter(
        test for each in lines("map.jsonl") for test in [each["test"]] * (1 + each["passed"])
    )
    return {test for test, times in runs.items() if times > 1}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """While learning: leave out the tests that are known or too slow, each file as a whole in an order of this process's
    own, for others may be learning at the same time."""
    if MODE == "map":
        path = WORK / "durations.json"
        slow = json.loads(path.read_text()) if path.exists() else {}
        tests = known() | {test for test, seconds in slow.items() if seconds > SLOWEST_TEST}
        files = sorted({file_of(item) for item in items})
        random.Random(os.getpid()).shuffle(files)
        items[:] = [item for item in items if item.nodeid not in tests]
        items.sort(key=lambda item: files.index(file_of(item)))


def forget_results() -> None:
    """Results that functions keep from call to call: a test that finds them there would not reach what made them."""
    for each in gc.get_objects():
        if type(each) is functools._lru_cache_wrapper and "onecard" in str(each.__module__):
            each.cache_clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: Any, nextitem: pytest.Item | None) -> bool | None:
    if MODE != "map":
        return None
    from onecard import _mutant_switch  # type: ignore[attr-defined]

    if item.nodeid in known():  # by another process, meanwhile
        item.session._setupstate.teardown_exact(nextitem)
        return True
    if file_of(item) not in begun:
        begun.add(file_of(item))
        forget_results()
    _mutant_switch.seen.clear()
    REACHED.write_text("")
    began = processor_seconds()
    item.passed = True
    runtestprotocol(item, nextitem=nextitem)
    entry = {
        "test": item.nodeid,
        "seconds": round(processor_seconds() - began, 3),
        "passed": item.passed,
        "places": sorted(reached()),
    }
    add("map.jsonl", entry)
    if time.monotonic() > END:
        item.session.shouldstop = "the time is over"
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: Any, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.passed = False
    return report


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if MODE == "map":
        return None
    reach = {each["test"]: each for each in lines("map.jsonl") if each["passed"]}
    items = [item for item in session.items if item.nodeid in reach]
    items.sort(key=lambda item: reach[item.nodeid]["seconds"])
    places = {item: set(reach[item.nodeid]["places"]) for item in items}
    faults = json.loads((WORK / "places.json").read_text())
    wanted = json.loads(os.environ["MUTANTS_WANTED"])
    random.Random(os.getpid()).shuffle(wanted)  # others may be trying at the same time
    for number in wanted:
        answers = [each for each in lines("answers.jsonl") if each["fault"] == number]
        if any(each["noticed"] for each in answers) or time.monotonic() > END:
            continue
        if MODE == "try" and faults[number]["at_import"]:
            continue
        # what an import evaluates is used by whatever else reaches the same file
        same = {n for n, each in enumerate(faults) if each["path"] == faults[number]["path"]}
        reaching = same if MODE == "import" else {number}
        direct = [item for item in items if places[item] & reaching]
        # a fixture or a cache that several tests share reaches the place in the first of them alone
        files = {file_of(item) for item in direct}
        beside = [item for item in items if file_of(item) in files and item not in direct]
        before = {test for each in answers for test in each["tests"]}
        seconds = {item: reach[item.nodeid]["seconds"] for item in items}
        first = affordable(direct, seconds, MOST_SECONDS)
        chosen = [*first, *affordable(beside, seconds, MOST_SECONDS / 4)]
        chosen = [item for item in chosen if item.nodeid not in before]
        if answers and not chosen:
            continue
        began = time.perf_counter()
        patience = 30 + PATIENCE * sum(seconds[item] for item in chosen)
        noticed, by = confirmed(number, chosen, patience)
        took = round(time.perf_counter() - began, 1)
        tests = [item.nodeid for item in chosen]
        answer = {"fault": number, "noticed": noticed, "by": by, "seconds": took, "tests": tests}
        add("answers.jsonl", answer)
    return True


def affordable(
    items: list[pytest.Item], seconds: Mapping[pytest.Item, float], most: float
) -> list[pytest.Item]:
    """The first of them, the quickest, up to so many seconds in all."""
    total = 0.0
    chosen: list[pytest.Item] = []
    for item in items:
        total += seconds[item]
        if chosen and total > most:
            break
        chosen.append(item)
    return chosen


def confirmed(number: int, items: list[pytest.Item], patience: float) -> tuple[bool, str]:
    """Whether a test fails with the fault, passes without it and fails with it again: one that fails now and then notices nothing."""
    while True:
        noticed, by = tried(number, items, patience)
        if not noticed or MODE == "import":
            return noticed, by
        failed = [item for item in items if item.nodeid == by] or items
        if not tried(-1, failed, patience)[0] and tried(number, failed, patience)[0]:
            return True, by
        if failed is items:
            return False, f"{by}, with the fault and without"
        items = [item for item in items if item not in failed]


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def tried(number: int, items: list[pytest.Item], patience: float) -> tuple[bool, str]:
    """Whether a test fails with the fault switched on (-1: none), and which."""
    first = WORK / f"first_failure{os.getpid()}"
    first.write_text("")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        noticed = False
        try:
            os.environ["MUTANTS_ACTIVE"] = str(number)
            from onecard import _mutant_switch  # type: ignore[attr-defined]

            _mutant_switch.active = number
            for i, item in enumerate(items):
                following = items[i + 1] if i + 1 < len(items) else None
                reports = runtestprotocol(item, log=False, nextitem=following)
                if any(report.failed for report in reports):
                    first.write_text(item.nodeid)
                    noticed = True
                    break
        except BaseException as error:
            first.write_text(repr(error))
            noticed = True
        finally:
            os._exit(1 if noticed else 0)
    try:
        waited, before = 0.0, time.monotonic()
        while waited < patience:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                why = "" if status == 0 else f"ended by {status}"
                return status != 0, first.read_text() or why
            time.sleep(0.02)
            # a long pause is one in which this process was not run, and the other was not either
            waited += min(time.monotonic() - before, 0.1)
            before = time.monotonic()
        return True, "did not end"
    finally:  # also where this process is asked to end
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
