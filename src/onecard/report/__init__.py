"""One document, shown in the terminal, in Markdown or as a page, in the reader's language.

print(show(plan_document(plan), "terminal", lang="es"), end="")
"""

import os
import shutil
import sys

from onecard.errors import UserError
from onecard.report.document import Document, shortened
from onecard.report.language import NAMES, Language, language

__all__ = ["Language", "language", "shortened", "show", "terminal_language"]


def show(
    document: Document,
    format: str = "terminal",
    lang: str | None = None,
    width: int | None = None,
    color: bool | None = None,
    encoding: str | None = None,
) -> str:
    """The document as text, "terminal", "markdown" or "html". Width, colour and encoding are standard output's unless given."""
    if format == "terminal":
        from onecard.report.terminal import render as terminal

        encoding = encoding or _encoding()
        speech = terminal_language(lang, encoding)
        colored = wants_color() if color is None else color
        columns = width or shutil.get_terminal_size((80, 24)).columns
        return terminal(document, speech, columns, colored, encoding)
    speech = language(lang)
    if format == "markdown":
        from onecard.report.markdown import render as markdown

        return markdown(document, speech)
    from onecard.report.html import render as html

    return html(document, speech)


def terminal_language(lang: str | None, encoding: str | None = None) -> Language:
    """The language asked for or the locale's, as far as the terminal has letters for it."""
    speech, encoding = language(lang), encoding or _encoding()
    if speech.code != "hi" or encoding.lower().replace("-", "").startswith("utf"):
        return speech
    if lang is not None:
        raise UserError(
            f"this terminal's encoding ({encoding}) has no letters for {NAMES[speech.code]}",
            hint="set PYTHONIOENCODING=utf-8, or use the option `lang=en`",
        )
    return language("en")  # nobody asked: words beat a page of question marks


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def wants_color() -> bool:
    """Colour on a terminal, unless NO_COLOR is set (no-color.org) or the terminal is too old for it."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty():
        return False
    if os.name != "nt":
        return True
    from rich.console import detect_legacy_windows

    return not detect_legacy_windows()
