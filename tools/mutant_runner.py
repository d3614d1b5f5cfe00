"""A pytest plugin for `tools/mutants.py`: learns which tests reach which places, and tries faults in forked processes."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

WORK = Path(os.environ["MUTANTS_WORK"])
MODE = os.environ["MUTANTS_MODE"]
REACHED = WORK / f"reached{os.getpid()}"
# Processor time of tests for one fault, the quickest first.
MOST_SECONDS = float(os.environ.get("MUTANTS_SECONDS", "60"))
# Tests that take longer are not used to find faults: there are quicker ones for most places.
SLOWEST_TEST = float(os.environ.get("MUTANTS_SLOWEST_TEST", "600"))
PATIENCE = 20.0  # by the clock, times the processor time without the fault: after that the fault is noticed


def lines(name: str) -> list[dict]:
    path = WORK / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add(name: str, value: dict) -> None:
    with (WORK / name).open("a") as file:
        file.write(json.dumps(value) + "\n")


def processor_seconds() -> float:
    """Of this process and those it waited for: other programs on the machine do not count."""
    return sum(os.times()[:4])


def reached() -> set[int]:
    return {int(line) for line in REACHED.read_text().split()}


def pytest_configure(config):
    if MODE == "map":
        REACHED.write_text("")
        os.environ["MUTANTS_REACHED"] = str(REACHED)


def pytest_collection_modifyitems(config, items):
    """While learning: leave out the tests that are known."""
    if MODE == "map":
        tests = {each["test"] for each in lines("map.jsonl")}
        items[:] = [item for item in items if item.nodeid not in tests]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    if MODE != "map":
        return (yield)
    from onecard import _mutant_switch  # type: ignore[attr-defined]

    _mutant_switch.seen.clear()
    REACHED.write_text("")
    began = processor_seconds()
    item.passed = True
    signal.signal(signal.SIGPROF, lambda *_: pytest.fail("slow"))
    signal.setitimer(signal.ITIMER_PROF, SLOWEST_TEST)
    try:
        answer = yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = round(processor_seconds() - began, 3)
    entry = {
        "test": item.nodeid,
        "seconds": seconds,
        "passed": item.passed,
        "places": sorted(reached()),
    }
    add("map.jsonl", entry)
    return answer


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.passed = False
    return report


def pytest_runtestloop(session):
    if MODE == "map":
        return None
    known = {each["test"]: each for each in lines("map.jsonl") if each["passed"]}
    items = [item for item in session.items if item.nodeid in known]
    items.sort(key=lambda item: known[item.nodeid]["seconds"])
    places = {item: set(known[item.nodeid]["places"]) for item in items}
    faults = json.loads((WORK / "places.json").read_text())
    done = {each["fault"] for each in lines("answers.jsonl")}
    for number in json.loads(os.environ["MUTANTS_WANTED"]):
        if number in done or (MODE == "try" and faults[number]["at_import"]):
            continue
        # what an import evaluates is used by whatever else reaches the same file
        same = {n for n, each in enumerate(faults) if each["path"] == faults[number]["path"]}
        wanted = same if MODE == "import" else {number}
        direct = [item for item in items if places[item] & wanted]
        # a fixture or a cache that several tests share reaches the place in the first of them alone
        files = {file_of(item) for item in direct}
        beside = [item for item in items if file_of(item) in files and item not in direct]
        chosen, total = [], 0.0
        for item in (*direct, *beside):
            total += known[item.nodeid]["seconds"]
            chosen.append(item)
            if total > MOST_SECONDS:
                break
        began = time.perf_counter()
        noticed, by = confirmed(number, chosen, 30 + PATIENCE * total)
        took = round(time.perf_counter() - began, 1)
        answer = {"fault": number, "noticed": noticed, "by": by, "tests": len(chosen)}
        add("answers.jsonl", {**answer, "seconds": took})
    return True


def confirmed(number, items, patience) -> tuple[bool, str]:
    """Whether tests fail with the fault and pass without it: one that fails now and then notices nothing."""
    while True:
        noticed, by = tried(number, items, patience)
        if not noticed or MODE == "import":
            return noticed, by
        failed = [item for item in items if item.nodeid == by] or items
        if not tried(-1, failed, patience)[0]:
            return True, by
        if failed is items:
            return False, f"{by}, with the fault and without"
        items = [item for item in items if item not in failed]


def file_of(item) -> str:
    return item.nodeid.partition("::")[0]


def tried(number, items, patience) -> tuple[bool, str]:
    """Whether a test fails with the fault switched on (-1: none), and which."""
    first = WORK / f"first_failure{os.getpid()}"
    first.write_text("")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setsid()
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
    until = time.monotonic() + patience
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status != 0, first.read_text() or ("" if status == 0 else f"ended by {status}")
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True, "did not end"
