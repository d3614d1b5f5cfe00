"""The command line: one file a verb, each parse → one library call → render.

A verb's module has HELP (one line), EXAMPLE (a command to copy), `configure(parser)` and `run(args) -> int`. It is
imported only when it is typed, so that `onecard plan` never pays for torch.
"""

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from onecard.errors import OnecardError, UserError, nearest
from onecard.streams import silence, to_stream
from onecard.untrusted import printable

VERBS: dict[str, str] = {
    "plan": "what will this run need? tokens, hours, memory, money, loss",
    "recommend": "what should I run on my card, in the time I have?",
    "can": "can this card train that model at all?",
    "data": "download, tokenise, shuffle and shard text; look at the result",
    "train": "the run: exact, resumable, nothing lost",
    "sample": "text from a trained model",
    "eval": "bits per byte, HellaSwag and LAMBADA, each with its protocol and interval",
    "export": "the model for transformers, llama.cpp or nanoGPT, with a model card",
    "runs": "the runs below this folder: state, loss, hours, cost",
    "compare": "which run is faster, better, cheaper, and why",
    "explain": "why a run is as fast and as good as it is, and what to try next",
    "probe": "measure this machine, so that the next plan is sharper",
    "verify-resume": "proof, on this machine, that a stop loses nothing",
    "gpus": "the cards that are known, and a search in them",
    "demo": "the main job, on this machine, in a few minutes",
}


# What `pip install onecard` leaves out.
_TRAINING = {
    "torch",
    "numpy",
    "safetensors",
    "pyarrow",
    "zstandard",
    "tokenizers",
    "huggingface_hub",
    "fastokens",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message, hint=f"`{self.prog} --help` shows an example")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; every error a person can meet comes out as a sentence."""
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # closed by the shell, as in `onecard plan gpt2 >&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without × or ░ still shows the rest
    try:
        code = _dispatch(words)
        sys.stdout.flush()  # here, where a full disk can still be answered
        return code
    except OnecardError as error:
        # messages quote names from strangers' files
        to_stream(sys.stderr, "onecard: " + printable(error.message, keep="\n"))
        if error.hint:
            to_stream(sys.stderr, "  hint: " + printable(error.hint, keep="\n"))
        return error.exit_code
    except KeyboardInterrupt:
        to_stream(sys.stderr, "onecard: stopped")
        return 130
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _TRAINING:
            return _internal_error(error)
        to_stream(sys.stderr, f"onecard: this command needs {error.name}, which is not installed")
        to_stream(
            sys.stderr,
            "  hint: pip install 'onecard[train]' (on Windows, torch by pytorch.org's instructions first)",
        )
        return 2
    except MemoryError:
        to_stream(sys.stderr, "onecard: out of memory")
        return 1
    except BrokenPipeError:  # the reader went away, as `head` does
        silence(sys.stdout)
        return 0
    except OSError as error:
        if sys.platform == "win32" and error.errno == errno.EINVAL:  # its word for a closed pipe
            silence(sys.stdout)
            return 0
        if error.errno != errno.ENOSPC:
            return _internal_error(error)
        to_stream(
            sys.stderr,
            f"onecard: {error.strerror}: {error.filename or 'where the answer was to be written'}",
        )
        to_stream(sys.stderr, "  hint: free some of the disk, then run it again")
        silence(sys.stdout)
        return 1
    except Exception as error:
        return _internal_error(error)


def _internal_error(error: Exception) -> int:
    if os.environ.get("ONECARD_DEBUG"):
        raise error
    to_stream(sys.stderr, f"onecard: internal error: {type(error).__name__}: {error}")
    to_stream(sys.stderr, "  hint: please report it with what ONECARD_DEBUG=1 shows")
    return 70  # EX_SOFTWARE


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] in ("-V", "--version"):
        from onecard.version import __version__

        print(f"onecard {__version__}")
        return 0
    verb = words[0]
    if verb not in VERBS:
        raise UserError(
            f"unknown command {verb!r}",
            hint=nearest(verb, VERBS) or "`onecard --help` lists the commands",
        )
    parser = parser_of(verb)
    args, rest = parser.parse_known_args(words[1:])
    if hasattr(args, "overrides"):  # nanoGPT's own spelling: --n_layer=6
        args.overrides = [*args.overrides, *rest]
    elif rest:
        parser.error(f"{rest[0]!r} is not an option of `onecard {verb}`")
    return int(importlib.import_module(f"onecard.cli.{verb.replace('-', '_')}").run(args) or 0)


def parser_of(verb: str) -> argparse.ArgumentParser:
    """The argument parser of one verb, with its example."""
    module = importlib.import_module(f"onecard.cli.{verb.replace('-', '_')}")
    parser = _Parser(
        prog=f"onecard {verb}",
        description=module.HELP,
        epilog=f"example:\n  {module.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    return parser


def _overview() -> str:
    width = max(map(len, VERBS)) + 2
    lines = [f"  {verb:{width}}{what}" for verb, what in VERBS.items()]
    return "\n".join(
        [
            "onecard: plan a GPT training run before you start it, run it on the card you have, and learn from it.",
            "",
            "usage: onecard COMMAND … [--help]",
            "",
            *lines,
            "",
            'example:\n  onecard plan gpt2 --gpu "RTX 4070"',
        ]
    )
