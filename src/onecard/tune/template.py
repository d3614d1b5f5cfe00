"""A conversation as tokens, and the same rule as Hugging Face's chat template.

    <|endoftext|><|user|>Hello<|end|><|assistant|>Hi!<|end|>

The separator opens each conversation, so that attention can be kept inside it as inside any document. Roles are tokens of
their own, which no text can contain.
"""

from collections.abc import Sequence

from onecard.data.tokenizers.kinds import EOT
from onecard.data.tokenizers.special import ASSISTANT, END, SYSTEM, USER, SpecialTokenizer
from onecard.tune.formats import Message

ROLE_TOKENS = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}

CHAT_TEMPLATE = (
    "{{ '" + EOT + "' }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '" + END + "' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def encode_turns(tokenizer: SpecialTokenizer, messages: Sequence[Message]) -> list[list[int]]:
    """Each message as its tokens: role, text, end."""
    flat, starts = tokenizer.encode_batch([message.content.strip() for message in messages])
    end = tokenizer.special[END]
    return [
        [tokenizer.special[ROLE_TOKENS[message.role]], *flat[low:high].tolist(), end]
        for message, low, high in zip(messages, starts[:-1], starts[1:], strict=True)
    ]


def prompt_of(tokenizer: SpecialTokenizer, messages: Sequence[Message]) -> list[int]:
    """What the assistant is to continue from."""
    assert tokenizer.eot is not None
    turns = encode_turns(tokenizer, messages) if messages else []
    return [tokenizer.eot, *(i for turn in turns for i in turn), tokenizer.special[ASSISTANT]]
