"""How `onecard train` takes up a run: --resume, --extend, --continue, and the config that each continues with."""

import argparse
import sys
from pathlib import Path

from onecard.config import RunConfig, load, parse_overrides
from onecard.errors import UserError
from onecard.streams import to_stream
from onecard.torchrun import process_rank


def add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resume", action="store_true", help="continue the run in out_dir from its last checkpoint"
    )
    parser.add_argument(
        "--continue",
        action="store_true",
        dest="go_on",
        help="--resume where out_dir has a checkpoint, else a new run: for jobs that may be started more than once",
    )
    parser.add_argument(
        "--extend", action="store_true", help="continue a finished run to a larger max_iters"
    )
    parser.add_argument(
        "--change",
        action="append",
        default=[],
        metavar="KEY",
        help="with --resume: continue although this config key (or dataset, tokenizer) is another than recorded; "
        "repeatable, or a list with commas",
    )


def resumes(config: RunConfig, args: argparse.Namespace, prints: bool) -> bool:
    """Whether this start continues with the run in out_dir. --continue decides by its checkpoints; what ended before its
    first one is put aside, because a new run never writes into another's folder."""
    if not args.go_on:
        return bool(args.resume or args.extend)
    from onecard.model.checkpoint import checkpoints
    from onecard.runs.set_aside import set_aside

    folder = Path(config.out_dir)
    if checkpoints(folder):
        return True
    if process_rank() == 0:
        aside = set_aside(folder)
        if aside is not None and prints and not args.json:
            to_stream(
                sys.stdout,
                f"the run in {folder} ended before its first checkpoint; it starts again (what it left is in {aside})",
            )
    return False


def named_changes(args: argparse.Namespace) -> frozenset[str]:
    """The keys of --change; --extend names the length of the run."""
    named = {key.strip() for word in args.change for key in word.split(",") if key.strip()}
    if named and not (args.resume or args.extend):
        raise UserError(
            "--change goes with --resume", hint="a new run takes its config as it is given"
        )
    return frozenset(named | ({"max_iters", "lr_decay_iters"} if args.extend else set()))


def chosen_config(args: argparse.Namespace) -> RunConfig:
    """What was typed; --resume without CONFIG takes the run's own config, and --extend moves the schedule's end."""
    given = parse_overrides(args.overrides)
    if not (args.resume or args.extend):
        return load(args.config, args.overrides)
    out_dir = given.get("out_dir") or (load(args.config).out_dir if args.config else "out")
    saved = Path(str(out_dir)) / "config.toml"
    if not saved.is_file():
        raise UserError(
            f"nothing to {'extend' if args.extend else 'resume'}: there is no run in {out_dir} (no {saved})",
            hint="name its folder by --out_dir=…, or leave --resume out to start a new run",
        )
    before = load(saved)
    config = load(args.config or saved, args.overrides)
    if args.extend:
        if config.max_iters <= before.max_iters:
            raise UserError(
                f"the run in {out_dir} already goes to max_iters = {before.max_iters}",
                hint=f"--extend needs a larger one, such as --max_iters={2 * before.max_iters}",
            )
        if "lr_decay_iters" not in given and before.lr_decay_iters == before.max_iters:
            config = config.replace(lr_decay_iters=config.max_iters)
    return config
