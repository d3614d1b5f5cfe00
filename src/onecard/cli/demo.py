"""`onecard demo`: `onecard go` on text that every machine has, then the other recipe for the same time, compared."""

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from onecard.cli.go_stages import Places

HELP = (
    "The whole loop on this machine in a few minutes: `onecard go` on Python's own text, then the other recipe "
    "for the same time, and both compared. Interrupted, it goes on."
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
    parser.add_argument(
        "--lang", metavar="en|es|hi", help="the report's language (default: your locale's)"
    )


def run(args: argparse.Namespace) -> int:
    from onecard.cli.go_stages import Places
    from onecard.cli.stages import Interrupted, open_page
    from onecard.cli.terminal import console

    began, places = time.perf_counter(), Places(Path(args.out))
    out = console(stderr=args.json)
    try:
        with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
            page, runs = _demo(out, places, args.lang)
    except Interrupted as stop:
        return stop.exit_code
    seconds = time.perf_counter() - began
    if args.json:
        found = {name: str(run) for name, run in runs.items()}
        model = str(places.model)
        print(json.dumps({"report": str(page), "runs": found, "model": model, "seconds": seconds}))
        return 0
    out.print(
        f"\n[bold]{page}[/] holds the report; {seconds / 60:.1f} minutes in all. Next: `onecard go --hours 20`, "
        "and the guide on the project's page."
    )
    if not args.no_open:
        open_page(page)
    return 0


def _demo(out: "Console", places: "Places", lang: str | None) -> tuple[Path, dict[str, Path]]:
    from onecard.cli import parser_of
    from onecard.cli.go import go
    from onecard.cli.stages import page_of, run_stage
    from onecard.files import write_text

    _cards_table(out)
    language = ["--lang", lang] if lang else []
    words = ["--data", "stdlib", "--hours", str(HOURS), "--recipe", "gpt2"]
    words += ["--out", str(places.root), "--yes", *language]
    out.print(f"\n[bold]$ onecard go {' '.join(words)}[/]", highlight=False)
    go(parser_of("go").parse_args(words), out)
    modern = _other_recipe(out, places)
    runs = {"gpt2": places.run, "modern": modern}
    both = [str(run) for run in runs.values()]
    run_stage(out, "which recipe is better in the same time, and why", "compare", *both, *language)
    page = places.root / "comparison.html"
    write_text(page, page_of(["compare", *both, "--html", *language]))
    return page, runs


def _other_recipe(out: "Console", places: "Places") -> Path:
    """The modern recipe for the same time on the same data; what is done already stays."""
    from onecard.cli.stages import is_finished, run_stage

    config, folder = places.root / "modern.toml", places.root / "modern"
    if not config.is_file():
        words = ["recommend", "--gpu", "here", "--hours", str(HOURS), "--recipe", "modern"]
        words += ["--data", str(places.data / "stdlib"), "--out", str(config)]
        run_stage(out, "the other recipe for the same time", *words)
    if not is_finished(folder):
        resume = ["--resume"] if (folder / "run.json").is_file() else []
        run_stage(
            out, "train it on the same text", "train", str(config), f"--out_dir={folder}", *resume
        )
    return folder


def _cards_table(out: "Console") -> None:
    """One run on several cards and on this machine: what `onecard plan` says of each."""
    from rich.table import Table

    from onecard import load, plan
    from onecard.units import show_bytes, show_duration

    table = Table(
        title=f"onecard plan {RUN}: 124 M parameters on 10.5 B tokens",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("card", no_wrap=True)
    for column in ("a step", "in all", "process memory", "of", "fits", "kWh", "loss"):
        table.add_column(column, justify="right")
    for card in (*CARDS, "here"):
        each = plan(load(RUN), card)
        table.add_row(
            each.device.name,
            show_duration(each.time.step_seconds.mid),
            show_duration(each.time.total_seconds.mid),
            show_bytes(each.memory.process_bytes.mid),
            show_bytes(each.memory.card_bytes),
            each.memory.fits,
            f"{each.energy.kwh.mid:,.1f}",
            f"{each.loss.expected.mid:.2f}" if each.loss else "–",
        )
    out.print(table)
