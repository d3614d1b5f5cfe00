"""Three languages: complete catalogues, the same figures in each, numbers as each locale writes them."""

import functools
import importlib.util
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_plans import plan_4070, plan_tiny, plan_too_large

from onecard.errors import UserError
from onecard.messages import Note, Plural, T
from onecard.report import language, show
from onecard.report.document import Quantity
from onecard.report.language import NAMES
from onecard.report.plan_view import plan_document

TOOL = Path(__file__).parents[2] / "tools" / "messages.py"


@functools.cache  # it goes through the whole source once
def tool():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("messages_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_language_has_a_complete_catalogue() -> None:
    assert {"en", *tool().LANGUAGES} == set(NAMES)
    for lang in tool().LANGUAGES:
        assert tool().check(lang) == [], "python tools/messages.py update, then translate"


def test_templates_are_written_out() -> None:
    assert tool().computed() == []


def test_the_check_finds_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fuzzy, an empty, a stale and a misquoted message are each named."""
    module = tool()
    original = module.po_path("es").read_text(encoding="utf-8")
    folder = tmp_path / "es" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    broken = original.replace('msgstr "Energía"', 'msgstr ""').replace(
        'msgid "Perplexity"', 'msgid "Perplexed"'
    )
    broken = broken.replace('msgstr "en {n:int} ', 'msgstr "en {m:int} ').replace(
        "sobre {unique:count}", "sobre {unique}"
    )
    broken = broken.replace('msgid "Verdict"', '#, fuzzy\nmsgid "Verdict"')
    (folder / "onecard.po").write_text(broken, encoding="utf-8")
    monkeypatch.setattr(module, "LOCALES", tmp_path)
    found = {problem.split(":")[0] for problem in module.check("es")}
    assert found >= {
        "untranslated",
        "missing",
        "stale",
        "placeholders",
        "fuzzy",
    }


def test_a_catalogue_is_read_compiled_or_from_its_source(tmp_path: Path) -> None:
    """The compiled file where it is there and current (an install has it alone), else the source."""
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po

    from onecard.report.language import _catalogue

    source, compiled = tmp_path / "onecard.po", tmp_path / "onecard.mo"
    source.write_text('msgid "Energy"\nmsgstr "Energía"\n', encoding="utf-8")
    assert _catalogue(tmp_path).gettext("Energy") == "Energía"
    with source.open("rb") as po, compiled.open("wb") as mo:
        write_mo(mo, read_po(po))
    source.write_text('msgid "Energy"\nmsgstr "Energía eléctrica"\n', encoding="utf-8")
    os.utime(compiled, (1, 1))
    os.utime(source, (2, 2))
    assert _catalogue(tmp_path).gettext("Energy") == "Energía eléctrica"
    source.unlink()
    assert _catalogue(tmp_path).gettext("Energy") == "Energía"


REPLACED = {
    "es": "la pérdida es igual a|al GPT-2 publicado en|hecho caber|con ahorros|mil M|Qué sale de ahí|reñid|"
    "Entregado|calendario|En qué se va un paso|el mayor que sí(?! cabe)|gruesa|corrió|usted|horquilla|"
    r"lo hace caber|Qué tan|\blotes?\b|En los mismos|Sucesos|veces más con",
    "hi": "छप|छाप|चुनाव|एक स्टेप कहाँ|सीमा इससे|सपाट|समय से आगे|प्रक्रिया|की ली हुई|मुश्किल से|का अतिरिक्त|"
    "संख्या नहीं|कैलेंडर|उपाय|(?<!क़)कीमत|तरीके|"
    "अच्छी रेट|सतर्क लर्निंग रेट के हैं|सार्वजनिक रन पर|भाग-दर-भाग",
}


@pytest.mark.parametrize("lang", ["es", "hi"])
def test_words_that_native_readers_replaced_stay_replaced(lang: str) -> None:
    """Also one form of address, one word for a range, one spelling: चरण is a stage, never a step."""
    catalogue = {message.id: message.string for message in tool().read(lang) if message.id}
    for template, words in catalogue.items():
        text = words if isinstance(words, str) else " ".join(words)
        assert not re.search(REPLACED[lang], text), text
        assert "चरण" not in text or "tage" in template, text


def figures(text: str, lang: str) -> list[float]:
    """Every number of a report, read back by the rules of its language, suffixes and all."""
    scales = {"es": {"M": 1e6, "B": 1e12}}.get(lang, {"M": 1e6, "B": 1e9, "T": 1e12})
    text = text.replace("\u00a0", " ")
    found = []
    for number, suffix in re.findall(r"(?<![\w\u0900-\u097f.,-])(\d[\d.,]*)(?: (M|B|T)\b)?", text):
        plain = number.rstrip(".,")
        plain = plain.replace(".", "").replace(",", ".") if lang == "es" else plain.replace(",", "")
        found.append(float(plain) * scales.get(suffix, 1))
    return sorted(found)


@pytest.mark.parametrize("plan", [plan_4070, plan_too_large, plan_tiny])
def test_each_language_holds_the_same_figures(plan) -> None:  # type: ignore[no-untyped-def]
    made = plan()
    document = plan_document(made)

    def figures_in(lang: str) -> list[float]:
        page = show(document, "markdown", lang).replace("\\", "")
        for run in made.known_runs:  # "GPT-2 1.5B" is a name
            page = page.replace(run.name, "")
        return figures(page, lang)

    english = figures_in("en")
    assert len(english) > 60
    for lang in ("es", "hi"):
        assert figures_in(lang) == pytest.approx(english), lang


@pytest.mark.parametrize("plan", [plan_4070, plan_too_large, plan_tiny])
def test_no_english_is_left(plan) -> None:  # type: ignore[no-untyped-def]
    """Words of English sentences, which are no field words, do not appear in the other languages."""
    document = plan_document(plan())
    for lang in ("es", "hi"):
        page = show(document, "markdown", lang).replace("weights = ", "")  # a config key
        words = set(re.findall(r"[a-z]{3,}", page))
        assert not words & {
            "the",
            "this",
            "steps",
            "memory",
            "takes",
            "tokens of",
            "weights",
            "hours",
            "card",
            "warning",
        }


@pytest.mark.parametrize(
    ("lang", "value", "spec", "shown"),
    [
        ("es", 10486.5, ",.1f", "10.486,5"),
        ("es_MX", 10486.5, ",.1f", "10,486.5"),
        ("hi", 524_288, "int", "5,24,288"),
        ("es", 524_288, "int", "524.288"),
        ("es", 10_485_760_000, "count", "10.490 M"),
        ("hi", 10_485_760_000, "count", "10.49 B"),
        ("es", 0.691, "percent", "69 %"),
        ("hi", 0.691, "percent", "69%"),
        ("es", 0.129, ".1%", "12,9 %"),
        ("es", (0.62, "EUR"), "money", "0,62 €"),
        ("hi", (62.5, "INR"), "money", "₹62.50"),
        ("en", (62.5, "CHF"), "money", "CHF 62.50"),
        ("en", (419.15, "USD"), "money", "$419"),
        ("es", (419.15, "EUR"), "money", "419 €"),
        ("es", 2.55e18, "power", "2,55 × 10¹⁸"),
        ("es", 7.47e9, "bytes", "6,96 GiB"),
        ("es", "2026-03-14T07:12:00", "when", "sáb 14 mar, 07:12"),
        ("hi", "2026-03-14T07:12:00", "when", "शनि 14 मार्च, 07:12"),
        ("en", "2026-03-14T07:12:00", "when", "Sat 14 Mar, 07:12"),
        ("es", "2028-03-14T07:12:00", "date", "14 mar 2028"),
        ("hi", 4_000.0 * 60, "duration", "2 दिन 19 घंटे"),
        ("hi", 6_300.0, "duration", "1 घंटा 45 मिनट"),
        ("es", 3.9, "duration", "3,90 s"),
        ("es", 6e-4, "g", "0,0006"),
        ("es", 6e-5, "g", "6e-05"),
        ("es", 0.0123, "+.3f", "+0,012"),
        ("es", -0.0123, "+.3f", "-0,012"),
        ("es", 1234567, ",d", "1.234.567"),
    ],
)
def test_quantities(lang: str, value: object, spec: str, shown: str) -> None:
    assert language(lang).quantity(Quantity(value, spec)).replace("\u00a0", " ") == shown


@given(st.floats(0.011, 1e14), st.sampled_from(["int", "bytes", "percent", "power", ",.2f"]))
def test_the_same_digits_in_every_language(value: float, spec: str) -> None:
    """Languages differ in signs, never in rounding."""
    signs = str.maketrans("", "", "., \u00a0%×⁰¹²³⁴⁵⁶⁷⁸⁹MBTGiKmil")
    shown = {
        language(lang).quantity(Quantity(value, spec)).translate(signs)
        for lang in ("en", "es", "es_MX", "hi")
    }
    assert len(shown) == 1


@given(st.floats(0.011, 1e15))
def test_the_same_count_in_every_language(value: float) -> None:
    """Spanish counts thousands of millions: other digits, the same number."""
    shown = {
        lang: language(lang).quantity(Quantity(value, "count")).replace("\u00a0", " ")
        for lang in ("en", "es", "hi")
    }
    assert figures(shown["es"], "es") == pytest.approx(figures(shown["en"], "en"))
    assert figures(shown["hi"], "hi") == figures(shown["en"], "en")


@given(st.floats(0.001, 1e10))
def test_durations_have_the_same_figures(seconds: float) -> None:
    message = [
        re.findall(r"\d+", language(lang).quantity(Quantity(seconds, "duration")))
        for lang in ("en", "es", "hi")
    ]
    assert message[0] == message[1] == message[2]


def test_a_span_has_its_unit_once() -> None:
    speech = language("en")

    def span(low: float, high: float, unit: str = "") -> str:
        return speech.span(Quantity(low, ".2f", unit), Quantity(high, ".2f", unit))

    assert span(6.9, 7.42, "GiB") == "6.90 – 7.42\u00a0GiB"
    assert span(6.9, 7.42) == "6.90 – 7.42"
    assert span(7.421, 7.422, "GiB") == "7.42\u00a0GiB"


def test_plurals() -> None:
    one, two = (
        Plural("There is {n:int} warning.", "There are {n:int} warnings.", n=n) for n in (1, 2)
    )
    assert (str(one), str(two)) == ("There is 1 warning.", "There are 2 warnings.")
    assert language("es").text(one) == "Hay 1 advertencia."
    assert language("es").text(two) == "Hay 2 advertencias."
    assert language("hi").text(two) == "2 चेतावनियाँ हैं।"


def test_a_note_is_a_sentence_in_the_readers_language() -> None:
    note = Note("head-width", head=32)
    assert language("es").sentence(note).startswith("Las cabezas tienen un ancho de 32")
    assert language("hi").sentence(note).endswith("।")
    assert language("en").sentence(T("{card} it is", card="gpt")) == "gpt it is."


@pytest.mark.parametrize(
    ("environ", "code", "locale"),
    [
        ({}, "en", "en"),
        ({"LANG": "es_MX.UTF-8"}, "es", "es_MX"),
        ({"LANG": "es_ES", "LC_MESSAGES": "hi_IN.UTF-8"}, "hi", "hi_IN"),
        ({"LC_ALL": "C", "LANG": "es_ES"}, "en", "en"),
        ({"LC_ALL": "", "LANG": "es"}, "es", "es"),
        ({"LANG": "es_QQ"}, "es", "es"),
        ({"LANG": "es-mx@euro"}, "es", "es_MX"),
        ({"LANG": "fr_FR.UTF-8"}, "en", "en"),
        ({"LANG": "\udcff\x00;;__"}, "en", "en"),
    ],
)
def test_the_locale_chooses(environ: dict[str, str], code: str, locale: str) -> None:
    chosen = language(None, environ)
    assert (chosen.code, chosen.locale) == (code, locale)


@pytest.mark.parametrize("asked", ["fr", "xx", "", "engl ish", "\udcff", "e" * 1000])
def test_an_unknown_language_asked_for_is_a_mistake(asked: str) -> None:
    with pytest.raises(UserError, match="no reports in the language") as caught:
        language(asked)
    assert caught.value.hint
