"""`onecard eval`: how good is the model?"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onecard.evals.results import Result
    from onecard.model.generate import Sampler

HELP = "Bits per byte on any text, HellaSwag and LAMBADA, each with its protocol and 95 % interval."
EXAMPLE = "onecard eval out --text notes.txt --hellaswag hellaswag_val.jsonl --limit 1000"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a run's folder, a Hugging Face GPT-2 folder, an export, or nanoGPT's ckpt.pt",
    )
    parser.add_argument(
        "--text", action="append", default=[], metavar="FILE", help="bits per byte on this text"
    )
    parser.add_argument("--hellaswag", metavar="FILE", help="its items, .jsonl or .jsonl.xz")
    parser.add_argument("--lambada", metavar="FILE", help="its items, .jsonl or .jsonl.xz")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N items of a task")
    parser.add_argument("--stride", type=int, metavar="N", help="of text windows (default: half)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--dataset", metavar="NAME", help="whose tokeniser, if the run's is gone")
    parser.add_argument("--json", action="store_true", help="the results as JSON")


def run(args: argparse.Namespace) -> int:
    from onecard.errors import UserError

    if not (args.text or args.hellaswag or args.lambada):
        raise UserError(
            "nothing to evaluate on", hint="--text FILE, --hellaswag FILE or --lambada FILE"
        )
    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit cannot be {args.limit}", hint="for example --limit 1000")
    from onecard.model.opening import open_model

    found: list[Result] = []
    for source in args.models:
        speaker = open_model(source, args.device, args.dataset)
        for result in _results(source, speaker, args):
            found.append(result)
            _keep(result, Path(source))
    if args.json:
        import json

        print(json.dumps([result.to_json() for result in found], indent=2))
    else:
        _show(found)
    return 0


def _results(source: str, speaker: "Sampler", args: argparse.Namespace) -> Iterator["Result"]:
    from onecard.evals.evaluate import evaluate_task, evaluate_text

    name = Path(source).name or source
    for file in map(Path, args.text):
        with _bar(f"{name}: {file.name}") as progress:
            yield evaluate_text(speaker, name, file, args.stride, progress)
    for task in ("hellaswag", "lambada"):
        if file := getattr(args, task):
            with _bar(f"{name}: {task}") as progress:
                yield evaluate_task(speaker, name, task, Path(file), args.limit, progress)


def _keep(result: "Result", source: Path) -> None:
    """In the run's folder, if it is one; a folder that cannot be written is no reason to lose the answer."""
    from onecard.evals.results import keep
    from onecard.runs.record import is_run_folder

    if is_run_folder(source) and not result.task.startswith("text "):
        with contextlib.suppress(OSError):
            keep(result, source)


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int | None], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def _show(found: list["Result"]) -> None:
    from onecard.untrusted import printable

    for result in found:
        print(f"{printable(result.model)} · {printable(result.task)}  ({result.items:,} items)")
        for figure in result.figures:
            share = figure.low is not None and figure.high is not None
            shown = f"{figure.value:.2%}" if share else f"{figure.value:.4g}"
            spread = f"  (95 %: {figure.low:.2%} to {figure.high:.2%})" if share else ""
            print(f"  {figure.name:14}{shown}{spread}")
        cut = f"; {result.truncated:,} contexts cut on the left" if result.truncated else ""
        print(f"  {result.protocol}{cut}\n")
