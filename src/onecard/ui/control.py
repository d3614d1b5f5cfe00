"""Stopping and resuming a run from the page, where the server was started with --control."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from onecard.errors import UserError
from onecard.runs.record import RunRecord
from onecard.untrusted import printable, read_json

_RESUMED_LOG = "resumed.txt"  # what a run that the page started prints
_START_SECONDS = 30.0  # a run that takes longer to begin is seen in the list when it does
_LONGEST_ERROR = 1000  # bytes
_starting = threading.Lock()  # one at a time: each waits in a thread of the server


def stop_run(folder: Path) -> None:
    """End the run as Ctrl-C does: its step is finished and saved. Only a process that holds the run's lock is signalled."""
    if RunRecord(folder).state != "running":
        raise UserError("this run is not running", hint="there is nothing to stop")
    try:
        saved = read_json(folder / "run.json")
        pid, host = int(saved["pid"]), saved.get("host")
        holder = (folder / "run.lock").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError("this run does not say which process it is") from None
    if host != socket.gethostname():
        raise UserError("this run is on another machine", hint="stop it there")
    if holder.strip() != f"process {pid}" or pid <= 1 or pid == os.getpid():
        raise UserError("run.json and run.lock name different processes", hint="stop it by hand")
    try:
        os.kill(pid, signal.SIGINT if sys.platform != "win32" else signal.SIGTERM)
    except OSError as error:
        raise UserError(f"the run cannot be stopped: {error.strerror or error}") from None


def resume_run(folder: Path) -> None:
    """Start `onecard train --resume` for it, apart from this server: it continues when the page is closed.

    Returns when the run is going; a run that ends at once is an error with its own words.
    """
    if RunRecord(folder).state == "running":
        raise UserError("this run is running already", hint="there is nothing to resume")
    if not _starting.acquire(blocking=False):
        raise UserError("another run is being resumed", hint="try again in a moment")
    try:
        _resume(folder)
    finally:
        _starting.release()


def _resume(folder: Path) -> None:
    command = [sys.executable, "-m", "onecard", "train", "--resume", f"--out_dir={folder}"]
    with open(folder / _RESUMED_LOG, "ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    threading.Thread(target=process.wait, daemon=True).start()  # no zombie is left behind
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and RunRecord(folder).state != "running":
        if process.poll():
            raise UserError(f"the run did not start: {_last_line(folder / _RESUMED_LOG, begin)}")
        time.sleep(0.1)


def _last_line(file: Path, begin: int) -> str:
    with open(file, "rb") as log:
        log.seek(max(begin, log.seek(0, os.SEEK_END) - _LONGEST_ERROR))
        lines = log.read().decode("utf-8", errors="replace").split("\n")
    return printable(next((line.strip() for line in reversed(lines) if line.strip()), ""))
