"""`onecard chat`: a conversation with a tuned model."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onecard.cli.options import add_tokenizer, check_counts
from onecard.cli.sampling_options import add_sampling, sampling_of
from onecard.errors import UserError
from onecard.streams import to_stream
from onecard.untrusted import printable

if TYPE_CHECKING:
    from onecard.tune.dialogue import Dialogue, Reply

HELP = "Talk to a tuned model: streamed, many turns. In a pipe: one prompt a line in, one answer a line out."
EXAMPLE = """onecard chat out-chat --temperature 0.7 --top-p 0.9
  echo "What is a shard?" | onecard chat out-chat --json"""

_COMMANDS = """/reset            forget the conversation
/save FILE        write it as a line of JSON that `onecard tune` reads
/system TEXT      a message before all others; without TEXT: none
/temp 0.7         temperature; also /top-k 40, /top-p 0.9, /min-p 0.05,
                  /penalty 1.1, /seed 1, /tokens 200
/help             this list
/exit             end (so does Ctrl-D)"""
_SETTINGS = {
    "temp": "temperature",
    "temperature": "temperature",
    "top-k": "top_k",
    "top-p": "top_p",
    "min-p": "min_p",
    "penalty": "repetition_penalty",
    "seed": "seed",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a tuned run's folder, one checkpoint in it, or an export; an untuned model continues text",
    )
    add_sampling(parser, temperature=0.7)
    parser.add_argument(
        "--tokens",
        type=int,
        default=256,
        metavar="N",
        help="most tokens of an answer (default 256)",
    )
    parser.add_argument("--system", metavar="TEXT", help="a message before all others")
    parser.add_argument(
        "--turns",
        action="store_true",
        help="in a pipe: the lines are turns of one conversation, not prompts by themselves",
    )
    add_tokenizer(parser)
    parser.add_argument("--json", action="store_true", help="each answer as a line of JSON")


def run(args: argparse.Namespace) -> int:
    check_counts(args, tokens="256")
    sampling = sampling_of(args)
    from onecard.model.opening import open_model
    from onecard.tune.dialogue import Dialogue

    sampler = open_model(
        args.run, args.device, args.dataset, lambda text: print(text, file=sys.stderr)
    )
    talk = Dialogue(sampler, sampling, args.tokens, args.system)
    if not talk.tuned:
        _say(
            f"{args.run} was never tuned on conversations: it continues the text you type. "
            f"`onecard tune {args.run} conversations.jsonl` makes an assistant of it."
        )
    if sys.stdin.isatty() and sys.stdout.isatty() and not args.json:
        return _interactive(talk)
    return _piped(talk, args)


def _piped(talk: "Dialogue", args: argparse.Namespace) -> int:
    """One line in, one line out; line breaks within an answer are written as \\n."""
    failed = False
    for line in sys.stdin:
        text = line.strip()
        if not text:
            continue
        if not args.turns:
            talk.reset()
        elif text.startswith("/"):
            if not _command(talk, text):
                break
            continue
        try:
            reply = talk.ask(text)
        except UserError as error:
            _say(error.message)
            failed = True
            reply = None
        answer = "" if reply is None else _whole(talk, reply)
        if args.json:
            _write(json.dumps(_as_json(text, answer, reply), ensure_ascii=False) + "\n")
        else:
            _write(printable(answer.strip(), keep="\n").replace("\n", "\\n") + "\n")
    return 2 if failed else 0


def _as_json(text: str, answer: str, reply: "Reply | None") -> dict[str, object]:
    return {
        "prompt": text,
        "answer": answer.strip(),
        "tokens": 0 if reply is None else len(reply.stream.ids),
        "ended": None if reply is None else reply.stream.ended,
        "dropped_messages": 0 if reply is None else reply.dropped,
    }


def _whole(talk: "Dialogue", reply: "Reply") -> str:
    for _ in reply.stream:
        pass
    talk.keep(reply)
    return reply.stream.text


def _interactive(talk: "Dialogue") -> int:
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  arrow keys and history
    print("/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends.")
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            print()
            return 0
        except (
            KeyboardInterrupt
        ):  # an answer may just have ended: its conversation must not go with it
            print()
            _say("(Ctrl-D or /exit ends the conversation)")
            continue
        if text.startswith("/"):
            if not _command(talk, text):
                return 0
        elif text:
            _answer(talk, text)


def _answer(talk: "Dialogue", text: str) -> None:
    try:
        reply = talk.ask(text)
    except UserError as error:
        _say(error.message)
        return
    if reply.dropped:
        _say(f"(the context is full: the oldest {reply.dropped} messages are dropped)")
    try:
        for piece in reply.stream:
            _write(printable(piece, keep="\n\t"))
    except KeyboardInterrupt:
        reply.stream.cancel()
        _write(" (stopped)")
    _write("\n")
    if reply.stream.ended == "length":
        _say("(cut off: the limit of tokens or the context is reached; /tokens or /reset)")
    talk.keep(reply)


def _command(talk: "Dialogue", line: str) -> bool:
    """Do what a line with a slash asks for; False where it ends the conversation."""
    word, _, rest = line[1:].partition(" ")
    rest = rest.strip()
    try:
        if word in ("exit", "quit", "bye"):
            return False
        if word == "reset":
            talk.reset()
            _say("(the conversation is forgotten)")
        elif word == "system":
            talk.system = rest or None
            _say(f"(system message {'set' if rest else 'removed'})")
        elif word == "save":
            _save(talk, rest)
        elif word == "tokens" or word in _SETTINGS:
            _set(talk, word, rest)
        elif word == "help":
            _say(_COMMANDS)
        else:
            raise UserError(f"there is no command /{word}", hint="/help lists them")
    except UserError as error:
        _say(str(error))
    return True


def _set(talk: "Dialogue", word: str, text: str) -> None:
    key = "tokens" if word == "tokens" else _SETTINGS[word]
    whole = key in ("tokens", "top_k", "seed")
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        raise UserError(f"/{word} needs a number", hint=f"for example /{word} 1") from None
    if key == "tokens":
        if value < 1:
            raise UserError(f"/tokens cannot be {value}", hint="for example /tokens 200")
        talk.most_tokens = int(value)
    else:
        setting: dict[str, Any] = {key: value}
        talk.sampling = replace(talk.sampling, **setting).checked()
    _say(f"({word} = {value:g})")


def _save(talk: "Dialogue", name: str) -> None:
    from onecard.files import write_text

    if not name:
        raise UserError("/save needs a file's name", hint="for example /save talk.jsonl")
    path = Path(name)
    if path.exists():
        raise UserError(f"{name} exists already", hint="name another file")
    try:
        write_text(path, json.dumps(talk.to_json(), ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror or error}") from None
    _say(f"(saved to {name})")


def _say(text: str) -> None:
    """Words that are no answer, beside the answers' stream."""
    to_stream(sys.stderr, printable(text, keep="\n"))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
