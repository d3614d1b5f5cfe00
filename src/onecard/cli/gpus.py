"""`onecard gpus [words]`: the cards that are known."""

import argparse
import json
from dataclasses import asdict

from onecard.errors import UserError
from onecard.facts.gpus import Device, search_gpus
from onecard.planner.card_rate import sustained_flops
from onecard.units import GIB

HELP = "List and search the known cards; --here shows what the driver says of this machine's."
EXAMPLE = """onecard gpus ada 12gb

a card of your own goes in gpus.toml in onecard's config folder (--where prints its path), or in a file given to --gpu:
  [[gpu]]
  name = "RTX 4070 at 160 W"
  like = "RTX 4070"     # or memory_gib, bandwidth_gbs, bf16_tflops, fp32_tflops
  watts = 160"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", help="words that must all occur: a name, a maker, an architecture, 12gb"
    )
    parser.add_argument(
        "--here", action="store_true", help="the card in this machine, as its driver reports it"
    )
    parser.add_argument(
        "--where", action="store_true", help="print where your own gpus.toml belongs"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable, in base units")


def run(args: argparse.Namespace) -> int:
    from onecard.facts.here import here
    from onecard.facts.user_cards import user_cards_file

    if args.where:
        print(user_cards_file())
        return 0
    cards = [here()] if args.here else search_gpus(args.words)
    if not cards:
        raise UserError(
            f"no card matches {' '.join(args.words)!r}",
            hint="use fewer words; `onecard gpus` lists them all",
        )
    if args.json:
        rows = [{**asdict(card), "sustained_flops": sustained_flops(card)} for card in cards]
        print(json.dumps(rows, indent=1))
    else:
        _show(cards)
    return 0


def _show(cards: list[Device]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from onecard.cli.terminal import console

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("card", no_wrap=True)
    table.add_column("arch.")
    for column in ("GiB", "GB/s", "bf16", "fp16", "fp32", "sustained", "watts", "sure"):
        table.add_column(column, justify="right")
    for card in cards:
        rates = (card.bf16_flops, card.fp16_flops, card.fp32_flops)
        table.add_row(
            escape(card.name),
            card.architecture,
            f"{card.memory_bytes / GIB:.3g}",
            f"{card.bandwidth / 1e9:,.0f}",
            *("–" if rate is None else _tera(rate) for rate in rates),
            _tera(sustained_flops(card)),
            f"{card.watts:.0f}",
            card.confidence,
        )
    out = console()
    out.print(table)
    out.print(
        "\n[dim]TFLOPS, dense, accumulating in fp32; sustained: what matmuls of a model reach for hours in the dtype it is"
        " trained in, from readings and public runs (docs/accuracy.md); it may lie above the rated figure, which is at the"
        " specification's boost clock, where cards boost further. sure: A checked, B computed from the specification,"
        " C a rough estimate.[/]"
    )
    for card in cards if len(cards) <= 3 else ():
        taken = (
            ""
            if card.taken_bytes is None
            else f"; {card.taken_bytes / GIB:.2f} GiB in use by other programs"
        )
        checked = f" ({card.checked})" if card.checked else ""
        line = f"{card.name}: {card.source}{checked}{taken}. {card.note}".rstrip()
        out.print(f"[dim]{escape(line)}[/]")


def _tera(flops: float) -> str:
    return f"{flops / 1e12:,.0f}" if flops >= 1e14 else f"{flops / 1e12:.3g}"
