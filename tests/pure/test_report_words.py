"""Words stay whole at every width and in every language; untrusted names and huge numbers stay readable."""

import re
import sys
from dataclasses import replace
from functools import cache

import pytest
from report_plans import plan_4070, plan_too_large
from run_logs import small_run, wide_run

from onecard.advise import small_run as small
from onecard.advise.can import can
from onecard.advise.recommend import recommend
from onecard.advise.search import Budget
from onecard.facts.data_files import table
from onecard.facts.prices import electricity
from onecard.messages import LARGEST, T
from onecard.planner import resolve_device
from onecard.report import language, shortened, show, terminal, terminal_widths
from onecard.report.can_view import can_document
from onecard.report.compare_view import compare_document, explain_document
from onecard.report.document import Document, Figure, Figures, Quantity, Section
from onecard.report.plan_summary import kept_name
from onecard.report.plan_view import plan_document
from onecard.report.recommend_view import recommend_document, small_run_document
from onecard.runs.compare import compare
from onecard.runs.explain import explain
from onecard.runs.figures import figures
from onecard.runs.read import read_runs
from onecard.units import YEAR

pytestmark = pytest.mark.usefixtures("tuned_once")
NO_BREAK = "\u2060"  # stands for the spaces inside figures, to see whether a line breaks there
FRAME = "│╭╮╰╯─━┬┴├┤┼╞╡═ \n"


def runs(tmp_path):  # type: ignore[no-untyped-def]
    found = []
    for name, text in (("small", small_run()), ("a-wider-model", wide_run())):
        path = tmp_path / f"{name}.log"
        path.write_text(text, encoding="utf-8")
        found.append(figures(read_runs(str(path))[-1], resolve_device("RTX 4070")))
    return found


@cache
def recommended():  # type: ignore[no-untyped-def]
    return recommend("RTX 4070", Budget(seconds=72_000.0))


@cache
def documents(folder) -> dict[str, Document]:  # type: ignore[no-untyped-def]
    pair = runs(folder)
    whole = {
        "plan": plan_document(plan_4070(), explain=True),
        "plan, too large": plan_document(plan_too_large()),
        "can": can_document(can("gpt2-xl", "RTX 4070", utilization=0.9), explain=True),
        "recommend": recommend_document(recommended(), "run.toml", explain=True),
        "small run": small_run_document(small.small_run("cpu", 3_600.0), "run.toml"),
        "compare": compare_document(compare(pair), explain=True),
        "explain": explain_document(pair[0], explain(pair[0])),
    }
    return whole | {f"{name}, short": shortened(each) for name, each in whole.items()}


def broken(document: Document, lang: str, width: int, monkeypatch) -> set[str]:  # type: ignore[no-untyped-def]
    """Pieces of the page that are no whole word of what the document says."""
    message: set[str] = set()
    keep = terminal._Page._kept

    def remember(page, words):  # type: ignore[no-untyped-def]
        kept = keep(page, words)
        message.update(kept.translate(seen).split(" "))
        return kept

    seen = {**terminal_widths.RESTORED, 0xE000: NO_BREAK}
    monkeypatch.setattr(terminal._Page, "_kept", remember)
    monkeypatch.setattr(terminal, "RESTORED", seen)
    page = show(document, lang=lang, width=width, color=False, encoding="utf-8")
    pieces = {piece for piece in re.split(f"[{FRAME}]+", page) if re.search(r"\w", piece)}
    pieces = {piece for piece in pieces if not re.fullmatch("[\u2800-\u28ff█▓▒░▞▤▪◦·]+", piece)}
    ends = {word.rstrip(":") for word in message} | {
        word + ":" for word in message
    }  # titles of records
    return pieces - message - ends


@pytest.mark.parametrize("width", [80, 100, 120, 160])
@pytest.mark.parametrize("lang", ["en", "es", "hi"])
def test_no_word_or_number_is_broken(lang, width, tmp_path_factory, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.getbasetemp() / "runs"
    folder.mkdir(exist_ok=True)
    for name, document in documents(folder).items():
        assert broken(document, lang, width, monkeypatch) == set(), name


ENGLISH = {
    *("the", "this", "that", "takes", "hours", "card", "and", "from", "than", "losses", "found"),
    *("unpublished", "estimates", "records", "knowledge", "household", "fork", "discussion"),
}


@pytest.mark.parametrize("lang", ["es", "hi"])
def test_no_report_has_english_in_it(lang, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    """Formulas and sources too: a source is a paper, a file or a number."""
    folder = tmp_path_factory.getbasetemp() / "runs"
    folder.mkdir(exist_ok=True)
    pages = {name: show(each, "markdown", lang) for name, each in documents(folder).items()}
    for row in table("electricity"):
        pages[row["region"]] = language(lang).text(electricity(row["region"]).source)
    for name, page in pages.items():
        words = set(re.findall(r"(?<![\w./=-])[a-z]{3,}(?![\w/=]|\.\w)", page))
        assert not words & ENGLISH, name


@pytest.mark.parametrize("name", ["plan", "can", "recommend", "small run", "compare", "explain"])
def test_the_short_form_answers_first(name, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.getbasetemp() / "runs"
    folder.mkdir(exist_ok=True)
    whole, short = documents(folder)[name], documents(folder)[f"{name}, short"]
    lines = show(short, lang="en", width=80, color=False, encoding="utf-8").splitlines()
    most = len(show(whole, lang="en", width=80, color=False, encoding="utf-8").splitlines())
    assert len(lines) <= 65
    assert len(lines) < 0.7 * most or most < 45
    assert "--full" in " ".join(lines[-3:])
    assert whole.answer is not None or name == "plan"
    if whole.answer is not None:
        first = language("en").sentence(whole.answer).replace("\u00a0", " ")
        assert first in " ".join(" ".join(lines[:6]).split())
    else:
        assert "fits" in "\n".join(lines[:6])


def test_the_short_plan_says_what_to_change() -> None:
    document = shortened(plan_document(plan_too_large()))
    shown = show(document, lang="en", width=100, color=False, encoding="utf-8")
    plan = plan_too_large()
    fitting = [note for note in plan.memory.changes if note.code == "memory.change.yes"]
    for note in (fitting[0], *plan.warnings):
        assert str(note)[:30] in shown
    assert "still too much" not in shown  # what would not be enough stands in the full report
    whole = show(plan_document(plan), "markdown", lang="en")
    assert whole.index("it fits") < whole.index("still too much")


@pytest.mark.parametrize(
    ("lang", "shown"), [("en", "CPU, 2 cores"), ("es", "CPU, 2 núcleos"), ("hi", "CPU, 2 कोर")]
)
def test_a_processor_read_back_from_a_file_is_named_in_the_reader_s_words(lang, shown) -> None:
    assert language(lang).value(kept_name("CPU, 2 cores")) == shown
    assert language(lang).value(kept_name("RTX 4070")) == "RTX 4070"


def test_escapes_and_markup_of_names_are_shown_as_text() -> None:
    name = "exp[lr=1e-3][/bold]\x1b[2J\u202e"
    document = Document(T("{name}", name=name), (Section(name, (Figures((Figure(name, name),)),)),))
    for form in ("terminal", "markdown", "html"):
        shown = show(document, form, lang="en", width=100, color=True, encoding="utf-8")
        assert "\x1b[2J" not in shown
        assert "\u202e" not in shown
        assert "[lr=1e-3]" in shown.replace("\\", "")


@pytest.mark.parametrize("lang", ["en", "es", "hi"])
@pytest.mark.parametrize("spec", ["int", ".1f", ",.2f", ",d"])
def test_a_number_without_end_is_a_power_of_ten(lang: str, spec: str) -> None:
    """The perplexity of a run that diverged has hundreds of digits."""
    shown = language(lang).quantity(Quantity(int(3e200), spec))
    assert "× 10²⁰⁰".replace(" ", "\u00a0") in shown
    assert len(shown) < 20
    assert "× 10¹⁵".replace(" ", "\u00a0") in language(lang).quantity(Quantity(LARGEST, spec))


@pytest.mark.parametrize(
    ("lang", "text", "shown"),
    [
        ("en", "Mar-Sep 2026", "Mar-Sep 2026"),
        ("es", "Mar-Sep 2026", "mar-sept 2026"),
        ("hi", "Mar-Sep 2026", "मार्च-सित॰ 2026"),
        ("es", "Q2 2025", "T2 2025"),
        ("es", "~2025", "~2025"),
    ],
)
def test_periods_have_the_languages_months(lang: str, text: str, shown: str) -> None:
    assert language(lang).quantity(Quantity(text, "period")).replace("\u00a0", " ") == shown


@pytest.mark.parametrize(
    ("lang", "shown"),
    [("en", ("1 y", "2.5 y")), ("es", ("1 año", "2,5 años")), ("hi", ("1 साल", "2.5 साल"))],
)
def test_a_year_is_one(lang: str, shown: tuple[str, str]) -> None:
    words = language(lang)
    found = tuple(words.text(T("{time:duration}", time=years * YEAR)) for years in (1, 2.5))
    assert tuple(text.replace("\u00a0", " ") for text in found) == shown


@pytest.mark.parametrize("form", ["--html", "--markdown", "--json"])
def test_pages_are_utf8_whatever_the_terminal_is(form: str) -> None:
    import os
    import subprocess

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "onecard",
            "plan",
            "gpt2",
            "--gpu",
            "RTX 4070",
            "--lang",
            "hi",
            form,
        ],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    text = done.stdout.decode("utf-8")
    assert "�" not in text
    assert ("मेमोरी" in text) if form != "--json" else ("×" in text)


@pytest.mark.parametrize("in_support", [True, False])
def test_a_size_without_public_runs_near_it_is_said_to_be_a_rough_estimate(in_support):
    answer = recommended()
    s = answer.sensitivity
    half, double = (each and replace(each, in_support=in_support) for each in (s.half, s.double))
    assert half or double
    changed = replace(answer, sensitivity=replace(s, half=half, double=double))
    text = show(recommend_document(changed, "run.toml"), "markdown", lang="en")
    assert ("One of these would see fewer tokens" in text) == (not in_support)
