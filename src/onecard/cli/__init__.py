"""The command line: one file a verb, each parse → one library call → render.

A verb's module has HELP (one line), EXAMPLE (a command to copy), `configure(parser)` and `run(args) -> int`. It is
imported only when it is typed, so that `onecard plan` never pays for torch.
"""

import argparse
import contextlib
import errno
import importlib
import os
import re
import sys
from collections.abc import MutableMapping, Sequence
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import NoReturn

from onecard.cli.flags import in_plain_words, one_too_many, with_flags
from onecard.errors import InternalError, OnecardError, UserError, nearest
from onecard.streams import silence, to_stream
from onecard.untrusted import printable

EXIT_INTERNAL = 70  # EX_SOFTWARE: a bug of onecard's, nothing the user did

# GNU's OpenMP, which torch for Linux brings; LLVM's and Intel's, which those for macOS and Windows do
PASSIVE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
_ASKED = (*PASSIVE, "GOMP_SPINCOUNT")
_PRESSURE = Path("/proc/pressure/cpu")
BUSY = 0.2  # of the last ten seconds in which a program waited for a core

VERBS: dict[str, str] = {
    "go": "from nothing to your own GPT: recommend, data, train, evaluate",
    "plan": "what will this run need? tokens, hours, memory, money, loss",
    "recommend": "what should I run on my card, in the time I have?",
    "can": "can this card train that model at all?",
    "data": "download, tokenise, shuffle and shard text; look at the result",
    "train": "the run: exact, resumable, nothing lost",
    "launch": "the run elsewhere: a job for Slurm, SkyPilot or ssh",
    "sample": "text from a trained model",
    "tune": "make an assistant of a model, from your conversations",
    "chat": "talk to a tuned model",
    "eval": "how good is it? bits per byte, HellaSwag, LAMBADA, any task",
    "export": "the model for transformers, llama.cpp or nanoGPT",
    "ui": "a local page: plan with sliders, watch runs, talk to models",
    "serve": "a model behind an OpenAI-compatible API",
    "runs": "the runs below this folder: state, loss, hours, cost",
    "compare": "which run is faster, better, cheaper, and why",
    "explain": "why a run is as fast and as good as it is, and what to try next",
    "doctor": "does this machine work? every path tried, fall-backs chosen",
    "probe": "measure this machine, so that the next plan is sharper",
    "verify-resume": "proof, on this machine, that a stop loses nothing",
    "gpus": "the cards that are known, and a search in them",
    "demo": "the main job, on this machine, in a few minutes",
}


# What `pip install onecard` leaves out, and the extra that brings it.
_TRAINING = (
    *("torch", "numpy", "safetensors", "pyarrow", "zstandard"),
    *("tokenizers", "huggingface_hub", "fastokens"),
)
_EXTRAS = {
    **dict.fromkeys(_TRAINING, "train"),
    **dict.fromkeys(("starlette", "uvicorn", "jinja2", "segno"), "ui"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(in_plain_words(message), hint=f"`{self.prog} --help` shows an example")


class _Help(argparse.HelpFormatter):
    """Descriptions fill the lines of the terminal; examples stay as they are typed."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example:") else super()._fill_text(text, width, indent)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; every error a person can meet comes out as a sentence."""
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # closed by the shell, as in `onecard plan gpt2 >&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without × or ░ still shows the rest
    try:
        code = dispatch(words)
        sys.stdout.flush()  # here, where a full disk can still be answered
        return code
    except InternalError as error:
        hint = f"please report it at {_issue_tracker()}; {error.hint}"
        return _say(error.message, hint, error.exit_code)
    except OnecardError as error:
        return _say(error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        return _say("stopped", code=130)
    except MemoryError:
        return _say("out of memory", code=1)
    except ModuleNotFoundError as error:
        return _missing_module(error)
    except OSError as error:
        return _system_error(error)
    except Exception as error:
        return _internal_error(error)


def _say(message: str, hint: str | None = None, code: int = 2) -> int:
    """One sentence on standard error, whatever characters a name in it holds; returns the exit code."""
    if to_stream(sys.stderr, "onecard: " + printable(with_flags(message), keep="\n")) and hint:
        to_stream(sys.stderr, "  hint: " + printable(with_flags(hint), keep="\n"))
    return code


def _missing_module(error: ModuleNotFoundError) -> int:
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        return _internal_error(error)
    first = "on Windows, torch by pytorch.org's instructions first"
    hint = f'pip install "onecard[{extra}]"' + (f" ({first})" if extra == "train" else "")
    return _say(f"this command needs {error.name}, which is not installed", hint)


def _system_error(error: OSError) -> int:
    """A reader that went away, a full disk; anything else is ours."""
    # Windows reports a closed pipe as EINVAL, without the name of a file.
    gone = error.errno == errno.EPIPE or (
        sys.platform == "win32" and error.errno == errno.EINVAL and error.filename is None
    )
    if not gone and error.errno != errno.ENOSPC:
        return _internal_error(error)
    silence(sys.stdout)  # what is still in the buffer has nowhere to go
    if gone:
        return 0
    return _say(
        f"{error.strerror}: {error.filename or 'where the output was to be written'}",
        "free some disk space, then run it again",
        code=1,
    )


def _internal_error(error: Exception) -> int:
    """A bug of onecard's: the traceback goes to a file, the reader gets a sentence."""
    if os.environ.get("ONECARD_DEBUG"):
        raise error
    first = str(error).partition("\n")[0][:300]
    where = _write_traceback(error)
    hint = f"please report it at {_issue_tracker()}" + (f" with {where}" if where else "")
    return _say(f"internal error: {type(error).__name__}: {first}", hint, EXIT_INTERNAL)


def _issue_tracker() -> str:
    """The address that the installed package states."""
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        for url in metadata.metadata("onecard").get_all("Project-URL") or []:
            label, _, address = url.partition(", ")
            if label.lower() in ("issues", "bug tracker", "tracker"):
                return str(address)
    return "the project's issue tracker"


def _write_traceback(error: Exception) -> str | None:
    import platform
    import tempfile
    import traceback

    from onecard.version import __version__

    about = f"onecard {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
    text = about + "".join(traceback.format_exception(error))
    try:
        handle, path = tempfile.mkstemp(prefix="onecard-error-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return None
    return path


def dispatch(words: list[str]) -> int:
    """Run one command; errors are raised."""
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
    for before, word in zip(["", *rest], rest, strict=False):
        if not word.startswith("-") and "=" not in word:
            parser.error(one_too_many(before, word))
        _refuse_misspelt(parser, word)
    if hasattr(args, "overrides"):  # nanoGPT's own spelling: --n_layer=6
        args.overrides = [*args.overrides, *rest]
    elif rest:
        parser.error(f"{rest[0]!r} is not an option of `onecard {verb}`")
    wait_passively_where_busy(os.environ)  # before torch is imported
    return int(importlib.import_module(f"onecard.cli.{verb.replace('-', '_')}").run(args) or 0)


def wait_passively_where_busy(
    environment: MutableMapping[str, str], busy: bool | None = None
) -> bool:
    """How torch's threads wait for each other, chosen before torch is imported; whether they now wait passively.

    OpenMP's threads spin for a while where they have nothing to do. Alone on a machine that is the fastest; where other programs
    use the cores, a thread that spins keeps the one that it waits for from running, and steps take ten times as long and more
    (bench/waiting.py). The waiting is chosen when OpenMP is loaded and stays: passive where the processor is busy now, as it
    comes where it is not. A variable that the user has set is left as it is.

    >>> environment = {}
    >>> wait_passively_where_busy(environment, busy=True)
    True
    >>> environment["OMP_WAIT_POLICY"]
    'passive'
    """
    if any(name in environment for name in _ASKED):
        return False
    if not (processor_is_busy() if busy is None else busy):
        return False
    environment.update(PASSIVE)
    return True


def processor_is_busy() -> bool:
    """By Linux's count of what waited for a core; else by the programs that want one, where the system tells."""
    with contextlib.suppress(OSError):
        match = re.search(r"some avg10=([\d.]+)", _PRESSURE.read_text(encoding="ascii"))
        if match:
            return float(match[1]) / 100 >= BUSY
    with contextlib.suppress(OSError, AttributeError):
        return os.getloadavg()[0] >= 0.75 * (os.cpu_count() or 1)
    return False


def _refuse_misspelt(parser: argparse.ArgumentParser, word: str) -> None:
    """`--md` is nearer to an option of the command than to any config key."""
    if not word.startswith("--") or "=" in word:
        return
    options = [name for action in parser._actions for name in action.option_strings]
    near = [name for name in options if name.startswith("--") and is_short_for(word[2:], name[2:])]
    hint = f"did you mean {near[0]}?" if near else nearest(word, options)
    if hint:
        raise UserError(f"{word!r} is not an option of `{parser.prog}`", hint=hint)


def is_short_for(word: str, name: str) -> bool:
    """Whether the letters of `word` are letters of `name` in that order, the first the same: md for markdown.

    >>> [is_short_for(word, "markdown") for word in ("md", "mrk", "kd", "dm", "mz", "")]
    [True, True, False, False, False, False]
    """
    letters = iter(name)
    return bool(word) and name.startswith(word[0]) and all(letter in letters for letter in word)


def parser_of(verb: str) -> argparse.ArgumentParser:
    """The argument parser of one verb, with its example."""
    module = importlib.import_module(f"onecard.cli.{verb.replace('-', '_')}")
    parser = _Parser(
        prog=f"onecard {verb}",
        description=module.HELP,
        epilog=f"example:\n  {module.EXAMPLE}",
        # asked for once, not by argparse for every option
        formatter_class=partial(_Help, width=get_terminal_size().columns - 2),
        allow_abbrev=False,
    )
    module.configure(parser)
    return parser


def _overview() -> str:
    width = max(map(len, VERBS)) + 2
    lines = [f"  {verb:{width}}{what}" for verb, what in VERBS.items()]
    return "\n".join(
        [
            "onecard: plan a GPT training run, run it on the card you have, learn from it.",
            "",
            "usage: onecard COMMAND … [--help]",
            "",
            *lines,
            "",
            'example:\n  onecard plan gpt2 --gpu "RTX 4070"',
        ]
    )
