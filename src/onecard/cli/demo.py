"""`onecard demo`: the whole loop on this machine, as the commands a person would type."""

import argparse
import json
import os
import sys
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.errors import RunFailure

if TYPE_CHECKING:
    from rich.console import Console

HELP = "The whole loop on this machine: plan, prepare, probe, train, sample, compare, evaluate, export, report. Interrupted, it goes on."
EXAMPLE = "onecard demo"

CARDS = ("RTX 3060 12GB", "RTX 4070", "RTX 4090", "RTX 5090", "A100 80GB", "H100 SXM")
RUN = "fineweb-124M-12gb"  # GPT-2 small's size on 10 B tokens: the run most people start with
# A model that two cores train in about a minute, on the text that every Python brings along.
SMALL = {
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "block_size": 128,
    "batch_size": 16,
    "gradient_accumulation_steps": 1,
    "eval_interval": 100,
    "eval_iters": 20,
    "log_interval": 10,
    "compile": False,
}
BASELINE = {
    "recipe": "gpt2",
    "max_iters": 300,
    "learning_rate": 1e-3,
    "min_lr": 1e-4,
    "warmup_iters": 20,
}
MODERN = {"recipe": "modern", "max_iters": 300}


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
    from onecard.cli.terminal import console

    began, folder = time.perf_counter(), Path(args.out)
    out = console(stderr=args.json)
    _cards_table(out)
    data = folder / "data"
    runs = {name: folder / name for name in ("baseline", "modern")}
    _prepare(out, folder, data)
    _train_both(out, data, runs)
    _type(out, "generate text with it", "sample", str(runs["modern"]), "def ", "--tokens", "120")
    _type(
        out,
        "what was predicted, what came, and why they differ",
        "compare",
        *map(str, runs.values()),
    )
    exported = folder / "model-hf"
    _evaluate_and_export(out, data, runs, exported)
    page = folder / "report.html"
    language = ["--lang", args.lang] if args.lang else []
    _write_page(page, ["compare", *map(str, runs.values()), "--html", *language])
    seconds = time.perf_counter() - began
    out.print(
        f"\n[bold]{page}[/] holds the report; {seconds / 60:.1f} minutes in all. Next: `onecard --help`, and the guide on the project's page."
    )
    if args.json:
        places = {name: str(run) for name, run in runs.items()}
        answer = {"report": str(page), "runs": places, "model": str(exported), "seconds": seconds}
        print(json.dumps(answer))
    elif not args.no_open and _has_screen():
        webbrowser.open(page.resolve().as_uri())
    return 0


def _prepare(out: "Console", folder: Path, data: Path) -> None:
    """The data and a probe of this machine, unless an earlier demo here made them."""
    if not (data / "manifest.json").is_file():
        _type(
            out,
            "text that every Python has, as tokens",
            "data",
            "stdlib",
            "--tokenizer",
            "bpe:2048",
            "--out",
            str(data),
        )
    if not (folder / "probed").is_file():
        _type(out, "measure this machine, so that the plan is for it", "probe", "--quick", "--keep")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "probed").touch()


def _train_both(out: "Console", data: Path, runs: dict[str, Path]) -> None:
    """The same small model by both recipes; a run that was interrupted resumes, a finished one stays."""
    for name, settings in (("baseline", BASELINE), ("modern", MODERN)):
        words = [
            f"--{key}={value}"
            for key, value in {**SMALL, **settings, "dataset": data, "out_dir": runs[name]}.items()
        ]
        if _finished(runs[name]):
            continue
        _type(
            out,
            f"train a small model, recipe {settings['recipe']}",
            "train",
            *words,
            *(["--resume"] if runs[name].exists() else []),
        )


def _evaluate_and_export(out: "Console", data: Path, runs: dict[str, Path], target: Path) -> None:
    """How good both models are on text they have not seen, and one of them for transformers."""
    _type(
        out,
        "how good are they, on text that neither was trained on?",
        "eval",
        *map(str, runs.values()),
        "--text",
        str(data),
        "--bytes",
        "200kB",
    )
    words = ["export", str(runs["baseline"]), "--to", "hf", "--out", str(target)]
    _type(out, "the model for transformers, with its card", *words, "--force")


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


def _type(out: "Console", why: str, *words: str) -> None:
    """Show a command as a person would type it, and run it."""
    from onecard.cli import main

    out.print(f"\n[bold cyan]# {why}[/]\n[bold]$ onecard {' '.join(words)}[/]\n", highlight=False)
    code = main(list(words))
    if code == 130:
        raise KeyboardInterrupt
    if code:
        raise RunFailure(
            f"the demo stopped at `onecard {words[0]}`", hint="run it again: it goes on from there"
        )


def _finished(run: Path) -> bool:
    from onecard.runs.record import RunRecord

    return (run / "run.json").is_file() and RunRecord.open(run).state == "finished"


def _write_page(page: Path, words: list[str]) -> None:
    import contextlib
    import io

    from onecard.cli import main
    from onecard.files import write_text

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        code = main(words)
    if code:
        raise RunFailure(
            "the report could not be made", hint=f"`onecard {' '.join(words)}` shows why"
        )
    write_text(page, shown.getvalue())


def _has_screen() -> bool:
    if os.environ.get("CI") or not sys.stdout.isatty():
        return False
    return sys.platform in ("win32", "darwin") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
