"""The library's errors name options, and what to set them to; on the command line these are flags.

>>> with_flags("start again with the option `fresh`, or set the option `max_price=2.50`")
'start again with --fresh, or set --max-price 2.50'
"""

import re


def with_flags(text: str) -> str:
    return re.sub(r"the option `(\w+)(?:=([^`]*))?`", _flag, text)


def _flag(match: re.Match[str]) -> str:
    flag, value = "--" + match[1].replace("_", "-"), match[2]
    if value is None:
        return flag
    return f"{flag}={value}" if value.startswith("-") else f"{flag} {value}"


def in_plain_words(message: str) -> str:
    """An error of argparse.

    >>> in_plain_words("argument --tokens: invalid int value: 'many'")
    "--tokens: 'many' is not a whole number"
    """
    message = message.replace("argument --", "--")  # also in "with argument --json"
    return re.sub(r"invalid int value: (.*)", r"\1 is not a whole number", message)


def one_too_many(before: str, word: str) -> str:
    """A word that belongs to no option; behind a config key it is that key's value.

    >>> one_too_many("--batch_size", "14")
    "one word too many: '14'; write --batch_size=14"
    """
    key = f"; write {before}={word}" if before.startswith("--") and "=" not in before else ""
    return f"one word too many: {word!r}{key}"
