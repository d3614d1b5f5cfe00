"""A small text with a known digest, fetched once from its address and kept.

>>> named_text(find_dataset("shakespeare_char")).stat().st_size                       # doctest: +SKIP
1115394
"""

import hashlib
import urllib.request
from pathlib import Path

from onecard.data.read.shard_files import file_sha256
from onecard.data.sources.network import check_reachable
from onecard.errors import RunFailure, UserError, first_line
from onecard.facts.datasets import DatasetFacts
from onecard.facts.user_cards import config_folder
from onecard.files import write_bytes

_TIMEOUT_SECONDS = 20


def named_text(facts: DatasetFacts) -> Path:
    """The set's text file on this machine, downloaded if need be."""
    by_hand = f"with the text on disk: `onecard data {facts.name}=FILE`"
    if facts.url is None or facts.sha256 is None:
        raise UserError(f"{facts.name} has no download here", hint=by_hand)
    path = config_folder() / "texts" / f"{facts.sha256[:16]}.txt"
    if path.is_file() and file_sha256(path) == facts.sha256:
        return path
    try:
        check_reachable(facts.url)
        with urllib.request.urlopen(facts.url, timeout=_TIMEOUT_SECONDS) as answer:
            content = answer.read(facts.download_bytes + 1)
    except RunFailure as error:
        raise RunFailure(error.message, hint=by_hand) from None
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise RunFailure(f"{facts.name}: {first_line(error)}", hint=by_hand) from None
    if hashlib.sha256(content).hexdigest() != facts.sha256:
        raise RunFailure(f"what {facts.url} sent is not {facts.name}'s text", hint=by_hand)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    return path
