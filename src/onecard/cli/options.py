"""Options that several commands share, and the one way a report leaves a command."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from onecard.errors import UserError

FORMATS = ("json", "markdown", "html")


def add_config(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """CONFIG, --set key=value, and (through main) nanoGPT's own --key=value."""
    parser.add_argument(
        "config",
        nargs=None if required else "?",
        metavar="CONFIG",
        help="a nanoGPT config/*.py (read, never run), a .toml, or a preset such as gpt2",
    )
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """--set key=value and --keys, for commands that take config keys without a config file."""
    add_set(parser)
    parser.add_argument(
        "--keys", action=_ListKeys, nargs=0, help="list the config keys with what each is, and stop"
    )


def add_set(
    parser: argparse.ArgumentParser,
    words: str = "change a config key; nanoGPT's --KEY=VALUE works too",
) -> None:
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help=words
    )


def add_price(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--price", metavar="PRICE", help="of a kWh: 0.25, 0.25EUR, or a region such as ES, IN, US"
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="no progress, only how it ended; notices and errors on stderr",
    )


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset", metavar="NAME", help="whose tokeniser to use, if the run's is gone"
    )


class Once(argparse.Action):
    """An option that takes one value: a second is an error, where argparse would silently keep the last."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} is given twice, and {parser.prog} takes one")
        setattr(namespace, self.dest, value)


def number(text: str) -> float:
    """A float for argparse, which names the option where it is none."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def check_counts(args: argparse.Namespace, **examples: str) -> None:
    """Options that count something must be at least one, where they are given: check_counts(args, tokens="200")."""
    for name, example in examples.items():
        value, flag = getattr(args, name), name.replace("_", "-")
        if value is not None and value < 1:
            raise UserError(f"--{flag} cannot be {value}", hint=f"for example --{flag} {example}")


def key_rows() -> list[tuple[str, str, str, str]]:
    """Every config key: name, default, what it is with its unit and choices, what it affects."""
    from onecard.config import KEYS, RunConfig, choices
    from onecard.config.key_facts import KINDS

    rows = []
    for key in KEYS:
        facts = RunConfig.facts(key)
        what = facts.help
        if facts.unit:
            what += f", in {facts.unit}"
        if options := choices(key):
            what += f" ({', '.join(options)})"
        affects = " ".join(kind for kind in KINDS if kind in facts.affects)
        rows.append((key, repr(getattr(RunConfig, key)), what, affects))
    return rows


class _ListKeys(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for key, default, what, _affects in key_rows():
            print(f"{key:28}{default:16}{what}")
        parser.exit()


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the config, ready for `onecard train`: .toml or nanoGPT's .py",
    )
    parser.add_argument("--force", action="store_true", help="let --out replace a file")


def add_report(parser: argparse.ArgumentParser) -> None:
    """How the answer is shown."""
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument(
        "--json", action="store_true", help="machine-readable, base units (docs/formats.md)"
    )
    formats.add_argument(
        "--markdown", "--md", action="store_true", help="for a README, an issue or a wiki"
    )
    formats.add_argument("--html", action="store_true", help="one self-contained page")
    parser.add_argument(
        "--full",
        action="store_true",
        help="every table and chart in the terminal, not the short form",
    )
    parser.add_argument(
        "--explain", action="store_true", help="each figure with its formula and source"
    )
    add_language(parser)


def add_language(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lang", metavar="en|es|hi", help="the report's language (default: your locale's)"
    )


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    from onecard.untrusted import json_text

    write_utf8(json_text(value) + "\n")


def show_report(
    args: argparse.Namespace, as_json: Callable[[], Any], document: Callable[[], Any]
) -> None:
    """Print the answer in the format asked for."""
    if args.json:
        print_json(as_json())
        return
    from onecard.report import shortened, show

    wanted = next((name for name in FORMATS if getattr(args, name)), "terminal")
    whole = document()
    if wanted != "terminal":
        write_utf8(show(whole, wanted, lang=args.lang))
        return
    shown = whole if args.full or args.explain else shortened(whole)
    sys.stdout.write(show(shown, wanted, lang=args.lang))


def write_utf8(text: str) -> None:
    """Pages and JSON are UTF-8, as they declare, whatever the encoding of the terminal; a person's screen keeps its own."""
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None or sys.stdout.isatty():
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    stream.write(text.encode("utf-8", errors="replace"))
    stream.flush()
