"""`onecard tune`: from a model that continues text to one that answers."""

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.cli.options import add_overrides, add_quiet, add_report, show_report
from onecard.cli.train import planned_here, train_config
from onecard.config import RunConfig, load, parse_overrides
from onecard.errors import UserError
from onecard.streams import to_stream
from onecard.torchrun import local_rank, process_rank

if TYPE_CHECKING:
    from onecard.planner import RunPlan
    from onecard.tune.plan import TuningPlan

HELP = "Tune a model on conversations: loss on the assistant's words alone, exact and resumable as `train`."
EXAMPLE = """onecard tune out chats.jsonl --out out-chat
  onecard tune gpt2 chats.jsonl=80% mine.jsonl=20% --base-data fineweb-edu --keep-base 10% --dry-run
  onecard tune out-chat --resume"""

_SHOWN_AFTER = 1.0  # seconds
_FIXED = (
    "n_layer",
    "n_head",
    "n_embd",
    "bias",
    "tied",
    "vocab_size",
    "block_size",
    "recipe",
    "dataset",
    "init_from",
    "mask_documents",
    "learn_from",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "base",
        metavar="RUN",
        help="a run's folder, a released GPT-2 (gpt2 … gpt2-xl or its folder), an export, nanoGPT's ckpt.pt",
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE[=60%]",
        help="conversations (.jsonl, .json): messages, ShareGPT, Alpaca, prompt/completion",
    )
    parser.add_argument("--out", metavar="DIR", help="the tuned run's folder (default: RUN-chat)")
    parser.add_argument("--epochs", type=float, metavar="N", help="passes over the conversations")
    parser.add_argument(
        "--keep-base",
        metavar="10%",
        help="share of the base's own text that is mixed in against forgetting (default 10%% if it is available)",
    )
    parser.add_argument(
        "--base-data", metavar="NAME", help="the prepared folder with the base's own text"
    )
    parser.add_argument(
        "--repeat", action="store_true", help="repeat files that are too small for their share"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue the tuned run RUN from its last checkpoint"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what it would do, and stop")
    parser.add_argument(
        "--dataset", metavar="NAME", help="whose tokeniser to use, if the base's is gone"
    )
    add_quiet(parser)
    add_overrides(parser)
    add_report(parser)


def run(args: argparse.Namespace) -> int:
    prints = process_rank() == 0
    if args.resume:
        return _resumed(args, prints)
    if args.dry_run:
        if prints:
            _begin(args)
        return 0
    from onecard.train.run.workers import made_by_first

    made = made_by_first(lambda: json.dumps(asdict(_begin(args))))
    if made is None:
        return UserError.exit_code  # the first process has printed why
    config = RunConfig.from_values(json.loads(made))
    return train_config(config, args, prints, resume=False, plan_shown=True)


def _begin(args: argparse.Namespace) -> RunConfig:
    """Read the conversations, show the plan, write what the run will read (not in a dry run)."""
    planned = _planned(args)
    planned, machine = _fitted(planned, "batch_size" in parse_overrides(args.overrides))
    if args.dry_run or not (args.json or args.quiet):
        _show(args, planned, machine)
    if not args.dry_run:
        from onecard.runs.record import refuse_a_second_run
        from onecard.tune.plan import write_data

        refuse_a_second_run(Path(planned.config.out_dir))
        write_data(planned)
    return planned.config


def _resumed(args: argparse.Namespace, prints: bool) -> int:
    if args.files:
        raise UserError(
            "--resume continues with what the run began with: no files are named",
            hint=f"onecard tune {args.base} --resume",
        )
    saved = Path(args.base) / "config.toml"
    if not saved.is_file():
        raise UserError(
            f"nothing to resume: there is no run in {args.base} (no {saved})",
            hint="name the tuned run's folder",
        )
    config = load(saved, [*args.overrides, f"out_dir={args.base}"])
    return train_config(config, args, prints, resume=True, plan_shown=True)


def _planned(args: argparse.Namespace) -> "TuningPlan":
    from onecard.cli.terminal import progress_bar
    from onecard.tune.plan import Request, plan_tuning

    given = parse_overrides(args.overrides)
    for key in _FIXED:
        if key in given:
            raise UserError(f"{key} follows from the base and cannot be set", hint="leave it out")
    request = Request(
        base=args.base,
        files=args.files,
        out=args.out or given.pop("out_dir", None),
        epochs=args.epochs,
        keep_base=args.keep_base,
        base_data=args.base_data,
        repeat=args.repeat,
        dataset=args.dataset,
        given=given,
    )
    with progress_bar(quiet=args.quiet or args.json) as show:
        due = time.monotonic() + _SHOWN_AFTER

        def progress(done: float, whole: float) -> None:
            nonlocal due
            if time.monotonic() >= due:  # short readings show nothing, long ones ten times a second
                due = time.monotonic() + 0.1
                show(done, whole, "reading conversations")

        def report(text: str) -> None:
            to_stream(sys.stderr, text)

        return plan_tuning(request, report, progress)


def _fitted(planned: "TuningPlan", chosen: bool) -> "tuple[TuningPlan, RunPlan | None]":
    """With a micro-batch that fits on this device, unless the user chose one, and its plan; the batch stays the same."""
    from onecard.model.machine import choose_device

    device = choose_device(planned.config.device, local_rank())
    machine = planned_here(planned.config, device, prints=False)
    while machine is not None and machine.memory.fits == "no" and not chosen:
        micro, more = planned.config.batch_size, planned.config.gradient_accumulation_steps
        if micro % 2:
            break
        config = planned.config.replace(
            batch_size=micro // 2,
            gradient_accumulation_steps=2 * more,
            eval_iters=2 * planned.config.eval_iters,
        )
        planned = replace(planned, config=config)
        machine = planned_here(config, device, prints=False)
    return planned, machine


def _show(args: argparse.Namespace, planned: "TuningPlan", machine: "RunPlan | None") -> None:
    from onecard.report.tune_view import tune_document

    def as_json() -> dict[str, object]:
        seconds = None if machine is None else machine.time.total_seconds.mid
        memory = None if machine is None else machine.memory.process_bytes.mid
        return {**planned.to_json(), "seconds": seconds, "memory_bytes": memory}

    show_report(args, as_json, lambda: tune_document(planned, machine))
