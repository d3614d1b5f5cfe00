"""a CSV table that somebody else made, row by row.

>>> from pathlib import Path
>>> rows = list(read_rows(Path(__file__).parent / "data" / "public_runs.csv", {"id", "gpu"}))
>>> len(rows), rows[0]["gpu"]
(184, 'B200')

Names of columns and what stands in them come without spaces around, names in small letters too.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from onecard.errors import UserError


def read_rows(path: Path, wanted: set[str]) -> Iterator[dict[str, str] | str]:
    """Each row, or why that one alone cannot be read; a file that is no such table is a UserError."""
    try:
        with path.open(encoding=encoding_of(path), errors="replace", newline="") as table:
            reader = csv.DictReader(table, delimiter=delimiter_of(path))
            reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
            missing = wanted - set(reader.fieldnames)
            if missing:
                raise UserError(
                    f"{path.name} lacks the columns {', '.join(sorted(missing))}",
                    hint=f"give a table in the layout of those in {Path(__file__).parent.name}/data",
                )
            while True:
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except (
                    csv.Error
                ) as error:  # this row's alone: a field beyond csv's limit, a stray NUL
                    yield str(error)
                    continue
                yield {
                    k: (v or "").strip()
                    for k, v in row.items()
                    if isinstance(k, str) and not isinstance(v, list)
                }
    except (OSError, UnicodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}", hint="give a CSV table") from None


def encoding_of(path: Path) -> str:
    """UTF-8, unless the file is what a spreadsheet saves as "Unicode text", or as plain text of Western Europe."""
    content = path.read_bytes()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"


def delimiter_of(path: Path) -> str:
    """What stands between the names of the columns: commas, or a spreadsheet's semicolons or tabs."""
    with path.open(encoding=encoding_of(path), errors="replace") as table:
        names = table.readline()
    return max(",;\t", key=names.count)
