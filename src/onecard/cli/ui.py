"""`onecard ui`: a local page to plan, to watch runs and to talk to models."""

import argparse

from onecard.cli.options import add_price
from onecard.cli.server_options import add_server, run_server, settings_of

HELP = "A local page: plan with sliders, watch runs against their plan, talk to the models. Nothing leaves this machine."
EXAMPLE = """onecard ui
  onecard ui ~/runs --host 0.0.0.0     # for the phone on the sofa: prints a link with a token, and its QR code"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", default=".", metavar="DIR", help="where the runs are (default: here)"
    )
    add_price(parser)
    parser.add_argument("--control", action="store_true", help="let the page stop and resume runs")
    parser.add_argument(
        "--no-browser", action="store_true", help="do not open a browser; only print the link"
    )
    add_server(parser)


def run(args: argparse.Namespace) -> int:
    from onecard.facts.prices import parse_price

    more = {"price": parse_price(args.price)} if args.price else {}
    settings = settings_of(args, args.folder, control=args.control, **more)
    return run_server(args, settings, open_browser=not args.no_browser)
