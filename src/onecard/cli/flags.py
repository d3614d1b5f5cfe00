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
