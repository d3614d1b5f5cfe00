"""nanoGPT's meta.pkl, read without pickle: an untrusted pickle can run code, so only dicts, strings and ints are followed.

>>> import pickle, tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp()) / "meta.pkl"
>>> _ = path.write_bytes(pickle.dumps({"vocab_size": 2, "itos": {0: "a", 1: "b"}, "stoi": {"a": 0, "b": 1}}))
>>> read_meta(path)
{'name': 'chars', 'vocab_size': 2, 'eot': None, 'file': None, 'chars': ['a', 'b']}
"""

import pickletools
from pathlib import Path
from typing import Any

from onecard.data.read.manifest import check_characters
from onecard.errors import UserError
from onecard.untrusted import read_bytes, readable

_MARK = object()
_LARGEST = 64 * 1024 * 1024  # a character table is kilobytes


def read_meta(path: Path) -> dict[str, Any] | None:
    """The character tokeniser of a meta.pkl; None when it holds something else that is plainly no character table."""
    try:
        with readable(path):
            content = read_bytes(path, _LARGEST)
    except ValueError:
        raise UserError(
            f"{path} is too large for a table of characters",
            hint="delete it, if the tokens are GPT-2's",
        ) from None
    meta = _plain(path, content)
    if not isinstance(meta, dict) or not isinstance(meta.get("itos"), dict):
        return None
    chars = [meta["itos"].get(index) for index in range(len(meta["itos"]))]
    if not chars or not all(isinstance(char, str) and len(char) == 1 for char in chars):
        return None
    try:
        check_characters(chars)
    except ValueError as error:
        raise UserError(
            f"{path}: {error}", hint="make it again with nanoGPT's prepare.py"
        ) from None
    return {"name": "chars", "vocab_size": len(chars), "eot": None, "file": None, "chars": chars}


def _plain(path: Path, content: bytes) -> Any:
    """Follow the pickle's opcodes for plain values; any other opcode is refused by name."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for opcode, argument, _ in pickletools.genops(content):
            match opcode.name:
                case "PROTO" | "FRAME":
                    pass
                case "EMPTY_DICT":
                    stack.append({})
                case "MARK":
                    stack.append(_MARK)
                case (
                    "SHORT_BINUNICODE"
                    | "BINUNICODE"
                    | "BINUNICODE8"
                    | "BININT"
                    | "BININT1"
                    | "BININT2"
                    | "LONG1"
                ):
                    stack.append(argument)
                case "MEMOIZE":
                    memo[len(memo)] = stack[-1]
                case "BINPUT" | "LONG_BINPUT":
                    memo[int(argument or 0)] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(memo[int(argument or 0)])
                case "SETITEM":
                    value, key = stack.pop(), stack.pop()
                    stack[-1][key] = value
                case "SETITEMS":
                    at = len(stack) - 1 - stack[::-1].index(_MARK)
                    items = stack[at + 1 :]
                    del stack[at:]
                    stack[-1].update(zip(items[::2], items[1::2], strict=True))
                case "STOP":
                    return stack.pop()
                case other:
                    raise UserError(
                        f"{path} holds more than dicts, strings and numbers (opcode {other}); it is not read",
                        hint="a pickle can run code: delete it, or keep only its itos and stoi",
                    )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{path} is damaged ({error})", hint="make it again with nanoGPT's prepare.py"
        ) from None
    raise UserError(f"{path} is cut short", hint="make it again with nanoGPT's prepare.py")
