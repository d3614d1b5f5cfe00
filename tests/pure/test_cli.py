"""The command line as a person meets it: exit codes, one sentence and a hint, clean pipes."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from onecard.cli import VERBS, main, parser_of
from onecard.config import parse_overrides


def onecard(*words, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "onecard", *words],
        capture_output=True,
        text=True,
        check=False,
        **kwargs,
    )


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_helps_with_an_example(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    shown = capsys.readouterr().out
    assert stopped.value.code == 0
    assert "example:" in shown
    assert f"onecard {verb}" in shown
    assert "--json" in shown
    assert all(len(line) <= 80 for line in shown.partition("example:")[0].splitlines())


@pytest.mark.parametrize("verb", VERBS)
def test_the_options_of_every_example_exist(verb):
    """And what an example trains on is made by the example's line before it, unless it is a config file of one's own."""
    example = importlib.import_module(f"onecard.cli.{verb.replace('-', '_')}").EXAMPLE
    typed = [
        line.strip() for line in example.splitlines() if re.match(r" *onecard |.*\| onecard", line)
    ]
    commands = [shlex.split(line, comments=True) for line in typed]
    commands = [words[words.index("onecard") + 1 :] for words in commands]
    assert any(command[0] == verb for command in commands)
    made = set()
    for name, *words in commands:
        args, rest = parser_of(name).parse_known_args(words)
        overrides = parse_overrides([word for word in rest if word.startswith("--")])
        if name == "data" and getattr(args, "out", None):
            made.add(Path(args.out).name)
        if "dataset" in overrides:
            assert overrides["dataset"] in made


def test_overview_and_version(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert main(["--version"]) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["pln"],
        ["plan", "no-such-config"],
        ["plan", "gpt2", "--gpu", "RTX 4071"],
        ["plan", "gpt2", "--gpu", "A100"],
        ["plan", "gpt2", "--gpu", "RTX 4070", "--gpus", "7"],
        ["plan", "gpt2", "--gpu", "RTX 4070", "--gpus", "many"],
        ["plan", "gpt2", "--gpu", "RTX 4070", "--n_layr=3"],
        ["plan", "gpt2", "--gpu", "RTX 4070", "--frobnicate"],
        ["plan", "gpt2", "--gpu", "RTX 4070", "--set", "n_layer"],
        ["plan", "gpt2", "--gpu", "RTX 4070", "--data", "nonsuch"],
        ["plan", "gpt2", "--gpu", "RTX 4070", "--price", "much"],
        ["plan", "gpt2", "--gpu", "RTX 4070", "--lang", "tlh"],
        ["plan", "gpt2", "--gpu", "RTX 4070", "--json", "--markdown"],
        ["plan", "gpt2", "gpt2"],
        ["plan", "configs/absent.py"],
        ["recommend", "--gpu", "RTX 4070", "--hours", "many"],
        ["go", "--budget", "much", "--yes"],
        ["data", "nonsuch"],
        ["gpus", "nothing-of-that-name"],
        ["gpus", "--wat"],
    ],
)
def test_mistakes_exit_with_2_and_a_hint(words, capsys):
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.strip().splitlines()
    assert lines[0].startswith("onecard: ")
    assert lines[1].startswith("  hint: ")
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plan", "gpt2", "gpt2"], "one word too many: 'gpt2'"),
        (["plan", "gpt2", "--batch_size", "14"], "one word too many: '14'; write --batch_size=14"),
        (["plan", "configs/absent.py"], "no file 'configs/absent.py'"),
        (["can", "gpt2", "--gpu", "4070", "--gpu", "4090"], "--gpu is given twice"),
        (["recommend", "--gpu", "4070", "--gpu", "4090"], "--gpu is given twice"),
        (["explain", "a.log", "--gpu", "4070", "--gpu", "4090"], "--gpu is given twice"),
        (["plan", "gpt2", "--json", "--html"], "--html: not allowed with --json"),
        (["go", "--budget", "much", "--yes"], "'much' is not an amount of money"),
    ],
)
def test_a_mistake_is_named(words, sentence, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"onecard: {sentence}")


def test_json_is_one_document(capsys):
    assert main(["plan", "gpt2", "--gpu", "RTX 4070", "--json", "--n_layer=6"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["config"]["n_layer"] == 6
    assert answer["schema"] == "onecard.plan/1"


@pytest.mark.parametrize("option", ["--markdown", "--html", "--explain"])
def test_other_views(option, capsys):
    assert main(["plan", "gpt2", "--gpu", "RTX 4070", option]) == 0
    assert "RTX 4070" in capsys.readouterr().out


def test_clean_in_a_pipe_and_with_a_reader_that_goes_away():
    shown = onecard("plan", "gpt2", "--gpu", "RTX 4070")
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    command = f"set -o pipefail; {Path(sys.executable).as_posix()} -m onecard gpus | head -1"
    gone = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (gone.stderr, gone.returncode) == ("", 0)


def test_an_ascii_terminal_still_shows_everything():
    shown = onecard(
        "plan",
        "gpt2",
        "--gpu",
        "RTX 4070",
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
    )
    assert shown.returncode == 0
    assert "GiB" in shown.stdout


@pytest.mark.parametrize("columns", ["80", "140"])
def test_no_line_is_wider_than_the_terminal(columns):
    import os

    shown = onecard("plan", "gpt2-xl", "--gpu", "RTX 4070", env={**os.environ, "COLUMNS": columns})
    assert max(map(len, shown.stdout.splitlines())) <= int(columns)


def test_gpus_here_and_search(capsys):
    assert main(["gpus", "--here", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert first["name"]
    assert first["sustained_flops"] > 0
    assert main(["gpus", "ada", "12gb"]) == 0
    shown = capsys.readouterr().out
    assert "RTX 4070 Ti" in shown
    assert "RTX 3090" not in shown
    assert "sustained" in shown


def test_presets_are_listed(capsys):
    assert main(["plan", "--presets", "--json"]) == 0
    assert "gpt2-xl" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_the_list_of_presets_stays_within_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["plan", "--presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("fineweb-124M-24gb ") for line in lines)


def test_an_internal_error_is_a_sentence_and_a_file_with_the_traceback(
    monkeypatch, capsys, tmp_path
):
    import tempfile

    import onecard.cli.gpus as verb

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(verb, "run", lambda args: 1 / 0)
    assert main(["gpus"]) == 70
    shown = capsys.readouterr().err
    (written,) = tmp_path.iterdir()
    assert shown.startswith("onecard: internal error: ZeroDivisionError: division by zero\n")
    assert "report it" in shown
    assert str(written) in shown
    assert "Traceback" not in shown
    text = written.read_text()
    assert text.startswith("onecard ")
    assert "ZeroDivisionError" in text
    assert written.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("ONECARD_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["gpus"])


def test_parsers_take_no_abbreviations():
    assert parser_of("plan").allow_abbrev is False


@pytest.mark.skipif(sys.platform == "win32", reason="a shell's >&- is of Unix")
@pytest.mark.parametrize(
    "words", ["plan gpt2 --gpu 4070", "plan gpt2 --gpu 4070 --json", "gpus 4070"]
)
def test_closed_and_full_outputs(words):
    command = f"{sys.executable} -m onecard {words}"
    closed = subprocess.run(
        f"{command} >&-", shell=True, capture_output=True, text=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, "")
    if Path("/dev/full").exists():
        full = subprocess.run(
            f"{command} >/dev/full", shell=True, capture_output=True, text=True, check=False
        )
        assert full.returncode == 1
        assert full.stderr.startswith("onecard: No space left")


def test_a_second_run_in_a_folder_is_refused_before_its_plan(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("onecard.cli.train.train_config", lambda *_: 0)
    (tmp_path / "log.jsonl").write_text("")
    for more in ("--resume", "--init_from=resume"):  # nanoGPT's own way
        assert main(["train", "gpt2", f"--out_dir={tmp_path}", more]) in (0, 2)
        assert "already holds a run" not in capsys.readouterr().err
    assert main(["train", "gpt2", f"--out_dir={tmp_path}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "already holds a run" in err
    assert "--resume" in err


def test_a_count_that_is_no_number_is_answered_in_plain_words(capsys):
    assert main(["sample", "out", "--tokens", "many"]) == 2
    assert "--tokens: 'many' is not a whole number" in capsys.readouterr().err


def test_the_run_that_the_help_of_train_shows_raises_no_warning(capsys):
    lines = parser_of("train").format_help().splitlines()
    example = next(line for line in lines if line.startswith("  onecard train "))
    assert main(["plan", *shlex.split(example)[2:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
