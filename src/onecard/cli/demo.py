"""`onecard demo`: the main job on this machine, with nothing but what every machine has."""

import argparse
import json

HELP = "Plan one run for several cards, then for this machine."
EXAMPLE = "onecard demo"

CARDS = ("RTX 3060 12GB", "RTX 4070", "RTX 4090", "RTX 5090", "A100 80GB", "H100 SXM")
RUN = "fineweb-124M-12gb"  # GPT-2 small's size on 10 B tokens: the run most people start with


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the plans, machine-readable")
    parser.add_argument("--lang", metavar="en|es|hi", help="the report's language (default: your locale's)")


def run(args: argparse.Namespace) -> int:
    from onecard import load, plan

    config = load(RUN)
    plans = [plan(config, card) for card in (*CARDS, "here")]
    if args.json:
        print(json.dumps([each.to_json() for each in plans], allow_nan=False))
        return 0
    from rich.table import Table

    from onecard.cli.terminal import console
    from onecard.units import show_bytes, show_duration

    table = Table(
        title=f"onecard plan {RUN}: 124 M parameters on 10.5 B tokens", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("card", no_wrap=True)
    for column in ("a step", "in all", "memory", "of", "fits", "kWh"):
        table.add_column(column, justify="right")
    for each in plans:
        table.add_row(
            each.device.name, show_duration(each.time.step_seconds.mid), show_duration(each.time.total_seconds.mid),
            show_bytes(each.memory.process_bytes.mid), show_bytes(each.memory.card_bytes), each.memory.fits,
            f"{each.energy.kwh.mid:,.1f}",
        )  # fmt: skip
    out = console()
    out.print(table)
    out.print("\n[bold]A run of a size for this machine[/]: onecard plan train_shakespeare_char --gpu here\n")
    from onecard.cli import main

    language = ["--lang", args.lang] if args.lang else []
    return main(["plan", "train_shakespeare_char", "--gpu", "here", *language])
