"""What `onecard data SOURCE…` may name, resolved to files: named sets, the hub, local files and folders, stdlib.

>>> resolve_source("stdlib", None).inputs[0].kind
'text'
"""

import re
from dataclasses import replace
from pathlib import Path

from onecard.data.sources.download import named_text
from onecard.data.sources.hub import HubRepo, look_up
from onecard.data.sources.local_files import (
    expansion,
    file_name,
    kind_of,
    local_source,
    stdlib_source,
)
from onecard.data.sources.source import Input, Source
from onecard.data.sources.unit import Kind
from onecard.errors import UserError, nearest
from onecard.facts.datasets import DatasetFacts, all_datasets, family, family_names, known_dataset


def resolve_source(word: str, tokens: int | None) -> Source:
    """What one SOURCE word means. A path wins over a name only when it looks like one (a separator, a suffix)."""
    if word == "stdlib":
        return stdlib_source()
    if word.startswith("hf:"):
        return _hub_word(word)
    if (given := text_of_named(word)) is not None:
        facts, path = given
        source = local_source(path)
        return replace(source, name=facts.name, bytes_per_token=facts.bytes_per_token)
    here = Path(word)
    looks_local = len(here.parts) > 1 or bool(here.suffix) or here.is_absolute()
    if looks_local and here.exists():
        return local_source(here)
    if (elsewhere := _by_language(word)) is not None:
        return _hub_word(elsewhere)
    named = family(word) or [entry for entry in [known_dataset(word)] if entry is not None]
    if named:
        return _named(word, named, tokens)
    if here.exists():
        return local_source(here)
    if looks_local and not re.fullmatch(r"[\w.-]+/[\w.-]+", word):
        raise UserError(
            f"{word} does not exist", hint="give a file, a folder, a named set or hf:owner/name"
        )
    names = family_names()
    hint = nearest(word, names) or f"named sets: {', '.join(names)}"
    raise UserError(
        f"{word!r} is neither a file nor a known data set",
        hint=f"{hint}; any other on the hub: hf:owner/name",
    )


# Sets that come by language, and the config's name on the hub; any language of them may be named.
_LANGUAGES = {
    "fineweb-2": (
        "hf:HuggingFaceFW/fineweb-2:{}",
        re.compile(r"[a-z]{3}_[A-Z][a-z]{3}"),
        "spa_Latn",
    ),
    "wikipedia": ("hf:wikimedia/wikipedia:20231101.{}", re.compile(r"[a-z-]{2,12}"), "es"),
}


def _by_language(word: str) -> str | None:
    """`fineweb-2:deu_Latn`, a language without an entry of its own, as a name on the hub."""
    name, _, language = word.partition(":")
    if name not in _LANGUAGES or (language and known_dataset(word) is not None):
        return None
    address, form, example = _LANGUAGES[name]
    if not form.fullmatch(language):
        raise UserError(f"{name} comes by language", hint=f"name one, as in {name}:{example}")
    return address.format(language)


def text_of_named(word: str) -> tuple[DatasetFacts, Path] | None:
    """`shakespeare_char=FILE`: a known set, its text given as a file instead of downloaded."""
    name, equals, path = word.partition("=")
    facts = known_dataset(name) if equals else None
    if facts is None or Path(word).exists():
        return None
    if not Path(path).is_file():
        raise UserError(f"{path or 'FILE'} does not exist", hint=f"write {name}=FILE with its text")
    return facts, Path(path)


def is_remote(word: str) -> bool:
    """Whether a SOURCE word is resolved by asking the hub, not by looking at local files."""
    if word.startswith("hf:") or word.partition(":")[0] in _LANGUAGES:
        return True
    facts = known_dataset(word)
    return facts is not None and facts.repo is not None and not Path(word).exists()


def _named(word: str, entries: list[DatasetFacts], tokens: int | None) -> Source:
    """The smallest sample that holds the tokens asked for."""
    entry = next((e for e in entries if tokens is None or tokens <= e.tokens), entries[-1])
    if entry.repo is None:
        source = local_source(named_text(entry))
        return replace(
            source,
            uri=str(entry.url),
            name=file_name(entry.name),
            licence=entry.licence,
            bytes_per_token=entry.bytes_per_token,
        )
    repo = look_up(entry.repo, None, None, entry.paths)
    sample = f":{entry.name.split(':')[1]}" if ":" in entry.name else ""
    return _hub_source(f"hf:{entry.repo}{sample}", file_name(word.split("/")[-1]), repo, entry)


def _hub_word(word: str) -> Source:
    match = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?::([\w./-]+))?(?:@([\w./-]+))?", word)
    if match is None or ".." in word:
        raise UserError(
            f"{word!r} is not a hub name",
            hint="write hf:owner/name, hf:owner/name:config or hf:owner/name@revision",
        )
    repo, config, revision = match.groups()
    known = next(
        (
            entry
            for entry in all_datasets()
            if entry.repo == repo and (config is None or entry.name.endswith(f":{config}"))
        ),
        None,
    )
    patterns = known.paths if known is not None and (config or known.pretokenized) else ()
    name = file_name(repo.split("/")[1] + (f"-{config}" if config else ""))
    uri = f"hf:{repo}" + (f":{config}" if config else "")
    return _hub_source(
        uri, name, look_up(repo, revision, config, patterns), known if patterns else None
    )


def _hub_source(uri: str, name: str, repo: HubRepo, facts: DatasetFacts | None) -> Source:
    shards = all(file.path.endswith(".bin") for file in repo.files)
    total = sum(file.size for file in repo.files) or 1
    text = facts.tokens * facts.bytes_per_token if facts is not None else None
    inputs = []
    for file in repo.files:
        kind: Kind = "text" if shards else kind_of(Path(file.path))
        expected = (
            text * file.size / total if text else file.size * expansion(Path(file.path), kind)
        )
        inputs.append(Input(file.path, kind, file.size, 0, file.sha256, int(expected)))
    if shards:  # validation first, then train in order
        inputs.sort(key=lambda item: ("_val_" not in item.path, item.path))
    return Source(
        uri,
        name,
        repo.commit,
        repo.licence or (facts.licence if facts is not None else None),
        repo.repo,
        tuple(inputs),
        shards,
        bytes_per_token=facts.bytes_per_token if facts is not None else None,
        column=facts.column if facts is not None and facts.column != "text" else None,
    )
