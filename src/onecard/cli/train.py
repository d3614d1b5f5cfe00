"""`onecard train`: the run."""

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onecard.cli.options import add_config, add_quiet
from onecard.cli.resuming import add_resume, chosen_config, named_changes, resumes
from onecard.config import RunConfig, load
from onecard.errors import OnecardError, UserError
from onecard.runs.record import refuse_a_second_run
from onecard.streams import to_stream
from onecard.torchrun import local_rank, process_count, process_rank

if TYPE_CHECKING:
    from onecard.planner import RunPlan
    from onecard.train.run.faults import Faults

HELP = (
    "Train the model of a config: exact, resumable, nothing lost. The run's folder is its out_dir."
)
EXAMPLE = """onecard data stdlib --tokenizer bytes --out data/stdlib-bytes      # no download
  onecard train train_shakespeare_char --dataset=stdlib-bytes --vocab_size=257 --out_dir=out-stdlib --max_iters=200 --lr_decay_iters=200 --warmup_iters=10 --dropout=0 --device=cpu --compile=False --n_layer=4 --n_head=4 --n_embd=128 --block_size=64 --batch_size=12"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_resume(parser)
    parser.add_argument(
        "--profile",
        action="store_true",
        help="no run: a few steps, where their time goes, and a trace in out_dir/profile",
    )
    parser.add_argument(
        "--autotune",
        action="store_true",
        help="first measure which settings are the fastest here (up to 3 min, where the run is long enough to pay it back)",
    )
    add_quiet(parser)
    parser.add_argument("--json", action="store_true", help="how it ended, as JSON")


def run(args: argparse.Namespace) -> int:
    rank = process_rank()
    try:
        config, prints = chosen_config(args), rank == 0
        if args.profile:
            return _profile(config, as_json=args.json, prints=prints)
        resume = resumes(config, args, prints)
        if prints and not (resume or config.init_from == "resume"):
            refuse_a_second_run(Path(config.out_dir))  # before torch is imported and a plan shown
        return train_config(config, args, prints, resume, named_changes(args))
    except OnecardError as error:
        if (rank and isinstance(error, UserError)) or not error.message:
            return error.exit_code  # the first process says the same
        raise


def train_config(
    config: RunConfig,
    args: argparse.Namespace,
    prints: bool,
    resume: bool,
    change: frozenset[str] = frozenset(),
    plan_shown: bool = False,
) -> int:
    """The run itself, from its plan to its last words; `tune` ends in it too."""
    from onecard.model.machine import choose_device
    from onecard.train.io.view import View
    from onecard.train.run.loop import train

    config = _as_this_device_can(config, prints and not args.json)
    device = choose_device(config.device, local_rank())
    planned = planned_here(config, device, prints and not args.json)
    if planned is not None and getattr(args, "autotune", False) and _may_be_tuned(args):
        from onecard.cli.autotune import tuned_before_run

        whole = planned.time.total_seconds.mid
        config = tuned_before_run(config, whole, quiet=args.json or args.quiet)
        planned = planned_here(config, device, False)
    if planned is not None and prints and not (args.json or args.quiet or plan_shown):
        _show_plan(planned)
    extend = bool(getattr(args, "extend", False))
    faults = _ordered_faults()
    from onecard.evals.in_training import training_benchmark

    benchmark = training_benchmark(config)  # items that are not there stop the run before it starts
    if not prints:
        train(config, resume=resume, faults=faults, change=change, branch=extend)
        return 0
    if extend and not args.json:
        _forecast(config)
    with View(config, planned, config.max_iters, quiet=args.quiet or args.json) as view:
        outcome = train(
            config,
            resume=resume,
            view=view,
            plan=planned,
            faults=faults,
            change=change,
            branch=extend,
            benchmark=benchmark,
        )
        if outcome.loss is None and outcome.state == "finished" and not config.eval_only:
            view.message(
                f"this run was finished at step {outcome.step:,}; "
                f"`onecard train --extend --out_dir={config.out_dir} --max_iters=…` continues"
            )
    if outcome.loss is not None and outcome.state == "finished":
        _refine(outcome.folder)
    return _ended(outcome, args, "chat" if config.learn_from == "answers" else "sample")


def _ordered_faults() -> "Faults | None":
    """Those of the fault suite, which orders them by a variable of the environment."""
    ordered = os.environ.get("ONECARD_FAULT")
    if not ordered:
        return None
    from onecard.train.run.faults import Faults

    return Faults.parse(ordered, process_rank())


def _forecast(config: RunConfig) -> None:
    """Lengthening a run whose rate has decayed: what it will cost where nothing was kept from before."""
    from onecard.train.run.branch import branch_point, bump_forecast

    folder = Path(config.out_dir)
    if branch_point(folder, config) is None:
        text = bump_forecast(folder, load(folder / "config.toml"), config)
        if text is not None:
            to_stream(sys.stdout, text)


def planned_here(config: RunConfig, device: Any, prints: bool) -> "RunPlan | None":
    """The plan for the very device and number of processes that train."""
    from onecard.model.machine import facts_of
    from onecard.planner import plan

    # the processes of a CPU run share one machine
    cards = 1 if device.type == "cpu" else process_count()
    try:
        return plan(config, facts_of(device), gpus=cards)
    except UserError as error:  # a card that is not in the table can still train
        if prints:
            to_stream(sys.stdout, f"no plan: {error.message}")
        return None


def _show_plan(planned: "RunPlan") -> None:
    from onecard.report import shortened, show
    from onecard.report.plan_view import plan_document

    in_short = replace(shortened(plan_document(planned)), footer=None)
    to_stream(sys.stdout, show(in_short).rstrip("\n"))


def _may_be_tuned(args: argparse.Namespace) -> bool:
    """A resumed run keeps its settings; several processes would each find their own."""
    if args.resume or args.extend or args.go_on or process_count() > 1:
        raise UserError(
            "--autotune is for a new run of one process",
            hint="`onecard probe --autotune CONFIG` writes the fastest settings into the config",
        )
    return True


def _as_this_device_can(config: RunConfig, prints: bool) -> RunConfig:
    """The fall-backs that `onecard doctor` chose for the card; on one it has not seen, its quick form first. A failing
    check never ends a run that could continue slower."""
    from onecard.model.machine import choose_device

    device = choose_device(config.device, local_rank())
    if device.type == "cpu":  # nothing there that the run does not try by itself
        return config
    from onecard.train.doctor.answers import ask
    from onecard.train.doctor.diagnose import diagnose
    from onecard.train.doctor.kept import kept_for, with_fallbacks

    try:
        answers = ask(device)
        if kept_for(answers) is None and process_count() == 1:
            if prints:
                print(
                    f"a new device, {answers.name}: a short check first (`onecard doctor` is the long one)"
                )
            for row in diagnose(device, quick=True, answers=answers):
                if prints and row.status != "ok":
                    print(f"{row.check}: {row.detail}")
        kept = kept_for(answers)
    except Exception as error:
        print(f"the check of the device failed ({error}); the run continues", file=sys.stderr)
        return config
    if kept is None:
        return config
    config, lines = with_fallbacks(config, kept)
    if prints:
        print("".join(f"{line}\n" for line in lines), end="")
    return config


def _profile(config: RunConfig, as_json: bool, prints: bool) -> int:
    from onecard.train.profile import profile_run

    profile = profile_run(config)
    if prints:
        print(json.dumps(profile.to_json()) if as_json else profile)
    return 0


def _refine(folder: Path) -> None:
    """A finished run sharpens what a probe measured; that it cannot is no reason to end in anything but success."""
    from onecard.runs.refine_calibration import refine_from_run

    try:
        refine_from_run(folder)
    except (OSError, OnecardError) as error:
        to_stream(sys.stderr, f"the calibration stays as it was: {error}")


def _ended(outcome: Any, args: argparse.Namespace, verb: str) -> int:
    if args.json:
        answer = {
            "state": outcome.state,
            "step": outcome.step,
            "loss": outcome.loss,
            "val_loss": outcome.val_loss,
            "folder": str(outcome.folder),
        }
        print(json.dumps(answer))
    elif outcome.state == "stopped":
        to_stream(
            sys.stdout,
            f"stopped and saved at step {outcome.step:,}; `onecard train --resume --out_dir={outcome.folder}` continues",
        )
    else:
        loss = "" if outcome.val_loss is None else f", validation loss {outcome.val_loss:.4f}"
        to_stream(
            sys.stdout,
            f"finished at step {outcome.step:,}{loss}; try it with `onecard {verb} {outcome.folder}`",
        )
    return 0 if outcome.stopped_by is None else 128 + outcome.stopped_by
