"""What `onecard ui` and `onecard serve` share: the options of a server, its links, its QR code."""

import argparse
import json
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onecard.errors import UserError

if TYPE_CHECKING:
    from onecard.ui.settings import Settings


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (default 127.0.0.1: this machine alone); 0.0.0.0: all, with a token",
    )
    parser.add_argument(
        "--port", type=int, metavar="N", help="the port (default: the first free one from 8321)"
    )
    parser.add_argument(
        "--token",
        metavar="WORD",
        help="what others must present, at least 16 characters (default: a random one where --host needs it)",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name by which this machine is reached, such as pc.local",
    )
    parser.add_argument("--device", default="auto", help="for models: auto, cpu, cuda or mps")
    parser.add_argument(
        "--json", action="store_true", help="print address and token as one line of JSON"
    )


def settings_of(args: argparse.Namespace, folder: str, **more: Any) -> "Settings":
    """The server's settings; where others can reach it, a token is a must."""
    from onecard.ui.server import is_loopback
    from onecard.ui.settings import Settings

    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"no folder {folder!r}", hint="a run's folder, or one that holds runs")
    if args.token is not None and (
        len(args.token) < 16
        or not args.token.isascii()
        or not args.token.replace("-", "").replace("_", "").isalnum()
    ):
        raise UserError(
            "the token is too short, or not of letters, digits, - and _",
            hint="leave --token out, and a random one is made",
        )
    outside = not is_loopback(args.host)
    token = args.token or (secrets.token_urlsafe(24) if outside else None)
    own = socket.gethostname().lower()
    hosts = {name.lower() for name in args.allow_host}
    if outside:
        hosts |= {own, f"{own}.local"}
    return Settings(
        root=root.resolve(),
        token=token,
        hosts=frozenset(hosts),
        any_address=outside,
        device=args.device,
        **more,
    )


def run_server(args: argparse.Namespace, settings: "Settings", open_browser: bool) -> int:
    """Serve until Ctrl-C; the link is printed when it works."""
    from onecard.ui.server import link, open_socket, serve

    listening = open_socket(args.host, args.port)
    address = link(settings, args.host, listening.getsockname()[1])

    def ready() -> None:
        _announce(args, settings, address)
        if open_browser and sys.stdout.isatty():
            import threading
            import webbrowser

            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    serve(settings, listening, ready)
    return 0


def _announce(args: argparse.Namespace, settings: "Settings", address: str) -> None:
    base = address.partition("?")[0]
    if args.json:
        words = {"url": address, "api": f"{base}v1", "token": settings.token}
        print(json.dumps(words), flush=True)
        return
    if settings.page:
        print(f"onecard: {address}", flush=True)
    print(f"onecard: OpenAI-compatible API at {base}v1", flush=True)
    if settings.token is not None:
        print(f"onecard: token {settings.token}", flush=True)
        if settings.page and sys.stdout.isatty():
            import segno

            segno.make(address, error="l").terminal(compact=True)
    print("onecard: Ctrl-C stops the server")
