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
        metavar="NAME",
        help='a card ("RTX 4070", 4090, a .toml file), cpu, or here: this machine (default)',
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
        "--explain-memory",
        action="store_true",
        help="the memory over one step, the largest tensors at its peak, what each saver takes away",
    )
    parser.add_argument("--presets", action="store_true", help="list the named configs and stop")
    add_report(parser)


def run(args: argparse.Namespace) -> int:
    if args.presets:
        return _presets(args.json)
    from onecard.cli.options import show_report
    from onecard.config import load
    from onecard.planner import plan

    result = plan(
        load(args.config, args.overrides),
        args.gpu,
        gpus=args.gpus,
        data=args.data,
        price=args.price,
    )

    if args.explain_memory:
        return _explain_memory(args, result)

    def document():  # type: ignore[no-untyped-def]
        from onecard.report.plan_view import plan_document

        return plan_document(result, explain=args.explain)

    show_report(args, result.to_json, document)
    return 0


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
