"""README, CONTRIBUTING and the architecture page: short, and true about which files and rooms there are."""

import html
import importlib.util
import re
import shlex
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from onecard.cli import parser_of
from onecard.config import parse_overrides
from onecard.facts.datasets import DatasetFacts

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def tool_named(name: str):  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_readmes_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    fits, hours, loss = capsys.readouterr().out.split()
    assert fits in ("yes", "no", "tight")
    assert float(hours) > 1
    assert 2 < float(loss) < 4


def architecture():  # type: ignore[no-untyped-def]
    return tool_named("architecture")


def words_of(svg: str) -> list[str]:
    """The text of a drawn terminal: its frames and letters, whatever version of Rich drew it."""
    drawn = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return html.unescape(" ".join(drawn)).replace("\xa0", " ").split()


def test_the_readmes_plan_is_what_the_command_prints_today() -> None:
    """`python tools/picture.py` draws it again."""
    picture = (ROOT / "docs" / "images" / "plan.svg").read_text(encoding="utf-8")
    today = tool_named("picture").plan_picture()
    assert len(words_of(today)) > 80
    assert words_of(picture) == words_of(today)


def test_every_relative_link_and_picture_of_every_page_is_there() -> None:
    shown = set()
    for page in PAGES:
        headings = {}
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            assert path.exists(), (page.name, target)
            shown.add(path)
            if anchor:
                headings[path] = headings.get(path) or anchors_of(path)
                assert anchor in headings[path], (page.name, target)
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture in shown, f"no page shows {picture.name}"


def anchors_of(page: Path) -> set[str]:
    """As GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.long
@pytest.mark.parametrize("name", ["plan", "train", "compare"])
def test_a_newcomer_enters_at_most_thirty_files(name: str) -> None:
    """Traced: the files whose functions a command calls, for `train` up to its first step."""
    tool = architecture()
    files = tool.entered(name, tool.walk(name))
    assert 10 < len(files) <= 30, files


def test_every_room_is_described() -> None:
    tool = architecture()
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


def test_what_a_data_set_needs_is_named_for_contributors() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = text.partition("**a data set**")[2].partition("\n- **")[0]
    needed = [field.name for field in fields(DatasetFacts) if field.default is MISSING]
    for name in ("aliases", "repo", "paths", "url", "columns", "date", *needed):
        assert f"`{name}`" in recipe, name


def guide_commands() -> list[list[str]]:
    """The words of each `onecard …` line in the guide's blocks, comments left out."""
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    lines = "".join(re.findall(r"```\n(.*?)```", text, re.DOTALL)).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("onecard ")]


def test_the_guides_commands_and_options_exist() -> None:
    commands = guide_commands()
    assert len(commands) >= 8
    for verb, *words in commands:
        _, rest = parser_of(verb).parse_known_args(words)
        parse_overrides(rest)


def test_the_guide_samples_from_the_folder_that_it_trains_into() -> None:
    commands = {verb: words for verb, *words in guide_commands()}
    overrides = parse_overrides([word for word in commands["train"] if word.startswith("--")])
    assert commands["sample"][0] == commands["explain"][0] == overrides["out_dir"]
    recommended = commands["recommend"]
    assert recommended[recommended.index("--out") + 1] == commands["train"][0]


def test_tests_that_the_hardware_page_names_are_there() -> None:
    text = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    assert count_named_tests(text, "torch") > 40


def test_every_finding_of_a_first_time_user_has_its_test() -> None:
    text = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
    assert count_named_tests(text.partition("ran into")[2], "pure") > 30


def test_every_finding_of_a_critic_has_its_test() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert count_named_tests(text.partition("What a critic found")[2], "pure") > 10


def count_named_tests(text: str, folder: str) -> int:
    """How many tests a page names as `file: test`; each must be there. Without its folder a file is in `folder`."""
    named = 0
    for file, tests in re.findall(r"((?:\w+/)?test_\w+): ((?:`test_\w+`(?:, )?)+)", text):
        path = ROOT / "tests" / (file if "/" in file else f"{folder}/{file}")
        source = path.with_suffix(".py").read_text(encoding="utf-8")
        for test in re.findall(r"`(\w+)`", tests):
            assert f"def {test}(" in source, (file, test)
            named += 1
    assert named == len(re.findall(r"`test_\w+`", text))
    return named


def test_tests_that_the_reliability_page_names_are_there() -> None:
    """`test_file.py::test_name`, then `::test_name` of the same file."""
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    sources = {
        path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*/test_*.py")
    }
    named, file = 0, ""
    for word in re.findall(r"`(?:tests/\w+/)?((?:test_\w+\.py)?(?:::test_\w+)?|test_\w+)`", text):
        if not word:  # a folder's name alone
            continue
        given, _, test = word.partition("::") if "::" in word else ("", "", word)
        if word.endswith(".py"):
            given, test = word, ""
        file = given or file
        assert f"def {test}(" in sources[file] or not test, (file, test)
        named += bool(test)
    assert named > 90
    for letter, count in (("A", 10), ("D", 26)):
        assert all(f"| {letter}{number} |" in text for number in range(1, count + 1))
