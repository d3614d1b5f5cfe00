"""What differs on Windows, played on this system: files in use, pipes that close, quotes, signals."""

import ast
import errno
import os
import re
import runpy
import signal
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from onecard import cli, files
from onecard.model.checkpoint import in_memory
from onecard.train.run import signals

SOURCES = Path(cli.__file__).parents[1]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mappings")
def test_a_checkpoint_that_was_read_is_not_kept_mapped(tmp_path):
    """On Windows a mapped file cannot be removed, so old checkpoints of a resumed run would stay, half deleted."""
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.arange(100_000.0)}, path)
    kept = in_memory(path)
    assert str(path) not in Path("/proc/self/maps").read_text()
    open_files = {
        os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()
    }
    assert str(path) not in open_files
    assert kept["weight"][-1] == 99_999


def test_a_rename_waits_for_a_virus_scanner(tmp_path, monkeypatch):
    source, target = tmp_path / "new", tmp_path / "old"
    source.write_text("new")
    rename, tries = os.replace, []

    def in_use_twice(a, b):
        tries.append(a)
        if len(tries) <= 2:
            raise PermissionError(errno.EACCES, "in use")
        rename(a, b)

    monkeypatch.setattr(files, "_RENAME_WAITS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(os, "replace", in_use_twice)
    files.replace(source, target)
    assert target.read_text() == "new"
    tries.clear()
    monkeypatch.setattr(files, "_RENAME_WAITS", ())
    with pytest.raises(PermissionError):
        files.replace(target, source)


def test_a_closed_pipe_on_windows_is_no_internal_error(monkeypatch, capsys):
    def closed(words):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(cli, "dispatch", closed)
    monkeypatch.setattr(cli, "silence", lambda stream: None)
    with monkeypatch.context() as windows:
        windows.setattr(sys, "platform", "win32")
        cli.main(["gpus"])
    assert "internal error" not in capsys.readouterr().err
    cli.main(["gpus"])
    assert "internal error" in capsys.readouterr().err  # on Linux it is one


def test_ctrl_break_ends_a_run_on_windows(monkeypatch):
    monkeypatch.setattr(signal, "SIGBREAK", signal.SIGUSR2, raising=False)
    assert signal.SIGUSR2 in runpy.run_path(signals.__file__)["STOPS"]
    assert signal.SIGUSR2 not in signals.STOPS


def test_commands_in_hints_work_in_every_shell():
    """cmd.exe takes single quotes for letters."""
    found = []
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for text in _texts(node):
                commands = re.findall(r"`((?:onecard|pip|python)\b[^`\n]*)`", text)
                found += [(path.name, command) for command in commands if "'" in command]
    assert found == []


def _texts(node: ast.AST) -> list[str]:
    if isinstance(node, ast.JoinedStr):
        return [
            "".join(
                str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values
            )
        ]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
