"""What the tests of `onecard tune` share: its tokens, a conversation, a file of them."""

import json

from onecard.data.tokenizers.kinds import BytesTokenizer
from onecard.data.tokenizers.special import with_chat_tokens

CHAT = with_chat_tokens(BytesTokenizer())


def dialogue(*turns):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": t} for n, t in enumerate(turns)]}


def write_lines(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path
