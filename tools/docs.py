"""Write the parts of the documentation that follow from the code: README's file map and docs/cli.md.

python tools/docs.py            write them
python tools/docs.py --check    say whether they are true (the tests do the same)
"""

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- file map: python tools/docs.py -->", "<!-- end of file map -->"


def file_map() -> str:
    """One line a file: its path and the first line of its docstring."""
    lines = ["```"]
    for folder in ("src/onecard", "tests", "bench", "fit", "tools"):
        files = sorted(p for p in (ROOT / folder).rglob("*.py") if "preset_files" not in p.parts)
        for path in files:
            first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
            if path.name == "__init__.py" and not first:
                continue
            lines.append(f"{path.relative_to(ROOT).as_posix():44} {first.removesuffix('.')}")
    return "\n".join([*lines, "```"])


def readme() -> str:
    """The README with its file map made anew."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{file_map()}\n{END}{after}"


def cli_page() -> str:
    """docs/cli.md: every command's --help, and the config keys."""
    from onecard.cli import VERBS, parser_of
    from onecard.config.run import RunConfig, choices

    pages = ["# The command line", "", "Made by `python tools/docs.py` from the commands themselves.", ""]
    for verb, what in VERBS.items():
        pages += [
            f"## onecard {verb}",
            "",
            f"{what[0].upper()}{what[1:]}.",
            "",
            "```",
            parser_of(verb).format_help().strip(),
            "```",
            "",
        ]
    pages += [
        "## Config keys",
        "",
        "nanoGPT's, then onecard's own from `vocab_size` on.",
        "",
        "| key | default | choices |",
        "|---|---|---|",
    ]
    for key, value in vars(RunConfig()).items():
        pages.append(f"| `{key}` | `{value!r}` | {', '.join(f'`{choice}`' for choice in choices(key))} |")
    return "\n".join(pages) + "\n"


PAGES = {"README.md": readme, "docs/cli.md": cli_page}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    stale = []
    for name, make in PAGES.items():
        path, wanted = ROOT / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != wanted:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(wanted, encoding="utf-8")
    parser.parse_args()
    print("stale: " + ", ".join(stale) if stale else "true")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    import os

    os.environ["COLUMNS"] = "100"  # argparse wraps its help by it
    sys.exit(main())
