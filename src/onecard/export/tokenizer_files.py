"""Every tokeniser of ours as a `tokenizer.json` that the tokenizers library and transformers load without our code.

    write_tokenizer(folder, tokenizer, context=1024)

Bytes become a byte-level BPE without merges; characters a table of words of one character, which has no entry for a
character that the data did not have: encoding such a text is an error there as it is here.
"""

import json
from pathlib import Path
from typing import Any

from onecard.data.tokenizers.bpe import BpeTokenizer, bpe_spec, byte_characters, special_token
from onecard.data.tokenizers.kinds import EOT, BytesTokenizer, CharsTokenizer, Tokenizer
from onecard.data.tokenizers.special import END, SpecialTokenizer, has_chat_tokens
from onecard.errors import UserError
from onecard.tune.template import CHAT_TEMPLATE


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of tokenizer.json."""
    if isinstance(tokenizer, SpecialTokenizer):
        plain = tokenizer_json(tokenizer.base)
        added = [special_token(index, name) for name, index in tokenizer.special.items()]
        return {**plain, "added_tokens": [*plain["added_tokens"], *added]}
    if isinstance(tokenizer, BpeTokenizer):
        return dict(json.loads(tokenizer.hf_json()))
    if isinstance(tokenizer, BytesTokenizer):
        characters = byte_characters()
        spec = bpe_spec({characters[value]: value for value in range(256)}, [])
        whole = {**spec["pre_tokenizer"], "use_regex": False}
        return {**spec, "pre_tokenizer": whole, "added_tokens": [special_token(256, EOT)]}
    if isinstance(tokenizer, CharsTokenizer):
        words = {char: index for index, char in enumerate(tokenizer.chars)}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [] if tokenizer.eot is None else [special_token(tokenizer.eot, EOT)],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "[\\s\\S]"},
                "behavior": "Isolated",
                "invert": False,
            },
            "post_processor": None,
            "decoder": {"type": "Fuse"},
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unknown character>"},
        }
    raise UserError(f"the tokeniser {tokenizer.name!r} cannot be exported")


def write_tokenizer(folder: Path, tokenizer: Tokenizer, context: int) -> None:
    """tokenizer.json, and the few settings that AutoTokenizer looks for beside it."""
    content = json.dumps(tokenizer_json(tokenizer), ensure_ascii=False)
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    if tokenizer.eot is not None:
        settings |= {"bos_token": EOT, "eos_token": EOT}
    if has_chat_tokens(tokenizer):
        settings |= {"eos_token": END, "pad_token": EOT, "chat_template": CHAT_TEMPLATE}
    text = json.dumps(settings, indent=2)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
