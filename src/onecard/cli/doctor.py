"""`onecard doctor`: does this machine work? Every path tried, fall-backs chosen and kept for `train`."""

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.errors import UserError

if TYPE_CHECKING:
    from onecard.train.doctor.answers import Check

HELP = "Try every path of a run on this machine's device; choose fall-backs, keep them for `train`, say what to do."
EXAMPLE = "onecard doctor --quick"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds: no compilation, no proof of resume"
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="auto|cpu|cuda|cuda:1|mps",
        help="what to check (default: the card)",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="also write one JSON file to send with an issue: no names, paths or keys in it",
    )
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    parser.add_argument(
        "--markdown",
        "--md",
        action="store_true",
        help="a text to paste into an issue: no names, paths or keys in it",
    )


def run(args: argparse.Namespace) -> int:
    from onecard.cli.terminal import progress_bar
    from onecard.files import write_json
    from onecard.model.device_choice import checked_device
    from onecard.train.doctor.answers import ask
    from onecard.train.doctor.diagnose import diagnose, expected_seconds, usable
    from onecard.train.doctor.shared import paste, report
    from onecard.train.doctor.short_run import short_run

    device = checked_device(args.device)
    answers = ask(device, args.device)
    seconds = {**expected_seconds(args.quick), **({"short run": 5.0} if args.report else {})}
    with progress_bar(quiet=args.json) as show, _moving(show, seconds) as tell:
        rows = diagnose(device, args.quick, tell, answers)
        trained = None
        if args.report and usable(answers, rows):
            tell("short run")
            row, trained = short_run(answers, rows)
            rows.append(row)
    if args.report:
        try:
            write_json(Path(args.report), report(answers, rows, trained))
        except OSError as error:
            raise UserError(
                f"{args.report} cannot be written: {error.strerror}", hint="name another file"
            ) from None
    if args.json:
        print(
            json.dumps(
                {"device": answers.name, "checks": [row.to_json() for row in rows]}, indent=1
            )
        )
    elif args.markdown:
        print(paste(answers, rows))
    else:
        _show(rows)
        if args.report:
            print(f"report: {args.report}")
    return 1 if any(row.status == "action" for row in rows) else 0


@contextmanager
def _moving(
    show: Callable[[float, float, str], None], seconds: dict[str, float]
) -> Iterator[Callable[[str], None]]:
    """The bar continues with the clock within a check, as far as that check was expected to take: compiling takes most
    of the time, and a bar that stands still looks like a program that hangs."""
    whole = sum(seconds.values())
    now = ("", 0.0, time.monotonic())  # the check, what was done before it, since when
    ended = threading.Event()

    def tell(what: str) -> None:
        nonlocal now
        before = now[1] + seconds.get(now[0], 0.0)
        now = (what, before, time.monotonic())
        show(before, whole, what)

    def move() -> None:
        while not ended.wait(0.5):
            what, before, since = now
            if what:
                show(before + min(time.monotonic() - since, seconds.get(what, 0.0)), whole, what)

    mover = threading.Thread(target=move, daemon=True)
    mover.start()
    try:
        yield tell
    finally:
        ended.set()
        mover.join()


def _show(rows: "list[Check]") -> None:
    from rich.table import Table

    from onecard.cli.terminal import console

    table = Table(box=None, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("detail")
    colours = {"ok": "green", "fall-back": "yellow", "action": "red"}
    from rich.markup import escape

    for row in rows:
        table.add_row(row.check, f"[{colours[row.status]}]{row.status}[/]", escape(row.detail))
    out = console()
    out.print(table)
    count = {status: sum(row.status == status for row in rows) for status in colours}
    fallbacks = f"{count['fall-back']} fall-back{'s' * (count['fall-back'] > 1)}"
    taken = f"{fallbacks} (kept: `onecard train` takes them)"
    out.print(
        f"{count['ok']} ok, {taken if count['fall-back'] else 'no fall-backs'}, "
        f"{count['action'] or 'nothing'} to act on"
    )
