"""`onecard go`: from nothing to your own GPT, each stage the command that a person would type."""

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path

from rich.console import Console

from onecard.cli.go_record import Expectation, Progress, Question, recall
from onecard.cli.go_stages import Places, perform, planned_stages
from onecard.cli.recommend import add_budget, add_choices, budget_of, changes_of
from onecard.cli.stages import Interrupted, open_page, print_reason
from onecard.cli.terminal import console
from onecard.errors import UserError
from onecard.facts.prices import parse_money
from onecard.messages import T
from onecard.report import Language, show, terminal_language
from onecard.report.document import Column, Document, Figure, Quantity, Section, Table, Value
from onecard.report.plan_summary import kept_name

HELP = (
    "Everything in one command: recommend a run for this machine and time, get the data, check and measure the machine, "
    "plan again, train, evaluate, export, report. Interrupted anywhere, the same command continues."
)
EXAMPLE = """onecard go --hours 20
  onecard go --hours 0.05 --data stdlib --yes      # no download, three minutes"""
DEFAULT_HOURS = 24.0
_YES = ("", "y", "yes", "s", "sí", "si", "ह", "हाँ", "हां")


def configure(parser: argparse.ArgumentParser) -> None:
    add_budget(parser)
    add_choices(parser)
    parser.add_argument(
        "--budget",
        metavar="10USD",
        help="the most that the training's electricity may cost; the run is shortened to it",
    )
    parser.add_argument(
        "--data",
        metavar="SOURCE|DIR",
        help="what to learn: a named set, files or a folder of text, stdlib, or a prepared folder (default fineweb-edu)",
    )
    parser.add_argument(
        "--device", default="here", metavar="here|cpu", help="the card of this machine, or its CPU"
    )
    parser.add_argument(
        "--out", default="onecard-go", metavar="DIR", help="where it all goes (onecard-go)"
    )
    parser.add_argument("--yes", "-y", action="store_true", help="ask nothing")
    parser.add_argument("--dry-run", action="store_true", help="only say what would happen")
    parser.add_argument("--no-open", action="store_true", help="do not open the report")
    parser.add_argument(
        "--lang",
        metavar="en|es|hi",
        help="the language of the words and the report (default: your locale's)",
    )
    parser.add_argument("--json", action="store_true", help="where things are, at the end")


def run(args: argparse.Namespace) -> int:
    began = time.perf_counter()
    out = console(stderr=args.json)
    quiet_stdout = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
    try:
        with quiet_stdout:
            page = go(args, out)
    except Interrupted as stop:
        if not args.json:
            words = terminal_language(args.lang)
            out.print(words.text(T("stopped; the same command continues from here")), markup=False)
        return stop.exit_code
    if page is None:
        return 0
    places = {"folder": args.out, "report": str(page), "seconds": time.perf_counter() - began}
    if args.json:
        print(json.dumps(places))
    elif not args.no_open:
        open_page(page)
    return 0


def go(args: argparse.Namespace, out: Console) -> Path | None:
    """All stages; the report's page, or None where the user answered no."""
    from onecard.cli.go_plan import expect, for_what_torch_can_use

    question = _question(args)
    places = Places(Path(args.out))
    words = terminal_language(args.lang)
    progress = recall(places.root, question)
    if progress is None:
        print_reason(out, words.text(T("what this machine can do in the time")))
        usable, warning = for_what_torch_can_use(question)
        if warning is not None:
            out.print(warning, markup=False, soft_wrap=True)
        progress = Progress(places.root, question, expect(usable, places), [])
        _announce(progress.expected, args.lang)
        if args.dry_run or not (args.yes or _agreed(out, words)):
            return None
        progress.write()
    elif args.dry_run:
        _announce(progress.expected, args.lang)
        return None
    return perform(out, progress, words, args.lang)


def _question(args: argparse.Namespace) -> Question:
    budget_of(args)  # a mistake in any of them is reported before anything is done
    changes_of(args)
    if args.budget is not None:
        parse_money(args.budget)
    limits = ("hours", "days", "tokens", "until_loss")
    return Question(
        limit=next(
            ((name, str(value)) for name in limits if (value := getattr(args, name)) is not None),
            ("hours", f"{DEFAULT_HOURS:g}"),
        ),
        data=args.data,
        recipe=args.recipe,
        price=args.price,
        budget=args.budget,
        device=args.device,
        overrides=tuple(args.overrides),
    )


def _announce(expected: Expectation, lang: str | None) -> None:
    sys.stdout.write("\n" + show(go_document(expected), lang=lang))
    sys.stdout.flush()


def _agreed(out: Console, words: Language) -> bool:
    """Asked once; where nobody can answer, --yes is needed."""
    if not (sys.stdin and sys.stdin.isatty()):
        raise UserError(
            "cannot ask for confirmation: standard input is not a terminal",
            hint="add --yes to start without a question",
        )
    out.print("\n" + words.text(T("Start? [Y/n]")) + " ", end="", markup=False)
    try:
        return input().strip().casefold() in _YES
    except EOFError:
        return False


def go_document(expected: Expectation) -> Document:
    """What is about to be done: the stages with their time, download and disk, and what comes of it."""
    rows = tuple(
        (
            stage.what,
            Quantity(stage.seconds, "duration"),
            _size(stage.download_bytes),
            _size(stage.disk_bytes),
        )
        for stage in planned_stages(expected)
    )
    columns = (
        Column(T("Stage")),
        *(Column(title, "right") for title in (T("Time"), T("Download"), T("Disk"))),
    )
    return Document(
        title=T("What will happen"),
        subtitle=kept_name(expected.card),
        headline=_headline(expected),
        sections=(Section(T("Stages"), (Table(columns, rows),)),),
        summary=(
            T(
                "Training takes the time that was asked for, or less; the other stages are not included."
            ),
            T("Measured first, the run is planned again: its size may change."),
            *(
                []
                if expected.loss is not None
                else [T("No loss can be predicted for this text and size.")]
            ),
        ),
    )


def _headline(expected: Expectation) -> tuple[Figure, ...]:
    figures = [
        Figure(
            T("Model"),
            Quantity(expected.params, "count"),
            note=T("{tokens:count} tokens", tokens=expected.tokens),
        ),
        Figure(T("Memory"), Quantity(expected.memory_bytes, "bytes")),
        Figure(T("Training"), Quantity(expected.train_seconds, "duration")),
    ]
    if expected.loss is not None:
        low, middle, high = (Quantity(value, ".2f") for value in expected.loss)
        figures.append(Figure(T("Loss"), middle, span=(low, high)))
    energy = T("{kwh:.3g} kWh", kwh=expected.kwh)
    figures.append(Figure(T("Electricity"), Quantity(expected.cost, "money"), note=energy))
    return tuple(figures)


def _size(size: float) -> Value:
    return Quantity(size, "bytes") if size else "–"
