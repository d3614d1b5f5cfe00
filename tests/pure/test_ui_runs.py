"""Runs on the page: logs read as they grow, in bounded memory; what is shown is what the commands say."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from starlette.testclient import TestClient
from ui_server import make_run

from onecard.cli import main
from onecard.facts.prices import electricity
from onecard.report.language import language
from onecard.runs.folder import read_folder
from onecard.runs.follow import LogFollower
from onecard.runs.log import LONGEST_LINE
from onecard.ui.app import application
from onecard.ui.registry import Registry
from onecard.ui.run_series import CAPACITY
from onecard.ui.run_watch import RunWatch, run_row
from onecard.ui.runs_api import RunsApi
from onecard.ui.settings import Settings

WORLD = electricity("WORLD")


def line(step: int, loss: float = 3.0, **more) -> str:
    return json.dumps({"kind": "step", "step": step, "loss": loss, "seconds": step, **more}) + "\n"


def steps(follower: LogFollower) -> list[int]:
    return [found["step"] for _, found in follower.read()]


def test_a_log_is_followed_line_by_line(tmp_path):
    log = tmp_path / "log.jsonl"
    follower = LogFollower(log)
    assert steps(follower) == []
    log.write_text(line(1) + line(2)[:-5])
    assert steps(follower) == [1]  # the torn one waits for its end
    log.write_text(line(1) + line(2) + "junk\n" + line(3))
    assert steps(follower) == [2, 3]
    assert follower.unreadable == 1


def test_a_line_too_long_to_hold_is_passed_over_once(tmp_path):
    log = tmp_path / "log.jsonl"
    follower = LogFollower(log)
    log.write_text(line(1) + "x" * (LONGEST_LINE + 7) + "y" * 100 + "\n" + line(2))
    assert steps(follower) == [1, 2]
    assert (steps(follower), follower.unreadable) == ([], 1)
    with log.open("a") as file:
        file.write("x" * (LONGEST_LINE + 7) + "y" * 100 + "\n")
    assert steps(follower) == []
    with log.open("a") as file:
        file.write(line(3))
    assert (steps(follower), follower.restarted) == ([3], False)


def test_a_log_that_was_cut_and_grew_again_is_read_from_its_start(tmp_path):
    log = tmp_path / "log.jsonl"
    follower = LogFollower(log)
    log.write_text("".join(line(step, 3.0) for step in range(1, 6)))
    assert steps(follower) == [1, 2, 3, 4, 5]
    log.write_text("".join(line(step, 2.5 if step > 2 else 3.0) for step in range(1, 9)))
    assert steps(follower) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert follower.restarted


def test_a_long_run_is_a_bounded_number_of_points_with_its_extremes(tmp_path):
    make_run(tmp_path / "run")
    count = 30_000
    (tmp_path / "run" / "log.jsonl").write_text(
        "".join(
            line(
                s, 99.0 if s == 12_345 else 3.0, tokens=s * 10, memory_bytes=2e9 if s > 9e3 else 1e9
            )
            for s in range(1, count + 1)
        )
    )
    watch = RunWatch(tmp_path / "run", WORLD)
    while watch.advance():
        pass
    points = watch.series.points()
    assert len(points["step"]) <= CAPACITY
    assert max(points["high"]) == 99.0
    assert max(points["loss"]) < 99.0  # a mean of its neighbours
    detail = watch.zoom(12_340, 12_350)
    assert detail["step"] == [float(step) for step in range(12_340, 12_351)]
    assert detail["loss"][5] == 99.0
    assert read_folder(tmp_path / "run").memory_bytes == 2e9  # the most, however late it came


def test_a_page_takes_all_points_again_when_the_log_was_cut(tmp_path):
    make_run(tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    log.write_text("".join(line(step, 3.0) for step in range(1, 6)))
    watch = RunWatch(tmp_path / "run", WORLD)
    watch.advance()
    first = watch.points_since(-1, 0)
    assert (first.start, first.points["step"]) == (0, [1.0, 2.0, 3.0, 4.0, 5.0])
    with log.open("a") as file:
        file.write(line(6, 2.9))
    watch.advance()
    second = watch.points_since(first.version, first.count)
    assert (second.start, second.points["step"]) == (4, [5.0, 6.0])
    log.write_text("".join(line(step, 2.5) for step in range(1, 4)))
    while watch.advance():
        pass
    third = watch.points_since(second.version, second.count)
    assert (third.start, third.points["loss"]) == (0, [2.5, 2.5, 2.5])


def test_an_open_page_gets_the_points_that_are_new(tmp_path, monkeypatch):
    monkeypatch.setattr("onecard.ui.runs_api.POLL_SECONDS", 0.01)
    make_run(tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    log.write_text("".join(line(step) for step in range(1, 4)))
    settings = Settings(root=tmp_path.resolve())

    async def messages() -> list[dict]:
        changes = RunsApi(settings, Registry(settings))._run_changes("run", language("en"))
        first = await anext(changes)
        with log.open("a") as file:
            file.write(line(4))
        return [first, await anext(changes), await anext(changes)]

    first, second, third = asyncio.run(messages())
    assert (first["from"], first["points"]["step"]) == (0, [1.0, 2.0, 3.0])
    assert (second["from"], second["points"]["step"]) == (2, [3.0, 4.0])
    assert "points" not in third


def test_a_closer_look_at_most_of_a_long_run_reads_nothing_again(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    log.write_text("".join(line(step, 3.0) for step in range(1, 5001)))
    watch = RunWatch(tmp_path / "run", WORLD)
    while watch.advance():
        pass
    assert watch.zoom(100, 110)["step"] == [float(step) for step in range(100, 111)]  # read again
    monkeypatch.setattr("onecard.ui.run_watch.MOST_ZOOM_BYTES", 1000)
    log.write_bytes(b"")
    detail = watch.zoom(100, 4000)
    assert 900 < len(detail["step"]) < CAPACITY
    assert 100 <= detail["step"][0] <= detail["step"][-1] <= 4000


def test_a_resume_takes_back_the_steps_that_it_does_again(tmp_path):
    make_run(tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    log.write_text("".join(line(step, 5.0) for step in range(1, 11)))
    watch = RunWatch(tmp_path / "run", WORLD)
    watch.advance()
    with log.open("a") as file:
        file.write("".join(line(step, 4.0) for step in range(6, 13)))
    watch.advance()
    points = watch.series.points()
    assert points["step"] == [float(step) for step in range(1, 13)]
    assert points["loss"] == [5.0] * 5 + [4.0] * 7


def test_the_row_of_a_run_is_the_end_of_its_log(tmp_path):
    make_run(tmp_path / "run")
    evaluated = json.dumps({"kind": "eval", "step": 5, "val_loss": 4.5}) + "\n"
    many = "".join(line(s, 3.0, step_seconds=2.0, kwh=1.0) for s in range(6, 3000))
    (tmp_path / "run" / "log.jsonl").write_text(line(1) + evaluated + many)
    row = run_row(tmp_path / "run", "run", WORLD)
    assert (row["step"], row["val_loss"], row["cost"]) == (2999, 4.5, WORLD.per_kwh)


def test_the_last_evaluation_is_found_wherever_the_pieces_that_are_read_meet(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    evaluated = json.dumps({"kind": "eval", "step": 5, "val_loss": 4.5}) + "\n"
    monkeypatch.setattr("onecard.ui.run_watch.TAIL_BYTES", 300)
    for size in range(30, 80):
        monkeypatch.setattr("onecard.ui.run_watch.SLICE_BYTES", size)
        for before in ("", line(1)):
            text = before + evaluated + "".join(line(step) for step in range(6, 12))
            (tmp_path / "run" / "log.jsonl").write_text(text)
            assert run_row(tmp_path / "run", "run", WORLD).get("val_loss") == 4.5
    (tmp_path / "run" / "log.jsonl").write_text(line(6) * 9)
    assert "val_loss" not in run_row(tmp_path / "run", "run", WORLD)


def test_findings_and_comparisons_are_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "one", steps=60)
    make_run(tmp_path / "two", steps=80)
    watch = RunWatch(tmp_path / "one", WORLD)
    watch.advance()
    assert main(["explain", "one", "--json"]) == 0
    message = json.loads(capsys.readouterr().out)["findings"]
    assert [f["rule"] for f in watch.findings(language("en"))] == [f["rule"] for f in message]
    client = TestClient(application(Settings(root=tmp_path.resolve())), base_url="http://localhost")
    shown = client.get("/api/compare?run=one&run=two&lang=en").json()
    assert main(["compare", "one", "two", "--markdown", "--lang", "en"]) == 0
    printed = capsys.readouterr().out.replace("\\", "")
    assert shown["answer"] in printed
    for section in shown["sections"]:
        assert section["title"] in printed


def test_what_is_logged_while_a_run_is_explained_is_explained_too(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    log.write_text("".join(line(step) for step in range(1, 6)))
    watch = RunWatch(tmp_path / "run", WORLD)
    watch.advance()
    reached = []

    def explain(found):
        reached.append(found.run.last_step)
        if len(reached) == 1:  # another page's thread reads on meanwhile
            log.write_text("".join(line(step) for step in range(1, 10)))
            watch.advance()
        return ()

    monkeypatch.setattr("onecard.ui.run_watch.explain", explain)
    for _ in range(3):
        watch.findings(language("en"))
    assert reached == [5, 9]


def test_a_closer_look_waits_until_points_are_merged(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    text = "".join(line(step) for step in range(1, CAPACITY + 1))
    (tmp_path / "run" / "log.jsonl").write_text(text)
    watch = RunWatch(tmp_path / "run", WORLD)
    seen, merged = [], []
    looking = threading.Thread(target=lambda: seen.append(watch.zoom(1000, 1010)["step"]))

    def merge(*given):
        merged.append(1)
        if len(merged) == CAPACITY:  # the first columns have half the points, the others still all
            looking.start()
            looking.join(0.1)
        return given[1]

    monkeypatch.setattr("onecard.ui.run_series._merged", merge)
    while watch.advance():
        pass
    looking.join()
    assert seen == [[float(step) for step in range(1000, 1011)]]


def test_a_row_waits_until_folders_were_looked_for(tmp_path):
    registry = Registry(Settings(root=tmp_path.resolve()))
    adding = threading.Thread(target=registry.row, args=("another", tmp_path))

    class Name(str):
        """Its hash is asked for while the walk goes through the rows."""

        def __hash__(self) -> int:
            if armed and adding.ident is None:
                adding.start()
                adding.join(0.1)
            return super().__hash__()

    armed = False
    registry.row(Name("run"), tmp_path)
    armed = True
    assert registry.folders() == {}
    adding.join()


def test_the_command_starts_a_server_and_says_where(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "onecard", "ui", "--json", "--host", "0.0.0.0", "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        message = json.loads(process.stdout.readline())
        assert message["token"] in message["url"]
        assert len(message["token"]) >= 32
    finally:
        process.terminate()
        process.communicate(timeout=120)


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to others there")
def test_ctrl_c_in_the_middle_of_an_answer_is_no_traceback(tmp_path):
    words = [sys.executable, "-m", "onecard", "ui", "--port", "0", "--no-browser", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        host, _, port = json.loads(process.stdout.readline())["url"][7:-1].partition(":")
        with socket.create_connection((host, int(port))) as line:
            asked = "/api/recommend?gpu=cpu&preset=gpt2&for_hours=90000"  # seconds of work
            line.sendall(f"GET {asked} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert "ERROR" not in errors


@pytest.mark.parametrize(
    "words",
    [["ui", "nowhere"], ["ui", "--token", "short"], ["serve", "."], ["ui", "--port", "99999999"]],
    ids=" ".join,
)
def test_mistakes_are_a_sentence(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert "hint" in capsys.readouterr().err
