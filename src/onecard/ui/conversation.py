"""A chat request's messages, and the texts that answer them.

A tuned model is asked through the same code as `onecard chat`. A model that was never tuned gets the conversation as lines
of "User:" and "Assistant:", which it continues.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onecard.errors import UserError
from onecard.untrusted import is_unicode

if TYPE_CHECKING:
    from onecard.model.generate import Sampler, Sampling
    from onecard.model.text_pieces import TextStream
    from onecard.tune.formats import Role

_MOST_MESSAGES = 1000
_ROLES: "dict[str, Role]" = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_SPEAKERS = {"system": "", "user": "User: ", "assistant": "Assistant: "}

Turn = tuple["Role", str]


def is_text(value: Any) -> bool:
    """Whether it is a text that UTF-8 can hold."""
    return isinstance(value, str) and is_unicode(value)


def turns_of(messages: Any) -> list[Turn]:
    """The request's messages as (role, text)."""
    if not isinstance(messages, list) or not 1 <= len(messages) <= _MOST_MESSAGES:
        raise UserError(f"messages is a list of 1 to {_MOST_MESSAGES} messages")
    turns = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):  # parts, of which only texts can be meant here
            content = "".join(
                str(part.get("text", "")) for part in content if isinstance(part, dict)
            )
        if role not in _ROLES or not is_text(content):
            raise UserError("a message has a role (system, user, assistant) and a text")
        turns.append((_ROLES[role], str(content)))
    return turns


def transcript(turns: Sequence[Turn]) -> str:
    """The conversation as text that a plain language model can continue."""
    lines = [f"{_SPEAKERS[role]}{content.strip()}" for role, content in turns]
    return "\n".join([*lines, "Assistant:"])


def chat_streams(
    sampler: "Sampler",
    turns: Sequence[Turn],
    sampling: "Sampling",
    most_tokens: int,
    choices: int,
    stop_texts: Sequence[str],
) -> "list[TextStream]":
    """`choices` answers to the last message; their seeds count up from the sampling's."""
    from onecard.model.text_pieces import texts_after
    from onecard.tune.dialogue import Dialogue
    from onecard.tune.formats import Message

    talk = Dialogue(sampler, sampling, most_tokens)
    if not talk.tuned:
        ids = sampler.encode(transcript(turns))
        more = {"most_tokens": most_tokens, "stop_texts": [*stop_texts, "\nUser:"]}
        return texts_after(sampler, ids, sampling, choices, **more)
    first = next((n for n, (role, _) in enumerate(turns) if role != "system"), len(turns))
    if first == len(turns) or turns[-1][0] != "user":
        raise UserError("the last message must be the user's", hint="this model answers a user")
    talk.system = "\n".join(content.strip() for _, content in turns[:first]) or None
    talk.messages = [Message(role, content) for role, content in turns[first:-1]]
    return [talk.ask(turns[-1][1], stop_texts).stream for _ in range(choices)]
