"""The catalogues: find the messages in the source, bring each language's file up to date, check it.

    python tools/messages.py update     # after a sentence was added or changed: new entries are empty, gone ones leave
    python tools/messages.py check      # what a test runs too: nothing missing, stale, fuzzy or misquoted

Messages are the first argument of T, the second of sentence, the first two of Plural; each must be written
out, for a computed one would never reach a translator. The tables of formulas.py are messages too, each line as a
whole. Installing compiles the files (setup.py); a source tree reads them as
they are.
"""

import ast
import io
import string
import sys
from functools import cache
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "onecard"
LOCALES = SOURCE / "report" / "locales"
LANGUAGES = ("es", "hi")
KEYWORDS = {"T": None, "sentence": (2,), "Plural": (1, 2)}
TEMPLATE_AT = {"T": (0,), "sentence": (1,), "Plural": (0, 1)}


@cache
def extract() -> Catalog:
    """Every message of the source."""
    catalog = Catalog(project="onecard", charset="utf-8")
    found = extract_from_dir(SOURCE, [("**.py", "python")], keywords=KEYWORDS)
    for name, _, message, _, _ in sorted(found, key=lambda item: (item[0], item[1])):
        catalog.add(message, locations=[(f"src/onecard/{Path(name).as_posix()}", 0)])
    for path in sorted(SOURCE.rglob("formulas.py")):
        for formula in formulas(path):
            catalog.add(formula, locations=[(path.relative_to(ROOT).as_posix(), 0)])
    return catalog


def formulas(path: Path) -> list[str]:
    """The lines of a table of formulas: every text that is a value of a dictionary."""
    tables = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Dict)
    ]
    values = [value for table in tables for value in table.values]
    return [
        value.value
        for value in values
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]


def computed() -> list[str]:
    """Calls whose template is not written out, as file:line."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in TEMPLATE_AT
            ):
                for place in TEMPLATE_AT[node.func.id]:
                    given = node.args[place] if place < len(node.args) else None
                    if not (isinstance(given, ast.Constant) and isinstance(given.value, str)):
                        found.append(f"{path.relative_to(ROOT).as_posix()}:{node.lineno}")
    return found


def po_path(language: str) -> Path:
    return LOCALES / language / "LC_MESSAGES" / "onecard.po"


def read(language: str) -> Catalog:
    with po_path(language).open("rb") as file:
        return read_po(file, locale=language)


def update() -> None:
    template = extract()
    for language in LANGUAGES:
        path = po_path(language)
        path.parent.mkdir(parents=True, exist_ok=True)
        catalog = read(language) if path.exists() else Catalog(locale=language)
        catalog.update(template, no_fuzzy_matching=True)
        catalog.obsolete.clear()
        out = Catalog(locale=language, project="onecard", charset="utf-8", fuzzy=False)
        for message in catalog:
            if message.id:
                files = [(file, 0) for file, _ in message.locations]
                out.add(message.id, message.string, files)
        buffer = io.BytesIO()
        write_po(buffer, out, omit_header=True, include_lineno=False, width=110, sort_by_file=True)
        header = f"""msgid ""
msgstr ""
"Language: {language}\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=utf-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
"Plural-Forms: {out.plural_forms}\\n"

"""
        path.write_bytes(header.encode() + buffer.getvalue())


def placeholders(text: str) -> set[tuple[str, str]]:
    return {
        (name, spec or "")
        for _, name, spec, _ in string.Formatter().parse(text)
        if name is not None
    }


def check(language: str) -> list[str]:
    """What is wrong with one catalogue, a line each."""
    template, catalog = extract(), read(language)
    wanted, there = {_key(m) for m in template if m.id}, {_key(m) for m in catalog if m.id}
    problems = [f"missing: {key}" for key in sorted(wanted - there)]
    problems += [f"stale: {key}" for key in sorted(there - wanted)]
    for message in catalog:
        if not message.id:
            continue
        if message.fuzzy:
            problems.append(f"fuzzy: {_key(message)}")
        ids = message.id if isinstance(message.id, list | tuple) else (message.id,)
        strings = message.string if isinstance(message.string, list | tuple) else (message.string,)
        if len(ids) > 1 and len(strings) != catalog.num_plurals:
            problems.append(f"plural forms: {_key(message)}")
        for words in strings:
            if not words:
                problems.append(f"untranslated: {_key(message)}")
            elif placeholders(words) != placeholders(ids[-1]):
                problems.append(f"placeholders: {_key(message)} → {words}")
    return problems


def _key(message: Message) -> str:
    return message.id if isinstance(message.id, str) else message.id[0]


def main(words: list[str]) -> int:
    if words == ["update"]:
        update()
    elif words == ["extract"]:
        print("\n".join(_key(message) for message in extract() if message.id))
    elif words == ["check"]:
        problems = [f"computed template: {place}" for place in computed()]
        problems += [
            f"{language}: {problem}" for language in LANGUAGES for problem in check(language)
        ]
        print("\n".join(problems) or "catalogues are complete")
        return bool(problems)
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
