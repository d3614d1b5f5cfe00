"""A run says when other programs take the processor from it."""

import pytest

from onecard.model.processor import waited_seconds
from onecard.runs.log import read_log
from onecard.runs.run import DISTURBED
from onecard.train.run import loop, processor_watch
from onecard.train.run.processor_watch import ProcessorWatch


def test_said_once_when_it_begins_and_once_when_it_is_over(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    now, waited = [0.0], {1: 0.0, 2: 0.0}
    watch = ProcessorWatch(read=lambda: dict(waited), clock=lambda: now[0])
    message = []
    for share in (0.01, 0.6, 0.7, 0.1, 0.02, 0.5):
        now[0] += 10
        waited[2] += 10 * share
        waited[1] += 1e-3
        found = watch.share()
        assert found == pytest.approx(share)
        message.append(watch.sentence(found))
    assert [bool(each) for each in message] == [False, True, False, False, True, True]
    assert "60%" in message[1]
    assert "resumed" in message[1]
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert processor_watch.advice() == ""
    now[0] += 1
    assert watch.share() is None  # too early to tell
    assert watch.sentence(DISTURBED) is None  # below it alone is little


def test_a_run_writes_it_down(config, tmp_path, monkeypatch):
    monkeypatch.setattr(processor_watch, "SECONDS", 0.0)
    monkeypatch.setattr(
        loop, "ProcessorWatch", lambda: ProcessorWatch(read=lambda: {1: disturbed_seconds()})
    )
    clock = iter(range(10_000))

    def disturbed_seconds() -> float:
        return float(next(clock))  # a second more at every reading, which come within milliseconds

    loop.train(config.replace(max_iters=3, log_interval=1, threads=1))
    lines = list(read_log(tmp_path / "run" / "log.jsonl"))
    assert [line["cpu_wait"] for line in lines if line["kind"] == "step"] == [1.0, 1.0, 1.0]
    events = [line for line in lines if line.get("event") == "disturbed"]
    assert len(events) == 1
    assert "other programs" in events[0]["text"]


@pytest.mark.skipif(not waited_seconds(), reason="only Linux counts")
def test_waiting_is_read_from_the_system():
    seen = waited_seconds()
    assert all(seconds >= 0 for seconds in seen.values())
    later = waited_seconds()
    assert all(later[task] >= seen[task] for task in seen if task in later)
