"""The reader's language: words from a gettext catalogue, numbers, dates and money by Babel.

>>> from onecard.messages import T
>>> language("en").text(T("{tokens:count} tokens", tokens=3_680_000_000))
'3.68\xa0B tokens'
>>> language("es").quantity(Quantity(10486.5, ",.1f"))
'10.486,5'

English needs neither a catalogue nor Babel, so that `onecard plan` answers at once. A region chooses the numbers:
`es_MX` is Spanish with 10,486.5.
"""

import gettext
import io
import math
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from onecard.errors import UserError, nearest
from onecard.messages import SHOW, Formula, Plural, T, Words
from onecard.report.document import Figure, Quantity, Text, Value
from onecard.untrusted import printable

LOCALES = Path(__file__).parent / "locales"
NAMES = {"en": "English", "es": "español", "hi": "हिन्दी"}


class Language:
    """Words and numbers of one language."""

    def __init__(self, code: str, locale: str, catalogue: gettext.NullTranslations, words: Words):
        self.code = code
        self.locale = locale
        self._catalogue = catalogue
        self._words = words

    def text(self, words: Text) -> str:
        """The words in this language, their figures formatted; a plain str is a name and stays as it is.

        Names come from other people's files too: what could move a terminal's cursor or hide text is written as an escape.
        """
        if isinstance(words, str):
            return printable(words)
        template = self._template(words)
        if isinstance(words, Formula):
            return template
        values = {name: self._inner(value) for name, value in words.values.items()}
        return self._words.joined(_Kept(self._words).vformat(template, (), values))

    def quantity(self, quantity: Quantity) -> str:
        shown = _Kept(self._words).format_field(quantity.value, quantity.spec)
        unit = self.text(quantity.unit)
        return f"{shown}\u00a0{unit}" if unit else shown

    def value(self, value: Value) -> str:
        return self.quantity(value) if isinstance(value, Quantity) else self.text(value)

    def span(self, low: Quantity, high: Quantity) -> str:
        """Two ends as one: "6.90 – 7.42 GiB", the unit written once where it is the same."""
        first, last = self.quantity(low), self.quantity(high)
        if first == last:
            return first
        a, b = first.split(), last.split()
        if len(a) == len(b) == 2 and a[1] == b[1] and len(a[0]) > 0 and a[0][-1].isdigit():
            first = a[0]
        return f"{first} – {last}"

    def beside(self, figure: Figure) -> str:
        """What follows a figure's value: its range, its remark."""
        parts = [self.span(*figure.span)] if figure.span else []
        parts += [self.value(figure.note)] if figure.note is not None else []
        return " · ".join(parts)

    def sentence(self, words: Text) -> str:
        """Remarks are clauses; in a paragraph they are sentences, ended as the language ends them."""
        text = self.text(words)
        if not self._starts_with_name(words):
            text = text[:1].upper() + text[1:]
        ended = text.endswith((".", "!", "?", "।"))
        return text if ended else text + ("।" if self.code == "hi" else ".")

    def _starts_with_name(self, words: Any) -> bool:
        """Whether the first letter is a value's own: a run's or a card's name keeps it."""
        if not isinstance(words, T):
            return True
        template = self._template(words)
        if not template.startswith("{"):
            return False
        first = template[1:].partition("}")[0].partition(":")[0]
        return self._starts_with_name(words.values.get(first))

    def _template(self, words: T) -> str:
        if isinstance(words, Plural):
            return self._catalogue.ngettext(words.one, words.many, _whole(words.values["n"]))
        return self._catalogue.gettext(words.text)

    def _inner(self, value: Any) -> Any:
        if isinstance(value, T):
            return self.text(value)
        if isinstance(value, Quantity):
            return self.quantity(value)
        return printable(value) if isinstance(value, str) else value


class _Kept(Words):
    """Figures kept on one line: the spaces inside them are no-break ones."""

    def __init__(self, words: Words):
        super().__init__(words.show)
        self.words = words

    def format_field(self, value: Any, format_spec: str) -> str:
        shown = self.words.format_field(value, format_spec)
        return shown.replace(" ", "\u00a0") if format_spec else shown


def language(asked: str | None = None, environ: Mapping[str, str] = os.environ) -> Language:
    """The language asked for; else the locale's, where it is supported; else English.

    An unknown language is a mistake only when a person typed it.
    """
    if asked is not None:
        code, region = _split(asked)
        if code not in NAMES:
            listed = ", ".join(f"{code} ({name})" for code, name in NAMES.items())
            raise UserError(
                f"no reports in the language {asked!r}",
                hint=nearest(code, NAMES) or f"there are {listed}",
            )
        return _made(code, region)
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if environ.get(variable):
            code, region = _split(environ[variable])
            return _made(code, region) if code in NAMES else _made("en", "")
    code, region = _split(system_locale() if environ is os.environ else "")
    return _made(code, region) if code in NAMES else _made("en", "")


def system_locale() -> str:
    """The user's language as Windows or macOS keeps it, for neither sets LANG; "" elsewhere or where it cannot be read."""
    try:
        if sys.platform == "win32":
            import ctypes

            name = ctypes.create_unicode_buffer(85)  # LOCALE_NAME_MAX_LENGTH
            ctypes.windll.kernel32.GetUserDefaultLocaleName(name, 85)
            return name.value
        if sys.platform == "darwin":
            import plistlib

            kept = Path.home() / "Library" / "Preferences" / ".GlobalPreferences.plist"
            return str(plistlib.loads(kept.read_bytes())["AppleLanguages"][0])
    except Exception:  # a language is no reason to fail
        pass
    return ""


def _split(locale: str) -> tuple[str, str]:
    """("es", "MX") from "es_MX.UTF-8" or "es-mx"; junk gives junk, which is no supported language."""
    plain = locale.split(".")[0].split("@")[0].replace("-", "_")
    code, _, region = plain.partition("_")
    return code.lower(), region.upper()


def _made(code: str, region: str) -> Language:
    if code == "en":
        return Language("en", "en", gettext.NullTranslations(), Words(SHOW))
    from onecard.report.numbers import locale_words  # Babel: 40 ms that English need not wait for

    name, words = locale_words(code, region)
    catalogue = _catalogue(LOCALES / code / "LC_MESSAGES")
    return Language(code, name, catalogue, words(catalogue))


def _catalogue(folder: Path) -> gettext.GNUTranslations:
    """The compiled catalogue; in a source tree where it is missing or old, its source, which takes longer to read."""
    compiled, source = folder / "onecard.mo", folder / "onecard.po"
    if not source.exists():
        return _read(compiled, compiled.stat().st_mtime)
    changed = source.stat().st_mtime
    if compiled.exists() and compiled.stat().st_mtime >= changed:
        return _read(compiled, changed)
    return _read(source, changed)


@cache
def _read(path: Path, changed: float) -> gettext.GNUTranslations:
    """One file's messages; read again where it has changed."""
    if path.suffix == ".mo":
        return gettext.GNUTranslations(io.BytesIO(path.read_bytes()))
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po

    buffer = io.BytesIO()
    write_mo(buffer, read_po(io.BytesIO(path.read_bytes())))
    buffer.seek(0)
    return gettext.GNUTranslations(buffer)


def _whole(number: float) -> int:
    """The number that chooses the plural: a fraction is never one."""
    return int(number) if float(number).is_integer() else math.ceil(number) + 1
