"""`onecard serve`: one model behind an OpenAI-compatible API."""

import argparse
from pathlib import Path

from onecard.cli.server_options import add_server, run_server, settings_of
from onecard.errors import UserError

HELP = "A model behind an OpenAI-compatible API: /v1/models, /v1/completions, /v1/chat/completions, streaming and not."
EXAMPLE = """onecard serve out
  curl http://127.0.0.1:8321/v1/completions -d '{"model": "out", "prompt": "Once", "max_tokens": 50}'"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder, or an exported one")
    add_server(parser)


def run(args: argparse.Namespace) -> int:
    settings = settings_of(args, args.run, page=False, only=Path(args.run).absolute())
    from onecard.ui.models import has_checkpoint

    folder = settings.root
    if not has_checkpoint(folder) and not (folder / "config.json").is_file():
        raise UserError(
            f"{args.run} holds no model", hint="name a run with a checkpoint, or an exported folder"
        )
    return run_server(args, settings, open_browser=False)
