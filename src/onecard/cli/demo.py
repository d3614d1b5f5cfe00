"""`onecard demo`: `onecard go` on text that every machine has, then the other recipe for the same time, compared."""

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path

from rich.console import Console

from onecard.cli.go_stages import EVALUATION, Places, evaluation
from onecard.cli.options import add_language
from onecard.cli.stages import (
    Interrupted,
    is_finished,
    open_page,
    page_of,
    print_command,
    run_stage,
)
from onecard.cli.terminal import console
from onecard.files import write_text
from onecard.messages import T
from onecard.report import Language, show, terminal_language
from onecard.report.document import Column, Document, Quantity, Section, Table
from onecard.runs.eval_results import kept

HELP = (
    "The whole loop on this machine in a few minutes: `onecard go` on Python's own text, then the other recipe "
    "for the same time, and both compared. Interrupted, it continues."
)
EXAMPLE = "onecard demo"

CARDS = ("RTX 3060 12GB", "RTX 4070", "RTX 4090", "RTX 5090", "A100 80GB", "H100 SXM")
RUN = "fineweb-124M-12gb"  # GPT-2 small's size on 10 B tokens: the run most people start with
HOURS = 0.015  # of training for each recipe: just under a minute


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        default="onecard-demo",
        metavar="DIR",
        help="where it all goes (default onecard-demo)",
    )
    parser.add_argument(
        "--no-open", action="store_true", help="do not open the report in a browser"
    )
    parser.add_argument(
        "--json", action="store_true", help="where things are and how long it took, at the end"
    )
    add_language(parser)


def run(args: argparse.Namespace) -> int:
    began, places = time.perf_counter(), Places(Path(args.out))
    out = console(stderr=args.json)
    try:
        with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
            page, runs = _demo(out, places, args.lang)
    except Interrupted as stop:
        return stop.exit_code
    seconds = time.perf_counter() - began
    if args.json:
        folders = {name: str(run) for name, run in runs.items()}
        model = str(places.model)
        print(
            json.dumps({"report": str(page), "runs": folders, "model": model, "seconds": seconds})
        )
        return 0
    ending = T(
        "{page} holds the comparison; it took {seconds:duration} in total. Next: `onecard go --hours 20`, or "
        "`onecard ui {folder}` to look at both runs.",
        page=str(page),
        seconds=seconds,
        folder=args.out,
    )
    out.print("\n" + terminal_language(args.lang).text(ending), markup=False)
    if not args.no_open:
        open_page(page)
    return 0


def _demo(out: Console, places: Places, lang: str | None) -> tuple[Path, dict[str, Path]]:
    from onecard.cli import parser_of
    from onecard.cli.go import go

    words = terminal_language(lang)
    language = ["--lang", lang] if lang else []
    sys.stdout.write(show(_cards_document(), lang=lang) + "\n")
    asked = ["--data", "stdlib", "--hours", str(HOURS), "--recipe", "gpt2"]
    asked += ["--out", str(places.root), "--yes", *language]
    print_command(out, ["go", *asked])
    go(parser_of("go").parse_args(asked), out)
    runs = {"gpt2": places.run, "modern": _other_recipe(out, places, words, language)}
    both = [str(run) for run in runs.values()]
    run_stage(
        out,
        words.text(T("which recipe is better in the same time, and why")),
        "compare",
        *both,
        *language,
    )
    page = places.root / "comparison.html"
    write_text(page, page_of(["compare", *both, "--html", *language]))
    return page, runs


def _other_recipe(out: Console, places: Places, words: Language, language: list[str]) -> Path:
    """The modern recipe for the same time on the same data; what is done already stays."""
    config, folder = places.root / "modern.toml", places.root / "modern"
    if not config.is_file():
        command = ["recommend", "--gpu", "here", "--hours", str(HOURS), "--recipe", "modern"]
        command += ["--data", str(places.data / "stdlib"), "--out", str(config), *language]
        run_stage(out, words.text(T("the other recipe for the same time")), *command)
    if not is_finished(folder):
        resume = ["--resume"] if (folder / "run.json").is_file() else []
        command = ["train", str(config), f"--out_dir={folder}", *resume]
        run_stage(out, words.text(T("train it on the same text")), *command)
    if not kept(folder):  # what training itself evaluates is only the first of the held-out text
        run_stage(out, words.text(EVALUATION), *evaluation(folder, places.data / "stdlib"))
    return folder


def _cards_document() -> Document:
    """One run on several cards and on this machine: what `onecard plan` says of each."""
    from onecard import load, plan

    titles = (T("One step"), T("In all"), T("Memory"), T("kWh"), T("Loss"))
    columns = (Column(T("Card")), *(Column(title, "right") for title in titles))
    rows = []
    for each in (plan(load(RUN), card) for card in (*CARDS, "here")):
        memory = T(
            "{used:bytes} of {there:bytes}",
            used=each.memory.process_bytes.mid,
            there=each.memory.card_bytes,
        )
        rows.append(
            (
                each.device.name,
                Quantity(each.time.step_seconds.mid, "duration"),
                Quantity(each.time.total_seconds.mid, "duration"),
                memory,
                Quantity(each.energy.kwh.mid, ",.1f"),
                Quantity(each.loss.expected.mid, ".2f") if each.loss else "–",
            )
        )
    return Document(
        title=T("What a well-known run needs on a few cards"),
        subtitle=f"onecard plan {RUN}",
        sections=(Section(T("GPT-2 small on 10.5 B tokens"), (Table(columns, tuple(rows)),)),),
    )
