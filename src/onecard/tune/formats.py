"""Conversations in the formats people have; what cannot be read is counted and named by line.

>>> conversation_of({"instruction": "Reverse it.", "input": "abc", "output": "cba"})[1].content
'cba'
>>> conversation_of({"messages": [{"role": "tool", "content": "x"}]})
Traceback (most recent call last):
    ...
onecard.tune.formats.UnreadableError: unknown role 'tool'

| format | a record |
|---|---|
| messages | {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]} |
| ShareGPT | {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]} |
| Alpaca | {"instruction": "…", "input": "…", "output": "…"} |
| prompt and completion | {"prompt": "…", "completion": "…"} |

A file holds one record a line (.jsonl, also .gz and .zst), or one JSON list of records.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onecard.data.sources.jsonl_lines import numbered_lines
from onecard.errors import UserError
from onecard.untrusted import parse_json, printable, read_json

Role = Literal["system", "user", "assistant"]

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
}
_LISTS = ("messages", "conversations", "conversation")
_FLAT = (("instruction", "output"), ("prompt", "completion"), ("prompt", "response"))
_MOST_LIST_BYTES = 2**30  # of a file that is one JSON list, which is read as a whole
_EXAMPLE = 'a line looks like {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'


class UnreadableError(Exception):
    """Why a record is no conversation that can be learnt from."""


@dataclass(frozen=True)
class Message:
    role: Role
    content: str


Conversation = tuple[Message, ...]


def read_conversations(path: Path) -> Iterator[tuple[int, Conversation | UnreadableError]]:
    """Every record of a file with its line (or its place in the list, from 1); why not, where it is no conversation."""
    for number, record in _records(path):
        if isinstance(record, UnreadableError):
            yield number, record
            continue
        try:
            yield number, conversation_of(record)
        except UnreadableError as error:
            yield number, error


def conversation_of(record: Any) -> Conversation:
    """A record of any of the formats; UnreadableError says what it lacks."""
    if not isinstance(record, dict):
        raise UnreadableError("not a JSON object")
    found = next((record[key] for key in _LISTS if key in record), None)
    messages = _from_list(found) if found is not None else _from_columns(record)
    while messages and messages[-1].role != "assistant":
        messages.pop()  # nothing comes after it that could be learnt
    if not messages:
        raise UnreadableError("no answer")
    return tuple(messages)


def _from_list(items: Any) -> list[Message]:
    if not isinstance(items, list):
        raise UnreadableError("the messages are not a list")
    messages = []
    for item in items:
        if not isinstance(item, dict):
            raise UnreadableError("a message is not an object")
        role = item.get("role", item.get("from"))
        if not isinstance(role, str) or role.lower() not in _ROLES:
            raise UnreadableError(f"unknown role {_short(role)}")
        content = item.get("content", item.get("value"))
        messages.append(_message(_ROLES[role.lower()], content))
    return messages


def _from_columns(record: dict[str, Any]) -> list[Message]:
    for asked, answered in _FLAT:
        if asked not in record or answered not in record:
            continue
        if isinstance(record[asked], list):  # TRL's conversational prompt and completion
            answer = record[answered]
            return _from_list(record[asked] + (answer if isinstance(answer, list) else []))
        question = _text(record[asked])
        more = record.get("input") if asked == "instruction" else None
        if more:
            question = f"{question}\n\n{_text(more)}"
        messages = [_message("user", question), _message("assistant", record[answered])]
        if record.get("system"):
            messages.insert(0, _message("system", record["system"]))
        return messages
    there = ", ".join(printable(str(key))[:20] for key in list(record)[:6])
    raise UnreadableError(f"no known format (it has {there})" if there else "an empty object")


def _message(role: Role, content: Any) -> Message:
    text = _text(content).strip()
    if not text:
        raise UnreadableError("empty answer" if role == "assistant" else f"empty {role} message")
    return Message(role, text)


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        content = "".join(part["text"] for part in content)  # OpenAI's list of parts
    if not isinstance(content, str):
        raise UnreadableError("a message is not text")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise UnreadableError("half of a surrogate pair, which is no character") from None
    return content


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    if not path.is_file():
        raise UserError(f"there is no file {path}", hint="name a .jsonl file of conversations")
    lines = numbered_lines(str(path))
    first = next(lines, None)
    if first is not None and first[1] is not None:
        start = first[1].removeprefix(b"\xef\xbb\xbf")
        if start.lstrip()[:1] == b"[":
            yield from enumerate(_whole_list(path), 1)
            return
        yield from _parsed(1, start)
    elif first is not None:
        yield from _parsed(*first)
    for number, line in lines:
        yield from _parsed(number, line)


def _parsed(number: int, line: bytes | None) -> Iterator[tuple[int, Any]]:
    if line is None:
        yield number, UnreadableError("line too long")
    elif line.strip():
        try:
            yield number, parse_json(line)
        except UnicodeDecodeError:
            yield number, UnreadableError("not UTF-8")
        except ValueError:
            yield number, UnreadableError("not JSON")


def _whole_list(path: Path) -> list[Any]:
    try:
        found = read_json(path, _MOST_LIST_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} begins as a JSON list and cannot be read as one: {error}",
            hint=f"one record a line can be larger and broken in places; {_EXAMPLE}",
        ) from None
    return found if isinstance(found, list) else [found]


def _short(value: Any) -> str:
    return printable(repr(value))[:40]
