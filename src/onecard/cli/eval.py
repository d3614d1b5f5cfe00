"""`onecard eval`: how good is the model?"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.cli.options import add_report, add_tokenizer, check_counts, show_report
from onecard.errors import OnecardError, UserError
from onecard.units import parse_count

if TYPE_CHECKING:
    from onecard.evals.evaluation import Request
    from onecard.evals.prompts import Sheet
    from onecard.runs.eval_results import Result

HELP = "How good is the model? Bits per byte on any text, HellaSwag, LAMBADA, any lm-eval task, a sheet of prompts."
EXAMPLE = "onecard eval out --text notes.txt --hellaswag hellaswag_val.jsonl --limit 1000"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a run's folder, a Hugging Face GPT-2 folder or hub name, an export, or nanoGPT's ckpt.pt",
    )
    parser.add_argument(
        "--text",
        action="append",
        default=[],
        metavar="PATH",
        help="bits per byte on a file, a folder of files, or prepared data (its validation split)",
    )
    _add_tasks(parser)
    parser.add_argument(
        "--prompts",
        action="append",
        nargs="?",
        const="en",
        default=[],
        metavar="PATH|en|es|hi",
        help="answers to a file or folder of prompts, or to a shipped set (default en)",
    )
    parser.add_argument(
        "--prompt-tokens", type=int, default=60, metavar="N", help="of each answer (default 60)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N items of a task")
    parser.add_argument("--bytes", metavar="N", help="only the first N bytes of a text, such as 1M")
    parser.add_argument("--stride", type=int, metavar="N", help="of text windows (default: half)")
    parser.add_argument(
        "--checkpoint",
        default="newest",
        metavar="newest|best|STEP",
        help="which of a run's checkpoints (default newest)",
    )
    parser.add_argument("--again", action="store_true", help="measure again what is kept")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    add_tokenizer(parser)
    add_report(parser)


def _add_tasks(parser: argparse.ArgumentParser) -> None:
    """Our own two benchmarks, and any of lm-evaluation-harness."""
    for task in ("hellaswag", "lambada"):
        parser.add_argument(
            f"--{task}",
            nargs="?",
            const="",
            metavar="FILE",
            help="its items, .jsonl, .jsonl.xz or .parquet (default: found here, or from the hub)",
        )
    parser.add_argument(
        "--tasks",
        metavar="A,B",
        help='tasks of lm-evaluation-harness, such as arc_easy,piqa (pip install "onecard[eval]")',
    )
    parser.add_argument(
        "--task-data",
        action="append",
        default=[],
        metavar="TASK=FILE",
        help="a local file with such a task's items, instead of the hub's",
    )
    parser.add_argument("--task-path", metavar="DIR", help="a folder of task files of your own")
    parser.add_argument("--shots", type=int, metavar="N", help="examples before each question")


def run(args: argparse.Namespace) -> int:
    request = _request(args)
    from onecard.evals.evaluation import evaluate_model
    from onecard.report.eval_view import eval_document

    results: list[Result] = []
    sheets: list[Sheet] = []
    failed = None
    for source in args.models:
        try:
            evaluation = evaluate_model(
                source,
                request,
                device=args.device,
                dataset=args.dataset,
                which=args.checkpoint,
                watch=progress_bar,
                report=lambda text: print(text, file=sys.stderr),
                each=results.append,
            )
            sheets.extend(evaluation.sheets)
        except OnecardError as error:  # what was measured before it is still shown
            if not results and not sheets:
                raise
            failed = error
            break

    def as_json():  # type: ignore[no-untyped-def]
        return [result.to_json() for result in results] + [sheet.to_json() for sheet in sheets]

    show_report(args, as_json, lambda: eval_document(results, sheets))
    if failed is not None:
        raise failed
    return 0


def _request(args: argparse.Namespace) -> "Request":
    """What was asked for, checked before a model is loaded."""
    from onecard.evals.evaluation import Request, parse_task_data
    from onecard.evals.item_files import find_items
    from onecard.evals.prompts import read_prompts
    from onecard.evals.texts import text_place

    check_counts(args, limit="100", prompt_tokens="100", stride="100")
    if args.shots is not None and args.shots < 0:
        raise UserError(f"--shots cannot be {args.shots}", hint="for example --shots 5")
    wanted = {
        task: getattr(args, task)
        for task in ("hellaswag", "lambada")
        if getattr(args, task) is not None
    }
    harness = tuple(name.strip() for name in (args.tasks or "").split(",") if name.strip())
    request = Request(
        texts=tuple(map(text_place, args.text)),
        tasks={task: find_items(task, named) for task, named in wanted.items()},
        harness=harness,
        task_data=parse_task_data(args.task_data),
        task_path=Path(args.task_path) if args.task_path else None,
        shots=args.shots,
        prompts=tuple(prompt for source in args.prompts for prompt in read_prompts(source)),
        prompt_tokens=args.prompt_tokens,
        limit=args.limit,
        most_bytes=parse_count(args.bytes) if args.bytes else None,
        stride=args.stride,
        again=args.again,
    )
    if request.empty:
        raise UserError(
            "nothing to evaluate on",
            hint="--text PATH, --hellaswag, --lambada, --tasks arc_easy or --prompts",
        )
    if harness:
        from onecard.evals.harness import library

        library()
    return request


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar with the time left on a terminal; nothing in a pipe."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    shown = sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
