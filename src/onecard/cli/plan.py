"""`onecard plan`: what will this run need?"""

import argparse
import json
import shutil
import textwrap
from typing import TYPE_CHECKING

from onecard.cli.options import add_config, add_price, add_report, show_report
from onecard.errors import UserError
from onecard.units import parse_count

if TYPE_CHECKING:
    from onecard.planner.result import RunPlan

HELP = "What will this run need? Tokens, FLOPs, hours, memory, money and expected loss, before it starts."
EXAMPLE = (
    'onecard plan gpt2 --gpu "RTX 4070" --data fineweb-edu-10B --price 0.25EUR --batch_size=16'
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--gpu",
        action="append",
        metavar="NAME",
        help='a card ("RTX 4070", 4090, a .toml file), cpu, or here: this machine (default); '
        "several are shown side by side",
    )
    parser.add_argument(
        "--gpus",
        type=int,
        default=1,
        metavar="N",
        help="how many of them, in each machine (default 1)",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="M",
        help="how many machines with as many cards each (default 1)",
    )
    parser.add_argument(
        "--link",
        metavar="NAME[,NAME]",
        help="what connects the cards (nvlink, pcie3, pcie4, pcie5) and the machines (10gbe … 100gbe, ib200, ib400, 8xib400)",
    )
    parser.add_argument(
        "--data",
        metavar="NAME|TOKENS",
        help="a data set, a prepared folder, or tokens such as 3.7B",
    )
    add_price(parser)
    parser.add_argument(
        "--tokens", metavar="N", help="train on this many tokens, such as 3.7B: sets max_iters"
    )
    parser.add_argument(
        "--explain-memory",
        action="store_true",
        help="the memory over one step, the largest tensors at its peak, what each saver takes away",
    )
    parser.add_argument(
        "--stack",
        default="onecard",
        metavar="PROJECT",
        help="memory and time as that project's code would take them: nanogpt, nanochat, modded, litgpt, hf, llm.c or plain-pytorch (default: onecard's own trainer)",
    )
    parser.add_argument("--presets", action="store_true", help="list the named configs and stop")
    add_report(parser)


def run(args: argparse.Namespace) -> int:
    if args.presets:
        return _presets(args.json)
    from onecard.planner import plan
    from onecard.report.plan_view import plan_document

    config = _config(args)
    results = [
        plan(
            config,
            card,
            gpus=args.gpus,
            nodes=args.nodes,
            link=args.link,
            data=args.data,
            price=args.price,
            stack=args.stack,
        )
        for card in args.gpu or [None]
    ]
    if len(results) > 1:
        from onecard.report.cards_view import cards_document

        show_report(
            args, lambda: [each.to_json() for each in results], lambda: cards_document(results)
        )
        return 0
    result = results[0]

    if args.explain_memory:
        return _explain_memory(args, result)
    show_report(args, result.to_json, lambda: plan_document(result, explain=args.explain))
    return 0


def _config(args: argparse.Namespace):  # type: ignore[no-untyped-def]
    """CONFIG with its changes; --tokens as so many whole steps, and a schedule that ends with them."""
    from onecard.config import load, parse_overrides
    from onecard.config.length import for_tokens

    if args.tokens is None:
        return load(args.config, args.overrides)
    if "max_iters" in parse_overrides(args.overrides):
        raise UserError("--tokens and max_iters both set the length", hint="give one of them")
    config = load(args.config, args.overrides)
    return for_tokens(config, parse_count(args.tokens), parse_overrides(args.overrides))


def _explain_memory(args: argparse.Namespace, result: "RunPlan") -> int:
    from onecard.planner.memory.explain import explain_memory
    from onecard.report.memory_view import memory_document

    explained = explain_memory(
        result.config, result.device, result.dtype, result.gpus, result.nodes, args.stack
    )
    show_report(
        args,
        lambda: {**result.to_json(), "memory_explained": explained.to_json()},
        lambda: memory_document(result, explained),
    )
    return 0


def _presets(as_json: bool) -> int:
    from onecard.config.presets import PRESETS, about

    if as_json:
        print(json.dumps({name: about(name) for name in PRESETS}, ensure_ascii=False, indent=1))
        return 0
    width = max(map(len, PRESETS)) + 2
    columns = max(shutil.get_terminal_size().columns, width + 30)
    for name in PRESETS:
        line = f"{name:{width}}{about(name)}"
        print(textwrap.fill(line, columns, subsequent_indent=" " * width, break_on_hyphens=False))
    return 0
