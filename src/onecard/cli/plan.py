"""`onecard plan`: what will this run need?"""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onecard.planner.result import RunPlan
    from onecard.report.document import Document

HELP = "What will this run need? Tokens, FLOPs, hours, memory, money and expected loss, before it starts."
EXAMPLE = (
    'onecard plan gpt2 --gpu "RTX 4070" --data fineweb-edu-10B --price 0.25EUR --batch_size=16'
)


def configure(parser: argparse.ArgumentParser) -> None:
    from onecard.cli.options import add_config, add_report

    add_config(parser)
    parser.add_argument(
        "--gpu",
        action="append",
        metavar="NAME",
        help='a card ("RTX 4070", 4090, a .toml file), cpu, or here: this machine (default); '
        "several are shown side by side",
    )
    parser.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="how many of them (default 1)"
    )
    parser.add_argument(
        "--data",
        metavar="NAME|TOKENS",
        help="a data set, a prepared folder, or tokens such as 3.7B",
    )
    parser.add_argument(
        "--price", metavar="PRICE", help="of a kWh: 0.25, 0.25EUR, or a region such as ES, IN, US"
    )
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
        metavar="nanogpt|nanochat|modded|litgpt|hf|llm.c|plain-pytorch",
        help="memory and time as that project's code would take them (default: onecard's own trainer)",
    )
    parser.add_argument("--presets", action="store_true", help="list the named configs and stop")
    add_report(parser)


def run(args: argparse.Namespace) -> int:
    if args.presets:
        return _presets(args.json)
    from onecard.cli.options import show_report
    from onecard.planner import plan

    config = _config(args)
    results = [
        plan(config, card, gpus=args.gpus, data=args.data, price=args.price, stack=args.stack)
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

    def document():  # type: ignore[no-untyped-def]
        from onecard.report.plan_view import plan_document

        return plan_document(result, explain=args.explain)

    show_report(args, result.to_json, document)
    return 0


def _config(args: argparse.Namespace):  # type: ignore[no-untyped-def]
    """CONFIG with its changes; --tokens as so many whole steps, and a schedule that ends with them."""
    from onecard.config import load, parse_overrides
    from onecard.config.length import for_tokens
    from onecard.errors import UserError
    from onecard.units import parse_count

    if args.tokens is None:
        return load(args.config, args.overrides)
    if "max_iters" in parse_overrides(args.overrides):
        raise UserError("--tokens and max_iters both set the length", hint="give one of them")
    config = load(args.config, args.overrides)
    return for_tokens(config, parse_count(args.tokens), parse_overrides(args.overrides))


def _explain_memory(args: argparse.Namespace, result: "RunPlan") -> int:
    from onecard.cli.options import show_report
    from onecard.planner.memory.explain import explain_memory

    args.full = True  # it has no short form
    explained = explain_memory(result.config, result.device, result.dtype, result.gpus)

    def document() -> "Document":
        from onecard.report.memory_view import memory_document

        return memory_document(result, explained)

    show_report(
        args, lambda: {**result.to_json(), "memory_explained": explained.to_json()}, document
    )
    return 0


def _presets(as_json: bool) -> int:
    import json

    from onecard.config.presets import PRESETS, about

    if as_json:
        print(json.dumps({name: about(name) for name in PRESETS}, ensure_ascii=False, indent=1))
        return 0
    width = max(map(len, PRESETS)) + 2
    for name in PRESETS:
        print(f"{name:{width}}{about(name)}")
    return 0
