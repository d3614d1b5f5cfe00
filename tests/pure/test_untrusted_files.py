"""Untrusted files, made by hypothesis: a result or one sentence from every reader, never exit 70; and names from
outside never reach the terminal as commands or markup."""

import contextlib
import io
import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_runs_folder import make

from onecard.cli import main
from onecard.config import load
from onecard.errors import UserError
from onecard.facts.user_cards import read_user_cards
from onecard.runs.explain import explain
from onecard.runs.figures import figures
from onecard.runs.folder import read_folder
from onecard.runs.read import read_runs

CASES = settings(
    max_examples=10_000 if os.environ.get("ONECARD_RANDOM") else 150,  # `make test-long`: new cases
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -1, 0, 1e308, -1e-308, "nan", "\x1b[2J", "\ud800", [], {}, [{}]]),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
)
KEYS = st.sampled_from(
    [
        "kind",
        "step",
        "loss",
        "step_seconds",
        "mfu",
        "kwh",
        "seconds",
        "memory_bytes",
        "data_wait",
        "watts",
        "val_loss",
        "train_loss",
        "bits_per_byte",
        "event",
        "key",
        "before",
        "after",
        "text",
        "environment",
        "gpu",
        "device",
        "dtype",
        "dataset_tokens",
        "parameters",
        "processes",
        "peak_flops",
        "config",
    ]
)
LINE = st.dictionaries(KEYS, ODD, max_size=8).map(
    lambda line: line | ({"kind": "step"} if len(line) % 2 else {})
)
NAMES = st.sampled_from(
    [
        "n_layer",
        "n_embd",
        "n_head",
        "block_size",
        "batch_size",
        "max_iters",
        "learning_rate",
        "dtype",
        "dataset",
        "compile",
        "vocab_size",
        "out_dir",
        "x",
    ]
)
VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.sampled_from(
        [
            "True",
            "'bfloat16'",
            '"\\d"',
            "1/0",
            "2**3**4",
            "-'a'",
            "[1]",
            "f()",
            "x",
            "not None",
            "1e400",
            "10**19",
        ]
    ),
    st.text(max_size=6),
)
SOURCE = st.lists(
    st.one_of(st.tuples(NAMES, VALUES).map(" = ".join), st.text(max_size=20)), max_size=8
).map("\n".join)


def clean(call):
    """A result or a UserError, within seconds."""
    began = time.thread_time()
    with contextlib.suppress(UserError):
        call()
    assert time.thread_time() - began < 5


def check_folder(folder):
    run = read_folder(folder)
    if run is not None:
        f = figures(run)
        json.dumps(f.to_json(), allow_nan=False)
        json.dumps([finding.to_json() for finding in explain(f)], allow_nan=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("run") / "out", steps=60).path


def folder_of(folder, lines, plan, state):
    start = (folder / "log.jsonl").read_bytes().split(b"\n")[0]
    log = folder.parent / "log.jsonl"
    body = b"\n".join([start, *(json.dumps(line).encode() for line in lines)])
    log.write_bytes(body)
    with contextlib.ExitStack() as stack:
        for name, content in (("log.jsonl", body), ("plan.json", plan), ("run.json", state)):
            before = (folder / name).read_bytes()
            stack.callback((folder / name).write_bytes, before)
            (folder / name).write_bytes(content)
        clean(lambda: check_folder(folder))


TREE = st.recursive(
    ODD,
    lambda inner: st.dictionaries(
        st.sampled_from(
            [
                "time",
                "step_seconds",
                "mid",
                "low",
                "high",
                "memory",
                "loss",
                "expected",
                "energy",
                "kwh",
                "mfu",
                "card",
                "state",
                "host",
                "pid",
            ]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)
FOLDER = (
    st.lists(LINE, max_size=12),
    TREE.map(lambda v: json.dumps(v).encode()),
    TREE.map(lambda v: json.dumps(v).encode()),
)


@pytest.mark.timeout(3600)
@CASES
@given(*FOLDER)
def test_run_folders(folder, lines, plan, state):
    folder_of(folder, lines, plan, state)


@pytest.mark.timeout(3600)
@CASES
@given(SOURCE, st.sampled_from([".py", ".toml"]))
def test_configs(tmp_path, source, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(source.encode("utf-8", errors="surrogatepass"))
    clean(lambda: load(path))


@pytest.mark.timeout(3600)
@CASES
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["name", "like", "memory_gib", "watts", "bf16_tflops", "x"]), VALUES
        ),
        max_size=5,
    )
)
def test_card_files(tmp_path, pairs):
    path = tmp_path / "card.toml"
    text = "[[gpu]]\n" + "\n".join(f"{key} = {value}" for key, value in pairs)
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    clean(lambda: read_user_cards(path, must_exist=True))


@pytest.mark.timeout(3600)
@CASES
@given(
    st.lists(
        st.lists(
            st.one_of(
                st.sampled_from(
                    [
                        "step",
                        "loss",
                        "a - loss",
                        "b - val_loss",
                        "tokens",
                        "mfu",
                        "_timestamp",
                        "1",
                        "2",
                        "3.5",
                        "nan",
                        "inf",
                        "1e400",
                        '"',
                        "",
                    ]
                ),
                st.text(max_size=5),
            ),
            max_size=5,
        ).map(",".join),
        max_size=8,
    ).map("\n".join)
)
def test_csv(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    clean(lambda: [figures(run).to_json() for run in read_runs(str(path))])


@pytest.mark.parametrize("value", ["NaN", "1e999", "1" + "0" * 400, '"x"'])
def test_a_plan_without_numbers_gives_no_figures(folder, capsys, value):
    before = (folder / "plan.json").read_text()
    (folder / "plan.json").write_text(f'{{"time": {{"step_seconds": {{"mid": {value}}}}}}}')
    try:
        assert main(["compare", str(folder), str(folder), "--json"]) == 0
    finally:
        (folder / "plan.json").write_text(before)
    text = capsys.readouterr().out
    assert "NaN" not in text
    assert "Infinity" not in text
    if value != "NaN":  # a file that is no JSON is none; the plan is made again
        assert json.loads(text)["runs"][0]["predicted"]["step_seconds"] is None


@pytest.mark.parametrize(("opening", "middle", "end"), [("[", "", "]"), ('{"a":', "1", "}")])
def test_json_is_read_to_a_depth_of_a_hundred(opening, middle, end):
    from onecard.untrusted import MOST_JSON_DEPTH, parse_json

    for depth in (1, MOST_JSON_DEPTH):
        assert parse_json(opening * depth + middle + end * depth) is not None
    for depth in (MOST_JSON_DEPTH + 1, 900, 100_000):
        for text in (opening * depth + middle + end * depth, opening * depth):
            with pytest.raises(ValueError):
                parse_json(text)
            with pytest.raises(ValueError):
                parse_json(text.encode())
    assert parse_json("[" + "[]," * 5000 + "[]]")  # wide is not deep


@pytest.mark.parametrize("name", ["exp[lr=1e-3]", "a[/b]c", "x\x1b[2Jy", "a\u202eb"])
def test_names_of_folders_are_neither_markup_nor_commands(tmp_path, capsys, name):
    make(tmp_path / name, steps=20)
    assert main(["runs", str(tmp_path)]) == 0
    shown = "".join(capsys.readouterr().out.replace("│", "").split())
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    visible = name.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert visible in shown
    assert main(["runs", str(tmp_path), "--json"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert json.loads(text)[0]["path"].endswith(name)


def test_a_chart_of_very_many_runs_is_one_sentence(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("Step," + ",".join(f"r{i} - loss" for i in range(100_000)) + "\n1,1\n")
    began = time.thread_time()
    assert main(["compare", str(path)]) == 2
    assert time.thread_time() - began < 10
    assert "runs in one file" in capsys.readouterr().err
    path.write_text(
        "Step," + ",".join(f"r{i} - loss" for i in range(100)) + "\n1" + ",1" * 100 + "\n"
    )
    assert main(["compare", str(path)]) == 2
    assert "too many to compare" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["plan", "gpt2", "--gpu", "4070"], ["gpus", "4070"], ["can", "gpt2", "--gpu", "4070"]]
)
def test_no_home_folder(monkeypatch, capsys, words):
    import pwd

    def nobody(_):
        raise KeyError

    for name in ("HOME", "ONECARD_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert main(words) == 0


def test_odd_surroundings_are_no_internal_error(tmp_path):
    for name, value in (("TZ", "XYZ-167"), ("TZ", "XXX+24"), ("COLUMNS", "²")):
        env = {**os.environ, name: value}
        done = subprocess.run(
            [sys.executable, "-m", "onecard", "plan", "gpt2", "--gpu", "4070"],
            env=env,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, (name, value, done.stderr)


def test_an_argument_that_is_no_text_and_a_device(tmp_path, capsys):
    assert main(["plan", "gpt2", "--gpu", "4070", "--out_dir=a\udcff"]) == 2
    assert "not UTF-8" in capsys.readouterr().err
    if os.path.exists("/dev/zero"):
        assert main(["explain", "/dev/zero"]) == 2
    assert main(["explain", "x" * 5000]) == 2


def test_config_warnings_stay_off_the_terminal(tmp_path):
    path = tmp_path / "a.py"
    path.write_text('out_dir = "C:\\data"\n')
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        load(path)
    assert shown.getvalue() == ""
