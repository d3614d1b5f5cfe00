"""Sentences by code: each that is used exists, each that exists is used, and its figures are given."""

import ast
import string
from pathlib import Path

import pytest

from onecard.messages import Note
from onecard.sentences import SENTENCES

SOURCE = Path(__file__).parents[2] / "src" / "onecard"


def uses() -> list[tuple[str, set[str], bool]]:
    """(code, figures given by name, whether more come in a mapping) of each Note without words of its own."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Note"):
                continue
            if len(node.args) == 1:
                given = {word.arg for word in node.keywords if word.arg}
                more = any(word.arg is None for word in node.keywords)
                found += [(code, given, more) for code in codes(node.args[0])]
    return found


def codes(node: ast.AST) -> list[str]:
    """The codes that an argument can be: written out, one of two, or in a variable set just before."""
    if isinstance(node, ast.Constant):
        return [node.value]
    return codes(node.body) + codes(node.orelse) if isinstance(node, ast.IfExp) else []


def _name_of(value):
    return (
        " ".join(sorted(value)) if isinstance(value, set) else str(value)
    )  # in one order everywhere


@pytest.mark.parametrize(("code", "given", "more"), uses(), ids=_name_of)
def test_each_code_has_its_sentence_and_gets_its_figures(code, given, more):
    wanted = {name for _, name, _, _ in string.Formatter().parse(SENTENCES[code]) if name}
    assert wanted <= given or more


def test_every_sentence_is_used():
    text = "".join(
        path.read_text(encoding="utf-8")
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "sentences"
    )
    assert not [code for code in SENTENCES if f'"{code}"' not in text]


def test_a_note_finds_its_words():
    note = Note("fit-total", tokens=524_288)
    assert str(note).startswith("the total batch stays 524,288 tokens")
    with pytest.raises(KeyError):
        Note("no-such-code")
