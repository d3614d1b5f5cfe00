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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onecard.data.sources.jsonl_lines import numbered_lines
from onecard.errors import UserError
from onecard.messages import Note
from onecard.untrusted import is_unicode, parse_json, printable, read_json

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
_EMPTY = {
    "system": "skip-empty-system",
    "user": "skip-empty-user",
    "assistant": "skip-empty-assistant",
}
_LISTS = ("messages", "conversations", "conversation")
_FLAT = (("instruction", "output"), ("prompt", "completion"), ("prompt", "response"))
_MOST_LIST_BYTES = 2**30  # of a file that is one JSON list, which is read as a whole
_EXAMPLE = 'a line looks like {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'


class UnreadableError(Exception):
    """Why a record is no conversation that can be learned from."""

    def __init__(self, code: str, **values: Any):
        self.reason = Note(code, **values)
        super().__init__(str(self.reason))


@dataclass(frozen=True)
class Message:
    role: Role
    content: str


Conversation = tuple[Message, ...]


def read_conversations(
    path: Path, progress: Callable[[int], None] = lambda at_byte: None
) -> Iterator[tuple[int, Conversation | UnreadableError]]:
    """Every record of a file with its line (or its place in the list, from 1); why not, where it is no conversation."""
    for number, at, record in _records(path):
        progress(at)
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
        raise UnreadableError("skip-not-object")
    turns = next((record[key] for key in _LISTS if key in record), None)
    messages = _from_list(turns) if turns is not None else _from_columns(record)
    while messages and messages[-1].role != "assistant":
        messages.pop()  # nothing comes after it that could be learned
    if not messages:
        raise UnreadableError("skip-no-answer")
    return tuple(messages)


def _from_list(items: Any) -> list[Message]:
    if not isinstance(items, list):
        raise UnreadableError("skip-not-list")
    messages = []
    for item in items:
        if not isinstance(item, dict):
            raise UnreadableError("skip-message-not-object")
        role = item.get("role", item.get("from"))
        if not isinstance(role, str) or role.lower() not in _ROLES:
            raise UnreadableError("skip-unknown-role", role=_short(role))
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
    if not there:
        raise UnreadableError("skip-empty-object")
    raise UnreadableError("skip-unknown-format", keys=there)


def _message(role: Role, content: Any) -> Message:
    text = _text(content).strip()
    if not text:
        raise UnreadableError(_EMPTY[role])
    return Message(role, text)


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        content = "".join(part["text"] for part in content)  # OpenAI's list of parts
    if not isinstance(content, str):
        raise UnreadableError("skip-not-text")
    if not is_unicode(content):
        raise UnreadableError("skip-surrogate")
    return content


def _records(path: Path) -> Iterator[tuple[int, int, Any]]:
    """Line (or place), the byte where it begins, and what is there."""
    if not path.is_file():
        raise UserError(f"there is no file {path}", hint="name a .jsonl file of conversations")
    for number, at, line in numbered_lines(str(path)):
        if number == 1 and line is not None:
            line = line.removeprefix(b"\xef\xbb\xbf")
            if line.lstrip()[:1] == b"[":
                yield from _listed(path)
                return
        if line is None:
            yield number, at, UnreadableError("skip-line-too-long")
        elif line.strip():
            yield number, at, _parsed(line)


def _parsed(line: bytes) -> Any:
    try:
        return parse_json(line)
    except UnicodeDecodeError:
        return UnreadableError("skip-not-utf8")
    except ValueError:
        return UnreadableError("skip-not-json")


def _listed(path: Path) -> Iterator[tuple[int, int, Any]]:
    records = _whole_list(path)
    size = path.stat().st_size
    for place, record in enumerate(records):
        yield place + 1, size * place // len(records), record


def _whole_list(path: Path) -> list[Any]:
    try:
        records = read_json(path, _MOST_LIST_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} begins as a JSON list and cannot be read as one: {error}",
            hint=f"one record a line can be larger and broken in places; {_EXAMPLE}",
        ) from None
    return records if isinstance(records, list) else [records]


def _short(value: Any) -> str:
    return printable(repr(value))[:40]
