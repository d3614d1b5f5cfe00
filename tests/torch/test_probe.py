"""`onecard probe` on the CPU, with shapes small enough to repeat; the real ones are bench/probe_accuracy.py's."""

import functools
import itertools
import json

import pytest
import torch
from runs_in_tests import TINY

from onecard.cli import main
from onecard.config import load, to_nanogpt
from onecard.facts.here import cpu
from onecard.planner import plan
from onecard.planner.calibration_file import (
    calibrations_folder,
    load_calibration,
    write_calibration,
)
from onecard.runs.refine_calibration import refine_from_run
from onecard.train import probe as probing
from onecard.train.probe import probe
from onecard.train.probe_rates import hints_of, measure_rates

SHAPES = ((1, 1, 16, 16, 2, 1, 64), (2, 2, 32, 16, 2, 1, 64), (2, 2, 32, 16, 4, 2, 512))


@functools.cache
def rates_once(*asked) -> dict[str, float]:
    """Measured on this machine, for all tests: a second's work."""
    return measure_rates(*asked)


@pytest.fixture(autouse=True)
def small_probe(home, monkeypatch):
    monkeypatch.setattr(probing, "CPU_QUICK", SHAPES)
    monkeypatch.setattr(probing, "measure_rates", lambda *asked: dict(rates_once(*asked)))


def test_probe_measures_keeps_shows_and_forgets(capsys):
    assert main(["probe", "--quick", "--device", "cpu", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "onecard.calibration/1"
    assert answer["torch"] == torch.__version__.partition("+")[0]
    assert len(answer["observations"]) == len(SHAPES)
    assert all(rate > 0 for rate in answer["rates"].values())
    assert load_calibration(cpu()) is not None

    planned = plan(TINY.replace(dropout=0.0), "cpu")
    assert planned.time.basis == "measured"
    seconds = answer["observations"][1]["seconds"]  # the same shape, half the rows
    assert seconds < planned.time.step_seconds.mid < 20 * seconds

    assert main(["probe", "--show", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "large matmul" in shown
    assert answer["file"] in shown.replace("\n", "")
    assert main(["probe", "--forget", "--device", "cpu"]) == 0
    assert load_calibration(cpu()) is None
    assert main(["probe", "--show", "--device", "cpu"]) == 2
    assert "onecard probe" in capsys.readouterr().err


@pytest.mark.parametrize(("tick", "shapes", "rounds"), [(0.1, 5, 3), (5.0, 4, 1)])
def test_a_slow_machine_measures_fewer_shapes_and_rounds(monkeypatch, tick, shapes, rounds):
    """Within twice the time it was given; the clock continues by `tick` at each look, the steps take none of it."""
    clock, done = itertools.count(), []

    def steps(self, count):
        done.append(count)
        return [0.01] * count

    monkeypatch.setattr(probing.time, "perf_counter", lambda: tick * next(clock))
    monkeypatch.setattr(probing.Turn, "steps", steps)
    configs = [probing.config_of((1, 1, 16, 8 * n, 1, 1, 64), False) for n in range(1, 6)]
    progress_calls = []
    seen = probing.measure_steps(
        torch.device("cpu"), configs, 9.0, lambda *each: progress_calls.append(each)
    )
    assert {whole for _, whole, words in progress_calls if "first of each" in words} == {1.3 * 9.0}
    assert len(seen) == shapes
    assert max(done) == 20  # of steps that take a hundredth of a second there is time for more
    assert (
        len(done) == 2 * shapes + 2 * shapes * rounds
    )  # two looks at each shape, then two a round


def test_a_probes_steps_have_the_rows_of_its_shape():
    config = probing.config_of((1, 2, 16, 24, 3, 2, 64), False)
    turn = probing.start(torch.device("cpu"), config)
    assert turn.rows.shape == (3 * 2, 24 + 1)


def test_hints_are_the_cost_of_one_unit_of_each_kind_of_work():
    rates = {"matmul": 4e12, "matmul_head": 2e12, "copy": 1e10, "fresh": 5e9}
    found = hints_of({**rates, "operation_seconds": 1e-6})
    assert found["blocks"] == pytest.approx(1 / 4e12)
    assert found["head"] == pytest.approx(1 / 2e12)
    assert found["layers"] == found["logits"] == found["weights"] == pytest.approx(1e-10)
    assert found["fresh"] == pytest.approx(2e-10)
    assert found["kernels"] == pytest.approx(1e-6)


@pytest.mark.parametrize("end", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_probe_leaves_the_old_calibration(monkeypatch, capsys, end):
    old = write_calibration(probe(quick=True, asked="cpu"))
    before = old.read_bytes()
    turns = []
    steps = probing.Turn.steps

    def interrupted(self, count):
        turns.append(count)
        if len(turns) == 8:  # in the middle of the rounds
            raise end("stopped")
        return steps(self, count)

    monkeypatch.setattr(probing.Turn, "steps", interrupted)
    assert main(["probe", "--quick", "--device", "cpu"]) == (
        130 if end is KeyboardInterrupt else 70
    )
    assert old.read_bytes() == before
    assert list(calibrations_folder().iterdir()) == [old]


def test_a_shape_that_does_not_fit_is_left_out(monkeypatch):
    start = probing.start

    def too_large(device, config):
        turn = start(device, config)
        if config.n_layer == 1:
            turn.stepper._accumulate = lambda *args: (_ for _ in ()).throw(
                torch.OutOfMemoryError("no memory")
            )
        return turn

    monkeypatch.setattr(probing, "start", too_large)
    progress_calls = []
    found = probe(quick=True, tell=lambda *progress: progress_calls.append(progress), asked="cpu")
    assert len(found.observations) == len(SHAPES) - 1
    rounds = [done / whole for done, whole, what in progress_calls if "round" in what]
    assert rounds == sorted(rounds)
    assert 0.5 < rounds[-1] < 1


def test_rates_are_of_this_machine():
    rates = measure_rates(torch.device("cpu"), "float32", quick=True)
    assert 1e8 < rates["matmul"] < 1e14
    assert 1e7 < rates["copy"] < 1e13
    assert 0 < rates["host_seconds"] <= rates["operation_seconds"] < 1e-2


def test_a_finished_training_refines_it(config, tmp_path, capsys):
    write_calibration(probe(quick=True, asked="cpu"))
    file = tmp_path / "tiny.py"
    file.write_text(to_nanogpt(config.replace(vocab_size=None, max_iters=10)))
    assert main(["train", str(file), "--quiet"]) == 0
    assert load_calibration(cpu()).runs == ()  # too short to learn from
    assert (
        main(["train", str(file), "--quiet", "--max_iters=40", f"--out_dir={tmp_path / 'longer'}"])
        == 0
    )
    learned = load_calibration(cpu()).runs
    assert [mode for mode, _ in learned] in (
        ["eager"],
        [],
    )  # none where the machine was busy with something else
    assert main(["probe", "--show", "--device", "cpu"]) == 0
    assert ("1 finished" in capsys.readouterr().out) == bool(learned)

    log = tmp_path / "longer" / "log.jsonl"
    planned = plan(load(tmp_path / "longer" / "config.toml"), "cpu").time.step_seconds.mid
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for wait, teaches in ((0.4, False), (0.01, True)):  # beside other programs, and alone
        written = [
            line | {"step_seconds": 1.1 * planned, "cpu_wait": wait}
            if line["kind"] == "step"
            else line
            for line in lines
        ]
        log.write_text("".join(json.dumps(line) + "\n" for line in written))
        assert (refine_from_run(tmp_path / "longer") is not None) == teaches


def test_a_round_that_does_not_fit_loses_that_round_alone(monkeypatch):
    steps, calls = probing.Turn.steps, []

    def taken(self, count):
        calls.append(count)
        if (
            len(calls) == 9
        ):  # two for each shape before the rounds, then in the second of the first round
            raise torch.OutOfMemoryError("CUDA out of memory")
        return steps(self, count)

    monkeypatch.setattr(probing.Turn, "steps", taken)
    assert len(probe(quick=True, asked="cpu").observations) == len(SHAPES)


def test_one_shape_at_a_time_is_on_the_card(monkeypatch):
    """The card's part played by torch's own bookkeeping: each turn comes, steps, and leaves before the next."""
    moves = []

    class OnACard:
        device = torch.device("cuda", 0)

    turn = probing.start(torch.device("cpu"), probing.config_of(SHAPES[0], False))
    turn.steps(1)
    turn.rows = OnACard()
    monkeypatch.setattr(turn, "move", lambda device: moves.append(str(device)))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: moves.append("emptied"))
    with turn.resident():
        moves.append("steps")
    assert moves == ["cuda:0", "steps", "cpu", "emptied"]


def test_moving_a_turn_takes_weights_and_moments_along():
    turn = probing.start(torch.device("cpu"), probing.config_of(SHAPES[0], False))
    turn.steps(1)
    turn.move("meta")
    assert {p.device.type for p in turn.stepper.model.parameters()} == {"meta"}
    moments = [v for state in turn.stepper.optimizer.state.values() for v in state.values()]
    assert moments
    assert {v.device.type for v in moments} == {"meta"}
    assert all(p.grad is None for p in turn.stepper.model.parameters())


def test_a_busy_machine_is_refused_unless_it_is_kept(monkeypatch, capsys):
    from onecard.planner.calibration import Calibration

    measured = probe(quick=True, asked="cpu")
    monkeypatch.setattr(probing, "probe", lambda *args: measured)
    monkeypatch.setattr(Calibration, "disturbed", property(lambda self: 4.28))
    assert main(["probe", "--quick", "--device", "cpu"]) == 1
    assert "off by 428%; nothing was kept" in capsys.readouterr().err
    assert load_calibration(cpu()) is None
    assert main(["probe", "--quick", "--device", "cpu", "--keep"]) == 0
    assert load_calibration(cpu()) is not None
