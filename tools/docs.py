"""Write the parts of the documentation that follow from the code: docs/cli.md.

python tools/docs.py            write them
python tools/docs.py --check    say whether they are true (the tests do the same)
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def cli_page() -> str:
    """docs/cli.md: every command's --help, and the config keys."""
    from onecard.cli import VERBS, parser_of
    from onecard.cli.options import key_rows

    pages = [
        "# The command line",
        "",
        "Made by `python tools/docs.py` from the commands themselves.",
        "",
    ]
    for verb, what in VERBS.items():
        pages += [
            f"## onecard {verb}",
            "",
            f"{what[0].upper()}{what[1:]}" + "." * (not what.endswith("?")),
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
        "A resume may change the keys that affect only speed, memory, output and machine.",
        "",
        "| key | default | what it is | affects |",
        "|---|---|---|---|",
        *(
            f"| `{key}` | `{default}` | {what} | {affects} |"
            for key, default, what, affects in key_rows()
        ),
    ]
    return "\n".join(pages) + "\n"


PAGES = {"docs/cli.md": cli_page}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
