"""The workflows: actions pinned by commit, no more rights than needed, one shell on every system."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="the source archive has no workflows")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert used
    for action in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v[\d.]+", action), action


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_may_only_read_unless_they_publish(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "\npermissions: {contents: read}\n" in text
    assert re.findall(r"[\w-]+: write", text) == ["id-token: write"] * (path.stem == "release")
    assert "secrets." not in text


def test_the_job_that_publishes_runs_nothing_of_this_repository() -> None:
    publish = next(path for path in WORKFLOWS if path.stem == "release").read_text(encoding="utf-8")
    publish = publish.partition("\n  publish:\n")[2]
    assert "id-token: write" in publish
    assert "checkout" not in publish
    assert "run:" not in publish


def test_a_failed_command_ends_its_step_on_every_system() -> None:
    """PowerShell, the default on Windows, goes on after a program that failed."""
    text = next(path for path in WORKFLOWS if path.stem == "tests").read_text(encoding="utf-8")
    for job in re.split(r"\n  (?=[\w-]+:\n)", text.partition("\njobs:")[2])[1:]:
        assert re.search(r"defaults: \{run: \{shell: \"?bash", job), job[:40]
