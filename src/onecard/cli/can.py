"""`onecard can`: can this card train that model at all?"""

import argparse
import sys
from pathlib import Path

from onecard.cli.options import Once, add_out, add_report, add_set, show_report
from onecard.config.key_lists import choices
from onecard.units import parse_count, parse_duration

HELP = "Can this card train that model at all? Compute and memory against what is needed, and what to do instead."
EXAMPLE = 'onecard can gpt2-xl --gpu "RTX 4070 Ti" --for 1y --utilization 0.9 --tokens 10B'


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help='a preset (gpt2-xl), a size (350M), a known model ("Gopher 1.4B") or a config file',
    )
    parser.add_argument(
        "--gpu",
        action=Once,
        metavar="NAME",
        help='a card ("RTX 4070", 4090, a .toml file), cpu, or here (default)',
    )
    parser.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="how many of them (default 1)"
    )
    parser.add_argument(
        "--for",
        dest="time",
        default="1y",
        metavar="TIME",
        help="the time available: 20h, 30d, 1y (default 1y)",
    )
    parser.add_argument(
        "--recipe",
        choices=choices("recipe"),
        help="the kind of model (default: the config's own; GPT-2's for presets and sizes)",
    )
    parser.add_argument(
        "--utilization",
        type=float,
        metavar="U",
        help="the share of peak × time that is used, 0 to 1 (default: the predicted rate)",
    )
    parser.add_argument(
        "--tokens",
        metavar="N",
        help="to train on, such as 10B (default: compute-optimal for the size)",
    )
    add_set(parser)
    add_out(parser)
    add_report(parser)


def run(args: argparse.Namespace) -> int:
    from onecard.advise.can import can
    from onecard.advise.config_file import can_text, check_target, write_config
    from onecard.report.can_view import can_document

    if args.out:
        check_target(Path(args.out), args.force)  # before the work is done
    answer = can(
        args.model,
        args.gpu,
        gpus=args.gpus,
        seconds=parse_duration(args.time),
        utilization=args.utilization,
        tokens=None if args.tokens is None else parse_count(args.tokens),
        recipe=args.recipe,
        overrides=args.overrides,
    )
    if args.out:
        write_config(Path(args.out), can_text(answer, args.out), args.force)
    show_report(args, answer.to_json, lambda: can_document(answer, explain=args.explain))
    if args.out and not args.json:
        print(f"written: {args.out}", file=sys.stderr)
    return 0
