"""log.jsonl: what is written comes back, through tears, resumes and a full disk."""

import json
import math
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecard.runs.log import LONGEST_LINE, LogWriter, read_log


def write_steps(path: Path, steps, **fields):
    log = LogWriter(path)
    for step in steps:
        log.write(kind="step", step=step, **fields)
    log.close()


def test_lines_come_back_flat_and_in_order(tmp_path):
    log = LogWriter(tmp_path / "log.jsonl")
    log.write(kind="start", version="0.1.0")
    log.write(kind="step", step=1, loss=10.8, lr=6e-4)
    assert [line["kind"] for line in read_log(log.path)] == [
        "start",
        "step",
    ]  # readable while it is open
    assert log.offset == log.path.stat().st_size
    log.close()


@given(st.floats(), st.text(), st.none() | st.booleans() | st.integers(-(2**63), 2**63))
def test_any_value_survives_and_the_line_stays_json(tmp_path_factory, loss, text, other):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    log = LogWriter(path)
    log.write(kind="event", loss=loss, text=text, other=other)
    log.close()

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    (raw,) = path.read_text(encoding="utf-8").splitlines()
    json.loads(raw, parse_constant=refuse)
    (line,) = read_log(path)
    assert line["text"] == text
    assert line["other"] == other
    assert line["loss"] == loss or (math.isnan(line["loss"]) and math.isnan(loss))


def test_nan_is_null_with_its_name(tmp_path):
    log = LogWriter(tmp_path / "log.jsonl")
    log.write(kind="step", step=3, loss=float("nan"))
    log.close()
    assert json.loads(log.path.read_text()) == {
        "kind": "step",
        "step": 3,
        "loss": None,
        "loss_text": "nan",
    }


@pytest.mark.parametrize("cut", [1, 2, 10, 20, 39])
def test_a_torn_last_line_is_counted_and_the_next_run_starts_on_a_fresh_one(tmp_path, cut):
    path = tmp_path / "log.jsonl"
    write_steps(path, [1, 2], loss=5.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    write_steps(path, [3], loss=4.0)
    lines = read_log(path)
    steps = [line["step"] for line in lines]
    assert steps == ([1, 2, 3] if cut == 1 else [1, 3])  # cut 1: only the line end was lost
    assert lines.unreadable == (0 if cut == 1 else 1)


def test_a_resume_takes_away_what_the_dead_run_logged_after_its_checkpoint(tmp_path):
    path = tmp_path / "log.jsonl"
    log = LogWriter(path)
    log.write(kind="step", step=1)
    kept = log.offset
    log.write(kind="step", step=2)
    log.close()
    log = LogWriter(path, truncate_at=kept)
    log.write(kind="step", step=2, loss=4.0)
    log.close()
    assert [line.get("loss") for line in read_log(path)] == [None, 4.0]


def test_a_log_shorter_than_the_checkpoint_remembers_is_not_padded(tmp_path):
    path = tmp_path / "log.jsonl"
    write_steps(path, [1])
    log = LogWriter(path, truncate_at=10_000)
    log.write(kind="step", step=2)
    log.close()
    assert b"\0" not in path.read_bytes()
    assert [line["step"] for line in read_log(path)] == [1, 2]


def test_without_truncation_the_last_line_of_a_step_wins(tmp_path):
    path = tmp_path / "log.jsonl"
    log = LogWriter(path)
    for step in (10, 20, 30):
        log.write(kind="step", step=step, loss=1.0)
        log.write(kind="eval", step=step, val_loss=1.0)
    log.write(kind="start", resumed=10)
    log.write(kind="eval", step=10, val_loss=2.0)
    for step in (20, 30, 40):
        log.write(kind="step", step=step, loss=2.0)
    log.close()
    lines = read_log(path)
    got = [
        (line["kind"], line.get("step"), line.get("loss", line.get("val_loss"))) for line in lines
    ]
    assert got == [
        ("step", 10, 1.0),
        ("start", None, None),
        ("eval", 10, 2.0),
        ("step", 20, 2.0),
        ("step", 30, 2.0),
        ("step", 40, 2.0),
    ]
    assert lines.superseded == 5


def test_two_resumes_of_which_the_second_goes_further_back(tmp_path):
    path = tmp_path / "log.jsonl"
    write_steps(path, [1, 2, 3, 4], loss=1.0)
    write_steps(path, [3, 4, 5], loss=2.0)
    write_steps(path, [2, 3], loss=3.0)
    assert [(line["step"], line["loss"]) for line in read_log(path)] == [
        (1, 1.0),
        (2, 3.0),
        (3, 3.0),
    ]


def test_damage_is_skipped_and_counted(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        b'{"kind":"step","step":1}\n\xff\xfe\n[1]\n'
        + b"x" * (2 * LONGEST_LINE + 5)
        + b"\n\n"
        + b"[" * 100_000
        + b"\n"
        + b'{"kind":"step","step":2}\n'
    )
    lines = read_log(path)
    assert [line["step"] for line in lines] == [1, 2]
    assert lines.unreadable == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_warns_once_and_the_run_goes_on(tmp_path):
    path = tmp_path / "log.jsonl"
    path.symlink_to("/dev/full")
    message = []
    log = LogWriter(path, warn=message.append)
    for step in range(3):
        log.write(kind="step", step=step)
    log.close()
    assert len(message) == 1
    assert "No space left" in message[0]
    assert log.lost == 3
    assert log.offset == 0


def test_a_disk_with_room_again_gets_whole_lines(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "log.jsonl"
    log = LogWriter(path, warn=lambda text: None)
    log.write(kind="step", step=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (log.offset + 10, hard)
        )  # the kernel tears the next line
        log.write(kind="step", step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    log.write(kind="step", step=3)
    log.close()
    assert log.lost == 1
    lines = read_log(path)
    assert [line["step"] for line in lines] == [1, 3]
    assert lines.unreadable == 0


def test_a_kind_that_is_no_text_is_passed_over(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [{"kind": "step", "step": 5}, {"kind": [], "step": 3}, {"kind": "step", "step": 2}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [line["step"] for line in read_log(path) if line["kind"] == "step"] == [2]
