"""Files that are no calibration, or another machine's: ignored with a warning, never an internal error."""

import contextlib
import copy
import dataclasses
import io
import json
import os

import pytest
from calibrations import OBSERVED, SMALL, calibration
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.cli import main
from onecard.planner import calibration_file, plan
from onecard.planner.calibration_file import (
    calibrations_folder,
    read_calibrations,
    write_calibration,
)
from onecard.planner.calibration_json import to_json
from onecard.planner.step_work import PART_OF
from onecard.planner.workload import Workload


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibration_file, "torch_version", lambda: "2.13.0")


FOREIGN = {
    "device": ("CPU, 96 cores", "CPU, 96 cores"),
    "torch": ("2.12.0", "torch 2.12.0"),
    "power_limit_watts": (65.0, "65 W"),
    "memory_bytes": (2**50, "1024.00 TiB"),
}


@pytest.mark.parametrize("key", FOREIGN)
def test_a_foreign_one_is_ignored_with_a_warning(key):
    value, words = FOREIGN[key]
    path = write_calibration(dataclasses.replace(calibration(), **{key: value}))
    planned = plan(SMALL, "cpu")
    assert planned.time.basis == "class"
    (note,) = [note for note in planned.warnings if note.code == "calibration-ignored"]
    assert path.name in str(note)
    assert words in str(note)
    assert not [
        note for note in plan(SMALL, "RTX 4070").warnings if note.code == "calibration-ignored"
    ]
    write_calibration(calibration())  # beside a good one it is no news
    assert not [note for note in plan(SMALL, "cpu").warnings if note.code == "calibration-ignored"]


def damaged():
    good = to_json(calibration())

    def observed(**changes):
        return {
            "observations": [
                {"workload": {**good["observations"][0]["workload"], **changes}, "seconds": 1.0}
            ]
        }

    yield "not JSON", b"\x00\xff{"
    yield "empty", b""
    yield "a list", b"[]"
    yield "deep", b"[" * 100_000
    yield "cut", json.dumps(good).encode()[:500]
    yield "foreign", b'{"schema": "somebody.else/1"}'
    for name, changes in {
        "NaN": {"costs": {"eager": {**good["costs"]["eager"], "head": float("nan")}}},
        "negative": {"costs": {"eager": dict.fromkeys(PART_OF, -1.0)}},
        "nothing": {"costs": {"eager": dict.fromkeys(PART_OF, 0.0)}},
        "no eager": {"costs": {}, "spread": {}},
        "other kinds": {"costs": {"eager": {"speed": 1.0}}},
        "text": {"spread": {"eager": "wide"}},
        "a step of no shape": {"observations": [{"workload": {}, "seconds": 1.0}]},
        "an unknown setting": {"observations": [{"workload": {"colour": 1}, "seconds": 1.0}]},
        "ratio": {"runs": [{"mode": "eager", "ratio": 0}]},
        "a ratio of nothing": {"runs": [{"mode": "eager", "ratio": 1e-300}]},
        "memory": {"memory_bytes": None},
        "more memory than a float holds": {"memory_bytes": 10**400},
        "no rates": {"rates": {}},
        "a dtype of no matmul": {"dtype": "zzz"},
        "no time": {"date": "\ud800"},
        "a step without heads": observed(n_head=0),
        "a step of nothing": observed(batch_size=0),
        "a step of half a layer": observed(n_layer=2.5),
        "a step of no dtype": observed(dtype="zzz"),
        "a step of no number": observed(dropout=float("nan")),
        "a step in no time": {"observations": [{**good["observations"][0], "seconds": 0}]},
        "almost free": {"costs": {"eager": dict.fromkeys(PART_OF, 1e-320)}},
    }.items():
        yield name, json.dumps({**good, **changes}).encode()


@pytest.mark.parametrize(
    ("name", "content"), list(damaged()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_no_calibration_is_ignored_with_a_warning(name, content):
    calibrations_folder().mkdir(parents=True)
    (calibrations_folder() / "bad.json").write_bytes(content)
    planned = plan(SMALL, "cpu")
    assert planned.time.basis == "class"
    (note,) = [note for note in planned.warnings if note.code == "calibration-ignored"]
    assert "bad.json" in str(note)
    assert not [
        note for note in plan(SMALL, "RTX 4070").warnings if note.code == "calibration-ignored"
    ]
    write_calibration(calibration())  # a good one beside it is used all the same
    assert plan(SMALL, "cpu").time.basis == "measured"
    assert len(read_calibrations()) == 1


def places(content, path=()):
    """Every place in a JSON document."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


GOOD = to_json(calibration(observations=tuple(OBSERVED[:2]), runs=(("eager", 1.1),)))


HOSTILE = st.one_of(
    st.sampled_from(
        [
            0,
            -1,
            1,
            0.0,
            1e-320,
            1e-300,
            1e-18,
            1e18,
            1e300,
            10**400,
            float("nan"),
            float("inf"),
            True,
            None,
        ]
    ),
    st.sampled_from(
        ["", "zzz", "\ud800", "\x1b[31m", "[/]", "none", "float16", [], [{}], {}, {"eager": 1}]
    ),
    st.floats(),
    st.integers(),
    st.text(max_size=5),
).map(copy.deepcopy)  # a list that is drawn twice is not put into itself


# what an observation may say beside its shape, for those that differ from their defaults alone are kept
SETTINGS = [field.name for field in dataclasses.fields(Workload)]


@pytest.mark.timeout(3600)
@settings(max_examples=2_000 if os.environ.get("ONECARD_RANDOM") else 60, deadline=None)
@given(st.data())
def test_no_file_brings_a_plan_down(data):
    content = copy.deepcopy(GOOD)
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(content))))
        around = content
        for key in path[:-1]:
            around = around[key]
        if path[-1] == "workload" and isinstance(around["workload"], dict):
            around["workload"][data.draw(st.sampled_from(SETTINGS))] = data.draw(HOSTILE)
        elif isinstance(around, dict) and data.draw(st.integers(0, 5)) == 0:
            del around[path[-1]]
        else:
            around[path[-1]] = data.draw(HOSTILE)
    calibrations_folder().mkdir(parents=True, exist_ok=True)
    (calibrations_folder() / "hostile.json").write_text(json.dumps(content), encoding="utf-8")
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        assert main(["plan", "--gpu", "cpu", "--compile=False"]) == 0, err.getvalue()
        assert main(["probe", "--show", "--device", "cpu"]) in (0, 2), err.getvalue()
        planned = plan(SMALL, "cpu")
    assert "nan" not in out.getvalue().lower().split()
    ignored = any(note.code == "calibration-ignored" for note in planned.warnings)
    assert (
        ignored == (planned.time.basis != "measured") or content["dtype"] != "tf32"
    )  # of a dtype not planned for
