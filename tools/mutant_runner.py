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
REACHED = WORK / "reached"
MOST_SECONDS = 100.0  # of tests for one fault, the quickest first
PATIENCE = 4.0  # times as long as the tests take without the fault: after that the fault is noticed


def lines(name: str) -> list[dict]:
    path = WORK / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add(name: str, value: dict) -> None:
    with (WORK / name).open("a") as file:
        file.write(json.dumps(value) + "\n")


def pytest_configure(config):
    if MODE == "map":
        REACHED.write_text("")
        os.environ["MUTANTS_REACHED"] = str(REACHED)


def pytest_collection_modifyitems(config, items):
    if MODE == "map":
        if not (WORK / "imported.json").exists() or REACHED.read_text():
            known = set(json.loads((WORK / "imported.json").read_text())) if (
                WORK / "imported.json"
            ).exists() else set()
            known |= {int(line) for line in REACHED.read_text().split()}
            (WORK / "imported.json").write_text(json.dumps(sorted(known)))
        known = {each["test"] for each in lines("map.jsonl")}
        items[:] = [item for item in items if item.nodeid not in known]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    if MODE != "map":
        return (yield)
    from onecard import _mutant_switch

    _mutant_switch.seen.clear()
    REACHED.write_text("")
    began = time.perf_counter()
    item.passed = True
    answer = yield
    places = sorted({int(line) for line in REACHED.read_text().split()})
    seconds = round(time.perf_counter() - began, 3)
    entry = {"test": item.nodeid, "seconds": seconds, "passed": item.passed, "places": places}
    add("map.jsonl", entry)
    return answer


def pytest_runtest_logreport(report):
    pass


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
    items = sorted(
        (item for item in session.items if item.nodeid in known),
        key=lambda item: known[item.nodeid]["seconds"],
    )
    done = {each["fault"] for each in lines("answers.jsonl")}
    imported = set(json.loads((WORK / "imported.json").read_text()))
    wanted = json.loads((WORK / "wanted.json").read_text())
    if MODE == "import":
        wanted = [int(os.environ["MUTANTS_ACTIVE"])]
    for number in wanted:
        if number in done or (MODE == "try" and number in imported):
            continue
        if MODE == "import":
            fault = json.loads((WORK / "places.json").read_text())[number]
            same = {
                n
                for n, each in enumerate(json.loads((WORK / "places.json").read_text()))
                if each["path"] == fault["path"]
            }
        else:
            same = {number}
        chosen, total = [], 0.0
        for item in items:
            if same & set(known[item.nodeid]["places"]):
                total += known[item.nodeid]["seconds"]
                if total > MOST_SECONDS and chosen:
                    break
                chosen.append(item)
        began = time.perf_counter()
        noticed, by = tried(number, chosen, 30 + PATIENCE * total)
        took = round(time.perf_counter() - began, 1)
        add(
            "answers.jsonl",
            {"fault": number, "noticed": noticed, "by": by, "tests": len(chosen), "seconds": took},
        )
    return True


def tried(number, items, patience) -> tuple[bool, str]:
    """Whether a test fails with the fault switched on, and which."""
    first = WORK / "first_failure"
    first.write_text("")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setsid()
        noticed = False
        try:
            os.environ["MUTANTS_ACTIVE"] = str(number)
            from onecard import _mutant_switch

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
