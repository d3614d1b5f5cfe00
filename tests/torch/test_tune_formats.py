"""What `onecard tune` reads: the formats people have, what is left out, how conversations are packed."""

import json

import numpy as np
import pytest
from conversations import CHAT, dialogue, write_lines

from onecard.data import gpt2
from onecard.data.tokenizers.kinds import BytesTokenizer, CharsTokenizer
from onecard.data.tokenizers.load import load_tokenizer
from onecard.data.tokenizers.special import END, with_chat_tokens
from onecard.tune.formats import read_conversations
from onecard.tune.gather import gather
from onecard.tune.packing import pack

FORMATS = {
    "messages": {"messages": [{"role": "system", "content": "s"}, *dialogue("q", "a")["messages"]]},
    "parts": {
        "messages": [
            {"role": "developer", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": "a"},
        ]
    },
    "sharegpt": {
        "conversations": [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "q"},
            {"from": "gpt", "value": "a"},
            {"from": "human", "value": "thanks, without an answer"},
        ]
    },
    "alpaca": {"system": "s", "instruction": "q", "input": "", "output": "a"},
    "completion": {"system": "s", "prompt": "q", "completion": " a"},
}


@pytest.mark.parametrize("kind", FORMATS)
def test_the_formats_people_have_say_the_same(tmp_path, kind):
    path = write_lines(tmp_path / "x.jsonl", [FORMATS[kind]])
    ((line, found),) = read_conversations(path)
    assert line == 1
    assert [(m.role, m.content) for m in found] == [
        ("system", "s"),
        ("user", "q"),
        ("assistant", "a"),
    ]


def test_a_json_list_is_read_and_alpacas_input_follows_the_instruction(tmp_path):
    path = tmp_path / "alpaca.json"
    path.write_text(json.dumps([{"instruction": "Reverse", "input": "ab", "output": "ba"}]))
    ((place, found),) = read_conversations(path)
    assert (place, found[0].content) == (1, "Reverse\n\nab")


def test_what_cannot_be_read_is_counted_and_named_by_line(tmp_path):
    good = json.dumps(dialogue("hello", "hi")).encode()
    long = json.dumps(dialogue("x" * 10_000_000, "short")).encode()
    odd = [
        b'{"messages": [broken',
        json.dumps({"messages": [{"role": "tool", "content": "x"}]}).encode(),
        json.dumps(dialogue("q", "  ")).encode(),
        long,
        '{"prompt": "caf\u00e9", "completion": "x"}'.encode("latin-1"),
        json.dumps({"title": "x"}).encode(),
        b'{"prompt": "\\ud800", "completion": "x"}',
        json.dumps(dialogue("only a question")).encode(),
        b"[1, 2]",
        json.dumps(dialogue("q", None)).encode(),
    ]
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(b"\n".join([b"\xef\xbb\xbf" + good, *odd, b"", good, good]))
    found = gather([path], CHAT, room=64)
    assert (len(found.items), found.distinct) == (3, 1)
    named = {str(skips.reason): skips.lines for skips in found.skipped}
    assert named == {
        "not JSON": (2,),
        "unknown role 'tool'": (3,),
        "empty answer": (4, 11),
        "longer than the context of 64 tokens": (5,),
        "not UTF-8": (6,),
        "no known format (its keys are title)": (7,),
        "half of a surrogate pair, which is no character": (8,),
        "no answer": (9,),
        "not a JSON object": (10,),
    }


def test_turns_that_do_not_fit_are_left_out_and_reported(tmp_path):
    path = write_lines(
        tmp_path / "x.jsonl", [dialogue("a", "b", "c" * 100, "d"), dialogue("a", "b")]
    )
    found = gather([path], CHAT, room=32)
    assert found.shortened == 1
    assert found.distinct == 1  # what is left of the first is the second
    assert CHAT.decode(found.items[0].ids) == ("<|endoftext|><|user|>a<|end|><|assistant|>b<|end|>")
    assert found.items[0].learned == 2


def test_packing_keeps_every_conversation_whole():
    generator = np.random.default_rng(3)
    lengths = generator.integers(1, 100, 500).tolist()
    windows = pack(lengths, 100)
    assert sorted(i for window in windows for i in window) == list(range(500))
    assert max(sum(lengths[i] for i in window) for window in windows) <= 100
    assert len(windows) <= sum(lengths) / 100 * 1.03 + 1


@pytest.mark.parametrize("base", [gpt2(), BytesTokenizer(), CharsTokenizer("abc", separator=False)])
def test_role_tokens_come_after_the_vocabulary_and_never_out_of_text(tmp_path, base):
    chat = with_chat_tokens(base)
    assert min(chat.special.values()) == base.vocab_size
    assert chat.vocab_size == base.vocab_size + len(chat.special)
    assert chat.eot is not None
    if base.name != "chars":
        assert max(chat.encode("<|user|>x<|end|>")) < base.vocab_size
    if (content := chat.file_content()) is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    again = load_tokenizer(chat.describe(), tmp_path)
    assert again.describe() == chat.describe()
    assert again.decode([chat.special[END]]) == END
    assert with_chat_tokens(again) is again
