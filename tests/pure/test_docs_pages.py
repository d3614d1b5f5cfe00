"""README, CONTRIBUTING and the architecture page: short, and true about which files and rooms there are."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_every_room_is_described() -> None:
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "tools/architecture.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert tool.undescribed(page) == []
    assert tool.undescribed(page.replace("`planner`", "")) == ["planner"]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", "docs/architecture.md"])
def test_files_that_pages_name_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"\b((?:src/onecard|tests|tools|docs)/[\w/.-]+\w)", text)
    links = re.findall(r"\]\((?!http)([\w/.-]+)\)", text)
    folder = (ROOT / page).parent
    assert named or links
    for name in named:
        assert (ROOT / name).exists(), name
    for link in links:
        assert (folder / link).exists(), link


def test_tests_that_the_hardware_page_names_are_there() -> None:
    text = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    named = 0
    for file, tests in re.findall(r"((?:pure/)?test_\w+): ((?:`test_\w+`(?:, )?)+)", text):
        folder = ROOT / "tests" if file.startswith("pure/") else ROOT / "tests" / "torch"
        source = (folder / f"{file}.py").read_text(encoding="utf-8")
        for test in re.findall(r"`(\w+)`", tests):
            assert f"def {test}(" in source, (file, test)
            named += 1
    assert named == len(re.findall(r"`test_\w+`", text))
    assert named > 40
